"""What a function writes to: arguments, containers, attributes, buffers, names."""
# ruff: noqa: PERF401

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from jit_corpus import Jit, add_program, attempt, program, show, vector, weights
from jit_training import batch, mlp

import genesis
from genesis import nn
from genesis.ndarray.core.value import CaptureError


def assign(o: Any, name: str, value: Any) -> None:
    """Assign to an attribute, as an expression."""
    setattr(o, name, value)


@dataclass
class State:
    h: Any = None
    n: int = 0


#: What is written to, and a function of a tensor and it.
WRITES: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {}


def write(make: Callable[[], Any]) -> Callable[[Callable[[Any, Any], Any]], Any]:
    def add(f: Callable[[Any, Any], Any]) -> Any:
        WRITES[f.__name__.replace("_", " ")] = make, f
        return f

    return add


@write(dict)
def cache_item(x: Any, c: Any) -> Any:
    c["k"] = x * 2
    return c["k"] + 1


@write(lambda: {"k": vector(0, 0)})
def cache_item_accumulated(x: Any, c: Any) -> Any:
    c["k"] = c["k"] + x
    return c["k"] * 2


@write(lambda: {"k": vector(0, 0)})
def cache_item_in_place(x: Any, c: Any) -> Any:
    c["k"] += x
    return c["k"] * 2


@write(dict)
def key_value_cache(x: Any, c: Any) -> Any:
    c["k"] = genesis.cat([c["k"], x]) if "k" in c else x
    return c["k"].sum()


@write(lambda: {"n": 0})
def counter_in_a_dict(x: Any, c: Any) -> Any:
    c["n"] += 1
    return x * c["n"]


@write(dict)
def dict_update(x: Any, c: Any) -> Any:
    c.update(a=x * 2, b=3)
    return x


@write(lambda: {"a": vector(1, 1), "b": 2})
def dict_pop(x: Any, c: Any) -> Any:
    a = c.pop("a", None)
    return x if a is None else x * a


@write(dict)
def dict_setdefault(x: Any, c: Any) -> Any:
    return c.setdefault("k", x * 2) + x


@write(dict)
def setdefault_list_append(x: Any, c: Any) -> Any:
    c.setdefault("k", []).append(x * 2)
    return x * len(c["k"])


@write(lambda: collections.defaultdict(list))
def default_dict_append(x: Any, c: Any) -> Any:
    c["k"].append(x * 2)
    return x


@write(lambda: {"a": 1, "b": 2})
def dict_key_deleted_and_set(x: Any, c: Any) -> Any:
    if "a" in c:
        del c["a"]
    else:
        c["a"] = x
    return x


@write(lambda: {"a": 1})
def dict_cleared(x: Any, c: Any) -> Any:
    n = len(c)
    c.clear()
    c["x"] = x
    return x * n


@write(lambda: {"a": 1.0, "b": 2.0})
def dict_reordered(x: Any, c: Any) -> Any:
    first = next(iter(c))
    c[first] = c.pop(first)
    return x * c[first]


@write(lambda: {"a": 1.0})
def dict_popitem(x: Any, c: Any) -> Any:
    c[f"k{len(c)}"] = x
    k, v = c.popitem()
    c[k + "!"] = v
    return x


@write(list)
def list_append(x: Any, c: Any) -> Any:
    c.append(x * 2)
    return x


@write(list)
def list_append_of_the_argument(x: Any, c: Any) -> Any:
    c.append(x)
    return x * 2


@write(list)
def list_append_and_read(x: Any, c: Any) -> Any:
    c.append(x * 2)
    return sum(c, x)


@write(list)
def list_append_plain(x: Any, c: Any) -> Any:
    c.append(len(c))
    return x * len(c)


@write(list)
def list_extend(x: Any, c: Any) -> Any:
    c.extend([x, x * 2, 3])
    return x


@write(lambda: [1.0, 2.0])
def list_item(x: Any, c: Any) -> Any:
    c[0] = x * c[1]
    return x


@write(lambda: [vector(1, 1), vector(2, 2)])
def list_swapped(x: Any, c: Any) -> Any:
    c[0], c[1] = c[1], c[0]
    return x * c[0]


@write(lambda: [1, 2, 3, 4, 5, 6])
def list_pop(x: Any, c: Any) -> Any:
    return x * c.pop()


@write(lambda: [1, 2, 3, 4, 5, 6, 7, 8, 9])
def list_pop_first(x: Any, c: Any) -> Any:
    return x * c.pop(0)


@write(lambda: [3, 1, 2])
def list_sort_reverse_insert(x: Any, c: Any) -> Any:
    c.sort()
    c.reverse()
    c.insert(1, 7)
    return x * c[0]


@write(lambda: [1, 2, 3])
def list_slice_assigned(x: Any, c: Any) -> Any:
    c[1:] = [x, x * 2]
    return x


@write(lambda: [1, 2])
def list_added_in_place(x: Any, c: Any) -> Any:
    c += [x * 2]
    return x


@write(lambda: [[], []])
def inner_list(x: Any, c: Any) -> Any:
    c[len(c[0]) % 2].append(x)
    return x


@write(lambda: [1, 2, 3])
def list_clear(x: Any, c: Any) -> Any:
    n = len(c)
    c.clear()
    return x * n


@write(lambda: [1, 2, 3, 1])
def list_remove(x: Any, c: Any) -> Any:
    if 1 in c:
        c.remove(1)
    return x * len(c)


@write(lambda: collections.deque(maxlen=2))
def deque_append(x: Any, c: Any) -> Any:
    c.append(x * 2)
    return sum(c, x)


@write(lambda: collections.deque([1, 2, 3]))
def deque_rotate(x: Any, c: Any) -> Any:
    c.rotate(1)
    return x * c[0]


@write(lambda: collections.deque([1, 2, 3, 4, 5, 6, 7, 8]))
def deque_popleft(x: Any, c: Any) -> Any:
    return x * c.popleft()


@write(set)
def set_add(x: Any, c: Any) -> Any:
    c.add(len(c))
    return x * len(c)


@write(lambda: {1, 2})
def set_discard(x: Any, c: Any) -> Any:
    c.discard(2)
    c |= {5}
    return x * sum(c)


@write(collections.Counter)
def counter_update(x: Any, c: Any) -> Any:
    c["calls"] += 1
    return x * c["calls"]


@write(State)
def attribute_tensor(x: Any, c: Any) -> Any:
    c.h = x * 2
    return c.h + 1


@write(lambda: State(vector(0, 0)))
def attribute_accumulated(x: Any, c: Any) -> Any:
    c.h = c.h * 0.9 + x
    return c.h * 2


@write(lambda: State(vector(0, 0)))
def attribute_added_in_place(x: Any, c: Any) -> Any:
    c.h += x
    return c.h * 2


@write(State)
def attribute_first_none(x: Any, c: Any) -> Any:
    c.h = x if c.h is None else c.h + x
    return c.h


@write(State)
def attribute_counter(x: Any, c: Any) -> Any:
    c.n += 1
    return x * c.n


@write(State)
def attribute_counter_unread(x: Any, c: Any) -> Any:
    c.n += 1
    return x * 2


@write(lambda: SimpleNamespace(a=vector(1, 1), b=vector(2, 3)))
def attributes_swapped(x: Any, c: Any) -> Any:
    c.a, c.b = c.b, c.a
    return x * c.a


@write(lambda: SimpleNamespace(a=1.0, b=2.0))
def plain_attributes_swapped(x: Any, c: Any) -> Any:
    c.a, c.b = c.b, c.a
    return x * c.a


@write(lambda: SimpleNamespace(a=1.0))
def attribute_deleted_and_made(x: Any, c: Any) -> Any:
    if hasattr(c, "a"):
        del c.a
        c.b = x
    else:
        del c.b
        c.a = 2.0
    return x


@write(lambda: SimpleNamespace(inner=SimpleNamespace(h=vector(0, 0))))
def nested_attribute(x: Any, c: Any) -> Any:
    c.inner.h = c.inner.h + x
    return c.inner.h


@write(SimpleNamespace)
def new_object_in_an_attribute(x: Any, c: Any) -> Any:
    c.inner = SimpleNamespace(h=x * 2, n=3)
    c.inner.n += 1
    return x


@write(SimpleNamespace)
def new_list_in_an_attribute(x: Any, c: Any) -> Any:
    c.items = [x, x * 2]
    c.items.append(c.items[0] + 1)
    return x


@write(SimpleNamespace)
def setattr_by_name(x: Any, c: Any) -> Any:
    for k in range(2):
        setattr(c, f"k{k}", x * k)
    return x


@write(SimpleNamespace)
def through_the_dict_of_an_object(x: Any, c: Any) -> Any:
    c.__dict__["h"] = x * 2
    vars(c)["n"] = vars(c).get("n", 0) + 1
    return x * c.n


@write(lambda: SimpleNamespace(h=vector(1, 2)))
def the_same_tensor_in_two_places(x: Any, c: Any) -> Any:
    c.a = c.b = x * 2
    c.a.add_(1)
    return c.b


@write(lambda: SimpleNamespace(h=None))
def an_argument_stored(x: Any, c: Any) -> Any:
    c.h = x
    return x * 2


@write(lambda: SimpleNamespace(h=None))
def a_view_stored(x: Any, c: Any) -> Any:
    c.h = x[1:]
    return x * 2


@write(lambda: SimpleNamespace(h=None, w=vector(1, 2)))
def an_outer_tensor_stored(x: Any, c: Any) -> Any:
    c.h = c.w
    return x * c.h


@write(lambda: SimpleNamespace(h=None, y=None))
def a_result_stored(x: Any, c: Any) -> Any:
    c.y = x * 2
    return c.y


@write(lambda: np.zeros(2, np.float32))
def numpy_item(x: Any, c: Any) -> Any:
    c[0] += 1
    return x * float(c[0])


@write(lambda: SimpleNamespace(n=0))
def written_then_read_in_a_branch(x: Any, c: Any) -> Any:
    c.n += 1
    if c.n > 2:
        c.n = 0
        return x * 100
    return x * c.n


@write(lambda: SimpleNamespace(last=None))
def a_text(x: Any, c: Any) -> Any:
    c.last = f"shape {tuple(x.shape)} after {c.last}"[:30]
    return x * len(c.last)


@write(list)
def functions_of_tensors_stored(x: Any, c: Any) -> Any:
    y = x * 2
    c.append(lambda: y)
    return y


@write(lambda: SimpleNamespace(old=None))
def a_tensor_with_its_graph(x: Any, c: Any) -> Any:
    old, c.old = c.old, x * 2
    return x if old is None else x + old


@write(lambda: {"t": vector(1, 1), "log": []})
def several_at_once(x: Any, c: Any) -> Any:
    c["t"] = c["t"] + x
    c["log"].append(c["t"])
    c["t"].mul_(2)
    return len(c["log"]), c["t"]


REFUSABLE = {
    "functions of tensors stored", "through the dict of an object", "numpy item", "dict popitem",
}  # fmt: skip


def _closed(make: Callable[[], Any], f: Callable[[Any, Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        state = make()
        jitted = jit(lambda x: f(x, state))
        seen = []
        for k in range(5):
            x = vector(k, 1)
            y = attempt(jitted, x)
            seen.append((y, show(state), show(x)))
        return seen

    return run


def _passed(make: Callable[[], Any], f: Callable[[Any, Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        states = [make(), make()]
        jitted = jit(f)
        seen = []
        kept = []
        for k in range(6):
            x = vector(k, 1)
            y = attempt(jitted, x, states[k == 3])
            kept.append(x)
            seen.append((y, show(states)))
        for x in kept:
            x.mul_(10)  # what holds an argument changes with it
        return seen, show(states)

    return run


for name, (make, f) in WRITES.items():
    add_program(f"write {name}", _closed(make, f), name in REFUSABLE)
    add_program(f"write {name} in an argument", _passed(make, f), name in REFUSABLE)


# ---- modules


class Running(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.n = 0
        self.h = None
        self.plain = vector(0, 0)
        self.register_buffer("buf", vector(0, 0))
        self.p = nn.Parameter(vector(1, 1))
        self.items: list[Any] = []
        self.cache: dict[str, Any] = {}

    def forward(self, x: Any) -> Any:
        return getattr(self, self.how)(x) * self.p

    def buffer(self, x: Any) -> Any:
        self.buf = self.buf * 0.9 + x
        return self.buf

    def buffer_in_place(self, x: Any) -> Any:
        self.buf.mul_(0.9).add_(x)
        return self.buf

    def buffer_copied(self, x: Any) -> Any:
        self.buf.copy_(x)
        return self.buf * 2

    def buffer_slice(self, x: Any) -> Any:
        self.buf[0] = x[1]
        return self.buf * 2

    def tensor(self, x: Any) -> Any:
        self.plain = self.plain + x
        return self.plain

    def hidden(self, x: Any) -> Any:
        self.h = x if self.h is None else genesis.tanh(self.h + x)
        return self.h

    def count(self, x: Any) -> Any:
        self.n += 1
        return x * self.n

    def listed(self, x: Any) -> Any:
        self.items.append(x)
        return sum(self.items, x)

    def cached(self, x: Any) -> Any:
        if "w" not in self.cache:
            self.cache["w"] = x * 2
        return self.cache["w"] + x

    def made(self, x: Any) -> Any:
        if not hasattr(self, "late"):
            self.late = nn.Parameter(genesis.ones(2) * 3)
        return x * self.late

    def aux(self, x: Any) -> Any:
        self.loss = (x**2).mean()
        return x

    def swapped(self, x: Any) -> Any:
        self.plain, self.buf = self.buf, self.plain
        return x + self.plain

    def mode(self, x: Any) -> Any:
        self.training = not self.training
        return x * 2 if self.training else x


def _running(how: str, where: str) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        model = Running(how)
        f = jit(model) if where == "jitted" else jit(lambda x: model(x))
        seen = []
        for k in range(5):
            y = f(vector(k, 1))
            if where == "trained":
                model.zero_grad()
                (y.sum() + (model.loss if how == "aux" else 0)).backward(
                    retain_graph=how in RETAINED
                )
            seen.append((show(y), show(model.plain), show(model.h), model.n, show(model.items),
                         show(model.cache), weights(model), model.training,
                         show(getattr(model, "loss", None))))  # fmt: skip
        return seen

    return run


RETAINED = (
    "buffer",
    "tensor",
    "hidden",
    "listed",
    "cached",
    "buffer_in_place",
    "swapped",
    "buffer_slice",
)
for how in (
    "buffer", "buffer_in_place", "buffer_copied", "buffer_slice", "tensor", "hidden", "count",
    "listed", "cached", "made", "aux", "swapped", "mode",
):  # fmt: skip
    for where in ("jitted", "closed over", "trained"):
        add_program(f"module writes {how}, {where}", _running(how, where))


@program
def batch_norm_running_statistics(jit: Jit) -> Any:
    genesis.manual_seed(0)
    model = nn.BatchNorm1d(3)
    f = jit(model)
    return [(show(f(batch(k)[0])), weights(model)) for k in range(5)]


@program
def spectral_norm_like(jit: Jit) -> Any:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(genesis.tensor([[1.0, 2.0], [3.0, 4.0]]))
            self.register_buffer("u", vector(1, 0))

        def forward(self, x: Any) -> Any:
            with genesis.no_grad():
                v = self.w.t() @ self.u
                v = v / v.norm()
                u = self.w @ v
                self.u = u / u.norm()
            return x @ self.w.t() / (self.u @ self.w @ v)

    model = Spectral()
    f = jit(model)
    seen = []
    for k in range(5):
        y = f(vector(k, 1))
        y.sum().backward()
        seen.append((show(y), weights(model)))
    return seen


@program
def generation_with_a_cache(jit: Jit) -> Any:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Any, past: Any = None) -> Any:
            k = self.k(x)
            k = k if past is None else genesis.cat([past, k], 0)
            return genesis.softmax(self.q(x) @ k.t(), -1) @ k, k

    genesis.manual_seed(0)
    model = Decoder()
    f = jit(model)
    past = None
    seen = []
    x = genesis.tensor([[1.0, 2.0]])
    with genesis.no_grad():
        for _ in range(6):
            x, past = f(x, past)
            seen.append((show(x), show(past)))
    return seen


# ---- names


@program
def nonlocal_counter(jit: Jit) -> Any:
    n = 0

    @jit
    def f(x: Any) -> Any:
        nonlocal n
        n += 1
        return x * n

    return [(show(f(vector(1, 2))), n) for _ in range(4)]


@program
def nonlocal_tensor(jit: Jit) -> Any:
    h = vector(0, 0)

    @jit
    def f(x: Any) -> Any:
        nonlocal h
        h = h * 0.5 + x
        return h * 2

    seen = [(show(f(vector(k, 2))), show(h)) for k in range(4)]
    h = vector(9, 9)
    return [*seen, show(f(vector(1, 2))), show(h)]


@program
def nonlocal_in_an_inner_function(jit: Jit) -> Any:
    n = 0
    total = vector(0, 0)

    @jit
    def f(x: Any) -> Any:
        def add(y: Any) -> None:
            nonlocal n, total
            n += 1
            total = total + y

        add(x)
        add(x * 2)
        return x * n

    return [(show(f(vector(1, k))), n, show(total)) for k in range(4)]


@program
def counters_made_inside(jit: Jit) -> Any:
    @jit
    def f(x: Any) -> Any:
        n = 0

        def count() -> int:
            nonlocal n
            n += 1
            return n

        return x * count() + count()

    return [show(f(vector(1, k))) for k in range(4)]


@program
def closure_rebound_by_the_callback(jit: Jit) -> Any:
    losses: list[Any] = []
    best = None

    def report(y: Any) -> None:
        nonlocal best
        losses.append(y)
        best = y if best is None else genesis.minimum(best, y)

    @jit
    def f(x: Any, callback: Callable[..., None]) -> Any:
        callback((x * x).sum())
        return x

    seen = []
    for k in (3, 1, 2):
        f(vector(k, 1), report)
        seen.append((show(losses), show(best)))
    return seen


# ---- arguments in place


@program
def arguments_in_place(jit: Jit) -> Any:
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        y[0] = x[1]
        x += y
        return x

    g = jit(f)
    seen = []
    for k in range(4):
        x, y = vector(k, 1), vector(5, 6)
        z = g(x, y)
        seen.append((show(x), show(y), z is x))
    return seen


@program
def argument_in_place_seen_by_views(jit: Jit) -> Any:
    def f(x: Any) -> None:
        x.add_(1)

    f = jit(f)
    seen = []
    for k in range(3):
        whole = vector(k, 1, 2, 3)
        view, other = whole[1:3], whole[2:]
        f(view)
        seen.append((show(whole), show(other)))
        f(whole)
        seen.append(show(other))
    return seen


@program
def two_views_of_one_tensor(jit: Jit) -> Any:
    def f(a: Any, b: Any) -> Any:
        a.add_(1)
        b.mul_(2)
        return a + b

    f = jit(f)
    seen = []
    for k in range(3):
        whole = vector(k, 1, 2, 3)
        seen.append((show(f(whole[:2], whole[2:])), show(whole)))
        seen.append((attempt(f, whole[:2], whole[1:3]), show(whole)))
        seen.append((attempt(f, whole[:2], whole[:2]), show(whole)))
    return seen


@program
def the_same_argument_twice_written(jit: Jit) -> Any:
    def f(a: Any, b: Any) -> Any:
        a.add_(1)
        return a * b

    f = jit(f)
    seen = []
    for k in range(4):
        x, y = vector(k, 1), vector(2, 3)
        seen.append((show(f(x, x if k % 2 else y)), show(x), show(y)))
    return seen


@program
def argument_that_is_also_outside_written(jit: Jit) -> Any:
    w = vector(1, 2)

    @jit
    def f(x: Any) -> Any:
        w.add_(1)
        return x * w

    seen = [show(f(vector(3, 4))), show(w)]
    seen += [show(f(w)), show(w), show(f(w[:])), show(w), show(f(vector(3, 4))), show(w)]
    return seen


@program
def outer_tensor_and_its_view_written(jit: Jit) -> Any:
    w = vector(1, 2, 3)
    v = w[1:]

    @jit
    def f(x: Any) -> Any:
        v.mul_(2)
        w.add_(x)
        return v.sum()

    return [(show(f(vector(k, 1, 1))), show(w), show(v)) for k in range(3)]


@program
def view_rebound_between_calls(jit: Jit) -> Any:
    whole = vector(1, 2, 3, 4)
    v = whole[:2]

    @jit
    def f(x: Any) -> Any:
        v.add_(x)
        return v * 2

    seen = [(show(f(vector(1, 1))), show(whole))]
    v = whole[2:]
    seen.append((show(f(vector(1, 1))), show(whole)))
    v = whole[1:3]
    return [*seen, show(f(vector(1, 1))), show(whole)]


@program
def resized_by_data(jit: Jit) -> Any:
    w = vector(1, 2)

    @jit
    def f(x: Any) -> None:
        w.data = genesis.cat([w.data, x])

    seen = []
    for k in range(4):
        f(vector(k))
        seen.append(show(w))
    return seen


@program
def set_data_of_an_argument(jit: Jit) -> Any:
    def f(x: Any, y: Any) -> None:
        x.data = y * 2

    f = jit(f)
    seen = []
    for k in range(4):
        x, y = vector(1, 2, grad=True), vector(k, 3)
        f(x, y)
        y.mul_(10)
        seen.append(show(x))
    return seen


@program
def data_shared_with_an_argument(jit: Jit) -> Any:
    w = vector(1, 2)

    @jit
    def f(x: Any) -> None:
        w.data = x

    seen = []
    for k in range(4):
        x = vector(k, 3)
        f(x)
        x.mul_(10)
        seen.append(show(w))
    return seen


@program
def requires_grad_set_inside(jit: Jit) -> Any:
    w = vector(1, 2)

    @jit
    def f(x: Any, wanted: bool) -> Any:
        w.requires_grad_(wanted)
        return x * w

    seen = []
    for k in range(5):
        y = f(vector(1, 2), k % 2 == 0)
        seen.append((show(y), w.requires_grad))
    return seen


@program
def requires_grad_of_an_argument_set_inside(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        x.requires_grad_()
        return x * 2

    f = jit(f)
    seen = []
    for k in range(3):
        x = vector(k, 2)
        y = f(x)
        seen.append((x.requires_grad, y.requires_grad))
    return seen


@program
def attributes_of_tensors(jit: Jit) -> Any:
    w = nn.Parameter(vector(1, 2))

    @jit
    def f(x: Any) -> Any:
        with contextlib.suppress(AttributeError):
            w.tag = "seen"  # type: ignore[attr-defined]
        return x * w

    return [(show(f(vector(1, k))), getattr(w, "tag", None)) for k in range(3)]


@program
def list_argument_grows_within(jit: Jit) -> Any:
    def f(xs: list[Any]) -> Any:
        while len(xs) < 4:
            xs.append(xs[-1] * 2)
        return xs[-1]

    f = jit(f)
    seen = []
    for k in range(4):
        xs = [vector(1, k)] * (1 + k % 2)
        y = f(xs)
        seen.append((show(y), show(xs), y is xs[-1]))
    return seen


@program
def argument_containers_keep_their_identity(jit: Jit) -> Any:
    def f(d: dict[str, Any]) -> Any:
        d["y"] = d["x"] * 2
        d["inner"] = d
        return d["x"]

    f = jit(f)
    seen = []
    for k in range(3):
        x = vector(k, 1)
        d: dict[str, Any] = {"x": x}
        y = f(d)
        seen.append((y is x, d["x"] is x, d["inner"] is d, show(d["y"]), list(d)))
    return seen


@program
def results_stored_and_returned_are_one(jit: Jit) -> Any:
    state = SimpleNamespace(y=None, items=[])

    @jit
    def f(x: Any) -> Any:
        y = x * 2
        state.y = y
        state.items.append(y)
        return y

    seen = []
    for k in range(3):
        y = f(vector(k, 1))
        seen.append((y is state.y, state.items[-1] is y, len(state.items)))
        y.add_(100)
        seen.append((show(state.y), show(state.items)))
    return seen


@program
def stored_argument_changes_later(jit: Jit) -> Any:
    state = SimpleNamespace(x=None, view=None)

    @jit
    def f(x: Any) -> Any:
        state.x, state.view = x, x[1:]
        return x * 2

    seen = []
    for k in range(3):
        x = vector(k, 1)
        f(x)
        x.add_(100)
        seen.append((state.x is x, show(state.x), show(state.view)))
    return seen


@program
def outer_tensor_in_place_then_rebound(jit: Jit) -> Any:
    state = SimpleNamespace(w=vector(1, 2))
    first = state.w

    @jit
    def f(x: Any) -> Any:
        state.w.add_(1)
        state.w = state.w * x
        state.w.sub_(1)
        return state.w

    return [(show(f(vector(2, k))), show(state.w), show(first)) for k in range(4)]


@program
def state_passed_around(jit: Jit) -> Any:
    @jit
    def f(state: State, x: Any) -> State:
        return State(x if state.h is None else state.h + x, state.n + 1)

    state = State()
    seen = []
    for k in range(5):
        state = f(state, vector(k, 1))
        seen.append(show(state))
    return seen


# ---- exceptions


@program
def writes_then_an_exception(jit: Jit) -> Any:
    log: list[Any] = []
    w = vector(1, 2)
    state = SimpleNamespace(n=0, h=None)

    @jit
    def f(x: Any, fail: bool) -> Any:
        log.append(x * 2)
        w.add_(1)
        state.n += 1
        state.h = x * 3
        if fail:
            raise ValueError("no")
        return x * w

    seen = []
    for fail in (False, True, False, True, True, False):
        seen.append((attempt(f, vector(1, 2), fail), show(log), show(w), show(state)))
    return seen


@program
def an_exception_caught_inside(jit: Jit) -> Any:
    w = vector(1, 2)
    log: list[str] = []

    @jit
    def f(x: Any, k: int) -> Any:
        try:
            w.add_(1)
            [1, 2][k]
        except IndexError:
            log.append("caught")
            return x * w
        else:
            log.append("fine")
        finally:
            w.mul_(2)
        return x - w

    return [(show(f(vector(1, 2), k)), show(w), list(log)) for k in (0, 5, 0, 5, 1)]


@program
def an_error_of_an_operation(jit: Jit) -> Any:
    w = vector(1, 2)

    @jit
    def f(x: Any) -> Any:
        w.add_(1)
        return x @ vector(1, 2, 3)

    seen = []
    for x in (vector(1, 2), vector(1, 2, 3), vector(1, 2)):
        seen.append((attempt(f, x), show(w)))
    return seen


@program
def an_exception_with_tensors_in_it(jit: Jit) -> Any:
    class Stop(Exception):
        pass

    @jit
    def f(x: Any) -> Any:
        raise Stop(x * 2)

    seen = []
    for k in range(3):
        try:
            f(vector(k, 1))
        except Stop as stop:
            seen.append(show(stop.args[0]))
    return seen


@program
def an_exception_in_a_nested_jit(jit: Jit) -> Any:
    w = vector(1, 2)

    @jit
    def inner(x: Any, fail: bool) -> Any:
        w.add_(1)
        if fail:
            raise KeyError("no")
        return x * w

    @jit
    def outer(x: Any, fail: bool) -> Any:
        try:
            return inner(x, fail)
        except KeyError:
            return x - w

    return [(show(outer(vector(1, 2), k % 2 == 1)), show(w)) for k in range(5)]


@program
def an_exception_while_training(jit: Jit) -> Any:
    model = mlp()
    opt = genesis.optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Any, fail: bool) -> Any:
        opt.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        if fail:
            raise RuntimeError("no")
        opt.step()
        return loss

    return [(attempt(step, batch(k)[0], k in (1, 3, 4)), weights(model)) for k in range(6)]


@program
def an_exception_leaves_the_modes(jit: Jit) -> Any:
    @jit
    def f(x: Any, fail: bool) -> Any:
        with genesis.no_grad():
            if fail:
                raise ValueError("no")
            return x * 2

    seen = []
    for fail in (True, False, True):
        seen.append((attempt(f, vector(1, 2, grad=True), fail), genesis.is_grad_enabled()))
    return seen


@program
def context_managers_with_state(jit: Jit) -> Any:
    log: list[str] = []
    depth = 0

    @contextlib.contextmanager
    def scope(name: str) -> Any:
        nonlocal depth
        depth += 1
        log.append(f"enter {name}")
        try:
            yield depth
        finally:
            depth -= 1
            log.append(f"leave {name}")

    @jit
    def f(x: Any, fail: bool) -> Any:
        with scope("a") as a, contextlib.suppress(ValueError), scope("b") as b:
            x = x * (a + b)
            if fail:
                raise ValueError("no")
            x = x + 1
        return x

    return [(show(f(vector(1, 2), k % 2 == 1)), list(log), depth) for k in range(4)]


# ---- a refused call has done nothing, so that it can be made without jit


def _fallback(f: Callable[..., Any], make: Callable[[], Any]) -> Callable[[Jit], Any]:
    """A function that asks for contents at its end, called without jit where jit refuses."""

    def run(jit: Jit) -> Any:
        state = make()
        jitted = jit(lambda x: f(x, state))
        seen = []
        for k in range(3):
            x = vector(k, 1)
            try:
                y = jitted(x)
            except CaptureError:
                with genesis.eager():
                    y = jitted(x)
            seen.append((show(y), show(state), show(x), show(genesis.rand(2))))
        return seen

    return run


def _trained(x: Any, state: Any) -> Any:
    loss = ((state.p - x) ** 2).sum()
    loss.backward()
    state.optimizer.step()
    return loss.item()


def _trainer() -> Any:
    p = nn.Parameter(vector(1, 2))
    return SimpleNamespace(p=p, optimizer=genesis.optim.Adam([p], lr=0.1))


FALLBACKS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "list": (lambda x, c: (c.append(x), x.sum().item()), list),
    "dict": (lambda x, c: (c.update(k=x, n=len(c)), x.sum().item()), dict),
    "attribute": (lambda x, c: (assign(c, "h", x), assign(c, "n", c.n + 1), x.sum().item()), State),
    "tensor in place": (lambda x, c: (c.h.add_(x), c.h.sum().item()), lambda: State(vector(1, 2))),
    "argument in place": (lambda x, c: (x.add_(1), x.sum().item()), State),
    "random numbers": (lambda x, c: (genesis.rand(2), x.sum().item()), State),
    "training": (_trained, _trainer),
    "module": (lambda x, m: (m(x), m.buf.sum().item()), lambda: Running("buffer")),
}
for name, (f, make) in FALLBACKS.items():
    add_program(f"refused after writing to {name}", _fallback(f, make))


# ---- several functions, threads


@program
def two_jitted_functions_share_state(jit: Jit) -> Any:
    state = {"w": vector(1, 2), "n": 0}

    @jit
    def grow(x: Any) -> None:
        state["w"] = state["w"] + x
        state["n"] += 1

    @jit
    def use(x: Any) -> Any:
        return x * state["w"] * state["n"]

    seen = []
    for k in range(5):
        if k != 2:
            grow(vector(k, 1))
        seen.append((show(use(vector(1, 2))), show(state)))
    return seen


@program
def plain_code_writes_the_same_state(jit: Jit) -> Any:
    log: list[Any] = []

    @jit
    def f(x: Any) -> Any:
        log.append(x * len(log))
        return sum(log, x)

    seen = []
    for k in range(6):
        if k == 2:
            log.append(vector(7, 7))
        if k == 4:
            log.pop(0)
        seen.append((show(f(vector(1, k))), show(log)))
    return seen


@program
def recursion_through_jit(jit: Jit) -> Any:
    @jit
    def f(x: Any, n: int) -> Any:
        return x if n == 0 else f(x * 2, n - 1) + 1

    return [show(f(vector(1, 2), n)) for n in (0, 1, 3, 3, 2)]


@program
def jitted_inside_jitted_writes(jit: Jit) -> Any:
    log: list[Any] = []
    w = vector(0, 0)

    @jit
    def inner(x: Any) -> Any:
        log.append(x)
        w.add_(x)
        return w * 2

    @jit
    def outer(x: Any) -> Any:
        return inner(x) + inner(x * 2)

    seen = []
    for k in range(4):
        y = outer(vector(1, k)) if k != 1 else inner(vector(1, k))
        seen.append((show(y), show(log), show(w)))
    return seen


@program
def jit_made_inside_jit(jit: Jit) -> Any:
    @jit
    def f(x: Any) -> Any:
        g = jit(lambda y: y * 2)
        return g(x) + g(x + 1)

    return [show(f(vector(1, k))) for k in range(3)]


@program
def two_threads_call_one_function(jit: Jit) -> Any:
    w = vector(1, 2)
    f = jit(lambda x, k: genesis.tanh(x * w) * k)
    results: dict[Any, Any] = {}

    def work(k: int) -> None:
        for n in range(8):
            results[k, n] = show(f(vector(n, k), float(k + n % 2)))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sorted(results.items())


@program
def two_threads_take_gradients(jit: Jit) -> Any:
    w = vector(1, 2)
    f = jit(lambda x: (genesis.tanh(x * w) ** 2).sum())
    results: dict[Any, Any] = {}

    def work(k: int) -> None:
        for n in range(8):
            x = vector(n, k, grad=True)
            f(x).backward()
            results[k, n] = show(x.grad)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sorted(results.items())


@program
def another_thread_writes_in_between(jit: Jit) -> Any:
    state = SimpleNamespace(k=2.0)
    f = jit(lambda x: x * state.k)
    seen = [show(f(vector(1, 2))) for _ in range(2)]

    def change() -> None:
        state.k = 3.0

    thread = threading.Thread(target=change)
    thread.start()
    thread.join()
    return [*seen, show(f(vector(1, 2)))]


@program
def jit_during_another_recording(jit: Jit) -> Any:
    inside, leave = threading.Event(), threading.Event()
    other = jit(lambda x: x + 5)
    seen: list[Any] = []

    @partial(jit, static=[inside, leave])
    def slow(x: Any) -> Any:
        y = x * 2
        if threading.current_thread().name == "slow":
            inside.set()
            leave.wait(20)
        return y + 1

    thread = threading.Thread(target=lambda: seen.append(show(slow(vector(1, 2)))), name="slow")
    thread.start()
    inside.wait(20)
    mine = [show(other(vector(1, k))) for k in range(3)]
    leave.set()
    thread.join()
    return seen, mine, show(slow(vector(3, 4)))


@program(may_refuse=True)
def a_thread_started_inside(jit: Jit) -> Any:
    log: list[int] = []

    @jit
    def f(x: Any) -> Any:
        t = threading.Thread(target=lambda: log.append(1))
        t.start()
        t.join()
        return x * len(log)

    return [(show(f(vector(1, 2))), list(log)) for _ in range(3)]


@program
def an_attribute_that_becomes_a_parameter(jit: Jit) -> Any:
    """What a layer does with an attribute depends on what it has of that name."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(vector(1, 2))

        def forward(self, x: Any) -> Any:
            self.last = x
            return x * self.w

    layer = Layer()
    f = jit(lambda x: layer(x) + layer(layer.w))
    return [attempt(f, vector(k, 1)) for k in range(3)], sorted(dict(layer.named_parameters()))


@program
def an_error_after_writes_and_a_jitted_call(jit: Jit) -> Any:
    """What was done before the error is done once, though the inner function would be refused."""
    total, count = vector(2, -1), vector(0, 0)

    @jit
    def inner(x: Any) -> None:
        x[0] = 0.0

    def both(x: Any) -> None:
        x.add_(2.0)
        inner(total)

    @jit
    def outer(x: Any) -> None:
        total.add_(x)
        both(count)
        both(x)  # a leaf that requires a gradient

    return attempt(outer, vector(1.5, 0, grad=True)), show(total), show(count)


# ---- views of another kind


@program
def parts_of_complex_numbers_written(jit: Jit) -> Any:
    z = genesis.tensor([[1 + 2j, 3j], [2, 1 - 1j]])

    @jit
    def write(x: Any, part: Any) -> Any:
        x.real.mul_(2)
        part.add_(1)
        pairs = genesis.view_as_real(x)
        pairs[..., 1] = 5
        return pairs, part * 2, x.imag

    seen = []
    for _ in range(3):
        results = write(z, z.real)
        seen.append((show(results), show(z)))
        results[0].add_(1)
        seen.append(show(z))
    return seen


@program
def windows_bits_and_pairs_as_arguments(jit: Jit) -> Any:
    x = genesis.arange(8.0)

    @jit
    def double(u: Any) -> Any:
        u.mul_(2)
        return u + 1

    seen = []
    for k in range(3):
        for view in (
            x.unfold(0, 2, 2)[k],
            x.view(genesis.int32)[2 * k :],
            genesis.view_as_complex(x.view(4, 2))[k:],
        ):
            seen.append((show(double(view)), x.tolist()))
    return seen


@program
def tensors_that_become_views_of_themselves(jit: Jit) -> Any:
    total, seen = genesis.arange(6.0).view(2, 3).clone(), []

    @jit
    def turn(x: Any) -> Any:
        row = x[0]
        x.t_()
        total.transpose_(0, 1)
        total.add_(1)
        row.mul_(2)
        return x.unsqueeze(0), total

    x = genesis.arange(4.0).view(2, 2).clone()
    for _ in range(3):
        seen.append((show(turn(x)), show(x), show(total), tuple(total.shape)))
    return seen


@program
def tensors_that_become_views_and_are_not_otherwise_used(jit: Jit) -> Any:
    seen = []
    for become in ("x.t_()", "x.unsqueeze_(0)", "x.transpose_(0, -1)", "x.squeeze_()"):
        x = genesis.arange(6.0).view(1, 2, 3)[0].clone()
        turn = jit(eval(f"lambda: {become} and None", {"x": x}))
        for _ in range(4):
            seen.append((attempt(turn), show(x), tuple(x.shape)))
    return seen


@program
def what_a_view_that_is_an_argument_says_of_its_layout(jit: Jit) -> Any:
    """A result of `reshape` or `contiguous` shares its elements exactly where it does without."""
    ways: dict[str, Callable[[Any], Any]] = {
        "whole": lambda b: b,
        "transposed": lambda b: b.t(),
        "row": lambda b: b[2],
        "column": lambda b: b[:, 1],
        "block": lambda b: b[1:3, 2:5],
        "steps": lambda b: b[::2],
        "repeated": lambda b: b[:1].expand(3, 6),
    }
    uses: dict[str, Callable[[Any], Any]] = {
        "reshape": lambda x: x.reshape(-1),
        "contiguous": lambda x: x.contiguous(),
        "view": lambda x: x.view(-1),
        "layout": lambda x: (x.stride(), x.is_contiguous(), x.storage_offset(), x * 2),
        "branch": lambda x: x * 2 if x.is_contiguous() else x * 3,
    }
    seen = []
    for way in ways.values():
        for use in uses.values():
            b = genesis.arange(24.0).reshape(4, 6)
            f = jit(use)
            for k in range(3):
                result = attempt(f, way(b))
                if isinstance(result, genesis.Tensor) and k:
                    result.add_(1) if way is not ways["repeated"] else None
                seen.append((show(result), b.tolist()))
    return seen


@program
def what_shares_elements_where_an_extent_is_one(jit: Jit) -> Any:
    """One program serves many sizes, but axes of extent 1 can be left out of a view."""
    uses: tuple[Callable[[Any], Any], ...] = (
        lambda x: x.t().reshape(-1),
        lambda x: x.t().contiguous(),
        lambda x: x[:, 1:3].flatten(),
        lambda x: x.t().reshape(2, -1),
    )
    seen = []
    for use in uses:
        f = jit(use)
        for n in (2, 3, 4, 1, 5, 1, 2, 1):
            x = genesis.arange(6.0 * n).reshape(n, 6)
            f(x).add_(100)
            seen.append(x.tolist())
    return seen
