"""The package as a whole: what importing it pulls in, and that every module says what it is for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mansard

ROOT = Path(mansard.__file__).parent
MODULES = sorted(p for p in ROOT.rglob("*.py") if "__pycache__" not in p.parts)
HEAVY = ("numpy", "torch", "tokenizers", "fastapi", "uvicorn", "pydantic", "jinja2", "huggingface_hub", "rich")


def imported_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after `code`."""
    script = f"import sys\nsys.path[:] = {sys.path!r}\n{code}\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-I", "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_importing_mansard_is_light() -> None:
    """Time is not measured here (benchmarks/startup.py does); what would take it is not imported."""
    assert not imported_after("import mansard") & {*HEAVY, "typer", "asyncio"}


def test_the_help_screen_is_light() -> None:
    code = "import mansard.cli\ntry:\n    mansard.cli.main(['--help'])\nexcept SystemExit:\n    pass"
    assert not imported_after(code) & {"numpy", "torch", "tokenizers", "fastapi", "uvicorn", "pydantic"}


def test_running_a_model_needs_no_torch() -> None:
    code = "import mansard.runtime.loader, mansard.runtime.llm, mansard.server.app, mansard._native"
    assert not imported_after(code) & {"torch", "triton", "transformers", "gguf"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path} has no docstring"


def test_the_package_is_typed_and_versioned() -> None:
    assert (ROOT / "py.typed").exists()
    assert (ROOT / "_native.pyi").exists()
    assert mansard.__version__.count(".") == 2
