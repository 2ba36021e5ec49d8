"""Inputs and outputs that are named beforehand, and the values that are bound to them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from genesis.onnx.dtypes import code_of, numpy_dtype
from genesis.onnx.values import as_host
from genesis.tensor.tensor import Tensor

if TYPE_CHECKING:
    from genesis.onnx.session import InferenceSession

_TYPES = {"float32": "float", "float64": "double", "object": "string"}


def type_name(dtype: Any) -> str:
    """A type as onnxruntime names it: ``tensor(float)``."""
    kind = np.dtype(getattr(dtype, "numpy", dtype))
    text = "object" if kind.kind in "US" else str(kind)
    return f"tensor({_TYPES.get(text, text)})"


class OrtValue:
    """An array that is given to a session or comes from one; other libraries take it by DLPack.

    >>> import numpy as np
    >>> value = OrtValue.ortvalue_from_numpy(np.ones((2, 3), np.float32))
    >>> value.shape(), value.data_type()
    ([2, 3], 'tensor(float)')
    """

    def __init__(self, held: Any) -> None:
        self._held = held

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """An array of NumPy's; it is not copied."""
        _require_cpu(device_type)
        return OrtValue(np.asarray(array))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Memory for an array."""
        _require_cpu(device_type)
        return OrtValue(np.zeros(tuple(shape), _dtype(element_type)))

    @property
    def held(self) -> Any:
        """The array, or the tensor."""
        return self._held

    def numpy(self) -> Any:
        """The contents as an array of NumPy's."""
        return as_host(self._held)

    def shape(self) -> list[int]:
        """The sizes."""
        return [int(n) for n in self._held.shape]

    def data_type(self) -> str:
        """The type, as in ``tensor(float)``."""
        return type_name(self._held.dtype)

    def element_type(self) -> int:
        """The type as a number of `onnx.TensorProto.DataType`."""
        return code_of(self._held.dtype)

    def device_name(self) -> str:
        """Where it lies."""
        return "cpu"

    def has_value(self) -> bool:
        """Whether there is something in it."""
        return self._held is not None

    def is_tensor(self) -> bool:
        """Whether it is an array, and no sequence."""
        return isinstance(self._held, np.ndarray | Tensor)

    def data_ptr(self) -> int:
        """Where the contents begin."""
        return int(self.numpy().__array_interface__["data"][0])

    def tensor_size_in_bytes(self) -> int:
        """How large the contents are."""
        return int(self.numpy().nbytes)

    def update_inplace(self, array: Any) -> None:
        """Write other contents of the same sizes and type to the same memory."""
        new, own = np.asarray(array), self.numpy()
        if new.shape != own.shape or new.dtype != own.dtype:
            raise ValueError(
                f"update_inplace: the value is {own.dtype}{list(own.shape)}, "
                f"not {new.dtype}{list(new.shape)}"
            )
        own[...] = new

    def __dlpack__(self, **options: Any) -> Any:
        return self._held.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._held.__dlpack_device__()


class IOBinding:
    """Inputs bound to arrays of any library (by DLPack), and where outputs go."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self.feed: dict[str, Any] = {}
        #: The outputs that are wanted, each with the memory that it is written to, if it is told.
        self.wanted: dict[str, Any] = {}
        self.results: list[Any] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        """Give an input."""
        self.feed[name] = array

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        """Give an input that another library holds."""
        self.feed[name] = value.held if isinstance(value, OrtValue) else value

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Give an input by where it lies; it must stay there until the call."""
        _require_cpu(device_type)
        self.feed[name] = _at(buffer_ptr, element_type, shape)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, in memory of its own or where it is told."""
        _require_cpu(device_type)
        known = buffer_ptr is not None and shape is not None
        self.wanted[name] = _at(buffer_ptr or 0, element_type, shape or ()) if known else None

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """Ask for an output in the memory of a value."""
        self.wanted[name] = value.numpy()

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self.feed.clear()

    def clear_binding_outputs(self) -> None:
        """Forget what is wanted."""
        self.wanted.clear()

    def synchronize_inputs(self) -> None:
        """Wait for inputs: they are there."""

    def synchronize_outputs(self) -> None:
        """Wait for outputs: they are there."""

    def run(self) -> None:
        """Compute what is wanted of what was given."""
        names = list(self.wanted)
        self.results = self._session.run_tensors(names, self.feed)
        for k, (name, memory) in enumerate(self.wanted.items()):
            if memory is None:
                continue
            found = as_host(self.results[k])
            if found.shape != memory.shape or found.dtype != memory.dtype:
                raise ValueError(
                    f"run_with_iobinding: the output {name!r} is {found.dtype}{list(found.shape)}, "
                    f"but was bound to {memory.dtype}{list(memory.shape)}"
                )
            memory[...] = found
            self.results[k] = memory

    def get_outputs(self) -> list[OrtValue]:
        """The outputs, which other libraries take by DLPack."""
        return [OrtValue(x) for x in self.results]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs as NumPy arrays."""
        return [as_host(x) for x in self.results]


def _require_cpu(device_type: str) -> None:
    if device_type != "cpu":
        raise ValueError(f"a value on {device_type!r}: sessions compute on 'cpu'")


def _dtype(element_type: Any) -> Any:
    """A type of NumPy, also if it is given as a number of ONNX."""
    return numpy_dtype(element_type) if isinstance(element_type, int) else np.dtype(element_type)


def _at(pointer: int, element_type: Any, shape: Sequence[int]) -> Any:
    """The array that lies at an address."""
    dtype = _dtype(element_type)
    count = int(np.prod(shape, dtype=np.int64))
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
    return np.frombuffer(memory, dtype, count).reshape(tuple(shape))
