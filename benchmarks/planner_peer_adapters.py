"""Three other planners behind one small protocol; runs in the environment that has them, which has no Mansard.

    PEERS_PYTHON benchmarks/planner_peer_adapters.py NAME [--reread] < questions.jsonl > answers.jsonl

A question is one JSON object a line: what `planner_peers.py` says of a measured row. Its answer, in the same order,
holds `ttft_s`, `tpot_s` (None where the planner has no such number) and the `seconds` that the call took; or `reason`:
why this planner cannot be asked that, or what it answered instead of a number. Each planner is called by its own
public entry point with its defaults; where a format can be named in more than one way, the order of trial is written
here and in docs/planner-peers.md. No answer is corrected.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

Question = dict[str, Any]
Formats = dict[str, str | None]
Times = tuple[float | None, float | None]  # TTFT and TPOT in seconds

GPU_ENGINES = ("vllm", "vllm-v0", "sglang", "trtllm")


class NotCoveredError(Exception):
    """What a planner cannot express, in a few words."""


class AIConfigurator:
    """aiconfigurator: `cli_estimate`, what `aiconfigurator cli estimate` calls; measured kernels (SILICON mode)."""

    SYSTEMS: ClassVar = {
        "A100-SXM-80GB": "a100_sxm", "B200-SXM-180GB": "b200_sxm", "B300-SXM-288GB": "b300_sxm",
        "GB200-186GB": "gb200", "GB300-288GB": "gb300", "H100-SXM-80GB": "h100_sxm", "H200-SXM-141GB": "h200_sxm",
        "L40S-48GB": "l40s", "RTX-PRO-6000-BSE-96GB": "rtx_pro_6000_server",
    }  # fmt: skip
    # Configurations that the package carries, so that it needs no network; the names its own InferenceX adapter uses.
    PATHS: ClassVar = {
        "deepseek-r1": "deepseek-ai/DeepSeek-R1", "deepseek-v3": "deepseek-ai/DeepSeek-V3",
        "minimax-m2": "MiniMaxAI/MiniMax-M2.5", "gpt-oss-120b": "openai/gpt-oss-120b",
        "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B", "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
        "llama-3.1-405b": "meta-llama/Meta-Llama-3.1-405B", "qwen3-32b": "Qwen/Qwen3-32B",
        "qwen3.5-397b-a17b": "Qwen/Qwen3.5-397B-A17B", "kimi-k2": "moonshotai/Kimi-K2.5",
        "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B-FP8", "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    }  # fmt: skip
    GLM: ClassVar = {"fp8": "zai-org/GLM-5-FP8", "nvfp4": "nvidia/GLM-5-NVFP4"}
    ARCHITECTURES: ClassVar = {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
    }
    # The checkpoint named above is itself in that format (block-scaled FP8, INT4 experts): inferred from it.
    NATIVE: ClassVar = {
        ("deepseek-r1", "fp8"), ("deepseek-v3", "fp8"), ("minimax-m2", "fp8"), ("qwen3-235b-a22b", "fp8"),
        ("glm-5", "fp8"), ("kimi-k2", "int4"),
    }  # fmt: skip
    MODES: ClassVar = {"bf16": "bfloat16", "fp16": "bfloat16", "int8": "int8_wo", "int8-g128": "int8_wo",
             "int4-g128": "int4_wo", "int4-g128-zp": "int4_wo"}  # fmt: skip

    def __init__(self, reread: bool) -> None:
        logging.disable(logging.CRITICAL)
        self._estimate = importlib.import_module("aiconfigurator.cli.api").cli_estimate
        self._folder = Path(tempfile.mkdtemp(prefix="peer-configs-"))
        if not reread:
            self._remember_metadata()

    def _remember_metadata(self) -> None:
        """Keep the list of installed databases, which each call reads anew from 500 files; same answers."""
        database: Any = importlib.import_module("aiconfigurator_core.sdk.perf_database")
        database.get_supported_databases = functools.cache(database.get_supported_databases)

    def ask(self, q: Question) -> Times:
        """Return what `cli_estimate` answers for one aggregated deployment."""
        if q["gpu"] not in self.SYSTEMS:
            raise NotCoveredError("GPU without kernel data")
        if q["engine"] not in GPU_ENGINES:
            raise NotCoveredError("engine it does not know")
        if q["pp"] > 1:
            raise NotCoveredError("pipeline parallelism")
        missing = ""
        for formats in self._formats(q):
            try:
                found = self._call(q, formats)
                return found.ttft / 1e3, found.tpot / 1e3
            except NotCoveredError:
                raise
            except Exception as error:
                missing = missing or _reason(error)
                if "data missing" not in str(error):
                    break
        raise NotCoveredError(missing)

    def _call(self, q: Question, formats: Formats) -> Any:
        return self._estimate(
            self._path(q), self.SYSTEMS[q["gpu"]], backend_name=q["engine"].removesuffix("-v0"),
            isl=round(q["isl"]), osl=round(q["osl"]), batch_size=max(1, round(q["concurrency"] / q["dp"])),
            tp_size=q["tp"], attention_dp_size=q["dp"], **formats, **self._experts(q),
        )  # fmt: skip

    def _path(self, q: Question) -> str:
        if q["model"] == "glm-5":
            return self.GLM[q["weights"]]
        if q["model"] in self.PATHS:
            return self.PATHS[q["model"]]
        architecture = self.ARCHITECTURES.get(q["config"].get("model_type", ""))
        if architecture is None:
            raise NotCoveredError("model it does not know")
        folder = self._folder / q["model"]
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**q["config"], "architectures": [architecture]}))
        return str(folder)

    def _formats(self, q: Question) -> Iterator[Formats]:
        """Yield the formats as its own adapter labels such a row, then what it infers, until it has kernel data."""
        cache: Formats = {"kvcache_quant_mode": "fp8" if q["kv"] == "fp8" else "bfloat16"}
        labels = self._labels(q)
        if q["model"] == "gpt-oss-120b" and q["engine"] == "trtllm" and q["gpu"].startswith(("B", "GB")):
            yield {**cache, "moe_quant_mode": "w4a8_mxfp4_mxfp8"}  # what the package recommends for Blackwell
        yield {**cache, **labels}
        yield labels
        if (q["model"], q["weights"]) in self.NATIVE:
            yield cache

    def _labels(self, q: Question) -> Formats:
        if q["model"] == "gpt-oss-120b":
            return {}  # its native format
        mode = self.MODES.get(q["weights"], q["weights"])
        gemm, experts = (q["gemm"] or None, q["moe"] or None) if "gemm" in q else (mode, mode)
        return {"gemm_quant_mode": gemm, "moe_quant_mode": experts if q["sparse"] else None}

    def _experts(self, q: Question) -> dict[str, int]:
        ranks = q["tp"] * q["dp"]
        return {"moe_tp_size": ranks // q["ep"], "moe_ep_size": q["ep"]} if q["sparse"] else {}


class Servcalc:
    """servcalc: `estimate` with the profile of the engine; its mid value."""

    GPUS: ClassVar = {
        "A100-SXM-80GB": "A100 80GB", "A100-PCIe-80GB": "A100 80GB", "A40-48GB": "A40", "B200-SXM-180GB": "B200",
        "H100-SXM-80GB": "H100 80GB", "H200-SXM-141GB": "H200", "L40S-48GB": "L40S", "RTX3080-10GB": "RTX 3080",
        "RTX3090-24GB": "RTX 3090", "RTX4070Ti-12GB": "RTX 4070 Ti", "RTX4090-24GB": "RTX 4090",
        "RTX6000Ada-48GB": "RTX 6000 Ada",
    }  # fmt: skip
    QUANTS: ClassVar = {"bf16": None, "fp16": None, "fp8": "fp8", "int8-g128": "gptq_8", "int4-g128": "gptq",
              "int4-g128-zp": "awq"}  # fmt: skip

    LIMITS: ClassVar[dict[str, int]] = {}

    def __init__(self, reread: bool) -> None:
        del reread
        self._servcalc: Any = importlib.import_module("servcalc")
        self._profiles: Any = importlib.import_module("servcalc.profiles")

    def ask(self, q: Question) -> Times:
        """Return the estimate's TTFT and ITL at the row's concurrency."""
        if q["ranks"] > 1:
            raise NotCoveredError("more than one GPU")
        if q["sparse"]:
            raise NotCoveredError("mixture of experts")
        if q["gpu"] not in self.GPUS:
            raise NotCoveredError("GPU it does not list")
        work = self._servcalc.Workload(max(1, round(q["isl"])), max(2, round(q["osl"])), (round(q["concurrency"]),))
        try:
            found = self._servcalc.estimate(
                q["config"], self.GPUS[q["gpu"]], workload=work, profile=self._profile(q)
            ).points[0]
        except ValueError as error:
            raise NotCoveredError(_reason(error)) from error
        if not found.feasible:
            limits = {"max_seqs": "more than its 256 sequences", "token_budget": "more than its budget of 512 tokens"}
            raise NotCoveredError(limits.get(found.infeasible_reason, "says the KV cache does not fit"))
        return found.ttft_ms.mid / 1e3 if found.ttft_ms else None, found.itl_ms.mid / 1e3

    def _profile(self, q: Question) -> Any:
        if q["engine"] == "llama.cpp" and q["weights"] in ("Q4_K", "fp16"):
            length = round(q["isl"] + q["osl"]) + 1
            quant = "gguf_q4_k_m" if q["weights"] == "Q4_K" else None
            return self._profiles.ollama(num_ctx=length, quant=quant)
        if q["weights"] not in self.QUANTS:
            raise NotCoveredError("weight format it does not list")
        quant, bits = self.QUANTS[q["weights"]], 8 if q["kv"] == "fp8" else 16
        if q["engine"] == "transformers":
            return self._profiles.hf(quant=quant, kv_bits=bits)
        if q["engine"] not in GPU_ENGINES:
            raise NotCoveredError("engine it does not know")
        return self._profiles.vllm(quant=quant, kv_bits=bits, **self.LIMITS)


class ServcalcWide(Servcalc):
    """servcalc with limits that today's engines start with in place of its profile's, which is of vLLM 0.6.3."""

    LIMITS: ClassVar[dict[str, int]] = {"max_seqs": 1024, "token_budget": 8192}


class Ridgepoint:
    """ridgepoint: `fit` with the model's config.json; its best value of the decode rate of one request."""

    GPUS: ClassVar = {
        "A100-SXM-80GB": "a100-80gb", "A100-PCIe-80GB": "a100-80gb", "B200-SXM-180GB": "b200-192gb",
        "GB200-186GB": "gb200-192gb", "H100-SXM-80GB": "h100-80gb", "H200-SXM-141GB": "h200-141gb",
        "L40S-48GB": "l40s-48gb", "MI300X-192GB": "mi300x-192gb", "RTX3090-24GB": "rtx3090-24gb",
        "RTX4090-24GB": "rtx4090-24gb",
    }  # fmt: skip
    DTYPES: ClassVar = {
        "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "int8": "int8", "int8-g128": "int8", "int4-g128": "gptq",
        "int4-g128-zp": "awq", "Q4_K": "q4_k_m",
    }  # fmt: skip
    ENGINES: ClassVar = {
        "vllm": "vllm",
        "vllm-v0": "vllm",
        "trtllm": "vllm",
        "sglang": "sglang",
        "llama.cpp": "llamacpp",
    }

    def __init__(self, reread: bool) -> None:
        del reread
        self._ridgepoint: Any = importlib.import_module("ridgepoint")
        self._question: Question = {}
        adapter: Any = importlib.import_module("ridgepoint.hf")
        # Its two downloads, answered from the question: config.json and the count of the checkpoint's weights.
        adapter._download_json = lambda repo, filename, revision: self._question["config"]
        adapter._params_from_index = lambda repo, revision, cfg, tc: self._question["parameters"]

    def ask(self, q: Question) -> Times:
        """Return TTFT and the time of a token at the middle of the output."""
        if q["concurrency"] != 1:
            raise NotCoveredError("more than one request at a time")
        if q["gpu"] not in self.GPUS:
            raise NotCoveredError("GPU it does not list")
        if q["engine"] not in self.ENGINES:
            raise NotCoveredError("engine it does not know")
        if q["weights"] not in self.DTYPES:
            raise NotCoveredError("weight format it does not list")
        self._question = q
        text = self._ridgepoint.fit(
            f"local/{q['model']}", self.GPUS[q["gpu"]], count=q["ranks"], engine=self.ENGINES[q["engine"]],
            dtype=self.DTYPES[q["weights"]], kv_cache_dtype="fp8" if q["kv"] == "fp8" else "fp16",
            ctx=round(q["isl"] + q["osl"] / 2), prompt=max(1, round(q["isl"])), as_json=True,
        )  # fmt: skip
        found = json.loads(text)
        if not found["verdict"]["serves"]:
            raise NotCoveredError("says the model does not fit")
        return found["speed"]["ttft_s"]["best"], 1.0 / found["speed"]["decode_tok_s"]["best"]


ADAPTERS: dict[str, Callable[[bool], Any]] = {
    "aiconfigurator": AIConfigurator,
    "servcalc": Servcalc,
    "servcalc-wide": ServcalcWide,
    "ridgepoint": Ridgepoint,
}


# What a planner's own errors say, by a word of theirs; what is not listed is given as it is.
REASONS = {
    "does not fit in GPU memory": "says the model does not fit",
    "exceed the memory budget": "says the model does not fit",
    "attention data missing": "no kernel data: attention",
    "MoE data missing": "no kernel data: experts in this split or format",
    "GEMM perf data missing": "no kernel data: weight format",
    "Invalid quantized MoE": "no kernel data: experts in this split or format",
    "model_type": "model it does not know",
}


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return next((reason for word, reason in REASONS.items() if word in text), f"{type(error).__name__}: {text}"[:100])


def main() -> int:
    """Answer every question of standard input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=ADAPTERS)
    parser.add_argument("--reread", action="store_true", help="call as a user's script would: nothing kept between")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    adapter = ADAPTERS[args.name](args.reread)
    for line in sys.stdin:
        question = json.loads(line)
        start = time.perf_counter()
        try:
            ttft, tpot = adapter.ask(question)
            answer: dict[str, Any] = {"ttft_s": ttft, "tpot_s": tpot}
        except NotCoveredError as why:
            answer = {"reason": str(why)}
        print(json.dumps({**answer, "seconds": time.perf_counter() - start}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
