"""`from_torch`: a program that `torch.export` made, as a module of Genesis.

The operators of its graph are run by their kernels on lazy arrays. So the module can be jitted,
written to an ONNX file or run on another device like any other; its parameters have the names they
have in PyTorch. Gradients do not go through it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from genesis import arange, from_numpy, functional, nn, zeros
from genesis.ndarray.core.ndarray import NDArray
from genesis.tensor.tensor import Tensor
from genesis.torch.aten import implementations, name_of
from genesis.torch.convert import arguments, as_dtype
from genesis.torch.convert import from_torch as as_array

#: Operators that only check, or tell PyTorch's tracer what to expect.
_REMARKS = ("aten::_assert", "aten::sym_constrain")
_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def _grouped(x: NDArray, weight: NDArray, ends: NDArray) -> Any:
    """Rows, sorted by experts, each times the matrix of its own; `ends` says where those end."""
    rows, given, matrices = functional.unsqueeze(Tensor(x), 0), Tensor(ends), Tensor(weight)
    of_row = (given.reshape(1, -1) <= arange(x.shape[0]).reshape(-1, 1)).sum(1)
    own = of_row.reshape(1, -1, 1) == arange(weight.shape[0]).reshape(-1, 1, 1)
    each = functional.matmul(rows, matrices)
    return functional.where(own, each, zeros((), dtype=each.dtype)).sum(0).array


#: Operators on sizes, of programs whose sizes are open.
_SIZES: dict[str, Callable[..., Any]] = {
    "aten::sym_size.int": lambda x, axis: x.shape[axis],
    "aten::sym_numel": lambda x: math.prod(x.shape),
}
#: Operators of other libraries that exported programs have.
_OTHERS = {"transformers::grouped_mm_fallback": _grouped}


def _rules() -> dict[Any, Any]:
    """What operators without a kernel are broken down by."""
    rules: Any = torch.export.default_decompositions()
    return {
        op: rule
        for op, rule in rules.items()
        if not (isinstance(op, torch._ops.OpOverload) and name_of(op) in implementations)
    }


def _is_known(name: str) -> bool:
    return name in implementations or name in _OTHERS or name in _SIZES or name.startswith(_REMARKS)


class FromTorch(nn.Module):
    """What a program of PyTorch's computes, on tensors of Genesis."""

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__()
        program = program.run_decompositions(_rules())
        self.graph = program.graph
        self._require_kernels()
        signature = program.graph_signature
        self._weights: dict[str, str] = {}  # by placeholder
        self._inputs: list[Any] = []  # names, or constants that stand in the program
        held = {**program.state_dict, **program.constants}
        for spec in signature.input_specs:
            if spec.kind in _WEIGHTS:
                assert spec.target is not None
                self._weights[spec.arg.name] = spec.target
                self._keep(spec.target, held[spec.target], spec.kind is InputKind.PARAMETER)
            elif spec.kind is InputKind.USER_INPUT:
                self._inputs.append(spec.arg)
        kept = (OutputKind.USER_OUTPUT,)
        self._outputs = [
            k for k, spec in enumerate(signature.output_specs)
            if spec.kind in kept and not isinstance(spec.arg, ConstantArgument)
        ]  # fmt: skip
        self.eval()

    def _keep(self, name: str, value: torch.Tensor, trained: bool) -> None:
        array = Tensor(as_array(value.detach().contiguous())).clone()
        if trained and array.dtype.is_float:
            self._parameters[name] = nn.Parameter(array)
        else:
            self._buffers[name] = array

    def _require_kernels(self) -> None:
        missing = {
            name_of(n.target)
            for n in self.graph.nodes
            if isinstance(n.target, torch._ops.OpOverload) and not _is_known(name_of(n.target))
        }
        if missing:
            raise NotImplementedError(
                f"from_torch: there is no kernel for {', '.join(sorted(missing))}"
            )

    def forward(self, *args: Any, **named: Any) -> Any:
        """The results of the program, in a tuple if there are several.

        Inputs are tensors, of Genesis or PyTorch, or arrays of NumPy, and have the sizes that the
        program was made for; those that `torch.export` was told to leave open may have any.
        """
        flat = list(torch.utils._pytree.tree_leaves((args, named)))
        if len(flat) != len(self._inputs):
            raise ValueError(f"from_torch: {len(flat)} inputs, the program has {len(self._inputs)}")
        known: dict[Any, Any] = {}
        given = {spec.name: _as_given(x) for spec, x in zip(self._inputs, flat, strict=True)}
        for node in self.graph.nodes:
            if node.op == "placeholder":
                known[node] = self._given(node.name, given, node.meta.get("val"))
            elif node.op == "call_function":
                known[node] = _called(node, known)
            elif node.op == "output":
                results = [_result(known[node.args[0][k]]) for k in self._outputs]
                return results[0] if len(results) == 1 else tuple(results)
        return ()

    def _given(self, name: str, given: Mapping[str, Any], expected: Any) -> Any:
        if name not in self._weights:
            _require_fitting(name, given[name], expected)
            return given[name]
        target = self._weights[name]
        homes = (self._parameters, self._buffers)
        return next(home[target] for home in homes if target in home).array


def _as_given(x: Any) -> Any:
    """An input as kernels take it."""
    if isinstance(x, torch.Tensor):
        return as_array(x.detach().contiguous())
    if isinstance(x, np.ndarray):
        return from_numpy(x).array
    return x.array if isinstance(x, Tensor) else x


def _require_fitting(name: str, x: Any, expected: Any) -> None:
    """Refuse an input of other sizes or another type than the program was made for."""
    if not isinstance(expected, torch.Tensor):
        return
    if not isinstance(x, NDArray):
        raise TypeError(f"from_torch: the input {name!r} is a tensor, not a {type(x).__name__}")
    sizes = list(expected.shape)
    fits = len(sizes) == x.ndim and all(
        isinstance(n, torch.SymInt) or n == m for n, m in zip(sizes, x.shape, strict=True)
    )
    if not fits or x.dtype is not as_dtype(expected.dtype):
        raise ValueError(
            f"from_torch: the program was made for an input {name!r} of "
            f"{as_dtype(expected.dtype)}{sizes}, not {x.dtype}{list(x.shape)}; sizes are open "
            "where `dynamic_shapes` of torch.export says so"
        )


def _called(node: Any, known: Mapping[Any, Any]) -> Any:
    if node.target is operator.getitem:
        return known[node.args[0]][node.args[1]]
    args, kwargs = arguments(node.args, node.kwargs, lambda x: known.get(x))
    if not isinstance(node.target, torch._ops.OpOverload):  # of Python, with sizes
        return node.target(*args, **kwargs)
    name = name_of(node.target)
    if name.startswith(_REMARKS):
        return None
    kernel: Any = _OTHERS.get(name) or _SIZES.get(name) or implementations[name]
    result, expected = kernel(*args, **kwargs), node.meta.get("val")
    if isinstance(expected, torch.Tensor):
        return _as(result, expected)
    if not isinstance(expected, list | tuple):
        return result
    return [
        _as(x, want) if isinstance(want, torch.Tensor) else x
        for x, want in zip(result, expected, strict=True)
    ]


def _as(x: Any, expected: torch.Tensor) -> Any:
    """A kernel's result in the type that PyTorch foresees."""
    dtype = as_dtype(expected.dtype)
    return x if x is None or x.dtype is dtype else x.astype(dtype)


def _result(x: Any) -> Any:
    return Tensor(x) if isinstance(x, NDArray) else x


def from_torch(program: Any, *example: Any, **named: Any) -> FromTorch:
    """A program of `torch.export`, or a module of PyTorch with an example of its inputs."""
    if isinstance(program, torch.nn.Module):
        if not example and not named:
            raise TypeError("from_torch: an example of the module's inputs is needed")
        with torch.no_grad():
            program = torch.export.export(program.eval(), example, named)
    if not isinstance(program, ExportedProgram):
        raise TypeError(
            "from_torch: a module of PyTorch or a program of torch.export, not a "
            f"{type(program).__name__}"
        )
    return FromTorch(program)


__all__ = ["FromTorch", "from_torch"]
