"""PlannedRequest: what a workload asks for, with the length that nature would choose, and its placeholder tokens.

Only lengths (and which prefixes are equal) matter to a simulation, so a prompt is a few runs of one token id each. An
id stands for a text: requests whose texts are unrelated use different ids, those that share a prefix begin with the
same runs, and so the block manager finds exactly the hits that the real texts would give, no more and no fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, count, repeat

from mansard.core.types import Request, SamplingParams

EOS = 0  # ends every planned output; the texts' ids begin at 1
EOS_TOKEN_IDS = frozenset({EOS})

Run = tuple[int, int]  # (token id, how many times)


class TokenIds:
    """Hands out token ids that stand for texts nobody else has."""

    def __init__(self) -> None:
        self._ids = count(1)

    def fresh(self) -> int:
        """Return an id that was never given before."""
        return next(self._ids)


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of a workload. `num_output_tokens` counts the EOS; the scheduler never sees it.

    prompt: runs of (token id, length). output_token_id: what its output consists of. session: requests of one
    conversation share it (a prefix-aware router does not need it; users read it in the results).
    """

    id: str
    arrival_s: float
    prompt: tuple[Run, ...]
    num_output_tokens: int
    output_token_id: int
    priority: int = 0
    session: str | None = None

    def __post_init__(self) -> None:
        if self.num_prompt_tokens < 1 or self.num_output_tokens < 1:
            raise ValueError(
                f"request {self.id} has {self.num_prompt_tokens} prompt and {self.num_output_tokens} output tokens; "
                "both must be at least 1 (leave it out of the trace)"
            )

    @property
    def num_prompt_tokens(self) -> int:
        """Return the prompt's length."""
        return sum(length for _, length in self.prompt)

    def prompt_token_ids(self) -> tuple[int, ...]:
        """Return the prompt's placeholder tokens."""
        if len(self.prompt) == 1:
            token_id, length = self.prompt[0]
            return (token_id,) * length
        return tuple(chain.from_iterable(repeat(token_id, length) for token_id, length in self.prompt))

    def request(self, params: SamplingParams) -> Request:
        """Return what the engine is given: it knows the prompt and `params`, not the planned length."""
        return Request(self.id, self.prompt_token_ids(), params, arrival_s=self.arrival_s, priority=self.priority)

    def history(self) -> tuple[Run, ...]:
        """Return the runs of the conversation once this request has ended: prompt, output and its EOS."""
        tail: tuple[Run, ...] = ((EOS, 1),)
        if self.num_output_tokens > 1:
            tail = ((self.output_token_id, self.num_output_tokens - 1), *tail)
        return (*self.prompt, *tail)
