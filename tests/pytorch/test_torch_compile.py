"""`torch.compile(model, backend="genesis")` against PyTorch eager."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional as F  # noqa: N812 - as it is known

import genesis.torch
from genesis.compiler.options import using
from genesis.torch.compile.backend import ROOMS, GraphKind
from genesis.torch.compile.backend import genesis as backend
from genesis.torch.compile.executable import BoxedGraph
from genesis.torch.compile.joint_graph import merge_equal

#: What PyTorch does not offer before: a cache for graphs of other compilers, checks that stay.
of_2_13 = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="needs PyTorch 2.13"
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing compiled before, and no operator left to PyTorch unnoticed."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", genesis.torch.FallbackWarning)
        yield


def compiled(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(f, backend="genesis", **options)


def made_by(f: Callable[..., Any], *args: Any, **options: Any) -> list[BoxedGraph]:
    """The executables that calls with several sets of arguments make."""
    made: list[BoxedGraph] = []

    def collect(module: Any, kind: GraphKind) -> BoxedGraph:
        made.append(BoxedGraph(module, "cpu"))
        return made[-1]

    def collecting(module: Any, inputs: Any) -> Any:
        return backend(module, inputs, compiler=collect)

    run = torch.compile(f, backend=collecting, **options)
    for each in args:
        run(*each)
    return made


def test_a_network_trains_as_eager_does() -> None:
    def trained(run: Callable[[nn.Module], Any]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        forward = run(model)
        for _ in range(5):
            loss = F.cross_entropy(forward(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    for ours, theirs in zip(trained(compiled), trained(lambda m: m), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_results_are_tensors_like_any_others(dtype: torch.dtype) -> None:
    """Their memory is Genesis's: it is kept while they live, and used again afterwards."""
    run = compiled(lambda x, w: (x @ w).transpose(0, 1) + 1)
    w = torch.randn(64, 700, requires_grad=True)
    xs = [torch.randn(300, 64) for _ in range(3)]
    with torch.autocast("cpu", enabled=False):
        found = [run(x.to(dtype), w.to(dtype)) for x in xs]
    places = {y.data_ptr() for y in found}
    assert len(places) == 3
    for x, y in zip(xs, found, strict=True):
        want = (x.to(dtype) @ w.to(dtype)).transpose(0, 1) + 1
        assert (y.dtype, y.stride(), y._is_view()) == (dtype, want.stride(), False)
        torch.testing.assert_close(y, want, rtol=2e-2, atol=2e-2)
    y = found.pop()
    y += 1
    y.float().sum().backward()
    torch.testing.assert_close(w.grad, xs[2].sum(0)[:, None].expand(-1, 700), rtol=3e-2, atol=0.3)
    found.clear()
    del y
    assert run(xs[0].to(dtype), w.to(dtype)).data_ptr() in places


def test_one_program_serves_every_length() -> None:
    layer = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
    lengths = [(torch.randn(n, 4),) for n in (3, 5, 17, 64)]
    with torch.no_grad():
        made = made_by(layer, *lengths)
        assert len(made) == 2  # the first length, and all others
        run = compiled(layer)
        for (x,) in lengths:
            torch.testing.assert_close(run(x), layer(x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: F.gelu(F.glu(x)),
        lambda x: F.huber_loss(x, x.detach() * 3),
        lambda x: F.multi_margin_loss(x, x.detach().argmin(1)),
        lambda x: F.grid_sample(
            x[None, None], x.detach()[None, :, :2, None].expand(1, -1, -1, 2), align_corners=False
        ),
        lambda x: F.layer_norm(x, x.shape[1:]),
        lambda x: torch.cdist(x, x.flip(0)),
    ],
    ids=["activation", "rule", "composition", "samples", "norm", "distance"],
)
def test_gradients_that_come_from_rules_take_any_size(f: Any) -> None:
    run = compiled(f, dynamic=True)
    for n in (4, 6):
        ours = torch.linspace(-1, 1, n * 8).reshape(n, 8).requires_grad_()
        theirs = ours.detach().clone().requires_grad_()
        run(ours).exp().sum().backward()
        f(theirs).exp().sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_sizes_that_are_computed() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return x.reshape(n // 2, 2, -1).sum(1) * n + torch.arange(n // 2).unsqueeze(1)

    run = compiled(f, dynamic=True)
    for n in (4, 6, 10):
        x = torch.randn(n, 3)
        torch.testing.assert_close(run(x), f(x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.t(),
        lambda x: (x + 1).t(),
        lambda x: (x + 1).expand(2, 3, 4),
        lambda x: x.sum(0).expand(5, 4),
        lambda x: (x * 2).unsqueeze(0).permute(2, 0, 1),
        lambda x: (x + 1)[:, ::2],
        lambda x: x[1],
        lambda x: (x, x + 1, x),
        lambda x: (x * 2).contiguous(memory_format=torch.contiguous_format),
        lambda x: x.new_empty(0, 3) + 1,
        lambda x: (x.shape[0], x.sum(), None),
    ],
)
def test_results_have_the_strides_of_eager(f: Callable[[torch.Tensor], Any]) -> None:
    x = torch.randn(3, 4)
    for ours, theirs in zip(_leaves(compiled(f)(x)), _leaves(f(x)), strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs
            continue
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()


def _leaves(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x]


def test_a_result_may_repeat_elements_and_leave_gaps() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2)[:, ::2].unsqueeze(1).expand(-1, 4, -1)

    x = torch.randn(3, 6)
    got, want = compiled(f)(x), f(x)
    assert got.stride() == want.stride() == (6, 0, 2)
    assert torch.equal(got, want)


def test_channels_last_stays_channels_last() -> None:
    conv = nn.Conv2d(3, 5, 3, padding=1).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    ours, theirs = compiled(conv)(x), conv(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert ours.stride() == theirs.stride()


def test_a_view_shares_memory_and_a_clone_does_not() -> None:
    x = torch.zeros(3, 4)
    view, clone = compiled(lambda x: (x.t(), x.clone()))(x)
    x += 1
    assert view.sum() == 12
    assert clone.sum() == 0


def test_inputs_are_written_in_place() -> None:
    def f(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[:, 1] = x
        cache.mul_(2)
        return cache.sum()

    ours, theirs, x = torch.ones(3, 4), torch.ones(3, 4), torch.randn(3)
    before = ours.data_ptr()
    with torch.no_grad():
        got, want = compiled(f)(ours, x), f(theirs, x)
    torch.testing.assert_close((got, ours), (want, theirs))
    assert ours.data_ptr() == before


def test_a_window_of_istft_is_one_for_all_rows() -> None:
    window = torch.hann_window(16)

    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
        return torch.istft(spectrum, 16, 4, window=window, length=64)

    x = torch.randn(2, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", genesis.torch.FallbackWarning)
        compiled = torch.compile(there_and_back, backend="genesis")
        torch.testing.assert_close(compiled(x), there_and_back(x), rtol=1e-4, atol=1e-5)


def test_a_written_view_keeps_what_is_around_it() -> None:
    ours, theirs = torch.zeros(4, 4), torch.zeros(4, 4)
    with torch.no_grad():
        compiled(lambda x: x.add_(1))(ours[1:3, ::2])
        theirs[1:3, ::2].add_(1)
    torch.testing.assert_close(ours, theirs)


def test_strides_are_over_the_whole_memory() -> None:
    def shown(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((4, 4), (3, 1), 20) + x.as_strided((4, 4), (3, 1), 1)

    window = torch.randn(100).as_strided((3, 3), (10, 2), 7)  # elements around it are seen
    torch.testing.assert_close(compiled(shown)(window), shown(window))

    def computed(x: torch.Tensor) -> Any:
        y = (x + 1)[1:, ::2]
        return y.as_strided((3, 3), (1, 2), 1), y.as_strided((3, 3), (1, 2))

    x = torch.randn(6, 6)
    torch.testing.assert_close(compiled(computed)(x), computed(x))


def test_conjugates_and_negatives_are_marks_on_tensors() -> None:
    def f(z: torch.Tensor) -> Any:
        return z * 2, z.imag + 1, z.conj() * 1j, z.real, z.conj()

    z = torch.randn(4, dtype=torch.complex64)
    for given in (z, z.conj()):
        torch.testing.assert_close(compiled(f)(given), f(given))
    negative = z.conj().imag
    assert negative.is_neg()
    torch.testing.assert_close(compiled(lambda x: x * 2)(negative), negative * 2)
    ours, theirs = z.clone(), z.clone()
    compiled(lambda z: z.mul_(2j))(ours.conj())
    theirs.conj().mul_(2j)
    torch.testing.assert_close(ours, theirs)


def test_gradients_may_be_marked() -> None:
    def gradient(square: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = torch.arange(4.0, requires_grad=True)
        z = torch.complex(square(x), square(x * 2)).conj() * (1 + 2j)
        torch.autograd.backward(z, torch.full((4,), 3 - 1j))
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(gradient(compiled(lambda x: x * x)), gradient(lambda x: x * x))


def test_a_view_may_change_the_type() -> None:
    x = torch.randn(4, requires_grad=True)
    y = compiled(lambda x: x.cfloat())(x)
    (gradient,) = torch.autograd.grad(y, x, torch.full((4,), 3 - 1j))
    torch.testing.assert_close(gradient, torch.full((4,), 3.0))


@of_2_13
def test_errors_of_factorisations_are_raised() -> None:
    run = compiled(torch.linalg.cholesky)
    torch.testing.assert_close(run(4 * torch.eye(3)), 2 * torch.eye(3))
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        run(-torch.eye(3))


def test_running_statistics() -> None:
    a, b = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    run = compiled(a)
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5)
        torch.testing.assert_close(run(x), b(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(a.state_dict(), b.state_dict())


def test_an_optimizer_is_compiled() -> None:
    def steps(run: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(2)
        parameters = [torch.randn(3, 4, requires_grad=True) for _ in range(3)]
        optimizer = torch.optim.Adam(parameters, 0.1)
        update = run(optimizer.step)
        for _ in range(4):
            for p in parameters:
                p.grad = p.detach() * 0.5
            update()
        return [p.detach() for p in parameters]

    for ours, theirs in zip(steps(compiled), steps(lambda f: f), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_dropout_draws_anew_and_follows_the_seed() -> None:
    x = torch.ones(64, 64, requires_grad=True)
    run = compiled(lambda x: F.dropout(x, 0.25))

    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return run(x)

    first = drawn(0)
    assert 0.2 < (first == 0).float().mean() < 0.3
    torch.testing.assert_close(first[first != 0], torch.full_like(first[first != 0], 4 / 3))
    assert torch.equal(first, drawn(0))
    assert not torch.equal(first, run(x))
    assert not torch.equal(first, drawn(1))
    y = drawn(3)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, (y != 0) * (4 / 3))  # the mask of forward


@torch.library.custom_op("genesis_tests::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@half.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_operators_without_a_kernel_are_left_to_pytorch_with_a_warning() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return half(x.t() + 1).t() * y.exp()

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        got = compiled(f)(x, y)
    torch.testing.assert_close(got, f(x, y))
    assert any("genesis_tests.half" in str(w.message) for w in seen)


def _overwritten_after_half(x: torch.Tensor) -> torch.Tensor:
    y = half(x) + x
    x.add_(1)
    return y


def _overwritten_after_a_view(x: torch.Tensor) -> torch.Tensor:
    y = half(x * 2) + x.t()
    x.add_(1)
    return y


def _overwritten_by_its_transpose(x: torch.Tensor) -> torch.Tensor:
    x.copy_(x.as_strided((16, 16), (1, 16)) + x * 2)
    return x.sum()


@pytest.mark.parametrize(
    "f",
    [_overwritten_after_half, _overwritten_after_a_view, _overwritten_by_its_transpose],
)
def test_an_input_is_overwritten_when_all_have_read_it(f: Callable[..., Any]) -> None:
    ours = torch.randn(16, 16)
    theirs = ours.clone()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(compiled(f)(ours), f(theirs))
    torch.testing.assert_close(ours, theirs)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
def test_sizes_that_only_the_data_decides() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x).float() * 2 + x.sum()

    run = compiled(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (3, 5):
            x = (torch.arange(8) < n).float()
            torch.testing.assert_close(run(x), f(x))


def test_a_graph_break_is_harmless() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    x = torch.randn(3)
    torch.testing.assert_close(compiled(f)(x), f(x))


def test_constants_and_types() -> None:
    table = torch.tensor([3, 1, 2])

    def f(x: torch.Tensor) -> Any:
        z = x.to(torch.bfloat16) * 3
        return (
            z,
            x[table.to(x.device)],
            torch.tensor([1.5, 2.5]),
            (x > 0),
            x.to(torch.complex64) * 1j,
        )

    x = torch.randn(4)
    for ours, theirs in zip(compiled(f)(x), f(x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_an_index_out_of_range_is_an_error() -> None:
    run = compiled(lambda x, i: x[i])
    x = torch.arange(4.0)
    assert run(x, torch.tensor([-1, 3])).tolist() == [3, 3]
    with pytest.raises(IndexError, match="index 4 is out of range"):
        run(x, torch.tensor([0, 4]))


def test_explain_names_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    found = genesis.torch.explain(model, torch.randn(3, 4))
    assert [g.kind for g in found.graphs] == ["forward", "backward"]
    modules = {line for kernel in found.graphs[0].kernels for line in kernel.lines}
    assert {"0", "1", "2"} <= modules
    assert "forward:" in str(found)


def test_check_finds_the_first_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    from genesis.torch.aten import implementations

    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    assert genesis.torch.check(model, x).agrees
    right = implementations["aten::gelu"]
    monkeypatch.setitem(
        implementations, "aten::gelu", lambda x, approximate="none": right(x) * 1.01
    )
    found = genesis.torch.check(model, x)
    assert found.first is not None
    assert (found.first.module, found.first.operator) == ("1", "aten.gelu.default")
    assert "DIFFERS" in str(found)


def test_check_knows_rounding_where_nothing_else_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient for a bias before normalisation is zero: what is computed is noise."""
    from genesis.torch.aten import implementations

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    x = torch.randn(4, 3, 8, 8)
    found = genesis.torch.check(model, x)
    assert found.agrees, str(found)
    assert max(d.error for d in found.differences) < 1e-4
    right = implementations["aten::convolution_backward"]

    def wrong(*args: Any) -> Any:
        to_input, to_weight, to_bias = right(*args)
        return to_input, to_weight, None if to_bias is None else to_bias + 0.01

    monkeypatch.setitem(implementations, "aten::convolution_backward", wrong)
    assert not genesis.torch.check(model, x).agrees


SECOND = """
import sys, torch, genesis.torch
from torch._dynamo.utils import counters
from genesis.ndarray import statistics
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())
torch.nn.init.ones_(model[0].weight); torch.nn.init.zeros_(model[0].bias)
run = torch.compile(model, backend="genesis")
y = run(torch.ones(2, 4)); y.sum().backward()
print(y[0, 0].item(), counters["aot_autograd"]["autograd_cache_hit"], statistics().compiled)
print("torch._inductor.lowering" in sys.modules)
packages = {x.split(".")[1] for x in sys.modules if x.startswith("genesis.")}
print(*(x for x in packages if hasattr(sys.modules["genesis." + x], "__path__")))
"""


@of_2_13
def test_a_second_process_finds_everything(tmp_path: Any) -> None:
    environment = {
        **os.environ,
        "GENESIS_CACHE": str(tmp_path / "genesis"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"),
    }
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SECOND],
            env=environment, capture_output=True, text=True, check=True,
        ).stdout.split()
        for _ in range(2)
    ]  # fmt: skip
    assert [x[0] for x in outputs] == [outputs[0][0]] * 2
    assert [x[1] for x in outputs] == ["0", "1"]
    assert outputs[1][2] == "0"  # nothing was compiled
    assert [x[3] for x in outputs] == ["False"] * 2  # nor was Inductor loaded
    # Whatever has a part in a plan is in its key: plans of other sources are not found.
    assert set(outputs[0][4:]) == {"ir", "compiler", "backends", *ROOMS}


@of_2_13
def test_graphs_are_told_apart(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch's cache finds is for the same graph, arguments and settings."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x = torch.linspace(1, 2, 6)
    y = torch.linspace(1, 2, 6, dtype=torch.float64)

    def made() -> torch.Tensor:
        return torch.full((3,), 0.5) / 3

    def times(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: (x * factor).exp()

    def wide() -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        try:
            return compiled(made)()
        finally:
            torch.set_default_dtype(torch.float32)

    def otherwise() -> torch.Tensor:
        with using(winograd=False):
            return compiled(times(2.0))(x)

    def lower() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return compiled(lambda x: x.view(2, 3) @ x.view(3, 2))(x)

    def gradient() -> torch.Tensor:
        z = x.clone().requires_grad_()
        return compiled(times(2.0))(z)

    calls = [
        lambda: compiled(times(2.0))(x),
        lambda: compiled(times(3.0))(x),
        lambda: compiled(times(2.0))(x[:5]),
        lambda: compiled(times(2.0))(y),
        lambda: compiled(times(2.0))(x[::2]),
        gradient,
        lambda: compiled(made)(),
        wide,
        lambda: compiled(lambda x: x.view(2, 3) @ x.view(3, 2))(x),
        lower,
        otherwise,
    ]
    seen = []
    for turn in range(2):
        counters.clear()
        for call in calls:
            torch._dynamo.reset()
            seen.append(call().detach())
        assert counters["aot_autograd"]["autograd_cache_hit"] == turn * len(calls)
    for first, second in zip(seen[: len(calls)], seen[len(calls) :], strict=True):
        assert first.dtype == second.dtype and torch.equal(first, second)
    assert torch.allclose(seen[0], (x * 2).exp()) and torch.allclose(seen[1], (x * 3).exp())


def test_equal_operators_become_one() -> None:
    """Before the cut into forward and backward; what is random, written or returned stays."""
    aten = torch.ops.aten

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = aten.sin.default(x), aten.sin.default(x)
        c, d = aten.mul.Tensor(a, 0.0), aten.mul.Tensor(b, -0.0)
        r, s = aten.rand_like.default(x), aten.rand_like.default(x)
        p, q = aten.exp.default(a), aten.exp.default(b)
        before = aten.cos.default(x)
        aten.copy_.default(x, c)
        after = aten.cos.default(x)
        return aten.add.Tensor(c, d), aten.add.Tensor(r, s), p, q, aten.add.Tensor(before, after)

    graph = make_fx(f)(torch.ones(3)).graph
    merge_equal(graph)
    names = Counter(n.target._opname for n in graph.nodes if n.op == "call_function")
    assert names == {"sin": 1, "mul": 2, "rand_like": 2, "exp": 2, "copy_": 1, "cos": 2, "add": 3}


def _two_symbols(f: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """A graph of `f` with a symbol for every third axis, also where they have the same values."""
    dynamic = [DimDynamic.STATIC, DimDynamic.STATIC, DimDynamic.DYNAMIC, DimDynamic.STATIC]
    mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))
    fakes = [
        mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dynamic))
        for x in inputs
    ]
    return make_fx(f)(*fakes)


def test_two_symbols_for_one_length() -> None:
    """PyTorch need not know that keys and values are as many, as where a cache of them grows."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
        return (found[0] * 2,)

    def drawn(keys: int, values: int) -> list[torch.Tensor]:
        return [torch.randn(1, 2, n, 8) for n in (3, keys, values)]

    run = BoxedGraph(_two_symbols(attention, *drawn(5, 5)), "cpu")
    for n in (5, 9, 4):
        inputs = drawn(n, n)
        torch.testing.assert_close(run(inputs[:])[0], attention(*inputs)[0])
    with pytest.raises(genesis.torch.FallbackWarning, match="as many keys as values"):
        run(drawn(5, 7))  # which PyTorch has to say what it thinks of

    def added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return (q.sum() + k.sum() * v.sum(),)

    run = BoxedGraph(_two_symbols(added, *drawn(3, 3)), "cpu")  # nothing needs them to be equal
    for keys, values in ((3, 3), (4, 6)):
        inputs = drawn(keys, values)
        torch.testing.assert_close(run(inputs[:]), list(added(*inputs)))


def test_constants_have_contents_while_pytorch_traces() -> None:
    x = torch.randn(3)
    constant = torch.arange(3.0)
    module = make_fx(lambda x: (x + constant,))(x)
    with FakeTensorMode():
        run = BoxedGraph(module, "cpu")
    torch.testing.assert_close(run([x])[0], x + constant)


# ---- numbers


def _scaled_by_item(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y * x.sum().item() + 2 * x.max().item()


def _picked_by_item(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    place = i.item()
    torch._check(place >= 0)
    torch._check(place < x.shape[0])
    return x[place] * 2


def _filled_by_item(x: torch.Tensor) -> torch.Tensor:
    return torch.full((4,), x.max().item()) + x.shape[0]


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_what_item_gives_is_computed_with() -> None:
    """It would divide the graph, and warn, if it had to be a number."""
    cases: list[tuple[Callable[..., Any], Callable[[int], Any]]] = [
        (_scaled_by_item, lambda n: (torch.randn(n), torch.randn(3))),
        (_picked_by_item, lambda n: (torch.randn(40), torch.tensor(n))),
        (_filled_by_item, lambda n: (torch.randn(n),)),
    ]
    for f, make in cases:
        run = compiled(f, fullgraph=True)
        for n in (5, 9, 30):
            args = make(n)
            torch.testing.assert_close(run(*args), f(*args))


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_where_item_must_be_a_number_pytorch_gives_it() -> None:

    def first(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        count = n.item()
        torch._check(count >= 0)
        torch._check(count <= 8)
        return torch.arange(count).sum() + x

    run = compiled(first, fullgraph=True)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for n in (2, 5, 8):
            args = torch.ones(3), torch.tensor(n)
            torch.testing.assert_close(run(*args), first(*args))


def test_heads_are_repeated_over_a_cache_that_grows() -> None:
    """PyTorch asks for sizes by an operator there, and has two symbols for one length."""

    def attend(q: Any, k: Any, v: Any, old_k: Any, old_v: Any, mask: Any) -> torch.Tensor:
        k = torch.cat([old_k, k], 2).repeat_interleave(2, 1)
        v = torch.cat([old_v, v], 2).repeat_interleave(2, 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    run = compiled(attend)
    for n in (5, 9, 17):
        new = [torch.randn(1, heads, 1, 8) for heads in (4, 2, 2)]
        old = [torch.randn(1, 2, n, 8) for _ in range(2)]
        args = (*new, *old, torch.ones(1, 1, 1, n + 1).bool())
        torch.testing.assert_close(run(*args), attend(*args), rtol=1e-4, atol=1e-5)


def test_unknown_modes_and_options_are_errors() -> None:
    for wrong in ({"mode": "fastest"}, {"options": {"frooze": True}}):
        with pytest.raises(Exception, match=r"fastest|frooze"):
            compiled(nn.Linear(2, 2), **wrong)(torch.ones(1, 2))
