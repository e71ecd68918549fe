"""Names that people type: one spelling for each, and the nearest ones when a name is unknown.

Hardware and models are found by name in catalogues. `H100_SXM`, `h100 sxm` and `NVIDIA-H100-SXM` mean the
same thing, and a wrong name must answer with what was probably meant rather than with a traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

_PREFIXES = ("nvidia-", "geforce-", "tesla-", "amd-", "instinct-", "intel-", "google-", "aws-")


def normalize_name(name: str) -> str:
    """Return `name` in lower case with single dashes between words and without the maker in front."""
    text = re.sub(r"[\s_]+", "-", name.strip().lower())
    text = re.sub(r"-+", "-", text)
    changed = True
    while changed:
        changed = False
        for prefix in _PREFIXES:
            if text.startswith(prefix) and len(text) > len(prefix):
                text, changed = text[len(prefix) :], True
    return text


def nearest_names(name: str, known: Iterable[str], count: int = 4) -> tuple[str, ...]:
    """Return up to `count` of the `known` names that look most like `name`, best first."""
    names = list(known)
    text = normalize_name(name)
    close = difflib.get_close_matches(text, names, n=count, cutoff=0.5)
    contained = [n for n in names if text and (text in n or n in text) and n not in close]
    return tuple((close + sorted(contained, key=len))[:count])


def resolve_name(name: str, index: Mapping[str, str], kind: str, remedy: str) -> str:
    """Return what `name` means in `index` (normalized alias → key).

    Raises: ValueError naming the nearest known names and the `remedy` when there is no such name.
    """
    key = index.get(normalize_name(name))
    if key is not None:
        return key
    near = nearest_names(name, index)
    hint = f"did you mean {', '.join(near)}?" if near else f"{len(set(index.values()))} are known"
    raise ValueError(f"unknown {kind} {name!r}: {hint} ({remedy})")
