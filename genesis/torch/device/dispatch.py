"""From PyTorch's calls to kernels: arguments to arrays, the kernel, arrays to tensors.

Every operator that the table of kernels covers gets a function of tensors, made from its kernel and
its schema when it is first called. What writes is made from its functional twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import repeat
from types import NoneType
from typing import Any

import torch
from torch.autograd.graph import increment_version

from genesis import ndarray as nd
from genesis.ndarray.core.device import default_device, on_device
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.primitive import kind_rank
from genesis.torch.aten.creation import with_default_dtype
from genesis.torch.aten.registry import Implementation, Unsupported, drawing_from, name_of
from genesis.torch.convert import DTYPES, PLACEMENT, TORCH_DTYPES, as_dtype
from genesis.torch.device import storage_contents as contents
from genesis.torch.device.generators import generator_of
from genesis.torch.device.graph_cache import Arguments, Copies
from genesis.torch.device.operator_variants import OperatorVariant
from genesis.torch.device.result_strides import arrays_in, result_strides
from genesis.torch.device.strides import Sizes

Function = Callable[..., Any]

#: Operators that take indices on the CPU as well, as those of other devices do.
_INDEXING = frozenset(
    ("index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put")
)

_PLAIN = frozenset((NoneType, bool, complex, float, int, str))
_Tensor = torch.Tensor


def functional(op: Any, kernel: Implementation, beyond: Function) -> Function:
    """A function of tensors that computes an operator by its kernel.

    `beyond` computes what the kernel does not cover.
    """
    name = name_of(op)
    kernel = with_default_dtype(kernel)
    call = _caller(op, kernel)
    strides_of = result_strides(op)
    copies = _copies(op, kernel)

    def run(*args: Any, **kwargs: Any) -> Any:
        contents.progress.operators += 1
        if copies is not None:
            copied = copies.find(args, kwargs)
            if copied is not None:
                recorded, inputs = copied
                if recorded.native is not None:
                    contents.runtime.remember(name, recorded.native)
                return recorded.tensors(inputs)
        try:
            result = call(args, kwargs)
        except Unsupported:
            return beyond(*args, **kwargs)
        return _tensors(result, iter(strides_of(args, kwargs, arrays_in(result))))

    return run


def arrays(op: Any, kernel: Implementation) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """A function of PyTorch's arguments that gives arrays, as a kernel does."""
    kernel = with_default_dtype(kernel)
    call = _caller(op, kernel)
    copies = _copies(op, kernel)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        copied = None if copies is None else copies.find(args, kwargs)
        return call(args, kwargs) if copied is None else copied[0].arrays(copied[1])

    return run


def writing(op: Any, kernel: Implementation, form: OperatorVariant, beyond: Function) -> Function:
    """A function of tensors for an operator that writes what a kernel gives."""
    single = len(form.written) == 1 and not form.fresh
    name = name_of(op)
    kernel = with_default_dtype(kernel)
    call = _caller(op, kernel)
    copies = _copies(op, kernel)

    def run(*args: Any, **kwargs: Any) -> Any:
        targets = form.targets(args, kwargs)
        if not form.is_out and _depends_on_order(targets, [*args, *kwargs.values()]):
            _one_by_one(op, args, kwargs, len(targets[0]))
            return form.returned(targets)
        contents.progress.operators += 1
        named = form.named(kwargs, targets)
        copied = None if copies is None else copies.find(args, named)
        if copied is not None:
            recorded, inputs = copied
            native = recorded.native_writing(form, targets)
            if native is not None:
                contents.runtime.remember(name, native)
            result = recorded.arrays(inputs)
        else:
            try:
                result = call(args, named)
            except Unsupported:
                return beyond(*args, **kwargs)
        results = [result] if single else list(result)
        for target, value in zip(targets, results[form.fresh :], strict=True):
            if form.is_out and isinstance(value, NDArray) and target.shape != value.shape:
                target.resize_(value.shape)
            _put(op, target, value)
        if form.fresh:
            return _tensors(results[0] if form.fresh == 1 else tuple(results[: form.fresh]))
        return form.returned(targets)

    return run


def _depends_on_order(targets: Sequence[Any], arguments: Sequence[Any]) -> bool:
    """Whether an operator on lists sees at one place of them memory that another place writes.

    PyTorch computes the places one after another.
    """
    if not isinstance(targets[0], list | tuple) or len(targets[0]) < 2:
        return False
    shared = {a: xs for a, xs in _by_storage(arguments).items() if len(xs) > 1}
    writes = _by_storage(targets) if shared else {}
    return any(
        address in shared and _overlap(xs, shared[address]) for address, xs in writes.items()
    )


def _by_storage(arguments: Sequence[Any]) -> dict[int, list[tuple[int, _Tensor]]]:
    """Tensors on a device with their places in lists, -1 for those in none, by their storages."""
    found: dict[int, list[tuple[int, _Tensor]]] = {}
    for argument in arguments:
        is_list = isinstance(argument, list | tuple)
        for place, x in enumerate(argument) if is_list else ((-1, argument),):
            if isinstance(x, _Tensor) and x.device.type == "genesis":
                found.setdefault(contents.runtime.address(x), []).append((place, x))
    return found


def _overlap(written: list[tuple[int, _Tensor]], seen: list[tuple[int, _Tensor]]) -> bool:
    """Whether of one storage's tensors one lies where one that is written does, at another place.

    What lies between the first and the last element of a tensor is taken for part of it.
    """
    spans = []
    for writes, tensors in ((True, written), (False, seen)):
        for place, x in tensors:
            layout = contents.layout_of(x)
            begin, end = (n * layout.dtype.itemsize for n in (layout.offset, layout.span))
            if begin < end:
                spans.append((begin, end, place, writes))
    together: list[tuple[int, int, int, bool]] = []  # those that lie over each other
    for span in sorted(spans):
        if together and span[0] >= max(end for _, end, _, _ in together):
            together.clear()
        together.append(span)
        places = {place for _, _, place, _ in together}
        if len(places) > 1 and any(writes for *_, writes in together):
            return True
    return False


def _one_by_one(op: Any, args: Sequence[Any], kwargs: dict[str, Any], count: int) -> None:
    """Call an operator on lists for each of their places."""
    names = [a.name for a in op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    lists = {n for n, x in given.items() if isinstance(x, list | tuple)} | {"scalars"}
    for k in range(count):
        one = {n: x[k : k + 1] if n in lists else x for n, x in given.items()}
        op(**one)


def _caller(op: Any, kernel: Implementation) -> Callable[[Sequence[Any], dict[str, Any]], Any]:
    """A function of PyTorch's arguments that gives what a kernel gives."""
    draws = torch.Tag.nondeterministic_seeded in op.tags
    only = contents.device_names()[0] if len(contents.device_names()) == 1 else None
    arguments = _arguments(op)

    def call(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if draws or default_device() is not only:
            index = _index(args, kwargs)
            with ExitStack() as stack:
                stack.enter_context(on_device(contents.name_of_device(index)))
                if draws:
                    stack.enter_context(drawing_from(generator_of(kwargs.get("generator"), index)))
                return compute(args, kwargs)
        return compute(args, kwargs)

    def compute(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        given, named = arguments(args, kwargs)
        try:
            return kernel(*given, **named)
        except ValueError as error:  # what PyTorch calls a RuntimeError
            raise RuntimeError(str(error)) from error

    return call


def _arguments(op: Any) -> Callable[..., Arguments]:
    """A function that makes a kernel's arguments of PyTorch's."""
    indexes = op._opname.removesuffix("_") in _INDEXING

    def arguments(args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        if indexes:
            args = (args[0], _indices(args[1], args[0].device), *args[2:])
        given = [x if type(x) in _PLAIN else _array(x) for x in args]
        named = {
            key: x if type(x) in _PLAIN else _array(x)
            for key, x in kwargs.items()
            if key not in PLACEMENT and key != "generator"
        }
        return given, named

    return arguments


def _copies(op: Any, kernel: Implementation) -> Copies | None:
    """What a kernel builds, to be copied; None if it depends on more than the arguments' forms."""
    if {torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape} & {*op.tags}:
        return None

    return Copies(kernel, _arguments(op), result_strides(op))


def _index(args: Sequence[Any], kwargs: dict[str, Any]) -> int | None:
    """The device that an operator works on."""
    device = kwargs.get("device")
    if device is not None:
        return torch.device(device).index
    for x in args:
        if isinstance(x, _Tensor) and x.device.type == "genesis":
            return x.device.index
    return None


def _indices(indices: Sequence[_Tensor | None], device: torch.device) -> list[_Tensor | None]:
    """The indices of a tensor on a device, moved there from the CPU."""
    return [i.to(device) if i is not None and i.device.type == "cpu" else i for i in indices]


def _array(x: Any) -> Any:
    """An argument as a kernel wants it."""
    if isinstance(x, _Tensor):
        found = contents.runtime.find(x)
        return _foreign(x) if found is None else found
    if isinstance(x, list | tuple):
        return [y if type(y) in _PLAIN else _array(y) for y in x]
    if isinstance(x, torch.dtype):
        return as_dtype(x)
    if isinstance(x, torch.device | torch.layout | torch.memory_format):
        return None
    if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise Unsupported("a symbolic number")
    raise Unsupported(f"an argument of type {type(x).__name__}")


def _foreign(x: torch.Tensor) -> NDArray:
    """A tensor that is not simply the contents of a storage."""
    if x.layout is not torch.strided:
        raise Unsupported(f"a {x.layout} tensor")
    if x.device.type == "genesis":
        return contents.read(x)
    if x.device.type == "cpu" and not x.dim():
        return nd.full((), x.item(), as_dtype(x.dtype))
    raise RuntimeError(
        f"expected all tensors to be on the same device, but one of shape {tuple(x.shape)} is on "
        f"{x.device}; move it with .to('genesis')"
    )


def _tensors(result: Any, strides: Iterator[Sizes | None] = repeat(None)) -> Any:  # noqa: B008
    """What a kernel gave, as PyTorch wants it: tensors of certain strides, else row-major."""
    if isinstance(result, NDArray):
        return contents.new(result, next(strides))
    if isinstance(result, tuple):
        return tuple([_tensors(x, strides) for x in result])
    if isinstance(result, list):
        return [_tensors(x, strides) for x in result]
    return result


def _put(op: Any, target: Any, result: Any) -> None:
    """Write what a kernel gave to a tensor, or to a list of tensors."""
    if not isinstance(target, _Tensor):
        for one, value in zip(target, result, strict=True):
            _put(op, one, value)
        # Writes of a tensor PyTorch counts itself; those of a list are left to the device.
        increment_version([x for x in target if not x.is_inference()])
        return
    shape = target.shape
    if result.shape != shape:
        raise RuntimeError(
            f"{op}: a result of shape {list(result.shape)} does not fit into a tensor of shape "
            f"{list(shape)}"
        )
    ours = DTYPES.get(target.dtype)
    if ours is None or kind_rank(result.dtype) > kind_rank(ours):
        raise RuntimeError(
            f"{op}: result type {TORCH_DTYPES[result.dtype]} can't be cast to the desired output "
            f"type {target.dtype}"
        )
    contents.write(target, result)
