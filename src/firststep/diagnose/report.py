"""What `diagnose` found, as text, JSON and a page."""

import html
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from firststep.diagnose.curve import LearningCurve
from firststep.diagnose.measure import MODELS
from firststep.diagnose.numbers import Number, plain
from firststep.figures import Figure

WORDS = {
    "linear_ridge": "linear ridge",
    "random_features": "random features",
    "one_step": "with steps",
}


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found.

    All errors are mean squared errors over the variance of the target: 1 is no better than its mean.

    Attributes
    ----------
    verdict : str
        The answer in plain words.
    target : str
        Name of the target.
    classes : tuple of str
        Classes of the target, none for a number.
    unit : float
        Standard deviation of the target: root errors times this are in its own unit.
    n_samples, n_inputs : int
        Rows and columns used.
    linear_strength : Number
        Share of the target's variance that is linear in the inputs, corrected for the number of inputs.
    noise_floor : Number
        Share of the variance that no function of the learned direction explains.
    effective_dimension : float
        How many equally strong uncorrelated inputs would have correlations of the same total size.
    excess_kurtosis : float
        Median over the columns; 0 for a Gaussian.
    norm_spread : float
        Variance of the squared norm of an input over that of an isotropic Gaussian of the effective dimension: 1 there.
    direction : tuple of (str, float)
        Columns with the largest coefficients of the learned direction, on standardised inputs.
    degrees : tuple of Number
        Hermite coefficients of degree 1 … 4 of the target along the learned direction, normalised: their squares
        are shares of variance, before the correction for the direction's own error.
    teacher : tuple of float
        Hermite coefficients c*_0, c*_1, … of the teacher that the theory is asked about.
    measured : mapping of str to Number
        Cross-validated errors of `linear_ridge`, `random_features`, `one_step`.
    gain : Number
        Measured fall in error from random features to one step, paired.
    gain_over_linear : Number
        The same from linear ridge to one step.
    wrong : mapping of str to Number
        Shares of wrong classes of the three; empty if the target is a number.
    predicted : mapping of str to Number
        The theory's errors; empty if it has no answer, or does not describe these data.
    step_size, step_share : float
        Median step size that the estimator took, and the share of the folds in which it took one.
    notes : tuple of str
        What was done to the data, and where they are not what the theory assumes.
    figure : Figure
        Target against the learned direction; errors measured and predicted.
    curve : LearningCurve, optional
        What more data would buy, if that was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from firststep import diagnose
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 10))
    >>> found = diagnose(X, X[:, 0] + 0.1 * rng.standard_normal(300), width=40, repeats=1)
    >>> found.measured["linear_ridge"].value < 0.1
    True
    """

    verdict: str
    target: str
    classes: tuple[str, ...]
    unit: float
    n_samples: int
    n_inputs: int
    linear_strength: Number
    noise_floor: Number
    effective_dimension: float
    excess_kurtosis: float
    norm_spread: float
    direction: tuple[tuple[str, float], ...]
    degrees: tuple[Number, ...]
    teacher: tuple[float, ...]
    measured: Mapping[str, Number]
    gain: Number
    gain_over_linear: Number
    wrong: Mapping[str, Number]
    predicted: Mapping[str, Number]
    step_size: float
    step_share: float
    notes: tuple[str, ...]
    figure: Figure = field(repr=False)
    curve: LearningCurve | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able numbers and sentences, without the figure."""
        found = asdict(
            replace(
                self,
                measured=dict(self.measured),
                wrong=dict(self.wrong),
                predicted=dict(self.predicted),
                curve=None,
            )
        )
        del found["figure"]
        found["r2"] = {model: 1 - number.value for model, number in self.measured.items()}
        found["curve"] = None if self.curve is None else self.curve.to_dict()
        return {name: plain(value) for name, value in found.items()}

    def to_text(self) -> str:
        """The report for a terminal."""
        lines = [self.verdict, "", f"{self.n_samples} samples, {self.n_inputs} inputs; target {self.target}"]
        lines += [f"note: {note}" for note in self.notes] + [""]
        lines += [f"{name:<28}{value}" for name, value in self._facts()]
        own = "wrong" if self.classes else "in its unit"
        head = f"{'error / variance of target':<28}{'measured':<20}{'R²':<8}{own:<14}"
        lines += ["", head + ("theory" if self.predicted else "")]
        for model in MODELS:
            theory = str(self.predicted[model]) if model in self.predicted else ""
            found = self.measured[model]
            lines.append(
                f"{WORDS[model]:<28}{found!s:<20}{1 - found.value:<8.3f}{self.own(model):<14}{theory}".rstrip()
            )
        if self.curve is not None:
            lines += ["", self.curve.to_text()]
        return "\n".join(lines)

    def own(self, model: str) -> str:
        """What the error means for the target itself: in its unit, or as a share of wrong classes."""
        return f"{self.wrong[model].value:.1%}" if self.classes else f"{self.root(model):.4g}"

    def root(self, model: str) -> float:
        """Root mean squared error of a model in the target's own unit."""
        return self.unit * math.sqrt(max(self.measured[model].value, 0.0))

    def to_html(self) -> str:
        """The report as one page that needs no network; with the figure, if matplotlib is installed."""
        try:
            from firststep.figures import render

            # Everything before the element itself is for a file of its own.
            picture = render(self.figure, "svg").decode()
            picture = picture[picture.index("<svg") :]
        except ImportError:
            picture = "<p>The figure needs matplotlib: install firststep[plot].</p>"
        facts = "".join(
            f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in self._facts()
        )
        rows = "".join(
            f"<tr><th>{_text(WORDS[model])}</th><td>{_text(self.measured[model])}</td>"
            f"<td>{1 - self.measured[model].value:.3f}</td><td>{self.own(model)}</td>"
            f"<td>{_text(self.predicted[model]) if model in self.predicted else '–'}</td></tr>"
            for model in MODELS
        )
        notes = "".join(f"<li>{_text(note)}</li>" for note in self.notes)
        columns = "".join(
            f"<tr><th>{_text(name)}</th><td>{value:+.2f}</td></tr>" for name, value in self.direction
        )
        return _PAGE.format(
            title=_text(f"One gradient step on {self.target}"),
            verdict=_text(self.verdict),
            size=f"{self.n_samples} samples, {self.n_inputs} inputs",
            own="wrong classes" if self.classes else "root error, in its unit",
            rows=rows,
            facts=facts,
            columns=columns,
            notes=f"<h2>What was done</h2><ul>{notes}</ul>" if notes else "",
            curve=f"<pre>{_text(self.curve.to_text())}</pre>" if self.curve is not None else "",
            picture=picture,
        )

    def _repr_html_(self) -> str:
        return f"<pre>{_text(self.to_text())}</pre>"

    def __str__(self) -> str:
        return self.to_text()

    def _facts(self) -> list[tuple[str, str]]:
        shown = ", ".join(f"{name} {value:+.2f}" for name, value in self.direction[:3])
        profile = "; ".join(f"{k}: {value}" for k, value in enumerate(self.degrees, 1))
        return [
            ("linear part", f"{self.linear_strength} of the variance"),
            ("noise floor", f"{self.noise_floor} of the variance (along the learned direction)"),
            ("effective dimension", f"{self.effective_dimension:.3g} of {self.n_inputs}"),
            ("excess kurtosis of inputs", f"{self.excess_kurtosis:.2g} (Gaussian: 0)"),
            ("spread of |x|²", f"{self.norm_spread:.2g} (isotropic Gaussian: 1)"),
            ("learned direction", shown),
            ("Hermite degrees", profile),
            ("step", f"taken in {self.step_share:.0%} of the folds"),
        ]


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1f2328; background: #fff; }}
.verdict {{ font-size: 1.2rem; border-left: 4px solid #0072b2; padding-left: 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ text-align: left; padding: .25rem 1rem .25rem 0; border-bottom: 1px solid #e8eaed; vertical-align: top; }}
th {{ font-weight: 600; }}
svg {{ width: 100%; height: auto; }}
</style></head><body>
<h1>{title}</h1>
<p class="verdict">{verdict}</p>
<p>{size}. Errors are mean squared errors over the variance of the target, ± one standard error.</p>
<table><tr><th>model</th><th>measured</th><th>R²</th><th>{own}</th><th>theory</th></tr>{rows}</table>
{picture}
{curve}
<h2>The data</h2>
<table>{facts}</table>
<h2>The learned direction</h2>
<table>{columns}</table>
{notes}
</body></html>
"""


def _text(value: object) -> str:
    return html.escape(str(value))
