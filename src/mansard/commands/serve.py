"""`mansard serve`: OpenAI's HTTP API for one model, until a signal says stop."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from mansard.commands import options
from mansard.runtime.model import DEFAULT_MODEL

SERVER = "Server"


def serve(
    model: options.Model = DEFAULT_MODEL,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to others.", rich_help_panel=SERVER)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port; 0 takes a free one.", rich_help_panel=SERVER, min=0, max=65535)
    ] = 8000,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="A name clients may use; may be given again.", rich_help_panel=SERVER),
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that requests may still take at the end.", rich_help_panel=SERVER, min=0)
    ] = 30.0,
    max_model_len: options.MaxModelLen = None,
    kv_dtype: options.KvDtype = "auto",
    kv_cache_memory: options.KvCacheMemory = None,
    chat_template: options.ChatTemplate = None,
    threads: options.Threads = None,
    max_num_seqs: options.MaxNumSeqs = options.DEFAULTS.max_num_seqs,
    max_num_batched_tokens: options.MaxNumBatchedTokens = options.DEFAULTS.max_num_batched_tokens,
    prefix_caching: options.PrefixCaching = True,
    priority: Annotated[
        bool, typer.Option("--priority", help="Let requests say which run first.", rich_help_panel=options.ENGINE)
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Makes unseeded requests repeatable.", rich_help_panel=options.SAMPLING, show_default="random"
        ),
    ] = None,
) -> None:
    """Serve a model over OpenAI's HTTP API."""
    from mansard.runtime.model import load
    from mansard.server.app import create_app
    from mansard.server.run import bind, run, url_of

    chosen = options.engine_options(
        max_model_len=max_model_len,
        kv_dtype=kv_dtype,
        kv_cache_memory=kv_cache_memory,
        chat_template=chat_template,
        threads=threads,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        prefix_caching=prefix_caching,
        priority=priority,
        seed=secrets.randbits(63) if seed is None else seed,
    )
    listener = bind(host, port)
    loaded = load(model, chosen)
    app = create_app(loaded, chosen, served_model_name or (), drain_s=drain_timeout)
    num_tokens = loaded.num_blocks * loaded.block_size

    def announce() -> None:
        typer.echo(
            f"{loaded.name}: loaded in {loaded.load_s:.2f} s · context {loaded.max_model_len:,} tokens · "
            f"KV cache {num_tokens:,} tokens\nserving on {url_of(listener)}/v1 (Ctrl-C stops)",
            err=True,
        )

    def farewell() -> None:
        typer.echo("stopping: requests under way may end (again to stop at once)", err=True)

    if not run(app, app.state.service.engine, listener, drain_timeout, announce, farewell):
        raise typer.Exit(1)
