"""What is kept on disk: found again by every process, never trusted, never in the way."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genesis import content_store as disk
from genesis.backends import get
from genesis.compiler import Program, compile_graph, using
from genesis.compiler import compile as compiler
from genesis.compiler.compile import program_key
from genesis.compiler.options import current
from genesis.compiler.program import disk_cache
from genesis.compiler.program.digest import identity, spell
from genesis.compiler.report import report
from genesis.content_store import CacheWarning, ContentStore, UnsafeDirectory, digest
from genesis.ir import ops
from genesis.ir.dtype import bool_, float32, float64, int32, int64
from genesis.ir.node import Leaf, Node, const, elementwise, node
from genesis.ir.size import Size, evaluate, product

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for every test."""
    path = tmp_path / "cache"
    monkeypatch.setenv("GENESIS_CACHE", str(path))
    return path


@pytest.fixture
def store(folder: Path) -> ContentStore:
    return ContentStore(folder)


def files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"*.{kind}"))


# ---- the store


def test_what_is_put_is_got(store: ContentStore) -> None:
    assert store.get("object", "k") is None
    store.put("object", "k", b"one")
    store.put("program", "k", b"two")
    store.put("object", "", b"")
    assert store.get("object", "k") == b"one"
    assert store.get("program", "k") == b"two"
    assert store.get("object", "") == b""
    store.put("object", "k", b"three")
    assert store.get("object", "k") == b"three"


def test_another_process_finds_it(folder: Path, store: ContentStore) -> None:
    store.put("object", "k", bytes(range(256)) * 100)
    assert ContentStore(folder).get("object", "k") == bytes(range(256)) * 100


def test_keys_tell_parts_apart() -> None:
    keys = [digest(), digest(""), digest("", ""), digest("ab"), digest("a", "b"), digest("b", "a")]
    assert len(set(keys)) == len(keys)
    assert digest("é") == digest("é".encode())


def test_every_damaged_byte_is_noticed(folder: Path, store: ContentStore) -> None:
    store.put("object", "k", b"payload")
    (file,) = files(folder, "object")
    good = file.read_bytes()
    for position in range(len(good)):
        file.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        assert store.get("object", "k") is None
    for length in range(len(good)):
        file.write_bytes(good[:length])
        assert store.get("object", "k") is None
    file.write_bytes(good + b"x")
    assert store.get("object", "k") is None
    store.put("object", "k", b"payload")
    assert file.read_bytes() == good


def test_files_of_another_format_are_ignored(
    folder: Path, store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(disk, "_MAGIC", b"GENESIS0")
        store.put("object", "k", b"payload")
        assert store.get("object", "k") == b"payload"
    assert store.get("object", "k") is None


def test_swapped_files_are_noticed(folder: Path, store: ContentStore) -> None:
    store.put("object", "a", b"payload of a")
    store.put("object", "b", b"payload of b")
    one, two = files(folder, "object")
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert store.get("object", "a") is None
    assert store.get("object", "b") is None


def test_a_kind_is_not_taken_for_another(folder: Path, store: ContentStore) -> None:
    store.put("object", "k", b"payload")
    (file,) = files(folder, "object")
    file.rename(file.with_suffix(".program"))
    assert store.get("program", "k") is None


@pytest.mark.parametrize("kind", ["directory", "pipe", "link", "dangling link"])
def test_only_plain_files_are_read(folder: Path, store: ContentStore, kind: str) -> None:
    store.put("object", "k", b"payload")
    (file,) = files(folder, "object")
    moved = file.rename(folder.parent / "moved")
    if kind == "directory":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(moved if kind == "link" else folder / "nowhere")
    assert store.get("object", "k") is None


def test_other_sources_give_other_entries(
    folder: Path, store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("object", "k", b"payload")
    monkeypatch.setattr(disk, "generation", lambda: "edited")
    assert ContentStore(folder).get("object", "k") is None


def test_generation_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "genesis"
    for name in ("ir", "compiler", "backends", "ndarray"):
        (package / name / "__pycache__").mkdir(parents=True)
    source = package / "backends" / "runtime.ll"
    source.write_text("one")
    monkeypatch.setattr(disk, "__file__", str(package / "store.py"))
    compute = disk.generation.__wrapped__
    first = compute()
    (package / "ndarray" / "x.py").write_text("not compiled from here")
    (package / "ir" / "__pycache__" / "x.pyc").write_text("made by Python")
    assert compute() == first
    source.write_text("two")
    second = compute()
    source.rename(source.with_name("renamed.ll"))
    assert len({first, second, compute()}) == 3


# ---- where it is


def test_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert disk.directory() == tmp_path / "cache"
    for off in ("", "0", "off"):
        monkeypatch.setenv("GENESIS_CACHE", off)
        assert disk.directory() is None
        assert disk.default() is None
    monkeypatch.delenv("GENESIS_CACHE")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert disk.directory() == Path("/home/somebody/.cache/genesis")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/to/be/ignored")
    assert disk.directory() == Path("/home/somebody/.cache/genesis")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/tmp/x")
    assert disk.directory() == Path("/var/tmp/x/genesis")


def test_made_for_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "new" / "deeper" / "genesis"
        ContentStore(path).put("object", "k", b"payload")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o700
    (file,) = files(path, "object")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_directory_others_can_write_to_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UnsafeDirectory, match=f"mode {mode & 0o777:o}"):
        ContentStore(folder)


def test_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        ContentStore(folder)


def test_a_file_in_its_place_is_refused(folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(NotADirectoryError):
        ContentStore(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(UnsafeDirectory, match="user 12345"):
        ContentStore(folder)


def test_without_a_safe_place_there_is_one_warning_and_no_cache(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert_right(compile_graph(AFFINE), *AFFINE_CASE)
    (warning,) = [w for w in caught if w.category is CacheWarning]
    assert "others may write" in str(warning.message) and str(folder) in str(warning.message)
    assert not list(folder.iterdir())


# ---- writing fails


@contextmanager
def one_warning(text: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    (warning,) = [w for w in caught if w.category is CacheWarning]
    assert text in str(warning.message)


def test_a_full_disk_ends_writing(folder: Path, store: ContentStore) -> None:
    """Of a real kind: with a limit on the size of files, a write does not finish."""
    store.put("object", "before", b"payload")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with one_warning("cannot write"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            for k in range(3):
                store.put("object", f"large {k}", bytes(100_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.put("object", "after", b"payload")
    assert store.get("object", "before") == b"payload"
    assert store.get("object", "after") is None
    assert [e.kind for e in store.entries()] == ["object"]
    assert len(list(folder.iterdir())) == 1  # nothing half-written is left


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["open", "replace"])
def test_a_store_that_cannot_be_written_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    assert_right(compile_graph(AFFINE), *AFFINE_CASE)
    kept = sorted(folder.iterdir())
    original = getattr(os, call)

    def failing(*args: Any, **kwargs: Any) -> Any:
        if call == "replace" or args[1] & os.O_CREAT:
            raise OSError(error, os.strerror(error))
        return original(*args, **kwargs)

    disk._opened.cache_clear()
    monkeypatch.setattr(os, call, failing)
    with one_warning(os.strerror(error)):
        assert_right(found(AFFINE), *AFFINE_CASE)
        assert_right(compile_graph(ROWS), *ROWS_CASE)
        assert_right(compile_graph(ROWS), *ROWS_CASE)
    assert sorted(folder.iterdir()) == kept


def test_a_read_only_directory_is_read(folder: Path) -> None:
    ContentStore(folder).put("object", "k", b"payload")
    folder.chmod(0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("this user may write anywhere")
    store = ContentStore(folder)
    with one_warning("cannot write"):
        store.put("object", "other", b"payload")
    assert store.get("object", "k") == b"payload"


def test_a_directory_that_vanishes_is_no_disaster(folder: Path, store: ContentStore) -> None:
    store.put("object", "k", b"payload")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert store.get("object", "k") is None
    with one_warning("cannot write"):
        store.put("object", "k", b"payload")


# ---- bounds


def age(file: Path, days: float) -> None:
    then = time.time() - days * 24 * 60 * 60
    os.utime(file, (then, then))


def test_what_is_unused_for_longest_goes_first(folder: Path) -> None:
    store = ContentStore(folder)
    for k in range(110):
        store.put("object", str(k), bytes(4000))
        age(folder / store._name("object", str(k)), days=200 - k)
    for k in range(10):
        assert store.get("object", str(k)) is not None  # so it counts as used today
    ContentStore(folder, limit=100 * 4096).trim()
    assert sum(e.nbytes for e in store.entries()) <= 90 * 4096
    present = [k for k in range(110) if store.get("object", str(k)) is not None]
    assert present[:10] == list(range(10))
    assert present[10:] == list(range(110 - len(present[10:]), 110))


def test_a_process_that_writes_much_trims(folder: Path) -> None:
    store = ContentStore(folder, limit=1 << 20)
    for k in range(400):
        store.put("object", str(k), bytes(10_000))
    assert sum(e.nbytes for e in store.entries()) <= 1.1 * (1 << 20)


def test_a_hit_is_noted_once_a_day(folder: Path, store: ContentStore) -> None:
    store.put("object", "k", b"payload")
    (file,) = files(folder, "object")
    age(file, days=0.5)
    before = file.stat().st_mtime
    assert store.get("object", "k") == b"payload"
    assert file.stat().st_mtime == before
    age(file, days=1.5)
    now = time.time()
    assert store.get("object", "k") == b"payload"
    assert file.stat().st_mtime > now - 1  # the clock of files is a coarse one


def test_leftovers_of_killed_writers_go(folder: Path, store: ContentStore) -> None:
    name = store._name("object", "k")
    old, new = folder / f"{name}.0123456789ab", folder / f"{name}.ba9876543210"
    old.write_bytes(b"half")
    new.write_bytes(b"being written now")
    age(old, days=2)
    store.trim()
    assert not old.exists() and new.exists()
    assert store.entries() == []


KILLED = """
import os, signal, sys
from pathlib import Path
from genesis import content_store as store

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

class Half:
    def __init__(self, file): self.file = file
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def write(self, data):
        os.write(self.file, data[: len(data) // 2])
        kill()

opened = store.ContentStore(Path(sys.argv[1]))
if sys.argv[2] == "half":
    store.open = lambda file, mode: Half(file)
else:
    os.replace = kill
opened.put("object", "k", b"payload")
"""


@pytest.mark.parametrize("when", ["half", "whole"])
def test_a_writer_that_is_killed_leaves_nothing_that_counts(
    folder: Path, store: ContentStore, when: str
) -> None:
    """Killed with half of a file written, or all of it and not renamed."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), when], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    (left,) = folder.iterdir()
    assert store.get("object", "k") is None and store.entries() == []
    store.put("object", "k", b"payload")
    assert store.get("object", "k") == b"payload"
    age(left, days=2)
    store.trim()
    assert [f.name for f in folder.iterdir()] == [store._name("object", "k")]


def test_clear_leaves_the_files_of_others(folder: Path, store: ContentStore) -> None:
    store.put("object", "k", b"payload")
    store.put("program", "k", b"payload")
    (folder / "notes.txt").write_text("mine")
    leftover = folder / f"{store._name('object', 'x')}.0123456789ab"
    leftover.write_bytes(b"half")
    age(leftover, days=0.1)
    assert sorted(e.kind for e in store.clear()) == ["object", "program"]
    assert [f.name for f in folder.iterdir()] == ["notes.txt"]


def test_readers_writers_and_eviction_at_once(folder: Path) -> None:
    """A reader gets the whole entry or none, whatever happens to the file meanwhile."""
    payloads = {str(k): os.urandom(20_000) for k in range(20)}
    writers = [threading.Thread(target=lambda: write()) for _ in range(2)]
    wrong = []

    def write() -> None:
        store = ContentStore(folder, limit=200_000)
        for _ in range(20):
            for key, payload in payloads.items():
                store.put("object", key, payload)
            store.trim()

    def read() -> None:
        store = ContentStore(folder)
        while any(t.is_alive() for t in writers):
            wrong.extend(
                key
                for key, payload in payloads.items()
                if store.get("object", key) not in (None, payload)
            )

    threads = [*writers, *(threading.Thread(target=read) for _ in range(2))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---- identity


def leaf(
    slot: int, *shape: Any, strides: Sequence[Any] | None = None, dtype: Any = float32
) -> Node:
    if strides is None:
        strides = [product(shape[k + 1 :]) for k in range(len(shape))]
    return node(ops.BUFFER, (), Leaf(slot, tuple(strides), 0), dtype, tuple(shape))


def symbol(name: str = "n", low: int = 1, high: int = 100, multiple: int = 1) -> Size:
    return Size.symbol(name, low, high, multiple)


N = symbol()
X, Y = leaf(0, 8, 8), leaf(1, 8, 8)
DIFFERENT: list[list[Node]] = [
    [X],
    [Y],
    [X, Y],
    [Y, X],
    [X, X],
    [leaf(0, 8, 8, dtype=int32)],
    [leaf(0, 64)],
    [leaf(0, 8, 8, strides=(1, 8))],
    [leaf(0, 8, 8, strides=(0, 1))],
    [node(ops.BUFFER, (), Leaf(0, (8, 1), 1), float32, (8, 8))],
    [leaf(0, N, 8)],
    [leaf(0, symbol("m"), 8)],
    [leaf(0, symbol(low=2), 8)],
    [leaf(0, symbol(high=101), 8)],
    [leaf(0, symbol(multiple=2), 8)],
    [leaf(0, N + 1, 8)],
    [leaf(0, 2 * N, 8)],
    [leaf(0, N // 2, 8)],
    [leaf(0, N // 3, 8)],
    [leaf(0, N * N, 8)],
    [elementwise(ops.SUB, X, Y)],
    [elementwise(ops.SUB, Y, X)],
    [elementwise(ops.ADD, X, Y)],
    [elementwise(ops.ADD, X, X)],
    [elementwise(ops.NEG, elementwise(ops.NEG, X))],
    [elementwise(ops.NEG, X)],
    [elementwise(ops.NEG, X), elementwise(ops.NEG, elementwise(ops.NEG, X))],
    [const(0.0, float32)],
    [const(-0.0, float32)],
    [const(0.0, float64)],
    [const(0, int64)],
    [const(0, int32)],
    [const(False, bool_)],
    [const(1, int64)],
    [const(True, bool_)],
    [const(1.0, float32)],
    [const(float("nan"), float32)],
    [const(float("inf"), float32)],
    [const(-float("inf"), float32)],
    [node(ops.SCALAR, (), 0, float32)],
    [node(ops.SCALAR, (), 1, float32)],
    [node(ops.SIZE, (), N, int64)],
    [node(ops.SUM, (X,), (0,), float32, (8,))],
    [node(ops.SUM, (X,), (1,), float32, (8,))],
    [node(ops.PERMUTE, (X,), (0, 1), float32, (8, 8))],
    [node(ops.PERMUTE, (X,), (1, 0), float32, (8, 8))],
    [node(ops.RESHAPE, (X,), None, float32, (64,))],
    [node(ops.RESHAPE, (X,), None, float32, (4, 16))],
    [node(ops.SLICE, (X,), ((0, 1), (0, 2)), float32, (8, 4))],
    [node(ops.SLICE, (X,), ((0, 1), (1, 2)), float32, (8, 4))],
]


def test_different_graphs_have_different_identities() -> None:
    assert len({identity(roots) for roots in DIFFERENT}) == len(DIFFERENT)


def test_identities_are_the_same_in_every_process() -> None:
    """Whatever the hash seed, and the order in which a process met the nodes."""
    code = (
        "from tests.project.test_cache import DIFFERENT, identity\n"
        "list(map(identity, reversed(DIFFERENT)))\n"
        "print(*map(identity, DIFFERENT))"
    )
    for seed in ("1", "2"):
        assert python(code, PYTHONHASHSEED=seed).split() == [identity(r) for r in DIFFERENT]


def test_a_deep_graph_has_an_identity() -> None:
    n = X
    for _ in range(20_000):
        n = elementwise(ops.NEG, n)
    assert identity([n]) != identity([n.inputs[0]])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True), (1, 1.0), (0, False), ("1", 1), (None, "None"), ((), None), ((1,), 1),
        (("a", "b"), ("a,b",)), (("a'",), ("a", "")), (((1, 2), 3), (1, (2, 3))), ("\n", "\\n"),
    ],
)  # fmt: skip
def test_attributes_are_spelled_apart(one: Any, other: Any) -> None:
    assert spell(one) != spell(other)
    assert "\n" not in spell(one)


def test_an_unknown_attribute_is_an_error() -> None:
    with pytest.raises(TypeError, match="cannot spell"):
        spell({1: 2})


# ---- programs


def python(code: str, **environment: str) -> str:
    """What `code` prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


Expected = Callable[[list[np.ndarray], Sequence[float]], list[np.ndarray]]


def assert_right(
    program: Program,
    shapes: Sequence[tuple[Any, ...]],
    scalars: Sequence[float],
    expected: Expected,
    sizes: Mapping[str, int] | None = None,
) -> None:
    """Run a program on random arrays and compare with NumPy."""
    sizes = sizes or {}
    backend = get("cpu")
    rng = np.random.default_rng(0)
    memories, arrays = [], []
    for shape in shapes:
        concrete = [evaluate(d, sizes) for d in shape]
        memory = backend.allocate(4 * int(np.prod(concrete)))
        view = backend.download(memory, float32, concrete)
        view[...] = rng.standard_normal(concrete)
        memories.append(memory)
        arrays.append(view)
    wanted = expected([a.copy() for a in arrays], scalars)
    outputs = []
    for output in program.outputs:
        if output.reuses is None:
            count = evaluate(product(output.shape), sizes)
            outputs.append(backend.allocate(count * output.dtype.itemsize))
        else:
            outputs.append(memories[output.reuses])
    program.run([m.pointer for m in memories], scalars, outputs, sizes)
    for memory, output, value in zip(outputs, program.outputs, wanted, strict=True):
        result = backend.download(memory, output.dtype, [evaluate(d, sizes) for d in output.shape])
        np.testing.assert_allclose(result, value, rtol=1e-5, atol=1e-5)


def matmul(a: Node, b: Node) -> Node:
    return node(ops.CONTRACT, (a, b), ((0, 1), (1, 2), (0, 2)), float32, (a.shape[0], b.shape[1]))


def affine(n: int) -> list[Node]:
    """One kernel: a * x + y, with a known at run time."""
    scalar = node(ops.SCALAR, (), 0, float32)
    x, y = leaf(0, n), leaf(1, n)
    return [elementwise(ops.ADD, elementwise(ops.MUL, scalar, x), y)]


def affine_case(n: int) -> tuple[list[tuple[int]], list[float], Expected]:
    return [(n,), (n,)], [1.5], lambda a, s: [s[0] * a[0] + a[1]]


def network(rows: Any, width: int) -> list[Node]:
    """Several kernels and temporaries: a row sum of exp(x @ w) @ v, and exp(x @ w) itself."""
    x, w, v = leaf(0, rows, width), leaf(1, width, width + 3), leaf(2, width + 3, 5)
    hidden = elementwise(ops.EXP, matmul(x, w))
    out = matmul(hidden, v)
    return [node(ops.SUM, (out,), (1,), float32, (rows,)), hidden]


def network_case(rows: Any, width: int) -> tuple[list[tuple[Any, ...]], list[float], Expected]:
    def expected(a: list[np.ndarray], s: Sequence[float]) -> list[np.ndarray]:
        hidden = np.exp(a[0].astype(np.float64) @ a[1])
        return [(hidden @ a[2]).sum(1), hidden]

    return [(rows, width), (width, width + 3), (width + 3, 5)], [], expected


AFFINE, AFFINE_CASE = affine(100), affine_case(100)
ROWS, ROWS_CASE = network(N, 4), (*network_case(N, 4), {"n": 7})


class StagesRan(AssertionError):
    pass


@contextmanager
def without_stages() -> Iterator[None]:
    """Inside, a program that is not found on disk is an error."""

    def refuse(*args: Any) -> Program:
        raise StagesRan

    original = compiler._compile
    compiler._compile = refuse
    try:
        yield
    finally:
        compiler._compile = original


def found(roots: Sequence[Node], donated: frozenset[int] = frozenset()) -> Program:
    """The program as it is on disk."""
    with without_stages():
        return compile_graph(roots, donated)


def assert_missing(roots: Sequence[Node], donated: frozenset[int] = frozenset()) -> None:
    with pytest.raises(StagesRan):
        found(roots, donated)


def described(program: Program) -> tuple[Any, ...]:
    """What must survive the disk."""
    launches = [
        (launch.binary.key, launch.binary.image, launch.binary.entry, launch.slots)
        for launch in program.launches
    ]
    return (
        program.outputs, program.temporaries, program.scalars, program.symbols, program.buffers,
        launches, program.claims, program.unproven,
    )  # fmt: skip


def test_a_program_survives_the_disk() -> None:
    assert_missing(ROWS)
    fresh = compile_graph(ROWS)
    kept = found(ROWS)
    assert described(kept) == described(fresh)
    assert kept.temporaries and kept.symbols == ("n",) and kept.claims > 0
    for n in (1, 7, 100):
        assert_right(kept, *network_case(N, 4), {"n": n})


def test_sizes_survive_the_disk() -> None:
    m, n = symbol("m", 1, 50), symbol("n", 2, 64, 2)
    for size in (12, n, 3 * n - 2, m * n + 4, (n + 1) // 3, ((m + n) // 5 + 1) // 7 * 4, m * m):
        assert disk_cache._size(json.loads(json.dumps(disk_cache._written(size)))) == size


def test_donated_memory_and_updates_survive_the_disk() -> None:
    donated = frozenset({0})
    fresh = compile_graph(AFFINE, donated)
    assert fresh.outputs[0].reuses == 0
    assert_missing(AFFINE)
    kept = found(AFFINE, donated)
    assert described(kept) == described(fresh)
    assert_right(kept, *AFFINE_CASE)

    x, value = leaf(0, 10), leaf(1, 4)
    update = [node(ops.UPDATE, (x, value), ((2, 2),), float32, (10,))]

    def expected(a: list[np.ndarray], s: Sequence[float]) -> list[np.ndarray]:
        a[0][2:10:2] = a[1]
        return [a[0]]

    for slots in (frozenset[int](), donated):
        compile_graph(update, slots)
        assert_right(found(update, slots), [(10,), (4,)], [], expected)


@pytest.mark.parametrize("option", ["simplify", "fuse", "schedule", "donate", "strict"])
def test_options_are_in_the_key(option: str) -> None:
    compile_graph(AFFINE)
    with using(**{option: not getattr(current(), option)}):
        assert_missing(AFFINE)
        compile_graph(AFFINE)
        assert_right(found(AFFINE), *AFFINE_CASE)


def test_the_target_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_graph(AFFINE)
    backend = get("cpu")
    assert "LLVM" in backend.target and len(backend.target) > 40
    target = backend.target
    monkeypatch.setattr(type(backend), "target", target + " and more")
    assert_missing(AFFINE)


def test_the_chip_is_in_the_target() -> None:
    from genesis.backends.cpu import chip

    backend = get("cpu")
    host = chip.host()
    with pytest.MonkeyPatch.context() as patch:
        here = backend.target
        for changed in (
            replace(host, l1_bytes=host.l1_bytes * 2),
            replace(host, l2_bytes=host.l2_bytes * 2),
            replace(host, features=host.features | {"telepathy"}),
            replace(host, name="another"),
        ):
            patch.setattr(chip, "host", lambda changed=changed: changed)
            assert backend.target != here


def test_steps_of_a_kept_program_are_made_when_asked_for() -> None:
    fresh = compile_graph(ROWS)
    kept = found(ROWS)
    with without_stages(), pytest.raises(StagesRan):
        _ = kept.steps
    assert [s.built.kernel.name for s in kept.steps] == [s.built.kernel.name for s in fresh.steps]
    assert kept.steps is kept.steps
    assert str(report(kept, sizes={"n": 5})) == str(report(fresh, sizes={"n": 5}))
    assert all(k.code for k in report(kept, sizes={"n": 5}).kernels)


def test_off_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENESIS_CACHE", "off")
    assert_right(compile_graph(AFFINE), *AFFINE_CASE)
    assert not folder.exists()


# ---- programs that are not as they should be


@pytest.mark.parametrize("kind", ["program", "object"])
@pytest.mark.parametrize("damage", ["delete", "truncate", "flip", "empty", "swap"])
def test_damage_is_repaired(folder: Path, kind: str, damage: str) -> None:
    compile_graph(ROWS)
    compile_graph(AFFINE)
    undamaged = {f.name: f.read_bytes() for f in folder.iterdir()}
    damaged = files(folder, kind)
    contents = [f.read_bytes() for f in damaged]
    for k, file in enumerate(damaged):
        content = contents[k]
        if damage == "delete":
            file.unlink()
        elif damage == "truncate":
            file.write_bytes(content[: len(content) // 2])
        elif damage == "flip":
            middle = len(content) // 2
            flipped = bytes([content[middle] ^ 0x10])
            file.write_bytes(content[:middle] + flipped + content[middle + 1 :])
        elif damage == "empty":
            file.write_bytes(b"")
        else:
            file.write_bytes(contents[k - 1])
    assert_missing(ROWS)
    assert_right(compile_graph(ROWS), *ROWS_CASE)
    assert_right(compile_graph(AFFINE), *AFFINE_CASE)
    assert {name: (folder / name).read_bytes() for name in undamaged} == undamaged


def edited(path: Sequence[Any], value: Any) -> Callable[[Any], Any]:
    def edit(content: Any) -> Any:
        inner = content
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value
        return content

    return edit


HOSTILE: list[Callable[[Any], Any]] = [
    lambda content: [],
    lambda content: None,
    lambda content: {k: v for k, v in content.items() if k != "launches"},
    lambda content: content | {"more": 1},
    edited(["buffers"], -1),
    edited(["buffers"], 1 << 64),
    edited(["buffers"], 1.0),
    edited(["buffers"], True),
    edited(["buffers"], 0),  # then the launches reach beyond the frame
    edited(["symbols"], "n"),
    edited(["symbols"], [1]),
    edited(["scalars"], [[0, "complex"]]),
    edited(["scalars"], [["0", "float32"]]),
    edited(["outputs"], []),
    edited(["outputs", 0], [None]),
    edited(["outputs", 0, 0], 3),
    edited(["outputs", 0, 0], -1),
    edited(["outputs", 0, 0], False),
    edited(["outputs", 0, 1], 99),
    edited(["outputs", 0, 1], -1),
    edited(["temporaries", 0], []),
    edited(["temporaries", 0, 0], -8),
    edited(["temporaries", 0, 0], "8"),
    edited(["temporaries", 0, 0], [[1, [["n", 0, 10]]]]),
    edited(["temporaries", 0, 0], [[1, [["n", 0, 10, 0]]]]),
    edited(["temporaries", 0, 0], [[1, [[4, 0]]]]),
    edited(["temporaries", 0, 2], 1000),
    edited(["launches", 0, 0], 1000),
    edited(["launches", 0, 0], -1),
    edited(["launches", 0, 1, 0], 1000),
    edited(["launches", 0, 1, 0], -1),
    edited(["launches", 0, 1, 0], None),
    edited(["binaries", 0], ["k"]),
    edited(["binaries", 0, 0], 5),
    edited(["binaries", 0, 0], "../../etc/passwd"),
    edited(["binaries", 0, 1], None),
    edited(["binaries", 0, 1], {"phases": 1, "scratch": 0}),
    edited(["binaries", 0, 1], {"phases": [["f"]], "scratch": 0}),
    edited(["binaries", 0, 1], {"phases": [["f", 1]], "scratch": 0}),
    edited(["binaries", 0, 1], {"phases": [["f", "g"]], "scratch": -1}),
    edited(["binaries", 0, 1, "phases", 0, 0], "no such function"),
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_program_is_compiled_anew(store: ContentStore, number: int) -> None:
    """Not damage: the checksum is right, and what the file says makes no sense."""
    compile_graph(ROWS)
    key = program_key(ROWS, frozenset(), get("cpu"), current())
    payload = store.get("program", key)
    assert payload is not None
    bad = json.dumps(HOSTILE[number](json.loads(payload))).encode()
    assert bad != payload
    store.put("program", key, bad)
    get("cpu")._loaded.clear()  # type: ignore[attr-defined]
    assert_missing(ROWS)
    assert_right(compile_graph(ROWS), *ROWS_CASE)
    assert store.get("program", key) == payload


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b"{", b"[" * 100_000, b"1" * 100_000, b"NaN", b'{"buffers":1e999}']
)
def test_text_that_is_no_program(store: ContentStore, payload: bytes) -> None:
    store.put("program", program_key(AFFINE, frozenset(), get("cpu"), current()), payload)
    assert_missing(AFFINE)
    assert_right(compile_graph(AFFINE), *AFFINE_CASE)


# ---- processes

WORKER = """
import sys
from genesis.compiler import compile_graph
from tests.project.test_cache import affine, affine_case, assert_right, network, network_case
for text in sys.stdin.read().split():
    kind, number = text[0], int(text[1:])
    make, case = (affine, affine_case(number)) if kind == "a" else (
        lambda width: network(3, width), network_case(3, number))
    assert_right(compile_graph(make(number)), *case)
"""
FORBIDDEN = """
import genesis.backends.cpu.compile as code
def refuse(*args): raise AssertionError("compiled")
code._optimised = refuse
"""
NOTHING_COMPILED = """
stages = {"islpy", "genesis.compiler.pipeline", "genesis.compiler.verify.kernel",
          "genesis.compiler.fuse.fuse", "genesis.compiler.schedule",
          "genesis.backends.cpu.codegen.render", "genesis.ir.kernel"}
assert not stages & set(sys.modules), stages & set(sys.modules)
"""
# Without pytest, which this file imports, and its reports, which import the stages.
TINY = """
import sys
from genesis.backends import get
from genesis.compiler import compile_graph
from genesis.ir import ops
from genesis.ir.dtype import float32
from genesis.ir.node import Leaf, elementwise, node
x = node(ops.BUFFER, (), Leaf(0, (1,), 0), float32, (4,))
program = compile_graph([elementwise(ops.MUL, x, elementwise(ops.EXP, x))])
backend = get("cpu")
given, result = backend.allocate(16), backend.allocate(16)
backend.download(given, float32, (4,))[...] = [0, 1, 2, -1]
program.run([given.pointer], [], [result], {})
print(*backend.download(result, float32, (4,)).round(3))
"""


def start(programs: Sequence[str], before: str = "") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", before + WORKER],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(" ".join(programs))
    process.stdin.close()
    process.stdin = None
    return process


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "Warning" not in errors, errors


def test_in_a_second_process_no_stage_runs() -> None:
    first = python(TINY)
    assert [float(x) for x in first.split()] == pytest.approx([0, 2.718, 14.778, -0.368])
    assert python(FORBIDDEN + TINY + NOTHING_COMPILED) == first


def test_a_damaged_object_is_repaired_by_another_process(folder: Path) -> None:
    first = python(TINY)
    undamaged = {f: f.read_bytes() for f in folder.iterdir()}
    for file in files(folder, "object"):  # the native runtime is one of them
        file.write_bytes(file.read_bytes()[:-1])
    assert python(TINY) == first
    assert {f: f.read_bytes() for f in folder.iterdir()} == undamaged


def test_eight_processes_at_once(folder: Path) -> None:
    """The same and different programs into an empty cache; a ninth process finds all of them."""
    shared = ["a10", "n4", "n6"]
    own = [[f"a{20 + k}", f"n{7 + k % 4}"] for k in range(8)]
    processes = [start([*shared, *own[k]] if k % 2 else [*own[k], *shared]) for k in range(8)]
    for process in processes:
        finish(process)
    assert all(re.fullmatch(r"[0-9a-f]{64}\.(program|object)", f.name) for f in folder.iterdir())
    assert len(files(folder, "program")) == 3 + 8 + 4
    finish(start([*shared, *(name for names in own for name in names)], before=FORBIDDEN))


def test_clearing_disturbs_nobody(store: ContentStore) -> None:
    programs = [f"a{k}" for k in range(10, 30)]
    processes = [start(programs), start(programs)]
    while any(process.poll() is None for process in processes):
        store.clear()
        time.sleep(0.01)
    for process in processes:
        finish(process)
