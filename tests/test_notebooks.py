"""The teaching pack: six notebooks, each with words, code that runs below half a minute, and questions."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
SECONDS = 30


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
    pytest.importorskip("sklearn")
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    space: dict[str, Any] = {"__name__": "__main__"}
    begin = time.process_time()
    try:
        # Here and not in a process of its own, which would take a second for its imports.
        with matplotlib.rc_context():
            for number, cell in enumerate(code_cells(notebook), 1):
                exec(compile(cell, f"{notebook.name}, code cell {number}", "exec"), space)
    finally:
        pyplot.close("all")
    seconds = time.process_time() - begin
    assert seconds < SECONDS, f"{notebook.name} took {seconds:.0f} s of processor time"
