"""Small programs of plain PyTorch, whose results must not depend on Genesis being imported.

``python -m tests.torch_smoke DEVICE FILE [--import]`` runs all of them on "cpu" or "cuda", after
``import genesis.torch`` if that is asked for, and writes what they gave. Nothing in them knows of
Genesis. With "both" for FILE both ways are run, and compared: so the exit code says on a machine
with a GPU what `tests/pytorch/test_torch_peace.py` says elsewhere.
"""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Callable[[str], Any]] = []


def program(function: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let a function of a device be one of the programs."""
    PROGRAMS.append(function)
    return function


def network(device: str) -> nn.Module:
    """A network with a bit of everything."""
    layers = (
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(128, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 5),
    )  # fmt: skip
    return nn.Sequential(*layers).to(device)


def trained(device: str, optimizer: Callable[[Any], Any], steps: int = 3) -> Any:
    """Parameters and losses of a network that was trained."""
    model = network(device)
    step = optimizer(model.parameters())
    losses = []
    for _ in range(steps):
        x, y = torch.randn(4, 3, 8, 8, device=device), torch.randint(0, 5, (4,), device=device)
        step.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        step.step()
        losses.append(loss.detach())
    return losses, dict(model.state_dict())


@program
def optimizers(device: str) -> Any:
    kinds = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop
    return [trained(device, lambda p, kind=kind: kind(p, lr=0.01)) for kind in kinds]


@program
def derivatives(device: str) -> Any:
    x = torch.randn(6, 4, device=device, requires_grad=True)
    w = torch.randn(4, 4, device=device, requires_grad=True)
    (first,) = torch.autograd.grad((x @ w).tanh().pow(3).sum(), x, create_graph=True)
    first.square().sum().backward()
    seen: list[Any] = []
    z = x.clone()
    z[1:3] *= 2
    z.register_hook(lambda g: seen.append(g.detach().clone()))
    z.exp().mean().backward()
    jacobian = torch.autograd.functional.jacobian(lambda t: (t @ w).sin().sum(0), x.detach())
    return first, x.grad, w.grad, seen, jacobian


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return 2 * x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 4 * x * gradients[0]


@program
def functions_of_ones_own(device: str) -> Any:
    x = torch.randn(5, device=device, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True):
        _Doubled.apply(x).sum().backward()
    return x.grad


@program
def checkpoints(device: str) -> Any:
    found = []
    for reentrant in (True, False):
        x = torch.randn(64, device=device, requires_grad=True)
        checkpoint(nn.functional.dropout, x, 0.5, use_reentrant=reentrant).sum().backward()
        found.append(x.grad)
    return found


@program
def threads(device: str) -> Any:
    found: dict[int, Any] = {}

    def work(k: int) -> None:
        x = torch.full((8,), float(k), device=device, requires_grad=True)
        (x * x).sum().backward()
        found[k] = x.grad

    for k in range(4):
        thread = threading.Thread(target=work, args=(k,))
        thread.start()
        thread.join()
    return found


@program
def mixed_precision(device: str) -> Any:
    model, scaler = nn.Linear(8, 8).to(device), torch.amp.GradScaler(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with torch.autocast(device, dtype=torch.bfloat16):
            y = model(torch.randn(4, 8, device=device))
        scaler.scale(y.float().square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return str(y.dtype), dict(model.state_dict()), scaler.state_dict()


class _Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, k: int) -> Any:
        return torch.tensor([float(k * k)]), torch.rand(2)


@program
def loaders(device: str) -> Any:
    found = []
    for workers in (0, 2):
        generator = torch.Generator().manual_seed(3)
        loader = DataLoader(
            _Squares(), 4, shuffle=True, num_workers=workers, generator=generator,
            pin_memory=device == "cuda",
        )  # fmt: skip
        found += [[x.is_pinned(), x, noise] for x, noise in loader]
    return found


@program
def files_and_copies(device: str) -> Any:
    model = network(device)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other = network(device)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    x = torch.ones(2, 3, 8, 8, device=device)
    return other.eval()(x), copy.deepcopy(model).eval()(x), model.half().state_dict()


@program
def random_numbers(device: str) -> Any:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = torch.rand(4, device=device), torch.randperm(9, device=device)
    with torch.random.fork_rng():
        torch.rand(3, device=device)
    drawn = torch.normal(0.0, 1.0, (4,), device=device)
    own = torch.Generator(device).manual_seed(5)
    return state, first, drawn, torch.rand(3, generator=own, device=device)


@program
def transforms(device: str) -> Any:
    w = torch.randn(4, 4, device=device)
    x = torch.randn(5, 4, device=device)
    each = torch.func.vmap(torch.func.grad(lambda t: (t @ w).sin().sum()))(x)
    forward = torch.func.jvp(lambda t: (t @ w).tanh(), (x,), (torch.ones_like(x),))
    return each, forward, torch.func.hessian(lambda t: t.pow(3).sum())(x[0])


@program
def data_parallel(device: str) -> Any:
    from torch import distributed

    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            init_method=f"file://{folder}/meeting",
            rank=0,
            world_size=1,
        )
        try:
            model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).to(device))
            model(torch.randn(3, 4, device=device)).square().sum().backward()
            return [p.grad for p in model.parameters()]
        finally:
            distributed.destroy_process_group()


@program
def streams(device: str) -> Any:
    if device == "cpu":
        return None
    side = torch.cuda.Stream()
    x = torch.randn(256, 256, device=device, requires_grad=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (x @ x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    return x.grad, event.query(), torch.accelerator.current_stream().device.type


@program
def questions(device: str) -> Any:
    accelerator = torch.accelerator.current_accelerator()
    settings = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    engine = torch._C._is_multithreading_enabled()
    return str(accelerator), torch.accelerator.is_available(), *map(str, settings), engine


def results(device: str) -> dict[str, Any]:
    """What the programs give, each from the same seed."""
    torch.use_deterministic_algorithms(True)
    found = {}
    for function in PROGRAMS:
        torch.manual_seed(0)
        found[function.__name__] = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda t: t.detach().cpu(), function(device)
        )
    return found


def compared(device: str) -> list[str]:
    """The programs whose results are others after ``import genesis.torch``."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("without", "with")]
        for file, more in zip(files, ([], ["--import"]), strict=True):
            command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.torch_smoke"]
            environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
            done = subprocess.run(
                [*command, device, str(file), *more],
                env=environment,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise RuntimeError(f"{more} on {device}: {done.stderr[-3000:]}")
        without, after = (torch.load(file, weights_only=True) for file in files)
    assert list(without) == [function.__name__ for function in PROGRAMS]
    return [name for name in without if not _equal(without[name], after[name])]


def _equal(a: Any, b: Any) -> bool:
    """Whether two trees are the same, bit by bit."""
    (left, shape), (right, other) = map(torch.utils._pytree.tree_flatten, (a, b))
    return shape == other and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in zip(left, right, strict=True)
    )


def main() -> int:
    """Run the programs."""
    device, file, *imports = sys.argv[1:]
    if file == "both":
        different = compared(device)
        print(f"{len(PROGRAMS) - len(different)} of {len(PROGRAMS)} programs give the same")
        print(*(f"FAIL {name}" for name in different), sep="\n")
        return len(different)
    warnings.simplefilter("ignore", UserWarning)
    if imports:
        import genesis.torch  # noqa: F401
    torch.save(results(device), file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
