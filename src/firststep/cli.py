"""The command line: thin, and quick to start because NumPy is imported inside the commands."""

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from firststep import cli_diagnose, cli_experiments, cli_explore, cli_spectrum
from firststep.cli_output import complain, remarks, save, say, show_comparison, show_outcome

if TYPE_CHECKING:
    from firststep.figures import Figure
    from firststep.problem import Outcome

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

# Written here as well, so that --help and completion need not import NumPy; a test compares them with the
# library's own.
ROWS = ("gaussian", "sphere")
READOUTS = ("gaussian", "rademacher", "constant")
INITIAL_OUTPUTS = ("vanishing", "order_one")
THEORIES = ("unified", "staircase", "random_features")
BACKENDS = ("numpy", "torch")

STEP_EXPONENTS = "0:0.5:11"
MOST_NUMBERS = 100_000
CURVE_POINTS = 121

Command = Callable[..., Any]


def parse_numbers(text: str) -> tuple[float, ...]:
    """Numbers from ``0.1``, ``0.1,1,10``, ``start:stop:count`` or ``log:start:stop:count``, ends included.

    Examples
    --------
    >>> parse_numbers("0:0.5:3"), parse_numbers("0, log:1:100:3")
    ((0.0, 0.25, 0.5), (0.0, 1.0, 10.0, 100.0))
    """
    numbers: list[float] = []
    for item in text.split(","):
        parts = [part.strip() for part in item.split(":")]
        logarithmic = len(parts) == 4 and parts[0] == "log"
        if len(parts) == 1:
            numbers.append(_number(parts[0]))
        elif len(parts) == 3 or logarithmic:
            start, stop = _number(parts[-3]), _number(parts[-2])
            count = _whole(parts[-1])
            if not 2 <= count <= MOST_NUMBERS - len(numbers):
                raise ValueError(f"a range needs a count from 2 to {MOST_NUMBERS}, got {parts[-1]}")
            if logarithmic and not (start > 0 and stop > 0):
                raise ValueError(f"a log range needs positive ends, got {item.strip()!r}")
            between = [i / (count - 1) for i in range(1, count - 1)]
            if logarithmic:
                inner = [math.exp(math.log(start) * (1 - t) + math.log(stop) * t) for t in between]
            else:
                inner = [start + (stop - start) * t for t in between]
            numbers += [start, *(float(f"{value:.15g}") for value in inner), stop]
        else:
            raise ValueError(
                f"{item.strip()!r} is neither a number nor start:stop:count nor log:start:stop:count"
            )
    return tuple(numbers)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def _whole(text: str) -> int:
    """A whole number, also one written as 1e6."""
    try:
        value = Decimal(text.strip())
        # An exponent beyond this is no size, and its digits would fill the memory.
        if value.is_finite() and value.adjusted() <= 300 and value == value.to_integral_value():
            return int(value)
    except InvalidOperation:
        pass
    raise ValueError(f"{text!r} is not a whole number")


class _Parsed(ParamType):
    """An option's value read by a function that raises ValueError."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name, self.read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


NUMBERS, NUMBER, WHOLE = (
    _Parsed("numbers", parse_numbers),
    _Parsed("number", _number),
    _Parsed("integer", _whole),
)


class _Option(click.Option):
    """An option that knows under which heading of the help it stands."""

    def __init__(self, *args: Any, heading: str = "Output", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


class _Command(click.Command):
    """A command whose help groups the options, and ends with examples as they are typed."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each heading, in the order of the options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "heading", "Output"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                # One column for all sections, so that the eye can run down.
                formatter.write_dl(records, col_max=30)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what NUMBERS means and the examples."""
        if any(isinstance(param.type, _Parsed) and param.type is NUMBERS for param in self.params):
            with formatter.section("Numbers"):
                formatter.write_text(
                    "One number, a comma-separated list, start:stop:count or log:start:stop:count "
                    "(both ends included)."
                )
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class _Program(click.Group):
    """The group of all commands: one sentence and an exit code for everything that can go wrong."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order in which they are written here."""
        return list(self.commands)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; exit with 0, 1 (failed), 2 (bad input) or 130 (interrupted)."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        debugging = os.environ.get("FIRSTSTEP_DEBUG", "") not in ("", "0")
        code: Any = 1
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.Abort:
            code = 130
        except click.ClickException as error:
            complain(error.format_message())
            code = error.exit_code
        except Exception as error:
            if debugging:
                raise
            if isinstance(error, ValueError | TypeError):
                complain(str(error))
                code = 2
            elif isinstance(error, RuntimeError | ArithmeticError | MemoryError | OSError | ImportError):
                complain(str(error) or type(error).__name__)
            else:
                complain(f"unexpected {type(error).__name__}: {error} (FIRSTSTEP_DEBUG=1 shows where)")
        sys.exit(code if isinstance(code, int) else 0)


def _function_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from firststep.gaussian import names

    return [CompletionItem(name) for name in names() if name.startswith(incomplete)]


def _options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def _option(*names: str, heading: str, **kwargs: Any) -> Callable[[Command], Command]:
    return click.option(*names, cls=_Option, heading=heading, **{"show_default": True} | kwargs)


problem_options = _options(
    _option(
        "--activation",
        heading="Problem",
        default="relu",
        metavar="FUNCTION",
        shell_complete=_function_names,
        help="Activation sigma: a name (relu, tanh, erf, …) or an expression in x and h0, h1, … (Hermite).",
    ),
    _option(
        "--teacher",
        heading="Problem",
        default="h1 + h2/sqrt(2)",
        metavar="FUNCTION",
        shell_complete=_function_names,
        help="Teacher s in y = s(beta.x) + noise, written likewise.",
    ),
    _option(
        "--noise-std",
        heading="Problem",
        default="0",
        type=NUMBER,
        help="Standard deviation of the label noise.",
    ),
    _option("--rows", heading="Problem", default=ROWS[0], type=click.Choice(ROWS), help="First-layer rows."),
    _option(
        "--readout",
        heading="Problem",
        default=READOUTS[0],
        type=click.Choice(READOUTS),
        help="Readout at the start.",
    ),
    _option(
        "--initial-output",
        heading="Problem",
        default=INITIAL_OUTPUTS[0],
        type=click.Choice(INITIAL_OUTPUTS),
        help="Size of the network's output at the start.",
    ),
    _option("--n-samples", heading="Sizes", default="1000", type=WHOLE, help="Samples n of the ridge fit."),
    _option("--dim", heading="Sizes", default="500", type=WHOLE, help="Input dimension d."),
    _option("--width", heading="Sizes", default="750", type=WHOLE, help="Neurons N of the first layer."),
    _option(
        "--n-step-samples",
        heading="Sizes",
        type=WHOLE,
        show_default="--n-samples",
        help="Samples n0 of the gradient step.",
    ),
    _option(
        "--step-size", heading="Step and fit", type=NUMBERS, help="Step sizes eta, in place of exponents."
    ),
    _option(
        "--step-exponent",
        heading="Step and fit",
        type=NUMBERS,
        show_default=STEP_EXPONENTS,
        help="Step exponents alpha: eta = n0^alpha.",
    ),
    _option("--ridge", heading="Step and fit", default="0.1", type=NUMBERS, help="Ridges lambda."),
)
simulation_options = _options(
    _option("--replicas", heading="Simulation", default="8", type=WHOLE, help="Independent draws."),
    _option("--seed", heading="Simulation", default="0", type=WHOLE, help="Same seed, same numbers."),
    _option(
        "--workers",
        heading="Simulation",
        type=WHOLE,
        show_default="one for each core",
        help="Processes; the numbers do not depend on it.",
    ),
    _option(
        "--backend",
        heading="Simulation",
        default=BACKENDS[0],
        type=click.Choice(BACKENDS),
        help="Library that computes; the numbers do not depend on it.",
    ),
    _option("--device", heading="Simulation", help="Where torch computes: cpu, cuda, … (untested on GPUs)."),
    _option(
        "--dry-run",
        heading="Simulation",
        is_flag=True,
        show_default=False,
        help="Say what would be run and how much memory it takes, and stop.",
    ),
)
output_options = _options(
    _option(
        "--json",
        "as_json",
        heading="Output",
        is_flag=True,
        show_default=False,
        help="Print one JSON object in place of the table.",
    ),
    _option(
        "--plot",
        heading="Output",
        metavar="FILE",
        type=click.Path(),
        help="Draw the errors against the step exponent (.png, .svg or .pdf).",
    ),
    _option(
        "--quiet",
        "-q",
        heading="Output",
        is_flag=True,
        show_default=False,
        help="No progress and no notes on stderr.",
    ),
)


def _version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from firststep import __version__

        click.echo(f"firststep {__version__}")
        ctx.exit()


@click.group(
    cls=_Program, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """One gradient step on a two-layer network: solved in the limit, simulated, and compared."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@main.command(
    cls=_Command,
    examples=(
        "firststep predict --step-exponent 0:0.5:6 --ridge 0.01,0.1",
        'firststep predict --activation tanh --teacher "tanh(2*x)" --noise-std 0.3 --json',
        "firststep predict --n-samples 1e12 --dim 5e11 --width 7.5e11 --plot errors.svg",
    ),
)
@problem_options
@_option(
    "--theory",
    "theories",
    heading="Theory",
    default=[THEORIES[0]],
    multiple=True,
    type=click.Choice(THEORIES),
    help="Which theory.",
)
@output_options
def predict(theories: tuple[str, ...], as_json: bool, plot: str | None, quiet: bool, **options: Any) -> None:
    """Train and test errors from the theory."""
    _keep_to_one_thread()
    with remarks(quiet) as notes:
        if len(theories) > 1:
            raise click.UsageError(f"predict takes one --theory, got {', '.join(theories)}")
        (theory,) = theories
        asked = _Question(options)
        asked.check_plot(plot)
        from firststep.theory import predict as predict_errors

        outcome = predict_errors(asked.problem, asked.sizes, theory=theory, **asked.grid)
        show_outcome(outcome, notes, as_json)
        if plot:
            save(asked.figure([], [theory]), plot, notes)


@main.command(
    cls=_Command,
    examples=(
        "firststep simulate --n-samples 400 --dim 200 --width 300 --replicas 20",
        "firststep simulate --activation erf --step-size 0,1,10 --ridge log:1e-3:10:5 --json",
        "firststep simulate --n-samples 20000 --dim 10000 --width 15000 --dry-run",
    ),
)
@problem_options
@simulation_options
@output_options
def simulate(
    replicas: int,
    seed: int,
    workers: int | None,
    backend: str,
    device: str | None,
    dry_run: bool,
    as_json: bool,
    plot: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Train and test errors of networks at finite size."""
    with remarks(quiet) as notes:
        asked = _Question(options)
        asked.check_plot(plot)
        if dry_run:
            asked.show_plan(replicas, as_json)
            return
        from firststep.simulate import simulate as run

        progress = False if quiet else None
        outcome = run(
            asked.problem,
            asked.sizes,
            replicas=replicas,
            seed=seed,
            workers=workers,
            backend=backend,
            device=device,
            progress=progress,
            **asked.grid,
        )
        show_outcome(outcome, notes, as_json, replicas=replicas, seed=seed)
        if plot:
            save(asked.figure([outcome], []), plot, notes)


@main.command(
    cls=_Command,
    examples=(
        "firststep compare --n-samples 400 --dim 200 --width 300 --plot errors.png",
        "firststep compare --theory unified --theory random_features --step-exponent 0,0.1,0.2",
        "firststep compare --noise-std 0.5 --ridge 0.01,0.1,1 --replicas 40 --json",
    ),
)
@problem_options
@_option(
    "--theory",
    "theories",
    heading="Theory",
    default=[THEORIES[0]],
    multiple=True,
    type=click.Choice(THEORIES),
    help="Which theory; may be repeated.",
)
@simulation_options
@output_options
def compare(
    theories: tuple[str, ...],
    replicas: int,
    seed: int,
    workers: int | None,
    backend: str,
    device: str | None,
    dry_run: bool,
    as_json: bool,
    plot: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Theory and simulation, and how far they are apart."""
    with remarks(quiet) as notes:
        asked = _Question(options)
        asked.check_plot(plot)
        if dry_run:
            asked.show_plan(replicas, as_json)
            return
        from firststep.compare import compare as run

        comparison = run(
            asked.problem,
            asked.sizes,
            theory=theories,
            replicas=replicas,
            seed=seed,
            workers=workers,
            backend=backend,
            device=device,
            progress=False if quiet else None,
            **asked.grid,
        )
        show_comparison(comparison, notes, as_json, replicas=replicas, seed=seed)
        if plot:
            save(asked.figure([comparison.simulated], theories), plot, notes)


@main.command(cls=_Command, examples=cli_spectrum.EXAMPLES)
@problem_options
@_option(
    "--of",
    heading="Spectrum",
    default=cli_spectrum.KINDS[0],
    type=click.Choice(cli_spectrum.KINDS),
    help="Eigenvalues of F F^T/n or of W W^T after the step.",
)
@_option("--points", heading="Spectrum", default="200", type=WHOLE, help="Points of the density.")
@_option(
    "--simulate",
    heading="Simulation",
    is_flag=False,
    flag_value="1",
    metavar="[REPLICAS]",
    type=WHOLE,
    show_default=False,
    help="Add spectra of this many drawn networks (1 if no number is given).",
)
@_option("--seed", heading="Simulation", default="0", type=WHOLE, help="Same seed, same numbers.")
@output_options
def spectrum(
    of: str,
    points: int,
    simulate: int | None,
    seed: int,
    as_json: bool,
    plot: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Bulk, edges and outliers of features or weights, predicted and simulated."""
    with remarks(quiet) as notes:
        if options["step_size"] is None and options["step_exponent"] is None:
            options["step_exponent"] = (cli_spectrum.STEP_EXPONENT,)
        asked = _Question(options | {"ridge": 1.0})
        asked.check_plot(plot)
        cli_spectrum.run(
            asked.problem,
            asked.sizes,
            asked.step_sizes.tolist(),
            of=of,
            points=points,
            simulate=simulate,
            seed=seed,
            as_json=as_json,
            plot=plot,
            say=say,
            tell=notes.tell,
        )


# No ridge plays a part in a spectrum, and one step size is enough for a picture.
spectrum.params = [param for param in spectrum.params if param.name != "ridge"]
for _param in spectrum.params:
    if _param.name == "step_exponent" and isinstance(_param, click.Option):
        _param.show_default = str(cli_spectrum.STEP_EXPONENT)
    if _param.name == "plot" and isinstance(_param, click.Option):
        _param.help = (
            "Draw the histogram, or for more than three step sizes the ladder of spikes (.png, .svg or .pdf)."
        )


@main.command(
    cls=_Command,
    examples=(
        'eval "$(firststep completion bash)"',
        'eval "$(firststep completion zsh)"',
        "firststep completion fish | source",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script for completion in a shell."""
    found = get_completion_class(shell)
    if found is None:
        raise RuntimeError(f"this version of click cannot complete for {shell}")
    # The base class's method: bash's own starts a bash to ask for its version.
    click.echo(ShellComplete.source(found(main, {}, "firststep", "_FIRSTSTEP_COMPLETE")), nl=False)


def _keep_to_one_thread() -> None:
    """Start no BLAS threads, unless the user wants some: on matrices as small as a theory's they only wait."""
    # Once NumPy is there it is too late, and only processes started later would see these.
    if "numpy" not in sys.modules:
        for library in ("OPENBLAS", "OMP", "MKL"):
            os.environ.setdefault(f"{library}_NUM_THREADS", "1")


class _Question:
    """The problem, sizes, step sizes and ridges that the options ask about."""

    def __init__(self, options: dict[str, Any]) -> None:
        from firststep.problem import Problem, Sizes, ridges_of, step_sizes_of

        step_sizes, step_exponents = options["step_size"], options["step_exponent"]
        if step_sizes is not None and step_exponents is not None:
            raise click.UsageError("give either --step-size or --step-exponent, not both")
        if step_sizes is None and step_exponents is None:
            step_exponents = parse_numbers(STEP_EXPONENTS)
        self.problem: Problem = Problem(
            options["activation"],
            options["teacher"],
            options["noise_std"],
            options["rows"],
            options["readout"],
            options["initial_output"],
        )
        self.sizes: Sizes = Sizes(
            options["n_samples"], options["dim"], options["width"], options["n_step_samples"]
        )
        self.grid: dict[str, Any] = {
            "step_sizes": step_sizes,
            "step_exponents": step_exponents,
            "ridges": ridges_of(options["ridge"]),
        }
        self.step_sizes = step_sizes_of(self.sizes, step_sizes, step_exponents)

    def check_plot(self, plot: str | None) -> None:
        """Complain about a figure that could not be written before anything is computed."""
        if plot is not None:
            from firststep.figures import plot_format

            plot_format(plot)

    def show_plan(self, replicas: int, as_json: bool) -> None:
        """What a simulation would do, without doing it."""
        from firststep.simulate import available_memory, estimate_memory

        need, available = estimate_memory(self.sizes), available_memory()
        if as_json:
            plan = {
                "problem": self.problem.to_dict(),
                "sizes": self.sizes.to_dict(),
                "replicas": replicas,
                "step_sizes": len(self.step_sizes),
                "ridges": len(self.grid["ridges"]),
                "memory_per_worker": need,
                "memory_available": available,
            }
            say(json.dumps(plan, indent=2, allow_nan=False))
            return
        known = "" if available is None else f", {available / 2**30:.3g} GiB are available"
        say(
            f"{replicas} replicas of {len(self.step_sizes)} step sizes x {len(self.grid['ridges'])} ridges; "
            f"about {need / 2**30:.3g} GiB for each worker{known}"
        )

    def figure(self, simulated: Sequence["Outcome"], theories: Sequence[str]) -> "Figure":
        """Errors against the step exponent, every theory on a fine grid of its own."""
        import numpy as np

        from firststep import figures
        from firststep.theory import predict as predict_errors
        from firststep.theory.bounds import best_linear_error

        exponents = self.sizes.step_exponent(self.step_sizes)
        exponents = exponents[np.isfinite(exponents)]
        low, high = (float(exponents.min()), float(exponents.max())) if exponents.size else (0.0, 0.5)
        if low == high:
            low, high = min(low, 0.0), max(high, 0.5)
        curves = []
        for theory in theories:
            fine = np.linspace(low, high, CURVE_POINTS)
            if theory == "staircase":
                # One point in every window: a level holds for the whole of it.
                starts = np.array([(k - 1) / (2 * k) for k in range(1, figures.LAST_WINDOW + 1)])
                fine = np.array([low, *(starts[starts < high] + 1e-3 * (0.5 - starts[starts < high]))])
                fine = fine[(fine >= low) & (fine <= 0.5)]
            curves.append(
                predict_errors(
                    self.problem, self.sizes, theory=theory, step_exponents=fine, ridges=self.grid["ridges"]
                )
            )
        linear = best_linear_error(self.problem)
        return figures.errors_against_step([*curves, *simulated], linear=linear)


for _command in (*cli_experiments.COMMANDS, cli_diagnose.diagnose, cli_explore.explore):
    main.add_command(_command)
