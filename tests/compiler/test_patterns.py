"""A plain kernel says what it is: the parts by name, and no schedule depends on those names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from replay import CHIP

import genesis
from genesis import functional
from genesis.backends.base import GPU, Chip
from genesis.compiler.schedule import schedule
from genesis.ir import ops
from genesis.ir.kernel import (
    Body,
    Carry,
    Kernel,
    Let,
    Loop,
    Phase,
    Statement,
    Store,
    expressions,
    map_expressions,
    walk,
)
from genesis.ir.node import Node, mentions
from genesis.ir.pattern import (
    AttentionBackward,
    ColumnSums,
    Contraction,
    OnlineSoftmax,
    Pattern,
    Prefix,
    Scatter,
)
from genesis.ir.rewrite import substitute
from genesis.ir.structure import structure
from tests.compiler.test_schedule import check_step

H200 = GPU(
    name="replay", vector_bytes=16, vector_registers=255, l1_bytes=227 << 10, l2_bytes=50 << 20,
    multiprocessors=132, memory_bytes=140 << 30, groups=2,
)  # fmt: skip


def attention(q: Any, k: Any, v: Any) -> Any:
    return functional.scaled_dot_product_attention(q, k, v)


def gradients(function: Callable[..., Any], *arguments: Any) -> Any:
    leaves = [x.detach().requires_grad_() for x in arguments]
    function(*leaves).square().sum().backward()
    return tuple(x.grad for x in leaves)


def norm(x: Any, weight: Any) -> Any:
    return functional.layer_norm(x, (16,), weight)


def scattered(x: Any, updates: Any) -> Any:
    index = genesis.tensor(np.array([3, 1, 3, 0, 2]))
    return x.index_add(0, index, updates)


CASES: dict[type[Pattern] | None, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    Contraction: (lambda x, y: functional.relu(x @ y), ((9, 10), (10, 11))),
    OnlineSoftmax: (attention, ((1, 2, 9, 4),) * 3),
    AttentionBackward: (lambda *x: gradients(attention, *x), ((1, 4, 5, 4),) * 3),
    ColumnSums: (lambda *x: gradients(norm, *x), ((9, 16), (16,))),
    Prefix: (lambda x: x.cumsum(1) * 2, ((3, 40),)),
    Scatter: (scattered, ((6, 20), (5, 20))),
    None: (lambda x: functional.softmax(x, -1) + 1, ((5, 37),)),
}


@cache
def plain(kind: type[Pattern] | None) -> Kernel:
    """A plain kernel of that pattern, as the pipeline makes it."""
    found: list[Kernel] = []

    def noted(kernel: Kernel, chip: Chip) -> Kernel:
        found.append(kernel)
        return schedule(kernel, chip)

    function, shapes = CASES[kind]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genesis.compiler.build.schedule", noted)
        patch.setattr("genesis.compiler.build._built", {})
        patch.setattr("genesis.compiler.fuse.cost.TOTALLED_ROWS", 4)
        patch.setenv("GENESIS_CACHE", "off")
        arguments = [genesis.tensor(np.ones(shape, np.float32)) for shape in shapes]
        genesis.jit(function)(*arguments)
    return next(k for k in found if isinstance(k.pattern, kind or type(None)))


def names(x: Any) -> set[str]:
    """The names in a pattern."""
    if isinstance(x, tuple):
        return set().union(*map(names, x))
    return set() if x is None else {x}


def locals_of(kernel: Kernel) -> set[Node]:
    nodes = (e for s in walk(kernel.phases[0].body) for e in expressions(s))
    return {n for e in nodes for n in mentions(e) if n.op is ops.LOCAL}


def renamed(kernel: Kernel, suffix: str) -> Kernel:
    """The kernel with other names for its locals, in the statements and in the pattern."""
    named = {n: replace(n.attr, name=n.attr.name + suffix) for n in locals_of(kernel)}
    known = {n: local.node for n, local in named.items()}

    def changed(body: Body) -> Body:
        return tuple(map(one, map_expressions(body, lambda n: substitute([n], known)[0])))

    def one(s: Statement) -> Statement:
        if isinstance(s, Let):
            return Let(named.get(s.local.node, s.local), s.value)
        if isinstance(s, Loop):
            carried = (Carry(named[c.local.node], c.init, c.step) for c in s.carried)
            return replace(s, body=tuple(map(one, s.body)), carried=tuple(carried))
        return s

    def told(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(told, x))
        if isinstance(x, str):
            return x + suffix if x in {n.attr.name for n in known} else x
        return x if x is None else replace(x, **{k: told(v) for k, v in vars(x).items()})

    (phase,) = kernel.phases
    phases = (Phase(phase.grid, changed(phase.body)),)
    return replace(kernel, phases=phases, pattern=told(kernel.pattern))


@pytest.mark.parametrize("kind", [k for k in CASES if k])
def test_the_names_are_those_of_parts(kind: type[Pattern]) -> None:
    kernel = plain(kind)
    body = kernel.phases[0].body
    known = {n.attr.name for n in locals_of(kernel)}
    known |= {s.axis.name for s in walk(body) if isinstance(s, Loop)}
    known |= {s.buffer.name for s in walk(body) if isinstance(s, Store)}
    assert kernel.pattern is not None and names(astuple(kernel.pattern)) <= known


@pytest.mark.parametrize("chip", [CHIP, H200], ids=["CPU", "GPU"])
@pytest.mark.parametrize("kind", CASES)
def test_schedules_do_not_know_names(kind: type[Pattern] | None, chip: Chip) -> None:
    """Whatever the values of a kernel are called, its schedule is the same."""
    if kind is ColumnSums and chip is H200:
        pytest.skip("fusion makes none for GPUs")
    kernel = plain(kind)
    other = schedule(renamed(kernel, "_zq"), chip)
    assert str(other).replace("_zq", "") == str(schedule(kernel, chip))
    assert other.pattern is None


@pytest.mark.parametrize("kind", CASES)
def test_a_pattern_takes_no_part_in_what_is_computed(kind: type[Pattern] | None) -> None:
    kernel = plain(kind)
    untold = replace(kernel, pattern=None)
    check_step(kernel, schedule(kernel, CHIP))
    check_step(kernel, schedule(untold, CHIP))


@pytest.mark.parametrize("kind", [k for k in CASES if k not in (None, Contraction)])
def test_schedules_depend_on_the_pattern(kind: type[Pattern]) -> None:
    """So kernels that differ in it are told apart, though their statements are equal."""
    kernel = plain(kind)
    untold = replace(kernel, pattern=None)
    assert str(kernel) == str(untold)
    assert structure(kernel) != structure(untold)
    assert str(schedule(kernel, CHIP)) != str(schedule(untold, CHIP))


def test_a_contraction_by_hand_is_recognised() -> None:
    kernel = plain(Contraction)
    assert str(schedule(replace(kernel, pattern=None), CHIP)) == str(schedule(kernel, CHIP))
