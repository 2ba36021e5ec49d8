"""Kernels of every family under NVIDIA's compute-sanitizer: ``python -m tests.gpu_sanitizer``.

A script for a machine with an NVIDIA GPU. Without arguments it runs itself under compute-sanitizer,
once for each tool: memcheck (accesses outside of arrays), racecheck (shared memory) and initcheck
(memory that nobody wrote). Every array has an allocation of its own, of exactly its bytes, so that
what lies beside it is nobody's. Results are compared with those of the CPU. It exits with the
number of tools that had something to say.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

import genesis
from genesis import nn
from genesis.backends.base import BadBinary
from genesis.backends.gpu.runtime.memory import Memory, MemoryPool

TOOLS = ("memcheck", "racecheck", "initcheck")
F = nn.functional
Case = tuple[str, Callable[..., Any], list["tuple[int, ...] | Positions"]]


def pulled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of a function's arguments that are floats."""

    def run(*xs: Any) -> Any:
        leaves = [x.detach().requires_grad_() if x.dtype.is_floating_point else x for x in xs]
        function(*leaves).float().square().mean().backward()
        return [x.grad for x in leaves if x.requires_grad]

    return run


def attention(causal: bool) -> Callable[..., Any]:
    """Attention of a query, keys and values."""
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


class Positions(NamedTuple):
    """So many positions in an axis, some of them the same."""

    count: int
    below: int


def cases() -> list[Case]:
    """Odd sizes, so that tiles end inside of arrays."""
    found: list[Case] = []
    for m, n, k in ((67, 129, 65), (1, 515, 257), (130, 33, 1030), (256, 128, 64)):
        found += [
            ("product", lambda x, y: x @ y, [(m, k), (k, n)]),
            ("product of a transpose", lambda x, y: x.T @ y, [(k, m), (k, n)]),
            ("linear, gelu", lambda x, w, b: F.gelu(F.linear(x, w, b)), [(m, k), (n, k), (n,)]),
        ]
    for q, k, d in ((65, 65, 64), (33, 130, 80), (1, 515, 128), (17, 17, 256)):
        shapes = [(2, 4, q, d), (2, 2 if q == 1 else 4, k, d), (2, 2 if q == 1 else 4, k, d)]
        if q == 1:
            grouped = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)  # noqa: E731
            found.append(("decoding", grouped, shapes))
            continue
        found += [("attention", attention(q == k), shapes)]
        found += [("attention, gradients", pulled(attention(q == k)), shapes)]
    for c, o, p, w, s, g in ((3, 16, 19, 7, 2, 1), (8, 24, 11, 3, 1, 1), (12, 12, 9, 5, 1, 12)):
        conv = lambda x, y, w=w, s=s, g=g: F.conv2d(x, y, stride=s, padding=w // 2, groups=g)  # noqa: E731
        shapes = [(2, c, p, p), (o, c // g, w, w)]
        found += [("convolution", conv, shapes), ("convolution, gradients", pulled(conv), shapes)]
    rows = [(37, 515)]
    found += [
        ("softmax", lambda x: F.softmax(x, -1), rows),
        ("softmax, gradients", pulled(lambda x: F.softmax(x, -1)), rows),
        ("layer norm", lambda x, w, b: F.layer_norm(x, (515,), w, b), [*rows, (515,), (515,)]),
        (
            "layer norm, gradients",
            pulled(lambda x, w, b: F.layer_norm(x, (515,), w, b)),
            [*rows, (515,), (515,)],
        ),
        (
            "sums",
            lambda x: [x.sum(0), x.sum(1), x.amax(0), x.sum(), x.cumsum(1), x.cumsum(0)],
            rows,
        ),
        ("elementwise", lambda x, y: F.silu(x + y.T) * 2, [(37, 65), (65, 37)]),
        ("max pooling", lambda x: F.max_pool2d(x, 3, 2, 1), [(2, 3, 17, 17)]),
        ("max pooling, gradients", pulled(lambda x: F.max_pool2d(x, 3, 2, 1)), [(2, 3, 17, 17)]),
        ("average pooling", lambda x: F.avg_pool2d(x, 2), [(2, 3, 17, 17)]),
        (
            "batch norm, gradients",
            pulled(lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True))),
            [(4, 6, 9, 9), (6,), (6,)],
        ),
        ("embedding", F.embedding, [Positions(33, 50), (50, 65)]),
        ("embedding, gradients", pulled(F.embedding), [Positions(133, 50), (50, 65)]),
        ("sort", lambda x: [x.sort(-1)[0], x.sort(0)[0], x.reshape(-1).sort()[0]], rows),
        ("top", lambda x: [x.topk(7, -1)[0], x.topk(1, -1)[0]], rows),
        ("cross entropy, gradients", pulled(F.cross_entropy), [*rows, Positions(37, 515)]),
    ]
    return found


def computed(case: Case, dtype: str, device: str, number: int) -> list[Any]:
    """The results of a case on a device."""
    _, function, shapes = case
    random = np.random.default_rng(number)
    xs = []
    for shape in shapes:
        if isinstance(shape, Positions):
            x = genesis.tensor((np.arange(shape.count) * 7919) % shape.below)
        else:
            x = genesis.tensor(random.standard_normal(shape).astype(np.float32))
            x = x.to(getattr(genesis, dtype))
        xs.append(x.to(device))
    run = function
    if "gradients" not in case[0]:
        run = genesis.no_grad()(function)
    found = genesis.jit(run)(*xs)
    every = found if isinstance(found, list | tuple) else [found]
    return [x.detach().float().cpu().numpy() for x in every]


def apart(self: MemoryPool, sizes: Sequence[int]) -> list[Memory]:
    """Allocations of their own, which are never freed: the process is short."""
    with self.device:
        return [Memory(int(self.device.call("MemAlloc", max(1, n))), n) for n in sizes]


def run(share: str) -> int:
    """Compute the cases; how many are wrong."""
    number, of = map(int, share.split("/"))
    wrong = 0
    every = [(k, c, t) for t in ("float32", "bfloat16") for k, c in enumerate(cases())]
    for k, case, dtype in every[number::of]:
        try:
            here, there = (computed(case, dtype, device, k) for device in ("cuda", "cpu"))
        except BadBinary as error:  # a kernel that a tool cannot instrument
            print(f"LEFT OUT {case[0]} {case[2]} {dtype}: {error}", flush=True)
            continue
        bound = 1e-3 if dtype == "float32" else 5e-2
        for x, y in zip(here, there, strict=True):
            gap = float(np.linalg.norm(x - y)) / max(float(np.linalg.norm(y)), 1e-30)
            if not gap < bound:
                wrong += 1
                print(f"WRONG {case[0]} {case[2]} {dtype}: {gap:.1e}", flush=True)
    return wrong


def main() -> int:
    """Run the cases under every tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", choices=TOOLS, nargs="+", default=list(TOOLS))
    parser.add_argument("--part", default="", help="compute a share of the cases, such as 0/8")
    options = parser.parse_args()
    if options.part:
        MemoryPool.allocate_many = apart  # type: ignore[method-assign]
        return run(options.part)
    if shutil.which("compute-sanitizer") is None:
        parser.error("compute-sanitizer is not on the PATH; it comes with CUDA's toolkit")
    workers = len(os.sched_getaffinity(0))
    itself = [sys.executable, "-m", "tests.gpu_sanitizer", "--part"]

    def checked(command: list[str]) -> tuple[int, str]:
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    with ThreadPoolExecutor(workers) as pool:
        compiled = list(pool.map(checked, [[*itself, f"{k}/{workers}"] for k in range(workers)]))
        print("without a tool:", "passed" if not any(code for code, _ in compiled) else "failed")
        for code, text in compiled:
            if code:
                print(text[-2000:])
        failed = 0
        for tool in options.tool:
            sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "99"]
            sanitizer += ["--print-limit", "3", "--report-api-errors", "no"]
            jobs = [[*sanitizer, *itself, f"{k}/{workers}"] for k in range(workers)]
            results = list(pool.map(checked, jobs))
            bad = [text for code, text in results if code]
            failed += bool(bad)
            print(f"{tool}: {'clean' if not bad else f'{len(bad)} of {workers} processes not'}")
            for text in bad:
                print(text[-3000:], flush=True)
            for line in sorted({x for _, t in results for x in t.splitlines() if "LEFT OUT" in x}):
                print(line)
    return failed


if __name__ == "__main__":
    sys.exit(main())
