"""From what a caller gives (text, token ids or a conversation) to a request the engine can take.

All of it may run in any thread while steps go on: tokenizing a long prompt or rendering a template never
blocks the engine. Whatever is wrong with a request is said here, before it is scheduled.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.core.admission import check_request
from mansard.core.scheduler import Scheduler
from mansard.core.types import Request, SamplingParams
from mansard.runtime.model import LoadedModel
from mansard.runtime.parameter_error import ParameterError, naming
from mansard.runtime.random_numbers import derive_seed

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]

MAX_CHARACTERS_PER_TOKEN = 32  # English has 4 to 5; runs of spaces reach 30 and more for short stretches only
NO_STRUCTURES = "this server cannot constrain outputs to a structure (install llguidance)"

_RESERVED = {"messages", "tools", "add_generation_prompt", "self"}  # what the template gets from elsewhere


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked request and the text of its prompt, if it came as text."""

    request: Request
    prompt: str | None


@dataclass(frozen=True, slots=True)
class RequestTraits:
    """What a request may say beside prompt and sampling."""

    id: str | None = None  # None: a number
    arrival_s: float = 0.0
    cache_salt: str | None = None
    priority: int = 0


class PromptPreparer:
    """Tokenizes, renders and checks for one model; `seed` is where unseeded requests get theirs from.

    Of the scheduler only limits are read, which never change.
    """

    def __init__(self, model: LoadedModel, scheduler: Scheduler, seed: int = 0) -> None:
        self._model = model
        self._scheduler = scheduler
        self._seed = seed
        self._numbers = itertools.count()

    def completion(self, prompt: Prompt, params: SamplingParams, traits: RequestTraits | None = None) -> Submission:
        """Prepare the continuation of a raw prompt; text gets the model's BOS, token ids are taken as they
        are.

        Raises: ParameterError naming what is out of range.
        """
        if isinstance(prompt, str):
            self.check_length(prompt)
            return self._submission(self._model.tokenizer.encode_prompt(prompt), prompt, params, traits)
        return self._submission(prompt, None, params, traits)

    def chat(
        self,
        messages: Messages,
        params: SamplingParams,
        traits: RequestTraits | None = None,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> Submission:
        """Prepare the reply to a conversation: rendered by the model's template, which writes BOS itself.

        Raises: ParameterError when the template refuses the messages or a value is out of range.
        """
        text = self.render(messages, add_generation_prompt, tools, template_arguments)
        token_ids = self._model.tokenizer.encode(text, add_special_tokens=False)
        return self._submission(token_ids, text, params, traits)

    def render(
        self,
        messages: Messages,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text of a conversation.

        Raises: ParameterError when there is no template or it refuses the messages.
        """
        template = self._model.chat_template
        if template is None:
            message = f"model {self._model.name} has no chat template; send a raw prompt to completions instead"
            raise ParameterError("messages", message)
        if reserved := _RESERVED & set(template_arguments or ()):
            names = ", ".join(sorted(reserved))
            raise ParameterError("chat_template_kwargs", f"chat_template_kwargs may not set {names}")
        try:
            text = template.render(
                messages,
                add_generation_prompt=add_generation_prompt,
                tools=tools or None,
                **(template_arguments or {}),
            )
        except ValueError as error:
            raise ParameterError("messages", str(error)) from error
        self.check_length(text, "messages")
        return text

    def check_length(self, text: str, param: str = "prompt") -> None:
        """Refuse a text that cannot fit the context, before it costs any tokenizing."""
        limit = MAX_CHARACTERS_PER_TOKEN * self._model.max_model_len
        if len(text) > limit:
            message = (
                f"{param} has {len(text):,} characters; at most {limit:,} are accepted "
                f"({MAX_CHARACTERS_PER_TOKEN} for each token of the context)"
            )
            raise ParameterError(param, message, "context_length_exceeded")

    def _submission(
        self, token_ids: Sequence[int], text: str | None, params: SamplingParams, traits: RequestTraits | None
    ) -> Submission:
        traits = traits or RequestTraits()
        if params.structure is not None:
            self._check_structure(params)
        number = next(self._numbers)
        request = Request(
            id=traits.id or str(number),
            prompt_token_ids=tuple(token_ids),
            params=params,
            arrival_s=traits.arrival_s,
            cache_salt=traits.cache_salt,
            priority=traits.priority,
            default_seed=derive_seed(self._seed, number),
        )
        try:
            check_request(request, self._scheduler, self._model.spec.vocab_size)
        except ValueError as error:
            raise naming(error) from error
        return Submission(request, text)

    def _check_structure(self, params: SamplingParams) -> None:
        """Compile the structure an output must have, so that it is refused here or obeyed."""
        structure = params.structure
        assert structure is not None
        for name, conflicts in (("min_tokens", params.min_tokens > 0), ("ignore_eos", params.ignore_eos)):
            if conflicts:
                message = f"{name} cannot be combined with a structured output, which ends when it is complete"
                raise ParameterError(name, message)
        if self._model.structures is None:
            raise ParameterError("structured_outputs", NO_STRUCTURES, "unsupported_value")
        try:
            self._model.structures.compile(structure)
        except ImportError as error:
            raise ParameterError("structured_outputs", NO_STRUCTURES, "unsupported_value") from error
        except ValueError as error:
            message = f"the {structure.kind.replace('_', ' ')} cannot be used: {error}"
            raise ParameterError("structured_outputs", message, "invalid_structure") from error
