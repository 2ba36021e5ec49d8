"""Function transforms: gradients, Jacobians and batches of functions, as functions."""

from genesis.func.custom import custom_jvp, custom_vjp
from genesis.func.gradients import grad, jvp, linearize, stop_gradient, value_and_grad, vjp
from genesis.func.jacobians import hessian, jacfwd, jacrev
from genesis.func.mapping import vmap
from genesis.func.modules import functional_call, stack_module_state

__all__ = [
    "custom_jvp", "custom_vjp", "functional_call", "grad", "hessian", "jacfwd", "jacrev", "jvp",
    "linearize", "stack_module_state", "stop_gradient", "value_and_grad", "vjp", "vmap",
]  # fmt: skip
