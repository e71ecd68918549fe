"""The process that a chat template runs in, seen from our side: start it, ask it, end it.

See chat_template.py for why there is one and template_worker.py for what it does.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

HEADER = struct.Struct(">I")
START_LIMIT_S = 30.0  # a new process imports jinja2; on a busy machine that takes a while
# What the process may know of ours: enough to find its libraries, nothing secret.
ENVIRONMENT = (
    "PATH",
    "HOME",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "TZ",
    "SYSTEMROOT",
)


class TemplateProcess:
    """One template process and the pipe to it."""

    def __init__(self, max_memory_bytes: int) -> None:
        script = Path(__file__).with_name("template_worker.py")
        environ = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(  # -P: the script's own folder holds no libraries
            [sys.executable, "-P", str(script), str(max_memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,  # an interrupt from the keyboard is for us, not for it
        )
        self._ready = False
        self._finalizer = weakref.finalize(self, _end, self._process)

    @property
    def alive(self) -> bool:
        """Tell whether the process still runs; the system may have ended it meanwhile."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        self._finalizer()

    def ask(self, request: bytes, time_limit_s: float, max_bytes: int) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises: TimeoutError after the limit; EOFError when the process has ended; ChildProcessError when it never
        began.
        """
        if not self._ready:
            try:
                self._read(time.monotonic() + START_LIMIT_S, max_bytes)
            except (EOFError, TimeoutError) as error:
                raise ChildProcessError("the chat template's process did not start; is jinja2 installed?") from error
            self._ready = True
        assert self._process.stdin is not None
        deadline = time.monotonic() + time_limit_s
        try:
            self._process.stdin.write(HEADER.pack(len(request)) + request)
            self._process.stdin.flush()
        except OSError as error:
            raise EOFError from error
        return self._read(deadline, max_bytes)

    def _read(self, deadline: float, max_bytes: int) -> dict[str, Any]:
        length = HEADER.unpack(self._read_exactly(HEADER.size, deadline))[0]
        if length > max_bytes:
            raise EOFError
        answer: dict[str, Any] = json.loads(self._read_exactly(length, deadline))
        return answer

    def _read_exactly(self, count: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        data = bytearray()
        while len(data) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError
            piece = os.read(descriptor, count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # what was written last had not been read
                continue
    process.wait()
