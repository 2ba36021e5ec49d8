"""Distributions against PyTorch: densities, moments, quantiles, and how draws are spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import genesis

BOTH = (genesis, torch)
COUNT = 20000

#: A distribution of batch shape (2,), and values that it can have.
CASES: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "StudentT": (lambda m: m.StudentT(m.t([5.0, 3.5]), m.t(1.0), m.t([0.5, 2.0])), [-3.0, 0.2]),
    "Chi2": (lambda m: m.Chi2(m.t([1.5, 6.0])), [0.4, 5.0]),
    "Weibull": (lambda m: m.Weibull(m.t([0.5, 2.0]), m.t([0.8, 3.0])), [0.3, 1.7]),
    "VonMises": (lambda m: m.VonMises(m.t([0.5, -2.0]), m.t([0.7, 30.0])), [-2.5, 0.4]),
    "Laplace": (lambda m: m.Laplace(m.t([0.5, -1.0]), m.t(2.0)), [-3.0, 0.7]),
    "Gumbel": (lambda m: m.Gumbel(m.t([0.5, -1.0]), m.t(2.0)), [-1.0, 4.0]),
    "HalfNormal": (lambda m: m.HalfNormal(m.t([0.5, 2.0])), [0.3, 1.5]),
    "LogNormal": (lambda m: m.LogNormal(m.t([0.5, -1.0]), m.t(0.6)), [0.3, 2.5]),
    "Uniform": (lambda m: m.Uniform(m.t([-1.0, 0.0]), m.t([1.0, 2.0])), [0.3, 0.9]),
    "Exponential": (lambda m: m.Exponential(m.t([0.5, 2.0])), [0.3, 2.5]),
    "Gamma": (lambda m: m.Gamma(m.t([0.6, 2.5]), m.t(1.5)), [0.3, 2.5]),
    "Beta": (lambda m: m.Beta(m.t([0.6, 2.5]), m.t(1.5)), [0.3, 0.9]),
    "Pareto": (lambda m: m.Pareto(m.t([1.0, 0.5]), m.t([2.5, 3.0])), [1.5, 2.0]),
    "InverseGamma": (lambda m: m.InverseGamma(m.t([3.0, 2.5]), m.t(1.5)), [0.4, 2.0]),
    "HalfCauchy": (lambda m: m.HalfCauchy(m.t([0.5, 2.0])), [0.3, 4.0]),
    "FisherSnedecor": (lambda m: m.FisherSnedecor(m.t([3.0, 7.0]), m.t([5.0, 9.5])), [0.4, 2.5]),
    "GeneralizedPareto": (
        lambda m: m.GeneralizedPareto(m.t([0.5, -1.0]), m.t(1.5), m.t([-0.4, 0.3])),
        [1.2, 4.0],
    ),
    "exceeding": (
        lambda m: m.GeneralizedPareto(m.t(0.5), m.t([1.5, 0.7]), m.t([1e-5, 0.7])),
        [1.2, 4.0],
    ),
    "ContinuousBernoulli": (lambda m: m.ContinuousBernoulli(m.t([0.1, 0.54])), [0.3, 0.8]),
    "pixels": (lambda m: m.ContinuousBernoulli(logits=m.t([4.0, -0.2])), [0.3, 0.8]),
    "RelaxedBernoulli": (
        lambda m: m.RelaxedBernoulli(m.t(0.7), logits=m.t([0.3, -1.0])),
        [0.2, 0.9],
    ),
    "NegativeBinomial": (
        lambda m: m.NegativeBinomial(m.t([3.0, 5.0]), logits=m.t([0.2, -1.0])),
        [2.0, 0.0],
    ),
    "MixtureSameFamily": (
        lambda m: m.MixtureSameFamily(
            m.Categorical(m.t([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])),
            m.Normal(m.t([[-1.0, 0.0, 2.0], [5.0, 1.0, -3.0]]), m.t([0.5, 1.0, 0.7])),
        ),
        [-2.0, 0.7],
    ),
    "falling": (
        lambda m: m.TransformedDistribution(
            m.Normal(m.t([0.5, -1.0]), m.t(0.6)),
            [m.ExpTransform(), m.AffineTransform(m.t(1.0), m.t(-2.0))],
        ),
        [-1.5, 0.5],
    ),
    "squashed": (
        lambda m: m.TransformedDistribution(
            m.Normal(m.t(0.5), m.t(0.6)),
            [m.AffineTransform(m.t([0.3, 0.1]), 1.5), m.TanhTransform()],
        ),
        [-0.5, 0.9],
    ),
    "logistic": (
        lambda m: m.TransformedDistribution(
            m.Uniform(m.t([0.0, 0.0]), m.t(1.0)),
            [m.SigmoidTransform().inv, m.AffineTransform(1, 2)],
        ),
        [-1.5, 2.5],
    ),
    "powers": (
        lambda m: m.TransformedDistribution(
            m.Normal(m.t([0.5, 0.1]), m.t(0.6)),
            [m.SoftplusTransform(), m.PowerTransform(m.t(-2.0))],
        ),
        [0.5, 2.5],
    ),
}  # fmt: skip


class Names:
    """The distributions of a framework, and `t`, which makes tensors, in float64."""

    def __init__(self, framework: Any, requires_grad: bool = False) -> None:
        self.framework, self.made = framework, []
        self.requires_grad = requires_grad

    def __getattr__(self, name: str) -> Any:
        return getattr(self.framework.distributions, name)

    def t(self, values: Any) -> Any:
        found = self.framework.tensor(
            values, dtype=self.framework.float64, requires_grad=self.requires_grad
        )
        self.made.append(found)
        return found


def close(ours: Any, theirs: Any, rtol: float = 1e-5) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol, 1e-6)


@pytest.fixture
def wide() -> Iterator[None]:
    """PyTorch's GeneralizedPareto takes numbers of no other type than the default."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("name", CASES)
def test_numbers_are_pytorchs(name: str) -> None:
    """Everything that PyTorch computes of a distribution, and its gradients."""
    make, values = CASES[name]
    names = [Names(m, True) for m in BOTH]
    ours, theirs = (make(n) for n in names)
    assert ours.batch_shape == theirs.batch_shape and ours.event_shape == theirs.event_shape
    assert ours.has_rsample == theirs.has_rsample
    at = {n: (n.t(values), n.t([0.1, 0.8])) for n in names}
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "log_prob": lambda d, n: d.log_prob(at[n][0]),
        "cdf": lambda d, n: d.cdf(at[n][0]),
        "icdf": lambda d, n: d.icdf(at[n][1]),
        "entropy": lambda d, _: d.entropy(),
        "mean": lambda d, _: d.mean,
        "variance": lambda d, _: d.variance,
    }
    compared = []
    for call, of in calls.items():
        try:
            expected = of(theirs, names[1])
        except NotImplementedError:
            continue
        found = of(ours, names[0])
        # PyTorch's polynomial for the Bessel functions is that far off.
        close(found, expected, 1e-4 if name == "VonMises" else 1e-5)
        compared.append(call)
        if not expected.requires_grad or (
            call == "cdf" and name in ("Chi2", "Gamma", "InverseGamma")
        ):
            continue  # neither has the derivative of igamma by its first argument
        for n, y in zip(names, (found, expected), strict=True):
            for leaf in n.made:
                leaf.grad = None
            y.sum().backward(retain_graph=True)
        for a, b in zip(names[0].made, names[1].made, strict=True):
            assert (a.grad is None) == (b.grad is None), call
            if b.grad is not None:
                close(a.grad, b.grad, 1e-3 if name == "VonMises" else 1e-5)
    assert "log_prob" in compared


def test_counts_before_failures() -> None:
    ours, theirs = (n.NegativeBinomial(n.t(3.0), probs=n.t(0.4)) for n in map(Names, BOTH))
    genesis.manual_seed(0)
    shares = np.bincount(ours.sample((COUNT,)).numpy().astype(int), minlength=6)[:6] / COUNT
    expected = theirs.log_prob(torch.arange(6.0)).exp().numpy()
    np.testing.assert_allclose(shares, expected, atol=0.015)


@pytest.mark.parametrize("name", [name for name in CASES if name != "NegativeBinomial"])
def test_draws_are_spread_as_they_should_be(name: str) -> None:
    """Of 20 bins that are equally probable, by a chi-square test of the draws that fall in."""
    make, _ = CASES[name]
    ours, theirs = (make(Names(m)) for m in BOTH)
    genesis.manual_seed(3)
    drawn = ours.sample((COUNT,)).numpy()
    assert drawn.shape == (COUNT, 2)
    torch.manual_seed(3)
    reference = theirs.sample((10 * COUNT,)).numpy()
    for column in range(2):
        edges = np.quantile(reference[:, column], np.linspace(0, 1, 21)[1:-1])
        counts = np.bincount(np.searchsorted(edges, drawn[:, column]), minlength=20)
        expected = COUNT / 20
        assert ((counts - expected) ** 2 / expected).sum() < 55  # 19 degrees


@pytest.mark.parametrize("name", ["Chi2", "Beta", "MixtureSameFamily", "squashed"])
def test_distributions_expand(name: str) -> None:
    make, values = CASES[name]
    ours, theirs = (make(Names(m)).expand((3, 2)) for m in BOTH)
    assert tuple(ours.batch_shape) == tuple(theirs.batch_shape) == (3, 2)
    close(ours.log_prob(Names(genesis).t(values)), theirs.log_prob(Names(torch).t(values)), 1e-4)
    assert tuple(ours.sample((4,)).shape) == (4, 3, 2)


def test_vectors_expand() -> None:
    root = [[1.0, 0.0], [0.5, 2.0]]
    for make in (
        lambda m: m.MultivariateNormal(m.t([[1.0, 2.0]]), scale_tril=m.t(root)),
        lambda m: m.Dirichlet(m.t([[1.0, 2.0]])),
        lambda m: m.Multinomial(3, m.t([[1.0, 2.0]])),
        lambda m: m.OneHotCategorical(logits=m.t([[1.0, 2.0]])),
        lambda m: m.Independent(m.Normal(m.t([[1.0, 2.0]]), m.t(2.0)), 1),
        lambda m: m.TransformedDistribution(
            m.Normal(m.t([[1.0, 2.0]]), m.t(2.0)), m.AffineTransform(0.0, m.t([1.0, 3.0]), 1)
        ),
        lambda m: m.MixtureSameFamily(
            m.Categorical(m.t([0.5, 0.5])),
            m.Independent(m.Normal(m.t([[[1.0, 2.0], [3.0, 5.0]]]), m.t([[2.0], [0.5]])), 1),
        ),
    ):
        ours, theirs = (make(Names(m)).expand((4, 1)).expand((4, 3)) for m in BOTH)
        drawn = ours.sample((5,))
        assert tuple(drawn.shape) == (5, 4, 3, 2) == tuple(theirs.sample((5,)).shape)
        close(ours.log_prob(drawn), theirs.log_prob(torch.tensor(drawn.numpy())))
        if type(theirs).mean.fget is not torch.distributions.Distribution.mean.fget:
            close(ours.mean, theirs.mean)
            close(ours.variance, theirs.variance)


ROOT = [[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [-0.3, 0.4, 0.7]]
COVARIANCE = (np.array(ROOT) @ np.array(ROOT).T).tolist()

#: Distributions of vectors and matrices, of batch shape (2,).
JOINT: dict[str, Callable[[Any], Any]] = {
    "vectors": lambda m: m.MultivariateNormal(
        m.t([[1.0, 2.0, 0.5], [0.0, 0.0, 1.0]]), precision_matrix=m.t(COVARIANCE)
    ),
    "low rank": lambda m: m.LowRankMultivariateNormal(
        m.t([[1.0, 2.0, 0.5], [0.0, 0.0, 1.0]]), m.t([[1.0], [0.5], [-0.7]]), m.t([0.3, 1.0, 2.0])
    ),
    "Wishart": lambda m: m.Wishart(m.t([3.5, 7.0]), m.t(COVARIANCE)),
    "Wishart by a root": lambda m: m.Wishart(
        m.t([4.0, 2.5]), scale_tril=m.framework.linalg.cholesky(m.t(COVARIANCE))
    ),
    "LKJ": lambda m: m.LKJCholesky(4, m.t([0.7, 3.0])),
}


@pytest.mark.parametrize("name", JOINT)
@pytest.mark.filterwarnings("ignore")
def test_vectors_and_matrices(name: str) -> None:
    """Numbers, their gradients, and draws: as PyTorch's, each where the other's are looked at."""
    names = [Names(m, True) for m in BOTH]
    ours, theirs = (JOINT[name](n) for n in names)
    assert ours.batch_shape == theirs.batch_shape and ours.event_shape == theirs.event_shape
    assert ours.has_rsample == theirs.has_rsample
    genesis.manual_seed(4)
    torch.manual_seed(4)
    drawn = ours.sample((COUNT // 4,))
    assert tuple(drawn.shape) == (COUNT // 4, *theirs.batch_shape, *theirs.event_shape)
    seen = torch.tensor(drawn.numpy())
    numbers = ["entropy", "mean", "variance", "covariance_matrix", "precision_matrix", "scale_tril"]
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "log_prob": lambda d, x: d.log_prob(x[:50]),
        **{n: (lambda d, _, n=n: getattr(d, n)) for n in numbers},
        "entropy": lambda d, _: d.entropy(),
    }
    for of in calls.values():
        try:
            expected = of(theirs, seen)
        except (NotImplementedError, AttributeError):
            continue
        found = of(ours, drawn)
        close(found, expected)
        for n, y in zip(names, (found, expected), strict=True):
            for leaf in n.made:
                leaf.grad = None
            if y.requires_grad:
                (y * y).sum().backward(retain_graph=True)
        for a, b in zip(names[0].made, names[1].made, strict=True):
            if b.grad is not None:
                close(a.grad, b.grad)
    reference = theirs.sample((COUNT // 4,)).numpy().reshape(COUNT // 4, 2, -1)
    mine = drawn.numpy().reshape(reference.shape)
    for row in range(2):
        for k in range(mine.shape[-1]):
            a, b = np.sort(mine[:, row, k]), np.sort(reference[:, row, k])
            both = np.concatenate([a, b])
            apart = np.searchsorted(a, both, "right") - np.searchsorted(b, both, "right")
            assert np.abs(apart).max() / len(a) < 1.95 * np.sqrt(2 / len(a))  # once in 1,000


def test_counts_of_choices() -> None:
    values = [[2.0, 0.0, 3.0], [1.0, 4.0, 0.0]]
    weights = [[0.2, 0.0, 0.8], [0.3, 0.6, 0.1]]
    ours, theirs = (n.Multinomial(5, n.t(weights)) for n in map(Names, BOTH))
    close(ours.log_prob(Names(genesis).t(values)), theirs.log_prob(Names(torch).t(values)))
    for name in ("mean", "variance", "probs"):
        close(getattr(ours, name), getattr(theirs, name))
    assert ours.event_shape == (3,) and ours.batch_shape == (2,)
    full = [
        n.Multinomial(5, logits=n.t([[0.2, 0.1, 0.8], [0.3, 0.6, 0.1]])) for n in map(Names, BOTH)
    ]
    # PyTorch sums the entropies of a batch; one by one they are what they should be.
    for row in range(2):
        alone = torch.distributions.Multinomial(5, logits=full[1].logits[row])
        assert full[0].entropy()[row].item() == pytest.approx(alone.entropy().item(), 1e-5)
    genesis.manual_seed(0)
    drawn = ours.sample((COUNT,)).numpy()
    assert drawn.shape == (COUNT, 2, 3) and (drawn.sum(-1) == 5).all()
    spread = np.sqrt(theirs.variance.numpy() / COUNT)
    assert (np.abs(drawn.mean(0) - theirs.mean.numpy()) <= 4.5 * spread).all()
    with pytest.raises(ValueError, match="counts that add up to 5"):
        ours.log_prob(genesis.tensor([1.0, 1.0, 1.0])).numpy()
    with pytest.raises(NotImplementedError, match="one int"):
        genesis.distributions.Multinomial(genesis.tensor([1, 2]), genesis.ones(2, 3))


def test_draws_move_with_the_concentration() -> None:
    """As PyTorch's do, which is within 3e-4; for small concentrations on average."""
    for a in (1.0, 2.5, 7.0, 40.0, 900.0):
        leaf = genesis.full((200,), a, dtype=genesis.float64, requires_grad=True)
        drawn = genesis.distributions.Gamma(leaf, 1.0).rsample()
        drawn.sum().backward()
        expected = torch._standard_gamma_grad(
            torch.full((200,), a, dtype=torch.float64), torch.tensor(drawn.detach().numpy())
        )
        np.testing.assert_allclose(leaf.grad.numpy(), expected.numpy(), 1e-3)
    genesis.manual_seed(2)
    a = genesis.tensor(2.0, dtype=genesis.float64, requires_grad=True)
    squares = genesis.distributions.Gamma(a, 1.0).rsample((COUNT,)).square().mean()  # a * a + a
    (slope,) = genesis.autograd.grad(squares, a, create_graph=True)
    (bend,) = genesis.autograd.grad(slope, a)
    assert slope.item() == pytest.approx(5.0, rel=0.05) and bend.item() == pytest.approx(2, 0.05)
    genesis.manual_seed(1)
    a = genesis.tensor(0.3, dtype=genesis.float64, requires_grad=True)
    drawn = genesis.distributions.Gamma(a, 1.0).rsample((COUNT,))
    (slope,) = genesis.autograd.grad(drawn.mean(), a, retain_graph=True)
    assert slope.item() == pytest.approx(1.0, abs=0.05)  # the mean is the concentration
    (slope,) = genesis.autograd.grad(drawn.log().mean(), a)
    expected = torch.polygamma(1, torch.tensor(0.3)).item()
    assert slope.item() == pytest.approx(expected, rel=0.05)  # and of the logarithm digamma


@pytest.mark.parametrize("name", ["StudentT", "Weibull", "Beta", "squashed"])
def test_gradients_of_expectations(name: str) -> None:
    """By draws of Genesis and of PyTorch, for every parameter."""
    make, _ = CASES[name]
    found = []
    for m in BOTH:
        m.manual_seed(7)
        names = Names(m, True)
        make(names).rsample((5 * COUNT,)).clamp(-4, 4).sin().square().mean().backward()
        found.append([x.grad.numpy() for x in names.made])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, 0.05, 0.004)


def test_what_no_distribution_can_have() -> None:
    d = genesis.distributions
    for make, message in (
        (lambda: d.StudentT(genesis.tensor(-1.0)).df, "df is not above 0"),
        (lambda: d.Chi2(genesis.tensor([1.0, 0.0])).df, "df is not above 0"),
        (lambda: d.Weibull(1.0, genesis.tensor(0.0)).concentration, "concentration is not above"),
        (lambda: d.VonMises(0.0, genesis.tensor(-2.0)).concentration, "concentration is not above"),
        (lambda: d.Weibull(1.0, 2.0).log_prob(-1.0), "value is not above 0"),
        (lambda: d.Chi2(2.0).cdf(genesis.tensor(-1.0)), "value is not 0 or more"),
        (lambda: d.Wishart(1.0, genesis.eye(2)).df, "df is not above 1"),
        (lambda: d.LKJCholesky(2).log_prob(genesis.ones(2, 2)), "with rows of length 1"),
        (lambda: d.GeneralizedPareto(0.0, 1.0, -0.5).log_prob(3.0), "within the tail"),
        (lambda: d.Uniform(0.0, 1.0).log_prob(3.0), "between low and high"),
        (
            lambda: d.TransformedDistribution(d.Normal(0.0, 1.0), d.TanhTransform()).log_prob(2.0),
            "between -1 and 1",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make().numpy()
    assert d.Weibull(1.0, 2.0, validate_args=False).log_prob(-1.0).isnan().item()
    normal = d.Normal(genesis.zeros(3), 1.0)
    with pytest.raises(ValueError, match="n by rank"):
        d.LowRankMultivariateNormal(genesis.zeros(3), genesis.ones(2, 1), genesis.ones(3))
    with pytest.raises(ValueError, match="dim is 2 or more"):
        d.LKJCholesky(1)
    with pytest.raises(ValueError, match="a Transform or a list of them"):
        d.TransformedDistribution(normal, genesis.exp)
    with pytest.raises(ValueError, match="transforms of 2 dimensions"):
        d.TransformedDistribution(normal, d.AffineTransform(0.0, 1.0, event_dim=2))
    with pytest.raises(ValueError, match="2 choices among components"):
        d.MixtureSameFamily(d.Categorical(genesis.ones(2)), normal)
    with pytest.raises(ValueError, match="is Categorical"):
        d.MixtureSameFamily(normal, normal)


def test_a_cache_keeps_what_rounding_loses() -> None:
    for m in BOTH:
        d = m.distributions
        x = m.tensor([1.0, 20.0])
        kept, plain = d.TanhTransform(cache_size=1), d.TanhTransform()
        assert kept.inv(kept(x)).tolist() == [1.0, 20.0]
        assert plain.inv(plain(x)).tolist()[1] == float("inf")
        composed = d.ComposeTransform([d.AffineTransform(0.0, 2.0), d.ExpTransform()])
        y = composed(x)
        assert composed.log_abs_det_jacobian(x, y).tolist() == pytest.approx([2.693147, 40.693147])
        assert composed.inv(y).tolist() == pytest.approx([1.0, 20.0]) and composed.sign == 1
    with pytest.raises(ValueError, match="0 or 1"):
        genesis.distributions.ExpTransform(cache_size=2)


#: Transforms of vectors and matrices, and what they are of.
TRANSFORMS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "StickBreaking": (lambda m: m.StickBreakingTransform(), [[0.3, -1.0, 2.0], [0.0, 0.5, 0.1]]),
    "CorrCholesky": (lambda m: m.CorrCholeskyTransform(), [[0.3, -1.0, 2.0], [0.0, 0.5, 0.1]]),
    "Softmax": (lambda m: m.SoftmaxTransform(), [[0.3, -1.0, 2.0]]),
    "LowerCholesky": (lambda m: m.LowerCholeskyTransform(), [[[0.3, -1.0], [2.0, 0.5]]]),
    "PositiveDefinite": (lambda m: m.PositiveDefiniteTransform(), [[[0.3, -1.0], [2.0, 0.5]]]),
    "Independent": (lambda m: m.IndependentTransform(m.ExpTransform(), 1), [[0.3, -1.0, 2.0]]),
    "Reshape": (lambda m: m.ReshapeTransform((4,), (2, 2)), [[0.3, -1.0, 2.0, 0.1]]),
    "Cat": (
        lambda m: m.CatTransform([m.ExpTransform(), m.AffineTransform(1.0, -2.0)], -1, [2, 1]),
        [[0.3, -1.0, 2.0]],
    ),
    "Stack": (
        lambda m: m.StackTransform([m.ExpTransform(), m.SigmoidTransform(), m.TanhTransform()], -1),
        [[0.3, -1.0, 2.0]],
    ),
    "of vectors after elements": (
        lambda m: m.ComposeTransform([m.AffineTransform(0.1, 2.0), m.StickBreakingTransform()]),
        [[0.3, -1.0, 2.0]],
    ),
    "of elements after a reshape": (
        lambda m: m.ComposeTransform([m.ReshapeTransform((4,), (2, 2)), m.ExpTransform()]),
        [[0.3, -1.0, 2.0, 0.1]],
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_vectors(name: str) -> None:
    """There, back, how much volumes grow, and shapes; and what draws become by it."""
    make, values = TRANSFORMS[name]
    found = []
    for names in map(Names, BOTH):
        transform, x = make(names.transforms), names.t(values)
        y = transform(x)
        found.append([y, transform.inv(y)])
        try:
            found[-1].append(transform.log_abs_det_jacobian(x, y))
        except NotImplementedError:
            found[-1].append(x)
        shapes = transform.forward_shape(x.shape), transform.inverse_shape(y.shape)
        found[-1] += [names.t([tuple(s)]) for s in shapes]
        if name not in ("Softmax", "LowerCholesky", "PositiveDefinite", "Stack"):
            base = names.Normal(names.t(np.zeros(x.shape)), names.t(2.0))
            made = names.TransformedDistribution(base, transform)
            drawn = made.sample((3,))
            assert tuple(drawn.shape) == (3, *made.batch_shape, *made.event_shape)
            found[-1] += [made.log_prob(y), names.t(made.batch_shape), names.t(made.event_shape)]
            bigger = made.expand((4, *made.batch_shape))
            found[-1] += [bigger.log_prob(y), names.t(bigger.sample((2,)).shape)]
    for ours, theirs in zip(*found, strict=True):
        assert ours.shape == theirs.shape
        close(ours, theirs)


#: Numbers, vectors and matrices, some of which lie in each domain.
VALUES: tuple[Any, ...] = (
    [-1.0, 0.0, 0.5, 1.0, 2.0, 3.0],
    [[0.2, 0.8], [1.0, 0.0], [-0.1, 1.1]],
    [[[1.0, 0.0], [0.6, 0.8]], [[2.0, 1.0], [1.0, 3.0]], [[1.0, 2.0], [2.0, 1.0]]],
)


def test_domains_and_transforms_onto_them() -> None:
    made: dict[str, Callable[[Any], Any]] = {
        name: lambda c, name=name: getattr(c, name)  # type: ignore[misc]
        for name in genesis.distributions.constraints.__all__
        if name not in ("Constraint", "independent") and name[0].islower()
    }
    limits = {"interval": (0.0, 2.0), "half_open_interval": (0.0, 2.0), "integer_interval": (0, 2)}
    for name in [*limits, "greater_than", "greater_than_eq", "less_than"]:
        made[name] = lambda c, name=name: getattr(c, name)(*limits.get(name, (1.0,)))  # type: ignore[misc]
    made["independent"] = lambda c: c.independent(c.positive, 1)
    onto = []
    for name, make in made.items():
        ours, theirs = (make(m.distributions.constraints) for m in BOTH)
        assert (ours.event_dim, ours.is_discrete) == (theirs.event_dim, theirs.is_discrete), name
        for value in VALUES[theirs.event_dim]:
            checked = [
                c.check(Names(m).t(value)).item() for c, m in zip((ours, theirs), BOTH, strict=True)
            ]
            # Of several matrices PyTorch says less than of one.
            assert checked[0] == checked[1], (name, value)
        for registry in ("biject_to", "transform_to"):
            try:
                expected = getattr(torch.distributions, registry)(theirs)
            except NotImplementedError:
                continue
            size = {2: (3, 3)}.get(theirs.event_dim, (3,))
            x = np.random.default_rng(0).standard_normal(size)
            if name == "corr_cholesky":
                x = x[0]
            y = getattr(genesis.distributions, registry)(ours)(genesis.tensor(x))
            close(y, expected(torch.tensor(x)))
            assert ours.check(y).numpy().all(), name
            onto.append(name)
    assert len(onto) > 20


def test_relaxed_choices_are_near_choices_and_have_gradients() -> None:
    genesis.manual_seed(0)
    logits = genesis.tensor([0.3, -1.0, 2.0], requires_grad=True)
    D = genesis.distributions
    cold = D.RelaxedOneHotCategorical(0.01, logits=logits).rsample((COUNT,))
    share = (cold > 0.5).double().mean(0)
    close(share, logits.softmax(-1).double(), 0.1)
    straight = D.OneHotCategoricalStraightThrough(logits=logits).rsample((COUNT,))
    assert set(np.unique(straight.detach().numpy().round(6))) == {0.0, 1.0}
    (straight.mean(0) * genesis.tensor([1.0, 2.0, 3.0])).sum().backward()
    theirs = torch.tensor([0.3, -1.0, 2.0], requires_grad=True)
    (theirs.softmax(-1) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    close(logits.grad, theirs.grad, 1e-4)
