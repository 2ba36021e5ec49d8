"""`save`: what a module computes as an ONNX file.

The module is called once on stand-ins for its inputs, and arrays are lazy: what comes back is the
graph of everything it computed, in the few operations that Genesis has. Each of them is written as
a node or a few (`_WRITERS`), so whatever can be computed can be written, and nothing needs to know
about layers. Products that are products of matrices, and convolutions, are written as such; weights
are initialisers under the names they have in the module.

Sizes that are to be open are symbols while the module is called; what is computed from them is
computed in the file, too.
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from genesis import nn, no_grad
from genesis.content_store import replace_file
from genesis.ir import dtype as dtypes
from genesis.ir import ops
from genesis.ir.node import topological
from genesis.ir.shape_guards import Assumptions
from genesis.ir.size import Dim, Quotient, Size, Symbol
from genesis.ndarray.core import value as values
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import parameter
from genesis.ndarray.ops.convolution import whole_convolutions
from genesis.onnx.dtypes import code_of
from genesis.onnx.export_modules_as_functions import (
    DOMAIN,
    LocalFunctions,
    ModuleCall,
    calls_by_result,
    noted,
)
from genesis.onnx.export_quantized import Mark, marked
from genesis.tensor.tensor import Tensor

OPSET = 20
_LEAST = 13  # in which axes of Squeeze and ReduceSum became inputs
_AXES_ARE_INPUTS = 18  # of all other reductions
_WITH_FUNCTIONS = 8  # the version of the format that has them


class CannotExport(NotImplementedError):
    """Something that a module computes and that cannot be written to a file yet."""


def save(
    module: Callable[..., Any],
    example: Any,
    path: str | os.PathLike[str],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
    opset: int | None = None,
    quantized: str | None = None,
    functions: bool | Collection[type] = False,
) -> None:
    """Write what a module, or a function of tensors, computes of inputs like `example`.

    `example` is a tensor, a tuple of tensors, or a dictionary of them by name. With
    ``dynamic_axes={"x": {0: "batch"}}`` an axis may have any size; axes with the same name have the
    same size. `opset` is 13 or later, and chosen if not given. The module is written as it is: call
    `eval` first, if it is to be used. Layers that `genesis.compress` has quantised are written as
    what they compute or, with `quantized` "MatMulNBits" or "QDQ", with their integers and scales.
    With ``functions=True`` every nested module is a function of the file, modules that differ in
    their weights only the same one; with classes of modules, those are.

    >>> import genesis, tempfile
    >>> from genesis import nn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(nn.Linear(2, 3), genesis.ones(4, 2), f"{folder}/linear.onnx")
    ...     [x.shape for x in genesis.onnx.load(f"{folder}/linear.onnx")(genesis.ones(4, 2))]
    [genesis.Size([4, 3])]
    """
    proto = to_proto(
        module, example, input_names=input_names, output_names=output_names,
        dynamic_axes=dynamic_axes, opset=opset, quantized=quantized, functions=functions,
    )  # fmt: skip
    replace_file(Path(path), proto.SerializeToString())


def to_proto(
    module: Callable[..., Any],
    example: Any,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
    opset: int | None = None,
    quantized: str | None = None,
    functions: bool | Collection[type] = False,
) -> Any:
    """As `save`, as a message of the `onnx` package that `onnx.checker` has accepted."""
    given = _by_name(example, input_names)
    known = _named_leaves(module)
    shapes, found = _open_sizes(given, dynamic_axes or {})
    assumed = Assumptions(found) if found else None
    inputs = {name: parameter(x.dtype, shapes[name], x.array.device) for name, x in given.items()}
    tensors = [Tensor(wrap(value)) for value in inputs.values()]
    keywords = isinstance(example, Mapping)
    with (
        no_grad(), values.apart(), _unchanged(module), assumed or nullcontext(),
        marked(module, quantized) as marks,
        noted(module, functions, marks) as calls, whole_convolutions(),
    ):  # fmt: skip
        try:
            results = _listed(
                module(**dict(zip(inputs, tensors, strict=True))) if keywords else module(*tensors)
            )
        except values.CaptureError as error:
            raise CannotExport(
                "onnx.save: the module looks at the contents of its inputs, to choose a branch or "
                "a size, and a file holds what it computes whatever they are"
            ) from error
        roots = [(x.array if isinstance(x, Tensor) else x).value for x in results]
    if assumed is not None and assumed.pinned:
        raise CannotExport(
            f"onnx.save: the sizes {sorted(assumed.pinned)} cannot be open: the module computes "
            "something else for every value of them"
        )
    names = list(output_names or _numbered("output", len(roots)))
    if len(names) != len(roots):
        raise ValueError(f"onnx.save: {len(names)} output names for {len(roots)} outputs")
    return _Writer(inputs, known, opset, marks=marks, calls=calls).model(roots, names)


def _by_name(example: Any, names: Sequence[str] | None) -> dict[str, Any]:
    if isinstance(example, Mapping):
        return dict(example)
    listed = list(example) if isinstance(example, tuple | list) else [example]
    chosen = list(names or (["input"] if len(listed) == 1 else _numbered("input", len(listed))))
    if len(chosen) != len(listed):
        raise ValueError(f"onnx.save: {len(chosen)} input names for {len(listed)} inputs")
    return dict(zip(chosen, listed, strict=True))


def _numbered(word: str, count: int) -> list[str]:
    return [word] if count == 1 else [f"{word}_{k}" for k in range(count)]


def _open_sizes(
    given: Mapping[str, Any], axes: Mapping[str, Mapping[int, str]]
) -> tuple[dict[str, tuple[Dim, ...]], dict[str, int]]:
    """The shapes of the inputs with symbols for open sizes, and the values those have now."""
    unknown = [name for name in axes if name not in given]
    if unknown:
        raise ValueError(f"onnx.save: dynamic_axes for {unknown}; the inputs are {list(given)}")
    shapes: dict[str, tuple[Dim, ...]] = {}
    found: dict[str, int] = {}
    for name, x in given.items():
        shape: list[Dim] = list(x.shape)
        for axis, symbol in axes.get(name, {}).items():
            if found.setdefault(symbol, x.shape[axis]) != x.shape[axis]:
                raise ValueError(f"onnx.save: {symbol!r} is {found[symbol]} and {x.shape[axis]}")
            shape[axis] = Size.symbol(symbol, low=1)
        shapes[name] = tuple(shape)
    return shapes, found


@contextmanager
def _unchanged(module: Any) -> Iterator[None]:
    """Put back what the module writes to of its own, such as statistics: they are of stand-ins."""
    own = isinstance(module, nn.Module)
    everything = [*module.parameters(), *module.buffers()] if own else []
    storages = [x.array.storage for x in everything]
    before = [storage.actual for storage in storages]
    try:
        yield
    finally:
        for storage, value in zip(storages, before, strict=True):
            if storage.actual is not value:
                storage.replace(value)


def _named_leaves(module: Any) -> dict[Any, str]:
    """The values of parameters and buffers, with their names."""
    if not isinstance(module, nn.Module):
        return {}
    everything = [*module.named_parameters(), *module.named_buffers()]
    return {x.array.realize().value: name for name, x in everything}


def _listed(result: Any) -> list[Any]:
    """The tensors of a result, in order."""
    if isinstance(result, Tensor | NDArray):
        return [result]
    if isinstance(result, Mapping):
        return [x for item in result.values() for x in _listed(item)]
    if isinstance(result, tuple | list):
        return [x for item in result for x in _listed(item)]
    if result is None:
        return []
    raise TypeError(f"onnx.save: the module gives a {type(result).__name__}, not tensors")


class _Writer:
    """Writes vertices of a graph, values or the nodes of a loop's body, as ONNX nodes."""

    def __init__(
        self, inputs: Mapping[str, Any], known: Mapping[Any, str], opset: int | None,
        outer: _Writer | None = None, marks: Mapping[Any, Mark] | None = None,
        calls: Collection[ModuleCall] = (),
    ) -> None:  # fmt: skip
        self.inputs, self.known, self.opset = inputs, known, opset
        self.marks: Mapping[Any, Mark] = marks or {}
        self.calls = calls_by_result(calls)
        self.functions: LocalFunctions = LocalFunctions() if outer is None else outer.functions
        self.domains: dict[str, int] = {} if outer is None else outer.domains
        self.nodes: list[Any] = []
        self.initializers: list[Any] = [] if outer is None else outer.initializers
        self.names: dict[Any, str] = {value: name for name, value in inputs.items()}
        self.constants: dict[Any, str] = {} if outer is None else outer.constants
        self.taken: set[str] = set(inputs) | set(known.values()) if outer is None else outer.taken
        self.symbols: dict[str, str] = {} if outer is None else outer.symbols
        #: The opset that is needed.
        self.least: list[int] = [_LEAST] if outer is None else outer.least

    def needs(self, opset: int) -> None:
        """Use operators that came with an opset."""
        self.least[0] = max(self.least[0], opset)

    # ---- parts of a file
    def name(self, word: str) -> str:
        """A name that is not taken."""
        k = len(self.taken)
        while f"{word}_{k}" in self.taken:
            k += 1
        self.taken.add(f"{word}_{k}")
        return f"{word}_{k}"

    def emit(self, kind: str, *inputs: str, **options: Any) -> str:
        """A node with one result."""
        result = self.name(kind.lower())
        self.nodes.append(helper.make_node(kind, list(inputs), [result], **options))
        return result

    def constant(self, array: Any, name: str | None = None) -> str:
        """An initialiser."""
        array = np.asarray(array)
        key = (str(array.dtype), array.shape, array.tobytes()) if array.size <= 64 else None
        if name is None and key in self.constants:
            return self.constants[key]
        chosen = name or self.name("constant")
        self.initializers.append(
            numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), chosen)
        )
        if key is not None and name is None:
            self.constants[key] = chosen
        return chosen

    def number(self, value: Any, dtype: Any) -> str:
        """A constant of shape ()."""
        with np.errstate(all="ignore"):
            return self.constant(np.array(dtype.cast(value)).astype(dtype.numpy))

    def integers(self, listed: Sequence[int]) -> str:
        """A constant list of integers."""
        return self.constant(np.array(listed, np.int64))

    def size(self, extent: Dim) -> str:
        """A size as a list of one integer."""
        if not isinstance(extent, Size):
            return self.integers([extent])
        total = None
        for monomial, factor in extent.terms:
            part = self.integers([factor])
            for atom in monomial:
                part = self.emit("Mul", part, self._atom(atom))
            total = part if total is None else self.emit("Add", total, part)
        assert total is not None
        return total

    def _atom(self, atom: Symbol | Quotient) -> str:
        if isinstance(atom, Quotient):
            return self.emit("Div", self.size(atom.size), self.integers([atom.divisor]))
        return self.symbols[atom.name]

    def shape(self, extents: Sequence[Dim]) -> str:
        """A shape as a list of integers."""
        if all(isinstance(n, int) for n in extents):
            return self.integers(extents)  # type: ignore[arg-type]
        return self.emit("Concat", *map(self.size, extents), axis=0)

    def reshape(self, x: str, extents: Sequence[Dim]) -> str:
        """A tensor in another shape."""
        return self.emit("Reshape", x, self.shape(extents))

    # ---- the whole
    def model(self, roots: Sequence[Any], outputs: Sequence[str]) -> Any:
        """The file."""
        self._declare_symbols()
        self.write(roots)
        for root, name in zip(roots, outputs, strict=True):
            self.nodes.append(helper.make_node("Identity", [self.names[root]], [name]))
        graph = helper.make_graph(
            self.nodes, "genesis", [_info(n, v) for n, v in self.inputs.items()],
            [_info(n, v) for n, v in zip(outputs, roots, strict=True)], self.initializers,
        )  # fmt: skip
        version = self.opset or max(OPSET, self.least[0])
        if version < self.least[0]:
            raise CannotExport(
                f"onnx.save: opset {version} lacks what is needed; take {self.least[0]} or later"
            )
        _require_known(self.nodes, version)
        versions = {"": version, **self.domains}
        imports = [helper.make_opsetid(*d) for d in versions.items()]
        least = helper.find_min_ir_version_for(imports[:1])
        functions = self.functions.protos(versions)
        model = helper.make_model(
            graph, opset_imports=imports, producer_name="genesis", functions=functions,
            ir_version=max(least, _WITH_FUNCTIONS) if functions else least,
        )  # fmt: skip
        try:
            onnx.checker.check_model(model, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise CannotExport(f"onnx.save: not a model of opset {version}: {error}") from None
        return model

    def _declare_symbols(self) -> None:
        for name, value in self.inputs.items():
            for axis, extent in enumerate(value.shape):
                if isinstance(extent, Size):
                    ((monomial, _),) = extent.terms
                    (symbol,) = monomial
                    assert isinstance(symbol, Symbol)
                    if symbol.name not in self.symbols:
                        whole = self.emit("Shape", name)
                        self.symbols[symbol.name] = self.emit(
                            "Gather", whole, self.integers([axis])
                        )

    def write(self, roots: Sequence[Any]) -> None:
        """Write everything that roots are computed from."""
        for v in topological(roots, self._needed):
            if v not in self.names:
                self.names[v] = self._written(v)

    def _needed(self, v: Any) -> Sequence[Any]:
        """What must be written before a value."""
        if v in self.names:
            return ()
        if v in self.marks:
            return (self.marks[v].given,)
        return self.calls[v].arguments if v in self.calls else v.inputs

    def _called(self, call: ModuleCall) -> None:
        """Write the call of a function."""
        given = call.names()
        body = _Writer(
            {n: v for v, n in given.items()}, {}, self.opset, marks=self.marks, calls=call.inner
        )
        body.functions, body.domains, body.least = self.functions, self.domains, self.least
        body.symbols = {name: body.name(f"size_{name}") for name in self.symbols}
        body.write(call.results)
        outputs = tuple(_numbered("output", len(call.results)))
        ends = [
            helper.make_node("Identity", [body.names[v]], [n])
            for v, n in zip(call.results, outputs, strict=True)
        ]
        constants = [helper.make_node("Constant", [], [x.name], value=x) for x in body.initializers]
        nodes = (*constants, *body.nodes, *ends)
        read = {name for n in body.nodes for name in _read(n)}
        sizes = [name for name in self.symbols if body.symbols[name] in read]
        inputs = (*given.values(), *(body.symbols[name] for name in sizes))
        f = self.functions.named(type(call.module).__name__, inputs, outputs, nodes)
        self.domains[DOMAIN] = 1
        arguments = [self.names[v] for v in given] + [self.symbols[name] for name in sizes]
        results = [self.name(f.name.lower()) for _ in call.results]
        self.nodes.append(helper.make_node(f.name, arguments, results, domain=DOMAIN))
        self.names.update(zip(call.results, results, strict=True))

    def _written(self, v: Any) -> str:
        if v in self.calls:
            self._called(self.calls[v])
            return self.names[v]
        if getattr(v, "memory", None) is not None:
            return self.constant(_in_parts(wrap(v).numpy()), self.known.get(v))
        if v in self.marks:
            mark = self.marks[v]
            return mark.write(self, self.names[mark.given], mark.weight)
        writer = _WRITERS.get(v.op)
        if v.dtype.is_complex and v.op not in _OF_COMPLEX:
            writer = None
        if writer is None:
            raise CannotExport(f"onnx.save: {v.op.name} cannot be written to ONNX files yet ({v})")
        return writer(self, v, *(self.names[i] for i in v.inputs))


def _require_known(nodes: Iterable[Any], version: int) -> None:
    """Refuse an opset that has not all operators of a graph in the form in which they are used."""
    for node in nodes:
        if node.domain:
            continue
        _require_known((n for a in node.attribute for n in a.g.node), version)
        newest = defs.get_schema(node.op_type).since_version
        try:
            schema = defs.get_schema(node.op_type, version)
        except defs.SchemaError:
            schema = None
        used = {a.name for a in node.attribute}
        if schema is None or len(node.input) > schema.max_input or used - set(schema.attributes):
            raise CannotExport(
                f"onnx.save: opset {version} lacks {node.op_type} as it is needed; "
                f"take {newest} or leave the choice"
            )


def _read(n: Any) -> Iterator[str]:
    """The names that a node reads, or a node in it."""
    yield from n.input
    for attribute in n.attribute:
        for inner in attribute.g.node:
            yield from _read(inner)


def _in_parts(x: Any) -> Any:
    """An array whose complex numbers are a last axis of two."""
    return np.stack([x.real, x.imag], -1) if x.dtype.kind == "c" else x


def _info(name: str, v: Any) -> Any:
    if v.dtype.is_complex:
        raise CannotExport(f"onnx.save: {name} is complex; give its real and imaginary parts")
    shape = [n if isinstance(n, int) else str(n) for n in v.shape]
    return helper.make_tensor_value_info(name, code_of(v.dtype), shape)


# ---- leaves


def _scalar(w: _Writer, v: Any) -> str:
    return w.number(v.attr, v.dtype)


def _iota(w: _Writer, v: Any) -> str:
    (count,) = v.shape
    if isinstance(count, int):
        return w.constant(np.arange(count))
    end = w.emit("Squeeze", w.size(count))
    return w.emit("Range", w.number(0, dtypes.int64), end, w.number(1, dtypes.int64))


def _size_value(w: _Writer, v: Any) -> str:
    return w.emit("Squeeze", w.size(v.attr))


# ---- movement


def _parts(v: Any) -> tuple[int, ...]:
    """What comes after the shape: an axis of two, if numbers are complex."""
    return (2,) if v.dtype.is_complex else ()


def _reshape(w: _Writer, v: Any, x: str) -> str:
    return x if v.shape == v.inputs[0].shape else w.reshape(x, (*v.shape, *_parts(v)))


def _permute(w: _Writer, v: Any, x: str) -> str:
    return w.emit("Transpose", x, perm=[*v.attr, *(len(v.shape) for _ in _parts(v))])


def _expand(w: _Writer, v: Any, x: str) -> str:
    return w.emit("Expand", x, w.shape((*v.shape, *_parts(v))))


def _slice(w: _Writer, v: Any, x: str) -> str:
    shape = v.inputs[0].shape
    axes = [a for a, n in enumerate(v.shape) if v.attr[a] != (0, 1) or n != shape[a]]
    if not axes:
        return x
    starts, ends = [], []
    for a in axes:
        start, step = v.attr[a]
        end = start + step * v.shape[a]
        if isinstance(end, int) and end < 0:
            end = -(1 << 62)  # before the first element
        starts.append(start)
        ends.append(end)
    steps = w.integers([v.attr[a][1] for a in axes])
    return w.emit("Slice", x, w.shape(starts), w.shape(ends), w.integers(axes), steps)


def _pad(w: _Writer, v: Any, x: str, fill: str) -> str:
    shape = list(v.inputs[0].shape)
    for a, (_, step) in enumerate(v.attr):
        if step != 1:  # zeros between elements: as further columns, of which the last are dropped
            wide = [*shape[: a + 1], step, *shape[a + 1 :]]
            apart = w.reshape(x, [*shape[: a + 1], 1, *shape[a + 1 :]])
            pads = [0] * (2 * len(wide))
            pads[len(wide) + a + 1] = step - 1
            x = w.emit("Pad", apart, w.integers(pads), fill)
            shape[a] = shape[a] * step
            x = w.reshape(x, shape)
            shape[a] = shape[a] - (step - 1)
            x = w.emit("Slice", x, w.integers([0]), w.shape([shape[a]]), w.integers([a]))
    low = [first for first, _ in v.attr]
    high = [n - m - first for n, m, first in zip(v.shape, shape, low, strict=True)]
    if all(n == 0 for n in (*low, *high)):
        return x
    return w.emit("Pad", x, w.shape([*low, *high]), fill)


def _window(w: _Writer, v: Any, x: str) -> str:
    axis, stride, dilation = v.attr
    count, size = v.shape[axis], v.shape[-1]
    taps = np.arange(size)[None] * dilation
    if isinstance(count, int):
        where = w.constant(np.arange(count)[:, None] * stride + taps)
    else:
        end = w.emit("Squeeze", w.size(count))
        starts = w.emit("Range", w.number(0, dtypes.int64), end, w.number(1, dtypes.int64))
        column = w.emit("Mul", w.emit("Unsqueeze", starts, w.integers([1])), w.integers([stride]))
        where = w.emit("Add", column, w.constant(taps))
    y = w.emit("Gather", x, where, axis=axis)
    rank = len(v.shape)
    order = [k for k in range(rank) if k != axis + 1] + [axis + 1]
    return w.emit("Transpose", y, perm=order)


# ---- elements


def _plain(kind: str) -> Callable[..., str]:
    return lambda w, v, *inputs: w.emit(kind, *inputs)


def _by_type(for_bools: str, for_others: str) -> Callable[..., str]:
    def written(w: _Writer, v: Any, *inputs: str) -> str:
        of_bools = v.inputs[0].dtype is dtypes.bool_
        return w.emit(for_bools if of_bools else for_others, *inputs)

    return written


def _trunc(w: _Writer, v: Any, x: str) -> str:
    return w.emit("Mul", w.emit("Sign", x), w.emit("Floor", w.emit("Abs", x)))


def _exp2(w: _Writer, v: Any, x: str) -> str:
    return w.emit("Pow", w.number(2, v.dtype), x)


def _tan(w: _Writer, v: Any, x: str) -> str:
    """Runtimes have a tangent of 32 bits only."""
    double = v.dtype is dtypes.float64
    return w.emit("Div", w.emit("Sin", x), w.emit("Cos", x)) if double else w.emit("Tan", x)


def _log2(w: _Writer, v: Any, x: str) -> str:
    return w.emit("Div", w.emit("Log", x), w.number(float(np.log(2)), v.dtype))


def _cast(w: _Writer, v: Any, x: str) -> str:
    return w.emit("Cast", x, to=code_of(v.dtype))


def _bitcast(w: _Writer, v: Any, x: str) -> str:
    w.needs(26)
    return w.emit("BitCast", x, to=code_of(v.dtype))


def _floordiv(w: _Writer, v: Any, a: str, b: str) -> str:
    return w.emit("Div", w.emit("Sub", a, w.emit("Mod", a, b)), b)


def _fmod(w: _Writer, v: Any, a: str, b: str) -> str:
    return w.emit("Mod", a, b, fmod=1)


def _ne(w: _Writer, v: Any, a: str, b: str) -> str:
    return w.emit("Not", w.emit("Equal", a, b))


def _compared(kind: str) -> Callable[..., str]:
    def written(w: _Writer, v: Any, a: str, b: str) -> str:
        if v.inputs[0].dtype is dtypes.bool_:
            a, b = (w.emit("Cast", x, to=TensorProto.INT32) for x in (a, b))
        return w.emit(kind, a, b)

    return written


def _multiplied(w: _Writer, v: Any, a: str, b: str) -> str:
    return w.emit("And" if v.dtype is dtypes.bool_ else "Mul", a, b)


def _added(w: _Writer, v: Any, a: str, b: str) -> str:
    return w.emit("Or" if v.dtype is dtypes.bool_ else "Add", a, b)


def _where(w: _Writer, v: Any, condition: str, a: str, b: str) -> str:
    if v.dtype is not dtypes.bool_:
        return w.emit("Where", condition, a, b)
    other = w.emit("And", w.emit("Not", condition), b)  # runtimes do not choose between bools
    return w.emit("Or", w.emit("And", condition, a), other)


def _fma(w: _Writer, v: Any, a: str, b: str, c: str) -> str:
    return w.emit("Add", w.emit("Mul", a, b), c)


def _shifted(direction: str) -> Callable[..., str]:
    def written(w: _Writer, v: Any, a: str, b: str) -> str:
        if v.dtype.kind == "uint":
            return w.emit("BitShift", a, b, direction=direction)
        if direction == "RIGHT":  # rounds down, as a division by a power of two
            return _floordiv(w, v, a, w.emit("Pow", w.number(2, v.dtype), b))
        return w.emit("Mul", a, w.emit("Pow", w.number(2, v.dtype), b))

    return written


def _atan2(w: _Writer, v: Any, y: str, x: str) -> str:
    zero = w.number(0, v.dtype)
    half = w.emit("Atan", w.emit("Div", y, x))
    pi = w.number(float(np.pi), v.dtype)
    turned = w.emit(
        "Where", w.emit("Less", y, zero), w.emit("Sub", half, pi), w.emit("Add", half, pi)
    )
    result = w.emit("Where", w.emit("Less", x, zero), turned, half)
    both = w.emit("And", w.emit("Equal", x, zero), w.emit("Equal", y, zero))
    return w.emit("Where", both, zero, result)


# ---- reductions and products


def _reduced(kind: str) -> Callable[..., str]:
    def written(w: _Writer, v: Any, x: str) -> str:
        narrow = v.dtype in (dtypes.bool_, dtypes.int8, dtypes.int16, dtypes.uint8, dtypes.uint16)
        if narrow:
            x = w.emit("Cast", x, to=TensorProto.INT32)
        if kind != "ReduceSum" and w.opset is not None and w.opset < _AXES_ARE_INPUTS:
            y = w.emit(kind, x, axes=list(v.attr), keepdims=0)
        else:
            y = w.emit(kind, x, w.integers(list(v.attr)), keepdims=0)
        return w.emit("Cast", y, to=code_of(v.dtype)) if narrow else y

    return written


def _contract(w: _Writer, v: Any, x: str, y: str) -> str:
    left, right, out = v.attr
    found = _convolution(w, v, y)
    if found is not None:
        return found
    batch = [k for k in left if k in right and k in out]
    summed = [k for k in left if k in right and k not in out]
    rows, columns = (
        [k for k in side if k not in other] for side, other in ((left, right), (right, left))
    )
    plain = all(k in out for k in (*rows, *columns)) and len(set(left)) == len(left)
    if plain and len(rows) == len(columns) == len(summed) == 1:
        a = _ordered(w, x, left, [*batch, *rows, *summed])
        b = _ordered(w, y, right, [*batch, *summed, *columns])
        return _ordered(w, w.emit("MatMul", a, b), [*batch, *rows, *columns], list(out))
    letters = dict(zip(dict.fromkeys((*left, *right)), string.ascii_letters, strict=False))
    a, b, c = ("".join(letters[k] for k in labels) for labels in v.attr)
    return w.emit("Einsum", x, y, equation=f"{a},{b}->{c}")


def _ordered(w: _Writer, x: str, labels: Sequence[Any], wanted: Sequence[Any]) -> str:
    order = [list(labels).index(k) for k in wanted]
    return x if order == list(range(len(order))) else w.emit("Transpose", x, perm=order)


def _convolution(w: _Writer, v: Any, weight: str) -> str | None:
    """A convolution, if that is what a product is: see `ndarray.ops.convolution`."""
    left, right, out = (list(labels) for labels in v.attr)
    base, steps, gaps = v.inputs[0], list[int](), list[int]()
    while base.op is ops.WINDOW:
        _, stride, dilation = base.attr
        steps.insert(0, stride)
        gaps.insert(0, dilation)
        base = base.inputs[0]
    rank = len(steps)
    if not rank or len(base.shape) != 3 + rank or len(left) != 3 + 2 * rank:
        return None
    n, g, c, at, taps = left[0], left[1], left[2], left[3 : 3 + rank], left[3 + rank :]
    if len(right) != 3 + rank or right[0] != g or right[2:] != [c, *taps]:
        return None
    if out != [n, g, right[1], *at] or not _in_order(v.inputs[0], rank):
        return None
    groups, each, channels = v.inputs[1].shape[:3]
    # One window has no stride: whatever lies behind it must not make a second one.
    counts = v.inputs[0].shape[3 : 3 + rank]
    ends = [
        extent if isinstance(count, int) and count == 1 else step
        for extent, count, step in zip(base.shape[3:], counts, steps, strict=True)
    ]
    if not all(isinstance(n, int) for n in ends):
        return None
    steps = [max(1, n) for n in ends]
    image = w.reshape(w.names[base], [base.shape[0], groups * channels, *base.shape[3:]])
    kernel = list(v.inputs[1].shape[3:])
    filters = w.reshape(weight, [groups * each, channels, *kernel])
    y = w.emit(
        "Conv", image, filters, strides=steps, dilations=gaps, group=groups, kernel_shape=kernel
    )
    return w.reshape(y, v.shape)


def _in_order(windows: Any, rank: int) -> bool:
    """Whether windows go over the axes after the third in their order."""
    axes = list[int]()
    while windows.op is ops.WINDOW:
        axes.insert(0, windows.attr[0])
        windows = windows.inputs[0]
    return axes == list(range(3, 3 + rank))


# ---- indexing


def _first_axes(w: _Writer, x: str, rank: int, axes: Sequence[int]) -> tuple[str, list[int]]:
    order = [*axes, *(k for k in range(rank) if k not in axes)]
    return (x if order == list(range(rank)) else w.emit("Transpose", x, perm=order)), order


def _places(w: _Writer, where: Sequence[str]) -> str:
    columns = [
        w.emit("Unsqueeze", w.emit("Cast", i, to=TensorProto.INT64), w.integers([-1]))
        for i in where
    ]
    return columns[0] if len(columns) == 1 else w.emit("Concat", *columns, axis=-1)


def _inside(w: _Writer, index: str, extent: Dim) -> str:
    """An index brought into range, as the operation is defined."""
    wide = w.emit("Cast", index, to=TensorProto.INT64)
    last = w.emit("Squeeze", w.size(extent - 1))
    return w.emit("Min", w.emit("Max", wide, w.number(0, dtypes.int64)), last)


def _gather(w: _Writer, v: Any, x: str, *where: str) -> str:
    axes, source = list(v.attr), v.inputs[0]
    index = [_inside(w, i, source.shape[a]) for i, a in zip(where, axes, strict=True)]
    if len(axes) == 1:
        return w.emit("Gather", x, index[0], axis=axes[0])
    front, _ = _first_axes(w, x, len(source.shape), axes)
    y = w.emit("GatherND", front, _places(w, index))
    rank = len(v.inputs[1].shape)
    rest = len(source.shape) - len(axes)
    order = [*range(rank, rank + axes[0]), *range(rank), *range(rank + axes[0], rank + rest)]
    return y if order == list(range(rank + rest)) else w.emit("Transpose", y, perm=order)


def _scatter(w: _Writer, v: Any, x: str, *others: str) -> str:
    """What lies outside is dropped: it is written into a border, which is cut off again."""
    axes, mode = v.attr
    *where, updates = others
    source = v.inputs[0]
    front, order = _first_axes(w, x, len(source.shape), axes)
    rank, rest = len(v.inputs[1].shape), len(source.shape) - len(axes)
    first = [*range(axes[0], axes[0] + rank), *range(axes[0]), *range(axes[0] + rank, rank + rest)]
    if first != list(range(rank + rest)):
        updates = w.emit("Transpose", updates, perm=first)
    how = {} if mode == "set" else {"reduction": mode}
    ends = [w.size(source.shape[a]) for a in axes]
    border = [*[0] * len(order), *[1] * len(axes), *[0] * rest]
    wide = w.emit("Pad", front, w.integers(border))
    places = [_or_border(w, i, end) for i, end in zip(where, ends, strict=True)]
    y = w.emit("ScatterND", wide, _places(w, places), updates, **how)
    count = len(axes)
    end = ends[0] if count == 1 else w.emit("Concat", *ends, axis=0)
    y = w.emit("Slice", y, w.integers([0] * count), end, w.integers(range(count)))
    back = [order.index(k) for k in range(len(order))]
    return y if back == list(range(len(back))) else w.emit("Transpose", y, perm=back)


def _or_border(w: _Writer, index: str, end: str) -> str:
    """An index; the one behind the last where it lies outside."""
    wide = w.emit("Cast", index, to=TensorProto.INT64)
    outside = w.emit("Less", wide, w.number(0, dtypes.int64))
    outside = w.emit("Or", outside, w.emit("Less", end, wide))
    return w.emit("Where", outside, end, wide)


def _update(w: _Writer, v: Any, x: str, value: str) -> str:
    shape, part = v.shape, v.inputs[1].shape
    if not all(isinstance(n, int) for n in (*shape, *part)):
        raise CannotExport("onnx.save: writing into a part of an array with open sizes")
    grid = [start + step * np.arange(n) for (start, step), n in zip(v.attr, part, strict=True)]
    flat = np.ravel_multi_index(np.meshgrid(*grid, indexing="ij"), shape) if shape else np.array(0)
    row = w.emit("Reshape", x, w.integers([-1]))
    new = w.emit("Reshape", value, w.integers([-1]))
    y = w.emit("ScatterElements", row, w.constant(flat.reshape(-1).astype(np.int64)), new, axis=0)
    return w.reshape(y, shape)


def _prefix(w: _Writer, v: Any, *xs: str) -> str:
    """A running sum, or a loop that carries what has been merged so far."""
    how = v.attr
    if len(xs) == 1 and how.merge[0].op is ops.ADD:
        axis = w.number(how.axis, dtypes.int64)
        return w.emit("CumSum", xs[0], axis, reverse=int(how.reverse))
    count, inner = len(xs), _Writer({}, {}, w.opset, outer=w)
    shape = [n for k, n in enumerate(v.shape) if k != how.axis]
    kinds = [x.dtype for x in v.inputs]
    names = [inner.name("merged") for _ in xs] + [inner.name("element") for _ in xs]
    leaves = [n for n in topological(how.merge) if n.op is ops.PARAMETER]
    inner.names.update((n, names[n.attr]) for n in leaves)
    inner.write(how.merge)
    states = [inner.emit("Identity", inner.names[n]) for n in how.merge]
    result = inner.emit("Identity", states[how.item])

    def info(name: str, dtype: Any) -> Any:
        return helper.make_tensor_value_info(name, code_of(dtype), list(map(_extent, shape)))

    body = helper.make_graph(
        inner.nodes, w.name("body"), [*map(info, names, kinds * 2)],
        [*map(info, states, kinds), info(result, v.dtype)],
    )  # fmt: skip
    first = [
        w.emit("Expand", w.number(n.attr, d), w.shape(shape))
        for n, d in zip(how.identity, kinds, strict=True)
    ]
    outputs = [w.name("scan") for _ in range(count + 1)]
    way = int(how.reverse)
    w.nodes.append(helper.make_node(
        "Scan", [*first, *xs], outputs, body=body, num_scan_inputs=count,
        scan_input_axes=[how.axis] * count, scan_input_directions=[way] * count,
        scan_output_axes=[how.axis], scan_output_directions=[way],
    ))  # fmt: skip
    return outputs[-1]


# ---- loops, and operations with several results


def _scan(w: _Writer, v: Any, *inputs: str) -> str:
    loop = v.attr
    first = loop.carries + loop.xs
    inner = _Writer({}, {}, w.opset, outer=w)
    parameters, given = [], list(inputs[:first])
    for k in range(first):
        shape = v.inputs[k].shape if k < loop.carries else v.inputs[k].shape[1:]
        parameters.append((inner.name("state"), v.inputs[k].dtype, shape))
    for n in topological(loop.body):
        if n.op is ops.PARAMETER:
            inner.names[n] = parameters[n.attr][0] if n.attr < first else inputs[n.attr]
    if not loop.xs:  # a loop needs something to go over
        given.append(w.emit("Expand", w.number(0, dtypes.int64), w.size(loop.length)))
        parameters.append((inner.name("step"), dtypes.int64, ()))
    inner.write(loop.body)
    results = [inner.emit("Identity", inner.names[n]) for n in loop.body]
    body = helper.make_graph(
        inner.nodes, w.name("body"),
        [helper.make_tensor_value_info(n, code_of(d), list(map(_extent, s)))
         for n, d, s in parameters],
        [_info(r, n) for r, n in zip(results, loop.body, strict=True)],
    )  # fmt: skip
    scans = max(loop.xs, 1)
    outputs = [w.name("scan") for _ in loop.body]
    ys = len(loop.body) - loop.carries
    way = int(loop.reverse)
    options: Any = {"scan_output_directions": [way] * ys} if ys else {}
    w.nodes.append(helper.make_node(
        "Scan", given, outputs, body=body, num_scan_inputs=scans,
        scan_input_directions=[way] * scans, **options,
    ))  # fmt: skip
    return "\n".join(outputs)


def _extent(n: Dim) -> Any:
    return n if isinstance(n, int) else str(n)


def _item(w: _Writer, v: Any, several: str) -> str:
    names = several.split("\n")
    return names[int(v.attr)]


def _call(w: _Writer, v: Any, *inputs: str) -> str:
    written = _CALLS.get(v.attr.name)
    if written is None:
        raise CannotExport(f"onnx.save: {v.attr.name} cannot be written to ONNX files yet")
    return written(w, v.attr, *inputs)


def _sort(w: _Writer, call: Any, x: str) -> str:
    (descending,) = call.options
    return _first(w, call, x, w.size(call.operands[0][1][-1]), descending)


def _topk(w: _Writer, call: Any, x: str) -> str:
    k, largest = call.options
    return _first(w, call, x, w.integers([k]), largest)


def _first(w: _Writer, call: Any, x: str, k: str, largest: bool) -> str:
    """The first of the sorted elements, and where they came from."""
    dtype = call.operands[0][0]
    known = dtype in (dtypes.float32, dtypes.float64, dtypes.int64, dtypes.int32)
    wide = TensorProto.FLOAT if dtype.is_float else TensorProto.INT64
    given = x if known else w.emit("Cast", x, to=wide)
    values, places = w.name("values"), w.name("places")
    w.nodes.append(
        helper.make_node("TopK", [given, k], [values, places], axis=-1, largest=int(largest))
    )
    return f"{values if known else w.emit('Cast', values, to=code_of(dtype))}\n{places}"


def _select(w: _Writer, call: Any, x: str, ranks: str) -> str:
    """Single places of the order."""
    length = call.operands[0][1][-1]
    values, order = _first(w, call, x, w.size(length), False).split("\n")
    places = _inside(w, ranks, length)
    return "\n".join(w.emit("GatherElements", y, places, axis=-1) for y in (values, order))


# ---- complex numbers: a last axis of two


def _complex(w: _Writer, v: Any, real: str, imaginary: str) -> str:
    parts = [w.emit("Expand", x, w.shape(v.shape)) for x in (real, imaginary)]
    return w.emit("Concat", *(w.emit("Unsqueeze", x, w.integers([-1])) for x in parts), axis=-1)


def _same(w: _Writer, v: Any, x: str) -> str:
    return x


def _part(which: int) -> Callable[..., str]:
    return lambda w, v, x: w.emit("Gather", x, w.number(which, dtypes.int64), axis=-1)


def _transformed(w: _Writer, x: str, n: int, norm: str, inverse: bool, onesided: bool) -> str:
    w.needs(20)
    options = {"inverse": int(inverse), "onesided": int(onesided)}
    y = w.emit("DFT", x, w.number(n, dtypes.int64), w.number(-2, dtypes.int64), **options)
    scale = {"backward": 1.0, "ortho": n**0.5 if inverse else n**-0.5,
             "forward": float(n) if inverse else 1 / n}[norm]  # fmt: skip
    return y if scale == 1 else w.emit("Mul", y, w.number(scale, dtypes.float32))


def _fft(w: _Writer, call: Any, x: str) -> str:
    n, inverse, norm = call.options
    return _transformed(w, x, n, norm, inverse, False)


def _rfft(w: _Writer, call: Any, x: str) -> str:
    n, norm = call.options
    return _transformed(w, w.emit("Unsqueeze", x, w.integers([-1])), n, norm, False, True)


def _irfft(w: _Writer, call: Any, x: str) -> str:
    """The other half of the spectrum mirrors the first: then it is a transform like any other."""
    n, norm = call.options
    if call.operands[0][1][-1] != n // 2 + 1:
        raise CannotExport(f"onnx.save: irfft of {call.operands[0][1]} to {n} elements")
    last, axis = (n + 1) // 2 - 1, w.integers([-2])
    ends = w.integers([last]), w.integers([0]), axis, w.integers([-1])
    mirrored = w.emit("Slice", x, *ends)
    conjugate = w.emit("Mul", mirrored, w.constant(np.array([1, -1], np.float32)))
    whole = w.emit("Concat", x, conjugate, axis=-2) if last > 0 else x
    y = _transformed(w, whole, n, norm, True, False)
    return w.emit("Gather", y, w.number(0, dtypes.int64), axis=-1)


_CALLS: dict[str, Callable[..., str]] = {
    "sorting.sort": _sort, "sorting.topk": _topk, "sorting.select": _select,
    "fourier.fft": _fft, "fourier.rfft": _rfft, "fourier.irfft": _irfft,
}  # fmt: skip


_WRITERS: dict[Any, Callable[..., str]] = {
    ops.SCALAR: _scalar, ops.CONST: _scalar, ops.IOTA: _iota, ops.SIZE: _size_value,
    ops.RESHAPE: _reshape, ops.PERMUTE: _permute, ops.EXPAND: _expand, ops.SLICE: _slice,
    ops.PAD: _pad, ops.WINDOW: _window,
    ops.NEG: _plain("Neg"), ops.ABS: _plain("Abs"), ops.NOT: _by_type("Not", "BitwiseNot"),
    ops.SQRT: _plain("Sqrt"), ops.EXP: _plain("Exp"), ops.EXP2: _exp2, ops.LOG: _plain("Log"),
    ops.LOG2: _log2, ops.SIN: _plain("Sin"), ops.COS: _plain("Cos"), ops.TAN: _tan,
    ops.TANH: _plain("Tanh"), ops.ERF: _plain("Erf"), ops.FLOOR: _plain("Floor"),
    ops.CEIL: _plain("Ceil"), ops.ROUND: _plain("Round"), ops.TRUNC: _trunc, ops.CAST: _cast,
    ops.BITCAST: _bitcast,
    ops.ADD: _added, ops.SUB: _plain("Sub"), ops.MUL: _multiplied, ops.DIV: _plain("Div"),
    ops.FLOORDIV: _floordiv, ops.MOD: _plain("Mod"), ops.FMOD: _fmod, ops.POW: _plain("Pow"),
    ops.ATAN2: _atan2, ops.MAX: _by_type("Or", "Max"), ops.MIN: _by_type("And", "Min"),
    ops.AND: _by_type("And", "BitwiseAnd"), ops.OR: _by_type("Or", "BitwiseOr"),
    ops.XOR: _by_type("Xor", "BitwiseXor"), ops.SHL: _shifted("LEFT"), ops.SHR: _shifted("RIGHT"),
    ops.LT: _compared("Less"), ops.LE: _compared("LessOrEqual"), ops.EQ: _plain("Equal"),
    ops.NE: _ne, ops.WHERE: _where, ops.FMA: _fma,
    ops.SUM: _reduced("ReduceSum"), ops.PROD: _reduced("ReduceProd"),
    ops.AMAX: _reduced("ReduceMax"), ops.AMIN: _reduced("ReduceMin"), ops.CONTRACT: _contract,
    ops.GATHER: _gather, ops.SCATTER: _scatter, ops.UPDATE: _update, ops.PREFIX: _prefix,
    ops.SCAN: _scan, ops.ITEM: _item, ops.CALL: _call, ops.COMPLEX: _complex,
    ops.REAL: _part(0), ops.IMAG: _part(1), ops.AS_REAL: _same, ops.AS_COMPLEX: _same,
}  # fmt: skip

#: What may give complex numbers: what makes them of others composes real arithmetic.
_OF_COMPLEX = {
    ops.COMPLEX, ops.AS_COMPLEX, ops.RESHAPE, ops.PERMUTE, ops.EXPAND, ops.SLICE, ops.CALL,
    ops.ITEM,
}  # fmt: skip
