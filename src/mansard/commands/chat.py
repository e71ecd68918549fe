"""`mansard chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from mansard.commands import options
from mansard.commands.speed import Stopwatch
from mansard.core.types import SamplingParams
from mansard.runtime.model import DEFAULT_MODEL

if TYPE_CHECKING:
    from mansard.runtime.llm import LLM

HELP = "/reset forgets the conversation · /exit or Ctrl-D ends it · Ctrl-C stops an answer"


def chat(
    model: options.Model = DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer.", show_default="no limit")] = None,
    temperature: options.Temperature = 0.7,
    top_p: options.TopP = 0.95,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    max_model_len: options.MaxModelLen = None,
    kv_dtype: options.KvDtype = "auto",
    activations: options.Activations = "int8",
    kv_cache_memory: options.KvCacheMemory = None,
    chat_template: options.ChatTemplate = None,
    threads: options.Threads = None,
) -> None:
    """Talk with a model in the terminal."""
    from mansard.runtime.llm import LLM
    from mansard.runtime.model import load

    params = SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, max_tokens=max_tokens
    )
    chosen = options.engine_options(
        max_model_len=max_model_len,
        kv_dtype=kv_dtype,
        activations=activations,
        kv_cache_memory=kv_cache_memory,
        chat_template=chat_template,
        threads=threads,
    )
    llm = LLM(load(model, chosen))
    typer.secho(f"{llm.model.name} · {llm.model.max_model_len:,} tokens of context · {HELP}", err=True, dim=True)
    Conversation(llm, params, system).run(_ask)


def _ask() -> str:
    """Read a line; the prompt shows only where a person types."""
    return input("\n> ") if sys.stdin.isatty() else input()


class Conversation:
    """The messages so far and the loop that adds to them; earlier turns cost nothing thanks to prefix reuse."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None = None) -> None:
        self._llm = llm
        self._params = params
        self._opening = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._opening)

    def run(self, ask: Callable[[], str]) -> None:
        """Answer what `ask` returns until it ends or says /exit."""
        while True:
            try:
                line = ask().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                sys.stdout.write("\n")
                return
            if line in ("/exit", "/quit"):
                return
            if line == "/reset":
                self.messages = list(self._opening)
                typer.secho("the conversation is forgotten", err=True, dim=True)
            elif line.startswith("/"):
                typer.secho(HELP, err=True, dim=True)
            elif line:
                self._answer(line)

    def _answer(self, line: str) -> None:
        self.messages.append({"role": "user", "content": line})
        watch = Stopwatch()
        pieces: list[str] = []
        try:
            with closing(self._llm.stream_chat(self.messages, self._params)) as stream:
                for delta in stream:
                    if delta.error is not None:
                        raise ValueError(delta.error)
                    watch.count(len(delta.token_ids))
                    pieces.append(delta.text)
                    sys.stdout.write(delta.text)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            typer.secho(" (stopped)", err=True, dim=True)
        except ValueError as error:
            self.messages.pop()
            typer.secho(f"\n{error}", err=True, fg="red")
            return
        sys.stdout.write("\n")
        sys.stdout.flush()
        self.messages.append({"role": "assistant", "content": "".join(pieces)})
        typer.secho(watch.line(), err=True, dim=True)
