"""Cases of reductions, prefixes, movement, creation and contraction."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from genesis import ndarray as nd
from tests.operator_cases import COUNTED, REAL, case
from tests.operator_draw import (
    COMPLEX,
    FLOATS,
    HALVES,
    INTEGERS,
    SIGNED,
    Draw,
)

# ---- reductions

_TORCH_NAMES = {"max": "amax", "min": "amin"}


@case("sum", "prod", "any", "all", "count_nonzero")
def _reduction(d: Draw, name: str) -> None:
    for dtype in ("bool", *SIGNED, *REAL, *COMPLEX):
        if dtype in HALVES and name == "prod":
            continue
        x = d.array(d.shape(1), dtype)
        axis = d.axis(x.n.shape)
        theirs = getattr(torch, name)
        d.same(getattr(nd, name)(x.a, axis), theirs(x.t, axis), 4)
        d.same(getattr(nd, name)(x.a), theirs(x.t), 4)


@case("amax", "amin", "max", "min")
def _extreme(d: Draw, name: str) -> None:
    for dtype in ("bool", *COUNTED, *REAL):
        x = d.array(d.shape(1, least=1), dtype, special=True)
        axis = d.axis(x.n.shape)
        theirs = getattr(torch, _TORCH_NAMES.get(name, name))
        d.same(getattr(nd, name)(x.a, axis, True), theirs(x.t, axis, True))


@case("argmax", "argmin")
def _position(d: Draw, name: str) -> None:
    for dtype in (*COUNTED, *FLOATS):
        x = d.array(d.shape(1, least=1), dtype, special=True)
        axis = d.pick([None, d.axis(x.n.shape)])
        d.same(getattr(nd, name)(x.a, axis), getattr(np, name)(x.n, axis))


@case("mean", "var", "std", "logsumexp")
def _moment(d: Draw, name: str) -> None:
    for dtype in REAL:
        x = d.array(d.shape(1, least=2), dtype)
        axis = d.axis(x.n.shape)
        want = getattr(torch, name)(x.t.double(), axis, keepdim=True)
        d.same(getattr(nd, name)(x.a, axis, keepdims=True), want, 2, cast=True)


@case("softmax", "log_softmax")
def _softmax(d: Draw, name: str) -> None:
    for dtype in REAL:
        x = d.array(d.shape(1), dtype)
        axis = d.axis(x.n.shape)
        want = getattr(torch, name)(x.t.double(), axis)
        d.same(getattr(nd, name)(x.a, axis), want, 2, cast=True)


# ---- cumulative


@case("cumsum", "cumprod", "logcumsumexp")
def _cumulative(d: Draw, name: str) -> None:
    for dtype in (*COUNTED, *FLOATS) if name != "logcumsumexp" else FLOATS:
        x = d.array(d.shape(1), dtype)
        axis = d.axis(x.n.shape)
        d.same(getattr(nd, name)(x.a, axis), getattr(torch, name)(x.t, axis), 8)


@case("cummax", "cummin")
def _running(d: Draw, name: str) -> None:
    for dtype in (*COUNTED, *FLOATS):
        x = d.array(d.shape(1), dtype, special=True)
        axis = d.axis(x.n.shape)
        d.same(tuple(getattr(nd, name)(x.a, axis)), tuple(getattr(torch, name)(x.t, axis)))


@case()
def _diff(d: Draw) -> None:
    x = d.array(d.shape(1))
    axis, n = d.axis(x.n.shape), d.integer(0, 3)
    d.same(nd.diff(x.a, n, axis), torch.diff(x.t, n, axis))


@case("trapezoid", "cumulative_trapezoid")
def _trapezoid(d: Draw, name: str) -> None:
    x = d.array(d.shape(1, least=1), "float64")
    axis = d.axis(x.n.shape)
    d.same(getattr(nd, name)(x.a, dx=0.5, axis=axis), getattr(torch, name)(x.t, dx=0.5, dim=axis))


@case()
def _associative_scan(d: Draw) -> None:
    x = d.array(d.shape(1))
    axis = d.axis(x.n.shape)
    got = nd.associative_scan(lambda a, b: a + b, x.a, 0.0, axis)
    d.same(got, torch.cumsum(x.t, axis), 8)


@case()
def _scan(d: Draw) -> None:
    x = d.array((4, *d.shape(0, 2)))
    carry, stacked = nd.scan(lambda c, row: (c * 0.5 + row, c), nd.zeros(x.n.shape[1:]), x.a)
    want, before = np.zeros(x.n.shape[1:], np.float32), []
    for row in x.n:
        before.append(want)
        want = want * np.float32(0.5) + row
    d.same([carry, stacked], [want, np.stack(before)], 2)


# ---- movement


@case()
def _flip(d: Draw) -> None:
    for dtype in ("bool", "int8", *REAL, "complex64"):
        x = d.array(d.shape(1), dtype)
        axis = d.axis(x.n.shape)
        d.same(nd.flip(x.a, axis), torch.flip(x.t, (axis,)))


@case()
def _squeeze(d: Draw) -> None:
    x = d.array((1, *d.shape(0, 2), 1))
    axis = d.pick((0, -1, (0, -1), None))
    d.same(nd.squeeze(x.a, axis), np.squeeze(x.n, axis))


@case()
def _unsqueeze(d: Draw) -> None:
    x = d.array(d.shape())
    axis = d.integer(-x.n.ndim - 1, x.n.ndim)
    d.same(nd.unsqueeze(x.a, axis), torch.unsqueeze(x.t, axis))


@case("moveaxis", "swapaxes")
def _axes(d: Draw, name: str) -> None:
    x = d.array(d.shape(1))
    a, b = d.axis(x.n.shape), d.axis(x.n.shape)
    d.same(getattr(nd, name)(x.a, a, b), getattr(torch, name)(x.t, a, b))


@case("permute", "transpose")
def _permute(d: Draw, name: str) -> None:
    x = d.array(d.shape(1))
    order = tuple(int(k) for k in d.rng.permutation(x.n.ndim))
    d.same(getattr(nd, name)(x.a, *order), x.n.transpose(order))


@case()
def _reshape(d: Draw) -> None:
    x = d.array(d.shape(1, least=1), d.pick(("int8", "float32", "complex64")))
    d.same(nd.reshape(x.a, -1, 1), x.n.reshape(-1, 1))
    d.same(nd.reshape(x.a, *x.n.shape[::-1]), x.n.reshape(x.n.shape[::-1]))


@case("broadcast_to", "expand")
def _expanded(d: Draw, name: str) -> None:
    x = d.array((d.integer(0, 3), 1))
    shape = (2, x.n.shape[0], d.integer(0, 5))
    given = (shape,) if name == "broadcast_to" else shape
    got = getattr(nd, name)(x.a if name == "broadcast_to" else x.a[None].expand(2, -1, 1), *given)
    d.same(got, np.broadcast_to(x.n, shape))


@case("concat", "stack")
def _joined(d: Draw, name: str) -> None:
    for dtype in ("bool", "uint8", "float16", "float32", "complex64"):
        shape = d.shape(1)
        x, y = d.array(shape, dtype), d.array(shape, dtype)
        axis = d.axis(shape)
        d.same(getattr(nd, name)([x.a, y.a, x.a], axis),
               getattr(torch, name)([x.t, y.t, x.t], axis))  # fmt: skip


@case()
def _split(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    axis = d.axis(x.n.shape)
    first = d.integer(0, x.n.shape[axis])
    d.same(nd.split(x.a, 2, axis), torch.split(x.t, 2, axis))
    sizes = [first, x.n.shape[axis] - first]
    d.same(nd.split(x.a, sizes, axis), torch.split(x.t, sizes, axis))


@case()
def _roll(d: Draw) -> None:
    x = d.array(d.shape(1))
    axis, shift = d.axis(x.n.shape), d.integer(-40, 40)
    d.same(nd.roll(x.a, shift, axis), np.roll(x.n, shift, axis))


@case()
def _repeat(d: Draw) -> None:
    x = d.array(d.shape(1))
    axis, count = d.axis(x.n.shape), d.integer(0, 3)
    d.same(nd.repeat(x.a, count, axis), np.repeat(x.n, count, axis))


@case()
def _tile(d: Draw) -> None:
    x = d.array(d.shape(1, 2))
    counts = tuple(d.integer(0, 3) for _ in range(d.integer(x.n.ndim, 3)))
    d.same(nd.tile(x.a, counts), torch.tile(x.t, counts))


@case()
def _diagonal(d: Draw) -> None:
    n = d.integer(0, 4)
    x = d.array((n, 3, n))
    d.same(nd.diagonal(x.a, 0, 2), torch.diagonal(x.t, 0, 0, 2))


@case("tril", "triu")
def _triangle(d: Draw, name: str) -> None:
    for dtype in ("bool", "int8", "float32", "complex64"):
        x = d.array(d.shape(2), dtype)
        k = d.integer(-4, 4)
        d.same(getattr(nd, name)(x.a, k), getattr(torch, name)(x.t, k))


@case()
def _windows(d: Draw) -> None:
    x = d.array(d.shape(1, least=3))
    axis, size, step = d.axis(x.n.shape), d.integer(1, 3), d.integer(1, 3)
    d.same(nd.windows(x.a, axis, size, step), x.t.unfold(axis, size, step))


@case()
def _overlap_add(d: Draw) -> None:
    x = d.array((3, d.integer(1, 4)))
    want = np.zeros(2 * 2 + x.n.shape[1] + 1, np.float32)
    for k, row in enumerate(x.n):
        want[2 * k : 2 * k + len(row)] += row
    d.same(nd.overlap_add(x.a, 0, len(want), 2), want)


@case()
def _pad(d: Draw) -> None:
    for mode in ("constant", "reflect", "replicate", "circular"):
        x = d.array((2, 1, *d.shape(2, 2, least=3)))
        widths = [d.integer(-1, 2) for _ in range(4)]
        got = nd.pad(x.a, [(0, 0), (0, 0), tuple(widths[2:]), tuple(widths[:2])], mode=mode)
        d.same(got, F.pad(x.t, widths, mode))


@case()
def _pad_gradient(d: Draw) -> None:
    for mode in ("constant", "reflect", "replicate", "circular"):
        widths = [d.integer(0, 2) for _ in range(4)]
        x = torch.zeros(2, 1, 4, 3, dtype=torch.float64, requires_grad=True)
        padded = F.pad(x, widths, mode)
        g = d.array(padded.shape, "float64")
        padded.backward(g.t)
        edges = [(0, 0), (0, 0), tuple(widths[2:]), tuple(widths[:2])]
        d.same(nd.pad_gradient(g.a, edges, mode), x.grad)


@case()
def _pixel_shuffle(d: Draw) -> None:
    x = d.array((2, 8, *d.shape(2, 2)))
    d.same(nd.pixel_shuffle(x.a, 2), F.pixel_shuffle(x.t, 2))


@case()
def _pixel_unshuffle(d: Draw) -> None:
    x = d.array((2, 3, 4, 2 * d.integer(1, 3)))
    d.same(nd.pixel_unshuffle(x.a, 2), F.pixel_unshuffle(x.t, 2))


@case()
def _channel_shuffle(d: Draw) -> None:
    x = d.array((2, 6, 3, 2))
    d.same(nd.channel_shuffle(x.a, 3), F.channel_shuffle(x.t, 3))


# ---- creation


@case()
def _arange(d: Draw) -> None:
    start, stop, step = d.integer(-9, 9), d.integer(-9, 9), d.pick((1, 2, 3, -1, -2))
    d.same(nd.arange(start, stop, step), np.arange(start, stop, step))
    d.same(nd.arange(0, 1, 0.125), torch.arange(0, 1, 0.125))


@case()
def _linspace(d: Draw) -> None:
    n = d.integer(1, 9)
    d.same(nd.linspace(-1, 2.5, n), torch.linspace(-1, 2.5, n))


@case()
def _eye(d: Draw) -> None:
    m, n = d.integer(0, 4), d.integer(0, 4)
    d.same(nd.eye(m, n), torch.eye(m, n))


@case("zeros", "ones")
def _filled(d: Draw, name: str) -> None:
    shape = d.shape()
    for dtype in ("bool", *COUNTED, *FLOATS, *COMPLEX):
        d.same(getattr(nd, name)(shape, dtype), getattr(np, name)(shape, dtype))


@case("zeros_like", "ones_like")
def _filled_like(d: Draw, name: str) -> None:
    x = d.array(d.shape(), d.pick(("bool", "int8", "float32")))
    d.same(getattr(nd, name)(x.a), getattr(np, name)(x.n))


@case()
def _full(d: Draw) -> None:
    shape = d.shape()
    d.same(nd.full(shape, 2.5), np.full(shape, 2.5, np.float32))
    d.same(nd.full(shape, 3), np.full(shape, 3))


@case()
def _full_like(d: Draw) -> None:
    x = d.array(d.shape(), "int8")
    d.same(nd.full_like(x.a, 7), np.full(x.n.shape, 7, np.int8))


@case("array", "asarray")
def _array(d: Draw, name: str) -> None:
    for dtype in ("bool", *INTEGERS, *REAL, *COMPLEX):
        x = d.numbers(d.shape(), dtype, special=True)
        d.same(getattr(nd, name)(x), x)
    d.same(getattr(nd, name)([[1.5, 2], [3, 4]]), np.array([[1.5, 2], [3, 4]], np.float32))


@case()
def _from_numpy(d: Draw) -> None:
    x = d.numbers(d.shape(2), "float32")
    d.same(nd.from_numpy(x.T[::-1]), x.T[::-1])


@case()
def _from_dlpack(d: Draw) -> None:
    x = torch.arange(12.0).reshape(3, 4).T
    d.same(nd.from_dlpack(x), x)


@case()
def _meshgrid(d: Draw) -> None:
    x, y = d.array(d.shape(1, 1)), d.array(d.shape(1, 1))
    for indexing in ("ij", "xy"):
        d.same(nd.meshgrid(x.a, y.a, indexing=indexing),
               torch.meshgrid(x.t, y.t, indexing=indexing))  # fmt: skip


@case("tril_indices", "triu_indices")
def _triangle_indices(d: Draw, name: str) -> None:
    m, n, k = d.integer(0, 5), d.integer(0, 5), d.integer(-3, 3)
    d.same(getattr(nd, name)(m, n, k), getattr(torch, name)(m, n, k))


# ---- contraction


@case()
def _matmul(d: Draw) -> None:
    for dtype in (*COUNTED, *REAL, *COMPLEX):
        m, k, n = (d.integer(0, 5) for _ in range(3))
        x, y = d.array((2, 1, m, k), dtype), d.array((3, k, n), dtype)
        want = torch.matmul(x.t.double() if dtype in HALVES else x.t,
                            y.t.double() if dtype in HALVES else y.t)  # fmt: skip
        d.same(nd.matmul(x.a, y.a), want, 8, cast=True)


@case()
def _dot(d: Draw) -> None:
    n = d.integer(0, 9)
    x, y = d.array((n,)), d.array((n,))
    d.same(nd.dot(x.a, y.a), torch.dot(x.t, y.t), 8)


@case()
def _outer(d: Draw) -> None:
    x, y = d.array(d.shape(1, 1)), d.array(d.shape(1, 1))
    d.same(nd.outer(x.a, y.a), torch.outer(x.t, y.t))


@case()
def _einsum(d: Draw) -> None:
    x, y = d.array((2, 3, 4), "float64"), d.array((4, 3, 5), "float64")
    for form in ("abc,cbd->ad", "abc,cbd->bda", "abc,cbd->", "abc,cde->abde"):
        d.same(nd.einsum(form, x.a, y.a), torch.einsum(form, x.t, y.t), 8)
    d.same(nd.einsum("aab->ab", nd.concat([x.a, x.a], 1)[:, :2]),
           torch.einsum("aab->ab", torch.cat([x.t, x.t], 1)[:, :2]))  # fmt: skip


@case()
def _tensordot(d: Draw) -> None:
    x, y = d.array((2, 3, 4), "float64"), d.array((4, 3, 5), "float64")
    axes = ([1, 2], [1, 0])
    d.same(nd.tensordot(x.a, y.a, axes), torch.tensordot(x.t, y.t, axes), 8)
