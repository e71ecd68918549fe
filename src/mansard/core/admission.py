"""Admission: what a request must satisfy before anything is scheduled.

A value that reaches a step unchecked can write outside its row of the batch or wait for blocks that do not
exist; here it is refused by name, with the limit and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from mansard.core.scheduler import Scheduler
from mansard.core.types import Request, SamplingParams

MAX_N = 128
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 1024
MAX_LOGPROBS = 100


def check_request(request: Request, scheduler: Scheduler, vocab_size: int | None) -> None:
    """Refuse a request with bad ids, bad parameters, or a prompt that can never be served.

    Raises: ValueError naming the parameter, its value, the limit and the remedy.
    """
    validate(request.params, vocab_size)
    _check_token_ids("prompt_token_ids", request.prompt_token_ids, vocab_size)
    _check_fits(request, scheduler)


def validate(params: SamplingParams, vocab_size: int | None) -> None:
    """Refuse sampling parameters outside their ranges; `vocab_size=None` leaves token ids unchecked above.

    Raises: ValueError naming the parameter.
    """
    _check_number("temperature", params.temperature, 0.0, None)
    _check_number("top_p", params.top_p, 0.0, 1.0)
    _require(params.top_p > 0.0, "top_p", params.top_p, "above 0 (1 turns it off)")
    _check_number("min_p", params.min_p, 0.0, 1.0)
    penalty = params.repetition_penalty
    _check_number("repetition_penalty", penalty, 0.0, None)
    _require(penalty > 0.0, "repetition_penalty", penalty, "above 0 (1 turns it off)")
    _check_number("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _check_number("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _check_int("top_k", params.top_k, -1, vocab_size)
    _check_int("n", params.n, 1, MAX_N)
    _check_lengths(params)
    for name in ("logprobs", "prompt_logprobs"):
        if (count := getattr(params, name)) is not None:
            _check_int(name, count, 0, MAX_LOGPROBS)
    _check_count("stop_token_ids", len(params.stop_token_ids), MAX_STOP_TOKEN_IDS)
    _check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    _check_count("logit_bias", len(params.logit_bias), MAX_LOGIT_BIASES)
    _check_token_ids("logit_bias", params.logit_bias, vocab_size)
    for bias in params.logit_bias.values():
        _check_number("logit_bias", bias, -100.0, 100.0)
    _require("" not in params.stop, "stop", params.stop, "without empty strings")


def _check_lengths(params: SamplingParams) -> None:
    """Refuse lengths that contradict each other."""
    if params.max_tokens is not None:
        _check_int("max_tokens", params.max_tokens, 0, None)
        if params.max_tokens == 0 and params.prompt_logprobs is None:
            raise ValueError("max_tokens is 0; it must be at least 1, or prompt_logprobs must be asked for")
    _check_int("min_tokens", params.min_tokens, 0, params.max_tokens)


def _check_fits(request: Request, scheduler: Scheduler) -> None:
    """Refuse a prompt that leaves no room for its output, in the context or in the KV cache."""
    num_tokens, config, blocks = len(request.prompt_token_ids), scheduler.config, scheduler.blocks
    if num_tokens == 0:
        raise ValueError("prompt_token_ids is empty; a prompt must have at least 1 token")
    wants_output = request.params.max_tokens != 0
    if num_tokens + wants_output > config.max_model_len:
        raise ValueError(
            f"prompt has {num_tokens:,} tokens{' and needs room for 1 more' if wants_output else ''}; "
            f"max_model_len is {config.max_model_len:,} (raise max_model_len or shorten the prompt)"
        )
    if (num_blocks := blocks.blocks_for(num_tokens)) > blocks.num_blocks:
        raise ValueError(
            f"prompt has {num_tokens:,} tokens and needs {num_blocks:,} KV blocks of {blocks.block_size}; "
            f"the pool has {blocks.num_blocks:,} (give the KV cache more memory or shorten the prompt)"
        )


def _check_token_ids(name: str, token_ids: Iterable[int], vocab_size: int | None) -> None:
    """Refuse ids that are no whole numbers of the vocabulary."""
    if wrong := set(map(type, token_ids)) - {int}:
        kind = min(t.__name__ for t in wrong)
        raise ValueError(f"{name} holds a {kind}; token ids must be whole numbers")
    low, high = min(token_ids, default=0), max(token_ids, default=0)
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        limit = "" if vocab_size is None else f" and at most {vocab_size - 1:,}, the last of the vocabulary"
        raise ValueError(f"{name} holds token id {low if low < 0 else high}; ids must be at least 0{limit}")


def _check_number(name: str, value: float, low: float, high: float | None) -> None:
    """Refuse what is no finite number between two bounds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    limit = f"a number of at least {low:g}" if high is None else f"a number between {low:g} and {high:g}"
    _require(is_number and low <= value and (high is None or value <= high), name, value, limit)


def _check_int(name: str, value: int, low: int, high: int | None) -> None:
    """Refuse what is no whole number between two bounds."""
    limit = f"of at least {low}" if high is None else f"between {low} and {high:,}"
    _require(
        type(value) is int and low <= value and (high is None or value <= high),
        name,
        value,
        f"a whole number {limit}",
    )


def _check_count(name: str, count: int, limit: int) -> None:
    """Refuse too many entries."""
    if count > limit:
        raise ValueError(f"{name} has {count:,} entries; at most {limit:,} are allowed")


def _require(holds: bool, name: str, value: object, limit: str) -> None:
    """Refuse a value outside its limit."""
    if not holds:
        raise ValueError(f"{name} is {value!r}; it must be {limit}")
