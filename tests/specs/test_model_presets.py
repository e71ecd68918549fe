"""Model presets: the facts build, count right against what was published, and answer to people's names."""

import pytest

from mansard.cost.weights import count_weights, num_multiplied_parameters
from mansard.specs.model_presets import bare_name, find_preset, preset, presets
from mansard.specs.sizes import num_parameters


@pytest.mark.parametrize("name", list(presets()))
def test_counted_parameters_are_within_1_percent_of_the_published_total(name):
    found = presets()[name]
    assert found.source and found.hf_id
    published = found.parameters - found.other_parameters
    # Published totals are exact for most and rounded to three digits for the rest.
    assert num_parameters(found.spec()) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("name", [n for n, p in presets().items() if p.active_parameters])
def test_active_parameters_match_the_published_number(name):
    found = presets()[name]
    # Publishers round to whole billions, and leave the input embedding out or not: half a billion or a tenth.
    counted = num_multiplied_parameters(found.spec())
    assert counted == pytest.approx(found.active_parameters, rel=0.10, abs=0.6e9)


@pytest.mark.parametrize("name", list(presets()))
def test_the_program_reads_as_many_weights_as_the_model_has(name):
    spec = preset(name)
    assert count_weights(spec).total == num_parameters(spec)


def test_exact_totals_are_exact():
    for name, total in {
        "llama-3.1-8b": 8_030_261_248,
        "qwen3-14b": 14_768_307_200,
        "gemma-2-27b": 27_227_128_320,
        "mixtral-8x7b": 46_702_792_704,
        "deepseek-v2-lite": 15_706_484_224,
        "smollm2-135m": 134_515_008,
    }.items():
        assert num_parameters(preset(name)) == total


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b"),
        ("RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic", "llama-3.1-70b"),
        ("Llama_3.1_8B", "llama-3.1-8b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
        ("codellama/CodeLlama-7b-hf", "codellama-7b"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-coder-30b-a3b"),
    ],
)
def test_names_as_people_type_them(typed, name):
    assert find_preset(typed).name == name


def test_every_preset_answers_to_its_name_its_id_and_its_aliases():
    owner: dict[str, str] = {}
    for name, found in presets().items():
        for alias in (name, *found.aliases):
            assert find_preset(alias).name == name, alias
            assert owner.setdefault(alias, name) == name, alias
        assert find_preset(found.hf_id).parameters == found.parameters, found.hf_id


def test_unknown_name_answers_with_the_nearest_and_the_remedy():
    with pytest.raises(ValueError, match=r"lama-3.1-9b.*llama-3.1-8b.*config.json"):
        preset("lama-3.1-9b")


def test_bare_name_drops_owner_tuning_and_packing_only():
    assert bare_name("meta-llama/Meta-Llama-3.1-8B-Instruct-AWQ") == "llama-3.1-8b"
    assert bare_name("qwen3-30b-a3b") == "qwen3-30b-a3b"


def test_heads_and_windows_of_the_hybrids():
    gemma = preset("gemma-3-27b")
    assert gemma.layer_types.count("sliding") == 52 and gemma.sliding_window == 1024
    gpt_oss = preset("gpt-oss-120b")
    assert gpt_oss.layer_types.count("sliding") == 18 and gpt_oss.head_dim == 64
    qwen = preset("qwen3.6-27b")
    assert qwen.layer_types.count("full") == 16 and qwen.num_nextn_predict_layers == 1
    assert preset("qwen3-14b").head_dim == 128 and preset("phi-4").num_key_value_heads == 10
    assert preset("mistral-7b-v0.3").layer_types == ()
    mla = preset("deepseek-r1").mla
    assert mla is not None and mla.kv_lora_rank + mla.qk_rope_head_dim == 576
