"""The constants: complete, physical, inherited as documented; the host's own record and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mansard.cost.calibrate import (
    HostCalibration,
    host_hardware,
    host_profile,
    load_calibration,
    save_calibration,
)
from mansard.cost.formats import PrecisionPlan
from mansard.cost.profiles import (
    engine_constants,
    engine_names,
    family_constants,
    family_names,
    interval_for,
    link_constants,
    profile_for,
)
from mansard.cost.roofline import PricedProgram
from mansard.cost.shape import StepShape
from mansard.program.decoder import decoder
from mansard.specs.hardware_catalogue import catalogue, find_hardware
from mansard.specs.model import ModelSpec

SMALL = ModelSpec("llama", 2, 256, 512, 4, 2, 64, 1000, 512)


@pytest.mark.parametrize("name", family_names())
def test_family_constants_are_physical(name: str) -> None:
    """No efficiency above the peak or below 0.3, no floor longer than a tenth of a millisecond."""
    family = family_constants(name)
    shares = [*family.gemm_memory.values(), *family.gemm_compute.values(), *family.moe_memory.values()]
    shares += [*family.decode_attention_memory.values(), family.prefill_attention_peak, family.moe_compute]
    assert all(0.3 <= share <= 1.0 for share in shares)
    floors = (family.gemm_floor_s, family.decode_attention_floor_s, family.moe_floor_s, family.elementwise_floor_s)
    assert all(0 < floor <= 2e-4 for floor in floors)
    assert family.source


@pytest.mark.parametrize("name", engine_names())
def test_engine_constants_are_physical(name: str) -> None:
    engine = engine_constants(name)
    assert 0 <= engine.burst_share <= 1 and 0 <= engine.lockstep_share <= 1
    assert 0 < engine.step_overhead_s < 0.05 and engine.source
    assert engine.max_num_batched_tokens > 0 and engine.max_num_seqs > 0


def test_every_hardware_has_a_profile_and_says_when_it_is_a_guess() -> None:
    for hardware in catalogue().values():
        profile = profile_for(hardware)
        assert profile.link(hardware.link.kind).latency_s > 0
    assert profile_for(find_hardware("h100-sxm"), "vllm").calibrated
    assert not profile_for(find_hardware("v100"), "vllm").calibrated
    assert not profile_for(find_hardware("h100-sxm"), "mansard").calibrated


def test_links_are_named_by_their_beginning() -> None:
    profile = profile_for(find_hardware("h100-sxm"))
    links = link_constants()
    assert profile.link("nvlink4-bridge") == links["nvlink4"]
    assert profile.link("nvlink6") == links["nvlink"]
    assert profile.link("semaphore") == links["other"]


def test_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="vllm"):
        engine_constants("fastllm")
    assert engine_constants("TensorRT-LLM") == engine_constants("trtllm")


def test_intervals_contain_the_prediction_and_widen_without_a_fit() -> None:
    fitted, guess = profile_for(find_hardware("h100-sxm")), profile_for(find_hardware("v100"))
    for metric in ("tpot", "ttft", "throughput"):
        for kind in ("dense", "moe", "mla"):
            known, unknown = interval_for(metric, kind, fitted), interval_for(metric, kind, guess)
            assert 0 < known.low <= 1.0 <= known.high
            assert unknown.low < known.low and unknown.high > known.high


def record() -> HostCalibration:
    return HostCalibration(
        host="a test",
        num_threads=2,
        read_bytes_per_s={1: 1.1e10, 2: 2.1e10, 4: 4e10},
        flops={"fp32": 2.8e11, "bf16": 1.3e12, "int8": 2.4e12},
        memory_bytes=24 << 30,
        paths={"bf16": "amx_bf16"},
        cache_bytes={"L2": 2 << 20, "L3": 32 << 20},
        efficiency={"gemm_memory": 0.95},
    )


def test_calibration_survives_its_file(tmp_path: Path) -> None:
    path = save_calibration(record(), tmp_path / "deep" / "host.json")
    assert load_calibration(path) == record()
    assert load_calibration(tmp_path / "none.json") is None
    path.write_text('{"version": 1, "host": "x"}')
    with pytest.raises(ValueError, match="calibrate again"):
        load_calibration(path)


def test_a_calibrated_host_is_priced_by_its_own_ceilings() -> None:
    """The bandwidth is that of the threads in use; a step takes no less than its bytes at that bandwidth."""
    calibration = record()
    hardware, profile = host_hardware(calibration), host_profile(calibration)
    assert hardware.memory_bytes_per_s == 2.1e10 and hardware.family == "cpu" and profile.calibrated
    cost = PricedProgram(decoder(SMALL), hardware, profile, PrecisionPlan()).step(StepShape(1.0, 100.0))
    assert cost.time_s >= cost.bytes / 2.1e10
    assert profile.family.gemm_memory["8"] == 0.95
