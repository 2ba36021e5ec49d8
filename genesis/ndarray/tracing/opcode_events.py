"""Being told what Python code is about to do, instruction by instruction.

A *plan* says at which instructions of a code object somebody wants to be told. From Python 3.12 on
`sys.monitoring` tells just that; before, a trace function is called for every call and every
instruction, which costs more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Protocol

#: What to do before which instruction, by its offset; empty for code that nobody watches.
Plan = dict[int, Any]


class OpcodeWatcher(Protocol):
    """Who is told."""

    def plan(self, code: CodeType, names: dict[str, Any]) -> Plan:
        """The plan for a code object, given its globals; always the same."""

    def admits(self, frame: FrameType) -> bool:
        """Whether a call is watched, given that its code has a plan."""

    def act(self, frame: FrameType, entry: Any) -> None:
        """An instruction that the plan has an entry for comes next."""

    def failed(self, frame: FrameType) -> None:
        """An instruction has raised."""


def is_watched(frame: FrameType | None) -> bool:
    """Whether a call that is under way is watched."""
    return frame is not None and frame.f_trace is not None


if sys.version_info < (3, 12):

    @contextmanager
    def telling(watcher: OpcodeWatcher) -> Iterator[None]:
        """Tell `watcher` what this thread does in the ``with`` block."""
        before = sys.gettrace()
        sys.settrace(_tracer(watcher))
        try:
            yield
        finally:
            sys.settrace(before)

    def _tracer(watcher: OpcodeWatcher) -> Any:
        def enter(frame: FrameType, event: str, _: Any) -> Any:
            plan = watcher.plan(frame.f_code, frame.f_globals)
            if not plan or not watcher.admits(frame):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            get, act, failed = plan.get, watcher.act, watcher.failed

            def step(frame: FrameType, event: str, _: Any) -> Any:
                if event == "opcode":
                    entry = get(frame.f_lasti)
                    if entry is not None:
                        act(frame, entry)
                elif event == "exception":
                    failed(frame)
                return step

            return step

        return enter

else:
    _events = sys.monitoring.events
    _TOOL = 4  # of the numbers 0 to 5, one that no other kind of tool claims

    class _Monitor(threading.local):
        """The watcher of each thread."""

        watcher: OpcodeWatcher | None = None

    class _Monitoring:
        """What is asked of `sys.monitoring`, which knows no threads, while anybody watches."""

        def __init__(self) -> None:
            self._lock = threading.Lock()
            self._watchers = 0
            self._codes: set[CodeType] = set()  # whose instructions are told

        def begin(self) -> None:
            with self._lock:
                if not self._watchers:
                    sys.monitoring.use_tool_id(_TOOL, "genesis.jit")
                    sys.monitoring.register_callback(_TOOL, _events.PY_START, self._start)
                    sys.monitoring.register_callback(_TOOL, _events.INSTRUCTION, self._step)
                    sys.monitoring.register_callback(_TOOL, _events.RAISE, self._raised)
                    sys.monitoring.set_events(_TOOL, _events.PY_START | _events.RAISE)
                self._watchers += 1

        def end(self) -> None:
            with self._lock:
                self._watchers -= 1
                if not self._watchers:
                    sys.monitoring.set_events(_TOOL, 0)
                    for code in self._codes:
                        sys.monitoring.set_local_events(_TOOL, code, 0)
                    self._codes.clear()
                    for event in (_events.PY_START, _events.INSTRUCTION, _events.RAISE):
                        sys.monitoring.register_callback(_TOOL, event, None)
                    sys.monitoring.free_tool_id(_TOOL)

        def _start(self, code: CodeType, _: int) -> Any:
            watcher = _monitor.watcher
            if watcher is None:
                return None
            frame = sys._getframe(1)
            if not watcher.plan(code, frame.f_globals):
                return sys.monitoring.DISABLE  # no call of it is ever watched
            if watcher.admits(frame):
                frame.f_trace = _mark
                if code not in self._codes:
                    self._codes.add(code)
                    sys.monitoring.set_local_events(_TOOL, code, _events.INSTRUCTION)
            return None

        def _step(self, code: CodeType, offset: int) -> Any:
            watcher = _monitor.watcher
            if watcher is None:
                return None
            frame = sys._getframe(1)
            entry = watcher.plan(code, frame.f_globals).get(offset)
            if entry is None:
                return sys.monitoring.DISABLE
            if frame.f_trace is _mark:
                watcher.act(frame, entry)
            return None

        def _raised(self, code: CodeType, offset: int, error: BaseException) -> None:
            watcher, frame = _monitor.watcher, sys._getframe(1)
            if watcher is not None and frame.f_trace is _mark:
                watcher.failed(frame)

    def _mark(*_: Any) -> None:
        """What marks a frame as watched; nobody calls it."""

    _monitor = _Monitor()
    _monitoring = _Monitoring()

    @contextmanager
    def telling(watcher: OpcodeWatcher) -> Iterator[None]:
        """Tell `watcher` what this thread does in the ``with`` block."""
        _monitoring.begin()
        before, _monitor.watcher = _monitor.watcher, watcher
        try:
            yield
        finally:
            _monitor.watcher = before
            _monitoring.end()
