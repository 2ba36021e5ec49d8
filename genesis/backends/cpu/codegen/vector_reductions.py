"""Combining tiles along an axis: reductions and scans of vectors, in a fixed order.

A *state* is the tuple of values a merge combines; `combine(left, right)` emits one merge of two
states of equal width. Plain folds commute, so vectors combine lane by lane first and the lanes of
the one that is left by halves. Any other merge keeps the order of its operands: neighbouring lanes
are brought face to face by shuffles, at the same number of merges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genesis.backends.cpu.codegen.emit import LLVMValue

State = tuple[LLVMValue, ...]
Combine = Callable[[State, State], State]


def reduce_commutative(parts: Sequence[State], combine: Combine) -> State:
    """One scalar state from parts of descending widths, in any order."""
    by_width: dict[int, list[State]] = {}
    for part in parts:
        by_width.setdefault(part[0].width, []).append(part)
    total: State | None = None
    width = max(by_width)
    while True:
        here = by_width.get(width, [])
        if total is not None:
            here = [total, *here]
        if here:
            total = pairwise(here, combine)
        if width == 0:
            assert total is not None
            return total
        if total is not None:
            total = combine(*_split(total, range(width // 2), range(width // 2, width)))
        width = width // 2 if width > 2 else 0


def reduce_ordered(parts: Sequence[State], combine: Combine) -> State:
    """One scalar state from consecutive parts of any widths, keeping the operands' order."""
    parts = list(parts)
    while len(parts) > 1 or parts[0][0].width:
        merged: list[State] = []
        k = 0
        while k < len(parts):
            width = parts[k][0].width
            if k + 1 < len(parts) and parts[k + 1][0].width == width:
                merged.append(_neighbours(parts[k], parts[k + 1], combine))
                k += 2
            else:
                # A part on its own halves; a scalar waits for the others.
                evens_odds = width and _split(parts[k], range(0, width, 2), range(1, width, 2))
                merged.append(combine(*evens_odds) if evens_odds else parts[k])
                k += 1
        parts = merged
    return parts[0]


def pairwise(states: Sequence[State], combine: Combine) -> State:
    """Fold states of one width as a balanced tree."""
    states = list(states)
    while len(states) > 1:
        pairs = [combine(a, b) for a, b in zip(states[::2], states[1::2], strict=False)]
        states = pairs + states[2 * len(pairs) :]
    return states[0]


def scan_lanes(state: State, combine: Combine) -> State:
    """Inclusive prefix combination of the lanes of one vector state, in log2(width) steps."""
    width = state[0].width
    distance = 1
    while distance < width:
        # Lanes without a predecessor combine with the first, harmlessly, and keep their value.
        shifted = [max(k - distance, 0) for k in range(width)]
        merged = combine(tuple(v.shuffle(None, shifted) for v in state), state)
        lanes = ", ".join(f"i1 {'true' if k >= distance else 'false'}" for k in range(width))
        has = LLVMValue(state[0].out, f"<{lanes}>", "i1", width)
        state = tuple(has.select(m, v) for m, v in zip(merged, state, strict=True))
        distance *= 2
    return state


def last_lane(state: State) -> State:
    """The last lane of a state, as scalars."""
    return tuple(v.lane(v.width - 1) if v.width else v for v in state)


def _neighbours(a: State, b: State, combine: Combine) -> State:
    """Combine each even lane of ``a ++ b`` with the odd lane after it."""
    width = a[0].width
    if not width:
        return combine(a, b)
    evens, odds = range(0, 2 * width, 2), range(1, 2 * width, 2)
    left = tuple(x.shuffle(y, evens) for x, y in zip(a, b, strict=True))
    right = tuple(x.shuffle(y, odds) for x, y in zip(a, b, strict=True))
    return combine(left, right)


def _split(state: State, first: Sequence[int], second: Sequence[int]) -> tuple[State, State]:
    return tuple(v.shuffle(None, first) for v in state), tuple(
        v.shuffle(None, second) for v in state
    )
