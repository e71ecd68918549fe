"""Prometheus metrics of a server, named as vLLM's `vllm:` counterparts with the prefix `mansard:`.

Latencies are observed in the engine's thread as each step's deltas leave it; gauges and counters that the
engine keeps anyway are read when Prometheus asks. ITL here is the gap between two deltas of a sequence,
shared among the tokens of the later one; TPOT is (last token - first token) / (tokens - 1) of a sequence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mansard.core.engine import EngineStats
from mansard.runtime.outputs import SequenceDelta

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TOKEN_BUCKETS_S = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
REQUEST_BUCKETS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0),
)
COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)

GAUGES: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "num_requests_running": ("Sequences that run.", lambda s: s.num_running),
    "num_requests_waiting": ("Sequences that wait.", lambda s: s.num_waiting),
    "kv_cache_usage_perc": ("Share of KV blocks in use; 1 is all.", lambda s: s.kv_cache_usage),
}
COUNTERS: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "num_preemptions": ("Sequences whose blocks were taken.", lambda s: s.num_preemptions),
    "prefix_cache_queries": ("Prompt tokens looked up in the cache.", lambda s: s.num_prefix_query_tokens),
    "prefix_cache_hits": ("Prompt tokens found in the cache.", lambda s: s.num_prefix_hit_tokens),
    "engine_steps": ("Steps run.", lambda s: s.num_steps),
    "computed_tokens": ("Tokens computed, recomputed ones included.", lambda s: s.num_computed_tokens),
}


@dataclass(slots=True)
class _Times:
    """When a sequence's tokens came, in the engine's seconds."""

    arrival_s: float
    num_prompt_tokens: int
    first_s: float | None = None
    last_s: float = 0.0


class Metrics:
    """A server's metrics for one model, in a registry of their own."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._model_name = model_name
        self._lock = threading.Lock()
        self._arrivals: dict[str, tuple[float, int]] = {}
        self._times: dict[tuple[str, int], _Times] = {}
        self._registry.register(_EngineCollector(model_name, stats))
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", REQUEST_BUCKETS_S)
        self._itl = self._histogram("inter_token_latency_seconds", "Gap before each later token.", TOKEN_BUCKETS_S)
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds", "Mean gap of a sequence.", TOKEN_BUCKETS_S
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to end.", REQUEST_BUCKETS_S)
        self._queue = self._histogram("request_queue_time_seconds", "Arrival to the first step.", REQUEST_BUCKETS_S)
        self._prompt_length = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", COUNT_BUCKETS)
        self._output_length = self._histogram(
            "request_generation_tokens", "Output tokens of a sequence.", COUNT_BUCKETS
        )
        self._step_time = self._histogram("step_time_seconds", "One step of the engine.", TOKEN_BUCKETS_S)
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that ran.")
        self._output_tokens = self._counter("generation_tokens", "Output tokens.")
        self._ended = Counter(
            "mansard:request_success",
            "Sequences ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )

    def arrived(self, request_id: str, arrival_s: float, num_prompt_tokens: int) -> None:
        """Note a request before it is submitted (any thread)."""
        with self._lock:
            self._arrivals[request_id] = (arrival_s, num_prompt_tokens)

    def observe(self, deltas: Sequence[SequenceDelta]) -> None:
        """Take in a step's deltas (engine's thread)."""
        for delta in deltas:
            self._observe(delta)

    def observe_step(self, seconds: float) -> None:
        """Take in how long a step took, scheduling included (engine's thread)."""
        self._step_time.observe(seconds)

    def exposition(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return generate_latest(self._registry)

    def _observe(self, delta: SequenceDelta) -> None:
        key = (delta.request_id, delta.index)
        times = self._times.get(key)
        if times is None:
            arrival = self._arrivals.get(delta.request_id)
            if arrival is None:
                return
            times = self._times[key] = _Times(*arrival)
        if delta.token_ids:
            self._observe_tokens(delta, times)
        if delta.finish_reason is not None:
            self._observe_end(delta, times)
            del self._times[key]
        if delta.last:
            with self._lock:
                self._arrivals.pop(delta.request_id, None)

    def _observe_tokens(self, delta: SequenceDelta, times: _Times) -> None:
        count = len(delta.token_ids)
        self._output_tokens.inc(count)
        if times.first_s is None:
            times.first_s = delta.time_s
            self._ttft.observe(delta.time_s - times.arrival_s)
            self._queue.observe(delta.queued_s)
            if delta.index == 0:
                self._prompt_tokens.inc(times.num_prompt_tokens)
                self._prompt_length.observe(times.num_prompt_tokens)
        else:
            for _ in range(count):
                self._itl.observe((delta.time_s - times.last_s) / count)
        times.last_s = delta.time_s

    def _observe_end(self, delta: SequenceDelta, times: _Times) -> None:
        self._ended.labels(self._model_name, str(delta.finish_reason)).inc()
        if times.first_s is None:
            return
        self._e2e.observe(times.last_s - times.arrival_s)
        self._output_length.observe(delta.num_output_tokens)
        if delta.num_output_tokens > 1:
            self._tpot.observe((times.last_s - times.first_s) / (delta.num_output_tokens - 1))

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        full = f"mansard:{name}"
        metric = Histogram(full, text, ["model_name"], buckets=buckets, registry=self._registry)
        return metric.labels(self._model_name)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"mansard:{name}", text, ["model_name"], registry=self._registry).labels(self._model_name)


class _EngineCollector(Collector):
    """Reads the engine's own gauges and counters when they are asked for."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        self._model_name = model_name
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        labels = ["model_name"]
        for name, (text, read) in GAUGES.items():
            gauge = GaugeMetricFamily(f"mansard:{name}", text, labels=labels)
            gauge.add_metric([self._model_name], read(stats))
            yield gauge
        for name, (text, read) in COUNTERS.items():
            counter = CounterMetricFamily(f"mansard:{name}", text, labels=labels)
            counter.add_metric([self._model_name], read(stats))
            yield counter
