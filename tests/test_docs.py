"""The documentation keeps its word: links lead somewhere, commands exist, formulas have tests, names have examples."""

import ast
import importlib
import importlib.util
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

import firststep
from firststep.cli.app import main

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "docs/[a-z]*/*.md")
    for page in ROOT.glob(pattern)
    if not {"generated", "tutorial", "notebooks"} & set(page.parts) and page.name != "paper.md"
)


def extension(name: str) -> ModuleType:
    """A Sphinx extension of docs/_ext, which the tests use without Sphinx."""
    folder = str(ROOT / "docs" / "_ext")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def without_code(text: str) -> str:
    """A page's prose: brackets in code and formulas are no links."""
    text = re.sub(r"^```.*?^```$|\$\$.*?\$\$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`|(?<!\\)\$[^$\n]*\$", "", text)


def slug(heading: str) -> str:
    """Anchor of a heading, as GitHub and MyST make it."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`$*]", "", words)).replace(" ", "-")


def anchors(text: str) -> set[str]:
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return {slug(heading) for heading in headings} | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


def broken_links(page: Path, text: str) -> list[str]:
    """Relative links of a page that lead nowhere; tutorial pages are made of examples/, notebooks of notebooks/."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if place == ROOT / "docs" / "paper.md":
            found = (ROOT / "paper" / "paper.md").exists()
        elif place.parent == ROOT / "docs" / "notebooks":
            found = (ROOT / "notebooks" / f"{place.stem}.ipynb").exists()
        elif place.parent == ROOT / "docs" / "tutorial":
            made = {"index", *(script.stem for script in (ROOT / "examples").glob("*.py"))}
            found = place.suffix == ".rst" and place.stem in made
        else:
            found = place.exists()
        if found and anchor and place.suffix == ".md":
            found = anchor in anchors(text if place == page else place.read_text())
        if not found:
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


def test_broken_links_are_seen() -> None:
    text = (
        "# A title, with $x$\n[](docs/nowhere.md) [a](#a-title-with-x) [b](#b) `[c](c)` [](docs/tutorial/9_no.rst)\n"
        "[](docs/notebooks/9_no.md) [](docs/notebooks/1_double_descent.md)\n"
        "[](https://example.org) [](LICENSE) [](docs/references.md#ref-ba22) [](docs/references.md#ref-no)\n"
    )
    wrong = broken_links(ROOT / "README.md", text)
    nowhere = ["docs/nowhere.md", "#b", "docs/tutorial/9_no.rst", "docs/notebooks/9_no.md"]
    assert wrong == [*nowhere, "docs/references.md#ref-no"]


# Pages that a program writes, and the list of changes, which is read one entry at a time.
NOT_FOLDED = {"gallery.md", "calibration.md", "explorer.md", "CHANGELOG.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_prose_is_folded(page: Path) -> None:
    if page.name in NOT_FOLDED:
        return
    long = extension("fold").long_lines(page.read_text())
    assert not long, f"run python docs/_ext/fold.py {page.relative_to(ROOT)}"


def test_folding_keeps_what_must_stay_whole() -> None:
    fold = extension("fold")
    code, formula, link = f"`{'a ' * 30}b`", f"${'x + ' * 15}y$", "[some words](a.md)"
    text = f"* {code} and {formula}, {link} " + "word - " * 30 + "\n"
    folded = fold.fold(text)
    assert folded.split() == text.split()
    assert all(part in folded for part in (code, formula, link))
    assert not re.search(r"^\s*- ", folded, re.MULTILINE)
    assert fold.long_lines(text)
    assert not fold.long_lines(folded)
    table = "| " + "cell " * 40 + "|\n"
    block = "```python\n" + "x = 1  # " + "why " * 40 + "\n```\n"
    assert fold.fold(table + block) == table + block
    display = "$$\n" + "x = y + z, \\qquad\n" + "a b c = d e f, \\qquad " * 9 + "\n$$\n"
    assert fold.fold(display).splitlines()[1] == "x = y + z, \\qquad"
    assert max(map(len, fold.fold(display).splitlines())) <= 100


def test_numbers_without_braces_are_seen() -> None:
    bare = extension("mathml").bare_arguments
    for wrong in (r"\frac14", r"\tfrac12 E", r"\frac n12", r"x^12", r"\sqrt12", r"\frac{a}23"):
        assert bare(wrong), wrong
    for right in (
        r"\frac1n",
        r"\frac{1}{4}",
        r"\frac n2",
        r"x^{12}",
        r"x^2 2",
        r"\sqrt2",
        r"\frac1{n_0}",
        r"\frac nN",
    ):
        assert not bare(right), right


def test_a_long_formula_may_go_on_in_the_next_line() -> None:
    pieces = extension("mathml").pieces
    long = r"q = (a + b + c + d + e + f + g + h + i)^2 + \|x - y\|^2 - \lVert u - v\rVert, \qquad r = 1"
    assert pieces(long) == [
        r"q = (a + b + c + d + e + f + g + h + i)^2 ",
        r"+ \|x - y\|^2 - \lVert u - v\rVert, \qquad",
        " r = 1",
    ]
    by_hand = r"a &= b \\ &= c, \qquad d"
    assert pieces(by_hand) == [by_hand]
    grouped = r"\left[" + "a + " * 20 + r"b \quad c\right]"
    assert pieces(grouped) == [grouped]


def test_no_formula_lacks_braces() -> None:
    bare = extension("mathml").bare_arguments
    sources = [*PAGES, *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    formulas = re.compile(
        r"\$\$.*?\$\$|(?<![\\$])\$[^$\n]+\$|\.\. math::.*?(?=\n\s*\n)|:math:`[^`]*`", re.DOTALL
    )
    wrong = [
        (file.name, found)
        for file in sources
        for text in formulas.findall(file.read_text())
        for found in bare(text)
    ]
    assert wrong == []


def shell_lines(text: str) -> Iterator[str]:
    """Commands of the shell blocks, continuation lines joined."""
    for block in re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield from block.replace("\\\n", " ").splitlines()


def unknown_commands(line: str) -> list[str]:
    """What a shell line asks of firststep that it does not have."""
    words = shlex.split(line, comments=True)
    if words[:2] == ["./run", "firststep"]:
        words = words[1:]
    if not words or words[0] != "firststep":
        return []
    command = main.get_command(click.Context(main), words[1])
    if command is None:
        return [words[1]]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return [word for word in words[2:] if word.startswith("-") and word not in {*known, "--help"}]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_exist(page: Path) -> None:
    wrong = [(line, unknown_commands(line)) for line in shell_lines(page.read_text())]
    assert [entry for entry in wrong if entry[1]] == []


def test_commands_that_do_not_exist_are_seen() -> None:
    assert unknown_commands("firststep nonsense --json") == ["nonsense"]
    assert unknown_commands("./run firststep compare --ridge 0.1 --nonsense 3  # why") == ["--nonsense"]
    assert unknown_commands("dask scheduler --port 8786") == []
    assert list(shell_lines("```sh\na \\\n  b\n```\n```python\nc\n```\n")) == ["a    b"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_that_is_not_run_is_at_least_right(page: Path) -> None:
    blocks = re.findall(r"^```(python|toml)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    for kind, code in blocks:
        if kind == "toml":
            tomllib.loads(code)
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("firststep"):
                module = importlib.import_module(str(node.module))
                missing = [
                    alias.name
                    for alias in node.names
                    if not hasattr(module, alias.name)
                    and importlib.util.find_spec(f"{node.module}.{alias.name}") is None
                ]
                assert not missing, f"{page.name} imports {missing} from {node.module}"


def test_every_public_name_has_an_example() -> None:
    without = [name for name in firststep.__all__ if ">>>" not in (getattr(firststep, name).__doc__ or "")]
    assert not without, f"no example in the docstring of {', '.join(without)}"


def test_every_extra_that_a_message_names_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        extra.strip()
        for file in [*(ROOT / "src").rglob("*.py"), *PAGES, *(ROOT / "examples").glob("*.py")]
        for found in re.findall(r"firststep\[([\w, ]+)\]", file.read_text())
        for extra in found.split(",")
    }
    assert named
    assert named <= set(extras)


class TestFormulaTable:
    def test_papers_have_their_formulas_functions_and_tests(self) -> None:
        table = extension("formula_table").rows()
        rows = {(row.key, row.place): row for row in table}
        second = rows["Moniri24", "eq. 2"]
        assert second.definition.name == "firststep.theory.limits.staircase.delta_2"
        assert any("test_staircase" in test for test in second.tests)
        assert {"eq. 1", "eq. 2", "eq. 3", "eq. 4", "general case"} <= {
            row.place for row in table if row.key == "Moniri24"
        }
        unchecked = [
            row.definition.name for row in table if not row.tests and not row.definition.tested_by_example
        ]
        assert not unchecked, f"formulas without a test: {unchecked}"

    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        """A package with two formulas, of which one has a test."""
        for folder in ("src/firststep", "tests", "docs/theory", "examples"):
            (tmp_path / folder).mkdir(parents=True)
        (tmp_path / "docs/references.md").write_text("(ref-ba22)=\n**[Ba22]** Ba.\n")
        module = 'def one():\n    """Tested [Ba22, eq. 1]."""\n\n\ndef two():\n    """Not tested [Ba22, eq. 2]."""\n'
        (tmp_path / "src/firststep/sums.py").write_text(module)
        tests = "from firststep.sums import one\n\n\ndef helper():\n    one()\n\n\ndef test_one():\n    helper()\n"
        (tmp_path / "tests/test_sums.py").write_text(tests)
        return tmp_path

    def test_a_formula_without_a_test_has_none(self, project: Path) -> None:
        one, two = extension("formula_table").rows(project)
        assert (one.place, one.tests, two.place, two.tests) == (
            "eq. 1",
            ("test_sums::test_one",),
            "eq. 2",
            (),
        )

    def test_an_unknown_key_is_refused(self, project: Path) -> None:
        (project / "src/firststep/more.py").write_text('def three():\n    """Wrong [Nobody99]."""\n')
        with pytest.raises(ValueError, match=r"three cites \[Nobody99\]"):
            extension("formula_table").rows(project)

    def test_figures_are_found_through_what_they_call(self) -> None:
        (row,) = (row for row in extension("formula_table").rows() if row.place == "eq. 3")
        assert any("corrections" in label for label in row.shown)
        with_weights = [
            row
            for row in extension("formula_table").rows()
            if row.definition.name == "firststep.theory.limits.weights.spiked_weights"
        ]
        assert any("tutorial/2_one_step" in label for label in with_weights[0].shown)


class TestNotebooks:
    def test_a_page_has_what_cells_say_and_draw(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        made = extension("notebooks")
        cells = [
            "import matplotlib.pyplot as plt\nprint('said')",
            "plt.plot([1, 2]);",
            "class Shown:\n    def _repr_svg_(self):\n        return '<svg/>'\nShown()",
            "1 + 1",
        ]
        notebook = {"cells": [{"cell_type": "code", "source": [cell]} for cell in cells]}
        notebook["cells"].insert(0, {"cell_type": "markdown", "source": ["# A title"]})
        text = made.page(notebook, made.results(cells, tmp_path / "some"), "some.ipynb")
        assert text.startswith("# A title\n")
        assert "```text\nsaid\n```" in text
        assert "](some-1-1.svg)" in text
        assert (tmp_path / "some-1-1.svg").exists()
        assert '<div class="result"><svg/></div>' in text
        assert "```text\n2\n```" in text
        assert "Line2D" not in text

    def test_a_cell_that_fails_or_warns_is_seen(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        made = extension("notebooks")
        for cell in ("1 / 0", "import warnings\nwarnings.warn('beware')"):
            with pytest.raises(RuntimeError, match=r"division|beware"):
                made.results([cell], tmp_path / "some")


class TestPaper:
    def test_every_citation_has_an_entry(self) -> None:
        folder = ROOT / "paper"
        text, wrong = extension("paper").page(
            (folder / "paper.md").read_text(), (folder / "paper.bib").read_text()
        )
        assert wrong == []
        assert "(Ba et al., 2022)" in text
        assert "@" not in text

    def test_mistakes_are_seen(self) -> None:
        paper = "---\ntitle: 'A'\n---\n\n# One\n\nAs @b2020 and [@c2020].\n"
        fields = ("author = {Bee, A. and Cee, B.},", "title = {T},", "booktitle = {J},", "year = {2020},")
        bib = "@article{b2020,\n  " + "\n  ".join(fields) + "\n}\n"
        text, wrong = extension("paper").page(paper, bib.replace("b2020", "d2020"))
        assert wrong == [
            "b2020 is cited and not in paper.bib",
            "c2020 is cited and not in paper.bib",
            "d2020 is in paper.bib and not cited",
        ]
        text, _ = extension("paper").page(paper, bib)
        assert "As Bee and Cee (2020) and" in text


def test_every_chapter_of_the_theory_begins_with_what_one_needs_and_has_a_picture() -> None:
    chapters = [page for page in sorted((ROOT / "docs" / "theory").glob("*.md")) if page.stem != "index"]
    for page in [*chapters, ROOT / "docs" / "unified.md"]:
        opening, _, _ = page.read_text().partition("\n## ")
        assert "\n\n**In short.** " in opening, page.name
        pictures = re.findall(r"```\{image\} (\S+)", opening)
        assert pictures, page.name
        assert all((page.parent / name).is_file() for name in pictures)
