"""Random-weight models at real shapes, as GGUF files: what a kernel's speed depends on, without a download.

    python benchmarks/random_models.py --shape llama-3.2-1b --format Q4_0 --out /tmp/models

Formats: Q4_0, Q8_0, BF16, and Q4_K_M's mix (Q4_K, with Q6_K for the output, v_proj and half of down_proj). Weights are
random blocks with scales near a trained model's, so activations stay finite; what such a model says means nothing.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mansard.loading.gguf_writer import write_gguf
from mansard.loading.stored import StoredTensor
from mansard.specs.precision import number_format


@dataclass(frozen=True)
class Shape:
    """The dimensions of a Llama-shaped model with tied embeddings."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope_theta: float = 500_000.0


SHAPES = {
    "llama-3.2-1b": Shape(16, 2048, 8192, 32, 8, 64, 128_256),
    "smollm2-135m": Shape(30, 576, 1536, 9, 3, 64, 49_152, 100_000.0),
    "tiny": Shape(2, 256, 512, 4, 2, 64, 1024),
}
FORMATS = ("Q4_0", "Q8_0", "BF16", "Q4_K_M")
_SCALE = 0.02  # standard deviation of the weights


def random_blocks(kind: str, num_elements: int, rng: np.random.Generator) -> np.ndarray:
    """Return valid blocks of a format with weights of about the scale above."""
    fmt = number_format(kind.lower() if kind in ("BF16", "F32") else kind)
    if kind == "F32":
        return np.ones(num_elements, np.float32).view(np.uint8)
    if kind == "BF16":
        bits = (rng.standard_normal(num_elements, np.float32) * _SCALE).view(np.uint32) >> 16
        return bits.astype(np.uint16).view(np.uint8)
    count = num_elements // fmt.block_size
    blocks = rng.integers(0, 256, (count, fmt.block_bytes), np.uint8)

    def put(at: int, value: float) -> None:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)

    if kind == "Q4_0":
        put(0, _SCALE / 4.6)  # uniform codes -8 … 7 have a deviation of 4.6
    elif kind == "Q8_0":
        put(0, _SCALE / 74)
    elif kind == "Q4_K":  # w = d · scale · code - dmin · minimum; scales average 31, codes 7.5
        put(0, _SCALE / 31 / 4.6)
        put(2, _SCALE / 31 / 4.6 * 7.5)
    elif kind == "Q6_K":
        blocks[:, 192:208] = rng.integers(20, 44, (count, 16), np.uint8)
        put(208, _SCALE / 32 / 18.5)
    else:
        raise ValueError(f"no random blocks for {kind}")
    return blocks.reshape(-1)


def format_of(name: str, layer: int, layers: int, kind: str) -> str:
    """Return the stored format of one tensor in a file of `kind`; Q4_K_M mixes as llama.cpp does."""
    if kind != "Q4_K_M":
        return kind
    more_bits = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    six = name in ("token_embd", "output") or (name in ("attn_v", "ffn_down") and more_bits)
    return "Q6_K" if six else "Q4_K"


def tensors(shape: Shape, kind: str, rng: np.random.Generator) -> list[StoredTensor]:
    """Return all tensors of a model."""

    def tensor(name: str, fmt: str, rows: int, columns: int) -> StoredTensor:
        stored = number_format({"F32": "fp32", "BF16": "bf16"}.get(fmt, fmt))
        dims = (columns,) if rows == 1 else (rows, columns)
        return StoredTensor(name, stored, dims, random_blocks(fmt, rows * columns, rng))

    q, kv, h, f = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.hidden, shape.intermediate
    parts = {"attn_q": (q, h), "attn_k": (kv, h), "attn_v": (kv, h), "attn_output": (h, q)}
    parts |= {"ffn_gate": (f, h), "ffn_up": (f, h), "ffn_down": (h, f)}
    found = [tensor("token_embd.weight", format_of("token_embd", -1, shape.layers, kind), shape.vocab, h)]
    for layer in range(shape.layers):
        for name, (rows, columns) in parts.items():
            fmt = format_of(name, layer, shape.layers, kind)
            found.append(tensor(f"blk.{layer}.{name}.weight", fmt, rows, columns))
        found += [tensor(f"blk.{layer}.{n}.weight", "F32", 1, h) for n in ("attn_norm", "ffn_norm")]
    return [*found, tensor("output_norm.weight", "F32", 1, h)]


def metadata(shape: Shape, name: str) -> dict[str, object]:
    """Return GGUF metadata with a byte-level vocabulary of the shape's size."""
    words = [chr(i) for i in range(33, 127)] + [chr(i) for i in range(161, 173)] + [chr(i) for i in range(174, 256)]
    words += [chr(256 + i) for i in range(256 - len(words))]
    words.append('!"')  # for the one merge
    words += [f"<unused{i}>" for i in range(shape.vocab - len(words))]
    return {
        "general.architecture": "llama",
        "general.name": name,
        "llama.block_count": shape.layers,
        "llama.context_length": 8192,
        "llama.embedding_length": shape.hidden,
        "llama.feed_forward_length": shape.intermediate,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": shape.rope_theta,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.vocab_size": shape.vocab,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.merges": ['! "'],
        "tokenizer.ggml.eos_token_id": shape.vocab - 1,
    }


def make(shape_name: str, kind: str, folder: Path, seed: int = 0) -> Path:
    """Write one model, unless it is there, and return its path."""
    path = folder / f"{shape_name}-{kind}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        shape, rng = SHAPES[shape_name], np.random.default_rng(seed)
        partial = path.with_suffix(".part")
        write_gguf(partial, metadata(shape, path.stem), tensors(shape, kind, rng))
        partial.rename(path)
    return path


def main() -> None:
    """Write the models that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("--format", choices=[*FORMATS, "all"], default="Q4_0")
    parser.add_argument("--out", type=Path, default=Path("models"))
    args = parser.parse_args()
    kinds = FORMATS if args.format == "all" else (args.format,)
    paths = [make(args.shape, kind, args.out) for kind in kinds]
    print(json.dumps({str(p): p.stat().st_size for p in paths}))


if __name__ == "__main__":
    main()
