"""Texts to evaluate on: the default one, which comes with the package, or any file."""

from __future__ import annotations

import lzma
from importlib import resources
from pathlib import Path

DEFAULT_TEXT = "persuasion"


def read_text(name: str = DEFAULT_TEXT) -> str:
    """Return the default text (`persuasion`) or the UTF-8 text of a file, which may be .xz.

    Raises: ValueError when the file is no UTF-8 text or empty.
    """
    if name == DEFAULT_TEXT:
        packed = (resources.files("mansard.bench") / "texts" / f"{DEFAULT_TEXT}.txt.xz").read_bytes()
        return lzma.decompress(packed).decode("ascii")
    path = Path(name)
    try:
        data = path.read_bytes()
        text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8")
    except (UnicodeDecodeError, lzma.LZMAError) as error:
        raise ValueError(f"{path} is no UTF-8 text ({error})") from error
    if not text.strip():
        raise ValueError(f"{path} is empty; give a text to evaluate on")
    return text
