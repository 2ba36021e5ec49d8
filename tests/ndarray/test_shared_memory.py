"""Memory that other libraries have, too: what they write is seen by whom it is for, and no more."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as reference

import genesis
from genesis import ndarray as nd
from genesis.compiler.program.prepacked import KeptValues
from genesis.ndarray.core.interop import is_steady


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every run of a recording that could keep something, whether it did."""
    found: list[bool] = []
    prepared = KeptValues.prepared

    def noted(self: KeptValues, *arguments: Any) -> Any:
        result = prepared(self, *arguments)
        found.append(result is not None)
        return result

    monkeypatch.setattr(KeptValues, "prepared", noted)
    return found


def convolution() -> tuple[Any, Any, Callable[[], Any], Callable[[], Any]]:
    """Input, weights, and a convolution of both: jitted, and what it ought to be."""
    rng = np.random.default_rng(0)
    x = genesis.tensor(rng.standard_normal((2, 32, 12, 12), np.float32))
    w = genesis.tensor(rng.standard_normal((32, 32, 3, 3), np.float32))
    given = torch.tensor(x.numpy())
    jitted = genesis.jit(lambda x: genesis.nn.functional.conv2d(x, w))

    def expected() -> Any:
        return reference.conv2d(given, torch.tensor(np.array(w.array.numpy()))).numpy()

    return x, w, lambda: jitted(x).numpy(), expected


def assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("before", [0, 1, 4])
@pytest.mark.parametrize("part", [False, True])
def test_weights_that_another_library_writes(before: int, part: bool, kept: list[bool]) -> None:
    """Exported before they are recorded, after that, and while packed ones are kept."""
    _, w, run, expected = convolution()
    for _ in range(before):
        assert_close(run(), expected())
    assert any(kept) is (before == 4)
    theirs = torch.from_dlpack(w[3] if part else w)
    for k in range(4):
        theirs *= -1.5
        assert_close(run(), expected())
        assert_close(run(), expected())
        assert k or w.numpy().flat[0] != 0
    assert not any(kept[before:])
    # Once nobody has them any more, nothing changes unseen, and packed weights are kept again.
    del theirs
    for _ in range(3):
        assert_close(run(), expected())
    assert kept[-1]


def test_what_is_written_at_the_last_moment_is_seen() -> None:
    _, w, run, expected = convolution()
    for _ in range(3):
        run()
    theirs = torch.from_dlpack(w)
    theirs += 1
    del theirs
    assert_close(run(), expected())


def test_copies_do_not_see_what_others_write() -> None:
    """Whether they were made before the export or after it, computed or not."""
    x = genesis.tensor([0.0, 1.0, 2.0])
    first, doubled = x.clone(), x * 2
    realised = x.clone()
    assert realised.tolist() == [0, 1, 2]
    view, before = x[1:], x.array.numpy()
    theirs = torch.from_dlpack(x)
    second, pending = x.clone(), x * 3
    theirs[1] = 50
    assert x.tolist() == [0, 50, 2] and view.tolist() == [50, 2]
    assert [y.tolist() for y in (first, second, realised)] == [[0, 1, 2]] * 3
    assert before.tolist() == [0, 1, 2] and doubled.tolist() == [0, 2, 4]
    # What is still to be computed reads what is there when it is.
    assert pending.tolist() == [0, 150, 6]
    theirs[0] = 7
    assert torch.from_dlpack(x).data_ptr() == theirs.data_ptr() and x.tolist() == [7, 50, 2]
    x += 1  # in place is in memory of our own: who has the old keeps it
    assert x.tolist() == [8, 51, 3] and theirs.tolist() == [7, 50, 2]
    theirs[0] = 0
    assert x.tolist() == [8, 51, 3]


def test_copies_of_foreign_memory_are_copies() -> None:
    n = np.arange(3, dtype=np.float32)
    x = genesis.from_numpy(n)
    t = torch.arange(3.0)
    y = genesis.from_dlpack(t)
    copies = x.clone(), y.clone()
    n[0] = t[0] = 9
    assert x.tolist() == y.tolist() == [9, 1, 2]
    assert [c.tolist() for c in copies] == [[0, 1, 2]] * 2
    assert not is_steady(x.array.value) and not is_steady(y.array.value)


def test_what_jit_returns_of_its_constants_may_be_written() -> None:
    table = nd.arange(4.0).realize()
    run = genesis.jit(lambda x: (x + table, table))
    _, returned = run(nd.ones(4))
    theirs = torch.from_dlpack(returned)
    theirs[0] = 100
    total, again = run(nd.ones(4))
    assert total.tolist() == (np.array(again.tolist()) + 1).tolist()
    assert table.tolist() == again.tolist() == [100, 1, 2, 3]


def test_read_only_stays_read_only() -> None:
    x = nd.arange(3.0).realize()
    for window in (x.numpy(), np.asarray(x), x.reshape(3, 1).numpy(), x[1:].numpy()):
        for array in (window, window.base):
            if isinstance(array, np.ndarray):
                with pytest.raises(ValueError, match="WRITEABLE"):
                    array.flags.writeable = True
    assert memoryview(x.__array_interface__["data"]).readonly
    x += 1
    assert x.tolist() == [1, 2, 3]


def test_files_that_are_mapped_are_kept(tmp_path: Any) -> None:
    """Nobody writes to them, so packed weights are kept and copies share memory."""
    path = str(tmp_path / "w.safetensors")
    genesis.save({"w": genesis.tensor(np.ones((4, 4), np.float32))}, path)
    w = genesis.load(path)["w"]
    assert is_steady(w.array.value)
    assert np.shares_memory(w.clone().numpy(), w.numpy())
