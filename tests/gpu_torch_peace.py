"""What PyTorch does with CUDA, it does after ``import genesis.torch``, too.

A script for a machine with an NVIDIA GPU: ``python -m tests.gpu_torch_peace`` prints PASS or FAIL
for each check, and exits with the number of failures. It runs them in two processes: one that
computed gradients before the import, and one that did not.
"""

from __future__ import annotations

import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

CHECKS: list[Callable[[], object]] = []


def check(function: Callable[[], object]) -> Callable[[], object]:
    """Let a function be one of the checks."""
    CHECKS.append(function)
    return function


def gradients(device: str, run: Callable[[nn.Module], Any] = lambda model: model) -> list[Any]:
    """The gradients of a small model, computed there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    x = torch.randn(8, 16)
    model = model.to(device)
    run(model)(x.to(device)).square().mean().backward()
    return [p.grad.cpu() for p in model.parameters() if p.grad is not None]


def agree(ours: list[Any], theirs: list[Any]) -> None:
    """Fail unless the gradients are the same up to rounding."""
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@check
def the_accelerator_is_cuda() -> None:
    assert str(torch.accelerator.current_accelerator()) == "cuda"
    assert torch.accelerator.device_count() == torch.cuda.device_count()
    torch.accelerator.synchronize()
    assert torch.accelerator.current_stream().device.type == "cuda"


@check
def the_device_is_there() -> object:
    from genesis.torch.device import device_names
    from genesis.torch.device.storage_contents import runtime

    x = torch.ones(3, device="genesis")
    assert (x + 1).tolist() == [2.0] * 3
    return device_names(), f"live_with_others: {runtime.live_with_others()}"


@check
def backward_on_cuda() -> None:
    agree(gradients("cuda"), gradients("cpu"))


@check
def backward_on_every_genesis_device() -> object:
    count = torch.genesis.device_count()  # type: ignore[attr-defined]
    for index in range(count):
        agree(gradients(f"genesis:{index}"), gradients("cpu"))
    return count


@check
def backward_through_both() -> None:
    x = torch.ones(4, requires_grad=True)
    (x.cuda() * 2).cpu().to("genesis").mul(3).cpu().sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6.0] * 4


@check
def backward_in_another_thread() -> None:
    from threading import Thread

    found: list[Any] = []
    threads = [Thread(target=lambda d=d: found.append(gradients(d))) for d in ("cuda", "genesis")]
    for thread in threads:  # one after the other: they share PyTorch's generator of random numbers
        thread.start()
        thread.join()
    assert len(found) == 2
    agree(found[0], found[1])


@check
def compiled_by_genesis_with_cuda_tensors() -> None:
    compiled = gradients("cuda", lambda model: torch.compile(model, backend="genesis"))
    agree(compiled, gradients("cuda"))


@check
def compiled_by_aot_eager() -> None:
    compiled = gradients("cuda", lambda model: torch.compile(model, backend="aot_eager"))
    agree(compiled, gradients("cuda"))


@check
def autocast_and_gradient_scaling() -> None:
    model = nn.Linear(16, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    before = model.weight.detach().clone()
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.float16):
            y = model(torch.randn(8, 16, device="cuda"))
            assert y.dtype == torch.float16
        scaler.scale(y.float().square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert not torch.equal(before, model.weight)


@check
def checkpoints_draw_the_same_numbers_again() -> None:
    from torch.utils.checkpoint import checkpoint

    for device in ("cuda", "genesis"):
        for reentrant in (True, False):
            x = torch.ones(1000, device=device, requires_grad=True)
            y = checkpoint(nn.functional.dropout, x, 0.5, use_reentrant=reentrant)
            y.sum().backward()
            assert x.grad is not None and torch.equal(x.grad.cpu(), y.detach().cpu()), device


@check
def pinned_memory_of_a_loader() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(64.0).view(16, 4))
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(
            data, batch_size=4, pin_memory=True, num_workers=workers
        )
        for (x,) in loader:
            assert x.is_pinned()
            x.cuda(non_blocking=True)
    torch.cuda.synchronize()


@check
def streams_and_events() -> None:
    side = torch.cuda.Stream()
    x = torch.randn(512, 512, device="cuda", requires_grad=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = (x @ x).sum()
        y.backward()  # on the side stream, as forward
    torch.cuda.current_stream().wait_stream(side)
    ones = torch.ones(512, 512, device="cuda")
    want = ones @ x.detach().t() + x.detach().t() @ ones
    torch.testing.assert_close(x.grad, want, rtol=1e-3, atol=1e-2)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    x.detach() @ x.detach()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0


@check
def a_graph_of_kernels() -> None:
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        y = x * 2 + 1
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [11.0] * 4


@check
def moving_modules() -> None:
    model = nn.Linear(3, 3)
    weight = model.weight
    for place in ("cuda", "cpu", "genesis", "cpu", "cuda"):
        model.to(place)
        assert model.weight is weight and weight.device.type == place
    model.genesis()  # type: ignore[operator]
    assert weight.device.type == "genesis"


@check
def random_numbers_of_cuda() -> None:
    torch.manual_seed(1)
    first = torch.rand(4, device="cuda")
    state = torch.cuda.get_rng_state()
    second = torch.rand(4, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(second, torch.rand(4, device="cuda"))
    torch.manual_seed(1)
    assert torch.equal(first, torch.rand(4, device="cuda"))


def run(after_a_backward: bool) -> int:
    """All checks in this process; how many fail."""
    if after_a_backward:
        gradients("cuda")
    threads = torch._C._is_multithreading_enabled()
    start = time.perf_counter()
    import genesis.torch  # noqa: F401

    print(f"imported in {time.perf_counter() - start:.1f} s", flush=True)
    failed = 0
    if torch._C._is_multithreading_enabled() != threads:
        failed += 1
        print("FAIL the import changed the autograd engine's threads", flush=True)
    for function in CHECKS:
        try:
            said = function()
        except BaseException as error:
            failed += 1
            print(f"FAIL {function.__name__}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
        else:
            print(f"PASS {function.__name__} {'' if said is None else said}", flush=True)
    return failed


def main() -> int:
    """Both processes, one after the other; how many checks fail."""
    if len(sys.argv) > 1:
        return run(sys.argv[1] == "after")
    failed = 0
    for when in ("before", "after"):
        some = "a" if when == "after" else "no"
        print(f"-- a process with {some} backward pass before the import", flush=True)
        done = subprocess.run([sys.executable, "-m", "tests.gpu_torch_peace", when], check=False)
        failed += done.returncode if done.returncode >= 0 else len(CHECKS)
        print(f"-- exit code {done.returncode}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
