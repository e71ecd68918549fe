"""decoder: the one builder of programs. A ModelSpec goes in, the ops of one step on one rank come out.

What differs between families is data in the spec; this module only lays the ops out: q, k and v in one
Linear, gate and up in one Linear, the residual added by the Linear that ends a block (or by the norm that
follows it in Gemma, or after the all-reduce when ranks share the work). Registers: `x` the residual stream,
`h` a block's normalized input, `out` its output before it joins the residual, `qkv`, `attention`,
`gate_up`, `act`, `gate`, `shared`, `logits`. A register's width is that of the op that wrote it last.

LayerNorm families (OPT, Falcon) are laid out with RmsNorm and a sequential block: good for pricing, not for
running.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mansard.program.ops import (
    AllGather,
    AllReduce,
    Attention,
    Embed,
    GatedActivation,
    LatentAttention,
    Linear,
    LinearAttention,
    Logits,
    MoE,
    Op,
    Program,
    RmsNorm,
    RopeAndCache,
    SigmoidGate,
)
from mansard.program.sharding import Shard, shard
from mansard.specs.model import MlaSpec, ModelSpec, MoeSpec


def decoder(spec: ModelSpec, *, tensor_parallel: int = 1, max_model_len: int | None = None) -> Program:
    """Return the program of one decoding step of `spec` on one of `tensor_parallel` ranks.

    `max_model_len` is the longest sequence to be admitted (default: the model's context); it chooses between
    longrope's frequency lists.

    Raises: ValueError when the heads or widths cannot be divided by `tensor_parallel`.
    """
    builder = _Builder(spec, shard(spec, tensor_parallel), max_model_len or spec.max_position_embeddings)
    builder.embed()
    for layer in range(spec.num_hidden_layers):
        builder.layer = layer
        builder.attention_block()
        builder.mlp_block()
    builder.layer = -1
    builder.head()
    return Program(tuple(builder.ops), tuple(builder.layers), builder.num_cache_layers, tensor_parallel)


@dataclass(slots=True)
class _Builder:
    """The ops laid out so far, and where they go."""

    spec: ModelSpec
    shard: Shard
    max_length: int
    ops: list[Op] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    layer: int = -1
    num_cache_layers: int = 0

    def add(self, *ops: Op) -> None:
        self.ops.extend(ops)
        self.layers.extend([self.layer] * len(ops))

    @property
    def prefix(self) -> str:
        return f"model.layers.{self.layer}"

    @property
    def ends_in_residual(self) -> bool:
        """Whether a block's last Linear can add to the residual itself."""
        return self.shard.num_ranks == 1 and not self.spec.sandwich_norms

    def embed(self) -> None:
        spec, ranks = self.spec, self.shard.num_ranks
        name = "model.embed_tokens.weight"
        self.add(Embed("x", name, self.shard.vocab_size, spec.hidden_size, spec.embedding_scale))
        if ranks > 1:
            self.add(AllReduce("x", spec.hidden_size, ranks))

    def head(self) -> None:
        spec = self.spec
        weight = "model.embed_tokens.weight" if spec.tie_word_embeddings else "lm_head.weight"
        self.add(
            self.norm("x", "h", "model.norm.weight"),
            Logits(
                "h",
                weight,
                spec.hidden_size,
                self.shard.vocab_size,
                spec.logit_scale,
                spec.final_logit_softcapping,
            ),
        )
        if self.shard.num_ranks > 1:
            self.add(AllGather("logits", self.shard.vocab_size, self.shard.num_ranks))

    def norm(self, source: str, output: str, weight: str, add: bool = False) -> RmsNorm:
        spec = self.spec
        return RmsNorm(source, output, weight, spec.hidden_size, spec.rms_norm_eps, spec.norm_unit_offset, add)

    def end_block(self, norm_name: str) -> None:
        """Bring a block's output in `out` into the residual, when its last op could not."""
        spec, ranks = self.spec, self.shard.num_ranks
        if ranks > 1:
            self.add(AllReduce("out", spec.hidden_size, ranks, None if spec.sandwich_norms else "x"))
        if spec.sandwich_norms:
            self.add(self.norm("out", "x", f"{self.prefix}.{norm_name}.weight", add=True))

    def row_linear(self, source: str, weight: str, width: int, bias: bool) -> Linear:
        """Return the Linear that ends a block: it writes to `out` or adds to the residual."""
        residual = self.ends_in_residual
        return Linear(
            source,
            "x" if residual else "out",
            (f"{weight}.weight",),
            width,
            (self.spec.hidden_size,),
            (f"{weight}.bias",) if bias else (),
            residual,
            "row" if self.shard.num_ranks > 1 else "replicated",
        )

    def column_linear(self, source: str, output: str, names: dict[str, int], bias: bool) -> Linear:
        """Return a Linear with the rows of the weights `names` one after the other."""
        return Linear(
            source,
            output,
            tuple(f"{name}.weight" for name in names),
            self.spec.hidden_size,
            tuple(names.values()),
            tuple(f"{name}.bias" for name in names) if bias else (),
            parallel="column" if self.shard.num_ranks > 1 else "replicated",
        )

    def attention_block(self) -> None:
        spec = self.spec
        self.add(self.norm("x", "h", f"{self.prefix}.input_layernorm.weight"))
        if spec.layer_type(self.layer) == "linear":
            self.linear_attention()
        elif spec.mla is not None:
            self.latent_attention(spec.mla)
        else:
            self.softmax_attention()
        self.end_block("post_attention_layernorm")

    def softmax_attention(self) -> None:
        spec, shard = self.spec, self.shard
        name = f"{self.prefix}.self_attn"
        q, kv = shard.num_heads * spec.head_dim, shard.num_kv_heads * spec.head_dim
        parts = {f"{name}.q_proj": q, f"{name}.k_proj": kv, f"{name}.v_proj": kv}
        if spec.fused_qkv:
            parts = {f"{name}.qkv_proj": q + 2 * kv}
        self.add(self.column_linear("h", "qkv", parts, spec.qkv_bias))
        if spec.attention_output_gate:
            self.add(self.column_linear("h", "gate", {f"{name}.output_gate": q}, spec.qkv_bias))
        self.add(self.rope_and_cache(name), self.attention(name))
        self.num_cache_layers += 1
        if spec.attention_output_gate:
            self.add(SigmoidGate("attention", "gate", "attention", q, q))
        self.add(self.row_linear("attention", f"{name}.o_proj", q, spec.attention_output_bias))

    def rope_and_cache(self, name: str) -> RopeAndCache:
        spec = self.spec
        local = spec.layer_type(self.layer) != "full"
        return RopeAndCache(
            "qkv",
            self.num_cache_layers,
            self.shard.num_heads,
            self.shard.num_kv_heads,
            spec.head_dim,
            spec.rope_local if local and spec.rope_local is not None else spec.rope,
            self.max_length,
            f"{name}.q_norm.weight" if spec.qk_norm else None,
            f"{name}.k_norm.weight" if spec.qk_norm else None,
            spec.rms_norm_eps,
            spec.norm_unit_offset,
        )

    def attention(self, name: str) -> Attention:
        spec = self.spec
        kind = spec.layer_type(self.layer)
        return Attention(
            "qkv",
            "attention",
            self.num_cache_layers,
            self.shard.num_heads,
            self.shard.num_kv_heads,
            spec.head_dim,
            spec.query_scale if spec.query_scale is not None else spec.head_dim**-0.5,
            spec.sliding_window if kind == "sliding" else None,
            spec.attention_chunk_size if kind == "chunked" else None,
            spec.attn_logit_softcapping,
            f"{name}.sinks" if spec.attention_sinks else None,
        )

    def latent_attention(self, mla: MlaSpec) -> None:
        name, heads = f"{self.prefix}.self_attn", self.shard.num_heads
        op = LatentAttention(
            "h",
            "attention",
            self.num_cache_layers,
            self.spec.hidden_size,
            heads,
            mla.kv_lora_rank,
            mla.qk_rope_head_dim,
            mla.qk_nope_head_dim,
            mla.v_head_dim,
            mla.q_lora_rank,
            name,
        )
        self.num_cache_layers += 1
        self.add(op, self.row_linear("attention", f"{name}.o_proj", heads * mla.v_head_dim, False))

    def linear_attention(self) -> None:
        linear, ranks = self.spec.linear_attention, self.shard.num_ranks
        assert linear is not None, "a linear layer without its shape"
        name = f"{self.prefix}.linear_attn"
        values = linear.num_value_heads // ranks
        op = LinearAttention(
            "h",
            "attention",
            self.spec.hidden_size,
            linear.num_key_heads // ranks,
            values,
            linear.key_head_dim,
            linear.value_head_dim,
            linear.conv_kernel_size,
            name,
        )
        self.add(op, self.row_linear("attention", f"{name}.out_proj", values * linear.value_head_dim, False))

    def mlp_block(self) -> None:
        spec = self.spec
        norm = "pre_feedforward_layernorm" if spec.sandwich_norms else "post_attention_layernorm"
        self.add(self.norm("x", "h", f"{self.prefix}.{norm}.weight"))
        if spec.moe is not None and spec.has_experts(self.layer):
            self.experts(spec.moe)
        else:
            self.mlp(f"{self.prefix}.mlp", self.shard.intermediate_size, spec.mlp_bias)
        self.end_block("post_feedforward_layernorm")

    def mlp(self, name: str, size: int, bias: bool) -> None:
        self.add(*self.gate_and_up(name, size, bias), self.row_linear("act", f"{name}.down_proj", size, bias))

    def gate_and_up(self, name: str, size: int, bias: bool) -> tuple[Op, Op]:
        """Return the Linear of gate and up, and the activation."""
        spec = self.spec
        parts = {f"{name}.gate_proj": size, f"{name}.up_proj": size}
        if spec.fused_gate_up:
            parts = {f"{name}.gate_up_proj": 2 * size}
        if not spec.gated_mlp:
            parts = {f"{name}.up_proj": size}
        return (
            self.column_linear("h", "gate_up", parts, bias),
            GatedActivation("gate_up", "act", size, spec.hidden_act, spec.gated_mlp, spec.activation_limit),
        )

    def experts(self, moe: MoeSpec) -> None:
        spec, name = self.spec, f"{self.prefix}.mlp"
        output = "x" if self.ends_in_residual else "out"
        self.add(
            MoE(
                "h",
                output,
                f"{name}.router.weight",
                gate=f"{name}.experts.gate_proj.weight",
                up=f"{name}.experts.up_proj.weight",
                down=f"{name}.experts.down_proj.weight",
                num_experts=moe.num_experts,
                top_k=moe.num_experts_per_tok,
                hidden_size=spec.hidden_size,
                size=self.shard.moe_intermediate_size,
                activation=spec.hidden_act,
                scoring=moe.scoring,
                norm_topk_prob=moe.norm_topk_prob,
                routed_scaling_factor=moe.routed_scaling_factor,
                limit=spec.activation_limit,
                router_bias=f"{name}.router.bias" if moe.router_bias else None,
                score_correction_bias=f"{name}.router.correction_bias" if moe.score_correction_bias else None,
                gate_bias=f"{name}.experts.gate_proj.bias" if moe.expert_bias else None,
                up_bias=f"{name}.experts.up_proj.bias" if moe.expert_bias else None,
                down_bias=f"{name}.experts.down_proj.bias" if moe.expert_bias else None,
                num_expert_groups=moe.num_expert_groups,
                topk_groups=moe.topk_groups,
                add_to_output=self.ends_in_residual,
            )
        )
        if moe.num_shared_experts:
            self.shared_experts(moe, f"{name}.shared_expert", output)

    def shared_experts(self, moe: MoeSpec, name: str, output: str) -> None:
        """Lay out the experts that every token uses as one MLP; the routed ones wrote to `output` before."""
        spec, size = self.spec, self.shard.shared_intermediate_size
        gated = moe.shared_expert_gate
        down = Linear(
            "act",
            "shared" if gated else output,
            (f"{name}.down_proj.weight",),
            size,
            (spec.hidden_size,),
            add_to_output=not gated,
            parallel="row" if self.shard.num_ranks > 1 else "replicated",
        )
        self.add(*self.gate_and_up(name, size, False), down)
        if gated:
            gate = f"{self.prefix}.mlp.shared_expert_gate.weight"
            self.add(
                Linear("h", "gate", (gate,), spec.hidden_size, (1,)),
                SigmoidGate("shared", "gate", output, spec.hidden_size, 1, True),
            )
