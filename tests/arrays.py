"""Small arrays for tests, what can be asked about them, and random functions of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from genesis import ndarray as nd
from genesis.ndarray.core.ndarray import NDArray


def vector(*numbers: float) -> NDArray:
    return nd.array([float(x) for x in numbers]).realize()


def ramp(*shape: int, start: float = 0.0) -> NDArray:
    """Different numbers everywhere, all of them small."""
    count = int(np.prod(shape))
    return nd.array((np.arange(count, dtype=np.float32) + start).reshape(shape) / 8).realize()


def compiled() -> int:
    return nd.statistics().compiled


def pointer(x: NDArray) -> int:
    memory = x.storage.actual.memory
    assert memory is not None
    return memory.pointer


# ---- random functions

Pool = list[NDArray]


def random_step(rng: np.random.Generator, pool: Pool) -> NDArray | None:
    """One random operation on arrays of shape (4, 6); None for a write."""

    def pick() -> NDArray:
        return pool[rng.integers(len(pool))]

    x, y = pick(), pick()
    match rng.integers(16):
        case 0:
            return x + y
        case 1:
            return x * y * 0.5
        case 2:
            return nd.tanh(x) - float(rng.integers(1, 5)) / 4
        case 3:
            return nd.where(x > y, x, y * 0.25)
        case 4:
            return nd.softmax(x, axis=int(rng.integers(2)))
        case 5:
            return x - x.mean(axis=int(rng.integers(2)), keepdims=True)
        case 6:
            return (x @ y.T) @ y * 0.01
        case 7:
            return nd.concat([x[:2], y[2:]], axis=0)
        case 8:
            return x.reshape(6, 4).T
        case 9:
            return nd.flip(x, 1) + x[:, 2:3]
        case 10:
            return nd.maximum(x, y.sum(axis=0) * 0.1)
        case 11:
            return nd.pad(x[1:3, 1:5], ((1, 1), (1, 1)))
        case 12:
            return x.copy()
        case 13:
            x[1:3, ::2] = y[:2, 3:]
        case 14:
            x += y * 0.5
        case _:
            x[0] = nd.tanh(y[3])
    return None


def random_function(seed: int, state: Pool) -> Callable[..., Any]:
    """A function of two arrays made of random operations that also reads and writes `state`."""

    def function(x: NDArray, y: NDArray) -> Any:
        rng = np.random.default_rng(seed)
        pool = [x, y, *state]
        for _ in range(rng.integers(3, 12)):
            made = random_step(rng, pool)
            if made is not None:
                pool.append(made)
        chosen = [pool[k] for k in rng.integers(len(pool), size=3)]
        return {"a": chosen[0], "b": [chosen[1], (chosen[2] * 2, None)]}

    return function


def numbers(tree: Any) -> list[Any]:
    return [tree["a"].numpy().copy(), tree["b"][0].numpy().copy(), tree["b"][1][0].numpy().copy()]
