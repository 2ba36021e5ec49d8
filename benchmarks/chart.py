"""A stacked area chart as an SVG file, without a plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 130, 40, 45  # margins, for the axes and the legend
_COLOURS = (
    "#4e79a7", "#a0cbe8", "#f28e2b", "#ffbe7d", "#59a14f", "#8cd17d", "#b6992d", "#499894",
    "#e15759", "#ff9d9a", "#79706e", "#d37295",
)  # fmt: skip


def stacked(
    title: str, x_label: str, xs: Sequence[float], layers: Mapping[str, Sequence[float]]
) -> str:
    """The SVG text: `layers` on top of each other, each with one value for every x.

    >>> picture = stacked("Cost", "layers", [1, 2], {"fuse": [1.0, 2.0], "lower": [1.0, 1.0]})
    >>> picture.count("<polygon")
    2
    """
    totals = [sum(column) for column in zip(*layers.values(), strict=True)]
    step = _round_step(max(totals))
    top = step * -(-max(totals) // step)

    def place(x: float, y: float) -> str:
        across = _LEFT + (_WIDTH - _LEFT - _RIGHT) * (x - xs[0]) / (xs[-1] - xs[0])
        down = _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * y / top
        return f"{across:.1f},{down:.1f}"

    def text(at: str, content: str, anchor: str, dx: int = 0, dy: int = 4) -> str:
        x, y = map(float, at.split(","))
        return f'<text x="{x + dx:.0f}" y="{y + dy:.0f}" text-anchor="{anchor}">{content}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{title}</text>',
    ]
    base = [0.0] * len(xs)
    for k, (name, values) in enumerate(layers.items()):
        above = [b + v for b, v in zip(base, values, strict=True)]
        edge = [*zip(xs, above, strict=True), *reversed([*zip(xs, base, strict=True)])]
        colour = _COLOURS[k % len(_COLOURS)]
        parts.append(f'<polygon fill="{colour}" points="{" ".join(place(*p) for p in edge)}"/>')
        row = _HEIGHT - _BOTTOM - 18 * k
        parts.append(
            f'<rect x="{_WIDTH - _RIGHT + 16}" y="{row - 12}" width="12" height="12" '
            f'fill="{colour}"/><text x="{_WIDTH - _RIGHT + 34}" y="{row - 2}">{name}</text>'
        )
        base = above
    parts += [text(place(x, 0), f"{x:g}", "middle", dy=18) for x in xs]
    parts.append(text(place((xs[0] + xs[-1]) / 2, 0), x_label, "middle", dy=36))
    for k in range(round(top / step) + 1):
        start, end = place(xs[0], k * step).split(","), place(xs[-1], k * step).split(",")
        parts.append(
            f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" '
            f'stroke="black" stroke-opacity="0.15"/>'
        )
        parts.append(text(place(xs[0], k * step), f"{k * step:g} ms", "end", dx=-8))
    return "\n".join([*parts, "</svg>\n"])


def _round_step(most: float) -> float:
    """A round distance between lines, such that there are five or so."""
    step = 1.0
    while most / step > 10:
        step *= 10
    return step if most / step > 5 else step / 2 if most / step > 2.5 else step / 5


__all__ = ["stacked"]
