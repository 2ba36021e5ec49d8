"""Digits that are spoken, without anybody saying when: connectionist temporal classification.

    genesis train ctc

A voice that knows two tones for each digit, as telephones do, says numbers at its own pace, with
pauses, in noise. A recurrent network reads the loudness of some frequencies over time, and is told
only which digits were said, not where. The loss adds up all the ways they could lie there (Graves
et al., 2006); reading is taking the best letter of every moment and dropping repeats and blanks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

RATE, FRAME = 4000, 160  # samples a second, and in a moment
MOMENTS, MOST = 40, 6  # of a recording, and the digits in it
LOW, HIGH = (697, 770, 852, 941), (1209, 1336, 1477)
BATCH = 32

Array = npt.NDArray[Any]


def spoken(rng: np.random.Generator, noise: float = 0.4) -> tuple[Array, list[int]]:
    """A recording, and the digits that are said in it."""
    count = int(rng.integers(2, MOST + 1))
    said = rng.integers(0, 10, count).tolist()
    sound = noise * rng.normal(size=MOMENTS * FRAME)
    at = int(rng.integers(0, 3))
    for digit in said:
        length = int(rng.integers(3, 6))
        time = np.arange(at * FRAME, min(at + length, MOMENTS) * FRAME)
        for tone in (LOW[digit // 3], HIGH[digit % 3]):
            sound[time] += rng.uniform(0.5, 1.0) * np.sin(2 * np.pi * tone * time / RATE)
        at += length + int(rng.integers(1, 3))
    return sound, said


def batch(rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, list[list[int]]]:
    """Loudness over time, digits in rows filled up with zeros, and how many they are."""
    sounds, said = zip(*(spoken(rng) for _ in range(BATCH)), strict=True)
    frames = np.stack(sounds).reshape(BATCH, MOMENTS, FRAME) * np.hanning(FRAME)
    loudness = np.log1p(np.abs(np.fft.rfft(frames))).astype(np.float32)
    loudness = (loudness - loudness.mean()) / loudness.std()
    rows = np.zeros((BATCH, MOST), np.int64)
    for row, digits in zip(rows, said, strict=True):
        row[: len(digits)] = np.array(digits) + 1  # zero is the blank
    lengths = np.array([len(digits) for digits in said])
    return genesis.tensor(loudness), genesis.tensor(rows), genesis.tensor(lengths), list(said)


class Listener(nn.Module):
    """From loudness over time to scores for blank and ten digits, at every moment."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.enter = nn.Linear(FRAME // 2 + 1, width)
        self.memory = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.leave = nn.Linear(2 * width, 11)

    def forward(self, loudness: Tensor) -> Tensor:
        """Logarithms of chances, ``(batch, moments, 11)``."""
        found, _ = self.memory(F.relu(self.enter(loudness)))
        logs: Tensor = F.log_softmax(self.leave(found), -1)
        return logs


def read(logs: Tensor) -> list[list[int]]:
    """The best letter of every moment, without repeats and blanks."""
    found = []
    for row in logs.argmax(-1).tolist():
        kept = [k for k, before in zip(row, [0, *row], strict=False) if k not in (0, before)]
        found.append([k - 1 for k in kept])
    return found


def distance(a: list[int], b: list[int]) -> int:
    """How many digits must be put in, taken out or changed (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def train(steps: int = 400, seed: int = 0) -> dict[str, float]:
    """Train, and give the share of digits that are heard wrongly in new recordings."""
    genesis.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = Listener()
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    moments = genesis.full((BATCH,), MOMENTS, dtype=genesis.int64)

    @genesis.jit
    def step(loudness: Tensor, digits: Tensor, lengths: Tensor) -> Tensor:
        logs = model(loudness).transpose(0, 1)
        loss: Tensor = F.ctc_loss(logs, digits, moments, lengths)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for k in range(steps):
        loudness, digits, lengths, _ = batch(rng)
        loss = step(loudness, digits, lengths)
        if k % 100 == 0 or k == steps - 1:
            print(f"step {k:4}  loss {loss.item():.3f}", flush=True)
    wrong = total = 0
    for _ in range(8):
        loudness, _, _, said = batch(rng)
        with genesis.no_grad():
            heard = read(model(loudness))
        wrong += sum(map(distance, heard, said))
        total += sum(map(len, said))
    for one, other in list(zip(said, heard, strict=True))[:6]:
        print(f"said {' '.join(map(str, one)):14} heard {' '.join(map(str, other))}")
    return {"wrong digits": wrong / total}
