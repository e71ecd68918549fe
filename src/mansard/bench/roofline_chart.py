"""The roofline of this machine with the measured decode steps on it, as inline SVG in logarithmic axes.

Source: Williams, Waterman, Patterson, "Roofline" (CACM 52(4), 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

from mansard.bench.headroom import Headroom
from mansard.sim.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH

TITLE = "Roofline of this machine, decode steps by batch"


def intensity(report: Headroom) -> float:
    """Return a step's FLOPs for each byte that it must read."""
    return report.compute_floor_s * report.peak_flops / (report.bandwidth_floor_s * report.roof.read_bytes_per_s)


def achieved_flops(report: Headroom) -> float:
    """Return the FLOP/s that a measured step reached."""
    return report.mfu * report.peak_flops


def roofline_chart(reports: Sequence[Headroom]) -> str:
    """Return the figure; words where no step was measured."""
    if not reports:
        return f"<figure><figcaption>{TITLE}</figcaption><p>nothing to show</p></figure>"
    bandwidth, peak = reports[0].roof.read_bytes_per_s, reports[0].peak_flops
    points = [(intensity(r), achieved_flops(r), r) for r in reports]
    ridge = peak / bandwidth
    axes = _Axes([x for x, _, _ in points] + [ridge], [y for _, y, _ in points] + [peak])
    low, high = 10.0 ** axes.x[0], 10.0 ** axes.x[1]
    start = max(low, 10.0 ** axes.y[0] / bandwidth)
    corners = [(start, start * bandwidth), (ridge, peak), (high, peak)]
    path = "L".join(f"{axes.at_x(x):.1f} {axes.at_y(y):.1f}" for x, y in corners)
    body = axes.grid() + f'<path class="line s1" d="M{path}"/>'
    for x, y, report in points:
        tip = (
            f"batch {report.batch_size}: {x:.2g} FLOP/byte, {y / 1e9:,.1f} GFLOP/s, "
            f"{report.floor_s / report.measured_s:.0%} of the roof"
        )
        place = f'cx="{axes.at_x(x):.1f}" cy="{axes.at_y(y):.1f}"'
        body += f'<circle {place} r="4" style="fill:var(--s0)"><title>{escape(tip)}</title></circle>'
        body += f'<text class="tick" x="{axes.at_x(x) + 6:.1f}" y="{axes.at_y(y) + 12:.1f}">{report.batch_size}</text>'
    roof = f"roof: {bandwidth / 1e9:,.1f} GB/s, {peak / 1e12:,.2f} TOP/s {reports[0].number_format}"
    legend = f'<span class="key s0">measured, by batch size</span><span class="key s1">{escape(roof)}</span>'
    return (
        f'<figure><figcaption>{TITLE}</figcaption><svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{TITLE}">{body}</svg><div class="legend">{legend}</div></figure>'
    )


class _Axes:
    """Two logarithmic axes over whole decades."""

    def __init__(self, x: Sequence[float], y: Sequence[float]) -> None:
        self.x, self.y = _decades(x), _decades(y)

    def at_x(self, value: float) -> float:
        low, high = self.x
        return LEFT + (log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def at_y(self, value: float) -> float:
        low, high = self.y
        return HEIGHT - BOTTOM - (log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def grid(self) -> str:
        parts = []
        for decade in range(self.x[0], self.x[1] + 1):
            x, value = self.at_x(10.0**decade), f"{10.0**decade:g}"
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{value}</text>'
            )
        for decade in range(self.y[0], self.y[1] + 1):
            y, value = self.at_y(10.0**decade), f"{10.0 ** (decade - 9):g}"
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3:.1f}" text-anchor="end">{value}</text>')
        across, middle = (LEFT + WIDTH - RIGHT) / 2, (HEIGHT - BOTTOM + TOP) / 2
        parts.append(f'<text class="label" x="{across}" y="{HEIGHT - 6}">FLOP per byte</text>')
        parts.append(f'<text class="label" transform="translate(12 {middle}) rotate(-90)">GFLOP/s</text>')
        return "".join(parts)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = floor(log10(min(values))), ceil(log10(max(values) * 1.2))
    return low, max(high, low + 1)
