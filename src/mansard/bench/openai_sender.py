"""OpenAiSender: one request of a load, asked of an OpenAI-compatible server and turned into a record.

Everything that can go wrong becomes a cause in the record. `ignore_eos` and `min_tokens` hold the output's length on
servers that know them (ours, vLLM, SGLang); whether they were honoured is checked against usage afterwards.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mansard.bench.http_client import Exchange, HttpClient
from mansard.bench.http_response import HttpError
from mansard.bench.load import PlannedRequest
from mansard.bench.prompts import TextTokenizer
from mansard.bench.records import Cause, RequestRecord
from mansard.bench.reply import Reply

Api = Literal["chat", "completions"]
PATHS: dict[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
RETRIED = frozenset({"http 429", "http 503"})
RETRY_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class AskOptions:
    """How requests are asked.

    `extra` is merged into every body. `sends_ids`: raw prompts go as token ids, which no tokenizer can change.
    `num_retries`: how often a 429 or 503 is tried again; the time of all tries counts.
    """

    model: str
    api: Api = "chat"
    timeout_s: float = 600.0
    ignore_eos: bool = True
    temperature: float = 0.0
    num_retries: int = 0
    sends_ids: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


class OpenAiSender:
    """Sends requests to one server; see `Sender`."""

    def __init__(self, client: HttpClient, options: AskOptions, tokenizer: TextTokenizer | None = None) -> None:
        self._client = client
        self._options = options
        self._tokenizer = tokenizer

    def body(self, request: PlannedRequest) -> dict[str, Any]:
        """Return what is asked."""
        options = self._options
        asked: dict[str, Any] = {
            "model": options.model,
            "max_tokens": request.num_output_tokens,
            "temperature": options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.ignore_eos:
            asked |= {"ignore_eos": True, "min_tokens": request.num_output_tokens}
        if options.api == "chat":
            asked["messages"] = [{"role": "user", "content": request.prompt.text}]
        else:
            asked["prompt"] = list(request.prompt.token_ids) if options.sends_ids else request.prompt.text
        return {**asked, **options.extra}

    async def send(self, request: PlannedRequest, scheduled_s: float) -> RequestRecord:
        """Return what was seen of one request, retries included."""
        data = json.dumps(self.body(request), separators=(",", ":")).encode()
        for attempt in range(self._options.num_retries + 1):
            reply = await self._try(request, scheduled_s, data)
            if reply.error not in RETRIED or attempt == self._options.num_retries:
                break
            await asyncio.sleep(RETRY_PAUSE_S * 2**attempt)
        record = reply.record()
        return replace(
            record,
            target_prompt_tokens=request.prompt.num_tokens,
            target_output_tokens=request.num_output_tokens,
            num_retries=attempt,
            num_retokenized=self._retokenized(reply),
        )

    async def _try(self, request: PlannedRequest, scheduled_s: float, data: bytes) -> Reply:
        now = asyncio.get_running_loop().time
        reply = Reply(request.index, scheduled_s, sent_s=now(), keeps_text=self._tokenizer is not None)
        exchange = Exchange(lambda status, headers: reply.begin(status, headers.get("content-type", "")), reply.feed)
        try:
            path = PATHS[self._options.api]
            reply.end(await self._client.send("POST", path, data, exchange, self._options.timeout_s))
        except asyncio.CancelledError:
            reply.fail(Cause.CANCELLED.value, "", now())
        except TimeoutError:
            reply.fail(Cause.TIMEOUT.value, f"no end after {self._options.timeout_s:g} s", now())
        except ConnectionRefusedError as error:
            reply.fail(Cause.REFUSED.value, str(error), now())
        except HttpError as error:
            cause = Cause.TRUNCATED if reply.first_byte_s is not None else Cause.BROKEN
            reply.fail(cause.value, str(error), now())
        except OSError as error:
            reply.fail(Cause.BROKEN.value, str(error), now())
        return reply

    def _retokenized(self, reply: Reply) -> int | None:
        return len(self._tokenizer.encode(reply.text)) if self._tokenizer is not None and reply.text else None
