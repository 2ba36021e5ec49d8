"""Load CSE: what several statements of a block load is loaded once, and kept in registers.

The three passes of a softmax over a row that is one tile read the same elements, and compute the
same powers twice; the stores of an optimizer's step read the same gradient. A compiler that sees
stores in between must not merge such loads. Here they can be: nothing in the phase writes there.
"""

from __future__ import annotations

from collections import Counter

from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import bool_, index
from genesis.ir.node import Node, topological
from genesis.ir.rewrite import replaced


def eliminate_common_loads(kernel: kir.Kernel) -> kir.Kernel:
    """The kernel with values that several statements of a block load given a name."""
    return kernel.with_phases(kir.Phase(p.grid, _shared(p.body)) for p in kernel.phases)


def _shared(body: kir.Body) -> kir.Body:
    written = {s.buffer for s in kir.walk(body) if isinstance(s, kir.Store)}
    plain = [s for s in body if not isinstance(s, kir.Loop | kir.If)]
    uses = Counter(n for s in plain for n in _candidates(s, written))
    names: dict[Node, Node] = {}
    result: list[kir.Statement] = []
    for s in body:
        if s in plain:
            covered: set[Node] = set(names)
            for n in reversed(_candidates(s, written)):  # what is larger comes first
                if n in covered:
                    covered.update(n.inputs)
                elif uses[n] > 1:
                    tiles = tuple(sorted(kir.tile_axes(n), key=lambda a: a.name))
                    local = kir.Local(f"kept{len(names)}", n.dtype, tiles)
                    value = replaced(n, names)
                    result.append(kir.Let(local, value))
                    names[n] = local.node
                    covered |= {n, *n.inputs}
        (changed,) = kir.map_expressions((s,), lambda n: replaced(n, names))
        result.append(changed)
    return tuple(result)


def _candidates(s: kir.Statement, written: set[kir.Buffer]) -> list[Node]:
    """The values in a statement that come from memory that is only read, inputs first."""
    loaded: set[Node] = set()
    order = topological(kir.expressions(s))
    for n in order:
        if n.op is ops.LOAD:
            if n.attr not in written and loaded.isdisjoint(n.inputs):
                loaded.add(n)
        elif n.dtype not in (bool_, index) and not loaded.isdisjoint(n.inputs):
            loaded.add(n)
    return [n for n in order if n in loaded and kir.tile_axes(n)]
