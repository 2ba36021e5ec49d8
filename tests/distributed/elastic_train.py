"""An elastic training: ``genesis launch --elastic -n 4 elastic_train.py KIND STEPS PLAN``.

KIND is ``exact``, gradients with sums that have no order, or ``zero3``. PLAN is JSON. ``kills``:
whenever there are four, one of them, drawn by ``seed``, is killed some time later, until so many
were. ``stop`` and ``kill``: members by step. ``sizes``: numbers of processes to go through; where
there are kills or sizes, training ends when all have been. The first process prints each step.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from hashlib import sha256
from threading import Timer
from typing import Any

import numpy as np

import genesis
import genesis.distributed as gd
from genesis import Tensor, nn, optim
from genesis.distributed import process_groups

ROWS, WIDTH, CLASSES, MICROBATCHES = 24, 16, 8, 12


def layers() -> list[nn.Module]:
    genesis.manual_seed(0)
    return [nn.Linear(WIDTH, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 32), nn.GELU(),
            nn.Linear(32, CLASSES)]  # fmt: skip


def batch(k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(k)
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    return x, np.abs(x[:, :CLASSES]).argmax(1)


def digest(model: nn.Module, optimizer: optim.Optimizer) -> str:
    from genesis.distributed.checkpoint import arrays_of

    arrays = gd.gather(dict(sorted(arrays_of(model, optimizer).items())))
    return sha256(b"".join(x.numpy().tobytes() for x in arrays.values())).hexdigest()[:16]


def say(kind: str, *values: Any) -> None:
    if gd.rank() == 0:
        sys.stdout.write(json.dumps([kind, *values]) + "\n")
        sys.stdout.flush()


def suffer(plan: dict[str, Any], k: int, run: gd.Run, since: int) -> None:
    """What is planned for this step and process."""
    me = os.environ.get("GENESIS_MEMBER")
    if me == str(plan.get("kill", {}).get(str(k))):
        os.kill(os.getpid(), signal.SIGKILL)
    if me == str(plan.get("stop", {}).get(str(k))):
        wake = f"sleep {plan['seconds']}; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", wake], start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    if "kills" in plan and gd.world_size() == 4 and since == 1 and not is_over(plan, run, 3):
        rng = np.random.default_rng([plan["seed"], process_groups.epoch])
        if rng.integers(4) == gd.rank():
            Timer(rng.uniform(0, 0.3), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


def is_over(plan: dict[str, Any], run: gd.Run, since: int) -> bool:
    """Whether everything that was planned has happened, and some steps after it."""
    if "kills" in plan:
        last = max(run.council.record.members) if gd.world_size() == 4 else 0
        return last == 3 + plan["kills"] and since >= 3
    if "sizes" in plan:
        return process_groups.epoch > len(plan["sizes"]) and since >= 3
    return False


def train(run: gd.Run) -> None:
    kind, steps, plan = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    mesh = gd.mesh(dp=-1)
    begun = time.monotonic()
    rows = mesh.rows(ROWS)
    if kind == "exact":
        model: Any = gd.Pipeline(layers(), nn.functional.cross_entropy, mesh,
                                 microbatches=MICROBATCHES // mesh.size, exact=True)  # fmt: skip
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)

        def step(x: Tensor, y: Tensor) -> Tensor:
            loss: Tensor = model(x, y)
            optimizer.step()
            return loss
    else:
        model = nn.Sequential(*layers())
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        gd.place(model, optimizer, dp=gd.zero(3))

        @genesis.jit
        def step(x: Tensor, y: Tensor) -> Tensor:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

    since = -1
    for k in run.steps(steps, model, optimizer):
        since += 1
        if not since:
            say("begin", k, mesh.size, digest(model, optimizer), run.received, run.seconds)
        x, y = batch(k)
        suffer(plan, k, run, since)
        given = (genesis.tensor(x[rows]), genesis.tensor(y[rows]))
        if kind != "exact":
            given = tuple(map(mesh.batch, given))
        loss = step(*given).item()
        say("step", k, loss, round(time.monotonic() - begun, 3))
        if "sizes" in plan:
            after = dict(zip([2, *plan["sizes"]], plan["sizes"], strict=False)).get(mesh.size)
            say("end", k + 1, mesh.size, digest(model, optimizer))
            if after and since == 1 and mesh.rank == 0:
                run.resize(after)
        if is_over(plan, run, since):
            break
        time.sleep(plan.get("slow", 0))
    say("done", k + 1, mesh.size, digest(model, optimizer))


if __name__ == "__main__":
    gd.elastic(train, timeout=float(json.loads(sys.argv[3]).get("timeout", 60)))
