"""Calls of the library: native code against its definition, and programs with calls in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import backends
from genesis import ndarray as nd
from genesis.backends.base import Launch
from genesis.backends.cpu.library import NATIVE_CALLS, merge_sort, select, sort
from genesis.backends.cpu.runtime import runtime
from genesis.compiler import compile_graph
from genesis.compiler.compile import program_key
from genesis.compiler.options import current
from genesis.content_store import default
from genesis.ir import ops
from genesis.ir.dtype import DType, as_dtype, float32, float64, int64
from genesis.ir.evaluate import evaluate
from genesis.ir.node import Leaf, LibraryCall, node
from genesis.ir.numpy_library import MODULES, reference
from genesis.ir.size import evaluate as known
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.ops.library_calls import call

ROOT = Path(__file__).parents[2]
REAL = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float32", "float64",
]  # fmt: skip


@pytest.fixture
def threads() -> Iterator[None]:
    before = runtime.get_num_threads()
    yield
    runtime.set_num_threads(before)


# ---- native code against the definitions

ZONE = 256  # bytes before and after every array that nothing may touch
MARK = 0xA5


class Zoned:
    """Memory for an array between two zones that are watched."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = np.full(ZONE + nbytes + ZONE + 64, MARK, np.uint8)
        self.start = ZONE + -(self.bytes.ctypes.data + ZONE) % 64
        self.nbytes = nbytes

    @property
    def pointer(self) -> int:
        return int(self.bytes.ctypes.data) + self.start

    def view(self, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        part = self.bytes[self.start : self.start + self.nbytes]
        return part.view(dtype.numpy).reshape(shape)

    @property
    def intact(self) -> bool:
        around = self.bytes[: self.start], self.bytes[self.start + self.nbytes :]
        return all((part == MARK).all() for part in around)


def checked(name: str, options: tuple[Any, ...], *given: np.ndarray, results: list[Any]) -> None:
    """Run native code on 1, 2 and 4 threads; compare bits, and watch what is around the arrays."""
    dtypes = [as_dtype(x.dtype.name) for x in given]
    operands = tuple((d, x.shape) for d, x in zip(dtypes, given, strict=True))
    what = LibraryCall(name, options, operands, tuple(results))
    backend = backends.get("cpu")
    claim = backend.native_call(what)
    assert claim is not None
    expected = reference(name)(options, *given)
    words = len(given) + len(results) + len(claim.scratch) + len(claim.numbers)
    program = backend.assemble([Launch(claim.binary, tuple(range(words)))])
    for count in (1, 2, 4):
        runtime.set_num_threads(count)
        forms = [*operands, *results]
        memory = [Zoned(int(np.prod(shape)) * dtype.itemsize) for dtype, shape in forms]
        memory += [Zoned(known(nbytes, {})) for nbytes in claim.scratch]
        for x, (dtype, shape), zoned in zip(given, operands, memory, strict=False):
            zoned.view(dtype, shape)[...] = x
        numbers = [known(n, {}) for n in claim.numbers]
        program.run(array("Q", [zoned.pointer for zoned in memory] + numbers))
        assert all(zoned.intact for zoned in memory)
        for x, (dtype, shape), zoned in zip(given, operands, memory, strict=False):
            assert zoned.view(dtype, shape).tobytes() == x.tobytes()
        for value, (dtype, shape), zoned in zip(
            expected, results, memory[len(given) :], strict=False
        ):
            found = zoned.view(dtype, shape)
            assert found.tobytes() == value.astype(dtype.numpy).tobytes(), (name, options, shape)


def contents(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Extremes and ties; for floats NaN of either sign, zeros of either sign and infinities."""
    if dtype.name == "bool":
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        x = rng.integers(int(dtype.min), int(dtype.max), shape, dtype.numpy, endpoint=True)
        few = np.array([dtype.min, dtype.max, 0, 1], dtype.numpy)
    else:
        x = (rng.standard_normal(shape) * 100).astype(dtype.numpy)
        few = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0]).astype(dtype.numpy)
    return np.where(rng.random(shape) < 0.4, few[rng.integers(0, len(few), shape)], x)


def check_all(rng: np.random.Generator, name: str, rows: int, n: int) -> None:
    dtype = as_dtype(name)
    x = contents(rng, dtype, (rows, n))
    form = [(dtype, (rows, n)), (int64, (rows, n))]
    for descending in (False, True):
        checked("sorting.sort", (descending,), x, results=form)
    if n:
        ranks = rng.integers(-2, n + 2, (rows, 3))
        form = [(dtype, (rows, 3)), (int64, (rows, 3))]
        checked("sorting.select", (), x, ranks, results=form)


@pytest.mark.parametrize("name", REAL)
def test_all_dtypes(rng: np.random.Generator, name: str, threads: None) -> None:
    check_all(rng, name, 5, 100)
    check_all(rng, name, 2, 700)
    dtype = as_dtype(name)
    x = contents(rng, dtype, (3, 300))
    for k in (1, 20):
        form = [(dtype, (3, k)), (int64, (3, k))]
        for largest in (False, True):
            checked("sorting.topk", (k, largest), x, results=form)


LENGTHS = [
    0, 1, 2, 33, 500,
    *(edge + d for edge in (merge_sort.RUN, select.FEW, merge_sort.MANY) for d in (-1, 0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("name", ["uint8", "float32", "int64"])
def test_short_rows(rng: np.random.Generator, name: str, threads: None) -> None:
    for n in LENGTHS:
        check_all(rng, name, 3, n)


@pytest.mark.parametrize("name", ["float32", "int64"])
@pytest.mark.parametrize("n", [sort.SHORT - 1, sort.SHORT, sort.SHORT + 1, 2 * sort.BLOCK + 1])
def test_long_rows(rng: np.random.Generator, name: str, n: int, threads: None) -> None:
    check_all(rng, name, 2, n)


def test_topk_at_its_limits(rng: np.random.Generator, threads: None) -> None:
    for n, k in ((1, 1), (16, 16), (32, 16), (33, 17), (100, 99), (3000, 50), (3000, 2999)):
        for x in (
            rng.standard_normal((2, n)),
            np.arange(2.0 * n).reshape(2, n),  # every element is better than all before
            np.zeros((2, n)),
            np.full((2, n), np.nan),
        ):
            form = [(float64, (2, k)), (int64, (2, k))]
            checked("sorting.topk", (k, True), x, results=form)


def test_digits_in_common(rng: np.random.Generator, threads: None) -> None:
    """Passes are left out where all elements have one digit; in which of them must not matter."""
    for shift in (0, 8, 24, 40):
        x = rng.integers(0, 1000, (2, 70_000)) << shift
        checked("sorting.sort", (False,), x, results=[(int64, x.shape), (int64, x.shape)])
    x = np.full((1, 70_000), 7)
    checked("sorting.sort", (True,), x, results=[(int64, x.shape), (int64, x.shape)])


def test_every_claim_has_a_definition() -> None:
    for name in NATIVE_CALLS:
        assert callable(reference(name))
    for name in ("sorting", "sorting.nothing", "os.system", "sorting.np"):
        with pytest.raises(KeyError, match="the library has no operation"):
            reference(name)
    assert {name.partition(".")[0] for name in NATIVE_CALLS} <= set(MODULES)


def test_complex_numbers_are_not_claimed() -> None:
    form = (as_dtype("complex64"), (4,))
    assert (
        backends.get("cpu").native_call(LibraryCall("sorting.sort", (False,), (form,), (form,)))
        is None
    )


# ---- programs with calls


def inverse(x: NDArray) -> NDArray:
    (value,) = call("linalg.inverse", (), [x.value], [(x.dtype, x.shape)])
    return wrap(value)


def spd(rng: np.random.Generator, *shape: int) -> np.ndarray:
    x = rng.standard_normal(shape)
    return x @ x.swapaxes(-1, -2) + np.eye(shape[-1])


def test_calls_between_kernels(rng: np.random.Generator) -> None:
    def function(x: NDArray) -> tuple[NDArray, NDArray]:
        values, order = nd.sort(inverse(x * 2) + 1, 0)
        return values @ x, order

    x = spd(rng, 5, 5)
    replayed = genesis.jit(function)
    for factor in (1.0, 2.0, 3.0):
        given = nd.array(x * factor)
        expected = np.linalg.inv(2 * factor * x) + 1
        for values, order in (function(given), replayed(given)):
            np.testing.assert_allclose(values.numpy(), np.sort(expected, 0) @ (x * factor))
            np.testing.assert_array_equal(order.numpy(), np.argsort(expected, 0, kind="stable"))
    assert replayed.captures == 1


def test_a_host_step_in_a_loop(rng: np.random.Generator) -> None:
    x, start = spd(rng, 4, 3, 3), np.eye(3)

    def body(carry: NDArray, item: NDArray) -> tuple[NDArray, NDArray]:
        found = inverse(carry + item)
        return found, nd.sort(found.reshape(-1)).values

    def both(start: NDArray, items: NDArray) -> Any:
        return nd.scan(body, start, items)

    for function in (both, genesis.jit(both)):
        last, each = function(nd.array(start), nd.array(x))
        carry = start
        for k, item in enumerate(x):
            carry = np.linalg.inv(carry + item)
            np.testing.assert_allclose(each.numpy()[k], np.sort(carry.reshape(-1)))
        np.testing.assert_allclose(last.numpy(), carry)


def test_a_failing_step_changes_nothing() -> None:
    x = nd.array([1.0, 2.0]).realize()

    @genesis.jit
    def function(matrix: NDArray) -> NDArray:
        x[:] = x * 10
        return nd.linalg.inv(matrix) + x.sum()

    singular = nd.array([[[2.0, 0.0], [0.0, 2.0]], [[1.0, 1.0], [1.0, 1.0]]]).realize()
    with pytest.raises(np.linalg.LinAlgError, match=r"linalg\.inverse: matrix number \(1,\)"):
        function(singular).realize()
    assert x.tolist() == [1.0, 2.0]
    assert singular.tolist() == [[[2.0, 0.0], [0.0, 2.0]], [[1.0, 1.0], [1.0, 1.0]]]
    good = nd.array([[[2.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, 1.0]]])
    assert function(good).tolist()[0][0] == [30.5, 30.0]
    assert x.tolist() == [10.0, 20.0]


def test_an_error_names_the_line() -> None:
    result = nd.linalg.inv(nd.zeros((2, 2)))
    with pytest.raises(np.linalg.LinAlgError) as caught:
        result.realize()
    assert any("test_library.py" in note for note in caught.value.__notes__)


def test_explain_lists_calls(rng: np.random.Generator) -> None:
    text = str(genesis.explain(lambda x: nd.sort(nd.linalg.inv(x)).values, nd.eye(3)))
    assert "2 library calls" in text
    assert "call linalg.inverse: on the host" in text or "call linalg.inverse" in text
    assert "call sorting.sort: native code" in text
    assert "test_library.py" in text


def test_the_oracle_evaluates_calls(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 6)).astype(np.float32)
    shape = x.shape
    leaf = node(ops.BUFFER, (), Leaf(0, (6, 1)), float32, shape)
    what = LibraryCall(
        "sorting.sort", (True,), ((float32, shape),), ((float32, shape), (int64, shape))
    )
    whole = node(ops.CALL, (leaf,), what, float32, ())
    roots = [node(ops.ITEM, (whole,), k, *what.results[k]) for k in range(2)]
    values, order = evaluate(roots, [x.reshape(-1)], [])
    np.testing.assert_array_equal(values, -np.sort(-x, -1))
    np.testing.assert_array_equal(order, np.argsort(-x, -1, kind="stable"))


# ---- on disk

SCRIPT = """
import numpy as np
from genesis import ndarray as nd
x = nd.array(np.arange(9.0).reshape(3, 3) + 4 * np.eye(3))
print(nd.sort(nd.linalg.inv(x) * 2).values.numpy().round(9).tolist())
"""
FORBIDDEN = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        refused = "genesis.compiler.pipeline", "genesis.backends.cpu.codegen", "islpy"
        if name.startswith(refused):
            raise ImportError(name + " is not needed for what is found on disk")
sys.meta_path.insert(0, Refused())
"""


def test_another_process_finds_programs_with_calls(tmp_path: Path) -> None:
    outputs = []
    for code in (SCRIPT, FORBIDDEN + SCRIPT):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"GENESIS_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda step: ["os.system", *step[1:]],
        lambda step: ["linalg.nothing", *step[1:]],
        lambda step: [step[0], [{}], *step[2:]],
        lambda step: [*step[:2], [[10_000, "float64", []]], step[3]],
        lambda step: [*step[:2], [[0, "text", []]], step[3]],
    ],
)
def test_a_damaged_program_is_built_anew(
    damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setenv("GENESIS_CACHE", str(tmp_path / "cache"))
    leaf = node(ops.BUFFER, (), Leaf(0, (3, 1)), float64, (3, 3))
    form = (float64, (3, 3))
    whole = node(
        ops.CALL, (leaf,), LibraryCall("linalg.inverse", (), (form,), (form,)), float64, ()
    )
    roots = [node(ops.ITEM, (whole,), 0, *form)]
    compile_graph(roots)
    store = default()
    assert store is not None
    key = program_key(roots, frozenset(), backends.get("cpu"), current())
    good = store.get("program", key)
    assert good is not None
    content = json.loads(good)
    (place,) = [k for k, step in enumerate(content["launches"]) if isinstance(step[0], str)]
    content["launches"][place] = damage(content["launches"][place])
    store.put("program", key, json.dumps(content).encode())
    compile_graph(roots)
    assert store.get("program", key) == good
