"""Recurrent operators, as loops over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis import functional as fn
from genesis import scan
from genesis.onnx.registry import operator

Activation = Callable[[Any], Any]


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    """An activation by its name, with its numbers."""
    plain: dict[str, Activation] = {
        "relu": fn.relu, "tanh": fn.tanh, "sigmoid": fn.sigmoid, "softsign": fn.softsign,
        "softplus": fn.softplus,
    }  # fmt: skip
    if name.lower() in plain:
        return plain[name.lower()]

    def number(given: float | None, default: float) -> float:
        return default if given is None else given

    match name.lower():
        case "affine":
            return lambda x: number(alpha, 1.0) * x + number(beta, 0.0)
        case "leakyrelu":
            return lambda x: fn.leaky_relu(x, number(alpha, 0.01))
        case "thresholdedrelu":
            return lambda x: fn.where(x > number(alpha, 1.0), x, fn.mul(x, 0))
        case "scaledtanh":
            return lambda x: number(alpha, 1.0) * fn.tanh(number(beta, 1.0) * x)
        case "hardsigmoid":
            return lambda x: fn.clamp(number(alpha, 0.2) * x + number(beta, 0.5), 0, 1)
        case "elu":
            return lambda x: fn.elu(x, number(alpha, 1.0))
    raise ValueError(f"there is no activation {name!r}")


def _activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> list[Activation]:
    """The activations of all directions; numbers are taken by those that have some."""
    with_alpha = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
    with_beta = {"affine", "scaledtanh", "hardsigmoid"}
    alpha, beta = iter(alphas), iter(betas)
    return [
        _activation(
            name,
            next(alpha, None) if name.lower() in with_alpha else None,
            next(beta, None) if name.lower() in with_beta else None,
        )
        for name in names
    ]


Step = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]


def _direction(
    step: Step, x: Any, state: tuple[Any, ...], lengths: Any, backwards: bool
) -> tuple[Any, tuple[Any, ...]]:
    """All hidden states, and the last states, of one direction over x (time, batch, features)."""
    n = x.shape[0]
    if lengths is None and n == 1:
        state = step(x[0], state)
        return fn.unsqueeze(state[0], 0), state
    if lengths is None:

        def body(carry: Any, given: Any) -> Any:
            carry = step(given, carry)
            return carry, carry[0]

        last, hidden = scan(body, state, x, reverse=backwards)
        return hidden, last
    from genesis import arange

    def masked(carry: Any, given: Any) -> Any:
        value, time = given
        new = step(value, carry)
        inside = (time < lengths).reshape(-1, 1)
        carry = tuple(fn.where(inside, a, b) for a, b in zip(new, carry, strict=True))
        return carry, fn.where(inside, carry[0], fn.mul(carry[0], 0))

    last, hidden = scan(masked, state, (x, arange(n).to(lengths.dtype)), reverse=backwards)
    return hidden, last


def _run(
    x: Any, w: Any, r: Any, b: Any, lengths: Any, firsts: Sequence[Any], direction: str,
    layout: int, hidden_size: int, make: Callable[[int, Any, Any, Any], tuple[Activation, Step]],
    gates: int,
) -> tuple[Any, ...]:  # fmt: skip
    """Both directions of a recurrent operator: all hidden states, and the last states."""
    if layout:
        x = fn.transpose(x, 0, 1)
        firsts = [None if f is None else fn.transpose(f, 0, 1) for f in firsts]
    ends = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    hidden, lasts = [], []
    for d, backwards in enumerate(ends):
        bias = None if b is None else b[d]
        prepare, step = make(d, w[d], r[d], bias)
        state = tuple(_first(f, d, x, hidden_size) for f in firsts)
        states, last = _direction(step, prepare(x), state, lengths, backwards)
        hidden.append(states)
        lasts.append(last)
    y = fn.stack(hidden, 1)
    final = [fn.stack([last[k] for last in lasts], 0) for k in range(len(firsts))]
    if layout:
        y, final = fn.permute(y, (2, 0, 1, 3)), [fn.transpose(f, 0, 1) for f in final]
    return (y, *final)


def _first(given: Any, d: int, x: Any, size: int) -> Any:
    from genesis import zeros

    return zeros(x.shape[1], size, dtype=x.dtype) if given is None else given[d]


def _clipped(x: Any, clip: float | None) -> Any:
    return x if clip is None else fn.clamp(x, -clip, clip)


@operator("RNN")
def rnn(
    x: Any, w: Any, r: Any, b: Any = None, sequence_lens: Any = None, initial_h: Any = None, *,
    hidden_size: int | None = None, direction: str = "forward", activations: Any = None,
    activation_alpha: Any = (), activation_beta: Any = (), clip: float | None = None,
    layout: int = 0, output_sequence: int = 1, outputs: int = 1,
) -> Any:  # fmt: skip
    """A simple recurrent network."""
    size = int(r.shape[-1])
    functions = _activations(activations or ["Tanh", "Tanh"], activation_alpha, activation_beta)

    def make(d: int, wx: Any, wh: Any, bias: Any) -> tuple[Activation, Step]:
        f = functions[d]

        def step(given: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
            return (f(_clipped(given + state[0] @ fn.t(wh), clip)),)

        return lambda x: _projected(x, wx, _joint(bias, size)), step

    return _run(
        x, w, r, b, sequence_lens, [initial_h], direction, layout, size, make, 1
    )[:outputs]  # fmt: skip


def _joint(bias: Any, length: int) -> Any:
    """Both biases of a gate, which are added anyway."""
    return None if bias is None else bias[:length] + bias[length:]


def _projected(x: Any, w: Any, bias: Any) -> Any:
    return _biased(_plainly(x, w), bias)


def _biased(y: Any, bias: Any) -> Any:
    return y if bias is None else y + bias


@operator("GRU")
def gru(
    x: Any, w: Any, r: Any, b: Any = None, sequence_lens: Any = None, initial_h: Any = None, *,
    hidden_size: int | None = None, direction: str = "forward", activations: Any = None,
    activation_alpha: Any = (), activation_beta: Any = (), clip: float | None = None,
    layout: int = 0, linear_before_reset: int = 0, output_sequence: int = 1, outputs: int = 1,
) -> Any:  # fmt: skip
    """A network of gated recurrent units."""
    n = int(r.shape[-1])
    functions = _activations(
        activations or ["Sigmoid", "Tanh"] * 2, activation_alpha, activation_beta
    )

    def make(d: int, wx: Any, wh: Any, bias: Any) -> tuple[Activation, Step]:
        f, g = functions[2 * d : 2 * d + 2]
        outer = None if bias is None else bias[: 3 * n]
        inner = None if bias is None else bias[3 * n :]
        if outer is not None and inner is not None:  # all but the last gate's can be added now
            late = inner[2 * n :]
            early = inner[: 2 * n] if linear_before_reset else inner
            outer = outer + (fn.pad(early, (0, n)) if linear_before_reset else early)

        def step(given: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
            (h,) = state
            gx = given
            gh = h @ fn.t(wh if linear_before_reset else wh[: 2 * n])
            z = f(_clipped(gx[:, :n] + gh[:, :n], clip))
            reset = f(_clipped(gx[:, n : 2 * n] + gh[:, n : 2 * n], clip))
            if linear_before_reset:
                own = gh[:, 2 * n :] if bias is None else gh[:, 2 * n :] + late
                candidate = g(_clipped(gx[:, 2 * n :] + reset * own, clip))
            else:
                own = (reset * h) @ fn.t(wh[2 * n :])
                candidate = g(_clipped(gx[:, 2 * n :] + own, clip))
            return ((1 - z) * candidate + z * h,)

        return lambda x: _projected(x, wx, outer), step

    return _run(
        x, w, r, b, sequence_lens, [initial_h], direction, layout, n, make, 3
    )[:outputs]  # fmt: skip


@operator("LSTM")
def lstm(
    x: Any, w: Any, r: Any, b: Any = None, sequence_lens: Any = None, initial_h: Any = None,
    initial_c: Any = None, p: Any = None, *, hidden_size: int | None = None,
    direction: str = "forward", activations: Any = None, activation_alpha: Any = (),
    activation_beta: Any = (), clip: float | None = None, layout: int = 0, input_forget: int = 0,
    output_sequence: int = 1, outputs: int = 1,
) -> Any:  # fmt: skip
    """A network of long short-term memories."""
    options = {
        "direction": direction, "activations": activations, "activation_alpha": activation_alpha,
        "activation_beta": activation_beta, "clip": clip, "layout": layout,
        "input_forget": input_forget,
    }  # fmt: skip
    return lstm_with(
        _plainly, int(r.shape[-1]), x, w, r, b, sequence_lens, initial_h, initial_c, p, **options
    )[:outputs]


def _plainly(x: Any, matrix: Any) -> Any:
    return fn.matmul(x, fn.t(matrix))


def lstm_with(
    times: Callable[[Any, Any], Any], n: int, x: Any, w: Any, r: Any, b: Any, sequence_lens: Any,
    initial_h: Any, initial_c: Any, p: Any, *, direction: str = "forward", activations: Any = None,
    activation_alpha: Any = (), activation_beta: Any = (), clip: float | None = None,
    layout: int = 0, input_forget: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """An LSTM of `n` units in which `times` multiplies by matrices, one for each direction.

    Gates are in the order input, output, forget, cell.
    """
    functions = _activations(
        activations or ["Sigmoid", "Tanh", "Tanh"] * 2, activation_alpha, activation_beta
    )

    def make(d: int, wx: Any, wh: Any, bias: Any) -> tuple[Activation, Step]:
        f, g, h = functions[3 * d : 3 * d + 3]
        peep = None if p is None else p[d]

        def gate(sums: Any, k: int, c: Any) -> Any:
            part = sums[:, k * n : (k + 1) * n]
            return part if peep is None else part + peep[k * n : (k + 1) * n] * c

        def step(given: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden, cell = state
            sums = given + times(hidden, wh)
            i = f(_clipped(gate(sums, 0, cell), clip))
            keep = 1 - i if input_forget else f(_clipped(gate(sums, 2, cell), clip))
            cell = keep * cell + i * g(_clipped(sums[:, 3 * n :], clip))
            o = f(_clipped(gate(sums, 1, cell), clip))
            return o * h(cell), cell

        return lambda x: _biased(times(x, wx), _joint(bias, 4 * n)), step

    return _run(
        x, w, r, b, sequence_lens, [initial_h, initial_c], direction, layout, n, make, 4
    )  # fmt: skip
