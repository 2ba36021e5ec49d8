"""Every public name of PyTorch is here, or has its reason on the page of those that are not."""

from __future__ import annotations

import pytest

import genesis
from tests.arguments import differences
from tests.parity import (
    ARGUMENTS,
    NAMESPACES,
    PAGE,
    RENAMED,
    explanations,
    matching,
    missing,
    page,
    public,
)


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "write the page anew with `python -m tests.parity`"


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_every_missing_name_has_a_reason(namespace: str) -> None:
    explained = {
        name
        for place, patterns, _ in explanations()
        if place == namespace
        for name in matching(patterns, missing(namespace))
    }
    assert set(missing(namespace)) == explained


def test_every_reason_has_a_name() -> None:
    for namespace, patterns, reason in explanations():
        for pattern in patterns.split():
            assert matching(pattern, missing(namespace)), (namespace, pattern, reason)


def test_other_names_exist() -> None:
    for renamed in RENAMED.values():
        for instead in renamed.values():
            found = genesis
            for name in instead.split(".")[1:]:
                found = getattr(found, name)


def test_arguments() -> None:
    """Names and defaults are PyTorch's, except for those on the page."""
    different = tuple(
        f"{namespace}.{name}.{argument}"
        for namespace in NAMESPACES
        for name in sorted(set(public(namespace)) - set(missing(namespace)))
        for argument in differences(namespace, name)
        if not argument.startswith("_")
    )
    assert sorted(different) == matching(" ".join(ARGUMENTS.values()), tuple(sorted(different)))
    for pattern in " ".join(ARGUMENTS.values()).split():
        assert matching(pattern, different), pattern
