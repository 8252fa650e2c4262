"""Figures as plain data, drawn one way: theory as lines, simulation as points ± one standard error."""

import io
import math
import os
import textwrap
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from firststep.problem import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

KINDS = ("line", "points", "band", "bars", "marks", "vlines", "hlines")
STYLES = ("solid", "dashed", "dotted", "dashdot")
SCALES = ("linear", "log")
FORMATS = ("png", "svg", "pdf")

# The l-th spike enters at alpha = (l-1)/(2l) [Moniri24]: the second, third and fourth.
THRESHOLDS = {"1/4": 1 / 4, "1/3": 1 / 3, "3/8": 3 / 8}

# Windows beyond this one are thinner than a line; theory.staircase counts no more spikes either.
LAST_WINDOW = 20

# One role, one colour, in every figure. The hues are Okabe and Ito's, told apart by colour-blind readers,
# deepened for white paper and lightened for dark.
PALETTES: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#ffffff",
        "ink": "#1f2328",
        "grid": "#e8eaed",
        "theory": "#0072b2",
        "simulation": "#d55e00",
        "staircase": "#00825f",
        "random_features": "#b0508a",
        "linear": "#5c636a",
        "threshold": "#8b9198",
        "setting1": "#0072b2",
        "setting2": "#d55e00",
        "setting3": "#b0508a",
        "setting4": "#a87400",
        "setting5": "#2b96d1",
        "setting6": "#00825f",
    },
    "dark": {
        "paper": "#16191d",
        "ink": "#e6e8ea",
        "grid": "#2c3137",
        "theory": "#56b4e9",
        "simulation": "#ff9a57",
        "staircase": "#35c89b",
        "random_features": "#e59cc6",
        "linear": "#b4bac0",
        "threshold": "#7d848b",
        "setting1": "#56b4e9",
        "setting2": "#ff9a57",
        "setting3": "#e59cc6",
        "setting4": "#e8c15c",
        "setting5": "#9fd6f5",
        "setting6": "#35c89b",
    },
}
SETTING_COLOURS = 6
# Beyond six settings the colour is a place on this ramp (viridis without its palest end).
RAMP = ("#440154", "#443983", "#31688e", "#21918c", "#35b779", "#7fbf2c")
DARK_RAMP = ("#8c6bd0", "#6f8fdc", "#4fa8c9", "#3fc1a6", "#8bd46a", "#e6e04c")

WORDS = {
    "train_error": "train error",
    "test_error": "test error",
    "train_gain": "gain in train error",
    "test_gain": "gain in test error",
    "train_mse": "train error without the penalty",
    "readout_norm_squared": "squared norm of the readout",
    "degrees_of_freedom": "degrees of freedom / n",
}
SOURCES = {
    "simulation": "simulation ± 1 standard error",
    "unified": "unified theory",
    "staircase": "staircase (infinite n)",
    "random_features": "random features (no step)",
}
SOURCE_ROLES = {"simulation": "simulation", "staircase": "staircase", "random_features": "random_features"}
SOURCE_STYLES = {"staircase": "dashed", "random_features": "dashdot"}

# Points, for a figure as wide as a slide.
TITLE_SIZE = 14
LABEL_SIZE = 13
LEGEND_SIZE = 12
TICK_SIZE = 12
NAME_SIZE = 10.5

_DRAWING = threading.Lock()


def _floats(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else float(value) for value in values)


@dataclass(frozen=True)
class Series:
    """One line, set of points or set of marks.

    Parameters
    ----------
    kind : {"line", "points", "band", "bars", "marks", "vlines", "hlines"}
        A band lies between `y` and `upper`; bars stand between the edges `x`, one more than `y`; marks are
        pointers at (x, y); vlines use `x` only and hlines `y` only.
    x, y : tuple of float
        NaN is a gap (None in `to_dict`).
    label : str
        Text in the legend, none when empty. An empty series with a label is an entry of the legend alone.
    role : str
        What is shown, which decides the colour; see `colour`.
    style : {"solid", "dashed", "dotted", "dashdot"}
        How a line is drawn.
    error : tuple of float
        One standard error of each `y`, or nothing.
    upper : tuple of float
        Upper end of a band.
    names : tuple of str
        A short text at each mark or line, or nothing.
    """

    kind: str
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    label: str = ""
    role: str = "theory"
    style: str = "solid"
    error: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("x", "y", "error", "upper"):
            object.__setattr__(self, name, _floats(getattr(self, name)))
        object.__setattr__(self, "names", tuple(self.names))
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}")
        if self.style not in STYLES:
            raise ValueError(f"style must be one of {', '.join(STYLES)}; got {self.style!r}")
        colour(self.role)
        wanted = {"vlines": len(self.x), "hlines": len(self.y)}.get(self.kind, len(self.y))
        if self.kind == "bars" and self.y and len(self.x) != len(self.y) + 1:
            raise ValueError(f"bars need one edge more than heights, got {len(self.x)} and {len(self.y)}")
        if self.kind in ("line", "points", "band", "marks") and len(self.x) != len(self.y):
            raise ValueError(f"x and y must be equally long, got {len(self.x)} and {len(self.y)}")
        if self.kind == "band" and len(self.upper) != wanted:
            raise ValueError(f"upper must be as long as y, got {len(self.upper)} and {wanted}")
        for name in ("error", "names"):
            if getattr(self, name) and len(getattr(self, name)) != wanted:
                raise ValueError(f"{name} must have {wanted} entries or none, got {len(getattr(self, name))}")


@dataclass(frozen=True)
class Panel:
    """One pair of axes with what is drawn in it."""

    series: tuple[Series, ...]
    x_label: str = ""
    y_label: str = ""
    title: str = ""
    x_scale: str = "linear"
    y_scale: str = "linear"
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "series", tuple(self.series))
        for name in ("x_range", "y_range"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("x_scale", "y_scale"):
            if getattr(self, name) not in SCALES:
                raise ValueError(f"{name} must be one of {', '.join(SCALES)}; got {getattr(self, name)!r}")


@dataclass(frozen=True)
class Figure:
    """Panels side by side, as plain data that a report, a web page and matplotlib all draw.

    Examples
    --------
    >>> line = Series("line", x=[0, 1], y=[1, None], label="theory")
    >>> figure = Figure("An example", [Panel([line], x_label="x", y_label="y")])
    >>> figure.to_dict()["panels"][0]["series"][0]["y"]
    [1.0, None]
    >>> Figure.from_dict(figure.to_dict()).panels[0].x_label
    'x'
    """

    title: str
    panels: tuple[Panel, ...]
    caption: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "panels", tuple(self.panels))
        if not self.panels:
            raise ValueError("a figure needs at least one panel")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able description from which `from_dict` builds the figure again; gaps are None."""
        plain: dict[str, Any] = _jsonable(asdict(self))
        return plain

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        panels = [
            Panel(**{**panel, "series": tuple(Series(**series) for series in panel["series"])})
            for panel in content["panels"]
        ]
        return cls(content["title"], tuple(panels), content.get("caption", ""))

    def _repr_svg_(self) -> str:
        return render(self, "svg").decode()


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _jsonable(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def colour(role: str, theme: str = "light") -> str:
    """Hexadecimal colour of a role: a name in `PALETTES`, or ``"ramp:0.4"`` for a place between 0 and 1.

    Examples
    --------
    >>> colour("theory"), colour("ramp:0")
    ('#0072b2', '#440154')
    """
    if theme not in PALETTES:
        raise ValueError(f"theme must be one of {', '.join(PALETTES)}; got {theme!r}")
    if role.startswith("ramp:"):
        stops = RAMP if theme == "light" else DARK_RAMP
        place = min(max(float(role[5:]), 0.0), 1.0) * (len(stops) - 1)
        left = min(int(place), len(stops) - 2)
        channels = (
            round(
                int(stops[left][i : i + 2], 16) * (left + 1 - place)
                + int(stops[left + 1][i : i + 2], 16) * (place - left)
            )
            for i in (1, 3, 5)
        )
        return "#" + "".join(f"{channel:02x}" for channel in channels)
    if role not in PALETTES[theme]:
        raise ValueError(f"role must be one of {', '.join(PALETTES[theme])} or ramp:<0..1>; got {role!r}")
    return PALETTES[theme][role]


def number_text(value: float) -> str:
    """A number for people: 1000, 0.05, 10²⁴.

    Examples
    --------
    >>> number_text(1000), number_text(0.05), number_text(10**24), number_text(3e-7)
    ('1000', '0.05', '10²⁴', '3·10⁻⁷')
    """
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:.6g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return {"1": power, "-1": f"-{power}"}.get(mantissa, f"{mantissa}·{power}")


def problem_text(outcome: Outcome) -> str:
    """The problem in a line: activation, teacher, noise, and the choices that are not the default."""
    problem = outcome.problem
    parts = [f"{problem.activation.spec} network", f"teacher {problem.teacher.spec}"]
    parts.append(f"noise {number_text(problem.noise_std)}" if problem.noise_std else "no noise")
    if problem.rows != "gaussian":
        parts.append(f"{problem.rows} rows")
    if problem.readout != "gaussian":
        parts.append(f"{problem.readout} readout")
    if problem.initial_output != "vanishing":
        parts.append("initial output of order one")
    return ", ".join(parts)


def sizes_text(outcome: Outcome) -> str:
    """The sizes in a line, n₀ only where it differs from n."""
    return ", ".join(_size_parts([outcome], outcome)[0])


def _window_start(spikes: int) -> float:
    return -math.inf if spikes == 0 else (spikes - 1) / (2 * spikes)


def _steps(x: list[float], y: list[float], low: float, high: float) -> tuple[list[float], list[float]]:
    """Levels of the staircase as segments over their whole windows, with gaps between them.

    Window l is ((l-1)/(2l), l/(2l+2)) [Moniri24], and everything below 0 is window 0; the last one goes on to
    1/2. A sample on a threshold between two windows belongs to neither and is left out.
    """
    levels: dict[int, float] = {}
    for place, level in zip(x, y, strict=True):
        spikes = 0 if place < 0 else math.floor(1 / max(1 - 2 * place, 1 / LAST_WINDOW) + 1e-9)
        on_threshold = math.isclose(place, _window_start(spikes), rel_tol=0, abs_tol=1e-9)
        if place < 0.5 + 1e-9 and math.isfinite(level) and not on_threshold:
            levels.setdefault(spikes, level)
    xs: list[float] = []
    ys: list[float] = []
    for spikes, level in sorted(levels.items()):
        left = max(low, _window_start(spikes))
        right = min(high, 0.5 if spikes == LAST_WINDOW else _window_start(spikes + 1))
        if left >= right:
            continue
        if ys and math.isclose(ys[-1], level, rel_tol=1e-4):
            # Closer than a line is wide; or ReLU, which has no third spike: the second's level goes on.
            xs[-1] = right
        else:
            xs += [math.nan, left, right] if xs else [left, right]
            ys += [math.nan, level, level] if ys else [level, level]
    return xs, ys


def errors_against_step(
    outcomes: Outcome | Sequence[Outcome],
    *,
    quantities: Sequence[str] = ("train_error", "test_error"),
    linear: float | None = None,
    thresholds: Mapping[str, float] | None = None,
    title: str | None = None,
    y_scale: str = "linear",
) -> Figure:
    r"""Errors against the step exponent :math:`\alpha = \log\eta/\log n_0`, one panel for each quantity.

    Simulations are points with one standard error, theories lines, the staircase its levels. Several ridges,
    sizes or problems get a colour each. A step size of 0, which has no exponent, is a level across the panel.

    Parameters
    ----------
    outcomes : Outcome or sequence of Outcome
        Simulated and predicted, each with step sizes of its own: a theory's line wants a fine grid.
    quantities : sequence of str
        Names in ``outcome.values``.
    linear : float, optional
        Test error of the best linear predictor, drawn where the test error is.
    thresholds : mapping of str to float, optional
        Exponents to mark with their names; the entry of the second, third and fourth spike when not given.
    title : str, optional
        Made from the problem and the sizes when not given.
    y_scale : {"linear", "log"}
        Scale of the errors.

    Returns
    -------
    Figure
        Plain data; see `draw` and `save`.
    """
    outcomes = [outcomes] if isinstance(outcomes, Outcome) else list(outcomes)
    if not outcomes:
        raise ValueError("errors_against_step needs at least one outcome")
    if any(o.sizes.n_step_samples == 1 for o in outcomes):
        raise ValueError("step exponents need n_step_samples of at least 2, got 1")
    for name in quantities:
        if not any(name in outcome.values for outcome in outcomes):
            raise ValueError(f"no outcome has {name!r}; there are {', '.join(outcomes[0].values)}")
    exponents = np.concatenate([o.step_exponents[np.isfinite(o.step_exponents)] for o in outcomes])
    low, high = (float(exponents.min()), float(exponents.max())) if exponents.size else (0.0, 0.5)
    if low == high:
        low, high = low - 0.25, high + 0.25
    margin = 0.03 * (high - low)
    x_range = (low - margin, high + margin)

    roles, legend = _roles(outcomes)
    if any(0 in o.step_sizes for o in outcomes):
        legend.append(Series("hlines", label="no step (η = 0)", role="linear", style="dashdot"))
    if linear is not None and "test_error" in quantities:
        legend.append(Series("hlines", label="best linear predictor", role="linear", style="dotted"))
    marked = THRESHOLDS if thresholds is None else thresholds
    marked = {text: place for text, place in marked.items() if x_range[0] < place < x_range[1]}

    panels = []
    for name in quantities:
        series = list(legend)
        if marked:
            series.append(Series("vlines", x=tuple(marked.values()), names=tuple(marked), role="threshold"))
        if linear is not None and name == "test_error":
            series.append(Series("hlines", y=(linear,), role="linear", style="dotted"))
        # Points last, so that they lie on the lines.
        for outcome in sorted(outcomes, key=lambda o: o.source == "simulation"):
            if name in outcome.values:
                for column, ridge in enumerate(outcome.ridges):
                    role = roles[(outcome.source, *_setting(outcome, ridge))]
                    series += _series_of(outcome, name, column, role, x_range)
        panels.append(
            Panel(
                tuple(series),
                x_label="step exponent α = log η / log n₀",
                y_label=WORDS.get(name, name.replace("_", " ")),
                x_range=x_range,
                y_scale=y_scale,
            )
        )
    return Figure(title or _title(outcomes), tuple(panels), _caption(outcomes))


def _setting(outcome: Outcome, ridge: float) -> tuple[str, str, float]:
    return outcome.problem.key, outcome.sizes.key, float(ridge)


def _roles(outcomes: Sequence[Outcome]) -> tuple[dict[tuple[Any, ...], str], list[Series]]:
    """The role of every source and setting, and what the legend says about them.

    With one setting a colour means a source. With several it means a setting, and the kind of line the
    source; a single staircase among them keeps its own colour, being the limit of all.
    """
    shown = {(o.source, *_setting(o, r)): (o, float(r)) for o in outcomes for r in o.ridges}
    sources = {o.source: o for o in reversed(outcomes)}
    own = {"staircase"} if sum(key[0] == "staircase" for key in shown) == 1 else set()
    coloured = {key[1:]: what for key, what in shown.items() if key[0] not in own}
    if len(coloured) <= 1:
        own, coloured = set(sources), {}
    ordered = sorted(coloured, key=lambda key: (coloured[key][0].sizes.n_samples, key[-1]))
    # The sixth colour is the staircase's.
    few, last = len(ordered) <= SETTING_COLOURS - len(own), max(len(ordered) - 1, 1)
    tints = {key: f"setting{i + 1}" if few else f"ramp:{i / last:.3f}" for i, key in enumerate(ordered)}
    roles = {key: SOURCE_ROLES.get(key[0], "theory") if key[0] in own else tints[key[1:]] for key in shown}
    legend = [
        Series("line", label=_setting_text(outcomes, *coloured[key]), role=tints[key]) for key in ordered
    ]
    for source in dict.fromkeys(o.source for o in outcomes):
        measured = source == "simulation"
        legend.append(
            Series(
                "points" if measured else "line",
                label="simulation"
                if measured and not sources[source].stderr
                else SOURCES.get(source, source),
                role=SOURCE_ROLES.get(source, "theory") if source in own else "linear",
                style=SOURCE_STYLES.get(source, "solid"),
            )
        )
    return roles, legend


def _size_parts(outcomes: Sequence[Outcome], outcome: Outcome) -> tuple[list[str], list[str]]:
    """The sizes that all outcomes share, as ratios to n where only these agree, and those that differ."""
    n = np.array([float(o.sizes.n_samples) for o in outcomes])
    shared, differing = [], []
    for symbol, name in (("n", "n_samples"), ("d", "dim"), ("N", "width"), ("n₀", "n_step_samples")):
        values = np.array([float(getattr(o.sizes, name)) for o in outcomes])
        own = getattr(outcome.sizes, name)
        ratios = values / n
        if symbol == "n₀" and np.all(values == n):
            continue
        if np.all(values == values[0]):
            shared.append(f"{symbol} = {number_text(own)}")
        elif symbol != "n" and np.ptp(ratios) <= 2e-3 * ratios.max():
            shared.append(f"{symbol}/n = {own / outcome.sizes.n_samples:.3g}")
        else:
            differing.append(f"{symbol} = {number_text(own)}")
    return shared, differing


def _setting_text(outcomes: Sequence[Outcome], outcome: Outcome, ridge: float) -> str:
    """What tells this outcome and ridge apart from the others."""
    parts = [problem_text(outcome)] if len({o.problem.key for o in outcomes}) > 1 else []
    parts += _size_parts(outcomes, outcome)[1]
    if len({float(r) for o in outcomes for r in o.ridges}) > 1:
        parts.append(f"λ = {number_text(ridge)}")
    return ", ".join(parts)


def _title(outcomes: Sequence[Outcome]) -> str:
    """What all the outcomes have in common."""
    first = outcomes[0]
    common = _size_parts(outcomes, first)[0]
    if len({float(r) for o in outcomes for r in o.ridges}) == 1:
        common.append(f"λ = {number_text(float(first.ridges[0]))}")
    lines = [problem_text(first)] if len({o.problem.key for o in outcomes}) == 1 else []
    return "\n".join([*lines, ", ".join(common)]).strip()


def _caption(outcomes: Sequence[Outcome]) -> str:
    text = "Errors of the ridge fit after one gradient step, against the step exponent."
    counts = {str(o.details["replicas"]) for o in outcomes if "replicas" in o.details}
    if counts:
        text += f" Points: means of {' or '.join(sorted(counts))} replicas ± 1 standard error."
    return text


def _series_of(
    outcome: Outcome, name: str, column: int, role: str, x_range: tuple[float, float]
) -> list[Series]:
    """One quantity of one outcome at one ridge; the step size 0 as a level of its own."""
    shape = (len(outcome.step_sizes), len(outcome.ridges))
    y = np.broadcast_to(outcome.values[name], shape)[:, column]
    x = outcome.step_exponents
    order = np.argsort(x, kind="stable")
    order = order[np.isfinite(x[order])]
    series = []
    if np.any(~np.isfinite(x)):
        series.append(Series("hlines", y=(y[~np.isfinite(x)][0],), role=role, style="dashdot"))
    if order.size == 0:
        return series
    if outcome.source == "simulation":
        error = outcome.stderr.get(name)
        spread = () if error is None else _floats(np.broadcast_to(error, shape)[order, column])
        return [*series, Series("points", x=_floats(x[order]), y=_floats(y[order]), error=spread, role=role)]
    xs, ys = x[order].tolist(), y[order].tolist()
    if outcome.source == "staircase":
        xs, ys = _steps(xs, ys, *x_range)
    return [
        *series,
        Series("line", x=tuple(xs), y=tuple(ys), role=role, style=SOURCE_STYLES.get(outcome.source, "solid")),
    ]


def plot_format(path: str | os.PathLike[str]) -> str:
    """Format that a file's name asks for, checked together with its folder and with matplotlib being there.

    Meant to be called before a long computation whose figure goes there.

    Examples
    --------
    >>> plot_format("figure.svg")
    'svg'
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(
            f"a figure's name must end in {', '.join('.' + f for f in FORMATS)}; got {str(path)!r}"
        )
    if not path.parent.is_dir():
        raise ValueError(f"the folder {str(path.parent)!r} of the figure does not exist: make it first")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"the figure {str(path)!r} cannot be written there: choose another place")
    _require_matplotlib()
    return kind


def _require_matplotlib() -> None:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: install firststep[plot]") from error


def save(figure: Figure, path: str | os.PathLike[str], *, theme: str = "light", dpi: float = 160) -> Path:
    """Draw a figure into a PNG, SVG or PDF file; equal figures give equal bytes."""
    kind = plot_format(path)
    target = Path(path)
    target.write_bytes(render(figure, kind, theme=theme, dpi=dpi))
    return target


def render(figure: Figure, kind: str = "png", *, theme: str = "light", dpi: float = 160) -> bytes:
    """The bytes of a PNG, SVG or PDF file with the figure, without date, version or random identifiers."""
    if kind not in FORMATS:
        raise ValueError(f"kind must be one of {', '.join(FORMATS)}; got {kind!r}")
    _require_matplotlib()
    import matplotlib

    settings = {
        name: value
        for name, value in matplotlib.rcParamsDefault.items()
        if not name.startswith(("backend", "webagg"))
    }
    stripped: dict[str, dict[str, str | None]] = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None, "Title": figure.title.replace("\n", "; ")},
        "pdf": {
            "CreationDate": None,
            "Creator": None,
            "Producer": None,
            "Title": figure.title.replace("\n", "; "),
        },
    }
    # matplotlib's settings belong to the whole process: draw one at a time, and give the user's back.
    with (
        _DRAWING,
        matplotlib.rc_context({**settings, "svg.hashsalt": "firststep", "font.family": "DejaVu Sans"}),
    ):
        axes = draw(figure, theme=theme)
        buffer = io.BytesIO()
        cast("Canvas", axes[0].figure).savefig(
            buffer,
            format=kind,
            dpi=dpi,
            metadata=stripped[kind],
            facecolor=colour("paper", theme),
            edgecolor="none",
        )
    return buffer.getvalue()


def draw(
    figure: Figure, axes: "Axes | Sequence[Axes] | None" = None, *, theme: str = "light"
) -> "tuple[Axes, ...]":
    """Draw a figure with matplotlib and give back its axes; nothing is shown.

    Parameters
    ----------
    figure : Figure
        What to draw.
    axes : Axes or sequence of Axes, optional
        One for each panel; a new matplotlib figure with a title and a common legend when not given.
    theme : {"light", "dark"}
        Paper and ink.
    """
    _require_matplotlib()
    if axes is not None:
        given = tuple(np.ravel(np.asarray(axes, dtype=object)))
        if len(given) != len(figure.panels):
            raise ValueError(f"the figure has {len(figure.panels)} panels, got {len(given)} axes")
        for panel, ax in zip(figure.panels, given, strict=True):
            draw_panel(panel, ax, theme=theme)
            if any(series.label for series in panel.series):
                ax.legend(frameon=False, fontsize=10, labelcolor=colour("ink", theme))
        return given

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    columns = min(len(figure.panels), 3)
    rows = math.ceil(len(figure.panels) / columns)
    width = 5.6 * columns if columns > 1 else 7.2
    letters = int(width * 72 / (0.56 * TITLE_SIZE))
    title = [part for line in figure.title.split("\n") for part in textwrap.wrap(line, letters)]
    legend = _legend_grid(figure, width * 72)
    height = 3.9 * rows + 0.3 * len(title) + 0.27 * len(legend)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.04, hspace=0.04)
    canvas = Canvas(figsize=(width, height), layout=layout, facecolor=colour("paper", theme))
    FigureCanvasAgg(canvas)
    made = [canvas.add_subplot(rows, columns, i + 1) for i in range(len(figure.panels))]
    for panel, ax in zip(figure.panels, made, strict=True):
        draw_panel(panel, ax, theme=theme)
    if title:
        canvas.suptitle(
            _plain("\n".join(title)), fontsize=TITLE_SIZE, color=colour("ink", theme), linespacing=1.35
        )
    if legend:
        handles = {
            text: handle for ax in made for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        # matplotlib fills a legend by columns.
        texts = [_plain(line[i]) for i in range(len(legend[0])) for line in legend]
        canvas.legend(
            [handles.get(text, Line2D([], [], linestyle="none")) for text in texts],
            texts,
            loc="outside lower center",
            ncols=len(legend[0]),
            frameon=False,
            fontsize=LEGEND_SIZE,
            labelcolor=colour("ink", theme),
            handlelength=2.2,
            columnspacing=1.6,
        )
    return tuple(made)


def _legend_grid(figure: Figure, points: float) -> list[list[str]]:
    """Labels in rows that fit the width: first the settings (colours), then in new rows the kinds of line."""
    roles = {series.label: series.role for panel in figure.panels for series in panel.series if series.label}
    settings = [label for label, role in roles.items() if role.startswith(("setting", "ramp"))]
    groups = [group for group in (settings, [label for label in roles if label not in settings]) if group]
    best: list[list[str]] = []
    for columns in range(max((len(group) for group in groups), default=0), 0, -1):
        grid = [
            (group[i : i + columns] + [""] * columns)[:columns]
            for group in groups
            for i in range(0, len(group), columns)
        ]
        needed = sum(
            max(len(label) for label in column) * 0.56 * LEGEND_SIZE + 46
            for column in zip(*grid, strict=True)
        )
        # As few rows as fit; of those, the fewest columns, so that no label is left alone in the last row.
        if (needed <= points or columns == 1) and (not best or len(grid) == len(best)):
            best = grid
    return best


def _plain(text: str) -> str:
    """Text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")


def draw_panel(panel: Panel, ax: "Axes", *, theme: str = "light") -> "Axes":
    """Draw one panel into the given axes and give them back."""
    ink = colour("ink", theme)
    ax.set_facecolor(colour("paper", theme))
    ax.set_xscale(panel.x_scale)
    ax.set_yscale(panel.y_scale)
    for series in panel.series:
        _draw_series(series, ax, theme)
    if panel.x_range is not None:
        ax.set_xlim(panel.x_range)
    if panel.y_range is not None:
        ax.set_ylim(panel.y_range)
    for series in panel.series:
        _write_names(series, ax, theme)
    ax.set_xlabel(_plain(panel.x_label), fontsize=LABEL_SIZE, color=ink, labelpad=6)
    ax.set_ylabel(_plain(panel.y_label), fontsize=LABEL_SIZE, color=ink, labelpad=6)
    if panel.title:
        named = any(series.kind == "vlines" and series.names for series in panel.series)
        ax.set_title(_plain(panel.title), fontsize=LABEL_SIZE, color=ink, pad=30 if named else 10)
    for axis, scale in ((ax.xaxis, panel.x_scale), (ax.yaxis, panel.y_scale)):
        if scale == "log":
            _plain_numbers(axis)
    ax.tick_params(labelsize=TICK_SIZE, colors=ink, length=4)
    ax.tick_params(which="minor", labelsize=TICK_SIZE, colors=ink, length=2)
    ax.grid(True, axis="y", color=colour("grid", theme), linewidth=0.8)
    ax.set_axisbelow(True)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(ink)
    return ax


def _plain_numbers(axis: "Axis") -> None:
    """Label a logarithmic axis with 0.5 and 10⁻⁶ rather than with formulas, where matplotlib sees fit."""
    from matplotlib.ticker import LogFormatter

    class Formatter(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return number_text(float(x)) if super().__call__(x, pos) else ""

    axis.set_major_formatter(Formatter())
    axis.set_minor_formatter(Formatter(minor_thresholds=(1, 0.4)))


def _draw_series(series: Series, ax: "Axes", theme: str) -> None:
    shade, paper = colour(series.role, theme), colour("paper", theme)
    label = _plain(series.label) or "_nolegend_"
    x, y = np.array(series.x), np.array(series.y)
    strokes: dict[str, Any] = {
        "solid": "solid",
        "dashed": (0, (3.6, 1.8)),
        "dotted": (0, (1.2, 1.8)),
        "dashdot": (0, (6, 2, 1.2, 2)),
    }
    stroke = strokes[series.style]
    thickness = 2.4 if series.style == "solid" else 2.0
    match series.kind:
        case "line":
            ax.plot(x, y, color=shade, linestyle=stroke, linewidth=thickness, label=label, zorder=3)
        case "points":
            ax.errorbar(
                x,
                y,
                yerr=np.array(series.error) if series.error or not series.x else None,
                fmt="o",
                color=shade,
                markersize=7,
                markeredgecolor=paper,
                markeredgewidth=0.9,
                elinewidth=1.8,
                label=label,
                zorder=5,
            )
        case "band":
            ax.fill_between(x, y, series.upper, color=shade, alpha=0.22, linewidth=0, label=label, zorder=2)
        case "bars":
            if not series.y:
                x, y = np.zeros(2), np.full(1, np.nan)
            ax.stairs(y, x, fill=True, color=shade, alpha=0.35, linewidth=0, label=label, zorder=1.5)
        case "marks":
            ax.plot(
                x,
                y,
                linestyle="none",
                marker="v",
                color=shade,
                markersize=10,
                markeredgecolor=paper,
                markeredgewidth=0.9,
                label=label,
                zorder=6,
                clip_on=False,
            )
        case "vlines" | "hlines":
            thin = 1.1 if series.role == "threshold" else 1.8
            along = ax.axvline if series.kind == "vlines" else ax.axhline
            for place in series.x if series.kind == "vlines" else series.y:
                along(place, color=shade, linestyle=stroke, linewidth=thin, zorder=2)
            if series.label:
                ax.plot([], [], color=shade, linestyle=stroke, linewidth=thin, label=label)


def _write_names(series: Series, ax: "Axes", theme: str) -> None:
    """Names of lines and marks; those of vertical lines above the panel, raised where they would touch."""
    if not series.names:
        return
    shade = colour(series.role, theme)
    if series.kind == "vlines":
        low, high = ax.get_xlim()
        inches = ax.figure.get_size_inches()[0] * ax.get_position().width  # type: ignore[union-attr]
        ends: list[float] = []
        for place, name in sorted(zip(series.x, series.names, strict=True)):
            scaled = ax.transAxes.inverted().transform(ax.transData.transform((place, ax.get_ylim()[0])))[0]
            if not low <= place <= high:
                continue
            half = 0.5 * len(name) * 0.55 * NAME_SIZE / 72 / inches
            level = next((i for i, end in enumerate(ends) if scaled - half > end), len(ends))
            ends[level : level + 1] = [scaled + half]
            ax.annotate(
                _plain(name),
                (scaled, 1.0),
                xytext=(0, 4 + level * (NAME_SIZE + 3)),
                xycoords="axes fraction",
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=NAME_SIZE,
                color=shade,
            )
    elif series.kind == "hlines":
        for place, name in zip(series.y, series.names, strict=True):
            ax.annotate(
                _plain(name),
                (1.0, place),
                xytext=(-4, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="bottom",
                fontsize=NAME_SIZE,
                color=shade,
            )
    else:
        for across, up, name in zip(series.x, series.y, series.names, strict=False):
            ax.annotate(
                _plain(name),
                (across, up),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=NAME_SIZE,
                color=shade,
            )
