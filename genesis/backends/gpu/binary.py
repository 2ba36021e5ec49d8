"""Kernels as `Binary`: machine code of every phase, how to launch it, and the text it is from.

The text is kept because code is compiled for what is almost always so: that all memory a kernel
gets begins at a multiple of 16 bytes. Where an argument begins elsewhere (a slice does), the same
text is compiled once more without that assumption, when that first happens; where bytes are read
as words, that is another text.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from genesis.backends.base import BadBinary, Binary
from genesis.backends.gpu.codegen.render import render
from genesis.backends.gpu.codegen.rendered_kernel import Argument, RenderedKernel
from genesis.backends.gpu.codegen.warp_specialised import by_roles
from genesis.backends.gpu.compile import compile, parse_target
from genesis.backends.gpu.launch_metadata import Count, parsed
from genesis.content_store import digest
from genesis.ir import ops
from genesis.ir.kernel import Kernel, Role, as_index
from genesis.ir.node import Node

_OPERATIONS = {
    ops.ADD: "+", ops.SUB: "-", ops.MUL: "*", ops.FLOORDIV: "//", ops.MOD: "%",
    ops.MIN: "min", ops.MAX: "max",
}  # fmt: skip


@dataclass(frozen=True)
class CompileRequest:
    """What to compile: a rendered kernel for a target."""

    source: RenderedKernel
    loose: RenderedKernel  # for arguments that begin anywhere
    target: str
    aligned: bool
    buffers: int
    symbols: int
    grids: tuple[Count, ...]
    written: tuple[int, ...] | None = None  # numbers of buffers that are not only read; None: all
    loose_grids: tuple[Count, ...] | None = None  # of `loose`; None: the same

    @property
    def key(self) -> str:
        """A digest of all that decides the code."""
        source = self.source
        numbers = source.num_warps, source.num_stages, source.registers
        how = json.dumps([source.functions, numbers, self.grids])
        types = json.dumps(self.signature())
        return digest(source.text, how, types, self.target, metadata.version("triton"))

    def signature(self) -> dict[str, str]:
        """The types of the arguments, and which are multiples of 16."""
        names = () if self.aligned else [a.name for a in self.source.arguments]
        return self.source.signature(names)


def request(kernel: Kernel, target: str, precision: str = "highest") -> CompileRequest:
    """What is to be compiled for a kernel."""
    source = by_roles(kernel, target) or render(kernel, precision, target)
    loose = render(kernel, precision, target, aligned=False) if source.words else source
    counts = len(kernel.buffers), len(kernel.symbols)
    written = tuple(k for k, b in enumerate(kernel.buffers) if b.role is not Role.INPUT)
    grids, others = (_grids(kernel, rendered.inside) for rendered in (source, loose))
    return CompileRequest(source, loose, target, True, *counts, grids, written, others)


def made(wanted: CompileRequest) -> Binary:
    """The binary for a request."""
    compiled = compile(wanted.source, wanted.signature(), wanted.target)
    images: list[bytes] = []
    phases: list[dict[str, Any]] = []
    hidden = 0
    *_, lanes = parse_target(wanted.target)
    for k, (function, grid) in enumerate(zip(compiled.functions, wanted.grids, strict=True)):
        images.append(function.binary)
        hidden = _parameters(function.assembly) - len(wanted.source.arguments)
        phases.append({
            "name": function.name, "size": len(function.binary), "grid": grid,
            "threads": lanes * function.num_warps, "shared": function.shared,
            "waits": "griddepcontrol.wait" in function.assembly,
            "ahead": list(wanted.source.ahead[k]) if wanted.source.ahead else [],
        })  # fmt: skip
    entry = {
        "phases": phases,
        "buffers": wanted.buffers,
        "symbols": wanted.symbols,
        "hidden": hidden,
        "written": list(range(wanted.buffers) if wanted.written is None else wanted.written),
    }
    image = b"".join([*images, zlib.compress(json.dumps(_described(wanted)).encode())])
    return Binary(wanted.key, image, entry, wanted.source.text)


def unaligned(binary: Binary) -> CompileRequest:
    """What is to be compiled so that a kernel's arguments may begin anywhere."""
    end = max((phase.code.stop for phase in parsed(binary).phases), default=0)
    try:
        found = json.loads(zlib.decompress(binary.image[end:]))
        arguments = tuple(Argument(*a) for a in found["arguments"])
        names = ("num_warps", "num_stages", "registers")
        numbers: dict[str, Any] = {name: tuple(found[name]) for name in names}
        source = RenderedKernel(found["text"], tuple(found["functions"]), arguments, **numbers)
        entry, grids = parsed(binary), tuple(found["grids"])
        counts = entry.buffers, entry.symbols
        return CompileRequest(source, source, found["target"], False, *counts, grids, entry.written)
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise BadBinary(f"kernel {binary.key} does not hold its text: {error}") from None


def packed(binary: Binary) -> bytes:
    """A binary as one piece."""
    return json.dumps(binary.entry).encode() + b"\n" + binary.image


def unpacked(key: str, payload: bytes) -> Binary:
    """What `packed` was given."""
    entry, _, image = payload.partition(b"\n")
    try:
        return Binary(key, image, json.loads(entry))
    except ValueError as error:
        raise BadBinary(f"kernel {key} is not as it was written: {error}") from None


def _described(wanted: CompileRequest) -> dict[str, Any]:
    source = wanted.loose
    return {
        "text": source.text,
        "functions": source.functions,
        "arguments": [[a.name, a.type, a.divisible] for a in source.arguments],
        "num_warps": source.num_warps,
        "num_stages": source.num_stages,
        "registers": source.registers,
        "target": wanted.target,
        "grids": wanted.grids if wanted.loose_grids is None else wanted.loose_grids,
    }


def _grids(kernel: Kernel, inside: int) -> tuple[Count, ...]:
    """How many programs each phase has; the last axes of grids are `inside` of one."""
    numbers = {symbol: k for k, symbol in enumerate(kernel.symbols)}
    grids = []
    for phase in kernel.phases:
        count: Count = 1
        for axis in phase.grid[: len(phase.grid) - inside]:
            factor = _count(as_index(axis.extent), numbers)
            count = factor if count == 1 else ["*", count, factor] if factor != 1 else count
        grids.append(count)
    return tuple(grids)


def _count(n: Node, numbers: Mapping[Any, int]) -> Count:
    if n.op is ops.CONST:
        return int(n.attr)
    if n.op is ops.SYMBOL:
        return ["symbol", numbers[n.attr]]
    if n.op is ops.SIZE:
        return _count(as_index(n.attr), numbers)
    return [_OPERATIONS[n.op], *(_count(i, numbers) for i in n.inputs)]


def _parameters(assembly: str) -> int:
    """How many parameters a kernel has, in PTX or in AMD's assembly."""
    if found := re.search(r"\.entry\s+[\w$]+\s*\((.*?)\)", assembly, re.DOTALL):
        return found[1].count(".param")
    # What is called hidden, the driver fills in.
    return len(re.findall(r"\.value_kind:\s+(?!hidden_)\S", assembly))
