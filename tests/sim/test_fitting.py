"""Calibration: factors that made the times are found again, and what the run never shows stays at its prior."""

from dataclasses import replace

import numpy as np
import pytest

from mansard.cost.formats import PrecisionPlan
from mansard.cost.op_cost import Layout
from mansard.cost.serving import priced_program
from mansard.sim import fitting
from mansard.sim.deployment import Deployment
from mansard.sim.replay import RecordedStep
from mansard.specs.hardware_catalogue import find_hardware
from mansard.specs.model_presets import preset

PRICED = priced_program(preset("llama-3.1-8b"), find_hardware("a100-sxm-80gb"), Layout(), PrecisionPlan(), "mansard")
TRUE = {"step_overhead_s": 0.004, "memory_scale": 0.6, "compute_scale": 0.5}


def steps(count=400, noise=0.02, outliers=0.05, prompts=True, seed=1):
    """Steps with times from other constants than the profile's, noise, and some that another process held up."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        seqs = [(f"r{i}", int(random.integers(10, 4000)), 1, 1) for i in range(random.integers(1, 64))]
        if prompts and random.random() < 0.3:
            seqs.append(("p", 0, int(random.integers(16, 4000)), 1))
        found.append(RecordedStep(float(number), 0.0, tuple(seqs)))
    true = replace(PRICED.profile.engine, **TRUE)
    shape = fitting.shapes_of(found)
    times = np.asarray(fitting._with_engine(PRICED, true).time(shape)) * np.exp(noise * random.standard_normal(count))
    times[random.random(count) < outliers] *= 5.0
    return [replace(step, cycle_s=float(t)) for step, t in zip(found, times, strict=True)]


def test_the_times_of_steps_that_were_never_seen_are_found():
    """Overhead and bandwidth look alike where every step reads all weights; together they must still be right."""
    found = fitting.fit(PRICED, steps(), "A100", "llama")
    # Prompts bound by compute, 400 steps of 2 % noise: this one factor stands alone.
    assert found.factors["compute_scale"] == pytest.approx(TRUE["compute_scale"], rel=0.15)
    fitted = Deployment(
        preset("llama-3.1-8b"), find_hardware("a100-sxm-80gb"), engine="mansard", profile=found.apply(PRICED.profile)
    )
    others = np.abs(fitting.step_errors(fitted.priced, steps(seed=2, noise=0.0, outliers=0.0)))
    assert np.median(others) < 0.01 and np.percentile(others, 90) < 0.03
    # The median of |N(0, 2 %)| is 1.35 %; outliers and the fit add a little.
    assert found.median_error < 0.02 and found.half_error < 0.02


def test_outliers_do_not_move_the_fit():
    clean, spoilt = (fitting.fit(PRICED, steps(outliers=share)) for share in (0.0, 0.1))
    assert spoilt.factors["compute_scale"] == pytest.approx(clean.factors["compute_scale"], rel=0.05)


def test_what_the_run_never_shows_stays_near_its_prior():
    found = fitting.fit(PRICED, steps(prompts=False))
    prior = PRICED.profile.engine.prompt_layer_s
    assert found.factors["prompt_layer_s"] == pytest.approx(prior, rel=0.01)


def test_a_calibrated_profile_prices_as_fitted(tmp_path):
    path, recorded = tmp_path / "profile.json", steps()
    fitting.save(fitting.fit(PRICED, recorded, "A100", "llama"), path)
    found = fitting.load(path)
    deployment = Deployment(
        preset("llama-3.1-8b"), find_hardware("a100-sxm-80gb"), engine="mansard",
        profile=found.apply(PRICED.profile),
    )  # fmt: skip
    errors = np.abs(fitting.step_errors(deployment.priced, recorded))
    assert np.median(errors) == pytest.approx(found.median_error, abs=1e-9)
    assert np.median(errors) < 0.1 * np.median(np.abs(fitting.step_errors(PRICED, recorded)))
    assert deployment.priced.profile.calibrated


def test_files_that_are_no_calibration_are_refused(tmp_path):
    path = tmp_path / "x.json"
    for text in ("[]", "{}", '{"factors": {"magic": 1}, "version": 1}', "no json"):
        path.write_text(text)
        with pytest.raises(ValueError, match="no calibration"):
            fitting.load(path)


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="at least 20"):
        fitting.fit(PRICED, steps(10))
