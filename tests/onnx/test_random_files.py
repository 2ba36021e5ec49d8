"""Damaged and malicious files, drawn by seed; `make fuzz` and `tests.random_files` draw more."""

import pytest

from tests import random_files


@pytest.mark.parametrize("seed", [3, 7, 11, 15, 19, 23])
def test_pickles_that_call_something(seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert random_files.tried(seed) is None
    assert not (tmp_path / "hacked").exists()


#: What went wrong once: an index that only contents show to be wrong, types and texts that leave a
#: program, an operator that gives fewer results than its node names, an opset beyond 32 bits,
#: constants with attributes that they do not have, inputs that are missing, copies of nothing,
#: sums over rows of no elements, the body of a scan that needs to know contents.
FOUND = [116, 117, 145, 254, 385, 1070, 2372, 7002822, 7003504, 91000282, 91003977]


@pytest.mark.parametrize("seed", FOUND)
def test_models_that_went_wrong(seed):
    assert random_files.tried(seed) is None


#: Archives with entries that are no arrays, heads that do not end, types that are no numbers.
ARCHIVES = [8000204, 8000316, 8000444, 8000540]


@pytest.mark.parametrize("seed", ARCHIVES)
def test_archives_that_went_wrong(seed):
    assert random_files.kind_of(seed) == "archive" and random_files.tried(seed) is None


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_files():
    assert random_files.run(20_000, 600) == []
