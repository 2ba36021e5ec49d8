"""Forms of an operator: which functional operator computes what another one writes.

PyTorch gives every operator that writes, in place (``add_``) or to arguments made for it
(``add.out``), a functional twin that returns what would be written, after what is returned anyway.
The twin has the same arguments, and the same name up to an underscore; that is how it is found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from genesis.torch.convert import PLACEMENT


class OperatorVariant(NamedTuple):
    """How an operator that writes follows from a functional one."""

    functional: str  #: its full name
    written: tuple[tuple[int | None, str], ...]  #: position (None: by name only) and name
    is_out: bool  #: what is written is not read
    makes: bool  #: the functional operator must be told what dtype to make and where
    fresh: int  #: how many results are no arguments; the functional operator gives these first
    returns: int  #: how many results there are

    def targets(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The tensors, or lists of them, that a call writes."""
        return [
            args[i] if i is not None and i < len(args) else kwargs[name] for i, name in self.written
        ]

    def named(self, kwargs: dict[str, Any], targets: Sequence[Any]) -> dict[str, Any]:
        """The functional operator's keyword arguments for a call that writes `targets`."""
        if not self.is_out:
            return kwargs
        dropped = {name for _, name in self.written}
        named = {key: x for key, x in kwargs.items() if key not in dropped}
        if self.makes:
            named |= {"dtype": targets[0].dtype, "device": targets[0].device}
        return named

    def returned(self, targets: Sequence[Any]) -> Any:
        """What a call gives that wrote `targets`."""
        if self.returns < 2:
            return targets[0] if self.returns else None
        return tuple(targets)


def operator(name: str) -> Any:
    """The operator of a full name.

    >>> operator("aten::add.Tensor")
    <OpOverload(op='aten.add', overload='Tensor')>
    """
    space, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), base), overload or "default")


@cache
def form_of(name: str) -> OperatorVariant | None:
    """The form of an operator that writes; None if there is no functional twin.

    >>> form_of("aten::add_.Tensor").functional, form_of("aten::sum.IntList_out").functional
    ('aten::add.Tensor', 'aten::sum.dim_IntList')
    """
    described = schema(name)
    written = [
        (None if a.kwarg_only else i, a.name)
        for i, a in enumerate(described.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    ]
    if not written:
        return None
    is_out = all(place is None for place, _ in written)
    names = {n for _, n in written}
    arguments = [a for a in described.arguments if not (is_out and a.name in names)]
    fresh = sum(r.alias_info is None for r in described.returns)
    for twin in _twins(described.name):
        other = schema(twin)
        extra = _matches(arguments, other.arguments)
        if extra is not None and len(other.returns) == fresh + len(written):
            returns = len(described.returns)
            return OperatorVariant(twin, tuple(written), is_out, "dtype" in extra, fresh, returns)
    return None


def _matches(arguments: list[Any], others: list[Any]) -> frozenset[str] | None:
    """The arguments that only `others` has, if they say nothing but where to put a result."""
    extra = frozenset(a.name for a in others) - {a.name for a in arguments}
    if extra - PLACEMENT - {"dtype"}:
        return None
    if any(a.alias_info is not None for a in others):
        return None
    both = [a for a in others if a.name not in extra]
    same = [_described(a) for a in arguments] == [_described(a) for a in both]
    return extra if same else None


def _described(argument: Any) -> tuple[str, str]:
    return argument.name, str(argument.type)


def _twins(name: str) -> Iterator[str]:
    """The names of operators that could be the functional twin of those called `name`."""
    base = name.removesuffix("_")
    for candidate in dict.fromkeys((base, name, f"{base}_functional", f"{name}_functional")):
        yield from overloads(candidate)


def exists(name: str) -> bool:
    """Whether there is an operator of a full name."""
    return name in overloads(name.partition(".")[0])


def overloads(name: str) -> list[str]:
    """The full names of the overloads of an operator.

    >>> overloads("aten::relu")
    ['aten::relu', 'aten::relu.out']
    """
    return _all_overloads().get(name, [])


@cache
def _all_overloads() -> dict[str, list[str]]:
    """The full names of all operators, by their names without overload."""
    found = defaultdict(list)
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        found[name.partition(".")[0]].append(name)
    return found


def schema(name: str) -> Any:
    """What an operator of a full name takes and gives."""
    base, _, overload = name.partition(".")
    return torch._C._get_schema(base, overload)


def has_kernel(name: str, key: str) -> bool:
    """Whether PyTorch registers a kernel of an operator for a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
