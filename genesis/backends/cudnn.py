"""Settings that programs make of a library that is not used here: nothing depends on them.

Kernels are compiled, and deterministic.
"""

from __future__ import annotations

enabled = False
benchmark = False
deterministic = True
allow_tf32 = False


def is_available() -> bool:
    """Whether cuDNN computes anything: never."""
    return False


def version() -> None:
    """The version of cuDNN: there is none."""
    return


__all__ = ["allow_tf32", "benchmark", "deterministic", "enabled", "is_available", "version"]
