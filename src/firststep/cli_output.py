"""What the commands print: results on standard output, remarks and complaints on standard error."""

import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from firststep.compare import Comparison
    from firststep.figures import Figure
    from firststep.problem import Outcome


def say(text: str, *, err: bool = False) -> None:
    """Print; in plain letters where the encoding has no others, without colour where none is wanted."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        for letter, plain in {"±": "+-", "–": "-", "∞": "inf", "λ": "lambda", "₀": "0"}.items():
            text = text.replace(letter, plain)
        text = text.encode(encoding, "replace").decode(encoding)
    click.echo(text, err=err, color=False if os.environ.get("NO_COLOR") else None)


def complain(message: str) -> None:
    """Say what went wrong, in one line."""
    say(f"{click.style('Error:', fg='red', bold=True)} {' '.join(message.split())}", err=True)


class Notes:
    """Remarks on standard error, each once."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.seen: set[str] = set()

    def tell(self, text: str, kind: str = "note") -> None:
        """Print a remark, unless it was made before or none is wanted."""
        text = " ".join(text.split())
        if not self.quiet and text not in self.seen:
            say(f"{kind}: {text}", err=True)
        self.seen.add(text)


@contextmanager
def remarks(quiet: bool) -> Iterator[Notes]:
    """Show warnings and log messages as lines on standard error.

    NumPy's warnings (overflow and the like) only if a result comes of it: an error says more by itself.
    """
    import logging

    from firststep.problem import OutsideTheoryWarning

    notes = Notes(quiet)
    numerical: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            notes.tell(record.getMessage())

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, RuntimeWarning):
            numerical.append(str(message))
        else:
            notes.tell(str(message), "note" if issubclass(category, OutsideTheoryWarning) else "warning")

    logger, handler = logging.getLogger("firststep"), Handler(logging.INFO)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for category in (UserWarning, RuntimeWarning):
                warnings.simplefilter("always", category)
            warnings.showwarning = show
            yield notes
        for message in numerical:
            notes.tell(message, "warning")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _width() -> int | None:
    """Columns of the terminal; none when the table goes into a file or pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _told(result: "Outcome | Comparison", notes: Notes, as_json: bool, facts: dict[str, Any]) -> bool:
    """Print the notes, and the result if it is wanted as JSON; whether that was all."""
    for note in result.notes:
        notes.tell(note)
    if as_json:
        say(json.dumps(facts | result.to_dict(), indent=2, allow_nan=False))
    return as_json


def show_outcome(outcome: "Outcome", notes: Notes, as_json: bool, **facts: Any) -> None:
    """Print an outcome, as a table or as one JSON object, and its notes."""
    if _told(outcome, notes, as_json, facts):
        return
    from firststep.compare import COMPARED, aligned, step_columns, value_text

    rows = outcome.rows()
    shown = [name for name in COMPARED if name in outcome.values]
    groups = [
        [(name.replace("_", " "), [value_text(row[name], row.get(f"{name}_stderr")) for row in rows])]
        for name in shown
    ]
    source = "simulation" if outcome.source == "simulation" else f"{outcome.source} theory"
    _show_table(outcome, _facts(source, facts), aligned(step_columns(rows), groups, _width()))


def show_comparison(comparison: "Comparison", notes: Notes, as_json: bool, **facts: Any) -> None:
    """Print a comparison, a table for each theory or one JSON object, and its notes."""
    if _told(comparison, notes, as_json, facts):
        return
    summary = comparison.summary()
    for position, theory in enumerate(comparison.predicted):
        if position:
            say("")
        _show_table(
            comparison.simulated,
            _facts(f"simulation against {theory} theory", facts),
            comparison.table(theory, _width()),
        )
        largest = ", ".join(
            f"{name.replace('_', ' ')} {found['largest_distance']:.1f} "
            f"(median {found['median_distance']:.1f})"
            for name, found in summary[theory].items()
            if found["largest_distance"] is not None and found["median_distance"] is not None
        )
        say(click.style(f"largest distance in standard errors: {largest}", dim=True))


def _facts(source: str, facts: dict[str, Any]) -> str:
    return ", ".join([source, *(f"{name} {value}" for name, value in facts.items())])


def _show_table(outcome: "Outcome", source: str, table: str) -> None:
    from firststep.figures import problem_text, sizes_text

    head, *lines = table.split("\n")
    ridge = f", lambda = {outcome.ridges[0]:g}" if len(outcome.ridges) == 1 else ""
    say(click.style(f"{problem_text(outcome)}\n{sizes_text(outcome)}{ridge}\n{source}\n", dim=True))
    say("\n".join([click.style(head, bold=True), *lines]))


def save(figure: "Figure", plot: str, notes: Notes) -> None:
    """Write a figure to a file and say so."""
    from firststep import figures

    notes.tell(f"figure written to {figures.save(figure, plot)}")
