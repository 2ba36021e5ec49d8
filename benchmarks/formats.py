"""One row times a large matrix in every format: how near to the speed of memory?

    python -m benchmarks.formats [FORMAT ...] [--rounds N]

A product of one row takes as long as reading the matrix, if nothing else takes longer. It takes
turns with a sum over as many bytes, in one process with one thread, and processor time counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import genesis
from benchmarks.int8 import machine
from genesis import ndarray as nd
from genesis.compress import FORMATS, QuantizedTensor, quantize
from genesis.compress.format import named

RESULTS = Path(__file__).parent / "results" / "formats.md"
HEADER = """# Formats

`python -m benchmarks.formats`: one row times a matrix of 8192 columns, of so many rows that it has
60 MB at least. *Of memory* is the time of summing as many bytes over that of the product; both take
turns in one process with one thread, and times are processor time, the least of the rounds.
"""
#: Columns of the matrix, rows that are quantised and then repeated, and bytes there are at least.
COLUMNS, ROWS, BYTES = 8192, 512, 60 << 20
VARIANTS = ("int8/row", "int4/64", "int4/128", "uint4/128", "int3/128", "uint3/128",
            "float8_e4m3fn/row")  # fmt: skip


def best(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """The least seconds of processor time of each call, in turns."""
    found = [float("inf")] * len(calls)
    for number in range(rounds + 2):
        for k, call in enumerate(calls):
            begin = time.process_time()
            call()
            if number > 1:
                found[k] = min(found[k], time.process_time() - begin)
    return found


def matrix(format: str) -> QuantizedTensor:
    """Random weights in a format; the same rows again and again."""
    rng = np.random.default_rng(0)
    some = quantize(genesis.tensor(rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)), format)
    times = -(-BYTES // some.nbytes)
    values = np.tile(some.values.numpy(), (times, 1, 1))
    return QuantizedTensor(genesis.from_numpy(values), (ROWS * times, COLUMNS), some.format)


def row(format: str, rounds: int) -> str:
    """The line of a format."""
    weight, x = matrix(format), genesis.randn(1, COLUMNS)
    array = nd.zeros(weight.nbytes // 4)
    array.assign(1.0).realize()
    product, total = genesis.jit(lambda x: weight.linear(x)), genesis.jit(lambda x: x.sum())
    with genesis.no_grad():
        taken, read = best([lambda: product(x).numpy(), lambda: total(array).item()], rounds)
    bits = weight.nbytes * 8 / weight.shape[0] / COLUMNS
    speed = weight.nbytes / taken / 1e9
    return f"| {format} | {bits:.2f} | {speed:.1f} | {100 * read / taken:.0f} % |"


def main() -> None:
    """Measure, print, and write the page if all formats were measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("formats", nargs="*")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    genesis.set_num_threads(1)
    genesis.manual_seed(0)
    every = sorted({*VARIANTS, *(n for n, f in FORMATS.items() if f.group)}, key=_order)
    lines = ["| format | bits a weight | GB/s | of memory |", "|---|---:|---:|---:|"]
    for format in given.formats or every:
        lines.append(row(format, given.rounds))
        print(lines[-1], flush=True)
    if not given.formats:
        RESULTS.write_text(f"{HEADER}\n{machine()}, {date.today()}.\n\n" + "\n".join(lines) + "\n")


def _order(format: str) -> tuple[int, str]:
    return -named(format, "benchmarks.formats").bits, format


if __name__ == "__main__":
    main()
