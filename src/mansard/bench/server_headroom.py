"""The headroom of a server that one sees only from outside: what the cost model expects of its model and GPUs.

Predicted and measured TTFT, TPOT and throughput side by side, and MBU and MFU from what was measured. Where a token's
time goes is the decode step that the cost model prices for as many requests as were in flight; what the measured TPOT
has beyond it is the engine's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mansard.bench.compared import Compared
from mansard.bench.headroom import LEVERS
from mansard.bench.result import BenchResult
from mansard.bench.summary import Summary
from mansard.cost.formats import PrecisionPlan
from mansard.cost.op_cost import Layout
from mansard.cost.profiles import Profile, profile_for
from mansard.cost.roofline import PricedProgram
from mansard.cost.serving import ServingEstimate, estimate
from mansard.cost.shape import StepShape
from mansard.cost.stored_formats import on_hardware, stored_kv, stored_weights
from mansard.program.decoder import decoder
from mansard.specs.hardware import HardwareSpec
from mansard.specs.model import ModelSpec

BOUNDS = {"memory": "memory bandwidth", "compute": "compute", "overhead": "host", "floor": "kernels"}
NETWORK_LEVER = "fewer tensor-parallel ranks or a faster link: collectives take the most"


@dataclass(frozen=True, slots=True)
class ServedOn:
    """What runs behind a URL, as far as a person knows: the model, its formats, the devices, and whose engine."""

    spec: ModelSpec
    hardware: HardwareSpec
    num_devices: int
    weights: str = "auto"
    kv: str = "auto"
    engine: str = "vllm"
    profile: Profile | None = None

    def priced(self) -> PricedProgram:
        """Return the model priced with tensor parallelism over all devices.

        Raises: ValueError when the devices do not divide it or cannot use a format.
        """
        weights = stored_weights(self.weights, self.spec, self.hardware)
        plan = PrecisionPlan.published(self.spec, weights, stored_kv(self.kv, self.hardware))
        program = decoder(self.spec, tensor_parallel=self.num_devices)
        profile = self.profile or profile_for(self.hardware, self.engine)
        return PricedProgram(
            program, self.hardware, profile, on_hardware(plan, self.hardware), Layout(self.num_devices)
        )


@dataclass(frozen=True, slots=True)
class ServerHeadroom:
    """Predicted beside measured, and a decode step taken apart. Units: seconds.

    `mbu` and `mfu` are the measured ones, the expected ones beside them.
    """

    prediction: ServingEstimate
    rows: tuple[Compared, ...]
    mbu: float
    mfu: float
    parts: dict[str, float]  # of the measured TPOT, in order

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        found = self.prediction
        return {
            "model": found.model,
            "hardware": found.hardware,
            "num_devices": found.num_devices,
            "profile": found.profile,
            "calibrated": found.calibrated,
            "weights": found.precision.mlp,
            "kv": found.precision.kv,
            "concurrency": float(found.concurrency),
            "rows": [row.to_dict() for row in self.rows],
            "mbu": self.mbu,
            "mfu": self.mfu,
            "parts_s": dict(self.parts),
        }

    def row(self, metric: str) -> Compared:
        """Return the row of a metric."""
        return next(row for row in self.rows if row.metric == metric)

    def sentence(self) -> str:
        """Return one sentence: how measured and predicted compare, what bounds it, and the next lever."""
        tpot, bound = self.row("tpot_s"), self.prediction.bound
        lever = NETWORK_LEVER if bound == "network" else LEVERS[BOUNDS.get(bound, "kernels")]
        times = f"A token takes {tpot.measured * 1e3:.2f} ms, {tpot.predicted * 1e3:.2f} ms were predicted"
        if self.mbu > 1.05 or self.mfu > 1.05:
            return f"{times}: faster than the hardware allows, so the model, formats or devices named are not those."
        if tpot.high is not None and tpot.measured > tpot.high:
            beyond = self.parts["beyond the prediction"]
            return f"{times}; {beyond * 1e3:.2f} ms are the engine's own. Next lever: its kernels, host and batching."
        if tpot.low is not None and tpot.measured < tpot.low:
            return f"{times}; look for speculation, smaller formats or cached prompts that were not named."
        return f"{times}, and {bound} bounds the step. Next lever: {lever}."


def server_headroom(result: BenchResult, served: ServedOn) -> ServerHeadroom:
    """Return what was predicted for the load of a result, beside what was measured.

    Raises: ValueError when too little was measured, or as `ServedOn.priced`.
    """
    summary = result.summary
    if (
        summary is None
        or not all(_mean_s(summary, name) for name in ("ttft_s", "tpot_s"))
        or summary.prompt_lengths is None
        or summary.output_lengths is None
    ):
        raise ValueError("nothing to compare with a prediction: no TTFT, no TPOT above 0 or no lengths were measured")
    is_open = any(result.workload.get(key) is not None for key in ("rate_req_s", "ramp", "trace_speed"))
    in_flight = None if summary.little is None else summary.little.in_flight
    concurrency = in_flight if is_open or not result.workload.get("max_concurrency") else None
    hits = result.extra.get("prefix_cache")
    prompt, output = summary.prompt_lengths.mean, summary.output_lengths.mean
    priced = served.priced()
    found = estimate(
        served.spec, served.hardware, priced=priced, num_devices=served.num_devices,
        input_tokens=prompt, output_tokens=output,
        concurrency=max(1.0, concurrency or result.workload.get("max_concurrency") or 1.0),
        cached_tokens=min(prompt - 1.0, prompt * (hits["rate"] if hits else 0.0)),
        burst_share=0.0 if is_open else None,
    )  # fmt: skip
    measured = {name: _mean_s(summary, name) for name in ("ttft_s", "tpot_s")}
    measured["output_tokens_per_s"] = summary.output_tokens_per_s
    bands = {"ttft_s": found.ttft_s, "tpot_s": found.tpot_s, "output_tokens_per_s": found.output_tokens_per_s}
    rows = tuple(
        Compared(name, float(b.best), measured[name], float(b.low), float(b.high)) for name, b in bands.items()
    )
    return ServerHeadroom(
        prediction=found,
        rows=rows,
        mbu=float(found.mbu * found.itl_s) / measured["tpot_s"],
        mfu=float(found.mfu / found.output_tokens_per_s.best) * measured["output_tokens_per_s"],
        parts=_parts(priced, found, measured["tpot_s"]),
    )


def _mean_s(summary: Summary, name: str) -> float:
    """Return a latency's mean; 0 when it was not measured, or tokens came all at once."""
    return summary.latencies[name].mean.value if name in summary.latencies else 0.0


def _parts(priced: PricedProgram, found: ServingEstimate, measured_s: float) -> dict[str, float]:
    """Take a measured TPOT apart: floor, kernels beyond it, the host, others' prompts, and the rest."""
    context = found.input_tokens + found.output_tokens / 2.0
    shape = StepShape(num_decodes=found.running / found.num_replicas, decode_context=context)
    step, hardware = priced.step(shape), priced.hardware
    by_memory = float((step.weight_bytes + step.kv_bytes) / hardware.memory_bytes_per_s)
    by_compute = float(step.flops / hardware.peak_flops(priced.formats.parts["mlp"].rate))
    ops_s, overhead_s, tpot_s = float(step.ops_s), float(step.overhead_s), float(found.tpot_s.best)
    return {
        "floor: memory bandwidth": by_memory,
        "floor: compute": by_compute,
        "kernels and links beyond the floor": max(0.0, ops_s - max(by_memory, by_compute)),
        "host, as predicted": overhead_s,
        "prompts of others, as predicted": max(0.0, tpot_s - ops_s - overhead_s),
        "beyond the prediction": measured_s - tpot_s,
    }
