"""Data that comes with the package, for examples and tests that need no download."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import numpy as np

from genesis.ir.dtype import int64
from genesis.ndarray import array
from genesis.tensor.tensor import Tensor

_HELD_OUT = 360  # of 1797: a fifth


class Labelled(NamedTuple):
    """Images, and the number of the class each belongs to."""

    images: Tensor
    labels: Tensor


def digits(split: str = "all") -> Labelled:
    """1797 handwritten digits of 8 by 8 dots, as uint8 from 0 (paper) to 16 (ink).

    `split` is "train" for four fifths of them, "test" for the fifth that is held out, or "all".
    Collected by E. Alpaydin and C. Kaynak; where they come from is in ``digits.txt``.

    >>> images, labels = digits("test")
    >>> images.shape, labels[:5].tolist()
    (genesis.Size([360, 8, 8]), [9, 0, 9, 6, 4])
    """
    parts = {"all": slice(None), "train": slice(-_HELD_OUT), "test": slice(-_HELD_OUT, None)}
    if split not in parts:
        raise ValueError(f"digits: split is 'train', 'test' or 'all', not {split!r}")
    with (
        files(__name__).joinpath("digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as data,
    ):
        images, labels = data["images"][parts[split]], data["labels"][parts[split]]
    return Labelled(Tensor(array(images)), Tensor(array(labels, int64)))


__all__ = ["Labelled", "digits"]
