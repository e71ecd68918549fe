"""POST /tokenize and /detokenize, as vLLM's and llama.cpp's servers have them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from mansard.runtime.parameter_error import ParameterError
from mansard.server.bodies import read_body, warnings
from mansard.server.body import Body
from mansard.server.openapi import described
from mansard.server.protocol import Message, TokenIds
from mansard.server.schemas import DetokenizeAnswer, TokenizeAnswer
from mansard.server.service import json_response, service_of
from mansard.server.tool_body import Tool, ToolUse

router = APIRouter()


class TokenizeBody(Body):
    """A text (`prompt`, or `content` as llama.cpp calls it) or a conversation."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: TokenIds = Field(max_length=1 << 20)


@router.post("/tokenize", **described("Turn a text or a conversation into token ids.", TokenizeBody, TokenizeAnswer))
async def tokenize(request: Request) -> Response:
    """Return the token ids of a text or a conversation."""
    service = service_of(request)
    body = await read_body(request, TokenizeBody)
    service.check_model(body.model)
    tokenizer, prompts = service.model.tokenizer, service.engine.prompts

    def work() -> list[int]:
        if body.messages is not None:
            use = ToolUse.of(body.tools, None, service.tool_form)
            messages = use.messages([m.for_template() for m in body.messages], service.template)
            text = prompts.render(messages, body.add_generation_prompt, use.tools, body.chat_template_kwargs)
            return tokenizer.encode(text, add_special_tokens=bool(body.add_special_tokens))
        given = body.content if body.prompt is None else body.prompt
        if given is None:
            raise ParameterError("prompt", "prompt is missing; give prompt, content or messages")
        prompts.check_length(given)
        wants_special = body.add_special if body.add_special_tokens is None else body.add_special_tokens
        if wants_special is None:
            wants_special = body.content is None  # the two servers differ in their defaults
        return tokenizer.encode_prompt(given) if wants_special else tokenizer.encode(given, add_special_tokens=False)

    tokens = await service.engine.in_pool(work)
    answer: dict[str, Any] = {"count": len(tokens), "max_model_len": service.model.max_model_len, "tokens": tokens}
    names = (tokenizer.id_to_token(t) for t in tokens)
    answer["token_strs"] = [name or "" for name in names] if body.return_token_strs else None
    return json_response(answer, warnings(body))


@router.post("/detokenize", **described("Turn token ids into text.", DetokenizeBody, DetokenizeAnswer))
async def detokenize(request: Request) -> Response:
    """Return the text of token ids."""
    service = service_of(request)
    body = await read_body(request, DetokenizeBody)
    service.check_model(body.model)
    limit = service.model.spec.vocab_size
    wrong = next((t for t in body.tokens if not 0 <= t < limit), None)
    if wrong is not None:
        raise ParameterError("tokens", f"tokens holds {wrong}; ids must be at least 0 and at most {limit - 1:,}")
    tokenizer = service.model.tokenizer
    text = await service.engine.in_pool(lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))
    return json_response({"prompt": text, "content": text}, warnings(body))
