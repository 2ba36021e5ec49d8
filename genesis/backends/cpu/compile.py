"""LLVM IR text to machine code, in this process.

`emit` parses, optimises and emits one relocatable object; `link` puts objects into the process and
gives the addresses of their functions. The two are separate because objects are kept on disk, and
made in several processes: a later process only links. llvmlite is imported on first use, never with
the package, and nothing else here takes long to import.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import count
from typing import Any

from genesis.content_store import digest, remember
from genesis.events import span

# One lock for everything LLVM: its objects are not thread-safe, and llvmlite serialises anyway.
_lock = threading.RLock()
_libraries: list[Any] = []  # what is never unloaded
_numbers = count()  # a library that could not be linked keeps its name
_LIBRARIES = 256  # that one linker has


class CompileError(RuntimeError):
    """LLVM rejected a module; the message shows the offending line."""


def compile_object(text: str) -> bytes:
    """The machine code of an LLVM IR module for the host CPU, as an object file.

    What was compiled before is found on disk.
    """

    def made() -> bytes:
        with span("LLVM"):
            return emit(text)

    return remember("object", object_key(text), made)


def emit(text: str) -> bytes:
    """What `compile_object` gives, compiled now."""
    with _lock:
        return bytes(_machine().emit_object(_optimised(text)))


def object_key(text: str) -> str:
    """The key of a module's object: a digest of its text and of what compiles it for what."""
    return digest(target(), text)


@cache
def target() -> str:
    """The CPU as LLVM knows it, and LLVM's version."""
    import llvmlite

    llvm = _llvm()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    version = ".".join(map(str, llvm.llvm_version_info))
    return f"{llvm.get_process_triple()} {cpu} {features} LLVM {version} {llvmlite.__version__}"


def assembly(text: str) -> str:
    """The same code as `compile_object` gives, as assembly text to read."""
    with _lock:
        return str(_machine().emit_assembly(_optimised(text)))


def load(image: bytes, symbols: Iterable[str]) -> dict[str, int]:
    """Link one object file into the process for good; the addresses of `symbols`."""
    library, address = link([image], symbols)
    _libraries.append(library)
    return address


def link(images: Iterable[bytes], symbols: Iterable[str]) -> tuple[object, dict[str, int]]:
    """Link object files into the process; a library, and the addresses of `symbols`.

    The code is unloaded with the last reference to the library. Many at once take a quarter of the
    time they take one by one, but must not define a name twice.
    """
    llvm = _llvm()
    names = list(symbols)
    with _lock, span("link"):
        builder = llvm.JITLibraryBuilder().add_current_process()
        for image in images:
            builder = builder.add_object_img(image)
        for name in names:
            builder = builder.export_symbol(name)
        number = next(_numbers)
        library = builder.link(_jit(number // _LIBRARIES), f"genesis{number}")
        return library, {name: int(library[name]) for name in names}


def _optimised(text: str) -> Any:
    """The parsed and optimised module."""
    llvm = _llvm()
    machine = _machine()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(_explain(str(error), text)) from None
    module.triple = llvm.get_process_triple()
    module.data_layout = str(machine.target_data)
    # Renderers emit explicit vectors in SSA form and each expression once, so that three passes
    # reach the speed of the whole -O2 pipeline (softmax, GEMM) in a third of its time.
    passes = llvm.create_new_module_pass_manager()
    passes.add_loop_rotate_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return module


def _explain(message: str, text: str) -> str:
    """LLVM's message with the line of the module it speaks of."""
    found = re.search(r"<string>:(\d+):(\d+)", message)
    if found is None:
        return f"LLVM rejected the module: {message.strip()}"
    number = int(found.group(1))
    line = text.splitlines()[number - 1] if number <= text.count("\n") + 1 else ""
    reason = message.strip().splitlines()
    detail = next((r for r in reason if "error:" in r), reason[0])
    return f"LLVM rejected line {number}: {line.strip()}\n{detail}"


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def _machine(jit: bool = False) -> Any:
    llvm = _llvm()
    target = llvm.Target.from_default_triple()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    if jit:
        return target.create_target_machine(cpu=cpu, features=features, jit=True)
    # The small code model addresses constants relative to the instruction pointer.
    return target.create_target_machine(
        cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small"
    )


@lru_cache(maxsize=1)
def _jit(_: int) -> Any:
    # It never forgets a library it had, which takes 10 KB; so there is another one now and then.
    # The old ones live as long as a library of theirs.
    #
    # It puts an object's sections together. The other linker takes memory for each, and constants
    # may then lie too far from code where a process has mapped much memory.
    return _llvm().create_lljit_compiler(_machine(jit=True), use_jit_link=True)
