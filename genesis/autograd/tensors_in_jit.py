"""How `jit` sees tensors: through them to their arrays, with a tape where gradients are recorded.

The tape itself (`genesis.autograd.jit_gradients`) is loaded when something is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from genesis.ndarray import NDArray, pytree
from genesis.ndarray.tracing.tape_interface import Tapes
from genesis.tensor.tensor import Tensor

if TYPE_CHECKING:
    from genesis.ndarray.tracing.storage_recorder import Recorder
    from genesis.ndarray.tracing.tape_interface import Tape


def _unwrap(x: Tensor) -> tuple[NDArray, int | None]:
    """A tensor as `jit` sees an argument: whether it needs gradients, and None if there is more."""
    if x._gradient is not None or x.hooks or x.accumulated:
        return x.array, None
    if x._creator is None and (x._base is None or x.creator is None):
        return x.array, 1 if x._wanted else 0
    return x.array, 0 if x.creator is None else 2


def _wrap(array: NDArray, rest: int) -> Tensor:
    if rest == 2:
        from genesis.autograd.jit_gradients import given

        return given(array)
    return Tensor(array, rest == 1)


def _open(recorder: Recorder, parts: Iterable[tuple[Any, pytree.Path]]) -> Tape:
    from genesis.autograd.jit_gradients import JitTape

    return JitTape(recorder, parts)


pytree.register(Tensor, _unwrap, _wrap)
Tapes.open = _open
