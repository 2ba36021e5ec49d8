"""What a function sees of arrays while it is called on stand-ins: the body of a loop, of a `vmap`.

It stands between the function and the storages. Its own arrays it may write to as it likes; those
from outside it reads as they are. The state of a random generator is no array like others: what
stands in for it is the business of who repeats the function.
"""

from __future__ import annotations

from genesis.ndarray.core.layout import Strides
from genesis.ndarray.core.primitive import parameter
from genesis.ndarray.core.storage import State, Storage
from genesis.ndarray.core.value import CaptureError, Recorder, Value, recorded_by, thread


class BodyRecorder:
    """What a body sees of storages; the recorder around it is `outer`."""

    def __init__(self, name: str, outer: Recorder | None) -> None:
        self.name = name  #: what the user has called
        self.outer = outer
        self.journal = thread.listener
        self.now: dict[Storage, Value] = {}
        self.states: dict[State, Value] = {}  # random states, with their stand-ins
        self.outside: set[Value] = set()

    def create(self, storage: Storage) -> None:
        """A storage is made."""
        self.now[storage] = storage.actual

    def read(self, storage: Storage) -> Value:
        """A storage's value is asked for."""
        value = self.now.get(storage)
        if value is None:
            if isinstance(storage, State):
                value = self.states[storage] = self.stand_in(storage)
            else:
                value = self.read_outside(storage)
            self.now[storage] = value
        return value

    def part(self, storage: Storage) -> Strides | None:
        """How what stands for a part of a storage lies in that; None for all other storages."""
        return None if self.outer is None else self.outer.part(storage)

    def locate(self, storage: Storage) -> None:
        """It matters where in its storage an array lies."""
        if self.outer is not None:
            self.outer.locate(storage)

    def stand_in(self, state: State) -> Value:
        """What the body sees of a random generator's state."""
        like = state.actual
        return parameter(like.dtype, like.shape, like.device)

    def read_outside(self, storage: Storage) -> Value:
        """What a storage from outside holds."""
        with recorded_by(self.outer):
            value = storage.value
        self.outside.add(value)
        return value

    @property
    def seen(self) -> dict[Storage, Value]:
        """The storages from outside that were read, and what was read."""
        return {s: value for s, value in self.now.items() if value in self.outside}

    def see(self, storages: dict[Storage, Value]) -> None:
        """Read storages from outside as they were before."""
        self.now.update(storages)
        self.outside.update(storages.values())

    def write(self, storage: Storage, value: Value) -> None:
        """A storage gets another value."""
        self.read(storage)
        if self.now[storage] in self.outside:
            raise CaptureError(self.refusal(storage))
        self.now[storage] = value

    def refusal(self, storage: Storage) -> str:
        """What to say to a body that writes to an array from outside."""
        return (
            f"{self.name}: the body writes to an array of shape {storage.actual.shape} from "
            "outside; make it part of the carry, and return what it becomes"
        )
