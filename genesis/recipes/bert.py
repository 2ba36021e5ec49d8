"""Fill in the blanks: pretraining of a small BERT with LAMB, told as MLPerf wants it told.

    genesis train bert

Words of Python's documentation are hidden, and the network says what they were (Devlin et al.,
2019): of fifteen of a hundred words eight in ten become a blank, one in ten another word, and one
stays. LAMB scales the step of every matrix by its own size, made for large batches (You et al.,
2020). What happens is printed in the lines of MLPerf's training logs, one JSON record each, so that
its checkers can read a run.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pydoc_data import topics
from typing import Any

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

LENGTH, BATCH = 32, 64
WIDTH, HEADS, LAYERS = 64, 4, 2
WORDS = 400  # that have a number of their own
BLANK, RARE = 0, 1
HIDDEN = 0.15


def log(key: str, value: Any, kind: str = "POINT_IN_TIME", **metadata: Any) -> None:
    """A line of MLPerf's log."""
    record = {
        "namespace": "", "time_ms": int(time.time() * 1000), "event_type": kind, "key": key,
        "value": value, "metadata": metadata,
    }  # fmt: skip
    print(f":::MLLOG {json.dumps(record)}", flush=True)


def corpus() -> tuple[list[str], Tensor]:
    """The words that have a number, and the text as numbers."""
    text = re.findall(r"[a-z]+|[.,:()]", "".join(topics.topics.values()).lower())
    words = ["_", "?", *(w for w, _ in Counter(text).most_common(WORDS))]
    number = {w: k for k, w in enumerate(words)}
    return words, genesis.tensor([number.get(w, RARE) for w in text])


class BERT(nn.Module):
    """Scores for the word at every place, from the words on both sides."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.layers = nn.TransformerEncoder(layer, LAYERS)
        self.norm, self.bias = nn.LayerNorm(WIDTH), nn.Parameter(genesis.zeros(words))
        for table in (self.word, self.place):
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length)`` to ``(batch, length, words)``; the table of words serves twice."""
        x = self.layers(self.word(x) + self.place(genesis.arange(LENGTH)))
        scores: Tensor = F.linear(self.norm(x), self.word.weight, self.bias)
        return scores


def hide(x: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """A text with some words hidden, and which are to be said; rare ones have no name."""
    asked = (genesis.rand(*x.shape) < HIDDEN) & (x != RARE)
    fate = genesis.rand(*x.shape)
    other = genesis.randint(2, words, x.shape)
    shown = genesis.where(fate < 0.8, BLANK, genesis.where(fate < 0.9, other, x))
    return genesis.where(asked, shown, x), genesis.where(asked, x, -100)


def train(steps: int = 800, seed: int = 0) -> dict[str, float]:
    """Train; how often a hidden word of a text that was held out is said rightly."""
    log("cache_clear", True)
    log("init_start", None, "INTERVAL_START")
    genesis.manual_seed(seed)
    words, whole = corpus()
    data, held_out = whole[:-6000], whole[-6000:]
    model = BERT(len(words))
    optimizer = optim.LAMB(model.parameters(), lr=1e-2, weight_decay=0.01)
    warm_up = max(1, steps // 10)
    schedule = optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min((k + 1) / warm_up, (steps - k) / max(1, steps - warm_up))
    )
    for key, value in (
        ("submission_benchmark", "bert"), ("global_batch_size", BATCH), ("seed", seed),
        ("opt_name", "lamb"), ("opt_base_learning_rate", 1e-2), ("max_sequence_length", LENGTH),
        ("opt_lamb_weight_decay_rate", 0.01), ("opt_learning_rate_warmup_steps", warm_up),
        ("train_samples", len(data) // LENGTH), ("eval_samples", len(held_out) // LENGTH),
    ):  # fmt: skip
        log(key, value)

    @genesis.jit
    def step() -> Tensor:
        first = genesis.randint(0, len(data) - LENGTH, (BATCH, 1))
        shown, asked = hide(data[first + genesis.arange(LENGTH)], len(words))
        loss: Tensor = F.cross_entropy(model(shown).flatten(0, 1), asked.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    log("init_stop", None, "INTERVAL_END")
    log("run_start", None, "INTERVAL_START")
    log("block_start", None, "INTERVAL_START", first_epoch_num=0, epoch_count=1)
    for k in range(steps):
        loss = step()
        schedule.step()
        if k % 100 == 99 or k == steps - 1:
            log("train_loss", round(loss.item(), 4), step=k + 1)
    log("block_stop", None, "INTERVAL_END", first_epoch_num=0)
    model.eval()
    text = held_out[: len(held_out) // LENGTH * LENGTH].view(-1, LENGTH)
    log("eval_start", None, "INTERVAL_START", epoch_num=steps * BATCH)
    shown, asked = hide(text, len(words))
    with genesis.no_grad():
        said = model(shown).argmax(-1)
    counted = asked >= 0
    right = ((said == asked) & counted).float().sum() / counted.float().sum()
    log("eval_accuracy", round(right.item(), 4), epoch_num=steps * BATCH)
    log("eval_stop", None, "INTERVAL_END", epoch_num=steps * BATCH)
    log("run_stop", None, "INTERVAL_END", status="success")
    counts = genesis.bincount(data[data > RARE], minlength=len(words))
    usual = ((asked == counts.argmax()) & counted).float().sum() / counted.float().sum()
    for row, answer in list(zip(shown.tolist(), said.tolist(), strict=True))[:2]:
        print(" ".join(
            f"[{words[b]}]" if a == BLANK else words[a] for a, b in zip(row, answer, strict=True)
        ))  # fmt: skip
    return {"right": right.item(), "always the most frequent word": usual.item()}
