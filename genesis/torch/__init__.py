"""PyTorch on Genesis.

Importing this module makes ``torch.compile(model, backend="genesis")`` and
``torch.device("genesis")`` known to PyTorch. Where Genesis is installed as a package,
``torch.compile`` finds its backend even without the import, through an entry point.
"""

from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("torch") is None:
    raise ModuleNotFoundError("genesis.torch needs PyTorch: pip install 'genesis-dl[torch]'")

from genesis.torch.aten import FallbackWarning
from genesis.torch.device import device_names, fallback, fallbacks
from genesis.torch.device import register as _register_device
from genesis.torch.distributed import register as _register_collectives

if TYPE_CHECKING:
    from genesis.torch.compare_with_eager import check
    from genesis.torch.explanation import explain
    from genesis.torch.exported import from_torch

_register_device()
_register_collectives()
# PyTorch's compiler takes seconds to load, so that is left to whoever uses it. Not even its list of
# backends can be had without it.
if not entry_points(group="torch_dynamo_backends", name="genesis"):
    from genesis.torch.compile import register as _register_backend

    _register_backend()


#: What is loaded when it is asked for. A module of the same name would take its place.
_LATER = {
    "check": "genesis.torch.compare_with_eager",
    "explain": "genesis.torch.explanation",
    "from_torch": "genesis.torch.exported",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "FallbackWarning",
    "check",
    "device_names",
    "explain",
    "fallback",
    "fallbacks",
    "from_torch",
]
