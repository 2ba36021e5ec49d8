"""LLVM IR text as a `Binary`: machine code, and how to launch it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from genesis.backends.base import Binary
from genesis.backends.compile_workers import each
from genesis.backends.cpu.compile import emit, object_key
from genesis.content_store import default, digest


class BinarySource(NamedTuple):
    """What becomes a binary: the key of its machine code, how to launch that, and the text."""

    key: str
    entry: dict[str, Any]
    text: str


def source(text: str, symbols: Sequence[tuple[str, str]], scratch_bytes: int) -> BinarySource:
    """A module whose phases are the (function, grid function) `symbols`.

    They get names that no other kernel has, so that objects can be linked together.
    """
    # Who loads code knows it by its text: what else is said of it must be in there.
    text = f"; {scratch_bytes} bytes of scratch memory for each block\n{text}"
    unique = digest(text)[:16]
    for name in (name for pair in symbols for name in pair):
        text = text.replace(f'@"{name}"', f'@"{name}.{unique}"')
    phases = [[f"{function}.{unique}", f"{grid}.{unique}"] for function, grid in symbols]
    return BinarySource(object_key(text), {"phases": phases, "scratch": scratch_bytes}, text)


def binaries(sources: Iterable[BinarySource]) -> list[Binary]:
    """Compile sources, in several processes, while the next ones are made.

    What was compiled before is found on disk.
    """
    store = default()
    wanted: list[BinarySource] = []
    images: dict[str, bytes | None] = {}

    def missing() -> Iterator[str]:
        for one in sources:
            wanted.append(one)
            if one.key not in images:
                images[one.key] = None if store is None else store.get("object", one.key)
                if images[one.key] is None:
                    yield one.text

    made = iter(each(emit, missing(), "LLVM"))
    complete: dict[str, bytes] = {}
    for key, image in images.items():
        if image is None:
            image = next(made)
            if store is not None:
                store.put("object", key, image)
        complete[key] = image
    return [Binary(one.key, complete[one.key], one.entry, one.text) for one in wanted]
