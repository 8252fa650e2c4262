"""The tutorial's pages: five, in order, each a script that runs by itself."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def test_there_are_five_in_order() -> None:
    assert [script.stem[:2] for script in EXAMPLES] == ["1_", "2_", "3_", "4_", "5_"]


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_a_page_has_a_title_and_a_text(script: Path) -> None:
    text = ast.get_docstring(ast.parse(script.read_text()))
    assert text is not None
    title, rule, *rest = text.splitlines()
    assert title
    assert set(rule) == {"="}
    assert len(rule) >= len(title)
    assert len(" ".join(rest)) > 100


@pytest.mark.slow  # ./run docs runs them all too
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_a_page_runs(script: Path, tmp_path: Path) -> None:
    environment = os.environ | {"MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert list(tmp_path.iterdir()) == [], "a page leaves files behind"
