r"""Figures of spectra as plain data: histogram and density, spike ladder, alignment, ||F - F_l||, phase diagram.

Every function here takes what `firststep.theory.spectrum.predict_spectrum` and `firststep.spectra` return and gives a
`firststep.figures.Figure`, to be drawn by `firststep.figures.save`. For an experiment's report: `histogram` shows
weights or features before and after the step (give it two step sizes); `ladder` and `alignment` with several exponents
show spikes leaving the bulk one by one; `distances` shows whether the features approach :math:`F_\ell`.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from firststep.figures import STYLES, THRESHOLDS, Figure, Panel, Series, number_text
from firststep.gaussian import Array
from firststep.problem import Spectrum
from firststep.spectra import Distances

NAMES = {"features": "F Fᵀ/n", "weights": "W₁W₁ᵀ", "gradient": "G Gᵀ"} | {
    f"spiked{k}": f"F{sub} F{sub}ᵀ/n" for k, sub in enumerate("₀₁₂₃")
}
X_LABEL = "step exponent α = log η / log n₀"
# What an overlap is with, for people.
OVERLAPS = {
    "h0": "constant",
    "h1": "h₁(z) = z",
    "h2": "h₂(z)",
    "h3": "h₃(z)",
    "h4": "h₄(z)",
    "z2": "z²",
    "z3": "z³",
    "beta": "β·x",
    "direction": "direction",
    "a1": "a",
    "a2": "a²",
    "a3": "a³",
}


def _title(spectrum: Spectrum, step: bool = True) -> str:
    problem, sizes = spectrum.problem, spectrum.sizes
    parts = [f"{problem.activation.spec} network", f"teacher {problem.teacher.spec}"]
    parts.append(f"noise {number_text(problem.noise_std)}" if problem.noise_std else "no noise")
    if problem.initial_output != "vanishing":
        parts.append("initial output of order one")
    line = f"n = {sizes.n_samples}, d = {sizes.dim}, N = {sizes.width}"
    if sizes.n_step_samples != sizes.n_samples:
        line += f", n₀ = {sizes.n_step_samples}"
    if step:
        line += f", {step_text(spectrum)}"
    return ", ".join(parts) + "\n" + line


def step_text(spectrum: Spectrum) -> str:
    """The step size for people, with its exponent."""
    if spectrum.step_size == 0:
        return "no step"
    exponent = spectrum.sizes.step_exponent(spectrum.step_size)
    return f"η = {spectrum.step_size:.3g} (α = {exponent:.2f})"


def histogram(
    predicted: Sequence[Spectrum] | Spectrum = (),
    simulated: Sequence[Spectrum] | Spectrum = (),
    *,
    bars: int | None = None,
    title: str | None = None,
) -> Figure:
    """Histogram of simulated singular values, predicted density, predicted outliers as marks; a panel for each step.

    The axis shows singular values on a logarithmic scale, so that a bulk and spikes a hundred times larger fit in one
    panel; the density is that of the logarithm, so that areas are shares of eigenvalues. Simulated outliers are bars of
    their own, predicted ones marks on the axis.

    Parameters
    ----------
    predicted, simulated : Spectrum or sequence of Spectrum
        Panels are matched by step size, weights or features and problem; either side may be missing.
    bars : int, optional
        Bars of the histogram.
    title : str, optional
        Made from the problem and the sizes when not given.
    """
    theory = [predicted] if isinstance(predicted, Spectrum) else list(predicted)
    draws = [simulated] if isinstance(simulated, Spectrum) else list(simulated)
    if not theory and not draws:
        raise ValueError("histogram needs at least one spectrum")
    keys = list(dict.fromkeys(_key(spectrum) for spectrum in [*theory, *draws]))
    panels = []
    for key in keys:
        mine = [s for s in theory if _key(s) == key]
        drawn = [s for s in draws if _key(s) == key]
        panels.append(_histogram_panel(mine, drawn, bars, named=len(keys) > 1))
    first = (theory or draws)[0]
    return Figure(
        title or _title(first, step=len(keys) == 1),
        tuple(panels),
        "Singular values: simulated histogram, predicted density, predicted outliers as marks.",
    )


def _key(spectrum: Spectrum) -> tuple[str, str, str, float]:
    return spectrum.of, spectrum.problem.key, spectrum.sizes.key, round(spectrum.step_size, 9)


def _histogram_panel(
    theory: Sequence[Spectrum], draws: Sequence[Spectrum], bars: int | None, named: bool
) -> Panel:
    series: list[Series] = []
    peak, ends = 0.0, []
    for spectrum in draws:
        values = np.concatenate(spectrum.details["eigenvalues"])
        values = np.sqrt(values[values > 1e-11 * values.max()])
        total = (len(spectrum.details["eigenvalues"][0]) + spectrum.details["zeros"]) * len(
            spectrum.details["eigenvalues"]
        )
        inside = values[values**2 <= spectrum.edges[1]]
        number = bars or int(np.clip(1.5 * len(inside) ** (1 / 3) + 12, 14, 60))
        width = math.log(inside.max() / inside.min()) / number
        count = math.ceil(math.log(values.max() / inside.min()) / width) + 1
        places = inside.min() * np.exp(width * np.arange(count + 1))
        tally = np.histogram(values, bins=places)[0] / (total * width)
        series.append(Series("bars", x=tuple(places), y=tuple(tally), label="simulation", role="simulation"))
        # A single outlier is a bar too low to be seen: give it a point.
        if spectrum.outliers:
            spread = [o.singular_value for o in spectrum.outliers]
            series.append(
                Series(
                    "points",
                    x=tuple(spread),
                    y=(0.0,) * len(spread),
                    label="simulated outliers",
                    role="simulation",
                )
            )
        peak = max(peak, float(tally.max()))
        ends += [float(places[0]), float(values.max())]
    for spectrum in theory:
        x, y = [], []
        for low, high in spectrum.intervals:
            own = (spectrum.x > low) & (spectrum.x < high)
            at = spectrum.x[own]
            x += [math.nan, math.sqrt(max(low, float(at[0]))), *np.sqrt(at), math.sqrt(high)]
            # The density of the logarithm of the singular value.
            heights = 2 * at * spectrum.density[own]
            y += [math.nan, 0.0 if low > 0 else float(heights[0]), *heights, 0.0]
        series.append(Series("line", x=tuple(x), y=tuple(y), label="predicted density", role="theory"))
        peak = max(peak, float(np.nanmax(y)))
        found = [outlier.singular_value for outlier in spectrum.outliers]
        if found:
            series.append(
                Series(
                    "marks",
                    x=tuple(found),
                    y=(0.045 * peak,) * len(found),
                    label="predicted outliers",
                    role="theory",
                )
            )
        ends += [
            max(math.sqrt(spectrum.edges[0]), 0.01 * math.sqrt(spectrum.edges[1])),
            math.sqrt(spectrum.edges[1]),
            *found,
        ]
    first = (list(theory) or list(draws))[0]
    what = "F/√n" if first.of == "features" else {"weights": "W₁", "gradient": "G"}.get(first.of, first.of)
    return Panel(
        tuple(series),
        x_label=f"singular value of {what}",
        y_label="share of eigenvalues per unit of log",
        title=step_text(first) if named else "",
        x_scale="log",
        x_range=(0.85 * min(ends), 1.25 * max(ends)),
        y_range=(0.0, 1.12 * peak),
    )


def _by_rank(spectra: Sequence[Spectrum]) -> list[tuple[Array, Array]]:
    """Exponents and eigenvalues of the first, second, … outlier, NaN where there is none."""
    ordered = sorted(spectra, key=lambda s: s.step_size)
    x = np.array([s.sizes.step_exponent(s.step_size) for s in ordered])
    most = max((len(s.outliers) for s in ordered), default=0)
    return [
        (x, np.array([s.outliers[k].eigenvalue if len(s.outliers) > k else math.nan for s in ordered]))
        for k in range(most)
    ]


def ladder(
    predicted: Sequence[Spectrum],
    simulated: Sequence[Spectrum] = (),
    *,
    thresholds: Mapping[str, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Outliers against the step exponent: predicted lines through simulated points, above the edge of the bulk.

    Parameters
    ----------
    predicted : sequence of Spectrum
        On a fine grid of positive step sizes (`predict_spectrum` takes a third of a second each; 20 points are enough).
    simulated : sequence of Spectrum
        From one call of `simulate_spectrum` with several step sizes, ``bulk=False``.
    thresholds : mapping of str to float, optional
        Exponents to mark; the entry of the second, third and fourth spike in the limit when not given.
    title : str, optional
        Made from the problem and the sizes when not given.
    """
    if not predicted and not simulated:
        raise ValueError("ladder needs at least one spectrum")
    marked = THRESHOLDS if thresholds is None else thresholds
    series = [Series("vlines", x=tuple(marked.values()), names=tuple(marked), role="threshold")]
    ordered = sorted(predicted, key=lambda s: s.step_size)
    if ordered:
        x = [float(s.sizes.step_exponent(s.step_size)) for s in ordered]
        edges = [s.edges[1] for s in ordered]
        lows = [0.0 if s.edges[0] <= 0 else s.edges[0] for s in ordered]
        series.append(
            Series("band", x=tuple(x), y=tuple(lows), upper=tuple(edges), label="bulk", role="linear")
        )
    for k, (x_, y_) in enumerate(_by_rank(predicted)):
        series.append(
            Series(
                "line", x=tuple(x_), y=tuple(y_), label="predicted outliers" if k == 0 else "", role="theory"
            )
        )
    for k, (x_, y_) in enumerate(_by_rank(simulated)):
        errors = []
        for s in sorted(simulated, key=lambda s: s.step_size):
            known = s.details["stderr"]
            value = known[k]["eigenvalue"] if len(known) > k else math.nan
            errors.append(0.0 if math.isnan(value) else value)
        series.append(
            Series(
                "points",
                x=tuple(x_),
                y=tuple(y_),
                error=tuple(errors),
                label="simulated outliers ± 1 standard error" if k == 0 else "",
                role="simulation",
            )
        )
    first = (ordered or list(simulated))[0]
    low = min((s.edges[1] for s in [*predicted, *simulated]), default=1.0) / 4
    exponents = [float(s.sizes.step_exponent(s.step_size)) for s in [*predicted, *simulated]]
    margin = 0.03 * (max(exponents) - min(exponents) or 1.0)
    top = max((o.eigenvalue for s in [*predicted, *simulated] for o in s.outliers), default=4 * low)
    panel = Panel(
        tuple(series),
        x_label=X_LABEL,
        y_label=f"eigenvalue of {NAMES[first.of]}",
        y_scale="log",
        x_range=(min(exponents) - margin, max(exponents) + margin),
        y_range=(low, 1.6 * top),
    )
    return Figure(
        title or _title(first, step=False),
        (panel,),
        "Eigenvalues outside the bulk against the step exponent. Dotted: where a further spike enters in the limit.",
    )


def alignment(
    predicted: Sequence[Spectrum],
    simulated: Sequence[Spectrum] = (),
    *,
    names: Sequence[str] = ("h1", "h2", "beta"),
    outliers: int = 2,
    title: str | None = None,
) -> Figure:
    """Squared overlaps of the outliers' singular vectors against the step exponent, one panel for each outlier.

    Parameters
    ----------
    predicted, simulated : sequence of Spectrum
        As for `ladder`. Where there is no outlier nothing is drawn.
    names : sequence of str
        Overlaps to show: ``"h1"``, ``"z2"``, ``"beta"``, ``"a1"`` …; ``"beta"`` and ``"direction"`` for weights.
    outliers : int
        How many of them, from the largest down.
    title : str, optional
        Made from the problem and the sizes when not given.
    """
    every = [*predicted, *simulated]
    if not every:
        raise ValueError("alignment needs at least one spectrum")
    shown = [k for k in range(outliers) if any(len(s.outliers) > k for s in every)] or [0]
    exponents = [float(s.sizes.step_exponent(s.step_size)) for s in every]
    margin = 0.03 * (max(exponents) - min(exponents) or 1.0)
    panels = []
    for k in shown:
        series = [Series("vlines", x=tuple(THRESHOLDS.values()), names=tuple(THRESHOLDS), role="threshold")]
        for index, name in enumerate(names):
            role = f"setting{index + 1}"
            series.append(Series("line", label=OVERLAPS.get(name, name), role=role))
            for spectra, kind in ((predicted, "line"), (simulated, "points")):
                ordered = sorted(spectra, key=lambda s: s.step_size)
                x = [float(s.sizes.step_exponent(s.step_size)) for s in ordered]
                y = [
                    s.outliers[k].overlaps.get(name, math.nan) if len(s.outliers) > k else math.nan
                    for s in ordered
                ]
                errors = []
                if kind == "points":
                    for s in ordered:
                        known = s.details["stderr"]
                        value = known[k]["overlaps"].get(name, math.nan) if len(known) > k else math.nan
                        errors.append(0.0 if math.isnan(value) else value)
                if not all(math.isnan(value) for value in y):
                    series.append(Series(kind, x=tuple(x), y=tuple(y), error=tuple(errors), role=role))
        series.append(Series("line", label="predicted", role="linear"))
        if simulated:
            series.append(Series("points", label="simulated ± 1 standard error", role="linear"))
        panels.append(
            Panel(
                tuple(series),
                x_label=X_LABEL,
                y_label="squared overlap",
                title=f"outlier {k + 1}" if len(shown) > 1 else "",
                x_range=(min(exponents) - margin, max(exponents) + margin),
                y_range=(-0.02, 1.04),
            )
        )
    return Figure(
        title or _title(every[0], step=False),
        tuple(panels),
        "Squared overlaps of the singular vectors of the largest eigenvalues, against the step exponent.",
    )


def distances(
    settings: Mapping[str, Sequence[tuple[int, Distances]]], *, step: int = 0, title: str = ""
) -> Figure:
    """||F - F_l||/sqrt(n) against n for l = 0 … 3, one panel for each setting.

    Parameters
    ----------
    settings : mapping of str to sequence of (n, Distances)
        For each panel, results of `firststep.spectra.feature_distances` at growing n.
    step : int
        Which of their step sizes.
    title : str
        Above all panels.
    """
    panels = []
    for name, results in settings.items():
        ordered = sorted(results, key=lambda pair: pair[0])
        series = []
        for j, what in enumerate(ordered[0][1].names):
            role, level = f"setting{j + 1}", what.removeprefix("spiked")
            x = tuple(float(n) for n, _ in ordered)
            y = tuple(float(found.mean[step, j]) for _, found in ordered)
            error = tuple(float(np.nan_to_num(found.stderr[step, j])) for _, found in ordered)
            series += [
                # Without a spike of that degree two lines coincide: both must be seen.
                Series("line", x=x, y=y, role=role, label=f"l = {level}", style=STYLES[j % len(STYLES)]),
                Series("points", x=x, y=y, error=error, role=role),
            ]
        panels.append(
            Panel(
                tuple(series),
                x_label="n",
                y_label="‖F − Fₗ‖/√n",
                title=name if len(settings) > 1 else "",
                x_scale="log",
                y_scale="log",
            )
        )
    return Figure(
        title or "Distance of the features from their approximations with l spikes",
        tuple(panels),
        "Operator norms of the difference between the features and their approximations with l spikes.",
    )


def phase_diagram(
    ratios: Sequence[float],
    critical: Mapping[str, Sequence[float]],
    *,
    x_label: str = "N/d",
    n_step_samples: int | None = None,
    title: str = "",
) -> Figure:
    """Step sizes at which spikes leave the bulk, against a ratio of sizes.

    Parameters
    ----------
    ratios : sequence of float
        Positions.
    critical : mapping of str to sequence of float
        For each line its name and critical steps, for instance from `firststep.theory.spectrum.critical_steps` or
        `firststep.theory.weights.critical_step`; infinite ones are gaps.
    x_label : str
        What the ratio is.
    n_step_samples : int, optional
        n0: critical exponents are shown in place of step sizes.
    title : str
        Above the panel.
    """
    series = []
    for index, (name, values) in enumerate(critical.items()):
        y = [float(v) if math.isfinite(v) and v > 0 else math.nan for v in values]
        if n_step_samples:
            y = [math.log(v) / math.log(n_step_samples) for v in y]
        series.append(Series("line", x=tuple(ratios), y=tuple(y), label=name, role=f"setting{index + 1}"))
    exponents = bool(n_step_samples)
    if exponents:
        series.append(
            Series(
                "hlines",
                y=tuple(THRESHOLDS.values()),
                names=tuple(THRESHOLDS),
                role="threshold",
                style="dotted",
            )
        )
    panel = Panel(
        tuple(series),
        x_label=x_label,
        y_label="critical exponent log η / log n₀" if exponents else "critical step size η",
        x_scale="log",
        y_scale="linear" if exponents else "log",
    )
    return Figure(
        title or "Where spikes leave the bulk", (panel,), "Step sizes at which each spike leaves the bulk."
    )
