"""Mixture-of-experts settings in a Hugging Face config: each family spells the same numbers its own way."""

from __future__ import annotations

from typing import Literal

from mansard.specs.config_reader import ConfigReader
from mansard.specs.hf_families import Family
from mansard.specs.model import MoeSpec

_MAX_EXPERTS = 1 << 14


def read_moe(config: ConfigReader, family: Family, num_layers: int) -> MoeSpec | None:
    """Return the experts of the model, or None for a dense one.

    Raises: ValueError for numbers that do not fit.
    """
    style = family.moe
    count_key = config.has("num_local_experts", "num_experts", "n_routed_experts")
    if style is None or count_key is None or config.integer(count_key, 0, _MAX_EXPERTS) == 0:
        return None
    num_experts = config.integer(count_key, 1, _MAX_EXPERTS)
    own_width = style in ("qwen", "deepseek")
    shared_size = _shared_size(config, family)
    groups = _num_groups(config, num_experts)
    moe = MoeSpec(
        num_experts=num_experts,
        num_experts_per_tok=config.integer("num_experts_per_tok", 1, num_experts),
        moe_intermediate_size=config.integer("moe_intermediate_size" if own_width else "intermediate_size"),
        num_shared_experts=_num_shared(config, family) if shared_size else 0,
        shared_expert_intermediate_size=shared_size,
        shared_expert_gate=family.shared_expert_gate and shared_size > 0,
        scoring=_scoring(config, family),
        norm_topk_prob=style in ("mixtral", "gpt_oss") or config.flag("norm_topk_prob"),
        router_bias=style == "gpt_oss",
        expert_bias=style == "gpt_oss",
        score_correction_bias=family.score_correction_bias,
        num_expert_groups=groups,
        topk_groups=config.integer("topk_group", 1, groups) if groups > 1 else 1,
        routed_scaling_factor=config.optional_positive("routed_scaling_factor") or 1.0,
        layers=_expert_layers(config, family, num_layers),
    )
    return None if moe.layers == () else moe


def _scoring(config: ConfigReader, family: Family) -> Literal["softmax", "sigmoid", "softmax_after_topk"]:
    if family.moe == "gpt_oss":
        return "softmax_after_topk"
    scoring = config.text("scoring_func", family.scoring)
    if scoring == "softmax":
        return "softmax"
    if scoring == "sigmoid":
        return "sigmoid"
    raise ValueError(f"scoring_func {scoring!r} is not supported; supported: softmax, sigmoid")


def _expert_layers(config: ConfigReader, family: Family, num_layers: int) -> tuple[int, ...] | None:
    """Return the layers with experts, or None when all have them."""
    layers = list(range(num_layers))
    if family.moe == "qwen":
        step = config.integer("decoder_sparse_step", 1)
        dense = set(config.sequence("mlp_only_layers", num_layers) or ())
        layers = [i for i in layers if (i + 1) % step == 0 and i not in dense]
    elif family.moe == "deepseek":
        first = config.integer("first_k_dense_replace", 0)
        step = config.optional_integer("moe_layer_freq") or 1
        layers = [i for i in layers if i >= first and i % step == 0]
    elif family.moe == "llama4":
        named = config.sequence("moe_layers", num_layers)
        step = config.integer("interleave_moe_layer_step", 0)
        layers = [i for i in layers if (i in named if named is not None else step and (i + 1) % step == 0)]
    return None if len(layers) == num_layers else tuple(layers)


def _num_shared(config: ConfigReader, family: Family) -> int:
    return config.integer("n_shared_experts", 0, _MAX_EXPERTS) if family.moe == "deepseek" else 1


def _shared_size(config: ConfigReader, family: Family) -> int:
    """Return the width of all shared experts together; 0: there are none."""
    if family.moe == "deepseek" and config.has("n_shared_experts"):
        return _num_shared(config, family) * config.integer("moe_intermediate_size")
    if family.moe == "qwen" and config.has("shared_expert_intermediate_size"):
        return config.integer("shared_expert_intermediate_size", 0)
    return config.integer("intermediate_size") if family.moe == "llama4" else 0


def _num_groups(config: ConfigReader, num_experts: int) -> int:
    groups = config.optional_integer("n_group", 1, num_experts) or 1
    if config.text("topk_method") == "greedy":
        return 1  # DeepSeek-V2-Lite names groups and does not use them
    if num_experts % groups:
        raise ValueError(f"{num_experts} experts cannot form {groups} equal groups")
    return groups
