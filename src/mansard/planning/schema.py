"""The schema of the plan's JSON: every field with its type and meaning; the documents are generated from this table.

A path names a field (`answer.tpot_s.best`), `[]` the items of a list, `*` any key. `?` marks what may be null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from mansard.planning.document import VERSION

Field = tuple[str, str, str]  # path, type, meaning


def _deployment(prefix: str) -> tuple[Field, ...]:
    fields = (
        ("hardware", "string", "catalogue name"),
        ("num_devices", "integer", "devices of all replicas"),
        ("num_replicas", "integer", "independent copies of the model"),
        ("tensor_parallel", "integer", "devices one layer is split over"),
        ("pipeline_parallel", "integer", "stages the layers are split into"),
        ("data_parallel", "integer", "ranks with whole attention, each for its own requests"),
        ("expert_parallel", "integer", "ranks that hold whole experts"),
        ("weights", "string", "number format of the weights"),
        ("kv", "string", "number format of the KV cache"),
        ("engine", "string", "vllm, sglang, trtllm, llama.cpp or mansard"),
        ("max_model_len", "integer", "longest request in tokens"),
        ("max_num_batched_tokens", "integer", "token budget of a step"),
        ("memory_fraction", "number", "the engine's memory fraction"),
        ("usd_per_hour", "number?", "US dollars per hour for all devices"),
    )
    return tuple((f"{prefix}.{name}", kind, text) for name, kind, text in fields)


def _band(prefix: str, unit: str) -> tuple[Field, ...]:
    ends = (("low", "10 % of measurements lie below"), ("best", "prediction"), ("high", "10 % lie above"))
    return tuple((f"{prefix}.{end}", "number", f"{unit}: {text}") for end, text in ends)


FIELDS: tuple[Field, ...] = (
    ("version", "integer", f"{VERSION}; fields are added without a change, never renamed"),
    ("fits", "boolean", "whether an option keeps every limit"),
    ("model.name", "string", "name of the model"),
    ("model.source", "string", "what an engine is told to load"),
    ("model.num_parameters", "integer", "all parameters"),
    ("model.num_active_parameters", "integer", "parameters that one token uses"),
    ("workload.name", "string", "name or lengths"),
    ("workload.mean_input_tokens", "number", "mean prompt"),
    ("workload.mean_output_tokens", "number", "mean output"),
    ("workload.input_quantiles.*", "number", "prompt length at p50, p90, p99"),
    ("workload.output_quantiles.*", "number", "output length at p50, p90, p99"),
    ("workload.rate_req_s", "number?", "arrival rate, requests per second"),
    ("workload.concurrency", "integer?", "requests at once"),
    ("workload.prefix_reuse", "number", "share of prompt tokens an unbounded prefix cache holds"),
    ("workload.max_model_len", "integer", "longest request planned for"),
    ("slo?.ttft_s", "number?", "limit of the time to the first token, seconds"),
    ("slo?.tpot_s", "number?", "limit of the time per output token, seconds"),
    ("slo?.percentile", "number", "percentile of requests that keep the limits"),
    ("slo?.name", "string", "preset or text of the service level"),
    ("slo?.source", "string", "where the limits come from"),
    ("objective", "string", "cheapest, fewest or fastest"),
    *_deployment("answer?.deployment"),
    ("answer?.concurrency", "number", "requests at once, all replicas"),
    ("answer?.max_concurrency", "integer", "most requests at once that the cache and the engine hold"),
    *_band("answer?.ttft_s", "mean seconds to the first token"),
    *_band("answer?.tpot_s", "mean seconds per output token after it"),
    ("answer?.ttft_at_percentile_s", "number", "seconds to the first token at `percentile`"),
    ("answer?.tpot_at_percentile_s", "number", "seconds per output token at `percentile`"),
    ("answer?.percentile", "number", "the service level's percentile"),
    *_band("answer?.output_tokens_per_s", "output tokens per second, all devices"),
    ("answer?.requests_per_s", "number", "completed requests per second"),
    ("answer?.tokens_per_s_per_user", "number", "1 / TPOT"),
    ("answer?.tokens_per_s_per_device", "number", "output tokens per second of one device"),
    ("answer?.usd_per_million_output_tokens", "number?", "US dollars"),
    ("answer?.joules_per_token", "number?", "energy of the devices for one output token"),
    ("answer?.mbu", "number", "model bandwidth utilization, share of the peak"),
    ("answer?.mfu", "number", "model FLOPs utilization, share of the peak"),
    ("answer?.bound", "string", "what a decode step spends most time on"),
    ("answer?.meets_slo", "boolean?", "best estimate keeps the service level; null without one"),
    ("ledger?.visible_bytes", "number", "memory of one device that a framework sees"),
    ("ledger?.memory_fraction", "number", "the engine's memory fraction"),
    ("ledger?.budget_bytes", "number", "what the engine lets itself use"),
    ("ledger?.weights_by_part_bytes.*", "number", "embedding, head, attention, mlp, experts, router, norms, other"),
    ("ledger?.items[].name", "string", "line of the ledger; the lines sum to the visible memory"),
    ("ledger?.items[].low", "number", "bytes, low estimate"),
    ("ledger?.items[].best", "number", "bytes, best estimate"),
    ("ledger?.items[].high", "number", "bytes, high estimate"),
    ("ledger?.kv_tokens", "integer", "tokens the cache holds, as vLLM prints them"),
    ("ledger?.kv_blocks", "integer", "blocks of the cache"),
    ("ledger?.kv_max_concurrency", "number", "longest requests the cache holds at once"),
    ("ledger?.longest_model_len", "integer", "longest single request that fits"),
    ("ledger?.problems[]", "string", "why it does not fit, first limit first"),
    ("phases[].name", "string", "prefill or decode"),
    ("phases[].num_tokens", "number", "tokens of the step"),
    ("phases[].concurrency", "number", "requests at once of one replica"),
    ("phases[].flops", "number", "FLOPs of one rank"),
    ("phases[].bytes", "number", "bytes moved by one rank"),
    ("phases[].time_s", "number", "seconds of the step"),
    ("phases[].intensity", "number", "FLOP per byte"),
    ("phases[].ridge", "number", "FLOP per byte at the ridge point"),
    ("phases[].achieved_flops", "number", "FLOP/s"),
    ("phases[].bound", "string", "memory, compute, network, floor or overhead"),
    ("phases[].ops[].name", "string", "op"),
    ("phases[].ops[].count", "integer", "equal ops of the step"),
    ("phases[].ops[].flops", "number", "FLOPs"),
    ("phases[].ops[].bytes", "number", "bytes of memory"),
    ("phases[].ops[].network_bytes", "number", "bytes sent"),
    ("phases[].ops[].time_s", "number", "seconds"),
    ("phases[].ops[].share", "number", "share of the step's time"),
    ("phases[].ops[].bound", "string", "memory, compute, network, floor or overhead"),
    ("phases[].ops[].intensity", "number", "FLOP per byte"),
    ("batch_table[].concurrency", "number", "requests at once, all replicas"),
    ("batch_table[].ttft_s", "number", "mean seconds to the first token"),
    ("batch_table[].tpot_s", "number", "mean seconds per output token"),
    ("batch_table[].ttft_at_percentile_s", "number", "at the service level's percentile"),
    ("batch_table[].tpot_at_percentile_s", "number", "at the service level's percentile"),
    ("batch_table[].output_tokens_per_s", "number", "all devices"),
    ("batch_table[].tokens_per_s_per_user", "number", "1 / TPOT"),
    ("batch_table[].mbu", "number", "share of peak bandwidth"),
    ("batch_table[].mfu", "number", "share of peak FLOP/s"),
    ("batch_table[].usd_per_million_tokens", "number?", "US dollars per million output tokens"),
    ("batch_table[].joules_per_token", "number?", "joules"),
    ("batch_table[].limit", "string", "TTFT, TPOT, KV cache, max_num_seqs or empty"),
    ("batch_table[].chosen", "boolean", "the plan's load"),
    ("levers[].change", "string", "the single change"),
    ("levers[].users", "integer", "requests at once with it, one replica"),
    ("levers[].users_before", "integer", "and without"),
    ("levers[].tpot_ratio", "number", "TPOT with over without, each at its load"),
    ("levers[].tpot_alone_ratio", "number", "the same for one request"),
    ("levers[].tokens_per_s_ratio", "number", "throughput with over without"),
    ("levers[].usd_per_million_tokens_ratio", "number?", "cost with over without"),
    ("fixes[]", "string", "single changes that would make it fit"),
    *_deployment("closest?.deployment"),
    ("closest?.limit", "string", "first limit of the option that came closest"),
    *_deployment("alternatives[].deployment"),
    ("alternatives[].concurrency", "number", "requests at once, all replicas; best option first"),
    ("alternatives[].ttft_at_percentile_s", "number", "seconds"),
    ("alternatives[].tpot_at_percentile_s", "number", "seconds"),
    ("alternatives[].output_tokens_per_s", "number", "all devices"),
    ("alternatives[].usd_per_million_output_tokens", "number?", "US dollars"),
    *_deployment("rejected[].deployment"),
    ("rejected[].limit", "string", "first limit, with its numbers"),
    *_deployment("pareto.by_device[].deployment"),
    ("pareto.by_device[].concurrency", "number", "requests at once of one replica"),
    ("pareto.by_device[].tokens_per_s_per_user", "number", "1 / TPOT"),
    ("pareto.by_device[].tokens_per_s_per_device", "number", "output tokens per second"),
    ("pareto.by_device[].usd_per_million_output_tokens", "number?", "US dollars"),
    *_deployment("pareto.by_cost[].deployment"),
    ("pareto.by_cost[].concurrency", "number", "requests at once of one replica"),
    ("pareto.by_cost[].tokens_per_s_per_user", "number", "1 / TPOT"),
    ("pareto.by_cost[].tokens_per_s_per_device", "number", "output tokens per second"),
    ("pareto.by_cost[].usd_per_million_output_tokens", "number?", "US dollars"),
    ("launch[].engine", "string", "engine"),
    ("launch[].command", "string", "command for a shell"),
    ("launch[].notes[]", "string", "what must be done beside it"),
    ("assumptions[]", "string", "what the plan took for granted"),
    ("not_modelled[]", "string", "what it leaves out"),
    ("calibrated", "boolean", "constants were fitted for this engine and architecture"),
    ("error.*.low", "number", "tpot, ttft, throughput: 10 % of measured ÷ predicted lie below"),
    ("error.*.high", "number", "10 % lie above"),
    ("error.*.num_rows", "integer", "measurements behind it; 0: none"),
)


def json_schema() -> dict[str, Any]:
    """Return the schema as JSON Schema (draft 2020-12)."""
    root: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mansard plan",
        "type": "object",
    }
    for path, kind, text in FIELDS:
        _add(root, path.split("."), kind, text)
    return root


def _add(node: dict[str, Any], parts: list[str], kind: str, text: str) -> None:
    """Add one field below `node`, making the objects and lists on the way."""
    name, rest = parts[0], parts[1:]
    key, is_list, optional = (
        name.removesuffix("[]").removesuffix("?"),
        name.endswith("[]"),
        name.rstrip("[]").endswith("?"),
    )
    if rest:
        leaf: dict[str, Any] = {"type": ["object", "null"] if optional and not is_list else "object"}
    else:
        leaf = {"type": [kind[:-1], "null"] if kind.endswith("?") else kind, "description": text}
    if key == "*":
        child = node.setdefault("additionalProperties", leaf)
    else:
        properties = node.setdefault("properties", {})
        required = node.setdefault("required", [])
        if key not in properties:
            properties[key] = {"type": "array", "items": leaf} if is_list else leaf
            required.append(key)
        child = properties[key]["items"] if is_list else properties[key]
    if rest:
        _add(child, rest, kind, text)


def markdown() -> str:
    """Return the reference page of the JSON document."""
    lines = [
        "# The JSON of `mansard plan`",
        "",
        "`mansard plan MODEL --json` prints one object; `mansard.planning.document.document(plan, model)` returns it. "
        "`docs/plan-schema.json` is the same as JSON Schema. `[]` stands for the items of a list, `*` for any key, `?` "
        "for what may be null. Lengths and caches are in tokens, memory in bytes, time in seconds. Generated by "
        "`python -m mansard.planning.schema docs`.",
        "",
        "| field | type | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{path}` | {kind} | {text} |" for path, kind, text in FIELDS]
    return "\n".join(lines) + "\n"


def files() -> Iterable[tuple[str, str]]:
    """Yield the generated documents: file name and text."""
    yield "plan-schema.md", markdown()
    yield "plan-schema.json", json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    import sys
    from pathlib import Path

    for name, text in files():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")
