"""Scans: against loops written out in Python, PyTorch, and both oracles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import genesis
from genesis import ndarray as nd
from genesis.backends import get
from genesis.backends.base import Cursor, Launch, Repeat, Turn, launches
from genesis.backends.cpu.runtime import memory, runtime
from genesis.compiler import compile as compiler
from genesis.compiler import compile_graph, using
from genesis.compiler.compile import program_key
from genesis.compiler.lower.scan import LoweredLoop, Steps
from genesis.compiler.options import current
from genesis.compiler.pipeline import _lower, _simplified
from genesis.compiler.program.digest import identity
from genesis.compiler.schedule import schedule
from genesis.content_store import ContentStore
from genesis.ir import ops
from genesis.ir.dtype import float32, int64
from genesis.ir.evaluate import evaluate
from genesis.ir.interpret import interpret
from genesis.ir.kernel import Role
from genesis.ir.node import Node, Recurrence, elementwise, node
from genesis.ir.size import Size
from genesis.ir.size import evaluate as size_value
from genesis.ndarray.core import realisation
from genesis.ndarray.core.value import CaptureError
from tests.backends.test_cpu_runtime import launch
from tests.graphs import leaf, matmul, reduce, reshape
from tests.oracle_program import OracleProgram
from tests.oracles import CHIP, _extent, compiled
from tests.oracles import memory as contents

Arrays = list[np.ndarray]


@pytest.fixture(params=["oracle", "compiler", "jit"])
def run(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Calls a function of arrays: evaluated node by node, compiled, or under jit."""
    if request.param == "oracle":
        monkeypatch.setattr(realisation, "_programs", realisation.Programs())
        monkeypatch.setattr("genesis.compiler.compile_graph", OracleProgram)
    if request.param == "jit":
        yield lambda f, *args: genesis.jit(f)(*args)
    else:
        yield lambda f, *args: f(*args)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def unrolled(body: Callable[..., Any], carry: Any, xs: Any, reverse: bool = False) -> Any:
    """The same with a Python loop; one carry, arrays for x and y."""
    ys = []
    order = range(len(xs))
    for t in reversed(order) if reverse else order:
        carry, y = body(carry, xs[t])
        ys.append(y)
    return carry, nd.stack(ys[::-1] if reverse else ys)


def close(x: Any, y: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(x), np.asarray(y), tolerance, tolerance)


# ---- meaning


@pytest.mark.parametrize("length", [1, 2, 3, 256])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative_sum_and_maximum(
    run: Callable[..., Any], rng: np.random.Generator, length: int, reverse: bool
) -> None:
    x = normal(rng, length, 5)

    def both(x: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            total, most = c[0] + x, nd.maximum(c[1], x)
            return (total, most), {"sum": total, "max": most}

        return nd.scan(body, (nd.zeros(5), nd.full(5, -np.inf)), x, reverse=reverse)

    (total, most), ys = run(both, nd.array(x))
    given = x[::-1] if reverse else x
    sums, peaks = np.cumsum(given, 0), np.maximum.accumulate(given, 0)
    close(total, sums[-1], 1e-4)
    close(most, peaks[-1])
    close(ys["sum"], sums[::-1] if reverse else sums, 1e-4)
    close(ys["max"], peaks[::-1] if reverse else peaks)


def test_no_steps(run: Callable[..., Any]) -> None:
    def f(c: Any, x: Any) -> Any:
        return nd.scan(lambda c, x: (c + x.sum(), (x * 2, c > 0)), c, x)

    c, (ys, flags) = run(f, nd.array(3.0), nd.zeros((0, 4)))
    assert c.item() == 3 and ys.shape == (0, 4) and flags.shape == (0,)
    assert ys.numpy().shape == (0, 4) and flags.numpy().dtype == bool
    with pytest.raises(ValueError, match="the body turns carry"):
        nd.scan(lambda c, x: (x, None), nd.array(3.0), nd.zeros((0, 4)))


def test_the_carry_given_is_not_changed(run: Callable[..., Any]) -> None:
    start = nd.zeros(3).realize()

    def body(c: Any, x: Any) -> Any:
        c[1:] += x  # a carry is the body's own
        return c, None

    end, nothing = run(lambda s: nd.scan(body, s, nd.arange(4.0)), start)
    assert nothing is None
    assert end.tolist() == [0, 6, 6] and start.tolist() == [0, 0, 0]


def test_length_without_xs(run: Callable[..., Any]) -> None:
    powers = run(lambda x: nd.scan(lambda c, _: (c * 2.5, c), x, length=6)[1], nd.array(1.0))
    close(powers, 2.5 ** np.arange(6))


def test_scans_in_scans(run: Callable[..., Any], rng: np.random.Generator) -> None:
    """A running product of matrices' column sums: every level has its own carry, xs and ys."""
    x, w = normal(rng, 3, 4, 5), normal(rng, 5)

    def f(x: Any, w: Any) -> Any:
        def outer(total: Any, row: Any) -> Any:
            scaled = total * 0.5

            def inner(c: Any, element: Any) -> Any:
                c = c * w + element + scaled
                return c, c.sum()

            last, sums = nd.scan(inner, total, row, reverse=True)
            return last, (sums, last)

        return nd.scan(outer, nd.zeros(5), x)

    total, (sums, lasts) = run(f, nd.array(x), nd.array(w))
    carry, want = np.zeros(5), np.zeros((3, 4))
    for i in range(3):
        scaled = carry * 0.5
        for j in reversed(range(4)):
            carry = carry * w + x[i, j] + scaled
            want[i, j] = carry.sum()
        close(lasts.numpy()[i], carry)
    close(total, carry)
    close(sums, want, 1e-4)


class Pair(NamedTuple):
    first: Any
    second: Any


def test_trees(run: Callable[..., Any], rng: np.random.Generator) -> None:
    x = normal(rng, 4, 2)

    def f(x: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            assert x["none"] is None and c["n"][1] is None
            n, p = c["n"][0], c["p"]
            return {"n": [n + 1, None], "p": Pair(p.second, p.first + x["v"])}, [n, (x["v"],)]

        start = {"n": [np.int64(3), None], "p": Pair(nd.zeros(2), nd.ones(2))}
        return nd.scan(body, start, {"v": x, "none": None})

    carry, (numbers, (same,)) = run(f, nd.array(x))
    assert carry["n"][0].item() == 7 and carry["n"][1] is None
    close(carry["p"].first, x[0] + x[2])
    close(carry["p"].second, 1 + x[1] + x[3])
    assert numbers.tolist() == [3, 4, 5, 6] and numbers.dtype is int64
    close(same, x)


def test_what_stays_the_same_is_computed_once(rng: np.random.Generator) -> None:
    x, w = nd.array(normal(rng, 6, 8)), nd.array(normal(rng, 8, 8))

    def f(x: Any, w: Any) -> Any:
        return nd.scan(lambda c, x: ((c + x) @ nd.exp(w).T, None), x[0] * 0, x)[0]

    report = genesis.explain(f, x, w)
    (exp,) = [k for k in report.kernels if "exp" in k.operations]
    assert not exp.in_loop
    carry = np.zeros(8)
    for row in x.numpy():
        carry = (carry + row) @ np.exp(w.numpy()).T
    close(genesis.jit(f)(x, w), carry, 1e-4)


def test_a_carry_that_never_changes(run: Callable[..., Any]) -> None:
    a, b = nd.array([2.0, 3.0]), nd.array(0.0)
    (same, total), _ = run(
        lambda a, b: nd.scan(
            lambda c, x: ((c[0], c[1] + c[0].sum() * x), None), (a, b), nd.arange(4.0)
        ),
        a,
        b,
    )
    assert same.tolist() == [2, 3] and total.item() == 30


def test_carries_that_change_places(run: Callable[..., Any]) -> None:
    for length in (1, 2, 3, 4):
        swap = run(
            lambda a, b, n=length: nd.scan(lambda c, _: ((c[1], c[0]), c[0]), (a, b), length=n),
            nd.array([1.0]),
            nd.array([2.0]),
        )
        (a, b), ys = swap
        assert (a.item(), b.item()) == ((2, 1) if length % 2 else (1, 2))
        assert ys.tolist() == [[1 + t % 2] for t in range(length)]


def test_constants_and_inputs_as_ys(run: Callable[..., Any]) -> None:
    outside = nd.array([5.0, 6.0])

    def body(c: Any, x: Any) -> Any:
        return c, (x, x, outside, 7.5, nd.arange(2))

    _, ys = run(lambda x: nd.scan(body, None, x), nd.array([1.0, 2.0, 3.0]))
    assert ys[0].tolist() == ys[1].tolist() == [1, 2, 3]
    assert ys[2].tolist() == [[5, 6]] * 3 and ys[3].tolist() == [7.5] * 3
    assert ys[4].tolist() == [[0, 1]] * 3


def repeated_ys(x: Any) -> Any:
    def body(c: Any, x: Any) -> Any:
        after = nd.exp(x) + c
        double = after * 2
        return after, (double, x, double, x)

    return nd.scan(body, nd.zeros(3), x)[1]


def test_ys_that_are_the_same_are_stacked_once(rng: np.random.Generator) -> None:
    report = genesis.explain(repeated_ys, nd.array(normal(rng, 5, 3)))
    (step,) = [k for k in report.kernels if k.in_loop]
    assert str(step.plain).count(": out ") == 2  # the carry and its double


def test_ys_that_are_the_same_are_arrays_of_their_own(
    run: Callable[..., Any], rng: np.random.Generator
) -> None:
    x = normal(rng, 5, 3)
    given = nd.array(x)
    doubled, same, again, too = run(repeated_ys, given)
    for changed, value in ((given, 7.0), (doubled, 8.0), (same, 9.0)):
        changed[0] = value
    close(again, 2 * np.exp(x).cumsum(0), 1e-5)
    close(too, x)
    close(same[1:], x[1:])
    assert doubled[0].tolist() == [8, 8, 8] and given[0].tolist() == [7, 7, 7]


def test_views_as_inputs(run: Callable[..., Any], rng: np.random.Generator) -> None:
    """Transposed, strided and backwards arrays are read as they lie."""
    x = normal(rng, 6, 7, 4)

    def f(x: Any, c: Any) -> Any:
        xs = nd.permute(x, (1, 0, 2))[::-2, 1:]
        return nd.scan(lambda c, x: (c + x, c * 2), c.T, xs)

    c, ys = run(f, nd.array(x), nd.array(x[0, :4, :1] @ np.ones((1, 5), np.float32)))
    start = (x[0, :4, :1] @ np.ones((1, 5), np.float32)).T
    total, want = start.copy(), []
    for element in np.transpose(x, (1, 0, 2))[::-2, 1:]:
        want.append(total * 2)
        total = total + element
    close(c, total)
    close(ys, np.array(want))


def test_one_scan_feeds_another(run: Callable[..., Any], rng: np.random.Generator) -> None:
    x = normal(rng, 9, 3)

    def f(x: Any) -> Any:
        c, ys = nd.scan(lambda c, x: (c + x, c + x), nd.zeros(3), x)
        return nd.scan(lambda c, y: (nd.maximum(c, y), c - y), c, nd.exp(-ys * ys), reverse=True)

    c, ys = run(f, nd.array(x))
    sums = np.cumsum(x, 0)
    elements, carry, want = np.exp(-sums * sums), sums[-1], np.zeros((9, 3))
    for t in reversed(range(9)):
        want[t] = carry - elements[t]
        carry = np.maximum(carry, elements[t])
    close(c, carry)
    close(ys, want)


def test_gather_reductions_and_softmax_in_a_body(
    run: Callable[..., Any], rng: np.random.Generator
) -> None:
    table, words = normal(rng, 10, 4), rng.integers(0, 10, (6, 3))

    def f(table: Any, words: Any) -> Any:
        def body(c: Any, w: Any) -> Any:
            c = nd.softmax(c + nd.take(table, w, axis=0), axis=-1)
            return c, c.max(axis=-1)

        return nd.scan(body, nd.zeros((3, 4)), words)

    c, ys = run(f, nd.array(table), nd.array(words))
    carry = np.zeros((3, 4))
    for t in range(6):
        z = np.exp(carry + table[words[t]])
        carry = z / z.sum(-1, keepdims=True)
        close(ys.numpy()[t], carry.max(-1))
    close(c, carry)


# ---- laziness


def test_results_are_computed_together() -> None:
    x = nd.arange(5.0).realize()
    (a, b), ys = nd.scan(
        lambda c, x: ((c[0] + x, c[1] * 2), c[0]), (nd.array(0.0), nd.array(1.0)), x
    )
    before = nd.statistics().runs
    assert b.item() == 32
    assert nd.statistics().runs == before + 1
    assert a.item() == 10 and ys.tolist() == [0, 0, 1, 3, 6]
    assert nd.statistics().runs == before + 1


def test_results_nobody_holds_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = nd.array(np.ones((4, 3), np.float32))
    monkeypatch.setattr(realisation, "_programs", realisation.Programs())
    total = nd.scan(lambda c, x: (c + x, nd.exp(x)), nd.zeros(3), x)[0]
    assert total.tolist() == [4, 4, 4]
    (entry,) = realisation._programs.values()
    assert not any("exp" in step.built.kernel.name for step in entry.program.steps)


def test_eager(rng: np.random.Generator) -> None:
    x = normal(rng, 4)
    with nd.eager():
        c, ys = nd.scan(lambda c, x: (c + x, c + x), nd.array(0.0), nd.array(x))
        assert c.value.is_realised and ys.value.is_realised
    close(ys, np.cumsum(x))


def test_a_long_history_before_and_after() -> None:
    x = nd.zeros(3)
    for _ in range(3000):
        x = x + 1
    c, _ = nd.scan(lambda c, _: (c + 1, None), x, length=5)
    for _ in range(3000):
        c = c + 1
    assert c.tolist() == [6005] * 3


# ---- errors


def test_errors_say_which_leaf() -> None:
    x = nd.zeros((3, 2))
    with pytest.raises(
        ValueError, match=r"carry\['h'\]\[0\] of float32 \(2,\) into float32 \(3,\)"
    ):
        nd.scan(lambda c, x: ({"h": (nd.zeros(3), c["h"][1])}, x), {"h": (nd.zeros(2), x)}, x)
    with pytest.raises(ValueError, match=r"carry.second of float32 \(\) into float64"):
        nd.scan(
            lambda c, x: (Pair(c.first, c.second.astype("float64")), x), Pair(x, nd.array(1.0)), x
        )
    with pytest.raises(ValueError, match="structure"):
        nd.scan(lambda c, x: ((c, c), x), nd.zeros(2), x)
    with pytest.raises(TypeError, match=r"returns \(carry, y\), not NDArray"):
        nd.scan(lambda c, x: c, nd.zeros(2), x)
    with pytest.raises(ValueError, match=r"xs\[1\] has 4 elements where there should be 3"):
        nd.scan(lambda c, x: (c, None), nd.zeros(2), (x, nd.zeros(4)))
    with pytest.raises(ValueError, match="no axis"):
        nd.scan(lambda c, x: (c, None), nd.zeros(2), nd.array(1.0))
    with pytest.raises(ValueError, match="give xs or a length"):
        nd.scan(lambda c, x: (c, None), nd.zeros(2))
    with pytest.raises(ValueError, match="less than 1"):
        nd.scan(lambda c, x: (c, None), nd.zeros(2), length=-1)


def test_what_the_body_must_not_do() -> None:
    outside, leaked = nd.zeros(2), []

    def writes(c: Any, x: Any) -> Any:
        outside[0] = x
        return c, None

    with pytest.raises(CaptureError, match="from outside; make it part of the carry"):
        nd.scan(writes, nd.zeros(2), nd.arange(3.0))
    assert outside.tolist() == [0, 0]
    with pytest.raises(CaptureError, match="contents of an array"):
        nd.scan(lambda c, x: (c if x > 0 else -c, None), nd.zeros(2), nd.arange(3.0))

    def leaks(c: Any, x: Any) -> Any:
        leaked.append(c + x)
        return c, None

    nd.scan(leaks, nd.zeros(2), nd.arange(3.0))
    with pytest.raises(CaptureError, match="inside the body of a scan"):
        leaked[0].numpy()
    assert (nd.zeros(2) + 1).tolist() == [1, 1]  # nothing stays behind


# ---- random numbers


def test_every_repetition_draws_anew(run: Callable[..., Any]) -> None:
    g, h = nd.random.Generator(7), nd.random.Generator(7)

    def f(x: Any) -> Any:
        return nd.scan(lambda c, x: (c + x, nd.random.normal(3, generator=g)), x, nd.zeros(5))[1]

    for _ in range(2):  # running it again draws anew
        want = np.stack([nd.random.normal(3, generator=h).numpy() for _ in range(5)])
        close(run(f, nd.array(0.0)), want, 1e-6)
        close(nd.random.uniform(2, generator=g), nd.random.uniform(2, generator=h).numpy())
    assert g.state.tolist() == h.state.tolist()


def test_nested_draws_and_the_default_generator() -> None:
    def f() -> Any:
        inner = lambda c, _: (c + nd.random.uniform(()), nd.random.uniform(()))  # noqa: E731
        return nd.scan(lambda c, _: nd.scan(inner, c, length=3), nd.array(0.0), length=2)

    nd.random.manual_seed(3)
    total, draws = f()
    nd.random.manual_seed(3)
    words = [nd.random.uniform(()).item() for _ in range(12)]
    close(total, sum(words[::2]))
    close(draws, np.array(words[1::2]).reshape(2, 3))


# ---- recurrent networks


def weights(rng: np.random.Generator, gates: int, width: int, hidden: int) -> Arrays:
    return [
        normal(rng, gates * hidden, width) * 0.3,
        normal(rng, gates * hidden, hidden) * 0.3,
        normal(rng, gates * hidden),
        normal(rng, gates * hidden),
    ]


def torch_layer(layer: Any, given: Arrays) -> Any:
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), given, strict=True):
            parameter.copy_(torch.from_numpy(value))
    return layer


def rnn(x: Any, h: Any, wx: Any, wh: Any, bx: Any, bh: Any) -> Any:
    def body(h: Any, x: Any) -> Any:
        h = nd.tanh(x @ wx.T + bx + h @ wh.T + bh)
        return h, h

    return nd.scan(body, h, x)


def gru(x: Any, h: Any, wx: Any, wh: Any, bx: Any, bh: Any) -> Any:
    def body(h: Any, gates: Any) -> Any:
        width = h.shape[1]
        r, z, n = nd.split(gates, width, axis=-1)
        hr, hz, hn = nd.split(h @ wh.T + bh, width, axis=-1)
        r, z = nd.sigmoid(r + hr), nd.sigmoid(z + hz)
        h = (1 - z) * nd.tanh(n + r * hn) + z * h
        return h, h

    return nd.scan(body, h, x @ wx.T + bx)


def lstm_gates(gates: Any, c: Any) -> Any:
    i, f, g, o = nd.split(gates, c.shape[1], axis=-1)
    return nd.sigmoid(i), nd.sigmoid(f), nd.tanh(g), nd.sigmoid(o)


def lstm(x: Any, h: Any, wx: Any, wh: Any, bx: Any, bh: Any) -> Any:
    """The last state, and for every step h, and the state before it."""

    def body(state: Any, part: Any) -> Any:
        h, c = state
        i, f, g, o = lstm_gates(part + h @ wh.T + bh, c)
        after = f * c + i * g
        out = o * nd.tanh(after)
        return (out, after), (out, h, c)

    return nd.scan(body, (h, h * 0), x @ wx.T + bx)


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers_are_torchs(
    run: Callable[..., Any], rng: np.random.Generator, kind: str, gates: int, length: int
) -> None:
    batch, width, hidden = 3, 6, 8
    given = weights(rng, gates, width, hidden)
    x, h = normal(rng, length, batch, width), np.zeros((batch, hidden), np.float32)
    layer = torch_layer(getattr(torch.nn, kind)(width, hidden), given)
    want, last = layer(torch.from_numpy(x))
    function = {"RNN": rnn, "GRU": gru, "LSTM": lstm}[kind]
    state, ys = run(function, *map(nd.array, (x, h, *given)))
    if kind == "LSTM":
        close(ys[0], want.detach())
        close(state[0], last[0][0].detach())
        close(state[1], last[1][0].detach())
    else:
        close(ys, want.detach())
        close(state, last[0].detach())


def lstm_gradient(dys: Any, x: Any, h: Any, wx: Any, wh: Any, bx: Any, bh: Any) -> Any:
    """The gradient of ``(dys * ys).sum()``: a scan backwards over the states that were saved."""
    _, (_, hs, cs) = lstm(x, h, wx, wh, bx, bh)

    def body(gradient: Any, saved: Any) -> Any:
        dh, dc, dwh = gradient
        dy, part, h, c = saved
        i, f, g, o = lstm_gates(part + h @ wh.T + bh, c)
        tanh = nd.tanh(f * c + i * g)
        dh = dh + dy
        dc = dc + dh * o * (1 - tanh * tanh)
        gates = (
            dc * g * i * (1 - i),
            dc * c * f * (1 - f),
            dc * i * (1 - g * g),
            dh * tanh * o * (1 - o),
        )
        dgates = nd.concat(gates, axis=-1)
        return (dgates @ wh, dc * f, dwh + dgates.T @ h), dgates

    start = (h * 0, h * 0, wh * 0)
    parts = x @ wx.T + bx
    (dh, _, dwh), dgates = nd.scan(body, start, (dys, parts, hs, cs), reverse=True)
    dwx = nd.einsum("tbg,tbi->gi", dgates, x)
    return dgates @ wx, dh, dwx, dwh, dgates.sum(axis=(0, 1))


@pytest.mark.parametrize("length", [1, 2, 9])
def test_lstm_gradient_by_a_reverse_scan(
    run: Callable[..., Any], rng: np.random.Generator, length: int
) -> None:
    batch, width, hidden = 3, 6, 8
    given = weights(rng, 4, width, hidden)
    x, dys = normal(rng, length, batch, width), normal(rng, length, batch, hidden)
    h = np.zeros((batch, hidden), np.float32)
    layer = torch_layer(torch.nn.LSTM(width, hidden), given)
    tx = torch.from_numpy(x).requires_grad_()
    th = torch.zeros(1, batch, hidden).requires_grad_()
    ys, _ = layer(tx, (th, torch.zeros(1, batch, hidden)))
    (ys * torch.from_numpy(dys)).sum().backward()
    dx, dh, dwx, dwh, db = run(lstm_gradient, *map(nd.array, (dys, x, h, *given)))
    close(dx, tx.grad)
    close(dh, th.grad[0])
    close(dwx, layer.weight_ih_l0.grad)
    close(dwh, layer.weight_hh_l0.grad)
    close(db, layer.bias_ih_l0.grad)


def test_lstm_against_an_unrolled_loop(rng: np.random.Generator) -> None:
    given = weights(rng, 4, 6, 8)
    arrays = [nd.array(a) for a in (normal(rng, 5, 2, 6), normal(rng, 2, 8), *given)]
    x, h, wx, wh, bx, bh = arrays
    (_, c), (ys, *_) = lstm(*arrays)
    state = h, h * 0
    for t in range(5):
        i, f, g, o = lstm_gates(x[t] @ wx.T + bx + state[0] @ wh.T + bh, state[1])
        after = f * state[1] + i * g
        state = o * nd.tanh(after), after
        close(ys[t], state[0].numpy())
    close(c, state[1].numpy())


# ---- programs


def test_lengths_and_batches_become_symbols(rng: np.random.Generator) -> None:
    given = weights(rng, 4, 6, 8)
    layer = torch_layer(torch.nn.LSTM(6, 8), given)
    function = genesis.jit(lstm)
    backward = genesis.jit(lstm_gradient)
    for length, batch in ((5, 2), (7, 3), (11, 4), (1, 1), (256, 2)):
        x, h = normal(rng, length, batch, 6), np.zeros((batch, 8), np.float32)
        want, (_, c) = layer(torch.from_numpy(x))
        (_, state), (ys, *_) = function(*map(nd.array, (x, h, *given)))
        close(ys, want.detach())
        close(state, c[0].detach())
        dys = np.ones_like(normal(rng, length, batch, 8))
        tx = torch.from_numpy(x).requires_grad_()
        layer(tx)[0].sum().backward()
        close(backward(*map(nd.array, (dys, x, h, *given)))[0], tx.grad, 1e-4)
    assert function.captures == 2 and backward.captures == 2
    recording, sizes = function.recording(*map(nd.array, (x, h, *given)))
    assert recording.program.symbols == ("n0", "n1") and set(sizes.values()) == {256, 2}


def test_compiling_does_not_depend_on_the_length(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENESIS_CACHE", "off")
    given = [nd.array(a) for a in weights(rng, 4, 24, 40)]
    reports = []
    for length in (2, 256, 100_000):
        x, h = nd.zeros((length, 1, 24)), nd.zeros((1, 40))
        reports.append(genesis.explain(lstm, x.realize(), h.realize(), *given))
    assert len({len(r.kernels) for r in reports}) == 1
    steps = [[k for k in r.kernels if k.in_loop] for r in reports]
    assert [s[0].repeats for s in steps] == [2, 256, 100_000]
    assert [[k.flops for k in s] for s in steps] == [[k.flops for k in steps[0]]] * 3
    assert reports[2].flops - reports[1].flops == pytest.approx(
        (100_000 - 256) * (reports[1].flops - reports[0].flops) / 254
    )
    assert "in a loop: runs 256 times" in str(reports[1]) and reports[1].proven


def test_temporaries_do_not_grow_with_the_length() -> None:
    def f(x: Any) -> Any:
        return nd.scan(lambda c, x: (nd.softmax(c @ c.T @ x), x.sum()), nd.ones((32, 32)), x)

    block = [genesis.explain(f, nd.ones((n, 32, 32)).realize()).temporary_bytes for n in (2, 200)]
    assert block[0] == block[1] <= 8 * 32 * 32 * 4

    def stacks(x: Any) -> Any:
        return nd.scan(lambda c, x: (c, nd.exp(x)), None, x)[1].sum()

    block = [genesis.explain(stacks, nd.ones((n, 64)).realize()).temporary_bytes for n in (2, 200)]
    assert block[1] - block[0] == 198 * 64 * 4


def test_memory_does_not_grow_from_run_to_run() -> None:
    step = genesis.jit(lambda x: nd.scan(lambda c, x: (nd.tanh(c @ c + x), None), x[0], x)[0])
    x = nd.ones((50, 64, 64)).realize()
    for _ in range(3):
        step(x).numpy()
    before = memory.stats().live_bytes
    for _ in range(10):
        step(x).numpy()
    assert memory.stats().live_bytes <= before


def test_packing_is_done_once_before_the_loop(rng: np.random.Generator) -> None:
    """A matrix that stays the same is packed once; one that changes, every time."""
    x, w = nd.array(normal(rng, 5, 64, 256) * 0.05), nd.array(normal(rng, 256, 256) * 0.05)

    def same(x: Any, w: Any) -> Any:
        return nd.scan(lambda c, x: (c @ w + x, None), x[0], x)[0]

    def turned(x: Any, w: Any) -> Any:
        return nd.scan(lambda c, x: (c @ w.T + x, None), x[0], x)[0]

    def changing(x: Any, w: Any) -> Any:
        return nd.scan(lambda c, x: ((c[0] @ c[1] + x, c[1] * 0.9), None), (x[0], w), x)[0][0]

    def nested(x: Any, w: Any) -> Any:
        def outer(c: Any, x: Any) -> Any:
            scaled = w * nd.tanh(c.mean())
            return nd.scan(lambda d, _: (d @ scaled + x @ w, None), c, length=3)[0], None

        return nd.scan(outer, x[0], x)[0]

    cases = ((same, [0]), (turned, [0]), (changing, None), (nested, [0, 1]))
    for function, ahead in cases:
        recording, _ = genesis.jit(function).recording(x, w)
        records = recording.program.records
        assert ahead_of_loops(records) == (ahead or [])
    carry, weight, elements = x.numpy()[0].astype(float), w.numpy().astype(float), x.numpy()
    for element in elements:
        carry = carry @ weight + element
    close(genesis.jit(same)(x, w), carry, 1e-4)
    close(genesis.jit(turned)(x, w.T), carry, 1e-4)
    carry = elements[0].astype(float)
    for element in elements:
        carry, weight = carry @ weight + element, weight * 0.9
    close(genesis.jit(changing)(x, w), carry, 1e-4)
    carry, weight = elements[0].astype(float), w.numpy().astype(float)
    for element in elements:
        scaled = weight * np.tanh(carry.mean())
        for _ in range(3):
            carry = carry @ scaled + element @ weight
    close(genesis.jit(nested)(x, w), carry, 1e-3)


def ahead_of_loops(records: Sequence[Launch | Repeat], depth: int = 0) -> list[int]:
    """The depth of every launch of only the first phases of a kernel."""
    found = []
    for record in records:
        if isinstance(record, Repeat):
            found += ahead_of_loops(record.body, depth + 1)
        elif record.phases is not None and record.phases[0] == 0:
            found.append(depth)
    return sorted(found)


def test_results_do_not_depend_on_threads(rng: np.random.Generator) -> None:
    x, w = nd.array(normal(rng, 20, 64, 128) * 0.1), nd.array(normal(rng, 128, 128) * 0.1)
    step = genesis.jit(lambda x, w: nd.scan(lambda c, x: (nd.tanh(c @ w + x), c), x[0], x))
    before = runtime.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 7):
            runtime.set_num_threads(threads)
            c, ys = step(x, w)
            results.append((c.numpy().tobytes(), ys.numpy().tobytes()))
    finally:
        runtime.set_num_threads(before)
    assert len(set(results)) == 1


def test_one_program_in_several_threads(rng: np.random.Generator) -> None:
    """Runs overlap: each moves the pointers of a frame of its own."""
    step = genesis.jit(lambda x, w: nd.scan(lambda c, x: (nd.tanh(c @ w + x), c), x[0], x))
    w = nd.array(normal(rng, 32, 32) * 0.2)
    inputs = [nd.array(normal(rng, 100, 16, 32)) for _ in range(4)]
    want = [[a.numpy().copy() for a in step(x, w)] for x in inputs]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(20):
            got = step(inputs[k], w)
            wrong.extend(k for a, b in zip(got, want[k], strict=True) if (a.numpy() != b).any())

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize("off", ["simplify", "fuse", "schedule", "donate"])
def test_every_stage_can_be_switched_off(rng: np.random.Generator, off: str) -> None:
    given = [nd.array(a) for a in (normal(rng, 4, 2, 6), normal(rng, 2, 8), *weights(rng, 4, 6, 8))]
    (_, want), _ = genesis.jit(lstm)(*given)
    with using(**{off: False}):
        (_, got), _ = genesis.jit(lstm)(*given)
        close(got, want.numpy())


# ---- graphs: the evaluator, the interpreter and the compiler agree


def parameter(position: int, *shape: Any) -> Node:
    return node(ops.PARAMETER, (), position, float32, shape)


def repeated(loop: Recurrence, *inputs: Node) -> list[Node]:
    """The results of a SCAN."""
    scan = node(ops.SCAN, inputs, loop, float32)
    return [node(ops.ITEM, (scan,), k, *loop.result(k)) for k in range(len(loop.body))]


def graphs() -> dict[str, tuple[list[Node], dict[str, int]]]:
    n, m = Size.symbol("n", 1, 50), Size.symbol("m", 1, 50)
    c, x, w = parameter(0, m, 4), parameter(1, m, 4), parameter(2, 4, 4)
    step = elementwise(ops.ADD, elementwise(ops.TANH, matmul(c, w)), x)
    rows = reduce(ops.AMAX, step, 1)
    loop = Recurrence((step, rows, x), 1, 1, n)
    given = leaf(0, m, 4), leaf(1, n, m, 4), leaf(2, 4, 4)
    last, tops, same = repeated(loop, *given)
    back = Recurrence((step, rows, x), 1, 1, n, True)
    outer_c, outer_x = parameter(0, m, 4), parameter(1, 4, 4)
    inner = repeated(loop, outer_c, parameter(2, n, m, 4), outer_x)
    nest = Recurrence((inner[0], inner[1]), 1, 1, m)
    stacked = leaf(2, m, 4, 4)
    return {
        "forward": ([elementwise(ops.EXP, last), tops, reduce(ops.SUM, same, 0)], {"n": 5, "m": 3}),
        "last only": ([last], {"n": 1, "m": 2}),
        "twice the same": ([last, last, tops, tops], {"n": 4, "m": 2}),
        "backward": (repeated(back, *given), {"n": 6, "m": 1}),
        "two in a row": (repeated(back, last, same, given[2]), {"n": 3, "m": 3}),
        "nested": (repeated(nest, given[0], stacked, given[1]), {"n": 3, "m": 4}),
        "copies": (repeated(loop, reshape(given[0], m, 4), *given[1:]), {"n": 2, "m": 2}),
    }


def inputs_for(name: str, sizes: Mapping[str, int], rng: np.random.Generator) -> Arrays:
    n, m = sizes["n"], sizes["m"]
    third = m * 16 if name == "nested" else 16
    return [normal(rng, m * 4), normal(rng, n * m * 4), normal(rng, third) * 0.5]


@pytest.mark.parametrize("name", graphs())
def test_oracles_agree(name: str, rng: np.random.Generator) -> None:
    roots, sizes = graphs()[name]
    flat = inputs_for(name, sizes, rng)
    want = evaluate(roots, flat, [], sizes)
    program = compile_graph(roots)
    assert program.claims > 0 and not program.unproven
    for got in (
        compiled(roots, flat, [], sizes, program=program),
        interpreted(roots, flat, sizes, scheduled=False),
        interpreted(roots, flat, sizes, scheduled=True),
    ):
        for a, b in zip(got, want, strict=True):
            close(a, b)


def interpreted(
    roots: list[Node], flat: Arrays, sizes: Mapping[str, int], scheduled: bool
) -> Arrays:
    """The roots' values, with every kernel run by the interpreter and every loop by Python."""
    slots = count(len(flat))
    simple = _simplified(roots, current(), {})
    steps, _ = _lower(simple, frozenset(), get("cpu"), current(), lambda: next(slots))
    values: dict[Node, np.ndarray] = {}
    _interpret(steps, values, dict(enumerate(flat)), sizes, scheduled)
    return [values[n] for n in simple]


def _interpret(
    steps: Steps,
    values: dict[Node, np.ndarray],
    buffers: Mapping[int, np.ndarray],
    sizes: Mapping[str, int],
    scheduled: bool,
) -> None:
    def value(n: Node) -> np.ndarray:
        return contents(buffers[n.attr.slot], n, sizes) if n.op is ops.BUFFER else values[n]

    for step in steps:
        if isinstance(step, LoweredLoop):
            body, loop = step.body, step.body.recurrence
            given = [value(n) for n in body.scan.inputs]
            length = size_value(loop.length, sizes)
            stacks: dict[Node, list[Any]] = {item: [None] * length for item in body.ys}
            for t in reversed(range(length)) if loop.reverse else range(length):
                inside: dict[Node, np.ndarray] = {}
                leaves = dict(buffers)
                for k, (leaf_, array) in enumerate(zip(body.parameters, given, strict=True)):
                    if loop.carries <= k < loop.carries + loop.xs:
                        array = array[t]
                    if leaf_ is not body.scan.inputs[k]:
                        assert leaf_.attr.offset == 0
                        leaves[leaf_.attr.slot] = array.reshape(-1)
                _interpret(step.steps, inside, leaves, sizes, scheduled)
                results = [
                    inside[n].reshape([size_value(e, sizes) for e in n.shape]) for n in body.roots
                ]
                given[: loop.carries] = results[: loop.carries]
                for item, element in zip(body.ys, results[loop.carries :], strict=True):
                    stacks[item][t] = element
            for item, elements in stacks.items():
                values[item] = np.stack(elements)
            for k, item in body.items.items():
                if k < loop.carries:
                    values[item] = given[k]
            continue
        kernel = schedule(step.kernel, CHIP) if scheduled else step.kernel
        arguments: dict[str, Any] = {s.name: sizes[s.name] for s in kernel.symbols}
        for n, before, after in zip(
            step.arguments, step.kernel.buffers, kernel.buffers, strict=False
        ):
            if before.role is Role.OUTPUT:
                values[n] = np.empty([size_value(e, sizes) for e in n.shape], n.dtype.numpy)
            shape = tuple(_extent(e, sizes) for e in after.shape)
            arguments[before.name] = value(n).reshape(shape)
        interpret(kernel, arguments)


def test_a_length_that_may_be_zero_is_refused() -> None:
    n = Size.symbol("n")
    c = parameter(0, 3)
    loop = Recurrence((elementwise(ops.NEG, c),), 1, 0, n)
    with pytest.raises(ValueError, match="which may be none"):
        compile_graph(repeated(loop, leaf(0, 3)))
    (got,) = evaluate(repeated(loop, leaf(0, 3)), [np.arange(3, dtype=np.float32)], [], {"n": 0})
    assert got.tolist() == [0, 1, 2]


# ---- what is kept on disk


def test_identity_sees_into_the_body() -> None:
    c, x = parameter(0, 3), parameter(1, 3)
    bodies = [elementwise(op, c, x) for op in (ops.ADD, ops.MUL)]
    given = leaf(0, 3), leaf(1, 7, 3)
    variants = [Recurrence((b,), 1, 1, 7, r) for b in bodies for r in (False, True)]
    variants.append(Recurrence((bodies[0], x), 1, 1, 7))
    known = {identity(repeated(loop, *given)[:1]) for loop in variants}
    assert len(known) == len(variants)
    assert identity(repeated(variants[0], *given)) in known


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GENESIS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("name", ["nested", "backward"])
def test_loops_survive_the_disk(
    folder: Path, rng: np.random.Generator, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots, sizes = graphs()[name]
    fresh = compile_graph(roots)
    monkeypatch.setattr(compiler, "_compile", None)
    kept = compile_graph(roots)
    for field in ("outputs", "temporaries", "symbols", "buffers", "extents", "pointers", "records"):
        mine, other = getattr(kept, field), getattr(fresh, field)
        if field == "records":
            mine, other = (_shape(r) for r in (mine, other))
        assert mine == other
    flat = inputs_for(name, sizes, rng)
    want = evaluate(roots, flat, [], sizes)
    for got, value in zip(compiled(roots, flat, [], sizes, program=kept), want, strict=True):
        close(got, value)


def _shape(records: Sequence[Launch | Repeat]) -> list[Any]:
    return [
        (r.binary.key, r.slots, r.phases)
        if isinstance(r, Launch)
        else (r.count, r.cursors, r.turns, _shape(r.body))
        for r in records
    ]


def test_hostile_loops_are_compiled_anew(folder: Path, rng: np.random.Generator) -> None:
    roots, sizes = graphs()["backward"]
    program = compile_graph(roots)
    key = program_key(roots, frozenset(), get("cpu"), current())
    store = ContentStore(folder)
    payload = store.get("program", key)
    assert payload is not None
    number = next(k for k, r in enumerate(program.records) if isinstance(r, Repeat))
    repeat = program.records[number]
    assert isinstance(repeat, Repeat) and repeat.cursors and repeat.turns

    def edited(change: Callable[[Any, Any], None]) -> bytes:
        content = json.loads(payload)
        change(content, content["launches"][number])
        return json.dumps(content).encode()

    def put(*path: Any) -> Callable[[Any, Any], None]:
        def change(content: Any, loop: Any) -> None:
            for step in path[:-2]:
                loop = loop[step]
            loop[path[-2]] = path[-1]

        return change

    changes: list[Callable[[Any, Any], None]] = [
        put(0, 0),  # a pointer as a count
        put(0, 1 << 40),
        put(0, None),
        put(1, 0, 0, 0),  # an input is moved
        put(1, 0, 0, -1),
        put(1, 0, 1, 1000),
        put(1, 0, 2, 0),
        put(1, 0, 3, 0),
        put(1, 0, []),
        put(2, 0, 0, 0),
        put(2, 0, 1, -1),
        put(2, 0, 2, 0),  # an input is written
        put(2, 0, 3, 1),
        put(3, 0, 0, 1000),
        put(3, 0, 1, 0, 1000),
        put(3, 0, 2, [0]),
        put(3, 0, 2, ["0", 1]),
        put(3, [[]]),
        put(3, 7),
        lambda content, loop: loop.append(0),
        lambda content, loop: loop[1].append(loop[1][0]),  # moved twice
        lambda content, loop: content.update(pointers=1 << 40),
        lambda content, loop: content.update(pointers=-1),
        lambda content, loop: content.update(extents=[]),
        lambda content, loop: content["extents"].append([[1, [["z", 1, 9, 1]]]]),
    ]
    for change in changes:
        store.put("program", key, edited(change))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(TypeError):
            patch.setattr(compiler, "_compile", None)
            compile_graph(roots)
    store.put("program", key, payload)
    flat = inputs_for("backward", sizes, rng)
    got = compiled(roots, flat, [], sizes, program=compile_graph(roots))
    for a, b in zip(got, evaluate(roots, flat, [], sizes), strict=True):
        close(a, b)


SCRIPT = """
import sys
import genesis
from genesis import ndarray as nd
if sys.argv[1] == "again":
    from genesis.compiler import compile
    compile._compile = None
run = genesis.jit(lambda x, w: nd.scan(lambda c, x: (nd.tanh(c @ w + x), c.sum()), x[0], x))
c, ys = run(nd.ones((30, 4, 8)), nd.full((8, 8), 0.01))
print(c.numpy().sum(), ys.numpy().sum())
"""


def test_another_process_finds_the_program(folder: Path) -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, how],
            env=os.environ | {"GENESIS_CACHE": str(folder), "PYTHONPATH": str(Path.cwd())},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for how in ("first", "again")
    ]
    assert outputs[0] == outputs[1] and outputs[0]


# ---- the native runner


@pytest.mark.parametrize("threads", [1, 3])
def test_records_that_repeat_records(threads: int) -> None:
    """out[i] += i * a2 + a3 for i below a1, through cursors, turns and nested repetition."""
    out = np.zeros((3, 4, 5), np.int64)
    pair = np.zeros((2, 5), np.int64)
    address, stride = out.ctypes.data, 5 * 8
    words = [address, 5, 0, 1, 3, 4, 4 * stride, stride, 0, 0]  # 8, 9: cursors; then the turn
    words += [pair[0].ctypes.data, pair[0].ctypes.data, pair[1].ctypes.data, 0]
    inner = runtime.NativeRepeat(5, [(9, 8, 2, 7)], [], [launch("affine", 9, 1, 3, 3)])
    written = launch("affine", 11, 1, 2, 3)
    outer = runtime.NativeRepeat(4, [(8, 0, 2, 6)], [(10, 12, 11, 12)], [inner, written])
    never = runtime.NativeRepeat(2, [(13, 0, 2, 2)], [], [inner, inner])
    frame = array("Q", words)
    program = runtime.pack_program([outer, never, launch("affine", 0, 1, 3, 2)], 0)
    runtime.get().run(program.pointer, frame.buffer_info()[0], threads)
    want = np.broadcast_to(np.arange(5) + 1, out.shape).copy()
    want[0, 0] += np.arange(5)
    np.testing.assert_array_equal(out, want)
    # Three repetitions wrote to places 0, 1, 0; the last one is current.
    np.testing.assert_array_equal(pair, [[2] * 5, [1] * 5])
    assert frame[10] == pair[0].ctypes.data and frame[11] == pair[1].ctypes.data


def test_loops_move_pointers(rng: np.random.Generator) -> None:
    """A graph's loop on the records themselves: counts, strides and turns are what they say."""
    c, x = parameter(0, 2), parameter(1, 2)
    loop = Recurrence((elementwise(ops.ADD, elementwise(ops.ADD, c, c), x), c), 1, 1, 4, True)
    roots = repeated(loop, leaf(0, 2), leaf(1, 4, 2))
    program = compile_graph(roots)
    (repeat,) = [r for r in program.records if isinstance(r, Repeat)]
    frame = program.frame([], {})
    assert frame[repeat.count] == 4 and len(repeat.turns) == 1 and len(repeat.cursors) == 2
    for cursor in repeat.cursors:
        assert isinstance(cursor, Cursor)
        assert frame[cursor.start] == 3 * 8 and frame[cursor.stride] == (1 << 64) - 8
    assert isinstance(repeat.turns[0], Turn) and program.launches == tuple(
        launches(program.records)
    )
    start, xs = normal(rng, 2), normal(rng, 4, 2)
    got = compiled(roots, [start, xs.reshape(-1)], program=program)
    carry = start
    for t in (3, 2, 1, 0):
        close(got[1][t], carry)
        carry = 2 * carry + xs[t]
    close(got[0], carry)


def test_python_has_no_part_in_the_steps_of_a_loop() -> None:
    step = genesis.jit(lambda x: nd.scan(lambda c, _: (c + 1, None), x, length=10_000)[0])
    x = nd.array(0.0).realize()
    assert step(x).item() == 10_000
    before = runtime.get().calls
    assert step(x).item() == 10_000
    assert runtime.get().calls == before + 1


def test_a_body_that_prints_under_jit(capsys: pytest.CaptureFixture[str]) -> None:
    """The body is called once, so every run of the recorded function prints once."""

    def body(carry: nd.NDArray, x: nd.NDArray) -> tuple[nd.NDArray, None]:
        print("called")
        return carry + x, None

    @genesis.jit
    def total(xs: nd.NDArray) -> nd.NDArray:
        last: nd.NDArray = nd.scan(body, nd.array(0.0), xs)[0]
        return last

    for runs in (1, 2, 3):
        assert total(nd.ones(runs)).item() == runs
        assert capsys.readouterr().out == "called\n"
