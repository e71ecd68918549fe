"""The import rule: layers import downwards only; the control plane knows no tensors, time or chance."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src"
PACKAGE = ROOT / "mansard"

LAYERS = {
    "specs": set(),
    "program": {"specs"},
    "core": {"specs"},
    "cost": {"specs", "program", "core"},
    "sim": {"specs", "program", "core", "cost"},
    "loading": {"specs", "program", "core"},
    "quantization": {"specs", "program", "core", "loading", "runtime", "native"},
    "native": {"specs", "program", "core"},
    "runtime": {"specs", "program", "core", "loading", "quantization", "native"},
}
PURE = {"numpy", "torch", "time", "random", "asyncio"}
FORBIDDEN = {"core": PURE, "specs": PURE, "program": PURE, "cost": {"torch"}, "sim": {"torch"}}


def modules(layer: str) -> list[Path]:
    return sorted((PACKAGE / layer).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, inside functions too, relative ones resolved."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_a_layer_imports_only_those_below_it(layer):
    above = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in modules(layer)
        for name in imports(path)
        if name.startswith("mansard.") and name.split(".")[1] not in LAYERS[layer] | {layer}
        if (PACKAGE / name.split(".")[1]).exists() or (PACKAGE / f"{name.split('.')[1]}.py").exists()
    }
    assert not above


@pytest.mark.parametrize("layer", sorted(FORBIDDEN))
def test_a_layer_stays_free_of_what_it_must_not_know(layer):
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in modules(layer)
        for name in imports(path)
        if name.split(".")[0] in FORBIDDEN[layer]
    }
    assert not found


def test_the_walk_sees_imports_of_every_kind(tmp_path):
    """A rule that sees nothing holds always."""
    path = PACKAGE / "core" / "engine.py"
    assert {"mansard.core.scheduler", "mansard.core.types", "dataclasses"} <= set(imports(path))
    assert modules("core") and modules("specs")


def test_importing_the_package_and_the_control_plane_loads_nothing_heavy():
    heavy = {"numpy", "torch", "transformers", "tokenizers", "fastapi", "pydantic", "jinja2"}
    code = f"import mansard, mansard.core.engine, sys; print(sorted({heavy!r} & set(sys.modules)))"
    path = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
