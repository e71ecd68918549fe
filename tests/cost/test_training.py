"""Training's need beside inference's."""

import pytest

from mansard.cost.training import (
    inference_flops,
    training_activation_bytes,
    training_flops,
    training_memory,
)
from mansard.cost.weights import num_multiplied_parameters
from mansard.specs.model_presets import preset
from mansard.specs.sizes import num_parameters


def test_adam_in_mixed_precision_takes_16_bytes_a_parameter():
    """ZeRO (arXiv 1910.02054): 7.5B parameters take 120 GB before activations."""
    spec = preset("llama-2-7b")
    need = training_memory(spec, batch_size=1, sequence_length=4096)
    states = need.weights_bytes + need.gradients_bytes + need.optimizer_bytes
    assert states == 16 * num_parameters(spec)
    assert need.total_bytes == states + need.activations_bytes
    assert states / (2 * num_parameters(spec)) == 8  # eight times what inference loads


def test_adapters_train_a_small_share():
    spec = preset("llama-2-7b")
    need = training_memory(spec, batch_size=1, sequence_length=512, trainable_parameters=40_000_000)
    assert need.gradients_bytes + need.optimizer_bytes == 14 * 40_000_000
    assert need.weights_bytes == 2 * num_parameters(spec)


def test_activations_follow_korthikanti():
    """Equation 2 of arXiv 2205.05198: s·b·h·(34 + 5·a·s/h) a layer."""
    spec = preset("llama-2-7b")
    tokens, layers = 4096, 32
    linear = training_activation_bytes(spec, 1, tokens, "attention")
    assert linear == layers * tokens * 4096 * 34
    assert training_activation_bytes(spec, 1, tokens, "none") - linear == layers * tokens * 5 * 32 * tokens
    assert training_activation_bytes(spec, 2, tokens, "full") == 2 * layers * tokens * 4096 * 2


def test_flops_are_six_n_for_training_and_two_n_for_inference():
    spec = preset("mixtral-8x7b")
    used = num_multiplied_parameters(spec)
    assert used < 0.3 * num_parameters(spec)
    assert training_flops(spec, 1e9) == 6 * used * 1e9 == 3 * inference_flops(spec, 1e9)
    assert training_flops(spec, 1e9, "full") == 8 * used * 1e9


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="adam-8bit"):
        training_memory(preset("llama-2-7b"), batch_size=1, sequence_length=1, optimizer="lion")
    with pytest.raises(ValueError, match="at least 1"):
        training_memory(preset("llama-2-7b"), batch_size=0, sequence_length=1)
