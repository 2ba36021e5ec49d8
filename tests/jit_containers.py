"""Containers that a function gets by roundabout ways, or whose classes have methods of their own."""
# ruff: noqa: C416, C417, E501, RUF015

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import functools
import itertools
import operator
import types
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from jit_corpus import Jit, add_program, attempt, program, show, vector, weights

import genesis
from genesis import nn


def _called(jitted: Any, change: Callable[[int], Any], see: Callable[[], Any]) -> Any:
    """Six calls with changes in between."""
    seen = []
    for k in range(6):
        change(k)
        seen.append((attempt(jitted, vector(1 + k, 2)), show(see())))
    return seen


# ---- a dictionary of numbers, of which the garbage collector takes no note, and who has it


class Held(NamedTuple):
    held: Any
    n: int = 0


class Owner:
    held: Any

    def __init__(self, held: Any) -> None:
        self.held = held


def _function(held: Any) -> Any:
    def f() -> None:
        pass

    f.held = held  # type: ignore[attr-defined]
    return f


def _with_own(held: Any) -> Any:
    owner = Owner(None)
    owner.__dict__ = held
    return owner


def _on(x: Any) -> Callable[[Any], Any]:
    def hold(held: Any) -> Any:
        x.held = held
        return x

    return hold


def _caught(error: Exception) -> Any:
    try:
        raise error
    except ValueError as found:
        return found.args[0]


def _entered(context: Any) -> Any:
    with context as held:
        return held


def _each(x: Any) -> Any:
    yield from x


def _matched(x: Any) -> Any:
    match x:
        case [held] | {"a": held} | Held(held=held):
            return held


def _turned(x: list[Any]) -> Any:
    held = x.pop()
    x.append(held)
    return held


#: What holds a dictionary, and how the function gets it from there.
ROUTES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list": (lambda d: [d], lambda h: h[0]),
    "tuples": (lambda d: (1, (2, (3, d))), lambda h: h[1][1][1]),
    "named tuple": (Held, lambda h: h.held),
    "fields of a named tuple": (Held, lambda h: h._asdict()["held"]),
    "iterator": (lambda d: (d,), lambda h: next(iter(h))),
    "enumerate": (lambda d: [d], lambda h: [x for _, x in enumerate(h)][0]),
    "map": (lambda d: (d,), lambda h: list(map(lambda x: x, h))[0]),
    "max": (lambda d: [d, {}], lambda h: max(h, key=len)),
    "values": (lambda d: {"a": d}, lambda h: [*h.values()][0]),
    "star": (lambda d: [d], lambda h: (lambda *a: a[0])(*h)),
    "two stars": (lambda d: {"a": d}, lambda h: (lambda a: a)(**h)),
    "deque": (lambda d: collections.deque([d]), lambda h: h[0]),
    "chain map": (collections.ChainMap, lambda h: h.maps[0]),
    "cell": (lambda d: lambda: d, lambda h: h.__closure__[0].cell_contents),
    "default": (lambda d: lambda a=d: a, lambda h: h()),
    "defaults": (lambda d: lambda a=d: a, lambda h: h.__defaults__[0]),
    "attribute of a function": (_function, lambda h: h.held),
    "dictionary of a function": (_function, lambda h: h.__dict__["held"]),
    "attribute": (Owner, lambda h: h.held),
    "vars": (Owner, lambda h: vars(h)["held"]),
    "dictionary of an object": (Owner, lambda h: h.__dict__["held"]),
    "an object's own dictionary": (_with_own, lambda h: h.__dict__),
    "an object's own vars": (_with_own, vars),
    "attrgetter": (Owner, operator.attrgetter("held")),
    "itemgetter": (lambda d: (d,), operator.itemgetter(0)),
    "methodcaller": (lambda d: {"a": d}, operator.methodcaller("get", "a")),
    "class": (lambda d: type("C", (), {"held": d}), lambda h: h().held),
    "partial": (lambda d: functools.partial(lambda a: a, d), lambda h: h()),
    "partial by name": (lambda d: functools.partial(lambda a: a, a=d), lambda h: h()),
    "partial of a partial": (
        lambda d: functools.partial(functools.partial(lambda a, b: a, d), 1), lambda h: h()),
    "partial in a map": (lambda d: functools.partial(lambda a, b: a, d), lambda h: [*map(h, [1])][0]),
    "method": (lambda d: types.MethodType(lambda self: self, d), lambda h: h()),
    "reduce": (lambda d: [d, None], lambda h: functools.reduce(lambda a, b: a, h)),
    "chain": (lambda d: ([d],), lambda h: next(itertools.chain.from_iterable(h))),
    "exception": (ValueError, _caught),
    "member of an enum": (lambda d: enum.Enum("E", {"A": d}), lambda h: h.A.value),
    "array of objects": (lambda d: np.array([d], dtype=object), lambda h: h[0]),
    "attribute of a tensor": (lambda d: _on(vector(1, 1))(d), lambda h: h.held),
    "attribute of a layer": (lambda d: _on(nn.Linear(2, 2))(d), lambda h: h.held),
    "generator": (lambda d: [d], lambda h: next(_each(h))),
    "match": (lambda d: [d], _matched),
    "match of a mapping": (lambda d: {"a": d}, _matched),
    "match of a class": (Held, _matched),
    "popped": (lambda d: [d], _turned),
    "setdefault": (lambda d: {"a": d}, lambda h: h.setdefault("a", None)),
    "copy": (lambda d: [d], lambda h: copy.copy(h)[0]),
    "context": (contextlib.nullcontext, _entered),
    "wraps": (_function, lambda h: functools.wraps(h)(lambda: 0).held),  # type: ignore[attr-defined]
    "repeat": (itertools.repeat, next),
}  # fmt: skip


def _routed(
    hold: Callable[[Any], Any], get: Callable[[Any], Any], act: Any
) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        numbers = {"k": 1.0}
        holder = hold(numbers)

        def change(k: int) -> None:
            if k in (2, 4):
                numbers["k"] *= 3
            if k == 3:
                numbers["new"] = 1

        return _called(jit(lambda x: act(x, get(holder))), change, lambda: dict(numbers))

    return run


def _added(x: Any, held: Any) -> Any:
    held["k"] = held["k"] + 1
    return x * held["k"]


def _updated(x: Any, held: Any) -> Any:
    held.update(k=7.0 + held["k"])
    return x * len(held)


for name, (hold, get) in ROUTES.items():
    may_refuse = name in ("array of objects", "repeat")
    add_program(f"held by {name}, read", _routed(hold, get, lambda x, d: x * d["k"]), may_refuse)
    add_program(f"held by {name}, written", _routed(hold, get, _added), may_refuse)
    add_program(f"held by {name}, updated", _routed(hold, get, _updated), may_refuse)


# ---- methods of C that functions of C call


def _grown(c: Any) -> None:
    if isinstance(c, dict):
        c["k"] = c["k"] + 3
    elif isinstance(c, list):
        c.append(5.0)
    elif isinstance(c, set):
        c.add(2.0)
    else:
        c[0] += 1


CALLBACKS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "get in a map": (lambda: {"k": 1.0}, lambda x, c: x * sum(map(c.get, ["k"]))),
    "items in a map": (lambda: {"k": 1.0, "t": []}, lambda x, c: x * sum(map(c.__getitem__, ["k"]))),
    "get as a key": (lambda: {"k": 1.0, "j": 2.0}, lambda x, c: x * c[max(c, key=c.get)]),
    "membership in a filter": (lambda: {1.0}, lambda x, c: x * len([*filter(c.__contains__, [2.0, 1.0])])),
    "partial of get": (lambda: {"k": 1.0}, lambda x, c: x * functools.partial(c.get, "k")()),
    "partial in a map": (lambda: {"k": 1.0}, lambda x, c: x * sum(map(functools.partial(dict.get, c), ["k"]))),
    "starmap": (lambda: {"k": 1.0}, lambda x, c: x * sum(itertools.starmap(c.get, [("k", 1.0)]))),
    "order by a list": (lambda: [3.0, 1.0], lambda x, c: x * sorted([0, 1], key=c.__getitem__)[0]),
    "NumPy's item": (lambda: np.array([1.0, 2.0]), lambda x, c: x * float(sum(map(c.item, [0])))),
    "partial of NumPy's": (lambda: np.array([1.0, 2.0]), lambda x, c: x * functools.partial(lambda a, b: float(a[b]), c)(0)),
    "append": (lambda: [1.0], lambda x, c: ([*map(c.append, [1.0])], x * len(c))[1]),
    "append of lists": (lambda: [1.0], lambda x, c: ([*map(list.append, [c], [1.0])], x * len(c))[1]),
    "update": (lambda: {"k": 1.0}, lambda x, c: ([*map(c.update, [{"k": 9.0}])], x * c["k"])[1]),
    "pop": (lambda: [1.0] * 9, lambda x, c: x * sum(map(c.pop, [0]))),
}  # fmt: skip


def _calling_back(make: Callable[[], Any], f: Callable[[Any, Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        c = make()
        change = lambda k: _grown(c) if k in (2, 4) else None  # noqa: E731
        return _called(jit(lambda x: f(x, c)), change, lambda: [copy.copy(c)])

    return run


for name, (make, f) in CALLBACKS.items():
    refused = name in ("append", "append of lists", "update", "pop")
    add_program(f"called back: {name}", _calling_back(make, f), refused)


# ---- classes of containers with methods of their own


class Doubling(dict[str, Any]):
    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value * 2 if isinstance(value, float) else value)


class Halving(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) / 2


class Counting(dict[str, Any]):
    count = 0

    def __setitem__(self, name: str, value: Any) -> None:
        self.count += 1
        dict.__setitem__(self, name, value)


class Remembering(dict[str, Any]):
    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        super().__setitem__("deleted", 1.0)


class Filling(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        value = self[name] = 3.0
        return value


class Lower(dict[str, Any]):
    def __contains__(self, name: Any) -> bool:
        return dict.__contains__(self, name.lower())


class Updating(dict[str, Any]):
    def update(self, *args: Any, **kwargs: Any) -> None:
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value + 1 if isinstance(value, float) else value)


class Attributes(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class First(OrderedDict[str, Any]):
    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self.move_to_end(name, last=False)


class Long(defaultdict[str, Any]):
    def __missing__(self, name: str) -> Any:
        value = self[name] = len(name) * 1.0
        return value


class More(collections.Counter[str]):
    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value + 1)


def _set(c: Any, name: Any, value: Any) -> None:
    c[name] = value


#: What is done to a dictionary of a class, and what changes it in between.
DONE: dict[str, tuple[Callable[[Any, Any], Any], dict[str, float]]] = {
    "set": (lambda x, c: (_set(c, "k", c["k"] + 1.0), x * c["k"])[1], {"k": 5.0}),
    "set new": (lambda x, c: (_set(c, f"n{len(c)}", 2.0), x * len(c))[1], {}),
    "get": (lambda x, c: x * c["k"] * c.get("z", 2.0), {"k": 5.0, "z": 3.0}),
    "in": (lambda x, c: x * (2 if "z" in c else 3) * (5 if "Z" in c else 7), {"z": 5.0}),
    "update": (lambda x, c: (c.update({"k": c["k"] + 1.0, "m": 2.0}), x * c["k"])[1], {"k": 5.0}),
    "update by name": (lambda x, c: (c.update(k=c["k"] + 1.0), x * c["k"])[1], {}),
    "delete": (lambda x, c: (_set(c, "t", 1.0), c.__delitem__("t"), x * len(c))[2], {}),
    "pop": (lambda x, c: (_set(c, "t", 1.0), x * c.pop("t"))[1], {}),
    "merge": (lambda x, c: (c.__ior__({"k": c["k"] * 2}), x * c["k"])[1], {"k": 1.0}),
    "tensor": (lambda x, c: (_set(c, "h", x * 2), c["h"])[1], {}),
    "sum": (lambda x, c: x * sum(c.values()), {"q": 5.0}),
    "setdefault": (lambda x, c: x * c.setdefault("w", 3.0) * c.setdefault("k", 3.0), {}),
    "builtin's": (lambda x, c: (dict.__setitem__(c, "k", dict.__getitem__(c, "k") + 1), x * dict.__getitem__(c, "k"))[1], {"k": 9.0}),
}  # fmt: skip
CLASSES: list[Any] = [
    Doubling, Halving, Counting, Remembering, Filling, Lower, Updating, Attributes, First, More,
    functools.partial(Long, None),
]  # fmt: skip


def _doing(make: Any, f: Callable[[Any, Any], Any], changed: dict[str, float]) -> Any:
    def run(jit: Jit) -> Any:
        c = make({"k": 1.0})
        change = lambda k: c.update(changed) if changed and k in (2, 4) else None  # noqa: E731
        return _called(jit(lambda x: f(x, c)), change, lambda: c)

    return run


for kind in CLASSES:
    for name, (f, changed) in DONE.items():
        kinds = getattr(kind, "__name__", "Long")
        add_program(f"{kinds} dictionary: {name}", _doing(kind, f, changed))


class Twice(list[Any]):
    def append(self, value: Any) -> None:
        super().append(value)
        super().append(1.0)

    def __setitem__(self, place: Any, value: Any) -> None:
        super().__setitem__(place, value)


class Shown(list[Any]):
    def __iter__(self) -> Any:
        return (x * 2 for x in super().__iter__())

    def __len__(self) -> int:
        return super().__len__() + 1


class Hundreds(set[int]):
    def add(self, value: int) -> None:
        super().add(value)
        super().add(value + 100)


SEQUENCES: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "append": (lambda: Twice([1.0]), lambda x, c: (c.append(2.0), x * len(c))[1]),
    "set": (lambda: Twice([1.0]), lambda x, c: (_set(c, 0, c[0] + 1), x * c[0])[1]),
    "slice": (lambda: Twice([1.0]), lambda x, c: (_set(c, slice(0, 1), [4.0, 5.0]), x * len(c))[1]),
    "loop": (lambda: Shown([1.0]), lambda x, c: x * sum([v for v in c]) + len(c)),
    "sum": (lambda: Shown([1.0]), lambda x, c: x * sum(c)),
    "extend": (lambda: Shown([1.0]), lambda x, c: (c.extend([2.0]), x * len(c))[1]),
    "add": (lambda: Hundreds([1]), lambda x, c: (c.add(len(c)), x * len(c))[1]),
}


def _in_sequence(make: Callable[[], Any], f: Callable[[Any, Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        c = make()
        return _called(jit(lambda x: f(x, c)), lambda k: None, lambda: c)

    return run


for name, (make, f) in SEQUENCES.items():
    add_program(f"class of a sequence: {name}", _in_sequence(make, f))


# ---- parts of layers, and what libraries do for a function


class Lazy(nn.Module):
    h: Any

    def forward(self, x: Any) -> Any:
        if not hasattr(self, "h"):
            self.register_buffer("h", genesis.zeros(2))
        self.h.add_(x)
        return self.h * 2


@program
def buffer_registered_inside(jit: Jit) -> Any:
    layer = Lazy()
    jitted = jit(layer)
    return [
        (show(jitted(vector(k, 1))), weights(layer), list(layer.state_dict())) for k in range(4)
    ]


@program
def parts_registered_inside(jit: Jit) -> Any:
    layer = nn.Module()

    @jit
    def f(x: Any) -> Any:
        layer.register_parameter("w", nn.Parameter(x.detach() * 2))
        layer.add_module("act", nn.Tanh())
        layer._buffers.update(z=x * 3)
        return layer.act(layer.w * x)

    return [
        (show(f(vector(k, 1))), weights(layer), [name for name, _ in layer.named_modules()])
        for k in range(4)
    ]


@program
def hooks_of_a_layer_inside(jit: Jit) -> Any:
    layer = nn.Linear(2, 2)
    with genesis.no_grad():
        for p in layer.parameters():
            p.fill_(0.5)

    @jit
    def f(x: Any) -> Any:
        hook = layer.register_forward_hook(lambda m, args, y: y * 2)
        layer.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
        y = layer(x)
        hook.remove()
        return y + layer(x)

    seen = []
    for k in range(4):
        seen.append((show(f(vector(k, 1))), len(layer._forward_hooks)))
        seen.append(len(layer._forward_pre_hooks))
    return seen


@program
def callbacks_of_an_exit_stack(jit: Jit) -> Any:
    log: list[str] = []

    @jit
    def f(x: Any) -> Any:
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, "a")
            stack.callback(log.append, "b")
            return x * 2

    return [(show(f(vector(k, 1))), list(log)) for k in range(4)]


@program
def warnings_of_every_call(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        warnings.warn("careful", UserWarning, stacklevel=1)
        return x * 2

    jitted, seen = jit(f), []
    for k in range(4):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            seen.append(show(jitted(vector(1, k))))
        seen.append([str(w.message) for w in found])
    return seen


@program
def partial_whose_keywords_change(jit: Jit) -> Any:
    f = functools.partial(lambda x, k: x * k, k=2.0)
    jitted = jit(lambda x: f(x))
    seen = []
    for k in range(6):
        f.keywords["k"] = float(k // 2)
        seen.append(show(jitted(vector(1, 2))))
    return seen


@program
def namespace_of_dictionaries(jit: Jit) -> Any:
    state = SimpleNamespace(tables=[{"k": 1.0}, {"k": 2.0}])

    @jit
    def f(x: Any) -> Any:
        for table in state.tables:
            table["k"] += 1
            x = x * table["k"]
        return x

    return [(show(f(vector(k, 1))), copy.deepcopy(state.tables)) for k in range(4)]


def _of_builtin(base: type, *args: Any) -> Callable[[Jit], Any]:
    """Attributes of an object whose class is below a builtin one."""

    def run(jit: Jit) -> Any:
        kind = type("Below", (base,), {"k": 2.0, "sum": lambda self: self.q + self.k})
        x = kind(*args)
        x.q = 1.0

        def f(y: Any) -> Any:
            result = y * x.q + x.sum()
            x.q += 1
            x.t = y * 2
            return result

        def change(k: int) -> None:
            if k == 2:
                x.q = 5.0
            if k == 4:
                kind.k = 7.0  # type: ignore[attr-defined]

        known = jit(lambda y: y * len([base(*args).__class__]))  # what is known of the builtin
        return attempt(known, vector(1, 2)), _called(jit(f), change, lambda: (x.q, x.t))

    return run


for base, args in {dict: (), list: (), tuple: ((1,),), float: (2.5,), str: ("a",)}.items():
    add_program(f"attributes of a class below {base.__name__}", _of_builtin(base, *args))


# ---- items that are read, moved by what is done to their container, and read again

_MOVES: dict[str, Callable[[Any], Any]] = {
    "append": lambda q: (q.append(q[0]), q[0])[1],
    "appendleft": lambda q: (q[0], q.appendleft(q[-1]), 10 * q[0] + q[-1])[2],
    "popleft": lambda q: (q[0], q.popleft(), q.append(q[0] + 1), 10 * q[0] + q[-1])[3],
    "pop": lambda q: (q[0], q.pop(0), q.append(q[0] + 1), 10 * q[0] + q[-1])[3],
    "rotate": lambda q: (q[0], q.rotate(1), q[0])[2],
    "extend": lambda q: (q[1], q.extend([q[0], q[1]]), 10 * q[0] + q[1])[2],
    "insert": lambda q: (q[1], q.insert(0, q[0] + 1), 10 * q[1] + q[2])[2],
    "reverse": lambda q: (q[1], q.reverse(), 10 * q[1] + q[0])[2],
    "del": lambda q: (q[1], q.__delitem__(0), q.append(q[0] - 3), 10 * q[1] + q[0])[3],
}


def _moved(kind: Callable[[Any], Any], move: Callable[[Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        seen = []
        for start in itertools.product((1.0, 0.5), repeat=2):
            held = kind(start)
            f = jit(lambda x, held=held: (x * 2, move(held)))
            seen += [(attempt(f, vector(k, 2)), list(held)) for k in range(5)]
        return seen

    return run


_KINDS: dict[str, Callable[[Any], Any]] = {
    "a list": list,
    "a deque": collections.deque,
    "a bounded deque": functools.partial(collections.deque, maxlen=3),
}
for (_kind, _make), (_name, _move) in itertools.product(_KINDS.items(), _MOVES.items()):
    if hasattr(_make(()), _name) or _name == "del":
        add_program(f"items moved by {_name} of {_kind}", _moved(_make, _move))


# ---- what the function puts into, or takes out of, its own arguments, which it meets elsewhere, too


def _global_stores(d: Any, e: Any, p: Any, q: Any, x: Any) -> Any:
    d.setdefault("log", []).append(p["t"][:] * x)


def _global_pops(d: Any, e: Any, p: Any, q: Any, x: Any) -> Any:
    d["u"] = [d.pop("t"), p["n"], x]
    d["t"] = x * 2


def _argument_stores(d: Any, e: Any, p: Any, q: Any, x: Any) -> Any:
    p["new"] = e
    d["n"] += 1
    return q["n"]


def _argument_has_itself(d: Any, e: Any, p: Any, q: Any, x: Any) -> Any:
    d["self"] = p
    return x


def _met_twice(change: Callable[..., Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        seen = []
        for one, two in ((0, 0), (0, 1), (1, 1), (1, 2)):
            d, *others = held = [{"n": k, "t": vector(k)} for k in range(3)]
            f = jit(lambda x, p, q, d=d, others=others: change(d, others[1], p, q, x))
            for _ in range(3):
                found = attempt(f, vector(1, 2), held[one], held[two])
                seen.append((found, [list(h) for h in held], held[0]["n"]))
        return seen

    return run


for _change in (_global_stores, _global_pops, _argument_stores, _argument_has_itself):
    add_program(
        f"met twice, {_change.__name__}", _met_twice(_change), _change is _argument_has_itself
    )
