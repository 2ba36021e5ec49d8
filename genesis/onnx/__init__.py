"""Models in ONNX files: in, as modules, and out.

`load` gives a model as a module, `save` writes one, and `InferenceSession` runs one as programs
written for onnxruntime expect it.
"""

from genesis.onnx.export import CannotExport, save, to_proto
from genesis.onnx.graph import UnsupportedModel
from genesis.onnx.model import Model, OperatorError
from genesis.onnx.reader import from_proto, load
from genesis.onnx.session import InferenceSession, IOBinding, NodeArg, SessionOptions

__all__ = [
    "CannotExport", "IOBinding", "InferenceSession", "Model", "NodeArg", "OperatorError",
    "SessionOptions", "UnsupportedModel", "from_proto", "load", "save", "to_proto",
]  # fmt: skip
