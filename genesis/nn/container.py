"""Containers: modules and parameters in sequence or by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from operator import index as as_int
from typing import Any

from genesis.nn.module import Module, Parameter
from genesis.tensor.tensor import Tensor


class _Listed(Module):
    """What `Sequential` and `ModuleList` share: submodules named 0, 1, 2, .. or as given."""

    _modules: dict[str, Any]

    def _place(self, position: int) -> str:
        """The name of the submodule at a position, counted from the end if negative."""
        wanted = as_int(position)
        count = len(self._modules)
        if not -count <= wanted < count:
            raise IndexError(f"{type(self).__name__}: no position {position} among {count} modules")
        return list(self._modules)[wanted % count]

    def _renumber(self, modules: Iterable[Module]) -> None:
        listed = list(modules)
        for name in list(self._modules):
            delattr(self, name)
        for number, module in enumerate(listed):
            self.add_module(str(number), module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._modules.values()))

    def __getitem__(self, position: int | slice) -> Any:
        if isinstance(position, slice):
            return self._part(list(self._modules.items())[position])
        return self._modules[self._place(position)]

    def _part(self, items: list[tuple[str, Module]]) -> Any:
        raise NotImplementedError

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

    def _part(self, items: list[tuple[str, Module]]) -> ModuleList:
        return type(self)(module for _, module in items)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> ModuleList:
        self.extend(other)
        return self


class ModuleDict(Module):
    """Modules by name, whose parameters are those of the module that has it."""

    def __init__(self, modules: Any = ()) -> None:
        super().__init__()
        self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._modules))

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def keys(self) -> Iterable[str]:
        """The names."""
        return list(self._modules.keys())

    def values(self) -> Iterable[Any]:
        """The modules."""
        return list(self._modules.values())

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and modules."""
        return list(self._modules.items())

    def update(self, modules: Any) -> None:
        """Add modules by name, or replace them."""
        pairs = modules.items() if isinstance(modules, Mapping | ModuleDict) else modules
        for name, module in pairs:
            self[name] = module

    def pop(self, key: str) -> Module:
        """Take a module out."""
        found: Module = self._modules[key]
        delattr(self, key)
        return found

    def clear(self) -> None:
        """Take all modules out."""
        for key in list(self._modules):
            delattr(self, key)


class ParameterList(Module):
    """A list of parameters. Tensors become parameters."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        super().__init__()
        self.extend(values)

    def _place(self, position: int) -> str:
        wanted = as_int(position)
        if not -len(self) <= wanted < len(self):
            raise IndexError(f"ParameterList: no position {position} among {len(self)} parameters")
        return str(wanted % len(self))

    def __getitem__(self, position: int | slice) -> Any:
        if isinstance(position, slice):
            return type(self)(list(self)[position])
        return self._parameters[self._place(position)]

    def __setitem__(self, position: int, value: Any) -> None:
        setattr(self, self._place(position), _parameter("ParameterList", value))

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(list(self._parameters.values()))

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


class ParameterDict(Module):
    """Parameters by name. Tensors become parameters."""

    def __init__(self, parameters: Any = ()) -> None:
        super().__init__()
        self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        return self._parameters[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.register_parameter(key, _parameter("ParameterDict", value))

    def __delitem__(self, key: str) -> None:
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._parameters))

    def __contains__(self, key: str) -> bool:
        return key in self._parameters

    def keys(self) -> Iterable[str]:
        """The names."""
        return list(self._parameters.keys())

    def values(self) -> Iterable[Any]:
        """The parameters."""
        return list(self._parameters.values())

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and parameters."""
        return list(self._parameters.items())

    def update(self, parameters: Any) -> None:
        """Add parameters by name, or replace them."""
        named = isinstance(parameters, Mapping | ParameterDict)
        for name, value in parameters.items() if named else parameters:
            self[name] = value

    def pop(self, key: str) -> Any:
        """Take a parameter out."""
        found = self._parameters[key]
        delattr(self, key)
        return found

    def clear(self) -> None:
        """Take all parameters out."""
        for key in list(self._parameters):
            delattr(self, key)

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
