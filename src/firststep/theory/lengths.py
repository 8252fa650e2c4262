r"""Lengths of rows and of inputs under a covariance, known of each neuron and of each sample [firststep, covariance].

A row's squared length :math:`\ell^2 = w^\top S w` and an input's, :math:`r^2 = |x|^2/d`, have the variance 2/d', d' =
d over the mean square of the eigenvalues. Given its length, a row has more than its share along the loud directions:
with the multiplier t that makes the mean right,

.. math:: E[w_i^2|\ell] \propto \frac{m_i}{1 - t m_i} .
"""

from dataclasses import dataclass

import numpy as np

from firststep.gaussian import Array, gauss_hermite, length_rule
from firststep.setting import Problem
from firststep.theory.directions import grouped

# Nodes of the rows' length, and the variance below which it is taken as one.
LENGTH_NODES, LENGTH_VARIANCE = 3, 2e-3
# Variance of lengths, beyond that of isotropic inputs, from which on they are known, and the share of a row's length in
# one direction up to which they are: beyond, it is hardly more than the component along that direction.
KNOWN_VARIANCE, LARGEST_SHARE = 2e-3, 0.12
# Nodes of g in averages of the activation's slope.
SLOPE_NODES = 120


@dataclass(frozen=True)
class Tilt:
    """Vectors of known length: nodes and weights of the squared length, and t and the factor for each, (nodes,)."""

    square: Array
    weights: Array
    multiplier: Array
    factor: Array

    def variances(self, nodes: Array, square: Array) -> Array:
        """Of rows with these squared lengths, along directions with these eigenvalues, (nodes, rows)."""
        multiplier, factor = self.of(square)
        return np.asarray(nodes[:, None] * factor / (1 - multiplier * nodes[:, None]))

    def of(self, square: Array) -> tuple[Array, Array]:
        """t and the factor of vectors with these squared lengths, which are among the nodes."""
        index = np.abs(self.square[:, None] - square).argmin(axis=0)
        return self.multiplier[index], self.factor[index]


def _tilted(values: Array, shares: Array, dim: float, unit: bool) -> Tilt:
    """The law of sum m_i w_i^2, as a gamma law of the same variance; with `unit` the sum of w_i^2 is known."""
    variance = 2 * max(float(shares @ values**2) - unit, 0.0) / dim
    if variance < LENGTH_VARIANCE:
        one = np.ones(1)
        return Tilt(one, one, np.zeros(1), one)
    square, weights = length_rule(LENGTH_NODES, 2 / variance)
    if unit:
        # No tilt makes a row of known length shorter than the harmonic mean, or longer than the largest eigenvalue.
        ends = 1 / float(shares @ (1 / values)), float(values.max())
        square = np.clip(square, 0.95 * ends[0] + 0.05, 0.95 * ends[1] + 0.05)
    multiplier = _multipliers(values, shares, square, unit)
    below = 1 - multiplier[:, None] * values
    return Tilt(square, weights, multiplier, 1 / ((1 / below) @ shares) if unit else np.ones_like(square))


def _multipliers(values: Array, shares: Array, square: Array, unit: bool) -> Array:
    """t of vectors with these squared lengths."""
    from scipy.optimize import brentq

    def length(multiplier: float) -> float:
        below = 1 - multiplier * values
        return float(shares @ (values / below) / ((shares @ (1 / below)) if unit else 1.0))

    top = 1 / float(values.max())
    low, high = -1e6 * top, (1 - 1e-9) * top
    return np.array([brentq(lambda t, want=want: length(t) - want, low, high, xtol=1e-14) for want in square])


def row_lengths(problem: Problem, dim: int) -> Tilt:
    """Squared lengths of the rows as they act on whitened inputs."""
    values, shares, _ = grouped(problem.covariance(dim))
    return _tilted(values, shares, dim, problem.row_law.unit_norm)


def lengths_beside(problem: Problem, dim: int, taken: Array) -> Tilt:
    r"""The same of rows whose component along one vector is known, and no part of the length, :math:`|v_m|^2/d`.

    Lengths vary less then; a row of a given length is tilted as before.
    """
    values, shares, _ = grouped(problem.covariance(dim))
    unit = problem.row_law.unit_norm
    rule = _tilted(values, np.maximum(shares - taken, 0.0) / (1 - 1 / dim), dim, unit)
    if len(rule.square) == 1:
        return rule
    multiplier = _multipliers(values, shares, rule.square, unit)
    below = 1 - multiplier[:, None] * values
    factor = 1 / ((1 / below) @ shares) if unit else np.ones_like(rule.square)
    return Tilt(rule.square, rule.weights, multiplier, factor)


def knows_lengths(problem: Problem, dim: int) -> bool:
    """Whether a covariance makes lengths vary more than isotropic inputs do, and no single direction makes them.

    Examples
    --------
    >>> words = ("levels(0.9, 1.1)", "levels(0.3, 1.7)", "power(1)", "spiked(20)")
    >>> [knows_lengths(Problem("relu", "h1", inputs=inputs), 300) for inputs in words]
    [False, True, False, False]
    """
    covariance = problem.covariance(dim)
    first, alone = float(covariance.values[0]), float(covariance.counts[0]) == 1
    # The others' own: what the loudest adds is the square of one number, and no length of many.
    beside = covariance.moment(2) - 1 - (first**2 / dim if alone else 0.0)
    return first <= LARGEST_SHARE * dim and 2 * beside / dim >= KNOWN_VARIANCE


@dataclass(frozen=True)
class SlopeParts:
    """Averages over inputs for rows of given lengths, (nodes,): E sigma', E sigma'', the rest of E sigma'^2."""

    first: Array
    second: Array
    left: Array


def slope_parts(problem: Problem, square: Array, rest: str) -> SlopeParts:
    """Parts of sigma'(l g) for rows of these squared lengths."""
    scale = np.sqrt(square)
    _, a1, _, bend = problem.activation.gaussian_averages(scale, np.zeros_like(scale))
    nodes, weights = gauss_hermite(SLOPE_NODES)
    whole = problem.activation.derivative(scale[:, None] * nodes) ** 2 @ weights
    # The rule's own error at a length of one, where the average is known.
    known = problem.activation.derivative_second_moment
    whole = whole * known / float(problem.activation.derivative(nodes) ** 2 @ weights)
    first, second = a1 / scale, bend / square
    if rest == "none":
        return SlopeParts(first, second, np.zeros_like(first))
    left = whole - first**2 - (square * second**2 if rest == "structured" else 0.0)
    return SlopeParts(first, second, np.maximum(left, 0.0))
