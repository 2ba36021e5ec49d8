"""Operators that multiply and sum: matrices and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import functional as fn
from genesis.onnx.registry import Operand, operator
from genesis.onnx.values import as_tensor

operator("MatMul")(lambda a, b: fn.matmul(a, b))


@operator("Gemm")
def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
    transB: int = 0, broadcast: int = 0,
) -> Any:  # fmt: skip
    """alpha A B + beta C."""
    product = fn.matmul(fn.t(a) if transA else a, fn.t(b) if transB else b)
    if alpha != 1:
        product = product * _number(alpha, product)
    if c is None or beta == 0:
        return product
    return product + (c if beta == 1 else c * _number(beta, c))


def _number(value: float, like: Any) -> Any:
    return value if like.dtype.is_float else int(value)


@operator("Einsum")
def einsum(*operands: Any, equation: str) -> Any:
    """A sum of products, by the letters of axes."""
    return fn.einsum(equation.replace(" ", ""), *operands)


def windows(
    shape: Sequence[Any], kernel: Sequence[int], strides: Sequence[int] | None,
    dilations: Sequence[int] | None, pads: Sequence[int] | None, auto_pad: str,
) -> tuple[list[int], list[int], list[tuple[Any, Any]]]:  # fmt: skip
    """Strides, dilations and the padding at both ends of each of the last axes."""
    rank = len(kernel)
    steps, gaps = list(strides or [1] * rank), list(dilations or [1] * rank)
    if auto_pad in ("NOTSET", "", "VALID"):
        ends = list(pads) if pads and auto_pad != "VALID" else [0] * (2 * rank)
        return steps, gaps, [(ends[k], ends[k + rank]) for k in range(rank)]
    found = []
    for n, size, step, gap in zip(shape[-rank:], kernel, steps, gaps, strict=True):
        length = int(n)
        total = max((-(-length // step) - 1) * step + (size - 1) * gap + 1 - length, 0)
        less, more = total // 2, total - total // 2
        found.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return steps, gaps, found


def padded(x: Any, ends: Sequence[tuple[Any, Any]], value: float = 0) -> Any:
    """The last axes continued on both sides."""
    flat = [n for pair in reversed(ends) for n in pair]
    return fn.pad(x, flat, value=value) if any(n != 0 for n in flat) else x


@operator("Conv")
def conv(
    x: Any, w: Any, b: Any = None, *, kernel_shape: Any = None, strides: Any = None,
    dilations: Any = None, pads: Any = None, group: int = 1, auto_pad: str = "NOTSET",
) -> Any:  # fmt: skip
    """A convolution along one, two or three axes."""
    rank = x.ndim - 2
    steps, gaps, ends = windows(x.shape, list(w.shape[2:]), strides, dilations, pads, auto_pad)
    if any(before != after for before, after in ends):
        x, ends = padded(x, ends), [(0, 0)] * rank
    function = (fn.conv1d, fn.conv2d, fn.conv3d)[_rank(rank) - 1]
    return function(x, w, b, steps, [before for before, _ in ends], gaps, group)


def _rank(rank: int) -> int:
    if not 1 <= rank <= 3:
        raise NotImplementedError(f"windows along {rank} axes; 1 to 3 are supported")
    return rank


@operator("ConvTranspose")
def conv_transpose(
    x: Any, w: Any, b: Any = None, *, kernel_shape: Any = None, strides: Any = None,
    dilations: Any = None, pads: Any = None, group: int = 1, auto_pad: str = "NOTSET",
    output_padding: Any = None, output_shape: Any = None,
) -> Any:  # fmt: skip
    """The transpose of a convolution."""
    rank = _rank(x.ndim - 2)
    kernel = list(w.shape[2:])
    steps, gaps, ends = windows(x.shape, kernel, strides, dilations, pads, "NOTSET")
    more = list(output_padding or [0] * rank)
    whole = [
        s * (n - 1) + m + (k - 1) * g + 1
        for s, n, m, k, g in zip(steps, x.shape[2:], more, kernel, gaps, strict=True)
    ]
    wanted = list(output_shape or ())[-rank:]
    if not wanted and auto_pad.startswith("SAME"):
        wanted = [n * s for n, s in zip(x.shape[2:], steps, strict=True)]
    if wanted:
        cut = [max(n - m, 0) for n, m in zip(whole, wanted, strict=True)]
        ends = [
            (c - c // 2, c // 2) if auto_pad != "SAME_UPPER" else (c // 2, c - c // 2) for c in cut
        ]
        more = [m + max(want - n, 0) for m, n, want in zip(more, whole, wanted, strict=True)]
    return _transposed(x, w, b, steps, gaps, ends, more, group)


def _transposed(
    x: Any, w: Any, b: Any, steps: list[int], gaps: list[int], ends: Any, more: Any, group: int
) -> Any:
    rank = len(steps)
    function = (fn.conv_transpose1d, fn.conv_transpose2d, fn.conv_transpose3d)[rank - 1]
    y = function(x, w, None, steps, 0, 0, group, gaps)
    y = padded(y, [(0, m) for m in more])
    for k, (before, after) in enumerate(ends):
        if before or after:
            y = fn.narrow(y, 2 + k, before, y.shape[2 + k] - before - after)
    return y if b is None else y + b.reshape(1, -1, *(1,) * rank)


@operator("DeformConv")
def deform_conv(
    x: Any, w: Any, offset: Any, b: Any = None, mask: Any = None, *, kernel_shape: Any = None,
    strides: Any = None, dilations: Any = None, pads: Any = None, group: int = 1,
    offset_group: int = 1,
) -> Any:  # fmt: skip
    """A convolution whose taps are moved by offsets, and read between pixels."""
    from genesis import arange

    n, channels, height, width = x.shape
    kh, kw = w.shape[2:]
    (sy, sx), (dy, dx), ((top, _), (left, _)) = windows(
        x.shape, (kh, kw), strides, dilations, pads, "NOTSET"
    )
    oh, ow = offset.shape[2:]
    moved = offset.reshape(n, offset_group, kh * kw, 2, oh, ow)
    taps_y = (arange(kh * kw) // kw * dy).reshape(1, 1, -1, 1, 1)
    taps_x = (arange(kh * kw) % kw * dx).reshape(1, 1, -1, 1, 1)
    y = moved[:, :, :, 0] + (arange(oh) * sy - top).reshape(-1, 1) + taps_y
    z = moved[:, :, :, 1] + (arange(ow) * sx - left) + taps_x
    image = x.reshape(n * offset_group, channels // offset_group, height, width)
    grid = fn.stack([2 * z / (width - 1) - 1, 2 * y / (height - 1) - 1], -1)
    grid = grid.reshape(n * offset_group, kh * kw * oh, ow, 2).to(x.dtype)
    taken = fn.grid_sample(image, grid, align_corners=True)
    taken = taken.reshape(n, offset_group, channels // offset_group, kh * kw, oh, ow)
    if mask is not None:
        taken = taken * mask.reshape(n, offset_group, 1, kh * kw, oh, ow)
    columns = taken.reshape(n, group, channels // group * kh * kw, oh * ow)
    filters = w.reshape(group, w.shape[0] // group, -1)
    result = fn.matmul(filters, columns).reshape(n, w.shape[0], oh, ow)
    return result if b is None else result + b.reshape(1, -1, 1, 1)


@operator("Col2Im")
def col2im(
    x: Any, image_shape: Operand, block_shape: Operand, *, dilations: Any = None, pads: Any = None,
    strides: Any = None,
) -> Any:  # fmt: skip
    """Windows added up where they lie in an image of any rank."""
    from genesis import arange, zeros

    image, block = [int(n) for n in _known(image_shape)], [int(n) for n in _known(block_shape)]
    steps, gaps, ends = windows(image, block, strides, dilations, pads, "NOTSET")
    whole = [n + a + b for n, (a, b) in zip(image, ends, strict=True)]
    counts = [
        (n - (k - 1) * g - 1) // s + 1 for n, k, g, s in zip(whole, block, gaps, steps, strict=True)
    ]
    place: Any = 0
    rank = len(image)
    for a in range(rank):
        taps = (arange(block[a]) * gaps[a]).reshape(*_only(a, 2 * rank, block[a]))
        starts = (arange(counts[a]) * steps[a]).reshape(*_only(rank + a, 2 * rank, counts[a]))
        place = place * whole[a] + (taps + starts)
    n, channels = x.shape[0], x.shape[1] // _total(block)
    values = x.reshape(n, channels, -1)
    places = place.reshape(1, 1, -1).expand(tuple(values.shape))
    total = zeros(n, channels, _total(whole), dtype=x.dtype)
    y = fn.scatter_add(total, 2, places, values).reshape(n, channels, *whole)
    for a, (before, _) in enumerate(ends):
        y = fn.narrow(y, 2 + a, before, image[a])
    return y


def _known(x: Any) -> Any:
    from genesis.onnx.values import as_host

    return as_host(x).reshape(-1)


def _only(axis: int, rank: int, extent: int) -> list[int]:
    return [extent if k == axis else 1 for k in range(rank)]


def _total(extents: Sequence[int]) -> int:
    total = 1
    for n in extents:
        total *= n
    return total


__all__ = ["as_tensor", "padded", "windows"]
