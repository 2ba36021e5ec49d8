"""One place reached in several ways, and writes that only what they leave behind tells of.

An attribute of an object is an item of its ``__dict__`` as well, one of a module a global of its
functions, one of a class is read through the classes below and through objects. What is written one
way and read another is the function's own; what is not must be what it was. C functions that change
an argument, and iterators that fill a container, do so once.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import heapq
import operator
import struct
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from jit_corpus import Jit, add_program, attempt, program, show, vector

import genesis
from genesis import nn

Do = Callable[[Any, Any], Any]


class Pair(NamedTuple):
    a: Any
    n: int = 3


@dataclasses.dataclass
class Parts:
    a: Any
    n: int = 2


# ---- attributes, by the object and by its dictionary


class Plain:
    def __init__(self) -> None:
        self.a, self.t = 1, vector(1)


class Stores(Plain):
    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value


class Looks(Plain):
    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


class Counts(Plain):
    """Counts how often its tensor was asked for."""

    def __getattribute__(self, name: str) -> Any:
        if name == "t":
            held = object.__getattribute__(self, "__dict__")
            held["asked"] = held.get("asked", 0) + 1
        return object.__getattribute__(self, name)


class Falls(Plain):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return 7


class Slotted:
    __slots__ = ("__dict__", "a", "q", "t")

    def __init__(self) -> None:
        self.a, self.t = 1, vector(1)


class Items(dict[str, Any]):
    """Its items are its attributes."""

    def __init__(self) -> None:
        super().__init__(a=1, t=vector(1))
        self.__dict__ = self


class Meta(type):
    def __setattr__(cls, name: str, value: Any) -> None:
        type.__setattr__(cls, name, value)


def _class(kind: type = type) -> Any:
    return kind("Made", (), {"a": 1, "t": vector(1)})


def _module() -> Any:
    module = types.ModuleType("made")
    module.a, module.t = 1, vector(1)  # type: ignore[attr-defined]
    return module


def _layer() -> Any:
    layer = nn.Linear(1, 1)
    nn.init.ones_(layer.weight), nn.init.ones_(layer.bias)
    layer.a, layer.t = 1, vector(1)  # type: ignore[assignment]
    return layer


OWNERS: dict[str, Callable[[], Any]] = {
    "plain": Plain, "stores": Stores, "looks": Looks, "counts": Counts, "falls": Falls,
    "slotted": Slotted, "items": Items, "class": _class,
    "namespace": lambda: types.SimpleNamespace(a=1, t=vector(1)),
    "class of a class": lambda: _class(Meta), "module": _module, "layer": _layer,
}  # fmt: skip


def _by_attribute(s: Any, x: Any) -> Any:
    s.t = s.t + x
    s.q = x * 2
    s.n = 3
    s.n = s.n + 1
    return s.q + s.t * s.n


def _by_dictionary(s: Any, x: Any) -> Any:
    s.__dict__["t"] = s.t + x
    s.__dict__["q"] = x * 2
    return s.q + s.t


def _updated(s: Any, x: Any) -> Any:
    s.t = s.t + x
    s.__dict__.update({"q": x * 2}, r=s.t)
    return s.q + s.__dict__["t"] + s.r


def _taken_out(s: Any, x: Any) -> Any:
    s.t = s.t + x
    s.q = x
    return s.__dict__.pop("q") + s.__dict__["t"], s.__dict__.get("q"), "q" in vars(s)


def _deleted(s: Any, x: Any) -> Any:
    s.__dict__["q"] = x
    del s.q
    return getattr(s, "q", 3), s.t


def _set_twice(s: Any, x: Any) -> Any:
    s.q = x
    vars(s)["q"] = 2 * x
    s.q = s.q + 1
    return vars(s)["q"], [name for name in vars(s) if not name.startswith("_")]


def _in_order(s: Any, x: Any) -> Any:
    s.b = x
    s.c = 2
    s.b = s.b * 3
    s.d = 4
    del s.c
    s.c = 5
    return [name for name in s.__dict__ if not name.startswith("_")], s.b


def _raises(s: Any, x: Any) -> Any:
    s.q = s.t
    s.__dict__["r"] = x
    raise KeyError(len(vars(s)))


for _owner, _make in OWNERS.items():
    for _do in (_by_attribute, _by_dictionary, _updated, _taken_out, _deleted, _set_twice,
                _in_order, _raises):  # fmt: skip

        def _run(jit: Jit, make: Callable[[], Any] = _make, do: Do = _do) -> Any:
            s = make()
            f = jit(lambda x: do(s, x))
            seen = []
            for k in range(4):
                held = {n: v for n, v in vars(s).items() if not n.startswith("_")}
                seen.append((attempt(f, vector(k)), show(held)))
            return seen

        if isinstance(_make(), type) and _do not in (_by_attribute, _in_order):
            continue  # the dictionary of a class is not written
        add_program(f"attributes{_do.__name__} of a {_owner}", _run)


@program
def attribute_of_a_class_through_those_below(jit: Jit) -> Any:
    class Above:
        t = vector(1)

    class Below(Above):
        pass

    it = Below()

    @jit
    def f(x: Any) -> Any:
        Above.t = Above.t + x
        first = Below.t * 2
        Below.u = first
        it.t = it.u + it.t
        del Below.u
        seen = it.t + Below.t
        del it.t
        return seen, hasattr(it, "u"), it.t

    return [(attempt(f, vector(k)), show(Above.t), "t" in vars(it)) for k in range(4)]


@program
def attributes_of_a_tensor_and_whether_it_has_them(jit: Jit) -> Any:
    t = vector(1, 2)

    @jit
    def f(x: Any) -> Any:
        t.tag = getattr(t, "tag", 0) + 1
        t.w = x * t.tag
        t.tag += 1
        return x + t.w, t.tag

    return [(show(f(vector(1, k))), t.tag, show(t.w)) for k in range(4)]


@program
def recordings_do_not_pile_up_where_attributes_have_two_names(jit: Jit) -> Any:
    seen = []
    for name in ("plain", "stores", "looks", "falls", "slotted", "items", "namespace", "class"):
        s = OWNERS[name]()
        f = jit(lambda x, s=s: _by_attribute(s, x))
        for k in range(5):
            f(vector(k))
        seen.append(getattr(f, "captures", 2) <= 2)
    return seen


# ---- arguments that are tuples


@program
def named_tuples_as_arguments(jit: Jit) -> Any:
    kept: list[Any] = []

    @jit
    def f(p: Any) -> Any:
        kept.append(p)
        return {"p": p, "q": p._replace(n=p.n + 1)}, p, p.a * p.n

    given = (Pair(vector(1)), Pair(vector(2)), Pair(vector(3), 4), Pair(vector(3, 4), 4))
    return [attempt(f, p) for p in given], show(kept)


@program
def which_tuple_an_argument_is(jit: Jit) -> Any:
    given = (vector(1), 2), Pair(vector(1)), ((vector(1), 3), [4]), ()
    same = jit(lambda p: p)
    inner = jit(lambda p: p[0])
    seen: list[Any] = [(same(p) is p) for p in (*given, *given)]
    seen += [inner(given[2]) is given[2][0] for _ in range(2)]
    one = (vector(1), 2)
    asked = jit(lambda p: "it" if p is one else p[0])
    return seen + [attempt(asked, p) for p in (one, (vector(3), 2), one, (vector(4), 2))]


@program
def tuples_from_outside_returned(jit: Jit) -> Any:
    one, named = (vector(1), 2), Pair(vector(2))
    f = jit(lambda x: (one, named, (one, x)))
    a, b = f(vector(1)), f(vector(2))
    held = {"p": Pair(vector(1)), "t": (vector(2), 1)}
    give = jit(lambda: (held["p"], held["t"], [held["p"]]))
    for _ in range(3):
        p, t, again = give()
        assert p is held["p"] and t is held["t"] and again[0] is p
        held["p"], held["t"] = p._replace(n=p.n), (*t,)  # equal, but others
    return [r[0] is one and r[1] is named and r[2][0] is one for r in (a, b)], show(a), show(b)


@program
def tuples_of_arguments_as_keys(jit: Jit) -> Any:
    seen: dict[Any, Any] = {}

    @jit
    def f(x: Any) -> Any:
        seen[x, 1] = x * 2
        return len(seen), hash((x, 1)) == hash((x, 1))

    a, b = vector(1), vector(2)
    found = [(f(t), (t, 1) in seen) for t in (a, b, a)]
    return found, [show(v) for v in seen.values()]


@program
def equal_tuples_as_keys(jit: Jit) -> Any:
    seen: dict[Any, Any] = {}

    @jit
    def f(key: Any, x: Any) -> Any:
        seen[key] = x * 2
        return len(seen), key in seen, seen.get(("a", 3), 0)

    keys = (("a", 1), ("b", 2), ("a", 1), ("a", 3))
    return [(attempt(f, key, vector(1)), show(seen)) for key in keys]


@program
def whether_arguments_are_one_in_a_set(jit: Jit) -> Any:
    ways: tuple[Callable[..., Any], ...] = (
        lambda x, y: len({x, y}),
        lambda x, y: len(set([x, y])),  # noqa: C405
        lambda x, y: len(frozenset((x, y))),
        lambda x, y: len(dict.fromkeys([x, y])),
        lambda x, y: len(collections.Counter([x, y])),
        lambda x, y: len({(x, 1), (y, 1)}),
        lambda x, y: len(set[Any]().union([x], (y,))),
    )
    a, b = vector(1), vector(1)
    seen = []
    for way in ways:
        f = jit(way)
        seen.append([f(a, b), f(a, a), f(b, a), f(b, b)])
    return seen


# ---- what is known only afterwards


def _counted(s: Any, x: Any) -> None:
    s["z"] += 1
    s.update("ab")
    s.subtract(["b"])


def _pushed(s: Any, x: Any) -> None:
    s.append(-1)
    heapq.heapify(s)
    heapq.heappush(s, 2)
    heapq.heappop(s)
    heapq.heapreplace(s, 9)
    s.append(heapq.heappushpop(s, 5))


def _sorted_in(s: Any, x: Any) -> None:
    s.append(100)
    bisect.insort(s, 3)
    bisect.insort_left(s, 4, key=lambda n: n)


def _operated(s: Any, x: Any) -> None:
    operator.setitem(s, "k", x)
    operator.setitem(s, "l", [1])
    operator.iadd(s["l"], [2])
    operator.iconcat(s["o"], [x])
    operator.imul(s["o"], 1)
    operator.delitem(s, "k")
    operator.methodcaller("append", x)(s["o"])
    operator.methodcaller("update", w=1)(s)


def _packed(s: Any, x: Any) -> None:
    s.append(1)
    struct.pack_into("<h", s, 0, 7)
    s.append(2)


def _filled(s: Any, x: Any) -> None:
    s.extend(x * k for k in range(3))
    s += map(operator.neg, [x, 1])
    s.append(len(s))
    s[1:2] = (x + k for k in range(2))


def _filled_with_effects(s: Any, x: Any) -> None:
    def some() -> Any:
        for _ in range(2):
            s["n"] += 1
            yield x * s["n"]

    s["l"].extend(some())
    s["l"].append(x)
    s["d"].extend(some())
    s["d"].append(x)


def _updated_from_iterators(s: Any, x: Any) -> None:
    s["d"].update((k, x * k) for k in range(2))
    s["d"] |= zip("ab", [x, 2], strict=True)
    s["s"].update(k for k in range(2))
    s["s"].difference_update(k for k in (0,))
    s["s"].add(7)


AFTERWARDS: dict[str, tuple[Callable[[], Any], Do]] = {
    "counter": (lambda: collections.Counter("a"), _counted),
    "heap": (lambda: [5, 7, 9, 8], _pushed),
    "sorted list": (lambda: [5, 7], _sorted_in),
    "operators": (lambda: {"o": [1]}, _operated),
    "packed bytes": (lambda: bytearray(b"abc"), _packed),
    "list filled": (lambda: [vector(1)], _filled),
    "filled with effects": (lambda: {"n": 0, "l": [], "d": collections.deque(maxlen=5)},
                            _filled_with_effects),
    "updated from iterators": (lambda: {"d": {}, "s": {9}}, _updated_from_iterators),
    "items in the order given": (dict, lambda s, x: s.update(a=1) or s.update(b=x, a=2)),
    "items set and set again": (dict, lambda s, x: [s.__setitem__(k, x) for k in "abac"]),
    "items deleted and set": (lambda: {"a": 1, "b": 2},
                              lambda s, x: (s.pop("a"), s.__setitem__("a", x))[1]),
}  # fmt: skip


for _name, (_make, _do) in AFTERWARDS.items():

    def _run_on(jit: Jit, make: Callable[[], Any] = _make, do: Do = _do) -> Any:
        s = make()
        f = jit(lambda x: do(s, x))
        return [(attempt(f, vector(1)), show(s)) for _ in range(3)]

    add_program(f"afterwards: {_name}", _run_on)


@program
def items_set_by_statements_in_the_order_given(jit: Jit) -> Any:
    held: dict[str, Any] = {}

    @jit
    def f(x: Any) -> None:
        held["a"] = x
        held["b"] = 2
        held["a"] = x * 3
        held["c"] = held["a"]
        del held["b"]
        held["b"] = 7

    seen = []
    for k in range(3):
        f(vector(k))
        seen.append(list(map(show, held.items())))
        held.pop("a")
    return seen


@program(may_refuse=True)
def objects_get_another_class_or_dictionary(jit: Jit) -> Any:
    class One:
        k = 1

    class Two:
        k = 2

    it, other = One(), types.SimpleNamespace(k=3)

    @jit
    def f(x: Any) -> Any:
        it.__class__ = Two if type(it) is One else One
        other.__dict__ = {"k": other.k + 1}
        return x * it.k * other.k

    return [attempt(f, vector(1)) for _ in range(4)]


@program
def the_type_of_an_object_changes_between_calls(jit: Jit) -> Any:
    class One:
        pass

    class Two:
        pass

    it = One()
    f = jit(lambda x: (type(it).__name__, x * 2 if type(it) is One else x * 3))
    seen = []
    for kind in (One, One, Two, One):
        it.__class__ = kind
        seen.append(attempt(f, vector(1)))
    return seen


@program(may_refuse=True)
def any_item_of_a_set_taken(jit: Jit) -> Any:
    held = {1, 2, 3, 4, 5, 6}

    @jit
    def f(x: Any) -> Any:
        held.add(11)
        taken = held.pop()
        held.discard(4)
        return x * taken, held.pop() * x

    return [(attempt(f, vector(1)), show(held)) for _ in range(3)]


@program
def an_argument_that_was_elsewhere_when_recorded(jit: Jit) -> Any:
    state = {"now": vector(1, 2), "last": None}

    @jit
    def f(x: Any) -> None:
        state["last"] = x
        state["now"] = -state["now"] * 2

    seen = []
    for key in ("now", "last", "now", "now", "last"):
        f(state[key])
        seen.append(show(state))
    return seen


@program
def a_class_whose_class_makes_objects(jit: Jit) -> Any:
    class Made(type):
        def __call__(cls, *args: Any) -> Any:
            it = super().__call__(*args)
            cls.made.append(it.n)
            return it

    class Numbered(metaclass=Made):
        made: list[int] = []  # noqa: RUF012

        def __init__(self, n: int) -> None:
            self.n = n

    f = jit(lambda x, n: Numbered(n).n * x)
    return [(attempt(f, vector(1), n), list(Numbered.made)) for n in (1, 2, 1, 1)]


@program
def attention_with_nothing_to_ask(jit: Jit) -> Any:
    attend = jit(lambda q, k: nn.functional.scaled_dot_product_attention(q, k, k))
    sizes = (4, 4), (5, 5), (6, 3), (0, 3), (3, 0), (0, 0), (2, 7)
    return [attempt(attend, genesis.ones(1, n, 4), genesis.ones(1, m, 4)) for n, m in sizes]


@program
def what_shares_elements_where_extents_are_equal_or_even(jit: Jit) -> Any:
    """One program serves many sizes; whether a reshape is a view is asked for each."""
    uses: tuple[Callable[[Any], Any], ...] = (
        lambda x: x.t().reshape(x.shape),
        lambda x: x[:, ::2].reshape(-1),
        lambda x: x[:, ::2].contiguous(),
        lambda x: x[::2].reshape(-1),
        lambda x: x[:, :1].reshape(-1),
        lambda x: x.t().reshape(x.shape[1] * x.shape[0]),
        lambda x: x.t().contiguous(),
        lambda x: x[:, 1:].flatten(),
        lambda x: x.unsqueeze(1).expand(-1, 1, -1).reshape(x.shape),
        lambda x: x[None].transpose(0, 1).reshape(x.shape),
    )
    sizes = (4, 5), (5, 7), (6, 6), (1, 5), (5, 1), (1, 1), (3, 2), (2, 2), (9, 8), (7, 4)
    seen = []
    for use in uses:
        f = jit(use)
        for shape in sizes:
            x = genesis.arange(float(shape[0] * shape[1])).reshape(shape)
            f(x).add_(100)
            seen.append(x.tolist())
    return seen


@program
def one_of_many_copies_written(jit: Jit) -> Any:
    ways: tuple[Callable[[Any], Any], ...] = (
        lambda x: x.expand(4, 3)[0],
        lambda x: x.expand(4, 3)[2:3],
        lambda x: x[:, None].expand(1, 4, 3).select(1, 2),
        lambda x: x.expand(0, 3),
        lambda x: x.expand(4, 3).unbind(0)[1],
    )
    seen = []
    for way in ways:
        f = jit(lambda x, way=way: (way(x).mul_(x[0]), x + 1)[1])
        for k in range(2):
            x = genesis.tensor([[1.0, 2.0, 3.0 + k]])
            seen.append((attempt(f, x), show(x)))
    return seen
