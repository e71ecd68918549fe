"""What the endpoints answer, for the OpenAPI document and the tests that hold answers against it.

Answers are built as plain dictionaries, which costs a tenth of a validated model for every streamed token; these
models describe them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]


class Answer(BaseModel):
    """Strict: an answer has no field that is not documented."""

    model_config = ConfigDict(extra="forbid")


class ErrorBody(Answer):
    """What went wrong, and which parameter is at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(Answer):
    """Every answer other than success."""

    error: ErrorBody


class PromptTokensDetails(Answer):
    """How many of the prompt's tokens were found in the prefix cache."""

    cached_tokens: int


class Usage(Answer):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TokenLogprob(Answer):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(TokenLogprob):
    """A token of the output or the prompt with its alternatives."""

    top_logprobs: list[TokenLogprob]


class ChoiceLogprobs(Answer):
    """The log-probabilities of a chat choice."""

    content: list[ChosenLogprob]
    refusal: None


class FunctionCall(Answer):
    """A called function; `arguments` is JSON."""

    name: str
    arguments: str


class MessageToolCall(Answer):
    """One call of a reply."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ReplyMessage(Answer):
    """The model's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[MessageToolCall] | None = None


class ChatChoice(Answer):
    """One of the n replies."""

    index: int
    message: ReplyMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None


class ChatCompletion(Answer):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[ChosenLogprob | None] | None = None


class TextLogprobs(Answer):
    """The log-probabilities of a legacy choice, column by column."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Answer):
    """One continuation."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    prompt_logprobs: list[ChosenLogprob | None] | None = None


class TextCompletion(Answer):
    """The answer of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class EmbeddingItem(Answer):
    """One embedding: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Answer):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Answer):
    """The answer of /v1/embeddings."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


class ResponseAnswer(BaseModel):
    """The answer of /v1/responses; OpenAI's `response` object."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


class ModelCard(Answer):
    """A name that the model answers to."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(Answer):
    """The answer of /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


class TokenizeAnswer(Answer):
    """The answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(Answer):
    """The answer of /detokenize: the text, by both servers' names."""

    prompt: str
    content: str


class Status(Answer):
    """How the server is."""

    status: str


class Version(Answer):
    """The server's version."""

    version: str
