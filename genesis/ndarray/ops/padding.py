"""Padding: what lies beyond the edges of an array.

A constant is a mask. The other modes read elements of the array again: the position beyond the
edge is mapped back inside by arithmetic (mirrored, clamped, taken modulo), and all padded axes
together are one gather.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genesis.ir.dtype import Scalar
from genesis.ir.size import Dim
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops import movement
from genesis.ndarray.ops.elementwise import abs, clip
from genesis.ndarray.ops.movement import flip, narrow
from genesis.ndarray.ops.sliding_windows import counting, number, pick, spread


def pad(
    x: NDArray,
    widths: Sequence[tuple[int, int]],
    value: Scalar = 0,
    steps: Sequence[int] | None = None,
    mode: str = "constant",
) -> NDArray:
    """More elements around x: (before, after) for every axis, negative to cut off.

    `mode` says what they are: "constant" is `value`, "reflect" mirrors at the edge elements,
    "replicate" repeats them, "circular" starts again from the other end. `steps` above 1 also put
    ``step - 1`` copies of the value between neighbours.

    >>> from genesis import ndarray as nd
    >>> nd.pad(nd.arange(4), [(2, 1)], mode="reflect").tolist()
    [2, 1, 0, 1, 2, 3, 2]
    """
    if mode == "constant":
        return movement.pad(x, widths, value, steps)
    if mode not in _INSIDE:
        raise ValueError(f"pad: no mode {mode!r}; there are constant, {', '.join(_INSIDE)}")
    if len(widths) != x.ndim or steps is not None:
        raise ValueError(
            f"pad: mode {mode!r} needs widths for the {x.ndim} axes of {x.shape}, and no steps"
        )
    for a, (low, high) in enumerate(widths):
        if low < 0 or high < 0:
            rest = x.shape[a] + min(low, 0) + min(high, 0)
            if rest < 0:
                raise ValueError(f"pad: {tuple(widths)} cut more off than shape {x.shape} has")
            x = narrow(x, a, max(-low, 0), rest)
    first = next((a for a, edge in enumerate(widths) if max(edge) > 0), x.ndim)
    if first == x.ndim:
        return x
    positions = []
    for a in range(first, x.ndim):
        low, high = (max(width, 0) for width in widths[a])
        n = x.shape[a]
        at = counting(low + n + high, x)
        if low or high:
            if _reach(mode, n) < max(low, high):
                raise ValueError(
                    f"pad: mode {mode!r} cannot add {(low, high)} to axis {a} of shape {x.shape}: "
                    f"at most {_reach(mode, n)}"
                )
            at = _INSIDE[mode](at - number(low, x), n)
        positions.append(spread(at, a - first, x.ndim - first))
    return pick(x, positions)


def pad_gradient(
    gradient: NDArray, widths: Sequence[tuple[int, int]], mode: str = "constant"
) -> NDArray:
    """The gradient of `pad` for its input: what lies beyond an edge goes where it came from."""
    if mode != "constant":
        for a, (low, high) in enumerate((max(b, 0), max(e, 0)) for b, e in widths):
            if not (low or high):
                continue
            n = gradient.shape[a] - low - high
            total = narrow(gradient, a, low, n)
            for start, size, before in ((0, low, True), (low + n, high, False)):
                if size:
                    part = narrow(gradient, a, start, size)
                    place: Dim = n - size if before else 0  # circular: at the other end
                    if mode == "reflect":
                        part = flip(part, a)
                        place = 1 if before else n - 1 - size
                    elif mode == "replicate":
                        part = part.sum(a, keepdims=True)
                        place = 0 if before else n - 1
                    room: list[tuple[Dim, Dim]] = [(0, 0)] * part.ndim
                    room[a] = place, n - place - part.shape[a]
                    total = total + movement.pad(part, room)
            gradient = total
        widths = [(min(low, 0), min(high, 0)) for low, high in widths]
    return movement.pad(gradient, [(-low, -high) for low, high in widths])


def _reach(mode: str, n: Dim) -> Dim:
    """How many elements an axis of n can be padded by; nothing can be made of nothing."""
    return {"reflect": max(n - 1, 0), "circular": n}.get(mode, 0 if n == 0 else 1 << 31)


def _reflect(at: NDArray, n: Dim) -> NDArray:
    last = number(n - 1, at)
    return last - abs(last - abs(at))


def _replicate(at: NDArray, n: Dim) -> NDArray:
    return clip(at, number(0, at), number(n - 1, at))


def _circular(at: NDArray, n: Dim) -> NDArray:
    return at % number(n, at)


_INSIDE: dict[str, Callable[[NDArray, Dim], NDArray]] = {
    "reflect": _reflect,
    "replicate": _replicate,
    "circular": _circular,
}


__all__ = ["pad", "pad_gradient"]
