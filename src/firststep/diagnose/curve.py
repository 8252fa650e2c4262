"""What more data would buy: learning curves predicted from a table, beyond its size."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from firststep.diagnose.equivalent import Path, fixed_path
from firststep.diagnose.measure import folds_of, linear_strength, profile_of, shape_of
from firststep.diagnose.numbers import Expected, Number, plain
from firststep.diagnose.table import Table, prepare
from firststep.diagnose.trend import FEWEST, Trend, level
from firststep.figures import Figure, Panel, Series
from firststep.gaussian import Array, function

CURVES = {
    "linear_ridge": "linear ridge",
    "random_features": "random features",
    "one_step": "after a step",
}
# Rows beyond this are not used.
MOST_ROWS = 4000
FACTORS = (0.5, 1.0, 2.0, 4.0)
# Widths that are measured, over the one asked for.
WIDTHS = (0.5, 1.0, 2.0)
# How often the samples are halved to see the last doubling, few samples and many; and how many samples that takes.
DIVISIONS, DIVISIONS_OF_MANY, MANY, FEWEST_HALVED = 4, 2, 1500, 40
# Share of the rows of equal inputs that must have the same target to be taken for copies.
COPIED = 0.9
# Every so many places of the path a ridge is shown.
EVERY = 6
# The theory is asked up to this many inputs: more take minutes.
THEORY_INPUTS = 100
THEORY_RIDGES = np.geomspace(1e-4, 10.0, 11)
# The theory is shown if it meets the measured error to this share, and its own bar is no wider than this share.
BELIEVED, WIDEST = 0.15, 0.25


@dataclass(frozen=True)
class LearningCurve:
    """Errors that are expected for other numbers of samples, and for other widths and ridges.

    Attributes
    ----------
    n_samples : tuple of int
        Numbers of samples n.
    used : int
        Samples that the curve was read off from.
    errors : mapping of str to tuple of Expected
        Mean squared errors over the variance of the target, at the best ridge, for `linear_ridge`,
        `random_features` and `one_step`; `bar` is half of an interval that covers nine of ten, for the samples used and
        the curve's own error; `in_sight` is False where the samples cannot tell.
    widths : tuple of (int, Number)
        Errors of random features at the samples used for other widths, measured.
    wider : Number
        Fall in the error of random features at the samples used, if the network were twice as wide; measured, paired.
    ridges : tuple of (float, float, float)
        Ridge over the features' total variance, error of random features at the samples used (measured) and at twice
        as many (predicted).
    theory : tuple of Number
        What the theory of random features says for these n, with the table's own covariance, every degree, and a
        teacher read off along one direction; its error bar is its own. Empty if it was not asked.
    target : str
        Name of the target.
    limited : tuple of str
        Models some of whose errors for more samples lie beyond what these samples can tell.
    copies : int
        Copies of samples that play no part: leaving one out leaves the other in.
    figure : Figure
        The curves.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> inputs = rng.standard_normal((100, 3))
    >>> curve = learning_curve(inputs, inputs[:, 0] + rng.standard_normal(100), width=20, theory=False)
    >>> curve.used, sorted(curve.errors)
    (100, ['linear_ridge', 'one_step', 'random_features'])
    """

    n_samples: tuple[int, ...]
    used: int
    errors: Mapping[str, tuple[Expected, ...]]
    widths: tuple[tuple[int, Number], ...]
    wider: Number
    ridges: tuple[tuple[float, float, float], ...]
    theory: tuple[Number, ...]
    target: str
    limited: tuple[str, ...]
    copies: int
    figure: Figure = field(repr=False)

    def to_text(self) -> str:
        """A sentence and a table."""
        head = "n (± covers 9 of 10)"
        lines = [self.sentence(), "", f"{head:<22}" + _cells(self.n_samples)]
        for model, values in self.errors.items():
            lines.append(f"{CURVES[model]:<22}" + _cells(values))
        if self.theory:
            shown = f"{'theory, no step':<22}" + _cells(self.theory)
            lines.append(self._doubt() or shown)
        if self.limited:
            names = ", ".join(CURVES[model] for model in self.limited)
            lines.append(f"note: (?) {names}: out of sight, {self._why()}; take the number for a guess")
        if self.copies:
            lines.append(f"note: {self.copies} copies of rows play no part here")
        lines += ["", f"{'neurons (± 1 s.e.)':<22}" + _cells(width for width, _ in self.widths)]
        lines.append(f"{'random features':<22}" + _cells(value for _, value in self.widths))
        return "\n".join(line.rstrip() for line in lines)

    def sentence(self) -> str:
        """What twice the data and twice the width would buy."""
        if self.used not in self.n_samples or 2 * self.used not in self.n_samples:
            return f"Predicted from {self.used} samples of {self.target}."
        now, then = (self.n_samples.index(n) for n in (self.used, 2 * self.used))
        best = min(self.errors, key=lambda model: self.errors[model][now].value)
        before, after = self.errors[best][now], self.errors[best][then]
        told = f"Twice the data would take the error ({CURVES[best]}) from {before.value:.3g} to {after}"
        if not after.in_sight:
            told = f"What twice the data would do to the error ({CURVES[best]}, now {before.value:.3g}) is out of sight"
            told += f": {self._why()}"
        return f"{told}; twice the width would {_change(self.wider)}."

    def _why(self) -> str:
        """Why more samples are out of sight."""
        if self.used < FEWEST:
            return f"{self.used} samples are too few to tell"
        return "the error still falls fast, and these samples do not tell how far"

    def _doubt(self) -> str:
        """Why the theory is not shown; empty if it meets random features where they were measured."""
        if self.used not in self.n_samples:
            return ""
        now = self.n_samples.index(self.used)
        told, seen = self.theory[now], self.errors["random_features"][now]
        if told.stderr > WIDEST * told.value:
            return (
                f"note: the theory of random features is not shown: it knows its own error, {told}, too badly"
            )
        if abs(told.value - seen.value) > BELIEVED * seen.value + seen.bar:
            return (
                f"note: the theory of random features says {told} at {self.used} samples, measured {seen}: it does not "
                "describe this table"
            )
        return ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able numbers."""

        def listed(values: Sequence[Number | Expected]) -> list[dict[str, Any]]:
            return [asdict(number) for number in values]

        found = {
            "n_samples": list(self.n_samples),
            "used": self.used,
            "errors": {model: listed(values) for model, values in self.errors.items()},
            "widths": [{"width": width} | listed([value])[0] for width, value in self.widths],
            "wider": listed([self.wider])[0],
            "ridges": [dict(zip(("ridge", "now", "twice"), row, strict=True)) for row in self.ridges],
            "theory": listed(self.theory),
            "target": self.target,
            "copies": self.copies,
            "limited": list(self.limited),
        }
        return {name: plain(value) for name, value in found.items()}

    def __str__(self) -> str:
        return self.to_text()


def _cells(values: Iterable[object]) -> str:
    return "".join(f"{value!s:<23} " for value in values)


def _change(wider: Number) -> str:
    """A fall in words: how large, or below what."""
    most = abs(wider.value) + 2 * wider.stderr
    if abs(wider.value) > 2 * wider.stderr:
        verb = "lower" if wider.value > 0 else "raise"
        return f"{verb} that of random features by {Number(abs(wider.value), wider.stderr)}"
    return f"change that of random features by less than {most:.2g}"


def learning_curve(
    X: Any,
    y: Any,
    *,
    n_samples: Sequence[int] | None = None,
    width: int = 300,
    activation: str = "tanh",
    keep: Sequence[str] = (),
    theory: bool = True,
    random_state: int = 0,
) -> LearningCurve:
    """Errors of linear ridge, random features and features after a step, predicted for other numbers of samples.

    The features are fixed: each half of the samples takes steps, the curve after them is read off the other half, and
    more samples are given to the readout, not to the steps. So the curve after a step is rather too high.

    Parameters
    ----------
    X : array_like (n, d) or DataFrame
        Inputs, as `diagnose` takes them.
    y : array_like (n,) or str
        Target, or the name of a column of `X`.
    n_samples : sequence of int, optional
        Numbers of samples to predict for; without it half, once, twice and four times those used.
    width : int
        Neurons N.
    activation : str
        Activation.
    keep : sequence of str
        Columns that stay whatever they look like.
    theory : bool
        Whether the theory of random features is asked too; for one target and at most 100 inputs.
    random_state : int
        Source of the networks, and of the choice of rows beyond 4000.

    Returns
    -------
    LearningCurve
        Prints as text.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> inputs = rng.standard_normal((400, 20))
    >>> targets = inputs.sum(axis=1) + rng.standard_normal(400)
    >>> curve = learning_curve(inputs, targets, width=50, theory=False)
    >>> curve.n_samples
    (200, 400, 800, 1600)
    >>> round(curve.errors["linear_ridge"][3].value, 2)
    0.04
    """
    return curve_of(prepare(X, y, keep), n_samples, (width, activation), theory, random_state)


def curve_of(
    table: Table,
    n_samples: Sequence[int] | None,
    asked: tuple[int, str],
    theory: bool,
    random_state: int,
) -> LearningCurve:
    """The learning curve of a table that is prepared, for a width and an activation."""
    from firststep.estimator.step import Sample

    rng = np.random.default_rng(random_state)
    once = _once(table)
    rows = once[np.sort(rng.permutation(len(once))[:MOST_ROWS])]
    inputs, targets = table.inputs[rows], table.targets[rows]
    inputs = (inputs - inputs.mean(axis=0)) / np.where(inputs.std(axis=0) > 0, inputs.std(axis=0), np.inf)
    spread = math.sqrt(float(targets.var(axis=0).mean()))
    sample = Sample(inputs, (targets - targets.mean(axis=0)) / spread, np.ones(len(inputs)))
    count = len(inputs)
    sizes = tuple(int(n) for n in n_samples or [round(count * factor) for factor in FACTORS])
    if min(sizes) < 2:
        raise ValueError(f"n_samples must be at least 2, got {min(sizes)}")
    read = read_paths(sample, asked, rng)
    trends = {model: read.trend(model) for model in CURVES}
    found = {model: tuple(trend.at(size) for size in sizes) for model, trend in trends.items()}
    limited = tuple(model for model, values in found.items() if not all(value.in_sight for value in values))
    told: tuple[Number, ...] = ()
    if theory and targets.shape[1] == 1 and inputs.shape[1] <= THEORY_INPUTS:
        told = _theory(inputs, sample.targets[:, 0], sizes, asked, rng)
    return LearningCurve(
        n_samples=sizes,
        used=count,
        errors=found,
        widths=tuple((width, _error(path)) for width, path in read.widths.items()),
        wider=_paired(read.widths[asked[0]], read.widths[2 * asked[0]]),
        ridges=_ridges(read.paths["random_features"][0]),
        theory=told,
        target=table.target_name,
        limited=limited,
        copies=len(table.inputs) - len(once),
        figure=_figure(sizes, found, told, table.target_name),
    )


def _once(table: Table) -> NDArray[np.intp]:
    """Places of the rows without copies; all, if rows of equal inputs mostly differ in their target."""
    inputs = np.unique(table.inputs, axis=0, return_inverse=True)[1].ravel()
    whole = np.unique(np.column_stack([inputs, table.targets]), axis=0, return_index=True)[1]
    alike = len(inputs) - (int(inputs.max()) + 1)
    if len(inputs) - len(whole) < COPIED * alike:
        return np.arange(len(inputs))
    return np.sort(whole)


@dataclass(frozen=True, eq=False)
class Read:
    """Paths of each model on all samples, its error at half of them, and random features of other widths."""

    used: int
    paths: Mapping[str, list[Path]]
    half: Mapping[str, float]
    widths: Mapping[int, Path]

    def trend(self, model: str) -> Trend:
        """The curve of a model."""
        return Trend(self.paths[model], self.half[model], self.used)


def read_paths(sample: Any, asked: tuple[int, str], rng: np.random.Generator) -> Read:
    """All ridge fits of linear ridge, of random features at their best scale, and of features after a step."""
    from firststep.estimator.directions import still
    from firststep.estimator.step import Network

    (width, activation), (count, dim) = asked, sample.inputs.shape
    sigma = function(activation)
    weights, biases = rng.standard_normal((2 * width, dim)) / math.sqrt(dim), rng.standard_normal(2 * width)

    def drawn(neurons: int) -> Network:
        return Network(weights[:neurons], biases[:neurons], np.ones((neurons, 1)), sigma)

    models = _models(sample, drawn(width), rng)
    scale, paths = models.scale, models.paths()
    # Neurons of the narrower networks are among those of the wider ones: so the differences are paired.
    others = {
        neurons: fixed_path(still(dim).move(drawn(neurons), 0.0, scale), sample)
        for neurons in (max(1, width // 2), 2 * width)
    }
    half = _half(sample, drawn(width), rng)
    widths = dict(sorted((others | {width: paths["random_features"][0]}).items()))
    return Read(count, paths, half, widths)


def _half(sample: Any, start: Any, rng: np.random.Generator) -> dict[str, float]:
    """Error of each model at half of the samples, measured.

    Each half is judged by leave-one-out and on the other half. Errors of all halves are averaged before the best ridge
    and scale are taken: the lowest of few noisy errors would be too low.
    """
    count = len(sample.inputs)
    if count < FEWEST_HALVED:
        return dict.fromkeys(CURVES, math.nan)
    found = []
    for _ in range(DIVISIONS if count < MANY else DIVISIONS_OF_MANY):
        halves = [sample.at(rows) for rows in _halved(count, rng)]
        found += [_models(one, start, rng, other) for one, other in (halves, halves[::-1])]
    return {
        "linear_ridge": _lowest([[models.linear] for models in found]),
        "random_features": _lowest([models.random for models in found]),
        "one_step": float(np.mean([level(models.stepped, count / 2) for models in found])),
    }


def _lowest(tried: Sequence[Sequence[Path]]) -> float:
    """Lowest error over ridges and candidates, averaged over samples (each with all candidates) before."""
    errors = [[(path.errors + cast(Array, path.outside)) / 2 for path in paths] for paths in tried]
    return float(np.mean(errors, axis=0).min())


def _halved(count: int, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of two random halves."""
    half = rng.permutation(count) % 2 == 0
    return np.flatnonzero(half), np.flatnonzero(~half)


@dataclass(frozen=True, eq=False)
class _Models:
    """Paths on one sample: linear ridge, random features of all scales, features that halves have taught each other."""

    linear: Path
    random: list[Path]
    stepped: list[Path]
    scale: float

    def paths(self) -> dict[str, list[Path]]:
        """Those of each model, of random features at their best scale."""
        best = min(self.random, key=lambda path: float(path.errors.min()))
        return {"linear_ridge": [self.linear], "random_features": [best], "one_step": self.stepped}


def _models(sample: Any, start: Any, rng: np.random.Generator, others: Any = None) -> _Models:
    """The paths of each model on a sample; those of fixed features are tried on others, too."""
    from firststep.estimator.directions import still
    from firststep.estimator.family import ONWARD, SCALES
    from firststep.estimator.step import Network, metric

    count, dim = sample.inputs.shape
    linear = Network(np.eye(dim), np.zeros(dim), np.ones((dim, 1)), function("identity"))
    paths = [fixed_path(still(dim).move(start, 0.0, scale), sample, others) for scale in SCALES]
    place = int(np.argmin([path.errors.min() for path in paths]))
    halves = [sample.at(rows) for rows in _halved(count, rng)]
    stepped = []
    for taker, fitter in (halves, halves[::-1]):
        directions = _taught(taker, metric(taker), start, SCALES[place])
        stepped.append(fixed_path(directions.move(start, *ONWARD), fitter))
    return _Models(fixed_path(linear, sample, others), paths, stepped, SCALES[place])


def _error(path: Path) -> Number:
    squares = path.squares[:, path.best]
    return Number(float(squares.mean()), float(squares.std(ddof=1) / math.sqrt(len(squares))))


def _paired(one: Path, other: Path) -> Number:
    """Fall in error from one path to another on the same samples."""
    change = one.squares[:, one.best] - other.squares[:, other.best]
    return Number(float(change.mean()), float(change.std(ddof=1) / math.sqrt(len(change))))


def _ridges(path: Path) -> tuple[tuple[float, float, float], ...]:
    places = range(0, len(path.ridges), EVERY)
    total = float(path.spectrum.sum()) or 1.0
    rows = path.along(2 * len(path.basis), places)
    return tuple((ridge / total, _at(path, ridge), error) for ridge, error in rows)


def _at(path: Path, ridge: float) -> float:
    """Leave-one-out error at a ridge between those of the path."""
    return float(np.interp(math.log(ridge), np.log(path.ridges), path.errors))


def _taught(taker: Any, metric: Any, start: Any, scale: float) -> Any:
    """Directions that half of the samples teach: two steps, as the estimators take them."""
    from firststep.estimator.family import Candidate, Learner

    learner = Learner(start, None, taker.probe())
    return learner.learn(taker, metric, 2, [Candidate(0, 0.0, scale)])[2]


def _theory(
    inputs: Array, target: Array, sizes: Sequence[int], asked: tuple[int, str], rng: np.random.Generator
) -> tuple[Number, ...]:
    """The unified theory without a step: the table's own covariance, every degree, a teacher along one direction."""
    from firststep.numerics.fixedpoint import ConvergenceError
    from firststep.setting import Problem, Sizes, from_data
    from firststep.theory import predict

    width, activation = asked
    live = inputs[:, inputs.std(axis=0) > 0]
    linear, shape = linear_strength(live, target), shape_of(live)
    profile = profile_of(live, target, [folds_of(live, 5, rng)], shape.effective_dimension, linear)
    covariance, alignment = from_data(live, target)
    # One bias for all neurons, as the theory knows it, gives an odd activation its even parts.
    biased = f"{activation}(x + 1)" if activation.isidentifier() else activation
    noise = math.sqrt(float(np.clip(profile.noise.value, 1e-3, 0.999)))
    found = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = Problem(
                biased, list(profile.teacher), noise_std=noise, inputs=covariance, alignment=alignment
            )
            for size in sizes:
                outcome = predict(
                    problem,
                    Sizes(size, len(covariance.numbers), width),
                    step_sizes=[0.0],
                    ridges=THEORY_RIDGES,
                    tolerance=1e-2,
                )
                place = int(outcome.test_error[0].argmin())
                bar = outcome.test_error_bar
                found.append(Number(float(outcome.test_error[0, place]), float(bar[0, place])))
    except (ConvergenceError, ArithmeticError, ValueError, np.linalg.LinAlgError):
        return ()
    return tuple(found)


def _figure(
    sizes: tuple[int, ...], errors: Mapping[str, tuple[Expected, ...]], theory: tuple[Number, ...], name: str
) -> Figure:
    places = tuple(float(n) for n in sizes)
    series = [
        Series(
            "points",
            x=places,
            y=tuple(number.value for number in values),
            error=tuple(number.bar for number in values),
            label=f"{CURVES[model]} (bars cover 9 of 10)",
        )
        for model, values in errors.items()
    ]
    if theory:
        series.append(
            Series("line", x=places, y=tuple(number.value for number in theory), label="theory, no step")
        )
    panel = Panel(tuple(series), x_label="samples n", y_label="error / variance of target")
    return Figure(f"What more samples of {name} would buy", (panel,))
