"""Benchmarks use names that the package has."""

import ast
import json
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

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


def test_the_soak_tells_a_leak_from_what_is_kept() -> None:
    """A leak of 40 MiB in all is more than it lets pass; an allocator's ups and downs are less."""
    spec = spec_from_file_location("soak", BENCHMARKS[0].parent / "soak.py")
    assert spec is not None
    assert spec.loader is not None
    soak = module_from_spec(spec)
    pytest.importorskip("requests")
    spec.loader.exec_module(soak)
    assert soak.growth([600.0 + 2 * k for k in range(20)]) > soak.GROWTH * 600 + soak.VARIES
    assert soak.growth([590.0, 600.0] + [604.0, 600.0] * 9) < soak.GROWTH * 600 + soak.VARIES


@pytest.fixture
def speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/run.py with three rows that measure nothing, of which the last fails."""
    pytest.importorskip("sklearn")
    spec = spec_from_file_location("benchmarks_run", BENCHMARKS[0].parent / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)

    def row(number: int) -> list[dict[str, object]]:
        return [
            {"row": number, "what": "x", "median": 1.0, "low": 1.0, "high": 1.0, "unit": "s", "goal": None}
        ]

    def failing(quick: bool, turns: int) -> list[dict[str, object]]:
        raise RuntimeError("the machine went away")

    rows = {"1": lambda quick, turns: row(1) + row(2), "6": lambda quick, turns: row(6), "8": failing}
    monkeypatch.setattr(module, "ROWS", rows)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def measured_rows(folder: Path) -> list[int]:
    file = folder / "speed.json"
    return [row["row"] for row in json.loads(file.read_text())["rows"]] if file.exists() else []


def test_rows_are_checked_before_anything_is_measured(
    speed: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--rows", "1,5x,6"])
    with pytest.raises(SystemExit):
        speed.main()
    assert "there is no row '5x'; there are 1, 6, 8" in capsys.readouterr().err
    assert measured_rows(tmp_path) == []


def test_what_is_measured_is_saved_as_it_comes(
    speed: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--rows", "2, 1,6,8"])
    with pytest.raises(RuntimeError, match="went away"):
        speed.main()
    assert measured_rows(tmp_path) == [1, 2, 6]
    # A later run of other rows keeps these.
    monkeypatch.setattr(sys, "argv", ["run.py", "--rows", "6"])
    speed.main()
    assert measured_rows(tmp_path) == [1, 2, 6]
