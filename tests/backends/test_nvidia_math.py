"""NVIDIA's libraries for mathematics: every call, with pretended libraries that check arguments.

On a GPU the libraries themselves are called, where they are installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis.backends.gpu.library import nvidia_math, shared_objects
from genesis.backends.gpu.runtime import nvidia
from genesis.backends.gpu.runtime.program import DeviceArray
from genesis.ir.dtype import as_dtype
from genesis.ir.numpy_library import reference
from genesis.ndarray.core.realisation import backend_of
from tests.fake_nvidia_math import Blas, Fourier, Solver
from tests.interpreted_cuda import passes

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
REAL = ["float32", "float64"]
ALL = [*REAL, "complex64", "complex128"]
REFUSED = ("cufftCreate", "cufftExecR2C", "cublasCreate_v2", "cusolverDnCreate",
           "cusolverDnSpotrf_bufferSize")  # fmt: skip
on_gpu = pytest.mark.gpu


@pytest.fixture(scope="module")
def libraries() -> Iterator[dict[str, Any]]:
    """Pretended ones on a pretended GPU, and else those there are."""
    if not INTERPRETED:
        if shared_objects.loaded("cusolver") is None:
            pytest.skip("the libraries are not installed")
        yield {}
        return
    api: Any = nvidia.driver()._api
    device = backend_of("cuda").device  # type: ignore[attr-defined]
    kinds = {"cublas": Blas, "cusolver": Solver, "cufft": Fourier}
    found = {name: kind(api, lambda: int(device.stream)) for name, kind in kinds.items()}
    with pytest.MonkeyPatch.context() as patch:  # programs keep the handles that they were given
        patch.setattr(nvidia_math, "loaded", found.get)
        yield found


def drawn(rng: np.random.Generator, dtype: str, *shape: int) -> Any:
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(as_dtype(dtype).numpy)


def definite(rng: np.random.Generator, dtype: str, *shape: int) -> Any:
    x = drawn(rng, dtype, *shape)
    return x @ np.swapaxes(x.conj(), -1, -2) + np.eye(shape[-1], dtype=x.dtype) * shape[-1]


def close(found: nd.NDArray, wanted: Any) -> None:
    tolerance = 1e-3 if found.dtype.real is as_dtype("float32") else 1e-9
    np.testing.assert_allclose(found.numpy(), wanted, tolerance, tolerance)


def on_device(x: Any) -> nd.NDArray:
    return nd.array(x, device="cuda")


@on_gpu
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("norm", ["backward", "forward", "ortho"])
def test_transforms(libraries: Any, rng: np.random.Generator, dtype: str, norm: str) -> None:
    for n in (9, 10):
        x = drawn(rng, dtype, 3, 2, n)
        half = nd.fft.rfft(on_device(x), norm=norm)
        close(half, np.fft.rfft(x, norm=norm))
        close(nd.fft.irfft(half, n, norm=norm), x)
        close(half, np.fft.rfft(x, norm=norm))  # which the way back has not changed
        z = drawn(rng, dtype.replace("float32", "complex64").replace("float64", "complex128"), 4, n)
        close(nd.fft.fft(on_device(z), norm=norm), np.fft.fft(z, norm=norm))
        close(nd.fft.ifft(on_device(z), norm=norm), np.fft.ifft(z, norm=norm))
    if libraries:
        assert libraries["cufft"].called["cufftMakePlan1d"] >= 2


@on_gpu
def test_plans_are_kept_and_given_back(libraries: Any, rng: np.random.Generator) -> None:
    before = libraries["cufft"].called["cufftMakePlan1d"] if libraries else 0
    for n in [*range(2, nvidia_math.PLANS + 6), 2]:
        x = drawn(rng, "float32", 2, n)
        close(nd.fft.rfft(on_device(x)), np.fft.rfft(x))
        close(nd.fft.rfft(on_device(x)), np.fft.rfft(x))
    if libraries:
        assert len(libraries["cufft"].plans) == nvidia_math.PLANS
        assert libraries["cufft"].called["cufftMakePlan1d"] - before == nvidia_math.PLANS + 5


@on_gpu
def test_transforms_are_captured(libraries: Any, rng: np.random.Generator) -> None:
    """Behind kernels and before others, in memory that nobody else gets."""

    def filtered(x: nd.NDArray) -> nd.NDArray:
        half = nd.fft.rfft(x * 2.0)
        return nd.fft.irfft(half * (half.real > 0), x.shape[-1], norm="ortho") + 1.0

    def wanted(x: Any) -> Any:
        half = np.fft.rfft(x * 2)
        return np.fft.irfft(half * (half.real > 0), x.shape[-1], norm="ortho") + 1

    run, x = genesis.jit(filtered), nd.zeros((3, 10), device="cuda")
    api: Any = nvidia.driver()._api
    before = api.launched["graph"] if libraries else 0
    for k in range(6):
        contents = drawn(rng, "float32", 3, 10)
        x[...] = nd.array(contents, device="cuda")
        found = run(x)
        others = [nd.full((3, n), 7.0, device="cuda").realize() for n in range(1, 12)]
        close(found, wanted(contents))
        del found
        assert all((other.numpy() == 7).all() for other in others)
        if k == 2:
            for n in range(20, 22 + nvidia_math.PLANS):  # its plans are not kept any more
                nd.fft.rfft(nd.ones((n,), device="cuda")).realize()
    if libraries:
        assert api.launched["graph"] - before >= 3


@on_gpu
def test_another_queue(libraries: Any, rng: np.random.Generator) -> None:
    backend: Any = backend_of("cuda")
    x = drawn(rng, "float32", 3, 12)
    half = nd.fft.rfft(on_device(x))
    close(half, np.fft.rfft(x))
    given, made = half.realize(), on_device(x).realize()
    operands = [
        DeviceArray(v.storage.actual.memory.pointer, v.dtype, v.shape)  # type: ignore[union-attr]
        for v in (given, made)
    ]
    stream = backend.device.call("StreamCreate", 1)
    backend.synchronize()
    with backend.lent(stream), backend.device:
        if libraries:
            for library in libraries.values():
                library.stream = lambda: int(stream)
        assert backend.library("fourier.irfft", (12, None), operands[:1], operands[1:])
        assert not nvidia.driver()._api.streams[stream].pending if libraries else True
    if libraries:
        for library in libraries.values():
            library.stream = lambda: int(backend.device.stream)
    close(made, x)


@on_gpu
@pytest.mark.parametrize("dtype", ALL)
def test_factorisations(libraries: Any, rng: np.random.Generator, dtype: str) -> None:
    x = definite(rng, dtype, 2, 5, 5)
    close(nd.linalg.cholesky(on_device(x)), np.linalg.cholesky(x))
    for shape in ((2, 7, 4), (5, 5)):
        tall = drawn(rng, dtype, *shape)
        q, r = nd.linalg.qr(on_device(tall))
        close(q @ r, tall)
        assert not np.tril(r.numpy(), -1).any()
        close(nd.linalg.qr(on_device(tall), "r").R, r.numpy())
    if libraries and dtype in REAL:
        assert libraries["cusolver"].called[
            f"cusolverDn{nvidia_math.LETTERS[as_dtype(dtype)]}geqrf"
        ]


@on_gpu
@pytest.mark.parametrize("dtype", REAL)
def test_eigenvalues_and_singular_values(
    libraries: Any, rng: np.random.Generator, dtype: str
) -> None:
    x = drawn(rng, dtype, 2, 6, 6)
    for uplo in ("L", "U"):
        values, vectors = nd.linalg.eigh(on_device(x), uplo)
        wanted, _ = np.linalg.eigh(x, uplo)
        close(values, wanted)
        half = np.tril(x) if uplo == "L" else np.triu(x)
        whole = half + np.swapaxes(half, -1, -2) - half * np.eye(6, dtype=half.dtype)
        close(on_device(whole) @ vectors, vectors.numpy() * wanted[:, None])
    for shape in ((2, 7, 4), (4, 7), (5, 5)):
        a = drawn(rng, dtype, *shape)
        u, s, vh = nd.linalg.svd(on_device(a), full_matrices=False)
        close((u * s[..., None, :]) @ vh, a)
        close(s, np.linalg.svd(a, compute_uv=False))
        close(nd.linalg.svdvals(on_device(a)), s.numpy())
    close(nd.linalg.svd(on_device(a)).S, s.numpy())


@on_gpu
@pytest.mark.parametrize("dtype", ALL)
def test_solutions(libraries: Any, rng: np.random.Generator, dtype: str) -> None:
    letter = nvidia_math.LETTERS[as_dtype(dtype)]
    before = libraries["cublas"].called[f"cublas{letter}trsm_v2"] if libraries else 0
    a, b = drawn(rng, dtype, 3, 5, 5), drawn(rng, dtype, 3, 5, 2)
    close(nd.linalg.solve(on_device(a), on_device(b)), np.linalg.solve(a, b))
    close(nd.linalg.solve(on_device(a), on_device(b[..., :1])), np.linalg.solve(a, b[..., :1]))
    close(nd.linalg.inv(on_device(a)), np.linalg.inv(a))
    close(nd.linalg.inv(on_device(a[0])), np.linalg.inv(a[0]))  # one matrix goes another way
    close(nd.linalg.solve(on_device(a[0]), on_device(b[0])), np.linalg.solve(a[0], b[0]))
    for upper in (False, True):
        for unit in (False, True):
            half = np.triu(a) if upper else np.tril(a)
            half = half + 3 * np.eye(5, dtype=a.dtype)
            found = nd.linalg.solve_triangular(
                on_device(half), on_device(b), upper=upper, unitriangular=unit
            )
            wanted = reference("linalg.triangular")((upper, unit), half, b)[0]
            close(found, wanted)
            column = nd.linalg.solve_triangular(
                on_device(half), on_device(b[..., :1]), upper=upper, unitriangular=unit
            )
            close(column, wanted[..., :1])
    if libraries:
        assert libraries["cublas"].called[f"cublas{letter}trsm_v2"] - before == 24


@on_gpu
def test_what_is_singular_is_said_by_the_host(libraries: Any) -> None:
    x = np.zeros((2, 3, 3), np.float32)
    x[0] = np.eye(3)
    for function in (nd.linalg.cholesky, nd.linalg.inv):
        with pytest.raises(np.linalg.LinAlgError, match=r"number \(1,\) of the batch"):
            function(on_device(x)).realize()
    with pytest.raises(np.linalg.LinAlgError):
        nd.linalg.solve_triangular(on_device(x), on_device(x), upper=True).realize()
    close(nd.linalg.cholesky(on_device(x[:1])), x[:1])  # and nothing is left of it


@on_gpu
def test_a_program_goes_on_behind_a_call(libraries: Any, rng: np.random.Generator) -> None:
    """What is computed before and behind is in the same queue."""
    x = definite(rng, "float32", 6, 6)
    lower = nd.linalg.cholesky(on_device(x) * 2.0) + 1.0
    by_hand = np.linalg.cholesky(2 * x) + 1
    wanted = np.linalg.inv(by_hand @ by_hand.T + x) * 3
    close(nd.linalg.inv(lower @ lower.T + on_device(x)) * 3.0, wanted)


@on_gpu
@pytest.mark.skipif(not INTERPRETED, reason="libraries refuse")
def test_what_a_library_refuses_the_host_computes(
    libraries: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    refusing = SimpleNamespace(**dict.fromkeys(REFUSED, lambda *arguments: 3))
    monkeypatch.setattr(nvidia_math, "loaded", lambda name: refusing)
    x = definite(rng, "float32", 3, 3)
    close(nd.fft.rfft(on_device(x[:, :2])), np.fft.rfft(x[:, :2]))
    close(nd.linalg.cholesky(on_device(x)), np.linalg.cholesky(x))


@on_gpu
@pytest.mark.skipif(not INTERPRETED, reason="libraries are taken away")
def test_without_libraries_the_host_computes(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(nvidia_math, "loaded", lambda name: None)
    x = definite(rng, "float32", 4, 4)
    close(nd.linalg.cholesky(on_device(x)), np.linalg.cholesky(x))
    close(nd.fft.rfft(on_device(x)), np.fft.rfft(x))


@pytest.mark.skipif(INTERPRETED, reason="runs the others so")
@pytest.mark.timeout(1800)  # a whole file: on a loaded machine that takes long
def test_by_the_interpreter() -> None:
    passes(__file__)


def test_libraries_are_looked_for_where_wheels_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cu13" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcufft.so.12").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(shared_objects, "find_spec", lambda name: spec)
    found = list(shared_objects._files("cufft"))
    assert str(folder / "libcufft.so.12") in found
    assert found.index(str(folder / "libcufft.so.12")) < found.index("libcufft.so.12")
    assert shared_objects.loaded.__wrapped__("cufft") is None  # it is no library
