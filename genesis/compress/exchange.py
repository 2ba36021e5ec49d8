"""Quantised models as files of others: GPTQ's and AWQ's, beside a `config.json` that says so.

Every code, zero and scale is written as it is. A matrix (rows, k) lies transposed there: words of
32 bits along k (GPTQ) or along the rows (AWQ), zeros and scales for every group of k.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import genesis
from genesis import nn
from genesis.compress.modules import QuantizedLinear
from genesis.store import replace_file

#: Column of the k-th of 8 codes that AWQ packs into a word.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def save_quantized(
    model: nn.Module, folder: str | Path, method: str = "gptq",
    config: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write a model whose linear layers are quantised as a checkpoint of GPTQ or AWQ.

    All of them have one format: integers in groups, with or without zeros (``"uint4/128"``), of 2,
    3, 4 or 8 bits for GPTQ and of 4 for AWQ. `config` is written beside what says how they lie.

    >>> import tempfile
    >>> from genesis.compress import quantize_
    >>> from genesis.weights import open_weights
    >>> model = quantize_(nn.Sequential(nn.Linear(128, 64)), "uint4/64")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_quantized(model, folder)
    ...     sorted(open_weights(folder))
    ['0.bias', '0.weight']
    """
    if method not in ("gptq", "awq"):
        raise ValueError(f"save_quantized: methods are gptq and awq, not {method!r}")
    layers = {n: m for n, m in model.named_modules() if isinstance(m, QuantizedLinear)}
    if not layers:
        raise ValueError(f"save_quantized: {type(model).__name__} has no quantised linear layers")
    parts = {name: _parts(name, layer, method) for name, layer in layers.items()}
    kinds = {(layer.format.bits, layer.format.group) for layer in layers.values()}
    if len(kinds) > 1:
        raise ValueError(f"save_quantized: layers have several formats (bits, group): {kinds}")
    ((bits, group),) = kinds
    # The first version of GPTQ's files holds zeros less one, so it has none that is 0.
    later = method == "gptq" and all(zero.min() > 0 for _, zero, _ in parts.values())
    state = {
        name: x
        for name, x in model.state_dict().items()
        if name.rpartition(".")[0] not in layers or name.endswith(".bias")
    }
    for name, (codes, zero, scale) in parts.items():
        state |= {f"{name}.scales": genesis.tensor(np.ascontiguousarray(scale.T))}
        words = _gptq(codes, zero - later, bits) if method == "gptq" else _awq(codes, zero)
        if method == "gptq":
            words["g_idx"] = np.arange(codes.shape[1], dtype=np.int32) // group
        state |= {f"{name}.{n}": genesis.tensor(np.ascontiguousarray(x)) for n, x in words.items()}
    said: dict[str, Any] = {"quant_method": method, "bits": bits, "group_size": group}
    if method == "gptq":
        version = "gptq" if later else "gptq_v2"
        said |= {"desc_act": False, "sym": False, "checkpoint_format": version}
    else:
        said |= {"zero_point": True, "version": "gemm"}
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    genesis.save(state, place / "model.safetensors")
    text = json.dumps({**(config or {}), "quantization_config": said}, indent=2)
    replace_file(place / "config.json", text.encode())


def _parts(name: str, layer: QuantizedLinear, method: str) -> tuple[Any, Any, Any]:
    """The codes (rows, k), zeros and scales (rows, groups) of a layer, which the files can hold."""
    try:
        codes, zero, scale = (x.numpy() for x in layer.weight.parts())
    except ValueError as error:
        raise ValueError(f"save_quantized: {name!r}: {error}") from None
    rows, k = layer.shape
    bits, group = layer.format.bits, layer.format.group
    if bits not in ((2, 3, 4, 8) if method == "gptq" else (4,)):
        raise ValueError(f"save_quantized: {method} has no integers of {bits} bits ({name!r})")
    if rows % 32 or k % max(32, group):
        raise ValueError(
            f"save_quantized: {name!r} of {layer.shape} is no multiple of 32 rows and whole groups"
        )
    half = scale.astype(np.float16)
    if not np.array_equal(half.astype(np.float32), scale):
        raise ValueError(f"save_quantized: {name!r} has scales that are no float16")
    return codes[:, :k].astype(np.int64), zero[:, : k // group].astype(np.int64), half


def _gptq(codes: Any, zero: Any, bits: int) -> dict[str, Any]:
    return {"qweight": _words(codes, bits).T, "qzeros": _words(zero.T, bits)}


def _awq(codes: Any, zero: Any) -> dict[str, Any]:
    def interleaved(x: Any) -> Any:
        x = x.T.reshape(x.shape[1], -1, 8)[:, :, list(AWQ_ORDER)]
        return _words(x.reshape(len(x), -1), 4)

    return {"qweight": interleaved(codes), "qzeros": interleaved(zero)}


def _words(codes: Any, bits: int) -> Any:
    """Rows of integers of few bits as 32-bit words, the first in the lowest bits."""
    planes = codes[..., None] >> np.arange(bits) & 1
    octets = np.packbits(planes.astype(np.uint8).reshape(len(codes), -1), 1, "little")
    return np.ascontiguousarray(octets).view(np.int32)


__all__ = ["AWQ_ORDER", "save_quantized"]
