"""Tokenizer: files, prompts, BOS and EOS, and what bytes ids stand for."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import bpe_metadata, sentencepiece_metadata, smollm_bpe
from tokenizer_corpus import TEXTS
from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from mansard.loading.tokenizer import Tokenizer


def write(folder: Path, backend: Backend, **files: object) -> Path:
    """Write tokenizer.json and the named configurations beside it."""
    path = folder / "tokenizer.json"
    backend.save(str(path))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return path


def llama_like() -> Backend:
    """SentencePiece BPE as transformers writes it: byte fallback, a space put before the text, BOS before all."""
    metadata: dict[str, Any] = sentencepiece_metadata(["▁", "a", "b", "▁a", "▁ab", "ab"])
    vocabulary = {text: i for i, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [("▁", "a"), ("▁a", "b"), ("a", "b")]
    backend = Backend(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def test_byte_level_file_equals_the_library(tmp_path: Path) -> None:
    backend = smollm_bpe()
    tokenizer = Tokenizer.from_file(write(tmp_path, backend))
    for text in (*TEXTS, "<|im_start|>x<|im_end|>"):
        ids = backend.encode(text).ids
        assert tokenizer.encode(text, add_special_tokens=True) == ids
        for skip in (True, False):
            assert tokenizer.decode(ids, skip) == backend.decode(ids, skip_special_tokens=skip)
    assert tokenizer.vocab_size == backend.get_vocab_size()
    assert not tokenizer.adds_bos


def test_sentencepiece_file_equals_the_library(tmp_path: Path) -> None:
    backend = llama_like()
    tokenizer = Tokenizer.from_file(write(tmp_path, backend))
    for text in ("ab a", " ab", "  b", "aé😀삼", "a</s>b", ""):
        ids = backend.encode(text).ids
        assert tokenizer.encode(text, add_special_tokens=True) == ids
        assert tokenizer.decode(ids) == backend.decode(ids)
    assert (tokenizer.bos_token_id, tokenizer.adds_bos) == (1, True)


def test_file_and_gguf_agree(tmp_path: Path) -> None:
    backend = smollm_bpe()
    from_file = Tokenizer.from_file(write(tmp_path, backend, tokenizer_config={"eos_token": "<|im_end|>"}))
    from_gguf = Tokenizer.from_gguf(bpe_metadata(backend, "smollm"))
    assert from_file.eos_token_ids == from_gguf.eos_token_ids == (2, 0)
    assert from_file.special_token_ids == from_gguf.special_token_ids == {0, 1, 2}
    for token_id in range(-1, from_gguf.vocab_size + 2):
        assert from_file.token_bytes(token_id) == from_gguf.token_bytes(token_id)
        assert from_file.id_to_token(token_id) == from_gguf.id_to_token(token_id)


def test_other_decoders_are_refused_by_name(tmp_path: Path) -> None:
    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="WordPiece"):
        Tokenizer.from_file(write(tmp_path, backend))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": 1}'])
def test_a_broken_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Tokenizer.from_file(path)


def test_a_broken_configuration_is_one_clear_error(tmp_path: Path) -> None:
    path = write(tmp_path, smollm_bpe(), generation_config=[1])
    with pytest.raises(ValueError, match=r"generation_config\.json: holds list"):
        Tokenizer.from_file(path)


# ---- EOS. ---


def test_eos_is_the_union_of_all_places(tmp_path: Path) -> None:
    backend = smollm_bpe()
    backend.add_special_tokens(["<eos>", "<custom>", "<|eot_id|>"])
    ids = {t: backend.token_to_id(t) for t in ("<eos>", "<custom>", "<|eot_id|>")}
    tokenizer = Tokenizer.from_file(
        write(
            tmp_path,
            backend,
            tokenizer_config={"eos_token": {"content": "<eos>"}},
            generation_config={"eos_token_id": [ids["<custom>"], 10**9]},
            config={"text_config": {"eos_token_id": 0}},
        )
    )
    assert tokenizer.eos_token == "<eos>"
    assert set(tokenizer.eos_token_ids) == {0, 2, *ids.values()}
    assert len(tokenizer.eos_token_ids) == 5


def test_gguf_eos_comes_from_every_key_and_from_known_names() -> None:
    metadata = bpe_metadata(smollm_bpe(), "smollm") | {
        "tokenizer.ggml.eos_token_id": 5,
        "tokenizer.ggml.eot_token_id": 6,
        "tokenizer.ggml.eom_token_id": 7,
    }
    assert Tokenizer.from_gguf(metadata).eos_token_ids == (5, 6, 7, 2, 0)


def test_an_ordinary_token_spelled_like_an_end_is_none() -> None:
    pieces = ["<", "|", "e", "n", "d", ">", "<|end|>"]
    assert Tokenizer.from_gguf(sentencepiece_metadata(pieces)).eos_token_ids == (2,)


@pytest.mark.parametrize(("texts", "ends"), [(["<|end|>"], {"<|end|>"}), (["<|end|>", "<|return|>"], {"<|return|>"})])
def test_end_of_channel_is_no_end_where_there_is_a_return(tmp_path: Path, texts: list[str], ends: set[str]) -> None:
    """gpt-oss closes its reasoning with <|end|> and goes on; Phi-3 ends its turn with it."""
    backend = smollm_bpe()
    backend.add_special_tokens(texts)
    tokenizer = Tokenizer.from_file(write(tmp_path, backend))
    found = {tokenizer.id_to_token(i) for i in tokenizer.eos_token_ids}
    assert found - {"<|endoftext|>", "<|im_end|>"} == ends


# ---- BOS: exactly one, and only where it is asked for. ---


def with_bos(add: bool | None) -> Tokenizer:
    metadata = bpe_metadata(smollm_bpe(), "smollm")
    del metadata["tokenizer.ggml.add_bos_token"]
    return Tokenizer.from_gguf(metadata if add is None else metadata | {"tokenizer.ggml.add_bos_token": add})


def test_raw_prompt_gets_one_bos_iff_asked(caplog: pytest.LogCaptureFixture) -> None:
    asks, does_not = with_bos(True), with_bos(False)
    plain = asks.encode("Hello", add_special_tokens=False)
    assert asks.encode_prompt("Hello") == [1, *plain]
    assert asks.encode_prompt("") == [1]
    assert does_not.encode_prompt("Hello") == plain
    assert not caplog.records


def test_prompt_that_begins_with_bos_is_kept_and_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """A second BOS in front degrades the answer; stripping the caller's text would hide what was sent."""
    asks = with_bos(True)
    with caplog.at_level(logging.WARNING):
        ids = asks.encode_prompt("<|im_start|>Hello")
    assert ids == asks.encode("<|im_start|>Hello", add_special_tokens=False)
    assert ids.count(1) == 1
    assert "already begins with <|im_start|>" in caplog.text


def test_rendered_chat_has_one_bos() -> None:
    asks = with_bos(True)
    ids = asks.encode(asks.bos_token + "user\nHi", add_special_tokens=False)
    assert ids.count(1) == 1
    assert ids[0] == 1


def test_stray_bos_id_in_metadata_adds_nothing() -> None:
    assert with_bos(None).encode_prompt("Hi") == with_bos(None).encode("Hi", add_special_tokens=False)


def test_families_that_always_add_bos_do_so_without_being_told() -> None:
    metadata = sentencepiece_metadata(["▁", "a", "▁a"])
    assert Tokenizer.from_gguf(metadata).encode_prompt("a") == [1, 261]
    del metadata["tokenizer.ggml.bos_token_id"]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert (tokenizer.encode_prompt("a"), tokenizer.bos_token) == ([261], "")


def test_eos_after_a_text_but_never_after_a_prompt() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(["▁", "a", "▁a"], add_eos_token=True))
    assert tokenizer.encode("a", add_special_tokens=True) == [1, 261, 2]
    assert tokenizer.encode_prompt("a") == [1, 261]


# ---- Bytes. ---


def test_token_bytes_of_each_kind() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(["▁the", "é", "<0xZZ>"]))
    names = {tokenizer.id_to_token(i): i for i in range(tokenizer.vocab_size)}
    expected = {"<s>": b"<s>", "<0xFF>": b"\xff", "▁the": b" the", "é": "é".encode(), "<0xZZ>": b"<0xZZ>"}
    assert {t: tokenizer.token_bytes(names[t]) for t in expected} == expected


def test_invalid_bytes_are_one_replacement_each_and_never_lose_neighbours() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(["a", "b"], add_space_prefix=False))
    byte = {b: 3 + b for b in range(256)}
    smile = [byte[b] for b in "😀".encode()]
    a, b = 259, 260
    assert tokenizer.decode([a, byte[0xFF], b]) == "a\ufffdb"
    assert tokenizer.decode([a, *smile[:3]]) == "a\ufffd"
    assert tokenizer.decode([*smile, byte[0x80], *smile]) == "😀\ufffd😀"


# ---- Chat template sources. ---


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("{{ x }}", "{{ x }}"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool_use", "template": "t"}], None),
        (None, None),
    ],
)
def test_chat_template_of_a_configuration(tmp_path: Path, value: object, source: str | None) -> None:
    path = write(tmp_path, smollm_bpe(), tokenizer_config={"chat_template": value})
    assert Tokenizer.from_file(path).chat_template == source
    (tmp_path / "chat_template.jinja").write_text("own file", encoding="utf-8")
    assert Tokenizer.from_file(path).chat_template == "own file"
