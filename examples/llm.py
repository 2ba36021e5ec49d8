"""Train a small Llama on the sources of Python's own library, and let it go on with some.

    python examples/llm.py
    genesis llm generate python-llama 'def main('

A byte-level tokenizer is made of the sources, and a model of a million parameters learns them for
about a minute on two cores. On modules that it has not seen, its loss goes from 7.6 to below 3.8
a token. The folder that is written is what Hugging Face's libraries read, too: parameters have
their names there from the start, so nothing has to be translated.
"""

import argparse
import json
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import genesis
from genesis import Tensor, nn, optim
from genesis.llm import LLM
from genesis.nn import functional as F  # noqa: N812 - as it is known

WIDTH, HIDDEN, LAYERS, HEADS, KEY_HEADS, SIZE, VOCABULARY = 128, 384, 4, 4, 2, 32, 2048
EPSILON, THETA, LENGTH = 1e-5, 10000.0, 128  # pieces of that length are learned
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
    "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": SIZE,
    "hidden_act": "silu", "max_position_embeddings": 1024, "rope_theta": THETA,
    "rms_norm_eps": EPSILON, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
    "dtype": "float32",
}  # fmt: skip
END = "<|endoftext|>"  # stands before every file, and so after every other
PROMPT = "import os\n\nclass Settings:\n    def __init__(self, path):\n        self."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="training steps (500)")
    parser.add_argument("--batch", type=int, default=16, help="pieces of text per step (16)")
    parser.add_argument("--files", type=int, help="modules to read (all)")
    parser.add_argument("--output", default="python-llama", help="a folder (python-llama)")
    options = parser.parse_args(arguments)
    genesis.manual_seed(0)

    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[: options.files]
    texts = [file.read_text("utf-8", "replace") for file in files]
    tokenizer = learned_tokenizer(texts)
    tokens = [np.asarray(e.ids) for e in tokenizer.encode_batch(texts)]
    seen = np.concatenate([t for k, t in enumerate(tokens) if k % 16])
    unseen = np.concatenate(tokens[::16])
    unseen = unseen[: len(unseen) // LENGTH * LENGTH].reshape(-1, LENGTH)[:128]
    model = Llama()
    count = sum(p.numel() for p in model.parameters())
    print(f"{len(files)} files, {len(seen):,} tokens, {count:,} parameters", flush=True)
    train(model, genesis.tensor(seen), options.steps, options.batch)
    with genesis.no_grad():
        print(f"loss on other files: {model(genesis.tensor(unseen)).item():.2f}\n", flush=True)
    save(model, tokenizer, Path(options.output))

    with LLM(options.output) as llm:
        print(PROMPT, end="")
        for event in llm.stream(PROMPT, temperature=0.5, seed=0, max_tokens=120):
            print(event.text, end="", flush=True)
        print()


def learned_tokenizer(texts: list[str]) -> Tokenizer:
    """Bytes, and the pieces of words that are made of them most often."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    more = {"initial_alphabet": split.alphabet(), "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END], **more)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, 0)]
    )
    return tokenizer


class Attention(nn.Module):
    """Every token as a mean of the values of those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.k_proj = nn.Linear(WIDTH, KEY_HEADS * SIZE, bias=False)
        self.v_proj = nn.Linear(WIDTH, KEY_HEADS * SIZE, bias=False)
        self.o_proj = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.turn = nn.RotaryEmbedding(SIZE, base=THETA)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, width)`` to the same."""
        split = (p(x).unflatten(-1, (-1, SIZE)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (y.transpose(1, 2) for y in split)
        q, k = self.turn(q), self.turn(k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Network(nn.Module):
    """The gated network of a layer, for each token by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, width)`` to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and a network, each of what was normalised and added to what was not."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(WIDTH, EPSILON)
        self.self_attn = Attention()
        self.post_attention_layernorm = nn.RMSNorm(WIDTH, EPSILON)
        self.mlp = Network()

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, width)`` to the same."""
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """How surprising texts are, token by token. The table of tokens is the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, EPSILON)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)

    def forward(self, texts: Tensor) -> Tensor:
        """The loss of ``(batch, length)`` tokens: each after those before it."""
        x = self.embed_tokens(texts[:, :-1])
        for layer in self.layers:
            x = layer(x)
        scores = F.linear(self.norm(x), self.embed_tokens.weight)
        return F.cross_entropy(scores.flatten(0, 1), texts[:, 1:].flatten())


def train(model: Llama, tokens: Tensor, steps: int, batch: int) -> None:
    """Steps of Muon for the matrices of the layers, and of AdamW for the rest."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    others = [model.embed_tokens.weight, *(p for p in model.parameters() if p.ndim == 1)]
    optimizers = [optim.Muon(matrices, lr=0.02, weight_decay=0), optim.AdamW(others, lr=0.006)]

    def rate(k: int) -> float:
        return min(1, 10 * (k + 1) / steps) * (1 - k / steps)

    schedules = [optim.lr_scheduler.LambdaLR(o, rate) for o in optimizers]

    @genesis.jit
    def step() -> Tensor:
        first = genesis.randint(0, len(tokens) - LENGTH, (batch, 1))
        loss = model(tokens[first + genesis.arange(LENGTH + 1)])
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    for k in range(steps):
        loss = step()
        for schedule in schedules:
            schedule.step()
        if k % 50 == 0 or k == steps - 1:
            print(f"step {k:4}  loss {loss.item():.2f}", flush=True)


def save(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """The model as the files that Hugging Face's libraries read."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"model.{name}": p.numpy() for name, p in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    tables = {"config": CONFIG, "tokenizer_config": kind, "generation_config": ends}
    for name, table in tables.items():
        (folder / f"{name}.json").write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
