"""Simplify: algebra on the tensor graph before fusion.

Each rule removes work or exposes a fusion and keeps every bit that IEEE arithmetic defines:
``x * 0`` is not 0 when x may be NaN, so it stays. Two freedoms are taken, those that all of Genesis
has: a sum may be added up in another order, and the sign of a NaN means nothing. Rules that only
tidy movement make equal graphs look equal, so that other rules see what belongs together.

There is one module for each subject: `movement`, `scalars`, `parts` (what slices, pads, updates and
concatenations do to each other) and `reductions`.

What is not here was measured and did not pay. A batch norm is not folded into the weights of the
convolution before it, for it is fused into that convolution's kernel and nearly free there.
Products with one left operand are not joined, for copying their weights together costs more than
the launches it saves. For CPUs no layout is chosen for the values between convolutions: panels are
packed anyway, so every layout is as good; `genesis.compiler.graph.gpu.channels_last` does it for
GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

from genesis.compiler.graph.simplify import elementwise, movement, reductions, slice_and_pad
from genesis.ir.node import Node
from genesis.ir.rewrite import rewrite

RULES = movement.RULES + slice_and_pad.RULES + elementwise.RULES + reductions.RULES


def simplify(roots: Sequence[Node], memo: dict[Node, Node] | None = None) -> list[Node]:
    """Equivalent roots with less to compute; `memo` receives what became of every node."""
    return rewrite(roots, RULES, memo)
