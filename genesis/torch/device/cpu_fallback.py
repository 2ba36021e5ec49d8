"""What has no kernel: PyTorch's decomposition into other operators, else PyTorch's CPU kernel.

A computation on the CPU stops the graph, so it is counted, and by default there is one warning for
each operator.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_map_only

from genesis.ndarray.core.ndarray import wrap
from genesis.torch.aten.registry import FallbackWarning, implementations, name_of
from genesis.torch.convert import DTYPES
from genesis.torch.device import dispatch
from genesis.torch.device import storage_contents as contents
from genesis.torch.device.generators import generator_of
from genesis.torch.device.operator_variants import form_of, has_kernel, operator

Function = Callable[..., Any]
Policy = Literal["warn", "allow", "error"]


class _State(local):
    """The operators whose decompositions are running on a thread."""

    def __init__(self) -> None:
        self.active: set[str] = set()


_state = _State()
_counts: Counter[str] = Counter()
_policy: Policy = "warn"
_functions: dict[Any, Function] = {}


def fallback(policy: Policy) -> None:
    """What to do about operators that only PyTorch's CPU kernels compute.

    ``"warn"``, once for each operator, ``"allow"``, or ``"error"``: a NotImplementedError.
    """
    global _policy
    if policy not in ("warn", "allow", "error"):
        raise ValueError(f"fallback: 'warn', 'allow' or 'error', not {policy!r}")
    _policy = policy


def fallbacks() -> Counter[str]:
    """How often each operator was computed on the CPU so far."""
    return Counter(_counts)


def function_of(op: Any) -> Function:
    """The function of tensors that computes an operator on the device."""
    found = _functions.get(op)
    if found is None:
        found = _functions[op] = _function(op, name_of(op))
    return found


def boxed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute any operator that PyTorch finds no kernel for."""
    return function_of(op)(*args, **kwargs)


def on_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute an operator on nested or sparse tensors, for which there are no kernels."""
    return _on_cpu(op, name_of(op), args, kwargs)


def _function(op: Any, name: str) -> Function:
    def beyond(*args: Any, **kwargs: Any) -> Any:
        return _without_kernel(op, name, args, kwargs)

    kernel = implementations.get(name)
    if kernel is not None:
        return dispatch.functional(op, kernel, beyond)
    form = form_of(name)
    if form is not None and form.functional in implementations:
        return dispatch.writing(op, implementations[form.functional], form, beyond)
    return beyond


# ---- decompositions


def _without_kernel(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name not in _state.active:
        with _deeper(name):
            try:
                result = _decomposed(op, name, args, kwargs)
            except NotImplementedError:
                result = NotImplemented
        if result is not NotImplemented:
            return result
    return _on_cpu(op, name, args, kwargs)


@contextmanager
def _deeper(name: str) -> Iterator[None]:
    _state.active.add(name)
    try:
        yield
    finally:
        _state.active.discard(name)


def _decomposed(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """An operator by others; NotImplemented if PyTorch does not say how."""
    from torch._decomp import decomposition_table

    decomposition = decomposition_table.get(op)
    if decomposition is not None and not has_kernel(name, "CompositeExplicitAutograd"):
        return decomposition(*args, **kwargs)
    if has_kernel(name, "CompositeImplicitAutograd"):
        return op.decompose(*args, **kwargs)
    form = form_of(name)
    if form is None or form.fresh or form.functional in _state.active:
        return NotImplemented
    twin = operator(form.functional)
    rule = decomposition_table.get(twin)
    if rule is None and has_kernel(form.functional, "CompositeExplicitAutograd"):
        rule = twin
    if rule is None:
        return NotImplemented
    targets = form.targets(args, kwargs)
    result = rule(*args, **form.named(kwargs, targets))
    results = [result] if len(targets) == 1 else list(result)
    for target, value in zip(targets, results, strict=True):
        _assign(target, value, form.is_out)
    return form.returned(targets)


def _assign(target: Any, value: Any, may_resize: bool) -> None:
    if not isinstance(target, torch.Tensor):
        for one, other in zip(target, value, strict=True):
            _assign(one, other, may_resize)
        return
    if may_resize and target.shape != value.shape:
        target.resize_(value.shape)
    target.copy_(value)


# ---- the CPU


def _on_cpu(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """An operator by PyTorch's CPU kernel, on copies of what it writes."""
    if _policy == "error":
        raise NotImplementedError(f"genesis: there is no kernel for {name}")
    if _policy == "warn" and name not in _counts:
        warnings.warn(
            f"{name} has no Genesis kernel and is computed on the CPU "
            "(genesis.torch.fallback('error') forbids that)",
            FallbackWarning,
            stacklevel=2,
        )
    _counts[name] += 1
    return _Transfer(op).run(args, kwargs)


class _Transfer:
    """One computation on the CPU."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.device: torch.device | None = None
        self.moved: list[tuple[torch.Tensor, torch.Tensor]] = []  # from the device, to the host
        self.written: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(self, args: Any, kwargs: Any) -> Any:
        schema = self.op._schema.arguments
        given = []
        for argument, x in zip(schema, args, strict=False):
            if type(x) in (int, float, complex, bool) and str(argument.type) == "Tensor":
                x = torch.tensor(x)  # a wrapped number
            given.append(self._down(x, _is_written(argument)))
        by_name = {a.name: a for a in schema}
        named = {key: self._down(x, _is_written(by_name[key])) for key, x in kwargs.items()}
        result = self.op(*given, **named)  # below autograd, whatever requires a gradient
        for tensor, host in self.written:
            if tensor.layout is not torch.strided:
                tensor.copy_(_sparse(host, self._up))
                continue
            if tensor.shape != host.shape:
                tensor.resize_(host.shape)
            layout = contents.layout_of(tensor)
            if layout.flipped:
                tensor.copy_(host)
            else:
                device = contents.name_of_device(tensor.device.index)
                contents.write_bits(tensor, layout, contents.from_host(host, device, share=True))
        return tree_map_only(torch.Tensor, self._up, result)

    def _down(self, x: Any, written: bool) -> Any:
        if isinstance(x, list | tuple):
            return [self._down(y, written) for y in x]
        if isinstance(x, torch.device):
            self.device = x
            return torch.device("cpu")
        if isinstance(x, torch.Generator) and x.device.type == "genesis":
            (word,) = wrap(generator_of(x, x.device.index).words(1)).tolist()
            return torch.Generator().manual_seed(word)
        if not isinstance(x, torch.Tensor) or x.device.type != "genesis":
            return x
        self.device = x.device
        if x.layout is not torch.strided and not x.is_nested:
            host = _sparse(x, contents.to_host)
            if written:
                host = host.clone()
                self.written.append((x, host))
                return host
            return host.requires_grad_(x.requires_grad)
        if x.is_nested:
            if written:
                raise NotImplementedError(f"genesis: {self.op} writes to a nested tensor")
            buffer, *layout = contents.runtime.nested_parts(x)
            return contents.runtime.nest(contents.to_host(buffer), *layout)
        host = contents.to_host(x)
        if written:
            host = host.clone()
            self.written.append((x, host))
        self.moved.append((x, host))
        if x.requires_grad and not written:
            host.requires_grad_()  # some kernels keep more for a backward pass
        return host

    def _up(self, host: torch.Tensor) -> torch.Tensor:
        if host.is_nested:
            buffer, *layout = contents.runtime.nested_parts(host)
            return contents.runtime.nest(self._up(buffer), *layout)
        for tensor, moved in self.written:
            if host is moved:
                return tensor
        if host.layout is not torch.strided:
            return _sparse(host, self._up)
        for tensor, moved in self.moved:
            same = host.numel() and host.dtype == moved.dtype
            if same and host.untyped_storage().data_ptr() == moved.untyped_storage().data_ptr():
                return _alias(tensor, moved, host)
        device = self.device or torch.device("genesis", contents.runtime.current_device())
        if host.dtype in DTYPES and not host.is_conj() and not host.is_neg():
            return _taken(host, device.index)
        return host.to(device)


#: Where the indices of compressed layouts are.
_INDICES = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def _sparse(x: Any, moved: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A sparse tensor whose parts are elsewhere."""
    if x.layout is not torch.sparse_coo:
        indices = [moved(getattr(x, name)()) for name in _INDICES[x.layout]]
        make: Any = torch.sparse_compressed_tensor
        made: torch.Tensor = make(
            *indices, moved(x.values()), size=x.shape, layout=x.layout, check_invariants=False
        )
        return made
    return torch.sparse_coo_tensor(
        moved(x._indices()),
        moved(x._values()),
        x.shape,
        is_coalesced=x.is_coalesced(),
        check_invariants=False,
    )


def _alias(tensor: torch.Tensor, moved: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that a part of its copy on the host stands for."""
    if moved.stride() == tensor.stride():
        offset = tensor.storage_offset() + host.storage_offset() - moved.storage_offset()
        return tensor.as_strided(host.shape, host.stride(), offset)
    return _taken(host.clone(), tensor.device.index)


def _taken(host: torch.Tensor, index: int | None) -> torch.Tensor:
    """A tensor on a device with the contents of one on the host, which is nobody's any more."""
    return contents.new(contents.from_host(host, contents.name_of_device(index), share=True))


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write
