"""Train a small Llama on the sources of Python's own library, and let it go on with some.

    python examples/llm.py --output python-llama
    genesis llm generate python-llama 'def main('

A byte-level tokenizer is made of the sources, and a model of 2 million parameters learns them for
about a minute: the loss on modules that it has not seen goes from 7.6 to about 3.4 a token. The
folder that is written holds what Hugging Face's libraries read, too. Parameters have their names
there from the start, so that nothing has to be translated.
"""

import argparse
import json
import math
import sysconfig
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import genesis
from genesis import Tensor, nn, optim
from genesis.llm import LLM
from genesis.nn import functional as F  # noqa: N812 - as it is known

END = "<|endoftext|>"  # stands before every file, and after it
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "dtype": "float32",
}
PROMPT = '''"""Read the settings of a program."""

import os
import sys

class Settings:
    def __init__(self, path):
        self.'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=600, help="training steps (600)")
    parser.add_argument("--batch", type=int, default=16, help="pieces of text per step (16)")
    parser.add_argument("--length", type=int, default=128, help="tokens of a piece (128)")
    parser.add_argument("--files", type=int, help="how many files to read (all)")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    parser.add_argument("--output", default="python-llama", help="folder (python-llama)")
    parser.add_argument("--rate", type=float, default=4e-3)
    options = parser.parse_args()
    genesis.manual_seed(options.seed)

    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[: options.files]
    texts = [file.read_text("utf-8", "replace") for file in files]
    tokenizer = learned_tokenizer(texts)
    tokens = [np.asarray(e.ids) for e in tokenizer.encode_batch(texts)]
    held = np.concatenate(tokens[::16])
    seen = np.concatenate([t for k, t in enumerate(tokens) if k % 16])
    model = Llama()
    count = sum(p.numel() for p in model.parameters())
    print(f"{len(files)} files, {len(seen):,} tokens, {count:,} parameters", flush=True)
    train(model, genesis.tensor(seen), options)
    print(f"loss on {len(tokens[::16])} other files: {loss_on(model, held):.2f}", flush=True)
    save(model, tokenizer, Path(options.output))

    with LLM(options.output) as llm:
        print(PROMPT, end="")
        for event in llm.stream(PROMPT, temperature=0.5, seed=0, max_tokens=120):
            print(event.text, end="", flush=True)
        print()


def learned_tokenizer(texts: list[str]) -> Tokenizer:
    """Bytes, and the pieces of words that are made of them most often."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, 0)]
    )
    return tokenizer


class Attention(nn.Module):
    """Every token as a mean of the values of those before it."""

    def __init__(self) -> None:
        super().__init__()
        width, self.size = CONFIG["hidden_size"], CONFIG["head_dim"]
        queries, keys = (
            CONFIG[f"num_{kind}_heads"] * self.size for kind in ("attention", "key_value")
        )
        self.q_proj = nn.Linear(width, queries, bias=False)
        self.k_proj = nn.Linear(width, keys, bias=False)
        self.v_proj = nn.Linear(width, keys, bias=False)
        self.o_proj = nn.Linear(queries, width, bias=False)
        self.turn = nn.RotaryEmbedding(self.size, base=CONFIG["rope_theta"])

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, width)`` to the same."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(
            self.turn(q), self.turn(k), v, is_causal=True, enable_gqa=True
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Network(nn.Module):
    """The gated network of a layer."""

    def __init__(self) -> None:
        super().__init__()
        width, hidden = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Every token by itself."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and a network, each of what was normalised and added to what was not."""

    def __init__(self) -> None:
        super().__init__()
        width, epsilon = CONFIG["hidden_size"], CONFIG["rms_norm_eps"]
        self.input_layernorm = nn.RMSNorm(width, epsilon)
        self.self_attn = Attention()
        self.post_attention_layernorm = nn.RMSNorm(width, epsilon)
        self.mlp = Network()

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, width)`` to the same."""
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Scores for the token after each. The table of tokens is the head, too."""

    def __init__(self) -> None:
        super().__init__()
        width = CONFIG["hidden_size"]
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], width)
        self.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = nn.RMSNorm(width, CONFIG["rms_norm_eps"])
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02 if p is self.embed_tokens.weight else width**-0.5 / 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """``(batch, length)`` to ``(batch, length, vocabulary)``."""
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.embed_tokens.weight)

    def loss(self, pieces: Tensor) -> Tensor:
        """How surprising every token of some pieces of text is after those before it."""
        scores = self(pieces[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten())


def train(model: Llama, tokens: Tensor, options: argparse.Namespace) -> None:
    optimizer = optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up = min(50, options.steps // 4)

    def rate(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / options.steps))

    schedule = optim.lr_scheduler.LambdaLR(optimizer, rate)

    @genesis.jit
    def step() -> Tensor:
        first = genesis.randint(0, len(tokens) - options.length, (options.batch, 1))
        loss = model.loss(tokens[first + genesis.arange(options.length + 1)])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    start = time.perf_counter()
    for k in range(options.steps):
        loss = step()
        schedule.step()
        if k % 100 == 0 or k == options.steps - 1:
            print(f"step {k:4}  loss {loss.item():.2f}  {time.perf_counter() - start:5.1f} s cpu {time.process_time():.1f}", flush=True)


@genesis.no_grad()
def loss_on(model: Llama, tokens: np.ndarray, length: int = 256) -> float:
    """The mean loss on texts, in pieces of a length."""
    pieces = tokens[: len(tokens) // length * length].reshape(-1, length)[:64]
    return model.loss(genesis.tensor(pieces)).item()


def save(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """The model as the files that Hugging Face's libraries read."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"model.{name}": p.numpy() for name, p in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = {"bos_token": END, "eos_token": END}
    for name, entries in (
        ("config.json", CONFIG),
        ("generation_config.json", {"bos_token_id": 0, "eos_token_id": 0}),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **ends}),
    ):
        (folder / name).write_text(json.dumps(entries, indent=2))


if __name__ == "__main__":
    main()
