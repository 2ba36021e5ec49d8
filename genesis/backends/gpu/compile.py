"""Triton source to machine code for an explicit target, without a GPU and without PyTorch.

Triton reads a function's text from its file, so a module is written to a cache directory first,
under a name made from its content: the same source is the same file, and Triton's own cache then
finds the binary.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from genesis.backends.gpu.codegen.rendered_kernel import RenderedKernel


@dataclass(frozen=True)
class CompiledFunction:
    """The machine code of one phase, and what a launch of it needs.

    `assembly` is PTX or AMD's assembly, `binary` a cubin or an hsaco; `shared` counts bytes.
    """

    name: str
    assembly: str
    binary: bytes
    num_warps: int
    shared: int


@dataclass(frozen=True)
class Compiled:
    """A kernel for one target: a function per phase, in order."""

    target: str
    functions: tuple[CompiledFunction, ...]


@dataclass(frozen=True)
class Resources:
    """What a function takes of a chip: registers per thread, and bytes spilled from them."""

    registers: int
    spilled: int


def compile(source: RenderedKernel, signature: Mapping[str, str], target: str) -> Compiled:
    """Machine code of every phase for ``sm_90``, ``gfx942`` or another target of that form.

    `signature` gives the type of every argument in Triton's notation, with ``:16`` after those
    that are multiples of 16; `RenderedKernel.signature` makes one.
    """
    triton = _triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

    module = load(source)
    chip = GPUTarget(*parse_target(target))
    types = {name: kind.removesuffix(":16") for name, kind in signature.items()}
    divisible = {
        (position,): [["tt.divisibility", 16]]
        for position, kind in enumerate(signature.values())
        if kind.endswith(":16")
    }
    functions: list[CompiledFunction] = []
    done: dict[str, CompiledFunction] = {}
    # Contracting a*b + c is allowed in Genesis, and Triton's default is about to change.
    options = {"enable_fp_fusion": True}
    numbers = zip(
        source.functions, source.num_warps, source.num_stages, source.registers, strict=True
    )
    for name, warps, stages, registers in numbers:
        if name in done:  # several phases may be one
            functions.append(done[name])
            continue
        function = getattr(module, name)
        kind = GluonASTSource if isinstance(function, GluonJITFunction) else ASTSource
        ast = kind(function, types, None, divisible)
        # A pipeline that is too deep for the chip's fast memory is made shallower.
        for depth in range(stages, 0, -1):
            chosen = {**options, "num_warps": warps, "num_stages": depth}
            if registers and chip.backend == "cuda":
                chosen["maxnreg"] = registers
            kernel = triton.compile(ast, target=chip, options=chosen)
            if kernel.metadata.shared <= _SHARED.get(target, _LEAST_SHARED):
                break
        if chip.backend == "cuda":
            assembly, binary = kernel.asm["ptx"], kernel.asm["cubin"]
            if (halves := in_halves(assembly)) != assembly:
                assembly, binary = halves, _assembled(halves, chip, chosen)
        else:
            assembly, binary = kernel.asm["amdgcn"], kernel.asm["hsaco"]
        done[name] = CompiledFunction(
            kernel.metadata.name,
            assembly,
            binary,
            kernel.metadata.num_warps,
            kernel.metadata.shared,
        )
        functions.append(done[name])
    return Compiled(target, tuple(functions))


def in_halves(ptx: str) -> str:
    """PTX in which two 16-bit numbers in a word are added one by one.

    NVIDIA's assembler up to CUDA 12.9 adds 0 instead of a constant where it has unrolled a loop
    around such an addition (VIADD.16x2 with an immediate). LLVM makes them of indices, too, which
    it narrows to what their range needs.

    >>> print(in_halves("add.s16x2 %r3, %r1, %r2;"))
    {
    .reg .b16 %a, %b, %c, %d;
    mov.b32 {%a, %b}, %r1;
    mov.b32 {%c, %d}, %r2;
    add.s16 %a, %a, %c;
    add.s16 %b, %b, %d;
    mov.b32 %r3, {%a, %b};
    }
    """
    return re.sub(
        r"add\.[su]16x2\s+(%\w+),\s*(%\w+),\s*(%\w+);",
        r"{\n.reg .b16 %a, %b, %c, %d;\nmov.b32 {%a, %b}, \2;\nmov.b32 {%c, %d}, \3;\n"
        r"add.s16 %a, %a, %c;\nadd.s16 %b, %b, %d;\nmov.b32 \1, {%a, %b};\n}",
        ptx,
    )


def _assembled(ptx: str, chip: Any, options: dict[str, Any]) -> bytes:
    """The machine code of PTX, by Triton's assembler."""
    from triton.compiler.compiler import make_backend

    backend = make_backend(chip)
    code: bytes = backend.make_cubin(ptx, {}, backend.parse_options(options), chip.arch)
    return code


def parse_target(target: str) -> tuple[str, int | str, int]:
    """Triton's description of a target: backend, architecture, lanes of a warp.

    >>> parse_target("sm_90"), parse_target("gfx942"), parse_target("gfx1201")
    (('cuda', 90, 32), ('hip', 'gfx942', 64), ('hip', 'gfx1201', 32))
    """
    if match := re.fullmatch(r"sm_(\d+)", target):
        return "cuda", int(match[1]), 32
    if re.fullmatch(r"gfx[0-9a-f]+", target):
        # The gfx9 family (CDNA) runs 64 lanes together, later ones 32.
        return "hip", target, 64 if re.fullmatch(r"gfx9..", target) else 32
    raise ValueError(f"{target!r} is not a target: write it like sm_90 or gfx942")


def load(source: RenderedKernel) -> ModuleType:
    """The source as an imported module, from a file in the cache."""
    _triton()
    path = _write(source.text)
    spec = importlib.util.spec_from_file_location(f"genesis_triton_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def resources(function: CompiledFunction) -> Resources:
    """Registers and spills of a compiled function, as the chip's own tools report them."""
    if ".vgpr_count" in function.assembly:
        registers = _number(r"\.vgpr_count:\s+(\d+)", function.assembly)
        lanes_spilled = _number(r"\.vgpr_spill_count:\s+(\d+)", function.assembly)
        return Resources(registers, 4 * lanes_spilled)
    tool = Path(_triton().__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(function.binary)
        file.flush()
        report = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return Resources(_number(r"REG:(\d+)", report), _number(r"STACK:(\d+)", report))


#: Bytes of fast memory that a block can have: on all chips that Triton compiles for the last.
_SHARED = {"sm_80": 166_912, "sm_90": 232_448, "sm_100": 232_448, "sm_103": 232_448}
_LEAST_SHARED = 65_536


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _write(text: str) -> Path:
    """The path of a file holding `text`, written once, in a directory only the user can write."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "genesis" / "triton"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.py"
    if not path.exists() or path.read_text() != text:
        with tempfile.NamedTemporaryFile("w", dir=directory, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)  # other processes see all of the file or nothing
    return path


def _triton() -> Any:
    try:
        import triton
    except ImportError:
        raise ImportError("the cuda backend needs Triton: pip install genesis-dl[cuda]") from None
    return triton
