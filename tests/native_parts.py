"""Native models built by hand, op by op, for what the module refuses; and a step that one of them runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from mansard import _native

VOCAB, WIDTH, HEADS, KV_HEADS, DIM = 50, 32, 4, 2, 8
BLOCKS, TOKENS, POSITIONS = 6, 8, 64


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int32)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def as_bytes(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def empty(**changes: Any) -> Any:
    defaults = {"isa": "", "num_threads": 2, "activations": "float32", "max_tokens": TOKENS}
    return _native.Model(**{**defaults, "max_positions": POSITIONS, "num_blocks": BLOCKS, **changes})


def add_matrix(model: Any, rows: int, columns: int) -> int:
    return model.add_weight("F32", as_bytes(floats(rows, columns)), rows, columns)


def whole() -> Any:
    """Return a one-layer model: embedding, q k v, rotation, attention, logits."""
    model = empty()
    x, qkv, y = (model.add_register(n) for n in (WIDTH, (HEADS + 2 * KV_HEADS) * DIM, HEADS * DIM))
    table = model.add_rope(DIM, floats(POSITIONS, DIM // 2), floats(POSITIONS, DIM // 2))
    layer = model.add_kv_layer("f16", KV_HEADS, DIM)
    embedding = add_matrix(model, VOCAB, WIDTH)
    model.embed(x, embedding, 1.0)
    model.linear(x, qkv, [add_matrix(model, (HEADS + 2 * KV_HEADS) * DIM, WIDTH)], None, False)
    model.rope_and_cache(qkv, layer, table, HEADS, KV_HEADS, DIM, None, None, 1e-6)
    model.attention(qkv, y, layer, HEADS, KV_HEADS, DIM, 0.3, 0, 0, 0.0, None)
    model.linear(y, x, [add_matrix(model, WIDTH, HEADS * DIM)], None, True)
    model.logits(x, embedding, 1.0, 0.0)
    return model


def good_step() -> dict[str, np.ndarray]:
    """Return a step of two sequences that runs."""
    return {
        "tokens": ints(3, 4, 5, 9),
        "positions": ints(15, 16, 17, 0),
        "counts": ints(3, 1),
        "table_ends": ints(2, 3),
        "blocks": ints(4, 1, 0),
        "logit_rows": ints(2, 3),
        "logits": np.zeros((2, VOCAB), np.float32),
    }


def parts() -> tuple[Any, dict[str, int]]:
    """Return an empty model with registers, weights, a rope table and a KV layer to build ops from."""
    model = empty()
    qkv = (HEADS + 2 * KV_HEADS) * DIM
    names = {"x": WIDTH, "y": HEADS * DIM, "qkv": qkv, "one": 1, "wide": 2 * WIDTH, "odd": 33}
    ids = {n: model.add_register(w) for n, w in names.items()}
    ids["matrix"] = add_matrix(model, WIDTH, WIDTH)
    ids["router"] = add_matrix(model, 4, WIDTH)
    ids["expert"] = add_matrix(model, 24, WIDTH)
    ids["down"] = add_matrix(model, WIDTH, 24)
    ids["rope"] = model.add_rope(DIM, floats(POSITIONS, DIM // 2), floats(POSITIONS, DIM // 2))
    ids["rope16"] = model.add_rope(16, floats(POSITIONS, 8), floats(POSITIONS, 8))
    ids["kv"] = model.add_kv_layer("int8", KV_HEADS, DIM)
    return model, ids


def moe(model: Any, i: dict[str, int], **changes: Any) -> None:
    experts = 4
    arguments = {
        "input": i["x"],
        "output": i["x"],
        "router": i["router"],
        "gate": [i["expert"]] * experts,
        "up": [i["expert"]] * experts,
        "down": [i["down"]] * experts,
        "top_k": 2,
        "activation": "silu",
        "scoring": "softmax",
        "normalize": True,
        "add": True,
        "scaling": 1.0,
        "limit": 0.0,
        "router_bias": None,
        "correction_bias": None,
        "gate_bias": None,
        "up_bias": None,
        "down_bias": None,
        "num_groups": 1,
        "topk_groups": 1,
    }
    model.moe(**{**arguments, **changes})


def attention(model: Any, i: dict[str, int], **changes: Any) -> None:
    arguments = {"qkv": i["qkv"], "output": i["y"], "kv_layer": i["kv"], "num_heads": HEADS, "num_kv_heads": KV_HEADS}
    rest = {"dim": DIM, "scale": 0.3, "window": 0, "chunk": 0, "softcap": 0.0, "sinks": None}
    model.attention(**{**arguments, **rest, **changes})


def rope(model: Any, i: dict[str, int], **changes: Any) -> None:
    arguments = {"qkv": i["qkv"], "kv_layer": i["kv"], "rope": i["rope"], "num_heads": HEADS, "num_kv_heads": KV_HEADS}
    model.rope_and_cache(**{**arguments, "dim": DIM, "q_norm": None, "k_norm": None, "eps": 1e-6, **changes})
