"""Matchers: functions that recognise one pending graph, made as Python source.

A loop realises the same few graphs in every turn. What `pending_graph` finds out about any graph
(who is in it, what it is, how often it is referred to) is for one that came before a single
question: is it that one again? Its matcher asks that in a straight line, with no list or dictionary
on the way. It compares all that the signature of the graph says, but for references to roots: those
are computed whoever holds them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import ref

from genesis.ir import ops
from genesis.ndarray.core.liveness import references
from genesis.ndarray.core.pending_graph import PendingGraph, form_of
from genesis.ndarray.core.value import Checked, CopyPart, Several, SubgraphCopy, Value

if TYPE_CHECKING:
    from genesis.ndarray.core.storage import State

#: Given the roots, and the values that states began from: all values, or None for another graph.
Matcher = Callable[[Sequence[Value], Sequence[ref[Value]]], "list[Any] | None"]

#: Values of a graph, at most: compiling what recognises one takes 20 µs.
MOST_VALUES = 1000


def is_matchable(graph: PendingGraph) -> bool:
    """Whether a matcher can be made, and is worth it."""
    return len(graph.order) <= MOST_VALUES and not any(type(x) is Several for x in graph.order)


def matcher(graph: PendingGraph, states: Sequence[State]) -> Matcher:
    """What recognises graphs like one that was met before, whose roots are of the same forms.

    `states` are those that were advanced; they are among the roots, after all others.
    """
    order, place_of = graph.order, graph.places
    wiring = [[place_of[x] for x in value.sources] for value in order]
    roots = [place_of[root] for root in graph.roots]
    known = set(roots)
    given = known.union(*wiring)  # the rest are parts of blocks that nothing reads
    names: dict[Any, str] = {}  # of memories
    # Only what has one form may be one object.
    alike: dict[int | None, list[str]] = defaultdict(list)
    counts: list[str] = []
    scope: dict[str, Any] = {
        "CopyPart": CopyPart, "Value": Value, "count": getrefcount, "form_of": form_of,
        "is_pending": _is_pending,
    }  # fmt: skip
    lines = [f"{_listed(f'v{place}' for place in roots)} = roots"]
    for place, value in enumerate(order):
        form = form_of(value)
        alike[form].append(f"v{place}")
        if place not in roots:
            lines.append(_unless(_has_form(f"v{place}", value, form, scope)))
            counts.append(f"count(v{place}) == {graph.counts[place] + _OWN}")
        if type(value) is Checked:
            lines.append(_unless(f"v{place}.passed"))
        if value.memory is not None:
            name = names.setdefault(value.memory, f"m{place}")
            same = name != f"m{place}"
            read = f"v{place}.memory"
            lines.append(_unless(f"{read} is {name}") if same else f"{name} = {read}")
        lines += _reading(place, wiring[place], known)
        if type(value) is SubgraphCopy and len(value.parts) > 1:
            for k, part in enumerate(value.parts):
                found = part()
                if found is None or found.memory is not None:
                    lines.append(_unless(f"not is_pending(v{place}.parts[{k}])"))
                elif (extra := place_of[found]) not in given:
                    known.add(extra)
                    lines.append(f"v{extra} = v{place}.parts[{k}]()")
                    lines.append(_unless(f"type(v{extra}) is CopyPart and v{extra}.memory is None"))
    for k, state in enumerate(states):
        lines.append(_unless(f"bases[{k}]() is v{place_of[state.base()]}"))
    several = [*filter(lambda x: len(x) > 1, [*alike.values(), [*names.values()]])]
    lines += [_unless(f"len({{{', '.join(group)}}}) == {len(group)}") for group in several]
    leaves = Counter(graph.memories)
    for memory, n in dict(zip(graph.memories, graph.memory_counts, strict=True)).items():
        counts.append(f"count({names[memory]}) == {n - leaves[memory] + 1 + _OWN}")
    lines += [_unless(test) for test in counts]
    lines.append(f"return [{', '.join(f'v{place}' for place in range(len(order)))}]")
    exec("\n    ".join(["def match(roots, bases):", *lines]), scope)
    found_matcher: Matcher = scope["match"]
    return found_matcher


def _listed(names: Iterable[str]) -> str:
    return "".join([f"{name}, " for name in names])


def _unless(test: str) -> str:
    return f"if not ({test}): return None"


def _has_form(name: str, value: Any, form: int | None, scope: dict[str, Any]) -> str:
    """Whether a variable is of a form: by its number, or by its parts if it has none yet."""
    if type(value) is not Value or value.memory is not None or value.op is ops.CONST:
        return f"{name}.form == {form} or form_of({name}) == {form}"
    alike = [f"type({name}) is Value", f"len({name}.inputs) == {len(value.inputs)}"]
    parts = {"op": value.op, "dtype": value.dtype, "shape": value.shape, "attr": value.attr}
    steps = None
    if value.op is ops.SCALAR:
        del parts["attr"]
    elif value.op is ops.SLICE and value.inputs[0].memory is not None:  # it may begin anywhere
        steps = [step for _, step in parts.pop("attr")]
    for part, known in parts.items():
        scope[f"{part}_{name}"] = known
        alike.append(f"{name}.{part} == {part}_{name}")
    if steps is not None:  # after the operation: others have other attributes
        alike.append(f"[step for _, step in {name}.attr] == {steps}")
    return f"{name}.form == {form} or not {name}.form and {' and '.join(alike)}"


def _reading(place: int, sources: list[int], known: set[int]) -> list[str]:
    """Lines that go from a value to what it refers to, which is new or known."""
    if len(known.union(sources)) == len(known) + len(sources):
        known.update(sources)
        return [f"{_listed(f'v{x}' for x in sources)} = v{place}.sources"] if sources else []
    lines = [f"sources = v{place}.sources"]
    for k, x in enumerate(sources):
        lines.append(_unless(f"sources[{k}] is v{x}") if x in known else f"v{x} = sources[{k}]")
        known.add(x)
    return lines


def _is_pending(part: ref[CopyPart]) -> bool:
    value = part()
    return value is not None and value.memory is None


def _counted() -> int:
    x = object()
    return getrefcount(x) - references([x])[0] + 1


#: How many more references a matcher's question adds than that of `liveness.references`.
_OWN = _counted()
