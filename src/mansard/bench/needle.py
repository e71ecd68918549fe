"""A needle in a haystack: can the model still read one fact in the middle of a long context, with its KV quantized?

A sentence with a five-letter-word answer stands at several depths of the default text; the question follows. The model
does not have to write the answer: it must give the right one a higher probability than nine others, which even a small
model does where its cache is intact, and which has a chance level of 10 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mansard.bench.corpus import read_text
from mansard.bench.evaluate import EvalSettings, Variant, load_variant, scorer_of
from mansard.bench.scoring import Scorer, target_logprobs
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
    context = haystack(words, text, length, depth, right)
    scores = {answer: _answer_logprob(scorer, context, words.encode(f" {answer}", False)) for answer in ANSWERS}
    return max(scores, key=lambda answer: scores[answer]) == right


def _answer_logprob(scorer: Scorer, context: Sequence[int], answer: Sequence[int]) -> float:
    """Return log p(answer | context), whole contexts computed anew: what is tested is the cache."""
    ids = [*context, *answer]
    start, total = 0, 0.0
    for logits in scorer.logits(ids):
        for row in range(len(logits)):
            place = start + row + 1
            if len(context) <= place < len(ids):
                total += float(target_logprobs(logits[row : row + 1], [ids[place]])[0])
        start += len(logits)
    return total
