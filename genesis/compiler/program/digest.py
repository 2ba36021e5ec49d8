"""The identity of a graph: a digest that is the same in every process.

Inside a process equal graphs are one object; between processes they are equal when they print the
same. So every node is written down as one line (operation, type, shape, inputs by line number,
attribute) in an order the graph alone decides, and the text is hashed. Anything two graphs can
differ in must differ in the text: ``1``, ``True`` and ``1.0`` do, and so do ``0.0`` and ``-0.0``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis.content_store import digest
from genesis.ir.dtype import DType
from genesis.ir.node import Leaf, LibraryCall, Node, Prefix, Recurrence, Shape, topological
from genesis.ir.size import Quotient, Size, Symbol


def identity(roots: Sequence[Node]) -> str:
    """A digest of the graph below `roots`.

    >>> from genesis.ir.dtype import float32
    >>> from genesis.ir.node import const
    >>> identity([const(0.0, float32)]) == identity([const(-0.0, float32)])
    False
    """
    shapes: dict[Shape, str] = {}
    numbers: dict[Node, int] = {}
    lines = []
    for n in topological(roots):
        shape = shapes.get(n.shape)
        if shape is None:
            shape = shapes[n.shape] = spell(n.shape)
        inputs = [numbers[i] for i in n.inputs]
        attribute = "" if n.attr is None else spell(n.attr)
        lines.append(f"{n.op.name} {n.dtype.name} {shape} {inputs} {attribute}")
        numbers[n] = len(numbers)
    lines.append(str([numbers[n] for n in roots]))
    return digest("\n".join(lines))


def spell(x: Any) -> str:
    """An attribute as text, without line breaks: equal text means equal type and value."""
    if x is None or isinstance(x, bool | int | float):
        return repr(x)
    if isinstance(x, str):
        return ascii(x)
    if isinstance(x, tuple):
        return f"({','.join(map(spell, x))})"
    if isinstance(x, Leaf):
        constant = ",constant" if x.constant else ""
        return f"leaf({x.slot},{spell(x.strides)},{spell(x.offset)}{constant})"
    if isinstance(x, Size):
        return f"size({','.join(f'{c}{spell(m)}' for m, c in x.terms)})"
    if isinstance(x, Symbol):
        return f"symbol({x.name!a},{x.low},{x.high},{x.multiple})"
    if isinstance(x, Quotient):
        return f"quotient({spell(x.size)},{x.divisor})"
    if isinstance(x, Recurrence):
        loop = spell((x.carries, x.xs, x.length, x.reverse))
        return f"recurrence({identity(x.body)},{loop})"
    if isinstance(x, LibraryCall):
        return f"call({spell((x.name, x.options, x.operands, x.results))})"
    if isinstance(x, Prefix):
        combined = identity((*x.merge, *x.identity))
        return f"prefix({combined},{spell((x.axis, x.reverse, x.item))})"
    if isinstance(x, DType):
        return x.name
    raise TypeError(f"{x!r} ({type(x).__name__}) is an attribute that `identity` cannot spell")
