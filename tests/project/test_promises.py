"""What the whole system promises, whatever the program."""

import gc
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import numbers, ramp, random_function

import genesis
from genesis import ndarray as nd
from genesis.backends.cpu.runtime import runtime
from genesis.backends.cpu.runtime.memory import MemoryStats, stats
from genesis.compiler import using
from genesis.ndarray.core import realisation, symbolic_sizes
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.storage import MAX_PENDING
from genesis.ndarray.core.value import Value, thread
from tests.interrupts import interrupted_at, moments

ROOT = Path(__file__).parents[2]


def spent(work: Callable[[], Any]) -> nd.Statistics:
    before = nd.statistics()
    work()
    after = nd.statistics()
    return nd.Statistics(*(b - a for a, b in zip(before, after, strict=True)))


# ---- arithmetic is done once


def train(read: str) -> list[float]:
    """Three steps of a small network, reading the loss at different moments."""
    rng = np.random.default_rng(0)
    x, y = nd.array(rng.standard_normal((8, 6), np.float32)), nd.array(np.ones((8, 3), np.float32))
    w = nd.array(rng.standard_normal((6, 3), np.float32) * 0.1)
    v = nd.zeros((6, 3))
    nd.realize(x, y, w, v)
    losses: list[Any] = []
    for _ in range(3):
        h = nd.tanh(x @ w)
        error = h - y
        loss = (error * error).mean()
        if read == "before":
            losses.append(loss.item())
        gradient = x.T @ (error * (1 - h * h)) * (2 / 24)
        v[:] = v * 0.9 + gradient
        if read == "between":
            losses.append(loss.item())
        w -= v * 0.5
        if read == "after":
            losses.append(loss.item())
        elif read == "twice":
            losses.append(loss.item())
            assert loss.item() == losses[-1]
            str(h), str(w)
        elif read == "late":
            losses.append(loss)
    return [loss if isinstance(loss, float) else loss.item() for loss in losses] + [w.sum().item()]


def test_reading_early_or_late_adds_no_arithmetic() -> None:
    results = {}
    operations = {}
    for read in ("after", "before", "between", "twice", "late"):
        operations[read] = spent(lambda read=read: results.update({read: train(read)})).operations
    for read, result in results.items():
        np.testing.assert_allclose(result, results["after"], rtol=1e-5)
        assert operations[read] == operations["after"], operations


def flops_of(work: Callable[[], Any]) -> int:
    """The floating-point operations of the programs that `work` runs."""
    from genesis.compiler.program.program import Program
    from genesis.compiler.report import report

    total = 0
    run = Program.run

    def counted(self: Program, *args: Any) -> None:
        nonlocal total
        total += report(self).flops
        run(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "run", counted)
        work()
    return total


def test_flops_do_not_depend_on_when_values_are_read() -> None:
    n = 32
    a, b = nd.ones((n, n)).realize(), nd.ones((n, n)).realize()

    def early() -> None:
        c = a @ b
        c.realize()
        d = c @ a
        d.realize()
        (c + d).realize()

    def late() -> None:
        c = a @ b
        d = c @ a
        e = c + d
        e.realize()
        c.numpy(), d.numpy()

    def several() -> None:
        c = a @ b
        d = c @ a
        nd.realize(c + d, d, c)

    expected = 2 * 2 * n**3 + n**2
    assert flops_of(early) == flops_of(late) == flops_of(several) == expected


# ---- compilation happens once


def test_a_changing_scalar_compiles_once() -> None:
    x = nd.ones(16).realize()
    f = genesis.jit(lambda x, rate: (x * rate + 0.5).sum())

    def schedule(call: Callable[[NDArray, float], NDArray]) -> int:
        def work() -> None:
            for k in range(20):
                rate = 0.3 + 0.01 * k
                assert call(x, rate).item() == pytest.approx(16 * (rate + 0.5))

        return spent(work).compiled

    assert schedule(lambda x, rate: (x * rate + 0.5).sum()) == 1
    assert schedule(f) == 0  # the same program


def test_where_a_slice_starts_does_not_compile() -> None:
    data = nd.array(np.arange(600, dtype=np.float32).reshape(100, 6)).realize()
    weight = nd.ones((6, 2)).realize()

    def work() -> None:
        for k in range(0, 90, 5):
            batch = data[k : k + 8]
            np.testing.assert_array_equal(
                (batch @ weight).numpy(), data.numpy()[k : k + 8] @ np.ones((6, 2), np.float32)
            )
            assert (data[k] * 2).tolist() == (data.numpy()[k] * 2).tolist()
            assert data[k + 3 : k : -1, 2].sum().item() == data.numpy()[k + 3 : k : -1, 2].sum()

    assert spent(work).compiled == 3


def test_options_do_not_share_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    x = nd.ones(7).realize()

    def run() -> tuple[int, int]:
        used = spent((nd.tanh(x) * 2 + 1).sum().realize)
        return used.compiled, used.runs

    monkeypatch.setattr(realisation, "_programs", realisation.Programs())
    assert run() == (1, 1) and run() == (0, 1)
    for change in ({"fuse": False}, {"schedule": False}, {"simplify": False}, {"donate": False}):
        with using(**change):
            assert run() == (1, 1) and run() == (0, 1)
    assert run() == (0, 1)
    kinds = {len(e.program.launches) for e in realisation._programs.values()}
    assert len(kinds) > 1


def test_options_hold_in_all_threads() -> None:
    from genesis.compiler.options import current

    seen: list[Any] = []
    t = threading.Thread(target=lambda: seen.append(current()))
    with using(fuse=False):
        t.start()
        t.join()
    assert seen[0].strict and not seen[0].fuse and current().fuse


# ---- bounds


def test_a_chain_of_100_000_operations() -> None:
    x = nd.zeros(3)
    for _ in range(100_000):
        x = x + 1
    assert x.tolist() == [100_000] * 3
    y = nd.zeros(3)
    for _ in range(100_000):
        y += 1
    assert y.tolist() == [100_000] * 3


def test_a_chain_dies_without_recursion() -> None:
    limit = sys.getrecursionlimit()
    x = nd.ones(3)
    pieces = []
    for k in range(100_000):
        x = x * 1.5 if k % 2 else x / 1.5
        if k % 10_000 == 0:
            pieces.append(x)
    del x, pieces
    gc.collect()
    assert sys.getrecursionlimit() == limit


def test_a_long_function_can_be_recorded() -> None:
    @genesis.jit
    def f(x: NDArray) -> NDArray:
        for _ in range(3000):
            x = x + 1.5
        return x

    assert f(nd.zeros(3)).tolist() == [4500] * 3


# ---- eager


@pytest.mark.parametrize("seed", range(20))
def test_eager_gives_the_same(seed: int) -> None:
    states = [[ramp(4, 6, start=5), ramp(4, 6, start=-7)] for _ in range(2)]
    for call in range(2):
        arguments = [[ramp(4, 6, start=call), ramp(4, 6, start=-call)] for _ in range(2)]
        want = random_function(seed, states[0])(*arguments[0])
        with genesis.eager():
            got = random_function(seed, states[1])(*arguments[1])
        assert all(x.value.is_realised for x in (got["a"], *arguments[1], *states[1]))
        for a, b in zip(numbers(want), numbers(got), strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


def test_eager_fails_at_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    x = nd.ones(3).realize()

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(realisation, "_programs", realisation.Programs())
    monkeypatch.setattr("genesis.compiler.compile_graph", fail)
    y = x + 1  # lazily, nothing happens here
    with pytest.raises(ZeroDivisionError), genesis.eager():
        x * 3
    assert not thread.eager and not y.value.is_realised
    with genesis.eager(), pytest.raises(ZeroDivisionError):
        x[1:] = y[1:]
    monkeypatch.undo()
    assert y.tolist() == [2, 2, 2]


def test_eager_nests_and_ends_with_its_block() -> None:
    with genesis.eager():
        with genesis.eager():
            pass
        assert (nd.ones(3) + 1).value.is_realised
        with pytest.raises(KeyError), genesis.eager():
            raise KeyError
        assert thread.eager
    assert not (nd.ones(3) + 1).value.is_realised


# ---- nothing leaks


@contextmanager
def nothing_leaks(warm_up: Callable[[], Any]) -> Iterator[None]:
    def state() -> tuple[int, int, int, int]:
        gc.collect()
        memory: MemoryStats = stats()
        values = sum(type(x) is Value for x in gc.get_objects())
        # Values refer to each other only, so the collector may not know them; arrays it does.
        arrays = sum(type(x) is NDArray for x in gc.get_objects())
        return memory.live_bytes, memory.live_blocks, values, arrays

    warm_up()
    before = state()
    yield
    assert state() == before
    assert len(thread.written) <= MAX_PENDING


def test_a_plain_loop_leaks_nothing() -> None:
    x, w = nd.ones((16, 16)).realize(), nd.ones((16, 16)).realize()

    def work(count: int) -> None:
        nonlocal w
        for k in range(count):
            y = nd.softmax(x @ w) * (k + 0.5)
            w[2:4] = y[:2]
            w *= 0.5
            noise = nd.random.normal((16,))
            if k % 3 == 0:
                assert np.isfinite((y.sum() + noise.sum()).item())
        w.realize()

    with nothing_leaks(lambda: work(31)):
        work(1000)


def test_a_jitted_loop_leaks_nothing() -> None:
    w = nd.ones((16, 16)).realize()

    @genesis.jit
    def step(x: NDArray, rate: float) -> tuple[NDArray, NDArray]:
        y = nd.softmax(x @ w) + nd.random.uniform((16, 16))
        w[2:4] = y[:2] * rate
        return y, y.mean()

    held: list[Any] = []

    def work(count: int) -> None:
        for k in range(count):
            x = nd.ones((1 + k % 7, 16))
            held[:] = [step(nd.ones((16, 16)), 0.5 if k % 2 else 0.25), x.sum()]
        held.clear()

    with nothing_leaks(lambda: work(30)):
        work(1000)


def test_ever_new_recordings_leak_nothing() -> None:
    f = genesis.jit(lambda x, k: x * float(k))

    def work(start: int, count: int) -> None:
        for k in range(start, start + count):
            f(nd.ones(5), k)

    with nothing_leaks(lambda: work(2, 200)):
        work(1000, 200)


def test_pending_work_that_is_dropped_leaks_nothing() -> None:
    x = nd.ones(100).realize()

    def work(count: int) -> None:
        for _ in range(count):
            y = nd.exp(x)
            y += 1
            z = x.copy()
            z[3] = 5

    with nothing_leaks(lambda: work(10)):
        work(1000)


def test_failures_leak_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = nd.ones(100).realize()

    def work(count: int) -> None:
        for _ in range(count):
            with pytest.raises(ZeroDivisionError):
                (x * 2 + nd.ones(100)).realize()
            with pytest.raises(ZeroDivisionError):
                genesis.jit(lambda x: x * 2 + nd.ones(100))(x)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("genesis.compiler.compile_graph", fail)
    with nothing_leaks(lambda: work(10)):
        work(100)


# ---- threads


def test_threads_build_and_realise_at_once() -> None:
    shared = nd.array(np.arange(64, dtype=np.float32)).realize()
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            total = nd.zeros(64)
            for i in range(40):
                part = nd.tanh(shared * float(k + 1)) + shared[i]
                total += part
                if i % 5 == k % 5:
                    total.realize()
            want = sum(np.tanh(np.arange(64) * (k + 1.0)) + i for i in range(40))
            np.testing.assert_allclose(total.numpy(), want, rtol=1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    a = nd.array(rng.standard_normal((257, 300), np.float32))
    b = nd.array(rng.standard_normal((300, 129), np.float32))
    long = nd.array(rng.standard_normal(1_000_003, np.float32))
    cube = nd.array(rng.standard_normal((5, 33, 70), np.float32))
    nd.realize(a, b, long, cube)
    programs: dict[str, Callable[[], NDArray]] = {
        "sum of all": lambda: long.sum(),
        "mean and variance": lambda: nd.stack([long.mean(), long.var()]),
        "columns": lambda: a.sum(axis=0),
        "rows": lambda: (a * a).mean(axis=1),
        "middle": lambda: cube.sum(axis=1),
        "maximum": lambda: long.max() + long.argmax(),
        "product": lambda: (1 + a * 0.001).prod(),
        "matmul": lambda: a @ b,
        "gram": lambda: a.T @ a,
        "batched": lambda: cube @ cube.mT,
        "softmax": lambda: nd.softmax(a, axis=1),
        "softmax columns": lambda: nd.softmax(a, axis=0),
        "network": lambda: nd.softmax(nd.tanh(a @ b) @ b.T).sum(axis=0),
        "random": lambda: nd.random.normal((100_001,), generator=nd.random.Generator(7)),
        "half": lambda: a.astype("float16").sum(axis=0),
        "scatter": lambda: nd.index_add(
            nd.zeros((10, 300)), nd.array(np.arange(257) % 10), a
        ),
    }  # fmt: skip
    before = runtime.get_num_threads()
    bits: dict[str, set[bytes]] = {name: set() for name in programs}
    try:
        for threads in (1, 2, 3, 7):
            runtime.set_num_threads(threads)
            for name, program in programs.items():
                for _ in range(2):
                    bits[name].add(program().numpy().tobytes())
                bits[name].add(genesis.jit(lambda p=program: p())().numpy().tobytes())
    finally:
        runtime.set_num_threads(before)
    assert {name: len(found) for name, found in bits.items()} == dict.fromkeys(programs, 1)


# ---- errors come at the call

x23, x34, i4, b4 = nd.ones((2, 3)), nd.ones((3, 4)), nd.arange(4), nd.ones(4) > 0

BAD_CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: x23 + x34, ValueError, r"add: shapes \(2, 3\) and \(3, 4\) do not broadcast"),
    (lambda: nd.where(b4, x23, 0), ValueError, r"where: shapes .*\(4,\).*\(2, 3\)"),
    (lambda: x23 @ x23, ValueError, r"matmul: .*\(2, 3\).*\(2, 3\)"),
    (lambda: x23 @ nd.array(1.0), ValueError, r"matmul: .*\(\)"),
    (lambda: nd.einsum("ij,jk->ik", x23, x23), ValueError, r"einsum: .*3.*2"),
    (lambda: x23.sum(axis=2), (ValueError, IndexError), r"sum: axis 2 .*2"),  # type: ignore[list-item]
    (lambda: x23.mean(axis=(0, 0)), ValueError, r"mean: .*0"),
    (lambda: x23.reshape(4, 2), ValueError, r"reshape: .*\(2, 3\).*\(4, 2\)"),
    (lambda: x23.reshape(-1, -1), ValueError, r"reshape: .*-1"),
    (lambda: x23.permute(0, 0), ValueError, r"permute: .*\(0, 0\)"),
    (lambda: x23.expand(4, 3), ValueError, r"expand: .*\(2, 3\).*\(4, 3\)"),
    (lambda: nd.concat([x23, x34], axis=0), ValueError, r"concat: .*\(2, 3\).*\(3, 4\)"),
    (lambda: nd.stack([x23, x34]), ValueError, r"stack: .*\(2, 3\).*\(3, 4\)"),
    (lambda: nd.split(x23, [2, 2], axis=1), ValueError, r"split: .*3"),
    (lambda: nd.pad(x23, ((1, 1),)), ValueError, r"pad: .*\(2, 3\)"),
    (lambda: x23[2], IndexError, r"index 2 is out of range for axis 0 of size 2"),
    (lambda: x23[0, 0, 0], IndexError, r"3 indices for an array of shape \(2, 3\)"),
    (lambda: x23[1.5], IndexError, r"not float"),
    (lambda: x23[b4], IndexError, r"a mask of shape \(4,\) does not fit axes of shape \(2,\)"),
    (lambda: x23["a"], IndexError, r"not str"),
    (lambda: nd.take(x23, x23), TypeError, r"take: positions must be integers, not float32"),
    (lambda: x23 + "a", TypeError, r"add: expected an array or a number, got str"),
    (lambda: x23 + None, TypeError, r"add: .*NoneType"),
    (lambda: x23 << 1, TypeError, r"left_shift: .*float32"),
    (lambda: x23 & x23, TypeError, r"bitwise_and: .*float32"),
    (lambda: ~x23, TypeError, r"not: not defined for float32"),
    (lambda: i4.astype("complex7"), TypeError, r"complex7"),
    (lambda: nd.zeros((-1,)), ValueError, r"zeros: .*-1"),
    (lambda: nd.ones(2.5), TypeError, r"ones: .*2\.5"),  # type: ignore[arg-type]
    (lambda: x23.item(), ValueError, r"item: an array of shape \(2, 3\)"),
    (lambda: bool(x23), ValueError, r"\(2, 3\)"),
    (lambda: len(nd.array(1.0)), TypeError, r"shape \(\) has no length"),
    (lambda: nd.random.integers(5, 5), ValueError, r"integers: there are none from 5"),
    (lambda: nd.random.uniform((2,), dtype="int32"), TypeError, r"uniform: .*int32"),
    (lambda: x23.expand(2, 3).assign(x34), ValueError, r"assignment: .*\(2, 3\).*\(3, 4\)"),
    (lambda: x23[:, :1].expand(2, 3).assign(x23), ValueError, r"expanded to shape \(2, 3\).*copy"),
    (lambda: x23.to("tpu:x"), ValueError, r"tpu:x"),
    (lambda: i4.__iadd__(0.5), TypeError, r"\+=: .*float32.*int64"),
    (lambda: x23.softmax(), AttributeError, r"softmax"),  # type: ignore[attr-defined]
    (lambda: nd.softmax(x23, axis=5), (ValueError, IndexError), r"softmax: axis 5"),  # type: ignore[list-item]
    (lambda: nd.windows(i4, 0, 9), ValueError, r"windows: size 9"),
    (lambda: nd.arange(0, 4, 0), ValueError, r"arange: .*0"),
    (lambda: nd.index_add(x23, i4, x34), ValueError, r"index_add: .*\(4,\).*\(2, 3\)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), BAD_CALLS)
def test_errors_come_at_the_call(
    call: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    before = nd.statistics().runs
    with pytest.raises(kind) as caught:
        call()
    assert re.search(message, str(caught.value)), str(caught.value)
    assert nd.statistics().runs == before
    assert caught.traceback[0].path == Path(__file__)  # not somewhere later


def test_a_failing_kernel_names_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    x = nd.tanh(nd.ones(3) * 5)
    monkeypatch.setattr("genesis.compiler.compile_graph", fail)
    with pytest.raises(RuntimeError) as caught:
        x.numpy()
    assert "tanh" in caught.value.__notes__[0] and "test_promises.py:" in caught.value.__notes__[0]


# ---- Ctrl-C


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # half an object
@pytest.mark.parametrize("seed", range(2))
def test_an_interrupted_process_stays_usable(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that run, are recorded and are compiled: each has run, or has not."""
    monkeypatch.setenv("GENESIS_CACHE", "off")
    rng = random.Random(seed)
    n = 1000
    a, b, one = nd.zeros(n).realize(), nd.zeros(n).realize(), nd.ones(n).realize()
    held = []

    def step(x: NDArray) -> NDArray:
        a[:] = a + x
        b[:] = b + x
        return a - b

    jitted = genesis.jit(step)

    def plain(k: int) -> None:
        c.__iadd__(one)
        c.realize()
        # Compiles, now and then; odd lengths have kernels of the same kind.
        symbolic_sizes.forget()  # else one program would do for all of them
        y = nd.softmax(nd.tanh(one[: 51 + 2 * k] * (k + 0.5)))
        assert abs(y.sum().item() - 1) < 1e-5

    c = nd.zeros(n).realize()
    jitted(one)
    plain(0)
    jitted(one)  # the first run after a recording looks at more
    short, long = moments(lambda: jitted(one)), moments(lambda: plain(1))
    interrupts = 0
    for k in range(2, 42):
        before, other = int(a.numpy()[0]), int(c.numpy()[0])
        if k % 3 == 0:
            held.append(a.numpy())  # so that the next step must copy
        del held[:-1]
        if k % 7 == 0:
            jitted = genesis.jit(step)  # is recorded anew
        for work, most in ((partial(jitted, one), short), (partial(plain, k), long)):
            # A call that finds more remembered than the counted one may end before its interrupt.
            with interrupted_at(rng.randrange(1, most + 1)):
                try:
                    work()
                except KeyboardInterrupt:
                    interrupts += 1
        for values, least in ((a, before), (b, before), (c, other)):
            found = values.numpy()
            assert (found == found[0]).all() and found[0] in (least, least + 1)
        assert a.numpy()[0] == b.numpy()[0]
    assert interrupts > 60
    before = a.numpy()[0]
    assert not jitted(one).numpy().any()
    assert a.numpy()[0] == before + 1 == b.numpy()[0]
    assert (nd.ones((3, 4)) @ nd.ones((4, 5))).tolist() == [[4.0] * 5] * 3
