"""The gradient step on data of any size: in blocks, weighted, with several targets, in the inputs' own metric."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from firststep.arrays import Matrix
from firststep.gaussian import Array, Function

# Elements of the features that are held at a time.
BLOCK_ELEMENTS = 2**21
# Rows that are enough to measure the size of pre-activations and features.
PROBE_ROWS = 500
# Shrinkages of the covariance among which linear ridge regression chooses, over the variance of an input.
SHRINKAGES = np.geomspace(1e-4, 1e3, 29)
# Beyond this, one minus a leverage is rounding error.
SMALLEST_REST = 1e-9

Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Sample:
    """Standardised inputs (n, d), targets (n, k) and how often each sample counts (n,)."""

    inputs: Matrix
    targets: Array
    counts: Array

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def total(self) -> float:
        """How many samples there are, copies counted."""
        return float(self.counts.sum())

    def at(self, rows: Index) -> "Sample":
        """Some of the samples."""
        return Sample(self.inputs[rows], self.targets[rows], self.counts[rows])

    def blocks(self, width: int) -> Iterator[slice]:
        """Slices whose features, for this many neurons, fit into a block."""
        size = max(64, BLOCK_ELEMENTS // width)
        return (slice(low, low + size) for low in range(0, len(self), size))

    def probe(self) -> "Sample":
        """Few samples, spread evenly."""
        return self.at(np.unique(np.linspace(0, len(self) - 1, min(len(self), PROBE_ROWS)).astype(np.intp)))


@dataclass(frozen=True, eq=False)
class Network:
    """First layer (N, d), biases (N,), the readout at the start (N, k) and sigma."""

    weights: Matrix
    biases: Matrix
    readout: Matrix
    activation: Function

    def features(self, inputs: Matrix) -> Matrix:
        """Features (n, N) of standardised inputs (n, d)."""
        return cast(Matrix, self.activation(inputs @ self.weights.T + self.biases))


def gradient(sample: Sample, network: Network) -> Array:
    r"""Sum over the samples of what each contributes to the first layer's gradient, shape (N, d).

    .. math:: \sum_i c_i \, [\,(A (y_i - f(x_i))) \circ \sigma'(W x_i)\,]\, x_i^\top, \quad
        f(x) = N^{-1/2} A^\top \sigma(W x)

    For one target and equal counts this is n0 times `firststep.arrays.gradient_step`; here the samples come in
    blocks, may count more than once, and have several targets, for each of which every neuron draws a readout.
    """
    total = np.zeros(network.weights.shape)
    scale = 1 / np.sqrt(len(network.weights))
    for part in sample.blocks(len(network.weights)):
        inputs = sample.inputs[part]
        before = inputs @ network.weights.T + network.biases
        output = scale * (network.activation(before) @ network.readout)
        pull = (sample.targets[part] - output) * sample.counts[part, None]
        slopes = network.activation.derivative(before)
        slopes *= pull.astype(inputs.dtype) @ network.readout.T
        total += slopes.T @ inputs
    return total


@dataclass(frozen=True, eq=False)
class Metric:
    r"""The inputs' covariance :math:`C = V \operatorname{diag}(v) V^\top`, shrunk by :math:`\mu`.

    Rows g, gradients or directions, become :math:`(1 + \mu)\, g\, (C + \mu)^{-1}`: the same g for isotropic inputs.
    """

    vectors: Array
    values: Array
    shrinkage: float

    def __call__(self, rows: Array) -> Array:
        """Rows (m, d) in the metric."""
        scale = (1 + self.shrinkage) / (self.values + self.shrinkage)
        return ((rows @ self.vectors) * scale) @ self.vectors.T


def metric(sample: Sample) -> Metric:
    r"""The metric in which :math:`b = X^\top y/n` becomes the coefficients of the best linear ridge regression.

    The shrinkage is that regression's ridge, chosen by its exact leave-one-out error from the one factorisation that
    the metric needs anyway. Rows that are no combinations of the inputs are lost if n < d; a gradient has none.
    """
    roots = np.sqrt(sample.counts / sample.total)[:, None]
    # Two unnamed copies of the inputs at most; the products are in double precision whatever the inputs are.
    rows = sample.inputs * roots
    if len(sample) < sample.inputs.shape[1]:
        values, turned = linalg.eigh(np.asarray(rows @ rows.T, dtype=np.float64), check_finite=False)
        large = values > 1e-10 * max(values[-1], 1e-300)
        values = values[large]
        vectors = np.asarray(rows.T @ turned[:, large] / np.sqrt(values), dtype=np.float64)
    else:
        values, vectors = linalg.eigh(np.asarray(rows.T @ rows, dtype=np.float64), check_finite=False)
        values = np.maximum(values, 0.0)
    if not values.size or values[-1] <= 0:
        return Metric(np.eye(sample.inputs.shape[1]), np.ones(sample.inputs.shape[1]), 0.0)
    pulled = vectors.T @ (rows.T @ (sample.targets * roots))
    del rows
    resolvent = 1 / (values[:, None] + SHRINKAGES)
    shrunk = (pulled[:, None, :] * resolvent[:, :, None]).reshape(len(values), -1)
    errors = np.zeros(len(SHRINKAGES))
    for part in sample.blocks(max(len(values), shrunk.shape[1])):
        turned = sample.inputs[part] @ vectors
        residual = sample.targets[part, None, :] - (turned @ shrunk).reshape(len(turned), len(SHRINKAGES), -1)
        rest = np.maximum(1 - 1 / sample.total - turned**2 @ resolvent / sample.total, SMALLEST_REST)
        errors += sample.counts[part] @ ((residual**2).sum(axis=2) / rest**2)
    return Metric(vectors, values, float(SHRINKAGES[int(errors.argmin())]))


@dataclass(frozen=True, eq=False)
class Step:
    """What a sample does to the network: its gradient, and the weights after steps of any size.

    The biases grow with the pre-activations. If they stayed, a large step would leave nothing of them, and a
    network whose neurons all bend at z = 0.
    """

    sample: Sample
    start: Network
    metric: Metric | None
    probe: Sample
    # Of both halves of the sample, if they are steps of their own: gradients are sums.
    halves: "tuple[Step, Step] | None" = None

    @cached_property
    def total(self) -> Array:
        """Sum of the samples' gradients at the start, (N, d)."""
        if self.halves is not None:
            return self.halves[0].total + self.halves[1].total
        return gradient(self.sample, self.start)

    @cached_property
    def first(self) -> Array:
        """Gradient at the start, (N, d), in the metric."""
        return self._measured(self.total)

    @cached_property
    def unit(self) -> float:
        """The step size that moves the pre-activations by their own size; 0 if no step moves them."""
        moves = self._size(self.first)
        return self._size(self.start.weights) / moves if moves > 0 else 0.0

    def directions(self) -> Array:
        """What the step has learned for each target, (k, d): b = X^T y/n, in the metric."""
        pulled = (self.sample.inputs.T @ (self.sample.targets * self.sample.counts[:, None])).T
        return pulled if self.metric is None else self.metric(pulled)

    def network(self, step_size: float, n_steps: int) -> Network:
        """The network after the steps."""
        if not step_size:
            return self.start
        weights = self.start.weights + step_size * self.first
        for _ in range(n_steps - 1):
            weights = weights + step_size * self._measured(gradient(self.sample, self._with(weights)))
        return self._with(weights)

    def _with(self, weights: Array) -> Network:
        before = self._size(self.start.weights)
        growth = self._size(weights) / before if before > 0 else 1.0
        shape = self.start.weights.dtype
        return Network(
            cast(Matrix, weights.astype(shape)),
            cast(Matrix, (self.start.biases * growth).astype(shape)),
            self.start.readout,
            self.start.activation,
        )

    def _measured(self, total: Array) -> Array:
        mean = total / self.sample.total
        return mean if self.metric is None else self.metric(mean)

    def _size(self, weights: Matrix) -> float:
        """Root mean square of the pre-activations without biases."""
        share = self.probe.counts / self.probe.total
        return float(np.sqrt((share @ (self.probe.inputs @ weights.T) ** 2).mean()))
