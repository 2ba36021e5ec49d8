"""Operators of classical learning (domain ai.onnx.ml): scalers, linear models, trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.onnx.registry import operator
from genesis.onnx.values import as_tensor

_ML = "ai.onnx.ml"


@operator("Scaler", domain=_ML)
def scaler(x: Any, *, offset: Any, scale: Any) -> Any:
    """(x - offset) scale."""
    from genesis import tensor

    return (x.to(dtypes.float32) - tensor(offset)) * tensor(scale)


@operator("Normalizer", domain=_ML)
def normalizer(x: Any, *, norm: str = "MAX") -> Any:
    """Rows divided by a norm."""
    if norm == "MAX":
        return x / fn.amax(fn.abs(x), -1, True)
    if norm == "L1":
        return x / fn.sum(fn.abs(x), -1, True)
    return x / fn.sqrt(fn.sum(fn.square(x), -1, True))


#: How a node compares a feature with its threshold; 6 asks whether it is in a set.
_MODES = (
    lambda v, s: v <= s, lambda v, s: v < s, lambda v, s: v >= s, lambda v, s: v > s,
    lambda v, s: v == s, lambda v, s: v != s,
)  # fmt: skip
_MEMBER = 6
_TRANSFORMS: dict[int, Any] = {0: lambda y: y, 1: lambda y: fn.softmax(y, -1), 2: fn.sigmoid}


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
    if post_transform not in _TRANSFORMS or aggregate_function not in (0, 1):
        raise NotImplementedError("trees whose results are not summed, or are probits")
    roots = np.array(tree_roots, np.int64)
    depth = _depth(roots, yes, no, n)
    itself = np.arange(n, n + len(leaf_weights))
    missing = nodes_missing_value_tracks_true or [0] * n
    table = {
        "yes": np.concatenate([yes, itself]), "no": np.concatenate([no, itself]),
        "feature": _filled(features, itself), "mode": _filled(modes, itself),
        "split": _filled(np.asarray(nodes_splits), itself),
        "missing": _filled(np.array(missing, bool), itself),
        "set": _filled(_sets(modes, membership_values), itself),
    }  # fmt: skip
    at = {name: as_tensor(np.ascontiguousarray(column)) for name, column in table.items()}
    node = as_tensor(roots).reshape(1, -1).expand(x.shape[0], len(roots))
    for _ in range(depth):
        value = fn.take_along_dim(x, at["feature"][node], 1)
        goes = fn.logical_and(fn.isnan(value), at["missing"][node])
        for mode in sorted({int(m) for m in modes}):
            if mode == _MEMBER:
                found = fn.any(fn.unsqueeze(value, -1) == at["set"][node].to(x.dtype), -1)
            else:
                found = _MODES[mode](value, at["split"][node].to(x.dtype))
            goes = fn.logical_or(goes, fn.logical_and(at["mode"][node] == mode, found))
        node = fn.where(goes, at["yes"][node], at["no"][node])
    return _TRANSFORMS[post_transform](
        _gathered(node - n, leaf_targetids, leaf_weights, n_targets, aggregate_function)
    )


def _gathered(leaf: Any, targets: Any, weights: Any, count: int, how: int) -> Any:
    """The weights of leaves (rows, trees), added up for every target."""
    from genesis import arange, zeros

    weight = as_tensor(np.ascontiguousarray(weights))[leaf]
    target = as_tensor(np.array(targets, np.int64))[leaf]
    own = fn.unsqueeze(target, -1) == arange(count)
    total = fn.sum(fn.where(own, fn.unsqueeze(weight, -1), zeros((), dtype=weight.dtype)), 1)
    return total if how == 1 else total / leaf.shape[1]


def _require_places(places: Any, count: int, what: str) -> None:
    if places.size and not 0 <= places.min() <= places.max() < count:
        raise ValueError(f"a {what} {places.min()}..{places.max()}; there are {count}")


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
