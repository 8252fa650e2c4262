"""Figures of experiments as plain data: which numbers go where; drawing is the business of `firststep.figures`."""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np

from firststep import figures
from firststep.experiment.points import RATIO_SIZES, Point, expand
from firststep.experiment.results import Predicted, Results, SpectrumResult
from firststep.experiment.schema import FigureSection
from firststep.experiment.work import FOLLOWED, OVERLAPS, SPIKES
from firststep.figures import Figure, Panel, Series, number_text
from firststep.problem import Outcome
from firststep.theory.bounds import best_linear_error, best_neuron
from firststep.theory.staircase import solve as solve_staircase
from firststep.theory.weights import spiked_weights

SYMBOLS = {
    "step_size": "η",
    "step_exponent": "α",
    "ridge": "λ",
    "ridge_cui": "λ_C",
    "n_samples": "n",
    "dim": "d",
    "width": "N",
    "n_step_samples": "n₀",
    "phi": "d/n",
    "psi": "d/N",
    "psi1": "n/d",
    "psi2": "N/d",
    "samples_per_width": "n/N",
    "step_samples_per_dim": "n₀/d",
    "noise_std": "noise",
}
AXES = {
    "step_size": "step size η",
    "step_exponent": "step exponent α = log η / log n₀",
    "ridge": "ridge λ",
    "n_samples": "samples n",
    "width": "width N",
    "psi1": "samples per dimension n/d",
    "psi2": "width per dimension N/d",
    "samples_per_width": "samples per neuron n/N",
}
WORDS = figures.WORDS | {
    "risk": "test error without the noise",
    "weights_top": "largest singular value of W₁",
    "weights_alignment": "squared overlap with β",
}
MATRICES = {"features": "F/√n", "weights": "W₁"}
MONOMIALS = {
    "h1": "z",
    "h2": "H₂(z)",
    "h3": "H₃(z)",
    "h4": "H₄(z)",
    "z2": "z²",
    "z3": "z³",
    "beta": "β",
    "direction": "b",
}
# Windows beyond this one are thinner than a line.
LAST_LEVEL = 12
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
        return float(row["test_error"]) - float(row["noise_std"]) ** 2
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
            pair = (outcome.problem.key, outcome.sizes, row["step_size"], row["ridge"])
            if pair in coordinates:
                rows.append({"noise_std": outcome.problem.noise_std, **row, **coordinates[pair], **place})
    return rows


def _coordinates(results: Results, predicted: Predicted | None = None) -> dict[Any, Mapping[str, Any]]:
    points = results.points
    if predicted is not None and predicted.theory.curve:
        points = expand(results.experiment, predicted.theory.curve)
    return {(p.problem.key, p.sizes, p.step_size, p.ridge): p.coordinates for p in points}


def _described(coordinates: Mapping[str, Any], varying: Sequence[str]) -> str:
    parts = []
    for name in varying:
        value = coordinates[name]
        shown = value if isinstance(value, str) else number_text(value)
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

    Options: ``linear`` draws the best linear predictor, which bounds kernels and random features; ``x_scale``
    and ``y_scale``; ``published`` names a CSV file of the package with columns ``x``, ``y`` and ``label``.
    """
    x = section.x or "step_exponent"
    axes = results.experiment.sweep.axes()
    zipped = {name for group in results.experiment.sweep.zip if x in group for name in group}
    varying = [name for name, values in axes.items() if name != x and name not in zipped and len(values) > 1]
    settings = list(
        dict.fromkeys(tuple(point.coordinates[name] for name in varying) for point in results.points)
    )
    roles = _roles(len(settings))
    quantities = section.quantities or ("test_error",)
    panels = []
    for quantity in quantities:
        series: list[Series] = []
        if len(settings) > 1:
            series += [
                Series("line", label=_described(dict(zip(varying, setting, strict=True)), varying), role=role)
                for setting, role in zip(settings, roles, strict=True)
            ]
        series += _bounds(results, section, quantity)
        for style, entry in zip(LINE_STYLES, results.predicted, strict=False):
            rows = _rows(entry.curve, _coordinates(results, entry), x)
            label = figures.SOURCES.get(entry.label, entry.label)
            grey = "theory" if len(settings) == 1 else "linear"
            if rows:
                series.append(Series("line", label=label, role=grey, style=style))
            lines: dict[tuple[tuple[float, ...], tuple[float, ...]], list[str]] = {}
            for setting, role in zip(settings, roles, strict=True):
                chosen = sorted(_chosen(rows, varying, setting), key=lambda row: row[x])
                curve = tuple(row[x] for row in chosen), tuple(_value(row, quantity) for row in chosen)
                lines.setdefault(curve, []).append(role)
            for (xs, ys), owners in lines.items():
                # A theory that what is swept does not concern has one line for all settings.
                shade = owners[0] if len(owners) == 1 and len(settings) > 1 else grey
                series.append(Series("line", x=xs, y=ys, role=shade, style=style))
        series += _published(section, quantity)
        rows = _rows(results.simulated, _coordinates(results), x)
        if rows:
            shade = "simulation" if len(settings) == 1 else "linear"
            series.append(Series("points", label=figures.SOURCES["simulation"], role=shade))
        for setting, role in zip(settings, roles, strict=True):
            chosen = sorted(_chosen(rows, varying, setting), key=lambda row: row[x])
            if chosen:
                series.append(
                    Series(
                        "points",
                        x=tuple(row[x] for row in chosen),
                        y=tuple(_value(row, quantity) for row in chosen),
                        error=tuple(_stderr(row, quantity) for row in chosen),
                        role="simulation" if len(settings) == 1 else role,
                    )
                )
        panels.append(
            Panel(
                tuple(series),
                x_label=section.options.get("x_label", AXES.get(x, x.replace("_", " "))),
                y_label=WORDS.get(quantity, quantity.replace("_", " ")),
                x_scale=section.options.get("x_scale", "linear"),
                y_scale=section.options.get("y_scale", "linear"),
                y_range=section.options.get("y_range"),
            )
        )
    return Figure(_settings(results), tuple(panels))


def _roles(count: int) -> list[str]:
    if count <= figures.SETTING_COLOURS:
        return [f"setting{place + 1}" for place in range(count)]
    return [f"ramp:{place / (count - 1):.3f}" for place in range(count)]


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
    text = files("firststep").joinpath("experiments", "published", f"{name}.csv").read_text(encoding="utf-8")
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
    """The levels of the staircase over their windows ((l-1)/(2l), l/(2l+2)), with gaps between them."""
    counts = [0, *(count for count in range(1, LAST_LEVEL + 1) if (count - 1) / (2 * count) < high)]
    levels = solve_staircase(
        point.problem, point.sizes, np.ones(len(counts)), [point.ridge], n_spikes=counts, **options
    ).values[quantity][:, 0]
    xs: list[float] = []
    ys: list[float] = []
    for count, level in zip(counts, levels, strict=True):
        left = low if count == 0 else max(low, (count - 1) / (2 * count))
        right = 0.0 if count == 0 else min(high, count / (2 * count + 2))
        if left < right:
            xs += [math.nan] * bool(xs) + [left, right]
            ys += [math.nan] * bool(ys) + [float(level), float(level)]
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
    exponents = results.experiment.sweep.step_exponent is not None
    wanted = section.options.get("at") or [_step_coordinate(results, s, result) for s in result.drawn]
    panels = []
    for place in wanted:
        step = min(result.drawn, key=lambda s: abs(_step_coordinate(results, s, result) - place))
        value = number_text(round(_step_coordinate(results, step, result), 4))
        panels.append(_spectrum_panel(result, step, f"{'α' if exponents else 'η'} = {value}"))
    return Figure(_settings(results, map(len, result.drawn.values())), tuple(panels))


def _spectrum_panel(result: SpectrumResult, step: float, name: str) -> Panel:
    drawn, predicted = result.drawn[step], result.predicted.get(step)
    sizes = result.cell.sizes
    series: list[Series] = []
    top = 0.0
    if drawn:
        values = np.sqrt(np.concatenate([entry["eigenvalues"] for entry in drawn]).clip(0))
        edge = math.sqrt(np.mean([entry["found"][1] for entry in drawn]))
        width = edge / 40
        edges = np.arange(0, values.max() + 2 * width, width)
        counts, _ = np.histogram(values, edges)
        total = sizes.n_samples if result.of == "features" else sizes.width
        heights = counts / (len(drawn) * total * width)
        top = float(heights[: int(edge / width)].max())
        series.append(
            Series("bars", x=tuple(edges), y=tuple(heights), label="drawn networks", role="simulation")
        )
        # A single eigenvalue of many is too low a bar to be seen.
        count = min(FOLLOWED, int(np.median([entry["found"][0] for entry in drawn])))
        if count:
            means = np.mean([np.sqrt(entry["outliers"][:count]) for entry in drawn], axis=0)
            low = (0.04 * top,) * count
            series.append(Series("points", x=tuple(means), y=low, label="their outliers", role="simulation"))
    if predicted is not None:
        x = np.sqrt(predicted["x"])
        y = 2 * x * predicted["density"]
        series.append(Series("line", x=tuple(x), y=tuple(y), label="predicted density", role="theory"))
        spikes = np.sqrt(predicted["outliers"])
        if len(spikes):
            names = tuple(f"{value:.3g}" for value in spikes)
            high = (0.14 * top,) * len(spikes)
            series.append(
                Series(
                    "marks", x=tuple(spikes), y=high, names=names, label="predicted outliers", role="theory"
                )
            )
    return Panel(
        tuple(series),
        x_label=f"singular values of {MATRICES[result.of]}",
        y_label="density",
        title=name,
        y_range=(0.0, 1.15 * top) if top else None,
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
    lines = sorted(result.predicted.items())
    xs = tuple(_step_coordinate(results, step, result) for step, _ in lines)
    edge = tuple(math.sqrt(entry["edges"][1]) for _, entry in lines)
    values = [
        Series("line", x=xs, y=edge, label="predicted edge of the bulk", role="linear", style="dashdot")
    ]
    shares: list[Series] = []
    for place, name in enumerate(followed):
        role, column = f"setting{place + 1}", OVERLAPS[of].index(name)
        there = [
            (x, entry) for x, (_, entry) in zip(xs, lines, strict=True) if len(entry["outliers"]) > place
        ]
        at = tuple(x for x, _ in there)
        label = f"spike {place + 1}"
        values.append(
            Series(
                "line",
                x=at,
                y=tuple(math.sqrt(e["outliers"][place]) for _, e in there),
                label=label,
                role=role,
            )
        )
        label += f" with {MONOMIALS.get(name, name)}"
        shares.append(
            Series(
                "line", x=at, y=tuple(e["overlaps"][place, column] for _, e in there), label=label, role=role
            )
        )
        tops = {s: [math.sqrt(e["outliers"][place]) for e in d] for s, d in result.drawn.items() if d}
        overlaps = {s: [e["overlaps"][place, column] for e in d] for s, d in result.drawn.items() if d}
        for panel, samples in ((values, tops), (shares, overlaps)):
            drawn = tuple(_step_coordinate(results, step, result) for step in samples)
            panel.append(_mean_points(drawn, list(samples.values()), role))
    exponents = results.experiment.sweep.step_exponent is not None
    marks: list[Series] = []
    if exponents and of == "features":
        shown = {name: at for name, at in figures.THRESHOLDS.items() if xs and min(xs) < at < max(xs)}
        marks = [Series("vlines", x=tuple(shown.values()), names=tuple(shown), role="threshold")]
    x_label = AXES["step_exponent" if exponents else "step_size"]
    side = "left vectors" if of == "features" else "input-side vectors"
    panels = (
        Panel(
            (*marks, *values),
            x_label=x_label,
            y_label=f"largest singular values of {MATRICES[of]}",
            y_scale="log",
        ),
        Panel((*marks, *shares), x_label=x_label, y_label=f"overlap² of {side}", y_range=(-0.03, 1.05)),
    )
    return Figure(_settings(results, map(len, result.drawn.values())), panels)


def _mean_points(
    x: Sequence[float], samples: Sequence[Sequence[float]], role: str, label: str = ""
) -> Series:
    """Means of samples with their standard errors."""
    means = tuple(float(np.mean(sample)) for sample in samples)
    errors = tuple(
        float(np.std(sample, ddof=1) / math.sqrt(len(sample))) if len(sample) > 1 else math.nan
        for sample in samples
    )
    return Series("points", x=tuple(x), y=means, error=errors, role=role, label=label)


def distances(results: Results, section: FigureSection) -> Figure:
    """How far the features are from their approximations with l spikes, against n."""
    found: dict[float, dict[float, list[Any]]] = {}
    for result in results.spectra:
        for step, entries in result.drawn.items():
            if result.of == "distances" and entries:
                alpha = round(float(result.cell.sizes.step_exponent(step)), 6)
                found.setdefault(alpha, {})[float(result.cell.sizes.n_samples)] = [
                    entry["distances"] for entry in entries
                ]
    if not found:
        raise ValueError('the figure needs distances: write of = ["distances"] in [spectra]')
    panels = []
    for alpha, by_size in sorted(found.items()):
        series = []
        for column, spikes in enumerate(SPIKES):
            role = f"setting{spikes + 1}"
            samples = [[entry[column] for entry in entries] for entries in by_size.values()]
            points = _mean_points(list(by_size), samples, role, label=f"ℓ = {spikes}")
            series += [Series("line", x=points.x, y=points.y, role=role, style="dotted"), points]
        panels.append(
            Panel(
                tuple(series),
                x_label="samples n",
                y_label="‖F − F_ℓ‖ / √n",
                title=f"α = {number_text(alpha)}",
                x_scale="log",
                y_scale="log",
            )
        )
    counts = [len(entries) for by_size in found.values() for entries in by_size.values()]
    return Figure(_settings(results, counts), tuple(panels))


KINDS: dict[str, Callable[[Results, FigureSection], Figure]] = {
    "against_step": against_step,
    "against": against,
    "weights": weights,
    "universality": universality,
    "staircase": staircase,
    "spectrum": spectrum,
    "ladder": ladder,
    "distances": distances,
}
