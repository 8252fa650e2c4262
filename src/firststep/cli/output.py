"""What the commands print: results on standard output, remarks and complaints on standard error."""

import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from firststep.compare import Comparison
    from firststep.figures import Figure
    from firststep.results import Outcome


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


def sentence(error: BaseException) -> str:
    """What an error says to a user, also where Python or a library had no user in mind."""
    text = str(error)
    if isinstance(error, OverflowError):
        return "a number is too large to compute with: use smaller sizes, steps, ridges or noise"
    if type(error).__name__ == "LinAlgError":
        return "a system of equations has no single solution in floating-point numbers: raise the ridge"
    if isinstance(error, UnicodeDecodeError):
        return f"a file is not UTF-8 text (byte {error.start}): save it as UTF-8"
    if isinstance(error, ZeroDivisionError):
        return "a quantity that is divided by vanished: raise the ridge, the noise or the step size"
    if isinstance(error, MemoryError):
        # A sentence of our own has its remedy, a bare complaint of a library none.
        remedy = "" if ": use " in text else "; use smaller sizes or fewer points"
        return f"not enough memory{': ' + text if text else ''}{remedy}"
    return text or type(error).__name__


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

    from firststep.setting import OutsideTheoryWarning

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
        with interruptible(), warnings.catch_warnings():
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


# Seconds that a Ctrl-C may take to end a command in order.
ORDERLY = 1.5


@contextmanager
def interruptible() -> Iterator[None]:
    """End the process soon after Ctrl-C, also from within one long call of LAPACK.

    Python handles the signal only between two of its own instructions, and one matrix may take minutes. So a thread
    is told of the signal by the system, and ends what has not ended by itself. For commands that write nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    done = threading.Event()
    told, tell = socket.socketpair()
    tell.setblocking(False)
    previous = signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        if signal.SIGINT in told.recv(1) and not done.wait(ORDERLY):
            click.echo("", err=True)
            os._exit(130)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(previous)
        tell.send(b"\0")
        watcher.join()
        told.close()
        tell.close()


# Seconds after which a command says that it is at work.
PATIENCE = 3.0


@contextmanager
def waiting(what: str, quiet: bool = False) -> Iterator[Callable[[int, int], object] | bool]:
    """Say on standard error what is being computed, once it takes more than three seconds.

    On a terminal one line counts the seconds, with a bar where the function that is handed out has been told how much
    is done of how much, and goes away at the end; elsewhere it is written once.
    """
    if quiet:
        yield False
        return
    done, terminal, begin = threading.Event(), sys.stderr.isatty(), time.monotonic()
    share = [0.0]

    def told(parts: int, whole: int) -> None:
        share[0] = parts / whole

    def count() -> None:
        pause, shown = PATIENCE, False
        while not done.wait(pause):
            seconds = time.monotonic() - begin
            if terminal:
                click.echo(f"\rcomputing {what}: {_progress(share[0], seconds)}\033[K", err=True, nl=False)
                pause, shown = 1.0, True
            else:
                say(f"note: computing {what}, {_progress(share[0], seconds, width=0)} so far", err=True)
                return
        if shown:
            click.echo("\r\033[K", err=True, nl=False)

    clock = threading.Thread(target=count, daemon=True)
    clock.start()
    try:
        yield told
    finally:
        done.set()
        clock.join()


def _progress(share: float, seconds: float, width: int = 24) -> str:
    """Seconds so far and, where some is known to be done, a bar, its share and what is left.

    Examples
    --------
    >>> _progress(0.0, 4.2)
    '4 s'
    >>> _progress(0.25, 4.2, width=8)
    '██░░░░░░ 25 %, 4 s, about 13 s left'
    """
    if not share:
        return f"{seconds:.0f} s"
    full = round(width * share)
    bar = "█" * full + "░" * (width - full) + " " * bool(width)
    left = seconds * (1 / share - 1)
    return f"{bar}{100 * share:.0f} %, {seconds:.0f} s" + (f", about {left:.0f} s left" if width else "")


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
    from firststep.results.outcome import bar_name

    rows = outcome.rows()
    shown = [name for name in COMPARED if name in outcome.values]
    groups = [
        [(name.replace("_", " "), [value_text(row[name], _spread(row, name)) for row in rows])]
        for name in shown
    ]
    source = "simulation" if outcome.source == "simulation" else f"{outcome.source} theory"
    _show_table(outcome, _facts(source, facts), aligned(step_columns(rows), groups, _width()))
    if any(bar_name(name) in outcome.values for name in shown):
        say(click.style("± is the theory's estimate of its own finite-size error", dim=True))


def _spread(row: dict[str, Any], name: str) -> float | None:
    """Standard error of a simulated value, or the error bar that a theory states."""
    from firststep.results.outcome import bar_name

    found = row.get(f"{name}_stderr")
    return row.get(bar_name(name)) if found is None else found


def show_comparison(comparison: "Comparison", notes: Notes, as_json: bool, **facts: Any) -> None:
    """Print a comparison, a table for each theory or one JSON object, and its notes."""
    if _told(comparison, notes, as_json, facts):
        return
    for position, theory in enumerate(comparison.predicted):
        if position:
            say("")
        _show_table(
            comparison.simulated,
            _facts(f"simulation against {theory} theory", facts),
            comparison.table(theory, _width()),
        )
        legend = comparison.legend(theory)
        say(click.style("\n".join([*([legend] if legend else []), comparison.verdict(theory)]), dim=True))


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
