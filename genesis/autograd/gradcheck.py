"""Whether gradients are what small differences say they are.

A complex number counts as two real ones, its parts. So a function is one of real numbers to real
numbers, and its Jacobian, found by backward, is compared with central differences.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from genesis.autograd import mode
from genesis.autograd.tape import grad
from genesis.ir.dtype import complex128, float64
from genesis.tensor.tensor import Tensor


class GradcheckError(RuntimeError):
    """A gradient that differences contradict."""


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Compare the gradients of a function with differences of its values.

    Every element of every input that needs a gradient is moved by `eps` both ways. The inputs
    should be float64 or complex128: elsewhere rounding hides what is compared.

    >>> import genesis
    >>> x = genesis.tensor([0.5, 1.5], dtype=genesis.float64, requires_grad=True)
    >>> genesis.autograd.gradcheck(genesis.exp, x)
    True
    """
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    wanted = [k for k, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]
    if not wanted:
        raise ValueError("gradcheck: none of the inputs requires a gradient")
    for k in wanted:
        if given[k].dtype not in (float64, complex128):
            warnings.warn(
                f"gradcheck: input {k} is {given[k].dtype}; differences are accurate in float64",
                stacklevel=2,
            )
    outputs = _outputs(func(*given))
    try:
        for k in wanted:
            columns = _by_differences(func, given, k, eps)
            for number, output in outputs:
                rows = _by_backward(output, given[k])
                _compare(number, output, k, given[k], rows, columns[number], atol, rtol)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    grad_outputs: Tensor | Sequence[Any] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """`gradcheck` of the gradients of a function, by its inputs and by the gradients it is given.

    >>> import genesis
    >>> x = genesis.tensor([0.5, 1.5], dtype=genesis.float64, requires_grad=True)
    >>> genesis.autograd.gradgradcheck(genesis.sin, x)
    True
    """
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    outputs = [x for _, x in _outputs(func(*given))]
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        weights = [Tensor(_weights(rng, x), True) for x in outputs]
    else:
        weights = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    count = len(given)

    def gradients(*args: Any) -> tuple[Any, ...]:
        results = [x for _, x in _outputs(func(*args[:count]))]
        leaves = [x for x in args[:count] if isinstance(x, Tensor) and x.requires_grad]
        found = grad(results, leaves, args[count:], create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None and g.requires_grad)

    return gradcheck(
        gradients,
        (*given, *weights),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
    )


def _outputs(result: Any) -> list[tuple[int, Tensor]]:
    """The results that have a gradient, with their numbers."""
    results = result if isinstance(result, tuple | list) else (result,)
    return [(k, x) for k, x in enumerate(results) if isinstance(x, Tensor) and x.requires_grad]


def _weights(rng: np.random.Generator, x: Tensor) -> npt.NDArray[Any]:
    shape = tuple(int(s) for s in x.shape)
    weight = np.asarray(rng.standard_normal(shape))
    if x.dtype.is_complex:
        weight = weight + 1j * rng.standard_normal(shape)
    return weight.astype(x.dtype.numpy)


def _real(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """All elements as one row of real numbers: of complex ones, both parts."""
    flat = np.ascontiguousarray(x).reshape(-1)
    return flat.view(flat.real.dtype).astype(np.float64)


def _moved(x: npt.NDArray[Any]) -> Iterator[tuple[int, Callable[[float], npt.NDArray[Any]]]]:
    """For every real number in `x`, how to have a copy with it moved."""
    parts = 2 if np.iscomplexobj(x) else 1

    def moved(place: int, step: float) -> npt.NDArray[Any]:
        copy = x.copy()
        copy.reshape(-1)[place // parts] += step * 1j if place % parts else step
        return copy

    for place in range(x.size * parts):
        yield place, lambda step, place=place: moved(place, step)  # type: ignore[misc]


def _by_differences(
    func: Callable[..., Any], given: tuple[Any, ...], which: int, eps: float
) -> dict[int, npt.NDArray[np.float64]]:
    """For every output, its Jacobian by an input: a row for each of the input's numbers."""
    start = given[which].detach().numpy()
    rows: dict[int, list[npt.NDArray[np.float64]]] = {}
    with mode.enable_grad():
        for _, moved in _moved(start):
            ends = []
            for step in (eps, -eps):
                args = list(given)
                args[which] = Tensor(moved(step), True)
                ends.append({k: _real(x.detach().numpy()) for k, x in _outputs(func(*args))})
            for k in ends[0]:
                rows.setdefault(k, []).append((ends[0][k] - ends[1][k]) / (2 * eps))
    return {k: np.stack(found) for k, found in rows.items()}


def _by_backward(output: Tensor, x: Tensor) -> npt.NDArray[np.float64]:
    """The Jacobian of an output by an input, by as many passes as the output has numbers."""
    zero = np.zeros(tuple(int(s) for s in output.shape), output.dtype.numpy)
    columns = []
    for _, moved in _moved(zero):
        weight = Tensor(moved(1.0))
        (found,) = grad(output, x, weight, retain_graph=True, materialize_grads=True)
        assert found is not None
        columns.append(_real(found.detach().numpy()))
    return np.stack(columns, axis=1) if columns else np.zeros((0, 0))


def _compare(
    number: int,
    output: Tensor,
    which: int,
    x: Tensor,
    found: npt.NDArray[np.float64],
    expected: npt.NDArray[np.float64],
    atol: float,
    rtol: float,
) -> None:
    if np.allclose(found, expected, rtol, atol, equal_nan=True) or not found.size:
        return
    wrong = ~np.isclose(found, expected, rtol, atol, equal_nan=True)
    worst = np.where(wrong, np.nan_to_num(np.abs(found - expected), nan=np.inf), -1).argmax()
    row, column = np.unravel_index(worst, found.shape)
    raise GradcheckError(
        f"gradcheck: the derivative of output {number}{_place(output, int(column))} by input "
        f"{which}{_place(x, int(row))} is {found[row, column]:.6g}, but differences give "
        f"{expected[row, column]:.6g}; {int(wrong.sum())} of {wrong.size} entries differ"
    )


def _place(x: Tensor, place: int) -> str:
    """An element of a tensor, by its position among the real numbers of it."""
    part = (".real", ".imag")[place % 2] if x.dtype.is_complex else ""
    shape = tuple(int(s) for s in x.shape)
    at = np.unravel_index(place // 2 if x.dtype.is_complex else place, shape) if shape else ()
    return f"[{', '.join(str(int(i)) for i in at)}]{part}" if shape else part
