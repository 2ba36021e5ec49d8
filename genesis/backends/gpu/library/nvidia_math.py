"""Operations of the library by NVIDIA's: cuFFT for transforms, cuSOLVER and cuBLAS for matrices.

What is computed is what the function of the same name in `genesis.ir.numpy_library` gives. An entry
of `CALLS` is given the options of a call and its arrays, row-major, on the device; it enqueues the
work and says whether the results are there. If it says no (a form that it does not take, a matrix
that is singular), or a library refuses, the host computes them by the definition, which also knows
what is wrong.

These libraries count columns first: to them a row-major matrix is its transpose. Where a transpose
will not do, matrices are turned around by cuBLAS. Errors of a factorisation are a number on the
device, which is read before a call is said to be done.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from math import prod, sqrt
from threading import Lock
from typing import Any

import numpy as np

from genesis.backends.gpu.library.shared_objects import loaded
from genesis.backends.gpu.runtime.driver import Driver, GPUDevice
from genesis.backends.gpu.runtime.memory import MemoryPool
from genesis.backends.gpu.runtime.program import DeviceArray
from genesis.backends.gpu.runtime.transfer import Transfers
from genesis.ir.dtype import DType, complex64, complex128, float32, float64

#: What functions are called for a type, and the codes of cuFFT's transforms.
LETTERS = {float32: "S", float64: "D", complex64: "C", complex128: "Z"}
TRANSFORMS = {
    ("rfft", float32): ("R2C", 0x2A), ("irfft", complex64): ("C2R", 0x2C),
    ("fft", complex64): ("C2C", 0x29), ("rfft", float64): ("D2Z", 0x6A),
    ("irfft", complex128): ("Z2D", 0x6C), ("fft", complex128): ("Z2Z", 0x69),
}  # fmt: skip
#: What makes the handle of a library, and what gives it a queue.
HANDLES = {
    "cublas": ("cublasCreate_v2", "cublasSetStream_v2"),
    "cusolver": ("cusolverDnCreate", "cusolverDnSetStream"),
}
LOWER, UPPER = 0, 1
PLAIN, TURNED = 0, 1
LEFT = 0
VECTORS = 1
#: Plans of transforms that are kept.
PLANS = 32
#: Several matrices of up to so many rows are factored by one call.
TOGETHER = 256


class Mathematics:
    """The libraries of one device, their handles made when they are first needed.

    They have memory of their own, which one queue uses at a time.
    """

    def __init__(self, device: GPUDevice, pool: MemoryPool, transfers: Transfers) -> None:
        self.device, self.pool, self.transfers = device, pool, transfers
        self._lock = Lock()
        self._handles: dict[str, ctypes.c_void_p] = {}
        self._stream = 0  # the queue that handles are for
        self._plans: dict[tuple[int, int, int], _Plan] = {}
        self._used: list[object] = []
        self._is_captured = False

    def is_queued(self, name: str) -> bool:
        """Transforms are; of factorisations the host asks whether they went well."""
        return name.startswith("fourier.") and name in CALLS

    def __call__(
        self,
        name: str,
        options: tuple[Any, ...],
        operands: list[DeviceArray],
        results: list[DeviceArray],
        used: list[object] | None = None,
    ) -> bool:
        """Compute the results of an operation; False if that is left to the host."""
        found = CALLS.get(name)
        known = all(x.dtype in LETTERS for x in operands)
        if found is None or not known or any(x.nbytes == 0 for x in (*operands, *results)):
            return False
        with self._lock:  # handles and plans are for one thread at a time
            self._used, self._is_captured = [] if used is None else used, used is not None
            try:
                self._enter(int(self.device.stream))
                return found(self, options, operands, results)
            except _Refused:
                return False
            finally:
                if self._used and self.device.is_lent and not self._is_captured:
                    # What is forgotten now is used next in our own queue.
                    self.device.call("StreamSynchronize", self.device.stream)
                self._used = []

    def _enter(self, stream: int) -> None:
        """Let handles work for a queue, when the one before has done what they did for it."""
        if stream != self._stream:
            if self._stream and not self._is_captured:
                self.device.call("StreamSynchronize", self._stream)
            for name, handle in self._handles.items():
                self.do(name, HANDLES[name][1], handle, _at(stream))
            self._stream = stream

    # ---- what all of them need
    def do(self, library: str, function: str, *arguments: Any) -> None:
        """Call a function of a library."""
        found = getattr(self._library(library), function, None)  # versions differ
        if found is None or found(*arguments):
            raise _Refused(f"{function} is not there, or failed")

    def blas(self, dtype: DType, name: str, *arguments: Any) -> None:
        """Call a function of cuBLAS for a type."""
        self.do("cublas", f"cublas{LETTERS[dtype]}{name}", self._handle("cublas"), *arguments)

    def solver(self, dtype: DType, name: str, *arguments: Any) -> None:
        """Call a function of cuSOLVER for a type."""
        self.do(
            "cusolver", f"cusolverDn{LETTERS[dtype]}{name}", self._handle("cusolver"), *arguments
        )

    def room(self, nbytes: int) -> Any:
        """Memory until it is forgotten: what uses it next is behind this in the queue."""
        memory = self.pool.allocate_many((max(1, nbytes),))[0]
        self._used.append(memory)
        return memory

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy memory of the device."""
        self.device.call("MemcpyAsync", target, source, nbytes, self.device.stream)

    def clear(self, target: int, nbytes: int) -> None:
        """Write zeros."""
        self.device.call("MemsetD8Async", target, 0, nbytes, self.device.stream)

    def good(self, info: int, count: int) -> bool:
        """Whether factorisations have reported no error."""
        return not self.transfers.download(info, 4 * count).any()

    def turn(self, dtype: DType, target: int, source: int, rows: int, columns: int) -> None:
        """Write a row-major matrix column by column."""
        one, zero = _number(dtype, 1), _number(dtype, 0)
        how = TURNED, PLAIN, rows, columns, one, _at(source), columns, zero, _at(target), rows
        self.blas(dtype, "geam", *how, _at(target), rows)

    def triangle(self, dtype: DType, target: int, source: int, n: int, ld: int, uplo: int) -> None:
        """Copy a triangle of a matrix whose columns are `ld` apart; what is not in it is 0."""
        packed = self.room(n * (n + 1) // 2 * dtype.itemsize)
        self.clear(target, n * n * dtype.itemsize)
        self.blas(dtype, "trttp", uplo, n, _at(source), ld, _at(packed.pointer))
        self.blas(dtype, "tpttr", uplo, n, _at(packed.pointer), _at(target), n)

    def table(self, x: DeviceArray) -> ctypes.c_void_p:
        """The addresses of its matrices in the device's memory, for functions of all of them."""
        count, size = prod(x.shape[:-2]), prod(x.shape[-2:]) * x.dtype.itemsize
        room = self.room(8 * count)
        addresses = x.pointer + size * np.arange(count, dtype=np.uint64)
        self.transfers.write(room.pointer, addresses.astype(np.uint64))
        return _at(room.pointer)

    def identity(self, dtype: DType, target: int, n: int) -> None:
        """Write ones to the diagonal of a matrix, and zeros elsewhere."""
        size = dtype.itemsize
        self.clear(target, n * n * size)
        word = np.array([1], dtype.numpy).view(np.uint32)
        (place,) = np.flatnonzero(word)
        every = (n + 1) * size, int(word[place]), 1, n, self.device.stream
        self.device.call("MemsetD2D32Async", target + 4 * int(place), *every)

    def plan(self, kind: int, n: int, batch: int) -> ctypes.c_int:
        """A plan for transforms of contiguous rows, for the next one alone."""
        key = kind, n, batch
        if key not in self._plans:
            if self._is_captured:
                raise _Refused("plans are not made while a queue is captured")
            if len(self._plans) == PLANS:
                del self._plans[next(iter(self._plans))]
            made, size = ctypes.c_int(), ctypes.c_size_t()
            self.do("cufft", "cufftCreate", ctypes.byref(made))
            plan = _Plan(made, size, self._library("cufft"), self.device.driver)
            self.do("cufft", "cufftSetAutoAllocation", made, 0)
            self.do("cufft", "cufftMakePlan1d", made, n, kind, batch, ctypes.byref(size))
            self._plans[key] = plan
        found = self._plans[key]
        self._used.append(found)
        scratch = self.room(found.nbytes.value)
        self.do("cufft", "cufftSetStream", found.handle, _at(self._stream))
        self.do("cufft", "cufftSetWorkArea", found.handle, _at(scratch.pointer))
        return found.handle

    def _library(self, name: str) -> Any:
        library = loaded(name)
        if library is None:
            raise _Refused(f"{name} is not installed")
        return library

    def _handle(self, name: str) -> ctypes.c_void_p:
        if name not in self._handles:
            create, stream = HANDLES[name]
            made = ctypes.c_void_p()
            self.do(name, create, ctypes.byref(made))
            self.do(name, stream, made, _at(self._stream))
            self._handles[name] = made
        return self._handles[name]


class _Plan:
    """A plan of cuFFT, and the bytes it works in; destroyed when nobody has it any more."""

    def __init__(
        self, handle: ctypes.c_int, nbytes: ctypes.c_size_t, library: Any, driver: Driver
    ) -> None:
        self.handle, self.nbytes = handle, nbytes
        self._library, self._driver = library, driver

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending() and not self._driver.child:
            self._library.cufftDestroy(self.handle)


class _Refused(Exception):
    """A library does not do what it is asked for, or is not installed: the host does."""


LibraryFunction = Callable[
    [Mathematics, tuple[Any, ...], list[DeviceArray], list[DeviceArray]], bool
]


def _at(pointer: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(pointer)


def _number(dtype: DType, value: float) -> Any:
    """A number in host memory, as a pointer."""
    array = np.array([value, 0], dtype.real.numpy)  # real and imaginary part
    kind = ctypes.c_float if dtype.real is float32 else ctypes.c_double
    return (kind * 2)(*array)


def _int(value: int) -> ctypes.c_int:
    return ctypes.c_int(value)


# ---- transforms


def _transform(name: str) -> LibraryFunction:
    def run(
        m: Mathematics, options: tuple[Any, ...], given: list[DeviceArray], made: list[DeviceArray]
    ) -> bool:
        (x,), (y,) = given, made
        n, *inverse, norm = options
        backward = name == "irfft" or any(inverse)
        letters, kind = TRANSFORMS[name, x.dtype]
        batch = prod(x.shape[:-1])
        if max(n, batch) >= 1 << 31:
            return False
        source = x.pointer
        if name == "irfft":  # which may write to what it reads
            copy = m.room(x.nbytes)
            m.copy(copy.pointer, source, x.nbytes)
            source = copy.pointer
        plan = m.plan(kind, n, batch)
        direction = (_int(1 if backward else -1),) if name == "fft" else ()
        m.do("cufft", f"cufftExec{letters}", plan, _at(source), _at(y.pointer), *direction)
        scale = {"ortho": 1 / sqrt(n), "backward": 1 / n if backward else 1.0,
                 "forward": 1.0 if backward else 1 / n}[norm or "backward"]  # fmt: skip
        if scale != 1:
            count = ctypes.c_int64(y.nbytes // y.dtype.real.itemsize)
            one = ctypes.c_int64(1)
            m.blas(
                y.dtype.real, "scal_v2_64", count, _number(y.dtype.real, scale), _at(y.pointer), one
            )
        return True

    return run


# ---- factorisations and solutions


def _cholesky(
    m: Mathematics, options: Any, given: list[DeviceArray], made: list[DeviceArray]
) -> bool:
    """Upper triangles by columns are lower ones by rows; the others are zeros."""
    (x,), (lower, *order) = given, made
    n, size = x.shape[-1], ctypes.c_int()
    batch = prod(x.shape[:-2])
    work, info = m.room(x.nbytes), m.room(4 * batch)
    m.copy(work.pointer, x.pointer, x.nbytes)
    m.solver(x.dtype, "potrf_bufferSize", UPPER, n, _at(work.pointer), n, ctypes.byref(size))
    scratch = m.room(size.value * x.dtype.itemsize)
    factors = list(x._replace(pointer=work.pointer).matrices())
    for k, (matrix, target) in enumerate(zip(factors, lower.matrices(), strict=True)):
        rest = _at(scratch.pointer), size.value, _at(info.pointer + 4 * k)
        m.solver(x.dtype, "potrf", UPPER, n, _at(matrix), n, *rest)
        m.triangle(x.dtype, target, matrix, n, n, UPPER)
    for zeros in order:
        m.clear(zeros.pointer, zeros.nbytes)
    return m.good(info.pointer, batch)


def _is_together(a: DeviceArray) -> bool:
    """Whether one call has all matrices of a batch."""
    return prod(a.shape[:-2]) > 1 and a.shape[-1] <= TOGETHER


def _factored(m: Mathematics, a: DeviceArray) -> tuple[Any, Any, Any]:
    """LU factors of the transposes of matrices, the rows exchanged, and whether that worked."""
    n, size = a.shape[-1], ctypes.c_int()
    batch = prod(a.shape[:-2])
    factors, pivots, info = m.room(a.nbytes), m.room(4 * batch * n), m.room(4 * batch)
    m.copy(factors.pointer, a.pointer, a.nbytes)
    if _is_together(a):
        table = m.table(a._replace(pointer=factors.pointer))
        every = table, n, _at(pivots.pointer), _at(info.pointer), batch
        m.blas(a.dtype, "getrfBatched", n, *every)
        return factors, pivots, info
    m.solver(a.dtype, "getrf_bufferSize", n, n, _at(factors.pointer), n, ctypes.byref(size))
    scratch = m.room(size.value * a.dtype.itemsize)
    for k, matrix in enumerate(a._replace(pointer=factors.pointer).matrices()):
        rest = _at(pivots.pointer + 4 * k * n), _at(info.pointer + 4 * k)
        m.solver(a.dtype, "getrf", n, n, _at(matrix), n, _at(scratch.pointer), *rest)
    return factors, pivots, info


def _substituted(
    m: Mathematics,
    a: DeviceArray,
    factors: Any,
    pivots: Any,
    how: int,
    right: DeviceArray,
    columns: int,
) -> None:
    """Solve for right-hand sides that lie by columns, in place, with factors of the transposes."""
    n = a.shape[-1]
    whole = a._replace(pointer=factors.pointer)
    if _is_together(a):
        given = m.table(whole), n, _at(pivots.pointer), m.table(right), n
        status = ctypes.c_int()
        m.blas(
            a.dtype, "getrsBatched", how, n, columns, *given, ctypes.byref(status),
            prod(a.shape[:-2]),
        )  # fmt: skip
        return
    info = m.room(4)
    for k, (matrix, b) in enumerate(zip(whole.matrices(), right.matrices(), strict=True)):
        rest = _at(pivots.pointer + 4 * k * n), _at(b), n, _at(info.pointer)
        m.solver(a.dtype, "getrs", how, n, columns, _at(matrix), n, *rest)


def _solve(m: Mathematics, options: Any, given: list[DeviceArray], made: list[DeviceArray]) -> bool:
    """A transpose is factored, and its transpose solved with."""
    (a, b), (x,) = given, made
    if a.shape[:-2] != b.shape[:-2]:
        return False
    n, columns = b.shape[-2:]
    factors, pivots, info = _factored(m, a)
    if columns == 1:  # lies by rows as by columns
        m.copy(x.pointer, b.pointer, b.nbytes)
        _substituted(m, a, factors, pivots, TURNED, x, columns)
        return m.good(info.pointer, prod(a.shape[:-2]))
    turned = b._replace(pointer=m.room(b.nbytes).pointer)
    for source, target in zip(b.matrices(), turned.matrices(), strict=True):
        m.turn(b.dtype, target, source, n, columns)
    _substituted(m, a, factors, pivots, TURNED, turned, columns)
    for source, target in zip(turned.matrices(), x.matrices(), strict=True):
        m.turn(b.dtype, target, source, columns, n)
    return m.good(info.pointer, prod(a.shape[:-2]))


def _inverse(
    m: Mathematics, options: Any, given: list[DeviceArray], made: list[DeviceArray]
) -> bool:
    """The inverse of the transpose, by columns, is that of the matrix by rows."""
    (a,), (x, *order) = given, made
    n = a.shape[-1]
    factors, pivots, info = _factored(m, a)
    if not _is_together(a):
        for target in x.matrices():
            m.identity(x.dtype, target, n)
        _substituted(m, a, factors, pivots, PLAIN, x, n)
    else:
        every = m.table(a._replace(pointer=factors.pointer)), n, _at(pivots.pointer), m.table(x), n
        m.blas(a.dtype, "getriBatched", n, *every, _at(info.pointer), prod(a.shape[:-2]))
    for zeros in order:
        m.clear(zeros.pointer, zeros.nbytes)
    return m.good(info.pointer, prod(a.shape[:-2]))


def _triangular(checked: bool) -> LibraryFunction:
    def run(
        m: Mathematics, options: tuple[Any, ...], given: list[DeviceArray], made: list[DeviceArray]
    ) -> bool:
        """By columns, with the transpose: from the left is how trsm is fast."""
        (a, b), (x,), (upper, unit) = given, made, options
        if a.shape[:-2] != b.shape[:-2]:
            return False
        n, columns = b.shape[-2:]
        if checked and not unit and not all(_regular(m, a.dtype, k, n) for k in a.matrices()):
            return False
        turned = x if columns == 1 else x._replace(pointer=m.room(x.nbytes).pointer)
        how = LEFT, LOWER if upper else UPPER, TURNED, int(unit), n, columns
        if columns == 1:  # lies by rows as by columns
            m.copy(x.pointer, b.pointer, b.nbytes)
        every = zip(a.matrices(), b.matrices(), turned.matrices(), x.matrices(), strict=True)
        for matrix, right, work, result in every:
            if columns > 1:
                m.turn(b.dtype, work, right, n, columns)
            where = _number(a.dtype, 1), _at(matrix), n, _at(work), n
            m.blas(a.dtype, "trsm_v2", *how, *where)
            if columns > 1:
                m.turn(b.dtype, result, work, columns, n)
        return True

    return run


def _regular(m: Mathematics, dtype: DType, matrix: int, n: int) -> bool:
    """Whether no number on a diagonal is zero."""
    place = ctypes.c_int()
    name = f"cublasI{LETTERS[dtype].lower()}amin_v2"
    m.do("cublas", name, m._handle("cublas"), n, _at(matrix), n + 1, ctypes.byref(place))
    least = matrix + (place.value - 1) * (n + 1) * dtype.itemsize
    return bool(m.transfers.download(least, dtype.itemsize).any())


def _eigh(
    m: Mathematics, options: tuple[Any, ...], given: list[DeviceArray], made: list[DeviceArray]
) -> bool:
    """The transpose of a symmetric matrix is the matrix; its vectors come by columns."""
    (x,), (values, vectors), (triangle,) = given, made, options
    if x.dtype.is_complex:
        return False
    n, size = x.shape[-1], ctypes.c_int()
    work = m.room(x.nbytes)
    m.copy(work.pointer, x.pointer, x.nbytes)
    how = VECTORS, UPPER if triangle == "L" else LOWER, n
    first = _at(work.pointer), n, _at(values.pointer)
    m.solver(x.dtype, "syevd_bufferSize", *how, *first, ctypes.byref(size))
    scratch = m.room(size.value * x.dtype.itemsize)
    batch = prod(x.shape[:-2])
    info = m.room(4 * batch)
    places = zip(
        x._replace(pointer=work.pointer).matrices(),
        values.matrices(1),
        vectors.matrices(),
        strict=True,
    )
    for k, (matrix, value, vector) in enumerate(places):
        rest = _at(scratch.pointer), size.value, _at(info.pointer + 4 * k)
        m.solver(x.dtype, "syevd", *how, _at(matrix), n, _at(value), *rest)
        m.turn(x.dtype, vector, matrix, n, n)
    return m.good(info.pointer, batch)


def _qr(
    m: Mathematics, options: tuple[Any, ...], given: list[DeviceArray], made: list[DeviceArray]
) -> bool:
    """By columns, and back: reflections give no transpose."""
    (x,), (mode,) = given, options
    rows, columns = x.shape[-2:]
    if rows < columns or mode == "complete":
        return False
    size, other = ctypes.c_int(), ctypes.c_int()
    item = x.dtype.itemsize
    work, factors = m.room(rows * columns * item), m.room(columns * item)
    square, info = m.room(columns * columns * item), m.room(4)
    form = "ungqr" if x.dtype.is_complex else "orgqr"
    at, tau = (_at(work.pointer), rows), _at(factors.pointer)
    m.solver(x.dtype, "geqrf_bufferSize", rows, columns, *at, ctypes.byref(size))
    thrice = rows, columns, columns
    m.solver(x.dtype, f"{form}_bufferSize", *thrice, *at, tau, ctypes.byref(other))
    length = max(size.value, other.value)
    scratch = m.room(length * item)
    rest = _at(scratch.pointer), length, _at(info.pointer)
    *orthogonal, upper = (list(y.matrices()) for y in made)
    for k, (source, r) in enumerate(zip(x.matrices(), upper, strict=True)):
        m.turn(x.dtype, work.pointer, source, rows, columns)
        m.solver(x.dtype, "geqrf", rows, columns, *at, tau, *rest)
        m.triangle(x.dtype, square.pointer, work.pointer, columns, rows, UPPER)
        m.turn(x.dtype, r, square.pointer, columns, columns)
        for q in orthogonal:
            m.solver(x.dtype, form, *thrice, *at, tau, *rest)
            m.turn(x.dtype, q[k], work.pointer, columns, rows)
    return True


def _svd(
    m: Mathematics, options: tuple[Any, ...], given: list[DeviceArray], made: list[DeviceArray]
) -> bool:
    """Of the transpose, by Jacobi's rotations: left and right change places."""
    (x,), (full, vectors) = given, options
    rows, columns = x.shape[-2:]
    k = min(rows, columns)
    if x.dtype.is_complex or (vectors and full and rows != columns):
        return False
    item, size, setting = x.dtype.itemsize, ctypes.c_int(), ctypes.c_void_p()
    m.do("cusolver", "cusolverDnCreateGesvdjInfo", ctypes.byref(setting))
    try:
        work, left, right = (m.room(n * item) for n in (rows * columns, columns * k, rows * k))
        batch = prod(x.shape[:-2])
        info = m.room(4 * batch)
        singular = made[1] if vectors else made[0]
        how = int(vectors), 1, columns, rows, _at(work.pointer), columns
        for number, (source, s) in enumerate(zip(x.matrices(), singular.matrices(1), strict=True)):
            m.copy(work.pointer, source, rows * columns * item)
            where = _at(s), _at(left.pointer), columns, _at(right.pointer), rows
            m.solver(x.dtype, "gesvdj_bufferSize", *how, *where, ctypes.byref(size), setting)
            scratch = m.room(size.value * item)
            rest = _at(scratch.pointer), size.value, _at(info.pointer + 4 * number), setting
            m.solver(x.dtype, "gesvdj", *how, *where, *rest)
            if vectors:
                m.turn(x.dtype, made[0].pointer + number * rows * k * item, right.pointer, k, rows)
                m.copy(
                    made[2].pointer + number * columns * k * item, left.pointer, columns * k * item
                )
        return m.good(info.pointer, batch)
    finally:
        m.do("cusolver", "cusolverDnDestroyGesvdjInfo", setting)


#: Operations of the library, and who computes them.
CALLS: dict[str, LibraryFunction] = {
    "fourier.fft": _transform("fft"),
    "fourier.rfft": _transform("rfft"),
    "fourier.irfft": _transform("irfft"),
    "linalg.cholesky": _cholesky,
    "linalg.cholesky_ex": _cholesky,
    "linalg.solve": _solve,
    "linalg.inverse": _inverse,
    "linalg.inverse_ex": _inverse,
    "linalg.triangular": _triangular(checked=True),
    "linalg.triangular_ex": _triangular(checked=False),
    "linalg.eigh": _eigh,
    "linalg.qr": _qr,
    "linalg.svd": _svd,
}
