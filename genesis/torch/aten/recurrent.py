"""One step of recurrent layers, given the products of input and state with their weights.

Forward keeps what backward needs in a workspace beside the result: the gates behind their
activations, and for a GRU also the state and the candidate's part that comes from it.
"""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.torch.aten.registry import implements

Maybe = NDArray | None


def _gates(x: NDArray, bias: Maybe, count: int) -> list[NDArray]:
    """The parts of a row of gates, with their biases, in the type to compute in."""
    wide = x.dtype.accumulator
    x = x.astype(wide) if bias is None else x.astype(wide) + bias.astype(wide)
    return _parts(x, count)


def _parts(x: NDArray, count: int) -> list[NDArray]:
    each = x.shape[1] // count
    return [x[:, k * each : (k + 1) * each] for k in range(count)]


@implements("_thnn_fused_lstm_cell")
def _lstm_cell(
    now: NDArray, before: NDArray, cx: NDArray, bias: Maybe = None, bias_before: Maybe = None
) -> tuple[NDArray, NDArray, NDArray]:
    dtype = cx.dtype
    mine, past = _gates(now, bias, 4), _gates(before, bias_before, 4)
    i, f, g, o = (x + y for x, y in zip(mine, past, strict=True))
    i, f, g, o = nd.sigmoid(i), nd.sigmoid(f), nd.tanh(g), nd.sigmoid(o)
    cy = f * cx.astype(f.dtype) + i * g
    hy = o * nd.tanh(cy)
    workspace = nd.concat([i, f, g, o], 1)
    return hy.astype(dtype), cy.astype(dtype), workspace.astype(dtype)


@implements("_thnn_fused_lstm_cell_backward_impl")
def _lstm_cell_backward(
    grad_hy: Maybe, grad_cy: Maybe, cx: NDArray, cy: NDArray, workspace: NDArray, has_bias: bool
) -> tuple[Maybe, Maybe, Maybe]:
    if grad_hy is None and grad_cy is None:
        return None, None, None
    wide, dtype = cx.dtype.accumulator, cx.dtype
    i, f, g, o = _parts(workspace.astype(wide), 4)
    shown = nd.tanh(cy.astype(wide))
    to_h = nd.zeros_like(shown) if grad_hy is None else grad_hy.astype(wide)
    to_c = to_h * o * (1 - shown * shown)
    if grad_cy is not None:
        to_c = to_c + grad_cy.astype(wide)
    to_gates = nd.concat(
        [
            to_c * g * i * (1 - i),
            to_c * cx.astype(wide) * f * (1 - f),
            to_c * i * (1 - g * g),
            to_h * shown * o * (1 - o),
        ],
        1,
    )
    to_bias = nd.sum(to_gates, 0).astype(dtype) if has_bias else None
    return to_gates.astype(dtype), (to_c * f).astype(dtype), to_bias


@implements("_thnn_fused_lstm_cell_backward")
def _lstm_cell_gradients(*given: Any) -> tuple[Maybe, ...]:
    gates, state, bias = _lstm_cell_backward(*given)
    return gates, gates, state, bias, bias


@implements("_thnn_fused_gru_cell")
def _gru_cell(
    now: NDArray, before: NDArray, hx: NDArray, bias: Maybe = None, bias_before: Maybe = None
) -> tuple[NDArray, NDArray]:
    dtype = hx.dtype
    mine, past = _gates(now, bias, 3), _gates(before, bias_before, 3)
    r, z = nd.sigmoid(mine[0] + past[0]), nd.sigmoid(mine[1] + past[1])
    n = nd.tanh(mine[2] + r * past[2])
    h = hx.astype(n.dtype)
    workspace = nd.concat([r, z, n, h, past[2]], 1)
    return (n + z * (h - n)).astype(dtype), workspace.astype(dtype)


@implements("_thnn_fused_gru_cell_backward")
def _gru_cell_backward(grad_hy: NDArray, workspace: NDArray, has_bias: bool) -> tuple[Maybe, ...]:
    wide, dtype = grad_hy.dtype.accumulator, grad_hy.dtype
    r, z, n, h, past = _parts(workspace.astype(wide), 5)
    grad = grad_hy.astype(wide)
    to_n = grad * (1 - z) * (1 - n * n)
    to_r = to_n * past * r * (1 - r)
    to_z = grad * (h - n) * z * (1 - z)
    mine = nd.concat([to_r, to_z, to_n], 1)
    past = nd.concat([to_r, to_z, to_n * r], 1)
    biases = [nd.sum(x, 0).astype(dtype) if has_bias else None for x in (mine, past)]
    return mine.astype(dtype), past.astype(dtype), (grad * z).astype(dtype), *biases
