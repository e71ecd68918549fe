"""The one definition of each metric, as pure functions of records; `docs/metrics.md` states them in symbols.

Server, simulator and bench use these, so that their numbers mean the same. The first token is the first frame with
output, never a role frame; the end is the last frame with output, never a trailing usage frame. Latency counts from
the scheduled send unless asked otherwise: waiting inside the client is waiting (no coordinated omission).

Sources: docs/metrics.md lists them metric by metric.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from mansard.bench.records import Phase, RequestRecord
from mansard.specs.slo import Slo

Origin = Literal["scheduled", "sent"]
CountSource = Literal["usage", "estimated"]
SingleToken = Literal["passes", "left out"]

BYTES_PER_TOKEN = 4.0  # of text; only to see whether a stream shows what the server generated
MIN_VISIBLE_SHARE = 0.5
TOLERANCE_S = 1e-6  # of sums of up to a million float64 gaps, and of timers that fire early by rounding


def origin_s(record: RequestRecord, origin: Origin = "scheduled") -> float:
    """Return the moment that latency counts from."""
    if origin == "scheduled" or record.sent_s is None:
        return record.scheduled_s
    return record.sent_s


def queue_delay_s(record: RequestRecord) -> float:
    """Return how long the request waited in the client: sent - scheduled. Units: seconds."""
    return 0.0 if record.sent_s is None else record.sent_s - record.scheduled_s


def ttfb_s(record: RequestRecord, origin: Origin = "scheduled") -> float | None:
    """Return the time to the first byte of the body, which a role frame may be."""
    return None if record.first_byte_s is None else record.first_byte_s - origin_s(record, origin)


def ttft_s(record: RequestRecord, origin: Origin = "scheduled") -> float | None:
    """Return the time to the first token: the first frame with output. None without output."""
    return record.chunks[0].time_s - origin_s(record, origin) if record.chunks else None


def e2e_s(record: RequestRecord, origin: Origin = "scheduled") -> float | None:
    """Return the time to the last token; the stream may close later. None without output."""
    return record.chunks[-1].time_s - origin_s(record, origin) if record.chunks else None


def close_delay_s(record: RequestRecord) -> float | None:
    """Return how long after its last token the stream closed."""
    if record.closed_s is None or not record.chunks:
        return None
    return record.closed_s - record.chunks[-1].time_s


def output_tokens(record: RequestRecord) -> int:
    """Return the number of output tokens: the server's count, or else an estimate (see `count_source`)."""
    if count_source(record) == "usage":
        assert record.num_output_tokens is not None
        return record.num_output_tokens
    return sum(chunk.num_tokens or 1 for chunk in record.chunks)


def count_source(record: RequestRecord) -> CountSource:
    """Say where the token count is from; a usage of one token over several frames is not believed."""
    count = record.num_output_tokens
    return "estimated" if count is None or (count < 2 <= len(record.chunks)) else "usage"


def tpot_s(record: RequestRecord) -> float | None:
    """Return the time per output token, (last - first token) / (tokens - 1); None, not 0, below two tokens."""
    count = output_tokens(record)
    if count < 2 or not record.chunks:
        return None
    return (record.chunks[-1].time_s - record.chunks[0].time_s) / (count - 1)


def chunk_gaps_s(record: RequestRecord) -> list[float]:
    """Return the gaps between frames with output: what a reader sees, whatever is in them."""
    return [after.time_s - before.time_s for before, after in pairwise(record.chunks)]


def chunk_tokens(record: RequestRecord) -> list[int]:
    """Return how many tokens each frame carried; they add up to `output_tokens`.

    The server's own counts where it gives them, one each where that adds up, else in proportion to the text. The
    first and last frames have at least one.
    """
    total, chunks = output_tokens(record), record.chunks
    given = [chunk.num_tokens for chunk in chunks]
    if None not in given and sum(n or 0 for n in given) == total:
        return [n or 0 for n in given]
    if total == len(chunks):
        return [1] * total
    sizes = [chunk.num_bytes for chunk in chunks] if all(chunk.num_bytes for chunk in chunks) else [1] * len(chunks)
    whole, seen, ends = sum(sizes), 0, [0]
    for size in sizes:
        seen += size
        ends.append(max(1, total * seen // whole))
    return [after - before for before, after in pairwise(ends)]


def itl_s(record: RequestRecord) -> list[float]:
    """Return the inter-token latencies, one for each token after the first; their sum is E2E - TTFT.

    Tokens that came in the first frame beside the first have 0; those of a later frame share the gap before it.
    Empty when nothing but one frame came, whose inner times cannot be known.
    """
    if len(record.chunks) < 2:
        return []
    counts = chunk_tokens(record)
    gaps = [0.0] * (counts[0] - 1)
    waited = 0.0
    for gap, count in zip(chunk_gaps_s(record), counts[1:], strict=True):
        waited += gap
        if count:
            gaps.extend([waited / count] * count)
            waited = 0.0
    return gaps


def itl_is_measurable(record: RequestRecord) -> bool:
    """Say whether the stream showed most of the generated tokens; hidden ones have no times."""
    total = output_tokens(record)
    given = [chunk.num_tokens for chunk in record.chunks]
    if None not in given:
        visible = float(sum(n or 0 for n in given))
    else:
        visible = max(len(given), sum(chunk.num_bytes for chunk in record.chunks) / BYTES_PER_TOKEN)
    return visible >= MIN_VISIBLE_SHARE * total


def check(record: RequestRecord) -> None:
    """Hold the invariants of one record: times in order, and Σ ITL = E2E - TTFT.

    Raises: AssertionError naming the request.
    """
    times = [t for t in (record.scheduled_s, record.sent_s, record.first_byte_s) if t is not None]
    times += [chunk.time_s for chunk in record.chunks] + ([] if record.closed_s is None else [record.closed_s])
    assert all(a <= b + TOLERANCE_S for a, b in pairwise(times)), f"request {record.index}: times go backwards: {times}"
    if record.chunks:
        total, first, last = sum(itl_s(record)), ttft_s(record), e2e_s(record)
        assert first is not None and last is not None
        assert math.isclose(total, last - first, abs_tol=TOLERANCE_S), (
            f"request {record.index}: the inter-token latencies sum to {total} s, E2E - TTFT is {last - first} s"
        )


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met all limits. `num_eligible` leaves out cancelled ones and those the convention leaves out."""

    num_good: int
    num_eligible: int
    duration_s: float
    single_token: SingleToken

    @property
    def requests_per_s(self) -> float:
        """Return the good requests per second."""
        return self.num_good / self.duration_s

    @property
    def attainment(self) -> float:
        """Return the share of eligible requests that were good; failures are misses."""
        return self.num_good / self.num_eligible if self.num_eligible else math.nan


def goodput(
    records: Iterable[RequestRecord], slo: Slo, duration_s: float, single_token: SingleToken = "passes"
) -> Goodput:
    """Count the requests that met every limit of `slo`, each judged alone; a failed one is a miss.

    A reply of one token has no TPOT: by convention it passes that limit, or the request is left out. Requests that
    the run itself cancelled do not count.
    """
    num_good = num_eligible = 0
    for record in records:
        if record.was_cancelled:
            continue
        tpot = tpot_s(record)
        if record.succeeded and tpot is None and slo.tpot_s is not None and single_token == "left out":
            continue
        num_eligible += 1
        first = ttft_s(record)
        num_good += record.succeeded and first is not None and slo.is_met(first, tpot)
    return Goodput(num_good, num_eligible, duration_s, single_token)


@dataclass(frozen=True, slots=True)
class Success:
    """How requests ended; cancelled ones count in neither number."""

    num_succeeded: int
    num_failed: int
    causes: Mapping[str, int]
    num_cancelled: int
    num_retries: int

    @property
    def rate(self) -> float:
        """Return the share of requests that succeeded; NaN without any."""
        total = self.num_succeeded + self.num_failed
        return self.num_succeeded / total if total else math.nan


def success(records: Iterable[RequestRecord]) -> Success:
    """Count how requests ended, failures by cause."""
    causes: Counter[str] = Counter()
    num_succeeded = num_cancelled = num_retries = 0
    for record in records:
        num_retries += record.num_retries
        if record.was_cancelled:
            num_cancelled += 1
        elif record.cause is None:
            num_succeeded += 1
        else:
            causes[record.cause] += 1
    return Success(num_succeeded, causes.total(), dict(causes), num_cancelled, num_retries)


@dataclass(frozen=True, slots=True)
class Littles:
    """Mean requests in flight L, arrival rate λ and mean time W over one window; L = λ·W in a steady state."""

    in_flight: float
    rate_per_s: float
    time_s: float
    window_s: float

    @property
    def error(self) -> float:
        """Return L / (λ·W) - 1: near 0 when the run was in a steady state."""
        predicted = self.rate_per_s * self.time_s
        return self.in_flight / predicted - 1.0 if predicted else math.nan

    @property
    def is_steady(self) -> bool:
        """Say whether the law holds within 5 % over a window of at least ten times W."""
        return abs(self.error) <= 0.05 and self.window_s >= 10.0 * self.time_s


def time_from_little(in_flight: float, rate_per_s: float) -> float:
    """Return W = L / λ. Source: Little, Operations Research 9(3), 1961."""
    return in_flight / rate_per_s


def rate_from_little(in_flight: float, time_s: float) -> float:
    """Return λ = L / W."""
    return in_flight / time_s


def littles_law(records: Sequence[RequestRecord], start_s: float, end_s: float) -> Littles | None:
    """Measure L, λ and W between two moments, L from the overlap of each request with the window.

    W is of the requests sent within the window. Returns None when there are none.
    """
    sent = [r for r in records if r.sent_s is not None]
    inside = [r for r in sent if r.sent_s is not None and start_s <= r.sent_s < end_s]
    if not inside or end_s <= start_s:
        return None
    window = end_s - start_s
    overlap = sum(max(0.0, min(r.end_s, end_s) - max(r.sent_s or 0.0, start_s)) for r in sent)
    mean = sum(r.end_s - (r.sent_s or 0.0) for r in inside) / len(inside)
    return Littles(overlap / window, len(inside) / window, mean, window)


def mark_phases(records: Iterable[RequestRecord], num_warmup: int, num_opening: int) -> list[RequestRecord]:
    """Return the records in the order they were sent, the first marked as warm-up, the next as the opening wave."""
    ordered = sorted(records, key=lambda r: (r.scheduled_s if r.sent_s is None else r.sent_s, r.index))
    marked = []
    for place, record in enumerate(ordered):
        warm, opening = place < num_warmup, place < num_warmup + num_opening
        marked.append(record.in_phase(Phase.WARMUP if warm else Phase.OPENING if opening else Phase.MEASURED))
    return marked


def mbu(num_bytes: float, seconds: float, peak_bytes_per_s: float) -> float:
    """Return model bandwidth utilization: bytes that a step must read ÷ its time ÷ peak bandwidth.

    Bytes: weights once (of experts the ones used) and every sequence's cache. Raises: ValueError above what is
    possible. Source: Databricks, "LLM Inference Performance Engineering" (2023).
    """
    from mansard.cost.decode_bound import mbu as bounded

    return bounded(num_bytes, seconds, peak_bytes_per_s)


def mfu(flops: float, seconds: float, peak_flops: float) -> float:
    """Return model FLOPs utilization: FLOPs that the model needs ÷ time ÷ dense peak of the format.

    Raises: ValueError above 105 %. Source: Chowdhery et al., PaLM (arXiv 2204.02311), appendix B.
    """
    used = flops / seconds / peak_flops
    if used > 1.05:
        raise ValueError(
            f"MFU of {used:.0%} is impossible: {flops / 1e9:.1f} GFLOP in {seconds * 1e3:.2f} ms exceed "
            f"{peak_flops / 1e12:.2f} TFLOP/s (take the dense rate of the format that multiplies)"
        )
    return used
