"""`autocast`: which operations compute in half precision, and which do not.

The three sets of names below are all there is to it. A name is that of an operation (a `Function`)
or of a composition of several that should be treated as one, such as `linear`. Under `autocast` the
arguments of an operation are cast before it is recorded, so gradients come back in the dtype of the
argument they belong to: parameters stay in float32, and so do their gradients. An operation that is
in no set computes in the dtype its arguments have, or promote to. float64 is left alone.

A cast that occurs several times, such as that of a weight used twice, is one in the program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

from genesis.functional import loss, margin_loss
from genesis.functional.arithmetic import cast
from genesis.functional.function import is_tensor, precision
from genesis.ir.dtype import DType, bfloat16, float16, float32

F = TypeVar("F", bound=Callable[..., Any])

#: Products, which are most of the work, and sum in float32 whatever they multiply.
LOW_PRECISION = frozenset({
    "Attention", "Contract", "Convolution", "ConvolutionTranspose", "Matmul", "linear",
})  # fmt: skip

#: Functions whose results leave the range of float16, or that lose digits in few of them.
FLOAT32 = frozenset({
    # powers, exponentials, logarithms and functions that are steep
    "Acos", "Asin", "Atanh", "Cosh", "Exp", "Exp2", "Expm1", "Log", "Log10", "Log1p", "Log2",
    "Logaddexp2", "Pow", "RealLogaddexp", "Reciprocal", "Rsqrt", "Sinh", "Square", "Tan",
    # special functions
    "Digamma", "Erf", "Erfc", "Erfinv", "Lgamma", "Logit", "Logsigmoid", "Polygamma", "Xlogy",
    # sums and norms
    "Cumprod", "Cumsum", "Logcumsumexp", "LogSoftmax", "Logsumexp", "Mean", "Prod", "Softmax",
    "Std", "Sum", "Var", "VectorNorm",
    # losses
    "Alignments", "ctc_loss", *loss.__all__, *margin_loss.__all__,
})  # fmt: skip

#: Functions that want all arguments in one dtype: the widest that is there.
WIDEST = frozenset({
    "Cat", "Overwrite", "Put", "Scatter", "ScatterAdd", "ScatterExtreme", "ScatterProd",
})  # fmt: skip

_CASTABLE = (float16, bfloat16, float32)


class autocast:  # noqa: N801 - used like a statement
    """Compute in half precision where that is safe: for a ``with`` block, or for a function.

    `dtype` is bfloat16, which has the range of float32, or float16, which has more digits and needs
    a `GradScaler` in training. Blocks may be nested; ``enabled=False`` switches it off in one. The
    device is named as PyTorch does; what is chosen holds for tensors on every device.

    >>> import genesis
    >>> x = genesis.ones(2, 2)
    >>> with genesis.autocast("cpu"):
    ...     product = x @ x
    ...     print(product.dtype, product.exp().dtype, (product + x).dtype)
    bfloat16 float32 float32
    """

    def __init__(
        self, device_type: str = "cpu", dtype: DType = bfloat16, enabled: bool = True
    ) -> None:
        if not isinstance(device_type, str):
            raise TypeError(
                f"autocast: device_type is a text such as 'cpu', not {device_type}; write "
                f"autocast('cpu', dtype={device_type}) to choose a dtype"
            )
        if dtype not in (float16, bfloat16):
            raise ValueError(f"autocast: dtype is float16 or bfloat16, not {dtype}")
        self.device_type, self.dtype, self.enabled = device_type, dtype, enabled
        self._before: list[Any] = []

    def __enter__(self) -> autocast:
        self._before.append((precision.name, precision.choose))
        precision.name = self.dtype.name if self.enabled else "as given"
        precision.choose = partial(_cast_all, self.dtype) if self.enabled else None
        return self

    def __exit__(self, *error: object) -> None:
        precision.name, precision.choose = self._before.pop()

    def __call__(self, function: F) -> F:
        """The function under `autocast`."""

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with autocast(self.device_type, self.dtype, self.enabled):
                return function(*args, **kwargs)

        return called  # type: ignore[return-value]


def custom_fwd(
    fwd: Any = None, *, device_type: str = "cpu", cast_inputs: DType | None = None
) -> Any:
    """For `forward` of a function of yours: tensors become `cast_inputs`, and nothing is chosen.

    Without `cast_inputs` it runs in whatever precision is chosen around it.
    """
    if fwd is None:
        return partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @wraps(fwd)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if cast_inputs is None or precision.choose is None:
            return fwd(*args, **kwargs)
        with autocast(device_type, enabled=False):
            given = [_cast(x, cast_inputs) for x in args]
            return fwd(*given, **{name: _cast(x, cast_inputs) for name, x in kwargs.items()})

    return forward


def custom_bwd(bwd: Any = None, *, device_type: str = "cpu") -> Any:
    """For `backward` of a function of yours: gradients have the precision of what they are of."""
    return partial(custom_bwd, device_type=device_type) if bwd is None else bwd


def _cast_all(low: DType, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an operation, in the dtype that the sets above say."""
    if name in LOW_PRECISION:
        return tuple(_cast(x, low) for x in args)
    if name in FLOAT32:
        return tuple(_cast(x, float32) for x in args)
    if name in WIDEST:
        present = {x.dtype for x in args if is_tensor(x) and x.dtype in _CASTABLE}
        if len(present) > 1:
            return tuple(_cast(x, float32) for x in args)
    return args


def _cast(x: Any, dtype: DType) -> Any:
    return cast(x, dtype) if is_tensor(x) and x.dtype in _CASTABLE else x
