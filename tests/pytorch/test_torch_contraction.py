"""Kernels for products, convolutions, pooling, resampling, attention, transforms and matrices.

PyTorch's own samples for a choice of operators, and by hand what they leave out: zeros that hide
NaN, missing elements, output masks, matrices that have no inverse.
"""

import itertools
import math
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.testing import assert_close  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from genesis.torch.aten import Unsupported, implementations  # noqa: E402
from genesis.torch.convert import arguments, from_torch, to_torch  # noqa: E402
from tests.torch_kernels import Compared  # noqa: E402

aten = torch.ops.aten


def run(operator: str, *args: Any, **kwargs: Any) -> Any:
    """What a kernel gives, as tensors."""
    given, named = arguments(args, kwargs, from_torch)
    got = implementations[f"aten::{operator}"](*given, **named)
    if isinstance(got, list | tuple):
        return [to_torch(x) if hasattr(x, "dtype") else x for x in got]
    return to_torch(got)


def check(operator: str, *args: Any, **kwargs: Any) -> None:
    """The kernel gives what PyTorch gives: values, dtypes, shapes, and None in the same places."""
    packet, _, overload = operator.partition(".")
    want = getattr(getattr(aten, packet), overload or "default")(*args, **kwargs)
    got = run(operator, *args, **kwargs)
    ours, theirs = (list(x) if isinstance(x, list | tuple) else [x] for x in (got, want))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert_close(a, b, equal_nan=True, check_stride=False, rtol=2e-5, atol=2e-5)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


SAMPLED = [
    "addmm", "addbmm", "addr", "baddbmm", "addmv", "matmul", "einsum", "vdot",
    "nn.functional.bilinear", "nn.functional.conv_transpose2d", "nn.functional.conv3d",
    "nn.functional.max_pool3d", "nn.functional.adaptive_max_pool2d", "nn.functional.max_unpool2d",
    "nn.functional.adaptive_avg_pool3d", "nn.functional.avg_pool1d", "nn.functional.avg_pool3d",
    "nn.functional.scaled_dot_product_attention", "fft.rfft2", "fft.ihfftn", "fft.hfft",
    "linalg.cholesky_ex", "linalg.lu_solve", "linalg.qr", "linalg.pinv",
    "linalg.householder_product", "triangular_solve", "lu_unpack", "ormqr", "matrix_exp",
]  # fmt: skip


@pytest.mark.parametrize("name", SAMPLED)
def test_samples_of_pytorch(name: str) -> None:
    """Every operator below autograd that has a kernel agrees, forward and backward."""
    from torch.testing._internal.common_methods_invocations import op_db

    op: Any = next(o for o in op_db if o.name == name)
    grad = op.supports_autograd
    mode = Compared()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = op.sample_inputs("cpu", torch.float64, requires_grad=grad)
        for s in itertools.islice(samples, 2):
            with mode:
                out = s.output_process_fn_grad(op.op(s.input, *s.args, **s.kwargs))
                outs = [x for x in tree_leaves(out) if torch.is_tensor(x) and x.requires_grad]
                if outs:
                    torch.autograd.backward(outs, [torch.ones_like(x) for x in outs])
    assert not mode.wrong
    assert not mode.unsupported
    assert mode.agreed


# ---- products


def test_what_is_multiplied_by_zero_is_not_looked_at() -> None:
    x, y = torch.randn(2, 3), torch.randn(3, 4)
    check("addmm", torch.full((4,), math.nan), x, y, beta=0, alpha=0.5)
    check("addmm", torch.randn(2, 1), x, y, beta=2, alpha=-1)


def test_whole_numbers_are_scaled_by_whole_numbers() -> None:
    x = torch.arange(6).reshape(2, 3)
    check("addmv", torch.arange(2), x, torch.arange(3), beta=1.7, alpha=2.9)
    check("addr", torch.tensor([[True], [False]]), *torch.tensor([[True, False], [True, True]]))
    check("addr", torch.arange(4.0).reshape(2, 2), torch.arange(2), torch.arange(2), alpha=0.5)


def test_sums_of_nothing() -> None:
    check("mm", torch.ones(2, 0), torch.ones(0, 3))
    check("addmm", torch.ones(3), torch.ones(2, 0), torch.ones(0, 3), beta=3)
    check("bmm", torch.ones(0, 2, 3), torch.ones(0, 3, 4))
    check("dot", torch.ones(0), torch.ones(0))


def test_columns_that_do_not_fill_vectors() -> None:
    for columns in (5, 6, 7):
        check("mm", torch.randn(3, 8).t(), torch.randn(3, columns))


def test_half_precision_products_may_stay_wide() -> None:
    x, y = torch.randn(4, 8).bfloat16(), torch.randn(8, 3).bfloat16()
    assert_close(run("mm.dtype", x, y, torch.float32), x.float() @ y.float())
    assert_close(run("_int_mm", x.to(torch.int8), y.to(torch.int8)).double(),
                 x.to(torch.int8).double() @ y.to(torch.int8).double())  # fmt: skip


def test_products_and_sums_are_rounded_once() -> None:
    x, y, z = (torch.randn(*shape).bfloat16() for shape in ((2, 4, 8), (2, 8, 3), (2, 4, 3)))
    exact = 0.7 * z.double() + 1.5 * x.double() @ y.double()
    got = run("baddbmm", z, x, y, beta=0.7, alpha=1.5).double()
    assert ((got - exact).abs() <= exact.abs() * 2**-8).all()


def test_complex_products_conjugate_only_where_they_say() -> None:
    x, y = torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex64)
    check("vdot", x, y)
    check("dot", x, y)
    check("dot", x.conj(), y)


# ---- convolutions

CONVOLUTIONS: list[tuple[Any, ...]] = [
    # input, weight, stride, padding, dilation, transposed, output padding, groups
    ((2, 4, 9), (6, 2, 3), [2], [1], [2], False, [0], 2),
    ((2, 4, 7, 6), (4, 1, 3, 2), [1, 2], [1, 0], [1, 1], False, [0, 0], 4),
    ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), [1, 2, 1], [0, 1, 1], [1, 1, 2], False, [0, 0, 0], 1),
    ((2, 4, 5), (4, 3, 3), [2], [1], [3], True, [2], 2),
    ((1, 2, 4, 3), (2, 3, 3, 2), [3, 1], [1, 0], [1, 2], True, [2, 1], 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_and_all_their_gradients(case: tuple[Any, ...]) -> None:
    shape, window, *how = case
    x, w = torch.randn(shape), torch.randn(window)
    out = window[1] * how[5] if how[3] else window[0]
    bias = torch.randn(out)
    check("convolution", x, w, bias, *how)
    grad = torch.randn_like(aten.convolution(x, w, None, *how))
    check("convolution_backward", grad, x, w, [out], *how, [True, True, True])
    wanted = run("convolution_backward_overrideable", grad, x, w, *how, [False, True, False])
    assert [x is None for x in wanted] == [True, False, True]


def test_complex_convolutions() -> None:
    shapes = (2, 2, 6), (3, 2, 3)
    x, w = (torch.randn(shape, dtype=torch.cfloat, requires_grad=True) for shape in shapes)
    how = [1], [1], [1], False, [0], 1
    want = torch.nn.functional.conv1d(x, w, padding=1)
    given = x.detach(), w.detach()
    assert_close(run("convolution", *given, None, *how), want.detach())
    grad = torch.randn_like(want)
    want.backward(grad)
    got = run("convolution_backward", grad, *given, None, *how, [True, True, False])
    assert_close(got[:2], [x.grad, w.grad])


# ---- pooling and resampling


def test_pooling_at_edges() -> None:
    x = torch.randn(2, 3, 7, 5)
    x[0, 0, 3, 3] = math.nan
    how = [3, 2], [2, 2], [1, 1], [1, 2], True
    check("max_pool2d_with_indices", x, *how)
    found, indices = aten.max_pool2d_with_indices(x, *how)
    check("max_pool2d_with_indices_backward", torch.randn_like(found), x, *how, indices)
    mean = [3], [2], [1], True, False, None
    check("avg_pool2d", x[:, :, :3], *mean)
    grad = torch.randn_like(aten.avg_pool2d(x, *mean))
    check("avg_pool2d_backward", grad, x, *mean)
    check("_adaptive_avg_pool2d", torch.randn(0, 3, 4, 4), [2, 3])


@pytest.mark.parametrize("scales", [(None, None), (1.7, 0.6)])
@pytest.mark.parametrize("family", ["upsample_nearest", "_upsample_nearest_exact"])
def test_nearest_resampling(family: str, scales: tuple[float | None, ...]) -> None:
    x = torch.randn(2, 3, 5, 7)
    check(f"{family}2d", x, [8, 4], *scales)
    check(f"{family}2d_backward", torch.randn(2, 3, 8, 4), [8, 4], [2, 3, 5, 7], *scales)
    check(f"{family}2d.vec", x, None, [1.5, 0.5])
    check(f"{family}2d.vec", x, [3, 9], None)


@pytest.mark.parametrize("name", ["bilinear2d", "bicubic2d", "bilinear2d_aa", "bicubic2d_aa"])
@pytest.mark.parametrize("corners", [False, True])
def test_smooth_resampling(name: str, corners: bool) -> None:
    name = f"{'_' if name.endswith('aa') else ''}upsample_{name}"
    x = torch.randn(2, 2, 5, 7)
    check(name, x, [8, 4], corners, None, None)
    check(f"{name}_backward", torch.randn(2, 2, 8, 4), [8, 4], [2, 2, 5, 7], corners, 1.7, 0.6)
    with pytest.raises(Unsupported):
        run(name, x, [8, 4], False, 1.0, 2.0)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_samples_at_a_grid(mode: int, padding: int) -> None:
    x, grid = torch.randn(2, 3, 4, 5), torch.rand(2, 3, 4, 2) * 3 - 1.5
    how = mode, padding, bool(mode % 2)
    check("grid_sampler_2d", x, grid, *how)
    grad = torch.randn(2, 3, 3, 4)
    check("grid_sampler_2d_backward", grad, x, grid, *how, [True, True])


def test_affine_grids() -> None:
    theta = torch.randn(2, 2, 3, requires_grad=True)
    grid = aten.affine_grid_generator(theta, [2, 1, 3, 4], False)
    assert_close(run("affine_grid_generator", theta.detach(), [2, 1, 3, 4], False), grid.detach())
    grad = torch.randn_like(grid)
    grid.backward(grad)
    assert_close(run("affine_grid_generator_backward", grad, [2, 1, 3, 4], False), theta.grad)


# ---- attention


def _attention(heads: int = 4) -> list[Any]:
    shapes = (2, 4, 6, 8), (2, heads, 5, 8), (2, heads, 5, 8)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_the_cpu(causal: bool) -> None:
    q, k, v = (x.detach() for x in _attention())
    mask = None if causal else torch.randn(2, 1, 6, 5)
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=0.3
    )
    name = "_scaled_dot_product_flash_attention_for_cpu"
    check(name, q, k, v, 0.0, causal, attn_mask=mask, scale=0.3)
    saved = torch.randn_like(out), q, k, v, out, logsumexp
    check(f"{name}_backward", *saved, 0.0, causal, attn_mask=mask, scale=0.3)
    with pytest.raises(Unsupported):
        run(name, q, k, v, 0.5)


@pytest.mark.parametrize("heads", [2, 4])
def test_fused_attention_with_a_bias(heads: int) -> None:
    q, k, v = _attention(heads)
    bias = torch.randn(1, 4, 6, 5, requires_grad=True)
    want, _ = aten._scaled_dot_product_attention_math(q, k, v, bias, enable_gqa=heads < 4)
    grad = torch.randn_like(want)
    want.backward(grad)
    name = "_scaled_dot_product_fused_attention_overrideable"
    data = [x.detach() for x in (q, k, v, bias)]
    out, logsumexp, _, _, rows, columns, seed, offset, _ = run(name, *data)
    assert (rows, columns) == (6, 5)
    assert_close(out, want.detach())
    saved = out, logsumexp, None, None, rows, columns, 0.0, False, seed, offset
    got = run(f"{name}_backward", grad, *data, [True, True, False, True], *saved)
    assert_close(got[:2], [q.grad, k.grad])
    assert got[2] is None
    assert_close(got[3], bias.grad)


def test_queries_that_may_look_at_nothing() -> None:
    q, k, v = (x.detach() for x in _attention())
    mask = torch.ones(6, 5, dtype=torch.bool)
    mask[2] = False
    check("scaled_dot_product_attention", q, k, v, mask)
    check("_scaled_dot_product_attention_math", q, k, v, mask)  # adds numbers
    addend = torch.zeros(6, 5).masked_fill(~mask, -math.inf)
    check("_scaled_dot_product_attention_math", q, k, v, addend)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    check(name, q, k, v, attn_mask=addend)
    saved = torch.randn_like(q), q, k, v, *run(name, q, k, v, attn_mask=addend)
    check(f"{name}_backward", *saved, 0.0, False, attn_mask=addend)


def test_dropped_weights_are_scaled() -> None:
    q, k, v = (x.detach() for x in _attention())
    _, kept = run("_scaled_dot_product_attention_math", q, k, v, None, 0.5)
    _, all_of_them = aten._scaled_dot_product_attention_math(q, k, v)
    assert 0 < (kept == 0).sum() < kept.numel()
    assert_close(kept, torch.where(kept == 0, 0, 2 * all_of_them))


# ---- transforms


@pytest.mark.parametrize("normalization", [0, 1, 2])
def test_fourier_transforms(normalization: int) -> None:
    x = torch.randn(3, 4, 5)
    z = torch.randn(3, 4, 5, dtype=torch.cfloat)
    for forward in (False, True):
        check("_fft_c2c", z, [2, 0], normalization, forward)
    for onesided in (False, True):
        check("_fft_r2c", x, [0, 1], normalization, onesided)
    for length in (8, 9):
        check("_fft_c2r", z, [0, 2], normalization, length)
    assert run("_fft_r2c", torch.zeros(0, 4), [1], normalization, True).shape == (0, 3)


# ---- matrices


def test_matrices_that_do_not_fit_are_reported() -> None:
    x = torch.eye(3).repeat(3, 1, 1)
    x[1, 1, 1] = 0
    inverse, info = run("linalg_inv_ex", x)
    assert info.tolist() == [0, 2, 0]
    assert info.dtype == torch.int32
    assert_close(inverse[[0, 2]], x[[0, 2]])
    check("linalg_lu_factor_ex", x)
    x[2, 2, 2] = -1
    assert run("linalg_cholesky_ex", x)[1].tolist() == [0, 2, 3]
    check("linalg_solve_triangular", x, torch.ones(3, 3, 2), upper=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_factors_that_are_not_unique_give_the_matrix(dtype: Any) -> None:
    x = torch.randn(2, 3, 5, dtype=dtype)
    u, s, vh = run("_linalg_svd", x)
    assert_close(u @ torch.diag_embed(s).to(dtype) @ vh, x, rtol=1e-4, atol=1e-4)
    assert [list(y.shape) for y in run("_linalg_svd", x, True, False)] == [[0], [2, 3], [0]]
    square = x[..., :3]
    hermitian = square + square.mH
    values, vectors = run("_linalg_eigh", hermitian)
    assert_close(hermitian @ vectors, vectors * values.unsqueeze(-2), rtol=1e-4, atol=1e-4)
    values, vectors = run("linalg_eig", square)
    wide = square.to(vectors.dtype)
    assert_close(wide @ vectors, vectors * values.unsqueeze(-2), rtol=1e-4, atol=1e-4)


def test_least_squares_by_driver() -> None:
    a, b = torch.randn(2, 5, 3), torch.randn(2, 5, 4)
    for driver in ("gelsy", "gels"):
        check("linalg_lstsq", a, b, driver=driver)
    with pytest.raises(Unsupported):
        run("linalg_lstsq", a, b, driver="gelsd")


def test_reflections() -> None:
    x = torch.randn(2, 5, 3, dtype=torch.cdouble)
    check("geqrf", x)
    a, tau = torch.geqrf(x)
    check("linalg_householder_product", a, tau)
    for left, transpose in itertools.product((False, True), repeat=2):
        other = torch.randn(2, 5, 5, dtype=torch.cdouble)
        check("ormqr", a, tau, other, left, transpose)


# ---- recurrent cells


def test_lstm_cell() -> None:
    rows = [torch.randn(3, 8, requires_grad=True) for _ in range(2)]
    biases = [torch.randn(8, requires_grad=True) for _ in range(2)]
    cx = torch.randn(3, 2, requires_grad=True)
    i, f, g, o = (rows[0] + rows[1] + biases[0] + biases[1]).chunk(4, 1)
    cy = f.sigmoid() * cx + i.sigmoid() * g.tanh()
    hy = o.sigmoid() * cy.tanh()
    given = [x.detach() for x in (*rows, cx, *biases)]
    got = run("_thnn_fused_lstm_cell", *given)
    assert_close(got[:2], [hy.detach(), cy.detach()])
    grads = [torch.randn_like(hy), torch.randn_like(cy)]
    torch.autograd.backward([hy, cy], grads)
    back = run("_thnn_fused_lstm_cell_backward", *grads, cx.detach(), *got[1:], True)
    assert_close(back, [rows[0].grad, rows[1].grad, cx.grad, biases[0].grad, biases[1].grad])


def test_gru_cell() -> None:
    rows = [torch.randn(3, 6, requires_grad=True) for _ in range(2)]
    biases = [torch.randn(6, requires_grad=True) for _ in range(2)]
    hx = torch.randn(3, 2, requires_grad=True)
    mine, past = ((x + b).chunk(3, 1) for x, b in zip(rows, biases, strict=True))
    r, z = (mine[0] + past[0]).sigmoid(), (mine[1] + past[1]).sigmoid()
    n = (mine[2] + r * past[2]).tanh()
    hy = (1 - z) * n + z * hx
    got = run("_thnn_fused_gru_cell", *(x.detach() for x in (*rows, hx, *biases)))
    assert_close(got[0], hy.detach())
    grad = torch.randn_like(hy)
    hy.backward(grad)
    back = run("_thnn_fused_gru_cell_backward", grad, got[1], True)
    assert_close(back, [rows[0].grad, rows[1].grad, hx.grad, biases[0].grad, biases[1].grad])


# ---- the short cut of transformers


MASKS = {
    "none": (None, None),
    "of queries": (torch.ones(5, 5).triu(1).bool(), 0),
    "of keys": (torch.tensor([[0, 0, 0, 0, 1], [0, 1, 1, 0, 0]]).bool(), 1),
    "of both": (torch.ones(2, 4, 5, 5).triu(1).bool(), 2),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_attention_of_several_heads(mask: tuple[Any, int | None]) -> None:
    given, kind = mask
    weights = torch.randn(48, 16), torch.randn(48), torch.randn(16, 16), torch.randn(16)
    x, y = torch.randn(2, 2, 5, 16)
    for needed, averaged in ((True, True), (True, False), (False, True)):
        named = {"need_weights": needed, "average_attn_weights": averaged, "mask_type": kind}
        check("_native_multi_head_attention", x, x, x, 16, 4, *weights, given, **named)
    if given is None:
        check("_native_multi_head_attention", x, y, y, 16, 4, *weights)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("first", [False, True], ids=["norm last", "norm first"])
def test_layer_of_an_encoder(first: bool, mask: tuple[Any, int | None]) -> None:
    given, kind = mask
    shapes = [(48, 16), (48,), (16, 16), (16,)]
    attention = [torch.randn(shape) / 4 for shape in shapes]
    norms = [torch.randn(16) for _ in range(4)]
    feeding = [torch.randn(shape) / 4 for shape in ((32, 16), (32,), (16, 32), (16,))]
    x = torch.randn(2, 5, 16)
    for gelu in (False, True):
        settings = (gelu, first, 1e-5)
        layer = (x, 16, 4, *attention, *settings, *norms, *feeding)
        check("_transformer_encoder_layer_fwd", *layer, given, mask_type=kind)


@pytest.mark.parametrize(
    ("rows", "ends"),
    [(64, [16, 16, 40, 64]), (320, [8, 296, 312, 320]), (8, [0, 0, 8, 8]), (48, [0, 0, 0, 0])],
)
def test_groups_of_rows_have_matrices_of_their_own(rows: int, ends: list[int]) -> None:
    """Groups may be empty, and of any length; rows behind the last one belong to none."""
    offs = torch.tensor(ends, dtype=torch.int32)
    x, w = (torch.randn(*shape).bfloat16() for shape in ((rows, 24), (4, 24, 16)))
    y = torch.randn(rows, 16).bfloat16()
    wide, tall = torch.randn(4, 16, 24).bfloat16(), torch.randn(24, rows).bfloat16()
    last = ends[-1]
    for a, b in ((x, w), (x.t(), y), (wide, tall)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = aten._grouped_mm(a, b, offs)
        got = run("_grouped_mm", a, b, offs)
        if a is x:
            got, want = got[:last], want[:last]  # PyTorch leaves the others as they are
        elif a is wide:
            got, want = got[:, :last], want[:, :last]
        assert_close(got, want, check_stride=False)
    with pytest.raises(Unsupported, match="sums within groups"):
        many = torch.empty(2048, 2048).bfloat16()
        run("_grouped_mm", many, many, offs)
