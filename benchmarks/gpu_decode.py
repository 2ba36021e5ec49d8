"""A Llama decoder on a GPU, token by token: ``python -m benchmarks.gpu_decode``.

The model has the shape of Llama 3 8B and random weights; one text, a bfloat16 cache of 4096 tokens.
A step reads all weights once, so the time to beat is that of moving as many bytes, at the rate of a
copy in the same process. Steps follow each other without the host waiting for a token.
"""

from __future__ import annotations

import argparse
import time

import genesis
from genesis import cuda
from genesis import ndarray as nd
from genesis.compress import quantize_
from genesis.models import Llama, LlamaConfig

FORMATS = ("bfloat16", "int8", "int4")
CONFIG = LlamaConfig(
    layers=32, width=4096, heads=32, key_heads=8, hidden=14336, vocabulary=128256, context=4096
)
STEPS = 40
FAR = 3900


def copy_rate() -> float:
    """The bytes per second that a copy of 4 GB reads and writes."""
    x = nd.ones((1 << 30,)).realize()
    copy = genesis.jit(lambda x: -x)
    for _ in range(3):
        copy(x)
    cuda.synchronize()
    start = time.perf_counter()
    for _ in range(5):
        copy(x)
    cuda.synchronize()
    return 5 * 2 * int(x.nbytes) / (time.perf_counter() - start)


def model_of(format: str) -> tuple[Llama, int]:
    """The decoder, and the bytes of its weights."""
    genesis.manual_seed(0)
    with genesis.no_grad():
        model = Llama(CONFIG).to(genesis.bfloat16)
        if format != "bfloat16":
            quantize_(model, format)
    weights = {id(x.array.storage): x for x in model.state_dict().values()}  # shared ones once
    return model, sum(int(x.nbytes) for x in weights.values())


def seconds_a_step(model: Llama, position: int) -> float:
    """The time of a step, some way behind a position."""
    token = genesis.tensor([1])
    for k in range(8):
        token = model.next(token, position + k)
    cuda.synchronize()
    start = time.perf_counter()
    for k in range(STEPS):
        token = model.next(token, position + 8 + k)
    cuda.synchronize()
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    """Measure every format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=FORMATS, nargs="+", default=FORMATS)
    formats = parser.parse_args().format
    nd.set_default_device("cuda")
    rate = copy_rate()
    print(f"{cuda.get_device_name()}, a copy moves {rate / 1e12:.2f} TB/s\n")
    print(f"| weights | GB | ms a step | tokens/s | of copy | at token {FAR} |")
    print("|---|---:|---:|---:|---:|---:|")
    for format in formats:
        model, nbytes = model_of(format)
        near, far = (seconds_a_step(model, position) for position in (128, FAR))
        share = nbytes / rate / near
        print(f"| {format} | {nbytes / 1e9:.1f} | {1e3 * near:.2f} | {1 / near:.0f} | {share:.0%} "
              f"| {1e3 * far:.2f} |", flush=True)  # fmt: skip
        del model
        cuda.empty_cache()


if __name__ == "__main__":
    main()
