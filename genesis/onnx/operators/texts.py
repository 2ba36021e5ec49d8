"""Operators on texts, which NumPy has, and what is made of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from genesis.onnx.registry import Host, operator


@operator("StringConcat")
def string_concat(a: Host, b: Host) -> Any:
    """Texts one after the other."""
    return np.asarray(np.frompyfunc(lambda x, y: x + y, 2, 1)(a, b), object)


@operator("StringSplit")
def string_split(x: Host, *, delimiter: str | None = None, maxsplit: int | None = None) -> Any:
    """Texts in parts, filled up with empty ones, and how many there are."""
    parts = [t.split(delimiter or None, -1 if maxsplit is None else maxsplit) for t in x.flat]
    width = max(map(len, parts), default=0)
    table = np.array([p + [""] * (width - len(p)) for p in parts], object)
    counts = np.array([len(p) for p in parts], np.int64)
    return table.reshape(*x.shape, width), counts.reshape(x.shape)


@operator("RegexFullMatch")
def regex_full_match(x: Host, *, pattern: str) -> Any:
    """Whether texts are what an expression describes."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return np.array([expression.fullmatch(t) is not None for t in x.flat], bool).reshape(x.shape)


@operator("StringNormalizer")
def string_normalizer(
    x: Host, *, case_change_action: str = "NONE", is_case_sensitive: int = 0,
    locale: str | None = None, stopwords: Sequence[str] = (),
) -> Any:  # fmt: skip
    """Texts without stop words, in one case."""
    stops = set(stopwords) if is_case_sensitive else {w.lower() for w in stopwords}
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(case_change_action, str)
    kept = [
        [change(t) for t in row if (t if is_case_sensitive else t.lower()) not in stops]
        for row in rows
    ]
    table = np.array([row or [""] for row in kept], object)
    return table.reshape(-1) if x.ndim == 1 else table


@operator("Tokenizer", domain="com.microsoft")
def tokenizer(
    x: Host, *, pad_value: str, mark: int, mincharnum: int, separators: Sequence[str] | None = None,
    tokenexp: str | None = None,
) -> Any:  # fmt: skip
    """Texts in parts: what an expression finds, or what lies between others."""
    parts = [_tokens(t, separators, tokenexp, mincharnum) for t in x.flat]
    if mark and any(x.flat):  # the beginning and the end of a text
        parts = [["\x02", *p, "\x03"] for p in parts]
    width = max(map(len, parts), default=0)
    table = [t for p in parts for t in [*p, *[pad_value] * (width - len(p))]]
    return np.array([*table, None], object)[:-1].reshape(*x.shape, width)


def _tokens(
    text: str, separators: Sequence[str] | None, expression: str | None, least: int
) -> list[str]:
    if expression is not None:
        found = [match.group() for match in re.finditer(expression, text)]
    elif separators and "" not in separators:
        found = re.split("|".join(f"(?:{s})" for s in separators), text)
    else:
        found = list(text)
    return [t for t in found if t and len(t) >= least]


@operator("TfIdfVectorizer")
def tfidf_vectorizer(
    x: Host, *, mode: str, min_gram_length: int, max_gram_length: int, max_skip_count: int,
    ngram_counts: Sequence[int], ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None, pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Any:  # fmt: skip
    """How often sequences of words occur."""
    pool = list(pool_strings if pool_strings is not None else pool_int64s or ())
    grams: dict[tuple[Any, ...], int] = {}
    starts = [*ngram_counts, len(pool)]
    for size, (begin, end) in enumerate(pairwise(starts), 1):
        for k in range(begin, end, size):
            grams[tuple(pool[k : k + size])] = len(grams)
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    counts = np.zeros((len(rows), max(ngram_indexes, default=-1) + 1), np.float32)
    for r, row in enumerate(rows):
        for gram in _grams(list(row), min_gram_length, max_gram_length, max_skip_count):
            if gram in grams:
                counts[r, ngram_indexes[grams[gram]]] += 1
    scale = np.ones(counts.shape[1], np.float32)
    if weights is not None:
        for k, place in enumerate(ngram_indexes):
            scale[place] = weights[k]
    if mode != "TF":
        counts = (counts > 0) * (scale if mode == "IDF" else counts * scale)
    result = counts.astype(np.float32)
    return result[0] if x.ndim == 1 else result


def _grams(row: list[Any], least: int, most: int, skips: int) -> Any:
    for size in range(least, most + 1):
        for skip in range(1, skips + 2) if size > 1 else (1,):
            for k in range(len(row) - (size - 1) * skip):
                yield tuple(row[k : k + size * skip : skip])


@operator("ImageDecoder")
def image_decoder(data: Host, *, pixel_format: str = "RGB") -> Any:
    """The pixels of an encoded image, by Pillow where it is installed."""
    import io

    try:
        from PIL import Image
    except ImportError:
        raise NotImplementedError("ImageDecoder needs Pillow (pip install pillow)") from None
    image = Image.open(io.BytesIO(data.tobytes()))
    if pixel_format == "Grayscale":
        return np.asarray(image.convert("L"))[..., None]
    pixels = np.asarray(image.convert("RGB"))
    return pixels[..., ::-1].copy() if pixel_format == "BGR" else pixels


@operator("LabelEncoder", domain="ai.onnx.ml")
def label_encoder(x: Host, **tables: Any) -> Any:
    """Values looked up in a table."""
    if "classes_strings" in tables:  # version 1: texts and their places, either way
        names = tables["classes_strings"]
        places = list(range(len(names)))
        if x.dtype == object:
            return label_encoder(
                x, keys_strings=names, values_int64s=places,
                default_int64=tables.get("default_int64", -1),
            )  # fmt: skip
        return label_encoder(
            x, keys_int64s=places, values_strings=names,
            default_string=tables.get("default_string", "_Unused"),
        )  # fmt: skip
    keys = next((v for k, v in tables.items() if k.startswith("keys_")), None)
    name = next((k for k in tables if k.startswith("values_")), "")
    if keys is None or not name:
        raise ValueError("LabelEncoder needs keys and values")
    values = tables[name]
    kind = {"values_floats": np.float32, "values_int64s": np.int64, "values_strings": object}
    dtype = kind.get(name) or values.dtype
    default = tables.get("default_" + name.removeprefix("values_").rstrip("s"))
    if "tensor" in name:
        default = tables["default_tensor"].item() if "default_tensor" in tables else None
    fallback = {"values_floats": -0.0, "values_int64s": -1, "values_strings": "_Unused"}
    default = fallback.get(name, -1) if default is None else default
    table = dict(zip(_plain(keys), _plain(values), strict=True))
    missing = next((v for k, v in table.items() if k != k), default)
    found = [table.get(v, missing if v != v else default) for v in _plain(x.reshape(-1))]
    return np.array([*found, None], object)[:-1].reshape(x.shape).astype(dtype)


@operator("CategoryMapper", domain="ai.onnx.ml")
def category_mapper(
    x: Host, *, cats_int64s: Sequence[int], cats_strings: Sequence[str], default_int64: int = -1,
    default_string: str = "_Unused",
) -> Any:  # fmt: skip
    """Texts as numbers, or numbers as texts."""
    if x.dtype == object:
        table = dict(zip(cats_strings, cats_int64s, strict=True))
        found = [table.get(v, default_int64) for v in x.flat]
        return np.array(found, np.int64).reshape(x.shape)
    names = dict(zip(cats_int64s, cats_strings, strict=True))
    texts = [*(names.get(v, default_string) for v in x.reshape(-1).tolist()), None]
    return np.array(texts, object)[:-1].reshape(x.shape)


def _plain(values: Any) -> list[Any]:
    return list(values.tolist() if isinstance(values, np.ndarray) else values)


@operator("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(x: Host, places: Host) -> Any:
    """Some of the last axis."""
    return np.take(x, places.reshape(-1), -1).reshape(*(x.shape[:-1] or (1,)), -1)


@operator("Binarizer", domain="ai.onnx.ml")
def binarizer(x: Any, *, threshold: float = 0.0) -> Any:
    """One above a threshold, and zero elsewhere."""
    return (x > threshold).to(x.dtype)
