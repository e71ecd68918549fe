"""Summary: a run's records, computed into every metric of the glossary.

Latency statistics are over successes alone and never stand without the success rate beside them; throughput is what
successes delivered over the whole wall time; goodput counts failures as misses. What a reader should distrust is said
in `warnings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from mansard.bench import metrics
from mansard.bench.metrics import Goodput, Littles, SingleToken, Success
from mansard.bench.records import Phase, RequestRecord
from mansard.bench.statistics import Distribution, describe
from mansard.specs.slo import Slo

LENGTH_TOLERANCE = 0.02
MISMATCH_TOLERANCE = 0.01
MAX_CLIENT_LAG_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts as the server reports them, and what was asked for. Units: tokens."""

    mean: float
    minimum: int
    maximum: int
    target_mean: float | None

    @property
    def deviation(self) -> float | None:
        """Return mean / target - 1."""
        return None if not self.target_mean else self.mean / self.target_mean - 1.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything about the measured part of a run. Units: seconds, tokens, per second.

    `latencies` holds distributions over successful requests by name (ttft_s, tpot_s, e2e_s, …; see docs/metrics.md);
    `opening` the same for the opening wave alone.
    """

    success: Success
    duration_s: float
    latencies: dict[str, Distribution]
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    output_tokens_per_s_per_user: float | None
    num_output_tokens: int
    counts_estimated: int
    output_lengths: Lengths | None
    prompt_lengths: Lengths | None
    templated_extra_tokens: float | None
    little: Littles | None
    goodput: Goodput | None
    retokenized_mismatch: float | None
    opening: dict[str, Distribution] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


Metric = Callable[[RequestRecord], float | None]
PER_REQUEST: dict[str, Metric] = {
    "ttft_s": metrics.ttft_s,
    "ttft_from_send_s": lambda r: metrics.ttft_s(r, "sent"),
    "ttfb_s": metrics.ttfb_s,
    "tpot_s": metrics.tpot_s,
    "e2e_s": metrics.e2e_s,
    "e2e_from_send_s": lambda r: metrics.e2e_s(r, "sent"),
    "queue_delay_s": metrics.queue_delay_s,
    "close_delay_s": metrics.close_delay_s,
}


def latencies(records: Iterable[RequestRecord]) -> dict[str, Distribution]:
    """Return the distributions of each metric over the successful requests; ITL and chunk gaps over all their tokens
    and frames.
    """
    good = [r for r in records if r.succeeded]
    samples = {name: [metric(r) for r in good] for name, metric in PER_REQUEST.items()}
    visible = [r for r in good if metrics.itl_is_measurable(r)]
    samples["itl_s"] = [gap for r in visible for gap in metrics.itl_s(r)]
    samples["chunk_gap_s"] = [gap for r in good for gap in metrics.chunk_gaps_s(r)]
    found = {name: describe(v for v in values if v is not None) for name, values in samples.items()}
    return {name: distribution for name, distribution in found.items() if distribution is not None}


def summarize(
    records: Sequence[RequestRecord], slo: Slo | None = None, single_token: SingleToken = "passes"
) -> Summary:
    """Return the summary of a run's records; checks each record's invariants on the way.

    Raises: ValueError when no request was measured; AssertionError when a record contradicts itself.
    """
    measured = [r for r in records if r.phase is Phase.MEASURED]
    if not measured:
        raise ValueError("no request was measured: all were warm-up, or the run ended too soon (send more requests)")
    for record in measured:
        metrics.check(record)
    good = [r for r in measured if r.succeeded]
    start_s, duration_s = _window(measured)
    num_output = sum(metrics.output_tokens(r) for r in good)
    num_prompt = sum(r.num_prompt_tokens or r.target_prompt_tokens or 0 for r in good)
    found = latencies(measured)
    little = metrics.littles_law(
        records, start_s, max(r.scheduled_s if r.sent_s is None else r.sent_s for r in measured)
    )
    summary = Summary(
        success=metrics.success(measured),
        duration_s=duration_s,
        latencies=found,
        requests_per_s=len(good) / duration_s,
        output_tokens_per_s=num_output / duration_s,
        total_tokens_per_s=(num_output + num_prompt) / duration_s,
        output_tokens_per_s_per_user=1.0 / found["tpot_s"].mean.value if _positive(found.get("tpot_s")) else None,
        num_output_tokens=num_output,
        counts_estimated=sum(metrics.count_source(r) == "estimated" for r in good),
        output_lengths=_lengths([(metrics.output_tokens(r), r.target_output_tokens) for r in good]),
        prompt_lengths=_lengths([(r.num_prompt_tokens, r.target_prompt_tokens) for r in good]),
        templated_extra_tokens=_templated_extra(good),
        little=little,
        goodput=None if slo is None else metrics.goodput(measured, slo, duration_s, single_token),
        retokenized_mismatch=_mismatch(good),
        opening=latencies(r for r in records if r.phase is Phase.OPENING),
    )
    return _with_warnings(summary, good)


def _window(measured: Sequence[RequestRecord]) -> tuple[float, float]:
    """Return when the measured part began and how long it took, failures and retries included."""
    start = min(r.scheduled_s for r in measured)
    return start, max(max(r.end_s for r in measured) - start, 1e-9)


def _positive(distribution: Distribution | None) -> bool:
    return distribution is not None and distribution.mean.value > 0.0


def _lengths(pairs: Iterable[tuple[int | None, int | None]]) -> Lengths | None:
    known = [(count, target) for count, target in pairs if count is not None]
    if not known:
        return None
    counts = [count for count, _ in known]
    targets = [target for _, target in known if target is not None]
    target = sum(targets) / len(targets) if len(targets) == len(known) else None
    return Lengths(sum(counts) / len(counts), min(counts), max(counts), target)


def _templated_extra(good: Sequence[RequestRecord]) -> float | None:
    """Return how many tokens a server's template adds to a prompt on average."""
    extra = [
        r.num_prompt_tokens - r.target_prompt_tokens for r in good if r.num_prompt_tokens and r.target_prompt_tokens
    ]
    return sum(extra) / len(extra) if extra else None


def _mismatch(good: Sequence[RequestRecord]) -> float | None:
    """Return the share of replies whose text re-tokenizes to another count than the server's."""
    both = [r for r in good if r.num_retokenized is not None and r.num_output_tokens is not None]
    return sum(r.num_retokenized != r.num_output_tokens for r in both) / len(both) if both else None


def _with_warnings(summary: Summary, good: Sequence[RequestRecord]) -> Summary:
    return replace(summary, warnings=tuple(_warnings(summary, good)))


def _warnings(summary: Summary, good: Sequence[RequestRecord]) -> Iterable[str]:
    success = summary.success
    if success.num_failed:
        causes = ", ".join(f"{count} {cause}" for cause, count in success.causes.items())
        yield f"{success.rate:.1%} of requests succeeded ({causes}); latencies are over successes alone"
    lengths = summary.output_lengths
    if lengths is not None and lengths.deviation is not None and abs(lengths.deviation) > LENGTH_TOLERANCE:
        yield (
            f"outputs have {lengths.mean:,.1f} tokens on average (min {lengths.minimum:,}, max {lengths.maximum:,}), "
            f"{lengths.target_mean:,.0f} were asked for: the server does not honour ignore_eos or min_tokens"
        )
    if summary.counts_estimated:
        yield f"{summary.counts_estimated} replies carry no token count; theirs are estimated from frames"
    hidden = sum(not metrics.itl_is_measurable(r) for r in good)
    if hidden:
        yield f"{hidden} replies show few of their tokens (hidden reasoning, tool calls); their ITL is not measurable"
    mismatch = summary.retokenized_mismatch
    if mismatch is not None and mismatch > MISMATCH_TOLERANCE:
        yield f"{mismatch:.0%} of texts re-tokenize to another count; the server's counts are used"
    little = summary.little
    if little is not None and little.window_s < 10.0 * little.time_s:
        yield (
            f"too short for a steady state: it lasted {little.window_s / little.time_s:.1f} times as long as a request "
            "(10 are needed)"
        )
    elif little is not None and math.isfinite(little.error) and abs(little.error) > 0.05:
        yield (
            f"not a steady state: {little.in_flight:.1f} requests in flight, λ·W = "
            f"{little.rate_per_s * little.time_s:.1f} (run longer)"
        )
