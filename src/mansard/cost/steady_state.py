"""The steady state of serving in closed form: TTFT, TPOT and throughput of a load, from the price of a few steps.

In the steady state of continuous batching every decode step also carries D/OSL of a prompt, D being the sequences that
decode; leaving that out is the largest error a planner can make. TTFT is queueing: a share of a benchmark's requests
arrives together and waits for each other's prompts, the rest meets the prompts already being computed. What no closed
form gets right (bursts, preemption, prefix trees) is the simulator's business.

Sources: interference and its weight, `docs/cost-model.md`; M/D/1 wait, Pollaczek–Khinchine; speculative decoding,
Leviathan et al. (arXiv 2211.17192), eq. 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mansard.cost.roofline import PricedProgram
from mansard.cost.shape import Number, StepShape, largest, smallest

ITERATIONS = 3  # of TPOT → decoding sequences → TPOT; the change after three is below 1 %
MAX_UTILIZATION = 0.9  # of the prompt queue in the M/D/1 wait: a closed loop never diverges


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding: `num_drafts` a step, each accepted with probability `acceptance`.

    `draft_cost` is a draft's time as a share of a step's (0 for n-gram lookup).
    """

    num_drafts: int
    acceptance: float
    draft_cost: float = 0.0

    def tokens_per_step(self) -> float:
        """Return the tokens a step yields in expectation: (1 − a^(k+1)) / (1 − a).

        Source: Leviathan et al. (arXiv 2211.17192), eq. 1.
        """
        if self.acceptance >= 1.0:
            return self.num_drafts + 1.0
        return float((1.0 - self.acceptance ** (self.num_drafts + 1)) / (1.0 - self.acceptance))


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of one replica. Units: tokens, requests in flight; every number may be an array.

    `cached_tokens` of a prompt are found in the prefix cache. `burst_share`: of the requests, how many arrive together
    (None: the engine profile's, that of a closed loop; 0: spread out). `equal_lengths`: all requests are as
    long, so that batches stay in step. `capacity_tokens`: the KV cache's of one data-parallel rank.
    """

    input_tokens: Number
    output_tokens: Number
    concurrency: Number
    cached_tokens: Number = 0.0
    burst_share: float | None = None
    equal_lengths: bool = False
    capacity_tokens: Number | None = None
    speculation: Speculation | None = None
    static: bool = False  # one batch: all prompts first, then all decode


@dataclass(frozen=True, slots=True)
class Service:
    """How a replica serves a load. Units: seconds, tokens per second of the whole replica, requests.

    `itl_s` is a step without a prompt (the median gap between tokens), `tpot_s` the mean with them. `step_flops` and
    `step_bytes` (weights and KV) are a decode step's on one rank, `prompt_flops` a whole prompt's.
    """

    ttft_s: Number
    tpot_s: Number
    itl_s: Number
    prefill_s: Number
    queue_s: Number
    running: Number
    decoding: Number
    output_tokens_per_s: Number
    step_flops: Number
    step_bytes: Number
    prompt_flops: Number
    bound: str

    @property
    def tokens_per_s_per_user(self) -> Number:
        """Return what one user sees: 1 / TPOT."""
        return 1.0 / self.tpot_s


def serve(priced: PricedProgram, load: Load) -> Service:
    """Return how `priced` serves `load` in the steady state (or as one static batch).

    Units: see `Service`. All ranks of the replica are counted; data-parallel ranks share the load evenly.
    """
    if load.static:
        return _serve_static(priced, load)
    engine, layout = priced.profile.engine, priced.layout
    per_rank = load.concurrency / float(layout.data_parallel)
    running = smallest(per_rank, float(engine.max_num_seqs))
    if load.capacity_tokens is not None:
        running = smallest(running, largest(load.capacity_tokens / (load.input_tokens + load.output_tokens), 1.0))
    prompt = largest(load.input_tokens - load.cached_tokens, 1.0)
    chunk = smallest(prompt, float(engine.max_num_batched_tokens))
    num_chunks, start = prompt / chunk, load.cached_tokens + (prompt - chunk) / 2.0
    alone = priced.step(_chunk_shape(chunk, start))
    decoding: Number = running
    fixed = engine.first_token_s
    yielded = load.speculation.tokens_per_step() if load.speculation else 1.0
    for _ in range(ITERATIONS):
        steps = largest(load.output_tokens / yielded, 1.0)
        others = largest(decoding - 1.0, 0.0)  # whose prompts a sequence meets; its own came before
        due = others * num_chunks / steps / float(layout.pipeline_parallel)  # chunks a step, on average
        packed = smallest(largest(due, 1.0), largest(engine.max_num_batched_tokens / chunk, 1.0))
        itl, mixed = _steps(priced, load, decoding, _chunk_shape(chunk, start, packed))
        shared = 1.0 - _burst_share(priced, load) / 2.0  # a burst waits half of its prompts before the first token
        tpot = (itl + shared * due / packed * (mixed - itl)) / yielded
        first = num_chunks * mixed + itl / 2.0 + fixed
        lifetime = load.output_tokens * tpot
        decoding = largest(running * lifetime / (lifetime + first), smallest(running, 1.0))
    queue = _queue(priced, load, running, decoding, num_chunks, chunk, start, ((mixed - itl) / packed, mixed, tpot))
    waiting = (per_rank - running) / running * (first + lifetime)
    if load.equal_lengths and load.burst_share is None:
        waiting = waiting + engine.slot_wait * lifetime / running
    if layout.data_parallel > 1:
        waiting = waiting + engine.data_parallel_wait_steps * itl
    cost = priced.step(_decode_shape(priced, load, decoding))
    ttft = first + queue + waiting
    rate = load.concurrency * load.output_tokens / (ttft + lifetime)
    return Service(
        ttft, tpot, itl, num_chunks * mixed, queue + waiting, running, decoding, rate, cost.flops,
        cost.weight_bytes + cost.kv_bytes, num_chunks * alone.flops, cost.bound,
    )  # fmt: skip


def _serve_static(priced: PricedProgram, load: Load) -> Service:
    """Return how one batch runs when all its prompts are computed first and all sequences decode together."""
    batch = load.concurrency / float(priced.layout.data_parallel)
    prompt = largest(load.input_tokens - load.cached_tokens, 1.0)
    budget = float(priced.profile.engine.max_num_batched_tokens)
    chunk = smallest(prompt, budget)
    prefill = _packed_prefill(priced, prompt, load.cached_tokens, chunk) * batch
    packed = priced.step(_chunk_shape(prompt, load.cached_tokens))
    cost = priced.step(_decode_shape(priced, load, batch))
    yielded = load.speculation.tokens_per_step() if load.speculation else 1.0
    tpot = cost.time_s / yielded
    total = prefill + (load.output_tokens - 1.0) * tpot
    rate = load.concurrency * load.output_tokens / total
    return Service(
        prefill, tpot, cost.time_s, prefill, 0.0 * prefill, batch, batch, rate, cost.flops,
        cost.weight_bytes + cost.kv_bytes, packed.flops, cost.bound,
    )  # fmt: skip


def _decode_shape(priced: PricedProgram, load: Load, decoding: Number) -> StepShape:
    """Return the mean decode step: contexts are halfway through their output; pipeline stages split the batch."""
    drafts = load.speculation.num_drafts if load.speculation else 0
    return StepShape(
        num_decodes=largest(decoding / float(priced.layout.pipeline_parallel), smallest(decoding, 1.0)),
        decode_context=load.input_tokens + load.output_tokens / 2.0,
        decode_tokens=1.0 + drafts,
    )


def _steps(priced: PricedProgram, load: Load, decoding: Number, prompt: StepShape) -> tuple[Number, Number]:
    """Return the time of a decode step without and with the prompt chunks of `prompt` (run in it, or before it)."""
    shape = _decode_shape(priced, load, decoding)
    draft = 1.0 + load.speculation.num_drafts * load.speculation.draft_cost if load.speculation else 1.0
    itl = priced.time(shape) * draft
    if not priced.profile.engine.mixes_prefill:
        return itl, itl + priced.time(prompt)
    mixed = replace(
        shape,
        num_prefills=prompt.num_prefills,
        prefill_tokens=prompt.prefill_tokens,
        prefill_start=prompt.prefill_start,
    )
    return itl, priced.time(mixed) * draft


def _chunk_shape(chunk: Number, start: Number, count: Number = 1.0) -> StepShape:
    return StepShape(num_prefills=count + 0.0 * chunk, prefill_tokens=chunk, prefill_start=start)


def _packed_prefill(priced: PricedProgram, prompt: Number, start: Number, chunk: Number) -> Number:
    """Return the time of one prompt when prompts are packed into steps of the whole token budget."""
    packed = largest(priced.profile.engine.max_num_batched_tokens / chunk, 1.0)
    step = StepShape(num_prefills=packed, prefill_tokens=chunk, prefill_start=start)
    return priced.time(step) / packed * (prompt / chunk)


def _queue(
    priced: PricedProgram,
    load: Load,
    running: Number,
    decoding: Number,
    num_chunks: Number,
    chunk: Number,
    start: Number,
    steps: tuple[Number, Number, Number],
) -> Number:
    """Return the mean wait for other prompts: the burst's, and the M/D/1 wait of those spread out."""
    added, mixed, tpot = steps
    share = _burst_share(priced, load)
    packed = _packed_prefill(priced, chunk * num_chunks, start, chunk)
    together = smallest(running, largest(priced.profile.engine.max_num_batched_tokens / chunk, 1.0))
    burst = (running + together - 2.0) / 2.0 * packed  # prompts of one step yield their first token together
    service = num_chunks * largest(added, 0.0)
    busy = smallest(decoding * service / (load.output_tokens * tpot), MAX_UTILIZATION)
    spread = smallest(busy / (2.0 * (1.0 - busy)) * num_chunks * mixed, largest(burst, 0.0))
    return share * largest(burst, 0.0) + (1.0 - share) * spread


def _burst_share(priced: PricedProgram, load: Load) -> float:
    engine = priced.profile.engine
    if load.burst_share is not None:
        return load.burst_share
    return engine.lockstep_share if load.equal_lengths else engine.burst_share
