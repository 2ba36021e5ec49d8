"""The engine of `genesis.llm`: many texts at once, prompts, and prefixes that are known.

    python -m benchmarks.llm [--layers N] [--format int4 ...]

The model has the shape of Llama 3.2 with a billion parameters and random weights; its files are
written once, to the user's cache. A step of decoding reads all weights once, for a token of every
text, so the time to beat is that of reading as many bytes. `transformers` runs the same files.
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
BATCHES, PROMPT, PREFIX, STEPS = (1, 8, 32), 512, 2000, 8
RESULTS = Path(__file__).parent / "results" / "llm.md"
HEADER = f"""# Serving

`python -m benchmarks.llm`: a model with the shape of Llama 3.2 1B (2048 wide, 32 query and 8 key
heads, 8192 hidden, 128256 tokens, tied) and random weights, {THREADS} threads. *Decode* is tokens
per second of as many texts at once; *of memory* the time of reading as many bytes as the weights
have over that of a step of one text. *Prefill* is a prompt of {PROMPT} tokens. *First token* is the
time to it after a prompt of {PREFIX:,} tokens that is new, and after one whose pages are known but
for the last 16 tokens. `transformers` runs the same files in PyTorch. Times are the best of the
rounds.
"""


# ---- the files of the model


def model_folder(layers: int) -> Path:
    """The files of the model, written when they are first wanted."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "genesis-benchmarks" / f"llama-{layers}-layers"
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write_weights(layers, folder / "model.safetensors")
        _write_tokenizer(folder / "tokenizer.json")
        (folder / "config.json").write_text(json.dumps(_config(layers)))  # the last: all is there
    return folder


def _config(layers: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": layers,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "dtype": "bfloat16",
    }  # fmt: skip


def _write_weights(layers: int, path: Path) -> None:
    """Random weights in bfloat16, as such models come."""
    from ml_dtypes import bfloat16
    from safetensors.numpy import save_file

    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Any:
        values = random.random((rows, columns), np.float32) - 0.5
        return (values * columns**-0.5).astype(bfloat16)

    ones = np.ones(2048, bfloat16)
    tensors = {"model.embed_tokens.weight": matrix(128256, 2048), "model.norm.weight": ones}
    shapes = {
        "self_attn.q_proj": (2048, 2048), "self_attn.k_proj": (512, 2048),
        "self_attn.v_proj": (512, 2048), "self_attn.o_proj": (2048, 2048),
        "mlp.gate_proj": (8192, 2048), "mlp.up_proj": (8192, 2048), "mlp.down_proj": (2048, 8192),
    }  # fmt: skip
    for k in range(layers):
        for name, shape in shapes.items():
            tensors[f"model.layers.{k}.{name}.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{k}.{name}.weight"] = ones
    save_file(tensors, path, {"format": "pt"})


def _write_tokenizer(path: Path) -> None:
    """A tokenizer of words without any: the benchmark speaks in tokens."""
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"<unk>": 0}, "<unk>")).save(str(path))


# ---- the contenders: functions by name, each gives seconds


def genesis_model(layers: int, format: str) -> tuple[dict[str, Callable[[], float]], int]:
    """The engine of `genesis.llm`, and the bytes of its weights."""
    from genesis.llm import LLM
    from genesis.llm.bench import Bench

    llm = LLM(model_folder(layers), format=format, max_length=PREFIX + 64, cache_bytes=1 << 31)
    bench = Bench(llm.engine)
    known = bench.prompt(PREFIX - 16)

    def found() -> float:
        return bench.first_token([*known, *bench.prompt(16)])

    work: dict[str, Callable[[], float]] = {
        "prefill": lambda: bench.first_token(bench.prompt(PROMPT)),
        "new": lambda: bench.first_token(bench.prompt(PREFIX)),
        "known": found,
        "read": bench.read,
    }
    for batch in BATCHES:
        work[f"decode {batch}"] = lambda batch=batch: bench.decode(batch, STEPS)  # type: ignore[misc]
    return work, bench.nbytes


def transformers_model(layers: int, format: str) -> tuple[dict[str, Callable[[], float]], int]:
    """`generate` of transformers."""
    import torch
    import transformers

    torch.set_num_threads(THREADS)
    dtype = getattr(torch, format)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder(layers), dtype=dtype)
    random = np.random.default_rng(0)

    def generated(batch: int, length: int, count: int) -> float:
        tokens = torch.tensor(random.integers(1, 128256, (batch, length)))
        start = perf_counter()
        with torch.inference_mode():
            model.generate(
                tokens, attention_mask=torch.ones_like(tokens), do_sample=False, pad_token_id=0,
                min_new_tokens=count, max_new_tokens=count,
            )  # fmt: skip
        return perf_counter() - start

    def decode(batch: int) -> float:
        return (generated(batch, 16, STEPS + 1) - generated(batch, 16, 1)) / STEPS

    work: dict[str, Callable[[], float]] = {
        "prefill": lambda: generated(1, PROMPT, 1),
        "new": lambda: generated(1, PREFIX, 1),
    }
    for batch in BATCHES:
        work[f"decode {batch}"] = lambda batch=batch: decode(batch)  # type: ignore[misc]
    return work, sum(p.nbytes for p in model.parameters())


# ---- measuring


def serve(contender: str, layers: int, format: str) -> None:
    """A contender's process: answer what it is asked for until the pipe is closed."""
    work: dict[str, Callable[[], float]] = {}
    for line in sys.stdin:
        (request,) = json.loads(line)
        if request == "version":
            made = genesis_model if contender == "genesis" else transformers_model
            work, size = made(layers, format)
            for name in work:
                work[name]()  # compile, and fill the prefix cache
            answer: Any = [size, list(work)]
        else:
            answer = work[request]()
        print(json.dumps(answer), flush=True)


def measured(layers: int, formats: list[str], rounds: int) -> list[Result]:
    """The best times of all contenders, one model at a time: they are large."""
    wanted = [("genesis", f) for f in formats]
    wanted += [("transformers", f) for f in formats if f in ("float32", "bfloat16")]
    results = []
    for contender, format in wanted:
        worker = Worker(contender, str(layers), format, module="benchmarks.llm")
        size, names = worker.version
        best = {"bytes": float(size)}
        for _ in range(rounds):
            for name in names:
                best[name] = min(best.get(name, 1e9), worker.ask(name))
        worker.close()
        results.append((contender, format, best))
        print(contender, format, best, flush=True)
    return results


def table(layers: int, results: list[Result]) -> str:
    """The results as Markdown."""
    decode = " | ".join(f"decode {batch}" for batch in BATCHES)
    cells = [
        f"{layers} layers, {platform.machine()}; {os.getloadavg()[0]:.0f} processes wanted to run "
        f"on {len(os.sched_getaffinity(0))} processors.",
        "",
        f"| | weights | {decode} | of memory | prefill | first token | known |",
        "|---|" + "---:|" * (len(BATCHES) + 5),
    ]
    for contender, format, t in results:
        rates = " | ".join(f"{batch / t[f'decode {batch}']:,.1f}" for batch in BATCHES)
        share = f"{t['read'] / t['decode 1']:.0%}" if "read" in t else ""
        known = f"{t['known'] * 1e3:,.0f} ms" if "known" in t else ""
        cells.append(
            f"| {contender} {format} | {t['bytes'] / 1e6:,.0f} MB | {rates} | {share} "
            f"| {PROMPT / t['prefill']:,.0f} | {t['new']:,.2f} s | {known} |"
        )
    return "\n".join(cells) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16, help="of the model (16)")
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender (3)")
    parser.add_argument("--write", action="store_true", help=f"the table to {RESULTS.name}")
    options = parser.parse_args()
    model_folder(options.layers)
    text = table(options.layers, measured(options.layers, options.format, options.rounds))
    print(text)
    if options.write:
        RESULTS.write_text(f"{HEADER}\n{text}")


if __name__ == "__main__":
    if sys.argv[1:2] in (["genesis"], ["transformers"]):
        serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main()
