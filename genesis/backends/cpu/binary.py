"""LLVM IR text as a `Binary`: machine code, and how to launch it."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.backends.base import Binary
from genesis.backends.cpu.compile import compile_object, object_key
from genesis.store import digest


def binary(text: str, symbols: Sequence[tuple[str, str]], scratch_bytes: int) -> Binary:
    """Compile a module whose phases are the (function, grid function) `symbols`.

    They get names that no other kernel has, so that objects can be linked together.
    """
    # Who loads code knows it by its text: what else is said of it must be in there.
    text = f"; {scratch_bytes} bytes of scratch memory for each block\n{text}"
    unique = digest(text)[:16]
    for name in (name for pair in symbols for name in pair):
        text = text.replace(f'@"{name}"', f'@"{name}.{unique}"')
    phases = [[f"{function}.{unique}", f"{grid}.{unique}"] for function, grid in symbols]
    entry = {"phases": phases, "scratch": scratch_bytes}
    return Binary(object_key(text), compile_object(text), entry, text)


__all__ = ["binary"]
