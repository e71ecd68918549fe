"""Write the generated parts of the documents, or with --check say which of them are stale.

A generated part stands between `<!-- NAME: generated -->` and `<!-- NAME: end -->`; some files are generated whole.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from examples import EXAMPLES, example
from file_tree import ROOT, folder_tree, module_tree

from mansard.planning import schema
from mansard.server import api_docs


def between(text: str, name: str, lines: list[str]) -> str:
    """Return `text` with `lines` between the markers of the part `name`.

    Raises: ValueError when the markers are not there.
    """
    begin, end = f"<!-- {name}: generated -->\n", f"<!-- {name}: end -->"
    if begin not in text or end not in text:
        raise ValueError(f"no generated part named {name!r}: put its two markers into the document")
    head, rest = text.split(begin, 1)
    return head + begin + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1]


def documents() -> Iterator[tuple[str, str]]:
    """Yield each document with generated parts: its path and the text it should have."""
    readme = {"folders": folder_tree(), "modules": module_tree()} | {name: example(name) for name in EXAMPLES}
    for path, parts in (("README.md", readme), ("docs/architecture.md", {"modules": module_tree()})):
        text = (ROOT / path).read_text(encoding="utf-8")
        for name, lines in parts.items():
            text = between(text, name, lines)
        yield path, text
    for name, text in schema.files():
        yield f"docs/{name}", text
    yield "docs/api.md", api_docs.markdown(api_docs.document())


def main() -> int:
    """Write or check; returns 1 when a document is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a document is stale")
    check = parser.parse_args().check
    stale = []
    for path, text in documents():
        if (ROOT / path).read_text(encoding="utf-8") != text:
            stale.append(path)
            if not check:
                (ROOT / path).write_text(text, encoding="utf-8")
    if check and stale:
        print(f"stale: {', '.join(stale)} (run: make docs)", file=sys.stderr)
    elif stale:
        print(f"wrote {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
