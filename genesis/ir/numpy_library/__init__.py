"""The library: operations that are called instead of generated, each by its definition in NumPy.

Factorisations, Fourier transforms and sorting are algorithms of their own; what the compiler does
for others, fusing them with their surroundings, does nothing for them. A CALL node names one of
the functions here. A backend may claim the name and run code of its own; otherwise the function
itself runs, as a step of the program on the host. Either way it is the definition, and what the
oracle evaluates.

A function takes the options of the call, then its operands, and gives a tuple of results in the
dtypes and shapes that the call promises. It depends on nothing else and changes nothing. It may
raise an error for contents it is not defined for, a singular matrix say: then the program ends
there, and since programs with host steps overwrite no input nothing else has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy.typing as npt

Reference = Callable[..., tuple[npt.NDArray[Any], ...]]

MODULES = ("collectives", "fourier", "indexing", "linalg", "sharding_constraint", "sorting")


def started(
    name: str, options: tuple[Any, ...], operands: Sequence[npt.NDArray[Any]]
) -> Callable[[], tuple[npt.NDArray[Any], ...]]:
    """Begin an operation on operands that may change from here on; what gives its results.

    Collectives go on while others compute; everything else is done at once.
    """
    if name.startswith("collectives."):
        from genesis.ir.numpy_library.collectives import start

        return start(name, options, operands)
    results = reference(name)(options, *operands)
    return lambda: results


def reference(name: str) -> Reference:
    """The definition of an operation, called ``module.function``; `KeyError` for any other name.

    >>> import numpy as np
    >>> reference("sorting.sort")((False,), np.array([[3, 1, 2]]))
    (array([[1, 2, 3]]), array([[1, 2, 0]]))
    """
    module, _, function = name.partition(".")
    if module in MODULES:
        loaded = import_module(f"genesis.ir.numpy_library.{module}")
        if function in loaded.__all__:
            found: Reference = getattr(loaded, function)
            return found
    raise KeyError(f"the library has no operation {name!r}")
