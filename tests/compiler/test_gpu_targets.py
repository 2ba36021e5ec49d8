"""Every family of the sweep compiles for chips that are not here, to matrix instructions."""

from __future__ import annotations

import re

import pytest

import genesis
from benchmarks.gpu_sweep import call
from benchmarks.sweep_cases import FAMILIES, Draw, Layer, Models, Transformer
from genesis.backends.gpu.binary import request
from genesis.backends.gpu.compile import compile
from tests.compiler.test_gpu_schedule import MATRIX, kernels_of

pytest.importorskip("triton")
pytestmark = pytest.mark.slow

#: Large enough for tiles as models have them.
MODELS = Models(
    transformers=(Transformer("medium", 512, 8, 8, 64, 1024, 2048),),
    layers=(Layer("medium", 64, 128, 28, 3), Layer("strided", 64, 128, 28, 3, 2)),
    depthwise=(Layer("deep", 64, 64, 28, 5, 1, 64),),
    batches=(4,),
    lengths=(256,),
)
TARGETS = MATRIX | {"sm_100": "tcgen05.mma"}
#: What others compute.
CALLED = ("fourier", "factorisation")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in CALLED])
def test_kernels_of_a_family_compile(family: str, target: str) -> None:
    case = Draw(0, MODELS).case(family)
    inputs = [(x.dtype, *x.shape) for x in case.inputs]
    for kernel in kernels_of(call(genesis, case), *inputs):
        source = request(kernel, target).source
        functions = compile(source, source.signature(), target).functions
        assert len(functions) == len(kernel.phases)
        halves = re.search(r"= tl\.dot\((?!.*input_precision)", source.text)
        if halves and any(b.dtype.bits == 16 for b in kernel.buffers):
            assert any(TARGETS[target] in f.assembly for f in functions), kernel.name
