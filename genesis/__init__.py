"""Genesis: a deep-learning stack that turns array code into a few fused, proven kernels.

>>> import genesis
>>> x = genesis.tensor([1.0, 2.0, 3.0], requires_grad=True)
>>> (x**2).sum().backward()
>>> x.grad
tensor([2., 4., 6.])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from genesis import autograd, cuda, functional, hip, memory, ndarray
from genesis.autograd import (
    enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad,
    set_grad_enabled,
)  # fmt: skip
from genesis.autograd import jitted  # noqa: F401 - has `jit` look after gradients
from genesis.autograd.scan import scan
from genesis.tensor.creation import (
    Generator, arange, as_tensor, asarray, bernoulli, empty, empty_like, eye, from_dlpack,
    from_numpy, full, full_like, get_default_dtype, get_rng_state, linspace, logspace, multinomial,
    normal, ones, ones_like, rand, rand_like, randint, randint_like, randn, randn_like, randperm,
    scalar_tensor, set_default_dtype, set_rng_state, tensor, tril_indices, triu_indices, zeros,
    zeros_like,
)  # fmt: skip
from genesis.functional import (
    abs, absolute, acos, acosh, adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d,
    adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d, add, addbmm, addcdiv, addcmul,
    addmm, addmv, addr, adjoint, affine_grid, all, allclose, alpha_dropout, amax, amin, aminmax,
    angle, any, arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh, argmax, argmin, argsort,
    argwhere, as_strided, asin, asinh, atan, atan2, atanh, atleast_1d, atleast_2d, atleast_3d,
    avg_pool1d, avg_pool2d, avg_pool3d, baddbmm, batch_norm, bilinear, binary_cross_entropy,
    binary_cross_entropy_with_logits, bincount, bitwise_and, bitwise_left_shift, bitwise_not,
    bitwise_or, bitwise_right_shift, bitwise_xor, block_diag, bmm, broadcast_tensors, broadcast_to,
    bucketize, cartesian_prod, cat, cdist, ceil, celu, chain_matmul, channel_shuffle, cholesky,
    cholesky_inverse, cholesky_solve, chunk, clamp, clamp_max, clamp_min, clip, clone, column_stack,
    combinations, complex, concat, concatenate, conj, conj_physical, conv1d, conv2d, conv3d,
    conv_transpose1d, conv_transpose2d, conv_transpose3d, copysign, corrcoef, cos, cosh,
    cosine_embedding_loss, cosine_similarity, count_nonzero, cov, cross, cross_entropy, ctc_loss,
    cummax, cummin, cumprod, cumsum, cumulative_trapezoid, deg2rad, det, diag, diag_embed, diagflat,
    diagonal, diagonal_scatter, dice_loss, diff, digamma, dist, div, divide, dot, dropout,
    dropout1d, dropout2d, dropout3d, dsplit, dstack, einsum, elu, embedding, embedding_bag, eq,
    equal, erf, erfc, erfinv, exp, exp2, expand, expm1, feature_alpha_dropout, fft, fix, flatten,
    flip, fliplr, flipud, float_power, floor, floor_divide, fmax, fmin, fmod, focal_loss, fold,
    frac, fractional_max_pool2d, fractional_max_pool3d, frexp, gather, gaussian_nll_loss, gcd, ge,
    gelu, ger, glu, gradient, greater, greater_equal, grid_sample, group_norm, gt, hardshrink,
    hardsigmoid, hardswish, hardtanh, heaviside, hinge_embedding_loss, histc, histogram, hsplit,
    hstack, huber_loss, hypot, i0, imag, index_add, index_copy, index_fill, index_put, index_reduce,
    index_select, inner, instance_norm, interpolate, inverse, is_complex, isclose, isfinite, isin,
    isinf, isnan, isneginf, isposinf, isreal, istft, kl_div, kron, kthvalue, l1_loss, layer_norm,
    lcm, ldexp, le, leaky_relu, lerp, less, less_equal, lgamma, linalg, linear,
    linear_cross_entropy, local_response_norm, log, log10, log1p, log2, log_softmax, logaddexp,
    logaddexp2, logcumsumexp, logdet, logical_and, logical_not, logical_or, logical_xor, logit,
    logsigmoid, logsumexp, lp_pool1d, lp_pool2d, lp_pool3d, lt, margin_ranking_loss, masked_fill,
    masked_scatter, masked_select, matmul, matrix_exp, matrix_power, max, max_pool1d, max_pool2d,
    max_pool3d, max_unpool1d, max_unpool2d, max_unpool3d, maximum, mean, median, meshgrid, min,
    minimum, mish, mm, mode, moveaxis, movedim, mse_loss, msort, mul, multi_margin_loss,
    multigammaln, multilabel_margin_loss, multilabel_soft_margin_loss, multiply, mv, mvlgamma,
    nan_to_num, nanmean, nanmedian, nanquantile, nansum, narrow, ne, neg, negative, nextafter,
    nll_loss, nonzero, nonzero_static, norm, normalize, not_equal, one_hot, outer, pad,
    pairwise_distance, pdist, permute, pinverse, pixel_shuffle, pixel_unshuffle, poisson_nll_loss,
    polar, polygamma, positive, pow, prelu, prod, put, quantile, rad2deg, ravel, real, reciprocal,
    relu, relu6, remainder, renorm, repeat, repeat_interleave, reshape, rms_norm, roll, rot90,
    round, row_stack, rrelu, rsqrt, rsub, scaled_dot_product_attention, scatter, scatter_add,
    scatter_reduce, searchsorted, select, select_scatter, selu, sgn, sigmoid, sign, signbit, silu,
    sin, sinc, sinh, slice_scatter, slogdet, smooth_l1_loss, soft_margin_loss, softmax, softmin,
    softplus, softshrink, softsign, sort, special, split, split_with_sizes, sqrt, square, squeeze,
    stack, std, std_mean, stft, sub, subtract, sum, swapaxes, swapdims, t, take, take_along_dim,
    tan, tanh, tanhshrink, tensor_split, tensordot, threshold, tile, topk, trace, transpose,
    trapezoid, trapz, tril, triplet_margin_loss, triplet_margin_with_distance_loss, triu,
    true_divide, trunc, unbind, unflatten, unique, unique_consecutive, unravel_index, unsqueeze,
    var, var_mean, vdot, vector_norm, view_as_complex, view_as_real, vsplit, vstack, where, xlogy,
)  # fmt: skip
from genesis.ir.dtype import (
    DType, bfloat16, bool_, complex64, complex128, float8_e4m3fn, float8_e5m2, float16, float32,
    float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
)  # fmt: skip
from genesis.ndarray import default_device, eager, set_default_device
from genesis.ndarray.core.device import Device
from genesis.ndarray.tracing.explain import explain
from genesis.ndarray.tracing.jit import jit
from genesis.ndarray.random import manual_seed
from genesis.precision import get_float32_matmul_precision, set_float32_matmul_precision
from genesis.tensor.printing import set_printoptions
from genesis.serialization import load, save
from genesis.tensor.tensor import Tensor
from genesis.type_info import broadcast_shapes, can_cast, finfo, iinfo, promote_types, result_type
from genesis.tensor.window_functions import (
    bartlett_window, blackman_window, hamming_window, hann_window, kaiser_window,
)  # fmt: skip

if TYPE_CHECKING:
    from genesis import amp, datasets, models, nn, optim, quantization
    from genesis.amp.autocast import autocast
    from genesis.backends.cpu.runtime.runtime import get_num_threads, set_num_threads
    from genesis.profiling import profile
    from genesis.tuning import tune

__version__ = "0.1.0"

# The names PyTorch has for these types. `bool`, `float` and `int` would hide Python's own where
# names are imported, and are found as attributes all the same.
device, dtype = Device, DType
half, double = float16, float64
short, long = int16, int64
cfloat, cdouble = complex64, complex128
_ALIASES = {"bool": bool_, "float": float32, "int": int32}

inf, nan, pi, e = float("inf"), float("nan"), 3.141592653589793, 2.718281828459045
newaxis = None

# Methods that PyTorch has as functions, too.
detach, resolve_conj, resolve_neg = Tensor.detach, Tensor.resolve_conj, Tensor.resolve_neg
is_conj, is_floating_point, is_inference = (
    Tensor.is_conj, Tensor.is_floating_point, Tensor.is_inference
)  # fmt: skip
is_neg, is_nonzero, is_same_size = Tensor.is_neg, Tensor.is_nonzero, Tensor.is_same_size
is_signed, numel = Tensor.is_signed, Tensor.numel

#: Loaded when they are first used.
_PACKAGES = ("amp", "datasets", "models", "nn", "optim", "quantization")
_IN_PACKAGES = {
    "autocast": "genesis.amp",
    "get_num_threads": "genesis.backends.cpu.runtime.runtime",
    "profile": "genesis.profiling",
    "set_num_threads": "genesis.backends.cpu.runtime.runtime",
    "tune": "genesis.tuning",
}


def __getattr__(name: str) -> Any:
    if name in _ALIASES:
        return _ALIASES[name]
    if name in _IN_PACKAGES:
        return getattr(import_module(_IN_PACKAGES[name]), name)
    if name in _PACKAGES:
        return import_module(f"genesis.{name}")
    raise AttributeError(f"module 'genesis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_ALIASES]


def is_tensor(obj: Any) -> bool:
    """Whether an object is a tensor."""
    return isinstance(obj, Tensor)


__all__ = [
    "Generator", "Tensor", "abs", "absolute", "acos", "acosh", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr",
    "adjoint", "affine_grid", "all", "allclose", "alpha_dropout", "amax", "amin", "aminmax", "amp",
    "angle", "any", "arange", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2",
    "arctanh", "argmax", "argmin", "argsort", "argwhere", "as_strided", "as_tensor", "asarray",
    "asin", "asinh", "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "autocast",
    "autograd", "avg_pool1d", "avg_pool2d", "avg_pool3d", "baddbmm", "bartlett_window",
    "batch_norm", "bernoulli", "bfloat16", "bilinear", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "bincount", "bitwise_and", "bitwise_left_shift",
    "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "blackman_window",
    "block_diag", "bmm", "bool_", "broadcast_shapes", "broadcast_tensors", "broadcast_to",
    "bucketize", "can_cast", "cartesian_prod", "cat", "cdist", "cdouble", "ceil", "celu", "cfloat",
    "chain_matmul", "channel_shuffle", "cholesky", "cholesky_inverse", "cholesky_solve", "chunk",
    "clamp", "clamp_max", "clamp_min", "clip", "clone", "column_stack", "combinations", "complex",
    "complex128", "complex64", "concat", "concatenate", "conj", "conj_physical", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "copysign", "corrcoef",
    "cos", "cosh", "cosine_embedding_loss", "cosine_similarity", "count_nonzero", "cov", "cross",
    "cross_entropy", "ctc_loss", "cuda", "cummax", "cummin", "cumprod", "cumsum",
    "cumulative_trapezoid", "datasets", "default_device", "deg2rad", "det", "detach", "device",
    "diag", "diag_embed", "diagflat", "diagonal", "diagonal_scatter", "dice_loss", "diff",
    "digamma", "dist", "div", "divide", "dot", "double", "dropout", "dropout1d", "dropout2d",
    "dropout3d", "dsplit", "dstack", "dtype", "e", "eager", "einsum", "elu", "embedding",
    "embedding_bag", "empty", "empty_like", "enable_grad", "eq", "equal", "erf", "erfc", "erfinv",
    "exp", "exp2", "expand", "explain", "expm1", "eye", "feature_alpha_dropout", "fft", "finfo",
    "fix", "flatten", "flip", "fliplr", "flipud", "float8_e4m3fn", "float8_e5m2", "float16",
    "float32", "float64", "float_power",
    "floor", "floor_divide", "fmax", "fmin", "fmod", "focal_loss", "fold", "frac",
    "fractional_max_pool2d", "fractional_max_pool3d", "frexp", "from_dlpack", "from_numpy", "full",
    "full_like", "functional", "gather", "gaussian_nll_loss", "gcd", "ge", "gelu", "ger",
    "get_default_dtype", "get_float32_matmul_precision", "get_num_threads", "get_rng_state", "glu",
    "gradient", "greater", "greater_equal", "grid_sample", "group_norm", "gt", "half",
    "hamming_window", "hann_window", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
    "heaviside", "hinge_embedding_loss", "hip", "histc", "histogram", "hsplit", "hstack",
    "huber_loss", "hypot", "i0", "iinfo", "imag", "index_add", "index_copy", "index_fill",
    "index_put", "index_reduce", "index_select", "inf", "inference_mode", "inner", "instance_norm",
    "int16", "int32", "int64", "int8", "interpolate", "inverse", "is_complex", "is_conj",
    "is_floating_point", "is_grad_enabled", "is_inference", "is_inference_mode_enabled", "is_neg",
    "is_nonzero", "is_same_size", "is_signed", "is_tensor", "isclose", "isfinite", "isin", "isinf",
    "isnan", "isneginf", "isposinf", "isreal", "istft", "jit", "kaiser_window", "kl_div", "kron",
    "kthvalue", "l1_loss", "layer_norm", "lcm", "ldexp", "le", "leaky_relu", "lerp", "less",
    "less_equal", "lgamma", "linalg", "linear", "linear_cross_entropy", "linspace", "load",
    "local_response_norm", "log", "log10", "log1p", "log2", "log_softmax", "logaddexp",
    "logaddexp2", "logcumsumexp", "logdet", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logit", "logsigmoid", "logspace", "logsumexp", "long", "lp_pool1d", "lp_pool2d",
    "lp_pool3d", "lt", "manual_seed", "margin_ranking_loss", "masked_fill", "masked_scatter",
    "masked_select", "matmul", "matrix_exp", "matrix_power", "max", "max_pool1d", "max_pool2d",
    "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d", "maximum", "mean", "median",
    "memory", "meshgrid", "min", "minimum", "mish", "mm", "mode", "models", "moveaxis", "movedim",
    "mse_loss", "msort", "mul", "multi_margin_loss", "multigammaln", "multilabel_margin_loss",
    "multilabel_soft_margin_loss", "multinomial", "multiply", "mv", "mvlgamma", "nan", "nan_to_num",
    "nanmean", "nanmedian", "nanquantile", "nansum", "narrow", "ndarray", "ne", "neg", "negative",
    "newaxis", "nextafter", "nll_loss", "nn", "no_grad", "nonzero", "nonzero_static", "norm",
    "normal", "normalize", "not_equal", "numel", "one_hot", "ones", "ones_like", "optim", "outer",
    "pad", "pairwise_distance", "pdist", "permute", "pi", "pinverse", "pixel_shuffle",
    "pixel_unshuffle", "poisson_nll_loss", "polar", "polygamma", "positive", "pow", "prelu", "prod",
    "profile", "promote_types", "put", "quantile", "quantization", "rad2deg", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "randperm", "ravel", "real", "reciprocal",
    "relu", "relu6", "remainder", "renorm", "repeat", "repeat_interleave", "reshape",
    "resolve_conj", "resolve_neg", "result_type", "rms_norm", "roll", "rot90", "round",
    "row_stack", "rrelu", "rsqrt", "rsub", "save", "scalar_tensor",
    "scaled_dot_product_attention", "scan", "scatter",
    "scatter_add", "scatter_reduce", "searchsorted", "select", "select_scatter", "selu",
    "set_default_device", "set_default_dtype", "set_float32_matmul_precision", "set_grad_enabled",
    "set_num_threads", "set_printoptions", "set_rng_state", "sgn", "short", "sigmoid", "sign",
    "signbit", "silu", "sin", "sinc", "sinh", "slice_scatter", "slogdet", "smooth_l1_loss",
    "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink", "softsign", "sort",
    "special", "split", "split_with_sizes", "sqrt", "square", "squeeze", "stack", "std", "std_mean",
    "stft", "sub", "subtract", "sum", "swapaxes", "swapdims", "t", "take", "take_along_dim", "tan",
    "tanh", "tanhshrink", "tensor", "tensor_split", "tensordot", "threshold", "tile", "topk",
    "trace", "transpose", "trapezoid", "trapz", "tril", "tril_indices", "triplet_margin_loss",
    "triplet_margin_with_distance_loss", "triu", "triu_indices", "true_divide", "trunc", "tune",
    "uint16", "uint32", "uint64", "uint8", "unbind", "unflatten", "unique", "unique_consecutive",
    "unravel_index", "unsqueeze", "var", "var_mean", "vdot", "vector_norm", "view_as_complex",
    "view_as_real", "vsplit", "vstack", "where", "xlogy", "zeros", "zeros_like",
]  # fmt: skip
