"""Published single-stream and offline results: read, cleaned and named in Mansard's words.

What is compared is the tokens per second a source printed, so a row's own definition is kept: a rate over the whole
request, prompt included, or a decode rate.
"""

from __future__ import annotations

import re
from collections import Counter

from accuracy_data import Row, Scenario, read_gzip_csv

from mansard.cost.op_cost import Layout
from mansard.specs.model_presets import find_preset

ENGINES = {
    "vLLM": "vllm",
    "SGLang": "sglang",
    "TensorRT-LLM": "trtllm",
    "llama.cpp": "llama.cpp",
    "Transformers-NeuronX": "neuronx",
    "Transformers": "transformers",
    "HuggingFace": "transformers",
    "gpt-fast": "gpt-fast",
    "TinyChat": "tinychat",
    "AutoAWQ": "autoawq",
}
EXTRA_MODELS = {
    "EleutherAI/gpt-j-6b": "gpt-j-6b",
    "mosaicml/mpt-7b": "mpt-7b",
    "deepseek-ai/deepseek-coder-33b-instruct": "deepseek-coder-33b",
    "lmsys/vicuna-7b-v1.5": "llama-2-7b",
    "Qwen/Qwen3-Coder-Next": "qwen3-next-80b-a3b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-r1",
    "deepseek-ai/DeepSeek-V3.1-Terminus": "deepseek-v3",
}
DECODE_ONLY = ("llama.cpp-xjd", "gpt-fast", "autoawq", "tinychat")  # their rate has no prompt in it
FLAGS = ("layer-split", "experimental-source", "beta", "ambiguous-output-or-total", "anomalous-prefill",
         "gh200-multi-gpu-topology-unknown", "warmup-outlier-in-mean")  # fmt: skip


def published_rows(dropped: Counter[str]) -> list[Row]:
    """Return the usable rows; `dropped` counts the others by reason."""
    rows: list[Row] = []
    for raw in read_gzip_csv("published.csv.gz"):
        reason = _reason_to_drop(raw)
        if reason is None:
            try:
                rows.append(_row(raw))
                continue
            except ValueError:
                reason = "model without a preset"
        dropped[reason] += 1
    return rows


def _reason_to_drop(raw: dict[str, str]) -> str | None:
    if raw["flag"] in FLAGS:
        return f"flagged {raw['flag']}"
    if raw["input_len"] == "":
        return "input length not stated (MLPerf)"
    if raw["source_group"] in ("sglang-cookbook", "aws-neuron") and not raw["metric"].startswith("tpot"):
        return "the same run's TPOT is used instead"
    if not any(raw["framework"].startswith(name) for name in ENGINES):
        return "engine not modelled"
    return None


def _row(raw: dict[str, str]) -> Row:
    scenario: Scenario = {"single-stream": "single-stream", "offline-throughput": "offline", "static-batch": "static"}[
        raw["scenario"]
    ]  # type: ignore[assignment]
    gpus = float(raw["n_gpus"])
    value = float(raw["value"]) * (gpus if raw["per"] == "gpu" else 1.0)
    decode_only = raw["source_group"] in DECODE_ONLY and scenario == "single-stream"
    tpot = value / 1e3 if raw["metric"].startswith("tpot") else 1.0 / value if decode_only else None
    rate = value if tpot is None else None
    batch = raw["batch_or_concurrency"] or ("1" if scenario == "single-stream" else "100000")
    return Row(
        source=raw["id"],
        model=EXTRA_MODELS.get(raw["model"]) or find_preset(raw["model"]).name,
        gpu=raw["gpu"],
        engine=engine_name(raw["framework"]),
        version=raw["framework"],
        weights=weight_format(raw["weight_precision"], raw["gpu"]),
        kv={"fp8": "fp8"}.get(raw["kv_precision"], "fp16" if raw["weight_precision"] == "fp16" else "bf16"),
        input_tokens=max(1.0, float(raw["input_len"])),
        output_tokens=float(raw["output_len"] or 128),
        concurrency=float(batch),
        layout=_layout(raw),
        scenario=scenario,
        equal_lengths=True,
        tpot_s=tpot,
        output_tokens_per_s=rate,
    )


def engine_name(framework: str) -> str:
    """Return the engine profile of a framework; vLLM before 0.8 ran its first engine (V0), a profile of its own."""
    if framework.startswith(("vLLM 0.4", "vLLM 0.5", "vLLM 0.6", "vLLM 0.7")):
        return "vllm-v0"
    return next(ENGINES[name] for name in ENGINES if framework.startswith(name))


def weight_format(name: str, gpu: str) -> str:
    """Return the number format a source's precision label means."""
    text = name.lower()
    if text == "q4_k_m":
        return "Q4_K"
    if "awq" in text:
        return "int4-g128-zp"
    if text == "int4":
        return "int4-g128"
    if text.startswith("gptq-"):
        return text.removeprefix("gptq-") + "-g128"
    if text == "fp4":
        return "mxfp4" if gpu.startswith("MI") else "nvfp4"
    return re.sub(r"[ (].*", "", text)


def _layout(raw: dict[str, str]) -> Layout:
    tp, pp = int(float(raw["tp"] or raw["n_gpus"])), int(float(raw["pp"] or 1))
    if raw["source_group"] == "aws-neuron":
        tp = int(float(raw["n_gpus"]))  # the source counts NeuronCores, two a chip
    if raw["source_group"] == "trtllm-1.0" and float(raw["ep"] or 1) > 1:
        return Layout(tensor_parallel=1, data_parallel=tp, expert_parallel=tp)  # attention data parallelism enabled
    return Layout(tensor_parallel=tp, pipeline_parallel=pp, expert_parallel=int(float(raw["ep"] or 1)))
