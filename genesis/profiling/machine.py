"""What this machine can do at most: the roof over every kernel, measured and kept.

Three kernels find it out. One multiplies and adds in registers and touches no memory, one reads,
one copies. How fast memory is depends on which cache the data fits in, so the last two run on
several amounts. The figures are of the threads that programs use, and are kept with the compiled
code; another measurement raises them where it finds more.
"""

from __future__ import annotations

import ctypes
import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple

from genesis.backends import get
from genesis.backends.base import Executable, Launch, Memory
from genesis.backends.cpu.chip import CPU
from genesis.backends.cpu.runtime.runtime import get_num_threads
from genesis.compiler.build import build
from genesis.compiler.options import Options
from genesis.content_store import default, digest
from genesis.ir import ops
from genesis.ir.dtype import DType, encode, float32, float64
from genesis.ir.kernel import Kernel
from genesis.ir.kernel_builder import Builder
from genesis.ir.node import elementwise

#: Dependent multiply-adds run side by side, enough to hide how long one takes.
CHAINS = 12
#: Multiply-adds of one chain in a block.
LENGTH = 1 << 12
#: Blocks of the kernel that computes.
BLOCKS = 64
#: Elements of a row that the others read.
ELEMENTS = 1 << 10
#: The time to spend, in seconds.
PATIENCE = 1.0


@dataclass(frozen=True)
class Machine:
    """The most that any kernel can reach: FLOP/s by dtype, and bytes/s by the bytes it touches.

    >>> roof = Machine("a chip", 2, {"float32": 100e9}, ((1 << 20, 200e9), (1 << 27, 25e9)))
    >>> roof.bandwidth(1 << 10) / 1e9, roof.bandwidth(1 << 30) / 1e9
    (200.0, 25.0)
    >>> roof.seconds(flops=100, nbytes=1 << 30) == (1 << 30) / 25e9
    True
    """

    name: str
    threads: int
    peaks: Mapping[str, float]
    bandwidths: tuple[tuple[int, float], ...]  # the smallest amount first

    def peak(self, dtype: str = "float32") -> float:
        """FLOP/s in a dtype; half precision computes in float32."""
        return self.peaks.get(dtype, self.peaks["float32"])

    def bandwidth(self, nbytes: int) -> float:
        """Bytes/s for a kernel that touches so many: between two amounts, it falls evenly.

        Evenly in logarithms; part of what does not fit into a cache is there nevertheless.
        """
        for (less, faster), (more, slower) in pairwise(self.bandwidths):
            if nbytes <= more:
                far = max(0.0, math.log(max(nbytes, 1) / less) / math.log(more / less))
                return float(faster ** (1 - far) * slower**far)
        return self.bandwidths[-1][1]

    def seconds(self, flops: int, nbytes: int, dtype: str = "float32") -> float:
        """The least time in which so much can be computed and moved."""
        return max(flops / self.peak(dtype), nbytes / self.bandwidth(nbytes))


def this_machine() -> Machine:
    """This machine with the threads in use: as found on disk, or measured now, which takes 1 s."""
    return _known() or measure()


def measure() -> Machine:
    """Measure this machine now, and keep the better of what was known and what is found."""
    known, found = _known(), _measured(get_num_threads())
    if known is not None:
        found = _better(known, found)
    store, key = default(), _key()
    if store is not None:
        content = [found.name, found.threads, dict(found.peaks), found.bandwidths]
        store.put("roofline", key, json.dumps(content).encode())
    _found[key] = found
    return found


def _known() -> Machine | None:
    """What was measured before, in this process or another."""
    store, key = default(), _key()
    if key not in _found and store is not None:
        payload = store.get("roofline", key)
        kept = None if payload is None else _parsed(payload)
        if kept is not None:
            _found[key] = kept
    return _found.get(key)


_found: dict[str, Machine] = {}


def _key() -> str:
    return digest(get("cpu").target, str(get_num_threads()))


def _parsed(payload: bytes) -> Machine | None:
    try:
        name, threads, peaks, bandwidths = json.loads(payload)
        found = [(int(amount), float(rate)) for amount, rate in bandwidths]
        return Machine(str(name), int(threads), {d: float(peaks[d]) for d in peaks}, tuple(found))
    except (ValueError, TypeError, KeyError):
        return None


def _better(a: Machine, b: Machine) -> Machine:
    peaks = {dtype: max(peak, b.peaks[dtype]) for dtype, peak in a.peaks.items()}
    pairs = zip(a.bandwidths, b.bandwidths, strict=True)
    return Machine(a.name, a.threads, peaks, tuple((n, max(x, y)) for (n, x), (_, y) in pairs))


def _measured(threads: int) -> Machine:
    chip = get("cpu").chip
    assert isinstance(chip, CPU)
    lanes = chip.vector_bytes // float32.itemsize
    dtypes = float32, float64
    # What fits twice into a cache of its kind, and what fits into none.
    caches = threads * chip.l1_bytes // 2, threads * chip.l2_bytes // 2, chip.l3_bytes // 2
    amounts = sorted({*caches, max(1 << 27, 4 * chip.l3_bytes)})
    read, copy = (_loaded(_moving(name, threads, lanes)) for name in ("read", "copy"))
    trials = [
        *(_computing_trial(dtype, chip.vector_bytes // dtype.itemsize) for dtype in dtypes),
        *(_moving_trial(read, n, threads, 1) for n in amounts),
        *(_moving_trial(copy, n, threads, 2) for n in amounts),
    ]
    rates = _best(trials)
    del trials
    get("cpu").trim()
    peaks = {dtype.name: rate for dtype, rate in zip(dtypes, rates, strict=False)}
    pairs = zip(rates[2 : 2 + len(amounts)], rates[2 + len(amounts) :], strict=True)
    better = [max(pair) for pair in pairs]
    falling = [max(better[k:]) for k in range(len(better))]  # less data is never slower
    return Machine(chip.name, threads, peaks, tuple(zip(amounts, falling, strict=True)))


# ---- the kernels


def _computing(dtype: DType, lanes: int) -> Kernel:
    k = Builder("multiply_add")
    a, b = k.param("a", dtype), k.param("b", dtype)
    y = k.output("y", dtype, BLOCKS, CHAINS, lanes)
    block, v = k.grid("block", BLOCKS), k.tile("v", lanes)
    starts = {f"x{j}": k.const(float(j), dtype) for j in range(CHAINS)}
    with k.loop("i", LENGTH, None, [v], **starts) as (_, *chains):
        k.step(**{f"x{j}": elementwise(ops.FMA, x, a, b) for j, x in enumerate(chains)})
    for j, x in enumerate(chains):
        k.store(y, (block, j, v), x)
    return k.kernel()


def _moving(name: str, threads: int, lanes: int) -> Kernel:
    """Every thread goes through memory of its own, of `n` rows, `m` times: reads or copies it."""
    k = Builder(name)
    n, m, width = k.symbol("n", high=1 << 24), k.symbol("m", low=1, high=1 << 24), 8 * lanes
    x = k.input("x", float32, threads, n, ELEMENTS)
    thread, v = k.grid("thread", threads), k.tile("v", width)
    zero, columns = k.const(0.0, float32), ELEMENTS // width
    if name == "copy":
        y = k.output("y", float32, threads, n, ELEMENTS)
        with k.loop("again", m), k.loop("row", n) as (row,), k.loop("c", columns) as (c,):
            k.store(y, (thread, row, c * width + v), x[thread, row, c * width + v])
        return k.kernel()
    y = k.output("y", float32, threads)
    with k.loop("again", m, a=zero, tiles=[v]) as (_, a):
        with k.loop("row", n, b=a, tiles=[v]) as (row, b):
            with k.loop("c", columns, s=b, tiles=[v]) as (c, s):
                k.step(s=s + x[thread, row, c * width + v])
            k.step(b=s)
        k.step(a=b)
    (total,) = k.reduce(v, ops.ADD, total=a)
    k.store(y, (thread,), total)
    return k.kernel()


def _loaded(kernel: Kernel) -> Executable:
    (made,) = build([(kernel, ())], get("cpu"), Options(schedule=False))
    count = len(kernel.buffers) + len(kernel.params) + len(kernel.symbols)
    return get("cpu").assemble([Launch(made.binary, tuple(range(count)))])


# ---- how fast they are


class _Trial(NamedTuple):
    """A program to run again and again, and how much one run does."""

    executable: Executable
    frame: array[int]
    work: int
    memories: Sequence[Memory]


def _computing_trial(dtype: DType, lanes: int) -> _Trial:
    memory = get("cpu").allocate(BLOCKS * CHAINS * lanes * dtype.itemsize)
    executable = _loaded(_computing(dtype, lanes))
    frame = array("Q", [memory.pointer, encode(0.999, dtype), encode(0.1, dtype)])
    return _Trial(executable, frame, 2 * BLOCKS * CHAINS * LENGTH * lanes, [memory])


def _moving_trial(executable: Executable, amount: int, threads: int, buffers: int) -> _Trial:
    """Touch an `amount` of bytes again and again, in one or in two buffers."""
    rows = amount // buffers // (threads * ELEMENTS * float32.itemsize)
    nbytes = rows * threads * ELEMENTS * float32.itemsize
    results = nbytes if buffers == 2 else threads * float32.itemsize
    memories = [get("cpu").allocate(n) for n in (nbytes, results)]
    for memory in memories:  # pages come with the first touch
        ctypes.memset(memory.pointer, 0, memory.nbytes)
    again = max(1, (1 << 24) // amount)
    frame = array("Q", [*(memory.pointer for memory in memories), rows, again])
    return _Trial(executable, frame, buffers * nbytes * again, memories)


def _best(trials: Sequence[_Trial]) -> list[float]:
    """The most that each did in a second. They take turns: a neighbour disturbs all of them."""
    shortest = [float("inf")] * len(trials)
    started = perf_counter()
    while True:
        for k, trial in enumerate(trials):
            for _ in range(2):
                (timing,) = trial.executable.timed(trial.frame)
                shortest[k] = min(shortest[k], timing.total / 1e9)
        if perf_counter() - started > PATIENCE:
            return [t.work / seconds for t, seconds in zip(trials, shortest, strict=True)]
