"""Read a Hugging Face tokenizer: tokenizer.json and the configuration files beside it.

The library reads tokenizer.json; this finds out how its tokens stand for bytes, what it puts around a text,
and which tokens end one: tokenizer_config.json, generation_config.json and config.json each may name them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mansard.loading.tokenizer import SPACE_MARK, TokenizerParts, default_template, end_token_ids, read_json

Json = Mapping[str, Any]


def read_tokenizer_files(
    path: Path, config_path: str | Path | None, generation_config_path: str | Path | None
) -> TokenizerParts:
    """Build what `Tokenizer` needs from files.

    Raises: ValueError when a file is not what it should be, or its decoder is of another kind than byte-level
    or SentencePiece.
    """
    from tokenizers import Tokenizer

    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"{path}: not a tokenizer.json that can be read ({error})") from error
    config = _beside(path, config_path, "tokenizer_config.json")
    generation = _beside(path, generation_config_path, "generation_config.json")
    return _parts(path, backend, config, generation, _beside(path, None, "config.json"))


def _beside(path: Path, given: str | Path | None, name: str) -> Json:
    if given is not None:
        return read_json(Path(given))
    default = path.with_name(name)
    return read_json(default) if default.is_file() else {}


def _parts(path: Path, backend: Any, config: Json, generation: Json, model: Json) -> TokenizerParts:
    added: dict[int, Any] = backend.get_added_tokens_decoder()
    ids = {token.content: i for i, token in added.items()}
    prefix, suffix = _around(backend)
    eos = _named(config, "eos_token", backend)
    named = [*eos, *_end_ids(generation), *_end_ids(model), *_end_ids(_section(model, "text_config"))]
    special = {i for i, token in added.items() if token.special}
    ends = end_token_ids((i for i in named if backend.id_to_token(i) is not None), ids)
    bos = next(iter(_named(config, "bos_token", backend)), prefix[0] if prefix else None)
    byte_level, strips = _decoding(path, backend)
    return TokenizerParts(
        backend=backend,
        vocab_size=max(backend.get_vocab_size(), max(ids.values(), default=-1) + 1),
        id_to_text=lambda i: backend.id_to_token(i) if i >= 0 else None,
        literal={i: token.content for i, token in added.items()},
        special_token_ids=frozenset(special | {*ends, *([] if bos is None else [bos])}),
        byte_level=byte_level,
        strips_leading_space=strips,
        prefix_ids=tuple(prefix),
        suffix_ids=tuple(suffix),
        bos_token_id=bos,
        eos_token_ids=ends,
        chat_template=_template(path, config),
    )


def _around(backend: Any) -> tuple[list[int], list[int]]:
    """Return the ids that the post-processor puts before and after a text."""
    plain: list[int] = backend.encode("a", add_special_tokens=False).ids
    whole: list[int] = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []


def _named(config: Json, key: str, backend: Any) -> list[int]:
    """Return the id of the token that tokenizer_config.json names, as text or as an object with a content."""
    value = config.get(key)
    text = value.get("content") if isinstance(value, Mapping) else value
    found = backend.token_to_id(text) if isinstance(text, str) else None
    return [] if found is None else [found]


def _end_ids(config: Json) -> list[int]:
    value = config.get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and v >= 0]


def _section(config: Json, key: str) -> Json:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _template(path: Path, config: Json) -> str | None:
    """Return the chat template: its own file wins over tokenizer_config.json, as in transformers."""
    own = path.with_name("chat_template.jinja")
    return own.read_text(encoding="utf-8") if own.is_file() else default_template(config.get("chat_template"))


def _decoding(path: Path, backend: Any) -> tuple[bool, bool]:
    """Tell from the decoder whether tokens are byte-level, and whether decoding strips a leading space."""
    steps = list(_steps(json.loads(backend.decoder.__getstate__()))) if backend.decoder else []
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return True, False
    marks = any(step["type"] == "Replace" and step["pattern"] == {"String": SPACE_MARK} for step in steps)
    if "Metaspace" in kinds or marks:
        return False, any(_strips(step) for step in steps)
    shown = ", ".join(sorted(kinds)) or "none"
    raise ValueError(f"{path}: its decoder ({shown}) is neither byte-level nor SentencePiece; not supported")


def _strips(step: Json) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) > 0)


def _steps(decoder: Json) -> Iterator[Json]:
    if decoder.get("type") == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder
