"""The table of formulas: every citation in a docstring, with its function, its tests and where it is shown.

Nothing in the table is written by hand: sources are the citations ``[Moniri24, eq. 2]`` in docstrings, tests are
those that refer to the function, and it is shown by the figures and pages whose code leads to it. A formula without a
test and an unknown key fail the build.
"""

import ast
import importlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from citation_keys import CITATION, defined, items

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
PACKAGE = "firststep"
THEORIES = ("unified", "staircase", "random_features")
# Functions that take the name of a theory, and the theory they take without one.
BY_NAME = {f"{PACKAGE}.theory.predict", f"{PACKAGE}.compare.compare"}
DEFAULT_THEORY = "unified"
# What an experiment file draws beyond the errors, and who computes it.
QUANTITIES = {
    "weights_top": f"{PACKAGE}.theory.limits.weights.spiked_weights",
    "weights_alignment": f"{PACKAGE}.theory.limits.weights.spiked_weights",
    "spectrum": f"{PACKAGE}.theory.spectrum.predict_spectrum",
    "spiked": f"{PACKAGE}.network.spiked_network",
    "gaussian": f"{PACKAGE}.network.gaussian_equivalent",
}
FEW = 2


@dataclass(frozen=True)
class Definition:
    """A function, method or class of the package."""

    name: str  # dotted, by the module that defines it
    docstring: str
    references: frozenset[str]
    tested_by_example: bool

    @property
    def summary(self) -> str:
        """The first sentence."""
        return " ".join(self.docstring.strip().split("\n\n")[0].split()).rstrip(".")

    @property
    def is_method(self) -> bool:
        """Whether it is found on instances, so that only its own name tells who uses it."""
        return self.name.rpartition(".")[0].rpartition(".")[2].lstrip("_")[:1].isupper()


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    key: str
    place: str
    definition: Definition
    tests: tuple[str, ...]
    shown: tuple[str, ...] = field(default=())


@cache
def canonical(name: str) -> str:
    """Dotted name by the module that defines the object: ``firststep.predict`` is ``firststep.theory.predict``."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return name
            found = getattr(found, part)
        module, qualified = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
        return f"{module}.{qualified}" if module and qualified else name
    return name


def _imports(tree: ast.AST) -> dict[str, str]:
    """Local names of what a file imports from the package."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == PACKAGE:
                    found[alias.asname or PACKAGE] = alias.name if alias.asname else PACKAGE
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def references(tree: ast.AST, known: Mapping[str, str]) -> set[str]:
    """What code refers to: canonical names of the package, ``.method`` for attributes of anything else."""
    raw: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            raw.add(f".{node.attr}")
        dotted = _dotted(node)
        if dotted is not None:
            first, _, rest = dotted.partition(".")
            if first in known:
                raw.add(known[first] + (f".{rest}" if rest else ""))
    found = {name if name.startswith(".") else canonical(name) for name in raw}
    if found & BY_NAME:
        texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        named = texts & set(THEORIES) or {DEFAULT_THEORY}
        found |= {f"{PACKAGE}.theory.{theory}.solve" for theory in named}
    return found


def _units(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Functions, classes and methods of a module with their qualified names; the module's own is empty."""
    yield "", tree
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    yield f"{node.name}.{part.name}", part


class Known(dict[str, Definition]):
    """Definitions by their dotted names."""

    @cached_property
    def methods(self) -> dict[str, list[str]]:
        """Names of the methods, by ``.method``."""
        found: dict[str, list[str]] = {}
        for name, definition in self.items():
            if definition.is_method:
                found.setdefault(f".{name.rpartition('.')[2]}", []).append(name)
        return found


def definitions(package: Path) -> Known:
    """Every function, method and class of the package."""
    found = Known()
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree = ast.parse(file.read_text())
        own = {node.name: f"{module}.{node.name}" for node in tree.body if hasattr(node, "name")}
        known = own | _imports(tree)
        for name, node in _units(tree):
            docstring = ast.get_docstring(node) or ""
            inside = frozenset(references(node, known)) if name else frozenset()
            if name:
                found[f"{module}.{name}"] = Definition(
                    f"{module}.{name}", docstring, inside, ">>>" in docstring
                )
    return found


def reached(roots: Iterable[str], known: Known) -> set[str]:
    """Names that the roots lead to, through the package's own code."""
    methods = known.methods
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        # An attribute says which method is meant only if no other has its name.
        found = methods.get(name, [])
        target = found[0] if len(found) == 1 else name
        if target not in seen:
            seen.add(target)
            if target in known:
                waiting += known[target].references
    return seen


def tests_of(folder: Path) -> dict[str, set[str]]:
    """What each test refers to, itself or through the helpers of its file."""
    found = {}
    for file in sorted(folder.glob("test_*.py")):
        tree = ast.parse(file.read_text())
        known = _imports(tree)
        units = {name: node for name, node in _units(tree) if name}
        direct = {name: references(node, known) for name, node in units.items()}
        called = {
            name: {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & set(units) - {name}
            for name, node in units.items()
        }
        for name in units:
            if not name.startswith("test_"):
                continue
            waiting, seen = [name], set()
            while waiting:
                unit = waiting.pop()
                if unit not in seen:
                    seen.add(unit)
                    waiting += called[unit]
            found[f"{file.stem}::{name}"] = set().union(*(direct[unit] for unit in seen))
    return found


def shows(root: Path, known: Known) -> dict[str, set[str]]:
    """What each figure and page leads to: experiments, tutorial, pages with code."""
    found = {}
    for file in sorted((root / "src" / PACKAGE / "experiments").glob("*.toml")):
        text = file.read_text()
        names = {theory["name"] for theory in tomllib.loads(text).get("theory", [])}
        roots = {f"{PACKAGE}.theory.{name}.solve" for name in names} | {f"{PACKAGE}.network.gradient_step"}
        roots |= {target for word, target in QUANTITIES.items() if re.search(rf"\b{word}\b", text)}
        found[f"experiment `{file.stem}`"] = reached(roots, known)
    for file in sorted((root / "examples").glob("*.py")):
        tree = ast.parse(file.read_text())
        label = f"[tutorial {file.stem[0]}](tutorial/{file.stem}.rst)"
        found[label] = reached(references(tree, _imports(tree)), known)
    for file in sorted((root / "docs").glob("[a-z]*.md")) + sorted((root / "docs/theory").glob("*.md")):
        code = "\n".join(re.findall(r"^(?:>>> |\.\.\. )(.*)$", file.read_text(), re.MULTILINE))
        tree = ast.parse(code)
        page = file.relative_to(root / "docs").as_posix()
        # Only what the page's own code names: everything leads somewhere from a page that calls predict.
        found[f"[{file.stem}]({page})"] = {
            name for name in references(tree, _imports(tree)) if not name.startswith(".")
        }
    return found


@cache
def rows(root: Path = ROOT) -> list[Row]:
    """The table: one row for each citation of each docstring, in the order of the code."""
    known = definitions(root / "src" / PACKAGE)
    tests, figures = tests_of(root / "tests"), shows(root, known)
    keys = defined((root / "docs" / "references.md").read_text())
    below = {name: reached([name], known) for name in known if not _is_private(name)}
    table: dict[tuple[str, str, str], Row] = {}
    for name, definition in known.items():
        if _is_private(name) and not name.startswith(f"{PACKAGE}.theory."):
            continue
        for citation in CITATION.finditer(definition.docstring):
            for item in items(citation):
                key, _, place = item.partition(",")
                if key not in keys:
                    raise ValueError(f"{name} cites [{item}], and docs/references.md has no {key}")
                place = " ".join(place.split())
                if (key, place, name) in table:
                    continue
                checked = _checks(definition, tests, below)
                shown = [label for label, targets in figures.items() if name in targets]
                table[key, place, name] = Row(key, place, definition, tuple(checked), tuple(shown))
    return list(table.values())


def _is_private(name: str) -> bool:
    return any(part.startswith("_") for part in name.split("."))


def _checks(
    definition: Definition, tests: Mapping[str, set[str]], below: Mapping[str, set[str]]
) -> list[str]:
    """Tests that refer to the function; where there are none, tests of the public functions that lead to it."""
    own = f".{definition.name.rpartition('.')[2]}" if definition.is_method else definition.name
    found = [test for test, targets in tests.items() if own in targets or definition.name in targets]
    stem = definition.name.split(".")
    if not found:
        above = {
            name
            for name, reach in below.items()
            if definition.name in reach and name.split(".")[1] == stem[1]
        }
        found = [test for test, targets in tests.items() if targets & above]
    # The module's own test file first.
    return sorted(found, key=lambda test: not any(test.startswith(f"test_{part}") for part in stem))


def _target(name: str) -> str:
    """Markdown that links to the documentation of a name, or shows it as code where it has no page of its own."""
    from firststep import __all__ as public

    parts = name.split(".")
    short = ".".join(parts[1:])
    if any(part.startswith("_") for part in parts):
        return f"`{short}`"
    for i in range(2, len(parts)):
        if parts[i] in public:
            return f"{{py:obj}}`{short} <{PACKAGE}.{'.'.join(parts[i:])}>`"
    if len(parts) > 3:
        # A folder that lists its names has one page for these; the others are its own business.
        listed = getattr(importlib.import_module(".".join(parts[:2])), "__all__", None)
        if listed is not None and parts[3] in listed:
            return f"{{py:obj}}`{short} <{'.'.join([*parts[:2], *parts[3:]])}>`"
        if listed is not None:
            return f"`{short}`"
    return f"{{py:obj}}`{short} <{name}>`"


def _few(entries: Iterable[str], form: str = "{}") -> str:
    listed = list(entries)
    text = ", ".join(form.format(entry) for entry in listed[:FEW])
    return text + (f" and {len(listed) - FEW} more" if len(listed) > FEW else "")


def _escaped(text: str) -> str:
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text)
    return CITATION.sub("", text).replace("|", r"\|").strip()


def markdown(table: Iterable[Row]) -> str:
    """Rows as a Markdown table."""
    # Three columns, so that names of functions and tests have room.
    lines = ["| source | what, and the function | tests, and where it is shown |", "| --- | --- | --- |"]
    for row in table:
        checked = _few(row.tests, "`{}`")
        if row.definition.tested_by_example:
            checked = f"{checked}, and its own example" if checked else "its own example"
        source = f"[{row.key}{', ' + row.place if row.place else ''}](#ref-{row.key.lower()})"
        shown = f"<br>in {_few(row.shown)}" if row.shown else ""
        what = f"{_escaped(row.definition.summary)}<br>{_target(row.definition.name)}"
        cells = (source, what, checked + shown)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def setup(app: "Sphinx") -> dict[str, bool]:
    """Register ``{formula-table} keys``."""
    from sphinx.util import logging
    from sphinx.util.docutils import SphinxDirective

    logger = logging.getLogger(__name__)

    class FormulaTable(SphinxDirective):
        """Rows of the named keys, all others for ``*``."""

        required_arguments = 1
        final_argument_whitespace = True

        def run(self) -> "list[nodes.Node]":
            wanted = self.arguments[0].split()
            others = {"Ba22", "Moniri24", "firststep"}
            try:
                table = rows()
            except ValueError as error:
                raise self.severe(str(error)) from None
            chosen = [
                row for row in table if (row.key not in others if wanted == ["*"] else row.key in wanted)
            ]
            if not chosen:
                raise self.severe(f"no docstring cites {self.arguments[0]}")
            for row in chosen:
                if not row.tests and not row.definition.tested_by_example:
                    logger.warning("no test refers to %s, which cites [%s]", row.definition.name, row.key)
            if wanted != ["*"]:
                chosen.sort(key=lambda row: (wanted.index(row.key), not row.place, row.place))
            return list(self.parse_text_to_nodes(markdown(chosen)))

    app.add_directive("formula-table", FormulaTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
