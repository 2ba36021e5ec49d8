"""Operators that were called before: their graphs are copied, rather than built anew.

A convolution is two dozen values, each with its shape rules, and a model calls the same operators
on tensors of the same forms in every turn. So what a kernel builds for arguments of certain forms
is recorded, on stand-ins, when they are met for the second time. From then on a call is one block
of the graph (`genesis.ndarray.core.subgraph_copies`), and how its results lie in memory is known.
The values are those that the kernel would have built, and so are programs and bits.

A number is part of a form. Those that are others in every turn, such as a learning rate under a
schedule, are never met again, and cost no more than looking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from genesis.ndarray.core import primitive
from genesis.ndarray.core.device import on_device
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.storage import Steps
from genesis.ndarray.core.subgraph_copies import NotASubgraph, Subgraph
from genesis.ndarray.core.value import Checked, Value, apart, thread
from genesis.torch.convert import TORCH_DTYPES
from genesis.torch.device import storage_contents as contents
from genesis.torch.device.operator_variants import OperatorVariant
from genesis.torch.device.strides import Sizes

#: Forms that are known of one operator, at most.
MOST = 1 << 10

Arguments = tuple[list[Any], dict[str, Any]]


class Copies:
    """What a kernel builds, by the forms of its arguments."""

    def __init__(
        self,
        kernel: Callable[..., Any],
        arguments: Callable[..., Arguments],
        strides: Callable[..., Sequence[Sizes | None]],
    ) -> None:
        """`arguments` makes of a call's arguments those of the kernel.

        `strides` says of a call's arguments and results how these lie in memory, if not row-major.
        """
        self.kernel, self.arguments, self.strides = kernel, arguments, strides
        self.known: dict[bytes | None, RecordedOperator | None] = {}
        self._met: set[int] = set()

    def find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[RecordedOperator, list[Any]] | None:
        """What is known of arguments like these, and the tensors among them; None: nothing."""
        inputs: list[Any] = []
        form = contents.runtime.form(args, kwargs, inputs)
        recorded = self.known.get(form)
        if recorded is None:
            if form is None or form in self.known or not inputs:
                return None
            recorded = self._record(form, args, kwargs, inputs)
        if recorded is None or thread.eager or thread.recorder is not None:
            return None
        return recorded, inputs

    def _record(
        self, form: bytes, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Any]
    ) -> RecordedOperator | None:
        if len(self.known) >= MOST:
            self.known.clear()
        mark = hash(form)
        if mark not in self._met:
            if len(self._met) >= MOST:
                self._met.clear()
            self._met.add(mark)
            return None
        recorded = None
        with suppress(Exception):  # whatever it is, the kernel has it as well
            recorded = RecordedOperator(self, args, kwargs, inputs)
        self.known[form] = recorded
        return recorded


class RecordedOperator:
    """What a kernel builds for arguments of certain forms."""

    __slots__ = ("graph", "native", "_make", "_results")

    def __init__(
        self, copies: Copies, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Any]
    ) -> None:
        """`tensors` are those among the arguments, as `Runtime.form` gives them."""
        with apart():
            given, named = copies.arguments(args, kwargs)
            inputs: list[Value] = []
            remaining = iter(tensors)
            given = [_stand_in(x, remaining, inputs) for x in given]
            named = {name: _stand_in(x, remaining, inputs) for name, x in named.items()}
            if len(inputs) != len(tensors):
                raise NotASubgraph("a tensor is no argument of the kernel")
            with on_device(inputs[0].device):
                results = copies.kernel(*given, **named)
            roots: list[NDArray] = []
            shape = _shape(results, roots)
            graph = Subgraph(inputs, [x.value for x in roots], is_step=True)
            if thread.written:
                raise NotASubgraph("something is written")
        if any(made.kind is Checked for made in graph.made):
            raise NotASubgraph("whether an index is checked depends on what is known of it")
        self.graph = graph
        places = iter(graph.places)
        #: What the kernel gives, with positions among the values in place of arrays.
        self._results = _filled(shape, lambda _: next(places))
        #: What a tensor of each is made with.
        self._make: dict[int, tuple[Any, ...]] = {}
        layouts = copies.strides(args, kwargs, roots)
        for place, x, strides in zip(graph.places, roots, layouts, strict=True):
            dtype, index = TORCH_DTYPES[x.dtype], contents.index_of(x.device)
            self._make[place] = x.shape, strides, dtype, index
        #: The same for `Runtime.remember`; None if the results are no tensors side by side.
        self.native = self._native(self._results)

    def values(self, inputs: list[Any]) -> list[Value]:
        """One more call: its values, the inputs first."""
        values = [
            x.storage.actual if type(x) is NDArray else contents.read(x).value for x in inputs
        ]
        return self.graph.copy(values, values[0].device)

    def arrays(self, inputs: list[Any]) -> Any:
        """One more call: what the kernel would give."""
        values = self.values(inputs)
        results = self._results
        if type(results) is int:
            return wrap(values[results])
        return _filled(results, lambda place: wrap(values[place]))

    def tensors(self, inputs: list[Any]) -> Any:
        """One more call: what the operator gives."""
        values = self.values(inputs)
        results, make, create = self._results, self._make, contents.runtime.create
        if type(results) is int:
            return create(wrap(values[results]), *make[results])
        return _filled(results, lambda place: create(wrap(values[place]), *make[place]))

    def native_writing(self, form: OperatorVariant, targets: list[Any]) -> tuple[Any, ...] | None:
        """For `Runtime.remember`, of an operator that writes results to targets.

        None if a target is no whole contents, or is given a result of another dtype or shape.
        """
        results = self._results if form.fresh or len(targets) > 1 else (self._results,)
        fresh, written = tuple(results[: form.fresh]), _flat(results[form.fresh :])
        returned = form.returns - form.fresh
        arguments = [place for place, _ in form.written]
        if returned not in (0, 1) or (returned and arguments != [0]) or None in arguments:
            return None
        tensors = [x for t in targets for x in (t if isinstance(t, list | tuple) else [t])]
        for tensor, place in zip(tensors, written, strict=True):
            target = contents.runtime.find(tensor)
            if target is None or place is None:
                return None
            if self._make[place][0] != target.shape or self._make[place][2] is not tensor.dtype:
                return None
        return self._native(fresh, written, arguments, 0 if returned else None)

    def _native(
        self,
        results: Any,
        written: Sequence[Any] = (),
        arguments: Sequence[Any] = (),
        returned: int | None = None,
    ) -> tuple[Any, ...] | None:
        graph = self.graph
        places = results if type(results) is tuple else (results,)
        if not graph.plain or graph.checks is not None:
            return None
        if not all(place is None or type(place) is int for place in places):
            return None
        single = graph.single
        alone = None if single is None else (single.op, single.attr, single.inputs, single.several)
        made = [None if place is None else (place, *self._make[place]) for place in places]
        return (
            graph, graph.form, graph.height, alone, graph.parts, made,
            list(written), list(arguments), returned,
        )  # fmt: skip


def _flat(results: Any) -> list[int | None]:
    if isinstance(results, list | tuple):
        return [place for part in results for place in _flat(part)]
    return [results]


def _stand_in(x: Any, tensors: Iterator[Any], inputs: list[Value]) -> Any:
    if isinstance(x, list):
        return [_stand_in(y, tensors, inputs) for y in x]
    if not isinstance(x, NDArray):
        return x
    tensor = next(tensors)
    seen: Any = x
    steps: Steps = ()
    if isinstance(tensor, NDArray):  # what is seen, perhaps through steps, which are part of it
        if x.storage is not tensor.storage:
            raise NotASubgraph("a tensor is seen in a way that has no steps")
        seen, steps = tensor, x.steps
    value = primitive.parameter(seen.dtype, seen.shape, seen.device)
    inputs.append(value)
    return wrap(value).seen_through(*steps)


def _shape(results: Any, arrays: list[NDArray]) -> Any:
    """Results with zeros in place of arrays, which are added to a list."""
    if isinstance(results, NDArray):
        arrays.append(results)
        return 0
    if isinstance(results, list | tuple):
        return type(results)([_shape(x, arrays) for x in results])
    if results is not None:
        raise NotASubgraph("a result is no array")
    return None


def _filled(shape: Any, fill: Callable[[int], Any]) -> Any:
    if type(shape) is int:
        return fill(shape)
    return None if shape is None else type(shape)([_filled(x, fill) for x in shape])
