"""Directions of the inputs along which a target changes, and a first layer that is drawn along them."""

from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg, optimize

from firststep.estimator.step import Metric, Network, Sample
from firststep.gaussian import Array

# Added to the covariance before the inputs are whitened, over the variance of an input.
FLOOR = 0.01
# Directions that are kept; weaker ones count as isotropic.
MOST_DIRECTIONS = 100


@dataclass(frozen=True, eq=False)
class Directions:
    r"""A positive matrix :math:`M = \sum_k m_k v_k v_k^\top` on the inputs: orthonormal columns (d, r), values (r,)."""

    vectors: Array
    values: Array

    def move(self, start: Network, strength: float, scale: float) -> Network:
        r"""The network whose rows have taken a step along the directions.

        .. math:: W_1 = s\, W_0\, (1 - \tau + \tau\, d\, M/\operatorname{tr} M)^{1/2}

        In law this is :math:`W_0 + \sqrt\eta A M^{1/2}` with fresh A, made as long as before: one gradient step for
        :math:`M = b b^\top`, with :math:`\eta \propto \tau/(1-\tau)` [firststep].
        """
        total = float(self.values.sum())
        weights = np.asarray(start.weights, dtype=np.float64)
        if total > 0 and strength > 0:
            grown = 1 - strength + strength * len(self.vectors) * self.values / total
            rest = np.sqrt(1 - strength)
            weights = rest * weights + ((weights @ self.vectors) * (np.sqrt(grown) - rest)) @ self.vectors.T
        shape = start.weights.dtype
        return replace(
            start,
            weights=(scale * weights).astype(shape),
            biases=(scale * start.biases).astype(shape),
        )


def still(dim: int) -> Directions:
    """No directions: the network only gets its scale."""
    return Directions(np.zeros((dim, 0)), np.zeros(0))


def _of(matrix: Array) -> Directions:
    values, vectors = linalg.eigh(matrix, check_finite=False)
    order = np.argsort(-values)[:MOST_DIRECTIONS]
    return Directions(vectors[:, order], np.maximum(values[order], 0.0))


def edges(labels: Array, shares: Array, ratio: float) -> tuple[float, float]:
    r"""Ends of the spectrum of :math:`Z^\top \operatorname{diag}(y) Z/n` for labels that know nothing of Z.

    .. math:: z(m) = -\frac1m + E\Bigl[\frac{y}{1 + \phi\, y\, m}\Bigr], \quad \phi = d/n

    The upper end is the smallest value of z for m between :math:`-1/(\phi \max y)` and 0 [Silverstein95]; the lower one
    is the upper one of -y.
    """

    def upper(values: Array) -> float:
        largest = float(values.max())
        if largest <= 0:
            return 0.0

        def place(share: float) -> float:
            m = -share / (ratio * largest)
            return float(-1 / m + shares @ (values / (1 + ratio * values * m)))

        found = optimize.minimize_scalar(place, bounds=(1e-6, 1 - 1e-9), method="bounded")
        return float(found.fun)

    return -upper(-labels), upper(labels)


def of_target(sample: Sample, metric: Metric | None) -> Directions:
    r"""Directions of the target's linear and quadratic parts: what one gradient step and one spectral step see.

    .. math:: M = b b^\top + \sum_k \lambda_k^2 v_k v_k^\top

    with b the direction of linear ridge regression and :math:`\lambda_k, v_k` the eigenvalues of
    :math:`X^\top \operatorname{diag}(r) X/n` beyond the edges of its bulk, for whitened inputs and the residual r
    of the linear part: for Gaussian inputs the average of :math:`\nabla f \nabla f^\top` of the best quadratic f
    [firststep].
    """
    total, dim = sample.total, sample.inputs.shape[1]
    pulled = (sample.inputs.T @ (sample.targets * sample.counts[:, None])).T / total
    slopes = np.asarray(
        pulled if metric is None else metric(pulled) / (1 + metric.shrinkage), dtype=np.float64
    )
    if 2 * dim > total:
        norms = np.linalg.svd(slopes, full_matrices=False)
        return Directions(norms[2].T, norms[1] ** 2)
    matrix = slopes.T @ slopes
    if metric is None:
        root, white = np.eye(dim), np.asarray(sample.inputs, dtype=np.float64)
    else:
        root = (metric.vectors / np.sqrt(metric.values + FLOOR)) @ metric.vectors.T
        white = sample.inputs @ root
    shares = sample.counts / total
    for column, slope in zip(sample.targets.T, slopes, strict=True):
        rest = column - sample.inputs @ slope
        rest = rest - shares @ rest
        values, vectors = linalg.eigh((white * (shares * rest)[:, None]).T @ white, check_finite=False)
        low, high = edges(rest, shares, dim / total)
        beyond = (values < low) | (values > high)
        along = root @ vectors[:, beyond]
        matrix = matrix + (along * values[beyond] ** 2) @ along.T
    return _of(matrix)


def of_function(sample: Sample, network: Network, coefficients: Array) -> Directions:
    r"""Directions in which a fitted network changes: :math:`M = \frac1n \sum_i \nabla f(x_i) \nabla f(x_i)^\top`.

    The average gradient outer product [Radhakrishnan24]; coefficients (N, k) of the readout.
    """
    dim = sample.inputs.shape[1]
    matrix = np.zeros((dim, dim))
    weights = np.asarray(network.weights, dtype=np.float64)
    for part in sample.blocks(len(weights)):
        slopes = network.activation.derivative(sample.inputs[part] @ network.weights.T + network.biases)
        for column in coefficients.T:
            rows = (slopes * column) @ weights
            matrix += (rows * sample.counts[part, None]).T @ rows
    return _of(matrix / sample.total)
