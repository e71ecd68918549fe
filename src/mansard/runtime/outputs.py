"""What generation answers: deltas while a sequence grows, and whole outputs when it has ended."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.core.types import FinishReason, TokenLogprobs


@dataclass(frozen=True, slots=True)
class SequenceDelta:
    """What one step added to one sequence of a request.

    `text` may be empty while a character or a possible stop string is incomplete; it is never taken back.
    `stop_reason` is the stop string or stop token that ended the sequence; None for EOS. Times are the
    engine's clock's: `time_s` when the step was done, `queued_s` how long the request waited before its first
    step.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    num_output_tokens: int  # so far, this delta's included
    num_cached_tokens: int
    time_s: float
    queued_s: float
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    last: bool = False  # no delta of this request follows


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One finished sequence of a request."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """How long a request took; see the metrics glossary. Units: seconds.

    TTFT: arrival to first token. TPOT: (last token - first token) / (tokens - 1) of the longest sequence;
    None with a single token. Queue time: arrival to the first step.
    """

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    queue_s: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int  # of all sequences together


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request: its prompt and its n continuations.

    `prompt_logprobs[0]` belongs to the second token of the prompt.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    metrics: RequestMetrics
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None


class OutputBuilder:
    """Joins the deltas of one request into its RequestOutput."""

    def __init__(
        self, request_id: str, prompt: str | None, prompt_token_ids: tuple[int, ...], arrival_s: float
    ) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._arrival_s = arrival_s
        self._deltas: dict[int, list[SequenceDelta]] = {}

    def add(self, delta: SequenceDelta) -> None:
        """Take in one delta."""
        self._deltas.setdefault(delta.index, []).append(delta)

    def build(self) -> RequestOutput:
        """Return the whole; every sequence must have ended."""
        sequences = [self._deltas[i] for i in sorted(self._deltas)]
        first = sequences[0]
        scored = tuple(entry for d in first for entry in d.prompt_logprobs)
        return RequestOutput(
            self._request_id,
            self._prompt,
            self._prompt_token_ids,
            tuple(_completion(deltas) for deltas in sequences),
            self._metrics(sequences),
            scored or None,
        )

    def _metrics(self, sequences: list[list[SequenceDelta]]) -> RequestMetrics:
        producing = [[d for d in deltas if d.token_ids] for deltas in sequences]
        firsts = [deltas[0].time_s for deltas in producing if deltas]
        longest = max(producing, key=lambda deltas: sum(len(d.token_ids) for d in deltas))
        num_after_first = sum(len(d.token_ids) for d in longest) - 1
        tpot_s = (longest[-1].time_s - longest[0].time_s) / num_after_first if num_after_first > 0 else None
        return RequestMetrics(
            ttft_s=min(firsts) - self._arrival_s if firsts else None,
            tpot_s=tpot_s,
            e2e_s=max(deltas[-1].time_s for deltas in sequences) - self._arrival_s,
            queue_s=sequences[0][0].queued_s,
            num_prompt_tokens=len(self._prompt_token_ids),
            num_cached_tokens=sequences[0][-1].num_cached_tokens,
            num_output_tokens=sum(deltas[-1].num_output_tokens for deltas in sequences),
        )


def _completion(deltas: list[SequenceDelta]) -> CompletionOutput:
    last = deltas[-1]
    assert last.finish_reason is not None
    return CompletionOutput(
        index=last.index,
        text="".join(d.text for d in deltas),
        token_ids=tuple(t for d in deltas for t in d.token_ids),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        logprobs=tuple(entry for d in deltas for entry in d.logprobs) or None,
        error=last.error,
    )
