"""Sharing: which outputs of a kernel may be written over one of its inputs.

An update ``w - rate * gradient`` reads each element of w where it writes the result, so the result
can take over w's memory. The plain kernel shows whether it is so; that it still is in the kernel
as scheduled, where blocks run at the same time, is for the verifier to prove.
"""

from __future__ import annotations

from collections.abc import Sequence

from genesis.compiler.kernels import Built
from genesis.compiler.lower import Lowered
from genesis.compiler.verify import ClaimKind, Status, verify
from genesis.ir import ops
from genesis.ir.kernel import Buffer, Kernel, Store, expressions, load_parts, walk
from genesis.ir.node import Node, topological


def overwrites(low: Lowered, made: Built, source: Node, target: Node) -> bool:
    """Whether a kernel may write its output `target` over its input `source`."""
    if source.shape != target.shape or source.dtype.itemsize != target.dtype.itemsize:
        return False
    buffers = dict(zip(low.arguments, low.kernel.buffers, strict=True))
    before, after = buffers[source], buffers[target]
    if not pointwise(low.kernel, before, after):
        return False
    pair = before.name, after.name
    if pair not in made.known:
        claims = verify(made.kernel, [pair]).claims
        donations = [c for c in claims if c.kind is ClaimKind.DONATION]
        made.known[pair] = all(c.status is Status.PROVEN for c in donations)
    return made.known[pair]


def pointwise(kernel: Kernel, source: Buffer, target: Buffer) -> bool:
    """Whether a plain kernel reads `source` only at the element of `target` it then writes."""
    (phase,) = kernel.phases
    stores = [s for s in walk(phase.body) if isinstance(s, Store)]
    others = [e for s in walk(phase.body) if not isinstance(s, Store) for e in expressions(s)]
    if _loads(others, source):  # a sum, say, may read any element
        return False
    written = {s.index for s in stores if s.buffer == target}
    loads = _loads([e for s in stores for e in expressions(s)], source)
    end = max(k for k, s in enumerate(stores) if s.buffer == target)
    late = _loads([e for s in stores[end + 1 :] for e in expressions(s)], source)
    return not late and len(written) == 1 and {load_parts(n)[1] for n in loads} == written


def _loads(roots: Sequence[Node], source: Buffer) -> list[Node]:
    return [n for n in topological(roots) if n.op is ops.LOAD and n.attr == source]
