"""Curves: figures for several sizes, drawn as lines.

Both axes are logarithmic: a cost that grows in proportion is a straight line.

    Figure(curve=..., at=...), ... -> curves -> an SVG, one panel for each curve
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import log10

from benchmarks._figures import Figure, show

WIDTH, HEIGHT, MARGIN, LEFT = 720, 220, 16, 40
PLOT_TOP, PLOT_BOTTOM = 56, 180
LINE, INK, GRID = "#2f7d5b", "#2c3e50", "#d5dbdf"


def by_curve(figures: Iterable[Figure]) -> dict[str, list[Figure]]:
    """The figures of each curve, from small to large."""
    curves: dict[str, list[Figure]] = {}
    for figure in figures:
        if figure.curve is not None and figure.at is not None:
            curves.setdefault(figure.curve, []).append(figure)
    return {name: sorted(points, key=lambda p: p.at or 0) for name, points in curves.items()}


def picture(figures: Iterable[Figure]) -> str:
    """A panel for each curve, one below the other."""
    panels = by_curve(figures)
    height = HEIGHT * len(panels)
    drawn = [
        panel(name, points, HEIGHT * number) for number, (name, points) in enumerate(panels.items())
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="sans-serif" font-size="12" fill="{INK}">',
            f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
            *drawn,
            "</svg>",
            "",
        ]
    )


def panel(name: str, figures: Sequence[Figure], top: int) -> str:
    points = list(zip(across(figures), down(figures, top), figures, strict=True))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    return "\n".join(
        [
            f'<text x="{MARGIN}" y="{top + 22}" font-weight="bold">{escape(name)}</text>',
            f'<line x1="{LEFT}" x2="{WIDTH - LEFT}" y1="{top + PLOT_BOTTOM}" '
            f'y2="{top + PLOT_BOTTOM}" stroke="{GRID}"/>',
            f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="2"/>',
            *(point(x, y, figure, top) for x, y, figure in points),
        ]
    )


def point(x: float, y: float, figure: Figure, top: int) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{LINE}"/>\n'
        f'<text x="{x:.1f}" y="{y - 9:.1f}" text-anchor="middle">{show(figure.ours)}</text>\n'
        f'<text x="{x:.1f}" y="{top + PLOT_BOTTOM + 18}" text-anchor="middle">'
        f"{figure.at:,.0f}</text>"
    )


def across(figures: Sequence[Figure]) -> list[float]:
    room = WIDTH - 2 * LEFT - 60
    return [LEFT + 30 + room * part for part in parts([figure.at or 1 for figure in figures])]


def down(figures: Sequence[Figure], top: int) -> list[float]:
    """Vertical positions. The axis starts at least a decade below the highest value."""
    values = [figure.ours for figure in figures]
    lowest = min(min(values), max(values) / 10)
    room = PLOT_BOTTOM - PLOT_TOP - 10
    return [top + PLOT_BOTTOM - 10 - room * part for part in parts([lowest, *values])[1:]]


def parts(values: Sequence[float]) -> list[float]:
    """Positions between the smallest (0) and the largest (1), by logarithm."""
    low, high = log10(min(values)), log10(max(values))
    return [(log10(value) - low) / ((high - low) or 1) for value in values]
