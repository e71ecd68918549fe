"""A needle in a haystack: can the model still read one fact in the middle of a long context, with its KV quantized?

A sentence with a one-word answer stands at several depths of the default text; the question follows. The model need not
write the answer: it must give its first token a higher probability than those of nine others, which even a small model
does where its cache is intact, and which has a chance level of 10 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mansard.bench.corpus import read_text
from mansard.bench.evaluate import EvalSettings, Variant, load_variant, scorer_of
from mansard.bench.scoring import Scorer
from mansard.loading.tokenizer import Tokenizer

ANSWERS = ("apple", "bread", "chair", "green", "horse", "music", "paper", "river", "stone", "table")
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
NEEDLE = "\n\nThe secret password is {answer}.\n\n"
QUESTION = "\n\nWhat is the secret password? The secret password is"


@dataclass(frozen=True, slots=True)
class NeedleResult:
    """How many of the needles of one length were found; chance is one in ten."""

    variant: Variant
    num_tokens: int
    num_found: int
    num_asked: int

    def line(self) -> str:
        """Return one line."""
        return f"{self.variant.name}, {self.num_tokens:,} tokens: {self.num_found} of {self.num_asked} found"


def find_needles(variant: Variant, num_threads: int | None, lengths: Iterable[int]) -> Iterator[NeedleResult]:
    """Yield the result of one variant for each context length.

    Raises: ValueError for a length that holds no needle.
    """
    wanted = list(lengths)
    settings = EvalSettings(max(wanted) + 16, max(wanted) + 16, num_threads)
    model = load_variant(variant, settings)
    scorer = scorer_of(model, settings)
    text = model.tokenizer.encode(read_text(), False)
    for length in wanted:
        found = [_is_found(scorer, model.tokenizer, text, length, depth, i) for i, depth in enumerate(DEPTHS)]
        yield NeedleResult(variant, length, sum(found), len(found))


def haystack(words: Tokenizer, text: Sequence[int], num_tokens: int, depth: float, answer: str) -> list[int]:
    """Return a context of `num_tokens` with the needle at `depth` of it and the question at its end.

    Raises: ValueError when needle and question leave no room for hay.
    """
    needle, question = words.encode(NEEDLE.format(answer=answer), False), words.encode(QUESTION, False)
    hay = num_tokens - len(needle) - len(question)
    if hay < 2:
        raise ValueError(f"a context of {num_tokens} tokens; needle and question alone take {num_tokens - hay}")
    before = round(depth * hay)
    return [*text[:before], *needle, *text[before:hay], *question]


def _is_found(scorer: Scorer, words: Tokenizer, text: Sequence[int], length: int, depth: float, number: int) -> bool:
    right = ANSWERS[(3 * number + 1) % len(ANSWERS)]
    firsts = [words.encode(f" {answer}", False)[0] for answer in ANSWERS]
    assert len(set(firsts)) == len(ANSWERS), "answers must differ in their first token"
    *_, last = scorer.logits(haystack(words, text, length, depth, right))
    return ANSWERS[int(np.argmax(last[-1, firsts]))] == right
