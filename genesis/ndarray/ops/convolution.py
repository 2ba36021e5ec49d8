"""Convolutions over any number of spatial axes, transposed ones, and what gradients need of them.

A convolution is one contraction of the weights with the sliding windows of the padded input.
Padding is a mask and a window is index arithmetic, so the compiler sees an implicit matrix
multiplication. The gradient for the weights contracts the same windows over other axes.

A transposed convolution has no zeros between its input's elements either: outputs that are a
stride apart are made with the same weights, so the weights are cut into one set of taps for each
of these phases, all phases are one contraction over ordinary windows, and the phases are laid side
by side.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product as product_of
from operator import index as as_int

from genesis.ir.size import Dim, as_size, product
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast
from genesis.ndarray.ops import sliding_windows as sliding
from genesis.ndarray.ops.elementwise import common_dtype
from genesis.ndarray.ops.function_variants import of_ranks
from genesis.ndarray.ops.movement import flip, narrow, pad, reshape
from genesis.ndarray.ops.padding import pad as continued
from genesis.ndarray.ops.sliding_windows import PerAxis, Window, batched, pad_spatial

Edges = list[tuple[int, int]]

_MODES = ("reflect", "replicate", "circular")

#: The largest window of a depthwise convolution whose sum is written out.
STENCIL = 81


class _Form(threading.local):
    whole = False


_form = _Form()


@contextmanager
def whole_convolutions() -> Iterator[None]:
    """Have every convolution be one contraction: for whoever writes down what was computed."""
    before, _form.whole = _form.whole, True
    try:
        yield
    finally:
        _form.whole = before


def _conv(
    x: NDArray,
    weight: NDArray,
    bias: NDArray | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    *,
    rank: int | None = None,
    name: str = "convolution",
) -> NDArray:
    """The sum over every window of x times the weight ``(out, channels/groups, *window)``.

    x is ``(batch, channels, *spatial)``, or without the batch; a window lies over {axes}, those
    that the weight has. `padding` is a number of elements, "valid" for none, or "same" for an
    output as large as the input; `padding_mode` says what they are: "zeros", or "reflect",
    "replicate" or "circular" as in `pad`.

    >>> from genesis import ndarray as nd
    >>> x, w = nd.arange(5.0).reshape(1, 1, 5), nd.ones((1, 1, 3))
    >>> convolution(x, w, padding="same").tolist()
    [[[1.0, 3.0, 6.0, 9.0, 7.0]]]
    """
    rank = weight.ndim - 2 if rank is None else rank
    window, edges = _geometry(name, weight, rank, stride, padding, dilation)
    if padding_mode != "zeros":
        x, edges = _padded(name, x, edges, padding_mode), [(0, 0)] * rank
    channels = weight.shape[1]
    out = as_int(weight.shape[0])
    grouped, single = _per_group(name, x, weight, rank, groups, groups * channels)
    if out % groups:
        raise ValueError(f"{name}: {groups} groups do not divide the weight {weight.shape}")
    counts = sliding.window_counts(name, grouped.shape[3:], window, edges)
    padded = pad_spatial(grouped, edges)
    taps = reshape(weight, (groups, out // groups, channels, *window.size))
    stencil = out == groups > 1 and channels == 1 and product(window.size) <= STENCIL
    if stencil and not _form.whole:
        return _joined(_biased(name, _stencil(padded, taps, counts, window), bias), single)
    at, inside = _labels("o", rank), _labels("k", rank)
    total = _contracted(
        name, sliding.slide(padded, window), taps, ["n", "g", "c", *at, *inside],
        ["g", "m", "c", *inside], ["n", "g", "m", *at],
    )  # fmt: skip
    return _joined(_biased(name, total, bias), single)


conv1d, conv2d, conv3d = of_ranks(_conv, 1, 2, 3)
(convolution,) = of_ranks(_conv, None, name="convolution")


def _conv_transpose(
    x: NDArray,
    weight: NDArray,
    bias: NDArray | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
    *,
    rank: int | None = None,
    name: str = "convolution_transpose",
) -> NDArray:
    """The adjoint of a convolution over {axes} with the weight ``(channels, out/groups, *window)``.

    Every element of x adds its multiple of the weights to the output, a stride apart from its
    neighbour's; then `padding` elements are cut off at both ends, and `output_padding` fewer at
    the far one.

    >>> from genesis import ndarray as nd
    >>> x, w = nd.array([[[1.0, 2.0, 3.0]]]), nd.array([[[1.0, 0.5]]])
    >>> convolution_transpose(x, w, stride=2).tolist()
    [[[1.0, 0.5, 2.0, 1.0, 3.0, 1.5]]]
    """
    rank = weight.ndim - 2 if rank is None else rank
    window, _ = _geometry(name, weight, rank, stride, padding, dilation)
    _, step, apart, edge = window
    extra = sliding.per_axis(name, "output_padding", output_padding, rank)
    grouped, single = _per_group(name, x, weight, rank, groups, weight.shape[0])
    if any(not 0 <= e < max(s, d) for e, s, d in zip(extra, step, apart, strict=True)):
        raise ValueError(
            f"{name}: output_padding {extra} must be smaller than stride {step} or dilation {apart}"
        )
    lengths = [
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, k, s, d, p, e in zip(grouped.shape[3:], *window, extra, strict=True)
    ]
    if min(lengths) < 1:
        raise ValueError(
            f"{name}: input {x.shape}, weight {weight.shape} and padding {edge} leave "
            f"an output of spatial shape {tuple(lengths)}"
        )
    return _joined(_phases(name, grouped, weight, bias, lengths, window), single)


conv_transpose1d, conv_transpose2d, conv_transpose3d = of_ranks(_conv_transpose, 1, 2, 3)
(convolution_transpose,) = of_ranks(_conv_transpose, None, name="convolution_transpose")


# ---- gradients


def convolution_input_gradient(
    gradient: NDArray,
    weight: NDArray,
    shape: Sequence[Dim],
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> NDArray:
    """The gradient of a convolution for its input, of the given shape."""
    name = "convolution_input_gradient"
    rank = weight.ndim - 2
    window, edges = _geometry(name, weight, rank, stride, padding, dilation)
    if len(shape) != gradient.ndim:
        raise ValueError(f"{name}: a gradient of {gradient.shape} for an input of {tuple(shape)}")
    lengths = [as_size(n) for n in shape[len(shape) - rank :]]
    grouped, single = _per_group(name, gradient, weight, rank, groups, weight.shape[0])
    counts = sliding.window_counts(name, lengths, window, edges)
    if grouped.shape[3:] != counts:
        raise ValueError(
            f"{name}: an input of {tuple(shape)} and a weight of {weight.shape} give "
            f"spatial shape {counts}, not that of the gradient {gradient.shape}"
        )
    return _joined(_phases(name, grouped, weight, None, lengths, window), single)


def convolution_weight_gradient(
    gradient: NDArray,
    x: NDArray,
    shape: Sequence[Dim],
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> NDArray:
    """The gradient of a convolution for its weight, of the given shape."""
    name = "convolution_weight_gradient"
    rank, size = len(shape) - 2, [as_int(n) for n in shape[2:]]
    window, edges = _window(name, rank, size, stride, padding, dilation)
    out, channels = as_int(shape[0]), as_int(shape[1])
    x, _ = batched(name, x, rank)
    gradient, _ = batched(name, gradient, rank)
    counts = sliding.window_counts(name, x.shape[2:], window, edges)
    if x.shape[1] != groups * channels or gradient.shape != (x.shape[0], out, *counts):
        raise ValueError(
            f"{name}: input {x.shape}, {groups} groups and a weight of {tuple(shape)} do not "
            f"give the gradient's shape {gradient.shape}"
        )
    grouped = reshape(x, (x.shape[0], groups, channels, *x.shape[2:]))
    seen = sliding.slide(pad_spatial(grouped, edges), window)
    shares = reshape(gradient, (x.shape[0], groups, out // groups, *counts))
    at, inside = _labels("o", rank), _labels("k", rank)
    total = _contracted(
        name, shares, seen, ["n", "g", "m", *at], ["n", "g", "c", *at, *inside],
        ["g", "m", "c", *inside],
    )  # fmt: skip
    return reshape(total, tuple(shape))


# ---- parts of both directions


def _geometry(
    name: str,
    weight: NDArray,
    rank: int,
    stride: PerAxis,
    padding: PerAxis | str,
    dilation: PerAxis,
) -> tuple[Window, Edges]:
    """The windows of a weight, and the zeros around the input."""
    if rank < 1 or weight.ndim != rank + 2:
        raise ValueError(
            f"{name}: the weight needs two axes for channels and {max(rank, 1)} spatial, "
            f"got shape {weight.shape}"
        )
    size = [as_int(n) for n in weight.shape[2:]]
    return _window(name, rank, size, stride, padding, dilation)


def _window(
    name: str,
    rank: int,
    size: Sequence[int],
    stride: PerAxis,
    padding: PerAxis | str,
    dilation: PerAxis,
) -> tuple[Window, Edges]:
    numbers = 0 if isinstance(padding, str) else padding
    window = sliding.parameters(name, rank, size, stride, dilation, numbers)
    if padding == "same":
        if any(s != 1 for s in window.stride):
            raise ValueError(f"{name}: padding 'same' needs stride 1, not {window.stride}")
        spare = [d * (k - 1) for d, k in zip(window.dilation, size, strict=True)]
        window = window._replace(padding=tuple(n // 2 for n in spare))
        return window, [(n // 2, n - n // 2) for n in spare]
    if isinstance(padding, str) and padding != "valid":
        raise ValueError(f"{name}: padding is a number, 'same' or 'valid', not {padding!r}")
    return window, window.edges


def _padded(name: str, x: NDArray, edges: Edges, mode: str) -> NDArray:
    """`x` continued beyond its edges by its own elements."""
    if mode not in _MODES:
        raise ValueError(f"{name}: padding_mode is 'zeros' or one of {_MODES}, not {mode!r}")
    batched(name, x, len(edges))
    try:
        return continued(x, [(0, 0)] * (x.ndim - len(edges)) + edges, mode=mode)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _stencil(x: NDArray, taps: NDArray, counts: Sequence[Dim], window: Window) -> NDArray:
    """A depthwise convolution: its sums are short, and written out need no loop.

    There is nothing to multiply as matrices. Measured for 3x3 this takes 0.4 of the time of the
    contraction, which is one long chain of additions.
    """
    dtype = common_dtype((x, taps))
    x, taps = x.astype(dtype.accumulator), taps.astype(dtype.accumulator)
    total: NDArray | None = None
    for at in product_of(*map(range, window.size)):
        part, tap = x, taps
        for d, k in enumerate(at):
            part = narrow(part, 3 + d, k * window.dilation[d], counts[d], window.stride[d])
            tap = narrow(tap, 3 + d, k, 1)
        term = part * tap[:, :, 0]
        total = term if total is None else total + term
    assert total is not None
    return total.astype(dtype)


def _per_group(
    name: str, x: NDArray, weight: NDArray, rank: int, groups: int, channels: Dim
) -> tuple[NDArray, bool]:
    """`x` as (batch, group, channels of the group, *spatial), and whether the batch is new."""
    batch, single = batched(name, x, rank)
    if groups < 1 or batch.shape[1] != channels or as_int(channels) % groups:
        raise ValueError(
            f"{name}: {groups} groups and a weight of {weight.shape} need {channels} channels, "
            f"in as many equal groups; the input has shape {x.shape}"
        )
    each = as_int(channels) // groups
    return reshape(batch, (batch.shape[0], groups, each, *batch.shape[2:])), single


def _labels(letter: str, rank: int) -> list[str]:
    return [f"{letter}{d}" for d in range(rank)]


def _contracted(
    name: str, x: NDArray, y: NDArray, lhs: list[str], rhs: list[str], out: list[str]
) -> NDArray:
    dtype = common_dtype((x, y))
    if dtype.kind == "bool" or x.device is not y.device:
        raise TypeError(
            f"{name}: needs numbers on one device, not {x.dtype} on {x.device} and {y.dtype} on "
            f"{y.device}; use .astype or .to first"
        )
    return wrap(primitive.contract(cast(x.value, dtype), cast(y.value, dtype), lhs, rhs, out))


def _biased(name: str, total: NDArray, bias: NDArray | None) -> NDArray:
    """A result (batch, group, channels of the group, ..) with its bias.

    It is added while groups and phases are apart, where the contraction does it before it stores.
    """
    if bias is None:
        return total
    out = product(total.shape[1:3])
    if bias.shape != (out,):
        raise ValueError(f"{name}: the bias needs shape ({out},), not {bias.shape}")
    return total + reshape(bias, (*total.shape[1:3], *(1,) * (total.ndim - 3)))


def _joined(total: NDArray, single: bool) -> NDArray:
    """A result (batch, group, channels of the group, *spatial) without groups, or batch if new."""
    batch, groups, each, *spatial = total.shape
    return reshape(total, (*(() if single else (batch,)), groups * each, *spatial))


def _phases(
    name: str,
    x: NDArray,
    weight: NDArray,
    bias: NDArray | None,
    lengths: Sequence[Dim],
    window: Window,
) -> NDArray:
    """The adjoint of a convolution, cut to `lengths` after the padding of every axis.

    Output h with h + padding = stride*j + r is the sum over q of ``x[j - q]`` times weight element
    stride*q + r. Zeros before the weights count as padding: where they fit, so many that phases
    begin with the output. At stride 1 there is one phase, and dilation stays in the windows.
    """
    rank, stride = len(lengths), window.stride
    taps = reshape(weight, (*x.shape[1:3], *weight.shape[1:]))
    edges: list[tuple[Dim, Dim]] = []
    counts, steps, firsts = [], [], []
    for d, (s, apart, p, n) in enumerate(zip(*window[1:], lengths, strict=True)):
        taps, count, lead = _cut(taps, 3 + 2 * d, s, apart if s > 1 else 1, -p % s)
        step = apart if s == 1 else 1
        reach = step * (count - 1)
        before, first = divmod(p + lead, s)
        low = reach - before
        blocks = (first + n - 1) // s + 1
        edges.append((low, blocks + reach - x.shape[3 + d] - low))
        counts.append(count)
        steps.append(step)
        firsts.append(first)
    padded = pad_spatial(x, edges)
    ones = (1,) * rank
    shifts = Window(tuple(counts), ones, tuple(steps), (0,) * rank)
    depthwise = x.shape[1] > 1 and taps.shape[1:3] == (1, 1)
    if depthwise and stride == ones and product(counts) <= STENCIL:  # one phase, of few taps
        taps = reshape(taps, (*taps.shape[:3], *counts))
        return _biased(name, _stencil(padded, taps, lengths, shifts), bias)
    seen = sliding.slide(padded, shifts)
    at, inside, phase = _labels("j", rank), _labels("q", rank), _labels("r", rank)
    mixed = [label for pair in zip(inside, phase, strict=True) for label in pair]
    side = [label for pair in zip(at, phase, strict=True) for label in pair]
    total = _contracted(
        name, seen, taps, ["n", "g", "c", *at, *inside],
        ["g", "c", "m", *mixed], ["n", "g", "m", *side],
    )  # fmt: skip
    # Phases without weights are zeros.
    missing = [(0, 0)] * 3
    for d in range(rank):
        missing += [(0, 0), (0, stride[d] - as_int(total.shape[4 + 2 * d]))]
    total = _biased(name, pad(total, missing), bias)
    laid = [total.shape[3 + 2 * d] * stride[d] for d in range(rank)]
    total = reshape(total, (*total.shape[:3], *laid))
    for d, (first, n) in enumerate(zip(firsts, lengths, strict=True)):
        if (first, n) != (0, laid[d]):
            total = narrow(total, 3 + d, first, n)
    return total


def _cut(
    taps: NDArray, axis: int, stride: int, dilation: int, lead: int
) -> tuple[NDArray, int, int]:
    """A window axis as (taps, last first; phase), the number of taps, and the zeros before them.

    Those are `lead`, if they fit without another tap.
    """
    size = (as_int(taps.shape[axis]) - 1) * dilation + 1
    count = -(-size // stride)
    phases = min(stride, size)
    if size + lead > count * phases:
        lead = 0
    widths = [(0, 0)] * taps.ndim
    widths[axis] = (lead, count * phases - size - lead)
    steps = [dilation if d == axis else 1 for d in range(taps.ndim)]
    taps = pad(taps, widths, steps=steps)
    taps = reshape(taps, (*taps.shape[:axis], count, phases, *taps.shape[axis + 1 :]))
    return flip(taps, axis), count, lead


__all__ = [
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "convolution_input_gradient", "convolution_transpose",
    "convolution_weight_gradient",
]  # fmt: skip
