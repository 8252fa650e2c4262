"""Figures of experiments as plain data: which numbers go where; drawing is the business of `firststep.figures`."""

import csv
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Self

import numpy as np

from firststep import figures
from firststep.experiment.points import RATIO_SIZES, Point, expand
from firststep.experiment.results import Predicted, Results, SpectrumResult, identity_of
from firststep.experiment.schema import FigureSection, flat
from firststep.figures import AXES, SYMBOLS, WORDS, Figure, Panel, Series, number_text
from firststep.results import Distances, Outcome, Spectrum
from firststep.setting.declared import BY_NAME
from firststep.setting.inputs import NUMBER
from firststep.theory.limits.bounds import best_linear_error, best_neuron
from firststep.theory.limits.staircase import MAX_SPIKES, window_start
from firststep.theory.limits.staircase import solve as solve_staircase
from firststep.theory.limits.weights import spiked_weights

LINE_STYLES = ("solid", "dashed", "dotted", "dashdot")


def build_figures(results: Results) -> list[Figure]:
    """The figures that an experiment asks for, from what has been computed of it."""
    made = []
    for section in results.experiment.figure:
        figure = KINDS[section.kind](results, section)
        title = section.title or figure.title
        made.append(replace(figure, title=title, caption=section.caption or figure.caption))
    return made


def _value(row: Mapping[str, Any], quantity: str) -> float:
    """A number of a row; the risk is the test error without the noise [Ba22]."""
    if quantity == "risk":
        return float(row["test_error"]) - float(row["noise_variance"])
    found = row.get(quantity)
    return math.nan if found is None else float(found)


def _stderr(row: Mapping[str, Any], quantity: str) -> float:
    found = row.get(f"{'test_error' if quantity == 'risk' else quantity}_stderr")
    return math.nan if found is None else float(found)


def _rows(
    outcomes: Iterable[Outcome], coordinates: Mapping[Any, Mapping[str, Any]], x: str = ""
) -> list[dict[str, Any]]:
    """Outcomes as flat rows with the values of what is swept; a ratio along x as the whole sizes have it."""
    rows = []
    for outcome in outcomes:
        place = {}
        if x in RATIO_SIZES:
            left, right = (float(getattr(outcome.sizes, name)) for name in RATIO_SIZES[x])
            place = {x: left / right}
        for row in outcome.rows():
            swept = coordinates.get(identity_of(outcome, row))
            if swept is not None:
                rows.append({"noise_variance": outcome.problem.noise_variance, **row, **swept, **place})
    return rows


def _coordinates(results: Results, predicted: Predicted | None = None) -> dict[Any, Mapping[str, Any]]:
    points = results.points
    if predicted is not None and predicted.theory.curve:
        points = expand(results.experiment, predicted.theory.curve)
    return {point.identity: point.coordinates for point in points}


def _described(coordinates: Mapping[str, Any], varying: Sequence[str]) -> str:
    parts = []
    for name in varying:
        value = coordinates[name]
        if name in BY_NAME:
            parts.append(BY_NAME[name].worded(value))
        else:
            shown = ", ".join(number_text(number) for number in flat([value]))
            parts.append(f"{SYMBOLS.get(name, name)} = {shown}")
    return ", ".join(parts) or "all"


def _settings(results: Results, replicas: Iterable[int] | None = None) -> str:
    """Problem, sizes and number of replicas in two lines, without what is swept."""
    cells = {
        point.sizes: Outcome(point.problem, point.sizes, np.array([1.0]), np.array([1.0]), "", {})
        for point in results.points
    }
    outcomes = list(cells.values())
    lines = []
    if len({point.problem.key for point in results.points}) == 1:
        lines.append(figures.problem_text(outcomes[0]))
    facts = figures.common_sizes(outcomes)
    ridges = {p.ridge for p in results.points}
    # A spectrum does not depend on the ridge.
    fitted = results.experiment.simulation is not None or results.experiment.theory
    if len(ridges) == 1 and fitted and replicas is None:
        facts.append(f"λ = {number_text(next(iter(ridges)))}")
    counts = replicas
    if counts is None:
        counts = (outcome.details["replicas"] for outcome in results.simulated)
    shown = sorted(set(counts) - {0})
    if shown:
        ends = str(shown[0]) if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"
        facts.append(f"{ends} replica{'s' if shown[-1] > 1 else ''}")
    return "\n".join([*lines, ", ".join(facts)])


def against_step(results: Results, section: FigureSection) -> Figure:
    """Errors against the step exponent, with thresholds, the staircase and the best linear predictor."""
    outcomes = list(results.simulated)
    for entry in results.predicted:
        outcomes += [replace(outcome, source=_source(entry)) for outcome in entry.curve]
    linear = None
    problems = {outcome.problem.key: outcome.problem for outcome in outcomes}
    if len(problems) == 1 and section.options.get("linear", True):
        linear = best_linear_error(next(iter(problems.values())))
    figure = figures.errors_against_step(
        outcomes,
        quantities=section.quantities or ("train_error", "test_error"),
        linear=linear,
        y_scale=section.options.get("y_scale", "linear"),
    )
    return replace(figure, title=_settings(results))


def _source(entry: Predicted) -> str:
    """The name by which `firststep.figures` knows a theory; a labelled variant is a source of its own."""
    return entry.theory.label or entry.theory.name


def against(results: Results, section: FigureSection) -> Figure:
    """Any quantities against any swept number; a colour for each value of what else is swept.

    Options: ``linear`` draws the best linear predictor, which bounds kernels and random features; ``band`` the
    theory's own error bar; ``lines`` places along x with their names; ``where`` chooses values of what is swept;
    ``labels`` names the colours; ``x_scale`` and ``y_scale``; ``published`` names a CSV file of the package.
    """
    shown = _Shown.of(results, section.x or "step_exponent").chosen_by(section)
    lines: Mapping[str, float] = section.options.get("lines", {})
    panels = []
    for quantity in section.quantities or ("test_error",):
        series = [
            *shown.legend(),
            *_bounds(results, section, quantity),
            *(
                [Series("vlines", x=tuple(lines.values()), names=tuple(lines), role="threshold")]
                if lines
                else []
            ),
            *(_predicted_bands(results, shown, quantity) if section.options.get("band") else []),
            *_predicted_lines(results, shown, quantity),
            *_published(section, quantity),
            *_simulated_points(results, shown, quantity),
        ]
        panels.append(
            Panel(
                tuple(series),
                x_label=section.options.get("x_label", AXES.get(shown.x, shown.x.replace("_", " "))),
                y_label=WORDS.get(quantity, quantity.replace("_", " ")),
                x_scale=section.options.get("x_scale", "linear"),
                y_scale=section.options.get("y_scale", "linear"),
                y_range=section.options.get("y_range"),
            )
        )
    return Figure(_settings(results), tuple(panels))


def value_map(results: Results, section: FigureSection) -> Figure:
    """A quantity over the plane of two swept numbers: the first theory as colours, networks as discs on top."""
    quantity = section.quantities[0] if section.quantities else "test_error"
    options = section.map_options
    series = []
    for entry in results.predicted[:1]:
        # Finer where the theory has a curve of its own.
        rows = _in_plane(section, entry.curve, _coordinates(results, entry))
        xs, ys = (tuple(sorted({float(row[name]) for row in rows})) for name in (section.x, section.y))
        if min(len(xs), len(ys)) > 1:
            found = {(row[section.x], row[section.y]): _value(row, quantity) for row in rows}
            values = tuple(found.get((x, y), math.nan) for y in ys for x in xs)
            name = figures.SOURCES.get(entry.label, entry.label)
            lines = ", ".join(number_text(level) for level in options.contour)
            series.append(
                Series(
                    "map",
                    x=xs,
                    y=ys,
                    z=values,
                    levels=options.contour,
                    label=f"{name}, line at {lines}" if lines else "",
                )
            )
    rows = _in_plane(section, results.simulated, _coordinates(results))
    if rows:
        xs, ys = (tuple(row[name] for row in rows) for name in (section.x, section.y))
        values = tuple(_value(row, quantity) for row in rows)
        series.append(Series("discs", x=xs, y=ys, z=values, label="simulation", role="simulation"))
    if options.lines:
        at = tuple(options.lines.values())
        series.append(Series("vlines", x=at, names=tuple(options.lines), role="ink", style="dashed"))
    if options.texts:
        xs, ys = zip(*options.texts.values(), strict=True)
        series.append(Series("texts", x=xs, y=ys, names=tuple(options.texts), role="ink"))
    panel = Panel(
        tuple(series),
        x_label=AXES.get(section.x, section.x.replace("_", " ")),
        y_label=AXES.get(section.y, section.y.replace("_", " ")),
        x_scale=options.x_scale,
        y_scale=options.y_scale,
        z_label=WORDS.get(quantity, quantity.replace("_", " ")),
        z_range=options.range,
        z_names=options.ends or (),
    )
    return Figure(_settings(results), (panel,))


def _in_plane(
    section: FigureSection, outcomes: Iterable[Outcome], coordinates: Mapping[Any, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Rows at the values that a map has chosen of what is not along its axes."""
    # TOML has lists where a coordinate is a tuple.
    where = section.map_options.where.items()
    wanted = {name: tuple(value) if isinstance(value, list) else value for name, value in where}
    rows = _rows(outcomes, coordinates)
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


@dataclass(frozen=True)
class _Shown:
    """What is along x, and what else varies: its values, with a colour each."""

    x: str
    places: Mapping[str, float]
    varying: tuple[str, ...]
    settings: tuple[tuple[Any, ...], ...]
    roles: tuple[str, ...]
    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, results: Results, x: str) -> Self:
        """The axis `x` of a sweep, and the others that have more than one value."""
        axes = results.experiment.sweep.axes()
        zipped = {name for group in results.experiment.sweep.zip if x in group for name in group}
        varying = tuple(
            name for name, values in axes.items() if name != x and name not in zipped and len(values) > 1
        )
        settings = list(
            dict.fromkeys(tuple(point.coordinates[name] for name in varying) for point in results.points)
        )
        numbers = len(varying) == 1 and all(isinstance(value, int | float) for (value,) in settings)
        if numbers:
            settings.sort()
        roles = figures.setting_roles(len(settings), ordered=numbers)
        words = [value for value in axes.get(x, ()) if isinstance(value, str)]
        return cls(x, places_of(words) if words else {}, varying, tuple(settings), tuple(roles))

    def chosen_by(self, section: FigureSection) -> Self:
        """Those settings that a figure asks for, with its own words for them."""
        where: Mapping[str, Any] = section.options.get("where", {})
        unknown = sorted(where.keys() - set(self.varying))
        if unknown:
            known = ", ".join(self.varying) or "nothing"
            raise ValueError(
                f"where names {', '.join(unknown)}, but beside {self.x} the sweep varies {known}"
            )
        # TOML has lists where a coordinate is a tuple.
        wanted = {name: tuple(value) if isinstance(value, list) else value for name, value in where.items()}
        settings = tuple(
            setting
            for setting in self.settings
            if all(setting[self.varying.index(name)] == value for name, value in wanted.items())
        )
        if not settings:
            raise ValueError(f"where chooses nothing: no point of the sweep has {dict(where)}")
        labels = tuple(section.options.get("labels", ()))
        if labels and len(labels) != len(settings):
            raise ValueError(
                f"labels must have one text for each of {len(settings)} settings, got {len(labels)}"
            )
        roles = self.roles
        if len(settings) < len(self.settings):
            roles = tuple(figures.setting_roles(len(settings), ordered=False))
        return replace(self, settings=settings, roles=roles, labels=labels)

    @property
    def single(self) -> bool:
        """Whether nothing but x varies, so that a colour means a source."""
        return len(self.settings) == 1

    def legend(self) -> list[Series]:
        """A line for each colour."""
        if self.single:
            return []
        labels = self.labels or [
            _described(dict(zip(self.varying, setting, strict=True)), self.varying)
            for setting in self.settings
        ]
        return [
            Series("line", label=label, role=role) for label, role in zip(labels, self.roles, strict=True)
        ]

    def chosen(
        self, outcomes: Iterable[Outcome], coordinates: Mapping[Any, Mapping[str, Any]]
    ) -> list[tuple[str, list[Mapping[str, Any]]]]:
        """The role of each setting and its rows, ascending along x."""
        rows = _rows(outcomes, coordinates, self.x)
        for row in rows:
            row[self.x] = self.places.get(row[self.x], row[self.x])
        rows.sort(key=lambda row: row[self.x])
        return [
            (role, _chosen(rows, self.varying, setting))
            for setting, role in zip(self.settings, self.roles, strict=True)
        ]


def places_of(words: Sequence[str]) -> dict[str, float]:
    """Where words stand on an axis: at the one number in which they differ.

    Examples
    --------
    >>> places_of(["spiked(1, overlap=0.5)", "spiked(10, overlap=0.5)"])
    {'spiked(1, overlap=0.5)': 1.0, 'spiked(10, overlap=0.5)': 10.0}
    """
    numbers = [[float(found) for found in re.findall(NUMBER, text)] for text in words]
    frames = {re.sub(NUMBER, "#", text) for text in words}
    differing = [place for place, column in enumerate(zip(*numbers, strict=False)) if len(set(column)) > 1]
    if len(frames) > 1 or len(differing) != 1:
        raise ValueError(
            f"{', '.join(words)} have no place along an axis: let them differ in one number, or choose another x"
        )
    return {text: found[differing[0]] for text, found in zip(words, numbers, strict=True)}


def _predicted_lines(results: Results, shown: _Shown, quantity: str) -> list[Series]:
    series: list[Series] = []
    grey = "theory" if shown.single else "linear"
    for style, entry in zip(LINE_STYLES, results.predicted, strict=False):
        lines: dict[tuple[tuple[float, ...], tuple[float, ...]], list[str]] = {}
        for role, rows in shown.chosen(entry.curve, _coordinates(results, entry)):
            curve = tuple(row[shown.x] for row in rows), tuple(_value(row, quantity) for row in rows)
            lines.setdefault(curve, []).append(role)
        if any(xs for xs, _ in lines):
            series.append(
                Series("line", label=figures.SOURCES.get(entry.label, entry.label), role=grey, style=style)
            )
        for (xs, ys), owners in lines.items():
            # A theory that what is swept does not concern has one line for all settings.
            shade = owners[0] if len(owners) == 1 and not shown.single else grey
            series.append(Series("line", x=xs, y=ys, role=shade, style=style))
    return series


def _predicted_bands(results: Results, shown: _Shown, quantity: str) -> list[Series]:
    """What the first theory says of its own error, around its lines."""
    name = f"{'test_error' if quantity == 'risk' else quantity}_bar"
    series: list[Series] = []
    for entry in results.predicted[:1]:
        for role, rows in shown.chosen(entry.curve, _coordinates(results, entry)):
            ends = [(row[shown.x], _value(row, quantity), _value(row, name)) for row in rows]
            ends = [end for end in ends if math.isfinite(end[2])]
            if ends:
                series.append(
                    Series(
                        "band",
                        x=tuple(x for x, _, _ in ends),
                        y=tuple(y - bar for _, y, bar in ends),
                        upper=tuple(y + bar for _, y, bar in ends),
                        role="theory" if shown.single else role,
                    )
                )
    return series


def _simulated_points(results: Results, shown: _Shown, quantity: str) -> list[Series]:
    series: list[Series] = []
    for role, rows in shown.chosen(results.simulated, _coordinates(results)):
        if rows:
            series.append(
                Series(
                    "points",
                    x=tuple(row[shown.x] for row in rows),
                    y=tuple(_value(row, quantity) for row in rows),
                    error=tuple(_stderr(row, quantity) for row in rows),
                    role="simulation" if shown.single else role,
                )
            )
    if series:
        shade = "simulation" if shown.single else "linear"
        series.insert(0, Series("points", label=figures.SOURCES["simulation"], role=shade))
    return series


def _chosen(
    rows: Sequence[Mapping[str, Any]], varying: Sequence[str], setting: Sequence[Any]
) -> list[Mapping[str, Any]]:
    return [
        row for row in rows if all(row[name] == value for name, value in zip(varying, setting, strict=True))
    ]


def _bounds(results: Results, section: FigureSection, quantity: str) -> list[Series]:
    """The best linear predictor, and what one smoothed neuron could reach, if the problem does not change."""
    problems = {point.problem.key: point.problem for point in results.points}
    if len(problems) != 1 or quantity not in ("test_error", "risk"):
        return []
    problem = next(iter(problems.values()))
    offset = problem.noise_variance if quantity == "risk" else 0.0
    drawn = []
    if section.options.get("linear", True):
        level = best_linear_error(problem) - offset
        name = "kernel bound (best linear)"
        drawn.append(Series("hlines", y=(level,), label=name, role="linear", style="dotted"))
    if section.options.get("neuron", False):
        level = best_neuron(problem).error + problem.noise_variance - offset
        drawn.append(Series("hlines", y=(level,), label="best neuron τ*", role="linear", style="dashdot"))
    return drawn


def published_values(name: str) -> list[dict[str, str]]:
    """Rows of a table of published numbers that the package carries."""
    text = (
        files("firststep.experiment")
        .joinpath("files", "published", f"{name}.csv")
        .read_text(encoding="utf-8")
    )
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def _published(section: FigureSection, quantity: str) -> list[Series]:
    name = section.options.get("published")
    columns = section.options.get("published_columns", {})
    if name is None or quantity not in columns:
        return []
    rows = published_values(name)
    x = [float(row[section.options["published_x"]]) for row in rows]
    y = [float(row[columns[quantity]]) for row in rows]
    label = section.options.get("published_label", "published")
    return [Series("marks", x=tuple(x), y=tuple(y), label=label, role="setting3")]


def weights(results: Results, section: FigureSection) -> Figure:
    """Largest singular value of the weights and its alignment with the teacher, against the step size."""
    figure = against(
        results,
        section.model_copy(
            update={
                "x": section.x or "step_size",
                "quantities": section.quantities or ("weights_top", "weights_alignment"),
            }
        ),
    )
    problems = {(p.problem.key, p.sizes): p for p in results.points}
    if len(problems) != 1:
        return figure
    point = next(iter(problems.values()))
    law = spiked_weights(point.problem, point.sizes, [1.0])
    mark = Series("vlines", x=(law.critical_step,), names=("critical step",), role="threshold")
    edge = Series("hlines", y=(law.edge,), label="edge of the bulk", role="linear", style="dashdot")
    first, *rest = figure.panels
    panels = [replace(first, series=(edge, mark, *first.series))]
    panels += [replace(panel, series=(mark, *panel.series)) for panel in rest]
    return replace(figure, panels=tuple(panels))


def _lowered(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def universality(results: Results, section: FigureSection) -> Figure:
    """The network, the spiked approximations F_l and the Gaussian equivalent on the same draws."""
    kinds = [("", "network", "setting1", "points")]
    kinds += [
        (f"spiked{count}_", f"F{_lowered(count)}", f"setting{count + 1}", "line")
        for count in section.options.get("spikes", (1, 2, 3))
    ]
    kinds += [
        (
            f"gaussian{count}_",
            f"Gaussian, {count} spike{'s'[: count != 1]}",
            f"setting{count + 1}",
            "gaussian",
        )
        for count in section.options.get("spikes", (1, 2, 3))
    ]
    rows = _rows(results.simulated, _coordinates(results))
    panels = []
    for quantity in section.quantities or ("train_error", "test_error"):
        series: list[Series] = []
        chosen = sorted(
            (row for row in rows if row["step_exponent"] is not None), key=lambda row: row["step_exponent"]
        )
        xs = tuple(float(row["step_exponent"]) for row in chosen)
        for prefix, label, role, kind in kinds:
            ys = tuple(_value(row, f"{prefix}{quantity}") for row in chosen)
            spread = tuple(_stderr(row, f"{prefix}{quantity}") for row in chosen)
            if kind == "points":
                series.append(Series("points", x=xs, y=ys, error=spread, label=label, role=role))
            else:
                style = "solid" if kind == "line" else "dotted"
                series.append(Series("line", x=xs, y=ys, label=label, role=role, style=style))
        places = {name: at for name, at in figures.THRESHOLDS.items() if xs and xs[0] < at < xs[-1]}
        series.append(Series("vlines", x=tuple(places.values()), names=tuple(places), role="threshold"))
        panels.append(
            Panel(tuple(series), x_label=AXES["step_exponent"], y_label=WORDS.get(quantity, quantity))
        )
    return Figure(_settings(results), tuple(panels))


def staircase(results: Results, section: FigureSection) -> Figure:
    """Errors against the step exponent for growing sizes, with the limit's levels in two versions."""
    figure = against_step(results, section)
    largest = max(results.points, key=lambda point: point.sizes.n_samples)
    versions: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
        ("levels of the limit", "ink", "dashed", {"full_gradient": True, "row_norms": True}),
        ("levels as published", "ink", "dotted", {}),
    )
    panels = []
    for panel, quantity in zip(
        figure.panels, section.quantities or ("train_error", "test_error"), strict=True
    ):
        low, high = panel.x_range or (0.0, 0.5)
        series = list(panel.series)
        for label, role, style, options in versions:
            xs, ys = _levels(largest, quantity, low, high, options)
            series.append(Series("line", x=xs, y=ys, label=label, role=role, style=style))
        panels.append(replace(panel, series=tuple(series)))
    return replace(figure, panels=tuple(panels))


def _levels(
    point: Point, quantity: str, low: float, high: float, options: Mapping[str, Any]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The levels of the staircase over their windows."""
    counts = [count for count in range(MAX_SPIKES + 1) if window_start(count) < high]
    levels = solve_staircase(
        point.problem, point.sizes, np.ones(len(counts)), [point.ridge], n_spikes=counts, **options
    ).values[quantity][:, 0]
    xs, ys = figures.level_segments(dict(zip(counts, levels.tolist(), strict=True)), low, high)
    return tuple(xs), tuple(ys)


def _step_coordinate(results: Results, step: float, result: SpectrumResult) -> float:
    """The step as the sweep names it: its exponent, or its size."""
    if results.experiment.sweep.step_exponent is not None:
        return float(result.cell.sizes.step_exponent(step))
    return step


def _spectra_of(results: Results, of: str) -> SpectrumResult:
    found = [entry for entry in results.spectra if entry.of == of]
    if not found:
        raise ValueError(f"the figure needs spectra of the {of}: name them in [spectra]")
    return found[0]


def spectrum(results: Results, section: FigureSection) -> Figure:
    """Histograms of singular values with the predicted density and outliers, a panel for each step.

    Options: ``of`` (features or weights) and ``at``, the steps shown, named as in the sweep.
    """
    result = _spectra_of(results, section.options.get("of", "features"))
    places = {step: _step_coordinate(results, step, result) for step in result.drawn}
    wanted = section.options.get("at") or list(places.values())
    steps = [min((abs(place - at), step) for step, place in places.items())[1] for at in wanted]
    drawn = {found.step_size: found for found in result.simulated()}
    symbol = "α" if results.experiment.sweep.step_exponent is not None else "η"

    def name(shown: Spectrum) -> str:
        return f"{symbol} = {number_text(round(places[shown.step_size], 4))}"

    return figures.histogram(
        [result.predicted[step] for step in steps if step in result.predicted],
        [drawn[step] for step in steps if step in drawn],
        scale="linear",
        title=_settings(results, map(len, result.drawn.values())),
        panel_title=name,
    )


def ladder(results: Results, section: FigureSection) -> Figure:
    """Outliers against the step, and the overlaps of their vectors: with monomials of z, or with beta.

    Options: ``of``, and ``overlaps``, one name for each outlier that is followed.
    """
    of = section.options.get("of", "features")
    result = _spectra_of(results, of)
    followed: list[str] = section.options.get(
        "overlaps", ["h1", "z2", "z3"] if of == "features" else ["beta"]
    )
    exponents = results.experiment.sweep.step_exponent is not None
    return figures.ladder(
        list(result.predicted.values()),
        result.simulated(len(followed)),
        names=followed,
        exponents=exponents,
        # Spikes of the weights have no thresholds of their own.
        thresholds=None if of == "features" else {},
        title=_settings(results, map(len, result.drawn.values())),
    )


def distances(results: Results, section: FigureSection) -> Figure:
    """How far the features are from their approximations with l spikes, against n."""
    found: dict[float, list[tuple[int, Distances]]] = {}
    for result in results.distances:
        for step, measured in result.found.items():
            alpha = round(float(result.cell.sizes.step_exponent(step)), 6)
            found.setdefault(alpha, []).append((result.cell.sizes.n_samples, measured))
    if not found:
        raise ValueError('the figure needs distances: write of = ["distances"] in [spectra]')
    counts = [len(measured.samples) for entries in found.values() for _, measured in entries]
    by_title = {f"α = {number_text(alpha)}": entries for alpha, entries in sorted(found.items())}
    return figures.distances(by_title, title=_settings(results, counts))


KINDS: dict[str, Callable[[Results, FigureSection], Figure]] = {
    "against_step": against_step,
    "against": against,
    "map": value_map,
    "weights": weights,
    "universality": universality,
    "staircase": staircase,
    "spectrum": spectrum,
    "ladder": ladder,
    "distances": distances,
}
