"""What a function reads from outside, changed between its calls."""
# ruff: noqa: B008, E501, F811, F821, PERF401

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import importlib
import io
import math
import os
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from jit_corpus import Jit, add_program, attempt, program, show, vector, weights
from jit_training import batch, mlp

import genesis
from genesis import nn


def made(source: str, **names: Any) -> Any:
    """A module of its own with this source."""
    module = types.ModuleType("helper")
    vars(module).update(genesis=genesis, **names)
    sys.modules["helper"] = module  # where dataclasses look for it
    exec(compile(source, "helper.py", "exec"), vars(module))
    return module


def _changing(
    make: Callable[[], Any], f: Callable[[Any, Any], Any], *changes: Callable[[Any], Any]
) -> Callable[[Jit], Any]:
    """A program: state from `make`, a function `f(x, state)` that finds it in a closure."""

    def run(jit: Jit) -> Any:
        state = make()
        jitted = jit(lambda x: f(x, state))
        seen = []
        for change in (None, None, *changes, None):
            if change is not None:
                change(state)
            seen.append(attempt(jitted, vector(1, 2)))
        return seen

    return run


def _argument(
    make: Callable[[], Any], f: Callable[[Any, Any], Any], *changes: Callable[[Any], Any]
) -> Callable[[Jit], Any]:
    """The same with the state as an argument."""

    def run(jit: Jit) -> Any:
        state = make()
        jitted = jit(f)
        seen = []
        for change in (None, None, *changes, None):
            if change is not None:
                change(state)
            seen.append(attempt(jitted, vector(1, 2), state))
        return seen

    return run


@dataclass
class Config:
    rate: float = 2.0
    name: str = "add"
    layers: list[float] = field(default_factory=lambda: [1.0, 2.0])


class Slotted:
    __slots__ = ("k", "w")

    def __init__(self) -> None:
        self.k = 2.0
        self.w = vector(1, 1)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Computed:
    def __init__(self) -> None:
        self._k = 2.0

    @property
    def k(self) -> float:
        return self._k * 2

    def __getattr__(self, name: str) -> Any:
        if name.startswith("dyn"):
            return self._k + len(name)
        raise AttributeError(name)


def setter(name: str, value: Any) -> Callable[[Any], None]:
    return lambda o: setattr(o, name, value() if callable(value) else value)


def item(key: Any, value: Any) -> Callable[[Any], None]:
    def change(o: Any) -> None:
        o[key] = value() if callable(value) else value

    return change


def _sum(x: Any, numbers: Any) -> Any:
    for n in numbers:
        x = x * 2 + n
    return x


STATES: dict[str, tuple[Any, ...]] = {
    "dataclass": (Config, lambda x, c: x * c.rate, setter("rate", 3.0), setter("rate", 4.0)),
    "dataclass text": (
        Config, lambda x, c: x + 1 if c.name == "add" else x - 1, setter("name", "sub")),
    "dataclass list": (
        Config, lambda x, c: _sum(x, c.layers), lambda c: c.layers.append(5.0),
        lambda c: c.layers.pop(0), setter("layers", lambda: [7.0])),
    "namespace": (
        lambda: SimpleNamespace(k=2.0), lambda x, c: x * c.k, setter("k", 3.0), setter("k", 5)),
    "nested namespace": (
        lambda: SimpleNamespace(a=SimpleNamespace(b=SimpleNamespace(k=2.0))),
        lambda x, c: x * c.a.b.k, lambda c: setattr(c.a.b, "k", 3.0),
        lambda c: setattr(c.a, "b", SimpleNamespace(k=9.0))),
    "slots": (Slotted, lambda x, c: x * c.k + c.w, setter("k", 3.0),
              setter("w", lambda: vector(5, 6)), lambda c: c.w.mul_(2)),
    "property": (Computed, lambda x, c: x * c.k, setter("_k", 3.0)),
    "getattr": (Computed, lambda x, c: x * c.dyn_abc, setter("_k", 3.0),
                lambda c: c.__dict__.update(dyn_abc=100.0)),
    "hasattr": (SimpleNamespace, lambda x, c: x * 3 if hasattr(c, "k") else x,
                setter("k", 1), lambda c: delattr(c, "k")),
    "getattr with a default": (SimpleNamespace, lambda x, c: x * getattr(c, "k", 2.0),
                               setter("k", 5.0), lambda c: delattr(c, "k")),
    "vars": (lambda: SimpleNamespace(a=1.0), lambda x, c: _sum(x, vars(c).values()),
             setter("b", 2.0), setter("a", 4.0)),
    "type of an attribute": (
        lambda: SimpleNamespace(k=2.0), lambda x, c: x if isinstance(c.k, float) else x * c.k,
        setter("k", 3), setter("k", True)),
    "list": (lambda: [1.0, 2.0], _sum, item(0, 5.0), lambda c: c.append(3.0), lambda c: c.clear()),
    "list length": (lambda: [0], lambda x, c: x * len(c), lambda c: c.append(0), list.clear),
    "list truth": (list, lambda x, c: x * 2 if c else x, lambda c: c.append(0), list.clear),
    "list of tensors": (lambda: [vector(1, 1)], _sum, lambda c: c.append(vector(2, 2)),
                        item(0, lambda: vector(9, 9)), lambda c: c[1].add_(1), list.reverse),
    "list membership": (lambda: [1], lambda x, c: x * 2 if 3 in c else x, lambda c: c.append(3),
                        lambda c: c.remove(3)),
    "list slice": (lambda: [1.0, 2.0, 3.0], lambda x, c: _sum(x, c[1:]), item(2, 9.0),
                   lambda c: c.insert(0, 7.0)),
    "list index": (lambda: ["a", "b"], lambda x, c: x * (1 + c.index("b")),
                   lambda c: c.insert(0, "z")),
    "list in a list": (lambda: [[1.0], [2.0]], lambda x, c: _sum(x, c[1]), lambda c: c[1].append(4.0),
                       item(1, lambda: [8.0])),
    "tuple of lists": (lambda: ([1.0], [2.0]), lambda x, c: _sum(x, c[0]),
                       lambda c: c[0].append(3.0)),
    "dict": (lambda: {"k": 2.0}, lambda x, c: x * c["k"], item("k", 3.0), item("j", 1.0)),
    "dict of dicts": (lambda: {"a": {"b": 2.0}}, lambda x, c: x * c["a"]["b"],
                      lambda c: c["a"].update(b=3.0), item("a", lambda: {"b": 7.0})),
    "dict get": (dict, lambda x, c: x * c.get("k", 2.0), item("k", 3.0), lambda c: c.pop("k")),
    "dict membership": (dict, lambda x, c: x * 2 if "k" in c else x, item("k", 0), lambda c: c.clear()),
    "dict order": (lambda: {"a": 1.0, "b": 2.0}, lambda x, c: _sum(x, c.values()),
                   lambda c: c.update(a=c.pop("a"))),
    "dict keys": (lambda: {"a": 1.0}, lambda x, c: x * len("".join(c)), item("bcd", 2.0)),
    "dict items": (lambda: {"a": 1.0}, lambda x, c: _sum(x, [len(k) * v for k, v in c.items()]),
                   item("bcd", 2.0), item("a", 4.0)),
    "dict of tensors": (lambda: {"w": vector(1, 1)}, lambda x, c: x * c["w"],
                        item("w", lambda: vector(2, 3)), lambda c: c["w"].mul_(2)),
    "dict of functions": (lambda: {"f": lambda x: x * 2}, lambda x, c: c["f"](x),
                          item("f", lambda: lambda x: x + 5)),
    "dict missing": (lambda: {"k": 2.0}, lambda x, c: x * c["k"], lambda c: c.pop("k"),
                     item("k", 4.0)),
    "default dict": (lambda: collections.defaultdict(lambda: 2.0), lambda x, c: x * c["k"],
                     item("k", 3.0)),
    "ordered dict": (lambda: collections.OrderedDict(a=1.0, b=2.0),
                     lambda x, c: _sum(x, c.values()), lambda c: c.move_to_end("a")),
    "counter": (lambda: collections.Counter("aab"), lambda x, c: x * c["a"],
                lambda c: c.update("a")),
    "chain map": (lambda: collections.ChainMap({}, {"k": 2.0}), lambda x, c: x * c["k"],
                  item("k", 3.0)),
    "mapping proxy": (lambda: (d := {"k": 2.0}, types.MappingProxyType(d)),
                      lambda x, c: x * c[1]["k"], lambda c: c[0].update(k=3.0)),
    "set": (lambda: {1}, lambda x, c: x * 2 if 2 in c else x, lambda c: c.add(2),
            lambda c: c.discard(2)),
    "set size": (lambda: {1}, lambda x, c: x * len(c), lambda c: c.add(2)),
    "set sum": (lambda: {1.0}, lambda x, c: x * sum(c), lambda c: c.add(2.0)),
    "deque": (lambda: collections.deque([1.0, 2.0], maxlen=2), _sum, lambda c: c.append(5.0),
              lambda c: c.rotate(1), lambda c: c.clear()),
    "deque of tensors": (lambda: collections.deque([vector(1, 1)]), _sum,
                         lambda c: c.appendleft(vector(3, 3)), lambda c: c[0].mul_(2)),
    "numpy": (lambda: np.array([1.0, 2.0], np.float32), lambda x, c: x * genesis.tensor(c),
              item(0, 5.0), lambda c: c.fill(3.0)),
    "numpy from_numpy": (
        lambda: np.array([1.0, 2.0], np.float32), lambda x, c: x * genesis.from_numpy(c),
        item(0, 5.0)),
    "numpy element": (lambda: np.array([1.0, 2.0]), lambda x, c: x * float(c[0]), item(0, 5.0)),
    "numpy branch": (lambda: np.array([1.0, 2.0]), lambda x, c: x * 2 if c.sum() > 4 else x,
                     item(0, 5.0)),
    "numpy shape": (lambda: SimpleNamespace(a=np.zeros(2)), lambda x, c: x * c.a.size,
                    setter("a", lambda: np.zeros(3))),
    "bytearray": (lambda: bytearray(b"ab"), lambda x, c: x * c[0], item(0, 5)),
    "enum": (lambda: SimpleNamespace(c=Color.RED), lambda x, s: x if s.c is Color.RED else x * 2,
             setter("c", Color.BLUE)),
    "enum value": (lambda: SimpleNamespace(c=Color.RED), lambda x, s: x * s.c.value,
                   setter("c", Color.BLUE)),
    "bound method": (lambda: SimpleNamespace(f=[1.0].__len__), lambda x, c: x * c.f(),
                     setter("f", [1, 2, 3].__len__)),
    "partial": (lambda: SimpleNamespace(f=functools.partial(genesis.mul, other=vector(2, 2))),
                lambda x, c: c.f(x),
                setter("f", lambda: functools.partial(genesis.mul, other=vector(3, 3)))),
    "sorted": (lambda: [3.0, 1.0], lambda x, c: _sum(x, sorted(c)), lambda c: c.append(0.5)),
    "sorted by key": (lambda: ["aaa", "b"], lambda x, c: _sum(x, map(len, sorted(c, key=len))),
                      lambda c: c.append("cc")),
    "reversed": (lambda: [1.0, 2.0], lambda x, c: _sum(x, reversed(c)), lambda c: c.append(5.0)),
    "enumerate": (lambda: [1.0, 2.0], lambda x, c: _sum(x, [k * v for k, v in enumerate(c)]),
                  lambda c: c.append(5.0)),
    "zip": (lambda: [[1.0, 2.0], [3.0, 4.0]],
            lambda x, c: _sum(x, [a * b for a, b in zip(*c, strict=False)]),
            lambda c: (c[0].append(2.0), c[1].append(9.0))),
    "map and filter": (lambda: [1.0, 2.0, 3.0],
                       lambda x, c: _sum(x, map(abs, filter(lambda v: v > 1, c))),
                       lambda c: c.append(5.0), item(0, 4.0)),
    "sum": (lambda: [1.0, 2.0], lambda x, c: x * sum(c), item(0, 5.0)),
    "max": (lambda: [1.0, 2.0], lambda x, c: x * max(c), item(0, 5.0)),
    "any and all": (lambda: [0, 0], lambda x, c: x * 2 if any(c) and not all(c) else x,
                    item(0, 1), item(1, 1)),
    "comprehension": (lambda: [1.0, 2.0], lambda x, c: sum([x * v for v in c if v > 1], x),
                      item(0, 5.0)),
    "star arguments": (lambda: [1.0, 2.0], lambda x, c: _sum(x, (lambda *a: a)(*c)),
                       lambda c: c.append(3.0)),
    "star keywords": (lambda: {"a": 2.0}, lambda x, c: x * (lambda a, b=1.0: a + b)(**c),
                      item("b", 5.0)),
    "unpacking": (lambda: [1.0, 2.0], lambda x, c: (lambda a, *b: x * a + len(b))(*c),
                  lambda c: c.append(3.0)),
    "format": (lambda: SimpleNamespace(k=2), lambda x, c: {"k2": x, "k3": x * 3}[f"k{c.k}"],
               setter("k", 3)),
    "str": (lambda: [1, 2], lambda x, c: x * len(str(c)), lambda c: c.append(3)),
    "equality of containers": (lambda: {"a": [1, 2]}, lambda x, c: x * 2 if c == {"a": [1, 3]} else x,
                               lambda c: c["a"].__setitem__(1, 3)),
    "identity": (lambda: SimpleNamespace(a=vector(1, 1), b=vector(1, 1)),
                 lambda x, c: x * 2 if c.a is c.b else x, lambda c: setattr(c, "b", c.a)),
    "tensor rebound": (lambda: SimpleNamespace(w=vector(1, 1)), lambda x, c: x * c.w,
                       setter("w", lambda: vector(2, 3)), lambda c: c.w.mul_(2),
                       setter("w", lambda: vector(4, 5))),
    "tensor of another shape": (lambda: SimpleNamespace(w=vector(1, 1)), lambda x, c: x * c.w.sum(),
                                setter("w", lambda: vector(2, 3, 4))),
    "tensor of another dtype": (lambda: SimpleNamespace(w=vector(1, 1)), lambda x, c: x * c.w,
                                setter("w", lambda: genesis.tensor([1, 2])),
                                setter("w", lambda: vector(1, 2).double())),
    "tensor to number": (lambda: SimpleNamespace(w=vector(1, 1)), lambda x, c: x * c.w,
                         setter("w", 3.0), setter("w", None)),
    "the sign of zero": (lambda: SimpleNamespace(k=0.0), lambda x, c: x * math.copysign(1, c.k),
                         setter("k", -0.0)),
    "not a number": (lambda: SimpleNamespace(k=float("nan")),
                     lambda x, c: x if c.k != c.k else x * 2, setter("k", 1.0)),
    "one and true": (lambda: SimpleNamespace(k=1), lambda x, c: x * 2 if c.k is True else x,
                     setter("k", True), setter("k", 1.0)),
    "object with equality": (lambda: SimpleNamespace(f=FractionLike(1, 2)),
                             lambda x, c: x * c.f.value(), setter("f", lambda: FractionLike(3, 2))),
    "object with operators": (lambda: SimpleNamespace(f=FractionLike(1, 2)),
                              lambda x, c: c.f * x, lambda c: setattr(c.f, "a", 5)),
    "callable object": (lambda: Scale(2.0), lambda x, c: c(x), setter("k", 3.0)),
    "iterable object": (lambda: Several([1.0, 2.0]), _sum, lambda c: c.items.append(4.0)),
    "indexable object": (lambda: Several([1.0, 2.0]), lambda x, c: x * c[1] + len(c),
                         lambda c: c.items.__setitem__(1, 4.0)),
    "context manager with state": (
        lambda: Entered(), lambda x, c: c.used(x), setter("k", 3.0), setter("k", 5.0)),
    "thread local": (threading.local, lambda x, c: x * getattr(c, "k", 1.0), setter("k", 3.0)),
    "lock": (threading.Lock, lambda x, c: _locked(c, x), lambda c: None),
    "class attribute": (lambda: type("C", (), {"k": 2.0}), lambda x, c: x * c.k, setter("k", 3.0)),
    **{
        f"attribute of a class in a module called {name}": (
            lambda name=name: type("C", (), {"k": 2.0, "__module__": name}),
            lambda x, c: x * c.k, setter("k", 3.0))
        for name in ("builtins", "test", "test.settings", "statistics", "numpy.settings")
    },
    "attribute of an instance's class": (
        lambda: type("C", (), {"k": 2.0})(), lambda x, c: x * c.k,
        lambda c: setattr(type(c), "k", 3.0), setter("k", 9.0), lambda c: delattr(c, "k")),
    "inherited class attribute": (
        lambda: type("D", (type("C", (), {"k": 2.0}),), {}), lambda x, c: x * c().k,
        lambda c: setattr(c.__mro__[1], "k", 3.0), setter("k", 9.0)),
    "method replaced on the class": (
        lambda: type("C", (), {"f": lambda self, x: x * 2})(), lambda x, c: c.f(x),
        lambda c: setattr(type(c), "f", lambda self, x: x * 3)),
    "method replaced on the instance": (
        lambda: type("C", (), {"f": lambda self, x: x * 2})(), lambda x, c: c.f(x),
        setter("f", lambda: lambda x: x * 3), lambda c: delattr(c, "f")),
    "class of an object changed": (
        lambda: Scale(2.0), lambda x, c: c(x), lambda c: setattr(c, "__class__", Twice)),
    "static and class methods": (
        lambda: type("C", (), {"k": 2.0, "f": classmethod(lambda cls, x: x * cls.k)}),
        lambda x, c: c.f(x), setter("k", 3.0)),
    "defaults of a function": (
        lambda: SimpleNamespace(f=_with_default()), lambda x, c: c.f(x),
        lambda c: setattr(c.f, "__defaults__", (5.0,))),
    "keyword defaults of a function": (
        lambda: SimpleNamespace(f=_with_default()), lambda x, c: c.f(x),
        lambda c: setattr(c.f, "__kwdefaults__", {"j": 5.0})),
    "attribute of a function": (
        lambda: _with_default(), lambda x, c: x * getattr(c, "k", 2.0), setter("k", 3.0)),
    "code of a function": (
        lambda: _with_default(), lambda x, c: c(x),
        lambda c: setattr(c, "__code__", (lambda x, k=2.0, *, j=1.0: x - k - j).__code__)),
    "module": (lambda: made("K = 2.0"), lambda x, c: x * c.K, setter("K", 3.0)),
    "function of a module": (
        lambda: made("K = 2.0\ndef f(x):\n    return x * K"), lambda x, c: c.f(x),
        setter("K", 3.0), lambda c: setattr(c, "f", lambda x: x - 1)),
    "builtin shadowed in a module": (
        lambda: made("def f(x):\n    return x * len([1, 2])"), lambda x, c: c.f(x),
        setter("len", lambda: lambda v: 10.0), lambda c: delattr(c, "len")),
    "tensor of a module": (
        lambda: made("W = genesis.tensor([1.0, 2.0])\ndef f(x):\n    return x * W"),
        lambda x, c: c.f(x), setter("W", lambda: vector(3, 4)), lambda c: c.W.mul_(2)),
    "nested modules": (
        lambda: made("", inner=made("K = 2.0\ndef f(x):\n    return x * K")),
        lambda x, c: c.inner.f(x) + c.inner.K, lambda c: setattr(c.inner, "K", 3.0)),
    "list of modules": (lambda: [made("K = 2.0"), made("K = 3.0")], lambda x, c: _sum(x, [m.K for m in c]),
                        lambda c: setattr(c[1], "K", 5.0)),
}  # fmt: skip


class FractionLike:
    def __init__(self, a: int, b: int) -> None:
        self.a, self.b = a, b

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FractionLike) and self.b == other.b  # says less than it should

    def __hash__(self) -> int:
        return 0

    def value(self) -> float:
        return self.a / self.b

    def __mul__(self, x: Any) -> Any:
        return x * self.a / self.b


class Scale:
    def __init__(self, k: float) -> None:
        self.k = k

    def __call__(self, x: Any) -> Any:
        return x * self.k


class Twice(Scale):
    def __call__(self, x: Any) -> Any:
        return x * self.k * 2


class Several:
    def __init__(self, items: list[float]) -> None:
        self.items = items

    def __iter__(self) -> Any:
        yield from self.items

    def __getitem__(self, k: int) -> float:
        return self.items[k]

    def __len__(self) -> int:
        return len(self.items)


class Entered:
    def __init__(self) -> None:
        self.k = 2.0
        self.depth = 0

    def __enter__(self) -> float:
        self.depth += 1
        return self.k

    def __exit__(self, *_: Any) -> None:
        self.depth -= 1

    def used(self, x: Any) -> Any:
        with self as k:
            return x * k + self.depth


def _locked(lock: Any, x: Any) -> Any:
    with lock:
        return x * 2


def _with_default() -> Callable[..., Any]:
    def f(x: Any, k: float = 2.0, *, j: float = 1.0) -> Any:
        return x * k + j

    return f


REFUSABLE = {
    "bound method",
    "numpy branch",
    "lock",
    "thread local",
    "code of a function",
    "class of an object changed",
    "bytearray",
}
for name, (make, f, *changes) in STATES.items():
    add_program(f"read {name}", _changing(make, f, *changes), name in REFUSABLE)
for name in (
    "dataclass", "dataclass list", "namespace", "nested namespace", "slots", "property", "list",
    "list of tensors", "list length", "dict", "dict of dicts", "dict of tensors", "dict order",
    "set", "deque", "deque of tensors", "numpy", "numpy branch", "callable object", "tensor rebound",
    "object with equality", "class attribute", "method replaced on the instance", "module",
    "attribute of an instance's class", "star keywords", "enum", "default dict", "partial",
):  # fmt: skip
    make, f, *changes = STATES[name]
    add_program(f"read {name} in an argument", _argument(make, f, *changes), name in REFUSABLE)


# ---- modules


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.k = 2.0
        self.mode = "a"
        self.scales = [1.0, 2.0]
        self.options = {"on": True}
        self.config = Config()
        self.w = vector(1, 2)
        self.p = nn.Parameter(vector(1, 1))
        self.register_buffer("b", vector(1, 1))

    def forward(self, x: Any) -> Any:
        y = x * self.k * self.config.rate + self.b
        if self.mode == "b":
            y = y - 1
        if self.options["on"]:
            y = y * self.w
        for s in self.scales:
            y = y + s
        return y * self.p


CHANGES: dict[str, Callable[[Net], Any]] = {
    "number": setter("k", 3.0),
    "text": setter("mode", "b"),
    "list": lambda m: m.scales.append(4.0),
    "list element": lambda m: m.scales.__setitem__(0, 7.0),
    "dict": lambda m: m.options.update(on=False),
    "config": lambda m: setattr(m.config, "rate", 5.0),
    "tensor": setter("w", lambda: vector(5, 6)),
    "tensor in place": lambda m: m.w.mul_(3),
    "parameter": setter("p", lambda: nn.Parameter(vector(3, 4))),
    "parameter's data": lambda m: setattr(m.p, "data", vector(6, 7)),
    "buffer": setter("b", lambda: vector(8, 9)),
    "buffer in place": lambda m: m.b.add_(3),
    "double": lambda m: m.double(),
    "forward": lambda m: setattr(m, "forward", lambda x: x * 100),
    "requires_grad": lambda m: m.p.requires_grad_(False),
    "zeroed": lambda m: m.load_state_dict({k: v * 0 for k, v in m.state_dict().items()}),
}


def _module(change: Callable[[Net], Any], how: str) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        model = Net()
        if how == "model":
            f = jit(model)
        elif how == "forward":
            f = jit(model.forward)
        elif how == "method":
            f = jit(Net.forward).__get__(model, Net) if jit is genesis.jit else model.forward
        else:
            f = jit(lambda x: model(x))
        seen = [attempt(f, vector(1, 2)) for _ in range(2)]
        change(model)
        return seen + [attempt(f, vector(1, 2)) for _ in range(2)]

    return run


for name, change in CHANGES.items():
    add_program(f"model's {name}, jitted", _module(change, "model"))
    add_program(f"model's {name}, closed over", _module(change, "closure"))
for name in ("number", "list", "config", "tensor", "buffer", "parameter"):
    add_program(f"model's {name}, bound forward", _module(CHANGES[name], "forward"))
    add_program(f"model's {name}, unbound forward", _module(CHANGES[name], "method"))


@program
def layers_added_and_replaced(jit: Jit) -> Any:
    model = mlp()
    f = jit(model)
    seen = []
    for k in range(6):
        if k == 2:
            model.append(nn.ReLU())
        if k == 3:
            model[1] = nn.Sigmoid()
        if k == 4:
            del model[3]
        seen.append(show(f(batch(k)[0])))
    return seen


@program
def settings_of_layers(jit: Jit) -> Any:
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5), nn.LeakyReLU(0.1))
    f = jit(model)
    seen = []
    for k in range(8):
        if k == 2:
            model[2].negative_slope = 0.5
        if k == 3:
            model[1].p = 0.1
        if k == 5:
            model.eval()
        seen.append(show(f(batch(k)[0])))
    return seen


@program
def method_reads_self(jit: Jit) -> Any:
    class Model:
        scale = 3.0

        def __init__(self, k: float) -> None:
            self.k = k

        @jit
        def f(self, x: Any) -> Any:
            return x * self.k + self.scale

    a, b = Model(1), Model(2)
    seen = [show(m.f(vector(1, 2))) for m in (a, b, a, b)]
    a.k = 5.0
    seen += [show(m.f(vector(1, 2))) for m in (a, b)]
    Model.scale = 4.0
    seen += [show(m.f(vector(1, 2))) for m in (a, b)]
    b.scale = 7.0
    return seen + [show(m.f(vector(1, 2))) for m in (a, b)]


@program
def bound_method_jitted(jit: Jit) -> Any:
    scale = Scale(2.0)
    f = jit(scale.__call__)
    seen = [show(f(vector(1, 2))) for _ in range(2)]
    scale.k = 3.0
    return [*seen, show(f(vector(1, 2)))]


@program
def callable_object_jitted(jit: Jit) -> Any:
    scale = Scale(2.0)
    f = jit(scale)
    seen = [show(f(vector(1, 2))) for _ in range(2)]
    scale.k = 3.0
    return [*seen, show(f(vector(1, 2)))]


@program
def partial_jitted(jit: Jit) -> Any:
    options = {"k": 2.0}
    f = jit(functools.partial(lambda x, o, j: x * o["k"] + j, o=options, j=1.0))
    seen = [show(f(vector(1, 2))) for _ in range(2)]
    options["k"] = 3.0
    return [*seen, show(f(vector(1, 2))), show(f(vector(1, 2), j=5.0))]


@program
def static_and_class_methods_jitted(jit: Jit) -> Any:
    class Model:
        k = 2.0

        @staticmethod
        @jit
        def s(x: Any) -> Any:
            return x * 2

        @classmethod
        def c(cls, x: Any) -> Any:
            return x * cls.k

    c = jit(Model.c)
    seen = [show(Model.s(vector(1, 2))), show(c(vector(1, 2))), show(c(vector(1, 2)))]
    Model.k = 3.0
    return [*seen, show(c(vector(1, 2)))]


@program
def super_and_inheritance(jit: Jit) -> Any:
    class Base:
        k = 2.0

        def f(self, x: Any) -> Any:
            return x * self.k

    class Derived(Base):
        def f(self, x: Any) -> Any:
            return super().f(x) + 1

    d = Derived()
    f = jit(lambda x: d.f(x))
    seen = [show(f(vector(1, 2))) for _ in range(2)]
    Base.k = 5.0
    seen.append(show(f(vector(1, 2))))
    Base.f = lambda self, x: x * 100  # type: ignore[method-assign]
    return [*seen, show(f(vector(1, 2)))]


# ---- defaults, closures, globals


@program
def default_arguments(jit: Jit) -> Any:
    def f(x: Any, k: float = 2.0, w: Any = vector(1, 1), *, j: float = 1.0) -> Any:
        return x * k * w + j

    g = jit(f)
    seen = [show(g(vector(1, 2))) for _ in range(2)]
    f.__defaults__ = (3.0, vector(2, 2))
    seen.append(show(g(vector(1, 2))))
    f.__kwdefaults__ = {"j": 7.0}
    seen.append(show(g(vector(1, 2))))
    f.__defaults__[1].mul_(5)
    return [*seen, show(g(vector(1, 2))), show(g(vector(1, 2), 4.0)), show(g(vector(1, 2), j=0.0))]


@program
def mutable_default(jit: Jit) -> Any:
    def f(x: Any, options: dict[str, float] = {"k": 2.0}) -> Any:  # noqa: B006
        return x * options["k"]

    g = jit(f)
    seen = [show(g(vector(1, 2))) for _ in range(2)]
    f.__defaults__[0]["k"] = 3.0  # type: ignore[index]
    return [*seen, show(g(vector(1, 2)))]


@program
def mutable_default_written(jit: Jit) -> Any:
    def f(x: Any, seen: list[int] = []) -> Any:  # noqa: B006
        seen.append(1)
        return x * len(seen)

    g = jit(f)
    return [show(g(vector(1, 2))) for _ in range(4)], f.__defaults__


@program
def closure_rebound(jit: Jit) -> Any:
    k: Any = 2.0
    f = jit(lambda x: x * k)
    seen = [show(f(vector(1, 2))) for _ in range(2)]
    for k in (3.0, 3, vector(4, 5), vector(6, 7), None):  # noqa: B007
        seen.append(attempt(f, vector(1, 2)))
    return seen


@program
def closure_of_a_closure(jit: Jit) -> Any:
    k = 2.0

    def outer() -> Callable[..., Any]:
        def inner(x: Any) -> Any:
            return x * k

        return inner

    f = jit(lambda x: outer()(x))
    seen = [show(f(vector(1, 2))) for _ in range(2)]
    k = 3.0
    return [*seen, show(f(vector(1, 2)))]


@program
def empty_cell(jit: Jit) -> Any:
    f = jit(lambda x: x * later)
    seen = [attempt(f, vector(1, 2))]
    later = 2.0
    seen += [attempt(f, vector(1, 2))]
    del later
    return [*seen, attempt(f, vector(1, 2))]


@program
def helper_replaced(jit: Jit) -> Any:
    def helper(x: Any) -> Any:
        return x * 2

    f = jit(lambda x: helper(x))
    seen = [show(f(vector(1, 2))) for _ in range(2)]

    def helper(x: Any) -> Any:
        return x * 3

    return [*seen, show(f(vector(1, 2)))]


def _globals(source: str, *changes: str) -> Callable[[Jit], Any]:
    """A function `f` of a module, and statements executed in that module between calls."""

    def run(jit: Jit) -> Any:
        module = made(source, jit=jit)
        f = jit(module.f)
        seen = [attempt(f, vector(1, 2)) for _ in range(2)]
        for change in changes:
            exec(change, vars(module))
            seen.append(attempt(f, vector(1, 2)))
        seen.append(attempt(f, vector(1, 2)))
        kept = {k: v for k, v in vars(module).items() if isinstance(v, int | float | list | dict)}
        return seen, [show(v) for k, v in kept.items() if not k.startswith("__")]

    return run


GLOBALS: dict[str, tuple[str, ...]] = {
    "number": ("K = 2.0\ndef f(x): return x * K", "K = 3.0", "K = 3", "del K"),
    "tensor": ("K = genesis.ones(2)\ndef f(x): return x * K", "K = genesis.ones(2) * 5", "K.mul_(2)"),
    "in a helper": ("K = 2.0\ndef g(x): return x * K\ndef f(x): return g(x)", "K = 3.0",
                    "def g(x): return x - 1"),
    "in a lambda": ("K = 2.0\nf = lambda x: (lambda: x * K)()", "K = 3.0"),
    "in a comprehension": ("K = [1.0, 2.0]\ndef f(x): return sum([x * k for k in K], x)",
                           "K.append(3.0)", "K = [9.0]"),
    "in a nested function": ("K = 2.0\ndef f(x):\n    def g(): return x * K\n    return g()", "K = 3.0"),
    "in a default": ("K = 2.0\ndef f(x):\n    def g(k=K): return x * k\n    return g()", "K = 3.0"),
    "in a class": ("K = 2.0\nclass C:\n    def m(self, x): return x * K\ndef f(x): return C().m(x)",
                   "K = 3.0", "C.m = lambda self, x: x - 1"),
    "in a generator": ("K = 2.0\ndef g():\n    yield K\n    yield K * 2\ndef f(x): return sum([x * k for k in g()], x)",
                       "K = 3.0"),
    "in a decorator": (
        "K = 2.0\ndef scaled(g):\n    def h(x): return g(x) * K\n    return h\n@scaled\ndef f(x): return x + 1",
        "K = 3.0"),
    "in a context manager": (
        "import contextlib\nK = 2.0\n@contextlib.contextmanager\ndef g(): yield K\n"
        "def f(x):\n    with g() as k: return x * k", "K = 3.0"),
    "in a property": ("K = 2.0\nclass C:\n    @property\n    def k(self): return K\nc = C()\n"
                      "def f(x): return x * c.k", "K = 3.0"),
    "builtin shadowed": ("def f(x): return x * len([1, 2])", "len = lambda v: 10", "del len"),
    "builtin shadowed in a helper": ("def g(): return max(1, 2)\ndef f(x): return x * g()",
                                     "max = min", "del max"),
    "global read by globals()": ("K = 2.0\ndef f(x): return x * globals()['K']", "K = 3.0"),
    "global by eval": ("K = 2.0\ndef f(x): return eval('x * K')", "K = 3.0"),
    "import inside": ("def f(x):\n    import math\n    return x * math.floor(K)\nK = 2.5", "K = 3.5"),
    "global written": ("N = 0\ndef f(x):\n    global N\n    N += 1\n    return x * N",),
    "global tensor written": (
        "T = genesis.zeros(2)\ndef f(x):\n    global T\n    T = T + x\n    return T * 2",
        "T = genesis.ones(2)"),
    "global tensor in place": ("T = genesis.zeros(2)\ndef f(x):\n    T.add_(x)\n    return T * 2",
                               "T = genesis.ones(2)"),
    "global written by a helper": (
        "N = 0\ndef g():\n    global N\n    N += 1\n    return N\ndef f(x): return x * g()", "N = 10"),
    "global created": ("def f(x):\n    global N\n    N = 3\n    return x * N", "del N"),
    "global deleted": ("N = 3\ndef f(x):\n    global N\n    del N\n    return x", "N = 4"),
    "cache": ("C = {}\ndef f(x):\n    if 'k' not in C: C['k'] = 2.0\n    else: C['k'] += 1\n    return x * C['k']",
              "C.clear()"),
    "recursion": ("def g(x, n): return x if n == 0 else g(x * K, n - 1)\nK = 2.0\ndef f(x): return g(x, 3)",
                  "K = 3.0"),
    "walrus": ("K = [1.0, 2.0]\ndef f(x): return x * n if (n := len(K)) > 1 else x", "K.pop()", "K = [1, 2, 3]"),
    "match": ("K = {'op': 'mul', 'by': 2.0}\ndef f(x):\n    match K:\n        case {'op': 'mul', 'by': b}: return x * b\n"
              "        case {'op': 'add', 'by': b}: return x + b\n        case _: return x",
              "K['by'] = 3.0", "K['op'] = 'add'", "K = None"),
    "match on a class": ("class P:\n    __match_args__ = ('k',)\n    def __init__(self, k): self.k = k\nK = P(2.0)\ndef f(x):\n"
                         "    match K:\n        case P(k): return x * k\n        case [a, *b]: return x * a + len(b)\n"
                         "        case _: return x", "K.k = 3.0", "K = [1.0, 2.0]", "K = 3"),
    "while": ("K = 3\ndef f(x):\n    n = K\n    while n > 0:\n        x = x * 2\n        n -= 1\n        if n == 7: break\n"
              "    else:\n        x = x + 1\n    return x", "K = 5", "K = 9"),
    "try and except": ("K = {}\ndef f(x):\n    try:\n        return x * K['a']\n    except KeyError:\n        return x - 1\n"
                       "    finally:\n        L.append(1)\nL = []", "K['a'] = 3.0", "K.clear()"),
    "raise": ("K = 1.0\ndef f(x):\n    if K > 2: raise ValueError('too much')\n    return x * K", "K = 3.0", "K = 2.0"),
    "assert": ("K = 1.0\ndef f(x):\n    assert K < 2\n    return x * K", "K = 3.0", "K = 1.5"),
    "generator inside": ("K = 3\ndef f(x):\n    def g():\n        for k in range(K): yield x * k\n    return sum(g(), x)",
                         "K = 4"),
    "yield from": ("K = [1.0]\ndef g():\n    yield from K\ndef f(x): return sum([x * k for k in g()], x)", "K.append(4.0)"),
    "class made inside": ("K = 2.0\ndef f(x):\n    class C:\n        k = K\n        def m(self, x): return x * self.k\n"
                          "    return C().m(x)", "K = 3.0"),
    "instance made inside": ("K = 2.0\nclass C:\n    def __init__(self): self.k = K\ndef f(x):\n    c = C()\n    c.k += 1\n"
                             "    return x * c.k", "K = 3.0"),
    "isinstance": ("K = 1\ndef f(x): return x * 2 if isinstance(K, int) else x", "K = 1.0", "K = True"),
    "ternary chains": ("A = B = 1\ndef f(x): return x if A < B < 3 else x * 2 if A else x * 3", "B = 2", "A = 0", "A = 5"),
    "tuple assignment": ("A, B = 1.0, 2.0\ndef f(x):\n    a, b = B, A\n    return x * a - b", "A, B = B, A"),
    "dict display": ("K = 2.0\ndef f(x): return {'a': x * K, **D}\nD = {}", "D['b'] = 1.0", "K = 3.0"),
    "string building": ("K = 'a'\nT = {'ab': 2.0, 'cb': 3.0}\ndef f(x): return x * T[K + 'b']", "K = 'c'", "T['cb'] = 9.0"),
    "format spec": ("K = 2.0\ndef f(x): return x * len(f'{K:.2f}')", "K = 100.0"),
    "functions in a dict": ("T = {'a': lambda x: x * 2, 'b': lambda x: x * 3}\nK = 'a'\ndef f(x): return T[K](x)",
                            "K = 'b'", "T['b'] = lambda x: x - 1"),
    "method cached by name": ("class C:\n    k = 2.0\n    def m(self, x): return x * self.k\nc = C()\nm = c.m\n"
                              "def f(x): return m(x)", "c.k = 3.0", "m = C().m"),
    "lru_cache": ("import functools\n@functools.lru_cache\ndef g(k): return k * 2.0\nK = 1\ndef f(x): return x * g(K)", "K = 2"),
    "functools.reduce": ("import functools\nK = [1.0, 2.0]\ndef f(x): return functools.reduce(lambda a, k: a * k, K, x)",
                         "K.append(5.0)"),
    "operator.itemgetter": ("import operator\nK = {'a': 2.0}\ng = operator.itemgetter('a')\ndef f(x): return x * g(K)",
                            "K['a'] = 3.0"),
    "operator.attrgetter": ("import operator\nclass C: k = 2.0\ng = operator.attrgetter('k')\ndef f(x): return x * g(C)",
                            "C.k = 3.0"),
    "itertools.chain": ("import itertools\nA, B = [1.0], [2.0]\ndef f(x): return sum([x * k for k in itertools.chain(A, B)], x)",
                        "B.append(3.0)"),
    "itertools.product": ("import itertools\nA = [1.0, 2.0]\ndef f(x):\n    for a, b in itertools.product(A, A): x = x * a + b\n"
                          "    return x", "A[0] = 3.0"),
    "copy of a list": ("K = [1.0]\ndef f(x):\n    k = list(K)\n    k.append(5.0)\n    for v in k: x = x * v\n    return x",
                       "K.append(3.0)"),
    "deepcopy of a config": ("import copy\nK = {'a': [1.0]}\ndef f(x):\n    k = copy.deepcopy(K)\n    k['a'].append(2.0)\n"
                             "    for v in k['a']: x = x * v + 1\n    return x", "K['a'].append(3.0)"),
    "sorting in place": ("K = [3.0, 1.0, 2.0]\ndef f(x):\n    K.sort()\n    for v in K: x = x * 2 + v\n    return x",
                         "K.insert(0, 9.0)"),
    "json": ("import json\nK = '{\"a\": 2.0}'\ndef f(x): return x * json.loads(K)['a']", "K = '{\"a\": 3.0}'"),
    "regular expression": ("import re\nK = 'scale=2'\ndef f(x): return x * int(re.search(r'(\\d+)', K)[1])", "K = 'scale=3'"),
    "math of a global": ("import math\nK = 2.0\ndef f(x): return x * math.sqrt(K)", "K = 3.0"),
    "warnings": ("import warnings\nK = 2.0\ndef f(x):\n    with warnings.catch_warnings():\n"
                 "        warnings.simplefilter('ignore')\n        warnings.warn('careful')\n    return x * K", "K = 3.0"),
    "dataclass replaced": ("import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass C:\n    k: float = 2.0\nc = C()\n"
                           "def f(x): return x * dataclasses.replace(c, k=c.k + 1).k", "c = C(5.0)"),
    "named tuple": ("import collections\nP = collections.namedtuple('P', 'a b')\np = P(1.0, 2.0)\ndef f(x): return x * p.a + p.b",
                    "p = p._replace(a=3.0)"),
    "metaclass attribute": ("class M(type):\n    k = 2.0\nclass C(metaclass=M): pass\ndef f(x): return x * C.k", "M.k = 3.0",
                            "C.k = 4.0"),
    "getattribute": ("class C:\n    d = {'k': 2.0}\n    def __getattribute__(self, n):\n        return C.d[n] if n in C.d else object.__getattribute__(self, n)\nc = C()\n"
                     "def f(x): return x * c.k", "C.d['k'] = 3.0"),
    "descriptor": ("class D:\n    v = 2.0\n    def __get__(self, o, t): return self.v\nclass C: k = D()\nc = C()\n"
                   "def f(x): return x * c.k", "D.v = 3.0", "vars(C)['k'].v = 5.0"),
    "cached property": ("import functools\nclass C:\n    n = 0\n    @functools.cached_property\n    def k(self):\n        C.n += 1\n"
                        "        return 2.0 + C.n\nc = C()\ndef f(x): return x * c.k", "del c.k"),
    "lazily made tensor": ("class C:\n    w = None\n    def get(self):\n        if self.w is None: self.w = genesis.ones(2) * K\n"
                           "        return self.w\nc = C()\nK = 2.0\ndef f(x): return x * c.get()", "K = 3.0", "c.w = None"),
    "registry": ("R = {}\ndef register(g):\n    R[g.__name__] = g\n    return g\n@register\ndef a(x): return x * 2\n"
                 "def f(x):\n    for g in R.values(): x = g(x)\n    return x", "@register\ndef b(x): return x + 5"),
    "counter in an iterator": ("it = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])\ndef f(x): return x * next(it)",
                               "it = iter([7.0, 8.0, 9.0])"),
    "generator from outside": ("def g():\n    k = 1.0\n    while True:\n        k += 1\n        yield k\nit = g()\n"
                               "def f(x): return x * next(it)", "it = g()"),
    "itertools.count": ("import itertools\nit = itertools.count(1)\ndef f(x): return x * next(it)", "next(it)"),
    "iterator exhausted": ("it = iter([1.0, 2.0, 3.0])\ndef f(x): return x * next(it, -1.0)",),
    "for over an iterator from outside": ("it = iter([1.0, 2.0])\ndef f(x):\n    for k in it: x = x * 2 + k\n    return x",
                                          "it = iter([3.0])"),
    "zip over an iterator from outside": ("it = iter(range(6))\ndef f(x):\n    for k, _ in zip(it, 'ab'): x = x * 2 + k\n    return x",),
    "generator of tensors": ("def g():\n    t = genesis.ones(2)\n    while True:\n        yield t\n        t = t * 2\nit = g()\n"
                             "def f(x): return x * next(it)",),
    "random.random": ("import random\nrandom.seed(0)\ndef f(x): return x * random.random()", "random.seed(0)"),
    "random.choice": ("import random\nrandom.seed(0)\nK = [1.0, 2.0, 3.0]\ndef f(x): return x * random.choice(K)", "random.seed(1)"),
    "random instance": ("import random\nr = random.Random(0)\ndef f(x): return x * r.uniform(1, 2)",),
    "random.shuffle": ("import random\nrandom.seed(0)\nK = [1.0, 2.0, 3.0]\ndef f(x):\n    random.shuffle(K)\n"
                       "    for v in K: x = x * 2 + v\n    return x",),
    "numpy random": ("import numpy\nnumpy.random.seed(0)\ndef f(x): return x * float(numpy.random.rand())",),
    "numpy generator": ("import numpy\nr = numpy.random.default_rng(0)\ndef f(x): return x * float(r.random())",),
    "numpy random array": ("import numpy\nr = numpy.random.default_rng(0)\n"
                           "def f(x): return x * genesis.tensor(r.random(2).astype('float32'))",),
    "id and hash": ("K = 'a'\ndef f(x): return x * (hash(K) == hash('a'))", "K = 'b'"),
    "environment": ("import os\nos.environ['GENESIS_TEST_K'] = '2'\ndef f(x): return x * float(os.environ['GENESIS_TEST_K'])",
                    "os.environ['GENESIS_TEST_K'] = '3'"),
    "environment by getenv": ("import os\nos.environ['GENESIS_TEST_K'] = '2'\ndef f(x): return x * float(os.getenv('GENESIS_TEST_K'))",
                              "os.environ['GENESIS_TEST_K'] = '3'"),
    "string stream": ("import io\ns = io.StringIO('1 2 3 4 5 6')\ndef f(x): return x * float(s.read(2))", "s.seek(0)"),
    "queue": ("import queue\nq = queue.Queue()\nfor k in range(6): q.put(k)\ndef f(x): return x * q.get_nowait()",),
    "heap": ("import heapq\nK = [3.0, 1.0, 2.0]\nheapq.heapify(K)\ndef f(x): return x * heapq.heappushpop(K, 5.0)",),
    "bisect": ("import bisect\nK = [1, 5]\ndef f(x): return x * bisect.bisect(K, 3)", "K.insert(0, 0)"),
    "struct": ("import struct\nK = b'\\x02'\ndef f(x): return x * struct.unpack('B', K)[0]", "K = b'\\x03'"),
    "decimal context": ("import decimal\nK = decimal.Decimal(2)\ndef f(x): return x * float(K / 3)",
                        "decimal.getcontext().prec = 3", "decimal.getcontext().prec = 28"),
    "context variable": ("import contextvars\nv = contextvars.ContextVar('v', default=2.0)\ndef f(x): return x * v.get()",
                         "v.set(3.0)"),
    "weak reference": ("import weakref\nclass C: k = 2.0\nc = C()\nr = weakref.ref(c)\ndef f(x): return x * r().k if r() else x",
                       "c.k = 3.0", "del c"),
    "sys.modules": ("import sys\ndef f(x): return x * 2 if 'genesis_no_such' in sys.modules else x",
                    "sys.modules['genesis_no_such'] = None", "del sys.modules['genesis_no_such']"),
    "recursion limit": ("import sys\nL = sys.getrecursionlimit()\ndef f(x): return x * (sys.getrecursionlimit() - L + 1)",
                        "sys.setrecursionlimit(L + 5)", "sys.setrecursionlimit(L)"),
    "frame": ("K = 2.0\ndef g():\n    import sys\n    return sys._getframe(1).f_locals['k']\ndef f(x):\n    k = K\n    return x * g()",
              "K = 3.0"),
    "locals": ("K = 2.0\ndef f(x):\n    k = K\n    return x * locals()['k']", "K = 3.0"),
    "async": ("K = 2.0\nasync def g(x): return x * K\ndef f(x):\n    c = g(x)\n    try:\n        c.send(None)\n"
              "    except StopIteration as e:\n        return e.value", "K = 3.0"),
    "exec": ("K = 2.0\ndef f(x):\n    d = {'x': x, 'K': K}\n    exec('y = x * K', d)\n    return d['y']", "K = 3.0"),
}  # fmt: skip
HIDDEN = {
    "counter in an iterator", "itertools.count", "iterator exhausted",
    "for over an iterator from outside", "zip over an iterator from outside",
    "random.random", "random.choice", "random instance", "random.shuffle", "numpy random",
    "numpy generator", "numpy random array", "environment", "environment by getenv", "queue",
    "string stream", "decimal context", "context variable", "sys.modules", "recursion limit", "frame",
    "locals", "async", "exec", "weak reference", "generator of tensors", "generator from outside",
    "warnings", "getattribute", "id and hash", "heap", "global by eval", "import inside", "json",
    "regular expression", "struct", "class made inside", "lru_cache", "deepcopy of a config",
}  # fmt: skip
for name, (source, *statements) in GLOBALS.items():
    add_program(f"global {name}", _globals(source, *statements), name in HIDDEN)


@program(may_refuse=True)
def time_is_read(jit: Jit) -> Any:
    f = jit(lambda x: x + time.perf_counter() * 0 + (time.perf_counter_ns() % 2) * 0)
    stamps = jit(lambda: time.perf_counter())
    a, b = stamps(), stamps()
    return show(f(vector(1, 2))), a < b


@program(may_refuse=True)
def a_file_is_read(jit: Jit) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "k")

        def f(x: Any) -> Any:
            with open(path) as file:
                return x * float(file.read())

        f = jit(f)
        seen = []
        for k in (2, 2, 3):
            with open(path, "w") as file:
                file.write(str(k))
            seen.append(show(f(vector(1, 2))))
        return seen


@program(may_refuse=True)
def a_file_is_written(jit: Jit) -> Any:
    stream = io.StringIO()

    def f(x: Any) -> Any:
        stream.write("called ")
        return x * 2

    f = jit(f)
    return [(show(f(vector(1, 2))), stream.getvalue()) for _ in range(3)]


@program(may_refuse=True)
def printing(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        print("called")
        return x * 2

    f = jit(f)
    seen = []
    for _ in range(3):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            f(vector(1, 2))
        seen.append(out.getvalue())
    return seen


@program(may_refuse=True)
def printing_a_tensor(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        print(x)
        return x * 2

    f = jit(f)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        f(vector(1, 2))
        f(vector(3, 4))
    return out.getvalue()


@program(may_refuse=True)
def logging_calls(jit: Jit) -> Any:
    import logging

    records: list[str] = []
    logger = logging.getLogger("genesis.test")
    logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda r: records.append(r.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)

    def f(x: Any) -> Any:
        logger.info("shape %s", tuple(x.shape))
        return x * 2

    f = jit(f)
    for n in (2, 2, 3):
        f(genesis.ones(n))
    logger.removeHandler(handler)
    return records


@program(may_refuse=True)
def branch_on_contents(jit: Jit) -> Any:
    f = jit(lambda x: x * 2 if x.sum() > 0 else x * 3)
    return [show(f(vector(k, 1))) for k in (1, -3, 2)]


@program(may_refuse=True)
def item_of_an_argument(jit: Jit) -> Any:
    f = jit(lambda x: x * x.max().item())
    return [show(f(vector(k, 1))) for k in (1, -3, 2)]


@program(may_refuse=True)
def numpy_of_an_argument(jit: Jit) -> Any:
    f = jit(lambda x: x * float(np.sum(x.numpy())))
    return [show(f(vector(k, 1))) for k in (1, -3, 2)]


@program(may_refuse=True)
def item_of_an_outer_tensor(jit: Jit) -> Any:
    w = vector(2)
    f = jit(lambda x: x * w.item())
    seen = [show(f(vector(1, 2))) for _ in range(2)]
    w.mul_(5)
    return [*seen, show(f(vector(1, 2)))]


@program(may_refuse=True)
def branch_on_an_outer_tensor(jit: Jit) -> Any:
    w = vector(2)
    f = jit(lambda x: x * 2 if w > 1 else x * 3)
    seen = [show(f(vector(1, 2))) for _ in range(2)]
    w.mul_(0)
    return [*seen, show(f(vector(1, 2)))]


@program(may_refuse=True)
def iterating_over_contents(jit: Jit) -> Any:
    f = jit(lambda x: [float(v) for v in x])
    return [f(vector(k, 1)) for k in (1, -3, 2)]


@program
def default_dtype(jit: Jit) -> Any:
    f = jit(lambda x: (x * 2, genesis.ones(2), genesis.tensor([1.5])))
    seen = []
    for dtype in (genesis.float32, genesis.float64, genesis.float32):
        before = genesis.get_default_dtype()
        genesis.set_default_dtype(dtype)
        try:
            seen.append(show(f(vector(1, 2).to(genesis.float32))))
        finally:
            genesis.set_default_dtype(before)
    return seen


@program
def default_dtype_set_inside(jit: Jit) -> Any:
    before = genesis.get_default_dtype()

    @jit
    def f(x: Any) -> Any:
        genesis.set_default_dtype(genesis.float64)
        return genesis.ones(2) + x

    seen = []
    try:
        for _ in range(3):
            genesis.set_default_dtype(genesis.float32)
            y = f(genesis.ones(2))
            seen.append((show(y), str(genesis.get_default_dtype())))
    finally:
        genesis.set_default_dtype(before)
    return seen


@program
def requires_grad_added_later(jit: Jit) -> Any:
    w = vector(1, 2)
    f = jit(lambda x: x * w)
    seen = []
    for k in range(6):
        w.requires_grad_(k in (2, 3, 5))
        y = f(vector(1, 2))
        seen.append((y.requires_grad, show(y)))
    return seen


@program
def a_growing_list_in_a_closure(jit: Jit) -> Any:
    history: list[Any] = []
    f = jit(lambda x: sum(history, x))
    seen = []
    for _ in range(6):
        y = f(vector(1, 2))
        seen.append(show(y))
        history.append(y)
    return seen


@program
def monkeypatched_library_function(jit: Jit) -> Any:
    f = jit(lambda x: genesis.functional.relu(x) + nn.functional.relu(x))
    seen = [show(f(vector(1, -2))) for _ in range(2)]
    original = nn.functional.relu
    nn.functional.relu = lambda x: x * 10  # type: ignore[assignment]
    try:
        seen.append(show(f(vector(1, -2))))
    finally:
        nn.functional.relu = original
    return [*seen, show(f(vector(1, -2)))]


@program
def monkeypatched_method_of_a_layer(jit: Jit) -> Any:
    model = mlp()
    f = jit(model)
    seen = [show(f(batch(0)[0])) for _ in range(2)]
    original = nn.Tanh.forward
    nn.Tanh.forward = lambda self, x: x * 10  # type: ignore[method-assign]
    try:
        seen.append(show(f(batch(0)[0])))
    finally:
        nn.Tanh.forward = original  # type: ignore[method-assign]
    return [*seen, show(f(batch(0)[0]))]


@program
def user_subclass_of_a_layer(jit: Jit) -> Any:
    class Scaled(nn.Linear):
        factor = 2.0

        def forward(self, x: Any) -> Any:
            return super().forward(x) * self.factor

    genesis.manual_seed(0)
    layer = Scaled(3, 2)
    f = jit(layer)
    seen = [show(f(batch(k)[0])) for k in range(2)]
    Scaled.factor = 3.0
    seen.append(show(f(batch(0)[0])))
    layer.factor = 4.0
    seen.append(show(f(batch(0)[0])))
    return seen, weights(layer)


@program
def module_list_iterated(jit: Jit) -> Any:
    genesis.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def f(x: Any) -> Any:
        for layer in layers:
            x = genesis.tanh(layer(x))
        return x

    f = jit(f)
    seen = [show(f(batch(k)[0])) for k in range(2)]
    layers.append(nn.Linear(3, 3))
    seen.append(show(f(batch(0)[0])))
    layers[0] = nn.Identity()
    seen.append(show(f(batch(0)[0])))
    layers[1], layers[2] = layers[2], layers[1]
    seen.append(show(f(batch(0)[0])))
    return seen


@program
def plain_list_of_layers(jit: Jit) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(3, 3)]
            self.by_name = {"a": nn.Linear(3, 3)}

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.by_name["a"](x)

    genesis.manual_seed(0)
    model = Model()
    f = jit(model)
    seen = [show(f(batch(k)[0])) for k in range(2)]
    model.layers.append(nn.Linear(3, 3))
    seen.append(show(f(batch(0)[0])))
    model.by_name["a"] = nn.Linear(3, 2)
    seen.append(show(f(batch(0)[0])))
    model.layers[0].weight.data = model.layers[0].weight.data * 2
    return [*seen, show(f(batch(0)[0]))]


@program
def keyword_order_and_defaults(jit: Jit) -> Any:
    f = jit(
        lambda x, *args, a=1.0, **kw: x * a + sum(args) + sum(v * len(k) for k, v in kw.items())
    )
    x = vector(1, 2)
    return [
        show(f(x)), show(f(x, 1.0)), show(f(x, 1.0, 2.0)), show(f(x, a=2.0)),
        show(f(x, b=2.0)), show(f(x, cc=2.0, b=3.0)), show(f(x, b=3.0, cc=2.0)), show(f(x, 1.0, a=3.0)),
    ]  # fmt: skip


@program
def plain_arguments_of_many_kinds(jit: Jit) -> Any:
    def f(x: Any, k: Any) -> Any:
        if k is None:
            return x
        if isinstance(k, str):
            return x * len(k)
        if isinstance(k, slice):
            return x[k]
        if isinstance(k, tuple | list):
            return sum([x * v for v in k], x)
        if isinstance(k, dict):
            return x * k["k"]
        if k is ...:
            return x - 1
        if isinstance(k, type):
            return x * (2 if k is int else 3)
        if isinstance(k, genesis.dtype):
            return x.to(k)
        if callable(k):
            return k(x)
        return x * k

    g = jit(f)
    x = vector(1, 2)
    values: list[Any] = [
        None, 2, 2.0, True, "ab", "abc", slice(1), slice(1, 2), (1.0, 2.0), [1.0, 2.0], (1, 2),
        {"k": 2.0}, {"k": 3.0}, ..., int, float, genesis.float64, genesis.relu, lambda v: v * 7,
        np.float32(3), range(3), frozenset({1}), 3 + 0j,
    ]  # fmt: skip
    return [attempt(g, x, v) for v in values for _ in range(2)]


@program
def which_object_an_argument_is(jit: Jit) -> Any:
    one, two = vector(1, 2), vector(1, 2)
    holder = SimpleNamespace(x=None)
    many = [one]

    def f(x: Any, y: Any) -> Any:
        holder.x = x
        return x is one, holder.x is one, x is y, y is not two, y is many, x is one and x in many

    f = jit(f)
    pairs = [(one, one), (two, one), (one, two), (two, two), (two, vector(1, 2)), (two, many)]
    return [show(f(*pair)) for pair in pairs * 2]


@program
def arguments_as_keys(jit: Jit) -> Any:
    one, two = vector(1, 2), vector(1, 2)
    names = {one: "one"}
    seen = {id(one)}

    def f(x: Any, y: Any) -> Any:
        own = {y: 1}
        return (
            names.get(x), x in names, id(x) in seen, hash(x) == hash(one), own.get(two),
            len({x, one}), {v: v for v in (x,)}.get(one) is x,
        )  # fmt: skip

    f = jit(f)
    return [show(f(*pair)) for pair in [(one, two), (two, one), (two, two), (one, one)] * 2]


@program
def arguments_that_are_no_keys_raise(jit: Jit) -> Any:
    one = vector(1, 2)
    names = {one: 1}
    f = jit(lambda x: names[x])
    return [attempt(f, x) for x in (one, vector(1, 2), one)]


@program
def defaults_of_functions_that_jit_and_libraries_call(jit: Jit) -> Any:
    def inner(x: Any, k: float = 2.0) -> Any:
        return x * k

    def only_default(x: Any, k: float = 2.0) -> Any:
        return k

    class Adds:
        def __add__(self, other: Any, k: float = 2.0) -> Any:
            return other * k

    jitted = jit(inner)
    adds = Adds()

    @jit
    def f(x: Any) -> Any:
        mapped = list(map(inner, [x]))
        return jitted(x), mapped, functools.reduce(only_default, [x, x]), adds + x

    seen = []
    for k in (2.0, 3.0, 3.0, 4.0):
        inner.__defaults__ = only_default.__defaults__ = Adds.__add__.__defaults__ = (k,)
        seen.append(show(f(vector(1, 2))))
    return seen


@program
def items_of_a_full_deque(jit: Jit) -> Any:
    numbers = collections.deque([1.0, 0.5], maxlen=3)

    @jit
    def f(x: Any) -> Any:
        numbers.append(4.0)
        return x * numbers[0]

    seen = []
    for k in range(6):
        seen.append((show(f(vector(1, 2))), list(numbers)))
        numbers.append(k)
    return seen


def _of_weights(f: Callable[..., Any]) -> Callable[[Jit], Any]:
    """What is made of arrays from outside and of numbers: it is kept from run to run."""

    def run(jit: Jit) -> Any:
        w = genesis.tensor([[3.0, -2.0], [1.0, 5.0]])
        k = [0.5, 1.5]
        jitted = jit(lambda x: f(x, w, *k))
        other = jit(lambda x: f(x, w, k[1], 4.0))
        seen = []
        for n in (2, 2, 2, 3, 3, 4, 4, 5, 5, 3, 3):
            if n == 4:
                k.reverse()
            seen.append((show(jitted(genesis.ones(n, 2))), show(other(genesis.ones(n, 2)))))
        return seen

    return run


KEPT: dict[str, Callable[..., Any]] = {
    "by two numbers": lambda x, w, a, b: (x @ (w * a).cumsum(0), x @ (w * b).cumsum(0)),
    "by numbers in turn": lambda x, w, a, b: (x @ (w * a + b).cumsum(0), x @ (w * b + a).cumsum(0)),
    "by a size": lambda x, w, a, b: x @ (w * x.shape[0]).cumsum(0),
    "by a size and a number": lambda x, w, a, b: (
        x @ (w + x.shape[0] * a).cumsum(0), (w - x.shape[0]).cumsum(1).sum() + x),
    "in a sum": lambda x, w, a, b: (x + (w * a).sum(1), x - (w * b).sum(1), (w**a).sum() + x),
    "sorted": lambda x, w, a, b: x @ genesis.sort(w * a, 0)[0] + genesis.sort(w - b, 1)[0][0],
}  # fmt: skip
for name, f in KEPT.items():
    add_program(f"kept of weights {name}", _of_weights(f))


@program
def whether_two_arguments_are_one(jit: Jit) -> Any:
    """Nothing else is asked of them, in any order of calls."""
    one, two, three = vector(1, 2), vector(3, 4), vector(5, 6)
    pairs = [(one, two), (two, one), (two, two), (three, three), (one, three), (one, one)]
    seen = []
    for order in (pairs, pairs[::-1]):
        f = jit(lambda x, y: x * 5 if x is y else x - y)
        g = jit(lambda x, y: 2 if x is not y else len([x, y] * 2))
        h = jit(lambda x, y: (x[0] is y[0], x is y, sum(x)))
        seen += [(show(f(x, y)), g(x, y), show(h([x], [y]))) for x, y in order]
        seen.append(show([h(z, z) for z in ([one], [two, three])]))
    return seen


@program
def a_dtype_is_an_argument(jit: Jit) -> Any:
    f = jit(lambda x, to: (x.to(to) / 2, genesis.zeros(2, dtype=to), x.dtype is to, to))
    names = ["float64", "float32", "int32", "bfloat16", "float32", "float64", "complex64"]
    return [show(f(vector(1, 2), getattr(genesis, name))) for name in names]


# ---- the class of an argument that is a NumPy array, for which an array of Genesis stands


def _matches(x: Any) -> bool:
    match x:
        case np.ndarray():
            return True
    return False


_CLASS_QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "isinstance": lambda x: isinstance(x, np.ndarray),
    "isinstance of several": lambda x: isinstance(x, (list, np.ndarray)),
    "isinstance of a union": lambda x: isinstance(x, list | np.ndarray),
    "type": lambda x: type(x) is np.ndarray,
    "__class__": lambda x: x.__class__ is np.ndarray,
    "match": _matches,
}


def _asks_class(ask: Callable[[Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        f = jit(lambda x, y: y * 2 if ask(x) else y)
        given = vector(1, 2), np.ones(2, np.float32), [np.ones(2)], np.ones(2)
        return [attempt(f, x, vector(1, 2)) for x in given]

    return run


for _name, _ask in _CLASS_QUESTIONS.items():
    add_program(f"class of a NumPy argument by {_name}", _asks_class(_ask), may_refuse=True)


@program
def numpy_argument_made_a_tensor(jit: Jit) -> Any:
    f = jit(lambda x: (genesis.from_numpy(x) * 2, genesis.as_tensor(x), isinstance(x, list)))
    return [attempt(f, np.full(2, k, kind)) for k in range(3) for kind in ("f4", "f8", "i8")]


# ---- modules that are looked up inside


def _module(**named: Any) -> types.ModuleType:
    found = types.ModuleType("looked_up_inside")
    vars(found).update(named)
    return found


def _imported() -> Any:
    import looked_up_inside

    return looked_up_inside.k


def _imported_from() -> Any:
    from looked_up_inside import k

    return k


def _imported_if_there() -> Any:
    try:
        import looked_up_inside
    except ImportError:
        return 1.0
    return looked_up_inside.k


_IMPORTS: dict[str, Callable[[], Any]] = {
    "import": _imported,
    "from": _imported_from,
    "if it is there": _imported_if_there,
    "__import__": lambda: __import__("looked_up_inside").k,
    "importlib": lambda: importlib.import_module("looked_up_inside").k,
}


def _import_program(look: Callable[[], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        f = jit(lambda x: x * look())
        seen = []
        for module in (_module(k=2.0), _module(k=3.0), None, _module(k=3.0)):
            if module is None:
                del sys.modules["looked_up_inside"]
            else:
                sys.modules["looked_up_inside"] = module
            seen.append(attempt(f, vector(1, 2)))
            if module is not None:
                module.k += 2.0
                seen.append(attempt(f, vector(1, 2)))
        del sys.modules["looked_up_inside"]
        return seen

    return run


for _name, _look in _IMPORTS.items():
    add_program(f"a module looked up by {_name}", _import_program(_look))


# ---- what Genesis itself keeps apart from arrays


def _seeds(jit: Jit, generator: Any) -> Any:
    read = jit(lambda x: (x + generator.initial_seed() % 7, generator.initial_seed()))
    write = jit(lambda x: (x + generator.manual_seed(9).initial_seed(), generator.initial_seed()))
    seen = []
    for k in range(4):
        generator.manual_seed(k)
        seen.append((show(read(vector(1))), generator.initial_seed()))
        seen.append((show(write(vector(1))), generator.initial_seed()))
    return seen


@program
def seed_of_a_generator(jit: Jit) -> Any:
    return _seeds(jit, genesis.Generator())


@program
def seed_of_the_default_generator(jit: Jit) -> Any:
    return _seeds(jit, SimpleNamespace(
        initial_seed=genesis.initial_seed, manual_seed=genesis.manual_seed
    ))  # fmt: skip


_TOLD: dict[str, Callable[[Any], Any]] = {
    "get_num_threads": lambda x: genesis.get_num_threads(),
    "memory.stats": lambda x: genesis.memory.stats().live_bytes > 1e6,
    "seed": lambda x: genesis.seed() % 2**40 < 0,
    "version": lambda x: x.version,
}


def _told(tell: Callable[[Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        outer = vector(1, 2)
        f = jit(lambda x: x * tell(outer))
        seen = []
        before = genesis.get_num_threads()
        for k in (1, 2):
            genesis.set_num_threads(k)
            outer.add_(1)
            seen.append(attempt(f, vector(1, 2)))
        genesis.set_num_threads(before)
        return seen

    return run


for _name, _tell in _TOLD.items():
    add_program(f"the process tells {_name}", _told(_tell), may_refuse=True)


# ---- layers whose code is not watched, because they say themselves what it reads

_LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...], dict[str, Any]]] = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4), {"bias": None}),
    "convolution": (
        lambda: nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular"), (1, 2, 8),
        {"stride": (2,), "padding_mode": "zeros", "padding": (0,), "dilation": (2,)},
    ),
    "transposed": (
        lambda: nn.ConvTranspose1d(2, 2, 3, stride=2), (1, 2, 8),
        {"output_padding": (1,), "stride": (3,), "bias": None},
    ),
    "dropout": (lambda: nn.Dropout(0.5), (8,), {"p": 1.0, "training": False}),
    "embedding": (lambda: nn.Embedding(8, 2), (), {"max_norm": 0.1, "norm_type": 1.0}),
    "layer norm": (lambda: nn.LayerNorm(4), (2, 4), {"eps": 9.0, "bias": None}),
    "rms norm": (lambda: nn.RMSNorm(4), (2, 4), {"eps": 9.0, "weight": None}),
    "group norm": (lambda: nn.GroupNorm(1, 4), (2, 4, 3), {"num_groups": 2, "eps": 9.0}),
    "batch norm": (
        lambda: nn.BatchNorm1d(4), (6, 4),
        {"momentum": 0.9, "eps": 9.0, "training": False, "running_mean": None, "weight": None},
    ),
    "batch norm over all": (lambda: nn.BatchNorm1d(4, momentum=None), (6, 4), {"momentum": 0.5}),
    "instance norm": (
        lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True), (2, 4, 3),
        {"eps": 9.0, "momentum": 0.9, "training": False},
    ),
    "cell": (lambda: nn.RNNCell(4, 3), (2, 4), {"mode": "RNN_RELU", "bias_ih": None}),
}  # fmt: skip


def _patched(name: str, layer: Any) -> Any:
    """A function that a layer uses, for which another one stands."""
    before = getattr(nn.functional, name)
    setattr(nn.functional, name, lambda *args, **kwargs: before(*args, **kwargs) * 3)
    try:
        return attempt(layer)
    finally:
        setattr(nn.functional, name, before)


def _layer_program(make: Any, shape: tuple[int, ...], settings: dict[str, Any]) -> Any:
    def run(jit: Jit) -> Any:
        layer = make()
        f = jit(lambda x: layer(x))
        seen: list[Any] = []

        def look() -> None:
            genesis.manual_seed(0)
            x = genesis.randn(*shape) if shape else genesis.tensor([1, 5])
            seen.append((attempt(f, x), show(dict(layer.named_buffers()))))

        look()
        for name, value in settings.items():
            setattr(layer, name, value)
            look()
            look()
        for name, x in layer.named_parameters():
            setattr(layer, name, nn.Parameter(x.detach() * 2))
            look()
        x = genesis.randn(*shape) if shape else genesis.tensor([1, 5])
        for name in ("linear", "layer_norm", "batch_norm", "embedding", "pad"):
            seen.append(_patched(name, lambda x=x: f(x)))
        layer.register_forward_pre_hook(lambda layer, given: (given[0] * 1,))
        look()
        layer.forward = lambda x: x * 2
        look()
        return seen

    return run


for _name, _parts in _LAYERS.items():
    add_program(f"settings of a layer, {_name}", _layer_program(*_parts))


@program
def layer_of_a_class_below_one_that_reports(jit: Jit) -> Any:
    class Scaled(nn.Linear):
        scale = 2.0

        @property
        def weight(self) -> Any:
            return self.kept * self.scale

        def __getattr__(self, name: str) -> Any:
            return genesis.ones(1) * self.scale if name == "bias" else super().__getattr__(name)

    layer = nn.Linear(2, 1)
    layer.kept = genesis.ones(1, 2)
    layer._parameters.clear()
    layer.__class__ = Scaled
    f = jit(lambda x: layer(x))
    seen = [attempt(f, vector(1, 2))]
    layer.scale = 3.0
    seen.append(attempt(f, vector(1, 2)))
    del layer.scale
    Scaled.scale = 5.0
    return [*seen, attempt(f, vector(1, 2))]
