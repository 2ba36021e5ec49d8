"""Programs on disk: a graph that any process of this user has compiled is not compiled again.

A program is kept as JSON: numbers, names of memory slots, and which objects (machine code, kept
apart because programs share kernels) its launches run. Its key is made of everything that decides
what the stages produce: the graph, what may be overwritten, the options, the backend's target;
the store adds the compiler's own sources. With it is kept how its kernels were tuned, and when that
has changed it is compiled anew. What is read is checked as if somebody hostile had
written it, and a program with anything wrong is compiled anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

from genesis.backends import base
from genesis.compiler.program.memory_plan import Temporary
from genesis.compiler.program.program import Derivation, Early, Output, Program
from genesis.compiler.tuning_records import database, kernel_key, target_of, told
from genesis.content_store import ContentStore
from genesis.ir.dtype import ALL, DType
from genesis.ir.node import Form
from genesis.ir.numpy_library import reference
from genesis.ir.size import Dim, Quotient, Size

#: The fields of a file.
_FIELDS = frozenset((
    "buffers", "scalars", "symbols", "outputs", "temporaries", "binaries", "extents", "pointers",
    "launches", "early", "claims", "unproven", "accesses", "tuned",
))  # fmt: skip


class Malformed(ValueError):
    """Not a program."""


# ---- writing


def save(store: ContentStore, key: str, program: Program) -> None:
    """Keep a program and whatever code of it is not in the store yet."""
    binaries = {launch.binary.key: launch.binary for launch in program.launches}
    for name, binary in binaries.items():
        if store.get("object", name) is None:
            store.put("object", name, binary.image)
    numbers = {name: number for number, name in enumerate(binaries)}
    kernels = {step.lowered.kernel for step in program.steps}
    content = {
        "buffers": program.buffers,
        "scalars": [[slot, dtype.name] for slot, dtype in program.scalars],
        "symbols": program.symbols,
        "outputs": [[output.reuses, output.first] for output in program.outputs],
        "temporaries": [[_written(t.nbytes), t.first, t.last] for t in program.temporaries],
        "binaries": [[name, binary.entry] for name, binary in binaries.items()],
        "extents": [_written(extent) for extent in program.extents],
        "pointers": program.pointers,
        "launches": _written_records(program.records, numbers),
        "early": program.early,
        "claims": program.claims,
        "unproven": program.unproven,
        "accesses": program.accesses,
        "tuned": _tuned({kernel_key(k) for k in kernels}, program.backend),
    }
    store.put("program", key, json.dumps(content, separators=(",", ":")).encode())


def _tuned(kernels: Iterable[str], backend: base.Backend) -> dict[str, str]:
    """What is known by tuning about kernels."""
    known, target = database(), target_of(backend)
    return {key: told(known.decisions(key, target)) for key in sorted(kernels)}


def _written_records(records: Sequence[base.Record], numbers: Mapping[str, int]) -> list[Any]:
    """The records as JSON; their length and their first item tell the kinds apart.

    A launch is [binary, slots, phases], a loop [count, cursors, turns, records], a host step
    [name, options, operands, results].
    """
    return [_written_record(record, numbers) for record in records]


def _written_record(x: base.Record, numbers: Mapping[str, int]) -> list[Any]:
    if isinstance(x, base.Launch):
        return [numbers[x.binary.key], x.slots, x.phases]
    if isinstance(x, base.Host):
        read, written = ([[p, d.name, e] for p, d, e in side] for side in (x.operands, x.results))
        return [x.name, x.options, read, written]
    return [x.count, x.cursors, x.turns, _written_records(x.body, numbers)]


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
    store: ContentStore,
    key: str,
    outputs: Sequence[Form],
    backend: base.Backend,
    derive: Callable[[], Derivation],
) -> Program | None:
    """The program kept under `key`; None if it or its code is not there, or not as it should be.

    `outputs` are the dtypes and shapes of its outputs.
    """
    payload = store.get("program", key)
    if payload is None:
        return None
    try:
        content = _content(payload)
        tuned = _texts(content["tuned"])
        if tuned != _tuned(tuned, backend):
            return None
        return _program(content, key, outputs, backend, derive, store)
    except (Malformed, RecursionError, base.BadBinary):
        return None


def _content(payload: bytes) -> dict[str, Any]:
    """The fields of a file that has those of a program."""
    try:
        content = json.loads(payload)
    except ValueError as error:
        raise Malformed(str(error)) from None
    if not isinstance(content, dict) or set(content) != _FIELDS:
        raise Malformed("not the fields of a program")
    return content


def _program(
    content: dict[str, Any],
    key: str,
    forms: Sequence[Form],
    backend: base.Backend,
    derive: Callable[[], Derivation],
    store: ContentStore,
) -> Program:
    """The program of a file; raises Malformed unless every name and number makes sense."""
    buffers = _number(content["buffers"])
    scalars = [_items(x, 2) for x in _items(content["scalars"])]
    symbols = tuple(_text(x) for x in _items(content["symbols"]))
    outputs = [_items(x, 2) for x in _items(content["outputs"], len(forms))]
    binaries = tuple(_binary(_items(x, 2), store) for x in _items(content["binaries"]))
    temporaries = [_items(x, 3) for x in _items(content["temporaries"])]
    extents = tuple(_size(x, least=-(1 << 63)) for x in _items(content["extents"]))
    pointers = _number(content["pointers"])
    frame = _Frame.of(
        buffers + len(scalars) + len(forms) + len(symbols), len(extents), pointers, len(temporaries)
    )
    records = tuple(_record(_items(x), frame, binaries) for x in _items(content["launches"]))
    moved = [slot for slots in _moved(records) for slot in slots]
    if sorted(moved) != list(frame.pointers):
        raise Malformed("not every pointer is moved by one loop")
    sizes = [*extents, *(_size(nbytes) for nbytes, _, _ in temporaries)]
    unknown = {s.name for e in sizes if isinstance(e, Size) for s in e.symbols} - set(symbols)
    if unknown:
        raise Malformed(f"sizes that nobody gives: {unknown}")
    count = sum(1 for _ in base.steps(records))
    return Program(
        outputs=tuple(
            Output(*form, None if slot is None else _number(slot, buffers), _number(first, count))
            for form, (slot, first) in zip(forms, outputs, strict=True)
        ),
        temporaries=tuple(
            Temporary(_size(nbytes), _number(first, count), _number(last, count))
            for nbytes, first, last in temporaries
        ),
        scalars=tuple((_number(slot), _dtype(name)) for slot, name in scalars),
        symbols=symbols,
        buffers=buffers,
        extents=extents,
        pointers=pointers,
        records=records,
        early=tuple(_early(_items(x, 7), records, frame) for x in _items(content["early"])),
        claims=_number(content["claims"]),
        unproven=_number(content["unproven"]),
        accesses=_number(content["accesses"]),
        backend=backend,
        executable=backend.assemble(records),
        derive=derive,
        key=key,
    )


class _Frame(NamedTuple):
    """The slots of a frame: of all, of numbers that loops need, and of pointers that they move."""

    all: range
    extents: range
    pointers: range
    temporaries: range

    @staticmethod
    def of(first: int, extents: int, pointers: int, temporaries: int) -> _Frame:
        a, b = first + extents, first + extents + pointers
        end = b + temporaries
        return _Frame(range(end), range(first, a), range(a, b), range(b, end))


def _early(parts: list[Any], records: Sequence[base.Record], frame: _Frame) -> Early:
    record = _number(parts[0], len(records))
    first, of = _number(parts[1]), _number(parts[2])
    if not isinstance(records[record], base.Launch) or not 0 < first <= of:
        raise Malformed(f"{parts} is not the beginning of a launch")
    reads, numbers, writes = map(_items, parts[3:6])
    if not isinstance(parts[6], str):
        raise Malformed(f"{parts[6]} is not the meaning of a launch")
    return Early(
        record,
        first,
        of,
        tuple(_slot(slot, frame.all) for slot in reads),
        tuple(_slot(slot, frame.all) for slot in numbers),
        tuple(_slot(slot, frame.temporaries) for slot in writes),
        parts[6],
    )


def _record(parts: list[Any], frame: _Frame, binaries: Sequence[base.Binary]) -> base.Record:
    if len(parts) == 3:
        number, slots, phases = parts
        binary = binaries[_number(number, len(binaries))]
        if phases is not None:
            first, end = _items(phases, 2)
            phases = _number(first), _number(end)
        return base.Launch(binary, tuple(_slot(slot, frame.all) for slot in _items(slots)), phases)
    if len(parts) == 4 and isinstance(parts[0], str):
        name, options, read, written = parts
        try:
            reference(name)
        except KeyError as error:
            raise Malformed(str(error)) from None
        operands, results = (
            tuple(_operand(_items(x, 3), frame) for x in _items(side)) for side in (read, written)
        )
        return base.Host(name, tuple(map(_option, _items(options))), operands, results)
    count, cursors, turns, records = _items(parts, 4)
    walked = frame.pointers, frame.all, frame.extents, frame.extents
    turned = frame.pointers, frame.all, frame.temporaries, frame.temporaries
    return base.Repeat(
        _slot(count, frame.extents),
        tuple(base.Cursor(*map(_slot, _items(x, 4), walked)) for x in _items(cursors)),
        tuple(base.Turn(*map(_slot, _items(x, 4), turned)) for x in _items(turns)),
        tuple(_record(_items(x), frame, binaries) for x in _items(records)),
    )


def _operand(parts: list[Any], frame: _Frame) -> base.Operand:
    pointer, dtype, extents = parts
    shape = tuple(_slot(slot, frame.extents) for slot in _items(extents))
    return base.Operand(_slot(pointer, frame.all), _dtype(dtype), shape)


def _option(x: Any) -> Any:
    """An option of a call: tuples are lists in JSON."""
    if isinstance(x, list):
        return tuple(map(_option, x))
    if x is None or isinstance(x, bool | int | float | str):
        return x
    raise Malformed(f"{x!r} is not an option of a call")


def _moved(records: Sequence[base.Record]) -> Iterator[list[int]]:
    """The pointers that each loop moves."""
    for record in records:
        if isinstance(record, base.Repeat):
            yield [c.slot for c in record.cursors] + [t.current for t in record.turns]
            yield from _moved(record.body)


def _binary(parts: list[Any], store: ContentStore) -> base.Binary:
    name, entry = parts
    image = store.get("object", _text(name))
    if image is None:
        raise Malformed(f"there is no code called {name!r}")
    return base.Binary(name, image, entry)


def _slot(x: Any, slots: range) -> int:
    return _number(x, slots.stop, slots.start)


def _number(x: Any, end: int = 1 << 63, least: int = 0) -> int:
    if type(x) is not int or not least <= x < end:
        raise Malformed(f"{x!r} is not a number from {least} to below {end}")
    return x


def _text(x: Any) -> str:
    if not isinstance(x, str):
        raise Malformed(f"{x!r} is not a text")
    return x


def _texts(x: Any) -> dict[str, str]:
    if not isinstance(x, dict):
        raise Malformed(f"{x!r} does not name texts")
    return {_text(name): _text(text) for name, text in x.items()}


def _items(x: Any, length: int | None = None) -> list[Any]:
    if not isinstance(x, list) or (length is not None and len(x) != length):
        raise Malformed(f"{x!r} is not a list of {length or 'some'} items")
    return x


def _dtype(x: Any) -> DType:
    if not isinstance(x, str) or x not in _DTYPES:
        raise Malformed(f"{x!r} is not a dtype")
    return _DTYPES[x]


def _size(x: Any, least: int = 0) -> Dim:
    """What `_written` wrote, put together by arithmetic: so it is in canonical form."""
    if not isinstance(x, list):
        return _number(x, least=least)
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
