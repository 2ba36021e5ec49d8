"""Every operator of PyTorch that is not broken down has a kernel, or its reason on a page."""

from __future__ import annotations

import pytest

from tests.torch_coverage import PAGE, REASONS, core, matching, missing, page, without_kernel


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "write the page anew with `python -m tests.torch_coverage`"


def test_all_of_core_that_makes_tensors_has_kernels() -> None:
    absent = without_kernel(core())
    assert matching("_local_scalar_dense sym_*", absent) == list(absent)


def test_every_operator_without_a_kernel_has_one_reason() -> None:
    explained = [name for patterns in REASONS.values() for name in matching(patterns, missing())]
    assert sorted(explained) == sorted(missing())


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_operators(reason: str) -> None:
    for pattern in REASONS[reason].split():
        assert matching(pattern, missing()), pattern
