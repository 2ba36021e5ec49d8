"""Random operands for operators, and a batch of comparisons that is realised at once.

An operand is drawn as an array and the same numbers in NumPy, in one of several layouts: row-major,
transposed, every other element, backwards, or repeated from an axis of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from genesis import ndarray as nd
from genesis.ndarray.core.ndarray import NDArray

Array = np.ndarray[Any, Any]
bfloat16 = np.dtype(ml_dtypes.bfloat16)

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
HALVES = ("float16", "bfloat16")
FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")

#: Relative errors allowed of a result, by its type; sums of a few numbers included.
TOLERANCE = {
    "float16": 4e-3, "bfloat16": 3e-2, "float32": 4e-6, "float64": 1e-11, "complex64": 2e-5,
    "complex128": 1e-11,
}  # fmt: skip
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 1e30, -1e-30, 1e-42)


def as_torch(x: Any) -> torch.Tensor:
    """NumPy's numbers as a tensor."""
    x = np.array(x, order="C")
    if x.dtype == bfloat16:
        return torch.from_numpy(x.astype(np.float32)).bfloat16()
    return torch.from_numpy(x)


def as_numpy(x: Any) -> Array:
    """A result of this project, of PyTorch or of NumPy in NumPy."""
    if isinstance(x, torch.Tensor):
        x = x.detach().resolve_conj().resolve_neg()
        if x.dtype is torch.bfloat16:
            return x.float().numpy().astype(bfloat16)
        return x.numpy()
    return np.asarray(x.numpy() if isinstance(x, NDArray) else x)


class Operand:
    """The same numbers here (`a`), in NumPy (`n`) and in PyTorch (`t`)."""

    def __init__(self, array: NDArray, numbers: Array) -> None:
        self.a = array
        self.n = numbers
        self.t = as_torch(numbers)


class Draw:
    """A source of random operands that collects what is to be compared."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.pairs: list[tuple[str, NDArray, Array, float]] = []
        self.name = ""

    # ---- choices

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def shape(self, low: int = 0, high: int = 3, least: int = 0) -> tuple[int, ...]:
        """A shape of low to high axes; extents of 0 and 1 are common."""
        extents = [e for e in (0, 1, 1, 2, 3, 5, 5, 7, 18) if e >= least]
        return tuple(self.pick(extents) for _ in range(self.integer(low, high)))

    def axis(self, shape: Sequence[int]) -> int:
        return self.integer(-len(shape), len(shape) - 1)

    # ---- operands

    def numbers(self, shape: Sequence[int], dtype: str, special: bool = False) -> Array:
        """Random numbers; the extremes of integers and special floats are among them."""
        kind = np.dtype(bfloat16 if dtype == "bfloat16" else dtype)
        if dtype == "bool":
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype in INTEGERS:
            info = np.iinfo(kind)
            if not special:
                low = 0 if info.min == 0 else -9
                return self.rng.integers(low, 10, shape).astype(kind)
            found = self.rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)
            extremes = np.array([info.min, info.max, 0, 1, -1 if info.min else 2], kind)
            return np.where(self.rng.random(shape) < 0.4, self.rng.choice(extremes, shape), found)
        real = self.rng.standard_normal(shape) * self.pick((1, 1, 4))
        if special:
            real = np.where(self.rng.random(shape) < 0.3, self.rng.choice(SPECIAL, shape), real)
        if dtype in COMPLEX:
            real = real + 1j * self.rng.standard_normal(shape)
        with np.errstate(all="ignore"):
            return np.asarray(real).astype(kind)

    def view(self, make: Callable[[tuple[int, ...]], Array], shape: Sequence[int]) -> Operand:
        """Numbers that `make` gives for a shape, as an operand in some layout."""
        shape = tuple(shape)
        layout = self.pick(("plain", "plain", "transposed", "strided", "flipped", "expanded"))
        if not shape or layout == "plain":
            base = make(shape)
            return Operand(nd.array(base), base)
        a = self.integer(0, len(shape) - 1)
        if layout == "transposed":
            order = tuple(int(d) for d in self.rng.permutation(len(shape)))
            base = make(tuple(shape[order.index(d)] for d in range(len(shape))))
            return Operand(nd.array(base).permute(*order), base.transpose(order))
        if layout == "expanded":
            base = make((*shape[:a], 1, *shape[a + 1 :]))
            return Operand(nd.array(base).expand(*shape), np.broadcast_to(base, shape))
        step = 2 if layout == "strided" else -1
        room = tuple(n * abs(step) if d == a else n for d, n in enumerate(shape))
        cut = tuple(slice(None, None, step) if d == a else slice(None) for d in range(len(shape)))
        base = make(room)
        return Operand(nd.array(base)[cut], base[cut])

    def array(self, shape: Sequence[int], dtype: str = "float32", special: bool = False) -> Operand:
        return self.view(lambda s: self.numbers(s, dtype, special), shape)

    def index(self, shape: Sequence[int], extent: int, negative: bool = False) -> Operand:
        """Positions on an axis; there must be some unless the shape has no elements."""
        low = -extent if negative else 0
        dtype = self.pick(("int64", "int32"))

        def make(room: tuple[int, ...]) -> Array:
            if not extent:
                return np.zeros(room, dtype)
            return self.rng.integers(low, extent, room).astype(dtype)

        return self.view(make, shape)

    def permutation(self, shape: Sequence[int], axis: int) -> Operand:
        """Distinct positions along an axis."""
        found = np.argsort(self.rng.random(tuple(shape)), axis)
        return Operand(nd.array(found), found)

    # ---- comparisons

    def same(self, got: Any, want: Any, loose: float = 1.0, cast: bool = False) -> None:
        """Both must have the same shape, type and numbers, up to `loose` times the tolerance.

        With `cast` the reference's type is not compared: it was computed in another one.
        """
        if isinstance(got, tuple | list):
            want = list(want)
            assert len(got) == len(want), f"{self.name}: {len(got)} results, not {len(want)}"
            for g, w in zip(got, want, strict=True):
                self.same(g, w, loose, cast)
            return
        assert isinstance(got, NDArray), f"{self.name} gave {type(got).__name__}"
        expected = as_numpy(want)
        if cast:
            kind = bfloat16 if str(got.dtype) == "bfloat16" else np.dtype(str(got.dtype))
            with np.errstate(all="ignore"):
                expected = expected.astype(kind)
        assert got.shape == expected.shape, f"{self.name}: {got.shape}, not {expected.shape}"
        assert str(got.dtype) == str(expected.dtype), f"{self.name}: {got.dtype}"
        self.pairs.append((self.name, got, expected, loose))

    def check(self) -> None:
        """Compute everything at once and compare."""
        nd.realize(*(got for _, got, _, _ in self.pairs))
        for name, got, want, loose in self.pairs:
            compare(name, got.numpy(), want, loose)


def compare(name: str, got: Array, want: Array, loose: float = 1.0) -> None:
    """Equal, or close for floating point; NaN is equal to NaN."""
    rtol = TOLERANCE.get(str(want.dtype), 0.0) * loose
    if not rtol:
        np.testing.assert_array_equal(got, want, err_msg=name)
        return
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        g, w = got.astype(wide), want.astype(wide)
        finite = np.isfinite(w)
        scale = np.abs(w[finite])
        # Sums lose what their largest terms lose.
        floor = float(np.minimum(scale, 1e6).max(initial=1.0)) if loose > 1 else 1.0
        close = np.abs(g - w) <= rtol * np.maximum(np.abs(w), floor)
        special = (np.isnan(g) & np.isnan(w)) | (g == w)
    wrong = ~(special | (close & np.isfinite(g) & finite))
    if wrong.any():
        where = np.argwhere(wrong)[0].tolist()
        at = tuple(where)
        raise AssertionError(
            f"{name} {want.dtype}{want.shape}: {got[at]} at {where} instead of {want[at]}, "
            f"{int(wrong.sum())} of {wrong.size} wrong"
        )
