"""Codecs: gradients in fewer bytes, for processes whose network is slower than they are.

What a codec leaves out is not lost: each process keeps the difference of what it wanted to send and
what it has sent, and adds it to the next gradient (error feedback). `Adaptive` measures what the
network carries, and takes the codec that is done first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from genesis.distributed.process_groups import ProcessGroup

Array = np.ndarray[Any, Any]


class Codec(Protocol):
    """How an array is sent."""

    def exchange(self, x: Array, link: ProcessGroup, name: str = "") -> tuple[Array, Array, int]:
        """The sum of what all have sent, what this process has, and the bytes of that.

        `name` says of what it is, to a codec that goes on from what it did with that last time. All
        processes have the same of it, in a dictionary `state`, which checkpoints keep.
        """
        ...


class _Parts:
    """Codecs that encode an array into a few others, which all get from all."""

    def encode(self, x: Array) -> list[Array]:
        """What is sent."""
        raise NotImplementedError

    def decode(self, parts: Sequence[Array], x: Array) -> Array:
        """What it stands for, in the form of `x`."""
        raise NotImplementedError

    def exchange(self, x: Array, link: ProcessGroup, name: str = "") -> tuple[Array, Array, int]:
        """The sum of what all have sent, what this process has, and the bytes of that."""
        parts = self.encode(x)
        everybody = [
            link.start("all_gather", (link.name, link.name), [part[None]])()[0] for part in parts
        ]
        total = np.zeros_like(x)
        for rank in range(link.size):
            total += self.decode([each[rank] for each in everybody], x)
        return total, self.decode(parts, x), sum(part.nbytes for part in parts)


class Plain:
    """Everything, as it is."""

    def exchange(self, x: Array, link: ProcessGroup, name: str = "") -> tuple[Array, Array, int]:
        """The sum of what all have sent, what this process has, and the bytes of that."""
        (total,) = link.start("all_reduce", (link.name, link.name, "sum"), [x])()
        return total, x, x.nbytes


class Half(_Parts):
    """Half of the bytes: float16, in a unit of its own so that nothing overflows."""

    def encode(self, x: Array) -> list[Array]:
        """What is sent."""
        scale = np.float32(np.abs(x).max(initial=0)) or np.float32(1)
        return [(x.reshape(-1) / scale).astype(np.float16), scale.reshape(1)]

    def decode(self, parts: Sequence[Array], x: Array) -> Array:
        """What it stands for."""
        values, scale = parts
        return (values.astype(np.float32) * scale).astype(x.dtype).reshape(x.shape)


class Int8(_Parts):
    """A quarter of the bytes: integers from -127 to 127 times the scale of their group."""

    def __init__(self, group: int = 256) -> None:
        self.group = group

    def encode(self, x: Array) -> list[Array]:
        """What is sent."""
        rows = _rows(x, self.group)
        scales = np.abs(rows).max(1, initial=0, keepdims=True).astype(np.float32) / 127
        safe = np.where(scales > 0, scales, 1)
        return [np.rint(rows / safe).astype(np.int8), scales]

    def decode(self, parts: Sequence[Array], x: Array) -> Array:
        """What it stands for."""
        codes, scales = parts
        return _form(codes.astype(np.float32) * scales, x)


class Sign(_Parts):
    """A thirtieth of the bytes: signs, times the mean of a group's magnitudes."""

    def __init__(self, group: int = 256) -> None:
        self.group = group

    def encode(self, x: Array) -> list[Array]:
        """What is sent."""
        rows = _rows(x, self.group)
        return [np.packbits(rows >= 0, axis=1), np.abs(rows).mean(1).astype(np.float32)]

    def decode(self, parts: Sequence[Array], x: Array) -> Array:
        """What it stands for."""
        bits, scales = parts
        signs = np.unpackbits(bits, axis=1, count=self.group).astype(np.float32) * 2 - 1
        return _form(signs * scales[:, None], x)


class TopK(_Parts):
    """The greatest elements by magnitude, a share of all, and where they are."""

    def __init__(self, share: float = 0.01) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"TopK: a share is above 0 and at most 1, not {share}")
        self.share = share

    def encode(self, x: Array) -> list[Array]:
        """What is sent."""
        flat = x.reshape(-1)
        count = max(1, round(self.share * flat.size)) if flat.size else 0
        sizes = np.nan_to_num(np.abs(flat), nan=np.inf)  # what is wrong is to be seen
        kind = np.int32 if flat.size < 1 << 31 else np.int64
        places = np.zeros(0, kind)
        if count:
            places = np.sort(np.argpartition(-sizes, count - 1)[:count]).astype(kind)
        return [places, flat[places]]

    def decode(self, parts: Sequence[Array], x: Array) -> Array:
        """What it stands for."""
        places, values = parts
        found = np.zeros(x.size, x.dtype)
        found[places] = values
        return found.reshape(x.shape)


class PowerSGD:
    """Matrices as products of two narrow ones, found by a step of power iteration each time.

    What is not worth it, because it is a vector or hardly larger, is sent as it is.
    """

    def __init__(self, rank: int = 4) -> None:
        self.rank = rank
        self.state: dict[str, Array] = {}  # where the last iteration ended

    def exchange(self, x: Array, link: ProcessGroup, name: str = "") -> tuple[Array, Array, int]:
        """The sum of what all have sent, what this process has, and the bytes of that."""
        matrix = x.reshape(len(x), -1) if x.ndim > 1 else x.reshape(1, -1)
        rows, columns = matrix.shape
        if self.rank * (rows + columns) >= rows * columns:
            return Plain().exchange(x, link)
        right = self.state.get(name)
        if right is None or right.shape != (columns, self.rank):
            seed = np.random.default_rng(columns)  # the same everywhere
            right = seed.standard_normal((columns, self.rank)).astype(x.dtype)
        (left,) = link.start("all_reduce", (link.name, link.name, "sum"), [matrix @ right])()
        left = np.linalg.qr(left)[0]
        own = matrix.T @ left
        (right,) = link.start("all_reduce", (link.name, link.name, "sum"), [own])()
        self.state[name] = right
        sent = left.nbytes + own.nbytes
        return (left @ right.T).reshape(x.shape), (left @ own.T).reshape(x.shape), sent


class Adaptive:
    """Of some codecs the one that takes least time, by what encoding takes and the network carries.

    Each is tried once. After that another one has to be better by a quarter for several exchanges
    before it is taken, so that a network that changes is followed, and one that flickers is not.
    """

    STEADY, BETTER = 5, 0.75

    def __init__(self, codecs: Sequence[Codec] | None = None) -> None:
        self.codecs: list[Codec] = list(codecs or [Plain(), Int8(), TopK(0.01)])
        self.chosen = self.switches = 0
        self.rate = 0.0  # bytes a second
        #: Seconds of work, and bytes sent, for a byte of gradient, by codec.
        self._costs: dict[int, tuple[float, float]] = {}
        self._waited, self._new = 0, True

    def exchange(self, x: Array, link: ProcessGroup, name: str = "") -> tuple[Array, Array, int]:
        """The sum of what all have sent, what this process has, and the bytes of that."""
        begin, before = time.perf_counter(), time.thread_time()
        found = self.codecs[self.chosen].exchange(x, link, name)
        seconds, working = time.perf_counter() - begin, time.thread_time() - before
        # All have to choose the same, so all go by the slowest.
        times = np.array([working, seconds - working])
        (times,) = link.start("all_reduce", (link.name, link.name, "max"), [times])()
        self.note(x.nbytes, found[2], float(times[0]), max(float(times[1]), 1e-9))
        return found

    def note(self, nbytes: int, sent: int, working: float, carried: float) -> None:
        """An exchange of so many bytes sent others, and took so long; the next codec is chosen."""
        self._costs[self.chosen] = (working / max(nbytes, 1), sent / max(nbytes, 1))
        rate = sent / carried
        self.rate = rate if not self.rate else 0.5 * self.rate + 0.5 * rate
        if len(self._costs) < len(self.codecs):
            self.chosen = len(self._costs)
            return
        times = {k: work + share / self.rate for k, (work, share) in self._costs.items()}
        best = min(times, key=lambda k: times[k])
        if self._new:
            self.chosen, self._new = best, False
        better = best != self.chosen and times[best] < self.BETTER * times[self.chosen]
        self._waited = self._waited + 1 if better else 0
        if self._waited >= self.STEADY:
            self.chosen, self._waited = best, 0
            self.switches += 1


class Feedback:
    """A codec with error feedback: `residuals` are what was not sent yet, by name."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.residuals: dict[str, Array] = {}
        self.sent = 0  # bytes

    @property
    def state(self) -> dict[str, Array]:
        """What the codec goes on from."""
        found: dict[str, Array] = getattr(self.codec, "state", {})
        return found

    def take_over(self, residuals: Mapping[str, Sequence[Array]], number: int, count: int) -> None:
        """Go on with what other processes have left to be sent, as process `number` of `count`.

        Nothing gets lost: where there are fewer now, they share what is left.
        """
        self.residuals = {
            name: sum(arrays[number::count], np.zeros_like(arrays[0]))
            for name, arrays in residuals.items()
        }

    def reduce(self, name: str, x: Array, link: ProcessGroup) -> Array:
        """The sum of an array over processes, as far as it was sent."""
        wanted = x + self.residuals[name] if name in self.residuals else x
        total, sent, nbytes = self.codec.exchange(wanted, link, name)
        left = wanted - sent
        self.residuals[name] = np.where(np.isfinite(left), left, 0)  # or it would stay for ever
        self.sent += nbytes
        return total


def _rows(x: Array, group: int) -> Array:
    """An array as rows of so many, the last filled up with zeros."""
    flat = x.reshape(-1).astype(np.float32)
    return np.pad(flat, (0, -len(flat) % group)).reshape(-1, group)


def _form(rows: Array, x: Array) -> Array:
    return rows.reshape(-1)[: x.size].astype(x.dtype).reshape(x.shape)


__all__ = ["Adaptive", "Codec", "Feedback", "Half", "Int8", "Plain", "PowerSGD", "Sign", "TopK"]
