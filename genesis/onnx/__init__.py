"""Models in ONNX files: in, as modules, and out.

`load` gives a model as a module, `save` writes one, and `InferenceSession` runs one as programs
written for onnxruntime expect it.
"""

from genesis import __version__
from genesis.onnx.binding import IOBinding, OrtValue
from genesis.onnx.export import CannotExport, save, to_proto
from genesis.onnx.graph import UnsupportedModel
from genesis.onnx.model import Model, OperatorError
from genesis.onnx.options import (
    ExecutionMode,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    disable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_device,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_seed,
)
from genesis.onnx.reader import ModelMetadata, from_proto, load
from genesis.onnx.session import InferenceSession, NodeArg

__all__ = [
    "CannotExport", "ExecutionMode", "GraphOptimizationLevel", "IOBinding", "InferenceSession",
    "Model", "ModelMetadata", "NodeArg", "OperatorError", "OrtValue", "RunOptions",
    "SessionOptions", "UnsupportedModel", "__version__", "disable_telemetry_events", "from_proto",
    "get_all_providers", "get_available_providers", "get_device", "load", "save",
    "set_default_logger_severity", "set_default_logger_verbosity", "set_seed", "to_proto",
]  # fmt: skip
