"""Mansard: run large language models well, and know how close they are to what the hardware allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mansard.planning.ask import plan as plan

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load `mansard.plan` when it is first asked for: importing the package stays cheap."""
    if name == "plan":
        from mansard.planning.ask import plan

        return plan
    raise AttributeError(f"module 'mansard' has no attribute {name!r}")
