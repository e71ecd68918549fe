"""How far the cost model is from thousands of published measurements; writes docs/accuracy.md.

    python benchmarks/accuracy.py            print the report
    python benchmarks/accuracy.py --write    write docs/accuracy.md and the published intervals
    python benchmarks/accuracy.py --check    fail when docs/accuracy.md is stale or a bar has regressed (CI)

Constants were fitted to one half of the measurements (benchmarks/fit_profiles.py); the other half judges.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import constants_table
import numpy as np
from accuracy_data import DATA, Row, silicon_rows
from accuracy_model import Floats, build_groups, hardware, model_class, predict
from accuracy_report import Bar, Section, bars_table, error_table, render
from fit_profiles import read_tables, using
from published_data import published_rows

import mansard.cost.profiles as profiles

DOCS = Path(__file__).parent.parent / "docs" / "accuracy.md"
INTERVALS = Path(profiles.__file__).parent / "profiles" / "intervals.toml"
RANKING_MARGIN = 1.1  # two configurations closer than this are a tie


@dataclass(slots=True)
class Evaluation:
    """All rows with their predictions, as arrays; nan where something was not measured."""

    rows: list[Row]
    dropped: Counter[str]
    usable: Floats
    measured: dict[str, Floats]
    predicted: dict[str, Floats]

    def select(self, **wanted: object) -> Floats:
        """Return the usable rows whose attributes (or `model_class`, `half`, `apart`) have the wanted values."""
        keep = self.usable.copy()
        for name, value in wanted.items():
            keep &= np.array([_attribute(row, name) == value for row in self.rows])
        return keep

    def errors(self, metric: str, keep: Floats) -> Floats:
        """Return predicted ÷ measured − 1 of the kept rows that have the metric."""
        values = self.predicted[metric][keep] / self.measured[metric][keep] - 1.0
        return values[~np.isnan(values)]


def _attribute(row: Row, name: str) -> object:
    if name == "model_class":
        return model_class(row.model)
    if name == "sparse":
        return model_class(row.model) != "dense"
    if name == "half":
        return "fitted" if row.in_training_half else "unseen"
    if name == "apart":
        return is_apart(row.gpu)
    return getattr(row, name)


def is_apart(gpu: str) -> bool:
    """Say whether a card is listed apart: consumer and workstation cards, and those not from NVIDIA."""
    return hardware(gpu).vendor != "NVIDIA" or gpu.startswith(("RTX", "JETSON"))


def evaluate() -> Evaluation:
    """Read, clean and predict every row."""
    dropped: Counter[str] = Counter()
    groups = build_groups([*silicon_rows(dropped), *published_rows(dropped)], dropped)
    rows = [row for group in groups for row in group.rows]
    predicted = predict(groups)
    floor = np.concatenate([np.broadcast_to(group.floor_s, len(group.rows)) for group in groups])
    measured = {
        "tpot": _array(row.tpot_s for row in rows),
        "ttft": _array(row.ttft_s for row in rows),
        "throughput": _array(_tokens_per_s(row) for row in rows),
    }
    predicted["rate"] = np.where(np.isnan(measured["tpot"]), predicted["throughput"], 1.0 / predicted["tpot"])
    measured["rate"] = np.where(np.isnan(measured["tpot"]), measured["throughput"], 1.0 / measured["tpot"])
    too_fast = measured["tpot"] < floor
    dropped["faster than the speed of light (weights and KV over the bandwidth)"] += int(too_fast.sum())
    return Evaluation(rows, dropped, ~too_fast, measured, predicted)


def _array(values: object) -> Floats:
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)  # type: ignore[attr-defined]


def _tokens_per_s(row: Row) -> float | None:
    if row.output_tokens_per_s is not None or row.ttft_s is None or row.tpot_s is None:
        return row.output_tokens_per_s
    return row.concurrency * row.output_tokens / (row.ttft_s + (row.output_tokens - 1) * row.tpot_s)


def ranking(found: Evaluation, keep: Floats) -> tuple[int, int]:
    """Return (pairs ordered rightly, pairs): of one model and lengths, more than 10 % apart in tokens/s/GPU."""
    right = total = 0
    cells: dict[tuple[object, ...], list[int]] = {}
    for i in np.flatnonzero(keep & ~np.isnan(found.measured["throughput"])):
        row = found.rows[i]
        cells.setdefault((row.model, row.input_tokens, row.output_tokens), []).append(int(i))
    gpus = np.array([row.layout.num_ranks for row in found.rows])
    for cell in cells.values():
        index = np.array(cell)
        measured = np.log(found.measured["throughput"][index] / gpus[index])
        predicted = np.log(found.predicted["throughput"][index] / gpus[index])
        gaps, guesses = measured[:, None] - measured, predicted[:, None] - predicted
        pairs = np.triu(np.abs(gaps) > np.log(RANKING_MARGIN), 1)
        right += int(((gaps * guesses)[pairs] > 0).sum())
        total += int(pairs.sum())
    return right, total


def bars(found: Evaluation) -> list[Bar]:
    """Return every bar with what both halves reach."""
    closed = {"scenario": "closed-loop"}
    plan: list[tuple[str, str, str, float, dict[str, object]]] = [
        ("dense TPOT, median", "tpot", "median", 9.0, {**closed, "model_class": "dense"}),
        ("dense TPOT, p90", "tpot", "p90", 25.0, {**closed, "model_class": "dense"}),
        ("MoE and MLA TPOT, median", "tpot", "median", 18.0, {**closed, "sparse": True}),
        ("TTFT closed form, median", "ttft", "median", 40.0, closed),
        ("single-stream decode, median", "rate", "median", 12.0, {"scenario": "single-stream", "apart": False}),
        ("offline throughput, median", "throughput", "median", 20.0, {"scenario": "offline", "apart": False}),
    ]
    result = [
        Bar(name, limit, *(_statistic(found.errors(metric, found.select(half=half, **what)), kind)
                           for half in ("unseen", "fitted")))
        for name, metric, kind, limit, what in plan
    ]  # fmt: skip
    for name, what in (("dense", {"model_class": "dense"}), ("all models", {})):
        unseen, fitted = (ranking(found, found.select(half=half, **closed, **what)) for half in ("unseen", "fitted"))
        shares = (100.0 * right / total for right, total in (unseen, fitted))
        result.append(Bar(f"pairs ranked right, {name}", 98.5, *shares, at_least=True))
    return result


def swapped_bars() -> list[Bar]:
    """Return the bars with the halves exchanged: constants of the other half's fit, judged on this one."""
    with using(read_tables(DATA / "swapped")):
        return [replace(bar, unseen=bar.fitted, fitted=bar.unseen) for bar in bars(evaluate())]


def _statistic(errors: Floats, kind: str) -> float:
    size = 100.0 * np.abs(errors)
    return float(np.median(size) if kind == "median" else np.percentile(size, 90))


def sections(found: Evaluation) -> list[Section]:
    """Return the tables of the report."""
    closed = [("TPOT", "tpot"), ("TTFT", "ttft"), ("tokens/s", "throughput")]
    result = [
        Section("By model class", error_table(found, "model_class", {"scenario": "closed-loop"}, closed)),
        Section("By GPU", error_table(found, "gpu", {"scenario": "closed-loop"}, closed)),
        Section("By engine", error_table(found, "engine", {"scenario": "closed-loop"}, closed)),
        Section("By model", error_table(found, "model", {"scenario": "closed-loop"}, closed)),
    ]
    for title, scenario in (("Single stream", "single-stream"), ("Offline", "offline"), ("Static batch", "static")):
        for name, apart in (("", False), (", consumer cards and other vendors", True)):
            what = {"scenario": scenario, "apart": apart}
            result.append(Section(f"{title}{name}", error_table(found, "gpu", what, [("tokens/s", "rate")])))
        result.append(Section(f"{title} by engine", error_table(
            found, "engine", {"scenario": scenario}, [("tokens/s", "rate")])))  # fmt: skip
    return result


def intervals(found: Evaluation) -> str:
    """Return the TOML of published residual intervals: quantiles of measured ÷ predicted on the unseen half."""
    lines = [
        "# Residual intervals, written by benchmarks/accuracy.py: 10 % and 90 % quantiles of measured / predicted",
        "# on the half of the measurements that no constant was fitted to.",
        "",
    ]
    for kind in ("all", "dense", "moe", "mla"):
        for metric in ("tpot", "ttft", "throughput"):
            what: dict[str, object] = {"half": "unseen"} | ({} if kind == "all" else {"model_class": kind})
            ratio = 1.0 / (1.0 + found.errors(metric, found.select(**what)))
            low, high = np.percentile(ratio, [10, 90])
            lines += [f"[{kind}-{metric}]", f"low = {low:.2f}", f"high = {high:.2f}", f"num_rows = {len(ratio)}",
                      'source = "docs/accuracy.md"', ""]  # fmt: skip
    return "\n".join(lines)


def is_stale(old: str, new: str) -> bool:
    """Say whether two reports differ by more than the last digit of a number."""
    number = r"[-+]?\d+(?:\.\d+)?"
    if re.sub(number, "#", old) != re.sub(number, "#", new):
        return True
    pairs = zip(re.findall(number, old), re.findall(number, new), strict=True)
    return any(abs(float(a) - float(b)) > 0.11 for a, b in pairs)


def main() -> int:
    """Print, write or check the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    found = evaluate()
    reached = bars(found)
    text = render(found, reached, swapped_bars(), sections(found))
    if args.write:
        DOCS.write_text(text, encoding="utf-8")
        INTERVALS.write_text(intervals(found), encoding="utf-8")
        constants_table.DOCS.write_text(
            constants_table.with_constants(constants_table.DOCS.read_text(encoding="utf-8")), encoding="utf-8"
        )
    if not args.check:
        print(text)
        return 0
    stale = not DOCS.exists() or is_stale(DOCS.read_text(encoding="utf-8"), text)
    model = constants_table.DOCS.read_text(encoding="utf-8")
    stale |= model != constants_table.with_constants(model) or INTERVALS.read_text(encoding="utf-8") != intervals(found)
    lost = [bar for bar in reached if not bar.holds and not bar.known_to_fail]
    print(bars_table(reached))
    if stale:
        print("docs/accuracy.md or docs/cost-model.md is stale: run `python benchmarks/accuracy.py --write`")
    for bar in lost:
        print(f"bar lost: {bar.name}")
    return 1 if stale or lost else 0


if __name__ == "__main__":
    sys.exit(main())
