"""`remove_heads_` and `remove_experts_`: heads of attention and experts taken out of shapes.

Which rows of projections belong to a head is found by running the model: a head's rows change its
own channels of what the last projection reads, and no others. A model without some heads must give
what it gave with their channels zero, and one without some experts what it gave when nobody chose
them; otherwise it is left as it was, and an error says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import genesis
from genesis import nn
from genesis.autograd import no_grad

#: What modules call the number of their heads, and of their experts.
HEADS = ("heads", "num_heads", "n_heads", "n_head")
EXPERTS = ("num_experts", "n_experts", "experts_count")
#: By how much of the greatest result a model may differ that does its sums in another order.
_ALIKE = 1e-4


class AttentionModule(NamedTuple):
    """A module with heads: projections, blocks of whose rows are those of heads, and the last."""

    name: str
    counted: str  # the attribute that says how many heads there are
    heads: int
    projections: dict[str, list[int]]  # the head of every block of rows
    last: str


@no_grad()
def attentions(model: nn.Module, x: Any) -> list[AttentionModule]:
    """The modules below a model whose heads can be taken out, seen with an input x."""
    found = []
    for name, module in model.named_modules():
        count = next((n for n in HEADS if type(getattr(module, n, None)) is int), None)
        if count is not None:
            own = _attention(model, x, name, module, count)
            found += [] if own is None else [own]
    return found


def _attention(
    model: nn.Module, x: Any, name: str, module: nn.Module, count: str
) -> AttentionModule | None:
    heads = getattr(module, count)
    below = {n: m for n, m in module.named_modules() if type(m) is nn.Linear}
    names = {f"{name}.{n}" if name else n: m for n, m in below.items()}
    for last, out in names.items():
        if heads < 2 or out.weight.shape[1] % heads:
            continue
        size = out.weight.shape[1] // heads
        before = _read(model, x, out, None)
        projections = {}
        for own, layer in names.items():
            rows = layer.weight.shape[0]
            if own == last or rows % size:
                continue
            blocks = [slice(b * size, b * size + size) for b in range(rows // size)]
            found = [_changed(before, _read(model, x, out, (layer, b)), size) for b in blocks]
            if any(found) and all(len(heads_of) == 1 for heads_of in found):
                projections[own] = [heads_of[0] for heads_of in found]
        if projections and sum(map(len, projections.values())) >= 3 * heads:
            return AttentionModule(name, count, heads, projections, last)
    return None


def _read(model: nn.Module, x: Any, out: nn.Module, raised: Any) -> Any:
    """What a layer reads while another gives more in some channels."""
    got: list[Any] = []

    def more(layer: Any, inputs: Any, y: Any) -> Any:
        step = np.zeros(y.shape[-1], np.float32)
        # Other steps at other places, which a softmax over places does not take away.
        step[raised[1]] = 1 + np.arange(len(step))[raised[1]] % 3
        along = np.linspace(1, 2, y.shape[-2], dtype=np.float32)[:, None]
        return y + genesis.tensor(step * along)

    hooks = [out.register_forward_pre_hook(lambda layer, inputs: got.append(inputs[0].numpy()))]
    if raised is not None:
        hooks.append(raised[0].register_forward_hook(more))
    try:
        model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return got[0] if got else None


def _changed(before: Any, after: Any, size: int) -> list[int]:
    """The heads in whose channels two arrays differ."""
    if before is None or after is None or before.shape != after.shape:
        return []
    channels = (before != after).any(tuple(range(before.ndim - 1)))
    return np.flatnonzero(channels.reshape(-1, size).any(1)).tolist()


@no_grad()
def remove_heads_(
    model: nn.Module, x: Any, keep: float, score: Callable[[AttentionModule], Any] | None = None
) -> nn.Module:
    """Keep a share of the heads of every attention below a model: its shapes shrink.

    x is an input that the model takes. Those with the greatest weights stay, or of the greatest
    `score`. A module says how many heads it has in one of `HEADS`, and has linear layers.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"remove_heads_: keeps a share of the heads, not {keep}")
    found = attentions(model.eval(), x)
    if not found:
        raise ValueError(
            f"remove_heads_: {type(model).__name__} has no heads that can be taken out: modules "
            f"say their number in {', '.join(HEADS)}, and each has keys of its own"
        )
    for own in found:
        scores = np.asarray(_weights(model, own) if score is None else score(own))
        best = np.argsort(-scores, kind="stable")[: max(1, round(keep * own.heads))]
        _without_heads(model, x, own, np.sort(best).tolist())
    return model


def _weights(model: nn.Module, own: AttentionModule) -> Any:
    """The squares of the weights of heads: rows of projections, columns of the last."""
    last: Any = model.get_submodule(own.last)
    scores = (
        np.square(last.weight.detach().numpy()).reshape(len(last.weight), own.heads, -1).sum((0, 2))
    )
    for name, heads in own.projections.items():
        layer: Any = model.get_submodule(name)
        rows = np.square(layer.weight.detach().numpy()).reshape(len(heads), -1).sum(1)
        np.add.at(scores, heads, rows)
    return scores


def _without_heads(model: nn.Module, x: Any, own: AttentionModule, kept: list[int]) -> None:
    last: Any = model.get_submodule(own.last)
    size = last.weight.shape[1] // own.heads
    channels = [h * size + i for h in kept for i in range(size)]
    mask = np.zeros(last.weight.shape[1], np.float32)
    mask[channels] = 1
    with _hooked(
        last.register_forward_pre_hook(lambda _, given: (given[0] * genesis.tensor(mask),))
    ):
        wanted = model(x).numpy()
    changes: list[tuple[Any, str, Any]] = [
        (model.get_submodule(own.name), own.counted, len(kept)),
        (last, "weight", _rows(last.weight.T, channels).T), (last, "in_features", len(channels)),
    ]  # fmt: skip
    for name, heads in own.projections.items():
        layer: Any = model.get_submodule(name)
        rows = [b * size + i for b, h in enumerate(heads) if h in kept for i in range(size)]
        changes += [
            (layer, "weight", _rows(layer.weight, rows)),
            (layer, "out_features", len(rows)),
        ]
        if layer.bias is not None:
            changes.append((layer, "bias", _rows(layer.bias, rows)))
    _checked(model, x, changes, wanted, f"remove_heads_: {own.name or type(model).__name__}")


@no_grad()
def remove_experts_(
    model: nn.Module, data: Sequence[Any], keep: int, score: Callable[[str], Any] | None = None
) -> nn.Module:
    """Keep so many experts of every layer of experts below a model, those chosen most in `data`.

    A layer of experts has a `nn.ModuleList` of them and a linear layer with a row for each, which
    says by the greatest results who is chosen. `score` gives its own for the name of such a layer.
    """
    found = [
        (name, module, *pair)
        for name, module in model.eval().named_modules()
        if (pair := _experts(module)) is not None
    ]
    if not found or keep < 1:
        raise ValueError(
            f"remove_experts_: {type(model).__name__} has no list of experts beside a linear layer "
            f"with a row for each, or none are to stay ({keep})"
        )
    for name, module, experts, router in found:
        count = len(experts)
        scores = _chosen(model, data, router, count) if score is None else np.asarray(score(name))
        kept = np.sort(np.argsort(-scores, kind="stable")[:keep]).tolist()
        gone = np.where(np.isin(np.arange(count), kept), 0, -1e30).astype(np.float32)
        with _hooked(
            router.register_forward_hook(lambda *x, gone=gone: x[2] + genesis.tensor(gone))
        ):
            wanted = model(data[0]).numpy()
        (place,) = (n for n, m in module.named_children() if m is experts)
        changes: list[tuple[Any, str, Any]] = [
            (module, place, nn.ModuleList([experts[i] for i in kept])),
            (router, "weight", _rows(router.weight, kept)), (router, "out_features", len(kept)),
            *((module, n, len(kept)) for n in EXPERTS if getattr(module, n, None) == count),
        ]  # fmt: skip
        if router.bias is not None:
            changes.append((router, "bias", _rows(router.bias, kept)))
        _checked(model, data[0], changes, wanted, f"remove_experts_: {name or 'the model'}")
    return model


def _experts(module: nn.Module) -> tuple[Any, Any] | None:
    """The list of a module's experts, and the layer that chooses."""
    children = [m for _, m in module.named_children()]
    for experts in (m for m in children if isinstance(m, nn.ModuleList) and len(m) > 1):
        for router in children:
            if type(router) is nn.Linear and router.weight.shape[0] == len(experts):
                return experts, router
    return None


def _chosen(model: nn.Module, data: Sequence[Any], router: Any, count: int) -> Any:
    """How much of the choice experts have."""
    total = np.zeros(count)

    def add(layer: Any, inputs: Any, y: Any) -> None:
        total[:] += genesis.softmax(y.reshape(-1, count), 1).sum(0).numpy()

    with _hooked(router.register_forward_hook(add)):
        for x in data:
            model(x)
    return total


@contextmanager
def _hooked(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def _rows(x: Any, chosen: list[int]) -> Any:
    return nn.Parameter(genesis.tensor(np.ascontiguousarray(x.detach().numpy()[chosen])))


def _checked(model: nn.Module, x: Any, changes: Any, wanted: Any, who: str) -> None:
    """Make changes, and take them back if the model does not give what it should."""
    before = [(m, name, getattr(m, name)) for m, name, _ in changes]
    for module, name, value in changes:
        setattr(module, name, nn.Parameter(value.detach()) if name == "weight" else value)
    why = "it gives something else without them"
    try:
        y = model(x).numpy()
        if y.shape == wanted.shape:
            off = float(np.abs(y - wanted).max(initial=0))
            if off <= _ALIKE * float(np.abs(wanted).max(initial=0)):
                return
    except (ValueError, RuntimeError, IndexError) as error:
        why = str(error)
    for module, name, value in before:
        setattr(module, name, value)
    raise ValueError(f"{who} stays as it was: {why}")


__all__ = ["AttentionModule", "EXPERTS", "HEADS", "attentions", "remove_experts_", "remove_heads_"]
