r"""Figures of spectra as plain data: histogram and density, spike ladder, alignment, ||F - F_l||, phase diagram.

Every function here takes what `predict_spectrum` and `simulate_spectrum` return and gives a
`firststep.figures.Figure`, to be drawn by `firststep.figures.save`. For an experiment's report: `histogram` shows
weights or features before and after the step (give it two step sizes); `ladder` and `alignment` with several exponents
show spikes leaving the bulk one by one; `distances` shows whether the features approach :math:`F_\ell`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from firststep.figures.errors import THRESHOLDS
from firststep.figures.figure import STYLES, Figure, Panel, Series
from firststep.figures.style import setting_roles
from firststep.figures.words import AXES, MATRICES, OVERLAPS, SIDES
from firststep.gaussian import Array
from firststep.results import Distances, Spectrum
from firststep.results.drawn import mean_error

# Bars up to the edge on a linear axis.
LINEAR_BARS = 40


def _title(spectrum: Spectrum, step: bool = True) -> str:
    sizes = spectrum.sizes
    line = f"n = {sizes.n_samples}, d = {sizes.dim}, N = {sizes.width}"
    if sizes.n_step_samples != sizes.n_samples:
        line += f", n₀ = {sizes.n_step_samples}"
    if step:
        line += f", {step_text(spectrum)}"
    return f"{spectrum.problem.title}\n{line}"


def step_text(spectrum: Spectrum) -> str:
    """The step sizes for people, with their exponents."""
    if spectrum.step_size == 0:
        return "no step"
    names = ("", "₂", "₃", "₄")
    return ", ".join(
        f"η{name} = {step:.3g} (α{name} = {spectrum.sizes.step_exponent(step):.4g})"
        for name, step in zip(names, (spectrum.step_size, *_later(spectrum)), strict=False)
    )


def _later(spectrum: Spectrum) -> tuple[float, ...]:
    """Steps after the first, as far as the spectrum tells."""
    return tuple(float(step) for step in spectrum.details.get("next_step_sizes", ()))


def histogram(
    predicted: Sequence[Spectrum] | Spectrum = (),
    simulated: Sequence[Spectrum] | Spectrum = (),
    *,
    bars: int | None = None,
    scale: str = "log",
    title: str | None = None,
    panel_title: Callable[[Spectrum], str] = step_text,
) -> Figure:
    """Histogram of simulated singular values, predicted density, predicted outliers as marks; a panel for each step.

    On a logarithmic axis a bulk and spikes a hundred times larger fit in one panel; the density is then that of the
    logarithm, so that areas are shares of eigenvalues on either axis.

    Parameters
    ----------
    predicted, simulated : Spectrum or sequence of Spectrum
        Panels are matched by step size, weights or features and problem; either side may be missing.
    bars : int, optional
        Bars of the histogram.
    scale : {"log", "linear"}
        Of the axis of singular values.
    title : str, optional
        Made from the problem and the sizes when not given.
    panel_title : callable
        Above each of several panels.
    """
    theory = [predicted] if isinstance(predicted, Spectrum) else list(predicted)
    draws = [simulated] if isinstance(simulated, Spectrum) else list(simulated)
    if not theory and not draws:
        raise ValueError("histogram needs at least one spectrum")
    # Where all tell of a second step; those out of a store do not.
    later = all(_later(spectrum) for spectrum in [*theory, *draws])
    keys = list(dict.fromkeys(_key(spectrum, later) for spectrum in [*theory, *draws]))
    panels = []
    for key in keys:
        mine = [s for s in theory if _key(s, later) == key]
        drawn = [s for s in draws if _key(s, later) == key]
        panel = _histogram_panel(mine, drawn, bars, scale)
        above = panel_title((mine or drawn)[0]) if len(keys) > 1 or panel_title is not step_text else ""
        panels.append(replace(panel, title=above))
    first = (theory or draws)[0]
    return Figure(
        title or _title(first, step=len(keys) == 1),
        tuple(panels),
        "Singular values: simulated histogram, predicted density, predicted outliers as marks.",
    )


def _key(spectrum: Spectrum, later: bool) -> tuple[str, str, str, tuple[float, ...]]:
    steps = (spectrum.step_size, *(_later(spectrum) if later else ()))
    return spectrum.of, spectrum.problem.key, spectrum.sizes.key, tuple(round(step, 9) for step in steps)


def _histogram_panel(
    theory: Sequence[Spectrum], draws: Sequence[Spectrum], bars: int | None, scale: str
) -> Panel:
    series: list[Series] = []
    peak, ends = 0.0, []
    for spectrum in draws:
        places, tally, last = _bars(spectrum, bars, scale)
        series.append(Series("bars", x=tuple(places), y=tuple(tally), label="simulation", role="simulation"))
        inside = places[1:] <= math.sqrt(spectrum.edges[1])
        peak = max(peak, float(tally[inside].max(initial=0.0) or tally.max()))
        ends += [float(places[0]), last]
        # A single outlier is a bar too low to be seen: give it a point.
        tops = tuple(outlier.singular_value for outlier in spectrum.outliers)
        if tops:
            low = (0.0,) * len(tops)
            series.append(Series("points", x=tops, y=low, label="simulated outliers", role="simulation"))
    for spectrum in theory:
        x, y = _density(spectrum, scale)
        series.append(Series("line", x=tuple(x), y=tuple(y), label="predicted density", role="theory"))
        peak = max(peak, float(np.nanmax(y)))
        tops = tuple(outlier.singular_value for outlier in spectrum.outliers)
        if tops:
            names = tuple(f"{top:.3g}" for top in tops) if scale == "linear" else ()
            high = ((0.14 if names else 0.045) * peak,) * len(tops)
            series.append(
                Series("marks", x=tops, y=high, names=names, label="predicted outliers", role="theory")
            )
        low_end, high_end = (math.sqrt(edge) for edge in spectrum.edges)
        ends += [max(low_end, 0.01 * high_end), high_end, *tops]
    first = (list(theory) or list(draws))[0]
    return Panel(
        tuple(series),
        x_label=f"singular value of {MATRICES.get(first.of, first.of)}",
        y_label="share of eigenvalues per unit of log" if scale == "log" else "density",
        x_scale=scale,
        x_range=(0.85 * min(ends), 1.25 * max(ends)) if scale == "log" else None,
        y_range=(0.0, 1.12 * peak),
    )


def _bars(spectrum: Spectrum, bars: int | None, scale: str) -> tuple[Array, Array, float]:
    """Ends and heights of a histogram of singular values, and the largest of them."""
    draws = spectrum.details["eigenvalues"]
    values = np.concatenate(draws)
    values = np.sqrt(values[values > 1e-11 * values.max()])
    total = (len(draws[0]) + spectrum.details["zeros"]) * len(draws)
    inside = values[values**2 <= spectrum.edges[1]]
    if scale == "log":
        number = bars or int(np.clip(1.5 * len(inside) ** (1 / 3) + 12, 14, 60))
        width = math.log(inside.max() / inside.min()) / number
        count = math.ceil(math.log(values.max() / inside.min()) / width) + 1
        places = inside.min() * np.exp(width * np.arange(count + 1))
    else:
        width = math.sqrt(spectrum.edges[1]) / (bars or LINEAR_BARS)
        places = np.arange(0, values.max() + 2 * width, width)
    return places, np.histogram(values, bins=places)[0] / (total * width), float(values.max())


def _density(spectrum: Spectrum, scale: str) -> tuple[list[float], list[float]]:
    """The predicted density of the singular value, or of its logarithm, piece by piece with gaps between."""
    x: list[float] = []
    y: list[float] = []
    for low, high in spectrum.intervals:
        own = (spectrum.x > low) & (spectrum.x < high)
        at = spectrum.x[own]
        heights = 2 * (at if scale == "log" else np.sqrt(at)) * spectrum.density[own]
        x += [math.nan, math.sqrt(max(low, float(at[0]))), *np.sqrt(at), math.sqrt(high)]
        y += [math.nan, 0.0 if low > 0 else float(heights[0]), *heights, 0.0]
    return x, y


@dataclass(frozen=True)
class _Along:
    """Spectra along an axis of steps: the step exponent, or its size."""

    exponents: bool

    def place(self, spectrum: Spectrum) -> float:
        if not self.exponents:
            return spectrum.step_size
        return float(spectrum.sizes.step_exponent(spectrum.step_size))

    def ordered(self, spectra: Sequence[Spectrum]) -> list[Spectrum]:
        return sorted(spectra, key=lambda spectrum: spectrum.step_size)

    @property
    def label(self) -> str:
        return AXES["step_exponent" if self.exponents else "step_size"]

    def marks(self, places: Sequence[float], wanted: Mapping[str, float] | None) -> list[Series]:
        """Thresholds; unless given, those in the limit that lie within what is shown."""
        if wanted is None:
            shown = THRESHOLDS if self.exponents else {}
            wanted = {name: at for name, at in shown.items() if min(places) < at < max(places)}
        return [Series("vlines", x=tuple(wanted.values()), names=tuple(wanted), role="threshold")]

    def range(self, places: Sequence[float]) -> tuple[float, float]:
        """A little more than what is shown."""
        margin = 0.03 * (max(places) - min(places) or 1.0)
        return min(places) - margin, max(places) + margin

    def lines(self, spectra: Sequence[Spectrum], rank: int, name: str) -> tuple[Series, Series]:
        """Predicted singular value of an outlier, and the overlap of its vector, from where it leaves the bulk."""
        ordered = self.ordered(spectra)
        places = [self.place(spectrum) for spectrum in ordered]
        there = [spectrum for spectrum in ordered if len(spectrum.outliers) > rank]
        at = [self.place(spectrum) for spectrum in there]
        tops = [spectrum.outliers[rank].singular_value for spectrum in there]
        shares = [spectrum.outliers[rank].overlaps.get(name, math.nan) for spectrum in there]
        if (start := _leaves(places, at, shares)) is not None:
            # At the critical step the spike is on the edge, and its vector knows nothing yet.
            edges = [math.sqrt(spectrum.edges[1]) for spectrum in ordered]
            at, shares = [start, *at], [0.0, *shares]
            tops = [float(np.interp(start, places, edges)), *tops]
        return Series("line", x=tuple(at), y=tuple(tops)), Series("line", x=tuple(at), y=tuple(shares))

    def points(self, spectra: Sequence[Spectrum], rank: int, name: str) -> tuple[Series, Series]:
        """The same of simulated spectra, means with standard errors."""
        there = [spectrum for spectrum in self.ordered(spectra) if len(spectrum.outliers) > rank]
        at = tuple(self.place(spectrum) for spectrum in there)
        tops = [np.sqrt(spectrum.details["samples"][:, rank]) for spectrum in there]
        shares = [
            np.array(
                [one[rank].get(name, math.nan) for one in spectrum.details["overlaps"] if len(one) > rank]
            )
            for spectrum in there
        ]
        return _means(at, tops), _means(at, shares)


def _means(at: tuple[float, ...], samples: Sequence[Array]) -> Series:
    """Means with their standard errors."""
    means = tuple(float(sample.mean()) if len(sample) else math.nan for sample in samples)
    return Series("points", x=at, y=means, error=tuple(mean_error(sample) for sample in samples))


def _leaves(places: Sequence[float], at: Sequence[float], shares: Sequence[float]) -> float | None:
    """Where a spike leaves the bulk: its overlap grows from zero, at first in proportion to the distance from there.

    None where it is outside from the first step size on, or where two points do not tell.
    """
    if len(at) < 2 or at[0] == places[0] or not shares[1] > shares[0]:
        return None
    before = places[list(places).index(at[0]) - 1]
    place = at[0] - shares[0] * (at[1] - at[0]) / (shares[1] - shares[0])
    return float(min(max(place, before), at[0] - 1e-9))


def ladder(
    predicted: Sequence[Spectrum],
    simulated: Sequence[Spectrum] = (),
    *,
    names: Sequence[str] = (),
    exponents: bool = True,
    thresholds: Mapping[str, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Singular values outside the bulk against the step, predicted lines through simulated points, above the bulk.

    Parameters
    ----------
    predicted : sequence of Spectrum
        On a fine grid of positive step sizes (`predict_spectrum` takes a third of a second each; 20 points are enough).
    simulated : sequence of Spectrum
        From one call of `simulate_spectrum` with several step sizes, ``bulk=False``.
    names : sequence of str
        One overlap for each outlier that is followed, which a second panel shows: ``"h1"``, ``"z2"``, ``"beta"`` …;
        without, all outliers are shown and no overlaps.
    exponents : bool
        Whether the axis shows step exponents, or step sizes.
    thresholds : mapping of str to float, optional
        Places to mark; the entry of the second, third and fourth spike in the limit when not given.
    title : str, optional
        Made from the problem and the sizes when not given.
    """
    every = [*predicted, *simulated]
    if not every:
        raise ValueError("ladder needs at least one spectrum")
    along = _Along(exponents)
    places = [along.place(spectrum) for spectrum in every]
    values, shares = along.marks(places, thresholds), along.marks(places, thresholds)
    ordered = along.ordered(predicted)
    if ordered:
        x = tuple(along.place(spectrum) for spectrum in ordered)
        low, high = (tuple(math.sqrt(max(s.edges[i], 0.0)) for s in ordered) for i in range(2))
        values.append(Series("band", x=x, y=low, upper=high, label="predicted bulk", role="linear"))
    most = len(names) or max(len(spectrum.outliers) for spectrum in every)
    for rank in range(most):
        role = f"setting{rank % 8 + 1}"
        name = names[rank] if names else ""
        spike = f"spike {rank + 1}"
        # Both panels have the same colours: with overlaps, these say which spike is meant.
        labels = ("", f"{spike} with {OVERLAPS.get(name, name)}") if names else (spike, "")
        for panel, line, label in zip(
            (values, shares), along.lines(predicted, rank, name), labels, strict=True
        ):
            panel.append(replace(line, label=label, role=role))
        for panel, points in zip((values, shares), along.points(simulated, rank, name), strict=True):
            panel.append(replace(points, role=role))
    edge = min(math.sqrt(spectrum.edges[1]) for spectrum in every)
    top = max((o.singular_value for s in every for o in s.outliers[:most]), default=2 * edge)
    what, side = MATRICES.get(every[0].of, every[0].of), SIDES.get(every[0].of, "vectors")
    frame = Panel((), x_label=along.label, x_range=along.range(places))
    label, reach = f"singular values of {what}", (edge / 2, 1.3 * top)
    panels = [replace(frame, series=tuple(values), y_label=label, y_scale="log", y_range=reach)]
    if names:
        label = f"squared overlap of {side}"
        panels.append(replace(frame, series=tuple(shares), y_label=label, y_range=(-0.03, 1.05)))
    return Figure(
        title or _title(every[0], step=False),
        tuple(panels),
        "Singular values outside the bulk against the step. Dotted: where a further spike enters in the limit.",
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
    along = _Along(exponents=True)
    places = [along.place(spectrum) for spectrum in every]
    panels = []
    for rank in shown:
        series = along.marks(places, None)
        for index, name in enumerate(names):
            role = f"setting{index + 1}"
            line, points = along.lines(predicted, rank, name)[1], along.points(simulated, rank, name)[1]
            series += [replace(line, label=OVERLAPS.get(name, name), role=role), replace(points, role=role)]
        series.append(Series("line", label="predicted", role="linear"))
        if simulated:
            series.append(Series("points", label="simulated ± 1 standard error", role="linear"))
        panels.append(
            Panel(
                tuple(series),
                x_label=along.label,
                y_label="squared overlap",
                title=f"outlier {rank + 1}" if len(shown) > 1 else "",
                x_range=along.range(places),
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
        For each panel its title and results of `firststep.simulate.spectra.feature_distances` at growing n.
    step : int
        Which of their step sizes.
    title : str
        Above all panels.
    """
    panels = []
    for name, results in settings.items():
        ordered = sorted(results, key=lambda pair: pair[0])
        series = []
        names = ordered[0][1].names
        for j, (what, role) in enumerate(zip(names, setting_roles(len(names), ordered=True), strict=True)):
            level = what.removeprefix("spiked")
            x = tuple(float(n) for n, _ in ordered)
            y = tuple(float(found.mean[step, j]) for _, found in ordered)
            error = tuple(float(np.nan_to_num(found.stderr[step, j])) for _, found in ordered)
            series += [
                # Without a spike of that degree two lines coincide: both must be seen.
                Series("line", x=x, y=y, role=role, label=f"ℓ = {level}", style=STYLES[j % len(STYLES)]),
                Series("points", x=x, y=y, error=error, role=role),
            ]
        panels.append(
            Panel(
                tuple(series),
                x_label=AXES["n_samples"],
                y_label="‖F − Fₗ‖ / √n",
                title=name,
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
        For each line its name and critical steps, for instance from `firststep.critical_steps` or
        `firststep.theory.limits.weights.critical_step`; infinite ones are gaps.
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
