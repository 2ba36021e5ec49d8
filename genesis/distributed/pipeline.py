"""Pipelines: a model in stages, each on a rank of its own, and microbatches that pass through them.

Every rank runs its list of a schedule (`schedules`): it receives what an action needs, computes it,
and sends on what comes out. Sending never waits, so a schedule that `simulate` accepts cannot hang.
Gradients of microbatches are added up in the same order in all schedules, and a stage is the same
program wherever it runs: every schedule gives the same bits, and so does one process with as many
stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

import genesis
from genesis import Tensor, nn
from genesis.compiler.verify.collectives import verify_messages
from genesis.distributed.codecs import Codec, Feedback
from genesis.distributed.exact_sums import exact_sums
from genesis.distributed.mesh import Mesh, current
from genesis.distributed.pipeline_schedules import (
    SCHEDULES,
    Action,
    Schedule,
    interleaved,
    messages,
    simulate,
    tag,
)
from genesis.distributed.placement_rules import agree, spread
from genesis.distributed.process_groups import ProcessGroup
from genesis.ir.numpy_library.collectives import Due

Array = np.ndarray[Any, Any]
Loss = Callable[[Tensor, Tensor], Tensor]


class Pipeline(nn.Module):
    """A model in stages along an axis of a mesh; calling it computes a batch and its gradients.

    `model` is a sequence of layers, from each of which one tensor goes to the next; every process
    makes all of it, and keeps the layers of its own stages. A call takes this process's rows of a
    batch and gives the mean of `loss` over all rows; ``.grad`` of the parameters is that mean's
    gradient, ready for an optimizer of ``pipeline.parameters()``.

    >>> import genesis.distributed as gd
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    >>> pipeline = Pipeline(model, nn.functional.mse_loss, gd.mesh(), microbatches=2, stages=3)
    >>> pipeline(genesis.ones(4, 4), genesis.zeros(4, 2)).shape
    genesis.Size([])

    Along other axes of the mesh the pipeline is repeated: each has its rows, and gradients are
    averaged. A layer that is in two places has one weight, whose gradients are added up. `costs`
    are the seconds of every layer (`layer_costs` measures them), by which stages are balanced;
    without them, sizes of weights are. With `exact`, gradients of microbatches are kept, and added
    up so that the order does not matter: twelve microbatches give the same bits on one process as
    on two, three or four beside each other. A `codec` sends gradients in fewer bytes (`codecs`).
    """

    def __init__(
        self,
        model: Sequence[nn.Module] | nn.Sequential,
        loss: Loss,
        mesh: Mesh | None = None,
        *,
        axis: str = "pp",
        microbatches: int = 8,
        schedule: str = "1f1b",
        stages: int | None = None,
        costs: Sequence[float] | None = None,
        exact: bool = False,
        codec: Codec | None = None,
    ) -> None:
        super().__init__()
        if exact and codec is not None:
            raise ValueError("Pipeline: a codec leaves something out, so sums are not exact")
        self.mesh = mesh = mesh or current()
        self.axis, self.microbatches = axis, microbatches
        layers, ranks = list(model), mesh.shape.get(axis, 1)
        self.rank = mesh.coordinates.get(axis, 0)
        self.schedule = _schedule(schedule, ranks, microbatches, stages)
        simulate(self.schedule, microbatches)
        verify_messages(messages(self.schedule, microbatches))
        self._count = 1 + max(a.stage for actions in self.schedule for a in actions)
        if len(layers) < self._count:
            raise ValueError(f"Pipeline: {len(layers)} layers are too few for {self._count} stages")
        seconds = np.array([_size(layer) for layer in layers] if costs is None else costs, "f8")
        parts = balanced(mesh.broadcast(seconds).tolist(), self._count)
        _begin_alike(layers, mesh)
        mine = [s for s in range(self._count) if s % ranks == self.rank]
        self.layers = nn.ModuleDict({str(k): layers[k] for s in mine for k in range(*parts[s])})
        self._stages = {
            s: _Stage(layers[slice(*parts[s])], loss, s == self._count - 1, exact) for s in mine
        }
        self._tied = _tied([layers[slice(*part)] for part in parts])
        self._links = {name: group for name in mesh.shape if (group := mesh.group(name))}
        self._beside = [link for name, link in self._links.items() if name != axis]
        self._every = microbatches * self.beside[1]
        self._exact = exact
        self.codec = None if codec is None else Feedback(codec)
        seed = np.array([genesis.initial_seed()], np.uint64)
        self._seed = int(mesh.broadcast(seed)[0])
        self.batches: Tensor
        self.register_buffer("batches", genesis.tensor(0))  # random numbers depend on it

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a batch; the gradients of the parameters are those of the batch."""
        m = self.microbatches
        if not x.shape or len(x) % m or len(target) != len(x):
            raise ValueError(
                f"Pipeline: {len(x) if x.shape else 0} rows and {len(target)} targets do not "
                f"divide into {m} microbatches"
            )
        for stage in self._stages.values():
            stage.begin()
        batch = _Batch(self, x.chunk(m), target.chunk(m))
        for action in self.schedule[self.rank]:
            batch.do(action)
        batch.finish()
        self.batches += 1
        self._assign_gradients()
        losses = [np.array([loss], np.float32) for loss in batch.losses or [0.0]]
        (loss,) = self._summed([losses], list(self._links.values()))
        return genesis.tensor(loss[0] / self._every)

    def _assign_gradients(self) -> None:
        """What the stages have added up becomes the parameters' gradients."""
        terms: dict[Tensor, list[Array]] = {}
        for _, stage in sorted(self._stages.items()):
            for p, more in stage.take().items():
                terms.setdefault(p, []).extend(g.numpy() for g in more)
        own = [p for p in terms if p not in self._tied]
        if self.codec is None:
            sums = self._summed([terms[p] for p in own], self._beside)
        else:
            names: dict[Tensor, str] = {p: name for name, p in self.named_parameters()}
            sums = [self._sent(self.codec, names[p], terms[p]) for p in own]
        nothing = [terms.get(p, [np.zeros(p.shape, p.dtype.numpy)]) for p in self._tied]
        sums += self._summed(nothing, list(self._links.values()))
        for p, total in zip([*own, *self._tied], sums, strict=True):
            if p in terms:
                p.grad = genesis.tensor(total / total.dtype.type(self._every), device=p.device)

    def _sent(self, codec: Feedback, name: str, terms: list[Array]) -> Array:
        """The sum of an array over pipelines, in fewer bytes."""
        total: Array = reduce(np.add, terms)
        for link in self._beside:
            axis = link.name.rpartition("/")[2]
            total = codec.reduce(f"{axis}/{name}", total, link)
        return total

    @property
    def beside(self) -> tuple[int, int]:
        """Which of the pipelines beside each other this is, and how many there are."""
        number = reduce(lambda n, link: n * link.size + link.rank, self._beside, 0)
        return number, prod(link.size for link in self._beside)

    def _summed(self, terms: list[list[Array]], links: Sequence[ProcessGroup]) -> list[Array]:
        """The sums of several arrays each, over the processes of some groups."""

        def combine(arrays: list[Array], how: str) -> list[Array]:
            for link in links:
                arrays = _combined(link, arrays, how)
            return arrays

        if self._exact:
            return exact_sums(terms, combine)
        return combine([reduce(np.add, xs) for xs in terms], "sum")

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients of all stages so that their norm is at most this; gives the norm."""
        squares = [
            p.grad.float().square().sum().item()
            for s, stage in self._stages.items()
            for p in stage.parameters
            if p.grad is not None and self._tied.get(p, s) == s
        ]
        total = np.array([sum(squares)], np.float64)
        link = self._links.get(self.axis)
        norm = float(np.sqrt(total if link is None else _combined(link, [total], "sum")[0])[0])
        if norm > max_norm:
            for p in self.parameters():
                if p.grad is not None:
                    p.grad.mul_(max_norm / (norm + 1e-6))
        return genesis.tensor(norm)

    def stage(self, number: int) -> _Stage:
        """One of this rank's stages."""
        return self._stages[number]

    def where(self, stage: int) -> tuple[int, ProcessGroup | None]:
        """The rank of a stage, and what it is reached by unless it is this one."""
        rank = stage % len(self.schedule)
        return rank, None if rank == self.rank else self._links[self.axis]

    @contextmanager
    def drawing(self, batch: int, stage: int, microbatch: int) -> Iterator[None]:
        """Random numbers that depend on the place in the batch alone, not on the schedule."""
        first = self.beside[0] * self.microbatches
        place = [self._seed, batch, stage, first + microbatch]
        before = genesis.get_rng_state()
        genesis.manual_seed(int(np.random.SeedSequence(place).generate_state(1, np.uint64)[0] >> 1))
        try:
            yield
        finally:
            genesis.set_rng_state(before)


class _Stage:
    """Some layers as programs: forward, and gradients of what goes in and of the weights."""

    def __init__(self, layers: Sequence[nn.Module], loss: Loss, last: bool, exact: bool) -> None:
        self.last, self._exact = last, exact
        held = {p: None for layer in layers for p in layer.parameters() if p.requires_grad}
        self.parameters: list[Tensor] = list(held)
        self.begin()

        def program(x: Tensor, *target: Tensor) -> Tensor:
            for layer in layers:
                x = layer(x)
            return loss(x, *target) if last else x

        self._program = genesis.jit(program)

    def begin(self) -> None:
        """Nothing is left of the batch before, which may not have come to its end."""
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # what went in and came out
        self._given: dict[int, Tensor] = {}  # gradients of what came out
        self._found: list[list[Tensor]] = []  # gradients: of every microbatch, or their sum

    def forward(self, k: int, x: Tensor, *target: Tensor) -> Tensor:
        """What comes out for a microbatch: the loss, of the last stage."""
        y = self._program(x, *target)
        self._kept[k] = x, y
        return y

    def inputs(self, k: int, gradient: Tensor, parted: bool) -> Tensor | None:
        """The gradient of what went in; unless `parted`, those of the weights are added up, too."""
        x, y = self._kept[k]
        first = [x] if x.requires_grad else []
        wanted = first if parted else [*first, *self.parameters]
        found = _gradients(y, wanted, gradient, retain_graph=parted)
        if parted:
            self._given[k] = gradient
        else:
            self._add(found[len(first) :])
            del self._kept[k]
        return found[0] if first else None

    def weights(self, k: int) -> None:
        """Add up the gradients of the weights."""
        _, y = self._kept.pop(k)
        gradient = self._given.pop(k)
        self._add(_gradients(y, self.parameters, gradient))

    def _add(self, found: list[Tensor]) -> None:
        if self._found and not self._exact:
            found = _added(self._found.pop(), found)
        self._found.append(found)

    def take(self) -> dict[Tensor, tuple[Tensor, ...]]:
        """The gradients of a batch, in terms that are to be added up."""
        found, self._found = self._found, []
        return dict(zip(self.parameters, zip(*found, strict=True), strict=True))


def _gradients(
    y: Tensor, wanted: Sequence[Tensor], gradient: Tensor, retain_graph: bool = False
) -> list[Tensor]:
    """Gradients of tensors that a stage has got, used or not."""
    if not wanted:
        return []
    found = genesis.autograd.grad(y, wanted, gradient, retain_graph=retain_graph, allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    return [genesis.zeros_like(x) if g is None else g for g, x in pairs]


@genesis.jit
def _added(sums: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(sums, more, strict=True)]


class _Batch:
    """A batch on its way through the stages of this rank."""

    def __init__(self, pipeline: Pipeline, xs: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        self.losses: list[float] = []
        self._pipeline, self._xs, self._targets = pipeline, xs, targets
        self._number = int(pipeline.batches.item())
        self._parted = any(a.kind == "weights" for a in pipeline.schedule[pipeline.rank])
        self._here: dict[Action, Tensor] = {}  # what one stage of this rank has for another
        self._sent: list[Due] = []

    def do(self, action: Action) -> None:
        """One action of the schedule."""
        stage, k = self._pipeline.stage(action.stage), action.microbatch
        if action.kind == "forward":
            target = [self._targets[k]] if stage.last else []
            x = self._received(action, action.stage - 1) if action.stage else self._xs[k]
            with self._pipeline.drawing(self._number, action.stage, k):
                y = stage.forward(k, x, *target)
            if stage.last:
                self.losses.append(y.item())
            else:
                self._pass(y, action._replace(stage=action.stage + 1))
        elif action.kind == "inputs":
            given = genesis.tensor(1.0) if stage.last else self._received(action, action.stage + 1)
            gradient = stage.inputs(k, given, self._parted)
            if action.stage:
                assert gradient is not None
                self._pass(gradient, action._replace(stage=action.stage - 1))
        else:
            stage.weights(k)

    def finish(self) -> None:
        """All that was sent has arrived."""
        for due in self._sent:
            due()

    def _pass(self, x: Tensor, action: Action) -> None:
        """Hand an action what it needs."""
        to, link = self._pipeline.where(action.stage)
        if link is None:
            self._here[action] = x.detach()
        else:
            self._sent.append(link.send(x.detach().numpy(), to, self._tag(action)))

    def _received(self, action: Action, source: int) -> Tensor:
        rank, link = self._pipeline.where(source)
        if link is None:
            x = self._here.pop(action)
        else:
            x = genesis.tensor(link.receive(rank, self._tag(action)))
        return x.requires_grad_(action.kind == "forward" and x.dtype.is_floating_point)

    def _tag(self, action: Action) -> int:
        return tag(action, self._pipeline.microbatches)


# ---- stages


def _schedule(name: str, ranks: int, microbatches: int, stages: int | None) -> Schedule:
    """What each rank does; a schedule by name that has one stage a rank takes no other number."""
    if microbatches < 1:
        raise ValueError(f"Pipeline: {microbatches} microbatches")
    if name not in SCHEDULES:
        raise ValueError(f"Pipeline: there is no schedule {name!r}, but {', '.join(SCHEDULES)}")
    if name == "interleaved" or ranks == 1:
        each, rest = divmod((2 if ranks > 1 else 1) * ranks if stages is None else stages, ranks)
        if rest or each < 1:
            raise ValueError(f"Pipeline: {stages} stages do not divide among {ranks} ranks")
        return interleaved(ranks, microbatches, each)
    if stages not in (None, ranks):
        raise ValueError(f"Pipeline: {name} has {ranks} stages on {ranks} ranks, not {stages}")
    return SCHEDULES[name](ranks, microbatches)


def balanced(costs: Sequence[float], count: int) -> list[tuple[int, int]]:
    """Neighbouring layers in so many parts, none empty, the dearest as cheap as can be.

    >>> balanced([1, 1, 1, 3, 1, 1], 3)
    [(0, 3), (3, 4), (4, 6)]
    """
    upto = [0.0, *accumulate(costs)]
    least = {(0, 0): (0.0, 0)}  # by parts and layers: the dearest part, and where the last begins
    for parts in range(1, count + 1):
        for end in range(parts, len(costs) - (count - parts) + 1):
            starts = [s for s in range(parts - 1, end) if (parts - 1, s) in least]
            least[parts, end] = min(
                (max(least[parts - 1, s][0], upto[end] - upto[s]), s) for s in starts
            )
    ends = [len(costs)]
    for parts in range(count, 0, -1):
        ends.append(least[parts, ends[-1]][1])
    return list(pairwise(reversed(ends)))


def layer_costs(model: Sequence[nn.Module] | nn.Sequential, x: Tensor) -> list[float]:
    """The seconds that each layer takes for a microbatch, forward and backward."""
    found = []
    for layer in model:
        program, times = genesis.jit(layer), []
        for _ in range(5):
            x = x.detach().requires_grad_(x.dtype.is_floating_point)
            begin = time.perf_counter()
            y = program(x)
            wanted = [p for p in (x, *layer.parameters()) if p.requires_grad]
            for gradient in _gradients(y, wanted, genesis.ones_like(y)):
                gradient.numpy()
            times.append(time.perf_counter() - begin)
        found.append(min(times))
        x = y.detach()
    return found


def _size(layer: nn.Module) -> float:
    return 1.0 + sum(p.numel() for p in layer.parameters())


def _begin_alike(layers: Sequence[nn.Module], mesh: Mesh) -> None:
    """All go on with the first process's weights."""
    if mesh.size > 1:
        arrays = {x: None for layer in layers for x in (*layer.parameters(), *layer.buffers())}
        agree(mesh, [(str(k), x) for k, x in enumerate(arrays)])
        for x in arrays:
            spread(x.array, mesh, None)


def _tied(stages: Sequence[Sequence[nn.Module]]) -> dict[Tensor, int]:
    """Parameters that are in several stages, and the first of these."""
    homes: dict[Tensor, list[int]] = {}
    for number, layers in enumerate(stages):
        for p in {p: None for layer in layers for p in layer.parameters()}:
            homes.setdefault(p, []).append(number)
    return {p: numbers[0] for p, numbers in homes.items() if len(numbers) > 1}


def _combined(link: ProcessGroup, arrays: Sequence[Array], how: str) -> list[Array]:
    """The sums, or greatest values, of arrays over the processes of a group."""
    kinds: dict[str, list[int]] = {}
    for k, x in enumerate(arrays):
        kinds.setdefault(x.dtype.name, []).append(k)
    found = list(arrays)
    for places in kinds.values():
        due = link.start("all_reduce", (link.name, link.name, how), [arrays[k] for k in places])
        for k, x in zip(places, due(), strict=True):
            found[k] = x
    return found


__all__ = ["Pipeline", "balanced", "layer_costs"]
