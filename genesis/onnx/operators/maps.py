"""Operators on maps, which are Python's dictionaries (domain ai.onnx.ml)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis.onnx.registry import Host, Operand, operator

_CASTS = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}


@operator("ZipMap", domain="ai.onnx.ml")
def zip_map(x: Host, *, classlabels_int64s: Any = None, classlabels_strings: Any = None) -> Any:
    """For every row what each class has, by its name."""
    names = classlabels_int64s or classlabels_strings
    rows = np.atleast_2d(x)
    if not names or len(names) != rows.shape[1]:
        raise ValueError(f"{len(names or ())} names for {rows.shape[1]} classes")
    return [dict(zip(names, row, strict=True)) for row in rows.tolist()]


@operator("DictVectorizer", domain="ai.onnx.ml")
def dict_vectorizer(
    x: Operand, *, int64_vocabulary: Sequence[int] | None = None,
    string_vocabulary: Sequence[str] | None = None,
) -> Any:  # fmt: skip
    """The values of a map in the order of a vocabulary, zeros for what it has not."""
    _require_map(x)
    words = string_vocabulary if int64_vocabulary is None else int64_vocabulary
    values = [x.get(word) for word in words or ()]
    kind = next((np.asarray(v).dtype for v in x.values()), np.dtype(np.float32))
    if kind.kind in "OU":
        return np.array([["" if v is None else v for v in values]], object)
    return np.array([[0 if v is None else v for v in values]], kind)


@operator("CastMap", domain="ai.onnx.ml")
def cast_map(
    x: Operand, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
) -> Any:
    """The values of a map in the order of its keys, or each where its key says."""
    _require_map(x)
    kind = _CASTS[cast_to]
    if map_form == "SPARSE":
        found = np.full((1, max_map), "" if kind is object else 0, kind)
        for key, value in x.items():
            if not 0 <= key < max_map:
                raise ValueError(f"a key {key}; there is room for {max_map}")
            found[0, key] = _cast(value, kind)
        return found
    return np.array([[_cast(x[key], kind) for key in sorted(x)]], kind)


def _require_map(x: Any) -> None:
    if not isinstance(x, dict):
        raise TypeError(f"a map is needed, not a {type(x).__name__}")


def _cast(value: Any, kind: Any) -> Any:
    if kind is object:
        return value if isinstance(value, str) else f"{value:f}"
    return kind(float(value))
