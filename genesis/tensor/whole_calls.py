"""Layers that say themselves what their `forward` reads.

While a function is recorded, the code of layers is watched instruction by instruction, as a user's
is, and that takes longer than the code. What the `forward` of most layers reads is known before:
what the layer has by the names in the code, and functions of Genesis. Those are reported at once,
and the code runs with nobody watching.
"""

from __future__ import annotations

from dis import get_instructions
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from genesis.ndarray.core.value import thread

_PLAIN = (bool, int, float, complex, str, type(None))
_whole: set[CodeType] = set()


class Reads(NamedTuple):
    """What the `forward` of a class may read."""

    own: tuple[str, ...]  # names that a layer may have something by
    of_class: tuple[str, ...]  # names that its class has something by
    globals: tuple[tuple[dict[str, Any], str], ...]  # names of modules


def whole(forward: Any) -> Any:
    """Mark a `forward` that reads its layer by name and calls functions of Genesis, no more."""
    _whole.add(forward.__code__)
    return forward


def report(layer: Any) -> bool:
    """Say what a layer's `forward` is about to read; False where it is to be watched instead."""
    kind: Any = type(layer)
    code = getattr(kind.forward, "__code__", None)
    if code not in _whole or layer._modules or not kind.__module__.startswith("genesis.nn."):
        return False
    reads = _reads(kind, kind.forward)
    homes = layer.__dict__, layer._parameters, layer._buffers
    found = [(name, home[name]) for home in homes for name in reads.own if name in home]
    if not all(_is_plain(x) for _, x in found):
        return False
    listener = thread.listener
    for name, x in found:
        listener.reading(layer, name, x)
    for name in reads.of_class:
        listener.calling(kind, name)
    for names, name in reads.globals:
        listener.naming(names, name)
    return True


@cache
def _reads(kind: type, forward: FunctionType) -> Reads:
    own: dict[str, None] = {}
    of_class: dict[str, None] = {}
    globals_: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    todo = [forward]
    for f in todo:
        codes = [f.__code__, *(c for c in f.__code__.co_consts if isinstance(c, CodeType))]
        every = [i for code in codes for i in get_instructions(code)]
        asked = [i.argval for i in every if i.opname in ("LOAD_ATTR", "LOAD_METHOD")]
        names = [i.argval for i in every if i.opname == "LOAD_GLOBAL"]
        found = [f.__globals__.get(name) for name in names]
        places = [(f.__globals__, names)]
        places += [(vars(m), asked) for m in found if isinstance(m, ModuleType)]
        globals_ |= {(id(p), n): (p, n) for p, wanted in places for n in wanted if n in p}
        for name in asked:
            owner = next((base for base in kind.__mro__ if name in vars(base)), None)
            if owner is not None and name not in of_class:
                of_class[name] = None
                method = getattr(vars(owner)[name], "fget", vars(owner)[name])
                if isinstance(method, FunctionType) and method.__module__.startswith("genesis.nn."):
                    todo.append(method)
            own[name] = None
    return Reads(tuple(own), tuple(of_class), tuple(globals_.values()))


def _is_plain(x: Any) -> bool:
    if type(x) is tuple:
        return all(map(_is_plain, x))
    return type(x) in _PLAIN or type(x).__module__.startswith("genesis.")


__all__ = ["report", "whole"]
