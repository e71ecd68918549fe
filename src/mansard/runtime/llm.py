"""LLM: a model in this process, for offline batches.

    llm = LLM("smollm2")
    for output in llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8)):
        print(output.outputs[0].text)

It drives the same TextEngine as the server, in the caller's thread. Names follow vLLM's LLM class.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from mansard.core.types import SamplingParams
from mansard.runtime.model import EngineOptions, LoadedModel, load
from mansard.runtime.outputs import OutputBuilder, RequestOutput, SequenceDelta
from mansard.runtime.prompts import Messages, Prompt, RequestTraits, Submission
from mansard.runtime.text_engine import TextEngine

Deltas = Generator[SequenceDelta, None, None]


class LLM:
    """Generates text with one model; one thread at a time may use it.

    model: what `mansard.runtime.model.load` takes, or a LoadedModel. Other arguments: the fields of
    EngineOptions.
    Raises: ValueError or OSError when the model cannot be loaded.
    """

    def __init__(self, model: str | LoadedModel, **options: Any) -> None:
        chosen = EngineOptions(**options)
        self.model = load(model, chosen) if isinstance(model, str) else model
        self.engine = TextEngine(self.model, chosen)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_progress_bar: bool = False,
    ) -> list[RequestOutput]:
        """Continue raw prompts (texts, or lists of token ids); returns outputs in the prompts' order.

        A single SamplingParams serves all prompts. Raises: ValueError before anything runs.
        """
        given = _as_list(prompts)
        prepare = self.engine.prompts.completion
        submissions = [
            prepare(prompt, params, self._traits())
            for prompt, params in zip(given, _for_each(sampling_params, len(given)), strict=True)
        ]
        return self._run(submissions, use_progress_bar)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_progress_bar: bool = False,
        *,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Reply to one conversation or several, through the model's chat template."""
        given: list[Any] = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        prepare = self.engine.prompts.chat
        submissions = [
            prepare(conversation, params, self._traits(), template_arguments=template_arguments)
            for conversation, params in zip(given, _for_each(sampling_params, len(given)), strict=True)
        ]
        return self._run(submissions, use_progress_bar)

    def stream(self, submission: Submission) -> Deltas:
        """Run one prepared request and yield its deltas; leaving early aborts it."""
        self.engine.add(submission)
        ended = False
        try:
            while not ended:
                for delta in self.engine.step():
                    ended = delta.last
                    yield delta
        finally:
            if not ended:
                self.engine.abort(submission.request.id)

    def stream_completion(self, prompt: Prompt, sampling_params: SamplingParams) -> Deltas:
        """Continue one raw prompt and yield what comes as it comes."""
        return self.stream(self.engine.prompts.completion(prompt, sampling_params, self._traits()))

    def stream_chat(self, messages: Messages, sampling_params: SamplingParams) -> Deltas:
        """Reply to one conversation and yield what comes as it comes."""
        return self.stream(self.engine.prompts.chat(messages, sampling_params, self._traits()))

    def _traits(self) -> RequestTraits:
        return RequestTraits(arrival_s=self.engine.now())

    def _run(self, submissions: list[Submission], use_progress_bar: bool) -> list[RequestOutput]:
        builders = {
            s.request.id: OutputBuilder(s.request.id, s.prompt, s.request.prompt_token_ids, s.request.arrival_s)
            for s in submissions
        }
        try:
            for submission in submissions:
                self.engine.add(submission)
            with _progress(len(submissions), use_progress_bar) as progress:
                while self.engine.has_work:
                    for delta in self.engine.step():
                        builders[delta.request_id].add(delta)
                        progress.update(delta)
        except BaseException:
            for request_id in builders:
                self.engine.abort(request_id)
            raise
        return [builders[s.request.id].build() for s in submissions]


class _Progress(Protocol):
    """Shows how far a batch is."""

    def update(self, delta: SequenceDelta) -> None: ...


class _NoProgress:
    """Shows nothing."""

    def update(self, delta: SequenceDelta) -> None:
        """Do nothing."""


class _ProgressBar:
    """A bar of finished requests, with the output tokens per second beside it."""

    def __init__(self, total: int) -> None:
        from rich import progress

        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[speed]}", style="cyan"),
            progress.TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("requests", total=total, speed="")
        self._num_tokens = 0

    def __enter__(self) -> _ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, delta: SequenceDelta) -> None:
        """Count a delta's tokens, and its request when it has ended."""
        self._num_tokens += len(delta.token_ids)
        elapsed_s = self._bar.tasks[0].elapsed or 0.0
        speed = f"{self._num_tokens / elapsed_s:,.0f} tokens/s" if elapsed_s > 0 else ""
        self._bar.update(self._task, advance=int(delta.last), speed=speed)


def _progress(total: int, wanted: bool) -> contextlib.AbstractContextManager[_Progress]:
    return _ProgressBar(total) if wanted else contextlib.nullcontext(_NoProgress())


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    """Return a list of prompts: a single text or list of token ids is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    given: list[Any] = list(prompts)
    return [given] if given and isinstance(given[0], int) else given


def _for_each(params: SamplingParams | Iterable[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    given = list(params)
    if len(given) != count:
        raise ValueError(f"there are {count} prompts and {len(given)} sampling_params; give one, or one each")
    return given
