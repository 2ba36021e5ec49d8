"""`jit` does what the function does, every time, whatever changes between the calls."""

import gc
import os
import threading
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, NamedTuple

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis.backends.cpu import runtime
from genesis.backends.cpu.memory import stats
from genesis.compiler import using
from genesis.ir.size import Size
from genesis.ndarray import jit as jit_module
from genesis.ndarray.ndarray import NDArray
from genesis.ndarray.value import CaptureError, Value, thread

jit = genesis.jit


def vector(*numbers: float) -> NDArray:
    return nd.array([float(x) for x in numbers]).realize()


def ramp(*shape: int, start: float = 0.0) -> NDArray:
    """Different numbers everywhere, all of them small."""
    count = int(np.prod(shape))
    return nd.array((np.arange(count, dtype=np.float32) + start).reshape(shape) / 8).realize()


def compiled() -> int:
    return nd.statistics().compiled


def pointer(x: NDArray) -> int:
    memory = x.storage.actual.memory
    assert memory is not None
    return memory.pointer


# ---- random programs

Pool = list[NDArray]


def random_step(rng: np.random.Generator, pool: Pool) -> NDArray | None:
    """One random operation on arrays of shape (4, 6); None for a write."""

    def pick() -> NDArray:
        return pool[rng.integers(len(pool))]

    x, y = pick(), pick()
    match rng.integers(16):
        case 0:
            return x + y
        case 1:
            return x * y * 0.5
        case 2:
            return nd.tanh(x) - float(rng.integers(1, 5)) / 4
        case 3:
            return nd.where(x > y, x, y * 0.25)
        case 4:
            return nd.softmax(x, axis=int(rng.integers(2)))
        case 5:
            return x - x.mean(axis=int(rng.integers(2)), keepdims=True)
        case 6:
            return (x @ y.T) @ y * 0.01
        case 7:
            return nd.concat([x[:2], y[2:]], axis=0)
        case 8:
            return x.reshape(6, 4).T
        case 9:
            return nd.flip(x, 1) + x[:, 2:3]
        case 10:
            return nd.maximum(x, y.sum(axis=0) * 0.1)
        case 11:
            return nd.pad(x[1:3, 1:5], ((1, 1), (1, 1)))
        case 12:
            return x.copy()
        case 13:
            x[1:3, ::2] = y[:2, 3:]
        case 14:
            x += y * 0.5
        case _:
            x[0] = nd.tanh(y[3])
    return None


def random_function(seed: int, state: Pool) -> Callable[..., Any]:
    """A function of two arrays made of random operations that also reads and writes `state`."""

    def function(x: NDArray, y: NDArray) -> Any:
        rng = np.random.default_rng(seed)
        pool = [x, y, *state]
        for _ in range(rng.integers(3, 12)):
            made = random_step(rng, pool)
            if made is not None:
                pool.append(made)
        chosen = [pool[k] for k in rng.integers(len(pool), size=3)]
        return {"a": chosen[0], "b": [chosen[1], (chosen[2] * 2, None)]}

    return function


def numbers(tree: Any) -> list[Any]:
    return [tree["a"].numpy().copy(), tree["b"][0].numpy().copy(), tree["b"][1][0].numpy().copy()]


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_equal_the_plain_function(seed: int) -> None:
    states = [[ramp(4, 6, start=5), ramp(4, 6, start=-7)] for _ in range(2)]
    plain, jitted = random_function(seed, states[0]), jit(random_function(seed, states[1]))
    kept: list[tuple[NDArray, list[Any]]] = []
    for call in range(5):
        arguments = [[ramp(4, 6, start=3 * call), ramp(4, 6, start=-call)] for _ in range(2)]
        if call > 2:  # the same numbers, lying differently
            arguments = [[nd.array(x.T.numpy()).realize().T for x in a] for a in arguments]
        want, got = plain(*arguments[0]), jitted(*arguments[1])
        kept.append((got["b"][1][0], got["b"][1][0].tolist()))
        for a, b in zip(numbers(want), numbers(got), strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)
        for one, two in zip(arguments[0] + states[0], arguments[1] + states[1], strict=True):
            np.testing.assert_allclose(two.numpy(), one.numpy(), rtol=2e-5, atol=2e-5)
    assert all(array.tolist() == before for array, before in kept)


# ---- what surrounds the function

FACTOR = 2.5
TABLE = {"scale": 3.0, "list": [1.0, 2.0]}
CHOSEN = {1, 2}
WEIGHT = vector(1, 2)
WEIGHTS = [vector(1, 1), vector(2, 2)]


def helper(x: NDArray) -> NDArray:
    return x * FACTOR


def other_helper(x: NDArray) -> NDArray:
    return x * 100


@jit
def jitted_helper(x: NDArray) -> NDArray:
    return helper(x) + 1


def test_a_changed_global_number_records_again(monkeypatch: pytest.MonkeyPatch) -> None:
    f = jit(lambda x: x * FACTOR)
    assert f(vector(1, 2)).tolist() == [2.5, 5]
    assert f(vector(1, 2)).tolist() == [2.5, 5]
    assert f.captures == 1
    monkeypatch.setitem(globals(), "FACTOR", 3.5)
    before = compiled()
    assert f(vector(1, 2)).tolist() == [3.5, 7]
    assert f.captures == 2 and compiled() == before  # the number is an argument of the program
    monkeypatch.setitem(globals(), "FACTOR", 3)  # another type is another program
    assert f(nd.array([1, 2])).dtype is genesis.int64


@pytest.mark.parametrize(
    "function",
    [
        lambda x: helper(x),
        partial(lambda y, x: helper(x) + y * 0, 7.0),
        lambda x: jitted_helper(x) - 1,
        jit(lambda x: helper(x)),
        lambda x: next(helper(y) for y in [x]),
        wraps(helper)(lambda x: helper(x)),
    ],
    ids=["helper", "partial", "jit in jit", "jit of jit", "comprehension", "decorated"],
)
def test_names_are_watched_through_helpers(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    f = jit(function)
    assert f(vector(1, 2)).tolist() == [2.5, 5]
    monkeypatch.setitem(globals(), "FACTOR", 4.5)
    assert f(vector(1, 2)).tolist() == [4.5, 9]
    monkeypatch.setitem(globals(), "helper", other_helper)
    assert f(vector(1, 2)).tolist() == [100, 200]


def test_methods_and_callables_watch_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = vector(1, 2)

        def forward(self, x: NDArray) -> NDArray:
            return helper(x) + self.weight

        def __call__(self, x: NDArray) -> NDArray:
            return helper(x) + self.weight

        @jit
        def jitted(self, x: NDArray) -> NDArray:
            return helper(x) + self.weight

    model = Model()
    for f in (jit(model.forward), jit(model), model.jitted, jit(partial(Model.forward, model))):
        monkeypatch.setitem(globals(), "FACTOR", 2.5)
        assert f(vector(0, 2)).tolist() == [1, 7]
        monkeypatch.setitem(globals(), "FACTOR", 4.5)
        assert f(vector(0, 2)).tolist() == [1, 11]
        model.weight[:] = vector(10, 20)
        assert f(vector(0, 2)).tolist() == [10, 29]
        model.weight = vector(1, 2)  # the old array dies, which is noticed
        assert f(vector(0, 2)).tolist() == [1, 11]


def test_a_method_serves_every_instance_and_keeps_none() -> None:
    class Model:
        def __init__(self, weight: float) -> None:
            self.weight = nd.full((2,), weight)

        @jit
        def __call__(self, x: NDArray) -> NDArray:
            return x * self.weight

    one, two = Model(2), Model(3)
    for _ in range(2):
        assert one(vector(1, 2)).tolist() == [2, 4]
        assert two(vector(1, 2)).tolist() == [3, 6]
    gone = weakref.ref(one), weakref.ref(one.weight)
    del one
    gc.collect()
    assert [r() for r in gone] == [None, None]
    assert Model.__call__.captures == 2  # type: ignore[attr-defined]


def test_changed_containers_record_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(x: NDArray) -> NDArray:
        offset = 10.0 if 3 in CHOSEN else 0.0
        return x * TABLE["scale"] + sum(TABLE["list"]) + offset  # type: ignore[arg-type]

    f = jit(read)

    def check(expected: float, captures: int) -> None:
        assert f(vector(1)).tolist() == f(vector(1)).tolist() == [expected]
        assert f.captures == captures

    check(6, 1)
    monkeypatch.setitem(TABLE, "scale", 5.0)
    check(8, 2)
    TABLE["list"].append(3.0)  # type: ignore[attr-defined]
    check(11, 3)
    TABLE["list"].clear()  # type: ignore[attr-defined]
    check(5, 4)
    TABLE["list"].extend([1.0, 2.0])  # type: ignore[attr-defined]
    check(8, 5)
    CHOSEN.add(3)
    check(18, 6)
    CHOSEN.discard(3)
    check(8, 7)


def test_a_list_of_arrays() -> None:
    weights = [vector(1, 1), vector(2, 2)]
    f = jit(lambda x: x + sum(weights[1:], weights[0]))
    assert f(vector(0, 1)).tolist() == [3, 4]
    weights[0][:] = vector(5, 5)
    assert f(vector(0, 1)).tolist() == [7, 8]
    assert f.captures == 1
    weights[1] = vector(0, 0)
    assert f(vector(0, 1)).tolist() == [5, 6]
    weights.append(vector(1, 1))
    assert f(vector(0, 1)).tolist() == [6, 7]
    weights.pop()
    assert f(vector(0, 1)).tolist() == [5, 6]
    del weights[1:]
    assert f(vector(0, 1)).tolist() == [5, 6]
    assert f.captures == 5


def test_a_dictionary_of_arrays() -> None:
    weights = {"a": vector(1, 1), "b": vector(2, 2)}

    def weigh(x: NDArray) -> NDArray:
        for k, w in enumerate(weights.values()):
            x = x + w * float(k + 2)
        return x

    f = jit(weigh)
    assert f(vector(0, 0)).tolist() == [8, 8]
    weights["a"] = vector(2, 2)
    assert f(vector(0, 0)).tolist() == [10, 10]
    weights["a"] = weights.pop("a")  # only the order has changed
    assert f(vector(0, 0)).tolist() == [10, 10]
    assert f(vector(0, 0)).tolist() == [10, 10]
    assert f.captures == 3
    nested = [[1.0], {"x": (2.0, 3.0)}]
    g = jit(lambda x: x * nested[0][0] + nested[1]["x"][1])  # type: ignore[call-overload]
    assert g(vector(1)).tolist() == [4]
    nested[0][0] = 7.0  # type: ignore[index]
    assert g(vector(1)).tolist() == [10]


def test_closures_with_one_code_are_told_apart() -> None:
    setters = []

    def make(factor: float) -> Callable[[NDArray], NDArray]:
        def scale(x: NDArray) -> NDArray:
            return x * factor

        def set_factor(value: float) -> None:
            nonlocal factor
            factor = value

        setters.append(set_factor)
        return scale

    one, two = make(2.5), make(3.5)
    f = jit(lambda x: one(x) + two(x))
    assert f(vector(1)).tolist() == [6]
    setters[0](4.5)
    assert f(vector(1)).tolist() == [8]
    setters[1](0.5)
    assert f(vector(1)).tolist() == [5]


def test_a_rebound_closure_array() -> None:
    weight = vector(1, 2)

    def scale(x: NDArray) -> NDArray:
        return x * weight

    f = jit(scale)
    assert f(vector(1, 1)).tolist() == [1, 2]
    gone = weakref.ref(weight)
    weight = vector(3, 4)
    assert gone() is None  # a guard keeps nothing alive
    assert f(vector(1, 1)).tolist() == [3, 4]
    weight = None  # type: ignore[assignment]
    with pytest.raises(TypeError, match="NoneType"):
        f(vector(1, 1))
    weight = vector(5, 6)
    assert f(vector(1, 1)).tolist() == [5, 6]


def test_a_deleted_name() -> None:
    scope: dict[str, Any] = {"k": 2.5}
    exec("def f(x): return x * k", scope)
    f = jit(scope["f"])
    assert f(vector(2)).tolist() == [5]
    del scope["k"]
    with pytest.raises(NameError, match="'k'"):
        f(vector(2))
    scope["k"] = 4
    assert f(vector(2)).tolist() == [8]


def test_closures_that_share_a_value_are_two() -> None:
    one = vector(1, 1)
    two = one.copy()
    assert one.value is two.value
    f = jit(lambda x: one + two * 10 + x)
    assert f(vector(0, 0)).tolist() == [11, 11]
    one.assign(vector(5, 5))
    assert f(vector(0, 0)).tolist() == [15, 15]
    two += 1
    assert f(vector(0, 0)).tolist() == [25, 25]


def test_a_view_read_before_is_not_a_constant() -> None:
    whole = vector(1, 2, 3)
    view = whole[1:]
    pending = view + 1  # keeps the view's value
    f = jit(lambda x: view * x)
    assert f(vector(1, 1)).tolist() == [2, 3]
    whole.assign(vector(7, 8, 9))
    assert f(vector(1, 1)).tolist() == [8, 9]
    assert pending.tolist() == [3, 4]


def test_versions_of_objects() -> None:
    class Settings:
        def __init__(self) -> None:
            self.__genesis_version__ = 0
            self.scale = 2.5

    settings = Settings()
    for f in (jit(lambda x: x * settings.scale), partial(jit(lambda s, x: x * s.scale), settings)):
        settings.scale = 2.5
        settings.__genesis_version__ += 1
        assert f(vector(1, 2)).tolist() == [2.5, 5]
        settings.scale = 3.5
        assert f(vector(1, 2)).tolist() == [2.5, 5]  # nobody said that it changed
        settings.__genesis_version__ += 1
        assert f(vector(1, 2)).tolist() == [3.5, 7]


def test_defaults() -> None:
    offsets = [1.0]

    def shift(x: NDArray, by: list[float] = offsets, *, weight: NDArray = WEIGHT) -> NDArray:
        return x * weight + by[0]

    f = jit(shift)
    assert f(vector(1, 1)).tolist() == [2, 3]
    offsets[0] = 2.0
    assert f(vector(1, 1)).tolist() == [3, 4]
    assert f(vector(1, 1), weight=vector(10, 10)).tolist() == [12, 12]
    assert f(vector(1, 1), [5.0]).tolist() == [6, 7]


# ---- arguments


class Pair(NamedTuple):
    left: Any
    right: Any


def test_structures_of_arguments() -> None:
    def total(tree: Any, *rest: Any, factor: Any = 1.0) -> NDArray:
        leaves: list[Any] = []

        def walk(x: Any) -> None:
            if isinstance(x, dict):
                x = list(x.values())
            if isinstance(x, tuple | list):
                for y in x:
                    walk(y)
            elif x is not None and not isinstance(x, str):
                leaves.append(x)

        walk((tree, rest))
        result = leaves[0] * 1
        for k, leaf in enumerate(leaves[1:]):
            result = result + leaf * float(k + 2)
        return result * factor

    a, b, c, d = vector(1, 2), vector(3, 4), vector(5, 6), vector(7, 8)
    trees: list[Any] = [
        (a, b),
        [a, b],
        {"x": a, "y": (b, [c])},
        Pair(a, Pair(b, None)),
        OrderedDict(x=a, y=b),
        [a, None, "text", 3.5, b],
        [[], a, (), {}, b],
    ]
    f = jit(total)
    for tree in trees:
        for factor in (1.0, 2.5):
            for _ in range(2):
                assert f(tree, d, factor=factor).tolist() == total(tree, d, factor=factor).tolist()
    assert f.captures == 2 * len(trees)
    before = f.captures
    f({"x": c, "y": (a, [b])}, vector(1, 1), factor=2.5)
    assert f.captures == before


def test_plain_arguments_are_compared_by_type_and_value() -> None:
    f = jit(lambda x, other: x * 1)

    class Opaque:
        __hash__ = None  # type: ignore[assignment]

    one, two = Opaque(), Opaque()
    different = [
        0, False, 0.0, -0.0, 1, True, 1.0, "a", b"a", None, float("nan"), 0j, (1,), [1], {1: 1},
        {1}, frozenset({1}), slice(1), slice(1, 2), range(3), np.float32(1), np.float64(1),
        np.int32(1), one, two, int, len, Ellipsis, OrderedDict(a=1), defaultdict(list, a=1),
        genesis.float32,
    ]  # fmt: skip
    for other in different:
        f(vector(1), other)
        f(vector(1), other)
    assert f.captures == len(different)
    for other in [2 - 2, float("nan"), [1], {1: 1}, {1}, slice(1, 2), np.float32(1), range(3), one]:
        f(vector(1), other)
    assert f.captures == len(different)


def test_numpy_arguments() -> None:
    f = jit(lambda x, y: x * 2 + y)
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    for source in (a, a.T.copy().T, a[::-1], a[:, ::-1], np.broadcast_to(a[:1], (2, 3)), a + 1):
        np.testing.assert_array_equal(f(source, nd.ones((2, 3))).numpy(), source * 2 + 1)
    assert f(a.astype(np.int32), 1).dtype is genesis.int32
    assert f(np.float32(2), nd.ones(2)).tolist() == [5, 5]
    empty = f(a[:0], 1.0)
    assert empty.shape == (0, 3)


def test_numpy_memory_is_never_written() -> None:
    @jit
    def f(x: NDArray) -> NDArray:
        x += 1
        return x * 2

    assert f(vector(0, 0)).tolist() == [2, 2]  # recorded with memory that can be overwritten
    source = np.zeros(2, np.float32)
    assert f(source).tolist() == [2, 2]
    shared = nd.asarray(source)
    assert f(shared).tolist() == [2, 2]
    assert source.tolist() == [0, 0] and shared.tolist() == [1, 1]
    assert f(shared).tolist() == [4, 4]
    weight = vector(1, 1)

    @jit
    def g() -> None:
        weight[:] = weight + 1

    g()
    weight.assign(nd.asarray(source))
    g()
    assert weight.tolist() == [1, 1] and source.tolist() == [0, 0]


def test_changing_dtype() -> None:
    f = jit(lambda x: x * 2 + x.sum())
    for dtype in ("float32", "int32", "float64", "float16", "bool", "uint8", "float32", "int32"):
        x = nd.array([1, 0, 1]).astype(dtype)
        got, want = f(x), x * 2 + x.sum()
        assert got.dtype is want.dtype and got.tolist() == want.tolist()
    assert f.captures == 6


def test_one_array_twice() -> None:
    def f(x: NDArray, y: NDArray) -> NDArray:
        x += 1
        return x * 10 + y

    g = jit(f)
    a, b = vector(1, 2), vector(1, 2)
    assert g(a, vector(0, 0)).tolist() == f(b, vector(0, 0)).tolist()
    assert g(a, a).tolist() == f(b, b).tolist() == [33, 44]
    assert a.tolist() == b.tolist() == [3, 4]
    assert g(a, vector(0, 0)).tolist() == f(b, vector(0, 0)).tolist()
    assert g(a, a.copy()).tolist() == f(b, b.copy()).tolist()
    assert g.captures == 2


def test_an_array_and_its_view() -> None:
    def f(x: NDArray, y: NDArray) -> tuple[NDArray, NDArray]:
        x[0] = 7
        y += 1
        return x * 2, y * 3

    g = jit(f)
    for select in (
        lambda x: (x, x[:2]),
        lambda x: (x[1:], x[:2]),
        lambda x: (x[:2], x),
        lambda x: (x[0:3:2], x[2:0:-1]),
    ):
        a, b = vector(1, 2, 3), vector(1, 2, 3)
        for _ in range(2):
            want, got = f(*select(b)), g(*select(a))
            assert [x.tolist() for x in got] == [x.tolist() for x in want]
            assert a.tolist() == b.tolist()


VIEWS: list[Callable[[NDArray], NDArray]] = [
    lambda x: x,
    lambda x: x[1],
    lambda x: x[2:4],
    lambda x: x[:, 1:3],
    lambda x: x.T,
    lambda x: x[::-1],
    lambda x: x[3:0:-2, ::-1],
    lambda x: x.T[1:, 2:],
    lambda x: x.reshape(2, 2, 6),
    lambda x: x.reshape(2, 2, 6)[1].T,
    lambda x: x[1:2],
    lambda x: x[:, :, None],
    lambda x: x[1, 2],
    lambda x: x[2:2],
]


@pytest.mark.parametrize("view", VIEWS)
def test_views_as_arguments(view: Callable[[NDArray], NDArray]) -> None:
    def read(x: NDArray) -> Any:
        return x * 2 + 1, x.T, x.copy(), x, x[..., :1] if x.ndim else x

    def write(x: NDArray) -> NDArray:
        y = x * 2
        x += 1
        x[...] = x * 3
        return y + x

    a, b = ramp(4, 6), ramp(4, 6)
    g, h = jit(read), jit(write)
    for _ in range(3):
        for got, want in zip(g(view(a)), read(view(b)), strict=True):
            assert got.shape == want.shape and got.tolist() == want.tolist()
        assert h(view(a)).tolist() == write(view(b)).tolist()
        assert a.tolist() == b.tolist()


def test_views_of_views_come_back_as_views() -> None:
    @jit
    def f(x: NDArray) -> tuple[NDArray, NDArray]:
        return x, x[1:]

    base = ramp(4, 3)
    for k in range(2):
        same, part = f(base[k : k + 3])
        part[0] = nd.full((3,), float(k))
        assert base[k + 1].tolist() == same[1].tolist() == [k] * 3
        same[0, 0] = -1
        assert base[k, 0].item() == -1
    x = ramp(3, 3)
    assert f(x)[0] is x


def test_where_a_view_starts_does_not_matter() -> None:
    data = ramp(64, 8)
    reads = jit(lambda x, y: (x * y).sum())
    before = compiled()
    for k in range(0, 56, 3):
        expected = (data[k : k + 4].numpy() * data[k + 4 : k + 8].numpy()).sum()
        copies = data[k : k + 4].copy(), data[k + 4 : k + 8].copy()
        assert reads(*copies).item() == pytest.approx(expected)
        # Two views of one storage may overlap; copies of them say that they are only read.
    assert (reads.captures, compiled() - before) == (1, 1)
    row = jit(lambda x: x + 1)
    for k in range(64):
        assert row(data[k]).tolist() == (data.numpy()[k] + 1).tolist()
    assert row.captures == 1


def test_pending_arguments_are_computed_together() -> None:
    f = jit(lambda x, y: x + y)
    a = vector(1, 2)
    before = nd.statistics().runs
    assert f(a * 2, a * 3).tolist() == [5, 10]
    assert nd.statistics().runs - before == 1


def test_an_argument_that_is_also_in_the_closure() -> None:
    weight = vector(1, 2, 3)
    reads = jit(lambda x: x * weight)
    assert reads(weight).tolist() == [1, 4, 9]
    assert reads(vector(1, 1, 1)).tolist() == [1, 2, 3]
    assert reads(weight).tolist() == [1, 4, 9]

    @jit
    def writes(x: NDArray) -> NDArray:
        weight[:] = weight + 1
        return x * 2

    with pytest.raises(CaptureError, match="one way only"):
        writes(weight)
    assert writes(vector(0, 0, 0)).tolist() == [0, 0, 0]
    with pytest.raises(CaptureError, match="one way only"):
        writes(weight[1:])
    assert weight.tolist() == [2, 3, 4]


# ---- writing


def test_writes_to_arguments_views_and_globals() -> None:
    state = ramp(3, 4)
    reference = ramp(3, 4)

    def step(s: NDArray) -> Callable[[NDArray], NDArray]:
        def f(x: NDArray) -> NDArray:
            row = s[1]
            column = s.T[2]
            row += x
            column *= 2
            s[0, 1:3] = x[:2]
            x[1] = row[0]
            return s + x

        return f

    f, g = jit(step(state)), step(reference)
    for k in range(4):
        x, y = vector(k, 1, 2, 3), vector(k, 1, 2, 3)
        assert f(x).tolist() == g(y).tolist()
        assert x.tolist() == y.tolist() and state.tolist() == reference.tolist()
    assert f.captures == 1


def test_values_move_between_storages() -> None:
    one, two = vector(1, 1), vector(2, 2)

    @jit
    def swap(x: NDArray) -> NDArray:
        old = one.copy()
        one.assign(two)
        two.assign(x)
        return old

    seen = [swap(vector(10 * k, 0)).tolist() for k in range(4)]
    assert seen == [[1, 1], [2, 2], [0, 0], [10, 0]]
    assert (one.tolist(), two.tolist()) == ([20, 0], [30, 0])
    f = jit(lambda x: x.copy())
    a, b = f(vector(1, 2)), f(vector(3, 4))
    assert (a.tolist(), b.tolist()) == ([1, 2], [3, 4])
    x = vector(5, 6)
    c = f(x)
    c += 1
    assert (x.tolist(), c.tolist()) == ([5, 6], [6, 7])


def test_a_value_from_elsewhere_may_lie_differently() -> None:
    state = ramp(2, 3)

    @jit
    def step(x: NDArray) -> NDArray:
        y = state * 2
        state.assign(x)
        return y

    step(ramp(2, 3))
    square = np.arange(6, dtype=np.float32).reshape(3, 2)
    step(square.T)
    assert step(ramp(2, 3)).tolist() == (2 * square.T).tolist()


def test_old_contents_that_are_returned_are_kept() -> None:
    state = vector(1, 2)

    @jit
    def step(x: NDArray) -> tuple[NDArray, NDArray]:
        before = state.copy()
        state[:] = state + x
        return before, state.copy()

    results = [step(vector(1, 1)) for _ in range(5)]
    assert [[a.tolist(), b.tolist()] for a, b in results] == [
        [[1 + k, 2 + k], [2 + k, 3 + k]] for k in range(5)
    ]


def test_results_stay_what_they_were() -> None:
    state = vector(0, 0)

    @jit
    def step(x: NDArray) -> dict[str, NDArray]:
        state[:] = state + x
        return {"copy": state.copy(), "double": state * 2, "same": state}

    results = [step(vector(1, 2)) for _ in range(20)]
    for k, result in enumerate(results, 1):
        assert result["copy"].tolist() == [k, 2 * k]
        assert result["double"].tolist() == [2 * k, 4 * k]
        assert result["same"].tolist() == [20, 40]


def test_state_is_updated_in_place_when_nobody_holds_it() -> None:
    state = nd.zeros(1000).realize()
    other = nd.zeros((10, 100)).realize()

    @jit
    def step(x: NDArray) -> NDArray:
        state[:] = state + x
        other[3] = other[3] + x[:100]
        return x.sum()

    x = nd.ones(1000).realize()
    step(x)
    places = pointer(state), pointer(other)
    live = stats().live_blocks
    for _ in range(5):
        step(x)
        assert (pointer(state), pointer(other)) == places
    assert stats().live_blocks == live
    held = state.numpy()
    step(x)
    assert pointer(state) != places[0] and pointer(other) == places[1]
    assert held[0] == 6 and state[0].item() == 7
    places = pointer(state), pointer(other)
    pending = state * 1
    step(x)
    assert pointer(state) != places[0] and pending[0].item() == 7
    del held, pending
    places = pointer(state), pointer(other)
    step(x)
    assert (pointer(state), pointer(other)) == places
    assert state[999].item() == 9 and other[3, 5].item() == 9 and other[2, 5].item() == 0


def test_arguments_are_updated_in_place_too() -> None:
    @jit
    def step(weight: NDArray, x: NDArray) -> None:
        weight -= x * 0.5

    weight, x = nd.zeros(100).realize(), nd.ones(100).realize()
    step(weight, x)
    place = pointer(weight)
    for _ in range(3):
        step(weight, x)
    assert pointer(weight) == place and weight[7].item() == -2
    twin = weight.copy()
    step(weight, x)
    assert twin[7].item() == -2 and weight[7].item() == -2.5


def test_a_write_between_replays_is_seen() -> None:
    state = vector(1, 1)

    @jit
    def step(x: NDArray) -> NDArray:
        state[:] = state + x
        return state * 1

    assert step(vector(1, 1)).tolist() == [2, 2]
    state[0] = 10  # pending
    assert step(vector(1, 1)).tolist() == [11, 3]
    state.assign(nd.array(np.array([[1, 2], [3, 4]], np.float32)).T[0])  # laid out differently
    assert step(vector(1, 1)).tolist() == [2, 4]
    assert step(vector(1, 1)).tolist() == [3, 5]


def test_views_of_state_see_what_a_replay_wrote() -> None:
    state = vector(1, 2, 3)
    view = state[1:]
    assert view.tolist() == [2, 3]

    @jit
    def step(x: NDArray) -> NDArray:
        state[:] = state + x
        return view * 10

    assert step(vector(1, 1, 1)).tolist() == [30, 40]
    assert view.tolist() == [3, 4]
    assert genesis.explain(step, vector(1, 1, 1)).kernels
    assert view.tolist() == [3, 4] and state.tolist() == [2, 3, 4]


# ---- results


def test_kinds_of_results() -> None:
    constant = nd.array([9.0, 9.0])
    weight = vector(3, 4)

    def f(x: NDArray) -> Any:
        y = x + 1
        return (
            y, y, x, x[:1], weight, weight[1:], constant, nd.array([1.0, 2.0]), nd.zeros(2),
            {"n": None, "s": "text", "k": 3, "e": [], "t": ()}, Pair(y.T, [y * 2]), x.shape, 2.5,
        )  # fmt: skip

    g = jit(f)
    for k in range(3):
        x = vector(k, 1)
        got, want = g(x), f(x)

        assert repr(got) == repr(want)
        assert got[0].storage is got[1].storage  # one array twice
        assert got[2] is x
        got[3][0] = 50
        assert x.tolist() == [50, 1]
        got[4][0] = 3  # the closure's array itself
        assert got[4].storage is weight.storage
        got[7][0] = -1
        got[0][0] = -5
        assert got[10].left[0].item() == -5
    assert g(vector(0, 0))[7].tolist() == [1, 2]  # a constant stays one
    assert jit(lambda: None)() is None
    assert jit(lambda x: 5)(vector(1)) == 5


def test_results_in_unknown_containers_are_refused() -> None:
    @dataclass
    class Output:
        logits: NDArray

    class Results(list[Any]):
        pass

    for make in (Output, lambda x: Results([x]), lambda x: {x}, lambda x: defaultdict(list, a=x)):
        f = jit(lambda x, make=make: make(x * 2))
        with pytest.raises(CaptureError, match="holds arrays; return them in tuples"):
            f(vector(1, 2))
    model = Output(vector(1, 2))
    assert jit(lambda x: (x * model.logits, model))(vector(1, 2))[1] is model


# ---- random numbers


def test_a_replay_draws_anew() -> None:
    f = jit(lambda: nd.random.uniform((100,)))
    genesis.manual_seed(5)
    drawn = [f().tolist() for _ in range(4)]
    assert len({x for row in drawn for x in row}) > 395
    genesis.manual_seed(5)
    assert [f().tolist() for _ in range(4)] == drawn
    assert f.captures == 1
    genesis.manual_seed(5)
    assert [nd.random.uniform((100,)).tolist() for _ in range(4)] == drawn
    genesis.manual_seed(5)
    mixed = [nd.random.uniform((100,)), f(), nd.random.uniform((100,)), f()]
    assert [x.tolist() for x in mixed] == drawn


def test_generators_of_ones_own() -> None:
    source, reference = nd.random.Generator(3), nd.random.Generator(3)

    def noise(x: NDArray, generator: nd.random.Generator) -> NDArray:
        first = nd.random.normal(x.shape, generator=generator)
        return x + first + nd.random.uniform(x.shape, generator=generator)

    f = jit(noise)
    for _ in range(3):
        x = vector(1, 2, 3)
        assert f(x, source).tolist() == noise(x, reference).tolist()
    state = source.state
    a = f(x, source).tolist()
    source.state = state
    assert f(x, source).tolist() == a
    inside = jit(lambda: nd.random.uniform((3,), generator=nd.random.Generator(1)))
    assert inside().tolist() == inside().tolist()
    assert inside.captures == 1


def test_the_first_draw_of_a_process_may_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nd.random._default, "generators", {})
    f = jit(lambda: nd.random.uniform((3,)))
    assert f().tolist() != f().tolist()


# ---- asking for values


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.sum().item(),
        lambda x: 1 if (x.sum() > 0) else 2,
        lambda x: x.numpy(),
        lambda x: print(x),
        lambda x: float(x[0]),
        lambda x: int(x[0]),
        lambda x: x.tolist(),
        lambda x: np.asarray(x),
        lambda x: f"{x}",
        lambda x: [1, 2, 3][x.astype("int64")[0]],
    ],
    ids=["item", "bool", "numpy", "print", "float", "int", "tolist", "asarray", "repr", "index"],
)
def test_values_cannot_be_asked_for(ask: Callable[[NDArray], Any]) -> None:
    state = vector(1, 2)

    @jit
    def f(x: NDArray, asking: bool) -> NDArray:
        state[:] = state + 1
        x += 1
        if asking:
            ask(x)
        return x * state

    x = vector(0, 0)
    with pytest.raises(CaptureError, match=r"\(2,\)|\(\)") as caught:
        f(x, True)
    assert "while genesis.jit records" in str(caught.value) and "nd.where" in str(caught.value)
    assert thread.recorder is None
    assert (x.tolist(), state.tolist()) == ([0, 0], [1, 2])
    assert f(x, False).tolist() == [2, 3]
    ask(x)


def test_an_exception_changes_nothing() -> None:
    state, view = vector(1, 2), None
    view = state[1:]
    version = state.version

    @jit
    def f(x: NDArray, fail: bool) -> NDArray:
        state[:] = state * 5
        view[0] = 100
        x[0] = 7
        nd.random.uniform((3,))
        if fail:
            raise KeyError("mine")
        return x + state

    x = vector(0, 1)
    genesis.manual_seed(1)
    with pytest.raises(KeyError, match="mine"):
        f(x, True)
    assert (x.tolist(), state.tolist(), view.tolist()) == ([0, 1], [1, 2], [2])
    assert state.version == version
    first = nd.random.uniform((3,)).tolist()
    genesis.manual_seed(1)
    assert nd.random.uniform((3,)).tolist() == first
    assert f(x, False).tolist() == [12, 101]


def test_errors_of_the_function_come_through() -> None:
    f = jit(lambda x, y: x + y)
    f(nd.ones(3), nd.ones(3))
    with pytest.raises(ValueError, match=r"add: shapes \(3,\) and \(4,\) do not broadcast"):
        f(nd.ones(3), nd.ones(4))
    for n in (4, 5, 6):
        assert f(nd.ones(n), nd.ones(n)).shape == (n,)
    assert f.captures == 2  # the mistake did not spoil symbolic sizes


# ---- nesting, eager, options


def test_jit_inside_jit_is_one_program() -> None:
    inner = jit(lambda x: nd.tanh(x) + 1)
    outer = jit(lambda x: inner(inner(x)) * 2)
    x = ramp(5)
    np.testing.assert_allclose(
        outer(x).numpy(), 2 * (np.tanh(np.tanh(x.numpy()) + 1) + 1), rtol=1e-6
    )
    assert inner.captures == 0
    calls = runtime.get().calls
    outer(x)
    assert runtime.get().calls == calls + 1


def test_recursion() -> None:
    @jit
    def power(x: NDArray, n: int) -> NDArray:
        return x if n == 0 else power(x * 2, n - 1)

    assert power(vector(1), 10).tolist() == [1024]
    assert power(vector(1), 3).tolist() == [8]


def test_under_eager_the_function_runs_as_it_is() -> None:
    seen = []

    @jit
    def f(x: NDArray) -> NDArray:
        y = x + 1
        seen.append(y.item())
        return y

    with genesis.eager():
        assert f(nd.array(1.0)).item() == 2
        assert f(nd.array(2.0)).item() == 3
    assert seen == [2, 3] and f.captures == 0

    @jit
    def g(x: NDArray) -> NDArray:
        with genesis.eager():
            y = x + 1
            y[0] = 5
        return y * 2

    assert g(vector(1, 2)).tolist() == g(vector(1, 2)).tolist() == [10, 6]


def test_other_options_are_another_recording() -> None:
    x = ramp(8)
    f = jit(lambda x: nd.tanh(x * 2) + 1)

    def kernels() -> int:
        return len(f.recording(x)[0].program.launches)

    assert kernels() == 1
    with using(fuse=False):
        assert kernels() > 1
        unfused = f(x).tolist()
    assert kernels() == 1
    np.testing.assert_allclose(f(x).tolist(), unfused, rtol=1e-6)


# ---- sizes

LENGTHS = [3, 7, 1, 2, 16, 17, 31, 64, 100, 255, 512, 5]


def check_lengths(
    function: Callable[..., NDArray],
    arguments: Callable[[int], tuple[NDArray, ...]],
    lengths: list[int] = LENGTHS,
    programs: int = 2,
) -> None:
    """The first length has a program of its own, the second makes the one for all others."""
    f = jit(function)
    before = compiled()
    for n in lengths:
        given = arguments(n)
        want = function(*given)
        used = compiled() - before
        want.realize()
        before = compiled() - used
        got = f(*given)
        assert got.shape == want.shape
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-4, atol=1e-5)
    assert compiled() - before <= programs
    assert f.captures == programs


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x: x.sum(), lambda n: (ramp(n),)),
        (lambda x: x.sum(axis=0), lambda n: (ramp(n, 5),)),
        (lambda x: x.max(axis=1) + x.mean(axis=1), lambda n: (ramp(5, n),)),
        (lambda x: nd.softmax(x, axis=-1), lambda n: (ramp(3, n),)),
        (lambda x: nd.softmax(x, axis=0), lambda n: (ramp(n, 3),)),
        (
            lambda x: (x - x.mean(-1, True)) * nd.rsqrt(x.var(-1, 0, keepdims=True) + 1e-5),
            lambda n: (ramp(3, n),),
        ),
        (lambda x, y: nd.concat([x, y, x], axis=0), lambda n: (ramp(n, 2), ramp(3, 2))),
        (lambda x: nd.concat([x[:1], x], axis=1), lambda n: (ramp(1, n),)),
        (lambda x: nd.windows(nd.pad(x, ((2, 2),)), 0, 3).sum(-1), lambda n: (ramp(n),)),
        (lambda x: x[1:].sum() + x[:-1].sum() if x.ndim else x, lambda n: (ramp(n + 1),)),
        (lambda x: nd.tanh(x).reshape(-1) * 2, lambda n: (ramp(n, 3),)),
        (lambda x: x.T @ x, lambda n: (ramp(n, 4),)),
        (lambda x: x @ x.T, lambda n: (ramp(n, 4),)),
        (lambda x: nd.arange(x.shape[0], dtype="float32") + x, lambda n: (ramp(n),)),
        (lambda x: x.argmax() + x.argmin(), lambda n: (nd.sin(ramp(n)),)),
        (lambda x, w: x @ w, lambda n: (ramp(n, 6), ramp(6, 5))),
        (lambda x, w: x @ w, lambda n: (ramp(4, n), ramp(n, 5))),
        (lambda x, w: x @ w, lambda n: (ramp(4, 6), ramp(6, n))),
        (lambda x, w: x @ w, lambda n: (ramp(n, n + 1), ramp(n + 1, 5))),
        (lambda x, w: nd.softmax(x @ w), lambda n: (ramp(n, 3), ramp(3, 2 * n))),
        (
            lambda x: nd.random.uniform(x.shape, generator=nd.random.Generator(1)),
            lambda n: (ramp(n),),
        ),
        (lambda x: (x + x.shape[0]) / x.size, lambda n: (ramp(n),)),
        (lambda x: nd.where(x > 1, x, 0).sum(), lambda n: (ramp(n, 2, 3),)),
    ],
    ids=[
        "sum", "column sums", "row max", "softmax", "softmax columns", "layer norm", "concat",
        "concat with one", "windows", "differences", "flatten", "gram", "outer gram", "arange",
        "argmax", "matmul m", "matmul k", "matmul n", "matmul m and k", "matmul m and n",
        "random", "size as number", "where",
    ],
)  # fmt: skip
def test_one_program_serves_all_lengths(
    function: Callable[..., NDArray], arguments: Callable[[int], tuple[NDArray, ...]]
) -> None:
    check_lengths(function, arguments)


def test_every_length_to_512() -> None:
    f = jit(lambda x: nd.softmax(x).sum() + x.sum())
    before = compiled()
    data = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    for n in [4, *range(1, 513)]:
        np.testing.assert_allclose(f(data[:n]).item(), 1 + data[:n].sum(), rtol=1e-4, atol=1e-4)
    assert compiled() - before == 2 == f.captures


def test_extents_that_vary_one_at_a_time() -> None:
    f = jit(lambda x, w: nd.softmax(x @ w))
    for m, n in [(3, 4), (4, 4), (4, 5), (5, 5), (5, 6), (6, 6), (6, 7), (7, 7), (9, 9), (1, 8)]:
        x, w = ramp(m, 3), ramp(3, n)
        np.testing.assert_allclose(f(x, w).numpy(), nd.softmax(x @ w).numpy(), rtol=1e-4, atol=1e-6)
    assert f.captures == 3


def test_equal_extents_may_come_apart() -> None:
    f = jit(lambda x, y: x.sum() + 2 * y.sum())
    for a, b in [(3, 3), (4, 4), (5, 5), (5, 6), (7, 9)]:
        assert f(nd.ones(a), nd.ones(b)).item() == a + 2 * b
    assert f.captures == 3


def test_state_of_symbolic_size() -> None:
    total = vector(0)

    @jit
    def f(x: NDArray) -> NDArray:
        total[:] = total + x.sum()
        x *= 2
        return x[1:] if x.ndim else x

    expected = 0.0
    for n in (3, 4, 5, 9, 2):
        x = ramp(n)
        expected += x.numpy().sum()
        want = (x * 2).tolist()
        assert f(x).tolist() == want[1:]
        assert x.tolist() == want and total.item() == pytest.approx(expected)
    assert f.captures == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 10 if x.shape[0] == 5 else x,
        lambda x: x * 10 if x.shape[0] != 5 else x,
        lambda x: x * 10 if x.shape[0] > 4 else x,
        lambda x: x * 10 if x.shape == (5,) else x,
        lambda x: x * 10 if x.shape[0] in (2, 5) else x,
        lambda x: x * {5: 10.0}.get(x.shape[0], 1.0),
        lambda x: x * 10 if x.shape[0] % 5 == 0 else x,
        lambda x: x * 10 if not x.shape[0] - 5 else x,
        lambda x: x * 10 if len(x) == 5 else x,
        lambda x: sum((x[k] for k in range(x.shape[0])), nd.zeros(())),
        lambda x: sum((y * 2 for y in x), nd.zeros(())),
        lambda x: x.reshape(5, 1) if int(x.shape[0]) == 5 else x,
        lambda x: x * float(x.shape[0]),
        lambda x: x * (x.shape[0] ** 0.5),
        lambda x: x[: min(x.shape[0], 3)],
        lambda x: x * "ab*"[x.shape[0] % 3].count("*"),
        lambda x: nd.flip(x),
    ],
)
def test_code_that_depends_on_a_size(function: Callable[[NDArray], NDArray]) -> None:
    f = jit(function)
    for n in (3, 4, 5, 6, 5, 2, 10):
        got, want = f(ramp(n)), function(ramp(n))
        assert got.shape == want.shape
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


def test_a_reshape_to_a_fixed_size() -> None:
    f = jit(lambda x: x.reshape(2, 6).sum(axis=1))
    for shape in ((3, 4), (4, 3), (2, 6), (12, 1)):
        x = ramp(*shape)
        assert f(x).tolist() == x.reshape(2, 6).sum(axis=1).tolist()
    with pytest.raises(ValueError, match="reshape"):
        f(ramp(5, 5))


def test_sizes_are_returned_as_numbers() -> None:
    f = jit(lambda x: (x * 1, x.shape, x.shape[0] * 2, {"n": x.size}))
    for n in (3, 4, 5):
        y, shape, double, more = f(ramp(n, 2))
        assert y.shape == shape == (n, 2) and double == 2 * n and more == {"n": 2 * n}
        assert not any(isinstance(k, Size) for k in (*shape, double, more["n"]))


def test_a_size_becomes_zero() -> None:
    state = vector(1, 1)

    @jit
    def f(x: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        state[:] = state + x.sum()
        return x * 2, x.sum(axis=0), nd.concat([x, x]) + 1

    for n in (3, 0, 4, 0, 5, 1, 9):
        doubled, total, both = f(nd.ones((n, 2)))
        assert doubled.shape == (n, 2) and total.tolist() == [n, n]
        assert both.shape == (2 * n, 2) and (both.numpy() == 2).all()
    assert state.tolist() == [45, 45]
    assert f.captures == 3


def test_views_of_symbolic_length() -> None:
    data = ramp(100, 3)
    f = jit(lambda x: x.sum(axis=0))
    for start, n in [(0, 4), (10, 5), (3, 7), (50, 50), (99, 1)]:
        np.testing.assert_allclose(
            f(data[start : start + n]).numpy(), data.numpy()[start : start + n].sum(0), rtol=1e-6
        )
    assert f.captures == 2
    for n in (4, 5, 6):  # not packed: every length is recorded
        assert f(data[:n, 1:]).tolist() == data[:n, 1:].sum(axis=0).tolist()


# ---- caches


def test_the_oldest_recording_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_module, "MAX_RECORDINGS", 3)

    class Tag:
        pass

    f = jit(lambda x, tag: x * 2)
    tags = [Tag() for _ in range(4)]
    for tag in tags:
        assert f(vector(1), tag).tolist() == [2]
    assert f.captures == 4 and len(f._kinds) == len(f._found) == 3
    f(vector(1), tags[3])
    assert f.captures == 4
    f(vector(1), tags[0])
    assert f.captures == 5
    for k in range(50):
        f(vector(1), k)
    assert len(f._kinds) == 3
    monkeypatch.setattr(jit_module, "MAX_KEYS", 5)
    for n in range(1, 20):
        assert f(nd.ones(n), 0).tolist() == [2] * n
    assert len(f._found) <= 5


def test_storages_outside_may_die() -> None:
    class Holder:
        pass

    holder = Holder()
    holder.state = vector(1, 2)  # type: ignore[attr-defined]

    @jit
    def read(x: NDArray) -> NDArray:
        return x + holder.state  # type: ignore[attr-defined]

    @jit
    def write(x: NDArray) -> NDArray:
        holder.state.assign(x)  # type: ignore[attr-defined]
        return holder.state  # type: ignore[attr-defined]

    for k in range(3):
        holder.state = vector(k, 2)  # type: ignore[attr-defined]
        assert read(vector(1, 1)).tolist() == [k + 1, 3]
        assert write(vector(5, k)).tolist() == [5, k]
        assert holder.state.tolist() == [5, k]  # type: ignore[attr-defined]
    gone = weakref.ref(holder.state.storage)  # type: ignore[attr-defined]
    del holder.state  # type: ignore[attr-defined]
    assert gone() is None


def test_a_recording_keeps_no_buffer_alive() -> None:
    gc.collect()
    before = stats().live_bytes
    state = nd.zeros(100_000).realize()

    @jit
    def step(x: NDArray) -> NDArray:
        state[:] = state + x
        return x * 2

    step(nd.ones(100_000))
    step(nd.ones(100_000))
    gc.collect()
    assert stats().live_bytes - before < 2 * 4 * 100_000
    state = vector(1)
    gc.collect()
    assert stats().live_bytes - before < 4 * 100_000


# ---- threads and processes


def run_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def guarded(k: int) -> None:
        try:
            work(k)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]


def test_threads_call_one_function_at_once() -> None:
    f = jit(lambda x, k: (x * k).sum(axis=0))

    def work(k: int) -> None:
        for i in range(60):
            n = 1 + (i * 7 + k) % 13
            assert f(nd.ones((n, 4)), float(k % 3) + 2).tolist() == [n * (k % 3 + 2)] * 4

    run_threads(6, work)


def test_threads_write_one_state() -> None:
    state = nd.zeros(5000).realize()
    mirror = nd.zeros(5000).realize()

    @jit
    def step(x: NDArray) -> NDArray:
        state[:] = state + x
        mirror[:] = mirror + x
        return state - mirror

    x = nd.ones(5000).realize()
    step(x)
    torn: list[bool] = []

    def work(k: int) -> None:
        for i in range(100):
            if k == 0:
                seen = state.numpy()
                torn.append(bool((seen != seen[0]).any()))
            elif k == 1 and i % 10 == 0:
                seen = (state * 2).numpy()
                torn.append(bool((seen != seen[0]).any()))
            else:
                assert not step(x).numpy().any()

    run_threads(5, work)
    assert not any(torn)
    steps = 1 + 3 * 100 + 90
    assert state.tolist() == mirror.tolist() == [steps] * 5000


def test_recording_is_not_seen_by_other_threads() -> None:
    state = vector(1, 1)
    inside, seen = threading.Event(), threading.Event()

    @jit
    def step(x: NDArray) -> NDArray:
        state[:] = state + x
        if not seen.is_set():
            inside.set()
            assert seen.wait(10)
        return state * 1

    def look() -> None:
        assert inside.wait(10)
        try:
            assert state.tolist() == [1, 1]
            state[0] = 10
            assert state.tolist() == [10, 1]
        finally:
            seen.set()

    t = threading.Thread(target=look)
    t.start()
    assert step(vector(1, 1)).tolist() == [11, 2]
    t.join()


def test_fork() -> None:
    state = vector(1, 1)

    @jit
    def step(x: NDArray) -> NDArray:
        state[:] = state + x
        return nd.softmax(x) + state

    x = ramp(2)
    expected = [step(x).tolist(), step(x).tolist(), step(x).tolist()]
    state[:] = vector(1, 1)
    assert step(x).tolist() == expected[0]
    stop = threading.Event()

    def busy() -> None:  # somebody may hold a lock at the moment of the fork
        while not stop.is_set():
            (nd.ones(10) * 2).sum().item()

    t = threading.Thread(target=busy)
    t.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    fresh = jit(lambda x: nd.tanh(x) * 3)
                    good = [step(x).tolist(), step(x).tolist()] == expected[1:]
                    good = good and np.allclose(fresh(x).numpy(), 3 * np.tanh(x.numpy()))
                    status = 0 if good else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        t.join()
    assert step(x).tolist() == expected[1]


# ---- cost of a replay, counted


def test_a_replay_is_one_native_call_and_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [ramp(8, 8) for _ in range(3)]

    @jit
    def step(x: NDArray, options: dict[str, Any]) -> tuple[NDArray, NDArray]:
        for w in weights:
            x = nd.softmax(x @ w)
            w -= x.sum(axis=0) * options["rate"]
        return x, x.mean()

    x = ramp(8, 8)
    step(x, {"rate": 0.5})
    assert len(step.recording(x, {"rate": 0.5})[0].program.launches) > 3

    def forbidden(*_: Any) -> None:
        raise AssertionError("a graph is built")

    calls, captures = runtime.get().calls, step.captures
    monkeypatch.setattr(Value, "__init__", forbidden)
    for _ in range(10):
        step(x, {"rate": 0.5})
    monkeypatch.undo()
    assert runtime.get().calls == calls + 10 and step.captures == captures
