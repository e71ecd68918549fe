"""A toy LoadedModel: a byte-level tokenizer with a few whole words, and an executor whose logits are a table.

The next token depends on the one before (a bigram table drawn from a seed), or follows a script; the real
sampler chooses. Steps are instant unless they are told to wait.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mansard.core.types import ScheduledSequence, StepPlan, StepResult
from mansard.loading.chat_template import ChatTemplate
from mansard.loading.tokenizer import Tokenizer, TokenizerParts, byte_alphabet
from mansard.runtime.model import LoadedModel
from mansard.runtime.pooling import Pooling
from mansard.runtime.sampler import Sampler, num_logit_rows, row_offsets
from mansard.runtime.structured_output import StructuredOutput
from mansard.specs.model import ModelSpec

BOS, EOS, TURN, TURN_END = 256, 257, 258, 259
PIECES = ("The quick br", "own fo", "x jumps", "DEF", "HI")
LITERALS = {BOS: "<s>", EOS: "</s>", TURN: "<|im_start|>", TURN_END: "<|im_end|>"}
LITERALS |= {260 + i: piece for i, piece in enumerate(PIECES)}
VOCAB_SIZE = 260 + len(PIECES)
SPECIAL = frozenset({BOS, EOS, TURN, TURN_END})
SPLIT = re.compile(f"({'|'.join(re.escape(LITERALS[i]) for i in sorted(SPECIAL))})")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Script = Callable[[ScheduledSequence, int], int | None]  # (part, place in the output) → the token, or None: table


def piece(text: str) -> int:
    """Return the id of a whole word."""
    return 260 + PIECES.index(text)


@dataclass
class _Encoding:
    ids: list[int]


class _ByteBackend:
    """Encodes specials as themselves and everything else as bytes."""

    def encode_batch_fast(self, input: list[str], *, add_special_tokens: bool = True) -> list[Any]:
        return [_Encoding([i for part in SPLIT.split(text) for i in self._ids(part)]) for text in input]

    def _ids(self, part: str) -> list[int]:
        special = next((i for i in SPECIAL if LITERALS[i] == part), None)
        return list(part.encode()) if special is None else [special]


def toy_tokenizer() -> Tokenizer:
    alphabet = {byte: character for character, byte in byte_alphabet().items()}
    texts = {i: alphabet[i] for i in range(256)} | LITERALS
    return Tokenizer(
        TokenizerParts(
            backend=_ByteBackend(),
            vocab_size=VOCAB_SIZE,
            id_to_text=texts.get,
            literal=LITERALS,
            special_token_ids=SPECIAL,
            byte_level=True,
            strips_leading_space=False,
            bos_token_id=BOS,
            eos_token_ids=(EOS, TURN_END),
        )
    )


@dataclass
class ToyExecutor:
    """Computes bigram logits and samples; `gate` holds steps back, `fails` makes them raise."""

    seed: int = 0
    script: Script | None = None
    step_s: float = 0.0
    fails: Callable[[StepPlan], bool] = lambda plan: False
    poisons: Callable[[ScheduledSequence], bool] = lambda part: False
    gate: threading.Event = field(default_factory=threading.Event)
    plans: list[StepPlan] = field(default_factory=list)
    pools: dict[str, Pooling] = field(default_factory=dict)

    def __post_init__(self) -> None:
        table = np.random.default_rng(self.seed).normal(0, 2, (VOCAB_SIZE, VOCAB_SIZE))
        table[:, sorted(SPECIAL)] = -30.0  # ends come from scripts and lengths
        table[:, :32] = table[:, 127:256] = -20.0  # mostly printable ASCII
        self.table = table.astype(np.float32)
        self.structures = StructuredOutput(toy_tokenizer(), VOCAB_SIZE, (EOS, TURN_END))
        self.sampler = Sampler(VOCAB_SIZE, (EOS, TURN_END), self.structures)
        self.gate.set()

    def execute(self, plan: StepPlan) -> StepResult:
        self.gate.wait()
        if self.step_s:
            time.sleep(self.step_s)
        self.plans.append(plan)
        if self.fails(plan):
            raise RuntimeError("the toy broke")
        logits = np.zeros((row_offsets(plan)[-1], VOCAB_SIZE), np.float32)
        row = 0
        for part in plan.sequences:
            if part.request.id in self.pools:
                self.pools[part.request.id].add(part.start, self.table[list(part.token_ids), 32:40])
            count = num_logit_rows(part)
            ids = part.token_ids[len(part.token_ids) - count :]
            logits[row : row + count] = self.table[list(ids)]
            for i in range(count):
                self._overrule(part, part.start + len(part.token_ids) - count + i + 1, logits[row + i])
            row += count
        return StepResult(tuple(self.sampler.sample(plan, logits)), 0.0)

    def _overrule(self, part: ScheduledSequence, position: int, row: np.ndarray) -> None:
        place = position - len(part.request.prompt_token_ids)
        token = self.script(part, place) if self.script and place >= 0 else None
        if token is not None:
            row[:] = -50.0
            row[token] = 0.0
        if self.poisons(part):
            row[3] = np.nan


def say(*token_ids: int) -> Script:
    """Script an output: these tokens, then EOS for ever."""
    return lambda part, place: token_ids[place] if place < len(token_ids) else EOS


def toy_model(
    executor: ToyExecutor | None = None,
    *,
    num_blocks: int = 256,
    max_model_len: int = 512,
    template: str | None = TEMPLATE,
) -> LoadedModel:
    executor = executor or ToyExecutor()
    spec = ModelSpec(
        model_type="llama",
        num_hidden_layers=1,
        hidden_size=8,
        intermediate_size=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=512,
        name="toy",
    )
    return LoadedModel(
        name="toy",
        spec=spec,
        tokenizer=toy_tokenizer(),
        executor=executor,
        num_blocks=num_blocks,
        block_size=16,
        max_model_len=max_model_len,
        eos_token_ids=(EOS, TURN_END),
        chat_template=None if template is None else ChatTemplate(template),
        structures=executor.structures,
    )


def tokens_of(text: str) -> Sequence[int]:
    return list(text.encode())
