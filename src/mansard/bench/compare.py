"""Comparing two results: metric by metric, with intervals, and only where the two did the same.

Two runs compare when they asked the same load, succeeded equally often and produced outputs of the same length; an
overloaded server that rejects is otherwise the faster one. A difference counts when the intervals do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mansard.bench.statistics import Estimate

SUCCESS_TOLERANCE = 0.01
LENGTH_TOLERANCE = 0.02
IGNORED = frozenset({"nonce", "source"})  # of a workload: differs by design, or says nothing of the load
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
RATES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")

Verdict = Literal["better", "worse", "same within noise", "unknown"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric in both runs; `ratio` is after / before."""

    metric: str
    before: Estimate
    after: Estimate
    verdict: Verdict

    @property
    def ratio(self) -> float:
        """Return after / before."""
        return self.after.value / self.before.value if self.before.value else float("inf")


def why_not(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the reasons for which two results cannot be compared; none when they can."""
    reasons = []
    if before["kind"] != after["kind"]:
        reasons.append(f"one is of `bench {before['kind']}`, the other of `bench {after['kind']}`")
    ours, theirs = before["workload"], after["workload"]
    for key in sorted((set(ours) | set(theirs)) - IGNORED):
        if ours.get(key) != theirs.get(key):
            reasons.append(f"workloads differ in {key}: {ours.get(key)!r} and {theirs.get(key)!r}")
    if before.get("summary") and after.get("summary"):
        reasons += _outcomes(before["summary"], after["summary"])
    return reasons


def _outcomes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    rates = [s["success"]["rate"] or 0.0 for s in (before, after)]
    if abs(rates[0] - rates[1]) > SUCCESS_TOLERANCE:
        yield f"success rates differ: {rates[0]:.1%} and {rates[1]:.1%}; failures make the others look fast"
    means = [float((s["output_lengths"] or {}).get("mean") or 0.0) for s in (before, after)]
    if all(means) and abs(means[1] / means[0] - 1.0) > LENGTH_TOLERANCE:
        yield f"outputs differ in length: {means[0]:,.1f} and {means[1]:,.1f} tokens on average"


def compare_results(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Return every metric that both results have, `before` against `after`.

    Raises: ValueError with all reasons when the two cannot be compared.
    """
    if reasons := why_not(before, after):
        raise ValueError("these runs cannot be compared: " + "; ".join(reasons))
    if not before.get("summary") or not after.get("summary"):
        raise ValueError("these results have no summary to compare (compare runs of `bench serve`)")
    return [*_latencies(before["summary"], after["summary"]), *_rates(before["summary"], after["summary"])]


def _latencies(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    for name in LATENCIES:
        ours, theirs = before["latencies"].get(name), after["latencies"].get(name)
        if not ours or not theirs:
            continue
        yield _difference(f"{name.removesuffix('_s')} mean", ours["mean"], theirs["mean"])
        for q in (q for q in ours["percentiles"] if q in theirs["percentiles"]):
            yield _difference(f"{name.removesuffix('_s')} {q}", ours["percentiles"][q], theirs["percentiles"][q])


def _difference(metric: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference:
    ours, theirs = Estimate(**before), Estimate(**after)
    overlap = ours.overlaps(theirs)
    if overlap is None:
        verdict: Verdict = "unknown"
    elif overlap:
        verdict = "same within noise"
    else:
        verdict = "better" if theirs.value < ours.value else "worse"
    return Difference(metric, ours, theirs, verdict)


def _rates(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """Rates are one number a run: no interval, no verdict."""
    for name in RATES:
        yield Difference(name, Estimate(before[name]), Estimate(after[name]), "unknown")
