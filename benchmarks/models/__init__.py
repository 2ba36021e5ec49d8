"""Real models written with plain arrays: what the compiler is measured and tested on.

Each file is one model, flat from top to bottom: `parameters` gives the shapes of its weights,
`forward` or `loss_and_gradients` computes. Backward passes are written out by hand, next to the
forward pass they belong to. Here is only what fills weights with numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import numpy as np

Shape = tuple[int, ...]
#: Nested dictionaries and lists whose leaves are arrays (of shapes, where a model describes them).
Tree = Any


def mapped(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """`tree` with `function` applied to every leaf."""
    if isinstance(tree, dict):
        return {name: mapped(function, x) for name, x in tree.items()}
    if isinstance(tree, list):
        return [mapped(function, x) for x in tree]
    return function(tree)


def leaves(tree: Tree, name: str = "") -> list[tuple[str, Any]]:
    """The leaves of `tree` with their dotted names."""
    if isinstance(tree, dict):
        members = [(str(key), x) for key, x in tree.items()]
    elif isinstance(tree, list):
        members = [(str(key), x) for key, x in enumerate(tree)]
    else:
        return [(name, tree)]
    return [leaf for key, x in members for leaf in leaves(x, f"{name}.{key}" if name else key)]


def random_weights(shapes: Tree, rng: np.random.Generator) -> Tree:
    """Float32 weights of the given shapes that keep activations near one.

    Vectors are scales, variances and biases: from 0.5 to 1.5 suits all three.
    """

    def fill(shape: Shape) -> np.ndarray[Any, Any]:
        if len(shape) == 1:
            return rng.uniform(0.5, 1.5, shape).astype(np.float32)
        return rng.standard_normal(shape, np.float32) / np.float32(sqrt(prod(shape[1:])))

    return mapped(fill, shapes)
