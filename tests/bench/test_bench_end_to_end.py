"""The commands against a real server on loopback around a toy model, and against the engine itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_model import ToyExecutor
from toy_server import ToyServer, toy_server

from mansard.bench.choice import Question, choice_logprob, score_choices
from mansard.bench.load import LoadPlan
from mansard.bench.load_arguments import LoadArguments
from mansard.bench.openai_sender import AskOptions
from mansard.bench.prompts import WordTokenizer
from mansard.bench.records import Cause, Phase
from mansard.bench.result import BenchResult, read_result
from mansard.bench.serve import ServeRun, ask_server, bench_serve
from mansard.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


@pytest.fixture(scope="module")
def server() -> Iterator[ToyServer]:
    with toy_server(ToyExecutor()) as started:
        yield started


def bench(url: str, plan: LoadPlan, **ask: Any) -> BenchResult:
    return asyncio.run(bench_serve(ServeRun(url, plan, AskOptions("toy", **ask), {"name": "x"})))


def plan(**fields: Any) -> LoadPlan:
    return LoadArguments(**{"workload": "8/6", "num_requests": 12, "num_warmup": 2, **fields}).plan(WordTokenizer())[0]


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("driven", [{"max_concurrency": 3}, {"rate_per_s": 200.0}])
def test_every_request_is_answered_and_counted(server: ToyServer, api: str, driven: dict[str, Any]) -> None:
    found = bench(server.url, plan(**driven), api=api)
    summary = found.summary
    assert summary is not None
    assert summary.success.num_succeeded == 12 and summary.success.rate == 1.0
    assert sum(r.phase is Phase.WARMUP for r in found.records) == 2
    assert all(r.num_output_tokens == 6 and r.finish_reason == "length" for r in found.records)
    assert summary.num_output_tokens == 72 and summary.counts_estimated == 0
    assert found.extra["prefix_cache"]["source"].startswith("mansard:prefix_cache_hits")
    energy = found.extra["energy"]
    assert (energy["joules"] is None) == energy["source"].startswith("not readable")
    assert found.extra["preemptions"] == 0 and found.extra["client"]["cpu_s_per_request"] > 0


def test_the_same_nonce_twice_is_flagged_and_a_fresh_one_is_not(server: ToyServer) -> None:
    again = {"workload": "40/4", "nonce": 77, "num_warmup": 0}
    bench(server.url, plan(**again), api="completions")
    warm = bench(server.url, plan(**again), api="completions")
    fresh = bench(server.url, plan(**{**again, "nonce": 78}), api="completions")
    assert any("warm cache" in w for w in warm.warnings)
    assert not any("warm cache" in w for w in fresh.warnings)
    assert fresh.extra["prefix_cache"]["rate"] < 0.01 < warm.extra["prefix_cache"]["rate"]


def test_refusals_and_dead_servers_are_causes(server: ToyServer) -> None:
    refused = bench(server.url, plan(), api="completions", extra={"temperature": "hot"})
    assert refused.summary is not None
    assert refused.summary.success.causes == {"http 400": 12} and "temperature" in refused.records[0].message
    late = bench(server.url, plan(), api="completions", timeout_s=1e-9)
    assert late.summary is not None and late.summary.success.causes == {Cause.TIMEOUT.value: 12}
    dead = bench("http://127.0.0.1:9", plan())
    assert dead.summary is not None and dead.summary.success.causes == {Cause.REFUSED.value: 12}
    with pytest.raises(ValueError, match="no server answers"):
        asyncio.run(ask_server("http://127.0.0.1:9"))


def test_what_a_server_says_of_itself(server: ToyServer) -> None:
    info = asyncio.run(ask_server(server.url + "/v1"))
    assert set(info.models) == {"alias", "toy"} and info.max_model_len == 512


def test_bench_serve_writes_its_files_and_holds_its_limits(server: ToyServer, run: Run, tmp_path: Path) -> None:
    json_file, csv_file, page = tmp_path / "a.json", tmp_path / "a.csv", tmp_path / "a.html"
    common = ("bench", "serve", server.url, "--workload", "8/6", "-n", "10", "-c", "2", "--tokenizer", "words")
    files = ("--json", str(json_file), "--csv", str(csv_file), "--html", str(page))
    code, out, err = run(*common, *files, "--slo", "ttft=10s,tpot=10s", "--min-success", "0.9", "--max-e2e-p99", "60s")
    assert code == 0, err
    assert "100.0% (10 of 10)" in out and "goodput" in out and "TTFT" in out
    assert err.count("holds") == 2
    saved = read_result(json_file)
    assert saved["workload"]["nonce"] > 0 and len(saved["requests"]) == 12
    assert len(csv_file.read_text().splitlines()) == 13 and page.read_text().startswith("<!doctype html>")
    code, _, err = run(*common, "--max-ttft-p99", "1us")
    assert code == 1 and "BROKEN" in err
    other = tmp_path / "b.json"
    run(*common, "--json", str(other))
    code, out, _ = run("bench", "compare", str(json_file), str(other))
    assert code == 0 and "tpot mean" in out
    code, _, err = run("bench", "compare", str(json_file), str(page))
    assert code == 2 and err.startswith("mansard: ")


def test_bench_sweep_raises_the_load_and_writes_its_picture(server: ToyServer, run: Run, tmp_path: Path) -> None:
    page, saved = tmp_path / "s.html", tmp_path / "s.json"
    code, out, _ = run(
        *("bench", "sweep", server.url, "--workload", "8/4", "-n", "4", "--levels", "1,2", "--tokenizer", "words"),
        *("--no-until-saturated", "--html", str(page), "--json", str(saved)),
    )
    assert code == 0 and "at once" in out
    assert [level["level"] for level in json.loads(saved.read_text())["levels"]] == [1.0, 2.0]
    assert page.read_text().count("<svg") == 4
    assert run("bench", "sweep", server.url, "--levels", "1.5", "--tokenizer", "words")[0] == 2
    assert run("bench", "sweep", server.url, "--by", "day")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("http://127.0.0.1:9",), "no server"),
        (("ftp://x",), "address"),
        (("{url}", "--api", "images"), "chat"),
        (("{url}", "--tokenizer", "no-such-model"), "no-such-model"),
        (("{url}", "--tokenizer", "words", "--rate", "-1"), "rate"),
        (("{url}", "--tokenizer", "words", "--ramp", "1:2"), "START:END:SECONDS"),
        (("{url}", "--tokenizer", "words", "--ramp", "1:2:3", "--rate", "2"), "one of them"),
        (("{url}", "--tokenizer", "words", "--workload", "nonsense"), "nonsense"),
    ],
)
def test_what_a_person_can_mend_is_one_line(server: ToyServer, run: Run, arguments: tuple[str, ...], word: str) -> None:
    code, _, err = run("bench", "serve", *(a.format(url=server.url) for a in arguments))
    assert code == 2 and err.splitlines()[-1].startswith("mansard: ") and word in err


def test_multiple_choice_by_echoed_log_probabilities(server: ToyServer) -> None:
    """The toy's next token depends on the one before, so the right choice can be read off its table."""
    table = server.executor.table
    best = [int(b) for b in table[ord("q"), 97:123].argsort()]
    good, bad = chr(97 + best[-1]), chr(97 + best[0])
    questions = [Question("abq", (bad, good), 1), Question("xyq", (good, bad), 0), Question("q", (good, bad), 1)]
    found = asyncio.run(score_choices(server.url, "toy", questions))
    assert found.num_questions == 3
    assert found.accuracy == found.normalized_accuracy == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="404"):
        asyncio.run(score_choices(server.url, "nobody", questions))


def test_only_the_choices_own_tokens_count() -> None:
    logprobs = {"text_offset": [0, 3, 7], "token_logprobs": [None, -1.0, -2.0]}
    assert choice_logprob(logprobs, 7) == -2.0 and choice_logprob(logprobs, 3) == -3.0
    with pytest.raises(ValueError, match="echo"):
        choice_logprob(logprobs, 8)
