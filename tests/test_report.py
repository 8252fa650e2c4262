"""The report: one file, no network, the numbers of the results, and nothing that a hostile title can break."""

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("pydantic")
pytest.importorskip("matplotlib")
pytest.importorskip("latex2mathml")

from firststep.experiment import Results, parse, run
from firststep.figures import BAND_ROLES, Figure, Panel, Series, colour, render
from firststep.numerics.agreement import counts_text
from firststep.report import (
    PAPERS,
    Section,
    compact_svg,
    inline_svg,
    prose,
    report_html,
    total_agreement,
    write_gallery,
    write_report,
)
from firststep.results import Outcome
from firststep.store import open_store

TEXT = """
title = "Errors & <steps>"
reference = "[Ba22]"
description = '''
With $\\eta = n_0^\\alpha$ & `code`.

A second paragraph.
'''
[problem]
activation = "relu"
teacher = "h1"
[sizes]
n_samples = 40
phi = 0.5
psi = 0.625
[sweep]
step_exponent = [0.0, 0.25, 0.5]
ridge = 0.1
[simulation]
replicas = 3
[[theory]]
name = "staircase"
[[figure]]
kind = "against_step"
caption = "What is <seen>."
"""


@pytest.fixture(scope="module")
def results() -> Results:
    with open_store(None) as store:
        return run(parse(TEXT), store)


@pytest.fixture(scope="module")
def page(results: Results) -> str:
    return report_html(
        [Section("first", results, "firststep run first.toml"), Section("second", results, "x & y")]
    )


class Reader(HTMLParser):
    """Collects identifiers, targets and unbalanced tags."""

    VOID = frozenset({"meta", "br", "path", "use", "rect", "image", "circle", "line"})

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("href", "xlink:href", "src") and value:
                self.targets.append(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def test_it_is_well_formed_and_every_name_is_unique(page: str) -> None:
    reader = read(page)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    assert {target[1:] for target in reader.targets if target.startswith("#")} <= set(reader.ids)


def test_the_reader_notices_a_broken_page() -> None:
    with pytest.raises(AssertionError):
        read("<p><b></p></b>")


def test_it_asks_for_nothing_from_outside(page: str) -> None:
    # Links to papers are followed by whoever wants to; nothing is loaded.
    papers = {target for target in read(page).targets if not target.startswith("#")}
    assert papers <= set(PAPERS.values())
    addresses = set(re.findall(r'(?:https?:)?//[^\s"\'<>)]+', page))
    assert addresses <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/1998/Math/MathML",
        *papers,
    }
    assert "<script" not in page
    assert "default-src 'none'" in page


def test_it_says_what_there_is_to_know(page: str) -> None:
    words = "".join(read(page).words)
    for text in (
        "Errors & <steps>",
        "[Ba22]",
        "What is <seen>.",
        "firststep run first.toml",
        "A second paragraph.",
    ):
        assert text in words
    assert "<math" in page
    assert "n = 40" in words
    assert "replicas" in words
    assert "numpy" in words


def test_numbers_are_those_of_the_results(results: Results, page: str) -> None:
    entry = next(e for e in results.agreement() if e["quantity"] == "test_error")
    assert f"<td>{entry['median']:.1f}</td><td>{entry['largest']:.1f}</td>" in page


def test_the_summary_counts_curves(results: Results, page: str) -> None:
    total = total_agreement([results, results])
    words = [entry["words"] for entry in results.main_agreement()]
    assert {sum(counts.values()) for counts in words} == {1}
    assert f"of {2 * len(words)} curves agree with the theory" in total.replace("All ", "of ")
    assert html.escape(total) in page
    # A theory that is far off is counted as such.
    wrong = [
        replace(entry, points=tuple(_times(outcome, 3.0) for outcome in entry.points))
        for entry in results.predicted
    ]
    assert "disagree" in total_agreement([replace(results, predicted=tuple(wrong))])
    assert total_agreement([]) == "Nothing was compared."


def _times(outcome: Outcome, factor: float) -> Outcome:
    return replace(outcome, values={name: factor * value for name, value in outcome.values.items()})


def test_equal_results_give_equal_pages(results: Results, page: str) -> None:
    again = [Section("first", results, "firststep run first.toml"), Section("second", results, "x & y")]
    assert report_html(again) == page


def test_what_is_missing_is_said(results: Results, tmp_path: Path) -> None:
    from dataclasses import replace

    broken = replace(results, missing=3, failures=(("replica 1", "ended 3 workers <x>"),))
    text = write_report([Section("a", broken, "c")], tmp_path / "r.html").read_text(encoding="utf-8")
    assert "3 points are missing" in text
    assert "ended 3 workers &lt;x&gt;" in text


def test_colours_follow_the_theme() -> None:
    colours: dict[str, str] = {}
    series = [
        Series("line", x=(0, 1), y=(0, 1), role="theory"),
        Series("line", x=(0, 1), y=(1, 0), role="ramp:0.5"),
    ]
    text = inline_svg(Figure("", (Panel(tuple(series)),)), "a", colours)
    assert "var(--c0072b2)" in text
    assert "#0072b2" not in text
    assert colours["#0072b2"] == "#56b4e9"
    assert len(colours) > 3
    assert 'role="img"' in text


def test_values_of_a_map_follow_the_theme_and_are_spoken_of() -> None:
    colours: dict[str, str] = {}
    values = [0.0, 0.2, 0.9, 1.0]
    panel = Panel(
        (Series("map", x=(0, 1), y=(0, 1), z=values, label="theory"),),
        x_label="n",
        y_label="α",
        z_label="share",
    )
    text = inline_svg(Figure("", (panel,)), "a", colours)
    for role in BAND_ROLES:
        assert colours[colour(role)] == colour(role, "dark")
        assert colour(role) not in text
    assert 'aria-label="share against n and α: theory"' in text


def test_a_gallery_has_every_figure_twice_and_equal_bytes(results: Results, tmp_path: Path) -> None:
    sections = [Section("first", results, "firststep run first.toml")]
    page = write_gallery(sections, tmp_path / "gallery.md").read_text(encoding="utf-8")
    named = re.findall(r"^```\{image\} (\S+)$", page, re.MULTILINE)
    assert named == ["gallery/first-1-light.svg", "gallery/first-1-dark.svg"]
    pictures = {file.name: file.read_bytes() for file in (tmp_path / "gallery").iterdir()}
    assert {f"gallery/{name}" for name in pictures} == set(named)
    assert b"#d55e00" in pictures["first-1-light.svg"]
    assert b"#ff9a57" in pictures["first-1-dark.svg"]
    for text in (
        "## Errors & <steps>",
        "Source: [Ba22].",
        "What is <seen>.",
        "firststep run first.toml",
        "n = 40",
    ):
        assert text in page
    entry = next(e for e in results.agreement() if e["quantity"] == "test_error")
    counts = counts_text(entry["words"])
    numbers = f"{entry['points']} | {entry['median']:.1f} | {entry['largest']:.1f}"
    assert f"| staircase | test error | {counts} | {numbers} |" in page
    (tmp_path / "again").mkdir()
    again = write_gallery(sections, tmp_path / "again" / "gallery.md")
    assert again.read_text(encoding="utf-8") == page
    assert {f.name: f.read_bytes() for f in (tmp_path / "again" / "gallery").iterdir()} == pictures


def test_a_compact_drawing_is_the_same_to_the_eye() -> None:
    series = Series("line", x=range(300), y=[1 / (1 + x) for x in range(300)])  # type: ignore[arg-type]
    whole = render(Figure("", (Panel((series,)),)), "svg")
    short = compact_svg(whole)
    assert len(short) < 0.85 * len(whole)
    paths = [re.findall(rb' d="([^"]*)"', text) for text in (whole, short)]
    before, after = ([float(n) for n in re.findall(rb"-?[\d.]+", b" ".join(found))] for found in paths)
    assert len(before) > 500
    assert after == pytest.approx(before, abs=0.005 + 1e-9)
    letters = [re.findall(rb"[MLQCz]", b" ".join(found)) for found in paths]
    assert letters[0] == letters[1]


def test_a_formula_keeps_the_stop_behind_it() -> None:
    assert prose("With $x$. And $y$ too").count('<span class="together"><math') == 1
    assert "</math>.</span> And" in prose("With $x$. And $y$ too")


def test_prose_keeps_a_lone_dollar_and_escapes() -> None:
    assert prose("5 $ < 6") == "<p>5 $ &lt; 6</p>"
    assert prose("") == ""


@pytest.mark.parametrize("label", [r"$\\eta \\to \\infty$", r"one \\1 two \\g<0>", r"\\\\"])
def test_a_backslash_of_a_label_is_kept(label: str) -> None:
    """A label is no template of a replacement, where it ended the report or lost its letters."""
    text = TEXT.replace('name = "staircase"', f'name = "staircase"\nlabel = "{label}"')
    with open_store(None) as store:
        found = run(parse(text), store)
    made = report_html([Section("first", found, "x")])
    spoken = re.findall(r'aria-label="([^"]*)"', made)
    assert any(html.escape(label.replace("\\\\", "\\")) in one for one in spoken)


@pytest.mark.parametrize(
    "latex", [r"\frac", r"\href{javascript:alert(1)}{x}", r"\left( x", r"\begin{matrix}", "{", "^"]
)
def test_what_is_no_formula_stays_as_it_was_written(latex: str) -> None:
    made = prose(f"${latex}$")
    assert made.startswith("<p>")
    assert not re.search(r"<[^>]*(href|javascript|src)", made)
    assert html.escape(latex) in made or "<math" in made


def test_the_verdict_and_a_figure_come_first(results: Results, page: str) -> None:
    body = page[page.index("<body>") :]
    verdict = body.index(html.escape(total_agreement([results, results])))
    assert verdict < body.index("<svg") < body.index("Lines are theory") < body.index("<nav")
    assert 'href="https://arxiv.org/abs/2205.01445">Ba22</a>' in body


def test_the_foot_says_when_and_with_what(results: Results) -> None:
    import numpy as np

    foot = report_html([Section("first", results, "x")], date="2026-01-31").rpartition("<footer>")[2]
    assert "Written 2026-01-31." in foot
    assert f"numpy {np.__version__}" in foot


def test_links_are_those_of_the_references() -> None:
    references = (Path(__file__).parent.parent / "docs" / "references.md").read_text()
    for key, address in PAPERS.items():
        assert f"**[{key}]**" in references
        assert f"arXiv:{address.removeprefix('https://arxiv.org/abs/')}" in references
