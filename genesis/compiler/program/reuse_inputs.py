"""Which outputs of a kernel may be written over one of its inputs.

An update ``w - rate * gradient`` reads each element of w where it writes the result, so the result
can take over w's memory. The plain kernel shows whether it is so; that it still is in the kernel
as scheduled, where blocks run at the same time, is for the verifier to prove.
"""

from __future__ import annotations

from collections.abc import Sequence

from genesis.compiler.build import Built, Pairs
from genesis.compiler.fuse.groups import is_row_major
from genesis.compiler.lower.library_calls import LoweredCall
from genesis.compiler.lower.lower import Lowered
from genesis.compiler.lower.scan import LoweredLoop, Steps, kernels
from genesis.compiler.verify.kernel import ClaimKind, Status, verify
from genesis.ir import ops
from genesis.ir.kernel import Buffer, Kernel, Role, Store, expressions, load_parts, walk
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


def with_reuses(
    steps: Steps, donated: frozenset[int], reuses: dict[Node, int], roots: frozenset[Node]
) -> list[tuple[Kernel, Pairs]]:
    """The kernels, each with the (input, output) pairs that share memory. `reuses` is added to."""
    last_read = {
        n.attr.slot: i for i, k in enumerate(steps) for n in k.arguments if n.op is ops.BUFFER
    }
    plain: list[tuple[Kernel, Pairs]] = []
    for i, step in enumerate(steps):
        if isinstance(step, LoweredLoop):
            plain += [(low.kernel, ()) for low in kernels(step.steps)]
            continue
        if isinstance(step, LoweredCall):
            continue
        free = frozenset(slot for slot in donated if last_read.get(slot) == i)
        free -= set(reuses.values())
        plain.append((step.kernel, _takeovers(step, free, reuses, roots) if free else ()))
    return plain


def _takeovers(
    low: Lowered, free: frozenset[int], reuses: dict[Node, int], roots: frozenset[Node]
) -> Pairs:
    """Outputs that may take over the memory of an input in a `free` slot.

    Nothing reads such an input later, and each of its elements is read where it is written. What
    an optimizer updates stays where it is: outputs come in turn by how many inputs they are made
    from, element by element, and take one of those, if they can.
    """
    pairs: list[tuple[str, str]] = []
    by_buffer = dict(zip(low.kernel.buffers, low.arguments, strict=True))
    inputs = {b: n for b, n in by_buffer.items() if b.role is Role.INPUT and n.op is ops.BUFFER}
    outputs = {b: n for b, n in by_buffer.items() if b.role is Role.OUTPUT and n in roots}
    given = {leaf for leaf in inputs.values() if leaf.attr.slot in free}
    parts = {out: _parts(n) & given for out, n in outputs.items()}
    for out, n in sorted(outputs.items(), key=lambda x: len(parts[x[0]]) or len(inputs) + 1):
        if n in reuses:
            continue
        for buffer, leaf in sorted(inputs.items(), key=lambda x: x[1] not in parts[out]):
            slot = leaf.attr.slot
            alone = [x for x in inputs.values() if x.attr.slot == slot] == [leaf]
            fits = leaf.shape == n.shape and leaf.dtype.itemsize == n.dtype.itemsize
            if (
                slot in free - set(reuses.values())
                and alone
                and fits
                and is_row_major(leaf)
                and pointwise(low.kernel, buffer, out)
            ):
                reuses[n] = slot
                pairs.append((buffer.name, out.name))
                break
    return tuple(pairs)


def _parts(n: Node) -> set[Node]:
    """What a value is made from by arithmetic, element by element."""
    found: set[Node] = set()
    stack = [n]
    while stack:
        m = stack.pop()
        if m not in found:
            found.add(m)
            stack += m.inputs if m.op.is_elementwise else ()
    return found
