"""The referee of the benchmarks, with contenders whose speed is known."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import cpu
from benchmarks.memory_cases import COPY, MEMORY, SUM

CASE = next(c for c in MEMORY if c.reads == COPY.reads and c.writes == COPY.writes and c != COPY)
#: Seconds that contenders take on a machine at full speed.
SECONDS = {
    COPY.name: {"genesis": 2e-3, "torch": 4e-3},
    SUM.name: {"genesis": 2e-3, "torch": 1e-3},
    CASE.name: {"genesis": 2.5e-3, "torch": 5e-3},
}


class Contender:
    """A worker that does nothing, in a time that depends on how fast the machine is."""

    slowdown = 1.0
    version = "1"

    def __init__(self, contender: str, **environment: str) -> None:
        self.contender = contender
        self.environment = environment
        self.sleeps = "OMP_WAIT_POLICY" in environment
        self.case = ""

    def ask(self, request: str, argument: Any = None) -> Any:
        if request == "prepare":
            self.case = argument
            return [self.seconds, [1.0]]
        return [self.seconds, 0.0] if request == "time" else None

    @property
    def seconds(self) -> float:
        spinning = 1.1 if self.contender == "torch" and not self.sleeps else 1.0
        return SECONDS[self.case][self.contender] * spinning * Contender.slowdown

    def close(self) -> None:
        pass


@pytest.fixture
def field(monkeypatch: pytest.MonkeyPatch) -> cpu.Field:
    monkeypatch.setattr(cpu, "Worker", Contender)
    monkeypatch.setattr(cpu, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(Contender, "slowdown", 1.0)
    field = cpu.Field(["genesis", "torch"], cpu.Referee(0))
    field.gauge_memory(3, 0.1)
    return field


def test_memory_is_gauged_by_whoever_is_fastest(field: cpu.Field) -> None:
    found = [(g.worker.contender, g.worker.sleeps) for g in field.gauges]
    assert found == [("genesis", False), ("torch", True)]


@pytest.mark.parametrize("slowdown", [1.0, 3.0])
def test_a_share_is_of_a_copy_at_the_same_time(
    field: cpu.Field, slowdown: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Contender, "slowdown", slowdown)
    result = field.measure(CASE, 3, 0.1)
    assert result.share == pytest.approx(0.8)
    assert result.ratio("torch") == pytest.approx(2)
    # A sum reads half of what a copy moves, in half of the time: reading alone is as fast.
    only = field.measure(SUM, 3, 0.1)
    assert only.share == pytest.approx(0.5)
    rate = COPY.reads / 1e6 / slowdown  # GB/s, of a copy as of a sum
    assert f"copies of {rate:.0f} to {rate:.0f} GB/s" in field.course()
