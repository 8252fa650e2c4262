"""What ``result.plot()`` draws: the figure of an outcome, of a comparison, of a spectrum."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from firststep.figures.errors import SOURCES, errors_against_step, problem_text, sizes_text
from firststep.figures.figure import Figure, Panel, Series, draw, floats, render
from firststep.figures.spectra import histogram
from firststep.figures.words import WORDS
from firststep.results import Outcome, Spectrum

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ERRORS = ("train_error", "test_error")


def figure_of(result: Any, **options: Any) -> Figure:
    """The figure of a result, as plain data.

    An outcome or a comparison against the step exponent, or against the ridge if there is one step size and several
    ridges; a spectrum as histogram or density.
    """
    if isinstance(result, Spectrum):
        drawn = result.source == "simulation"
        return histogram(simulated=result, **options) if drawn else histogram(result, **options)
    outcomes = [result] if isinstance(result, Outcome) else [*result.predicted.values(), result.simulated]
    first = outcomes[0]
    if first.next_step_sizes.size:
        raise ValueError(
            "plot draws a single step: take the numbers of several from to_dataframe() or to_xarray()"
        )
    if len(first.step_sizes) == 1 and len(first.ridges) > 1:
        return errors_against_ridge(outcomes, **options)
    return errors_against_step(outcomes, **options)


def errors_against_ridge(outcomes: Sequence[Outcome], *, quantities: Sequence[str] = ERRORS) -> Figure:
    """Errors at one step size against the ridge, a panel for each quantity: theories lines, simulations points."""
    panels = []
    for name in quantities:
        series = []
        for outcome in sorted(outcomes, key=lambda one: one.source == "simulation"):
            order = np.argsort(outcome.ridges)
            shape = (1, len(order))
            drawn = outcome.source == "simulation"
            error = outcome.stderr.get(name) if drawn else None
            series.append(
                Series(
                    "points" if drawn else "line",
                    x=floats(outcome.ridges[order]),
                    y=floats(np.broadcast_to(outcome.values[name], shape)[0, order]),
                    error=() if error is None else floats(np.broadcast_to(error, shape)[0, order]),
                    label=SOURCES.get(outcome.source, outcome.source),
                    role={"simulation": "simulation", "staircase": "staircase"}.get(outcome.source, "theory"),
                )
            )
        words = WORDS.get(name, name.replace("_", " "))
        panels.append(Panel(tuple(series), x_label="ridge λ", y_label=words, x_scale="log"))
    title = f"{problem_text(outcomes[0])}\n{sizes_text(outcomes[0])}, η = {outcomes[0].step_sizes[0]:.3g}"
    return Figure(title, tuple(panels), "Errors of the ridge fit after one gradient step, against the ridge.")


def plot(result: Any, ax: Any = None, *, theme: str = "light", **options: Any) -> "Axes | tuple[Axes, ...]":
    """Draw a result into the given axes, or into new ones of pyplot's, which a notebook then shows."""
    if ax is not None and np.ndim(np.asarray(ax, dtype=object)) == 0 and not isinstance(result, Spectrum):
        # One pair of axes holds one quantity.
        options.setdefault("quantities", ("test_error",))
    figure = figure_of(result, **options)
    if ax is None:
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError("plot needs matplotlib: install firststep[plot]") from error
        count = len(figure.panels)
        canvas, ax = plt.subplots(1, count, figsize=(5.0 * count, 4.2), layout="constrained")
        canvas.suptitle(figure.title.replace("$", r"\$"), fontsize="medium")
    axes = draw(figure, cast("Axes", ax), theme=theme)
    return axes[0] if len(axes) == 1 else axes


def picture(result: Any) -> str:
    """A result as SVG."""
    return render(figure_of(result), "svg", width=6.5).decode()
