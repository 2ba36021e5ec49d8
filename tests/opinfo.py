"""PyTorch's own samples of its operators (OpInfo), called here and there and compared.

    python -m tests.opinfo --dtype float32,bfloat16 --samples 4 --only linalg

says which operators agree, forward and backward, of those that users can call by their names.

What is compared: whether either raises, the structure of results, shapes, dtypes, whether they need
gradients, values, and gradients of a random weighting of the results.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
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

#: What a type's results are measured in where they are not near: whose are nearer to the truth?
WIDER = {
    torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}  # fmt: skip

#: Results that are left as found in memory: their values are not compared.
UNDEFINED = ("empty", "resize")

# Operators that draw would begin anew inside of themselves; `seed` does that.
opinfo.wrapper_set_seed = lambda function, *args, **kwargs: function(*args, **kwargs)

#: Of several equal elements, which one is meant is not said: positions are not compared.
PLACES = ("argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk")

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
    #: What of the result is determined: singular vectors without their signs, say.
    determined: Callable[[Any], Any] = lambda result: result


def counterparts(op: Any, kind: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An operator there and here: as a "function", a "method", or "in_place"."""
    if kind == "method":
        theirs, ours = op.method_variant, getattr(genesis.Tensor, op.name, None)
    elif kind == "in_place":
        theirs, ours = op.inplace_variant, getattr(genesis.Tensor, f"{op.name}_", None)
    else:
        theirs, ours = op.op, _rebound(op.op)
        if ours is None:
            theirs, ours = (
                _found(m, op.name) or _found(m.Tensor, op.name) for m in (torch, genesis)
            )
    if theirs is None or ours is None:
        raise Skipped(f"there is no {op.name}")
    return theirs, ours


def _rebound(function: Any) -> Callable[..., Any] | None:
    """A function that PyTorch wrote down for its samples, with `genesis` for `torch`."""
    if not isinstance(function, FunctionType) or function.__name__ != "<lambda>":
        return None
    names = {**function.__globals__, "torch": genesis}
    return FunctionType(function.__code__, names, closure=function.__closure__)


def public(op: Any) -> bool:
    """Whether PyTorch's users can call an operator by its name."""
    hidden = any(part.startswith("_") for part in op.name.split("."))
    roots = (torch, torch.Tensor)
    names = (op.name, f"{op.name}_")
    return not hidden and any(_found(root, name) is not None for root in roots for name in names)


def _found(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name, None)
    return root


def samples(
    op: Any, dtype: torch.dtype, gradients: bool, most: int, draw: int = 0
) -> Iterator[Sample]:
    """Calls that PyTorch tests itself with, at most so many: evenly spaced, or one of the draws."""
    seed(draw)
    found = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), 400))
    chosen = {int(k * len(found) / most) for k in range(most)} if found else set()
    if draw:
        chosen = set(random.Random(draw).sample(range(len(found)), min(most, len(found))))
    for number in sorted(chosen):
        sample = found[number]
        given = (sample.input, tuple(sample.args), dict(sample.kwargs))
        yield Sample(*tree_map(_leaf, given), sample.output_process_fn_grad)


def _leaf(x: Any) -> Any:
    """An argument that gets its own gradient: PyTorch gives views made without gradients none."""
    if isinstance(x, torch.Tensor) and x.is_leaf and x._is_view():
        return x.detach().requires_grad_(x.requires_grad)
    return x


def seed(first: int = 0) -> None:
    """Have everything that draws begin anew."""
    random.seed(first)
    np.random.seed(first)
    torch.manual_seed(first)
    genesis.manual_seed(first)


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
    if isinstance(x, torch.memory_format):
        return getattr(genesis, str(x).removeprefix("torch."))
    if callable(x) and getattr(x, "__module__", "") == torch.nn.functional.__name__:
        return getattr(genesis.nn.functional, x.__name__)
    if isinstance(x, torch.nn.PairwiseDistance):
        return genesis.nn.PairwiseDistance()
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
    expected, error = _called(theirs, given, sample.determined)
    found, complaint = _called(ours, mine, sample.determined)
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
    if any(name in op.name for name in UNDEFINED) or _is_drawn(
        theirs, given, sample.determined, wanted
    ):
        return ""
    kept = [k for k, y in enumerate(wanted) if op.name not in PLACES or y.is_floating_point()]
    pairs = [(there(results[k]), wanted[k].detach()) for k in kept]
    difference = next((d for x, y in pairs if (d := far(x, y))), "")
    if difference or not gradients:
        return "" if _nearer(theirs, sample, options, pairs, kept) else difference
    return _gradients(theirs, sample.determined, mine, given, results, wanted)


def _widened(given: Any) -> Any:
    """Arguments in the next wider precision, of which gradients are wanted where they were."""

    def wide(x: Any) -> Any:
        wider = WIDER.get(x.dtype) if isinstance(x, torch.Tensor) else None
        return x if wider is None else x.detach().to(wider).requires_grad_(x.requires_grad)

    return tree_map(wide, given)


def _no_further(x: torch.Tensor, y: torch.Tensor, true: torch.Tensor) -> bool:
    """Whether x is at least as near to the truth as y is."""
    return not x.numel() or bool((x - true).abs().max() <= (y - true).abs().max())


def _nearer(
    function: Callable[..., Any], sample: Sample, options: Any, pairs: Any, kept: list[int]
) -> bool:
    """Whether results are at least as near as PyTorch's to what it finds in a wider precision."""
    if not any(y.dtype in WIDER for _, y in pairs):
        return False
    given = _widened((sample.input, sample.args, options))
    exact, error = _called(function, given, sample.determined)
    true = [x.detach() for x in tree_leaves(exact) if _is_tensor(x)]
    return not error and all(
        _no_further(x, y, true[k]) for k, (x, y) in zip(kept, pairs, strict=True)
    )


def _is_drawn(
    function: Callable[..., Any],
    given: Any,
    determined: Callable[[Any], Any],
    before: list[torch.Tensor],
) -> bool:
    """Whether PyTorch's results are others when numbers are drawn from another beginning."""
    copied = tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, given)
    for first in (1, 2, 3):  # what is drawn may be the same by chance
        again, _ = _called(function, copied, determined, first)
        pairs = zip([x for x in tree_leaves(again) if _is_tensor(x)], before, strict=False)
        if any(x.shape == y.shape and far(x.detach(), y.detach()) != "" for x, y in pairs):
            return True
    return False


def _called(
    function: Callable[..., Any], given: Any, determined: Callable[[Any], Any], first: int = 0
) -> tuple[Any, str]:
    seed(first)
    try:
        found = determined(function(given[0], *given[1], **given[2]))
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


def _gradients(
    function: Callable[..., Any],
    determined: Callable[[Any], Any],
    mine: Any,
    given: Any,
    results: list[Any],
    wanted: list[Any],
) -> str:
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
    for number, (x, y) in enumerate(zip(found, expected, strict=True)):
        known = None if x is None else there(x)
        if known is None or y is None:
            other = y if known is None else known
            if other is not None and bool((other != 0).any()):
                return "a gradient that the other does not have"
        elif (difference := far(known, y)) and not (
            y.dtype in WIDER
            and _no_further(known, y, _true_gradient(function, determined, given, weights, number))
        ):
            return f"gradient: {difference}"
    return ""


def _true_gradient(
    function: Callable[..., Any], determined: Any, given: Any, weights: Any, number: int
) -> torch.Tensor:
    """The gradient of one of the arguments, as PyTorch finds it in a wider precision."""
    wide = _widened(given)
    exact, _ = _called(function, wide, determined)
    results = [x for x in tree_leaves(exact) if _is_tensor(x) and x.requires_grad]
    inputs = [x for x in tree_leaves(wide) if _is_tensor(x) and x.requires_grad]
    found = _graded(torch, results, inputs, [w.to(WIDER.get(w.dtype, w.dtype)) for w in weights])
    return torch.as_tensor(found[number])


def _graded(module: Any, results: list[Any], inputs: list[Any], weights: list[Any]) -> Any:
    total: Any = 0
    for x, w in zip(results, weights, strict=True):
        term = (x * w).sum()
        total = total + (term.real if term.is_complex() else term)
    return module.autograd.grad(total, inputs, allow_unused=True)


def examined(name: str, dtype: torch.dtype, most: int, draw: int = 0) -> tuple[str, str]:
    """How an operator does: "pass", "backward" for wrong gradients alone, "fail"; and why."""
    op = ENTRIES[name]
    trained = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    status, why, count = "pass", "", 0
    try:
        counterparts(op, "function")
    except Skipped:
        return "fail", "there is no such name"
    for sample in samples(op, dtype, trained and dtype in NEAR, most, draw):
        try:
            difference = compare(op, "function", sample, trained and dtype in NEAR)
        except Skipped:
            continue
        except Exception as error:
            difference = f"gradient: {type(error).__name__}: {error}"
        count += 1
        if difference:
            status = "backward" if "gradient" in difference[:12] else "fail"
            why = f"{difference[:300]} of {sample}"[:500]
        if status == "fail":
            break
    return (status, why) if count else ("skip", "")


def main() -> None:
    """Examine operators and print those that differ, and the shares that agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32,bfloat16,int64,complex64")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--draw", type=int, default=0, help="which samples, and their numbers")
    parser.add_argument("--only", default=".")
    parser.add_argument("--json", default="")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, dict[str, tuple[str, str]]] = {}
    for kind in chosen.dtype.split(","):
        dtype = getattr(torch, kind)
        found = results[kind] = {}
        for name, op in ENTRIES.items():
            fits = re.search(chosen.only, name) and dtype in op.supported_dtypes("cpu")
            if fits and public(op):
                found[name] = status, why = examined(name, dtype, chosen.samples, chosen.draw)
                if status in ("fail", "backward"):
                    print(f"{kind} {status} {name}: {' '.join(why.split())}", flush=True)
            if chosen.json:
                Path(chosen.json).write_text(json.dumps(results, indent=1))
        counted = [(ENTRIES[name], status) for name, (status, _) in found.items()]
        counted = [(op, status) for op, status in counted if status != "skip"]
        forward = sum(status != "fail" for _, status in counted)
        trained = [
            status
            for op, status in counted
            if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        ]
        backward = sum(status == "pass" for status in trained)
        print(
            f"{kind}: {forward} of {len(counted)} forward ({forward / max(len(counted), 1):.1%}), "
            f"{backward} of {len(trained)} backward ({backward / max(len(trained), 1):.1%})",
            flush=True,
        )


if __name__ == "__main__":
    main()
