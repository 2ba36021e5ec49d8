"""Functions, methods and writes in place, for the calls that PyTorch tests its own with."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import genesis
from tests.opinfo import ENTRIES, NEAR, Skipped, compare, samples, there

#: What differs, and why that is right.
KNOWN = {
    "argsort kthvalue msort sort topk": "which of several equal elements comes first",
    "cholesky linalg.cholesky": "the gradient is that for Hermitian changes",
    "cholesky_inverse cholesky_solve": "the triangle that is not read has no gradient",
    "nn.functional.ctc_loss": "the gradient does not take log_softmax for granted",
    "as_strided.partial_views": "samples are views of more than is passed on",
    "nextafter": "no gradient, not an error",
    "as_strided_scatter": "PyTorch's gradient is that of what was overwritten",
    "renorm": "PyTorch's gradient is NaN",
}
DIFFERENT = {name for names in KNOWN for name in names.split()}

CHOSEN = (
    "addbmm all arange bincount cov cumsum diff flip gather index_select linalg.lu_factor "
    "linalg.pinv.hermitian linspace logsumexp masked_fill nn.functional.cosine_similarity "
    "nn.functional.pad.constant nn.functional.relu6 prod sum take_along_dim masked.mean masked.var "
    "signal.windows.cosine special.hermite_polynomial_h unbind_copy lu ormqr native_layer_norm "
    "histogramdd igamma special.scaled_modified_bessel_k1 linalg.cholesky_ex linalg.lu_factor_ex "
    "triangular_solve svd linalg.solve_ex nn.functional.avg_pool2d tensordot"
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


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_ldl_is_lapacks(dtype: torch.dtype, hermitian: bool) -> None:
    """Factors, exchanges and solutions, with blocks of one and of two rows, and singular ones."""
    torch.manual_seed(1)
    for size in range(1, 7):
        a = torch.randn(3, size, size, dtype=dtype)
        a = a + (a.mH if hermitian else a.mT)
        a[1].diagonal().zero_()
        a[2, 0], a[2, :, 0] = 0, 0
        wanted = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
        found = genesis.linalg.ldl_factor_ex(genesis.tensor(a.numpy()), hermitian=hermitian)
        for x, y in zip(found, wanted, strict=True):
            assert_close(there(x), y)
        b = torch.randn(3, size, 2, dtype=dtype)
        regular = wanted.info == 0
        solved = genesis.linalg.ldl_solve(
            *(genesis.tensor(x[regular].numpy()) for x in (wanted.LD, wanted.pivots, b)),
            hermitian=hermitian,
        )
        assert_close(a[regular] @ there(solved), b[regular])


def test_singular_matrices_are_reported_rather_than_refused() -> None:
    a = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a[1, 2] = a[1, 0] * 0
    ours = genesis.tensor(a.numpy(), requires_grad=True)
    inverse, info = genesis.linalg.inv_ex(ours)
    assert info.tolist() == torch.linalg.inv_ex(a).info.tolist() == [0, 3, 0, 0]
    assert_close(there(inverse)[0], a[0].inverse())
    inverse[[0, 2, 3]].sum().backward()
    assert bool(genesis.isfinite(ours.grad).all())
    solution, _ = genesis.linalg.solve_ex(ours, genesis.ones(4, 3, 1, dtype=genesis.float64))
    assert_close(there(solution)[2], torch.linalg.solve(a[2], torch.ones(3, 1, dtype=a.dtype)))
    with pytest.raises(ValueError, match="inv_ex: a matrix is singular"):
        genesis.linalg.inv_ex(ours, check_errors=True).info.tolist()
    lower, info = genesis.linalg.cholesky_ex(-genesis.eye(2))
    assert info.item() == 1 and lower.shape == (2, 2)


def test_memory_formats_are_words() -> None:
    x = genesis.ones(2, 3)
    assert x.clone(memory_format=genesis.preserve_format).equal(x)
    with pytest.raises(RuntimeError, match="channels_last is for 4 dimensions"):
        x.contiguous(memory_format=genesis.channels_last)
    with pytest.raises(TypeError, match="memory_format"):
        x.to(genesis.float64, memory_format="rows first")


def test_resized_tensors_keep_their_first_elements() -> None:
    x = genesis.arange(6).reshape(2, 3)
    x = x.clone()
    assert x.resize_(4).tolist() == [0, 1, 2, 3]
    assert genesis.resize_as_(x, genesis.ones(2, 3)).tolist() == [[0, 1, 2], [3, 0, 0]]
    with pytest.raises(RuntimeError, match="resize_"):
        x[0].resize_(9)
