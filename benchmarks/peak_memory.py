"""Peak memory of training steps against PyTorch: ``python -m benchmarks.peak_memory``.

Three models, each as forward and backward pass that returns all gradients, and as a whole step
that also updates the weights by SGD. What counts is memory on top of weights and inputs. Genesis
knows it before it runs; here it runs, too, and what its allocator saw must be the prediction with
each block rounded to its size class. PyTorch (eager, on the CPU) is measured by its profiler: every
request to its allocator during the second of two steps, with no gradients left from the first;
memory that its libraries take past the allocator does not count against it. For both it is the
bytes that were asked for, not what allocators round them to.

The second table is about `memory_budget`: how low a budget can be, and what is computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

import genesis
from benchmarks.models import Tree, bert, leaves, mapped, random_weights
from benchmarks.models.resnet import convolution
from genesis import ndarray as nd
from genesis.backends.cpu.runtime.memory import size_class
from genesis.compiler.program.rematerialise import OverBudget
from genesis.ir.size import evaluate
from genesis.ndarray import NDArray

RATE = 0.01
HEADS = 4
BUDGETS = (0.8, 0.6, 0.5)


# ---- a multilayer perceptron


def mlp(w: Tree, x: NDArray, target: NDArray) -> tuple[NDArray, Tree]:
    """The mean squared error of layers of products and ReLUs, and its gradients."""
    values = [x]
    for layer in w[:-1]:
        values.append(nd.relu(values[-1] @ layer["weight"] + layer["bias"]))
    error = values[-1] @ w[-1]["weight"] + w[-1]["bias"] - target
    gradients = []
    dy = error * (2 / error.size)
    for layer, value in zip(reversed(w), reversed(values), strict=True):
        gradients.append({"weight": value.mT @ dy, "bias": dy.sum(axis=0)})
        dy = nd.where(value > 0, dy @ layer["weight"].mT, 0.0)
    return (error * error).mean(), gradients[::-1]


def torch_mlp(w: Tree, x: Any, target: Any) -> Any:
    """The same loss."""
    from torch.nn import functional as F  # noqa: N812

    for layer in w[:-1]:
        x = F.relu(x @ layer["weight"] + layer["bias"])
    return F.mse_loss(x @ w[-1]["weight"] + w[-1]["bias"], target)


# ---- a convolutional network


def cnn(w: Tree, x: NDArray, labels: NDArray) -> tuple[NDArray, Tree]:
    """Cross entropy of 3x3 convolutions with ReLUs, halved after every eighth; and gradients."""
    saved = []
    for number, layer in enumerate(w["layers"]):
        y = nd.relu(convolution(x, layer["weight"], padding=1) + layer["bias"][:, None, None])
        saved.append((x, y))
        x = halved(y) if number % 8 == 7 else y
    pooled = x.mean(axis=(2, 3))
    logarithm = nd.log_softmax(pooled @ w["weight"])
    hit = nd.arange(w["weight"].shape[1]) == labels[:, None]
    loss = -nd.where(hit, logarithm, 0.0).sum() / labels.shape[0]

    dscore = (nd.exp(logarithm) - hit.astype("float32")) / labels.shape[0]
    dweight = pooled.mT @ dscore
    height, width = x.shape[2:]
    dx = ((dscore @ w["weight"].mT) / (height * width))[:, :, None, None].expand(*x.shape)
    layers = []
    for number in reversed(range(len(saved))):
        x, y = saved[number]
        weight = w["layers"][number]["weight"]
        dy = nd.where(y > 0, doubled(dx) if number % 8 == 7 else dx, 0.0)
        padded = nd.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = nd.windows(nd.windows(padded, axis=2, size=3), axis=3, size=3)
        gradient = nd.einsum("nchwij,nohw->ocij", windows, dy)
        layers.append({"weight": gradient, "bias": dy.sum(axis=(0, 2, 3))})
        if number:
            dx = convolution(dy, weight.flip((2, 3)).swapaxes(0, 1), padding=1)
    return loss, {"layers": layers[::-1], "weight": dweight}


def halved(x: NDArray) -> NDArray:
    """The mean of every 2x2 pixels."""
    n, c, height, width = x.shape
    return x.reshape(n, c, height // 2, 2, width // 2, 2).mean(axis=(3, 5))


def doubled(dx: NDArray) -> NDArray:
    """The gradient of `halved`."""
    n, c, height, width = dx.shape
    spread = dx[:, :, :, None, :, None].expand(n, c, height, 2, width, 2)
    return spread.reshape(n, c, 2 * height, 2 * width) / 4


def torch_cnn(w: Tree, x: Any, labels: Any) -> Any:
    """The same loss."""
    from torch.nn import functional as F  # noqa: N812

    for number, layer in enumerate(w["layers"]):
        x = F.relu(F.conv2d(x, layer["weight"], layer["bias"], padding=1))
        if number % 8 == 7:
            x = F.avg_pool2d(x, 2)
    return F.cross_entropy(x.mean((2, 3)) @ w["weight"], labels)


# ---- a transformer


def transformer(w: Tree, tokens: NDArray, labels: NDArray) -> tuple[NDArray, Tree]:
    """A BERT with its masked-language-model loss and its gradients."""
    return bert.loss_and_gradients(w, tokens, labels, HEADS)


def torch_transformer(w: Tree, tokens: Any, labels: Any, fused: bool = False) -> Any:
    """The same loss; `fused` uses PyTorch's attention that keeps no probabilities."""
    from torch.nn import functional as F  # noqa: N812

    def norm(x: Any, n: Tree) -> Any:
        return F.layer_norm(x, x.shape[-1:], n["gamma"], n["beta"], bert.EPSILON)

    def linear(x: Any, layer: Tree) -> Any:
        return F.linear(x, layer["weight"], layer["bias"])

    def attention(q: Any, k: Any, v: Any) -> Any:
        if fused:
            return F.scaled_dot_product_attention(q, k, v)
        return F.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v

    x = norm(w["words"][tokens] + w["positions"][: tokens.shape[1]], w["norm"])
    for layer in w["layers"]:
        q, k, v = (
            linear(x, layer[name]).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        mixed = attention(q, k, v).transpose(1, 2).flatten(-2)
        x = norm(x + linear(mixed, layer["output"]), layer["attention_norm"])
        wide = F.gelu(linear(x, layer["up"]))
        x = norm(x + linear(wide, layer["down"]), layer["feed_forward_norm"])
    logits = F.linear(x, w["words"], w["decoder_bias"])
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)


# ---- cases


@dataclass(frozen=True)
class Case:
    """A model in both libraries, the shapes of its weights, and its inputs."""

    ours: Callable[..., tuple[NDArray, Tree]]
    theirs: Callable[..., Any]
    shapes: Tree
    inputs: Callable[[np.random.Generator], tuple[Any, Any]]
    also: Callable[..., Any] | None = None  # PyTorch in another way


def _dense(features: int, out: int) -> Tree:
    return {"weight": (features, out), "bias": (out,)}


def _widths(*channels: int) -> Tree:
    return [{"weight": (out, before, 3, 3), "bias": (out,)} for before, out in pairwise(channels)]


def _vectors(batch: int, features: int) -> Callable[[np.random.Generator], Any]:
    return lambda rng: rng.standard_normal((2, batch, features), np.float32)


def _images(rng: np.random.Generator) -> tuple[Any, Any]:
    return rng.standard_normal((32, 3, 32, 32), np.float32), rng.integers(0, 10, 32)


def _tokens(rng: np.random.Generator) -> tuple[Any, Any]:
    tokens, labels = rng.integers(0, 1000, (2, 8, 128))
    return tokens, np.where(rng.random(labels.shape) < 0.15, labels, -1)


CASES = {
    "MLP": Case(mlp, torch_mlp, [_dense(768, 768)] * 16, _vectors(768, 768)),
    "MLP, large batch": Case(mlp, torch_mlp, [_dense(512, 512)] * 16, _vectors(2048, 512)),
    "CNN": Case(
        cnn,
        torch_cnn,
        {"layers": _widths(3, *[32] * 8, *[64] * 8, *[128] * 8), "weight": (128, 10)},
        _images,
    ),
    "transformer": Case(
        transformer,
        torch_transformer,
        bert.parameters(bert.Config(4, 256, HEADS, 1024, vocabulary=1000, positions=128)),
        _tokens,
        partial(torch_transformer, fused=True),
    ),
}


# ---- measuring


def updated(model: Callable[..., tuple[NDArray, Tree]]) -> Callable[..., NDArray]:
    """A training step: the weights are overwritten, the loss is returned."""

    def step(w: Tree, *inputs: NDArray) -> NDArray:
        loss, gradients = model(w, *inputs)
        found = dict(leaves(gradients))
        for name, weight in leaves(w):
            weight[:] = weight - RATE * found[name]
        return loss

    return step


def measure(case: Case, update: bool, budget: float | None) -> dict[str, float]:
    """Predicted and measured bytes of one step, and its arithmetic."""
    rng = np.random.default_rng(0)
    weights = mapped(nd.array, random_weights(case.shapes, rng))
    inputs = [nd.array(x) for x in case.inputs(rng)]
    nd.realize(*(x for _, x in leaves(weights)), *inputs)
    step = genesis.jit(updated(case.ours) if update else case.ours, memory_budget=budget)
    try:
        recording, sizes = step.recording(weights, *inputs)
    except OverBudget:
        return {}
    program = recording.program
    before = genesis.memory.stats().live_bytes
    result = step(weights, *inputs)
    measured = genesis.memory.stats().peak_live_bytes - before
    del result
    own = [o for o in program.outputs if o.reuses is None]
    rounded = sum(size_class(evaluate(o.nbytes, {})) for o in own)
    block = program.placement(sizes).total
    rounded += size_class(block) if program.temporaries else 0
    if measured != rounded:
        raise SystemExit(f"predicted {rounded:,} bytes, but measured {measured:,}")
    report = genesis.explain(step, weights, *inputs)
    return {"peak": program.peak_bytes(), "flops": report.flops, "kernels": len(report.kernels)}


def measure_torch(case: Case, update: bool, model: Callable[..., Any]) -> int:
    """The most bytes that were allocated at a time during a step, and not before it."""
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    weights = mapped(
        lambda x: torch.from_numpy(x).requires_grad_(), random_weights(case.shapes, rng)
    )
    inputs = [torch.from_numpy(x) for x in case.inputs(rng)]
    optimizer = torch.optim.SGD([x for _, x in leaves(weights)], RATE)

    def step() -> None:
        model(weights, *inputs).backward()
        if update:
            optimizer.step()

    step()
    optimizer.zero_grad(set_to_none=True)
    return torch_peak(step)


def torch_peak(step: Callable[[], Any]) -> int:
    """The most bytes that PyTorch allocates at a time while it does a step."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def in_fresh_process(*request: Any) -> Any:
    """The answer to a request from a process whose allocator has seen nothing else."""
    command = [sys.executable, "-m", "benchmarks.peak_memory", "--measure", json.dumps(request)]
    environment = os.environ | {"GENESIS_CACHE": "off"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"measuring {request} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def answer(name: str, library: str, update: bool, budget: float | None) -> Any:
    """What `in_fresh_process` asks for."""
    case = CASES[name]
    if library == "genesis":
        return measure(case, update, budget)
    model = case.theirs if library == "torch" else case.also
    return None if model is None else measure_torch(case, update, model)


# ---- showing


def against_torch() -> dict[tuple[str, bool], dict[str, float]]:
    """The first table; what Genesis takes by case."""
    print("peak memory of a step, MB on top of weights and inputs")
    print(f"{'':42}{'genesis':>9}{'torch':>9}{'ratio':>8}{'torch, fused attention':>25}")
    usual = {}
    for name in CASES:
        for update in (False, True):
            ours = usual[name, update] = in_fresh_process(name, "genesis", update, None)
            theirs = in_fresh_process(name, "torch", update, None)
            other = in_fresh_process(name, "torch, fused", update, None)
            label = f"{name}, forward, backward{', SGD' * update}"
            ratio = ours["peak"] / theirs
            line = f"{label:42}{ours['peak'] / 1e6:9.2f}{theirs / 1e6:9.2f}{ratio:8.2f}"
            print(line + (f"{other / 1e6:25.2f}" if other else ""), flush=True)
    return usual


def under_budgets(usual: dict[tuple[str, bool], dict[str, float]]) -> None:
    """The second table."""
    print("\nbudgets: arithmetic as a multiple of that without a budget")
    print(f"{'':42}" + "".join(f"{budget:9.0%}" for budget in BUDGETS))
    for (name, update), plain in usual.items():
        cells = []
        for budget in BUDGETS:
            found = in_fresh_process(name, "genesis", update, budget)
            fits = "flops" in found
            cells.append(f"{found['flops'] / plain['flops']:.2f}" if fits else "-")
        label = f"{name}, forward, backward{', SGD' * update}"
        print(f"{label:42}" + "".join(f"{cell:>9}" for cell in cells), flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measure", help="answer one request in this process, as JSON")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(answer(*json.loads(options.measure))))
        return
    under_budgets(against_torch())


if __name__ == "__main__":
    main()
