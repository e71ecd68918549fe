"""`mansard serve`: OpenAI's HTTP API for one model, until a signal says stop."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mansard.commands import options
from mansard.runtime.model import DEFAULT_MODEL

if TYPE_CHECKING:
    from mansard.runtime.text_engine import Wrap

SERVER, LIMITS = "Server", "Limits"
API_KEY_VARIABLE = "MANSARD_API_KEY"


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
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A key clients must send; may be given again. Better in {API_KEY_VARIABLE}.",
            rich_help_panel=SERVER,
            show_default="none",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="A web page's origin that may call (CORS); may be given again.", rich_help_panel=SERVER),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(help="Certificate chain (PEM); turns TLS on.", rich_help_panel=SERVER)
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="The certificate's key (PEM).", rich_help_panel=SERVER)] = None,
    tls_client_ca: Annotated[
        str | None, typer.Option(help="Ask clients for a certificate signed by this.", rich_help_panel=SERVER)
    ] = None,
    allow_cache_reset: Annotated[
        bool, typer.Option("--allow-cache-reset", help="Enable POST /reset_prefix_cache.", rich_help_panel=SERVER)
    ] = False,
    tool_call_parser: Annotated[
        str, typer.Option(help="Form of tool calls: auto, hermes, llama3, mistral, none.", rich_help_panel=SERVER)
    ] = "auto",
    reasoning: Annotated[
        bool, typer.Option(help="Answer <think> text as reasoning_content.", rich_help_panel=SERVER)
    ] = True,
    log_level: Annotated[
        str, typer.Option(help="debug, info (a line a request), warning or error.", rich_help_panel=SERVER)
    ] = "warning",
    record: Annotated[
        str | None, typer.Option(help="Write every step to this file, for mansard simulate.", rich_help_panel=SERVER)
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that requests may still take at the end.", rich_help_panel=LIMITS, min=0)
    ] = 30.0,
    request_timeout: Annotated[
        float | None,
        typer.Option(help="Most seconds of one request.", rich_help_panel=LIMITS, show_default="no limit"),
    ] = None,
    max_queue: Annotated[
        int, typer.Option(help="Most requests that wait; more get 429.", rich_help_panel=LIMITS, min=0)
    ] = 256,
    max_body: Annotated[str, typer.Option(help="Largest request body.", rich_help_panel=LIMITS)] = "16MiB",
    max_model_len: options.MaxModelLen = None,
    kv_dtype: options.KvDtype = "auto",
    activations: options.Activations = "int8",
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
    from mansard.server.access_log import log_to_stderr
    from mansard.server.app import create_app
    from mansard.server.options import ServerOptions
    from mansard.server.run import Tls, bind, run, url_of

    chosen = options.engine_options(
        max_model_len=max_model_len,
        kv_dtype=kv_dtype,
        activations=activations,
        kv_cache_memory=kv_cache_memory,
        chat_template=chat_template,
        threads=threads,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        prefix_caching=prefix_caching,
        priority=priority,
        seed=secrets.randbits(63) if seed is None else seed,
    )
    allowed = ServerOptions(
        names=tuple(served_model_name or ()),
        api_keys=(*(api_key or ()), *filter(None, [os.environ.get(API_KEY_VARIABLE)])),
        allowed_origins=tuple(allow_origin or ()),
        max_body_bytes=options.parse_bytes(max_body),
        max_queued=max_queue,
        request_timeout_s=request_timeout,
        drain_s=drain_timeout,
        allow_cache_reset=allow_cache_reset,
        tool_call_parser=tool_call_parser,
        split_reasoning=reasoning,
    )
    if (tls_key or tls_client_ca) and not tls_certificate:
        raise ValueError("there is a TLS key or client CA but no certificate; give --tls-certificate too")
    tls = Tls(tls_certificate, tls_key, tls_client_ca) if tls_certificate else None
    log_to_stderr(log_level)
    listener = bind(host, port)
    loaded = load(model, chosen)
    recording = contextlib.ExitStack()
    app = create_app(loaded, chosen, allowed, _recorder(record, loaded.name, kv_dtype, recording))
    num_tokens = loaded.num_blocks * loaded.block_size

    def announce() -> None:
        typer.echo(
            f"{loaded.name}: loaded in {loaded.load_s:.2f} s · context {loaded.max_model_len:,} tokens · "
            f"KV cache {num_tokens:,} tokens\nserving on {url_of(listener, tls)}/v1 (Ctrl-C stops)",
            err=True,
        )

    def farewell() -> None:
        typer.echo("stopping: requests under way may end (again to stop at once)", err=True)

    with recording:
        gently = run(app, listener, tls, announce, farewell)
    if not gently:
        raise typer.Exit(1)


def _recorder(path: str | None, model: str, kv_dtype: str, closing: contextlib.ExitStack) -> Wrap | None:
    """Return what writes every step to the file at `path`, which `closing` closes."""
    if path is None:
        return None
    from mansard.sim.recording import RecordingEngine, RunLog

    log = closing.enter_context(RunLog(Path(path)))
    return lambda engine: RecordingEngine(engine, log, model=model, kv=kv_dtype)
