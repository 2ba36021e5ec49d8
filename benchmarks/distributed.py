"""What distribution costs a process: `python -m benchmarks.distributed`.

By processor time, minima of several rounds, without other processes: collectives are carried by the
process itself (`tests/distributed/pretended.py`); the last part is by the clock. Goals: 30 ms to
divide a graph of 1,000 nodes, 60 us for a collective beyond what carries it, parity made of 2 GB/s,
5 % for a step that is saved, and 1.7 times the speed by two processes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import genesis
import genesis.distributed as gd
from genesis import nn, optim
from genesis.distributed.erasure_code import encode
from genesis.ir.node import topological
from tests.distributed import train
from tests.distributed.pretended import divided, pretended
from tests.distributed.train import BATCH, GPT, LENGTH

PARTS = ("division", "collectives", "parity", "snapshots", "ranks")


def least(function: Callable[[], Any], rounds: int) -> float:
    """The least processor time of several calls."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        function()
        found.append(time.process_time() - begin)
    return min(found)


def division(rounds: int) -> None:
    """How long a training step of a GPT takes to be divided."""
    from genesis.compiler import partition as compiler

    for title, axes, rules in (
        ("data parallel", {"dp": 4}, {}),
        ("ZeRO-3", {"dp": 4}, {"dp": gd.zero(3)}),
        ("tensor parallel", {"tp": 4}, {"tp": gd.megatron}),
        ("ZeRO-3 x tensor parallel", {"dp": 2, "tp": 2}, {"dp": gd.zero(3), "tp": gd.megatron}),
    ):
        taken: list[tuple[int, float]] = []
        plain = compiler.partition

        def timed(roots: Any, *rest: Any, plain: Any = plain, taken: list[Any] = taken) -> Any:
            seconds = least(lambda: plain(roots, *rest), rounds)
            taken.append((len(topological(roots)), seconds))
            return plain(roots, *rest)

        with pretended(**axes) as mesh:
            model = GPT(4)
            optimizer = optim.AdamW(model.parameters(), lr=1e-2)
            gd.place(model, optimizer, mesh, **rules)
            ids = np.zeros((BATCH // mesh.shape.get("dp", 1), LENGTH), np.int64)
            x, y = (mesh.batch(genesis.tensor(ids)) for _ in range(2))
            compiler.partition = timed
            try:
                divided(_training(model, optimizer), x, y)
            finally:
                compiler.partition = plain
        ((nodes, seconds),) = taken
        print(f"{title}: {nodes} nodes, {1e6 * seconds / nodes:.1f} ms per 1,000")


def _training(model: nn.Module, optimizer: optim.Optimizer) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(model(x), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def collectives(rounds: int) -> None:
    """What a collective costs beyond what carries it: a chain of sums, with and without."""
    count = 32
    x = genesis.ones(4, 64)

    def chain(x: Any) -> Any:
        for _ in range(count):
            x = x / (1 + x.sum(0, keepdim=True))
        return x

    with pretended(dp=2) as mesh:
        block = mesh.batch(x)
        both = [(genesis.jit(chain), block), (genesis.jit(chain), x)]
        for function, given in both:
            function(given)
        given = [np.ones(64, np.float32)]
        carried = least(
            lambda: [mesh.exchange("all_reduce", (mesh.form.name, "dp", "sum"), given)
                     for _ in range(count)], rounds,
        )  # fmt: skip
        with_, without = (least(lambda f=f, a=a: f(a), rounds) for f, a in both)
    each = (with_ - without - carried) / count
    print(f"a collective: {1e6 * each:.0f} us beyond what carries it")


def parity(rounds: int) -> None:
    """Bytes of shards that one shard of parity is made of, by processor time."""
    genesis.set_num_threads(1)
    rng = np.random.default_rng(0)
    for shards, more in ((2, 1), (4, 2), (4, 3), (6, 3)):
        data = [rng.integers(0, 256, 8 << 20, dtype=np.uint8) for _ in range(shards)]
        encode(data, more, more - 1)
        seconds = least(lambda: encode(data, more, more - 1), rounds)  # noqa: B023
        print(f"parity {shards}+{more}: {sum(map(len, data)) / seconds / 1e9:.1f} GB/s")


def snapshots(rounds: int) -> None:
    """What saving adds to the time of a step, while the file is written by another thread."""
    genesis.set_num_threads(1)
    gd.mesh()
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))
    optimizer = optim.AdamW(model.parameters())
    x = genesis.randn(4096, 512)

    @genesis.jit
    def step() -> Any:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    plain, saved = [], []
    with tempfile.TemporaryDirectory() as folder:
        for k in range(4 * rounds):
            saves = k % 4 == 3
            begin = time.thread_time()
            if saves:
                saving = gd.save(folder, k, model, optimizer)
            step().item()
            (saved if saves else plain).append(time.thread_time() - begin)
            if saves:
                saving.wait()
    print(f"a step that is saved: {np.median(saved) / np.median(plain[3:]):.3f} of one that is not")


def ranks(rounds: int) -> None:
    """How much quicker a GPT is trained by two processes of one thread than by one, by the clock.

    Here it is the machine that counts: it takes two cores, and nobody else on them.
    """
    found = {}
    for count in (1, 2):
        command = [sys.executable, "-m", "genesis", "launch", "-n", str(count), __file__]
        command += ["--rounds", str(rounds), "--parts", "steps"]
        environment = {**os.environ, "GENESIS_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found[count] = float(done.stdout.split()[-1])
        print(f"a step of {count} processes: {1e3 * found[count]:.0f} ms")
    print(f"two processes: {found[1] / found[2]:.2f} times one")


def steps(rounds: int) -> None:
    """Seconds of a training step of a GPT of 4 layers, 256 wide, of 32 sequences of 128."""
    train.WIDTH, train.HEADS, train.VOCABULARY, train.LENGTH = 256, 8, 1024, 128
    mesh = gd.mesh(dp=-1)
    genesis.manual_seed(0)
    model = GPT(4)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    gd.place(model, optimizer)
    ids = np.random.default_rng(0).integers(0, train.VOCABULARY, (32, train.LENGTH))
    x, y = (mesh.batch(genesis.tensor(i[mesh.rows(32)])) for i in (ids, np.roll(ids, -1, 1)))
    step = genesis.jit(_training(model, optimizer))
    found = []
    for _ in range(3 + 2 * rounds):
        begin = time.perf_counter()
        step(x, y).item()
        found.append(time.perf_counter() - begin)
    if mesh.rank == 0:
        print(np.median(found[3:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=(*PARTS, "steps"))
    given = parser.parse_args()
    for part in given.parts:
        globals()[part](given.rounds)


if __name__ == "__main__":
    main()
