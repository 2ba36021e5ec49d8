"""Models: short, flat modules that a reader can copy."""

from genesis.models.llama import Llama, LlamaConfig

__all__ = ["Llama", "LlamaConfig"]
