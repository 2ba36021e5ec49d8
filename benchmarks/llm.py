"""The engine of `genesis.llm`: many texts at once, prompts, and prefixes that are known.

    python -m benchmarks.llm [--layers N] [--format int4 ...]

The model has the shape of Llama 3.2 with a billion parameters and random weights; its files are
written once, to the user's cache. A step of decoding reads all weights once, for a token of every
text, so the time to beat is that of reading as many bytes. `transformers` runs the same files, and
llama.cpp those of its formats, if `llama_cpp` (of llama-cpp-python) can be imported. Contenders
have a process and one thread each, and take turns; a time is processor time, the best of all
rounds, so that others on the machine count little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from benchmarks.worker import Worker

Work = dict[str, Callable[[], float]]  # by name; each gives seconds
Result = tuple[str, str, dict[str, float]]  # contender, format, times by name

#: Of folders, and of GGUF files.
FOLDERS, FILES = ("float32", "bfloat16", "int8", "int4"), ("F16", "Q8_0", "Q4_0", "Q4_K")
BATCHES, PROMPT, PREFIX, STEPS = (1, 8, 32), 128, 2000, 4
RESULTS = Path(__file__).parent / "results" / "llm.md"
HEADER = f"""# Serving

`python -m benchmarks.llm`: a model with the shape of Llama 3.2 1B (2048 wide, 32 query and 8 key
heads, 8192 hidden, 128256 tokens, tied) and random weights; one thread, processor time. *Decode* is
tokens per second of as many texts at once; *of memory* the time of reading as many bytes as the
weights have over that of a step of one text. *Prefill* is tokens per second of a prompt of
{PROMPT}. *First token* is the time to it after a prompt of {PREFIX:,} tokens that is new, and after
one whose pages are known but for the last 16 tokens. `transformers` runs the same files in PyTorch,
llama.cpp the same GGUF files. Contenders take turns; times are the best of the rounds.
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


def model_file(layers: int, format: str) -> Path:
    """A GGUF file of the model: random bits, and scales that make weights small."""
    path = model_folder(layers).with_name(f"llama-{layers}-layers-{format}.gguf")
    if not path.exists():
        _write_file(layers, format, path)
    return path


#: Where the float16 numbers of a block are, and how large they are.
_HALVES = {"Q8_0": (1e-4, 0), "Q4_0": (2e-3, 0), "Q4_K": (3e-5, 0, 2)}


def _write_file(layers: int, format: str, path: Path) -> None:
    from genesis.weights.gguf import write_gguf
    from genesis.weights.gguf_encode import Encoded
    from genesis.weights.gguf_types import BY_NAME

    random = np.random.default_rng(0)

    def matrix(*shape: int) -> Any:
        if format == "F16":
            return ((random.random(shape, np.float32) - 0.5) * 0.02).astype(np.float16)
        kind = BY_NAME[format]
        blocks = shape[0] * shape[1] // kind.block
        raw = np.frombuffer(random.bytes(blocks * kind.size), np.uint8).reshape(blocks, -1).copy()
        size, *places = _HALVES[format]
        for place in places:
            half = (random.random((blocks, 1)) * size).astype(np.float16)
            raw[:, place : place + 2] = half.view(np.uint8)
        return Encoded(kind, shape, raw.reshape(-1))

    ones = np.ones(2048, np.float32)
    tensors = {"token_embd.weight": matrix(128256, 2048), "output_norm.weight": ones}
    shapes = {
        "attn_q": (2048, 2048), "attn_k": (512, 2048), "attn_v": (512, 2048),
        "attn_output": (2048, 2048), "ffn_gate": (8192, 2048), "ffn_up": (8192, 2048),
        "ffn_down": (2048, 8192),
    }  # fmt: skip
    for k in range(layers):
        tensors |= {f"blk.{k}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"blk.{k}.{name}.weight": ones for name in ("attn_norm", "ffn_norm")}
    own = {
        "context_length": 4096, "embedding_length": 2048, "block_count": layers,
        "feed_forward_length": 8192, "attention.head_count": 32, "attention.head_count_kv": 8,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.key_length": 64,
        "attention.value_length": 64, "rope.dimension_count": 64, "rope.freq_base": 500000.0,
    }  # fmt: skip
    words = ["a", "b", "ab", *(f"t{k}" for k in range(3, 128256))]
    vocabulary = {
        "model": "gpt2", "pre": "gpt-2", "tokens": words, "token_type": [1] * len(words),
        "merges": ["a b"], "bos_token_id": 0, "eos_token_id": 0, "add_bos_token": False,
    }  # fmt: skip
    metadata = {"general.architecture": "llama", **{f"llama.{k}": v for k, v in own.items()}}
    metadata |= {f"tokenizer.ggml.{k}": v for k, v in vocabulary.items()}
    write_gguf(path, metadata, tensors)


# ---- the contenders: functions by name, and the bytes of their weights


def genesis_model(layers: int, format: str) -> tuple[Work, int]:
    """The engine of `genesis.llm`."""
    from genesis.llm import LLM
    from genesis.llm.bench import EngineBench

    how: dict[str, Any] = {"max_length": PREFIX + 64, "cache_bytes": 1 << 31}
    if format in FILES:
        llm = LLM(model_file(layers, format), **how)
    else:
        llm = LLM(model_folder(layers), format=format, **how)
    bench = EngineBench(llm.engine, process_time)
    known = bench.prompt(PREFIX - 16)

    def found() -> float:
        return bench.first_token([*known, *bench.prompt(16)])

    work: Work = {
        "prefill": lambda: bench.first_token(bench.prompt(PROMPT)),
        "new": lambda: bench.first_token(bench.prompt(PREFIX)),
        "known": found,
        "read": bench.read,
    }
    work |= {f"decode {batch}": partial(bench.decode, batch, STEPS) for batch in BATCHES}
    return work, bench.nbytes


def transformers_model(layers: int, format: str) -> tuple[Work, int]:
    """`generate` of transformers."""
    import torch
    import transformers

    torch.set_num_threads(1)
    dtype = getattr(torch, format)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder(layers), dtype=dtype)
    random = np.random.default_rng(0)

    def generated(batch: int, length: int, count: int) -> float:
        tokens = torch.tensor(random.integers(1, 128256, (batch, length)))
        start = process_time()
        with torch.inference_mode():
            model.generate(
                tokens, attention_mask=torch.ones_like(tokens), do_sample=False, pad_token_id=0,
                min_new_tokens=count, max_new_tokens=count,
            )  # fmt: skip
        return process_time() - start

    def decode(batch: int) -> float:
        return (generated(batch, 16, STEPS + 1) - generated(batch, 16, 1)) / STEPS

    work: Work = {
        "prefill": lambda: generated(1, PROMPT, 1),
        "new": lambda: generated(1, PREFIX, 1),
    }
    work |= {f"decode {batch}": partial(decode, batch) for batch in BATCHES}
    return work, sum(p.nbytes for p in model.parameters())


def llama_cpp_model(layers: int, format: str) -> tuple[Work, int]:
    """llama.cpp through its own C interface."""
    from llama_cpp import llama_cpp as c  # type: ignore[import-not-found]

    c.llama_backend_init()
    path = model_file(layers, format)
    model = c.llama_model_load_from_file(str(path).encode(), c.llama_model_default_params())
    how = c.llama_context_default_params()
    how.n_ctx, how.n_batch, how.n_seq_max, how.kv_unified = 4096, 512, max(BATCHES), True
    how.n_threads = how.n_threads_batch = 1
    context = c.llama_init_from_model(model, how)
    random = np.random.default_rng(0)

    def run(places: list[tuple[int, int]], every: bool) -> float:
        """Tokens of some texts at some positions; scores of all of them, or of the last."""
        batch = c.llama_batch_init(len(places), 0, 1)
        batch.n_tokens = len(places)
        for k, (text, position) in enumerate(places):
            batch.token[k], batch.pos[k] = int(random.integers(1, 128256)), position
            batch.n_seq_id[k], batch.seq_id[k][0] = 1, text
            batch.logits[k] = every or k == len(places) - 1
        start = process_time()
        if c.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        end = process_time()
        c.llama_batch_free(batch)
        return end - start

    def prompt(length: int) -> float:
        c.llama_memory_clear(c.llama_get_memory(context), False)
        return run([(0, k) for k in range(length)], False)

    def decode(batch: int) -> float:
        c.llama_memory_clear(c.llama_get_memory(context), False)
        run([(text, k) for text in range(batch) for k in range(16)], False)
        return min(run([(t, 16 + k) for t in range(batch)], True) for k in range(STEPS))

    work: Work = {"prefill": partial(prompt, PROMPT)}
    work |= {f"decode {batch}": partial(decode, batch) for batch in BATCHES}
    return work, int(c.llama_model_size(model))


CONTENDERS = {
    "genesis": genesis_model,
    "llama.cpp": llama_cpp_model,
    "transformers": transformers_model,
}


def contenders(format: str) -> list[str]:
    """Who can run a format."""
    if format in FILES:
        return ["genesis", *(["llama.cpp"] if find_spec("llama_cpp") else [])]
    return ["genesis", *(["transformers"] if format in ("float32", "bfloat16") else [])]


# ---- measuring


def serve(contender: str, layers: int, format: str) -> None:
    """A contender's process: answer what it is asked for until the pipe is closed."""
    with _silent() as answers:
        work: Work = {}
        for line in sys.stdin:
            (request,) = json.loads(line)
            if request == "version":
                work, size = CONTENDERS[contender](layers, format)
                for name in work:
                    work[name]()  # compile, and fill the prefix cache
                answer: Any = [size, list(work)]
            else:
                answer = work[request]()
            print(json.dumps(answer), file=answers, flush=True)


@contextmanager
def _silent() -> Iterator[Any]:
    """What others print, in C, too, does not come between the answers."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        yield answers


def measured(layers: int, formats: list[str], rounds: int) -> list[Result]:
    """The best times of all contenders; those of a format take turns."""
    results = []
    for format in formats:
        workers = {
            name: Worker(name, str(layers), format, module="benchmarks.llm",
                         GENESIS_NUM_THREADS="1", OMP_NUM_THREADS="1")
            for name in contenders(format)
        }  # fmt: skip
        best = {name: {"bytes": float(w.version[0])} for name, w in workers.items()}
        for _ in range(rounds):
            for what in next(iter(workers.values())).version[1]:
                for name, worker in workers.items():
                    if what in worker.version[1]:
                        own = best[name]
                        own[what] = min(own.get(what, 1e9), worker.ask(what))
        for name, worker in workers.items():
            worker.close()
            results.append((name, format, best[name]))
            print(name, format, best[name], flush=True)
    return results


def table(layers: int, results: list[Result]) -> str:
    """The results as Markdown."""
    decode = " | ".join(f"decode {batch}" for batch in BATCHES)
    cells = [
        f"{date.today()}, {layers} layers, {platform.machine()}; {os.getloadavg()[0]:.0f} "
        f"processes wanted to run on {len(os.sched_getaffinity(0))} processors.",
        "",
        f"| | weights | {decode} | of memory | prefill | first token | known |",
        "|---|" + "---:|" * (len(BATCHES) + 5),
    ]
    for contender, format, t in results:
        rates = " | ".join(f"{batch / t[f'decode {batch}']:,.1f}" for batch in BATCHES)
        share = f"{t['read'] / t['decode 1']:.0%}" if "read" in t else ""
        known = f"{t['known'] * 1e3:,.0f} ms" if "known" in t else ""
        new = f"{t['new']:,.2f} s" if "new" in t else ""
        cells.append(
            f"| {contender} {format} | {t['bytes'] / 1e6:,.0f} MB | {rates} | {share} "
            f"| {PROMPT / t['prefill']:,.0f} | {new} | {known} |"
        )
    return "\n".join(cells) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16, help="of the model (16)")
    parser.add_argument(
        "--format", nargs="+", choices=(*FOLDERS, *FILES), default=[*FOLDERS, *FILES]
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender (3)")
    parser.add_argument("--write", action="store_true", help=f"the table to {RESULTS.name}")
    options = parser.parse_args()
    model_folder(options.layers)
    text = table(options.layers, measured(options.layers, options.format, options.rounds))
    print(text)
    if options.write:
        RESULTS.write_text(f"{HEADER}\n{text}")


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in CONTENDERS:
        serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main()
