"""Promises of the project as a whole: its wheel, the cost of importing it, its source."""

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(ROOT.glob("genesis/**/*.py"))
#: What one person reads to know how it works: arrays, jit, the tape, the way of a graph through the
#: compiler, and one backend. Everything else is more of the same kind, a subject a file.
CORE = [
    *("ndarray/core", "ndarray/tracing", "ndarray/pytree.py"),
    *("tensor/tensor.py", "autograd/tape.py", "autograd/mode.py", "functional/function.py"),
    *(f"ir/{name}.py" for name in ("dtype", "size", "ops", "node", "rewrite", "kernel", "pattern")),
    *("ir/evaluate.py", "ir/interpret.py"),
    *(f"compiler/{name}.py" for name in ("compile", "pipeline", "build", "chip_passes", "options")),
    *("compiler/fuse/fuse.py", "compiler/fuse/cost.py", "compiler/fuse/groups.py"),
    *("compiler/lower/lower.py", "compiler/lower/movement.py", "compiler/schedule/steps"),
    *("compiler/schedule/__init__.py", "compiler/schedule/conditions.py"),
    *(f"compiler/schedule/cpu/{name}.py" for name in ("rules", "pointwise", "reductions")),
    *(
        "compiler/verify/kernel.py",
        "compiler/verify/access_relations.py",
        "compiler/verify/program.py",
    ),
    *("compiler/program/program.py", "compiler/program/assemble.py"),
    *("backends/base.py", "backends/cpu/backend.py", "backends/cpu/compile.py"),
    *("backends/cpu/runtime", "backends/cpu/codegen/render.py", "backends/cpu/codegen/emit.py"),
    *("backends/cpu/codegen/expression.py", "backends/cpu/codegen/lanes.py"),
]
#: Lines that the core may have. What grows there has to make room there.
CORE_LINES = 25_000


def python(code: str) -> str:
    """What `code` prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


# ---- the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    # Without isolation: the build backend is a development dependency, so no network is needed.
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*pip, *options], check=True)
    (built,) = folder.iterdir()
    return built


def test_wheel_is_pure_python(wheel: Path) -> None:
    assert wheel.name == "genesis_dl-0.1.0-py3-none-any.whl"


def test_wheel_holds_exactly_the_package(wheel: Path) -> None:
    """Type marker, native runtime and data included, tests and leftovers not."""
    names = zipfile.ZipFile(wheel).namelist()
    packed = {n for n in names if not n.startswith("genesis_dl-0.1.0.dist-info/")}
    runtime = [*ROOT.glob("genesis/backends/cpu/**/*.ll"), *ROOT.glob("genesis/torch/device/*.cpp")]
    places = [
        *ROOT.glob("genesis/datasets/*"),
        *ROOT.glob("genesis/serve/*"),
        *ROOT.glob("genesis/view/*"),
    ]
    data = [p for p in places if p.suffix not in (".py", "")]
    stubs = ROOT.glob("genesis/**/*.pyi")
    files = [*MODULES, *stubs, *runtime, *data, ROOT / "genesis/py.typed"]
    assert packed == {str(p.relative_to(ROOT)) for p in files}
    assert any(n.endswith(".ll") for n in packed)
    assert "genesis_dl-0.1.0.dist-info/licenses/LICENSE" in names


# ---- importing


def test_import_loads_no_heavy_library() -> None:
    loaded = set(python("import sys, genesis; print(*sys.modules)").split())
    assert "genesis" in loaded
    assert not loaded & {"cuda", "islpy", "llvmlite", "safetensors", "torch", "tqdm", "triton"}


# ---- the source


def public_definitions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """The module, and the classes, functions and methods in it whose names are public."""
    module = ast.parse(path.read_text())
    pending: list[tuple[str, ast.AST]] = [(str(path.relative_to(ROOT)), module)]
    while pending:
        name, node = pending.pop()
        yield name, node
        if isinstance(node, ast.Module | ast.ClassDef):
            pending.extend(
                (f"{name}: {child.name}", child)
                for child in node.body
                if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and not child.name.startswith("_")
            )


def overloads(node: ast.AST) -> bool:
    """Whether this is one signature of an overloaded function, or the setter of a property."""
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(d).endswith(("overload", ".setter")) for d in decorators)


#: What a differentiable function is made of; its class says what that is.
RULES = (": forward", ": backward", ": derivative")


def test_public_names_have_docstrings() -> None:
    missing = [
        name
        for path in MODULES
        for name, node in public_definitions(path)
        if not overloads(node) and not ast.get_docstring(node)  # type: ignore[arg-type]
        if not name.endswith(RULES)
    ]
    assert not missing, "\n".join(missing)


def test_no_wildcard_imports() -> None:
    """But where names are handed on, each from the module that lists it."""
    wild = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        if path.name != "__init__.py" and path != ROOT / "genesis/nn/functional.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    ]
    assert not wild


def test_benchmarks_import_what_is_there() -> None:
    """They are run by hand, long after somebody moved what they need."""
    imports = {
        f"from {node.module} import {alias.name}"
        for path in ROOT.glob("benchmarks/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("genesis")
        for alias in node.names
    }
    python("\n".join(sorted(imports)))


#: Code that knows a kind of chip by name: a device or backend compared with one of them.
NAMED_CHIP = re.compile(r"""(device|where|backend\.name)\b *[!=]= *["'](cpu|cuda|hip)["']""")


def test_no_layer_asks_what_kind_of_chip_it_is_on() -> None:
    """Backends and chips state what they can; only how an array is written out names its device."""
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for layer in ("functional", "autograd", "ndarray", "compiler")
        for path in sorted((ROOT / "genesis" / layer).rglob("*.py"))
        for line in path.read_text().splitlines()
        if (NAMED_CHIP.search(line) or re.search(r"isinstance\(.*\b[CG]PU\b", line))
        and "device={x.device!r}" not in line
    ]
    assert not found, found


#: Classes of one name: an interface and what implements it, one thing on several devices, and names
#: that users know from PyTorch, from papers, or import from a package of their own.
SAME_NAME = {
    *("Event", "Memory", "Places", "Recorder", "Stream", "Word"),
    *("Attention", "Buffer", "Encoder", "Function", "Linear", "Transformer", "Uniform"),
    *("Factors", "Layer", "Report", "Rule", "Rules", "Size"),
    *("Prefix", "SparseTensor", "Statistics"),
}


def test_a_name_of_a_class_has_one_meaning() -> None:
    """Models and trainings, each of which is read on its own, may call their parts as papers do."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    shared = {
        name: [f for f in files if not f.startswith("genesis/recipes/")]
        for name, files in homes.items()
        if name not in SAME_NAME
    }
    assert not {name: files for name, files in shared.items() if len(files) > 1}
    assert all(len(homes.get(name, ())) > 1 for name in SAME_NAME), "some have one home by now"


def test_the_core_stays_small() -> None:
    folders = [ROOT / "genesis" / part for part in CORE]
    files = [f for p in folders for f in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]
    assert len(set(files)) == len(files)
    assert sum(len(f.read_text().splitlines()) for f in files) <= CORE_LINES
