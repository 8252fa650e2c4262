"""Ridge readouts for many ridges from one factorisation, with exact leave-one-out errors, in bounded memory."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from firststep.arrays import Matrix
from firststep.estimator.step import SMALLEST_REST, Network, Sample
from firststep.gaussian import Array

# Elements of the features that are kept for a second pass.
KEEP_ELEMENTS = 2**25
# About as many ridges are judged at a time.
RIDGES = 25


class Design:
    """Features of a sample, block by block; kept for the second pass where they are few."""

    def __init__(self, sample: Sample, network: Network) -> None:
        self.sample, self.network = sample, network
        self.shape = (len(sample), len(network.weights))
        self._kept: list[Matrix] = []

    def __iter__(self) -> Iterator[tuple[slice, Matrix]]:
        # A block also holds the residuals of all ridges and targets.
        parts = list(self.sample.blocks(max(self.shape[1], RIDGES * self.sample.targets.shape[1])))
        if len(self._kept) == len(parts):
            yield from zip(parts, self._kept, strict=True)
            return
        kept: list[Matrix] = []
        for part in parts:
            block = self.network.features(self.sample.inputs[part])
            if self.shape[0] * self.shape[1] <= KEEP_ELEMENTS:
                kept.append(block)
            yield part, block
        self._kept = kept

    def roots(self, part: slice) -> Array | None:
        """Roots of the counts (m, 1), or None if all are one."""
        counts = self.sample.counts[part, None]
        return None if (counts == 1).all() else np.sqrt(counts)

    def pivot(self) -> Array:
        """A rough mean of the features (N,): what remains after taking it off is centred without loss of digits."""
        few = self.sample.probe()
        return np.asarray(few.counts @ self.network.features(few.inputs) / few.total, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Readouts:
    """Ridge readouts with an intercept, for R ridges.

    Attributes: coefficients (R, N, k), intercepts (R, k), the eigenvalues of the features' covariance, largest
    first, and on request the leave-one-out errors (n, R, k), with their signs.
    """

    coefficients: Array
    intercepts: Array
    spectrum: Array
    left_out: Array | None = None

    def only(self, ridge: int) -> "Readouts":
        """The readout of one ridge, without its errors."""
        return Readouts(
            self.coefficients[[ridge]].copy(), self.intercepts[[ridge]].copy(), self.spectrum.copy()
        )


def ridge(design: Design, ridges: Array, leave_out: bool = False) -> Readouts:
    r"""Ridge regression on centred features for many ridges from one eigendecomposition of the smaller Gram matrix.

    .. math:: \min_{a, a_0} \tfrac1n \sum_i c_i (y_i - a_0 - a \cdot f_i)^2 + \lambda |a|^2, \quad n = \sum_i c_i

    The leave-one-out error is exact: with the unit leverage :math:`h_i = 1/n + f_i^\top (F^\top C F + \lambda n)^{-1}
    f_i` of the centred features, leaving one of the :math:`c_i` copies of sample i out leaves the error
    :math:`r_i/(1 - h_i)`.
    """
    level = design.sample.counts @ design.sample.targets / design.sample.total
    solve = _by_samples if len(design.sample) < design.shape[1] else _by_features
    return solve(design, ridges, level, leave_out)


def solved(design: Design, penalty: float) -> Readouts:
    """The readout of one ridge, by Cholesky: several times faster than all ridges; no spectrum, nothing left out."""
    sample = design.sample
    level = sample.counts @ sample.targets / sample.total
    try:
        if len(sample) < design.shape[1]:
            rows, mean = _centred(design)
            roots = np.sqrt(sample.counts)[:, None]
            dual = _positive(rows @ rows.T / sample.total, penalty, (sample.targets - level) * roots)
            coefficients = rows.T @ dual / sample.total
        else:
            gram, moment, mean = _moments(design, sample.targets - level)
            coefficients = _positive(gram, penalty, moment)
    except linalg.LinAlgError:
        # A ridge below the rounding of the features.
        return ridge(design, np.array([penalty]))
    return Readouts(coefficients[None], _intercepts(coefficients[None], mean, level), np.empty(0))


def _positive(matrix: Array, penalty: float, wanted: Array) -> Array:
    """Solution of a system with a positive matrix, to whose diagonal the penalty is added."""
    matrix.flat[:: len(matrix) + 1] += penalty
    factor = linalg.cho_factor(matrix, overwrite_a=True, check_finite=False)
    return np.asarray(linalg.cho_solve(factor, wanted, check_finite=False))


def _centred(design: Design) -> tuple[Array, Array]:
    """Features (n, N) less their mean, times the roots of the counts, and their mean (N,)."""
    rows = np.concatenate([np.asarray(block, dtype=np.float64) for _, block in design])
    mean = design.sample.counts @ rows / design.sample.total
    rows -= mean
    rows *= np.sqrt(design.sample.counts)[:, None]
    return rows, mean


def _moments(design: Design, targets: Array) -> tuple[Array, Array, Array]:
    """Covariance (N, N) of the features, their moments (N, k) with centred targets, and their mean (N,)."""
    sample, width, total = design.sample, design.shape[1], design.sample.total
    pivot = design.pivot()
    gram, moment, sums = np.zeros((width, width)), np.zeros((width, targets.shape[1])), np.zeros(width)
    for part, block in design:
        rows = block - pivot
        sums += sample.counts[part] @ rows
        # The targets are centred, so that the moment needs no correction for the features' mean.
        moment += rows.T @ (targets[part] * sample.counts[part, None])
        roots = design.roots(part)
        if roots is not None:
            rows *= roots
        gram += rows.T @ rows
    shift = sums / total
    gram /= total
    gram -= np.outer(shift, shift)
    return gram, moment / total, pivot + shift


def _by_features(design: Design, ridges: Array, level: Array, leave_out: bool) -> Readouts:
    sample, width, outputs, total = design.sample, design.shape[1], len(level), design.sample.total
    gram, moment, mean = _moments(design, sample.targets - level)
    values, vectors = linalg.eigh(gram, overwrite_a=True, check_finite=False, driver="evd")
    values = np.maximum(values, 0.0)
    turned = vectors.T @ moment
    shrunk = turned[:, None, :] / (values[:, None] + ridges)[:, :, None]
    coefficients = (vectors @ shrunk.reshape(width, -1)).reshape(width, len(ridges), outputs)
    left_out = None
    if leave_out:
        left_out = np.empty((len(sample), len(ridges), outputs))
        resolvent = 1 / (values[:, None] + ridges) / total
        for part, block in design:
            rows = (block - mean) @ vectors
            residual = sample.targets[part, None, :] - level
            residual = residual - (rows @ shrunk.reshape(width, -1)).reshape(-1, len(ridges), outputs)
            rows *= rows
            rest = np.maximum(1 - 1 / total - rows @ resolvent, SMALLEST_REST)
            left_out[part] = residual / rest[:, :, None]
    coefficients = coefficients.transpose(1, 0, 2)
    return Readouts(coefficients, _intercepts(coefficients, mean, level), values[::-1], left_out)


def _by_samples(design: Design, ridges: Array, level: Array, leave_out: bool) -> Readouts:
    sample, count, outputs, total = design.sample, len(design.sample), len(level), design.sample.total
    counts = sample.counts
    rows, mean = _centred(design)
    targets = (sample.targets - level) * np.sqrt(counts[:, None])
    values, vectors = linalg.eigh(rows @ rows.T / total, overwrite_a=True, check_finite=False, driver="evd")
    values = np.maximum(values, 0.0)
    shrunk = (vectors.T @ targets)[:, None, :] / (values[:, None] + ridges)[:, :, None]
    dual = (vectors @ shrunk.reshape(count, -1)).reshape(count, len(ridges), outputs)
    coefficients = (rows.T @ dual.reshape(count, -1)).reshape(-1, len(ridges), outputs) / total
    left_out = None
    if leave_out:
        residual = dual * ridges[:, None] / np.sqrt(counts)[:, None, None]
        unused = vectors**2 @ (ridges / (values[:, None] + ridges))
        rest = 1 - (1 - unused) / counts[:, None] - 1 / total
        left_out = residual / np.maximum(rest, SMALLEST_REST)[:, :, None]
    coefficients = coefficients.transpose(1, 0, 2)
    return Readouts(coefficients, _intercepts(coefficients, mean, level), values[::-1], left_out)


def _intercepts(coefficients: Array, mean: Array, level: Array) -> Array:
    return np.asarray(level - np.einsum("rnk,n->rk", coefficients, mean))
