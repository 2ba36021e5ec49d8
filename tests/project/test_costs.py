"""What Python does around the kernels, in lines of Genesis that are run.

A line takes about 50 ns, and no machine changes their number; ``python -m benchmarks.costs`` has
the time they take. The bounds are about twice what is needed, so that a mistake (a graph rebuilt, a
loop over all pairs) is found and a better way does not have to be counted.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from benchmarks import costs
from tests.interrupts import GENESIS


def lines(work: Callable[[], Any]) -> int:
    """How many lines of Genesis are run, once everything is recorded and compiled."""
    for _ in range(5):
        work()
    count = 0

    def inside(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return inside

    def entered(frame: FrameType, event: str, _: Any) -> Any:
        return inside if frame.f_code.co_filename.startswith(GENESIS) else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("make", "most"), [(costs.node, 160), (costs.realisation, 900), (costs.replay, 350)]
)
def test_a_call(make: costs.Make, most: int) -> None:
    found = lines(make(1))
    print(f"{make.__doc__} {found} lines")
    assert 20 < found < most


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (costs.with_arguments, 45),
        (costs.with_a_list, 55),
        (costs.with_closures, 25),
        (costs.with_a_closed_over_list, 15),
        (costs.with_results, 90),  # memory, a value, a storage and an array are made
        (costs.with_state, 75),  # a value is made, and two references are counted
        (costs.with_kernels, 10),  # memory for what is between them
        (costs.with_names, 15),
    ],
)
def test_each_of_many(make: costs.Make, most: int) -> None:
    """Each array, kernel or name costs as much as the one before it."""
    few, some, many = (lines(make(count)) for count in (8, 24, 40))
    print(f"{make.__doc__} {(many - few) / 32:.1f} lines each")
    assert (many - few) / 32 < most
    assert many - some <= 1.25 * (some - few) + 8


def test_the_import_brings_no_compiler(tmp_path: Path) -> None:
    program = "import sys, genesis; print(*sorted(sys.modules))"
    modules = costs.in_a_new_process(program, tmp_path).split()
    loaded = {name.partition(".")[0] for name in modules}
    assert "genesis" in loaded
    assert not {"llvmlite", "islpy", "torch", "triton"} & loaded
    assert len(modules) < 500  # 350 of which NumPy has half
