"""``[Moniri24, eq. 2; AP20]`` in docstrings and pages links to references.md; unknown keys fail the build."""

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tests read the keys without Sphinx
    from sphinx.application import Sphinx

# A key is letters and a two-digit year, or our own name; a place in the source may follow a comma.
_ITEM = r"(?:[A-Z][A-Za-z]+\d{2}|firststep)(?:,\s[^][;]+)?"
CITATION = re.compile(rf"(?<!\\)\[({_ITEM}(?:;\s{_ITEM})*)\](?![\[(])_?")
DEFINITION = re.compile(r"^\(ref-(?P<label>[a-z]+\d*)\)=\n\*\*\[(?P<key>\w+)\]\*\*", re.MULTILINE)


def _key(item: str) -> str:
    return item.partition(",")[0]


def items(citation: re.Match[str]) -> list[str]:
    """Sources of one pair of brackets, each with its place."""
    return re.split(r";\s", citation[1])


def cited(text: str) -> set[str]:
    """Keys that a text cites."""
    return {_key(item) for citation in CITATION.finditer(text) for item in items(citation)}


def defined(text: str) -> set[str]:
    """Keys that the page of references defines, each with the label that links lead to."""
    found = {match["key"]: match["label"] for match in DEFINITION.finditer(text)}
    return {key for key, label in found.items() if label == key.lower()}


def _links(form: str, brackets: str, citation: re.Match[str]) -> str:
    links = (form.format(text=item, label=f"ref-{_key(item).lower()}") for item in items(citation))
    return brackets.format("; ".join(links))


_in_rst = partial(_links, ":ref:`{text} <{label}>`", "[{}]")
_in_markdown = partial(_links, "[{text}](#{label})", r"\[{}\]")


def _link_docstring(
    app: "Sphinx", what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    # A citation may be broken over two lines.
    lines[:] = CITATION.sub(_in_rst, "\n".join(lines)).split("\n")


def _link_page(app: "Sphinx", page: str, content: list[str]) -> None:
    form = {".md": _in_markdown, ".rst": _in_rst}[Path(app.env.doc2path(page)).suffix]
    if page != "references":
        content[0] = CITATION.sub(form, content[0])


def setup(app: "Sphinx") -> dict[str, bool]:
    """Link citations in docstrings and in pages."""
    app.connect("autodoc-process-docstring", _link_docstring)
    app.connect("source-read", _link_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
