"""Every figure with its settings, its agreement and its origin: one HTML file that needs no network, or Markdown."""

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firststep import __version__, figures
from firststep.experiment import Experiment, Results, build_figures
from firststep.experiment.panels import WORDS
from firststep.figures import Figure, Panel, number_text


@dataclass(frozen=True)
class Section:
    """One experiment of a report, with the command that makes it again."""

    name: str
    results: Results
    command: str


# Inches: narrow, so that the letters can still be read where a panel is as wide as a phone.
PANEL_WIDTH = 6.2

INTRODUCTION = """
Lines are theory, points are drawn networks: mean ± one standard error over replicas. Train errors contain the
penalty of the ridge fit, test errors the noise of the labels, unless an axis says otherwise. Distances between
theory and simulation are in standard errors; all points of a curve share their draws, so ten distances of 2 may be
one surprise and not ten. At finite size a theory of the limit also has a bias that shrinks with the size.
""".strip()

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1f2328; --soft: #59616b; --rule: #d9dde2;
  --wash: #f5f7f9; --link: #0b5ea8; %LIGHT% }
@media (prefers-color-scheme: dark) { :root { --paper: #16191d; --ink: #e6e8ea; --soft: #a3abb4; --rule: #333a42;
  --wash: #1e2329; --link: #7cc0f5; %DARK% } }
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100% }
body { margin: 0 auto; padding: 1.25rem clamp(1rem, 4vw, 3rem) 4rem; max-width: 76rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.6 system-ui, sans-serif }
h1 { font-size: clamp(1.5rem, 4vw, 2.2rem); line-height: 1.2; margin: 1rem 0 .5rem }
h2 { font-size: clamp(1.2rem, 3vw, 1.55rem); line-height: 1.25; margin: 0 }
p, li { max-width: 46rem }
a { color: var(--link) }
section { border-top: 1px solid var(--rule); margin-top: 2.5rem; padding-top: 1.5rem }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem;
  margin: 1.25rem 0 .25rem }
.panels svg { width: 100%; height: auto; display: block }
.alone { max-width: 38rem }
figure { margin: 0 } figcaption { color: var(--soft); max-width: 46rem }
.setting { color: var(--soft); margin: .75rem 0 0 }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 }
th, td { text-align: right; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--rule); vertical-align: top }
th:first-child, td:first-child, td.text, th.text { text-align: left }
th { font-weight: 600; color: var(--soft) }
td { white-space: nowrap } .overview td, td.long { white-space: normal } td.long { min-width: 10rem }
.overview th[scope] { text-align: left; padding-top: .8rem; border: 0 } .overview td:first-child { padding-left: 1rem }
.overview td:last-child, .overview th:last-child { padding-right: 0 }
.together { white-space: nowrap }
code, pre { font: .9em/1.5 ui-monospace, monospace; background: var(--wash); border-radius: 4px }
code { padding: .1em .3em } pre { padding: .6rem .8rem; overflow-x: auto }
details { margin-top: .75rem } summary { cursor: pointer; color: var(--soft) }
.reference { color: var(--soft) }
.warning { border-left: 3px solid #d55e00; padding-left: .8rem }
math { font-size: 1.05em }
@media print { section { break-inside: avoid } details > * { display: block } }
"""


def write_report(sections: Sequence[Section], path: str | Path) -> Path:
    """Write the report of some experiments to an HTML file.

    Parameters
    ----------
    sections : sequence of Section
        In the order of the report.
    path : path
        The file.
    """
    target = Path(path)
    target.write_text(report_html(sections), encoding="utf-8")
    return target


def report_html(sections: Sequence[Section]) -> str:
    """The report as a string; equal results give equal text."""
    colours: dict[str, str] = {}
    bodies = [_section(section, place, colours) for place, section in enumerate(sections)]
    light = " ".join(f"--c{colour[1:]}: {colour};" for colour in colours)
    dark = " ".join(f"--c{colour[1:]}: {other};" for colour, other in colours.items())
    style = STYLE.replace("%LIGHT%", light).replace("%DARK%", dark)
    contents = "".join(
        f'<li><a href="#{html.escape(s.name)}">{html.escape(s.results.experiment.title)}</a></li>'
        for s in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>firststep: theory and simulation side by side</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>One gradient step: theory and simulation side by side</h1>
<p>{INTRODUCTION}</p>
<nav aria-label="Experiments"><ol>{contents}</ol></nav>
{_overview(sections)}
</header>
<main>
{"".join(bodies)}
</main>
<footer><p class="reference">firststep {html.escape(__version__)}</p></footer>
</body>
</html>
"""


def write_gallery(sections: Sequence[Section], path: str | Path) -> Path:
    """Write a page of some experiments in Markdown, as Sphinx with MyST reads it, and its figures beside it.

    Figures go as SVG into a folder named like the page, each for light and for dark paper; what else is in the
    folder stays. Equal results give equal bytes.

    Parameters
    ----------
    sections : sequence of Section
        In the order of the page.
    path : path
        The page, ending in .md.
    """
    target = Path(path)
    folder = target.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"# Gallery\n\n{INTRODUCTION}"]
    for section in sections:
        drawn = []
        for place, figure in enumerate(build_figures(section.results), start=1):
            panels = dict.fromkeys(_spoken(panel) for panel in figure.panels)
            said = "; ".join([*figure.title.split("\n"), *panels])
            for theme in ("light", "dark"):
                file = folder / f"{section.name}-{place}-{theme}.svg"
                file.write_bytes(compact_svg(figures.render(figure, "svg", theme=theme)))
                drawn.append(
                    f"```{{image}} {folder.name}/{file.name}\n:class: only-{theme}\n:alt: {said}\n```\n"
                )
            drawn.append(f"{figure.caption}\n")
        parts.append(_gallery_section(section, "\n".join(drawn)))
    origins = {line for section in sections for line in _origins(section.results)}
    parts.append("\n".join(["## Computed with", "", *(f"* {line}" for line in sorted(origins))]))
    target.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    return target


def _gallery_section(section: Section, drawn: str) -> str:
    results = section.results
    lines = [f"## {results.experiment.title}", "", results.experiment.description.strip()]
    if results.experiment.reference:
        lines += ["", f"Source: {results.experiment.reference}."]
    if results.missing:
        lines += ["", f"**{results.missing} points are missing.**"]
    lines += ["", drawn]
    entries = [entry for entry in results.agreement() if "gain" not in entry["quantity"]]
    if entries:
        lines += [
            "| theory | quantity | points | median distance | largest | or in % |",
            "| --- | --- | --: | --: | --: | --: |",
        ]
        for entry in entries:
            share = "–" if math.isnan(entry["relative"]) else f"{100 * entry['relative']:.1f}"
            lines.append(
                f"| {entry['theory']} | {quantity_text(entry['quantity'])} | {entry['points']} "
                f"| {entry['median']:.1f} | {entry['largest']:.1f} | {share} |"
            )
    return "\n".join([*lines, "", f"```sh\n{section.command}\n```"])


def compact_svg(content: bytes) -> bytes:
    r"""An SVG without comments and spare blanks, its coordinates to a hundredth of a point, which nobody can see.

    Examples
    --------
    >>> compact_svg(b'<path d="M 1.23456 2.5 \nL 3.999999 4"/>\n  <!-- 1 -->\n  <g transform="scale(0.015625)"/>')
    b'<path d="M1.23 2.5L4 4"/>\n<g transform="scale(0.015625)"/>'
    """

    def rounded(number: re.Match[bytes]) -> bytes:
        return f"{float(number[0]):.2f}".rstrip("0").rstrip(".").encode()

    def shorter(attribute: re.Match[bytes]) -> bytes:
        text = re.sub(rb"-?\d+\.\d{3,}", rounded, attribute[0])
        return re.sub(rb"\s*([MLQCz])\s*", rb"\1", text) if text.startswith(b"d=") else text

    content = re.sub(rb"<!--.*?-->|<metadata>.*?</metadata>", b"", content, flags=re.DOTALL)
    content = re.sub(rb'\b(?:d|x|y|width|height)="[^"]*"|translate\([^)]*\)', shorter, content)
    return re.sub(rb"\s*\n\s*", b"\n", content)


def _overview(sections: Sequence[Section]) -> str:
    """Agreement of the first theory of each experiment, in a line each."""
    body = ""
    for section in sections:
        entries = [e for e in section.results.agreement() if not e["theory"].startswith("Gaussian")]
        theories = dict.fromkeys(entry["theory"] for entry in entries)
        chosen = "unified" if "unified" in theories else next(iter(theories), None)
        shown = [e for e in entries if e["theory"] == chosen and "gain" not in e["quantity"]]
        if shown:
            link = (
                f'<a href="#{html.escape(section.name)}">{html.escape(section.results.experiment.title)}</a>'
            )
            rows = "".join(f"<tr>{_agreement_cells(entry, brief=True)}</tr>" for entry in shown)
            body += f'<tbody><tr><th colspan="4" scope="rowgroup">{link}</th></tr>{rows}</tbody>'
    if not body:
        return ""
    head = "<th>quantity</th><th>median</th><th>largest</th><th>or in %</th>"
    return (
        "<h2>Distance between theory and simulation, in standard errors</h2>"
        f'<div class="wide"><table class="overview"><thead><tr>{head}</tr></thead>{body}</table></div>'
    )


AGREEMENT_HEAD = (
    '<th class="text">theory</th><th class="text">quantity</th><th>points</th><th>median distance</th>'
    "<th>largest</th><th>or in %</th>"
)


def _agreement_cells(entry: Mapping[str, Any], brief: bool = False) -> str:
    relative = "–" if math.isnan(entry["relative"]) else f"{100 * entry['relative']:.1f}"
    quantity = f'<td class="text">{html.escape(quantity_text(entry["quantity"]))}</td>'
    numbers = f"<td>{entry['median']:.1f}</td><td>{entry['largest']:.1f}</td><td>{relative}</td>"
    if brief:
        return quantity + numbers
    return (
        f'<td class="text">{html.escape(entry["theory"])}</td>{quantity}<td>{entry["points"]}</td>{numbers}'
    )


def quantity_text(name: str) -> str:
    """A quantity in words.

    Examples
    --------
    >>> quantity_text("weights_top"), quantity_text("test_gain")
    ('largest singular value of W₁', 'gain in test error')
    """
    return WORDS.get(name, name.replace("_", " "))


def _gaps(results: Results) -> str:
    """What is missing, and why where that is known."""
    if not results.missing and not results.failures:
        return ""
    items = "".join(
        f"<li>{html.escape(label)}: {html.escape(message)}</li>" for label, message in results.failures
    )
    return f'<div class="warning"><p>{results.missing} points are missing.</p><ul>{items}</ul></div>'


def _section(section: Section, place: int, colours: dict[str, str]) -> str:
    results = section.results
    experiment = results.experiment
    drawn = "".join(
        _figure(figure, f"s{place}f{i}", colours) for i, figure in enumerate(build_figures(results))
    )
    reference = (
        f' <span class="reference">{html.escape(experiment.reference)}</span>' if experiment.reference else ""
    )
    entries = results.agreement()
    agreement = ""
    if entries:
        body = "".join(f"<tr>{_agreement_cells(entry)}</tr>" for entry in entries)
        agreement = (
            "<details><summary>Agreement in standard errors</summary>"
            f'<div class="wide"><table><tr>{AGREEMENT_HEAD}</tr>{body}</table></div></details>'
        )
    return f"""<section id="{html.escape(section.name)}">
<h2>{html.escape(experiment.title)}{reference}</h2>
{prose(experiment.description)}
{_gaps(results)}
{drawn}
{agreement}
<details><summary>Settings and origin</summary>
<div class="wide"><table>{_settings(experiment, results)}</table></div>
</details>
<p>To make it again: <code>{html.escape(section.command)}</code></p>
</section>
"""


def _figure(figure: Figure, prefix: str, colours: dict[str, str]) -> str:
    """Each panel as an SVG of its own, so that they stand side by side or, on a phone, below each other."""
    drawings = [
        inline_svg(Figure(panel.title, (replace(panel, title=""),)), f"{prefix}p{i}", colours)
        for i, panel in enumerate(figure.panels)
    ]
    alone = " alone" if len(drawings) == 1 else ""
    title = (
        f'<p class="setting">{html.escape(figure.title).replace(chr(10), "<br>")}</p>' if figure.title else ""
    )
    caption = f"<figcaption>{html.escape(figure.caption)}</figcaption>" if figure.caption else ""
    return f'<figure>{title}<div class="panels{alone}">{"".join(drawings)}</div>{caption}</figure>'


def inline_svg(figure: Figure, prefix: str, colours: dict[str, str]) -> str:
    """A figure's SVG made fit for a page: own names, colours that follow the theme, a text for screen readers.

    Colours that are used are added to `colours`, each with its counterpart on dark paper.
    """
    text = figures.render(figure, "svg", width=PANEL_WIDTH).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id|xlink:href|href)="(#?)([^"]+)"', rf'\1="\2{prefix}-\3"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    for light, dark in _counterparts(figure).items():
        if light in text:
            colours[light] = dark
            text = text.replace(light, f"var(--c{light[1:]})")
    said = html.escape("; ".join(_spoken(panel) for panel in figure.panels))
    return re.sub(
        r'<svg\b[^>]*?viewBox="([^"]+)"[^>]*>',
        rf'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        rf'viewBox="\1" role="img" aria-label="{said}">',
        text,
        count=1,
    )


def _spoken(panel: Panel) -> str:
    labels = dict.fromkeys(series.label for series in panel.series if series.label)
    return f"{panel.y_label} against {panel.x_label}: {', '.join(labels)}"


def _counterparts(figure: Figure) -> dict[str, str]:
    """Colours on light paper with those of the same role on dark paper."""
    roles = [*figures.PALETTES["light"], *(s.role for panel in figure.panels for s in panel.series)]
    return {figures.colour(role): figures.colour(role, "dark") for role in roles}


def _settings(experiment: Experiment, results: Results) -> str:
    """Everything that was chosen, and where it was computed."""
    lines: list[tuple[str, str]] = []
    for heading, part in (("problem", experiment.problem), ("sizes", experiment.sizes)):
        given = {k: v for k, v in part.model_dump().items() if v is not None}
        lines += [(f"{heading}: {name.replace('_', ' ')}", _shown(value)) for name, value in given.items()]
    lines += [(f"swept: {name.replace('_', ' ')}", _shown(v)) for name, v in experiment.sweep.axes().items()]
    if experiment.simulation is not None:
        lines.append(("replicas", str(results.expected_replicas)))
        lines.append(("seed and precision", f"{experiment.simulation.seed}, {experiment.simulation.dtype}"))
    for entry in results.predicted:
        options = ", ".join(f"{name} = {value}" for name, value in entry.theory.options.items())
        lines.append(("theory", entry.label + (f" ({options})" if options else "")))
    lines += [("computed with", line) for line in _origins(results)]
    return "".join(
        f'<tr><td>{html.escape(name)}</td><td class="text long">{html.escape(value)}</td></tr>'
        for name, value in lines
    )


def _origins(results: Results) -> list[str]:
    return [", ".join(f"{k} {_shown(v)}" for k, v in origin.items()) for origin in results.provenance]


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        if len(value) > 12:
            return f"{_shown(value[0])}, {_shown(value[1])}, … {_shown(value[-1])} ({len(value)} values)"
        return ", ".join(_shown(entry) for entry in value)
    return number_text(value) if isinstance(value, int | float) else str(value)


def prose(text: str) -> str:
    r"""Paragraphs as HTML, with formulas between $ signs as MathML and words between backticks as code.

    Examples
    --------
    >>> prose("A `word` & more.")
    '<p>A <code>word</code> &amp; more.</p>'
    >>> "<math" in prose(r"With $\\eta$.")
    True
    """
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]
    return "\n".join(f"<p>{_inline(paragraph)}</p>" for paragraph in paragraphs)


def _inline(text: str) -> str:
    # A formula keeps the sign behind it: a line must not begin with a full stop.
    parts = re.split(r"(\$[^$]+\$[.,;:)]*|`[^`]+`)", text)
    made = []
    for part in parts:
        inside, _, behind = part[1:].partition("$") if part.startswith("$") else ("", "", "")
        if inside and behind:
            made.append(f'<span class="together">{formula(inside)}{html.escape(behind)}</span>')
        elif inside and part.endswith("$"):
            made.append(formula(inside))
        elif len(part) > 2 and part[0] == part[-1] == "`":
            made.append(f"<code>{html.escape(part[1:-1])}</code>")
        else:
            made.append(html.escape(part))
    return "".join(made)


def formula(latex: str) -> str:
    """A formula as MathML, which browsers draw by themselves."""
    try:
        from latex2mathml.converter import convert
    except ImportError as error:
        raise ImportError("the report's formulas need latex2mathml: install firststep[report]") from error
    # Without a font made for mathematics the bar of a root lies on the letter: a strut lifts it.
    strut = '<mspace height="0.75em" width="0.1em" />'
    return str(convert(latex)).replace("<msqrt>", f"<msqrt>{strut}")
