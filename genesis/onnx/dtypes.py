"""Element types of ONNX as those of NumPy, and what arrays cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from genesis.ir.dtype import as_dtype


def numpy_dtype(code: int) -> np.dtype[Any]:
    """NumPy's type for a number of `onnx.TensorProto.DataType`."""
    if code == onnx.TensorProto.STRING:
        return np.dtype(object)
    return np.dtype(helper.tensor_dtype_to_np_dtype(code))


def code_of(dtype: Any) -> int:
    """The number of `onnx.TensorProto.DataType` for a type of NumPy or Genesis."""
    kind = np.dtype(getattr(dtype, "numpy", dtype))
    if kind.kind in "OUS":
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(kind))


def is_ours(dtype: Any) -> bool:
    """Whether tensors can have a type of NumPy."""
    try:
        as_dtype(dtype)
    except TypeError:
        return False
    return True
