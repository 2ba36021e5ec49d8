"""Tensors that become views of themselves, and hooks on gradients, as PyTorch has them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import genesis

LIBRARIES: tuple[Any, Any] = (genesis, torch)


def test_shapes_and_contents() -> None:
    for change in (
        lambda x: x.t_(),
        lambda x: x.transpose_(0, 1),
        lambda x: x.swapaxes_(0, 1).swapdims_(-1, 0),
        lambda x: x.unsqueeze_(1).unsqueeze_(-1),
        lambda x: x[:1].squeeze_(),
        lambda x: x[:1].squeeze_(0).unsqueeze_(0).t_(),
        lambda x: x.as_strided_((2, 2), (3, 1), 1),
        lambda x: x.squeeze_(),
    ):
        ours, theirs = (change(lib.arange(6.0).reshape(2, 3)) for lib in LIBRARIES)
        assert tuple(ours.shape) == tuple(theirs.shape)
        assert ours.tolist() == theirs.tolist()


def test_other_views_go_on_as_before() -> None:
    """Whatever is written through any of them, all see, and gradients find their way."""

    def run(lib: Any) -> list[Any]:
        a = lib.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)
        x = a * 2
        before = x[0]
        assert x.t_() is x
        before.mul_(lib.tensor([2.0, 3.0, 4.0]))
        x[0].add_(a[:, 1])
        x.unsqueeze_(1)
        after = x[:, 0]
        x.squeeze_(1)
        after *= x.sum()
        (x * x).sum().backward()
        return [x, before, after, a.grad]

    ours, theirs = map(run, LIBRARIES)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine.detach().numpy(), other.detach().numpy())
        assert mine.requires_grad == other.requires_grad


def test_a_gradient_that_comes_through_an_older_view() -> None:
    def run(lib: Any) -> list[Any]:
        x = lib.zeros(2, 3)
        row = x[1]
        x.t_()
        b = lib.tensor([1.0, 2.0, 3.0], requires_grad=True)
        row.copy_(b)
        (x * lib.arange(6.0).reshape(3, 2)).sum().backward()
        return [x.tolist(), x.requires_grad, b.grad.tolist()]

    ours, theirs = map(run, LIBRARIES)
    assert ours == theirs


def test_refused() -> None:
    leaf = genesis.zeros(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="t_: a leaf tensor that requires a gradient"):
        leaf.t_()
    with genesis.no_grad():
        assert tuple(leaf.t_().shape) == (3, 2)
    overlapping = genesis.zeros(5).as_strided_((3, 2), (1, 1))
    with pytest.raises(ValueError, match="cannot write through windows"):
        overlapping.add_(1)


def test_in_a_recorded_function() -> None:
    @genesis.jit
    def step(x: Any) -> Any:
        y = x * 2
        return y.t_().unsqueeze_(0) + 1

    for _ in range(2):
        found = step(genesis.arange(6.0).reshape(2, 3))
        assert found.tolist() == [[[1.0, 7.0], [3.0, 9.0], [5.0, 11.0]]]
    assert step.captures == 1


def test_hook_after_accumulation() -> None:
    """It sees the sum in `grad`, and may use it up: a step of descent as soon as it is there."""
    results = []
    for lib in LIBRARIES:
        p = lib.tensor([1.0, 2.0], requires_grad=True)
        seen: list[Any] = []

        def descend(x: Any, lib: Any = lib, seen: list[Any] = seen) -> None:
            seen.append(x.grad.tolist())
            with lib.no_grad():
                x -= 0.25 * x.grad
            if len(seen) != 2:  # the third finds the second's gradient there
                x.grad = None

        handle = p.register_post_accumulate_grad_hook(descend)
        for _ in range(3):
            (p * p).sum().backward()
        handle.remove()
        (p * p).sum().backward()
        results.append([seen, p.tolist(), p.grad.tolist()])
        with pytest.raises(RuntimeError, match="leaf"):
            (p * 2).register_post_accumulate_grad_hook(descend)
    assert results[0] == results[1]


def test_axes_of_extent_one_keep_a_view_a_view() -> None:
    """Even of views that strides alone do not describe: a diagonal of every other row."""
    x = genesis.arange(6).reshape(3, 2).float()
    x[::2].diagonal().reshape(1, 2)[::2, None] = 9
    assert x.tolist() == [[9, 1], [2, 3], [4, 9]]


SAME = {
    "[:]": lambda x: x[:],
    "[...]": lambda x: x[...],
    "view": lambda x: x.view(4),
    "reshape": lambda x: x.reshape(4),
    "expand": lambda x: x.expand(4),
    "squeeze": lambda x: x.squeeze(),
    "squeeze of a dimension": lambda x: x.squeeze(0),
    "permute": lambda x: x.permute(0),
    "transpose": lambda x: x.transpose(0, 0),
    "ravel": lambda x: x.ravel(),
    "narrow": lambda x: x.narrow(0, 0, 4),
    "split": lambda x: x.split(4)[0],
    "detach": lambda x: x.detach(),
    "flatten": lambda x: x.flatten(),
    "contiguous": lambda x: x.contiguous(),
    "float": lambda x: x.float(),
    "to": lambda x: x.to("cpu"),
}


@pytest.mark.parametrize("name", SAME)
def test_a_view_of_everything_is_a_tensor_of_its_own_where_it_is_in_pytorch(name: str) -> None:
    def told(library: Any) -> tuple[Any, ...]:
        x = library.arange(4.0)
        y = SAME[name](x)
        y += 1
        identical = y is x
        y.requires_grad_()
        return identical, x.requires_grad, x.tolist()

    assert told(genesis) == told(torch)


def test_what_is_written_keeps_its_own_gradient() -> None:
    """A copy is an operation: gradients of it are not those of what was copied."""

    def copied(lib: Any, x: Any) -> Any:
        return lib.zeros(2).copy_(x)

    def part(lib: Any, x: Any) -> Any:
        whole = lib.zeros(3, 2)
        row = whole[1]
        row.copy_(x)
        return row

    def everything(lib: Any, x: Any) -> Any:
        y = lib.zeros(2)
        y[:] = x
        return y

    def run(lib: Any, write: Any) -> list[Any]:
        w = lib.tensor([1.0, 2.0], requires_grad=True)
        x = w * 2
        x.retain_grad()
        y = write(lib, x)
        y.retain_grad()
        heard: list[Any] = []
        x.register_hook(lambda g: heard.append(("x", g.tolist())))
        y.register_hook(lambda g: heard.append(("y", g.tolist())))
        (x * 5 + y * 3).sum().backward()
        apart = lib.autograd.grad((w * 2 + copied(lib, w * 3)).sum(), [w])
        return [x.grad.tolist(), y.grad.tolist(), w.grad.tolist(), sorted(heard), apart[0].tolist()]

    for write in (copied, part, everything):
        ours, theirs = (run(lib, write) for lib in LIBRARIES)
        assert ours == theirs


def test_a_kept_gradient_is_that_of_the_new_contents() -> None:
    """Where a tensor, or a view of one, is written, `retain_grad` goes over to what it is now."""

    def run(lib: Any) -> list[Any]:
        w = lib.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        x = w * 2
        diagonal, alias = x.diagonal(), x[...]
        for y in (x, diagonal, alias):
            y.retain_grad()
        diagonal *= 3
        alias[0] = 1
        x[False] = 7  # nothing is chosen
        (x * x).sum().backward()
        return [y.grad if y.grad is None else y.grad.tolist() for y in (w, x, diagonal)]

    ours, theirs = (run(lib) for lib in LIBRARIES)
    assert ours == theirs


@pytest.mark.parametrize("become", ["unsqueeze_(1)", "transpose_(0, 1)", "squeeze_()"])
def test_a_kept_gradient_is_that_of_what_became_a_view(become: str) -> None:
    """Where a tensor becomes a view in place, `retain_grad` stays with what it was."""

    def run(lib: Any) -> list[Any]:
        w = lib.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
        x = w * 2
        x.retain_grad()
        y = x * 3
        eval(f"x.{become}", {"x": x})
        ((x * x).sum() + y.sum()).backward()
        return [w.grad.tolist(), x.grad.tolist(), tuple(x.shape)]

    ours, theirs = (run(lib) for lib in LIBRARIES)
    assert ours == theirs


@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (7, 2), (2, 2, 2), (3, 3, 3)])
def test_a_diagonal_is_filled_however_elements_lie(shape: tuple[int, ...]) -> None:
    for order in itertools.permutations(range(len(shape))):

        def run(lib: Any, order: tuple[int, ...] = order) -> Any:
            x = lib.arange(float(math.prod(shape))).reshape(shape)
            x.permute(order).fill_diagonal_(-1.0)
            return x.tolist()

        ours, theirs = (run(lib) for lib in LIBRARIES)
        assert ours == theirs


WIDTHS = "uint8 int8 int16 float16 bfloat16 int32 float32 int64 float64 complex64 complex128"


@pytest.mark.parametrize("before", WIDTHS.split())
def test_bits_read_as_a_type_of_another_width_are_a_view(before: str) -> None:
    """Shape, strides and bits are PyTorch's, and what is written on either side both see."""
    drawn = np.random.default_rng(0).integers(0, 256, (3, 32), dtype=np.uint8)
    for after in WIDTHS.split():
        seen = []
        for lib in LIBRARIES:
            x = lib.tensor(drawn).view(getattr(lib, before))
            y = x.view(getattr(lib, after))
            found = [tuple(y.shape), tuple(y.stride()), y.view(lib.uint8).tolist()]
            y[1] = 1
            found.append(x.view(lib.uint8).tolist())
            x[0, 0] = 2
            found.append(y.view(lib.uint8).tolist())
            seen.append(found)
        assert seen[0] == seen[1], after


def test_bits_that_fill_no_whole_number_of_elements_are_refused() -> None:
    for lib in LIBRARIES:
        with pytest.raises((RuntimeError, ValueError)):
            lib.ones(2, 3, dtype=lib.uint8).view(lib.int16)
        with pytest.raises((RuntimeError, ValueError)):
            lib.tensor(1.0).view(lib.uint8)
        assert lib.tensor(1.0).view(lib.int32).item() == 0x3F800000


def test_bits_are_read_inside_of_jit_as_outside() -> None:
    def low(x: Any) -> Any:
        return x.view(genesis.uint8)[..., ::4].sum(-1)

    recorded = genesis.jit(low)
    for n in (2, 3, 5):
        x = genesis.randint(0, 1000, (n, 4), dtype=genesis.int32)
        assert recorded(x).tolist() == low(x).tolist() == (x % 256).sum(-1).tolist()


def test_a_number_transposed_is_itself() -> None:
    for m in (genesis, torch):
        x = m.tensor(2.0, requires_grad=True) * 2
        assert x.mT is x and x.H is x and x.mH is x and x.T is not x
        z = m.tensor(1 + 2j)
        assert z.mT is z and z.H.item() == z.mH.item() == 1 - 2j
