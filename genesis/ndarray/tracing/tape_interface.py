"""The place where the layer of gradients joins in when `jit` records a function.

Arrays know nothing of gradients. A function of tensors may return tensors that remember how they
were computed; what becomes of those is for the layer above to say, which installs `open_tape`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from genesis.ndarray.core.value import Value
    from genesis.ndarray.tracing.journal import Read
    from genesis.ndarray.tracing.recording import ReplayRun
    from genesis.ndarray.tracing.storage_recorder import Recorder
    from genesis.ndarray.tracing.template import Maker, Template


class Tape(Protocol):
    """What one recording has to do with gradients."""

    #: What the program computes for later, besides its results.
    saved: list[Value]
    #: Inputs that must keep their contents.
    needed: set[Value]

    def maker(self, x: Any, template: Template) -> Maker:
        """How a run makes an object that wraps an array."""

    def close(self, template: Template, static: tuple[Any, ...]) -> list[Read] | None:
        """Prepare for gradients. What was read on the way; None: no result has gradients."""

    def settle(self, inputs: Sequence[Value], offsets: Mapping[Value, Any]) -> None:
        """The program is made. `inputs`: what runs give, first what the program reads."""

    def attach(
        self,
        run: ReplayRun,
        held: list[Value],
        pointers: list[int],
        unread: list[Value],
        saved: list[Value],
    ) -> Any:
        """The creator of a run's results, given what the program read, did not read and saved."""

    def complete(self, creator: Any, made: Sequence[Any]) -> None:
        """Everything a run makes has been made."""


class Tapes:
    """Set by the layer above; see `Tape`."""

    open: Callable[[Recorder, Any], Tape] | None = None
