"""Models in ONNX files: in, as modules, and out.

`load` gives a model as a module, `InferenceSession` one that runs as onnxruntime's do.
"""

from genesis.onnx.graph import UnsupportedModel
from genesis.onnx.model import Model, OperatorError
from genesis.onnx.reader import from_proto, load
from genesis.onnx.session import InferenceSession, IOBinding, NodeArg, SessionOptions

__all__ = [
    "IOBinding", "InferenceSession", "Model", "NodeArg", "OperatorError", "SessionOptions",
    "UnsupportedModel", "from_proto", "load",
]  # fmt: skip
