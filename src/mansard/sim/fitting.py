"""Fitting a profile to a recorded run: the few named factors of the engine, by robust least squares in logarithms.

A factor is what the roofline cannot know of a host: how long a step and a sequence take around the kernels, and what
share of the ceilings the kernels reach. Each keeps near its prior unless the run says otherwise, so a run that never
computes prompts does not invent what prompts cost.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mansard.cost.profiles import EngineConstants, Profile
from mansard.cost.roofline import PricedProgram
from mansard.cost.shape import StepShape
from mansard.sim.replay import RecordedStep

Floats = NDArray[np.float64]

VERSION = 1
ITERATIONS = 40
HUBER = 0.1  # relative errors beyond this pull no stronger: another process took the core
PRIOR_STEPS = 4.0  # the prior weighs as much as so many steps


@dataclass(frozen=True, slots=True)
class Factor:
    """One constant to fit: the uncertainty of its logarithm, its limits, and a prior where a profile has (almost) 0."""

    name: str
    sigma: float
    low: float
    high: float
    least_prior: float = 0.0


FACTORS = (
    Factor("step_overhead_s", 1.5, 1e-6, 0.5, 1e-4),
    Factor("sequence_overhead_s", 1.5, 1e-8, 0.05, 1e-6),
    Factor("memory_scale", 0.7, 0.01, 20.0),
    Factor("compute_scale", 1.0, 0.01, 50.0),
    Factor("floor_scale", 1.0, 0.05, 50.0),
    Factor("kv_traffic", 0.7, 0.1, 50.0),
    Factor("prompt_layer_s", 1.5, 1e-9, 0.05, 1e-6),
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted factors and how well they fit. Errors are shares of the measured step times.

    half_error: the median of the half of the steps (every other block of 20) that a second fit never saw.
    """

    factors: Mapping[str, float] = field(hash=False)
    hardware: str
    model: str
    num_steps: int
    median_error: float
    p90_error: float
    half_error: float
    version: int = VERSION

    def apply(self, profile: Profile) -> Profile:
        """Return `profile` with these factors."""
        fitted: dict[str, Any] = dict(self.factors)
        engine = replace(profile.engine, **fitted, calibrated=True, source=f"{self.num_steps} recorded steps")
        return replace(profile, name=f"{profile.name}, calibrated", engine=engine, calibrated=True)


def save(calibration: Calibration, path: Path) -> None:
    """Write a calibration as JSON."""
    path.write_text(json.dumps(asdict(calibration), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Calibration:
    """Read a calibration.

    Raises: ValueError when the file is none.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        unknown = set(table["factors"]) - {f.name for f in FACTORS}
        if table.get("version") != VERSION or unknown:
            raise ValueError(f"version {table.get('version')}, unknown factors {sorted(unknown)}")
        return Calibration(**table)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no calibration ({error}); write one with `mansard calibrate`") from error


def fit(priced: PricedProgram, steps: Sequence[RecordedStep], hardware: str = "", model: str = "") -> Calibration:
    """Return the factors that bring the prices of `steps` nearest to their times.

    Raises: ValueError for fewer than 20 timed steps.
    """
    timed = [s for s in steps if s.cycle_s is not None and s.cycle_s > 0.0]
    if len(timed) < 20:
        raise ValueError(f"{len(timed)} timed steps are too few to fit {len(FACTORS)} factors; record at least 20")
    block = np.arange(len(timed)) // 20 % 2
    whole = _Problem(priced, timed)
    values = whole.solve()
    errors = np.abs(np.expm1(-whole.residuals(values)))
    halves = []
    for kept in (0, 1):
        seen = [s for s, b in zip(timed, block, strict=True) if b == kept]
        unseen = [s for s, b in zip(timed, block, strict=True) if b != kept]
        if len(seen) >= 10 and unseen:
            other = _Problem(priced, unseen)
            halves.append(np.abs(np.expm1(-other.residuals(_Problem(priced, seen).solve()))))
    return Calibration(
        {f.name: float(v) for f, v in zip(FACTORS, np.exp(values), strict=True)},
        hardware, model, len(timed), float(np.median(errors)), float(np.percentile(errors, 90)),
        float(np.median(np.concatenate(halves))) if halves else float("nan"),
    )  # fmt: skip


def step_errors(priced: PricedProgram, steps: Sequence[RecordedStep]) -> Floats:
    """Return predicted ÷ measured − 1 for each timed step."""
    timed = [s for s in steps if s.cycle_s is not None and s.cycle_s > 0.0]
    shape, measured = shapes_of(timed), np.array([s.cycle_s for s in timed])
    predicted: Floats = np.asarray(priced.time(shape)) / measured - 1.0
    return predicted


def shapes_of(steps: Sequence[RecordedStep]) -> StepShape:
    """Return all steps as one shape of arrays."""
    contexts, chunks = [s.contexts for s in steps], [s.chunks for s in steps]
    return StepShape(
        num_decodes=np.array([float(len(c)) for c in contexts]),
        decode_context=np.array([_mean(c) for c in contexts]),
        num_prefills=np.array([float(len(c)) for c in chunks]),
        prefill_tokens=np.array([_mean([n for n, _ in c]) for c in chunks]),
        prefill_start=np.array([_mean([s for _, s in c]) for c in chunks]),
    )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / max(1, len(values))


class _Problem:
    """The residuals of one run's steps for any factors, and their least squares."""

    def __init__(self, priced: PricedProgram, steps: Sequence[RecordedStep]) -> None:
        self.priced, self.shape = priced, shapes_of(steps)
        self.logs = np.log(np.array([s.cycle_s for s in steps]))
        self.prior = np.log([max(f.low, f.least_prior, getattr(priced.profile.engine, f.name)) for f in FACTORS])
        self.low, self.high = np.log([f.low for f in FACTORS]), np.log([f.high for f in FACTORS])
        self.sigma = np.array([f.sigma for f in FACTORS])

    def residuals(self, values: Floats) -> Floats:
        """Return log(measured ÷ predicted) of each step."""
        engine = with_factors(self.priced.profile.engine, np.exp(values))
        times = _with_engine(self.priced, engine).time(self.shape)
        found: Floats = self.logs - np.log(np.asarray(times))
        return found

    def solve(self) -> Floats:
        """Return the logarithms of the factors: damped Gauss–Newton with Huber weights and the prior."""
        values, damping = self.prior.copy(), 1.0
        cost = self._cost(values)
        for _ in range(ITERATIONS):
            residuals = self.residuals(values)
            weights = np.minimum(1.0, HUBER / np.maximum(np.abs(residuals), 1e-12))
            jacobian = self._jacobian(values, residuals)
            prior = PRIOR_STEPS * HUBER**2 / self.sigma**2
            normal = jacobian.T @ (weights[:, None] * jacobian) + np.diag(prior)
            gradient = jacobian.T @ (weights * residuals) + prior * (values - self.prior)
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            candidate = np.clip(values + step, self.low, self.high)
            new = self._cost(candidate)
            if new < cost:
                converged = cost - new < 1e-9 * cost
                values, cost, damping = candidate, new, damping / 3.0
                if converged:
                    break
            else:
                damping *= 4.0
        return values

    def _cost(self, values: Floats) -> float:
        size = np.abs(self.residuals(values))
        loss = np.where(size < HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))
        return float(loss.sum() + 0.5 * PRIOR_STEPS * HUBER**2 * (((values - self.prior) / self.sigma) ** 2).sum())

    def _jacobian(self, values: Floats, residuals: Floats) -> Floats:
        columns = []
        for index in range(len(FACTORS)):
            moved = values.copy()
            moved[index] += 1e-4
            columns.append((self.residuals(moved) - residuals) / 1e-4)
        return np.stack(columns, axis=1)


def with_factors(engine: EngineConstants, values: Sequence[float] | Floats) -> EngineConstants:
    """Return an engine's constants with the factors in the order of `FACTORS`."""
    fitted: dict[str, Any] = {f.name: float(v) for f, v in zip(FACTORS, values, strict=True)}
    return replace(engine, **fitted)


def _with_engine(priced: PricedProgram, engine: EngineConstants) -> PricedProgram:
    changed = copy.copy(priced)
    changed.profile = replace(priced.profile, engine=engine)
    return changed
