"""The JSON of chat and legacy completions: one pydantic model per body, and how it becomes `SamplingParams`.

Names are OpenAI's, and vLLM's for what OpenAI does not have.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictStr

from mansard.core.types import SamplingParams
from mansard.runtime.parameter_error import ParameterError
from mansard.server.body import Body
from mansard.server.structure_body import StructuredBody
from mansard.server.tool_body import Tool, ToolCall, ToolChoice

StopStrings = StrictStr | list[StrictStr] | None
TokenIds = list[int]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]

MAX_LOGPROBS = 20  # OpenAI's limit for top_logprobs
MAX_STOP_STRINGS = 32
NOT_IGNORABLE = frozenset(  # unknown fields that would change the output: ignoring them would be a wrong answer
    {
        *("allowed_token_ids", "bad_words", "use_beam_search", "prompt_embeds", "logits_processors"),
        *("functions", "function_call", "audio", "structural_tag"),
    }
)
MAX_STOP_CHARACTERS = 1024


class StreamOptions(Body):
    """Whether the last frame of a stream carries the token counts."""

    include_usage: bool = False


class TextPart(Body):
    """One part of a message's content; this server takes text alone."""

    type: Literal["text"]
    text: str


class Message(Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    refusal: str | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates know it: OpenAI's `developer` is their `system`, and the arguments
        of tool calls are values, not texts.
        """
        message = self.model_dump(exclude_none=True)
        if self.role == "developer":
            message["role"] = "system"
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        message.setdefault("content", "")
        return message


class GenerationBody(StructuredBody):
    """What chat and legacy completions have in common."""

    model: str | None = None
    frequency_penalty: float | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    min_p: float | None = None
    min_tokens: int = 0
    n: int | None = None
    presence_penalty: float | None = None
    priority: Priority = 0
    prompt_logprobs: int | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    repetition_penalty: float | None = None
    seed: Seed | None = None
    skip_special_tokens: bool = True
    stop: StopStrings = None
    stop_token_ids: TokenIds | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    user: str | None = None

    @property
    def wants_usage_frame(self) -> bool:
        """Say whether the stream ends with a frame of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def num_choices(self) -> int:
        """Return how many continuations of each prompt are wanted."""
        return _or(self.n, 1)  # type: ignore[no-any-return]

    def check(self) -> None:
        """Raise ParameterError for what is well-typed but cannot be served."""
        for name, value in (self.model_extra or {}).items():
            if name in NOT_IGNORABLE and value:
                raise ParameterError(name, f"{name} is not supported by this server", "unsupported_value")
        if self.stream_options is not None and not self.stream:
            raise ParameterError("stream_options", "stream_options is only allowed when stream is true")
        if self.prompt_logprobs is not None and self.stream:
            raise ParameterError("prompt_logprobs", "prompt_logprobs is not available in a stream")
        self._check_stop()

    def stop_strings(self) -> tuple[str, ...]:
        """Return the stop strings, however they were given."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def _check_stop(self) -> None:
        stop = self.stop_strings()
        if len(stop) > MAX_STOP_STRINGS:
            raise ParameterError("stop", f"stop has {len(stop)} strings; at most {MAX_STOP_STRINGS} are allowed")
        longest = max(map(len, stop), default=0)
        if longest > MAX_STOP_CHARACTERS:
            limit = f"at most {MAX_STOP_CHARACTERS:,} are allowed"
            raise ParameterError("stop", f"stop has a string of {longest:,} characters; {limit}")

    def common_params(self) -> dict[str, Any]:
        """Return the keyword arguments of SamplingParams that both APIs fill alike."""
        return {
            "temperature": _or(self.temperature, 1.0),
            "top_k": _or(self.top_k, 0),
            "top_p": _or(self.top_p, 1.0),
            "min_p": _or(self.min_p, 0.0),
            "repetition_penalty": _or(self.repetition_penalty, 1.0),
            "presence_penalty": _or(self.presence_penalty, 0.0),
            "frequency_penalty": _or(self.frequency_penalty, 0.0),
            "min_tokens": self.min_tokens,
            "stop": self.stop_strings(),
            "stop_token_ids": tuple(self.stop_token_ids or ()),
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "skip_special_tokens": self.skip_special_tokens,
            "ignore_eos": self.ignore_eos,
            "seed": self.seed,
            "prompt_logprobs": self.prompt_logprobs,
            "logit_bias": _logit_bias(self.logit_bias),
            "n": self.num_choices,
            "structure": self.structure(),
        }


class ChatCompletionBody(GenerationBody):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    top_logprobs: int | None = None

    def check(self) -> None:
        """Raise ParameterError for what is well-typed but cannot be served."""
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise ParameterError("top_logprobs", "top_logprobs is only allowed when logprobs is true")
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            message = f"max_tokens is {both[0]} but max_completion_tokens is {both[1]}; give one of them"
            raise ParameterError("max_completion_tokens", message)

    def sampling_params(self) -> SamplingParams:
        """Return what to sample; without a limit the reply may fill the context."""
        self.check()
        name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        if limit is not None and limit < 1:
            raise ParameterError(name, f"{name} is {limit}; it must be at least 1")
        logprobs = _or(self.top_logprobs, 0) if self.logprobs else None
        _check_logprobs("top_logprobs", logprobs)
        return SamplingParams(**self.common_params(), max_tokens=limit, logprobs=logprobs)


class CompletionBody(GenerationBody):
    """The body of POST /v1/completions."""

    prompt: str | list[str] | TokenIds | list[TokenIds]
    best_of: int | None = None
    echo: bool = False
    logprobs: int | None = None
    suffix: str | None = None

    def check(self) -> None:
        """Raise ParameterError for what is well-typed but cannot be served."""
        super().check()
        if self.suffix:
            raise ParameterError("suffix", "suffix is not supported: this is no infilling model")
        if self.best_of is not None and self.best_of != _or(self.n, 1):
            raise ParameterError("best_of", f"best_of is {self.best_of}; it is only supported equal to n")

    def prompts(self) -> list[str | list[int]]:
        """Return each prompt, whichever of the four forms they came in."""
        prompt: Any = self.prompt
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
            return [prompt]
        if not prompt:
            raise ParameterError("prompt", "prompt is empty: at least one token is needed to continue from")
        return list(prompt)

    def sampling_params(self) -> SamplingParams:
        """Return what to sample; the limit defaults to 16 tokens, as OpenAI's does."""
        self.check()
        limit = _or(self.max_tokens, 16)
        if limit < (0 if self.echo else 1):
            remedy = "it must be at least 1 (0 is allowed with echo)"
            raise ParameterError("max_tokens", f"max_tokens is {limit}; {remedy}")
        _check_logprobs("logprobs", self.logprobs)
        fields = self.common_params()
        if self.echo and (self.logprobs is not None or limit == 0):
            fields["prompt_logprobs"] = max(_or(self.logprobs, 0), _or(self.prompt_logprobs, 0))
        return SamplingParams(**fields, max_tokens=limit, logprobs=self.logprobs)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _check_logprobs(name: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= MAX_LOGPROBS:
        raise ParameterError(name, f"{name} is {value}; it must be from 0 to {MAX_LOGPROBS}")


def _logit_bias(given: dict[str, float] | None) -> dict[int, float]:
    """Turn JSON's string keys into token ids."""
    biases: dict[int, float] = {}
    for key, bias in (given or {}).items():
        digits = key.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
            raise ParameterError("logit_bias", f"logit_bias has the key {key[:40]!r}; keys are token ids")
        biases[int(key)] = bias
    return biases
