"""Canonical weights of llama-shaped files: row order (case B06), heads (case B07), refusals."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loading.loading_samples import mutate_small, random_floats, write
from safetensors.numpy import save_file

from mansard.loading.ggml_blocks import dequantize
from mansard.loading.ggml_encode import quantize
from mansard.loading.gguf_writer import write_gguf
from mansard.loading.stored import ModelFileError, StoredTensor
from mansard.loading.weights import Weights, resolve_head

HEADS, KV_HEADS, DIM, HIDDEN = 4, 2, 16, 64
Q, K, V = (f"model.layers.0.self_attn.{n}_proj.weight" for n in "qkv")


def tiny_arrays() -> dict[str, np.ndarray]:
    """Return the tensors of a one-layer Llama under their canonical names."""
    rng = np.random.default_rng(0)
    shapes = {
        "model.embed_tokens.weight": (32, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "model.layers.0.input_layernorm.weight": (HIDDEN,),
        "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
        Q: (HEADS * DIM, HIDDEN),
        K: (KV_HEADS * DIM, HIDDEN),
        V: (KV_HEADS * DIM, HIDDEN),
        "model.layers.0.self_attn.q_proj.bias": (HEADS * DIM,),
        "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * DIM),
        "model.layers.0.mlp.gate_proj.weight": (96, HIDDEN),
        "model.layers.0.mlp.up_proj.weight": (96, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, 96),
    }
    return {name: random_floats(rng, *shape) for name, shape in shapes.items()}


GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    Q: "blk.0.attn_q.weight",
    K: "blk.0.attn_k.weight",
    V: "blk.0.attn_v.weight",
    "model.layers.0.self_attn.q_proj.bias": "blk.0.attn_q.bias",
    "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}


def interleaved(array: np.ndarray, num_heads: int) -> np.ndarray:
    """Order rows as the converter does for a llama GGUF: row j · D/2 + i of a head goes to row 2i + j."""
    out = np.empty_like(array)
    half = len(array) // num_heads // 2
    for head in range(num_heads):
        for i in range(half):
            for j in range(2):
                out[(head * half + i) * 2 + j] = array[(head * 2 + j) * half + i]
    return out


def tiny_gguf(path: Path, architecture: str, kind: str, extra: Mapping[str, Any] | None = None) -> Path:
    tensors: list[StoredTensor] = []
    for name, array in tiny_arrays().items():
        part = name.split(".")[-2]
        if architecture == "llama" and part in ("q_proj", "k_proj"):
            array = interleaved(array, HEADS if part == "q_proj" else KV_HEADS)
        tensors.append(quantize(array, "fp32" if array.ndim == 1 else kind, GGUF_NAMES[name]))
    metadata = {
        "general.architecture": architecture,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
    }
    return write_gguf(path, metadata | dict(extra or {}), tensors)


def tiny_safetensors(folder: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    save_file(dict(arrays), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_gguf_rows_equal_the_safetensors_twin(tmp_path: Path, architecture: str) -> None:
    """Case B06: llama-arch q and k return to Hugging Face's order, each by its own head count; F16 exactly.

    Before: the k rows undone with q's head count load cleanly and write garbage. Qwen files are not permuted.
    """
    weights = Weights.open(tiny_gguf(tmp_path / "m.gguf", architecture, "fp16"))
    twin = Weights.open(tiny_safetensors(tmp_path, tiny_arrays()))
    assert set(weights.names()) == set(twin.names()) == set(tiny_arrays())
    assert weights.num_parameters == twin.num_parameters == sum(a.size for a in tiny_arrays().values())
    for name, array in tiny_arrays().items():
        expected = array if array.ndim == 1 else array.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(weights.float32(name), expected, err_msg=name)
        np.testing.assert_array_equal(twin.float32(name), array, err_msg=name)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "mxfp4"])
def test_quantized_rows_are_moved_whole(tmp_path: Path, kind: str) -> None:
    """The permutation re-orders raw rows: bytes equal those of the unpermuted matrix quantized directly."""
    weights = Weights.open(tiny_gguf(tmp_path / "m.gguf", "llama", kind))
    for name in (Q, K, V):
        direct = quantize(tiny_arrays()[name], kind)
        stored = weights.tensor(name)
        assert (stored.format, stored.shape) == (direct.format, direct.shape)
        np.testing.assert_array_equal(stored.data, direct.data)
        np.testing.assert_array_equal(weights.float32(name), dequantize(direct))
    assert weights.num_bytes == sum(weights.tensor(n).num_bytes for n in weights.names())


def test_unpermuted_weights_are_views_on_the_file(tmp_path: Path) -> None:
    weights = Weights.open(tiny_gguf(tmp_path / "m.gguf", "llama", "Q4_0"))
    assert not weights.tensor(V).data.flags.owndata
    assert not weights.tensor(V).data.flags.writeable
    before = weights.float32(V)
    weights.release(V)
    np.testing.assert_array_equal(weights.float32(V), before)


def test_transformers_reads_the_same_weights_from_the_gguf(tmp_path: Path) -> None:
    """An independent reader of the same permuted file agrees, tensor by tensor."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    extra = {
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": 96,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": 32,
        "llama.rope.dimension_count": DIM,
    }
    path = tiny_gguf(tmp_path / "m.gguf", "llama", "Q8_0", extra)
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        attention_bias=False,
    )
    loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=LlamaForCausalLM(config))
    weights = Weights.open(path)
    for name in (Q, K, V, "model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight"):
        np.testing.assert_array_equal(loaded["tensors"][name].numpy(), weights.float32(name), err_msg=name)


EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize(
    ("has_head", "tied", "expected"),
    [(False, True, EMBED), (True, True, HEAD), (True, False, HEAD), (False, False, None)],
)
def test_heads(tmp_path: Path, has_head: bool, tied: bool, expected: str | None) -> None:
    """Case B07: a stored head is used; else the embeddings if tied; untied and missing is refused."""
    arrays = tiny_arrays() | ({HEAD: np.ones((32, HIDDEN), np.float32)} if has_head else {})
    weights = Weights.open(tiny_safetensors(tmp_path, arrays))
    if expected is None:
        with pytest.raises(ValueError, match=r"lm_head\.weight.*incomplete"):
            resolve_head(weights, tied)
    else:
        assert resolve_head(weights, tied) == expected


def test_multimodal_prefixes_are_stripped_and_other_parts_listed(tmp_path: Path) -> None:
    arrays = {f"model.language_{n}": a for n, a in tiny_arrays().items()}
    arrays["model.vision_tower.patch.weight"] = np.zeros(3, np.float32)
    weights = Weights.open(tiny_safetensors(tmp_path, arrays))
    assert set(weights.names()) == set(tiny_arrays())
    assert weights.unmapped == ("model.vision_tower.patch.weight",)


def test_rope_tables_are_kept_apart(tmp_path: Path) -> None:
    tensors = [
        quantize(np.ones((4, 32), np.float32), "Q8_0", "token_embd.weight"),
        quantize(np.arange(8, dtype=np.float32), "fp32", "rope_freqs.weight"),
    ]
    weights = Weights.open(write_gguf(tmp_path / "m.gguf", {"general.architecture": "qwen3"}, tensors))
    assert weights.names() == (EMBED,)
    assert dequantize(weights.rope_tensors["rope_freqs.weight"]).tolist() == list(range(8))
    assert weights.unmapped == ()
    assert weights.gguf is not None and weights.gguf.architecture == "qwen3"


def test_what_is_not_supported_is_refused_on_opening(tmp_path: Path) -> None:
    embed = quantize(np.ones((4, 32), np.float32), "Q8_0", "token_embd.weight")
    query = quantize(np.ones((6, 32), np.float32), "Q8_0", "blk.0.attn_q.weight")
    cases: dict[str, tuple[dict[str, Any], list[StoredTensor]]] = {
        "mamba.*supported are llama": ({"general.architecture": "mamba"}, [embed]),
        "merge them first": ({"general.architecture": "llama", "split.count": 2}, [embed]),
        "head_count": ({"general.architecture": "llama"}, [embed, query]),
        "6 rows.*4 heads": (
            {"general.architecture": "llama", "llama.attention.head_count": 4},
            [embed, query],
        ),
        "no weights of a known model": ({"general.architecture": "qwen2"}, []),
    }
    for message, (metadata, tensors) in cases.items():
        with pytest.raises(ModelFileError, match=message):
            Weights.open(write_gguf(tmp_path / "m.gguf", metadata, tensors))


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("model.layers.0.self_attn.q_proj.qweight", np.int32, "GPTQ, AWQ"),
        ("model.layers.0.self_attn.q_proj.weight_scale_inv", np.float32, "GPTQ, AWQ, fp8"),
        ("model.layers.0.self_attn.q_proj.weight", np.int8, "must be F32, F16 or BF16"),
    ],
)
def test_prequantized_checkpoints_are_refused(tmp_path: Path, name: str, dtype: Any, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        Weights.open(tiny_safetensors(tmp_path, {name: np.zeros((2, 2), dtype)}))


def test_two_names_for_one_weight_are_refused(tmp_path: Path) -> None:
    arrays = {n: np.zeros((2, 2), np.float32) for n in (HEAD, "language_model.lm_head.weight")}
    with pytest.raises(ModelFileError, match=r"both lm_head\.weight"):
        Weights.open(tiny_safetensors(tmp_path, arrays))


def test_missing_weights_and_files_are_named(tmp_path: Path) -> None:
    weights = Weights.open(tiny_safetensors(tmp_path, tiny_arrays()))
    with pytest.raises(ModelFileError, match=r"q_norm.*nearest: .*q_proj"):
        weights.tensor("model.layers.0.self_attn.q_norm.weight")
    with pytest.raises(ModelFileError, match="no such file or folder"):
        Weights.open(tmp_path / "absent")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), suffix=st.sampled_from(["gguf", "safetensors"]))
def test_damaged_files_decode_or_are_refused(tmp_path: Path, seed: int, suffix: str) -> None:
    """Whatever opens after its header was damaged can be read to the last weight, in the shape it says."""
    rng = random.Random(seed)
    if suffix == "gguf":
        raw = tiny_gguf(tmp_path / "sound.gguf", "llama", "Q4_0").read_bytes()
    else:
        raw = (tiny_safetensors(tmp_path, tiny_arrays()) / "model.safetensors").read_bytes()
    header, rest = raw[:900], raw[900:]
    path = write(tmp_path / f"damaged.{suffix}", mutate_small(header, rng) + rest)
    try:
        weights = Weights.open(path)
    except ModelFileError:
        return
    for name in weights.names():
        assert weights.float32(name).shape == weights.shape(name)
