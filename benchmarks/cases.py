"""The cases: each piece of work once for Genesis and once for PyTorch, next to each other.

A case has a *maker* for each contender, which takes the inputs as NumPy arrays and gives a function
without arguments that does the work once. Genesis goes through `genesis.jit`. PyTorch is eager; it
is given its output preallocated (``out=``) wherever the operation has that, and makes a fresh one
otherwise. Each contender is imported only by its own makers, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = list[np.ndarray[Any, Any]]
Work = Callable[[], Any]
Maker = Callable[[Arrays], Work]
Shape = tuple[int, ...]

CHAIN = 1 << 24
ROWS, COLUMNS = 4096, 1024


@dataclass(frozen=True)
class Case:
    """One piece of work. `flops` or `nbytes` is what it takes at least; `goal` is a ratio."""

    name: str
    shapes: tuple[Shape, ...]
    genesis: Maker
    torch: Maker
    flops: int = 0
    nbytes: int = 0
    goal: float | None = None

    def inputs(self) -> Arrays:
        """The same random inputs in every process."""
        rng = np.random.default_rng(0)
        return [rng.standard_normal(shape, np.float32) for shape in self.shapes]


# ---- what both contenders have in common


def jitted(function: Callable[..., Any]) -> Maker:
    """`function` of Genesis arrays, under `genesis.jit`."""

    def make(arrays: Arrays) -> Work:
        import genesis
        from genesis import ndarray as nd

        compiled = genesis.jit(function)
        inputs = [nd.array(a) for a in arrays]
        return lambda: compiled(*inputs)

    return make


def eager(function: Callable[..., Any], out: Shape | None = None) -> Maker:
    """`function` of PyTorch tensors; with `out`, the last argument is a tensor to write to."""

    def make(arrays: Arrays) -> Work:
        import torch

        inputs = [torch.from_numpy(a) for a in arrays]
        if out is not None:
            inputs.append(torch.empty(out))
        return lambda: function(*inputs)

    return make


# ---- elementwise


def genesis_gelu(x: Any) -> Any:
    from genesis import ndarray as nd

    return nd.gelu(x) * 1.5 + x


def torch_gelu(x: Any, out: Any) -> Any:
    import torch

    torch.ops.aten.gelu.out(x, out=out)
    return out.mul_(1.5).add_(x)


def genesis_relu(a: Any, b: Any) -> Any:
    from genesis import ndarray as nd

    return nd.relu(a * 1.5 + b)


def torch_relu(a: Any, b: Any, out: Any) -> Any:
    import torch

    return torch.mul(a, 1.5, out=out).add_(b).relu_()


# ---- rows


def genesis_softmax(x: Any) -> Any:
    from genesis import ndarray as nd

    return nd.softmax(x, axis=-1)


def torch_softmax(x: Any, out: Any) -> Any:
    import torch

    return torch.softmax(x, -1, out=out)


def genesis_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    from genesis import ndarray as nd

    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred * nd.rsqrt(variance + 1e-5) * weight + bias


def torch_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    from torch.nn.functional import layer_norm

    return layer_norm(x, weight.shape, weight, bias)


def torch_sum(x: Any, out: Any) -> Any:
    import torch

    return torch.sum(x, 0, out=out)


# ---- matrices


def torch_matmul(a: Any, b: Any, out: Any) -> Any:
    import torch

    return torch.matmul(a, b, out=out)


def torch_matmul_transposed(a: Any, b: Any, out: Any) -> Any:
    import torch

    return torch.matmul(a, b.T, out=out)


def genesis_linear_gelu(x: Any, weight: Any, bias: Any) -> Any:
    from genesis import ndarray as nd

    return nd.gelu(x @ weight.T + bias)


def torch_linear_gelu(x: Any, weight: Any, bias: Any) -> Any:
    from torch.nn.functional import gelu, linear

    return gelu(linear(x, weight, bias))


# ---- layers


def genesis_convolution(x: Any, weight: Any) -> Any:
    from genesis import ndarray as nd

    padded = nd.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = nd.windows(nd.windows(padded, 2, 3), 3, 3)
    return nd.einsum("nchwij,fcij->nfhw", windows, weight)


def torch_convolution(x: Any, weight: Any) -> Any:
    from torch.nn.functional import conv2d

    return conv2d(x, weight, padding=1)


def genesis_attention(q: Any, k: Any, v: Any) -> Any:
    from genesis import ndarray as nd

    length = nd.arange(q.shape[-2])
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    seen = length[:, None] >= length[None, :]
    return nd.softmax(nd.where(seen, scores, -float("inf")), -1) @ v


def torch_attention(q: Any, k: Any, v: Any) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(q, k, v, is_causal=True)


# ---- small things: what an operation costs beside its arithmetic


def genesis_build(arrays: Arrays) -> Work:
    from genesis import ndarray as nd

    a, b = (nd.array(x) for x in arrays)
    return lambda: a + b


def genesis_realise(arrays: Arrays) -> Work:
    from genesis import ndarray as nd

    a, b = (nd.array(x) for x in arrays)
    return lambda: (a + b).realize()


def ten_operations(a: Any, b: Any) -> Any:
    for _ in range(5):
        a = a * b + b
    return a


def importing(module: str) -> Maker:
    """A new process that imports a module and ends."""

    def make(arrays: Arrays) -> Work:
        return lambda: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    return make


def _matmul(n: int, goal: float | None = None) -> Case:
    return Case(
        f"matmul {n}³",
        ((n, n), (n, n)),
        jitted(lambda a, b: a @ b),
        eager(torch_matmul, (n, n)),
        flops=2 * n**3,
        goal=goal,
    )


_VECTOR, _TABLE, _TINY = (CHAIN,), (ROWS, COLUMNS), (16,)

CASES = (
    Case(
        "gelu(x)·1.5 + x, 16M",
        (_VECTOR,),
        jitted(genesis_gelu),
        eager(torch_gelu, _VECTOR),
        nbytes=8 * CHAIN,
        goal=1.5,
    ),
    Case(
        "relu(a·1.5 + b), 16M",
        (_VECTOR, _VECTOR),
        jitted(genesis_relu),
        eager(torch_relu, _VECTOR),
        nbytes=12 * CHAIN,
        goal=1.5,
    ),
    Case(
        "sum, 16M",
        (_VECTOR,),
        jitted(lambda x: x.sum()),
        eager(torch_sum, ()),
        nbytes=4 * CHAIN,
        goal=0.9,
    ),
    Case(
        "softmax 4096x1024",
        (_TABLE,),
        jitted(genesis_softmax),
        eager(torch_softmax, _TABLE),
        nbytes=8 * ROWS * COLUMNS,
        goal=0.9,
    ),
    Case(
        "layer norm 4096x1024",
        (_TABLE, (COLUMNS,), (COLUMNS,)),
        jitted(genesis_layer_norm),
        eager(torch_layer_norm),
        nbytes=8 * ROWS * COLUMNS,
    ),
    Case(
        "column sum 4096x1024",
        (_TABLE,),
        jitted(lambda x: x.sum(axis=0)),
        eager(torch_sum, (COLUMNS,)),
        nbytes=4 * ROWS * COLUMNS,
    ),
    Case(
        "transpose 4096²",
        ((4096, 4096),),
        jitted(lambda x: x.T.copy()),
        eager(lambda x, out: out.copy_(x.T), (4096, 4096)),
        nbytes=8 * 4096**2,
    ),
    _matmul(256),
    _matmul(512),
    _matmul(1024, goal=0.7),
    _matmul(2048),
    Case(
        "matmul 1024³, B transposed",
        ((1024, 1024), (1024, 1024)),
        jitted(lambda a, b: a @ b.T),
        eager(torch_matmul_transposed, (1024, 1024)),
        flops=2 * 1024**3,
    ),
    Case(
        "matrix times vector 4096²",
        ((4096, 4096), (4096,)),
        jitted(lambda a, b: a @ b),
        eager(torch_matmul, (4096,)),
        nbytes=4 * 4096**2,
    ),
    Case(
        "gelu(x Wᵀ + b), 1024x1024x4096",
        ((1024, 1024), (4096, 1024), (4096,)),
        jitted(genesis_linear_gelu),
        eager(torch_linear_gelu),
        flops=2 * 1024 * 1024 * 4096,
    ),
    Case(
        "convolution 3x3, 64 to 64, 32x64x56x56",
        ((32, 64, 56, 56), (64, 64, 3, 3)),
        jitted(genesis_convolution),
        eager(torch_convolution),
        flops=2 * 32 * 64 * 56 * 56 * 64 * 9,
        goal=0.8,
    ),
    Case(
        "convolution 3x3, 512 to 512, 8x512x7x7",
        ((8, 512, 7, 7), (512, 512, 3, 3)),
        jitted(genesis_convolution),
        eager(torch_convolution),
        flops=2 * 8 * 512 * 7 * 7 * 512 * 9,
    ),
    Case(
        "causal attention 1x32x1024x128",
        ((1, 32, 1024, 128),) * 3,
        jitted(genesis_attention),
        eager(torch_attention),
        flops=2 * 32 * 1024 * 1024 * 128,
        goal=1.0,
    ),
    Case(
        "a + b, 16 elements: graph only",
        (_TINY, _TINY),
        genesis_build,
        eager(lambda a, b: a + b),
    ),
    Case(
        "a + b, 16 elements: realised, program known",
        (_TINY, _TINY),
        genesis_realise,
        eager(lambda a, b: a + b),
    ),
    Case(
        "a + b, 16 elements: jit",
        (_TINY, _TINY),
        jitted(lambda a, b: a + b),
        eager(lambda a, b: a + b),
    ),
    Case(
        "ten operations on 16 elements: jit",
        (_TINY, _TINY),
        jitted(ten_operations),
        eager(ten_operations),
    ),
    Case(
        "import in a new process",
        (),
        importing("genesis"),
        importing("torch"),
    ),
)
