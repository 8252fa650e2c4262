"""The command line: thin, and quick to start because NumPy is imported inside the commands."""

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import ShellComplete, get_completion_class

from firststep.cli import diagnose as cli_diagnose
from firststep.cli import experiments as cli_experiments
from firststep.cli import explore as cli_explore
from firststep.cli import spectrum as cli_spectrum
from firststep.cli.options import (
    RISK,
    SEED,
    STEP_EXPONENTS,
    WHOLE,
    CommandWithExamples,
    Output,
    Simulation,
    option,
    output_options,
    parse_numbers,
    problem_options,
    simulation_options,
    theory_option,
    whole_sizes,
    workers_option,
)
from firststep.cli.output import (
    complain,
    remarks,
    save,
    say,
    sentence,
    show_comparison,
    show_outcome,
    waiting,
)
from firststep.setting.declared import FIELDS

if TYPE_CHECKING:
    from firststep.figures import Figure
    from firststep.results import Outcome

CURVE_POINTS = 121
PLOT = "Draw the errors against the step exponent (.png, .svg or .pdf)."


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
                complain(sentence(error))
                code = 2
            elif isinstance(error, RuntimeError | ArithmeticError | MemoryError | OSError | ImportError):
                complain(sentence(error))
            else:
                complain(f"unexpected {type(error).__name__}: {error} (FIRSTSTEP_DEBUG=1 shows where)")
        sys.exit(code if isinstance(code, int) else 0)


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
    cls=CommandWithExamples,
    examples=(
        "firststep predict --step-exponent 0:0.5:6 --ridge 0.01,0.1",
        'firststep predict --activation tanh --teacher "tanh(2*x)" --noise-std 0.3 --json',
        "firststep predict --step-exponent 0:0.5:200 --ridge log:1e-3:10:200 --json",
        "firststep predict --n-samples 1e12 --dim 5e11 --width 7.5e11 --plot errors.svg",
    ),
)
@problem_options()
@theory_option("Which theory.")
@workers_option("Theory", "Processes for a map of many points; the numbers do not depend on it.")
@output_options(PLOT)
@RISK
def predict(theories: tuple[str, ...], workers: int | None, **options: Any) -> None:
    """Train and test errors from the theory."""
    _keep_to_one_thread()
    output = Output.from_options(options)
    with remarks(output.quiet) as notes:
        if len(theories) > 1:
            raise click.UsageError(f"predict takes one --theory, got {', '.join(theories)}")
        (theory,) = theories
        asked = _Question(options)
        asked.check_plot(output.plot)
        from firststep.theory import predict as predict_errors

        with waiting(f"{theory} theory", output.quiet) as progress:
            outcome = predict_errors(
                asked.problem, asked.sizes, theory=theory, workers=workers, progress=progress, **asked.grid
            )
        show_outcome(asked.shown(outcome), notes, output.as_json)
        if output.plot:
            save(asked.figure([], [theory]), output.plot, notes)


def _to_simulate(options: dict[str, Any], output: Output, drawn: Simulation) -> "_Question | None":
    """What is to be simulated; None where only the plan was asked for, which is shown."""
    asked = _Question(options)
    asked.check_plot(output.plot)
    if not drawn.dry_run:
        return asked
    asked.show_plan(drawn.replicas, output.as_json)
    return None


@main.command(
    cls=CommandWithExamples,
    examples=(
        "firststep simulate --n-samples 400 --dim 200 --width 300 --replicas 20",
        "firststep simulate --activation erf --step-size 0,1,10 --ridge log:1e-3:10:5 --json",
        "firststep simulate --n-samples 20000 --dim 10000 --width 15000 --dry-run",
    ),
)
@problem_options()
@simulation_options
@output_options(PLOT)
@RISK
def simulate(**options: Any) -> None:
    """Train and test errors of networks at finite size."""
    output, drawn = Output.from_options(options), Simulation.from_options(options)
    with remarks(output.quiet) as notes:
        asked = _to_simulate(options, output, drawn)
        if asked is None:
            return
        from firststep.simulate import simulate as run

        progress = False if output.quiet else None
        outcome = run(asked.problem, asked.sizes, progress=progress, **drawn.arguments(), **asked.grid)
        show_outcome(asked.shown(outcome), notes, output.as_json, replicas=drawn.replicas, seed=drawn.seed)
        if output.plot:
            save(asked.figure([outcome], []), output.plot, notes)


@main.command(
    cls=CommandWithExamples,
    examples=(
        "firststep compare --n-samples 400 --dim 200 --width 300 --plot errors.png",
        "firststep compare --theory unified --theory random_features --step-exponent 0,0.1,0.2",
        "firststep compare --noise-std 0.5 --ridge 0.01,0.1,1 --replicas 40 --json",
    ),
)
@problem_options()
@theory_option("Which theory; may be repeated.")
@simulation_options
@output_options(PLOT)
@RISK
def compare(theories: tuple[str, ...], **options: Any) -> None:
    """Theory and simulation, and how far they are apart."""
    output, drawn = Output.from_options(options), Simulation.from_options(options)
    with remarks(output.quiet) as notes:
        asked = _to_simulate(options, output, drawn)
        if asked is None:
            return
        from firststep.compare import compare as run

        progress = False if output.quiet else None
        comparison = run(
            asked.problem, asked.sizes, theory=theories, progress=progress, **drawn.arguments(), **asked.grid
        )
        if asked.risk:
            comparison = comparison.without_noise()
        show_comparison(comparison, notes, output.as_json, replicas=drawn.replicas, seed=drawn.seed)
        if output.plot:
            save(asked.figure([comparison.simulated], theories), output.plot, notes)


@main.command(cls=CommandWithExamples, examples=cli_spectrum.EXAMPLES)
@problem_options(str(cli_spectrum.STEP_EXPONENT), ridge=False)
@option(
    "--of",
    heading="Spectrum",
    default=cli_spectrum.KINDS[0],
    type=click.Choice(cli_spectrum.KINDS),
    help="Eigenvalues of F F^T/n or of W W^T after the step.",
)
@option("--points", heading="Spectrum", default="200", type=WHOLE, help="Points of the density.")
@option(
    "--simulate",
    "replicas",
    heading="Simulation",
    is_flag=False,
    flag_value="1",
    metavar="[REPLICAS]",
    type=WHOLE,
    show_default=False,
    help="Add spectra of this many drawn networks (1 if no number is given).",
)
@SEED
@output_options(
    "Draw the histogram, or for more than three step sizes the ladder of spikes (.png, .svg or .pdf)."
)
def spectrum(of: str, points: int, replicas: int | None, seed: int, **options: Any) -> None:
    """Bulk, edges and outliers of features or weights, predicted and simulated."""
    output = Output.from_options(options)
    with remarks(output.quiet) as notes:
        asked = _Question(options, str(cli_spectrum.STEP_EXPONENT))
        asked.check_plot(output.plot)
        wanted = cli_spectrum.Wanted(asked.problem, asked.sizes, asked.schedule, of, points, replicas, seed)
        cli_spectrum.run(wanted, output, say, notes.tell)


@main.command(
    cls=CommandWithExamples,
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


def _given(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


class _Question:
    """The problem, sizes, step sizes and ridges that the options ask about."""

    def __init__(self, options: dict[str, Any], step_exponents: str = STEP_EXPONENTS) -> None:
        from firststep.setting import Problem, Sizes, ridges_of, schedule_of

        for name in ("step", "next-step"):
            if all(options[f"{name}-{kind}".replace("-", "_")] for kind in ("size", "exponent")):
                raise click.UsageError(f"give either --{name}-size or --{name}-exponent, not both")
        self.problem: Problem = Problem(**{field.name: options[field.name] for field in FIELDS})
        self.sizes: Sizes = Sizes(**whole_sizes(options, _given), n_step_samples=options["n_step_samples"])
        self.risk: bool = options.get("risk", False)
        # As predict, simulate and compare take them; later steps only where there are some.
        names = ("step_size", "step_exponent", "next_step_size", "next_step_exponent")
        steps: dict[str, Any] = {f"{name}s": options[name] for name in names if options[name]}
        if "step_sizes" not in steps:
            steps.setdefault("step_exponents", parse_numbers(step_exponents))
        self.later: dict[str, Any] = {
            name: list(value) for name, value in steps.items() if name.startswith("next")
        }
        self.schedule = schedule_of(self.sizes, **steps | self.later)
        self.grid: dict[str, Any] = steps | self.later
        if "ridge" in options:
            self.grid["ridges"] = ridges_of(options["ridge"])

    def shown(self, outcome: "Outcome") -> "Outcome":
        """The outcome as it is to be shown."""
        return outcome.without_noise() if self.risk else outcome

    def check_plot(self, plot: str | None) -> None:
        """Complain about a figure that could not be written before anything is computed."""
        if plot is not None:
            from firststep.figures import plot_format

            plot_format(plot)
            if self.later:
                raise ValueError(
                    "--plot draws errors against one step: leave out the later steps, or use --json"
                )

    def show_plan(self, replicas: int, as_json: bool) -> None:
        """What a simulation would do, without doing it."""
        from firststep.simulate import available_memory, estimate_memory

        need, available = estimate_memory(self.sizes), available_memory()
        if as_json:
            plan = {
                "problem": self.problem.to_dict(),
                "sizes": self.sizes.to_dict(),
                "replicas": replicas,
                "step_sizes": len(self.schedule),
                "ridges": len(self.grid["ridges"]),
                "memory_per_worker": need,
                "memory_available": available,
            }
            say(json.dumps(plan, indent=2, allow_nan=False))
            return
        kind = "step sizes" if not self.later else f"sequences of {self.schedule.shape[1]} steps"
        known = "" if available is None else f", {available / 2**30:.3g} GiB are available"
        say(
            f"{replicas} replicas of {len(self.schedule)} {kind} x {len(self.grid['ridges'])} ridges; "
            f"about {need / 2**30:.3g} GiB for each worker{known}"
        )

    def figure(self, simulated: Sequence["Outcome"], theories: Sequence[str]) -> "Figure":
        """Errors against the step exponent, every theory on a fine grid of its own."""
        import numpy as np

        from firststep import figures
        from firststep.theory import predict as predict_errors
        from firststep.theory.limits.bounds import best_linear_error
        from firststep.theory.limits.staircase import MAX_SPIKES, window_start

        exponents = self.sizes.step_exponent(self.schedule[:, 0])
        exponents = exponents[np.isfinite(exponents)]
        low, high = (float(exponents.min()), float(exponents.max())) if exponents.size else (0.0, 0.5)
        if low == high:
            low, high = min(low, 0.0), max(high, 0.5)
        curves = []
        for theory in theories:
            fine = np.linspace(low, high, CURVE_POINTS)
            if theory == "staircase":
                # One point in every window: a level holds for the whole of it.
                starts = np.array([window_start(k) for k in range(1, MAX_SPIKES + 1)])
                fine = np.array([low, *(starts[starts < high] + 1e-3 * (0.5 - starts[starts < high]))])
                fine = fine[(fine >= low) & (fine <= 0.5)]
            curves.append(
                predict_errors(
                    self.problem,
                    self.sizes,
                    theory=theory,
                    step_exponents=fine,
                    ridges=self.grid["ridges"],
                    **self.later,
                )
            )
        linear = best_linear_error(self.problem)
        if self.risk:
            outcomes = [self.shown(outcome) for outcome in (*curves, *simulated)]
            quantities = ("train_error", "risk")
            linear -= self.problem.noise_variance
            return figures.errors_against_step(outcomes, quantities=quantities, linear=linear)
        return figures.errors_against_step([*curves, *simulated], linear=linear)


for _command in (*cli_experiments.COMMANDS, cli_diagnose.diagnose, cli_explore.explore):
    main.add_command(_command)
