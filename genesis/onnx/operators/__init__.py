"""Operators by subject; importing the package fills the table (`genesis.onnx.registry`)."""

from genesis.onnx.operators import (  # noqa: F401
    attention, contraction, contrib, control, detection, elementwise, host, indexing, learning,
    losses, movement, normalization, pooling, quantized, random, recurrent, reduction, resizing,
    signals, texts,
)  # fmt: skip
