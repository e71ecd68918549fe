"""Which splits are possible, and that the reasons name the numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.cost.op_cost import Layout
from mansard.cost.parallelism import (
    check_layout,
    kv_heads_per_rank,
    kv_replication,
    layers_per_stage,
    layout_problems,
    padded_vocab,
    tensor_parallel_sizes,
)
from mansard.program.decoder import decoder
from mansard.specs.model_presets import preset, presets


@pytest.mark.parametrize("model", list(presets()))
def test_a_possible_split_builds_a_program(model):
    spec = preset(model)
    sizes = tensor_parallel_sizes(spec, 8)
    assert 1 in sizes
    for tp in sizes:
        assert decoder(spec, tensor_parallel=tp).tensor_parallel == tp


@pytest.mark.parametrize(
    ("model", "layout", "reason"),
    [
        ("qwen2.5-7b", Layout(tensor_parallel=8), "8 does not divide 28 attention heads"),
        ("phi-4", Layout(tensor_parallel=4), "4 neither divides 10 KV heads nor is a multiple"),
        ("llama-3.1-8b", Layout(pipeline_parallel=33), "33 exceeds 32 layers"),
        ("llama-3.1-8b", Layout(data_parallel=2, expert_parallel=2), "needs a mixture of experts"),
        ("qwen3-30b-a3b", Layout(tensor_parallel=4, expert_parallel=3), "3 does not divide 128 experts"),
        ("qwen3-30b-a3b", Layout(tensor_parallel=2, expert_parallel=4), "does not divide the 2 ranks"),
        ("qwen3.6-27b", Layout(tensor_parallel=12), "linear-attention layers' 16 key"),
        ("llama-3.1-8b", Layout(tensor_parallel=0), "at least 1"),
    ],
)
def test_impossible_splits_say_why(model, layout, reason):
    with pytest.raises(ValueError, match=reason):
        check_layout(preset(model), layout)


def test_groups_of_weights_are_not_cut():
    spec = preset("llama-2-70b")  # 28,672 = 224 groups of 128
    assert layout_problems(spec, Layout(tensor_parallel=32), group_size=128) == ()
    assert "cuts weight groups of 128" in layout_problems(spec, Layout(tensor_parallel=64), group_size=128)[0]


def test_all_reasons_are_given_at_once():
    problems = layout_problems(preset("qwen3-14b"), Layout(tensor_parallel=5))
    assert len(problems) == 3  # KV heads, vocabulary, width; the 40 heads do divide
    assert any("151,936" in p for p in problems) and any("17,408" in p for p in problems)


def test_experts_whole_or_cut():
    spec = preset("deepseek-v3")
    assert layout_problems(spec, Layout(tensor_parallel=8, expert_parallel=8)) == ()
    assert layout_problems(spec, Layout(data_parallel=16, expert_parallel=16)) == ()
    assert layout_problems(spec, Layout(tensor_parallel=1, data_parallel=3, expert_parallel=3)) != ()


@given(st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "llama-2-7b"]), st.sampled_from([1, 2, 4, 8, 16]))
def test_ranks_hold_all_kv_heads_together(model, tp):
    spec = preset(model)
    assert kv_heads_per_rank(spec, tp) * tp >= spec.num_key_value_heads
    assert kv_replication(spec, Layout(tensor_parallel=tp)) == max(1.0, tp / spec.num_key_value_heads)


def test_latent_vectors_are_whole_on_every_rank_and_data_parallel_copies_no_request():
    spec = preset("deepseek-v3")
    assert kv_replication(spec, Layout(tensor_parallel=8)) == 8.0
    assert kv_replication(spec, Layout(data_parallel=8, expert_parallel=8)) == 1.0


def test_padding_and_stages():
    assert (padded_vocab(128_256), padded_vocab(32_001), padded_vocab(151_936)) == (128_256, 32_064, 151_936)
    assert layers_per_stage(preset("llama-3.1-70b"), 3) == 27
