"""ConfigReader: typed, bounded reading of a model's configuration, which may come from an untrusted file.

Both config.json and GGUF metadata are maps from names to anything at all. Everything the package takes from
them passes here once, so that a wrong type or an absurd size becomes one clear ValueError and nothing
further down has to check again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MAX_SIZE = 1 << 24  # widest layer, vocabulary or expert count believed
MAX_TOKENS = 1 << 31  # longest context believed


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """A configuration and the defaults of its family; a missing key takes the default, a null one is none."""

    values: Mapping[str, object]
    defaults: Mapping[str, object] = field(default_factory=dict)
    source: str = "config.json"

    def raw(self, key: str) -> object:
        """Return what stands under `key`, or the family's default, or None."""
        return self.values[key] if key in self.values else self.defaults.get(key)

    def has(self, *keys: str) -> str | None:
        """Return the first of `keys` that has a value."""
        return next((key for key in keys if self.raw(key) is not None), None)

    def integer(self, key: str, low: int = 1, high: int = MAX_SIZE) -> int:
        """Return an integer in [low, high]. Raises: ValueError when it is none or out of range."""
        value = self.raw(key)
        if value is None:
            raise ValueError(f"{self.source} lacks {key!r}, which this architecture needs")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{self.source}: {key!r} is {_short(value)}; expected an integer")
        if not low <= value <= high:
            raise ValueError(f"{self.source}: {key!r} is {value}; expected {low} to {high}")
        return value

    def optional_integer(self, key: str, low: int = 1, high: int = MAX_SIZE) -> int | None:
        """Return an integer in [low, high], or None when there is none."""
        return None if self.raw(key) is None else self.integer(key, low, high)

    def number(self, key: str, low: float = 0.0, high: float = 1e12) -> float:
        """Return a finite number in [low, high]. Raises: ValueError when it is missing or out of range."""
        value = self.raw(key)
        if value is None:
            raise ValueError(f"{self.source} lacks {key!r}, which this architecture needs")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{self.source}: {key!r} is {_short(value)}; expected a number")
        if not low <= value <= high:  # also refuses NaN; compares an int of any size
            raise ValueError(f"{self.source}: {key!r} is {_short(value)}; expected {low:g} to {high:g}")
        return float(value)

    def positive(self, key: str) -> float:
        """Return a number above 0."""
        return self.number(key, low=math.ulp(0.0))

    def optional_positive(self, key: str) -> float | None:
        """Return a number above 0, or None when there is none."""
        return None if self.raw(key) is None else self.positive(key)

    def flag(self, key: str) -> bool:
        """Return a truth value; missing is False."""
        value = self.raw(key)
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{self.source}: {key!r} is {_short(value)}; expected true or false")
        return bool(value)

    def text(self, key: str, default: str = "") -> str:
        """Return a string."""
        value = self.raw(key)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{self.source}: {key!r} is {_short(value)}; expected a string")
        return value or default

    def section(self, key: str) -> ConfigReader | None:
        """Return the nested map under `key` as a reader, or None when there is none."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.source}: {key!r} is {_short(value)}; expected an object")
        return ConfigReader(value, {}, f"{self.source} {key}")

    def sequence(self, key: str, max_length: int = MAX_SIZE) -> Sequence[object] | None:
        """Return the list under `key`, or None when there is none."""
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise ValueError(f"{self.source}: {key!r} is {_short(value)}; expected a list")
        if len(value) > max_length:
            raise ValueError(f"{self.source}: {key!r} has {len(value)} entries; at most {max_length} are expected")
        return value

    def numbers(self, key: str, max_length: int = MAX_SIZE) -> tuple[float, ...] | None:
        """Return the list of numbers above 0 under `key`, or None when there is none."""
        values = self.sequence(key, max_length)
        if values is None:
            return None
        items = ConfigReader({str(i): value for i, value in enumerate(values)}, {}, f"{self.source} {key}")
        return tuple(items.positive(str(i)) for i in range(len(values)))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
