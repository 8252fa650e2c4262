"""The paper of ``paper/`` as a page: citations looked up in ``paper.bib``, the figure that of the documentation.

A citation without an entry, or an entry that nobody cites, is a warning and so ends the build.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

PAPER = Path(__file__).parents[2] / "paper"
FIGURE = "images/errors-against-step.svg"


def entries(bib: str) -> dict[str, dict[str, str]]:
    """The fields of each entry of a bibliography, by its key."""
    found = {}
    for key, body in re.findall(r"@\w+\{(\w+),\n(.*?)\n\}", bib, re.DOTALL):
        fields = re.findall(r"^\s*(\w+)\s*=\s*\{(.*)\},$", body, re.MULTILINE)
        found[key] = {
            name: re.sub(r"\\'\{?(\w)\}?", "\\1\u0301", text).replace("{", "").replace("}", "")
            for name, text in fields
        }
    return found


def short(entry: dict[str, str]) -> str:
    """Author and year, as in a sentence: Ba et al. (2022)."""
    names = [name.split(",")[0] for name in entry["author"].split(" and ")]
    who = names[0] if len(names) == 1 else f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
    return f"{who} ({entry['year']})"


def page(paper: str, bib: str) -> tuple[str, list[str]]:
    """The paper as a page of the documentation, and what is wrong with its citations."""
    known = entries(bib)
    _, head, body = paper.split("---\n", 2)
    title = re.search(r"^title: '(.*)'$", head, re.MULTILINE)
    cited = set(re.findall(r"@(\w+)", body))
    wrong = [f"{key} is cited and not in paper.bib" for key in sorted(cited - set(known))]
    wrong += [f"{key} is in paper.bib and not cited" for key in sorted(set(known) - cited)]
    if title is None:
        wrong.append("the paper has no title")

    def named(found: re.Match[str]) -> str:
        texts = [short(known[key]) for key in re.findall(r"@(\w+)", found[0]) if key in known]
        inside = "; ".join(text.replace(" (", ", ").rstrip(")") for text in texts)
        return f"({inside})" if found[0].startswith("[") else "; ".join(texts)

    body = re.sub(r"\[@\w+(?:; @\w+)*\]|@\w+", named, body)
    body = re.sub(r"(!\[[^\]]*\])\([^)]*\)", rf"\1({FIGURE})", body, flags=re.DOTALL)
    body = re.sub(r"^# ", "## ", body, flags=re.MULTILINE)
    listed = [
        f"* {entry['author'].replace(' and ', '; ')}. *{entry['title']}.* {entry['booktitle']}, {entry['year']}."
        + (f" arXiv:{entry['eprint']}." if "eprint" in entry else "")
        for _, entry in sorted(known.items())
    ]
    text = f"# {title[1] if title else ''}\n{body.rstrip()}\n\n" + "\n".join(listed) + "\n"
    return text, wrong


def _write(app: Sphinx) -> None:
    text, wrong = page(
        (PAPER / "paper.md").read_text(encoding="utf-8"), (PAPER / "paper.bib").read_text(encoding="utf-8")
    )
    for sentence in wrong:
        logger.warning("paper/paper.md: %s", sentence)
    (Path(app.srcdir) / "paper.md").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the page before the pages are read."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
