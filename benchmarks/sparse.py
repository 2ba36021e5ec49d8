"""Products with sparse matrices: blocks, two of four and free patterns, beside dense ones.

    python -m benchmarks.sparse [--rounds N] [--only TEXT]

One row and 128 rows times a matrix of 4096 x 4096. All contenders of a case take turns in one
process with one thread, and processor time counts. PyTorch's are its CSR and BSR tensors, SciPy's
the same formats.
"""

from __future__ import annotations

import argparse
import warnings
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import genesis
from benchmarks.int8 import Call, best, machine
from genesis import functional
from genesis.compress import quantize
from genesis.compress.pruning import masked
from genesis.compress.sparse import SparseTensor

RESULTS = Path(__file__).parent / "results" / "sparse.md"
HEADER = """# Sparse products

`python -m benchmarks.sparse`: rows times a matrix of 4096 x 4096. *Of dense* is the time of
Genesis' dense product in the same element type over that of the sparse one, *of PyTorch* and *of
SciPy* theirs of the same matrix in float32 (CSR, for blocks BSR): above 1, Genesis' sparse product
is ahead. All take turns in one process with one thread; times are processor time, the least of the
rounds.
"""
SIZE = 4096
#: Patterns, densities and formats.
CASES = [
    *((f"{b}x{b}", d, None) for b in (64, 32) for d in (0.5, 0.25, 0.1)),
    ("2:4", 0.5, None), ("free", 0.1, None), ("64x64", 0.25, "int8"), ("2:4", 0.5, "int8"),
]  # fmt: skip


def ours(function: Any, x: Any) -> Call:
    """A product of Genesis."""
    run, tensor = genesis.jit(function), genesis.tensor(x)

    def call() -> Any:
        with genesis.no_grad():
            return run(tensor).numpy()

    return call


def others(w: Any, pattern: str, x: Any) -> dict[str, Call]:
    """The same product by PyTorch and SciPy."""
    import scipy.sparse
    import torch

    torch.set_num_threads(1)
    size = int(pattern.partition("x")[0]) if "x" in pattern else 0
    plain, turned = torch.from_numpy(w), torch.from_numpy(np.ascontiguousarray(x.T))
    theirs = plain.to_sparse_bsr((size, size)) if size else plain.to_sparse_csr()
    made = scipy.sparse.bsr_array(w, blocksize=(size, size)) if size else scipy.sparse.csr_array(w)
    columns = np.ascontiguousarray(x.T)
    return {"PyTorch": lambda: (theirs @ turned).numpy().T, "SciPy": lambda: (made @ columns).T}


def row(rows: int, pattern: str, density: float, format: str | None, rounds: int) -> str:
    """A case as a line of the table; that all give the same is checked first."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((SIZE, SIZE)).astype(np.float32)
    w *= masked(np.abs(w), pattern, density)
    x = rng.standard_normal((rows, SIZE)).astype(np.float32)
    sparse = SparseTensor.of(w, pattern, format)
    if format is None:
        whole = genesis.tensor(w)
        calls = {"dense": ours(lambda x: functional.linear(x, whole), x)}
        calls |= others(w, pattern, x)
    else:
        coded = quantize(genesis.tensor(w), format)
        calls = {"dense": ours(lambda x: coded.linear(x), x)}
    calls["sparse"] = ours(lambda x: sparse.linear(x), x)
    wanted = x @ w.T
    for name, call in calls.items():
        off = np.abs(call() - wanted).max() / np.abs(wanted).max()
        assert off < (0.02 if format else 1e-4), f"{pattern}: {name} is off by {off}"
    times = best(calls, rounds)
    cells = [f"**{times[c] / times['sparse']:.2f}**" if c in times else "" for c in
             ("dense", "PyTorch", "SciPy")]  # fmt: skip
    title = f"{pattern}{f', {format}' if format else ''}"
    return f"| {rows} | {title} | {density} | {times['sparse']:.3f} | {' | '.join(cells)} |"


def main() -> None:
    """Measure, print, and write the page if all cases were measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    genesis.set_num_threads(1)
    lines = ["| rows | pattern | density | ms | of dense | of PyTorch | of SciPy |",
             "|---:|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    for rows in (1, 128):
        for case in CASES:
            if given.only in f"{rows} {case[0]} {case[2]}":
                lines.append(row(rows, *case, given.rounds))
                print(lines[-1], flush=True)
    if not given.only:
        RESULTS.write_text(f"{HEADER}\n{machine()}, {date.today()}.\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
