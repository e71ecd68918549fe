"""What deploy/ holds fits the server: metrics that exist, options that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_server import toy_server

from mansard.cli import build_app

DEPLOY = Path(__file__).parents[2] / "deploy"


def expressions() -> Iterator[str]:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        assert panel["title"] and panel["targets"]
        yield from (target["expr"] for target in panel["targets"])
    yield from (v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query")


def test_every_metric_of_the_dashboard_exists() -> None:
    with toy_server() as server:
        server.complete("x", max_tokens=3)
        lines = server.client.get("/metrics").text.splitlines()
    known = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
    asked = {name for e in expressions() for name in re.findall(r"mansard:\w+", e)}
    assert len(asked) > 15 and asked <= known
    histograms = {name.removesuffix("_bucket") for name in known if name.endswith("_bucket")}
    assert histograms <= {name.removesuffix("_bucket") for name in asked}, "a histogram without a panel"


def test_panels_do_not_overlap() -> None:
    dashboard: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells and max(x for x, _ in own) < 24
        cells |= own


@pytest.mark.parametrize("name", ["mansard.service", "Dockerfile"])
def test_the_options_given_to_serve_exist(name: str) -> None:
    import typer

    text = (DEPLOY / name).read_text(encoding="utf-8")
    command = typer.main.get_command(build_app(["serve"])).commands["serve"]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    lines = [line for line in text.splitlines() if '"serve"' in line or "mansard serve" in line]
    used = {option for line in lines for option in re.findall(r"--[a-z-]+", line)}
    assert used and used <= known
