r"""Outliers of the label-weighted second moment, the matrix of spectral methods [firststep, unified, eqs. 21-23].

.. math:: M = \frac{1}{n_0} X^\top \mathrm{diag}(y) X

It is also the part of the gradient that is linear in the first layer.
"""

import math
from typing import Any

import numpy as np

from firststep.gaussian import Array, function
from firststep.results import LabelOutliers
from firststep.setting import Problem, Sizes
from firststep.theory.matrix_law import label_points

# Bisections of an interval: enough for rounding.
HALVINGS = 60


def label_outliers(problem: Problem, sizes: Sizes, *, weight: Any = None) -> LabelOutliers:
    r"""Predicted outliers of :math:`X^\top \mathrm{diag}(T(y)) X/n_0` and their overlaps with the teacher's directions.

    With :math:`\phi_0 = d/n_0` and T for T(y), outside the bulk the Stieltjes transform g is real and

    .. math:: \zeta(g) = E\Big[\frac{T}{1 + \phi_0 T g}\Big] - \frac1g, \qquad
        A_{ab}(g) = E\Big[\frac{T\, t_a t_b}{1 + \phi_0 T g}\Big] .

    The bulk ends where :math:`\zeta'(g) = 0`. An outlier is where :math:`\zeta(g)` is an eigenvalue of A(g); with its
    eigenvector u, the squared overlap with direction a is :math:`u_a^2/(1 - u^\top A' u/\zeta')` [LL20; MoMo19;
    firststep, unified, eqs. 21-23]. Labels are those that n0 samples contain (`firststep.theory.rest.reach_of`): with
    labels that have a tail, the largest of them decide where the bulk ends, and single draws differ.

    Parameters
    ----------
    problem : Problem
        Teacher and noise; the network plays no part.
    sizes : Sizes
        d and n0, the samples of the step.
    weight : str, callable or Function, optional
        T, a function of the label; a bounded one, like ``"tanh(x)"``, takes the tail away. By default the label itself.

    Examples
    --------
    >>> found = label_outliers(Problem("relu", "t1*t2"), Sizes(4000, 100, 10), weight="tanh(x)")
    >>> print(found.eigenvalues.round(2), found.captured.round(2))
    [ 0.51 -0.51] [0.94 0.94]
    """
    ratio = sizes.step_ratio
    labels, points, weights = _sample_law(problem, sizes, weight)
    sides = [_one_side(sign * labels, points, weights, ratio) for sign in (1.0, -1.0)]
    (high, top, above), (low, bottom, below) = sides
    overlaps = np.concatenate([above, below[::-1]])
    return LabelOutliers(
        (-low, high), np.concatenate([top, -bottom[::-1]]), overlaps, np.asarray(overlaps.sum(axis=1))
    )


def _sample_law(problem: Problem, sizes: Sizes, weight: Any) -> tuple[Array, Array, Array]:
    """Weighted labels (p,), the teacher's coordinates (p, k) and probabilities (p,) that stand for n0 samples."""
    found = label_points(problem, sizes, problem.noise_variance)
    labels = found.labels
    if weight is not None:
        labels = np.asarray(function(weight)(labels))
    return _capped(labels, found.shares, 1 / sizes.n_step_samples), found.coordinates, found.shares


def _capped(labels: Array, weights: Array, share: float) -> Array:
    """Labels whose largest on either side, with this share of the mass, are their root mean square.

    Coordinates and noise that are all large at once have a label that no sample of this size has.
    """
    result = labels.copy()
    for sign in (1.0, -1.0):
        order = np.argsort(-sign * labels, kind="stable")
        mass = np.cumsum(weights[order])
        tail = order[: int(np.searchsorted(mass, share)) + 1]
        tail = tail[sign * labels[tail] > 0]
        if len(tail):
            result[tail] = sign * math.sqrt(float(np.average(labels[tail] ** 2, weights=weights[tail])))
    return result


def _one_side(labels: Array, points: Array, weights: Array, ratio: float) -> tuple[float, Array, Array]:
    """Upper edge of the bulk, outliers above it from the largest down, and their overlaps (m, k)."""

    def damped(g: float) -> Array:
        return np.asarray(labels / (1 + ratio * labels * g))

    largest, count = float(labels.max()), points.shape[1]
    # g of the edge; without positive labels nothing bounds g and the edge is where it goes to minus infinity.
    lowest = -1 / (ratio * largest) if largest > 0 else -1e6 / max(float(np.abs(labels).max()), 1e-300)
    low, high = lowest, 0.0
    for _ in range(HALVINGS):
        g = (low + high) / 2
        inside = 1 - ratio * float(weights @ (damped(g) * g) ** 2) < 0
        low, high = (g, high) if inside else (low, g)
    edge_g = high

    def zeta(g: float) -> float:
        return float(weights @ damped(g)) - 1 / g

    def block(g: float) -> Array:
        return np.asarray((points.T * (weights * damped(g))) @ points)

    eigenvalues, overlaps = [], []
    above = np.linalg.eigvalsh(block(edge_g))[::-1] > zeta(edge_g)
    for k in range(int(above.sum())):
        low, high = edge_g, 0.0
        for _ in range(HALVINGS):
            g = (low + high) / 2
            # Towards g = 0 zeta grows beyond every eigenvalue of the block.
            inside = zeta(g) < np.linalg.eigvalsh(block(g))[count - 1 - k]
            low, high = (g, high) if inside else (low, g)
        g = high
        vector = np.linalg.eigh(block(g))[1][:, count - 1 - k]
        slope = 1 / g**2 - ratio * float(weights @ damped(g) ** 2)
        growth = -ratio * float(weights @ (damped(g) * (points @ vector)) ** 2)
        eigenvalues.append(zeta(g))
        overlaps.append(vector**2 / (1 - growth / slope))
    return zeta(edge_g), np.array(eigenvalues), np.array(overlaps).reshape(-1, count)
