"""`Module`: parameters, buffers and submodules by name, and a `forward`.

A module is a plain class whose attributes are what it is made of. Tensors that are trained are
`Parameter`s; state that is saved but not trained, such as running statistics, is a buffer. Names
joined by dots lead from a model to each of its parts, and are the keys of its `state_dict`.

A function recorded by `genesis.jit` depends on settings such as `training` and a dropout rate, and
on what a model is made of. So modules count their changes: while the count stands still, a
recording need not look at any of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from genesis.autograd import composite_cache, no_grad
from genesis.functional.error_messages import WRONG
from genesis.ir import dtype as dtypes
from genesis.ndarray.core.value import Changes, thread, unwatched
from genesis.ndarray.tracing.counting_dict import Counted
from genesis.ndarray.tracing.object_introspection import atomic
from genesis.nn.hooks import HookedCall, Hooks
from genesis.tensor.hooks import RemovableHook, add_hook
from genesis.tensor.tensor import Tensor
from genesis.tensor.whole_calls import report

M = TypeVar("M", bound="Module")


class Parameter(Tensor):
    """A tensor that is trained: as an attribute of a module it is one of its parameters."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        array = data.array if isinstance(data, Tensor) else data
        super().__init__(array, requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class Buffer(Tensor):
    """State that is not trained: as an attribute of a module it is one of its buffers."""

    __slots__ = ()

    persistent: bool  #: whether state dicts have it

    def __init__(self, data: Any, *, persistent: bool = True) -> None:
        super().__init__(data.array if isinstance(data, Tensor) else data)
        self.persistent = persistent


composite_cache.KINDS |= {Parameter, Buffer}


class Incompatible(NamedTuple):
    """The names in which a state dict and a module differ."""

    missing_keys: list[str]
    unexpected_keys: list[str]


#: Where what is no plain attribute is.
_HOMES = ("_parameters", "_buffers", "_modules")


class Module:
    """The base of all layers and models.

    >>> import genesis
    >>> from genesis import nn
    >>> class Twice(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.linear = nn.Linear(2, 2)
    ...     def forward(self, x):
    ...         return self.linear(self.linear(x))
    >>> [name for name, _ in Twice().named_parameters()]
    ['linear.weight', 'linear.bias']
    """

    training: bool
    forward: Callable[..., Any]
    __genesis_counted__ = True

    def __init__(self) -> None:
        fields = self.__dict__
        fields["_parameters"] = Counted()
        fields["_buffers"] = Counted()
        fields["_transient"] = set()  # names of buffers that are not saved
        fields["_modules"] = Counted()
        fields["_forward_hooks"] = Hooks()
        fields["_forward_pre_hooks"] = Hooks()
        fields["_backward_hooks"] = Hooks()
        fields["_backward_pre_hooks"] = Hooks()
        fields["training"] = True

    # ---- calling
    @atomic
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`forward`, with the hooks around it."""
        known = thread.recorder is not None and unwatched(self._report)
        for before, named in self._forward_pre_hooks:
            changed = before(self, args, kwargs) if named else before(self, args)
            if changed is not None and named:
                args, kwargs = changed
            elif changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        if self._backward_hooks or self._backward_pre_hooks:
            watch = HookedCall(self)
            result = watch.leave(self.forward(*watch.enter(args), **kwargs))
        else:
            try:
                if known:
                    result = unwatched(self.forward, *args, **kwargs)
                else:
                    result = self.forward(*args, **kwargs)
            except WRONG as error:
                self._note(error)
                raise
        for after, named in self._forward_hooks:
            changed = after(self, args, kwargs, result) if named else after(self, args, result)
            if changed is not None:
                result = changed
        return result

    def _note(self, error: Exception) -> None:
        """Say which of our layers an error is from; the innermost one is the first to say."""
        kind = type(self)
        if kind.__module__.startswith("genesis.nn.") and not hasattr(error, "__notes__"):
            error.add_note(f"in {kind.__name__ if self._modules else self!r}")

    @atomic
    def _report(self) -> bool:
        """Say that the module is called; whether all that its `forward` reads is said with that."""
        thread.listener.assume(self._behaviour)
        thread.listener.calling(type(self), "forward")
        changed = self._forward_pre_hooks or "forward" in self.__dict__
        return not changed and report(self)

    def _behaviour(self) -> Any:
        """What a call of this module itself depends on: its class, unless it has more."""
        kind, fields = type(self), self.__dict__
        hooks = (
            self._forward_pre_hooks, self._forward_hooks, self._backward_hooks,
            self._backward_pre_hooks,
        )  # fmt: skip
        if "forward" in fields or any(hooks):
            return kind, fields.get("forward"), *map(tuple, hooks)
        return kind

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHook:
        """Call ``hook(module, args, result)`` after `forward`; it may replace the result.

        `with_kwargs` passes the keyword arguments before the result; `prepend` calls it first.
        """
        return add_hook(self._forward_hooks, (hook, with_kwargs), prepend)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHook:
        """Call ``hook(module, args)`` before `forward`; it may replace the arguments.

        `with_kwargs` passes the keyword arguments too, and takes both; `prepend` calls it first.
        """
        return add_hook(self._forward_pre_hooks, (hook, with_kwargs), prepend)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHook:
        """Call ``hook(module, grad_input, grad_output)`` when a gradient has passed the module.

        Both are tuples of the gradients of positional arguments and results; the hook may give
        others for the arguments.
        """
        return add_hook(self._backward_hooks, hook, prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHook:
        """Call ``hook(module, grad_output)`` before a gradient passes; it may give another."""
        return add_hook(self._backward_pre_hooks, hook, prepend)

    # ---- attributes
    def __genesis_homes__(self) -> tuple[dict[str, Any], ...]:
        """Where attributes of certain kinds are, instead of among the plain ones."""
        return self._parameters, self._buffers, self._modules

    def __genesis_snapshot__(self) -> Callable[[], None]:
        """What gives the module the attributes that it has now."""
        homes = (self.__dict__, *self.__genesis_homes__(), self._transient)
        before: list[Any] = [home.copy() for home in homes]

        def restore() -> None:
            Changes.count += 1
            for home, content in zip(homes, before, strict=True):
                home.clear()
                home.update(content)

        return restore

    @atomic
    def __setattr__(self, name: str, value: Any) -> None:
        fields = self.__dict__
        if "_parameters" not in fields:
            raise AttributeError(
                f"{type(self).__name__}.__init__ must call super().__init__() before it sets "
                f"{name!r}"
            )
        if name in fields and fields[name] is value:
            return
        Changes.count += 1
        parameters, buffers, modules = self._parameters, self._buffers, self._modules
        if isinstance(value, Parameter):
            self._take_over(name, parameters)
            parameters[name] = value
        elif isinstance(value, Buffer):
            self.__dict__.pop(name, None)
            self.register_buffer(name, value, value.persistent)
        elif isinstance(value, Module):
            self._take_over(name, modules)
            modules[name] = value
        elif name in buffers and (value is None or isinstance(value, Tensor)):
            buffers[name] = value
        elif name in parameters:
            if value is not None:
                raise TypeError(
                    f"{name!r} of {type(self).__name__} is a Parameter; assign a Parameter or "
                    f"None, not {type(value).__name__}"
                )
            parameters[name] = None
        elif name in modules:
            modules[name] = value
        else:
            object.__setattr__(self, name, value)

    @atomic
    def _take_over(self, name: str, home: dict[str, Any]) -> None:
        """Make room for a name in one place by removing it from the others."""
        Changes.count += 1
        for other in (self.__dict__, self._parameters, self._buffers, self._modules):
            if other is not home:
                other.pop(name, None)

    @atomic
    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__
        try:
            return fields["_parameters"][name]
        except KeyError:
            pass
        for home in _HOMES:
            found = fields.get(home)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    @atomic
    def __delattr__(self, name: str) -> None:
        Changes.count += 1
        for home in (self._parameters, self._buffers, self._modules):
            if name in home:
                del home[name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """State that is not trained; saved with the parameters if `persistent`."""
        self._check_name("buffer", name, self._buffers)
        self._check_kind("buffer", name, tensor, Tensor)
        self._take_over(name, self._buffers)
        self._buffers[name] = tensor
        if persistent:
            self._transient.discard(name)
        else:
            self._transient.add(name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """A parameter by name; None keeps the place of one that is not used."""
        self._check_name("parameter", name, self._parameters)
        self._check_kind("parameter", name, param, Parameter)
        self._take_over(name, self._parameters)
        self._parameters[name] = param

    def add_module(self, name: str, module: Module | None) -> None:
        """A submodule by name."""
        self._check_name("module", name, self._modules)
        self._check_kind("module", name, module, Module)
        self._take_over(name, self._modules)
        self._modules[name] = module

    register_module = add_module

    def _check_name(self, kind: str, name: str, home: dict[str, Any]) -> None:
        if not isinstance(name, str) or "." in name or not name:
            raise ValueError(f"a {kind}'s name is a text without dots, not {name!r}")
        homes = (self._parameters, self._buffers, self._modules)
        taken = any(name in other for other in homes if other is not home)
        if taken or name in self.__dict__ or hasattr(type(self), name):
            raise KeyError(f"{type(self).__name__} has an attribute {name!r} already")

    def _check_kind(self, what: str, name: str, given: Any, kind: type) -> None:
        if given is not None and not isinstance(given, kind):
            raise TypeError(
                f"{what} {name!r} of {type(self).__name__} is a {kind.__name__} or None, not "
                f"{type(given).__name__}"
            )

    # ---- parts
    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once, with the names that lead there."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                inner = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(memo, inner, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct submodules."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The direct submodules."""
        for _, module in self.named_children():
            yield module

    def _named(
        self, home: str, prefix: str, recurse: bool, once: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        members = self.named_modules(prefix=prefix, remove_duplicate=once)
        for path, module in members if recurse else [(prefix, self)]:
            for name, x in getattr(module, home).items():
                if x is None or (once and id(x) in seen):
                    continue
                seen.add(id(x))
                yield (f"{path}.{name}" if path else name), x

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters with their names; one that is shared comes once."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters."""
        for _, x in self.named_parameters(recurse=recurse):
            yield x

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers with their names."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers."""
        for _, x in self.named_buffers(recurse=recurse):
            yield x

    def get_submodule(self, target: str) -> Module:
        """The module that a dotted name leads to."""
        module: Module = self
        for name in target.split(".") if target else ():
            found = module._modules.get(name)
            if found is None:
                raise AttributeError(
                    f"{type(module).__name__} has no submodule {name!r} ({target!r})"
                )
            module = found
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter that a dotted name leads to."""
        found: Parameter = self._found("parameter", target)
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer that a dotted name leads to."""
        found: Tensor = self._found("buffer", target)
        return found

    def _found(self, kind: str, target: str) -> Any:
        path, _, name = target.rpartition(".")
        found = getattr(self.get_submodule(path), f"_{kind}s").get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no {kind} {target!r}")
        return found

    # ---- settings
    def train(self: M, mode: bool = True) -> M:
        """Behave as in training: dropout drops, batch norm uses and updates statistics."""
        if not isinstance(mode, bool):
            raise ValueError(f"train: mode is {mode!r}; it must be True or False")
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Behave as in inference."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Set `requires_grad` of all parameters."""
        for x in self.parameters():
            x.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients of all parameters."""
        for x in self.parameters():
            if set_to_none or x.grad is None:
                x.grad = None
            else:
                x.grad.array.assign(0)

    def apply(self: M, function: Callable[[Module], Any]) -> M:
        """Call a function with every module, the inner ones first."""
        for module in self.children():
            module.apply(function)
        function(self)
        return self

    def to(self: M, *args: Any, **kwargs: Any) -> M:
        """Move parameters and buffers to a device, floating ones to a dtype; in place.

        The tensors stay the objects they are, so optimizers and tied weights keep them.
        """
        kwargs.pop("memory_format", None)
        kwargs.pop("non_blocking", None)
        wanted = [a for a in (*args, *kwargs.values()) if a is not None]
        for a in wanted:
            if isinstance(a, dtypes.DType) and not (a.is_float or a.is_complex):
                raise TypeError(f"{type(self).__name__}.to: parameters cannot be {a}")
        for x in (*self.parameters(), *self.buffers()):
            moved = x.detach()
            for target in wanted:
                is_device = isinstance(target, str)
                if is_device or x.dtype.is_float or x.dtype.is_complex:
                    moved = moved.to(target)
            if moved.array is not x.array:
                x.data = moved
                if x.grad is not None:
                    x.grad = x.grad.to(*wanted)
        return self

    def cpu(self: M) -> M:
        """Parameters and buffers on the CPU."""
        return self.to("cpu")

    def cuda(self: M, device: Any = 0) -> M:
        """Parameters and buffers on an NVIDIA GPU."""
        return self.to(device if isinstance(device, str) else f"cuda:{device or 0}")

    def share_memory(self: M) -> M:
        """Parameters and buffers in memory that processes forked from now on share."""
        for x in (*self.parameters(), *self.buffers()):
            x.share_memory_()
        return self

    def type(self: M, dst_type: Any) -> M:
        """Parameters and buffers in another dtype."""
        return self.to(dtypes.as_dtype(dst_type))

    def float(self: M) -> M:
        """Parameters and buffers as float32."""
        return self.to(dtypes.float32)

    def double(self: M) -> M:
        """Parameters and buffers as float64."""
        return self.to(dtypes.float64)

    def half(self: M) -> M:
        """Parameters and buffers as float16."""
        return self.to(dtypes.float16)

    def bfloat16(self: M) -> M:
        """Parameters and buffers as bfloat16."""
        return self.to(dtypes.bfloat16)

    # ---- saving
    def state_dict(self, prefix: str = "") -> OrderedDict[str, Tensor]:
        """Parameters and persistent buffers by name. The tensors share the module's memory."""
        return OrderedDict((name, x.detach()) for name, (_, _, x) in self._saved(prefix))

    def _saved(self, prefix: str = "") -> Iterator[tuple[str, tuple[Module, str, Any]]]:
        """By the names in a state dict: whose each tensor is, its name there, and the tensor."""
        for path, module in self.named_modules(prefix=prefix, remove_duplicate=False):
            for name, x in (*module._parameters.items(), *module._buffers.items()):
                if x is not None and name not in module._transient:
                    yield f"{path}.{name}" if path else name, (module, name, x)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Incompatible:
        """Copy the contents of a `state_dict` into this module.

        Names must agree exactly if `strict`; shapes must in any case. Nothing is changed unless
        everything fits. With `assign` the module takes over the tensors instead of copying.
        """
        own = dict(self._saved())
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        faults = []
        for name in own:
            if name in state_dict:
                mine, given = tuple(own[name][2].shape), tuple(state_dict[name].shape)
                if mine != given:
                    faults.append(f"{name}: the module has shape {mine}, the state dict {given}")
        for prefix, module in self.named_modules():
            fault = module.check_state(state_dict, f"{prefix}." if prefix else "")
            faults += [] if fault is None else [fault]
        if strict:
            faults += [f"missing: {_listed(missing)}"] * bool(missing)
            faults += [f"unexpected: {_listed(unexpected)}"] * bool(unexpected)
        if faults:
            raise RuntimeError(
                f"load_state_dict: the state dict does not fit {type(self).__name__}:\n  "
                + "\n  ".join(faults)
            )
        with no_grad():
            for name, (module, short, x) in own.items():
                if name not in state_dict:
                    continue
                given = state_dict[name]
                if not assign:
                    x.array.assign(given.array if isinstance(given, Tensor) else given)
                elif isinstance(x, Parameter):
                    setattr(module, short, Parameter(given, x.requires_grad))
                else:
                    module._buffers[short] = given
        return Incompatible(missing, unexpected)

    def check_state(self, state: Mapping[str, Any], prefix: str) -> str | None:
        """Why this module cannot take over its part of a state, besides names and shapes."""
        return None

    # ---- printing
    _shown: ClassVar[str] = ""  #: what to print of `self` besides its parts, for `str.format`

    def extra_repr(self) -> str:
        """What to print of this module besides its parts."""
        return self._shown.format(self=self)

    def _unusual(self, **usual: Any) -> str:
        """Settings that are not the usual ones, to print after others."""
        found = {name: getattr(self, name, value) for name, value in usual.items()}
        return "".join(f", {k}={x!r}" for k, x in found.items() if x != usual[k])

    def __repr__(self) -> str:
        count = sum(x.numel() for x in self.parameters())
        return f"{self._described()}{f'  # {count:,} parameters' * bool(count)}"

    def _described(self) -> str:
        extra = self.extra_repr()
        if not self._modules:
            return f"{type(self).__name__}({extra})"
        lines = [extra] if extra else []
        for name, module in self._modules.items():
            text = "None" if module is None else module._described()
            lines.append(f"({name}): " + text.replace("\n", "\n  "))
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"


class Family(Module):
    """Layers that differ in a few attributes of their classes, which stand in the class line."""

    def __init_subclass__(cls, **attributes: Any) -> None:
        super().__init_subclass__()
        for name, value in attributes.items():
            setattr(cls, name, value)


class Stateless(Module):
    """A layer that has settings and no parameters; it shows its settings."""

    def extra_repr(self) -> str:
        """The settings."""
        hidden = ("training", "inplace")
        shown = [k for k in self.__dict__ if not k.startswith("_") and k not in hidden]
        return ", ".join(f"{k}={getattr(self, k)!r}" for k in shown)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return shown + f" and {len(names) - 8} more" * (len(names) > 8)


__all__ = ["Buffer", "Module", "Parameter"]
