"""What a tensor looks like as text: as it does in PyTorch.

All elements of a tensor are written in one form: integers, decimals with so many digits, or powers
of ten where magnitudes differ too much. Of a large tensor only the corners are fetched and shown.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from genesis.ir.dtype import FOREIGN, bool_, int64
from genesis.ir.size import Size
from genesis.ndarray import NDArray, concat
from genesis.ndarray.core.value import thread

if TYPE_CHECKING:
    from genesis.tensor.tensor import Tensor


@dataclass(frozen=True)
class PrintOptions:
    """How tensors are written."""

    precision: int = 4  #: digits after the point
    threshold: int = 1000  #: beyond this many elements only the corners are shown
    edgeitems: int = 3  #: how many of them at each end
    linewidth: int = 80
    sci_mode: bool | None = None  #: powers of ten; None: where magnitudes differ too much


PROFILES = {
    "default": PrintOptions(),
    "short": PrintOptions(precision=2, edgeitems=2),
    "full": PrintOptions(threshold=sys.maxsize),
}


class _Current:
    options = PrintOptions()


def set_printoptions(**changes: Any) -> None:
    """Change how tensors are written: see `PrintOptions`; a `profile` sets all of them.

    >>> import genesis
    >>> genesis.set_printoptions(precision=2)
    >>> genesis.tensor([1 / 3])
    tensor([0.33])
    >>> genesis.set_printoptions(precision=4)
    """
    profile = changes.pop("profile", None)
    if profile not in (None, *PROFILES):
        raise ValueError(f"set_printoptions: profile is one of {sorted(PROFILES)}, not {profile!r}")
    known = {field.name for field in fields(PrintOptions)}
    unknown = sorted(set(changes) - known)
    if unknown:
        raise TypeError(f"set_printoptions: {unknown} are none of {['profile', *sorted(known)]}")
    before = _Current.options if profile is None else PROFILES[profile]
    _Current.options = replace(before, **{"sci_mode": None, **changes})


def show(x: Tensor) -> str:
    """The text of a tensor."""
    options = _Current.options
    prefix = "tensor("
    known = thread.recorder is None and not any(isinstance(s, Size) for s in x.shape)
    notes = [] if x.device == "cpu" else [f"device='{x.device}'"]
    if not known:
        body = "..."
        notes += [f"size={tuple(x.shape)}", f"dtype={x.dtype}"]
    else:
        if x.numel() == 0:
            body = "[]"
            if len(x.shape) != 1:
                notes.append(f"size={tuple(x.shape)}")
        else:
            body = _contents(x.array, len(prefix), options)
        if x.dtype not in _unsaid() or (x.numel() == 0 and not x.dtype.is_float):
            notes.append(f"dtype={x.dtype}")
    if x.grad_fn is not None:
        notes.append(f"grad_fn={x.grad_fn}")
    elif x.requires_grad:
        notes.append("requires_grad=True")
    return prefix + _with_notes(body, notes, len(prefix), options.linewidth) + ")"


def _unsaid() -> tuple[Any, ...]:
    """The dtypes that go without saying."""
    from genesis.tensor.creation import get_default_dtype

    default = get_default_dtype()
    return default, default.complex, int64, bool_


def _with_notes(body: str, notes: list[str], indent: int, width: int) -> str:
    """Notes after the contents, on a new line where one gets too long."""
    column = len(body) - body.rfind("\n") - 1 + (indent if "\n" not in body else 0)
    for note in notes:
        if column + len(note) + 2 > width:
            body += ",\n" + " " * indent + note
            column = indent + len(note)
        else:
            body += ", " + note
            column += len(note) + 2
    return body


def _contents(array: NDArray, indent: int, options: PrintOptions) -> str:
    edge = options.edgeitems
    shortened = array.size > options.threshold
    cuts = tuple(shortened and extent > 2 * edge for extent in array.shape)
    for axis, cut in enumerate(cuts):
        if cut:
            before = (slice(None),) * axis
            ends = [array[(*before, slice(None, edge))], array[(*before, slice(-edge, None))]]
            array = concat(ends, axis)
    values = np.asarray(array.numpy())
    if array.dtype in FOREIGN:
        values = values.astype(np.float32)
    write, width = _form(values, options)
    if values.ndim == 0:
        return write(values.item())
    return _nested(values, cuts, write, width, indent, options)


def _nested(
    values: Any,
    cuts: tuple[bool, ...],
    write: Callable[[Any], str],
    width: int,
    indent: int,
    options: PrintOptions,
) -> str:
    """Nested brackets, the innermost broken into lines."""
    if values.ndim == 1:
        parts = [write(v) for v in values.tolist()]
        gap, dots = "", " ..."
    else:
        parts = [_nested(row, cuts[1:], write, width, indent + 1, options) for row in values]
        gap, dots = "," + "\n" * (values.ndim - 1) + " " * (indent + 1), "..."
    if cuts[0]:
        parts.insert(options.edgeitems, dots)
    if gap:
        return "[" + gap.join(parts) + "]"
    each = max(1, (options.linewidth - indent) // (width + 2))
    lines = [", ".join(parts[k : k + each]) for k in range(0, len(parts), each)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _form(values: Any, options: PrintOptions) -> tuple[Callable[[Any], str], int]:
    """How to write every element, and how wide that is."""
    if values.dtype.kind == "c":
        real, left = _form(values.real, options)
        imag, right = _form(values.imag, options)

        def write(v: Any) -> str:
            first, second = real(v.real), imag(v.imag).strip()
            return f"{first}{'' if second.startswith('-') else '+'}{second}j"

        return write, left + right + 1
    if values.dtype.kind != "f":
        width = max(len(str(v)) for v in values.ravel().tolist())
        return lambda v: str(v).rjust(width), width
    # Infinities, NaN and zeros take the form of the others and do not decide about it.
    finite = values[np.isfinite(values) & (values != 0)].astype(np.float64)
    text = _decimal(np.abs(finite), options)
    width = max((len(text(v)) for v in finite.tolist()), default=1)
    return lambda v: text(v).rjust(width), width


def _decimal(sizes: Any, options: PrintOptions) -> Callable[[float], str]:
    """How to write floats of the given magnitudes."""
    digits = options.precision
    if sizes.size == 0:
        return lambda v: f"{v:.0f}." if math.isfinite(v) else str(v)
    least, most = float(sizes.min()), float(sizes.max())
    whole = bool((sizes == np.ceil(sizes)).all())
    powers = most / least > 1000 or most > 1e8 or (not whole and least < 1e-4)
    if options.sci_mode is not None:
        powers = options.sci_mode
    if powers:
        return lambda v: f"{v:.{digits}e}" if math.isfinite(v) else str(v)
    if whole:
        return lambda v: f"{v:.0f}." if math.isfinite(v) else str(v)
    return lambda v: f"{v:.{digits}f}" if math.isfinite(v) else str(v)


__all__ = ["PrintOptions", "set_printoptions", "show"]
