"""A mesh of which only this process is there: programs are divided and run as on many.

What others would send is what this process sends. So a test sees what a step collectives, how much
memory a rank needs, and what collectives cost beyond what carries them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pytest

import genesis
from genesis.compiler.partition import Partitioned
from genesis.distributed.elastic import meshes
from genesis.distributed.mesh import Mesh
from genesis.ir.numpy_library.collectives import DEFINITIONS, PROCESS, Array, Due, Options
from genesis.ir.placement import MeshShape
from genesis.ndarray.partitioned_recording import Divided
from genesis.ndarray.partitioned_recording import divide as divided_graph
from genesis.ndarray.tracing import recording

T = TypeVar("T")


class Pretended(Mesh):
    """The mesh; this process is the first one of it."""

    def __init__(self, form: MeshShape) -> None:
        self.form = form
        self.rank, self.size = 0, int(np.prod([n for _, n in form.axes]))
        self.coordinates = self.coordinates_of(0)
        self._groups = {}

    def broadcast(self, x: Array) -> Array:
        return x

    def every(self, name: str, how: Any, xs: Sequence[Array]) -> Sequence[Array]:
        return self._given(name, (self.form.name, "all", how), xs, self.size)

    def start(self, name: str, options: Options, xs: Sequence[Array]) -> Due:
        found = self._given(name, options, xs, self.shape[options[1]])
        return lambda: found

    def _given(self, name: str, options: Options, xs: Sequence[Array], count: int) -> list[Array]:
        return [DEFINITIONS[name](options, [x.copy()] * count)[0] for x in xs]

    def agree(self, title: str, lines: Sequence[str], whole: Sequence[Any] = ()) -> None:
        pass

    def in_turn(self, compile_: Callable[[], T]) -> T:
        return compile_()


@contextmanager
def pretended(kind: type[Pretended] = Pretended, **axes: int) -> Iterator[Any]:
    """A mesh with these axes."""
    form = MeshShape(tuple(axes.items()))
    before = dict(meshes._meshes)
    made = meshes._meshes[form] = PROCESS[form.name] = kind(form)
    try:
        yield made
    finally:
        del PROCESS[form.name]
        meshes._meshes.clear()
        meshes._meshes.update(before)


def divided(function: Callable[..., Any], *args: Any) -> Partitioned:
    """One rank's graph of a function, which is recorded, but not compiled."""
    found: list[Divided] = []

    def divide(*given: Any) -> None:
        made = divided_graph(*given)
        assert made is not None
        found.append(made)
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(recording, "divide", divide)
        genesis.jit(function)(*args)
    return found[0].graph
