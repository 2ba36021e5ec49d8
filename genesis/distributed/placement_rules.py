"""Where weights and the state of optimizers lie: rules, and what puts arrays in their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np

from genesis import Tensor, nn, optim
from genesis.distributed.mesh import Mesh, current, mesh_of
from genesis.functional.function import Function
from genesis.ir.placement import MeshShape, Placement, Split, placed
from genesis.ndarray import NDArray
from genesis.ndarray.core.interop import copied, realize
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.realisation import backend_of
from genesis.ndarray.core.value import thread
from genesis.ndarray.ops.library_calls import call
from genesis.ndarray.random import default_generator

Shape = tuple[int, ...]
#: Whether what arrays contain will come from processes that have it (`elastic`).
takes_over = False


class Rule(Protocol):
    """How arrays lie along one axis of a mesh."""

    def weight(self, name: str, shape: Shape, size: int, taken: set[int]) -> Split | None:
        """The split of a parameter, along none of the dimensions `taken` if possible."""
        ...

    def state(self, name: str, shape: Shape, size: int, taken: set[int]) -> Split | None:
        """That of an optimizer's array for the parameter."""
        ...


class Rules:
    """Splits by name: patterns, as of a shell, to the dimension that weights are split along.

    The first pattern that matches the name of a parameter holds; those without one stay whole, and
    so do those whose dimension does not divide.

    >>> Rules({"*.up.weight": 0, "*.down.weight": 1}).weight("blocks.0.up.weight", (8, 4), 2, set())
    split 0
    """

    def __init__(self, patterns: Mapping[str, int]) -> None:
        self.patterns = dict(patterns)

    def weight(self, name: str, shape: Shape, size: int, taken: set[int]) -> Split | None:
        """The split of a parameter."""
        for pattern, dim in self.patterns.items():
            if fnmatchcase(name, pattern) and dim < len(shape):
                return Split(dim) if shape[dim] % size == 0 and dim not in taken else None
        return None

    state = weight


#: Linear layers in pairs, the first with its outputs divided and the second with its inputs, by the
#: names that they usually have: attention's projections, and both halves of a feed-forward block.
_COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "fc1", "c_fc", "linear1",
            "w1", "w3", "up", "query", "key", "value", "lm_head")  # fmt: skip
_ROWS = ("o_proj", "down_proj", "out_proj", "fc2", "c_proj", "linear2", "w2", "down")
megatron = Rules(
    {f"*{dot}{name}.weight": dim for names, dim in ((_COLUMNS, 0), (_ROWS, 1)) for name in names
     for dot in (".", "")}
    | {f"*{name}.bias": 0 for name in _COLUMNS}
)  # fmt: skip


class zero:  # noqa: N801 - a rule like `megatron`, with an argument
    """ZeRO: what every process would have is stored in blocks, and gathered for use.

    Stage 1 stores the state of the optimizer, stage 2 adds up gradients in blocks, too (which
    happens at stage 1 already, where they are summed up), stage 3 stores the weights. Arrays none
    of whose dimensions divides stay whole.
    """

    def __init__(self, stage: int) -> None:
        if stage not in (0, 1, 2, 3):
            raise ValueError(f"zero({stage!r}): the stages are 0, 1, 2 and 3")
        self.stage = stage

    def weight(self, name: str, shape: Shape, size: int, taken: set[int]) -> Split | None:
        """The split of a parameter."""
        return self._stored(shape, size, taken) if self.stage == 3 else None

    def state(self, name: str, shape: Shape, size: int, taken: set[int]) -> Split | None:
        """That of an optimizer's array for the parameter."""
        return self._stored(shape, size, taken) if self.stage else None

    def _stored(self, shape: Shape, size: int, taken: set[int]) -> Split | None:
        dims = [d for d, extent in enumerate(shape) if extent and extent % size == 0]
        dims.sort(key=lambda d: d in taken)
        return Split(dims[0], stored=True) if dims else None


def place(
    model: nn.Module | Iterable[Tensor],
    optimizer: optim.Optimizer | None = None,
    mesh: Mesh | None = None,
    **rules: Rule,
) -> None:
    """Spread a model, and the state of its optimizer, over the processes of a mesh.

    `rules` says for each axis how; along others arrays are whole. All processes call it. They go on
    with the first one's weights and random numbers, whatever they have got. Without a mesh, it is
    the one made last.
    """
    mesh = current() if mesh is None else mesh
    unknown = sorted(set(rules) - set(mesh.shape))
    if unknown:
        raise ValueError(f"place: there is no axis {unknown[0]!r} in {mesh!r}")
    for axis, rule in rules.items():
        if isinstance(rule, type) or not all(hasattr(rule, name) for name in ("weight", "state")):
            raise TypeError(
                f"place: {axis}={rule!r} is no rule; these are genesis.distributed.zero(1) to "
                "zero(3), megatron, experts, Rules({pattern: dimension})"
            )
    named = _named(model)
    states: dict[str, list[NDArray]] = {name: [] for name, _ in named}
    if optimizer is not None:
        optimizer.prepare()
        for name, p in named:
            kept = optimizer.state.get(p, {}).values()
            states[name] = [x for x in kept if isinstance(x, NDArray) and x.shape == p.shape]
    if mesh.size == 1:
        return
    agree(mesh, named, type(optimizer).__name__)
    random = default_generator().state
    spread(random, mesh, None)
    default_generator().state = random
    for name, p in named:
        for array in states[name]:
            spread(array, mesh, _placement(mesh, rules, "state", name, p.shape))
        spread(p.array, mesh, _placement(mesh, rules, "weight", name, p.shape))
    if isinstance(model, nn.Module):
        for _, buffer in model.named_buffers():
            spread(buffer.array, mesh, None)


def agree(mesh: Mesh, arrays: Iterable[tuple[str, Tensor]], optimizer: str = "") -> None:
    """Raise an error if another process has other arrays: they could not take the first one's."""
    lines = [f"{name}: {p.dtype} {tuple(p.shape)}" for name, p in arrays]
    mesh.agree("place", [*lines, f"the optimizer {optimizer}"])


def _named(model: nn.Module | Iterable[Tensor]) -> list[tuple[str, Tensor]]:
    if isinstance(model, nn.Module):
        return list(model.named_parameters())
    return [(str(k), p) for k, p in enumerate(model)]


def _placement(
    mesh: Mesh, rules: Mapping[str, Rule], what: str, name: str, shape: Shape
) -> Placement | None:
    """How an array is to lie: what is divided for computing first, then what is only stored so."""
    splits: dict[str, Split | None] = dict.fromkeys(mesh.shape)
    local, taken = list(shape), set[int]()
    for axis in sorted(rules, key=lambda axis: isinstance(rules[axis], zero)):
        size = mesh.shape[axis]
        if size > 1:
            split = getattr(rules[axis], what)(name, tuple(local), size, taken)
            splits[axis] = split
            if split is not None:
                local[split.dim] //= size
                taken.add(split.dim)
    return placed(mesh.form, tuple(splits.values()))


def spread(array: NDArray, mesh: Mesh, placement: Placement | None) -> None:
    """Give an array a placement; its contents are the first process's."""
    if array.steps:
        raise ValueError(f"place: an array of shape {array.shape} is a view of another one")
    contents = _contents(array) if takes_over else mesh.broadcast(_contents(array))
    array.storage.replace(_laid_out(contents, array.device, mesh, placement).value)


def constrain(x: Any, mesh: Mesh | None = None, **dims: int | None) -> Any:
    """`x`, divided along axes of the mesh: ``dp=0`` splits dimension 0, ``tp=None`` makes it whole.

    In a jitted function this is where the compiler changes how an array lies, and its gradient lies
    alike; along axes without a wish it decides. Outside of one the array is moved at once: all
    processes must call it. Without a mesh, it is the one made last.

    >>> import genesis
    >>> from genesis.distributed import mesh
    >>> constrain(genesis.ones(4, 2), mesh(dp=2, tp=2), dp=0, tp=None).shape
    genesis.Size([4, 2])
    """
    mesh = current() if mesh is None else mesh
    if not isinstance(x, Tensor | NDArray):
        raise TypeError(f"constrain: takes a tensor, not {type(x).__name__}")
    shape, wishes, parts = tuple(x.shape), dict[str, int | None](), Counter[int]()
    for axis, dim in dims.items():
        if axis not in mesh.shape:
            raise ValueError(f"constrain: there is no axis {axis!r} in {mesh!r}")
        if dim is not None and not (type(dim) is int and -len(shape) <= dim < len(shape)):
            raise ValueError(f"constrain: {axis}={dim!r}: no dimension of an array of {shape}")
        wishes[axis] = None if dim is None else dim % len(shape)
    for axis, dim in wishes.items():
        if dim is not None:
            parts[dim] = max(parts[dim], 1) * mesh.shape[axis]
    for dim, count in parts.items():
        if shape[dim] % count or not shape[dim]:
            raise ValueError(
                f"constrain: dimension {dim} of an array of {shape} does not divide into {count}"
            )
    return x if mesh.size == 1 else Constrain.apply(x, mesh.form, tuple(wishes.items()))


class Constrain(Function):
    """An array that lies as it is wished, and its gradient likewise."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, form: MeshShape, wishes: tuple[tuple[str, int | None], ...]
    ) -> Any:
        ctx.wishes = form, wishes
        if thread.recorder is None:
            return _moved(x, mesh_of(form), dict(wishes))
        options = (form.axes, form.epoch, wishes)
        return wrap(
            *call("sharding_constraint.constrain", options, [x.value], [(x.dtype, x.shape)])
        )

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return Constrain.apply(grad, *ctx.wishes), None, None


def _moved(x: NDArray, mesh: Mesh, wishes: Mapping[str, int | None]) -> NDArray:
    """An array that is there, in other blocks."""
    splits = dict.fromkeys(mesh.shape) | mesh.splits(x)
    splits |= {axis: None if dim is None else Split(dim) for axis, dim in wishes.items()}
    return _laid_out(gather(x).numpy(), x.device, mesh, placed(mesh.form, tuple(splits.values())))


def _laid_out(
    contents: np.ndarray[Any, Any], device: str, mesh: Mesh, placement: Placement | None
) -> NDArray:
    """An array of these contents, of which this process has its block."""
    if placement is None:
        return copied(contents, device)
    block = copied(mesh.block(contents, placement), device)
    return mesh.joined(block, contents.shape, placement)


def gather(x: Any) -> Any:
    """All of an array whose blocks lie on several processes, on each of them. All must call it.

    Of a mapping or a list, all its arrays: ``genesis.save(gd.gather(model.state_dict()), path)``.

    >>> import genesis
    >>> gather({"a": genesis.ones(2)})
    {'a': tensor([1., 1.])}
    """
    if isinstance(x, Tensor):
        return Tensor(gather(x.array))
    if isinstance(x, NDArray):
        base = NDArray(x.storage)
        realize(base)
        if x.storage.actual.placement is None:
            return x
        return NDArray(copied(_contents(base), x.device).storage, x.steps)
    if isinstance(x, Mapping):
        return {name: gather(value) for name, value in x.items()}
    return [gather(y) for y in x] if isinstance(x, list | tuple) else x


def _contents(array: NDArray) -> np.ndarray[Any, Any]:
    """The contents of an array, of all blocks if it lies in some."""
    realize(array)
    value = array.storage.actual
    placement = value.placement
    if placement is None:
        return np.array(array.numpy())
    assert value.memory is not None
    shape: Any = placement.local(value.shape)
    block = backend_of(value.device).download(value.memory, value.dtype, shape)
    return mesh_of(placement.mesh).whole(np.array(block), placement)


__all__ = ["Rule", "Rules", "constrain", "gather", "megatron", "place", "zero"]
