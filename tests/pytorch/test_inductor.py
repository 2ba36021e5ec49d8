"""PyTorch's Inductor on the device: its loops as kernels of Genesis, against eager code."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import genesis.torch  # noqa: F401
from genesis.torch.inductor_version import is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="another release of Inductor")
F = nn.functional


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def there(x: Any) -> Any:
    """An argument on the device."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().to("genesis").requires_grad_(x.requires_grad)


def agree(f: Callable[..., Any], *xs: Any, tolerance: float = 1e-5, **how: Any) -> None:
    """Fail unless a function compiled for the device gives what it gives on the CPU."""
    ours = [there(x) for x in xs]
    want = torch.utils._pytree.tree_leaves(f(*xs))
    got = torch.utils._pytree.tree_leaves(torch.compile(f, fullgraph=True, **how)(*ours))
    assert len(want) == len(got)
    for w, g in zip(want, got, strict=True):
        assert g.device.type == "genesis"
        assert g.stride() == w.stride()
        torch.testing.assert_close(g.cpu(), w, rtol=tolerance, atol=tolerance, equal_nan=True)
    if not any(isinstance(x, torch.Tensor) and x.requires_grad for x in xs):
        return
    for results in (want, got):
        sum(x.float().square().mean() for x in results if x.requires_grad).backward()
    for x, y in zip(xs, ours, strict=True):
        if isinstance(x, torch.Tensor) and x.requires_grad:
            torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=tolerance, atol=tolerance)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize(("start", "count"), [(0, 4), (1, 3), (-4, 4), (0, 5), (2, 3), (-6, 5)])
def test_positions_that_are_computed_exist(start: int, count: int) -> None:
    """Inductor knows what a range of positions is, and not whether they are in reach."""

    def taken(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[torch.arange(count, device=x.device) + start] * 2, x])

    def put(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[torch.arange(count, device=x.device) + start] = 7
        return y

    for f in (taken, put):
        x = torch.randn(4, 3)
        if -4 <= start and start + count <= 4:
            agree(f, x)
            continue
        with pytest.raises(IndexError):
            f(x)
        with pytest.raises(IndexError, match=r"out of range for axis 0 of size 4"):
            torch.compile(f)(there(x)).cpu()


def test_more_than_an_input_sees() -> None:
    """A view's storage has elements before and after it."""

    def around(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x.t(), (2, 4), (9, 2), 1) * x.sum()

    whole = torch.arange(24.0)
    for begin, columns in ((3, 3), (6, 4)):  # PyTorch takes the code of one place for others
        got = torch.compile(around)(there(whole)[begin : begin + 2 * columns].reshape(2, columns))
        want = around(whole[begin : begin + 2 * columns].reshape(2, columns))
        torch.testing.assert_close(got.cpu(), want)
        torch._dynamo.reset()


def test_parts_are_written() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[1:9:2, ::2] = 5
        y[:, 1] += x[:, 0]
        return y.slice_scatter(x[:4] * 2, 0, 1, 9, 2)

    agree(f, torch.randn(10, 5))


def test_addresses_of_every_kind() -> None:
    """Strides, offsets, negative and overlapping ones, quotients, masks and data as addresses."""

    def moved(x: Any, rows: Any) -> Any:
        position = torch.arange(6, device=x.device)
        return (
            x.t() + 1, x[1:, ::2].sin(), x.flip(1) * 2, x.roll(2, 0) + 1, x.unfold(1, 3, 2) * 2,
            F.pad(x, (1, 2, 0, 3)).exp(), torch.cat([x, x.cos()], 1) * 2, x.reshape(8, 3) * 3,
            x[:, None, :] - x[None], x[rows] + 1, x.gather(1, rows[:, None].abs() + 1) * 2,
            torch.tril(x) + position[:4, None] % 3, torch.slice_scatter(x, x[:, :2], 1, 2, 4) * 2,
            F.pixel_shuffle(x.reshape(1, 4, 2, 3), 2) + 1, x[:0] * 2, x[None].expand(3, 4, 6) + 1,
            x.index_put((rows,), torch.ones_like(x), accumulate=True).sin(),
        )  # fmt: skip

    agree(moved, normal(4, 6), torch.tensor([-1, 0, 3, 0]))


def test_reductions() -> None:
    """Reductions of every kind over the last, the first and all axes."""

    def reduced(x: Any) -> Any:
        return (
            x.sum(1), x.mean(0), x.prod(1), x.amax((0, 1)), x.max(1), x.min(0), x.argmax(1),
            x.argmin(0), x.var(1), x.std(0), (x > 2).any(1), (x > -9).all(), x.norm(),
            x.logsumexp(1), x.softmax(0), F.layer_norm(x, (33,)), F.log_softmax(x, 1),
            x[:, :0].sum(1), x.cumsum(1) + 1, x.sort(1), x.topk(2),
        )  # fmt: skip

    agree(reduced, normal(5, 33))


def test_types() -> None:
    """Integers, Booleans and floats of every width, as eager code computes them."""

    def mixed(x: Any, i: Any) -> Any:
        return (
            i // 3, i % 3, i << 1, i / 2, i.to(torch.uint8) + 200, (x > 0) & (x < 1) | ~(x > 0.5),
            x.double().erf().lgamma(), (x.bfloat16() * 3 + 1).float(), x.half() * 2,
            torch.where(x > 0, x, x.exp()), torch.nan_to_num(x / 0), x.to(torch.int32), x**2,
            x.masked_fill(x > 0, float("-inf")).softmax(1), F.gelu(x),
            F.gelu(x, approximate="tanh"), torch.fmod(x, 0.3), torch.remainder(x, -0.3),
            x.trunc(), x.round(), x.sign(),
        )  # fmt: skip

    agree(mixed, torch.randn(4, 5), torch.randint(-9, 9, (4, 5)))


def test_layers() -> None:
    """Convolution, normalisation, pooling, attention, embedding and a loss, with gradients."""

    def layers(x: Any, w: Any, table: Any, words: Any) -> Any:
        y = F.max_pool2d(F.relu(F.batch_norm(F.conv2d(x, w), None, None, training=True)), 3, 2, 1)
        y = F.interpolate(F.group_norm(y, 2), scale_factor=2)
        q = F.embedding(words, table)[:, None]
        mixed = F.scaled_dot_product_attention(q, q * 2, q - 1, is_causal=True)
        return F.avg_pool2d(y, 2), F.cross_entropy(mixed.flatten(0, 2), words.flatten() % 4)

    words = torch.randint(0, 10, (2, 7))
    agree(layers, normal(2, 3, 9, 9), normal(4, 3, 3, 3), normal(10, 4), words)


def test_what_operators_give_lies_as_inductor_has_been_told() -> None:
    """It wants channels last for a convolution of many, and is told that the results are not."""

    def net(x: Any, w: Any, v: Any) -> Any:
        y = F.conv2d(F.conv2d(x, w).relu(), v).relu()
        return y.flatten(1).sum(1), torch.linalg.svd(y[0, 0])[2] * 0

    agree(net, torch.randn(2, 1, 12, 12), torch.randn(32, 1, 3, 3), torch.randn(64, 32, 3, 3) / 9)


def test_sizes_that_are_symbolic() -> None:
    """One graph for several sizes, addresses and counts being expressions of them."""

    def f(x: Any, y: Any) -> Any:
        return torch.cat([x, y]).exp().reshape(-1, x.shape[1] // 2).sum(1), (x * x.shape[0]).mean()

    compiled = torch.compile(f, dynamic=True, fullgraph=True)
    for n, m in ((4, 8), (3, 8), (5, 6), (1, 2)):
        x, y = torch.randn(n, m), torch.randn(2, m)
        for got, want in zip(compiled(x.to("genesis"), y.to("genesis")), f(x, y), strict=True):
            torch.testing.assert_close(got.cpu(), want)


def test_memory_that_is_written_in_place() -> None:
    """Arguments that are written are seen by their views; the parts that are not stay."""
    x = torch.zeros(4, 6, device="genesis")
    row = x[1]

    def write(x: Any, part: Any) -> Any:
        x.add_(1)
        part[1:3].copy_(x[0, :2] * 5)
        return x * 2

    part = torch.ones(5, device="genesis")
    result = torch.compile(write, fullgraph=True)(row[None], part)
    assert x.cpu().tolist() == [[0.0] * 6, [1.0] * 6, [0.0] * 6, [0.0] * 6]
    assert part.cpu().tolist() == [1.0, 5.0, 5.0, 1.0, 1.0]
    assert result.cpu().tolist() == [[2.0] * 6]


def test_random_numbers_are_the_seeds_and_the_gradients() -> None:
    """Dropout keeps half, draws anew at every call, and its gradient has its mask."""
    dropout = torch.compile(lambda x: F.dropout(x, 0.5, True))
    x = torch.ones(1000, 50, device="genesis", requires_grad=True)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(first.cpu(), dropout(x).cpu())
    assert not torch.equal(first.cpu(), second.cpu())
    assert abs(float((first == 0).float().mean()) - 0.5) < 0.02
    second.sum().backward()
    assert torch.equal((second != 0).cpu(), (x.grad != 0).cpu())
    normals = torch.compile(lambda: torch.randn(20000, device="genesis"))()
    assert abs(float(normals.mean())) < 0.03
    assert abs(float(normals.std()) - 1) < 0.03
    dice = torch.compile(lambda: torch.randint(2, 8, (6000,), device="genesis"))()
    assert dice.cpu().bincount(minlength=8)[2:].min() > 850


def test_training_is_that_of_eager_code() -> None:
    """Losses of a small network, whose numbers on the CPU are not part of the graph's device."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    factor = torch.tensor(0.5)
    x = torch.randn(16, 6)
    losses: dict[str, list[float]] = {}
    for place in ("cpu", "genesis"):
        ours = copy.deepcopy(model).to(place)
        run = torch.compile(ours) if place == "genesis" else ours
        optimizer = torch.optim.AdamW(ours.parameters(), 1e-2)
        losses[place] = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = (run(x.to(place)) * factor).square().mean()
            loss.backward()
            optimizer.step()
            losses[place].append(loss.item())
    assert losses["genesis"] == pytest.approx(losses["cpu"], rel=1e-5)


def test_an_index_that_does_not_exist() -> None:
    """It is the IndexError that it is without compiling."""
    take = torch.compile(lambda x, i: x[i] * 2)
    x = torch.ones(4, 2, device="genesis")
    assert take(x, torch.tensor([0, -4], device="genesis")).cpu().tolist() == [[2, 2], [2, 2]]
    with pytest.raises(IndexError, match="index 9 is out of range"):
        take(x, torch.tensor([0, 9], device="genesis")).cpu()


@pytest.mark.slow
def test_what_is_compiled_is_found_by_the_next_process(tmp_path: Any) -> None:
    """Kernels are text, and come out of PyTorch's cache as they were."""
    script = (
        "import torch, genesis.torch\n"
        "f = torch.compile(lambda x: (x * 2).softmax(1))\n"
        "print(f(torch.ones(2, 4, device='genesis')).cpu().sum().item())\n"
        "print(torch._dynamo.utils.counters['inductor']['fxgraph_cache_hit'])\n"
    )
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    seen = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            capture_output=True, text=True, check=True, env={**os.environ, **environment},
        ).stdout.split()
        for _ in range(2)
    ]  # fmt: skip
    assert [x[0] for x in seen] == ["2.0", "2.0"]
    assert int(seen[1][1]) == 1
