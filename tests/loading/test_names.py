import gguf
import pytest
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

from mansard.loading.names import GGUF_ARCHITECTURES, ROPE_TENSORS, canonical_gguf, canonical_hf

LAYER = "model.layers.3."
HF = {
    "model.layers.3.block_sparse_moe.gate.weight": LAYER + "mlp.router.weight",
    "model.layers.3.block_sparse_moe.experts.7.w1.weight": LAYER + "mlp.experts.7.gate_proj.weight",
    "model.layers.3.block_sparse_moe.experts.7.w2.weight": LAYER + "mlp.experts.7.down_proj.weight",
    "model.layers.3.block_sparse_moe.experts.7.w3.weight": LAYER + "mlp.experts.7.up_proj.weight",
    "model.layers.3.mlp.gate.weight": LAYER + "mlp.router.weight",
    "model.layers.3.mlp.router.bias": LAYER + "mlp.router.bias",
    "model.layers.3.mlp.shared_expert_gate.weight": LAYER + "mlp.shared_expert_gate.weight",
    "model.layers.3.mlp.gate_proj.weight": LAYER + "mlp.gate_proj.weight",
    "model.layers.3.self_attn.qkv_proj.weight": LAYER + "self_attn.qkv_proj.weight",
    "language_model.model.layers.3.input_layernorm.weight": LAYER + "input_layernorm.weight",
    "model.language_model.layers.3.input_layernorm.weight": LAYER + "input_layernorm.weight",
    "language_model.lm_head.weight": "lm_head.weight",
    "model.language_model.embed_tokens.weight": "model.embed_tokens.weight",
    "lm_head.weight": "lm_head.weight",
    "model.layers.3.self_attn.rotary_emb.inv_freq": None,
    "vision_tower.encoder.layers.0.mlp.fc1.weight": None,
    "model.vision_tower.encoder.layers.0.mlp.fc1.weight": None,
    "multi_modal_projector.weight": None,
    "optimizer.state": None,
}


@pytest.mark.parametrize("name", HF)
def test_hugging_face_names(name: str) -> None:
    assert canonical_hf(name) == HF[name]


GGUF = {
    ("llama", "token_embd.weight"): "model.embed_tokens.weight",
    ("llama", "output_norm.weight"): "model.norm.weight",
    ("llama", "output.weight"): "lm_head.weight",
    ("llama", "blk.3.ffn_norm.weight"): LAYER + "post_attention_layernorm.weight",
    ("llama", "blk.3.ffn_gate.7.weight"): LAYER + "mlp.experts.7.gate_proj.weight",
    ("llama", "blk.3.ffn_gate_exps.weight"): LAYER + "mlp.experts.gate_proj.weight",
    ("llama", "rope_freqs.weight"): None,
    ("llama", "blk.3.attn_rot_embd.weight"): None,
    ("qwen2", "blk.3.attn_q.bias"): LAYER + "self_attn.q_proj.bias",
    ("qwen2moe", "blk.3.ffn_gate_inp_shexp.weight"): LAYER + "mlp.shared_expert_gate.weight",
    ("qwen3", "blk.3.attn_q_norm.weight"): LAYER + "self_attn.q_norm.weight",
    ("gemma3", "blk.3.ffn_norm.weight"): LAYER + "pre_feedforward_layernorm.weight",
    ("gemma2", "blk.3.post_attention_norm.weight"): LAYER + "post_attention_layernorm.weight",
    ("gemma2", "blk.3.post_ffw_norm.weight"): LAYER + "post_feedforward_layernorm.weight",
    ("gpt-oss", "blk.3.post_attention_norm.weight"): LAYER + "post_attention_layernorm.weight",
    ("gpt-oss", "blk.3.attn_sinks.weight"): LAYER + "self_attn.sinks",
    ("gpt-oss", "blk.3.ffn_gate_inp.bias"): LAYER + "mlp.router.bias",
    ("gpt-oss", "blk.3.ffn_down_exps.bias"): LAYER + "mlp.experts.down_proj.bias",
    ("phi3", "blk.3.ffn_up.weight"): LAYER + "mlp.gate_up_proj.weight",
    ("phi3", "blk.3.attn_qkv.weight"): LAYER + "self_attn.qkv_proj.weight",
}


@pytest.mark.parametrize(("architecture", "name"), GGUF)
def test_gguf_names(architecture: str, name: str) -> None:
    assert canonical_gguf(name, architecture) == GGUF[architecture, name]


@pytest.mark.parametrize("architecture", GGUF_ARCHITECTURES)
def test_every_tensor_of_an_architecture_has_one_canonical_name(architecture: str) -> None:
    """The gguf package lists what each architecture may hold; nothing but rotation tables may go unnamed."""
    kind = next(a for a in MODEL_ARCH if MODEL_ARCH_NAMES[a] == architecture)
    names = [TENSOR_NAMES[t].format(bid=3) + ".weight" for t in MODEL_TENSORS[kind]]
    canonical = {n: canonical_gguf(n, architecture) for n in names}
    unnamed = {n for n, c in canonical.items() if c is None}
    assert unnamed <= {*ROPE_TENSORS, "blk.3.attn_rot_embd.weight"}
    named = [c for c in canonical.values() if c is not None]
    assert len(set(named)) == len(named)
    assert gguf.MODEL_ARCH(kind) == kind
