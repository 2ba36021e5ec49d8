"""Training on several processes: the losses of one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from train import train  # noqa: E402

#: Far more than it takes: a limit for processes that hang, not for slow machines.
pytestmark = pytest.mark.timeout(3000)


def launched(
    count: int, *command: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a script on processes; none of them is left when this returns."""
    start = [sys.executable, "-m", "genesis", "launch", "-n", str(count), *options]
    start = start if count > 1 else []
    process = subprocess.Popen(
        [*(start or [sys.executable]), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "GENESIS_NUM_THREADS": "1"},
    )
    try:
        out, error = process.communicate(timeout=2500)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, error)


@cache
def losses(count: int, model: str, strategies: str, steps: int) -> list[list[float]]:
    done = launched(count, str(HERE / "train.py"), model, strategies, str(steps))
    assert done.returncode == 0, done.stderr
    found: list[list[float]] = json.loads(done.stdout)
    return found


def compare(count: int, model: str, strategies: str, steps: int) -> None:
    (alone,) = losses(1, model, "dp", steps)
    assert alone[0] > alone[-2]  # the last number is the norm of the weights
    for found in losses(count, model, strategies, steps):
        np.testing.assert_allclose(found, alone, rtol=1e-4)


def test_two_processes() -> None:
    """Collectives of all types, errors, a training, programs that differ, the end of one process.

    One test, because starting processes takes longer than what they do.
    """
    parts = (
        "collectives",
        "errors",
        "constraints",
        "meshes",
        "training",
        "traces",
        "models",
        "swapped",
        "different",
        "sizes",
        "disagree",
        "lose",
    )
    done = launched(2, str(HERE / "manners.py"), *parts)
    lines = done.stdout.split("\n")
    ends = [f"done {part}" for part in parts[:-1]]
    assert [line for line in lines if line.startswith("done")] == ends, done.stderr
    found = json.loads(next(line for line in lines if line.startswith("[")))
    np.testing.assert_allclose(found, train("mlp", "dp", 4), rtol=1e-4)
    assert "done lose" not in done.stdout and done.returncode == 128 + signal.SIGKILL
    assert "process 1 ended with status -9" in done.stderr


@pytest.mark.slow
def test_a_process_that_strays_is_told() -> None:
    done = launched(2, str(HERE / "manners.py"), "stray")
    says = "process 1 waits for the others in all_reduce along dp, while process 0 waits for all to"
    assert f"WrongTurn: {says} begin a program, 'jit stray" in done.stderr
    assert done.returncode == 1
    done = launched(2, str(HERE / "manners.py"), "alone")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_mistake_of_one_process_is_named_by_all() -> None:
    done = launched(2, str(HERE / "manners.py"), "fail")
    cause = "process 1 failed: KeyError: 'no such file'"
    assert f"RankLost: all_reduce along dp: one of the processes [1] does not answer ({cause})" in (
        done.stderr
    )
    assert f"genesis launch: {cause}" in done.stderr and done.returncode == 1


@pytest.mark.slow
def test_started_by_slurm() -> None:
    """Two processes that know nothing but what srun tells them."""
    slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost",
             "SLURM_JOB_ID": str(os.getpid())}  # fmt: skip
    command = [sys.executable, str(HERE / "train.py"), "mlp", "zero3", "4"]
    processes = [
        subprocess.Popen(
            command, env={**os.environ, **slurm, "SLURM_PROCID": str(k)}, stdout=subprocess.PIPE
        )
        for k in range(2)
    ]
    outs = [process.communicate(timeout=2500)[0] for process in processes]
    assert not any(process.returncode for process in processes)
    np.testing.assert_allclose(json.loads(outs[0])[0], train("mlp", "dp", 4), rtol=1e-4)


@pytest.mark.slow
def test_started_by_ray() -> None:
    """Two actors; the first time one of them is killed."""
    pytest.importorskip("ray")
    done = launched(1, str(HERE / "ray_train.py"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found[0] == found[1]
    np.testing.assert_allclose(found[0], train("mlp", "dp", 4), rtol=1e-4)


def test_a_mesh_must_fit_the_processes() -> None:
    code = "import genesis.distributed as gd; gd.mesh(dp=3)"
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "mesh(dp=3): the axes must have 2 ranks together" in done.stderr


def test_a_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    """One process: the bits of an undisturbed run; what was not written to its end is left out."""
    alone = train("mlp", "dp", 4)
    assert train("mlp", "dp", 2, str(tmp_path)) == [*alone[:2], pytest.approx(alone[-1], rel=1e-1)]
    unfinished = tmp_path / "step-000000003"
    unfinished.mkdir()
    (unfinished / "rank-0.safetensors").write_bytes(b"half")
    assert train("mlp", "dp", 4, str(tmp_path)) == alone[2:]
    assert sorted(p.parent.name for p in tmp_path.glob("*/manifest.json")) == [
        "step-000000002", "step-000000004"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dies", ((0, 3), (1, 2), (1, 5)))
def test_a_killed_process_is_replaced(tmp_path: Path, dies: tuple[int, int]) -> None:
    """It ends with the bits of an undisturbed run."""
    command = str(HERE / "train.py"), "mlp", "zero3", "6"
    (alone,) = losses(2, *command[1:3], 6)
    numbers = map(str, dies)
    done = launched(2, *command, str(tmp_path), *numbers, options=("--restarts", "1"))
    assert done.returncode == 0, done.stderr
    assert "ended with status -9" in done.stderr
    (found,) = json.loads(done.stdout)
    assert found == alone[-len(found) :]


@pytest.mark.slow
def test_killed_while_checkpoints_are_written(tmp_path: Path) -> None:
    """Twenty times: it is always gone on from a whole one."""
    command = str(HERE / "train.py"), "mlp", "zero3", "100"
    (alone,) = losses(2, *command[1:3], 100)
    kills = "-2", "20"
    done = launched(2, *command, str(tmp_path), *kills, options=("--restarts", "20"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ended with status -9") == 20
    (found,) = json.loads(done.stdout)
    assert found == alone[-len(found) :]


@pytest.mark.slow
def test_a_checkpoint_of_any_placement_loads_on_any_other(tmp_path: Path) -> None:
    script = str(HERE / "train.py")
    (alone,) = losses(1, "mlp", "dp", 8)
    for steps, (count, strategy) in enumerate(
        ((2, "zero3"), (1, "dp"), (4, "zero3xtp"), (2, "tp")), 1
    ):
        done = launched(count, script, "mlp", strategy, str(2 * steps), str(tmp_path))
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(done.stdout)
        np.testing.assert_allclose(found[:2], alone[2 * steps - 2 : 2 * steps], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model", ("gpt", "resnet"))
@pytest.mark.parametrize("strategies", ("dp,zero1", "zero2,zero3", "tp"))
def test_more_models_on_two_processes(model: str, strategies: str) -> None:
    compare(2, model, strategies, 50)


@pytest.mark.slow
@pytest.mark.parametrize("model", ("gpt", "resnet"))
def test_where_state_lies_does_not_change_a_bit(model: str) -> None:
    """On two processes there is one order to add up two numbers."""
    plain, *others = losses(2, model, "dp,zero1,zero2,zero3", 50)
    assert others == [plain] * 3


@pytest.mark.slow
def test_a_divided_sequence() -> None:
    compare(2, "gpt", "sp,ring", 50)
    compare(4, "gpt", "sp,dpxsp,ring,dpxring", 50)


@pytest.mark.slow
def test_divided_experts() -> None:
    compare(2, "moe", "ep,dp", 50)
    compare(4, "moe", "ep,epxtp", 50)


@pytest.mark.slow
@pytest.mark.parametrize("model", ("gpt", "resnet"))
@pytest.mark.parametrize("strategies", ("dp,zero3", "dpxtp", "zero3xtp"))
def test_four_processes(model: str, strategies: str) -> None:
    compare(4, model, strategies, 50)


@cache
def programs(count: int, rule: str) -> dict[str, list[float]]:
    done = launched(count, str(HERE / "user_programs.py"), rule)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "rule"), ((2, "zero3"), (3, "dp"), (3, "tp"), (4, "zero1"), (4, "zero3xtp"))
)
def test_what_users_write(count: int, rule: str) -> None:
    """Every program comes to what one process comes to, whatever seeds processes start with."""
    alone, found = programs(1, "dp"), programs(count, rule)
    for name, want in alone.items():
        np.testing.assert_allclose(found[name], want, rtol=1e-3, atol=1e-5, err_msg=name)
