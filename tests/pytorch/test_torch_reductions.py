"""Kernels of PyTorch's reductions, norms, losses, sorting and cumulative operators."""

import itertools
import math
import warnings
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from torch.testing._internal.common_methods_invocations import op_db

from genesis.torch.aten import Unsupported, implementations
from genesis.torch.convert import arguments, from_torch, to_torch
from tests.torch_kernels import Compared, _leaf

aten = torch.ops.aten
HALF, SINGLE = torch.bfloat16, torch.float32

OPERATORS: dict[str, Any] = {op.name + op.variant_test_name: op for op in op_db}

#: By dtype, the operators of PyTorch's own samples to look at: ties are the same everywhere.
SAMPLED = {
    torch.float32: """
        var_mean std_mean logsumexp count_nonzero norm trace dist renorm log_softmax cumprod
        logcumsumexp topk mode kthvalue unique unique_consecutive nonzero nonzero_static histc
        histogram searchsorted bucketize nn.functional.layer_norm nn.functional.group_norm
        nn.functional.mse_loss nn.functional.binary_cross_entropy
        nn.functional.binary_cross_entropy_with_logits nn.functional.smooth_l1_loss
        nn.functional.huber_loss nn.functional.soft_margin_loss nn.functional.multi_margin_loss
        nn.functional.multilabel_margin_loss
    """,
    torch.bfloat16: "sum mean var softmax nn.functional.layer_norm nn.functional.batch_norm",
    torch.int64: "sum prod amax argmin any cumsum sort unique bincount maxreduction_with_dim",
    torch.bool: "sum any all amax count_nonzero cumsum",
    torch.complex64: "sum mean var prod cumsum linalg.vector_norm logsumexp",
}


@pytest.mark.parametrize("dtype", SAMPLED, ids=str)
def test_opinfo_samples(dtype: torch.dtype) -> None:
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    mode = Compared()
    for name in SAMPLED[dtype].split():
        op = OPERATORS[name]
        grad = op.supports_autograd and dtype.is_floating_point
        samples = [
            s for s in op.sample_inputs("cpu", dtype, requires_grad=grad) if s.input.numel() < 1000
        ]
        for sample in samples[len(samples) // 2 :][:1]:
            with mode:
                out = op.op(sample.input, *sample.args, **sample.kwargs)
                out = sample.output_process_fn_grad(out)
                outs = [x for x in (out if isinstance(out, tuple) else (out,)) if grad]
                outs = [x for x in outs if x.requires_grad]
                if outs:
                    torch.autograd.backward(outs, [torch.ones_like(x) for x in outs])
    assert not mode.wrong
    assert len(mode.agreed) > 5


def ours(operator: Any, *args: Any, **kwargs: Any) -> Any:
    name = operator._schema.name + ("." + operator._overloadname).removesuffix(".default")
    given, named = arguments(args, kwargs, _leaf)
    found = implementations[name](*given, **named)
    if isinstance(found, tuple | list):
        return tuple(x if x is None else to_torch(x) for x in found)
    return to_torch(found)


def agree(operator: Any, *args: Any, **kwargs: Any) -> None:
    """The kernel gives what PyTorch gives, or refuses with the same kind of error."""
    try:
        want = operator(*args, **kwargs)
    except Exception as error:
        with pytest.raises(type(error)):
            ours(operator, *args, **kwargs)
        return
    got = ours(operator, *args, **kwargs)
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    for x, y in pairs:
        if x is None:
            continue
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        # PyTorch rounds more often on its way to a result in half precision.
        near = 0.02 if y.dtype is torch.bfloat16 else None
        assert_close(x, y, rtol=near, atol=near, equal_nan=True, check_stride=False)


NAN = math.nan
VALUES = torch.tensor([[3.0, NAN, -1.0, math.inf], [2.0, 2.0, -math.inf, 0.0]])
EMPTY = torch.zeros(0, 3)
NUMBER = torch.tensor(2.5)


@pytest.mark.parametrize("x", [VALUES, EMPTY, NUMBER], ids=["nan", "empty", "number"])
def test_reductions_at_the_edges(x: torch.Tensor) -> None:
    for op, dims in itertools.product((aten.amax, aten.amin), ([], [0], [-1])):
        agree(op.default, x, dims, True)
    for name, dim in itertools.product(("max", "min", "median", "nanmedian"), (0, -1)):
        agree(getattr(aten, name).dim, x, dim)
    for name in ("max", "min", "argmax", "argmin", "any", "all", "prod", "median", "nanmedian"):
        agree(getattr(aten, name).default, x)
    for op in (aten.argmax, aten.argmin):
        agree(op.default, x, 0)
        agree(op.default, x, -1, True)
    for over in (aten.sum.dim_IntList, aten.mean.dim, aten.nansum.default, aten.any.dims):
        agree(over, x, [])
        agree(over, x, [0], True)
    agree(aten.aminmax.default, x)
    agree(aten.aminmax.default, x, dim=0)
    agree(aten.var.correction, x, [0], correction=0)
    agree(aten.std.correction, x, None, correction=1.5)
    agree(aten.cumsum.default, x, 0)
    agree(aten.cummax.default, x, 0)
    agree(aten.sort.default, x, 0, True)
    agree(aten._softmax.default, x, 0, False)
    for order in (0, 1, 2, 3.5, math.inf, -math.inf):
        agree(aten.linalg_vector_norm.default, x, order, [0])


def test_dtypes_and_errors() -> None:
    small = torch.tensor([[250, 7], [0, 3]], dtype=torch.uint8)
    agree(aten.any.default, small)
    agree(aten.all.dim, small, 1)
    agree(aten.sum.default, small)
    agree(aten.sum.default, small, dtype=torch.uint8)
    agree(aten.sum.default, small, dtype=torch.bfloat16)
    agree(aten.prod.dim_int, small > 5, 0)
    agree(aten.cumsum.default, small.int(), 1, dtype=torch.int16)
    agree(aten.logsumexp.default, small, [0])
    agree(aten.mean.default, small)
    agree(aten.mean.default, small, dtype=torch.float64)
    agree(aten.sum.dim_IntList, small, [2])
    agree(aten.sum.dim_IntList, small, [0, -2])
    agree(aten.argmax.default, small > 5)
    agree(aten.topk.default, NUMBER, 1)
    agree(aten.topk.default, VALUES, 5)
    agree(aten.kthvalue.default, EMPTY, 1, 0)
    agree(aten.median.default, small[:0].long())
    agree(aten.bincount.default, torch.tensor([2, 0, 2]), torch.tensor([1, 2, 3]), 5)
    agree(aten.searchsorted.Scalar, torch.tensor([1, 3]), 3, right=True, out_int32=True)


def _random(*shape: int, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    return torch.rand(shape).mul(4).sub(1.5).to(dtype)


@pytest.mark.parametrize("dtypes", [(SINGLE, SINGLE), (HALF, SINGLE), (HALF, HALF)], ids=str)
def test_statistics_of_norms(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """Results, saved statistics, running statistics and gradients, in the dtypes they have."""
    torch.manual_seed(0)
    kind, parameter = dtypes
    x, grad = _random(3, 4, 5, dtype=kind), _random(3, 4, 5, dtype=kind)
    weight, bias, mean, var = (_random(4, dtype=parameter) for _ in range(4))
    var = var.abs()
    everything = [True] * 3
    for training in (True, False):
        args = (x, weight, bias, mean, var, training, 0.25, 1e-5)
        agree(aten._native_batch_norm_legit_functional.default, *args)
        saved = aten._native_batch_norm_legit_functional(*args)[1:3]
        for scale in (weight, None):
            rest = (mean, var, *saved, training, 1e-5, everything)
            agree(aten.native_batch_norm_backward.default, grad, x, scale, *rest)
    given = (x, weight, bias, mean, var, 0.25, 1e-5)
    agree(aten._batch_norm_with_update_functional.default, *given)
    agree(aten._native_batch_norm_legit_no_training.default, *given)
    agree(aten._native_batch_norm_legit.no_stats, x, weight, bias, True, 0.1, 1e-5)
    last = _random(5, dtype=parameter), _random(5, dtype=parameter)
    agree(aten.native_layer_norm.default, x, [5], *last, 1e-5)
    agree(aten.native_layer_norm.default, x, [4, 5], None, None, 1e-5)
    agree(aten.native_group_norm.default, x, weight, bias, 3, 4, 5, 2, 1e-5)
    with pytest.raises(Unsupported, match="running statistics"):
        ours(aten.native_batch_norm.default, x, weight, bias, mean, var, True, 0.1, 1e-5)


def test_masked_softmax() -> None:
    torch.manual_seed(0)
    x, hidden = _random(2, 3, 4, 4), _random(2, 3, 4, 4) > 0
    hidden[0, 0, 0] = True  # of nothing: NaN
    agree(aten._masked_softmax.default, x, hidden, -1, 2)
    agree(aten._masked_softmax.default, x, hidden[0, 0], None, 0)
    agree(aten._masked_softmax.default, x, hidden[:, 1, 1], -1, 1)
    result = aten._masked_softmax(x, hidden, -1, 2)
    agree(aten._masked_softmax_backward.default, _random(2, 3, 4, 4), result, hidden, -1)


def test_gradient_of_rms_norm() -> None:
    """PyTorch has no operator for it on the CPU: the gradient of the formula."""
    torch.manual_seed(0)
    x, weight = _random(3, 4, 5).requires_grad_(), _random(4, 5).requires_grad_()
    result, rstd = aten._fused_rms_norm(x, [4, 5], weight, 1e-5)
    agree(aten._fused_rms_norm.default, x.detach(), [4, 5], weight.detach(), None)
    grad = _random(3, 4, 5)
    result.backward(grad)
    args = (grad, x.detach(), [4, 5], rstd.detach(), weight.detach(), [True, True])
    for got, want in zip(
        ours(aten._fused_rms_norm_backward.default, *args), (x.grad, weight.grad), strict=True
    ):
        assert_close(got, want)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_losses_of_classes(reduction: int) -> None:
    torch.manual_seed(reduction)
    target = torch.tensor([0, 2, -100, 1])
    for weight in (None, _random(3)):
        logs = _random(4, 3)
        logs[2] = -math.inf  # what is ignored does not matter
        args = (logs, target, weight, reduction, -100)
        agree(aten.nll_loss_forward.default, *args)
        loss, total = aten.nll_loss_forward(*args)
        agree(aten.nll_loss_backward.default, torch.ones_like(loss), *args, total)
        image, labels = _random(2, 3, 2, 2), torch.randint(0, 3, (2, 2, 2))
        args = (image, labels, weight, reduction, 1)
        agree(aten.nll_loss2d_forward.default, *args)
        loss, total = aten.nll_loss2d_forward(*args)
        agree(aten.nll_loss2d_backward.default, _random(*loss.shape), *args, total)
    agree(aten.nll_loss_forward.default, _random(3), torch.tensor(1), None, reduction, -100)
    x = torch.tensor([[-200.0, 0.0, 200.0]])
    sign = torch.tensor([[1.0, -1.0, 1.0]])
    assert ours(aten.soft_margin_loss.default, x, sign, reduction).isfinite().all()


def test_ctc() -> None:
    """Losses and gradients, also of what cannot be aligned, and places as PyTorch counts them."""
    torch.manual_seed(0)
    rows = torch.tensor([1, 2, 2, 3, 1])
    padded = torch.tensor([[1, 2, 2, 0], [3, 1, 0, 0]])
    for targets, times, zero in ((padded, [6, 5], False), (rows, [3, 6], False), (rows, [3, 6], 1)):
        logs = _random(6, 2, 4).log_softmax(-1)
        args = (targets, times, [3, 2])
        want, alpha = aten._ctc_loss(logs, *args, 0, bool(zero))
        got, places = ours(aten._ctc_loss.default, logs, *args, 0, bool(zero))
        assert_close(got, want)
        assert places.shape == alpha.shape
        rest = (logs, *args, want, alpha, 0, bool(zero))
        agree(aten._ctc_loss_backward.default, _random(2), *rest)
        lengths = [torch.tensor(x) for x in args[1:]]
        got, _ = ours(aten._ctc_loss.Tensor, logs, targets, *lengths, 0, bool(zero))
        assert_close(got, want)


def test_segments_of_several_rows() -> None:
    torch.manual_seed(0)
    data, lengths = _random(2, 6, 3), torch.tensor([[2, 0, 4], [3, 3, 0]])
    data[0, 1] = 0
    for reduce in ("sum", "mean", "max", "min", "prod"):
        for initial in (None, 2.0):
            named = {"lengths": lengths, "axis": 1, "initial": initial}
            agree(aten.segment_reduce.default, data, reduce, **named, unsafe=True)
        out = aten.segment_reduce(data, reduce, lengths=lengths, axis=1, unsafe=True)
        grad = _random(*out.shape)
        backward = aten._segment_reduce_backward.default
        agree(backward, grad, out, data, reduce, lengths=lengths, axis=1)


def test_distances_and_histograms() -> None:
    torch.manual_seed(0)
    x, y = _random(5, 3), _random(4, 3)
    y[0] = x[0]
    for p in (0.0, 0.5, 1.0, 2.0, 3.0, math.inf):
        distances = aten._cdist_forward(x, y, p, None)
        agree(aten._cdist_backward.default, _random(5, 4), x, y, p, distances)
        pairs = aten._pdist_forward(x, p)
        agree(aten._pdist_forward.default, x, p)
        agree(aten._pdist_backward.default, _random(10), x, p, pairs)
    points, weight = _random(20, 2), _random(20)
    agree(aten._histogramdd_bin_edges.default, points, [3, 4])
    agree(aten._histogramdd_from_bin_cts.default, points, [3, 4], weight=weight, density=True)
    agree(aten._histogramdd_from_bin_cts.default, points, [2, 2], range=[-1.0, 1.0, 0.0, 2.0])


def test_a_tensor_is_seen_through_its_strides() -> None:
    x = torch.arange(24.0).reshape(4, 6)[:, ::2].t()
    agree(aten.sum.dim_IntList, x, [0])
    agree(aten.sort.default, x.sin(), 0)
    assert from_torch(x).shape == (3, 4)
