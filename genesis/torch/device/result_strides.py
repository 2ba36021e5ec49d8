"""The strides of results: those that PyTorch's own kernels give them.

Programs look at strides: they ask whether a tensor is contiguous in a memory format, and `view`
works or not. Elementwise results lie as their arguments do. All other results of row-major
arguments are row-major, but for some matrices. For the rest PyTorch is asked, by its kernels for
the device "meta", which compute nothing but that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch._prims_common import compute_elementwise_output_strides

from genesis.ndarray.core.layout import row_major
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.device.operator_variants import operator
from genesis.torch.device.strides import Sizes, memory_order

#: Operators whose results have the memory format of their arguments, whatever PyTorch says.
_SUGGESTED = frozenset(
    (
        "convolution", "convolution_overrideable", "pixel_shuffle", "reflection_pad2d",
        "replication_pad2d", "roll",
    )
)  # fmt: skip

#: Results that lie by columns, and "meta" says something else, or nothing.
_BY_COLUMNS = {
    "nonzero": (0,), "linalg_lstsq": (0,), "cholesky": (0,), "triangular_solve": (0, 1),
    "geqrf": (0,), "_linalg_svd": (0, 2), "linalg_eig": (1,),
}  # fmt: skip

Strides = Callable[[Sequence[Any], dict[str, Any], Sequence[NDArray]], Sequence[Sizes | None]]


def result_strides(op: Any) -> Strides:
    """A function of an operator's arguments and results: the strides of each; None: row-major."""
    name = op._opname
    if name == "masked_fill":  # always row-major
        return lambda args, kwargs, results: [None] * len(results)
    if torch.Tag.pointwise in op.tags:
        return elementwise
    if name in _SUGGESTED:
        return _suggested
    if name in _BY_COLUMNS:
        return lambda args, kwargs, results: [
            _column_major(x.shape) if k in _BY_COLUMNS[name] else None
            for k, x in enumerate(results)
        ]
    asked = _Asked(op)
    matrices = "linalg" in name or name in ("cholesky_inverse", "cholesky_solve", "lu_unpack")
    transform = name.startswith("_fft_")

    def strides(
        args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[NDArray]
    ) -> Sequence[Sizes | None]:
        # A transform puts its axes last; of many axes PyTorch says something else than it does.
        moves = transform and len(args[1]) < min(3, args[0].dim())
        if not (matrices or moves) and all(
            x.is_contiguous() for x in _tensors_in((*args, *kwargs.values()))
        ):
            return [None] * len(results)
        return asked(args, kwargs, results)

    return strides


def arrays_in(results: Any) -> list[NDArray]:
    """The arrays among what a kernel gave."""
    if isinstance(results, NDArray):
        return [results]
    if isinstance(results, list | tuple):
        return [x for y in results for x in arrays_in(y)]
    return []


def _tensors_in(values: Any) -> Iterator[torch.Tensor]:
    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from _tensors_in(x)


def _packed(sizes: Sequence[int], strides: Sizes) -> Sizes | None:
    """Strides that are not row-major; None also if elements do not lie side by side."""
    if strides == row_major(tuple(sizes)) or memory_order(tuple(sizes), strides) is None:
        return None
    return strides


def _column_major(shape: Sequence[Any]) -> Sizes | None:
    """The strides of matrices that lie by columns."""
    if len(shape) < 2:
        return None
    *before, m, n = shape
    return _packed(shape, (*(m * n * s for s in row_major(tuple(before))), 1, m))


def elementwise(
    args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[NDArray]
) -> Sequence[Sizes | None]:
    """Those of the first argument of the result's shape, if packed."""
    return [_as_first(args, result) for result in results]


def _as_first(args: Sequence[Any], result: NDArray) -> Sizes | None:
    for x in args:
        if isinstance(x, torch.Tensor) and x.shape == result.shape:
            if x.is_contiguous():
                return None
            strides = x.stride()
            if memory_order(tuple(x.shape), strides) is None:  # in the order of its axes
                tensors = [y.expand(x.shape) for y in args if isinstance(y, torch.Tensor)]
                return _packed(x.shape, compute_elementwise_output_strides(*tensors))
            return strides
    return None


def _suggested(
    args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[NDArray]
) -> Sequence[Sizes | None]:
    """Channels last if the input is, or the weight."""
    (result,) = results
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(len(result.shape))
    if wanted is None or not any(_suggests(x, wanted) for x in _tensors_in(args[:2])):
        return [None]
    shape: Any = result.shape
    return [torch.empty(shape, device="meta", memory_format=wanted).stride()]


def _suggests(x: torch.Tensor, wanted: torch.memory_format) -> bool:
    return x.is_contiguous(memory_format=wanted) and not x.is_contiguous()


class _Asked:
    """What PyTorch says about an operator."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.backward = op._opname == "convolution_backward_overrideable"
        if self.backward:
            self.op = operator("aten::convolution_backward")

    def __call__(
        self, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[NDArray]
    ) -> Sequence[Sizes | None]:
        """The strides of each result."""
        if self.backward:
            args = (*args[:3], [args[0].shape[1]], *args[3:])
        found: list[Sizes | None] = [None] * len(results)
        with suppress(Exception):  # it has no kernel for that, or must see numbers
            named = {k: x for k, x in kwargs.items() if k not in ("generator", "device")}
            given = self.op(*_unreal(args), **_unreal(named))
            made = list(_tensors_in([given]))
            if [x.shape for x in made] == [x.shape for x in results]:
                found = [_packed(x.shape, x.stride()) for x in made]
        return found


def _unreal(x: Any) -> Any:
    """Arguments with tensors that have no contents in place of others."""
    if isinstance(x, torch.Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    if isinstance(x, list | tuple):
        return [_unreal(y) for y in x]
    if isinstance(x, dict):
        return {key: _unreal(y) for key, y in x.items()}
    return x
