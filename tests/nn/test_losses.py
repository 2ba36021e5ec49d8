"""Every loss against PyTorch in float64: values, gradients and second gradients.

A case is a loss, its arguments and which of them are differentiated. All results of a group of
cases are realised together, as one program.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as reference

import genesis
from genesis import ndarray as nd
from genesis import nn as modules
from genesis.autograd import grad
from genesis.functional import ctc, loss, margin_loss
from genesis.functional.activation import log_softmax
from genesis.nn import adaptive_softmax
from genesis.tensor.tensor import Tensor

REDUCTIONS = ("mean", "sum", "none")


@dataclass
class Case:
    """A call of a loss; `by` says with respect to which arguments it is differentiated."""

    name: str
    args: Sequence[Any]
    by: Sequence[int] = (0,)
    options: dict[str, Any] = field(default_factory=dict)
    orders: int = 2


def mine(name: str) -> Callable[..., Any]:
    for module in (loss, margin_loss, ctc):
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(name)


def derivatives(case: Case, torch_side: bool) -> list[Any]:
    """The loss, its gradients, and the gradients of a function of those."""
    inputs = []
    options = {}
    for number, x in enumerate(case.args):
        wanted = number in case.by
        if not isinstance(x, np.ndarray):
            inputs.append(x)
        elif torch_side:
            inputs.append(torch.tensor(x, requires_grad=wanted))
        else:
            inputs.append(Tensor(nd.array(x), wanted))
    for key, x in case.options.items():
        if isinstance(x, np.ndarray):
            x = torch.tensor(x) if torch_side else Tensor(nd.array(x))
        options[key] = x
    function = getattr(reference, case.name) if torch_side else mine(case.name)
    differentiate = torch.autograd.grad if torch_side else grad
    result = function(*inputs, **options)
    by = [inputs[k] for k in case.by]
    scaled = (result * result).sum() if case.orders > 1 else result.sum()
    first = differentiate(scaled, by, create_graph=case.orders > 1)
    found = [result, *first]
    if case.orders > 1:
        smooth = [g for g in first if g.requires_grad]
        total = sum((g * g).sum() for g in smooth)
        found += differentiate(total, by, allow_unused=True)
    return found


def compare(cases: Sequence[Case]) -> None:
    found = [derivatives(case, torch_side=False) for case in cases]
    nd.realize(*(x.array for xs in found for x in xs if x is not None))
    for case, xs in zip(cases, found, strict=True):
        expected = derivatives(case, torch_side=True)
        for what, (x, y) in enumerate(zip(xs, expected, strict=True)):
            where = f"{case.name} {case.options} result {what}"
            wanted = np.zeros(()) if y is None else y.detach().numpy()
            got = np.zeros(()) if x is None else x.detach().numpy()
            np.testing.assert_allclose(got, wanted, 1e-9, 1e-11, err_msg=where)


def every(name: str, args: Sequence[Any], by: Sequence[int] = (0,), **options: Any) -> list[Case]:
    return [Case(name, args, by, {**options, "reduction": r}) for r in REDUCTIONS]


# ---- distances


def test_distances(rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(2, 4, 3)) * 2
    weight = rng.random((4, 3))
    cases = []
    for name in ("l1_loss", "mse_loss", "huber_loss", "smooth_l1_loss"):
        cases += every(name, (x, y), (0, 1))
    for name in ("l1_loss", "mse_loss", "huber_loss"):
        cases += every(name, (x, y), (0, 1), weight=weight)
    cases += every("huber_loss", (x, y), (0, 1), delta=0.3)
    cases += every("smooth_l1_loss", (x, y), (0, 1), beta=2.5)
    cases += every("smooth_l1_loss", (x, y), (0, 1), beta=0.0)
    compare(cases)


def test_huber_far_away_has_a_gradient() -> None:
    x = Tensor(nd.array([-math.inf, -5.0, 0.0, 5.0, math.inf]), True)
    (slope,) = grad(loss.huber_loss(x, nd.zeros(5), "sum", 2.0), x)
    assert slope.tolist() == [-2.0, -2.0, 0.0, 2.0, 2.0]


# ---- classes


@pytest.mark.parametrize("shape", [(5,), (6, 5), (2, 5, 3), (2, 5, 3, 2)])
def test_classes(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    x = rng.normal(size=shape)
    spatial = (shape[0], *shape[2:]) if len(shape) > 1 else ()
    classes = rng.integers(0, 5, spatial)
    weight = rng.random(5) + 0.1
    ignored = 2 if len(shape) > 1 else -100
    soft = np.exp(rng.normal(size=shape))
    cases = []
    for options in (
        {},
        {"weight": weight},
        {"ignore_index": ignored},
        {"label_smoothing": 0.2, "ignore_index": ignored},
        {"label_smoothing": 0.3, "ignore_index": ignored, "weight": weight},
    ):
        cases += every("cross_entropy", (x, classes), **options)
    for options in ({}, {"weight": weight}, {"weight": weight, "label_smoothing": 0.1}):
        cases += every("cross_entropy", (x, soft), (0, 1), **options)
    for options in ({}, {"weight": weight, "ignore_index": ignored}):
        cases += every("nll_loss", (x, classes), **options)
    compare(cases)


@settings(max_examples=12)
@given(st.data())
def test_cross_entropy_of_random_arguments(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 3), "rows")
    classes = data.draw(st.integers(1, 4), "classes")
    numbers = st.floats(-1e3, 1e3)
    x = np.array(data.draw(st.lists(numbers, min_size=rows * classes, max_size=rows * classes)))
    target = np.array(
        data.draw(st.lists(st.integers(-1, classes - 1), min_size=rows, max_size=rows))
    )
    reduction = data.draw(st.sampled_from(REDUCTIONS))
    options = {"ignore_index": -1, "reduction": reduction}
    compare([Case("cross_entropy", (x.reshape(rows, classes), target), (0,), options, orders=1)])


def test_nothing_but_ignored_classes() -> None:
    """The mean over nothing is NaN, the sum is 0, as in PyTorch."""
    x = Tensor(nd.zeros((2, 3)), True)
    target = Tensor(nd.array([-100, -100]))
    assert math.isnan(loss.cross_entropy(x, target).item())
    assert loss.cross_entropy(x, target, reduction="sum").item() == 0.0


def test_large_scores_stay_finite() -> None:
    x = Tensor(nd.array([[1e4, -1e4], [-math.inf, 3.0]]), True)
    losses = loss.cross_entropy(x, Tensor(nd.array([1, 1])), reduction="none")
    (slope,) = grad(losses.sum(), x)
    assert losses.tolist() == [2e4, 0.0]
    assert slope.tolist() == [[1.0, -1.0], [0.0, 0.0]]


@pytest.mark.parametrize("target", [[0, 3], [-1, 0]])
def test_a_class_that_does_not_exist(target: list[int]) -> None:
    for name in ("cross_entropy", "nll_loss", "multi_margin_loss"):
        with pytest.raises(IndexError, match=name):
            mine(name)(Tensor(nd.zeros((2, 3))), Tensor(nd.array(target))).item()


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_integer_dtypes_of_classes(dtype: str) -> None:
    x = np.arange(6.0).reshape(2, 3)
    target = nd.array([1, 2], getattr(genesis, dtype))
    found = loss.cross_entropy(Tensor(nd.array(x)), Tensor(target)).item()
    expected = reference.cross_entropy(torch.tensor(x), torch.tensor([1, 2])).item()
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_low_precision(rng: np.random.Generator, dtype: str) -> None:
    """Results are those of float64 on the rounded scores, rounded once."""
    x = Tensor(nd.array(rng.normal(size=(8, 10)) * 5).astype(getattr(genesis, dtype)), True)
    target = rng.integers(0, 10, 8)
    losses = loss.cross_entropy(x, Tensor(nd.array(target)), reduction="none")
    (slope,) = grad(losses.sum(), x)
    exact = torch.tensor(x.detach().numpy().astype(np.float64), requires_grad=True)
    expected = reference.cross_entropy(exact, torch.tensor(target), reduction="none")
    expected.sum().backward()
    assert losses.dtype is slope.dtype is x.dtype
    assert exact.grad is not None
    unit = float({"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-22}[dtype])
    for got, wanted in ((losses, expected), (slope, exact.grad)):
        got = got.detach().numpy().astype(np.float64)
        np.testing.assert_allclose(got, wanted.detach().numpy(), 2 * unit, unit / 8)


def test_cross_entropy_is_few_kernels() -> None:
    """Forward and backward of a batch read the scores once each and store no one-hot matrix."""
    x, target = nd.zeros((64, 100)), nd.zeros(64, dtype=genesis.int64)

    def both(x: nd.NDArray, target: nd.NDArray) -> tuple[nd.NDArray, nd.NDArray]:
        scores = Tensor(x, True)
        value = loss.cross_entropy(scores, Tensor(target))
        (slope,) = grad(value, scores)
        return value.array, slope.array

    report = genesis.explain(both, x, target)
    assert len(report.kernels) <= 6, [k.operations for k in report.kernels]
    assert report.proven


# ---- probabilities


@pytest.mark.filterwarnings("ignore:reduction")  # PyTorch on the mean of `kl_div`
def test_probabilities(rng: np.random.Generator) -> None:
    p, target = rng.random((2, 4, 3))
    x = rng.normal(size=(4, 3)) * 3
    weight, pos_weight = rng.random((4, 3)), rng.random(3) + 0.5
    cases = every("binary_cross_entropy", (p, target), (0,))
    cases += every("binary_cross_entropy", (p, target), (0,), weight=weight)
    for options in ({}, {"weight": weight}, {"pos_weight": pos_weight}):
        cases += every("binary_cross_entropy_with_logits", (x, target), (0, 1), **options)
    cases += every("kl_div", (x, target), (0, 1))
    cases += every("kl_div", (x, x - 1), (0, 1), log_target=True)
    cases.append(Case("kl_div", (x, target), (0, 1), {"reduction": "batchmean"}))
    counts = rng.integers(0, 6, (4, 3)).astype(float)
    cases += every("poisson_nll_loss", (x, counts), full=True)
    cases += every("poisson_nll_loss", (p, counts), log_input=False, eps=1e-3)
    var = rng.random((4, 3))
    cases += every("gaussian_nll_loss", (x, target, var), (0, 1, 2), full=True)
    cases += every("gaussian_nll_loss", (x, target, var[:, 0]), (0, 2), eps=0.4)
    cases += every("gaussian_nll_loss", (x, target, 0.5), (0, 1))
    compare(cases)


def test_binary_cross_entropy_at_the_ends() -> None:
    """Probabilities of exactly 0 and 1 give PyTorch's bounded losses and gradients."""
    p, target = np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 1.0, 0.0, 1.0])
    ours, theirs = Tensor(nd.array(p), True), torch.tensor(p, requires_grad=True)
    losses = loss.binary_cross_entropy(ours, Tensor(nd.array(target)), reduction="none")
    (slope,) = grad(losses.sum(), ours)
    reference.binary_cross_entropy(theirs, torch.tensor(target), reduction="sum").backward()
    assert losses.tolist() == [0.0, 100.0, 100.0, 0.0]
    assert theirs.grad is not None
    np.testing.assert_allclose(slope.numpy(), theirs.grad.numpy(), 1e-8)  # its 1e-12 is a float32


def test_large_logits() -> None:
    x, target = np.array([-1e4, 1e4, -50.0, 30.0]), np.array([1.0, 0.0, 0.3, 0.2])
    compare([Case("binary_cross_entropy_with_logits", (x, target), (0,))])
    compare([Case("soft_margin_loss", (x / 1e3, target * 2 - 1), (0,))])


# ---- margins


def test_margins(rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(2, 6, 4))
    signs = rng.choice([-1.0, 1.0], (6, 4))
    side = signs[:, 0]
    classes = rng.integers(0, 4, 6)
    weight = rng.random(4)
    cases = every("soft_margin_loss", (x, signs))
    cases += every("hinge_embedding_loss", (x, signs), margin=0.7)
    cases += every("margin_ranking_loss", (x, y, signs), (0, 1), margin=0.2)
    cases += every("multilabel_soft_margin_loss", (x, signs * 0.5 + 0.5), weight=weight)
    cases += every("cosine_embedding_loss", (x, y, side), (0, 1), margin=0.1)
    compare(cases)
    labels = np.array([[1, 3, -1, 0], [2, -1, 2, 2], [0, 1, 2, 3], [-1, 0, 0, 0], [3, 0, 1, -1]])
    both = every("multilabel_margin_loss", (x[:5], labels))
    both += every("multilabel_margin_loss", (x[0], labels[0]))
    both += every("multi_margin_loss", (x, classes))
    both += every("multi_margin_loss", (x, classes), p=2, margin=1.5, weight=weight)
    both += every("multi_margin_loss", (x[0], np.array(2)))
    for case in both:  # PyTorch has no second derivatives of these
        case.orders = 1
    compare(both)


def test_triplets(rng: np.random.Generator) -> None:
    a, b, c = rng.normal(size=(3, 5, 4))
    cases = every("triplet_margin_loss", (a, b, c), (0, 1, 2))
    cases += every("triplet_margin_loss", (a, b, c), (0, 1, 2), swap=True, p=3.0, margin=0.5)
    cases += every("triplet_margin_with_distance_loss", (a, b, c), (0, 1, 2), swap=True)
    compare(cases)


# ---- segmentation and imbalance


def test_focal_loss(rng: np.random.Generator) -> None:
    x = rng.normal(size=(4, 3)) * 2
    target = rng.integers(0, 2, (4, 3)).astype(float)
    ours = Tensor(nd.array(x), True)
    value = loss.focal_loss(ours, Tensor(nd.array(target)), alpha=0.3, gamma=1.5)
    (slope,) = grad(value, ours)
    theirs = torch.tensor(x, requires_grad=True)
    p = torch.where(torch.tensor(target) == 1, theirs.sigmoid(), 1 - theirs.sigmoid())
    share = torch.tensor(np.where(target == 1, 0.3, 0.7))
    expected = (-share * (1 - p) ** 1.5 * p.log()).mean()
    expected.backward()
    assert theirs.grad is not None
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(slope.numpy(), theirs.grad.numpy(), 1e-10, 1e-14)


def test_dice_loss() -> None:
    mask = nd.array([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]])
    assert loss.dice_loss(mask, mask).item() == 0.0
    nothing = loss.dice_loss(nd.zeros((2, 2, 2)), mask, smooth=1.0, reduction="none")
    np.testing.assert_allclose(nothing.numpy(), [1 - 1 / 4, 1 - 1 / 2])


# ---- CTC


def ctc_case(rng: np.random.Generator, inputs: list[int], labels: list[int]) -> tuple[Any, Any]:
    scores = rng.normal(size=(max(inputs), len(inputs), 4))
    targets = rng.integers(1, 4, (len(labels), max(labels)))
    return scores, targets


@pytest.mark.parametrize("form", ["padded", "in a row", "tensors", "one"])
def test_ctc(rng: np.random.Generator, form: str) -> None:
    """Repeated labels, no labels at all, what cannot be aligned, and inputs of unequal length."""
    inputs, labels = [9, 7, 9, 3, 6], [4, 3, 0, 3, 1]
    scores, targets = ctc_case(rng, inputs, labels)
    targets[0] = [2, 2, 1, 1]
    targets[3] = [1, 1, 1, 1]  # needs five steps and has three
    given: Any = targets
    lengths: tuple[Any, Any] = inputs, labels
    if form != "padded":
        given = np.concatenate([row[:n] for row, n in zip(targets, labels, strict=True)])
    if form == "one":
        scores, given, lengths = scores[:, 0], targets[0], (9, 4)
    results = []
    for reduction in REDUCTIONS:
        ours = Tensor(nd.array(scores), True)
        pair = [Tensor(nd.array(x)) if form == "tensors" else x for x in lengths]
        value = ctc.ctc_loss(
            log_softmax(ours, -1),
            Tensor(nd.array(given)),
            *pair,
            reduction=reduction,
            zero_infinity=True,
        )
        results.append((value, *grad(value.sum(), ours)))
    nd.realize(*(x.array for pair in results for x in pair))
    for reduction, (value, slope) in zip(REDUCTIONS, results, strict=True):
        theirs = torch.tensor(scores, requires_grad=True)
        expected = reference.ctc_loss(
            theirs.log_softmax(-1),
            torch.tensor(given),
            *(torch.tensor(x) for x in lengths),
            reduction=reduction,
            zero_infinity=True,
        )
        expected.sum().backward()
        assert theirs.grad is not None
        np.testing.assert_allclose(value.detach().numpy(), expected.detach().numpy(), 1e-10)
        np.testing.assert_allclose(slope.numpy(), theirs.grad.numpy(), 1e-9, 1e-12)


def test_ctc_is_the_sum_over_all_paths(rng: np.random.Generator) -> None:
    """Every path of a small case written out; the gradient is that of the formula."""
    logs = torch.tensor(rng.normal(size=(4, 3)), requires_grad=True)
    label = [2, 1]

    def collapsed(path: tuple[int, ...]) -> list[int]:
        return [k for k, _ in itertools.groupby(path) if k != 0]

    paths = [p for p in itertools.product(range(3), repeat=4) if collapsed(p) == label]
    sums = [sum(logs[t, k] for t, k in enumerate(path)) for path in paths]
    expected = -torch.logsumexp(torch.stack(sums), 0)  # type: ignore[arg-type]
    expected.backward()
    assert logs.grad is not None
    ours = Tensor(nd.array(logs.detach().numpy()), True)
    value = ctc.ctc_loss(ours, Tensor(nd.array(label)), [4], [2], reduction="sum")
    (slope,) = grad(value, ours)
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(slope.numpy(), logs.grad.numpy(), 1e-10, 1e-14)


def test_ctc_that_cannot_be_aligned_is_infinite() -> None:
    logs = Tensor(nd.zeros((2, 1, 3)) - math.log(3), True)
    value = ctc.ctc_loss(logs, Tensor(nd.array([[1, 1]])), [2], [2])
    assert value.item() == math.inf


# ---- modules


def test_modules_do_what_the_functions_do(rng: np.random.Generator) -> None:
    """Each module with arguments other than the defaults against PyTorch's module."""
    x, y = rng.normal(size=(2, 6, 4))
    p = rng.random((6, 4))
    signs = rng.choice([-1.0, 1.0], (6, 4))
    classes = rng.integers(0, 4, 6)
    labels = rng.integers(-1, 4, (6, 4))
    weight = rng.random(4)
    table: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
        ("L1Loss", {"reduction": "sum"}, (x, y)),
        ("MSELoss", {"reduction": "none"}, (x, y)),
        ("HuberLoss", {"delta": 0.5}, (x, y)),
        ("SmoothL1Loss", {"beta": 0.5}, (x, y)),
        ("CrossEntropyLoss", {"weight": weight, "label_smoothing": 0.1}, (x, classes)),
        ("CrossEntropyLoss", {"ignore_index": 1}, (x, classes)),
        ("NLLLoss", {"weight": weight, "ignore_index": 2}, (x, classes)),
        ("BCELoss", {"weight": weight}, (p, p)),
        ("BCEWithLogitsLoss", {"pos_weight": weight, "weight": weight}, (x, p)),
        ("KLDivLoss", {"reduction": "batchmean", "log_target": True}, (x, y)),
        ("PoissonNLLLoss", {"log_input": False, "full": True, "eps": 0.1}, (p, p * 4)),
        ("GaussianNLLLoss", {"full": True, "eps": 0.2}, (x, y, p)),
        ("SoftMarginLoss", {"reduction": "sum"}, (x, signs)),
        ("HingeEmbeddingLoss", {"margin": 0.4}, (x, signs)),
        ("MarginRankingLoss", {"margin": 0.3}, (x, y, signs)),
        ("MultiMarginLoss", {"p": 2, "margin": 0.8, "weight": weight}, (x, classes)),
        ("MultiLabelMarginLoss", {}, (x, labels)),
        ("MultiLabelSoftMarginLoss", {"weight": weight}, (x, p)),
        ("CosineEmbeddingLoss", {"margin": 0.2}, (x, y, signs[:, 0])),
        ("TripletMarginLoss", {"p": 1.0, "swap": True, "margin": 0.5}, (x, y, p)),
        ("TripletMarginWithDistanceLoss", {"margin": 0.5}, (x, y, p)),
        ("CTCLoss", {"blank": 3, "zero_infinity": True}, (x[:, None], classes[None, :2] % 3)),
    ]
    results = []
    for name, options, args in table:
        extra = ([6], [2]) if name == "CTCLoss" else ()
        given = {
            k: Tensor(nd.array(v)) if isinstance(v, np.ndarray) else v for k, v in options.items()
        }
        module = getattr(modules, name)(**given)
        results.append(module(*(Tensor(nd.array(a)) for a in args), *extra))
    nd.realize(*(r.array for r in results))
    for (name, options, args), found in zip(table, results, strict=True):
        extra = ([6], [2]) if name == "CTCLoss" else ()
        given = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        expected = getattr(torch.nn, name)(**given)(*(torch.tensor(a) for a in args), *extra)
        np.testing.assert_allclose(found.numpy(), expected.numpy(), 1e-9, err_msg=name)


def test_every_loss_module_of_pytorch_is_there() -> None:
    theirs = {name for name in torch.nn.modules.loss.__all__ if not name.endswith("2d")}
    assert theirs <= {*modules.__all__}


def test_weights_of_modules_are_buffers() -> None:
    """They move with the module and are part of what is saved."""
    module = modules.CrossEntropyLoss(weight=Tensor(nd.ones(3)))
    assert list(module.state_dict()) == ["weight"]
    assert list(modules.CrossEntropyLoss().state_dict()) == []


def test_adaptive_log_softmax(rng: np.random.Generator) -> None:
    """Outputs, loss, log-probabilities, predictions and gradients with PyTorch's weights."""
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 10], div_value=2.0, head_bias=True)
    theirs = theirs.double()
    ours = adaptive_softmax.AdaptiveLogSoftmaxWithLoss(
        8, 20, [4, 10], div_value=2.0, head_bias=True
    )
    ours.double().load_state_dict({k: nd.array(v.numpy()) for k, v in theirs.state_dict().items()})
    x, target = rng.normal(size=(9, 8)), rng.integers(0, 20, 9)
    output, value = ours(Tensor(nd.array(x)), Tensor(nd.array(target)))
    value.backward()
    logs, best = ours.log_prob(Tensor(nd.array(x))), ours.predict(Tensor(nd.array(x)))
    slopes = [p.grad for p in ours.parameters()]
    nd.realize(output.array, value.array, logs.array, best.array, *(g.array for g in slopes))
    expected = theirs(torch.tensor(x), torch.tensor(target))
    expected.loss.backward()
    np.testing.assert_allclose(output.detach().numpy(), expected.output.detach().numpy(), 1e-10)
    assert value.item() == pytest.approx(expected.loss.item(), rel=1e-10)
    for name, got in zip(dict(ours.named_parameters()), slopes, strict=True):
        wanted = theirs.get_parameter(name).grad
        assert wanted is not None
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), 1e-9, 1e-12, err_msg=name)
    np.testing.assert_allclose(
        logs.detach().numpy(), theirs.log_prob(torch.tensor(x)).detach().numpy(), 1e-9
    )
    assert best.tolist() == theirs.predict(torch.tensor(x)).tolist()


@pytest.mark.parametrize("choices", [(), (2, 3)])
def test_linear_cross_entropy(rng: np.random.Generator, choices: tuple[int, ...]) -> None:
    weight = rng.random(4)
    settings: dict[str, Any] = {"out_features": choices, "bias": True, "label_smoothing": 0.1}
    theirs = torch.nn.LinearCrossEntropyLoss(5, 4, **settings, weight=torch.tensor(weight))
    ours = adaptive_softmax.LinearCrossEntropyLoss(
        5, 4, **settings, weight=Tensor(nd.array(weight))
    )
    theirs.double()
    ours.double().load_state_dict({k: nd.array(v.numpy()) for k, v in theirs.state_dict().items()})
    x, target = rng.normal(size=(6, 5)), rng.integers(0, 4, (6, *choices))
    found = ours(Tensor(nd.array(x)), Tensor(nd.array(target)))
    expected = theirs(torch.tensor(x), torch.tensor(target))
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)


# ---- of what a program gave


def outside(model: Any, x: np.ndarray, y: Any, **options: Any) -> tuple[Tensor, Any]:
    """The cross entropy of a model's scores, and the gradient of its weight."""
    model.weight.grad = None
    found = loss.cross_entropy(model(genesis.tensor(x)), genesis.tensor(y), **options)
    found.backward()
    return found, model.weight.grad.numpy()


def test_after_a_jitted_model_a_loss_is_one_program(rng: np.random.Generator) -> None:
    plain = genesis.nn.Linear(5, 3)
    model = genesis.jit(plain)
    model.weight = plain.weight
    x, y = rng.normal(size=(4, 5)).astype(np.float32), rng.integers(0, 3, 4)
    expected, slope = outside(plain, x, y)
    for _ in range(3):
        before = nd.statistics()
        found, same = outside(model, x, y)
        now = nd.statistics()
    assert now.runs == before.runs  # nothing is left to be realised
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    np.testing.assert_allclose(same, slope, 1e-6, 1e-7)
    # What stays pending is not cut apart.
    scores = plain(genesis.tensor(x))
    pending = loss.cross_entropy(scores, genesis.tensor(y))
    assert not pending.array.value.is_realised
    assert not scores.array.value.is_realised


def test_a_loss_that_is_another_every_time_is_not_recorded(
    rng: np.random.Generator, recwarn: pytest.WarningsRecorder
) -> None:
    plain = genesis.nn.Linear(5, 3)
    model = genesis.jit(plain)
    model.weight = plain.weight
    x, y = rng.normal(size=(4, 5)).astype(np.float32), rng.integers(0, 3, 4)
    for k in range(12):
        found, slope = outside(model, x, y, label_smoothing=k / 20)
        expected, same = outside(plain, x, y, label_smoothing=k / 20)
        assert found.item() == pytest.approx(expected.item(), rel=1e-6)
        np.testing.assert_allclose(slope, same, 1e-6, 1e-7)
    seen: list[Tensor] = []
    for _ in range(12):
        scores = model(genesis.tensor(x))
        scores.register_hook(seen.append)
        loss.cross_entropy(scores, genesis.tensor(y)).backward()
    assert [tuple(g.shape) for g in seen] == [(4, 3)] * 12
    assert not recwarn


def test_a_class_that_is_not_there_after_a_jitted_model() -> None:
    scores = genesis.jit(genesis.nn.Linear(5, 3))(genesis.ones(2, 5))
    for target in ([0, 3], [0, -1]):
        with pytest.raises(IndexError, match="cross_entropy"):
            loss.cross_entropy(scores, genesis.tensor(target)).item()


# ---- what is refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, b, n: loss.mse_loss(a, a, "average"), "reduction is 'mean', 'sum' or 'none'"),
        (lambda a, b, n: loss.cross_entropy(a, n[:2]), r"the target has shape \(2,\)"),
        (lambda a, b, n: loss.cross_entropy(a, b), r"the target of shape \(4,\) is float32"),
        (lambda a, b, n: loss.cross_entropy(a, n == 0), "classes are integers"),
        (lambda a, b, n: loss.cross_entropy(a, n, b[:2]), "each of 4 classes"),
        (lambda a, b, n: loss.cross_entropy(a, n, label_smoothing=2), r"in \[0, 1\]"),
        (lambda a, b, n: loss.binary_cross_entropy(a, b), "the target"),
        (lambda a, b, n: loss.huber_loss(a, a, delta=0), "delta must be positive"),
        (lambda a, b, n: loss.smooth_l1_loss(a, a, beta=-1), "beta must not be negative"),
        (lambda a, b, n: loss.mse_loss(a, a, weight=b), "weight"),
        (lambda a, b, n: loss.gaussian_nll_loss(a, a, -1.0), "is negative"),
        (lambda a, b, n: loss.gaussian_nll_loss(a, a, n[:2]), "do not broadcast"),
        (lambda a, b, n: margin_loss.multi_margin_loss(a, n, p=3), "p is 1 or 2"),
        (lambda a, b, n: margin_loss.triplet_margin_loss(a, a, a, 0.0), "margin must be positive"),
        (lambda a, b, n: ctc.ctc_loss(a, n, [3], [3], blank=9), "blank 9"),
        (lambda a, b, n: ctc.ctc_loss(a, n, [3, 3], [3]), "input_lengths"),
        (lambda a, b, n: ctc.ctc_loss(a, n, [4], [3]), "input_lengths"),
    ],
)
def test_refused(call: Callable[..., Any], message: str) -> None:
    a, b, n = Tensor(nd.zeros((3, 4))), Tensor(nd.zeros(4)), Tensor(nd.array([0, 1, 2]))
    with pytest.raises((ValueError, TypeError), match=message):
        call(a, b, n)
