"""ResNet-50 (He et al. 2015), inference, NCHW.

A convolution is a contraction of the weights with the sliding windows of the padded image. Nothing
is copied to make the windows: padding is a mask and a window is index arithmetic, so the compiler
sees an implicit matrix multiplication. The stride is in the 3x3 convolution of a block, as in
PyTorch's version.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

from benchmarks.models import Shape, Tree
from genesis import ndarray as nd
from genesis.ndarray import NDArray

EPSILON = 1e-5
NORM = ("gamma", "beta", "mean", "variance")
EXPANSION = 4  # a block's output has this many times the channels it works in


@dataclass(frozen=True)
class Config:
    """Blocks per stage, channels of the first stage, classes."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000


RESNET50 = Config()


# ---- weights


def parameters(config: Config) -> Tree:
    """The shapes of all weights."""
    stages = []
    channels = config.width
    for stage, count in enumerate(config.blocks):
        width = config.width << stage
        blocks = []
        for block in range(count):
            shapes = {
                "conv1": _convolution(width, channels, 1),
                "conv2": _convolution(width, width, 3),
                "conv3": _convolution(width * EXPANSION, width, 1),
            }
            if block == 0:
                shapes["shortcut"] = _convolution(width * EXPANSION, channels, 1)
            blocks.append(shapes)
            channels = width * EXPANSION
        stages.append(blocks)
    return {
        "stem": _convolution(config.width, 3, 7),
        "stages": stages,
        "classifier": {"weight": (config.classes, channels), "bias": (config.classes,)},
    }


def _convolution(out: int, channels: int, size: int) -> dict[str, Shape]:
    """A convolution and the batch norm after it."""
    norm = dict.fromkeys(NORM, (out,))
    return {"weight": (out, channels, size, size), **norm}


# ---- layers


def convolution(x: NDArray, weight: NDArray, stride: int = 1, padding: int = 0) -> NDArray:
    """The sum over every window of x times the weight (out, channels, height, width)."""
    height, width = map(index, weight.shape[2:])
    if height == width == 1:
        return nd.einsum("nchw,oc->nohw", x[:, :, ::stride, ::stride], weight[:, :, 0, 0])
    x = nd.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    x = nd.windows(x, axis=2, size=height, stride=stride)
    x = nd.windows(x, axis=3, size=width, stride=stride)
    return nd.einsum("nchwij,ocij->nohw", x, weight)


def batch_norm(x: NDArray, w: Tree) -> NDArray:
    """Normalise each channel by the statistics learnt in training."""
    gamma, beta, mean, variance = (w[name][:, None, None] for name in NORM)
    result: NDArray = (x - mean) * (gamma / nd.sqrt(variance + EPSILON)) + beta
    return result


def convolution_norm(x: NDArray, w: Tree, stride: int = 1, padding: int = 0) -> NDArray:
    """A convolution and its batch norm."""
    return batch_norm(convolution(x, w["weight"], stride, padding), w)


def max_pool(x: NDArray, size: int, stride: int, padding: int) -> NDArray:
    """The greatest element of every window."""
    edge = (padding, padding)
    x = nd.pad(x, ((0, 0), (0, 0), edge, edge), value=float("-inf"))
    x = nd.windows(x, axis=2, size=size, stride=stride)
    x = nd.windows(x, axis=3, size=size, stride=stride)
    return x.max(axis=(-2, -1))


def bottleneck(x: NDArray, w: Tree, stride: int) -> NDArray:
    """Narrow, convolve, widen, and add the shortcut."""
    y = nd.relu(convolution_norm(x, w["conv1"]))
    y = nd.relu(convolution_norm(y, w["conv2"], stride, padding=1))
    y = convolution_norm(y, w["conv3"])
    shortcut = convolution_norm(x, w["shortcut"], stride) if "shortcut" in w else x
    return nd.relu(y + shortcut)


# ---- the model


def forward(w: Tree, images: NDArray) -> NDArray:
    """Class scores (n, classes) of images (n, 3, height, width)."""
    x = nd.relu(convolution_norm(images, w["stem"], stride=2, padding=3))
    x = max_pool(x, size=3, stride=2, padding=1)
    for stage, blocks in enumerate(w["stages"]):
        for block, weights in enumerate(blocks):
            x = bottleneck(x, weights, stride=2 if stage > 0 and block == 0 else 1)
    x = x.mean(axis=(2, 3))
    last = w["classifier"]
    scores: NDArray = nd.einsum("nc,oc->no", x, last["weight"]) + last["bias"]
    return scores
