"""The map is true: folders have a row, files that pages name exist, the way of a sum is its way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs" / "contributing" / "index.md"
PAGES = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FOLDER_MAP = ROOT / "docs" / "architecture.md"

#: The four layers, from above. One may call what is in those below it.
LAYERS = (("tensor",), ("functional", "autograd"), ("ndarray",), ("compiler", "backends"))
MOST_HOPS = 20

#: Prints the files that are gone through, in order, as often as they are come back to.
TRACED = """
import sys
from pathlib import Path
import genesis

a, b = genesis.rand(7, 13), genesis.rand(7, 13)
a.numpy(), b.numpy()
root, way = str(Path(genesis.__file__).parent) + "/", []

def note(frame, event, _):
    name = (frame.f_back if event == "return" else frame).f_code.co_filename
    if name.startswith(root) and name[len(root):] not in way[-1:]:
        way.append(name[len(root):])

assert type(a).__add__ is genesis.functional.add
sys.setprofile(note)
(a + b).sum().item()
sys.setprofile(None)
print(*way)
"""


def hops() -> list[str]:
    """The first file or folder that each step of the way of ``(a + b).sum()`` names."""
    part = MAP.read_text().partition("## The way of")[2].partition("\n## ")[0]
    steps = re.findall(r"^(\d+)\. `([\w/.]+)`", part, re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    return [name for _, name in steps]


def test_every_folder_has_a_row() -> None:
    rows = re.findall(r"^\| (`.*?) \|", MAP.read_text(), re.MULTILINE)
    named = {
        name.strip("`").removeprefix("genesis/").strip("/") for r in rows for name in r.split()
    }
    folders = {p.parent.name for p in ROOT.glob("genesis/*/__init__.py")}
    covered = {name.partition("/")[0] for name in named}
    assert folders <= covered, sorted(folders - covered)


def test_files_that_texts_name_exist() -> None:
    """In pages and in docstrings; in a row of the folder map, in the folders of that row."""
    files = {str(p.relative_to(ROOT)) for p in ROOT.glob("*/**/*") if p.suffix in (".py", ".pyi")}
    texts = [(p, p.read_text(), files) for p in (*PAGES, *ROOT.glob("genesis/**/*.py"))]
    for row in re.findall(r"^\| `genesis/.*$", FOLDER_MAP.read_text(), re.MULTILINE):
        folders = tuple(re.findall(r"`(genesis/\w[\w/]*/)`", row.split("|")[1]))
        if folders:
            inside = {f for f in files if f.startswith(folders)}
            texts.append((FOLDER_MAP, re.sub(r"`\w+/[\w/.]+`", "", row.split("|")[2]), inside))
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text, known in texts
        for name in re.findall(r"`(\w+(?:/\w+)*\.pyi?)`", text)
        if not any(f == name or f.endswith(f"/{name}") for f in known)
    ]
    assert not missing, missing


def test_the_way_of_a_sum() -> None:
    """At most so many steps, which a cold run goes through in this order, none up a layer."""
    steps = hops()
    assert len(steps) <= MOST_HOPS
    environment = {**os.environ, "GENESIS_CACHE": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TRACED]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    way = iter(done.stdout.split())
    for step in steps[1:]:  # the first is no call: it says that `__add__` is the next
        assert any(file.startswith(step) for file in way), step
    depths = [next(k for k, names in enumerate(LAYERS) if s.split("/")[0] in names) for s in steps]
    again = next(k for k, s in enumerate(steps) if k > 2 and s.startswith("functional/"))
    for part in (depths[:again], depths[again:-1]):  # two calls of a user; at last the result
        assert part == sorted(part), steps
