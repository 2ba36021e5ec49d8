"""Operators by subject; importing the package fills the table (`genesis.onnx.registry`)."""

from genesis.onnx.operators import (  # noqa: F401
    classical_ml, contraction, contrib_attention, contrib_quantized, control_flow, detection,
    elementwise, grouped_attention, host, indexing, maps, movement, normalization,
    pooling, quantized, random, recurrent, reduction, resizing, signals, support_vectors, texts,
    training,
)  # fmt: skip
