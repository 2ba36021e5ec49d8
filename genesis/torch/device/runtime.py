"""The runtime: ``runtime.cpp``, compiled once per user and version of PyTorch, or its Python twin.

The build is one call of the C++ compiler. Its result lies where PyTorch keeps extensions that it
built (``TORCH_EXTENSIONS_DIR``, else the user's cache), under a name that is a digest of everything
it depends on. Without a compiler `python_runtime` does the same with what PyTorch offers to Python:
one device, and no events, generators or pinned memory of its own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from genesis.content_store import digest
from genesis.ndarray.core.pending_graph import Words

_SOURCE = Path(__file__).with_name("runtime.cpp")
_NAME = "genesis_runtime"


#: A layout: the dtype, conjugated + 2 * negated, the offset, sizes and strides.
Description = tuple[torch.dtype, int, int, tuple[int, ...], tuple[int, ...]]


class DeviceRuntime(Protocol):
    """What the rest of the device uses."""

    def start(
        self,
        count: int,
        contents: dict[int, tuple[Any, int]],
        synchronize: Callable[[int], None],
        seed: Callable[[int, int, int, int], None],
        state: Callable[[int, int], tuple[int, int]],
    ) -> None:
        """Make so many devices known to PyTorch, whose storages have their contents there."""

    def others_exist(self) -> bool:
        """Whether PyTorch has another accelerator."""

    def live_with_others(self) -> bool:
        """Leave other devices their place in PyTorch; False if that is not possible."""

    def collect(self) -> None:
        """Forget the contents of storages that are gone, and let those of resized ones follow."""

    def find(self, tensor: torch.Tensor) -> Any:
        """The contents of a tensor's storage if the tensor sees them as they are, else None."""

    def form(self, args: tuple[Any, ...], named: dict[str, Any], inputs: list[Any]) -> bytes | None:
        """All that the graph of an operator depends on, of its arguments; None if that is more.

        Tensors are added to the inputs: by the contents of their storages if they see all of them,
        perhaps in another shape or order, else as they are.
        """

    def build_with(self, *parts: Any) -> None:
        """What graphs are made of: classes, the thread's state, the device's progress, .."""

    def walk(self, order: list[Any], wiring: Words[int], first: int) -> set[type]:
        """`genesis.ndarray.core.pending_graph.walk`."""

    def survey(self, order: list[Any]) -> tuple[list[Any], Words[int], Words[int], Words[int]]:
        """`genesis.ndarray.core.pending_graph.survey`."""

    def of_kind(self, kind: type, order: list[Any]) -> list[Any]:
        """`genesis.ndarray.core.pending_graph.of_kind`."""

    def implement(self, library: Any, name: str, function: Callable[..., Any]) -> None:
        """Let an operator be computed by a function, unless it is remembered."""

    def remember(self, name: str, recorded: tuple[Any, ...]) -> None:
        """Have calls like the one under way, of an operator of a full name, copied from now on."""

    def keep(self, tensor: torch.Tensor, what: Any) -> None:
        """Let the contents of a tensor's storage be `what`, as seen by the tensor."""

    def create(
        self,
        what: Any,
        sizes: tuple[int, ...],
        strides: tuple[int, ...] | None,
        dtype: torch.dtype,
        index: int,
    ) -> torch.Tensor:
        """A new tensor on device `index` with contents; row-major if no strides are given."""

    def adopt(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Let a tensor that no operator gave be another, on another device, in all but name."""

    def storages(self, index: int) -> tuple[int, ...]:
        """Bytes of a device's storages, now, at most and ever; how many there are, likewise."""

    def reset_peak(self, index: int) -> None:
        """Count what storages take at most from now on."""

    def nested_parts(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The buffer of a nested tensor; sizes, strides and offsets of the tensors in it."""

    def nest(self, buffer: torch.Tensor, *layout: torch.Tensor) -> torch.Tensor:
        """A nested tensor of such parts."""

    def address(self, tensor: torch.Tensor) -> int:
        """The handle of a tensor's storage."""

    def describe(self, tensor: torch.Tensor) -> Description:
        """The layout of a tensor."""

    def layout(self, number: int) -> Description:
        """The layout of contents, by its number."""

    def device_count(self) -> int:
        """How many devices there are."""

    def current_device(self) -> int:
        """The device that tensors are on where none is given."""

    def set_device(self, index: int) -> None:
        """Choose it, for the calling thread."""

    def default_generator(self, index: int) -> torch.Generator:
        """The generator of a device."""

    def generator_address(self, generator: torch.Generator) -> int:
        """The handle of a generator's state."""


@cache
def load() -> DeviceRuntime:
    """The compiled runtime, built if need be; the one in Python if that is not possible."""
    try:
        path = _directory() / f"{_NAME}_{_key()}.so"
        if not path.exists():
            _build(path)
        loader = ExtensionFileLoader(_NAME, str(path))
        spec = spec_from_loader(_NAME, loader)
        assert spec is not None
        module = module_from_spec(spec)
        loader.exec_module(module)
        return cast(DeviceRuntime, module)
    except (OSError, ImportError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or error
        warnings.warn(
            f"torch.device('genesis') works without its compiled part, more slowly and without "
            f"events, generators and pinned memory: {str(why)[-2000:]}",
            RuntimeWarning,
            stacklevel=2,
        )
        return cast(DeviceRuntime, import_module("genesis.torch.device.python_runtime"))


def _key() -> str:
    parts = (torch.__version__, sys.implementation.cache_tag, sys.platform, *_flags())
    return digest(*parts, _SOURCE.read_bytes())[:16]


def _directory() -> Path:
    """A directory of the user's own: what lies there is run."""
    setting = os.environ.get("TORCH_EXTENSIONS_DIR")
    path = Path(setting) if setting else Path.home() / ".cache" / "torch_extensions"
    path.mkdir(parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(f"{path} must belong to the user, and nobody else may write to it")
    return path


def _flags() -> list[str]:
    package = Path(torch.__file__).parent
    headers = [package / "include", package / "include/torch/csrc/api/include"]
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return [
        *("-O2", "-std=c++20", "-fPIC", "-shared", "-w"),
        *(f"-DTORCH_EXTENSION_NAME={_NAME}", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
        *(f"-I{path}" for path in (*headers, sysconfig.get_paths()["include"])),
        *(f"-L{package / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
    ]


def _build(path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise OSError("there is no C++ compiler")
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process builds, and the others wait for it
        if path.exists():
            return
        print("genesis: building the runtime of torch.device('genesis'), once ..", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=path.parent) as directory:
            unfinished = Path(directory) / path.name
            command = [compiler, str(_SOURCE), *_flags(), "-o", str(unfinished)]
            subprocess.run(command, check=True, capture_output=True, text=True)
            unfinished.replace(path)
