"""The body of a request: fields that are asked for, each with what it may be.

What is known and wrong is an error that names the field; what nobody asked for is ignored, and said
to be so in a header.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from genesis.llm import SamplingParams
from genesis.serve.errors import ApiError

_HEADER_NAME = re.compile(r"[\w.-]{1,40}", re.ASCII)


def parse(data: bytes) -> RequestBody:
    """The body of a request, which is a JSON object."""
    try:
        found = json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise ApiError(400, f"the body is a {type(found).__name__}, not an object")
    return RequestBody(found)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def depth(value: Any) -> int:
    """How deep a value is nested.

    >>> depth({"a": [1, {"b": 2}]})
    3
    """
    deep, level = 0, [value]
    while level := [x for x in level if isinstance(x, dict | list)]:
        deep += 1
        level = [y for x in level for y in (x.values() if isinstance(x, dict) else x)]
    return deep


class RequestBody:
    """Fields by name; `null` is as if there were none."""

    def __init__(self, table: Mapping[str, Any], path: str = "") -> None:
        self._table, self._path = table, path
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._get(name) is not None

    def _get(self, name: str) -> Any:
        self._asked.add(name)
        return self._table.get(name)

    def wrong(self, name: str, meaning: str) -> ApiError:
        """The error that a field is not what it must be."""
        value = self._table.get(name)
        said = repr(value)
        said = f"{said[:60]}.." if len(said) > 62 else said
        full = self._path + name
        return ApiError(400, f"{full} is {said}, not {meaning}", param=full)

    def _typed(self, name: str, kind: Any, meaning: str, default: Any) -> Any:
        value = self._get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(name, meaning)
        return value

    def text(self, name: str, default: str | None = None, among: Sequence[str] = ()) -> Any:
        """A text, one of some if they are given."""
        meaning = f"one of {', '.join(among)}" if among else "a text"
        value = self._typed(name, str, meaning, default)
        if among and value is not None and value not in among:
            raise self.wrong(name, meaning)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        return bool(self._typed(name, bool, "true or false", default))

    def integer(
        self, name: str, default: int | None = None, low: int = 0, high: int = 1 << 62
    ) -> Any:
        """A whole number within bounds."""
        meaning = f"a whole number from {low} to {high}"
        value = self._typed(name, int, meaning, default)
        if value is not None and not low <= value <= high:
            raise self.wrong(name, meaning)
        return value

    def number(
        self, name: str, default: float | None, low: float = -math.inf, high: float = math.inf
    ) -> Any:
        """A number within bounds."""
        meaning = f"a number from {low:g} to {high:g}"
        value = self._typed(name, int | float, meaning, default)
        if value is not None and not low <= value <= high:
            raise self.wrong(name, meaning)
        return value

    def table(self, name: str) -> RequestBody | None:
        """An object."""
        value = self._typed(name, dict, "an object", None)
        return None if value is None else RequestBody(value, f"{self._path}{name}.")

    def raw(self, name: str) -> Any:
        """A value that is looked at elsewhere."""
        return self._get(name)

    def tables(self, name: str, most: int) -> list[RequestBody]:
        """A list of objects."""
        values = self._typed(name, list, f"a list of at most {most} objects", [])
        if len(values) > most or not all(isinstance(v, dict) for v in values):
            raise self.wrong(name, f"a list of at most {most} objects")
        return [RequestBody(v, f"{self._path}{name}.{k}.") for k, v in enumerate(values)]

    def texts(self, name: str, most: int, longest: int) -> list[str]:
        """A text, or a list of some."""
        meaning = f"a text or a list of at most {most}, of at most {longest} characters"
        value = self._typed(name, str | list, meaning, [])
        found = [value] if isinstance(value, str) else value
        if len(found) > most or not all(
            isinstance(t, str) and 0 < len(t) <= longest for t in found
        ):
            raise self.wrong(name, meaning)
        return found

    def refuse(self, **only: Any) -> None:
        """Fields of which one value alone is known here."""
        for name, value in only.items():
            if self._get(name) not in (None, value):
                raise self.wrong(name, f"{value!r}, which is all that is known here")

    def ignored(self) -> list[str]:
        """Names that nobody asked for."""
        names = sorted(self._table.keys() - self._asked)
        return [name for name in names if _HEADER_NAME.fullmatch(name)][:20]


def sampling(
    body: RequestBody, defaults: Mapping[str, Any], room: int, most: int
) -> dict[str, Any]:
    """The fields of `SamplingParams` that chats and completions share.

    `room` is what the context leaves, `most` the most answers at once.
    """
    bias = body.table("logit_bias")
    found: dict[str, Any] = {
        "max_tokens": room,
        "min_tokens": body.integer("min_tokens", 0),
        "temperature": body.number("temperature", defaults.get("temperature", 1.0), 0, 100),
        "top_p": body.number("top_p", defaults.get("top_p", 1.0), 0, 1),
        "top_k": max(0, body.integer("top_k", defaults.get("top_k", 0), -1)),
        "min_p": body.number("min_p", defaults.get("min_p", 0.0), 0, 1),
        "typical_p": body.number("typical_p", defaults.get("typical_p", 1.0), 0, 1),
        "presence_penalty": body.number("presence_penalty", 0.0, -2, 2),
        "frequency_penalty": body.number("frequency_penalty", 0.0, -2, 2),
        "repetition_penalty": body.number(
            "repetition_penalty", defaults.get("repetition_penalty", 1.0), 0.01, 100
        ),
        "seed": body.integer("seed", None, -(1 << 63), (1 << 64) - 1),
        "n": body.integer("n", 1, 1, most),
        "stop": body.texts("stop", 16, 256),
        "ignore_eos": body.flag("ignore_eos"),
        "logit_bias": {} if bias is None else _bias(bias),
    }
    if found["seed"] is not None:
        found["seed"] %= 1 << 64
    return found


def _bias(table: RequestBody) -> dict[int, float]:
    names = list(table._table)
    if len(names) > 1024 or not all(name.isdecimal() for name in names):
        raise ApiError(
            400, "logit_bias is not an object of at most 1024 tokens", param="logit_bias"
        )
    return {int(name): table.number(name, 0.0, -100, 100) for name in names}


def params_of(fields: Mapping[str, Any]) -> SamplingParams:
    """The parameters, or an error that names the field."""
    try:
        return SamplingParams(**fields)
    except ValueError as error:
        text = str(error).removeprefix("SamplingParams: ")
        raise ApiError(400, text, param=text.split()[0]) from None


__all__ = ["RequestBody", "depth", "params_of", "parse", "sampling"]
