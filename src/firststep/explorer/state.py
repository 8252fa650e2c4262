"""What the page shows: one checked state, its presets, and the same thing as TOML, Python or a command."""

import json
import math
import re
import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Any, Literal, Self

from firststep import setting
from firststep.figures import THRESHOLDS
from firststep.gaussian import names
from firststep.setting import FIELDS, NEGLIGIBLE, Problem, Sizes

try:
    from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator
except ImportError as missing:
    raise ImportError("the explorer needs FastAPI and uvicorn: install firststep[web]") from missing

# The positions of the step slider are also the grid of the curves, so that moving it needs no new numbers.
LOWEST, HIGHEST, STEPS = -0.1, 0.5, 61
LARGEST_N = 1e30
# Spectra are those of features and weights before the readout is fitted.
NOT_IN_SPECTRA = ("ridge",)
# Positions of the second step's slider: every second one of the first step's.
SECOND_EVERY = 2
# Teachers of several directions that the page offers by name.
SEVERAL = ("t1 + t1*t2", "t1 + t1*t2 + t1*t2*t3", "0.8*t1 + 0.6*t2 + t1*t2", "h1(t1) + h2(t2)/sqrt(2)")

Words = Annotated[str, Field(min_length=1, max_length=200)]
# From d = 20 at n = 10⁶ to many neurons for each sample.
Ratio = Annotated[float, Field(ge=1e-5, le=100, allow_inf_nan=False)]


def _annotation(field: setting.Field) -> Any:
    """The type of a field of a setting, as the state checks it."""
    match field.kind:
        case "number":
            return Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
        case "choice":
            return Literal[tuple(field.choices or ())]
        case "words":
            return Annotated[Words, AfterValidator(field.read)]
        case _:
            # Read with the problem: a function's averages take their time.
            return Words


_CONTROLS: dict[str, Any] = {
    field.name: (_annotation(field), Field(default=field.start, description=field.help)) for field in FIELDS
}


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Setting: type[_Checked] = create_model("_Setting", __base__=_Checked, **_CONTROLS)


@lru_cache(maxsize=1)
def exponents() -> tuple[float, ...]:
    """The step slider's positions alpha.

    Examples
    --------
    >>> grid = exponents()
    >>> len(grid), grid[0], grid[35], grid[-1]
    (61, -0.1, 0.25, 0.5)
    """
    width = (HIGHEST - LOWEST) / (STEPS - 1)
    return tuple(round(LOWEST + i * width, 10) for i in range(STEPS))


def next_exponents() -> tuple[float, ...]:
    """The positions of the second step's slider.

    Examples
    --------
    >>> len(next_exponents()), next_exponents()[-1]
    (31, 0.5)
    """
    return exponents()[::SECOND_EVERY]


class State(_Setting):  # type: ignore[valid-type, misc]
    """Everything that the controls set: every field of a setting, and these; also the query of the page's address.

    Examples
    --------
    >>> state = State(n_samples=1000, step_exponent=0.3)
    >>> state.sizes
    Sizes(n_samples=1000, dim=500, width=750, n_step_samples=1000)
    """

    n_samples: float = Field(default=1000, ge=10, le=LARGEST_N, allow_inf_nan=False, description="n, rounded")
    dim_per_sample: Ratio = Field(default=0.5, description="d/n")
    width_per_sample: Ratio = Field(default=0.75, description="N/n")
    step_samples_per_sample: Ratio = Field(default=1.0, description="n0/n")
    ridge: float = Field(default=0.1, ge=1e-8, le=1e4, allow_inf_nan=False, description="lambda")
    step_exponent: float = Field(
        default=0.3, ge=LOWEST, le=HIGHEST, allow_inf_nan=False, description="alpha: eta = n0^alpha"
    )
    step_size: float | None = Field(
        default=None, gt=0, le=1e16, allow_inf_nan=False, description="eta, in place of the exponent"
    )
    next_step_exponent: float | None = Field(
        default=None,
        ge=LOWEST,
        le=HIGHEST,
        allow_inf_nan=False,
        description="alpha of a second step; none without",
    )

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        smallest = min(self.dim_per_sample, self.width_per_sample, self.step_samples_per_sample)
        if self.n_samples * smallest < 2:
            raise ValueError(
                f"d, N and n0 must be at least 2; n = {self.n_samples:g} times the ratio {smallest:g} is less"
            )
        return self

    @property
    def problem(self) -> Problem:
        """The problem, its functions read as on the command line."""
        problem = Problem(**self.setting)
        if problem.label_variance < NEGLIGIBLE:
            raise ValueError(
                f"the teacher {problem.teacher.label} is constant and there is no noise: nothing to fit"
            )
        return problem

    @property
    def setting(self) -> dict[str, Any]:
        """The fields of a setting."""
        return {field.name: getattr(self, field.name) for field in FIELDS}

    @property
    def told(self) -> dict[str, Any]:
        """The fields of a setting that copies name: all but those whose default needs no word."""
        return {
            field.name: self.setting[field.name]
            for field in FIELDS
            if not (field.quiet and self.setting[field.name] == field.default)
        }

    @property
    def sizes(self) -> Sizes:
        """Whole sizes."""
        n = round(self.n_samples)
        return Sizes(
            n,
            round(n * self.dim_per_sample),
            round(n * self.width_per_sample),
            round(n * self.step_samples_per_sample),
        )

    def with_exponent(self) -> Self:
        """The same with the step written as an exponent.

        Examples
        --------
        >>> State(n_samples=10000, step_size=10).with_exponent().step_exponent
        0.25
        """
        if self.step_size is None:
            return self
        alpha = round(float(self.sizes.step_exponent(self.step_size)), 6)
        if not LOWEST <= alpha <= HIGHEST:
            low, high = (float(self.sizes.step_size(end)) for end in (LOWEST, HIGHEST))
            raise ValueError(
                f"step_size must lie between {low:.3g} and {high:.4g} at this n0, got {self.step_size:g}"
            )
        found: Self = self.model_copy(update={"step_exponent": alpha, "step_size": None})
        return found

    @property
    def eta(self) -> float:
        """eta = n0^alpha."""
        return float(self.sizes.step_size(self.step_exponent))

    @property
    def next_eta(self) -> float | None:
        """The second step's size, if there is one."""
        return (
            None if self.next_step_exponent is None else float(self.sizes.step_size(self.next_step_exponent))
        )

    def without_step(self) -> dict[str, Any]:
        """What the curves depend on: everything but the position on them, and what comes after the step."""
        found: dict[str, Any] = self.model_dump(exclude={"step_exponent", "step_size", "next_step_exponent"})
        return found


def _presets() -> dict[str, dict[str, Any]]:
    text = files("firststep.explorer").joinpath("presets.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


PRESETS = _presets()


def ladders() -> dict[str, list[float]]:
    """Positions of the sliders: values that people would write.

    Examples
    --------
    >>> ladders()["n_samples"][:3], ladders()["n_samples"][-1]
    ([100.0, 150.0, 200.0], 1e+30)
    """
    small = [m * 10.0**k for k in (2, 3, 4) for m in (1, 1.5, 2, 3, 5, 7)]
    ridges = [float(f"{m}e{k}") for k in range(-6, 3) for m in (1, 1.5, 2, 3, 5, 7)]
    ratios = [
        0.02,
        0.03,
        0.05,
        0.07,
        0.1,
        0.15,
        0.2,
        0.25,
        0.3,
        0.35,
        0.4,
        0.5,
        0.6,
        0.75,
        0.9,
        1.0,
        1.1,
        1.25,
        1.5,
        1.75,
        2.0,
        2.5,
        3.0,
        4.0,
    ]
    return {
        "n_samples": [*small, *(10.0**k for k in range(5, 31))],
        "ridge": [*ridges, 1000.0],
        "dim_per_sample": ratios,
        "width_per_sample": ratios,
        "step_samples_per_sample": [*ratios, 6.0, 10.0, 20.0],
    } | {field.name: [round(0.05 * i, 2) for i in range(41)] for field in FIELDS if field.kind == "number"}


def choices() -> dict[str, Any]:
    """What the page's controls are made of: the declared fields, presets as full states, names, ranges."""
    no_derivative = {"sign"}
    # Of Hermite polynomials those with a slider; h0 is constant, and any other can be written.
    listed = [name for name in names() if not re.fullmatch(r"h(0|[5-9]|\d\d)", name)]
    return {
        "defaults": State().model_dump(exclude={"step_size"}),
        "presets": [
            {"name": name, "state": State(**given).model_dump(exclude={"step_size"})}
            for name, given in PRESETS.items()
        ],
        "activations": [name for name in listed if name not in no_derivative],
        "teachers": listed,
        "several": list(SEVERAL),
        "fields": [field.describe() for field in FIELDS],
        "exponents": exponents(),
        "next_exponents": next_exponents(),
        "not_in_spectra": NOT_IN_SPECTRA,
        "ladders": ladders(),
        "thresholds": [{"at": at, "text": text} for text, at in THRESHOLDS.items()],
        "help": {name: entry.description for name, entry in State.model_fields.items()},
    }


def _short(value: float) -> str:
    return f"{value:.12g}"


def _whole(value: int) -> str:
    """A whole number as short as it can be written and read back."""
    power = f"{value:.12g}"
    return power if int(float(power)) == value and len(power) < len(str(value)) else str(value)


def as_toml(state: State, replicas: int = 8, *, theory: bool = True) -> str:
    """An experiment file for `firststep run` with this problem and the whole range of steps.

    Networks are drawn at every 0.05 of the exponent, whatever the position of the slider, so that their points serve
    all positions.

    Examples
    --------
    >>> from firststep.experiment import parse
    >>> parse(as_toml(State())).problem.activation
    'relu'
    """
    if state.next_step_exponent is not None:
        return second_toml(state, replicas, theory=theory)
    lines = [
        *_toml_head(state),
        "step_exponent = { start = 0.0, stop = 0.5, count = 11 }",
        f"ridge = {float(state.ridge)!r}",
        "",
        "[simulation]",
        f"replicas = {replicas}",
        'extras = ["weights"]',
        "",
    ]
    if theory:
        lines += [
            "[[theory]]",
            'name = "unified"',
            "curve.step_exponent = { start = -0.1, stop = 0.5, count = 61 }",
            "",
            "[[figure]]",
            'kind = "against_step"',
            "",
        ]
    return "\n".join(lines)


def second_toml(state: State, replicas: int = 8, *, theory: bool = True) -> str:
    """An experiment file with a second step of every size after the first one at the slider's position.

    Examples
    --------
    >>> from firststep.experiment import parse
    >>> parse(second_toml(State(step_exponent=0.35))).sweep.step_exponent
    (0.35,)
    """
    lines = [
        *_toml_head(state),
        f"step_exponent = {float(state.step_exponent)!r}",
        "next_step_exponent = { start = 0.0, stop = 0.5, count = 6 }",
        f"ridge = {float(state.ridge)!r}",
        "",
        "[simulation]",
        f"replicas = {replicas}",
        'extras = ["directions"]',
        "",
    ]
    if theory:
        lines += [
            "[[theory]]",
            'name = "unified"',
            "curve.next_step_exponent = { start = -0.1, stop = 0.5, count = 31 }",
            "",
            "[[figure]]",
            'kind = "against"',
            'x = "next_step_exponent"',
            "",
        ]
    return "\n".join(lines)


def spectra_toml(state: State, replicas: int) -> str:
    """An experiment file for the spectra of a few draws at the slider's position.

    Examples
    --------
    >>> from firststep.experiment import parse
    >>> parse(spectra_toml(State(), 4)).spectra.replicas
    4
    """
    second = [] if state.next_eta is None else [f"next_step_size = {state.next_eta!r}"]
    lines = [
        *_toml_head(state),
        f"step_size = {float(state.eta)!r}",
        *second,
        f"ridge = {float(state.ridge)!r}",
        "",
        "[spectra]",
        'of = ["features", "weights"]',
        f"replicas = {replicas}",
        "",
    ]
    return "\n".join(lines)


def _toml_head(state: State) -> list[str]:
    """Problem and sizes, and the beginning of the sweep."""
    # TOML has 64-bit integers; beyond them a whole number is written as a float.
    written = {
        name: f"{value}" if value < 2**63 else repr(float(value))
        for name, value in state.sizes.to_dict().items()
    }
    return [
        'title = "From the explorer"',
        "",
        "[problem]",
        *(f"{name} = {_toml(value)}" for name, value in state.told.items()),
        "",
        "[sizes]",
        *(f"{name} = {value}" for name, value in written.items()),
        "",
        "[sweep]",
    ]


def _toml(value: str | float) -> str:
    if not isinstance(value, str):
        return repr(float(value))
    # A line break in a function means a blank; in a TOML text it would be a mistake.
    return json.dumps(" ".join(value.split()), ensure_ascii=False)


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else _short(value)


def as_python(state: State) -> str:
    """Lines of Python that print the errors shown."""
    sizes = state.sizes
    problem = [
        f"{name}={value!r}" if isinstance(value, str) else f"{name}={_short(value)}"
        for name, value in state.told.items()
    ]
    whole = [str(sizes.n_samples), str(sizes.dim), str(sizes.width)]
    if sizes.n_step_samples != sizes.n_samples:
        whole.append(str(sizes.n_step_samples))
    return "\n".join(
        [
            "from firststep import Problem, Sizes, predict",
            "",
            f"problem = Problem({', '.join(problem)})",
            f"sizes = Sizes({', '.join(whole)})",
            f"outcome = predict(problem, sizes, step_exponents={_short(state.step_exponent)}, "
            f"{_second_words(state)}ridges={_short(state.ridge)})",
            "print(outcome.train_error, outcome.test_error)",
            "",
        ]
    )


def _second_words(state: State) -> str:
    if state.next_step_exponent is None:
        return ""
    return f"next_step_exponents={_short(state.next_step_exponent)}, "


def as_command(state: State) -> str:
    """The command that prints the errors shown.

    Examples
    --------
    >>> print(as_command(State(teacher="h1"))[:55])
    firststep predict --activation relu --teacher h1 --nois
    """
    import shlex

    sizes = state.sizes
    options = {
        **{field.option: _text(state.told[field.name]) for field in FIELDS if field.name in state.told},
        "--n-samples": _whole(sizes.n_samples),
        "--dim": _whole(sizes.dim),
        "--width": _whole(sizes.width),
        "--n-step-samples": _whole(sizes.n_step_samples),
        "--step-exponent": _short(state.step_exponent),
    }
    if state.next_step_exponent is not None:
        options["--next-step-exponent"] = _short(state.next_step_exponent)
    options["--ridge"] = _short(state.ridge)
    return "firststep predict " + " ".join(f"{name} {shlex.quote(value)}" for name, value in options.items())


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers inside an interval, about `count` of them.

    Examples
    --------
    >>> nice_ticks(0, 1.3)
    [0.0, 0.5, 1.0]
    """
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]
