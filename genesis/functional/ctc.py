"""`ctc_loss`: how likely a sequence of labels is, wherever in the input each of them lies.

A path through time visits, in order, the labels with a blank before, between and after them: it
stays where it is, moves on by one, or skips the blank between two labels that differ. The recursion
carries the logarithm of the probability of all paths to each place (*alpha*) through time, one step
of a `scan`. Backward is the scan the other way. What it carries is how much the loss depends on
each alpha, which is the probability that a path goes through there: it is shared out among the
places the paths came from, in proportion, so that nothing overflows and no second recursion is
needed.
"""

from __future__ import annotations

import math
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import where
from genesis.functional.comparison import isinf
from genesis.functional.function import Function, is_tensor, plain
from genesis.functional.loss import loss, reduced
from genesis.functional.movement import squeeze, unsqueeze
from genesis.functional.reduction import mean
from genesis.functional.scattering import gather
from genesis.ir.dtype import int64


@loss("CTCLoss", 4)
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """The negative log-likelihood of label sequences, aligned with the input in every possible way.

    `log_probs` is (time, batch, classes), or (time, classes) for one sequence. `targets` is (batch,
    labels), padded, or all labels in a row. Lengths are numbers or integer tensors; for labels in a
    row numbers are better, because they say how long the longest sequence is. The mean is of
    losses divided by the number of labels. With `zero_infinity`, what cannot be aligned counts 0.

    The gradient is that of the formula. PyTorch's takes for granted that `log_probs` came from
    `log_softmax`; through that both agree.
    """
    single = len(log_probs.shape) == 2
    if single:
        log_probs = unsqueeze(log_probs, 1)
        targets = unsqueeze(targets, 0) if len(targets.shape) == 1 else targets
    if len(log_probs.shape) != 3:
        raise ValueError(
            "ctc_loss: log_probs are (time, batch, classes) or (time, classes), not "
            f"{tuple(log_probs.shape)}"
        )
    places, skips, times, counts = layout(log_probs, targets, input_lengths, target_lengths, blank)
    steps = log_probs.shape[0]
    everywhere = plain(lambda p: nd.broadcast_to(p, (steps, *p.shape)), places)
    at_places = gather(log_probs, 2, everywhere)
    losses = Alignments.apply(at_places, skips, times, counts)
    if zero_infinity:
        losses = where(isinf(losses), 0.0, losses)
    if reduction == "mean":
        return mean(losses / plain(nd.maximum, counts, 1))
    return reduced("ctc_loss", squeeze(losses, 0) if single else losses, reduction)


def layout(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int
) -> tuple[Any, Any, Any, Any]:
    """The labels with blanks around them, where the blank before a label can be skipped, lengths.

    The lengths are arrays: how many steps there are in time, and how many labels.
    """
    batch, classes = log_probs.shape[1:]
    if not 0 <= blank < classes:
        raise ValueError(f"ctc_loss: blank {blank} is not one of {classes} classes")
    device = log_probs.device
    steps = log_probs.shape[0]
    room = targets.shape[-1] if targets.shape else 0
    times, _ = _lengths("input", input_lengths, batch, steps, device)
    counts, longest = _lengths("target", target_lengths, batch, room, device)
    labels = plain(_padded, targets, counts, batch, longest)
    return *plain(_places, labels, counts, blank), times, counts


def _lengths(name: str, given: Any, batch: int, most: int, device: str) -> tuple[Any, int]:
    """Lengths as an array, and how long the longest can be."""
    if not hasattr(given, "dtype"):
        numbers = [given] if isinstance(given, int) else list(given)
        if any(not 0 <= n <= most for n in numbers):
            raise ValueError(f"ctc_loss: {name}_lengths {numbers} are not all between 0 and {most}")
        most = max(numbers, default=0)
        given = nd.array(numbers, int64, device)
    complaint = f"ctc_loss: {name}_lengths are not all between 0 and {most}"
    given = plain(nd.demand, given, lambda n: (n < 0) | (n > most), complaint)
    lengths = plain(lambda x: nd.reshape(x, (-1,)).astype(int64), given)
    if tuple(lengths.shape) != (batch,):
        raise ValueError(
            f"ctc_loss: {name}_lengths has shape {tuple(given.shape)} for a batch of {batch}"
        )
    return lengths, most


def _padded(targets: nd.NDArray, counts: nd.NDArray, batch: int, longest: int) -> Any:
    """The labels as (batch, labels)."""
    if targets.ndim == 2:
        if targets.shape[0] != batch:
            raise ValueError(
                f"ctc_loss: targets of shape {tuple(targets.shape)} for a batch of {batch}"
            )
        return targets.astype(int64)
    if targets.ndim != 1:
        raise ValueError(
            f"ctc_loss: targets are (batch, labels) or in a row, not {tuple(targets.shape)}"
        )
    first = nd.cumsum(counts, 0) - counts
    number = nd.arange(longest, device=targets.device)
    where_ = nd.unsqueeze(first, 1) + number
    inside = number < nd.unsqueeze(counts, 1)
    found = nd.take(targets.astype(int64), nd.where(inside, where_, 0), 0)
    return nd.where(inside, found, 0)


def _places(labels: nd.NDArray, counts: nd.NDArray, blank: int) -> tuple[nd.NDArray, nd.NDArray]:
    """The labels with blanks around them, and whether the blank before a label can be skipped."""
    batch, width = labels.shape
    inside = nd.arange(width, device=labels.device) < nd.unsqueeze(counts, 1)
    labels = nd.where(inside, labels, blank)  # padding may hold anything
    blanks = nd.full_like(labels, blank)
    pairs = nd.stack([blanks, labels], 2).reshape(batch, 2 * width)
    places = nd.pad(pairs, [(0, 0), (0, 1)], blank)
    before = nd.pad(places, [(0, 0), (2, 0)], blank)[:, : 2 * width + 1]
    return places, (places != blank) & (places != before)


def _from(alpha: nd.NDArray, by: int) -> nd.NDArray:
    """What is `by` places before each place."""
    return nd.pad(alpha, [(0, 0), (by, 0)], -math.inf)[:, : alpha.shape[1]]


def _back(gradient: nd.NDArray, by: int) -> nd.NDArray:
    """The gradient of `_from`."""
    return nd.pad(gradient, [(0, 0), (0, by)])[:, by:]


def _ways(alpha: nd.NDArray, skips: nd.NDArray) -> tuple[list[nd.NDArray], nd.NDArray]:
    """The three ways to come to each place, and the logarithm of the sum of all."""
    ways = [alpha, _from(alpha, 1), nd.where(skips, _from(alpha, 2), -math.inf)]
    most = nd.maximum(nd.maximum(ways[0], ways[1]), ways[2])
    most = nd.where(most == -math.inf, 0.0, most)
    stay, one, two = (nd.exp(way - most) for way in ways)
    return ways, most + nd.log(stay + one + two)


def _ends(alpha: nd.NDArray, counts: nd.NDArray) -> nd.NDArray:
    """Alpha at the last label and the blank after it, -infinity at all other places."""
    missing = 2 * nd.unsqueeze(counts, 1) - nd.arange(alpha.shape[1], device=alpha.device)
    return nd.where((missing == 0) | (missing == 1), alpha, -math.inf)


class Alignments(Function):
    """The negative log-likelihood of all paths, from the log-probabilities (time, batch, place)."""

    @staticmethod
    def forward(ctx: Any, logs: Any, skips: Any, times: Any, counts: Any) -> Any:
        steps, batch, width = logs.shape
        wide = nd.astype(logs, logs.dtype.accumulator)
        ctx.clock = nd.arange(steps, device=logs.device)

        def step(alpha: nd.NDArray, now: tuple[nd.NDArray, nd.NDArray]) -> Any:
            log, t = now
            after = _ways(alpha, skips)[1] + log
            return nd.where(nd.unsqueeze(t < times, 1), after, alpha), alpha

        # Before the first step every path is at the first blank.
        first = nd.arange(width, device=logs.device) == 0
        begin = nd.where(nd.broadcast_to(first, (batch, width)), 0.0, -math.inf)
        ctx.last, ctx.alphas = nd.scan(step, begin.astype(wide.dtype), (wide, ctx.clock))
        ctx.ends = _ends(ctx.last, counts)
        ctx.save_for_backward(skips, times)
        return nd.astype(-nd.logsumexp(ctx.ends, 1), logs.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if is_tensor(grad):
            raise NotImplementedError("ctc_loss: its gradient has no derivatives here")
        skips, times = ctx.saved_tensors

        def step(gradient: nd.NDArray, then: tuple[nd.NDArray, nd.NDArray]) -> Any:
            alpha, t = then
            ways, total = _ways(alpha, skips)
            stay, one, two = (gradient * nd.exp(way - _finite(total)) for way in ways)
            before = stay + _back(one, 1) + _back(two, 2)
            under_way = nd.unsqueeze(t < times, 1)
            return nd.where(under_way, before, gradient), nd.where(under_way, gradient, 0.0)

        reached = nd.exp(ctx.ends - nd.unsqueeze(_finite(nd.logsumexp(ctx.ends, 1)), 1))
        start = -nd.unsqueeze(grad.astype(reached.dtype), 1) * reached
        _, gradients = nd.scan(step, start, (ctx.alphas, ctx.clock), reverse=True)
        return gradients, None, None, None


def _finite(total: nd.NDArray) -> nd.NDArray:
    return nd.where(total == -math.inf, 0.0, total)


__all__ = ["ctc_loss"]
