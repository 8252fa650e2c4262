"""Errors by cross-validation, and what the data look like to the theory."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firststep.diagnose.numbers import Number
from firststep.gaussian import Array, hermite_polynomials

MODELS = ("linear_ridge", "random_features", "one_step")
DEGREES = 4
# A number of standard errors that is taken as a difference.
CLEAR = 2.0


def folds_of(inputs: Array, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Random folds in which equal rows stay together."""
    _, group = np.unique(inputs, axis=0, return_inverse=True)
    group = group.ravel()
    place = rng.permutation(int(group.max()) + 1)
    return np.asarray(place[group] % count, dtype=np.intp)


@dataclass(frozen=True)
class Shape:
    """How far the inputs are from an isotropic Gaussian."""

    effective_dimension: float
    excess_kurtosis: float
    norm_spread: float
    dim: int

    def notes(self) -> list[str]:
        """Where the inputs are not what the theory assumes."""
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


def shape_of(scaled: Array) -> Shape:
    """Effective dimension (tr C)^2/tr C^2, less the part of tr C^2 that n samples add, and two measures of tails."""
    count, dim = scaled.shape
    smaller = scaled @ scaled.T / count if count < dim else scaled.T @ scaled / count
    square = float((smaller**2).sum())
    effective = dim**2 / max(square - dim**2 / count, dim**2 / min(count, dim) ** 2, float(dim))
    norms = (scaled**2).sum(axis=1)
    kurtosis = float(np.median((scaled**4).mean(axis=0))) - 3
    return Shape(
        float(np.clip(effective, 1.0, dim)), kurtosis, float(norms.var() / (2 * dim**2 / effective)), dim
    )


def linear_strength(scaled: Array, target: Array) -> Number:
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
class Measured:
    """Squared errors (n,) of each model, averaged over outputs and repeats; the share of folds that took a step.

    For classes also how often (n,) each sample got a wrong one.
    """

    squares: Mapping[str, Array]
    step_size: float
    share: float
    wrong: Mapping[str, Array]

    @property
    def errors(self) -> dict[str, Number]:
        """Mean squared error of each model."""
        return {model: mean_of(self.squares[model]) for model in MODELS}

    def gain(self, model: str) -> Number:
        """By how much the error is below that of another model, sample by sample."""
        return mean_of(self.squares[model] - self.squares["one_step"])


def measure(
    inputs: Array,
    targets: Array,
    splits: Sequence[NDArray[np.intp]],
    make: Callable[[str, int], Any],
    tick: Callable[[], None] = lambda: None,
    level: Array | None = None,
) -> Measured:
    """Squared errors of each sample by cross-validation; `make` gives the model of a name and a repeat.

    Of classes `level` is what was taken off the targets, whose signs tell the class.
    """
    squares = {model: np.zeros(len(targets)) for model in MODELS}
    wrong = {} if level is None else {model: np.zeros(len(targets)) for model in MODELS}
    steps = []
    for repeat, folds in enumerate(splits):
        for fold in np.unique(folds):
            train, test = folds != fold, folds == fold
            for name in MODELS:
                model = make(name, repeat).fit(inputs[train], targets[train])
                told = model.predict(inputs[test])
                squares[name][test] += ((targets[test] - told) ** 2).mean(axis=1) / len(splits)
                if level is not None:
                    missed = _class(told + level) != _class(targets[test] + level)
                    wrong[name][test] += missed / len(splits)
                tick()
            steps.append(model.step_size_)
    return Measured(squares, float(np.median(steps)), float(np.mean(np.array(steps) > 0)), wrong)


def _class(outputs: Array) -> NDArray[np.intp]:
    """The class of outputs (n, k): the sign of a single one, the largest of several."""
    return np.asarray(outputs[:, 0] > 0 if outputs.shape[1] == 1 else outputs.argmax(axis=1), dtype=np.intp)


def mean_of(values: Array) -> Number:
    """Mean with its standard error."""
    return Number(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


@dataclass(frozen=True, eq=False)
class Profile:
    """The target along the learned direction, on samples that did not learn it."""

    z: Array
    direction: Array
    linear: Number
    degrees: tuple[Number, ...]
    teacher: tuple[float, ...]
    noise: Number


def profile_of(
    scaled: Array, target: Array, splits: Sequence[NDArray[np.intp]], effective: float, linear: Number
) -> Profile:
    """The target along b, from samples that did not learn it."""
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
    # Degrees beyond the first are those of what is not linear in z: where z is not Gaussian, a straight line has
    # parts of every degree in its normal scores, and the linear part would be counted twice.
    bent = target - target.mean() - z * float(z @ target / (z @ z))
    degrees = (mean_of(target * basis[0]), *(mean_of(bent * row) for row in basis[1:]))
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
    return Profile(z, direction, linear, degrees, teacher, Number(1 - total, spread))
