"""Graphs made smaller for inference: what is known beforehand is computed once.

Each pass takes a graph and changes it, and can be left out: `optimize(graph, passes=[..])`.
Parameters change with it, so it is for sessions, and not for models that are trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from genesis import no_grad
from genesis.compress import Codes, Format, Integer, from_codes
from genesis.ndarray.core.interop import realize
from genesis.onnx.graph import Builder, Graph, Step, note_last_uses, reads
from genesis.onnx.model import Model
from genesis.onnx.registry import find
from genesis.onnx.values import as_host, on_host
from genesis.tensor.tensor import Tensor

_LARGEST = 1 << 26  # elements of a constant that is computed beforehand
#: Operators that give something else each time.
_RANDOM = {
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
    "Multinomial", "Dropout",
}  # fmt: skip


def optimize(graph: Graph, builder: Builder, passes: Iterable[str] | None = None) -> None:
    """Apply passes, all of them if not told which, in order."""
    for name in PASSES if passes is None else passes:
        if name not in PASSES:
            raise ValueError(f"optimize: there is no pass {name!r}; there are {list(PASSES)}")
        PASSES[name](graph, builder)
    note_last_uses(graph)


def drop_copies(graph: Graph, _: Builder) -> None:
    """Without nodes that only hand on their input: Identity, and Dropout in inference."""
    renamed: dict[str, str] = {}
    outputs, kept = set(graph.outputs), []
    for step in graph.steps:
        step.inputs = tuple(renamed.get(n, n) for n in step.inputs)
        plain = step.kind == "Identity" or (step.kind == "Dropout" and len(step.inputs) == 1)
        alone = all(not n for n in step.outputs[1:])
        inner = any(step.outputs[0] in g.free() for s in graph.steps for g in s.subgraphs())
        if plain and not step.domain and alone and step.outputs[0] not in outputs and not inner:
            renamed[step.outputs[0]] = step.inputs[0]
        else:
            kept.append(step)
    graph.steps = kept


def fold_constants(graph: Graph, _: Builder) -> None:
    """Without nodes that NumPy computes of constants."""
    kept = []
    given = set(graph.inputs)
    for step in graph.steps:
        values = [graph.constants.get(n) if n and n not in given else None for n in step.inputs]
        known = step.inputs and all(
            v is not None or not n for n, v in zip(step.inputs, values, strict=True)
        )
        results = _folded(step, values) if known and step.host is not None else None
        if results is None:
            kept.append(step)
        else:
            graph.constants.update(zip(step.outputs, results, strict=False))
    graph.steps = kept


def _folded(step: Step, values: list[Any]) -> tuple[Any, ...] | None:
    """The results of a node, if they can be computed and are of a sensible size."""
    assert step.host is not None
    options = dict(step.options)
    if "outputs" in (step.host.__kwdefaults__ or ()):
        options["outputs"] = len(step.outputs)
    try:
        results = step.host(*values, **options)
    except Exception:  # it is reported when the node is reached
        return None
    found = results if isinstance(results, tuple) else (results,)
    small = all(isinstance(r, np.ndarray) and r.size <= _LARGEST for r in found)
    return found if small and all(on_host(r) for r in found) else None


def compute_constants(graph: Graph, builder: Builder) -> None:
    """Without other nodes that depend on constants alone: they are one program, which runs now."""
    known = {n for n in graph.constants if n not in graph.inputs} | {""}
    steps = []
    for step in graph.steps:
        fixed = step.inputs and known.issuperset(step.inputs) and step.kind not in _RANDOM
        if fixed and not any(True for _ in step.subgraphs()):
            steps.append(step)
            known.update(step.outputs)
    inner = set(steps)
    read = {n for step in graph.steps if step not in inner for n in reads(step)} | {*graph.outputs}
    wanted = tuple(n for step in steps for n in step.outputs if n in read and n)
    if not wanted:
        return
    part = Graph("constants", (), wanted, steps, graph.constants)
    drop_unused(part, builder)
    note_last_uses(part)
    found = _computed(part, builder)
    graph.constants.update(found)
    graph.steps = [step for step in graph.steps if not found.keys() & {*step.outputs}]


def _computed(part: Graph, builder: Builder) -> dict[str, Any]:
    """The outputs of a graph without inputs, those of a sensible size."""
    try:
        with no_grad():
            results = zip(part.outputs, Model(part, builder).execute({}), strict=True)
            small = {n: x for n, x in results if isinstance(x, Tensor) and x.numel() <= _LARGEST}
            realize(*(x.array for x in small.values()))
            found = {n: np.array(as_host(x)) for n, x in small.items()}
    except Exception:  # it is reported when the node is reached
        return {}
    whole = [step for step in part.steps if all(n in found for n in step.outputs if n)]
    return {n: found[n] for step in whole for n in step.outputs if n}


def fold_batch_norms(graph: Graph, _: Builder) -> None:
    """Batch norms after convolutions as part of these."""
    uses = Counter(n for step in graph.steps for n in reads(step)) + Counter(graph.outputs)
    makers = {step.outputs[0]: step for step in graph.steps if step.outputs}
    kept = []
    for step in graph.steps:
        conv = makers.get(step.inputs[0]) if step.inputs else None
        if _foldable(graph, step, conv, uses):
            assert conv is not None
            _fold(graph, step, conv)
        else:
            kept.append(step)
    graph.steps = kept


def _foldable(graph: Graph, step: Step, conv: Step | None, uses: Counter[str]) -> bool:
    names = [*step.inputs[1:5], *(conv.inputs[1:] if conv is not None else ())]
    return (
        step.kind == "BatchNormalization" and not step.domain and conv is not None
        and conv.kind == "Conv" and not conv.domain and uses[conv.outputs[0]] == 1
        and not step.options.get("training_mode") and step.options.get("spatial", 1) == 1
        and all(n in graph.constants and n not in graph.inputs for n in names)
        and all(not n for n in step.outputs[1:])
        and graph.constants[conv.inputs[1]].dtype.kind == "f"
    )  # fmt: skip


def _fold(graph: Graph, step: Step, conv: Step) -> None:
    scale, bias, mean, var = (graph.constants[n].astype(np.float64) for n in step.inputs[1:5])
    weight = graph.constants[conv.inputs[1]]
    factor = scale / np.sqrt(var + step.options.get("epsilon", 1e-5))
    first = graph.constants[conv.inputs[2]].astype(np.float64) if len(conv.inputs) > 2 else 0.0
    names = (f"{step.name}.weight", f"{step.name}.bias")
    wide = factor.reshape(-1, *(1,) * (weight.ndim - 1))
    graph.constants[names[0]] = (weight * wide).astype(weight.dtype)
    graph.constants[names[1]] = ((first - mean) * factor + bias).astype(weight.dtype)
    conv.inputs = (conv.inputs[0], *names)
    conv.outputs = step.outputs


#: Products whose factors may be quantised, and what computes them of bytes then.
_PRODUCTS = {"Conv": "QuantizedConv", "MatMul": "QuantizedMatMul"}


def fuse_quantized(graph: Graph, _: Builder) -> None:
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


def _are_bytes(graph: Graph, step: Step, found: list[Step | None]) -> bool:
    """Whether both factors are bytes with a scale for all, or of weights for every filter."""
    if any(maker is None for maker in found):
        return False
    x, w = (maker for maker in found if maker is not None)
    weight, scale, shift = (graph.constants.get(n) for n in (*w.inputs, "")[:3])
    scales = [graph.constants.get(n) for n in x.inputs[1:]]
    if weight is None or scale is None or any(s is None or s.size != 1 for s in scales):
        return False
    axis = 0 if step.kind == "Conv" else weight.ndim - 1
    along = scale.size == 1 or w.options.get("axis", 1) % weight.ndim == axis
    given = graph.inputs  # constants that callers may replace
    fixed = not any(n in given for n in (*w.inputs, *x.inputs[1:]))
    sizes = weight.ndim == 4 or (step.kind == "MatMul" and weight.ndim == 2)
    shifts = [v.dtype for v in (*scales[1:], shift) if v is not None]
    narrow = all(d in (np.int8, np.uint8) for d in (weight.dtype, *shifts)) and len(scales) == 2
    return bool(along and fixed and sizes and narrow and scale.dtype == np.float32)


def pack_weights(graph: Graph, _: Builder) -> None:
    """Matrices of a few bits in the order in which kernels read them, where bytes may be summed."""
    for step in graph.steps:
        if step.kind == "MatMulNBits" and step.options.get("accuracy_level") == 4:
            weight = packed_bits(graph, step)
            if weight is not None:
                bias = step.inputs[5] if len(step.inputs) > 5 else ""
                step.kind, step.domain, step.inputs = (
                    "PackedMatMul",
                    "genesis",
                    (step.inputs[0], bias),
                )
                step.operator, step.options = find("genesis", "PackedMatMul", 1), {"weight": weight}


def packed_bits(graph: Graph, step: Step) -> Any:
    """The matrix of a MatMulNBits, packed; None if it is not known or of another kind."""
    numbers, scales, shift = (
        graph.constants.get(n) if n not in graph.inputs else None
        for n in (*step.inputs, "", "")[1:4]
    )
    shifted = len(step.inputs) > 3 and bool(step.inputs[3])
    if (
        numbers is None
        or scales is None
        or (shifted and (shift is None or shift.dtype != np.uint8))
    ):
        return None
    if len(step.inputs) > 4 and step.inputs[4]:
        return None  # columns in another order
    bits, block = step.options.get("bits", 4), step.options.get("block_size", 32)
    rows, k = step.options["N"], step.options["K"]
    blocks = -(-k // block)
    if bits not in (4, 8) or numbers.size * 8 != rows * blocks * block * bits:
        return None
    format = Format("nbits", Integer(bits, 0 if shifted else 1 << (bits - 1)), block, "float32", 8)
    format = format if shifted else replace(format, zero=0)
    codes = apart(numbers.reshape(rows, -1), bits)
    zero = apart(shift.reshape(rows, -1), bits)[:, :blocks] if shifted else None
    scale = scales.astype(np.float32).reshape(rows, blocks)
    return from_codes(Codes(format, codes, scale, zero), k)


def apart(numbers: Any, bits: int) -> Any:
    """Numbers of 4 or 8 bits, each in a byte."""
    if bits == 8:
        return numbers
    return np.stack([numbers & 15, numbers >> 4], -1).reshape(*numbers.shape[:-1], -1)


#: Of operators on bytes: which inputs the weights are, and their zero point.
_WEIGHTS = {
    "MatMulInteger": (1, 3), "MatMulIntegerToFloat": (1, 5), "ConvInteger": (1, 3),
    "QLinearMatMul": (3, 5), "QLinearConv": (3, 5), "DynamicQuantizeMatMul": (1, 3),
    "DynamicQuantizeLSTM": (1, 9), "QuantizedConv": (3, 5), "QuantizedMatMul": (3, 5),
}  # fmt: skip


def sign_weights(graph: Graph, _: Builder) -> None:
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


def _rename(step: Step, names: dict[int, str]) -> None:
    step.inputs = tuple(names.get(k, n) for k, n in enumerate(step.inputs))


def sum_weights(graph: Graph, _: Builder) -> None:
    """The sums of weights that zero points of what they multiply need, computed beforehand."""
    for step in graph.steps:
        if step.domain == "genesis" and step.kind in _PRODUCTS.values():
            weight = graph.constants[step.inputs[3]]
            axes = (1, 2, 3) if step.kind == "QuantizedConv" else (0,)
            name = f"{step.inputs[3]}.sums"
            graph.constants[name] = weight.sum(axes, dtype=np.int32)
            place = 7 if step.kind == "QuantizedConv" else 6
            step.inputs = (*(*step.inputs, "", "")[:place], name)


def drop_unused(graph: Graph, _: Builder) -> None:
    """Without nodes and constants that no output depends on."""
    wanted, kept = set(graph.outputs), []
    for step in reversed(graph.steps):
        if wanted.intersection(step.outputs):
            kept.append(step)
            wanted |= reads(step)
    graph.steps = kept[::-1]
    graph.constants = {n: v for n, v in graph.constants.items() if n in wanted}


PASSES: dict[str, Callable[[Graph, Builder], None]] = {
    "drop_copies": drop_copies,
    "fold_constants": fold_constants,
    "fuse_quantized": fuse_quantized,
    "pack_weights": pack_weights,
    "compute_constants": compute_constants,
    "fold_batch_norms": fold_batch_norms,
    "sign_weights": sign_weights,
    "sum_weights": sum_weights,
    "drop_unused": drop_unused,
}
