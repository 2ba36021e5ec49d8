"""What shares memory in eager code shares it in compiled code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import genesis.torch
from tests.torch_aliasing import differences, groups, random_case


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", genesis.torch.FallbackWarning)
        yield


def _compiled(f: Callable[..., Any], backend: str = "genesis") -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(f, backend=backend)


def _of_an_intermediate(x: torch.Tensor) -> Any:
    y = x * 2
    return y, y.t(), y[1:]


def _only_views(x: torch.Tensor) -> Any:
    y = x * 2
    return y.t(), y[1:, ::2], y.view(-1)[3:]


def _the_same_twice(x: torch.Tensor) -> Any:
    y = x + 1
    return y, y, x, x


def _written_argument(x: torch.Tensor) -> Any:
    x.mul_(3)
    return x, x[1:], x.t(), x * 1


def _several_views_at_once(x: torch.Tensor) -> Any:
    y = x + 1
    return (*y.chunk(2), *y.unbind(1)[:2], *x.unbind(0)[:2])


def _repeated(x: torch.Tensor) -> Any:
    y = x.sum(0)
    return y, y.expand(3, 4), y[1:].unsqueeze(0)


def _other_elements(x: torch.Tensor) -> Any:
    z = torch.complex(x, x + 1)
    return z, torch.view_as_real(z), z.conj(), z.real, z.conj().imag


def _bits(x: torch.Tensor) -> Any:
    y = x + 1
    return y.view(torch.int32), y[1]


def _detached(x: torch.Tensor) -> Any:
    y = x + 1
    return y, y.detach(), y.detach().t()


FUNCTIONS = [
    _of_an_intermediate, _only_views, _the_same_twice, _written_argument, _several_views_at_once,
    _repeated, _other_elements, _bits, _detached,
]  # fmt: skip


@pytest.mark.parametrize("mode", ["no_grad", "grad", "inference", "nothing to differentiate"])
@pytest.mark.parametrize("f", FUNCTIONS)
def test_results_share_memory_as_in_eager_code(f: Callable[..., Any], mode: str) -> None:
    def observed(run: Callable[..., Any]) -> tuple[Any, ...]:
        leaf = torch.arange(12.0).view(3, 4).requires_grad_(mode == "grad")
        x = leaf * 1
        with torch.set_grad_enabled(mode != "no_grad"), torch.inference_mode(mode == "inference"):
            results = [*run(x), x]
        layouts = [(y.shape, y.stride(), y.dtype, y.is_conj(), y.is_neg()) for y in results]
        seen = [[y.detach().resolve_conj().clone() for y in results]]
        with torch.inference_mode(mode == "inference"), torch.no_grad():
            for y in results:
                if 0 not in y.stride():
                    y.add_(1)  # what one sees, all see
                    seen.append([z.detach().clone() for z in results])
        return layouts, groups(results), seen

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of AOTAutograd, about conjugates
        warnings.simplefilter("error", genesis.torch.FallbackWarning)
        got, want = observed(_compiled(f)), observed(f)
    assert got[:2] == want[:2]
    torch.testing.assert_close(got[2], want[2])


def test_a_write_to_one_result_is_noticed_by_the_graph_of_another() -> None:
    y, t = _compiled(lambda x: (y := x * 2, y.t()))(torch.ones(2, 2))
    w = torch.ones(2, 2, requires_grad=True)
    product = (t * w).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_a_view_can_be_written_where_gradients_are_recorded() -> None:
    y, t = _compiled(lambda x: (y := x * 2, y.t()))(torch.ones(2, 2))
    w = torch.full((2, 2), 3.0, requires_grad=True)
    t.mul_(w)
    y.sum().backward()
    assert w.grad is not None and w.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_gradients_do_not_share_memory() -> None:
    """PyTorch adds to them in place."""
    a, b = (torch.ones(4, requires_grad=True) for _ in range(2))
    run = _compiled(lambda a, b: (a + b.view(2, 2).view(4)).sum())
    for _ in range(2):
        run(a, b).backward()
    assert a.grad is not None and b.grad is not None
    assert a.grad.tolist() == b.grad.tolist() == [2.0] * 4
    a.grad.zero_()
    assert b.grad.tolist() == [2.0] * 4


def _agrees(seed: int) -> None:
    case = random_case(seed)
    try:
        found = differences(case, _compiled(case.function()))
    except Exception as error:
        found = repr(error)
    if found is None:
        return
    try:  # a difference that PyTorch's own tracing makes is not ours to mend
        if differences(case, _compiled(case.function(), "aot_eager")) is not None:
            return
    except Exception:
        return
    raise AssertionError(f"{case}: {found}")


def test_views_of_nodes_that_are_taken_for_one() -> None:
    """The weights of both are computed once; their parts are saved as views for each."""

    def both(x: torch.Tensor, y: torch.Tensor) -> Any:
        made = [nn.functional.interpolate(z, size=(2, 2), mode="bicubic") for z in (x, y)]
        return sum(z.square().sum() for z in made)

    inputs = [torch.randn(1, 3, 5, 5, requires_grad=True) for _ in range(2)]
    expected = torch.autograd.grad(both(*inputs), inputs)
    found = torch.autograd.grad(_compiled(both)(*inputs), inputs)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("seed", range(16))
def test_random_functions_of_views_and_writes(seed: int) -> None:
    _agrees(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 4000, 100))
def test_more_random_functions_of_views_and_writes(first: int) -> None:
    for seed in range(first, first + 100):
        _agrees(seed)
