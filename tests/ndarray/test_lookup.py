"""`lookup`: bytes of a table of 16."""

from __future__ import annotations

import numpy as np
import pytest

from genesis import ndarray as nd

TABLE = [int(x) for x in np.random.default_rng(0).integers(0, 256, 16)]


@pytest.mark.parametrize("count", [1, 5, 16, 48, 257])
def test_bytes_of_a_table(count: int) -> None:
    codes = np.random.default_rng(count).integers(0, 256, (3, count), dtype=np.uint8)
    found = nd.lookup(nd.array(codes), TABLE).numpy()
    np.testing.assert_array_equal(found, np.array(TABLE, np.uint8)[codes & 15])


def test_codes_that_are_computed() -> None:
    words = np.random.default_rng(1).integers(0, 256, (64, 33), dtype=np.uint8)
    high = nd.lookup(nd.array(words) >> 4, TABLE).astype("float32").sum(axis=1)
    want = np.array(TABLE, np.float32)[words >> 4].sum(1)
    np.testing.assert_array_equal(high.numpy(), want)


def test_what_is_no_table() -> None:
    codes = nd.array(np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="lookup: a table has 16 numbers from 0 to 255"):
        nd.lookup(codes, TABLE[:15])
    with pytest.raises(ValueError, match="from 0 to 255"):
        nd.lookup(codes, [-1, *TABLE[1:]])
    with pytest.raises(TypeError, match="codes are of type uint8, not int64"):
        nd.lookup(nd.array(np.zeros(3, np.int64)), TABLE)
