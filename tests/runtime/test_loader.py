"""load_model: what it returns, and what it refuses before any weight is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_models import isas
from safetensors.numpy import load_file, save_file
from tiny_models import PROMPT, VOCAB_SIZE, tiny_model, transformers_logits

from mansard.core.types import SamplingParams
from mansard.runtime.executor import NativeExecutor
from mansard.runtime.kv_cache import KV_DTYPES
from mansard.runtime.llm import LLM
from mansard.runtime.loader import load_model
from mansard.runtime.model import EngineOptions, load

OPTIONS = EngineOptions(num_blocks=16, num_threads=1, max_model_len=128, activations="float32", kv_dtype="f32")
TEXT = " ".join(f"w{t:03d}" for t in PROMPT)


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tiny Llama with a tokenizer of one word a token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    path = tmp_path / "tiny-llama"
    shutil.copytree(tiny_model("llama", tmp_path_factory.mktemp("tiny")), path)
    tokenizer = Tokenizer(models.WordLevel({f"w{i:03d}": i for i in range(VOCAB_SIZE)}, unk_token="w000"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("w001", special=True), AddedToken("w002", special=True)])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "w001", "eos_token": "w002"}))
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))


def test_a_folder_becomes_a_model_that_runs(folder: Path) -> None:
    model = load_model(str(folder), OPTIONS)
    assert (model.name, model.num_blocks, model.block_size, model.max_model_len) == ("tiny-llama", 16, 16, 128)
    assert model.spec.vocab_size == VOCAB_SIZE
    assert model.spec.num_hidden_layers == 2
    assert model.eos_token_ids == (2,)
    assert isinstance(model.executor, NativeExecutor)
    (output,) = LLM(model).generate(TEXT, SamplingParams(temperature=0.0, max_tokens=1))
    assert output.prompt_token_ids == PROMPT
    assert output.outputs[0].token_ids == (int(transformers_logits("llama", PROMPT)[-1].argmax()),)


def test_load_is_the_door(folder: Path) -> None:
    assert load(str(folder), OPTIONS).fingerprint == load_model(str(folder), OPTIONS).fingerprint


@pytest.mark.parametrize("isa", isas())
def test_the_isa_asked_for_runs(isa: str, folder: Path) -> None:
    executor = load_model(str(folder), replace(OPTIONS, isa=isa)).executor
    assert isinstance(executor, NativeExecutor)
    assert executor.isa == isa


def test_the_best_isa_runs_by_default(folder: Path) -> None:
    executor = load_model(str(folder), OPTIONS).executor
    assert isinstance(executor, NativeExecutor)
    assert executor.isa == isas()[-1]


def test_every_kv_format_loads(folder: Path) -> None:
    sizes = {}
    for name in KV_DTYPES:
        executor = load_model(str(folder), replace(OPTIONS, kv_dtype=name)).executor
        assert isinstance(executor, NativeExecutor)
        sizes[name] = executor.kv_bytes
    assert sizes["f32"] == 2 * sizes["auto"] == 2 * sizes["bf16"] > sizes["int8"] > sizes["int4"]


def test_the_fingerprint_names_what_changes_the_cache(folder: Path) -> None:
    variants = [
        OPTIONS,
        replace(OPTIONS, kv_dtype="f16"),
        replace(OPTIONS, activations="int8"),
        replace(OPTIONS, max_model_len=64),
    ]
    prints = [load_model(str(folder), o).fingerprint for o in variants]
    weights = load_file(folder / "model.safetensors")
    save_file({n: w * np.float32(2) for n, w in weights.items()}, folder / "model.safetensors")
    prints.append(load_model(str(folder), OPTIONS).fingerprint)
    assert len(set(prints)) == len(prints)
    assert load_model(str(folder), OPTIONS).fingerprint == prints[-1]


def test_a_stored_head_wins_over_a_tied_configuration(folder: Path) -> None:
    edit(folder, lambda config: config.update(tie_word_embeddings=True))
    assert not load_model(str(folder), OPTIONS).spec.tie_word_embeddings
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors")
    assert load_model(str(folder), OPTIONS).spec.tie_word_embeddings
    edit(folder, lambda config: config.update(tie_word_embeddings=False))
    with pytest.raises(ValueError, match="lm_head"):
        load_model(str(folder), OPTIONS)


def test_a_missing_weight_is_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.up_proj"):
        load_model(str(folder), OPTIONS)


def test_a_weight_of_another_shape_is_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"] = np.zeros((96, 32), np.float32)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ValueError, match="96 x 32"):
        load_model(str(folder), OPTIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_dtype": "int3"}, "unknown KV-cache format 'int3'"),
        ({"isa": "sse9"}, "sse9"),
        ({"activations": "int4"}, "int4"),
        ({"block_size": 32}, "16 tokens"),
        ({"num_blocks": 2}, "one sequence of 128 needs"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_model(str(folder), replace(OPTIONS, **options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported"),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "spiral"),
        ({"num_attention_heads": 3}, "3"),
        ({"hidden_size": "wide"}, "hidden_size"),
    ],
)
def test_configurations_that_cannot_run_are_refused(change: dict[str, Any], message: str, folder: Path) -> None:
    edit(folder, lambda config: config.update(change))
    with pytest.raises(ValueError, match=message):
        load_model(str(folder), OPTIONS)


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00"])
def test_a_damaged_configuration_is_refused(content: str, folder: Path) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        load_model(str(folder), OPTIONS)


def test_a_model_without_a_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="tokenizer"):
        load_model(str(folder), OPTIONS)


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no model 'nothing-like-this'"):
        load_model("nothing-like-this", OPTIONS)
