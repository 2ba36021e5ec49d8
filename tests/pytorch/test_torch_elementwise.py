"""Elementwise kernels of PyTorch's operators, compared with PyTorch on the CPU.

PyTorch's own sample inputs for many operators with their backward ones; edge cases, lists of
tensors and optimizer steps by hand.
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
NAN, INF = math.nan, math.inf


def _computed(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return [_computed(y) for y in x]
    return to_torch(x)


def check(operator: str, *args: Any, **kwargs: Any) -> None:
    """The kernel gives what PyTorch gives: values, dtypes, shapes."""
    packet, _, overload = operator.partition(".")
    want = getattr(getattr(aten, packet), overload or "default")(*args, **kwargs)
    given, named = arguments(args, kwargs, from_torch)
    got = _computed(implementations[f"aten::{operator}"](*given, **named))
    ours, theirs = tree_leaves(got), tree_leaves(want)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, equal_nan=True, check_stride=False)


def compare(name: str, dtype: Any, samples: int = 2) -> Compared:
    """Run PyTorch's samples of an operator, forward and backward, and compare its parts."""
    from torch.testing._internal.common_methods_invocations import op_db

    op: Any = next(o for o in op_db if o.name == name)
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    mode = Compared()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for s in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), samples):
            with mode:
                out = s.output_process_fn_grad(op.op(s.input, *s.args, **s.kwargs))
                if grad:
                    out.backward(torch.ones_like(out))
    return mode


FLOATS = [
    "add", "addcdiv", "addcmul", "clamp", "div", "lerp", "logit", "masked_fill", "nan_to_num",
    "nn.functional.celu", "nn.functional.elu", "nn.functional.gelu", "nn.functional.glu",
    "nn.functional.hardshrink", "nn.functional.hardsigmoid", "nn.functional.hardswish",
    "nn.functional.hardtanh", "nn.functional.leaky_relu", "nn.functional.logsigmoid",
    "nn.functional.mish", "nn.functional.prelu", "nn.functional.rrelu", "nn.functional.silu",
    "nn.functional.softplus", "nn.functional.softshrink", "nn.functional.threshold", "pow",
    "remainder", "sigmoid", "special.entr", "special.i1e", "special.log_ndtr", "tanh", "where",
    "xlogy",
]  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
def test_samples_of_floats(name: str) -> None:
    mode = compare(name, torch.float32)
    assert not mode.wrong and not mode.unsupported and mode.agreed


@pytest.mark.parametrize("dtype", ["bfloat16", "int64", "bool", "complex64"])
@pytest.mark.parametrize("name", ["add", "mul", "sgn", "where", "logical_xor"])
def test_samples_of_other_types(name: str, dtype: str) -> None:
    mode = compare(name, getattr(torch, dtype))
    assert not mode.wrong and not mode.unsupported and mode.agreed


# ---- edge cases

SPECIAL = torch.tensor([0.0, -0.0, 1.0, -2.5, 1e-40, 3e38, INF, -INF, NAN])
OTHER = torch.tensor([NAN, 0.0, -0.0, 2.0, -INF, 7.25, INF, 1.5, 0.0])


@pytest.mark.parametrize(
    "operator",
    [
        "abs", "angle", "ceil", "exp", "floor", "isfinite", "isinf", "isneginf", "isposinf",
        "logical_not", "neg", "reciprocal", "relu", "round", "sgn", "sign", "signbit", "silu",
        "tanh", "trunc",
    ],
)  # fmt: skip
def test_special_values(operator: str) -> None:
    check(operator, SPECIAL)


@pytest.mark.parametrize(
    "operator",
    [
        "atan2", "copysign.Tensor", "eq.Tensor", "fmax", "fmin", "fmod.Tensor", "heaviside",
        "le.Tensor", "logaddexp", "logical_and", "maximum", "minimum", "ne.Tensor", "nextafter",
        "remainder.Tensor", "xlogy.Tensor",
    ],
)  # fmt: skip
def test_pairs_of_special_values(operator: str) -> None:
    check(operator, SPECIAL, OTHER)


def test_dtypes_combine_as_in_pytorch() -> None:
    whole, half = torch.tensor([1, -3, 7], dtype=torch.int32), torch.tensor([0.1, 2.5, -3.0]).half()
    single, true = torch.tensor(1.5), torch.tensor([True, False, True])
    check("add.Tensor", whole, single, alpha=2)
    check("add.Tensor", half, torch.tensor(0.1, dtype=torch.float64))
    check("add.Scalar", true, 1)
    check("rsub.Scalar", whole, 2.5, alpha=3)
    check("mul.Tensor", half, 0.1)
    check("div.Tensor", whole, 2)
    check("div.Tensor_mode", whole, torch.tensor([2, 2, -2]), rounding_mode="trunc")
    check("div.Tensor_mode", half, 0.7, rounding_mode="floor")
    check("sqrt", whole.abs())
    check("where.self", true, whole, single)
    check("where.ScalarSelf", true, 1, half)
    check("clamp.Tensor", whole, torch.tensor(0.5), None)
    check("bitwise_and.Scalar", true, 6)
    check("pow.Scalar", 2, whole.abs())
    check("pow.Tensor_Scalar", whole, 0.5)
    check("float_power.Tensor_Scalar", whole, 3)
    check("lerp.Scalar", half, half * 2, 0.4)
    check("ldexp.Tensor", half, whole)
    check("hardtanh", whole.long(), -1.5, 2.5)


def test_no_axes_and_no_elements() -> None:
    empty, scalar = torch.empty(0, 3), torch.tensor(-1.25)
    for x in (empty, scalar):
        check("gelu", x)
        check("add.Tensor", x, torch.ones(3), alpha=0.5)
        check("clamp_min", x, 0)
        check("sub.Tensor", x, x)
        check("threshold_backward", x, x, 0)
        check("isnan", x)
        check("_foreach_add.Scalar", [x, x], 1)
    check("glu_backward", torch.empty(0, 2), torch.empty(0, 4), 1)


def test_copies_and_conversions() -> None:
    x = torch.tensor([[1.7, -2.2], [NAN, 0.0]])
    check("_to_copy", x, dtype=torch.bool)
    check("_to_copy", x[0], dtype=torch.int8)
    check("_to_copy", torch.complex(x, x), dtype=torch.float64)
    check("_to_copy", torch.complex(x, x), dtype=torch.complex128)
    check("copy", x.int(), torch.tensor([1.5, 2.5]))
    check("fill.Scalar", x, 3)
    check("fill.Tensor", x.t(), torch.tensor(3, dtype=torch.int32))
    check("masked_fill.Tensor", x, torch.tensor([True, False]), torch.tensor(2))
    check("frexp.Tensor", x)


def test_shifts() -> None:
    x = torch.tensor([1, -8, 2**40, -(2**62)])
    for name in ("left", "right"):
        check(f"bitwise_{name}_shift.Tensor", x, torch.tensor([3, 1, 63, 5]))
        check(f"bitwise_{name}_shift.Tensor_Scalar", x, 2)
        check(f"bitwise_{name}_shift.Scalar_Tensor", -5, torch.tensor([0, 1, 2]))
    check("__rshift__.Scalar", x.to(torch.int32), 1)


def test_complex_numbers() -> None:
    z = torch.tensor([1 + 2j, -0.5j, 0j, -3 + 0j])
    for name in (
        "sgn",
        "angle",
        "conj_physical",
        "view_as_real",
        "sinc",
        "silu",
        "abs",
        "isfinite",
    ):
        check(name, z)
    check("logaddexp", z, z.flip(0))
    check("tanh_backward", z, z.tanh())
    check("polar", torch.ones(3), torch.arange(3.0))
    check("view_as_complex", torch.arange(6.0).reshape(3, 2))
    with pytest.raises(Unsupported):
        implementations["aten::view_as_complex"](from_torch(torch.ones(2, dtype=torch.float16)))


def test_polynomials_and_orders() -> None:
    x = torch.linspace(-0.9, 0.9, 7)
    for name in ("chebyshev_polynomial_t", "hermite_polynomial_h", "legendre_polynomial_p"):
        check(f"special_{name}.n_scalar", x, 4)
    check("polygamma", 2, x + 2)
    check("mvlgamma", x + 4, 3)
    with pytest.raises(Unsupported):
        implementations["aten::special_chebyshev_polynomial_t.n_scalar"](from_torch(x), 1000)


def test_second_derivatives_of_glu() -> None:
    torch.manual_seed(0)
    half, whole = torch.randn(2, 3, 4).unbind(), torch.randn(2, 3, 8).unbind()
    check("glu_jvp", half[0], whole[0], whole[1], 1)
    grad = aten.glu_backward(half[0], whole[0], 1)
    check("glu_backward_jvp", grad, half[0], whole[0], half[1], whole[1], 1)


def test_random_slopes() -> None:
    x = torch.linspace(-2, 2, 101)
    noise = from_torch(torch.zeros(101))
    result, slopes = implementations["aten::rrelu_with_noise_functional"](
        from_torch(x), noise, 0.25, 0.5, True
    )
    y, s = to_torch(result), to_torch(slopes)
    assert_close(y, x * s)
    assert ((s == 1) == (x > 0)).all() and ((s >= 0.25) & (s < 0.5))[x <= 0].all()
    check("rrelu_with_noise_backward", x, x, s, 0.25, 0.5, True, False)


# ---- lists of tensors, optimizers


def _lists(count: int, dtype: Any = torch.float32) -> list[list[Any]]:
    torch.manual_seed(1)
    return [[torch.rand(shape).to(dtype) for shape in ((3,), (2, 4), ())] for _ in range(count)]


def test_lists() -> None:
    a, b, c = _lists(3)
    for name in ("sqrt", "neg", "sigmoid", "lgamma", "clone", "zero", "max"):
        check(f"_foreach_{name}", a)
    for name in ("add", "sub", "mul", "div", "pow", "maximum", "clamp_min"):
        check(f"_foreach_{name}.List", a, b)
        check(f"_foreach_{name}.Scalar", a, 0.75)
        check(f"_foreach_{name}.ScalarList", a, [0.5, 2.0, 3.0])
    check("_foreach_add.List", a, b, alpha=0.3)
    check("_foreach_add.Tensor", a, torch.tensor(0.5), alpha=2)
    check("_foreach_pow.ScalarAndTensor", 2.0, a)
    check("_foreach_copy", a, b)
    check("_foreach_norm.Scalar", a, 2)
    check("_foreach_lerp.Scalar", a, b, 0.3)
    check("_foreach_lerp.ScalarList", a, b, [0.1, 0.2, 0.9])
    for name in ("addcmul", "addcdiv"):
        check(f"_foreach_{name}.Scalar", a, b, c, 0.5)
        check(f"_foreach_{name}.ScalarList", a, b, c, [0.5, 1.0, 2.0])
        check(f"_foreach_{name}.Tensor", a, b, c, torch.tensor([0.5, 1.0, 2.0]))


@pytest.mark.parametrize("operator", ["_fused_adam", "_fused_adamw"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam(operator: str, amsgrad: bool) -> None:
    lists = _lists(5)
    steps = [torch.tensor(float(k)) for k in (1, 2, 700)]
    options = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
    options |= {"amsgrad": amsgrad, "maximize": False}
    state = (*lists[:4], lists[4] if amsgrad else [], steps)
    check(operator, *state, **options)
    check(f"{operator}.tensor_lr", *state, **{**options, "lr": torch.tensor(0.01)})
    for found in (0.0, 1.0):
        scales = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(found)}
        check(operator, *state, **{**options, **scales, "maximize": True})


def test_other_fused_steps() -> None:
    p, g, m = _lists(3)
    options = {"weight_decay": 0.1, "lr": 0.01, "dampening": 0.2, "maximize": False}
    for momentum, nesterov, first in ((0.9, False, False), (0.9, True, True)):
        rest = {"momentum": momentum, "nesterov": nesterov, "is_first_step": first}
        check("_fused_sgd", p, g, m, **options, **rest)
    check("_fused_sgd", p, g, [], **options, momentum=0.0, nesterov=False, is_first_step=False)
    steps = [torch.tensor(3.0) for _ in p]
    decay = {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.1, "eps": 1e-10, "maximize": False}
    check("_fused_adagrad", p, g, m, steps, **decay)


@pytest.mark.parametrize("bad", [None, INF, NAN])
def test_loss_scaling(bad: float | None) -> None:
    grads = _lists(1)[0]
    if bad is not None:
        grads[1][0, 2] = bad
    check(
        "_amp_foreach_non_finite_check_and_unscale",
        grads, torch.zeros(1), torch.full((1,), 0.25),
    )  # fmt: skip
    found = torch.tensor([0.0 if bad is None else 1.0])
    for steps in (3, 9):
        tracker = torch.tensor([steps], dtype=torch.int32)
        check("_amp_update_scale", torch.tensor([1024.0]), tracker, found, 2.0, 0.5, 10)


def test_fake_quantization() -> None:
    x = torch.linspace(-3, 3, 24).reshape(2, 3, 4)
    check("fake_quantize_per_tensor_affine_cachemask", x, 0.1, 3, -10, 10)
    scale, zero = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, -2], dtype=torch.int32)
    check("fake_quantize_per_channel_affine_cachemask", x, scale, zero, 1, -8, 7)
    name = "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"
    for on in (0, 1):
        enabled = torch.tensor([on], dtype=torch.int64)
        check(name, x, scale[:1], zero[1:2], enabled, -8, 7)
