"""DDP, FSDP2, collectives and distributed checkpoints of PyTorch on the device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed.test_training import launched

SCRIPT = str(Path(__file__).with_name("torch_train.py"))
pytestmark = pytest.mark.timeout(3000)


def ran(count: int, *what: str) -> dict[str, float]:
    done = launched(count, SCRIPT, *what)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout.strip().split("\n")[-1])
    return found


def test_collectives() -> None:
    assert set(ran(2, "collectives").values()) == {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("what", ["ddp", "fsdp"])
def test_training(what: str, count: int) -> None:
    found = ran(count, what)
    assert len(found) >= 2 and max(found.values()) < 1e-5


@pytest.mark.slow
def test_a_checkpoint_of_four_processes_loads_on_two(tmp_path: Path) -> None:
    saved, loaded = ran(4, "save", str(tmp_path)), ran(2, "load", str(tmp_path))
    assert saved == pytest.approx(loaded, rel=1e-12)
