"""The scikit-learn estimators: what they share, and the contract."""

import numbers
from collections.abc import Iterator
from dataclasses import replace
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

from firststep.estimator.choice import Choice, Pair, choose_by_leave_one_out, ranks
from firststep.estimator.readout import Design, Readouts, ridge
from firststep.estimator.step import BLOCK_ELEMENTS, Index, Network, Sample, Step, metric
from firststep.gaussian import Array, Function, function
from firststep.network import Matrix

DTYPES = ("float64", "float32")
TARGETS = ("auto", "numbers", "classes")
# Step sizes that "auto" tries, as the root mean square by which the step moves the pre-activations over their
# own before it. Unlike eta itself this does not depend on the scale or the correlations of the inputs.
STEP_GRID = (0.0, 0.5, 1.5, 4.0, 12.0)
# Ridges that "auto" tries, over the total variance of the features.
RIDGE_GRID = tuple(np.geomspace(1e-7, 10.0, 25).tolist())
# From this many samples for each input on, a sample's own part in the step no longer deceives leave-one-out.
LOO_SAMPLES_PER_INPUT = 100


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
        activation: Any = "softplus",
        step_size: Any = "auto",
        ridge: Any = "auto",
        *,
        bias: float = 1.0,
        split: float | None = None,
        whiten: bool | str = "step",
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

    def _fit(self, inputs: Array, targets: Array, scales: Array, sample_weight: Any) -> Readouts:
        """Fit on checked inputs (n, d) and targets (n, k); the scales are what the targets are divided by."""
        width, n_steps = _whole("width", self.width), _whole("n_steps", self.n_steps)
        self._check()
        activation = function(self.activation)
        activation.derivative(np.array([0.5]))
        random = check_random_state(self.random_state)
        counts = self._counts(inputs, sample_weight)
        used = counts > 0
        if not used.all():
            inputs, targets, counts = inputs[used], targets[used], counts[used]
        if len(inputs) < 2:
            raise ValueError(f"at least 2 samples with a positive weight are needed, got {len(inputs)}")
        rank = ranks(inputs)
        live = self._standardise(inputs, counts)
        sample = Sample(self._standardised(inputs), (targets - self._level) / scales, counts)

        dim, outputs = sample.inputs.shape[1], targets.shape[1]
        shape = np.dtype(self.dtype)
        start = Network(
            (random.standard_normal((width, dim)) / np.sqrt(live)).astype(shape),
            (self.bias * random.standard_normal(width)).astype(shape),
            # Signs: then all neurons move equally far.
            ((2 * random.randint(2, size=(width, outputs)) - 1) / np.sqrt(width)).astype(shape),
            activation,
        )
        taker, fitter = self._shares(sample, rank, random)
        step = self._step(taker, start, sample.probe())
        if self._is_halved(fitter, live):
            parts = [fitter.at(np.flatnonzero(rank % 2 == side)) for side in (0, 1)]
            if min(part.total for part in parts) >= 2:
                first, second = (self._step(part, start, step.probe) for part in parts)
                step = replace(step, halves=(first, second))
        step_sizes, ridges = self._candidates(step)
        choice = self._choose(step, fitter, step_sizes, ridges)
        network = step.network(choice.step_size, n_steps)
        readouts = choice.readouts
        if readouts is None:
            readouts = ridge(Design(fitter, network), np.array([choice.best_ridge]))

        self.activation_, self.weights_, self.biases_ = activation, network.weights, network.biases
        self.step_size_, self.ridge_ = choice.step_size, choice.best_ridge
        self.loo_path_ = choice.path()
        self.spectrum_ = readouts.spectrum
        along = np.asarray(self._back(step.directions()), dtype=np.float64)
        norms = np.linalg.norm(along, axis=1, keepdims=True)
        along /= np.where(norms > 0, norms, 1.0)
        self.direction_ = along[0] if outputs == 1 else along
        return readouts

    def _check(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {self.dtype!r}")
        if not (isinstance(self.whiten, bool | np.bool_) or self.whiten == "step"):
            raise ValueError(f"whiten must be 'step', True or False; got {self.whiten!r}")
        if (
            isinstance(self.bias, bool)
            or not isinstance(self.bias, numbers.Real)
            or not 0 <= self.bias < np.inf
        ):
            raise ValueError(f"bias must be a finite number, not negative; got {self.bias!r}")

    def _step(self, taker: Sample, start: Network, probe: Sample) -> Step:
        return Step(taker, start, metric(taker) if self.whiten == "step" else None, probe)

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
        scaled = (inputs - self.mean_) / self.scale_
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

    def _candidates(self, step: Step) -> tuple[Array, Array]:
        """Step sizes (S,) and, for each, ridges (S, R)."""
        if self._relative:
            steps = np.unique(np.array(STEP_GRID) * step.unit / self.n_steps)
        else:
            steps = np.unique(_positive("step_size", self.step_size, zero=True))
        if not (isinstance(self.ridge, str) and self.ridge == "auto"):
            given = np.unique(_positive("ridge", self.ridge))
            return steps, np.broadcast_to(given, (len(steps), len(given)))
        share = step.probe.counts / step.probe.total
        ridges = np.empty((len(steps), len(RIDGE_GRID)))
        for row, step_size in zip(ridges, steps, strict=True):
            block = step.network(float(step_size), 1).features(step.probe.inputs)
            variance = float((share @ (block - share @ block) ** 2).sum())
            row[:] = np.array(RIDGE_GRID) * (variance if variance > 0 else 1.0)
        return steps, ridges

    @property
    def _relative(self) -> bool:
        return isinstance(self.step_size, str) and self.step_size == "auto"

    def _is_halved(self, sample: Sample, live: float) -> bool:
        """Whether the samples would be used twice, there is something to choose, and few samples for each input."""
        if self.split is not None or sample.total >= LOO_SAMPLES_PER_INPUT * live:
            return False
        # Wrong values are named where the candidates are made.
        numbers_only = [v for v in (self.step_size, self.ridge) if not isinstance(v, str)]
        single = len(numbers_only) == 2 and all(np.size(v) == 1 for v in numbers_only)
        still = not isinstance(self.step_size, str) and not np.any(self.step_size)
        return not (single or still)

    def _choose(self, step: Step, fitter: Sample, step_sizes: Array, ridges: Array) -> Choice:
        options: dict[str, Any] = {
            "n_steps": int(self.n_steps),
            "descend": self._relative,
            "verbose": bool(self.verbose),
        }
        whole = [Pair(step, 1.0, fitter)]
        if step.halves is None:
            honest = self.split is not None or not step_sizes.any()
            how = "leave-one-out" + ("" if honest else ", of samples that also took the step")
            return choose_by_leave_one_out(whole, step_sizes, ridges, how=how, **options)
        # Equal moves, not equal eta: the gradient of fewer samples is longer.
        pairs = [
            Pair(one, one.unit / step.unit if self._relative and step.unit else 1.0, other.sample)
            for one, other in (step.halves, step.halves[::-1])
        ]
        how = "leave-one-out on two halves, each with the step of the other"
        choice = choose_by_leave_one_out(pairs, step_sizes, ridges, how=how, **options)
        if choice.step_size:
            return choice
        # Without a step nothing is used twice, and the ridge can be chosen on all samples.
        found = choose_by_leave_one_out(whole, step_sizes[:1], ridges[:1], int(self.n_steps), how)
        return replace(choice, ridge=found.ridge, readouts=found.readouts)

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

    def _keep_readout(self, readouts: Readouts, scales: Array) -> None:
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

    .. math:: W_1 = W_0 + \eta\, (1 + \mu)\, G\, (C + \mu)^{-1}, \quad
        f(x) = a_0 + \hat a \cdot \sigma(W_1 \bar x + \text{bias})

    [Ba22]_, with :math:`\bar x` the standardised input, C its covariance and :math:`G` as in
    :func:`firststep.network.gradient_step`, with signs for the first readout. For isotropic inputs the factor
    beside G is one: the step of the theory. The targets are standardised too, so that a step size means the
    same for all data.

    Parameters
    ----------
    width : int, default=500
        Neurons N.
    activation : str, callable or Function, default="softplus"
        :math:`\sigma`, as :func:`firststep.function` takes it.
    step_size : "auto", float or list of float, default="auto"
        :math:`\eta`, or candidates. "auto" tries 0 and up to four sizes that move the pre-activations by 1/2 to 12
        times their own size, the largest first, and takes none of them unless the error falls by more than
        twice its standard error.
    ridge : "auto", float or list of float, default="auto"
        :math:`\lambda`, or candidates; chosen together with the step size.
    bias : float, default=1.0
        Standard deviation of the neurons' biases. They are drawn, and grow with the pre-activations when a step is
        taken; 0 is the network of the theory.
    split : float, optional
        Share of the samples that takes the step; the others fit the readout, as in the theory. None (the default)
        lets all samples do both, which predicts better: see Notes.
    whiten : {"step", True, False}, default="step"
        "step" takes the gradient in the inputs' own metric, as in the formula: the direction b of the step is
        then that of linear ridge regression, whose ridge, chosen by leave-one-out, is :math:`\mu`. True makes
        the inputs themselves uncorrelated, which also changes the random features; False is the plain gradient.
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
        Why: `step_sizes` (S,) that were tried, `ridges` (S, R), `errors` (S, R), the mean squared errors in
        units of the targets' variance; `gain` and `gain_stderr`, the fall in error from the best without a step
        to the best, and its paired standard error; `how`, which estimate of the error this is.
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
    whitening_ : ndarray (d, d) or None
        What the standardised inputs are multiplied by.
    activation_ : Function
        Activation.
    n_features_in_ : int
        Inputs d seen in fit.
    feature_names_in_ : ndarray of str
        Their names, if they all are strings.

    Notes
    -----
    Step size and ridge are chosen together by exact leave-one-out errors, from one factorisation for each step
    size. With `split` the readout's samples are independent of the step, and their errors are honest. When the
    same samples do both, a sample's features already know its target through the step, and leave-one-out would
    be deceived. So the samples are halved for the choice: each half has a readout on the features of the
    other's step, with the exact leave-one-out error of that. The step and the readout that are kept then use
    all samples, with the step size and the ridge so chosen. The errors in `loo_path_` are those of half the
    samples, and mostly larger than the final one. Without a step nothing is used twice, and from 100 samples
    for each input on the deception is negligible: there all samples are judged together.

    Several targets are one network with several outputs: each neuron draws a readout for every target, and the
    step is the gradient of the summed squared error.

    A sample weight of 2 is the same as having the sample twice. Weights with a mean below one are scaled to
    mean one.

    Examples
    --------
    >>> import numpy as np
    >>> inputs = np.random.default_rng(0).standard_normal((300, 20))
    >>> targets = np.tanh(2 * inputs[:, 0])
    >>> model = OneStepRegressor(width=200, random_state=0).fit(inputs[:200], targets[:200])
    >>> still = OneStepRegressor(width=200, random_state=0, step_size=0).fit(inputs[:200], targets[:200])
    >>> print(f"{model.score(inputs[200:], targets[200:]):.2f} {still.score(inputs[200:], targets[200:]):.2f}")
    1.00 0.75
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
    activation : str, callable or Function, default="softplus"
        Activation.
    step_size : "auto", float or list of float, default="auto"
        Step size or candidates.
    ridge : "auto", float or list of float, default="auto"
        Ridge or candidates.
    bias : float, default=1.0
        Standard deviation of the neurons' biases. They are drawn, and grow with the pre-activations when a step is
        taken; 0 is the network of the theory.
    split : float, optional
        Share of the samples that takes the step.
    whiten : {"step", True, False}, default="step"
        Whether the step, or the inputs themselves, are made independent of the inputs' correlations.
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

    The step size is chosen as `OneStepRegressor` does, by a ridge readout. The features of the samples that
    took the step know their own targets: a model on top that tunes itself by leave-one-out or on the training
    error is deceived as long as there are fewer than about 100 samples for each input. Tune the whole pipeline
    by cross-validation.

    Parameters
    ----------
    width : int, default=500
        Neurons N.
    activation : str, callable or Function, default="softplus"
        Activation.
    step_size : "auto", float or list of float, default="auto"
        Step size or candidates.
    ridge : "auto", float or list of float, default="auto"
        Ridge or candidates of the readout that judges the step.
    bias : float, default=1.0
        Standard deviation of the neurons' biases. They are drawn, and grow with the pre-activations when a step is
        taken; 0 is the network of the theory.
    split : float, optional
        Share of the samples that takes the step.
    whiten : {"step", True, False}, default="step"
        Whether the step, or the inputs themselves, are made independent of the inputs' correlations.
    n_steps : int, default=1
        Gradient steps.
    target : {"auto", "numbers", "classes"}, default="auto"
        What y holds. "auto" takes numbers as numbers and everything else as classes; say "classes" for classes
        that are written as numbers, if there are more than two.
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
        activation: Any = "softplus",
        step_size: Any = "auto",
        ridge: Any = "auto",
        *,
        bias: float = 1.0,
        split: float | None = None,
        whiten: bool | str = "step",
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
