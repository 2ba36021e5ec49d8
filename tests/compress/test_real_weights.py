"""Weights that others trained: a detector of speech (the package `silero-vad`) in int8."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import functional, nn
from genesis.compress import quantize, quantize_

pytestmark = pytest.mark.slow
RATE, CHUNK, CONTEXT = 16_000, 512, 64


class Detector(nn.Module):
    """The probability of speech in a chunk of sound, and the state for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, 128, bias=False)
        self.conv1, self.conv2 = nn.Conv1d(129, 128, 3, 1, 1), nn.Conv1d(128, 64, 3, 2, 1)
        self.conv3, self.conv4 = nn.Conv1d(64, 64, 3, 2, 1), nn.Conv1d(64, 128, 3, 1, 1)
        self.lstm_cell, self.final_conv = nn.LSTMCell(128, 128), nn.Conv1d(128, 1, 1)

    def forward(self, x: Any, state: Any) -> Any:
        x = self.stft_conv(functional.pad(x, (0, 64), "reflect")[:, None])
        x = genesis.sqrt(x[:, :129] ** 2 + x[:, 129:] ** 2)
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = genesis.relu(layer(x))
        h, c = self.lstm_cell(x[:, :, 0], state)
        return genesis.sigmoid(self.final_conv(genesis.relu(h)[:, :, None]))[:, 0, 0], (h, c)


def sound() -> Any:
    """Vowels with pauses and noise between them: a buzz through resonances, louder and softer."""
    rng, time = np.random.default_rng(0), np.arange(RATE) / RATE
    parts = []
    for formants in ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480)):
        pitch = 120 + 15 * np.sin(2 * np.pi * 3 * time)
        phase = 2 * np.pi * np.cumsum(pitch) / RATE
        voice = np.zeros_like(time)
        for k in range(1, 30):
            gain = sum(1 / (1 + ((k * 120 - f) / 90) ** 2) for f in formants)
            voice += gain * np.sin(k * phase) / k**0.5
        loudness = np.clip(np.sin(2 * np.pi * 4 * time), 0, None) ** 0.5
        parts += [0.06 * voice * loudness, np.zeros(RATE // 2)]
    whole = np.concatenate(parts)
    return (whole + 0.002 * rng.standard_normal(len(whole))).astype(np.float32)


@genesis.no_grad()
def probabilities(model: Detector, wave: Any) -> Any:
    wave = np.pad(wave, (CONTEXT, -len(wave) % CHUNK))
    state, found = (genesis.zeros(1, 128), genesis.zeros(1, 128)), []
    run = genesis.jit(lambda x, h, c: model(x, (h, c)))
    for begin in range(CONTEXT, len(wave), CHUNK):
        chunk = genesis.tensor(wave[None, begin - CONTEXT : begin + CHUNK])
        p, state = run(chunk, *state)
        found.append(float(p.item()))
    return np.array(found)


def test_a_detector_of_speech_decides_the_same_in_int8() -> None:
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package silero-vad")
    path = Path(spec.origin).parent / "data" / "silero_vad_16k.safetensors"
    model = Detector().eval()
    model.load_state_dict(genesis.load(path))
    wave = sound()
    before = probabilities(model, wave)
    assert (before > 0.5).sum() > 20 < (before < 0.5).sum()  # it hears something, and silence
    small = quantize_(copy.deepcopy(model), {"conv*": "int8", "stft_conv": "int8"})
    with genesis.no_grad():
        for name in ("weight_ih", "weight_hh"):
            weight = getattr(small.lstm_cell, name)
            weight.copy_(quantize(weight, "int8").dequantize())
    after = probabilities(small, wave)
    assert np.abs(after - before).max() <= 0.1
    assert ((after > 0.5) == (before > 0.5)).all()
