"""A recording as text, for terminals: what the page has, of graphs what became of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from genesis.profiling.table import aligned, duration, places
from genesis.view.script_run import ScriptRun
from genesis.view.tensorboard import Curve

#: Characters of a curve, and rules of a stage that are named.
WIDTH, RULES = 60, 8

_BARS = "▁▂▃▄▅▆▇█"


def text(found: ScriptRun) -> str:
    """The whole text: an overview, then program by program."""
    return "\n".join(_lines(found))


def _lines(found: ScriptRun) -> Iterator[str]:
    yield f"{found.script}: {duration(found.seconds)}, exit status {found.status}"
    yield ""
    head = ("program", "calls", "time", "nodes", "kernels", "memory", "proven")
    rows = [_row(number, p) for number, p in enumerate(found.programs, 1)]
    yield aligned([head, *rows], left=(0, 6))
    if found.more_programs:
        yield f"and {found.more_programs} other programs"
    if found.memory:
        yield ""
        yield "memory in use"
        yield f"  {bars(found.memory)}  up to {size(max(y for _, y in found.memory))}"
    for title, curves in (("numbers that were read", found.curves), ("other runs", found.runs)):
        if curves:
            yield ""
            yield title
        for name, curve in curves.items():
            last = f"{curve[0][1]:.4g} to {curve[-1][1]:.4g} in {len(curve)}"
            yield f"  {bars(curve)}  {last}  {name}"
    for number, program in enumerate(found.programs, 1):
        yield ""
        yield from _program(number, program)


def _row(number: int, p: dict[str, Any]) -> tuple[str, ...]:
    counts = [stage["count"] for stage in p["stages"]]
    return (
        f"{number} {p['title']}",
        f"{p['calls']}",
        duration(p["seconds"]),
        " -> ".join(dict.fromkeys(str(n) for n in (counts[:1] + counts[-1:]))),
        f"{len(p['kernels'])}",
        size(p["peak_bytes"]),
        "yes" if p["proven"] else "not all",
    )


def _program(number: int, p: dict[str, Any]) -> Iterator[str]:
    sizes = ", ".join(f"{name} = {value}" for name, value in p["sizes"].items())
    yield f"program {number}, {p['title']}" + f" ({sizes})" * bool(sizes)
    for stage in p["stages"]:
        rules = ", ".join(f"{rule['name']} {rule['count']}" for rule in stage["rules"][:RULES])
        more = f" and {len(stage['rules']) - RULES} more rules" * (len(stage["rules"]) > RULES)
        yield f"  {stage['name']}: {stage['count']} nodes" + f" by {rules}{more}" * bool(rules)
    for k in p["kernels"]:
        roof = "" if k["roof"] is None else f", {100 * k['roof']:.0f} % of the roof"
        calls = f"{k['calls']} call{'s' * (k['calls'] != 1)}"
        yield f"  kernel {k['name']}: {calls}, {duration(k['seconds'])}{roof}"
        yield f"    {', '.join(k['operations']) or 'copy'}; from {places(k['lines']) or 'nowhere'}"
        yield f"    by the rule {k['rule']!r}, {k['verdict']}"
        yield from (f"      {line}" for line in k["scheduled"].splitlines())
    for call in p.get("library", ()):
        yield f"  call {call['name']}: {'native' if call['native'] else 'on the host'}"


def bars(curve: Curve) -> str:
    """A curve as bars, from its least to its greatest; what is not finite is a !.

    >>> bars([(0, 1.0), (1, 2.0), (2, 3.0), (3, math.nan)])
    '▁▅█!'
    """
    values = _columns([y for _, y in curve])
    finite = [y for y in values if math.isfinite(y)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    apart = (high - low) or 1.0
    return "".join(
        _BARS[round((y - low) / apart * (len(_BARS) - 1))] if math.isfinite(y) else "!"
        for y in values
    )


def _columns(values: Sequence[float]) -> Sequence[float]:
    """At most as many as there are columns, from the first to the last."""
    if len(values) <= WIDTH:
        return values
    return [values[k * (len(values) - 1) // (WIDTH - 1)] for k in range(WIDTH)]


def size(nbytes: float) -> str:
    """Bytes with a unit.

    >>> size(2048)
    '2 KiB'
    """
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} GiB"
