"""Stubs of what is built from the registry of operations: ``python -m tests.stubs`` writes them.

Methods of tensors and layers without parameters are made when they are imported. Type checkers and
editors read these stubs instead, which say names, arguments and descriptions; `test_registry` fails
where a stub is not what would be written.
"""

from __future__ import annotations

import builtins
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from genesis.functional import spatial_ranks
from genesis.functional.registry import operations
from genesis.nn.layer_from_function import parts
from genesis.tensor import methods

HEAD = '"""{}\n\nWritten by ``python -m tests.stubs``.\n"""\n\n'
ROOT = Path(__file__).parents[1] / "genesis"


class Stub:
    """The text of a stub, with the imports that its annotations need."""

    def __init__(self, described: str) -> None:
        self.described = described
        self.imports: set[tuple[str, str]] = set()
        self.lines: list[str] = []

    def text(self) -> str:
        """The whole file."""
        found: dict[str, list[str]] = {}
        for place, name in sorted(self.imports):
            found.setdefault(place, []).append(name)
        lines = [f"from {place} import {', '.join(names)}" for place, names in found.items()]
        own = [line for line in lines if line.startswith("from genesis")]
        head = [*(line for line in lines if line not in own), *[""] * bool(own), *own]
        return HEAD.format(self.described) + "\n".join([*head, *self.lines]) + "\n"

    def annotation(self, written: Any, function: Callable[..., Any]) -> str:
        """An annotation as it is written where the function is."""
        if written is inspect.Parameter.empty:
            written = "Any"
        module = inspect.unwrap(function).__module__
        for name in re.findall(r"\w+", written):
            if not hasattr(builtins, name):
                home = getattr(vars(sys.modules[module])[name], "__module__", "types")
                if home == "types":  # an alias: `int | Sequence[int]` does not know its name
                    home = spatial_ranks.__name__ if hasattr(spatial_ranks, name) else module
                self.imports.add((home, name))
        return str(written)

    def method(
        self,
        name: str,
        arguments: list[inspect.Parameter],
        function: Callable[..., Any],
        gives: str | None = None,
        doc: str | None = None,
    ) -> None:
        """A method with arguments of a function."""
        parts = ["self"]
        for p in arguments:
            if p.kind is p.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
                parts.append("*")
            stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
            default = "" if p.default is p.empty else f" = {_shown(p.default)}"
            parts.append(f"{stars}{p.name}: {self.annotation(p.annotation, function)}{default}")
        if gives is None:
            gives = self.annotation(inspect.signature(function).return_annotation, function)
        head = f"    def {name}({', '.join(parts)}) -> {gives}:"
        if len(head) + 4 > 100:
            listed = textwrap.indent(",\n".join(parts), " " * 8)
            head = f"    def {name}(\n{listed},\n    ) -> {gives}:"
        if doc is None:
            self.lines.append(f"{head} ...")
        else:
            self.lines += [head, f'        """{doc}"""', ""]


def _shown(default: Any) -> str:
    if isinstance(default, str):
        return json.dumps(default)
    return repr(default) if isinstance(default, bool | int | float | None) else "..."


def _arguments(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The arguments after the first."""
    return list(inspect.signature(function).parameters.values())[1:]


def of_methods() -> Stub:
    """The methods of tensors."""
    stub = Stub("The methods of tensors that are functions.")
    stub.lines += ["", "class Methods:"]
    for name, value in sorted(vars(methods.Methods).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            stub.lines.append("    @property")
            value = value.fget
        stub.method(name, _arguments(value), value)
    return stub


def of_layers() -> Stub:
    """The layers without parameters."""
    stub = Stub("Every layer without parameters that a function is registered to have.")
    stub.imports.add(("genesis.nn.module", "Stateless"))
    layers = {x.layer.name: x for x in operations.values() if x.layer}
    for name, operation in sorted(layers.items()):
        inputs, settings = parts(operation)
        function = operation.function
        first = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", "\n    ")
        stub.lines += ["", f"class {name}(Stateless):", f'    """{first}"""', ""]
        for setting in settings:
            annotation = stub.annotation(setting.annotation, function)
            stub.lines.append(f"    {setting.name}: {annotation}")
        stub.method("__init__", settings, function, "None")
        stub.method("forward", inputs, function)
    return stub


def stubs() -> Iterator[tuple[Path, str]]:
    """Every stub with its path."""
    yield ROOT / "tensor" / "methods.pyi", of_methods().text()
    yield ROOT / "nn" / "parameterless_layers.pyi", of_layers().text()


if __name__ == "__main__":
    for path, text in stubs():
        path.write_text(text)
