"""The measurements that docs/accuracy.md is judged by: read, cleaned, named in Mansard's words, split in halves.

Two compact extracts live in `benchmarks/data/`: serving points of `aiconfigurator-core` (Apache-2.0, see its notice)
and published single-stream and offline results, each row with its source. Every cleaning rule is a function here and
its count is printed: nothing is dropped for being predicted badly.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mansard.cost.op_cost import Layout

DATA = Path(__file__).parent / "data"
Scenario = Literal["closed-loop", "single-stream", "offline", "static"]

MODELS = {
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "deepseek-ai/DeepSeek-V3": "deepseek-r1",  # the source names its DeepSeek-R1 runs so
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-r1",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "moonshotai/Kimi-K2.5": "kimi-k2",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "zhipuai/GLM-5": "glm-5",
}
SYSTEMS = {
    "b200_sxm": "B200-SXM-180GB",
    "b300_sxm": "B300-SXM-288GB",
    "gb200": "GB200-186GB",
    "gb300": "GB300-288GB",
    "h100_sxm": "H100-SXM-80GB",
    "h200_sxm": "H200-SXM-141GB",
}


# InferenceX draws prompt and output lengths uniformly from 80 to 100 % of the nominal (its RANDOM_RANGE_RATIO = 0.8).
MEAN_LENGTH = 0.9


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. Units: seconds, tokens, tokens per second of the whole system; None: not measured."""

    source: str
    model: str
    gpu: str
    engine: str
    version: str
    weights: str
    kv: str
    input_tokens: float
    output_tokens: float
    concurrency: float
    layout: Layout
    scenario: Scenario
    equal_lengths: bool = False
    ttft_s: float | None = None
    tpot_s: float | None = None
    output_tokens_per_s: float | None = None

    @property
    def in_training_half(self) -> bool:
        """Say whether constants may be fitted to this row: a hash of model and GPU decides."""
        digest = hashlib.sha256(f"{self.model}|{self.gpu}".encode()).digest()
        return digest[0] % 2 == 0

    @property
    def group(self) -> tuple[object, ...]:
        """Return what a priced program depends on."""
        how = (self.scenario, self.equal_lengths)
        return (self.model, self.gpu, self.engine, self.weights, self.kv, self.layout, how)


def read_gzip_csv(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a compressed CSV in `benchmarks/data/`, without its comment lines."""
    with gzip.open(DATA / name, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def silicon_rows(dropped: Counter[str], mode: str = "agg") -> list[Row]:
    """Return the aggregated serving points, duplicates removed; `dropped` counts the others by reason."""
    rows: dict[tuple[object, ...], Row] = {}
    for raw in read_gzip_csv("silicon_sample.csv.gz"):
        if raw["mode"] != mode:
            dropped["disaggregated (prefill and decode on other GPUs)"] += 1
            continue
        row = _silicon_row(raw, dropped)
        if row is None:
            continue
        key = (*row.group, row.input_tokens, row.output_tokens, row.concurrency, row.ttft_s, row.tpot_s)
        dropped["the same measurement again"] += key in rows
        rows[key] = row
    return list(rows.values())


def _silicon_row(raw: dict[str, str], dropped: Counter[str]) -> Row | None:
    layout = silicon_layout(raw)
    if layout is None:
        dropped["layout not a power of two up to 8 GPUs (disaggregated runs listed as aggregated)"] += 1
        return None
    if not raw["concurrency"]:
        dropped["concurrency not stated"] += 1
        return None
    weights = silicon_weights(raw)
    published = not is_own_study(raw)
    mean = MEAN_LENGTH if published else 1.0
    kv = "fp8" if weights != "bf16" and (raw["backend"] == "trtllm" or published) else "bf16"
    return Row(
        source=raw["id"],
        model=MODELS[raw["model_path"]],
        gpu=SYSTEMS[raw["system"]],
        engine=raw["backend"],
        version=raw["backend_version"],
        weights=weights,
        kv=kv,
        input_tokens=float(raw["isl"]) * mean,
        output_tokens=float(raw["osl"]) * mean,
        concurrency=float(raw["concurrency"]),
        layout=layout,
        scenario="closed-loop",
        equal_lengths=is_own_study(raw),
        ttft_s=float(raw["silicon_ttft_ms"]) / 1e3 if raw["silicon_ttft_ms"] else None,
        tpot_s=float(raw["silicon_tpot_ms"]) / 1e3 if raw["silicon_tpot_ms"] else None,
    )


def silicon_weights(raw: dict[str, str]) -> str:
    """Return the weight format a row's quantization mode means."""
    if "gpt-oss" in raw["model_path"]:
        return "mxfp4"
    mode = raw["moe_quant_mode"] or raw["gemm_quant_mode"]
    return {"": "bf16", "nvfp4": "nvfp4", "fp8": "fp8", "fp8_block": "fp8", "int4_wo": "int4"}[mode]


def is_own_study(raw: dict[str, str]) -> bool:
    """Say whether a row is the source's own run, where all requests have equal lengths; the others are InferenceX's."""
    return "epnone" in raw["id"]


def silicon_layout(raw: dict[str, str]) -> Layout | None:
    """Return a row's real layout.

    The source multiplies expert and data parallelism into the tensor size: its "tp 64, moe 8 x 8" is eight GPUs with
    experts split over them (its ids say `tp8_ep8`, and its TPOT is that of eight), "tp 4, attention dp 4, moe ep 16"
    four GPUs.
    """
    tp, dp = int(raw["tp_size"]), int(raw["attention_dp_size"] or 1) or 1
    moe_tp, ep = int(raw["moe_tp_size"] or 1) or 1, int(raw["moe_ep_size"] or 1) or 1
    own_study = is_own_study(raw)
    if not own_study and dp == 1 and moe_tp == ep > 1 and tp == ep * ep:
        tp = ep
    elif not own_study and dp > 1 and tp == 1 and moe_tp == ep > 1 and dp == ep * ep:
        dp = ep
    elif not own_study and dp > 1 and tp == dp and ep == dp * dp:
        tp, ep = 1, dp
    elif own_study and moe_tp * ep > tp * dp:
        dp = moe_tp * ep // tp
    if tp * dp not in (1, 2, 4, 8):
        return None
    return Layout(tensor_parallel=tp, data_parallel=dp, expert_parallel=min(ep, tp * dp))


def by_group(rows: Iterable[Row]) -> dict[tuple[object, ...], list[Row]]:
    """Return the rows of each priced program together."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups
