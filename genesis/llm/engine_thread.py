"""The thread that runs an engine, and requests as those see them who wait for answers.

What others want of the engine (a request, its end, a number) waits in an inbox until a step is
over, so nobody holds a lock while a step is computed, and an event loop never waits at all. A step
that raises ends the requests that were in it; the thread goes on with the others.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from genesis.llm.engine import Engine, Event
from genesis.llm.sampling import SamplingParams

_T = TypeVar("_T")
_Task = tuple[Future[Any], Callable[[], Any]]
_log = logging.getLogger("genesis.llm")
_BEAT = 1.0  # seconds between signs of life of a thread that has nothing to do


class RequestFailed(RuntimeError):
    """A request ended with an error of its own."""


class EngineThread:
    """The thread that runs an engine. `beat` is when it last showed a sign of life."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.beat = time.monotonic()
        self._inbox: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._waiting: dict[str, Submitted] = {}
        self._lock = threading.Lock()  # nothing comes in after the end
        self._closed = self._over = False
        self._thread = threading.Thread(target=self._run, name="genesis.llm", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], _T]) -> Future[_T]:
        """Have the thread call something between two steps."""
        future: Future[_T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("this LLM is closed")
            self._inbox.put((future, function))
        return future

    def submit(
        self,
        tokens: list[int],
        params: SamplingParams,
        constraint: Any,
        request: dict[str, Any],
        deliver: Callable[[Any], None] | None = None,
    ) -> Future[Submitted]:
        """Queue a request; `deliver` is called in the thread with each event, then with None."""
        said = time.monotonic()

        def enter() -> Submitted:
            how = dict(request)
            if how.get("deadline") is not None:
                how["deadline"] += self.engine.clock() - (time.monotonic() - said)
            id = self.engine.submit(tokens, params, constraint=constraint, **how)
            found = self._waiting[id] = Submitted(self, id, tokens, params.n, deliver)
            return found

        return self.call(enter)

    def cancel(self, id: str) -> None:
        """End a request before the next step."""
        with suppress(RuntimeError):  # closed: it is over anyway
            self.call(lambda: self.engine.cancel(id))

    def cancel_all(self) -> None:
        """End all requests before the next step."""
        for id in list(self._waiting):
            self.cancel(id)

    def abandon(self, error: BaseException) -> None:
        """Fail everything without waiting for a thread that shows no sign of life."""
        with self._lock:
            self._closed = self._over = True
        with suppress(queue.Empty):
            while True:
                self._inbox.get_nowait()[0].set_exception(error)
        self._end(error)

    def close(self) -> None:
        """End the thread; what is running fails."""
        with self._lock:
            self._closed = True
            self._inbox.put((Future(), self._stop))
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive() and not self._over

    @property
    def age(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self.beat

    # ---- in the thread

    def _stop(self) -> None:
        self._over = True

    def _run(self) -> None:
        while not self._over:
            self._attend(wait=not len(self.engine))
            if len(self.engine) and not self._over:
                self._step()
            self.beat = time.monotonic()
        self._end(RuntimeError("the LLM was closed"))

    def _attend(self, wait: bool) -> None:
        """Do what others want; with nothing else to do, wait for that."""
        with suppress(queue.Empty):
            task = self._inbox.get(wait, _BEAT) if wait else self._inbox.get_nowait()
            while True:
                _do(*task)
                task = self._inbox.get_nowait()

    def _step(self) -> None:
        try:
            events = self.engine.step()
        except Exception as error:
            _log.exception("a step failed")
            events = self.engine.fail(error)
        for event in events:
            submitted = self._waiting.get(event.id)
            if submitted is not None and submitted.take(event):
                self._waiting.pop(event.id, None)

    def _end(self, error: BaseException) -> None:
        while self._waiting:
            with suppress(KeyError):  # the thread may come back to life
                self._waiting.popitem()[1].fail(error)


def _do(future: Future[Any], function: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)


class Submitted:
    """A request that was submitted, and its events."""

    def __init__(
        self, loop: EngineThread, id: str, tokens: list[int], count: int, deliver: Any
    ) -> None:
        self.loop, self.id, self.tokens = loop, id, tokens
        self.job = loop.engine.job(id)
        self._open = count
        self._events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
        self._deliver = deliver or self._events.put

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that needed not be computed."""
        return self.job.cached or 0

    def take(self, event: Event) -> bool:
        """Pass an event on; True if it is the last."""
        if event.error is not None:
            self._deliver(RequestFailed(event.error))
            return True
        self._deliver(event)
        if event.reason in ("cancelled", "deadline"):
            self._open = 0
        elif event.reason is not None:
            self._open -= 1
        if self._open <= 0:
            self._deliver(None)
        return self._open <= 0

    def fail(self, error: BaseException) -> None:
        """The request is over, because of this."""
        self._deliver(RequestFailed(str(error)))

    def cancel(self) -> None:
        """Nobody waits for the request any more."""
        self.loop.cancel(self.id)

    def __iter__(self) -> Iterator[Event]:
        while (event := self._events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event


class Mailbox:
    """Events of a request on their way from the engine's thread to a coroutine.

    A reader that is slower than the engine gets several at once; one that lets more than `limit`
    of them wait fails, and its request is cancelled.
    """

    def __init__(self, limit: int = 1 << 20) -> None:
        self.submitted: Submitted | None = None
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[Event | BaseException | None] = deque()
        self._any, self._told = asyncio.Event(), False
        self._limit, self._full = limit, False

    def put(self, event: Event | BaseException | None) -> None:
        """From the engine's thread."""
        if not self._full:
            self._full = len(self._arrived) >= self._limit
            late = RequestFailed("events were not read, and there are too many")
            self._arrived.append(late if self._full else event)
        if self._full and self.submitted is not None:
            self.submitted.cancel()
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the event loop is over, and with it whoever waited
                self._loop.call_soon_threadsafe(self._any.set)

    async def submit(self, future: Future[Submitted]) -> Submitted:
        """Wait until a request is accepted; whoever stops waiting for that cancels it."""
        try:
            self.submitted = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(_cancel)
            raise
        return self.submitted

    async def __aiter__(self) -> AsyncIterator[list[Event]]:
        while True:
            await self._any.wait()
            self._any.clear()
            self._told = False  # before looking: what comes from now on is told again
            events: list[Event] = []
            end: list[BaseException | None] = []
            while self._arrived and not end:
                event = self._arrived.popleft()
                if isinstance(event, Event):
                    events.append(event)
                else:
                    end.append(event)
            if events:
                yield events
            if end:
                if end[0] is not None:
                    raise end[0]
                return


def _cancel(future: Future[Submitted]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().cancel()


__all__ = ["EngineThread", "Mailbox", "RequestFailed", "Submitted"]
