"""BenchResult: what a run of `mansard bench` leaves behind, as JSON and CSV.

The schema is documented in docs/benchmarking.md. Numbers are in base units (seconds, tokens, bytes); an estimate is
`{"value", "low", "high"}` with its 95 % interval. Every request is kept, so that any metric can be computed anew.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mansard.bench import metrics
from mansard.bench.records import Chunk, Phase, RequestRecord
from mansard.bench.summary import Summary

SCHEMA = "mansard-bench/1"
CSV_COLUMNS = (
    *("index", "phase", "scheduled_s", "queue_delay_s", "ttfb_s", "ttft_s", "tpot_s", "e2e_s", "mean_itl_s"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "count_source", "finish_reason", "cause", "retries"),
)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One run: what was asked (`workload`), of whom (`target`), where, what came of it and every request.

    `kind` is serve, sweep, offline or latency; `extra` holds what only that kind has.
    """

    kind: str
    environment: Mapping[str, Any]
    target: Mapping[str, Any]
    workload: Mapping[str, Any]
    summary: Summary | None = None
    warnings: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    records: Sequence[RequestRecord] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the whole as JSON values."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "environment": dict(self.environment),
            "target": dict(self.target),
            "workload": dict(self.workload),
            "summary": None if self.summary is None else summary_dict(self.summary),
            "warnings": list(self.warnings),
            **self.extra,
            "requests": [_record_dict(r) for r in self.records],
        }

    def to_json(self) -> str:
        """Return the whole as JSON text; what is not a number is null."""
        return json.dumps(_finite(self.to_dict()), ensure_ascii=False, allow_nan=False)

    def to_csv(self) -> str:
        """Return one line a request, the phases marked. Times are seconds; latencies count from the scheduled send."""
        text = io.StringIO()
        lines = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
        lines.writeheader()
        start = min((r.scheduled_s for r in self.records), default=0.0)
        for record in self.records:
            lines.writerow(_csv_row(record, start))
        return text.getvalue()


def summary_dict(summary: Summary) -> dict[str, Any]:
    """Return a summary as JSON values, with the ratios that are computed from its parts."""
    table = asdict(summary)
    table["success"]["rate"] = summary.success.rate
    if summary.goodput is not None:
        table["goodput"] |= {
            "requests_per_s": summary.goodput.requests_per_s,
            "attainment": summary.goodput.attainment,
        }
    if summary.little is not None:
        table["little"] |= {"error": summary.little.error, "is_steady": summary.little.is_steady}
    for name in ("output_lengths", "prompt_lengths"):
        lengths = getattr(summary, name)
        if lengths is not None:
            table[name]["deviation"] = lengths.deviation
    return table


def read_result(path: str | Path) -> dict[str, Any]:
    """Return a result that was saved as JSON.

    Raises: ValueError when the file is none.
    """
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error})") from error
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no bench result of schema {SCHEMA} (write one with --json)")
    return table


def read_records(table: Mapping[str, Any]) -> list[RequestRecord]:
    """Return the requests of a saved result."""
    known = {f.name for f in fields(RequestRecord)}
    records = []
    for entry in table["requests"]:
        values = {key: value for key, value in entry.items() if key in known}
        values["chunks"] = tuple(Chunk(*chunk) for chunk in entry["chunks"])
        values["phase"] = Phase(entry["phase"])
        records.append(RequestRecord(**values))
    return records


def _record_dict(record: RequestRecord) -> dict[str, Any]:
    table = {f.name: getattr(record, f.name) for f in fields(RequestRecord)}
    table["chunks"] = [[c.time_s, c.num_tokens, c.num_bytes] for c in record.chunks]
    return table


def _csv_row(record: RequestRecord, start_s: float) -> dict[str, Any]:
    gaps = metrics.itl_s(record)
    return {
        "index": record.index,
        "phase": record.phase,
        "scheduled_s": record.scheduled_s - start_s,
        "queue_delay_s": metrics.queue_delay_s(record),
        "ttfb_s": metrics.ttfb_s(record),
        "ttft_s": metrics.ttft_s(record),
        "tpot_s": metrics.tpot_s(record),
        "e2e_s": metrics.e2e_s(record),
        "mean_itl_s": sum(gaps) / len(gaps) if gaps else None,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "output_tokens": metrics.output_tokens(record),
        "count_source": metrics.count_source(record),
        "finish_reason": record.finish_reason,
        "cause": record.cause,
        "retries": record.num_retries,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
