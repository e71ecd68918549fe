"""from_hf: a ModelSpec from a Hugging Face config.json.

The config is read once, at the edge: types and ranges are checked here, missing keys take the family's
defaults (see `hf_families`), and what cannot be represented is refused by name. A multimodal config is read
for its language model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.specs.config_reader import MAX_TOKENS, ConfigReader
from mansard.specs.hf_families import ALIASES, FAMILIES, Family
from mansard.specs.hf_moe import read_moe
from mansard.specs.hf_rope import read_ropes
from mansard.specs.model import Activation, LayerType, LinearAttentionSpec, MlaSpec, ModelSpec, RopeSpec

MAX_LAYERS = 1024
ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "swiglu_oai": "swiglu_oai",
}
LAYER_TYPES: Mapping[str, LayerType] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
}
_NULLABLE = frozenset(  # null says "none" here, as in `transformers`; elsewhere null is as good as missing
    {
        "attention_chunk_size",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "head_dim",
        "num_key_value_heads",
        "sliding_window",
    }
)
_OTHER_NAMES = {  # what Falcon and OPT call things
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_embed": "hidden_size",
    "num_kv_heads": "num_key_value_heads",
    "ffn_hidden_size": "intermediate_size",
    "ffn_dim": "intermediate_size",
    "layer_norm_epsilon": "rms_norm_eps",
}


def from_hf(config: Mapping[str, object], *, name: str = "") -> ModelSpec:
    """Return the architecture that a config.json describes.

    LayerNorm families (OPT, Falcon) are approximated by RMSNorm and a sequential block, for pricing alone.

    Raises: ValueError for an unknown `model_type`, a value of a wrong type or range, or an unsupported
    feature.
    """
    model_type, values = _language_model(config)
    family = FAMILIES[model_type]
    reader = ConfigReader(values, family.defaults)
    num_layers = reader.integer("num_hidden_layers", 1, MAX_LAYERS)
    heads = _heads(reader, family)
    mla = _mla(reader) if family.mla else None
    rope, rope_local = _ropes(reader, family, mla.qk_rope_head_dim if mla else heads["head_dim"])
    layer_types, window = _layer_types(reader, family, num_layers)
    fields: dict[str, Any] = {
        "model_type": model_type,
        "num_hidden_layers": num_layers,
        "hidden_size": reader.integer("hidden_size"),
        "intermediate_size": _intermediate_size(reader),
        **heads,
        "vocab_size": reader.integer("vocab_size"),
        "max_position_embeddings": reader.integer("max_position_embeddings", 1, MAX_TOKENS),
        "rms_norm_eps": reader.number("rms_norm_eps", 0.0, 1.0),
        "hidden_act": _activation(reader, family),
        "rope": rope,
        "rope_local": rope_local,
        "layer_types": layer_types,
        "sliding_window": window,
        "attention_chunk_size": _chunk_size(reader, layer_types),
        "tie_word_embeddings": reader.flag("tie_word_embeddings"),
        "moe": read_moe(reader, family, num_layers),
        "mla": mla,
        "linear_attention": _linear_attention(reader, heads) if "linear" in layer_types else None,
        "num_nextn_predict_layers": _nextn(reader),
        "name": name,
        **_biases(reader, family),
        **_extras(reader, model_type),
        **family.fixed,
    }
    return ModelSpec(**fields)


def quantization_method(config: Mapping[str, object]) -> str | None:
    """Return how the checkpoint says its weights are quantized (`gptq`, `awq`, `mxfp4` …), or None."""
    section = ConfigReader(config).section("quantization_config")
    return None if section is None else section.text("quant_method", "unnamed")


def supported_by_engine(spec: ModelSpec) -> None:
    """Check that the executors can run `spec`. Raises: ValueError naming what they cannot."""
    family = FAMILIES.get(spec.model_type)
    reasons = {
        "latent attention (MLA)": spec.mla is not None,
        "linear-attention layers": "linear" in spec.layer_types,
        "chunked-attention layers": "chunked" in spec.layer_types,
        "an output gate on attention": spec.attention_output_gate,
        "an MLP without a gate": not spec.gated_mlp,
        "attention without rotary embedding": spec.rope.kind == "none",
        f"the {spec.model_type} family": family is not None and not family.runnable,
    }
    found = [reason for reason, present in reasons.items() if present]
    if found:
        raise ValueError(
            f"{spec.model_type} cannot be run: {', '.join(found)} not supported by the engine "
            "(it can be priced with `mansard plan`)"
        )


def _language_model(config: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Return the family's name and the flat config of the language model inside `config`."""
    outer = ConfigReader(config)
    inner = outer.section("text_config")
    model_type = (inner.text("model_type") if inner else "") or outer.text("model_type")
    model_type = ALIASES.get(model_type, model_type)
    if model_type not in FAMILIES:
        outer_type = ALIASES.get(outer.text("model_type"), outer.text("model_type"))
        if outer_type not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise ValueError(f"model_type {model_type or '(missing)'!r} is not supported; supported: {known}")
        model_type = outer_type
    values = dict(inner.values if inner else config)
    if inner and "tie_word_embeddings" not in values and outer.has("tie_word_embeddings"):
        values["tie_word_embeddings"] = outer.raw("tie_word_embeddings")
    for other, ours in _OTHER_NAMES.items():
        if values.get(other) is not None:
            values.setdefault(ours, values[other])
    return model_type, {k: v for k, v in values.items() if v is not None or k in _NULLABLE}


def _heads(reader: ConfigReader, family: Family) -> dict[str, int]:
    num_heads = reader.integer("num_attention_heads", 1, 1 << 16)
    if family.mla:  # all heads share the compressed vector
        return {
            "num_attention_heads": num_heads,
            "num_key_value_heads": num_heads,
            "head_dim": _mla_head(reader),
        }
    num_kv_heads = reader.optional_integer("num_key_value_heads", 1, 1 << 16) or num_heads
    if reader.raw("multi_query") is True and not reader.flag("new_decoder_architecture"):
        num_kv_heads = 1  # Falcon-7B
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} attention heads cannot share {num_kv_heads} KV heads: not a multiple")
    if family.mla:
        return {
            "num_attention_heads": num_heads,
            "num_key_value_heads": num_kv_heads,
            "head_dim": _mla_head(reader),
        }
    hidden = reader.integer("hidden_size")
    head_dim = reader.optional_integer("head_dim", 1, 1 << 12)
    if head_dim is None:
        if hidden % num_heads:
            raise ValueError(f"hidden_size {hidden} is no multiple of {num_heads} heads, and there is no head_dim")
        head_dim = hidden // num_heads
    if head_dim % 2:
        raise ValueError(f"head_dim is {head_dim}; rotary embedding needs an even one")
    return {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads, "head_dim": head_dim}


def _mla_head(reader: ConfigReader) -> int:
    return reader.integer("qk_nope_head_dim", 1, 1 << 12) + reader.integer("qk_rope_head_dim", 2, 1 << 12)


def _mla(reader: ConfigReader) -> MlaSpec:
    return MlaSpec(
        kv_lora_rank=reader.integer("kv_lora_rank"),
        qk_rope_head_dim=reader.integer("qk_rope_head_dim", 2, 1 << 12),
        qk_nope_head_dim=reader.integer("qk_nope_head_dim", 1, 1 << 12),
        v_head_dim=reader.integer("v_head_dim", 1, 1 << 12),
        q_lora_rank=reader.optional_integer("q_lora_rank"),
    )


def _ropes(reader: ConfigReader, family: Family, head_dim: int) -> tuple[RopeSpec, RopeSpec | None]:
    if family.layer_rule == "chunked":  # Llama 4: full layers are not rotated, chunked ones are
        return RopeSpec(kind="none"), read_ropes(reader, head_dim)[0]
    if family.activation_key == "activation_function" or reader.raw("alibi") is True:  # OPT; Falcon-RW
        return RopeSpec(kind="none"), None
    return read_ropes(reader, head_dim)


def _intermediate_size(reader: ConfigReader) -> int:
    """Return the dense MLP's width; a model of experts alone may not have one."""
    for key in ("intermediate_size_mlp", "intermediate_size", "moe_intermediate_size"):
        if reader.has(key):
            return reader.integer(key)
    return 4 * reader.integer("hidden_size")  # Falcon's default


def _activation(reader: ConfigReader, family: Family) -> Activation:
    name = reader.text(family.activation_key)
    activation = ACTIVATIONS.get(name)
    if activation is None:
        raise ValueError(f"{family.activation_key} {name!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    return activation


def _layer_types(reader: ConfigReader, family: Family, num_layers: int) -> tuple[tuple[LayerType, ...], int | None]:
    """Return each layer's type (empty: all full) and the window of the sliding ones."""
    window = reader.optional_integer("sliding_window", 0, MAX_TOKENS) or None
    if reader.has("max_window_layers") and not reader.flag("use_sliding_window"):
        window = None  # Qwen: a window is written down but not used
    named = reader.sequence("layer_types", MAX_LAYERS) or reader.sequence("attn_type_list", MAX_LAYERS)
    if named is not None:
        if len(named) != num_layers:
            raise ValueError(f"layer_types names {len(named)} layers; the model has {num_layers}")
        types = [_layer_type(entry) for entry in named]
    else:
        types = [_layer_type_by_rule(reader, family, layer) for layer in range(num_layers)]
    if window is None:
        types = ["full" if t == "sliding" else t for t in types]
    if "sliding" not in types:
        window = None
    return (() if set(types) == {"full"} else tuple(types)), window


def _layer_type(entry: object) -> LayerType:
    if entry in (0, 1):  # MiniMax: 1 is softmax attention
        return "full" if entry else "linear"
    if not isinstance(entry, str) or entry not in LAYER_TYPES:
        raise ValueError(f"layer type {entry!r} is not supported; supported: {', '.join(LAYER_TYPES)}")
    return LAYER_TYPES[entry]


def _layer_type_by_rule(reader: ConfigReader, family: Family, layer: int) -> LayerType:
    rule = family.layer_rule
    if rule == "all_sliding":
        return "sliding"
    if rule == "late_sliding":
        return "sliding" if layer >= reader.integer("max_window_layers", 0) else "full"
    if rule == "even_sliding":
        return "full" if layer % 2 else "sliding"
    if rule == "sliding_pattern":
        return "sliding" if (layer + 1) % reader.integer("sliding_window_pattern") else "full"
    if rule == "linear":
        interval = reader.optional_integer("full_attention_interval") or 2
        return "linear" if (layer + 1) % interval else "full"
    if rule == "chunked":
        return "chunked" if (layer + 1) % 4 else "full"
    return "full"


def _chunk_size(reader: ConfigReader, layer_types: tuple[LayerType, ...]) -> int | None:
    return reader.integer("attention_chunk_size", 1, MAX_TOKENS) if "chunked" in layer_types else None


def _linear_attention(reader: ConfigReader, heads: Mapping[str, int]) -> LinearAttentionSpec:
    """Return the linear layers' shape; MiniMax's have the same heads as its full ones."""
    own = reader.has("linear_num_key_heads") is not None
    num_heads, head_dim = heads["num_attention_heads"], heads["head_dim"]
    return LinearAttentionSpec(
        num_key_heads=reader.integer("linear_num_key_heads") if own else num_heads,
        num_value_heads=reader.integer("linear_num_value_heads") if own else num_heads,
        key_head_dim=reader.integer("linear_key_head_dim") if own else head_dim,
        value_head_dim=reader.integer("linear_value_head_dim") if own else head_dim,
        conv_kernel_size=reader.integer("linear_conv_kernel_dim", 1, 64),
    )


def _nextn(reader: ConfigReader) -> int:
    key = reader.has("num_nextn_predict_layers", "mtp_num_hidden_layers")
    return reader.integer(key, 0, MAX_LAYERS) if key else 0


def _biases(reader: ConfigReader, family: Family) -> dict[str, bool]:
    attention = reader.flag(family.bias_key)
    return {
        "qkv_bias": attention,
        "attention_output_bias": attention and family.output_bias,
        "mlp_bias": reader.flag(family.mlp_bias_key),
    }


def _extras(reader: ConfigReader, model_type: str) -> dict[str, object]:
    """Return what only some families' configs say: scales, soft-caps, clamps."""
    if reader.flag("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention is set: bidirectional attention is not supported")
    extras: dict[str, object] = {
        "attn_logit_softcapping": reader.optional_positive("attn_logit_softcapping"),
        "final_logit_softcapping": reader.optional_positive("final_logit_softcapping"),
    }
    scalar = reader.optional_positive("query_pre_attn_scalar")
    if scalar is not None:
        extras["query_scale"] = scalar**-0.5
    if model_type.startswith("gemma"):
        extras["embedding_scale"] = reader.integer("hidden_size") ** 0.5
    if model_type == "gpt_oss":
        if reader.number("swiglu_alpha") != 1.702:
            raise ValueError(f"swiglu_alpha is {reader.raw('swiglu_alpha')}; only 1.702 is supported")
        extras["activation_limit"] = reader.positive("swiglu_limit")
    if reader.has("use_qk_norm") and model_type != "llama4_text":  # Llama 4's has no weights
        extras["qk_norm"] = reader.flag("use_qk_norm")
    return extras
