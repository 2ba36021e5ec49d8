"""The documentation is true: every Python block of README.md and docs/ prints what it says.

The blocks of a page run in order and share their names. What a block prints must be what the
``text`` block behind it shows (``...`` stands for anything) or, without one, what the comments
behind its ``print`` calls say. An exception counts as its last line. A block with a title is an
excerpt of the file its title names. ``python tests/project/test_docs.py`` writes what is printed
now into the pages.
"""

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: One page changes a file of the package: `test_registry` replays it, in a copy.
REPLAYED = ROOT / "docs" / "contributing" / "add-an-operation.md"
PAGES = [ROOT / "README.md", *sorted({*ROOT.glob("docs/**/*.md")} - {REPLAYED})]

_FENCE = re.compile(
    r"^```python(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```\n"
    r"(?:\n```text\n(?P<shown>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"^ *print\(.*\)  +# (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A Python block of a page, and what the page says it prints."""

    page: Path
    line: int
    title: str | None
    code: str
    shown: str | None
    span: tuple[int, int]  # of what is shown, in the page

    @property
    def expected(self) -> str | None:
        """What it must print; None: the page does not say."""
        if self.shown is not None:
            return self.shown
        comments = _COMMENT.findall(self.code)
        return "".join(c + "\n" for c in comments) if comments else None

    def run(self, names: dict[str, Any]) -> str:
        """What it prints."""
        where = str(self.page.relative_to(ROOT))
        # Lines are numbered as in the page, so that what names one can be looked up.
        program = compile("\n" * self.line + self.code, where, "exec", dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(program, names)
            except Exception as error:
                if self.shown is None:
                    raise
                print(f"{type(error).__name__}: {error}")
        return printed.getvalue()


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for m in _FENCE.finditer(text):
        line = text.count("\n", 0, m.start()) + 1
        yield Block(page, line, m["title"], m["code"], m["shown"], m.span("shown"))


def same(shown: str, printed: str) -> bool:
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_page(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page):
        if block.title is not None:
            source = (ROOT / block.title).read_text()
            lines = [line.strip() for line in source.splitlines()]
            excerpt = [line.strip() for line in block.code.splitlines()]
            starts = range(len(lines) - len(excerpt) + 1)
            found = any(lines[k : k + len(excerpt)] == excerpt for k in starts)
            assert found, f"line {block.line} is no excerpt of {block.title}"
            continue
        printed = block.run(names)
        if block.expected is not None:
            assert same(block.expected, printed), f"line {block.line} prints\n{printed}"


def test_pages_have_blocks() -> None:
    """Guards the pattern above: if it stopped matching, nothing would be tested."""
    fences = sum(p.read_text().count("\n```python") for p in PAGES)
    assert sum(len(list(blocks(p))) for p in PAGES) == fences > 20


def test_links_lead_somewhere() -> None:
    """Links between pages and to files; mkdocs checks those inside docs/, nothing checks README."""
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def python(*arguments: str) -> str:
    """What a Python process prints, run at the root of the project."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


def test_spiral_learns() -> None:
    """The example with gradients by hand, with fewer steps."""
    drawing, _, table = python("examples/spiral.py", "--steps", "400").partition("\n\n")
    assert {*drawing} == {*"ABC\n"}
    rows = dict(re.split(r"  +", line) for line in table.strip().splitlines())
    assert float(rows["accuracy on new points"].rstrip("%")) > 95
    assert rows["all kernels proven safe"] == "yes"


@pytest.mark.slow
def test_benchmark_runs() -> None:
    printed = python("-m", "benchmarks.cpu", "--quick", "--only", "elements: jit",
                     "--against", "torch")  # fmt: skip
    assert printed.count("µs") >= 4  # two cases, two contenders


def rewrite(page: Path) -> None:
    """Put what the blocks print now into a page, where it shows something else."""
    names: dict[str, Any] = {"__name__": page.stem}
    text = page.read_text()
    changes = []
    for block in blocks(page):
        if block.title is None:
            printed = block.run(names)
            if block.shown is not None and not same(block.shown, printed):
                changes.append((block.span, printed))
    for (start, end), printed in reversed(changes):
        text = text[:start] + printed + text[end:]
    page.write_text(text)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for path in PAGES:
        rewrite(path)
