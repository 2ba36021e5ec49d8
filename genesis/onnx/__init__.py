"""Models in ONNX files: in, as modules, and out."""

from genesis.onnx.graph import UnsupportedModel
from genesis.onnx.model import Model, OperatorError
from genesis.onnx.reader import from_proto, load

__all__ = ["Model", "OperatorError", "UnsupportedModel", "from_proto", "load"]
