"""Complex numbers: their parts, sizes and directions.

The gradient of a real result with respect to z = x + iy is that of x plus i times that of y: the
direction of steepest ascent.
"""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import conj, mul, where
from genesis.functional.function import plain, with_gradient
from genesis.functional.movement import moved
from genesis.functional.registry import method


@method(as_property=True)
def real(input: Any) -> Any:
    """The real part, a view; a real tensor is its own."""
    return moved(nd.real, input) if input.dtype.is_complex else input


@method(as_property=True)
def imag(input: Any) -> Any:
    """The imaginary part of complex numbers, a view."""
    if not input.dtype.is_complex:
        raise TypeError(f"imag: needs complex numbers, not {input.dtype}")
    return moved(nd.imag, input)


@with_gradient(lambda grad: (real(grad), imag(grad)))
def complex(real: Any, imag: Any) -> Any:
    """The complex numbers with these real and imaginary parts."""
    if real.dtype is not imag.dtype or not real.dtype.is_float:
        raise TypeError(f"complex: needs one floating-point type, not {real.dtype}, {imag.dtype}")
    return nd.complex(real, imag)


def polar(abs: Any, angle: Any) -> Any:
    """The complex numbers of these sizes and angles."""
    from genesis.functional.elementary import cos, sin

    return complex(abs * cos(angle), abs * sin(angle))


def view_as_real(input: Any) -> Any:
    """Both parts of complex numbers along a new last dimension: a view."""
    return moved(nd.view_as_real, input)


def view_as_complex(input: Any) -> Any:
    """A last dimension of two as the parts of complex numbers: a view."""
    return moved(nd.view_as_complex, input)


def _angle(grad: Any, input: Any) -> Any:
    if not input.dtype.is_complex:
        return plain(nd.zeros_like, input)
    zero = plain(nd.equal, input, 0)
    return where(zero, 0.0, mul(grad, 1j) / conj(where(zero, 1.0, input)))


@method
@with_gradient(_angle)
def angle(input: Any) -> Any:
    """The angle to the positive real axis, from -pi to pi; of real numbers 0 or pi."""
    return nd.angle(input)


def _across(grad: Any, z: Any, result: Any) -> Any:
    from genesis.functional.elementary import abs

    zero = plain(nd.equal, z, 0)
    across = grad - result * real(conj(result) * grad)
    return where(zero, 0.0, across / abs(where(zero, 1.0, z)))


@with_gradient(_across)
def _sgn(z: Any) -> Any:
    return nd.sgn(z)


@method(in_place=True)
def sgn(input: Any) -> Any:
    """The number of size 1 in the same direction, 0 for 0; of real numbers the sign."""
    from genesis.functional.rounding_and_remainders import sign

    return _sgn(input) if input.dtype.is_complex else sign(input)


def is_complex(input: Any) -> bool:
    """Whether the dtype is a complex one."""
    return bool(input.dtype.is_complex)


@method
def isreal(input: Any) -> Any:
    """Whether the imaginary part is zero."""
    return plain(nd.isreal, input)


@method(in_place=True)
def conj_physical(input: Any) -> Any:
    """`conj`, which PyTorch may also leave to whoever reads the result."""
    return conj(input)


__all__ = [
    "angle", "complex", "conj_physical", "imag", "is_complex", "isreal", "polar", "real", "sgn",
    "view_as_complex", "view_as_real",
]  # fmt: skip
