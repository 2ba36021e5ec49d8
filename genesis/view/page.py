"""A recording as one HTML file that needs nothing else: `page.html` with the data in it."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from dataclasses import asdict
from gzip import compress
from pathlib import Path
from typing import Any

from genesis.view.script_run import ScriptRun

_PLACE = "@DATA@"


def page(found: ScriptRun) -> str:
    """The text of the file. Code repeats itself, so the data is compressed."""
    data = json.dumps(_finite(asdict(found)), separators=(",", ":"), allow_nan=False)
    packed = b64encode(compress(data.encode(), 6, mtime=0)).decode()
    return Path(__file__).with_name("page.html").read_text().replace(_PLACE, packed)


def _finite(x: Any) -> Any:
    """JSON knows no NaN and no infinity: they are null."""
    if isinstance(x, dict):
        return {name: _finite(value) for name, value in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
