"""A jitted call does what the plain function does, or says in which line it cannot."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jit_corpus import Program, difference, plain
from jit_programs import PROGRAMS
from jit_training import OPTIMIZERS, ORDERS, is_refusable, loop

import genesis
from genesis import nn, optim
from genesis.ndarray.core.value import CaptureError

#: Every third program is run by `make test`, the others by `make test-slow`.
SHARES = [
    pytest.param(program, id=name, marks=[pytest.mark.slow] if k % 3 else [])
    for k, (name, program) in enumerate(PROGRAMS.items())
]


@pytest.mark.timeout(60)  # a recording that never holds must not be made for ever
@pytest.mark.parametrize("program", SHARES)
def test_jit_does_what_the_plain_function_does(program: Program) -> None:
    compare(program)


def compare(program: Program) -> None:
    """Run a program with jit and without."""
    genesis.manual_seed(0)
    want = program.run(plain)
    genesis.manual_seed(0)
    try:
        got = program.run(genesis.jit)
    except CaptureError as error:
        assert program.may_refuse, f"refused: {error}"
        assert re.search(r"\.py:\d+", str(error)), f"no line is named: {error}"
        return
    found = difference(want, got)
    assert found is None, found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_order_of_a_step_trains_alike_over_fifty_steps(optimizer: str) -> None:
    """In double precision, where rounding does not grow into a difference."""
    for text in ORDERS:
        run = loop(text, optimizer, 50, genesis.float64)
        compare(Program(f"{optimizer}: {text}", run, is_refusable(text)))


# ---- recordings are made when something is new, and else not

X = genesis.Tensor
#: Functions, and shapes in which 0 stands for the size that changes.
SIZES: dict[str, tuple[Callable[[X], Any], tuple[int, ...]]] = {
    "mean": (lambda x: x.mean(0), (0, 3)),
    "softmax": (lambda x: genesis.softmax(x, -1), (0, 3)),
    "reshape in pairs": (lambda x: x.reshape(-1, 2) * 2, (0, 4)),
    "vector in pairs": (lambda x: x.reshape(-1, 2) * 2, (0,)),
    "max pooling of any height": (lambda x: genesis.max_pool2d(x, 2), (2, 2, 0, 4)),
    "average pooling of any height": (lambda x: genesis.avg_pool2d(x, 2), (2, 2, 0, 4)),
    "interpolation of any height": (lambda x: genesis.interpolate(x, scale_factor=2), (2, 2, 0, 4)),
    "convolution of any length": (lambda x: genesis.conv1d(x, genesis.ones(2, 2, 3)), (2, 2, 0)),
    "top k of any length": (lambda x: genesis.topk(x, 2, dim=-1)[0], (2, 0)),
    "max pooling": (lambda x: genesis.max_pool2d(x, 2), (0, 2, 4, 4)),
    "average pooling": (lambda x: genesis.avg_pool2d(x, 2), (0, 2, 4, 4)),
    "adaptive pooling": (lambda x: genesis.adaptive_avg_pool2d(x, 1), (0, 2, 4, 4)),
    "interpolation": (lambda x: genesis.interpolate(x, scale_factor=2), (0, 2, 4, 4)),
    "convolution of sequences": (lambda x: genesis.conv1d(x, genesis.ones(2, 2, 3)), (0, 2, 8)),
    "convolution of images": (lambda x: genesis.conv2d(x, genesis.ones(2, 2, 3, 3)), (0, 2, 4, 4)),
    "top k": (lambda x: genesis.topk(x, 2, dim=-1)[0], (0, 4)),
    "Fourier transform": (lambda x: genesis.view_as_real(genesis.fft.rfft(x)), (0, 8)),
    "batch norm": (nn.BatchNorm1d(3), (0, 3)),
    "batch norm of images": (nn.BatchNorm2d(2), (0, 2, 4, 4)),
    "layer norm": (nn.LayerNorm(3), (0, 3)),
    "dropout": (nn.Dropout(0.5), (0, 3)),
    "linear": (nn.Linear(3, 2), (0, 3)),
    "cross entropy": (lambda x: genesis.cross_entropy(x, x.argmax(-1)), (0, 3)),
    "attention": (lambda x: genesis.scaled_dot_product_attention(x, x, x), (0, 2, 4)),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("wanted", [False, True], ids=["", "with gradients"])
def test_one_recording_serves_all_sizes(name: str, wanted: bool) -> None:
    function, shape = SIZES[name]
    jitted = genesis.jit(lambda x: function(x))
    for n in (4, 6, 8, 10, 12, 14):
        sizes = tuple(d or n for d in shape)
        content = np.linspace(-1, 2, int(np.prod(sizes)), dtype=np.float32).reshape(sizes)
        y = jitted(genesis.tensor(content, requires_grad=wanted))
        if wanted and y.requires_grad:
            y.sum().backward()
    assert jitted.captures <= 2


def test_frozen_and_thawed_again_is_nothing_new() -> None:
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @genesis.jit
    def step(x: X) -> X:
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for k in range(20):
        model.weight.requires_grad_(k % 2 == 0)
        step(genesis.ones(2, 3))
        if k == 5:
            before = step.captures
    assert step.captures == before


def test_the_loop_everybody_writes_is_recorded_a_few_times() -> None:
    model = nn.Linear(3, 2)
    optimizer = optim.Adam(model.parameters(), lr=0.1)

    @genesis.jit
    def step(x: X) -> X:
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(20):
        step(genesis.ones(2, 3))
    assert step.captures <= 2


def test_recording_at_every_call_is_said_once() -> None:
    history: list[X] = []
    jitted = genesis.jit(lambda x: sum(history, x))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(100):
            history.append(jitted(genesis.ones(2)))  # noqa: PERF401
    assert len(said) == 1
    assert re.search(r"\.py:\d+", str(said[0].message)) and "history" in str(said[0].message)
