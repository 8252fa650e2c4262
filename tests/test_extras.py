"""Each extra alone does what it is for: the wheel, run in a Python that sees nothing else."""

import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from small_experiment import TEXT

ROOT = Path(__file__).parent.parent

# Hides every package that the extra does not bring, as if it were not installed.
BLOCKER = """
import sys
from importlib import metadata
HIDDEN = frozenset({hidden!r})
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
import importlib.util
_real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.partition(".")[0] in HIDDEN else _real(name, package)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content and its metadata."""
    backend = pytest.importorskip("hatchling.build")
    target, here = tmp_path_factory.mktemp("wheel"), Path.cwd()
    os.chdir(ROOT)
    try:
        name = backend.build_wheel(str(target))
    finally:
        os.chdir(here)
    zipfile.ZipFile(target / name).extractall(target / "site")
    return target / "site"


def required(wheel: Path, extra: str) -> set[str]:
    """Distributions that `pip install firststep[extra]` brings."""
    (info,) = wheel.glob("*.dist-info")
    wanted = metadata.PathDistribution(info).requires or []
    found: set[str] = set()
    todo = _names(wanted, extra)
    while todo:
        name, extras = todo.pop()
        if name == "firststep":
            todo += [entry for inner in extras for entry in _names(wanted, inner)]
            continue
        if name in found:
            continue
        found.add(name)
        try:
            more = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for one in ("", *extras):
            todo += _names(more, one)
    return found


def _names(requirements: list[str], extra: str) -> list[tuple[str, list[str]]]:
    """Requirements that hold with an extra, as names with their own extras."""
    from packaging.requirements import Requirement

    read = [Requirement(text) for text in requirements]
    return [
        (normal(one.name), sorted(one.extras))
        for one in read
        if one.marker is None or one.marker.evaluate({"extra": extra})
    ]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def hidden(wheel: Path, extra: str) -> set[str]:
    """Modules of all installed distributions that the extra does not bring."""
    wanted = required(wheel, extra)
    packages = metadata.packages_distributions()
    standard = set(sys.stdlib_module_names)
    return {
        module
        for module, owners in packages.items()
        if module not in standard and module != "firststep" and not {normal(o) for o in owners} & wanted
    }


def run_alone(wheel: Path, extra: str, code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run Python code with the wheel and one extra."""
    names = sorted(hidden(wheel, extra) - {"_virtualenv", "_distutils_hack"})
    (folder / "blocker.py").write_text(BLOCKER.format(hidden=names))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(wheel), str(folder)])}
    text = f"import blocker\nimport firststep\nassert {str(wheel)!r} in firststep.__file__\n{code}"
    return subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


COMMAND = "from firststep.cli.app import main\nmain({!r})"
SMALL = TEXT.replace("replicas = 3", "replicas = 2")
USES = {
    "": """
from firststep import *
setting = Problem("relu", "h1"), Sizes(60, 30, 40), [1.0]
predict(*setting)
simulate(*setting, replicas=2)
""",
    "plot": COMMAND.format(["predict", "--plot", "a.png", "--step-exponent", "0,0.2"]),
    "sklearn": """
import numpy as np
from firststep import *
x = np.random.default_rng(0).standard_normal((60, 5))
OneStepRegressor(width=20).fit(x, x[:, 0]).predict(x)
""",
    "data": COMMAND.format(
        ["diagnose", "table.csv", "--target", "y", "--width", "20", "--html", "page.html"]
    ),
    "web": "from firststep.explorer.app import create_app\ncreate_app('store.db')",
    "experiments": COMMAND.format(["run", "small.toml", "--store", "store.db", "--jobs", "1"]),
    "report": COMMAND.format(["report", "--store", "made.db", "--output", "report.html"]),
    "export": COMMAND.format(["export", "points.nc", "--store", "made.db"]),
    "dask": """
if __name__ == "__main__":
    from firststep.cli.app import main
    main(["run", "small.toml", "--store", "dask.db", "--scheduler", "local", "--jobs", "1"])
""",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment file, a table and a store."""
    pytest.importorskip("pydantic")
    import json

    from firststep.experiment import parse, run
    from firststep.store import open_store

    folder = tmp_path_factory.mktemp("place")
    (folder / "small.toml").write_text(SMALL)
    (folder / "table.csv").write_text(
        "a,b,y\n" + "".join(f"{i % 7},{i % 11},{i % 7 - i % 3}\n" for i in range(80))
    )
    with open_store(folder / "made.db") as store:
        run(parse(SMALL), store, name="small", jobs=1, document=json.dumps({"text": SMALL}))
    return folder


@pytest.mark.parametrize("extra", USES)
def test_an_extra_alone_does_what_it_is_for(extra: str, wheel: Path, place: Path) -> None:
    pytest.importorskip("packaging")
    brought = {"": (), "web": ("fastapi",), "dask": ("distributed",), "export": ("xarray", "h5py")}
    brought |= {"data": ("pandas",), "sklearn": ("sklearn",), "experiments": ("pydantic",)}
    for package in brought.get(extra, ("matplotlib",)):
        pytest.importorskip(package)
    found = run_alone(wheel, extra, USES[extra], place)
    assert found.returncode == 0, found.stderr
    if extra == "data":
        assert "it has no figure, which needs matplotlib: install firststep[plot]" in found.stderr


def test_what_an_extra_lacks_is_said_before_anything_is_computed(wheel: Path, place: Path) -> None:
    code = COMMAND.format(["reproduce", "spike-ladder", "--output", "out"])
    found = run_alone(wheel, "experiments", code, place)
    assert found.returncode == 1
    assert "the figures of reproduce need matplotlib: install firststep[plot]" in found.stderr
    assert not (place / "out").exists()


def test_the_blocker_hides(wheel: Path, place: Path) -> None:
    found = run_alone(wheel, "", "import sklearn", place)
    assert "No module named 'sklearn'" in found.stderr


def test_doctor_knows_every_extra() -> None:
    import tomllib

    from firststep.cli.experiments import _diagnosis

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    known = {line.partition(" ")[0] for line in _diagnosis("no-such.db")["extras"]}
    assert known == set(declared) - {"all", "dev", "docs"}
