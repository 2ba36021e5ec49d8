"""Nested modules as functions of a file: what each computes is written once, and called.

While a module is called for `onnx.save`, every call of a module inside it is noted: what it was
given, and what came back. What lies between is the body of a function, with the weights among its
arguments; so the layers of a stack, which differ in their weights only, are one function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

from onnx import helper

from genesis import nn
from genesis.ir import ops
from genesis.ir.node import topological
from genesis.ndarray import pytree
from genesis.ndarray.core.ndarray import NDArray
from genesis.onnx.export_quantized import Mark
from genesis.tensor.tensor import Tensor

#: The domain of the functions.
DOMAIN = "genesis"


@dataclass(eq=False)
class ModuleCall:
    """One call of a module: of what values, with which results, and the calls inside."""

    module: nn.Module
    given: list[Any]
    results: list[Any] = field(default_factory=list)
    inner: list[ModuleCall] = field(default_factory=list)
    #: Everything the results are computed of: what was given, weights, inputs of the whole.
    arguments: list[Any] = field(default_factory=list)

    def close(self, result: Any, marks: Mapping[Any, Mark]) -> bool:
        """Take note of what came back; whether the call can be that of a function."""
        self.results = list(dict.fromkeys(_values(result)))
        given = set(self.given)

        def needs(v: Any) -> tuple[Any, ...]:
            return () if v in given else (marks[v].given,) if v in marks else v.inputs

        order = topological(self.results, needs)
        leaves = {v for v in order if _is_leaf(v) and v not in marks}
        self.arguments = [v for v in order if v in given or v in leaves]
        return bool(self.results) and not set(self.results) & set(self.arguments)

    def names(self) -> dict[Any, str]:
        """The arguments, weights by their names in the module, others by their order."""
        own = [*self.module.named_parameters(), *self.module.named_buffers()]
        local = {x.array.realize().value: name for name, x in own}
        taken = set(local.values())
        fresh = (name for k in range(len(self.arguments) + len(taken))
                 if (name := f"x_{k}") not in taken)  # fmt: skip
        return {v: local[v] if v in local else next(fresh) for v in self.arguments}


def calls_by_result(calls: Collection[ModuleCall]) -> dict[Any, ModuleCall]:
    """Which call gives which value; of calls that give the same, the last."""
    return {v: call for call in calls for v in call.results}


@contextmanager
def noted(
    module: Any, wanted: bool | Collection[type], marks: Mapping[Any, Mark]
) -> Iterator[list[ModuleCall]]:
    """Take note of the calls of modules inside a module: of all, or of certain classes."""
    calls: list[ModuleCall] = []
    around = [calls]
    layers = [m for m in _inside(module) if wanted is True or isinstance(m, _classes(wanted))]
    before = {layer: layer.__dict__.get("forward") for layer in layers}

    def noting(layer: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            call = ModuleCall(layer, _values((args, named)))
            around.append(call.inner)
            try:
                result = forward(*args, **named)
            finally:
                around.pop()
            if call.close(result, marks):
                around[-1].append(call)
            else:
                around[-1].extend(call.inner)
            return result

        return called

    for layer in layers if wanted else ():
        layer.__dict__["forward"] = noting(layer, layer.forward)
    try:
        yield calls
    finally:
        for layer, forward in before.items() if wanted else ():
            if forward is None:
                del layer.__dict__["forward"]
            else:
                layer.__dict__["forward"] = forward


def _inside(module: Any) -> list[nn.Module]:
    """The modules below one that can be called; a list of modules, say, cannot."""
    below = list(module.modules())[1:] if isinstance(module, nn.Module) else []
    return [m for m in below if hasattr(m, "forward")]


def _classes(wanted: bool | Collection[type]) -> tuple[type, ...]:
    classes = () if isinstance(wanted, bool) else tuple(wanted)
    if not all(isinstance(c, type) and issubclass(c, nn.Module) for c in classes):
        raise TypeError(f"onnx.save: functions is True or classes of modules, not {wanted!r}")
    return classes


def _values(tree: Any) -> list[Any]:
    """The values of the tensors in a call's arguments or results."""
    arrays = [x.array if isinstance(x, Tensor) else x for x in pytree.flatten(tree)[0]]
    return [x.value for x in arrays if isinstance(x, NDArray)]


def _is_leaf(v: Any) -> bool:
    return getattr(v, "memory", None) is not None or v.op is ops.PARAMETER


@dataclass(frozen=True)
class LocalFunction:
    """A function as it will be in the file."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Any, ...]


class LocalFunctions:
    """The functions of a file, each kind of body once."""

    def __init__(self) -> None:
        self.found: dict[Any, LocalFunction] = {}

    def named(
        self, kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], nodes: tuple[Any, ...]
    ) -> LocalFunction:
        """The function with a body, called after a class, and numbered if there are several."""
        key = kind, inputs, outputs, tuple(n.SerializeToString(deterministic=True) for n in nodes)
        if key not in self.found:
            taken = {f.name for f in self.found.values()}
            numbered = (f"{kind}_{k}" for k in count(2))
            name = next(n for n in chain([kind], numbered) if n not in taken)
            self.found[key] = LocalFunction(name, inputs, outputs, nodes)
        return self.found[key]

    def protos(self, imports: Mapping[str, int]) -> list[Any]:
        """The functions as messages."""
        sets = [helper.make_opsetid(*d) for d in imports.items()]
        return [
            helper.make_function(DOMAIN, f.name, f.inputs, f.outputs, f.nodes, sets)
            for f in self.found.values()
        ]
