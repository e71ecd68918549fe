"""How fast one answer came: TTFT, TPOT and tokens per second, measured where the text is printed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stopwatch:
    """Times one answer from the moment it is asked for."""

    start_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    last_s: float = 0.0
    num_tokens: int = 0

    def count(self, num_tokens: int) -> None:
        """Note that tokens have just come."""
        if not num_tokens:
            return
        self.last_s = time.perf_counter()
        if self.first_s is None:
            self.first_s = self.last_s
        self.num_tokens += num_tokens

    @property
    def ttft_s(self) -> float | None:
        """Return the time to the first token; None before it came."""
        return None if self.first_s is None else self.first_s - self.start_s

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time of each token after the first; None with fewer than two."""
        if self.first_s is None or self.num_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_tokens - 1)

    @property
    def output_tokens_per_s(self) -> float | None:
        """Return the output tokens divided by the whole time."""
        return None if self.first_s is None else self.num_tokens / (self.last_s - self.start_s)

    def line(self) -> str:
        """Return the numbers as one line."""
        parts = [f"{self.num_tokens} tokens"]
        if self.ttft_s is not None:
            parts.append(f"TTFT {milliseconds(self.ttft_s)}")
        if self.tpot_s is not None:
            parts.append(f"TPOT {milliseconds(self.tpot_s)} ({1 / self.tpot_s:,.1f} tokens/s)")
        return " · ".join(parts)

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the numbers for JSON."""
        return {
            "num_output_tokens": self.num_tokens,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "output_tokens_per_s": self.output_tokens_per_s,
        }


def milliseconds(seconds: float) -> str:
    """Return a duration in milliseconds, with the digits that matter."""
    value = seconds * 1e3
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms"
