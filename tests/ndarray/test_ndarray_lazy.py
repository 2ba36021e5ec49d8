"""What laziness promises: nothing is computed twice, nothing leaks, programs are found again."""

import gc
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracle_program import engine  # noqa: F401

import genesis
from genesis import ndarray as nd
from genesis.ndarray.core import realisation
from genesis.ndarray.core import storage as storage_module
from genesis.ndarray.core import value as value_module
from genesis.ndarray.core.liveness import holders, references


def spent(work: Callable[[], Any]) -> nd.Statistics:
    """The statistics of doing `work`."""
    before = nd.statistics()
    work()
    after = nd.statistics()
    return nd.Statistics(*(b - a for a, b in zip(before, after, strict=True)))


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


# ---- nothing is computed twice


def test_building_computes_nothing() -> None:
    used = spent(lambda: nd.ones((8, 8)) @ nd.ones((8, 8)) + 1)
    assert used == nd.Statistics(0, 0, 0, 0)


def test_held_intermediates_are_computed_with_their_users() -> None:
    x = nd.arange(4, dtype="float32").realize()
    hidden = nd.exp(x)
    loss = (hidden * 2).sum()
    assert spent(loss.item).operations == 3
    assert spent(hidden.numpy).operations == 0
    assert spent((hidden + 1).numpy).operations == 1


def test_temporaries_are_not_computed_for_later() -> None:
    x = nd.arange(4, dtype="float32").realize()
    y = nd.exp(x) + 1
    y.realize()
    assert y.value.inputs == ()
    assert spent((nd.exp(x) + 2).realize).operations == 2


def test_order_of_item_and_update_adds_no_arithmetic() -> None:
    def step(first: bool) -> int:
        weights = nd.ones(4).realize()
        x = nd.arange(4, dtype="float32").realize()

        def work() -> None:
            nonlocal weights
            error = nd.exp(x * weights)
            loss = error.sum()
            if first:
                loss.item()
            weights -= 0.125 * (error * x)
            weights.realize()
            if not first:
                loss.item()

        return spent(work).operations

    assert step(first=True) == step(first=False) == 6


def programs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A list of how much each program asked for computes and may overwrite, from now on."""
    asked: list[tuple[int, int]] = []
    compiled = realisation.compiled

    def noted(roots: Any, donated: Any, *rest: Any) -> Any:
        asked.append((len(roots), len(donated)))
        return compiled(roots, donated, *rest)

    monkeypatch.setattr(realisation, "compiled", noted)
    return asked


def test_a_check_stores_only_what_is_needed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x = nd.arange(4, dtype="float32").realize()
    asked = programs(monkeypatch)
    index = nd.sqrt(nd.exp(x) + 1).astype("int64") - 1
    y = x[index] + 1
    del index
    assert y.tolist() == [1, 1, 2, 4]
    assert [count for count, _ in asked] == [2, 1]  # the worst index with the index; the result


def test_variables_inside_a_realisation_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def referring(work: Callable[..., Any]) -> Callable[..., Any]:
        def called(graph: Any, *rest: Any) -> Any:
            values = graph if isinstance(graph, list) else graph.order
            variables = [(v, v.memory) for v in values]
            result = work(graph, *rest)
            assert variables
            return result

        return called

    def programs_of_one_chain() -> list[tuple[int, int]]:
        asked.clear()
        realisation._programs.forget_plans()
        x = nd.exp(nd.arange(4, dtype="float32")).realize()
        y = nd.exp(x * 2).sum() * x
        del x
        y.realize()
        return [*asked]

    asked = programs(monkeypatch)
    usual = programs_of_one_chain()
    assert usual == [(1, 0), (1, 1)]
    for name in ("_selection", "_run", "_free"):
        monkeypatch.setattr(realisation, name, referring(getattr(realisation, name)))
    assert programs_of_one_chain() == usual


def test_values_held_by_pending_work_outside_are_kept() -> None:
    x = nd.ones(4).realize()
    shared = nd.exp(x)
    one, two = shared + 1, shared + 2
    del shared
    assert spent(one.realize).operations == 2
    assert spent(two.realize).operations == 1


def test_cheap_movement_is_not_materialised() -> None:
    x = nd.ones((4, 6)).realize()
    moved = nd.flip(x, 0)
    total = (moved + 1).sum()
    total.realize()
    assert not moved.value.is_realised
    assert spent(moved.realize) == nd.Statistics(0, 0, 0, 1)
    assert moved.value.memory is x.value.memory


def test_views_of_realised_arrays_need_no_kernel() -> None:
    x = nd.arange(24).reshape(2, 3, 4).copy().realize()
    for view in (x.T, x[:, 1:, ::2], x.reshape(6, 4), x[:1].expand(5, 3, 4), x[0, 1].unsqueeze(0)):
        assert spent(view.numpy).runs == 0
        assert np.shares_memory(view.numpy(), x.numpy())


def test_a_movement_of_pending_work_is_computed_in_place() -> None:
    x = nd.ones((2, 3)).realize()
    used = spent((x + 1).T.copy().realize)
    assert (used.runs, used.aliases) == (1, 0)


def test_equal_expressions_are_one() -> None:
    x = nd.ones(4).realize()
    assert spent(((nd.exp(x) + 1) * (nd.exp(x) + 1)).realize).operations == 3
    a, b = nd.exp(x), nd.exp(x)
    nd.realize(a, b)
    assert a.value.memory is b.value.memory
    a += 1
    nd.realize(a)
    assert b.tolist() == nd.exp(x).tolist()


# ---- programs are found again


def test_scalars_do_not_make_programs() -> None:
    x = nd.ones(8).realize()

    def schedule() -> None:
        for rate in (0.1, 0.2, 0.3, 17, 2.5):
            assert (x * float(rate) + 3.5).sum().item() == pytest.approx(8 * (rate + 3.5))

    assert spent(schedule).compiled == 1


def test_repeated_numbers_need_no_program() -> None:
    """Memory of the host is filled; what is computed with such numbers is a program as before."""

    def fill() -> None:
        made = [nd.full((3, n), v, d) for n, v, d in ((0, 1, "int8"), (5, 2.5, "bfloat16"))]
        made += [nd.zeros((2, 2)), nd.ones((7,), bool)]
        nd.realize(*made)
        for x, number in zip(made, (1, 2.5, 0, True), strict=True):
            assert x.tolist() == np.full(x.shape, number).tolist()

    counts = spent(fill)
    assert (counts.compiled, counts.runs) == (0, 0)
    x = nd.zeros((4,))
    nd.realize(x)
    x += 1
    assert x.tolist() == [1] * 4


def test_loops_meet_the_same_program() -> None:
    x = nd.ones(8).realize()

    def loop() -> None:
        nonlocal x
        for _ in range(10):
            x += x * 0.5
            x.realize()

    used = spent(loop)
    assert used.compiled == 1 and used.runs == 10


def test_layout_is_part_of_the_key() -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    for source in (a, a.T.copy().T, a[::-1], a[:, ::-1], a[::2]):
        x = nd.asarray(source)
        np.testing.assert_array_equal((x + 1).numpy(), source + 1)
    x = nd.asarray(a)
    np.testing.assert_array_equal((x[:, :3] + x[:, 1:]).numpy(), a[:, :3] + a[:, 1:])


# ---- bounds


def test_a_chain_of_100_000_operations() -> None:
    x = nd.zeros(2)
    for _ in range(100_000):
        x = x + 1
    assert x.tolist() == [100_000, 100_000]
    y = nd.zeros(2)
    for _ in range(value_module.MAX_DEPTH - 10):
        y = y + 1
    del y  # as deep as it gets, never realised


def test_a_loop_of_writes_is_cut_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "MAX_PENDING", 200)
    a, b = nd.zeros(4).realize(), nd.zeros(4).realize()

    def loop() -> None:
        nonlocal a, b
        for _ in range(400):
            a += b * 0.5 + 1
            b += 1

    used = spent(loop)
    assert 10 < used.runs < 100
    assert used.compiled <= 3
    assert b.tolist() == [400] * 4
    assert a[0].item() == sum(0.5 * k + 1 for k in range(400))


# ---- provenance, eager mode, errors


def test_provenance_is_the_users_line() -> None:
    x = nd.ones((3, 3))
    y, here = nd.softmax(x @ x), line()
    assert y.value.where == f"{__file__}:{here}"
    z, here = x[0] + 1, line()
    assert z.value.where == f"{__file__}:{here}"


def test_a_failing_realisation_names_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr("genesis.compiler.compile_graph", fail)
    x, here = nd.exp(nd.ones(3)), line()
    with pytest.raises(RuntimeError) as caught:
        x.realize()
    assert f"result of exp at {__file__}:{here}" in caught.value.__notes__[0]
    assert not x.value.is_realised


def test_eager_realises_at_every_line() -> None:
    with genesis.eager():
        x = nd.ones(3)
        y = x + 1
        x[0] = 5
        assert y.value.is_realised and x.value.is_realised
    assert not (x + 1).value.is_realised
    assert x.tolist() == [5, 1, 1]


# ---- liveness


def test_holders_counts_references_from_outside() -> None:
    class Thing:
        pass

    things = [Thing() for _ in range(4)]
    _, one, two, three = things
    outside = [one, two, two]
    inside = (three, three)
    del one, two, three, _
    assert holders(references(things), [1] * 4) == [0, 1, 2, 2]
    assert holders(references(things), [1, 1, 1, 3])[3] == 0
    del outside
    assert holders(references(things), [1] * 4)[:3] == [0, 0, 0]
    assert inside


def test_history_is_freed() -> None:
    x = nd.ones(3).realize()
    middle = nd.exp(x)
    gone = weakref.ref(middle.value)
    y = middle + 1
    del middle
    assert gone() is not None
    y.realize()
    assert gone() is None


def test_nothing_leaks() -> None:
    from genesis.backends.cpu.runtime.memory import stats

    def live() -> int:
        gc.collect()
        return stats().live_bytes

    x = nd.ones((16, 16)).realize()

    def work(count: int) -> None:
        for i in range(count):
            y = (x * (i + 0.5)).sum(0)
            y[2:4] += 1
            z = nd.random.uniform((16,)) + y
            assert z[0].item() > 0
            x[0] *= 0.5

    work(10)
    before = live()
    work(1000)
    assert live() == before


# ---- random numbers


def test_two_draws_differ_and_seeds_repeat() -> None:
    genesis.manual_seed(3)
    a, b = nd.random.uniform((1000,)), nd.random.uniform((1000,))
    first = np.concatenate([a.numpy(), b.numpy()])
    assert len(np.unique(first)) > 1990
    genesis.manual_seed(3)
    both = nd.random.uniform((2000,))
    np.testing.assert_array_equal(both.numpy(), first)  # draws continue one sequence
    genesis.manual_seed(4)
    assert (nd.random.uniform((2000,)).numpy() != first).mean() > 0.99


def test_draws_that_came_before_go_on_alike() -> None:
    """From the second of a kind on, graphs are copied: the numbers are those of the state."""
    draws: list[Callable[[nd.random.Generator], nd.NDArray]] = [
        lambda g: nd.random.normal(5, generator=g),
        lambda g: nd.random.normal(5, 2.0, 0.5, "float64", g),
        lambda g: nd.random.uniform((2, 3), -1.0, 1.0, generator=g),
        lambda g: nd.random.uniform((2, 3), -1, 1.5, generator=g),
        lambda g: nd.random.integers(0, 9, 4, generator=g),
        lambda g: nd.random.integers(1, 9, 4, generator=g),
        lambda g: nd.random.bernoulli(0.3, 6, g),
        lambda g: nd.random.bernoulli(0.7, 6, g),
    ]
    found = []
    for _ in range(4):
        g = nd.random.Generator(11)
        found.append([draw(g).tolist() for draw in draws])
    nd.random._draws.clear()
    g = nd.random.Generator(11)
    assert found == [[draw(g).tolist() for draw in draws]] * 4
    g = nd.random.Generator(11)  # pending, and realised from the last to the first
    pending = [draw(g) for draw in draws]
    assert [x.tolist() for x in reversed(pending)] == found[0][::-1]


def test_draws_realised_out_of_order() -> None:
    source = nd.random.Generator(7)
    a, b, c = (nd.random.uniform((5,), generator=source) for _ in range(3))
    got = [c.tolist(), a.tolist(), b.tolist()]
    source.manual_seed(7)
    want = nd.random.uniform((15,), generator=source).tolist()
    assert got == [want[10:], want[:5], want[5:10]]
    assert source.state.tolist() == [7, 15]


def test_the_generators_state_does_not_pile_up() -> None:
    source = nd.random.Generator(1)

    def draw() -> None:
        for _ in range(20):
            nd.random.uniform((4,), generator=source).realize()
            assert source._state.value.is_realised

    assert spent(draw).compiled == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_distributions(dtype: str) -> None:
    genesis.manual_seed(0)
    n = 40_000
    u = np.asarray(nd.random.uniform((n,), -1, 3, dtype=dtype), np.float64)
    assert u.min() >= -1 and (u.max() < 3 or dtype in ("float16", "bfloat16"))
    assert abs(u.mean() - 1) < 0.03 and abs(u.std() - 4 / np.sqrt(12)) < 0.02
    z = np.asarray(nd.random.normal((n,), 2.0, 3.0, dtype=dtype), np.float64)
    assert abs(z.mean() - 2) < 0.06 and abs(z.std() - 3) < 0.05
    assert abs(((z - 2) ** 3).mean()) < 1.5 and abs(((z - 2) ** 4).mean() / 81 - 3) < 0.2
    assert len(np.unique(u)) > 200


def test_random_integers() -> None:
    x = nd.random.integers(-2, 5, (7000,)).numpy()
    assert x.dtype == np.int64
    counts = np.bincount(x + 2, minlength=7)
    assert len(counts) == 7 and counts.min() > 850


# ---- threads


def test_threads_build_and_realise_together() -> None:
    shared = nd.arange(100, dtype="float32")
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            mine = nd.zeros(100)
            for i in range(50):
                mine += shared * float(k)
                if i % 7 == 0:
                    mine.realize()
            assert mine.tolist() == (np.arange(100) * 50.0 * k).tolist()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_default_device_and_eager_are_per_thread() -> None:
    seen: list[Any] = []
    with genesis.eager(), nd.on_device("cpu:1"):
        t = threading.Thread(
            target=lambda: seen.extend([nd.default_device(), nd.ones(2).value.is_realised])
        )
        t.start()
        t.join()
    assert seen == ["cpu", False]


# ---- exchange with other libraries


def test_numpy_in_and_out_shares_memory() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = nd.asarray(a)
    assert np.shares_memory(x.numpy(), a)
    assert np.shares_memory(np.asarray(x), a)
    assert not np.shares_memory(nd.array(a).numpy(), a)
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0] = 1
    swapped = a.astype(">f4")
    np.testing.assert_array_equal(nd.asarray(swapped).numpy(), a)
    packed = np.zeros(3, np.dtype([("a", "i1"), ("b", "<f4")]))["b"]  # not aligned
    assert nd.asarray(packed).tolist() == [0, 0, 0]
    assert (a + x).tolist() == (x + a).tolist() == (a + a).tolist()
    assert isinstance(a + x, nd.NDArray)


def test_torch_in_and_out() -> None:
    t = torch.arange(6.0).reshape(2, 3).T
    x = nd.from_dlpack(t)
    assert x.shape == (3, 2) and np.shares_memory(x.numpy(), t.numpy())
    np.testing.assert_array_equal(torch.from_dlpack(x + 1).numpy(), t.numpy() + 1)


def test_conversions() -> None:
    x = nd.array([2.5])
    assert (float(x), int(x), bool(x)) == (2.5, 2, True)
    assert [1, 2, 3][nd.array(1)] == 2
    assert len(nd.ones((3, 2))) == 3 and [r.tolist() for r in nd.eye(2)] == [[1, 0], [0, 1]]
    assert nd.array([1.5], "bfloat16").item() == 1.5
    assert repr(nd.array([1, 2])) == "array([1, 2], dtype=int64)"
    assert repr(nd.ones((1, 2), "bfloat16")) == "array([[1., 1.]], dtype=bfloat16)"
    assert type(nd.array([True]).item()) is bool


# ---- cost


def test_sizes_of_objects() -> None:
    x = nd.ones(4)
    assert sys.getsizeof(x.value) + sys.getsizeof(x) + sys.getsizeof(x.storage) < 400
