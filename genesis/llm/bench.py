"""`genesis llm bench`: how fast a model answers here, and how near to the speed of memory.

A step of decoding reads all weights once, whatever the number of texts. So the time to beat is that
of reading as many bytes, which is measured in turns with the steps. Of every time the shortest
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import genesis
from genesis.llm.engine import Engine
from genesis.llm.llm import LLM
from genesis.llm.sampling import SamplingParams
from genesis.profiling.table import aligned, duration

PROMPT, BATCHES, STEPS = 512, (1, 8, 32), 16
#: Tokens of the texts that are continued together.
SHORT = 16
#: Bytes beyond which a longer array is read no faster.
ENOUGH = 1 << 30


class EngineBench:
    """An engine that runs nothing else; times are differences of a `clock`."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = perf_counter) -> None:
        self.engine, self.clock = engine, clock
        self._random = np.random.default_rng(0)
        tensors = engine.executor.decoder.state_dict().values()
        own = {id(x.array.storage): int(x.nbytes) for x in tensors}  # shared ones once
        #: The bytes of the weights.
        self.nbytes = sum(own.values())
        self._array = genesis.ones(min(self.nbytes, ENOUGH) // 4)
        self._sum = genesis.jit(lambda x: x.sum())

    def prompt(self, length: int) -> list[int]:
        """Random tokens, so that no two prompts begin alike."""
        vocabulary = self.engine.executor.decoder.config.vocabulary
        tokens: list[int] = self._random.integers(0, vocabulary, length).tolist()
        return tokens

    def first_token(self, prompt: Sequence[int]) -> float:
        """The seconds from a prompt to the first token of its answer."""
        self.engine.submit(prompt, SamplingParams(max_tokens=1, temperature=0))
        return self.seconds(self._finish)

    def decode(self, batch: int, steps: int = STEPS) -> float:
        """The seconds of a step that continues many texts by a token each."""
        params = SamplingParams(max_tokens=2 * steps + batch, temperature=0, ignore_eos=True)
        ids = [self.engine.submit(self.prompt(SHORT), params) for _ in range(batch)]
        answered: set[str] = set()
        while len(answered) < batch:
            answered |= {event.id for event in self.engine.step()}
        best = min(self.seconds(self.engine.step) for _ in range(steps))
        for id in ids:
            self.engine.cancel(id)
        self._finish()
        return best

    def _finish(self) -> None:
        while len(self.engine):
            self.engine.step()

    def read(self) -> float:
        """The seconds of reading as many bytes as the weights have."""
        best = min(self.seconds(lambda: self._sum(self._array).item()) for _ in range(3))
        return best * self.nbytes / (4 * len(self._array))

    def seconds(self, work: Callable[[], Any]) -> float:
        """How long a call takes."""
        start = self.clock()
        work()
        return self.clock() - start


def bench(path: str | Path, **how: Any) -> Iterator[str]:
    """The lines of the report, each as soon as it is known; `how` goes to `LLM`."""
    start = perf_counter()
    with LLM(path, **how) as llm:
        config, bench = llm.engine.executor.decoder.config, EngineBench(llm.engine)
        size = f"{config.family}, {len(config.layers)} layers, {bench.nbytes / 1e6:,.1f} MB"
        yield f"{path}: {size} of weights"
        length = min(PROMPT, llm.context // 2)
        bench.first_token(bench.prompt(length))
        cold = perf_counter() - start
        warm = min(bench.first_token(bench.prompt(length)) for _ in range(3))
        yield f"first token of {length} + 1: {duration(cold)} after the start"
        yield f"first token of the next request: {duration(warm)}\n"
        rows = [("", "tokens/s", "step", "of memory"), _row(f"prefill {length}", length, warm)]
        reads = [bench.read()]
        for batch in BATCHES:
            bench.decode(batch, 2)  # compiles what it may
            step = min(bench.decode(batch) for _ in range(2))
            reads.append(bench.read())
            rows.append(_row(f"decode, batch {batch}", batch, step, min(reads)))
        yield aligned(rows, left=(0,))
        yield f"\nmemory gives as many bytes at {bench.nbytes / min(reads) / 1e9:.1f} GB/s"


def _row(name: str, tokens: int, step: float, read: float | None = None) -> tuple[str, ...]:
    share = "" if read is None else f"{100 * read / step:.0f} %"
    return name, f"{tokens / step:,.0f}", duration(step), share


__all__ = ["EngineBench", "bench"]
