"""The graph of a program before and after each stage, and what each rule of a stage did.

Nodes are numbered once for all stages: equal nodes are one, so what a stage changed are those that
are in one graph and not in the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from inspect import getdoc, getsourcefile, getsourcelines
from typing import Any

from genesis.compiler.graph.simplify import simplify
from genesis.compiler.pipeline import SIMPLIFY
from genesis.compiler.program.program import Places, Program
from genesis.ir import ops
from genesis.ir.node import Leaf, Node, Recurrence, topological
from genesis.ir.rewrite import Rule, observed_by

#: Characters of an attribute, and replacements of one rule, that are shown.
ATTRIBUTE, EXAMPLES = 160, 5


@dataclass
class RuleUse:
    """What one rule did in a stage."""

    name: str
    text: str  #: the first line of what it says about itself
    where: str
    count: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)  #: before and after


@dataclass
class StageView:
    """The graph after a stage: the numbers of its roots, and the rules that made it."""

    name: str
    roots: list[int]
    count: int  #: nodes in it
    rules: list[RuleUse]


class Graphs:
    """The stages of a program, and all nodes that occur in them: inputs come first."""

    def __init__(self, program: Program, places: Places | None) -> None:
        self.numbers: dict[Node, int] = {}
        self.nodes: list[dict[str, Any]] = []
        self.stages: list[StageView] = []
        derivation = program.derivation
        before: tuple[Node, ...] = ()
        for name, roots in derivation.stages:
            order = topological(roots)
            for n in order:
                if n not in self.numbers:
                    written = derivation.origins.get(n, n)
                    where = None if places is None else places.where(written)
                    self.numbers[n] = len(self.nodes)
                    self.nodes.append(self._described(n, where))
            rules = rules_used(before) if name == SIMPLIFY else []
            numbers = [self.numbers[r] for r in roots]
            self.stages.append(StageView(name, numbers, len(order), rules))
            before = roots

    def known(self, nodes: Iterable[Node]) -> list[int]:
        """The numbers of those nodes that are in a graph."""
        return sorted({self.numbers[n] for n in nodes if n in self.numbers})

    def _described(self, n: Node, where: str | None) -> dict[str, Any]:
        return {
            "op": n.op.name,
            "group": n.op.group,
            "form": f"{n.dtype.name}[{', '.join(map(str, n.shape))}]",
            "attr": attribute(n),
            "in": [self.numbers[i] for i in n.inputs],
            "line": where or "",
        }


def attribute(n: Node) -> str:
    """The attribute of a node in a few words."""
    if n.attr is None:
        return ""
    if isinstance(n.attr, Leaf):
        return f"input {n.attr.slot}, strides {n.attr.strides}"
    if isinstance(n.attr, Recurrence):
        inside = len(topological(n.attr.body))
        return f"{n.attr.length} times a body of {inside} nodes, {n.attr.carries} carried"
    text = n.attr.name if n.op is ops.CALL else str(n.attr)
    return text if len(text) <= ATTRIBUTE else text[: ATTRIBUTE - 1] + "…"


def rules_used(roots: tuple[Node, ...]) -> list[RuleUse]:
    """What the rules of simplification do to a graph, those used most first."""
    used: dict[Rule, RuleUse] = {}

    def saw(rule: Rule, before: Node, after: Node) -> None:
        use = used.get(rule)
        if use is None:
            use = used[rule] = _described(rule)
        use.count += 1
        if len(use.examples) < EXAMPLES:
            use.examples.append((sketch(before), sketch(after)))

    with observed_by(saw):
        simplify(roots)
    return sorted(used.values(), key=lambda use: -use.count)


def _described(rule: Rule) -> RuleUse:
    text = (getdoc(rule) or "").partition("\n")[0]
    where = f"{getsourcefile(rule)}:{getsourcelines(rule)[1]}"
    return RuleUse(rule.__name__.strip("_").replace("_", " "), text, where)


def sketch(n: Node, depth: int = 3) -> str:
    """An expression in short: what is deeper is only named by its form.

    >>> from genesis.ir.dtype import float32
    >>> from genesis.ir.node import const, elementwise
    >>> x = const(2.0, float32)
    >>> sketch(elementwise(ops.EXP, elementwise(ops.NEG, x)))
    'exp(neg(2.0))'
    """
    shape = ", ".join(map(str, n.shape))
    if n.op is ops.CONST:
        return repr(n.attr)
    if n.op is ops.BUFFER:
        return f"input{n.attr.slot}[{shape}]"
    if not depth:
        return f"..[{shape}]"
    inside = ", ".join(sketch(i, depth - 1) for i in n.inputs[:4]) + ", .." * (len(n.inputs) > 4)
    moved = f"{inside} to [{shape}]" if n.op.is_movement else inside
    return f"{n.op.name}({moved})"
