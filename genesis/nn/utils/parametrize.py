"""Parametrisations by the names PyTorch has for them; see `parametrizations`."""

from genesis.nn.utils.parametrizations import (
    ParametrizationList,
    cached,
    is_parametrized,
    register_parametrization,
    remove_parametrizations,
    type_before_parametrizations,
)

__all__ = [
    "ParametrizationList", "cached", "is_parametrized", "register_parametrization",
    "remove_parametrizations", "type_before_parametrizations",
]  # fmt: skip
