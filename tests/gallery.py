"""The gallery of recipes: ``python -m tests.gallery NAME ..`` trains them and draws their output.

A picture is the last lines of a recipe's output, as a terminal would show them. The page has those
of all recipes that have one; without names, it is only written again.
"""

from __future__ import annotations

import contextlib
import io
import sys
from html import escape
from importlib import import_module
from pathlib import Path

from genesis import recipes

DOCS = Path(__file__).parents[1] / "docs"
PICTURES = DOCS / "gallery"
LINES, COLUMNS = 30, 92


def picture(text: str) -> str:
    """Lines of text as an SVG drawing."""
    lines = [line[:COLUMNS] for line in text.rstrip().splitlines()[-LINES:]]
    width, height = 8 * max(map(len, lines)) + 24, 17 * len(lines) + 24
    rows = "\n".join(
        f'<text x="12" y="{17 * k + 25}" xml:space="preserve">{escape(line)}</text>'
        for k, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">\n'
        f'<rect width="{width}" height="{height}" rx="6" fill="#1e2129"/>\n'
        f'<g font-family="monospace" font-size="13.3" fill="#d8dee9">\n{rows}\n</g>\n</svg>\n'
    )


def printed(name: str) -> str:
    """What a recipe prints while it trains."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        import_module(f"genesis.recipes.{name}").train()
    return output.getvalue()


def page() -> str:
    """The page: the first line of every recipe that has a picture, and that."""
    parts = [
        "# Gallery",
        "",
        "What the [recipes](recipes.md) print. `python -m tests.gallery NAME`",
    ]
    parts += ["trains one and draws its picture again."]
    for path in sorted(Path(recipes.__file__).parent.glob("[a-z]*.py")):
        if (PICTURES / f"{path.stem}.svg").exists():
            title = (import_module(f"genesis.recipes.{path.stem}").__doc__ or "").splitlines()[0]
            parts += ["", f"## {path.stem}", "", title, ""]
            parts += [f"![what {path.stem} prints](gallery/{path.stem}.svg)"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name in sys.argv[1:]:
        (PICTURES / f"{name}.svg").write_text(picture(printed(name)))
        print(name, flush=True)
    (DOCS / "gallery.md").write_text(page())
