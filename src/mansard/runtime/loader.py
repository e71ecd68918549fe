"""load_model: from a model's name to a LoadedModel on this machine's processor.

Order matters for the time to the first token: the tokenizer is built in a thread beside the packing of weights, which
runs without the GIL. What the engine cannot run is refused here, before any weight is read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from mansard.loading.chat_template import ChatTemplate
from mansard.loading.ggml_blocks import dequantize
from mansard.loading.model_files import ModelFiles, locate
from mansard.loading.tokenizer import Tokenizer
from mansard.loading.weights import Weights, resolve_head
from mansard.program.decoder import decoder
from mansard.program.ops import Program
from mansard.runtime.executor import NativeExecutor
from mansard.runtime.kv_cache import KV_DTYPES, KvSizing, block_bytes
from mansard.runtime.machine import available_memory_bytes, num_usable_cores
from mansard.runtime.model import EngineOptions, LoadedModel
from mansard.runtime.native_program import NativeLimits, compile_program
from mansard.runtime.sampler import Sampler
from mansard.runtime.structured_output import StructuredOutput
from mansard.specs.gguf_config import ROPE_FACTOR_TENSORS, from_gguf
from mansard.specs.hf_config import from_hf, supported_by_engine
from mansard.specs.model import ModelSpec

_log = logging.getLogger(__name__)


def load_model(model: str, options: EngineOptions) -> LoadedModel:
    """Load `model` (a path, a packaged model's name or a Hugging Face id) as `options` say.

    Raises: ValueError, naming what the engine cannot run, what does not fit or what is wrong with the files.
    """
    start = time.perf_counter()
    files = locate(model)
    weights = Weights.open(files.root)
    spec = read_spec(files, weights)
    supported_by_engine(spec)
    with ThreadPoolExecutor(1) as pool:
        tokenizer = pool.submit(read_tokenizer, files, weights)
        loaded = build(spec, weights, options)
        words = tokenizer.result()
    eos = words.eos_token_ids
    structures = StructuredOutput(words, spec.vocab_size, eos)
    executor = NativeExecutor(
        loaded.native, spec.vocab_size, Sampler(spec.vocab_size, eos, structures), spec.hidden_size
    )
    return LoadedModel(
        name=files.name,
        spec=spec,
        tokenizer=words,
        executor=executor,
        num_blocks=loaded.limits.num_blocks,
        block_size=options.block_size,
        max_model_len=loaded.limits.max_model_len,
        eos_token_ids=eos,
        chat_template=_chat_template(words, options),
        fingerprint=_fingerprint(files, loaded.limits),
        load_s=time.perf_counter() - start,
        structures=structures,
    )


def read_spec(files: ModelFiles, weights: Weights) -> ModelSpec:
    """Return the architecture that a model's files describe, its output matrix tied as the tensors show.

    Raises: ValueError for an unknown architecture or an unsound configuration.
    """
    if files.kind == "gguf":
        assert weights.gguf is not None
        stored = weights.rope_tensors
        factors = {n: dequantize(stored[n]).tolist() for n in ROPE_FACTOR_TENSORS if n in stored}
        spec = from_gguf(weights.gguf.metadata, weights.gguf.tensors.keys(), rope_factors=factors, name=files.name)
    else:
        assert files.config is not None
        spec = from_hf(_json(files.config), name=files.name)
    return replace(spec, tie_word_embeddings=resolve_head(weights, spec.tie_word_embeddings) != "lm_head.weight")


def read_tokenizer(files: ModelFiles, weights: Weights) -> Tokenizer:
    """Return the tokenizer that belongs to a model's files.

    Raises: ValueError when there is none or it is unsound.
    """
    if files.kind == "gguf":
        assert weights.gguf is not None
        return Tokenizer.from_gguf(weights.gguf.metadata, files.root)
    if "tokenizer.json" not in files.tokenizer:
        raise ValueError(f"{files.root} has no tokenizer.json (save it with the tokenizers library)")
    return Tokenizer.from_file(files.tokenizer["tokenizer.json"])


@dataclass(frozen=True, slots=True)
class _Built:
    native: object
    limits: NativeLimits


def build(spec: ModelSpec, weights: Weights, options: EngineOptions) -> _Built:
    """Pack the weights and lay out the KV cache; see `NativeLimits` for what was chosen."""
    max_model_len = options.max_model_len or spec.max_position_embeddings
    program = decoder(spec, max_model_len=max_model_len)
    sizing = kv_sizing(program, spec, options)
    limits = NativeLimits(
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=sizing.max_model_len,
        num_blocks=sizing.num_blocks,
        kv_dtype=sizing.kv_dtype,
        num_threads=options.num_threads or num_usable_cores(),
        activations=options.activations,
        isa=options.isa,
    )
    return _Built(compile_program(program, weights, limits), limits)


def kv_sizing(program: Program, spec: ModelSpec, options: EngineOptions) -> KvSizing:
    """Choose the KV cache's format, its blocks and the longest sequence it admits."""
    if options.kv_dtype not in KV_DTYPES:
        raise ValueError(f"unknown KV-cache format {options.kv_dtype!r}; choose one of {', '.join(KV_DTYPES)}")
    kv_dtype = KV_DTYPES[options.kv_dtype]
    if kv_dtype == "int4":
        _log.warning("an int4 KV cache costs small models much quality; measure it with `mansard eval --kv f16,int4`")
    return KvSizing.choose(
        bytes_per_block=block_bytes(program, kv_dtype),
        block_size=options.block_size,
        kv_dtype=kv_dtype,
        context=spec.max_position_embeddings,
        max_model_len=options.max_model_len,
        num_blocks=options.num_blocks,
        kv_cache_bytes=options.kv_cache_bytes,
        max_num_seqs=options.max_num_seqs,
        available_bytes=available_memory_bytes(),
    )


def _json(path: Path) -> Mapping[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return value


def _fingerprint(files: ModelFiles, limits: NativeLimits) -> str:
    """Name what changes a block's contents beside its tokens: the files and how they are computed with."""
    parts = [f"{p}:{p.stat().st_size}:{p.stat().st_mtime_ns}" for p in files.weights]
    parts += [limits.kv_dtype, limits.activations, str(limits.max_model_len)]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def _chat_template(words: Tokenizer, options: EngineOptions) -> ChatTemplate | None:
    if words.chat_template is None and options.chat_template is None:
        return None
    return ChatTemplate.choose(
        words.chat_template, options.chat_template, bos_token=words.bos_token, eos_token=words.eos_token
    )
