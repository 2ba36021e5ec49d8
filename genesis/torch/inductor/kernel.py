"""The language that Inductor's loops are printed in, and the kernels that are made of them.

A kernel is a function of memory: what tensors contain, in the order in which it lies there. Run on
arrays it builds a graph, which is recorded once for every set of sizes and strides and launched
from then on as functions of `genesis.jit` are. Operations are those of PyTorch's operators
(`genesis.torch.aten`), so they agree with eager code about types, NaN and rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import torch

from genesis import ndarray as nd
from genesis.ir.dtype import DType, float32, int64, uint64
from genesis.ndarray.core import primitive
from genesis.ndarray.core.index_checks import from_start
from genesis.ndarray.core.integer_ranges import range_of
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.storage import write_through
from genesis.ndarray.core.value import Checked
from genesis.ndarray.ops.gather_scatter import combined
from genesis.ndarray.ops.normalize_index import positions
from genesis.ndarray.tracing.jit import Jit
from genesis.torch.aten.registry import implementations
from genesis.torch.convert import DTYPES
from genesis.torch.device import storage_contents
from genesis.torch.device.strides import Sizes, memory_order, span, steps_to, with_strides

#: Sets of sizes and strides a kernel is compiled for before the oldest is forgotten.
MAX_VARIANTS = 64

#: Operations of Inductor's under the names that operators have.
_OPERATORS = {
    "truediv": "div.Tensor", "div_rn": "div.Tensor", "int_truediv": "div.Tensor",
    "mod": "fmod.Tensor", "fmod": "fmod.Tensor", "remainder": "remainder.Tensor",
    "pow": "pow.Tensor_Tensor", "add": "add.Tensor", "sub": "sub.Tensor", "mul": "mul.Tensor",
    "mul_rn": "mul.Tensor", "floordiv": "floor_divide", "eq": "eq.Tensor", "ne": "ne.Tensor",
    "lt": "lt.Tensor", "le": "le.Tensor", "gt": "gt.Tensor", "ge": "ge.Tensor",
    "bitwise_and": "bitwise_and.Tensor", "bitwise_or": "bitwise_or.Tensor",
    "bitwise_xor": "bitwise_xor.Tensor", "and_": "bitwise_and.Tensor", "or_": "bitwise_or.Tensor",
    "xor": "bitwise_xor.Tensor", "bitwise_left_shift": "bitwise_left_shift.Tensor",
    "bitwise_right_shift": "bitwise_right_shift.Tensor", "lshift": "bitwise_left_shift.Tensor",
    "rshift": "bitwise_right_shift.Tensor", "copysign": "copysign.Tensor",
    "ldexp": "ldexp.Tensor", "frexp": "frexp.Tensor",
}  # fmt: skip


class Memory:
    """What lies in a piece of memory: an array in the order in which it lies there."""

    def __init__(
        self,
        sizes: Sizes,
        strides: Sizes,
        dtype: DType,
        device: str,
        storage: tuple[int, int] | None = None,
    ) -> None:
        self.sizes, self.strides, self.dtype, self.device = sizes, strides, dtype, device
        #: Where its tensor begins, and how many elements it has: those that the tensor spans, or
        #: its storage's.
        self.begin, self.count = storage or (0, span(sizes, strides, 0))
        self.needed = False  #: whether anything was read that was there before
        self._flat: NDArray | None = None

    def hold(self, array: NDArray) -> None:
        """Let it contain what its tensor sees, or all of its elements as a vector."""
        order = memory_order(self.sizes, self.strides)
        packed = order is not None and array.shape == self.sizes
        self._flat = (array.permute(order) if packed else array).reshape(-1)

    @property
    def flat(self) -> NDArray:
        """All of it, as a vector."""
        if self._flat is None:
            self.needed = True
            self._flat = nd.zeros(self.count, self.dtype, device=self.device)
        return self._flat

    @flat.setter
    def flat(self, array: NDArray) -> None:
        self._flat = array

    def array(self) -> NDArray:
        """What tensors of its sizes and strides see."""
        return self.seen(self.sizes, self.strides, 0)

    def seen(self, sizes: Sizes, strides: Sizes, offset: int) -> NDArray:
        """What a tensor of these sizes and strides sees, an offset after its own tensor begins."""
        offset += self.begin
        inside = offset >= 0 and span(sizes, strides, offset) <= self.count
        if inside and min(strides, default=0) >= 0:
            steps = steps_to((self.count,), sizes, strides, offset)
            if steps is not None:
                return self.flat.seen_through(*steps)
        address = _address(sizes, strides, offset, self.device)
        return wrap(primitive.gather(self.flat.value, address.value, 0))


def _address(sizes: Sizes, strides: Sizes, offset: int, device: str) -> NDArray:
    """Where the elements of a tensor lie."""
    found = nd.full((1,) * len(sizes), offset, int64, device=device)
    for k, stride in enumerate(strides):
        found = found + _axis(sizes, k, device) * stride
    return nd.broadcast_to(found, sizes)


def _axis(sizes: Sizes, k: int, device: str) -> NDArray:
    """The positions along an axis, in arrays of the rank of all axes."""
    shape = tuple(n if d == k else 1 for d, n in enumerate(sizes))
    return nd.arange(sizes[k], dtype=int64, device=device).reshape(shape)


class Axes:
    """The axes of a loop: those it runs over, then those it reduces over."""

    def __init__(self, iterated: Sizes, reduced: Sizes) -> None:
        self.all = (*iterated, *reduced)
        self.reduced = tuple(range(len(iterated), len(self.all)))

    @property
    def after(self) -> Axes:
        """The axes that what is reduced has: one element along those that were reduced over."""
        axes = Axes(self.all, ())
        axes.all = tuple(1 if d in self.reduced else n for d, n in enumerate(self.all))
        return axes


class Operations:
    """What the functions of kernels are made of."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._required: list[NDArray] = []  # positions that the next access is checked with

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = implementations.get(f"aten::{_OPERATORS.get(name, name)}")
        function = function or implementations.get(f"aten::special_{name}")
        if function is None:
            raise NotImplementedError(f"genesis.torch.inductor: there is no operation {name!r}")
        setattr(self, name, function)
        return function

    # ---- loops
    def axes(self, iterated: Sizes, reduced: Sizes) -> Axes:
        """The axes of the loop that follows."""
        return Axes(iterated, reduced)

    def axis(self, axes: Axes, k: int) -> NDArray:
        """The positions along an axis."""
        return _axis(axes.all, k, self._device)

    def memory(self, sizes: Sizes, strides: Sizes, dtype: torch.dtype) -> Memory:
        """Memory that only this kernel sees."""
        return Memory(sizes, strides, DTYPES[dtype], self._device)

    # ---- memory
    def load(self, memory: Memory, axes: Axes, strides: Sizes | None, address: Any) -> NDArray:
        """What lies at an address: an offset if there are strides of the axes."""
        if strides is None:
            where = self._array(address) + memory.begin
            return self._checked(wrap(primitive.gather(memory.flat.value, where.value, 0)))
        sizes = tuple(n if s else 1 for n, s in zip(axes.all, strides, strict=True))
        return self._checked(memory.seen(sizes, strides, address))

    def store(
        self,
        memory: Memory,
        value: Any,
        axes: Axes,
        strides: Sizes | None,
        address: Any,
        mode: str | None,
    ) -> None:
        """Put a value at an address, or add it to what is there."""
        array = self._checked(self._array(value).astype(memory.dtype))
        array = nd.broadcast_to(array, axes.all)
        address = address + memory.begin
        if strides is None:
            where = nd.broadcast_to(self._array(address), axes.all)
        else:
            if mode is None and self._moved_into(memory, array, axes.all, strides, address):
                return
            where = _address(axes.all, strides, address, self._device)
        updates, index = array.reshape(-1).value, where.reshape(-1).value
        how = "set" if mode is None else "add"
        memory.flat = wrap(combined(memory.flat.value, [index], updates, [0], how))

    def _moved_into(
        self, memory: Memory, array: NDArray, sizes: Sizes, strides: Sizes, address: int
    ) -> bool:
        """Put an array where a tensor of these strides is, if movement can; whether it did."""
        moving = [d for d, n in enumerate(sizes) if n != 1]
        shape = tuple(sizes[d] for d in moving)
        steps = tuple(strides[d] for d in moving)
        array = array.reshape(shape)
        order = memory_order(shape, steps) if address == 0 else None
        if order is not None and prod(shape) == memory.count:
            memory.flat = array.permute(order).reshape(-1)
            return True
        inside = address >= 0 and span(shape, steps, address) <= memory.count
        if not inside or min(steps, default=1) <= 0:
            return False
        view = steps_to((memory.count,), shape, steps, address)
        if view is not None:
            memory.flat = wrap(write_through(memory.flat.value, view, array.value))
        return view is not None

    def position(self, index: NDArray, extent: int, check: bool, wraps: bool) -> NDArray:
        """A position that was computed, in an axis of an extent; an IndexError if there is none."""
        if check:
            return wrap(positions("index", index, extent, 0, self._device))
        index = index.astype(int64)
        return nd.where(index < 0, index + extent, index) if wraps else index

    def require(self, index: Any, extent: int, mask: NDArray | None) -> None:
        """Positions that must exist, where a mask is, when the next access is made."""
        index = self._array(index)
        if mask is not None:
            index = nd.where(mask, index, 0)
        known = range_of(index.value)
        if index.size and (known is None or known[0] < 0 or known[1] >= extent):
            check = Checked(index.value, "index", extent, from_start(0))
            self._required.append(wrap(check))

    def _checked(self, x: NDArray) -> NDArray:
        """A value that is not computed before what is required has been checked."""
        for index in self._required:
            x = nd.where(index < 0, nd.zeros((), x.dtype, device=self._device), x)
        self._required.clear()
        return x

    # ---- values
    def constant(self, value: Any, dtype: torch.dtype) -> NDArray:
        """A number."""
        return nd.full((), value, DTYPES[dtype], device=self._device)

    def index(self, value: Any, dtype: torch.dtype) -> NDArray:
        """A number that is computed from positions along axes."""
        return self._array(value).astype(DTYPES[dtype])

    def masked(self, mask: NDArray, value: Any, other: Any) -> NDArray:
        """A value where a mask is, and `other` elsewhere."""
        value = self._array(value)
        return nd.where(mask, value, nd.full((), other, value.dtype, device=self._device))

    def where(self, condition: NDArray, value: Any, other: Any) -> NDArray:
        """One value where a condition is, and the other elsewhere."""
        return nd.where(condition, value, other)

    def to_dtype(self, x: NDArray, dtype: torch.dtype, *_: Any, **__: Any) -> NDArray:
        """A value as another type."""
        converted: NDArray = implementations["prims::convert_element_type"](x, DTYPES[dtype])
        return converted

    def trunc_to_int(self, x: NDArray, dtype: torch.dtype) -> NDArray:
        """The integer towards zero."""
        return nd.trunc(x).astype(DTYPES[dtype])

    def floor_to_int(self, x: NDArray, dtype: torch.dtype) -> NDArray:
        """The integer below."""
        return nd.floor(x).astype(DTYPES[dtype])

    def ceil_to_int(self, x: NDArray, dtype: torch.dtype) -> NDArray:
        """The integer above."""
        return nd.ceil(x).astype(DTYPES[dtype])

    def round_to_int(self, x: NDArray, dtype: torch.dtype) -> NDArray:
        """The nearest integer."""
        return nd.round(x).astype(DTYPES[dtype])

    def to_dtype_bitcast(self, x: NDArray, dtype: torch.dtype, *_: Any) -> NDArray:
        """The bits of a value as another type of the same size."""
        return nd.bitcast(x, DTYPES[dtype])

    def identity(self, x: NDArray) -> NDArray:
        """The value itself."""
        return x

    def truncdiv(self, a: NDArray, b: NDArray) -> NDArray:
        """The quotient, towards zero."""
        quotient: NDArray = implementations["aten::div.Tensor_mode"](a, b, rounding_mode="trunc")
        return quotient

    def fma(self, a: NDArray, b: NDArray, c: NDArray) -> NDArray:
        """A product and a sum."""
        return a * b + c

    def square(self, x: NDArray) -> NDArray:
        """A value times itself."""
        return x * x

    def greatest(self, *values: Any) -> NDArray:
        """The greatest of some positions."""
        return reduce(nd.maximum, map(self._array, values))

    def least(self, *values: Any) -> NDArray:
        """The least of some positions."""
        return reduce(nd.minimum, map(self._array, values))

    def _array(self, value: Any) -> NDArray:
        return value if isinstance(value, NDArray) else nd.array(value, device=self._device)

    # ---- random numbers
    def rand(self, seed: NDArray, offset: NDArray) -> NDArray:
        """A number from 0 to 1 for each position, the same ones for the same seed."""
        return _fraction(_mixed(seed, offset, 0))

    def randn(self, seed: NDArray, offset: NDArray) -> NDArray:
        """A normal number for each position."""
        radius = nd.sqrt(-2 * nd.log(1 - _fraction(_mixed(seed, offset, 0))))
        return radius * nd.cos(6.283185307179586 * _fraction(_mixed(seed, offset, 1)))

    def randint64(self, seed: NDArray, offset: NDArray, low: NDArray, high: NDArray) -> NDArray:
        """An integer from `low` to below `high` for each position."""
        words = (_mixed(seed, offset, 0) >> 1).astype(int64)
        return low + words % (high - low)

    # ---- reductions
    def reduction(self, kind: str, value: Any, axes: Axes, dtype: torch.dtype) -> Any:
        """The reduction of a value over the axes of the loop that are reduced."""
        if kind == "welford_combine":
            mean, m2, weight = (nd.broadcast_to(self._array(x), axes.all) for x in value)
            total = nd.sum(weight, axes.reduced, keepdims=True)
            whole = nd.sum(mean * weight, axes.reduced, keepdims=True) / total
            apart = m2 + weight * (mean - whole) * (mean - whole)
            return whole, nd.sum(apart, axes.reduced, keepdims=True), total
        x = nd.broadcast_to(self._array(value), axes.all)
        if kind in ("argmax", "argmin"):
            flat = x.reshape(*axes.all[: len(axes.all) - len(axes.reduced)], -1)
            place = (nd.argmax if kind == "argmax" else nd.argmin)(flat, -1)
            return place.reshape(axes.after.all).astype(DTYPES[dtype])
        if kind == "any":
            return nd.any(x, axes.reduced, keepdims=True)
        if kind == "welford_reduce":
            count = prod(axes.all[d] for d in axes.reduced)
            mean = nd.sum(x, axes.reduced, keepdims=True) / count
            m2 = nd.sum((x - mean) * (x - mean), axes.reduced, keepdims=True)
            return mean, m2, nd.full_like(mean, count)
        if kind == "online_softmax_reduce":
            top = nd.max(x, axes.reduced, keepdims=True)
            return top, nd.sum(nd.exp(x - top), axes.reduced, keepdims=True)
        functions = {"sum": nd.sum, "prod": nd.prod, "max": nd.max, "min": nd.min}
        if kind not in functions:
            raise NotImplementedError(f"genesis.torch.inductor: there is no reduction {kind!r}")
        x = x.astype(DTYPES[dtype]) if kind in ("sum", "prod") else x
        return functions[kind](x, axes.reduced, keepdims=True).astype(DTYPES[dtype])


def _mixed(seed: NDArray, offset: NDArray, stream: int) -> NDArray:
    """64 random bits for each position of a stream (SplitMix64 of the seed, then of both)."""

    def mix(z: NDArray) -> NDArray:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB
        return z ^ (z >> 31)

    place = offset.astype(int64).astype(uint64) * 2 + stream + 1
    return mix(mix(nd.bitcast(seed.astype(int64), uint64)) + place * 0x9E3779B97F4A7C15)


def _fraction(bits: NDArray) -> NDArray:
    """The upper 24 bits as a number from 0 to below 1."""
    return (bits >> 40).astype(float32) * 2**-24


class FusedKernel:
    """A kernel that Inductor printed: a function of tensors it reads and leaves behind, and sizes.

    Of the tensors numbered `strided` it reads all that their storages contain.

    >>> twice = FusedKernel(1, 1, '''
    ... def kernel(ops, in_ptr0, out_ptr0):
    ...     axes = ops.axes((3,), ())
    ...     tmp0 = ops.load(in_ptr0, axes, (1,), 0)
    ...     ops.store(out_ptr0, ops.add(tmp0, tmp0), axes, (1,), 0, None)
    ... ''')
    >>> x = torch.arange(3.0, device="genesis")
    >>> result = torch.empty_like(x)
    >>> twice(x, result)
    >>> result.tolist()
    [0.0, 2.0, 4.0]
    """

    def __init__(self, reads: int, leaves: int, text: str, strided: Sequence[int] = ()) -> None:
        self.text, self._strided = text, strided
        self._reads, self._tensors = reads, reads + leaves
        found: dict[str, Any] = {"torch": torch}
        exec(compile(text, "<kernel of Inductor's>", "exec"), found)
        self._function: Callable[..., None] = found["kernel"]
        self._variants: dict[tuple[Any, ...], Variant] = {}

    def __call__(self, *arguments: Any) -> None:
        """Launch it; what it leaves behind is in the tensors after those it reads."""
        tensors, sizes = arguments[: self._tensors], arguments[self._tensors :]
        layouts = tuple((t.shape, t.stride(), t.dtype, t.device) for t in tensors)
        storages = {k: _storage(tensors[k]) for k in self._strided}
        key = layouts, sizes, *storages.values()
        variant = self._variants.get(key)
        if variant is None:
            if len(self._variants) >= MAX_VARIANTS:
                del self._variants[next(iter(self._variants))]
            variant = self._variants[key] = self._specialised(layouts, sizes, storages)
        run, whole, device = variant
        given = tensors[: self._reads] if whole else tensors
        results = run(*(_contents(t, device, k in storages) for k, t in enumerate(given)))
        for tensor, array in zip(tensors[self._reads :], results, strict=True):
            storage_contents.write(tensor, array)

    def _specialised(
        self, layouts: Sequence[Any], sizes: Sequence[int], storages: Mapping[int, tuple[int, int]]
    ) -> Variant:
        """The kernel for some sizes and strides."""
        device = storage_contents.name_of_device(layouts[-1][3].index)
        operations = Operations(device)

        def memories() -> list[Memory]:
            return [
                Memory(tuple(n), tuple(s), DTYPES[d], device, storages.get(k))
                for k, (n, s, d, _) in enumerate(layouts)
            ]

        def run(*arrays: NDArray) -> list[Memory]:
            pieces = memories()
            for piece, array in zip(pieces, arrays, strict=False):
                piece.hold(array)
            self._function(operations, *pieces, *sizes)
            return pieces[self._reads :]

        def left(*arrays: NDArray) -> tuple[NDArray, ...]:
            return tuple(piece.array() for piece in run(*arrays))

        anything = [piece.flat for piece in memories()[: self._reads]]
        whole = not any(piece.needed for piece in run(*anything))
        return Variant(Jit(left, None, ()), whole, device)


class Variant(NamedTuple):
    """A kernel for some sizes and strides."""

    run: Jit[..., Any]
    whole: bool  #: whether all that it leaves behind is written anew
    device: str


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    """Where in its storage a tensor begins, and how many elements that has."""
    return int(tensor.storage_offset()), tensor.untyped_storage().nbytes() // tensor.itemsize


def _contents(tensor: torch.Tensor, device: str, strided: bool) -> NDArray:
    """What a kernel reads of a tensor: what it sees if that is packed, else all it spans.

    If it is `strided`, all that its storage contains. Numbers that are tensors on the CPU are read
    wherever a kernel runs.
    """
    if tensor.device.type == "cpu":
        return storage_contents.from_host(tensor, device)
    if strided:
        return storage_contents.read(tensor.as_strided((_storage(tensor)[1],), (1,), 0))
    layout = storage_contents.layout_of(tensor)
    if layout.order is not None:
        return storage_contents.read(tensor)
    count = span(layout.sizes, layout.strides, 0)
    return storage_contents.read(tensor.as_strided((count,), (1,), layout.offset))


def laid_out(tensor: torch.Tensor, sizes: Sizes, strides: Sizes) -> torch.Tensor:
    """A tensor with these strides, or one of the same contents that has them."""
    if tensor.shape != sizes:
        raise RuntimeError(f"an operator gave {tuple(tensor.shape)} where {sizes} was expected")
    return with_strides(tensor, strides)
