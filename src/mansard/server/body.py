"""Body: what every request body shares.

Types are strict ("temperature": "hot" is an error, and so is "0.7"), while unknown fields are accepted and
reported, because harmless extras must not break a client and a misspelt field must not pass unseen.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """Strict types, finite numbers, extras kept for the report."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    def unknown_fields(self, prefix: str = "") -> Iterator[str]:
        """Yield the path of each field that the model does not know."""
        for name in self.model_extra or {}:
            yield f"{prefix}{name}"
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Body):
                yield from value.unknown_fields(f"{prefix}{name}.")
            elif isinstance(value, list):
                for i, item in enumerate(value):
                    if isinstance(item, Body):
                        yield from item.unknown_fields(f"{prefix}{name}[{i}].")
