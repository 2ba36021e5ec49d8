"""Passes for quantised models: products of bytes where they were products of floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from genesis.compress import Codes, Format, Integer, from_codes
from genesis.compress.int8_products import packed_by_numpy
from genesis.onnx.graph import Graph, GraphBuilder, NodeStep
from genesis.onnx.registry import find
from genesis.onnx.text_codes import MOVES

_MS = "com.microsoft"
#: Filters that are too few for a block of them.
FEW = 16
#: Products of numbers of nine bits whose sums floats hold exactly.
EXACT = (1 << 24) // (255 * 255)
#: Products whose factors may be quantised, and what computes them of bytes then.
_PRODUCTS = {"Conv": "QuantizedConv", "MatMul": "QuantizedMatMul", "Gemm": "QuantizedGemm"}
#: Of a Gemm: by what its product and its bias are multiplied.
_FACTORS = "alpha", "beta"


def drop_roundings(graph: Graph, _: GraphBuilder) -> None:
    """What is moved after it was dequantised is not rounded again to what it is already.

    A whole number times a scale, divided by the scale, is nearest to that number. Products still
    take bytes.
    """
    grids: dict[str, Any] = {}  # how numbers are scaled that are whole numbers times a scale
    rounded: dict[str, tuple[str, Any]] = {}  # what bytes were made of, and how
    same: dict[str, str] = {}
    for step in graph.steps:
        if step.kind not in _PRODUCTS:
            step.inputs = tuple(same.get(n, n) for n in step.inputs)
        how = _scale(graph, step)
        if how is not None and step.kind == "QuantizeLinear":
            rounded[step.outputs[0]] = step.inputs[0], how
        elif how is not None and step.kind == "DequantizeLinear":
            grids[step.outputs[0]] = how
            source, by = rounded.get(step.inputs[0], ("", None))
            if by == how == grids.get(source):
                same[step.outputs[0]] = source
        elif not step.domain and step.kind in MOVES:
            places: Sequence[int] = MOVES[step.kind] or range(len(step.inputs))
            alike = {grids.get(n) for k, n in enumerate(step.inputs) if k in places}
            if len(alike) == 1 and None not in alike:
                grids.update(dict.fromkeys(step.outputs, alike.pop()))


def _scale(graph: Graph, step: NodeStep) -> tuple[Any, ...] | None:
    """One scale and zero point for all numbers, known beforehand; None if it is another kind."""
    names = [n for n in step.inputs[1:3] if n]
    if step.kind not in ("QuantizeLinear", "DequantizeLinear"):
        return None
    if step.domain not in ("", _MS) or not all(_is_fixed(graph, n) for n in names):
        return None
    if len(names) < 2 or any(graph.constants[n].size != 1 for n in names):
        return None
    scale, zero = (graph.constants[n] for n in names)
    whole = zero.dtype in (np.int8, np.uint8, np.int16, np.uint16)
    if scale.dtype != np.float32 or not whole or not 1e-30 < scale.item() < 1e30:
        return None
    return scale.item(), zero.item(), zero.dtype


def fuse_quantized(graph: Graph, _: GraphBuilder) -> None:
    """Products of numbers that were bytes, of the bytes: a kernel of theirs, with a scale after it.

    What quantises the result is computed along with it anyway.
    """
    makers = {step.outputs[0]: step for step in graph.steps if step.kind == "DequantizeLinear"}
    for step in graph.steps:
        found = [makers.get(n) for n in step.inputs[:2]]
        if step.kind in _PRODUCTS and not step.domain and _are_bytes(graph, step, found):
            parts = [n for maker in found if maker for n in (*maker.inputs, "")[:3]]
            step.inputs = (*parts, *step.inputs[2:])
            step.kind, step.domain = _PRODUCTS[step.kind], "genesis"
            step.operator, step.host = find("genesis", step.kind, 1), None


def _are_bytes(graph: Graph, step: NodeStep, found: list[NodeStep | None]) -> bool:
    """Whether both factors are bytes with a scale for all, or of weights for every filter."""
    if any(maker is None for maker in found):
        return False
    x, w = (maker for maker in found if maker is not None)
    weight, scale, shift = (graph.constants.get(n) for n in (*w.inputs, "")[:3])
    scales = [graph.constants.get(n) for n in x.inputs[1:]]
    if weight is None or scale is None or any(s is None or s.size != 1 for s in scales):
        return False
    turned = step.kind == "Gemm" and step.options.get("transB", 0)
    axis = 0 if step.kind == "Conv" or turned else weight.ndim - 1
    if step.options.get("transA", 0) or {step.options.get(n, 1.0) for n in _FACTORS} != {1.0}:
        return False
    along = scale.size == 1 or w.options.get("axis", 1) % weight.ndim == axis
    given = graph.inputs  # constants that callers may replace
    fixed = not any(n in given for n in (*w.inputs, *x.inputs[1:]))
    sizes = weight.ndim == 4 or (step.kind in ("MatMul", "Gemm") and weight.ndim == 2)
    shifts = [v.dtype for v in (*scales[1:], shift) if v is not None]
    narrow = all(d in (np.int8, np.uint8) for d in (weight.dtype, *shifts)) and len(scales) == 2
    return bool(along and fixed and sizes and narrow and scale.dtype == np.float32)


def pack_weights(graph: Graph, _: GraphBuilder) -> None:
    """Matrices of a few bits in the order in which kernels read them, where bytes may be summed."""
    for step in graph.steps:
        if step.kind == "MatMulNBits" and step.options.get("accuracy_level") == 4:
            weight = packed_bits(graph, step)
            if weight is not None:
                bias = step.inputs[5] if len(step.inputs) > 5 else ""
                step.kind, step.domain = "PackedMatMul", "genesis"
                step.inputs, step.options = (step.inputs[0], bias), {"weight": weight}
                step.operator = find("genesis", "PackedMatMul", 1)


def packed_bits(graph: Graph, step: NodeStep) -> Any:
    """The matrix of a MatMulNBits, packed; None if it is not known or of another kind."""
    given = [n for n in step.inputs[1:4] if n]
    fixed = all(_is_fixed(graph, n) for n in given) and len(given) >= 2
    if not fixed or any(step.inputs[4:5]):  # or columns are in another order
        return None
    numbers, scales, *more = (graph.constants[n] for n in given)
    shifted = bool(more)
    if shifted and more[0].dtype != np.uint8:
        return None
    bits, block = step.options.get("bits", 4), step.options.get("block_size", 32)
    rows, k = step.options["N"], step.options["K"]
    blocks = -(-k // block)
    if bits not in (4, 8) or numbers.size * 8 != rows * blocks * block * bits:
        return None
    format = Format("nbits", Integer(bits, 0 if shifted else 1 << (bits - 1)), block, "float32", 8)
    format = format if shifted else replace(format, zero=0)
    codes = apart(numbers.reshape(rows, -1), bits)
    zero = apart(more[0].reshape(rows, -1), bits)[:, :blocks] if shifted else None
    scale = scales.astype(np.float32).reshape(rows, blocks)
    return from_codes(Codes(format, codes, scale, zero), k)


def apart(numbers: Any, bits: int) -> Any:
    """Numbers of 4 or 8 bits, each in a byte."""
    if bits == 8:
        return numbers
    return np.stack([numbers & 15, numbers >> 4], -1).reshape(*numbers.shape[:-1], -1)


#: Of operators on bytes: which inputs the weights are, and their zero point.
_WEIGHTS = {
    "MatMulInteger": (1, 3), "MatMulIntegerToFloat": (1, 5),
    "QLinearMatMul": (3, 5), "DynamicQuantizeMatMul": (1, 3), "DynamicQuantizeLSTM": (1, 9),
    "QuantizedMatMul": (3, 5), "QuantizedGemm": (3, 5), "QGemm": (3, 5),
}  # fmt: skip


#: Of products of matrices of bytes whose weights are their fourth input: how many others they have.
_SUMMED = {("genesis", "QuantizedMatMul"): 6, ("genesis", "QuantizedGemm"): 7, (_MS, "QGemm"): 9}


def turn_weights(graph: Graph, _: GraphBuilder) -> None:
    """Weights that a product takes transposed, as the columns that it multiplies by."""
    for step in graph.steps:
        ours = (step.domain, step.kind) in _SUMMED and step.options.get("transB")
        if ours and _is_fixed(graph, step.inputs[3]):
            name = f"{step.inputs[3]}.turned"
            turned = np.ascontiguousarray(graph.constants[step.inputs[3]].T)
            graph.constants.setdefault(name, turned)
            _rename(step, {3: name})
            step.options = {**step.options, "transB": 0}


def sign_weights(graph: Graph, _: GraphBuilder) -> None:
    """Bytes of weights with a sign, and zero points that fit: what instructions multiply."""
    for step in graph.steps:
        pairs = [_WEIGHTS[step.kind]] if step.kind in _WEIGHTS else []
        pairs += [(2, 11)] if step.kind == "DynamicQuantizeLSTM" else []
        for place, zero in pairs:
            names = [step.inputs[k] if k < len(step.inputs) else "" for k in (place, zero)]
            values = [graph.constants[n] for n in names if n and _is_fixed(graph, n)]
            if len(values) == 2 and all(v.dtype == np.uint8 for v in values):
                signed = [f"{n}.signed" for n in names]
                for name, value in zip(signed, values, strict=True):
                    flipped = np.asarray(value ^ np.uint8(0x80))
                    graph.constants.setdefault(name, flipped.view(np.int8))
                _rename(step, {place: signed[0], zero: signed[1]})
            needed = step.kind.startswith("QLinear") or step.kind == "DynamicQuantizeLSTM"
            if not needed and zero < len(step.inputs):
                name = step.inputs[zero]
                if _is_fixed(graph, name) and not graph.constants[name].any():
                    _rename(step, {zero: ""})


def _is_fixed(graph: Graph, name: str) -> bool:
    """Whether a name is a constant that callers cannot replace."""
    return name in graph.constants and name not in graph.inputs


def _rename(step: NodeStep, names: dict[int, str]) -> None:
    step.inputs = tuple(names.get(k, n) for k, n in enumerate(step.inputs))


def sum_weights(graph: Graph, _: GraphBuilder) -> None:
    """The sums of weights that zero points of what they multiply need, computed beforehand."""
    for step in graph.steps:
        place = _SUMMED.get((step.domain, step.kind), 0)
        if place and not step.options.get("transB") and _is_fixed(graph, step.inputs[3]):
            name = f"{step.inputs[3]}.sums"
            graph.constants[name] = graph.constants[step.inputs[3]].sum(0, dtype=np.int32)
            step.inputs = (*(*step.inputs, *("",) * place)[:place], name)


#: Of convolutions of bytes: which inputs the filters are, and how many they have.
_FILTERS = {
    ("", "ConvInteger"): (1, 4), ("", "QLinearConv"): (3, 9), ("genesis", "QuantizedConv"): (3, 7)
}  # fmt: skip


def lay_filters(graph: Graph, _: GraphBuilder) -> None:
    """Filters of bytes as they are multiplied, and their sums, which zero points need."""
    for step in graph.steps:
        if (step.domain, step.kind) not in _FILTERS:
            continue
        place, count = _FILTERS[step.domain, step.kind]
        names = (*step.inputs, *("",) * count)[:count]
        zero = names[place + 2]
        if not all(_is_fixed(graph, n) for n in (names[place], zero) if n):
            continue
        weight = graph.constants[names[place]]
        shift = graph.constants[zero] if zero else weight.dtype.type(0)
        found = _laid(weight, shift.astype(np.int16), step.options.get("group", 1))
        if found is None:
            continue
        given = [f"{names[place]}.{zero}.{part}" for part in ("laid", "zero", "sums")]
        given = [n if value is not None else "" for n, value in zip(given, found, strict=True)]
        graph.constants.update((n, v) for n, v in zip(given, found, strict=True) if n)
        replaced = {place: given[0], place + 2: given[1]}
        step.inputs = (*(replaced.get(k, n) for k, n in enumerate(names)), given[2])
        step.options = {**step.options, "kernel_shape": list(weight.shape[2:])}
        step.kind, step.domain = f"Laid{step.kind}", "genesis"
        step.operator, step.host = find("genesis", step.kind, 1), None


def _laid(weight: Any, zero: Any, group: int) -> tuple[Any, Any, Any] | None:
    """Filters as they are multiplied, their zero point, if it is needed, and their sums."""
    if weight.dtype not in (np.int8, np.uint8) or weight.ndim < 3 or len(weight) < FEW:
        return None
    wide = weight.astype(np.int16)
    zero = zero.reshape(-1, *(1,) * (weight.ndim - 1))
    sums = (wide - zero).sum(tuple(range(1, weight.ndim)), dtype=np.int32)
    if group == len(weight) and weight.shape[1] == 1 and weight[0].size <= EXACT:
        return np.moveaxis((wide - zero)[:, 0], 0, -1).astype(np.float32), None, sums
    if group != 1:
        return None
    if weight.dtype == np.uint8:
        wide, zero = wide - 128, zero - 128
    if zero.any():
        wide = np.concatenate([wide, np.ones_like(wide[:1])])
    laid = packed_by_numpy(wide.astype(np.int8))
    return laid, zero.reshape(-1).astype(np.int32) if zero.any() else None, sums


#: What gives bytes, and may be told that they are an image.
_QUANTISING = {
    "QuantizeLinear", "DynamicQuantizeLinear", "QLinearAdd", "QLinearMul", "QLinearSigmoid",
    "QLinearLeakyRelu", "QLinearWhere", "QLinearConcat", "QLinearAveragePool",
    "QLinearGlobalAveragePool",
}  # fmt: skip
#: What takes and gives images, and what gives an image of images.
_OF_IMAGES = {
    "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "QuantizedConv",
    "ConvInteger", "QLinearConv", *(f"Laid{kind}" for _, kind in _FILTERS),
}  # fmt: skip
_ALIKE = _QUANTISING | {
    "Add", "Sub", "Mul", "Div", "Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid",
    "HardSwish", "Tanh", "DequantizeLinear", "Cast", "Concat", "Where",
}  # fmt: skip


def mark_images(graph: Graph, _: GraphBuilder) -> None:
    """Say of bytes that are images that they are: they lie with channels last then.

    Images are what convolutions take and give, and what is computed of them element by element.
    """
    images: set[str] = set()
    found = -1
    while found < len(images):
        found = len(images)
        for step in (*graph.steps, *reversed(graph.steps)):
            ends = {n for n in (*step.inputs, *step.outputs[:1]) if n not in graph.constants}
            if step.kind in _OF_IMAGES:
                images |= {step.inputs[0], step.outputs[0]}
            elif step.kind in _ALIKE and not images.isdisjoint(ends):
                images |= ends
    for step in graph.steps:
        if step.kind in _QUANTISING and step.outputs[0] in images:
            step.options = {**step.options, "image": 1}
