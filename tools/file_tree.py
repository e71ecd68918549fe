"""The file tree of the documents: each file with the first sentence of its docstring or opening comment.

Only tracked files count, so that what lies about in a working tree changes no document.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/mansard"

NATIVE = "C++: the kernels once for each instruction set, the ops, the threads, the module"
TOP = (
    (PACKAGE, "the package; every module is listed in docs/architecture.md"),
    ("tests", "mirrors the package: offline, deterministic, nothing timed"),
    ("benchmarks", "what is measured rather than tested, with the data and the fit of the cost model"),
    ("docs", "start at docs/index.md"),
    ("deploy", "a Dockerfile, a systemd unit, a Grafana dashboard"),
    ("tools", "what generates the generated parts of the documents"),
)
HOLDS = {
    ("tests", "data"): "recorded references, each with how it was recorded",
    ("tests", "docs"): "the documents: numbers, links and commands hold",
    ("tests", "deploy"): "what deploy/ holds fits the program",
    ("tests", "benchmarks"): "the benchmarks' own code",
    ("benchmarks", "data"): "published and measured times, with origin and licence",
    ("benchmarks", "results"): "results of the benchmarks, each with machine and versions",
}


def tracked(folder: str) -> list[str]:
    """Return the tracked files below `folder` that exist, as sorted paths relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file())


def first_sentence(text: str) -> str:
    """Return the first sentence of `text` on one line, without its full stop."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".")


def summary(path: str) -> str:
    """Return what a Python or C++ file says of itself first.

    Raises: ValueError when it says nothing.
    """
    source = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".py"):
        said = ast.get_docstring(ast.parse(source)) or ""
    else:
        said = "\n".join(_opening_comment(source))
    if not said:
        raise ValueError(f"{path} begins with no docstring or comment; say what it is")
    return first_sentence(said)


def _opening_comment(source: str) -> list[str]:
    """Return the lines of a C++ file's first comment, without their slashes."""
    lines = []
    for line in source.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").strip())
    return lines


def listing(entries: list[tuple[str, str]], indent: str = "") -> list[str]:
    """Return aligned lines of names and what they are."""
    width = max(len(name) for name, _ in entries)
    return [f"{indent}{name:<{width}}  {what}".rstrip() for name, what in entries]


def module_tree() -> list[str]:
    """Return the package, a line a file."""
    by_folder: dict[str, list[str]] = {}
    for path in tracked(PACKAGE):
        if path.endswith((".py", ".h", ".cpp")):
            by_folder.setdefault(str(Path(path).parent), []).append(path)
    lines = ["```text"]
    for folder, paths in by_folder.items():
        init = f"{folder}/__init__.py"
        what = summary(init) if init in paths else NATIVE
        lines += [f"{folder.removeprefix('src/')}/  {what}"]
        entries = [(Path(p).name, summary(p)) for p in paths if p != init]
        lines += [*listing(entries, "  "), ""]
    return [*lines[:-1], "```"]


def folder_tree() -> list[str]:
    """Return the repository, a line a folder."""
    entries = []
    for folder, what in TOP:
        entries.append((f"{folder}/", what))
        if folder == PACKAGE:
            entries += [(f"  {name}/", what) for name, what in _packages()]
        if folder in ("tests", "benchmarks"):
            entries += [(f"  {name}/", what) for name, what in _subfolders(folder)]
    return ["```text", *listing(entries), "```"]


def _packages() -> list[tuple[str, str]]:
    """Return the package's folders with what each is, in alphabetical order."""
    folders = sorted({Path(path).relative_to(PACKAGE).parts[0] for path in tracked(PACKAGE) if path.count("/") > 2})
    return [(name, _package_summary(name)) for name in folders]


def _package_summary(name: str) -> str:
    init = f"{PACKAGE}/{name}/__init__.py"
    return summary(init) if (ROOT / init).is_file() else NATIVE


def _subfolders(folder: str) -> list[tuple[str, str]]:
    """Return a folder's own folders with what each holds, in alphabetical order."""
    parts = [Path(path).relative_to(folder).parts for path in tracked(folder)]
    names = sorted({first for first, *rest in parts if rest})
    return [(name, HOLDS.get((folder, name), f"tests of mansard.{name}")) for name in names]
