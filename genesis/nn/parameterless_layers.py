"""Every layer without parameters that a function is registered to have.

`Mish` is `genesis.functional.mish`, where `@layer("Mish")` says so. Tools read the types beside
this file, which ``python -m tests.stubs`` writes.
"""

from genesis.functional.registry import operations
from genesis.nn.layer_from_function import layer_of

_layers = {x.layer.name: layer_of(x, __name__) for x in operations.values() if x.layer}
globals().update(_layers)

__all__ = [*_layers]
