"""Benchmarks use names that the package has."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).resolve().parent.parent / "benchmarks").glob("*.py"))


def missing_names(source: str) -> list[str]:
    """Names that a script imports from the package and that are not there."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "firststep":
            module = import_module(node.module)
            full = {name.name: f"{node.module}.{name.name}" for name in node.names}
            found += [
                path for name, path in full.items() if not hasattr(module, name) and find_spec(path) is None
            ]
    return found


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.name)
def test_a_benchmark_finds_what_it_imports(path: Path) -> None:
    pytest.importorskip("sklearn")
    assert missing_names(path.read_text()) == []


def test_a_name_that_is_gone_is_found() -> None:
    assert missing_names("from firststep.gaussian import gone") == ["firststep.gaussian.gone"]
