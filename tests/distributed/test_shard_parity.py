"""Parity: whatever is lost, within what was promised, comes back; checkpoints mend themselves."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import genesis
import genesis.distributed as gd
from genesis import nn, optim
from genesis.distributed.parity import encode, rebuild


def every_loss(count: int, parity: int) -> int:
    rng = np.random.default_rng(count)
    lengths = [int(n) for n in rng.integers(1, 500, count)]
    shards = [rng.integers(0, 256, n, dtype=np.uint8) for n in lengths]
    every = dict(enumerate([*shards, *(encode(shards, parity, k) for k in range(parity))]))
    patterns = list(combinations(range(count + parity), parity))
    for lost in patterns:
        known = {k: x for k, x in every.items() if k not in lost}
        found = rebuild(known, lengths, parity)
        assert all(np.array_equal(a, b) for a, b in zip(found, shards, strict=True)), lost
    with pytest.raises(ValueError, match="do not give"):
        rebuild({k: every[k] for k in range(count - 1)}, lengths, parity)
    return len(patterns)


def test_any_shard_of_three() -> None:
    assert every_loss(2, 1) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("count", "parity", "patterns"), [(4, 2, 15), (4, 3, 35), (6, 3, 84)])
def test_any_shards(count: int, parity: int, patterns: int) -> None:
    assert every_loss(count, parity) == patterns


def test_a_damaged_checkpoint(tmp_path: Path) -> None:
    genesis.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    gd.mesh()
    weights = []
    for step in (1, 2):
        with genesis.no_grad():
            model.weight.add_(1.0)
        weights.append(model.weight.tolist())
        gd.save(tmp_path, step, model, optimizer, parity=step - 1)  # of the second alone
    second = tmp_path / "step-000000002" / "rank-0.safetensors"
    whole = second.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        second.write_bytes(damaged)
        with pytest.warns(UserWarning, match="made anew by parity"):
            assert gd.restore(tmp_path, model, optimizer) == 2
        assert model.weight.tolist() == weights[1] and second.read_bytes() == whole
    second.unlink()
    (second.parent / "parity-0").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="passed over"):
        assert gd.restore(tmp_path, model, optimizer) == 1
    assert model.weight.tolist() == weights[0]
