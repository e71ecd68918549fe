"""HTTP/1.1 responses, read as bytes arrive: no socket, no clock.

Only what a client of an API server meets: status line, headers, a body with a length, in chunks or until the close.
Limits keep a hostile or confused server from filling memory. Source: RFC 9112, sections 4 to 7.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MAX_HEAD_BYTES = 64 << 10
MAX_LINE_BYTES = 4 << 10

State = Literal["head", "length", "close", "size", "chunk", "chunk end", "trailer", "done"]


class HttpError(ValueError):
    """The server does not speak HTTP/1.1 as the RFC has it."""


@dataclass(slots=True)
class ResponseReader:
    """Reads one response; after `is_done`, `rest` holds what came behind it."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    state: State = "head"
    rest: bytes = b""
    _left: int = 0

    @property
    def has_head(self) -> bool:
        """Say whether status and headers are known."""
        return self.state != "head"

    @property
    def is_done(self) -> bool:
        """Say whether the whole body has come."""
        return self.state == "done"

    @property
    def keeps_open(self) -> bool:
        """Say whether the connection may carry another request."""
        return self.is_done and not self.rest and self.headers.get("connection", "").lower() != "close"

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body that `data` holds.

        Raises: HttpError when it is no HTTP.
        """
        self.rest += data
        body = bytearray()
        while self._advance(body):
            pass
        return bytes(body)

    def close(self) -> None:
        """Take in that the connection was closed.

        Raises: HttpError when the response is not whole.
        """
        if self.state == "close":
            self.state = "done"
        if self.state != "done":
            raise HttpError("the connection closed in the middle of an answer")

    def _advance(self, body: bytearray) -> bool:
        """Take one step; returns whether another may be possible."""
        match self.state:
            case "head":
                return self._head()
            case "length" | "chunk":
                return self._take(body)
            case "close":
                body += self.rest
                self.rest = b""
                return False
            case "size" | "chunk end" | "trailer":
                return self._line()
        return False

    def _head(self) -> bool:
        end = self.rest.find(b"\r\n\r\n")
        if end < 0:
            if len(self.rest) > MAX_HEAD_BYTES:
                raise HttpError(f"headers of more than {MAX_HEAD_BYTES:,} bytes")
            return False
        lines = self.rest[:end].decode("latin-1").split("\r\n")
        self.rest = self.rest[end + 4 :]
        version, _, tail = lines[0].partition(" ")
        code = tail.partition(" ")[0]
        if not version.startswith("HTTP/1.") or not (code.isdigit() and len(code) == 3):
            raise HttpError(f"{lines[0][:80]!r} is no HTTP/1.1 status line")
        if code.startswith("1"):
            return True  # informational: the answer follows
        self.status = int(code)
        self.headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        self._choose_body()
        return True

    def _choose_body(self) -> None:
        length = self.headers.get("content-length", "")
        if self.status in (204, 304):
            self.state = "done"
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self.state = "size"
        elif length.isdigit():
            self._left, self.state = int(length), "length" if int(length) else "done"
        else:
            self.state = "close"

    def _take(self, body: bytearray) -> bool:
        part, self.rest = self.rest[: self._left], self.rest[self._left :]
        body += part
        self._left -= len(part)
        if self._left:
            return False
        self.state = "done" if self.state == "length" else "chunk end"
        return True

    def _line(self) -> bool:
        end = self.rest.find(b"\r\n")
        if end < 0:
            if len(self.rest) > MAX_LINE_BYTES:
                raise HttpError("a chunk's size line that does not end")
            return False
        line, self.rest = self.rest[:end], self.rest[end + 2 :]
        if self.state == "chunk end":
            self.state = "size"
        elif self.state == "trailer":
            self.state = "trailer" if line else "done"
        else:
            digits = line.partition(b";")[0].strip()
            try:
                self._left = int(digits, 16)
            except ValueError as error:
                raise HttpError(f"{line[:40]!r} is no chunk size") from error
            self.state = "chunk" if self._left else "trailer"
        return True
