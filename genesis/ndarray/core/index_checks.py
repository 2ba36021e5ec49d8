"""Checked indices: a position that does not exist is an IndexError that names the user's line.

A mask that must be False everywhere (`genesis.ndarray.core.value_checks`) is checked as positions
in an axis of one, which is no axis (`NO_AXIS`); a True there is a ValueError, with the check's name
as text.

Kernels never touch memory out of range: gathers clamp their indices and scatters drop theirs. So a
check decides only whether to complain, and is made wherever it is cheapest: at the call if the
index is known there (`genesis.ndarray.ops.normalize_index`), else by the realisation that needs the
index, before anything is overwritten. A recorded function computes what there is to check as
further results. Where a device runs on its own, they are words that are written to only if an index
does not exist, and looked at later: when that function is called again, and at the latest when
anything is read from a device.

What is computed is the worst index: the greatest of the zigzag codes, which count 0, -1, 1, -2, ..
as 0, 1, 2, 3, .. . That one number says how far from the axis an index lies, and on which side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce
from threading import Lock
from typing import TYPE_CHECKING

from genesis.ir import ops
from genesis.ir.dtype import DType, int64, uint64
from genesis.ir.size import Dim, product
from genesis.ndarray.core import pending_graph, primitive
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.primitive import cast, constant, elementwise
from genesis.ndarray.core.subgraph_copies import Subgraph
from genesis.ndarray.core.value import NO_AXIS, Checked, Value

if TYPE_CHECKING:
    from genesis.backends.base import Backend, Later


def checks_in(order: list[Value]) -> list[Checked]:
    """The checks that computing these values has to make first."""
    checks = pending_graph.of_kind(Checked, order)
    return [v for v in checks if v.memory is None and not v.passed]


def codes(checks: Sequence[Checked]) -> list[Value]:
    """What to compute for checks: the code of each one's worst index."""
    found = []
    for check in checks:
        index = check.inputs[0]
        whole = check.extent if check.axis < NO_AXIS else None
        graph = _code_of(index.dtype, index.shape, index.device, whole)
        found.append(graph.copy([index], index.device)[graph.places[0]])
    return found


def reports(checks: Sequence[Checked], divided: bool = False) -> tuple[list[Value], list[Value]]:
    """What to compute for each check: its code, or a word that gets it if there is no such index.

    And the words, to be overwritten, if the device has any. Checks of one index share one: it is
    written for the smallest axis.
    """
    from genesis.ndarray.core.realisation import backend_of

    if not checks or divided or not (backend := backend_of(checks[0].device)).has_words:
        return codes(checks), []
    extents: dict[tuple[Value, Dim | None], list[Dim]] = {}
    keys = [(c.inputs[0], c.extent if c.axis < NO_AXIS else None) for c in checks]
    for key, c in zip(keys, checks, strict=True):
        extents.setdefault(key, []).append(c.extent)
    nowhere, device, first = backend.foreign(0, 0, None), checks[0].device, ((0, 1),)
    found, words = {}, []
    for key, worst in dict(zip(keys, codes(checks), strict=True)).items():
        few = [primitive.extent(e, int64, device) for e in dict.fromkeys(extents[key])]
        least = reduce(partial(elementwise, ops.MIN), few)
        limit = cast(elementwise(ops.SHL, least, constant(1, int64, device)), uint64)
        words.append(Value.realised(nowhere, uint64, (2,), (1,), device, foreign=True))
        wrong = primitive.reshape(elementwise(ops.LE, limit, worst), (1,))
        old = primitive.slice_(words[-1], first, (1,))
        new = primitive.where(wrong, primitive.reshape(worst, (1,)), old)
        found[key] = primitive.update(words[-1], new, first)
    return [found[key] for key in keys], words


@lru_cache(maxsize=256)
def _code_of(dtype: DType, shape: Shape, device: str, whole: Dim | None) -> Subgraph:
    """What computes the code of an index; of an axis of this `whole` extent if none is negative."""
    index = found = primitive.parameter(dtype, shape, device)
    if whole is not None:
        found = cast(index, int64)
        below = elementwise(ops.SUB, found, primitive.extent(whole, int64, device))
        negative = elementwise(ops.LT, found, constant(0, int64, device))
        found = primitive.where(negative, below, found)
    return Subgraph([index], [code(found)])


def code(index: Value) -> Value:
    """The greatest zigzag code of an index, of shape ()."""
    index = cast(index, int64)
    one = constant(1, int64, index.device)
    sign = elementwise(ops.SHR, index, constant(63, int64, index.device))
    code = elementwise(ops.XOR, elementwise(ops.SHL, index, one), sign)
    code = elementwise(ops.BITCAST, code, dtype=uint64)
    count = product(code.shape)
    if len(code.shape) > 1 and isinstance(count, int) and count >= MANY:
        # Row by row, which whoever goes through the rows of the index does on the way.
        code = primitive.reduce(ops.AMAX, code, (len(code.shape) - 1,))
    return primitive.reduce(ops.AMAX, code, tuple(range(len(code.shape))))


def require(name: str, code: int, extent: int, axis: int, where: str = "") -> None:
    """Raise the error of a check whose worst index has this code, if there is no such position."""
    if code >> 1 >= extent:
        index = -1 - (code >> 1) if code & 1 else code >> 1
        place = f" ({where})" if where else ""
        if axis == NO_AXIS:
            raise ValueError(f"{name}{place}")
        if axis < NO_AXIS:
            axis = from_start(axis)
            index += extent if index < 0 else 0
        raise IndexError(
            f"{name}: index {index} is out of range for axis {axis} of size {extent}{place}"
        )


def from_start(axis: int) -> int:
    """An axis as the check of an index that never counts from the end has it; and back.

    Its code is computed of what is negative moved by the extent of the axis, so that it is outside.
    """
    return NO_AXIS - 1 - axis


def defer(code: Later, checks: Sequence[tuple[str, int, int, str]]) -> None:
    """Look at a code when it is known; the checks that it decides are as `require` takes them."""
    _undecided.append((code, checks))
    if len(_undecided) > MOST:
        settle(wait=True, most=1)


def settle(wait: bool, most: int | None = None) -> None:
    """Make checks that were deferred: those whose codes are known, or all of them."""
    while _undecided and most != 0:
        with _settling:  # another thread may just be doing this
            code = _undecided[0][0](wait) if _undecided else None
            if code is None:
                return
            _, checks = _undecided.popleft()
        for name, extent, axis, where in checks:
            require(name, code, extent, axis, where)
        most = most and most - 1
    if wait and most is None:
        for backend in set(_watched.values()):
            backend.synchronize()
        for look in list(_watched):
            _watched.pop(look, None)
            look()


def watch(look: Callable[[], None], backend: Backend) -> None:
    """Call `look`, which raises if a word has been written, when everything is settled."""
    _watched[look] = backend


#: An index of so many elements is worth a kernel more, not to be read twice.
MANY = 1 << 16
#: How many codes are waited for at the same time.
MOST = 64

_undecided: deque[tuple[Later, Sequence[tuple[str, int, int, str]]]] = deque()
_watched: dict[Callable[[], None], Backend] = {}
_settling = Lock()
