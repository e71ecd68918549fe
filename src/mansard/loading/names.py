"""Canonical weight names, and what each file format calls them.

The engine knows one vocabulary: Hugging Face's Llama-style names (`model.layers.3.self_attn.q_proj.weight`),
with a layer's experts stacked under `mlp.experts.{gate,up,down}_proj`. This module is the dictionary; it
looks at names alone and touches no tensor. Parts that still need work on bytes keep an interim name that
`weights.py` resolves: `mlp.experts.E.gate_proj.weight` (one expert), `mlp.experts.gate_up_proj` (fused
experts).

Sources: transformers' checkpoints per family; the GGUF tensor naming of ggml's `gguf-py` constants.
"""

from __future__ import annotations

import re

GGUF_ARCHITECTURES = (
    "llama",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt-oss",
)
PERMUTED_ARCHITECTURES = ("llama",)  # their GGUF files hold q and k for interleaved rotation
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

_GGUF_GLOBAL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GGUF_SPECIAL: dict[str, dict[str, str]] = {
    "gemma2": _SANDWICH,
    "gemma3": _SANDWICH,
    "phi3": {"ffn_up": "mlp.gate_up_proj"},  # gate rows first, then up
    "gpt-oss": {"post_attention_norm": "post_attention_layernorm"},
}
_GGUF_BLOCK = re.compile(r"blk\.(\d+)\.([a-z_]+)(?:\.(\d+))?\.(weight|bias)")

_HF_PREFIXES = (
    ("model.language_model.model.", "model."),
    ("model.language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
_HF_IGNORED = re.compile(r".*(rotary_emb\.inv_freq|self_attn\.masked_bias)")
_HF_OTHER_PARTS = re.compile(r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|audio_tower)\..*")
_HF_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_MIXTRAL_PARTS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_MIXTRAL_EXPERT = re.compile(r"experts\.(\d+)\.(w[123])\.(weight|bias)")


def canonical_gguf(name: str, architecture: str) -> str | None:
    """Return the canonical name of the GGUF tensor `name`, or None when the engine has no use for it."""
    stem, _, kind = name.rpartition(".")
    if stem in _GGUF_GLOBAL and kind in ("weight", "bias"):
        return f"{_GGUF_GLOBAL[stem]}.{kind}"
    match = _GGUF_BLOCK.fullmatch(name)
    if match is None:
        return None
    layer, part, expert, kind = match[1], match[2], match[3], match[4]
    prefix = f"model.layers.{int(layer)}."
    if part == "attn_sinks":
        return prefix + "self_attn.sinks"
    target = _GGUF_SPECIAL.get(architecture, {}).get(part) or _GGUF_LAYER.get(part)
    if target is None:
        return None
    if expert is None:
        return f"{prefix}{target}.{kind}"
    if part not in ("ffn_gate", "ffn_up", "ffn_down"):
        return None
    return f"{prefix}mlp.experts.{int(expert)}.{target.removeprefix('mlp.')}.{kind}"


def canonical_hf(name: str) -> str | None:
    """Return the canonical name of the Hugging Face tensor `name`, or None when the engine has no use."""
    if _HF_IGNORED.fullmatch(name) or _HF_OTHER_PARTS.fullmatch(name):
        return None
    for prefix, replacement in _HF_PREFIXES:
        if name.startswith(prefix):
            name = replacement + name.removeprefix(prefix)
            break
    match = _HF_LAYER.fullmatch(name)
    if match is None:
        known = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "lm_head.bias")
        return name if name in known else None
    return f"model.layers.{int(match[1])}.{_canonical_part(match[2])}"


def _canonical_part(part: str) -> str:
    """Rename what Mixtral and Qwen-MoE call router and experts; other parts have canonical names already."""
    if part.startswith("block_sparse_moe."):
        part = "mlp." + part.removeprefix("block_sparse_moe.")
    head, _, rest = part.partition(".")
    if head != "mlp":
        return part
    if rest in ("gate.weight", "gate.bias"):
        return "mlp.router." + rest.removeprefix("gate.")
    if match := _MIXTRAL_EXPERT.fullmatch(rest):
        return f"mlp.experts.{match[1]}.{_MIXTRAL_PARTS[match[2]]}.{match[3]}"
    return part
