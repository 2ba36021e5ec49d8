"""Classes that change between calls, copies of what is jitted, and writes past an object's own way."""
# ruff: noqa: E501

from __future__ import annotations

import abc
import copy
import pickle
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jit_corpus import Jit, add_program, attempt, grad, program, show, vector

import genesis
from genesis import nn


class Interface:
    """A class to be below."""


@runtime_checkable
class Going(Protocol):
    """Whatever goes."""

    def go(self) -> int: ...


def fresh(*bases: type) -> type:
    """A class that nobody has seen before."""
    return type("Fresh", bases or (type("Base", (), {}),), {})


def registry() -> type:
    return abc.ABCMeta("Registry", (), {})


#: A question about an object, its class and another one; and what changes the answer.
QUESTIONS: dict[str, tuple[Callable[[Any, type], Any], Callable[[Any, type], Any]]] = {
    "registered class": (lambda a, c: isinstance(a, c), lambda a, c: c.register(type(a))),
    "registered class, in a tuple": (lambda a, c: isinstance(a, (int, (c, str))), lambda a, c: c.register(type(a))),
    "registered class, in a union": (lambda a, c: isinstance(a, int | c), lambda a, c: c.register(type(a))),
    "registered class, by issubclass": (lambda a, c: issubclass(type(a), c), lambda a, c: c.register(type(a))),
    "other bases": (lambda a, c: isinstance(a, Interface), lambda a, c: setattr(type(a), "__bases__", (Interface,))),
    "other bases, by issubclass": (lambda a, c: issubclass(type(a), Interface), lambda a, c: setattr(type(a), "__bases__", (Interface,))),
    "protocol": (lambda a, c: isinstance(a, Going), lambda a, c: setattr(type(a), "go", lambda self: 1)),
    "protocol of an object": (lambda a, c: isinstance(a, Going), lambda a, c: setattr(a, "go", lambda: 1)),
    "callable": (lambda a, c: callable(a), lambda a, c: setattr(type(a), "__call__", lambda self: 1)),
    "names of an object": (lambda a, c: "extra" in dir(a), lambda a, c: setattr(a, "extra", 1)),
    "names of a class": (lambda a, c: "extra" in dir(a), lambda a, c: setattr(type(a), "extra", 1)),
    "names of the class itself": (lambda a, c: "extra" in dir(type(a)), lambda a, c: setattr(type(a), "extra", 1)),
}  # fmt: skip


def _question(ask: Callable[[Any, type], Any], change: Callable[[Any, type], Any]) -> Any:
    def run(jit: Jit) -> Any:
        a, c = fresh()(), registry()
        f = jit(lambda x: x * 5 if ask(a, c) else x)
        before = [show(f(vector(1, 2))) for _ in range(2)]
        change(a, c)
        return before, [show(f(vector(1, 2))) for _ in range(2)]

    return run


for name, (ask, change) in QUESTIONS.items():
    add_program(f"class of an object: {name}", _question(ask, change))


@program
def classes_in_another_order(jit: Jit) -> Any:
    class A:
        def m(self, x: Any) -> Any:
            return x * 2

    class B(A):
        def m(self, x: Any) -> Any:
            return super().m(x) + 1

    class C(A):
        def m(self, x: Any) -> Any:
            return x * 50

    class D(B, C):
        pass

    f = jit(D().m)
    before = [show(f(vector(1, 2))) for _ in range(2)]
    D.__bases__ = (C, B)
    return before, [show(f(vector(1, 2))) for _ in range(2)]


class Pair:
    """Two numbers that come by a method."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __len__(self) -> int:
        return 2

    def __getitem__(self, n: int) -> int:
        if n > 1:
            raise IndexError(n)
        return self.k


class Number:
    """A number that comes by a method."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __index__(self) -> int:
        return self.k

    def __float__(self) -> float:
        return float(self.k)


#: What takes settings that are objects of the user's, of which Genesis asks what they are.
SETTINGS: dict[str, Callable[[Any], Any]] = {
    "a pooling": lambda s: genesis.max_pool2d(genesis.ones(1, 1, 6, 6).cumsum(-1), s),
    "a mean of windows": lambda s: genesis.avg_pool2d(genesis.ones(1, 1, 6, 6).cumsum(-1), s),
    "a convolution": lambda s: genesis.conv2d(genesis.ones(1, 1, 6, 6), genesis.ones(1, 1, 2, 2), None, s),
    "a shape": lambda s: genesis.ones(36).reshape(*(s[n] for n in range(2)), -1),
    "a view": lambda s: genesis.ones(6).expand(list(s)[0] * 2, 6),  # noqa: RUF015
    "an item": lambda s: vector(1, 2, 3, 4, 5, 6)[s[0]],
}  # fmt: skip


def _setting(use: Callable[[Any], Any]) -> Any:
    def run(jit: Jit) -> Any:
        s = Pair(2)
        f = jit(lambda x: use(s) * x.sum())
        before = [attempt(f, vector(1, 2)) for _ in range(2)]
        s.k = 3
        return before, [attempt(f, vector(1, 2)) for _ in range(2)]

    return run


for name, use in SETTINGS.items():
    add_program(f"setting that is an object: {name}", _setting(use))

#: And those that are numbers of the user's.
NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "an item": lambda x, s: x[s],
    "a slice": lambda x, s: x[:s],
    "a dimension": lambda x, s: x.reshape(2, 3, 1, 1).sum(s),
    "a chunk": lambda x, s: x.chunk(s)[0],
    "dropout": lambda x, s: nn.functional.dropout(x, float(s) - 1),
    "a range": lambda x, s: x[0] * genesis.arange(s),
}


def _number(use: Callable[[Any, Any], Any]) -> Any:
    def run(jit: Jit) -> Any:
        s = Number(1)
        f = jit(lambda x: use(x, s))
        before = [attempt(f, vector(1, 2, 3, 4, 5, 6)) for _ in range(2)]
        s.k = 2
        return before, [attempt(f, vector(1, 2, 3, 4, 5, 6)) for _ in range(2)]

    return run


for name, number in NUMBERS.items():
    add_program(f"number that is an object: {name}", _number(number))


class Scaled(nn.Module):
    """A layer with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.k = 2.0
        self.name = "plain"
        self.w = nn.Parameter(vector(1, 2, 3))

    def forward(self, x: Any) -> Any:
        return x * self.w * self.k if self.name == "plain" else -x


#: Ways to write to a layer of one's own that its `__setattr__` does not see.
PAST: dict[str, Callable[[Scaled], Any]] = {
    "by its dictionary": lambda m: m.__dict__.__setitem__("k", 5.0),
    "by vars": lambda m: vars(m).update(k=6.0),
    "by object": lambda m: object.__setattr__(m, "k", 7.0),
    "of a text": lambda m: vars(m).update(name="other"),
    "equal": lambda m: vars(m).update(k=float("2.0")),
}


def _past(write: Callable[[Scaled], Any]) -> Any:
    def run(jit: Jit) -> Any:
        m = Scaled()
        f = jit(m)
        before = [show(f(vector(1, 2, 3))) for _ in range(2)]
        write(m)
        return before, [show(f(vector(1, 2, 3))) for _ in range(2)]

    return run


for name, write in PAST.items():
    add_program(f"attribute of a layer written {name}", _past(write))


@program
def copies_of_a_jitted_layer(jit: Jit) -> Any:
    m = Scaled()
    f = jit(m)
    before = show(f(vector(1, 1, 1)))
    copies = [copy.deepcopy(f), pickle.loads(pickle.dumps(f)), copy.copy(f)]
    with genesis.no_grad():
        m.w.mul_(3)
    return before, [show(g(vector(1, 1, 1))) for g in (*copies, *copies, f)]


@program
def copy_of_a_layer_that_holds_a_jitted_one(jit: Jit) -> Any:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Scaled()
            self.run = jit(self.inner)

        def forward(self, x: Any) -> Any:
            return self.run(x) + 1

    m = Holder()
    before = show(m(vector(1, 1, 1)))
    other = copy.deepcopy(m)
    other.inner.k = 9.0
    return before, show(other(vector(1, 1, 1))), show(m(vector(1, 1, 1)))


@program
def methods_of_tensors_replaced(jit: Jit) -> Any:
    f = jit(lambda x: x.relu() + x.doubled())
    kind: Any = genesis.Tensor
    before = kind.relu
    seen = []
    try:
        kind.doubled = lambda self: self * 2
        seen += [show(f(vector(-1, 2))) for _ in range(2)]
        kind.relu = lambda self: self * 7
        seen += [show(f(vector(-1, 2))) for _ in range(2)]
        kind.doubled = lambda self: self * 3
        seen += [show(f(vector(-1, 2))) for _ in range(2)]
    finally:
        kind.relu = before
        del kind.doubled
    return seen


@program
def gradients_of_leaves_that_are_views(jit: Jit) -> Any:
    f = jit(lambda x: (x * x * vector(*range(1, 7)).reshape(x.shape)).sum())
    seen = []
    for view in (
        lambda x: x.permute(1, 0), lambda x: x.reshape(3, 2), lambda x: x[:], lambda x: x.flatten(),
    ):  # fmt: skip
        for _ in range(2):
            x = view(vector(*range(6)).reshape(2, 3)).requires_grad_()
            y = f(x)
            y.backward()
            seen.append((show(y), grad(x)))
    return seen


@program
def contents_of_two_tensors_swapped(jit: Jit) -> Any:
    a, b = vector(1, 1), vector(2, 2)

    def f(x: Any) -> Any:
        kept = a.data
        a.data = b.data
        b.data = kept
        return x * a

    f = jit(f)
    return [(show(f(vector(1, 2))), show(a), show(b)) for _ in range(6)]


@program
def requires_grad_in_turn_inside(jit: Jit) -> Any:
    a, b = vector(1, 1, grad=True), vector(2, 2)

    def f(x: Any) -> Any:
        wanted = a.requires_grad
        a.requires_grad_(b.requires_grad)
        b.requires_grad_(wanted)
        return (x * a * b).sum()

    f = jit(f)
    seen = []
    for _ in range(5):
        a.grad = b.grad = None
        f(vector(1, 2)).backward()
        seen.append((grad(a), grad(b)))
    return seen


@program
def state_after_an_index_that_is_not_there(jit: Jit) -> Any:
    table, calls = vector(0, 1, 2, 3), []

    def f(i: Any) -> Any:
        calls.append(len(calls))
        return table[i] * len(calls)

    f = jit(f)
    given = ([0, 1], [3, 9], [1, 1], [2, 7], [3, 3])
    return [attempt(f, genesis.tensor(i)) for i in given], calls


@program(may_refuse=True)
def backward_hook_that_writes_outside(jit: Jit) -> Any:
    m, log = nn.Linear(2, 2), []
    f = jit(m)
    m.register_full_backward_hook(lambda *_: log.append(1))
    x = vector(1, 2, grad=True)
    f(x).sum().backward()
    return grad(x), log
