"""A server's own counters before and after a run: what its prefix cache did, under any of the names in use.

The client cannot see a cache hit, only a suspiciously fast prefill; the server's counters say it. Where they are not to
be had, `usage.prompt_tokens_details.cached_tokens` of the answers serves. Format: Prometheus text exposition 0.0.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mansard.bench.records import RequestRecord

QUERY_NAMES = ("mansard:prefix_cache_queries", "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries")
HIT_NAMES = ("mansard:prefix_cache_hits", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits")
SGLANG_PROMPT, SGLANG_CACHED = "sglang:prompt_tokens", "sglang:cached_tokens"
PREEMPTION_NAMES = ("mansard:num_preemptions", "vllm:num_preemptions")
WARN_AT = 0.01

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)")


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """Prompt tokens looked up and found in the cache during a run, and who says so."""

    num_query_tokens: float
    num_hit_tokens: float
    source: str

    @property
    def rate(self) -> float:
        """Return the share that was found."""
        return self.num_hit_tokens / self.num_query_tokens if self.num_query_tokens else 0.0


def parse_exposition(text: str) -> dict[str, float]:
    """Return each metric's value, summed over its labels, without a counter's `_total`."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        found = None if line.startswith("#") else _SAMPLE.match(line)
        if found is None:
            continue
        try:
            value = float(found[2])
        except ValueError:
            continue
        name = found[1].removesuffix("_total")
        values[name] = values.get(name, 0.0) + value
    return values


def prefix_hits(
    before: Mapping[str, float], after: Mapping[str, float], records: Iterable[RequestRecord] = ()
) -> PrefixHits | None:
    """Return what the cache did between two readings, or what the answers say of it; None when nobody says.

    A counter that fell means that the server was restarted; then only the answers count.
    """
    pairs = [*zip(QUERY_NAMES, HIT_NAMES, strict=True), (SGLANG_PROMPT, SGLANG_CACHED)]
    for queries, hits in pairs:
        if queries in after and hits in after:
            num_queries = after[queries] - before.get(queries, 0.0)
            num_hits = after[hits] - before.get(hits, 0.0)
            if num_queries > 0 and num_hits >= 0:
                return PrefixHits(num_queries, num_hits, f"{hits} of the server")
    told = [r for r in records if r.num_cached_tokens is not None and r.num_prompt_tokens]
    if not told:
        return None
    queried = float(sum(r.num_prompt_tokens or 0 for r in told))
    return PrefixHits(queried, float(sum(r.num_cached_tokens or 0 for r in told)), "usage of the answers")


def preemptions(before: Mapping[str, float], after: Mapping[str, float]) -> int | None:
    """Return how many sequences lost their blocks during the run; None when the server does not say."""
    for name in PREEMPTION_NAMES:
        if name in after:
            return round(after[name] - before.get(name, 0.0))
    return None


def unexpected_hits(hits: PrefixHits | None, expected_rate: float) -> str | None:
    """Return a warning when the cache found more than the workload shares; the run then measured a warm cache."""
    if hits is None or hits.rate < expected_rate + WARN_AT:
        return None
    return (
        f"prefix cache: {hits.rate:.1%} of prompt tokens were found, {expected_rate:.1%} are shared by the workload; "
        "the run measured a warm cache (use a fresh nonce, or reset the cache)"
    )
