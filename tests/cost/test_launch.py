"""Launch commands use documented options only, say the plan, and hold together with what the engine can do."""

import shlex

import pytest

from mansard.cost.candidates import deployments
from mansard.cost.engine_support import ENGINES, engine_for, engine_problem, find_engine_name
from mansard.cost.launch import OPTIONS, SOURCES, launch_commands
from mansard.cost.op_cost import Layout
from mansard.cost.options import static_limit
from mansard.cost.question import Question, chat
from mansard.specs.hardware_catalogue import catalogue, find_hardware
from mansard.specs.model_presets import preset


def commands(model: str, gpu: str, layout: Layout, weights: str = "auto", kv: str = "auto", engine: str = "auto"):
    question = Question(
        preset(model),
        chat(),
        hardware=(find_hardware(gpu),),
        weights=(weights,),
        kv=(kv,),
        layout=layout,
        engine=engine,
    )
    deployment = next(iter(deployments(question)))
    assert static_limit(question, deployment) is None
    return {c.engine: c for c in launch_commands(deployment, "owner/model", 64, 400_000)}


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("gpu", ["h100", "l4", "mi300x", "CPU-EPYC-9654-GENOA", "Apple-M4-Max-40c-128GB"])
@pytest.mark.parametrize(("weights", "kv"), [("auto", "auto"), ("fp8", "fp8"), ("int4", "int8"), ("Q4_K", "auto")])
def test_only_documented_options_are_used(engine: str, gpu: str, weights: str, kv: str) -> None:
    hardware = find_hardware(gpu)
    for layout in (Layout(), Layout(2), Layout(1, 2), Layout(4, 1, 1, 4), Layout(1, 1, 4, 4)):
        question = Question(
            preset("deepseek-v2-lite"), chat(), hardware=(hardware,), weights=(weights,), kv=(kv,), layout=layout,
            engine=engine,
        )  # fmt: skip
        deployment = next(iter(deployments(question)))
        if static_limit(question, deployment) is not None:
            continue
        for command in launch_commands(deployment, "owner/model", 64, 400_000):
            assert set(command.options) <= OPTIONS[command.engine], command.text
            assert shlex.split(command.text) == list(command.arguments)
            assert "None" not in command.text and "True" not in command.text


def test_every_engine_names_its_source() -> None:
    assert set(OPTIONS) == set(SOURCES) == set(ENGINES)


def test_mansards_own_options_exist() -> None:
    """Our own help is at hand, so it is asked instead of a table."""
    import inspect

    from mansard.commands.serve import serve

    known = {f"--{name.replace('_', '-')}" for name in inspect.signature(serve).parameters}
    assert OPTIONS["mansard"] <= known


def test_a_split_is_said_in_each_engines_words() -> None:
    found = commands("llama-3.1-70b", "h100", Layout(tensor_parallel=4))
    assert "--tensor-parallel-size 4" in found["vllm"].text
    assert "--tp-size 4" in found["sglang"].text
    assert "--tp_size 4" in found["trtllm"].text
    assert "mansard" not in found  # it runs on one device


def test_experts_and_data_parallel_attention() -> None:
    found = commands("deepseek-v3", "h200", Layout(data_parallel=8, expert_parallel=8), kv="fp8")
    assert "--data-parallel-size 8 --enable-expert-parallel" in found["vllm"].text
    assert "--tp-size 8" in found["sglang"].text and "--enable-dp-attention" in found["sglang"].text
    assert "--max-running-requests 512" in found["sglang"].text  # of all ranks; vLLM's limit is one rank's
    assert "--max-num-seqs 64" in found["vllm"].text
    notes = " ".join(found["trtllm"].notes)
    assert "enable_attention_dp: true" in notes and "dtype: fp8" in notes


def test_formats_become_flags_or_notes() -> None:
    fp8 = commands("llama-3.1-8b", "h100", Layout(), weights="fp8", kv="fp8")
    assert "--quantization fp8" in fp8["vllm"].text and "--kv-cache-dtype fp8" in fp8["vllm"].text
    assert any("quantized to fp8" in note for note in fp8["trtllm"].notes)
    int4 = commands("llama-3.1-8b", "h100", Layout(), weights="int4")
    assert "--quantization" not in int4["vllm"].text and any("int4" in note for note in int4["vllm"].notes)
    half = commands("llama-3.1-8b", "t4", Layout())
    assert "--dtype float16" in half["vllm"].text and "trtllm" not in half


def test_llama_cpp_reserves_whole_contexts() -> None:
    found = commands("llama-3.1-8b", "rtx4090", Layout(), weights="Q4_K", engine="llama.cpp")
    words = found["llama.cpp"].arguments
    slots, context = (int(words[words.index(o) + 1]) for o in ("--parallel", "--ctx-size"))
    assert context == slots * 15_050 <= 400_000
    assert "model-Q4_K_M.gguf" in found["llama.cpp"].text and "vllm" not in found


def test_engines_run_where_they_run() -> None:
    assert find_engine_name("TensorRT-LLM") == "trtllm"
    with pytest.raises(ValueError, match=r"vllm.*llama\.cpp"):
        find_engine_name("tgi")
    assert engine_for(find_hardware("h100")) == "vllm"
    assert engine_for(find_hardware("Apple-M4-Max-40c-128GB")) == "llama.cpp"
    for hardware in catalogue().values():
        assert engine_problem(engine_for(hardware), hardware, Layout()) is None, hardware.name
    assert "does not run" in str(engine_problem("trtllm", find_hardware("mi300x"), Layout()))
