"""Programs on disk: a graph that any process of this user has compiled is not compiled again.

A program is kept as JSON: numbers, names of memory slots, and which objects (machine code, kept
apart because programs share kernels) its launches run. Its key is made of everything that decides
what the stages produce: the graph, what may be overwritten, the options, the backend's target;
the store adds the compiler's own sources. What is read is checked as if somebody hostile had
written it, and a program with anything wrong is compiled anew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

from genesis.backends import get
from genesis.backends.base import Backend, BadBinary, Binary, Launch
from genesis.compiler.identity import identity, spell
from genesis.compiler.options import Options, current
from genesis.compiler.plan import Temporary
from genesis.compiler.program import Output, Program
from genesis.ir.dtype import ALL, DType
from genesis.ir.node import Node
from genesis.ir.size import Dim, Quotient, Size
from genesis.store import Store, default, digest


class Malformed(ValueError):
    """Not a program."""


def compile_graph(
    roots: Sequence[Node], donated: frozenset[int] = frozenset(), backend: Backend | None = None
) -> Program:
    """The program for the graph below `roots`: from disk, or through the stages.

    Memory in the `donated` input slots may be overwritten.
    """
    options = current()
    backend = get("cpu") if backend is None else backend
    store = default()
    if store is None:
        return _compile(roots, donated, backend, options)
    key = program_key(roots, donated, backend, options)
    program = load(store, key, roots, donated, backend, options)
    if program is None:
        program = _compile(roots, donated, backend, options)
        save(store, key, program)
    return program


def program_key(
    roots: Sequence[Node], donated: frozenset[int], backend: Backend, options: Options
) -> str:
    """The key of a program: a digest of all that decides what the stages make."""
    chosen = spell((tuple(sorted(donated)), astuple(options)))
    return digest(identity(roots), chosen, backend.name, backend.target)


def _compile(
    roots: Sequence[Node], donated: frozenset[int], backend: Backend, options: Options
) -> Program:
    # The stages bring isl and a renderer with them, which a process that finds its programs spares.
    from genesis.compiler.stages import compile_stages

    return compile_stages(roots, donated, backend, options)


# ---- writing


def save(store: Store, key: str, program: Program) -> None:
    """Keep a program and whatever code of it is not in the store yet."""
    binaries = {launch.binary.key: launch.binary for launch in program.launches}
    for name, binary in binaries.items():
        if store.get("object", name) is None:
            store.put("object", name, binary.image)
    numbers = {name: number for number, name in enumerate(binaries)}
    content = {
        "buffers": program.buffers,
        "scalars": [[slot, dtype.name] for slot, dtype in program.scalars],
        "symbols": program.symbols,
        "reuses": [output.reuses for output in program.outputs],
        "temporaries": [[_written(t.nbytes), t.first, t.last] for t in program.temporaries],
        "binaries": [[name, binary.entry] for name, binary in binaries.items()],
        "launches": [[numbers[x.binary.key], x.slots] for x in program.launches],
        "claims": program.claims,
        "unproven": program.unproven,
    }
    store.put("program", key, json.dumps(content, separators=(",", ":")).encode())


def _written(size: Dim) -> Any:
    """A size as JSON: an int, or terms of a coefficient and atoms.

    An atom is a symbol [name, low, high, multiple] or a quotient [size, divisor].
    """
    if isinstance(size, int):
        return size
    return [
        [
            coefficient,
            [
                [_written(atom.size), atom.divisor] if isinstance(atom, Quotient) else astuple(atom)
                for atom in monomial
            ],
        ]
        for monomial, coefficient in size.terms
    ]


# ---- reading


def load(
    store: Store,
    key: str,
    roots: Sequence[Node],
    donated: frozenset[int],
    backend: Backend,
    options: Options,
) -> Program | None:
    """The program kept under `key`; None if it or its code is not there, or not as it should be."""
    payload = store.get("program", key)
    if payload is None:
        return None
    try:
        kept = _parsed(payload, len(roots))
    except (Malformed, RecursionError):
        return None
    binaries = []
    for name, entry in kept.binaries:
        image = store.get("object", name)
        if image is None:
            return None
        binaries.append(Binary(name, image, entry))
    launches = tuple(Launch(binaries[number], slots) for number, slots in kept.launches)
    try:
        executable = backend.assemble(launches)
    except BadBinary:
        return None
    return Program(
        tuple(Output(n.dtype, n.shape, slot) for n, slot in zip(roots, kept.reuses, strict=True)),
        kept.temporaries,
        kept.scalars,
        kept.symbols,
        kept.buffers,
        launches,
        kept.claims,
        kept.unproven,
        backend,
        executable,
        lambda: _compile(roots, donated, backend, options).derivation,
    )


class _Kept(NamedTuple):
    """What the file of a program says, checked."""

    buffers: int
    scalars: tuple[tuple[int, DType], ...]
    symbols: tuple[str, ...]
    reuses: tuple[int | None, ...]
    temporaries: tuple[Temporary, ...]
    binaries: tuple[tuple[str, Any], ...]
    launches: tuple[tuple[int, tuple[int, ...]], ...]
    claims: int
    unproven: int


def _parsed(payload: bytes, outputs: int) -> _Kept:
    """The contents of a file; raises Malformed unless every name and number makes sense."""
    try:
        content = json.loads(payload)
    except ValueError as error:
        raise Malformed(str(error)) from None
    if not isinstance(content, dict) or set(content) != set(_Kept._fields):
        raise Malformed("not the fields of a program")
    buffers = _number(content["buffers"])
    scalars = [_items(x, 2) for x in _items(content["scalars"])]
    symbols = tuple(_text(x) for x in _items(content["symbols"]))
    reuses = _items(content["reuses"], outputs)
    launches = [_items(x, 2) for x in _items(content["launches"])]
    binaries = [_items(x, 2) for x in _items(content["binaries"])]
    temporaries = [_items(x, 3) for x in _items(content["temporaries"])]
    frame = buffers + len(scalars) + outputs + len(symbols) + len(temporaries)
    return _Kept(
        buffers,
        tuple((_number(slot), _dtype(name)) for slot, name in scalars),
        symbols,
        tuple(None if slot is None else _number(slot, buffers) for slot in reuses),
        tuple(
            Temporary(_size(nbytes), _number(first, len(launches)), _number(last, len(launches)))
            for nbytes, first, last in temporaries
        ),
        tuple((_text(name), entry) for name, entry in binaries),
        tuple(
            (_number(binary, len(binaries)), tuple(_number(slot, frame) for slot in _items(slots)))
            for binary, slots in launches
        ),
        _number(content["claims"]),
        _number(content["unproven"]),
    )


def _number(x: Any, end: int = 1 << 63, least: int = 0) -> int:
    if type(x) is not int or not least <= x < end:
        raise Malformed(f"{x!r} is not a number from {least} to below {end}")
    return x


def _text(x: Any) -> str:
    if not isinstance(x, str):
        raise Malformed(f"{x!r} is not a text")
    return x


def _items(x: Any, length: int | None = None) -> list[Any]:
    if not isinstance(x, list) or (length is not None and len(x) != length):
        raise Malformed(f"{x!r} is not a list of {length or 'some'} items")
    return x


def _dtype(x: Any) -> DType:
    if not isinstance(x, str) or x not in _DTYPES:
        raise Malformed(f"{x!r} is not a dtype")
    return _DTYPES[x]


def _size(x: Any) -> Dim:
    """What `_written` wrote, put together by arithmetic: so it is in canonical form."""
    if not isinstance(x, list):
        return _number(x)
    total: Dim = 0
    for term in x:
        coefficient, atoms = _items(term, 2)
        product: Dim = _number(coefficient, least=-(1 << 63))
        for atom in _items(atoms):
            product = product * _atom(_items(atom))
        total = total + product
    return total


def _atom(parts: list[Any]) -> Dim:
    if len(parts) == 2:
        return _size(parts[0]) // _number(parts[1], least=1)
    name, low, high, multiple = _items(parts, 4)
    limits = _number(low, least=-(1 << 63)), _number(high), _number(multiple, least=1)
    return Size.symbol(_text(name), *limits)


_DTYPES = {d.name: d for d in ALL}

__all__ = ["Malformed", "compile_graph", "load", "program_key", "save"]
