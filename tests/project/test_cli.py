"""The `genesis` command."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import genesis
from genesis.cli import main
from genesis.content_store import ContentStore

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("GENESIS_CACHE", str(path))
    return path


def output(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """What the command prints; to stderr, if it fails."""
    assert main(arguments) == status
    printed = capsys.readouterr()
    assert not (printed.out if status else printed.err)
    return printed.err if status else printed.out


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=os.environ, capture_output=True, text=True
    )


def test_python_m_genesis() -> None:
    done = run("-m", "genesis", "--version")
    assert (done.returncode, done.stdout) == (0, f"genesis {genesis.__version__}\n")


def test_the_entry_point_leads_here() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["genesis"].partition(":")
    assert getattr(import_module(module), name) is main


def test_it_starts_without_heavy_libraries() -> None:
    code = (
        "import sys\n"
        "from genesis.cli import main\n"
        "main(['cache'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    loaded = set(run("-c", code).stderr.split())
    assert "genesis.cli" in loaded
    assert not loaded & {
        "genesis.llm",
        "islpy",
        "llvmlite",
        "genesis.compiler",
        "importlib.metadata",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("chat",),
        ("llm",),
        ("llm", "bench"),
        ("env",),
        ("cache",),
        ("cache", "show"),
        ("cache", "clear"),
        ("cache", "path"),
    ],
)
def test_help(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith(" ".join(["usage: genesis", *arguments]))


def test_without_arguments_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys)
    assert "env" in text and "cache" in text


def test_an_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["cash"])
    assert stopped.value.code == 2
    assert "invalid choice: 'cash'" in capsys.readouterr().err


def test_show_counts_by_kind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ContentStore(folder)
    for k in range(3):
        store.put("object", str(k), bytes(8000))
    store.put("program", "0", bytes(10))
    lines = [line.split() for line in output(capsys, "cache").splitlines()]
    assert lines[0] == ["directory", str(folder)]
    assert lines[1][:2] == ["programs", "1"]
    assert lines[2][:2] == ["objects", "3"]
    assert float(lines[2][2]) >= 3 * 8000 / 1024 and lines[2][3] == "KiB"
    assert lines[3] == ["limit", "1", "GiB"]
    assert output(capsys, "cache", "show") == output(capsys, "cache")


def test_clear(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ContentStore(folder).put("object", "k", bytes(10))
    assert output(capsys, "cache", "clear").startswith("deleted 1 entries")
    assert list(folder.iterdir()) == []
    assert output(capsys, "cache", "clear") == "deleted 0 entries, 0 B\n"


def test_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "cache", "path") == f"{folder}\n"


@pytest.mark.parametrize("action", ["show", "clear", "path"])
def test_looking_makes_no_directory(
    folder: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    output(capsys, "cache", action)
    output(capsys, "env")
    assert not folder.exists()


def test_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENESIS_CACHE", "off")
    assert "off" in output(capsys, "cache", "show")
    assert "off" in output(capsys, "cache", "path", status=1)
    assert "deleted 0" in output(capsys, "cache", "clear")
    assert "off" in output(capsys, "env").splitlines()[-1]


@pytest.mark.parametrize("action", ["show", "clear"])
def test_an_unsafe_directory_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    (folder / f"{64 * '0'}.object").write_bytes(b"")
    message = output(capsys, "cache", action, status=1)
    assert str(folder) in message and "mode 777" in message
    assert len(list(folder.iterdir())) == 1
    assert "mode 777" in output(capsys, "env")


def test_env(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ContentStore(folder).put("object", "k", bytes(10))
    found = dict(line.split(maxsplit=1) for line in output(capsys, "env").splitlines())
    assert found["genesis"] == genesis.__version__
    assert found["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert found["llvmlite"][0].isdecimal() and found["islpy"][0].isdecimal()
    assert "-bit vectors" in found["cpu"]
    assert int(found["threads"]) >= 1
    assert found["cache"].startswith(f"{folder}: 1 entries")
