"""The access log: one JSON object a line and request, without anything that a client wrote into its body."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

logger = logging.getLogger("mansard.access")


def log_request(request_id: str, method: str, path: str, status: int, duration_s: float, facts: dict[str, Any]) -> None:
    """Log a request that has ended; status 0 and 499: the client left before the answer.

    facts: what the endpoint adds, such as token counts; never texts.
    """
    if logger.isEnabledFor(logging.INFO):
        fields = {"request_id": request_id, "method": method, "path": path[:200], "status": status}
        logger.info("request", extra={"fields": {**fields, "duration_s": round(duration_s, 6), **facts}})


class JsonLines(logging.Formatter):
    """Writes records as JSON objects."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr(level: str) -> None:
    """Send the log to standard error as JSON lines; `level` as logging names it.

    Raises: ValueError for an unknown level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level is {level!r}; choose debug, info, warning or error")
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonLines())
    logging.basicConfig(level=number, handlers=[output], force=True)
    for chatty in ("httpx", "asyncio"):
        logging.getLogger(chatty).setLevel(max(number, logging.WARNING))
