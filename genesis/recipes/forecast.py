"""What comes next, and how sure that is: forecasts with intervals that hold what they promise.

    genesis train forecast

A season within a season, a slow trend and noise that grows and shrinks. An LSTM and a transformer
say for each of the next twelve steps where the number will be with chances of 10, 50 and 90 %, by
the loss of quantiles. Such intervals are too narrow or too wide; a second set of series tells by
how much, step by step, and after that correction (conformal prediction; Romano et al., 2019) four
of five numbers must lie in an interval that says 80 %.
"""

from __future__ import annotations

import numpy as np

import genesis
from genesis import nn, optim
from genesis.tensor.tensor import Tensor

PAST, AHEAD = 48, 12
CHANCES = (0.1, 0.5, 0.9)
BATCH, WIDTH = 64, 32


def series(count: int, seed: int) -> Tensor:
    """Parts of curves: two seasons, a trend, and noise of varying strength."""
    rng = np.random.default_rng(seed)
    time = np.arange(PAST + AHEAD) + rng.integers(0, 1000, (count, 1))
    phase = rng.uniform(0, 2 * np.pi, (count, 1))
    long = np.sin(2 * np.pi * time / 24 + phase)
    short = 0.5 * np.sin(2 * np.pi * time / 6 + 2 * phase)
    trend = rng.normal(0, 0.01, (count, 1)) * np.arange(PAST + AHEAD)
    noise = rng.normal(size=time.shape) * (0.15 + 0.1 * np.sin(2 * np.pi * time / 24))
    return genesis.tensor((long + short + trend + noise).astype(np.float32))


def last_season(past: Tensor) -> Tensor:
    """The numbers a season before those that are asked for; networks say how these differ."""
    return past[:, PAST - 24 : PAST - 24 + AHEAD]


class LSTM(nn.Module):
    """A memory that has gone through the past."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(1, WIDTH, batch_first=True)
        self.leave = nn.Linear(WIDTH, AHEAD * len(CHANCES))

    def forward(self, past: Tensor) -> Tensor:
        """``(batch, past)`` to quantiles, ``(batch, ahead, chances)``."""
        states, _ = self.memory(past[:, :, None])
        apart = self.leave(states[:, -1]).view(-1, AHEAD, len(CHANCES))
        found: Tensor = last_season(past)[..., None] + apart
        return found


class Transformer(nn.Module):
    """Attention over the past, in patches of a few steps."""

    PATCH = 4

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(self.PATCH, WIDTH)
        self.place = nn.Parameter(0.02 * genesis.randn(PAST // self.PATCH, WIDTH))
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.leave = nn.Linear(WIDTH * (PAST // self.PATCH), AHEAD * len(CHANCES))

    def forward(self, past: Tensor) -> Tensor:
        """``(batch, past)`` to quantiles, ``(batch, ahead, chances)``."""
        x = self.enter(past.view(-1, PAST // self.PATCH, self.PATCH)) + self.place
        apart = self.leave(self.layer(x).flatten(1)).view(-1, AHEAD, len(CHANCES))
        found: Tensor = last_season(past)[..., None] + apart
        return found


def pinball(found: Tensor, truth: Tensor) -> Tensor:
    """The loss that is least where a number is exceeded with the chance it promises."""
    over = truth[..., None] - found
    chances = genesis.tensor(CHANCES)
    loss: Tensor = genesis.maximum(chances * over, (chances - 1) * over).mean()
    return loss


def corrections(found: Tensor, truth: Tensor) -> Tensor:
    """By how much to widen the interval of every step, so that it would have held 80 % here."""
    outside = genesis.maximum(found[..., 0] - truth, truth - found[..., 2])
    level = min(1.0, (CHANCES[2] - CHANCES[0]) * (1 + 1 / len(truth)))
    widths: Tensor = outside.quantile(level, dim=0)
    return widths


def train(steps: int = 400, seed: int = 0) -> dict[str, float]:
    """Train both; errors against repeating the last season, and what the intervals hold."""
    data, tuning, trial = series(2048, seed), series(512, seed + 1), series(512, seed + 2)
    seen, truth = trial[:, :PAST], trial[:, PAST:]
    results = {"last season": (last_season(seen) - truth).abs().mean().item()}
    for name, kind in (("LSTM", LSTM), ("transformer", Transformer)):
        genesis.manual_seed(seed)
        model = kind()
        optimizer = optim.AdamW(model.parameters(), lr=4e-3)
        schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)

        @genesis.jit
        def step(model: nn.Module = model, optimizer: optim.AdamW = optimizer) -> Tensor:
            chosen = data[genesis.randint(0, len(data), (BATCH,))]
            loss = pinball(model(chosen[:, :PAST]), chosen[:, PAST:])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        for _ in range(steps):
            step()
            schedule.step()
        with genesis.no_grad():
            wider = corrections(model(tuning[:, :PAST]), tuning[:, PAST:])
            found = model(seen)
        low, high = found[..., 0] - wider, found[..., 2] + wider
        results[f"{name} error"] = (found[..., 1] - truth).abs().mean().item()
        held = ((truth >= low) & (truth <= high)).float()
        results[f"{name} held"] = held.mean().item()
        results[f"{name} held at the worst step"] = held.mean(0).min().item()
        print(f"{name}: error {results[f'{name} error']:.3f}, {results[f'{name} held']:.1%} held")
    show(seen[0], truth[0], low[0], high[0])
    return results


def show(past: Tensor, truth: Tensor, low: Tensor, high: Tensor) -> None:
    """The end of a series, and what was said of it: the interval, and the number."""

    def place(x: float) -> int:
        return min(59, max(0, int((x + 2) * 15)))

    for x in past[-12:].tolist():
        print(" " * place(x) + "*")
    for x, a, b in zip(truth.tolist(), low.tolist(), high.tolist(), strict=True):
        line = [" "] * 60
        line[place(a) : place(b) + 1] = "-" * (place(b) + 1 - place(a))
        line[place(x)] = "*"
        print("".join(line).rstrip())
