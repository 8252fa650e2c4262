"""Formulas become MathML when the pages are built: the browser needs neither scripts nor a network."""

import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

# LaTeX that docutils does not know, as it does; norms as fences, or an exponent drags a bar down.
SPELLINGS = (
    (re.compile(r"(?<!\\left)\\lVert(?![A-Za-z])"), r"\\left\\|"),
    (re.compile(r"(?<!\\right)\\rVert(?![A-Za-z])"), r"\\right\\|"),
    (re.compile(r"\\dots(?![A-Za-z])"), r"\\ldots"),
    (re.compile(r"\\([Bb]igg?)(?=\s*(?:[(\[]|\\[{l]))"), r"\\\1l"),
    (re.compile(r"\\[Bb]igg?\s*\|"), "|"),
    (re.compile(r"\\([Bb]igg?)(?=\s*(?:[)\]]|\\[}r]))"), r"\\\1r"),
)


# An argument without braces is one token, and to docutils all digits of a number are one: \frac14 would be 14 over
# what follows. TeX reads x^12 otherwise than docutils, too.
BARE = re.compile(
    r"\\[dtc]?frac\s*\d[\d.]|\\[dtc]?frac\s*(?:\{[^{}]*\}|\\?[A-Za-z]+)\s*\d[\d.]|(?:\\sqrt|[\^_])\s*\d[\d.]"
)


def bare_arguments(tex: str) -> list[str]:
    """Arguments of fractions, roots and exponents that TeX and docutils would read as different numbers."""
    return BARE.findall(tex)


# The number of an equation that other pages and docstrings refer to.
TAG = re.compile(r"\s*\\tag\{([^{}]*)\}")


# Where a long formula may go on in the next line: after a wide space, and before a sign that joins its parts.
PAUSE = re.compile(r"\\q?quad(?![A-Za-z])")
SIGN = re.compile(r"(?<=\s)(?:[=+-](?=\s)|\\(?:approx|to|le|ge)(?![A-Za-z]))")
OPENING, CLOSING = re.compile(r"\\l(?:eft|Vert|vert)|[{(\[]"), re.compile(r"\\r(?:ight|Vert|vert)|[})\]]")
BAR = re.compile(r"\\?\|")
# Characters of TeX that surely fit into one line.
SHORT = 40


def pieces(tex: str) -> list[str]:
    """A formula in parts that may stand on lines of their own; one part if its lines are set by hand."""
    if "\\\\" in tex or "\\begin" in tex:
        return [tex]
    found, depth, start, at, inside = list[str](), 0, 0, 0, False
    while at < len(tex):
        if pause := PAUSE.match(tex, at):
            at = pause.end()
            if not depth:
                found.append(tex[start:at])
                start = at
            continue
        if not depth and BAR.match(tex, at):
            inside = not inside
        if not depth and not inside and SIGN.match(tex, at) and at - start > SHORT:
            found.append(tex[start:at])
            start = at
        depth += bool(OPENING.match(tex, at)) - bool(CLOSING.match(tex, at))
        # What a backslash escapes is neither a group nor a bar again; \\left( and \\right) count twice, and cancel.
        at += 2 if tex[at] == "\\" else 1
    return [part for part in [*found, tex[start:]] if part.strip()]


def _mathml(node: nodes.math | nodes.math_block) -> str:
    tex = TAG.sub("", node.astext())
    for bare in bare_arguments(tex):
        logger.warning("braces are missing: %s in %r", bare, tex, location=node)
    if not isinstance(node, nodes.math_block):
        return _typeset(tex, node)
    # A sign at the beginning would be set as that of a number without something before it.
    return "\n".join(_typeset(re.sub(r"^\s*(?=[=+\-\\])", "{}", part), node) for part in pieces(tex))


def _typeset(tex: str, node: nodes.math | nodes.math_block) -> str:
    block = isinstance(node, nodes.math_block)
    if block and "\\\\" in tex and "\\begin" not in tex:
        tex = rf"\begin{{aligned}}{tex}\end{{aligned}}"
    for unknown, known in SPELLINGS:
        tex = unknown.sub(known, tex)
    try:
        return tex2mathml(tex, as_block=block)
    except (MathError, SyntaxError) as error:
        logger.warning("cannot typeset %r: %s", tex, error, location=node)
        return ""


def _visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_mathml(node))
    raise nodes.SkipNode


def _visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    tag = TAG.search(node.astext())
    if number := tag[1] if tag else node.get("number"):
        translator.body.append(f'<span class="eqno">({number})</span>')
    translator.body.append(_mathml(node) + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer and make it the one that is used."""
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
