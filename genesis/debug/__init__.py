"""Insight into models: what their layers are, and what goes on inside them."""

from genesis.debug.perf_events import counters
from genesis.debug.monitor import (
    Finding, MonitorWarning, NotFinite, Report, detect, monitor,
)  # fmt: skip
from genesis.debug.occupancy import Occupancy, occupancy
from genesis.debug.summary import Layer, Summary, summary

__all__ = [
    "Finding", "Layer", "MonitorWarning", "NotFinite", "Occupancy", "Report", "Summary", "counters",
    "detect", "monitor", "occupancy", "summary",
]  # fmt: skip
