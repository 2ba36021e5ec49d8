"""Quantised layers in files: their integers and scales, in one of the two forms that files have.

While a module is called for `onnx.save`, each quantised layer gives a stand-in for its result, and
its weight is written where the file needs that result: by `MatMulNBits`, the operator of runtimes
for such products, or as `DequantizeLinear` and a product of floats, which is the standard's way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper

from genesis import nn
from genesis.compress import Integer, QuantizedEmbedding, QuantizedLinear, QuantizedTensor
from genesis.ir.dtype import float32
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.primitive import parameter
from genesis.tensor.tensor import Tensor

FORMS = ("MatMulNBits", "QDQ")


class Mark(NamedTuple):
    """A result that stands for a quantised layer's: what goes in, the weight, and who writes it."""

    given: Any
    weight: QuantizedTensor
    write: Callable[..., str]


@contextmanager
def marked(module: Any, form: str | None) -> Iterator[dict[Any, Mark]]:
    """Have quantised layers below a module give stand-ins; what is given says what for."""
    marks: dict[Any, Mark] = {}
    layers = [m for m in module.modules() if _is_quantised(m)] if _has_layers(module, form) else []

    def stand_in(layer: Any) -> Callable[[Any], Any]:
        linear = isinstance(layer, QuantizedLinear)
        write = _embedding if not linear else _matmul if form == "MatMulNBits" else _product

        def forward(x: Any) -> Any:
            shape = (*(x.shape[:-1] if linear else x.shape), layer.shape[not linear])
            value = parameter(float32, shape, x.array.device)
            marks[value] = Mark(x.array.value, layer.weight, write)
            y = Tensor(wrap(value))
            return y if not linear or layer.bias is None else y + layer.bias

        return forward

    for layer in layers:
        layer.__dict__["forward"] = stand_in(layer)
    try:
        yield marks
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _has_layers(module: Any, form: str | None) -> bool:
    if form is not None and form not in FORMS:
        raise ValueError(f"onnx.save: quantized is {form!r}; it is one of {FORMS}, or None")
    return form is not None and isinstance(module, nn.Module)


def _is_quantised(layer: Any) -> bool:
    if not isinstance(layer, QuantizedLinear | QuantizedEmbedding):
        return False
    format = layer.format
    return isinstance(format.element, Integer) and format.group > 0 and format.minimum is None


def _matmul(w: Any, x: str, weight: QuantizedTensor) -> str:
    codes, zero, scale = (np.asarray(part.numpy()) for part in weight.parts())
    rows, k = weight.shape
    bits, block = (4 if weight.bits <= 4 else 8), weight.group
    if block < 16 or block & (block - 1):
        return _product(w, x, weight)  # no block that the operator knows
    packed = _packed(codes.astype(np.uint8).reshape(rows, -1, block), bits)
    inputs = [x, w.constant(packed), w.constant(scale.astype(np.float32).reshape(-1))]
    if np.any(zero != 1 << (bits - 1)):
        inputs.append(w.constant(_packed(zero.astype(np.uint8), bits).reshape(-1)))
    w.domains["com.microsoft"] = 1
    options = {"K": k, "N": rows, "bits": bits, "block_size": block, "accuracy_level": 4}
    return str(w.emit("MatMulNBits", *inputs, domain="com.microsoft", **options))


def _packed(codes: Any, bits: int) -> Any:
    """Codes in bytes, two in each if they have 4 bits, the first in the low half."""
    if bits == 8:
        return codes
    even = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, codes.shape[-1] % 2)])
    return even[..., ::2] | even[..., 1::2] << 4


def _product(w: Any, x: str, weight: QuantizedTensor) -> str:
    return str(w.emit("MatMul", x, w.emit("Transpose", _floats(w, weight), perm=[1, 0])))


def _embedding(w: Any, x: str, weight: QuantizedTensor) -> str:
    return str(w.emit("Gather", _floats(w, weight), x, axis=0))


def _floats(w: Any, weight: QuantizedTensor) -> str:
    """The weight as floats, computed in the file from its integers."""
    w.needs(21)
    codes, zero, scale = (np.asarray(part.numpy()) for part in weight.parts())
    k = weight.shape[1]
    kind = TensorProto.UINT4 if weight.bits <= 4 else TensorProto.UINT8
    inputs = [
        _integers(w, codes, kind), w.constant(scale.astype(np.float32)), _integers(w, zero, kind)
    ]  # fmt: skip
    whole = w.emit("DequantizeLinear", *inputs, axis=1, block_size=weight.group)
    if codes.shape[1] == k:
        return str(whole)
    return str(w.emit("Slice", whole, w.integers([0]), w.integers([k]), w.integers([1])))


def _integers(w: Any, x: Any, kind: int) -> str:
    name = w.name("constant")
    contents = x.astype(np.uint8)
    if kind == TensorProto.UINT4:
        flat = np.pad(contents.reshape(-1), (0, contents.size % 2))
        contents = flat[::2] | flat[1::2] << 4
    w.initializers.append(
        helper.make_tensor(name, kind, list(x.shape), contents.tobytes(), raw=True)
    )
    return str(name)
