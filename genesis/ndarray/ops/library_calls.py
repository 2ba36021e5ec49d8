"""Calls of the library: operations that stay one node.

Most of what a user calls is composed of primitives, and the compiler sees through it. Operations of
`genesis.ir.numpy_library` (factorisations, transforms, sorting) do not dissolve: they are called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from genesis.ir import ops
from genesis.ir.node import Form, LibraryCall
from genesis.ndarray.core.value import Several, Value


def call(
    name: str, options: tuple[Any, ...], operands: Sequence[Value], results: Sequence[Form]
) -> list[Value]:
    """The results of an operation of the library."""
    forms = tuple((x.dtype, x.shape) for x in operands)
    attr = LibraryCall(name, options, forms, tuple(results))
    device = operands[0].device
    whole = Several(ops.CALL, tuple(operands), attr, attr.results[0][0], (), device)
    items = [Value(ops.ITEM, (whole,), k, *form, device) for k, form in enumerate(attr.results)]
    whole.items.extend(map(ref, items))
    return items
