"""cuBLAS, cuSOLVER and cuFFT as far as Genesis calls them, by NumPy on a pretended GPU's memory.

Every function takes the arguments that NVIDIA's headers say, in their order, and checks them:
leading dimensions, sizes of scratch memory, handles and the queue. Matrices lie column by column.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

KINDS = {"S": np.float32, "D": np.float64, "C": np.complex64, "Z": np.complex128}
SCRATCH = 7  # how many elements everybody asks for


def address(x: Any) -> int:
    assert isinstance(x, ctypes.c_void_p) and x.value, "a pointer"
    return x.value


def memory(x: Any, kind: Any, count: int) -> Any:
    raw = (ctypes.c_uint8 * (count * np.dtype(kind).itemsize)).from_address(address(x))
    return np.frombuffer(raw, kind)


def matrix(x: Any, kind: Any, rows: int, columns: int, ld: int) -> Any:
    """A view of a matrix whose columns are `ld` apart."""
    assert ld >= max(1, rows)
    flat = memory(x, kind, ld * (columns - 1) + rows if columns else 0)
    size = flat.itemsize
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (size, ld * size), writeable=True)


def number(x: Any, kind: Any) -> Any:
    return np.frombuffer(x, kind)[0]


class Library:
    """One of them; `synchronize` waits for the device."""

    def __init__(self, synchronize: Callable[[], Any], stream: Callable[[], int]) -> None:
        self.synchronize, self.stream = synchronize, stream
        self.called: Counter[str] = Counter()
        self.made = 0

    def __getattr__(self, name: str) -> Any:
        function, arguments = self.find(name)

        def call(*given: Any) -> int:
            self.called[name] += 1
            self.synchronize()
            status = function(*arguments, *given)
            return 0 if status is None else status

        return call

    def find(self, name: str) -> tuple[Any, tuple[Any, ...]]:
        raise NotImplementedError

    def create(self, place: Any) -> None:
        self.made += 1
        place._obj.value = 77

    def set_stream(self, handle: Any, stream: Any) -> None:
        self.handle(handle)
        assert address(stream) == self.stream()

    def handle(self, handle: Any) -> None:
        assert handle.value == 77


class Blas(Library):
    def find(self, name: str) -> tuple[Any, tuple[Any, ...]]:
        if name in ("cublasCreate_v2", "cublasSetStream_v2"):
            return (self.create if "Create" in name else self.set_stream), ()
        name = name.removeprefix("cublas")
        if name.startswith("I"):
            return self.amin, (KINDS[name[1].upper()], name[2:])
        known = {
            "geam": self.geam, "trttp": self.trttp, "tpttr": self.tpttr, "trsm_v2": self.trsm,
            "scal_v2_64": self.scal,
        }  # fmt: skip
        return known[name[1:]], (KINDS[name[0]],)

    def amin(self, kind: Any, name: str, handle: Any, n: int, x: Any, step: int, out: Any) -> None:
        assert name == "amin_v2"
        self.handle(handle)
        found = memory(x, kind, (n - 1) * step + 1)[::step]
        out._obj.value = 1 + int(np.argmin(abs(found.real) + abs(found.imag)))

    def geam(self, kind: Any, handle: Any, transa: int, transb: int, m: int, n: int, alpha: Any,
             a: Any, lda: int, beta: Any, b: Any, ldb: int, c: Any, ldc: int) -> None:  # fmt: skip
        self.handle(handle)
        assert transa == 1 and transb == 0 and number(beta, kind) == 0
        assert address(b) == address(c) and ldb == ldc
        matrix(c, kind, m, n, ldc)[...] = number(alpha, kind) * matrix(a, kind, n, m, lda).T

    def trttp(self, kind: Any, handle: Any, uplo: int, n: int, a: Any, lda: int, ap: Any) -> None:
        self.handle(handle)
        full, packed = matrix(a, kind, n, n, lda), memory(ap, kind, n * (n + 1) // 2)
        packed[...] = [full[i, j] for j in range(n) for i in self.rows(uplo, j, n)]

    def tpttr(self, kind: Any, handle: Any, uplo: int, n: int, ap: Any, a: Any, lda: int) -> None:
        self.handle(handle)
        full, packed = matrix(a, kind, n, n, lda), memory(ap, kind, n * (n + 1) // 2)
        places = [(i, j) for j in range(n) for i in self.rows(uplo, j, n)]
        for (i, j), value in zip(places, packed, strict=True):
            full[i, j] = value

    def rows(self, uplo: int, j: int, n: int) -> range:
        return range(j + 1) if uplo == 1 else range(j, n)

    def trsm(self, kind: Any, handle: Any, side: int, uplo: int, trans: int, diag: int, m: int,
             n: int, alpha: Any, a: Any, lda: int, b: Any, ldb: int) -> None:  # fmt: skip
        self.handle(handle)
        assert side == 1 and trans == 0 and number(alpha, kind) == 1
        triangle = matrix(a, kind, n, n, lda)
        triangle = np.triu(triangle) if uplo == 1 else np.tril(triangle)
        if diag:
            triangle = triangle - np.diag(np.diag(triangle)) + np.eye(n, dtype=kind)
        right = matrix(b, kind, m, n, ldb)
        right[...] = np.linalg.solve(triangle.T, right.T).T

    def scal(self, kind: Any, handle: Any, n: Any, alpha: Any, x: Any, step: Any) -> None:
        self.handle(handle)
        assert step.value == 1
        memory(x, kind, n.value)[...] *= number(alpha, kind)


class Solver(Library):
    def find(self, name: str) -> tuple[Any, tuple[Any, ...]]:
        name = name.removeprefix("cusolverDn")
        if name in ("Create", "SetStream"):
            return (self.create if name == "Create" else self.set_stream), ()
        if name in ("CreateGesvdjInfo", "DestroyGesvdjInfo"):
            return (self.setting if name.startswith("C") else self.forget), ()
        kind, function = KINDS[name[0]], name[1:]
        if function.endswith("_bufferSize"):
            return self.size, (function.removesuffix("_bufferSize"),)
        return getattr(self, function), (kind,)

    def setting(self, place: Any) -> None:
        place._obj.value = 99

    def forget(self, setting: Any) -> None:
        assert setting.value == 99

    def size(self, name: str, handle: Any, *arguments: Any) -> None:
        self.handle(handle)
        count = {
            "potrf": 5,
            "getrf": 5,
            "syevd": 7,
            "geqrf": 5,
            "orgqr": 7,
            "ungqr": 7,
            "gesvdj": 13,
        }
        assert len(arguments) == count[name], name
        place = arguments[-2] if name == "gesvdj" else arguments[-1]
        place._obj.value = SCRATCH

    def scratch(self, kind: Any, work: Any, length: int | None = None) -> None:
        assert length in (None, SCRATCH)
        memory(work, kind, SCRATCH)[...] = 13  # it is ours

    def report(self, info: Any, value: int) -> None:
        memory(info, np.int32, 1)[0] = value

    def potrf(self, kind: Any, handle: Any, uplo: int, n: int, a: Any, lda: int, work: Any,
              length: int, info: Any) -> None:  # fmt: skip
        self.handle(handle)
        self.scratch(kind, work, length)
        found = matrix(a, kind, n, n, lda)
        half = np.triu(found) if uplo == 1 else np.tril(found)
        whole = half + half.conj().T - np.diag(np.diag(half))
        try:
            lower = np.linalg.cholesky(whole)
        except np.linalg.LinAlgError:
            return self.report(info, 1)
        triangle = np.triu(lower.conj().T) if uplo == 1 else lower
        inside = np.tri(n, dtype=bool).T if uplo == 1 else np.tri(n, dtype=bool)
        found[inside] = triangle[inside]
        return self.report(info, 0)

    def getrf(self, kind: Any, handle: Any, m: int, n: int, a: Any, lda: int, work: Any,
              pivots: Any, info: Any) -> None:  # fmt: skip
        from genesis.ir.numpy_library.linalg import lu

        self.handle(handle)
        self.scratch(kind, work)
        found = matrix(a, kind, m, n, lda)
        factors, exchanged = lu((), found)
        found[...] = factors
        memory(pivots, np.int32, min(m, n))[...] = exchanged + 1
        zero = np.flatnonzero(np.diag(factors) == 0)
        self.report(info, int(zero[0]) + 1 if len(zero) else 0)

    def getrs(self, kind: Any, handle: Any, trans: int, n: int, columns: int, a: Any, lda: int,
              pivots: Any, b: Any, ldb: int, info: Any) -> None:  # fmt: skip
        self.handle(handle)
        factors = matrix(a, kind, n, n, lda)
        whole = (np.tril(factors, -1) + np.eye(n, dtype=kind)) @ np.triu(factors)
        for k, other in reversed(list(enumerate(memory(pivots, np.int32, n) - 1))):
            whole[[k, other]] = whole[[other, k]]
        right = matrix(b, kind, n, columns, ldb)
        if np.diag(factors).all():
            right[...] = np.linalg.solve(whole.T if trans == 1 else whole, right)
        self.report(info, 0)

    def syevd(self, kind: Any, handle: Any, jobz: int, uplo: int, n: int, a: Any, lda: int, w: Any,
              work: Any, length: int, info: Any) -> None:  # fmt: skip
        self.handle(handle)
        assert jobz == 1
        self.scratch(kind, work, length)
        found = matrix(a, kind, n, n, lda)
        values, vectors = np.linalg.eigh(found, "U" if uplo == 1 else "L")
        memory(w, values.dtype, n)[...] = values
        found[...] = vectors
        self.report(info, 0)

    def geqrf(self, kind: Any, handle: Any, m: int, n: int, a: Any, lda: int, tau: Any, work: Any,
              length: int, info: Any) -> None:  # fmt: skip
        self.handle(handle)
        self.scratch(kind, work, length)
        found = matrix(a, kind, m, n, lda)
        transposed, factors = np.linalg.qr(found, "raw")
        found[...] = transposed.T
        memory(tau, kind, n)[...] = factors
        self.report(info, 0)

    def orgqr(self, kind: Any, handle: Any, m: int, n: int, k: int, a: Any, lda: int, tau: Any,
              work: Any, length: int, info: Any) -> None:  # fmt: skip
        from genesis.ir.numpy_library.linalg import reflected

        self.handle(handle)
        self.scratch(kind, work, length)
        found, factors = matrix(a, kind, m, n, lda), memory(tau, kind, k)
        start = np.eye(m, n, dtype=kind)
        found[...] = reflected((False,), found.copy(), factors.copy(), start)[0]
        self.report(info, 0)

    ungqr = orgqr

    def gesvdj(self, kind: Any, handle: Any, jobz: int, econ: int, m: int, n: int, a: Any,
               lda: int, s: Any, u: Any, ldu: int, v: Any, ldv: int, work: Any, length: int,
               info: Any, setting: Any) -> None:  # fmt: skip
        self.handle(handle)
        assert econ == 1 and setting.value == 99
        self.scratch(kind, work, length)
        left, values, right = np.linalg.svd(matrix(a, kind, m, n, lda), full_matrices=False)
        memory(s, values.dtype, min(m, n))[...] = values
        if jobz:
            matrix(u, kind, m, min(m, n), ldu)[...] = left
            matrix(v, kind, n, min(m, n), ldv)[...] = right.conj().T
        self.report(info, 0)


class Fourier(Library):
    """Its plans have numbers."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.plans: dict[int, tuple[int, int, int]] = {}
        self.ready: set[int] = set()

    def find(self, name: str) -> tuple[Any, tuple[Any, ...]]:
        known = {"cufftPlan1d": self.plan, "cufftSetStream": self.queue, "cufftDestroy": self.drop}
        if name in known:
            return known[name], ()
        return self.transform, (name.removeprefix("cufftExec"),)

    def plan(self, place: Any, n: int, kind: int, batch: int) -> None:
        self.made += 1
        self.plans[self.made] = n, kind, batch
        place._obj.value = self.made

    def queue(self, plan: Any, stream: Any) -> None:
        assert address(stream) == self.stream()
        self.ready.add(plan.value)

    def drop(self, plan: Any) -> None:
        del self.plans[plan.value]

    def transform(self, letters: str, plan: Any, source: Any, target: Any, *direction: Any) -> None:
        assert plan.value in self.ready
        n, kind, batch = self.plans[plan.value]
        codes = {"R2C": 0x2A, "C2R": 0x2C, "C2C": 0x29, "D2Z": 0x6A, "Z2D": 0x6C, "Z2Z": 0x69}
        assert codes[letters] == kind and address(source) != address(target)
        types = {"R": "S", "C": "C", "D": "D", "Z": "Z"}
        into, out = KINDS[types[letters[0]]], KINDS[types[letters[2]]]
        half = n // 2 + 1
        x = memory(source, into, batch * (half if letters in ("C2R", "Z2D") else n)).reshape(
            batch, -1
        )
        if letters in ("R2C", "D2Z"):
            found = np.fft.rfft(x)
        elif letters in ("C2R", "Z2D"):
            found = np.fft.irfft(x, n) * n
            x[...] = 5  # it may be written to
        else:
            found = np.fft.ifft(x) * n if direction[0].value == 1 else np.fft.fft(x)
        memory(target, out, found.size)[...] = found.astype(out).ravel()
