"""`explain`: what Genesis makes of a function, before it runs.

For every kernel: the user's operations and lines, the loops and tiles of its schedule, arithmetic
and bytes, the verifier's verdict, and the code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from genesis.ndarray.tracing.jit import Jit

if TYPE_CHECKING:
    from genesis.compiler.report import Report


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """The program that ``genesis.jit(function)(*args, **kwargs)`` would run. Print it to read it.

    >>> import genesis
    >>> from genesis import ndarray as nd
    >>> report = genesis.explain(lambda x: nd.softmax(x, axis=-1), nd.ones((64, 100)))
    >>> len(report.kernels), report.proven
    (1, True)
    """
    from genesis.compiler.report import report

    jitted = function if isinstance(function, Jit) else Jit(function)
    recording, sizes = jitted.recording(*args, **kwargs)

    return report(recording.program, recording.places.where, sizes)
