"""Collectives: operations in which every rank of a mesh axis gives arrays and gets arrays.

Each is defined here over the arrays of all ranks, by `DEFINITIONS`. What a program calls are the
functions of the same names: they hand over one rank's arrays to the *carrier* of its mesh: to
processes that talk to each other, or, in tests, to threads that apply the definition itself.

The options are the name of the mesh, that of the axis, for `all_reduce` how to combine, and for
`permute` whose array each rank gets.
Arrays are exchanged along their first dimension, several of them at once in one collective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Options = tuple[Any, ...]
T = TypeVar("T")

COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


#: What is known of an array's contents: a text, a number, and how far that may be off, times 1000.
Sketch = tuple[str, float, float]
#: What waits for the end of a collective, and gives its results.
Due = Callable[[], Sequence[Array]]


class Carrier(Protocol):
    """Who carries one rank's collectives."""

    @property
    def coordinates(self) -> Mapping[str, int]:
        """The rank's number along every axis of the mesh."""
        ...

    def start(self, name: str, options: Options, xs: Sequence[Array]) -> Due:
        """Give what this rank has, which may change afterwards; what waits for what it is due."""
        ...

    def link(self, axis: str, backend: Any) -> Any:
        """What carries collectives along an axis on a backend's own memory; None: `start` does."""
        ...

    def agree(self, title: str, lines: Sequence[str], whole: Sequence[Sketch] = ()) -> None:
        """Raise an error where another rank has made another program, or has other arrays."""
        ...

    def in_turn(self, compile_: Callable[[], T]) -> T:
        """Compile the program that was agreed on, where possible once for all ranks of a host."""
        ...


#: The carriers of the process, by the names of meshes.
PROCESS: dict[str, Carrier] = {}
#: Those in force; another mapping where threads stand for ranks.
carriers: ContextVar[Mapping[str, Carrier]] = ContextVar("carriers", default=PROCESS)


def carrier(mesh: str) -> Carrier:
    """Who carries the collectives on a mesh."""
    found = carriers.get().get(mesh)
    if found is None:
        raise RuntimeError(
            f"the program was made for a mesh {mesh} that this process does not have; "
            "make it first, with genesis.distributed.mesh(..)"
        )
    return found


def start(name: str, options: Options, xs: Sequence[Array]) -> Callable[[], tuple[Array, ...]]:
    """Begin this rank's part in a collective, called as programs do."""
    due = carrier(options[0]).start(name.removeprefix("collectives."), options, xs)
    return lambda: tuple(due())


def _call(name: str) -> Callable[..., tuple[Array, ...]]:
    def call(options: Options, *xs: Array) -> tuple[Array, ...]:
        return start(f"collectives.{name}", options, xs)()

    call.__name__, call.__doc__ = name, f"One rank's part in `{name}`."
    return call


# ---- what each is, given every rank's arrays: one array per rank in, one per rank out
def _all_reduce(options: Options, xs: Sequence[Array]) -> list[Array]:
    total = xs[0]
    for x in xs[1:]:
        total = COMBINE[options[2]](total, x)
    return [total] * len(xs)


def _all_gather(options: Options, xs: Sequence[Array]) -> list[Array]:
    return [np.concatenate(xs)] * len(xs)


def _reduce_scatter(options: Options, xs: Sequence[Array]) -> list[Array]:
    return np.split(_all_reduce((*options[:2], "sum"), xs)[0], len(xs))


def _all_to_all(options: Options, xs: Sequence[Array]) -> list[Array]:
    """Block j of rank i becomes block i of rank j."""
    blocks = [np.split(x, len(xs)) for x in xs]
    return [np.concatenate([b[j] for b in blocks]) for j in range(len(xs))]


def _permute(options: Options, xs: Sequence[Array]) -> list[Array]:
    """Rank i gets what rank ``options[2][i]`` has."""
    return [xs[source] for source in options[2]]


DEFINITIONS: dict[str, Callable[[Options, Sequence[Array]], list[Array]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
}
all_reduce, all_gather, reduce_scatter, all_to_all, permute = map(_call, DEFINITIONS)


__all__ = ["all_gather", "all_reduce", "all_to_all", "permute", "reduce_scatter"]
