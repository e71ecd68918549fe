r"""The named pre-tokenizers of GGUF: how a byte-level BPE cuts text into words before it merges.

A GGUF file keeps only a name (`tokenizer.ggml.pre`) for the splitting rules of the original tokenizer.json;
this table gives the rules back, as components of the `tokenizers` library. Getting one wrong costs quality
silently, so a name that is not here is refused. Every rule cuts what the one before it left, keeping both
matches and gaps.

Source: the original models' tokenizer.json files; names and their grouping as llama.cpp's vocabulary loader
has them. Where the two differ the original wins (Unicode NFC for Qwen2, OLMo, MPT and Command-R is lost in
GGUF and restored).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Component = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The splitting rules of one tokenizer family.

    `components`: pre-tokenizers in `tokenizers`' JSON form, applied in order, before bytes are mapped to
    characters unless one of them does that itself. `ignore_merges`: a whole word found in the vocabulary is
    taken as it is. `adds_bos`: what the family does when the file does not say. `nfc`: text is composed
    (Unicode NFC) first.
    """

    components: tuple[Component, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    nfc: bool = False


def _split(*patterns: str) -> tuple[Component, ...]:
    return tuple({"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns)


def _byte_level(use_regex: bool) -> Component:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _digits(individual: bool) -> Component:
    return {"type": "Digits", "individual_digits": individual}


_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL
_QWEN35 = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cased(number: str, contraction: str = "") -> str:
    """Words that also end where lower case turns to upper: the o200k and tekken pattern."""
    start = r"[^\r\n\p{L}\p{N}]?"
    words = (f"{start}{_UPPER}*{_LOWER}+{contraction}", f"{start}{_UPPER}+{_LOWER}*{contraction}")
    return "|".join((*words, number, _CASED_TAIL))


_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ"
    # Escaped where a character has a canonical twin that an editor could put in its place, turning the range
    # around.
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"
    "ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_CJK = "[一-龥\u0800-一가-\ud7ff]+"
_DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)

_GPT2 = PreTokenizer((_byte_level(True),))
_GPT2_NFC = PreTokenizer((_byte_level(True),), nfc=True)
_DIGIT_GPT2 = PreTokenizer((_digits(True), _byte_level(True)))
_CL100K = PreTokenizer(_split(_LLAMA3))
_LLAMA_BPE = PreTokenizer(_split(_LLAMA3), ignore_merges=True, adds_bos=True)
_QWEN = PreTokenizer(_split(_QWEN2), nfc=True)
_O200K = PreTokenizer(_split(_cased(r"\p{N}{1,3}", f"{_CONTRACTION}?")))

# What files had before converters recorded a name: llama.cpp's fallback, close to Falcon's rules.
_DEFAULT = PreTokenizer(_split(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"))
_FALCON = PreTokenizer(
    (
        {"type": "Punctuation", "behavior": "Contiguous"},
        _byte_level(True),
        _digits(False),
        *_split(r"[0-9][0-9][0-9]"),
    )
)
_DEEPSEEK_LLM = PreTokenizer(
    (
        *_split("[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$"),
        *_split(_DEEPSEEK_CJK),
        _digits(True),
    )
)
_DEEPSEEK_CODER = PreTokenizer((*_split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK), _digits(True)))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "falcon3": _LLAMA_BPE,
    "pixtral": _LLAMA_BPE,
    "lfm2": _LLAMA_BPE,
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "gigachat": _GPT2,
    "exaone4": _GPT2,
    "jais": _GPT2,
    "mpt": _GPT2_NFC,
    "olmo": _GPT2_NFC,
    "smollm": _DIGIT_GPT2,
    "starcoder": _DIGIT_GPT2,
    "refact": _DIGIT_GPT2,
    "codeshell": _DIGIT_GPT2,
    "exaone": _DIGIT_GPT2,
    "minerva-7b": _DIGIT_GPT2,
    "command-r": PreTokenizer((_digits(True), _byte_level(True)), nfc=True),
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "glm4": _CL100K,
    "chatglm-bpe": _CL100K,
    "qwen2": _QWEN,
    "megrez": _QWEN,
    "deepseek-r1-qwen": PreTokenizer(_split(_QWEN2)),
    "stablelm2": PreTokenizer(_split(_QWEN2)),
    "grok-2": PreTokenizer(_split(_QWEN2)),
    "qwen35": PreTokenizer(_split(_QWEN35), nfc=True),
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-v3": PreTokenizer(_split(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK_V3)),
    "tekken": PreTokenizer(_split(_cased(r"\p{N}")), ignore_merges=True, adds_bos=True),
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "falcon": _FALCON,
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Look a GGUF pre-tokenizer up by its name.

    Raises: ValueError for a name that is not in the table; guessing would change the model's answers
    silently.
    """
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ValueError(f"pre-tokenizer {name!r} is not supported; supported: {known}")
    return found


def pre_tokenizer_json(rules: PreTokenizer) -> Component:
    """Assemble the rules, ending in the byte-level alphabet, as tokenizer.json's `pre_tokenizer`."""
    mapped = any(c["type"] == "ByteLevel" for c in rules.components)
    components = rules.components if mapped else (*rules.components, _byte_level(False))
    return {"type": "Sequence", "pretokenizers": list(components)}
