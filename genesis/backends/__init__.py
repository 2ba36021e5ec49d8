"""Backends: one small package per kind of chip.

``get("cpu")`` gives the backend of a device by its name; ``get("cuda:1")`` is the second GPU. Third
parties register theirs by the entry-point group ``genesis.backends``: a callable without arguments
that returns a `Backend`. What the compiler does for its chip, the chip names (`Chip.passes`).
"""

from __future__ import annotations

import sys
from functools import cache
from types import SimpleNamespace

from genesis.backends import cudnn as cudnn, mps as mps
from genesis.backends.base import Backend

#: Where backends of third parties lie that were loaded: their code is no user's either.
outside: set[str] = set()


#: Settings for NVIDIA's GPUs by the names PyTorch has for them; see `genesis.precision`.
cuda = SimpleNamespace()


@cache
def get(name: str) -> Backend:
    """The backend of the device called `name`, loaded on first use."""
    kind, _, number = name.partition(":")
    if kind in ("cuda", "hip"):
        from genesis.backends.gpu.backend import CUDABackend, HIPBackend

        return (CUDABackend if kind == "cuda" else HIPBackend)(int(number or 0))
    if number:  # one backend serves all devices of other kinds
        return get(kind)
    if name == "cpu":
        from genesis.backends.cpu.backend import CPUBackend

        return CPUBackend()
    from importlib.metadata import entry_points
    from pathlib import Path

    for point in entry_points(group="genesis.backends", name=name):
        made = point.load()
        file = Path(sys.modules[made.__module__.partition(".")[0]].__file__ or "")
        outside.add(f"{file.parent}/" if file.name == "__init__.py" else str(file))
        backend: Backend = made()
        return backend
    others = [p.name for p in entry_points(group="genesis.backends")]
    known = ", ".join(["cpu", "cuda", "hip", *others])
    raise ValueError(f"there is no backend {name!r}; available: {known}")
