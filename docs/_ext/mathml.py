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


# The number of an equation that other pages and docstrings refer to.
TAG = re.compile(r"\s*\\tag\{([^{}]*)\}")


def _mathml(node: nodes.math | nodes.math_block) -> str:
    block = isinstance(node, nodes.math_block)
    tex = TAG.sub("", node.astext())
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
