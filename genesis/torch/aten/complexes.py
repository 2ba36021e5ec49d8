"""Complex numbers: their parts, angles and conjugates.

PyTorch has conjugates and negatives that are only marked so; here both are computed when they are
asked for, and there is nothing to resolve.
"""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten.registry import Unsupported, implements, operators


@implements("complex")
def _complex(re: NDArray, im: NDArray) -> NDArray:
    _require_complex(re)
    return nd.complex(re, im)


@implements("polar")
def _polar(length: NDArray, angle: NDArray) -> NDArray:
    _require_complex(length)
    return nd.polar(length, angle)


@implements("view_as_complex", "view_as_complex_copy")
def _view_as_complex(x: NDArray) -> NDArray:
    _require_complex(x)
    return nd.view_as_complex(x)


def _require_complex(x: NDArray) -> None:
    if x.dtype.bits < 32:
        raise Unsupported(f"there are no complex numbers of two {x.dtype}")


operators(
    {
        "_conj _conj_copy _conj_physical conj conj_physical": nd.conj,
        "_neg_view _neg_view_copy": nd.neg,
        "angle": nd.angle,
        "imag": nd.imag,
        "real": nd.real,
        "view_as_real view_as_real_copy": nd.view_as_real,
    }
)
