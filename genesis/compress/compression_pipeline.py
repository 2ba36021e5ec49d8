"""`shrink`: from a trained model to a smaller one, step by step, with a report of measurements.

Steps are folding (norms into the layers before them), pruning (channels out of shapes), recovering
(some training, by the scores of the model as it was), and quantising. A preset says how far each
goes for a class of devices. `delta` and `apply_delta` are updates of what was shipped.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import genesis
from genesis import nn
from genesis.autograd import no_grad
from genesis.compress.channels import remove_channels_
from genesis.compress.fold_norms import fold_
from genesis.compress.format import named
from genesis.compress.plan import measured_time
from genesis.compress.quantized_layers import MADE, described_format, quantize_
from genesis.compress.quantized_tensor import QuantizedTensor
from genesis.compress.training import distillation
from genesis.serialization import BadFile
from genesis.weights.checkpoint_reader import open_weights


@dataclass(frozen=True)
class Preset:
    """How far each step goes."""

    #: The share of channels that stay.
    channels: float = 1.0
    #: The format of linear layers, and of convolutions; None leaves them.
    linear: str | None = "int8"
    convolution: str | None = None
    algorithm: str = "nearest"
    #: Steps of training after pruning.
    recover: int = 0
    #: Whether layers are quantised even where that makes them slower.
    bytes_first: bool = False


#: By classes of devices: speed where there is memory, bytes where there is little.
PRESETS = {
    "server": Preset(),
    "laptop": Preset(linear="int4/64", algorithm="gptq"),
    "phone": Preset(channels=0.75, linear="int4/64", convolution="int8/row", algorithm="gptq",
                    recover=150, bytes_first=True),
    "tiny": Preset(channels=0.5, linear="int4", convolution="int4/row", algorithm="gptq",
                   recover=200, bytes_first=True),
}  # fmt: skip


@dataclass
class ShrinkReport:
    """What a model was before and after every step; all numbers are measured."""

    rows: list[tuple[str, int, float, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{'step':<12}{'bytes':>10}{'score':>10}{'ms':>10}"]
        for name, size, score, seconds in self.rows:
            lines.append(f"{name:<12}{size:>10}{score:>10.4f}{1000 * seconds:>10.3f}")
        return "\n".join(lines + self.notes)


def shrink(
    model: nn.Module, data: Sequence[Any], evaluate: Callable[[nn.Module], float],
    preset: str | Preset = "server",
) -> tuple[nn.Module, ShrinkReport]:  # fmt: skip
    """A smaller model than this one, which stays as it is, and a report.

    `data` are inputs, such as the model is to be used with; `evaluate` gives a score of a model.
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"shrink: the presets are {', '.join(PRESETS)}, not {preset!r}")
        preset = PRESETS[preset]
    if not data:
        raise ValueError("shrink: needs some data")
    teacher, small, report = model.eval(), copy.deepcopy(model).eval(), ShrinkReport()

    def note(name: str) -> None:
        report.rows.append((name, model_bytes(small), evaluate(small), latency(small, data[0])))

    note("as it was")
    fold_(small, data[0])
    note("folded")
    if preset.channels < 1:
        remove_channels_(small, data[0], preset.channels)
        note("pruned")
    if preset.recover:
        recover_(small, teacher, data, preset.recover)
        note("recovered")
    formats, kept = _formats(small, preset)
    report.notes += [f"{name} stays as it is: {preset.linear} is slower" for name in kept]
    if formats:
        algorithm = preset.algorithm
        quantize_(small, formats, None, algorithm, None if algorithm == "nearest" else data)
        note("quantised")
    return small, report


def _formats(model: nn.Module, preset: Preset) -> tuple[dict[str, str | None], list[str]]:
    """Formats by layers, and the layers that would become slower."""
    formats: dict[str, str | None] = {}
    kept = []
    for name, layer in model.named_modules():
        own = {nn.Linear: preset.linear, nn.Conv2d: preset.convolution}.get(type(layer))
        if own is None or getattr(layer, "groups", 1) != 1:
            continue
        if not preset.bytes_first and type(layer) is nn.Linear and _slower(layer, own):
            kept.append(name)
        else:
            formats[name] = own
    return formats, kept


def _slower(layer: nn.Linear, format: str) -> bool:
    return measured_time(layer, named(format, "shrink")) > measured_time(layer, None)


def model_bytes(model: nn.Module) -> int:
    """The bytes of what a model's state holds, scales and all; of shared tensors once."""
    held = {x.data_ptr(): int(x.nbytes) for x in model.state_dict().values()}
    return sum(held.values())


@no_grad()
def latency(model: nn.Module, x: Any) -> float:
    """The seconds of processor time that a call takes, at best."""
    run, best = genesis.jit(lambda x: model(x)), np.inf
    for number in range(8):
        begin = time.process_time()
        run(x).numpy()
        best = min(best, time.process_time() - begin) if number > 2 else best
    return float(best)


def recover_(
    model: nn.Module, teacher: nn.Module, data: Sequence[Any], steps: int, rate: float = 3e-3
) -> nn.Module:
    """Train a model some steps to give the scores that a teacher gives, in place.

    The learning rate falls to zero; it is halved when the loss rises, and never raised.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = genesis.optim.AdamW(parameters, lr=rate, weight_decay=0.0)

    @genesis.jit
    def step(x: Any) -> Any:
        with no_grad():
            wanted = teacher(x)
        optimizer.zero_grad()
        loss = distillation(model(x), wanted)
        loss.backward()
        optimizer.step()
        return loss

    model.train()
    recent, share = np.inf, 1.0
    for number in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * share * (1 - number / steps)
        value = float(step(data[number % len(data)]).item())
        share = share / 2 if value > 4 * recent else share
        recent = value if recent == np.inf else 0.9 * recent + 0.1 * value
    return model.eval()


@no_grad()
def restored(model: nn.Module, state: Mapping[str, Any]) -> nn.Module:
    """A model whose layers are made as those of a state are, and which has that state, in place.

    The model is as it was before `shrink`, the state that of what `shrink` gave.
    """
    modules: dict[str, Any] = dict(model.named_modules())
    for name, layer in modules.items():
        parent, _, last = name.rpartition(".")
        if f"{name}.layout" in state and type(layer) in MADE:
            shape, format = described_format(state[f"{name}.layout"].numpy())
            weight = QuantizedTensor(state[f"{name}.values"], shape, format)
            if f"{name}.bias" in state:
                layer.bias = nn.Parameter(state[f"{name}.bias"])
            setattr(modules[parent], last, MADE[type(layer)](layer, weight))
        elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and f"{name}.weight" not in state:
            setattr(modules[parent], last, nn.Identity())
        else:
            for own in ("weight", "bias"):
                if f"{name}.{own}" in state and getattr(layer, own, None) is not None:
                    setattr(layer, own, nn.Parameter(state[f"{name}.{own}"]))
    model.load_state_dict(state)
    return model


# ---- updates


def _digest(array: Any) -> str:
    x = np.ascontiguousarray(array)
    return sha256(f"{x.dtype} {x.shape} ".encode() + x.tobytes()).hexdigest()


def _arrays(path: str | Path) -> dict[str, Any]:
    weights = open_weights(path)
    return {name: np.asarray(weights.read(name)) for name in weights}


def delta(old: str | Path, new: str | Path, target: str | Path) -> int:
    """Write what a file of weights has that another has not; the number of such tensors.

    What both have, if under another name, is named by its content.
    """
    before, after = _arrays(old), _arrays(new)
    known = {_digest(x) for x in before.values()}
    digests = {name: _digest(x) for name, x in after.items()}
    fresh = {d: after[n] for n, d in digests.items() if d not in known}
    tensors = {d: genesis.tensor(x) for d, x in fresh.items()}
    genesis.save({"tensors": tensors, "names": json.dumps(digests)}, target)
    return len(fresh)


def apply_delta(old: str | Path, update: str | Path, target: str | Path) -> None:
    """Write the file that an update was made for, if every tensor is there and right."""
    state = genesis.load(update)
    if not isinstance(state, Mapping) or set(state) != {"tensors", "names"}:
        raise BadFile(f"apply_delta: {update} is no update")
    digests = json.loads(state["names"])
    there = {_digest(x): x for x in _arrays(old).values()}
    there |= {d: x.numpy() for d, x in state["tensors"].items()}
    made = {}
    for name, wanted in digests.items():
        if wanted not in there or _digest(there[wanted]) != wanted:
            raise BadFile(f"apply_delta: {name!r} is neither in {old} nor in {update}")
        made[name] = genesis.tensor(np.array(there[wanted]))
    genesis.save(made, target)


__all__ = [
    "PRESETS", "Preset", "ShrinkReport", "apply_delta", "delta", "latency", "model_bytes",
    "recover_", "restored", "shrink",
]  # fmt: skip
