"""Would a gradient step help on these data? Measured by cross-validation, and predicted by the theory."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from firststep.diagnose.curve import curve_of
from firststep.diagnose.expected import Theory
from firststep.diagnose.linear import LinearRidge
from firststep.diagnose.measure import (
    CLEAR,
    DEGREES,
    MODELS,
    Measured,
    Profile,
    Shape,
    folds_of,
    linear_strength,
    mean_of,
    measure,
    profile_of,
    shape_of,
)
from firststep.diagnose.numbers import Number
from firststep.diagnose.progress import Progress
from firststep.diagnose.report import WORDS, Diagnosis
from firststep.diagnose.table import Table, prepare
from firststep.figures import Figure, Panel, Series
from firststep.gaussian import Array, hermite_polynomials

# Rows beyond this are not used: the answer would be the same, and take longer.
MOST_ROWS = 10_000
# From this many rows or inputs on one repeat of the cross-validation decides as well.
MANY = 3000
BINS = 24
# The theory is believed if it meets the measured errors without a step to this share, and its own bar is no wider than
# that share of its error; it is silent if not.
BELIEVED, WIDEST = 0.15, 0.25
# Above this many inputs or samples for each input the theory is not asked: it would take long, or say nothing.
THEORY_INPUTS = 1500
# Work of the theory without a step and with one, and of the curve, in fits.
THEORY_PARTS, CURVE_PARTS = (4, 8), 12


def diagnose(
    X: Any,
    y: Any,
    *,
    width: int = 300,
    activation: str = "tanh",
    folds: int = 5,
    repeats: int = 2,
    random_state: int = 0,
    keep: Sequence[str] = (),
    drop_missing: bool = False,
    curve: bool = False,
    verbose: bool = False,
) -> Diagnosis:
    r"""Whether gradient steps beat random features and linear ridge on these data.

    The errors of the three are measured by repeated cross-validation. The theory is asked about the same sizes, with
    the effective dimension for d and a teacher whose Hermite coefficients are read off along the learned direction z,
    from samples that did not learn it:

    .. math:: E[y\,H_k(z)]/\sqrt{k!} = \sqrt{k!}\,c^*_k\,r^k

    with r the cosine between the learned and the true direction [firststep]. It is silent where it does not meet the
    measured errors without a step.

    Parameters
    ----------
    X : array_like (n, d) or DataFrame
        Inputs. Text columns of a frame become 0/1 columns, gaps get the median and a column that marks them;
        `notes` says what was done, by column.
    y : array_like (n,) or str
        Target, a number or one of 2 to 20 classes; or the name of a column of `X`.
    width : int
        Neurons N of the networks.
    activation : str
        :math:`\sigma`.
    folds, repeats : int
        Of the cross-validation; one repeat from 3000 rows or inputs on.
    random_state : int
        Source of the folds and networks.
    keep : sequence of str
        Columns that stay, also if they look like row numbers or like the target in other words.
    drop_missing : bool
        Whether rows with gaps are left out instead.
    curve : bool
        Whether the learning curve is predicted too.
    verbose : bool
        Whether progress is shown on standard error when it takes longer than three seconds.

    Returns
    -------
    Diagnosis
        Prints as text; `to_dict` and `to_html` give JSON and a page.

    Examples
    --------
    >>> inputs = np.random.default_rng(0).standard_normal((300, 30))
    >>> found = diagnose(inputs, np.tanh(2 * inputs[:, 0]), width=100, repeats=1)
    >>> found.verdict[:4], found.direction[0][0]
    ('Yes:', 'x0')
    """
    for name, value, least in (("width", width, 1), ("folds", folds, 2), ("repeats", repeats, 1)):
        if value != int(value) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    table = prepare(X, y, keep, drop_missing)
    rng = np.random.default_rng(random_state)
    notes = list(table.notes)
    count, dim = table.inputs.shape
    if count > MOST_ROWS:
        kept = np.sort(rng.choice(count, MOST_ROWS, replace=False))
        table = replace(table, inputs=table.inputs[kept], targets=table.targets[kept])
        notes.append(f"{MOST_ROWS} of {count} rows, drawn at random, are used")
        count = MOST_ROWS
    if repeats > 1 and max(count, dim) >= MANY:
        repeats = 1
        notes.append("the cross-validation is not repeated: the table is large enough to tell")
    unit = math.sqrt(float(table.targets.var(axis=0).mean()))
    targets = (table.targets - table.targets.mean(axis=0)) / unit
    splits = [folds_of(table.inputs, folds, rng) for _ in range(repeats)]
    if len(np.unique(splits[0])) < 2:
        raise ValueError("all rows have the same inputs: there is nothing to learn from them")
    copies = count - len(np.unique(table.inputs, axis=0))
    if copies:
        notes.append(f"{copies} rows have the same inputs as another: copies always fall into one fold")
    parts = len(MODELS) * folds * repeats + sum(THEORY_PARTS) + CURVE_PARTS * curve
    with Progress(parts, verbose) as progress:
        make = _maker(width, activation, random_state)
        level = table.targets.mean(axis=0) / unit if table.classes else None
        measured = measure(table.inputs, targets, splits, make, progress.tick, level)
        about = Theory(*_seen(table, targets, splits), round(count * (1 - 1 / folds)), width, activation)
        found = _found(table, targets, unit, measured, about, notes, progress.tick)
        if curve:
            found = replace(found, curve=curve_of(table, None, (width, activation), True, random_state))
    return found


def _seen(table: Table, targets: Array, splits: Sequence[Any]) -> tuple[Profile, Shape]:
    """The target along the learned direction, and the shape of the inputs."""
    scaled = (table.inputs - table.inputs.mean(axis=0)) / table.inputs.std(axis=0)
    # Of several classes the one of the largest variance is looked at along a direction.
    target = _widest(targets)
    shape, linear = shape_of(scaled), linear_strength(scaled, target)
    return profile_of(scaled, target, splits, shape.effective_dimension, linear), shape


def _widest(targets: Array) -> Array:
    """The column of the largest variance, of variance one."""
    spread = targets.std(axis=0)
    return np.asarray(targets[:, int(spread.argmax())] / spread.max())


def _maker(width: int, activation: str, seed: int) -> Callable[[str, int], Any]:
    def make(name: str, repeat: int) -> Any:
        from firststep.estimator import OneStepRegressor

        if name == "linear_ridge":
            return LinearRidge()
        options: dict[str, Any] = {"step_size": 0} if name == "random_features" else {}
        return OneStepRegressor(width, activation, random_state=seed + repeat, **options)

    return make


def _theory(
    asked: Theory, measured: Measured, tick: Callable[[float], None]
) -> tuple[dict[str, Number], list[str]]:
    """What the theory expects, where the measurement does not contradict it, and notes about it."""
    from firststep.numerics.fixedpoint import ConvergenceError

    try:
        predicted, lines = _believed(asked.still(), measured.errors, asked.notes())
        tick(THEORY_PARTS[0])
        if predicted:
            predicted = predicted | {"one_step": asked.moved()}
        tick(THEORY_PARTS[1])
    except (ConvergenceError, ArithmeticError, np.linalg.LinAlgError) as error:
        return {}, [f"the theory has no answer at these sizes ({error})"]
    if predicted and _expects(predicted) != _helps(measured.gain("random_features"), measured.share):
        return {}, ["the theory of one step and the measurement differ: the measurement counts"]
    return predicted, asked.shape.notes() * bool(predicted) + lines


def _found(
    table: Table,
    targets: Array,
    unit: float,
    measured: Measured,
    about: Theory,
    notes: list[str],
    tick: Callable[[float], None],
) -> Diagnosis:
    """The answers put together, and the theory's beside them where it has one."""
    (count, dim), profile, shape, errors = table.inputs.shape, about.profile, about.shape, measured.errors
    if count <= dim:
        notes.append(f"{count} samples are fewer than {dim} inputs: the linear part is a rough estimate")
    predicted: dict[str, Number] = {}
    if targets.shape[1] > 1:
        notes.append("the theory is not asked about more than two classes")
    elif dim > THEORY_INPUTS:
        notes.append(f"the theory is not asked about {dim} inputs: that takes minutes")
    else:
        predicted, lines = _theory(about, measured, tick)
        notes += lines
    largest = np.argsort(-np.abs(profile.direction))[:8]
    found = Diagnosis(
        verdict="",
        target=table.target_name,
        classes=table.classes,
        unit=unit,
        n_samples=count,
        n_inputs=dim,
        linear_strength=profile.linear,
        noise_floor=profile.noise,
        effective_dimension=shape.effective_dimension,
        excess_kurtosis=shape.excess_kurtosis,
        norm_spread=shape.norm_spread,
        direction=tuple((table.names[i], float(profile.direction[i])) for i in largest),
        degrees=profile.degrees,
        teacher=profile.teacher,
        measured=errors,
        gain=measured.gain("random_features"),
        gain_over_linear=measured.gain("linear_ridge"),
        wrong={model: mean_of(values) for model, values in measured.wrong.items()},
        predicted=predicted,
        step_size=measured.step_size,
        step_share=measured.share,
        notes=tuple(notes),
        figure=_figure(profile, _widest(targets), errors, predicted, table.target_name),
    )
    return replace(found, verdict=_verdict(found, table.suspects))


def _believed(
    predicted: dict[str, Number], errors: Mapping[str, Number], lines: list[str]
) -> tuple[dict[str, Number], list[str]]:
    """The theory's answer if it describes what was measured without a step; else a sentence in its place."""
    for model in ("linear_ridge", "random_features"):
        if model not in predicted:
            return {}, lines
        told, seen = predicted[model], errors[model]
        if math.isfinite(told.stderr) and told.stderr > WIDEST * told.value:
            return {}, [f"the theory is silent: it knows its own error for {WORDS[model]}, {told}, too badly"]
        if abs(told.value - seen.value) > BELIEVED * seen.value + CLEAR * seen.stderr:
            return {}, [
                f"the theory does not describe this table: it says {told} for {WORDS[model]}, measured {seen}; "
                "so it says nothing of the step"
            ]
    return predicted, lines


def _expects(predicted: Mapping[str, Number]) -> bool:
    """Whether the theory expects a gain that it can tell from none."""
    still, moved = predicted["random_features"], predicted["one_step"]
    bar = moved.stderr if math.isfinite(moved.stderr) else 0.0
    return still.value - moved.value > max(0.01, bar)


def _helps(gain: Number, share: float) -> bool:
    """Whether steps were taken and lower the error beyond its noise."""
    return gain.value > CLEAR * gain.stderr and share > 0


def _verdict(found: Diagnosis, suspects: Sequence[str]) -> str:
    """Yes or no, by how much, what is simpler, what the theory adds, and whether the inputs know the target."""
    before, after = found.measured["random_features"], found.measured["one_step"]
    line, gain, over = found.measured["linear_ridge"], found.gain, found.gain_over_linear
    share = 100 * gain.value / before.value if before.value > 0 else 0.0
    change = f"R² {1 - before.value:.3f} without, {1 - after.value:.3f} with"
    if not found.classes:
        change += f"; root error {found.root('random_features'):.3g} and {found.root('one_step'):.3g}"
        change += f" in the unit of {found.target}"
    else:
        shares = [f"{100 * found.wrong[model].value:.1f} %" for model in ("random_features", "one_step")]
        change += f"; wrong classes {shares[0]} and {shares[1]}"
    helps = _helps(gain, found.step_share)
    if helps:
        spread = 100 * gain.stderr / before.value
        sentences = [
            f"Yes: steps lower the error of random features by {share:.0f} ± {max(spread, 0.5):.0f} % ({change})."
        ]
    elif found.step_share == 0:
        sentences = [f"No: no step is taken, random features are as good ({change})."]
    elif gain.value < -CLEAR * gain.stderr:
        sentences = [f"No: steps raise the error of random features by {-share:.0f} % ({change})."]
    else:
        sentences = [f"No: what steps change, {gain}, is within its noise ({change})."]
    if over.value > CLEAR * over.stderr:
        sentences.append(f"Linear ridge is worse (R² {1 - line.value:.3f}).")
    elif over.value < -CLEAR * over.stderr:
        sentences.append(f"Linear ridge is better still (R² {1 - line.value:.3f}): use that.")
    elif line.value > 2 * max(1.0, after.value):
        # Its noise is as large as it is: a few rows make both.
        sentences.append(f"Linear ridge fails on some rows (R² {1 - line.value:.3g}).")
    else:
        sentences.append(
            f"Linear ridge (R² {1 - line.value:.3f}) does as well within the noise, and is simpler."
        )
    if found.predicted:
        told = found.predicted["random_features"].value - found.predicted["one_step"].value
        words = f"a fall by {told:.2f} of the variance" if helps else "no gain"
        sentences.append(f"The theory of one step expects {words} too.")
    if suspects:
        named = ", ".join(suspects[:3]) + " …" * (len(suspects) > 3)
        sentences.append(f"Do not believe this if {named} was made from {found.target}: see the notes.")
    return " ".join(sentences)


def _figure(
    profile: Profile,
    target: Array,
    errors: Mapping[str, Number],
    predicted: Mapping[str, Number],
    name: str,
) -> Figure:
    order = np.argsort(profile.z)
    bins = np.array_split(order, min(BINS, len(order) // 8))
    centres = [float(profile.z[part].mean()) for part in bins]
    means = [mean_of(target[part]) for part in bins]
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
