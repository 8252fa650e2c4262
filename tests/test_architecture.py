"""A file imports only from lower levels, so that theory and simulation cannot lean on each other."""

import ast
import json
import subprocess
import sys
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import firststep

PACKAGE = Path(firststep.__file__).parent

# A folder counts as one unit: its files may import each other, but not in a circle.
LEVELS = {
    "gaussian": 0,
    "numerics": 0,
    "compute": 0,
    "setting": 1,
    "arrays": 1,
    "results": 2,
    "simulate": 3,
    "theory": 3,
    "store": 3,
    "compare": 4,
    "estimator": 4,
    "figures": 4,
    "experiment": 5,
    "diagnose": 5,
    "report": 6,
    "explorer": 6,
    "cli": 7,
    "__main__": 8,
    "__init__": 9,
}
NEVER = {("theory", "arrays")}  # downwards, and still forbidden

# Packages that take long to import or belong to an extra: loaded by the function that uses them.
HEAVY = {
    "matplotlib",
    "rich",
    "pandas",
    "sklearn",
    "dask",
    "distributed",
    "torch",
    "array_api_compat",
    "array_api_strict",
    "pydantic",
    "xarray",
    "fastapi",
    "uvicorn",
}


def imported_modules(path: str, source: str) -> set[str]:
    """Paths inside the package (``theory/unified``) that a file imports, wherever in it that happens."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = ["firststep", *Path(path).parts[: -node.level], *base]
            targets = [[*base, alias.name] for alias in node.names]
        else:
            continue
        found.update("/".join(target[1:]) for target in targets if target[0] == "firststep")
    # The version is the one name of the package itself that any file may ask for.
    return found - {"__version__"}


def file_of(unit: str, target: str, sources: Mapping[str, str]) -> str:
    """The file of a folder that an import is served by: the module named, or the __init__ that has the name."""
    parts = target.split("/") if target else []
    while parts:
        if f"{unit}/{'/'.join(parts)}.py" in sources:
            return "/".join(parts)
        if f"{unit}/{'/'.join(parts)}/__init__.py" in sources:
            return "/".join([*parts, "__init__"])
        parts = parts[:-1]
    return "__init__"


def violations(sources: Mapping[str, str]) -> list[str]:
    """Sentences about the imports that break the rules, for files given as path -> source."""
    wrong = []
    inside: dict[str, dict[str, set[str]]] = {}
    for path, source in sources.items():
        unit, _, file = path.removesuffix(".py").partition("/")
        if unit not in LEVELS:
            wrong.append(f"{path} has no level: give it one in tests/test_architecture.py")
            continue
        for target in sorted(imported_modules(path, source)):
            other, _, rest = target.partition("/")
            if other not in LEVELS:
                if unit != "__init__":
                    wrong.append(f"{path} imports {other or 'firststep'!r} from the package: name its module")
            elif other == unit:
                inside.setdefault(unit, {}).setdefault(file, set()).add(file_of(unit, rest, sources))
            elif (unit, other) in NEVER:
                wrong.append(f"{path} imports {other}, which {unit} must never see")
            elif LEVELS[other] >= LEVELS[unit]:
                side = "sideways" if LEVELS[other] == LEVELS[unit] else "upward"
                wrong.append(f"{path} (level {LEVELS[unit]}) imports {other} (level {LEVELS[other]}): {side}")
    for unit, graph in inside.items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            wrong.append(f"{unit}/ imports in a circle: {' -> '.join(error.args[1])}")
    return wrong


def test_imports_point_downwards() -> None:
    sources = {file.relative_to(PACKAGE).as_posix(): file.read_text() for file in PACKAGE.rglob("*.py")}
    assert "setting/problem.py" in sources
    assert violations(sources) == []


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"gaussian.py": "from firststep.setting import Problem"}, "upward"),
        ({"gaussian.py": "def f():\n    import firststep.setting"}, "upward"),
        ({"setting.py": "from firststep import arrays"}, "sideways"),
        ({"arrays.py": "from .setting import Problem"}, "sideways"),
        ({"simulate.py": "from firststep.theory.limits.weights import top"}, "sideways"),
        ({"theory/weights.py": "from firststep.arrays import step"}, "must never see"),
        ({"theory/weights.py": "from ..arrays import step"}, "must never see"),
        ({"theory/weights.py": "from firststep.simulate import simulate"}, "sideways"),
        ({"report.py": "import firststep.cli"}, "upward"),
        ({"compare.py": "from firststep import Problem"}, "name its module"),
        ({"compare.py": "import firststep"}, "name its module"),
        ({"helpers.py": ""}, "has no level"),
        ({"helpers/tools.py": ""}, "has no level"),
        (
            {
                "theory/unified.py": "from firststep.theory.staircase import a",
                "theory/staircase.py": "from firststep.theory import unified",
            },
            "circle",
        ),
        (
            {
                "theory/__init__.py": "from firststep.theory.unified import a",
                "theory/unified.py": "from firststep.theory import predict",
            },
            "circle",
        ),
    ],
)
def test_a_wrong_import_is_named(sources: dict[str, str], message: str) -> None:
    (sentence,) = violations(sources)
    assert message in sentence


def test_right_imports_pass() -> None:
    assert not violations(
        {
            "theory/__init__.py": "from firststep.theory.unified import a",
            "theory/unified.py": "from firststep.theory.staircase import b\nimport firststep.setting",
            "theory/staircase.py": "import numpy\nfrom firststep.gaussian import function",
            "cli.py": "from firststep import __version__, compare\nfrom firststep.theory import predict",
        }
    )


def loaded_after(code: str) -> set[str]:
    """Top-level packages in memory after a fresh interpreter has run the code."""
    report = "; import sys, json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_the_package_is_light() -> None:
    assert loaded_after("import firststep").isdisjoint(HEAVY | {"numpy", "scipy"})


def test_using_the_package_loads_no_extra() -> None:
    # The estimators are the one thing that cannot be named without its extra.
    names = "[name for name in firststep.__all__ if not name.startswith('OneStep')]"
    everything = f"import firststep; [getattr(firststep, name) for name in {names}]"
    assert loaded_after(everything).isdisjoint(HEAVY)


def test_a_heavy_import_is_seen() -> None:
    assert "rich" in loaded_after("import rich.table")
