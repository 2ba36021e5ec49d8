"""One task after another without forgetting: elastic weight consolidation, and replay.

    genesis train continual

A network learns to read digits five times, every time from paper whose dots were shuffled in
another way. Trained on one after the other it forgets the first. Two remedies: what earlier tasks
need is held in place by springs as strong as Fisher's information (EWC; Kirkpatrick et al., 2017),
or a few images of each task are kept and shown again (replay).
"""

from __future__ import annotations

from collections.abc import Callable

import genesis
from genesis import nn, optim
from genesis.datasets import digits
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

TASKS = 5
BATCH = 64
SPRING = 100.0
KEPT = 100  # images of each task that replay keeps

Task = tuple[Tensor, Tensor, Tensor, Tensor]


def tasks() -> list[Task]:
    """Images and labels to train and to try, with dots in another order for every task."""
    (seen, labels), (others, answers) = digits("train"), digits("test")
    seen, others = seen.float().flatten(1) / 16, others.float().flatten(1) / 16
    found = []
    for k in range(TASKS):
        order = genesis.arange(64) if k == 0 else genesis.randperm(64)
        found.append((seen[:, order], labels, others[:, order], answers))
    return found


def network() -> nn.Sequential:
    """From 64 dots to scores for ten digits."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def information(model: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """The mean of squared gradients, example by example: the diagonal of Fisher's information."""
    names = [name for name, _ in model.named_parameters()]
    values = [p.detach() for _, p in model.named_parameters()]

    def loss(parameters: list[Tensor], image: Tensor, label: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        scores = genesis.func.functional_call(model, given, (image[None],))
        found: Tensor = F.cross_entropy(scores, label[None])
        return found

    each = genesis.func.vmap(genesis.func.grad(loss), in_dims=(None, 0, 0))
    return [g.detach().square().mean(0) for g in each(values, images, labels)]


def train_one(model: nn.Module, task: Task, steps: int, extra: Callable[[], Tensor] | None) -> None:
    """Train on one task, with something added to the loss."""
    images, labels, _, _ = task
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    @genesis.jit
    def step() -> Tensor:
        chosen = genesis.randint(0, len(images), (BATCH,))
        loss: Tensor = F.cross_entropy(model(images[chosen]), labels[chosen])
        if extra is not None:
            loss = loss + extra()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(steps):
        step()


def one_after_another(kind: str, all_tasks: list[Task], steps: int) -> list[list[float]]:
    """Train on every task in turn; after each, what is right of all tasks so far."""
    model = network()
    springs: list[tuple[list[Tensor], list[Tensor]]] = []
    kept: list[tuple[Tensor, Tensor]] = []

    def held() -> Tensor:
        total = genesis.zeros(())
        for strengths, places in springs:
            for p, strength, place in zip(model.parameters(), strengths, places, strict=True):
                total = total + (strength * (p - place).square()).sum()
        pull: Tensor = SPRING * total
        return pull

    def again() -> Tensor:
        images, labels = (genesis.cat(part) for part in zip(*kept, strict=True))
        loss: Tensor = F.cross_entropy(model(images), labels)
        return loss

    history = []
    for number, task in enumerate(all_tasks):
        extra = {"EWC": held, "replay": again}.get(kind) if number else None
        train_one(model, task, steps, extra)
        images, labels, _, _ = task
        places = [p.detach().clone() for p in model.parameters()]
        springs.append((information(model, images[:300], labels[:300]), places))
        kept.append((images[:KEPT], labels[:KEPT]))
        with genesis.no_grad():
            shares = [
                (model(x).argmax(1) == y).float().mean().item()
                for _, _, x, y in all_tasks[: number + 1]
            ]
        history.append(shares)
    return history


def train(steps: int = 300, seed: int = 0) -> dict[str, float]:
    """Go through the tasks with each remedy; the mean share of all tasks that is right at last."""
    found = {}
    for kind in ("nothing", "EWC", "replay"):
        genesis.manual_seed(seed)
        history = one_after_another(kind, tasks(), steps)
        print(f"{kind}: what is right of task 1, 2, .. after each of them")
        for shares in history:
            print("   " + " ".join(f"{share:6.1%}" for share in shares), flush=True)
        found[kind] = sum(history[-1]) / TASKS
    return found
