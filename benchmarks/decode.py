"""A Llama decoder, token by token: how near to the speed of memory is a step?

    python -m benchmarks.decode [--layers N] [--format int4 ...]

The model has the shape of Llama 3.2 with a billion parameters and random weights. A step reads all
weights once, so the time to beat is that of reading as many bytes, which the same process measures
with a sum over as large an array, in turns with the steps. PyTorch runs the same model eagerly.
Every contender has a process of its own; a time is the best of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.worker import THREADS, Worker

Result = tuple[str, str, dict[str, float]]  # contender, format, times by name

FORMATS = ("float32", "bfloat16", "int8", "int4")
PROMPT, CONTEXT = 128, 256
RESULTS = Path(__file__).parent / "results" / "decode.md"
HEADER = f"""# Decoding

`python -m benchmarks.decode`: a Llama decoder with the shape of Llama 3.2 1B (2048 wide, 32 query
and 8 key heads, 8192 hidden, 128256 tokens, tied), random weights, batch 1, {THREADS} threads. A
*step* is one token after a prompt of {PROMPT}, a *prompt* all of its tokens at once. *Of memory* is
the time of reading as many bytes as the weights have, measured in the same process in turns with
the steps, over that of a step. PyTorch runs eagerly. Times are the best of the rounds.
"""


# ---- the contenders: each gives a step, a prompt, a read and the bytes of its weights


def genesis_model(layers: int, format: str) -> dict[str, Any]:
    """The decoder of `genesis.models`."""
    import genesis
    from genesis import ndarray as nd
    from genesis.compress import quantize_
    from genesis.models import Llama, LlamaConfig

    genesis.manual_seed(0)
    model = Llama(LlamaConfig(layers=layers, context=CONTEXT))
    if format != "float32":
        quantize_(model, format)
    weights = {id(x.array.storage): x for x in model.state_dict().values()}  # shared ones once
    size = sum(int(x.nbytes) for x in weights.values())
    prompt = genesis.tensor(np.arange(PROMPT) % 1000)
    token = genesis.tensor([1])
    array = nd.zeros(size // 4)
    array.assign(1.0).realize()
    total = genesis.jit(lambda x: x.sum())
    return {
        "step": lambda: model.next(token, PROMPT).item(),
        "prompt": lambda: model.next(prompt, 0).item(),
        "read": lambda: total(array).item(),
        "bytes": size,
    }


def torch_model(layers: int, format: str) -> dict[str, Any]:
    """The same in PyTorch."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    dtype = getattr(torch, format)
    width, shared, hidden, vocabulary, size = 2048, 8, 8192, 128256, 64

    def matrix(rows: int, columns: int) -> Any:
        return ((torch.rand(rows, columns) - 0.5) * columns**-0.5).to(dtype)

    words = matrix(vocabulary, width)
    blocks = [
        {
            "query": matrix(width, width), "key": matrix(shared * size, width),
            "value": matrix(shared * size, width), "out": matrix(width, width),
            "gate": matrix(hidden, width), "up": matrix(hidden, width),
            "down": matrix(width, hidden),
            "keys": torch.zeros(shared, CONTEXT, size, dtype=dtype),
            "values": torch.zeros(shared, CONTEXT, size, dtype=dtype),
        }
        for _ in range(layers)
    ]  # fmt: skip
    ones = torch.ones(width, dtype=dtype)
    speed = 500000.0 ** (-torch.arange(size // 2) / (size // 2))
    angle = torch.arange(CONTEXT)[:, None] * speed
    cosine, sine = angle.cos().to(dtype), angle.sin().to(dtype)

    def turned(x: Any, first: int) -> Any:
        c, s = (t[first : first + x.shape[1]] for t in (cosine, sine))
        a, b = x.chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    @torch.inference_mode()
    def run(tokens: Any, first: int) -> int:
        x, count = words[tokens], len(tokens)
        past = torch.arange(first + count) <= torch.arange(first, first + count)[:, None]
        for w in blocks:
            n = functional.rms_norm(x, (width,), ones, 1e-5)
            q, k, v = (
                functional.linear(n, w[name]).view(count, -1, size).transpose(0, 1)
                for name in ("query", "key", "value")
            )
            w["keys"][:, first : first + count] = turned(k, first)
            w["values"][:, first : first + count] = v
            k, v = w["keys"][:, : first + count], w["values"][:, : first + count]
            mixed = functional.scaled_dot_product_attention(
                turned(q, first)[None], k[None], v[None], attn_mask=past, enable_gqa=True
            )[0]
            x = x + functional.linear(mixed.transpose(0, 1).reshape(count, width), w["out"])
            n = functional.rms_norm(x, (width,), ones, 1e-5)
            wide = functional.silu(functional.linear(n, w["gate"])) * functional.linear(n, w["up"])
            x = x + functional.linear(wide, w["down"])
        last = functional.rms_norm(x[-1:], (width,), ones, 1e-5)
        return int(functional.linear(last, words)[0].argmax())

    prompt, token = torch.arange(PROMPT) % 1000, torch.tensor([1])
    tensors = [words, *(t for w in blocks for n, t in w.items() if n not in ("keys", "values"))]
    array = torch.ones(sum(t.nbytes for t in tensors) // 4)
    return {
        "step": lambda: run(token, PROMPT),
        "prompt": lambda: run(prompt, 0),
        "read": lambda: array.sum().item(),
        "bytes": sum(t.nbytes for t in tensors),
    }


# ---- measuring


def serve(contender: str, layers: int, format: str) -> None:
    """A contender's process: answer what it is asked for until the pipe is closed."""
    made: dict[str, Any] = {}
    for line in sys.stdin:
        request, *arguments = json.loads(line)
        if request == "version":
            made = (genesis_model if contender == "genesis" else torch_model)(layers, format)
            for name in ("prompt", "step", "read"):
                made[name]()
            answer: Any = made["bytes"]
        else:
            answer = min(seconds(made[request]) for _ in range(arguments[0]))
        print(json.dumps(answer), flush=True)


def seconds(work: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = perf_counter()
    work()
    return perf_counter() - start


def measured(layers: int, formats: list[str], rounds: int) -> list[Result]:
    """The best times of all contenders, one model at a time: they are large."""
    wanted = [("genesis", f) for f in formats]
    wanted += [("torch", f) for f in formats if f in ("float32", "bfloat16")]
    results = []
    for contender, format in wanted:
        worker = Worker(contender, str(layers), format, module="benchmarks.decode")
        best: dict[str, float] = {"bytes": float(worker.version)}
        for _ in range(rounds):
            for name, calls in (("read", 3), ("step", 5), ("read", 3), ("prompt", 1)):
                best[name] = min(best.get(name, 1e9), worker.ask(name, calls))
        worker.close()
        results.append((contender, format, best))
        print(contender, format, best, flush=True)
    return results


def table(layers: int, results: list[Result]) -> str:
    """The results as Markdown."""
    cells = [
        f"{layers} layers, {platform.machine()}; {os.getloadavg()[0]:.0f} processes wanted to run "
        f"on {len(os.sched_getaffinity(0))} processors.",
        "",
        "| | weights | step | tokens/s | of memory | prompt | tokens/s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for contender, format, t in results:
        cells.append(
            f"| {contender} {format} | {t['bytes'] / 1e6:,.0f} MB | {t['step'] * 1e3:.1f} ms "
            f"| {1 / t['step']:.1f} | {t['read'] / t['step']:.0%} "
            f"| {t['prompt'] * 1e3:,.0f} ms | {PROMPT / t['prompt']:,.0f} |"
        )
    return "\n".join(cells) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16, help="of the model (16)")
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender (5)")
    parser.add_argument("--write", action="store_true", help=f"the table to {RESULTS.name}")
    options = parser.parse_args()
    text = table(options.layers, measured(options.layers, options.format, options.rounds))
    print(text)
    if options.write:
        RESULTS.write_text(f"{HEADER}\n{text}")


if __name__ == "__main__":
    if sys.argv[1:2] in (["genesis"], ["torch"]):
        serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main()
