"""Charts as inline SVG: cumulative distributions and lines over time, readable without any script.

Colors come from the page's style sheet by class (`s0`, `s1`, …), so that they follow a light or dark page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10

WIDTH, HEIGHT = 560.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 14.0, 14.0, 40.0
MAX_POINTS = 600  # of one line; a screen shows no more


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its name and its points, rising in x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class Mark:
    """A limit drawn as a dashed line at `x`."""

    name: str
    x: float


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    y_max: float | None = None,
    percent: bool = False,
    stepped: bool = False,
    marks: Sequence[Mark] = (),
) -> str:
    """Return a chart of lines. percent: y is a share. stepped: values hold until the next point."""
    drawn = [s for s in series if len(s.x)]
    if not drawn:
        return f"<figure><figcaption>{escape(title)}</figcaption><p>nothing to show</p></figure>"
    xs = [x for s in drawn for x in (s.x[0], s.x[-1])] + [m.x for m in marks]
    axis = _LogAxis(xs) if log_x else _Axis(0.0 if min(xs) >= 0.0 else min(xs), max(xs))
    top = y_max or max(max(s.y) for s in drawn) or 1.0
    vertical = _Axis(0.0, top * (1.0 if y_max else 1.05))
    parts = [_grid(axis, vertical, x_label, y_label, percent)]
    for number, line in enumerate(drawn):
        parts.append(f'<path class="line s{number}" d="{_path(line, axis, vertical, stepped)}"/>')
    for mark in marks:
        x = _x(axis.at(mark.x))
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x + 3:.1f}" y="{HEIGHT - BOTTOM - 5}">{escape(mark.name)}</text>')
    legend = "".join(f'<span class="key s{i}">{escape(s.name)}</span>' for i, s in enumerate(drawn))
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg><div class="legend">{legend}</div></figure>'
    )


class _Axis:
    """A linear axis with round ticks; `at` maps a value to 0 … 1."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high if high > low else low + 1.0

    def at(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        raw = (self.high - self.low) / 5.0
        power = 10.0 ** floor(log10(raw))
        step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= raw)
        first = ceil(self.low / step)
        return [(i * step, f"{i * step:g}") for i in range(first, floor(self.high / step + 1e-9) + 1)]


class _LogAxis:
    """A logarithmic axis over whole decades, for durations in seconds."""

    def __init__(self, values: Sequence[float]) -> None:
        positive = [v for v in values if v > 0.0 and isfinite(v)] or [1.0]
        self.low, self.high = log10(min(positive)), log10(max(positive))
        if self.high - self.low < 0.3:
            self.low, self.high = self.low - 0.2, self.high + 0.2

    def at(self, value: float) -> float:
        return min(1.0, max(0.0, (log10(max(value, 1e-12)) - self.low) / (self.high - self.low)))

    def ticks(self) -> list[tuple[float, str]]:
        span = self.high - self.low
        factors = (1.0,) if span > 3.0 else (1.0, 3.0) if span > 1.5 else (1.0, 2.0, 5.0)
        decades = range(floor(self.low), ceil(self.high) + 1)
        found = [f * 10.0**d for d in decades for f in factors]
        return [(v, _seconds(v)) for v in found if self.low - 1e-9 <= log10(v) <= self.high + 1e-9]


def _seconds(value: float) -> str:
    return f"{value * 1e3:g} ms" if value < 1.0 else f"{value:g} s"


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _grid(axis: _Axis | _LogAxis, vertical: _Axis, x_label: str, y_label: str, percent: bool) -> str:
    parts = []
    for value, text in axis.ticks():
        x = _x(axis.at(value))
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{text}</text>')
    for value, text in vertical.ticks():
        y, shown = _y(vertical.at(value)), f"{value:.0%}" if percent else text
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3:.1f}" text-anchor="end">{shown}</text>')
    middle = (HEIGHT - BOTTOM + TOP) / 2
    parts.append(f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}">{escape(x_label)}</text>')
    parts.append(f'<text class="label" transform="translate(12 {middle}) rotate(-90)">{escape(y_label)}</text>')
    return "".join(parts)


def _path(line: Series, axis: _Axis | _LogAxis, vertical: _Axis, stepped: bool) -> str:
    points = [(_x(axis.at(x)), _y(vertical.at(y))) for x, y in zip(line.x, line.y, strict=True)]
    first, *rest = points
    parts = [f"M{first[0]:.1f} {first[1]:.1f}"]
    for x, y in rest:
        parts.append(f"H{x:.1f}V{y:.1f}" if stepped else f"L{x:.1f} {y:.1f}")
    return "".join(parts)
