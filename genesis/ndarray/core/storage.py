"""Storages: where functional values meet arrays that can be written.

A `Storage` holds one current value. An array sees it through a chain of *steps* (slices, permutes,
reshapes, expands, windows; parts of complex numbers, bits read as another type). Reading applies
the steps to the current value; writing goes back through them and gives the storage a new value,
so every other view sees the write while anything computed from the old value keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.ops import Op
from genesis.ir.size import Dim, Size, same
from genesis.ndarray.core import primitive
from genesis.ndarray.core.layout import Shape, Strides, row_major, through
from genesis.ndarray.core.source_lines import caller
from genesis.ndarray.core.value import MAX_DEPTH, Value, cut, thread

#: After this many values a thread realises what it has written so far, at a write.
MAX_PENDING = 20_000


class ViewStep(NamedTuple):
    """One movement from a storage towards a view."""

    op: Op
    attr: Any
    shape: Shape  # of the result
    dtype: DType | None = None  # of the result, where it is another

    def apply(self, x: Value) -> Value:
        """`x` seen through this step."""
        return seen(x, (self,))

    def write(self, x: Value, new: Value) -> Value:
        """`x` changed so that seen through this step it is `new`."""
        if self.op is ops.SLICE:
            return primitive.update(x, new, self.attr)
        if self.op is ops.PERMUTE:
            inverse = sorted(range(len(self.attr)), key=self.attr.__getitem__)
            return primitive.permute(new, inverse)
        if self.op is ops.RESHAPE:
            return primitive.reshape(new, x.shape)
        if self.dtype is not None:
            return _WRITES[self.op](x, new)
        if self.op is ops.WINDOW:
            raise ValueError(
                f"cannot write through windows of shape {self.shape}: they may overlap; write to "
                "what they were cut from, or to a copy (.clone())"
            )
        raise ValueError(
            f"cannot write through a view expanded to shape {self.shape}: several of its elements "
            "are one element in memory; write to a copy (.copy()) instead"
        )


def _part(op: Op, x: Value) -> Value:
    return Value(op, (x,), None, x.dtype.real, x.shape, x.device)


def _recast(op: Op, x: Value, new: Value) -> Value:
    if op is ops.BITCAST and new.dtype.bits != x.dtype.bits:
        return _regrouped(new, x.dtype, x.shape)
    return Value(op, (new,), None, x.dtype, x.shape, x.device)


def _regrouped(x: Value, dtype: DType, shape: Shape) -> Value:
    from genesis.ndarray.ops.bitcast import regrouped

    return regrouped(x, dtype, shape)


#: What a value becomes, if it is to be something else as seen through a step of another dtype.
_WRITES: dict[Op, Callable[[Value, Value], Value]] = {
    ops.REAL: lambda x, new: Value(
        ops.COMPLEX, (new, _part(ops.IMAG, x)), None, x.dtype, x.shape, x.device
    ),
    ops.IMAG: lambda x, new: Value(
        ops.COMPLEX, (_part(ops.REAL, x), new), None, x.dtype, x.shape, x.device
    ),
    ops.AS_REAL: partial(_recast, ops.AS_COMPLEX),
    ops.AS_COMPLEX: partial(_recast, ops.AS_REAL),
    ops.BITCAST: partial(_recast, ops.BITCAST),
}

Steps = tuple[ViewStep, ...]


def layout_through(
    step: ViewStep, before: Shape, strides: Strides, offset: Dim
) -> tuple[Strides, Dim] | None:
    """The layout behind a step, counted in elements of what is seen; None if it has no strides."""
    if step.op in (ops.REAL, ops.IMAG, ops.AS_REAL):
        twice = tuple(stride * 2 for stride in strides)
        first = offset * 2 + (step.op is ops.IMAG)
        return (*twice, 1) if step.op is ops.AS_REAL else twice, first
    if step.op is ops.AS_COMPLEX:
        whole = all(isinstance(n, int) and n % 2 == 0 for n in (offset, *strides[:-1]))
        return (tuple(n // 2 for n in strides[:-1]), offset // 2) if whole else None
    if step.op is ops.BITCAST:
        if step.attr is None:
            return strides, offset
        many, few = step.attr  # each element is many, or as many as are few are one
        whole = all(isinstance(n, int) and n * many % few == 0 for n in (offset, *strides[:-1]))
        if strides[-1] != 1 or not whole:
            return None
        return (*(n * many // few for n in strides[:-1]), 1), offset * many // few
    if step.op is ops.WINDOW:
        axis, stride, dilation = step.attr
        apart = (*strides[:axis], strides[axis] * stride, *strides[axis + 1 :])
        return (*apart, strides[axis] * dilation), offset
    return through(step.op, step.attr, before, strides, offset, step.shape)


def seen(x: Value, steps: Steps) -> Value:
    """`x` seen through steps."""
    code, instruction = caller(2)
    thread.__dict__["pending"] += len(steps)
    for op, attr, shape, dtype in steps:
        if x.depth >= MAX_DEPTH and thread.recorder is None:
            cut((x,))
        if op is ops.BITCAST and attr is not None:  # no operation of the graph
            assert dtype is not None
            x = _regrouped(x, dtype, shape)
            continue
        value = Value.__new__(Value)  # every view of the user's makes some: this is quicker
        value.op = op
        value.inputs = value.sources = (x,)
        value.attr = attr
        value.dtype = dtype or x.dtype
        value.shape = shape
        value.device = x.device
        value.depth = x.depth + 1
        value.code = code
        value.instruction = instruction
        value.memory = None
        value.form = 0
        x = value
    return x


class Storage:
    """The holder of one current value; `version` counts the writes.

    While `jit` records on a thread, what that thread reads and writes is the recorder's: the
    function sees its own writes, and nobody else ever does.
    """

    __slots__ = ("actual", "version", "__weakref__")

    actual: Value  #: the current value, whatever is being recorded
    version: int

    def __init__(self, value: Value) -> None:
        self.actual = value
        self.version = 0
        if thread.recorder is not None:
            thread.recorder.create(self)

    @property
    def value(self) -> Value:
        """The current value."""
        recorder = thread.recorder
        return self.actual if recorder is None else recorder.read(self)

    def write(self, value: Value) -> None:
        """Make `value` the current one."""
        if thread.recorder is not None:
            thread.recorder.write(self, value)
            return
        self.replace(value)
        thread.written.append(ref(self))
        thread.pending += 1
        if thread.eager or thread.pending > MAX_PENDING:
            self._bound_graph()

    def replace(self, value: Value) -> None:
        """Make `value`, which adds nothing to the graph, the current one."""
        self.actual = value
        self.version += 1

    def _bound_graph(self) -> None:
        """Realise what this thread has written, once the graph has grown too large.

        A loop should be cut at the same place every time, so that it meets the same programs:
        wait for the storage that was cut at before, while there is one and it is not too far.
        """
        awaited = thread.cut() if thread.cut is not None else None
        far = thread.pending > 2 * MAX_PENDING
        if not (thread.eager or awaited is None or awaited is self or far):
            return
        from genesis.ndarray.core.realisation import realize_values

        storages = dict.fromkeys(s for s in (r() for r in thread.written) if s is not None)
        thread.written.clear()
        thread.pending = 0
        if not thread.eager:
            thread.cut = ref(self)
        realize_values([s.value for s in storages])


class State(Storage):
    """A storage advanced by everything that reads it, such as a random generator's counter.

    A realisation that reads the state it began from also realises the state it has come to, so
    that neither the chain of advances nor what it holds grows. Whoever advances it holds `lock`:
    two threads must not begin from the same state.
    """

    __slots__ = ("base", "lock")

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.lock = Lock()
        self.base = ref(value)

    def write(self, value: Value) -> None:
        """Make `value` the current one, remembering the realised one the chain began from."""
        if thread.stands_in:
            raise RuntimeError("a state is not advanced for stand-ins")
        if self.actual.is_realised:
            self.base = ref(self.actual)
        super().write(value)

    def replace(self, value: Value) -> None:
        """Make `value` the current one."""
        super().replace(value)
        advanced[ref(self)] = None


#: States that were written since they were last seen realised.
advanced: dict[ref[State], None] = {}


def pending_states() -> Sequence[State]:
    """The states that have been advanced and not been realised since."""
    if not advanced:
        return ()
    found = [s for s in [r() for r in list(advanced)] if s is not None and not s.actual.is_realised]
    advanced.clear()
    advanced.update(dict.fromkeys(map(ref, found)))
    return found


def seen_dtype(dtype: DType, steps: Steps) -> DType:
    """What a dtype is behind steps."""
    for step in steps:
        if step.dtype is not None:
            dtype = step.dtype
    return dtype


def write_through(x: Value, steps: Steps, new: Value) -> Value:
    """The storage value `x`, changed so that seen through `steps` it is `new`."""
    if not steps:
        return new
    if any(step.op is ops.EXPAND for step in steps):
        if 0 in steps[-1].shape:
            return x  # nothing is written
        steps = _without_repetition(x.shape, steps)
    seen = [x]
    for step in steps[:-1]:
        seen.append(step.apply(seen[-1]))
    for step, before in zip(reversed(steps), reversed(seen), strict=True):
        new = step.write(before, new)
    return new


def _without_repetition(before: Shape, steps: Steps) -> Steps:
    """The same steps, where one of the copies that an axis was repeated in is cut out again."""
    result: list[ViewStep] = []
    for step in steps:
        repeated = result[-1] if result else step
        if step.op is ops.SLICE and repeated.op is ops.EXPAND:
            shape = result[-2].shape if len(result) > 1 else before
            places = list(zip(step.attr, shape, repeated.shape, strict=True))
            cut = tuple(place if old == now else (0, 1) for place, old, now in places)
            alone = zip(step.shape, shape, repeated.shape, strict=True)
            if all(n == 1 or old == now for n, old, now in alone):
                result[-1] = step._replace(attr=cut)
                continue
        result.append(step)
    return tuple(result)


def strides_in(storage: Storage) -> Strides:
    """How the elements of a storage lie, as far as views of it know.

    What stands for a view in a recording has no steps any more, and lies as the view does.
    """
    found = None if thread.recorder is None else thread.recorder.part(storage)
    return row_major(storage.value.shape) if found is None else found


def may_alias(storage: Storage, steps: Steps, shape: Shape) -> bool:
    """Whether a reshape of a view can share its elements: strides over the storage express it.

    Axes of extent 1 come and go whatever the view is: a diagonal of a diagonal has no strides here.
    """
    base = storage.value.shape
    seen = steps[-1].shape if steps else base
    known = all(isinstance(e, int) for e in (*seen, *shape))
    if known and [e for e in seen if e != 1] == [e for e in shape if e != 1]:
        return True
    strides = strides_in(storage)
    offset: Dim = 0
    for step in (*steps, ViewStep(ops.RESHAPE, None, shape)):
        layout = layout_through(step, base, strides, offset)
        if layout is None:
            break
        (strides, offset), base = layout, step.shape
    else:
        return True
    if known:
        return False
    # Whether it can for the sizes that are recorded: that is noted, then.
    if step.op is ops.RESHAPE:
        return through(step.op, None, base, strides, offset, step.shape, same) is not None
    long, wanted = ([e for e in s if not same(e, 1)] for s in (seen, shape))
    return len(long) == len(wanted) and all(map(same, long, wanted))


def given_sizes(steps: Steps) -> Callable[[Mapping[str, int]], Steps]:
    """What gives steps their sizes, where some are symbols."""
    if not any(isinstance(d, Size) for step in steps for d in _numbers(step)):
        return lambda sizes: steps
    return lambda sizes: sized(steps, sizes)


def sized(steps: Steps, sizes: Mapping[str, int]) -> Steps:
    """Steps with values in place of symbolic sizes."""
    return tuple(_sized(step, sizes) for step in steps)


def _numbers(x: Any) -> Iterable[Any]:
    return [z for y in x for z in _numbers(y)] if isinstance(x, tuple) else [x]


def _sized(step: ViewStep, sizes: Mapping[str, int]) -> ViewStep:
    """A step with values in place of symbolic sizes."""

    def value(x: Any) -> Any:
        if isinstance(x, Size):
            return x.value(sizes)
        return tuple(map(value, x)) if isinstance(x, tuple) else x

    return ViewStep(step.op, value(step.attr), value(step.shape), step.dtype)
