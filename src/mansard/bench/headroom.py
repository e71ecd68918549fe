"""The headroom report: where a token's time goes, from the floor that the hardware sets to what was measured.

A decode step of B sequences takes at least the longer of bytes ÷ bandwidth and operations ÷ rate. What the kernels take
beyond that is kernel inefficiency; sampling, scheduling and text are the host; what a request waits for others is
queueing. The parts add up to the measured time, so the largest names the next lever.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median

from mansard.bench.engine_run import EngineRun
from mansard.bench.metrics import chunk_gaps_s
from mansard.bench.roof import Roof
from mansard.bench.step_demand import StepDemand

LEVERS = {
    "memory bandwidth": "smaller weights or KV (fewer bits), a larger batch, or speculative decoding",
    "compute": "fewer or cheaper operations (int8 activations), or more cores",
    "kernels": "faster kernels: the step's time is far above both floors",
    "sampling": "cheaper sampling (greedy, fewer penalties and log-probabilities)",
    "host": "fewer or longer steps (a larger batch, speculative decoding): scheduling and text dominate",
    "queueing": "more capacity, a lower rate, or a larger batch: requests wait longer than they run",
}


@dataclass(frozen=True, slots=True)
class Headroom:
    """One decode step of `batch_size` sequences, taken apart. Units: seconds a step.

    `kernel_s`, `sampling_s` and `host_s` are what comes on top of the floor; `queueing_s` what a request waits for each
    of its tokens beyond its own steps. `measured_s` is the floor and the first three.
    """

    batch_size: int
    bandwidth_floor_s: float
    compute_floor_s: float
    kernel_s: float
    sampling_s: float
    host_s: float
    queueing_s: float
    measured_s: float
    mbu: float
    mfu: float
    number_format: str
    roof: Roof

    @property
    def floor_s(self) -> float:
        """Return the least time: the longer of the two floors."""
        return max(self.bandwidth_floor_s, self.compute_floor_s)

    @property
    def peak_flops(self) -> float:
        """Return the roof's rate for the format that the kernels multiply in. Units: FLOP/s (or OP/s)."""
        return self.roof.flops[self.number_format]

    @property
    def bound(self) -> str:
        """Name the largest part of the time."""
        floor = "memory bandwidth" if self.bandwidth_floor_s >= self.compute_floor_s else "compute"
        parts = {floor: self.floor_s, "kernels": self.kernel_s, "sampling": self.sampling_s}
        parts |= {"host": self.host_s, "queueing": self.queueing_s}
        return max(parts, key=lambda name: parts[name])

    def sentence(self) -> str:
        """Return one sentence: what bounds it, how near the roof it is, and the next lever."""
        reached = self.floor_s / self.measured_s
        if reached > 1.02:
            return (
                f"At batch {self.batch_size} a step takes {self.measured_s * 1e3:.2f} ms, less than the floor of "
                f"{self.floor_s * 1e3:.2f} ms: the roof is too low ({self.roof.source})."
            )
        return (
            f"At batch {self.batch_size} a step takes {self.measured_s * 1e3:.2f} ms, {reached:.0%} of it the floor "
            f"that the hardware sets; {self.bound} takes the most. Next lever: {LEVERS[self.bound]}."
        )


def headroom(run: EngineRun, demand: StepDemand, roof: Roof, number_format: str) -> Headroom | None:
    """Return where a decode step's time went in a run; None when the run has no pure decode step.

    number_format: what the kernels multiply in, `int8` or `fp32`.
    """
    steps = run.decode_steps
    if not steps:
        return None
    batch = steps[0].num_decodes
    context = fmean(s.num_context_tokens for s in steps)
    compute_s, total_s = median(s.compute_s for s in steps), median(s.time_s for s in steps)
    sampling_s = median(s.sample_s for s in steps)
    used, rate = roof.peak(number_format)
    num_bytes, flops = demand.bytes_read(batch, context), demand.flops(batch, context)
    bandwidth_floor_s, compute_floor_s = num_bytes / roof.read_bytes_per_s, flops / rate
    return Headroom(
        batch_size=batch,
        bandwidth_floor_s=bandwidth_floor_s,
        compute_floor_s=compute_floor_s,
        kernel_s=max(0.0, compute_s - max(bandwidth_floor_s, compute_floor_s)),
        sampling_s=sampling_s,
        host_s=max(0.0, total_s - compute_s - sampling_s),
        queueing_s=_queueing_s(run, total_s),
        measured_s=total_s,
        mbu=bandwidth_floor_s / total_s,
        mfu=compute_floor_s / total_s,
        number_format=used,
        roof=roof,
    )


def _queueing_s(run: EngineRun, step_s: float) -> float:
    """Return the mean time a token waits beyond its decode step: others' prompts, preemption."""
    gaps = [gap for record in run.records for gap in chunk_gaps_s(record)]
    return max(0.0, fmean(gaps) - step_s) if gaps else 0.0
