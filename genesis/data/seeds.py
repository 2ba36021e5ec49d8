"""Random numbers of data: the same for every number of workers.

An epoch has a seed, drawn from a Genesis generator. Batch n of it is made with the generators of
`random`, NumPy and Genesis seeded by that and n, in whatever process it is made. So a batch does
not depend on who made it, nor on which were made before: a training resumed in the middle of an
epoch sees what it would have seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from genesis.ndarray import random as genesis_random
from genesis.ndarray.random import Generator, default_generator, integers

_MASK = (1 << 64) - 1


def drawn_seed(generator: Generator | None = None) -> int:
    """A seed from a generator, which is advanced."""
    source = generator or default_generator("cpu")
    return int(integers(0, 1 << 62, generator=source).item())


def mixed(seed: int, number: int) -> int:
    """A seed for part `number` of what has a seed (the mixing function of SplitMix64)."""
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def seed_all(seed: int) -> None:
    """Seed the generators of `random`, NumPy and Genesis."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    genesis_random.manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeded inside the ``with`` block; afterwards all generators are where they were."""
    before, numpy_before = random.getstate(), np.random.get_state()
    genesis_before = genesis_random.default_states()
    seed_all(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)
        genesis_random.restore_default_states(genesis_before)
