"""A fixed set of programs and what the compiler makes of them, on a chip that does not change.

``python tests/replay.py`` writes `replay.json`: for every kernel its schedule, a hash of its code
and its proofs. The test compares, so a refactoring shows exactly what it changed, and a change
that is meant is looked at in the file's diff.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from genesis import ndarray as nd
from genesis.backends.cpu.chip import CPU
from genesis.backends.cpu.codegen.render import render
from genesis.compiler.fuse.fuse import fuse
from genesis.compiler.graph.simplify import simplify
from genesis.compiler.lower.lower import lower
from genesis.compiler.schedule import schedule
from genesis.compiler.verify.kernel import verify
from genesis.ir import ops
from genesis.ir.node import Leaf, Node, node, topological

FILE = Path(__file__).with_name("replay.json")
CHIP = CPU(
    name="replay",
    vector_bytes=64,
    vector_registers=32,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=32 << 20,
    features=frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
)


def _layer_norm(x: nd.NDArray, g: nd.NDArray) -> nd.NDArray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred * nd.rsqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) * g


def _attention(q: nd.NDArray, k: nd.NDArray, v: nd.NDArray) -> nd.NDArray:
    n = q.shape[-2]
    scores = (q @ k.mT) * 0.125
    seen = nd.arange(n)[:, None] >= nd.arange(n)[None, :]
    return nd.softmax(nd.where(seen, scores, -float("inf")), -1) @ v


def _convolution(x: nd.NDArray, w: nd.NDArray) -> nd.NDArray:
    x = nd.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return nd.einsum("nchwij,fcij->nfhw", nd.windows(nd.windows(x, 2, 3), 3, 3), w)


#: name -> (function, shapes of its arguments)
PROGRAMS: dict[str, tuple[Callable[..., nd.NDArray], tuple[tuple[int, ...], ...]]] = {
    "chain": (lambda x: nd.relu(x * 1.5 + x - 0.5), ((1 << 20,),)),
    "sum": (lambda x: x.sum(), ((1 << 20,),)),
    "column sum": (lambda x: x.sum(axis=0), ((1024, 1024),)),
    "transpose": (lambda x: x.T + 2.0, ((513, 700),)),
    "softmax": (lambda x: nd.softmax(x, -1), ((64, 1000),)),
    "layer norm": (_layer_norm, ((64, 768), (768,))),
    "matmul": (lambda x, y: x @ y, ((256, 256), (256, 256))),
    "linear and gelu": (lambda x, w, b: nd.gelu(x @ w.T + b), ((128, 256), (512, 256), (512,))),
    "matrix times vector": (lambda x, y: x @ y, ((512, 512), (512,))),
    "attention": (_attention, ((1, 4, 128, 64),) * 3),
    "convolution": (_convolution, ((2, 16, 28, 28), (32, 16, 3, 3))),
}


def entries() -> dict[str, Any]:
    """What the compiler makes of every program."""
    return {name: list(_kernels(*program)) for name, program in PROGRAMS.items()}


def _kernels(
    function: Callable[..., nd.NDArray], shapes: tuple[tuple[int, ...], ...]
) -> Iterator[dict[str, Any]]:
    arguments = [nd.ones(shape).realize() for shape in shapes]
    fusion = fuse(simplify([_interned(function(*arguments))]))
    for group in fusion.groups:
        kernel = schedule(lower(group, fusion.stored).kernel, CHIP)
        verdict = verify(kernel)
        code = render(kernel, CHIP).text
        yield {
            "schedule": str(kernel).splitlines(),
            "code": hashlib.sha256(code.encode()).hexdigest()[:16],
            "claims": len(verdict.claims),
            "proven": verdict.proven,
        }


def _interned(array: nd.NDArray) -> Node:
    order = topological([array.value])
    nodes: dict[Any, Node] = {}
    slots = scalars = 0
    for v in order:
        if v.memory is not None:
            nodes[v] = node(ops.BUFFER, (), Leaf(slots, v.strides), v.dtype, v.shape)
            slots += 1
        elif v.op is ops.SCALAR:
            nodes[v] = node(ops.SCALAR, (), scalars, v.dtype)
            scalars += 1
        else:
            nodes[v] = node(v.op, tuple(nodes[i] for i in v.inputs), v.attr, v.dtype, v.shape)
    return nodes[order[-1]]


if __name__ == "__main__":
    FILE.write_text(json.dumps(entries(), indent=1) + "\n")
