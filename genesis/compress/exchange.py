"""Quantised models as files of others: GPTQ's, AWQ's and those of compressed-tensors.

Every code, zero and scale is written as it is, beside a `config.json` that says so. A matrix
(rows, k) lies transposed in files of GPTQ and AWQ: words of 32 bits along k, or along the rows, and
zeros and scales for every group of k.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import genesis
from genesis import nn
from genesis.compress.format import Float, Format
from genesis.compress.quantized_layers import QuantizedLinear
from genesis.content_store import replace_file

#: Codes, zeros and scales of a matrix.
Parts = tuple[Any, Any, Any]
#: Column of the k-th of 8 codes that AWQ packs into a word.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
#: Formats of 4 bits that compressed-tensors has, and what it calls the way they are scaled.
_FOURS = {"NVFP4": "tensor_group", "MXFP4": "group"}


def save_quantized(
    model: nn.Module, folder: str | Path, method: str = "gptq",
    config: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write a model whose linear layers are quantised as a checkpoint of others.

    All of them have one format. For `method` ``gptq`` and ``awq`` that is integers in groups, with
    or without zeros (``"uint4/128"``), of 2, 3, 4 or 8 bits, for AWQ of 4. ``compressed-tensors``
    has those of 1 to 8 bits, floats of 8 bits with scales of rows (``"float8_e4m3fn/row"``), NVFP4
    and MXFP4.
    `config` is written beside what says how they lie.

    >>> import tempfile
    >>> from genesis.compress import quantize_
    >>> from genesis.weights import open_weights
    >>> model = quantize_(nn.Sequential(nn.Linear(128, 64)), "uint4/64")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_quantized(model, folder)
    ...     sorted(open_weights(folder))
    ['0.bias', '0.weight']
    """
    if method not in ("gptq", "awq", "compressed-tensors"):
        known = "gptq, awq and compressed-tensors"
        raise ValueError(f"save_quantized: methods are {known}, not {method!r}")
    layers = {n: m for n, m in model.named_modules() if isinstance(m, QuantizedLinear)}
    if not layers:
        raise ValueError(f"save_quantized: {type(model).__name__} has no quantised linear layers")
    parts = {name: _parts(name, layer, method) for name, layer in layers.items()}
    rows = method == "compressed-tensors" and all(
        x.format.group >= x.shape[1] for x in layers.values()
    )
    kinds = {(x.format.bits, "row" if rows else x.format.group) for x in layers.values()}
    if len(kinds) > 1:
        raise ValueError(f"save_quantized: layers have several formats (bits, group): {kinds}")
    state = {
        name: x
        for name, x in model.state_dict().items()
        if name.rpartition(".")[0] not in layers or name.endswith(".bias")
    }
    format = next(iter(layers.values())).format
    write = {"gptq": _gptq, "awq": _awq}.get(method, _compressed)
    if format.name in _FOURS:
        write = _fours
    said = {"quant_method": method, **write(state, parts, format)}
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    genesis.save(state, place / "model.safetensors")
    text = json.dumps({**(config or {}), "quantization_config": said}, indent=2)
    replace_file(place / "config.json", text.encode())


def _parts(name: str, layer: QuantizedLinear, method: str) -> Parts:
    """The codes (rows, k), zeros and scales (rows, groups) of a layer, which the files can hold."""
    if method == "compressed-tensors" and layer.format.name in _FOURS:
        found, scales, unit = layer.weight.scaled_codes()
        if found.shape[1] != layer.shape[1]:
            raise ValueError(f"save_quantized: {name!r} of {layer.shape} is no whole groups")
        return found.numpy().astype(np.uint8), unit, scales.numpy()
    try:
        codes, zero, scale = (x.numpy() for x in layer.weight.parts())
    except ValueError as error:
        raise ValueError(f"save_quantized: {name!r}: {error}") from None
    rows, k = layer.shape
    bits, group = layer.format.bits, layer.format.group
    floats = isinstance(layer.format.element, Float)
    known = {"gptq": (2, 3, 4, 8), "awq": (4,)}.get(method, range(1, 9))
    if bits not in known or (floats and (known != range(1, 9) or bits < 8)):
        kind = "floats" if floats else "integers"
        raise ValueError(f"save_quantized: {method} has no {kind} of {bits} bits ({name!r})")
    if floats and group < k:
        raise ValueError(f"save_quantized: {name!r}: scales of floats are those of rows")
    packed = method != "compressed-tensors"
    if (packed and rows % 32) or (k % max(32, group) and group < k):
        raise ValueError(
            f"save_quantized: {name!r} of {layer.shape} is no multiple of 32 rows and whole groups"
        )
    if packed:
        half = scale.astype(np.float16)
        if not np.array_equal(half.astype(np.float32), scale):
            raise ValueError(f"save_quantized: {name!r} has scales that are no float16")
        scale = half
    groups = -(-k // group)
    return codes[:, :k].astype(np.int64), zero[:, :groups].astype(np.int64), scale[:, :groups]


def _gptq(state: dict[str, Any], parts: dict[str, Parts], format: Format) -> dict[str, Any]:
    # The first version of GPTQ's files holds zeros less one, so it has none that is 0.
    later = all(zero.min() > 0 for _, zero, _ in parts.values())
    for name, (codes, zero, scale) in parts.items():
        state[f"{name}.qweight"] = _tensor(_words(codes, format.bits).T)
        state[f"{name}.qzeros"] = _tensor(_words((zero - later).T, format.bits))
        state[f"{name}.scales"] = _tensor(scale.T)
        state[f"{name}.g_idx"] = _tensor(np.arange(codes.shape[1], dtype=np.int32) // format.group)
    version = "gptq" if later else "gptq_v2"
    more = {"desc_act": False, "sym": False, "checkpoint_format": version}
    return {"bits": format.bits, "group_size": format.group, **more}


def _awq(state: dict[str, Any], parts: dict[str, Parts], format: Format) -> dict[str, Any]:
    def interleaved(x: Any) -> Any:
        x = x.T.reshape(x.shape[1], -1, 8)[:, :, list(AWQ_ORDER)]
        return _tensor(_words(x.reshape(len(x), -1), 4))

    for name, (codes, zero, scale) in parts.items():
        state[f"{name}.qweight"], state[f"{name}.qzeros"] = interleaved(codes), interleaved(zero)
        state[f"{name}.scales"] = _tensor(scale.T)
    return {"bits": 4, "group_size": format.group, "zero_point": True, "version": "gemm"}


def _compressed(state: dict[str, Any], parts: dict[str, Parts], format: Format) -> dict[str, Any]:
    floats, kind = isinstance(format.element, Float), getattr(genesis, str(format.scale))
    for name, (codes, zero, scale) in parts.items():
        state[f"{name}.weight_scale"] = _tensor(scale).to(kind)
        if floats:
            dtype = getattr(genesis, str(format.element.dtype))  # type: ignore[union-attr]
            state[f"{name}.weight"] = _tensor(codes.astype(np.uint8)).view(dtype)
            continue
        state[f"{name}.weight_packed"] = _tensor(_words(codes, format.bits))
        state[f"{name}.weight_shape"] = _tensor(np.array(codes.shape))
        if format.zero:
            state[f"{name}.weight_zero_point"] = _tensor(_words(zero.T, format.bits).T)
    whole = all(codes.shape[1] <= format.group for codes, _, _ in parts.values())
    weights = {
        "num_bits": format.bits, "type": "float" if floats else "int",
        "symmetric": not format.zero, "strategy": "channel" if whole else "group",
        "group_size": None if whole else format.group,
    }  # fmt: skip
    return _described("float-quantized" if floats else "pack-quantized", weights)


def _fours(state: dict[str, Any], parts: dict[str, Parts], format: Format) -> dict[str, Any]:
    """Floats of 4 bits, two in a byte, with scales of 8 bits and one for all, or powers of two."""
    strategy = _FOURS[format.name]
    for name, (codes, unit, scale) in parts.items():
        state[f"{name}.weight_packed"] = _tensor(codes[:, ::2] | codes[:, 1::2] << 4)
        if strategy == "group":
            powers = (np.frexp(scale)[1] + 127).astype(np.uint8)
            state[f"{name}.weight_scale"] = _tensor(powers)
            continue
        state[f"{name}.weight_scale"] = _tensor(scale).to(genesis.float8_e4m3fn)
        state[f"{name}.weight_global_scale"] = _tensor(np.array([1 / unit], np.float32))
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": strategy,
               "group_size": format.group}  # fmt: skip
    return _described(f"{format.name.lower()}-pack-quantized", weights)


def _described(format: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {
        "format": format, "quantization_status": "compressed", "ignore": [],
        "config_groups": groups,
    }  # fmt: skip


def _words(codes: Any, bits: int) -> Any:
    """Rows of integers of few bits as 32-bit words, the first in the lowest bits."""
    planes = codes[..., None] >> np.arange(bits) & 1
    octets = np.packbits(planes.astype(np.uint8).reshape(len(codes), -1), 1, "little")
    octets = np.pad(octets, ((0, 0), (0, -octets.shape[1] % 4)))
    return np.ascontiguousarray(octets).view(np.int32)


def _tensor(array: Any) -> Any:
    return genesis.tensor(np.ascontiguousarray(array))


__all__ = ["AWQ_ORDER", "save_quantized"]
