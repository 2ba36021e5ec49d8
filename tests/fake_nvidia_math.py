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

from genesis.ir.numpy_library.linalg import lu

KINDS = {"S": np.float32, "D": np.float64, "C": np.complex64, "Z": np.complex128}
NOT_QUEUED = {
    "cublasSetStream_v2", "cusolverDnSetStream", "cufftSetStream", "cufftSetWorkArea",
    "cufftDestroy",
}  # fmt: skip
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


def product(factors: Any, exchanged: Any) -> Any:
    """The matrix that was factored."""
    whole = (np.tril(factors, -1) + np.eye(len(factors), dtype=factors.dtype)) @ np.triu(factors)
    for k, other in reversed(list(enumerate(exchanged - 1))):
        whole[[k, other]] = whole[[other, k]]
    return whole


def number(x: Any, kind: Any) -> Any:
    return np.frombuffer(x, kind)[0]


class Library:
    """One of them, which does what it is called for at once, or in the graph that is captured."""

    def __init__(self, driver: Any, stream: Callable[[], int]) -> None:
        self.driver, self.stream = driver, stream
        self.called: Counter[str] = Counter()
        self.made = 0

    def __getattr__(self, name: str) -> Any:
        function, arguments = self.find(name)

        def call(*given: Any) -> int:
            self.called[name] += 1
            captured = self.driver.recorded.get(self.stream())
            if captured is not None and name.startswith(("cufftExec", "cublasSscal")):
                captured.append(self.later(name, given) or (lambda: function(*arguments, *given)))
                return 0
            assert captured is None or name in NOT_QUEUED, "a queue is captured"
            if captured is None:
                self.driver.cuCtxSynchronize()
            status = function(*arguments, *given)
            return 0 if status is None else status

        return call

    def find(self, name: str) -> tuple[Any, tuple[Any, ...]]:
        raise NotImplementedError

    def later(self, name: str, given: tuple[Any, ...]) -> Callable[[], Any] | None:
        """What a graph does, where that depends on what is set when it is captured."""
        return None

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
            "scal_v2_64": self.scal, "getrfBatched": self.getrf, "getrsBatched": self.getrs,
            "getriBatched": self.getri,
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
        assert side == 0 and trans == 1 and number(alpha, kind) == 1
        triangle = matrix(a, kind, m, m, lda)
        triangle = np.triu(triangle) if uplo == 1 else np.tril(triangle)
        if diag:
            triangle = triangle - np.diag(np.diag(triangle)) + np.eye(m, dtype=kind)
        right = matrix(b, kind, m, n, ldb)
        right[...] = np.linalg.solve(triangle.T, right)

    def scal(self, kind: Any, handle: Any, n: Any, alpha: Any, x: Any, step: Any) -> None:
        self.handle(handle)
        assert step.value == 1
        memory(x, kind, n.value)[...] *= number(alpha, kind)

    def getrf(self, kind: Any, handle: Any, n: int, table: Any, lda: int, pivots: Any, info: Any,
              batch: int) -> None:  # fmt: skip
        self.handle(handle)
        exchanged = memory(pivots, np.int32, batch * n).reshape(batch, n)
        for k, found in enumerate(self.table(table, kind, batch, n, n, lda)):
            factors, rows = lu((), found)
            found[...] = factors
            exchanged[k] = rows + 1
            zero = np.flatnonzero(np.diag(factors) == 0)
            memory(info, np.int32, batch)[k] = int(zero[0]) + 1 if len(zero) else 0

    def getrs(self, kind: Any, handle: Any, trans: int, n: int, columns: int, table: Any, lda: int,
              pivots: Any, right: Any, ldb: int, status: Any, batch: int) -> None:  # fmt: skip
        self.handle(handle)
        exchanged = memory(pivots, np.int32, batch * n).reshape(batch, n)
        every = self.table(table, kind, batch, n, n, lda)
        for k, b in enumerate(self.table(right, kind, batch, n, columns, ldb)):
            if np.diag(every[k]).all():
                whole = product(every[k], exchanged[k])
                b[...] = np.linalg.solve(whole.T if trans == 1 else whole, b)
        status._obj.value = 0

    def getri(self, kind: Any, handle: Any, n: int, table: Any, lda: int, pivots: Any, made: Any,
              ldc: int, info: Any, batch: int) -> None:  # fmt: skip
        self.handle(handle)
        exchanged = memory(pivots, np.int32, batch * n).reshape(batch, n)
        every = self.table(table, kind, batch, n, n, lda)
        for k, c in enumerate(self.table(made, kind, batch, n, n, ldc)):
            zero = np.flatnonzero(np.diag(every[k]) == 0)
            if not len(zero):
                c[...] = np.linalg.inv(product(every[k], exchanged[k]))
            memory(info, np.int32, batch)[k] = int(zero[0]) + 1 if len(zero) else 0

    def table(self, x: Any, kind: Any, batch: int, rows: int, columns: int, ld: int) -> list[Any]:
        """The matrices that addresses in the device's memory are of."""
        places = memory(x, np.uint64, batch)
        return [matrix(ctypes.c_void_p(int(p)), kind, rows, columns, ld) for p in places]


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
        whole = product(factors, memory(pivots, np.int32, n))
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
    """Its plans have numbers, a queue and memory to work in."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.plans: dict[int, dict[str, Any]] = {}

    def find(self, name: str) -> tuple[Any, tuple[Any, ...]]:
        known = {
            "cufftCreate": self.new, "cufftSetAutoAllocation": self.allocate,
            "cufftMakePlan1d": self.plan, "cufftSetStream": self.queue,
            "cufftSetWorkArea": self.area, "cufftDestroy": self.drop,
        }  # fmt: skip
        if name in known:
            return known[name], ()
        return self.transform, (name.removeprefix("cufftExec"), None)

    def new(self, place: Any) -> None:
        self.made += 1
        self.plans[self.made] = {}
        place._obj.value = self.made

    def allocate(self, plan: Any, automatically: int) -> None:
        self.plans[plan.value]["automatically"] = automatically

    def plan(self, plan: Any, n: int, kind: int, batch: int, size: Any) -> None:
        assert self.plans[plan.value] == {"automatically": 0}
        self.plans[plan.value]["shape"] = n, kind, batch
        size._obj.value = 8 * SCRATCH

    def queue(self, plan: Any, stream: Any) -> None:
        self.plans[plan.value]["stream"] = address(stream)

    def area(self, plan: Any, place: Any) -> None:
        self.plans[plan.value]["area"] = address(place)

    def drop(self, plan: Any) -> None:
        del self.plans[plan.value]

    def later(self, name: str, given: tuple[Any, ...]) -> Callable[[], Any] | None:
        if not name.startswith("cufftExec"):
            return None
        plan = self.plans[given[0].value]
        now = dict(plan)

        def run() -> None:
            assert plan in self.plans.values(), "a plan that is destroyed"
            self.transform(name.removeprefix("cufftExec"), now, *given)

        return run

    def transform(
        self, letters: str, known: Any, plan: Any, source: Any, target: Any, *direction: Any
    ) -> None:
        known = known or self.plans[plan.value]
        assert known["stream"] == self.stream()
        (n, kind, batch), area = known["shape"], ctypes.c_void_p(known["area"])
        memory(area, np.uint8, 8 * SCRATCH)[...] = 13  # it is ours
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
