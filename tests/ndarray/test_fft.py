"""Fourier transforms, against PyTorch."""

from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import ndarray as nd

F = nd.fft
FORMS = [(None, -1, None), (5, 1, "ortho"), (12, 0, "forward"), (1, 2, "backward"), (7, -2, None)]
NORMS = [None, "backward", "ortho", "forward"]


def close(found: nd.NDArray, expected: torch.Tensor) -> None:
    """Equal within the precision of the dtype."""
    given, wanted = found.numpy(), expected.resolve_conj().numpy()
    assert given.dtype == wanted.dtype and given.shape == wanted.shape
    limit = 1e-4 if given.dtype in (np.float32, np.complex64) else 1e-10
    np.testing.assert_allclose(given, wanted, rtol=limit, atol=limit)


def signal(rng: np.random.Generator, kind: str, *shape: int) -> np.ndarray:
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if "complex" in kind else x).astype(kind)


@pytest.mark.parametrize("name", ["fft", "ifft", "irfft", "hfft", "rfft", "ihfft"])
@pytest.mark.parametrize("wide", [False, True])
def test_one_axis(rng: np.random.Generator, name: str, wide: bool) -> None:
    bits = 2 if wide else 1
    kinds = [f"float{32 * bits}"] + (
        [f"complex{64 * bits}"] if name not in ("rfft", "ihfft") else []
    )
    for kind in kinds:
        x = signal(rng, kind, 3, 8, 6)
        for n, axis, norm in FORMS:
            expected = getattr(torch.fft, name)(torch.from_numpy(x), n, axis, norm)
            close(getattr(F, name)(nd.array(x), n, axis, norm), expected)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_several_axes(rng: np.random.Generator, name: str) -> None:
    x = signal(rng, "float64" if name == "rfftn" else "complex128", 3, 4, 6)
    tensor = torch.from_numpy(x)
    sizes: list[Any] = [None, (5, 4), (-1, 3), None]
    axes: list[Any] = [None, (0, 2), (1, 0), (-1,)]
    for s, axis in zip(sizes, axes, strict=True):
        for norm in NORMS[1:]:
            expected = getattr(torch.fft, name)(tensor, s, axis, norm)
            close(getattr(F, name)(nd.array(x), s, axis, norm), expected)
    expected = getattr(torch.fft, name)(tensor, (2, 4))
    close(getattr(F, name)(nd.array(x), (2, 4)), expected)


@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2", "irfft2"])
def test_two_axes(rng: np.random.Generator, name: str) -> None:
    x = signal(rng, "float32" if name == "rfft2" else "complex64", 2, 4, 6)
    close(getattr(F, name)(nd.array(x)), getattr(torch.fft, name)(torch.from_numpy(x)))


def test_other_types(rng: np.random.Generator) -> None:
    x = rng.integers(0, 9, (2, 8))
    close(F.fft(nd.array(x)), torch.fft.fft(torch.from_numpy(x)))
    close(F.rfft(nd.array(x > 4)), torch.fft.rfft(torch.from_numpy(x > 4)))
    half = x.astype(np.float16)
    close(F.rfft(nd.array(half)), torch.fft.rfft(torch.from_numpy(half.astype(np.float32))))


def test_views_and_empty_batches(rng: np.random.Generator) -> None:
    x = signal(rng, "complex128", 6, 8)
    tensor = torch.from_numpy(np.ascontiguousarray(x[::2, ::-1].T))
    close(F.fft(nd.array(x)[::2, ::-1].T * 2), torch.fft.fft(tensor * 2))
    empty = nd.zeros((0, 4), dtype="complex64")
    assert F.fft(empty).numpy().shape == (0, 4) and F.irfft(empty).numpy().shape == (0, 6)


def test_there_and_back(rng: np.random.Generator) -> None:
    @genesis.jit
    def convolved(x: nd.NDArray, y: nd.NDArray) -> nd.NDArray:
        return F.irfft(F.rfft(x, 16) * F.rfft(y, 16), 16)

    for _ in range(2):
        x, y = signal(rng, "float64", 9), signal(rng, "float64", 8)
        found = convolved(nd.array(x), nd.array(y)).numpy()
        np.testing.assert_allclose(found, np.convolve(x, y), atol=1e-12)
    z = signal(rng, "complex64", 3, 7)
    np.testing.assert_allclose(F.ifft(F.fft(nd.array(z))).numpy(), z, atol=1e-6)


def test_frequencies(rng: np.random.Generator) -> None:
    for n in (1, 2, 7, 8):
        close(F.fftfreq(n, 0.1), torch.fft.fftfreq(n, 0.1))
        close(F.rfftfreq(n, 0.1, "float64"), torch.fft.rfftfreq(n, 0.1, dtype=torch.float64))
    x = rng.standard_normal((4, 5))
    for axes in (None, (1,), (0, 1)):
        for name in ("fftshift", "ifftshift"):
            expected = getattr(torch.fft, name)(torch.from_numpy(x), axes)
            close(getattr(F, name)(nd.array(x), axes), expected)


def test_bad_input() -> None:
    x = nd.zeros((2, 4))
    with pytest.raises(TypeError, match=r"fft\.rfft: needs real numbers"):
        F.rfft(nd.zeros(4, dtype="complex64"))
    with pytest.raises(ValueError, match=r"fft\.fft: the length must be positive, not 0"):
        F.fft(x, 0)
    with pytest.raises(ValueError, match=r"fft\.fft: the length must be positive, not 0"):
        F.fft(nd.zeros((2, 0)))
    with pytest.raises(ValueError, match=r"fft\.ifft: norm is one of"):
        F.ifft(x, norm="none")
    with pytest.raises(IndexError, match=r"fft\.fft: "):
        F.fft(x, axis=2)
    with pytest.raises(ValueError, match="do not fit together"):
        F.fftn(x, (2, 3, 4), (0, 1))
    with pytest.raises(ValueError, match="do not fit together"):
        F.fftn(x, axes=(1, 1))
