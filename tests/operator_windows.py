"""Cases of convolution, pooling and interpolation."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from genesis import ndarray as nd
from tests.operator_cases import case
from tests.operator_draw import (
    FLOATS,
    Draw,
    Operand,
)

# ---- convolution, pooling, interpolation


def _spatial(d: Draw, rank: int, least: int = 4, channels: int = 2) -> Operand:
    batch = d.pick(((), (0,), (1,), (2,)))
    dtype = d.pick(FLOATS)
    return d.array((*batch, channels, *(d.integer(least, 7) for _ in range(rank))), dtype)


def _rank(name: str) -> int:
    digits = [int(c) for c in name if c.isdigit()]
    return digits[-1] if digits else 2


@case("conv1d", "conv2d", "conv3d", "convolution")
def _conv(d: Draw, name: str) -> None:
    rank = _rank(name)
    groups = d.pick((1, 2))
    x = _spatial(d, rank, channels=4)
    w = d.array((4, 4 // groups, *(d.integer(1, 3) for _ in range(rank))), str(x.n.dtype))
    options = {"stride": d.integer(1, 2), "padding": d.integer(0, 1), "groups": groups}
    options["dilation"] = d.integer(1, 2) if options["padding"] else 1
    theirs = getattr(F, f"conv{rank}d")
    d.same(getattr(nd, name)(x.a, w.a, **options), theirs(x.t, w.t, **options), 8)
    if x.n.ndim == rank + 2 and x.n.size and options["groups"] == 1:
        mode = d.pick(("reflect", "replicate", "circular"))
        got = getattr(nd, name)(x.a, w.a, padding=2, padding_mode=mode)
        d.same(got, theirs(F.pad(x.t, (2, 2) * rank, mode), w.t), 8)


@case("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution_transpose")
def _conv_transpose(d: Draw, name: str) -> None:
    rank = _rank(name)
    groups = d.pick((1, 2))
    x = _spatial(d, rank, channels=4)
    w = d.array((4, 2, *(d.integer(1, 3) for _ in range(rank))), str(x.n.dtype))
    options = {"stride": d.integer(2, 3), "output_padding": d.integer(0, 1), "groups": groups}
    theirs = getattr(F, f"conv_transpose{rank}d")
    d.same(getattr(nd, name)(x.a, w.a, **options), theirs(x.t, w.t, **options), 8)


@case("convolution_input_gradient", "convolution_weight_gradient")
def _conv_gradient(d: Draw, name: str) -> None:
    groups = d.pick((1, 2, 4))
    x = d.array((2, 4, d.integer(3, 7), 5), "float64")
    w = d.array((4, 4 // groups, 3, d.integer(1, 3)), "float64")
    options = {"stride": d.integer(1, 3), "padding": d.integer(0, 1), "groups": groups}
    a, b = x.t.clone().requires_grad_(), w.t.clone().requires_grad_()
    out = F.conv2d(a, b, None, **options)
    g = d.array(out.shape, "float64")
    out.backward(g.t)
    if name == "convolution_input_gradient":
        d.same(nd.convolution_input_gradient(g.a, w.a, x.n.shape, **options), a.grad, 8)
    else:
        d.same(nd.convolution_weight_gradient(g.a, x.a, w.n.shape, **options), b.grad, 8)


@case("avg_pool1d", "avg_pool2d", "avg_pool3d", "avg_pool")
def _avg_pool(d: Draw, name: str) -> None:
    rank = _rank(name)
    x = _spatial(d, rank)
    size = tuple(d.integer(2, 3) for _ in range(rank))
    options = {"stride": d.integer(1, 3), "padding": d.integer(0, 1),
               "ceil_mode": d.pick((True, False)),
               "count_include_pad": d.pick((True, False))}  # fmt: skip
    theirs = getattr(F, f"avg_pool{rank}d")
    d.same(getattr(nd, name)(x.a, size, **options), theirs(x.t, size, **options), 2)


@case("max_pool1d", "max_pool2d", "max_pool3d", "max_pool")
def _max_pool(d: Draw, name: str) -> None:
    rank = _rank(name)
    x = _spatial(d, rank)
    size = tuple(d.integer(2, 3) for _ in range(rank))
    options = {"stride": d.integer(1, 3), "padding": d.integer(0, 1),
               "ceil_mode": d.pick((True, False)), "return_indices": True}  # fmt: skip
    theirs = getattr(F, f"max_pool{rank}d")
    d.same(getattr(nd, name)(x.a, size, **options), theirs(x.t, size, **options))


@case("lp_pool1d", "lp_pool2d", "lp_pool3d")
def _lp_pool(d: Draw, name: str) -> None:
    rank = _rank(name)
    x = d.array((2, 3, *(d.integer(4, 6) for _ in range(rank))), "float64")
    d.same(getattr(nd, name)(x.a, 2, 2), getattr(F, name)(x.t, 2, 2), 8)


@case()
def _avg_pool_gradient(d: Draw) -> None:
    x = d.array((2, 3, d.integer(4, 7), 5), "float64")
    leaf = x.t.clone().requires_grad_()
    options = {"stride": d.integer(1, 3), "padding": d.integer(0, 1)}
    out = F.avg_pool2d(leaf, (3, 2), **options)
    g = d.array(out.shape, "float64")
    out.backward(g.t)
    d.same(nd.avg_pool_gradient(g.a, x.n.shape[2:], (3, 2), **options), leaf.grad, 2)


@case("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
      "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")  # fmt: skip
def _adaptive(d: Draw, name: str) -> None:
    rank = _rank(name)
    x = d.array((2, 3, *(d.integer(1, 9) for _ in range(rank))), d.pick(FLOATS))
    size = tuple(d.integer(1, 6) for _ in range(rank))
    more = {"return_indices": True} if "max" in name else {}
    d.same(getattr(nd, name)(x.a, size, **more), getattr(F, name)(x.t, size, **more), 2)


@case()
def _adaptive_avg_pool_gradient(d: Draw) -> None:
    x = torch.zeros(2, 3, d.integer(3, 9), 7, dtype=torch.float64, requires_grad=True)
    out = F.adaptive_avg_pool2d(x, (d.integer(1, 5), 3))
    g = d.array(out.shape, "float64")
    out.backward(g.t)
    d.same(nd.adaptive_avg_pool_gradient(g.a, x.shape[2:]), x.grad, 2)


@case("fractional_max_pool2d", "fractional_max_pool3d")
def _fractional(d: Draw, name: str) -> None:
    rank = _rank(name)
    x = d.array((2, 3, *(d.integer(6, 9) for _ in range(rank))), "float64")
    samples = np.abs(d.numbers((2, 3, rank), "float64")) % 1
    got = getattr(nd, name)(x.a, 2, 3, return_indices=True, random_samples=nd.array(samples))
    theirs = getattr(F, f"{name}_with_indices")
    d.same(got, theirs(x.t, 2, 3, _random_samples=torch.from_numpy(samples)))


@case("max_unpool1d", "max_unpool2d", "max_unpool3d", "max_unpool", "put_at_positions")
def _unpool(d: Draw, name: str) -> None:
    rank = _rank(name)
    lengths = tuple(2 * d.integer(2, 3) for _ in range(rank))
    x = d.array((2, 3, *lengths))
    pooled, indices = getattr(F, f"max_pool{rank}d")(x.t, 2, return_indices=True)
    want = getattr(F, f"max_unpool{rank}d")(pooled, indices, 2)
    a, at = nd.array(pooled.numpy()), nd.array(indices.numpy())
    given = (lengths,) if name in ("max_unpool", "put_at_positions") else (2,)
    d.same(getattr(nd, name)(a, at, *given), want)


@case()
def _max_pool_gradient(d: Draw) -> None:
    x = d.array((2, 3, 7, 6)).t.clone().requires_grad_()
    kernel, stride = d.integer(2, 3), d.integer(1, 3)
    out, indices = F.max_pool2d(x, kernel, stride, 1, return_indices=True)
    g = d.array(out.shape)
    out.backward(g.t)
    at = nd.array(indices.numpy())
    d.same(nd.max_pool_gradient(g.a, at, (7, 6), kernel, stride, 1), x.grad, 2)


@case()
def _at_positions(d: Draw) -> None:
    x = d.array((2, 3, 4, 6))
    pooled, indices = F.max_pool2d(x.t, 2, return_indices=True)
    d.same(nd.at_positions(x.a, nd.array(indices.numpy()), 2), pooled)


@case()
def _local_response_norm(d: Draw) -> None:
    x = d.array((2, 5, 3, 3))
    d.same(nd.local_response_norm(x.a, 3), F.local_response_norm(x.t, 3), 2)


@case()
def _unfold(d: Draw) -> None:
    x = d.array((2, 3, d.integer(4, 6), 5))
    options = {"dilation": d.integer(1, 2), "padding": 1, "stride": d.integer(1, 2)}
    d.same(nd.unfold(x.a, (2, 3), **options), F.unfold(x.t, (2, 3), **options))


@case()
def _fold(d: Draw) -> None:
    options = {"dilation": d.integer(1, 2), "padding": 1, "stride": d.integer(1, 2)}
    columns = F.unfold(torch.zeros(2, 3, 5, 6), (2, 3), **options)
    x = d.array(columns.shape)
    d.same(nd.fold(x.a, (5, 6), (2, 3), **options), F.fold(x.t, (5, 6), (2, 3), **options), 2)


_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic", "area")


@case()
def _interpolate(d: Draw) -> None:
    for mode in _MODES:
        x = d.array((2, 3, d.integer(2, 6), d.integer(2, 6)), "float64")
        size = (d.integer(1, 9), d.integer(1, 9))
        corners = d.pick((True, False)) if mode.startswith("bi") else None
        options = {"size": size, "mode": mode, "align_corners": corners}
        d.same(nd.interpolate(x.a, **options), F.interpolate(x.t, **options), 8)


@case()
def _interpolate_gradient(d: Draw) -> None:
    for mode in _MODES:
        x = torch.zeros(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
        size = (d.integer(1, 9), d.integer(1, 9))
        out = F.interpolate(x, size, mode=mode)
        g = d.array(out.shape, "float64")
        out.backward(g.t)
        d.same(nd.interpolate_gradient(g.a, x.shape, size, mode=mode), x.grad, 8)


@case()
def _grid_sample(d: Draw) -> None:
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            x = d.array((2, 3, d.integer(2, 5), 4), "float64")
            grid = d.array((2, 3, d.integer(0, 4), 2), "float64")
            options = {"mode": mode, "padding_mode": padding,
                       "align_corners": d.pick((True, False))}  # fmt: skip
            d.same(nd.grid_sample(x.a, grid.a, **options), F.grid_sample(x.t, grid.t, **options), 8)


@case()
def _affine_grid(d: Draw) -> None:
    theta = d.array((2, 2, 3), "float64")
    corners = d.pick((True, False))
    d.same(nd.affine_grid(theta.a, (2, 1, 3, 4), corners),
           F.affine_grid(theta.t, (2, 1, 3, 4), corners), 4)  # fmt: skip
