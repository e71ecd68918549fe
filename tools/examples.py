"""The README's examples whose output depends on no machine: run, cut to what matters, and kept current.

A line that no pattern keeps is left out, with one `…` for each gap.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

WIDTH = 104  # of the terminal that the commands believe in
EXAMPLES = {
    "plan": (
        "mansard plan llama-3.1-8b --gpu h100",
        r"1× H100|requests at once ·|^TPOT|a million output|^Memory of|low +best|^weights +\d|^activations"
        r"|^runtime|^kv cache|^Next levers|^change|^weights bf16|^KV cache bf16|^TP 1|^Error|^throughput",
    ),
    "explain": (
        "mansard explain llama-3.1-8b --gpu h100 --batch 32",
        r"^prefill, |^decode, |^op .*GFLOP|^gate_proj|^attention \(decode|^down_proj",
    ),
    "simulate": (
        "mansard simulate llama-3.1-8b --gpu h100 --workload chat --rate 8 --num-requests 500",
        r"^llama|^chat at|mean +p50|^ TTFT|^ TPOT|^throughput|^batch|^KV cache|^cost",
    ),
}


def example(name: str) -> list[str]:
    """Return the fenced block of an example: its command, and of its output what its pattern keeps.

    Raises: ValueError when the command fails or the pattern keeps nothing of it.
    """
    command, pattern = EXAMPLES[name]
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": str(WIDTH), "NO_COLOR": "1"},
    )
    if done.returncode:
        raise ValueError(f"{command} failed: {done.stderr.strip()}")
    lines = cut([line.rstrip() for line in done.stdout.splitlines()], pattern)
    if lines == ["…"]:
        raise ValueError(f"{command}: nothing of its output is kept; its words have changed")
    return ["```text", f"$ {command}", *lines, "```"]


def cut(lines: list[str], pattern: str) -> list[str]:
    """Keep the lines that match and the rule below each; others leave a `…`, empty ones no trace."""
    kept: list[str] = []
    for line in filter(None, lines):
        rule = set(line) == {"─"} and kept[-1:] not in ([], ["…"])
        if rule or re.search(pattern, line):
            kept.append(line)
        elif kept[-1:] != ["…"]:
            kept.append("…")
    return kept
