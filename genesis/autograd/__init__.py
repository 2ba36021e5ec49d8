"""Automatic differentiation: gradients of what was computed, to any order."""

from genesis.autograd import functional
from genesis.autograd.anomaly import AnomalyError, detect_anomaly
from genesis.autograd.function import Function
from genesis.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from genesis.autograd.mode import (
    enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad,
    set_grad_enabled,
)  # fmt: skip
from genesis.autograd.tape import Creator, backward, grad

__all__ = [
    "AnomalyError", "Creator", "Function", "GradcheckError", "backward", "detect_anomaly",
    "enable_grad", "functional", "grad", "gradcheck", "gradgradcheck", "inference_mode",
    "is_grad_enabled", "is_inference_mode_enabled", "no_grad", "set_grad_enabled",
]  # fmt: skip
