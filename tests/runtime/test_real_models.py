"""The two real models against `transformers` reading the same files.

`tests/data/transformers_*.json` holds its greedy continuations, recorded by `tests/record_transformers.py` (command,
versions and the file's SHA-256 inside) with each token's runners-up and how far their logits lie behind. A prompt and
its recorded continuation run as one prefill: the first token whose logits prefer another is where greedy decoding
would first differ, since chunked and whole runs have the same bits (`test_native_laws`).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_models import part

from mansard.core.types import SamplingParams, StepPlan
from mansard.loading.model_files import locate
from mansard.loading.packaged import PACKAGED_MODELS, packaged_gguf
from mansard.loading.weights import Weights
from mansard.runtime.executor import NativeExecutor
from mansard.runtime.loader import build, read_spec
from mansard.runtime.model import EngineOptions
from mansard.runtime.sampler import Sampler
from mansard.specs.sizes import num_parameters

RECORDS = {"smollm2": "transformers_smollm2.json", "gemma3-270m": "transformers_gemma3.json"}
CHUNK, MAX_LEN = 512, 1024
# int8 activations move SmolLM2's and Gemma's logits by 0.13 in the root mean square (measured against float32 over
# the recorded continuations), so a difference of two logits by 0.13 · √2; three of these are a near-tie.
INT8_RMS = 0.15
NEAR_TIE = 3 * 2**0.5 * INT8_RMS


@cache
def record(name: str) -> dict[str, Any]:
    path = Path(__file__).parents[1] / "data" / RECORDS[name]
    return json.loads(path.read_text(encoding="utf-8"))


def installed(name: str) -> str:
    """Return `name`, or skip the test when the model's packages are not installed."""
    try:
        packaged_gguf(name)
    except ValueError as error:
        pytest.skip(str(error))
    return name


@cache
def executor(name: str, activations: str, kv_dtype: str) -> NativeExecutor:
    """Return the model without its tokenizer, which for Gemma takes longer than the weights."""
    files = locate(installed(name))
    weights = Weights.open(files.root)
    spec = read_spec(files, weights)
    options = EngineOptions(
        max_model_len=MAX_LEN,
        num_blocks=MAX_LEN // 16,
        max_num_batched_tokens=CHUNK,
        num_threads=2,
        activations=activations,
        kv_dtype=kv_dtype,
    )
    return NativeExecutor(build(spec, weights, options).native, spec.vocab_size, Sampler(spec.vocab_size))


def forced(run: NativeExecutor, entry: dict[str, Any]) -> np.ndarray:
    """Return the logits that would choose each token of a recorded continuation: [outputs, V]."""
    prompt, output = entry["prompt_token_ids"], entry["output_token_ids"]
    tokens, first = [*prompt, *output[:-1]], len(prompt) - 1
    rows = []
    for start in range(0, len(tokens), CHUNK):
        ids = tokens[start : start + CHUNK]
        wanted = max(0, start + len(ids) - max(start, first))
        rows.append(run.compute(StepPlan((part("x", start, ids, range(MAX_LEN // 16), wanted),)))[0])
    return np.concatenate(rows)


def first_difference(logits: np.ndarray, entry: dict[str, Any]) -> tuple[int, float] | None:
    """Return where greedy decoding first differs, and how far behind the record's choice ours was there."""
    chosen = logits.argmax(axis=1)
    differs = np.flatnonzero(chosen != entry["output_token_ids"])
    if not len(differs):
        return None
    at = int(differs[0])
    gaps = dict(map(tuple, entry["runners_up"][at]))
    return at, gaps.get(int(chosen[at]), float("inf"))


@pytest.mark.parametrize("name", RECORDS)
def test_the_record_is_of_the_installed_file(name: str) -> None:
    path = packaged_gguf(installed(name))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == record(name)["sha256"]
    assert len(record("smollm2")["continuations"]) == 20
    assert all(len(e["output_token_ids"]) == 64 for e in record("smollm2")["continuations"])


def test_smollm2_greedy_output_equals_transformers() -> None:
    """20 prompts for 64 tokens, as anyone would ask for them, with float32 activations and KV cache."""
    from mansard.runtime.llm import LLM

    llm = LLM(installed("smollm2"), activations="float32", kv_dtype="f32", num_blocks=320, num_threads=2)
    entries = record("smollm2")["continuations"]
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    outputs = llm.generate([e["prompt"] for e in entries], params)
    for entry, output in zip(entries, outputs, strict=True):
        assert list(output.prompt_token_ids) == entry["prompt_token_ids"]
        assert list(output.outputs[0].token_ids) == entry["output_token_ids"], entry["prompt"]


@pytest.mark.parametrize("index", range(5))
def test_gemma_greedy_output_equals_transformers(index: int) -> None:
    """The last prompt is longer than the window of 512 tokens that five layers of six look back on."""
    entry = record("gemma3-270m")["continuations"][index]
    assert index < 4 or len(entry["prompt_token_ids"]) > 512
    # float32 is slow over long prompts; two planes of int8 (int16) are exact to a thousandth of a logit.
    activations = "int16" if index == 4 else "float32"
    assert first_difference(forced(executor("gemma3-270m", activations, "f32"), entry), entry) is None


def test_gemma_answers_sensibly() -> None:
    """What the model says, which the test above found to be what `transformers` says."""
    outputs = [e["output"] for e in record("gemma3-270m")["continuations"]]
    assert "largest city in France" in outputs[0]  # a base model of 270 million parameters: fluent, if not right
    assert "Au" in outputs[1]
    assert "ouest" in outputs[2]
    assert "% 2 == 0" in outputs[3]
    assert outputs[4].startswith(" a box of apples that costs 16 coins. Item 41 on the list is")


@pytest.mark.parametrize("name", RECORDS)
def test_default_settings_differ_at_near_ties_alone(name: str) -> None:
    """int8 activations and the f16 cache: where greedy output first differs, the two tokens were all but equal."""
    run = executor(name, "int8", "auto")
    agreeing, compared = 0, 0
    for entry in record(name)["continuations"]:
        logits = forced(run, entry)
        difference = first_difference(logits, entry)
        assert difference is None or difference[1] <= NEAR_TIE, (entry["prompt"], difference)
        agreeing += int((logits.argmax(axis=1) == entry["output_token_ids"]).sum())
        compared += len(logits)
    assert agreeing / compared > 0.95  # measured: 0.97 on both


@pytest.mark.parametrize("name", RECORDS)
def test_int8_activations_move_logits_by_what_is_said(name: str) -> None:
    entry = record(name)["continuations"][0]
    exact = forced(executor(name, "int16", "f32"), entry)
    moved = forced(executor(name, "int8", "auto"), entry) - exact
    moved -= moved.mean(axis=1, keepdims=True)
    assert 0.0 < np.sqrt(np.mean(np.square(moved))) < INT8_RMS


def test_smollm2_logits_equal_transformers_live() -> None:
    """The record is genuine, and logits agree far closer than their order: float32 sums of 576 to 1,536 terms."""
    pytest.importorskip("accelerate")
    import torch
    from record_transformers import transformers_model

    torch.set_num_threads(1)
    model = transformers_model(packaged_gguf(installed("smollm2")))
    for entry in record("smollm2")["continuations"][:1]:
        tokens = [*entry["prompt_token_ids"], *entry["output_token_ids"][:-1]]
        with torch.no_grad():
            expected = model(torch.tensor([tokens])).logits[0, len(entry["prompt_token_ids"]) - 1 :].numpy()
        assert expected.argmax(axis=1).tolist() == entry["output_token_ids"]
        np.testing.assert_allclose(forced(executor("smollm2", "float32", "f32"), entry), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", RECORDS)
def test_parameter_count_is_what_the_file_holds(name: str) -> None:
    files = locate(installed(name))
    weights = Weights.open(files.root)
    assert num_parameters(read_spec(files, weights)) == weights.num_parameters


PEAK = """
import resource, sys
from pathlib import Path
import mansard.runtime.loader as loader
from mansard import _native
from mansard.loading.weights import Weights
from mansard.runtime.model import EngineOptions
files = loader.locate(sys.argv[1])
weights = Weights.open(files.root)
spec = loader.read_spec(files, weights)
before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
built = loader.build(spec, weights, EngineOptions(num_blocks=64, max_model_len=1024, num_threads=2))
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
print(peak - before, built.native.weight_bytes)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("name", RECORDS)
def test_loading_needs_little_more_than_the_weights(name: str) -> None:
    """Peak resident memory while weights are packed ≤ 1.3 × the packed weights.

    Counted: everything that becomes resident after the interpreter, the imports and the file's header (its metadata
    included), so file pages, packed weights, buffers and rope tables; in a process of its own. The KV cache has no
    pages before it is used. The tokenizer is not counted. (The process's own high-water mark, VmHWM: getrusage's
    would begin with the parent's.)
    """
    assert name in PACKAGED_MODELS
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path[:] = {sys.path!r}\n{PEAK}", installed(name)],
        check=True,
        capture_output=True,
        text=True,
    )
    extra, weight_bytes = map(int, done.stdout.split())
    assert extra <= 1.3 * weight_bytes, (extra, weight_bytes)
