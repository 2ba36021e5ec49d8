"""What compiling real models costs, stage by stage: ``python -m benchmarks.compile_time``.

Each model is recorded and compiled, but not run, in a process of its own, so that every kernel is
new to the compiler; what a process pays only once (imports, LLVM's start) is paid before. The
stages are timed in place, inside one ordinary compilation: a clock is put around each stage's
function, and time spent in an inner stage does not count for the outer one. Processor time is what
is shown, so that other work on the machine does not count. Less time passes, because LLVM works in
processes of its own; that is measured in another compilation, and shown last.

``--depth`` shows the cost over the number of layers, without machine code, as a table and as a
picture in ``benchmarks/results``. Layers are alike, so lowering, scheduling, proving and rendering
should cost what the distinct kernels cost, whatever the depth.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from threading import local
from time import perf_counter, process_time, thread_time
from typing import Any, NoReturn

import numpy as np

import genesis
from benchmarks.chart import stacked
from benchmarks.models import Tree, bert, llama, mapped, resnet
from genesis import ndarray as nd
from genesis.backends import compile_workers
from genesis.backends.base import Binary, Executable, Record
from genesis.backends.cpu.backend import CPUBackend
from genesis.backends.cpu.codegen import render
from genesis.compiler.options import Options
from genesis.compiler.pipeline import compile_program
from genesis.ir.kernel import Kernel
from genesis.ir.node import Node, topological
from genesis.ndarray import NDArray
from genesis.ndarray.tracing import recording

#: The stages in order, each with the function whose time it is, as (module, attribute).
STAGES: dict[str, tuple[str, str] | None] = {
    "record": None,  # what the model does, as the compiler's nodes
    "simplify": ("genesis.compiler.pipeline", "simplify"),
    "fuse": ("genesis.compiler.pipeline", "fuse"),
    "lower": ("genesis.compiler.pipeline", "lower_once"),
    "key": ("genesis.compiler.pipeline", "build"),  # equal kernels are found
    "schedule": ("genesis.compiler.build", "schedule"),
    "check": ("genesis.compiler.build", "check"),
    "verify": ("genesis.compiler.build", "verify"),
    "render": ("genesis.backends.cpu.codegen.render", "render"),
    "LLVM": ("genesis.backends.cpu.binary", "emit"),
    "link": ("genesis.backends.cpu.backend", "link"),
    "assemble": ("genesis.compiler.pipeline", "assemble"),
    "order": ("genesis.compiler.pipeline", "verify_program"),
}
TENSOR_STAGES = ("simplify", "fuse")
MACHINE_CODE = ("LLVM", "link")


@dataclass(frozen=True)
class Case:
    """A model: how to compute it, and the shapes of its weights and inputs (integers: tokens)."""

    function: Callable[..., Any]
    weights: Tree
    floats: tuple[tuple[int, ...], ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()

    def arguments(self) -> list[Tree]:
        """Arguments of the right shapes: zeros nobody reads, so the memory is never touched."""

        def zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray:
            return nd.from_numpy(np.zeros(shape, dtype))

        inputs = [zeros(s) for s in self.floats] + [zeros(s, np.int64) for s in self.tokens]
        return [mapped(zeros, self.weights), *inputs]


def resnet50(layers: int | None = None) -> Case:
    """Forward, a batch of 64. With `layers`: that many blocks in the third stage."""
    config = resnet.RESNET50
    if layers is not None:
        config = replace(config, blocks=(3, 4, layers, 3))
    return Case(resnet.forward, resnet.parameters(config), floats=((64, 3, 224, 224),))


def bert_base(layers: int = 12) -> Case:
    """Forward and backward, one sequence of 128 tokens."""
    config = replace(bert.BERT_BASE, layers=layers)
    function = partial(bert.loss_and_gradients, heads=config.heads)
    return Case(function, bert.parameters(config), tokens=((1, 128), (1, 128)))


def llama16(layers: int = 16) -> Case:
    """Forward and backward, one sequence of 128 tokens, hidden size 512."""
    parameters = llama.parameters(llama.Config(layers=layers))
    return Case(llama.loss_and_gradients, parameters, tokens=((1, 128), (1, 128)))


MODELS: dict[str, Callable[..., Case]] = {
    "ResNet-50": resnet50,
    "BERT-base": bert_base,
    "Llama-16": llama16,
}
#: Milliseconds: stages on the tensor graph, everything before machine code, everything.
GOALS = {"ResNet-50": (50, 400, 2000)}


# ---- measuring


class Clock:
    """Milliseconds and calls by stage. An inner stage stops the clock of the outer one."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(STAGES, 0.0)
        self.calls = dict.fromkeys(STAGES, 0)
        self._thread = local()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block as a stage."""
        inner: list[float] = vars(self._thread).setdefault("inner", [0.0])
        inner.append(0.0)
        start = thread_time()
        try:
            yield
        finally:
            total = 1e3 * (thread_time() - start)
            self.spent[name] += total - inner.pop()
            inner[-1] += total
            self.calls[name] += 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time every stage's function wherever it is called."""
        originals = []
        for name, place in STAGES.items():
            if place is not None:
                module, attribute = import_module(place[0]), place[1]
                original = getattr(module, attribute)
                originals.append((module, attribute, original))
                setattr(module, attribute, self._timed(name, original))
        try:
            yield
        finally:
            for module, attribute, original in originals:
                setattr(module, attribute, original)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return function(*args, **kwargs)

        return timed


class SourceOnly(CPUBackend):
    """A CPU backend that renders kernels and goes no further."""

    def compile(self, kernels: Iterable[Kernel], precision: str = "highest") -> list[Binary]:
        """Source without machine code."""
        return [Binary("", b"", None, render.render(k, self.chip).text) for k in kernels]

    def assemble(self, records: Sequence[Record]) -> Executable:
        """Nothing that could run."""
        return None  # type: ignore[return-value]


class Recorded(BaseException):
    """Raised instead of compiling what was recorded."""


def record(case: Case, clock: Clock) -> tuple[Node, ...]:
    """The graph of a model as the compiler gets it from `genesis.jit`."""
    found: list[tuple[Node, ...]] = []

    def stop(roots: tuple[Node, ...], *_: Any) -> NoReturn:
        found.append(roots)
        raise Recorded

    arguments = case.arguments()
    names = vars(recording)
    original, names["compiled"] = names["compiled"], stop
    try:
        with clock.stage("record"), suppress(Recorded):
            genesis.jit(case.function)(*arguments)
    finally:
        names["compiled"] = original
    return found[0]


def measure(case: Case, machine_code: bool = True) -> dict[str, float]:
    """Milliseconds of each stage, and counts of nodes, kernels and distinct kernels."""
    clock = Clock()
    roots = record(case, clock)
    compile_workers.FEW = sys.maxsize  # all of the work is done, and counted, here
    start = process_time()
    with clock.watching():
        backend = CPUBackend() if machine_code else SourceOnly()
        program = compile_program(roots, frozenset(), backend, Options())
    total = 1e3 * (process_time() - start)
    unproven = sum(not step.built.verdict.proven for step in program.steps)
    return {
        "nodes": len(topological(roots)),
        "kernels": len(program.steps),
        "distinct": clock.calls["schedule"],
        "unproven": unproven,
        **clock.spent,
        "total": total + clock.spent["record"],
    }


def passed(case: Case, machine_code: bool = True) -> dict[str, float]:
    """Milliseconds that pass while a model is compiled."""
    roots = record(case, Clock())
    backend = CPUBackend() if machine_code else SourceOnly()
    start = perf_counter()
    compile_program(roots, frozenset(), backend, Options())
    return {"passed": 1e3 * (perf_counter() - start)}


def warm_up() -> None:
    """Pay what a process pays once."""
    nd.realize(nd.zeros((2, 2)) @ nd.ones((2, 2)) + 1)


def in_fresh_process(model: str, layers: int | None, machine_code: bool) -> dict[str, float]:
    """`measure` and `passed` where no kernel has been seen before, nor kept on disk."""
    found: dict[str, float] = {}
    for what in ("--measure", "--passed"):
        command = [sys.executable, "-m", "benchmarks.compile_time", what, model]
        if layers is not None:
            command += ["--layers", str(layers)]
        if not machine_code:
            command.append("--source-only")
        environment = os.environ | {"GENESIS_CACHE": "off"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise SystemExit(f"measuring {model} failed:\n{done.stderr}")
        found |= json.loads(done.stdout)
    return found


# ---- showing


def summary(found: dict[str, float]) -> dict[str, float]:
    """The sums that have goals."""
    compiling = [s for s in STAGES if s != "record"]
    return {
        "simplify + fuse": sum(found[s] for s in TENSOR_STAGES),
        "without code": sum(found[s] for s in compiling if s not in MACHINE_CODE),
        "cold": found["total"] - found["record"],
    }


def table(columns: dict[str, dict[str, float]], goals: bool = True) -> str:
    """Rows of numbers, one column for each measurement."""
    names = list(columns)
    rows = [("", names)]
    counts = ("nodes", "kernels", "distinct", "unproven")
    rows += [(key, [f"{columns[n][key]:.0f}" for n in names]) for key in counts]
    rows += [(f"{s}, ms", [f"{columns[n][s]:.1f}" for n in names]) for s in (*STAGES, "total")]
    for k, key in enumerate(("simplify + fuse", "without code", "cold")):
        cells = []
        for n in names:
            goal = f" (goal {GOALS[n][k]})" if goals and n in GOALS else ""
            cells.append(f"{summary(columns[n])[key]:.0f}{goal}")
        rows.append((f"{key}, ms", cells))
    rows.append(("cold, ms passed", [f"{columns[n]['passed']:.0f}" for n in names]))
    widths = [max(len(cells[k]) for _, cells in rows) for k in range(len(names))]
    lines = []
    for name, cells in rows:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{name:<22}" + "  ".join(padded))
    return "\n".join(lines)


def depth(model: str, depths: Sequence[int]) -> None:
    """The cost over the number of layers, as a table and as a picture."""
    found = {d: in_fresh_process(model, d, machine_code=False) for d in depths}
    print(f"{model}, by number of layers")
    print(table({str(d): f for d, f in found.items()}, goals=False))
    stages = [s for s in STAGES if s not in MACHINE_CODE]
    kernels = f"{found[depths[0]]['distinct']:.0f} to {found[depths[-1]]['distinct']:.0f}"
    picture = stacked(
        f"Compiling a decoder, forward and backward, without LLVM: {kernels} distinct kernels",
        "layers",
        depths,
        {stage: [found[d][stage] for d in depths] for stage in stages},
    )
    (Path(__file__).parent / "results" / "compile_depth.svg").write_text(picture)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; all if none")
    parser.add_argument("--depth", action="store_true", help="a decoder of 1 to 48 layers")
    parser.add_argument("--source-only", action="store_true", help="stop before machine code")
    parser.add_argument("--measure", choices=MODELS, help="measure in this process, print JSON")
    parser.add_argument("--passed", choices=MODELS, help="measure the time that passes, likewise")
    parser.add_argument("--layers", type=int, help="number of layers, for these")
    options = parser.parse_args()
    if model := options.measure or options.passed:
        case = MODELS[model]() if options.layers is None else MODELS[model](options.layers)
        warm_up()
        measured = measure if options.measure else passed
        print(json.dumps(measured(case, not options.source_only)))
        return
    if options.depth:
        depth("Llama-16", (1, 2, 4, 8, 16, 24, 32, 48))
        return
    names = options.models or list(MODELS)
    found = {name: in_fresh_process(name, None, not options.source_only) for name in names}
    print(table(found))


if __name__ == "__main__":
    main()
