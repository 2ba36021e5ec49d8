"""Layers without parameters, made of functions; see `genesis.functional.registry.layer`.

Such a layer's constructor takes settings, arguments of the function, and keeps them as attributes.
Its `forward` takes the other arguments, and calls the function with both.
"""

from __future__ import annotations

import inspect
from typing import Any

from genesis.functional.registry import Operation, StatelessLayer
from genesis.ndarray.core.value import thread, unwatched
from genesis.ndarray.tracing.object_introspection import atomic
from genesis.nn.module import Stateless

_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parts(operation: Operation) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """The arguments of a function that its layer's `forward` takes, and the constructor's."""
    layer = operation.layer
    assert layer is not None
    known = inspect.signature(operation.function).parameters
    inputs = [*known][: layer.inputs] if isinstance(layer.inputs, int) else layer.inputs
    settings = layer.settings or [n for n in known if n not in (*inputs, "training")]
    return [known[n] for n in inputs], [known[n] for n in settings]


def layer_of(operation: Operation, module: str) -> type[Stateless]:
    """The class of a function's layer, which stands in a module."""
    layer, function = operation.layer, operation.function
    assert layer is not None
    inputs, settings = parts(operation)
    constructor = inspect.Signature(settings)
    names = [p.name for p in settings]
    if "training" in inspect.signature(function).parameters:
        names.append("training")

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        Stateless.__init__(self)
        try:
            given = constructor.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{made.__name__}: {error}") from None
        given.apply_defaults()
        _set(self, layer, given.arguments)

    @atomic
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = {name: getattr(self, name) for name in names}
        if thread.recorder is not None:
            unwatched(_report, self, given)
        return function(*args, **kwargs, **given)

    forward.__doc__ = f"`{operation.name}` of what is given, with the settings."
    members = {"__doc__": function.__doc__, "__module__": module}
    made = type(layer.name, (Stateless,), {**members, "__init__": __init__, "forward": forward})
    for method, arguments in ((__init__, settings), (forward, inputs)):
        method.__qualname__ = f"{layer.name}.{method.__name__}"
        vars(method)["__signature__"] = inspect.Signature([_SELF, *arguments])
    return made


def _report(self: Stateless, settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        thread.listener.reading(self, name, value)
        _report_contents(value)


def _report_contents(value: Any) -> None:
    if isinstance(value, list | dict | set):
        thread.listener.reading_all(value)
    for x in value if isinstance(value, list | tuple) else ():
        _report_contents(x)


def _set(self: Stateless, layer: StatelessLayer, settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        if value is None and name in layer.defaults:
            value = settings[layer.defaults[name]]
        if name in layer.buffers:
            self.register_buffer(name, value)
        else:
            setattr(self, name, value)
