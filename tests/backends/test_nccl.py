"""Collectives by NCCL: on a pretended GPU and library, both as late as they may be."""

from __future__ import annotations

import gc
import json
import socket
import time
from array import array
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genesis.backends.base import Binary, Host, Launch, Operand
from genesis.backends.gpu.backend import CUDABackend
from genesis.backends.gpu.library import nccl
from genesis.backends.gpu.runtime import nvidia
from genesis.backends.gpu.runtime.driver import DriverError
from genesis.ir.dtype import as_dtype
from genesis.ir.numpy_library.collectives import DEFINITIONS, carriers
from tests.backends.test_late_runtimes import ENTRY, add
from tests.fake_cuda import FakeDriver
from tests.fake_nccl import FakeNCCL

RANK, SIZE, COUNT = 1, 4, 96
FLOAT = as_dtype("float32")
STEP = Binary("add", b"add", ENTRY)


class Fleet:
    """A carrier whose collectives NCCL does, or the host where that cannot."""

    def __init__(self, library: FakeNCCL | None) -> None:
        self.library, self.by_host, self.made = library, 0, None
        self.timeout, self.cause = 600.0, ""

    def lost(self, cause: str) -> Exception | None:
        cause = self.cause or cause
        return RuntimeError(cause) if cause else None

    def link(self, axis: str, backend: Any) -> Any:
        if self.library is not None and self.made is None:
            where = backend.device, backend.pool, RANK, SIZE
            self.made = nccl.Communicator(*where, nccl.unique(), self.lost, self.timeout)
        return self.made

    def start(self, name: str, options: Any, xs: Any) -> Any:
        self.by_host += 1
        found = [DEFINITIONS[name](options, [x.copy()] * SIZE)[RANK] for x in xs]
        return lambda: found


@pytest.fixture(params=(None, 1, 2, 3))
def made(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[FakeNCCL, CUDABackend, Fleet]]:
    driver = FakeDriver(memory=64 << 20).install(monkeypatch)
    driver.pace = None if request.param is None else Random(request.param)
    driver.kernels[b"add"] = add
    library = FakeNCCL(driver)
    monkeypatch.setattr(nccl, "loaded", lambda name: library)
    nccl.library.cache_clear()
    fleet = Fleet(library)
    token = carriers.set({"m": fleet})  # type: ignore[dict-item]
    monkeypatch.setattr(nccl, "PATIENCE", 0.01)
    yield library, CUDABackend(), fleet
    if fleet.made is not None:
        fleet.made.close()
    carriers.reset(token)
    gc.collect()
    nccl.library.cache_clear()
    nvidia.driver.cache_clear()


def upload(backend: CUDABackend, x: Any) -> Any:
    memory = backend.allocate(x.nbytes)
    backend.upload(memory, x)
    return memory


OPTIONS = {
    "all_reduce": ("m", "a", "sum"),
    "reduce_scatter": ("m", "a", "sum"),
    "all_gather": ("m", "a"),
    "all_to_all": ("m", "a"),
    "permute": ("m", "a", (2, 0, 3, 1)),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", ("uint8", "float32", "int64", "float64", "uint64"))
def test_kernels_run_meanwhile(made: Any, name: str, dtype: str) -> None:
    """What is sent is overwritten at once, and results are read by the kernel that comes next."""
    library, backend, fleet = made
    kind = as_dtype(dtype)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, COUNT).astype(kind.numpy)
    options = OPTIONS[name]
    want = DEFINITIONS[name](options, [x.reshape(SIZE, -1)] * SIZE)[RANK]
    many = {"all_gather": SIZE}.get(name, 1)
    words = [COUNT // SIZE, want.size // max(1, want.shape[0] if many == 1 else SIZE * SIZE)]
    sent, got, out = (
        upload(backend, x),
        backend.allocate(want.nbytes),
        backend.allocate(want.nbytes),
    )
    # Slots: what is sent, what is received, what is read of it; bytes of both; extents.
    rows = want.shape[0]
    frame = [sent.pointer, got.pointer, out.pointer, x.nbytes, want.nbytes, SIZE, words[0], rows]
    frame.append(want.size // rows)
    host = Host(
        f"collectives.{name}", options, (Operand(0, kind, (5, 6)),), (Operand(1, kind, (7, 8)),)
    )
    program = backend.assemble(
        [host, Launch(STEP, (0, 0, 3)), Launch(STEP, (0, 0, 3)), Launch(STEP, (1, 2, 4))]
    )
    for _ in range(3):
        backend.upload(sent, x)
        program.run(array("Q", frame))
        found = backend.download(out, as_dtype("uint8"), (want.nbytes,))
        np.testing.assert_array_equal(found, want.reshape(-1).view(np.uint8) + 1)
        np.testing.assert_array_equal(
            backend.download(sent, as_dtype("uint8"), (x.nbytes,)), x.view(np.uint8) + 2
        )
    assert not library.problems and not fleet.by_host
    assert library.called["GroupStart"] == library.called["GroupEnd"] == 3
    if name == "permute":  # rank 1 gets what rank 0 has, and rank 3 what rank 1 has
        assert set(library.messages) == {("send", 3), ("receive", 0)}


def test_what_nccl_does_not_take_goes_by_the_host(made: Any) -> None:
    library, backend, fleet = made
    kind = as_dtype("int16")
    x = np.arange(8, dtype=np.int16)
    sent, got = upload(backend, x), backend.allocate(x.nbytes)
    host = Host("collectives.all_reduce", OPTIONS["all_reduce"],
                (Operand(0, kind, (2,)),), (Operand(1, kind, (2,)),))  # fmt: skip
    backend.assemble([host]).run(array("Q", [sent.pointer, got.pointer, 8]))
    np.testing.assert_array_equal(backend.download(got, kind, (8,)), SIZE * x)
    assert fleet.by_host == 1 and not library.called["AllReduce"]


@pytest.mark.parametrize("name", ("all_reduce", "reduce_scatter", "all_to_all"))
def test_several_arrays_are_one_group(made: Any, name: str) -> None:
    library, backend, _ = made
    kind, options = as_dtype("float32"), OPTIONS[name]
    xs = [np.arange(8 * n, dtype=np.float32).reshape(2 * SIZE, n) for n in (4, 0, 4, 9)]
    want = [DEFINITIONS[name](options, [x] * SIZE)[RANK] for x in xs]
    sent = [upload(backend, x) for x in xs]
    got = [backend.allocate(x.nbytes) for x in want]
    frame = [m.pointer for m in (*sent, *got)]
    forms: list[tuple[Operand, ...]] = []
    for first, arrays in ((0, xs), (len(xs), want)):
        slots = [len(frame) + 2 * k for k in range(len(xs))]
        forms.append(tuple(Operand(first + k, kind, (s, s + 1)) for k, s in enumerate(slots)))
        frame += [extent for x in arrays for extent in x.shape]
    backend.assemble([Host(f"collectives.{name}", options, *forms)]).run(array("Q", frame))
    for memory, x in zip(got, want, strict=True):
        np.testing.assert_array_equal(backend.download(memory, kind, x.shape), x)
    assert library.called["GroupStart"] == 1 and not library.problems


def summed_ones(backend: Any) -> tuple[Any, Any, Any, Any]:
    """A program that sums eight ones of all ranks, what it runs on, what is sent and got."""
    x = np.ones(8, np.float32)
    sent, got = upload(backend, x), backend.allocate(x.nbytes)
    host = Host("collectives.all_reduce", OPTIONS["all_reduce"],
                (Operand(0, FLOAT, (2,)),), (Operand(1, FLOAT, (2,)),))  # fmt: skip
    return backend.assemble([host]), array("Q", [sent.pointer, got.pointer, 8]), sent, got


def test_errors_are_named_and_memory_is_left_alone(made: Any, monkeypatch: Any) -> None:
    library, backend, fleet = made
    program, frame, _sent, _got = summed_ones(backend)
    program.run(frame)
    fleet.made._closed.set()  # the watchdog must not see it first
    fleet.made._watching.join()
    with monkeypatch.context() as patch:
        patch.setattr(fleet.made, "_handle", type(fleet.made._handle)(5))
        with pytest.raises(DriverError, match="ncclAllReduce: invalid argument"):
            program.run(frame)
    assert library.problems and library.called["GroupEnd"] == 2


@pytest.mark.parametrize("how", ("a rank is gone", "error 6", "under way"))
def test_a_lost_rank_is_not_waited_for(made: Any, how: str) -> None:
    """The kernels are ended, and what they leave behind is read by nobody."""
    library, backend, fleet = made
    program, frame, _sent, got = summed_ones(backend)
    fleet.timeout = 0.05
    program.run(frame)
    backend.download(got, FLOAT, (8,))  # it has ended: however long ago, nothing is wrong
    time.sleep(0.2)
    assert backend.device.failure is None
    if how == "a rank is gone":
        fleet.cause = how
    elif how == "error 6":
        library.found = 6
    else:
        library.driver.pace = None  # nothing moves until somebody waits
        program.run(frame)
    fleet.made._watching.join(10)
    assert library.called["CommAbort"] == 1
    for use in (lambda: backend.download(got, FLOAT, (8,)), lambda: program.run(frame)):
        with pytest.raises(RuntimeError, match=how):
            use()
    with pytest.raises(RuntimeError, match=how):
        backend.synchronize()
    fleet.made.close()  # the others are met anew
    assert library.called["CommAbort"] == 1
    backend.download(got, FLOAT, (8,))
    assert not library.problems


def test_processes_agree_whether_they_have_nccl(made: Any, monkeypatch: Any) -> None:
    """All along an axis have the same version, and a GPU each; else the host carries everything."""
    from genesis.distributed import process_groups
    from genesis.distributed.mesh import Mesh

    _, backend, _ = made
    kept: dict[str, bytes] = {}
    notes = SimpleNamespace(set=kept.__setitem__)
    monkeypatch.setattr(process_groups, "notes", lambda: notes)
    others: list[list[Any]] = []

    def note(key: str) -> bytes:
        if key not in kept and key.rsplit("/", 1)[1] != "id":
            return json.dumps(others.pop(0)).encode()
        return kept[key]

    monkeypatch.setattr(process_groups, "note", note)
    here = socket.gethostname()
    for told, wanted in (
        ([22803, "other", 0], True), ([22803, here, 1], True), ([22803, here, 0], False),
        ([0, "other", 0], False), ([22000, "other", 0], False),
    ):  # fmt: skip
        kept.clear()
        others[:] = [told]
        mesh = object.__new__(Mesh)
        mesh.form, mesh.rank, mesh._links = SimpleNamespace(name="m"), 0, {}  # type: ignore[assignment]
        mesh._groups = {
            "dp": SimpleNamespace(members=[0, 1], rank=0, size=2, lost=lambda cause: None)
        }  # type: ignore[dict-item]
        link = mesh.link("dp", backend)
        assert (link is not None) is wanted and mesh.link("dp", backend) is link
        mesh.close()
