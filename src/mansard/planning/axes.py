"""Axes: a plotting area in SVG with logarithmic or linear scales, made here so that a page needs no library.

Colours are classes; the page's style sheet gives them for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 16.0, 14.0, 52.0
_STEPS = (1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = True

    def at(self, value: float) -> float:
        """Return the pixel of a value; values outside are held at the edge."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values to label, five to ten of them."""
        if not self.log:
            return _linear_ticks(self.low, self.high)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        wide = last - first > 4
        steps = (1.0,) if wide else _STEPS
        every = max(1, (last - first) // 8)
        values = [m * 10.0**e for e in range(first, last + 1, every) for m in steps]
        return [v for v in values if self.low * 0.999 <= v <= self.high * 1.001]


def _linear_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 6.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= rough), 10.0 * power)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, int(high / step + 1e-9) + 1)]


def around(values: Sequence[float], room: float = 1.4) -> tuple[float, float]:
    """Return limits that hold all positive values with some room, for a logarithmic scale."""
    positive = [v for v in values if v > 0.0] or [1.0]
    return min(positive) / room, max(positive) * room


@dataclass(frozen=True, slots=True)
class Axes:
    """A plotting area with its two scales and their titles."""

    x: Scale
    y: Scale
    x_title: str
    y_title: str

    @classmethod
    def over(
        cls, x: tuple[float, float], y: tuple[float, float], x_title: str, y_title: str, log: tuple[bool, bool]
    ) -> Axes:
        """Return the area over these ranges."""
        across = Scale(*x, LEFT, WIDTH - RIGHT, log[0])
        return cls(across, Scale(*y, HEIGHT - BOTTOM, TOP, log[1]), x_title, y_title)

    def frame(self) -> str:
        """Return grid lines, tick labels and titles."""
        parts = []
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        for value in self.x.ticks():
            x = self.x.at(value)
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
            parts.append(text(x, bottom + 18, tick_label(value), "tick", "middle"))
        for value in self.y.ticks():
            y = self.y.at(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(text(LEFT - 8, y + 4, tick_label(value), "tick", "end"))
        parts.append(f'<path class="axis" d="M{LEFT},{TOP}V{bottom}H{right}"/>')
        parts.append(text((LEFT + right) / 2, HEIGHT - 10, self.x_title, "axis-title", "middle"))
        middle = (TOP + bottom) / 2
        parts.append(
            f'<text class="axis-title" text-anchor="middle" transform="translate(16 {middle}) rotate(-90)">'
            f"{escape(self.y_title)}</text>"
        )
        return "".join(parts)

    def line(self, points: Sequence[tuple[float, float]], name: str) -> str:
        """Return a line through points."""
        path = " ".join(f"{self.x.at(x):.1f},{self.y.at(y):.1f}" for x, y in points)
        return f'<polyline class="{name}" points="{path}"/>'

    def dot(self, x: float, y: float, name: str, tip: str, radius: float = 4.0) -> str:
        """Return a point with a tooltip that a keyboard reaches too."""
        label = escape(tip, quote=True)
        return (
            f'<circle class="{name}" tabindex="0" role="img" aria-label="{label}" cx="{self.x.at(x):.1f}" '
            f'cy="{self.y.at(y):.1f}" r="{radius}"><title>{label}</title></circle>'
        )

    def note(
        self, x: float, y: float, words: str, name: str = "label", anchor: str = "start", lift: float = 8.0
    ) -> str:
        """Return words beside a point of the plot."""
        return text(self.x.at(x), self.y.at(y) - lift, words, name, anchor)


def text(x: float, y: float, words: str, name: str, anchor: str = "start") -> str:
    """Return SVG text."""
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def tick_label(value: float) -> str:
    """Return a tick's label: `0.01`, `200`, `5k`, `1M`, `2T`, `1P`."""
    for suffix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:g}{suffix}"
    return f"{value:g}"


def svg(title: str, description: str, body: str, height: float = HEIGHT) -> str:
    """Return a complete drawing that a screen reader can announce."""
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="group" aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{body}</svg>"
    )
