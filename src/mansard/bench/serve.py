"""bench_serve: a load against a running OpenAI-compatible server, from its first question to the result.

Around the load itself: who is there (/v1/models), the server's counters before and after, the client's own cost, and
what in all this a reader should distrust.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mansard.bench.energy import meter_for
from mansard.bench.environment import environment
from mansard.bench.http_client import Address, HttpClient
from mansard.bench.load import LoadPlan, run_load
from mansard.bench.metrics import SingleToken, output_tokens
from mansard.bench.openai_sender import AskOptions, OpenAiSender
from mansard.bench.prompts import TextTokenizer
from mansard.bench.records import RequestRecord
from mansard.bench.result import BenchResult
from mansard.bench.server_counters import parse_exposition, preemptions, prefix_hits, unexpected_hits
from mansard.bench.summary import Summary, summarize
from mansard.specs.slo import Slo

BUSY_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class ServeRun:
    """A load and how to judge it. `workload` describes the load for the result; `num_shared_tokens` begin
    every prompt on purpose.
    """

    url: str
    plan: LoadPlan
    ask: AskOptions
    workload: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    slo: Slo | None = None
    single_token: SingleToken = "passes"
    num_shared_tokens: int = 0
    verify_tls: bool = True


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself: the models it answers to, and the context of the first, where it tells."""

    models: tuple[str, ...]
    max_model_len: int | None


async def ask_server(url: str, headers: Mapping[str, str] | None = None, *, verify_tls: bool = True) -> ServerInfo:
    """Return what `/v1/models` lists.

    Raises: ValueError when nothing answers there.
    """
    client = HttpClient(Address.parse(url), headers, verify=verify_tls)
    try:
        status, body = await client.fetch("/v1/models")
        if status != 200:
            raise ValueError(f"{url}/v1/models answers {status}: {body[:200].decode('utf-8', 'replace')}")
        cards = json.loads(body)["data"]
        length = cards[0].get("max_model_len") if cards else None
        return ServerInfo(tuple(str(card["id"]) for card in cards), length if isinstance(length, int) else None)
    except (OSError, TimeoutError) as error:
        raise ValueError(f"no server answers at {url} ({error or type(error).__name__}); is it running?") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{url}/v1/models does not list models; is this an OpenAI-compatible server?") from error
    finally:
        client.close()


async def bench_serve(
    run: ServeRun,
    on_record: Callable[[RequestRecord], None] = lambda record: None,
    tokenizer: TextTokenizer | None = None,
) -> BenchResult:
    """Run a load and return its result; Ctrl-C ends the load and keeps what is there.

    `tokenizer`: counts the replies' texts again, as a diagnostic. Raises: ValueError when nothing was measured.
    """
    client = HttpClient(Address.parse(run.url), run.headers, verify=run.verify_tls)
    try:
        before = await _counters(client)
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        with _stop_on_interrupt() as stop, meter_for(Address.parse(run.url).host) as meter:
            records = await run_load(run.plan, OpenAiSender(client, run.ask, tokenizer), on_record, stop)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        after = await _counters(client)
    finally:
        client.close()
    summary = summarize(records, run.slo, run.single_token)
    hits = prefix_hits(before, after, records)
    extra = {
        "prefix_cache": None if hits is None else {**asdict(hits), "rate": hits.rate},
        "preemptions": preemptions(before, after),
        "client": {"cpu_share": cpu_s / wall_s, "cpu_s_per_request": cpu_s / max(1, len(records))},
        "energy": meter.energy.to_dict(sum(output_tokens(r) for r in records)),
        "interrupted": stop.is_set(),
    }
    warnings = [*summary.warnings]
    if (warning := unexpected_hits(hits, _shared_share(run, summary))) is not None:
        warnings.append(warning)
    warnings += _client_warnings(cpu_s / wall_s, summary, run.plan, stop.is_set())
    target = {"url": run.url, "model": run.ask.model, "api": run.ask.api}
    return BenchResult("serve", environment(), target, run.workload, summary, tuple(warnings), extra, records)


def _shared_share(run: ServeRun, summary: Summary) -> float:
    """Return the share of prompt tokens that requests have in common: prefix, trace blocks, the server's template."""
    lengths = summary.prompt_lengths
    if lengths is None or not lengths.mean:
        return 0.0
    blocks = float(run.workload.get("shared_block_share") or 0.0)
    return min(1.0, blocks + (run.num_shared_tokens + max(0.0, summary.templated_extra_tokens or 0.0)) / lengths.mean)


def _client_warnings(cpu_share: float, summary: Summary, plan: LoadPlan, interrupted: bool) -> Iterator[str]:
    if cpu_share > BUSY_SHARE:
        yield f"the client used {cpu_share:.0%} of a core: its own times may be in the results (use several clients)"
    delay = summary.latencies.get("queue_delay_s")
    if plan.is_open_loop and plan.max_concurrency is not None and delay is not None and delay.maximum > 0.05:
        yield (
            f"requests waited in the client for up to {delay.maximum:.2f} s, as only {plan.max_concurrency} may run; "
            "latencies count that wait (ttft_from_send_s and e2e_from_send_s do not)"
        )
    if interrupted:
        yield "the run was interrupted; requests under way count as cancelled"


async def _counters(client: HttpClient) -> dict[str, float]:
    """Return a server's counters; none when it has no /metrics."""
    try:
        status, body = await client.fetch("/metrics", 5.0)
    except (OSError, TimeoutError, ValueError):
        return {}
    return parse_exposition(body.decode("utf-8", "replace")) if status == 200 else {}


@contextlib.contextmanager
def _stop_on_interrupt() -> Iterator[asyncio.Event]:
    """Let the first Ctrl-C set an event instead of ending the process; the second one ends it."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def interrupt() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
        has_handler = True
    except (NotImplementedError, ValueError, RuntimeError):  # Windows, or not the main thread
        has_handler = False
    try:
        yield stop
    finally:
        if has_handler:
            loop.remove_signal_handler(signal.SIGINT)
