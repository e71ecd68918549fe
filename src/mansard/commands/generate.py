"""`mansard generate`: continue one prompt, streaming the text, and say how fast it came."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mansard.commands import options
from mansard.commands.speed import Stopwatch
from mansard.core.types import SamplingParams
from mansard.runtime.model import DEFAULT_MODEL

if TYPE_CHECKING:
    from mansard.runtime.llm import LLM


def generate(
    model: options.Model = DEFAULT_MODEL,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The text to continue; - reads standard input.")] = "-",
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    chat: Annotated[bool, typer.Option("--chat", help="Ask through the chat template.")] = False,
    as_json: options.AsJson = False,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be given again.")] = None,
    max_model_len: options.MaxModelLen = None,
    kv_dtype: options.KvDtype = "auto",
    activations: options.Activations = "int8",
    kv_cache_memory: options.KvCacheMemory = None,
    chat_template: options.ChatTemplate = None,
    threads: options.Threads = None,
) -> None:
    """Continue one prompt and print its speed."""
    from mansard.runtime.llm import LLM
    from mansard.runtime.model import load

    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
    )
    if prompt == "-" and sys.stdin.isatty():
        raise ValueError('there is no prompt; give one with -p "…" or through standard input')
    text = sys.stdin.read() if prompt == "-" else prompt
    chosen = options.engine_options(
        max_model_len=max_model_len,
        kv_dtype=kv_dtype,
        activations=activations,
        kv_cache_memory=kv_cache_memory,
        chat_template=chat_template,
        threads=threads,
    )
    llm = LLM(load(model, chosen))
    _run(llm, text, params, chat, as_json)


def _run(llm: LLM, text: str, params: SamplingParams, chat: bool, as_json: bool) -> None:
    watch = Stopwatch()
    stream = (
        llm.stream_chat([{"role": "user", "content": text}], params) if chat else llm.stream_completion(text, params)
    )
    pieces: list[str] = []
    reason = ""
    for delta in stream:
        watch.count(len(delta.token_ids))
        if delta.error is not None:
            raise ValueError(delta.error)
        pieces.append(delta.text)
        reason = str(delta.finish_reason or "")
        if not as_json:
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    if as_json:
        answer = {
            "model": llm.model.name,
            "prompt": text,
            "text": "".join(pieces),
            "finish_reason": reason,
            "load_s": llm.model.load_s,
            **watch.as_dict(),
        }
        typer.echo(json.dumps(answer, ensure_ascii=False))
        return
    sys.stdout.write("\n")
    sys.stdout.flush()
    typer.echo(f"{llm.model.name}: loaded in {llm.model.load_s:.2f} s · {watch.line()}", err=True)
