"""Weights of models in the files people have: safetensors, GGUF, PyTorch, NumPy, Keras.

`open_weights` gives the parameters of a checkpoint by name, mapped and not copied. Nothing in a
file is executed, and what it says of itself is checked before it is used.
"""

from genesis.weights.checkpoint_reader import Weights, open_weights, read_json
from genesis.weights.convert import convert
from genesis.weights.gguf import GGUFFile, write_gguf
from genesis.weights.gguf_encode import encode

__all__ = [
    "GGUFFile", "Weights", "convert", "encode", "open_weights", "read_json", "write_gguf",
]  # fmt: skip
