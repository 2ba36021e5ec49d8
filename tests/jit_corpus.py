"""Programs that a jitted function and the plain one must run alike: how they are written down.

A program is a function of `jit`, which is `genesis.jit` or `plain`. It builds its state afresh,
calls what it jitted several times, changes things in between, and returns all that can be seen.
`show` turns what is seen into plain data at once, since state changes afterwards.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import genesis
from genesis.ndarray import NDArray
from genesis.ndarray.core.value import CaptureError

Jit = Callable[..., Any]


class Program(NamedTuple):
    """A program by its name, and whether jit may refuse it with an error instead of running it."""

    name: str
    run: Callable[[Jit], Any]
    may_refuse: bool = False


PROGRAMS: dict[str, Program] = {}


def plain(function: Any = None, **options: Any) -> Any:
    """What `genesis.jit` is called like, and leaves the function as it is."""
    return (lambda f: f) if function is None else function


def program(run: Any = None, *, may_refuse: bool = False) -> Any:
    """Add a program under the name of its function."""

    def add(run: Callable[[Jit], Any]) -> Callable[[Jit], Any]:
        add_program(run.__name__, run, may_refuse)
        return run

    return add if run is None else add(run)


def add_program(name: str, run: Callable[[Jit], Any], may_refuse: bool = False) -> None:
    """Add a program under a name of its own."""
    assert name not in PROGRAMS, f"two programs are called {name}"
    PROGRAMS[name] = Program(name, run, may_refuse)


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call gives, or which exception it ends with. A refusal of jit goes on."""
    try:
        return show(function(*args, **kwargs))
    except CaptureError:
        raise
    except Exception as error:
        return "raised", type(error).__name__


def show(x: Any) -> Any:
    """An object as plain data: tensors as (kind, dtype, shape, wants a gradient, contents)."""
    if isinstance(x, genesis.Tensor):
        kind = type(x).__name__
        return kind, str(x.dtype), tuple(x.shape), x.requires_grad, x.detach().tolist()
    if isinstance(x, NDArray):
        return "NDArray", str(x.dtype), tuple(x.shape), x.tolist()
    if isinstance(x, np.ndarray):
        return "ndarray", str(x.dtype), x.shape, x.tolist()
    if isinstance(x, Mapping):
        return type(x).__name__, [(show(k), show(v)) for k, v in x.items()], _fields(x)
    if isinstance(x, set | frozenset):
        return type(x).__name__, sorted(map(repr, x))
    if isinstance(x, tuple | list | deque):
        return type(x).__name__, [show(v) for v in x], getattr(x, "maxlen", None)
    if x is None or isinstance(x, bool | int | float | complex | str | bytes | np.generic):
        return type(x).__name__, x
    if isinstance(x, type) or callable(x) or isinstance(x, genesis.dtype):
        return getattr(x, "__name__", str(x))
    if dataclasses.is_dataclass(x) or hasattr(x, "__dict__"):
        return type(x).__name__, _fields(x)
    return repr(type(x))


def _fields(x: Any) -> Any:
    return [(name, show(v)) for name, v in getattr(x, "__dict__", {}).items()]


def difference(want: Any, got: Any, path: str = "", rtol: float = 1e-6) -> str | None:
    """Where two shown objects differ, in words; None if nowhere.

    Numbers may differ by `rtol` of themselves and 1e-6: a program that computes a whole step may
    fuse a multiplication with an addition where single steps round in between.
    """
    if isinstance(want, float) and isinstance(got, float):
        same = math.isclose(want, got, rel_tol=rtol, abs_tol=1e-6)
        same = same or (math.isnan(want) and math.isnan(got))
        return None if same else f"{path}: {want!r} is {got!r}"
    if type(want) is not type(got):
        return f"{path}: {want!r} is {got!r}"
    if isinstance(want, tuple | list):
        if len(want) != len(got):
            return f"{path}: {len(want)} are {len(got)}: {want!r} is {got!r}"
        for k, (a, b) in enumerate(zip(want, got, strict=True)):
            if found := difference(a, b, f"{path}[{k}]", rtol):
                return found
        return None
    return None if want == got else f"{path}: {want!r} is {got!r}"


def vector(*numbers: float, grad: bool = False) -> genesis.Tensor:
    """A tensor of these numbers."""
    return genesis.tensor([float(n) for n in numbers], requires_grad=grad)


def grad(x: genesis.Tensor) -> Any:
    """The gradient that a tensor holds, as plain data."""
    return show(x.grad)


def weights(module: Any) -> Any:
    """Parameters, buffers and gradients of a module, as plain data."""
    return (
        [(name, p.tolist(), p.requires_grad, grad(p)) for name, p in module.named_parameters()],
        [(name, b.tolist()) for name, b in module.named_buffers()],
    )
