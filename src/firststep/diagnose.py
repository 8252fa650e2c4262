"""Would one gradient step help on these data? Measured by cross-validation, and predicted by the theory."""

import difflib
import html
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from firststep.figures import Figure, Panel, Series
from firststep.gaussian import Array, hermite_polynomials
from firststep.problem import Problem, Sizes

if TYPE_CHECKING:
    import pandas as pd

MODELS = ("linear_ridge", "random_features", "one_step")
WORDS = {
    "linear_ridge": "linear ridge",
    "random_features": "random features",
    "one_step": "one gradient step",
}
FEWEST_ROWS = 20
# Rows beyond this are not used: the answer would be the same, and take longer.
MOST_ROWS = 20_000
# A text column becomes one column of 0 and 1 for each of its values, if there are no more than this.
MOST_LEVELS = 20
# Names in a message.
MOST_NAMES = 20
DEGREES = 4
BINS = 24
# A number of standard errors that is taken as a difference.
CLEAR = 2.0
# Steps, in units of sqrt(N), and ridges among which the theory's best is looked for.
THEORY_STEPS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0)
THEORY_RIDGES = tuple(np.geomspace(1e-4, 10.0, 11).tolist())


@dataclass(frozen=True)
class Number:
    """An estimate with its standard error, which is NaN where there is none."""

    value: float
    stderr: float = math.nan

    def __str__(self) -> str:
        if not math.isfinite(self.stderr):
            return f"{self.value:.3g}"
        digits = min(6, max(0, 1 - math.floor(math.log10(self.stderr)))) if self.stderr > 0 else 3
        return f"{self.value:.{digits}f} ± {self.stderr:.{digits}f}"


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
    predicted : mapping of str to Number
        The theory's errors; empty if it has no answer.
    step_size, predicted_step_size : float
        Median step size that the estimator took, and the theory's best among those tried.
    notes : tuple of str
        What was done to the data, and where they are not what the theory assumes.
    figure : Figure
        Target against the learned direction; errors measured and predicted.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 10))
    >>> found = diagnose(X, X[:, 0] + 0.1 * rng.standard_normal(300), width=40, repeats=1)
    >>> found.measured["linear_ridge"].value < 0.1
    True
    """

    verdict: str
    target: str
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
    predicted: Mapping[str, Number]
    step_size: float
    predicted_step_size: float
    notes: tuple[str, ...]
    figure: Figure = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able numbers and sentences, without the figure."""
        plain = asdict(replace(self, measured=dict(self.measured), predicted=dict(self.predicted)))
        del plain["figure"]
        return {name: _plain(value) for name, value in plain.items()}

    def to_text(self) -> str:
        """The report for a terminal."""
        lines = [self.verdict, "", f"{self.n_samples} samples, {self.n_inputs} inputs; target {self.target}"]
        lines += [f"{name:<28}{value}" for name, value in self._facts()]
        lines += ["", f"{'error / variance of target':<28}{'measured':<20}{'theory'}"]
        for model in MODELS:
            theory = str(self.predicted[model]) if model in self.predicted else "–"
            lines.append(f"{WORDS[model]:<28}{self.measured[model]!s:<20}{theory}")
        if self.notes:
            lines += ["", *(f"note: {note}" for note in self.notes)]
        return "\n".join(lines)

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
            rows=rows,
            facts=facts,
            columns=columns,
            notes=f"<h2>Notes</h2><ul>{notes}</ul>" if notes else "",
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
            ("step size", f"{self.step_size:.3g} taken, theory's best {self.predicted_step_size:.3g}"),
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
<table><tr><th>model</th><th>measured</th><th>theory</th></tr>{rows}</table>
{picture}
<h2>The data</h2>
<table>{facts}</table>
<h2>The learned direction</h2>
<table>{columns}</table>
{notes}
</body></html>
"""


def _text(value: object) -> str:
    return html.escape(str(value))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(frozen=True, eq=False)
class _Data:
    inputs: Array
    target: Array
    names: tuple[str, ...]
    target_name: str
    notes: tuple[str, ...]


def read_table(path: str | PathLike[str]) -> "pd.DataFrame":
    """A CSV or Parquet file as a pandas data frame."""
    place = Path(path)
    kind = place.suffix.lower()
    if kind not in (".csv", ".tsv", ".parquet", ".pq"):
        raise ValueError(f"the data must be a .csv, .tsv or .parquet file, got {str(path)!r}")
    if not place.is_file():
        raise ValueError(f"there is no file {str(path)!r}")
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("reading tables needs pandas: install firststep[data]") from error
    try:
        if kind in (".csv", ".tsv"):
            return pd.read_csv(place, sep="\t" if kind == ".tsv" else ",")
        return pd.read_parquet(place)
    except ImportError as error:
        raise ImportError("reading Parquet needs pyarrow: install firststep[data]") from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{str(path)!r} cannot be read as a table: {error}") from error


def diagnose(
    X: Any,
    y: Any,
    *,
    width: int = 300,
    activation: str = "softplus",
    folds: int = 5,
    repeats: int = 2,
    random_state: int = 0,
) -> Diagnosis:
    r"""Whether one gradient step beats random features and linear ridge on these data.

    The errors of the three are measured by repeated cross-validation. The theory is asked about the same sizes, with
    the effective dimension for d and a teacher whose Hermite coefficients are read off along the learned direction z,
    from samples that did not learn it:

    .. math:: E[y\,H_k(z)]/\sqrt{k!} = \sqrt{k!}\,c^*_k\,r^k

    with r the cosine between the learned and the true direction [firststep].

    Parameters
    ----------
    X : array_like (n, d) or DataFrame
        Inputs. Text columns of a frame become 0/1 columns; rows with missing values are left out.
    y : array_like (n,) or str
        Target, a number or one of two classes; or the name of a column of `X`.
    width : int
        Neurons N of the networks.
    activation : str
        :math:`\sigma`.
    folds, repeats : int
        Of the cross-validation.
    random_state : int
        Source of the folds and networks.

    Returns
    -------
    Diagnosis
        Prints as text; `to_dict` and `to_html` give JSON and a page.

    Examples
    --------
    >>> inputs = np.random.default_rng(0).standard_normal((300, 30))
    >>> found = diagnose(inputs, np.tanh(2 * inputs[:, 0]), width=100, repeats=1)
    >>> found.gain.value > 0, found.direction[0][0]
    (True, 'x0')
    """
    data = _prepare(X, y)
    rng = np.random.default_rng(random_state)
    notes = list(data.notes)
    count = len(data.target)
    if count > MOST_ROWS:
        kept = np.sort(rng.choice(count, MOST_ROWS, replace=False))
        data = replace(data, inputs=data.inputs[kept], target=data.target[kept])
        notes.append(f"{MOST_ROWS} of {count} rows, drawn at random, are used")
        count = MOST_ROWS
    scaled = (data.inputs - data.inputs.mean(axis=0)) / data.inputs.std(axis=0)
    target = (data.target - data.target.mean()) / data.target.std()
    dim = scaled.shape[1]
    if count <= dim:
        notes.append(f"{count} samples are fewer than {dim} inputs: the linear part is a rough estimate")
    shape = _shape(scaled)
    linear = _linear_strength(scaled, target)
    splits = [_folds(data.inputs, folds, rng) for _ in range(repeats)]
    if len(np.unique(splits[0])) < 2:
        raise ValueError("all rows have the same inputs: there is nothing to learn from them")
    copies = count - len(np.unique(data.inputs, axis=0))
    if copies:
        notes.append(f"{copies} rows have the same inputs as another: copies always fall into one fold")
    measured = _measure(data.inputs, target, splits, width, activation, random_state)
    profile = _profile(scaled, target, splits, shape.effective_dimension, linear)
    notes += shape.notes()
    predicted, best_step, lines = _predict(profile, shape, count, width, activation, folds)
    notes += lines
    errors = {model: _mean(measured.squares[model]) for model in MODELS}
    gain = _mean(measured.squares["random_features"] - measured.squares["one_step"])
    over_linear = _mean(measured.squares["linear_ridge"] - measured.squares["one_step"])
    largest = np.argsort(-np.abs(profile.direction))[:8]
    found = Diagnosis(
        verdict="",
        target=data.target_name,
        n_samples=count,
        n_inputs=dim,
        linear_strength=linear,
        noise_floor=profile.noise,
        effective_dimension=shape.effective_dimension,
        excess_kurtosis=shape.excess_kurtosis,
        norm_spread=shape.norm_spread,
        direction=tuple((data.names[i], float(profile.direction[i])) for i in largest),
        degrees=profile.degrees,
        teacher=profile.teacher,
        measured=errors,
        gain=gain,
        gain_over_linear=over_linear,
        predicted=predicted,
        step_size=measured.step_size,
        predicted_step_size=best_step,
        notes=tuple(notes),
        figure=_figure(profile, target, errors, predicted, data.target_name),
    )
    return replace(found, verdict=_verdict(found))


def unknown_column(name: str, columns: Sequence[str]) -> str:
    """A sentence that says which columns there are, and which one may be meant.

    Examples
    --------
    >>> unknown_column("prize", ["price", "size"])
    "there is no column 'prize' (perhaps 'price'?); the columns are price, size"
    """
    close = difflib.get_close_matches(name, columns, n=1)
    meant = f" (perhaps {close[0]!r}?)" if close else ""
    rest = f" … ({len(columns)} in all)" if len(columns) > MOST_NAMES else ""
    return f"there is no column {name!r}{meant}; the columns are {', '.join(columns[:MOST_NAMES])}{rest}"


def _prepare(inputs: Any, target: Any) -> _Data:
    """Numbers without gaps, and a sentence about everything that was changed."""
    notes: list[str] = []
    name = "y"
    if hasattr(inputs, "columns"):
        if isinstance(target, str):
            if target not in inputs.columns:
                raise ValueError(unknown_column(target, [str(column) for column in inputs.columns]))
            name, inputs, target = target, inputs.drop(columns=[target]), inputs[target]
        else:
            name = str(getattr(target, "name", None) or "y")
        matrix, names = _encoded(inputs, notes)
    elif isinstance(target, str):
        raise ValueError(f"y={target!r} names a column, but X is not a data frame")
    else:
        try:
            matrix = np.asarray(inputs, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "X must hold numbers; pass a pandas data frame to have text columns encoded"
            ) from error
        if matrix.ndim != 2:
            raise ValueError(f"X must have two dimensions, (samples, inputs); got shape {matrix.shape}")
        names = tuple(f"x{i}" for i in range(matrix.shape[1]))
    values = _target(target, name, notes)
    if len(values) != len(matrix):
        raise ValueError(f"X has {len(matrix)} rows and y has {len(values)}: they must be equally many")
    gaps = (~np.isfinite(matrix)).sum(axis=0)
    hint = (
        f": the column {names[int(gaps.argmax())]!r} has {gaps.max()} gaps, leave it out"
        if gaps.any()
        else ""
    )
    good = np.isfinite(values) & np.isfinite(matrix).all(axis=1)
    if not good.all():
        notes.append(
            f"{int((~good).sum())} of {len(good)} rows have missing or infinite values and are left out"
        )
        matrix, values = matrix[good], values[good]
    if len(values) < FEWEST_ROWS:
        raise ValueError(f"at least {FEWEST_ROWS} complete rows are needed, got {len(values)}{hint}")
    if np.ptp(values) <= 1e-13 * np.abs(values).max():
        raise ValueError(f"the target {name!r} is constant: there is nothing to predict")
    spread = matrix.std(axis=0)
    varies = spread > 1e-13 * np.abs(matrix).max(axis=0, initial=0.0)
    if not varies.all():
        dropped = [names[i] for i in np.flatnonzero(~varies)]
        notes.append(f"constant columns are left out: {', '.join(dropped[:10])}{' …' * (len(dropped) > 10)}")
        matrix, names = matrix[:, varies], tuple(names[i] for i in np.flatnonzero(varies))
    if not names:
        raise ValueError("no input varies: there is nothing to predict from")
    return _Data(matrix, values, names, name, tuple(notes))


def _encoded(frame: Any, notes: list[str]) -> tuple[Array, tuple[str, ...]]:
    """Numbers from a data frame: text of few values as columns of 0 and 1, text of many values left out."""
    columns: list[Array] = []
    names: list[str] = []
    dropped: list[str] = []
    for label in frame.columns:
        column = frame[label]
        if column.dtype.kind in "biuf":
            columns.append(np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan)))
            names.append(str(label))
            continue
        present = column.notna().to_numpy()
        words = column.astype(str).to_numpy()
        levels = sorted(set(words[present]))
        if column.dtype.kind in "mM" or len(levels) > MOST_LEVELS:
            dropped.append(str(label))
            continue
        # The first level is the one that all others are compared with.
        for level in levels[1:]:
            columns.append(np.where(present, (words == level).astype(float), np.nan))
            names.append(f"{label}={level}")
        if len(levels) > 1:
            notes.append(f"text column {str(label)!r} becomes {len(levels) - 1} columns of 0 and 1")
    if dropped:
        notes.append(
            f"columns with dates or more than {MOST_LEVELS} different texts are left out: {', '.join(dropped)}"
        )
    if not columns:
        raise ValueError("no column holds numbers or text of few values: there is nothing to predict from")
    return np.column_stack(columns), tuple(names)


def _target(target: Any, name: str, notes: list[str]) -> Array:
    if hasattr(target, "to_numpy"):
        numeric = target.dtype.kind in "iuf"
        raw = target.to_numpy(dtype=np.float64, na_value=np.nan) if numeric else target.to_numpy(dtype=object)
    else:
        raw = np.asarray(target)
    if raw.ndim == 2 and raw.shape[1] == 1:
        raw = raw[:, 0]
    if raw.ndim != 1:
        raise ValueError(f"y must have one dimension, got shape {raw.shape}: diagnose the targets one by one")
    if raw.dtype.kind in "iuf":
        return np.asarray(raw, dtype=np.float64)
    missing = np.array([value is None or value != value for value in raw], dtype=bool)
    words = np.array([str(value) for value in raw])
    levels = sorted(set(words[~missing]))
    if len(levels) != 2:
        raise ValueError(
            f"the target {name!r} is text with {len(levels)} different values: "
            "it must be a number or one of two classes"
        )
    notes.append(f"the target is -1 for {levels[0]} and 1 for {levels[1]}")
    return np.where(missing, np.nan, np.where(words == levels[1], 1.0, -1.0))


def _folds(inputs: Array, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Random folds in which equal rows stay together."""
    _, group = np.unique(inputs, axis=0, return_inverse=True)
    group = group.ravel()
    place = rng.permutation(int(group.max()) + 1)
    return np.asarray(place[group] % count, dtype=np.intp)


@dataclass(frozen=True)
class _Shape:
    """How far the inputs are from an isotropic Gaussian."""

    effective_dimension: float
    excess_kurtosis: float
    norm_spread: float
    dim: int

    def notes(self) -> list[str]:
        found = []
        if self.effective_dimension < 0.5 * self.dim:
            found.append(
                f"the inputs are correlated: like {self.effective_dimension:.3g} independent ones; "
                "the theory's numbers are for that many"
            )
        if self.excess_kurtosis > 3 or self.norm_spread > 4:
            found.append(
                "the inputs have heavier tails than the Gaussian of the theory: "
                "its numbers are a guide at best; consider transforming skewed columns"
            )
        return found


def _shape(scaled: Array) -> _Shape:
    """Effective dimension (tr C)^2/tr C^2, less the part of tr C^2 that n samples add, and two measures of tails."""
    count, dim = scaled.shape
    smaller = scaled @ scaled.T / count if count < dim else scaled.T @ scaled / count
    square = float((smaller**2).sum())
    effective = dim**2 / max(square - dim**2 / count, dim**2 / min(count, dim) ** 2, float(dim))
    norms = (scaled**2).sum(axis=1)
    kurtosis = float(np.median((scaled**4).mean(axis=0))) - 3
    return _Shape(
        float(np.clip(effective, 1.0, dim)), kurtosis, float(norms.var() / (2 * dim**2 / effective)), dim
    )


def _linear_strength(scaled: Array, target: Array) -> Number:
    """Variance that is linear in the inputs, for a target of variance one.

    With samples to spare it is the adjusted R^2 of least squares; else |b|^2 - d/n with b = X^T y/n, which takes the
    inputs to be uncorrelated.
    """
    count, dim = scaled.shape
    if count > 1.5 * dim + 1:
        residual = target - scaled @ np.linalg.lstsq(scaled, target, rcond=None)[0]
        explained = 1 - float(residual @ residual) / (count - dim - 1)
    else:
        pull = scaled.T @ target / count
        explained = (float(pull @ pull) - dim / count) * count / (count + 1)
    explained = float(np.clip(explained, 0.0, 1.0))
    spread = math.sqrt((4 * explained * (1 - explained) ** 2 + 2 * dim / count) / count)
    return Number(explained, spread)


@dataclass(frozen=True, eq=False)
class _Measured:
    squares: Mapping[str, Array]
    step_size: float


def _measure(
    inputs: Array,
    target: Array,
    splits: Sequence[NDArray[np.intp]],
    width: int,
    activation: str,
    seed: int,
) -> _Measured:
    """Squared errors of each sample, averaged over the repeats."""
    from firststep.estimator import OneStepRegressor

    squares = {model: np.zeros(len(target)) for model in MODELS}
    steps = []
    for repeat, folds in enumerate(splits):
        for fold in np.unique(folds):
            train, test = folds != fold, folds == fold
            common: dict[str, Any] = {"width": width, "activation": activation, "random_state": seed + repeat}
            models = {
                # The identity makes it ridge regression on the inputs, with the same choice of ridge.
                "linear_ridge": OneStepRegressor(
                    width=max(2 * inputs.shape[1], 10), activation="identity", step_size=0, random_state=seed
                ),
                "random_features": OneStepRegressor(step_size=0, **common),
                "one_step": OneStepRegressor(**common),
            }
            for name, model in models.items():
                model.fit(inputs[train], target[train])
                squares[name][test] += (target[test] - model.predict(inputs[test])) ** 2 / len(splits)
            steps.append(models["one_step"].step_size_)
    return _Measured(squares, float(np.median(steps)))


def _mean(values: Array) -> Number:
    return Number(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


@dataclass(frozen=True, eq=False)
class _Profile:
    """The target along the learned direction, on samples that did not learn it."""

    z: Array
    direction: Array
    degrees: tuple[Number, ...]
    teacher: tuple[float, ...]
    noise: Number


def _profile(
    scaled: Array, target: Array, splits: Sequence[NDArray[np.intp]], effective: float, linear: Number
) -> _Profile:
    from scipy.special import ndtri

    folds = splits[0]
    count = len(target)
    pulls = [(fold, scaled[folds != fold].T @ target[folds != fold]) for fold in np.unique(folds)]
    z = np.empty(count)
    for fold, pull in pulls:
        along = scaled[folds == fold] @ pull
        z[folds == fold] = along / (np.std(scaled[folds != fold] @ pull) or 1.0)
    direction = scaled.T @ target
    direction /= np.linalg.norm(direction) or 1.0
    # Ranks in place of values: the polynomials are orthogonal whatever the distribution of z.
    ranks = np.argsort(np.argsort(z, kind="stable"), kind="stable")
    normal = ndtri((ranks + 0.5) / count)
    basis = hermite_polynomials(normal, DEGREES + 1, normalised=True)[1:]
    degrees = tuple(_mean(target * row) for row in basis)
    # Cosine between learned and true direction, for the share of samples that learned it.
    learners = count * (1 - 1 / len(pulls))
    signal = max(linear.value, 1e-12)
    cosine = math.sqrt(signal / (signal + effective / learners))
    shares = []
    for k, found in enumerate(degrees, 1):
        # The linear part is known better from all inputs; others count where they are more than noise.
        share = math.sqrt(linear.value) if k == 1 else found.value / cosine**k
        shares.append(share if k == 1 or abs(found.value) > CLEAR * found.stderr else 0.0)
    total = sum(share**2 for share in shares)
    if total > 1:
        # More than all of the variance: the correction for the direction's error went too far.
        shares = [share / math.sqrt(total) for share in shares]
        total = 1.0
    spread = math.sqrt(
        linear.stderr**2 + sum((2 * s * d.stderr) ** 2 for s, d in zip(shares[1:], degrees[1:], strict=True))
    )
    teacher = (0.0, *(share / math.sqrt(math.factorial(k)) for k, share in enumerate(shares, 1)))
    return _Profile(z, direction, degrees, teacher, Number(1 - total, spread))


def _predict(
    profile: _Profile, shape: _Shape, count: int, width: int, activation: str, folds: int
) -> tuple[dict[str, Number], float, list[str]]:
    """The theory's best errors, with the change that one standard error of the teacher's size makes."""
    from firststep.fixedpoint import ConvergenceError
    from firststep.theory.bounds import best_linear_ridge
    from firststep.theory.unified import solve

    samples = max(2, round(count * (1 - 1 / folds)))
    sizes = Sizes(samples, max(1, round(shape.effective_dimension)), width)
    steps = np.array(THEORY_STEPS) * math.sqrt(width)

    def errors(noise: float) -> tuple[dict[str, float], float]:
        signal = math.sqrt(max(1 - noise, 0.0) / max(1 - profile.noise.value, 1e-12))
        series = [signal * c for c in profile.teacher]
        problem = Problem(activation, series, noise_std=math.sqrt(noise))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = solve(problem, sizes, steps, np.array(THEORY_RIDGES), tolerance=1e-2)
            linear = float(best_linear_ridge(problem, sizes).test_error[0])
        best = outcome.test_error.min(axis=1)
        # Nothing is ever worse than the mean, which a large ridge gives.
        found = {"linear_ridge": linear, "random_features": float(best[0]), "one_step": float(best.min())}
        return {name: min(value, 1.0) for name, value in found.items()}, float(steps[int(best.argmin())])

    if abs(profile.teacher[1]) < 1e-3:
        line = (
            "the inputs say nothing linear about the target: to leading order one step then gains nothing, "
            "but it can find the direction of an even target if there are many samples for each input"
        )
        return dict.fromkeys(MODELS, Number(1.0)), 0.0, [line]
    low, high = (
        float(np.clip(profile.noise.value + sign * profile.noise.stderr, 1e-3, 0.999)) for sign in (-1, 1)
    )
    try:
        middle, best_step = errors(float(np.clip(profile.noise.value, 1e-3, 0.999)))
        ends = [errors(low)[0], errors(high)[0]]
    except (ConvergenceError, ArithmeticError, np.linalg.LinAlgError) as error:
        return {}, math.nan, [f"the theory has no answer at these sizes ({error})"]
    lines = []
    if samples > sizes.dim**1.5:
        lines.append(
            f"{samples} samples are many for {sizes.dim} inputs: random features then learn more than the linear part "
            "that the theory gives them"
        )
    return (
        {model: Number(middle[model], abs(ends[1][model] - ends[0][model]) / 2) for model in MODELS},
        best_step,
        lines,
    )


def _verdict(found: Diagnosis) -> str:
    before, after = found.measured["random_features"], found.measured["one_step"]
    line, gain = found.measured["linear_ridge"], found.gain
    sentences = []
    seen = f"measured {before} without a step and {after} with it."
    if found.predicted:
        expected, still = found.predicted["one_step"], found.predicted["random_features"]
        if still.value - expected.value > 0.01:
            sentences.append(
                f"One step at eta = {found.predicted_step_size:.2g} is expected to lower the error from "
                f"{still} to {expected}; {seen}"
            )
        else:
            sentences.append(f"The theory expects no gain from a step; {seen}")
    else:
        sentences.append(seen.capitalize())
    if found.step_size == 0 and abs(gain.value) < CLEAR * gain.stderr + 1e-12:
        sentences.append("The estimator takes no step on these data: random features are as good.")
    elif gain.value > CLEAR * gain.stderr:
        sentences.append(f"One step helps: it lowers the error of random features by {gain}.")
    elif gain.value < -CLEAR * gain.stderr:
        sentences.append(
            f"One step hurts here: it raises the error of random features by {Number(-gain.value, gain.stderr)}."
        )
    else:
        sentences.append(f"The difference, {gain}, is within its noise.")
    over = found.gain_over_linear
    if over.value > CLEAR * over.stderr:
        sentences.append(f"It also beats linear ridge ({line}).")
    elif over.value < -CLEAR * over.stderr:
        sentences.append(f"Linear ridge is better still ({line}): use that.")
    else:
        sentences.append(f"Linear ridge ({line}) does as well within the noise, and is simpler.")
    return " ".join(sentences)


def _figure(
    profile: _Profile,
    target: Array,
    errors: Mapping[str, Number],
    predicted: Mapping[str, Number],
    name: str,
) -> Figure:
    order = np.argsort(profile.z)
    bins = np.array_split(order, min(BINS, len(order) // 8))
    centres = [float(profile.z[part].mean()) for part in bins]
    means = [_mean(target[part]) for part in bins]
    grid = np.linspace(centres[0], centres[-1], 101)
    ranks = np.interp(grid, np.sort(profile.z), (np.arange(len(order)) + 0.5) / len(order))
    from scipy.special import ndtri

    basis = hermite_polynomials(ndtri(ranks), DEGREES + 1, normalised=True)[1:]
    kept = [d.value if abs(d.value) > CLEAR * d.stderr else 0.0 for d in profile.degrees]
    curve = np.asarray(kept) @ basis
    shown = ", ".join(str(k) for k, value in enumerate(kept, 1) if value) or "none"
    along = Panel(
        (
            Series("line", x=tuple(grid), y=tuple(curve), label=f"Hermite degrees {shown}"),
            Series(
                "points",
                x=tuple(centres),
                y=tuple(m.value for m in means),
                error=tuple(m.stderr for m in means),
                label="means of samples that did not learn the direction",
                role="simulation",
            ),
        ),
        x_label="z, along the learned direction",
        y_label=f"{name} (standardised)",
    )
    places = tuple(float(i) for i in range(len(MODELS)))
    series = [
        Series(
            "points",
            x=places,
            y=tuple(errors[m].value for m in MODELS),
            error=tuple(errors[m].stderr for m in MODELS),
            label="measured ± 1 standard error",
            role="simulation",
        )
    ]
    if predicted:
        series.append(
            Series(
                "marks", x=places, y=tuple(predicted[m].value for m in MODELS), label="theory", role="theory"
            )
        )
    compared = Panel(
        tuple(series),
        y_label="error / variance of target",
        x_range=(-0.7, 2.7),
        x_names=tuple(WORDS[model] for model in MODELS),
    )
    return Figure(f"One gradient step on {name}", (along, compared))
