"""``torch.compile(backend="genesis")`` for a GPU, without one: a driver that is pretended.

PyTorch's CPU tensors stand for CUDA's, since a pretended GPU's memory is the host's, and a stream
of the driver for PyTorch's current one. ``TRITON_INTERPRET=1 python -m tests.interpreted_torch``
prints what was checked; `tests/gpu_torch_compile.py` is for a real GPU.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import genesis.torch  # noqa: F401
from genesis.torch.compile import backend, run_program, trace
from tests import interpreted_cuda
from tests.fake_cuda import FakeDriver

F = nn.functional


def install(monkeypatch: Any) -> tuple[FakeDriver, int]:
    """Let graphs of CPU tensors be compiled for the pretended GPU; the driver, and the stream."""
    driver = interpreted_cuda.install(monkeypatch)
    _, stream = driver.cuStreamCreate(0)
    driver.prompt.add(stream)  # PyTorch's memory is not ordered by it
    host = torch.device("cpu")
    for module in (run_program, trace):
        monkeypatch.setattr(module, "place_of", lambda device: host)
    monkeypatch.setattr(run_program, "stream_of", lambda place: stream)
    monkeypatch.setattr(backend, "device_of", lambda module: "cuda")
    return driver, stream


def compiled(f: Any) -> Any:
    """A function as Genesis computes it there."""
    return torch.compile(f, backend="genesis", fullgraph=True)


def training(driver: FakeDriver) -> None:
    """Losses and gradients agree, launched one by one and as graphs."""
    table = nn.Embedding(11, 8)
    model = nn.Sequential(table, nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    ids, y = torch.randint(0, 11, (6,)), torch.randint(0, 4, (6,))

    def gradients(f: Any) -> list[Any]:
        model.zero_grad()
        loss = f(ids, y)
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    def loss_of(ids: Any, y: Any) -> Any:
        return F.cross_entropy(model(ids), y)

    run = compiled(loss_of)
    want = gradients(loss_of)
    for _ in range(3):
        torch.testing.assert_close(gradients(run), want, rtol=1e-4, atol=1e-5)
    assert driver.launched["graph"] and driver.launched["kernel"]
    wrong = ids.clone()
    wrong[2] = 40
    run(wrong, y)
    with pytest.raises(IndexError, match="embedding: index 40 is out of range for axis 0"):
        run(ids, y)  # known by now, without having been waited for


def buffers_and_sizes() -> None:
    """Buffers are written in place; one program serves many sizes."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
    other = copy.deepcopy(model)
    run = compiled(model)
    for n in (4, 6, 9):
        x = torch.randn(n, 8)
        torch.testing.assert_close(run(x), other(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(list(model.buffers()), list(other.buffers()))


def seeds_and_constants() -> None:
    """Random numbers follow PyTorch's seed; constants of a graph are there."""
    run = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(200)
    torch.manual_seed(1)
    first, second = run(x), run(x)
    torch.manual_seed(1)
    assert torch.equal(run(x), first) and not torch.equal(first, second)

    def f(x: Any) -> Any:
        return torch.where(x > 0, x, torch.tensor(-1.0)) + torch.tensor([1.0, 2.0, 3.0])

    x = torch.randn(4, 3)
    torch.testing.assert_close(compiled(f)(x), f(x))


def captures(monkeypatch: Any, driver: FakeDriver, stream: int) -> None:
    """While a stream is captured launches are recorded, and run when they are replayed."""
    run = compiled(lambda x: (x @ x).softmax(-1) * 2)
    x = torch.randn(16, 16)
    for _ in range(3):
        run(x)
    allocated, kept = run_program.GPUFrame._allocated, []

    def keep(frame: Any, nbytes: int) -> Any:
        kept.append(allocated(frame, nbytes))  # as a pool of PyTorch's does for a graph
        return kept[-1]

    monkeypatch.setattr(run_program.GPUFrame, "_allocated", keep)
    driver.recorded[stream] = []
    y = run(x)
    work = driver.recorded.pop(stream)
    assert kept
    x.copy_(torch.randn(16, 16))
    for launch in work:
        launch()
    torch.testing.assert_close(y, (x @ x).softmax(-1) * 2, rtol=1e-4, atol=1e-5)


def main() -> None:
    """All of it."""
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as monkeypatch:
        driver, stream = install(monkeypatch)
        training(driver)
        buffers_and_sizes()
        seeds_and_constants()
        captures(monkeypatch, driver, stream)
    print("agrees")


if __name__ == "__main__":
    main()
