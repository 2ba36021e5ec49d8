"""Attention of one query over a cache of pages: how near to the speed of memory?

    python -m benchmarks.attention_decode [--format int4 ...] [--size 64] [--group 4] [--page 16]

Every text of a batch looks at all its keys and values, which are read once: so the time to beat is
that of reading as many bytes, which is measured in turns with it as a sum of an array as large. The
batch is as large as it takes to be beyond all caches. One thread, processor time, the best of the
rounds; sizes are symbolic, as in a server. `dense` is one page to a text.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from time import process_time
from typing import Any

import numpy as np
from genesis.llm.cache import FORMATS, Cache

import genesis
from genesis.backends.cpu.runtime.runtime import set_num_threads
from genesis.functional.attention import attention_and_totals
from genesis.profiling.table import aligned

HEADS, BYTES = 8, 1 << 27


def contender(
    format: str, size: int, group: int, page: int, length: int
) -> tuple[Callable[[], Any], int]:
    """A call, and the bytes of keys and values that it reads."""
    texts = max(1, BYTES // (2 * HEADS * length * FORMATS[format].token_bytes(size)))
    count = texts * (length // page)
    random = np.random.default_rng(0)
    cache = Cache(0, count, HEADS, page, size, format)
    for array in cache.arrays:
        raw = random.integers(-64, 64, (count, *array.shape[1:]), np.int8)
        scaled = raw.astype(np.float32) / 64
        array[:] = (
            genesis.tensor(scaled).to(array.dtype)
            if array.dtype.is_float
            else genesis.tensor(raw).to(array.dtype)
        )

    @genesis.jit
    def attend(query: Any, at: Any, tables: Any) -> Any:
        keys, values = cache.read(tables)
        seen = (genesis.arange(keys.shape[-2]) <= at[:, None])[:, None, None]
        return attention_and_totals(query.to(keys.dtype), keys, values, seen)[0]

    def arguments(texts: int, pages: int) -> list[Any]:
        query = random.standard_normal((texts, HEADS, group, size), np.float32)
        table = random.permutation(texts * pages).reshape(texts, pages)
        return [genesis.tensor(x) for x in (query, np.full(texts, pages * page - 1), table)]

    given = [arguments(texts, length // page)]
    if texts > 2 and page < length:  # three sizes make them symbolic
        given += [arguments(texts - 1, length // page - 1), arguments(texts - 2, 1)]
    for those in reversed(given):
        with genesis.no_grad():
            attend(*those).numpy()

    def call() -> Any:
        with genesis.no_grad():
            return attend(*given[0]).numpy()

    return call, sum(array.nbytes for array in cache.arrays)


def seconds(work: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = process_time()
    work()
    return process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--size", nargs="+", type=int, default=[64, 128], help="of a head")
    parser.add_argument("--group", nargs="+", type=int, default=[1, 4, 8], help="queries to a key")
    parser.add_argument("--page", nargs="+", type=int, default=[16, 64], help="tokens of a page")
    parser.add_argument("--length", type=int, default=4096, help="of a text (4096)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    set_num_threads(1)
    array = genesis.ones(BYTES // 4)
    total = genesis.jit(lambda x: x.sum())
    pages = [*options.page, options.length]
    names = ["dense" if page == options.length else f"pages of {page}" for page in pages]
    print("share of a read's bandwidth\n")
    rows = [("cache", "head", "queries", *names)]
    for format, size, group in product(options.format, options.size, options.group):
        own = [contender(format, size, group, page, options.length) for page in pages]
        best = [1e9] * (len(own) + 1)
        for _ in range(options.rounds):
            for k, call in enumerate([lambda: total(array).item(), *(call for call, _ in own)]):
                best[k] = min(best[k], *(seconds(call) for _ in range(3)))
        read = best[0] / array.nbytes
        shares = [f"{read * n / t:.0%}" for (_, n), t in zip(own, best[1:], strict=True)]
        rows.append((format, str(size), str(group), *shares))
        print(rows[-1], f"{1e-9 / read:.1f} GB/s", flush=True)
    print()
    print(*aligned(rows, left=(0,)).splitlines(), sep="\n")


if __name__ == "__main__":
    main()
