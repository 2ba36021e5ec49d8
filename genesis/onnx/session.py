"""`InferenceSession`: a model run as programs written for onnxruntime run theirs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

import genesis
from genesis.onnx.binding import IOBinding, OrtValue, type_name
from genesis.onnx.compiled_graph import CompiledGraph, Quick
from genesis.onnx.dtypes import numpy_dtype
from genesis.onnx.options import (
    GraphOptimizationLevel,
    SessionOptions,
    get_available_providers,
)
from genesis.onnx.reader import ModelMetadata, load
from genesis.onnx.values import as_host
from genesis.tensor.tensor import Tensor

_MOST_FORMS = 64  # of inputs that are known
_type_name = cache(type_name)
#: What lists of Python's numbers become.
_DTYPES = {
    _type_name(np.dtype(kind)): np.dtype(kind)
    for kind in ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "object"]
}


class NodeArg(NamedTuple):
    """An input or an output: sizes that the model leaves open are names, or None."""

    name: str
    type: str
    shape: list[int | str | None]


class InferenceSession:
    """A model from a file or from bytes, compiled when it first runs.

    >>> import numpy as np, onnx
    >>> from onnx import TensorProto, helper
    >>> x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy")
    >>> graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    >>> session = InferenceSession(helper.make_model(graph).SerializeToString())
    >>> session.run(None, {"x": np.array([-1, 2], np.float32)})
    [array([0., 2.], dtype=float32)]
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
    ) -> None:
        options = sess_options or SessionOptions()
        _warn_of(providers)
        if getattr(options, "intra_op_num_threads", 0):
            genesis.set_num_threads(options.intra_op_num_threads)
        level = getattr(options, "graph_optimization_level", GraphOptimizationLevel.ORT_ENABLE_ALL)
        self._options = options
        self._model = load(path_or_bytes, optimize=level != GraphOptimizationLevel.ORT_DISABLE_ALL)
        self._program = CompiledGraph(self._model)
        self._quick: dict[tuple[Any, ...] | None, Quick | None] = {None: None}
        graph = self._model.graph
        sizes = getattr(options, "free_dimensions", {})
        self._expected = {n: _described(n, graph.types.get(n), sizes) for n in graph.inputs}
        self._inputs = [self._expected[n] for n in self._model.inputs]
        self._outputs = [_described(n, graph.types.get(n), sizes) for n in graph.outputs]

    def get_inputs(self) -> list[NodeArg]:
        """What must be given."""
        return self._inputs

    def get_outputs(self) -> list[NodeArg]:
        """What is computed."""
        return self._outputs

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs that have a value in the file."""
        return [arg for n, arg in self._expected.items() if n in self._model.graph.constants]

    def get_providers(self) -> list[str]:
        """What computes."""
        return get_available_providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """How it computes: there is nothing to choose."""
        return {name: {} for name in get_available_providers()}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Any] | None = None
    ) -> None:
        """Say what is to compute; accepted."""

    def disable_fallback(self) -> None:
        """Say that nothing else is to compute; accepted."""

    def enable_fallback(self) -> None:
        """Say that something else may compute; accepted."""

    def end_profiling(self) -> str:
        """The file in which measurements are: none, `genesis.profiling` makes them."""
        return ""

    def get_session_options(self) -> SessionOptions:
        """What it was made with."""
        return self._options

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself."""
        found: ModelMetadata = self._model.metadata
        return found

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """The outputs with these names, or all, as NumPy arrays."""
        form = None if output_names or type(input_feed) is not dict else self._form(input_feed)
        quick = self._quick.get(form)
        results = None if quick is None else quick(input_feed)
        if results is not None:
            return results
        found = [as_host(x) for x in self.run_tensors(output_names, input_feed)]
        if form is not None:
            self._expect(form, input_feed)
        return found

    def _form(self, feed: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """What a call must share with an earlier one to run the same program on the same memory."""
        decisive = self._program.decisive
        form: list[Any] = []
        for name, x in feed.items():
            if type(x) is not np.ndarray or not x.flags.c_contiguous or not x.flags.aligned:
                return None
            form += (name, x.dtype, x.shape, x.tobytes() if name in decisive else None)
        return tuple(form)

    def _expect(self, form: tuple[Any, ...], feed: Mapping[str, Any]) -> None:
        """Have further calls of this form run at once, where they can."""
        if len(self._quick) >= _MOST_FORMS:
            self._quick.clear()
        if form not in self._quick:
            plain = all(x.size and x.dtype.isnative for x in feed.values())
            values = self._model.bound((), self._checked(feed))
            self._quick[form] = self._program.quick(values) if plain else None

    def run_tensors(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> list[Any]:
        """As `run`, with tensors of Genesis for results."""
        names = list(self._model.outputs) if not output_names else list(output_names)
        unknown = [n for n in names if n not in self._model.outputs]
        if unknown:
            raise ValueError(f"run: there is no output {unknown}; there are {self._model.outputs}")
        values = self._model.bound((), self._checked(input_feed))
        results = dict(zip(self._model.outputs, self._program(values), strict=True))
        return [results[n] for n in names]

    def _checked(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(feed, Mapping):
            raise TypeError(f"run: the inputs by name are wanted, not a {type(feed).__name__}")
        values = {}
        for name, value in feed.items():
            if name not in self._expected:
                raise ValueError(f"run: there is no input {name!r}; there are {self._model.inputs}")
            values[name] = _fitting(name, value, self._expected[name])
        return values

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any] | None, Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """As `run`, in a thread, which calls back with results, `user_data` and what is wrong."""

        def work() -> None:
            results, wrong = None, ""
            try:
                results = self.run(output_names, input_feed, run_options)
            except Exception as error:
                wrong = str(error)
            callback(results, user_data, wrong)

        Thread(target=work, name="genesis-session").start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """As `run`, of values and with values for results."""
        feed = {name: value.held for name, value in input_dict_ort_values.items()}
        return [OrtValue(x) for x in self.run_tensors(output_names, feed)]

    # ---- memory of others
    def io_binding(self) -> IOBinding:
        """Inputs and outputs that are named beforehand."""
        return IOBinding(self)

    def run_with_iobinding(self, binding: IOBinding, run_options: Any = None) -> None:
        """Run with what was bound."""
        binding.run()


def _warn_of(providers: Sequence[Any] | None) -> None:
    """Say that something else computes than was asked for."""
    known = get_available_providers()
    for entry in [providers] if isinstance(providers, str) else providers or ():
        name = entry if isinstance(entry, str) else entry[0]
        if name not in known:
            text = f"the provider {name!r} is not available; there are {known}"
            warnings.warn(f"InferenceSession: {text}", stacklevel=3)


def _described(name: str, kind: Any, sizes: Mapping[str, int]) -> NodeArg:
    if kind is None:
        return NodeArg(name, "", [])
    if kind.HasField("sequence_type"):
        return NodeArg(
            name, f"seq({_described(name, kind.sequence_type.elem_type, sizes).type})", []
        )
    if kind.HasField("optional_type"):
        inner = _described(name, kind.optional_type.elem_type, sizes)
        return NodeArg(name, f"optional({inner.type})", [])
    if kind.HasField("map_type"):
        held = _described(name, kind.map_type.value_type, sizes)
        key = _type_name(numpy_dtype(kind.map_type.key_type)).removeprefix("tensor(")
        return NodeArg(name, f"map({key.removesuffix(')')},{held.type})", [])
    tensor = kind.tensor_type
    text = _type_name(numpy_dtype(tensor.elem_type)) if tensor.elem_type else "tensor()"
    shape = [
        d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, d.dim_param or None)
        for d in tensor.shape.dim
    ]
    return NodeArg(name, text, shape)


def _fitting(name: str, value: Any, expected: NodeArg) -> Any:
    """An input that is what the model says, or an error that says what it is."""
    whole = isinstance(value, list | Mapping) and not expected.type.startswith("tensor")
    if value is None or whole:
        return value
    if not isinstance(value, Tensor | np.ndarray):
        foreign = hasattr(value, "__dlpack__") and not hasattr(value, "__array_interface__")
        listed = isinstance(value, list | tuple | int | float) and expected.type in _DTYPES
        dtype = _DTYPES[expected.type] if listed else None
        value = genesis.from_dlpack(value) if foreign else np.asarray(value, dtype)
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    kind = _type_name(value.dtype)
    if expected.type not in ("", "tensor()", kind):
        raise ValueError(f"run: the input {name!r} is {expected.type}, not {kind}")
    shape = tuple(value.shape)
    known = [n if isinstance(n, int) and n > 0 else None for n in expected.shape]
    if known and (
        len(known) != len(shape)
        or any(n is not None and n != m for n, m in zip(known, shape, strict=True))
    ):
        raise ValueError(f"run: the input {name!r} has shape {expected.shape}, not {list(shape)}")
    return value


__all__ = ["InferenceSession", "NodeArg"]
