"""Generators: the array generator behind each of PyTorch's.

A generator of PyTorch is the handle of a state, and its state is an array generator among the
contents of storages: a key and the number of words drawn, advanced lazily like everything else.
"""

from __future__ import annotations

import numpy as np
import torch

from genesis.ndarray.core.interop import copied
from genesis.ndarray.core.realisation import realize_values
from genesis.ndarray.random import Generator
from genesis.torch.device.storage_contents import contents, name_of_device, runtime

_SEED = 67280421310721  # PyTorch's own, for generators that nobody seeded


def generator_of(generator: torch.Generator | None, index: int | None) -> Generator:
    """The array generator behind PyTorch's, or behind the default one of a device."""
    where = runtime.current_device() if index is None else index
    chosen = runtime.default_generator(where) if generator is None else generator
    return generator_at(runtime.generator_address(chosen), where)


def generator_at(address: int, index: int) -> Generator:
    """The array generator under a handle."""
    entry = contents.get(address)
    if entry is None:
        entry = contents[address] = (Generator(_SEED, name_of_device(index)), -1)
    generator: Generator = entry[0]
    return generator


def seed(address: int, index: int, key: int, offset: int) -> None:
    """Set the state of the generator under a handle."""
    state = copied(np.array([key, offset], np.uint64), name_of_device(index))
    generator_at(address, index).state = state


def state(address: int, index: int) -> tuple[int, int]:
    """The state of the generator under a handle."""
    words = generator_at(address, index).state
    # Nothing else: whoever asks for a state before every layer should not have it computed then.
    realize_values((words.value,))
    key, offset = words.tolist()
    return key, offset
