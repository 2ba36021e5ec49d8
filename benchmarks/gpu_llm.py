"""The programs of `genesis.llm` on a GPU: ``python -m benchmarks.gpu_llm bits`` or ``speed``.

*bits*: a small decoder in every format. The scores of a text are compared, bit by bit, alone and
among others, and computed at once and token by token.

*speed*: a decoder with the shape of Llama 3 8B and random weights. A step of one text reads all
weights once, one of 64 texts of a thousand tokens their keys and values besides; the time to beat
is that of moving as many bytes, at the rate of a copy in the same process.
"""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

import genesis
from benchmarks.gpu_decode import copy_rate
from genesis import cuda
from genesis import ndarray as nd
from genesis.llm.decoder import Decoder
from genesis.llm.executor import Executor, _tensor
from genesis.llm.families import read_config
from genesis.llm.request import TokenSpan
from genesis.weights.array_cache import ArrayCache

SMALL = {
    "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
LARGE = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
PAGE, STEPS = 64, 20


class Random:
    """Tensors of any name, made where they are used."""

    def __init__(self, format: str | None) -> None:
        self.format = None if format == "bfloat16" else format
        self.array_cache = ArrayCache()

    def take(self, name: str, *shape: int) -> Any:
        """Ones for norms, small numbers for matrices."""
        if len(shape) == 1:
            return genesis.ones(*shape)
        return (genesis.randn(*shape) * shape[-1] ** -0.5).to(genesis.bfloat16)

    def theirs(self, module: str) -> str:
        """Names as they are asked for."""
        return module

    def has_head(self) -> bool:
        """There is one besides the table of tokens."""
        return True

    def finish(self) -> None:
        """Nothing is left over."""


def executor_of(
    shape: dict[str, int], format: str, pages: int, cache: str = "bfloat16"
) -> Executor:
    """The programs of a decoder with random weights."""
    common = {
        "model_type": "llama", "max_position_embeddings": 4096, "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    genesis.manual_seed(0)
    with genesis.no_grad():
        source: Any = Random(format)
        decoder = Decoder(read_config({**common, **shape}, "random"), source, 4096)
    return Executor(decoder, [pages], PAGE, cache)


def work(tokens: list[int], start: int, pages: list[int]) -> Any:
    """Some tokens of a text."""
    return SimpleNamespace(tokens=tokens, start=start, tables=[pages], drafts=0, spec=TokenSpan)


def bits() -> None:
    """Compare the scores of texts alone and among others."""
    random = np.random.default_rng(0)
    texts = [random.integers(0, SMALL["vocab_size"], 40).tolist() for _ in range(9)]
    for format in ("float32", "bfloat16", "int8", "int4"):
        executor = executor_of(SMALL, format, 32)
        tables = [[k] for k in range(len(texts))]
        start = time.perf_counter()
        executor.prepare()
        for text, pages in zip(texts, tables, strict=True):
            executor.prefill(work(text[:32], 0, pages), 40)
        together = executor.decode(
            [work([t[32]], 32, p) for t, p in zip(texts, tables, strict=True)], [40] * len(texts)
        )
        alone = [
            executor.decode([work([t[32]], 32, p)], [40])[0]
            for t, p in zip(texts, tables, strict=True)
        ]
        few = executor.decode(
            [work([t[32]], 32, p) for t, p in zip(texts[:3], tables[:3], strict=True)], [40] * 3
        )
        same = sum(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
        three = sum(np.array_equal(a, b) for a, b in zip(alone[:3], few, strict=True))
        whole = executor.prefill(work(texts[0][:33], 0, [20]), 40)
        steps = [executor.prefill(work(texts[0][:16], 0, [21]), 40)]
        steps += [executor.prefill(work(texts[0][16:33], 16, [21]), 40)]
        steps += [
            executor.decode([work([t], k, [22])], [40])[0] for k, t in enumerate(texts[0][:33])
        ]
        off = float(np.abs(alone[0] - whole).max())
        print(
            f"{format}: alone as among 9: {same} of 9, among 3: {three} of 3; in two chunks: "
            f"{np.array_equal(whole, steps[1])}, prompt at once as decoded: "
            f"{np.array_equal(whole, alone[0])} ({off:.1e}), token by token: "
            f"{np.array_equal(steps[-1], alone[0])}; {time.perf_counter() - start:.0f} s",
            flush=True,
        )  # fmt: skip


def seconds_a_step(executor: Executor, batch: int, length: int) -> tuple[float, float]:
    """The time of a step of the program alone, and with its scores on the host."""
    each = -(-(length + 1) // PAGE)
    tables = np.arange(batch * each).reshape(batch, each)
    random = np.random.default_rng(0)
    tokens, at = (
        random.integers(0, executor.decoder.config.vocabulary, batch),
        np.full(batch, length),
    )
    program = executor._decode
    for rows, width in ((2, 3), (3, 4)):  # for any number of rows, as the engine prepares it
        example = [_tensor(x) for x in executor._example(rows, width, True)]
        (program.expect if rows == 2 else program.recording)(*example)
    given = executor._arguments(tokens, at, at, at + 1, [tables[:, length // PAGE]], [tables], None)
    for _ in range(3):
        program(*given)
    cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        scores = program(*given)
    cuda.synchronize()
    alone = (time.perf_counter() - start) / STEPS
    start = time.perf_counter()
    works = [work([int(t)], length, p.tolist()) for t, p in zip(tokens, tables, strict=True)]
    for _ in range(STEPS):
        executor.decode(works, [length + 1] * batch)
    del scores
    return alone, (time.perf_counter() - start) / STEPS


def speed(formats: list[str], shape: dict[str, int]) -> None:
    """Measure the large decoder."""
    rate = copy_rate()
    print(f"{cuda.get_device_name()}, a copy moves {rate / 1e12:.2f} TB/s", flush=True)
    for format in formats:
        start = time.perf_counter()
        executor = executor_of(shape, format, 64 * 17)
        token = Executor.page_bytes(executor.decoder.config, 0, 1, "bfloat16")
        made = time.perf_counter() - start
        tensors = executor.decoder.state_dict().values()
        weights = sum({id(x.array.storage): int(x.nbytes) for x in tensors}.values())
        weights -= executor.decoder.tokens.pieces[0].values.nbytes  # of which a step reads a row
        for batch, length in ((1, 128), (64, 1000)):
            start = time.perf_counter()
            step, whole = seconds_a_step(executor, batch, length)
            least = (weights + batch * length * token) / rate
            print(
                f"{format} batch {batch} at {length}: {1e3 * step:.2f} ms, {batch / step:,.0f} "
                f"tokens/s, {least / step:.0%} of copy; scores on the host {1e3 * whole:.2f} ms"
                f" ({made:.0f} s to make, {time.perf_counter() - start:.0f} s in all)",
                flush=True,
            )
        del executor
        cuda.empty_cache()


def main() -> None:
    """Compare bits, or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("bits", "speed"))
    parser.add_argument("--format", nargs="+", default=["bfloat16", "int8", "int4"])
    parser.add_argument("--small", action="store_true", help="the small decoder")
    options = parser.parse_args()
    nd.set_default_device("cuda")
    if options.what == "bits":
        bits()
    else:
        speed(options.format, SMALL if options.small else LARGE)


if __name__ == "__main__":
    main()
