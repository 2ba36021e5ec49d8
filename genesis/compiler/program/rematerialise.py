"""Rematerialisation: stay within a memory budget by computing values again, not keeping them.

A training step computes activations early and needs them again late, in reverse order. A value
that is dropped after its early uses makes room meanwhile; before its first late use the task that
made it runs again. Whole launches are repeated, so no new kernel is made or proven, what is
computed again has the same bits, and the price in arithmetic is known exactly.

Which tasks to drop is decided in one of two ways. Where those whose values wait at the peak form a
chain, each computed from the one before and needed again in reverse order, dynamic programming
finds the cheapest choice of values to drop once and compute again. Anything else is decided
greedily: drop what takes most off the excess for its price, until there is none, then take back
what turned out to be unnecessary.

A task that writes into an input's memory never runs again, and no task does once an input it
reads has been overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from genesis.compiler.program.kernel_order import TaskList, Value
from genesis.compiler.program.program import Program
from genesis.ir.size import evaluate

#: How many of the most promising tasks are tried out before one is dropped.
TRIED = 8


class Unfolded(NamedTuple):
    """A sequence of tasks, some of which may run twice, with what it takes."""

    sequence: list[int]
    profile: list[int]  # for every task of the original order: bytes in use when it runs, or before
    peak: int
    cost: int


def recomputed(work: TaskList, order: Sequence[int], budget: int) -> list[int]:
    """The tasks in order, some of them again, so that no more than `budget` bytes are in use.

    Where that cannot be reached, the sequence with the lowest peak that was found.

    >>> from genesis.compiler.program.kernel_order import Task
    >>> tasks = Task((), "a"), Task("a", "b"), Task("b", "c"), Task("bc", "d"), Task("ad", "e")
    >>> work = TaskList(tasks, dict.fromkeys("abcde", 1), frozenset("e"))
    >>> work.peak([0, 1, 2, 3, 4]), recomputed(work, range(5), 3)
    (4, [0, 1, 2, 3, 0, 4])
    """
    folded = Folded(replace(work, tasks=tuple(work.tasks[k] for k in order)))
    choices = [_along_chain(folded, budget), _greedily(folded, budget)]
    found = [folded.unfold(dropped) for dropped in choices if dropped is not None]
    within = [u for u in found if u is not None and u.peak <= budget]
    if not within:
        choices = [_least_along_chain(folded), _greedily(folded, 0)]
        found = [folded.unfold(dropped) for dropped in choices if dropped is not None]
    if within:
        best = min(within, key=lambda u: u.cost)
    else:
        best = min((u for u in found if u is not None), key=lambda u: u.peak)
    return [order[k] for k in best.sequence]


def within(
    budget: int | float,
    work: TaskList,
    order: Sequence[int],
    program: Callable[[Sequence[int]], Program],
) -> Program:
    """The program of a sequence of tasks that takes no more than the budget.

    Placing values in memory may leave holes, so a sequence that just fits may need another try.
    """
    made = program(order)
    if made.symbols:
        raise OverBudget(
            f"a memory budget needs sizes that are known, and {made.symbols[0]} is symbolic"
        )
    usual = made.peak_bytes()
    limit = budget if isinstance(budget, int) else int(budget * usual)
    target = limit
    while made.peak_bytes() > limit:
        sequence = recomputed(work, order, target)
        made = program(sequence)
        if work.peak(sequence) > target:
            break
        target -= max(1, made.peak_bytes() - limit)
    least = made.peak_bytes()
    if least > limit:
        own = sum(evaluate(o.nbytes, {}) for o in made.outputs if o.reuses is None)
        raise OverBudget(
            f"genesis.jit: a memory budget of {limit:,} bytes cannot be met: with everything "
            f"computed again that can be, the program takes {least:,} bytes on top of its inputs, "
            f"{own:,} of them for results; without a budget it takes {usual:,}"
        )
    return made


class OverBudget(ValueError):
    """A program cannot do with the memory it was given."""


@dataclass(frozen=True)
class Gap:
    """A value is not used between two tasks: after `early` and before `late`."""

    value: Value
    nbytes: int
    early: int
    late: int
    last: int  # its last use


class Folded:
    """Tasks in a fixed order, and which of them may be dropped."""

    def __init__(self, work: TaskList) -> None:
        self.work = work
        self.tasks = work.tasks
        self.writer: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        uses: dict[Value, list[int]] = {}
        #: The position from which on a task cannot run again.
        self.until = [len(self.tasks)] * len(self.tasks)
        readers: dict[Value, list[int]] = {}  # of memory that is overwritten, since it was last
        for k, task in enumerate(self.tasks):
            for v in task.writes:
                if v in work.nbytes:
                    self.writer[v] = k
                for reader in readers.pop(v, ()):
                    self.until[reader] = min(self.until[reader], k)
            for v in task.reads:
                uses.setdefault(v, []).append(k)
                self.last[v] = k
                if v not in work.nbytes:
                    readers.setdefault(v, []).append(k)
        for v in work.results:
            self.last[v] = len(self.tasks)
        self.gaps: dict[int, list[Gap]] = {}
        for v, writer in self.writer.items():
            if v in work.results or not work.nbytes[v] or self.tasks[writer].once or v not in uses:
                continue
            early, late = max(pairwise([writer, *uses[v]]), key=lambda gap: gap[1] - gap[0])
            if late - early > 1 and late <= self.until[writer]:
                gap = Gap(v, work.nbytes[v], early, late, self.last[v])
                self.gaps.setdefault(writer, []).append(gap)

    def unfold(self, dropped: Iterable[int]) -> Unfolded | None:
        """The sequence in which dropped tasks run again before they are needed.

        What they read and is gone by then is computed again, too. None if something cannot be.
        """
        chosen = frozenset(dropped)
        leave = dict(self.last)  # after which task a value goes, the first time
        stay = dict(self.last)  # and once it is computed again
        for k in chosen:
            again = min(gap.late for gap in self.gaps[k])
            leave |= {gap.value: gap.early for gap in self.gaps[k]}
            for v in self.tasks[k].reads:
                if v in self.writer:
                    stay[v] = max(stay[v], again)
                    if not self._can_run(self.writer[v], again):
                        leave[v] = stay[v]
        there: set[Value] = set()
        expiry: list[list[Value]] = [[] for _ in range(len(self.tasks) + 1)]
        sequence: list[int] = []
        starts: list[int] = []

        def run(k: int, position: int, ends: Mapping[Value, int]) -> None:
            sequence.append(k)
            for v in self.tasks[k].writes:
                there.add(v)
                expiry[max(ends.get(v, position), position)].append(v)

        for position in range(len(self.tasks)):
            starts.append(len(sequence))
            batch: set[int] = set()
            stack = self._missing(position, there)
            while stack:
                k = stack[-1]
                if k not in batch and (missing := self._missing(k, there)):
                    stack += missing
                    continue
                stack.pop()
                if k not in batch:
                    batch.add(k)
                    if not self._can_run(k, position):
                        return None
                    run(k, position, stay)
            run(position, position, leave)
            there.difference_update(expiry[position])
        live = self.work.live(sequence)
        ends = [*starts[1:], len(sequence)]
        profile = [max(live[a:b]) for a, b in zip(starts, ends, strict=True)]
        return Unfolded(sequence, profile, self.work.peak(sequence), self.work.cost(sequence))

    def _can_run(self, k: int, position: int) -> bool:
        """Whether a task can run again at a position, before the task that is there."""
        return not self.tasks[k].once and position <= self.until[k]

    def _missing(self, k: int, there: set[Value]) -> list[int]:
        """The tasks that must run before `k` can."""
        return [self.writer[v] for v in self.tasks[k].reads if v in self.writer and v not in there]


# ---- in general


def _greedily(folded: Folded, budget: int) -> frozenset[int]:
    """Tasks to drop; where the budget is out of reach, those that gave the lowest peak."""
    dropped: frozenset[int] = frozenset()
    now = folded.unfold(dropped)
    assert now is not None
    lowest = now.peak, dropped
    while now.peak > budget:
        step = _best_step(folded, dropped, now, budget)
        if step is None:
            return lowest[1]
        dropped, now = step
        lowest = min(lowest, (now.peak, dropped), key=lambda found: found[0])
    for k in sorted(dropped, key=lambda k: (-folded.tasks[k].cost, k)):
        without = folded.unfold(dropped - {k})
        if without is not None and without.peak <= budget and without.cost <= now.cost:
            dropped, now = dropped - {k}, without
    return dropped


def _best_step(
    folded: Folded, dropped: frozenset[int], now: Unfolded, budget: int
) -> tuple[frozenset[int], Unfolded] | None:
    """One more task dropped: of the most promising, the one with most excess less for its price."""
    excess = sum(max(0, used - budget) for used in now.profile)
    over = [0, *accumulate(used > budget for used in now.profile)]

    def promise(k: int) -> float:
        gained = sum(g.nbytes * (over[g.late] - over[g.early + 1]) for g in folded.gaps[k])
        return gained / (folded.tasks[k].cost + 1)

    ranked = sorted(folded.gaps.keys() - dropped, key=lambda k: (-promise(k), k))
    best: tuple[float, frozenset[int], Unfolded] | None = None
    for tried, k in enumerate(ranked):
        if not promise(k) or (tried >= TRIED and best is not None):
            break
        more = dropped | {k}
        then = folded.unfold(more)
        if then is None or then.peak > now.peak:
            continue
        gained = excess - sum(max(0, used - budget) for used in then.profile)
        ratio = gained / (then.cost - now.cost + 1)
        if gained > 0 and (best is None or ratio > best[0]):
            best = ratio, more, then
    return None if best is None else best[1:]


# ---- along a chain


class ChainLink(NamedTuple):
    """A task of a chain: the one value it makes that waits, and what running it again takes."""

    task: int
    gap: Gap
    extra: int  # bytes besides that value and the one before
    cost: int


def chain(folded: Folded) -> list[ChainLink] | None:
    """The tasks whose values wait at the peak, if each needs no such value but the one before.

    Its early uses are over when the next is computed, and late uses come in reverse order: all
    those of one before any of the one before it.
    """
    live = folded.work.live(range(len(folded.tasks)))
    top = live.index(max(live)) if live else 0
    links: list[ChainLink] = []
    for k, gaps in sorted(folded.gaps.items()):
        waiting = [gap for gap in gaps if gap.early < top < gap.late]
        if not waiting:
            continue
        task = folded.tasks[k]
        inputs = {v for v in task.reads if v in folded.writer}
        before = {links[-1].gap.value} if links else set()
        in_turn = not links or (links[-1].gap.early <= k and waiting[0].last < links[-1].gap.late)
        if len(gaps) != 1 or inputs != before or not in_turn:
            return None
        others = [v for v in task.writes if v in folded.writer and v != gaps[0].value]
        extra = sum(folded.work.nbytes[v] for v in others if v not in folded.work.results)
        links.append(ChainLink(k, gaps[0], task.scratch + extra, task.cost))
    return links or None


def _along_chain(folded: Folded, budget: int) -> frozenset[int] | None:
    """The cheapest tasks of a chain to drop; None if there is no chain, or no such choice.

    A choice cuts the chain into runs of dropped tasks between kept ones. While a run is passed,
    on the way there and on the way back, the kept values before it are in memory and nothing of
    those after it. So a run from one kept value to the next is possible if those before it leave
    enough room, and of two ways to get there the one that keeps more and costs more is useless.
    """
    links = chain(folded)
    if links is None:
        return None
    segments = _Segments(folded, links)
    count = len(links)
    # For every kept link: bytes kept up to it, work spent, and what was dropped.
    ways: list[list[tuple[int, int, frozenset[int]]]] = [[] for _ in range(count + 2)]
    ways[0] = [(0, 0, frozenset())]
    for end in range(1, count + 2):
        size = links[end - 1].gap.nbytes if end <= count else 0
        reached = []
        for start in range(end - 1, -1, -1):
            need, run = segments.need(start, end), links[start : end - 1]
            cost, tasks = sum(x.cost for x in run), frozenset(x.task for x in run)
            for kept, spent, dropped in ways[start]:
                if kept + need <= budget:
                    reached.append((kept + size, spent + cost, dropped | tasks))
        cheapest: int | None = None
        for way in sorted(reached, key=lambda way: way[:2]):
            if cheapest is None or way[1] < cheapest:
                ways[end].append(way)
                cheapest = way[1]
    return min(ways[-1], key=lambda way: way[1])[2] if ways[-1] else None


def _least_along_chain(folded: Folded) -> frozenset[int] | None:
    """What to drop of a chain for the lowest peak, found by bisection."""
    high = folded.work.peak(range(len(folded.tasks)))
    best = _along_chain(folded, high)
    low = 0
    while best is not None and high - low > 1:
        middle = (low + high) // 2
        found = _along_chain(folded, middle)
        if found is None:
            low = middle
        else:
            high, best = middle, found
    return best


class _Segments:
    """What passing a run of a chain needs, besides the kept values before it."""

    def __init__(self, folded: Folded, links: Sequence[ChainLink]) -> None:
        self.links = links
        self.folded = folded
        work, count = folded.work, len(folded.tasks)
        waiting = {link.gap.value for link in links}
        others = {v: size for v, size in work.nbytes.items() if v not in waiting}
        self.rest = replace(work, nbytes=others).live(range(count))
        #: What else is in memory between a task and the one before it.
        self.across = [0] * (count + 1)
        change = [0] * (count + 2)
        for v, first, last in work.lifetimes(range(count)):
            change[first + 1] += others.get(v, 0)
            change[last + 1] -= others.get(v, 0)
        self.across = list(accumulate(change))

    def need(self, start: int, end: int) -> int:
        """The bytes in use while the links between `start` and `end` are passed, at most.

        Links count from 1; those two are kept, the ones between are dropped.
        """
        count = len(self.rest)
        first = self.links[start - 1].task if start else 0
        last = self.links[start - 1].gap.last if start else count - 1
        if end <= len(self.links):
            following = self.links[end - 1]
            times = [*range(first, following.task + 1), *range(following.gap.last + 1, last + 1)]
        else:
            times = list(range(first, last + 1))
        run = self.links[start : end - 1]
        used = dict.fromkeys(times, 0)
        if end <= len(self.links):  # the next one is computed from the last of the run
            used[following.task] = following.gap.nbytes
        most = 0
        if run:
            again = run[-1].gap.late
            alive = self.across[again]
            for link in run:
                for t in range(link.task, link.gap.early + 1):
                    used[t] += link.gap.nbytes
                for t in range(again, link.gap.last + 1):
                    used[t] += link.gap.nbytes
                alive += link.gap.nbytes
                most = max(most, alive + link.extra)
                if self.folded.until[link.task] < again:
                    return _NEVER
        return max(most, max((self.rest[t] + extra for t, extra in used.items()), default=0))


_NEVER = 1 << 62
