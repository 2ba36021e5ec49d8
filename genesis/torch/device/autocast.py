"""Autocast: operators that run in lower precision, in float32, or in the widest type given.

The choice is PyTorch's own for its devices. Casts are lazy like everything else, so that a weight
cast in the forward pass is fused into what reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from genesis.torch.device.operator_variants import form_of, operator, overloads

_KEY = "AutocastPrivateUse1"

_LOWER = """
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
    chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    scaled_dot_product_attention
"""
_FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus
    layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm
"""
_WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
"""


def register(library: Any) -> None:
    """Give PyTorch the operators that autocast changes."""
    for names, choose in ((_LOWER, _lower), (_FLOAT32, _float32), (_WIDEST, _widest)):
        for overload in (o for name in names.split() for o in overloads(f"aten::{name}")):
            if "dimname" not in overload.lower() and form_of(overload) is None:
                function = _casting(overload, choose)
                library.impl(overload.removeprefix("aten::"), _KEY, function, False)


def _casting(name: str, choose: Callable[[list[torch.Tensor]], torch.dtype]) -> Callable[..., Any]:
    key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))
    op: Any = None

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal op
        if op is None:
            op = operator(name)
        with torch._C._ExcludeDispatchKeyGuard(key):
            found = [x for x in tree_leaves((args, kwargs)) if _is_eligible(x)]
            if found:
                dtype = choose(found)

                def cast(x: torch.Tensor) -> torch.Tensor:
                    return x.to(dtype) if _is_eligible(x) else x

                args, kwargs = tree_map_only(torch.Tensor, cast, (args, kwargs))
            return op(*args, **kwargs)

    return run


def _is_eligible(x: Any) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and x.device.type == "genesis"
        and x.is_floating_point()
        and x.dtype is not torch.float64
    )


def _lower(found: list[torch.Tensor]) -> torch.dtype:
    return torch.get_autocast_dtype("genesis")


def _float32(found: list[torch.Tensor]) -> torch.dtype:
    return torch.float32


def _widest(found: list[torch.Tensor]) -> torch.dtype:
    lower = torch.get_autocast_dtype("genesis")
    return torch.float32 if any(x.dtype is torch.float32 for x in found) else lower
