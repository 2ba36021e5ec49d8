"""What GPUs get of larger computations: which kernels, and which instructions, without a GPU.

Programs are compiled for a backend that only keeps their proven kernels, and these for chips of
NVIDIA and AMD. The numbers are in test_gpu_numbers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import genesis
from genesis import functional
from genesis.backends.base import GPU
from genesis.backends.cpu.backend import CPUBackend
from genesis.backends.cuda.compile import CompiledFunction, compile, resources
from genesis.backends.cuda.render import render
from genesis.compiler.options import using
from genesis.ir.kernel import Kernel
from genesis.ndarray import realisation
from genesis.ndarray.explain import explain

CHIP = GPU(
    name="a GPU", vector_bytes=16, vector_registers=255, l1_bytes=232448, l2_bytes=60 << 20,
    multiprocessors=132, memory_bytes=1 << 36,
)  # fmt: skip
MATRIX = {"sm_90": "wgmma.mma_async", "sm_120": "mma.sync", "gfx942": "v_mfma", "gfx1201": "v_wmma"}


class Kept(Exception):
    """Compiling has come to where code would be made."""


class Pretended(CPUBackend):
    """A GPU that keeps its kernels."""

    chip = CHIP  # type: ignore[assignment]
    target = "a pretended GPU"

    def compile(self, kernels: Iterable[Kernel], precision: str = "highest") -> Any:
        self.kernels = list(kernels)
        raise Kept


def kernels_of(function: Callable[..., Any], *inputs: tuple[Any, ...]) -> list[Kernel]:
    """The kernels of a function of zeros, each given by its type and shape."""
    arrays = [genesis.zeros(*shape, dtype=getattr(genesis, dtype)) for dtype, *shape in inputs]
    for x in arrays:
        x.array.realize()
    backend = Pretended()
    with pytest.MonkeyPatch.context() as patch, using(strict=True):
        patch.setattr(realisation, "backend_of", lambda device: backend)
        with pytest.raises(Kept):
            explain(function, *arrays)
    return backend.kernels


def gradients(q: Any, k: Any, v: Any, grad: Any) -> Any:
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    attend: Any = functional.scaled_dot_product_attention
    attend(*inputs, is_causal=True).backward(grad)
    return tuple(x.grad for x in inputs)


def bytes_product(a: Any, b: Any) -> Any:
    return functional.matmul(a.to(genesis.int32), b.to(genesis.int32))


#: Computations, and the types and shapes they are of.
CASES: dict[str, tuple[Any, ...]] = {
    "gradients": (gradients, *[("bfloat16", 2, 4, 512, 128)] * 4),
    "float32": (functional.matmul, *[("float32", 1024, 1024)] * 2),
    "bytes": (bytes_product, *[("int8", 1024, 1024)] * 2),
}


@cache
def kernels(name: str) -> list[Kernel]:
    return kernels_of(*CASES[name])


@cache
def compiled(name: str, phase: int, target: str) -> CompiledFunction:
    """A phase of a computation's last kernel, for a chip."""
    source = render(kernels(name)[-1])
    numbers: Any = {
        field: (getattr(source, field)[phase],)
        for field in ("functions", "num_warps", "num_stages", "registers")
    }
    (function,) = compile(replace(source, **numbers), source.signature(), target).functions
    return function


@pytest.mark.parametrize(
    ("name", "phase", "target"),
    [
        ("gradients", 1, "sm_90"),
        ("gradients", 2, "sm_90"),
        ("gradients", 1, "gfx942"),
        ("float32", 0, "sm_90"),
        ("float32", 0, "gfx1201"),
        ("bytes", 1, "sm_90"),
        pytest.param("gradients", 2, "sm_120", marks=pytest.mark.slow),
        pytest.param("gradients", 2, "gfx942", marks=pytest.mark.slow),
        pytest.param("gradients", 2, "gfx1201", marks=pytest.mark.slow),
        pytest.param("float32", 0, "sm_120", marks=pytest.mark.slow),
        pytest.param("float32", 0, "gfx942", marks=pytest.mark.slow),
        pytest.param("bytes", 1, "gfx942", marks=pytest.mark.slow),
    ],
)
def test_matrix_instructions(name: str, phase: int, target: str) -> None:
    function = compiled(name, phase, target)
    assert MATRIX[target] in function.assembly
    if target == "sm_90":
        assert resources(function).spilled == 0


def test_gradients_of_attention_are_never_as_large_as_scores() -> None:
    *_, sweep = kernels("gradients")
    sizes = {b.name: b.shape for b in sweep.buffers}
    assert all(shape[2:] in ((512,), (512, 128)) for shape in sizes.values()), sizes
    # Converted on the way to memory, by two passes after what rows alone decide.
    assert {b.dtype.name for b in sweep.buffers if b.name.startswith("y")} == {"bfloat16"}
    assert len(sweep.phases) == 3
    text = render(sweep).text
    assert text.count("tl.dot(") == 3 + 4
    # Tiles past the diagonal are not visited, and only those on it are masked.
    assert "in range(64)" not in text
    assert text.count("if ") == 2


def test_a_reduction_is_given_to_those_who_need_it_later() -> None:
    found = kernels_of(lambda x: functional.logsumexp(x, 1).mean(), ("float32", 512, 5000))
    reads = [k for k in found if any(b.shape == (512, 5000) for b in k.buffers)]
    assert len(reads) == 1 and len(found) == 2


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("highest", 'input_precision="bf16x6"'), ("high", 'input_precision="bf16x3"'),
     ("medium", "tl.cast(tl.load(a0_ptr")],
)  # fmt: skip
def test_precisions_of_float32(precision: str, expected: str) -> None:
    (kernel,) = kernels("float32")
    assert expected in render(kernel, precision).text


def test_precision_is_set_for_all() -> None:
    assert genesis.get_float32_matmul_precision() == "highest"
    try:
        genesis.set_float32_matmul_precision("medium")
        assert genesis.get_float32_matmul_precision() == "medium"
        with pytest.raises(ValueError, match="'low' is none of 'highest', 'high', 'medium'"):
            genesis.set_float32_matmul_precision("low")
    finally:
        genesis.set_float32_matmul_precision("highest")
