"""The prepared price of a step is the cost model's, for every kind of model; stretches are priced as steps are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.cost.formats import PrecisionPlan
from mansard.cost.op_cost import Layout
from mansard.cost.serving import priced_program
from mansard.cost.shape import StepShape
from mansard.sim.pricing import StepPricer
from mansard.specs.hardware_catalogue import find_hardware
from mansard.specs.model_presets import preset

MODELS = {  # one kind of attention each, and the layouts that add networks
    "llama-3.1-70b": Layout(tensor_parallel=8),
    "gemma-3-27b": Layout(),
    "gpt-oss-120b": Layout(tensor_parallel=2),
    "deepseek-r1": Layout(tensor_parallel=8, expert_parallel=8),
    "qwen3-30b-a3b": Layout(data_parallel=2, expert_parallel=2),
    "qwen3-next-80b-a3b": Layout(tensor_parallel=2),
    "llama-3.1-8b": Layout(pipeline_parallel=2),
}
PRICERS = {}
# Adding the parts in another order than the cost model does, and lines through knots: some hundred roundings.
ROUNDING = 1e-10

contexts = st.lists(st.integers(1, 30_000), max_size=60)
chunks = st.lists(st.tuples(st.integers(1, 1500), st.integers(0, 20_000)), max_size=5)


def pricer(model, engine="vllm"):
    if (model, engine) not in PRICERS:
        program = priced_program(preset(model), find_hardware("h100-sxm"), MODELS[model], PrecisionPlan(), engine)
        PRICERS[model, engine] = StepPricer(program, 8192)
    return PRICERS[model, engine]


@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_model_is_tabled(model):
    """Pricing step by step would be right too, but ten times slower."""
    assert pricer(model).is_tabled


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=40, deadline=None)
@given(contexts, chunks)
def test_a_step_costs_what_the_cost_model_says(model, contexts, chunks):
    if not contexts and not chunks:
        return
    prepared = pricer(model)
    asked = float(prepared.priced.time(StepShape.of(contexts, chunks)))
    assert prepared.step_s(contexts, chunks) == pytest.approx(asked, rel=ROUNDING)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=40), st.lists(st.integers(1, 900), min_size=1, max_size=3))
def test_an_engine_that_does_not_mix_runs_prompts_before_decodes(contexts, prompts):
    prepared = pricer("llama-3.1-8b", "sglang")
    chunks = [(n, 0) for n in prompts]
    apart = prepared.step_s(contexts, ()) + prepared.step_s((), chunks)
    assert prepared.step_s(contexts, chunks) == pytest.approx(apart, rel=ROUNDING)


@pytest.mark.parametrize("model", ["llama-3.1-70b", "gpt-oss-120b", "deepseek-r1", "qwen3-next-80b-a3b"])
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30), st.integers(1, 60))
def test_stretch_prices_equal_step_prices_to_the_last_bit(model, contexts, num_steps):
    prepared = pricer(model)
    price = prepared.decode_prices(contexts)
    for step in range(num_steps):
        assert price() == prepared.step_s([c + step for c in contexts], ())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30), chunks)
def test_more_work_takes_longer(contexts, chunks):
    prepared = pricer("llama-3.1-70b")
    base = prepared.step_s(contexts, chunks)
    assert base > 0.0
    assert prepared.step_s([*contexts, 100], chunks) >= base
    assert prepared.step_s([c + 50 for c in contexts], chunks) >= base


def test_a_program_that_cannot_be_told_apart_is_priced_step_by_step():
    """The probes notice a cost model whose parts depend on each other; the price is then asked for."""

    class Coupled:
        """A priced program in which a step with both kinds of work costs more than its parts."""

        def __init__(self, inner):
            self.__dict__.update(inner.__dict__)
            self.inner = inner

        def step(self, shape):
            return self.inner.step(shape)

        def time(self, shape):
            return self.inner.time(shape) * (1.0 + 0.1 * float(shape.num_decodes * shape.num_prefills > 0))

    inner = pricer("llama-3.1-8b").priced
    prepared = StepPricer(Coupled(inner), 4096)
    assert not prepared.is_tabled
    shape = StepShape.of([100, 200], [(300, 0)])
    assert prepared.step_s([100, 200], [(300, 0)]) == pytest.approx(1.1 * float(inner.time(shape)), rel=ROUNDING)
    price = prepared.decode_prices([7, 9])
    assert [price(), price()] == [prepared.step_s([7, 9], ()), prepared.step_s([8, 10], ())]
