"""Prompts of exact lengths that no cache has seen.

A prompt is random whole words of the tokenizer, so that encoding its text gives back as many tokens as were asked for;
where it does not, tokens are taken off or added until it does. The nonce is fresh for each run, so a second run finds
nothing in a prefix cache, and two prompts of a run differ within their first block. A shared prefix, where wanted, is
common to all and followed by a distinct rest. Blocks of a trace's prompts that had
the same hash id are equal again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

BLOCK_TOKENS = 16
MIN_WORDS, MAX_WORDS = 64, 2048
MAX_CORRECTIONS = 12
WORD = re.compile(rb" [a-z]{2,}")
PRINTABLE = re.compile(rb"[ -~]+")
HASH_BLOCK_TOKENS = 512  # that one of a trace's hash ids stands for; source: the Mooncake trace's description
_PREFIX_STREAM, _PROMPT_STREAM, _BLOCK_STREAM = 0, 1, 2


class TextTokenizer(Protocol):
    """What prompts need of a tokenizer."""

    vocab_size: int

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without anything added around it."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes one id stands for."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Say whether an id is a control token."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text and the ids that it encodes to; `is_exact` says whether the length is the one asked for."""

    text: str
    token_ids: tuple[int, ...]
    is_exact: bool = True

    @property
    def num_tokens(self) -> int:
        """Return its length in tokens."""
        return len(self.token_ids)


def fresh_nonce() -> int:
    """Return a number that no other run has used."""
    return secrets.randbits(63)


@dataclass(slots=True)
class PromptMaker:
    """Makes the prompts of one run; the same nonce makes the same ones."""

    tokenizer: TextTokenizer
    nonce: int
    num_shared_tokens: int = 0
    _words: tuple[int, ...] = field(init=False)
    _seen: set[tuple[int, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._words = whole_words(self.tokenizer)

    def make(self, index: int, num_tokens: int, hash_ids: Sequence[int] = ()) -> Prompt:
        """Return the prompt of request `index`, distinct from all before within the first block of its own part.

        With `hash_ids` that part begins with one block for each, the same wherever the id is the same.
        Raises: ValueError for no tokens, or fewer than the shared prefix has.
        """
        if num_tokens < 1 or num_tokens < self.num_shared_tokens:
            raise ValueError(
                f"a prompt of {num_tokens} tokens with {self.num_shared_tokens} shared ones; it must have at least "
                "one, and no fewer than are shared"
            )
        own = max(0, num_tokens - self.num_shared_tokens)
        for attempt in range(100):
            blocks = self._blocks(hash_ids, own)
            ids = self._shared() + blocks + self._draw((_PROMPT_STREAM, index, attempt), own - len(blocks))
            prompt = self._exact(ids, num_tokens, (_PROMPT_STREAM, index, attempt + 1000))
            head = prompt.token_ids[self.num_shared_tokens : self.num_shared_tokens + BLOCK_TOKENS]
            if head not in self._seen or not head or hash_ids:
                break
        self._seen.add(head)
        return prompt

    def _shared(self) -> list[int]:
        return self._draw((_PREFIX_STREAM, 0, 0), self.num_shared_tokens)

    def _blocks(self, hash_ids: Sequence[int], limit: int) -> list[int]:
        """Return the words of blocks, cut to `limit`."""
        count = min(len(hash_ids), -(-limit // HASH_BLOCK_TOKENS))
        words = [w for i in hash_ids[:count] for w in self._draw((_BLOCK_STREAM, i, 0), HASH_BLOCK_TOKENS)]
        return words[:limit]

    def _draw(self, stream: tuple[int, int, int], count: int) -> list[int]:
        random = np.random.default_rng([self.nonce, *stream])
        return [self._words[i] for i in random.integers(0, len(self._words), count)]

    def _exact(self, ids: list[int], num_tokens: int, stream: tuple[int, int, int]) -> Prompt:
        """Correct until the text encodes to `num_tokens`: decoding and encoding again may merge or split tokens."""
        spare = iter(self._draw(stream, 4 * num_tokens + 64))
        for _ in range(MAX_CORRECTIONS):
            text = self.tokenizer.decode(ids)
            back = self.tokenizer.encode(text)
            if len(back) == num_tokens:
                return Prompt(text, tuple(back))
            ids = back[:num_tokens]
            ids += [next(spare) for _ in range(num_tokens - len(ids))]
        return Prompt(text, tuple(back), is_exact=False)


def whole_words(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Return ids of words that encode to themselves; of any printable tokens where a vocabulary has few words.

    Raises: ValueError when it has none at all.
    """
    usable = [i for i in range(tokenizer.vocab_size) if not tokenizer.is_special(i)]
    for pattern, least in ((WORD, MIN_WORDS), (PRINTABLE, 1)):
        found = [i for i in usable if pattern.fullmatch(tokenizer.token_bytes(i))]
        found = found[:: max(1, len(found) // MAX_WORDS)]
        pair = [i for i in found if tokenizer.encode(tokenizer.decode([i, i])) == [i, i]]
        if len(pair) >= least:
            return tuple(pair)
    raise ValueError("the tokenizer has no token that is printable text and encodes to itself")


COMMON_WORDS = (
    "the and for are but not you all any can had her was one our out day get has him his how man new now old see two "
    "way who boy did its let put say she too use time year people work life hand part place week case point company "
    "number group fact eye home water room mother area money story month lot right study book word business issue side "
    "kind head house friend father power hour game line end member law car city name team minute idea body back parent "
    "face level office door health person art war history party result change morning reason research girl guy moment "
    "air teacher force education foot boy age policy process music market sense nation plan college interest death "
    "course experience effect class control field hair arm race river street table task oil rest tax ball star fish"
)


class WordTokenizer:
    """Counts a common English word as a token, where a server's own tokenizer is not at hand.

    Nearly every vocabulary has these words whole; the server's count says how near it was.
    """

    def __init__(self) -> None:
        self._ids = {word: i for i, word in enumerate(dict.fromkeys(COMMON_WORDS.split()))}
        self._words = tuple(self._ids)
        self.vocab_size = len(self._words)

    def encode(self, text: str) -> list[int]:
        """Return a number for each word."""
        return [self._ids[word] for word in text.split()]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the words with spaces before them."""
        return "".join(f" {self._words[i]}" for i in token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return a word with the space before it."""
        return f" {self._words[token_id]}".encode()

    def is_special(self, token_id: int) -> bool:
        """Say no: they are all words."""
        return False
