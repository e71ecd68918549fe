"""Rebuild a tokenizer from GGUF metadata.

Two kinds exist among language models. `gpt2`: byte-level BPE with its merges and the name of its splitting
rules. `llama`: SentencePiece BPE, which stores no merges but a score for each piece: adjacent symbols merge
whose union has the highest score, the leftmost first, and what is no piece falls back to bytes. A pair's rank
is thus its union's score, so the merges are every way to cut a piece into two pieces, best score first;
`tokenizers` then runs them.

This equals the definition for vocabularies as training makes them: every character of a piece is a piece, and a
piece scores below its parts. One thing ranks cannot express, "leftmost" between two cuts of one piece that share
a symbol (a|aa and aa|a); merging from the left leaves no such overlap. The longer left part goes first.

Source: the GGUF specification's tokenizer keys; sentencepiece's bpe_model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from mansard.loading.pre_tokenizers import Component, pre_tokenizer, pre_tokenizer_json
from mansard.loading.stored import ModelFileError
from mansard.loading.tokenizer import SPACE_MARK, TokenizerParts, end_token_ids

UNDEFINED, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(7)
LITERAL_KINDS = (UNKNOWN, CONTROL, USER_DEFINED)
MAX_TOKENS = 1 << 21  # the largest vocabularies have 2^18; this bounds the work a file can cause
MAX_PIECE_CHARS = 1_024  # cutting a piece everywhere is quadratic in its length; real ones have some 16
MAX_ALL_PIECES_CHARS = 1 << 23  # each character is a place to cut at
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
PHI3_PLAIN = ("<unk>", "<s>", "<|endoftext|>")
KINDS = {"gpt2": "byte-level BPE", "llama": "SentencePiece BPE"}


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The checked arrays: one text, kind and score for each id."""

    path: str
    texts: Sequence[str]
    kinds: Sequence[int]
    ids: Mapping[str, int]  # the first id of each text; some files repeat one
    metadata: Mapping[str, object]

    def fail(self, key: str, value: object, limit: str) -> NoReturn:
        raise ModelFileError(self.path, f"tokenizer.ggml.{key}", value, limit)

    def token_id(self, key: str) -> int | None:
        """Return the id that a key names, if it names one."""
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < len(self.texts):
            self.fail(key, value, f"it must be a token id below {len(self.texts):,}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            self.fail(key, value, "it must be true or false")
        return value


def rebuild_tokenizer(metadata: Mapping[str, object], path: str) -> TokenizerParts:
    """Build what `Tokenizer` needs from `tokenizer.ggml.*` keys.

    Raises: ModelFileError when a key is missing, unsound or names a kind that is not supported.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model not in KINDS:
        known = ", ".join(f"{name} ({what})" for name, what in KINDS.items())
        raise ModelFileError(path, "tokenizer.ggml.model", model, f"supported: {known}")
    vocabulary = _read_vocabulary(metadata, path)
    return _byte_level(vocabulary) if model == "gpt2" else _sentencepiece(vocabulary)


def _read_vocabulary(metadata: Mapping[str, object], path: str) -> _Vocabulary:
    texts = _array(metadata, path, "tokens", str)
    if not 0 < len(texts) <= MAX_TOKENS:
        raise ModelFileError(path, "tokenizer.ggml.tokens", len(texts), f"it must have 1 to {MAX_TOKENS:,} tokens")
    kinds = _array(metadata, path, "token_type", int, len(texts)) or [NORMAL] * len(texts)
    ids: dict[str, int] = dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))
    return _Vocabulary(path, texts, kinds, ids, metadata)


def _array(
    metadata: Mapping[str, object],
    path: str,
    key: str,
    kind: type | tuple[type, ...],
    count: int | None = None,
) -> Sequence[Any]:
    """Return an array of `kind`, empty if it is absent; with `count`, it must have an item for each token."""
    value = metadata.get(f"tokenizer.ggml.{key}", ())
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ModelFileError(path, f"tokenizer.ggml.{key}", type(value).__name__, "it must be an array")
    if any(not isinstance(item, kind) for item in value):
        wrong = next(item for item in value if not isinstance(item, kind))
        raise ModelFileError(path, f"tokenizer.ggml.{key}", wrong, f"its items must be {kind}")
    if count is not None and value and len(value) != count:
        limit = f"it must have an item for each of the {count:,} tokens"
        raise ModelFileError(path, f"tokenizer.ggml.{key}", len(value), limit)
    return value


def _byte_level(vocabulary: _Vocabulary) -> TokenizerParts:
    name = vocabulary.metadata.get("tokenizer.ggml.pre", "default")
    try:
        rules = pre_tokenizer(str(name))
    except ValueError as error:
        raise ModelFileError(vocabulary.path, "tokenizer.ggml.pre", name, str(error)) from None
    written = _array(vocabulary.metadata, vocabulary.path, "merges", str)
    merges = [_merge(vocabulary, text) for text in written]
    backend = _backend(
        _bpe(vocabulary, merges, ignore_merges=rules.ignore_merges),
        normalizer={"type": "NFC"} if rules.nfc else None,
        pre_tokenizer=pre_tokenizer_json(rules),
    )
    return _parts(vocabulary, backend, byte_level=True, adds_bos=rules.adds_bos)


def _merge(vocabulary: _Vocabulary, text: str) -> tuple[str, str]:
    cut = text.find(" ", 1)
    if cut < 0:
        vocabulary.fail("merges", text, "it must be two tokens and a space between them")
    return text[:cut], text[cut + 1 :]


def _sentencepiece(vocabulary: _Vocabulary) -> TokenizerParts:
    scores = _array(vocabulary.metadata, vocabulary.path, "scores", (int, float), len(vocabulary.texts))
    if not scores:
        vocabulary.fail("scores", None, "SentencePiece needs a score for each token")
    unknown = vocabulary.token_id("unknown_token_id")
    model = _bpe(
        vocabulary,
        piece_merges(_pieces(vocabulary), vocabulary.ids, scores),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else vocabulary.texts[unknown],
    )
    prefix = vocabulary.flag("add_space_prefix", True)
    steps: list[Component] = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}]
    if prefix:
        steps.insert(0, {"type": "Prepend", "prepend": SPACE_MARK})
    backend = _backend(model, normalizer={"type": "Sequence", "normalizers": steps}, pre_tokenizer=None)
    return _parts(vocabulary, backend, byte_level=False, adds_bos=True, strips=prefix)


def _pieces(vocabulary: _Vocabulary) -> set[str]:
    """Return the tokens that ordinary text is made of, within what cutting them may cost."""
    kinds, texts = vocabulary.kinds, vocabulary.texts
    pieces = {text for text, kind in zip(texts, kinds, strict=True) if kind in (NORMAL, UNUSED, UNDEFINED)}
    if (longest := max(map(len, pieces), default=0)) > MAX_PIECE_CHARS:
        vocabulary.fail("tokens", longest, f"an ordinary piece may have {MAX_PIECE_CHARS:,} characters")
    if (total := sum(map(len, pieces))) > MAX_ALL_PIECES_CHARS:
        vocabulary.fail("tokens", total, f"all pieces may have {MAX_ALL_PIECES_CHARS:,} characters together")
    return pieces


def piece_merges(pieces: set[str], ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """List every cut of a piece into two pieces, by the whole's score from best to worst.

    Equal scores go by id; the cuts of one piece from the longest left part to the shortest.
    Source: sentencepiece, bpe_model.cc.
    """
    merges: list[tuple[str, str]] = []
    append = merges.append
    for piece in sorted(pieces, key=lambda text: (-scores[ids[text]], ids[text])):
        for cut in range(len(piece) - 1, 0, -1):
            left = piece[:cut]
            if left in pieces and (right := piece[cut:]) in pieces:
                append((left, right))
    return merges


def _bpe(vocabulary: _Vocabulary, merges: list[tuple[str, str]], **options: Any) -> Any:
    """Build the BPE model; this constructor is 2 to 3 times as quick as reading JSON."""
    from tokenizers import models

    try:
        return models.BPE(dict(vocabulary.ids), merges, **options)
    except Exception as error:  # tokenizers raises plain Exception
        vocabulary.fail("merges", str(error), "merges must be made of the vocabulary's tokens")


def _backend(model: Any, normalizer: Component | None, pre_tokenizer: Component | None) -> Any:
    """Set the model into rules that `tokenizers` reads from JSON."""
    from tokenizers import Tokenizer

    rules = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": None}
    empty: Component = {
        "model": {"type": "BPE", "vocab": {}, "merges": []},
        "added_tokens": [],
        "decoder": None,
    }
    backend = Tokenizer.from_str(json.dumps({"version": "1.0", **rules, **empty}))
    backend.model = model
    return backend


def _parts(
    vocabulary: _Vocabulary, backend: Any, *, byte_level: bool, adds_bos: bool, strips: bool = False
) -> TokenizerParts:
    kinds, texts = vocabulary.kinds, vocabulary.texts
    bos = vocabulary.token_id("bos_token_id")
    named_ends = [i for key in END_KEYS if (i := vocabulary.token_id(key)) is not None]
    literal = {i: texts[i] for i, kind in enumerate(kinds) if kind in LITERAL_KINDS and texts[i]}
    ends = end_token_ids(named_ends, {text: i for i, text in literal.items()})
    special = {i for i in literal if kinds[i] != USER_DEFINED} | {*ends, *([] if bos is None else [bos])}
    literal |= {i: texts[i] for i in special if texts[i]}
    _add_tokens(vocabulary, backend, literal, special)
    prefix = (bos,) if bos is not None and vocabulary.flag("add_bos_token", adds_bos) else ()
    suffix = tuple(named_ends[:1]) if vocabulary.flag("add_eos_token", False) else ()
    template = vocabulary.metadata.get("tokenizer.chat_template")
    return TokenizerParts(
        backend=backend,
        vocab_size=len(texts),
        id_to_text=lambda i: texts[i] if 0 <= i < len(texts) else None,
        literal=literal,
        special_token_ids=frozenset(special),
        byte_level=byte_level,
        strips_leading_space=strips,
        prefix_ids=prefix,
        suffix_ids=suffix,
        bos_token_id=bos,
        eos_token_ids=ends,
        chat_template=template if isinstance(template, str) else None,
    )


def _add_tokens(vocabulary: _Vocabulary, backend: Any, literal: Mapping[int, str], special: set[int]) -> None:
    """Let text that spells an added token become it; Phi-3's special ones also swallow space after them."""
    from tokenizers import AddedToken

    phi3 = (
        vocabulary.metadata.get("general.architecture") == "phi3"
        and vocabulary.metadata.get("tokenizer.ggml.model") == "llama"
    )
    for is_special, add in ((True, backend.add_special_tokens), (False, backend.add_tokens)):
        add(
            [
                AddedToken(text, normalized=False, special=is_special, rstrip=phi3 and text not in PHI3_PLAIN)
                for i, text in literal.items()
                if (i in special) is is_special
            ]
        )
