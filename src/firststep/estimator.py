"""The network as scikit-learn estimators: random first layer, one gradient step, ridge readout."""

import numbers
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

try:
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        ClassNamePrefixFeaturesOutMixin,
        MultiOutputMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ImportError("the estimators need scikit-learn 1.6 or newer: install firststep[sklearn]") from error

from firststep.gaussian import Array, Function, function
from firststep.network import Matrix, ridge_path

DTYPES = ("float64", "float32")
TARGETS = ("auto", "numbers", "classes")
# Step sizes that "auto" tries, as the root mean square by which the step moves the pre-activations over their
# own before it. Unlike eta itself this does not depend on the scale or the correlations of the inputs.
STEP_GRID = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Ridges that "auto" tries, over the total variance of the features.
RIDGE_GRID = tuple(np.geomspace(1e-7, 10.0, 25).tolist())
FOLDS = 5
# From this many samples for each input on, a sample's own part in the step no longer deceives leave-one-out.
LOO_SAMPLES_PER_INPUT = 100
# A step must lower the error by this many standard errors of the paired difference to be taken at all.
MARGIN = 2.0
# Elements of the features that are held at a time, and those that are kept for a second pass.
BLOCK_ELEMENTS = 2**21
KEEP_ELEMENTS = 2**25
# Beyond this, one minus a leverage is rounding error.
SMALLEST_REST = 1e-9

Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class _Sample:
    """Standardised inputs (n, d), targets (n, k) and how often each sample counts (n,)."""

    inputs: Matrix
    targets: Array
    counts: Array

    def __len__(self) -> int:
        return len(self.targets)

    def at(self, rows: Index) -> "_Sample":
        return _Sample(self.inputs[rows], self.targets[rows], self.counts[rows])

    def blocks(self, width: int) -> Iterator[slice]:
        size = max(64, BLOCK_ELEMENTS // width)
        return (slice(low, low + size) for low in range(0, len(self), size))


@dataclass(frozen=True, eq=False)
class _Start:
    """The network before the step: W0 (N, d), biases (N,), a (N, k), sigma."""

    weights: Matrix
    biases: Matrix
    readout: Matrix
    activation: Function


def _gradient(sample: _Sample, start: _Start, weights: Matrix) -> Matrix:
    r"""Sum over the samples of what each contributes to the first layer's gradient, shape (N, d).

    .. math:: \sum_i c_i \, [\,(A (y_i - f(x_i))) \circ \sigma'(W x_i)\,]\, x_i^\top, \quad
        f(x) = N^{-1/2} A^\top \sigma(W x)

    For one target and equal counts this is n0 times `firststep.network.gradient_step`; here the samples come in
    blocks, may count more than once, and have several targets, for each of which every neuron draws a readout.
    """
    total = np.zeros(weights.shape)
    scale = 1 / np.sqrt(len(weights))
    for part in sample.blocks(len(weights)):
        inputs = sample.inputs[part]
        before = inputs @ weights.T + start.biases
        output = scale * (start.activation(before) @ start.readout)
        pull = (sample.targets[part] - output) * sample.counts[part, None]
        slopes = start.activation.derivative(before)
        slopes *= pull.astype(inputs.dtype) @ start.readout.T
        total += slopes.T @ inputs
    return total


def _moved(sample: _Sample, start: _Start, first: Array, step_size: float, n_steps: int) -> Matrix:
    """Weights after the steps on this sample, whose gradient at the start is known."""
    weights = start.weights + step_size * first
    for _ in range(n_steps - 1):
        if step_size:
            here = weights.astype(start.weights.dtype)
            weights = weights + step_size * _gradient(sample, start, here) / sample.counts.sum()
    return cast(Matrix, weights.astype(start.weights.dtype))


class _Design:
    """Features of a sample under given weights, block by block; kept for later passes where they are few."""

    def __init__(self, sample: _Sample, start: _Start, weights: Matrix) -> None:
        self.sample, self.start, self.weights = sample, start, weights
        self.shape = (len(sample), len(weights))
        self._kept: list[Array] | None = [] if len(sample) * len(weights) <= KEEP_ELEMENTS else None

    def __iter__(self) -> Iterator[tuple[slice, Array]]:
        parts = list(self.sample.blocks(self.shape[1]))
        if self._kept and len(self._kept) == len(parts):
            yield from zip(parts, self._kept, strict=True)
            return
        kept: list[Array] = []
        for part in parts:
            block = self.start.activation(self.sample.inputs[part] @ self.weights.T + self.start.biases)
            if self._kept is not None:
                kept.append(cast(Array, block))
            yield part, cast(Array, block)
        if self._kept is not None:
            self._kept = kept

    @property
    def total(self) -> float:
        return float(self.sample.counts.sum())

    def means(self) -> tuple[Array, Array]:
        """Mean features (N,) and mean targets (k,)."""
        sums = np.zeros(self.shape[1])
        for part, block in self:
            sums += self.sample.counts[part] @ block
        return sums / self.total, self.sample.counts @ self.sample.targets / self.total


@dataclass(frozen=True, eq=False)
class _Readouts:
    """Ridge readouts with an intercept, for R ridges.

    Attributes: coefficients (R, N, k), intercepts (R, k), the eigenvalues of the features' covariance, largest
    first, and on request the squared leave-one-out errors (n, R), summed over the targets.
    """

    coefficients: Array
    intercepts: Array
    spectrum: Array
    left_out: Array | None = None

    def errors(self, design: _Design) -> Array:
        """Squared errors (n, R) on other samples, summed over the targets."""
        ridges, _, outputs = self.coefficients.shape
        stacked = self.coefficients.transpose(1, 0, 2).reshape(-1, ridges * outputs)
        result = np.empty((len(design.sample), ridges))
        for part, block in design:
            found = (block @ stacked.astype(block.dtype)).reshape(-1, ridges, outputs) + self.intercepts
            result[part] = ((design.sample.targets[part, None, :] - found) ** 2).sum(axis=2)
        return result


def _ridge(design: _Design, ridges: Array, leave_out: bool = False) -> _Readouts:
    r"""Ridge regression on centred features for many ridges from one eigendecomposition of the smaller Gram matrix.

    .. math:: \min_{a, a_0} \tfrac1n \sum_i c_i (y_i - a_0 - a \cdot f_i)^2 + \lambda |a|^2, \quad n = \sum_i c_i

    The leave-one-out error is exact: with the unit leverage :math:`h_i = 1/n + f_i^\top (F^\top C F + \lambda n)^{-1}
    f_i` of the centred features, leaving one of the :math:`c_i` copies of sample i out leaves the error
    :math:`r_i/(1 - h_i)`.
    """
    mean, level = design.means()
    solve = _ridge_by_samples if len(design.sample) < design.shape[1] else _ridge_by_features
    coefficients, spectrum, left_out = solve(design, ridges, mean, level, leave_out)
    intercepts = level - np.einsum("rnk,n->rk", coefficients, mean)
    return _Readouts(coefficients, intercepts, spectrum, left_out)


def _ridge_to_judge(design: _Design, ridges: Array) -> _Readouts:
    """Readouts without the spectrum: by the network module's quicker path where it applies."""
    if design.sample.targets.shape[1] > 1 or len(design.sample) * design.shape[1] > KEEP_ELEMENTS:
        return _ridge(design, ridges)
    mean, level = design.means()
    roots = np.sqrt(design.sample.counts)
    scale = np.sqrt(len(roots) / design.total)
    rows = np.concatenate([block - mean for _, block in design]) * (scale * roots)[:, None]
    targets = (design.sample.targets[:, 0] - level) * scale * roots
    try:
        found = ridge_path(rows, targets, ridges).coefficients
    except ValueError:
        # A ridge below the rounding error of the Gram matrix: slower, but nothing breaks down.
        return _ridge(design, ridges)
    return _Readouts(found[:, :, None], (level - found @ mean)[:, None], np.empty(0))


def _ridge_by_features(
    design: _Design, ridges: Array, mean: Array, level: Array, leave_out: bool
) -> tuple[Array, Array, Array | None]:
    width, outputs, total = design.shape[1], len(level), design.total
    gram, moment = np.zeros((width, width)), np.zeros((width, outputs))
    for part, block in design:
        roots = np.sqrt(design.sample.counts[part, None])
        rows = (block - mean) * roots
        gram += rows.T @ rows
        moment += rows.T @ ((design.sample.targets[part] - level) * roots)
    values, vectors = linalg.eigh(gram / total, overwrite_a=True, check_finite=False, driver="evd")
    values = np.maximum(values, 0.0)
    turned = vectors.T @ moment / total
    shrunk = turned[:, None, :] / (values[:, None] + ridges)[:, :, None]
    coefficients = (vectors @ shrunk.reshape(width, -1)).reshape(width, len(ridges), outputs)
    left_out = None
    if leave_out:
        left_out = np.empty((len(design.sample), len(ridges)))
        resolvent = 1 / (values[:, None] + ridges) / total
        for part, block in design:
            rows = (block - mean) @ vectors
            residual = design.sample.targets[part, None, :] - level
            residual = residual - (rows @ shrunk.reshape(width, -1)).reshape(-1, len(ridges), outputs)
            rest = np.maximum(1 - 1 / total - rows**2 @ resolvent, SMALLEST_REST)
            left_out[part] = (residual**2).sum(axis=2) / rest**2
    return coefficients.transpose(1, 0, 2), values[::-1], left_out


def _ridge_by_samples(
    design: _Design, ridges: Array, mean: Array, level: Array, leave_out: bool
) -> tuple[Array, Array, Array | None]:
    count, outputs, total = len(design.sample), len(level), design.total
    counts = design.sample.counts
    rows = np.concatenate([block - mean for _, block in design]) * np.sqrt(counts[:, None])
    targets = (design.sample.targets - level) * np.sqrt(counts[:, None])
    gram = np.asarray(rows @ rows.T, dtype=np.float64) / total
    values, vectors = linalg.eigh(gram, overwrite_a=True, check_finite=False, driver="evd")
    values = np.maximum(values, 0.0)
    shrunk = (vectors.T @ targets)[:, None, :] / (values[:, None] + ridges)[:, :, None]
    dual = (vectors @ shrunk.reshape(count, -1)).reshape(count, len(ridges), outputs)
    coefficients = np.einsum("ij,irk->rjk", rows, dual, optimize=True) / total
    left_out = None
    if leave_out:
        residual = dual * ridges[:, None] / np.sqrt(counts)[:, None, None]
        unused = vectors**2 @ (ridges / (values[:, None] + ridges))
        rest = 1 - (1 - unused) / counts[:, None] - 1 / total
        left_out = (residual**2).sum(axis=2) / np.maximum(rest, SMALLEST_REST) ** 2
    return coefficients, values[::-1], left_out


def _folds(inputs: Array, count: int) -> Index:
    """A fold 0 … count-1 for each row, the same for equal rows and whatever their order.

    Copies of a sample must not stand on both sides of a fold, and a sample that counts twice must be judged as
    two copies are. So folds go by a hash of the row, in turns over the distinct ones.
    """
    state = np.random.default_rng(20240531)
    odd: NDArray[np.uint64] = 2 * state.integers(1, 2**62, size=(inputs.shape[1],), dtype=np.uint64) + 1
    keys: NDArray[np.uint64] = np.empty(len(inputs), dtype=np.uint64)
    size = max(1, BLOCK_ELEMENTS // inputs.shape[1])
    for low in range(0, len(inputs), size):
        bits = np.ascontiguousarray(inputs[low : low + size] + 0.0, dtype=np.float64).view(np.uint64)
        # The low bits of round numbers are all zero: fold the high ones in before and after multiplying.
        mixed = (bits ^ (bits >> np.uint64(32))) * odd
        mixed ^= mixed >> np.uint64(29)
        sums = (mixed * odd[::-1]).sum(axis=1, dtype=np.uint64)
        keys[low : low + size] = (sums ^ (sums >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    _, rank = np.unique(keys, return_inverse=True)
    return np.asarray(rank % count, dtype=np.intp)


@dataclass(frozen=True, eq=False)
class _Choice:
    """What was tried, and what was taken."""

    step_sizes: Array
    ridges: Array  # (S, R)
    errors: Array  # (S, R)
    step: int
    ridge: int
    gain: float = 0.0
    gain_error: float = 0.0
    how: str = "given"

    @property
    def step_size(self) -> float:
        return float(self.step_sizes[self.step])

    def path(self) -> dict[str, Any]:
        return {
            "step_sizes": self.step_sizes,
            "ridges": self.ridges,
            "errors": self.errors,
            "gain": self.gain,
            "gain_stderr": self.gain_error,
            "how": self.how,
        }


def _judged(squares: Matrix, counts: Array) -> tuple[Array, Array]:
    """Mean errors (R,) of squared errors (n, R), and the column of the best ridge: the rest can be forgotten."""
    errors = counts @ squares / counts.sum()
    return errors, squares[:, int(np.argmin(errors))].astype(np.float64)


def _choose(
    step_sizes: Array,
    ridges: Array,
    judged: Sequence[tuple[Array, Array]],
    counts: Array,
    outputs: int,
    how: str,
) -> _Choice:
    """Smallest error; but no step, if that is a candidate and the gain over it is within its noise."""
    total = counts.sum()
    errors = np.stack([row for row, _ in judged]) / outputs
    step, ridge = (int(place) for place in np.unravel_index(int(np.argmin(errors)), errors.shape))
    gain = spread = 0.0
    if step_sizes[0] == 0 and step != 0:
        difference = (judged[0][1] - judged[step][1]) / outputs
        gain = float(counts @ difference / total)
        spread = float(np.sqrt(counts @ (difference - gain) ** 2 / total / max(total - 1, 1)))
        if gain <= MARGIN * spread:
            step, ridge = 0, int(np.argmin(errors[0]))
    return _Choice(step_sizes, ridges, errors, step, ridge, gain, spread, how)


@dataclass(eq=False)
class _Progress:
    """A bar on standard error, or nothing."""

    total: int
    wanted: bool
    _advance: Callable[[], None] = field(default=lambda: None)

    def __enter__(self) -> Self:
        self._context: AbstractContextManager[Any] = nullcontext()
        if self.wanted:
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True), transient=False)
            task = bar.add_task("firststep: step sizes and folds", total=self.total)
            self._context, self._advance = bar, lambda: bar.advance(task)
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def advance(self) -> None:
        """One factorisation is done."""
        self._advance()


def _positive(name: str, value: Any, *, zero: bool = False) -> Array:
    """Candidates given by the user, as an array (S,)."""
    try:
        values = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError):
        values = np.array([np.nan])
    good = np.isfinite(values) & ((values >= 0) if zero else (values > 0))
    if values.ndim != 1 or not values.size or not good.all():
        kind = "not negative" if zero else "positive"
        raise ValueError(
            f"{name} must be 'auto', a number or a list of numbers, finite and {kind}; got {value!r}"
        )
    return values


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


class _OneStep(BaseEstimator):  # type: ignore[misc]
    """What the three estimators share: standardise, draw, choose, step, fit the readout."""

    weights_: Matrix
    biases_: Matrix
    activation_: Function
    coef_: Array
    intercept_: Any
    whitening_: Array | None
    direction_: Array
    step_size_: float
    ridge_: float

    def __init__(
        self,
        width: int = 500,
        activation: Any = "relu",
        step_size: Any = "auto",
        ridge: Any = "auto",
        *,
        bias: float = 0.5,
        split: float | None = None,
        whiten: bool = False,
        n_steps: int = 1,
        dtype: str = "float64",
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        self.width = width
        self.activation = activation
        self.step_size = step_size
        self.ridge = ridge
        self.bias = bias
        self.split = split
        self.whiten = whiten
        self.n_steps = n_steps
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def _fit(self, inputs: Array, targets: Array, scales: Array, sample_weight: Any) -> _Readouts:
        """Fit on checked inputs (n, d) and targets (n, k); the scales are what the targets are divided by."""
        width, n_steps = _whole("width", self.width), _whole("n_steps", self.n_steps)
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {self.dtype!r}")
        if (
            isinstance(self.bias, bool)
            or not isinstance(self.bias, numbers.Real)
            or not 0 <= self.bias < np.inf
        ):
            raise ValueError(f"bias must be a finite number, not negative; got {self.bias!r}")
        activation = function(self.activation)
        activation.derivative(np.array([0.5]))
        random = check_random_state(self.random_state)
        counts = self._counts(inputs, sample_weight)
        used = counts > 0
        if not used.all():
            inputs, targets, counts = inputs[used], targets[used], counts[used]
        if len(inputs) < 2:
            raise ValueError(f"at least 2 samples with a positive weight are needed, got {len(inputs)}")
        folds = _folds(inputs, FOLDS)
        live = self._standardise(inputs, counts)
        sample = _Sample(self._standardised(inputs), (targets - self._level) / scales, counts)

        dim, outputs = sample.inputs.shape[1], targets.shape[1]
        shape = np.dtype(self.dtype)
        start = _Start(
            (random.standard_normal((width, dim)) / np.sqrt(live)).astype(shape),
            (self.bias * random.standard_normal(width)).astype(shape),
            (random.standard_normal((width, outputs)) / np.sqrt(width)).astype(shape),
            activation,
        )
        taker, fitter, loo = self._shares(sample, live, random)
        first = _gradient(taker, start, start.weights) / taker.counts.sum()
        step_sizes, ridges = self._candidates(fitter, start, first)
        # A single candidate needs no choice, but leave-one-out still tells its error where it is honest.
        if loo or ridges.size == 1:
            how = "leave-one-out" if loo else "leave-one-out, optimistic: the samples also took the step"
            choice, readouts = self._choose_by_loo(taker, fitter, start, first, step_sizes, ridges, how)
        else:
            choice = self._choose_by_folds(sample, folds, start, step_sizes, ridges)
            readouts = None
        best = choice.ridges[choice.step, choice.ridge]
        self.weights_ = _moved(taker, start, first, choice.step_size, n_steps)
        if readouts is None:
            readouts = _ridge(_Design(fitter, start, self.weights_), np.array([best]))

        self.activation_, self.biases_ = activation, start.biases
        self.step_size_, self.ridge_ = choice.step_size, float(best)
        self.loo_path_ = choice.path()
        self.spectrum_ = readouts.spectrum
        pulled = taker.inputs.T @ (taker.targets * taker.counts[:, None])
        along = np.asarray(self._back(pulled.T), dtype=np.float64)
        norms = np.linalg.norm(along, axis=1, keepdims=True)
        along /= np.where(norms > 0, norms, 1.0)
        self.direction_ = along[0] if outputs == 1 else along
        return readouts

    def _counts(self, inputs: Array, sample_weight: Any) -> Array:
        """How often each sample counts; weights with a mean below one are importances and get the mean one."""
        counts = np.asarray(
            _check_sample_weight(sample_weight, inputs, dtype=np.float64, ensure_non_negative=True)
        )
        used = counts > 0
        mean = counts[used].mean() if used.any() else 1.0
        return counts / mean if mean < 1 else counts

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
        if self.whiten:
            scaled = (inputs - mean) / self.scale_ * np.sqrt(counts / total)[:, None]
            values, vectors = linalg.eigh(scaled.T @ scaled, check_finite=False)
            large = values > 1e-10 * max(values[-1], 1e-300)
            self.whitening_ = vectors[:, large] / np.sqrt(values[large])
            live = float(max(large.sum(), 1))
        return live

    def _standardised(self, inputs: Array) -> Matrix:
        scaled = (inputs - self.mean_) / self.scale_
        if self.whitening_ is not None:
            scaled = scaled @ self.whitening_
        return cast(Matrix, scaled.astype(self.dtype, copy=False))

    def _back(self, rows: Array) -> Array:
        """Rows of coefficients on the standardised columns from coefficients on the network's inputs."""
        return rows if self.whitening_ is None else rows @ self.whitening_.T

    def _shares(self, sample: _Sample, live: float, random: Any) -> tuple[_Sample, _Sample, bool]:
        """Samples that take the step, those of the ridge fit, and whether leave-one-out is honest."""
        if self.split is None:
            return sample, sample, bool(sample.counts.sum() >= LOO_SAMPLES_PER_INPUT * live)
        if isinstance(self.split, bool) or not isinstance(self.split, numbers.Real) or not 0 < self.split < 1:
            raise ValueError(f"split must be None or a share between 0 and 1, got {self.split!r}")
        order = random.permutation(len(sample))
        taken = int(np.clip(round(float(self.split) * len(sample)), 1, len(sample) - 1))
        if len(sample) - taken < 2:
            raise ValueError(
                f"split={self.split} leaves {len(sample) - taken} of {len(sample)} samples for the ridge"
            )
        return sample.at(np.sort(order[:taken])), sample.at(np.sort(order[taken:])), True

    def _candidates(self, sample: _Sample, start: _Start, gradient: Array) -> tuple[Array, Array]:
        """Step sizes (S,) and, for each, ridges (S, R)."""
        # A share of the samples is enough to measure sizes.
        few = sample.at(np.unique(np.linspace(0, len(sample) - 1, min(len(sample), 2000)).astype(np.intp)))
        share = few.counts / few.counts.sum()
        before = few.inputs @ start.weights.T + start.biases
        if isinstance(self.step_size, str) and self.step_size == "auto":
            moved = (share @ (few.inputs @ gradient.T) ** 2).sum()
            unit = float(np.sqrt((share @ (before - start.biases) ** 2).sum() / moved)) if moved > 0 else 0.0
            steps = np.unique(np.array(STEP_GRID) * unit / self.n_steps)
        else:
            steps = np.unique(_positive("step_size", self.step_size, zero=True))
        if isinstance(self.ridge, str) and self.ridge == "auto":
            ridges = np.empty((len(steps), len(RIDGE_GRID)))
            push = few.inputs @ gradient.T
            for i, step in enumerate(steps):
                block = start.activation(before + step * push)
                variance = float((share @ (block - share @ block) ** 2).sum())
                ridges[i] = np.array(RIDGE_GRID) * (variance if variance > 0 else 1.0)
        else:
            given = np.unique(_positive("ridge", self.ridge))
            ridges = np.broadcast_to(given, (len(steps), len(given)))
        return steps, ridges

    def _choose_by_loo(
        self,
        taker: _Sample,
        fitter: _Sample,
        start: _Start,
        first: Array,
        step_sizes: Array,
        ridges: Array,
        how: str,
    ) -> tuple[_Choice, _Readouts | None]:
        judged: list[tuple[Array, Array]] = []
        found = None
        with _Progress(len(step_sizes), bool(self.verbose)) as progress:
            for step_size, row in zip(step_sizes, ridges, strict=True):
                weights = _moved(taker, start, first, float(step_size), self.n_steps)
                found = _ridge(_Design(fitter, start, weights), row, leave_out=True)
                judged.append(_judged(cast(Array, found.left_out), fitter.counts))
                progress.advance()
        choice = _choose(step_sizes, ridges, judged, fitter.counts, fitter.targets.shape[1], how)
        return choice, found if ridges.size == 1 else None

    def _choose_by_folds(
        self, sample: _Sample, folds: Index, start: _Start, step_sizes: Array, ridges: Array
    ) -> _Choice:
        present = np.unique(folds)
        # Single precision is enough to compare errors, and these arrays are the largest.
        squares = [np.zeros((len(sample), ridges.shape[1]), dtype=np.float32) for _ in step_sizes]
        inside = [np.flatnonzero(folds == fold) for fold in present]
        if len(present) == 1:
            # All rows are equal: there is nothing to learn and nothing to choose.
            return _Choice(
                step_sizes, ridges, np.zeros(ridges.shape), 0, ridges.shape[1] - 1, how="no choice"
            )
        parts = [_gradient(sample.at(rows), start, start.weights) for rows in inside]
        whole = np.sum(parts, axis=0)
        with _Progress(len(step_sizes) * len(present), bool(self.verbose)) as progress:
            for rows, part in zip(inside, parts, strict=True):
                judged = sample.at(rows)
                others = sample.at(np.flatnonzero(~np.isin(np.arange(len(sample)), rows)))
                first = (whole - part) / others.counts.sum()
                for i, step_size in enumerate(step_sizes):
                    weights = _moved(others, start, first, float(step_size), self.n_steps)
                    readouts = _ridge_to_judge(_Design(others, start, weights), ridges[i])
                    squares[i][rows] = readouts.errors(_Design(judged, start, weights))
                    progress.advance()
        how = f"{len(present)}-fold cross-fitting of step and ridge"
        found = [_judged(square, sample.counts) for square in squares]
        return _choose(step_sizes, ridges, found, sample.counts, sample.targets.shape[1], how)

    def _blocks(self, inputs: Array) -> Iterator[tuple[slice, Matrix]]:
        size = max(64, BLOCK_ELEMENTS // len(self.weights_))
        for low in range(0, len(inputs), size):
            part = slice(low, low + size)
            before = self._standardised(inputs[part]) @ self.weights_.T + self.biases_
            yield part, self.activation_(before)

    def _outputs(self, inputs: Array) -> Array:
        """Values (n, k) of the fitted network, in the units of the targets."""
        coefficients = np.atleast_2d(self.coef_)
        result = np.empty((len(inputs), len(coefficients)))
        for part, block in self._blocks(inputs):
            result[part] = block @ coefficients.T
        result += self.intercept_
        return result

    def _keep_readout(self, readouts: _Readouts, scales: Array) -> None:
        coefficients, intercepts = (
            readouts.coefficients[0].T * scales[:, None],
            readouts.intercepts[0] * scales,
        )
        self.coef_, self.intercept_ = coefficients, intercepts + self._level

    def _numbers(self, y: Array, sample_weight: Any) -> tuple[Array, Array]:
        """Targets (n, k) and their standard deviations; their means are kept."""
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        counts = self._counts(targets, sample_weight)
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
        counts = self._counts(targets, sample_weight)
        self._level = counts @ targets / counts.sum()
        spread = np.sqrt(np.mean(counts @ (targets - self._level) ** 2 / counts.sum()))
        return targets, np.full(targets.shape[1], float(spread) if spread > 0 else 1.0)


class OneStepRegressor(MultiOutputMixin, RegressorMixin, _OneStep):  # type: ignore[misc]
    r"""Ridge regression on random features that have taken one gradient step.

    .. math:: W_1 = W_0 + \eta G, \quad f(x) = a_0 + \hat a \cdot \sigma(W_1 \bar x + \text{bias})

    [Ba22]_, with :math:`\bar x` the standardised input and :math:`G` as in :func:`firststep.network.gradient_step`.
    The targets are standardised too, so that a step size means the same for all data.

    Parameters
    ----------
    width : int, default=500
        Neurons N.
    activation : str, callable or Function, default="relu"
        :math:`\sigma`, as :func:`firststep.function` takes it.
    step_size : "auto", float or list of float, default="auto"
        :math:`\eta`, or candidates. "auto" tries 0 and six sizes that move the pre-activations by 1/4 to 8 times
        their own size, and takes none of them unless the error falls by more than twice its standard error.
    ridge : "auto", float or list of float, default="auto"
        :math:`\lambda`, or candidates; chosen together with the step size.
    bias : float, default=0.5
        Standard deviation of the neurons' biases, which are drawn and stay; 0 is the network of the theory.
    split : float, optional
        Share of the samples that takes the step; the others fit the readout, as in the theory. None (the default)
        lets all samples do both, which predicts better: see Notes.
    whiten : bool, default=False
        Whether the inputs are made uncorrelated (principal components of unit variance) and not only standardised.
        For inputs that the theory's isotropic Gaussian describes badly, and many more samples than inputs.
    n_steps : int, default=1
        Gradient steps of size :math:`\eta` on the first layer, with the first readout kept.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the features; the ridge is solved in double precision.
    random_state : int, RandomState instance or None, default=None
        Source of the first layer, the first readout and the split.
    verbose : bool or int, default=False
        Whether a progress bar is shown on standard error.

    Attributes
    ----------
    step_size_, ridge_ : float
        What was taken.
    loo_path_ : dict
        Why: `step_sizes` (S,), `ridges` (S, R), `errors` (S, R), the mean squared errors in units of the targets'
        variance; `gain` and `gain_stderr`, the fall in error from the best without a step to the best, and its
        paired standard error; `how`, which estimate of the error this is.
    spectrum_ : ndarray (min(n, N),)
        Eigenvalues of the covariance of the features after the step, largest first.
    direction_ : ndarray (d,) or (k, d)
        Unit vector along b, the direction in which the step moves the neurons, as coefficients on the standardised
        inputs.
    weights_ : ndarray (N, d)
        First layer after the step, for standardised (and whitened) inputs.
    biases_ : ndarray (N,)
        Its biases.
    coef_ : ndarray (N,) or (k, N)
        Readout.
    intercept_ : float or ndarray (k,)
        Intercept.
    mean_, scale_ : ndarray (d,)
        Standardisation of the inputs; the scale of a constant column is infinite.
    whitening_ : ndarray (d, r) or None
        What the standardised inputs are multiplied by.
    activation_ : Function
        Activation.
    n_features_in_ : int
        Inputs d seen in fit.
    feature_names_in_ : ndarray of str
        Their names, if they all are strings.

    Notes
    -----
    With `split` the readout's samples are independent of the step, and step size and ridge are chosen by their
    exact leave-one-out error, from one factorisation for each step size. When the same samples do both, a sample's
    features already know its target through the step (at d = n/2 leave-one-out then reports less than half of the
    true error), and the choice is made by cross-fitting: each fifth of the samples is predicted by a step and a
    ridge that both have not seen it, one factorisation for each fifth and step size. From 100 samples for each
    input on the deception is negligible and leave-one-out is used again.

    Several targets are one network with several outputs: each neuron draws a readout for every target, and the
    step is the gradient of the summed squared error.

    A sample weight of 2 is the same as having the sample twice. Weights with a mean below one are scaled to mean one.

    Examples
    --------
    >>> import numpy as np
    >>> inputs = np.random.default_rng(0).standard_normal((300, 20))
    >>> targets = np.tanh(2 * inputs[:, 0])
    >>> model = OneStepRegressor(width=200, random_state=0).fit(inputs[:200], targets[:200])
    >>> still = OneStepRegressor(width=200, random_state=0, step_size=0).fit(inputs[:200], targets[:200])
    >>> print(f"{model.score(inputs[200:], targets[200:]):.2f} {still.score(inputs[200:], targets[200:]):.2f}")
    0.88 0.73
    """

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Take the step and fit the readout.

        Parameters
        ----------
        X : array_like (n, d)
            Inputs.
        y : array_like (n,) or (n, k)
            Targets.
        sample_weight : array_like (n,), optional
            How often each sample counts.

        Returns
        -------
        self
            The fitted estimator.
        """
        inputs, given = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2
        )
        targets, scales = self._numbers(given, sample_weight)
        readouts = self._fit(inputs, targets, scales, sample_weight)
        self._keep_readout(readouts, scales)
        if np.ndim(given) == 1:
            self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Predicted targets, (n,) or (n, k) like those of `fit`.

        Parameters
        ----------
        X : array_like (n, d)
            Inputs.
        """
        check_is_fitted(self)
        inputs = validate_data(self, X, dtype=np.float64, reset=False)
        found = self._outputs(inputs)
        return found[:, 0] if np.ndim(self.coef_) == 1 else found


class OneStepClassifier(ClassifierMixin, _OneStep):  # type: ignore[misc]
    """Classification by ridge regression on -1 and 1, on random features that have taken one gradient step.

    One output for two classes; for more, one for each class against the rest, all learned by one network.
    Parameters, attributes and the choice of step size and ridge are those of `OneStepRegressor`, with the squared
    error of the outputs as the error.

    Parameters
    ----------
    width : int, default=500
        Neurons N.
    activation : str, callable or Function, default="relu"
        Activation.
    step_size : "auto", float or list of float, default="auto"
        Step size or candidates.
    ridge : "auto", float or list of float, default="auto"
        Ridge or candidates.
    bias : float, default=0.5
        Standard deviation of the neurons' biases, which are drawn and stay; 0 is the network of the theory.
    split : float, optional
        Share of the samples that takes the step.
    whiten : bool, default=False
        Whether the inputs are made uncorrelated.
    n_steps : int, default=1
        Gradient steps.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the features.
    random_state : int, RandomState instance or None, default=None
        Source of the first layer, the first readout and the split.
    verbose : bool or int, default=False
        Whether a progress bar is shown on standard error.

    Attributes
    ----------
    classes_ : ndarray (k,)
        Classes, sorted.
    step_size_, ridge_, loo_path_, spectrum_, direction_, weights_, biases_, coef_, intercept_, mean_, scale_, \
whitening_, activation_, n_features_in_, feature_names_in_
        As in `OneStepRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> inputs = np.random.default_rng(0).standard_normal((300, 20))
    >>> labels = np.where(inputs[:, 0] > 0.5, "yes", "no")
    >>> model = OneStepClassifier(width=200, random_state=0).fit(inputs[:200], labels[:200])
    >>> print(model.classes_.tolist(), f"{model.score(inputs[200:], labels[200:]):.2f}")
    ['no', 'yes'] 0.95
    """

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Take the step and fit the readout.

        Parameters
        ----------
        X : array_like (n, d)
            Inputs.
        y : array_like (n,)
            Classes.
        sample_weight : array_like (n,), optional
            How often each sample counts.

        Returns
        -------
        self
            The fitted estimator.
        """
        inputs, given = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        labels = column_or_1d(given, warn=True)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        targets, scales = self._signs(self.classes_, codes, sample_weight)
        self._keep_readout(self._fit(inputs, targets, scales, sample_weight), scales)
        return self

    def decision_function(self, X: ArrayLike) -> Array:
        """Outputs of the network: (n,) for two classes, the second where positive, else (n, k).

        Parameters
        ----------
        X : array_like (n, d)
            Inputs.
        """
        check_is_fitted(self)
        inputs = validate_data(self, X, dtype=np.float64, reset=False)
        found = self._outputs(inputs)
        return found[:, 0] if len(self.classes_) == 2 else found

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Class with the largest output, (n,).

        Parameters
        ----------
        X : array_like (n, d)
            Inputs.
        """
        found = self.decision_function(X)
        winner = (found > 0).astype(np.intp) if found.ndim == 1 else found.argmax(axis=1)
        return cast(NDArray[Any], self.classes_[winner])


class OneStepFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _OneStep):  # type: ignore[misc]
    """Random features after one gradient step, for a model of your own on top.

    The step size is chosen as `OneStepRegressor` does, by a ridge readout. The features of the samples that took the
    step know their own targets: a model on top that tunes itself by leave-one-out or on the training error is
    deceived as long as there are fewer than about 100 samples for each input. Tune the whole pipeline by
    cross-validation.

    Parameters
    ----------
    width : int, default=500
        Neurons N.
    activation : str, callable or Function, default="relu"
        Activation.
    step_size : "auto", float or list of float, default="auto"
        Step size or candidates.
    ridge : "auto", float or list of float, default="auto"
        Ridge or candidates of the readout that judges the step.
    bias : float, default=0.5
        Standard deviation of the neurons' biases, which are drawn and stay; 0 is the network of the theory.
    split : float, optional
        Share of the samples that takes the step.
    whiten : bool, default=False
        Whether the inputs are made uncorrelated.
    n_steps : int, default=1
        Gradient steps.
    target : {"auto", "numbers", "classes"}, default="auto"
        What y holds. "auto" takes numbers as numbers and everything else as classes; say "classes" for classes that are
        written as numbers, if there are more than two.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the features.
    random_state : int, RandomState instance or None, default=None
        Source of the first layer, the first readout and the split.
    verbose : bool or int, default=False
        Whether a progress bar is shown on standard error.

    Attributes
    ----------
    step_size_, ridge_, loo_path_, spectrum_, direction_, weights_, biases_, mean_, scale_, whitening_, activation_, \
n_features_in_, feature_names_in_
        As in `OneStepRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> inputs = np.random.default_rng(0).standard_normal((100, 5))
    >>> maker = OneStepFeatures(width=8, random_state=0).fit(inputs, inputs[:, 0] ** 3)
    >>> maker.transform(inputs).shape, maker.get_feature_names_out()[:2].tolist()
    ((100, 8), ['onestepfeatures0', 'onestepfeatures1'])
    """

    def __init__(
        self,
        width: int = 500,
        activation: Any = "relu",
        step_size: Any = "auto",
        ridge: Any = "auto",
        *,
        bias: float = 0.5,
        split: float | None = None,
        whiten: bool = False,
        n_steps: int = 1,
        target: str = "auto",
        dtype: str = "float64",
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        super().__init__(
            width,
            activation,
            step_size,
            ridge,
            bias=bias,
            split=split,
            whiten=whiten,
            n_steps=n_steps,
            dtype=dtype,
            random_state=random_state,
            verbose=verbose,
        )
        self.target = target

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Take the step.

        Parameters
        ----------
        X : array_like (n, d)
            Inputs.
        y : array_like (n,) or (n, k)
            Targets, or classes (n,).
        sample_weight : array_like (n,), optional
            How often each sample counts.

        Returns
        -------
        self
            The fitted transformer.
        """
        if self.target not in TARGETS:
            raise ValueError(f"target must be one of {', '.join(TARGETS)}; got {self.target!r}")
        classes = self.target == "classes" or (
            self.target == "auto" and np.asarray(y).dtype.kind not in "iuf"
        )
        inputs, given = validate_data(
            self,
            X,
            y,
            dtype=np.float64,
            multi_output=not classes,
            y_numeric=not classes,
            ensure_min_samples=2,
        )
        if classes:
            labels = column_or_1d(given, warn=True)
            check_classification_targets(labels)
            targets, scales = self._signs(*np.unique(labels, return_inverse=True), sample_weight)
        else:
            targets, scales = self._numbers(given, sample_weight)
        self._fit(inputs, targets, scales, sample_weight)
        return self

    def transform(self, X: ArrayLike) -> Matrix:
        """Features after the step, (n, N).

        Parameters
        ----------
        X : array_like (n, d)
            Inputs.
        """
        check_is_fitted(self)
        inputs = validate_data(self, X, dtype=np.float64, reset=False)
        result = np.empty((len(inputs), len(self.weights_)), dtype=self.dtype)
        for part, block in self._blocks(inputs):
            result[part] = block
        return cast(Matrix, result)

    @property
    def _n_features_out(self) -> int:
        return len(self.weights_)
