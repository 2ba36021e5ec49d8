"""Movement: the same elements in other shapes and places. Gradients move back the way they came.

`view_through` and `unview` are the two halves of all movement that a chain of steps on a storage
can express (slices, permutations, reshapes, expansions): one reads through the steps, the other is
its transpose. Each is the other's gradient. What shares memory in PyTorch does so here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import index as as_int
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import conj
from genesis.functional.error_messages import WRONG, normal_dim, normal_dims, reword, worded
from genesis.functional.function import Function, is_tensor, plain, view_of, with_gradient
from genesis.functional.registry import method
from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.size import Size, as_size, product, same
from genesis.ndarray import NDArray
from genesis.ndarray.core import primitive
from genesis.ndarray.core.layout import Strides, is_row_major
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.storage import Steps, layout_through, strides_in, write_through
from genesis.ndarray.core.value import thread
from genesis.ndarray.ops.movement import narrow as narrowed

# ---- through steps


class View(Function):
    """An array seen through steps, sharing its storage."""

    @staticmethod
    def forward(ctx: Any, x: NDArray, steps: Steps) -> Any:
        ctx.steps, ctx.shape = steps, x.shape
        return x.seen_through(*steps)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return unview(grad, ctx.steps, ctx.shape), None

    @staticmethod
    def rule_of(ctx: Any) -> Hashable:
        """The steps, and the shape that they are of."""
        return View, ctx.steps, ctx.shape

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """The operation on tensors, or on arrays."""
        found = view_of(*args)
        return super().apply(*args) if found is None else found


class Unview(Function):
    """Elements put back where steps read them from; zeros elsewhere, sums where several went."""

    @staticmethod
    def forward(ctx: Any, x: NDArray, steps: Steps, shape: Any) -> Any:
        ctx.steps = steps
        shapes = [shape, *(step.shape for step in steps)]
        value = x.value
        for step, before in zip(reversed(steps), reversed(shapes[:-1]), strict=True):
            if step.op is ops.EXPAND:
                axes = [
                    d for d, (a, b) in enumerate(zip(before, step.shape, strict=True)) if a != b
                ]
                value = primitive.reshape(primitive.reduce(ops.SUM, value, tuple(axes)), before)
            elif step.op is ops.SLICE:
                zero = primitive.constant(0, value.dtype, value.device)
                value = primitive.pad(value, step.attr, before, zero)
            elif step.op is ops.PERMUTE:
                inverse = sorted(range(len(step.attr)), key=step.attr.__getitem__)
                value = primitive.permute(value, inverse)
            elif step.op is ops.RESHAPE:
                value = primitive.reshape(value, before)
            else:
                value = _SENT_BACK[step.op](wrap(value), step, before).value
        return wrap(value)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return view_through(grad, ctx.steps), None, None


#: The transposes of steps that are no plain movement.
_SENT_BACK: dict[Any, Callable[[NDArray, Any, Any], NDArray]] = {
    ops.REAL: lambda grad, step, before: nd.complex(grad, nd.zeros_like(grad)),
    ops.IMAG: lambda grad, step, before: nd.complex(nd.zeros_like(grad), grad),
    ops.AS_REAL: lambda grad, step, before: nd.view_as_complex(grad),
    ops.AS_COMPLEX: lambda grad, step, before: nd.view_as_real(grad),
    ops.WINDOW: lambda grad, step, before: nd.overlap_add(
        grad, step.attr[0], before[step.attr[0]], step.attr[1]
    ),
}


def view_through(x: Any, steps: Steps) -> Any:
    """`x` seen through steps."""
    return View.apply(x, steps) if steps else x


def unview(x: Any, steps: Steps, shape: Any) -> Any:
    """An array of `shape` that is `x` where steps read, and zero elsewhere."""
    return Unview.apply(x, steps, shape) if steps else x


class Overwrite(Function):
    """x with the elements that steps read replaced by new ones; without steps, all of them."""

    @staticmethod
    def forward(ctx: Any, x: NDArray, new: NDArray, steps: Steps) -> Any:
        ctx.steps = steps
        shape = steps[-1].shape if steps else x.shape
        return wrap(write_through(x.value, steps, primitive.broadcast(new.value, shape)))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        read = view_through(grad, ctx.steps)
        kept = None
        if ctx.needs_input_grad[0]:
            kept = Overwrite.apply(grad, plain(nd.zeros_like, read), ctx.steps)
        return kept, read, None


def steps_of(function: Callable[..., NDArray], x: Any, *args: Any) -> Steps:
    """The steps that an array function of views adds to `x`."""
    array: NDArray = x.array if is_tensor(x) else x
    return function(array, *args).steps[len(array.steps) :]


#: What movements add, by what they are and by the arrays that they are of.
_steps: dict[Any, Steps] = {}
_MOST_STEPS = 1 << 12


def _are_sizes(x: Any) -> bool:
    return type(x) is tuple and all(type(n) is int for n in x)


def moved(function: Any, x: Any, *args: Any) -> Any:
    """A movement of arrays on whatever `x` is: its steps are what the array function adds."""
    if not is_tensor(x):
        return function(x, *args)
    array = x.array
    key = None
    if thread.recorder is None and all(type(a) is int or _are_sizes(a) for a in args):
        key = function, array.storage.actual.shape, array.steps, array.shape, array.dtype, args
        steps = _steps.get(key)
        if steps is not None:
            return View.apply(x, steps)
    try:
        moved = function(array, *args)
    except WRONG as error:
        reword(error)
        raise
    if moved.storage is array.storage:  # a view is a tensor of its own, even of the same shape
        steps = moved.steps[len(array.steps) :]
        if key is not None:
            if len(_steps) >= _MOST_STEPS:
                _steps.clear()
            _steps[key] = steps
        return View.apply(x, steps)
    return _reshape(x, moved.shape, x.shape)


def _reshaped_back(grad: Any, before: Any) -> Any:
    return reshape(grad, before)


@with_gradient(_reshaped_back)
def _reshape(x: NDArray, shape: Any, before: Any) -> Any:
    """A reshape that no view expresses, such as one of a transpose."""
    return nd.reshape(x, shape)


# ---- shapes


def _listed(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers given one by one, or as one sequence."""
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], tuple | list) else given


@method
def reshape(input: Any, *shape: Any) -> Any:
    """The same elements in another shape; one size may be -1. A view where that is possible."""
    return moved(nd.reshape, input, _listed(shape))


@method
def reshape_as(input: Any, other: Any) -> Any:
    """`input` in the shape of another tensor."""
    return reshape(input, other.shape)


_reshaped = worded(nd.reshape)


@method
def view(input: Any, *shape: Any) -> Any:
    """The same memory in another shape; one size may be -1. With a dtype, its bits as that type."""
    if len(shape) == 1 and isinstance(shape[0], DType):
        bits = input.detach() if is_tensor(input) else input  # no gradient goes through bits
        return moved(nd.bitcast, bits, shape[0])
    sizes = _listed(shape)
    array = input.array if is_tensor(input) else input
    if _reshaped(array, sizes).storage is not array.storage:
        raise RuntimeError(
            f"view: no view of shape {sizes} exists of this tensor of shape {tuple(array.shape)} "
            f"with strides {strides_of(array)}; use reshape, which copies where it must"
        )
    return reshape(input, sizes)


@method
def view_as(input: Any, other: Any) -> Any:
    """`input` viewed in the shape of another tensor."""
    return view(input, other.shape)


@method
def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """The dimensions from `start_dim` to `end_dim` as one."""
    shape = input.shape or (1,)
    first = normal_dim("flatten", start_dim, len(shape))
    last = normal_dim("flatten", end_dim, len(shape))
    if first > last:
        raise ValueError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    if first == last and input.shape:
        return input
    joined = product(shape[first : last + 1])
    return reshape(input, (*shape[:first], joined, *shape[last + 1 :]))


@method
def ravel(input: Any) -> Any:
    """All elements as one dimension."""
    return reshape(input, (-1,)) if product(input.shape) != 0 else reshape(input, (0,))


@method
def unflatten(input: Any, dim: int, sizes: Sequence[int]) -> Any:
    """One dimension as several; one of the sizes may be -1."""
    axis = normal_dim("unflatten", dim, len(input.shape))
    length, listed = input.shape[axis], list(sizes)
    if -1 in listed:
        known = product(s for s in listed if s != -1)
        listed[listed.index(-1)] = length // known if known != 0 else 0
    if -1 in listed or not same(product(listed), length):
        raise ValueError(f"unflatten: sizes {tuple(sizes)} do not make up {length} (dim {axis})")
    return reshape(input, (*input.shape[:axis], *listed, *input.shape[axis + 1 :]))


@method(in_place="view")
def squeeze(input: Any, dim: int | Sequence[int] | None = None) -> Any:
    """Without dimensions of extent 1: all, or those of the given ones that are."""
    shape = input.shape
    axes = normal_dims("squeeze", dim, len(shape) or 1)
    kept = tuple(s for d, s in enumerate(shape) if d not in axes or not same(s, 1))
    return reshape(input, kept)


@method(in_place="view")
def unsqueeze(input: Any, dim: int) -> Any:
    """With a new dimension of extent 1."""
    return moved(nd.unsqueeze, input, dim)


@method
def expand(input: Any, *sizes: Any) -> Any:
    """Dimensions of extent 1 repeated without a copy; -1 keeps an extent."""
    return moved(nd.expand, input, _listed(sizes))


@method
def expand_as(input: Any, other: Any) -> Any:
    """`input` expanded to the shape of another tensor."""
    return expand(input, other.shape)


@method
def broadcast_to(input: Any, size: Sequence[int]) -> Any:
    """`input` expanded to a shape it broadcasts to."""
    return expand(input, tuple(size))


# ---- order of dimensions


@method
def permute(input: Any, *dims: Any) -> Any:
    """Dimensions in another order."""
    return moved(nd.permute, input, _listed(dims))


@method(in_place="view")
def transpose(input: Any, dim0: int, dim1: int) -> Any:
    """Two dimensions exchanged."""
    if not input.shape:  # a view is a tensor of its own, even if it is of everything
        return View.apply(input, ())
    return moved(nd.swapaxes, input, dim0, dim1)


swapdims = transpose


@method(in_place="view")
def swapaxes(input: Any, axis0: int, axis1: int) -> Any:
    """`transpose` by NumPy's name."""
    return transpose(input, axis0, axis1)


@method(in_place="view")
def t(input: Any) -> Any:
    """A matrix transposed; fewer dimensions stay as they are."""
    if len(input.shape) > 2:
        raise RuntimeError(f"t: expected at most 2 dimensions, got shape {tuple(input.shape)}")
    return transpose(input, 0, -1)


@method
def adjoint(input: Any) -> Any:
    """Matrices transposed and conjugated."""
    return conj(transpose(input, -2, -1))


@method
def movedim(input: Any, source: Any, destination: Any) -> Any:
    """Dimensions moved to other positions, the rest kept in order."""
    rank = len(input.shape)
    sources = [source] if isinstance(source, int) else list(source)
    targets = [destination] if isinstance(destination, int) else list(destination)
    listed = [[normal_dim("movedim", d, rank or 1) for d in dims] for dims in (sources, targets)]
    if len(sources) != len(targets) or any(len(set(dims)) != len(dims) for dims in listed):
        raise ValueError(
            f"movedim: source {tuple(sources)} and destination {tuple(targets)} must be as many "
            "dimensions, each named once"
        )
    moved = dict(zip(listed[1], listed[0], strict=True))
    rest = iter(d for d in range(rank) if d not in listed[0])
    return permute(input, [moved[d] if d in moved else next(rest) for d in range(rank)])


moveaxis = movedim


# ---- parts


@method
def narrow(input: Any, dim: int, start: Any, length: Any) -> Any:
    """`length` elements along a dimension, from `start` on."""
    axis = normal_dim("narrow", dim, len(input.shape))
    first, extent = as_size(start), input.shape[axis]
    first = first + extent if first < 0 else first
    if length < 0 or not (0 <= first and first + length <= extent):
        raise IndexError(
            f"narrow: {length} elements from {start} are not within dim {axis} of size {extent}"
        )
    return moved(narrowed, input, axis, first, length)


@method
def select(input: Any, dim: int, index: int) -> Any:
    """The part at one position of a dimension."""
    return moved(nd.select, input, as_size(index), dim)


@method
def unbind(input: Any, dim: int = 0) -> tuple[Any, ...]:
    """All parts along a dimension."""
    axis = normal_dim("unbind", dim, len(input.shape))
    return tuple(select(input, axis, k) for k in range(as_int(input.shape[axis])))


@method
def split(tensor: Any, split_size_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """Consecutive pieces along a dimension: of one size (the last may be smaller), or of sizes."""
    axis = normal_dim("split", dim, len(tensor.shape))
    sections = split_size_or_sections
    if isinstance(sections, int | Size):
        if tensor.shape[axis] == 0:
            return (narrow(tensor, axis, 0, 0),)
        pieces = nd.split(tensor.array if is_tensor(tensor) else tensor, sections, axis)
        sizes = [piece.shape[axis] for piece in pieces]
    else:
        sizes = list(sections)
        if not same(sum(sizes), tensor.shape[axis]):
            raise ValueError(
                f"split: sizes {tuple(sizes)} do not add up to {tensor.shape[axis]} (dim {axis})"
            )
    return _consecutive(tensor, sizes, axis)


@method
def split_with_sizes(input: Any, split_sizes: Sequence[int], dim: int = 0) -> tuple[Any, ...]:
    """Consecutive pieces of given sizes along a dimension."""
    return split(input, list(split_sizes), dim)


def _consecutive(x: Any, sizes: Sequence[Any], axis: int) -> tuple[Any, ...]:
    found, start = [], 0
    for size in sizes:
        found.append(narrow(x, axis, start, size))
        start += size
    return tuple(found)


@method
def chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """At most `chunks` pieces along a dimension, all but the last of one size."""
    if chunks <= 0:
        raise ValueError(f"chunk: the number of chunks must be positive, not {chunks}")
    length = input.shape[normal_dim("chunk", dim, len(input.shape))]
    if length == 0:
        return _consecutive(input, [0] * chunks, normal_dim("chunk", dim, len(input.shape)))
    return split(input, -(-length // chunks), dim)


@method
def tensor_split(input: Any, indices_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """Pieces along a dimension: so many, as equal as can be, or cut at positions."""
    axis = normal_dim("tensor_split", dim, len(input.shape))
    length = input.shape[axis]
    if isinstance(indices_or_sections, int):
        count = indices_or_sections
        if count <= 0:
            raise ValueError(f"tensor_split: the number of sections must be positive, not {count}")
        each, more = divmod(length, count)
        return _consecutive(input, [each + (k < more) for k in range(count)], axis)
    cuts = [_cut(as_size(c), length) for c in indices_or_sections]
    pairs = zip([0, *cuts], [*cuts, length], strict=True)
    return tuple(narrow(input, axis, start, max(stop - start, 0)) for start, stop in pairs)


def _cut(position: Any, length: Any) -> Any:
    """A position to cut at, counted from the start of a dimension and within it."""
    return min(max(position + length if position < 0 else position, 0), length)


@method
def hsplit(input: Any, indices_or_sections: Any) -> tuple[Any, ...]:
    """Pieces side by side: along the second dimension, or a vector's only one."""
    return _equal_split("hsplit", input, indices_or_sections, 0 if len(input.shape) == 1 else 1, 1)


@method
def vsplit(input: Any, indices_or_sections: Any) -> tuple[Any, ...]:
    """Pieces on top of each other: along the first of at least two dimensions."""
    return _equal_split("vsplit", input, indices_or_sections, 0, 2)


@method
def dsplit(input: Any, indices_or_sections: Any) -> tuple[Any, ...]:
    """Pieces behind each other: along the third dimension."""
    return _equal_split("dsplit", input, indices_or_sections, 2, 3)


def _equal_split(name: str, x: Any, sections: Any, axis: int, rank: int) -> tuple[Any, ...]:
    if len(x.shape) < rank:
        raise ValueError(f"{name}: needs at least {rank} dimensions, got shape {tuple(x.shape)}")
    if isinstance(sections, int) and (sections <= 0 or not same(x.shape[axis] % sections, 0)):
        raise ValueError(f"{name}: size {x.shape[axis]} does not split into {sections} equal parts")
    return tensor_split(x, sections, axis)


# ---- memory


@method
@with_gradient(lambda grad: grad)
def clone(input: Any) -> Any:
    """A copy, which gradients flow through."""
    return input.copy()


@method
def contiguous(input: Any) -> Any:
    """`input`, or a copy if its elements do not lie in order."""
    return input if is_contiguous(input) else clone(input)


@method
def is_contiguous(input: Any) -> bool:
    """Whether the elements lie in memory densely and in order."""
    array = input.array if is_tensor(input) else input
    strides = strides_of(array)
    if strides is None or is_row_major(array.shape, strides):
        return strides is not None
    return is_row_major(array.shape, strides, same)  # a recording notes for which sizes


def strides_of(array: NDArray) -> tuple[Any, ...] | None:
    """How far apart neighbours along each dimension lie in the storage; None if that varies."""
    found = _layout(array)
    return None if found is None else found[0]


def offset_of(array: NDArray) -> Any:
    """Where in the storage the first element lies."""
    if thread.recorder is not None:
        thread.recorder.locate(array.storage)
    found = _layout(array)
    return 0 if found is None else found[1]


def _layout(array: NDArray) -> tuple[tuple[Any, ...], Any] | None:
    shape = array.storage.actual.shape
    strides: Strides = strides_in(array.storage)
    offset: Any = 0
    for step in array.steps:
        found = layout_through(step, shape, strides, offset)
        if found is None:
            return None
        (strides, offset), shape = found, step.shape
    return strides, offset


def _sent_back(grad: Any, before: str) -> Any:
    return to_device(grad, before)


@with_gradient(_sent_back)
def _transfer(x: NDArray, device: str, before: str) -> Any:
    return x.to(device)


def to_device(input: Any, device: str) -> Any:
    """`input` on another device; itself if it is there already."""
    return input if input.device == device else _transfer(input, device, input.device)


__all__ = [
    "adjoint", "broadcast_to", "chunk", "clone", "dsplit", "expand", "flatten", "hsplit",
    "moveaxis", "movedim", "narrow", "permute", "ravel", "reshape", "select", "split",
    "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t", "tensor_split", "transpose",
    "unbind", "unflatten", "unsqueeze", "vsplit",
]  # fmt: skip
