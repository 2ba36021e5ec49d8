"""Insight into models: what their layers are, and what goes on inside them."""

from genesis.debug.monitor import (
    Finding, MonitorWarning, NotFinite, Report, detect, monitor,
)  # fmt: skip
from genesis.debug.summary import Layer, Summary, summary

__all__ = [
    "Finding", "Layer", "MonitorWarning", "NotFinite", "Report", "Summary", "detect", "monitor",
    "summary",
]  # fmt: skip
