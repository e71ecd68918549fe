"""`mansard models`: what a model's files hold, without loading it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from mansard.commands import options
from mansard.runtime.model import DEFAULT_MODEL

if TYPE_CHECKING:
    from rich.table import Table

    from mansard.loading.weights import Weights
    from mansard.specs.model import ModelSpec

KV_FORMATS = ("bf16", "int8", "int4")
KINDS = (  # the kind of a weight, by the part of its canonical name that says so
    ("embedding", r"embed_tokens"),
    ("output head", r"^lm_head"),
    ("experts", r"\.experts\."),
    ("router", r"\.(router|gate)\.(weight|bias)$"),
    ("attention q, k, v", r"\.(q|k|v|qkv)_proj\."),
    ("attention output", r"\.o_proj\."),
    ("MLP gate, up", r"\.(gate|up|gate_up)_proj\."),
    ("MLP down", r"\.down_proj\."),
    ("norms", r"norm"),
)


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """The weights of one kind that are stored in one format."""

    kind: str
    format: str
    num_tensors: int
    num_parameters: int
    num_bytes: int


def models(model: options.Model = DEFAULT_MODEL, as_json: options.AsJson = False) -> None:
    """Show what a model file holds: architecture, formats, parameters, KV cache."""
    from mansard.loading.model_files import locate
    from mansard.loading.weights import Weights
    from mansard.runtime.loader import read_spec

    files = locate(model)
    weights = Weights.open(files.root)
    spec = read_spec(files, weights)
    facts = describe(spec, weights)
    if as_json:
        typer.echo(json.dumps({"name": files.name, "file": str(files.root), **facts}, ensure_ascii=False))
        return
    _show(files.name, str(files.root), facts)


def tensor_groups(weights: Weights) -> list[TensorGroup]:
    """Return the weights by kind and format, the largest first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in weights.names():
        groups.setdefault((kind_of(name), weights.format(name).name), []).append(name)
    found = []
    for (kind, stored), names in groups.items():
        counts = [math.prod(weights.shape(name)) for name in names]
        num_bytes = sum(weights.format(n).num_bytes(c) for n, c in zip(names, counts, strict=True))
        found.append(TensorGroup(kind, stored, len(names), sum(counts), num_bytes))
    return sorted(found, key=lambda group: -group.num_bytes)


def kind_of(name: str) -> str:
    """Return the kind of a weight, by its canonical name."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "other")


def describe(spec: ModelSpec, weights: Weights) -> dict[str, Any]:
    """Return the facts as one JSON-able value. Units: bytes."""
    from mansard.specs.sizes import kv_bytes_per_token, num_active_parameters

    groups = tensor_groups(weights)
    return {
        "architecture": spec.model_type,
        "num_parameters": weights.num_parameters,
        "num_active_parameters": num_active_parameters(spec),
        "num_bytes": weights.num_bytes,
        "bits_per_weight": 8 * weights.num_bytes / weights.num_parameters,
        "max_position_embeddings": spec.max_position_embeddings,
        "kv_bytes_per_token": {kind: kv_bytes_per_token(spec, kind) for kind in KV_FORMATS},
        "tensors": [asdict(group) for group in groups],
        "spec": asdict(spec),
    }


def _show(name: str, file: str, facts: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(f"[bold]{name}[/]  [dim]{file}[/]")
    console.print(_fact_table(facts))
    console.print(_tensor_table(facts))


def _fact_table(facts: dict[str, Any]) -> Table:
    from rich.table import Table

    spec = facts["spec"]
    heads = f"{spec['num_attention_heads']} query, {spec['num_key_value_heads']} key-value, of {spec['head_dim']}"
    active = facts["num_active_parameters"]
    dense = spec["moe"] is None
    rows = {
        "architecture": facts["architecture"],
        "parameters": _count(facts["num_parameters"]) + ("" if dense else f", {_count(active)} active per token"),
        "weights": f"{_size(facts['num_bytes'])} ({facts['bits_per_weight']:.2f} bits per weight)",
        "layers": f"{spec['num_hidden_layers']} of {spec['hidden_size']:,} hidden, {spec['intermediate_size']:,} inner",
        "heads": heads,
        "vocabulary": f"{spec['vocab_size']:,} tokens" + (", head tied" if spec["tie_word_embeddings"] else ""),
        "context": f"{facts['max_position_embeddings']:,} tokens",
        "KV cache": " · ".join(f"{_size(size)} {kind}" for kind, size in facts["kv_bytes_per_token"].items())
        + " per token",
    }
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan")
    table.add_column()
    for label, value in rows.items():
        table.add_row(label, value)
    return table


def _tensor_table(facts: dict[str, Any]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for label in ("weights", "format"):
        table.add_column(label)
    for label in ("tensors", "parameters", "size", "share"):
        table.add_column(label, justify="right")
    for group in facts["tensors"]:
        table.add_row(
            group["kind"],
            group["format"],
            str(group["num_tensors"]),
            _count(group["num_parameters"]),
            _size(group["num_bytes"]),
            f"{group['num_bytes'] / facts['num_bytes']:.1%}",
        )
    return table


def _count(number: int) -> str:
    for unit, scale in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}" if number < 100 * scale else f"{number / scale:,.0f} {unit}"
    return str(number)


def _size(num_bytes: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} B"
