"""The processes that were started together, and groups of them: PyTorch's c10d carries everything.

A launcher tells each process its number, how many there are and where they meet, in environment
variables that all launchers share (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), or in
Slurm's. Nothing is made before it is needed: without a launcher there is one process, and PyTorch
is not loaded.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any
from zlib import crc32

import numpy as np

from genesis.ir.dtype import as_dtype
from genesis.ir.numpy_library.collectives import DEFINITIONS, Array, Due, Options

#: Seconds that a process waits for another; compiling may take the others some minutes.
TIMEOUT = 600.0
#: Seconds after which a process that waits looks whether the others do the same.
PATIENCE = 5.0
#: Bytes that one call of gloo should not exceed.
CHUNK = 16 << 20


class RankLost(RuntimeError):
    """Another process does not answer any more."""


class WrongTurn(RuntimeError):
    """Processes have come to do different things."""


def rank() -> int:
    """The number of this process among all; 0 without a launcher."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


def world_size() -> int:
    """How many processes a launcher has started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_STEP_NUM_TASKS", "1")))


def is_launched() -> bool:
    """Whether a launcher has started this process."""
    return "WORLD_SIZE" in os.environ or world_size() > 1


@cache
def c10d() -> Any:
    """PyTorch's package of process groups."""
    try:
        import torch.distributed as found
    except ImportError as error:
        raise ImportError(
            "several processes need PyTorch: pip install 'genesis-dl[distributed]'"
        ) from error
    import torch

    torch.set_num_threads(1)  # it carries data, and computes nothing
    return found


@cache
def store() -> Any:
    """What all processes can write notes to; a restarted group finds none of the last one's."""
    _end_with(int(os.environ.get("GENESIS_LAUNCHER", "0")))
    os.environ.setdefault("RANK", str(rank()))
    os.environ.setdefault("WORLD_SIZE", str(world_size()))
    address = _first_host(os.environ.get("SLURM_STEP_NODELIST", "")) or "127.0.0.1"
    os.environ.setdefault("MASTER_ADDR", address)
    port = 20000 + int(os.environ.get("SLURM_JOB_ID", "9500")) % 20000  # that of this job alone
    os.environ.setdefault("MASTER_PORT", str(port))
    from torch.distributed.rendezvous import rendezvous

    found, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=TIMEOUT)))
    before = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        _tell(error)
        before(kind, error, trace)

    sys.excepthook = told
    generation = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return c10d().PrefixStore(f"genesis/{generation}", found)


def _tell(error: BaseException) -> None:
    """Leave a note of what ends this process: those that wait for it name it.

    That of the first one is kept; that others are lost is no cause.
    """
    if isinstance(error, Exception) and not isinstance(error, RankLost):
        line = (str(error).splitlines() or [""])[0]
        with suppress(Exception):  # whatever becomes of the note
            text = f"process {rank()} failed: {type(error).__name__}: {line}"
            notes().compare_set("failed", "", text)


def failure() -> str:
    """What has ended one of the processes, if it left a note."""
    with suppress(Exception):  # the store may have ended, too
        if notes().check(["failed"]):
            return str(notes().get("failed"), "utf-8")
    return ""


def _first_host(nodes: str) -> str:
    """The first of the machines that Slurm names.

    >>> _first_host("gpu[03-05,9],other"), _first_host("login,gpu1"), _first_host("")
    ('gpu03', 'login', '')
    """
    found = re.match(r"([^\[,]*)(?:\[(\d+))?", nodes)
    assert found is not None
    return found[1] + (found[2] or "")


#: How often the processes that are together have changed (`elastic`).
epoch = 0
#: Whether processes were lost, or have given up waiting: asked by those who wait (`elastic`).
is_broken: Callable[[], bool] = lambda: False  # noqa: E731 - it is replaced


def notes() -> Any:
    """What the processes that are together now write notes to."""
    return c10d().PrefixStore(str(epoch), store())


def note(key: str) -> bytes:
    """A note that another process writes; `RankLost` if it cannot come any more."""
    end, pause = time.monotonic() + TIMEOUT, 1e-4
    while not notes().check([key]):
        if time.monotonic() > end or is_broken():
            raise RankLost(f"nobody has written {key!r}")
        if pause == 0.02 and (text := failure()):
            raise RankLost(text)
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    found: bytes = notes().get(key)
    return found


def renew(number: int, rank: int, size: int) -> None:
    """Go on as a process of another group: there is nothing left of the last one."""
    global epoch
    close()
    epoch = number
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(size)


def _end_with(launcher: int) -> None:
    """End this process when the launcher does, even if that is killed."""
    if launcher and hasattr(signal, "SIGKILL"):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != launcher:
            raise SystemExit("the launcher has ended")


_groups: list[ProcessGroup] = []


def close() -> None:
    """End all groups: whoever waits for this process learns that it does not come."""
    for group in _groups:
        group.close()
    _groups.clear()


@atexit.register
def _close() -> None:
    """End gloo's threads while there is an interpreter: later they would take the process down."""
    close()
    store.cache_clear()


class ProcessGroup:
    """Processes that exchange arrays: `members` are their numbers, of which this one is one."""

    def __init__(self, name: str, members: Sequence[int]) -> None:
        self.members = list(members)
        self.size, self.rank = len(members), self.members.index(rank())
        # Two processes of a group must not be in another one by this name.
        self.key = f"{name}/{'.'.join(map(str, members))}"
        prefix = c10d().PrefixStore(self.key, notes())
        timeout = timedelta(seconds=TIMEOUT)
        with self._lost("meeting", ("", name)):
            self._gloo: Any = c10d().ProcessGroupGloo(prefix, self.rank, self.size, timeout)
        self.name = name
        self.begun = self._awaited = 0  # collectives, and the number of the one that is waited for
        self._open = 0  # what was begun and has not ended
        self._now = ""  # what is waited for, in words
        _groups.append(self)

    def close(self) -> None:
        """Exchange nothing more."""
        if epoch or self._open:  # nobody is to wait for what was begun, not even this process
            self._gloo.abort()
        self._gloo = None

    def start(self, name: str, options: Options, xs: Sequence[Array]) -> Due:
        """Begin a collective that all of the group take part in; what gives its results.

        What is sent is copied first, so that whoever has the arrays may go on with them.
        """
        marks = _marks(name, options, xs[0].dtype, self.size)
        given = xs if marks is None else [*xs, marks[0]]
        with self._lost(name, options):
            due = _COLLECTIVES[name](self, options, given)

        self.begun += 1
        self._open += 1
        number = self.begun

        def finish() -> Sequence[Array]:
            self._awaited, self._now = number, f"{name} along {options[1]}"
            with self._lost(name, options):
                found = due()
                if marks is not None:
                    *found, got = found
                    if got.tobytes() != marks[1].tobytes():
                        raise WrongTurn(
                            f"process {rank()}: {self._now}, the collective {number} of "
                            f"{self.members}, is another one in one of the processes. {_ALIKE}"
                        )
            self._open -= 1
            return found

        return finish

    @contextmanager
    def _lost(self, name: str, options: Options) -> Iterator[None]:
        """Say who does not answer, if one does not."""
        try:
            yield
        except RuntimeError as error:
            self._open += 1  # for ever
            if isinstance(error, WrongTurn | RankLost):
                raise
            others = [m for m in self.members if m != rank()]
            cause = failure() or str(error).splitlines()[0]
            raise RankLost(
                f"{name} along {options[1]}: one of the processes {others} does not answer "
                f"({cause})"
            ) from None

    def broadcast(self, x: Array) -> Array:
        """The array that the first process of the group gives."""
        flat = _bytes(x).copy()
        options = c10d().BroadcastOptions()
        options.rootRank = 0
        with self._lost("broadcast", ("", self.name)):
            _passed([self._gloo.broadcast([_tensor(flat)], options)])
        return flat.view(x.dtype).reshape(x.shape)

    def send(self, x: Array, to: int, tag: int) -> Due:
        """Begin to send an array to a member of the group; what waits until it has gone.

        Its form goes before it, under a tag of its own: tags are even.
        """
        form = np.zeros(_FORM, np.int64)
        form[: 2 + x.ndim] = [_KINDS.index(x.dtype.name), x.ndim, *x.shape]
        flat = _bytes(x).copy()
        self._open += 1
        with self._lost("send", (self.name, f"rank {to}")):
            works = [self._gloo.send([_tensor(form)], to, tag)]
            works += [self._gloo.send([_tensor(flat)], to, tag + 1)] if flat.size else []

        def finish() -> Sequence[Array]:
            with self._lost("send", (self.name, f"rank {to}")):
                _passed(works)
            self._open -= 1
            return [form, flat]  # which have to live until now

        return finish

    def receive(self, source: int, tag: int) -> Array:
        """The array that a member of the group sends under a tag."""
        form = np.zeros(_FORM, np.int64)
        with self._lost("receive", (self.name, f"rank {source}")):
            _passed([self._gloo.recv([_tensor(form)], source, tag)])
            kind: np.dtype[Any] = as_dtype(_KINDS[form[0]]).numpy
            shape = tuple(form[2 : 2 + form[1]].tolist())
            flat = np.empty(prod(shape) * kind.itemsize, np.uint8)
            if flat.size:
                _passed([self._gloo.recv([_tensor(flat)], source, tag + 1)])
        found: Array = flat.view(kind).reshape(shape)
        return found

    def _waited(self, x: Array, works: Sequence[Any]) -> Array:
        """An array that is filled when some works have ended."""
        for work in works:
            end = time.monotonic() + TIMEOUT
            while not self._ended(work, time.monotonic() > end):
                self._require_company()
        return x

    def _ended(self, work: Any, last: bool) -> bool:
        """Whether a work has ended, after a while; raises an error if that was the `last` one."""
        try:
            work.wait(timedelta(seconds=PATIENCE))
        except RuntimeError:
            if last or work.is_completed():  # it failed
                raise
            return False
        return True

    def _require_company(self) -> None:
        """Raise an error if another process waits for something else: both would for ever."""
        if is_broken():
            raise RankLost(f"the processes {self.members} are not together any more")
        mine = f"in {self._now}", self.key, self._awaited
        notes().set(f"waiting/{rank()}", json.dumps([*mine, _begun()]).encode())
        for other in self.members:
            text = b"" if other == rank() else _seen(f"waiting/{other}")
            if not text:
                continue
            what, key, number, begun = json.loads(text)
            if (key, number) == mine[1:]:
                strays = what != mine[0]
            else:  # each has still to do its part in what the other waits for
                needed = key == ALL or _begun().get(key, number) < number
                strays = needed and begun.get(self.key, 0) < self._awaited
            if strays:
                raise WrongTurn(
                    f"process {rank()} waits for the others {mine[0]}, while process {other} waits "
                    f"for all {what}. {_ALIKE}"
                )

    def lost(self, cause: str) -> RankLost | None:
        """The error to raise if a process of the group is lost, or there is a cause to think so."""
        if not cause and is_broken():
            cause = "they are not together any more"
        cause = failure() or cause
        return RankLost(f"collectives of {self.members}: {cause}") if cause else None

    # ---- collectives
    def _all_reduce(self, options: Options, xs: Sequence[Array]) -> Due:
        kind = xs[0].dtype
        if kind.name not in REDUCED:
            return self._defined("all_reduce", options, xs)
        flat, shapes = _joined(xs), [x.shape for x in xs]
        chosen = c10d().AllreduceOptions()
        chosen.reduceOp = getattr(c10d().ReduceOp, _OPERATIONS[options[2]])
        step = CHUNK // kind.itemsize
        works = [
            self._gloo.allreduce([_tensor(flat[start : start + step])], chosen)
            for start in range(0, flat.size, step)
        ]
        return lambda: _parted(self._waited(flat, works), shapes)

    def _all_gather(self, options: Options, xs: Sequence[Array]) -> Due:
        kind, shapes = xs[0].dtype, [x.shape for x in xs]
        flat = _bytes(_joined(xs))
        out = np.empty(self.size * flat.size, np.uint8)
        works = [self._gloo._allgather_base(_tensor(out), _tensor(flat))] if flat.size else []

        def due() -> list[Array]:
            parts = [
                _parted(part.view(kind), shapes)
                for part in np.split(self._waited(out, works), self.size)
            ]
            return [np.concatenate([arrays[k] for arrays in parts]) for k in range(len(shapes))]

        return due

    def _reduce_scatter(self, options: Options, xs: Sequence[Array]) -> Due:
        if xs[0].dtype.name not in REDUCED:
            return self._defined("reduce_scatter", options, xs)
        shapes = [(len(x) // self.size, *x.shape[1:]) for x in xs]
        # The part of the first process, then that of the second, ..
        sent = np.concatenate([x.reshape(self.size, -1) for x in xs], 1).reshape(-1)
        out = np.empty(sent.size // self.size, sent.dtype)
        works = [self._gloo._reduce_scatter_base(_tensor(out), _tensor(sent))] if out.size else []
        return lambda: _parted(self._waited(out, works), shapes)

    def _all_to_all(self, options: Options, xs: Sequence[Array]) -> Due:
        sent = [_bytes(x).copy() for x in xs]
        outs = [np.empty_like(x) for x in sent]
        forms = [(x.dtype, x.shape) for x in xs]
        works = [
            self._gloo.alltoall_base(_tensor(out), _tensor(x), [], [])
            for out, x in zip(outs, sent, strict=True)
            if x.size
        ]

        def due() -> list[Array]:
            pairs = zip(outs, forms, strict=True)
            return [self._waited(x, works).view(kind).reshape(shape) for x, (kind, shape) in pairs]

        return due

    def _permute(self, options: Options, xs: Sequence[Array]) -> Due:
        """Everybody sends to one, and receives from one: `options` has from whom, by rank."""
        sources, flat, nothing = options[2], _joined(xs), np.empty(0, np.uint8)
        sent = [_bytes(flat) if source == self.rank else nothing for source in sources]
        counts = [flat.nbytes if sources[self.rank] == r else 0 for r in range(self.size)]
        due = self.pieces(sent, counts)

        def parts() -> list[Array]:
            got = np.ascontiguousarray(due()[sources[self.rank]]).view(flat.dtype)
            return _parted(got, [x.shape for x in xs])

        return parts

    def pieces(self, sent: Sequence[Array], counts: Sequence[int]) -> Due:
        """Bytes for every member, and so many from each: what waits for those."""
        flat = np.concatenate([np.asarray(x, np.uint8) for x in sent])
        out = np.empty(sum(counts), np.uint8)
        given = [len(x) for x in sent]
        works = [self._gloo.alltoall_base(_tensor(out), _tensor(flat), list(counts), given)]

        def due() -> Sequence[Array]:
            with self._lost("pieces", ("", self.name)):
                self._waited(out, works)
            return np.split(out, list(accumulate(counts))[:-1])

        return due

    def _defined(self, name: str, options: Options, xs: Sequence[Array]) -> Due:
        """A collective of a type that gloo cannot add: everybody gets everything and adds it up."""
        due = self._all_gather(options, [x.reshape(1, *x.shape) for x in xs])
        return lambda: [DEFINITIONS[name](options, list(x))[self.rank] for x in due()]


_COLLECTIVES: dict[str, Callable[[ProcessGroup, Options, Sequence[Array]], Due]] = {
    "all_reduce": ProcessGroup._all_reduce,
    "all_gather": ProcessGroup._all_gather,
    "reduce_scatter": ProcessGroup._reduce_scatter,
    "all_to_all": ProcessGroup._all_to_all,
    "permute": ProcessGroup._permute,
}
_OPERATIONS = {"sum": "SUM", "prod": "PRODUCT", "max": "MAX", "min": "MIN"}
#: What gloo can add.
REDUCED = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8")


def _passed(works: Sequence[Any]) -> None:
    """Wait for what one process sends another: whoever gives up waiting ends gloo's connections."""
    for work in works:
        work.wait(timedelta(seconds=TIMEOUT))


#: What an array that is sent may be of, and the numbers that say its form.
_KINDS = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8",
          "bool", "complex64", "complex128")  # fmt: skip
_FORM = 16


def _joined(xs: Sequence[Array]) -> Array:
    """Arrays one after the other, in memory of their own."""
    return np.concatenate([x.reshape(-1) for x in xs])


def _parted(flat: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The arrays that lie one after the other in a flat one."""
    ends = list(accumulate(map(prod, shapes), initial=0))
    return [flat[a:b].reshape(s) for a, b, s in zip(ends, ends[1:], shapes, strict=False)]


@contextmanager
def waiting_for_all(what: str) -> Iterator[None]:
    """Let others know what this process waits for them to do, too."""
    mine = f"to begin a program, {what}", ALL, 0, _begun()
    notes().set(f"waiting/{rank()}", json.dumps(mine).encode())
    try:
        yield
    finally:
        notes().set(f"waiting/{rank()}", b"")  # what is not there is waited for


def _begun() -> dict[str, int]:
    """How many collectives this process has begun in every group."""
    return {group.key: group.begun for group in _groups}


def _seen(key: str) -> bytes:
    """A note, if it is there."""
    return bytes(notes().get(key)) if notes().check([key]) else b""


#: For whom a process waits that is about to begin a program.
ALL = ""
_ALIKE = "Every process must call the same functions, in one order, on arrays of the same shapes"
#: The bits of an integer that every type which gloo adds has room for.
_EXACT = {
    "float64": 53, "float32": 24, "float16": 11, "bfloat16": 8,
    "int64": 63, "int32": 31, "int8": 7, "uint8": 8,
}  # fmt: skip


@cache
def _marks(
    name: str, options: Options, kind: np.dtype[Any], size: int
) -> tuple[Array, Array] | None:
    """What goes along with a collective, and what has to come back.

    Two processes whose turns differ would add up arrays that have nothing in common, and never
    know. So a number goes along that says which collective this is, in elements of its type.
    """
    how = options[2] if name == "all_reduce" else "sum"
    number = crc32(repr((name, options, kind.name)).encode()) & 0xFFFFFF
    if name in ("all_gather", "permute"):
        each = np.frombuffer(number.to_bytes(16, "little"), kind).copy()
        return each, np.tile(each, size if name == "all_gather" else 1)
    bits = _EXACT.get(kind.name, 0) - size.bit_length()
    if name == "all_to_all" or how == "prod" or bits < 1:
        return None
    digits = [number >> k & (1 << bits) - 1 for k in range(0, 24, bits)]
    each = np.array(digits).astype(kind)
    total = (np.array(digits) * (size if how == "sum" else 1)).astype(kind)
    return (np.tile(each, size) if name == "reduce_scatter" else each), total


def _bytes(x: Array) -> Array:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def _tensor(flat: Array) -> Any:
    """A flat array as a tensor on the same memory."""
    import torch

    if flat.dtype.name == "bfloat16":
        return torch.from_numpy(flat.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(flat)
