"""Perplexity with a stride, and how far one precision's predictions are from another's.

Windows of `context` tokens begin every `stride` tokens. Each window scores the tokens that no earlier one scored, given
all that stands before them in the window: the first scores all but its first token, the next ones their last `stride`.
PPL = exp(-mean log p). With stride = context the windows are disjoint, and each one's first token goes unscored.

Sources: Hugging Face, "Perplexity of fixed-length models"; KL divergence as in llama.cpp's perplexity tool: the mean
over scored positions of Σ p_ref·(log p_ref - log p).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mansard.bench.scoring import ROWS, Doubles, Floats, Scorer, log_softmax, target_logprobs

Z_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens [start, end) of a text; those from `first` on (a place in the text) are scored."""

    start: int
    end: int
    first: int


@dataclass(frozen=True, slots=True)
class Perplexity:
    """PPL of a text, with the interval that the scatter of its tokens gives. `nll` is the mean, in nats a token."""

    nll: float
    nll_error: float  # standard error of the mean, tokens taken as independent
    num_tokens: int

    @property
    def value(self) -> float:
        """Return exp(nll)."""
        return math.exp(self.nll)

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval."""
        return math.exp(self.nll - Z_95 * self.nll_error), math.exp(self.nll + Z_95 * self.nll_error)


@dataclass(frozen=True, slots=True)
class Divergence:
    """How a candidate's predictions differ from the reference's over the same tokens. Units: nats.

    `kl_p99` is the 99th percentile over positions; `top1_agreement` how often both prefer the same token.
    """

    kl_mean: float
    kl_error: float
    kl_p99: float
    kl_maximum: float
    top1_agreement: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Perplexities of a reference and a candidate over the same tokens, and their divergence.

    `log_ratio_error` is the standard error of log(PPL / PPL_ref) from paired tokens: much smaller than either alone.
    """

    reference: Perplexity
    candidate: Perplexity
    divergence: Divergence
    log_ratio_error: float

    @property
    def increase(self) -> float:
        """Return PPL / PPL_ref - 1."""
        return math.exp(self.candidate.nll - self.reference.nll) - 1.0


def windows(num_tokens: int, context: int, stride: int) -> Iterator[Window]:
    """Yield the windows over a text.

    Raises: ValueError for fewer than two tokens or a stride outside [1, context].
    """
    if num_tokens < 2 or context < 2:
        raise ValueError(f"{num_tokens} tokens with a context of {context}; both must be at least 2")
    if not 1 <= stride <= context:
        raise ValueError(f"stride is {stride}; it must be from 1 to the context, {context}")
    scored = 1
    for start in range(0, num_tokens, stride):
        end = min(start + context, num_tokens)
        first = max(scored, start + 1)
        if first < end:
            yield Window(start, end, first)
        scored = max(scored, end)
        if end == num_tokens:
            return


def perplexity(
    scorer: Scorer,
    token_ids: Sequence[int],
    context: int,
    stride: int,
    on_tokens: Callable[[int], None] = lambda count: None,
) -> Perplexity:
    """Return the perplexity of a text; `on_tokens` hears of each step's scored tokens."""
    parts = []
    for window in windows(len(token_ids), context, stride):
        for logits, targets in _scored_rows(scorer, token_ids, window):
            parts.append(target_logprobs(logits, targets))
            on_tokens(len(targets))
    return _perplexity(np.concatenate(parts))


def compare(
    reference: Scorer,
    candidate: Scorer,
    token_ids: Sequence[int],
    context: int,
    stride: int,
    on_tokens: Callable[[int], None] = lambda count: None,
) -> Comparison:
    """Return how a candidate stands to a reference; both compute every window, the same steps side by side."""
    collected: tuple[list[Doubles], ...] = ([], [], [], [])
    for window in windows(len(token_ids), context, stride):
        pairs = zip(_scored_rows(reference, token_ids, window), _scored_rows(candidate, token_ids, window), strict=True)
        for (expected, targets), (logits, _) in pairs:
            for at in range(0, len(targets), ROWS):
                scored = _compare_rows(expected[at : at + ROWS], logits[at : at + ROWS], targets[at : at + ROWS])
                for parts, values in zip(collected, scored, strict=True):
                    parts.append(values)
            on_tokens(len(targets))
    before, after, divergences, agreed = (np.concatenate(parts) for parts in collected)
    return Comparison(
        _perplexity(before),
        _perplexity(after),
        _divergence(divergences, agreed),
        _standard_error(after - before),
    )


def _scored_rows(scorer: Scorer, token_ids: Sequence[int], window: Window) -> Iterator[tuple[Floats, Sequence[int]]]:
    """Yield the logits that predict scored tokens of a window, with those tokens."""
    start = window.start
    for logits in scorer.logits(token_ids[window.start : window.end]):
        end = start + len(logits)  # row i of the step predicts token start + i + 1
        first, last = max(window.first, start + 1), min(end + 1, window.end)
        if first < last:
            yield logits[first - 1 - start : last - 1 - start], token_ids[first:last]
        start = end


def _compare_rows(
    expected: Floats, logits: Floats, targets: Sequence[int]
) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    reference, candidate = log_softmax(expected), log_softmax(logits)
    rows, ids = np.arange(len(targets)), np.asarray(targets)
    divergence = (np.exp(reference) * (reference - candidate)).sum(axis=1)
    agreed = (reference.argmax(axis=1) == candidate.argmax(axis=1)).astype(np.float64)
    return reference[rows, ids], candidate[rows, ids], divergence, agreed


def _perplexity(logprobs: Doubles) -> Perplexity:
    return Perplexity(float(-logprobs.mean()), _standard_error(logprobs), len(logprobs))


def _divergence(values: Doubles, agreed: Doubles) -> Divergence:
    values = np.maximum(values, 0.0)  # rounding leaves some at -1e-16
    return Divergence(
        float(values.mean()),
        _standard_error(values),
        float(np.percentile(values, 99)),
        float(values.max()),
        float(agreed.mean()),
    )


def _standard_error(values: Doubles) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.inf
