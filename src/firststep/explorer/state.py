"""What the page shows: one checked state, its presets, and the same thing as TOML, Python or a command."""

import math
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from firststep.gaussian import names
from firststep.problem import INITIAL_OUTPUTS, NEGLIGIBLE, READOUTS, ROWS, Problem, Sizes

try:
    from pydantic import BaseModel, ConfigDict, Field, model_validator
except ImportError as missing:
    raise ImportError("the explorer needs FastAPI and uvicorn: install firststep[web]") from missing

# The positions of the step slider are also the grid of the curves, so that moving it needs no new numbers.
LOWEST, HIGHEST, STEPS = -0.1, 0.5, 61
LARGEST_N = 1e30
# Spectra are those of features and weights before the readout is fitted.
NOT_IN_SPECTRA = ("ridge",)
# Where the second, third and fourth spike enter in the limit [Moniri24].
THRESHOLDS = {"1/4": 1 / 4, "1/3": 1 / 3, "3/8": 3 / 8}

Rows = Literal["gaussian", "sphere"]
Readout = Literal["gaussian", "rademacher", "constant"]
InitialOutput = Literal["vanishing", "order_one"]
Words = Annotated[str, Field(min_length=1, max_length=200)]
Ratio = Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]


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


class State(BaseModel):
    """Everything that the controls set; also the query of the page's own address.

    Examples
    --------
    >>> state = State(n_samples=1000, step_exponent=0.3)
    >>> state.sizes
    Sizes(n_samples=1000, dim=500, width=750, n_step_samples=1000)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    activation: Words = Field(
        default="relu", description="activation sigma: a name or an expression in x, h0, h1, …"
    )
    teacher: Words = Field(default="h1 + h2/sqrt(2)", description="teacher s, written likewise")
    noise_std: float = Field(default=0.5, ge=0, le=100, allow_inf_nan=False, description="label noise")
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
    rows: Rows = Field(default="gaussian", description="first-layer rows")
    readout: Readout = Field(default="gaussian", description="readout at the start")
    initial_output: InitialOutput = Field(default="vanishing", description="size of the output at the start")

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
        problem = Problem(
            self.activation, self.teacher, self.noise_std, self.rows, self.readout, self.initial_output
        )
        if problem.activation.second_moment < NEGLIGIBLE:
            raise ValueError(f"the activation {self.activation} is constant: there are no features to fit")
        if problem.label_variance < NEGLIGIBLE:
            raise ValueError(f"the teacher {self.teacher} is constant and there is no noise: nothing to fit")
        return problem

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
        return self.model_copy(update={"step_exponent": alpha, "step_size": None})

    @property
    def eta(self) -> float:
        """eta = n0^alpha."""
        return float(self.sizes.step_size(self.step_exponent))

    def without_step(self) -> dict[str, Any]:
        """What the curves depend on: everything but the position on them."""
        return self.model_dump(exclude={"step_exponent", "step_size"})


# The sizes of the slides are ours, since theirs are not stated.
PRESETS: dict[str, dict[str, Any]] = {
    "Moniri et al. 2024, setting 1: linear teacher, noise 1": {
        "activation": "relu",
        "teacher": "h1",
        "noise_std": 1.0,
        "rows": "sphere",
        "n_samples": 2000,
    },
    "Moniri et al. 2024, setting 2: H₁ + H₂/√2, no noise": {
        "activation": "relu",
        "teacher": "h1 + h2/sqrt(2)",
        "noise_std": 0.0,
        "rows": "sphere",
        "n_samples": 2000,
    },
    "The staircase emerging: degrees 1 to 4, n = 10¹²": {
        "activation": "softplus",
        "teacher": "(h1 + h2/sqrt(2) + h3/sqrt(6) + h4/sqrt(24))/2",
        "noise_std": 0.0,
        "rows": "sphere",
        "n_samples": 1e12,
    },
    "Ba et al. 2022, figure 3(a): tanh network, softplus teacher": {
        "activation": "tanh",
        "teacher": "softplus",
        "noise_std": 0.25,
        "n_samples": 2048,
        "dim_per_sample": 0.25,
        "width_per_sample": 0.5,
        "ridge": 1e-4,
    },
    "Ba et al. 2022, figure 3(b): tanh network, ReLU teacher": {
        "activation": "tanh",
        "teacher": "relu",
        "noise_std": 0.1,
        "n_samples": 2560,
        "dim_per_sample": 0.2,
        "width_per_sample": 0.4,
        "ridge": 0.01,
    },
    "Ba et al. 2022, figure 3(c): erf network and teacher": {
        "activation": "erf",
        "teacher": "erf",
        "noise_std": 0.1,
        "n_samples": 2048,
        "dim_per_sample": 0.25,
        "width_per_sample": 0.5,
        "ridge": 0.001,
    },
    "Cui et al. 2024: tanh, constant readout, α near 1/2": {
        "activation": "tanh",
        "teacher": "tanh",
        "noise_std": 0.0,
        "rows": "sphere",
        "readout": "constant",
        "n_samples": 3200,
        "dim_per_sample": 0.625,
        "width_per_sample": 0.625,
        "step_samples_per_sample": 0.3125,
        "ridge": 0.00625,
        "step_exponent": 0.5,
    },
    "Nothing to learn in one step: teacher H₂": {"activation": "relu", "teacher": "h2", "noise_std": 0.3},
}


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
        "noise_std": [round(0.05 * i, 2) for i in range(41)],
    }


def choices() -> dict[str, Any]:
    """What the page's menus offer: presets as full states, names of functions, ranges of the controls."""
    no_derivative = {"sign"}
    fields = State.model_fields
    return {
        "defaults": State().model_dump(exclude={"step_size"}),
        "presets": [
            {"name": name, "state": State(**given).model_dump(exclude={"step_size"})}
            for name, given in PRESETS.items()
        ],
        "activations": [name for name in names() if name not in no_derivative],
        "teachers": list(names()),
        "rows": list(ROWS),
        "readouts": list(READOUTS),
        "initial_outputs": list(INITIAL_OUTPUTS),
        "exponents": exponents(),
        "not_in_spectra": NOT_IN_SPECTRA,
        "ladders": ladders(),
        "thresholds": [{"at": at, "text": text} for text, at in THRESHOLDS.items()],
        "help": {name: field.description for name, field in fields.items()},
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


def spectra_toml(state: State, replicas: int) -> str:
    """An experiment file for the spectra of a few draws at the slider's position.

    Examples
    --------
    >>> from firststep.experiment import parse
    >>> parse(spectra_toml(State(), 4)).spectra.replicas
    4
    """
    lines = [
        *_toml_head(state),
        f"step_size = {float(state.eta)!r}",
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
        f"activation = {_quoted(state.activation)}",
        f"teacher = {_quoted(state.teacher)}",
        f"noise_std = {float(state.noise_std)!r}",
        f'rows = "{state.rows}"',
        f'readout = "{state.readout}"',
        f'initial_output = "{state.initial_output}"',
        "",
        "[sizes]",
        *(f"{name} = {value}" for name, value in written.items()),
        "",
        "[sweep]",
    ]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def as_python(state: State) -> str:
    """Lines of Python that print the errors shown."""
    sizes = state.sizes
    problem = [repr(state.activation), repr(state.teacher), f"noise_std={_short(state.noise_std)}"]
    problem += [f"{name}={getattr(state, name)!r}" for name in ("rows", "readout", "initial_output")]
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
            f"ridges={_short(state.ridge)})",
            "print(outcome.train_error, outcome.test_error)",
            "",
        ]
    )


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
        "--activation": state.activation,
        "--teacher": state.teacher,
        "--noise-std": _short(state.noise_std),
        "--rows": state.rows,
        "--readout": state.readout,
        "--initial-output": state.initial_output,
        "--n-samples": _whole(sizes.n_samples),
        "--dim": _whole(sizes.dim),
        "--width": _whole(sizes.width),
        "--n-step-samples": _whole(sizes.n_step_samples),
        "--step-exponent": _short(state.step_exponent),
        "--ridge": _short(state.ridge),
    }
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
