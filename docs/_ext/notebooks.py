"""The notebooks of ``notebooks/`` as pages: run when the documentation is built, with what each cell says and draws.

They are kept without results; a cell that fails, or warns, is a warning here and so ends the build.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FOLDER = "notebooks"
# Notebooks that run side by side.
TOGETHER = 2

# Runs cells as Jupyter does: what is printed, the last expression, open figures. The first argument is where these go.
RUN = r"""
import ast, contextlib, io, json, sys, warnings
warnings.simplefilter("error")
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
plt.rcParams["svg.hashsalt"] = "firststep"
space, found = {"__name__": "__main__"}, []
for place, source in enumerate(json.loads(sys.stdin.read())):
    said, shown, html = io.StringIO(), None, None
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, "a cell", "exec"), space)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), "a cell", "eval"), space)
    if source.rstrip().endswith(";") or shown is None:
        shown = None
    else:
        looks = (getattr(shown, name, lambda: None)() for name in ("_repr_html_", "_repr_svg_"))
        html = next((look for look in looks if look is not None), None)
    figures = []
    for number in plt.get_fignums():
        name = f"{sys.argv[1]}-{place}-{number}.svg"
        plt.figure(number).savefig(name, metadata={"Date": None}, bbox_inches="tight")
        figures.append(name)
    plt.close("all")
    text = None if html is not None or shown is None else repr(shown)
    found.append({"said": said.getvalue(), "text": text, "html": html, "figures": figures})
print(json.dumps(found))
"""


def results(sources: list[str], place: Path) -> list[dict[str, Any]]:
    """What the cells say and draw; figures are files whose names begin with this place."""
    environment = {**os.environ, "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(place)],
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def page(notebook: dict[str, Any], found: list[dict[str, Any]], name: str) -> str:
    """A notebook with its results, in Markdown."""
    parts, answers = [], iter(found)
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        answer = next(answers)
        parts.append(f"```python\n{source}\n```")
        said = (text for text in (answer["said"], answer["text"]) if text)
        parts += [f"```text\n{text.rstrip()}\n```" for text in said]
        if answer["html"]:
            parts.append(f'````{{raw}} html\n<div class="result">{answer["html"]}</div>\n````')
        parts += [f"![What this cell draws]({Path(figure).name})" for figure in answer["figures"]]
    parts.append(f"{{download}}`This notebook <../../notebooks/{name}>`, to be changed and run.")
    return "\n\n".join(parts) + "\n"


def _written(file: Path, folder: Path) -> str:
    """Write one page; gives what went wrong."""
    notebook = json.loads(file.read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    plain = ["\n".join(line for line in cell.splitlines() if not line.startswith("%")) for cell in cells]
    try:
        found = results(plain, folder / file.stem)
    except RuntimeError as error:
        return f"notebooks/{file.name}: {error}"
    (folder / f"{file.stem}.md").write_text(page(notebook, found, file.name), encoding="utf-8")
    return ""


def _write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(exist_ok=True)
    with ThreadPoolExecutor(TOGETHER) as pool:
        for wrong in pool.map(lambda file: _written(file, folder), sorted(NOTEBOOKS.glob("*.ipynb"))):
            if wrong:
                logger.warning("%s", wrong)


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before they are read."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
