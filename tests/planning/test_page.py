"""The page: one file, no network, no script, the key numbers in it, and a browser that finds nothing wrong."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import mansard
from mansard.cost.planner import Plan
from mansard.planning.axes import Scale, tick_label
from mansard.planning.html import page
from mansard.planning.picture import browse, draw, find_browser
from mansard.planning.words import dollars, number, seconds

VOID = {"meta", "line", "path", "circle", "rect", "polyline", "br"}
needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")


class Outline(HTMLParser):
    """Collects text, tags and whether every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or tag in ("circle", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    assert found.open == []
    return found


@pytest.fixture(scope="module")
def plan() -> Plan:
    return mansard.plan("llama-3.1-8b", gpu=["h100", "l40s"], slo="ttft=1s,tpot=30ms,p95", detail=True)


def key_numbers(plan: Plan) -> list[str]:
    chosen = plan.chosen
    assert chosen is not None and plan.estimate is not None
    return [
        number(chosen.concurrency),
        number(chosen.output_tokens_per_s),
        seconds(float(plan.estimate.tpot_s.best)),
        dollars(chosen.usd_per_million_tokens),
        chosen.deployment.hardware.name,
    ]


def test_the_page_is_well_formed_and_holds_the_numbers(plan: Plan) -> None:
    found = outline(page(plan, "meta-llama/Llama-3.1-8B"))
    text = " ".join(found.words)
    for value in key_numbers(plan):
        assert value in text, value
    for heading in (
        "Roofline",
        "Latency by load",
        "Speed against throughput",
        "Speed against cost",
        "Launch",
        "Assumed",
    ):
        assert heading in text
    assert text.count("vllm serve") == 1


def test_the_page_reaches_for_nothing(plan: Plan) -> None:
    text = page(plan, "meta-llama/Llama-3.1-8B")
    assert not re.search(r"https?://|<script|<link|<img|@import|url\(", text)
    assert len(text) < 400_000


def test_the_page_is_reachable_by_keyboard_and_aloud(plan: Plan) -> None:
    tags = outline(page(plan, "m")).tags
    drawings = [a for t, a in tags if t == "svg"]
    assert len(drawings) == 5 and all(a.get("aria-label") for a in drawings)
    dots = [a for t, a in tags if t == "circle"]
    assert len(dots) > 30 and all(a.get("tabindex") == "0" and a.get("aria-label") for a in dots)
    assert dict(tags[0][1])["lang"] == "en"


def test_points_lie_inside_the_drawing(plan: Plan) -> None:
    for tag, attributes in outline(page(plan, "m")).tags:
        if tag == "circle":
            assert 0 <= float(attributes["cx"] or -1) <= 640 and 0 <= float(attributes["cy"] or -1) <= 400


def test_a_name_cannot_break_out_of_the_page(plan: Plan) -> None:
    assert "<b>x" not in page(plan, "<b>x</b>")


def test_a_refusal_has_a_page_too() -> None:
    text = " ".join(outline(page(mansard.plan("llama-3.1-405b", gpu="h100:2"), "m")).words)
    assert "Nothing fits." in text and "Single changes that would make it fit" in text and "GiB are there" in text


def test_scales_are_monotone_and_labelled() -> None:
    for scale in (Scale(0.3, 2e6, 0.0, 100.0), Scale(0.0, 7.3, 100.0, 0.0, log=False)):
        places = [scale.at(v) for v in scale.ticks()]
        assert len(places) >= 4 and (places == sorted(places) or places == sorted(places, reverse=True))
        assert scale.at(-1.0) == scale.start and scale.at(1e12) == scale.end
    assert [tick_label(v) for v in (0.01, 200, 5e3, 2e12, 1e15)] == ["0.01", "200", "5k", "2T", "1P"]


@needs_browser
def test_a_browser_shows_it_without_complaint(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    file.write_text(page(plan, "meta-llama/Llama-3.1-8B"), encoding="utf-8")
    log = tmp_path / "log.txt"
    dom = browse(file, "--dump-dom", "--enable-logging", f"--log-file={log}", "--v=0")
    complaints = log.read_text(errors="replace") if log.exists() else ""
    assert "CONSOLE" not in complaints
    for value in key_numbers(plan):
        assert value in dom, value
    assert dom.count("<svg") == 5 and dom.count("<circle") > 30


@needs_browser
def test_a_picture_is_a_png_of_the_page(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.png"
    draw(page(plan, "m"), file)
    data = file.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 50_000


def test_without_a_browser_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"install chromium.*--html"):
        draw("<p>x", tmp_path / "x.png")
