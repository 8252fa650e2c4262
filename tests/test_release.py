"""What is published: a wheel and a source archive with everything that belongs in them and nothing else."""

import email
import os
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import firststep

ROOT = Path(__file__).parent.parent
LEAVINGS = re.compile(
    r"__pycache__|\.pyc$|(^|/)\.|^results/|(^|/)(_build|generated|tutorial|build|dist)/|\.db(-wal|-shm)?$"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both archives, made by the build backend itself."""
    backend = pytest.importorskip("hatchling.build")
    target, here = tmp_path_factory.mktemp("dist"), Path.cwd()
    os.chdir(ROOT)
    try:
        backend.build_wheel(str(target))
        backend.build_sdist(str(target))
    finally:
        os.chdir(here)
    return target


def strangers(names: list[str]) -> list[str]:
    """Names that do not belong in an archive."""
    return [name for name in names if LEAVINGS.search(name)]


def test_strangers_are_seen() -> None:
    wrong = [
        "a/__pycache__/b.pyc",
        "docs/_build/x.html",
        "results/store.db",
        ".venv/x",
        "docs/tutorial/1.rst",
    ]
    assert strangers([*wrong, "src/firststep/builtin.py", "docs/_ext/mathml.py"]) == wrong


def test_the_wheel_is_the_package(folder: Path) -> None:
    (wheel,) = folder.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name for name in names if not name.startswith(f"firststep-{firststep.__version__}.dist-info/")}
    source = ROOT / "src"
    wanted = {
        file.relative_to(source).as_posix()
        for file in (source / "firststep").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert inside == wanted
    assert strangers(sorted(inside)) == []
    assert {"firststep/py.typed", "firststep/experiment/files/published/cui2024_theory.csv"} <= inside
    assert any(name.startswith("firststep/explorer/page/") for name in inside)


def test_the_metadata_are_complete(folder: Path) -> None:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        info = f"firststep-{firststep.__version__}.dist-info"
        metadata = email.message_from_string(archive.read(f"{info}/METADATA").decode())
        assert "firststep = firststep.cli.app:main" in archive.read(f"{info}/entry_points.txt").decode()
        assert f"{info}/licenses/LICENSE" in archive.namelist()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["Name"] == "firststep"
    assert metadata["Version"] == firststep.__version__
    assert metadata["Requires-Python"] == project["requires-python"]
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert set(metadata.get_all("Provides-Extra") or []) == set(project["optional-dependencies"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "Fifteen lines of Python" in metadata.get_payload()
    for name in ("Summary", "Author", "Keywords"):
        assert metadata[name]


def test_the_source_archive_can_be_built_tested_and_read(folder: Path) -> None:
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        top = f"firststep-{firststep.__version__}/"
        names = [name.removeprefix(top) for name in archive.getnames()]
    assert strangers([name for name in names if name != ".gitignore"]) == []
    wanted = {
        *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "run", "constraints.txt"),
        *("docs/conf.py", "docs/images/errors-against-step.svg", "examples/1_a_problem.py"),
        *("tests/conftest.py", "src/firststep/__init__.py"),
    }
    assert wanted <= set(names)
