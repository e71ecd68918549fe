"""from_gguf: a ModelSpec from a GGUF file's metadata and the names of its tensors.

GGUF leaves things unsaid that llama.cpp knows by architecture: Gemma's window pattern, its local rope base
and its query scale, gpt-oss's clamp. They are written down here. What tensors show (biases, norms of q and k,
an output matrix of its own) is taken from their names. Gemma's stored norm weights already hold the 1 of
(1 + weight), hence `norm_unit_offset` is False.

Source: the GGUF key names of ggml's documentation; llama.cpp's model loading for what it implies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mansard.specs.config_reader import MAX_TOKENS, ConfigReader
from mansard.specs.hf_config import MAX_LAYERS
from mansard.specs.model import Activation, LayerType, MlaSpec, ModelSpec, MoeSpec, RopeKind, RopeSpec
from mansard.specs.rope import attention_factor, with_frequency_divisors

NO_FACTORS: Mapping[str, Sequence[float]] = {}
ROPE_FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_ROPE_KINDS: Mapping[str, RopeKind] = {
    "none": "default",
    "linear": "linear",
    "yarn": "yarn",
    "longrope": "longrope",
}
_GATING: Mapping[int, Literal["softmax", "sigmoid", "softmax_after_topk"]] = {
    1: "softmax",
    2: "sigmoid",
    3: "softmax_after_topk",
}


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What an architecture implies; with `full_every` n each n-th layer is full and the others slide."""

    model_type: str
    moe_model_type: str = ""
    full_every: int = 0  # 0: with a window, all layers slide
    default_window: int | None = None
    activation: Activation = "silu"
    gemma: bool = False
    norm_topk_prob: bool = True
    gating: int = 1


_ARCHITECTURES: Mapping[str, _Architecture] = {
    "llama": _Architecture("llama", "mixtral"),
    "mistral": _Architecture("mistral", "mixtral"),
    "qwen2": _Architecture("qwen2"),
    "qwen2moe": _Architecture("qwen2_moe", "qwen2_moe", norm_topk_prob=False),
    "qwen3": _Architecture("qwen3"),
    "qwen3moe": _Architecture("qwen3_moe", "qwen3_moe"),
    "gemma2": _Architecture("gemma2", "", 2, 4096, "gelu_tanh", gemma=True),
    "gemma3": _Architecture("gemma3_text", "", 6, None, "gelu_tanh", gemma=True),
    "phi3": _Architecture("phi3"),
    "gpt-oss": _Architecture("gpt_oss", "gpt_oss", 2, 128, "swiglu_oai", gating=3),
    "deepseek2": _Architecture("deepseek_v2", "deepseek_v2", norm_topk_prob=False),
}


def from_gguf(
    metadata: Mapping[str, object],
    tensor_names: Collection[str],
    *,
    rope_factors: Mapping[str, Sequence[float]] = NO_FACTORS,
    name: str = "",
) -> ModelSpec:
    """Return the architecture that a GGUF file describes.

    `rope_factors` holds the values of those of `ROPE_FACTOR_TENSORS` that the file has (Llama 3.x, Phi-3).

    Raises: ValueError for an unknown architecture, a value of a wrong type or range, or missing rope factors.
    """
    arch = ConfigReader(metadata, source="GGUF metadata").text("general.architecture")
    known = _ARCHITECTURES.get(arch)
    if known is None:
        supported = ", ".join(_ARCHITECTURES)
        raise ValueError(f"GGUF architecture {arch or '(missing)'!r} is not supported; supported: {supported}")
    reader = _keys(metadata, arch)
    names = frozenset(tensor_names)
    nextn = reader.optional_integer("nextn_predict_layers", 0, MAX_LAYERS) or 0
    num_layers = reader.integer("block_count", 1 + nextn, MAX_LAYERS) - nextn
    moe = _moe(reader, known, names, num_layers)
    mla = _mla(reader) if "attention.kv_lora_rank" in reader.values else None
    heads = _heads(reader, mla)
    layer_types, window = _layer_types(reader, known, num_layers)
    spec = ModelSpec(
        model_type=known.moe_model_type if moe else known.model_type,
        num_hidden_layers=num_layers,
        hidden_size=reader.integer("embedding_length"),
        intermediate_size=_intermediate_size(reader),
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=heads[2],
        vocab_size=_vocab_size(metadata, reader),
        max_position_embeddings=reader.integer("context_length", 1, MAX_TOKENS),
        rms_norm_eps=reader.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        hidden_act=known.activation,
        rope=_rope(reader, arch, mla.qk_rope_head_dim if mla else heads[2]),
        layer_types=layer_types,
        sliding_window=window,
        attn_logit_softcapping=reader.optional_positive("attn_logit_softcapping"),
        final_logit_softcapping=reader.optional_positive("final_logit_softcapping"),
        qkv_bias="blk.0.attn_q.bias" in names or "blk.0.attn_qkv.bias" in names,
        attention_output_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_down.bias" in names,
        qk_norm="blk.0.attn_q_norm.weight" in names,
        attention_sinks="blk.0.attn_sinks.weight" in names,
        tie_word_embeddings="output.weight" not in names,
        fused_qkv="blk.0.attn_qkv.weight" in names,
        fused_gate_up=arch == "phi3",
        moe=moe,
        mla=mla,
        num_nextn_predict_layers=nextn,
        name=name,
    )
    return _with_factors(_implied(spec, reader, known), names, rope_factors)


def _keys(metadata: Mapping[str, object], arch: str) -> ConfigReader:
    """Return the architecture's own keys, without its name before them."""
    prefix = f"{arch}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    return ConfigReader(own, {"rope.freq_base": 10_000.0}, f"GGUF metadata {arch}")


def _implied(spec: ModelSpec, reader: ConfigReader, known: _Architecture) -> ModelSpec:
    """Return `spec` with what llama.cpp knows by architecture."""
    if spec.model_type == "gpt_oss":
        return replace(spec, activation_limit=7.0)
    if not known.gemma:
        return spec
    # The 27B models scale by the width of the residual a head rather than by the head's own width.
    largest = spec.num_hidden_layers == (46 if spec.model_type == "gemma2" else 62)
    width = spec.hidden_size // spec.num_attention_heads if largest else spec.head_dim
    spec = replace(spec, sandwich_norms=True, embedding_scale=spec.hidden_size**0.5, query_scale=width**-0.5)
    if spec.model_type == "gemma2" or not spec.layer_types:
        return spec
    base = reader.number("rope.freq_base_swa", 1.0) if reader.has("rope.freq_base_swa") else 10_000.0
    return replace(spec, rope_local=RopeSpec(theta=base, rotary_dim=spec.rope.rotary_dim))


def _heads(reader: ConfigReader, mla: MlaSpec | None) -> tuple[int, int, int]:
    """Return query heads, KV heads and the head's width."""
    num_heads = _uniform(reader, "attention.head_count", 1 << 16)
    if mla is not None:
        return num_heads, num_heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim
    has_own = "attention.head_count_kv" in reader.values
    num_kv_heads = _uniform(reader, "attention.head_count_kv", 1 << 16) if has_own else num_heads
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} attention heads cannot share {num_kv_heads} KV heads: not a multiple")
    head_dim = reader.optional_integer("attention.key_length", 1, 1 << 12)
    if head_dim is None:
        hidden = reader.integer("embedding_length")
        if hidden % num_heads:
            raise ValueError(f"embedding_length {hidden} is no multiple of {num_heads} heads and no key_length")
        head_dim = hidden // num_heads
    if head_dim % 2 or reader.raw("attention.value_length") not in (None, head_dim):
        values = reader.raw("attention.value_length")
        raise ValueError(f"heads of {head_dim} (values: {values}) are not supported; they must be even and equal")
    return num_heads, num_kv_heads, head_dim


def _uniform(reader: ConfigReader, key: str, high: int) -> int:
    """Return an integer that may be written once for each layer, provided that it is the same."""
    value = reader.raw(key)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        values = reader.sequence(key, MAX_LAYERS) or ()
        if not values or any(entry != values[0] for entry in values):
            raise ValueError(f"{reader.source}: {key!r} differs between layers, which is not supported")
        return ConfigReader({key: values[0]}, {}, reader.source).integer(key, 1, high)
    return reader.integer(key, 1, high)


def _intermediate_size(reader: ConfigReader) -> int:
    key = "feed_forward_length" if reader.has("feed_forward_length") else "expert_feed_forward_length"
    return _uniform(reader, key, 1 << 24)


def _vocab_size(metadata: Mapping[str, object], reader: ConfigReader) -> int:
    """Return the number of tokens, which is also the number of rows of the embedding."""
    tokens = ConfigReader(metadata, source="GGUF metadata").sequence("tokenizer.ggml.tokens")
    return len(tokens) if tokens else reader.integer("vocab_size")


def _layer_types(
    reader: ConfigReader, known: _Architecture, num_layers: int
) -> tuple[tuple[LayerType, ...], int | None]:
    window = reader.optional_integer("attention.sliding_window", 0, MAX_TOKENS)
    window = known.default_window if window is None else window or None
    if window is None:
        return (), None
    key = "attention.sliding_window_pattern"
    pattern = reader.raw(key)
    if isinstance(pattern, Sequence) and not isinstance(pattern, (str, bytes)):
        if len(pattern) != num_layers:
            raise ValueError(f"{reader.source}: {key!r} names {len(pattern)} layers; the model has {num_layers}")
        types: list[LayerType] = ["sliding" if entry else "full" for entry in pattern]
    else:
        every = reader.optional_integer(key, 0, MAX_LAYERS)
        every = known.full_every if every is None else every
        types = ["full" if every and (i + 1) % every == 0 else "sliding" for i in range(num_layers)]
    return (tuple(types), window) if "sliding" in types else ((), None)


def _rope(reader: ConfigReader, arch: str, head_dim: int) -> RopeSpec:
    width = reader.optional_integer("rope.dimension_count", 2, 1 << 12) or head_dim
    if width % 2 or width > head_dim:
        raise ValueError(f"rope.dimension_count is {width}; it must be even and at most the head's {head_dim}")
    name = reader.text("rope.scaling.type", "none")
    kind = _ROPE_KINDS.get(name)
    if kind is None:
        raise ValueError(f"rope scaling {name!r} is not supported; supported: {', '.join(_ROPE_KINDS)}")
    factor = reader.optional_positive("rope.scaling.factor") or reader.optional_positive("rope.scale_linear") or 1.0
    if kind == "default" and factor != 1.0 and not reader.has("rope.scaling.type"):
        kind = "linear"
    trained = reader.optional_integer("rope.scaling.original_context_length", 2, MAX_TOKENS)
    if kind == "yarn" and trained is None:
        trained = reader.integer("context_length", 2, MAX_TOKENS)
    return RopeSpec(
        theta=reader.number("rope.freq_base", 1.0 if kind != "yarn" else 1.001),
        rotary_dim=None if width == head_dim else width,
        kind="default" if kind == "longrope" else kind,  # the factors make it a longrope
        factor=factor if kind in ("linear", "yarn") else 1.0,
        original_max_position_embeddings=trained,
        beta_fast=reader.optional_positive("rope.scaling.yarn_beta_fast") or 32.0,
        beta_slow=reader.optional_positive("rope.scaling.yarn_beta_slow") or 1.0,
        truncate=arch != "gpt-oss",
    )


def _with_factors(spec: ModelSpec, names: frozenset[str], factors: Mapping[str, Sequence[float]]) -> ModelSpec:
    """Return `spec` with the file's rope factors: one list for all lengths (Llama 3), or two (Phi-3)."""
    wanted = [tensor for tensor in ROPE_FACTOR_TENSORS if tensor in names]
    if not wanted:
        return spec
    planes = (spec.rope.rotary_dim or spec.head_dim) // 2
    for tensor in wanted:
        numbers = ConfigReader(factors, source="the GGUF file").numbers(tensor, 1 << 12)
        if numbers is None:
            raise ValueError(f"the file has {tensor}, whose values the architecture depends on: pass rope_factors")
        if len(numbers) != planes:
            raise ValueError(f"{tensor} has {len(numbers)} numbers; {planes} rotated planes need one each")
    if "rope_freqs.weight" in wanted:
        return with_frequency_divisors(spec, factors["rope_freqs.weight"])
    if len(wanted) != 2:
        raise ValueError(f"the file has {wanted[0]} alone; longrope needs a list for short and one for long contexts")
    return replace(spec, rope=_longrope(spec, factors))


def _longrope(spec: ModelSpec, factors: Mapping[str, Sequence[float]]) -> RopeSpec:
    trained = spec.rope.original_max_position_embeddings or spec.max_position_embeddings
    rope = replace(
        spec.rope,
        kind="longrope",
        factor=spec.max_position_embeddings / trained,
        original_max_position_embeddings=trained,
        short_factor=tuple(factors["rope_factors_short.weight"]),
        long_factor=tuple(factors["rope_factors_long.weight"]),
    )
    return replace(rope, attention_factor=attention_factor(rope))


def _moe(reader: ConfigReader, known: _Architecture, names: frozenset[str], num_layers: int) -> MoeSpec | None:
    num_experts = reader.optional_integer("expert_count", 0, 1 << 14) or 0
    if num_experts == 0:
        return None
    used = reader.integer("expert_used_count", 1, num_experts)
    gating = reader.optional_integer("expert_gating_func", 0, 3) or known.gating
    shared = _shared_size(reader, known)
    groups = reader.optional_integer("expert_group_count", 1, num_experts) or 1
    dense = reader.optional_integer("leading_dense_block_count", 0, num_layers) or 0
    normalized = reader.raw("expert_weights_norm")
    return MoeSpec(
        num_experts=num_experts,
        num_experts_per_tok=used,
        moe_intermediate_size=_expert_size(reader, known, used),
        num_shared_experts=(reader.optional_integer("expert_shared_count", 0, 1 << 14) or 1) if shared else 0,
        shared_expert_intermediate_size=shared,
        shared_expert_gate=any(name.endswith("ffn_gate_inp_shexp.weight") for name in names),
        scoring=_GATING[gating],
        norm_topk_prob=known.norm_topk_prob if normalized is None else bool(normalized),
        router_bias=f"blk.{dense}.ffn_gate_inp.bias" in names,
        expert_bias=f"blk.{dense}.ffn_down_exps.bias" in names,
        score_correction_bias=f"blk.{dense}.exp_probs_b.bias" in names,
        num_expert_groups=groups,
        topk_groups=reader.integer("expert_group_used_count", 1, groups) if groups > 1 else 1,
        routed_scaling_factor=reader.optional_positive("expert_weights_scale") or 1.0,
        layers=tuple(range(dense, num_layers)) if dense else None,
    )


def _expert_size(reader: ConfigReader, known: _Architecture, used: int) -> int:
    if reader.has("expert_feed_forward_length"):
        return reader.integer("expert_feed_forward_length")
    width = _intermediate_size(reader)
    return width // used if known.model_type == "qwen2_moe" else width


def _shared_size(reader: ConfigReader, known: _Architecture) -> int:
    """Return the width of all shared experts together; 0: there are none."""
    if reader.has("expert_shared_feed_forward_length"):
        return reader.integer("expert_shared_feed_forward_length", 0)
    if known.model_type == "qwen2_moe":
        return _intermediate_size(reader)
    count = reader.optional_integer("expert_shared_count", 0, 1 << 14) or 0
    return count * reader.integer("expert_feed_forward_length") if count else 0


def _mla(reader: ConfigReader) -> MlaSpec:
    """Return latent attention's shape; newer files write the heads' own widths under `_mla` keys."""
    rope = reader.integer("rope.dimension_count", 2, 1 << 12)
    suffix = "_mla" if reader.has("attention.key_length_mla") else ""
    return MlaSpec(
        kv_lora_rank=reader.integer("attention.kv_lora_rank"),
        qk_rope_head_dim=rope,
        qk_nope_head_dim=reader.integer(f"attention.key_length{suffix}", rope + 1, 1 << 12) - rope,
        v_head_dim=reader.integer(f"attention.value_length{suffix}", 1, 1 << 12),
        q_lora_rank=reader.optional_integer("attention.q_lora_rank", 0) or None,
    )
