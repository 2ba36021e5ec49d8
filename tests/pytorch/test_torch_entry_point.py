"""Where Genesis is installed, PyTorch finds the backend by itself."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LATE = """
import sys, torch
assert not any(name.startswith("genesis") for name in sys.modules)  # import torch stays quick
print(torch.compile(lambda x: x.cos() + 1, backend="genesis")(torch.zeros(())).item())
import genesis.torch
"""
EARLY = """
import genesis.torch, torch
print(torch.compile(lambda x: x.cos() + 1, backend="genesis")(torch.zeros(())).item())
"""


@pytest.mark.parametrize(
    "program",
    [pytest.param(LATE, marks=pytest.mark.slow, id="late"), pytest.param(EARLY, id="early")],
)
def test_backend_is_found(program: str, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    group = project["entry-points"]["torch_dynamo_backends"]
    described = tmp_path / "installed-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    lines = ["[torch_dynamo_backends]", *(f"{name} = {value}" for name, value in group.items())]
    (described / "entry_points.txt").write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "2.0\n", done.stderr


def test_without_pytorch_the_error_says_what_to_install() -> None:
    program = """
import importlib.util as u
find = u.find_spec
u.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
import genesis.torch
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: genesis.torch needs PyTorch: pip install 'genesis-dl[torch]'"
    )
