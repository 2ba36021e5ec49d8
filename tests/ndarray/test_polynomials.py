"""Orthogonal polynomials: values against PyTorch, derivatives against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy import polynomial

import genesis
from genesis import ndarray as nd
from genesis.functional import polynomials, special

#: Zero, the ends of the interval, and beyond them.
POINTS = np.array([0.0, 1.0, -1.0, 0.5, -0.3, 1.7, -2.5, 3.0])
DEGREES = (-1, 0, 1, 2, 5, 9)
KINDS: dict[str, Any] = {
    "chebyshev_polynomial_t": polynomial.Chebyshev,
    "hermite_polynomial_h": polynomial.Hermite,
    "hermite_polynomial_he": polynomial.HermiteE,
    "laguerre_polynomial_l": polynomial.Laguerre,
    "legendre_polynomial_p": polynomial.Legendre,
}


def test_values() -> None:
    pairs = [
        (getattr(special, name)(nd.array(POINTS), n), getattr(torch.special, name), n)
        for name in polynomials.__all__
        for n in DEGREES
    ]
    nd.realize(*(ours for ours, _, _ in pairs))
    for ours, theirs, n in pairs:
        expected = theirs(torch.tensor(POINTS), n).numpy()
        np.testing.assert_allclose(ours.numpy(), expected, 1e-11, 1e-11, err_msg=theirs.__name__)


def test_derivatives() -> None:
    for name, kind in KINDS.items():
        x = genesis.tensor(POINTS, requires_grad=True)
        sum(getattr(special, name)(x, n).sum() for n in (1, 4, 7)).backward()  # type: ignore[attr-defined]
        expected = sum(kind.basis(n).deriv()(POINTS) for n in (1, 4, 7))
        np.testing.assert_allclose(x.grad.numpy(), expected, 1e-10, err_msg=name)  # type: ignore[union-attr]


def test_types() -> None:
    whole = special.legendre_polynomial_p(genesis.tensor([2, 3]), 2)
    assert whole.dtype is genesis.float32
    assert whole.tolist() == [5.5, 13.0]
    several = special.legendre_polynomial_p(genesis.tensor([2.0, 3.0]), genesis.tensor([2, 1]))
    assert several.tolist() == [5.5, 3.0]


def test_spherical_bessel() -> None:
    x = np.array([0.0, 1e-9, -0.5, 3.0, 40.0])
    t = genesis.tensor(x, requires_grad=True)
    y = special.spherical_bessel_j0(t)
    y.sum().backward()
    expected = torch.special.spherical_bessel_j0(torch.tensor(x)).numpy()
    np.testing.assert_allclose(y.detach().numpy(), expected, 1e-14)
    slope = [0.0, *((np.cos(x[1:]) - expected[1:]) / x[1:])]
    np.testing.assert_allclose(t.grad.numpy(), slope, 1e-9, 1e-6)  # type: ignore[union-attr]
