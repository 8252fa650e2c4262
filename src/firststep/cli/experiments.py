"""The commands for experiments: run, reproduce, status, export, report and doctor."""

import functools
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from firststep.compute.files import check_target, read_text

if TYPE_CHECKING:
    from firststep.experiment import Experiment, Progress, Results
    from firststep.store import Store

OUTPUT = "results"
STORE_NAME = "store.db"
# Seconds between two lines of progress where there is no terminal for a bar.
LINE_SECONDS = 10.0
# What each extra brings, for `doctor`.
EXTRAS = {
    "plot": ("matplotlib",),
    "sklearn": ("scikit-learn",),
    "data": ("pandas", "pyarrow"),
    "web": ("fastapi", "uvicorn", "mpld3"),
    "experiments": ("pydantic",),
    "report": ("latex2mathml",),
    "export": ("xarray", "pyarrow", "h5netcdf", "h5py"),
    "dask": ("distributed",),
    "torch": ("torch", "array-api-compat"),
}

Command = Callable[..., Any]


def _say(text: str, quiet: bool = False) -> None:
    """Print a remark to standard error, where it does not mix with results."""
    if not quiet:
        click.echo(text, err=True, color=False if os.environ.get("NO_COLOR") else None)


DEFAULT_STORE = str(Path(OUTPUT) / STORE_NAME)


def _experiment_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from firststep.experiment.builtin import builtin_experiments

    return [CompletionItem(name) for name in builtin_experiments() if name.startswith(incomplete)]


store_option = click.option(
    "--store",
    "store_path",
    type=click.Path(dir_okay=False),
    default=DEFAULT_STORE,
    show_default=True,
    help="The file that keeps finished points.",
)
RUN_OPTIONS = (
    click.option(
        "--jobs", "-j", type=click.IntRange(min=1), help="Processes; one for each core unless given."
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Run on a Dask cluster: tcp://host:8786, or 'local' for one on this machine.",
    ),
    click.option("--dry-run", is_flag=True, help="Say what is to do and how long it takes, and stop."),
    click.option("--retry-failed", is_flag=True, help="Try tasks again that failed before."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output."),
    click.option("--quiet", "-q", is_flag=True, help="No progress and no remarks."),
)


@dataclass(frozen=True)
class Running:
    """How to run experiments and what to say: the answers to `RUN_OPTIONS`."""

    jobs: int | None
    scheduler: str | None
    dry_run: bool
    retry_failed: bool
    as_json: bool
    quiet: bool


def run_options(command: Command) -> Command:
    """Give a command the options of running, which it receives together as `how`."""

    @functools.wraps(command)
    def collected(**given: Any) -> Any:
        how = Running(**{field.name: given.pop(field.name) for field in fields(Running)})
        return command(how=how, **given)

    for option in reversed(RUN_OPTIONS):
        collected = option(collected)
    return collected


@contextmanager
def _told_in_lines() -> Iterator[None]:
    """Show all mistakes of an experiment file, one to a line, and end with exit code 2."""
    from firststep.experiment import ExperimentError

    try:
        yield
    except ExperimentError as error:
        _say(f"{click.style('Error:', fg='red', bold=True)} {error}")
        raise click.exceptions.Exit(2) from None


@contextmanager
def _store(path: str, *, read_only: bool = False, dry_run: bool = False) -> Iterator["Store"]:
    from firststep.store import open_store

    if dry_run:
        # Nothing is written, and nothing is made.
        with open_store(path if Path(path).exists() else None, read_only=Path(path).exists()) as store:
            yield store
        return
    if not read_only:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open_store(path, read_only=read_only) as store:
        yield store


class _Shown:
    """Progress on a bar where there is a terminal, in lines elsewhere, or not at all."""

    def __init__(self, name: str, quiet: bool) -> None:
        self.name, self.quiet = name, quiet
        self.bar: Any = None
        self.last = time.monotonic()
        self.waiting = ""
        self.on_terminal = sys.stderr.isatty() and not quiet

    def __call__(self, state: "Progress") -> None:
        if self.quiet or not state.total:
            return
        if state.waiting and state.waiting != self.waiting:
            _say(f"{self.name}: {state.waiting}")
        self.waiting = state.waiting
        if self.on_terminal:
            self._update_bar(state)
        elif time.monotonic() - self.last > LINE_SECONDS:
            self.last = time.monotonic()
            _say(f"{self.name}: {_progress_text(state)}")

    def _update_bar(self, state: "Progress") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        if self.bar is None:
            columns = (
                TextColumn(self.name),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rest]}"),
            )
            self.bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self.bar.add_task("", total=state.total, rest="")
            self.bar.start()
        self.bar.update(
            self.bar.task_ids[0],
            total=state.total,
            completed=state.done + state.failed,
            rest=_progress_text(state, counts=False),
        )

    def end(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _progress_text(state: "Progress", counts: bool = True) -> str:
    parts = [f"{state.done} of {state.total} points"] if counts else ["points"]
    if state.failed:
        parts.append(f"{state.failed} failed")
    parts.append(f"{state.rate:.3g}/s")
    if state.remaining is not None:
        parts.append(f"{duration(state.remaining)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """A time for people.

    Examples
    --------
    >>> duration(0.4), duration(75), duration(7300)
    ('1 s', '75 s', '2 h 2 min')
    """
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _resume_command() -> str:
    return shlex.join(["firststep", *sys.argv[1:]])


def _run_one(
    experiment: "Experiment",
    store: "Store",
    name: str,
    document: str,
    how: Running,
) -> "Results":
    """Run an experiment with progress; a signal ends with its exit code and the command that resumes."""
    from firststep.experiment import Interrupted, run

    shown = _Shown(name, how.quiet)
    try:
        return run(
            experiment,
            store,
            name=name,
            jobs=how.jobs,
            scheduler=how.scheduler,
            retry_failed=how.retry_failed,
            progress=shown,
            document=document,
        )
    except Interrupted as stop:
        shown.end()
        _say(f"{stop}; everything finished is kept in {store.path}. To go on:\n  {_resume_command()}")
        raise click.exceptions.Exit(128 + stop.number) from None
    finally:
        shown.end()


def _plan_facts(experiment: "Experiment", store: "Store", jobs: int | None) -> dict[str, Any]:
    from firststep.experiment import plan

    found = plan(experiment, store, jobs=jobs)
    return {
        "points": found.points,
        "present": found.present,
        "replicas": found.replicas,
        "tasks": found.tasks,
        "failed_before": found.failed_before,
        "theory_points": found.theory_points,
        "theory_missing": found.theory_missing,
        "theory_seconds": found.theory_seconds,
        "estimated_seconds": found.seconds,
        "memory_per_worker": found.memory_per_worker,
    }


def _tell_plan(name: str, facts: dict[str, Any]) -> None:
    lines = [f"{name}: {facts['points']} points, {facts['present']} of them already there"]
    if facts["tasks"]:
        drawing = facts["estimated_seconds"] - facts["theory_seconds"]
        lines.append(
            f"  {facts['tasks']} replicas to run, about {duration(drawing)} and "
            f"{facts['memory_per_worker'] / 2**20:.0f} MiB for each worker"
        )
    if facts["theory_missing"]:
        lines.append(
            f"  {facts['theory_missing']} theory solutions to find, about {duration(facts['theory_seconds'])}"
        )
    if facts["tasks"] or facts["theory_missing"]:
        lines.append(f"  about {duration(facts['estimated_seconds'])} altogether")
    if facts["failed_before"]:
        lines.append(
            f"  {facts['failed_before']} tasks failed before and are left out; --retry-failed tries again"
        )
    click.echo("\n".join(lines))


def _tell_failures(results: "Results", quiet: bool) -> int:
    for label, message in results.failures:
        _say(f"failed: {label}: {message}", quiet)
    return len(results.failures)


def _tell_agreement(name: str, results: "Results") -> None:
    from firststep.numerics.agreement import counts_text

    click.echo(f"{name}: {results.experiment.title}")
    for entry in results.agreement():
        click.echo(
            f"  {entry['theory']}, {entry['quantity'].replace('_', ' ')}: {counts_text(entry['words'])} "
            f"({entry['points']} points, distance: median {entry['median']:.1f}, largest {entry['largest']:.1f})"
        )
    if results.missing:
        click.echo(f"  {results.missing} points are missing")


def _tell_total(results: Iterable["Results"]) -> None:
    from firststep.report import total_agreement

    click.echo(total_agreement(results))


@click.command(short_help="Run an experiment file.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--variant", help="Use the [variant.NAME] of the file.")
@store_option
@click.option(
    "--figures", "folder", type=click.Path(file_okay=False), help="Draw the figures into this folder."
)
@run_options
def run(
    file: str,
    variant: str | None,
    store_path: str,
    folder: str | None,
    how: Running,
) -> None:
    """Run an experiment FILE, or go on with it: what the store has is not computed again.

    \b
    Examples:
      firststep run experiment.toml --dry-run
      firststep run experiment.toml --jobs 4
      firststep run experiment.toml --scheduler tcp://head:8786
    """  # noqa: D301 (click reads this mark)
    from firststep.experiment import parse

    if folder is not None and not how.dry_run:
        _need("--figures", matplotlib="plot")
    with _told_in_lines():
        text = read_text(file, "the experiment file")
        experiment = parse(text, variant=variant, origin=file)
        name = Path(file).stem
        with _store(store_path, dry_run=how.dry_run) as store:
            if how.dry_run:
                facts = _plan_facts(experiment, store, how.jobs)
                click.echo(json.dumps(facts, indent=2)) if how.as_json else _tell_plan(name, facts)
                return
            document = json.dumps({"text": text, "variant": variant})
            results = _run_one(experiment, store, name, document, how)
            if how.as_json:
                click.echo(json.dumps(_json_of(name, results), indent=2, allow_nan=False))
            else:
                _tell_agreement(name, results)
            if folder is not None:
                for path in _draw_figures(results, name, Path(folder)):
                    _say(f"figure written to {path}", how.quiet)
            if _tell_failures(results, how.quiet):
                raise click.exceptions.Exit(1)


def _json_of(name: str, results: "Results") -> dict[str, Any]:
    return {
        "name": name,
        "title": results.experiment.title,
        "missing": results.missing,
        "agreement": _finite(results.agreement()),
        "rows": _finite(results.rows()),
    }


def _finite(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    import math

    return [
        {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        for row in rows
    ]


def _draw_figures(results: "Results", name: str, folder: Path, kinds: Sequence[str] = ("svg",)) -> list[Path]:
    from firststep import figures
    from firststep.experiment import build_figures

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for place, figure in enumerate(build_figures(results), start=1):
        suffix = f"-{place}" if len(results.experiment.figure) > 1 else ""
        written += [figures.save(figure, folder / f"{name}{suffix}.{kind}") for kind in kinds]
    return written


@click.command(short_help="Reproduce the papers' figures into a report.")
@click.argument("names", nargs=-1, shell_complete=_experiment_names)
@click.option(
    "--quick/--full", default=True, show_default=True, help="Small sizes in minutes, or the papers' own."
)
@click.option("--list", "listing", is_flag=True, help="Show the experiments and stop.")
@click.option(
    "--output",
    type=click.Path(file_okay=False),
    default=OUTPUT,
    show_default=True,
    help="Folder for the store, the figures and report.html.",
)
@click.option(
    "--format",
    "kinds",
    type=click.Choice(["svg", "png", "pdf"]),
    multiple=True,
    default=["svg"],
    show_default=True,
    help="Format of the figures' files; may be repeated.",
)
@click.option("--variant", hidden=True, help="Another variant than quick and full.")
@run_options
def reproduce(
    names: tuple[str, ...],
    quick: bool,
    listing: bool,
    output: str,
    kinds: tuple[str, ...],
    variant: str | None,
    how: Running,
) -> None:
    """Reproduce published figures: all of them, or the NAMES that --list shows.

    \b
    Examples:
      firststep reproduce
      firststep reproduce moniri-setting-2 --full --jobs 8
      firststep reproduce --list
    """  # noqa: D301 (click reads this mark)
    from firststep.experiment import builtin_experiments, parse

    if not (listing or how.dry_run):
        _need("the figures of reproduce", matplotlib="plot", latex2mathml="report")
    with _told_in_lines():
        known = builtin_experiments()
        unknown = [name for name in names if name not in known]
        if unknown:
            raise click.UsageError(f"there is no experiment {unknown[0]!r}; known are {', '.join(known)}")
        chosen = {name: known[name] for name in names or known}
        which = variant or ("quick" if quick else None)
        experiments = {name: parse(text, variant=which, origin=name) for name, text in chosen.items()}
        if listing:
            width = max(map(len, experiments))
            for name, experiment in experiments.items():
                click.echo(f"{name:<{width}}  {experiment.title}")
            return
        with _store(str(Path(output) / STORE_NAME), dry_run=how.dry_run) as store:
            if how.dry_run:
                facts = {
                    name: _plan_facts(experiment, store, how.jobs) for name, experiment in experiments.items()
                }
                if how.as_json:
                    click.echo(json.dumps(facts, indent=2))
                else:
                    for name, entry in facts.items():
                        _tell_plan(name, entry)
                return
            started = time.monotonic()
            found: dict[str, Results] = {}
            for name, experiment in experiments.items():
                document = json.dumps(
                    {"text": chosen[name], "variant": which, "command": f"reproduce {name}"}
                )
                found[name] = _run_one(experiment, store, name, document, how)
                _draw_figures(found[name], name, Path(output) / "figures", kinds)
                if not how.as_json:
                    _tell_agreement(name, found[name])
            target = _write_report(found, Path(output) / "report.html", variant=which)
            if how.as_json:
                click.echo(
                    json.dumps([_json_of(name, results) for name, results in found.items()], allow_nan=False)
                )
            else:
                _tell_total(found.values())
            _say(f"report written to {target} ({duration(time.monotonic() - started)})", how.quiet)
            if sum(_tell_failures(results, how.quiet) for results in found.values()):
                raise click.exceptions.Exit(1)


def _need(what: str, **packages: str) -> None:
    """Complain of a missing package before anything is computed, with the extra that brings it."""
    from importlib.util import find_spec

    for package, extra in packages.items():
        if find_spec(package) is None:
            raise ImportError(f"{what} need {package}: install firststep[{extra}]")


def _write_report(found: dict[str, "Results"], target: Path, *, variant: str | None) -> Path:
    from firststep.report import Section, write_report

    sections = [
        Section(name, results, _reproducing(f"reproduce {name}", variant)) for name, results in found.items()
    ]
    return write_report(sections, target, date=time.strftime("%Y-%m-%d"))


def _reproducing(command: str, variant: str | None) -> str:
    flag = {"quick": "--quick", None: "--full"}.get(variant, f"--variant {variant}")
    return f"firststep {command} {flag}"


def _remembered(store: "Store") -> dict[str, tuple[str, "Experiment"]]:
    """Experiments of a store by name, the latest under each, with the command that runs them."""
    from firststep.experiment import parse

    found = {}
    for entry in store.experiments():
        if not entry["document"]:
            continue
        document = json.loads(entry["document"])
        variant = document.get("variant")
        command = document.get("command")
        if command:
            command = _reproducing(command, variant)
        else:
            command = f"firststep run {entry['name']}.toml" + (f" --variant {variant}" if variant else "")
        found[entry["name"]] = (command, parse(document["text"], variant=variant, origin=entry["name"]))
    return found


@click.command(short_help="What a store holds.")
@store_option
@click.option("--migrate", is_flag=True, help="Convert a store of an older version, keeping a copy.")
@click.option("--check", is_flag=True, help="Check every page of the file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(store_path: str, migrate: bool, check: bool, as_json: bool) -> None:
    """Show the experiments of a store, how far each is, and what failed."""
    from firststep.experiment import plan

    if migrate:
        from firststep.store import migrate as convert

        copy = convert(store_path)
        _say("nothing to migrate" if copy is None else f"migrated; the old file is kept as {copy}")
    with _told_in_lines(), _store(store_path, read_only=True) as store:
        facts: dict[str, Any] = {"store": store_path, "points": store.count(), "experiments": {}}
        elsewhere = "" if store_path == DEFAULT_STORE else f" --store {shlex.quote(store_path)}"
        for name, (command, experiment) in _remembered(store).items():
            found = plan(experiment, store, estimate=False)
            facts["experiments"][name] = {
                "title": experiment.title,
                "points": found.points,
                "present": found.present,
                "command": command + elsewhere,
            }
        facts["failures"] = [f"{label}: {message}" for label, message in store.failures().values()]
        facts["runs"] = store.active_runs()
        if check:
            facts["check"] = store.check()
        if as_json:
            click.echo(json.dumps(facts, indent=2))
            return
        click.echo(f"{store_path}: {facts['points']} rows")
        for name, entry in facts["experiments"].items():
            done = "complete" if entry["present"] == entry["points"] else f"to go on: {entry['command']}"
            counted = f"{entry['present']} of {entry['points']} points, {done}"
            click.echo(f"  {name}: {counted if entry['points'] else 'has no points to simulate'}")
        for text in facts["failures"]:
            click.echo(f"  failed: {text}")
        for pid in facts["runs"]:
            click.echo(f"  process {pid} is running into it")
        if check:
            click.echo(f"  check: {facts['check']}")


@click.command(short_help="Write a store's rows to a file.")
@click.argument("target", type=click.Path(dir_okay=False))
@click.option(
    "--format",
    "kind",
    type=click.Choice(["csv", "parquet", "netcdf"]),
    help="By the name's end unless given.",
)
@store_option
@click.option(
    "--where", multiple=True, metavar="COLUMN=VALUE", help="Only rows with this value; may be repeated."
)
def export(target: str, kind: str | None, store_path: str, where: tuple[str, ...]) -> None:
    """Write the rows of a store to TARGET, one for each replica or theory, step size and ridge.

    \b
    Examples:
      firststep export rows.csv
      firststep export points.nc --where source=simulation --where width=750
    """  # noqa: D301 (click reads this mark)
    kind = kind or {".csv": "csv", ".parquet": "parquet", ".nc": "netcdf"}.get(Path(target).suffix)
    if kind is None:
        raise click.UsageError(f"{target!r} ends in none of .csv, .parquet and .nc: give --format")
    wanted: dict[str, Any] = {}
    for entry in where:
        name, found, value = entry.partition("=")
        if not found:
            raise click.UsageError(f"--where wants COLUMN=VALUE, got {entry!r}")
        wanted[name] = _value(value)
    check_target(target, [store_path])
    with _store(store_path, read_only=True) as store:
        if not store.rows(**wanted):
            raise ValueError(f"{store_path} has no rows" + (" with these values" if wanted else ""))
        write = {"csv": store.to_csv, "parquet": store.to_parquet, "netcdf": store.to_netcdf}[kind]
        write(target, **wanted)
    _say(f"rows written to {target}")


def _value(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


@click.command(short_help="Make the report again from a store.")
@click.argument("names", nargs=-1, shell_complete=_experiment_names)
@store_option
@click.option(
    "--format",
    "kind",
    type=click.Choice(["html", "markdown"]),
    default="html",
    show_default=True,
    help="One HTML file, or a page for Sphinx with a folder of figures beside it.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    help="The file; results/report.html or results/gallery.md unless given.",
)
def report(names: tuple[str, ...], store_path: str, kind: str, output: str | None) -> None:
    """Make the report of a store's experiments, or of the NAMES among them, without computing anything.

    \b
    Examples:
      firststep report
      firststep report --format markdown --output docs/gallery.md
    """  # noqa: D301 (click reads this mark)
    from firststep.experiment import builtin_experiments, collect
    from firststep.report import Section, write_gallery, write_report

    target = Path(output or Path(OUTPUT) / ("report.html" if kind == "html" else "gallery.md"))
    ends = (".html", ".htm") if kind == "html" else (".md",)
    if target.suffix.lower() not in ends:
        raise click.UsageError(
            f"--output must end in {' or '.join(ends)} for --format {kind}, got {output!r}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    check_target(target, [store_path])
    with _told_in_lines(), _store(store_path, read_only=True) as store:
        known = _remembered(store)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise click.UsageError(
                f"{store_path} has no experiment {unknown[0]!r}; it has {', '.join(known) or 'none'}"
            )
        if not known:
            raise ValueError(f"{store_path} has no experiments: firststep run or reproduce makes some")
        # The papers' figures in their order, whenever each was run; then the user's own.
        order = [name for name in builtin_experiments() if name in known]
        sections = [
            Section(name, collect(store, known[name][1]), known[name][0])
            for name in dict.fromkeys([*order, *known])
            if name in (names or known)
        ]
        if kind == "html":
            write_report(sections, target, date=time.strftime("%Y-%m-%d"))
        else:
            write_gallery(sections, target)
        _say(f"report written to {target}")


@click.command(short_help="Versions, BLAS, threads, memory.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(store_path: str, as_json: bool) -> None:
    """Show what the numbers and the speed depend on, and what is missing."""
    facts = _diagnosis(store_path)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        shown = "; ".join(map(str, value)) if isinstance(value, list) else value
        click.echo(f"{name.replace('_', ' ')}: {shown}")


def _installed(package: str) -> str:
    """The version of a package, or that it is missing."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _diagnosis(store_path: str) -> dict[str, Any]:
    import platform
    import shutil
    import sqlite3

    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    from firststep import __version__
    from firststep.compute.speed import multiplication_rate
    from firststep.simulate import available_memory
    from firststep.store import StoreError, open_store

    memory = available_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts: dict[str, Any] = {
        "firststep": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "numpy": _installed("numpy"),
        "scipy": _installed("scipy"),
        "sqlite": sqlite3.sqlite_version,
        "extras": [
            f"{extra} ({', '.join(f'{package} {_installed(package)}' for package in packages)})"
            for extra, packages in EXTRAS.items()
        ],
        "blas": [
            f"{pool.get('internal_api')} {pool.get('version')}, {pool.get('num_threads')} threads"
            for pool in threadpool_info()
            if pool.get("user_api") == "blas"
        ],
        "cores": cores,
        "gemm_gflops": round(multiplication_rate() / 1e9, 1),
        "memory_gib": None if memory is None else round(memory / 2**30, 2),
        "disk_free_gib": round(shutil.disk_usage(Path.cwd()).free / 2**30, 2),
    }
    try:
        with open_store(store_path, read_only=True) as store:
            facts["store"] = f"{store_path}: {store.count()} rows, {store.check()}"
    except StoreError as error:
        facts["store"] = str(error)
    return facts


COMMANDS = (run, reproduce, status, export, report, doctor)
