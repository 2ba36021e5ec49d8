"""Runs a `Decoder` by hand: one text after the other, in given pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import genesis
from genesis.llm.config import DecoderConfig
from genesis.llm.decoder import Decoder, StepRows
from genesis.llm.families import read_config
from genesis.llm.kv_cache import Cache
from genesis.llm.rope import switch
from genesis.llm.weight_names import DecoderTensors


class Tensors(dict[str, Any]):
    """Tensors in memory as files."""

    names = dict.keys

    def read(self, name: str) -> Any:
        """The tensor of a name."""
        return self[name]


def load(folder: Path, length: int = 256, format: str | None = None) -> Decoder:
    """The decoder of a folder."""
    config = read_config(json.loads((folder / "config.json").read_text()))
    files = Tensors()
    for path in sorted(folder.glob("*.safetensors")):
        files.update(genesis.load(path))
    with genesis.no_grad():
        return Decoder(config, DecoderTensors(files, config, str(folder), format), length)


class Runner:
    """A decoder with pages of its own."""

    def __init__(self, decoder: Decoder, pages: int = 64, size: int = 16, jit: bool = True) -> None:
        self.decoder, self.size = decoder, size
        config: DecoderConfig = decoder.config
        self.groups = len(config.windows)
        self.caches = [
            Cache(
                config.windows.index(layer.reach), pages, config.key_heads, size, config.head_size
            )
            for layer in config.layers
        ]
        self.step = genesis.jit(self._step) if jit else self._step

    def _step(self, tokens: Any, at: Any, spans: Any, places: Any, pages: Any, tables: Any) -> Any:
        rows = StepRows(at, spans, places, [pages] * self.groups, [tables] * self.groups)
        with genesis.no_grad():
            return self.decoder.scores(self.decoder(tokens, rows, self.caches))

    def run(
        self, tokens: Sequence[int], first: int, table: Sequence[int], prompt: int, many: bool
    ) -> np.ndarray[Any, Any]:
        """Scores after every token; `many`: as rows of many texts."""
        n = len(tokens)
        at = np.arange(first, first + n)
        pages = np.asarray(table)[at // self.size]
        width = -(-(first + n) // self.size)
        tables = np.asarray(table[:width])
        if many:
            tables = np.broadcast_to(tables, (n, width)).copy()
        spans = np.maximum(at + 1, prompt)
        arrays = (np.asarray(tokens), at, spans, at % self.size, pages, tables)
        return self.step(*(genesis.tensor(np.asarray(x, np.int64)) for x in arrays)).numpy()

    def followed(self, tokens: Sequence[int], prompt: int) -> Any:
        """The scores after a prompt and after every token that followed it but the last."""
        table, last = list(range(1, 32)), len(tokens) - 1
        anew = [x for turn in self.decoder.turns if (x := switch(turn.rope)) is not None]
        cuts = sorted({prompt, last, *(x for x in anew if prompt <= x < last)})
        scores = [self.run(tokens[:prompt], 0, table, prompt, False)[-1:]]
        for start, end in pairwise(cuts):
            if start in anew:
                self.run(tokens[:start], 0, table, start + 1, False)
            scores.append(self.run(tokens[start:end], start, table, prompt, True))
        return np.concatenate(scores)

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[list[int], Any]:
        """The likeliest tokens after a prompt, and the scores they were chosen by."""
        table = list(range(1, 32))
        limits = [switch(turn.rope) for turn in self.decoder.turns]
        scores = [self.run(prompt, 0, table, len(prompt), False)[-1]]
        tokens = [*prompt, int(scores[-1].argmax())]
        while len(tokens) < len(prompt) + count:
            if len(tokens) - 1 in limits:  # from here on all keys turn otherwise
                self.run(tokens[:-1], 0, table, len(tokens), False)
            last = self.run(tokens[-1:], len(tokens) - 1, table, len(prompt), True)[-1]
            scores.append(last)
            tokens.append(int(last.argmax()))
        return tokens[len(prompt) :], np.stack(scores)
