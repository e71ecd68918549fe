"""Multiple choice through a server's completions: which continuation does the model find most probable?

A question and each choice go as one prompt with `echo`, `logprobs` and `max_tokens: 0`; a choice's score is the sum of
the log-probabilities of its own tokens. This is how log-likelihood tasks are run against an API, so it tests the same
answers that lm-eval reads.

Source: OpenAI's legacy completions (`logprobs.token_logprobs`, `text_offset`); for the two accuracies (`acc` by sum,
`acc_norm` by sum per byte) Gao et al., lm-evaluation-harness.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.bench.http_client import Address, Exchange, HttpClient


@dataclass(frozen=True, slots=True)
class Question:
    """A context, the continuations to choose from (with the space they begin with) and which is right."""

    context: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """Shares of questions answered right: by the sum of log-probabilities, and by the sum per byte of the choice."""

    accuracy: float
    normalized_accuracy: float
    num_questions: int


async def score_choices(url: str, model: str, questions: Sequence[Question], timeout_s: float = 120.0) -> ChoiceScores:
    """Return how many of the questions a server's model answers right.

    Raises: ValueError when the server refuses or does not echo log-probabilities.
    """
    client = HttpClient(Address.parse(url))
    try:
        right = normalized = 0
        for question in questions:
            scores = [await _score(client, model, question.context, choice, timeout_s) for choice in question.choices]
            right += _best(scores) == question.answer
            per_byte = [score / len(c.encode()) for score, c in zip(scores, question.choices, strict=True)]
            normalized += _best(per_byte) == question.answer
    finally:
        client.close()
    count = len(questions)
    return ChoiceScores(right / count, normalized / count, count)


def choice_logprob(logprobs: dict[str, Any], context_length: int) -> float:
    """Return the sum over the tokens that begin at or after `context_length` characters of the echoed text.

    Raises: ValueError when there are none.
    """
    pairs = zip(logprobs["text_offset"], logprobs["token_logprobs"], strict=True)
    scored = [value for offset, value in pairs if offset >= context_length and value is not None]
    if not scored:
        raise ValueError("the server scored no token of the choice; does it support echo with logprobs?")
    return float(sum(scored))


async def _score(client: HttpClient, model: str, context: str, choice: str, timeout_s: float) -> float:
    asked = {"model": model, "prompt": context + choice, "echo": True, "logprobs": 0, "max_tokens": 0}
    body = bytearray()
    exchange = Exchange(lambda status, headers: None, lambda data, now_s: body.extend(data))
    try:
        await client.send("POST", "/v1/completions", json.dumps(asked).encode(), exchange, timeout_s)
    except (OSError, TimeoutError) as error:
        raise ValueError(f"no answer from {client.address.host_header} ({error or type(error).__name__})") from error
    if exchange.reader.status != 200:
        raise ValueError(f"the server answers {exchange.reader.status}: {bytes(body[:300]).decode('utf-8', 'replace')}")
    found = json.loads(bytes(body))["choices"][0].get("logprobs")
    if not found:
        raise ValueError("the answer has no logprobs; does the server support echo with logprobs?")
    return choice_logprob(found, len(context))


def _best(scores: Iterable[float]) -> int:
    ranked = list(scores)
    return max(range(len(ranked)), key=lambda i: ranked[i])
