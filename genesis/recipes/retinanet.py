"""Where and what: a RetinaNet that finds drawn shapes, judged by COCO's average precision.

    genesis train retinanet

Every place of two grids proposes boxes of two sizes; a head says what each holds, another how it
is to be moved and stretched. Nearly all of them hold nothing, and the focal loss keeps that many
easy answers from drowning the few that matter (Lin et al., 2017). Boxes that overlap a better one
of the same kind are dropped. The measure is the mean of average precisions over kinds and over ten
demands on the overlap, from 50 to 95 %.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

SIDE, KINDS, MOST = 64, 3, 4  # discs, squares and crosses; up to four in an image
BATCH = 8
LEVELS = ((8, (12.0, 17.0)), (16, (24.0, 34.0)))  # the step of a grid, and the sizes of its boxes
Array = npt.NDArray[np.float32]


def drawn(rng: np.random.Generator) -> tuple[Array, Array, npt.NDArray[np.int64]]:
    """An image, the boxes (x0, y0, x1, y1) of its shapes, and what they are."""
    image = rng.normal(0, 0.3, (SIDE, SIDE))
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    boxes: list[list[float]] = []
    kinds = []
    for _ in range(int(rng.integers(1, MOST + 1))):
        half = rng.uniform(5, 16)
        cx, cy = rng.uniform(half, SIDE - half, 2)
        box = [cx - half, cy - half, cx + half, cy + half]
        if boxes and overlaps(np.array([box]), np.array(boxes)).max() > 0.1:
            continue
        kind = int(rng.integers(KINDS))
        dx, dy = abs(x - cx), abs(y - cy)
        inside = (
            dx**2 + dy**2 < half**2, np.maximum(dx, dy) < half,
            (np.minimum(dx, dy) < half / 3) & (np.maximum(dx, dy) < half),
        )[kind]  # fmt: skip
        image += inside * rng.uniform(0.8, 1.6)
        boxes.append(box)
        kinds.append(kind)
    return image[None].astype(np.float32), np.array(boxes, np.float32), np.array(kinds)


def overlaps(a: Array, b: Array) -> Array:
    """Intersection over union of every box of one list with every one of another."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    sizes = [(z[:, 2:] - z[:, :2]).prod(-1) for z in (a, b)]
    found: Array = shared / (sizes[0][:, None] + sizes[1][None] - shared + 1e-9)
    return found


def anchors() -> Array:
    """The boxes that are proposed, as the network numbers them: level, place, size."""
    found = []
    for step, sizes in LEVELS:
        y, x = (np.mgrid[: SIDE // step, : SIDE // step] + 0.5) * step
        for cy, cx in zip(y.ravel(), x.ravel(), strict=True):
            found += [[cx - s / 2, cy - s / 2, cx + s / 2, cy + s / 2] for s in sizes]
    return np.array(found, np.float32)


def targets(boxes: Array, kinds: npt.NDArray[np.int64], proposed: Array) -> tuple[Array, Array]:
    """What each proposal should say: a kind, -1 for nothing, -2 for either; and how to move."""
    shared = overlaps(proposed, boxes)
    best, which = shared.max(1), shared.argmax(1)
    best[shared.argmax(0)] = 1.0  # each shape has one proposal at least
    which[shared.argmax(0)] = np.arange(len(boxes))
    label = np.where(best >= 0.5, kinds[which], np.where(best < 0.4, -1, -2))
    size, own = (z[:, 2:] - z[:, :2] for z in (proposed, boxes[which]))
    move = ((boxes[which, :2] + own / 2) - (proposed[:, :2] + size / 2)) / size
    return label, np.concatenate([move, np.log(own / size)], 1)


class RetinaNet(nn.Module):
    """Scores for kinds and offsets of boxes, for all proposals of images."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()

        def halved(before: int, after: int) -> nn.Sequential:
            conv = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU())

        self.body = nn.Sequential(halved(1, width), halved(width, width), halved(width, 2 * width))
        self.deep = halved(2 * width, 2 * width)
        self.side, self.top = (nn.Conv2d(2 * width, 2 * width, 1) for _ in range(2))
        self.kind = nn.Sequential(
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * KINDS, 3, padding=1),
        )  # fmt: skip
        self.box = nn.Sequential(
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(2 * width, 8, 3, padding=1),
        )  # fmt: skip
        nn.init.constant_(self.kind[-1].bias, -4.0)  # at first, nothing is likely

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``(batch, proposals, kinds)`` and ``(batch, proposals, 4)``."""
        near = self.body(images)
        far = self.top(self.deep(near))
        maps = (self.side(near) + F.interpolate(far, scale_factor=2, mode="nearest"), far)
        kinds = [self.kind(x).permute(0, 2, 3, 1).reshape(len(x), -1, KINDS) for x in maps]
        boxes = [self.box(x).permute(0, 2, 3, 1).reshape(len(x), -1, 4) for x in maps]
        return genesis.cat(kinds, 1), genesis.cat(boxes, 1)


def kept(boxes: Array, scores: Array, limit: float = 0.5) -> list[int]:
    """Boxes that overlap no better one by more than a limit, best first."""
    order, found = list(np.argsort(-scores, kind="stable")), []
    shared = overlaps(boxes, boxes)
    while order:
        first = order.pop(0)
        found.append(int(first))
        order = [k for k in order if shared[first, k] <= limit]
    return found


def detect(scores: Array, moves: Array, proposed: Array) -> list[tuple[int, float, Array]]:
    """What is seen in an image: kinds, how sure, and boxes."""
    size, corner = proposed[:, 2:] - proposed[:, :2], proposed[:, :2]
    centre = corner + size / 2 + moves[:, :2] * size
    half = np.exp(np.clip(moves[:, 2:], -2, 2)) * size / 2
    boxes = np.concatenate([centre - half, centre + half], 1)
    found = []
    for kind in range(KINDS):
        likely = np.flatnonzero(scores[:, kind] > 0.05)
        best = likely[kept(boxes[likely], scores[likely, kind])]
        found += [(kind, float(scores[k, kind]), boxes[k]) for k in best]
    return found


def average_precision(
    seen: list[tuple[int, float, Array]], truth: list[Array], least: float
) -> float:
    """The area below precision over recall, read at 101 recalls; seen are (image, score, box)."""
    free = [np.ones(len(boxes), bool) for boxes in truth]
    hits = []
    for image, _, box in sorted(seen, key=lambda item: -item[1]):
        shared = overlaps(box[None], truth[image])[0] * free[image] if len(truth[image]) else []
        best = int(np.argmax(shared)) if len(shared) else -1
        hits.append(best >= 0 and shared[best] >= least)
        if hits[-1]:
            free[image][best] = False
    total = sum(map(len, truth))
    right = np.cumsum(hits) if hits else np.zeros(0)
    precision = np.maximum.accumulate((right / np.arange(1, len(right) + 1))[::-1])[::-1]
    places = np.searchsorted(right / max(total, 1), np.linspace(0, 1, 101))
    return float(np.mean([precision[k] if k < len(precision) else 0.0 for k in places]))


def train(steps: int = 400, seed: int = 0) -> dict[str, float]:
    """Train; COCO's mean average precision on new images, and that at an overlap of a half."""
    genesis.manual_seed(seed)
    rng, proposed = np.random.default_rng(seed), anchors()
    model = RetinaNet()
    optimizer = optim.AdamW(model.parameters(), lr=4e-3)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)

    @genesis.jit
    def step(images: Tensor, labels: Tensor, moves: Tensor) -> Tensor:
        scores, found = model(images)
        there = (labels >= 0).float()
        wanted = F.one_hot(labels.clamp(min=0), KINDS).float() * there[..., None]
        each = F.focal_loss(scores, wanted, reduction="none")
        focal = (each * (labels > -2).float()[..., None]).sum()
        moved = (F.smooth_l1_loss(found, moves, reduction="none").sum(-1) * there).sum()
        loss: Tensor = (focal + 2 * moved) / there.sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss

    for k in range(steps):
        scenes = [drawn(rng) for _ in range(BATCH)]
        told = [targets(boxes, kinds, proposed) for _, boxes, kinds in scenes]
        loss = step(
            genesis.tensor(np.stack([image for image, _, _ in scenes])),
            genesis.tensor(np.stack([label for label, _ in told])),
            genesis.tensor(np.stack([move for _, move in told]).astype(np.float32)),
        )
        schedule.step()
        if k % 100 == 0 or k == steps - 1:
            print(f"step {k:4}  loss {loss.item():.3f}", flush=True)
    model.eval()
    scenes = [drawn(rng) for _ in range(64)]
    with genesis.no_grad():
        scores, moves = model(genesis.tensor(np.stack([image for image, _, _ in scenes])))
    both = zip(scores.sigmoid().numpy(), moves.numpy(), strict=True)
    seen = [detect(s, m, proposed) for s, m in both]
    table = {}
    for least in np.linspace(0.5, 0.95, 10):
        for kind in range(KINDS):
            mine = [(n, s, b) for n, found in enumerate(seen) for k, s, b in found if k == kind]
            truth = [boxes[kinds == kind] for _, boxes, kinds in scenes]
            table[round(float(least), 2), kind] = average_precision(mine, truth, float(least))
    found = {
        "mAP": float(np.mean(list(table.values()))),
        "mAP at 50 %": float(np.mean([v for (least, _), v in table.items() if least == 0.5])),
    }
    print(f"mean average precision {found['mAP']:.3f}, at 50 % overlap {found['mAP at 50 %']:.3f}")
    return found
