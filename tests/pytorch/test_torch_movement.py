"""Kernels of movement, indexing, creation and random operators, compared with PyTorch on the CPU.

PyTorch's own samples with their gradients, and by hand what they leave out: tensors without
dimensions or elements, masks and mixed indices, bits read as other dtypes, symbolic sizes. Random
numbers are held against their distributions.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._pytree import tree_leaves  # noqa: E402

from genesis.ir.dtype import bool_, float32, int64  # noqa: E402
from genesis.ir.size import Size, UndecidableSize  # noqa: E402
from genesis.ndarray import NDArray  # noqa: E402
from genesis.ndarray.core import primitive  # noqa: E402
from genesis.ndarray.core.ndarray import wrap  # noqa: E402
from genesis.ndarray.random import Generator  # noqa: E402
from genesis.torch.aten import Unsupported, implementations  # noqa: E402
from genesis.torch.aten.registry import drawing_from  # noqa: E402
from genesis.torch.convert import arguments, from_torch, to_torch  # noqa: E402
from tests.torch_kernels import Compared  # noqa: E402

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore")


def check(operator: Any, *args: Any, **kwargs: Any) -> None:
    """The kernel of an operator gives what PyTorch gives: values, dtypes, shapes."""
    mode = Compared()
    with mode:
        operator(*args, **kwargs)
    assert not mode.wrong and not mode.unsupported and mode.agreed, (mode.wrong, mode.unsupported)


def run(name: str, *args: Any, **kwargs: Any) -> Any:
    """What the kernel gives, as tensors."""
    given, named = arguments(args, kwargs, from_torch)
    got = implementations[f"aten::{name}"](*given, **named)
    return [to_torch(x) for x in got] if isinstance(got, tuple) else to_torch(got)


# ---- PyTorch's samples

SAMPLED = [
    "__getitem__", "block_diag", "cat", "constant_pad_nd", "diag_embed", "diagonal",
    "diagonal_scatter", "expand", "flip", "gather", "index_add", "index_copy", "index_fill",
    "index_put", "index_reduce", "index_select", "masked_scatter", "masked_select",
    "nn.functional.embedding", "nn.functional.pad", "nn.functional.unfold",
    "permute", "put", "repeat", "repeat_interleave", "reshape", "roll", "rot90", "scatter",
    "scatter_add", "scatter_reduce", "select_scatter", "slice_scatter", "split", "squeeze",
    "stack", "take", "tril", "unbind", "unfold", "view",
]  # fmt: skip


@pytest.mark.parametrize("name", SAMPLED)
def test_samples(name: str) -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    mode = Compared()
    for op in (o for o in op_db if o.name == name):
        inputs = op.sample_inputs("cpu", torch.float32, requires_grad=True)
        for s in itertools.islice(inputs, 2):
            with mode:
                out = s.output_process_fn_grad(op.op(s.input, *s.args, **s.kwargs))
                outs = [x for x in tree_leaves(out) if x.requires_grad]
                torch.autograd.backward(outs, [torch.ones_like(x) for x in outs])
    assert mode.agreed and not mode.wrong, mode.wrong


# ---- indexing


def _cases() -> list[list[Any]]:
    torch.manual_seed(0)
    i, j, k = torch.tensor([0, 2]), torch.tensor([1, -1]), torch.tensor(1)
    rows, none = torch.tensor([True, False, True]), torch.zeros(0, dtype=torch.int64)
    return [
        [i], [i, None, j], [None, i, None, j], [k, None, i], [None, k, i], [k, None, k],
        [i.int()], [rows], [None, torch.rand(4, 5) > 0.5], [torch.rand(3, 4) > 0.5, None, i[:1]],
        [rows.to(torch.uint8)], [i[:, None], None, j], [torch.zeros(3, dtype=torch.bool)],
        [none, None, none], [i[None], j[:, None], None, k],
    ]  # fmt: skip


@pytest.mark.parametrize("case", range(len(_cases())))
def test_indices(case: int) -> None:
    indices = _cases()[case]
    x = torch.randn(3, 4, 5, 6)
    found = aten.index.Tensor(x, indices)
    check(aten.index.Tensor, x, indices)
    check(aten.index_put, x, indices, torch.randn_like(found))
    check(aten.index_put, x, indices, torch.randn(found.shape[-1:]), True)
    if indices[0] is None or indices[0].dtype is not torch.uint8:
        check(aten.index_put, x, indices, torch.tensor(2.0))


def test_a_position_that_does_not_exist() -> None:
    x = torch.ones(3)
    for name, *args in (
        ("index.Tensor", x, [torch.tensor([3])]),
        ("index_select", x, 0, torch.tensor([-4])),
        ("gather", x, 0, torch.tensor([3])),
        ("select.int", x, 0, 3),
        ("embedding", x[:, None], torch.tensor([7])),
    ):
        with pytest.raises(IndexError):
            run(name, *args)


def test_without_dimensions() -> None:
    x, row, at = torch.tensor(3.0), torch.randn(4), torch.tensor(0)
    check(aten.gather, x, 0, at)
    check(aten.gather, row, 0, at)
    check(aten.gather, row, 0, torch.zeros(0, 3, dtype=torch.int64))
    check(aten.scatter.value, x, 0, at, 2.0)
    check(aten.scatter.src, row, 0, at, torch.tensor(5.0))
    check(aten.scatter_add, x, 0, at, torch.tensor(5.0))
    check(aten.scatter_reduce.two, x, 0, at, torch.tensor(5.0), "mean")
    check(aten.index_select, x, 0, at)
    check(aten.index_add, x, 0, at, torch.tensor(2.0))
    check(aten.index_fill.int_Scalar, x, 0, at, 2.0)
    check(aten.index_reduce, x, 0, at, torch.tensor(2.0), "prod")
    check(aten.embedding, torch.randn(5, 3), torch.tensor(2))
    check(aten.transpose.int, x, 0, -1)
    check(aten.squeeze.dim, x, 0)
    check(aten.flip, x, [])
    check(aten.roll, x, [1])
    check(aten.unfold, x, 0, 1, 1)
    check(aten.expand, x, [2, 3])
    check(aten.repeat, x, [2, 2])
    check(aten.masked_select, x, torch.tensor(True))
    check(aten.select_backward, x, [3], 0, -1)
    with pytest.raises(Unsupported):
        run("index.Tensor", torch.ones(1), [torch.tensor(True)])


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
@pytest.mark.parametrize("include_self", [True, False])
def test_folds(dtype: Any, include_self: bool) -> None:
    torch.manual_seed(1)
    x, src = (torch.randint(0, 5, shape).to(dtype) for shape in ((4, 3), (6, 3)))
    index = torch.randint(0, 4, (6, 3))
    folds = ("sum", "prod", "mean", "amax", "amin")[:: 2 if dtype is torch.bool else 1]
    for reduce in (r for r in folds if dtype is not torch.bool or r != "mean"):
        check(aten.scatter_reduce.two, x, 0, index, src, reduce, include_self=include_self)


# ---- movement


def test_edges_of_movement() -> None:
    x = torch.randn(3, 4, 5)
    check(aten.slice.Tensor, x, -2, -3, 100, 2)
    check(aten.slice.Tensor, x, 1, 3, 1)
    check(aten.split.Tensor, torch.zeros(0), 2)
    check(aten.diagonal, x, -7)
    check(aten.repeat, x, [0, 1, 1])
    check(aten.roll, torch.zeros(0, 2), [1], [0])
    check(aten.cat, [torch.zeros(0, dtype=torch.float64), torch.ones(2, 3)], 1)
    check(aten.cat, [torch.zeros(2, dtype=torch.int64), torch.ones(2)])
    check(aten.stack, [torch.tensor(1), torch.tensor(2.0)])
    check(aten._chunk_cat, [torch.randn(5, 2), torch.randn(3, 3)], 0, 2)
    check(aten.repeat_interleave.Tensor, torch.tensor([1, 0, 2]))
    check(aten.repeat_interleave.Tensor, torch.zeros(0, dtype=torch.int32))
    check(aten.slice_backward, torch.randn(3, 2), [3, 5], 1, 0, 5, 3)
    check(aten.select_scatter, x, torch.randn(3, 5).double(), 1, -1)
    check(aten.im2col, torch.rand(1, 2, 4, 4) > 0.5, [2, 2], [1, 1], [1, 1], [2, 2])


def test_composed_operators() -> None:
    """Those that PyTorch takes apart itself, unless a graph was recorded before it does."""
    x, z, at = torch.randn(4, 6), torch.randn(2, 3, dtype=torch.complex64), torch.tensor([1, 1])
    cases: list[Sequence[Any]] = [
        ("adjoint", z), ("mT", z), ("numpy_T", x[None]), ("swapaxes", x, 0, 1),
        ("chunk", x, 4, 1), ("concat", [x, x], 1), ("flatten.using_ints", x[None], 1),
        ("index_select_backward", x[:2], [4, 6], 0, at), ("movedim.int", x[None], 0, 2),
        ("movedim.intlist", x[None], [0, 1], [2, 0]), ("narrow", x, 1, -3, 2),
        ("repeat_interleave.self_int", x, 2), ("repeat_interleave.self_Tensor", x[:2, 0], at + 1),
        ("reshape", x.t(), [3, -1]), ("split.sizes", x, [1, 5], -1),
        ("take_along_dim", x, at[:, None], 0), ("tensor_split.indices", x, [1, -1], 1),
        ("tensor_split.sections", x, 4, 1), ("tile", x, [2]), ("trace_backward", x[0, 0], [2, 3]),
        ("unflatten.int", x, 1, [2, -1]),
        ("value_selecting_reduction_backward", x[0, :2], 1, at, [2, 3], False),
    ]  # fmt: skip
    for name, *args in cases:
        packet, _, overload = name.partition(".")
        want = getattr(getattr(aten, packet), overload or "default")(*args)
        got = run(name, *args)
        for ours, theirs in zip(tree_leaves(got), tree_leaves(want), strict=True):
            torch.testing.assert_close(ours, theirs.resolve_conj(), check_stride=False)


def test_padding_keeps_the_dtype() -> None:
    check(aten.constant_pad_nd, torch.tensor([1, 2]), [1, -1], 2.7)
    check(aten.constant_pad_nd, torch.tensor([True]), [1, 1], 1)
    check(aten.constant_pad_nd, torch.tensor([1 + 2j]), [1, 1], 3j)
    check(aten.constant_pad_nd, torch.zeros(0, 2), [1, 1, 1, 1], math.nan)
    row = torch.arange(4.0).reshape(1, 4)
    for widths in ([-4, 3], [3, -5], [-6, 3]):  # of what was cut off, the edge is still repeated
        check(aten.replication_pad1d, row, widths)
        grad = torch.arange(1.0, 2 + 4 + sum(widths) - 1).reshape(1, -1)
        check(aten.replication_pad1d_backward, grad, row, widths)


DTYPES = [
    torch.float32, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float16,
    torch.bfloat16,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits(dtype: Any) -> None:
    torch.manual_seed(2)
    for source in DTYPES:
        few = dtype is torch.bool and source is not torch.bool
        x = torch.zeros(2, 8, dtype=source) if few else torch.randint(-99, 99, (2, 8)).to(source)
        check(aten.view.dtype, x, dtype)
    check(aten.view.dtype, torch.tensor(1 + 2j), torch.float64)


def test_strides() -> None:
    x = torch.arange(12.0)
    turned = x.reshape(3, 4).t()
    check(aten.as_strided, x, [2, 3], [1, 4])
    check(aten.as_strided, x, [3, 3], [2, 1])
    check(aten.as_strided, turned, [3, 3], [2, 1])
    check(aten.as_strided_scatter, x, torch.ones(2, 3), [2, 3], [1, 4])
    check(aten.as_strided_scatter, turned, torch.ones(2, 3), [2, 3], [1, 4])
    for case in ((x[2:], [2], [1], 3), (x[::2], [2], [1]), (x, [20], [1])):
        with pytest.raises(Unsupported):
            run("as_strided", *case)


def test_strides_over_what_is_computed() -> None:
    storage = torch.arange(20.0)
    x = storage[2:14].reshape(3, 4).t()
    computed = from_torch(x) * 1
    strided, scattered = (
        implementations["aten::as_strided"],
        implementations["aten::as_strided_scatter"],
    )
    with pytest.raises(Unsupported):
        strided(computed, [2, 3], [1, 2])
    memory = (1, 4), 2
    found = strided(computed, [2, 3], [1, 2], 3, memory=memory)
    torch.testing.assert_close(to_torch(found), x.as_strided([2, 3], [1, 2], 3))
    new = from_torch(torch.ones(2, 2))
    got = to_torch(scattered(computed, new, [2, 2], [1, 2], 3, memory=memory))
    want = aten.as_strided_scatter(x, torch.ones(2, 2), [2, 2], [1, 2], 3)
    torch.testing.assert_close(got, want, check_stride=False)


# ---- creation


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.int64, torch.uint8, torch.float16])
def test_counting(dtype: Any) -> None:
    step = 0.3 if dtype is not torch.int64 else 1.3  # of which int64 takes the whole part
    for given in ((5,), (0,), (5.5,), (2, 7), (7, 2, -2), (1.0, 2.0, step), (5, 5, 1)):
        overload = {1: "default", 2: "start", 3: "start_step"}[len(given)]
        check(getattr(aten.arange, overload), *given, dtype=dtype)
    with pytest.raises(ValueError, match="arange"):
        run("arange.start_step", 0, 5, -1)


@pytest.mark.parametrize("dtype", [None, torch.int64, torch.complex64])
def test_points(dtype: Any) -> None:
    for steps in (0, 1, 2, 5, 10):
        check(aten.linspace, -3, 7.5, steps, dtype=dtype)
    check(aten.linspace.Scalar_Tensor, 3, torch.tensor(-2.5), 7, dtype=dtype)
    check(aten.linspace.Tensor_Tensor, torch.tensor(1.0), torch.tensor(2), 4, dtype=dtype)
    check(aten.logspace, 0, 3, 4, 2.0, dtype=dtype)


def test_numbers() -> None:
    for value in (1, True, 2.5, 1j, -1):
        check(aten.full, [2], value)
    for dtype in (torch.int64, torch.bool, torch.float64):
        check(aten.full_like, torch.ones(2, 3), 2.5, dtype=dtype)
    check(aten.eye.m, 2, 3, dtype=torch.bool)
    check(aten.triu_indices, 4, 3, 1, dtype=torch.int32)
    options = {"dtype": torch.int32, "device": "cpu", "requires_grad": False}
    check(torch.ops.prims.iota, 5, start=2, step=3, **options)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        check(aten.full, [2], 0.5)
        check(aten.arange, 1.5)
    finally:
        torch.set_default_dtype(before)


# ---- bags


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_bags(mode: int) -> None:
    torch.manual_seed(3)
    table = torch.randn(10, 4, dtype=torch.float64)
    indices, offsets = torch.tensor([1, 2, 2, 9, 3, 3, 0]), torch.tensor([0, 3, 3, 5])
    args: Any = (table, indices, offsets, False, mode, False, None, False, 3)
    got, want = run("_embedding_bag", *args), aten._embedding_bag(*args)
    # The sizes of bags are not initialised for sums, the greatest indices only for that mode.
    for ours, theirs in zip(got[: 2 + mode], want, strict=False):
        torch.testing.assert_close(ours, theirs)
    assert [x.shape for x in got] == [x.shape for x in want]
    grad = torch.randn(4, 4, dtype=torch.float64)
    rest = (indices, offsets, *want[1:], 10, False, mode, False, None, 3)
    torch.testing.assert_close(
        run("_embedding_bag_backward", grad, *rest), aten._embedding_bag_backward(grad, *rest)
    )


def test_gradient_by_frequency() -> None:
    grad, indices = torch.randn(4, 3), torch.tensor([1, 1, 0, 2])
    check(aten.embedding_dense_backward, grad, indices, 5, 0, True)


# ---- random numbers


def _moments(name: str, *args: Any, **kwargs: Any) -> tuple[float, float]:
    drawn = run(name, *args, **kwargs).double()
    return drawn.mean().item(), drawn.std().item()


def test_distributions() -> None:
    n, x = 40000, torch.zeros(40000)
    with drawing_from(Generator(5)):
        for (mean, std), (m, s) in (
            (_moments("rand", [n]), (0.5, 12**-0.5)),
            (_moments("randn", [n], dtype=torch.float64), (0, 1)),
            (_moments("uniform", x, -1.0, 3.0), (1, 4 * 12**-0.5)),
            (_moments("normal.Tensor_Tensor", x + 2, x + 3), (2, 3)),
            (_moments("randint.low", 2, 5, [n]), (3, (2 / 3) ** 0.5)),
            (_moments("exponential", x, 2.0), (0.5, 0.5)),
            (_moments("geometric", x, 0.25), (4, 12**0.5)),
            (_moments("bernoulli", x + 0.25), (0.25, 0.1875**0.5)),
            (_moments("log_normal", x, 0.0, 0.5), (math.exp(0.125), 0.6039)),
        ):
            assert mean == pytest.approx(m, abs=0.03 * max(s, 1))
            assert std == pytest.approx(s, rel=0.05)
        assert run("cauchy", x, 1.0, 2.0).median() == pytest.approx(1.0, abs=0.1)
        assert sorted(run("randperm", 50).tolist()) == list(range(50))


def test_a_generator_decides_what_is_drawn() -> None:
    drawn = []
    for seed in (1, 1, 2):
        with drawing_from(Generator(seed)):
            drawn.append(run("rand", [8]))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial(replacement: bool) -> None:
    weights = torch.tensor([0.0, 1.0, 3.0, 4.0]).expand(20000, 4)
    with drawing_from(Generator(6)):
        drawn = run("multinomial", weights, 2, replacement)
    first = torch.bincount(drawn[:, 0], minlength=4) / 20000
    torch.testing.assert_close(first, torch.tensor([0, 0.125, 0.375, 0.5]), atol=0.02, rtol=0)
    assert replacement or bool((drawn[:, 0] != drawn[:, 1]).all())


def test_dropout() -> None:
    x = torch.randn(10000)
    with drawing_from(Generator(7)):
        out, mask = run("native_dropout", x, 0.25, True)
    assert mask.dtype is torch.bool and mask.double().mean() == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(out, x * mask / 0.75)
    check(aten.native_dropout_backward, x, mask, 1 / 0.75)
    check(aten.native_dropout, x, 0.25, False)
    assert run("native_dropout", x, 1.0, True)[0].count_nonzero() == 0


# ---- symbolic sizes


def test_symbolic_sizes() -> None:
    n, m = Size.symbol("n", 2, 1000), Size.symbol("m", 2, 1000)

    def array(*shape: Any, dtype: Any = float32) -> NDArray:
        return wrap(primitive.parameter(dtype, shape, "cpu"))

    x, v, i = array(n, 8, m), array(n, 8), array(n, dtype=int64)
    far = (1 << 63) - 1
    cases: list[tuple[Sequence[Any], Any]] = [
        (("view", x, [-1, m]), (8 * n, m)),
        (("expand", array(1, 8), [n, 8]), (n, 8)),
        (("slice.Tensor", x, 0, 1, far), (n - 1, 8, m)),
        (("select.int", x, 0, -1), (8, m)),
        (("cat", [x, array(1, 8, m)]), (n + 1, 8, m)),
        (("repeat", v, [n, 1]), (n * n, 8)),
        (("index.Tensor", x, [None, i]), (n, n, m)),
        (("index_put", x, [i], x, True), (n, 8, m)),
        (("scatter.value", x, 1, array(n, 1, m, dtype=int64), -1.0), (n, 8, m)),
        (("embedding_dense_backward", v, i, m, 0, True), (m, 8)),
        (("full", [], n), ()),
        (("arange.start_step", m, m + n, 1), (n,)),
        (("constant_pad_nd", v, [0, 0, 0, m]), (m + n, 8)),
        (("slice_backward", array(n - 1, 8), [n, 8], 0, 1, far, 1), (n, 8)),
        (("masked_scatter_backward", v, array(n, 8, dtype=bool_), [n, 8]), (n, 8)),
        (("reflection_pad1d_backward", array(n, m, 22), array(n, m, 20), [1, 1]), (n, m, 20)),
    ]
    for (name, *args), shape in cases:
        assert implementations[f"aten::{name}"](*args).shape == shape, name
    pieces = implementations["aten::split_with_sizes"](array(2 * n, 3), [n, n])
    assert [piece.shape for piece in pieces] == [(n, 3), (n, 3)]
    with pytest.raises(UndecidableSize):
        implementations["aten::split.Tensor"](x, 4)
