"""Augmentations of images as NumPy arrays (height, width, channels), and of batches.

They draw from NumPy's global generator, which a `DataLoader` seeds for every batch.

>>> import numpy as np
>>> prepare = Compose(RandomCrop(4, padding=1), RandomFlip(), Normalize(mean=128, std=64))
>>> prepare(np.zeros((4, 4, 3), np.uint8)).shape
(3, 4, 4)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from genesis.data.collate import Array

Transform = Callable[[Any], Any]


class Compose:
    """One after the other."""

    def __init__(self, *transforms: Transform) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class RandomCrop:
    """A square of `size` by `size`, or (height, width), cut out anywhere, after `padding`."""

    def __init__(self, size: int | tuple[int, int], padding: int = 0, fill: float = 0) -> None:
        self.size = (size, size) if isinstance(size, int) else size
        self.padding, self.fill = padding, fill

    def __call__(self, image: Array) -> Array:
        height, width = self.size
        above, left = (
            np.random.randint(0, self._room(image, axis) + 1) - self.padding for axis in (0, 1)
        )
        inside = image[max(above, 0) : above + height, max(left, 0) : left + width]
        if inside.shape[:2] == self.size:
            return inside
        # Only what is seen of the padding is made.
        out = np.full((height, width, *image.shape[2:]), self.fill, image.dtype)
        y, x = max(-above, 0), max(-left, 0)
        out[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
        return out

    def _room(self, image: Array, axis: int) -> int:
        room = image.shape[axis] + 2 * self.padding - self.size[axis]
        if room < 0:
            raise ValueError(
                f"RandomCrop: an image of {image.shape[:2]} padded by {self.padding} is smaller "
                f"than {self.size}"
            )
        return int(room)


class CenterCrop:
    """The middle of an image."""

    def __init__(self, size: int | tuple[int, int]) -> None:
        self.size = (size, size) if isinstance(size, int) else size

    def __call__(self, image: Array) -> Array:
        y, x = ((n - m) // 2 for n, m in zip(image.shape, self.size, strict=False))
        if y < 0 or x < 0:
            raise ValueError(
                f"CenterCrop: an image of {image.shape[:2]} is smaller than {self.size}"
            )
        return image[y : y + self.size[0], x : x + self.size[1]]


class RandomFlip:
    """Left and right exchanged, with this probability; up and down with `axis` 0."""

    def __init__(self, probability: float = 0.5, axis: int = 1) -> None:
        self.probability, self.axis = probability, axis

    def __call__(self, image: Array) -> Array:
        return np.flip(image, self.axis) if np.random.random() < self.probability else image


class RandomErasing:
    """A rectangle of up to this `share` of the image filled, with this probability."""

    def __init__(self, probability: float = 0.5, share: float = 0.2, fill: float = 0) -> None:
        self.probability, self.share, self.fill = probability, share, fill

    def __call__(self, image: Array) -> Array:
        if np.random.random() >= self.probability:
            return image
        area = np.random.uniform(0, self.share) * image.shape[0] * image.shape[1]
        ratio = np.exp(np.random.uniform(-1, 1))
        height = min(image.shape[0], round(float(np.sqrt(area * ratio))))
        width = min(image.shape[1], round(float(np.sqrt(area / ratio))))
        y = np.random.randint(0, image.shape[0] - height + 1)
        x = np.random.randint(0, image.shape[1] - width + 1)
        out = image.copy()
        out[y : y + height, x : x + width] = self.fill
        return out


class ColorJitter:
    """Brightness and contrast changed by a random factor of up to 1 + this or 1 - this."""

    def __init__(self, brightness: float = 0.0, contrast: float = 0.0) -> None:
        self.brightness, self.contrast = brightness, contrast

    def __call__(self, image: Array) -> Array:
        gain = np.random.uniform(1 - self.contrast, 1 + self.contrast)
        light = np.random.uniform(1 - self.brightness, 1 + self.brightness)
        # One straight line for both: (x * light - mean * light) * gain + mean * light.
        offset = float(image.mean()) * light * (1 - gain)
        if image.dtype == np.uint8:
            values = np.arange(256, dtype=np.float32) * np.float32(gain * light) + offset
            changed: Array = np.clip(values, 0, 255).astype(np.uint8)[image]
            return changed
        return (image * (gain * light) + offset).astype(image.dtype)


class Normalize:
    """``(x - mean) / std`` by channel, as float32 with channels first."""

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self.scale = 1 / np.asarray(std, np.float32).reshape(-1, 1, 1)
        self.shift = -np.asarray(mean, np.float32).reshape(-1, 1, 1) * self.scale

    def __call__(self, image: Array) -> Array:
        planes = image.transpose(2, 0, 1) if image.ndim == 3 else image[None]
        out = np.ascontiguousarray(planes, np.float32)
        out = out.copy() if out is image or out.base is not None else out
        out *= self.scale
        out += self.shift
        return out


def mixup(images: Any, targets: Any, alpha: float = 0.2) -> tuple[Any, Any]:
    """A batch mixed with itself in another order; `targets` are one-hot, and mixed alike.

    >>> import genesis
    >>> x, y = mixup(genesis.ones(4, 2), genesis.nn.functional.one_hot(genesis.arange(4)).float())
    >>> genesis.allclose(y.sum(1), genesis.ones(4))
    True
    """
    share, order = np.random.beta(alpha, alpha), np.random.permutation(len(images)).tolist()
    return tuple(x * share + x[order] * (1 - share) for x in (images, targets))


__all__ = [
    "CenterCrop", "ColorJitter", "Compose", "Normalize", "RandomCrop", "RandomErasing",
    "RandomFlip", "mixup",
]  # fmt: skip
