"""Functions of JAX as modules of Genesis.

`from_jax` has JAX lower a function to StableHLO, the portable form of its programs, and gives a
module that computes the same: `genesis/jax/stablehlo_operations.py` is the table of StableHLO's
operations, as functions of tensors. What comes out has gradients, can be jitted, and written to an
ONNX file.
"""

from importlib.util import find_spec

if find_spec("jax") is None:
    raise ModuleNotFoundError("genesis.from_jax needs JAX: pip install 'genesis-dl[jax]'")

from genesis.jax.program import FromJax, from_jax

__all__ = ["FromJax", "from_jax"]
