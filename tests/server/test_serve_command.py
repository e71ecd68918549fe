"""`mansard serve` itself, around a toy: its options reach the server, TLS works, a run is recorded."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SCRIPT = """
import sys
from toy_model import toy_model
import mansard.runtime.model
mansard.runtime.model.load = lambda model, options: toy_model(num_blocks=options.num_blocks or 256)
from mansard.cli import main
main(sys.argv[1:])
"""


@contextmanager
def served(*options: str, **environment: str) -> Iterator[str]:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "serve", "toy", "--port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("serving on "))
        yield line.split()[2].removesuffix("/v1")
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(timeout=20) == 0, rest
    finally:
        process.kill()
        process.communicate()


def post(url: str, path: str, context: ssl.SSLContext | None = None, **body: object) -> dict[str, object]:
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sesame"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, context=context, timeout=20) as answer:
        return dict(json.loads(answer.read()))


def test_a_run_is_recorded_without_its_texts(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    with served("--record", str(log), "--log-level", "info", MANSARD_API_KEY="sesame") as url:
        for _ in range(2):
            post(url, "/v1/completions", prompt="a secret prompt, longer than a block", max_tokens=4, temperature=0)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url + "/v1/models", timeout=20)
    text = log.read_text(encoding="utf-8")
    events = [json.loads(line) for line in text.splitlines()]
    assert "secret" not in text
    kinds = [event["event"] for event in events]
    assert kinds[0] == "run" and kinds.count("add") == kinds.count("end") == 2 and kinds.count("step") == 8
    first, second = (event["blocks"] for event in events if event["event"] == "add")
    assert first == second != []


def test_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("openssl is not installed")
    with served("--tls-certificate", str(certificate), "--tls-key", str(key)) as url:
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=str(certificate))
        answer = post(url, "/tokenize", context, prompt="ab")
        assert answer["tokens"] == [97, 98]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tls-key", "x.pem"), "--tls-certificate"),
        (("--tls-certificate", "/nowhere/x.pem"), "No such file"),
        (("--request-timeout", "0"), "request_timeout_s"),
        (("--max-body", "much"), "much"),
        (("--tool-call-parser", "xml"), "hermes"),
        (("--log-level", "loud"), "loud"),
        (("--record", "/nowhere/run.jsonl"), "/nowhere/run.jsonl"),
    ],
)
def test_wrong_options_are_one_line(options: tuple[str, ...], words: str) -> None:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "serve", "toy", "--port", "0", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=60,
    )
    assert done.returncode == 2 and words in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) == 1
