"""Gradients against differences: right ones pass, and a wrong one is named."""

from typing import Any

import numpy as np
import pytest

import genesis
from genesis import functional
from genesis.autograd import Function, GradcheckError, gradcheck, gradgradcheck
from genesis.tensor.tensor import Tensor


def _tensor(*values: Any) -> Tensor:
    return Tensor(np.array(values), True)


X = _tensor([0.3, -1.2], [0.7, 2.1])
P = _tensor(0.4, 1.3, 2.6)
C = _tensor(0.3 + 0.4j, -1.2 + 0.1j)


def test_functions_without_a_second_opinion() -> None:
    """Bessel functions and others for which PyTorch has no derivative."""
    special = functional.special
    for function in (special.bessel_j0, special.bessel_j1, special.bessel_y0, special.bessel_y1):
        assert gradcheck(function, P)
        assert gradgradcheck(function, P)
    order = Tensor(np.array([2.0, 3.0, 4.5]))
    assert gradcheck(lambda q: special.zeta(order, q), P)
    assert gradgradcheck(special.i0e, P, atol=1e-4)
    assert gradgradcheck(functional.prod, _tensor(0.0, 2.0, -1.0))
    assert gradgradcheck(lambda x: functional.cumprod(x, 0), _tensor(0.0, 2.0, 0.0, 3.0))
    assert gradgradcheck(lambda x: functional.cdist(x, x + 1), X, atol=1e-4)


def test_several_inputs_and_results() -> None:
    y = _tensor(0.5, -0.7)
    assert gradcheck(lambda a, b, n: (a @ b, (a * n).sum(0)), (X, y, 3))
    assert gradgradcheck(lambda a, b: functional.linalg.solve(a, b), (X, y))


def test_complex() -> None:
    assert gradcheck(lambda z: z * z.conj() + functional.exp(z), C)
    assert gradcheck(functional.abs, C)
    assert gradgradcheck(functional.angle, C)
    assert gradcheck(lambda z: functional.cumprod(z, 0), C)


class _Wrong(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * functional.where(x > 2, 3 * x, 2 * x)


def test_a_wrong_gradient_is_named() -> None:
    assert not gradcheck(_Wrong.apply, X, raise_exception=False)
    message = r"output 0\[1, 1\] by input 0\[1, 1\] is 6\.3, but differences give 4\.2; 1 of 16"
    with pytest.raises(GradcheckError, match=message):
        gradcheck(_Wrong.apply, X)


def test_what_cannot_be_checked() -> None:
    with pytest.raises(ValueError, match="none of the inputs"):
        gradcheck(genesis.exp, Tensor(np.ones(2)))
    with pytest.warns(UserWarning, match="input 0 is float32"):
        gradcheck(genesis.neg, Tensor(np.ones(2, np.float32), True), eps=1e-2)
