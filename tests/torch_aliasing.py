"""Random functions of views and writes, to be run eagerly and compiled.

A function is a list of steps over numbered tensors, of which the first are its arguments. What
eager code makes of it is what compiled code must make of it: the numbers, the strides, which of
results and arguments share a storage, what a write through one does to the others, and gradients.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Step = tuple[str, tuple[int, ...]]

SHAPES = ((3, 4), (4, 3), (6,), (2, 3, 2), (4, 4))


@dataclass
class Case:
    """A function, its arguments' shapes, and the mode that it is called in."""

    steps: list[Step]
    results: list[int]
    shapes: list[tuple[int, ...]]
    windows: list[bool]  #: whether an argument is part of a larger tensor
    shared: list[int | None]  #: the argument that an argument is a view of
    differentiable: list[bool]
    mode: str

    def arguments(self) -> list[torch.Tensor]:
        """The arguments, the same at every call."""
        found: list[torch.Tensor] = []
        for k, shape in enumerate(self.shapes):
            source = self.shared[k]
            if source is not None:
                found.append(found[source][..., 1:])
                continue
            torch.manual_seed(k)
            if self.windows[k]:
                x = torch.randn(shape[0] + 2, *shape[1:], 2)[1:-1, ..., 1]
            else:
                x = torch.randn(shape)
            found.append(x.requires_grad_(self.differentiable[k]))
        return found

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The function."""
        steps, results = self.steps, self.results

        def run(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
            tensors = list(arguments)
            for name, numbers in steps:
                perform(name, numbers, tensors)
            return tuple(tensors[k] for k in results)

        return run


def perform(name: str, numbers: tuple[int, ...], tensors: list[torch.Tensor]) -> None:
    """One step: a view, a new tensor, or a write."""
    x = tensors[numbers[0]]
    if name == "add_":
        x.add_(1.5)
    elif name == "mul_":
        x.mul_(0.75)
    elif name == "copy_":
        x.copy_(tensors[numbers[1]].sum())
    elif name == "set":
        x[0] = tensors[numbers[1]].mean()
    elif name == "fill_":
        x.fill_(2.0)
    elif name in VIEWS:
        tensors.append(VIEWS[name](x))
    elif name == "halves":
        tensors.extend(x.chunk(2))
    elif name == "unbind":
        tensors.extend(x.unbind(0)[:2])
    elif name == "new":
        tensors.append(x * 2)
    elif name == "clone":
        tensors.append(x.clone())
    elif name == "mixed":
        tensors.append(x.sin() + tensors[numbers[1]].sum())
    else:
        raise AssertionError(name)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda x: x.transpose(0, -1),
    "tail": lambda x: x[1:],
    "head": lambda x: x[:-1],
    "odd": lambda x: x[..., ::2],
    "first": lambda x: x[0],
    "flat": lambda x: x.reshape(-1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "self": lambda x: x.view_as(x),
    "detach": lambda x: x.detach(),
    "squeeze": lambda x: x.squeeze(),
}
WRITES = ("add_", "mul_", "copy_", "set", "fill_")
NEW = ("new", "clone", "mixed")
MODES = ("no_grad", "grad", "grad", "inference")


def random_case(seed: int) -> Case:
    """A function that PyTorch runs eagerly without complaint."""
    for attempt in range(1000):
        case = _drawn(random.Random(f"{seed}.{attempt}"))
        try:
            observe(case.function(), case)
        except (RuntimeError, IndexError):
            continue
        return case
    raise AssertionError("no function was found")


def _drawn(chooser: random.Random) -> Case:
    count = chooser.randint(1, 3)
    shapes = [chooser.choice(SHAPES) for _ in range(count)]
    mode = chooser.choice(MODES)
    shared: list[int | None] = [None] * count
    if count > 1 and chooser.random() < 0.15:
        shared[-1] = 0
    differentiable = [
        mode == "grad" and chooser.random() < 0.6 and shared[k] is None for k in range(count)
    ]
    windows = [chooser.random() < 0.2 for _ in range(count)]
    steps: list[Step] = []
    known = count
    for _ in range(chooser.randint(1, 7)):
        kinds = chooser.random()
        if kinds < 0.5:
            name = chooser.choice((*VIEWS, "halves", "unbind"))
        elif kinds < 0.75:
            name = chooser.choice(NEW)
        else:
            name = chooser.choice(WRITES)
        steps.append((name, (chooser.randrange(known), chooser.randrange(known))))
        if name not in WRITES:
            known += 2 if name in ("halves", "unbind") else 1
    results = [chooser.randrange(known) for _ in range(chooser.randint(1, 5))]
    if chooser.random() < 0.7:
        results = [max(k, known - 1 - chooser.randrange(4)) for k in results]
    return Case(steps, results, shapes, windows, shared, differentiable, mode)


def observe(function: Callable[..., Any], case: Case) -> list[Any]:
    """Everything about a call that its caller can tell."""
    given = case.arguments()
    # A leaf that requires gradients may not be written: what is passed is computed from it.
    arguments = [x * 1.0 if x.requires_grad else x for x in given]
    if case.mode == "inference":
        with torch.inference_mode():
            results = function(*arguments)
    elif case.mode == "no_grad":
        with torch.no_grad():
            results = function(*arguments)
    else:
        results = function(*arguments)
    tensors = [*results, *arguments]
    seen: list[Any] = [[tuple(x.shape) for x in tensors], [_strides(x) for x in tensors]]
    seen.append([x.requires_grad for x in tensors])
    seen.append([x is y for x in results for y in arguments])
    seen.append(groups(tensors))
    seen.append([x.detach().clone() for x in tensors])
    if case.mode == "grad":
        seen.append(_gradients(results, given))
    with torch.inference_mode(case.mode == "inference"), torch.no_grad():
        for k, x in enumerate(tensors):
            if 0 not in x.stride():
                x.add_(k + 1)
                seen.append([y.detach().clone() for y in tensors])
    return seen


def _strides(x: torch.Tensor) -> list[int]:
    """The strides that say something: not those along one element."""
    return [stride for n, stride in zip(x.shape, x.stride(), strict=True) if n > 1]


def _gradients(results: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> list[Any]:
    wanted = [x for x in given if x.requires_grad]
    loss = [(x * x).sum() for x in results if x.requires_grad]
    if not loss or not wanted:
        return []
    return list(torch.autograd.grad(sum(loss), wanted, allow_unused=True))  # type: ignore[arg-type]


def groups(tensors: Sequence[torch.Tensor]) -> list[int]:
    """For each tensor the first one that has its storage."""
    places = [x.untyped_storage().data_ptr() for x in tensors]
    return [places.index(p) for p in places]


def differences(case: Case, compiled: Callable[..., Any]) -> str | None:
    """What differs first between eager and compiled, if anything does."""
    names = ["shapes", "strides", "requires_grad", "identities", "storages", "values"]
    names += ["gradients"] * (case.mode == "grad")
    want, got = observe(case.function(), case), observe(compiled, case)
    for k, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        name = names[k] if k < len(names) else "values after a write"
        try:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        except AssertionError as error:
            return f"{name}: {ours} instead of {theirs}: {error}"
    return None
