"""Complex numbers: their parts, sizes and directions.

The gradient of a real result with respect to z = x + iy is that of x plus i times that of y: the
direction of steepest ascent.
"""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import conj, mul, where
from genesis.functional.function import Function, plain
from genesis.functional.registry import method


class Real(Function):
    """The real part."""

    @staticmethod
    def forward(ctx: Any, z: Any) -> Any:
        return nd.real(z)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad  # made complex where it arrives


@method(as_property=True)
def real(input: Any) -> Any:
    """The real part; a real tensor is its own."""
    return Real.apply(input) if input.dtype.is_complex else input


class Imag(Function):
    """The imaginary part."""

    @staticmethod
    def forward(ctx: Any, z: Any) -> Any:
        return nd.imag(z)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return mul(grad, 1j)


@method(as_property=True)
def imag(input: Any) -> Any:
    """The imaginary part of complex numbers."""
    if not input.dtype.is_complex:
        raise TypeError(f"imag: needs complex numbers, not {input.dtype}")
    return Imag.apply(input)


class Complex(Function):
    """Complex numbers of two parts."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        return nd.complex(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return real(grad), imag(grad)


def complex(real: Any, imag: Any) -> Any:
    """The complex numbers with these real and imaginary parts."""
    if real.dtype is not imag.dtype or not real.dtype.is_float:
        raise TypeError(f"complex: needs one floating-point type, not {real.dtype}, {imag.dtype}")
    return Complex.apply(real, imag)


def polar(abs: Any, angle: Any) -> Any:
    """The complex numbers of these sizes and angles."""
    from genesis.functional.elementary import cos, sin

    return complex(abs * cos(angle), abs * sin(angle))


class ViewAsReal(Function):
    """Both parts along a new last dimension."""

    @staticmethod
    def forward(ctx: Any, z: Any) -> Any:
        return nd.view_as_real(z)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return view_as_complex(grad)


def view_as_real(input: Any) -> Any:
    """Both parts of complex numbers along a new last dimension."""
    return ViewAsReal.apply(input)


class ViewAsComplex(Function):
    """Pairs along the last dimension as complex numbers."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return nd.view_as_complex(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return view_as_real(grad)


def view_as_complex(input: Any) -> Any:
    """A last dimension of two as the parts of complex numbers."""
    return ViewAsComplex.apply(input)


class Angle(Function):
    """The angle to the positive real axis."""

    @staticmethod
    def forward(ctx: Any, z: Any) -> Any:
        ctx.save_for_backward(z)
        return nd.angle(z)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (z,) = ctx.saved_tensors
        if not z.dtype.is_complex:
            return plain(nd.zeros_like, z)
        zero = plain(nd.equal, z, 0)
        return where(zero, 0.0, mul(grad, 1j) / conj(where(zero, 1.0, z)))


@method
def angle(input: Any) -> Any:
    """The angle to the positive real axis, from -pi to pi; of real numbers 0 or pi."""
    return Angle.apply(input)


class Sgn(Function):
    """The direction of complex numbers."""

    @staticmethod
    def forward(ctx: Any, z: Any) -> Any:
        result = nd.sgn(z)
        ctx.save_for_backward(z, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        from genesis.functional.elementary import abs

        z, direction = ctx.saved_tensors
        zero = plain(nd.equal, z, 0)
        across = grad - direction * real(conj(direction) * grad)
        return where(zero, 0.0, across / abs(where(zero, 1.0, z)))


@method(in_place=True)
def sgn(input: Any) -> Any:
    """The number of size 1 in the same direction, 0 for 0; of real numbers the sign."""
    from genesis.functional.rounding import sign

    return Sgn.apply(input) if input.dtype.is_complex else sign(input)


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
