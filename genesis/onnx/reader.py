"""`load`: an ONNX file as a module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from genesis.onnx import optimize as passes
from genesis.onnx.graph import GraphBuilder, UnsupportedModel
from genesis.onnx.model import Model
from genesis.serialization import BadFile


def load(path: str | os.PathLike[str] | bytes, *, optimize: bool = False) -> Model:
    """A model from a file, or from the bytes of one.

    It is called with arrays by position or by name and gives the list of its outputs. Everything in
    the file is checked before it is used; a model with unknown operators is refused with all their
    names (`UnsupportedModel`). `optimize` makes the graph smaller for inference.
    """
    if isinstance(path, bytes):
        return from_proto(_parsed(path, "the model"), optimize=optimize)
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"onnx.load: a path or bytes, not a {type(path).__name__}; what the `onnx` package "
            "holds goes to `from_proto`"
        )
    name = os.fspath(path)
    return from_proto(_parsed(Path(name).read_bytes(), name), name, optimize=optimize)


def from_proto(proto: Any, path: str = "", *, optimize: bool = False) -> Model:
    """A model from a message of the `onnx` package; `path` is where its other files lie beside."""
    if not proto.HasField("graph"):
        raise BadFile(f"onnx.load: {path or 'the model'} has no graph")
    builder = GraphBuilder(proto, path or "the model", lambda tensor: _external(tensor, path))
    graph = builder.graph(proto.graph)
    if builder.unknown:
        raise UnsupportedModel(
            f"onnx.load: {path or 'the model'} has {len(builder.unknown)} nodes that are not "
            f"supported: {', '.join(builder.unknown[:50])}"
        )
    if optimize:
        passes.optimize(graph, builder)
    model = Model(graph, builder, path)
    model.metadata = ModelMetadata(
        proto.graph.name, proto.producer_name, proto.model_version, proto.doc_string,
        {entry.key: entry.value for entry in proto.metadata_props}, proto.domain,
    )  # fmt: skip
    return model


class ModelMetadata(NamedTuple):
    """What a model says of itself."""

    graph_name: str
    producer_name: str
    version: int
    description: str
    custom_metadata_map: dict[str, str]
    domain: str


def _parsed(contents: bytes, name: str) -> Any:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(contents)
    except (DecodeError, RecursionError, ValueError) as error:
        raise BadFile(f"onnx.load: {name} is no ONNX file: {error}") from None
    return model


def _external(tensor: Any, path: str) -> Any:
    """The bytes of a tensor in another file of the model's folder, mapped."""
    entries = {e.key: e.value for e in tensor.external_data}
    folder = Path(path).absolute().parent if path else None
    location = entries.get("location", "")
    if folder is None:
        raise ValueError("it lies in another file, but the model does not; load it by its path")
    target = (folder / location).resolve()
    if not location or Path(location).is_absolute() or not target.is_relative_to(folder.resolve()):
        raise ValueError(f"it would lie in {location!r}, outside of the model's folder")
    if not target.is_file():
        raise ValueError(f"it lies in {location!r}, which is no file")
    mapped = np.memmap(target, np.uint8, "r") if target.stat().st_size else np.zeros(0, np.uint8)
    begin, length = int(entries.get("offset", 0)), entries.get("length")
    end = begin + int(length) if length is not None else len(mapped)
    if not 0 <= begin <= end <= len(mapped):
        raise ValueError(f"it would lie at {begin}..{end} of {len(mapped)} bytes in {location!r}")
    return mapped[begin:end]
