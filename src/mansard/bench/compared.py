"""Compared: a predicted number beside the measured one, with the error between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric predicted and measured, in its own unit; `low` and `high` are the prediction's interval, if any."""

    metric: str
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float:
        """Return predicted ÷ measured − 1."""
        return self.predicted / self.measured - 1.0

    @property
    def is_within(self) -> bool | None:
        """Say whether the measured number lies in the interval; None without one."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        interval = None if self.low is None else [self.low, self.high]
        return {
            "metric": self.metric,
            "predicted": self.predicted,
            "measured": self.measured,
            "error": self.error,
            "interval": interval,
        }
