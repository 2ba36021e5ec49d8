"""Tensors of the device in the hands of others: DLPack, other processes, files."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset

import genesis.torch

D = "genesis"


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    genesis.torch.fallback("error")
    yield
    genesis.torch.fallback("warn")


# ---- DLPack


def test_memory_is_lent() -> None:
    x = torch.arange(6.0, device=D).view(2, 3) + 1
    copy = x.clone()
    seen = np.from_dlpack(x)
    assert seen.tolist() == [[1, 2, 3], [4, 5, 6]]
    theirs = torch.from_dlpack(x)
    assert theirs.device.type == "cpu"
    theirs.add_(1)
    assert seen[0, 0] == 2 and x[0, 0].item() == 2 and (x * 2).sum().item() == 54
    assert copy[0, 0].item() == 1
    x.add_(1)  # gives the tensor other memory
    assert seen[0, 0] == 2 and x[0, 0].item() == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_views_of_every_dtype_are_lent(dtype: torch.dtype) -> None:
    here = torch.arange(24).view(2, 3, 4).to(dtype)
    there = here.to(D)
    for view in (lambda x: x, lambda x: x[:, 1].t(), lambda x: x[1, ::2], lambda x: x[0, 0, 0]):
        assert_close(torch.from_dlpack(view(there)), view(here))
    assert_close(torch.from_dlpack(here).to(D).cpu(), here)


def test_what_is_not_lent() -> None:
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(torch.ones(2, device=D, requires_grad=True))
    assert np.from_dlpack(torch.ones(2)).tolist() == [1, 1]  # others are as they were
    assert torch.ones(2).__dlpack_device__() == torch.ones(2, device=D).__dlpack_device__()


# ---- processes


def _double(first: Any, second: Any) -> None:
    whole, part = first.get()
    part.add_(1)
    second.put((whole * 2, whole.device.type, type(whole).__name__))
    first.get()


def test_tensors_go_to_other_processes() -> None:
    context = mp.get_context("spawn")
    first, second = context.Queue(), context.Queue()
    process = context.Process(target=_double, args=(first, second), daemon=True)
    process.start()
    x = torch.arange(4.0, device=D)
    first.put((x, x[2:]))  # which share memory there, too
    got, device, kind = second.get()
    assert got.tolist() == [0, 2, 6, 8] and device == D and kind == "Tensor"
    assert got.device.type == D and x.tolist() == [0, 1, 2, 3]  # a copy was sent
    first.put(None)
    process.join()


class _OnDevice(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.rows = torch.arange(12.0, device=D).view(6, 2)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def test_workers_give_tensors_of_the_device() -> None:
    batches = list(DataLoader(_OnDevice(), 3, num_workers=1, multiprocessing_context="fork"))
    assert [b.device.type for b in batches] == [D, D]
    assert torch.cat(batches).tolist() == torch.arange(12.0).view(6, 2).tolist()


def test_modules_are_sent_and_shared() -> None:
    model = nn.Linear(2, 3).to(D)
    assert model.share_memory() is model
    x = torch.ones(2, device=D)
    assert x.share_memory_() is x and x.is_shared()
    sent = pickle.loads(ForkingPickler.dumps(model))
    assert sent.weight.device.type == D and sent.weight.requires_grad
    assert_close(sent(x).cpu(), model(x).cpu())


# ---- files


def test_files_of_safetensors(tmp_path: Path) -> None:
    st = pytest.importorskip("safetensors.torch")
    from safetensors import safe_open

    file = tmp_path / "x.safetensors"
    tensors = {
        "a": torch.arange(6.0).view(2, 3),
        "b": torch.ones(3, dtype=torch.bfloat16),
        "c": torch.arange(3),
    }
    st.save_file({name: x.to(D) for name, x in tensors.items()}, file)
    assert_close(st.load_file(file), tensors)
    for place in (D, "genesis:0", torch.device(D)):
        found = st.load_file(file, device=place)
        assert {x.device.type for x in found.values()} == {D}
        assert_close({name: x.cpu() for name, x in found.items()}, tensors)
    with safe_open(file, framework="pt", device=D) as opened:
        assert sorted(opened.keys()) == ["a", "b", "c"]
        part = opened.get_slice("a")
        assert part.get_shape() == [2, 3] and part[:, 1:2].device.type == D
        assert part[:, 1:2].tolist() == [[1.0], [4.0]]
    with safe_open(file, framework="np") as opened:
        assert opened.get_tensor("c").tolist() == [0, 1, 2]
    model = nn.Linear(2, 2).to(D)
    st.save_model(model, file)
    other = nn.Linear(2, 2).to(D)
    st.load_model(other, file, device=D)
    assert_close(other.weight.cpu(), model.weight.cpu())
