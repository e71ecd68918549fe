"""Small tokenizers to test with: trained byte-level BPE, and a SentencePiece vocabulary as GGUF metadata has it."""

from collections.abc import Iterable
from typing import Any

from tokenizer_corpus import TEXTS
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def trained_bpe(
    pre_tokenizer: Any, normalizer: Any = None, ignore_merges: bool = False, vocab_size: int = 700
) -> Tokenizer:
    """Train a byte-level BPE tokenizer on the corpus; ids 0 to 2 are special."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def smollm_bpe(vocab_size: int = 700) -> Tokenizer:
    """Train with SmolLM's rules."""
    rules = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return trained_bpe(pre_tokenizers.Sequence(rules), vocab_size=vocab_size)


def bpe_metadata(tokenizer: Tokenizer, pre: str) -> dict[str, object]:
    """Write a byte-level BPE tokenizer as a GGUF converter does."""
    import json

    model = json.loads(tokenizer.to_str())["model"]
    texts = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [3 if t in SPECIAL else 1 for t in texts],
        "tokenizer.ggml.merges": [" ".join(m) if isinstance(m, list) else m for m in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def sentencepiece_metadata(pieces: Iterable[str], **changes: object) -> dict[str, object]:
    """Build a vocabulary: <unk>, <s>, </s>, the 256 bytes, and `pieces`, better scores first."""
    pieces = list(pieces)
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(pieces))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


class NaiveSentencePiece:
    """Encodes by the definition: merge the pair whose union scores best, leftmost first; the rest is bytes."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        texts, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        self.scores = metadata["tokenizer.ggml.scores"]
        self.ids = {t: i for i, (t, kind) in enumerate(zip(texts, kinds, strict=True)) if kind == 1}
        self.first_byte = texts.index("<0x00>")

    def encode(self, text: str) -> list[int]:
        symbols = list(text.replace(" ", "▁"))
        while True:
            unions = [symbols[i] + symbols[i + 1] for i in range(len(symbols) - 1)]
            pairs = [(self.scores[self.ids[u]], -i) for i, u in enumerate(unions) if u in self.ids]
            if not pairs:
                break
            at = -max(pairs)[1]
            symbols[at : at + 2] = [unions[at]]
        found = ([self.ids[s]] if s in self.ids else [self.first_byte + b for b in s.encode()] for s in symbols)
        return [i for ids in found for i in ids]
