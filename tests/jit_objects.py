"""Objects written in C, containers handed to Genesis, and objects that a function makes.

The first may be refused, never be wrong; of the last every call makes its own.
"""
# ruff: noqa: E501

from __future__ import annotations

import array
import collections
import ctypes
import datetime
import fractions
import functools
import hashlib
import io
import mmap
import struct
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jit_corpus import Jit, add_program, program, show, vector
from jit_reads import _argument, _changing, item, setter

import genesis
from genesis import autograd, nn, optim


def numbers() -> array.array[float]:
    return array.array("d", [2.0, 3.0])


def view() -> memoryview:
    return memoryview(bytearray(b"\x02\x03"))


def mapped() -> mmap.mmap:
    m = mmap.mmap(-1, 16)
    m[0] = 2
    return m


class Point(ctypes.Structure):
    """A structure of C."""

    _fields_ = (("k", ctypes.c_double),)


class Shown:
    """A dictionary, and what shows its contents."""

    def __init__(self) -> None:
        self.inside: dict[str, Any] = {"a": 2.0}
        self.keys, self.values = self.inside.keys(), self.inside.values()
        self.items, self.proxy = self.inside.items(), types.MappingProxyType(self.inside)


def grow(c: Shown) -> None:
    c.inside["a"] = 5.0
    c.inside["b"] = 1.0


class Guarded:
    """Attributes that come by way of a method."""

    def __init__(self) -> None:
        self.v = 1.0

    def __getattribute__(self, name: str) -> Any:
        if name == "k":
            return object.__getattribute__(self, "v") * 2
        return object.__getattribute__(self, name)


#: State, a function of it, and what changes it.
HIDDEN: dict[str, tuple[Any, ...]] = {
    "array item": (numbers, lambda x, c: x * c[0], item(0, 9.0)),
    "array sum": (numbers, lambda x, c: x * sum(c), item(0, 9.0)),
    "array list": (numbers, lambda x, c: x * c.tolist()[0], item(0, 9.0)),
    "array length": (numbers, lambda x, c: x * len(c), lambda c: c.append(1.0)),
    "array truth": (numbers, lambda x, c: x * 2 if c else x, lambda c: (c.pop(), c.pop())),
    "array loop": (numbers, lambda x, c: x * [k for k in c][0], item(0, 9.0)),  # noqa: RUF015, C416
    "array membership": (numbers, lambda x, c: x * 2 if 2.0 in c else x, item(0, 9.0)),
    "array slice": (numbers, lambda x, c: x * c[:1][0], item(0, 9.0)),
    "array unpacked": (numbers, lambda x, c: x * max(*c), item(0, 9.0)),
    "array compared": (numbers, lambda x, c: x * 2 if c == numbers() else x, item(0, 9.0)),
    "array as NumPy's": (numbers, lambda x, c: x * float(np.asarray(c)[0]), item(0, 9.0)),
    "array unpacked as bytes": (numbers, lambda x, c: x * struct.unpack_from("d", c)[0], item(0, 9.0)),
    "memory view item": (view, lambda x, c: x * c[0], item(0, 9)),
    "memory view list": (view, lambda x, c: x * c.tolist()[0], item(0, 9)),
    "memory view bytes": (view, lambda x, c: x * bytes(c)[0], item(0, 9)),
    "mapped file": (mapped, lambda x, c: x * c[0], item(0, 9)),
    "mapped file read": (mapped, lambda x, c: x * c.read_byte(), item(0, 9)),
    "array of C": (lambda: (ctypes.c_double * 2)(2.0, 3.0), lambda x, c: x * c[0], item(0, 9.0)),
    "structure of C": (lambda: Point(2.0), lambda x, c: x * c.k, setter("k", 7.0)),
    "number of C": (lambda: ctypes.c_double(2.0), lambda x, c: x * c.value, setter("value", 7.0)),
    "values of a dict": (Shown, lambda x, c: x * sum(c.values), grow),
    "items of a dict": (Shown, lambda x, c: x * sum(v for _, v in c.items), grow),
    "keys of a dict": (Shown, lambda x, c: x * len(c.keys), grow),
    "membership in keys": (Shown, lambda x, c: x * 2 if "b" in c.keys else x, grow),
    "list of keys": (Shown, lambda x, c: x * len(list(c.keys)), grow),
    "item by proxy": (Shown, lambda x, c: x * c.proxy["a"], grow),
    "get by proxy": (Shown, lambda x, c: x * c.proxy.get("b", 3.0), grow),
    "length by proxy": (Shown, lambda x, c: x * len(c.proxy), grow),
    "flat iterator": (lambda: np.ones(3).flat, lambda x, c: x * float(c[0]), item(0, 7.0)),
    "PyTorch item": (lambda: torch.tensor([2.0]), lambda x, c: x * c[0].item(), lambda c: c.fill_(7)),
    "PyTorch number": (lambda: torch.tensor(2.0), lambda x, c: x * float(c), lambda c: c.fill_(7)),
    "PyTorch arithmetic": (lambda: torch.tensor(2.0), lambda x, c: x * (c * 2).item(), lambda c: c.fill_(7)),
    "PyTorch truth": (lambda: torch.tensor(2.0), lambda x, c: x if c > 3 else x * 2, lambda c: c.fill_(7)),
    "PyTorch layer": (lambda: torch.nn.Linear(1, 1), lambda x, c: x * c.bias.item(), lambda c: c.bias.data.fill_(7)),
    "checksum": (lambda: hashlib.md5(b"a"), lambda x, c: x * c.digest()[0], lambda c: c.update(b"b")),
    "file in memory": (lambda: io.BytesIO(b"ab"), lambda x, c: x * c.tell(), lambda c: c.read(1)),
    "date": (lambda: [datetime.date(2020, 1, 2)], lambda x, c: x * c[0].day, item(0, datetime.date(2020, 1, 9))),
    "fraction": (lambda: [fractions.Fraction(1, 2)], lambda x, c: x * float(c[0]), item(0, fractions.Fraction(3, 2))),
    "attributes by a method": (Guarded, lambda x, c: x * c.k, setter("v", 4.0)),
}  # fmt: skip

for _name, _state in HIDDEN.items():
    add_program(f"hidden: {_name}", _changing(*_state), may_refuse=True)
    add_program(f"hidden argument: {_name}", _argument(*_state), may_refuse=True)


def cube() -> Any:
    return genesis.arange(24.0).reshape(2, 3, 4)


#: A container, a function of Genesis that it is handed to, and what changes it.
HANDED: dict[str, tuple[Any, ...]] = {
    "tensor": (lambda: [1.0, 2.0], lambda x, c: x * genesis.tensor(c), item(0, 5.0)),
    "tensor of lists": (lambda: [[1.0], [2.0]], lambda x, c: x * genesis.tensor(c), lambda c: c[0].append(c[0].pop() + 1)),
    "tensor by name": (lambda: [1.0, 2.0], lambda x, c: x * genesis.tensor(data=c), item(0, 5.0)),
    "as_tensor": (lambda: [1.0, 2.0], lambda x, c: x * genesis.as_tensor(c), item(0, 5.0)),
    "new_tensor": (lambda: [1.0, 2.0], lambda x, c: x * x.new_tensor(c), item(0, 5.0)),
    "reshape": (lambda: [6, 4], lambda x, c: cube().reshape(c), list.reverse),
    "permute": (lambda: [0, 1, 2], lambda x, c: cube().permute(c), list.reverse),
    "sum": (lambda: [0], lambda x, c: cube().sum(dim=c), item(0, 1)),
    "index": (lambda: [0, 1], lambda x, c: x[c], item(0, 1)),
    "index of columns": (lambda: [0, 1], lambda x, c: cube()[:, c], item(0, 2)),
    "written index": (lambda: [0], lambda x, c: (x.__setitem__(c, 5.0), x * 1)[1], item(0, 1)),
    "cat": (lambda: [vector(1), vector(2)], lambda x, c: genesis.cat(c), lambda c: c.append(vector(3))),
    "stack": (lambda: [vector(1), vector(2)], lambda x, c: genesis.stack(c), item(0, lambda: vector(7))),
    "pad": (lambda: [1, 1], lambda x, c: genesis.pad(x, c), item(0, 0)),
    "zeros": (lambda: [2, 2], lambda x, c: genesis.zeros(c), item(0, 3)),
    "split": (lambda: [1, 3], lambda x, c: cube().split(c, dim=-1), list.reverse),
    "flip": (lambda: [0], lambda x, c: cube().flip(c), item(0, 1)),
    "expand": (lambda: [2, 2], lambda x, c: x.expand(c), item(0, 3)),
    "tensordot": (lambda: [[0], [0]], lambda x, c: genesis.tensordot(cube(), cube(), c), lambda c: [d.reverse() or d.__setitem__(0, 1) for d in c]),
    "layer_norm": (lambda: [4], lambda x, c: genesis.layer_norm(cube(), c), lambda c: c.insert(0, 3)),
    "max_pool2d": (lambda: [1, 2], lambda x, c: genesis.max_pool2d(cube(), c), list.reverse),
    "pad_sequence": (lambda: [vector(1, 2), vector(3)], lambda x, c: nn.utils.rnn.pad_sequence(c), lambda c: c.append(vector(9))),
    "clamp": (lambda: {"min": 0.0, "max": 1.0}, lambda x, c: x.clamp(**c), item("max", 2.0)),
    "optimizer": (lambda: [nn.Parameter(vector(1))], lambda x, c: x * len(optim.SGD(c, lr=0.1).param_groups[0]["params"]), lambda c: c.append(nn.Parameter(vector(2)))),
}  # fmt: skip

for _name, _state in HANDED.items():
    add_program(f"handed: {_name}", _changing(*_state))
    add_program(f"handed argument: {_name}", _argument(*_state))


def _put(c: list[float]) -> float:
    c[3] = 1.0
    return 1.0


def _delete(c: Any) -> float:
    del c[0]
    return 2.0


#: A container, and what at some time fails on it, in a function that goes on.
FAILING: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "pop": (lambda: [2.0], lambda c: c.pop()),
    "pop by place": (lambda: [2.0, 3.0], lambda c: c.pop(1)),
    "popleft": (lambda: collections.deque([2.0]), lambda c: c.popleft()),
    "pop of a dict": (lambda: {"a": 2.0}, lambda c: c.pop("a")),
    "popitem": (lambda: {"a": 2.0}, lambda c: c.popitem()[1]),
    "pop of a set": (lambda: {2.0}, lambda c: c.pop()),
    "remove": (lambda: [2.0], lambda c: c.remove(2.0) or 3.0),
    "remove of a set": (lambda: {2.0}, lambda c: c.remove(2.0) or 3.0),
    "set an item": (lambda: [2.0], _put),
    "delete an item": (lambda: [1.0, 2.0], _delete),
    "delete by key": (lambda: {0: 1.0}, _delete),
    "add a list to a set": (lambda: {1}, lambda c: c.add([])),
    "extend by a number": (lambda: [1.0], lambda c: c.extend(5)),
    "update by a number": (lambda: {"a": 1}, lambda c: c.update(5)),
    "sort": (lambda: [3.0, "a", 1.0], lambda c: c.sort()),
    "extend until it fails": (lambda: [1.0], lambda c: c.extend(map(float, ["2", "x"]))),
}  # fmt: skip


def _failing(make: Callable[[], Any], act: Callable[[Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        state = make()

        def f(x: Any) -> Any:
            try:
                return x * act(state)
            except (LookupError, TypeError, ValueError):
                return x * 7

        g = jit(f)
        return [(show(g(vector(1))), repr(state)) for _ in range(4)]

    return run


for _name, _pair in FAILING.items():
    add_program(
        f"failing: {_name}", _failing(*_pair), may_refuse=_name in ("sort", "extend until it fails")
    )

#: How NumPy writes to an array.
WRITERS: dict[str, Callable[[Any], Any]] = {
    "add": lambda a: np.add(a, 1, out=a),
    "copyto": lambda a: np.copyto(a, a + 1),
    "put": lambda a: np.put(a, [0], a[0] + 1),
    "add.at": lambda a: np.add.at(a, 0, 1),
    "view": lambda a: a[:1].__iadd__(1),
    "fill": lambda a: a.fill(a[0] + 1),
}


def _writing(write: Callable[[Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        outside = np.ones(2)

        def f(x: Any) -> Any:
            write(outside)
            return x * float(outside[0])

        g = jit(f)
        return [(show(g(vector(1))), outside.tolist()) for _ in range(3)]

    return run


for _name, _write in WRITERS.items():
    add_program(f"NumPy written by {_name}", _writing(_write), may_refuse=True)


def _class_of(x: Any) -> type:
    return type("Made", (), {"t": x})


def _counter() -> Callable[[], int]:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    return count


def _account(x: Any) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    held = x

    def put(y: Any) -> None:
        nonlocal held
        held = held + y

    return put, lambda: held


def _deposited(account: Any) -> Any:
    account[0](vector(5, 5))
    return account[1]()


class Box:
    """An array and a method on it."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def plus(self, y: Any) -> Any:
        """The sum."""
        return self.x + y


#: What a function makes of its argument, and how that is used outside.
MADE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "closure over an argument": (lambda x: lambda y: x + y, lambda f: f(vector(1, 2))),
    "closure over a result": (lambda x: (lambda z: lambda y: z + y)(x * 2), lambda f: f(vector(1, 2))),
    "closures that share": (_account, _deposited),
    "function that counts": (lambda x: (_counter(), x), lambda r: [r[0](), r[0]()]),
    "default argument": (lambda x: lambda y, z=x: z + y, lambda f: f(vector(1, 2))),
    "partial": (lambda x: functools.partial(added, x), lambda f: f(vector(1, 2))),
    "method of an argument": (lambda x: x.add, lambda f: f(vector(1, 2))),
    "method of an object": (lambda x: Box(x * 2).plus, lambda f: f(vector(1, 2))),
    "method of a list": (lambda x: (lambda held: (held, held.append))([x]), lambda r: (r[1](1), len(r[0]))[1]),
    "exception": (lambda x: ValueError(x), lambda e: e.args[0]),
    "iterator": (lambda x: iter([x, x * 2]), list),
    "map": (lambda x: map(x.mul, [1, 2]), list),
    "values of a dict": (lambda x: {"a": x}.values(), list),
    "mapping proxy": (lambda x: types.MappingProxyType({"a": x}), lambda p: p["a"]),
    "default dict": (lambda x: collections.defaultdict(list, a=x), lambda d: (d["z"].append(1), d)[1]),
    "counter": (lambda x: (collections.Counter("aab"), x), lambda r: (r[0].update("a"), dict(r[0]))[1]),
    "weak reference": (lambda x: (x, weakref.ref(x)), lambda r: r[1]() is r[0]),
    "NumPy array": (lambda x: (x, np.ones(2)), lambda r: (np.add(r[1], 1, out=r[1]), r[1])[1]),
    "array of C": (lambda x: (x, numbers()), lambda r: (r[1].append(1.0), len(r[1]))[1]),
    "class": (_class_of, lambda kind: kind.t),
    "tensor with an attribute": (lambda x: _tagged(x * 2), lambda y: y.tag),
}  # fmt: skip


def added(a: Any, b: Any) -> Any:
    return a + b


def _tagged(x: Any) -> Any:
    x.tag = x.shape[0]
    return x


def _making(make: Callable[[Any], Any], use: Callable[[Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        f = jit(lambda x: make(x))
        return [show(use(f(vector(k, 3)))) for k in range(4)]

    return run


for _name, _pair in MADE.items():
    add_program(f"made: {_name}", _making(*_pair), may_refuse=True)


@program
def function_kept_outside(jit: Jit) -> Any:
    box: dict[str, Any] = {}

    def f(x: Any) -> Any:
        box["f"] = lambda y: x * y
        return x

    g = jit(f)
    return [(show(g(vector(k))), show(box["f"](vector(10)))) for k in range(4)]


@program(may_refuse=True)
def view_of_numpy_from_outside_returned(jit: Jit) -> Any:
    outside = np.ones(3)
    f = jit(lambda x: (x, outside[1:]))
    seen = []
    for k in range(3):
        f(vector(k))[1][0] += 1
        seen.append(outside.tolist())
    return seen


@program
def attribute_set_past_the_class(jit: Jit) -> Any:
    log: list[str] = []

    class Doubling:
        def __setattr__(self, name: str, value: Any) -> None:
            log.append(name)
            object.__setattr__(self, name, value * 2)

    c = Doubling()
    c.k = 1.0

    def f(x: Any) -> Any:
        c.k = c.k + 1
        return x * c.k

    g = jit(f)
    return [[show(g(vector(1))) for _ in range(4)], c.k, log]


@program
def attribute_of_a_tensor_from_outside(jit: Jit) -> Any:
    w: Any = vector(1)
    w.scale = 2.0
    f = jit(lambda x: x * w.scale)
    seen = [show(f(vector(1)))]
    w.scale = 3.0
    return [*seen, show(f(vector(1)))]


@program(may_refuse=True)
def what_gradients_read_changes_before_backward(jit: Jit) -> Any:
    k = [2.0]

    class Scaled(autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * k[0]

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * k[0] * 10

    f = jit(lambda x: Scaled.apply(x))
    seen = []
    for change in (0, 0, 1, 0):
        x = genesis.tensor([1.0, 2.0], requires_grad=True)
        y = f(x)
        k[0] += change
        y.sum().backward()
        seen.append((show(y), show(x.grad)))
    return seen


@program(may_refuse=True)
def object_that_does_something_when_it_goes(jit: Jit) -> Any:
    log: list[int] = []

    class Last:
        def __del__(self) -> None:
            log.append(1)

    def f(x: Any) -> Any:
        Last()
        return x * 2

    g = jit(f)
    for _ in range(3):
        g(vector(1))
    return len(log)


@program(may_refuse=True)
def settings_of_the_process(jit: Jit) -> Any:
    def f(x: Any, digits: int) -> Any:
        genesis.set_printoptions(precision=digits)
        return x

    g = jit(f)
    seen = []
    try:
        for digits in (2, 3, 2, 4):
            g(vector(1), digits)
            seen.append(repr(vector(1.23456)))
    finally:
        genesis.set_printoptions(precision=4)
    return seen
