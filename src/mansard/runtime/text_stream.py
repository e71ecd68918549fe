"""From sampled tokens to the text a client may see now.

Two things are held back. Bytes that do not yet complete a character: the next token may complete it. And the
longest end of the text that may still become a stop string: once sent it could not be taken back. What is
sent is final, and all that is sent is the same however tokens arrive, one by one or several at a time.

The text is that of the tokens after a prompt, so a SentencePiece space before the first word is part of it.
Each token costs time proportional to its own length. A stop string counts where it first ends in the text; of
several that end together the longest counts.

Source: Knuth, Morris, Pratt, "Fast pattern matching in strings" (1977), one automaton for each stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from mansard.core.types import SamplingParams


class TokenBytes(Protocol):
    """What a stream needs of a tokenizer."""

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Return the control tokens."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token stands for."""
        ...


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text to send now, and whether a stop string ended the sequence.

    `num_tokens`: how many of the pushed tokens count; less than were pushed when a stop string ended among
    them.
    """

    text: str
    stopped: bool = False
    stop_string: str | None = None
    num_tokens: int = 0


class _StopString:
    """The longest prefix of one stop string that the text ends with, kept up to date by character."""

    def __init__(self, pattern: str) -> None:
        if not pattern:
            raise ValueError("a stop string is empty; every text ends with it, so leave it out")
        self.pattern = pattern
        self.matched = 0
        self._borders = [0] * len(pattern)  # of pattern[: i + 1]: its longest proper prefix that is a suffix too
        length = 0
        for i in range(1, len(pattern)):
            while length and pattern[i] != pattern[length]:
                length = self._borders[length - 1]
            length += pattern[i] == pattern[length]
            self._borders[i] = length

    def feed(self, character: str) -> bool:
        """Take the next character; tell whether the stop string ends with it."""
        if self.matched == len(self.pattern):
            self.matched = self._borders[-1]
        while self.matched and self.pattern[self.matched] != character:
            self.matched = self._borders[self.matched - 1]
        self.matched += self.pattern[self.matched] == character
        return self.matched == len(self.pattern)

    @property
    def pending(self) -> int:
        """Return how many last characters may still become the stop string; a whole match is past that."""
        return self._borders[-1] if self.matched == len(self.pattern) else self.matched


class TextStream:
    """Turns one sequence's output tokens into text, piece by piece."""

    def __init__(self, tokenizer: TokenBytes, params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if params.skip_special_tokens else frozenset()
        self._stops = [_StopString(s) for s in params.stop]
        self._keeps_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._num_tokens = 0
        self._ended = False

    def push(self, token_ids: Iterable[int]) -> TextDelta:
        """Take output tokens and return the text they release.

        A stop string is looked for only where it ends with the `min_tokens`-th token or a later one. After
        one was found nothing more may be pushed. A token that ended the sequence by itself (EOS) is best not
        pushed, or is special and skipped.
        """
        assert not self._ended, "the stream has ended"
        pieces: list[str] = []
        count = 0
        for token_id in token_ids:
            count += 1
            self._num_tokens += 1
            if token_id in self._skipped:
                continue
            text = self._decoder.decode(self._tokenizer.token_bytes(token_id))
            stop = self._scan(text, pieces)
            if stop is not None:
                self._ended = True
                return TextDelta("".join(pieces), True, stop, count)
        return TextDelta("".join(pieces), num_tokens=count)

    def finish(self) -> str:
        """Release what was held, an incomplete character as one U+FFFD; nothing after a stop string."""
        if self._ended:
            return ""
        self._ended = True
        return self._held + self._decoder.decode(b"", True)

    def _scan(self, text: str, pieces: list[str]) -> str | None:
        """Append what may be sent of held and new text to `pieces`; return the stop string that was met."""
        if not self._stops:
            pieces.append(text)
            return None
        may_stop = self._num_tokens >= self._min_tokens
        start = len(self._held)
        whole = self._held + text
        for position, character in enumerate(text, start + 1):
            # Every automaton takes the character, so no generator here.
            ended = [stop.pattern for stop in self._stops if stop.feed(character)]
            if ended and may_stop:
                stop_string = max(ended, key=len)
                pieces.append(whole[: position if self._keeps_stop else position - len(stop_string)])
                return stop_string
        pending = 0 if self._keeps_stop else max(stop.pending for stop in self._stops)
        cut = len(whole) - pending
        pieces.append(whole[:cut])
        self._held = whole[cut:]
        return None
