"""`jit` does what the function does, every time, whatever changes around it."""

import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
import pytest
from arrays import compiled, numbers, ramp, random_function, vector

import genesis
from genesis import ndarray as nd
from genesis.backends.cpu.runtime import runtime
from genesis.backends.cpu.runtime.memory import stats
from genesis.compiler import using
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.value import Extended, Value
from genesis.ndarray.tracing import jit as jit_module

jit = genesis.jit


# ---- random programs


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


def test_classes_that_a_recording_met_are_not_kept() -> None:
    """What their methods can reach would be kept with them."""

    def use() -> weakref.ref[type]:
        class Box:
            def __init__(self) -> None:
                self.scale, self.items = 2.0, iter([1.0])

            def __iter__(self) -> Any:
                return iter((self.scale,))

        box = Box()
        f = jit(lambda x: x * box.scale + sum(box))
        assert f(vector(1)).tolist() == [4]
        return weakref.ref(Box)

    gone = use()
    gc.collect()
    assert gone() is None


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
    check(8, 4)  # as it was before: found again
    CHOSEN.add(3)
    check(18, 5)
    CHOSEN.discard(3)
    check(8, 5)


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
    assert f.captures == 4


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


def test_attributes_of_plain_objects() -> None:
    class Settings:
        def __init__(self) -> None:
            self.scale = 2.5

    settings = Settings()
    for f in (jit(lambda x: x * settings.scale), partial(jit(lambda s, x: x * s.scale), settings)):
        settings.scale = 2.5
        assert f(vector(1, 2)).tolist() == [2.5, 5]
        settings.scale = 3.5
        assert f(vector(1, 2)).tolist() == [3.5, 7]
    kept = jit(lambda x: x * settings.scale, static=[settings])
    assert kept(vector(1, 2)).tolist() == [3.5, 7]
    settings.scale = 2.5
    assert kept(vector(1, 2)).tolist() == [3.5, 7]  # somebody said that it does not change


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

    @jit(static=[inside, seen])
    def step(x: NDArray) -> NDArray:
        state[:] = state + x
        if not seen.is_set():
            inside.set()
            seen.wait()
        return state * 1

    def look() -> None:
        inside.wait()
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


def test_what_has_died_is_not_taken_for_none() -> None:
    class Box:
        kept: Any = None

    box, other = Box(), vector(1, 2)

    @jit
    def keep(x: NDArray) -> None:
        box.kept = other if box.kept is not None else x

    for _ in range(2):
        keep(vector(3, 4))
    assert box.kept is other
    box.kept = None  # as at first; what it was at the second call is gone
    x = vector(5, 6)
    keep(x)
    assert box.kept is x


def test_the_length_of_a_set_depends_on_what_was_in_it() -> None:
    chosen = {1, 2}

    @jit
    def count(x: NDArray) -> NDArray:
        chosen.discard(2)
        chosen.add(5)
        return x * len(chosen)

    for before in ({1, 2}, {1, 2}, {7, 8}, {5, 6}):
        chosen.clear()
        chosen.update(before)
        want = len((before - {2}) | {5})
        assert count(vector(1)).tolist() == [want]


# ---- code of users that Genesis calls where nobody watches Genesis


class _Scaled(genesis.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * factor["now"]


class _Slow(genesis.optim.SGD):
    def update(self, parameter: Any, grad: Any, state: Any, group: Any) -> None:
        super().update(parameter, grad * factor["now"], state, group)


class _Shifted(genesis.nn.Parameter):
    def __radd__(self, other: Any) -> Any:
        return self * factor["now"] + other


factor = {"now": 1.0}


def _times(grad: Any) -> Any:
    return grad * factor["now"]


def _by_a_hook(w: Any, x: Any) -> Any:
    return (w * x).sum()


def _by_a_hook_inside(w: Any, x: Any) -> Any:
    y = w * x
    y.register_hook(_times)
    return y.sum()


def _by_a_function(w: Any, x: Any) -> Any:
    return _Scaled.apply(w * x).sum()


def _by_a_hook_of_a_module(w: Any, x: Any) -> Any:
    layer = genesis.nn.Identity()
    layer.register_full_backward_hook(lambda module, given, got: (_times(given[0]),))
    return layer(w * x).sum()


def _by_a_scan(w: Any, x: Any) -> Any:
    return genesis.scan(lambda c, y: (c + w.sum() * y * factor["now"], None), x.sum(), x)[0]


def _by_a_distance(w: Any, x: Any) -> Any:
    loss = genesis.nn.functional.triplet_margin_with_distance_loss
    apart = lambda a, b: ((a - b) * factor["now"]).abs().sum()  # noqa: E731
    return loss(w, x, x * 2, distance_function=apart, margin=100.0)


def _by_a_tensor(w: Any, x: Any) -> Any:
    shifted = _Shifted(nd.ones(3))
    return (
        genesis.nn.functional.linear(x, w.reshape(1, 3).expand(3, 3), shifted).sum() + w.sum() * 0
    )


_USES = [
    _by_a_hook, _by_a_hook_inside, _by_a_function, _by_a_hook_of_a_module, _by_a_scan,
    _by_a_distance, _by_a_tensor,
]  # fmt: skip


@pytest.mark.parametrize("use", _USES)
@pytest.mark.parametrize("optimizer", [genesis.optim.SGD, _Slow])
def test_code_that_genesis_calls_is_watched(
    use: Callable[..., Any], optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Extended, "by_users", False)  # the class above is one
    if use is _by_a_tensor:
        type("Again", (_Shifted,), {})
    found = []
    for transform in (lambda f: f, jit):
        w = genesis.tensor([1.0, 2.0, 3.0], requires_grad=True)
        method, x = optimizer([w], lr=0.1), genesis.tensor([0.5, -1.0, 2.0])
        if use is _by_a_hook:
            w.register_hook(_times)

        def step(x: Any, w: Any = w, method: Any = method) -> Any:
            method.zero_grad()
            loss = use(w, x)
            loss.backward()
            method.step()
            return loss

        run = transform(step)
        losses = []
        for factor["now"] in (1.0, 1.0, 3.0, 3.0, 1.0):
            losses.append(run(x).item())
        found.append((losses, w.tolist()))
    assert np.allclose(found[0][0], found[1][0]) and np.allclose(found[0][1], found[1][1])


@pytest.mark.parametrize(
    "body", ["genesis.nn.functional.gelu(x)", "__import__('genesis.nn').nn.functional.gelu(x)"]
)
def test_what_is_loaded_when_first_used_may_be_recorded(body: str) -> None:
    """In a new process: here all packages are loaded already."""
    program = f"import genesis\nf = genesis.jit(lambda x: {body})\nprint(f(genesis.ones(1)).item())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(0.8413447)


# ---- what recordings and calls do not do


def test_recording_asks_nobody_who_holds_the_dictionaries_of_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is a walk over all objects of the process."""

    def walk(*_: Any) -> Any:
        raise AssertionError("all objects are looked through")

    monkeypatch.setattr(gc, "get_referrers", walk)
    layers = [genesis.nn.Linear(4, 4), genesis.nn.ReLU(), genesis.nn.LSTMCell(4, 4)]

    def named(x: Any, **options: float) -> Any:
        settings = {"scale": options["scale"], **options}
        return scaled(x, **settings) * settings["scale"]

    def scaled(x: Any, scale: float, **rest: float) -> Any:
        return x * scale * len(rest)

    @jit
    def f(x: Any) -> Any:
        for layer in layers[:2]:
            x = layer(x)
        return named(layers[2](x)[0], scale=2.0, other=3.0)

    f(genesis.ones(2, 4))
    assert f.captures == 1


@pytest.mark.parametrize("optimizer", [genesis.optim.SGD, genesis.optim.Adam])
def test_an_optimizer_overwrites_what_a_jitted_model_has_read(optimizer: Any) -> None:
    """Though the loss, and with it the graph, is there still: backward has gone through it."""
    net = genesis.nn.Sequential(genesis.nn.Linear(4, 8), genesis.nn.ReLU(), genesis.nn.Linear(8, 2))
    update, forward = optimizer(net.parameters(), lr=0.1), jit(net)

    def places() -> list[int]:
        memories = [p.array.storage.actual.memory for p in net.parameters()]
        return [m.pointer for m in memories if m is not None]

    losses, seen = [], []
    for _ in range(5):
        update.zero_grad()
        losses.append(forward(genesis.ones(3, 4)).square().mean())
        losses[-1].backward()
        update.step()
        seen.append(places())
    assert seen[2:] == seen[2:3] * 3
    with pytest.raises(RuntimeError, match="freed"):
        losses[-1].backward()


def test_gradients_lie_as_their_arguments_do() -> None:
    weights = genesis.rand(2, 3, 4)

    def loss(x: Any) -> Any:
        return (x * x * weights.reshape(x.shape)).sum()

    for order in itertools.permutations(range(3)):
        whole, again = (genesis.rand(2, 3, 4, requires_grad=True) for _ in range(2))
        with genesis.no_grad():
            again.copy_(whole)
        view = whole.permute(*order)
        (gradient,) = genesis.autograd.grad(jit(loss)(view), view)
        loss(again.permute(*order)).backward()
        np.testing.assert_allclose(
            gradient.permute(*np.argsort(order).tolist()).tolist(), again.grad.tolist(), 1e-6
        )
        assert gradient.array.storage.actual.strides == view.stride()
