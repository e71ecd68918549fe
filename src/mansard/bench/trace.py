"""Trace files: requests with the times and lengths that a real service saw.

Columns are recognized by name: Azure's public traces (TIMESTAMP, ContextTokens, GeneratedTokens), Mooncake's JSON lines
(timestamp in ms, input_length, output_length, hash_ids), Vidur's length files, and a plain form (at_s, prompt_tokens,
output_tokens). A file without times gives lengths alone.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

PROMPT_COLUMNS = ("prompt_tokens", "ContextTokens", "input_length", "num_prefill_tokens", "num_prompt_tokens")
OUTPUT_COLUMNS = ("output_tokens", "GeneratedTokens", "output_length", "num_decode_tokens", "num_output_tokens")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line of a trace. Units: seconds after the first; None without times."""

    at_s: float | None
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()  # of its leading blocks: equal ids are equal text


def read_trace(path: str | Path, limit: int | None = None, speed: float = 1.0) -> list[TraceRequest]:
    """Return a trace's requests in order of time, the first at 0; `speed` 2 plays it twice as fast.

    Raises: ValueError naming the line that cannot be read.
    """
    if not speed > 0.0:
        raise ValueError(f"trace speed is {speed}; it must be above 0")
    path = Path(path)
    with path.open(encoding="utf-8", newline="") as file:
        lines: Iterable[Mapping[str, Any]]
        lines = map(json.loads, filter(str.strip, file)) if path.suffix == ".jsonl" else csv.DictReader(file)
        found = []
        try:
            for line in islice(lines, limit):
                found.append(_request(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, request {len(found) + 1}: cannot read it ({error})") from error
    if not found:
        raise ValueError(f"{path} holds no requests")
    if any(r.at_s is None for r in found):
        return found
    found.sort(key=lambda r: r.at_s or 0.0)
    start = found[0].at_s or 0.0
    return [
        TraceRequest(((r.at_s or 0.0) - start) / speed, r.num_prompt_tokens, r.num_output_tokens, r.hash_ids)
        for r in found
    ]


def _request(line: Mapping[str, Any]) -> TraceRequest:
    prompt, output = _number(line, PROMPT_COLUMNS), _number(line, OUTPUT_COLUMNS)
    return TraceRequest(_time_s(line), max(1, prompt), max(1, output), _hash_ids(line))


def _hash_ids(line: Mapping[str, Any]) -> tuple[int, ...]:
    given = line.get("hash_ids")
    found = tuple(int(i) for i in given) if isinstance(given, list) else ()
    if any(i < 0 for i in found):
        raise ValueError(f"a hash id of {min(found)}; they are whole numbers from 0")
    return found


def _number(line: Mapping[str, Any], names: Iterable[str]) -> int:
    for name in names:
        if line.get(name) not in (None, ""):
            return int(float(line[name]))
    raise KeyError(f"none of the columns {', '.join(names)}")


def _time_s(line: Mapping[str, Any]) -> float | None:
    if line.get("at_s") not in (None, ""):
        return float(line["at_s"])
    if line.get("timestamp") not in (None, ""):
        return float(line["timestamp"]) / 1e3
    stamp = line.get("TIMESTAMP")
    return None if not stamp else datetime.fromisoformat(str(stamp)[:26]).timestamp()
