"""The processes that were started together, and groups of them: PyTorch's c10d carries everything.

A launcher tells each process its number, how many there are and where they meet, in environment
variables that all launchers share (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), or in
Slurm's. Nothing is made before it is needed: without a launcher there is one process, and PyTorch
is not loaded.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np

from genesis.ir.numpy_library.exchange import DEFINITIONS, Array, Options

#: Seconds that a process waits for another; compiling may take the others some minutes.
TIMEOUT = 600.0
#: Bytes that one call of gloo should not exceed.
CHUNK = 16 << 20


class RankLost(RuntimeError):
    """Another process does not answer any more."""


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
    address = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_ADDR", address)
    os.environ.setdefault("MASTER_PORT", "29500")
    from torch.distributed.rendezvous import rendezvous

    found, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=TIMEOUT)))
    generation = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return c10d().PrefixStore(f"genesis/{generation}", found)


def _end_with(launcher: int) -> None:
    """End this process when the launcher does, even if that is killed."""
    if launcher and hasattr(signal, "SIGKILL"):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != launcher:
            raise SystemExit("the launcher has ended")


class Group:
    """Processes that exchange arrays: `members` are their numbers, of which this one is one."""

    def __init__(self, name: str, members: Sequence[int]) -> None:
        self.members = list(members)
        self.size, self.rank = len(members), self.members.index(rank())
        # Two processes of a group must not be in another one by this name.
        prefix = c10d().PrefixStore(f"{name}/{'.'.join(map(str, members))}", store())
        timeout = timedelta(seconds=TIMEOUT)
        self._gloo = c10d().ProcessGroupGloo(prefix, self.rank, self.size, timeout)

    def exchange(self, name: str, options: Options, xs: Sequence[Array]) -> list[Array]:
        """What this process gets for `xs`, by an exchange that all of the group take part in."""
        try:
            return _EXCHANGES[name](self, options, xs)
        except RuntimeError as error:
            others = [m for m in self.members if m != rank()]
            raise RankLost(
                f"{name} along {options[1]}: one of the processes {others} does not answer "
                f"({str(error).splitlines()[0]})"
            ) from error

    def broadcast(self, x: Array) -> Array:
        """The array that the first process of the group gives."""
        flat = _bytes(x).copy()
        options = c10d().BroadcastOptions()
        options.rootRank = 0
        self._gloo.broadcast([_tensor(flat)], options).wait()
        return flat.view(x.dtype).reshape(x.shape)

    # ---- exchanges
    def _all_reduce(self, options: Options, xs: Sequence[Array]) -> list[Array]:
        kind = xs[0].dtype
        if kind.name not in REDUCED:
            return self._defined("all_reduce", options, xs)
        flat = _joined(xs)
        chosen = c10d().AllreduceOptions()
        chosen.reduceOp = getattr(c10d().ReduceOp, _OPERATIONS[options[2]])
        step = CHUNK // kind.itemsize
        for start in range(0, flat.size, step):
            self._gloo.allreduce([_tensor(flat[start : start + step])], chosen).wait()
        return _parted(flat, xs)

    def _all_gather(self, options: Options, xs: Sequence[Array]) -> list[Array]:
        flat = _bytes(_joined(xs))
        out = np.empty(self.size * flat.size, np.uint8)
        if flat.size:
            self._gloo._allgather_base(_tensor(out), _tensor(flat)).wait()
        ranks = [_parted(part.view(xs[0].dtype), xs) for part in np.split(out, self.size)]
        return [np.concatenate([arrays[k] for arrays in ranks]) for k in range(len(xs))]

    def _reduce_scatter(self, options: Options, xs: Sequence[Array]) -> list[Array]:
        if xs[0].dtype.name not in REDUCED:
            return self._defined("reduce_scatter", options, xs)
        blocks = [x.reshape(self.size, -1) for x in xs]
        sent = np.concatenate(blocks, 1)  # the part of the first process, then of the second, ..
        out = np.empty(sent.shape[1], sent.dtype)
        if out.size:
            self._gloo._reduce_scatter_base(_tensor(out), _tensor(sent.reshape(-1))).wait()
        return _parted(out, [x[: len(x) // self.size] for x in xs])

    def _all_to_all(self, options: Options, xs: Sequence[Array]) -> list[Array]:
        results: list[Array] = []
        for x in xs:
            sent = _bytes(x)
            out = np.empty_like(sent)
            if out.size:
                self._gloo.alltoall_base(_tensor(out), _tensor(sent), [], []).wait()
            results.append(out.view(x.dtype).reshape(x.shape))
        return results

    def _defined(self, name: str, options: Options, xs: Sequence[Array]) -> list[Array]:
        """An exchange of a type that gloo cannot add: everybody gets everything, and adds it up."""
        every = self._all_gather(options, [x.reshape(1, *x.shape) for x in xs])
        return [DEFINITIONS[name](options, list(x))[self.rank] for x in every]


_EXCHANGES: dict[str, Callable[[Group, Options, Sequence[Array]], list[Array]]] = {
    "all_reduce": Group._all_reduce,
    "all_gather": Group._all_gather,
    "reduce_scatter": Group._reduce_scatter,
    "all_to_all": Group._all_to_all,
}
_OPERATIONS = {"sum": "SUM", "prod": "PRODUCT", "max": "MAX", "min": "MIN"}
#: What gloo can add.
REDUCED = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8")


def _joined(xs: Sequence[Array]) -> Array:
    """Arrays one after the other, in memory of their own."""
    return np.concatenate([x.reshape(-1) for x in xs])


def _parted(flat: Array, like: Sequence[Array]) -> list[Array]:
    """The arrays that lie one after the other in a flat one."""
    found, start = [], 0
    for x in like:
        found.append(flat[start : start + x.size].reshape(x.shape))
        start += x.size
    return found


def _bytes(x: Array) -> Array:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def _tensor(flat: Array) -> Any:
    """A flat array as a tensor on the same memory."""
    import torch

    if flat.dtype.name == "bfloat16":
        return torch.from_numpy(flat.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(flat)
