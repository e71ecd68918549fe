"""Files of a simulation: requests as CSV, steps as a trace for chrome://tracing or ui.perfetto.dev.

Source of the trace format: "Trace Event Format" (Google, catapult project): complete events `X`, counters `C`, async
begin and end `b` `e`, times in microseconds.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from mansard.sim.outcome import ReplicaOutcome, RequestOutcome, SimulationResult

MICROSECONDS = 1e6
COLUMNS = (*(f.name for f in fields(RequestOutcome)), "ttft_s", "tpot_s", "e2e_s")
REQUESTS_PID = 0


def write_csv(path: Path, result: SimulationResult) -> None:
    """Write one row per request, in the order of their ends."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for request in result.requests:
            values = (getattr(request, name) for name in COLUMNS)
            writer.writerow(["" if value is None else value for value in values])


def write_perfetto(path: Path, result: SimulationResult) -> None:
    """Write the steps of every replica, its batch and cache, and the life of every request."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, event in enumerate(_events(result)):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def _events(result: SimulationResult) -> Iterator[dict[str, Any]]:
    yield _name(REQUESTS_PID, "requests")
    for pid, lane in enumerate(result.replicas, REQUESTS_PID + 1):
        yield _name(pid, lane.name)
        yield from _step_events(pid, lane)
    for request in result.requests:
        yield from _request_events(request)


def _name(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}


def _step_events(pid: int, lane: ReplicaOutcome) -> Iterator[dict[str, Any]]:
    """Yield a slice and the counters of each segment; a stretch of decodes is one slice."""
    for segment, ends in lane.timeline.segments():
        start = segment.start_s * MICROSECONDS
        what = [f"{segment.num_decodes} decodes"] if segment.num_decodes else []
        what += [f"{segment.num_prefill_tokens} prompt tokens"] if segment.num_prefill_tokens else []
        count = f" × {segment.num_steps}" if segment.num_steps > 1 else ""
        yield {
            "ph": "X", "pid": pid, "tid": 0, "ts": start, "dur": float(ends[-1]) * MICROSECONDS - start,
            "name": " + ".join(what) + count,
            "args": {"steps": segment.num_steps, "keys": segment.num_context_tokens,
                     "preempted": segment.num_preemptions},
        }  # fmt: skip
        batch = {"running": segment.num_running, "waiting": segment.num_waiting}
        yield {"ph": "C", "pid": pid, "ts": start, "name": "batch", "args": batch}
        usage = {"used blocks": segment.num_used_blocks}
        yield {"ph": "C", "pid": pid, "ts": float(ends[-1]) * MICROSECONDS, "name": "KV cache", "args": usage}


def _request_events(request: RequestOutcome) -> Iterator[dict[str, Any]]:
    """Yield the phases of a request: queued, prompt, output."""
    moments = [
        ("queued", request.arrival_s, request.first_scheduled_s),
        ("prompt", request.first_scheduled_s, request.first_token_s),
        ("output", request.first_token_s, request.end_s),
    ]
    for name, begin, end in moments:
        common = {"cat": "request", "id": request.id, "pid": REQUESTS_PID, "tid": 0, "name": name}
        sizes = {"prompt": request.num_prompt_tokens, "output": request.num_output_tokens}
        yield {**common, "ph": "b", "ts": begin * MICROSECONDS, "args": sizes}
        yield {**common, "ph": "e", "ts": end * MICROSECONDS}
