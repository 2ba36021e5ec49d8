"""Whole models, warm: steps of training and inference.

The MLP and the LSTM are written against `nn` of either library. The others are PyTorch's models as
they are: Genesis runs them through ``torch.compile(backend="genesis")``, so that all contenders do
the same work, and PyTorch's optimizer (fused) is part of every step. A step of training gives the
loss of the first one, which is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases import Arrays, Case, Maker, Work
from benchmarks.training import mlp


def lstm(nn: Any) -> Any:
    """One layer, and what reads the last of its states."""

    class Reader(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(128, 256)
            self.out = nn.Linear(256, 10)

        def forward(self, x: Any) -> Any:
            return self.out(self.lstm(x)[0][-1])

    return Reader()


def _training(library: str, model: Callable[[Any], Any], compiled: bool = False) -> Maker:
    """Steps of Adam on one batch, from the same weights in every process."""

    def make(arrays: Arrays) -> Work:
        lib: Any = __import__(library)
        net = model(lib.nn)
        rng = np.random.default_rng(0)
        values = {
            name: lib.tensor(rng.uniform(-0.05, 0.05, tuple(p.shape)).astype(np.float32))
            for name, p in net.state_dict().items()
        }
        net.load_state_dict(values)
        options = {"fused": True} if library == "torch" else {}
        optimizer = lib.optim.Adam(net.parameters(), 1e-3, **options)
        run = lib.compile(net, dynamic=False) if compiled else net

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = lib.nn.functional.cross_entropy(run(x), y)
            loss.backward()
            optimizer.step()
            return loss

        if library == "genesis":
            step = lib.jit(step)
        x, y = map(lib.tensor, arrays)
        return _first(lambda: step(x, y).item())

    return make


def _first(step: Callable[[], float]) -> Work:
    """Steps whose result is that of the first one."""
    first = np.asarray(step())

    def work() -> Any:
        step()
        return first

    return work


def _own(name: str, model: Callable[[Any], Any], shape: tuple[int, ...], rows: int) -> Case:
    """A model written against either library."""
    return Case(
        name,
        (),
        _training("genesis", model),
        _training("torch", model),
        inductor=_training("torch", model, compiled=True),
        draw=lambda rng: [rng.standard_normal(shape, np.float32), rng.integers(0, 10, rows)],
        group="models",
    )


def _torch(name: str, model: str, *arguments: Any) -> Case:
    """A PyTorch model of `benchmarks.torch_models`."""

    def make(backend: str | None, arrays: Arrays) -> Work:
        import torch

        from benchmarks import torch_models
        from benchmarks.worker import THREADS

        torch.set_num_threads(THREADS)
        torch.manual_seed(0)
        if backend is not None:
            torch._dynamo.reset()
        if backend == "genesis":
            import genesis.torch  # noqa: F401 - makes the backend known
        compiled = (lambda m: m) if backend is None else torch.compile(backend=backend)
        return _first(getattr(torch_models, model)(compiled, *arguments))

    ours, theirs, inductor = (partial(make, b) for b in ("genesis", None, "inductor"))
    return Case(name, (), ours, theirs, inductor=inductor, group="models")


MODELS = [
    _own("MLP 784-512-512-10, training, batch 128", mlp, (128, 784), 128),
    _own("LSTM 128-256, 64 steps, training, batch 32", lstm, (64, 32, 128), 32),
    _torch("ResNet-50, inference, 1 image", "resnet_inference", 1),
    _torch("ResNet-50, inference, 16 images", "resnet_inference", 16),
    _torch("ResNet-50, training, 8 images", "resnet_training", 8),
    _torch("BERT-base, inference, 1x128", "bert_inference", 1),
    _torch("BERT-base, inference, 8x128", "bert_inference", 8),
    _torch("BERT-base, training, 4x128", "bert_training", 4),
    _torch("GPT-2 124M, training, 2x256", "gpt2_training"),
]
