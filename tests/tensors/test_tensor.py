"""What a tensor is to its user: protocols, creation, text, writes in place, jit."""

import copy
import inspect
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from against_torch import Comparison

import genesis
from genesis import Tensor, functional
from genesis import ndarray as nd

BOTH = (genesis, torch)


# ---- protocols


def test_description() -> None:
    for m in BOTH:
        x = m.zeros(2, 3, 4, dtype=m.float64)
        assert tuple(x.shape) == (2, 3, 4) == tuple(x.size())
        assert (x.size(1), x.size(-1), x.dim(), x.ndim, x.ndimension()) == (3, 4, 3, 3, 3)
        assert (x.numel(), x.nelement(), x.element_size(), x.nbytes) == (24, 24, 8, 192)
        assert x.is_floating_point() and not x.is_complex() and x.is_signed()
        assert not m.zeros(1, dtype=m.uint8).is_signed()
        assert len(x) == 2 and x.is_leaf and not x.requires_grad
        assert [tuple(row.shape) for row in x] == [(3, 4), (3, 4)]
        assert x.is_same_size(x.clone()) and x.is_set_to(x) and not x.is_set_to(x.clone())
        with pytest.raises(IndexError):
            x.size(3)
        with pytest.raises(TypeError):
            len(m.tensor(1.0))
        with pytest.raises(TypeError):
            iter(m.tensor(1.0))
    assert repr(genesis.zeros(2).shape) == "genesis.Size([2])"


def test_numbers() -> None:
    for m in BOTH:
        assert (int(m.tensor(3.7)), float(m.tensor([2])), complex(m.tensor(1j))) == (3, 2.0, 1j)
        assert bool(m.tensor([1])) and not m.tensor(0.0)
        assert [10, 20, 30][m.tensor(1)] == 20
        assert m.tensor([[5]]).item() == 5 and m.tensor(2.5).tolist() == 2.5
        assert 2.0 in m.tensor([1.0, 2.0]) and 3.0 not in m.tensor([1.0, 2.0])
        assert f"{m.tensor(1.25):.1f}" == "1.2"
        assert (m.tensor(1.0) == None) is False  # noqa: E711
        for wrong in (lambda m=m: bool(m.zeros(2)), lambda m=m: m.zeros(2).item()):
            with pytest.raises((RuntimeError, ValueError)):
                wrong()
        with pytest.raises(TypeError):
            [1, 2][m.tensor(1.0)]
    x = genesis.zeros(2)
    assert {x: 1}[x] == 1 and hash(x) == hash(x)


def test_numpy_and_dlpack() -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = genesis.from_numpy(data)
    assert np.shares_memory(x.numpy(), data)
    x += 1  # memory of others is not written
    assert data[0, 0] == 0 and x[0, 0].item() == 1
    assert np.asarray(x).dtype == np.float32 and np.array(x, np.int64)[1, 2] == 6
    assert torch.from_dlpack(x).tolist() == x.tolist()
    assert genesis.from_dlpack(torch.arange(3)).tolist() == [0, 1, 2]
    assert isinstance(np.ones(3) + genesis.ones(3), Tensor)
    assert genesis.tensor(np.float64(2.0)).dtype is genesis.float64
    needs = genesis.ones(2, requires_grad=True)
    for wrong in (needs.numpy, lambda: np.asarray(needs), needs.__dlpack__):
        with pytest.raises((RuntimeError, BufferError), match="gradient"):
            wrong()
    assert needs.numpy(force=True).tolist() == [1, 1]
    with pytest.raises(TypeError):
        genesis.from_numpy([1, 2])  # type: ignore[arg-type]


def test_types_and_places() -> None:
    methods = ["float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte",
               "bool", "cfloat", "cdouble"]  # fmt: skip
    for name in methods:
        mine, theirs = (getattr(m.tensor([0.0, 2.5]), name)() for m in BOTH)
        assert f"torch.{mine.dtype}" == str(theirs.dtype)
        assert mine.tolist() == theirs.tolist(), name
    for m in BOTH:
        x = m.ones(2)
        assert x.to(m.float32) is x and x.to("cpu") is x and x.cpu() is x
        assert x.to(m.float32, copy=True) is not x
        assert x.to("cpu", m.float64).dtype == m.float64
        assert x.to(m.zeros(1, dtype=m.int32)).dtype == m.int32
        assert x.to(dtype=m.float16).dtype == m.float16
        assert x.type_as(m.zeros(1, dtype=m.int64)).dtype == m.int64
        assert x.type(m.int8).dtype == m.int8
    with pytest.raises(ValueError, match="device"):
        genesis.ones(2).to("Not A Device")
    comparison = Comparison()
    comparison.function("to", lambda m, x: x.to(m.float32) * 2, np.array([1.5, 2.5]))
    comparison.check(rtol=1e-6)


def test_bits_as_another_type() -> None:
    for m in BOTH:
        assert m.tensor([1.0, -2.0]).view(m.int32).tolist() == [0x3F800000, -0x40000000]


def test_rows_share_a_program() -> None:
    x = genesis.rand(5, 8)
    x.sum().item()
    x[0].sum().item()
    before = nd.statistics().compiled
    for row in x:
        row.sum().item()
    assert nd.statistics().compiled == before


def test_copies() -> None:
    x = genesis.arange(6.0).reshape(2, 3).requires_grad_()
    (x * x).sum().backward()
    model = {"x": x, "view": x.detach()[0], "again": x}
    copied = copy.deepcopy(model)
    assert copied["x"] is copied["again"] and copied["x"].requires_grad
    assert copied["x"].grad.tolist() == x.grad.tolist() and copied["x"].grad is not x.grad
    copied["view"].zero_()
    assert copied["x"].tolist()[0] == [0, 0, 0] and x.tolist()[0] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="leaf"):
        copy.deepcopy(x * 2)
    for dtype in (genesis.bfloat16, genesis.complex64, genesis.bool_, genesis.int16):
        y = genesis.tensor([1, 0, 2]).to(dtype)
        again = pickle.loads(pickle.dumps(y[1:]))
        assert again.dtype is dtype and genesis.equal(again, y[1:])
    p = pickle.loads(pickle.dumps(genesis.nn.Parameter(genesis.ones(2))))
    assert isinstance(p, genesis.nn.Parameter) and p.requires_grad


def test_graph_attributes() -> None:
    for m in BOTH:
        x = m.tensor([1.0, 2.0], requires_grad=True)
        y = x * 2
        y.retain_grad()
        seen = []
        y.register_hook(lambda g, seen=seen: seen.append(g.tolist()))
        (y * y).sum().backward()
        assert y.retains_grad and y.grad.tolist() == [4, 8] == seen[0]
        assert not y.is_leaf and y.grad_fn is not None and y.detach().is_leaf
        d = y.detach()
        d[0] = 9.0
        assert y.tolist() == [9, 4]
        x.data = m.tensor([5.0, 6.0])
        assert x.tolist() == [5, 6] and x.requires_grad
        x.data[0] = 1.0
        assert x.tolist() == [1, 6]
        for wrong in (
            lambda m=m: m.ones(2).retain_grad(),
            lambda m=m: m.ones(2, dtype=m.int64).requires_grad_(),
            lambda y=y: setattr(y, "requires_grad", False),
            lambda x=x: x[0].detach_(),
        ):
            with pytest.raises(RuntimeError):
                wrong()
    x = genesis.zeros(2)
    before = x.version
    x.add_(1)
    assert x.version == before + 1


def test_transposes() -> None:
    comparison = Comparison()
    z = np.arange(6).reshape(2, 3) * (1 + 2j)
    for name in ("T", "mT", "H", "mH"):
        comparison.function(name, lambda m, x, name=name: getattr(x, name), z, order=1)
    comparison.function("real", lambda m, x: x.real * x.imag, z, order=1)
    comparison.check()


# ---- operators

OPERATORS: dict[str, Any] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y,
    "/": lambda x, y: x / y, "//": lambda x, y: x // y, "%": lambda x, y: x % y,
    "**": lambda x, y: x**y, "@": lambda x, y: x @ y,
    "number +": lambda x, y: 2 + x, "number -": lambda x, y: 2 - x, "number *": lambda x, y: 2 * x,
    "number /": lambda x, y: 2 / x, "number //": lambda x, y: 7 // x,
    "number %": lambda x, y: 7 % x,
    "number **": lambda x, y: 2**x, "abs": lambda x, y: abs(x), "-x": lambda x, y: -x,
    "<": lambda x, y: x < y, "<=": lambda x, y: x <= y, ">": lambda x, y: 2 > x,
    ">=": lambda x, y: 2 >= x, "==": lambda x, y: x == y, "!=": lambda x, y: x != y,
    "number ==": lambda x, y: 2 == x,
}  # fmt: skip
BITS: dict[str, Any] = {
    "&": lambda x, y: x & y, "|": lambda x, y: x | y, "^": lambda x, y: x ^ y, "~": lambda x, y: ~x,
    "<<": lambda x, y: x << 2, ">>": lambda x, y: x >> 1, "number &": lambda x, y: 6 & x,
}  # fmt: skip


def test_operators() -> None:
    comparison = Comparison()
    x, y = np.array([1.5, 2.0, 4.0]), np.array([2.0, 2.0, 3.0])
    for name, operator in OPERATORS.items():
        for kind in (np.float32, np.int64):
            a, b = ([m.tensor(v.astype(kind)) for v in (x, y)] for m in BOTH)
            comparison.add(name, operator(*a), operator(*b))
    for name, operator in BITS.items():
        a, b = ([m.tensor(v.astype(np.int32)) for v in (x, y)] for m in BOTH)
        comparison.add(name, operator(*a), operator(*b))
        if "<<" not in name and ">>" not in name and "number" not in name:
            a, b = ([m.tensor(v > 2) for v in (x, y)] for m in BOTH)
            comparison.add(name, operator(*a), operator(*b))
    comparison.check(rtol=1e-6)


def test_operators_in_place() -> None:
    comparison = Comparison()

    def steps(m: Any, x: Any, y: Any) -> Any:
        z = x.clone()
        same = z
        z += y
        z -= 0.5
        z *= y
        z /= 2
        z **= 2
        z %= 3
        assert same is z
        w = x.clone()
        w.add_(y, alpha=2).mul_(x).sub_(1).div_(y).neg_().exp_()
        return z, w

    rng = np.random.default_rng(3)
    comparison.function("in place", steps, rng.standard_normal(4), rng.standard_normal(4) + 3)
    for m in BOTH:
        n = m.tensor([7, 8, 9])
        n //= 2
        n <<= 1
        n |= 1
        n ^= 2
        n &= 6
        n >>= 1
        assert n.tolist() == [2, 1, 1], m
    comparison.check()


def test_errors_of_writes() -> None:
    for m in BOTH:
        wrong: list[Any] = [
            lambda m=m: m.ones(3, dtype=m.int64).add_(0.5),
            lambda m=m: m.ones(3, dtype=m.int64).div_(2),
            lambda m=m: m.ones(3).add_(1j),
            lambda m=m: m.ones(3).add_(m.ones(2, 3)),
            lambda m=m: m.ones(3, requires_grad=True).add_(1),
            lambda m=m: m.ones(3, requires_grad=True).zero_(),
            lambda m=m: m.ones(3).copy_(m.ones(2)),
            lambda m=m: m.ones(3).fill_(m.ones(2)),
            lambda m=m: m.ones(3).fill_(1j),
            lambda m=m: m.ones(3, requires_grad=True)[:2].mul_(2),
        ]
        for write in wrong:
            with pytest.raises((RuntimeError, TypeError, ValueError)):
                write()
        x = m.ones(3, requires_grad=True)
        with m.no_grad():
            x.mul_(2)
            x[0] = 7
        assert x.tolist() == [7, 2, 2] and x.is_leaf and x.requires_grad


def test_filling() -> None:
    for m in BOTH:
        assert m.zeros(2, 3).copy_(m.tensor([1, 2, 3])).tolist() == [[1, 2, 3]] * 2
        assert m.zeros(2).fill_(m.tensor(4.0)).tolist() == [4, 4]
        assert m.ones(2).zero_().tolist() == [0, 0]
        assert m.zeros(5, 3).fill_diagonal_(1.0, wrap=True)[:, 0].tolist() == [1, 0, 0, 0, 1]
        assert m.zeros(2, 2, 2).fill_diagonal_(1.0).sum().item() == 2
        x = m.zeros(1000, dtype=m.float64)
        assert 0.4 < x.uniform_(-1, 2).mean().item() < 0.6 and x.min().item() >= -1
        assert abs(x.normal_(3, 0.1).mean().item() - 3) < 0.05
        assert 0.2 < x.bernoulli_(0.25).mean().item() < 0.3
        assert abs(x.exponential_(2.0).mean().item() - 0.5) < 0.1
        assert 3 <= x.random_(3, 6).min().item() and x.max().item() < 6
        assert x.log_normal_(0, 0.1).min().item() > 0


# ---- creation


def test_creation() -> None:
    comparison = Comparison()
    made: dict[str, Any] = {
        "zeros": lambda m: m.zeros(2, 3),
        "zeros of a list": lambda m: m.zeros([2, 0]),
        "zeros of nothing": lambda m: m.zeros(()),
        "ones": lambda m: m.ones((2,), dtype=m.int8),
        "full": lambda m: m.full((2, 2), 1.5),
        "full of integers": lambda m: m.full((3,), 2),
        "full of bools": lambda m: m.full((3,), True),
        "zeros_like": lambda m: m.zeros_like(m.ones(2, dtype=m.int32)),
        "ones_like": lambda m: m.ones_like(m.ones(2), dtype=m.float64),
        "full_like": lambda m: m.full_like(m.ones(2, dtype=m.int64), 3),
        "arange": lambda m: m.arange(5),
        "arange of floats": lambda m: m.arange(0, 1, 0.1),
        "arange down": lambda m: m.arange(5, -3, -2),
        "arange typed": lambda m: m.arange(1, 4, dtype=m.float16),
        "linspace": lambda m: m.linspace(-1, 2, 7),
        "linspace of one": lambda m: m.linspace(3, 4, 1),
        "logspace": lambda m: m.logspace(-2, 2, 5),
        "logspace by two": lambda m: m.logspace(0, 3, 4, base=2, dtype=m.float64),
        "eye": lambda m: m.eye(3, 2),
        "tril_indices": lambda m: m.tril_indices(3, 4, 1),
        "triu_indices": lambda m: m.triu_indices(4, 3, -1),
        "tensor": lambda m: m.tensor([[1, 2.5], [True, 4]]),
        "tensor of tensors": lambda m: m.tensor([m.tensor(1.0), m.tensor(2.0)]),
        "tensor of complex": lambda m: m.tensor([1 + 2j]),
        "tensor of bools": lambda m: m.tensor([True, False]),
        "tensor typed": lambda m: m.tensor([1.7, -1.7], dtype=m.int32),
        "as_tensor": lambda m: m.as_tensor([1, 2], dtype=m.float64),
        "new_tensor": lambda m: m.ones(1, dtype=m.float64).new_tensor([1, 2]),
        "new_zeros": lambda m: m.ones(1, dtype=m.int32).new_zeros(2, 3),
        "new_ones": lambda m: m.ones(1).new_ones((2,), dtype=m.bool),
        "new_full": lambda m: m.ones(1, dtype=m.float64).new_full((2,), 3),
        "scalar_tensor": lambda m: m.scalar_tensor(3),
        "hann_window": lambda m: m.hann_window(7),
        "hamming_window": lambda m: m.hamming_window(8, periodic=False),
        "blackman_window": lambda m: m.blackman_window(5, dtype=m.float64),
        "bartlett_window": lambda m: m.bartlett_window(6),
        "kaiser_window": lambda m: m.kaiser_window(9, True, 4.0),
    }
    for name, make in made.items():
        comparison.add(name, make(genesis), make(torch))
    comparison.check(rtol=1e-6)
    for m in BOTH:
        assert m.ones(2, requires_grad=True).requires_grad
        assert m.tensor([1.0], requires_grad=True).is_leaf
        x = m.ones(2)
        assert m.as_tensor(x) is x and tuple(x.new_empty(3).shape) == (3,)
        for wrong in (
            lambda m=m: m.tensor([[1], [1, 2]]),
            lambda m=m: m.tensor("text"),
            lambda m=m: m.zeros(-1),
            lambda m=m: m.arange(3, 1),
            lambda m=m: m.ones(2, dtype=m.int64, requires_grad=True),
        ):
            with pytest.raises((RuntimeError, TypeError, ValueError)):
                wrong()


def test_type_information() -> None:
    for name in ("float16", "bfloat16", "float32", "float64"):
        mine, theirs = genesis.finfo(getattr(genesis, name)), torch.finfo(getattr(torch, name))
        for field in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution"):
            assert getattr(mine, field) == pytest.approx(getattr(theirs, field), rel=1e-6), field
    for name in ("int8", "int64", "uint8"):
        mine, theirs = genesis.iinfo(getattr(genesis, name)), torch.iinfo(getattr(torch, name))
        assert (mine.bits, mine.max, mine.min) == (theirs.bits, theirs.max, theirs.min)
    assert genesis.promote_types(genesis.int8, genesis.float16) is genesis.float16
    assert genesis.result_type(genesis.ones(2, dtype=genesis.int64), 2.5) is genesis.float32
    assert not genesis.can_cast(genesis.float32, genesis.int64)
    assert genesis.broadcast_shapes((2, 1), (3,)) == (2, 3)
    assert isinstance(genesis.float32, genesis.dtype)


def test_default_dtype() -> None:
    try:
        genesis.set_default_dtype(genesis.float64)
        assert genesis.get_default_dtype() is genesis.float64
        assert genesis.zeros(2).dtype is genesis.float64
        assert genesis.tensor([1.5]).dtype is genesis.randn(2).dtype is genesis.float64
        assert genesis.tensor([1j]).dtype is genesis.complex128
        assert genesis.tensor([1]).dtype is genesis.int64
        assert repr(genesis.tensor([1.0])) == "tensor([1.])"
    finally:
        genesis.set_default_dtype(genesis.float32)
    with pytest.raises(TypeError):
        genesis.set_default_dtype(genesis.int64)
    assert (genesis.float, genesis.int, genesis.bool) == (
        genesis.float32,
        genesis.int32,
        genesis.bool_,
    )
    assert genesis.half is genesis.float16 and genesis.long is genesis.int64


def test_random() -> None:
    genesis.manual_seed(1)
    first = [genesis.rand(4), genesis.randn(2, 3), genesis.randint(0, 9, (5,)), genesis.randperm(7)]
    genesis.manual_seed(1)
    again = [genesis.rand(4), genesis.randn(2, 3), genesis.randint(0, 9, (5,)), genesis.randperm(7)]
    assert all(genesis.equal(a, b) for a, b in zip(first, again, strict=True))
    assert sorted(first[3].tolist()) == list(range(7))
    g = genesis.Generator(5)
    drawn = genesis.rand(1000, generator=g, dtype=genesis.float64)
    assert (
        0 <= drawn.min().item()
        and drawn.max().item() < 1
        and not genesis.equal(drawn, genesis.rand(1000, generator=g, dtype=genesis.float64))
    )
    assert genesis.randint(3, (100,)).max().item() == 2
    like = genesis.zeros(3, dtype=genesis.float64)
    assert genesis.randn_like(like).dtype is genesis.rand_like(like).dtype is genesis.float64
    assert genesis.randint_like(like, 5, 6).tolist() == [5, 5, 5]
    mean, std = genesis.tensor([0.0, 100.0]), genesis.tensor([0.0, 1.0])
    x = genesis.normal(mean, std)
    assert x[0].item() == 0 and abs(x[1].item() - 100) < 10
    assert genesis.normal(2.0, 0.0, (2,)).tolist() == [2, 2]
    assert genesis.bernoulli(genesis.tensor([0.0, 1.0])).tolist() == [0, 1]


def test_multinomial() -> None:
    weights = genesis.tensor([[0.0, 1.0, 0.0, 3.0], [1.0, 0.0, 0.0, 0.0]])
    drawn = genesis.multinomial(weights, 2000, replacement=True)
    counts = np.bincount(drawn[0].numpy(), minlength=4)
    assert counts[0] == counts[2] == 0 and abs(counts[3] / 2000 - 0.75) < 0.04
    assert set(drawn[1].tolist()) == {0}
    once = genesis.multinomial(genesis.tensor([1.0, 2.0, 0.0, 5.0]), 3)
    assert sorted(once.tolist()) == [0, 1, 3]
    with pytest.raises(ValueError, match="without replacement"):
        genesis.multinomial(genesis.ones(2), 3)


# ---- text

SHOWN: dict[str, Any] = {
    "integers": lambda m: m.tensor([1.0, 2.0]),
    "decimals": lambda m: m.tensor([1.5, -2.25, 100.0]),
    "powers": lambda m: m.tensor([1e-6, 1.0]),
    "large": lambda m: m.tensor([1e10, 2.0]),
    "small range": lambda m: m.tensor([0.00012, 0.0002]),
    "infinities": lambda m: m.tensor([float("inf"), float("nan"), 1.0, -float("inf")]),
    "only nan": lambda m: m.tensor([float("nan")]),
    "scalar": lambda m: m.tensor(3.14159265),
    "int scalar": lambda m: m.tensor(7),
    "bools": lambda m: m.tensor([[True, False], [False, True]]),
    "ints": lambda m: m.arange(-3, 9).reshape(3, 4),
    "int8": lambda m: m.tensor([1, -100], dtype=m.int8),
    "float64": lambda m: m.tensor([1.5], dtype=m.float64),
    "bfloat16": lambda m: m.tensor([1.5, 2.0], dtype=m.bfloat16),
    "empty": lambda m: m.zeros(0),
    "empty matrix": lambda m: m.zeros(2, 0),
    "three": lambda m: m.arange(12.0).reshape(2, 2, 3) / 8,
    "long": lambda m: m.arange(100) * 7,
    "summarised": lambda m: m.arange(2000),
    "summarised matrix": lambda m: m.arange(40000.0).reshape(200, 200) / 4,
    "summarised only rows": lambda m: m.arange(4000).reshape(1000, 4),
    "requires_grad": lambda m: m.tensor([1.0], requires_grad=True),
    "complex": lambda m: m.tensor([1 + 2j, -1.5 - 0.5j]),
    "complex whole": lambda m: m.tensor([1 + 2j, 10 - 4j]),
    "zeros": lambda m: m.zeros(2, 2),
    "long notes": lambda m: (m.arange(0, 15, dtype=m.float64) / 3).requires_grad_(),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_text(name: str) -> None:
    mine, theirs = (repr(SHOWN[name](m)) for m in BOTH)
    assert mine == theirs.replace("torch.", "")


def test_text_of_a_result() -> None:
    x = genesis.ones(2, requires_grad=True)
    assert repr(x + 1) == "tensor([2., 2.], grad_fn=<AddBackward>)"
    assert repr(genesis.nn.Parameter(genesis.ones(1))).startswith("Parameter containing:\ntensor(")
    shown: list[str] = []
    genesis.jit(lambda x: shown.append(repr(x)) or x)(genesis.ones(2, 3))
    assert shown[0] == "tensor(..., size=(2, 3), dtype=float32)"
    with pytest.raises(TypeError, match="precisoin"):
        genesis.set_printoptions(precisoin=3)


# ---- names


def test_functions_are_methods_and_top_level_names() -> None:
    inner = {"cast", "fit", "getitem", "sum_to", "to_device", "view", "squared_size"}
    inner |= {"scaled_mm"}  # of `functional`, as PyTorch has it
    methods_only = {"contiguous", "expand_as", "is_contiguous", "reshape_as", "view_as"}
    written_out = {"where", "equal", "is_complex", "polygamma", "narrow_copy"}
    for name in functional.__all__:
        function = getattr(functional, name)
        if name in inner or not inspect.isfunction(function):
            continue
        if name not in methods_only:
            assert inspect.unwrap(getattr(genesis, name)) is inspect.unwrap(function), name
        if hasattr(torch.Tensor, name) and name not in ("real", "imag", *written_out):
            assert inspect.unwrap(getattr(Tensor, name)) is inspect.unwrap(function), name
    assert all(hasattr(genesis, name) for name in dir(genesis))


# ---- jit


def test_jit_with_tensors() -> None:
    state = genesis.zeros(3)

    @genesis.jit
    def step(x: Tensor, i: Tensor) -> Any:
        view = state[1:]
        view += x[:2]
        state[0] = x.sum()
        y = x.clone()
        y[i] = 0
        y[:1].mul_(10)
        return {"y": y, "state": state * 1, "views": [y[1:], y.reshape(3, 1)]}

    kernels = nd.statistics().compiled
    for k in range(3):
        x = genesis.tensor([1.0, 2.0, 3.0 + k])
        found = step(x, genesis.tensor([k % 3]))
        expected = [1.0, 2.0, 3.0 + k]
        expected[k % 3] = 0
        expected[0] *= 10
        assert isinstance(found["y"], Tensor) and found["y"].tolist() == expected
        assert found["views"][0].tolist() == expected[1:]
        assert found["state"].tolist() == state.tolist() == [6 + k, k + 1, 2 * (k + 1)]
        if k == 0:
            kernels = nd.statistics().compiled
    assert nd.statistics().compiled == kernels
    shown = str(genesis.explain(step, genesis.ones(3), genesis.tensor([1])))
    assert "kernel" in shown and "test_tensor.py" in shown


def test_jit_of_a_training_step() -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((4, 3)).astype(np.float32)
    target = rng.standard_normal(4).astype(np.float32)
    results = []
    for transform in (genesis.jit, lambda f: f):
        w = genesis.zeros(3, requires_grad=True)

        def train(x: Tensor, y: Tensor, w: Tensor = w) -> Tensor:
            w.grad = None
            loss = ((x @ w - y) ** 2).mean()
            loss.backward()
            with genesis.no_grad():
                w -= 0.1 * w.grad
            return loss

        step: Any = transform(train)
        for _ in range(5):
            loss = step(genesis.tensor(data), genesis.tensor(target))
        results.append((loss.item(), w.tolist()))
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-6)
    assert abs(results[0][0] - results[1][0]) < 1e-6


def test_assigning_data_is_no_write_to_what_others_see() -> None:
    x = genesis.ones(3)
    apart, view = x.detach(), x[1:]
    x.data = x.data * 2
    assert apart.tolist() == [1, 1, 1] and view.tolist() == [1, 1] and x.tolist() == [2, 2, 2]
    x = genesis.ones(3)
    other = x.data * 2
    x.data = other
    other.add_(1.0)  # they share memory
    assert x.tolist() == [3, 3, 3]
    x = genesis.ones(3)
    x.data = other[1:]
    other.add_(1.0)
    assert x.tolist() == [4, 4]
    x = genesis.ones(3, requires_grad=True)
    loss = (x * x).sum()
    x.data = x.data * 3
    loss.backward()  # of what it was
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2] and x.tolist() == [3, 3, 3]


def test_an_optimizer_follows_data_that_is_assigned() -> None:
    """In a process of its own: references that others have make it record anew, and say so."""
    script = """
import warnings
warnings.simplefilter("error")
import numpy as np, genesis
x = genesis.tensor([1.0, 2.0], requires_grad=True)
optimizer = genesis.optim.SGD([x], lr=0.25)
want = np.array([1.0, 2.0])
for _ in range(20):
    optimizer.zero_grad()
    (x * x).sum().backward()
    optimizer.step()
    x.data = x.data * 1.5
    want = (want - 0.5 * want) * 1.5
assert np.allclose(x.detach().numpy(), want)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
