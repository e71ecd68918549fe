"""What a precision costs in quality: perplexity, divergence, memory and speed over a grid of formats.

Each variant is a model file with a KV format and an activation format. The reference is one of them, by default the
first file with an unquantized float32 cache and float32 activations: what its weights say when nothing else rounds.
Variants are loaded one after the other beside the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.bench.engine_run import run_batch
from mansard.bench.perplexity import Comparison, Perplexity, compare, perplexity
from mansard.bench.scoring import Scorer
from mansard.runtime.model import EngineOptions, LoadedModel, load

REFERENCE_KV, REFERENCE_ACTIVATIONS = "f32", "float32"
SPEED_PROMPT, SPEED_OUTPUT = 64, 32


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a model."""

    model: str
    kv: str
    activations: str

    @property
    def name(self) -> str:
        """Return how tables call it."""
        return f"{self.model} · kv {self.kv} · activations {self.activations}"


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """What is measured. `speeds`: batch sizes to decode with for tokens per second; none: no speed."""

    context: int = 1024
    stride: int = 512
    num_threads: int | None = None
    speeds: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One variant's row; `comparison` is None for the reference. Units: bytes, tokens per second by batch size."""

    variant: Variant
    perplexity: Perplexity
    comparison: Comparison | None
    weight_bytes: int
    kv_bytes_per_token: float
    tokens_per_s: dict[int, float]

    @property
    def increase(self) -> float:
        """Return PPL / reference's - 1; 0 for the reference."""
        return 0.0 if self.comparison is None else self.comparison.increase


def variants(models: Sequence[str], kvs: Sequence[str], activations: Sequence[str]) -> list[Variant]:
    """Return every combination, models outermost."""
    return [Variant(m, kv, a) for m in models for a in activations for kv in kvs]


def reference_of(model: str) -> Variant:
    """Return the variant that everything is held against."""
    return Variant(model, REFERENCE_KV, REFERENCE_ACTIVATIONS)


def evaluate(
    chosen: Sequence[Variant],
    reference: Variant,
    text: str,
    settings: EvalSettings,
    max_tokens: int | None = None,
    on_tokens: Callable[[int], None] = lambda count: None,
) -> Iterator[Evaluation]:
    """Yield the reference's row, then one for each variant.

    Raises: ValueError when a variant's vocabulary is another than the reference's, or a format is unknown.
    """
    base = load_variant(reference, settings)
    ids = base.tokenizer.encode(text, False)[:max_tokens]
    scorer = scorer_of(base, settings)
    measured = perplexity(scorer, ids, settings.context, settings.stride, on_tokens)
    yield _row(reference, base, measured, None, settings)
    for variant in chosen:
        if variant == reference:
            continue
        model = load_variant(variant, settings)
        if model.tokenizer.encode(text[:2000], False) != base.tokenizer.encode(text[:2000], False):
            raise ValueError(f"{variant.model} and {reference.model} tokenize differently; compare models of one kind")
        found = compare(scorer, scorer_of(model, settings), ids, settings.context, settings.stride, on_tokens)
        yield _row(variant, model, found.candidate, found, settings)


def scorer_of(model: LoadedModel, settings: EvalSettings) -> Scorer:
    """Return what scores with a loaded model."""
    executor: Any = model.executor
    return Scorer(
        executor, model.num_blocks, model.block_size, _options("auto", "int8", settings).max_num_batched_tokens
    )


def _options(kv: str, activations: str, settings: EvalSettings) -> EngineOptions:
    most = max(settings.speeds, default=1)
    room = max(settings.context, most * (SPEED_PROMPT + SPEED_OUTPUT + 16))
    return EngineOptions(
        kv_dtype=kv,
        activations=activations,  # type: ignore[arg-type]
        max_model_len=max(settings.context, SPEED_PROMPT + SPEED_OUTPUT),
        num_blocks=-(-room // 16) + most,
        num_threads=settings.num_threads,
        max_num_seqs=max(1, most),
        enable_prefix_caching=False,
    )


def load_variant(variant: Variant, settings: EvalSettings) -> LoadedModel:
    """Load a variant with the cache and the limits that scoring needs."""
    return load(variant.model, _options(variant.kv, variant.activations, settings))


def _row(
    variant: Variant, model: LoadedModel, found: Perplexity, comparison: Comparison | None, settings: EvalSettings
) -> Evaluation:
    executor: Any = model.executor
    options = _options(variant.kv, variant.activations, settings)
    speeds = {}
    for batch in settings.speeds:
        run = run_batch(model, options, batch, SPEED_PROMPT, SPEED_OUTPUT, nonce=batch)
        steps = run.decode_steps
        speeds[batch] = batch * len(steps) / sum(s.time_s for s in steps) if steps else 0.0
    per_token = executor.kv_bytes / (model.num_blocks * model.block_size)
    return Evaluation(variant, found, comparison, executor.weight_bytes, per_token, speeds)
