"""LoadedModel: everything that running a model needs, in one value, and the options it is loaded with.

`mansard.runtime.executor.load_model` returns it; `LLM`, the server and the command line take it. Tests build
one around a toy executor and a toy tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mansard.core.config import SchedulerConfig
from mansard.core.types import Executor
from mansard.specs.model import ModelSpec

if TYPE_CHECKING:
    from mansard.loading.chat_template import ChatTemplate
    from mansard.loading.tokenizer import Tokenizer
    from mansard.runtime.structured_output import StructuredOutput

DEFAULT_MODEL = "smollm2"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to load and run a model; `None` leaves the choice to the loader or the machine.

    Units: kv_cache_bytes: bytes for the whole KV cache; num_blocks: the same as a count of blocks of
    block_size tokens, which wins over kv_cache_bytes.
    """

    max_model_len: int | None = None  # prompt and output tokens; None: what the model and the KV cache allow
    kv_dtype: str = "auto"
    num_threads: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    enable_prefix_caching: bool = True
    enable_priority: bool = False  # let requests say which run first
    seed: int = 0
    chat_template: str | None = None  # a built-in name, a file or a template's text; None: the model's own
    activations: Literal["int8", "int16", "float32"] = "int8"  # what quantized weights are multiplied with
    isa: str = ""  # portable, avx2 or avx512; "": the best this processor runs

    def __post_init__(self) -> None:
        for name in ("max_model_len", "num_threads", "block_size", "num_blocks", "kv_cache_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")

    def scheduler_config(self, max_model_len: int) -> SchedulerConfig:
        """Return the scheduler's limits for a model that was loaded with `max_model_len`."""
        return SchedulerConfig(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_model_len=max_model_len,
            enable_prefix_caching=self.enable_prefix_caching,
            enable_priority=self.enable_priority,
            min_decode_share=0.25,
        )


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    `num_blocks` blocks of `block_size` tokens are the executor's KV cache. `fingerprint` names what changes
    KV beside the tokens (file, formats), for the prefix cache. `load_s` is how long loading took.
    """

    name: str
    spec: ModelSpec
    tokenizer: Tokenizer
    executor: Executor
    num_blocks: int
    block_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    chat_template: ChatTemplate | None = None
    fingerprint: str = ""
    load_s: float = 0.0
    structures: StructuredOutput | None = None  # what the executor's sampler constrains outputs with


def load(model: str, options: EngineOptions) -> LoadedModel:
    """Load `model` (a file, a directory, a Hugging Face id or a name like "smollm2") as `options` say.

    Raises: ValueError or OSError, saying what is wrong with the model or the options.
    """
    from mansard.runtime.loader import load_model

    return load_model(model, options)
