"""What rendering a kernel gives: a text, and how to compile and to launch it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """An argument of a rendered function: a buffer's pointer, a parameter or a symbol.

    `type` is in Triton's notation; `divisible` says that a symbol is a multiple of 16.
    """

    name: str
    type: str
    divisible: bool = False


@dataclass(frozen=True)
class RenderedKernel:
    """A rendered kernel: the text of a module, and what a compiler and launcher need to know.

    `functions` has one name per phase; next to each, the module defines ``<name>_grid``, a plain
    function from the kernel's symbols to the number of programs. `arguments` are in the kernel's
    order: buffers, params, symbols. `num_warps`, `num_stages` (the depth of software pipelines) and
    `registers` (the most that a thread may have; 0: any number) are suggestions for each function.
    With `words`, memory must begin at multiples of four, or of 16. `ahead` has for each function
    the numbers of the buffers it reads before it waits for the kernel before it. The last axes of
    grids, `inside` in number, are within a program.
    """

    text: str
    functions: tuple[str, ...]
    arguments: tuple[Argument, ...]
    num_warps: tuple[int, ...]
    num_stages: tuple[int, ...]
    registers: tuple[int, ...]
    words: bool = False
    ahead: tuple[tuple[int, ...], ...] = ()
    inside: int = 0

    def signature(self, unaligned: Collection[str] = ()) -> dict[str, str]:
        """Argument types as `compile` takes them, ``:16`` marking multiples of 16.

        Pointers are taken to be aligned to 16 bytes, as all memory of ours is, except those of the
        arguments named in `unaligned`.
        """
        types = {}
        for a in self.arguments:
            aligned = a.divisible or (a.type.startswith("*") and a.name not in unaligned)
            types[a.name] = f"{a.type}:16" if aligned else a.type
        return types
