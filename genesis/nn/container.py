"""Containers: modules and parameters in sequence or by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from operator import index as as_int
from typing import Any, ClassVar

from genesis.ndarray.core.value import thread
from genesis.nn.layer_chain import chained
from genesis.nn.module import Family, Module, Parameter
from genesis.tensor.tensor import Tensor


class _Container(Family):
    """What all containers share: they are one of the homes that a module has for its parts."""

    home: ClassVar[str]

    @property
    def _held(self) -> dict[str, Any]:
        found: dict[str, Any] = self.__dict__[self.home]
        return found

    def __len__(self) -> int:
        return len(self._held)


class _InSequence(_Container):
    """Parts named 0, 1, 2, .. or as given, found by their positions."""

    def _place(self, position: int) -> str:
        """The name of the part at a position, counted from the end if negative."""
        wanted, count = as_int(position), len(self)
        if not -count <= wanted < count:
            what = f"no position {position} among {count} {self.home[1:]}"
            raise IndexError(f"{type(self).__name__}: {what}")
        return list(self._held)[wanted % count]

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._held.values()))

    def __getitem__(self, position: int | slice) -> Any:
        if isinstance(position, slice):
            return self._part(list(self._held.items())[position])
        return self._held[self._place(position)]

    def _part(self, items: list[tuple[str, Any]]) -> Any:
        return type(self)(part for _, part in items)  # type: ignore[call-arg]


class _Listed(_InSequence, home="_modules"):
    """What `Sequential` and `ModuleList` share."""

    def _renumber(self, modules: Iterable[Module]) -> None:
        listed = list(modules)
        for name in list(self._modules):
            delattr(self, name)
        for number, module in enumerate(listed):
            self.add_module(str(number), module)

    def __setitem__(self, position: int, module: Module) -> None:
        setattr(self, self._place(position), module)

    def __delitem__(self, position: int | slice) -> None:
        chosen = position if isinstance(position, slice) else slice(None)
        names = list(self._modules)[chosen]
        for name in names if isinstance(position, slice) else [self._place(position)]:
            delattr(self, name)
        if all(name.isdigit() for name in self._modules):
            self._renumber(self._modules.values())

    def append(self, module: Module) -> Any:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Any:
        """Add a module before a position."""
        listed = list(self._modules.values())
        listed.insert(index, module)
        self._renumber(listed)
        return self

    def pop(self, key: int) -> Module:
        """Take a module out."""
        found: Module = self[key]
        del self[key]
        return found


class Sequential(_Listed):
    """Modules that are called one after the other, each with the result of the one before.

    >>> from genesis import nn
    >>> nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): ReLU()
    )  # 9 parameters
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self.extend(modules)

    def forward(self, input: Any) -> Any:
        """The result of the last module."""
        if thread.recorder is None:
            found = chained(self._modules.values(), input)
            if found is not None:
                return found
        for module in self._modules.values():
            input = module(input)
        return input

    def _part(self, items: list[tuple[str, Module]]) -> Sequential:
        return type(self)(OrderedDict(items))

    def __add__(self, other: Sequential) -> Sequential:
        return Sequential(*self, *other)


class ModuleList(_Listed):
    """A list of modules, whose parameters are those of the module that has it."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> ModuleList:
        self.extend(other)
        return self


class _ByName(_Container):
    """Parts by name."""

    def __getitem__(self, key: str) -> Any:
        return self._held[key]

    def __delitem__(self, key: str) -> None:
        delattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._held))

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def keys(self) -> Iterable[str]:
        """The names."""
        return list(self._held.keys())

    def values(self) -> Iterable[Any]:
        """What they stand for."""
        return list(self._held.values())

    def items(self) -> Iterable[tuple[str, Any]]:
        """The names, and what they stand for."""
        return list(self._held.items())

    def _add(self, given: Any) -> None:
        for name, value in given.items() if isinstance(given, Mapping | _ByName) else given:
            self[name] = value

    def pop(self, key: str) -> Any:
        """Take one out."""
        found = self._held[key]
        delattr(self, key)
        return found

    def clear(self) -> None:
        """Take all out."""
        for key in list(self._held):
            delattr(self, key)


class ModuleDict(_ByName, home="_modules"):
    """Modules by name, whose parameters are those of the module that has it."""

    def __init__(self, modules: Any = ()) -> None:
        super().__init__()
        self.update(modules)

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def update(self, modules: Any) -> None:
        """Add modules by name, or replace them."""
        self._add(modules)


class ParameterList(_InSequence, home="_parameters"):
    """A list of parameters. Tensors become parameters."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        super().__init__()
        self.extend(values)

    def __setitem__(self, position: int, value: Any) -> None:
        setattr(self, self._place(position), _parameter("ParameterList", value))

    def append(self, value: Any) -> ParameterList:
        """Add a parameter at the end."""
        setattr(self, str(len(self)), _parameter("ParameterList", value))
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add parameters at the end."""
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def extra_repr(self) -> str:
        """The shapes of the parameters."""
        return _shapes(self._parameters)


class ParameterDict(_ByName, home="_parameters"):
    """Parameters by name. Tensors become parameters."""

    def __init__(self, parameters: Any = ()) -> None:
        super().__init__()
        self.update(parameters)

    def __setitem__(self, key: str, value: Any) -> None:
        self.register_parameter(key, _parameter("ParameterDict", value))

    def update(self, parameters: Any) -> None:
        """Add parameters by name, or replace them."""
        self._add(parameters)

    def extra_repr(self) -> str:
        """The shapes of the parameters."""
        return _shapes(self._parameters)


def _parameter(name: str, value: Any) -> Parameter:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: holds parameters and tensors, not {type(value).__name__}")
    return value if isinstance(value, Parameter) else Parameter(value)


def _shapes(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {tuple(x.shape)}" for name, x in parameters.items())


__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]
