"""Workload: what requests look like and how they come.

A named workload (chat, code, rag, summarize, agent, reasoning, offline) is a published trace's distribution
of lengths with its source; one's own is written as lengths (`1024/512`) or built from a list. Either an
arrival rate or a concurrency drives it; with neither, the planner finds the most that fits.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from mansard.specs.lengths import LengthDistribution
from mansard.specs.names import normalize_name, resolve_name

REMEDY = "or write lengths as PROMPT/OUTPUT, for example 1024/512"


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests: lengths in tokens, and either `rate_req_s` (open loop) or `concurrency` (closed loop).

    `prefix_reuse` is the share of prompt tokens that an unbounded prefix cache would already hold;
    `shared_prefix_tokens` begin every prompt (a system prompt) and are part of its length. `interarrival_cv`
    is 1 for Poisson arrivals.
    """

    name: str
    input_tokens: LengthDistribution
    output_tokens: LengthDistribution
    rate_req_s: float | None = None
    concurrency: int | None = None
    prefix_reuse: float = 0.0
    shared_prefix_tokens: int = 0
    interarrival_cv: float = 1.0
    source: str = "given"

    def __post_init__(self) -> None:
        """Check the driving numbers.

        Raises: ValueError with the number and its limits.
        """
        if self.rate_req_s is not None and self.concurrency is not None:
            raise ValueError("a workload has a rate or a concurrency, not both (leave one out)")
        if self.rate_req_s is not None and not self.rate_req_s > 0:
            raise ValueError(f"rate {self.rate_req_s} requests/s must be above 0")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency {self.concurrency} must be at least 1")
        if not 0.0 <= self.prefix_reuse < 1.0:
            raise ValueError(f"prefix_reuse {self.prefix_reuse} must be in [0, 1)")
        if not 0 <= self.shared_prefix_tokens <= self.input_tokens.maximum:
            raise ValueError(
                f"shared_prefix_tokens {self.shared_prefix_tokens} must be at most the longest prompt, "
                f"{self.input_tokens.maximum:g}"
            )

    @property
    def mean_input_tokens(self) -> float:
        """Return the mean prompt length in tokens."""
        return self.input_tokens.mean

    @property
    def mean_output_tokens(self) -> float:
        """Return the mean output length in tokens."""
        return self.output_tokens.mean

    @property
    def max_model_len(self) -> int:
        """Return the context that holds the longest prompt and the longest output."""
        return int(self.input_tokens.maximum + self.output_tokens.maximum)

    @property
    def cached_share(self) -> float:
        """Return the share of prompt tokens that need no prefill with an unbounded prefix cache."""
        shared = self.shared_prefix_tokens / self.mean_input_tokens
        return min(max(shared, self.prefix_reuse), 0.999)

    def at_rate(self, rate_req_s: float) -> Workload:
        """Return the same requests arriving at `rate_req_s` requests per second."""
        return replace(self, rate_req_s=rate_req_s, concurrency=None)

    def at_concurrency(self, concurrency: int) -> Workload:
        """Return the same requests, `concurrency` of them at any time."""
        return replace(self, concurrency=concurrency, rate_req_s=None)

    @classmethod
    def from_lengths(cls, prompt: float, output: float, name: str = "given", **settings: Any) -> Workload:
        """Return requests of one prompt and one output length."""
        return cls(name, LengthDistribution.fixed(prompt), LengthDistribution.fixed(output), **settings)

    @classmethod
    def from_requests(cls, lengths: Iterable[tuple[int, int]], name: str = "trace", **settings: Any) -> Workload:
        """Return the workload of a list of (prompt, output) lengths, taken as independent of each other."""
        pairs = list(lengths)
        return cls(
            name,
            LengthDistribution.from_lengths([prompt for prompt, _ in pairs]),
            LengthDistribution.from_lengths([output for _, output in pairs]),
            **settings,
        )


@functools.cache
def workloads() -> Mapping[str, Workload]:
    """Return the named workloads, in the order of their file; rates are left to the caller."""
    return {name: _workload(name, entry) for name, entry in _table().items()}


@functools.cache
def _table() -> Mapping[str, Any]:
    file = resources.files("mansard.specs") / "presets" / "workloads.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _workload(name: str, entry: Mapping[str, Any]) -> Workload:
    return Workload(
        name=name,
        input_tokens=LengthDistribution.from_quantiles(entry["input"]),
        output_tokens=LengthDistribution.from_quantiles(entry["output"]),
        prefix_reuse=entry.get("prefix_reuse", 0.0),
        interarrival_cv=entry.get("interarrival_cv", 1.0),
        source=entry["source"],
    )


def published_rate(name: str) -> float | None:
    """Return the arrival rate of the trace behind a named workload, requests per second, where it has one."""
    rate = _table()[find_workload(name).name].get("rate_req_s")
    return None if rate is None else float(rate)


def find_workload(text: str) -> Workload:
    """Return the workload that `text` means: a name, an alias, or lengths written `PROMPT/OUTPUT`.

    Raises: ValueError with the nearest names when it is neither.
    """
    prompt, slash, output = text.partition("/")
    if slash and prompt.strip().isdigit() and output.strip().isdigit():
        return Workload.from_lengths(int(prompt), int(output), name=text.replace(" ", ""))
    index = {alias: name for name, entry in _table().items() for alias in (normalize_name(name), *entry["aliases"])}
    return workloads()[resolve_name(text, index, "workload", REMEDY)]
