"""`mansard plan`, `explain` and `gpus`: exit codes, one-line errors, every form of output, and the documented JSON."""

from __future__ import annotations

import csv
import inspect
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import mansard
import mansard.planning.ask
from mansard.cli import main
from mansard.planning.schema import files, json_schema
from mansard.specs.hardware_catalogue import catalogue

Run = Callable[..., tuple[int, str, str]]
DOCS = Path(__file__).parent.parent / "docs"
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "number": (int, float), "integer": (int,),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


def breaches(value: Any, schema: dict[str, Any], path: str = "$") -> list[str]:
    """Check the part of JSON Schema that the plan's uses, and that no undocumented field appears."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, TYPES[k]) and not (isinstance(value, bool) and k != "boolean") for k in kinds):
        return [f"{path}: {type(value).__name__} is not {kinds}"]
    if isinstance(value, list):
        return [b for i, item in enumerate(value) for b in breaches(item, schema["items"], f"{path}[{i}]")]
    if not isinstance(value, dict):
        return []
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    found = [f"{path}.{name} is missing" for name in schema.get("required", []) if name not in value]
    for name, item in value.items():
        below = known.get(name, rest)
        found += [f"{path}.{name} is not documented"] if below is None else breaches(item, below, f"{path}.{name}")
    return found


def test_the_answer_comes_first(run: Run) -> None:
    code, out, _ = run("plan", "llama-3.1-8b", "--gpu", "h100")
    assert code == 0
    assert out.startswith("1× H100-SXM-80GB, weights bf16, KV cache bf16\n")
    for words in (
        *("TPOT", "TTFT", "a million output tokens", "Memory of one device", "ridge", "By requests at once"),
        *("Next levers", "Launch", "vllm serve meta-llama/Llama-3.1-8B", "Assumed", "Not modelled"),
        "Error of the method",
    ):
        assert words in out, words


def test_it_holds_at_80_columns() -> None:
    """Nothing but launch commands may be wider than the terminal; no number may be cut."""
    code = "import sys; sys.stdout.isatty = lambda: True; from mansard.cli import main; main(sys.argv[1:])"
    words = ["plan", "llama-3.1-70b", "--gpu", "h100", "--detail"]
    where = {"COLUMNS": "80", "PYTHONPATH": str(Path(mansard.__file__).parents[1]), "TERM": "dumb"}
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, env=where)
    launch = False
    for line in done.stdout.splitlines():
        launch = (launch or line == "Launch") and line != "Assumed"
        assert launch or len(line) <= 80, line
    assert "…" not in done.stdout


def test_nothing_fits_exits_1_with_the_changes_that_help(run: Run) -> None:
    code, out, _ = run("plan", "llama-3.1-405b", "--gpu", "h100:2")
    assert code == 1
    assert out.startswith("Nothing fits.") and "GiB" in out and "Single changes that would make it fit" in out
    assert "vllm serve" not in out


def test_a_split_that_is_impossible_prints_no_command(run: Run) -> None:
    code, out, _ = run("plan", "qwen3-14b", "--gpu", "h100", "--tp", "5")
    assert code == 1 and "tensor_parallel 5" in out and "vllm serve" not in out
    code, out, err = run("explain", "qwen3-14b", "--gpu", "h100", "--tp", "5")
    assert (code, out) == (2, "") and "tensor_parallel 5" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "lama-3.1-8b"), ("lama-3.1-8b", "llama-3.1-8b")),
        (("plan", "llama-3.1-8b", "--gpu", "h1000"), ("h1000", "h100")),
        (("plan", "llama-3.1-8b", "--gpu", "h100:0"), ("0", "at least 1")),
        (("plan", "llama-3.1-8b", "--engine", "tgi"), ("tgi", "vllm")),
        (("plan", "llama-3.1-8b", "--weights", "fp7"), ("fp7", "fp8")),
        (("plan", "llama-3.1-8b", "--workload", "chatt"), ("chatt", "chat")),
        (("plan", "llama-3.1-8b", "--slo", "tpot=fast"), ("tpot=fast",)),
        (("plan", "llama-3.1-8b", "--objective", "best"), ("best", "cheapest")),
        (("plan", "llama-3.1-8b", "--rate", "1", "--concurrency", "2"), ("rate", "concurrency")),
        (("plan", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "999999"), ("999,999", "131,072")),
        (("plan", "no/such.gguf"), ("no/such.gguf",)),
        (("gpus", "h100", "amd"), ("h100 amd",)),
        (("explain", "llama-3.1-8b", "--gpu", "t4", "--weights", "bf16", "--engine", "trtllm"), ("TensorRT-LLM",)),
    ],
)
def test_errors_are_one_line_and_exit_2(run: Run, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("mansard: ") and err.count("\n") == 1
    assert all(word in err for word in words), err


@pytest.mark.parametrize(
    "arguments",
    [
        ("llama-3.1-8b", "--gpu", "h100", "--slo", "mlperf-llama3.1-8b-server", "--rate", "40"),
        ("llama-3.1-405b", "--gpu", "h100:2"),
        ("deepseek-v3", "--gpu", "h200,mi300x", "--kv", "bf16,fp8", "--workload", "1024/512"),
        ("qwen3.5-27b", "--gpu", "l40s", "--engine", "llama.cpp", "--weights", "Q4_K"),
    ],
)
def test_json_follows_its_schema(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, _ = run("plan", *arguments, "--json")
    document = json.loads(out)
    assert document["version"] == 1 and document["fits"] == (code == 0)
    assert breaches(document, json_schema()) == []
    assert "NaN" not in out and "Infinity" not in out


def test_the_schema_check_sees_faults() -> None:
    schema = json_schema()
    assert breaches({"version": "1"}, schema)[0] == "$.fits is missing" or len(breaches({"version": "1"}, schema)) > 5
    assert any("undocumented" in b or "not documented" in b for b in breaches({"extra": 1}, schema))


def test_the_schema_documents_are_generated() -> None:
    """`python -m mansard.planning.schema docs` writes them."""
    for name, text in files():
        assert (DOCS / name).read_text(encoding="utf-8") == text, name


def test_csv_is_the_batch_table(run: Run) -> None:
    code, out, _ = run("plan", "llama-3.1-8b", "--gpu", "h100", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and len(rows) > 8
    assert float(rows[0]["concurrency"]) == 1 and float(rows[0]["tpot_s"]) < float(rows[-1]["tpot_s"])


def test_the_library_call_is_the_same_answer(run: Run) -> None:
    plan = mansard.plan("llama-3.1-8b", gpu="h100", slo="ttft=1s,tpot=30ms,p95")
    _, out, _ = run("plan", "llama-3.1-8b", "--gpu", "h100", "--slo", "ttft=1s,tpot=30ms,p95", "--json")
    answer = json.loads(out)["answer"]
    assert plan.chosen is not None
    assert answer["concurrency"] == plan.chosen.concurrency and answer["tpot_at_percentile_s"] == plan.chosen.tpot_s
    assert answer["deployment"]["hardware"] == plan.chosen.deployment.hardware.name
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = mansard.nothing_of_the_kind


def test_a_config_file_and_its_quantization_are_read(run: Run, tmp_path: Path) -> None:
    from mansard.specs.model_presets import find_preset

    config = {
        **find_preset("qwen3-8b").config,
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    code, out, _ = run("plan", str(file), "--gpu", "l4", "--json")
    assert code == 0 and json.loads(out)["answer"]["deployment"]["weights"] == "int4-g128"


def test_hardware_and_prices_of_ones_own(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[My-Card-48GB]\nvendor = "NVIDIA"\narchitecture = "Ada"\nmemory_gib = 48\nmemory_gb_per_s = 864\n'
                    "tflops = { bf16 = 181, fp8 = 362 }\n")  # fmt: skip
    code, out, _ = run(
        "plan", "llama-3.1-8b", "--gpu", "my-card-48gb", "--hardware-file", str(file), "--price", "0.5", "--json"
    )
    answer = json.loads(out)["answer"]
    assert code == 0 and answer["deployment"]["usd_per_hour"] == 0.5
    assert run("gpus", "my-card", "--hardware-file", str(file))[0] == 0


def test_gpus_lists_the_catalogue(run: Run) -> None:
    code, out, _ = run("gpus", "--json")
    entries = json.loads(out)
    assert code == 0 and len(entries) == len(catalogue()) == 84
    a10 = next(e for e in entries if e["name"] == "A10-24GB")
    assert a10["ridge_flops_per_byte"] == pytest.approx(208.3, abs=0.05)
    code, out, _ = run("gpus", "hopper", "sxm")
    assert code == 0 and "H100-SXM-80GB" in out and "A100" not in out


def test_explain_shows_every_op(run: Run) -> None:
    code, out, _ = run("explain", "qwen3-30b-a3b", "--gpu", "h100", "--batch", "32")
    assert code == 0 and "experts" in out and "host overhead" in out and re.search(r"\d+\.\d%", out)
    code, out, _ = run("explain", "qwen3-30b-a3b", "--gpu", "h100:2", "--batch", "32", "--json")
    document = json.loads(out)
    prefill, decode = document["phases"]
    assert code == 0 and any(op["network_bytes"] > 0 for op in decode["ops"])
    assert sum(op["share"] for op in prefill["ops"]) == pytest.approx(1.0)


def test_planning_needs_neither_torch_nor_a_server() -> None:
    code = (
        "import sys\nimport mansard\nmansard.plan('llama-3.1-8b', gpu='h100')\n"
        "print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    path = str(Path(mansard.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    loaded = set(done.stdout.split())
    assert not {"torch", "transformers", "tokenizers", "fastapi", "pydantic", "rich", "jinja2"} & loaded


def test_the_quick_way_knows_the_commands_own_parameters() -> None:
    from mansard.commands.plan import plan
    from mansard.commands.quick import FLAGS, OPTIONS
    from mansard.planning.run import settings

    command = inspect.signature(plan, eval_str=True).parameters
    unset = mansard.planning.ask.ask("llama-3.1-8b")
    told = {
        n: p.default for n, p in command.items() if n not in ("model", "detail", "as_json", "as_csv", "html", "png")
    }
    assert mansard.planning.ask.ask("llama-3.1-8b", **settings(told)) == unset, (
        "a default of the command is not the default"
    )
    for option, (name, kind, least) in OPTIONS.items():
        hint = command[name].annotation
        assert option == f"--{name.replace('_', '-')}" and kind in (get_args(get_args(hint)[0]) or (get_args(hint)[0],))
        assert get_args(hint)[1].min == least
    assert {*FLAGS.values()} | {n for n, _, _ in OPTIONS.values()} | {"model", "html", "png"} == set(command)


def test_the_quick_way_leaves_the_unusual_to_the_command_line(run: Run) -> None:
    from mansard.commands.quick import planner, read

    assert read(["llama-3.1-8b", "--gpu=h100:8", "--rate", "2.5", "--json"]) == {
        "model": "llama-3.1-8b", "gpu": "h100:8", "rate": 2.5, "as_json": True
    }  # fmt: skip
    for words in (
        ["--help"],
        [],
        ["m", "--tp", "0"],
        ["m", "--rate", "x"],
        ["m", "n"],
        ["m", "--gpu"],
        ["m", "--nope"],
    ):
        assert read(words) is None
    assert planner(["serve", "m"]) is None
    for words in (("--tp", "0"), ("--rate", "x"), ("--nope",), ("--gpu",)):
        code, _, err = run("plan", "llama-3.1-8b", *words)
        assert code == 2 and words[0] in err


def test_both_ways_print_the_same(run: Run, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from mansard.cli import build_app

    words = ["plan", "llama-3.1-8b", "--gpu", "h100", "--json"]
    full = CliRunner().invoke(build_app(words), words)
    assert full.exit_code == 0 and full.stdout == run(*words)[1]
    assert CliRunner().invoke(build_app(words), ["plan", "llama-3.1-405b", "--gpu", "h100:2"]).exit_code == 1
    page = tmp_path / "plan.html"
    assert run("plan", "llama-3.1-8b", "--gpu", "h100", "--html", str(page))[0] == 0 and page.stat().st_size > 20_000


def test_this_machine_is_planned_by_what_was_measured(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mansard.cost.calibrate import HostCalibration, save_calibration

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, _, err = run("plan", "smollm2-135m", "--gpu", "this")
    assert code == 2 and "mansard roof" in err
    save_calibration(HostCalibration("box", 2, {1: 1e10, 2: 2e10}, {"fp32": 1e11, "int8": 4e11}, 16 << 30))
    code, out, _ = run("plan", "smollm2-135m", "--gpu", "this", "--weights", "Q4_0", "--json")
    document = json.loads(out)
    assert code == 0 and document["calibrated"] and document["answer"]["deployment"]["engine"] == "mansard"
    alone = document["batch_table"][0]
    weights = sum(v for k, v in document["ledger"]["weights_by_part_bytes"].items() if k != "norms")
    assert alone["tpot_s"] > weights / 2e10, "no step is faster than reading its weights once"


def test_accepted_drafts_shorten_tokens() -> None:
    plain = mansard.plan("llama-3.1-70b", gpu="h100:4")
    drafted = mansard.plan("llama-3.1-70b", gpu="h100:4", speculation="4:0.7")
    # (1 - 0.7^5) / 0.3 = 2.77 tokens a step at 5 tokens' compute: less than 2.77 times as fast.
    assert 0.36 < drafted.table[0].tpot_s / plain.table[0].tpot_s < 0.6
    for wrong in ("4", "0:0.7", "4:1.5", "x:y"):
        with pytest.raises(ValueError, match="DRAFTS:ACCEPTANCE"):
            mansard.plan("llama-3.1-8b", gpu="h100", speculation=wrong)
    with pytest.raises(ValueError, match="nonsense"):
        mansard.plan("llama-3.1-8b", nonsense=1)  # type: ignore[call-arg]


def test_a_gguf_file_is_planned_in_its_own_format(run: Run, tmp_path: Path) -> None:
    import numpy as np

    from mansard.loading.gguf_writer import write_gguf
    from mansard.loading.stored import StoredTensor
    from mansard.planning.ask import ask
    from mansard.specs.precision import number_format

    spec = mansard.planning.ask.load_model_spec("smollm2-135m")
    sizes = {
        "block_count": spec.num_hidden_layers,
        "context_length": 8192,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_attention_heads,
        "attention.head_count_kv": spec.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": spec.vocab_size,
    }
    metadata = {"general.architecture": "llama", **{f"llama.{key}": value for key, value in sizes.items()}}
    stored = number_format("Q8_0")
    data = np.zeros(stored.num_bytes(64 * 64), np.uint8)
    file = write_gguf(tmp_path / "small.gguf", metadata, [StoredTensor("token_embd.weight", stored, (64, 64), data)])
    question = ask(str(file), gpu="rtx4090")
    assert question.weights == ("Q8_0",) and question.spec.hidden_size == spec.hidden_size
    code, out, _ = run("plan", str(file), "--gpu", "rtx4090", "--json")
    document = json.loads(out)
    assert code == 0 and document["answer"]["deployment"]["engine"] == "llama.cpp"
    assert str(file) in document["launch"][0]["command"]
