"""Making tensors: from data, from one number, from a rule, at random.

Arguments are PyTorch's: `dtype` (floats are of the default dtype unless it is given), `device` (the
thread's default unless given) and `requires_grad`. Random functions also take a `generator`.
Everything but data is an expression that costs no memory until it is used.
"""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from genesis import ndarray as nd
from genesis.functional.error_messages import called, worded
from genesis.functional.zero_gradient import unrelated
from genesis.ir.dtype import (
    DType,
    as_dtype,
    bfloat16,
    bool_,
    default_float,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    promote,
    set_default_float,
    uint8,
)
from genesis.ir.size import product
from genesis.ndarray import NDArray, random
from genesis.ndarray.core.device import chosen
from genesis.ndarray.core.value import Changes, counted_surroundings
from genesis.ndarray.random import Generator
from genesis.tensor.memory_formats import Size
from genesis.tensor.tensor import Tensor

# ---- the default dtype


def get_default_dtype() -> DType:
    """The dtype of new floating-point tensors."""
    return default_float()


def set_default_dtype(d: Any) -> None:
    """Make floats have this dtype where nothing gives another; one setting for the process.

    It decides what the functions that make tensors give, and what arithmetic makes of integers:

    >>> import genesis
    >>> genesis.set_default_dtype(genesis.float64)
    >>> (genesis.tensor([1, 2]) / 3).dtype
    float64
    >>> genesis.set_default_dtype(genesis.float32)
    """
    dtype = as_dtype(d)
    if not dtype.is_float:
        raise TypeError(f"set_default_dtype: only floating-point types can be default, not {dtype}")
    set_default_float(dtype)
    Changes.count += 1


counted_surroundings.append((get_default_dtype, set_default_dtype))


def _float(dtype: Any) -> DType:
    return default_float() if dtype is None else as_dtype(dtype)


def _sizes(size: tuple[Any, ...]) -> Any:
    """Sizes given one by one, or as one sequence."""
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], tuple | list) else size


# ---- data


def tensor(
    data: Any,
    *,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor with a copy of nested lists, numbers, a NumPy array or another tensor.

    >>> import genesis
    >>> genesis.tensor([[1, 2], [3, 4]])
    tensor([[1, 2],
            [3, 4]])
    """
    if isinstance(data, Tensor | NDArray):
        array = data.array if isinstance(data, Tensor) else data
        return Tensor(nd.array(array, dtype, device), requires_grad)
    return Tensor(nd.array(*_contents(data, dtype), device), requires_grad)


def _contents(data: Any, dtype: Any) -> tuple[Any, Any]:
    """Data as a NumPy array, and the dtype it shall have."""
    if isinstance(data, np.ndarray | np.generic) or hasattr(data, "__array_interface__"):
        return data, dtype
    if isinstance(data, list | tuple):
        dtype = _of_members(data) if dtype is None else dtype
        data = _numbers(data)
    try:
        found = np.asarray(data)
    except ValueError:
        raise ValueError("tensor: nested lists must all have the same lengths") from None
    if found.dtype.kind not in "biufc":
        raise TypeError(f"tensor: cannot make a tensor of {type(data).__name__} objects")
    if dtype is not None and found.dtype.kind in "iufc":
        _require_room(found, as_dtype(dtype))
    if dtype is None and found.dtype == np.uint64 and not _is_numpys(data):
        raise OverflowError(f"tensor: {found.max()} does not fit into int64; give a dtype")
    if dtype is None and _is_numpys(data):
        return found, dtype
    if dtype is None and found.dtype.kind == "f":
        dtype = default_float()
    if dtype is None and found.dtype.kind == "c":
        dtype = default_float().complex
    return found, dtype


def _is_numpys(data: Any) -> bool:
    """Whether nested lists begin with a number of NumPy's: those have a type."""
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return isinstance(data, np.generic)


def _require_room(found: np.ndarray[Any, Any], dtype: DType) -> None:
    """Refuse integers that a type cannot hold; unsigned ones take negative numbers, modulo."""
    if found.dtype.kind == "c":
        if not dtype.is_complex and dtype is not bool_:
            raise TypeError(f"tensor: complex numbers do not fit into {dtype}")
        return
    if not dtype.is_integer or found.size == 0:
        return
    if not np.isfinite(found).all():
        raise OverflowError(f"tensor: NaN or infinity does not fit into {dtype}")
    most = 2 ** (dtype.bits - (dtype.kind == "int")) - 1
    least = -most - (dtype.kind == "int")
    if found.min() < least or found.max() > most:
        raise OverflowError(f"tensor: {found.min()} to {found.max()} does not fit into {dtype}")


def _of_members(data: Any) -> DType | None:
    """The dtype of nested lists that tensors are in: what these and the numbers promote to."""
    found: DType | None = None
    for x in data:
        if isinstance(x, list | tuple):
            kind = _of_members(x)
        elif isinstance(x, Tensor | NDArray):
            kind = x.dtype
        else:
            continue
        if kind is not None:
            found = kind if found is None else promote(found, kind)
    if found is None:
        return None
    for x in data:
        kinds = {bool: bool_, builtins.int: int64, float: default_float()}
        kind = kinds.get(type(x)) or (default_float().complex if type(x) is complex else None)
        found = found if kind is None else promote(found, kind)
    return found


def _numbers(data: Any) -> Any:
    """Nested lists in which tensors are replaced by what they hold."""
    if isinstance(data, Tensor | NDArray):
        if data.shape and product(data.shape) == 1:
            return data.reshape(()).tolist()
        return data.tolist()
    return [_numbers(x) for x in data] if isinstance(data, list | tuple) else data


def as_tensor(data: Any, dtype: Any = None, device: str | None = None) -> Tensor:
    """`data` as a tensor, without a copy where that is possible."""
    if isinstance(data, Tensor):
        return data.to(dtype, device)  # type: ignore[no-any-return]
    if isinstance(data, NDArray):
        return Tensor(nd.asarray(data, dtype, device))
    return Tensor(nd.asarray(*_contents(data, dtype), device))


def asarray(
    obj: Any,
    *,
    dtype: Any = None,
    device: str | None = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """`obj` as a tensor; `copy` asks for one of its own."""
    made = tensor(obj, dtype=dtype, device=device) if copy else as_tensor(obj, dtype, device)
    return made.requires_grad_() if requires_grad else made


def from_numpy(ndarray: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on the memory of a NumPy array, which it never writes to."""
    if isinstance(ndarray, NDArray):  # stands for one that is an argument of a jitted function
        return Tensor(ndarray)
    if not isinstance(ndarray, np.ndarray):
        raise TypeError(f"from_numpy: expected a NumPy array, got {type(ndarray).__name__}")
    return Tensor(nd.from_numpy(ndarray))


def from_dlpack(ext_tensor: Any) -> Tensor:
    """A tensor on the memory of any object with ``__dlpack__`` (PyTorch, JAX, ..)."""
    return Tensor(nd.from_dlpack(ext_tensor))


def scalar_tensor(
    s: Any, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """One number as a tensor, of the default dtype unless another is given."""
    return full((), s, dtype=_float(dtype), device=device, requires_grad=requires_grad)


# ---- one number

_filled = worded(nd.full)


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of one number.

    >>> import genesis
    >>> genesis.full((2, 2), 7)
    tensor([[7, 7],
            [7, 7]])
    """
    if isinstance(fill_value, str | bytes | list | tuple | dict | None):
        raise TypeError(f"full: fill_value is one number, not a {type(fill_value).__name__}")
    if isinstance(fill_value, Tensor):
        dtype = fill_value.dtype if dtype is None else dtype
        array = nd.expand(nd.asarray(fill_value.array, dtype, device), _sizes((size,))).copy()
        return Tensor(array, requires_grad)
    if dtype is None and isinstance(fill_value, float):
        dtype = default_float()
    if dtype is None and isinstance(fill_value, complex):
        dtype = default_float().complex
    return Tensor(_filled(size, fill_value, dtype, device), requires_grad)


def zeros(
    *size: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of zeros."""
    return full(_sizes(size), 0, dtype=_float(dtype), device=device, requires_grad=requires_grad)


def ones(
    *size: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of ones."""
    return full(_sizes(size), 1, dtype=_float(dtype), device=device, requires_grad=requires_grad)


def empty(
    *size: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """A tensor to be written. It holds zeros, which cost nothing until they are used."""
    return zeros(*size, dtype=dtype, device=device, requires_grad=requires_grad)


def empty_strided(size: Any, stride: Any, **options: Any) -> Tensor:
    """`empty`: where its elements lie is the compiler's choice; the strides must fit the sizes."""
    if len(tuple(size)) != len(tuple(stride)):
        raise RuntimeError(f"empty_strided: sizes {tuple(size)} and strides {tuple(stride)}")
    return empty(size, **options)


def empty_permuted(size: Any, physical_layout: Any, **options: Any) -> Tensor:
    """`empty`: where its elements lie is the compiler's choice."""
    if sorted(physical_layout) != list(range(len(tuple(size)))):
        raise RuntimeError(f"empty_permuted: {tuple(physical_layout)} is no order of {tuple(size)}")
    return empty(size, **options)


def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor like `input`, of one number."""
    if not isinstance(input, Tensor):
        raise TypeError(f"{called('full_like')}: expected a tensor, got {type(input).__name__}")
    return full(
        input.shape,
        fill_value,
        dtype=dtype or input.dtype,
        device=device or input.device,
        requires_grad=requires_grad,
    )


def zeros_like(input: Tensor, **options: Any) -> Tensor:
    """A tensor like `input`, of zeros; options as those of `full_like`."""
    return full_like(input, 0, **options)


def ones_like(input: Tensor, **options: Any) -> Tensor:
    """A tensor like `input`, of ones; options as those of `full_like`."""
    return full_like(input, 1, **options)


def empty_like(input: Tensor, **options: Any) -> Tensor:
    """A tensor like `input`, to be written; options as those of `full_like`."""
    return full_like(input, 0, **options)


# ---- a rule


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, .. below end; with one argument from 0 to below it.

    >>> import genesis
    >>> genesis.arange(1, 4)
    tensor([1, 2, 3])
    """
    if end is None:
        start, end = 0, start
    start, end, step = (x.item() if isinstance(x, Tensor) else x for x in (start, end, step))
    if step == 0 or (isinstance(end, int | float) and (end - start) * step < 0):
        raise ValueError(f"arange: from {start} to {end} does not go in steps of {step}")
    if dtype is None and any(isinstance(x, float) for x in (start, end, step)):
        dtype = default_float()
    if dtype is not None and as_dtype(dtype).is_integer:
        start, end, step = _whole(start, end, step, as_dtype(dtype))
    return Tensor(nd.arange(start, end, step, dtype, device), requires_grad)


def _whole(start: Any, end: Any, step: Any, dtype: DType) -> tuple[Any, Any, Any]:
    """Integers for the ends and the step; int64 also counts by them, other types do not."""
    given = start, end, step
    if not any(isinstance(x, float) for x in given):
        return given
    first, last, by = (builtins.int(x) for x in given)
    if by == 0:
        raise ValueError(f"arange: a step of {step} is 0 in {dtype}")
    if dtype is not int64:
        last = first + max(math.ceil((end - start) / step), 0) * by
    return first, last, by


def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` numbers at equal distances, both ends included."""
    first, last = (x.item() if isinstance(x, Tensor) else x for x in (start, end))
    target = _float(dtype)
    if target.is_integer:
        first, last = builtins.int(first), builtins.int(last)
    return Tensor(nd.linspace(first, last, steps, target, device), requires_grad)


def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """`base` to the power of `steps` numbers at equal distances."""
    target = _float(dtype)
    if target.is_integer:
        start, end = builtins.int(start), builtins.int(end)
    powers = linspace(start, end, steps, dtype=float64, device=device).array
    return Tensor(nd.astype(nd.pow(base, powers), target), requires_grad)


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A matrix with ones on the diagonal, zeros elsewhere."""
    return Tensor(nd.eye(n, m, _float(dtype), device), requires_grad)


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = int64, device: str | None = None
) -> Tensor:
    """The positions on and below a diagonal: row numbers, then column numbers."""
    _require_sizes("tril_indices", row, col)
    return Tensor(nd.asarray(nd.tril_indices(row, col, offset), dtype, device))


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = int64, device: str | None = None
) -> Tensor:
    """The positions on and above a diagonal: row numbers, then column numbers."""
    _require_sizes("triu_indices", row, col)
    return Tensor(nd.asarray(nd.triu_indices(row, col, offset), dtype, device))


def _require_sizes(name: str, row: int, col: int) -> None:
    if row < 0 or col < 0:
        raise ValueError(f"{name}: there are no {row} x {col} matrices")


# ---- at random


def _source(generator: Generator | None, device: str | None) -> Generator:
    """The generator to draw from: the one given, or the device's."""
    if generator is None:
        return random.default_generator(device)
    if device is not None and chosen(device) != generator.device:
        raise ValueError(f"the generator is on {generator.device}, the tensor shall be on {device}")
    return generator


def rand(
    *size: Any,
    generator: Generator | None = None,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers equally likely anywhere from 0 to below 1."""
    source = _source(generator, device)
    drawn = random.uniform(_sizes(size), 0.0, 1.0, _float(dtype), source)
    return Tensor(drawn, requires_grad)


def randn(
    *size: Any,
    generator: Generator | None = None,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers from the standard normal distribution."""
    source = _source(generator, device)
    drawn = random.normal(_sizes(size), 0.0, 1.0, _float(dtype), source)
    return Tensor(drawn, requires_grad)


_integers = worded(random.integers)


def randint(
    low: int,
    high: Any,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = int64,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Integers from low to below high: ``randint(low, high, size)`` or ``randint(high, size)``."""
    if size is None:
        low, high, size = 0, low, high
    source = _source(generator, device)
    _require_room(np.array([low, high - 1]), as_dtype(dtype))
    drawn = _integers(low, high, size, as_dtype(dtype), source)
    return Tensor(drawn, requires_grad)


def rand_like(input: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
    """`rand` of the shape, dtype and device of `input`."""
    return rand(*input.shape, dtype=dtype or input.dtype, **{"device": input.device, **options})


def randn_like(input: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
    """`randn` of the shape, dtype and device of `input`."""
    return randn(*input.shape, dtype=dtype or input.dtype, **{"device": input.device, **options})


def randint_like(
    input: Tensor, low: int, high: int | None = None, *, dtype: Any = None, **options: Any
) -> Tensor:
    """`randint` of the shape, dtype and device of `input`."""
    first, last = (0, low) if high is None else (low, high)
    given = {"device": input.device, **options}
    return randint(first, last, input.shape, dtype=dtype or input.dtype, **given)


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: Any = int64,
    device: str | None = None,
) -> Tensor:
    """The numbers from 0 to below `n` in random order."""
    source = _source(generator, device)
    keys = _integers(-(2**63), 2**63 - 1, n, generator=source)
    return Tensor(nd.astype(nd.argsort(keys), as_dtype(dtype)))


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers from normal distributions, one for each element of `mean` and `std` if these are."""
    given: list[Any] = [x.array if isinstance(x, Tensor) else x for x in (mean, std)]
    complaint = "normal: standard deviations are negative"
    if isinstance(given[1], NDArray):
        given[1] = nd.demand(given[1], lambda x: x < 0, complaint)
    elif given[1] < 0:
        raise ValueError(f"{complaint}: {given[1]}")
    arrays = [x for x in given if isinstance(x, NDArray)]
    if not arrays:
        if size is None:
            raise TypeError("normal: needs a size where mean and std are numbers")
        source = _source(generator, device)
        drawn = random.normal(_sizes((size,)), given[0], given[1], _float(dtype), source)
        return Tensor(drawn, requires_grad)
    like = arrays[0] if len(arrays) == 1 else arrays[0] + arrays[1]
    source = _source(generator, like.device)
    drawn = random.normal(like.shape, dtype=like.dtype, generator=source)
    made = Tensor(drawn * given[1] + given[0], requires_grad)
    return _not_of(made, mean, std)


def _not_of(drawn: Tensor, *given: Any) -> Tensor:
    """What was drawn by some parameters: their gradients are zero."""
    for x in given:
        if isinstance(x, Tensor) and x.requires_grad:
            drawn = unrelated(x, drawn)
    return drawn


def bernoulli(
    input: Tensor, p: float | None = None, *, generator: Generator | None = None
) -> Tensor:
    """1 with the probabilities in `input`, or with probability `p`, else 0."""
    if p is not None:
        return empty_like(input).bernoulli_(p, generator=generator)  # type: ignore[no-any-return]
    if not input.dtype.is_float:
        raise TypeError(f"bernoulli: probabilities are floating point, not {input.dtype}")
    complaint = "bernoulli: probabilities are not between 0 and 1"
    chances = nd.demand(input.array, lambda p: nd.logical_not((p >= 0) & (p <= 1)), complaint)
    source = _source(generator, input.device)
    # A float32 draw has 24 digits, which is what a probability may have.
    wide = float64 if input.dtype is float64 else float32
    drawn = random.uniform(input.shape, dtype=wide, generator=source)
    return _not_of(Tensor(nd.astype(drawn < chances, input.dtype)), input)


def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Positions drawn with the weights along the last dimension, `num_samples` from each row.

    Without `replacement` a position is drawn once at most.
    """
    weights = input.array
    if weights.ndim not in (1, 2) or not weights.dtype.is_float:
        raise ValueError(
            f"multinomial: needs a vector or matrix of floats, got {weights.dtype} of shape "
            f"{tuple(weights.shape)}"
        )
    count = weights.shape[-1]
    if num_samples <= 0 or (num_samples > count and not replacement):
        raise ValueError(f"multinomial: cannot draw {num_samples} of {count} without replacement")
    source = _source(generator, input.device)
    complaint = "multinomial: weights must be finite, not negative, and not all 0 in a row"
    rows = nd.demand(nd.reshape(weights, (-1, count)), _no_weights, complaint)
    if replacement or num_samples == 1:
        return Tensor(_drawn(rows, num_samples, source).reshape(*weights.shape[:-1], num_samples))
    # The first of several exponential clocks to ring is one drawn by its rate, and so is the next.
    drawn = random.uniform(rows.shape, dtype=rows.dtype, generator=source)
    times = nd.maximum(-nd.log(1 - drawn), 2.0**-30)
    first = nd.topk(rows / times, num_samples, 1).indices
    return Tensor(first.reshape(*weights.shape[:-1], num_samples))


def _no_weights(rows: NDArray) -> NDArray:
    """Which rows are no weights to draw by."""
    wrong = nd.any(nd.logical_not((rows >= 0) & nd.isfinite(rows)), 1, keepdims=True)
    return wrong | nd.logical_not(nd.any(rows > 0, 1, keepdims=True))


def _drawn(rows: NDArray, samples: int, source: Generator) -> NDArray:
    """Positions in rows of weights: the inverse of their running sum at uniform numbers."""
    wide = rows if rows.dtype is float64 else nd.astype(rows, float32)
    upto = nd.cumsum(wide, 1)
    shape = (rows.shape[0], samples)
    drawn = random.uniform(shape, dtype=upto.dtype, generator=source) * upto[:, -1:]
    # Rounding may reach the very end, where there may be no weight.
    last = nd.argmax(nd.astype(upto == upto[:, -1:], "int32"), 1, keepdims=True)
    return nd.minimum(nd.searchsorted(upto, drawn, right=True), last)


def get_rng_state(device: str | None = None) -> Tensor:
    """The state of a device's generator: its key and how much was drawn."""
    return Tensor(random.default_generator(device).state.copy())


def set_rng_state(new_state: Tensor, device: str | None = None) -> None:
    """Have a device's generator continue from a state."""
    random.default_generator(device).state = new_state.array


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """For every element a number from the Poisson distribution of that rate.

    The least count whose cumulative probability reaches a uniform number, found by bisection.
    """
    if not input.dtype.is_float:
        raise TypeError(f"poisson: rates are floating point, not {input.dtype}")
    rates = nd.demand(input.array, lambda x: x < 0, "poisson: rates are negative")
    drawn = random.uniform(rates.shape, generator=_source(generator, input.device))
    wide = rates.astype("float32")
    highest = nd.ceil(wide + 12 * nd.sqrt(wide) + 24)

    def halved(bounds: Any, _: Any) -> Any:
        low, high = bounds
        middle = nd.floor((low + high) / 2)
        enough = nd.gammaincc(middle + 1, wide) >= drawn  # the probability of at most `middle`
        return (nd.where(enough, low, middle + 1), nd.where(enough, middle, high)), None

    (found, _), _ = nd.scan(halved, (nd.zeros_like(highest), highest), length=26)
    return Tensor(found.astype(rates.dtype))


def _of_type(name: str, dtype: Any) -> Any:
    """A constructor that gives tensors of a type: from data, or by sizes."""

    def make(*data: Any, device: str | None = None) -> Tensor:
        if len(data) == 1 and not isinstance(data[0], int | Size):
            return tensor(data[0], dtype=dtype, device=device)
        sizes = data[0] if len(data) == 1 and isinstance(data[0], Size) else data
        return zeros(*sizes or (0,), dtype=dtype, device=device)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"A tensor of {dtype}: of nested lists of numbers, or of sizes."
    return make


BFloat16Tensor, HalfTensor = _of_type("BFloat16Tensor", bfloat16), _of_type("HalfTensor", float16)
FloatTensor, DoubleTensor = _of_type("FloatTensor", float32), _of_type("DoubleTensor", float64)
ByteTensor, CharTensor = _of_type("ByteTensor", uint8), _of_type("CharTensor", int8)
ShortTensor, IntTensor = _of_type("ShortTensor", int16), _of_type("IntTensor", int32)
LongTensor, BoolTensor = _of_type("LongTensor", int64), _of_type("BoolTensor", bool_)

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor",
    "HalfTensor", "IntTensor", "LongTensor", "ShortTensor", "poisson",
    "Generator", "arange", "as_tensor", "asarray", "bernoulli", "empty", "empty_like",
    "empty_permuted", "empty_strided", "eye",
    "from_dlpack", "from_numpy", "full", "full_like", "get_default_dtype", "get_rng_state",
    "linspace", "logspace", "multinomial", "normal", "ones", "ones_like", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "randperm", "scalar_tensor",
    "set_default_dtype", "set_rng_state", "tensor", "tril_indices", "triu_indices", "zeros",
    "zeros_like",
]  # fmt: skip
