"""Control flow, sequences and optional values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from genesis import functional as fn
from genesis import scan as repeat
from genesis.ndarray.core.value import CaptureError
from genesis.onnx.dtypes import numpy_dtype
from genesis.onnx.registry import Host, Operand, operator
from genesis.onnx.values import as_host, as_tensor, ints, on_host
from genesis.tensor.tensor import Tensor

Body = Callable[..., list[Any]]

_MOST_ROUNDS = 100_000  # of a loop, each of which is built by itself
_TRIED = 2  # rounds of a loop that may become a loop of a program
_MOST_UNROLLED = 500  # steps of all rounds of a loop that is part of a program


@operator("If")
def if_(condition: Host, *, then_branch: Body, else_branch: Body, any_rank: bool = False) -> Any:
    """One of two subgraphs."""
    if condition.size != 1:
        raise ValueError(f"the condition has shape {condition.shape}, not one element")
    return tuple((then_branch if bool(condition.reshape(())) else else_branch)())


def either(condition: Any, *, then_branch: Body, else_branch: Body, any_rank: bool = False) -> Any:
    """What `if_` gives where the condition is not known yet: both are computed, one is taken.

    With `any_rank` nobody asks whether one element is a scalar or a list of one.
    """
    pairs = list(zip(map(as_tensor, then_branch()), map(as_tensor, else_branch()), strict=True))
    if any_rank and all(x.numel() == 1 for pair in pairs for x in pair):
        pairs = [(a.reshape(1), b.reshape(1)) for a, b in pairs]
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs):
        raise CaptureError("If: results of two shapes")
    return tuple(fn.where(condition.reshape(()), a, b) for a, b in pairs)


@operator("Loop")
def loop(count: Host = None, condition: Host = None, *carried: Operand, body: Body) -> Any:
    """A subgraph repeated, so many times or while a condition holds."""
    limit = _MOST_ROUNDS if count is None else int(count.reshape(()))
    if count is not None and condition is None and limit > _MOST_ROUNDS:
        raise ValueError(f"a loop of {limit} rounds; {_MOST_ROUNDS} are supported")
    going = True if condition is None else bool(condition.reshape(()))
    unrolled = _MOST_UNROLLED // max(1, body.steps)  # type: ignore[attr-defined]
    if body.recorded and going and limit > unrolled:  # type: ignore[attr-defined]
        few = _rounds(min(limit, _TRIED), carried, body)
        if len(few) > _TRIED:  # whether it can be is known before all rounds are looked through
            _repeated(few, carried, body)
        rounds = _rounds(limit, carried, body)
        if len(rounds) - 1 > unrolled:
            return _repeated(rounds, carried, body)
    state = list(carried)
    rows: list[list[Any]] | None = None
    step = 0
    while going and step < limit:
        again, *results = body(np.array(step, np.int64), np.array(True), *state)
        state, new = results[: len(carried)], results[len(carried) :]
        rows = [[] for _ in new] if rows is None else rows
        for row, value in zip(rows, new, strict=True):
            row.append(value)
        going = bool(as_host(again).reshape(()))
        step += 1
        if step >= _MOST_ROUNDS:
            raise ValueError(f"a loop of more than {_MOST_ROUNDS} rounds")
    scans = len(body.outputs) - 1 - len(carried)  # type: ignore[attr-defined]
    return (*state, *(_stacked(row) for row in (rows or [[] for _ in range(scans)])))


def _rounds(limit: int, carried: Sequence[Any], body: Body) -> list[list[Any]]:
    """What is carried into every round of a loop and out of the last; tensors as they began."""
    rounds, going = [list(carried)], True
    while going and len(rounds) <= limit:
        if len(rounds) > _MOST_ROUNDS:
            raise ValueError(f"a loop of more than {_MOST_ROUNDS} rounds")
        state, step = rounds[-1], np.array(len(rounds) - 1, np.int64)
        again, *after = body.known(step, np.array(True), *state)  # type: ignore[attr-defined]
        if again is ...:
            raise CaptureError("Loop: only contents say how long it is")
        lost = [k for k, x in enumerate(after[: len(carried)]) if x is ... and on_host(state[k])]
        if lost:  # not known after all: begin again without them
            given = [as_tensor(x) if k in lost else x for k, x in enumerate(carried)]
            return _rounds(limit, given, body)
        pairs = zip(carried, after, strict=False)
        rounds.append([now if on_host(first) else first for first, now in pairs])
        going = bool(again.reshape(()))
    return rounds


def _repeated(rounds: list[list[Any]], carried: Sequence[Any], body: Body) -> Any:
    """A loop whose rounds are counted, as one that is compiled once."""
    first, count = rounds[0], len(rounds) - 1
    moving = [k for k, x in enumerate(first) if not on_host(x)]
    steady = {k for k, x in enumerate(first) if on_host(x) and _is_same(rounds, k)}
    counted = [k for k in range(len(first)) if k not in moving and k not in steady]
    numbers = np.arange(count, dtype=np.int64)

    def step(carry: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        state = {k: first[k] for k in steady}
        state |= dict(zip((*moving, *counted), (*carry, *given[1:]), strict=True))
        args = [state[k] for k in range(len(first))]
        _, *results = body(given[0], np.array(True), *args)
        after = tuple(as_tensor(results[k]) for k in moving)
        return after, tuple(as_tensor(y) for y in results[len(first) :])

    along = [as_tensor(np.stack([state[k] for state in rounds[:-1]])) for k in counted]
    try:
        last, ys = repeat(step, tuple(first[k] for k in moving), (as_tensor(numbers), *along))
    except (TypeError, ValueError) as error:  # what is carried changes its form, or has none
        raise CaptureError(f"Loop: {error}") from None
    end = dict(zip(moving, last, strict=True))
    return (*(end.get(k, rounds[-1][k]) for k in range(len(first))), *ys)


def _is_same(rounds: list[list[Any]], k: int) -> bool:
    first = rounds[0][k]
    return first is None or all(np.array_equal(first, state[k]) for state in rounds)


def _stacked(values: list[Any]) -> Any:
    if not values:
        return np.zeros((0,), np.float32)
    if all(isinstance(v, np.ndarray) for v in values):
        return np.stack(values)
    return fn.stack([as_tensor(v) for v in values], 0)


@operator("Scan", since=9)
def scan(
    *values: Any, body: Body, num_scan_inputs: int, scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
) -> Any:  # fmt: skip
    """A subgraph repeated over the elements of axes."""
    count = len(values) - num_scan_inputs
    axes = scan_input_axes or [0] * num_scan_inputs
    turned = scan_input_directions or [0] * num_scan_inputs
    xs = [
        _ordered(fn.movedim(x, axis, 0), back)
        for x, axis, back in zip(values[count:], axes, turned, strict=True)
    ]

    def step(carry: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        results = [as_tensor(r) for r in body(*carry, *given)]
        return tuple(results[:count]), tuple(results[count:])

    last, ys = repeat(step, tuple(values[:count]), tuple(xs))
    to = scan_output_axes or [0] * len(ys)
    back = scan_output_directions or [0] * len(ys)
    rows = [fn.movedim(_ordered(y, b), 0, a) for y, a, b in zip(ys, to, back, strict=True)]
    return (*last, *rows)


def _ordered(x: Any, backwards: int) -> Any:
    return fn.flip(x, (0,)) if backwards else x


@operator("Scan", since=8)
def scan_batch(
    lengths: Any = None, *values: Any, body: Body, num_scan_inputs: int,
    directions: Sequence[int] | None = None,
) -> Any:  # fmt: skip
    """A subgraph repeated over the second axis, for every element of a batch by itself."""
    if lengths is not None:
        raise NotImplementedError("Scan version 8 with sequence_lens")
    results = [
        scan(*(v[k] for v in values), body=body, num_scan_inputs=num_scan_inputs,
             scan_input_directions=directions)
        for k in range(int(values[0].shape[0]))
    ]  # fmt: skip
    return tuple(fn.stack(list(rows), 0) for rows in zip(*results, strict=True))


# ---- sequences


@operator("SequenceConstruct")
def sequence_construct(*values: Operand) -> Any:
    """A sequence of tensors."""
    return list(values)


@operator("SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> Any:
    """A sequence without tensors."""
    return []


def _place(position: Any, length: int) -> int:
    k = int(position.reshape(()))
    if not -length <= k < length:
        raise IndexError(f"there is no element {k} in a sequence of {length}")
    return k


@operator("SequenceAt")
def sequence_at(sequence: Operand, position: Host) -> Any:
    """A tensor of a sequence."""
    return sequence[_place(position, len(sequence))]


@operator("SequenceInsert")
def sequence_insert(sequence: Operand, value: Operand, position: Host = None) -> Any:
    """A sequence with one tensor more."""
    n = len(sequence)
    k = n if position is None else int(position.reshape(()))
    if not -n <= k <= n:
        raise IndexError(f"there is no place {k} in a sequence of {n}")
    k = k + n if k < 0 else k
    return [*sequence[:k], value, *sequence[k:]]


@operator("SequenceErase")
def sequence_erase(sequence: Operand, position: Host = None) -> Any:
    """A sequence with one tensor less."""
    k = len(sequence) - 1 if position is None else _place(position, len(sequence))
    k %= max(1, len(sequence))
    return [*sequence[:k], *sequence[k + 1 :]]


@operator("SequenceLength")
def sequence_length(sequence: Operand) -> Any:
    """How many tensors a sequence has."""
    return np.array(len(sequence), np.int64)


@operator("SequenceMap")
def sequence_map(sequence: Operand, *more: Operand, body: Body) -> Any:
    """A subgraph for every tensor of a sequence."""
    rows = [
        body(value, *(m[k] if isinstance(m, list) else m for m in more))
        for k, value in enumerate(sequence)
    ]
    return tuple([row[k] for row in rows] for k in range(len(body.outputs)))  # type: ignore[attr-defined]


@operator("ConcatFromSequence")
def concat_from_sequence(sequence: Operand, *, axis: int, new_axis: int = 0) -> Any:
    """The tensors of a sequence as one."""
    if on_host(sequence):
        return (np.stack if new_axis else np.concatenate)(sequence, axis)
    return (fn.stack if new_axis else fn.cat)([as_tensor(v) for v in sequence], axis)


@operator("SplitToSequence")
def split_to_sequence(x: Any, split: Host = None, *, axis: int = 0, keepdims: int = 1) -> Any:
    """Parts of a tensor as a sequence."""
    n = int(x.shape[axis])
    if split is None:
        parts = fn.split(x, 1, axis)
        return [p if keepdims else fn.select(p, axis, 0) for p in parts]
    if split.ndim == 0:
        return list(fn.split(x, int(split), axis))
    if sum(ints(split) or ()) != n:
        raise ValueError(f"the parts {ints(split)} are not {n} elements")
    return list(fn.split(x, ints(split), axis))


# ---- optional values


@operator("Optional")
def optional(value: Operand = None, *, type: Any = None) -> Any:
    """A value that may be missing."""
    return value


@operator("OptionalHasElement")
def optional_has_element(value: Operand = None) -> Any:
    """Whether a value is there."""
    return np.array(value is not None)


@operator("OptionalGetElement")
def optional_get_element(value: Operand) -> Any:
    """The value that is there."""
    if value is None:
        raise ValueError("the optional value is missing")
    return value


__all__ = ["Tensor", "numpy_dtype"]
