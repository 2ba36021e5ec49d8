"""Schedules of pipelines: what each rank does in turn, and whether that can work.

A model is cut into stages, rank after rank; with several stages a rank, stage ``s`` lies on rank
``s % ranks``. A batch is cut into microbatches. An `Action` is the forward pass of one microbatch
through one stage, the gradient of its inputs, or that of its weights: where a schedule does not
part these two, the first stands for both. A schedule is a list of actions for each rank, and
`simulate` runs it without a model: it raises an error for one that would drop something, wait for
ever or use what is not there, and says how long ranks are idle and what they keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from genesis.compiler.verify.collectives import Message

Kind = Literal["forward", "inputs", "weights"]


class Action(NamedTuple):
    """What a rank does with a microbatch at a stage."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind} {self.microbatch} at stage {self.stage}"


Schedule = Sequence[Sequence[Action]]


def gpipe(ranks: int, microbatches: int) -> Schedule:
    """All forward passes, then all backward passes: simple, and everything is kept."""
    return [
        [Action("forward", rank, k) for k in range(microbatches)]
        + [Action("inputs", rank, k) for k in range(microbatches)]
        for rank in range(ranks)
    ]


def one_forward_one_backward(ranks: int, microbatches: int) -> Schedule:
    """1F1B: a backward pass as soon as there is one, so that a rank keeps `ranks` at most."""
    found = []
    for rank in range(ranks):
        ahead = min(ranks - rank - 1, microbatches)
        actions = [Action("forward", rank, k) for k in range(ahead)]
        for k in range(microbatches):
            if ahead + k < microbatches:
                actions.append(Action("forward", rank, ahead + k))
            actions.append(Action("inputs", rank, k))
        found.append(actions)
    return found


def interleaved(ranks: int, microbatches: int, stages: int = 2) -> Schedule:
    """1F1B on several stages a rank: they fill each other's gaps."""
    if microbatches % ranks:
        raise ValueError(
            f"interleaved: {microbatches} microbatches do not divide into rounds of {ranks} ranks"
        )
    count, found = microbatches * stages, []
    for rank in range(ranks):

        def action(kind: Kind, k: int, rank: int = rank) -> Action:
            group, place = divmod(k, ranks * stages)
            chunk, within = divmod(place, ranks)
            chunk = chunk if kind == "forward" else stages - 1 - chunk
            return Action(kind, chunk * ranks + rank, group * ranks + within)

        ahead = 2 * (ranks - rank - 1) + (stages - 1) * ranks
        ahead = count if microbatches == ranks else min(ahead, count)
        actions = [action("forward", k) for k in range(ahead)]
        for k in range(count - ahead):
            actions += [action("forward", ahead + k), action("inputs", k)]
        found.append(actions + [action("inputs", k) for k in range(count - ahead, count)])
    return found


def zero_bubble(ranks: int, microbatches: int) -> Schedule:
    """ZB-H1: gradients of weights, which nobody waits for, fill the gaps at the end of a batch."""
    found = []
    for rank in range(ranks):
        ahead = min(ranks - rank, microbatches)
        actions = [Action("forward", rank, k) for k in range(ahead)]
        weights = 0
        for k in range(microbatches):
            actions.append(Action("inputs", rank, k))
            if k >= rank:
                actions.append(Action("weights", rank, weights))
                weights += 1
            if ahead + k < microbatches:
                actions.append(Action("forward", rank, ahead + k))
        actions += [Action("weights", rank, k) for k in range(weights, microbatches)]
        found.append(actions)
    return found


SCHEDULES: Mapping[str, Callable[[int, int], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
}


def tag(action: Action, microbatches: int) -> int:
    """What a message that an action needs goes by; the next number is left to its contents."""
    number = action.stage * microbatches + action.microbatch
    return 2 * (2 * number + (action.kind == "inputs"))


def messages(schedule: Schedule, microbatches: int) -> list[list[Message]]:
    """What every rank receives and sends, in the order of its actions.

    >>> [str(m) for m in messages(gpipe(2, 1), 1)[1]]
    ['receive 4 from 0', 'send 2 to 0']
    """
    ranks = len(schedule)
    stages = 1 + max(action.stage for actions in schedule for action in actions)
    found: list[list[Message]] = [[] for _ in schedule]
    for rank, actions in enumerate(schedule):
        for action in actions:
            step = {"forward": 1, "inputs": -1, "weights": 0}[action.kind]
            before, after = action.stage - step, action.stage + step
            if step and 0 <= before < stages and before % ranks != rank:
                found[rank].append(Message("receive", before % ranks, tag(action, microbatches)))
            if step and 0 <= after < stages and after % ranks != rank:
                there = tag(action._replace(stage=after), microbatches)
                found[rank].append(Message("send", after % ranks, there))
    return found


@dataclass(frozen=True)
class Simulated:
    """What came of a schedule."""

    seconds: float
    idle: float  #: the share of the time in which a rank has nothing to do, of the busiest rank
    kept: tuple[int, ...]  #: the most microbatches of which each rank keeps activations


def simulate(
    schedule: Schedule, microbatches: int, costs: Mapping[Kind, float] | None = None
) -> Simulated:
    """Run a schedule without a model; ``ValueError`` says what is wrong with it.

    `costs` are the seconds of an action of each kind.

    >>> simulate(one_forward_one_backward(4, 8), 8).kept
    (4, 3, 2, 1)
    """
    ranks = len(schedule)
    stages = _complete(schedule, microbatches)
    parted = any(action.kind == "weights" for actions in schedule for action in actions)
    costs = costs or {"forward": 1, "inputs": 1 if parted else 2, "weights": 1}
    ended: dict[Action, float] = {}
    at, times, kept, most = [0] * ranks, [0.0] * ranks, [0] * ranks, [0] * ranks
    last: Kind = "weights" if parted else "inputs"
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule):
            while at[rank] < len(actions):
                action = actions[at[rank]]
                needs = _needs(action, stages)
                if any(need not in ended for need in needs):
                    break
                begin = max([times[rank], *(ended[need] for need in needs)])
                times[rank] = ended[action] = begin + costs[action.kind]
                kept[rank] += (action.kind == "forward") - (action.kind == last)
                most[rank] = max(most[rank], kept[rank])
                at[rank] += 1
                moved = True
    stuck = [actions[k] for k, actions in zip(at, schedule, strict=True) if k < len(actions)]
    if stuck:
        raise ValueError(f"this schedule waits for ever: for {'; '.join(map(str, stuck))}")
    whole = max(times)
    busy = max(sum(costs[action.kind] for action in actions) for actions in schedule)
    return Simulated(whole, 1 - busy / whole, tuple(most))


def _complete(schedule: Schedule, microbatches: int) -> int:
    """The number of stages of a schedule in which everything happens once, where it lies."""
    ranks, seen = len(schedule), set[Action]()
    for rank, actions in enumerate(schedule):
        for action in actions:
            if action in seen or action.stage % ranks != rank:
                raise ValueError(f"rank {rank} does {action}, a second time or not where it lies")
            seen.add(action)
    stages = 1 + max(action.stage for action in seen)
    kinds: set[Kind] = {action.kind for action in seen}
    for stage in range(max(stages, ranks)):
        for k in range(microbatches):
            for kind in sorted({*kinds, "forward", "inputs"}):
                if Action(kind, stage, k) not in seen:
                    raise ValueError(f"nobody does {Action(kind, stage, k)}")
    if len(seen) != len({*kinds, "forward", "inputs"}) * max(stages, ranks) * microbatches:
        raise ValueError(f"there is more than {microbatches} microbatches in this schedule")
    return max(stages, ranks)


def _needs(action: Action, stages: int) -> list[Action]:
    """What must have happened before an action."""
    kind, stage, k = action
    if kind == "forward":
        return [Action("forward", stage - 1, k)] if stage else []
    if kind == "weights":
        return [Action("inputs", stage, k)]
    after = [Action("inputs", stage + 1, k)] if stage + 1 < stages else []
    return [Action("forward", stage, k), *after]


__all__ = [
    "SCHEDULES", "Action", "Schedule", "Simulated", "gpipe", "interleaved", "messages",
    "one_forward_one_backward", "simulate", "tag", "zero_bubble",
]  # fmt: skip
