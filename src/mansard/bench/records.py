"""RequestRecord: what was seen of one request, before anything is computed from it.

The bench client, the in-process driver and a simulator fill the same record; `mansard.bench.metrics` reads it. Times
are seconds of one clock, whatever its origin, so that a virtual clock serves as well as a real one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Phase(StrEnum):
    """Which part of a run a request belongs to; only `MEASURED` counts in the headline."""

    WARMUP = "warmup"
    OPENING = "opening"  # the wave that a closed loop releases at once
    MEASURED = "measured"


class Cause(StrEnum):
    """Why a request failed; an HTTP status is written `http 503`."""

    REFUSED = "connection refused"
    BROKEN = "connection broken"
    TIMEOUT = "timeout"
    TRUNCATED = "stream truncated"
    MALFORMED = "malformed answer"
    SERVER_ERROR = "error in the stream"
    EMPTY = "no tokens"
    CANCELLED = "cancelled by the run"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One frame that carried output: when it came and how much was in it.

    `num_tokens` is None where the server does not say; `num_bytes` is the UTF-8 length of its text.
    """

    time_s: float
    num_tokens: int | None = None
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request from its scheduled send to the end of its stream.

    scheduled_s: when the load said it should go; sent_s: when it went; first_byte_s: the first byte of a body, which
    may carry no token; chunks: frames with output, in order; closed_s: when the stream ended, after trailing frames.
    Token counts are the server's (`usage`). `num_retokenized` is the client's own count, a diagnostic.
    """

    index: int
    scheduled_s: float
    sent_s: float | None = None
    first_byte_s: float | None = None
    chunks: tuple[Chunk, ...] = ()
    closed_s: float | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_output_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None  # a Cause or `http NNN`; None: it succeeded
    message: str = ""  # what the server said
    target_prompt_tokens: int | None = None
    target_output_tokens: int | None = None
    num_retokenized: int | None = None
    num_retries: int = 0
    phase: Phase = Phase.MEASURED

    @property
    def succeeded(self) -> bool:
        """Say whether it ended without an error; a 200 without tokens is none."""
        return self.error is None and bool(self.chunks)

    @property
    def cause(self) -> str | None:
        """Return why it failed, `no tokens` for an empty success, or None."""
        if self.error is not None:
            return self.error
        return None if self.chunks else Cause.EMPTY.value

    @property
    def was_cancelled(self) -> bool:
        """Say whether the run itself stopped it: then it says nothing about the server."""
        return self.error == Cause.CANCELLED.value

    @property
    def end_s(self) -> float:
        """Return the last moment that was seen of it."""
        times = [self.scheduled_s, self.sent_s, self.first_byte_s, self.closed_s]
        times += [self.chunks[-1].time_s] if self.chunks else []
        return max(t for t in times if t is not None)

    def in_phase(self, phase: Phase) -> RequestRecord:
        """Return the same record in another phase."""
        return replace(self, phase=phase)
