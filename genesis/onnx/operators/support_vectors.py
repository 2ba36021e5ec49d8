"""Operators of support vector machines (domain ai.onnx.ml)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from genesis import full_like, zeros_like
from genesis import functional as fn
from genesis.func import while_loop
from genesis.ir import dtype as dtypes
from genesis.onnx.operators.classical_ml import class_labels, named_classes, transformed
from genesis.onnx.registry import operator
from genesis.onnx.values import as_tensor

_LEAST = 1e-7  # probability of a class against another
_MOST_ROUNDS = 100


@operator("SVMRegressor", domain="ai.onnx.ml")
def svm_regressor(
    x: Any, *, coefficients: Any, rho: Any, support_vectors: Any = None, n_supports: int = 0,
    kernel_type: str = "LINEAR", kernel_params: Any = None, one_class: int = 0,
    post_transform: str = "NONE",
) -> Any:  # fmt: skip
    """Kernels with the support vectors, weighted; 1 or -1 for whether it is the one class.

    Runtimes do not transform it any further, whatever `post_transform` says.
    """
    x = _rows(x)
    weights = np.array(coefficients, np.float32)
    if n_supports:
        vectors = _table(support_vectors, n_supports)
        total = _weighted(x, vectors, weights.reshape(1, -1), kernel_type, kernel_params) + rho[0]
    else:
        total = x @ as_tensor(weights.reshape(-1, 1)) + rho[0]
    return (total > 0).to(dtypes.float32) * 2 - 1 if one_class else total


@operator("SVMClassifier", domain="ai.onnx.ml")
def svm_classifier(
    x: Any, *, coefficients: Any, rho: Any, support_vectors: Any = None,
    vectors_per_class: Sequence[int] | None = None, kernel_type: str = "LINEAR",
    kernel_params: Any = None, prob_a: Any = None, prob_b: Any = None,
    classlabels_ints: Any = None, classlabels_strings: Any = None, post_transform: str = "NONE",
) -> Any:  # fmt: skip
    """The class that wins most often against another, and the scores of pairs or of classes.

    Without support vectors each class has a row of coefficients. Probabilities are those of
    classes that fit those of pairs best.
    """
    x, labels = _rows(x), class_labels(classlabels_ints, classlabels_strings)
    weights, count = np.array(coefficients, np.float32), len(labels)
    if not vectors_per_class or not sum(vectors_per_class):
        scores = x @ as_tensor(weights.reshape(count, -1).T) + rho[0]
        chosen = fn.argmax(scores, -1)
        if count == 2 and not prob_a:  # the second is chosen where any score is high enough
            most = fn.amax(scores, -1)
            high = most >= 0.5 if (weights >= 0).all() else most > 0
            chosen = fn.maximum(chosen, high.to(chosen.dtype))
        return named_classes(chosen, labels), transformed(scores, post_transform)
    vectors = _table(support_vectors, sum(vectors_per_class))
    pairs = _pair_weights(weights.reshape(count - 1, -1), vectors_per_class)
    against = _weighted(x, vectors, pairs, kernel_type, kernel_params)
    against = against + as_tensor(np.array(rho, np.float32))
    chosen = fn.argmax(_votes(against, count), -1)
    if prob_a:
        scores = transformed(_coupled(against, prob_a, prob_b, count), post_transform)
    elif count == 2:
        scores = _both(against, post_transform)
    else:
        scores = transformed(against, post_transform)
    return named_classes(chosen, labels), scores


def _rows(x: Any) -> Any:
    return x.to(dtypes.float32).reshape(-1, x.shape[-1])


def _table(vectors: Any, count: int) -> Any:
    return np.array(vectors, np.float32).reshape(count, -1)


def _weighted(x: Any, vectors: Any, weights: Any, kind: str, params: Any) -> Any:
    """Kernels with vectors, summed with weights (sums, vectors): (rows, sums)."""
    if kind == "LINEAR":  # the vectors summed beforehand: large products would cancel
        vectors = (weights.astype(np.float64) @ vectors).astype(np.float32)
        return _kernels(x, vectors, kind, params)
    return _kernels(x, vectors, kind, params) @ as_tensor(weights.T.copy())


def _kernels(x: Any, vectors: Any, kind: str, params: Any) -> Any:
    """How alike rows and vectors are: (rows, vectors)."""
    gamma, first, degree = params or (0.0, 0.0, 0.0)
    if kind == "RBF":  # differences that are squared: products would cancel
        apart = x.unsqueeze(1) - as_tensor(vectors)
        return fn.exp(fn.sum(fn.square(apart), -1) * -gamma)
    products = x @ as_tensor(vectors.T.copy())
    if kind == "POLY":
        return (products * gamma + first) ** degree
    if kind == "SIGMOID":
        return fn.tanh(products * gamma + first)
    if kind != "LINEAR":
        raise ValueError(f"kernels of kind {kind!r}")
    return products


def _pair_weights(weights: Any, sizes: Sequence[int]) -> Any:
    """What each vector counts for in each pair of classes: (pairs, vectors)."""
    ends = np.cumsum([0, *sizes])
    pairs = list(combinations(range(len(sizes)), 2))
    table = np.zeros((len(pairs), ends[-1]), np.float32)
    for row, (i, j) in zip(table, pairs, strict=True):
        row[ends[i] : ends[i + 1]] = weights[j - 1, ends[i] : ends[i + 1]]
        row[ends[j] : ends[j + 1]] = weights[i, ends[j] : ends[j + 1]]
    return table


def _votes(against: Any, count: int) -> Any:
    """How many pairs each class wins: (rows, classes)."""
    wins, losses = np.zeros((2, against.shape[1], count), np.float32)
    for pair, (i, j) in enumerate(combinations(range(count), 2)):
        wins[pair, i] = losses[pair, j] = 1
    won = (against > 0).to(dtypes.float32)
    return won @ as_tensor(wins) + (1 - won) @ as_tensor(losses)


def _both(score: Any, post_transform: str) -> Any:
    """The scores of two classes, of that of the pair."""
    if post_transform == "NONE":
        return fn.cat([-score, score], -1)
    if post_transform == "LOGISTIC":
        return fn.sigmoid(fn.cat([-score, score], -1))
    if post_transform == "PROBIT":
        found = transformed(score, post_transform)
        return fn.cat([found, zeros_like(found)], -1)
    return fn.cat([1 - score, score], -1)


def _coupled(against: Any, a: Any, b: Any, count: int) -> Any:
    """Probabilities of classes from those of pairs (Wu, Lin and Weng 2004, second method).

    The iteration is that of libsvm, with its way to begin and its criterion to end: models are
    made and used with what it has reached then.
    """
    slope, first = (as_tensor(np.array(v, np.float32)) for v in (a, b))
    one = fn.clamp(1 - fn.sigmoid(against * slope + first), _LEAST, 1 - _LEAST)
    pairs = {pair: k for k, pair in enumerate(combinations(range(count), 2))}

    def wins(i: int, j: int) -> Any:
        return one[:, pairs[i, j]] if i < j else 1 - one[:, pairs[j, i]]

    q = [
        [
            -wins(j, i) * wins(i, j) if i != j
            else sum(fn.square(wins(k, i)) for k in range(count) if k != i)
            for j in range(count)
        ]
        for i in range(count)
    ]  # fmt: skip
    q = fn.stack([fn.stack(row, -1) for row in q], 1)  # (rows, classes, classes)
    itself = as_tensor(np.eye(count, dtype=np.float32))

    def errors(p: Any) -> tuple[Any, Any, Any]:
        product = fn.sum(q * p.unsqueeze(1), -1)
        whole = fn.sum(product * p, -1, True)
        return product, whole, fn.amax(fn.abs(product - whole), -1, True)

    def step(p: Any) -> tuple[Any]:
        product, whole, worst = errors(p)
        old = p
        for t in range(count):
            own = q[:, t, t].unsqueeze(1)
            move = (whole - product[:, t : t + 1]) / own
            whole = (whole + move * (move * own + 2 * product[:, t : t + 1])) / fn.square(1 + move)
            product = (product + move * q[:, t]) / (1 + move)
            p = (p + move * itself[t]) / (1 + move)
        return (fn.where(worst < 0.005 / count, old, p),)

    even = full_like(q[:, 0], 1 / count)
    rounds = 3 if count == 2 else _MOST_ROUNDS  # two classes are there soon
    (found,) = while_loop(
        lambda p: fn.any(errors(p)[2] >= 0.005 / count), step, (even,), max_steps=rounds
    )
    return found
