"""`from_jax`: a function of JAX, by its StableHLO, as a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from genesis import from_numpy, functional, nn, scan
from genesis.ir.dtype import int32
from genesis.jax.stablehlo_operations import OPERATIONS, REMARKS, constant, dtype_of
from genesis.ndarray.core.value import CaptureError, unwatched
from genesis.tensor.tensor import Tensor

#: What happens to values, and not to their contents.
_STRUCTURE = {
    "func.call", "func.return", "stablehlo.return", "stablehlo.while", "stablehlo.case",
    "stablehlo.if", "stablehlo.constant", "stablehlo.optimization_barrier", "stablehlo.composite",
}  # fmt: skip

Known = dict[Any, Any]


class FromJax(nn.Module):
    """What a function of JAX computes, on tensors of Genesis; made by `from_jax`."""

    def __init__(self, lowered: Any) -> None:
        super().__init__()
        self._module = lowered.compiler_ir("stablehlo")  # operations live as long as it does
        self._functions = {str(f.name.value): f for f in self._module.body.operations}
        self._inputs, self._outputs = lowered.in_tree, lowered.out_tree
        kept = lowered._lowering.compile_args.get("kept_var_idx")
        self._kept = sorted(kept) if kept is not None else None
        self._require_known()

    def _require_known(self) -> None:
        every = {o for f in self._functions.values() for o in _names(f.operation)}
        unknown = sorted(every - OPERATIONS.keys() - _STRUCTURE - {*REMARKS})
        if unknown:
            raise NotImplementedError(
                f"from_jax: the function has operations that are not known: {', '.join(unknown)}"
            )

    def forward(self, *args: Any, **named: Any) -> Any:
        """The results, in the structure in which the function gives them."""
        # What JAX's own functions look at is no business of whoever records this.
        return unwatched(self._computed, args, named)

    def _computed(self, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        leaves, tree = jax.tree_util.tree_flatten((args, named), is_leaf=_is_tensor)
        if tree != self._inputs:
            raise ValueError(
                f"from_jax: the arguments are {tree}, the function takes {self._inputs}"
            )
        chosen = leaves if self._kept is None else [leaves[k] for k in self._kept]
        main = self._functions["main"]
        kinds = [a.type for a in main.regions[0].blocks[0].arguments]
        given = [_taken(x, kind) for x, kind in zip(chosen, kinds, strict=True)]
        results = self._call("main", given)
        return jax.tree_util.tree_unflatten(self._outputs, results)

    def _call(self, name: str, args: Sequence[Any]) -> list[Any]:
        return self._block(self._functions[name].regions[0].blocks[0], args, {})

    def _block(self, block: Any, args: Sequence[Any], outer: Mapping[Any, Any]) -> list[Any]:
        """What a block returns, which may use values of those around it."""
        known: Known = {**outer, **dict(zip(block.arguments, args, strict=True))}
        for wrapped in block.operations:
            op = wrapped.operation
            if op.name in ("func.return", "stablehlo.return"):
                return [known[x] for x in op.operands]
            results = self._results(op, known)
            known.update(zip(op.results, results, strict=True))
        return []

    def _results(self, op: Any, known: Known) -> Sequence[Any]:
        args = [known[x] for x in op.operands]
        match op.name:
            case "stablehlo.constant":
                return [constant(op)]
            case "stablehlo.optimization_barrier":
                return args
            case "func.call":
                return self._call(str(op.attributes["callee"].value), args)
            case "stablehlo.composite":
                return self._call(str(op.attributes["decomposition"].value), args)
            case "stablehlo.while":
                return self._while(op, args, known)
            case "stablehlo.case" | "stablehlo.if":
                return self._case(op, args[0], known)
        results = OPERATIONS[op.name](op, *args)
        return results if isinstance(results, list | tuple) else [results]

    def _case(self, op: Any, index: Any, known: Known) -> list[Any]:
        """One of several branches: the one that is asked for, or where nobody knows yet, all."""
        branches = [b.blocks[0] for b in op.regions]
        if op.name == "stablehlo.if":
            branches, index = branches[::-1], index.to(int32)
        try:
            which = int(index.item())
            inside = which if 0 <= which < len(branches) else len(branches) - 1
            return self._block(branches[inside], (), known)
        except CaptureError:
            *others, results = [self._block(b, (), known) for b in branches]
            for k, other in reversed(list(enumerate(others))):
                results = [
                    functional.where(index == k, a, b) for a, b in zip(other, results, strict=True)
                ]
            return results

    def _while(self, op: Any, args: list[Any], known: Known) -> list[Any]:
        """A loop: one that counts is a scan, others ask for their condition in every round."""
        condition, body = (r.blocks[0] for r in op.regions)
        rounds = _rounds(op, condition, body)
        if rounds is not None:
            if rounds <= 0:
                return args

            def step(carry: Any, _: Any) -> Any:
                return tuple(self._block(body, carry, known)), None

            last, _ = scan(step, tuple(args), length=rounds)
            return list(last)
        while bool(self._block(condition, args, known)[0].item()):
            args = self._block(body, args, known)
        return args


def _names(op: Any) -> Iterator[str]:
    """The operations below one, less those in regions that another one understands."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                calls = inner.operation.name == "stablehlo.custom_call"
                target = inner.operation.attributes["call_target_name"] if calls else None
                yield str(target).strip('"') if calls else inner.operation.name
                if inner.operation.name in _STRUCTURE:
                    yield from _names(inner.operation)


def _rounds(op: Any, condition: Any, body: Any) -> int | None:
    """How often a loop runs that counts one up to a number; None for others."""
    *_, compare, returned = (o.operation for o in condition.operations)
    if compare.name != "stablehlo.compare" or returned.operands[0] != compare.results[0]:
        return None
    if "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    place = next((k for k, a in enumerate(condition.arguments) if a == compare.operands[0]), None)
    end, first = _number(compare.operands[1]), None
    if place is not None:
        first = _number(op.operands[place])
    if place is None or end is None or first is None:
        return None
    *_, last = (o.operation for o in body.operations)
    return end - first if _counts(last.operands[place], body.arguments[place]) else None


def _counts(value: Any, argument: Any) -> bool:
    """Whether a value is one more than an argument."""
    maker: Any = getattr(value, "owner", None)
    if getattr(maker, "name", "") != "stablehlo.add":
        return False
    a, b = maker.operands
    return (a == argument and _number(b) == 1) or (b == argument and _number(a) == 1)


def _number(value: Any) -> int | None:
    """An integer that stands in the program."""
    maker: Any = getattr(value, "owner", None)
    if getattr(maker, "name", "") != "stablehlo.constant":
        return None
    found = np.asarray(maker.attributes["value"])
    return int(found.reshape(-1)[0]) if found.size == 1 and found.dtype.kind in "iu" else None


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def _taken(x: Any, kind: Any) -> Any:
    """An argument as a tensor of the type that the program was made for."""
    made = x if isinstance(x, Tensor) else from_numpy(np.array(x))
    wanted, shape = dtype_of(kind), tuple(kind.shape)
    if tuple(made.shape) != shape:
        raise ValueError(f"from_jax: an argument of shape {tuple(made.shape)}, not {shape}")
    return made if made.dtype is wanted else made.to(wanted)


def from_jax(function: Callable[..., Any], *example: Any, **named: Any) -> FromJax:
    """A function of JAX as a module, for arguments like the example.

    The example is what JAX takes, or tensors of Genesis, nested as the function wants them; the
    module is called with the same structure and shapes. Loops that count are scans; others need to
    know their condition, and cannot be jitted.
    """

    def array(x: Any) -> Any:
        return x.numpy() if isinstance(x, Tensor) else x

    args, kwargs = jax.tree_util.tree_map(array, (example, named), is_leaf=_is_tensor)
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    return FromJax(jitted.lower(*args, **kwargs))


__all__ = ["FromJax", "from_jax"]
