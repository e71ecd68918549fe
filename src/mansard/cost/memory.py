"""The memory ledger: what every byte of a device is for, before it is rented.

Weights by part and format, activations, runtime, and the KV cache that remains, by the engine's own
convention of its memory fraction; each with a low, a best and a high estimate. `fits` asks three questions:
is there a cache at all, does it hold one request of the wanted length, and does what comes after the cache
(graphs, sampler) still fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mansard.cost.engine_memory import (
    VLLM,
    EngineMemory,
    activation_bytes,
    after_pool_bytes,
    context_bytes,
    default_batched_tokens,
    default_num_seqs,
    runtime_bytes,
    unchunked_batched_tokens,
)
from mansard.cost.formats import PrecisionPlan
from mansard.cost.kv_pool import KvPool, KvSettings, kv_pool, longest_model_len
from mansard.cost.op_cost import Layout
from mansard.cost.parallelism import check_layout, layers_per_stage
from mansard.cost.weights import WeightPart, count_weights
from mansard.specs.hardware import GIB, HardwareSpec
from mansard.specs.model import ModelSpec
from mansard.specs.precision import number_format

VISION_ACTIVATION_BYTES = 0.15 * GIB  # an encoder's profile: logs of three vision models 0.08 to 0.24 GiB above


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its honest interval. Units: bytes."""

    low: float
    best: float
    high: float

    @classmethod
    def around(cls, best: float, below: float, above: float) -> Estimate:
        """Return `best` with an interval from `best - below` to `best + above`."""
        return cls(best - below, best, best + above)

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.low + other.low, self.best + other.best, self.high + other.high)


@dataclass(frozen=True, slots=True)
class Serving:
    """How an engine is started; None takes the engine's default for the hardware."""

    engine: EngineMemory = VLLM
    fraction: float | None = None
    max_model_len: int | None = None
    num_batched_tokens: int | None = None
    num_seqs: int | None = None
    block_size: int | None = None
    graphs: bool = True
    num_nextn_layers: int = 0
    num_draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the bytes of one device go. Units: bytes of one rank.

    `weights` by part; `budget_bytes` is what the engine lets itself use; `kv` what remains for the cache;
    `after_pool` is allocated later, beside the budget. `problems` says why it does not fit, the first limit
    first.
    """

    visible_bytes: float
    fraction: float
    budget_bytes: float
    weights: dict[str, float] = field(hash=False)
    weights_total: Estimate
    activations: Estimate
    runtime: Estimate
    kv: Estimate
    after_pool: Estimate
    context_bytes: float
    pool: KvPool
    max_model_len: int
    longest_model_len: int
    engine: EngineMemory
    problems: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Say whether the engine starts and holds one request of the wanted length."""
        return not self.problems

    @property
    def items(self) -> tuple[tuple[str, Estimate], ...]:
        """Return the ledger's lines; with the unused rest they sum to the visible memory."""
        used = self.weights_total + self.activations + self.runtime + Estimate.around(max(0.0, self.kv.best), 0, 0)
        rest = self.visible_bytes - used.best
        return (
            ("weights", self.weights_total),
            ("activations", self.activations),
            ("runtime", self.runtime),
            ("kv cache", self.kv),
            ("left outside the budget", Estimate.around(rest, 0.0, 0.0)),
        )


def weight_bytes(spec: ModelSpec, plan: PrecisionPlan, layout: Layout | None = None) -> dict[str, float]:
    """Return the bytes of one rank's weights by part, scales included; of the fullest pipeline stage.

    Embedding and head keep the plan's head format; norms and biases are 16 bit (fp32 in an fp32 plan).
    """
    layout = layout or Layout()
    count = count_weights(spec, layout.tensor_parallel).parts
    formats: dict[WeightPart, str] = {
        "embedding": plan.head,
        "head": plan.head,
        "attention": plan.attention,
        "mlp": plan.mlp,
        "experts": plan.experts,
        "router": plan.router,
        "norms": "fp32" if plan.attention == "fp32" else "bf16",
    }
    stage = layers_per_stage(spec, layout.pipeline_parallel) / spec.num_hidden_layers
    sizes = {part: n * number_format(formats[part]).bits_per_weight / 8.0 for part, n in count.items()}
    sizes["experts"] = sizes["experts"] / layout.data_parallel  # experts are never copied over data-parallel ranks
    ends: tuple[WeightPart, ...] = ("embedding", "head")
    if layout.pipeline_parallel == 1:
        return {str(part): size for part, size in sizes.items()}
    fullest = max(ends, key=lambda part: sizes[part])
    return {str(p): s * stage if p not in ends else s if p == fullest else 0.0 for p, s in sizes.items()}


def ledger(
    spec: ModelSpec,
    hardware: HardwareSpec,
    plan: PrecisionPlan | None = None,
    layout: Layout | None = None,
    serving: Serving | None = None,
    other_parameters: int = 0,
) -> Ledger:
    """Return where the memory of one of the layout's devices goes.

    `other_parameters` are loaded beside the language model in 16 bit (a vision tower; see `ModelPreset`).

    Raises: ValueError when the layout is impossible for the model or the fraction is outside (0, 1].
    """
    plan, layout = plan or PrecisionPlan(), layout or Layout()
    check_layout(spec, layout)
    start = resolve_serving(serving or Serving(), spec, hardware)
    weights = weight_bytes(spec, plan, layout) | {"other": 2.0 * other_parameters}
    parts = _estimates(spec, hardware, plan, layout, start, weights)
    total = float(hardware.visible_memory_bytes)
    kv = _kv_estimate(start, total, parts)
    settings = kv_settings(plan, layout, start)
    result = Ledger(
        visible_bytes=total,
        fraction=start.fraction,
        budget_bytes=start.fraction * total,
        weights=weights,
        weights_total=parts[0],
        activations=parts[1],
        runtime=parts[2],
        kv=kv,
        after_pool=_after_pool_estimate(spec, plan, start),
        context_bytes=context_bytes(layout.tensor_parallel),
        pool=kv_pool(spec, kv.best, start.max_model_len, settings),
        max_model_len=start.max_model_len,
        longest_model_len=longest_model_len(spec, max(0.0, kv.best), settings),
        engine=start.engine,
    )
    return replace(result, problems=_problems(result))


@dataclass(frozen=True, slots=True)
class _Start:
    """Serving with every default filled in."""

    engine: EngineMemory
    fraction: float
    max_model_len: int
    num_batched_tokens: int
    num_seqs: int
    block_size: int
    graphs: bool
    num_nextn_layers: int
    num_draft_tokens: int


def resolve_serving(serving: Serving, spec: ModelSpec, hardware: HardwareSpec) -> _Start:
    """Fill in the engine's defaults for this model and hardware.

    Raises: ValueError for a memory fraction outside (0, 1].
    """
    engine = serving.engine
    fraction = engine.default_fraction if serving.fraction is None else serving.fraction
    if not 0.0 < fraction <= 1.0:
        raise ValueError(
            f"memory fraction {fraction} must be above 0 and at most 1 (default {engine.default_fraction})"
        )
    wanted = serving.max_model_len or spec.max_position_embeddings
    tokens = serving.num_batched_tokens or default_batched_tokens(hardware)
    if engine.profiles_whole_prompt and serving.num_batched_tokens is None:
        tokens = unchunked_batched_tokens(wanted)
    return _Start(
        engine=engine,
        fraction=fraction,
        max_model_len=wanted,
        num_batched_tokens=tokens,
        num_seqs=serving.num_seqs or default_num_seqs(hardware),
        block_size=serving.block_size or engine.block_size,
        graphs=serving.graphs,
        num_nextn_layers=serving.num_nextn_layers,
        num_draft_tokens=serving.num_draft_tokens,
    )


def kv_settings(plan: PrecisionPlan, layout: Layout, start: _Start) -> KvSettings:
    """Return how the cache is kept under this plan, layout and start."""
    return KvSettings(
        kv_format=plan.kv,
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        block_size=start.block_size,
        num_batched_tokens=start.num_batched_tokens,
        num_nextn_layers=start.num_nextn_layers,
        num_draft_tokens=start.num_draft_tokens,
    )


def safe_fraction(result: Ledger) -> float:
    """Return the largest memory fraction that leaves room for what is allocated after the cache, by best estimates."""
    free = result.visible_bytes - result.context_bytes - _after_pool(result)
    return max(0.0, free / result.visible_bytes)


def _after_pool(result: Ledger) -> float:
    """Return what must fit beside the budget; with a static fraction activations and libraries too."""
    static = result.engine.fraction_of == "total_static"
    return result.after_pool.best + (result.activations.best + result.runtime.best if static else 0.0)


def _estimates(
    spec: ModelSpec,
    hardware: HardwareSpec,
    plan: PrecisionPlan,
    layout: Layout,
    start: _Start,
    weights: dict[str, float],
) -> tuple[Estimate, Estimate, Estimate]:
    """Return weights, activations and runtime with their intervals.

    Logs of 39 runs: weights +0.0 to +0.7 %, activations within 8 %, runtime 0.2 GiB above for one family.
    """
    stored = sum(weights.values())
    padding = 0.07 if plan.experts == "mxfp4" and spec.moe else 0.015  # kernels pad mxfp4 experts: gpt-oss-20b +6.4 %
    vision = VISION_ACTIVATION_BYTES if weights["other"] else 0.0
    peak = vision + activation_bytes(
        spec,
        start.engine,
        num_batched_tokens=start.num_batched_tokens,
        num_seqs=start.num_seqs,
        tensor_parallel=layout.tensor_parallel,
        expert_format=plan.experts,
    )
    runtime = runtime_bytes(start.engine, hardware.link_between(layout.tensor_parallel), layout.tensor_parallel)
    return (
        Estimate.around(stored, 0.003 * stored, padding * stored),
        Estimate.around(peak, 0.10 * peak, 0.15 * peak + 0.05 * GIB),
        Estimate.around(runtime, 0.10 * runtime, 0.12 * runtime + 0.10 * GIB),
    )


def _after_pool_estimate(spec: ModelSpec, plan: PrecisionPlan, start: _Start) -> Estimate:
    """Return what is allocated once the cache has its budget: graphs and the sampler, known to a quarter."""
    later = after_pool_bytes(
        spec,
        num_batched_tokens=start.num_batched_tokens,
        num_seqs=start.num_seqs,
        expert_format=plan.experts,
        graphs=start.graphs,
    )
    return Estimate.around(later, 0.25 * later, 0.25 * later)


def _kv_estimate(start: _Start, total: float, parts: tuple[Estimate, Estimate, Estimate]) -> Estimate:
    """Return the cache that the engine's convention leaves: least when everything else is largest."""
    weights, other = parts[0], parts[1] + parts[2]
    pool = start.engine.pool_bytes
    return Estimate(
        low=pool(total, weights.high, other.high, start.fraction),
        best=pool(total, weights.best, other.best, start.fraction),
        high=pool(total, weights.low, other.low, start.fraction),
    )


def _problems(result: Ledger) -> tuple[str, ...]:
    """Return why the ledger does not fit, the first limit first."""
    found: list[str] = []
    kv, weights = result.kv.best / GIB, result.weights_total.best
    if weights > result.budget_bytes:
        found.append(
            f"weights need {weights / GIB:.2f} GiB of a budget of {result.budget_bytes / GIB:.2f} GiB per device"
        )
    elif kv <= 0.0:
        found.append(f"nothing is left for the KV cache: {kv:.2f} GiB after weights, activations and runtime")
    elif result.longest_model_len < result.max_model_len:
        found.append(
            f"one request of {result.max_model_len:,} tokens does not fit in {kv:.2f} GiB of KV cache; "
            f"the longest is {result.longest_model_len:,}"
        )
    free = result.visible_bytes - result.context_bytes
    outside = free - (result.budget_bytes if kv > 0.0 else weights)
    later = _after_pool(result)
    if result.engine.allocates_after_pool and kv > 0.0 and later > outside:
        found.append(
            f"{later / GIB:.2f} GiB of graphs and workspace come after the cache, "
            f"{outside / GIB:.2f} GiB are left beside a fraction of {result.fraction:g} "
            f"(at most {safe_fraction(result):.3f} is safe)"
        )
    return tuple(found)
