"""Operators of classical learning (domain ai.onnx.ml): features, linear models, trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.onnx.registry import Operand, operator
from genesis.onnx.values import as_host, as_tensor

_ML = "ai.onnx.ml"


@operator("Scaler", domain=_ML)
def scaler(x: Any, *, offset: Any, scale: Any) -> Any:
    """(x - offset) scale."""
    from genesis import tensor

    return (x.to(dtypes.float32) - tensor(offset)) * tensor(scale)


@operator("Normalizer", domain=_ML)
def normalizer(x: Any, *, norm: str = "MAX") -> Any:
    """Rows divided by a norm, where that is not zero."""
    from genesis import ones

    x = x.to(dtypes.float32)
    if norm == "MAX":  # the greatest number, not the one that is farthest from zero
        size = fn.amax(x, -1, True)
    elif norm == "L1":
        size = fn.sum(fn.abs(x), -1, True)
    else:
        size = fn.sqrt(fn.sum(fn.square(x), -1, True))
    return x / fn.where(size == 0, ones((), dtype=size.dtype), size)


@operator("Imputer", domain=_ML)
def imputer(
    x: Any, *, imputed_value_floats: Any = None, imputed_value_int64s: Any = None,
    replaced_value_float: float = 0.0, replaced_value_int64: int = 0,
) -> Any:  # fmt: skip
    """Other values for what is missing."""
    floats = imputed_value_floats is not None
    value = np.array(imputed_value_floats if floats else imputed_value_int64s)
    missing = replaced_value_float if floats else replaced_value_int64
    gone = fn.isnan(x) if missing != missing else x == missing
    return fn.where(gone, as_tensor(value).to(x.dtype), x)


@operator("FeatureVectorizer", domain=_ML)
def feature_vectorizer(*columns: Any, inputdimensions: Any = None) -> Any:
    """Columns beside each other."""
    widths = inputdimensions or [x.shape[-1] for x in columns]
    rows = [x if x.ndim > 1 else x.reshape(1, -1) for x in columns]
    return fn.cat([x[:, :n].to(dtypes.float32) for x, n in zip(rows, widths, strict=True)], 1)


@operator("OneHotEncoder", domain=_ML)
def one_hot_encoder(
    x: Operand, *, cats_int64s: Any = None, cats_strings: Any = None, zeros: int = 1
) -> Any:
    """A column for each category."""
    if cats_strings is None:
        own = as_tensor(x).to(dtypes.int64).unsqueeze(-1) == as_tensor(np.array(cats_int64s))
        return own.to(dtypes.float32)
    known = np.array([*cats_strings, None], object)[:-1]
    own = np.asarray(as_host(x), object)[..., None] == known
    if not zeros and not own.any(-1).all():
        raise ValueError("a category that is unknown")
    return own.astype(np.float32)


# ---- linear models


@operator("LinearRegressor", domain=_ML)
def linear_regressor(
    x: Any, *, coefficients: Any, intercepts: Any = None, targets: int = 1,
    post_transform: str = "NONE",
) -> Any:  # fmt: skip
    """Rows times coefficients."""
    return transformed(_linear(x, coefficients, intercepts, targets), post_transform)


@operator("LinearClassifier", domain=_ML)
def linear_classifier(
    x: Any, *, coefficients: Any, intercepts: Any = None, classlabels_ints: Any = None,
    classlabels_strings: Any = None, multi_class: int = 0, post_transform: str = "NONE",
) -> Any:  # fmt: skip
    """The class with the highest score, and the scores of all."""
    labels = class_labels(classlabels_ints, classlabels_strings)
    count = len(intercepts) if intercepts else len(coefficients) // int(x.shape[-1])
    scores = _linear(x, coefficients, intercepts, count)
    if count == 1 and len(labels) == 2:  # that of the second
        second = scores > (0.5 if post_transform == "LOGISTIC" else 0.0)
        # Other transforms than the logistic one are left out here, as runtimes do.
        plain = post_transform != "LOGISTIC"
        scores = fn.cat([1 - scores, scores], -1) if plain else _pair(scores, post_transform)
        chosen = (scores[:, 1:] > 0.5 if post_transform == "LOGISTIC" else second).to(dtypes.int64)
        return named_classes(chosen.reshape(-1), labels), scores
    chosen = fn.argmax(scores, -1)
    return named_classes(chosen, labels), transformed(scores, post_transform)


def _linear(x: Any, coefficients: Any, intercepts: Any, count: int) -> Any:
    weight = as_tensor(np.array(coefficients, np.float32).reshape(count, -1))
    total = x.to(dtypes.float32).reshape(-1, x.shape[-1]) @ weight.T
    return total if not intercepts else total + as_tensor(np.array(intercepts, np.float32))


def _pair(scores: Any, post_transform: str) -> Any:
    """The scores of two classes, of that of the second."""
    if post_transform == "LOGISTIC":
        return fn.sigmoid(fn.cat([-scores, scores], -1))
    return transformed(fn.cat([-scores, scores], -1), post_transform)


def transformed(scores: Any, how: str) -> Any:
    """Scores as an attribute `post_transform` wants them."""
    if how == "NONE":
        return scores
    if how == "SOFTMAX":
        return fn.softmax(scores, -1)
    if how == "LOGISTIC":
        return fn.sigmoid(scores)
    if how == "SOFTMAX_ZERO":  # classes that have no score keep none
        own = scores != 0
        parts = fn.where(own, fn.exp(scores - fn.amax(scores, -1, True)), scores)
        return parts / fn.sum(parts, -1, True)
    if how == "PROBIT":
        return _probit(scores)
    raise ValueError(f"scores as {how}")


def _probit(p: Any) -> Any:
    """Where the normal distribution reaches `p`, in the approximation by Winitzki (2008).

    It is what runtimes compute; the exact function is up to 0.002 away from it.
    """
    x = 2 * p - 1
    log = fn.log((1 - x) * (1 + x))
    v = 2 / (3.14159 * 0.147) + log * 0.5
    size = fn.sqrt(fn.sqrt(v * v - log / 0.147) - v)
    return fn.where(x < 0, -size, size) * 2**0.5


def class_labels(numbers: Any, texts: Any) -> Any:
    """The names of classes as an array: numbers or texts."""
    if numbers is not None:
        return np.array(numbers, np.int64)
    if texts is None:
        raise ValueError("classes without names")
    return np.array([*texts, None], object)[:-1]


def named_classes(chosen: Any, labels: Any) -> Any:
    """The names of classes; where they are texts, that is known when it has been computed."""
    return labels[as_host(chosen)] if labels.dtype == object else as_tensor(labels)[chosen]


# ---- trees

#: How a node compares a feature with its threshold; 6 asks whether it is in a set.
_MODES = (
    lambda v, s: v <= s, lambda v, s: v < s, lambda v, s: v >= s, lambda v, s: v > s,
    lambda v, s: v == s, lambda v, s: v != s,
)  # fmt: skip
_MEMBER = 6
#: What the numbers of version 5 mean.
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@operator("TreeEnsemble", since=5, domain=_ML)
def tree_ensemble(
    x: Any, *, leaf_targetids: Any, leaf_weights: Any, nodes_falseleafs: Any,
    nodes_falsenodeids: Any, nodes_featureids: Any, nodes_modes: Any, nodes_splits: Any,
    nodes_trueleafs: Any, nodes_truenodeids: Any, tree_roots: Any, n_targets: int = 1,
    aggregate_function: int = 1, membership_values: Any = None, nodes_hitrates: Any = None,
    nodes_missing_value_tracks_true: Any = None, post_transform: int = 0,
) -> Any:  # fmt: skip
    """Trees of decisions: all rows go down all trees together, a level at a time."""
    n = len(nodes_featureids)
    yes, no = (
        np.array(ids, np.int64) + n * np.array(leafs, np.int64)
        for ids, leafs in (
            (nodes_truenodeids, nodes_trueleafs), (nodes_falsenodeids, nodes_falseleafs)
        )
    )  # fmt: skip
    features, modes = np.array(nodes_featureids, np.int64), np.array(nodes_modes, np.int64)
    _require_places(features, x.shape[1], "feature")
    _require_places(np.concatenate([yes, no]), n + len(leaf_weights), "node")
    _require_places(np.array(leaf_targetids, np.int64), n_targets, "target")
    how = _AGGREGATES[_number_of(aggregate_function, _AGGREGATES)]
    transform = _TRANSFORMS[_number_of(post_transform, _TRANSFORMS)]
    roots = np.array(tree_roots, np.int64)
    depth = _depth(roots, yes, no, n)
    itself = np.arange(n, n + len(leaf_weights))
    node = _leaves(
        x, roots, depth,
        np.concatenate([yes, itself]), np.concatenate([no, itself]),
        _filled(features, itself), _filled(modes, itself),
        _filled(np.asarray(nodes_splits), itself),
        _filled(np.array(nodes_missing_value_tracks_true or [0] * n, bool), itself),
        _filled(_sets(modes, membership_values), itself),
        {int(m) for m in modes},
    )  # fmt: skip
    return transformed(_gathered(node - n, leaf_targetids, leaf_weights, n_targets, how), transform)


def _number_of(number: int, known: Sequence[str]) -> int:
    if not 0 <= number < len(known):
        raise ValueError(f"{number} is none of {known}")
    return number


def _leaves(
    x: Any, roots: Any, depth: int, yes: Any, no: Any, features: Any, modes: Any, splits: Any,
    missing: Any, sets: Any, asked: set[int],
) -> Any:  # fmt: skip
    """The leaves that rows come to (rows, trees), a level of all trees at a time.

    A leaf leads to itself. Where all nodes ask alike, and none is for what is missing, no node is
    asked how it asks.
    """
    count = len(yes)
    small = np.int32 if 2 * count <= np.iinfo(np.int32).max else np.int64

    def column(values: Any, kind: Any = None) -> Any:
        return as_tensor(np.ascontiguousarray(values, kind))

    kind = x.dtype.numpy
    feature, split, ways = column(features, small), column(splits, kind), None
    children = column(np.stack([no, yes], 1).reshape(-1), small)
    node = _within(column(roots, small), count).reshape(1, -1).expand(x.shape[0], len(roots))
    for _ in range(depth):
        value = fn.gather(x, 1, _within(feature[node], x.shape[1]))
        goes = None
        for mode in sorted(asked):
            if mode == _MEMBER:
                found = fn.any(fn.unsqueeze(value, -1) == column(sets)[node].to(x.dtype), -1)
            else:
                found = _MODES[mode](value, split[node])
            if len(asked) > 1:
                ways = column(modes, small) if ways is None else ways
                found = fn.logical_and(ways[node] == mode, found)
            goes = found if goes is None else fn.logical_or(goes, found)
        if missing.any():
            goes = fn.logical_or(goes, fn.logical_and(fn.isnan(value), column(missing)[node]))
        assert goes is not None
        node = _within(children[2 * node + goes.to(node.dtype)], count)
    return node


_FEW = 16  # targets that are summed one by one
#: The names of comparisons before version 5, as its numbers.
_NAMES = {
    "BRANCH_LEQ": 0, "BRANCH_LT": 1, "BRANCH_GTE": 2, "BRANCH_GT": 3, "BRANCH_EQ": 4,
    "BRANCH_NEQ": 5,
}  # fmt: skip


def _forest(
    x: Any, trees: dict[str, Any], owners: tuple[Any, Any], targets: Any, weights: Any, count: int
) -> Any:
    """The leaves that rows come to, and what each is for every target, of trees before version 5.

    There a node is known by its tree and its number, leaves are nodes, and a leaf may have several
    targets: each leaf is a row of weights.
    """

    def listed(name: str) -> Any:
        found = trees.get(f"nodes_{name}_as_tensor")
        return np.asarray(trees.get(f"nodes_{name}") or [] if found is None else found)

    own = list(zip(trees["nodes_treeids"], trees["nodes_nodeids"], strict=True))
    place = {key: k for k, key in enumerate(own)}
    modes = trees["nodes_modes"]
    inner = np.array([mode != "LEAF" for mode in modes], bool)
    numbers = np.array([_NAMES.get(mode, 0) for mode in modes])
    known = {*_NAMES, "LEAF"}
    if len(place) != len(own) or not known.issuperset(modes):
        raise ValueError("nodes that are there twice, or modes that are none")
    yes, no = (
        np.array([place[tree, k] if goes else at for at, ((tree, _), k, goes) in
                  enumerate(zip(own, trees[name], inner, strict=True))], np.int64)
        for name in ("nodes_truenodeids", "nodes_falsenodeids")
    )  # fmt: skip
    led = {*yes[inner].tolist(), *no[inner].tolist()}
    roots = np.array([k for k in range(len(own)) if k not in led], np.int64)
    features = np.where(inner, np.array(trees["nodes_featureids"], np.int64), 0)
    _require_places(features, x.shape[1], "feature")
    table = np.zeros((len(own), count), np.asarray(weights).dtype)
    where = np.array([place[key] for key in zip(*owners, strict=True)], np.int64)
    _require_places(np.array(targets, np.int64), count, "target")
    np.add.at(table, (where, np.array(targets, np.int64)), weights)
    missing = np.array(trees.get("nodes_missing_value_tracks_true") or [0] * len(own), bool)
    node = _leaves(
        x, roots, _height(roots, yes, no, inner), yes, no, features, numbers, listed("values"),
        missing, None, {int(m) for m in numbers[inner]},
    )  # fmt: skip
    return node, table


def _summed(table: Any, node: Any) -> Any:
    """Rows of a table by leaves (rows, trees), summed over the trees.

    Few columns one by one: a kernel for all of them would come down the trees for each.
    """
    if table.shape[1] > _FEW:
        return fn.sum(as_tensor(table)[node], 1)
    columns = [as_tensor(np.ascontiguousarray(c))[node] for c in table.T]
    return fn.stack([fn.sum(c, 1) for c in columns], -1)


def _height(roots: Any, yes: Any, no: Any, inner: Any) -> int:
    """Levels until all is leaves."""
    level, height = roots[inner[roots]], 0
    while level.size:
        if height > len(inner):
            raise ValueError("nodes that lead to themselves")
        level = np.unique(np.concatenate([yes[level], no[level]]))
        level, height = level[inner[level]], height + 1
    return height


def _given(trees: dict[str, Any], name: str) -> Any:
    """A list of numbers, or a tensor of them."""
    found = trees.get(f"{name}_as_tensor")
    return trees.get(name) if found is None else found


@operator("TreeEnsembleRegressor", domain=_ML)
def tree_ensemble_regressor(
    x: Any, *, n_targets: int = 1, aggregate_function: str = "SUM", post_transform: str = "NONE",
    **trees: Any,
) -> Any:  # fmt: skip
    """What the leaves say that rows come to."""
    owners = trees["target_treeids"], trees["target_nodeids"]
    weights = _given(trees, "target_weights")
    node, table = _forest(
        _floating(x), trees, owners, trees["target_ids"], np.asarray(weights), n_targets
    )
    if aggregate_function in ("MIN", "MAX"):
        most = fn.amin if aggregate_function == "MIN" else fn.amax
        total = most(as_tensor(table)[node], 1)
    else:
        total = _summed(table, node)
        total = total / node.shape[1] if aggregate_function == "AVERAGE" else total
    return transformed(_based(total, _given(trees, "base_values")), post_transform).to(
        dtypes.float32
    )


@operator("TreeEnsembleClassifier", domain=_ML)
def tree_ensemble_classifier(
    x: Any, *, classlabels_int64s: Any = None, classlabels_strings: Any = None,
    post_transform: str = "NONE", **trees: Any,
) -> Any:  # fmt: skip
    """The class that the leaves are for, and the scores of all."""
    labels = class_labels(classlabels_int64s, classlabels_strings)
    owners = trees["class_treeids"], trees["class_nodeids"]
    ids, weights = trees["class_ids"], np.asarray(_given(trees, "class_weights"))
    base = _given(trees, "base_values")
    pair = len(labels) == 2 and not any(ids)  # leaves have one score, for the second class
    node, table = _forest(_floating(x), trees, owners, ids, weights, 1 if pair else len(labels))
    scores = _summed(table, node)
    if pair:
        one = _based(scores, base)
        even = 0.5 if (weights >= 0).all() else 0.0
        chosen = (one > even).to(dtypes.int64).reshape(-1)
        if post_transform == "NONE" and even:
            return named_classes(chosen, labels), fn.cat([1 - one, one], -1).to(dtypes.float32)
        return named_classes(chosen, labels), _pair(one, post_transform).to(dtypes.float32)
    scores = _based(scores, base)
    chosen = fn.argmax(scores, -1)
    return named_classes(chosen, labels), transformed(scores, post_transform).to(dtypes.float32)


def _floating(x: Any) -> Any:
    return x if x.dtype.is_float else x.to(dtypes.float32)


def _based(scores: Any, base: Any) -> Any:
    return scores if base is None else scores + as_tensor(np.asarray(base)).to(scores.dtype)


def _gathered(leaf: Any, targets: Any, weights: Any, count: int, how: str) -> Any:
    """What leaves (rows, trees) make of their weights for every target."""
    from genesis import arange, zeros

    weight = as_tensor(np.ascontiguousarray(weights))[leaf].unsqueeze(-1)
    target = as_tensor(np.array(targets, np.int64))[leaf]
    own, nothing = target.unsqueeze(-1) == arange(count), zeros((), dtype=weight.dtype)
    if how in ("MIN", "MAX"):  # a target that no leaf is for has nothing
        sign = 1 if how == "MAX" else -1
        most = fn.amax(fn.where(own, weight * sign, nothing - float("inf")), 1)
        return fn.where(fn.any(own, 1), most * sign, nothing)
    total = fn.sum(fn.where(own, weight, nothing), 1)
    return total if how == "SUM" else total / leaf.shape[1]


def _require_places(places: Any, count: int, what: str) -> None:
    if places.size and not 0 <= places.min() <= places.max() < count:
        raise ValueError(f"a {what} {places.min()}..{places.max()}; there are {count}")


def _within(places: Any, count: Any) -> Any:
    """Places that were found to be below a count, said so that none has to be checked again."""
    return fn.clamp(places, 0, count - 1)


def _filled(column: Any, leaves: Any) -> Any:
    """A column of the nodes with zeros for the leaves."""
    return np.concatenate([column, np.zeros((len(leaves), *column.shape[1:]), column.dtype)])


def _depth(roots: Any, yes: Any, no: Any, n: int) -> int:
    """Levels until all is leaves."""
    _require_places(roots, n, "root")
    level, depth = np.unique(roots), 0
    while level.size:
        if depth > n:
            raise ValueError("nodes that lead to themselves")
        level = np.unique(np.concatenate([yes[level], no[level]]))
        level, depth = level[level < n], depth + 1
    return depth


def _sets(modes: Any, members: Any) -> Any:
    """For every node its set, as a row with NaN where there is no more."""
    given = np.zeros(0, np.float32) if members is None else np.asarray(members)
    ends = np.flatnonzero(np.isnan(given))
    rows = np.split(given, ends + 1)[: len(ends)] if ends.size else []
    asking = np.flatnonzero(modes == _MEMBER)
    if len(rows) != len(asking) or not set(map(int, modes)) <= set(range(_MEMBER + 1)):
        raise ValueError(f"{len(rows)} sets for {len(asking)} nodes, or modes that are none")
    width = max([1, *(len(row) for row in rows)])
    table = np.full((len(modes), width), np.nan, given.dtype)
    for node, row in zip(asking, rows, strict=True):
        table[node, : len(row)] = row
    return table
