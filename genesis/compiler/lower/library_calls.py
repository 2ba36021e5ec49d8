"""Calls: operations of the library as steps of a program.

A CALL is a boundary: what it reads and what it gives lies in memory, row-major. The backend is
asked whether it claims the operation. If it does, its code is a launch like that of any kernel. If
it does not, the operation is a step that the host does between two native parts of the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from genesis.backends.base import Backend, NativeCall
from genesis.ir import ops
from genesis.ir.node import LibraryCall, Node, topological
from genesis.ir.size import Dim


@dataclass(frozen=True)
class LoweredCall:
    """A call to be: the CALL, which of its results are asked for, and the backend's own code."""

    node: Node
    items: Mapping[int, Node]
    native: NativeCall | None

    @property
    def call(self) -> LibraryCall:
        """What is called."""
        found: LibraryCall = self.node.attr
        return found

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The operands."""
        return self.node.inputs

    @property
    def extents(self) -> Iterator[Dim]:
        """The numbers it has to know when it runs."""
        if self.native is not None:
            yield from self.native.numbers
        else:
            for _, shape in (*self.call.operands, *self.call.results):
                yield from shape


def lower_call(n: Node, items: Sequence[Node], backend: Backend) -> LoweredCall:
    """The step for a CALL of which `items` are asked for."""
    return LoweredCall(n, {item.attr: item for item in items}, backend.native_call(n.attr))


def on_host(roots: Sequence[Node], backend: Backend) -> bool:
    """Whether the host does part of the work. Such a step can fail, and end a program midway."""
    return any(
        backend.native_call(n.attr) is None if n.op is ops.CALL else on_host(n.attr.body, backend)
        for n in topological(roots)
        if n.op in (ops.CALL, ops.SCAN)
    )
