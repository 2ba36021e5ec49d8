"""Graphs made smaller for inference: what is known beforehand is computed once.

Each pass takes a graph and changes it, and can be left out: `optimize(graph, passes=[..])`.
Parameters change with it, so it is for sessions, and not for models that are trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from onnx import TensorProto

from genesis import no_grad
from genesis.ndarray.core.interop import realize
from genesis.onnx.graph import Graph, GraphBuilder, NodeStep, note_last_uses, reads
from genesis.onnx.int8_passes import (
    drop_roundings,
    fuse_quantized,
    lay_filters,
    mark_images,
    pack_weights,
    sign_weights,
    sum_weights,
    turn_weights,
)
from genesis.onnx.model import Model
from genesis.onnx.registry import find, find_on_host
from genesis.onnx.text_codes import number_labels, number_texts
from genesis.onnx.values import as_host, on_host
from genesis.tensor.tensor import Tensor

_LARGEST = 1 << 26  # elements of a constant that is computed beforehand
#: Operators that give something else each time.
_RANDOM = {
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
    "Multinomial", "Dropout",
}  # fmt: skip


def optimize(graph: Graph, builder: GraphBuilder, passes: Iterable[str] | None = None) -> None:
    """Apply passes, all of them if not told which, in order."""
    for name in PASSES if passes is None else passes:
        if name not in PASSES:
            raise ValueError(f"optimize: there is no pass {name!r}; there are {list(PASSES)}")
        PASSES[name](graph, builder)
    for step in graph.every_step():
        step.plain.clear()  # some were computed with other options
    note_last_uses(graph)


def drop_invariants(graph: Graph, _: GraphBuilder) -> None:
    """Without what loops hand from round to round unchanged: it is read where it comes from.

    Weights are then known to be such, and nobody carries them. What a loop computes of such values
    alone is computed before it.
    """
    kept: list[NodeStep] = []
    names = {*graph.inputs, *graph.constants, *(n for s in graph.steps for n in s.outputs)}
    for step in graph.steps:
        body = step.options.get("body")
        if step.kind == "Loop" and not step.domain and isinstance(body, Graph):
            copies = _without_invariants(step, body)
            kept += [*_hoisted(body, graph, names), step, *copies]
        else:
            kept.append(step)
    graph.steps = kept


def _hoisted(body: Graph, around: Graph, names: set[str]) -> list[NodeStep]:
    """Take steps from a body that are the same in all rounds, and do much or can do no harm."""
    inside = {*body.inputs, *(n for step in body.steps for n in step.outputs)}
    hoisted, stay = list[NodeStep](), list[NodeStep]()
    for step in body.steps:
        own = {n for n in step.inputs if n in body.constants}
        taken = names.intersection((*own, *step.outputs))
        plain = not step.domain and step.kind in _HOISTED and not taken
        if not plain or not inside.isdisjoint(step.inputs) or set(body.outputs) & {*step.outputs}:
            stay.append(step)
            continue
        around.constants.update((n, body.constants[n]) for n in own)
        hoisted.append(step)
        inside.difference_update(step.outputs)
    body.steps = stay
    names.update(n for step in hoisted for n in step.outputs)
    return hoisted


#: What is computed before a loop: it gives no other error for a loop that has no rounds.
_HOISTED = {"MatMul", "Transpose", "Cast", "Tanh", "Sigmoid", "Relu", "Neg", "Exp", "Identity"}


def _without_invariants(step: NodeStep, body: Graph) -> list[NodeStep]:
    """Take them from a loop; the steps that give its results their names."""
    copies = []
    carried = step.inputs[2:]
    taken = {*body.constants, *(n for inner in body.every_step() for n in inner.outputs)}
    for k in reversed(range(len(carried))):
        inner, outer, name = body.inputs[2 + k], carried[k], (*step.outputs, *("",) * 99)[k]
        once = body.outputs.count(inner) == 1 and body.outputs[1 + k] == inner
        hidden = outer in taken or (outer in body.inputs and outer != inner)
        if not once or hidden or not outer:
            continue
        _rename(body, inner, outer)
        body.inputs = (*body.inputs[: 2 + k], *body.inputs[3 + k :])
        body.outputs = (*body.outputs[: 1 + k], *body.outputs[2 + k :])
        step.inputs = (*step.inputs[: 2 + k], *step.inputs[3 + k :])
        step.outputs = (*step.outputs[:k], *step.outputs[k + 1 :])
        if name:
            copies.append(_copy(outer, name))
    return copies


def _rename(graph: Graph, old: str, new: str) -> None:
    """Read another name in a graph, and in those inside of it that mean the same by it."""
    for step in graph.steps:
        step.inputs = tuple(new if n == old else n for n in step.inputs)
        for inner in step.options.values():
            if isinstance(inner, Graph) and old in inner.free():
                inner.outputs = tuple(new if n == old else n for n in inner.outputs)
                _rename(inner, old, new)


def _copy(source: str, target: str) -> NodeStep:
    operators = find("", "Identity", 13), find_on_host("", "Identity")
    return NodeStep(f"{target}.copy", "Identity", "", 13, (source,), (target,), {}, *operators)


#: Operators by elements, whose results are of the rank of the greatest operand.
_BY_ELEMENTS = {
    "Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Not", "Cast", "Equal", "Less", "Greater",
    "LessOrEqual", "GreaterOrEqual", "Identity", "Neg", "Abs", "Where",
}  # fmt: skip


def free_ranks(graph: Graph, _: GraphBuilder) -> None:
    """Say of branches where nobody sees whether they give a scalar or a list of one.

    Converters write such branches, and both can be computed in one program then.
    """
    for inner in (graph, *(g for step in graph.every_step() for g in step.subgraphs())):
        readers: dict[str, list[NodeStep]] = {}
        for step in inner.steps:
            for name in reads(step):
                readers.setdefault(name, []).append(step)
        for step in inner.steps:
            if step.kind == "If" and not step.domain:
                free = all(_is_rank_free(n, inner, readers) for n in step.outputs if n)
                step.options["any_rank"] = free


def _is_rank_free(name: str, graph: Graph, readers: dict[str, list[NodeStep]]) -> bool:
    """Whether all that is made of one element is the same for a scalar and a list of one."""
    if name in graph.outputs:
        return False
    for step in readers.get(name, ()):
        if step.domain or step.kind not in _BY_ELEMENTS:
            return False
        known = (graph.constants.get(n) for n in step.inputs if n not in graph.inputs)
        listed = any(x is not None and x.ndim for x in known)
        if not listed and not _is_rank_free(step.outputs[0], graph, readers):
            return False
    return True


def drop_copies(graph: Graph, _: GraphBuilder) -> None:
    """Without nodes that only hand on their input: Identity, and Dropout in inference."""
    renamed: dict[str, str] = {}
    free = {n for step in graph.steps for inner in step.subgraphs() for n in inner.free()}
    wanted, kept = free.union(graph.outputs), []
    for step in graph.steps:
        step.inputs = tuple(renamed.get(n, n) for n in step.inputs)
        plain = step.kind in ("Identity", "Dropout") and len(step.inputs) == 1
        alone = bool(step.outputs) and not any(step.outputs[1:])
        if plain and not step.domain and alone and step.outputs[0] not in wanted:
            renamed[step.outputs[0]] = step.inputs[0]
        else:
            kept.append(step)
    graph.steps = kept


def widen_halves(graph: Graph, _: GraphBuilder) -> None:
    """Numbers of 16 bits computed with as 32 bits, between the inputs and the outputs.

    CPUs convert them for every product, and results come nearer to what the model means.
    """
    halves = {n for n, v in graph.constants.items() if v.dtype == np.float16}
    large = any(graph.constants[n].size > 1 for n in halves)
    plain = not any(True for step in graph.steps for _ in step.subgraphs())
    if not large or not plain or any(_makes_halves(step) for step in graph.steps):
        return
    given = [n for n in graph.inputs if _is_half(graph, n)]
    if halves.intersection(graph.inputs) or not all(_is_typed(graph, n) for n in graph.outputs):
        return
    for name in halves:
        graph.constants[name] = graph.constants[name].astype(np.float32)
    for step in graph.steps:
        step.options = {k: _widened(k, v) for k, v in step.options.items()}
    wide = {n: f"{n}.wide" for n in (*given, *(n for n in graph.outputs if _is_half(graph, n)))}
    for step in graph.steps:
        step.inputs = tuple(wide.get(n, n) for n in step.inputs)
        step.outputs = tuple(wide.get(n, n) for n in step.outputs)
    before = [_cast(n, wide[n], TensorProto.FLOAT) for n in given]
    after = [_cast(wide[n], n, TensorProto.FLOAT16) for n in graph.outputs if n in wide]
    graph.steps = [*before, *graph.steps, *after]


def _is_typed(graph: Graph, name: str) -> bool:
    kind = graph.types.get(name)
    return kind is not None and kind.tensor_type.elem_type != TensorProto.UNDEFINED


def _is_half(graph: Graph, name: str) -> bool:
    kind = graph.types.get(name)
    return kind is not None and kind.tensor_type.elem_type == TensorProto.FLOAT16


def _makes_halves(step: NodeStep) -> bool:
    """Whether a step says itself that its result is of 16 bits, in other words than `Cast` does."""
    told = any(step.options.get(n) == TensorProto.FLOAT16 for n in ("dtype", "output_dtype"))
    return told or step.kind in ("BitCast", "CastLike") or step.host is None is step.operator


def _widened(name: str, value: Any) -> Any:
    if name == "to" and value == TensorProto.FLOAT16:
        return TensorProto.FLOAT
    half = isinstance(value, np.ndarray) and value.dtype == np.float16
    return value.astype(np.float32) if half else value


def _cast(source: str, target: str, to: int) -> NodeStep:
    operators = find("", "Cast", 13), find_on_host("", "Cast")
    return NodeStep(f"{target}.cast", "Cast", "", 13, (source,), (target,), {"to": to}, *operators)


def fold_constants(graph: Graph, _: GraphBuilder) -> None:
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


def _folded(step: NodeStep, values: list[Any]) -> tuple[Any, ...] | None:
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


def compute_constants(graph: Graph, builder: GraphBuilder) -> None:
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


def _computed(part: Graph, builder: GraphBuilder) -> dict[str, Any]:
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


def fold_batch_norms(graph: Graph, _: GraphBuilder) -> None:
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


def _foldable(graph: Graph, step: NodeStep, conv: NodeStep | None, uses: Counter[str]) -> bool:
    names = [*step.inputs[1:5], *(conv.inputs[1:] if conv is not None else ())]
    return (
        step.kind == "BatchNormalization" and not step.domain and conv is not None
        and conv.kind == "Conv" and not conv.domain and uses[conv.outputs[0]] == 1
        and not step.options.get("training_mode") and step.options.get("spatial", 1) == 1
        and all(n in graph.constants and n not in graph.inputs for n in names)
        and all(not n for n in step.outputs[1:])
        and graph.constants[conv.inputs[1]].dtype.kind == "f"
    )  # fmt: skip


def _fold(graph: Graph, step: NodeStep, conv: NodeStep) -> None:
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


def drop_unused(graph: Graph, _: GraphBuilder) -> None:
    """Without nodes and constants that no output depends on.

    Inputs keep their constants: without they would have to be given.
    """
    wanted, kept = {*graph.outputs, *graph.inputs}, []
    for step in reversed(graph.steps):
        if wanted.intersection(step.outputs):
            kept.append(step)
            wanted |= reads(step)
    graph.steps = kept[::-1]
    graph.constants = {n: v for n, v in graph.constants.items() if n in wanted}


PASSES: dict[str, Callable[[Graph, GraphBuilder], None]] = {
    "drop_invariants": drop_invariants,
    "free_ranks": free_ranks,
    "drop_roundings": drop_roundings,
    "drop_copies": drop_copies,
    "number_texts": number_texts,
    "number_labels": number_labels,
    "widen_halves": widen_halves,
    "fold_constants": fold_constants,
    "fuse_quantized": fuse_quantized,
    "pack_weights": pack_weights,
    "compute_constants": compute_constants,
    "fold_batch_norms": fold_batch_norms,
    "turn_weights": turn_weights,
    "sign_weights": sign_weights,
    "sum_weights": sum_weights,
    "lay_filters": lay_filters,
    "mark_images": mark_images,
    "drop_unused": drop_unused,
}
