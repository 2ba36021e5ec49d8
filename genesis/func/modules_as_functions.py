"""Modules as functions of their parameters, and several modules as one with stacked parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from genesis import functional
from genesis.ndarray.core.value import thread
from genesis.nn.module import Module
from genesis.tensor.tensor import Tensor

State = dict[str, Tensor]


class _Place(NamedTuple):
    """Where a module keeps a tensor."""

    owner: Module
    home: dict[str, Any]
    name: str

    @property
    def tensor(self) -> Tensor:
        """What is there."""
        found: Tensor = self.home[self.name]
        return found

    def put(self, x: Tensor) -> None:
        """Have another tensor there; to who counts changes it has not changed."""
        dict.__setitem__(self.home, self.name, x)


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """``module(*args, **kwargs)`` with other parameters and buffers, by their names.

    Names that are not given stay as they are, unless `strict`. With `tie_weights` a parameter that
    the module has under several names is replaced under all. What the module assigns to one of
    its buffers is found in the dictionary.

    >>> import genesis
    >>> linear = genesis.nn.Linear(2, 1, bias=False)
    >>> x, weight = genesis.ones(2), genesis.tensor([[1.0, 2.0]])
    >>> genesis.func.functional_call(linear, {"weight": weight}, (x,))
    tensor([3.])
    """
    given = parameter_and_buffer_dicts
    states = [given] if isinstance(given, Mapping) else list(given)
    listed = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replaced(module, states, tie_weights, strict):
        return module(*listed, **(kwargs or {}))


@contextmanager
def _replaced(
    module: Module, states: Sequence[Any], tie_weights: bool, strict: bool
) -> Iterator[None]:
    """A module with other tensors, while it is called."""
    places = dict(_places(module))
    _check(module, states, places, strict)
    names: dict[int, list[str]] = {}
    for name, place in places.items():
        names.setdefault(id(place.tensor), []).append(name)
    new: dict[str, Tensor] = {}
    for name, x in ((n, x) for state in states for n, x in state.items()):
        tied = names[id(places[name].tensor)] if tie_weights else []
        new |= {other: x for other in tied if other not in new}
        new[name] = x
    before = [(place, place.tensor) for place in map(places.__getitem__, new)]
    listener = thread.listener
    shown = [listener.replaced(place.owner, place.name, x) for place, x in before]
    for (place, _), x in zip(before, new.values(), strict=True):
        place.put(x)
    try:
        yield
        for state in states:
            for name in state:
                if places[name].tensor is not state[name]:
                    state[name] = places[name].tensor
    finally:
        for (place, x), show in zip(before, shown, strict=True):
            place.put(x)
            show()


def _places(module: Module) -> Iterator[tuple[str, _Place]]:
    for prefix, part in module.named_modules(remove_duplicate=False):
        for home in (part._parameters, part._buffers):
            for name, x in home.items():
                if x is not None:
                    yield f"{prefix}.{name}" if prefix else name, _Place(part, home, name)


def _check(module: Module, states: Sequence[Any], places: Mapping[str, Any], strict: bool) -> None:
    names = [name for state in states for name in state]
    kind = type(module).__name__
    for name in names:
        if name not in places:
            raise KeyError(f"functional_call: {kind} has no parameter or buffer {name!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"functional_call: a name is given twice, among {names}")
    missing = [name for name in places if name not in names]
    if strict and missing:
        raise RuntimeError(f"functional_call: strict, but {kind} also has {missing}")


def stack_module_state(models: Sequence[Module]) -> tuple[State, State]:
    """The parameters and the buffers of models of one kind, each stacked along a first dimension.

    >>> import genesis
    >>> models = [genesis.nn.Linear(3, 1) for _ in range(5)]
    >>> params, buffers = genesis.func.stack_module_state(models)
    >>> call = lambda p, x: genesis.func.functional_call(models[0], p, x)
    >>> genesis.vmap(call, in_dims=(0, None))(params, genesis.ones(3)).shape
    genesis.Size([5, 1])
    """
    if not models:
        raise ValueError("stack_module_state: there are no models")
    first = models[0]
    for model in models[1:]:
        if type(model) is not type(first) or model.training is not first.training:
            raise ValueError("stack_module_state: models are of one class and in one mode")
    params = _stacked([dict(model.named_parameters()) for model in models])
    for x in params.values():
        x.requires_grad_()
    return params, _stacked([dict(model.named_buffers()) for model in models])


def _stacked(states: Sequence[Mapping[str, Tensor]]) -> State:
    if any(state.keys() != states[0].keys() for state in states):
        raise ValueError("stack_module_state: models have tensors of different names")
    found = {}
    for name, like in states[0].items():
        parts = [state[name].detach() for state in states]
        if any(x.shape != like.shape for x in parts):
            shapes = [tuple(x.shape) for x in parts]
            raise ValueError(f"stack_module_state: {name!r} has the shapes {shapes}")
        found[name] = functional.stack(parts)
    return found
