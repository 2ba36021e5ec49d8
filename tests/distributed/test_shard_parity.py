"""Parity: whatever is lost, within what was promised, comes back; checkpoints mend themselves."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

import genesis
import genesis.distributed as gd
from genesis import nn, optim
from genesis.distributed import checkpoint
from genesis.distributed.erasure_code import _code, _times, encode, rebuild


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
        gd.save(tmp_path, step, model, optimizer, parity=step - 1).wait()  # of the second alone
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


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    """Every checkpoint is whole all the same, and old files go when nobody needs them."""
    model = nn.ModuleDict({"frozen": nn.Linear(200, 200), "new": nn.Linear(20, 20)})
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    gd.mesh()
    sizes, weights = [], {}
    for step in range(1, 7):
        with genesis.no_grad():
            model["new"].weight.add_(1.0)
            if step == 5:
                model["frozen"].weight.mul_(2.0)
        weights[step] = {name: x.tolist() for name, x in model.state_dict().items()}
        gd.save(tmp_path, step, model, optimizer, parity=1).wait()
        sizes.append((tmp_path / f"step-{step:09}" / "rank-0.safetensors").stat().st_size)
        there = sorted(int(p.name[5:]) for p in tmp_path.iterdir())
        assert there == {1: [1], 2: [1, 2], 3: [1, 2, 3], 4: [1, 3, 4], 5: [1, 4, 5]}.get(
            step, [5, 6]
        )
    assert min(sizes[0], sizes[4]) > 160_000 and max(sizes[1:4] + sizes[5:]) < 10_000
    (tmp_path / "step-000000006" / "manifest.json").unlink()
    (tmp_path / "step-000000005" / "rank-0.safetensors").write_bytes(b"lost")
    with pytest.warns(UserWarning, match="made anew by parity"):
        assert gd.restore(tmp_path, model, optimizer) == 5
    assert {name: x.tolist() for name, x in model.state_dict().items()} == weights[5]
    # Without its parity, what one checkpoint has of another is lost for both.
    gd.save(tmp_path, 6, model, optimizer).wait()
    for name in ("rank-0.safetensors", "parity-0"):
        (tmp_path / "step-000000005" / name).unlink()
    with pytest.warns(UserWarning, match="passed over"):
        assert gd.restore(tmp_path, model, optimizer) == 0


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """It has the values of when it was asked for, jitted steps or not; an error is raised once."""
    model = nn.Linear(4, 4)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    gd.mesh()

    @genesis.jit
    def step() -> genesis.Tensor:
        loss = model(genesis.ones(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step()
    want, begun = model.weight.tolist(), Event()
    write = checkpoint._write_changed

    def late(*args: Any) -> Any:
        begun.wait()
        return write(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_write_changed", late)
        saving = gd.save(tmp_path, 1, model, optimizer)
        for _ in range(3):
            step()
        with genesis.no_grad():
            model.weight.zero_()
        assert not list(tmp_path.glob("*/manifest.json"))
        begun.set()
        saving.wait()
    assert gd.restore(tmp_path, model, optimizer) == 1 and model.weight.tolist() == want

    def full(*args: Any) -> Any:
        raise OSError("no space left")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_write_changed", full)
        gd.save(tmp_path, 2, model, optimizer)
        with pytest.raises(OSError, match="no space left"):
            gd.save(tmp_path, 3, model, optimizer)
    assert gd.restore(tmp_path, model, optimizer) == 1


def test_equal_sums_survive_one_loss() -> None:
    """Why parity takes a code: of two shards that are lost, two plain sums know only the sum."""
    left = np.array([[0, 0, 1], [1, 1, 1], [1, 1, 1]])  # shard 2 and both sums
    assert np.linalg.matrix_rank(left) == 2
    code = _code(3, 2)
    for a, b in combinations(range(3), 2):
        assert _times(code[0][a], code[1][b]) != _times(code[0][b], code[1][a])
