"""The HIP runtime on a pretended driver: that of CUDA, called as AMD's header says."""

import ctypes
import gc
import os
import subprocess
import sys
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import genesis.hip
from genesis import backends
from genesis.backends.base import Launch
from genesis.backends.gpu.backend import HIPBackend
from genesis.backends.gpu.binary import _parameters, made, request
from genesis.backends.gpu.launch_metadata import parsed
from genesis.backends.gpu.runtime import amd
from genesis.backends.gpu.runtime.driver import DriverError
from genesis.ir.dtype import float32
from genesis.ir.kernel_builder import Builder
from tests.backends.test_cuda_runtime import (  # noqa: F401 (the runtime is one: with the driver of this file)
    N,
    add_one,
    chain,
    filled,
    kernel,
    read,
    test_a_program_is_captured_when_it_runs_again,
    test_a_program_waits_for_its_uploads,
    test_a_word_is_known_when_the_device_has_come_so_far,
    test_an_upload_waits_for_who_used_its_memory,
    test_arrays_come_and_go_in_pieces,
    test_blocks_are_reused_and_counted,
    test_blocks_follow_from_sizes,
    test_every_record_is_timed,
    test_graphs_are_found_by_their_frame_and_updated,
    test_loops_move_pointers,
    test_running_out_of_memory_says_who_has_it,
    test_the_host_takes_its_turn,
    test_unaligned_arguments_get_code_of_their_own,
)
from tests.fake_cuda import CUresult
from tests.fake_hip import SCALARS, FakeHIP, header, parameter_type


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHIP]:
    pretended = FakeHIP(devices=2, memory=64 << 20).install(monkeypatch)
    yield pretended
    gc.collect()  # programs die while their driver is there
    amd.driver.cache_clear()


@pytest.fixture
def cuda(fake: FakeHIP) -> Any:
    """What the tests of the runtime call the backend."""
    return HIPBackend()


@pytest.mark.parametrize("name", amd.PROTOTYPES)
def test_functions_are_as_the_header_has_them(name: str) -> None:
    _, parameters = header().functions[name]
    results, arguments = amd.PROTOTYPES[name]
    known = set(SCALARS.values())

    def plain(kind: Any) -> Any:
        return kind if kind in known else ctypes.c_void_p  # or another pointer

    given = [ctypes.c_void_p] * len(results) + [plain(kind) for kind in arguments]
    assert given == [plain(parameter_type(p)) for p in parameters]
    for kind, parameter in zip(results, parameters, strict=False):
        if kind is not ctypes.c_char * 128:
            pointee = parameter.replace("*", "", 1)
            assert plain(kind) == plain(parameter_type(pointee)), parameter


def test_nothing_else_is_called(cuda: Any, fake: FakeHIP) -> None:
    assert fake.used - {"hipGetErrorName", "hipGetErrorString"} == set(amd.PROTOTYPES)
    assert {amd.driver().symbol(n) for n in amd._OTHERS} <= set(amd.PROTOTYPES)


def test_the_current_device_is_left_as_it_was(cuda: Any, fake: FakeHIP) -> None:
    other: Any = HIPBackend(1)
    x, y = filled(cuda, 3.0), other.allocate(4 * N)
    cuda.synchronize()
    other.copy(y, x, 4 * N)
    assert read(other, y) == [3.0] * N
    assert fake.contexts == [0]
    with pytest.raises(ValueError, match=r"no device hip:2: this machine has 2"):
        HIPBackend(2)


def test_errors_have_the_names_of_hip(cuda: Any, fake: FakeHIP) -> None:
    run = chain(cuda, fake)
    memories = [filled(cuda, 1.0), *(cuda.allocate(4 * N) for _ in range(3))]
    fake.failing = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(
        DriverError, match=r"hipModuleLaunchKernel: hipErrorIllegalAddress .*any more"
    ):
        run.run(array("Q", [m.pointer for m in memories]))
    assert run.runs == 0


def test_the_chip_is_described(cuda: Any) -> None:
    chip = cuda.chip
    assert (chip.architecture, chip.multiprocessors, chip.l1_bytes) == ("gfx942", 304, 65536)
    assert chip.capability == (9, 4) and chip.name == "Pretended GPU"


@pytest.mark.parametrize(("target", "lanes"), [("gfx942", 64), ("gfx1100", 32)])
def test_launches_have_the_threads_and_arguments_of_the_code(target: str, lanes: int) -> None:
    k = Builder("twice")
    n = k.symbol("N")
    x, y = k.input("x", float32, n), k.output("y", float32, n)
    at = k.grid("b", (n + 1023) // 1024) * 1024 + k.tile("v", 1024)
    k.store(y, (at,), x.load(at, mask=at < n) * 2.0, mask=at < n)
    binary = made(request(k.kernel(), target))
    entry = parsed(binary)
    (phase,) = entry.phases
    assert binary.image[phase.code].startswith(b"\x7fELF")
    # Triton's own launcher gives two pointers more than the kernel has.
    assert (phase.threads, entry.buffers, entry.symbols, entry.hidden) == (4 * lanes, 2, 1, 2)
    assert _parameters(".value_kind:     by_value\n.value_kind:     hidden_block_count_x") == 1


def test_devices_events_and_queues(fake: FakeHIP) -> None:
    backends.get.cache_clear()
    hip = genesis.hip
    assert hip.is_available() and hip.device_count() == 2
    assert hip.get_device_name() == hip.get_device_name("hip:1") == "Pretended GPU"
    assert hip.get_device_properties(1)[1:] == (9, 4, 64 << 20, 304)
    backend: Any = backends.get("hip")
    x = filled(backend, 1.0)
    assert hip.memory_allocated() == x.nbytes + 480 == hip.memory_stats("hip").live_bytes
    start = hip.Event()
    start.record()
    one = backend.assemble([Launch(kernel(fake, "one", add_one), (0, 1))])
    one.run(array("Q", [x.pointer, x.pointer]))
    end = hip.current_stream().record_event()
    assert isinstance(end, hip.Event)
    hip.Stream(1).wait_event(end)
    assert start.elapsed_time(end) == 1.5
    assert np.frombuffer((ctypes.c_float * N).from_address(x.pointer), np.float32)[0] == 2.0
    hip.synchronize()
    with pytest.raises(ValueError, match="'cuda' is not a HIP device; write 'hip' or 'hip:1'"):
        hip.synchronize("cuda")
    backends.get.cache_clear()


def test_without_a_driver_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        raise OSError(name)

    amd.driver.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", nothing)
    monkeypatch.setenv("ROCM_PATH", "/somewhere")
    with pytest.raises(DriverError, match=r"no AMD driver: .*libamdhip64\.so.* /somewhere/lib"):
        HIPBackend()
    assert not genesis.hip.is_available()


def test_an_old_driver_is_named(monkeypatch: pytest.MonkeyPatch, fake: FakeHIP) -> None:
    monkeypatch.delitem(header().functions, "hipGetDevicePropertiesR0600")
    with pytest.raises(DriverError, match=r"too old.*R0600"):
        amd.HIP()


def test_tensors_by_the_interpreter() -> None:
    """All of it but the machine code, in a process where Triton interprets."""
    code = """
import numpy as np, pytest
from tests.fake_hip import FakeHIP
from tests.interpreted_cuda import install
fake = install(pytest.MonkeyPatch(), FakeHIP)
import genesis
from genesis import ndarray as nd
rng = np.random.default_rng(0)
a, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((2, 33, 40), (40, 17)))
for turn in range(3):
    x, y = (nd.array(v, device="hip") for v in (a + turn, b))
    z = nd.softmax(x @ y, axis=-1) * 2
    w = (a + turn).astype(np.float64) @ b
    expected = np.exp(w - w.max(-1, keepdims=True))
    expected *= 2 / expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(z.numpy(), expected, rtol=2e-5, atol=1e-6)
assert z.device == "hip" and fake.launched["graph"] >= 1
t = genesis.arange(6.0, device="hip:0").reshape(2, 3)
assert (t.sum(1) + 1).tolist() == [4.0, 13.0]
"""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
