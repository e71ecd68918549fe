"""Run: plan from the values of the command line and write the answer in the form that was asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mansard.cost.op_cost import Layout
from mansard.cost.question import OBJECTIVES
from mansard.planning import ask
from mansard.planning.document import batch_csv, document

if TYPE_CHECKING:
    from mansard.cost.planner import Plan

SPLIT = ("tp", "pp", "dp", "ep")


def run_plan(model: str, **given: Any) -> bool:
    """Plan, write the answer and say whether something fits; `given` are the parameters of `mansard plan`.

    Raises: ValueError for a name or value that cannot be used.
    """
    detail, as_json, as_csv = (bool(given.pop(name, False)) for name in ("detail", "as_json", "as_csv"))
    html, png = (given.pop(name, None) for name in ("html", "png"))
    found = ask.plan(model, detail=detail or as_json or html is not None, **settings(given))
    source = ask.hf_id(model)
    if html is not None or png is not None:
        _draw(found, source, html, png)
    elif as_json:
        print(json.dumps(document(found, source), ensure_ascii=False, indent=1))
    elif as_csv:
        print(batch_csv(found).rstrip())
    else:
        _show(found, source, detail)
    return found.fits


def settings(given: dict[str, Any]) -> ask.Settings:
    """Return the settings that the parameters of the command line mean.

    Raises: ValueError for an unknown objective.
    """
    objective = given.get("objective", OBJECTIVES[0])
    if objective not in OBJECTIVES:
        raise ValueError(f"unknown objective {objective!r}; choose one of {', '.join(OBJECTIVES)}")
    found = {name: value for name, value in given.items() if name not in SPLIT}
    found["layout"] = fixed_layout(*(given.get(name) for name in SPLIT))
    found["num_batched_tokens"] = found.pop("max_num_batched_tokens", None)
    if given.get("gpu") is not None:
        found["gpu"] = given["gpu"].split(",")
    return cast("ask.Settings", found)


def fixed_layout(tp: int | None, pp: int | None, dp: int | None, ep: int | None) -> Layout | None:
    """Return the split that was fixed by options, or None when it is free."""
    if tp is None and pp is None and dp is None and ep is None:
        return None
    return Layout(tp or 1, pp or 1, dp or 1, ep or 1)


def _show(found: Plan, source: str, detail: bool) -> None:
    from rich.console import Console

    from mansard.planning.terminal import show

    show(found, source, Console(highlight=False, width=None if sys.stdout.isatty() else 100), detail)


def _draw(found: Plan, source: str, html: Path | None, png: Path | None) -> None:
    from mansard.planning.html import page

    text = page(found, source)
    if html is not None:
        html.write_text(text, encoding="utf-8")
        print(f"wrote {html}", file=sys.stderr)
    if png is not None:
        from mansard.planning.picture import draw

        draw(text, png)
        print(f"wrote {png}", file=sys.stderr)
