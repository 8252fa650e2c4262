"""The command that reads a table and says whether gradient steps would help, and what more data would buy."""

import json
import os
from importlib.util import find_spec
from typing import Any

import click

from firststep.cli.output import interruptible
from firststep.compute.files import check_target, write_text


def _say(text: str, *, err: bool = False) -> None:
    click.echo(text, err=err, color=False if os.environ.get("NO_COLOR") else None)


@click.command(
    epilog="Examples: firststep diagnose houses.csv --target price --html report.html; "
    "firststep diagnose trial.parquet --target outcome --drop patient --json"
)
@click.argument("data", type=click.Path())
@click.option(
    "--target",
    required=True,
    metavar="COLUMN",
    help="Column to predict: a number, or one of 2 to 20 classes.",
)
@click.option("--drop", multiple=True, metavar="COLUMN", help="Column to leave out; may be repeated.")
@click.option(
    "--keep",
    multiple=True,
    metavar="COLUMN",
    help="Column that stays as it is, also if it looks like row numbers, codes for gaps (-999) or the target itself; "
    "may be repeated.",
)
@click.option("--drop-missing", is_flag=True, help="Leave rows with gaps out instead of filling them.")
@click.option("--curve", is_flag=True, help="Also predict what more data and a wider network would buy.")
@click.option("--width", default=300, show_default=True, type=click.IntRange(1, 20_000), help="Neurons N.")
@click.option("--activation", default="tanh", show_default=True, metavar="FUNCTION", help="Activation sigma.")
@click.option(
    "--folds", default=5, show_default=True, type=click.IntRange(2, 20), help="Of the cross-validation."
)
@click.option(
    "--repeats", default=2, show_default=True, type=click.IntRange(1, 100), help="Of the cross-validation."
)
@click.option(
    "--seed",
    "random_state",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Same seed, same numbers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of the text.")
@click.option(
    "--html", "page", type=click.Path(dir_okay=False), help="Also write a one-page report with the figure."
)
@click.option("--quiet", "-q", is_flag=True, help="No remarks on stderr.")
def diagnose(
    data: str,
    target: str,
    drop: tuple[str, ...],
    as_json: bool,
    page: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Say whether gradient steps help on the table DATA (.csv, .tsv, .parquet or .xlsx; also packed, .gz or .zip)."""
    from firststep.diagnose import diagnose as examine
    from firststep.diagnose import read_table, unknown_column

    if page is not None:
        check_target(page, [data])
    table = read_table(data)
    for option, names in (("--drop", drop), ("--keep", options["keep"])):
        unknown = [name for name in names if name not in table.columns]
        if unknown:
            columns = [str(column) for column in table.columns]
            raise ValueError(f"{option}: {unknown_column(unknown[0], columns)}")
    if target in drop:
        raise ValueError(f"the target {target!r} is also to be dropped: choose one")
    # A bar on a terminal, lines elsewhere: both tell the remaining time.
    with interruptible():
        found = examine(table.drop(columns=list(drop)), target, verbose=not quiet, **options)
    _say(json.dumps(found.to_dict(), indent=2, allow_nan=False) if as_json else found.to_text())
    if page is not None:
        write_text(page, found.to_html(), [data])
        if not quiet:
            _say(f"note: report written to {page}", err=True)
            if find_spec("matplotlib") is None:
                _say("note: it has no figure, which needs matplotlib: install firststep[plot]", err=True)
