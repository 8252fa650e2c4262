"""The teaching pack: six notebooks, each with words, code that runs below half a minute, and questions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
SECONDS = 30

RUN = """
import json, sys, time, warnings
warnings.simplefilter("error")
cells = json.loads(sys.stdin.read())
space = {"__name__": "__main__"}
begin = time.process_time()
for cell in cells:
    exec(compile(cell, "a cell", "exec"), space)
print("seconds", time.process_time() - begin)
"""


def code_cells(notebook: Path) -> list[str]:
    """The code of a notebook, without the lines that only Jupyter reads."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return ["\n".join(line for line in source.splitlines() if not line.startswith("%")) for source in sources]


def test_there_are_six_in_order() -> None:
    assert [notebook.stem[:2] for notebook in NOTEBOOKS] == [f"{place}_" for place in range(1, 7)]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_says_what_is_seen_and_asks(notebook: Path) -> None:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    words = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "markdown"]
    assert words[0].startswith("# ")
    assert "**You will see**" in words[0]
    assert words[-1].startswith("## Try")
    assert words[-1].count("?") >= 2
    # Kept without results: they would be stale, and a change of one line a change of thousands.
    assert all(not cell["outputs"] for cell in content["cells"] if cell["cell_type"] == "code")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs(notebook: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    environment = {**os.environ, "MPLBACKEND": "agg", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(code_cells(notebook)),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seconds = float(done.stdout.rpartition("seconds")[2])
    assert seconds < SECONDS, f"{notebook.name} took {seconds:.0f} s of processor time"
