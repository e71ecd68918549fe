"""Text to token ids and back.

Encoding is the `tokenizers` library's; decoding is ours, over bytes: every token stands for some bytes, and
text is what the joined bytes say in UTF-8, an invalid sequence read as U+FFFD. That one definition serves
whole texts and streams alike (runtime/text_stream.py), and does not depend on how a library repairs half a
character.

BOS: a raw prompt gets exactly one, and only if the model's tokenizer asks for it; a chat gets what its
template writes. EOS: the union of all the places that name one, because each of them is wrong somewhere.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

logger = logging.getLogger(__name__)

# Tokens that end a turn whatever the metadata says. gpt-oss closes every channel with <|end|> and only its
# answer with <|return|>, so <|end|> counts only where there is no <|return|>.
TURN_ENDS = (
    "<|im_end|>",
    "<end_of_turn>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
)
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "▁"  # SentencePiece's visible space


class EncodingBackend(Protocol):
    """What we use of `tokenizers.Tokenizer`."""

    def encode_batch_fast(self, input: list[str], *, add_special_tokens: bool = True) -> list[Any]:
        """Return for each text an object whose `ids` are the token ids."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A tokenizer taken apart: the encoder and what decoding and prompting need to know.

    `id_to_text`: a token as the vocabulary writes it. `literal`: tokens that stand for their own text
    (special and user-defined ones). `byte_level`: ordinary tokens are written in GPT-2's byte alphabet;
    otherwise they are SentencePiece pieces with byte fallback. `strips_leading_space`: encoding put a space
    before the text.
    """

    backend: EncodingBackend
    vocab_size: int
    id_to_text: Callable[[int], str | None]
    literal: Mapping[int, str]
    special_token_ids: frozenset[int]
    byte_level: bool
    strips_leading_space: bool
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    chat_template: str | None = field(default=None, repr=False)


def byte_alphabet() -> dict[str, int]:
    """Map each character of GPT-2's alphabet to the byte it stands for.

    Source: openai/gpt-2, encoder.py: printable Latin-1 stands for itself, the other bytes follow from U+0100
    on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def well_formed(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates by U+FFFD, so that the text can be UTF-8.

    Lone surrogates come from JSON escapes and from `surrogateescape`d bytes; no vocabulary has a token for
    them.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class Tokenizer:
    """Encode and decode with one model's vocabulary."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._alphabet = byte_alphabet() if parts.byte_level else {}
        self._bytes: dict[int, bytes] = {}  # filled as tokens are met: building it whole would cost start-up time

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        config_path: str | Path | None = None,
        generation_config_path: str | Path | None = None,
    ) -> Tokenizer:
        """Read a `tokenizer.json`; the configuration files default to those beside it, if there are any.

        Raises: ValueError when a file is not what it should be.
        """
        from mansard.loading.hf_tokenizer import read_tokenizer_files

        return cls(read_tokenizer_files(Path(path), config_path, generation_config_path))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], path: str | Path = "GGUF metadata") -> Tokenizer:
        """Rebuild the tokenizer that a GGUF file's metadata describes; `path` is for error messages.

        Raises: ModelFileError when the metadata is unsound or names a kind that is not supported.
        """
        from mansard.loading.gguf_tokenizer import rebuild_tokenizer

        return cls(rebuild_tokenizer(metadata, str(path)))

    @property
    def vocab_size(self) -> int:
        """Return one more than the largest token id that has a text."""
        return self._parts.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """Return the beginning-of-sequence token, if the vocabulary has one."""
        return self._parts.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Return every token that ends a generation, the one that the files name first coming first."""
        return self._parts.eos_token_ids

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Return the control tokens, which are not part of the text."""
        return self._parts.special_token_ids

    @property
    def adds_bos(self) -> bool:
        """Tell whether raw prompts begin with BOS."""
        return self.bos_token_id is not None and self.bos_token_id in self._parts.prefix_ids

    @property
    def bos_token(self) -> str:
        """Return BOS as text, for chat templates; empty if there is none."""
        return "" if self.bos_token_id is None else self.id_to_token(self.bos_token_id) or ""

    @property
    def eos_token(self) -> str:
        """Return the first EOS as text, for chat templates; empty if there is none."""
        return self.id_to_token(self.eos_token_ids[0]) or "" if self.eos_token_ids else ""

    @property
    def chat_template(self) -> str | None:
        """Return the source of the model's own chat template."""
        return self._parts.chat_template

    def id_to_token(self, token_id: int) -> str | None:
        """Return a token as the vocabulary writes it, or None for an id without a text."""
        return self._parts.id_to_text(token_id)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text; text that spells a special token becomes that token.

        `add_special_tokens` adds what the tokenizer puts around a text (BOS, for some EOS). Lone surrogates
        are read as U+FFFD.
        """
        # The batch call lets other threads run meanwhile; `encode` would hold them for a second per megabyte.
        encoded = self._parts.backend.encode_batch_fast([well_formed(text)], add_special_tokens=False)
        ids: list[int] = encoded[0].ids
        if not add_special_tokens:
            return ids
        return [*self._parts.prefix_ids, *ids, *self._parts.suffix_ids]

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of a raw prompt to be continued: one BOS before it if the tokenizer asks for one, no
        EOS.

        A text that already spells BOS keeps it and gets no second one; a warning is logged, as the caller may
        have meant something else. Chats do not come here: their templates write BOS, and `encode(text,
        False)` keeps it.
        """
        ids = self.encode(text, add_special_tokens=False)
        if not self.adds_bos:
            return ids
        if ids[:1] == [self.bos_token_id]:
            logger.warning("the prompt already begins with %s; no second one is added", self.bos_token)
            return ids
        return [*self._parts.prefix_ids, *ids]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token stands for; none for an id without a text, as padded vocabularies have."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._token_bytes(token_id)
        return known

    def _token_bytes(self, token_id: int) -> bytes:
        literal = self._parts.literal.get(token_id)
        if literal is not None:
            return literal.encode()
        text = self._parts.id_to_text(token_id)
        if text is None:
            return b""
        if self._parts.byte_level:
            values = [self._alphabet.get(c) for c in text]
            return text.encode() if None in values else bytes(v for v in values if v is not None)
        byte = BYTE_TOKEN.fullmatch(text)
        return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE_MARK, " ").encode()

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True, *, continues: bool = False) -> str:
        """Return the text of token ids; bytes that are not UTF-8 read as U+FFFD, one for each broken
        sequence.

        `continues`: the tokens follow others, so that a SentencePiece space before the first word is text.
        """
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        data = b"".join(self.token_bytes(i) for i in token_ids if i not in skipped)
        if self._parts.strips_leading_space and not continues:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")


def end_token_ids(named: Iterable[int], special: Mapping[str, int]) -> tuple[int, ...]:
    """Unite the end tokens that files name, in their order, with the well-known ones in the vocabulary."""
    known = [special[text] for text in TURN_ENDS if text in special]
    if "<|return|>" in special and "<|end|>" in special:
        known.remove(special["<|end|>"])
    return tuple(dict.fromkeys([*named, *known]))


def default_template(value: object) -> str | None:
    """Choose the chat template out of a configuration's value: a text, or a list of named ones."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        named = {v.get("name"): v.get("template") for v in value if isinstance(v, Mapping)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def read_json(path: Path) -> Mapping[str, Any]:
    """Read a JSON object.

    Raises: ValueError when the file holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: holds {type(value).__name__}, not an object")
    return MappingProxyType(value)
