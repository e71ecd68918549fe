"""StructuredOutput: which tokens keep an output within a JSON schema, a regular expression or a grammar.

`allowed` is a function of (structure, output tokens). Parsers are kept between calls for speed alone: one that
does not stand where the sequence stands is rolled back or replayed, so preemption, drafts, restarts and
forgetting change nothing. Between the tokens of JSON, white space is bounded (one space, or a line break with
an indent), because a model can otherwise emit white space for ever.

Source: llguidance (https://github.com/guidance-ai/llguidance), whose parser computes a mask in about 0.1 ms.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mansard.core.types import Structure

if TYPE_CHECKING:
    from mansard.loading.tokenizer import Tokenizer

MAX_CHARACTERS = 1 << 16  # of a schema or grammar
WHITE_SPACE = r"(\n {0,16}| )?"

_MAX_COMPILED = 64
_MAX_SEQUENCES = 512
_MAX_GRAMMAR_SIZE = 100_000
_INITIAL_FUEL = 2_000_000  # about 40 ms of preparing regular expressions
_WORD_BITS = 32


class StructureError(ValueError):
    """A structure is malformed, too large, or an output left it."""


class StructuredOutput:
    """Compiles structures for one vocabulary (any thread) and masks tokens (the engine's thread)."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._lock = threading.Lock()  # of the compiled structures
        self._reading = threading.Lock()  # of the vocabulary, once
        self._vocabulary: Any = None
        self._compiled: OrderedDict[Structure, Any] = OrderedDict()
        self._parsers: OrderedDict[str, _Parser] = OrderedDict()
        self._words = np.zeros(-(-vocab_size // _WORD_BITS), np.int32)

    def compile(self, structure: Structure) -> None:
        """Make `structure` ready for use.

        Raises: StructureError with the parser's message; ImportError when llguidance is not installed.
        """
        self._matcher(structure)

    def allowed(self, sequence_id: str, structure: Structure, output_ids: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Return which tokens may follow `output_ids` within `structure`. Shapes: [≥ V].

        Raises: StructureError when `output_ids` are outside of it, or the parser reaches a limit.
        """
        parser = self._parsers.get(sequence_id)
        if parser is None or parser.structure != structure:
            parser = self._parsers[sequence_id] = _Parser(structure, self._matcher(structure))
            if len(self._parsers) > _MAX_SEQUENCES:
                self._parsers.popitem(last=False)
        self._parsers.move_to_end(sequence_id)
        try:
            return parser.mask(list(output_ids), self._words)
        except StructureError:
            del self._parsers[sequence_id]
            raise

    def _matcher(self, structure: Structure) -> Any:
        """Return a fresh parser at the start of `structure`."""
        with self._lock:
            compiled = self._compiled.get(structure)
        if compiled is None:
            compiled = self._compile(structure)  # without the lock: the engine must not wait for another's schema
        with self._lock:
            self._compiled[structure] = compiled
            self._compiled.move_to_end(structure)
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
            return compiled.deep_copy()

    def _compile(self, structure: Structure) -> Any:
        from llguidance import LLMatcher
        from llguidance._lib import LLParserLimits

        grammar = _grammar(structure)
        limits = LLParserLimits(
            max_grammar_size=_MAX_GRAMMAR_SIZE, initial_lexer_fuel=_INITIAL_FUEL, verbose_errors=False
        )
        with self._reading:
            if self._vocabulary is None:
                self._vocabulary = self._read_vocabulary()
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise StructureError(_shortened(matcher.get_error()))
        return matcher

    def _read_vocabulary(self) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        wrapper = TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids))
        return LLTokenizer(wrapper, n_vocab=self._vocab_size, eos_token=list(self._eos_token_ids))


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        if not eos_token_ids:
            raise StructureError("the model has no end-of-sequence token, so no structure could be ended")
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(vocab_size)]
        self.special_token_ids = sorted(i for i in tokenizer.special_token_ids if i < vocab_size)

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False)


class _Parser:
    """A parser and the output tokens that it has taken."""

    def __init__(self, structure: Structure, matcher: Any) -> None:
        self.structure = structure
        self._matcher = matcher
        self._taken: list[int] = []

    def mask(self, output_ids: list[int], words: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return the mask behind `output_ids`; `words` is scratch."""
        self._move_to(output_ids)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()
        return np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_)

    def _move_to(self, output_ids: list[int]) -> None:
        common = len(self._taken)
        if self._taken != output_ids[:common]:
            pairs = zip(self._taken, output_ids, strict=False)
            common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self._taken), len(output_ids)))
            self._matcher.rollback(len(self._taken) - common)
        new = output_ids[common:]
        if new and not self._matcher.consume_tokens(new):
            raise StructureError(f"the output left its structure: {_shortened(self._matcher.get_error())}")
        self._taken = output_ids
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise StructureError(_shortened(self._matcher.get_error()))


def _grammar(structure: Structure) -> str:
    """Return llguidance's form of a structure.

    Raises: StructureError when it is malformed on its face.
    """
    from llguidance import LLMatcher, grammar_from

    if len(structure.text) > MAX_CHARACTERS:
        limit = f"at most {MAX_CHARACTERS:,} are accepted"
        raise StructureError(f"the {structure.kind} has {len(structure.text):,} characters; {limit}")
    try:
        if structure.kind == "regex":
            return LLMatcher.grammar_from_regex(structure.text)
        if structure.kind == "lark":
            return grammar_from("grammar", structure.text)
        return LLMatcher.grammar_from_json_schema(
            _schema(structure.text), overrides={"whitespace_pattern": WHITE_SPACE, "lenient": False}
        )
    except StructureError:
        raise
    except (ValueError, RecursionError) as error:
        raise StructureError(_shortened(str(error))) from error


def _schema(text: str) -> str:
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise StructureError(f"the JSON schema is a {type(schema).__name__}; it must be an object")
    schema.pop("x-guidance", None)  # the parser's own options are not for clients
    return json.dumps(schema)


def _shortened(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= 500 else text[:500] + "…"
