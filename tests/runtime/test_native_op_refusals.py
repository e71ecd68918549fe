"""Ops and parts that do not fit each other are refused while a native model is built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from native_parts import HEADS, POSITIONS, WIDTH, attention, empty, floats, moe, parts, rope

BAD_OPS: dict[str, Any] = {
    "embed into another width": lambda m, i: m.embed(i["qkv"], i["matrix"], 1.0),
    "embed into no register": lambda m, i: m.embed(99, i["matrix"], 1.0),
    "embed from no weight": lambda m, i: m.embed(i["x"], 99, 1.0),
    "embed from a negative weight": lambda m, i: m.embed(i["x"], -1, 1.0),
    "norm of another width": lambda m, i: m.rms_norm(i["qkv"], i["x"], floats(WIDTH), 1e-6, False),
    "norm into another width": lambda m, i: m.rms_norm(i["x"], i["qkv"], floats(WIDTH), 1e-6, False),
    "linear of another width": lambda m, i: m.linear(i["qkv"], i["x"], [i["matrix"]], None, False),
    "linear into another width": lambda m, i: m.linear(i["x"], i["odd"], [i["matrix"]], None, False),
    "linear in place": lambda m, i: m.linear(i["x"], i["x"], [i["matrix"]], None, False),
    "linear without weights": lambda m, i: m.linear(i["x"], i["y"], [], None, False),
    "linear of a weight that is not": lambda m, i: m.linear(i["x"], i["y"], [77], None, False),
    "linear of a wrong bias": lambda m, i: m.linear(i["x"], i["y"], [i["matrix"]], floats(31), False),
    "logits of another width": lambda m, i: m.logits(i["qkv"], i["matrix"], 1.0, 0.0),
    "logits of no register": lambda m, i: m.logits(-1, i["matrix"], 1.0, 0.0),
    "gate of another width": lambda m, i: m.gated_activation(i["odd"], i["x"], "silu", True, 0.0),
    "gate of no such kind": lambda m, i: m.gated_activation(i["wide"], i["x"], "swish", True, 0.0),
    "sigmoid gate of another width": lambda m, i: m.sigmoid_gate(i["x"], i["odd"], i["y"], False),
    "sigmoid gate into another width": lambda m, i: m.sigmoid_gate(i["x"], i["one"], i["odd"], False),
    "rope of no table": lambda m, i: rope(m, i, rope=7),
    "rope of a negative table": lambda m, i: rope(m, i, rope=-2),
    "rope wider than the head": lambda m, i: rope(m, i, rope=i["rope16"]),
    "rope of another number of heads": lambda m, i: rope(m, i, num_heads=3),
    "rope of other KV heads": lambda m, i: rope(m, i, num_kv_heads=1),
    "rope of no KV heads": lambda m, i: rope(m, i, num_kv_heads=0),
    "rope with a norm of another width": lambda m, i: rope(m, i, q_norm=floats(7)),
    "attention of no layer": lambda m, i: attention(m, i, kv_layer=3),
    "attention of another head": lambda m, i: attention(m, i, dim=16),
    "attention into another width": lambda m, i: attention(m, i, output=i["odd"]),
    "attention of a negative window": lambda m, i: attention(m, i, window=-1),
    "attention of a negative chunk": lambda m, i: attention(m, i, chunk=-4),
    "attention of a negative softcap": lambda m, i: attention(m, i, softcap=-1.0),
    "attention with too few sinks": lambda m, i: attention(m, i, sinks=floats(HEADS - 1)),
    "attention of no heads": lambda m, i: attention(m, i, num_heads=0),
    "experts without up": lambda m, i: moe(m, i, up=[]),
    "no experts": lambda m, i: moe(m, i, gate=[], up=[], down=[]),
    "an expert that is not": lambda m, i: moe(m, i, up=[i["expert"]] * 3 + [99]),
    "an expert of another shape": lambda m, i: moe(m, i, up=[i["expert"]] * 3 + [i["matrix"]]),
    "a router of another shape": lambda m, i: moe(m, i, router=i["matrix"]),
    "more experts than there are": lambda m, i: moe(m, i, top_k=5),
    "no experts chosen": lambda m, i: moe(m, i, top_k=0),
    "groups that do not divide": lambda m, i: moe(m, i, num_groups=3, topk_groups=1),
    "groups without enough experts": lambda m, i: moe(m, i, num_groups=4, topk_groups=1),
    "no groups": lambda m, i: moe(m, i, num_groups=0, topk_groups=0),
    "a scoring that is not": lambda m, i: moe(m, i, scoring="argmax"),
    "a bias of the router too short": lambda m, i: moe(m, i, router_bias=floats(3)),
    "biases of experts too short": lambda m, i: moe(m, i, gate_bias=floats(24)),
}


@pytest.mark.parametrize("name", BAD_OPS)
def test_ops_that_do_not_fit_are_refused(name: str) -> None:
    model, ids = parts()
    with pytest.raises(ValueError):
        BAD_OPS[name](model, ids)


def test_the_parts_themselves_fit() -> None:
    model, ids = parts()
    moe(model, ids)
    rope(model, ids)
    attention(model, ids)


BAD_PARTS: dict[str, Any] = {
    "register of no width": lambda m: m.add_register(0),
    "register of a negative width": lambda m: m.add_register(-8),
    "odd rotation": lambda m: m.add_rope(7, floats(POSITIONS, 3), floats(POSITIONS, 3)),
    "short rotation table": lambda m: m.add_rope(8, floats(POSITIONS - 1, 4), floats(POSITIONS, 4)),
    "narrow rotation table": lambda m: m.add_rope(8, floats(POSITIONS, 4), floats(POSITIONS, 3)),
    "KV of no format": lambda m: m.add_kv_layer("int3", 2, 8),
    "KV of no heads": lambda m: m.add_kv_layer("f16", 0, 8),
    "KV of no width": lambda m: m.add_kv_layer("f16", 2, 0),
    "KV of too wide a head": lambda m: m.add_kv_layer("f16", 2, 4096),
    "int4 KV of an odd head": lambda m: m.add_kv_layer("int4", 2, 7),
}


@pytest.mark.parametrize("name", BAD_PARTS)
def test_parts_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(ValueError):
        BAD_PARTS[name](empty())


SCRIPTS = {
    "no threads": "from native_parts import empty\nempty(num_threads=0)",
    "a negative number of threads": "from native_parts import empty\nempty(num_threads=-2)",
    "a million threads": "from native_parts import empty\nempty(num_threads=1_000_000)",
    "the first expert is not": """
from native_parts import moe, parts
model, ids = parts()
moe(model, ids, gate=[10**6] + [ids["expert"]] * 3)
""",
    "the smaller of two embeddings": """
from native_parts import add_matrix, empty, good_step, WIDTH
model = empty()
x = model.add_register(WIDTH)
model.embed(x, add_matrix(model, 4, WIDTH), 1.0)
model.embed(x, add_matrix(model, 50, WIDTH), 1.0)
model.logits(x, add_matrix(model, 50, WIDTH), 1.0, 0.0)
model.step(**good_step())
""",
    "the larger of two logits": """
from native_parts import add_matrix, empty, good_step, WIDTH
model = empty()
x = model.add_register(WIDTH)
model.embed(x, add_matrix(model, 50, WIDTH), 1.0)
model.logits(x, add_matrix(model, 60, WIDTH), 1.0, 0.0)
model.logits(x, add_matrix(model, 50, WIDTH), 1.0, 0.0)
model.step(**good_step())
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_could_read_beyond_memory_is_refused(name: str) -> None:
    """Each in a process of its own, so that a crash would fail one test alone."""
    guarded = f"try:\n    exec({SCRIPTS[name]!r})\nexcept ValueError:\n    sys.exit(7)"
    code = f"import sys\nsys.path[:] = {[str(Path(__file__).parents[1]), *sys.path]!r}\n{guarded}"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr[-500:]
