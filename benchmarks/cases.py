"""The cases: each piece of work written once, for Genesis and for PyTorch.

Both have the same functions under the same names, so a case is one function of a library and of
tensors. Genesis runs it under `genesis.jit`, PyTorch eagerly and under `torch.compile` (Inductor);
tinygrad, where it is installed, has a function of its own in some cases. Each contender is imported
only by its own maker, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Arrays = list[Any]
Random = np.random.Generator
Draw = Callable[[Random], Arrays]
Work = Callable[[], Any]
Maker = Callable[[Arrays], Work]
Shape = tuple[int, ...]

#: Who is measured. A case need not have all of them.
CONTENDERS = ("genesis", "torch", "inductor", "tinygrad")


@dataclass(frozen=True)
class Case:
    """One piece of work, and who does it how.

    A maker takes the inputs as NumPy arrays and gives a function without arguments that does the
    work once. Inputs are normal numbers of some shapes, or what `draw` gives. `flops`, or the bytes
    in `reads` and `writes`, is what the work takes at least. `goal` is a ratio to PyTorch eager,
    `share` one to copying as many bytes.
    """

    name: str
    shapes: Sequence[Shape]
    genesis: Maker
    torch: Maker
    flops: int = 0
    reads: int = 0
    writes: int = 0
    goal: float | None = None
    share: float | None = None
    inductor: Maker | None = None
    tinygrad: Maker | None = None
    draw: Draw | None = None
    group: str = ""

    @property
    def makers(self) -> dict[str, Maker]:
        """Who takes part."""
        every = {name: getattr(self, name) for name in CONTENDERS}
        return {name: make for name, make in every.items() if make is not None}

    def inputs(self) -> Arrays:
        """The same random inputs in every process."""
        return (self.draw or normal(*self.shapes))(np.random.default_rng(0))


# ---- makers


def case(
    name: str,
    function: Callable[..., Any],
    draw: Draw,
    *,
    grad: Sequence[int] = (),
    tiny: Callable[..., Any] | None = None,
    **facts: Any,
) -> Case:
    """A case of one function, which takes the library first and then tensors.

    With `grad`, the gradients with respect to those inputs are computed, too; the last input is
    that of the result then, unless the result is a number.
    """
    return Case(
        name,
        (),
        _genesis(function, grad),
        _torch(function, grad, compiled=False),
        inductor=_torch(function, grad, compiled=True),
        tinygrad=None if tiny is None else _tinygrad(tiny),
        draw=draw,
        **facts,
    )


def normal(*shapes: Shape) -> Draw:
    """Normal numbers of float32."""
    return lambda rng: [rng.standard_normal(shape, np.float32) for shape in shapes]


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


def gradients(lib: Any, out: Any, xs: Sequence[Any], grad: Sequence[int]) -> Any:
    """The gradients of a result; `xs` ends with its own."""
    return lib.autograd.grad(out, [xs[k] for k in grad], xs[-1] if out.ndim else None)


def _genesis(function: Callable[..., Any], grad: Sequence[int]) -> Maker:
    def make(arrays: Arrays) -> Work:
        import genesis

        xs = [genesis.tensor(a) for a in arrays]
        for k in grad:
            xs[k].requires_grad_()

        @genesis.jit
        def run(*xs: Any) -> Any:
            out = function(genesis, *xs)
            return gradients(genesis, out, xs, grad) if grad else out

        return lambda: run(*xs)

    return make


def _torch(function: Callable[..., Any], grad: Sequence[int], compiled: bool) -> Maker:
    def make(arrays: Arrays) -> Work:
        import torch

        xs = [torch.from_numpy(a) for a in arrays]
        for k in grad:
            xs[k].requires_grad_()

        def run(*xs: Any) -> Any:
            return function(torch, *xs)

        if compiled:
            torch._dynamo.reset()
            run = torch.compile(run, dynamic=False)
        if grad:
            return lambda: gradients(torch, run(*xs), xs, grad)
        return lambda: run(*xs)

    return make


def _tinygrad(function: Callable[..., Any]) -> Maker:
    def make(arrays: Arrays) -> Work:
        from tinygrad import Tensor, TinyJit

        xs = [Tensor(a).realize() for a in arrays]
        run = TinyJit(lambda *xs: function(*xs).realize())
        return lambda: run(*xs)

    return make


# ---- matrices


def matmul(name: str, a: Shape, b: Shape, **facts: Any) -> Case:
    """A product; a leading extent that both have is a batch."""
    flops = 2 * int(np.prod(a)) * b[-1]
    draw = normal(a, b)
    facts = {"group": "matrices", "flops": flops, **facts}
    return case(name, lambda lib, a, b: a @ b, draw, tiny=lambda a, b: a @ b, **facts)


def _square(n: int) -> Case:
    return matmul(f"matmul {n}³", (n, n), (n, n), goal=0.7 if n == 1024 else None)


def linear_gelu(lib: Any, x: Any, weight: Any, bias: Any) -> Any:
    """A layer of a transformer."""
    f = lib.nn.functional
    return f.gelu(f.linear(x, weight, bias))


MATRICES = [
    *map(_square, (256, 512, 1024, 2048, 4096)),
    matmul("matmul 32x4096x4096", (32, 4096), (4096, 4096)),
    matmul("matmul 4096x64x4096", (4096, 64), (64, 4096)),
    matmul("matmul 64 of 128x64x128", (64, 128, 64), (64, 64, 128)),
    case("matmul 1024³, B transposed", lambda lib, a, b: a @ b.T,
         normal((1024, 1024), (1024, 1024)), tiny=lambda a, b: a @ b.T, group="matrices",
         flops=2 * 1024**3),
    case("gelu(x Wᵀ + b), 1024x1024x4096", linear_gelu,
         normal((1024, 1024), (4096, 1024), (4096,)),
         tiny=lambda x, w, b: (x @ w.T + b).gelu(), group="matrices", flops=2 * 1024**2 * 4096),
    case("matrix times vector 4096²", lambda lib, a, b: a @ b, normal((4096, 4096), (4096,)),
         tiny=lambda a, b: a @ b, group="matrices", reads=4 * 4096**2),
    case("convolution 3x3, 64 to 64, 32x64x56x56",
         lambda lib, x, w: lib.nn.functional.conv2d(x, w, padding=1),
         normal((32, 64, 56, 56), (64, 64, 3, 3)), tiny=lambda x, w: x.conv2d(w, padding=1),
         group="matrices", flops=2 * 32 * 64 * 56 * 56 * 64 * 9, goal=0.8),
    case("convolution 3x3, 512 to 512, 8x512x7x7",
         lambda lib, x, w: lib.nn.functional.conv2d(x, w, padding=1),
         normal((8, 512, 7, 7), (512, 512, 3, 3)), tiny=lambda x, w: x.conv2d(w, padding=1),
         group="matrices", flops=2 * 8 * 512 * 7 * 7 * 512 * 9),
]  # fmt: skip


# ---- attention


def causal(lib: Any, q: Any, k: Any, v: Any, *_: Any) -> Any:
    """Every token sees those up to itself."""
    return lib.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def decode(lib: Any, q: Any, k: Any, v: Any) -> Any:
    """One new token over all that came before."""
    return lib.nn.functional.scaled_dot_product_attention(q, k, v)


_HEADS = (1, 32, 1024, 128)
_CACHE = (1, 32, 4096, 128)

ATTENTION = [
    case("causal attention 1x32x1024x128", causal, normal(*[_HEADS] * 3), group="attention",
         flops=2 * 32 * 1024**2 * 128, goal=1.0),
    case("causal attention 1x32x1024x128, with gradients", causal, normal(*[_HEADS] * 4),
         grad=(0, 1, 2), group="attention", flops=7 * 32 * 1024**2 * 128),
    case("attention of 1 token over 4096, 32 heads", decode,
         normal((1, 32, 1, 128), _CACHE, _CACHE), group="attention", reads=8 * 32 * 4096 * 128),
]  # fmt: skip


# ---- small things: what an operation costs beside its arithmetic


def genesis_build(arrays: Arrays) -> Work:
    """The graph of an operation, not its result."""
    import genesis

    a, b = map(genesis.tensor, arrays)
    return lambda: a + b


def genesis_realise(arrays: Arrays) -> Work:
    """An operation without `jit`, its program known."""
    from genesis import ndarray as nd

    a, b = map(nd.array, arrays)
    return lambda: (a + b).realize()


def ten_operations(lib: Any, a: Any, b: Any) -> Any:
    """Five products and sums."""
    for _ in range(5):
        a = a * b + b
    return a


def importing(module: str) -> Maker:
    """A new process that imports a module and ends."""

    def make(arrays: Arrays) -> Work:
        return lambda: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    return make


_TINY = normal((16,), (16,))
_SUM = case("a + b, 16 elements: jit", lambda lib, a, b: a + b, _TINY, group="small")

SMALL = [
    replace(_SUM, name="a + b, 16 elements: graph only", genesis=genesis_build),
    replace(_SUM, name="a + b, 16 elements: realised, program known", genesis=genesis_realise),
    _SUM,
    case("ten operations on 16 elements: jit", ten_operations, _TINY, group="small"),
    Case("import in a new process", (), importing("genesis"), importing("torch"),
         tinygrad=importing("tinygrad"), group="small"),
]  # fmt: skip
