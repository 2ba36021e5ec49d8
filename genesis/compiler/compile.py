"""`compile_graph`: the way into the compiler. A program comes from disk, or from the pipeline.

The key of a program is made of everything that decides what the pipeline makes: the graph, what may
be overwritten, the options, the backend's target; the store adds the compiler's own sources.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace

from genesis.backends import get
from genesis.backends.base import Backend
from genesis.compiler.options import Options, current
from genesis.compiler.program.digest import identity, spell
from genesis.compiler.program.disk_cache import load, save
from genesis.compiler.program.program import Derivation, Program
from genesis.content_store import default, digest
from genesis.events import span
from genesis.ir.node import Form, Node


def compile_graph(
    roots: Sequence[Node],
    donated: frozenset[int] = frozenset(),
    backend: Backend | None = None,
    options: Options | None = None,
) -> Program:
    """The program for the graph below `roots`: from disk, or through the stages.

    Memory in the `donated` input slots may be overwritten. `options`: those in force, if not given.
    """
    options = current() if options is None else options
    backend = get("cpu") if backend is None else backend
    store = default()
    if store is None:
        return _compile(roots, donated, backend, options)
    with span("key"):
        key = program_key(roots, donated, backend, options)

    def derive() -> Derivation:
        return _compile(roots, donated, backend, options).derivation

    with span("load"):
        program = load(store, key, [(n.dtype, n.shape) for n in roots], backend, derive)
    if program is None:
        program = replace(_compile(roots, donated, backend, options), key=key)
        with span("save"):
            save(store, key, program)
    return program


def kept_program(key: str, outputs: Sequence[Form], backend: Backend) -> Program | None:
    """A program on disk by its key and its outputs; None if it is not there, or not whole.

    Whoever knows a program's key needs no graph to run it. How it came about, it cannot say.
    """

    def derive() -> Derivation:
        raise LookupError(f"program {key} was found without the graph it was compiled from")

    store = default()
    return None if store is None else load(store, key, outputs, backend, derive)


def program_key(
    roots: Sequence[Node], donated: frozenset[int], backend: Backend, options: Options
) -> str:
    """The key of a program: a digest of all that decides what the stages make."""
    chosen = spell((tuple(sorted(donated)), astuple(options)))
    return digest(identity(roots), chosen, backend.name, backend.target)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector: stages make many objects, and hardly any in circles."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if not _Collector.spared and not gc.get_freeze_count():
                gc.freeze()  # all is made old by it, which looks at nothing
                gc.unfreeze()
            else:
                _Collector.spared = True
            gc.enable()


class _Collector:
    """Whether objects are kept from the collector: to ask how many takes a look at each."""

    spared = False


@_uncollected()
def _compile(
    roots: Sequence[Node], donated: frozenset[int], backend: Backend, options: Options
) -> Program:
    # The stages bring isl and a renderer with them, which a process that finds its programs spares.
    from genesis.compiler.pipeline import compile_program

    with span("compile"):
        program = compile_program(roots, donated, backend, options)
    # The stages know complex results as pairs of real ones, whoever runs the program does not.
    found = zip(roots, program.outputs, strict=True)
    outputs = tuple(replace(out, dtype=n.dtype, shape=n.shape) for n, out in found)
    return replace(program, outputs=outputs)
