"""`Tensor`: an array that knows how it was computed.

A tensor holds an array (`NDArray`), and where it needs a gradient also its `creator` on the tape.
Every method is the function of the same name in `genesis.functional`, where its meaning and its
gradient are: `genesis.tensor.methods` lists them. What is here is what makes a tensor a tensor:
views and writes in place that the tape follows, gradients and Python's protocols.

A view shares the storage of its `base`. A write through a view is, to the tape, an operation on
the base: the base gets a new creator, and its other views look up theirs when they are next used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from mmap import mmap
from sys import getrefcount
from typing import Any

import numpy as np

from genesis import functional
from genesis.autograd import mode, tape
from genesis.autograd.tape import Creator, Hook
from genesis.functional import indexing
from genesis.functional.error_messages import WRONG, reword_index
from genesis.functional.function import install, plain
from genesis.functional.movement import Overwrite, View
from genesis.ndarray import NDArray, asarray, full
from genesis.ndarray import all as all_of
from genesis.ndarray import any as any_of
from genesis.ndarray.core.interop import from_numpy
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.primitive import kind_rank
from genesis.ndarray.core.realisation import backend_of
from genesis.ndarray.core.storage import Storage
from genesis.ndarray.core.value import Changes, Extended, Recorder, thread
from genesis.ndarray.ops.indexing import setitem
from genesis.ndarray.ops.scalar_overflow import nearest
from genesis.ndarray.tracing.object_introspection import opaque
from genesis.tensor.conversion_and_fill import Contents
from genesis.tensor.data_references import TEMPORARY, are_own
from genesis.tensor.hooks import RemovableHook, add_hook
from genesis.tensor.memory_formats import Size
from genesis.tensor.methods import Methods
from genesis.tensor.operators import Operators


class Tensor(Contents, Methods, Operators):
    """An array with a gradient. Make one with `tensor`, `zeros`, `randn`, ..

    >>> import genesis
    >>> x = genesis.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4., 6.])
    """

    __slots__ = (
        "accumulated", "array", "hooks", "slot", "_base", "_creator", "_generation", "_gradient",
        "_inference", "_seen", "_wanted", "__dict__", "__weakref__",
    )  # fmt: skip
    #: Attributes whose changes are counted; see `genesis.ndarray.tracing.guards`.
    __genesis_counted__ = frozenset(("_creator", "_wanted", "accumulated", "array", "hooks"))

    array: NDArray  #: the array itself
    slot: int  #: which of its creator's results this tensor is
    hooks: list[Hook]  #: to be shown a leaf's gradient
    accumulated: list[Hook]  #: to be shown the leaf after that

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """What NumPy's functions give: tensors, by the function of that name, where there is one.

        So an operator between an array of NumPy and a tensor is the tensor's.
        """
        function = getattr(functional, UFUNCS.get(ufunc.__name__, ufunc.__name__), None)
        if method == "__call__" and function is not None and not options:
            arrays = [Tensor(asarray(x)) if isinstance(x, np.ndarray) else x for x in inputs]
            return function(*arrays)
        plain_inputs = [np.asarray(x) if isinstance(x, Tensor) else x for x in inputs]
        result = getattr(ufunc, method)(*plain_inputs, **options)
        return Tensor(asarray(result)) if isinstance(result, np.ndarray | np.generic) else result

    def __init_subclass__(cls) -> None:
        Extended.by_users |= not cls.__module__.startswith("genesis.")

    def __init__(self, data: Any = (), requires_grad: bool = False, *sizes: int) -> None:
        if not isinstance(data, NDArray):
            data, requires_grad = _given_data(data, requires_grad, sizes)
        self.array = data
        self.slot = 0
        self.hooks = []
        self.accumulated = []
        self._base: Tensor | None = None
        self._inference = mode.state.inference
        self._creator: Creator | None = None
        self._generation = 0  # how often the tape has seen a write to this storage
        self._seen = 0  # the base's generation that `_creator` belongs to
        self._wanted = False
        self._gradient: Tensor | None = None
        if requires_grad:
            self.requires_grad = True

    @staticmethod
    def made(
        array: NDArray, creator: Creator | None, slot: int, inference: bool | None = None
    ) -> Tensor:
        """Result `slot` of an operation, on the tape if there is a creator."""
        x = Tensor.__new__(Tensor)  # every operation makes one: field by field is quicker
        x.array = array
        x.slot = slot
        x.hooks = []
        x.accumulated = []
        x._base = None
        x._inference = mode.state.inference if inference is None else inference
        x._creator = creator
        x._generation = x._seen = 0
        x._wanted = False
        x._gradient = None
        return x

    # ---- the tape
    @property
    def base(self) -> Tensor | None:
        """The tensor whose storage this one is a view of."""
        base = self._base
        while base is not None and base._base is not None:  # it has itself become a view since
            self._base = base = base._base
        return base

    @property
    def creator(self) -> Creator | None:
        """The operation that made this tensor; None for a leaf."""
        base = self.base
        if base is not None and base._generation != self._seen:
            # Somebody wrote to the storage: this is a view of what the base has become.
            with mode.enable_grad():
                fresh = View.apply(base, self._steps)
            self._seen = base._generation
            self._make_by(fresh)
        return self._creator

    grad_fn = creator

    def _is_made_in(self, recorder: Recorder) -> bool:
        """Whether the function that is recorded made it, as an operation on the tape."""
        return self._creator is not None and self._creator.number >= recorder.journal.began

    @property
    def _steps(self) -> Any:
        """The way from the base to this view."""
        assert self.base is not None
        return self.array.steps[len(self.base.array.steps) :]

    @property
    def is_leaf(self) -> bool:
        """Whether no operation on the tape made this tensor."""
        return self.creator is None

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are recorded for this tensor."""
        recorder = thread.recorder
        if recorder is not None and not self._is_made_in(recorder):
            recorder.journal.reading(self, "_wanted", self._wanted)
            recorder.journal.reading(self, "_creator", self._creator)
        return self._wanted or self.creator is not None

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if not self.is_leaf:
            if not wanted:
                raise RuntimeError(
                    "requires_grad can be changed for leaf tensors only; use x.detach() for a "
                    "tensor that is not part of the graph"
                )
            return
        if wanted and not (self.dtype.is_float or self.dtype.is_complex):
            raise RuntimeError(
                "requires_grad: only floating point and complex tensors can require gradients, "
                f"not {self.dtype}"
            )
        if wanted is not self._wanted:
            Changes.count += 1
        thread.listener.writing(self, "_wanted", wanted)
        self._wanted = wanted

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set `requires_grad` and give the tensor."""
        self.requires_grad = requires_grad
        return self

    @property
    def grad(self) -> Tensor | None:
        """The gradient that backward has accumulated."""
        thread.listener.reading(self, "_gradient", self._gradient)
        return self._gradient

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"grad must be a Tensor or None, not {type(value).__name__}")
        if value is not None and value.shape != self.shape:
            raise ValueError(
                f"a gradient of shape {tuple(value.shape)} for a tensor of {tuple(self.shape)}"
            )
        thread.listener.writing(self, "_gradient", value)
        self._gradient = value

    def set_gradient(self, gradient: Any) -> None:
        """Make an array or a tensor the gradient."""
        # In a storage of its own: rules may give the same array to several arguments. One that is
        # kept of what became a view in place has the shape from before.
        value = gradient if isinstance(gradient, Tensor) else Tensor(wrap(gradient.value))
        thread.listener.writing(self, "_gradient", value)
        self._gradient = value

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Add the gradients of this tensor to the `grad` of the leaves it was computed from."""
        wanted = [inputs] if isinstance(inputs, Tensor) else inputs
        tape.backward([self], [gradient], retain_graph, create_graph, wanted)

    def register_hook(self, hook: Hook) -> RemovableHook:
        """Call `hook` with this tensor's gradient whenever it is computed; it may replace it."""
        if not self.requires_grad:
            raise RuntimeError("register_hook: the tensor does not require a gradient")
        creator = self.creator
        if creator is None:
            return self._hooked("hooks", hook)
        hooks = creator.hooks_of(self.slot)
        hooks.append(hook)
        Changes.count += 1
        return RemovableHook(hooks, hook)

    def register_post_accumulate_grad_hook(self, hook: Hook) -> RemovableHook:
        """Call `hook` with this leaf whenever backward has added to its `grad`."""
        if not self.requires_grad or not self.is_leaf:
            raise RuntimeError(
                "register_post_accumulate_grad_hook: the tensor is no leaf that requires a gradient"
            )
        return self._hooked("accumulated", hook)

    def _hooked(self, kind: str, hook: Hook) -> RemovableHook:
        """Add to the hooks that a leaf has."""
        hooks: list[Hook] = getattr(self, kind)
        thread.listener.assume(self._all_hooks)
        thread.listener.reading(self, kind, hooks)
        return add_hook(hooks, hook)

    def _all_hooks(self) -> tuple[Hook, ...] | None:
        """What a gradient that arrives here is shown to."""
        return (*self.hooks, *self.accumulated) or None

    def retain_grad(self) -> None:
        """Keep the gradient in `grad` though this is no leaf."""
        if not self.requires_grad:
            raise RuntimeError("retain_grad: the tensor does not require a gradient")
        creator = self.creator
        if creator is not None:
            creator.retain(self.slot, self)

    @property
    def retains_grad(self) -> bool:
        """Whether the gradient is kept though this is no leaf."""
        return self.creator is not None and _keeps_gradient(self)

    def detach(self) -> Tensor:
        """The same storage, apart from the graph."""
        return Tensor(_array_of(self))

    def detach_(self) -> Tensor:
        """Take this tensor out of the graph."""
        if self.base is not None:
            raise RuntimeError("detach_: a view cannot leave the graph of its base; use detach")
        Changes.count += 1
        self._creator, self._wanted = None, False
        return self

    @property
    def data(self) -> Tensor:
        """The contents, apart from the graph. Assigning replaces them."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        temporary = getrefcount(value) == TEMPORARY and thread.recorder is None
        if temporary and are_own(self.array, value.array):
            # ``p.data = p.data * c``: nobody can tell that from a write, which recordings follow.
            self.array.storage.write(value.array.storage.actual)
            return
        thread.listener.writing(self, "array", value.array)
        Changes.count += 1
        self.array = value.array

    # ---- writing
    def overwrite(self, new: Any, made_for_it: bool = False) -> Tensor:
        """Write an expression of this shape; the tape sees it as an operation on the base.

        What was `made_for_it` nobody else has: what made that has made this tensor now.
        """
        _array_of(self)
        fresh = self._given(new)
        if not self._records(fresh):
            self.array.assign(fresh.array)
            return self
        if thread.recorder is not None:
            for x in (self, self.base):
                for name in ("_creator", "slot", "_generation", "_seen") if x is not None else ():
                    thread.listener.writing(x, name, getattr(x, name))
        if fresh.dtype is not self.dtype:
            fresh = functional.cast(fresh, self.dtype)
        if fresh.shape != self.shape:
            fresh = functional.expand(fresh, self.shape)
        if fresh.creator is None or (fresh is new and not made_for_it):
            # A leaf stays one, and what others have keeps gradients of its own.
            fresh = Overwrite.apply(self, fresh, ())
        base = self.base
        if base is None:
            self.array.assign(fresh.array)
            self._generation += 1
            self._now_made_by(fresh)
        else:
            updated = Overwrite.apply(base, fresh, self._steps)
            self.array.assign(fresh.array)
            base._now_made_by(updated)
            base._generation += 1
            if _keeps_gradient(self):
                self.creator  # noqa: B018 - it is a view of what the base is now
        return self

    def _now_made_by(self, fresh: Tensor) -> None:
        """Take over the creator of what was written; a gradient that is kept is the new one's."""
        thread.listener.writing(self, "_creator", fresh.creator)
        Changes.count += 1
        self._make_by(fresh)

    def _make_by(self, fresh: Tensor) -> None:
        before, slot = self._creator, self.slot
        keeps = _keeps_gradient(self)
        self._creator, self.slot = fresh._creator, fresh.slot
        if keeps:
            del before.retained[slot]  # type: ignore[union-attr]
            self.retain_grad()

    def _given(self, new: Any) -> Tensor:
        """What is to be written, as a tensor that broadcasts to this one."""
        if isinstance(new, complex) and not self.dtype.is_complex:
            raise RuntimeError(f"the complex number {new} cannot be written to {self.dtype}")
        if isinstance(new, bool | int | float | complex):
            return Tensor(full((), new, self.dtype, self.device))
        fresh = new if isinstance(new, Tensor) else Tensor(new)
        if fresh.device != self.device:
            fresh = functional.to_device(fresh, self.device)
        extra = fresh.ndim - self.ndim
        if extra > 0 and all(n == 1 for n in fresh.shape[:extra]):
            fresh = functional.reshape(fresh, fresh.shape[extra:])
        return fresh

    def _records(self, fresh: Tensor) -> bool:
        """Whether a write is part of the graph; an error if it must not be."""
        if not mode.state.enabled or not (fresh.requires_grad or self.requires_grad):
            return False
        base = self if self.base is None else self.base
        for x, what in ((self, "a leaf tensor"), (base, "a view of a leaf tensor")):
            if x._wanted and x.is_leaf:
                raise RuntimeError(
                    f"{what} that requires a gradient is written in place; do it under "
                    "no_grad(), or write to a clone"
                )
        return True

    def share_memory_(self) -> Tensor:
        """Have the elements in memory that processes forked from now on share.

        They see what is written to it by `numpy()`; a write to the tensor gives it other memory.
        """
        if not backend_of(self.device).has_host_memory or not self.is_leaf:
            raise RuntimeError("share_memory_: only leaves in the host's memory can be shared")
        contents = self.detach().numpy()
        pages = mmap(-1, max(contents.nbytes, 1))
        there = np.frombuffer(pages, contents.dtype, contents.size).reshape(contents.shape)
        there[...] = contents
        self.data = Tensor(from_numpy(there, self.device))
        return self

    def resized(self, name: str, shape: Any) -> None:
        """Give a tensor that is to be written as a whole another shape."""
        if self.base is not None or self.requires_grad:
            raise RuntimeError(f"{name}: out is a view, or needs a gradient; its shape stays")
        self.data = Tensor(full(tuple(shape), 0, self.dtype, self.device))

    def _replace(self, name: str, result: Any) -> Tensor:
        """The end of an operation in place: its result becomes this tensor's contents."""
        if result.shape != self.shape:
            raise RuntimeError(
                f"{name}: the result's shape {tuple(result.shape)} is not that of the tensor, "
                f"{tuple(self.shape)}"
            )
        if kind_rank(result.dtype) > kind_rank(self.dtype):
            raise RuntimeError(
                f"{name}: a result of {result.dtype} cannot be written to a tensor of {self.dtype}"
            )
        return self.overwrite(result, made_for_it=True)

    def _become(self, name: str, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Turn into a view of what this tensor is now."""
        if self._wanted and self.is_leaf and mode.state.enabled:
            raise RuntimeError(f"{name}: a leaf tensor that requires a gradient keeps its shape")
        _array_of(self)
        base = self.base
        if base is None:  # what other views of this tensor will find in its place
            base = Tensor(self.array)
            base._creator, base.slot, base._generation = self._creator, self.slot, self._generation
        view = function(base if self._base is None else self)
        if view.array.storage is not self.array.storage:
            raise RuntimeError(f"{name}: the result is no view of the tensor's elements")
        if view is not self and view is not base:
            new = {"array": view.array, "_base": base, "_seen": base._generation}
            for name, value in new.items():
                thread.listener.writing(self, name, value)
                setattr(self, name, value)
            Changes.count += 1
            if view._creator is not self._creator:  # a gradient that is kept stays the old one's
                thread.listener.writing(self, "_creator", view.creator)
                self._creator, self.slot = view._creator, view.slot
        return self

    # ---- indexing
    def __getitem__(self, key: Any) -> Tensor:
        try:
            found: Tensor = indexing.getitem(self, key)
        except WRONG as error:
            reword_index(error)
            raise
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        _array_of(self)
        if key is False:  # nothing is chosen
            return
        parsed = indexing.parse(self, key)
        view: Tensor = parsed.view
        fresh = view._given(nearest(value, view.dtype))
        if view.array.steps == self.array.steps:  # a view of everything is the tensor itself
            view = self
        if parsed.arrays:
            view.overwrite(indexing.put_at(parsed, fresh), made_for_it=True)
        elif self._records(fresh):
            view.overwrite(fresh)
        else:
            self._set(parsed.key, fresh)

    def _set(self, key: Any, fresh: Tensor) -> None:
        try:
            setitem(self.array, key, fresh.array)
        except WRONG as error:
            reword_index(error)
            raise

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("a tensor without dimensions cannot be iterated over")
        return iter(functional.unbind(self, 0))

    def __reversed__(self) -> Any:
        return functional.flip(self, 0) if self.shape else self

    def __contains__(self, x: Any) -> bool:
        return bool(plain(any_of, self == x))

    # ---- comparison
    def is_nonzero(self) -> bool:
        """Whether the only element is not zero."""
        return bool(self)

    def equal(self, other: Tensor) -> bool:
        """Whether shape and all elements are those of another tensor."""
        return tuple(self.shape) == tuple(other.shape) and bool(plain(all_of, self == other))

    def __repr__(self) -> str:
        from genesis.tensor.printing import show

        return show(self)

    # ---- copies
    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not self.is_leaf:
            raise RuntimeError(
                "only leaf tensors can be deep-copied; use x.detach() or x.clone() of this one"
            )
        storage = self.array.storage
        if id(storage) not in memo:  # views of one storage stay views of one storage
            memo[id(storage)] = Storage(storage.value)
        array = NDArray(memo[id(storage)], self.array.steps)
        memo[id(self)] = copied = _of_kind(type(self), array, self.requires_grad)
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        copied.__dict__.update(deepcopy(self.__dict__, memo))
        return copied

    def __copy__(self) -> Tensor:
        array = NDArray(self.array.storage, self.array.steps)
        copied = _of_kind(type(self), array, self.requires_grad)
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_kind, (type(self), self.array, self.requires_grad), self.__dict__ or None


def _of_kind(kind: type[Tensor], array: NDArray, wanted: bool) -> Tensor:
    """A tensor of a class whose constructor may take other arguments than `Tensor`'s."""
    made = kind.__new__(kind)
    Tensor.__init__(made, array, wanted)
    return made


#: NumPy's functions that have another name here.
UFUNCS = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "bitwise_not": "bitwise_not",
    "conjugate": "conj", "divide": "true_divide", "equal": "eq", "greater": "gt",
    "greater_equal": "ge", "invert": "bitwise_not", "less": "lt", "less_equal": "le",
    "negative": "neg", "not_equal": "ne", "power": "pow", "rint": "round",
}  # fmt: skip


def _given_data(data: Any, requires_grad: Any, sizes: tuple[int, ...]) -> tuple[NDArray, bool]:
    """What `Tensor` is given that is no array: numbers, as float32, or the sizes of a new one."""
    if type(data) is int or isinstance(data, Size):
        more = () if isinstance(requires_grad, bool) else (requires_grad, *sizes)
        shape = tuple(data) if isinstance(data, Size) else (data, *more)
        return full(shape, 0, "float32"), requires_grad is True
    if isinstance(data, list | tuple):
        return asarray(np.asarray(data, np.float32)), requires_grad
    return asarray(data), requires_grad


def _keeps_gradient(x: Tensor) -> bool:
    """Whether a tensor keeps its gradient though it is no leaf, by what has made it so far."""
    kept = None if x._creator is None else x._creator.retained.get(x.slot)
    return kept is not None and kept() is x


def _array_of(x: Tensor) -> NDArray:
    thread.listener.reading(x, "array", x.array)
    return x.array


install(Tensor, tape.record, Tensor, _array_of)
opaque(NDArray, Tensor, Storage, Creator)

__all__ = ["Tensor"]
