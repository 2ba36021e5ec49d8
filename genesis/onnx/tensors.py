"""Tensors as they lie in model files: checked against the bytes that are there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from genesis.onnx.dtypes import numpy_dtype

_MOST_SPARSE = 1 << 28  # elements of a tensor that is stored as a few of them


def read_tensor(proto: Any, external: Callable[[Any], Any]) -> Any:
    """The contents of a TensorProto; `external` gives the bytes that lie in another file."""
    dims = tuple(proto.dims)
    if any(n < 0 for n in dims) or len(dims) > 64:
        raise ValueError(f"it has the shape {dims}")
    if proto.data_type == TensorProto.UNDEFINED:
        raise ValueError("it has no element type")
    if proto.data_location == TensorProto.EXTERNAL:
        return _external(proto, dims, external(proto))
    if proto.data_type == TensorProto.STRING:
        if math.prod(dims) != len(proto.string_data):
            raise ValueError(f"{len(proto.string_data)} texts are no {dims}")
        texts = [s.decode(errors="replace") for s in proto.string_data]
        return np.array([*texts, None], object)[:-1].reshape(dims)
    return numpy_helper.to_array(proto)


def _external(proto: Any, dims: tuple[int, ...], contents: Any) -> Any:
    dtype = numpy_dtype(proto.data_type)
    four_bits = (TensorProto.UINT4, TensorProto.INT4, TensorProto.FLOAT4E2M1)
    if proto.data_type in (*four_bits, TensorProto.STRING):
        raise ValueError("tensors of this type in another file are not read")
    if math.prod(dims) * dtype.itemsize != len(contents):
        raise ValueError(f"{len(contents)} bytes in another file are no {dtype} {dims}")
    return contents.view(dtype).reshape(dims)


def read_sparse(proto: Any) -> Any:
    """The contents of a SparseTensorProto, with the zeros between them."""
    dims = tuple(proto.dims)
    if any(n < 0 for n in dims) or math.prod(dims) > _MOST_SPARSE:
        raise ValueError(f"a sparse tensor of shape {dims} is too large")
    values, places = numpy_helper.to_array(proto.values), numpy_helper.to_array(proto.indices)
    dense = np.zeros(dims, values.dtype)
    if places.ndim == 1:
        if places.size and not 0 <= places.min() <= places.max() < dense.size:
            raise ValueError("a place in a sparse tensor is outside of it")
        dense.reshape(-1)[places] = values
    else:
        dense[tuple(places.T)] = values
    return dense
