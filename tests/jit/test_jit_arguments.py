"""`jit` and arrays: arguments of all kinds, writes, results, random numbers."""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from arrays import compiled, pointer, ramp, vector

import genesis
from genesis import ndarray as nd
from genesis.backends.cpu.runtime.memory import stats
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.value import CaptureError, thread

jit = genesis.jit


# ---- arguments


class Pair(NamedTuple):
    left: Any
    right: Any


def test_tensors_are_what_the_last_call_had_or_looked_at_anew() -> None:
    step = jit(lambda x, y: (x * 2 + y, x.requires_grad, y.requires_grad))
    x, y = genesis.tensor([1.0, 2.0]), genesis.tensor([3.0, 4.0])
    for _ in range(3):
        total, *wanted = step(x, y)
        assert total.tolist() == [5.0, 8.0] and wanted == [False, False]
    assert step.captures == 1
    assert step(x, y.detach().requires_grad_())[1:] == (False, True)
    assert step(x, y)[1:] == (False, False) and step.captures == 2
    with pytest.raises(TypeError):
        step(x)
    assert step(y, y=x)[0].tolist() == [7.0, 10.0]


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


def test_a_function_that_writes_meets_views_later() -> None:
    def write(x: NDArray) -> NDArray:
        x += 1
        return x * 2

    f = jit(write)
    base, expected = ramp(4, 3), ramp(4, 3)
    for pick in (lambda x: x[:2].copy(), lambda x: x[1:3], lambda x: x[2:4], lambda x: x.T[1]):
        for _ in range(2):
            assert f(pick(base)).tolist() == write(pick(expected)).tolist()
            assert base.tolist() == expected.tolist()
    plain = ramp(2, 3)
    assert f(plain).tolist() == (plain * 2).tolist()


def test_arrays_that_escape_are_those_of_the_last_call() -> None:
    class Box:
        pass

    box = Box()

    @jit
    def f(x: NDArray) -> NDArray:
        box.last = x * 2  # type: ignore[attr-defined]
        x += 1
        return x * 1

    x = vector(1, 2)
    assert [f(x).tolist() for _ in range(3)] == [[2, 3], [3, 4], [4, 5]]
    assert box.last.tolist() == [6, 8]  # type: ignore[attr-defined]
    f(vector(1, 2, 3))  # recorded with a symbolic size
    assert box.last.tolist() == [2, 4, 6]  # type: ignore[attr-defined]


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

    assert writes(weight).tolist() == [4, 6, 8]
    assert writes(vector(0, 0, 0)).tolist() == [0, 0, 0]
    assert writes(weight[1:]).tolist() == [10, 12]
    assert writes(weight).tolist() == [10, 12, 14]
    assert weight.tolist() == [5, 6, 7]


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


def test_results_in_containers_of_all_kinds() -> None:
    @dataclass
    class Output:
        logits: NDArray

    class Results(list[Any]):
        pass

    f = jit(lambda x, make: make(x * 2))
    for k in range(3):
        x = vector(k, 2)
        want = (x * 2).tolist()
        assert f(x, Output).logits.tolist() == want
        made = f(x, lambda y: Results([y]))
        assert type(made) is Results and made[0].tolist() == want
        assert [y.tolist() for y in f(x, lambda y: {y})] == [want]
        kept = f(x, lambda y: defaultdict(list, a=y))
        assert kept["a"].tolist() == want and kept["b"] == []
        assert f(x, lambda y: lambda: y)().tolist() == want
        assert f(x, lambda y: partial(max, [y]))().tolist() == want
    for hidden in (lambda y: iter([y]), lambda y: {"a": y}.values()):
        with pytest.raises(CaptureError, match=r"test_jit_arguments.py:\d+"):
            f(vector(1, 2), hidden)
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
        lambda x: float(x[0]),
        lambda x: int(x[0]),
        lambda x: x.tolist(),
        lambda x: np.asarray(x),
        lambda x: f"{x}",
        lambda x: [1, 2, 3][x.astype("int64")[0]],
    ],
    ids=["item", "bool", "numpy", "float", "int", "tolist", "asarray", "repr", "index"],
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


def test_an_exception_leaves_what_the_plain_function_leaves() -> None:
    def run(jitted: Callable[[Any], Any]) -> Any:
        state = vector(1, 2)
        view = state[1:]

        @jitted
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
        seen = [x.tolist(), state.tolist(), view.tolist(), nd.random.uniform((3,)).tolist()]
        return [*seen, f(x, False).tolist()]

    assert run(jit) == run(lambda f: f)


def test_a_refused_function_changes_nothing() -> None:
    state, log = vector(1, 2), [1]

    @jit
    def f(x: NDArray) -> NDArray:
        state[:] = state * 5
        log.append(2)
        return x * time.time()

    with pytest.raises(
        CaptureError, match=r"test_jit_arguments.py:\d+: the function calls time.time"
    ):
        f(vector(1, 1))
    assert (state.tolist(), log) == ([1, 2], [1])


def test_printing_shows_the_numbers_of_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    @jit
    def f(x: NDArray) -> NDArray:
        y = x * 2
        print("twice", y, sep=": ")
        return y

    for k in (1, 2):
        f(vector(k, 3))
    assert [line[-26:-16] for line in capsys.readouterr().out.splitlines()] == [
        "y([2., 6.]"[-10:],
        "y([4., 6.]"[-10:],
    ]
