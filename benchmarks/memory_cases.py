"""Work that memory limits: elementwise chains, reductions, norms, movement, indexing, an optimizer.

Arrays are several times as large as the caches. What a case must read and write at least is known,
and compared with a copy of as many bytes in the same run.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from benchmarks.cases import Arrays, Case, Draw, Random, Shape, Work, case, normal

M = 1 << 20
VECTOR: Shape = (16 * M,)
TABLE: Shape = (4096, 4096)
CUBE: Shape = (64, 512, 512)
ROWS: Shape = (8192, 2048)
IMAGES: Shape = (32, 64, 90, 92)
LOGITS: Shape = (1024, 32_000)
FLOAT = 4

memory = partial(case, group="memory", share=0.9)


def _bytes(*shapes: Shape) -> int:
    return FLOAT * sum(map(prod, shapes))


# ---- what the others are compared with

COPY = memory("copy, 16M", lambda lib, x: -x, normal(VECTOR), tiny=lambda x: -x,
              reads=_bytes(VECTOR), writes=_bytes(VECTOR))  # fmt: skip
SUM = memory("sum, 16M", lambda lib, x: x.sum(), normal(VECTOR), tiny=lambda x: x.sum(),
             reads=_bytes(VECTOR), goal=0.9)  # fmt: skip


# ---- reductions


def reduction(name: str, function: Any, shape: Shape, axis: Any) -> Case:
    """A reduction over some axes."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    left = prod(n for d, n in enumerate(shape) if d not in axes)
    title = f"{name} of {'x'.join(map(str, shape))} over {axis}"
    return memory(title, lambda lib, x: function(lib, x, axis), normal(shape),
                  reads=_bytes(shape), writes=FLOAT * left)  # fmt: skip


def total(lib: Any, x: Any, axis: Any) -> Any:
    return x.sum(axis)


def peak(lib: Any, x: Any, axis: Any) -> Any:
    return lib.amax(x, axis)


REDUCTIONS = [
    memory("max, 16M", lambda lib, x: x.max(), normal(VECTOR), reads=_bytes(VECTOR)),
    *(reduction("sum", total, TABLE, d) for d in (0, 1)),
    *(reduction("max", peak, TABLE, d) for d in (0, 1)),
    *(reduction("variance", lambda lib, x, d: lib.var(x, d), TABLE, d) for d in (0, 1)),
    *(reduction("sum", total, CUBE, d) for d in (0, 1, 2)),
    *(reduction("max", peak, CUBE, d) for d in (0, 1, 2)),
    reduction("mean", lambda lib, x, d: x.mean(d), CUBE, (0, 2)),
]


# ---- rows


def layer_norm(lib: Any, x: Any, weight: Any, bias: Any, *_: Any) -> Any:
    return lib.nn.functional.layer_norm(x, weight.shape, weight, bias)


def rms_norm(lib: Any, x: Any, weight: Any, *_: Any) -> Any:
    return lib.nn.functional.rms_norm(x, weight.shape, weight)


def batch_norm(lib: Any, x: Any, weight: Any, bias: Any, *_: Any) -> Any:
    return lib.nn.functional.batch_norm(x, None, None, weight, bias, True)


def softmax(lib: Any, x: Any, *_: Any) -> Any:
    return lib.softmax(x, -1)


def cross_entropy(lib: Any, scores: Any, classes: Any) -> Any:
    return lib.nn.functional.cross_entropy(scores, classes)


def _classes(rng: Random) -> Arrays:
    return [rng.standard_normal(LOGITS, np.float32), rng.integers(0, LOGITS[1], LOGITS[0])]


def norm(name: str, function: Any, shape: Shape, *weights: Shape, passes: int = 1) -> list[Case]:
    """A norm, and its gradients. Where rows exceed the caches, `passes` go over its input."""
    size = _bytes(shape)
    wanted = range(1 + len(weights))
    title = f"{name} {'x'.join(map(str, shape))}"
    forward, backward = normal(shape, *weights), normal(shape, *weights, shape)
    return [
        memory(title, function, forward, reads=passes * size, writes=size),
        memory(f"{title}, gradients", function, backward, grad=tuple(wanted),
               reads=(1 + passes) * size, writes=size),
    ]  # fmt: skip


_WIDTH, _CHANNELS = (ROWS[1],), (IMAGES[1],)

ROW_PROGRAMS = [
    *norm("softmax", softmax, ROWS),
    *norm("layer norm", layer_norm, ROWS, _WIDTH, _WIDTH),
    *norm("RMS norm", rms_norm, ROWS, _WIDTH),
    *norm("batch norm", batch_norm, IMAGES, _CHANNELS, _CHANNELS, passes=2),
    memory("cross entropy 1024x32000", cross_entropy, _classes, reads=_bytes(LOGITS)),
    memory("cross entropy 1024x32000, with gradient", cross_entropy, _classes, grad=(0,),
           reads=_bytes(LOGITS), writes=_bytes(LOGITS)),
]  # fmt: skip


# ---- movement


def movement(order: Shape, shape: Shape) -> Case:
    """A permutation of axes, made contiguous."""
    title = f"permute {''.join(map(str, order))} of {'x'.join(map(str, shape))}"
    return memory(title, lambda lib, x: x.permute(order).contiguous(), normal(shape),
                  reads=_bytes(shape), writes=_bytes(shape), share=0.7)  # fmt: skip


MOVEMENT = [
    memory("transpose 4096²", lambda lib, x: x.T.contiguous(), normal(TABLE),
           tiny=lambda x: x.T.contiguous(), reads=_bytes(TABLE), writes=_bytes(TABLE), share=0.7),
    movement((0, 2, 1, 3), (16, 1024, 16, 64)),
    movement((0, 2, 1, 3), (16, 16, 1024, 64)),
    movement((0, 2, 3, 1), (16, 64, 128, 128)),
    movement((0, 3, 1, 2), (16, 128, 128, 64)),
    movement((2, 1, 0), (256, 256, 256)),
    memory("concatenate 2 of 4096x2048", lambda lib, a, b: lib.cat([a, b], 1),
           normal((4096, 2048), (4096, 2048)), reads=_bytes(TABLE), writes=_bytes(TABLE)),
    *(memory(f"cumulative sum of 4096² over {d}", lambda lib, x, d=d: lib.cumsum(x, d),
             normal(TABLE), reads=_bytes(TABLE), writes=_bytes(TABLE)) for d in (0, 1)),
]  # fmt: skip


# ---- indexing


def _tokens(count: int, gradient: bool) -> Draw:
    def draw(rng: Random) -> Arrays:
        found = [rng.standard_normal((32_000, 1024), np.float32), rng.integers(0, 32_000, count)]
        return [*found, rng.standard_normal((count, 1024), np.float32)] if gradient else found

    return draw


def embedding(lib: Any, weight: Any, tokens: Any, *_: Any) -> Any:
    return lib.nn.functional.embedding(tokens, weight)


def _positions(rng: Random) -> Arrays:
    shape = (4096, 1024)
    x, y = (rng.standard_normal(shape, np.float32) for _ in range(2))
    return [x, rng.integers(0, shape[1], shape), y]


INDEXING = [
    memory("embedding, 16384 of 32000x1024", embedding, _tokens(16_384, False),
           reads=_bytes((16_384, 1024)), writes=_bytes((16_384, 1024))),
    memory("embedding gradient, 4096 of 32000x1024", embedding, _tokens(4096, True), grad=(0,),
           reads=_bytes((4096, 1024)), writes=_bytes((32_000, 1024))),
    memory("gather along rows of 4096x1024", lambda lib, x, i, y: lib.gather(x, 1, i), _positions,
           reads=12 * 4 * M, writes=4 * 4 * M),
    memory("scatter-add along rows of 4096x1024",
           lambda lib, x, i, y: lib.scatter_add(y, 1, i, x), _positions,
           reads=16 * 4 * M, writes=4 * 4 * M),
]  # fmt: skip


# ---- an optimizer


def _adam(library: str, compiled: bool = False) -> Any:
    def make(arrays: Arrays) -> Work:
        lib: Any = __import__(library)
        parameters = [lib.tensor(a).requires_grad_() for a in arrays[:100]]
        for p, a in zip(parameters, arrays[100:], strict=True):
            p.grad = lib.tensor(a)
        options = {"fused": True} if library == "torch" and not compiled else {}
        optimizer = lib.optim.Adam(parameters, 1e-3, **options)
        step = optimizer.step
        if library == "genesis":
            step = lib.jit(lambda: optimizer.step())
        elif compiled:
            step = lib.compile(step)
        return step

    return make


_WEIGHTS = [(160, 1024)] * 200
ADAM = Case(
    "Adam, 100 tensors of 160x1024",
    _WEIGHTS,
    _adam("genesis"),
    _adam("torch"),
    reads=2 * _bytes(*_WEIGHTS),
    writes=3 * _bytes(*_WEIGHTS) // 2,
    share=0.9,
    inductor=_adam("torch", True),
    group="memory",
)

MEMORY = [
    COPY,
    SUM,
    memory("relu(a·1.5 + b), 16M", lambda lib, a, b: lib.relu(a * 1.5 + b), normal(VECTOR, VECTOR),
           tiny=lambda a, b: (a * 1.5 + b).relu(), reads=2 * _bytes(VECTOR),
           writes=_bytes(VECTOR), goal=1.5),
    memory("gelu(x)·1.5 + x, 16M", lambda lib, x: lib.nn.functional.gelu(x) * 1.5 + x,
           normal(VECTOR), tiny=lambda x: x.gelu() * 1.5 + x, reads=_bytes(VECTOR),
           writes=_bytes(VECTOR), goal=1.5),
    *REDUCTIONS,
    *ROW_PROGRAMS,
    *MOVEMENT,
    *INDEXING,
    ADAM,
]  # fmt: skip
