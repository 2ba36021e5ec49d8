"""PyTorch's own samples of its operators (OpInfo), called here and there and compared.

What is compared: whether either raises, the structure of results, shapes, dtypes, whether they need
gradients, values, and gradients of a random weighting of the results.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.testing import assert_close
from torch.testing._internal import common_methods_invocations as opinfo
from torch.utils._pytree import tree_leaves, tree_map

import genesis

REAL = "float16 bfloat16 float32 float64 complex64 complex128"
WHOLE = "bool uint8 int8 int16 int32 int64"
DTYPES = {getattr(torch, name): getattr(genesis, name) for name in f"{REAL} {WHOLE}".split()}

#: Tolerances, relative and absolute, of types that round.
NEAR = {
    torch.float16: (4e-2, 2e-2), torch.bfloat16: (4e-2, 2e-2), torch.float32: (1e-4, 1e-4),
    torch.complex64: (1e-4, 1e-4), torch.float64: (1e-7, 1e-7), torch.complex128: (1e-7, 1e-7),
}  # fmt: skip

#: Results that are drawn, or left as found in memory: their values are not compared.
DRAWN = (
    "bernoulli", "cauchy", "dropout", "empty", "exponential", "fractional", "geometric", "gumbel",
    "log_normal", "multinomial", "normal", "rand", "rrelu", "uniform",
)  # fmt: skip

ENTRIES = {
    f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in opinfo.op_db
}  # fmt: skip


class Skipped(Exception):
    """There is nothing to compare."""


class Sample(NamedTuple):
    """One call."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def counterparts(op: Any, kind: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An operator there and here: as a "function", a "method", or "in_place"."""
    if kind == "method":
        theirs, ours = op.method_variant, getattr(genesis.Tensor, op.name, None)
    elif kind == "in_place":
        theirs, ours = op.inplace_variant, getattr(genesis.Tensor, f"{op.name}_", None)
    else:
        theirs, ours = (_found(m, op.name) or _found(m.Tensor, op.name) for m in (torch, genesis))
    if theirs is None or ours is None:
        raise Skipped(f"there is no {op.name}")
    return theirs, ours


def _found(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name, None)
    return root


def samples(op: Any, dtype: torch.dtype, gradients: bool, most: int) -> Iterator[Sample]:
    """Calls that PyTorch tests itself with, at most so many, taken from all of them."""
    seed()
    found = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), 400))
    for number in sorted({int(k * len(found) / most) for k in range(most)} if found else ()):
        sample = found[number]
        yield Sample(sample.input, tuple(sample.args), dict(sample.kwargs))


def seed() -> None:
    """Have everything that draws begin anew."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    genesis.manual_seed(0)


def here(x: Any) -> Any:
    """An argument of a call as it is given here."""
    if isinstance(x, torch.Tensor):
        if x.layout is not torch.strided or x.dtype not in DTYPES:
            raise Skipped(f"there are no such tensors: {x.dtype}, {x.layout}")
        plain = x.detach().resolve_conj().resolve_neg()
        wide = plain.float() if x.dtype is torch.bfloat16 else plain
        made = genesis.tensor(wide.numpy()).to(DTYPES[x.dtype])
        return made.requires_grad_() if x.requires_grad else made
    if isinstance(x, torch.dtype):
        return DTYPES[x]
    return tuple(x) if isinstance(x, torch.Size) else x


def there(x: Any) -> torch.Tensor:
    """A result as PyTorch has it."""
    plain = x.detach()
    wide = plain.float() if x.dtype is genesis.bfloat16 else plain
    return torch.from_numpy(np.array(wide.numpy())).to(getattr(torch, str(x.dtype)))


def compare(op: Any, kind: str, sample: Sample, gradients: bool) -> str:
    """Make a call here and there; what differs, or nothing."""
    theirs, ours = counterparts(op, kind)
    options = {k: v for k, v in sample.kwargs.items() if k not in ("device", "layout")}
    given = (sample.input, sample.args, options)
    mine = tree_map(here, given)
    expected, error = _called(theirs, given)
    found, complaint = _called(ours, mine)
    if error and complaint:
        return ""
    if error or complaint:
        return f"PyTorch: {error or 'a result'}; here: {complaint or 'a result'}"
    results, wanted = ([x for x in tree_leaves(y) if _is_tensor(x)] for y in (found, expected))
    if len(results) != len(wanted):
        return f"{len(results)} results, not {len(wanted)}"
    for x, y in zip(results, wanted, strict=True):
        form = (tuple(x.shape), str(x.dtype), x.requires_grad)
        other = (tuple(y.shape), str(y.dtype).removeprefix("torch."), y.requires_grad)
        if form != other:
            return f"{form}, not {other}"
    if any(name in op.name for name in DRAWN):
        return ""
    for x, y in zip(results, wanted, strict=True):
        if difference := far(there(x), y.detach()):
            return difference
    return _gradients(mine, given, results, wanted) if gradients else ""


def _called(function: Callable[..., Any], given: Any) -> tuple[Any, str]:
    seed()
    try:
        found = function(given[0], *given[1], **given[2])
        for x in tree_leaves(found):
            if isinstance(x, genesis.Tensor):
                x.detach().numpy()
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"[:200]
    return found, ""


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor | genesis.Tensor)


def far(x: torch.Tensor, y: torch.Tensor) -> str:
    """How a tensor differs from another one, by more than its type's rounding."""
    rtol, atol = NEAR.get(y.dtype, (0, 0))
    try:
        plain = y.resolve_conj().resolve_neg()
        assert_close(x, plain, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def _gradients(mine: Any, given: Any, results: list[Any], wanted: list[Any]) -> str:
    pairs = [(x, y) for x, y in zip(results, wanted, strict=True) if y.requires_grad]
    inputs = [
        [x for x in tree_leaves(z) if _is_tensor(x) and x.requires_grad] for z in (mine, given)
    ]
    if not pairs or not inputs[1]:
        return ""
    generator = torch.Generator().manual_seed(7)
    weights = []
    for _, y in pairs:
        kind = torch.complex64 if y.is_complex() else torch.float32
        weights.append(torch.randn(y.shape, generator=generator, dtype=kind).to(y.dtype))
    try:
        expected = _graded(torch, [y for _, y in pairs], inputs[1], weights)
    except RuntimeError:
        return ""  # PyTorch has no gradient
    found = _graded(genesis, [x for x, _ in pairs], inputs[0], [here(w) for w in weights])
    for x, y in zip(found, expected, strict=True):
        known = None if x is None else there(x)
        if known is None or y is None:
            other = y if known is None else known
            if other is not None and bool((other != 0).any()):
                return "a gradient that the other does not have"
        elif difference := far(known, y):
            return f"gradient: {difference}"
    return ""


def _graded(module: Any, results: list[Any], inputs: list[Any], weights: list[Any]) -> Any:
    total: Any = 0
    for x, w in zip(results, weights, strict=True):
        term = (x * w).sum()
        total = total + (term.real if term.is_complex() else term)
    return module.autograd.grad(total, inputs, allow_unused=True)
