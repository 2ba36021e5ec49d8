"""Contractions: sums of products. `matmul`, `einsum` and their relatives are one CONTRACT node.

A contraction names the axes of both operands and of the result by labels. Broadcasting needs no
copies: an axis of extent 1 on one side is dropped there, and the label belongs to the other alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.size import Dim
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast
from genesis.ndarray.core.value import Value
from genesis.ndarray.ops.elementwise import common_dtype
from genesis.ndarray.ops.movement import diagonal_value, normal_axis

Label = str | int


def matmul(a: NDArray, b: NDArray) -> NDArray:
    """The matrix product, over the last axis of a and the last but one of b.

    One-dimensional operands are vectors; leading axes are batches and broadcast.
    """
    dtype = _dtype("matmul", a, b)
    if not a.shape or not b.shape:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape}: both need at least one axis")
    inner = b.shape[-2 if b.ndim > 1 else 0]
    if a.shape[-1] != inner:
        raise ValueError(
            f"matmul: shapes {a.shape} and {b.shape} do not match: "
            f"inner sizes {a.shape[-1]} and {inner} differ"
        )
    rows = ["row"] if a.ndim > 1 else []
    columns = ["column"] if b.ndim > 1 else []
    batch: list[Label] = list(range(max(a.ndim, b.ndim) - 2))
    lhs = [*batch[len(batch) - max(0, a.ndim - 2) :], *rows, "inner"]
    rhs = [*batch[len(batch) - max(0, b.ndim - 2) :], "inner", *columns]
    return wrap(
        _contract("matmul", cast(a.value, dtype), cast(b.value, dtype), lhs, rhs,
                  [*batch, *rows, *columns])
    )  # fmt: skip


def dot(a: NDArray, b: NDArray) -> NDArray:
    """The inner product of two vectors."""
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError(f"dot: needs two vectors, got shapes {a.shape} and {b.shape}")
    return matmul(a, b)


def outer(a: NDArray, b: NDArray) -> NDArray:
    """All products of the elements of two vectors."""
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError(f"outer: needs two vectors, got shapes {a.shape} and {b.shape}")
    return einsum("i,j->ij", a, b)


def tensordot(a: NDArray, b: NDArray, axes: int | Sequence[Sequence[int]] = 2) -> NDArray:
    """The sum of products over pairs of axes: the last of a with the first of b, or those given."""
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise ValueError(f"tensordot: {axes} axes of shapes {a.shape} and {b.shape}")
        axes = (range(a.ndim - axes, a.ndim), range(axes))
    first = [normal_axis("tensordot", d, a.ndim) for d in axes[0]]
    second = [normal_axis("tensordot", d, b.ndim) for d in axes[1]]
    if len(first) != len(second) or any(
        a.shape[i] != b.shape[j] for i, j in zip(first, second, strict=True)
    ):
        raise ValueError(
            f"tensordot: axes {first} of {a.shape} and {second} of {b.shape} do not pair"
        )
    lhs: list[Label] = [f"a{d}" for d in range(a.ndim)]
    rhs: list[Label] = [f"b{d}" for d in range(b.ndim)]
    for i, j in zip(first, second, strict=True):
        rhs[j] = lhs[i]
    out = [x for x in lhs if x not in rhs] + [x for x in rhs if x not in lhs]
    dtype = _dtype("tensordot", a, b)
    return wrap(_contract("tensordot", cast(a.value, dtype), cast(b.value, dtype), lhs, rhs, out))


def einsum(subscripts: str, *operands: NDArray) -> NDArray:
    """A sum of products in Einstein's notation; several operands combine from left to right.

    >>> from genesis import ndarray as nd
    >>> einsum("ij,jk->ik", nd.ones((2, 3)), nd.ones((3, 4))).shape
    (2, 4)
    """
    terms, out = parse(subscripts, operands)
    dtype = _dtype("einsum", *operands)
    values = [cast(x.value, dtype) for x in operands]
    labels = list(terms)
    value, names = _diagonals(values[0], labels[0])
    for k in range(1, len(values)):
        other, others = _diagonals(values[k], labels[k])
        later = {*out, *(label for term in labels[k + 1 :] for label in term)}
        joined = [x for x in dict.fromkeys([*names, *others]) if x in later]
        value = _contract("einsum", value, other, names, others, joined)
        names = joined
    value, names = _summed(value, names, set(out))
    return wrap(primitive.permute(value, [names.index(x) for x in out]))


def parse(subscripts: str, operands: Sequence[NDArray]) -> tuple[list[list[Label]], list[Label]]:
    """The labels of every operand and of the result; the axes of ``...`` are negative numbers."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands) or not operands:
        raise ValueError(f"einsum: {subscripts!r} has {len(terms)} terms, not {len(operands)}")
    most = 0
    parsed: list[list[Label]] = []
    for term, x in zip(terms, operands, strict=True):
        letters = term.replace("...", "")
        if any(not c.isalpha() for c in letters) or len(term) - len(letters) not in (0, 3):
            raise ValueError(f"einsum: cannot read the term {term!r} of {subscripts!r}")
        extra = x.ndim - len(letters)
        if extra < 0 or (extra and "..." not in term):
            raise ValueError(f"einsum: the term {term!r} does not fit shape {x.shape}")
        most = max(most, extra)
        before, _, after = term.partition("...")
        parsed.append([*before, *range(-extra, 0), *after] if "..." in term else [*letters])
    dots: list[Label] = list(range(-most, 0))
    if arrow:
        before, found, after = right.partition("...")
        out: list[Label] = [*before, *(dots if found else []), *after]
    else:
        letters = "".join(t.replace("...", "") for t in terms)
        out = [*dots, *sorted(c for c in set(letters) if letters.count(c) == 1)]
    known = {label for term in parsed for label in term}
    if len(set(out)) != len(out) or any(label not in known for label in out):
        raise ValueError(f"einsum: the result {right!r} of {subscripts!r} must name axes once each")
    return parsed, out


def _diagonals(x: Value, labels: Sequence[Label]) -> tuple[Value, list[Label]]:
    """`x` with every label once: a repeated one means the diagonal."""
    names = list(labels)
    for label in list(dict.fromkeys(names)):
        while names.count(label) > 1:
            i = names.index(label)
            j = names.index(label, i + 1)
            if x.shape[i] != x.shape[j]:
                raise ValueError(f"einsum: label {label!r} has sizes {x.shape[i]} and {x.shape[j]}")
            x = diagonal_value(x, i, j)
            names = [n for d, n in enumerate(names) if d not in (i, j)] + [label]
    return x, names


def _summed(x: Value, names: list[Label], wanted: set[Label]) -> tuple[Value, list[Label]]:
    """`x` with the axes nobody wants summed."""
    axes = tuple(d for d, name in enumerate(names) if name not in wanted)
    return primitive.reduce(ops.SUM, x, axes), [n for n in names if n in wanted]


def _contract(
    name: str, x: Value, y: Value, lhs: Sequence[Label], rhs: Sequence[Label], out: Sequence[Label]
) -> Value:
    """A contraction whose shared labels may broadcast, and whose labels may be on one side only."""
    sizes: dict[Label, Dim] = dict(zip(lhs, x.shape, strict=True))
    others: dict[Label, Dim] = dict(zip(rhs, y.shape, strict=True))
    for label in [s for s in sizes if s in others]:
        if sizes[label] != others[label] and 1 not in (sizes[label], others[label]):
            raise ValueError(
                f"{name}: shapes {x.shape} and {y.shape} do not match: "
                f"sizes {sizes[label]} and {others[label]} of axis {label!r} differ"
            )
    x, left = _without_ones(x, lhs, others)
    y, right = _without_ones(y, rhs, sizes)
    x, left = _summed(x, left, {*right, *out})
    y, right = _summed(y, right, {*left, *out})
    return primitive.contract(x, y, left, right, out)


def _without_ones(
    x: Value, labels: Sequence[Label], others: dict[Label, Dim]
) -> tuple[Value, list[Label]]:
    """`x` without the axes of extent 1 that the other operand has in full."""
    kept = [
        d
        for d, label in enumerate(labels)
        if x.shape[d] != 1 or label not in others or others[label] == 1
    ]
    return primitive.reshape(x, tuple(x.shape[d] for d in kept)), [labels[d] for d in kept]


def _dtype(name: str, *operands: NDArray) -> DType:
    dtype = common_dtype(operands)
    if dtype.kind == "bool":
        raise TypeError(f"{name}: not defined for bool; cast with .astype first")
    return dtype


__all__ = ["dot", "einsum", "matmul", "outer", "tensordot"]
