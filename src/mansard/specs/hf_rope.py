"""Rope settings in a Hugging Face config: the old and the new spelling, for all layers or by layer type.

Before transformers 5 a config had `rope_theta`, `rope_scaling` (with `type` or `rope_type`) and, for Gemma 3,
`rope_local_base_freq`; since then `rope_parameters` holds all of it, possibly once for each layer type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mansard.specs.config_reader import MAX_TOKENS, ConfigReader
from mansard.specs.model import RopeKind, RopeSpec
from mansard.specs.rope import attention_factor

ROPE_KINDS: Mapping[str, RopeKind] = {
    "default": "default",
    "mrope": "default",  # Qwen-VL: equal to default when all tokens are text
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",  # Phi-3's first name for it
}
_LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention")


def read_ropes(config: ConfigReader, head_dim: int) -> tuple[RopeSpec, RopeSpec | None]:
    """Return the rope of full layers, and that of sliding layers where it is another.

    Raises: ValueError for a kind that is not known or settings that are missing.
    """
    parameters = config.section("rope_parameters")
    if parameters is not None and parameters.has(*_LAYER_TYPES):
        empty = ConfigReader({}, {}, parameters.source)
        full = _rope(config, parameters.section("full_attention") or empty, head_dim)
        local_theta = {"rope_theta": config.raw("rope_local_base_freq")}
        sliding = replace_defaults(parameters.section("sliding_attention") or empty, local_theta)
        local = _rope(config, sliding, head_dim)
        return full, None if local == full else local
    full = _rope(config, parameters or config.section("rope_scaling") or ConfigReader({}), head_dim)
    if config.has("rope_local_base_freq"):
        local = RopeSpec(theta=config.number("rope_local_base_freq", 1.0), rotary_dim=full.rotary_dim)
        return full, None if local == full else local
    return full, None


def replace_defaults(reader: ConfigReader, defaults: Mapping[str, object]) -> ConfigReader:
    """Return `reader` with other defaults."""
    return ConfigReader(reader.values, defaults, reader.source)


def _rope(config: ConfigReader, scaling: ConfigReader, head_dim: int) -> RopeSpec:
    name = scaling.text("rope_type") or scaling.text("type") or "default"
    kind = ROPE_KINDS.get(name)
    if kind is None:
        raise ValueError(f"rope type {name!r} is not supported; supported: {', '.join(ROPE_KINDS)}")
    theta = (scaling if scaling.has("rope_theta") else config).number("rope_theta", 1.0)
    rope = RopeSpec(theta=theta, rotary_dim=_rotary_dim(config, scaling, head_dim), kind=kind)
    if kind == "default":
        return rope
    trained = _trained_length(config, scaling, kind)
    rope = replace(rope, factor=_factor(config, scaling), original_max_position_embeddings=trained)
    if kind == "llama3":
        low, high = scaling.positive("low_freq_factor"), scaling.positive("high_freq_factor")
        if high <= low:
            raise ValueError(f"rope llama3 has high_freq_factor {high}; it must be above low_freq_factor {low}")
        return replace(rope, low_freq_factor=low, high_freq_factor=high)
    if kind == "yarn":
        return _yarn(rope, scaling)
    if kind == "longrope":
        return _longrope(rope, scaling, head_dim)
    return rope


def _rotary_dim(config: ConfigReader, scaling: ConfigReader, head_dim: int) -> int | None:
    """Return the rotated width, or None for the whole head."""
    if config.has("rotary_dim"):  # MiniMax-M2
        width = config.integer("rotary_dim", 2, head_dim)
    else:
        source = scaling if scaling.has("partial_rotary_factor") else config
        if not source.has("partial_rotary_factor"):
            return None
        width = int(head_dim * source.number("partial_rotary_factor", 0.0, 1.0))
    if width < 2 or width % 2:
        raise ValueError(f"the rotated width of a head is {width}; it must be even and at least 2")
    return None if width == head_dim else width


def _factor(config: ConfigReader, scaling: ConfigReader) -> float:
    """Return the stretch: given, or the ratio of the context to the trained one."""
    if scaling.has("factor"):
        return scaling.positive("factor")
    source = config if config.has("original_max_position_embeddings") else scaling
    trained = source.integer("original_max_position_embeddings", 1, MAX_TOKENS)
    return config.integer("max_position_embeddings", 1, MAX_TOKENS) / trained


def _trained_length(config: ConfigReader, scaling: ConfigReader, kind: RopeKind) -> int | None:
    """Return the trained context length; Phi-3 writes it beside the rope settings rather than in them."""
    key = "original_max_position_embeddings"
    if kind not in ("llama3", "yarn", "longrope"):
        return None
    for source in (config, scaling):
        if source.has(key):
            return source.integer(key, 2, MAX_TOKENS)
    return config.integer("max_position_embeddings", 2, MAX_TOKENS)


def _yarn(rope: RopeSpec, scaling: ConfigReader) -> RopeSpec:
    if rope.theta <= 1.0:
        raise ValueError(f"rope yarn needs rope_theta > 1; it is {rope.theta}")
    return replace(
        rope,
        beta_fast=scaling.optional_positive("beta_fast") or 32.0,
        beta_slow=scaling.optional_positive("beta_slow") or 1.0,
        attention_factor=scaling.optional_positive("attention_factor"),
        mscale=scaling.number("mscale") if scaling.has("mscale") else None,
        mscale_all_dim=scaling.number("mscale_all_dim") if scaling.has("mscale_all_dim") else None,
        truncate=scaling.flag("truncate") if scaling.has("truncate") else True,
    )


def _longrope(rope: RopeSpec, scaling: ConfigReader, head_dim: int) -> RopeSpec:
    planes = (rope.rotary_dim or head_dim) // 2

    def factors(key: str) -> tuple[float, ...]:
        found = scaling.numbers(key, max_length=1 << 12) or ()
        if len(found) != planes:
            raise ValueError(f"rope longrope: {key} has {len(found)} numbers; {planes} planes need one each")
        return found

    rope = replace(
        rope,
        short_factor=factors("short_factor"),
        long_factor=factors("long_factor"),
        attention_factor=scaling.optional_positive("attention_factor"),
    )
    return replace(rope, attention_factor=attention_factor(rope))
