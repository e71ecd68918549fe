"""Server-sent events, read as they arrive.

Bytes go in however the network cut them; whole events' data come out. Comments (keep-alives) and fields other than
`data` carry nothing for us. Format: HTML Standard, section 9.2.
"""

from __future__ import annotations

DONE = b"[DONE]"
MAX_EVENT_BYTES = 64 << 20


class EventReader:
    """Turns a body's bytes into events."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of each event that `data` completes.

        Raises: ValueError for an event that never ends.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES:,} bytes; this is no event stream")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
