"""NVIDIA's libraries, found where their wheels put them or the system has them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

#: What each needs to be loaded before it, and the versions of its file that this was written for.
NEEDS = {
    "nvJitLink": (),
    "cublasLt": (),
    "cublas": ("cublasLt",),
    "cusparse": ("nvJitLink",),
    "cusolver": ("cublas", "cusparse"),
    "cufft": (),
    "nccl": (),
}
VERSIONS = (13, 12, 11, 2)


@cache
def loaded(name: str) -> ctypes.CDLL | None:
    """A library such as ``cufft``; None where it is not installed."""
    for other in NEEDS[name]:
        loaded(other)  # its wheel may lie in another folder than this one
    for file in _files(name):
        with suppress(OSError):
            return ctypes.CDLL(file, ctypes.RTLD_GLOBAL)
    return None


def _files(name: str) -> Iterator[str]:
    """Where a library may be, the wheels first."""
    found = find_spec("nvidia")
    folders = list(found.submodule_search_locations or []) if found else []
    for version in VERSIONS:
        file = f"lib{name}.so.{version}"
        yield from (
            str(p) for folder in folders for p in sorted(Path(folder).glob(f"*/lib/{file}"))
        )
        yield file
