"""Log-probabilities as OpenAI's two APIs write them; always finite, because JSON has no infinity."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from mansard.core.types import TokenLogprobs
from mansard.loading.tokenizer import Tokenizer

FLOOR = -9999.0  # stands for minus infinity, as OpenAI documents it for the least likely tokens


def chat_entry(entry: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return one token's entry of `logprobs.content`."""
    top = [_chat_token(token_id, logprob, tokenizer) for token_id, logprob in entry.top]
    return {**_chat_token(entry.token_id, entry.logprob, tokenizer), "top_logprobs": top}


def _chat_token(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {"token": data.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(data)}


class CompletionLogprobs:
    """Collects the `logprobs` object of one legacy completion choice, whose offsets count from `offset`."""

    def __init__(self, tokenizer: Tokenizer, num_alternatives: int, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._num_alternatives = num_alternatives
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = offset

    def unscored(self, token_id: int) -> dict[str, Any]:
        """Return the object for the first token of a prompt, which nothing predicts."""
        return self._columns([(token_id, None, None)])

    def scored(self, entries: Iterable[TokenLogprobs]) -> dict[str, Any]:
        """Return the object for tokens that follow those before."""
        return self._columns([(e.token_id, _finite(e.logprob), self._top(e)) for e in entries])

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """Return the alternatives by name; the chosen token is among them even if it is less likely."""
        pairs = [*entry.top[: self._num_alternatives], (entry.token_id, entry.logprob)]
        named: dict[str, float] = {}
        for token_id, logprob in pairs:
            named.setdefault(self._name(token_id), _finite(logprob))
        return named

    def _columns(self, rows: list[tuple[int, float | None, dict[str, float] | None]]) -> dict[str, Any]:
        offsets = []
        for token_id, _, _ in rows:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return {
            "tokens": [self._name(token_id) for token_id, _, _ in rows],
            "token_logprobs": [logprob for _, logprob, _ in rows],
            "top_logprobs": [top for _, _, top in rows],
            "text_offset": offsets,
        }

    def _name(self, token_id: int) -> str:
        """Return a token's text, or its bytes where they are not UTF-8 by themselves."""
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def joined(objects: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return several `logprobs` objects of one choice as one."""
    whole: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for part in objects:
        for column, values in part.items():
            whole[column] += values
    return whole


def _finite(logprob: float) -> float:
    return max(logprob, FLOOR)
