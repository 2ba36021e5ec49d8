"""Products of matrices and their relatives: sums of products over shared dimensions.

Both kinds have one rule each: the gradient of a matrix product is two matrix products, and that of
a contraction of two operands two contractions. `einsum` of many operands contracts them in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import add, conj, mul
from genesis.functional.diagonals import diagonal
from genesis.functional.elementwise_function import as_number
from genesis.functional.error_messages import called, normal_dim
from genesis.functional.function import Function
from genesis.functional.movement import expand, permute, reshape, squeeze, transpose, unsqueeze
from genesis.functional.reduction import sum
from genesis.functional.registry import method
from genesis.functional.value_checks import demanded
from genesis.ir.size import product
from genesis.ndarray.ops.contraction import parse


class Matmul(Function):
    """The product of matrices, or of batches of them, each at least two-dimensional."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        needs = ctx.needs_input_grad or (True, True)
        ctx.one_matrix = len(y.shape) == 2
        ctx.one_left = len(x.shape) == 2
        ctx.save_for_backward(x if needs[1] else None, y if needs[0] else None)
        return nd.matmul(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, y = ctx.saved_tensors
        to_x = to_y = None
        if y is not None and ctx.one_left and len(y.shape) > 2:
            # One matrix before a whole batch: nothing is rounded before the sum over the batch.
            batch = product(y.shape[:-2])
            g, y = (reshape(z, (batch, *z.shape[-2:])) for z in (grad, y))
            to_x = Contract.apply(g, conj(y), "bik", "bjk", "ij")
        elif y is not None:
            to_x = Matmul.apply(grad, conj(transpose(y, -1, -2)))
        if x is not None:
            if ctx.one_matrix and len(x.shape) > 2:
                # One weight for a whole batch: its gradient is one product over all rows.
                rows = product(x.shape[:-1])
                x = reshape(x, (rows, x.shape[-1]))
                grad = reshape(grad, (rows, grad.shape[-1]))
            to_y = Matmul.apply(conj(transpose(x, -1, -2)), grad)
        return to_x, to_y


@method
def matmul(input: Any, other: Any) -> Any:
    """The matrix product, with PyTorch's rules for vectors and batches."""
    if len(input.shape) == 1 and len(other.shape) == 1:
        return dot(input, other)
    if len(input.shape) == 1:
        return squeeze(Matmul.apply(unsqueeze(input, 0), other), -2)
    if len(other.shape) == 1:
        return squeeze(Matmul.apply(input, unsqueeze(other, -1)), -1)
    return Matmul.apply(input, other)


def _require(name: str, x: Any, rank: int) -> Any:
    if len(x.shape) != rank:
        kind = {1: "a vector", 2: "a matrix", 3: "a batch of matrices"}[rank]
        raise ValueError(f"{called(name)}: needs {kind}, got shape {tuple(x.shape)}")
    return x


@method
def mm(input: Any, mat2: Any) -> Any:
    """The product of two matrices."""
    return Matmul.apply(_require("mm", input, 2), _require("mm", mat2, 2))


@method
def bmm(input: Any, mat2: Any) -> Any:
    """The products of two batches of matrices."""
    _require("bmm", input, 3), _require("bmm", mat2, 3)
    if input.shape[0] != mat2.shape[0]:
        raise ValueError(f"bmm: batches of {input.shape[0]} and {mat2.shape[0]} matrices")
    return Matmul.apply(input, mat2)


@method
def mv(input: Any, vec: Any) -> Any:
    """The product of a matrix and a vector."""
    return matmul(_require("mv", input, 2), _require("mv", vec, 1))


@method
def dot(input: Any, tensor: Any) -> Any:
    """The sum of the products of two vectors."""
    _require("dot", input, 1), _require("dot", tensor, 1)
    if input.shape != tensor.shape:
        raise ValueError(
            f"{called('dot')}: vectors of {input.shape[0]} and {tensor.shape[0]} elements"
        )
    return Contract.apply(input, tensor, "i", "i", "")


@method
def vdot(input: Any, other: Any) -> Any:
    """`dot` with the conjugate of the first vector."""
    return dot(conj(input), other)


@method
def inner(input: Any, other: Any) -> Any:
    """The sums of products over the last dimensions."""
    if not input.shape or not other.shape:
        return mul(input, other)
    return tensordot(input, other, ([-1], [-1]))


@method
def outer(input: Any, vec2: Any) -> Any:
    """All products of the elements of two vectors."""
    _require("outer", input, 1), _require("outer", vec2, 1)
    return unsqueeze(input, 1) * vec2


ger = outer


@method
def kron(input: Any, other: Any) -> Any:
    """All products of elements, each of `input` replaced by a block."""
    rank = max(len(input.shape), len(other.shape))
    left, right = ((1,) * (rank - len(x.shape)) + tuple(x.shape) for x in (input, other))
    x = reshape(input, [n for s in left for n in (s, 1)])
    y = reshape(other, [n for s in right for n in (1, s)])
    return reshape(x * y, [a * b for a, b in zip(left, right, strict=True)])


# ---- added to something


def _added(input: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """beta * input + alpha * product; what beta = 0 takes away need not be a number."""
    beta, alpha = (as_number(x, product.dtype) for x in (beta, alpha))
    if beta == 0:
        return product if alpha == 1 else product * alpha
    return add(input if beta == 1 else input * beta, product, alpha=alpha)


@method(in_place=True)
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """``beta * input + alpha * mat1 @ mat2``."""
    return _added(input, mm(mat1, mat2), beta, alpha)


@method(in_place=True)
def addmv(input: Any, mat: Any, vec: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """``beta * input + alpha * mat @ vec``."""
    return _added(input, mv(mat, vec), beta, alpha)


@method(in_place=True)
def addr(input: Any, vec1: Any, vec2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """``beta * input + alpha * outer(vec1, vec2)``."""
    return _added(input, outer(vec1, vec2), beta, alpha)


@method(in_place=True)
def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """``beta * input + alpha * batch1 @ batch2``, for batches."""
    return _added(input, bmm(batch1, batch2), beta, alpha)


@method(in_place=True)
def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """``beta * input`` plus `alpha` times the sum of the products of a batch."""
    _require("addbmm", batch1, 3), _require("addbmm", batch2, 3)
    return _added(input, einsum("bij,bjk->ik", batch1, batch2), beta, alpha)


# ---- contractions


class Contract(Function):
    """The sum of products over the labels that the result does not name."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, lhs: str, rhs: str, out: str) -> Any:
        ctx.labels, ctx.shapes = (lhs, rhs, out), (x.shape, y.shape)
        needs = ctx.needs_input_grad or (True, True)
        ctx.save_for_backward(x if needs[1] else None, y if needs[0] else None)
        return nd.einsum(f"{lhs},{rhs}->{out}", x, y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, y = ctx.saved_tensors
        lhs, rhs, out = ctx.labels
        to_x = None if y is None else _returned(grad, out, conj(y), rhs, lhs, ctx.shapes[0])
        to_y = None if x is None else _returned(grad, out, conj(x), lhs, rhs, ctx.shapes[1])
        return to_x, to_y, None, None, None


def _returned(grad: Any, out: str, other: Any, labels: str, mine: str, shape: Any) -> Any:
    """The gradient of an operand: constant along labels that only the operand has."""
    known = "".join(c for c in mine if c in out or c in labels)
    found = Contract.apply(grad, other, out, labels, known)
    if known == mine:
        return found
    sizes = dict(zip(known, found.shape, strict=True))
    thin = reshape(found, [sizes.get(c, 1) for c in mine])
    return expand(thin, [sizes.get(c, s) for c, s in zip(mine, shape, strict=True)])


def einsum(equation: Any, *operands: Any) -> Any:
    """A sum of products in Einstein's notation; operands combine in the cheapest order of pairs.

    >>> from genesis import functional, ndarray as nd
    >>> functional.einsum("ij,jk->ik", nd.ones((2, 3)), nd.ones((3, 4))).shape
    (2, 4)
    """
    if not isinstance(equation, str):
        equation, operands = _written(equation, operands)
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    terms, out = parse(equation, operands)
    known = {label for term in terms for label in term}
    spare = iter(c for c in map(chr, range(65, 123)) if c.isalpha() and c not in known)
    # The dimensions of "..." get letters of their own.
    letters = {label: label if isinstance(label, str) else next(spare) for label in known}
    waiting = []
    for x, term in zip(operands, terms, strict=True):
        waiting.append(_once(x, "".join(letters[label] for label in term)))
    result = "".join(letters[label] for label in out)
    while len(waiting) > 1:
        i, j = _cheapest(waiting)
        (y, rhs), (x, lhs) = waiting.pop(j), waiting.pop(i)
        later = {*result, *(c for _, labels in waiting for c in labels)}
        joined = "".join(c for c in dict.fromkeys(lhs + rhs) if c in later)
        target = joined if waiting else result
        waiting.insert(i, (Contract.apply(x, y, lhs, rhs, target), target))
    ((x, labels),) = waiting
    gone = tuple(d for d, c in enumerate(labels) if c not in result)
    rest = "".join(c for c in labels if c in result)
    x = sum(x, gone) if gone else x
    return x if rest == result else permute(x, [rest.index(c) for c in result])


def _once(x: Any, labels: str) -> tuple[Any, str]:
    """`x` with every label once: a repeated one means the diagonal."""
    for c in dict.fromkeys(labels):
        while labels.count(c) > 1:
            i = labels.index(c)
            j = labels.index(c, i + 1)
            if x.shape[i] != x.shape[j]:
                raise ValueError(f"einsum: label {c!r} has sizes {x.shape[i]} and {x.shape[j]}")
            x = diagonal(x, 0, i, j)
            labels = labels[:i] + labels[i + 1 : j] + labels[j + 1 :] + c
    return x, labels


#: What a size that is a symbol counts as.
_OPEN = 256


def _cheapest(waiting: Sequence[tuple[Any, str]]) -> tuple[int, int]:
    """The pair of operands whose contraction takes the least work."""
    if len(waiting) == 2:
        return 0, 1
    work = {}
    for j in range(len(waiting)):
        for i in range(j):
            (x, lhs), (y, rhs) = waiting[i], waiting[j]
            sizes: dict[str, int] = {}
            for c, s in [*zip(lhs, x.shape, strict=True), *zip(rhs, y.shape, strict=True)]:
                sizes[c] = max(sizes.get(c, 1), s if isinstance(s, int) else _OPEN)
            total = 1
            for s in sizes.values():
                total *= s
            work[total, i, j] = i, j
    return work[min(work)]


def _written(first: Any, rest: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Operands with lists of numbers for their dimensions, as an equation."""
    items = [first, *rest]
    lists = [items[k] for k in range(1, len(items), 2)]
    operands = [items[k] for k in range(0, len(items) - len(items) % 2, 2)]
    if len(items) % 2:
        lists.append(items[-1])
    letters = [c for c in map(chr, range(65, 123)) if c.isalpha()]
    texts = ["".join("..." if n is ... else letters[n] for n in numbers) for numbers in lists]
    inputs = ",".join(texts[: len(operands)])
    return (f"{inputs}->{texts[-1]}" if len(items) % 2 else inputs), tuple(operands)


def tensordot(a: Any, b: Any, dims: Any = 2) -> Any:
    """The sum of products over pairs of dimensions: the last of a with the first of b, or given."""
    ranks = len(a.shape), len(b.shape)
    if isinstance(dims, int):
        if not 0 <= dims <= min(ranks):
            raise ValueError(f"tensordot: {dims} dims of shapes {tuple(a.shape)}, {tuple(b.shape)}")
        dims = [*range(ranks[0] - dims, ranks[0])], [*range(dims)]
    first = [normal_dim("tensordot", d, ranks[0]) for d in dims[0]]
    second = [normal_dim("tensordot", d, ranks[1]) for d in dims[1]]
    pairs = list(zip(first, second, strict=False))
    for i, j in pairs:  # a dimension of one is summed over before it meets a longer one
        if a.shape[i] == 1 and b.shape[j] != 1:
            b = sum(b, j, keepdim=True)
        elif b.shape[j] == 1 and a.shape[i] != 1:
            a = sum(a, i, keepdim=True)
    if len(first) != len(second) or any(a.shape[i] != b.shape[j] for i, j in pairs):
        raise ValueError(
            f"tensordot: dims {first} of {tuple(a.shape)} and {second} of {tuple(b.shape)} do not "
            "pair"
        )
    letters = [c for c in map(chr, range(65, 123)) if c.isalpha()]
    lhs, rhs = letters[: ranks[0]], letters[ranks[0] : ranks[0] + ranks[1]]
    for i, j in pairs:
        rhs[j] = lhs[i]
    out = [c for c in lhs if c not in rhs] + [c for c in rhs if c not in lhs]
    return Contract.apply(a, b, "".join(lhs), "".join(rhs), "".join(out))


def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """``input1 @ weight[k] @ input2 + bias[k]`` for every k."""
    result = einsum("...i,kij,...j->...k", input1, weight, input2)
    return result if bias is None else result + bias


def chain_matmul(*matrices: Any) -> Any:
    """The product of several matrices, in the order that takes the least work."""
    from genesis.functional.linalg import multi_dot

    return matrices[0] if len(matrices) == 1 else multi_dot(matrices)


@method
def cross(input: Any, other: Any, dim: int | None = None) -> Any:
    """The cross product of vectors of three, by default along the first dimension of that size."""
    from genesis.functional import linalg

    if dim is None:
        dim = next((d for d, s in enumerate(input.shape) if s == 3), None)
        if dim is None:
            raise ValueError(f"cross: no dimension of {tuple(input.shape)} has size 3")
    return linalg.cross(input, other, dim=dim)


# ---- statistics of rows


@method
def trace(input: Any) -> Any:
    """The sum of a matrix's diagonal."""
    return sum(diagonal(_require("trace", input, 2)))


@method
def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """The covariances of rows of observations, each counted or weighted if so wanted."""
    if len(input.shape) > 2:
        raise ValueError(f"cov: needs a matrix of rows, got shape {tuple(input.shape)}")
    x = input if len(input.shape) == 2 else reshape(input, (1, -1))
    for name, w in (("fweights", fweights), ("aweights", aweights)):
        if w is not None and tuple(w.shape) != tuple(x.shape[1:]):
            raise ValueError(f"cov: {name} of shape {tuple(w.shape)} for {x.shape[1]} observations")
    if fweights is not None and not fweights.dtype.is_integer:
        raise TypeError(f"cov: fweights are counts, not {fweights.dtype}")
    if aweights is not None and not aweights.dtype.is_float:
        raise TypeError(f"cov: aweights are floating point, not {aweights.dtype}")
    weights = [
        demanded(w, lambda x: x < 0, f"cov: {name} are negative")
        for name, w in (("fweights", fweights), ("aweights", aweights))
        if w is not None
    ]
    if not weights:
        count: Any = x.shape[1]
        middle = sum(x, 1, True) / count
        divisor = max(count - correction, 0)
        moved = x - middle
        scaled = conj(moved)
    else:
        weight = weights[0] if len(weights) == 1 else weights[0] * weights[1]
        total = sum(weight)
        middle = sum(x * weight, 1, True) / total
        spread = total if aweights is None else sum(weight * weights[-1]) / total
        divisor = total - spread * correction if aweights is not None else total - correction
        moved = x - middle
        scaled = conj(moved) * weight
    found = matmul(moved, transpose(scaled, 0, 1)) / divisor
    return reshape(found, ()) if x.shape[0] == 1 else found


@method
def corrcoef(input: Any) -> Any:
    """The correlations of rows of observations."""
    from genesis.functional.complexes import real
    from genesis.functional.elementary import sqrt

    c = cov(input)
    if not c.shape:
        return c / c
    scale = sqrt(real(diagonal(c)))
    return c / unsqueeze(scale, 1) / scale


__all__ = [
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bilinear", "bmm", "chain_matmul", "corrcoef",
    "cov", "cross", "dot", "einsum", "ger", "inner", "kron", "matmul", "mm", "mv", "outer",
    "tensordot", "trace", "vdot",
]  # fmt: skip
