"""A tokenizer for making prompts: the served model's own where its files are at hand, else common words."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.bench.prompts import TextTokenizer
from mansard.loading.tokenizer import Tokenizer


class ModelTokenizer:
    """A model's tokenizer as prompts use it; see `TextTokenizer`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without BOS."""
        return self._tokenizer.encode(text, False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self._tokenizer.decode(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one id."""
        return self._tokenizer.token_bytes(token_id)

    def is_special(self, token_id: int) -> bool:
        """Say whether an id is a control token."""
        return token_id in self._tokenizer.special_token_ids


def open_tokenizer(model: str) -> TextTokenizer:
    """Return the tokenizer of a model's files, without loading its weights.

    Raises: ValueError or OSError when there are no such files.
    """
    from mansard.loading.model_files import locate
    from mansard.loading.weights import Weights
    from mansard.runtime.loader import read_tokenizer

    files = locate(model)
    return ModelTokenizer(read_tokenizer(files, Weights.open(files.root)))
