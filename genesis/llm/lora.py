"""LoRA: many adapters over one model, each row of a step with its own.

An adapter adds ``(x @ A.T) @ B.T`` to products of the model. Adapters lie in slots, and a row says
which slot it uses; slot 0 adds nothing. A slot that nobody uses is taken again for another adapter,
that unused for longest first.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np

import genesis
from genesis.llm.config import BadModel, ConfigFields
from genesis.llm.decoder import Decoder
from genesis.llm.layers import Linear
from genesis.llm.request import Busy
from genesis.weights.checkpoint_reader import Weights, open_weights, read_json

_WEIGHTS = "adapter_model.safetensors"


def identity(path: str) -> str:
    """What tells an adapter from others, and from what lay in its folder before."""
    file = Path(path) / _WEIGHTS
    return f"{file} {file.stat().st_mtime_ns}" if file.exists() else str(file)


class Adapters:
    """The slots of a decoder's adapters."""

    def __init__(self, decoder: Decoder, slots: int, rank: int) -> None:
        self.rank = rank
        self._linears = [
            m for m in decoder.modules() if isinstance(m, Linear) and m.parts and m.adaptable
        ]
        for linear in self._linears:
            linear.make_slots(slots + 1, rank)
        self._free = list(range(slots, 0, -1))
        self._slots: OrderedDict[str, int] = OrderedDict()  # unused for longest first
        self._used = Counter[int]()

    def hold(self, path: str) -> int:
        """The slot of an adapter, which stays there until it is released."""
        known = identity(path)
        slot = self._slots.pop(known, None)
        if slot is None:
            slot = self._room()
            try:
                self._load(Path(path), slot)
            except BaseException:
                self._free.append(slot)
                raise
        self._slots[known] = slot
        self._used[slot] += 1
        return slot

    def release(self, slot: int) -> None:
        """A request is over that held a slot."""
        self._used[slot] -= 1

    def _room(self) -> int:
        if self._free:
            return self._free.pop()
        for known, slot in self._slots.items():
            if not self._used[slot]:
                del self._slots[known]
                return slot
        raise Busy(f"all {len(self._slots)} slots of adapters are in use")

    def _load(self, path: Path, slot: int) -> None:
        file = path / "adapter_config.json"
        if not file.is_file():
            raise BadModel(f"{path}: there is no adapter_config.json")
        c = ConfigFields(read_json(file), str(file))
        if c.text("peft_type", "LORA") != "LORA" or c.flag("use_dora"):
            raise BadModel(f"{file}: the adapter is no plain LoRA")
        rank = c.integer("r")
        if rank > self.rank:
            raise BadModel(f"{file}: a rank of {rank}, where the slots have room for {self.rank}")
        root = math.sqrt(rank) if c.flag("use_rslora") else rank
        scale = c.number("lora_alpha", 8.0) / root
        weights = open_weights(path / _WEIGHTS)
        used = {n for linear in self._linears for n in self._fill(linear, weights, slot, scale)}
        left = sorted(set(weights.names()) - used)
        if left:
            raise BadModel(f"{path}: the model has nothing for {', '.join(left[:3])}")

    def _fill(self, linear: Linear, weights: Weights, slot: int, scale: float) -> list[str]:
        """Put an adapter's matrices into a slot; the names of what was used."""
        down = np.zeros(linear.lora_a.shape[1:], np.float32)
        up = np.zeros(linear.lora_b.shape[1:], np.float32)
        used = []
        for k, (theirs, first, last) in enumerate(linear.parts):
            names = [n for n in weights.names() if f".{theirs}.lora_" in f".{n}"]
            a, b = (next((n for n in names if f"lora_{x}." in n), None) for x in "AB")
            if a is None or b is None:
                continue
            used += [a, b]
            small, large = (np.asarray(weights.read(n), np.float32) for n in (a, b))
            rows = slice(k * self.rank, k * self.rank + small.shape[0])
            if small.shape[1:] != down.shape[1:] or large.shape != (last - first, len(small)):
                raise BadModel(f"{a}: shapes {small.shape} and {large.shape} do not fit the model")
            down[rows], up[first:last, rows] = small, large * np.float32(scale)
        with genesis.no_grad():
            linear.lora_a[slot] = genesis.tensor(down)
            linear.lora_b[slot] = genesis.tensor(up)
        return used


__all__ = ["Adapters", "identity"]
