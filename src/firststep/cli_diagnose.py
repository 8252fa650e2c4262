"""The command that reads a table and says whether one gradient step would help."""

import json
import os
from pathlib import Path

import click


def _say(text: str, *, err: bool = False) -> None:
    click.echo(text, err=err, color=False if os.environ.get("NO_COLOR") else None)


@click.command(
    epilog="Examples: firststep diagnose houses.csv --target price --html report.html; "
    "firststep diagnose trial.parquet --target outcome --drop patient --json"
)
@click.argument("data", type=click.Path())
@click.option(
    "--target", required=True, metavar="COLUMN", help="Column to predict: a number, or two classes."
)
@click.option("--drop", multiple=True, metavar="COLUMN", help="Column to leave out; may be repeated.")
@click.option("--width", default=300, show_default=True, type=click.IntRange(1, 20_000), help="Neurons N.")
@click.option(
    "--activation", default="softplus", show_default=True, metavar="FUNCTION", help="Activation sigma."
)
@click.option(
    "--folds", default=5, show_default=True, type=click.IntRange(2, 20), help="Of the cross-validation."
)
@click.option(
    "--repeats", default=2, show_default=True, type=click.IntRange(1, 100), help="Of the cross-validation."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Same seed, same numbers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of the text.")
@click.option(
    "--html", "page", type=click.Path(dir_okay=False), help="Also write a one-page report with the figure."
)
@click.option("--quiet", "-q", is_flag=True, help="No remarks on stderr.")
def diagnose(
    data: str,
    target: str,
    drop: tuple[str, ...],
    width: int,
    activation: str,
    folds: int,
    repeats: int,
    seed: int,
    as_json: bool,
    page: str | None,
    quiet: bool,
) -> None:
    """Say whether one gradient step helps on the table DATA (.csv, .tsv or .parquet)."""
    from firststep.diagnose import diagnose as examine
    from firststep.diagnose import read_table, unknown_column

    if page is not None and not Path(page).parent.is_dir():
        raise ValueError(f"the folder {str(Path(page).parent)!r} of the report does not exist: make it first")
    table = read_table(data)
    unknown = [name for name in drop if name not in table.columns]
    if unknown:
        raise ValueError(f"--drop: {unknown_column(unknown[0], [str(column) for column in table.columns])}")
    if target in drop:
        raise ValueError(f"the target {target!r} is also to be dropped: choose one")
    found = examine(
        table.drop(columns=list(drop)),
        target,
        width=width,
        activation=activation,
        folds=folds,
        repeats=repeats,
        random_state=seed,
    )
    _say(json.dumps(found.to_dict(), indent=2, allow_nan=False) if as_json else found.to_text())
    if page is not None:
        Path(page).write_text(found.to_html(), encoding="utf-8")
        if not quiet:
            _say(f"note: report written to {page}", err=True)
