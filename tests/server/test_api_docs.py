"""docs/api.md is what the OpenAPI document says now."""

from __future__ import annotations

from pathlib import Path

import pytest

from mansard.server.api_docs import document, main, markdown
from mansard.server.field_notes import FIELD_NOTES

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(document()), "run python -m mansard.server.api_docs"
    assert main([str(PAGE), "--check"]) == 0


def test_a_page_that_is_behind_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "api.md"
    old.write_text("# HTTP API\n", encoding="utf-8")
    assert main([str(old), "--check"]) == 1 and "not up to date" in capsys.readouterr().err
    assert main([str(old)]) == 0 and main([str(old), "--check"]) == 0


def test_every_field_of_a_body_is_explained() -> None:
    schemas = document()["components"]["schemas"]
    bodies = [schemas[name] for name in schemas if name.endswith("Body") and name != "ErrorBody"]
    fields = {name: field for body in bodies for name, field in body["properties"].items()}
    assert len(bodies) == 6
    assert {n for n, f in fields.items() if not f.get("description")} <= {"input", "text", "tokens", "metadata"}
    assert all(name in {n for s in schemas.values() for n in s.get("properties", ())} for name in FIELD_NOTES)
