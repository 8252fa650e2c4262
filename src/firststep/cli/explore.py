"""The command that opens the explorer."""

import os
import sys
from pathlib import Path
from typing import Any

import click

LOCAL = ("127.0.0.1", "::1", "localhost")


def _say(text: str, quiet: bool = False) -> None:
    if not quiet:
        click.echo(text, err=True, color=False if os.environ.get("NO_COLOR") else None)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8765, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one."
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Further host name that browsers may use; may be repeated.",
)
@click.option(
    "--store",
    type=click.Path(dir_okay=False),
    default=str(Path("results") / "store.db"),
    show_default=True,
    help="The file that keeps simulated points, shared with experiments.",
)
@click.option(
    "--workers", default=2, show_default=True, type=click.IntRange(1, 16), help="Computing processes."
)
@click.option("--open/--no-open", "browse", default=True, help="Open a browser.")
@click.option(
    "--export",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Write a static version with precomputed numbers for any web space, and stop.",
)
@click.option(
    "--size",
    type=click.Choice(["small", "full"]),
    default="full",
    show_default=True,
    help="How much --export precomputes.",
)
@click.option("--quiet", "-q", is_flag=True, help="No remarks.")
def explore(browse: bool, export: str | None, size: str, workers: int, quiet: bool, **options: Any) -> None:
    """Play with the theory on a local web page: errors, spectra and what was learned follow the sliders."""
    if export is not None:
        from firststep.explorer.export import write

        count = write(export, size=size, workers=workers, progress=None if quiet else _Line())
        _say(f"{export}/index.html written, {count / 1e6:.1f} MB: open it in any browser", quiet)
        return
    from firststep.explorer.app import serve

    host, port = options.pop("host"), options.pop("port")
    if host.strip() and host not in LOCAL:
        _say(
            f"{click.style('Warning:', fg='yellow', bold=True)} {host} is open to everyone who reaches this machine; "
            "they can use its processor. Leave --host out to keep it to yourself.",
        )

    def ready(address: str) -> None:
        _say(f"explorer at {address} (Ctrl-C ends it)", quiet)
        if browse:
            import webbrowser

            webbrowser.open(address)

    serve(host, port, **options, workers=workers, ready=ready)


class _Line:
    """Progress on one line of a terminal."""

    def __call__(self, done: int, total: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\rprecomputing {done} of {total}", nl=done == total, err=True)
