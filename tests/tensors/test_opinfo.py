"""Functions, methods and writes in place, for the calls that PyTorch tests its own with."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from tests.opinfo import ENTRIES, NEAR, Skipped, compare, samples

#: What differs, and why that is right.
KNOWN = {
    "argsort kthvalue msort sort topk": "which of several equal elements comes first",
    "linalg.eig linalg.eigh linalg.svd": "the signs and phases of vectors are free",
    "cholesky linalg.cholesky": "the gradient is that for Hermitian changes",
    "cholesky_inverse cholesky_solve": "the triangle that is not read has no gradient",
    "nn.functional.ctc_loss": "the gradient does not take log_softmax for granted",
    "as_strided.partial_views": "samples are views of more than is passed on",
    "linalg.lstsq linalg.lstsq.grad_oriented": "ranks and residuals are always given",
    "bernoulli normal normal.number_mean nextafter linalg.matrix_power": "no gradient, not zero",
    "logcumsumexp renorm istft matrix_exp": "PyTorch's results are NaN or rounded",
    "nn.functional.embedding_bag polygamma": "samples are for a function of other arguments",
    "nn.functional.scaled_dot_product_attention": "dropout is drawn otherwise",
}
DIFFERENT = {name for names in KNOWN for name in names.split()}

CHOSEN = (
    "addbmm all arange bincount cov cumsum diff flip index_select linalg.lu_factor "
    "linalg.pinv.hermitian linspace logsumexp masked_fill nn.functional.cosine_similarity "
    "nn.functional.pad.constant nn.functional.relu6 prod sum take_along_dim masked.mean masked.var "
    "signal.windows.cosine special.hermite_polynomial_h unbind_copy"
)


def differences(name: str, dtype: torch.dtype, kind: str, most: int, loud: bool) -> list[str]:
    """What differs for an operator; errors here that name what is not there count if `loud`."""
    op: Any = ENTRIES[name]
    if dtype not in op.supported_dtypes("cpu"):
        raise Skipped("PyTorch has no such operator")
    rounds = dtype in NEAR and dtype not in (torch.float16, torch.bfloat16)
    trained = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    gradients = kind == "function" and rounds and trained
    found = []
    for sample in samples(op, dtype, gradients, most):
        try:
            difference = compare(op, kind, sample, gradients)
        except Skipped:
            continue
        if difference and (loud or "PyTorch: a result; here: " not in difference):
            found.append(f"{sample}: {difference}"[:500])
    return found


@pytest.mark.parametrize("name", CHOSEN.split())
def test_calls_agree_with_pytorch(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in (torch.float32, torch.int64):
            try:
                assert not differences(name, dtype, "function", 3, True)
            except Skipped:
                continue


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "method", "in_place"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64", "uint8", "bool"])
def test_all_calls_agree_with_pytorch(dtype: str, kind: str) -> None:
    """Nothing differs without a word: where a result is not PyTorch's, there is an error."""
    wrong = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ENTRIES:
            if name.split(".polygamma_n")[0] in DIFFERENT or name in DIFFERENT:
                continue
            try:
                found = differences(name, getattr(torch, dtype), kind, 6, False)
            except Skipped:
                continue
            if found:
                wrong[name] = found[0]
    assert not wrong
