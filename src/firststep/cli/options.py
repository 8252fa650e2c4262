"""The command line's options: numbers and ranges, and one option for each field of a setting.

Quick to import: help and completion need no NumPy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Self

import click
from click.shell_completion import CompletionItem

from firststep.setting.declared import FIELDS
from firststep.setting.fields import Field, finite_number

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

# Written here as well, so that --help and completion need not import NumPy; a test compares them with the
# library's own.
THEORIES = ("unified", "leading_order", "staircase", "random_features")
BACKENDS = ("numpy", "torch")

STEP_EXPONENTS = "0:0.5:11"
MOST_NUMBERS = 100_000

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


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
            numbers.append(finite_number(parts[0]))
        elif len(parts) == 3 or logarithmic:
            start, stop = finite_number(parts[-3]), finite_number(parts[-2])
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
    _Parsed("number", finite_number),
    _Parsed("integer", _whole),
)


class Option(click.Option):
    """An option that knows under which heading of the help it stands."""

    def __init__(self, *args: Any, heading: str = "Output", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


class CommandWithExamples(click.Command):
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


def _function_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from firststep.gaussian import names

    return [CompletionItem(name) for name in names() if name.startswith(incomplete)]


def together(*decorators: Decorator) -> Decorator:
    """Options in the order given."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def option(*names: str, heading: str, **kwargs: Any) -> Decorator:
    """An option under a heading, with its default shown."""
    return click.option(*names, cls=Option, heading=heading, **{"show_default": True} | kwargs)


def _field_option(field: Field) -> Decorator:
    """The option of a field of a setting."""
    asked: dict[str, Any] = {"heading": _heading(field), "help": field.help, "default": field.default}
    match field.kind:
        case "function":
            asked |= {"metavar": "FUNCTION", "default": field.start, "shell_complete": _function_names}
        case "number":
            asked |= {"type": NUMBER, "default": f"{field.default:g}"}
        case "choice":
            asked |= {"type": click.Choice(list(field.choices or ()))}
        case _:
            asked |= {"metavar": "WORDS", "shell_complete": _examples_of(field)}
    return option(field.option, field.name, **asked)


def _examples_of(field: Field) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(text) for text in field.examples if text.startswith(incomplete)]

    return complete


def _fields_under(heading: str) -> list[Decorator]:
    return [_field_option(field) for field in FIELDS if _heading(field) == heading]


def _heading(field: Field) -> str:
    return "Step and fit" if field.part in ("training", "fit") else "Problem"


def problem_options(step_exponents: str = STEP_EXPONENTS, *, ridge: bool = True) -> Decorator:
    """Every field of a setting, the sizes, the steps, and where it plays a part the ridge."""
    steps = "Step and fit"
    ridges = [option("--ridge", heading=steps, default="0.1", type=NUMBERS, help="Ridges lambda.")]
    return together(
        *_fields_under("Problem"),
        option(
            "--n-samples", heading="Sizes", default="1000", type=WHOLE, help="Samples n of the ridge fit."
        ),
        option("--dim", heading="Sizes", default="500", type=WHOLE, help="Input dimension d."),
        option("--width", heading="Sizes", default="750", type=WHOLE, help="Neurons N of the first layer."),
        option(
            "--n-step-samples",
            heading="Sizes",
            type=WHOLE,
            show_default="--n-samples",
            help="Samples n0 of a gradient step.",
        ),
        option("--phi", heading="Sizes", type=NUMBER, help="d/n, in place of --dim [Moniri24]."),
        option("--psi", heading="Sizes", type=NUMBER, help="d/N, in place of --width [Moniri24]."),
        option("--psi1", heading="Sizes", type=NUMBER, help="n/d, in place of --n-samples [Ba22]."),
        option("--psi2", heading="Sizes", type=NUMBER, help="N/d, in place of --width [Ba22]."),
        option("--step-size", heading=steps, type=NUMBERS, help="Step sizes eta, in place of exponents."),
        option(
            "--step-exponent",
            heading=steps,
            type=NUMBERS,
            show_default=step_exponents,
            help="Step exponents alpha: eta = n0^alpha.",
        ),
        option(
            "--next-step-size",
            heading=steps,
            type=NUMBERS,
            multiple=True,
            help="Step sizes eta of a second step; repeated, of a third.",
        ),
        option(
            "--next-step-exponent",
            heading=steps,
            type=NUMBERS,
            multiple=True,
            help="Step exponents alpha of a second step; repeated, of a third.",
        ),
        *(ridges if ridge else []),
        *_fields_under(steps),
    )


# Each ratio with the size that it stands for.
RATIOS = {"phi": "dim", "psi": "width", "psi1": "n_samples", "psi2": "width"}


def whole_sizes(options: dict[str, Any], given: Callable[[str], bool]) -> dict[str, int]:
    """Sizes n, d, N, those that a ratio stands for rounded to whole numbers.

    Parameters
    ----------
    options : dict
        Values of all options; a ratio that was not given is None.
    given : callable
        Whether an option was given and is not its default.
    """
    used = {ratio: options[ratio] for ratio in RATIOS if options[ratio] is not None}
    for ratio, value in used.items():
        if not value > 0:
            raise click.UsageError(f"--{ratio} must be positive, got {value:g}")
        name = RATIOS[ratio]
        rivals = [other for other in used if other != ratio and RATIOS[other] == name]
        rivals += [name] if given(name) else []
        if rivals:
            raise click.UsageError(f"give either --{ratio} or --{rivals[0].replace('_', '-')}, not both")
    if "phi" in used and "psi1" in used:
        raise click.UsageError("--phi and --psi1 are the same ratio: give one of them, and the other size")
    sizes = {name: options[name] for name in ("n_samples", "dim", "width")}
    if "phi" in used:
        sizes["dim"] = max(1, round(sizes["n_samples"] * used["phi"]))
    if "psi1" in used:
        sizes["n_samples"] = max(1, round(sizes["dim"] * used["psi1"]))
    if "psi" in used:
        sizes["width"] = max(1, round(sizes["dim"] / used["psi"]))
    if "psi2" in used:
        sizes["width"] = max(1, round(sizes["dim"] * used["psi2"]))
    return sizes


RISK = option(
    "--risk",
    heading="Output",
    is_flag=True,
    show_default=False,
    help="Show the test error without the noise of the labels.",
)


def theory_option(help: str) -> Decorator:
    """Which theory, or theories."""
    return option(
        "--theory",
        "theories",
        heading="Theory",
        default=[THEORIES[0]],
        multiple=True,
        type=click.Choice(THEORIES),
        help=help,
    )


def workers_option(heading: str, help: str) -> Decorator:
    """The option for the number of processes."""
    return option("--workers", heading=heading, type=WHOLE, show_default="one for each core", help=help)


SEED = option("--seed", heading="Simulation", default="0", type=WHOLE, help="Same seed, same numbers.")
simulation_options = together(
    option("--replicas", heading="Simulation", default="8", type=WHOLE, help="Independent draws."),
    SEED,
    workers_option("Simulation", "Processes; the numbers do not depend on it."),
    option(
        "--backend",
        heading="Simulation",
        default=BACKENDS[0],
        type=click.Choice(BACKENDS),
        help="Library that computes; the numbers do not depend on it.",
    ),
    option("--device", heading="Simulation", help="Where torch computes: cpu, cuda, … (untested on GPUs)."),
    option(
        "--dry-run",
        heading="Simulation",
        is_flag=True,
        show_default=False,
        help="Say what would be run and how much memory it takes, and stop.",
    ),
)


def output_options(plot: str) -> Decorator:
    """JSON, a figure, silence; `plot` says what the figure shows."""
    return together(
        option(
            "--json",
            "as_json",
            heading="Output",
            is_flag=True,
            show_default=False,
            help="Print one JSON object in place of the table.",
        ),
        option("--plot", heading="Output", metavar="FILE", type=click.Path(), help=plot),
        option(
            "--quiet",
            "-q",
            heading="Output",
            is_flag=True,
            show_default=False,
            help="No progress and no notes on stderr.",
        ),
    )


class _Taken:
    """A group of options taken out of all that a command was given."""

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Self:
        """The group; the other options stay."""
        return cls(**{field.name: options.pop(field.name) for field in fields(cls)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Output(_Taken):
    """How the result is shown."""

    as_json: bool
    plot: str | None
    quiet: bool


@dataclass(frozen=True)
class Simulation(_Taken):
    """How networks are drawn."""

    replicas: int
    seed: int
    workers: int | None
    backend: str
    device: str | None
    dry_run: bool

    def arguments(self) -> dict[str, Any]:
        """As `simulate` and `compare` take them."""
        return {name: value for name, value in vars(self).items() if name != "dry_run"}
