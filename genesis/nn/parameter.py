"""`Parameter` by the module PyTorch has it in."""

from genesis.nn.module import Parameter

__all__ = ["Parameter"]
