"""``torch.compile(backend="genesis")`` with CUDA tensors: what it promises, on a GPU.

A script for a machine with an NVIDIA GPU: ``python -m tests.gpu_torch_compile [NAME ..]`` prints
PASS or FAIL for each check, and exits with the number of failures.
"""

from __future__ import annotations

import copy
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import genesis.torch
from genesis.backends import get

CHECKS: list[Callable[[], object]] = []
F = nn.functional


def check(function: Callable[[], object]) -> Callable[[], object]:
    """Let a function be one of the checks."""
    CHECKS.append(function)
    return function


def compiled(f: Any, **how: Any) -> Any:
    """The function as Genesis computes it; nothing may be left to PyTorch."""
    return torch.compile(f, backend="genesis", fullgraph=True, **how)


def perceptron() -> nn.Module:
    """A small model on the GPU."""
    layers = nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 32)
    return nn.Sequential(*layers).cuda()


def agree(got: Any, want: Any, rtol: float = 1e-3, atol: float = 1e-3) -> None:
    """Fail unless trees of tensors are the same up to rounding."""
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


def gradients(model: nn.Module, call: Any, *inputs: Any) -> list[Any]:
    """The result and the gradients of all parameters."""
    model.zero_grad()
    result = call(*inputs)
    result.float().square().mean().backward()
    return [result.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@check
def forward_and_backward() -> None:
    model = perceptron()
    run = compiled(model)
    for _ in range(4):
        x = torch.randn(16, 64, device="cuda")
        agree(gradients(model, run, x), gradients(model, model, x))


@check
def no_memory_of_our_own() -> object:
    """Results and temporaries are PyTorch's memory."""
    model = perceptron()
    run = compiled(model)
    x = torch.randn(4096, 64, device="cuda")
    gradients(model, run, x)
    before = get("cuda").memory_stats()
    for _ in range(3):
        gradients(model, run, x)
    after = get("cuda").memory_stats()
    assert after.allocations == before.allocations
    return after.live_bytes


@check
def steps_do_not_wait() -> object:
    """A step returns while what was started before it still runs."""
    model = perceptron()
    run = compiled(model)
    x = torch.randn(64, 64, device="cuda")
    for _ in range(3):
        gradients(model, run, x)
    a = torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    for _ in range(40):
        a @ a
    done.record()
    gradients(model, run, x)
    assert not done.query()
    torch.cuda.synchronize()
    return None


@check
def another_stream() -> None:
    model = perceptron()
    run = compiled(model)
    x = torch.randn(16, 64, device="cuda")
    want = gradients(model, model, x)
    side = torch.cuda.Stream()
    a = torch.randn(4096, 4096, device="cuda")
    for _ in range(4):
        late = torch.zeros_like(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(8):
                a @ a
            late.copy_(x)  # the program must come behind it
            got = gradients(model, run, late)
        torch.cuda.current_stream().wait_stream(side)
        agree(got, want)


@check
def dynamic_shapes() -> object:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model = perceptron()
    run = compiled(model)
    for n in (5, 9, 17, 33, 200):
        x = torch.randn(n, 64, device="cuda")
        agree(gradients(model, run, x), gradients(model, model, x))
    return counters["stats"]["unique_graphs"]


@check
def mixed_precision() -> None:
    model = perceptron()
    run = compiled(model)
    x = torch.randn(64, 64, device="cuda")
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cuda", dtype=dtype):
            got = gradients(model, run, x)
            want = gradients(model, model, x)
        assert got[0].dtype == dtype
        agree(got, want, 3e-2, 3e-2)


@check
def buffers_are_written_in_place() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()).cuda()
    other = copy.deepcopy(model)
    buffer = model[1].running_mean
    run = compiled(model)
    for _ in range(3):
        x = torch.randn(8, 3, 16, 16, device="cuda")
        agree(gradients(model, run, x), gradients(other, other, x), 1e-2, 1e-2)
    assert model[1].running_mean is buffer
    agree(list(model.buffers()), list(other.buffers()))


@check
def channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
    model = model.cuda().to(memory_format=torch.channels_last)
    x = torch.randn(4, 16, 20, 20, device="cuda").to(memory_format=torch.channels_last)
    got, want = compiled(model)(x), model(x)
    assert got.stride() == want.stride()
    agree(got, want, 1e-2, 1e-2)


@check
def a_compiled_optimizer() -> None:
    model, other = (perceptron() for _ in range(2))
    other.load_state_dict(model.state_dict())
    for m, wrap in ((model, torch.compile), (other, None)):
        optimizer = torch.optim.AdamW(m.parameters(), lr=torch.tensor(1e-2), capturable=False)
        step = wrap(optimizer.step, backend="genesis") if wrap else optimizer.step
        torch.manual_seed(3)
        for _ in range(4):
            optimizer.zero_grad()
            m(torch.randn(8, 64, device="cuda")).square().mean().backward()
            step()
    agree(list(model.parameters()), list(other.parameters()))


@check
def random_numbers_by_the_seed() -> None:
    run = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(10000, device="cuda")
    torch.manual_seed(1)
    first, second = run(x), run(x)
    torch.manual_seed(1)
    assert torch.equal(run(x), first) and not torch.equal(first, second)
    assert 4500 < first.count_nonzero().item() < 5500


@check
def attention() -> object:
    found = []
    for dtype, causal, masked in (
        (torch.bfloat16, True, False), (torch.bfloat16, False, True), (torch.float32, True, False),
        (torch.float32, False, True), (torch.float16, False, False),
    ):  # fmt: skip

        def f(q: Any, k: Any, v: Any, mask: Any, causal: bool = causal) -> Any:
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

        torch.manual_seed(0)
        shape = 2, 4, 100, 64
        q, k, v = (
            torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)
        )
        mask = torch.randn(2, 1, 100, 100, device="cuda", dtype=dtype) if masked else None
        upstream = torch.randn(shape, device="cuda", dtype=dtype)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            got = torch.autograd.grad(
                torch.compile(f, backend="genesis")(q, k, v, mask), (q, k, v), upstream
            )
        found += [str(w.message) for w in seen if "computed by PyTorch" in str(w.message)]
        want = torch.autograd.grad(f(q, k, v, mask), (q, k, v), upstream)
        agree(got, want, 3e-2, 3e-2)
    return found


@check
def capture_in_a_cuda_graph() -> None:
    model = perceptron()
    run = compiled(model)
    x = torch.randn(16, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            gradients(model, run, x)
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x)
        y.square().mean().backward()
    for _ in range(3):
        x.copy_(torch.randn(16, 64, device="cuda"))
        graph.replay()
        got = [y.detach().clone(), *(p.grad.clone() for p in model.parameters())]
        other = copy.deepcopy(model)
        agree(got, gradients(other, other, x))


@check
def an_index_that_does_not_exist() -> object:
    table = nn.Embedding(10, 4).cuda()
    run = compiled(table)
    run(torch.tensor([1, 2], device="cuda"))
    run(torch.tensor([1, 40], device="cuda"))
    torch.cuda.synchronize()
    try:
        run(torch.tensor([1, 2], device="cuda"))
    except IndexError as error:
        agree(run(torch.tensor([1, 2], device="cuda")), table.weight[1:3])
        return error
    raise AssertionError("no error")


@check
def numbers_and_tensors_on_the_cpu() -> None:
    x = torch.randn(8, device="cuda")
    scale, table = torch.tensor(3.0), torch.arange(8.0)

    def f(x: Any, scale: Any, table: Any) -> Any:
        moved = table.to("cuda", non_blocking=True)
        there = (x * 2).sum().cpu()
        return torch.where(x > 0, x * scale, torch.tensor(-1.0)) + moved, there + 1, scale * 2

    got, want = torch.compile(f, backend="genesis")(x, scale, table), f(x, scale, table)
    assert [t.device for t in got] == [t.device for t in want]
    agree(got, want)


@check
def what_is_made_on_the_cpu_to_be_copied() -> None:
    """Nothing of it is left to PyTorch, and numbers are brought without waiting."""
    x, scale = torch.randn(8, 8, device="cuda"), torch.tensor(3.0)

    def f(x: Any, scale: Any, table: Any) -> Any:
        position = torch.arange(8)
        distance = (position[None] - position[:, None]).abs().float().log1p().clamp(max=3)
        here = distance.to("cuda") + torch.eye(8).to("cuda")
        return x * (1 - 0.5 * scale) + here + torch.tensor([2.0] * 8).to("cuda") + table.to("cuda")

    run = compiled(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error", genesis.torch.FallbackWarning)
        for table in (torch.ones(8), torch.arange(8.0).pin_memory()):
            agree(run(x, scale, table), f(x, scale, table))


@check
def groups_of_rows() -> None:
    """The product of a mixture of experts, and its gradients."""
    ends = torch.tensor([64, 64, 200, 256], dtype=torch.int32, device="cuda")
    bf16 = {"dtype": torch.bfloat16, "device": "cuda"}
    x, w = (torch.randn(*s, **bf16).requires_grad_() for s in ((256, 64), (4, 64, 96)))
    upstream = torch.randn(256, 96, **bf16)

    def f(x: Any, w: Any, ends: Any) -> Any:
        return torch._grouped_mm(x, w, offs=ends)

    run = compiled(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error", genesis.torch.FallbackWarning)
        got, want = (torch.autograd.grad(g(x, w, ends), (x, w), upstream) for g in (run, f))
    agree(got, want, 3e-2, 3e-2)


@check
def a_graph_without_arguments_on_cuda() -> None:
    f = torch.compile(lambda x: x.cuda() * 2, backend="genesis")
    got = f(torch.ones(4))
    assert got.device.type == "cuda" and got.tolist() == [2.0] * 4


@check
def views_and_unaligned_memory() -> None:
    run = compiled(lambda x: (x.t() @ x).relu() + 1)
    base = torch.randn(65, 33, device="cuda")
    for x in (base[1:, 1:], base.t(), base.view(-1)[1:1025].view(32, 32)):
        agree(run(x), (x.t() @ x).relu() + 1)


@check
def threads() -> None:
    from threading import Thread

    model = perceptron()
    run = compiled(model)
    x = torch.randn(32, 64, device="cuda")
    with torch.no_grad():
        want, found = model(x), []
        run(x)

        def work() -> None:
            stream = torch.cuda.Stream()
            with torch.no_grad(), torch.cuda.stream(stream):
                for _ in range(20):
                    y = run(x)
                stream.synchronize()
                found.append(y)

        threads = [Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 4
    for y in found:
        agree(y, want)


@check
def tuning() -> None:
    run = compiled(lambda x: (x @ x).softmax(-1), options={"seconds": 3})
    x = torch.randn(256, 256, device="cuda")
    for _ in range(3):
        agree(run(x), (x @ x).softmax(-1))


@check
def the_device_and_cuda() -> None:
    """Moves between them keep contents; training on both agrees."""
    count = torch.genesis.device_count()  # type: ignore[attr-defined]
    x = torch.randn(5, 7)
    for index in range(count):
        there = x.to(f"genesis:{index}")
        agree(there.to("cuda").cpu(), x)
        agree(x.cuda().to(f"genesis:{index}").cpu(), x)
        agree(there.t().to("cuda").cpu(), x.t())
        agree((there.to("cuda") * 2).to(f"genesis:{index}").add(1).cpu(), x * 2 + 1)


def main() -> int:
    """All checks; how many fail."""
    wanted = sys.argv[1:]
    failed = 0
    for function in CHECKS:
        if wanted and function.__name__ not in wanted:
            continue
        torch._dynamo.reset()
        torch.manual_seed(0)
        start = time.perf_counter()
        try:
            said = function()
        except BaseException as error:
            failed += 1
            print(
                f"FAIL {function.__name__}: {type(error).__name__}: {str(error)[:600]}", flush=True
            )
            traceback.print_exc()
        else:
            seconds = time.perf_counter() - start
            print(
                f"PASS {function.__name__} {seconds:.1f} s {'' if said is None else said}",
                flush=True,
            )
    print(f"{failed} checks failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
