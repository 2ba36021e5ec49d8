"""Texts that a model compares with those it knows, as numbers: then all of it is a program.

A text is looked up once, where it comes in. What only moves texts moves their numbers, and what
looks them up is a table of numbers, whose last row is for a text that the model does not know.
Classes with texts for names are numbers until they are results.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
from onnx import TensorProto

from genesis import functional as fn
from genesis.onnx.graph import Graph, GraphBuilder, NodeStep
from genesis.onnx.operators.texts import category_mapper, label_encoder
from genesis.onnx.registry import Host, Operand, find, find_on_host, operator

_DOMAIN = "genesis"
_ML = "ai.onnx.ml"
#: Operators that move elements, and which of their inputs those are in; None: all.
MOVES: dict[str, tuple[int, ...] | None] = {
    "Gather": (0,), "GatherElements": (0,), "GatherND": (0,), "Reshape": (0,), "Squeeze": (0,),
    "Unsqueeze": (0,), "Transpose": (0,), "Slice": (0,), "Flatten": (0,), "Identity": (0,),
    "Expand": (0,), "Tile": (0,), "Split": (0,), "Where": (1, 2), "Concat": None,
}  # fmt: skip
#: What says the classes' names of a classifier when they are numbers.
_CLASSIFIERS = {
    "LinearClassifier": "classlabels_ints", "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}  # fmt: skip


@operator("TextCodes", domain=_DOMAIN)
def text_codes(x: Operand, *, places: dict[str, int]) -> Any:
    """The places of texts in what a model knows; one behind it for all others."""
    found = map(places.get, x.reshape(-1).tolist(), repeat(len(places)))
    return np.fromiter(found, np.int64, x.size).reshape(x.shape)


@operator("TextTable", domain=_DOMAIN)
def text_table(table: Any, codes: Any) -> Any:
    """Rows of a table by places, said so that none has to be checked."""
    return table[fn.clamp(codes, 0, table.shape[0] - 1)]


@operator("TextsOf", domain=_DOMAIN)
def texts_of(codes: Host, *, words: Any) -> Any:
    """The texts at places."""
    return words[codes]


def number_labels(graph: Graph, _: GraphBuilder) -> None:
    """Classes whose names are texts as numbers, which are texts only at the end."""
    steps = []
    for step in graph.steps:
        steps.append(step)
        known = step.domain == _ML and step.kind in _CLASSIFIERS
        if known and step.options.get("classlabels_strings") and step.outputs[0]:
            names = step.options["classlabels_strings"]
            step.options = {k: v for k, v in step.options.items() if k != "classlabels_strings"}
            step.options[_CLASSIFIERS[step.kind]] = list(range(len(names)))
            label, codes = step.outputs[0], f"{step.outputs[0]}.codes"
            step.outputs = (codes, *step.outputs[1:])
            steps.append(_step("TextsOf", _DOMAIN, (codes,), label, {"words": _texts(names)}))
    graph.steps = steps


def number_texts(graph: Graph, _: GraphBuilder) -> None:
    """Texts that are only moved, and looked up in tables, as their places in all of these."""
    given = [n for n in graph.inputs if _is_text_input(graph, n)]
    texts = {*given, *(n for n, v in graph.constants.items() if v.dtype == object)}
    words: dict[str, None] = {}  # in the order in which they are met
    for name in texts - {*given}:
        words.update(dict.fromkeys(graph.constants[name].reshape(-1).tolist()))
    for step in graph.steps:
        if texts.isdisjoint(step.inputs):
            continue
        table = _table_of(step)
        if any(True for _ in step.subgraphs()) or (table is None and not _moves(step, texts)):
            return
        if table is None:
            texts.update(step.outputs)
        else:
            words.update(dict.fromkeys(table))
    if not given or not texts.isdisjoint(graph.outputs) or not texts.isdisjoint(_free(graph)):
        return
    _replace(graph, given, texts, {word: place for place, word in enumerate(words)})


def _replace(graph: Graph, given: list[str], texts: set[str], words: dict[str, int]) -> None:
    every = _texts([*words, "\0"])  # the last is no text of the model
    try:
        tables = {id(step): _looked_up(step, every) for step in graph.steps if _table_of(step)}
    except (TypeError, ValueError):  # it will be said of the node when it is to run
        return
    codes = {name: f"{name}.codes" for name in texts}
    for name in texts & graph.constants.keys() - {*given}:
        held = graph.constants[name]
        found = [words[t] for t in held.reshape(-1).tolist()]
        graph.constants[codes[name]] = np.array(found, np.int64).reshape(held.shape)
    steps = [_step("TextCodes", _DOMAIN, (n,), codes[n], {"places": words}) for n in given]
    for step in graph.steps:
        if texts.isdisjoint(step.inputs) or _table_of(step) is None:
            step.inputs = tuple(codes.get(n, n) for n in step.inputs)
            step.outputs = tuple(codes.get(n, n) for n in step.outputs)
        else:
            table = f"{step.outputs[0]}.table"
            graph.constants[table] = tables[id(step)]
            inputs = (table, codes[step.inputs[0]])
            step = _step("TextTable", _DOMAIN, inputs, step.outputs[0], {})
        steps.append(step)
    graph.steps = steps


def _table_of(step: NodeStep) -> list[str] | None:
    """The texts that a step looks up to give numbers."""
    if step.domain != _ML:
        return None
    options = step.options
    if step.kind == "OneHotEncoder" and options.get("zeros", 1):
        return list(options.get("cats_strings") or ()) or None
    if step.kind == "LabelEncoder" and not {"values_strings", "default_string"} & options.keys():
        return list(options.get("keys_strings") or options.get("classes_strings") or ()) or None
    if step.kind == "CategoryMapper":
        return list(options.get("cats_strings") or ()) or None
    return None


def _looked_up(step: NodeStep, every: Any) -> Any:
    """What a step gives for texts."""
    if step.kind == "OneHotEncoder":
        return (every[:, None] == _texts(step.options["cats_strings"])).astype(np.float32)
    encoder = label_encoder if step.kind == "LabelEncoder" else category_mapper
    return encoder(every, **step.options)


def _moves(step: NodeStep, texts: set[str]) -> bool:
    """Whether a step moves texts, and does nothing else with them."""
    if step.domain or step.kind not in MOVES:
        return False
    places = MOVES[step.kind]
    moved = range(len(step.inputs)) if places is None else places
    return all((n in texts) == (k in moved) for k, n in enumerate(step.inputs))


def _is_text_input(graph: Graph, name: str) -> bool:
    kind = graph.types.get(name)
    return kind is not None and kind.tensor_type.elem_type == TensorProto.STRING


def _free(graph: Graph) -> set[str]:
    """Names that subgraphs read."""
    return {n for step in graph.steps for inner in step.subgraphs() for n in inner.free()}


def _texts(words: Any) -> Any:
    return np.array([*words, None], object)[:-1]


def _step(
    kind: str, domain: str, inputs: tuple[str, ...], output: str, options: dict[str, Any]
) -> NodeStep:
    entries = find(domain, kind, 99), find_on_host(domain, kind)
    return NodeStep(output, kind, domain, 13, inputs, (output,), options, *entries)


__all__ = ["number_labels", "number_texts"]
