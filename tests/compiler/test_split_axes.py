"""What follows a product behind a reshape: the product is scheduled as it is without one."""

import math

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis.ndarray.tracing.explain import explain


def drawn(*shape):
    return np.random.default_rng(len(shape) + shape[-1]).standard_normal(shape).astype(np.float32)


def heads(a, v):
    joined = nd.swapaxes(a @ v, 1, 2).reshape(2, 30, 96)
    return nd.relu(joined * 2 + 1)


def phases(x, w):
    return nd.relu(nd.conv_transpose2d(x, w, stride=2, padding=1) + 1)


def in_three(x, w):
    y = nd.einsum("abk,kc->abc", x, w)  # 4 x 6, 16
    return nd.exp(nd.transpose(y.reshape(4, 2, 3, 16), (3, 0, 2, 1)).reshape(16, 24))


CASES = {
    "heads": (heads, drawn(2, 3, 30, 40), drawn(2, 3, 40, 32)),
    "phases": (phases, drawn(1, 24, 9, 11), drawn(24, 20, 4, 4)),
    "three digits": (in_three, drawn(4, 6, 33), drawn(33, 16)),
}


def expected(name, x, w):
    if name == "heads":
        joined = np.swapaxes(x.astype(np.float64) @ w, 1, 2).reshape(2, 30, 96)
        return np.maximum(joined * 2 + 1, 0)
    if name == "phases":
        torch = pytest.importorskip("torch")
        y = torch.conv_transpose2d(*(torch.tensor(t).double() for t in (x, w)), None, 2, 1)
        return np.maximum(y.numpy() + 1, 0)
    y = np.einsum("abk,kc->abc", x.astype(np.float64), w).reshape(4, 2, 3, 16)
    return np.exp(y.transpose(3, 0, 2, 1).reshape(16, 24))


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_product(name):
    function, x, w = CASES[name]
    got = genesis.jit(function)(nd.from_numpy(x), nd.from_numpy(w)).numpy()
    np.testing.assert_allclose(got, expected(name, x, w), rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["heads", "phases"])
def test_the_sum_has_tiles(name):
    """Without axes for digits every element would be summed by itself."""
    function, x, w = CASES[name]
    text = str(explain(function, nd.from_numpy(x), nd.from_numpy(w)))
    assert "//" not in text and "%" not in text
    assert "acc0[" in text


def test_a_formula_behind_a_product_may_be_made_of_formulas():
    """What it is given is computed where it is called, and not once more inside."""
    x, w = drawn(40, 64), drawn(64, 96)
    scale, shift = drawn(96) + 2, drawn(96)

    def function(x, w, scale, shift):
        y = (x @ w) * (scale * 0.1 + shift) + nd.tanh(shift)
        return nd.transpose(y * nd.erf(y) + nd.exp(-y * y))

    got = genesis.jit(function)(*map(nd.from_numpy, (x, w, scale, shift))).numpy()
    y = (x.astype(np.float64) @ w) * (scale * 0.1 + shift) + np.tanh(shift)
    erf = np.vectorize(math.erf)(y)
    np.testing.assert_allclose(got, (y * erf + np.exp(-y * y)).T, rtol=1e-3, atol=1e-4)
