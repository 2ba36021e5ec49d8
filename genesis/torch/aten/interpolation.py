"""Resampling images, and sampling them where a grid says.

PyTorch has an operator for each mode, number of dimensions and direction; all of them are
`interpolate` or its transpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

from genesis import functional
from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.torch.aten.backward import gradients
from genesis.torch.aten.registry import Unsupported, implements

#: Of every family of operators: the mode, the numbers of dimensions, and whether it is smoothed.
_FAMILIES = {
    "upsample_nearest": ("nearest", (1, 2, 3), False),
    "_upsample_nearest_exact": ("nearest-exact", (1, 2, 3), False),
    "upsample_linear": ("linear", (1,), False),
    "upsample_bilinear": ("bilinear", (2,), False),
    "upsample_trilinear": ("trilinear", (3,), False),
    "upsample_bicubic": ("bicubic", (2,), False),
    "_upsample_bilinear2d_aa": ("bilinear", (2,), True),
    "_upsample_bicubic2d_aa": ("bicubic", (2,), True),
}


def _how(
    mode: str,
    antialias: bool,
    lengths: Sequence[int],
    sizes: Sequence[int] | None,
    align_corners: bool | None,
    scales: Sequence[float | None],
) -> dict[str, Any]:
    """How to interpolate: to a size, or by scales that lead to it."""
    how = {"mode": mode, "align_corners": align_corners, "antialias": antialias}
    factors = [f for f in scales if f]
    if not factors or (sizes is not None and align_corners):
        return {"size": sizes, **how}
    if len(factors) < len(lengths):
        raise Unsupported("scales for some dimensions only")
    led = [math.floor(n * f) for n, f in zip(lengths, factors, strict=True)]
    if sizes is not None and led != list(sizes):
        raise Unsupported(f"scales {factors} of {lengths} that do not lead to {sizes}")
    return {"scale_factor": factors, **how}


def _rest(smooth: bool, rest: Sequence[Any], named: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Whether corners are aligned, and the scales, from what comes after the sizes."""
    listed = [*rest, *named.values()]
    return (listed[0], listed[1:]) if smooth else (None, listed)


def _forward(mode: str, antialias: bool, by_list: bool) -> Callable[..., NDArray]:
    """``(x, sizes, [align_corners,] *scales)``, or with a list of scales, either of them None."""
    smooth = not mode.startswith("nearest")

    def forward(x: NDArray, output_size: Sequence[Any] | None, *rest: Any, **named: Any) -> NDArray:
        if smooth and not x.dtype.is_float:
            raise Unsupported(f"{mode} interpolation of {x.dtype}")
        align_corners, scales = _rest(smooth, rest, named)
        if by_list:
            scales = scales[0] if scales and scales[0] is not None else []
        lengths = list(map(index, x.shape[2:]))
        sizes = None if output_size is None else list(map(index, output_size))
        return nd.interpolate(x, **_how(mode, antialias, lengths, sizes, align_corners, scales))

    return forward


def _backward(mode: str, antialias: bool) -> Callable[..., NDArray]:
    smooth = not mode.startswith("nearest")

    def backward(grad: NDArray, after: Any, before: Any, *rest: Any, **named: Any) -> NDArray:
        align_corners, scales = _rest(smooth, rest, named)
        shape, sizes = list(map(index, before)), list(map(index, after))
        how = _how(mode, antialias, shape[2:], sizes, align_corners, scales)
        return nd.interpolate_gradient(grad, shape, **how)

    return backward


for _family, (_mode, _ranks, _antialias) in _FAMILIES.items():
    for _rank in _ranks:
        _name = _family if _antialias else f"{_family}{_rank}d"
        implements(_name)(_forward(_mode, _antialias, False))
        implements(f"{_name}.vec")(_forward(_mode, _antialias, True))
        implements(f"{_name}_backward")(_backward(_mode, _antialias))


# ---- samples where a grid says

_MODES = ("bilinear", "nearest", "bicubic")
_PADDING = ("zeros", "border", "reflection")


@implements("grid_sampler_2d", "grid_sampler_3d", "grid_sampler", "_grid_sampler_2d_cpu_fallback")
def _grid_sampler(
    x: NDArray, grid: NDArray, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> NDArray:
    how = _MODES[interpolation_mode], _PADDING[padding_mode], align_corners
    return nd.grid_sample(x, grid, *how)


@implements("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_sampler_backward(
    grad: NDArray, x: NDArray, grid: NDArray, *given: Any
) -> tuple[NDArray | None, ...]:
    mode, padding_mode, align_corners, output_mask = given
    how = _MODES[mode], _PADDING[padding_mode], align_corners
    found = gradients(functional.grid_sample, grad, [x, grid], *how)
    return tuple(f if wanted else None for f, wanted in zip(found, output_mask, strict=True))


@implements("affine_grid_generator")
def _affine_grid(theta: NDArray, size: Sequence[Any], align_corners: bool) -> NDArray:
    return nd.affine_grid(theta, list(map(index, size)), align_corners)


@implements("affine_grid_generator_backward")
def _affine_grid_backward(grad: NDArray, size: Sequence[Any], align_corners: bool) -> NDArray:
    rank, sizes = len(size) - 2, list(map(index, size))
    maps = nd.zeros((sizes[0], rank, rank + 1), grad.dtype, grad.device)
    found: NDArray = gradients(functional.affine_grid, grad, [maps], sizes, align_corners)[0]
    return found
