"""Transforms against `torch.func`: the same function of both libraries' tensors."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import func

RNG = np.random.default_rng(0)
X, W, Y = (RNG.standard_normal(shape).astype(np.float32) for shape in ((5, 3), (3, 4), (5, 4)))
ROWS = np.array([[2, 0, 1], [0, 0, 2], [1, 1, 1], [2, 1, 0], [0, 2, 2]])


def same(x: Any, y: Any, tolerance: float = 1e-4) -> None:
    """Whether results have the same structure, shapes and numbers."""
    if isinstance(y, tuple | list):
        assert len(x) == len(y)
        for a, b in zip(x, y, strict=True):
            same(a, b, tolerance)
    elif isinstance(y, dict):
        assert x.keys() == y.keys()
        same(list(x.values()), [y[name] for name in x], tolerance)
    else:
        np.testing.assert_allclose(x.detach().numpy(), np.asarray(y.detach()), tolerance, tolerance)
        assert tuple(x.shape) == tuple(y.shape)


def assigned(z: Any, x: Any) -> Any:
    z[:2] = x[1:]
    z[2] += 1
    return z


def loss(w: Any, x: Any, y: Any) -> Any:
    return ((x @ w).tanh() - y).square().sum()


Case = Callable[..., Any]  # of a library, of its transforms, and of arrays as its tensors

CASES: dict[str, Case] = {
    "grad": lambda m, f, x: f.grad(lambda x: (x.sin() * x).sum())(x),
    "grad of grad": lambda m, f, x: f.grad(
        lambda x: f.grad(lambda y: (x * y * y).sum())(x).sin().sum()
    )(x),
    "grad, dictionary": lambda m, f, x, w: f.grad(lambda p: (p["a"] @ p["b"]).sin().sum())(
        {"a": x, "b": w}
    ),
    "grad, argnums": lambda m, f, x, w: f.grad(lambda a, b: (a @ b).sin().sum(), (0, 1))(x, w),
    "grad, aux": lambda m, f, x: f.grad(lambda x: (x.sum(), x * 2), has_aux=True)(x),
    "grad, unused": lambda m, f, x, w: f.grad(lambda a, b: a.sum(), (0, 1))(x, w),
    "vjp": lambda m, f, x: f.vjp(lambda x: x.sin() * x, x)[1](x.cos()),
    "vjp of grad": lambda m, f, x: f.vjp(f.grad(lambda x: (x.sin() * x).sum()), x)[1](x),
    "jvp": lambda m, f, x: f.jvp(lambda x: x.sin() * x, (x,), (x.cos(),)),
    "jvp of jvp": lambda m, f, x: f.jvp(
        lambda x: f.jvp(lambda x: x.sin() * x, (x,), (x.cos(),))[1], (x,), (x,)
    ),
    "jvp of grad": lambda m, f, x: f.jvp(f.grad(lambda x: (x.sin() * x).sum()), (x,), (x,)),
    "jacrev": lambda m, f, x: f.jacrev(lambda x: x.sin() * x.sum(0))(x),
    "jacfwd": lambda m, f, x: f.jacfwd(lambda x: x.sin() * x.sum(0))(x),
    "jacrev, several": lambda m, f, x, w: f.jacrev(
        lambda a, b: ((a @ b).sin(), a.sum(0)), (1, 0)
    )(x, w),
    "jacfwd, several": lambda m, f, x, w: f.jacfwd(
        lambda a, b: ((a @ b).sin(), a.sum(0)), (1, 0)
    )(x, w),
    "jacrev of jacfwd": lambda m, f, x: f.jacrev(f.jacfwd(lambda x: x.sin() * x[0]))(x[0]),
    "jacfwd of jacrev": lambda m, f, x: f.jacfwd(f.jacrev(lambda x: (x.sin() * x[0]).sum()))(x[0]),
    "hessian": lambda m, f, x: f.hessian(lambda x: (x.sin() * x.sum(0)).prod())(x),
    "hessian, several": lambda m, f, x, w: f.hessian(
        lambda a, b: (a @ b).sin().sum(), (1, 0)
    )(x, w),
    "vmap": lambda m, f, x, w: f.vmap(lambda x: (x @ w).tanh())(x),
    "vmap, dims": lambda m, f, x, w: f.vmap(lambda x: x.sum() * w, in_dims=-1, out_dims=-2)(x),
    "vmap, nested dims": lambda m, f, x, w: f.vmap(
        lambda p, k: (p["w"] * k, p["x"][0]), in_dims=({"w": 1, "x": None}, 0), out_dims=(1, 0)
    )({"w": w, "x": x}, w.T),
    "vmap, chunks": lambda m, f, x, w: f.vmap(
        lambda x: (x @ w).tanh(), chunk_size=2, out_dims=1
    )(x),
    "vmap, shared result": lambda m, f, x, w: f.vmap(lambda x: (w * 2, x))(x),
    "vmap of vmap": lambda m, f, x, w: f.vmap(lambda a: f.vmap(lambda b: a @ b, in_dims=1)(w))(x),
    "vmap of grad": lambda m, f, x, w, y: f.vmap(f.grad(loss), in_dims=(None, 0, 0))(w, x, y),
    "vmap of jvp": lambda m, f, x, w: f.vmap(
        lambda x, t: f.jvp(lambda x: (x @ w).tanh(), (x,), (t,))[1]
    )(x, x.cos()),
    "vmap of jacrev": lambda m, f, x: f.vmap(f.jacrev(lambda x: m.softmax(x, 0)))(x),
    "vmap of hessian": lambda m, f, x: f.vmap(f.hessian(lambda x: m.logsumexp(x, 0)))(x),
    "grad of vmap": lambda m, f, x, w, y: f.grad(
        lambda w: (f.vmap(lambda x, y: loss(w, x, y))(x, y) ** 2).sum()
    )(w),
    "grad of grad of vmap": lambda m, f, x, w, y: f.grad(
        lambda w: f.grad(lambda w: (f.vmap(lambda x, y: loss(w, x, y))(x, y) ** 2).sum())(w)
        .square()
        .sum()
    )(w),
    "in place": lambda m, f, x: f.vmap(lambda x: x.clone().mul_(2).add_(x).sin_())(x),
    "in place, parts": lambda m, f, x: f.vmap(lambda x: assigned(m.zeros_like(x), x))(x),
    "in place, gradient": lambda m, f, x: f.vmap(
        f.grad(lambda x: assigned(x.clone(), x).square().sum())
    )(x),
    "index": lambda m, f, x, i: f.vmap(lambda x, i: x[i])(x, i),
    "index of one": lambda m, f, x, i: f.vmap(lambda x, i: x[i], in_dims=(0, None))(x, i[0]),
    "index into one": lambda m, f, x, i: f.vmap(lambda i: x[i] * 2)(i),
    "index of columns": lambda m, f, x, i: f.vmap(lambda r, i: m.outer(r, r)[:, i])(x, i),
    "gather": lambda m, f, x, i: f.vmap(lambda x, i: m.gather(x, 0, i))(x, i),
    "scatter": lambda m, f, x, i: f.vmap(lambda x, i: m.zeros(4).scatter_add(0, i, x))(x, i),
    "scatter, columns": lambda m, f, x, i: f.vmap(
        lambda x, i: m.zeros(2, 4).index_add(1, i, m.stack([x, -x]))
    )(x, i),
    "sort": lambda m, f, x: f.vmap(lambda x: m.sort(x)[0])(x),
    "topk": lambda m, f, x: f.vmap(lambda x: m.topk(x, 2)[1])(x),
    "cumsum": lambda m, f, x: f.vmap(lambda x: m.cumsum(x, 0))(x),
    "solve": lambda m, f, x: f.vmap(
        lambda x: m.linalg.solve(m.outer(x, x) + m.eye(3), x)
    )(x),
    "fft": lambda m, f, x: f.vmap(lambda x: m.fft.rfft(x).abs())(x),
    "pad": lambda m, f, x: f.vmap(lambda x: m.nn.functional.pad(x, (1, 2), value=3.0))(x),
    "conv": lambda m, f, x, w: f.vmap(
        lambda r: m.nn.functional.conv1d(x[None, :, :], r.expand(1, 5, 3), padding=1)
    )(x),
    "numbers of their own": lambda m, f, x: f.vmap(lambda a: a * 2 + 1)(x[:, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_transform_is_that_of_pytorch(name: str) -> None:
    case: Any = CASES[name]
    count = case.__code__.co_argcount - 2
    names = case.__code__.co_varnames[2 : 2 + count]
    arrays = [{"x": X, "w": W, "y": Y, "i": ROWS}[n] for n in names]

    def run(module: ModuleType, transforms: ModuleType, tensor: Callable[..., Any]) -> Any:
        return case(module, transforms, *map(tensor, arrays))

    same(run(genesis, func, genesis.tensor), run(torch, torch.func, torch.tensor))


def test_linearize_calls_once_and_gives_the_derivative() -> None:
    calls = []

    def f(x: Any) -> Any:
        calls.append(x)
        return x.sin() * x

    x = genesis.tensor(X)
    value, push = func.linearize(f, x)
    for tangent in (x, x.cos()):
        same((value, push(tangent)), func.jvp(lambda x: x.sin() * x, (x,), (tangent,)))
    assert len(calls) == 1


def test_jit_around_transforms_records_once() -> None:
    per_example = genesis.jit(func.vmap(func.grad(loss), in_dims=(None, 0, 0)))
    theirs = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    w, x, y = map(genesis.tensor, (W, X, Y))
    for n in (5, 5, 3, 4, 2):
        same(per_example(w, x[:n], y[:n]), theirs(*map(torch.tensor, (W, X[:n], Y[:n]))))
    assert per_example.captures <= 2


def test_a_jitted_function_inside_of_transforms() -> None:
    w, x = genesis.tensor(W), genesis.tensor(X)
    jitted = genesis.jit(lambda x: (x @ w).tanh().sum())

    def plain(x: Any) -> Any:
        return (x @ torch.tensor(W)).tanh().sum()

    other = torch.tensor(X)
    same(func.vmap(func.grad(jitted))(x), torch.func.vmap(torch.func.grad(plain))(other))
    same(func.hessian(jitted)(x), torch.func.hessian(plain)(other))
    hessian = genesis.jit(func.hessian(jitted))
    for _ in range(2):
        same(hessian(x), torch.func.hessian(plain)(other))
    assert hessian.captures == 1


def test_results_are_on_the_tape_only_if_something_outside_is() -> None:
    x = genesis.tensor(X)
    cube = func.grad(lambda z: (z**3).sum())
    assert not cube(x).requires_grad
    assert not func.grad(lambda x: func.grad(lambda y: (x * y * y).sum())(2 * x).sum())(
        x
    ).requires_grad
    leaf = genesis.tensor(X, requires_grad=True)
    cube(leaf).sum().backward()
    same(leaf.grad, torch.tensor(6 * X))
    with genesis.no_grad():
        assert not cube(leaf).requires_grad
    value, gradient = func.value_and_grad(lambda z: (z**2).sum())(x)
    same((value, gradient), (torch.tensor((X**2).sum()), torch.tensor(2 * X)))
    assert not value.requires_grad
    aux = [
        m.func.grad_and_value(lambda z: ((z**3).sum(), z.sum()), has_aux=True)(m.tensor(X))
        for m in (genesis, torch)
    ]
    same(aux[0][0], aux[1][0])
    same(aux[0][1], aux[1][1])


def test_vmap_is_an_operation_on_the_tape_around_it() -> None:
    leaf, weight = genesis.tensor(X, requires_grad=True), genesis.tensor(W, requires_grad=True)
    theirs = [torch.tensor(a, requires_grad=True) for a in (X, W)]
    (func.vmap(lambda r: (r @ weight).sin().sum())(leaf) ** 2).sum().backward()
    (torch.func.vmap(lambda r: (r @ theirs[1]).sin().sum())(theirs[0]) ** 2).sum().backward()
    same([leaf.grad, weight.grad], [x.grad for x in theirs])


def test_stop_gradient_in_a_tree() -> None:
    def f(x: Any) -> Any:
        held = func.stop_gradient({"a": (x,)})
        return (x * held["a"][0]).sum()

    same(func.grad(f)(genesis.tensor(X)), torch.tensor(X))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: func.grad(lambda x: x)(x), "shape \\(5, 3\\). Sum it"),
        (lambda x: func.grad(lambda x: x.sum())(3.0), "is a float, not a tensor"),
        (lambda x: func.grad(lambda x: x.sum())(x.long()), "int64, which has no gradient"),
        (lambda x: func.grad(lambda x: x.sum(), 1)(x), "argnums has 1"),
        (lambda x: func.vjp(lambda x: x, x)[1](x[0]), "cotangents of \\(3,\\)"),
        (lambda x: func.jvp(lambda x: x, (x,), (x[0],)), "tangents of \\(3,\\)"),
        (lambda x: func.vmap(lambda x: x, in_dims=5)(x), "in_dims has 5"),
        (lambda x: func.vmap(lambda x: x, out_dims=3)(x), "out_dims has 3"),
        (lambda x: func.vmap(lambda x, y: x)(x, x[:2]), "different numbers of examples"),
        (lambda x: func.vmap(lambda x, y: x)(x, 3.0), "is a float"),
        (lambda x: func.vmap(lambda x, y: x, in_dims=(0,))(x, x), "structure"),
        (lambda x: func.vmap(lambda x: 3)(x), "returns a int"),
        (lambda x: func.vmap(lambda x: x, in_dims=None)(x), "no argument"),
        (lambda x: func.vmap(lambda x: x if x.sum() > 0 else -x)(x), "while vmap records"),
        (lambda x: func.vmap(lambda x: x[x > 0])(x), "depends on data"),
        (lambda x: func.vmap(lambda x: x + genesis.rand(3))(x), "randomness="),
        (lambda x: func.vmap(lambda x: x, randomness="some"), "randomness is one of"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(call: Callable[[Any], Any], words: str) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError), match=words):
        call(genesis.tensor(X))


@pytest.mark.parametrize("name", ["vjp", "jvp", "vhp", "hvp"])
def test_products_without_a_factor(name: str) -> None:
    """It is 1 for one number, an infinite one included, and has to be given for several."""
    ours, theirs = (getattr(m.autograd.functional, name) for m in (genesis, torch))
    for x in (2.0, np.inf):
        got, want = (
            ours(lambda t: 1 / t, genesis.tensor(x)),
            theirs(lambda t: 1 / t, torch.tensor(x)),
        )
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy())
    several = genesis.ones(2) if name != "vjp" else genesis.tensor(2.0)
    with pytest.raises(RuntimeError, match=r"v[jh]p: v may be left out|jvp: v may be left out"):
        ours((lambda t: t * genesis.ones(2)) if name == "vjp" else (lambda t: t.sum()), several)
