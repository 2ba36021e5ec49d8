"""The history: what was measured on this machine so far, for the cost model to learn from.

It lies beside the tuned kernels, in a file that only a tuner reads. Only the latest measurements
are kept, and what is not as it should be is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from genesis.compiler.tuning_records import BadRecords, read_bounded
from genesis.content_store import default, locked, replace_file
from genesis.tuning.schedule_search import Samples

#: Measurements that are kept for a chip.
LATEST = 2048


def load_samples(target: str) -> Samples:
    """The measurements on a chip."""
    path = _path()
    return [] if path is None else _samples(_read(path).get(target))


def add_samples(target: str, samples: Samples) -> None:
    """Keep measurements on a chip."""
    path = _path()
    if path is None or not samples:
        return
    with suppress(OSError), locked(path):  # a full disk does not end a search
        content = _read(path)
        kept = [*_samples(content.get(target)), *samples][-LATEST:]
        content[target] = [[dict(x), y] for x, y in kept]
        replace_file(path, json.dumps(content, separators=(",", ":")).encode())


def _path() -> Path | None:
    store = default()
    return None if store is None else store.path / "measurements.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_bounded(path))
    except (OSError, ValueError, BadRecords, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _samples(found: Any) -> Samples:
    """What of a list in a file are measurements."""
    listed = found[-LATEST:] if isinstance(found, list) else []
    return [(x[0], x[1]) for x in listed if _is_sample(x)]


def _is_sample(x: Any) -> bool:
    match x:
        case [Mapping() as described, float(log_ratio)]:
            return math.isfinite(log_ratio) and all(
                isinstance(n, float) and math.isfinite(n) for n in described.values()
            )
    return False
