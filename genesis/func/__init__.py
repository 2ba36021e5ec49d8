"""Function transforms: gradients, Jacobians and batches of functions, as functions."""

from genesis.func.activation_checkpointing import (
    checkpoint, checkpoint_sequential, in_few_bits, offload, save_nothing, save_only, save_products,
)  # fmt: skip
from genesis.func.control_flow import cond, while_loop
from genesis.func.custom_derivatives import custom_jvp, custom_vjp
from genesis.func.gradients import (
    grad, grad_and_value, jvp, linearize, stop_gradient, value_and_grad, vjp,
)  # fmt: skip
from genesis.func.jacobians import hessian, jacfwd, jacrev
from genesis.func.vmap_transform import vmap
from genesis.func.modules_as_functions import functional_call, stack_module_state

__all__ = [
    "checkpoint", "checkpoint_sequential", "cond", "custom_jvp", "custom_vjp", "functional_call",
    "grad", "grad_and_value", "hessian", "in_few_bits", "jacfwd", "jacrev", "jvp", "linearize",
    "offload", "save_nothing", "save_only", "save_products", "stack_module_state",
    "stop_gradient", "value_and_grad", "vjp", "vmap", "while_loop",
]  # fmt: skip
