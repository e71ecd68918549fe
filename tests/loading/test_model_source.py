"""What people name as a model becomes a ModelSpec: presets, configs, directories, GGUF files and cached ids."""

import json

import pytest

from mansard.loading.gguf_writer import write_gguf
from mansard.loading.model_source import cached_config, load_model_spec
from mansard.specs.model_presets import find_preset, preset

CONFIG = dict(find_preset("qwen3-0.6b").config)


def test_a_preset_or_an_id_of_its_shape():
    assert load_model_spec("llama-3.1-8b") == preset("llama-3.1-8b")
    assert load_model_spec("Qwen/Qwen3-0.6B").hidden_size == CONFIG["hidden_size"]
    assert load_model_spec("smollm2").num_hidden_layers == 30


def test_a_config_file_and_a_directory_without_weights(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    for source in (str(file), str(tmp_path)):
        spec = load_model_spec(source)
        assert (spec.hidden_size, spec.name) == (CONFIG["hidden_size"], tmp_path.name)


def test_a_gguf_file(tmp_path):
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.context_length": 128,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": 100,
    }
    write_gguf(tmp_path / "tiny.gguf", metadata, [])
    for source in (str(tmp_path / "tiny.gguf"), str(tmp_path)):
        spec = load_model_spec(source)
        assert (spec.num_hidden_layers, spec.num_key_value_heads, spec.name) == (2, 2, "tiny")


def test_a_cached_id_is_read_before_a_preset_and_nothing_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert cached_config("Qwen/Qwen3-0.6B") is None
    snapshot = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 7}))
    assert load_model_spec("Qwen/Qwen3-0.6B").num_hidden_layers == 7
    assert cached_config("../../etc") is None


def test_what_cannot_be_read_says_so(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "bad.json").write_text("[1]")
    (tmp_path / "broken.json").write_text("{")
    for source, message in (
        (str(tmp_path / "absent.json"), "no file"),
        (str(tmp_path / "absent.gguf"), "no file"),
        (str(tmp_path / "a"), "no config.json"),
        (str(tmp_path / "bad.json"), "no JSON object"),
        (str(tmp_path / "broken.json"), "cannot read"),
        ("llama-3.1-9b", "llama-3.1-8b"),
    ):
        with pytest.raises(ValueError, match=message):
            load_model_spec(source)
