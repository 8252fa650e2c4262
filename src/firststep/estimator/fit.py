"""What the estimators share: standardise, draw, choose, step, fit the readout."""

import numbers
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from firststep.arrays import Matrix, check_squarable
from firststep.estimator.bends import Bends, bends_of, helps
from firststep.estimator.choice import ranks
from firststep.estimator.options import Options, whole
from firststep.estimator.readout import Readouts
from firststep.estimator.selection import Selected, Selection
from firststep.estimator.step import BLOCK_ELEMENTS, Index, Network, Sample, Step
from firststep.gaussian import Array, Function, function


def checked(*given: Any, **options: Any) -> Any:
    """What scikit-learn's validation returns, without numbers that cannot be squared."""
    found = validate_data(*given, **options)
    for name, part in zip(("X", "y"), found if isinstance(found, tuple) else (found,), strict=False):
        check_squarable(part, name)
    return found


class OneStep(BaseEstimator):  # type: ignore[misc]
    """What the three estimators share."""

    weights_: Matrix
    biases_: Matrix
    activation_: Function
    coef_: Array
    intercept_: Any
    whitening_: Array | None
    bends_: Bends | None
    direction_: Array
    step_size_: float
    ridge_: float

    # Features for a model of one's own are those of one network.
    _single = False

    def __init__(
        self,
        width: int = 500,
        activation: Any = "tanh",
        step_size: Any = "auto",
        ridge: Any = "auto",
        *,
        scale: Any = "auto",
        bias: float = 1.0,
        split: float | None = None,
        whiten: bool | str = "step",
        n_steps: int | str = "auto",
        bend: bool | str = "auto",
        dtype: str = "float64",
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        self.width = width
        self.activation = activation
        self.step_size = step_size
        self.ridge = ridge
        self.scale = scale
        self.bias = bias
        self.split = split
        self.whiten = whiten
        self.n_steps = n_steps
        self.bend = bend
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def _options(self) -> Options:
        return Options(
            self.step_size,
            self.ridge,
            self.scale,
            self.bias,
            self.split,
            self.whiten,
            self.n_steps,
            self.bend,
            self.dtype,
            self._single,
            bool(self.verbose),
        )

    def _fit(self, inputs: Array, targets: Array, scales: Array, sample_weight: Any) -> Selected:
        """Fit on checked inputs (n, d) and targets (n, k); the scales are what the targets are divided by."""
        width, options = whole("width", self.width), self._options()
        options.check()
        activation = function(self.activation)
        activation.derivative(np.array([0.5]))
        random = check_random_state(self.random_state)
        counts = _counts(inputs, sample_weight)
        used = counts > 0
        if not used.all():
            inputs, targets, counts = inputs[used], targets[used], counts[used]
        if len(inputs) < 2:
            raise ValueError(f"at least 2 samples with a positive weight are needed, got {len(inputs)}")
        rank = ranks(inputs)
        first, counts = _merged(inputs, targets, rank, counts)
        inputs, targets, rank = inputs[first], targets[first], rank[first]
        shape, dim, outputs = np.dtype(self.dtype), inputs.shape[1], targets.shape[1]
        weights, biases = random.standard_normal((width, dim)), self.bias * random.standard_normal(width)
        # Signs: then all neurons move equally far.
        signs = (2 * random.randint(2, size=(width, outputs)) - 1) / np.sqrt(width)

        def start(live: float) -> Network:
            first = (weights / np.sqrt(live)).astype(shape)
            return Network(first, biases.astype(shape), signs.astype(shape), activation)

        def prepared(bends: Bends | None) -> tuple[Sample, float]:
            self.bends_ = bends
            live = self._standardise(inputs if bends is None else bends(inputs), counts)
            return Sample(self._standardised(inputs), (targets - self._level) / scales, counts), live

        sample, live = prepared(None)
        if options.bends and (found := bends_of(inputs, counts)) is not None:
            bent, _ = prepared(found)
            if options.bend is not True and not helps(sample, bent, rank, start(live)):
                found = None
            sample, live = prepared(found)
        taker, fitter = self._shares(sample, rank, random)
        step = Step(taker, start(live), options.metric(taker), sample.probe())
        selected = Selection(step, fitter, rank, live, options).select()
        self._keep(selected, step, activation)
        return selected

    def _keep(self, found: Selected, step: Step, activation: Function) -> None:
        """What the fit leaves behind, without the readout."""
        self.activation_, self.weights_, self.biases_ = (
            activation,
            found.network.weights,
            found.network.biases,
        )
        self.step_size_, self.ridge_, self.n_steps_ = found.step_size, found.ridge, found.n_steps
        self.loo_path_, self.spectrum_ = found.path, found.readouts.spectrum
        along = np.asarray(self._back(step.directions()), dtype=np.float64)
        norms = np.linalg.norm(along, axis=1, keepdims=True)
        along /= np.where(norms > 0, norms, 1.0)
        self.direction_ = along[0] if len(along) == 1 else along

    def _standardise(self, inputs: Array, counts: Array) -> float:
        """Learn the standardisation, and give back how many directions vary."""
        total = counts.sum()
        mean = counts @ inputs / total
        spread = np.sqrt(np.einsum("n,nd->d", counts, (inputs - mean) ** 2) / total)
        # A column that only varies by rounding is constant, and is left out.
        varies = spread > 1e-13 * np.maximum(np.abs(mean), np.finfo(np.float64).tiny)
        self.mean_, self.scale_ = mean, np.where(varies, spread, np.inf)
        live = float(max(varies.sum(), 1))
        self.whitening_ = None
        if self.whiten is not False and self.whiten != "step":
            scaled = (inputs - mean) / self.scale_ * np.sqrt(counts / total)[:, None]
            values, vectors = linalg.eigh(scaled.T @ scaled, check_finite=False)
            large = values > 1e-10 * max(values[-1], 1e-300)
            # Turned back to the inputs' own axes: principal components have no sign of their own.
            kept = vectors[:, large]
            self.whitening_ = (kept / np.sqrt(values[large])) @ kept.T
            live = float(max(large.sum(), 1))
        return live

    def _standardised(self, inputs: Array) -> Matrix:
        scaled = (inputs if self.bends_ is None else self.bends_(inputs)) - self.mean_
        scaled /= self.scale_
        if self.whitening_ is not None:
            scaled = scaled @ self.whitening_
        return cast(Matrix, scaled.astype(self.dtype, copy=False))

    def _back(self, rows: Array) -> Array:
        """Rows of coefficients on the standardised columns from coefficients on the network's inputs."""
        return rows if self.whitening_ is None else rows @ self.whitening_.T

    def _shares(self, sample: Sample, rank: Index, random: Any) -> tuple[Sample, Sample]:
        """Samples that take the step, and those of the ridge fit."""
        if self.split is None:
            return sample, sample
        if isinstance(self.split, bool) or not isinstance(self.split, numbers.Real) or not 0 < self.split < 1:
            raise ValueError(f"split must be None or a share between 0 and 1, got {self.split!r}")
        order = random.permutation(int(rank.max()) + 1)
        taken = np.isin(rank, order[: max(1, round(float(self.split) * len(order)))])
        taker, fitter = (sample.at(np.flatnonzero(rows)) for rows in (taken, ~taken))
        if fitter.total < 2:
            raise ValueError(
                f"split={self.split} leaves {len(fitter)} of {len(sample)} samples for the ridge: lower it"
            )
        return taker, fitter

    def _blocks(self, inputs: Array) -> Iterator[tuple[slice, Matrix]]:
        size = max(64, BLOCK_ELEMENTS // len(self.weights_))
        for low in range(0, len(inputs), size):
            part = slice(low, low + size)
            before = self._standardised(inputs[part]) @ self.weights_.T + self.biases_
            yield part, self.activation_(before)

    def _given(self, X: Any) -> Array:
        """Inputs to a fitted network, checked."""
        check_is_fitted(self)
        return np.asarray(checked(self, X, dtype=np.float64, reset=False))

    def _outputs(self, inputs: Array) -> Array:
        """Values (n, k) of the fitted network, in the units of the targets."""
        coefficients = np.atleast_2d(self.coef_)
        result = np.empty((len(inputs), len(coefficients)))
        for part, block in self._blocks(inputs):
            result[part] = block @ coefficients.T
        result += self.intercept_
        return result

    def _keep_readout(self, readouts: Readouts, scales: Array) -> None:
        coefficients, intercepts = (
            readouts.coefficients[0].T * scales[:, None],
            readouts.intercepts[0] * scales,
        )
        self.coef_, self.intercept_ = coefficients, intercepts + self._level

    def _numbers(self, y: Array, sample_weight: Any) -> tuple[Array, Array]:
        """Targets (n, k) and their standard deviations; their means are kept."""
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        counts = _counts(targets, sample_weight)
        self._level = counts @ targets / counts.sum()
        spread = np.sqrt(counts @ (targets - self._level) ** 2 / counts.sum())
        varies = spread > 1e-13 * np.maximum(np.abs(self._level), np.finfo(np.float64).tiny)
        return targets, np.where(varies, spread, 1.0)

    def _signs(self, classes: NDArray[Any], codes: Index, sample_weight: Any) -> tuple[Array, Array]:
        """One column of -1 and 1 for each class, one alone for two classes, all divided by the same number."""
        if len(classes) < 2:
            raise ValueError(
                f"a classifier needs samples of at least two classes, got one class: {classes[0]!r}"
            )
        targets = np.where(codes[:, None] == np.arange(len(classes)), 1.0, -1.0)
        targets = targets[:, 1:] if len(classes) == 2 else targets
        counts = _counts(targets, sample_weight)
        self._level = counts @ targets / counts.sum()
        spread = np.sqrt(np.mean(counts @ (targets - self._level) ** 2 / counts.sum()))
        return targets, np.full(targets.shape[1], float(spread) if spread > 0 else 1.0)


def _counts(inputs: Array, sample_weight: Any) -> Array:
    """How often each sample counts; weights with a mean below one are importances and get the mean one."""
    counts = np.asarray(
        _check_sample_weight(sample_weight, inputs, dtype=np.float64, ensure_non_negative=True)
    )
    used = counts > 0
    mean = counts[used].mean() if used.any() else 1.0
    return counts / mean if mean < 1 else counts


def _merged(inputs: Array, targets: Array, rank: Index, counts: Array) -> tuple[Index, Array]:
    """Samples in an order of their own, copies as counts: the rows' order plays no part, to the last digit."""
    order = np.lexsort((*targets.T, rank))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (targets[order[1:]] != targets[order[:-1]]).any(axis=1) | (rank[order[1:]] != rank[order[:-1]])
    # Different rows may share a rank.
    close = np.flatnonzero(~new)
    new[close] = (inputs[order[close]] != inputs[order[close - 1]]).any(axis=1)
    return order[new], np.add.reduceat(counts[order], np.flatnonzero(new))
