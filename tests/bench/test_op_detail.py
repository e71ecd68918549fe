"""Per-op detail: measured seconds meet their prices by kind, and nothing is lost on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mansard.bench.engine_run import StepTiming
from mansard.bench.op_detail import OpDetail, OpRow, op_detail, priced_on
from mansard.bench.roof import Roof
from mansard.bench.step_demand import StepDemand
from mansard.cost.shape import StepShape
from mansard.program.decoder import decoder
from mansard.program.ops import MoE, Op, RmsNorm
from mansard.specs.model_presets import preset
from mansard.specs.sizes import kv_bytes_per_token, num_parameters

ROOF = Roof(10e9, {"int8": 1e12, "fp32": 2e11}, "given", False)


def steps_of(ops: tuple[Op, ...], batch: int, count: int = 3) -> list[StepTiming]:
    """Steps whose norms take 5 ms each and whose other ops take 1 ms."""
    seconds = tuple(0.005 if isinstance(op, RmsNorm) else 0.001 for op in ops)
    return [StepTiming(batch, 0, batch * (100 + i), sum(seconds), 0.001, op_seconds=seconds) for i in range(count)]


@pytest.mark.parametrize("name", ["smollm2-135m", "mixtral-8x7b", "gemma-2-2b"])
def test_every_op_is_measured_and_priced_once(name: str) -> None:
    spec = preset(name)
    ops = decoder(spec, max_model_len=512).ops
    demand = StepDemand(spec, num_parameters(spec), kv_bytes_per_token(spec))
    found = op_detail(steps_of(ops, 2), demand, ROOF, "int8", 512)
    assert found is not None and found.batch_size == 2
    assert sum(row.count for row in found.rows) == len(ops)
    num_norms = sum(isinstance(op, RmsNorm) for op in ops)
    assert found.measured_s == pytest.approx(5e-3 * num_norms + 1e-3 * (len(ops) - num_norms))
    assert found.rows[0].kind == "norm" and sum(map(found.share, found.rows)) == pytest.approx(1.0)
    whole = priced_on(decoder(spec, max_model_len=512), demand, ROOF, "int8")
    assert all(row.priced_s >= row.floor_s > 0.0 for row in found.rows)
    # one byte a weight, of a mixture what two tokens touch: 2 · 2 of 8 experts less those chosen twice
    weights = sum(
        float(c.work.count * c.work.weight_bytes)
        for c in whole.step(StepShape(num_decodes=2.0, decode_context=101.0)).ops
    )
    assert sum(row.bytes for row in found.rows) >= weights
    if not any(isinstance(op, MoE) for op in ops):
        assert weights == pytest.approx(num_parameters(spec), rel=0.01)  # norms are not in it
    assert "norm is furthest above its floor" in found.sentence()


def test_the_floor_is_of_the_roof_and_near_it_the_lever_is_not_a_kernel() -> None:
    spec = preset("smollm2-135m")
    ops = decoder(spec, max_model_len=512).ops
    demand = StepDemand(spec, num_parameters(spec), kv_bytes_per_token(spec))
    slow = op_detail(steps_of(ops, 1), demand, ROOF, "int8", 512)
    fast = op_detail(steps_of(ops, 1), demand, replace(ROOF, read_bytes_per_s=20e9), "int8", 512)
    assert slow is not None and fast is not None
    by_kind = {row.kind: row for row in fast.rows}
    assert all(row.reached == pytest.approx(2 * by_kind[row.kind].reached) for row in slow.rows)
    near = OpDetail(1, (OpRow("head", 1, 1.0, 0.95, 1.0, 1.0, 0.9, "memory bandwidth"),))
    assert "fewer bits" in near.sentence() and "a faster norm kernel" in slow.sentence()
    unprofiled = [replace(s, op_seconds=()) for s in steps_of(ops, 1)]
    assert op_detail(unprofiled, demand, ROOF, "int8", 512) is None
