"""Lightning on the device: ``import genesis.torch.lightning``, then ``accelerator="genesis"``.

Lightning has a register of accelerators by name; importing this module adds one to it, for
``lightning`` and for ``pytorch_lightning``, whichever is installed.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

import genesis.torch  # noqa: F401  the device must be known

_PACKAGES = ("lightning", "pytorch_lightning")


def _register(package: str) -> None:
    root = "lightning.pytorch" if package == "lightning" else package
    accelerators: Any = import_module(f"{root}.accelerators")
    strategies: Any = import_module(f"{root}.strategies")

    class GenesisAccelerator(accelerators.Accelerator):  # type: ignore[misc]
        """The devices of Genesis for Lightning."""

        def setup_device(self, device: torch.device) -> None:
            """Nothing has to be done for a device before it is used."""

        def setup(self, trainer: Any) -> None:
            """Say which device it is where Lightning, which knows only its own, chose another."""
            strategy = trainer.strategy
            single = isinstance(strategy, strategies.SingleDeviceStrategy)
            if single and strategy.root_device.type != "genesis":
                (strategy._root_device,) = trainer._accelerator_connector._parallel_devices
            precision = strategy.precision_plugin
            if getattr(precision, "device", None) == "cuda":  # that of autocast
                precision.device = "genesis"
                if precision.scaler is not None:
                    precision.scaler = torch.amp.GradScaler("genesis")

        def teardown(self) -> None:
            """Nothing is left to be taken back."""

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            """What tensors take on a device."""
            found: dict[str, Any] = torch.genesis.memory_stats(device)  # type: ignore[attr-defined]
            return found

        @staticmethod
        def parse_devices(devices: int | str | list[int]) -> list[int]:
            """The indices of devices: so many, all of them (-1), or those that are given."""
            count = torch.genesis.device_count()  # type: ignore[attr-defined]
            if isinstance(devices, str):
                devices = (
                    [int(d) for d in devices.split(",") if d] if "," in devices else int(devices)
                )
            if isinstance(devices, int):
                devices = list(range(count if devices < 0 else devices))
            if wrong := [d for d in devices if not 0 <= d < count]:
                raise ValueError(f"devices: genesis:{wrong[0]} does not exist: there are {count}")
            return devices

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            """The devices of such indices."""
            return [torch.device("genesis", index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            """How many devices are used unless that is said."""
            return 1

        @staticmethod
        def is_available() -> bool:
            """Whether there is a device."""
            return bool(torch.genesis.is_available())  # type: ignore[attr-defined]

        @staticmethod
        def name() -> str:
            """What the accelerator is called."""
            return "genesis"

    accelerators.AcceleratorRegistry.register(
        "genesis", GenesisAccelerator, description="devices of Genesis", override=True
    )


_found = [package for package in _PACKAGES if find_spec(package) is not None]
if not _found:
    raise ModuleNotFoundError("genesis.torch.lightning needs Lightning: pip install lightning")
for _package in _found:
    _register(_package)
