"""ServerOptions: what a server allows, checked once.

Every limit protects the server or the other clients from one client; the command line sets those that an
operator has reason to change.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.server.tool_forms import FORMS


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """A server's names, keys and limits.

    names: what clients may call the model beside its own name. api_keys: any of them is accepted; none: no key
    is asked for. allowed_origins: of browsers' pages (CORS); none by default. max_queued: requests that may
    wait beside those that run. tool_call_parser: a tool form's name, auto (from the chat template) or none.
    """

    names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 16 << 20
    max_queued: int = 256
    max_sequences_per_request: int = 256  # prompts times n
    body_timeout_s: float = 30.0
    request_timeout_s: float | None = None  # None: as long as it takes
    stall_after_s: float = 120.0
    drain_s: float = 30.0
    keep_alive_s: float = 15.0  # proxies commonly drop a connection that is silent for 30 to 60 s
    allow_cache_reset: bool = False
    tool_call_parser: str = "auto"
    split_reasoning: bool = True

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_sequences_per_request"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("body_timeout_s", "request_timeout_s", "stall_after_s", "keep_alive_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}; it must be above 0")
        if self.max_queued < 0:
            raise ValueError(f"max_queued is {self.max_queued}; it must be at least 0")
        if any(not key.isascii() or not key for key in self.api_keys):
            raise ValueError("an API key is empty or not ASCII; keys travel in an HTTP header")
        known = ("auto", "none", *FORMS)
        if self.tool_call_parser not in known:
            raise ValueError(f"tool_call_parser is {self.tool_call_parser!r}; choose one of {', '.join(known)}")
