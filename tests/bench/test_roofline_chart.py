"""The roofline picture: measured steps lie where their numbers say, under the roof."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from mansard.bench.headroom import Headroom
from mansard.bench.roof import Roof
from mansard.bench.roofline_chart import achieved_flops, intensity, roofline_chart

ROOF = Roof(10e9, {"int8": 1e12}, "given", True)
# one batch: 1e8 bytes in 10 ms of floor, 1e9 FLOPs in 1 ms, measured 20 ms
STEP = Headroom(1, 0.010, 0.001, 0.008, 0.001, 0.001, 0.0, 0.020, 0.5, 0.05, "int8", ROOF)


def test_a_step_is_where_its_numbers_say() -> None:
    assert intensity(STEP) == pytest.approx(10.0) and achieved_flops(STEP) == pytest.approx(1e9 / 0.020)
    batch = replace(STEP, batch_size=8, compute_floor_s=0.008, mfu=0.4)
    figure = roofline_chart([STEP, batch])
    svg = ElementTree.fromstring(re.search(r"<svg.*</svg>", figure, re.S)[0])  # type: ignore[index]
    dots = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in svg.iter("circle")]
    corners = [[float(v) for v in p.split()] for p in svg.find("path").get("d", "")[1:].split("L")]  # type: ignore[union-attr]
    (x1, y1), (x2, y2) = corners[0], corners[1]
    for x, y in dots:  # below the bandwidth's slope; SVG counts downwards
        assert y > y1 + (x - x1) / (x2 - x1) * (y2 - y1)
    # at half the roof, both: the same distance below the slope
    below = [y - (y1 + (x - x1) / (x2 - x1) * (y2 - y1)) for x, y in dots]
    assert below[0] == pytest.approx(below[1], abs=0.3)  # pixels, as the drawing rounds to 0.1
    assert "batch 8: 80 FLOP/byte, 400.0 GFLOP/s, 50% of the roof" in figure


def test_nothing_measured_is_said() -> None:
    assert "nothing to show" in roofline_chart([])
