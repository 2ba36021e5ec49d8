"""The backend of `examples/backend`, installed as its page says: one package, and nothing else."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import genesis
from genesis import nn, optim

FOLDER = Path(__file__).parents[2] / "examples" / "backend"


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What ``pip install ./examples/backend`` leaves."""
    folder: Path = tmp_path_factory.mktemp("site-packages")
    shutil.copy(FOLDER / "genesis_loops.py", folder)
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    described = folder / "genesis_loops-0.1.0.dist-info"
    described.mkdir()
    described.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    ((name, where),) = project["entry-points"]["genesis.backends"].items()
    described.joinpath("entry_points.txt").write_text(f"[genesis.backends]\n{name} = {where}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


def trained(device: str) -> list[float]:
    """The losses of a few steps of a small network, and what is left of its weights."""
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2)).to(device)
    with genesis.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(genesis.arange(p.numel()).reshape(p.shape).to(device) * 0.1 - 0.2 * k)
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    x = (genesis.arange(15).reshape(5, 3) * 0.3).to(device)
    y = genesis.tensor([0, 1, 0, 1, 1]).to(device)

    @genesis.jit
    def step() -> genesis.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return [step().item() for _ in range(3)] + model[0].weight.detach().cpu().tolist()[0]


def test_a_training_step_is_that_of_the_cpu() -> None:
    np.testing.assert_allclose(trained("loops"), trained("cpu"), rtol=1e-5)


def test_loops_views_and_the_host_have_their_part() -> None:
    x = genesis.arange(12.0, device="loops").reshape(4, 3)
    x[1:3, ::2] = -1.0
    last, _ = genesis.scan(lambda c, row: (c * 0.5 + row, c), genesis.zeros(3, device="loops"), x)
    want = np.zeros(3)
    for row in x.cpu().numpy():
        want = want * 0.5 + row
    np.testing.assert_allclose(last.cpu().numpy(), want, rtol=1e-6)
    np.testing.assert_array_equal(
        genesis.sort(x, dim=0)[0].cpu().numpy(), np.sort(x.cpu().numpy(), axis=0)
    )


def test_what_it_does_while_a_function_is_recorded_is_not_the_functions() -> None:
    """Not even where it lies beside what the user writes, as a package under development does."""

    @genesis.jit
    def f(x: genesis.Tensor) -> genesis.Tensor:
        return x + genesis.tensor([1.0, 2.0], device="loops")

    assert f(genesis.ones(2, device="loops")).tolist() == [2.0, 3.0]


def test_arrays_of_nothing() -> None:
    assert genesis.tensor([], device="loops").tolist() == []
    assert genesis.zeros(0, 2, device="loops")[:, 1].tolist() == []
    assert genesis.zeros(0, 3, device="loops").sum(0).tolist() == [0.0, 0.0, 0.0]


def test_what_is_looked_at_stays() -> None:
    """An array on the memory keeps it, though the tensor has gone."""
    seen = [(genesis.arange(1000, device="loops") + k).numpy() for k in range(20)]
    for k, x in enumerate(seen):
        np.testing.assert_array_equal(x, np.arange(1000) + k)


def test_views_that_go_backwards() -> None:
    x = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    found = genesis.from_numpy(x[::-1, ::-1]).to("loops")
    np.testing.assert_array_equal((found + 0).numpy(), x[::-1, ::-1])
    y = genesis.arange(12, device="loops").reshape(4, 3).flip(1)
    np.testing.assert_array_equal(y.T.numpy(), np.arange(12).reshape(4, 3)[:, ::-1].T)


def test_kernels_are_proven_and_run_as_lowering_leaves_them() -> None:
    x = genesis.ones(2, 3, device="loops")
    report = genesis.explain(lambda x: (x * x).sum(1), x)
    assert report.proven
    assert report.kernels[0].scheduled == report.kernels[0].plain
