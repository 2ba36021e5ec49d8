"""The roofline: kernels as points under what the machine can do at most.

Across goes arithmetic intensity, the operations a kernel does for every byte it has to move; up
goes how fast it does them, both in logarithmic steps. The slanted lines are memory and caches, the
flat ones arithmetic. How far below its line a point is says what is left to gain, and which line
that is says where. The area of a point is its share of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genesis.profiling.machine import Machine
from genesis.profiling.table import duration, places, rate

if TYPE_CHECKING:
    from genesis.profiling.profiler import KernelProfile

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 30, 50, 55
_COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b6992d", "#499894", "#d37295", "#79706e",
)  # fmt: skip
_LABELLED = 8  # points with their names beside them


def svg(kernels: Sequence[KernelProfile], machine: Machine) -> str:
    """A chart of the kernels that compute and move something."""
    return _svg(_chart(kernels, machine))


def save(kernels: Sequence[KernelProfile], machine: Machine, path: Path) -> None:
    """Write a chart of the kernels that compute and move something; the suffix says how."""
    chart = _chart(kernels, machine)
    if path.suffix == ".html":
        path.write_text(_page(chart))
    elif path.suffix == ".png":
        _draw(chart, path)
    else:
        raise ValueError(f"save_roofline({str(path)!r}): the name must end in .html or .png")


def _chart(kernels: Sequence[KernelProfile], machine: Machine) -> _Chart:
    return _Chart([k for k in kernels if k.flops and k.nbytes and k.seconds and k.least], machine)


class _Chart:
    """What is drawn, in operations per byte and operations per second."""

    def __init__(self, kernels: Sequence[KernelProfile], machine: Machine) -> None:
        self.kernels, self.machine = kernels, machine
        self.total = sum(k.seconds for k in kernels)
        self.title = f"Roofline of {machine.name}, {machine.threads} threads"
        top = max(machine.peaks.values())
        ridges = [top / r for _, r in machine.bandwidths]
        xs = [*(self.at(k)[0] for k in kernels), *ridges]
        ys = [*(self.at(k)[1] for k in kernels), top]
        self.x_range = 10 ** math.floor(_log(min(xs))), 10 ** math.ceil(_log(max(xs)) + 0.3)
        self.y_range = 10 ** math.floor(_log(min(ys)) - 0.3), 10 ** math.ceil(_log(max(ys)))

    @staticmethod
    def at(k: KernelProfile) -> tuple[float, float]:
        """Where a kernel is."""
        assert k.flops and k.nbytes
        return k.flops / k.nbytes, k.flops / k.seconds

    def share(self, k: KernelProfile) -> float:
        """Its part of the time."""
        return k.seconds / self.total

    def roofs(self) -> Iterator[tuple[str, tuple[float, float], tuple[float, float]]]:
        """Lines with a label, from point to point; slanted ones end at the highest flat one."""
        low, high = self.x_range
        top = max(self.machine.peaks.values())
        for amount, bandwidth in self.machine.bandwidths:
            last = amount == self.machine.bandwidths[-1][0]
            where = "memory" if last else f"up to {_bytes(amount)}"
            start = max(low, self.y_range[0] / bandwidth)
            label = f"{where}: {rate(bandwidth)} GB/s"
            yield label, (start, start * bandwidth), (top / bandwidth, top)
        fastest = self.machine.bandwidths[0][1]
        for dtype, peak in self.machine.peaks.items():
            yield f"{dtype}: {rate(peak)} GFLOP/s", (peak / fastest, peak), (high, peak)


def _log(x: float) -> float:
    return math.log10(x)


def _bytes(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _decades(low: float, high: float) -> list[float]:
    first, last = round(_log(low)), round(_log(high))
    return [10.0**e for e in range(first, last + 1)]


# ---- as a page


def _page(chart: _Chart) -> str:
    rows = "".join(
        f"<tr><td>{escape(k.name)}<td>{k.calls}<td>{duration(k.seconds)}"
        f"<td>{100 * chart.share(k):.1f} %<td>{rate(k.flops_per_second)}"
        f"<td>{rate(k.bytes_per_second)}<td>{100 * (k.efficiency or 0):.0f} %"
        f"<td>{escape(places(k.lines))}"
        for k in chart.kernels
    )
    return f"""<!doctype html>
<meta charset="utf-8"><title>{escape(chart.title)}</title>
<style>
body {{ font: 14px sans-serif; max-width: 900px; margin: 2em auto; color: #222 }}
td, th {{ padding: 2px 10px; text-align: right }}
td:first-child, td:last-child {{ text-align: left }}
</style>
{_svg(chart)}
<table><tr><th>kernel<th>calls<th>time<th>share<th>GFLOP/s<th>GB/s<th>of roof<th>from
{rows}</table>
"""


def _svg(chart: _Chart) -> str:
    (x0, x1), (y0, y1) = chart.x_range, chart.y_range

    def place(x: float, y: float) -> tuple[float, float]:
        across = (_log(x) - _log(x0)) / (_log(x1) - _log(x0))
        up = (_log(y) - _log(y0)) / (_log(y1) - _log(y0))
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    def line(a: tuple[float, float], b: tuple[float, float], style: str) -> str:
        (ax, ay), (bx, by) = place(*a), place(*b)
        return f'<line x1="{ax:.1f}" y1="{ay:.1f}" x2="{bx:.1f}" y2="{by:.1f}" {style}/>'

    def text(x: float, y: float, content: str, style: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(content)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        text(_LEFT, 28, chart.title, 'font-size="16"'),
    ]
    faint = 'stroke="black" stroke-opacity="0.12"'
    for x in _decades(x0, x1):
        parts.append(line((x, y0), (x, y1), faint))
        across, down = place(x, y0)
        parts.append(text(across, down + 18, f"{x:g}", 'text-anchor="middle"'))
    for y in _decades(y0, y1):
        parts.append(line((x0, y), (x1, y), faint))
        across, down = place(x0, y)
        parts.append(text(across - 8, down + 4, f"{y / 1e9:g}", 'text-anchor="end"'))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(text(middle, _HEIGHT - 14, "FLOP per byte", 'text-anchor="middle"'))
    parts.append(text(8, _TOP - 8, "GFLOP/s"))
    for label, a, b in chart.roofs():
        parts.append(line(a, b, 'stroke="#444" stroke-width="1.5"'))
        (ax, ay), (bx, by) = place(*a), place(*b)
        turn = math.degrees(math.atan2(by - ay, bx - ax))
        at = (ax + 8, ay - 5) if turn else (bx - 130, by - 5)
        style = f'fill="#444" font-size="11" transform="rotate({turn:.1f} {ax:.1f} {ay:.1f})"'
        parts.append(text(*at, label, style))
    for number, k in enumerate(chart.kernels):
        across, down = place(*chart.at(k))
        colour = _COLOURS[number % len(_COLOURS)]
        radius = 4 + 18 * math.sqrt(chart.share(k))
        hint = f"{k.name}: {duration(k.seconds)} in {k.calls} calls, {places(k.lines)}"
        parts.append(
            f'<circle cx="{across:.1f}" cy="{down:.1f}" r="{radius:.1f}" fill="{colour}" '
            f'fill-opacity="0.7"><title>{escape(hint)}</title></circle>'
        )
        if number < _LABELLED:
            parts.append(text(across + radius + 3, down + 4, k.name, f'fill="{colour}"'))
    return "\n".join([*parts, "</svg>"])


# ---- as a picture


def _draw(chart: _Chart, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "save_roofline draws a .png with matplotlib: pip install genesis-dl[plot]; a .html "
            "file needs nothing"
        ) from None
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlim=chart.x_range, title=chart.title)
    axes.set(ylim=tuple(y / 1e9 for y in chart.y_range), xlabel="FLOP per byte", ylabel="GFLOP/s")
    axes.grid(alpha=0.3)
    for label, (ax, ay), (bx, by) in chart.roofs():
        axes.plot([ax, bx], [ay / 1e9, by / 1e9], color="#444", linewidth=1.2)
        style: dict[str, Any] = {"va": "bottom", "size": 8, "color": "#444"}
        if ay == by:
            axes.text(bx, by / 1e9, label, ha="right", **style)
        else:  # along its line, whatever the scales make of its slope
            angle = math.degrees(math.atan2((by - ay) / 1e9, bx - ax))
            style |= {"rotation": angle, "transform_rotates_text": True, "rotation_mode": "anchor"}
            axes.text(ax, ay / 1e9, f"  {label}", **style)
    for number, k in enumerate(chart.kernels):
        x, y = chart.at(k)
        colour = _COLOURS[number % len(_COLOURS)]
        area = (5 + 20 * math.sqrt(chart.share(k))) ** 2
        axes.scatter([x], [y / 1e9], s=area, color=colour, alpha=0.7)
        if number < _LABELLED:
            axes.annotate(k.name, (x, y / 1e9), (8, 0), textcoords="offset points", size=9)
    figure.savefig(path, dpi=150)
