"""Slo: how fast is fast enough, as limits at a percentile of requests.

Presets are the latency limits of MLPerf Inference's language-model scenarios, all on the 99th percentile.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from mansard.specs.names import normalize_name, resolve_name

REMEDY = "or write limits, for example ttft=450ms,tpot=40ms,p99"
MLPERF_SOURCE = "mlcommons/inference mlperf.conf@b66003e1 and inference_policies inference_rules.adoc@ac93e89c"
_LIMIT = re.compile(r"(ttft|tpot)\s*=\s*(\d+(?:\.\d+)?)\s*(ms|s)?")
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits that `percentile` % of requests must keep; None leaves a metric free.

    Units: seconds. TTFT is the time to the first token, TPOT the time per output token after it.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    percentile: float = 99.0
    name: str = "given"
    source: str = "given"

    def __post_init__(self) -> None:
        """Check the limits.

        Raises: ValueError for a limit or percentile that nothing can keep.
        """
        for what, limit in (("TTFT", self.ttft_s), ("TPOT", self.tpot_s)):
            if limit is not None and not limit > 0:
                raise ValueError(f"{what} limit {limit} s must be above 0")
        if not 0.0 < self.percentile < 100.0:
            raise ValueError(f"percentile {self.percentile} must lie between 0 and 100")

    def is_met(self, ttft_s: float, tpot_s: float | None) -> bool:
        """Say whether values at the percentile keep the limits; one-token replies have no TPOT."""
        first = self.ttft_s is None or ttft_s <= self.ttft_s
        return first and (self.tpot_s is None or tpot_s is None or tpot_s <= self.tpot_s)


@functools.cache
def slos() -> Mapping[str, Slo]:
    """Return the named service levels in the order of their file."""
    file = resources.files("mansard.specs") / "presets" / "slos.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        name: Slo(entry["ttft_s"], entry["tpot_s"], name=name, source=MLPERF_SOURCE) for name, entry in table.items()
    }


def parse_slo(text: str) -> Slo:
    """Read a preset's name, or limits such as `ttft=450ms,tpot=40ms,p99`; a bare number is in seconds.

    Raises: ValueError with the nearest names or the part that cannot be read.
    """
    if "=" not in text:
        index = {normalize_name(name): name for name in slos()}
        return slos()[resolve_name(text, index, "service level", REMEDY)]
    limits: dict[str, float] = {}
    percentile = 99.0
    for part in (p.strip().lower() for p in text.split(",")):
        if match := _LIMIT.fullmatch(part):
            limits[f"{match[1]}_s"] = float(match[2]) / (1000.0 if match[3] == "ms" else 1.0)
        elif match := _PERCENTILE.fullmatch(part):
            percentile = float(match[1])
        else:
            raise ValueError(f"cannot read {part!r} in service level {text!r} ({REMEDY.removeprefix('or ')})")
    return Slo(limits.get("ttft_s"), limits.get("tpot_s"), percentile, name=text)
