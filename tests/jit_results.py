"""What a function returns, the sizes it is called with, and random numbers."""
# ruff: noqa: PERF401

from __future__ import annotations

import collections
import enum
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from jit_corpus import Jit, add_program, attempt, grad, program, show, vector, weights
from jit_training import batch, loss_of, mlp

import genesis
from genesis import nn


@dataclass
class Output:
    logits: Any
    loss: Any = None
    name: str = "out"
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Frozen:
    a: Any
    b: int = 3


@dataclass(slots=True)
class SlottedOutput:
    a: Any
    b: Any = None


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """A dictionary whose items are attributes, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for k, v in self.items():
            super().__setattr__(k, v)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        super().__setattr__(name, value)


class Point(NamedTuple):
    a: Any
    b: Any = None


class Plain:
    def __init__(self, a: Any) -> None:
        self.a = a
        self.n = 1

    def total(self) -> Any:
        return self.a.sum() * self.n


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


class Words(list):  # type: ignore[type-arg]
    """A list of a class of its own."""


class Level(enum.Enum):
    LOW = 0
    HIGH = 1


def _slots(x: Any) -> Any:
    return Slots(x * 2, x)


def _cycle(x: Any) -> Any:
    a = SimpleNamespace(x=x * 2)
    a.me = a
    return a


RESULTS: dict[str, Callable[[Any], Any]] = {
    "dataclass": lambda x: Output(x * 2, x.sum()),
    "dataclass nested": lambda x: Output(Output(x * 2), extra={"a": [x, 3]}),
    "frozen dataclass": lambda x: Frozen(x * 2),
    "slotted dataclass": lambda x: [o := SlottedOutput(x * 2), o.a, o.b],
    "model output": lambda x: ModelOutput(logits=x * 2, loss=x.sum()),
    "ordered dict": lambda x: OrderedDict(a=x * 2, b=3),
    "dict of int keys": lambda x: {1: x * 2, None: 3, (1, 2): x},
    "default dict": lambda x: collections.defaultdict(list, a=[x * 2]),
    "named tuple": lambda x: Point(x * 2, Point(x, 3)),
    "plain object": lambda x: Plain(x * 2),
    "object with slots": lambda x: [s := _slots(x), s.a, s.b],
    "namespace": lambda x: SimpleNamespace(a=x * 2, b=[x, 1]),
    "list subclass": lambda x: Words([x * 2, 3]),
    "deque": lambda x: collections.deque([x * 2, x], maxlen=3),
    "set of numbers": lambda x: {len(x), 5},
    "nested": lambda x: {"a": [(x * 2, {"b": x})], "c": ()},
    "none": lambda x: None,
    "nothing of tensors": lambda x: (1, "a", 2.5, None, True),
    "mixed": lambda x: (x * 2, 1, "a", None, [x.sum(), {"n": len(x)}]),
    "shape": lambda x: x.shape,
    "sizes": lambda x: (x.shape[0], x.numel(), len(x), x.dim(), x.dtype),
    "text": lambda x: f"{tuple(x.shape)} {x.dtype}",
    "enum": lambda x: (Level.HIGH if len(x) > 2 else Level.LOW).name,
    "class": lambda x: Output,
    "range": lambda x: range(len(x)),
    "slice": lambda x: [slice(0, len(x)).stop],
    "the same twice": lambda x: [y := x * 2, y],
    "empty containers": lambda x: ([], {}, (), [[]]),
    "constant tensor": lambda x: genesis.ones(2),
    "constant and result": lambda x: (genesis.tensor([1.0, 2.0]), x * 2),
    "integers": lambda x: (x * 2).to(genesis.int64),
    "booleans": lambda x: x > 1,
    "views": lambda x: [y := x * 2, y.reshape(-1, 1), y[1:]],
    "split": lambda x: (x * 2).split(1),
    "unbound": lambda x: (x * 2).unbind(),
    "top k": lambda x: genesis.topk(x, 2),
    "max with indices": lambda x: genesis.max(x, 0),
    "sort": lambda x: genesis.sort(x),
    "parameter": lambda x: nn.Parameter(x * 2),
    "module": lambda x: [m := nn.Linear(2, 1), m.in_features],
}
MAY_REFUSE = {"parameter", "class", "module"}


def _returned(f: Callable[[Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        jitted = jit(f)
        kept, seen = [], []
        for k in range(4):
            kept.append(jitted(vector(k, 1, 2)))
            seen.append(show(kept))
        return seen, [a is b for a in kept for b in kept if not isinstance(a, tuple | str | int)]

    return run


for name, f in RESULTS.items():
    add_program(f"return {name}", _returned(f), name in MAY_REFUSE)


@program
def identity_of_results(jit: Jit) -> Any:
    w = vector(1, 2)
    held = [w]

    @jit
    def f(x: Any) -> Any:
        y = x * 2
        return x, w, held, y, y, [y], x

    seen = []
    for k in range(3):
        x = vector(k, 1)
        r = f(x)
        seen.append((r[0] is x, r[1] is w, r[2] is held, r[3] is r[4], r[5][0] is r[3], r[6] is x))
    return seen


@program
def an_argument_container_returned(jit: Jit) -> Any:
    f = jit(lambda d, o: (d, d["x"], o))
    seen = []
    for k in range(3):
        d, o = {"x": vector(k, 1)}, Plain(vector(1, 2))
        r = f(d, o)
        seen.append((r[0] is d, r[1] is d["x"], r[2] is o))
    return seen


@program
def an_outer_object_returned(jit: Jit) -> Any:
    state = Plain(vector(1, 2))
    f = jit(lambda x: (state, state.a, x * 2))
    seen = []
    for k in range(4):
        r = f(vector(k, 1))
        seen.append((r[0] is state, r[1] is state.a, show(r)))
        if k == 1:
            state.a = vector(5, 6)
    return seen


@program
def fresh_results_every_call(jit: Jit) -> Any:
    f = jit(lambda x: {"a": x * 2, "l": [1, 2], "o": Plain(x * 3)})
    first, second = f(vector(1, 2)), f(vector(1, 2))
    first["l"].append(3)
    first["o"].n = 5
    first["new"] = 1
    first["a"].add_(100)
    third = f(vector(1, 2))
    return show(first), show(second), show(third)


@program
def gradients_through_a_dataclass(jit: Jit) -> Any:
    w = vector(1, 2, 3, grad=True)
    f = jit(lambda x: Output(x * w, (x * w).sum()))
    seen = []
    for k in range(4):
        out = f(vector(k, 1, 2))
        (out.loss + out.logits.sum()).backward()
        seen.append((show(out), grad(w)))
    return seen


@program
def model_output_of_a_model(jit: Jit) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Any, y: Any = None) -> Any:
            logits = self.inner(x)
            loss = None if y is None else ((logits - y) ** 2).mean()
            return ModelOutput(loss=loss, logits=logits)

    model = Model()
    f = jit(model)
    opt = genesis.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for k in range(5):
        out = f(*batch(k))
        opt.zero_grad()
        out.loss.backward()
        opt.step()
        seen.append((show(out), show(f(batch(k)[0])["logits"]), weights(model)))
    return seen


@program
def objects_with_methods_returned(jit: Jit) -> Any:
    f = jit(lambda x: Plain(x * 2))
    seen = []
    for k in range(3):
        r = f(vector(k, 1))
        r.n = k
        seen.append((type(r).__name__, show(r.total())))
    return seen


@program(may_refuse=True)
def a_cycle_returned(jit: Jit) -> Any:
    f = jit(_cycle)
    seen = []
    for k in range(3):
        r = f(vector(k, 1))
        seen.append((r.me is r, show(r.x)))
    return seen


@program(may_refuse=True)
def a_generator_returned(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        for k in range(3):
            yield x * k

    f = jit(f)
    return [show(list(f(vector(1, k)))) for k in range(3)]


@program(may_refuse=True)
def a_function_returned(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        y = x * 2
        return lambda z: y + z

    f = jit(f)
    return [show(f(vector(1, k))(vector(1, 1))) for k in range(3)]


@program(may_refuse=True)
def a_partial_returned(jit: Jit) -> Any:
    import functools

    f = jit(lambda x: functools.partial(genesis.add, x * 2))
    return [show(f(vector(1, k))(vector(1, 1))) for k in range(3)]


@program(may_refuse=True)
def an_iterator_returned(jit: Jit) -> Any:
    f = jit(lambda x: iter([x * 2, x * 3]))
    return [show(list(f(vector(1, k)))) for k in range(3)]


@program(may_refuse=True)
def numpy_returned(jit: Jit) -> Any:
    f = jit(lambda x: (x * 2).numpy())
    return [show(f(vector(1, k))) for k in range(3)]


@program
def numpy_constants_returned(jit: Jit) -> Any:
    table = np.array([1.0, 2.0])
    f = jit(lambda x: (x * 2, np.zeros(2), table))
    seen = []
    for k in range(4):
        r = f(vector(1, k))
        seen.append((show(r), r[2] is table))
        r[1][0] = 5.0
        table[0] += 1
    return seen


@program
def numpy_arguments(jit: Jit) -> Any:
    f = jit(lambda a, x: genesis.tensor(a) * x)
    return [show(f(np.array([1.0, k], np.float32), vector(1, 2))) for k in range(4)]


@program(may_refuse=True)
def numpy_arguments_written(jit: Jit) -> Any:
    def f(a: Any, x: Any) -> Any:
        a[0] = 7.0
        return x * 2

    f = jit(f)
    seen = []
    for k in range(3):
        a = np.array([1.0, float(k)], np.float32)
        seen.append((attempt(f, a, vector(1, 2)), show(a)))
    return seen


@program(may_refuse=True)
def numpy_arguments_in_python(jit: Jit) -> Any:
    f = jit(lambda a, x: x * float(a.max()) if a.mean() > 1 else x)
    return [attempt(f, np.array([1.0, k]), vector(1, 2)) for k in (0, 5, 0, 7)]


@program
def scalars_of_numpy(jit: Jit) -> Any:
    f = jit(lambda k, x: x * k)
    return [
        show(f(k, vector(1, 2)))
        for k in (np.float32(2), np.float64(3), np.int64(4), np.bool_(True))
    ]


# ---- sizes


def _sizes(
    f: Callable[[Any], Any], *sizes: tuple[int, ...], wanted: bool = False
) -> Callable[[Jit], Any]:
    """A function called with arrays of these shapes; with gradients if `wanted`."""

    def run(jit: Jit) -> Any:
        jitted = jit(f)
        seen = []
        for shape in sizes:
            n = int(np.prod(shape))
            x = genesis.tensor(np.linspace(-1, 2, n, dtype=np.float32).reshape(shape))
            x.requires_grad_(wanted)
            y = attempt(jitted, x)
            if wanted:
                z = jitted(x)
                (z**2).sum().backward()
                y = y, grad(x)
            seen.append(y)
        return seen

    return run


ROWS = ((4, 2), (4, 2), (6, 2), (3, 2), (8, 2), (1, 2), (4, 2))
BY_SIZE: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x.mean(),
    "sum of rows": lambda x: x.sum(1),
    "divided by its length": lambda x: x / x.shape[0],
    "length in Python": lambda x: x * (2 if x.shape[0] > 4 else 3),
    "length odd or even": lambda x: x * (x.shape[0] % 2),
    "loop over rows": lambda x: sum([x[i] * i for i in range(x.shape[0])], genesis.zeros(2)),
    "iteration": lambda x: sum(list(x), genesis.zeros(2)),
    "len": lambda x: x * len(x),
    "reshape": lambda x: x.reshape(-1, 1),
    "reshape in pairs": lambda x: x.reshape(-1, 2) * 2,
    "flatten": lambda x: x.flatten() * 2,
    "transpose": lambda x: x.t() @ x,
    "softmax": lambda x: genesis.softmax(x, 0),
    "cumsum": lambda x: genesis.cumsum(x, 0),
    "arange": lambda x: genesis.arange(x.shape[0]) * 2,
    "zeros like": lambda x: genesis.zeros(x.shape[0], 3),
    "first half": lambda x: x[: x.shape[0] // 2],
    "last row": lambda x: x[-1],
    "halves": lambda x: genesis.cat([x, x]),
    "mask": lambda x: genesis.where(x > 0, x, 0.0),
    "top 1": lambda x: genesis.topk(x, 1, dim=0)[0],
    "argmax": lambda x: x.argmax(0),
    "sorted": lambda x: genesis.sort(x, dim=0)[0],
    "one hot": lambda x: genesis.one_hot(genesis.arange(x.shape[0]), 8),
    "size as text": lambda x: (f"{x.shape[0]}", x * 2),
    "sizes returned": lambda x: (x.shape[0], tuple(x.shape), x.numel(), x * 2),
    "size as a key": lambda x: x * {4: 1.0, 6: 2.0}.get(x.shape[0], 3.0),
    "size squared": lambda x: x * x.shape[0] ** 0.5,
    "variance": lambda x: x.var(0),
    "normalised": lambda x: (x - x.mean(0)) / (x.std(0, unbiased=False) + 1),
    "covariance": lambda x: (x - x.mean(0)).t() @ (x - x.mean(0)) / x.shape[0],
}
for name, f in BY_SIZE.items():
    add_program(f"size {name}", _sizes(f, *ROWS))
for name in (
    "mean",
    "sum of rows",
    "loop over rows",
    "softmax",
    "normalised",
    "halves",
    "reshape in pairs",
):
    add_program(f"size {name}, with gradients", _sizes(BY_SIZE[name], *ROWS, wanted=True))
add_program(
    "size empty", _sizes(lambda x: (x * 2, x.sum()), (2, 2), (0, 2), (3, 2), (0, 2), (2, 0))
)
add_program(
    "size of other ranks", _sizes(lambda x: x * 2, (2,), (2, 2), (), (1, 2, 2), (3,), (3, 2))
)
add_program("size in two axes", _sizes(lambda x: x @ x.t(), (2, 3), (3, 2), (3, 3), (4, 5), (2, 3)))
add_program("size one", _sizes(lambda x: x * genesis.ones(4, 1), (4, 1), (4, 2), (1, 2), (4, 3)))
add_program(
    "size broadcast", _sizes(lambda x: x + vector(1, 2), (3, 2), (1, 2), (4, 1), (2,), (5, 2))
)
add_program("size wrong", _sizes(lambda x: x @ vector(1, 2), (3, 2), (3, 3), (4, 2), (2, 3)))


@program
def last_short_batch(jit: Jit) -> Any:
    model = mlp()
    opt = genesis.optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    seen = []
    for k in range(8):
        x, y = batch(k)
        x, y = genesis.cat([x, x * 2]), genesis.cat([y, y])
        n = 3 if k % 4 == 3 else 4
        seen.append((show(step(x[:n], y[:n])), weights(model)))
    return seen


@program
def jitted_model_with_changing_batches(jit: Jit) -> Any:
    model = mlp()
    f = jit(model)
    seen = []
    for n in (4, 4, 3, 2, 5):
        x = genesis.cat([batch(n)[0]] * 3)[:n]
        model.zero_grad()
        (f(x) ** 2).mean().backward()
        seen.append(weights(model))
    return seen


@program
def batch_norm_with_changing_batches(jit: Jit) -> Any:
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    f = jit(lambda x: model(x))
    seen = []
    for n in (4, 4, 3, 2, 5):
        seen.append((show(f(genesis.cat([batch(n)[0]] * 3)[:n])), weights(model)))
    return seen


@program
def images_of_changing_sizes(jit: Jit) -> Any:
    genesis.manual_seed(0)
    conv = nn.Conv2d(1, 2, 3, padding=1)
    f = jit(lambda x: genesis.avg_pool2d(conv(x), 2).mean((2, 3)))
    seen = []
    for h, w in ((4, 4), (6, 4), (4, 6), (8, 8)):
        x = genesis.arange(h * w).reshape(1, 1, h, w).to(genesis.float32) / (h * w)
        seen.append(show(f(x)))
    return seen


@program
def sequences_of_changing_lengths(jit: Jit) -> Any:
    genesis.manual_seed(0)
    model = nn.GRU(2, 3, batch_first=True)
    f = jit(model)
    seen = []
    for n in (3, 3, 2, 5):
        x = genesis.arange(2 * n * 2).reshape(2, n, 2).to(genesis.float32) / 10
        seen.append(show(f(x)))
    return seen


@program
def lists_of_changing_lengths(jit: Jit) -> Any:
    f = jit(lambda xs: genesis.stack(xs).sum(0))
    return [show(f([vector(k, 1)] * n)) for k, n in enumerate((1, 2, 2, 3, 1))]


@program
def dtypes_change(jit: Jit) -> Any:
    f = jit(lambda x: x * 2)
    kinds = (
        genesis.float32,
        genesis.float64,
        genesis.int64,
        genesis.int32,
        genesis.float32,
        genesis.bool_,
    )
    return [attempt(f, genesis.tensor([1, 0]).to(d)) for d in kinds]


@program
def layouts_change(jit: Jit) -> Any:
    f = jit(lambda x: x * 2 + x.sum(0))
    x = genesis.arange(12).reshape(4, 3).to(genesis.float32)
    return [show(f(v)) for v in (x, x.t(), x[::2], x[:, 1:], x.flip(0), x[1:2].expand(3, 3), x)]


# ---- random numbers


def _random(f: Callable[[Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        jitted = jit(f)
        seen = []
        genesis.manual_seed(7)
        for k in range(6):
            if k == 4:
                genesis.manual_seed(7)
            seen.append(show(jitted(genesis.ones(4))))
        seen.append(show(genesis.rand(3)))  # as many were drawn
        return seen

    return run


for name, f in {
    "dropout": lambda x: genesis.dropout(x, 0.5, True),
    "rand": lambda x: x * genesis.rand(4),
    "randn twice": lambda x: (genesis.randn(4), x + genesis.randn(4)),
    "randint": lambda x: genesis.randint(0, 10, (4,)),
    "randperm": lambda x: genesis.randperm(4),
    "bernoulli": lambda x: genesis.bernoulli(x * 0.5),
    "multinomial": lambda x: genesis.multinomial(x / 4, 2),
    "normal in place": lambda x: x.clone().normal_(),
    "drawn and not used": lambda x: (genesis.rand(4), x * 2)[1],
    "initialised layer": lambda x: nn.Linear(4, 2)(x).detach(),
    "seeded inside": lambda x: (genesis.manual_seed(3), x * genesis.rand(4))[1],
}.items():
    add_program(f"random {name}", _random(f))


@program
def dropout_in_training(jit: Jit) -> Any:
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    opt = genesis.optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        opt.step()
        return loss

    return [(show(step(*batch(k))), weights(model)) for k in range(5)]


@program
def dropout_masks_agree_with_gradients(jit: Jit) -> Any:
    f = jit(lambda x: genesis.dropout(x, 0.5, True))
    seen = []
    for _ in range(4):
        x = genesis.ones(8).requires_grad_()
        y = f(x)
        y.sum().backward()
        seen.append((show(y), grad(x), show(y.detach() == x.grad)))
    return seen


@program
def generator_as_argument(jit: Jit) -> Any:
    f = jit(lambda x, g: x * genesis.rand(4, generator=g))
    a, b = genesis.Generator(1), genesis.Generator(2)
    seen = [show(f(genesis.ones(4), g)) for g in (a, b, a, a, b)]
    a.manual_seed(1)
    return [*seen, show(f(genesis.ones(4), a)), show(genesis.rand(2, generator=b))]


@program
def generator_closed_over(jit: Jit) -> Any:
    g = genesis.Generator(1)
    f = jit(lambda x: x * genesis.rand(4, generator=g))
    seen = [show(f(genesis.ones(4))) for _ in range(3)]
    g.manual_seed(1)
    seen.append(show(f(genesis.ones(4))))
    g = genesis.Generator(5)
    return [*seen, show(f(genesis.ones(4))), show(genesis.rand(2, generator=g))]


@program
def random_state_saved_and_set(jit: Jit) -> Any:
    f = jit(lambda x: x * genesis.rand(4))
    genesis.manual_seed(1)
    seen = [show(f(genesis.ones(4)))]
    state = genesis.get_rng_state()
    seen += [show(f(genesis.ones(4))) for _ in range(2)]
    genesis.set_rng_state(state)
    return seen + [show(f(genesis.ones(4))) for _ in range(2)]
