"""Families of functions that differ in one thing: written once, made for each of its values.

They are functions like any other: with a name, a description and a signature of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def variant(
    function: Callable[P, R], name: str, doc: str | None = None, **given: Any
) -> Callable[P, R]:
    """The function with other defaults for what may be given by keyword only, which is not seen.

    An argument `name` is the name. Without `doc` the description is that of the function. It is a
    copy that calls nothing else, so that there is nothing to pay for.
    """
    whole = cast(FunctionType, function)
    code = whole.__code__.replace(co_name=name, co_qualname=name)
    made = FunctionType(code, whole.__globals__, name, whole.__defaults__, whole.__closure__)
    defaults = whole.__kwdefaults__ or {}
    own = {"name": name} if "name" in defaults else {}
    made.__kwdefaults__ = {**defaults, **own, **given}
    made.__doc__ = whole.__doc__ if doc is None else doc
    signature = inspect.signature(function)
    seen = [p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    made.__signature__ = signature.replace(parameters=seen)  # type: ignore[attr-defined]
    return cast(Callable[P, R], made)


_AXES = {None: "spatial axes", 1: "one axis", 2: "two axes", 3: "three axes"}


def of_ranks(
    function: Callable[P, R], *ranks: int | None, name: str | None = None
) -> tuple[Callable[P, R], ...]:
    """A function for each `rank` of one, as ``f1d``, ``f2d``, .., or ``f`` for None.

    ``{axes}`` in the description stand for the rank.
    """
    family, doc = name or function.__name__.strip("_"), function.__doc__ or ""
    return tuple(
        variant(
            function,
            family if rank is None else f"{family}{rank}d",
            doc.replace("{axes}", _AXES[rank]),
            rank=rank,
        )
        for rank in ranks
    )


__all__ = ["of_ranks", "variant"]
