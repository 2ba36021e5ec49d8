"""`Optimizer`: groups of parameters with their settings, and state for each parameter.

An optimizer is one rule, `update`, for one parameter, its gradient and its state. A step applies
it to all parameters; nothing is computed before somebody asks, so that the whole step is one
program, and in a function under `genesis.jit` it is part of that function's program.

Numbers that a schedule changes (`lr` above all) lie in memory: a recorded program reads them when
it runs. They look like numbers all the same: ``group["lr"] = 0.1``. So do the counts of steps.
Parameters that have always been updated together share one count, a *clock* that ticks once per
step; when only some of them have a gradient, those get a clock of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import wraps
from inspect import signature
from numbers import Real
from typing import Any, ClassVar, ParamSpec
from weakref import ref

import numpy as np

from genesis import ndarray as nd
from genesis.autograd import enable_grad, no_grad
from genesis.ir.dtype import DType, float64
from genesis.ndarray import NDArray
from genesis.ndarray.core.value import CaptureError, Changes, thread, unrecorded, unwatched
from genesis.ndarray.tracing.counting_dict import Counted
from genesis.ndarray.tracing.jit import jit
from genesis.tensor.hooks import RemovableHook, add_hook
from genesis.tensor.tensor import Tensor

P = ParamSpec("P")
State = dict[str, Any]
#: What to optimize: tensors, pairs of a name and a tensor, or groups with settings of their own.
Params = Iterable[Any]
#: Numbers that follow from the settings of a group and the count of steps.
Rule = Callable[["ParameterGroup", NDArray], tuple[NDArray, ...]]

#: Settings that schedules change.
SCHEDULED = ("lr", "betas", "momentum", "weight_decay")

#: What a copy of an optimizer makes for itself.
_UNCOPIED: dict[str, Any] = {"_forms": {}, "_pre_hooks": [], "_post_hooks": []}
_EXECUTION = ("capturable", "differentiable", "foreach", "fused")


class Members(list[Tensor]):
    """The parameters of a group, as a list that a recording need not keep alive."""

    __slots__ = ("__weakref__",)


class ParameterGroup(dict[str, Any]):
    """Parameters and their settings. Those that schedules change are kept in memory, too."""

    def __init__(self, settings: Mapping[str, Any], device: str) -> None:
        super().__init__(settings)
        if "params" in settings:
            super().__setitem__("params", Members(settings["params"]))
        self._device = device
        self._own = [name for name in settings if name != "params"]
        self._arrays: dict[str, tuple[NDArray, ...]] = {}
        self._once: dict[Any, tuple[NDArray, ...]] = {}
        for name in SCHEDULED:
            if name in settings:
                numbers = _numbers(settings[name])
                self._arrays[name] = tuple(nd.array(x, float64, device) for x in numbers)
        #: What `update` may decide by: all settings, but of those in memory only which are 0.
        self.form = self._formed()

    def __reduce__(self) -> tuple[Any, ...]:
        return ParameterGroup, (dict(self), self._device)

    def __setitem__(self, name: str, value: Any) -> None:
        thread.listener.setting(self, name, value, ParameterGroup._note)
        self._note(name, value)
        if name in self._arrays:
            for array, x in zip(self._arrays[name], _numbers(value), strict=True):
                array.assign(nd.array(x, float64, array.device))

    def _note(self, name: str, value: Any) -> None:
        """Take a setting for another; what lies in memory is written apart."""
        super().__setitem__(name, Members(value) if name == "params" else value)
        form = self._formed()
        if form != self.form:  # the same object says at a glance that nothing has changed
            self.form = form
            Changes.count += 1

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Change several settings."""
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def scalar(self, name: str) -> NDArray:
        """A setting that schedules change, as a float64 array that follows it."""
        return self._arrays[name][0]

    def scalars(self, name: str) -> tuple[NDArray, ...]:
        """The members of a setting such as `betas`, as `scalar` gives a single one."""
        return self._arrays[name]

    def once(self, rule: Rule, clock: NDArray, dtype: DType) -> tuple[NDArray, ...]:
        """``rule(group, clock)`` in a dtype: built for one parameter of a step and used for all."""
        key = rule, id(clock), dtype
        found = self._once.get(key)
        if found is None:
            found = self._once[key] = tuple(x.astype(dtype) for x in rule(self, clock))
        return found

    def forget(self) -> None:
        """A step is over; what was built `once` is for that step."""
        self._once.clear()

    def _formed(self) -> tuple[Any, ...]:
        return tuple(
            tuple(x == 0 for x in _numbers(self[name])) if name in self._arrays else self[name]
            for name in self._own
        )


class _States(Counted[Tensor]):
    """The state of each parameter: empty where there is none, as optimizers of users expect."""

    __slots__ = ()

    def __missing__(self, p: Tensor) -> Counted[str]:
        found: Counted[str] = Counted()
        self[p] = found
        return found


class Optimizer:
    """The base of all optimizers. A subclass gives its defaults to `__init__`, and `update`.

    Where all arguments of its constructor are settings, `settings` makes one of the signature.

    >>> import genesis
    >>> class Descent(genesis.optim.Optimizer):
    ...     def __init__(self, params, lr):
    ...         super().__init__(params, {"lr": lr})
    ...     def update(self, p, grad, state, group):
    ...         p.assign(p - group.scalar("lr") * grad)
    >>> x = genesis.tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> Descent([x], lr=0.25).step()
    >>> x.tolist()
    [0.5, 1.0]
    """

    #: Arrays like the parameter that its state begins with, all zeros.
    buffers: ClassVar[tuple[str, ...]] = ()
    #: Whether the rule, or others, count the updates of a parameter.
    counted: ClassVar[bool] = True

    def __init__(self, params: Params, defaults: Mapping[str, Any]) -> None:
        self.defaults = dict(defaults)
        self.param_groups: list[ParameterGroup] = []
        self._state = _States()
        self._forms: dict[Tensor, Any] = {}  # the settings a parameter's state was made for
        self._pre_hooks: list[Callable[..., Any]] = []
        self._post_hooks: list[Callable[..., Any]] = []
        self._clock_changes = 0  # how often parameters got another clock
        self._maker = None if thread.recorder is None else ref(thread.recorder)  # what records it
        if isinstance(params, Tensor):
            raise TypeError(f"{self._name}: give a list of parameters, not one tensor")
        listed = list(params)
        if not listed:
            raise ValueError(f"{self._name}: there are no parameters to optimize")
        for group in listed if isinstance(listed[0], dict) else [{"params": listed}]:
            self.add_param_group(group)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Optimize further parameters, with settings of their own where they differ."""
        name = self._name
        if "params" not in param_group:
            raise ValueError(f"{name}: a group needs 'params', and has {sorted(param_group)}")
        params = param_group["params"]
        listed = [params] if isinstance(params, Tensor) else list(params)
        names = tuple(p[0] for p in listed if isinstance(p, tuple))
        listed = [p[1] if isinstance(p, tuple) else p for p in listed]
        known = {id(p) for group in self.param_groups for p in group["params"]}
        for p in listed:
            if not isinstance(p, Tensor):
                raise TypeError(f"{name}: parameters are tensors, not {type(p).__name__}")
            if not p.is_leaf:
                raise ValueError(f"{name}: a parameter must be a leaf tensor")
            if id(p) in known:
                raise ValueError(f"{name}: a parameter appears twice")
            known.add(id(p))
        settings = {**self.defaults, **param_group, "params": listed}
        if names:
            settings["param_names"] = names
        self.check(settings)
        # Before the first step, whose program is then that of all steps that follow.
        nd.realize(*[p.array for p in listed])
        self.param_groups.append(ParameterGroup(settings, listed[0].device if listed else "cpu"))
        Changes.count += 1

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse settings that make no sense; a subclass adds its own."""
        for name in ("lr", "eps", "weight_decay", "momentum", "alpha", "lr_decay"):
            value = settings.get(name, 0)
            if isinstance(value, int | float) and not value >= 0:
                raise ValueError(f"{self._name}: {name} is {value}; it must not be negative")
        for name in SCHEDULED:
            for x in _numbers(settings.get(name, ())):
                if not isinstance(x, Real):
                    raise TypeError(f"{self._name}: {name} is a {type(x).__name__}, not a number")
        for beta in _numbers(settings.get("betas", ())):
            if not 0 <= beta < 1:
                raise ValueError(f"{self._name}: a beta is {beta}; it must be in [0, 1)")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients of all parameters."""
        unwatched(self._zero_grad, set_to_none)

    def _zero_grad(self, set_to_none: bool) -> None:
        for p in self._parameters():
            if set_to_none or p.grad is None:
                p.grad = None
            else:
                p.grad.array.assign(0)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient.

        A `closure` computes the loss and its gradients anew; its result is returned.
        """
        args: tuple[Any, ...] = () if closure is None else (closure,)
        thread.listener.assume(self._all_hooks)
        for hook in self._pre_hooks:
            changed = hook(self, args, {})
            if changed is not None:
                args = changed[0]
        with no_grad():
            loss = self._step(args[0] if args else None)
        for hook in self._post_hooks:
            hook(self, args, {})
        return loss

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        if thread.recorder is None:
            # Together: a first step, which is recorded, would have a program for each.
            groups = [group["params"] for group in self.param_groups]
            nd.realize(*[p.grad.array for params in groups for p in params if p.grad is not None])
        self._update_all()
        return loss

    @jit
    def _update_all(self) -> None:
        """One program, however many parameters there are, and recorded once.

        In a function that is recorded itself it is part of that function's program.
        """
        own = type(self).__module__.startswith("genesis.optim.")
        unwatched(self._write_all) if own else self._write_all()

    def _write_all(self) -> None:
        updated = [
            (p, grad.array, group)
            for group in self._groups()
            for p in group["params"]
            if (grad := p.grad) is not None
        ]
        for p, _, _ in updated:
            thread.listener.reading(p, "array", p.array)
        self._prepare([(p, group) for p, _, group in updated])
        self._tick([self.state[p] for p, _, _ in updated])
        try:
            for p, grad, group in updated:
                self._update(p, grad, group)
        finally:
            for group in self.param_groups:
                group.forget()
        thread.listener.assume(self._form)

    def _update(self, p: Tensor, grad: NDArray, group: ParameterGroup) -> None:
        if p.array.dtype.is_complex:  # a parameter of both parts
            parts = nd.view_as_real(p.array)
            self.update(parts, nd.view_as_real(grad), self.state[p], group)
            p.array.assign(nd.view_as_complex(parts))
        else:
            self.update(p.array, grad, self.state[p], group)

    def written(self) -> dict[tuple[Tensor, str], NDArray]:
        """What a step writes: parameters that have a gradient, and the arrays of their state."""
        updated = [
            (p, group) for group in self.param_groups for p in group["params"] if p.grad is not None
        ]
        self._prepare(updated)
        found: dict[tuple[Tensor, str], NDArray] = {}
        for p, _ in updated:
            found[p, ""] = p.array
            found.update({(p, n): x for n, x in self.state[p].items() if isinstance(x, NDArray)})
        return found

    def prepare(self) -> None:
        """Make the state of all parameters now, which their first update would make."""
        groups = self.param_groups
        self._prepare([(p, group) for group in groups for p in group["params"]])

    def _form(self) -> tuple[Any, ...]:
        """What a recorded step takes for granted about this optimizer."""
        held = tuple(id(x) for state in self._state.values() for x in state.values())
        return self._clock_changes, held, *(group.form for group in self.param_groups)

    @property
    def state(self) -> dict[Tensor, State]:
        """What is kept for every parameter that was updated: arrays by name."""
        return self._state

    @state.setter
    def state(self, given: Mapping[Tensor, State]) -> None:
        Changes.count += 1
        self._state = _States({p: Counted(state) for p, state in given.items()})

    def _prepare(self, updated: Iterable[tuple[Tensor, ParameterGroup]]) -> None:
        """Make the state that parameters lack. It is there before a step, and so not recorded.

        Unless the optimizer itself is made by the function that is recorded.
        """
        inside = self._maker is not None and self._maker() is thread.recorder
        if thread.recorder is not None and not inside:
            thread.listener.if_it_fails(self._snapshot())
        with nullcontext() if inside else unrecorded():
            made: list[NDArray] = []
            clock = None
            for p, group in updated:
                if self._forms.get(p) is group.form and p in self.state:
                    continue
                self._forms[p] = group.form
                state = self._state.setdefault(p, Counted())
                like = nd.view_as_real(p.array) if p.array.dtype.is_complex else p.array
                for name, array in self.initial(like, group).items():
                    if name not in state:
                        state[name] = array
                        made.append(array)
                if "step" not in state and self.counts(group):
                    if clock is None:
                        clock = nd.array(0, float64, p.device)
                    state["step"] = clock
            if not inside:
                nd.realize(*made)

    def _snapshot(self) -> Callable[[], None]:
        """What gives all parameters the state that they have now, or none."""
        changes, forms = self._clock_changes, dict(self._forms)
        states = [(p, state, dict(state)) for p, state in self.state.items()]

        def restore() -> None:
            self._clock_changes, self._forms = changes, forms
            Changes.count += 1
            self.state.clear()
            for p, state, content in states:
                state.clear()
                state.update(content)
                self._state[p] = state

        return restore

    def _tick(self, states: Iterable[State]) -> None:
        """Count a step for these states, each clock once."""
        shared = Counter(id(s["step"]) for s in self.state.values() if "step" in s)
        clocks: dict[int, list[State]] = {}
        for state in states:
            if "step" in state:
                clocks.setdefault(id(state["step"]), []).append(state)
        for together in clocks.values():
            clock = together[0]["step"]
            if len(together) < shared[id(clock)]:
                if thread.recorder is not None and not clock.value.is_realised:
                    raise CaptureError(
                        f"{self._name}: a recorded function makes several steps with gradients for "
                        "different parameters; record one step at a time"
                    )
                with unrecorded():
                    clock = nd.array(clock).realize()
                self._clock_changes += 1
                Changes.count += 1
                for state in together:
                    state["step"] = clock
            clock.assign(clock + 1)

    def initial(self, p: NDArray, group: ParameterGroup) -> State:
        """The state of a parameter before its first update: arrays by name."""
        return {name: nd.zeros_like(p) for name in self.buffers}

    def counts(self, group: ParameterGroup) -> bool:
        """Whether the state has ``"step"``, the number of updates, for the rule or for others."""
        return self.counted

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
        """Write to a parameter and its state; see the subclass."""
        raise NotImplementedError(f"{self._name} defines no update")

    def _parameters(self) -> Iterator[Tensor]:
        for group in self._groups():
            yield from group["params"]

    def _groups(self) -> list[ParameterGroup]:
        """The groups; how many parameters they have is read."""
        for group in self.param_groups:
            thread.listener.reading_length(group["params"])
        return self.param_groups

    # ---- hooks
    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHook:
        """Call ``hook(optimizer, args, kwargs)`` before every step; it may replace both."""
        return self._hooked("_pre_hooks", hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHook:
        """Call ``hook(optimizer, args, kwargs)`` after every step."""
        return self._hooked("_post_hooks", hook)

    def _hooked(self, kind: str, hook: Callable[..., Any]) -> RemovableHook:
        hooks = getattr(self, kind)
        thread.listener.assume(self._all_hooks)
        thread.listener.reading(self, kind, hooks)
        return add_hook(hooks, hook)

    def _all_hooks(self) -> tuple[Any, ...] | None:
        """What is called before a step, and after."""
        before, after = tuple(self._pre_hooks), tuple(self._post_hooks)
        return (before, after) if before or after else None

    # ---- saving
    def state_dict(self) -> dict[str, Any]:
        """State and settings, with parameters by number. The tensors share the state's memory."""
        numbers = {p: k for k, p in enumerate(self._parameters())}
        groups = [
            {**group, "params": [numbers[p] for p in group["params"]]}
            for group in self.param_groups
        ]
        state = {
            numbers[p]: {name: _shown(x) for name, x in s.items()} for p, s in self.state.items()
        }
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over state and settings that `state_dict` gave, for the same parameters.

        Arrays may be tensors, arrays or NumPy arrays. PyTorch's settings of how to execute a step
        are left out: there is one way here.
        """
        if not {"param_groups", "state"} <= {*state_dict}:
            raise ValueError(
                f"load_state_dict: needs 'param_groups' and 'state', got {sorted(state_dict)}"
            )
        groups = state_dict["param_groups"]
        sizes = [len(g["params"]) for g in groups]
        own = [len(g["params"]) for g in self.param_groups]
        if sizes != own:
            raise ValueError(
                f"load_state_dict: the state has groups of {sizes} parameters, this {self._name} "
                f"of {own}"
            )
        numbers: list[int] = []
        for group, given in zip(self.param_groups, groups, strict=True):
            numbers += given["params"]
            for name, value in given.items():
                if name != "params" and name not in _EXECUTION:
                    group[name] = tuple(value) if isinstance(value, list) else value
        places = dict(zip(numbers, self._parameters(), strict=True))
        home = {p: group for group in self.param_groups for p in group["params"]}
        entries = [(places[int(number)], given) for number, given in state_dict["state"].items()]
        if self._steps_itself:
            for p, given in entries:
                self._state[p] = Counted({name: _copied(x) for name, x in given.items()})
            Changes.count += 1
            return
        self._prepare([(p, home[p]) for p, _ in entries])
        clocks: dict[float, NDArray] = {}
        for p, given in entries:
            state = self.state[p]
            for name, value in self.loaded(given, home[p]).items():
                if name == "step":
                    count = float(value.item() if hasattr(value, "item") else value)
                    if count not in clocks:
                        clocks[count] = nd.array(count, float64, p.device)
                    state[name] = clocks[count]
                elif isinstance(state.get(name), NDArray):
                    self._take(p, state[name], name, nd.asarray(_kept(value)))
                else:
                    state[name] = _kept(value)
        self._clock_changes += 1
        Changes.count += 1

    def __getstate__(self) -> dict[str, Any]:
        """What `copy` and `pickle` keep, with the parameters themselves. Hooks are left out."""
        shown: dict[int, Tensor] = {}  # states that share an array go on sharing it
        state = {
            p: {name: _shown(x, shown) for name, x in s.items()} for p, s in self.state.items()
        }
        return {**self.__dict__, **_UNCOPIED, "_state": state}

    def __setstate__(self, found: Mapping[str, Any]) -> None:
        self.__dict__.update(found)
        self._forms, self._pre_hooks, self._post_hooks = {}, [], []
        state = found["_state"]
        if not self._steps_itself:
            state = {p: {name: _own(x) for name, x in s.items()} for p, s in state.items()}
        self.state = state

    def loaded(self, given: Mapping[str, Any], group: ParameterGroup) -> Mapping[str, Any]:
        """The state of one parameter as it is to be loaded; a subclass may complete it."""
        return {name: value for name, value in given.items() if value is not None}

    def _take(self, p: Tensor, array: NDArray, name: str, content: NDArray) -> None:
        if content.dtype.is_complex and not array.dtype.is_complex:
            content = nd.view_as_real(content)
        if content.shape != array.shape and content.size != 1:
            raise ValueError(
                f"load_state_dict: {name!r} of a parameter of shape {tuple(p.shape)} has shape "
                f"{tuple(content.shape)}, {self._name} keeps {tuple(array.shape)}"
            )
        array.assign(content.reshape(array.shape) if content.size == array.size else content)

    @property
    def _steps_itself(self) -> bool:
        """Whether a subclass has no rule but a step of its own, and so a state of its own."""
        kind = type(self)
        return kind.update is Optimizer.update and not kind.step.__module__.startswith("genesis.")

    @property
    def _name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        lines = []
        for k, group in enumerate(self.param_groups):
            settings = ", ".join(f"{n}={v}" for n, v in group.items() if n != "params")
            lines.append(f"  group {k}: {len(group['params'])} parameters, {settings}")
        return "\n".join([f"{self._name}(", *lines, ")"])


def settings(constructor: Callable[P, None]) -> Callable[P, None]:
    """A constructor whose parameters, after `self` and `params`, are the settings.

    >>> class Descent(Optimizer):
    ...     @settings
    ...     def __init__(self, params, lr=0.1, *, maximize=False): ...
    >>> Descent([Tensor(nd.ones(2))], 0.5).defaults
    {'lr': 0.5, 'maximize': False}
    """

    @wraps(constructor)
    def made(*args: P.args, **kwargs: P.kwargs) -> None:
        if kwargs.get("differentiable"):
            raise NotImplementedError(
                f"{type(args[0]).__name__}: differentiable=True is not supported: no gradient "
                "goes through a step"
            )
        for name in _EXECUTION:  # how PyTorch is to execute a step, which is one program here
            kwargs.pop(name, None)
        constructor(*args, **kwargs)  # it does nothing, but says which argument does not fit
        bound = signature(constructor).bind(*args, **kwargs)
        bound.apply_defaults()
        self, params, *_ = bound.args
        chosen = {k: v for k, v in bound.arguments.items() if k not in ("self", "params")}
        Optimizer.__init__(self, params, chosen)

    return made


def followed(p: NDArray, grad: NDArray, group: ParameterGroup) -> NDArray:
    """The gradient to follow downhill: negated to maximize, with the weight decay's part."""
    if group["maximize"]:
        grad = -grad
    if group["weight_decay"]:
        grad = grad + p * group.scalar("weight_decay")
    return grad


def _shown(x: Any, shown: dict[int, Tensor] | None = None) -> Any:
    """State as `state_dict` gives it: with tensors for arrays, the same one for the same array."""
    if isinstance(x, list):
        return [_shown(y, shown) for y in x]
    if not isinstance(x, NDArray):
        return x
    return Tensor(x) if shown is None else shown.setdefault(id(x), Tensor(x))


def _own(x: Any) -> Any:
    """State with arrays for the tensors of a copy, which nobody else has."""
    if isinstance(x, list):
        return [_own(y) for y in x]
    return x.array if isinstance(x, Tensor) else x


def _kept(x: Any) -> Any:
    """State as an optimizer keeps it: with arrays, its own, for tensors."""
    if isinstance(x, list):
        return [_kept(y) for y in x]
    if isinstance(x, Tensor):
        x = x.array
    return nd.array(x) if isinstance(x, NDArray | np.ndarray) else x


def _copied(x: Any) -> Any:
    """State that nobody else writes."""
    if isinstance(x, list | tuple):
        return type(x)(map(_copied, x))
    return x.detach().clone() if isinstance(x, Tensor) else x


def _numbers(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)
