"""Ring attention and experts: what they compute, and what processes exchange for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import genesis
import genesis.distributed as gd
from genesis.compiler.partition import FREE, Partitioned, collectives, partition
from genesis.ir.placement import MeshShape, Placement, Split
from genesis.nn import functional as F  # noqa: N812


def divided(
    monkeypatch: pytest.MonkeyPatch,
    mesh: MeshShape,
    splits: dict[tuple[int, ...], Split],
    function: Callable[..., Any],
    *args: Any,
) -> Partitioned:
    """One rank's graph of a jitted function whose arrays of some shapes are divided."""
    from genesis.ndarray.tracing import recording

    found: list[Partitioned] = []

    def divide(roots: Any, nodes: Any, slots: Any, wishes: Any) -> None:
        known = {k: splits[v.shape] for v, k in slots.items() if v.shape in splits}
        leaves = {k: Placement(mesh, (split,)) for k, split in known.items()}
        found.append(partition(roots, leaves, [FREE] * len(roots)))
        raise InterruptedError  # it is not to be compiled

    monkeypatch.setattr(recording, "divide", divide)
    with pytest.raises(InterruptedError):
        genesis.jit(function)(*args)
    return found[-1]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("blocks", "causal"),
    [
        (3, True),
        *(
            pytest.param(k, c, marks=SLOW)
            for k, c in ((2, True), (4, True), (2, False), (3, False))
        ),
    ],
)
def test_a_ring_is_attention(blocks: int, causal: bool) -> None:
    genesis.manual_seed(blocks)
    q, k, v = (
        genesis.randn(2, 3, 24, n, dtype=genesis.float64).requires_grad_() for n in (4, 4, 5)
    )
    weight = genesis.randn(2, 3, 24, 5, dtype=genesis.float64)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    got = gd.ring_attention(q, k, v, causal, blocks=blocks)
    assert genesis.allclose(got, want, rtol=0, atol=1e-12)
    gradients = [genesis.autograd.grad((y * weight).sum(), [q, k, v]) for y in (got, want)]
    for a, b in zip(*gradients, strict=True):
        assert genesis.allclose(a, b, rtol=0, atol=1e-12)


def test_wrong_sequences_are_named() -> None:
    q = genesis.ones(1, 6, 4)
    with pytest.raises(ValueError, match="a sequence of 6 does not divide into 2 blocks of two"):
        gd.ring_attention(q, q, q, blocks=2)
    with pytest.raises(ValueError, match=r"keys \(1, 5, 4\) .* must have the same heads"):
        gd.ring_attention(q, q[:, :5], q[:, :5], blocks=3)
    assert gd.ring_attention(q, q, q, blocks=1).shape == q.shape


def test_keys_go_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is gathered: blocks go from neighbour to neighbour, once for both passes."""
    mesh, shape = MeshShape((("sp", 4),)), (2, 3, 16, 4)

    def step(*xs: genesis.Tensor) -> tuple[genesis.Tensor, ...]:
        q, k, v = (x.detach().requires_grad_() for x in xs[:3])
        y = gd.ring_attention(q, k, v, is_causal=True, blocks=4)
        return y, *genesis.autograd.grad((y * xs[3]).sum(), [q, k, v])

    args = [genesis.randn(shape) for _ in range(4)]
    found = divided(monkeypatch, mesh, {shape: Split(2)}, step, *args)
    calls = [n.attr for n, _ in collectives(found.roots)]
    assert {c.name for c in calls} == {"collectives.permute"}
    ring = [c for c in calls if c.options[2] == (3, 0, 1, 2)]
    # Keys and values, in two chunks each, three times; then their gradients, until they are home.
    assert [len(c.operands) for c in ring] == [4] * 7
    assert all(p is not None and p.splits == (Split(2),) for p in found.placements)


@pytest.mark.parametrize("count", (2, 4))
def test_tokens_go_to_experts(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    mesh, shape = MeshShape((("dp", count),)), (8, 16, 32)
    layer = gd.Experts(32, 128, 4, groups=4)

    def step(x: genesis.Tensor) -> tuple[genesis.Tensor, ...]:
        x = x.detach().requires_grad_()
        y = layer(x)
        return y, *genesis.autograd.grad(y.square().mean(), [x, *layer.parameters()])

    splits = dict.fromkeys((shape, (4, 32, 128), (4, 128, 32)), Split(0))
    found = divided(monkeypatch, mesh, splits, step, genesis.randn(shape))
    names = Counter(n.attr.name.removeprefix("collectives.") for n, _ in collectives(found.roots))
    assert names == {"all_to_all": 4, "all_reduce": 1}  # the router's gradient


def test_experts_are_a_loop_over_tokens() -> None:
    genesis.manual_seed(0)
    layer = gd.Experts(4, 8, 3, top=2, capacity=100.0, groups=2)
    x = genesis.randn(2, 5, 4)
    got = layer(x).reshape(-1, 4)
    for row, token in zip(got, x.reshape(-1, 4), strict=True):
        gates = layer.router(token).softmax(-1)
        chosen = gates.topk(2)
        want = sum(
            g / chosen.values.sum() * (F.gelu(token @ layer.up[int(e)]) @ layer.down[int(e)])
            for g, e in zip(chosen.values, chosen.indices, strict=True)
        )
        assert genesis.allclose(row, want, atol=1e-5)
    # Beyond its capacity an expert takes nobody: the first come first.
    full = gd.Experts(4, 8, 2, top=1, capacity=0.5)
    genesis.nn.init.zeros_(full.router.weight)  # all tokens choose the first expert
    passed = full(genesis.randn(8, 4)).abs().sum(-1) == 0
    assert passed.tolist() == [False] * 2 + [True] * 6
    with pytest.raises(ValueError, match="10 tokens do not divide into 3 groups"):
        gd.Experts(4, 8, 2, groups=3)(x)
    with pytest.raises(ValueError, match="cannot go to 3 of 2 experts"):
        gd.Experts(4, 8, 2, top=3)


def test_a_divided_sequence_is_turned_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows and positions become one dimension, as before a loss, everyone sends a piece."""
    mesh, shape = MeshShape((("sp", 2),)), (4, 6, 8)
    found = divided(
        monkeypatch,
        mesh,
        {shape: Split(1)},
        lambda x: (x * 2).reshape(-1, 8) * 3,
        genesis.randn(shape),
    )
    ((call, nbytes),) = collectives(found.roots)
    assert call.attr.name == "collectives.all_to_all" and nbytes == 4 * 3 * 8 * 4
    assert found.placements[0] is not None and found.placements[0].splits == (Split(0),)
