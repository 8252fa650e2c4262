"""Every figure with its settings, its agreement and its origin: one HTML file that needs no network, or Markdown."""

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firststep import __version__, figures
from firststep.compute.files import check_target, write_text, written
from firststep.experiment import Experiment, Results, build_figures
from firststep.figures import WORDS, Figure, Panel, number_text
from firststep.numerics.agreement import DISAGREES, LEVEL, counts_text
from firststep.numerics.agreement import WORDS as WORDS_OF_AGREEMENT


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
penalty of the ridge fit, test errors the noise of the labels, unless an axis says otherwise. A curve “agrees” if
chance explains how far its points are from the theory; it is “finite-size” if chance and the theory's own error bar do,
and “disagrees” otherwise. All points of a curve share their draws, so one test judges them together; a right curve is
called wrong in one case of a hundred. Distances of single points are those of a normal variable as probable as the
Student's t of the replicas.
""".strip()

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1f2328; --soft: #59616b; --rule: #d9dde2;
  --wash: #f5f7f9; --link: #0b5ea8; %LIGHT% }
@media (prefers-color-scheme: dark) { :root { --paper: #16191d; --ink: #e6e8ea; --soft: #a3abb4; --rule: #333a42;
  --wash: #1e2329; --link: #7cc0f5; %DARK% } }
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100% }
body { margin: 0 auto; padding: 1.25rem clamp(1rem, 4vw, 3rem) 4rem; max-width: 110rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.6 system-ui, sans-serif }
h1 { font-size: clamp(1.5rem, 4vw, 2.2rem); line-height: 1.2; margin: 1rem 0 .5rem }
h2 { font-size: clamp(1.2rem, 3vw, 1.55rem); line-height: 1.25; margin: 0 }
p, li { max-width: 46rem }
a { color: var(--link) }
section { border-top: 1px solid var(--rule); margin-top: 2.5rem; padding-top: 1.5rem }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem;
  margin: 1.25rem 0 .25rem }
.panels svg { width: 100%; height: auto; display: block }
.alone { max-width: 48rem }
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
.total { font-size: 1.15rem; font-weight: 600 }
.warning { border-left: 3px solid #d55e00; padding-left: .8rem }
math { font-size: 1.05em }
@media print { section { break-inside: avoid } details > * { display: block } }
"""


def write_report(sections: Sequence[Section], path: str | Path, *, date: str = "") -> Path:
    """Write the report of some experiments to an HTML file.

    Parameters
    ----------
    sections : sequence of Section
        In the order of the report.
    path : path
        The file.
    date : str
        The day, for the foot of the page; without it equal results give equal files.
    """
    return write_text(path, report_html(sections, date=date))


def report_html(sections: Sequence[Section], *, date: str = "") -> str:
    """The report as a string; equal results and dates give equal text."""
    colours: dict[str, str] = {}
    bodies = [_section(section, place, colours) for place, section in enumerate(sections)]
    first = _first_figure(sections, colours)
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
<p class="total">{html.escape(total_agreement(section.results for section in sections))}</p>
{first}
<p>{INTRODUCTION}</p>
<nav aria-label="Experiments"><ol>{contents}</ol></nav>
{_overview(sections)}
</header>
<main>
{"".join(bodies)}
</main>
<footer>{_made_with(sections, date)}</footer>
</body>
</html>
"""


# Papers by the key in an experiment's reference; the list of all is docs/references.md.
PAPERS = {
    "Ba22": "https://arxiv.org/abs/2205.01445",
    "Moniri24": "https://arxiv.org/abs/2310.07891",
    "Cui24": "https://arxiv.org/abs/2402.04980",
    "Dandi23": "https://arxiv.org/abs/2305.18270",
    "HL23": "https://arxiv.org/abs/2009.07669",
    "MM22": "https://arxiv.org/abs/1908.05355",
    "BGN12": "https://arxiv.org/abs/1103.2221",
    "BBP05": "https://arxiv.org/abs/math/0403022",
}


def _linked(reference: str) -> str:
    """A reference with links to the papers that it names.

    Examples
    --------
    >>> _linked("[Ba22, fig. 1]")
    '[<a href="https://arxiv.org/abs/2205.01445">Ba22</a>, fig. 1]'
    """
    return re.sub(
        r"\b(" + "|".join(PAPERS) + r")\b",
        lambda found: f'<a href="{PAPERS[found[1]]}">{found[1]}</a>',
        html.escape(reference),
    )


def _first_figure(sections: Sequence[Section], colours: dict[str, str]) -> str:
    """The first figure of the experiment with the most compared curves, below the verdict."""
    compared = [
        (sum(sum(entry["words"].values()) for entry in section.results.main_agreement()), -place)
        for place, section in enumerate(sections)
    ]
    if not compared or not max(compared)[0]:
        return ""
    section = sections[-max(compared)[1]]
    drawn = build_figures(section.results)
    if not drawn:
        return ""
    title = html.escape(section.results.experiment.title)
    link = f'<p class="setting"><a href="#{html.escape(section.name)}">{title}</a></p>'
    return f'<div class="first">{link}{_figure(drawn[0], "first", colours)}</div>'


def _made_with(sections: Sequence[Section], date: str) -> str:
    """The date of the report, and with what its numbers were computed."""
    origins = [origin for section in sections for origin in section.results.provenance]
    libraries = dict.fromkeys(
        f"{name} {origin[name]}"
        for name in ("python", "numpy", "scipy")
        for origin in origins
        if origin.get(name)
    )
    made = [f"firststep {__version__}", *libraries]
    text = f"{'Written ' + date + '. ' if date else ''}Computed with {', '.join(made)}."
    return f'<p class="reference">{html.escape(text)}</p>'


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
    check_target(target)
    folder = target.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"# Gallery\n\n{INTRODUCTION}"]
    for section in sections:
        drawn = []
        for place, figure in enumerate(build_figures(section.results), start=1):
            panels = dict.fromkeys(_spoken(panel) for panel in figure.panels)
            said = " ".join("; ".join([*figure.title.split("\n"), *panels]).split())
            for theme in ("light", "dark"):
                file = folder / f"{_file_name(section.name)}-{place}-{theme}.svg"
                with written(file) as draft:
                    draft.write_bytes(compact_svg(figures.render(figure, "svg", theme=theme)))
                drawn.append(
                    f"```{{image}} {folder.name}/{file.name}\n:class: only-{theme}\n:alt: {said}\n```\n"
                )
            drawn.append(f"{_unfenced(figure.caption)}\n")
        parts.append(_gallery_section(section, "\n".join(drawn)))
    origins = {line for section in sections for line in _origins(section.results)}
    parts.append("\n".join(["## Computed with", "", *(f"* {line}" for line in sorted(origins))]))
    return write_text(target, "\n\n".join(part.strip() for part in parts) + "\n")


def _file_name(name: str) -> str:
    """An experiment's name as part of a file's: a store made by others must not choose the folder.

    Examples
    --------
    >>> _file_name("ba-figure-3"), _file_name("../../.ssh/x")
    ('ba-figure-3', '_.._.ssh_x')
    """
    return re.sub(r"[^\w.-]", "_", name).lstrip(".") or "experiment"


def _unfenced(text: str) -> str:
    """A text that begins no block of its own: such a block could include any file of whoever builds the page."""
    return re.sub(r"(?m)^(\s*)(`{3,}|~{3,}|:{3,})", r"\1", text)


def _gallery_section(section: Section, drawn: str) -> str:
    results = section.results
    title = " ".join(results.experiment.title.split())
    lines = [f"## {title}", "", _unfenced(results.experiment.description.strip())]
    if results.experiment.reference:
        lines += ["", f"Source: {' '.join(results.experiment.reference.split())}."]
    if results.missing:
        lines += ["", f"**{results.missing} points are missing.**"]
    lines += ["", drawn]
    entries = [entry for entry in results.agreement() if "gain" not in entry["quantity"]]
    if entries:
        lines += [
            "| theory | quantity | curves | points | median distance | largest | or in % |",
            "| --- | --- | --- | --: | --: | --: | --: |",
        ]
        for entry in entries:
            share = "–" if math.isnan(entry["relative"]) else f"{100 * entry['relative']:.1f}"
            lines.append(
                f"| {entry['theory']} | {quantity_text(entry['quantity'])} | {counts_text(entry['words'])} "
                f"| {entry['points']} | {entry['median']:.1f} | {entry['largest']:.1f} | {share} |"
            )
    return "\n".join([*lines, "", f"```sh\n{' '.join(section.command.split())}\n```"])


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


def total_agreement(results: Iterable[Results]) -> str:
    """How many curves of some experiments agree with their main theory, in a sentence."""
    total = dict.fromkeys(WORDS_OF_AGREEMENT, 0)
    for one in results:
        for entry in one.main_agreement():
            total = {word: count + entry["words"][word] for word, count in total.items()}
    count = sum(total.values())
    text = re.sub(r" agrees?", r"\g<0> with the theory", counts_text(total), count=1)
    text = text if count else "nothing was compared"
    if total[DISAGREES]:
        text += f" (by chance alone at most {LEVEL * count:.2g} of {count} would)"
    return text[0].upper() + text[1:] + "."


def _overview(sections: Sequence[Section]) -> str:
    """How many curves agree, in all and with the main theory of each experiment."""
    body = ""
    for section in sections:
        shown = section.results.main_agreement()
        if shown:
            link = (
                f'<a href="#{html.escape(section.name)}">{html.escape(section.results.experiment.title)}</a>'
            )
            rows = "".join(f"<tr>{_agreement_cells(entry, brief=True)}</tr>" for entry in shown)
            body += f'<tbody><tr><th colspan="5" scope="rowgroup">{link}</th></tr>{rows}</tbody>'
    if not body:
        return ""
    head = '<th>quantity</th><th class="text">curves</th><th>median</th><th>largest</th><th>or in %</th>'
    return (
        "<h2>Do theory and simulation agree?</h2>"
        f'<div class="wide"><table class="overview"><thead><tr>{head}</tr></thead>{body}</table></div>'
    )


AGREEMENT_HEAD = (
    '<th class="text">theory</th><th class="text">quantity</th><th class="text">curves</th><th>points</th>'
    "<th>median distance</th><th>largest</th><th>or in %</th>"
)


def _agreement_cells(entry: Mapping[str, Any], brief: bool = False) -> str:
    relative = "–" if math.isnan(entry["relative"]) else f"{100 * entry['relative']:.1f}"
    quantity = f'<td class="text">{html.escape(quantity_text(entry["quantity"]))}</td>'
    quantity += f'<td class="text">{html.escape(counts_text(entry["words"]))}</td>'
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
        f' <span class="reference">{_linked(experiment.reference)}</span>' if experiment.reference else ""
    )
    entries = results.agreement()
    agreement = ""
    if entries:
        body = "".join(f"<tr>{_agreement_cells(entry)}</tr>" for entry in entries)
        agreement = (
            "<details><summary>Agreement of theory and simulation</summary>"
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
    # Functions in place of templates: a label may hold a backslash.
    text = re.sub(r'\b(id|xlink:href|href)="(#?)([^"]+)"', lambda m: f'{m[1]}="{m[2]}{prefix}-{m[3]}"', text)
    text = re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{prefix}-{m[1]})", text)
    for light, dark in _counterparts(figure).items():
        if light in text:
            colours[light] = dark
            text = text.replace(light, f"var(--c{light[1:]})")
    said = html.escape("; ".join(_spoken(panel) for panel in figure.panels))

    def opening(found: re.Match[str]) -> str:
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'viewBox="{found[1]}" role="img" aria-label="{said}">'
        )

    return re.sub(r'<svg\b[^>]*?viewBox="([^"]+)"[^>]*>', opening, text, count=1)


def _spoken(panel: Panel) -> str:
    labels = ", ".join(dict.fromkeys(series.label for series in panel.series if series.label))
    if panel.z_label:
        return f"{panel.z_label} against {panel.x_label} and {panel.y_label}: {labels}"
    return f"{panel.y_label} against {panel.x_label}: {labels}"


def _counterparts(figure: Figure) -> dict[str, str]:
    """Colours on light paper with those of the same role on dark paper."""
    roles = [*figures.PALETTES["light"], *(s.role for panel in figure.panels for s in panel.series)]
    roles += figures.BAND_ROLES if any(panel.value_scale for panel in figure.panels) else ()
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
    """A formula as MathML, which browsers draw by themselves; what is none stays as it was written."""
    try:
        from latex2mathml.converter import convert
    except ImportError as error:
        raise ImportError("the report's formulas need latex2mathml: install firststep[report]") from error
    try:
        made = str(convert(latex))
    except Exception:
        # The package answers a mistake with any of a dozen errors, of its own and of Python's.
        return f"<code>{html.escape(latex)}</code>"
    # Links and scripts: nothing that a formula needs.
    if re.search(r"\s(?:[\w-]*:)?(?:href|src|style|on\w+)\s*=|<(?!/?m\w+[\s/>])", made, re.IGNORECASE):
        return f"<code>{html.escape(latex)}</code>"
    # Without a font made for mathematics the bar of a root lies on the letter: a strut lifts it.
    strut = '<mspace height="0.75em" width="0.1em" />'
    return made.replace("<msqrt>", f"<msqrt>{strut}")
