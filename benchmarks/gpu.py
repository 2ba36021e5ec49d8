"""Time the CUDA backend side by side with PyTorch: ``python -m benchmarks.gpu``.

Every case is run by PyTorch eagerly, by torch.compile (Inductor) and by Genesis through
`genesis.jit`, in turns on the same GPU, with CUDA events around several calls; a figure is the
median over the rounds. Results are compared with PyTorch's in float32 before anything is timed. The
table goes to the terminal and to benchmarks/results/h200.md. A ratio above 1 means that Genesis is
faster. ``--sweep`` times cases drawn at random instead (`benchmarks.gpu_sweep`).
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch

import genesis
from benchmarks import gpu_sweep
from genesis import cuda, functional
from genesis import ndarray as nd

RESULTS = Path(__file__).parent / "results" / "h200.md"


@dataclass(frozen=True)
class Case:
    """A computation, written for both; `flops` and `nbytes` are what it has to do at least."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    torch: Callable[..., Any]
    genesis: Callable[..., Any]
    dtype: str = "bfloat16"
    flops: float = 0
    nbytes: float = 0
    tolerance: float = 2e-2
    others: Callable[[], list[Any]] = list  # further inputs, of other types


def torch_norm(x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)


def norm(x: Any, weight: Any, bias: Any) -> Any:
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


def torch_gelu(x: Any) -> Any:
    return torch.nn.functional.gelu(x) * 1.5 + x


def gelu(x: Any) -> Any:
    return functional.gelu(x) * 1.5 + x


def torch_linear(x: Any, w: Any, b: Any) -> Any:
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))


def linear(x: Any, w: Any, b: Any) -> Any:
    return functional.gelu(functional.linear(x, w, b))


def torch_attention(q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention(q: Any, k: Any, v: Any) -> Any:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def torch_attention_gradients(q: Any, k: Any, v: Any, grad: Any) -> Any:
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(torch_attention(*inputs), inputs, grad)


def attention_gradients(q: Any, k: Any, v: Any, grad: Any) -> Any:
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    attention(*inputs).backward(grad)
    return tuple(x.grad for x in inputs)


def torch_cross_entropy(x: Any, target: Any) -> Any:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(x.float(), target)
        return torch.autograd.grad(loss, x)


def cross_entropy(x: Any, target: Any) -> Any:
    x = x.detach().requires_grad_()
    functional.cross_entropy(x.float(), target).backward()
    return (x.grad,)


def adam(p: Any, grad: Any, mean: Any, square: Any) -> Any:
    mean = mean * 0.9 + grad * 0.1
    square = square * 0.999 + grad * grad * 0.001
    return p - 1e-3 * mean / ((square * square).sqrt() + 1e-8), mean, square


def torch_bytes(a: Any, b: Any) -> Any:
    return torch._int_mm(a, b) if a.dtype is torch.int8 else a @ b


def product_of_bytes(a: Any, b: Any) -> Any:
    return functional.matmul(a.to(genesis.int32), b.to(genesis.int32))


def torch_floats8(a: Any, b: Any) -> Any:
    if a.dtype is torch.float32:
        return a @ b.T
    one = torch.ones((), device="cuda")
    return torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def product_of_floats8(a: Any, b: Any) -> Any:
    return functional.scaled_mm(a, b.T, 1.0, 1.0)


def floats8(*shape: int) -> Any:
    return torch.randn(shape, device="cuda").to(torch.float8_e4m3fn)


def torch_bytes_gemv(x: Any, scale: Any, weights: Any) -> Any:
    return x @ (weights.to(x.dtype) * scale).T


def bytes_gemv(x: Any, scale: Any, weights: Any) -> Any:
    return x @ weights.to(x.dtype).T * scale.reshape(-1)


def integers(*shape: int, low: int = -128, high: int = 127, dtype: str = "int8") -> Any:
    return torch.randint(low, high, shape, device="cuda", dtype=getattr(torch, dtype))


def product(n: int, dtype: str = "bfloat16") -> Case:
    return Case(
        f"matmul {dtype} {n}",
        ((n, n), (n, n)),
        torch.matmul,
        functional.matmul,
        dtype,
        flops=2 * n**3,
    )


HEADS = (4, 32, 4096, 128)
CASES = [
    Case("GELU(x)*1.5+x, 256M", ((1 << 28,),), torch_gelu, gelu, nbytes=4 * (1 << 28)),
    Case("softmax 16384x4096", ((16384, 4096),), lambda x: torch.softmax(x, -1),
         lambda x: functional.softmax(x, -1), nbytes=4 * 16384 * 4096),
    Case("layer norm 16384x4096", ((16384, 4096), (4096,), (4096,)), torch_norm, norm,
         nbytes=4 * 16384 * 4096),
    Case("sum 256M float32", ((1 << 28,),), torch.sum, functional.sum, "float32",
         nbytes=4 * (1 << 28), tolerance=1.0),
    Case("column sum 16384x8192", ((16384, 8192),), lambda x: x.sum(0), lambda x: x.sum(0),
         "float32", nbytes=4 * 16384 * 8192),
    Case("transpose 8192x8192", ((8192, 8192),), lambda x: x.T.contiguous() + 1, lambda x: x.T + 1,
         nbytes=4 * 8192 * 8192),
    product(1024), product(4096), product(8192), product(4096, "float32"),
    Case("linear+GELU 8192", ((8192, 8192), (8192, 8192), (8192,)), torch_linear, linear,
         flops=2 * 8192**3),
    Case("GEMV 8192x28672", ((1, 8192), (28672, 8192)), lambda x, w: x @ w.T,
         lambda x, w: x @ w.T, nbytes=2 * 8192 * 28672),
    Case("causal attention 4x32x4096x128", (HEADS,) * 3, torch_attention, attention,
         flops=2 * 4 * 32 * 4096**2 * 128),
    Case("its gradients, too", (HEADS,) * 4, torch_attention_gradients, attention_gradients,
         flops=7 * 4 * 32 * 4096**2 * 128),
    Case("matmul int8 8192", (), torch_bytes, product_of_bytes, "int8", flops=2 * 8192**3,
         others=lambda: [integers(8192, 8192), integers(8192, 8192)]),
    Case("matmul float8 8192", (), torch_floats8, product_of_floats8, flops=2 * 8192**3,
         others=lambda: [floats8(8192, 8192), floats8(8192, 8192)]),
    Case("GEMV 8192x28672 of int8", ((1, 8192), (28672, 1)), torch_bytes_gemv, bytes_gemv,
         nbytes=8192 * 28672, others=lambda: [integers(28672, 8192)]),
    Case("RMS norm 16384x4096", ((16384, 4096), (4096,)),
         lambda x, w: torch.nn.functional.rms_norm(x, (4096,), w),
         lambda x, w: functional.rms_norm(x, (4096,), w), nbytes=4 * 16384 * 4096),
    Case("cross entropy and gradient 8192x32000", ((8192, 32000),), torch_cross_entropy,
         cross_entropy, nbytes=6 * 8192 * 32000,
         others=lambda: [integers(8192, low=0, high=32000, dtype="int64")]),
    Case("Adam 128M float32", ((1 << 27,),) * 4, adam, adam, "float32", nbytes=28 * (1 << 27)),
    Case("conv 3x3 64x256x56x56", ((64, 256, 56, 56), (256, 256, 3, 3)),
         lambda x, w: torch.nn.functional.conv2d(x, w, padding=1),
         lambda x, w: functional.conv2d(x, w, padding=1), flops=2 * 64 * 256 * 56 * 56 * 256 * 9),
    Case("mean of logsumexp 8192x32000", ((8192, 32000),),
         lambda x: torch.logsumexp(x.float(), 1).mean(),
         lambda x: functional.logsumexp(x.float(), 1).mean(), nbytes=2 * 8192 * 32000),
]  # fmt: skip


class Torch:
    """How PyTorch is waited for and timed."""

    synchronize = staticmethod(torch.cuda.synchronize)

    @staticmethod
    def event() -> Any:
        """A mark in its queue."""
        return torch.cuda.Event(enable_timing=True)


class Genesis:
    """How Genesis is."""

    synchronize = staticmethod(cuda.synchronize)
    event = staticmethod(cuda.Event)


Contender = tuple[Any, Callable[[], Any]]


def turns(contenders: list[Contender], rounds: int) -> list[float]:
    """Seconds per call of each, which take turns: the chip gets warm for all of them."""
    counts = []
    for library, run in contenders:
        for _ in range(4):
            run()
        library.synchronize()
        start = time.perf_counter()
        run()
        library.synchronize()
        counts.append(max(2, min(50, int(0.01 / (time.perf_counter() - start)))))
    times: list[list[float]] = [[] for _ in contenders]
    everybody = list(zip(contenders, counts, times, strict=True))
    for turn in range(rounds):
        start_with = turn % len(everybody)  # who comes later finds a warmer chip
        for (library, run), calls, taken in everybody[start_with:] + everybody[:start_with]:
            first, last = library.event(), library.event()
            run()
            first.record()
            for _ in range(calls):
                run()
            last.record()
            library.synchronize()
            taken.append(first.elapsed_time(last) / calls / 1e3)
    return [median(taken) for taken in times]


def flat(results: Any) -> Any:
    """All results in one row of float32."""
    found = results if isinstance(results, tuple) else (results,)
    return torch.cat([torch.from_dlpack(x).float().reshape(-1) for x in found])


def compare(case: Case, rounds: int, inductor: bool) -> list[str]:
    """One row of the table."""
    kind = getattr(torch, case.dtype)
    theirs = [torch.randn(s, device="cuda", dtype=kind) for s in case.shapes] + case.others()
    ours = [genesis.from_dlpack(x) for x in theirs]
    function = genesis.jit(case.genesis)
    compiled = torch.compile(case.torch) if inductor else case.torch
    with torch.no_grad():
        wide = [x if x.dtype is torch.int64 else x.float() for x in theirs]
        wanted = flat(case.torch(*wide))
        start = time.perf_counter()
        result = function(*ours)
        cuda.synchronize()
        compiling = time.perf_counter() - start
        got = flat(result)
        error = float((got - wanted).norm() / wanted.norm())
        del got, wanted, result, wide
        contenders: list[Contender] = [
            (Torch, lambda: case.torch(*theirs)),
            (Torch, lambda: compiled(*theirs)),
            (Genesis, lambda: function(*ours)),
        ]
        eager, other, mine = turns(contenders, rounds)
    if case.flops:
        rate = f"{case.flops / mine / 1e12:.0f} TFLOP/s"
    else:
        rate = f"{case.nbytes / mine / 1e12:.2f} TB/s"
    wrong = "" if error <= case.tolerance else f" WRONG {error:.1e}"
    cells = [case.name + wrong, *(f"{1e3 * t:.3f}" for t in (eager, other, mine)), rate]
    return [*cells, f"{min(eager, other) / mine:.2f}", f"{compiling:.1f}"]


def launch_times() -> str:
    """What it costs to start a captured program."""
    x = nd.ones((256,), device="cuda").realize()

    def chain(x: Any) -> Any:
        for k in range(20):
            x = nd.cumsum(x, axis=0) * (1.0 / (k + 1))
        return x

    lines = []
    for name, function in (("one kernel", lambda x: x * 2.0), ("20 kernels", chain)):
        run = genesis.jit(function)
        for _ in range(20):
            y = run(x)
        cuda.synchronize()
        start = time.perf_counter()
        for _ in range(500):
            y = run(x)
        python = (time.perf_counter() - start) / 500
        cuda.synchronize()
        lines.append(f"{name}: {python * 1e6:.1f} us")
        del y
    return "A call of a captured program, as Python sees it: " + ", ".join(lines) + "."


def main() -> None:
    """Run the cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--output", type=Path)
    drawn = parser.add_argument_group("sweep", "cases drawn at random instead: `gpu_sweep`")
    drawn.add_argument("--sweep", action="store_true")
    drawn.add_argument("--seed", type=int, default=0)
    drawn.add_argument("--cases", type=int, default=320)
    drawn.add_argument("--seconds", type=float, default=300, help="all of it ends after so many")
    drawn.add_argument("--inductor", type=float, default=0.25, help="share of the cases it has")
    drawn.add_argument("--json", type=Path, help="where to write the figures, too")
    drawn.add_argument("--part", default="", help=argparse.SUPPRESS)  # of a worker
    options = parser.parse_args()
    if options.part:
        return gpu_sweep.prepare(options)
    options.output = options.output or (gpu_sweep.RESULTS if options.sweep else RESULTS)
    if options.sweep:
        return gpu_sweep.sweep(options)
    torch.backends.cuda.matmul.allow_tf32 = False
    head = ["case", "eager ms", "Inductor ms", "Genesis ms", "rate", "ratio", "compiled in s"]
    table = [head, ["---"] * len(head)]
    for case in CASES:
        if options.only in case.name:
            try:
                row = compare(case, options.rounds, not options.no_inductor)
            except Exception as error:
                row = [case.name, f"{type(error).__name__}: {str(error)[:150]}", *[""] * 5]
            print(" | ".join(row), flush=True)
            table.append(row)
        torch.cuda.empty_cache()
        cuda.empty_cache()
    launch = launch_times()
    print(launch)
    versions = f"PyTorch {torch.__version__}, Python {platform.python_version()}"
    text = "\n".join(f"| {' | '.join(row)} |" for row in table)
    options.output.write_text(
        f"# {cuda.get_device_name()}\n\n`python -m benchmarks.gpu --rounds {options.rounds}` on "
        f"{date.today()}, {versions}.\n"
        f"{(__doc__ or '').split('``.', 1)[1].strip()}\n\n{launch}\n\n{text}\n"
    )


if __name__ == "__main__":
    main()
