"""Parametrisations by the names PyTorch has for them; see `parametrizations`."""

from genesis.nn.utils.parametrizations import (
    is_parametrized,
    register_parametrization,
    remove_parametrizations,
)

__all__ = ["is_parametrized", "register_parametrization", "remove_parametrizations"]
