"""Recurrent layers: RNN, LSTM and GRU, and the cells they repeat.

A layer's share of the work that does not depend on its state, the product of all its inputs with
their weights, is one product before the loop. The loop is `scan`: one step compiled once, whose
gates are one product with the state. Parameters and gates are named and ordered as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from genesis import functional
from genesis import ndarray as nd
from genesis.autograd.scan import scan
from genesis.functional import chunk, linear, matmul, relu, sigmoid, tanh, transpose, where
from genesis.functional.function import one_operation
from genesis.nn import init
from genesis.nn.module import Family, Parameter
from genesis.nn.new_parameters import add_parameters
from genesis.nn.utils.rnn import PackedSequence
from genesis.tensor.tensor import Tensor
from genesis.tensor.whole_calls import whole

#: The tensors a layer hands from step to step; the first is the hidden state.
State = tuple[Tensor, ...]


class StepWeights(NamedTuple):
    """What a step uses: matrices are transposed, biases that can be are part of the input."""

    hidden: Tensor
    new_bias: Tensor | None = None  # of GRU's new state, inside its product with the reset gate
    projection: Tensor | None = None


def _rnn(activation: Callable[[Any], Any], x: Tensor, state: State, w: StepWeights) -> State:
    return (activation(x + matmul(state[0], w.hidden)),)


def _lstm(x: Tensor, state: State, w: StepWeights) -> State:
    hidden, cell = state
    into, forget, new, out = chunk(x + matmul(hidden, w.hidden), 4, -1)
    cell = sigmoid(forget) * cell + sigmoid(into) * tanh(new)
    hidden = sigmoid(out) * tanh(cell)
    return hidden if w.projection is None else matmul(hidden, w.projection), cell


def _gru(x: Tensor, state: State, w: StepWeights) -> State:
    (hidden,) = state
    x_reset, x_keep, x_new = chunk(x, 3, -1)
    h_reset, h_keep, h_new = chunk(matmul(hidden, w.hidden), 3, -1)
    if w.new_bias is not None:
        h_new = h_new + w.new_bias
    keep = sigmoid(x_keep + h_keep)
    new = tanh(x_new + sigmoid(x_reset + h_reset) * h_new)
    return (new + keep * (hidden - new),)


class _Kind(NamedTuple):
    """A kind of recurrent network."""

    gates: int
    step: Callable[[Tensor, State, StepWeights], State]
    states: int = 1


_KINDS = {
    "tanh": _Kind(1, lambda x, state, w: _rnn(tanh, x, state, w)),
    "relu": _Kind(1, lambda x, state, w: _rnn(relu, x, state, w)),
    "lstm": _Kind(4, _lstm, 2),
    "gru": _Kind(3, _gru),
}


def _prepared(
    kind: str, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, w_hr: Tensor | None = None
) -> tuple[Tensor | None, StepWeights]:
    """The bias that belongs to the input, and what is left for the steps."""
    hidden = transpose(w_hh, 0, 1)
    projection = None if w_hr is None else transpose(w_hr, 0, 1)
    if b_ih is None or b_hh is None:
        return None, StepWeights(hidden, None, projection)
    if kind != "gru":
        return b_ih + b_hh, StepWeights(hidden, None, projection)
    split = len(b_hh) // 3 * 2
    return b_ih + functional.pad(b_hh[:split], (0, split // 2)), StepWeights(hidden, b_hh[split:])


class _Repeating(Family):
    """What layers and cells share; `mode` is the kind."""

    mode: str

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        bound = 1 / math.sqrt(self.hidden_size)
        for x in self.parameters():
            init.uniform_(x, -bound, bound)


class _Recurrent(_Repeating):
    """What the layers share."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if min(input_size, hidden_size, num_layers) < 1:
            raise ValueError(
                f"{name}: input_size, hidden_size and num_layers must be positive, got "
                f"{input_size}, {hidden_size} and {num_layers}"
            )
        if not 0 <= dropout <= 1:
            raise ValueError(f"{name}: dropout is a probability, not {dropout}")
        if not 0 <= proj_size < hidden_size:
            raise ValueError(
                f"{name}: proj_size must be less than hidden_size {hidden_size}, not {proj_size}"
            )
        if proj_size and self.mode != "lstm":
            raise ValueError(f"{name}: only an LSTM has a projection; proj_size is {proj_size}")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        width, rows = proj_size or hidden_size, _KINDS[self.mode].gates * hidden_size
        for layer in range(num_layers):
            features = input_size if layer == 0 else width * (1 + bidirectional)
            for end in self._ends(layer):
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (rows, features), "weight_hh": (rows, width),
                }  # fmt: skip
                if bias:
                    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                named = {name + end: shape for name, shape in shapes.items()}
                add_parameters(self, device, dtype, **named)
        self.reset_parameters()

    def _ends(self, layer: int) -> list[str]:
        """What the names of a layer's parameters end with, for every direction."""
        return [f"_l{layer}", f"_l{layer}_reverse"][: 1 + self.bidirectional]

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of every layer and direction."""
        return [
            [x for name, x in self._parameters.items() if name.endswith(end)]
            for layer in range(self.num_layers)
            for end in self._ends(layer)
        ]

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """The hidden states of the last layer at every step, and the states after the last step.

        The input is ``(time, batch, features)``, with time and batch exchanged if `batch_first`,
        without a batch, or a `PackedSequence`.
        """
        packed = isinstance(input, PackedSequence)
        x: Tensor = input.padded if packed else input
        batched = x.ndim == 3
        if (not batched and (packed or x.ndim != 2)) or x.shape[-1] != self.input_size:
            raise ValueError(
                f"{type(self).__name__}: the input is (time, batch, {self.input_size}) or (time, "
                f"{self.input_size}), not {tuple(x.shape)}"
            )
        if not batched:
            x = functional.unsqueeze(x, 1)
        elif self.batch_first and not packed:
            x = transpose(x, 0, 1)
        states = self._states(hx, x, batched)
        alive = input.alive if packed else None
        lasts: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = functional.dropout(x, self.dropout, self.training)
            ways = []
            for end in self._ends(layer):
                last, y = self._direction(end, x, states[len(lasts)], alive)
                lasts.append(last)
                ways.append(y)
            x = ways[0] if len(ways) == 1 else functional.cat(ways, -1)
        after = tuple(functional.stack(each, 0) for each in zip(*lasts, strict=True))
        if not batched:
            x, after = functional.squeeze(x, 1), tuple(functional.squeeze(s, 1) for s in after)
        elif self.batch_first and not packed:
            x = transpose(x, 0, 1)
        shown = input.with_padded(x) if packed else x
        return shown, after if len(after) > 1 else after[0]

    def _states(self, hx: Any, x: Tensor, batched: bool) -> list[State]:
        """The first states of every layer and direction."""
        count = self.num_layers * (1 + self.bidirectional)
        widths = [self.proj_size or self.hidden_size, self.hidden_size][: _KINDS[self.mode].states]
        shapes = [(count, x.shape[1], width) for width in widths]
        if hx is None:
            given = [Tensor(nd.zeros(shape, x.dtype, x.device)) for shape in shapes]
        else:
            given = list(hx) if isinstance(hx, tuple) else [hx]
            if not batched:
                given = [functional.unsqueeze(s, 1) for s in given]
            if [tuple(s.shape) for s in given] != shapes:
                raise ValueError(
                    f"{type(self).__name__}: the first states are of shapes {shapes}, not "
                    f"{[tuple(s.shape) for s in given]}"
                )
        return [tuple(s[k] for s in given) for k in range(count)]

    def _direction(
        self, end: str, x: Tensor, first: State, alive: Tensor | None
    ) -> tuple[State, Tensor]:
        """One layer in one direction: the last state, and the hidden states of all steps."""
        names = "weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"
        weights = [self._parameters.get(name + end) for name in names]
        reverse = end.endswith("_reverse")
        *last, y = _layer(self.mode, reverse, x, alive, *weights, *first)
        return tuple(last), y

    def extra_repr(self) -> str:
        """The arguments it was made with."""
        return f"{self.input_size}, {self.hidden_size}" + self._unusual(
            num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False,
            proj_size=0,
        )  # fmt: skip


@one_operation
def _layer(
    mode: str,
    reverse: bool,
    x: Any,
    alive: Any,
    w_ih: Any,
    w_hh: Any,
    b_ih: Any,
    b_hh: Any,
    w_hr: Any,
    *first: Any,
) -> tuple[Any, ...]:
    """One layer in one direction: the last state, then the hidden states of all steps."""
    step = _KINDS[mode].step
    bias, weights = _prepared(mode, w_hh, b_ih, b_hh, w_hr)

    def body(state: State, given: Any) -> tuple[State, Tensor]:
        x, alive = given
        after = step(x, state, weights)
        if alive is None:
            return after, after[0]
        held = tuple(where(alive, new, old) for new, old in zip(after, state, strict=True))
        return held, where(alive, after[0], 0.0)

    shown = None if alive is None else functional.unsqueeze(alive, -1)
    last, y = scan(body, first, (linear(x, w_ih, bias), shown), reverse=reverse)
    return *last, y


class RNN(_Recurrent, mode="tanh"):
    """``h' = tanh(W_ih x + b_ih + W_hh h + b_hh)``, or with relu, in one or more layers.

    >>> import genesis
    >>> from genesis import nn
    >>> y, h = nn.RNN(3, 5, num_layers=2)(genesis.ones(7, 4, 3))
    >>> y.shape, h.shape
    (genesis.Size([7, 4, 5]), genesis.Size([2, 4, 5]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNN: nonlinearity is 'tanh' or 'relu', not {nonlinearity!r}")
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            device=device, dtype=dtype,
        )  # fmt: skip
        self.mode = nonlinearity


class LSTM(_Recurrent, mode="lstm"):
    """Long short-term memory; states are pairs (hidden, cell), gates in the order i, f, g, o.

    With `proj_size` the hidden state is a projection to that size.
    """


class GRU(_Recurrent, mode="gru"):
    """Gated recurrent unit; gates in the order r, z, n."""


@one_operation
def _cell(
    mode: str, input: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, *state: Any
) -> tuple[Any, ...]:
    """The state after one more step."""
    x, before = input, state
    if input.ndim == 1:
        x, before = functional.unsqueeze(x, 0), tuple(functional.unsqueeze(s, 0) for s in state)
    bias, weights = _prepared(mode, w_hh, b_ih, b_hh)
    after = _KINDS[mode].step(linear(x, w_ih, bias), before, weights)
    return tuple(functional.squeeze(s, 0) for s in after) if input.ndim == 1 else after


class _Cell(_Repeating):
    """One step."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = _KINDS[self.mode].gates * hidden_size
        biases = (rows,) if bias else None
        weights = {"weight_ih": (rows, input_size), "weight_hh": (rows, hidden_size)}
        add_parameters(self, device, dtype, **weights, bias_ih=biases, bias_hh=biases)
        self.reset_parameters()

    @whole
    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """The state after one more step, from an input ``(batch, features)`` or ``(features,)``."""
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"{type(self).__name__}: the input is (batch, {self.input_size}) or "
                f"({self.input_size},), not {tuple(input.shape)}"
            )
        states = _KINDS[self.mode].states
        shape = (*input.shape[:-1], self.hidden_size)
        if hx is None:
            state: State = (Tensor(nd.zeros(shape, input.dtype, input.device)),) * states
        else:
            state = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
            if [tuple(s.shape) for s in state] != [shape] * states:
                raise ValueError(
                    f"{type(self).__name__}: {states} states of shape {shape} are needed, got "
                    f"{[tuple(s.shape) for s in state]}"
                )
        after = _cell(
            self.mode, input, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, *state
        )
        return after if len(after) > 1 else after[0]

    def extra_repr(self) -> str:
        """The arguments it was made with."""
        return f"{self.input_size}, {self.hidden_size}" + self._unusual(bias=True)


class RNNCell(_Cell, mode="tanh"):
    """One step of `RNN`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNNCell: nonlinearity is 'tanh' or 'relu', not {nonlinearity!r}")
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.mode = nonlinearity


class LSTMCell(_Cell, mode="lstm"):
    """One step of `LSTM`: from an input and (hidden, cell) to the next (hidden, cell)."""


class GRUCell(_Cell, mode="gru"):
    """One step of `GRU`."""


__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]
