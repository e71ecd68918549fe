"""Trace: recorded traffic as lengths, times and, where it has them, the hashes of the prompts' blocks.

Three traces ship with the package (`traces/README.md` has their origins and licences); one's own is a CSV with a
header or JSON lines. Hashes make prefix reuse real: equal hashes become equal tokens, so the engine's own prefix cache
finds the hits that the recorded service had.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

from mansard.sim.planned import PlannedRequest, Run, TokenIds

PACKAGED = {
    "azure-conv": "azure_conv_2023.csv.gz",
    "azure-code": "azure_code_2023.csv.gz",
    "mooncake": "mooncake_conversation.csv.gz",
}
HASH_BLOCK_TOKENS = 512  # of Mooncake's hashes
LAP_GAP_S = 1.0  # between the end of a trace and its beginning when it is repeated

_INPUT = ("input_tokens", "input_length", "ContextTokens", "num_prefill_tokens", "prompt_tokens", "num_prompt_tokens")
_OUTPUT = ("output_tokens", "output_length", "GeneratedTokens", "num_decode_tokens", "num_output_tokens")
_TIME = ("arrival_s", "at_s", "gap_ms", "timestamp", "TIMESTAMP")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request. Units: seconds since the first, tokens."""

    arrival_s: float
    num_input_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()
    priority: int = 0


def read_trace(name: str) -> list[TraceRow]:
    """Return a packaged trace by name, or that of a CSV or JSONL file (both may be compressed with gzip).

    A row says its prompt's and its output's tokens and its time: `arrival_s` in seconds, `gap_ms` since the row
    before, `timestamp` in milliseconds (Mooncake's format), or `TIMESTAMP` as a date. Without any time, rows come at
    once and a rate must be given.

    Raises: ValueError naming the row and what is wrong with it.
    """
    if name in PACKAGED:
        data = resources.files("mansard.sim").joinpath("traces", PACKAGED[name]).read_bytes()
        return _parsed(io.StringIO(gzip.decompress(data).decode()), is_json=False, where=name)
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"no trace {name!r}; choose one of {', '.join(PACKAGED)} or give a CSV or JSONL file")
    data = path.read_bytes()
    text = gzip.decompress(data).decode() if path.suffix == ".gz" else data.decode()
    is_json = path.name.removesuffix(".gz").endswith((".jsonl", ".json"))
    return _parsed(io.StringIO(text), is_json, where=path.name)


def planned_requests(
    rows: Sequence[TraceRow], ids: TokenIds, rate_req_s: float | None = None, count: int | None = None
) -> list[PlannedRequest]:
    """Return a trace's requests, `count` of them, at its own pace or with its times scaled to `rate_req_s`.

    A trace that is too short is repeated; a repetition has texts of its own.

    Raises: ValueError for an empty trace.
    """
    if not rows:
        raise ValueError("the trace has no requests")
    count = len(rows) if count is None else count
    found = [
        _planned(str(i), row, at, ids, texts) for i, (row, at, texts) in enumerate(islice(_laps(rows, ids), count))
    ]
    if rate_req_s is None or len(found) < 2:
        return found
    begin, span = found[0].arrival_s, found[-1].arrival_s - found[0].arrival_s
    scale = (len(found) - 1) / rate_req_s / span if span > 0 else 0.0
    if not scale:
        raise ValueError("the trace has no times, so it has no pace to scale; use its lengths as a workload")
    return [_moved(p, (p.arrival_s - begin) * scale) for p in found]


class _Texts:
    """Gives each hash of one lap the token id that stands for its block."""

    def __init__(self, ids: TokenIds) -> None:
        self._ids = ids
        self._of_hash: dict[int, int] = {}

    def of(self, hash_id: int) -> int:
        found = self._of_hash.get(hash_id)
        if found is None:
            found = self._of_hash[hash_id] = self._ids.fresh()
        return found


def _laps(rows: Sequence[TraceRow], ids: TokenIds) -> Iterator[tuple[TraceRow, float, _Texts]]:
    lap_s = rows[-1].arrival_s + LAP_GAP_S
    lap = 0
    while True:
        texts = _Texts(ids)
        for row in rows:
            yield row, lap * lap_s + row.arrival_s, texts
        lap += 1


def _planned(name: str, row: TraceRow, at: float, ids: TokenIds, texts: _Texts) -> PlannedRequest:
    prompt: tuple[Run, ...]
    if not row.hash_ids:
        prompt = ((ids.fresh(), row.num_input_tokens),)
    else:
        left, runs = row.num_input_tokens, []
        for hash_id in row.hash_ids:
            length = min(HASH_BLOCK_TOKENS, left)
            if length > 0:
                runs.append((texts.of(hash_id), length))
            left -= length
        if left > 0:
            runs.append((ids.fresh(), left))
        prompt = tuple(runs)
    return PlannedRequest(name, at, prompt, row.num_output_tokens, ids.fresh(), row.priority)


def _moved(planned: PlannedRequest, at: float) -> PlannedRequest:
    return PlannedRequest(
        planned.id, at, planned.prompt, planned.num_output_tokens, planned.output_token_id, planned.priority
    )


def _parsed(text: io.StringIO, is_json: bool, where: str) -> list[TraceRow]:
    """Read rows and sort them by time."""
    records: Iterable[Mapping[str, Any]]
    if is_json:
        records = (json.loads(line) for line in text if line.strip())
    else:
        records = csv.DictReader(line for line in text if not line.startswith("#"))
    rows: list[TraceRow] = []
    clock_s = 0.0
    for number, record in enumerate(records, 1):
        try:
            clock_s = _time_s(record, clock_s)
            rows.append(_row(record, clock_s))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"trace {where}, row {number}: {error}") from error
    rows.sort(key=lambda row: row.arrival_s)
    begin = rows[0].arrival_s if rows else 0.0
    return [
        TraceRow(r.arrival_s - begin, r.num_input_tokens, r.num_output_tokens, r.hash_ids, r.priority) for r in rows
    ]


def _row(record: Mapping[str, Any], at: float) -> TraceRow:
    return TraceRow(
        at,
        max(1, int(_field(record, _INPUT))),
        max(1, int(_field(record, _OUTPUT))),
        _hashes(record.get("hash_ids") or ()),
        int(record.get("priority") or 0),
    )


def _field(record: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if name in record:
            return record[name]
    raise ValueError(f"no column {names[0]} (or {', '.join(names[1:])}) among {', '.join(map(str, record))}")


def _time_s(record: Mapping[str, Any], before_s: float) -> float:
    """Return a row's time in seconds by the first time column it has."""
    name = next((n for n in _TIME if n in record), None)
    if name is None:
        return before_s
    value = record[name]
    if name == "gap_ms":
        return before_s + float(value) / 1e3
    if name in ("arrival_s", "at_s"):
        return float(value)
    if isinstance(value, str) and ":" in value:
        return datetime.fromisoformat(value[:26]).timestamp()
    return float(value) / 1e3


def _hashes(value: str | Iterable[int]) -> tuple[int, ...]:
    """Read a list of hashes, or a text of hashes and runs `first-last`."""
    if not isinstance(value, str):
        return tuple(int(v) for v in value)
    found: list[int] = []
    for part in value.split():
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)
