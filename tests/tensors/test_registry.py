"""What is made of operations: methods, layers, stubs, and the page that says how to add one."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import genesis
from genesis import functional, nn
from genesis.functional.registry import operations
from genesis.nn import parameterless_layers
from genesis.tensor.tensor import Tensor
from tests.stubs import stubs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contributing" / "add-an-operation.md"
#: Arguments of layers that need some.
NEEDED = {
    "downscale_factor": 2, "groups": 2, "kernel_size": 2, "norm_type": 2.0, "output_size": 3,
    "threshold": 0.1, "upscale_factor": 2, "value": 0.0,
}  # fmt: skip


def made(name: str) -> nn.Module:
    """A layer with its defaults."""
    kind = getattr(parameterless_layers, name)
    parameters = inspect.signature(kind).parameters.values()
    needed = {p.name: NEEDED[p.name] for p in parameters if p.default is p.empty}
    extra = {"output_size": 3} if name.startswith("Fractional") else {}
    layer: nn.Module = kind(**{**needed, **extra})
    return layer


@pytest.mark.parametrize("path, text", list(stubs()), ids=lambda x: getattr(x, "name", "text"))
def test_stubs_are_up_to_date(path: Path, text: str) -> None:
    assert path.read_text() == text, "write the stubs anew with `python -m tests.stubs`"


def test_every_method_is_reached() -> None:
    """An operation that says it is a method has a public name to be one by."""
    for operation in operations.values():
        if operation.method:
            own = [n for n, x in vars(functional).items() if x is operation.function]
            assert own and all(hasattr(Tensor, n) for n in own), operation.name
            assert not operation.in_place or all(hasattr(Tensor, f"{n}_") for n in own)


def test_methods_tell_their_arguments() -> None:
    assert list(inspect.signature(Tensor.add_).parameters) == ["input", "other", "alpha"]
    assert Tensor.multiply_.__name__ == "multiply_"


@pytest.mark.parametrize("name", parameterless_layers.__all__)
def test_layers_are_classes_like_others(name: str) -> None:
    """They copy, pickle, print what they were made with and take subclasses."""
    layer = made(name)
    kind = type(layer)
    assert getattr(nn, name) is kind and issubclass(kind, nn.Module) and kind.__doc__
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(twin) is kind and repr(twin) == repr(layer)

    class Own(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.more = 1

    settings = {p: getattr(layer, p) for p in inspect.signature(kind).parameters}
    own = Own(**settings)
    assert isinstance(own, kind) and own.more == 1
    assert {p: getattr(own, p) for p in settings} == settings


def test_layers_compute_with_what_they_are_told() -> None:
    """Settings are read when a layer is called, and so is whether it trains."""
    x = genesis.tensor([-2.0, 1.0])
    layer = nn.LeakyReLU(0.5)
    assert layer(x).tolist() == [-1.0, 1.0]
    layer.negative_slope = 0.25
    assert layer(x).tolist() == [-0.5, 1.0]
    random = nn.RReLU(0.1, 0.3)
    assert random.eval()(x).tolist() == pytest.approx([-0.4, 1.0])
    drawn = {random.train()(x)[0].item() for _ in range(8)}
    assert len(drawn) > 1 and all(-0.6 <= value <= -0.2 for value in drawn)


def test_scalar_rules_are_entered() -> None:
    """An entry leads to the array function and the derivative of an elementwise operation."""
    rule = operations[functional.mish].rule
    x = genesis.tensor([0.3, -1.2], requires_grad=True)
    functional.mish(x).sum().backward()
    assert rule.derivative(x.detach()).tolist() == pytest.approx(x.grad.tolist())
    assert rule.function(x.array.copy()).tolist() == functional.mish(x).tolist()
    assert operations[functional.gelu].rule.function(x.array, "none") is not None


# ---- the page


def test_the_page_on_adding_an_operation(tmp_path: Path) -> None:
    """Its change to one file is made in a copy, where what it promises is then true."""
    change, _, row, use = re.findall(r"^```python\n(.*?)^```\n", PAGE.read_text(), re.M | re.S)
    skipped = shutil.ignore_patterns("__pycache__", "torch", "models", "recipes", "datasets")
    shutil.copytree(ROOT / "genesis", tmp_path / "genesis", ignore=skipped)
    path = tmp_path / "genesis" / "functional" / "activation.py"
    name = re.search(r"def (\w+)", change)[1]  # type: ignore[index]
    text = path.read_text()
    assert name not in text
    text = text.replace("\n__all__ = [", f"\n{change}\n\n__all__ = [\n    {name!r},", 1)
    path.write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT / 'tests'}"}
    check = f"import genesis\nassert genesis.__file__.startswith({str(tmp_path)!r})\n{use}"
    check += f"from tests.tensors.test_functional_math import X, _case, check\ncheck([{row}])\n"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    said = re.findall(r"print\(.*\)  # (.*)", use)
    assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr
