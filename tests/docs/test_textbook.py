"""Every number of docs/textbook.md, computed and found on the page."""

import re
from pathlib import Path

import pytest

from mansard.cost.decode_bound import decode_weight_bytes, mbu
from mansard.cost.formats import PrecisionPlan
from mansard.cost.intensity import decode_attention_intensity, unfused_attention_intensity
from mansard.cost.kv_layout import kv_bytes_per_token, multi_head_bytes_per_token
from mansard.cost.memory import weight_bytes
from mansard.cost.profiles import profile_for
from mansard.cost.reservation import contiguous_waste, paged_waste
from mansard.cost.roofline import PricedProgram, price
from mansard.cost.shape import StepShape
from mansard.cost.training import inference_flops, training_flops, training_memory
from mansard.program.decoder import decoder
from mansard.specs.hardware import GIB
from mansard.specs.hardware_catalogue import find_hardware
from mansard.specs.model_presets import preset
from mansard.specs.sizes import num_parameters
from mansard.specs.slo import parse_slo
from mansard.specs.workload import find_workload

PAGE = (Path(__file__).parents[2] / "docs" / "textbook.md").read_text(encoding="utf-8")
TEXT = re.sub(r"\s+", " ", PAGE)
BIG, SMALL = preset("llama-2-70b"), preset("llama-2-7b")
BATCH = 32 * 1024


def says(*phrases: str) -> None:
    for phrase in phrases:
        assert phrase in TEXT, f"the page does not say {phrase!r}"


@pytest.mark.parametrize(("name", "label"), [("a10", "A10"), ("a10g", "A10G"), ("h100", "H100 SXM")])
def test_ridge_points(name, label):
    spec = find_hardware(name)
    rate, bandwidth = spec.flops["fp16"] / 1e12, spec.memory_bytes_per_s / 1e9
    says(f"| {label} | {rate:g} TFLOP/s | {bandwidth:g} GB/s | {spec.ridge('fp16'):.1f} ops/byte |")


def test_attention_of_a_sequence_and_of_a_step():
    says(f"(8N² + 8Nd) | {unfused_attention_intensity(4096, 128):.1f} |")
    says(f"(4Nd + 8N + 4d) | {decode_attention_intensity(4096, 128):.2f} |")


def test_intensity_of_whole_decode_steps():
    a10 = find_hardware("a10")
    program = PricedProgram(decoder(SMALL), a10, profile_for(a10), PrecisionPlan())
    found = []
    for batch in (1, 8, 32, 256):
        cost = program.step(StepShape.of([2048] * batch))
        found.append(cost.flops / (cost.weight_bytes + cost.kv_bytes))
    says("| ops/byte | " + " | ".join(f"{value:.1f}" for value in found) + " |")
    assert max(found) < a10.ridge("fp16")


def test_weights():
    total = num_parameters(BIG)
    says(f"{total:,} parameters, {2 * total / 1e9:.1f} GB or {2 * total / GIB:.1f} GiB")
    llama3 = preset("llama-3.1-8b")
    packed = sum(weight_bytes(llama3, PrecisionPlan.uniform("int4")).values())
    says(f"takes {packed / GIB:.2f} GiB, not {num_parameters(llama3) / 2 / GIB:.2f}")


def test_cache_of_llama_2_70b():
    for label, per_token, digits in (
        ("`multi_head_bytes_per_token`", multi_head_bytes_per_token(BIG), 2),
        ("`kv_bytes_per_token`", kv_bytes_per_token(BIG), 3),
    ):
        whole = per_token * BATCH
        says(f"{label} | {per_token / 1e6:.{digits}f} MB | {whole / 1e9:.1f} GB = {whole / GIB:g} GiB |")
    says(f"needs {kv_bytes_per_token(SMALL) * BATCH / GIB:g} GiB for the same batch")
    says(f"DeepSeek-V3: {kv_bytes_per_token(preset('deepseek-v3')):,.0f} bytes a token")


def test_an_8_bit_cache_halves_it_and_hardly_matters_at_batch_1():
    ratios = {f: kv_bytes_per_token(BIG, f) / kv_bytes_per_token(BIG) for f in ("fp8", "int8")}
    says(f"FP8 to {ratios['fp8']:.3f}, INT8 with one FP32 scale per head and token to {ratios['int8']:.3f}")
    cache, weights = kv_bytes_per_token(SMALL) * 1024 / 1e9, decode_weight_bytes(SMALL, PrecisionPlan()) / 1e9
    says(f"{cache:.2f} GB beside {weights:.1f} GB of weights")


def test_reservation():
    chat = find_workload("chat")
    before = contiguous_waste(chat.input_tokens, chat.output_tokens, 4096)
    after = paged_waste(chat.input_tokens, chat.output_tokens, 4096)
    says(f"leaves {before:.0%} of the cache empty".replace("%", " %"))
    says(f"leave {100 * after:.1f} %.")


def test_mbu_by_its_definition():
    says(f"at 14 ms a token on 2 TB/s: {100 * mbu(14e9, 14e-3, 2e12):.0f} %")


@pytest.mark.parametrize("name", ["a100-40gb", "a100-80gb", "h100"])
def test_twice_the_ranks_do_not_halve_the_latency(name):
    spec = find_hardware(name)
    times = {
        tp: price(
            decoder(BIG, tensor_parallel=tp), StepShape.of([512]), spec, profile_for(spec), PrecisionPlan()
        ).time_s
        for tp in (4, 8)
    }
    stated = re.search(r"between ([\d.]+)× and ([\d.]+)×", TEXT)
    assert stated is not None
    assert float(stated[1]) < times[8] / times[4] < float(stated[2])


def test_training():
    need = training_memory(SMALL, batch_size=1, sequence_length=1)
    states = need.weights_bytes + need.gradients_bytes + need.optimizer_bytes
    says(f"Llama-2-7B {states / 1e9:.1f} GB against {2 * num_parameters(SMALL) / 1e9:.1f} GB")
    assert training_flops(SMALL, 1) == 3 * inference_flops(SMALL, 1)


def test_claims_that_name_presets():
    interactive, server = parse_slo("mlperf-llama2-70b-interactive"), parse_slo("mlperf-llama3.1-405b-server")
    assert (interactive.ttft_s, interactive.tpot_s, server.ttft_s, server.tpot_s) == (0.45, 0.04, 6.0, 0.175)
    assert find_hardware("vr200").flops["fp4"] == 35e15
    says("450 ms / 40 ms, 405B 6 s / 175 ms", "35 dense")
