"""The text stream: final text only, whole characters only, and nothing of a stop string."""

import codecs
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import sentencepiece_metadata

from mansard.core.types import SamplingParams
from mansard.loading.tokenizer import Tokenizer
from mansard.runtime.text_stream import TextDelta, TextStream


class Pieces:
    """A vocabulary of given byte strings; ids in `special` are control tokens."""

    def __init__(self, *pieces: str | bytes, special: frozenset[int] = frozenset()) -> None:
        self.pieces = [p.encode() if isinstance(p, str) else p for p in pieces]
        self.special_token_ids = special

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def decode(self, token_ids: list[int]) -> str:
        return b"".join(self.pieces[i] for i in token_ids).decode("utf-8", "replace")


def params(*stop: str, **options: Any) -> SamplingParams:
    return SamplingParams(stop=stop, **options)


def stream_all(stream: TextStream, token_ids: list[int]) -> tuple[list[str], str | None]:
    """Push one token at a time; return the deltas, the flushed tail last, and the stop string."""
    deltas = []
    for token_id in token_ids:
        delta = stream.push([token_id])
        deltas.append(delta.text)
        if delta.stopped:
            return deltas, delta.stop_string
    return [*deltas, stream.finish()], None


# ---- Characters of several bytes. ---

BYTES = Tokenizer.from_gguf(sentencepiece_metadata(["a", "b", "▁the"]))  # byte b is id 3 + b


def byte_ids(text: str) -> list[int]:
    return [3 + b for b in text.encode()]


@pytest.mark.parametrize("text", ["😀", "ď", "삼겹살", "aď😀삼겹살z"])
def test_split_characters_come_whole(text: str) -> None:
    """A reply once showed U+FFFD for every emoji because each token was decoded alone."""
    deltas, _ = stream_all(TextStream(BYTES, params()), byte_ids(text))
    assert [d for d in deltas if d] == list(text)


def test_incomplete_tail_is_held_and_flushed_as_one_replacement() -> None:
    deltas, _ = stream_all(TextStream(BYTES, params()), byte_ids("ok😀")[:-1])
    assert deltas == ["o", "k", "", "", "", "\ufffd"]


def test_invalid_byte_between_valid_ones_loses_nothing() -> None:
    ids = [*byte_ids("é"), 3 + 0xFF, *byte_ids("😀"), 3 + 0xC3, *byte_ids("z")]
    deltas, _ = stream_all(TextStream(BYTES, params()), ids)
    assert "".join(deltas) == BYTES.decode(ids, continues=True) == "é\ufffd😀\ufffdz"


def test_space_of_the_first_word_is_kept_after_a_prompt() -> None:
    deltas, _ = stream_all(TextStream(BYTES, params()), [261, 259])
    assert "".join(deltas) == " thea" == BYTES.decode([261, 259], continues=True)


def test_special_tokens_are_skipped_or_shown() -> None:
    ids = [259, 2, 260]
    assert stream_all(TextStream(BYTES, params()), ids)[0] == ["a", "", "b", ""]
    assert stream_all(TextStream(BYTES, params(skip_special_tokens=False)), ids)[0] == ["a", "</s>", "b", ""]


def test_a_skipped_token_does_not_break_a_character() -> None:
    half, rest = byte_ids("😀")[:2], byte_ids("😀")[2:]
    assert "".join(stream_all(TextStream(BYTES, params()), [*half, 2, *rest])[0]) == "😀"


# ---- Stop strings. ---

FOX = Pieces("The quick br", "own fo", "x jumps")


def test_stop_string_across_tokens_does_not_leak() -> None:
    deltas, stop = stream_all(TextStream(FOX, params("own fox")), [0, 1, 2])
    assert (deltas, stop) == (["The quick br", "", ""], "own fox")


def test_near_miss_is_released_unchanged() -> None:
    """The last "o" of "own fo" may begin another "own fax", so it alone waits."""
    deltas, stop = stream_all(TextStream(FOX, params("own fax")), [0, 1, 2])
    assert (deltas, stop) == (["The quick br", "own f", "ox jumps", ""], None)


def test_near_miss_later_is_released_when_it_fails() -> None:
    deltas, _ = stream_all(TextStream(FOX, params("own foxes")), [0, 1, 2])
    assert deltas == ["The quick br", "", "own fox jumps", ""]


@pytest.mark.parametrize("stops", [("own", "own fox"), ("own fox", "own")])
def test_of_two_stops_the_one_that_ends_first_counts(stops: tuple[str, str]) -> None:
    deltas, stop = stream_all(TextStream(FOX, params(*stops)), [0, 1, 2])
    assert ("".join(deltas), stop) == ("The quick br", "own")


def test_of_stops_that_end_together_the_longest_counts() -> None:
    deltas, stop = stream_all(TextStream(FOX, params("fox", "n fox")), [0, 1, 2])
    assert ("".join(deltas), stop) == ("The quick brow", "n fox")


def test_only_what_may_become_a_stop_is_held() -> None:
    """For stop "aab" the text "aaa" leaves two characters that may begin it, never three."""
    stream = TextStream(Pieces("a", "b"), params("aab"))
    assert [stream.push([0]).text for _ in range(4)] == ["", "", "a", "a"]
    assert stream.push([1]) == TextDelta("", True, "aab", 1)


def test_held_text_is_flushed_at_the_end() -> None:
    stream = TextStream(FOX, params("own fox"))
    assert stream.push([0, 1]) == TextDelta("The quick br", num_tokens=2)
    assert stream.finish() == "own fo"
    assert stream.finish() == ""


def test_stop_may_be_kept_in_the_output() -> None:
    deltas, stop = stream_all(TextStream(FOX, params("own fox", include_stop_str_in_output=True)), [0, 1, 2])
    assert (deltas, stop) == (["The quick br", "own fo", "x"], "own fox")


def test_tokens_behind_a_stop_do_not_count() -> None:
    """Several tokens accepted in one step may run past the stop string."""
    assert TextStream(FOX, params("quick")).push([0, 1, 2]) == TextDelta("The ", True, "quick", 1)
    assert TextStream(FOX, params("n f")).push([0, 1, 2]) == TextDelta("The quick brow", True, "n f", 2)


def test_stop_is_not_looked_for_before_min_tokens() -> None:
    tokens = Pieces("a", "STOP", "STO", "P")
    assert stream_all(TextStream(tokens, params("STOP", min_tokens=3)), [1, 0, 1]) == (["STOP", "a", ""], "STOP")
    # A stop string that only ends with the third token counts, and none of it was sent.
    assert stream_all(TextStream(tokens, params("STOP", min_tokens=3)), [0, 2, 3]) == (["a", "", ""], "STOP")
    assert stream_all(TextStream(tokens, params("STOP", min_tokens=4)), [0, 2, 3]) == (["a", "", "STOP", ""], None)


def test_overlapping_stop_after_a_suppressed_one() -> None:
    """The first match comes too early; the end of it begins the next."""
    tokens = Pieces("aba", "ba")
    assert stream_all(TextStream(tokens, params("aba", min_tokens=2)), [0, 1]) == (["ab", ""], "aba")


def test_stop_string_in_split_characters() -> None:
    deltas, stop = stream_all(TextStream(BYTES, params("é😀")), byte_ids("aé😀b"))
    assert ("".join(deltas), stop) == ("a", "é😀")


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        TextStream(FOX, params(""))


# ---- Laws. ---

ALPHABET = Pieces(
    "a", "b", "ab", "ba", "é", b"\xc3", b"\xa9", "😀", b"\xf0\x9f", b"\x98\x80", b"\xff", special=frozenset({4})
)
token_lists = st.lists(st.integers(0, 10), max_size=20)
stop_lists = st.lists(st.text("abé😀", min_size=1, max_size=4), max_size=3)


def cut(token_ids: list[int], cuts: set[int]) -> list[list[int]]:
    edges = [0, *sorted(c for c in cuts if c < len(token_ids)), len(token_ids)]
    return [token_ids[a:b] for a, b in itertools.pairwise(edges)]


@given(token_ids=token_lists, cuts=st.sets(st.integers(0, 20)), skip=st.booleans())
@settings(max_examples=200, deadline=None)
def test_deltas_join_to_the_full_decode(token_ids: list[int], cuts: set[int], skip: bool) -> None:
    stream = TextStream(ALPHABET, params(skip_special_tokens=skip))
    text = "".join(stream.push(part).text for part in cut(token_ids, cuts)) + stream.finish()
    assert text == ALPHABET.decode([i for i in token_ids if not (skip and i in ALPHABET.special_token_ids)])


def naive_stop(token_ids: list[int], stop: list[str], min_tokens: int, keep: bool) -> tuple[str, str | None, int]:
    """Search the whole text again after every character: the definition."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    for count, token_id in enumerate(token_ids, 1):
        for character in "" if token_id in ALPHABET.special_token_ids else decoder.decode(ALPHABET.pieces[token_id]):
            text += character
            ended = [s for s in stop if text.endswith(s)]
            if ended and count >= min_tokens:
                longest = max(ended, key=len)
                return (text if keep else text.removesuffix(longest)), longest, count
    return text + decoder.decode(b"", True), None, len(token_ids)


@given(
    token_ids=token_lists,
    cuts=st.sets(st.integers(0, 20)),
    stop=stop_lists,
    min_tokens=st.integers(0, 8),
    keep=st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_any_split_gives_the_text_that_the_definition_gives(
    token_ids: list[int], cuts: set[int], stop: list[str], min_tokens: int, keep: bool
) -> None:
    options = {"min_tokens": min_tokens, "include_stop_str_in_output": keep}
    stream = TextStream(ALPHABET, params(*stop, **options))
    text, found, count = "", None, 0
    for part in cut(token_ids, cuts):
        delta = stream.push(part)
        text, count = text + delta.text, count + delta.num_tokens
        if delta.stopped:
            found = delta.stop_string
            break
    text += stream.finish()
    assert (text, found, count) == naive_stop(token_ids, stop, min_tokens, keep)


@given(token_ids=token_lists, stop=stop_lists)
@settings(max_examples=300, deadline=None)
def test_what_is_held_is_the_longest_possible_beginning_of_a_stop(token_ids: list[int], stop: list[str]) -> None:
    stream = TextStream(ALPHABET, params(*stop))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    whole = sent = ""
    for token_id in token_ids:
        delta = stream.push([token_id])
        if delta.stopped:
            return
        sent += delta.text
        whole += "" if token_id in ALPHABET.special_token_ids else decoder.decode(ALPHABET.pieces[token_id])
        beginnings = {s[:n] for s in stop for n in range(1, len(s))}
        held = max((len(b) for b in beginnings if whole.endswith(b)), default=0)
        assert sent == whole[: len(whole) - held]
