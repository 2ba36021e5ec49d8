"""What `torch.profiler` sees of programs: a range for each, and in it one for every kernel.

While it records, a program runs launch by launch. Otherwise this costs asking whether it does.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.profiler import record_function

from genesis import events
from genesis.compiler.program.program import Program
from genesis.events import Span

_is_recording = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
_NOTHING: AbstractContextManager[None] = nullcontext()


def recorded() -> AbstractContextManager[None]:
    """Around whatever may run programs: `torch.profiler`, if it records, sees them."""
    return events.watched_by(_RANGES) if _is_recording() else _NOTHING


class _Ranges:
    """A watcher that passes on what runs as PyTorch's ranges."""

    def saw(self, span: Span) -> None:
        """A range cannot begin in the past."""

    def run(
        self, program: Program, frame: array[int], sizes: Mapping[str, int], places: Any
    ) -> None:
        title = "a program" if places is None else places.title
        parts = program.parts
        with record_function(f"genesis: {title}"):
            for name, part in parts:
                with record_function(f"genesis::{name}"):
                    part.run(frame)
        program.executable.runs += 1


_RANGES = _Ranges()

__all__ = ["recorded"]
