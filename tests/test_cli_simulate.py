"""`mansard simulate` and `mansard calibrate` from the command line."""

import json

import pytest

from mansard.cli import main


@pytest.fixture
def run(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


SMALL = ("llama-3.1-8b", "--gpu", "h100-sxm", "--workload", "200/20", "--num-requests", "20")


def test_one_simulation_prints_its_latencies_and_writes_its_files(run, tmp_path):
    files = [tmp_path / name for name in ("r.csv", "r.json", "r.html")]
    code, out, _ = run(
        "simulate", *SMALL, "--rate", "5", "--slo", "ttft=1s,tpot=50ms",
        "--csv", str(files[0]), "--trace-out", str(files[1]), "--html", str(files[2]),
    )  # fmt: skip
    assert code == 0 and "TTFT" in out and "20 in" in out and "goodput" in out
    assert len(files[0].read_text().splitlines()) == 21
    assert json.loads(files[1].read_text())["traceEvents"]
    assert files[2].read_text().startswith("<!doctype html>")


def test_json_is_the_same_for_the_same_seed_and_another_for_another(run):
    found = [json.loads(run("simulate", *SMALL, "--rate", "5", "--json", "--seed", seed)[1]) for seed in "001"]
    assert found[0] == found[1] != found[2]
    assert found[0]["num_requests"] == 20 and found[0]["ttft_s"]["p50"] > 0.0


def test_policies_and_reservations_stand_side_by_side(run):
    code, out, _ = run(
        "simulate", *SMALL, "--rate", "50", "--policy", "static,dynamic,continuous", "--kv", "contiguous,paged",
        "--batch-size", "8", "--workers", "1", "--json",
    )  # fmt: skip
    rows = {row["label"]: row for row in json.loads(out)}
    assert code == 0 and len(rows) == 6
    assert rows["continuous · paged"]["e2e_s"]["mean"] < rows["static · contiguous"]["e2e_s"]["mean"]


def test_rates_and_gpus_are_swept(run):
    gpus = ("--gpus", "h100-sxm,a100-sxm-80gb")
    code, out, _ = run("simulate", *SMALL, "--rate", "1:8", *gpus, "--workers", "1", "--json")
    rows = json.loads(out)
    assert code == 0 and len(rows) == 16
    assert rows[0]["label"] == "h100-sxm · 1/s" and rows[7]["label"] == "h100-sxm · 8/s"


def test_a_table_of_a_sweep_fits_a_pipe(run):
    _, out, _ = run("simulate", *SMALL, "--rate", "2,4", "--workers", "1")
    assert "2/s" in out and "4/s" in out and "…" not in out


def test_the_highest_rate_is_found(run):
    code, out, _ = run("simulate", *SMALL, "--slo", "ttft=200ms,tpot=20ms,p90", "--find-rate", "--json")
    assert code == 0 and json.loads(out)[0]["rate_req_s"] > 1.0
    code, _, err = run("simulate", *SMALL, "--find-rate")
    assert code == 2 and "service level" in err


@pytest.mark.parametrize(
    "options",
    [
        ("--concurrency", "4"),
        ("--turns", "3", "--think", "1", "--shared-prefix", "50"),
        ("--replicas", "2", "--gpu", "h100-sxm:2", "--router", "least-loaded"),
        ("--disaggregate", "1:1", "--gpu", "h100-sxm:2", "--link-gb-s", "25"),
        ("--arrivals", "gamma", "--burstiness", "3", "--rate", "5", "--priorities", "2"),
    ],
)
def test_every_kind_of_load_and_deployment_runs(run, options):
    code, out, err = run("simulate", *SMALL, *options, "--json")
    assert code == 0, err
    assert json.loads(out)["num_refused"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--router", "magic"), "prefix-aware"),
        (("--rate", "fast"), "1:20"),
        (("--disaggregate", "3"), "1:3"),
        (("--trace", "nothing.csv"), "azure-conv"),
        (("--gpu", "h100-sxm:3", "--tp", "2"), "3"),
        (("--policy", "magic"), "continuous"),
        (("--concurrency", "2", "--rate", "3"), "not both"),
    ],
)
def test_what_a_person_got_wrong_is_one_line_with_the_remedy(run, options, message):
    code, _, err = run("simulate", *SMALL, *options)
    assert code == 2 and message in err and len(err.strip().splitlines()) == 1


def test_burstiness_is_not_dropped_for_want_of_a_kind(run):
    load = (*SMALL, "--rate", "40", "--num-requests", "200", "--json")
    even, bursty = (json.loads(run("simulate", *load, *more)[1]) for more in ((), ("--burstiness", "5")))
    assert bursty["ttft_s"]["mean"] > 1.1 * even["ttft_s"]["mean"]


def test_without_a_model_the_remedy_is_named(run):
    code, _, err = run("simulate")
    assert code == 2 and "name a model" in err


def test_a_recorded_run_is_calibrated_and_replayed(run, tmp_path):
    from mansard.core.block_manager import BlockManager
    from mansard.core.clock import VirtualClock
    from mansard.core.config import SchedulerConfig
    from mansard.core.engine import Engine
    from mansard.core.scheduler import Scheduler
    from mansard.sim.deployment import Deployment
    from mansard.sim.executor import SimulatedExecutor
    from mansard.sim.planned import EOS_TOKEN_IDS, PlannedRequest
    from mansard.sim.pricing import StepPricer
    from mansard.sim.recording import RecordingEngine, RunLog
    from mansard.sim.replica import ANY_LENGTH
    from mansard.specs.hardware_catalogue import find_hardware
    from mansard.specs.model_presets import preset

    clock, path, profile = VirtualClock(), tmp_path / "run.jsonl", tmp_path / "profile.json"
    deployment = Deployment(preset("llama-3.1-8b"), find_hardware("a100-sxm-80gb"), engine="vllm")
    executor = SimulatedExecutor(StepPricer(deployment.priced, 512), clock)
    config = SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=8, max_model_len=1024)
    with RunLog(path) as log:
        inner = Engine(executor, Scheduler(config, BlockManager(400, 16)), clock, EOS_TOKEN_IDS)
        engine = RecordingEngine(inner, log, "llama-3.1-8b", "bf16")
        for i in range(12):
            planned = PlannedRequest(f"r{i}", 0.0, ((2 * i + 1, 60 + 40 * i),), 20 + i, 2 * i + 2)
            executor.begin(planned)
            engine.add(planned.request(ANY_LENGTH))
        while engine.has_unfinished():
            engine.step()
    code, out, err = run("calibrate", str(path), "--gpu", "a100-sxm-80gb", "--out", str(profile), "--json")
    assert code == 0, err
    assert json.loads(out)["median_error"] < json.loads(out)["median_error_before"]
    code, out, err = run(
        "simulate", "--replay", str(path), "--gpu", "a100-sxm-80gb", "--engine", "mansard", "--profile", str(profile),
        "--json",
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(out)
    assert found["num_same"] == found["num_plans"] > 30 and found["step_error_median"] < 0.05
