"""The words of the control plane: what a request is, what a step is asked to do and what it answers.

Everything but `Sequence` is frozen. A `StepPlan` is pure data, so a run can be recorded and replayed; an executor
keeps no state per sequence beyond the KV blocks that plans name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, Protocol


class FinishReason(StrEnum):
    """Why a sequence ended; every sequence ends exactly once with one of these."""

    STOP = "stop"  # EOS, a stop token or a stop string
    LENGTH = "length"  # max_tokens or the context length
    ABORT = "abort"  # the caller went away
    ERROR = "error"  # the model's output was not finite, or the executor failed


class SequenceStatus(StrEnum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Structure:
    """The language that an output must belong to, as data; `kind` says what `text` is: a JSON schema, a regular
    expression, or a grammar in Lark's notation.
    """

    kind: Literal["json_schema", "regex", "lark"]
    text: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens and when to stop; names and defaults are vLLM's.

    `max_tokens=None` means what is left of the context. `temperature=0` is greedy and ignores top_k, top_p, min_p.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0 or -1: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None  # alternatives beside the sampled token; 0: the sampled token's alone
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    n: int = 1
    structure: Structure | None = None  # tokens that would leave it are forbidden


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue; `params.n` sequences come of it.

    `seed` in params, or else `default_seed`, keys the random numbers: (seed, sequence index, position) → one number.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams = SamplingParams()
    arrival_s: float = 0.0
    cache_salt: str | None = None
    priority: int = 0  # lower runs first
    default_seed: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """One continuation of a request. Law: 0 ≤ num_computed_tokens ≤ len(token_ids).

    token_ids: prompt and output, all known; the first num_computed_tokens of them have KV in `block_ids`.
    """

    request: Request
    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    draft_token_ids: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0  # prompt tokens taken from the prefix cache at first admission
    num_preemptions: int = 0
    first_scheduled_s: float | None = None  # when it first left the waiting queue
    id: str = field(init=False)  # unique among all: the request's id and the index in it
    # Kept by the scheduler and the block manager:
    rank: tuple[int, int] = (0, 0)  # (priority, order of arrival): lower runs first, highest is preempted first
    max_length: int = 0  # known tokens at which it ends with LENGTH
    block_table: tuple[int, ...] | None = None  # block_ids as plans carry it; None: to be rebuilt
    block_hashes: list[bytes] = field(default_factory=list)  # of its leading full blocks, as far as computed
    num_registered_blocks: int = 0  # leading blocks that are in the prefix cache
    num_prompt_logprobs: int = 0  # prompt log-probabilities handed out so far

    def __post_init__(self) -> None:
        self.id = f"{self.request.id}/{self.index}"

    @property
    def num_prompt_tokens(self) -> int:
        """Return the prompt's length."""
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Return how many tokens were generated so far."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """One sequence's part of a step: compute `token_ids` at positions start, start + 1, … .

    `block_ids` is the whole block table, covering start + len(token_ids) tokens. Logits are wanted for the last
    `num_logits` of the tokens: 0 while a prompt is being filled, 1 to sample, 1 + drafts to verify. `token_ids` ends
    with the drafts. `request`, `index` and `history` (all known tokens, a live view) are what the sampler needs.
    """

    sequence_id: str
    start: int
    token_ids: tuple[int, ...]
    block_ids: tuple[int, ...]
    num_logits: int
    request: Request = field(compare=False, repr=False)
    index: int = field(default=0, compare=False, repr=False)
    history: list[int] = field(default_factory=list, compare=False, repr=False)

    @property
    def num_draft_tokens(self) -> int:
        """Return how many of the tokens are unverified drafts."""
        return max(0, self.num_logits - 1)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step runs: the copies of blocks first (copy-on-write), then all sequences together."""

    sequences: tuple[ScheduledSequence, ...]
    block_copies: tuple[tuple[int, int], ...] = ()  # (source block, destination block)

    @property
    def num_tokens(self) -> int:
        """Return how many tokens the step computes."""
        return sum(len(s.token_ids) for s in self.sequences)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of one token, its rank (1 = most likely) and the most likely alternatives, best first."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """What a step answers for one sequence: 0 … k + 1 sampled tokens, with log-probabilities when asked.

    `prompt_logprobs` has an entry for each prompt token in this step's range but the first of the prompt: entry j
    scores the token at position start + 1 + j given those before. `error` says why the sequence cannot go on.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answers in the plan's order, and how long the step took in the executor's own time."""

    sequences: tuple[SequenceResult, ...]
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """What a step added to one sequence; the last one of a sequence carries its finish reason.

    `sequence` is the live object: read counts from it before the next step.
    """

    sequence: Sequence = field(repr=False)
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def sequence_id(self) -> str:
        """Return the sequence's id."""
        return self.sequence.id

    @property
    def request_id(self) -> str:
        """Return the id of the request it belongs to."""
        return self.sequence.request.id

    @property
    def index(self) -> int:
        """Return which of the request's n sequences it is."""
        return self.sequence.index

    @property
    def num_cached_tokens(self) -> int:
        """Return how many prompt tokens came from the prefix cache."""
        return self.sequence.num_cached_tokens


class Executor(Protocol):
    """Makes time pass: computes a plan (or moves a virtual clock) and answers with sampled tokens."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run `plan`; KV of `plan`'s tokens is in their blocks afterwards."""
        ...


class Clock(Protocol):
    """Tells the time in seconds; monotone."""

    def now(self) -> float:
        """Return the current time in seconds since an arbitrary start."""
        ...
