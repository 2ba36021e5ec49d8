"""Genesis as a backend of the `onnx` package, which its tests and other tools run models with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx.backend.base import Backend, BackendRep

from genesis import no_grad
from genesis.onnx.model import Model
from genesis.onnx.reader import from_proto
from genesis.onnx.values import as_host


class PreparedModel(BackendRep):
    """A model that can be run."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs as NumPy arrays."""
        given = inputs if isinstance(inputs, Mapping | Sequence) else [inputs]
        with no_grad():
            if isinstance(given, Mapping):
                return tuple(as_host(x) for x in self.model(**given))
            return tuple(as_host(x) for x in self.model(*given))


class GenesisBackend(Backend):
    """`prepare` makes a model ready, `run_model` runs one at once."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """A model from its message."""
        return PreparedModel(from_proto(model))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> Any:
        """The outputs of a model."""
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether a kind of device can be used: "CPU"."""
        return device.partition(":")[0] == "CPU"


prepare, run_model, supports_device = (
    GenesisBackend.prepare, GenesisBackend.run_model, GenesisBackend.supports_device
)  # fmt: skip
