"""`genesis view`: run a script, then write a page about it or print a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from genesis.serialization import require_place


def view(
    script: str, arguments: Sequence[str], output: str | None, as_text: bool, runs: str | None
) -> int:
    """Do it; the script's exit status."""
    target = Path(output or f"{Path(script).stem}.view.html")
    if not as_text:
        require_place(target)  # before the script has run for an hour
    from genesis.view.script_run import record

    found = record(script, arguments, runs)
    if as_text:
        from genesis.view.text import text

        print(f"\n{text(found)}")
    else:
        from genesis.view.page import page

        target.write_text(page(found))
        print(f"\n{target.absolute().as_uri()}")
    return found.status
