"""Functions of JAX as modules: the same numbers, and the same gradients."""

import numpy as np
import pytest

import genesis

pytest.importorskip("jax.numpy")
import jax
import jax.numpy as jnp
from jax import lax

RNG = np.random.default_rng(0)


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def mlp(parameters, x):
    for w, b in parameters[:-1]:
        x = jax.nn.gelu(x @ w + b, approximate=False)
    w, b = parameters[-1]
    return jax.nn.log_softmax(x @ w + b)


def attention(q, k, v):
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
    return jnp.einsum("bhts,bshd->bthd", weights, v)


def convnet(x, w, v):
    y = jax.nn.relu(lax.conv_general_dilated(x, w, (2, 1), "SAME", rhs_dilation=(1, 2)))
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return lax.conv_transpose(y, v, (2, 2), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))


def recurrent(w, xs):
    def step(h, x):
        h = jnp.tanh(w @ h + x)
        return h, h * 2

    return lax.scan(step, jnp.zeros(w.shape[0]), xs)


def newton(x):
    return lax.while_loop(lambda s: abs(s**2 - x) > 1e-3, lambda s: (s + x / s) / 2, x)


def picked(x, i):
    y = x[i] + x[:, 1][i][:, None] + jnp.take_along_axis(x, x.argsort(1), 1)[i]
    return y, x.at[i, 1].add(2.0), x.at[i].set(-1.0, mode="drop"), x.at[1:3, ::2].multiply(3.0)


def sorted_things(x):
    values, places = lax.top_k(x, 2)
    places = places, jnp.argmax(x, 1), jnp.argmin(x)
    return jnp.sort(x, 0), values, places, jnp.cumsum(x, 1), jnp.sort(x, descending=True)


def integers(x, y):
    return x // y, x % y, lax.div(x, y), lax.rem(x, y), x << 2, x >> 1, x ^ y, x << 40


def shapes(x):
    y = jnp.pad(x, ((1, 2), (0, 1)), constant_values=7.0)
    z = lax.pad(x, 0.5, ((-1, 2, 1), (0, -1, 0)))
    part = lax.dynamic_slice(x, (5, 1), (2, 2))
    changed = lax.dynamic_update_slice(x, part, (0, 1))
    return y, z, jnp.concatenate([x, x[::-1]], 1), part, changed, x.T.reshape(-1)


def branches(i, x):
    either = lax.cond(i > 1, lambda x: x * 2, lambda x: x - 1, x)
    return either, lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x)


def random(key, x):
    return x + jax.random.normal(key, x.shape), jax.random.randint(key, (3,), 0, 10)


def elementwise(x):
    y = jnp.abs(x) + 0.1
    return (
        jnp.expm1(x), jnp.log1p(y), jnp.sinh(x), lax.erf(x), lax.rsqrt(y), lax.cbrt(x),
        jnp.round(x), jnp.sign(x), jnp.floor(x), x**3, jnp.arctan2(x, y), jnp.isfinite(x),
        x.astype(jnp.int32), jnp.clip(x, -0.5, 0.5), jax.lax.logistic(x), jax.lax.lgamma(y),
        jnp.asarray(x, jnp.bfloat16).astype(jnp.float32), jnp.linalg.norm(x, axis=-1),
    )  # fmt: skip


def spectra(x):
    y = jnp.fft.rfft(x, n=5) * (2 + 1j)
    return jnp.abs(y), jnp.fft.irfft(y, n=5), jnp.fft.ifft(jnp.fft.fft2(x)).real


INDEX = np.array([2, 0, 3, 2], np.int32)
CASES = [
    (mlp, ([(drawn(5, 8), drawn(8)), (drawn(8, 3), drawn(3))], drawn(4, 5))),
    (attention, (drawn(2, 6, 2, 4), drawn(2, 6, 2, 4), drawn(2, 6, 2, 4))),
    (convnet, (drawn(2, 3, 12, 9), drawn(4, 3, 3, 3), drawn(5, 4, 2, 2))),
    (recurrent, (drawn(4, 4), drawn(7, 4))),
    (picked, (drawn(5, 5), INDEX)),
    (sorted_things, (drawn(4, 6),)),
    (integers, (np.array([7, -7, 8, -9], np.int32), np.array([2, 3, -3, -4], np.int32))),
    (shapes, (drawn(4, 3),)),
    (branches, (np.int32(2), drawn(3))),
    (random, (np.array([1, 2], np.uint32), drawn(3, 2))),
    (elementwise, (drawn(3, 4),)),
    (spectra, (drawn(3, 4),)),
]  # fmt: skip


def same(found, expected):
    found, tree = jax.tree_util.tree_flatten(found, is_leaf=lambda x: isinstance(x, genesis.Tensor))
    expected, other = jax.tree_util.tree_flatten(expected)
    assert tree == other
    for a, b in zip(found, expected, strict=True):
        b = np.asarray(b)
        assert tuple(a.shape) == b.shape and str(a.dtype).removeprefix("genesis.") == str(b.dtype)
        np.testing.assert_allclose(a.numpy(), b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("function", "args"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_functions(function, args):
    module = genesis.from_jax(function, *args)
    expected = jax.jit(function)(*args)
    with genesis.no_grad():
        same(module(*args), expected)
        tensors = jax.tree_util.tree_map(lambda x: genesis.tensor(np.asarray(x)), args)
        same(genesis.jit(module)(*tensors), expected)


def test_gradients():
    args = drawn(2, 6, 2, 4), drawn(2, 6, 2, 4), drawn(2, 6, 2, 4)
    module = genesis.from_jax(attention, *args)
    tensors = [genesis.from_numpy(x).requires_grad_() for x in args]
    module(*tensors).square().sum().backward()
    wanted = jax.grad(lambda *a: (attention(*a) ** 2).sum(), (0, 1, 2))(*args)
    for tensor, gradient in zip(tensors, wanted, strict=True):
        np.testing.assert_allclose(tensor.grad.numpy(), gradient, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_jax_is_a_function_like_any_other():
    loss = jax.grad(lambda p, x: mlp(p, x)[:, 0].sum())
    args = CASES[0][1]
    with genesis.no_grad():
        same(genesis.from_jax(loss, *args)(*args), loss(*args))


def test_loops_that_ask_for_their_condition():
    with genesis.no_grad():
        same(genesis.from_jax(newton, np.float32(2))(np.float32(2)), newton(np.float32(2)))


def test_what_is_wrong_is_said():
    module = genesis.from_jax(lambda x, y: x + y, drawn(2), drawn(2))
    with pytest.raises(ValueError, match="takes"):
        module(drawn(2))
    with pytest.raises(ValueError, match=r"\(3,\)"):
        module(drawn(3), drawn(2))
    with pytest.raises(NotImplementedError, match=r"library|lapack"):
        genesis.from_jax(jnp.linalg.cholesky, np.eye(3, dtype=np.float32))(np.eye(3, dtype="f"))
