"""Every array operation against NumPy or PyTorch: values, dtypes, broadcasting, errors."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracle_program import engine  # noqa: F401

import genesis
from genesis import ndarray as nd
from genesis.ir.dtype import ALL, DType
from genesis.ir.size import Size

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -2.5,
    1e-8,
    -1e-6,
    3.7,
    40.0,
    -40.0,
    100.0,
    math.inf,
    -math.inf,
    math.nan,
]


def torch_of(x: nd.NDArray) -> torch.Tensor:
    return torch.tensor(x.tolist(), dtype=getattr(torch, x.dtype.name)).reshape(x.shape)


def check(ours: nd.NDArray, theirs: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch."), (ours.dtype, theirs.dtype)
    assert ours.shape == tuple(theirs.shape)
    want = theirs.to(torch.float64).numpy()
    np.testing.assert_allclose(np.asarray(ours, np.float64), want, rtol=rtol, atol=atol)


# ---- unary

UNARY: dict[str, Callable[..., torch.Tensor]] = {
    "abs": torch.abs, "sqrt": torch.sqrt, "exp": torch.exp, "exp2": torch.exp2, "log": torch.log,
    "log2": torch.log2, "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "erf": torch.erf,
    "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc,
    "neg": torch.neg, "sigmoid": torch.sigmoid, "relu": torch.relu, "sign": torch.sign,
    "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "square": torch.square,
    "softplus": torch.nn.functional.softplus, "reciprocal": torch.reciprocal,
    "rsqrt": torch.rsqrt, "log1p": torch.log1p, "expm1": torch.expm1, "tan": torch.tan,
    "sinh": torch.sinh, "cosh": torch.cosh, "isnan": torch.isnan, "isinf": torch.isinf,
    "isfinite": torch.isfinite, "logical_not": torch.logical_not, "atan": torch.atan,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    x = nd.array(SPECIAL)
    if name == "gelu":
        x = x[:-3]  # PyTorch's vector code gives NaN for infinity
    exact = name in ("log1p", "expm1", "sinh")
    check(getattr(nd, name)(x), UNARY[name](torch_of(x)), rtol=2e-6, atol=0 if exact else 1e-6)
    half = x[:9].astype(genesis.float16)
    check(getattr(nd, name)(half), UNARY[name](torch_of(half)), rtol=2e-3, atol=1e-6)
    integers = nd.array([1, 2, 5])
    if name not in ("gelu", "silu", "softplus"):  # not defined by PyTorch
        check(getattr(nd, name)(integers), UNARY[name](torch.tensor([1, 2, 5])))


def test_accurate_near_zero() -> None:
    x = np.float64([1e-300, 1e-18, -1e-12, 1e-6, 1e-3, 0.3, -0.9, 30.0, 700.0])
    for name in ("log1p", "expm1", "sinh"):
        want = getattr(np, name)(x)
        np.testing.assert_allclose(getattr(nd, name)(nd.array(x)).numpy(), want, rtol=1e-14)


# ---- binary

BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add, "subtract": torch.subtract, "multiply": torch.multiply,
    "divide": torch.divide, "maximum": torch.maximum, "minimum": torch.minimum,
    "less": torch.less, "less_equal": torch.less_equal, "greater": torch.greater,
    "greater_equal": torch.greater_equal, "equal": torch.eq, "not_equal": torch.not_equal,
    "remainder": torch.remainder, "floor_divide": torch.floor_divide, "pow": torch.pow,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_binary(name: str, dtype: str) -> None:
    a = nd.array([[1, 2, 3, 7, 5, 9]], dtype=dtype)
    b = nd.array([[2], [3], [4]], dtype=dtype)
    check(getattr(nd, name)(a, b), BINARY[name](torch_of(a), torch_of(b)))


@pytest.mark.parametrize("name", ["remainder", "floor_divide"])
def test_float_division_has_pythons_signs(name: str) -> None:
    values = [5.5, -5.5, 0.0, 6.0, 1e5, -7.25, 0.3]
    by = [2.0, -2.0, 0.1, -0.3, 3.0, math.inf]
    a, b = nd.array(values), nd.array(by).reshape(-1, 1)
    check(getattr(nd, name)(a, b), BINARY[name](torch_of(a), torch_of(b)), rtol=1e-5, atol=1e-6)


def test_bits_and_shifts() -> None:
    a, b = nd.array([6, -5, 12, 1]), nd.array([3, 3, 1, 62])
    x, y = torch_of(a), torch_of(b)
    for f in (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift):
        check(f(a, b), f(x, y))
    check(~a, ~x)
    check(~(a > 0), ~(x > 0))
    check((a > 0) + (b > 2), (x > 0) + (y > 2))
    check((a > 0) * (b > 2), (x > 0) * (y > 2))


def test_powers() -> None:
    x = nd.array([0.5, -1.5, 2.0, 3.0])
    for exponent in (0, 1, 2, 3, 7, -1, -2, 0.5, 2.5, 100, -7):
        check(x**exponent, torch_of(x) ** exponent, rtol=2e-5)
    check(2.0**x, 2.0 ** torch_of(x))
    n = nd.array([1, -2, 3])
    for exponent in (0, 1, 5, 20):
        check(n**exponent, torch_of(n) ** exponent)
    with pytest.raises(ValueError, match="negative power -1"):
        n ** (-1)


def test_where_clip_lerp_fma() -> None:
    x = nd.array([1.0, -2.0, math.nan, 4.0])
    t = torch_of(x)
    check(nd.where(x > 0, x, 0), torch.where(t > 0, t, 0))
    check(nd.where(x > 0, nd.array([[1], [2]]), 5), torch.where(t > 0, torch.tensor([[1], [2]]), 5))
    check(nd.clip(x, -1, 2), t.clip(-1, 2))
    check(nd.clip(x, high=2.0), t.clip(max=2.0))
    check(nd.lerp(x, x * 3, 0.25), torch.lerp(t, t * 3, 0.25))
    check(nd.fma(x, 2.0, 1.0), t * 2 + 1)
    check(nd.atan2(x, -1.0), torch.atan2(t, torch.tensor(-1.0)))


@pytest.mark.parametrize("a", ALL, ids=repr)
@pytest.mark.parametrize("b", ALL, ids=repr)
def test_promotion_of_arrays(a: DType, b: DType) -> None:
    ta, tb = getattr(torch, a.name), getattr(torch, b.name)
    for first, second in (((2,), (2,)), ((2,), ()), ((), ())):
        try:
            want = (torch.ones(first, dtype=ta) * torch.ones(second, dtype=tb)).dtype
        except RuntimeError:  # PyTorch does not promote the wide unsigned types
            continue
        got = (nd.ones(first, a) * nd.ones(second, b)).dtype
        assert f"torch.{got.name}" == str(want)


@pytest.mark.parametrize("a", ALL, ids=repr)
@pytest.mark.parametrize("scalar", [True, 3, 2.5])
def test_promotion_of_scalars(a: DType, scalar: float) -> None:
    t = torch.ones(2, dtype=getattr(torch, a.name))
    for f in (operator.mul, operator.truediv):
        got = f(nd.ones(2, a), scalar).dtype
        assert f"torch.{got.name}" == str(f(t, scalar).dtype)


def test_casts() -> None:
    x = nd.array([1.7, -1.7, 300.5, 1e30, -1e30, math.nan])
    assert x.astype("int32").tolist() == [1, -1, 300, 2**31 - 1, -(2**31), 0]
    assert nd.array([300, -1]).astype("uint8").tolist() == [44, 255]
    assert x[:2].astype(bool).tolist() == [True, True]
    assert nd.bitcast(nd.array([1.0]), "int32").item() == 0x3F800000


# ---- movement


def test_movement(rng: np.random.Generator) -> None:
    a = rng.random((2, 3, 4), np.float32)
    x, t = nd.array(a), torch.tensor(a)
    check(x.reshape(4, -1), t.reshape(4, -1))
    check(x.reshape((6, 4)).T, t.reshape(6, 4).T)
    check(x.permute(2, 0, 1), t.permute(2, 0, 1))
    check(x.mT, t.mT)
    check(x.swapaxes(0, -1), t.swapaxes(0, -1))
    check(nd.moveaxis(x, 0, -1), t.moveaxis(0, -1))
    check(x[:, :1].squeeze(1), t[:, :1].squeeze(1))
    check(x.unsqueeze(-1), t.unsqueeze(-1))
    check(x[:1].expand(5, -1, 4), t[:1].expand(5, -1, 4))
    check(nd.broadcast_to(x, (2, 2, 3, 4)), t.broadcast_to(2, 2, 3, 4))
    check(x.flip((0, 2)), t.flip((0, 2)))
    check(nd.roll(x, 2, 1), t.roll(2, 1))
    check(nd.roll(x, -1, 2), t.roll(-1, 2))
    check(nd.tile(x, (2, 1, 3)), t.tile(2, 1, 3))
    check(nd.repeat(x, 3, 1), t.repeat_interleave(3, 1))
    check(nd.diagonal(x[:, :2]), t[:, :2].diagonal())
    check(nd.windows(x, 2, 2, stride=2), t.unfold(2, 2, 2))
    for ours, theirs in zip(nd.split(x, 3, 2), t.split(3, 2), strict=True):
        check(ours, theirs)
    for ours, theirs in zip(nd.split(x, [1, 3], 2), t.split([1, 3], 2), strict=True):
        check(ours, theirs)


def test_pad() -> None:
    x = nd.array([[1.0, 2.0], [3.0, 4.0]])
    got = nd.pad(x, ((1, 0), (0, 2)), 9.0)
    np.testing.assert_array_equal(got, np.pad(x.numpy(), ((1, 0), (0, 2)), constant_values=9))
    assert nd.pad(x[0], [(-1, 1)]).tolist() == [2.0, 0.0]
    assert nd.pad(x[0], [(1, 0)], steps=[3]).tolist() == [0.0, 1.0, 0.0, 0.0, 2.0]


def test_dilated_windows() -> None:
    x = nd.arange(9)
    assert nd.windows(x, 0, 3, stride=2, dilation=2).tolist() == [[0, 2, 4], [2, 4, 6], [4, 6, 8]]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_and_stack(axis: int) -> None:
    parts = [nd.full((2, 2), k, dtype="float32") + nd.arange(2) for k in range(4)]
    torches = [torch_of(p) for p in parts]
    check(nd.concat(parts, axis), torch.cat(torches, axis))
    check(nd.stack(parts, axis), torch.stack(torches, axis))
    uneven = [nd.ones((1, 2)), nd.zeros((3, 2)), nd.ones((0, 2))]
    check(nd.concat(uneven), torch.cat([torch_of(p) for p in uneven]))
    check(nd.concat([nd.ones(2), nd.arange(2)]), torch.cat([torch.ones(2), torch.arange(2)]))


# ---- reductions

REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum, "prod": torch.prod, "mean": torch.mean, "amax": torch.amax,
    "amin": torch.amin, "any": torch.any, "all": torch.all, "var": torch.var, "std": torch.std,
    "logsumexp": torch.logsumexp, "argmax": torch.argmax, "argmin": torch.argmin,
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, -1, (0, 2), None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(name: str, axis: Any, keepdims: bool, rng: np.random.Generator) -> None:
    if isinstance(axis, tuple) and name in ("argmax", "argmin"):
        pytest.skip("one axis only")
    x = nd.array(rng.standard_normal((3, 4, 5)).astype(np.float32))
    t = torch_of(x)
    if isinstance(axis, tuple) and name == "prod":
        want = t.prod(2, keepdim=True).prod(0, keepdim=True)
        want = want if keepdims else want.reshape(4)
    elif axis is None and name in ("argmax", "argmin", "prod"):
        want = REDUCTIONS[name](t)
        want = want.reshape(1, 1, 1) if keepdims else want
    else:
        dim = tuple(range(3)) if axis is None else axis
        want = REDUCTIONS[name](t, dim=dim, keepdim=keepdims)
    check(getattr(nd, name)(x, axis, keepdims=keepdims), want)


def test_reduction_dtypes() -> None:
    for dtype in ("bool", "int8", "uint8", "int32", "int64", "float16"):
        t = torch.ones(3, dtype=getattr(torch, dtype))
        x = nd.ones(3, dtype)
        check(x.sum(), t.sum())
        check(x.prod(), t.prod())
        check(x.max(), t.max())
        assert x.any().dtype is genesis.bool_
    with pytest.raises(TypeError, match="mean: needs floating point, not int64"):
        nd.arange(3).mean()


def test_half_precision_is_widened_inside() -> None:
    x = nd.full(70_000, 2.0, dtype="float16")
    assert x.mean().item() == 2.0
    assert nd.var(x).item() == 0.0
    assert nd.full(3000, 1.0, "bfloat16").sum().item() == 3008  # 3000 rounded, not 256


def test_empty_reductions() -> None:
    x = nd.zeros((0, 3))
    assert x.sum(0).tolist() == [0, 0, 0]
    assert x.prod(0).tolist() == [1, 1, 1]
    assert x.any().item() is False and x.all().item() is True
    assert math.isnan(x.mean().item())
    with pytest.raises(ValueError, match="amax: no elements along axes"):
        x.max()
    assert (x + 1).tolist() == [] and x.sum(1).tolist() == []


def test_nan_and_first_positions() -> None:
    x = nd.array([1.0, math.nan, 3.0, math.nan])
    assert x.argmax().item() == 1 and x.argmin().item() == 1
    assert math.isnan(x.max().item())
    assert nd.array([3, 1, 3, 1]).argmax().item() == 0
    assert nd.array([3, 1, 3, 1]).argmin().item() == 1


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax(name: str, axis: int) -> None:
    x = nd.array([[1.0, 2.0, -500.0], [90.0, 91.0, -math.inf]])
    check(getattr(nd, name)(x, axis), getattr(torch, name)(torch_of(x), axis))
    half = x.astype("bfloat16")
    check(getattr(nd, name)(half, axis), getattr(torch, name)(torch_of(half), axis), rtol=1e-2)


def test_logsumexp_of_infinities() -> None:
    x = nd.array([[math.inf, 0.0], [-math.inf, -math.inf], [1e4, 1e4]])
    check(nd.logsumexp(x, 1), torch.logsumexp(torch_of(x), 1))


# ---- contraction

MATMULS = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (7, 3, 4)), ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)), ((1, 2, 3), (5, 3, 4)), ((2, 0), (0, 3)), ((6, 1, 2, 3), (1, 7, 3, 4)),
    ((1, 1), (1, 1)), ((1, 2, 1), (1, 1, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), MATMULS)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], rng: np.random.Generator) -> None:
    x, y = (nd.array(rng.standard_normal(s).astype(np.float32)) for s in (a, b))
    check(x @ y, torch.matmul(torch_of(x).reshape(a), torch_of(y).reshape(b)))


EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk", (2, 3), (3, 4)),
    ("bij,bkj->bki", (2, 3, 4), (2, 5, 4)),
    ("ii->i", (3, 3)), ("ii", (3, 3)), ("iij,jk->ik", (3, 3, 2), (2, 4)), ("ij->ji", (2, 3)),
    ("ij->", (2, 3)), ("...ij,...jk->...ik", (5, 2, 3), (3, 4)), ("...i,...i->...", (4, 3), (3,)),
    ("i,j,k->kji", (2,), (3,), (4,)), ("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5)),
    ("ij,kl->ik", (2, 3), (4, 5)), ("ij,ij->ij", (2, 3), (2, 3)), ("bhqd,bhkd->bhqk", (2, 3, 4, 5),
    (2, 3, 6, 5)),
]  # fmt: skip


@pytest.mark.parametrize("case", EINSUMS, ids=lambda c: c[0])
def test_einsum(case: tuple[Any, ...], rng: np.random.Generator) -> None:
    subscripts, *shapes = case
    arrays = [nd.array(rng.standard_normal(s).astype(np.float32)) for s in shapes]
    want = torch.einsum(subscripts, *(torch_of(x) for x in arrays))
    check(nd.einsum(subscripts, *arrays), want)


def test_products_of_vectors_and_tensors(rng: np.random.Generator) -> None:
    a, b = (nd.array(rng.standard_normal((2, 3, 4)).astype(np.float32)) for _ in range(2))
    ta, tb = torch_of(a), torch_of(b)
    check(nd.tensordot(a, b, ((0, 2), (0, 2))), torch.tensordot(ta, tb, ((0, 2), (0, 2))))
    check(nd.tensordot(a, b.permute(1, 2, 0), 2), torch.tensordot(ta, tb.permute(1, 2, 0), 2))
    check(nd.outer(a[0, 0], b[0, 1]), torch.outer(ta[0, 0], tb[0, 1]))
    check(nd.dot(a[0, 0], b[0, 1]), torch.dot(ta[0, 0], tb[0, 1]))


# ---- indexing by arrays


def test_take_and_scatter(rng: np.random.Generator) -> None:
    x = nd.array(rng.standard_normal((3, 4, 5)).astype(np.float32))
    t = torch_of(x)
    at = nd.array([[0, -1, 2], [1, 1, -3]])
    for axis in range(3):
        want = np.take(x.numpy(), at.numpy(), axis)
        np.testing.assert_array_equal(nd.take(x, at, axis), want)
    check(x[:, [2, 0], 1:3], t[:, [2, 0], 1:3])
    check(x[1, nd.array([3, 0])], t[1, [3, 0]])
    check(x[..., nd.array([[0, 4]])], t[..., torch.tensor([[0, 4]])])
    index = nd.random.integers(0, 4, (3, 2, 5))
    check(nd.take_along_axis(x, index, 1), torch.gather(t, 1, torch_of(index)))
    at = nd.array([1, 1, -2])
    updates = nd.ones((3, 3, 5))
    want = t.index_add(1, torch.tensor([1, 1, 2]), torch.ones(3, 3, 5))
    check(nd.index_add(x, at, updates, axis=1), want)


# ---- creation


def test_creation() -> None:
    for arguments in ((5,), (2, 10, 3), (0.0, 1.0, 0.1), (5, 0, -2), (3, 3)):
        check(nd.arange(*arguments), torch.arange(*arguments))
    for arguments in ((0.0, 1.0, 7), (-3, 5, 1), (2, 2.5, 0), (1, 0, 4)):
        check(nd.linspace(*arguments), torch.linspace(*arguments))
    check(nd.eye(3), torch.eye(3))
    check(nd.eye(2, 4, dtype="int64"), torch.eye(2, 4, dtype=torch.int64))
    check(nd.full((2, 3), 7), torch.full((2, 3), 7))
    check(nd.full((2,), 1.5), torch.full((2,), 1.5))
    check(nd.zeros_like(nd.arange(3)), torch.zeros_like(torch.arange(3)))
    check(nd.tril(nd.ones((3, 4)), 1), torch.ones(3, 4).tril(1))
    check(nd.triu(nd.ones((3, 4)), -1), torch.ones(3, 4).triu(-1))
    check(nd.array([[True], [False]]), torch.tensor([[True], [False]]))
    check(nd.array(3.5), torch.tensor(3.5))
    assert nd.array(np.float64([1, 2])).dtype is genesis.float64


# ---- errors

ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: nd.ones((2, 3)) @ nd.ones((4, 5)), ValueError,
     r"matmul: shapes \(2, 3\) and \(4, 5\) do not match: inner sizes 3 and 4 differ"),
    (lambda: nd.ones((2, 3)) + nd.ones((2, 4)), ValueError,
     r"add: shapes \(2, 3\) and \(2, 4\) do not broadcast: sizes 3 and 4 differ at axis -1"),
    (lambda: nd.ones(6).reshape(4, -1), ValueError, r"reshape: 6 elements of shape \(6,\)"),
    (lambda: nd.ones((2, 3)).sum(2), IndexError, "sum: axis 2 does not exist in an array of 2"),
    (lambda: nd.ones((2, 3))[2], IndexError, "index 2 is out of range for axis 0 of size 2"),
    (lambda: nd.ones((2, 3))[0, 0, 0], IndexError, r"3 indices for an array of shape \(2, 3\)"),
    (lambda: nd.ones(3)[nd.ones(4) > 0], IndexError, r"a mask of shape \(4,\) does not fit"),
    (lambda: nd.ones(3)[0.5], IndexError, "indices are integers"),
    (lambda: (nd.ones(3) > 0) - (nd.ones(3) > 0), TypeError, "subtract: not defined for bool"),
    (lambda: nd.ones(3) & nd.ones(3), TypeError, "bitwise_and: not defined for float32"),
    (lambda: nd.ones(3) + "x", TypeError, "add: expected an array or a number, got str"),
    (lambda: nd.einsum("ij,jk", nd.ones((2, 3))), ValueError, "has 2 terms, not 1"),
    (lambda: nd.einsum("ij,jk", nd.ones((2, 3)), nd.ones((4, 2))), ValueError, "axis 'j' differ"),
    (lambda: nd.einsum("ij->ik", nd.ones((2, 3))), ValueError, "must name axes once each"),
    (lambda: nd.concat([nd.ones((2, 3)), nd.ones((2, 4))]), ValueError, "may differ only at ax"),
    (lambda: nd.where(nd.ones(3), 1, 2), TypeError, "where: the condition must be bool"),
    (lambda: nd.zeros(-1), ValueError, "zeros: sizes must not be negative"),
    (lambda: nd.ones(3, "complex32"), TypeError, "is not a Genesis dtype"),
    (lambda: nd.ones((2, 3)).item(), ValueError, "more or less than one element"),
    (lambda: nd.array([[1, 2], [3]]), ValueError, "nested lists must all have the same lengths"),
    (lambda: nd.ones((2, 3)).permute(0, 0), ValueError, "permute: "),
    (lambda: nd.ones((2, 3)).expand(2, 4), ValueError, r"expand: shape \(2, 3\)"),
    (lambda: nd.windows(nd.ones(3), 0, 4), ValueError, "windows: size 4"),
    (lambda: nd.take(nd.ones(3), nd.ones(2)), TypeError, "positions must be integers"),
    (lambda: nd.zeros(3, device="gpu 1"), ValueError, "not a device name"),
]  # fmt: skip


@pytest.mark.parametrize("case", ERRORS, ids=lambda c: c[2])
def test_errors(case: tuple[Callable[[], Any], type[Exception], str]) -> None:
    call, kind, message = case
    with pytest.raises(kind, match=message):
        call()


def test_devices_do_not_mix() -> None:
    with pytest.raises(ValueError, match="add: inputs are on cpu and cpu:1"):
        nd.ones(3) + nd.ones(3, device="cpu:1")


# ---- symbolic sizes


def test_symbolic_shapes_are_carried() -> None:
    n = Size.symbol("n", low=2, high=512)
    x = nd.zeros((n, 4))
    assert (x + nd.ones((n, 1))).shape == (n, 4)
    assert x.reshape(-1).shape == (4 * n,)
    assert x.reshape(n, 2, 2).permute(2, 0, 1).shape == (2, n, 2)
    assert (x @ nd.ones((4, 3))).shape == (n, 3)
    assert x.sum(1).shape == (n,) and x.mean(0).shape == (4,)
    assert nd.concat([x, x]).shape == (2 * n, 4)
    assert x[1:].shape == (n - 1, 4)
    assert nd.softmax(x, 0).shape == (n, 4)
    with pytest.raises(ValueError, match="do not broadcast: sizes n and 3 differ"):
        x + nd.ones((3, 4))


def test_symbolic_sizes_are_given_at_realisation() -> None:
    from genesis.ndarray.core.realisation import realize_values

    n = Size.symbol("n", low=1, high=512)
    total, scaled = (nd.arange(n) * 2).sum(), nd.ones(3) / n
    realize_values([total.value, scaled.value], {"n": 10})
    assert total.item() == 90
    assert scaled.tolist() == pytest.approx([0.1] * 3)
