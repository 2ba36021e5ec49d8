"""The CUDA backend with a pretended driver, its kernels run by Triton's interpreter.

Everything but the machine code is real: schedules, rendering, memory, transfers, launches. Triton
must be imported with TRITON_INTERPRET=1 in the environment, so this runs in a process of its own.
As a plugin of pytest it lets other tests run so:

    TRITON_INTERPRET=1 pytest -p tests.interpreted_cuda --device cuda tests/ndarray/test_scatter.py

With PACE=7, streams go ahead on their own, in the seventh of all ways (see `tests.fake_cuda`).
"""

from __future__ import annotations

import base64
import ctypes
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genesis.backends import compile_workers
from genesis.backends.gpu import binary
from genesis.backends.gpu.compile import Compiled, CompiledFunction, load
from genesis.ir.dtype import float8_e4m3fn, float8_e5m2
from tests.fake_cuda import FakeDriver

TYPES = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "fp32": np.float32, "fp64": np.float64,
}  # fmt: skip
NAMES = {
    "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64", "fp16": "float16", "bf16": "bfloat16",
    "fp32": "float32", "fp64": "float64",
}  # fmt: skip


def pytest_configure(config: Any) -> None:
    install(pytest.MonkeyPatch())


def passes(file: str, marked: str = "gpu") -> None:
    """The tests of a file that need a GPU pass by the interpreter, in a process of its own."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.interpreted_cuda"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [*command, "-m", marked, file], env=environment, capture_output=True, text=True
    )
    ended = f"ended with {done.returncode}: {done.stdout[-3000:]} {done.stderr[-3000:]}"
    assert done.returncode == 0, ended
    assert "passed" in done.stdout and "failed" not in done.stdout


def install(monkeypatch: Any, kind: type[FakeDriver] = FakeDriver) -> FakeDriver:
    """Pretend that there is a GPU."""
    assert os.environ.get("TRITON_INTERPRET") == "1"
    repair(monkeypatch)
    driver = kind(memory=1 << 34).install(monkeypatch)
    if pace := os.environ.get("PACE"):
        driver.pace = Random(pace)
    driver.kernels = _Kernels()
    monkeypatch.setattr(binary, "compile", compile)
    monkeypatch.setattr(binary, "by_roles", lambda kernel, target: None)
    monkeypatch.setattr(compile_workers, "FEW", 1 << 30)
    return driver


def compile(source: Any, signature: dict[str, str], target: str) -> Compiled:
    """Code whose image is the source."""
    parameters = ", ".join([".param"] * (len(signature) + 2))
    functions = []
    for name in source.functions:
        image = base64.b64encode(pickle.dumps((name, source.text, list(signature.values()))))
        functions.append(CompiledFunction(name, f".entry {name}({parameters})", image, 4, 0))
    return Compiled(target, tuple(functions))


class _Kernels(dict[bytes, Any]):
    """Every image is a kernel."""

    def __missing__(self, image: bytes) -> Any:
        name, text, types = pickle.loads(base64.b64decode(image))
        module = load(binary.RenderedKernel(text, (), (), (), (), ()))

        def run(_: str, blocks: int, places: list[int]) -> None:
            arguments: list[Any] = []
            for kind, place in zip(types, places, strict=False):
                plain = kind.removesuffix(":16")
                if plain.startswith("*"):
                    word = ctypes.c_uint64.from_address(place).value
                    assert word % 16 == 0 or plain == kind
                    arguments.append(Array(word, NAMES[plain[1:]]))
                else:
                    raw = (ctypes.c_uint8 * 8).from_address(place)
                    arguments.append(np.frombuffer(raw, TYPES[plain])[0].item())
            with np.errstate(all="ignore"):
                getattr(module, name)[(blocks,)](*arguments)

        self[image] = run
        return run


class Array:
    """All that the interpreter asks of an array."""

    def __init__(self, address: int, dtype: str) -> None:
        self.address, self.dtype = address, dtype

    def data_ptr(self) -> int:
        return self.address

    def untyped_storage(self) -> Array:
        return self

    def storage_offset(self) -> int:
        return 0

    size = stride = storage_offset

    def cpu(self) -> Array:
        return self

    def new_empty(self, *shape: Any, device: Any) -> Array:
        return Array(self.address, self.dtype)

    def set_(self, *storage: Any) -> None:
        pass

    copy_ = set_


def repair(monkeypatch: Any) -> None:
    """What the interpreter does not have, and three things that it does wrong."""
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder

    language = interpreter._patch_lang

    def patch_lang(function: Any) -> Any:
        """With ends of loops that Triton 3.6 and a later NumPy agree on."""
        scope = language(function)
        scope.set_attr(tl.tensor, "__index__", lambda self: int(self.handle.data.squeeze()))
        return scope

    monkeypatch.setattr(interpreter, "_patch_lang", patch_lang)

    # What it multiplies is exact in any case.
    known = replace(
        interpreter_builder.options, allowed_dot_input_precisions=("ieee", "bf16x3", "bf16x6")
    )
    monkeypatch.setattr(interpreter_builder, "options", known)

    def flushed(x: Any) -> Any:
        """As some functions are compiled: the smallest float32 are 0 to them."""
        least = np.finfo(np.float32).tiny if x.dtype == np.float32 else 0
        return np.where(np.abs(x) < least, np.copysign(0, x), x).astype(x.dtype)

    def elementwise(function: Any, tiny: bool = True) -> Any:
        def same(x: Any) -> Any:
            return x if tiny else flushed(x)

        def apply(*inputs: Any) -> Any:
            inputs = [x if isinstance(x, tl.tensor) else tl.full([], x, tl.float32) for x in inputs]
            arrays = [same(x.handle.data) for x in inputs]
            with np.errstate(all="ignore"):
                data = np.asarray(function(*(x.astype(np.float64) for x in arrays)))
                data = same(data.astype(arrays[0].dtype))
            kind = tl.float64 if arrays[0].dtype == np.float64 else tl.float32
            block = any(x.type.is_block() for x in inputs)
            return tl.tensor(
                TensorHandle(data, kind), tl.block_type(kind, list(data.shape)) if block else kind
            )

        return apply

    def create_splat(self: Any, kind: Any, x: Any) -> Any:
        return TensorHandle(np.full(kind.shape, x.data, x.data.dtype), x.dtype.scalar)

    floats8 = {tl.float8e4nv: float8_e4m3fn, tl.float8e5: float8_e5m2}

    def create_dot(self: Any, a: Any, b: Any, acc: Any, *options: Any) -> Any:
        def value(x: Any) -> Any:
            if x.dtype == tl.bfloat16:
                return (x.data.astype(np.uint32) << 16).view(np.float32)
            if x.dtype in floats8:
                return x.data.view(floats8[x.dtype].numpy).astype(np.float32)
            return x.data

        product = np.matmul(value(a), value(b), dtype=acc.data.dtype)
        return TensorHandle(product + acc.data, acc.dtype.scalar)

    def create_inline_asm(self: Any, code: str, *arguments: Any) -> Any:
        """Only what `four_products`, `four_signed_products` and `look_up_four` say."""
        if "prmt" in code:
            codes, *table = (np.ascontiguousarray(x.data) for x in arguments[1])
            values = np.stack([x.ravel()[:1] for x in table], -1).astype(np.uint32).view(np.uint8)
            found = values.ravel()[codes.view(np.uint8)].view(np.uint32).reshape(codes.shape)
            return SimpleNamespace(get_result=lambda _: TensorHandle(found, tl.uint32))
        assert code.startswith("dp4a.s32.")
        kinds = np.int8, np.uint8 if code.startswith("dp4a.s32.u32") else np.int8
        *words, c = arguments[1]
        a, b = (
            np.ascontiguousarray(x.data).view(kind).reshape(*x.data.shape, 4).astype(np.int32)
            for x, kind in zip(words, kinds, strict=True)
        )
        product = TensorHandle((a * b).sum(-1, dtype=np.int32) + c.data, tl.int32)
        return SimpleNamespace(get_result=lambda _: product)

    for name, function in {
        "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sin": np.sin,
        "cos": np.cos, "tanh": np.tanh, "pow": np.power, "atan2": np.arctan2, "rint": np.rint,
        "trunc": np.trunc, "tan": np.tan, "fmod": np.fmod,
    }.items():  # fmt: skip
        tiny = name not in ("sin", "tan", "tanh", "fmod")
        monkeypatch.setattr(libdevice, name, elementwise(function, tiny))
    for name in ("gdc_launch_dependents", "gdc_wait"):
        monkeypatch.setattr(tl.extra.cuda, name, lambda: None)
    monkeypatch.setattr(InterpreterBuilder, "create_splat", create_splat)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(InterpreterBuilder, "create_inline_asm", create_inline_asm, raising=False)
