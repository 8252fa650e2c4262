"""Errors against the step exponent: simulations, theories, the staircase and its thresholds in one figure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from firststep.figures.figure import Figure, Panel, Series, floats
from firststep.figures.style import SETTING_COLOURS, number_text, setting_roles
from firststep.figures.words import WORDS
from firststep.results import Outcome
from firststep.setting.declared import FIELDS
from firststep.theory.limits.staircase import MAX_SPIKES, window_start

# The l-th spike enters at alpha = (l-1)/(2l) [Moniri24]: the second, third and fourth.
THRESHOLDS = {name: window_start(spikes) for spikes, name in ((2, "1/4"), (3, "1/3"), (4, "3/8"))}

SOURCES = {
    "simulation": "simulation ± 1 standard error",
    "unified": "unified theory",
    "leading_order": "unified theory, leading order alone",
    "staircase": "staircase (infinite n)",
    "random_features": "random features (no step)",
}
SOURCE_ROLES = {"simulation": "simulation", "staircase": "staircase", "random_features": "random_features"}
SOURCE_STYLES = {"leading_order": "dotted", "staircase": "dashed", "random_features": "dashdot"}


def problem_text(outcome: Outcome) -> str:
    """The problem in a line: activation, teacher, noise, and the choices that are not the default."""
    return outcome.problem.title


def sizes_text(outcome: Outcome) -> str:
    """The sizes in a line, n₀ only where it differs from n."""
    return ", ".join(_size_parts([outcome], outcome)[0])


def common_sizes(outcomes: Sequence[Outcome]) -> list[str]:
    """The sizes that outcomes share, or their ratios to n where only these agree."""
    return _size_parts(outcomes, outcomes[0])[0]


def _steps(x: list[float], y: list[float], low: float, high: float) -> tuple[list[float], list[float]]:
    """Levels of the staircase from samples anywhere in their windows.

    A sample on a threshold between two windows belongs to neither and is left out.
    """
    levels: dict[int, float] = {}
    for place, level in zip(x, y, strict=True):
        spikes = 0 if place < 0 else math.floor(1 / max(1 - 2 * place, 1 / MAX_SPIKES) + 1e-9)
        on_threshold = math.isclose(place, window_start(spikes), rel_tol=0, abs_tol=1e-9)
        if place < 0.5 + 1e-9 and math.isfinite(level) and not on_threshold:
            levels.setdefault(spikes, level)
    return level_segments(levels, low, high)


def level_segments(levels: Mapping[int, float], low: float, high: float) -> tuple[list[float], list[float]]:
    """Levels of the staircase, by number of spikes, as segments over their whole windows with gaps between them.

    Window l is ((l-1)/(2l), l/(2l+2)) [Moniri24], and everything below 0 is window 0; the last one goes on to 1/2.
    """
    xs: list[float] = []
    ys: list[float] = []
    for spikes, level in sorted(levels.items()):
        left = max(low, window_start(spikes))
        right = min(high, 0.5 if spikes == MAX_SPIKES else window_start(spikes + 1))
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
        Test error (or risk) of the best linear predictor, drawn where the test error (or risk) is.
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
    if linear is not None and {"test_error", "risk"} & set(quantities):
        legend.append(Series("hlines", label="best linear predictor", role="linear", style="dotted"))
    marked = THRESHOLDS if thresholds is None else thresholds
    marked = {text: place for text, place in marked.items() if x_range[0] < place < x_range[1]}

    panels = []
    for name in quantities:
        series = list(legend)
        if marked:
            series.append(Series("vlines", x=tuple(marked.values()), names=tuple(marked), role="threshold"))
        if linear is not None and name in ("test_error", "risk"):
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
    many = len(ordered) > SETTING_COLOURS - len(own)
    tints = dict(
        zip(
            ordered,
            setting_roles(len(ordered), ordered=many or len({key[0] for key in ordered}) == 1),
            strict=True,
        )
    )
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


def _problem_parts(outcomes: Sequence[Outcome], outcome: Outcome) -> tuple[list[str], list[str]]:
    """What the problems of all outcomes have in common, in words, and what tells this one apart."""
    shared, differing = [], []
    for field in FIELDS:
        own = getattr(outcome.problem, field.name)
        if all(getattr(one.problem, field.name) == own for one in outcomes):
            shared.append(field.titled(own))
        else:
            differing.append(field.worded(own))
    return [part for part in shared if part], differing


def _setting_text(outcomes: Sequence[Outcome], outcome: Outcome, ridge: float) -> str:
    """What tells this outcome and ridge apart from the others."""
    parts = [*_problem_parts(outcomes, outcome)[1], *_size_parts(outcomes, outcome)[1]]
    if len({float(r) for o in outcomes for r in o.ridges}) > 1:
        parts.append(f"λ = {number_text(ridge)}")
    return ", ".join(parts)


def _title(outcomes: Sequence[Outcome]) -> str:
    """What all the outcomes have in common."""
    first = outcomes[0]
    common = _size_parts(outcomes, first)[0]
    if len({float(r) for o in outcomes for r in o.ridges}) == 1:
        common.append(f"λ = {number_text(float(first.ridges[0]))}")
    problem = ", ".join(_problem_parts(outcomes, first)[0])
    return "\n".join([problem, ", ".join(common)]).strip()


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
        spread = () if error is None else floats(np.broadcast_to(error, shape)[order, column])
        return [*series, Series("points", x=floats(x[order]), y=floats(y[order]), error=spread, role=role)]
    xs, ys = x[order].tolist(), y[order].tolist()
    if outcome.source == "staircase":
        xs, ys = _steps(xs, ys, *x_range)
    return [
        *series,
        Series("line", x=tuple(xs), y=tuple(ys), role=role, style=SOURCE_STYLES.get(outcome.source, "solid")),
    ]
