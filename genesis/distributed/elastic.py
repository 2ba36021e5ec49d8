"""Training that goes on when processes are lost, stall, come or leave: nobody is started anew.

After every step a process holds on to the values it has, which costs nothing but memory: the next
step writes elsewhere. Blocks that nobody else has go to the next process as well. When a process
does not answer, the others agree through the launcher's store who is there, find the last step that
can be put together from what they hold, move what lies elsewhere now (`reshard`), and go on.

    def train(run):                          # called anew whenever the processes change
        mesh = gd.mesh(dp=-1)
        model, optimizer = ...
        gd.place(model, optimizer, dp=gd.zero(3))
        for k in run.steps(1000, model, optimizer):
            step(*batch(k))                  # data by the number of the step

    gd.elastic(train)

How they agree: every *epoch* has its own list of members. Whoever finds that a member is lost goes
to the next epoch; the first one there waits for all that are not known to be gone, up to a time,
and writes the list. A process that starts later, or comes back too late, writes down that it wishes
to come; the first member sees that, and names a step before which all go to the next epoch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import numpy as np

from genesis import nn, optim
from genesis.distributed import mesh as meshes
from genesis.distributed import placement_rules, process_groups
from genesis.distributed.checkpoint import (
    arrays_of,
    contents_of,
    region_of,
    settings_of,
    use_settings,
)
from genesis.distributed.mesh import Mesh
from genesis.distributed.process_groups import ProcessGroup, RankLost
from genesis.distributed.reshard import Region, moved, plan
from genesis.ndarray import NDArray
from genesis.ndarray.core.interop import copied, realize
from genesis.ndarray.core.value import Value
from genesis.ndarray.random import default_generator

T = TypeVar("T")
#: Steps of which what was there is held: processes are at most one apart when one is lost.
HELD = 2
#: Seconds after which a process that waits looks whether the others are still there.
PATIENCE = 0.5
_ANEW = "start again from a checkpoint (genesis.distributed.restore)"
#: Seconds after which the first process looks whether others wish to come or to leave.
ATTENTION = 0.05


class Changed(Exception):
    """All processes have come to the step before which they are to change."""


class Held(NamedTuple):
    """What a process holds of one step: regions of arrays, and the settings of the optimizer."""

    arrays: Mapping[str, list[tuple[Region, Value | np.ndarray[Any, Any]]]]
    settings: list[dict[str, Any]]


def elastic(train: Callable[[Run], T], *, timeout: float = 60.0) -> T:
    """Call a function that trains, and call it anew whenever the processes change; its result.

    A process that does not answer for `timeout` seconds is given up. Start it by `genesis launch
    --elastic`; under another launcher, or without one, it is called once.

    >>> elastic(lambda run: [k for k in run.steps(3, nn.Linear(2, 2))])
    [0, 1, 2]
    """
    if "GENESIS_MEMBER" not in os.environ:
        return train(Run(None))
    before = process_groups.TIMEOUT, process_groups.PATIENCE, process_groups.is_broken
    process_groups.TIMEOUT, process_groups.PATIENCE = timeout, min(PATIENCE, timeout)
    run = Run(_Council(timeout))
    process_groups.is_broken = run.council.is_broken
    try:
        while True:
            with suppress(RankLost, Changed):
                run.begin()
                result = train(run)
                run.council.store.set("done", b"1")  # nobody needs to come any more
                return result
            run.noticed = time.monotonic()
            process_groups.close()
            meshes.forget()
    finally:
        process_groups.TIMEOUT, process_groups.PATIENCE, process_groups.is_broken = before


class Run:
    """What a training that survives is given: the steps that are left."""

    def __init__(self, council: _Council | None) -> None:
        self._council = council
        self._held: dict[tuple[int, int], Held] = {}  # by epoch and step
        self.noticed = 0.0
        #: When the processes last changed: bytes that this one has received, and the seconds from
        #: when it noticed to when it had what it needs to go on.
        self.received, self.seconds = 0, 0.0

    @property
    def council(self) -> _Council:
        """What agrees on who is there."""
        assert self._council is not None
        return self._council

    def begin(self) -> None:
        """Meet the others of a new epoch; a process that is to leave hands over what it has."""
        record = self.council.meet(bool(self._held))
        placement_rules.takes_over = record.resumes
        if record.rank >= record.size:
            self._exchange(None, {}, {})
            raise SystemExit(0)

    def resize(self, count: int) -> None:
        """Ask for another number of processes; they change between two of the next steps."""
        if count < 1:
            raise ValueError(f"resize: {count} processes")
        if self._council is not None:
            self._council.store.set("target", str(count).encode())
            self._council.store.set("more", str(count).encode())  # the launcher reads this

    def steps(
        self, count: int, model: nn.Module, optimizer: optim.Optimizer | None = None, every: int = 1
    ) -> Iterator[int]:
        """The numbers of the steps that are left of `count`.

        Weights, buffers, the optimizer's state and settings and random numbers are those of the
        last step that could be kept: of every one, or where that is too much to send, of one in
        `every`.
        """
        if self._council is None:
            yield from range(count)
            return
        on = meshes.current()
        start = self._restore(on, model, optimizer)
        for k in range(start, count):
            if self.council.is_due(k):
                self._hold(on, k, model, optimizer)
                with suppress(RankLost):  # one that others have left hangs up on them
                    on.barrier()
                raise Changed
            yield k
            if (k + 1 - start) % every == 0 or k + 1 == count:
                self._hold(on, k + 1, model, optimizer)
        on.barrier()  # who has finished must not be missed by the others

    # ---- what is held
    def _hold(
        self, on: Mesh, step: int, model: nn.Module, optimizer: optim.Optimizer | None
    ) -> None:
        """Keep what there is after so many steps."""
        if (process_groups.epoch, step) in self._held:
            return
        arrays: dict[str, list[tuple[Region, Value | np.ndarray[Any, Any]]]] = {}
        alone: list[tuple[str, Value]] = []
        for name, x in _everything(model, optimizer).items():
            realize(x)
            value = x.storage.actual
            arrays[name] = [(_region(on, x), value)]
            if value.placement is not None and all(
                split is not None or size == 1
                for split, (_, size) in zip(value.placement.splits, on.form.axes, strict=True)
            ):
                alone.append((name, value))
        if alone and on.size > 1:
            self._copy(on, alone, arrays)
        settings = [] if optimizer is None else settings_of(optimizer)
        self._held[process_groups.epoch, step] = Held(arrays, settings)
        for old in sorted(self._held)[:-HELD]:
            del self._held[old]

    def _copy(self, on: Mesh, alone: Sequence[tuple[str, Value]], arrays: dict[str, Any]) -> None:
        """Give the next process what nobody else has, and take what the one before has."""
        blocks = [contents_of(value) for _, value in alone]
        before = (on.rank - 1) % on.size
        sources = tuple((r - 1) % on.size for r in range(on.size))
        flat = [b.reshape(-1).view(np.uint8) for b in blocks]
        got = on.every("permute", sources, flat)
        for (name, value), mine, theirs in zip(alone, blocks, got, strict=True):
            region = region_of(on, value.shape, value.placement, before)
            box = tuple((s.start, s.stop - s.start) for s in region)
            arrays[name].append((box, theirs.view(mine.dtype).reshape(mine.shape)))

    def _restore(self, on: Mesh, model: nn.Module, optimizer: optim.Optimizer | None) -> int:
        """Fill everything with what is held of the last step that all of is held of."""
        if optimizer is not None:
            optimizer.prepare()
        if not placement_rules.takes_over:
            self._hold(on, 0, model, optimizer)
            return 0
        wanted = _everything(model, optimizer)
        for x in wanted.values():
            realize(x)
        regions = {name: (_region(on, x), x.dtype.numpy) for name, x in wanted.items()}
        found, settings, step = self._exchange(on, regions, wanted)
        default_generator().state = copied(found.pop("random"))
        for name, contents in found.items():
            _fill(on, wanted[name], contents)
        if optimizer is not None:
            use_settings(optimizer, settings)
        placement_rules.takes_over = False
        self._hold(on, step, model, optimizer)  # until the next step, that of the last epoch, too
        self.seconds = time.monotonic() - self.noticed if self.noticed else 0.0
        return step

    def _exchange(
        self, on: Mesh | None, wanted: Mapping[str, tuple[Region, Any]], arrays: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray[Any, Any]], list[dict[str, Any]], int]:
        """Tell the others what is held and what is wanted, and move it."""
        record = self.council.record
        present, me = len(record.present), record.rank
        mine = {
            "held": [
                [*key, {name: [box for box, _ in boxes] for name, boxes in held.arrays.items()}]
                for key, held in self._held.items()
            ],
            "settings": [[*key, held.settings] for key, held in self._held.items()],
            "wants": {name: box for name, (box, _) in wanted.items()},
        }
        process_groups.notes().set(f"state/{me}", json.dumps(mine).encode())
        notes = [json.loads(process_groups.note(f"state/{k}")) for k in range(present)]
        wants = [{name: _box(box) for name, box in note["wants"].items()} for note in notes]
        keys = {(e, s) for note in notes for e, s, _ in note["held"]}
        for key in sorted(keys, reverse=True):
            holds = [_holdings(note, key) for note in notes]
            with suppress(KeyError):
                moves = plan(holds, wants)
                break
        else:
            raise RuntimeError(
                f"too many processes were lost at once: nobody holds what they alone had; {_ANEW}"
            )
        settings = next(s for note in notes for e, k, s in note["settings"] if (e, k) == key)
        link = ProcessGroup("state", range(present)) if present > 1 else None
        mine_held = self._held[key].arrays if key in self._held else {}
        contents = {
            name: [(b, contents_of(x) if isinstance(x, Value) else x) for b, x in boxes]
            for name, boxes in mine_held.items()
        }
        found, self.received = moved(moves, contents, wanted, link, me)
        return found, settings, key[1]


def _everything(model: nn.Module, optimizer: optim.Optimizer | None) -> dict[str, NDArray]:
    return arrays_of(model, optimizer) | {"random": default_generator().state}


def _region(on: Mesh, x: NDArray) -> Region:
    """Where this process's block of an array lies."""
    found = region_of(on, x.shape, x.storage.actual.placement)
    return tuple((s.start, s.stop - s.start) for s in found)


def _fill(on: Mesh, x: NDArray, contents: np.ndarray[Any, Any]) -> None:
    where = x.storage.actual.placement
    value = copied(contents, x.device)
    x.storage.replace((value if where is None else on.joined(value, x.shape, where)).value)


def _box(box: Sequence[Sequence[int]]) -> Region:
    return tuple((int(start), int(extent)) for start, extent in box)


def _holdings(note: Mapping[str, Any], key: tuple[int, int]) -> dict[str, list[Region]]:
    """What a process holds of a step."""
    found = [held for epoch, step, held in note["held"] if (epoch, step) == key]
    return {name: [_box(b) for b in boxes] for name, boxes in found[0].items()} if found else {}


class Record(NamedTuple):
    """Who is there in an epoch: members, by rank, and after them those that are to leave."""

    members: list[int]
    leaving: list[int]
    resumes: bool  #: whether somebody holds something of a step
    rank: int

    @property
    def present(self) -> list[int]:
        """Members, and those that leave after they have handed over what they hold."""
        return self.members + self.leaving

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self.members)


class _Council:
    """How processes agree, through the launcher's store, on who is there."""

    def __init__(self, timeout: float) -> None:
        self.me, self.first = (int(os.environ[f"GENESIS_{x}"]) for x in ("MEMBER", "FIRST"))
        self.timeout = timeout
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        limit = timedelta(seconds=timeout)
        direct = process_groups.c10d().TCPStore(
            address, port, None, False, limit, wait_for_workers=False
        )
        self.store = process_groups.c10d().PrefixStore("elastic", direct)
        self.record = Record(list(range(self.first)), [], False, 0)
        self._looked = 0.0

    # ---- who is there
    def meet(self, holds: bool) -> Record:
        """Go to the next epoch, with whoever else does."""
        epoch = process_groups.epoch + 1
        if not process_groups.epoch and self.me >= self.first:
            epoch = self._invited()
        while True:
            ticket = self.store.add(f"{epoch}/arrived", 1)
            self.store.set(f"{epoch}/who/{ticket}", json.dumps([self.me, holds]).encode())
            if ticket == 1:
                self._decide(epoch)
            members, leaving, resumes = self._decided(epoch)
            if self.me in members + leaving:
                break
            # This process came too late, or the list was never written.
            epoch = epoch + 1 if not members else self._invited()
        rank = (members + leaving).index(self.me)
        self.record = Record(members, leaving, resumes, rank)
        process_groups.renew(epoch, rank, len(members))
        return self.record

    def _decide(self, epoch: int) -> None:
        """Write who is in an epoch: all that come, once all are there that are not known gone."""
        change = json.loads(self._read(f"{epoch - 1}/change") or "{}")
        before = self.record.members + change.get("join", [])
        end = time.monotonic() + self.timeout
        while time.monotonic() < end:
            there = self._arrived(epoch)
            if all(uid in there or self._is_gone(uid) for uid in before):
                break
            time.sleep(0.005)
        there = self._arrived(epoch)
        order = [uid for uid in before if uid in there] + sorted(set(there) - set(before))
        leaving = [uid for uid in order if uid in change.get("leave", [])]
        members = [uid for uid in order if uid not in leaving]
        resumes = any(there.values())
        self.store.set(f"{epoch}/members", json.dumps([members, leaving, resumes]).encode())
        if int(self._read("epoch") or "0") < epoch:
            self.store.set("epoch", str(epoch).encode())

    def _arrived(self, epoch: int) -> dict[int, bool]:
        """Those that have come to an epoch and are not gone, and whether they hold something."""
        count = self.store.add(f"{epoch}/arrived", 0)
        texts = [self._read(f"{epoch}/who/{k}") for k in range(1, count + 1)]
        found = dict(json.loads(text) for text in texts if text)
        return {uid: holds for uid, holds in found.items() if not self._is_gone(uid)}

    def _decided(self, epoch: int) -> tuple[list[int], list[int], bool]:
        """The list of an epoch; an empty one if nobody can write it any more."""
        end = time.monotonic() + 2 * self.timeout
        while time.monotonic() < end:
            text = self._read(f"{epoch}/members")
            if text:
                members, leaving, resumes = json.loads(text)
                return members, leaving, resumes
            first = self._read(f"{epoch}/who/1")
            if first and self._is_gone(json.loads(first)[0]):
                break
            time.sleep(0.002)
        return [], [], False

    def _invited(self) -> int:
        """Wish to come, and wait until there is an epoch to come to."""
        number = self.store.add("wishes", 1)
        self.store.set(f"wish/{number}", str(self.me).encode())
        while True:
            epoch = int(self._read("epoch") or "0")
            change = json.loads(self._read(f"{epoch}/change") or "{}")
            if self.me in change.get("join", []) and self.store.add(f"{epoch + 1}/arrived", 0):
                return epoch + 1  # a member comes first: it knows the others
            if self.store.check(["done"]):
                raise SystemExit(0)
            text = self._read(f"{epoch}/members")
            members = json.loads(text)[0] if text else range(self.first)
            if all(map(self._is_gone, members)) and not self._arrived(epoch + 1):
                raise RuntimeError(f"nobody is left who could let this process in; {_ANEW}")
            time.sleep(0.01)

    def _read(self, key: str) -> str:
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def _is_gone(self, uid: int) -> bool:
        return bool(self.store.check([f"gone/{uid}"]))

    # ---- when it changes
    def is_broken(self) -> bool:
        """Whether a member is gone, or has left the epoch because it found another one gone."""
        if self.store.add(f"{process_groups.epoch + 1}/arrived", 0):
            return True
        return any(self._is_gone(uid) for uid in self.record.present if uid != self.me)

    def is_due(self, step: int) -> bool:
        """Whether all are to change before a step.

        The first process decides that two steps ahead: nobody ends the step between without it.
        """
        if self.record.rank == 0 and time.monotonic() - self._looked > ATTENTION:
            self._looked = time.monotonic()
            self._look(step)
        text = self._read(f"{process_groups.epoch}/change")
        return bool(text) and step >= json.loads(text)["at"]

    def _look(self, step: int) -> None:
        """Take note of those that wish to come, and of a number that is wished for."""
        if self._read(f"{process_groups.epoch}/change"):
            return
        wishes = [self._read(f"wish/{k}") for k in range(1, self.store.add("wishes", 0) + 1)]
        here = self.record.members
        join = sorted({int(w) for w in wishes if w} - set(here))
        join = [uid for uid in join if not self._is_gone(uid)]
        target = int(self._read("target") or "0")
        leave = here[target:] if target else []
        join = join[: max(0, target - len(here))] if target else join
        if join or leave:
            change = {"at": step + 2, "join": join, "leave": leave}
            self.store.set(f"{process_groups.epoch}/change", json.dumps(change).encode())


__all__ = ["Run", "elastic"]
