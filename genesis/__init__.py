"""Genesis: a deep-learning stack that turns array code into a few fused, proven kernels.

>>> import genesis
>>> x = genesis.tensor([1.0, 2.0, 3.0], requires_grad=True)
>>> (x**2).sum().backward()
>>> x.grad
tensor([2., 4., 6.])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from genesis import autograd, functional, ndarray
from genesis.tensor import (
    creation as _creation,
    memory_formats as _formats,
    window_functions as _windows,
)
from genesis.autograd import (
    enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad,
    set_grad_enabled,
)  # fmt: skip
from genesis.autograd import tensors_in_jit  # noqa: F401 - has `jit` look after gradients
from genesis.autograd import composite_cache as _composite_cache  # noqa: F401 - copies layers' graphs
from genesis.autograd import backward_cache as _backward_cache  # noqa: F401 - copies those of gradients
from genesis.functional import *
from genesis.ir.dtype import (
    DType, bfloat16, bool_, complex64, complex128, float8_e4m3fn, float8_e5m2, float16, float32,
    float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
)  # fmt: skip
from genesis.ndarray import default_device, eager, set_default_device
from genesis.ndarray.core.device import Device
from genesis.ndarray.core.value import unwatched
from genesis.ndarray.tracing.explain import explain
from genesis.ndarray.tracing.jit import jit
from genesis.ndarray.random import initial_seed, manual_seed, seed
from genesis.precision import get_float32_matmul_precision, set_float32_matmul_precision
from genesis.functional.argument_aliases import respell as _respell
from genesis.tensor.creation import *
from genesis.tensor.memory_formats import *
from genesis.tensor.tensor import Tensor
from genesis.tensor.window_functions import *

if TYPE_CHECKING:
    from genesis import (
        amp, compress, cuda, data, datasets, debug, distributions, func, hip, masked, memory,
        models, nn, optim, signal, sparse, train, utils,
    )  # fmt: skip
    from genesis.amp.autocast import autocast
    from genesis.autograd.scan import scan
    from genesis.func import vmap
    from genesis.backends.cpu.runtime.runtime import get_num_threads, set_num_threads
    from genesis.profiling import profile
    from genesis.serialization import load, save
    from genesis.tensor.printing import set_printoptions
    from genesis.tensor.sparse import sparse_coo_tensor, sparse_csr_tensor
    from genesis.tuning import tune
    from genesis.type_info import (
        broadcast_shapes, can_cast, finfo, iinfo, promote_types, result_type,
    )  # fmt: skip

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
_PACKAGES = (
    "amp", "compress", "cuda", "data", "datasets", "debug", "distributions", "func", "hip",
    "masked", "memory", "models", "nn", "onnx", "optim", "random", "signal", "sparse", "testing",
    "train", "utils",
)  # fmt: skip
_IN_PACKAGES = {
    "autocast": "genesis.amp",
    "broadcast_shapes": "genesis.type_info",
    "can_cast": "genesis.type_info",
    "finfo": "genesis.type_info",
    "from_jax": "genesis.jax",
    "from_torch": "genesis.torch",
    "get_num_threads": "genesis.backends.cpu.runtime.runtime",
    "iinfo": "genesis.type_info",
    "load": "genesis.serialization",
    "profile": "genesis.profiling",
    "promote_types": "genesis.type_info",
    "result_type": "genesis.type_info",
    "save": "genesis.serialization",
    "scan": "genesis.autograd.scan",
    "set_num_threads": "genesis.backends.cpu.runtime.runtime",
    "set_printoptions": "genesis.tensor.printing",
    "sparse_coo_tensor": "genesis.tensor.sparse",
    "sparse_csr_tensor": "genesis.tensor.sparse",
    "tune": "genesis.tuning",
    "vmap": "genesis.func",
}


def __getattr__(name: str) -> Any:
    if name in _ALIASES:
        return _ALIASES[name]
    # What is loaded when it is first used may be so while somebody records the use.
    if name in _IN_PACKAGES:
        return getattr(unwatched(import_module, _IN_PACKAGES[name]), name)
    if name in _PACKAGES:
        return unwatched(import_module, f"genesis.{name}")
    if name.endswith("_") and name[0] != "_" and hasattr(Tensor, name):
        return getattr(Tensor, name)  # what writes into its first argument
    raise AttributeError(f"module 'genesis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_ALIASES]


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Have the bits of a result depend on its inputs alone.

    The same script gives the same bits always. But a program that serves many sizes may add in
    another order than one for a single size, and which of them runs depends on earlier sizes.
    With `mode` every size has a program of its own, and takes its time to be compiled. It is for
    trainings with batches of many sizes that are to be resumed bit for bit.
    """
    from genesis.compiler.options import change

    change(symbolic_sizes=not mode)


def are_deterministic_algorithms_enabled() -> bool:
    """What `use_deterministic_algorithms` was told last."""
    from genesis.compiler.options import current

    return not current().symbolic_sizes


def is_tensor(obj: Any) -> bool:
    """Whether an object is a tensor."""
    return isinstance(obj, Tensor)


__all__ = [
    "Tensor", "amp", "are_deterministic_algorithms_enabled", "autocast", "autograd", "bfloat16",
    "bool_", "broadcast_shapes", "can_cast", "cdouble", "cfloat", "complex128", "complex64",
    "compress", "cuda", "data", "datasets", "debug", "default_device", "detach", "device",
    "distributions", "double", "dtype", "e", "eager", "enable_grad", "explain", "finfo", "float16",
    "float32", "float64", "float8_e4m3fn", "float8_e5m2", "func", "functional",
    "get_float32_matmul_precision", "get_num_threads", "half", "hip", "iinfo", "inf",
    "inference_mode", "initial_seed", "int16", "int32", "int64", "int8", "is_conj",
    "is_floating_point", "is_grad_enabled", "is_inference", "is_inference_mode_enabled", "is_neg",
    "is_nonzero", "is_same_size", "is_signed", "is_tensor", "jit", "load", "long", "manual_seed",
    "masked", "memory", "models", "nan", "ndarray", "newaxis", "nn", "no_grad", "numel", "optim",
    "pi", "profile", "promote_types", "resolve_conj", "resolve_neg", "result_type",
    "save", "scan", "seed", "set_default_device", "set_float32_matmul_precision",
    "set_grad_enabled", "set_num_threads", "set_printoptions", "short", "signal", "sparse",
    "sparse_coo_tensor", "sparse_csr_tensor", "train", "tune", "uint16", "uint32", "uint64",
    "uint8", "use_deterministic_algorithms", "utils", "vmap",
]  # fmt: skip
__all__ += _formats.__all__
__all__ += functional.__all__
__all__ += _creation.__all__
__all__ += _windows.__all__

if not TYPE_CHECKING:  # the functions that users call take other spellings of arguments, too
    from sys import modules as _modules

    for _home in (_modules[__name__], functional.linalg, functional.fft, functional.special):
        _respell(_home, functional.__all__ if _home is _modules[__name__] else _home.__all__)
    _respell(_modules[__name__], _creation.__all__)
