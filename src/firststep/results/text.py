"""Numbers of a result as people write them, and tables of them for notebooks."""

import math
from collections.abc import Sequence
from html import escape


def value_text(value: object, stderr: object = None) -> str:
    """A number to five digits, or as many as its standard error allows.

    Examples
    --------
    >>> value_text(1.5), value_text(1.516804, 0.00664), value_text(None)
    ('1.5000', '1.5168 ± 0.0066', '–')
    """
    if not isinstance(value, int | float):
        return "–"
    if not isinstance(stderr, int | float):
        return f"{value:#.5g}".rstrip(".")
    if stderr <= 0:
        return f"{value:.5g} ± 0"
    digits = 1 - math.floor(math.log10(float(f"{stderr:.1e}")))
    if not 0 <= digits <= 7:
        return f"{value:.5g} ± {stderr:.2g}"
    return f"{value:.{digits}f} ± {stderr:.{digits}f}"


def html_table(caption: str, columns: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table for a notebook from columns of text with their heads.

    Examples
    --------
    >>> html_table("a < b", [("x", ["1"])])
    '<table><caption>a &lt; b</caption><tr><th>x</th></tr><tr><td>1</td></tr></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name, _ in columns)
    rows = zip(*(texts for _, texts in columns), strict=True)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"
