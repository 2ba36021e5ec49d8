"""The rewrite engine: a pass is a list of small rules, and work is proportional to change.

A rule looks at one node whose inputs are already rewritten and returns a replacement or None.
Rules are dispatched by the node's operation and, where given, by the operations of its inputs.
`rewrite` visits each distinct node once (nodes are hash-consed) and revisits only what a rule made.

>>> from genesis.ir import ops
>>> from genesis.ir.dtype import float32
>>> from genesis.ir.node import const, elementwise
>>> rules = Rules("double negation")
>>> @rules.on(ops.NEG, ops.NEG)
... def cancel(n):
...     return n.inputs[0].inputs[0]
>>> x = const(3.0, float32)
>>> (rewrite([elementwise(ops.NEG, elementwise(ops.NEG, x))], rules))[0] is x
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from genesis.ir.node import Node
from genesis.ir.ops import Op

Rule = Callable[[Node], Node | None]
#: Who is told what a rule made of a node.
Observer = Callable[[Rule, Node, Node], None]
_MAX_STEPS = 1000  # rules that undo each other must not hang the compiler


class Rules:
    """A named, ordered set of rewrite rules."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._by_op: dict[Op, list[tuple[tuple[Op | None, ...], Rule]]] = {}
        self._fitting: dict[tuple[Op, ...], list[Rule]] = {}  # by operation and inputs' operations

    def on(self, op: Op | Sequence[Op], *inputs: Op | None) -> Callable[[Rule], Rule]:
        """Declare a rule for nodes of `op` whose first inputs have these operations (None: any)."""

        def declare(rule: Rule) -> Rule:
            self._fitting.clear()
            for o in [op] if isinstance(op, Op) else op:
                self._by_op.setdefault(o, []).append((inputs, rule))
            return rule

        return declare

    def __add__(self, other: Rules) -> Rules:
        """Both sets, this one's rules first."""
        total = Rules(f"{self.name} + {other.name}")
        for source in (self, other):
            for op, rules in source._by_op.items():
                total._by_op.setdefault(op, []).extend(rules)
        return total

    def apply(self, n: Node) -> Node | None:
        """The first rule's replacement for `n`, or None when none applies."""
        if n.op not in self._by_op:
            return None
        key = (n.op, *[i.op for i in n.inputs])
        fitting = self._fitting.get(key)
        if fitting is None:
            fitting = self._fitting[key] = [
                rule
                for inputs, rule in self._by_op[n.op]
                if all(
                    want is None or want is got for want, got in zip(inputs, key[1:], strict=False)
                )
            ]
        for rule in fitting:
            replacement = rule(n)
            if replacement is not None and replacement is not n:
                if _observer is not None:
                    _observer(rule, n, replacement)
                return replacement
        return None


_observer: Observer | None = None


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Tell somebody about every node that a rule replaces inside the ``with`` block."""
    global _observer
    before, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = before


def rewrite(
    roots: Sequence[Node], rules: Rules, memo: dict[Node, Node] | None = None
) -> list[Node]:
    """`roots` with every rule applied until none applies. Iterative, memoised by node."""
    done: dict[Node, Node] = {} if memo is None else memo
    for root in roots:
        if root in done:
            continue
        # Each entry: the node to finish, and the original nodes whose result it gives.
        stack: list[tuple[Node, tuple[Node, ...]]] = [(root, (root,))]
        while stack:
            n, origins = stack[-1]
            if n in done:
                stack.pop()
                for origin in origins:
                    done[origin] = done[n]
                continue
            waiting = [i for i in n.inputs if i not in done]
            if waiting:
                stack.extend((i, (i,)) for i in waiting)
                continue
            rebuilt = n.with_inputs(tuple([done[i] for i in n.inputs])) if n.inputs else n
            replacement = rules.apply(rebuilt)
            stack.pop()
            if replacement is None:
                for origin in (*origins, n, rebuilt):
                    done[origin] = rebuilt
            else:
                if len(origins) > _MAX_STEPS:
                    raise RuntimeError(f"rules '{rules.name}' do not settle on {n!r}")
                stack.append((replacement, (*origins, n, rebuilt)))
    return [done[r] for r in roots]


def substitute(roots: Sequence[Node], mapping: dict[Node, Node]) -> list[Node]:
    """`roots` with nodes replaced; the replacements are taken as they are."""
    return rewrite(roots, Rules("substitute"), dict(mapping))


def replaced(root: Node, mapping: dict[Node, Node]) -> Node:
    """`root` with nodes replaced, as by `substitute`."""
    return substitute([root], mapping)[0]
