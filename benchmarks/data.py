"""Loading with augmentation, side by side with PyTorch: ``python -m benchmarks.data``.

Images are cropped, flipped and normalised by the same NumPy code in two worker processes. What is
compared is processor time, of the process that trains and of its workers together, in turns: on a
machine that does other things besides, time on the clock says little. ``--quick`` does less.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from typing import Any

import numpy as np

#: Side of the images, of the crop, samples of a batch, samples in all.
CASES = {"photographs": (256, 224, 64, 1024), "thumbnails": (40, 32, 256, 10240)}
MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255
SCALE = 1 / (np.array([0.229, 0.224, 0.225], np.float32) * 255)


class Images:
    """Random images, augmented when asked for: what a training set is to a loader."""

    def __init__(self, side: int, crop: int, count: int) -> None:
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (64, side, side, 3), np.uint8)
        self.crop, self.count = crop, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.images[index % len(self.images)]
        y, x = np.random.randint(0, image.shape[0] - self.crop + 1, 2)
        cut = image[y : y + self.crop, x : x + self.crop]
        if np.random.random() < 0.5:
            cut = cut[:, ::-1]
        scaled = (cut - MEAN) * SCALE
        return np.ascontiguousarray(scaled.transpose(2, 0, 1)), index % 10


def spent() -> float:
    """Seconds of processor time, of this process and of those that have ended."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(r.ru_utime + r.ru_stime for r in map(resource.getrusage, who))


def epoch(loader: Any) -> tuple[float, float]:
    """Processor time of an epoch whose batches are looked at, and time on the clock."""
    before, start = spent(), time.perf_counter()
    for images, _ in loader:
        images.numpy()[:, 0, 0, 0].sum()
    return spent() - before, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    import torch.utils.data

    from genesis.data import DataLoader

    for name, (side, crop, batch, count) in CASES.items():
        data = Images(side, crop, count // 8 if quick else count)
        ours = DataLoader(data, batch, num_workers=2)
        theirs = torch.utils.data.DataLoader(data, batch, num_workers=2)
        times: dict[str, list[tuple[float, float]]] = {"genesis": [], "torch": []}
        for _ in range(1 if quick else 5):
            times["genesis"].append(epoch(ours))
            times["torch"].append(epoch(theirs))
        middle = {
            who: [statistics.median(t) for t in zip(*ts, strict=True)] for who, ts in times.items()
        }
        (ours_cpu, ours_wall), (theirs_cpu, theirs_wall) = middle["genesis"], middle["torch"]
        print(
            f"{name:12} processor {ours_cpu:6.2f} s, PyTorch {theirs_cpu:6.2f} s: "
            f"{theirs_cpu / ours_cpu:.2f}x; clock {theirs_wall / ours_wall:.2f}x"
        )


if __name__ == "__main__":
    main()
