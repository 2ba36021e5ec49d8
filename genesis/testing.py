"""Comparisons for tests, by the names PyTorch has for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from genesis.tensor.creation import as_tensor
from genesis.tensor.tensor import Tensor

#: Tolerances, relative and absolute, of types that round.
_NEAR = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7), "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}  # fmt: skip


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: str | None = None,
) -> None:
    """Raise an AssertionError unless tensors, numbers, or lists and dictionaries of them are close.

    What is too far apart is told in the message. Tolerances are those of the type unless given.

    >>> import genesis
    >>> assert_close(genesis.tensor([1.0, 2.0]), genesis.tensor([1.0, 2.0 + 1e-6]))
    """
    if (rtol is None) != (atol is None):
        raise ValueError("assert_close: give both rtol and atol, or neither")
    options: dict[str, Any] = {
        "rtol": rtol, "atol": atol, "equal_nan": equal_nan, "check_device": check_device,
        "check_dtype": check_dtype, "check_stride": check_stride, "msg": msg,
    }  # fmt: skip
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        _demand(actual.keys() == expected.keys(), f"keys {[*actual]} and {[*expected]}", msg)
        for key in expected:
            assert_close(actual[key], expected[key], **options)
        return
    if isinstance(actual, Sequence) and isinstance(expected, Sequence):
        _demand(len(actual) == len(expected), f"{len(actual)} and {len(expected)} items", msg)
        for x, y in zip(actual, expected, strict=True):
            assert_close(x, y, **options)
        return
    numbers = not isinstance(actual, Tensor) or not isinstance(expected, Tensor)
    x, y = (z.detach() if isinstance(z, Tensor) else as_tensor(z) for z in (actual, expected))
    _demand(x.shape == y.shape, f"shapes {tuple(x.shape)} and {tuple(y.shape)}", msg)
    _demand(not check_device or x.device == y.device, f"devices {x.device} and {y.device}", msg)
    same = numbers or not check_dtype or x.dtype is y.dtype
    _demand(same, f"types {x.dtype} and {y.dtype}", msg)
    _demand(
        not check_stride or x.stride() == y.stride(), f"strides {x.stride()}, {y.stride()}", msg
    )
    least = (_NEAR.get(str(z.dtype), (0.0, 0.0)) for z in (x, y))
    usual = tuple(map(max, zip(*least, strict=True)))
    rtol, atol = usual if rtol is None else (rtol, atol)
    ours, theirs = (_wide(z) for z in (x, y))
    near = np.isclose(ours, theirs, rtol, atol, equal_nan)
    if near.all():
        return
    with np.errstate(invalid="ignore"):
        distance = np.where(near, 0, np.abs(ours - theirs))
    at = tuple(int(i) for i in np.unravel_index(int(np.nanargmax(distance)), distance.shape))
    _demand(
        False,
        f"{int((~near).sum())} of {near.size} elements: the farthest, at {at}, are {ours[at]} and "
        f"{theirs[at]} (allowed: {rtol} relative, {atol} absolute)",
        msg,
    )


def _wide(x: Tensor) -> Any:
    array = x.numpy() if x.dtype.is_complex or not x.dtype.is_float else x.double().numpy()
    return array.astype(np.int64) if array.dtype == bool else array


def _demand(holds: bool, what: str, msg: str | None) -> None:
    if not holds:
        raise AssertionError(f"not close: {what}" if msg is None else msg)


__all__ = ["assert_close"]
