"""What PyTorch does, it does after ``import genesis.torch``, too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from processes import run

import genesis.torch  # noqa: F401
from tests.torch_smoke import compared


def test_plain_programs_give_the_same_after_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENESIS_TORCH_ACCELERATOR", "0")  # as where there is another
    assert compared("cpu") == []


@pytest.mark.slow
def test_where_there_is_no_other_the_device_is_the_accelerator_and_all_else_the_same() -> None:
    without = "import torch; print(torch.accelerator.current_accelerator())"
    others = run(without) != "None\n"
    assert compared("cpu") == ([] if others else ["questions"])


#: Everything that takes a device, with one that does not exist.
MISSING = [
    "torch.ones(2, device=D)", "torch.empty(2, device=D)", "torch.tensor([1.0], device=D)",
    "torch.ones(2).to(D)", "torch.ones(2, device='genesis').to(D)", "torch.arange(3, device=D)",
    "torch.randn(3, device=D)", "torch.nn.Linear(2, 2, device=D)",
    "torch.empty_strided((2,), (1,), device=D)", "torch.genesis.set_device(7)",
    "torch.genesis.synchronize(7)", "torch.genesis.memory_stats(7)",
    "torch.genesis.get_device_name(7)", "torch.genesis.get_rng_state(7)",
]  # fmt: skip
COMPILED = [
    "torch.Generator(device=D)", "torch.Stream(device=D)", "torch.UntypedStorage(4, device=D)",
    "torch.genesis.current_stream(7)",
]  # fmt: skip

ASKED = """
import sys
import torch
import genesis.torch
D = "genesis:7"
for expression in sys.argv[1:]:
    try:
        eval(expression)
    except RuntimeError as error:
        assert "genesis:7 does not exist: there is 1 device" in str(error), error
    else:
        raise AssertionError(expression)
print("refused")
"""


@pytest.mark.parametrize("compiler", ["c++", pytest.param("none", marks=pytest.mark.slow)])
def test_a_device_that_does_not_exist_is_an_error(compiler: str, tmp_path: object) -> None:
    """In a process of its own: some of it used to end that."""
    environment = {**os.environ, "GENESIS_TORCH_DEVICES": "cpu"}
    asked = [*MISSING, *COMPILED]
    if compiler == "none":
        if torch.accelerator.current_accelerator() is not None and not _is_ours():
            pytest.skip("without a compiler there is no device beside another accelerator")
        environment |= {"CXX": "no-such-compiler", "TORCH_EXTENSIONS_DIR": str(tmp_path)}
        asked = MISSING
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASKED, *asked],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "refused\n", done.stderr


def _is_ours() -> bool:
    return str(torch.accelerator.current_accelerator()) == "genesis"


def test_a_generator_of_another_device_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'genesis' device type for generator"):
        torch.rand(2, generator=torch.Generator("cpu"), device="genesis")


@pytest.mark.slow
def test_compiled_for_a_gpu_that_is_pretended() -> None:
    """Programs on PyTorch's memory, in a stream of its own: see `tests.interpreted_torch`."""
    pytest.importorskip("triton")
    done = run("from tests.interpreted_torch import main; main()", TRITON_INTERPRET="1")
    assert done.splitlines()[-1] == "agrees"
