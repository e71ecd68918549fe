"""The options that commands share, with their help texts, and how they become EngineOptions."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import typer

from mansard.runtime.model import EngineOptions

LOADING, ENGINE, SAMPLING = "Loading", "Engine", "Sampling"
DEFAULTS = EngineOptions()

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A GGUF file, a model directory, a Hugging Face id or a known name."),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        help="Most tokens of prompt and output together.", rich_help_panel=LOADING, show_default="the model's"
    ),
]
KvDtype = Annotated[
    str, typer.Option(help="Format of the KV cache: auto, bf16, f16, int8, int4.", rich_help_panel=LOADING)
]
Activations = Annotated[
    Literal["int8", "int16", "float32"],
    typer.Option(
        help="What quantized weights are multiplied with: int8 is fastest, int16 practically exact.",
        rich_help_panel=LOADING,
    ),
]
KvCacheMemory = Annotated[
    str | None,
    typer.Option(
        help="Memory for the KV cache, such as 512MiB or 2GiB.", rich_help_panel=LOADING, show_default="what is free"
    ),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        help="Chat template: chatml, llama3, gemma, or a file.", rich_help_panel=LOADING, show_default="the model's"
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="Threads that compute.", rich_help_panel=ENGINE, show_default="all cores")
]
MaxNumSeqs = Annotated[int, typer.Option(help="Most sequences that run at once.", rich_help_panel=ENGINE)]
MaxNumBatchedTokens = Annotated[int, typer.Option(help="Most tokens of one step.", rich_help_panel=ENGINE)]
PrefixCaching = Annotated[bool, typer.Option(help="Reuse the KV of shared prefixes.", rich_help_panel=ENGINE)]
Temperature = Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=SAMPLING)]
TopP = Annotated[float, typer.Option(help="Share of probability kept; 1 is all.", rich_help_panel=SAMPLING)]
TopK = Annotated[int, typer.Option(help="Most likely tokens kept; 0 is all.", rich_help_panel=SAMPLING)]
MinP = Annotated[
    float, typer.Option(help="Least probability kept, relative to the greatest.", rich_help_panel=SAMPLING)
]
Seed = Annotated[int | None, typer.Option(help="Makes a sampled text repeatable.", rich_help_panel=SAMPLING)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text such as `512MiB` or `2GB` says.

    Raises: ValueError when it says none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?|)b?", text.strip().lower())
    if found is None:
        raise ValueError(f"memory size is {text!r}; it must be a number and a unit, such as 512MiB or 2GiB")
    return int(float(found[1]) * _UNITS[found[2]])


def engine_options(
    *,
    max_model_len: int | None = None,
    kv_dtype: str = DEFAULTS.kv_dtype,
    activations: Literal["int8", "int16", "float32"] = DEFAULTS.activations,
    kv_cache_memory: str | None = None,
    chat_template: str | None = None,
    threads: int | None = None,
    max_num_seqs: int = DEFAULTS.max_num_seqs,
    max_num_batched_tokens: int = DEFAULTS.max_num_batched_tokens,
    prefix_caching: bool = True,
    priority: bool = False,
    seed: int = 0,
) -> EngineOptions:
    """Return EngineOptions from what was given on the command line.

    Raises: ValueError naming the value out of range.
    """
    return EngineOptions(
        max_model_len=max_model_len,
        kv_dtype=kv_dtype,
        activations=activations,
        num_threads=threads,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_bytes=None if kv_cache_memory is None else parse_bytes(kv_cache_memory),
        enable_prefix_caching=prefix_caching,
        enable_priority=priority,
        chat_template=chat_template,
        seed=seed,
    )
