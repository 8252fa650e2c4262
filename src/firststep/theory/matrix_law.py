r"""The law of label-weighted second moments, seen from any number of special directions [firststep, second step].

.. math:: M = \frac{1}{n_0}\sum_i m_i\, x_i x_i^\top

Samples show some directions through coordinates that their weights m depend on, and others, sums
:math:`w_r = n_0^{-1}\sum_i f_{ir} x_i` over the samples themselves, by being a part of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array, Function
from firststep.setting import Problem, Sizes
from firststep.theory.rest import RestLaw, noise_shares, normal_points, reach_of

# Nodes between two breaks of a normal variable, for a teacher of so many directions, and those of the noise.
NODES, NOISE_NODES = {1: 64, 2: 16, 3: 7, 4: 4}, {1: 12, 2: 8, 3: 4, 4: 3}
# Samples are put together into so many groups of like weights in each tail, which has this share, and in the body.
TAIL, TAIL_GROUPS, BODY_GROUPS = 0.03, 30, 80
# On the ellipse around the law polynomials of the highest order are exp(6) times as large as inside. It is reached from
# a wider one, whose half axes have this sum in units of the foci's distance from the centre; points for each level.
GROWTH, WIDE, ELLIPSE_POINTS = 3.0, 1.5, 6
# Rounds of Newton's method on an ellipse.
ROUNDS = 200
# Directions of the Krylov space below this share of the largest are rounding.
ROUNDING = 1e-11
# The end of a law is found by rounds of so many parts.
EDGE_ROUNDS, EDGE_PARTS = 15, 16

Values = NDArray[np.inexact[Any]]


@dataclass(frozen=True)
class Samples:
    """Groups of samples that stand for those of a step.

    Attributes
    ----------
    weights : ndarray (P,)
        m.
    shares : ndarray (P,)
        Probabilities.
    shown : ndarray (P, q, q)
        E[s s^T] in each group, s being the coordinates and then f.
    coordinates : int
        How many of the q directions are coordinates.
    """

    weights: Array
    shares: Array
    shown: Array
    coordinates: int

    def gathered(self, samples: int, tails: int = TAIL_GROUPS, body: int = BODY_GROUPS) -> "Samples":
        """Fewer groups, so many; in the tails they are as small as one of so many samples."""
        order = np.argsort(self.weights, kind="stable")
        below = np.cumsum(self.shares[order]) - self.shares[order] / 2
        tail = np.geomspace(min(1 / samples, TAIL / 2), TAIL, tails)
        ends = np.concatenate([tail, np.linspace(TAIL, 1 - TAIL, body)[1:-1], 1 - tail[::-1]])
        starts = np.unique(np.searchsorted(below, np.append(0.0, ends)))
        starts = starts[starts < len(order)]

        def summed(values: Array) -> Array:
            return np.asarray(np.add.reduceat(values[order], starts, axis=0))

        mass = summed(self.shares)
        kept = mass > 0
        share = np.where(kept, mass, 1.0)
        shown = summed(self.shown * self.shares[:, None, None]) / share[:, None, None]
        weights = summed(self.weights * self.shares) / share
        # The last of a tail stands for one sample, whose square counts.
        last = np.sqrt(summed(self.weights**2 * self.shares) / share)[[0, -1]]
        weights[[0, -1]] = np.copysign(last, weights[[0, -1]])
        return Samples(weights[kept], mass[kept], shown[kept], self.coordinates)


def _between(
    points: Values, g: Values, samples: Samples, ratio: float, before: Values | None = None
) -> Values:
    r"""(M - zeta)^{-1} between the special directions, with sums brought to norm one, (B, q, q).

    With :math:`D = 1/(1 + \phi_0 m g)` it is :math:`H = (E[m D s s^\top] - \zeta)^{-1}` between coordinates; with
    :math:`c = \phi_0 g\,E[m D f s^\top]` it is :math:`-cH` between sums and coordinates and
    :math:`\phi_0 g\,E[D f f^\top] + c H c^\top` between sums [firststep, unified, eqs. 21-23]. `before` is the same of
    other samples between the coordinates, which these are added to: what they do to typical directions is in it.
    """
    m, count = samples.weights, samples.coordinates
    damped = samples.shares / (1 + ratio * np.multiply.outer(g, m))
    loud = np.tensordot(damped * m, samples.shown, 1)
    plain = np.tensordot(damped, samples.shown[:, count:, count:], 1)
    inner = -points if before is None else -(damped @ m)
    inner = loud[:, :count, :count] + inner[:, None, None] * np.eye(count)
    known = np.linalg.inv(inner if before is None else np.linalg.inv(before) + inner)
    factor = (ratio * g)[:, None, None]
    cross = factor * loud[:, count:, :count]
    mixed = -cross @ known
    own = factor * plain + cross @ known @ cross.swapaxes(1, 2)
    whole = np.block([[known, mixed.swapaxes(1, 2)], [mixed, own]])
    unit = np.eye(whole.shape[1])
    unit[count:, count:] = _inverse_root(
        ratio * np.tensordot(samples.shares, samples.shown[:, count:, count:], 1)
    )
    return np.asarray(unit @ whole @ unit)


def _inverse_root(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


def zeta_at(g: Values, m: Array, share: Array, ratio: float) -> tuple[Values, Values]:
    """zeta at each g, and its derivative [firststep, unified, eq. 21]."""
    damped = m / (1 + ratio * np.multiply.outer(g, m))
    return np.asarray(damped @ share - 1 / g), np.asarray(-ratio * (damped**2 @ share) + 1 / g**2)


def stieltjes_at(
    points: Values, g: Values, m: Array, share: Array, ratio: float, accuracy: float = 1e-13
) -> Values:
    """g at points above the real axis, by Newton's method from a guess."""
    for _ in range(ROUNDS):
        value, slope = zeta_at(g, m, share, ratio)
        step = (points - value) / slope
        moved = g + step
        # A step that leaves the half plane is replaced by one of the plain iteration.
        plain = 1 / (value + 1 / g - points)
        g = np.where((moved.imag > 0) & (np.abs(step) < 0.5 * np.abs(g)), moved, (g + plain) / 2)
        if (np.abs(step) < accuracy * np.abs(g)).all():
            break
    return g


def _ends(groups: Sequence[Samples], m: Array, share: Array, ratio: float) -> tuple[Array, Array]:
    """Ends of the law, and of an interval that has what stands beside it: coordinates gain most at the edge."""
    edges, ends = [], []
    for sign in (1.0, -1.0):
        g = edge_at(sign * m, share, ratio)
        beside = 0.0
        for samples in groups:
            damped = samples.shares * sign * samples.weights / (1 + ratio * sign * samples.weights * g)
            count = samples.coordinates
            known = np.tensordot(damped, samples.shown[:, :count, :count], 1)
            beside += max(float(np.linalg.eigvalsh(known)[-1]), 0.0)
        edges.append(sign * float(zeta_at(np.array([g]), sign * m, share, ratio)[0][0]))
        ends.append(sign * max(sign * edges[-1], beside))
    return np.array(edges[::-1]), np.array(ends[::-1])


def edge_at(m: Array, share: Array, ratio: float) -> float:
    """g at the upper end of the law: where zeta has its last extremum."""
    top = max(float(m.max()), 0.0)
    high = -1e-9
    low = -1 / (ratio * top) * (1 - 1e-9) if top > 0 else -1e9
    for _ in range(EDGE_ROUNDS):
        # In the logarithm of -g: the derivative changes its sign once.
        inside = -np.geomspace(-high, -low, EDGE_PARTS + 1)
        rising = int((zeta_at(inside[1:-1], m, share, ratio)[1] > 0).sum())
        high, low = float(inside[rising]), float(inside[rising + 1])
    return high


@dataclass(frozen=True)
class Quadrature:
    """Gauss quadrature of M.

    Attributes
    ----------
    nodes, weights : ndarray (L,)
        In a typical direction.
    special_nodes, special_vectors : ndarray (L',), (L', q)
        Between the special directions: outer products of the vectors are the weights.
    edges : ndarray (2,)
        Ends of the law of typical directions.
    """

    nodes: Array
    weights: Array
    special_nodes: Array
    special_vectors: Array
    edges: Array


def quadrature(
    samples: Samples, ratio: float, levels: int, later: Samples | None = None, special_levels: int = 0
) -> Quadrature:
    """Gauss quadrature of M; Chebyshev moments come from a contour around the law and all that stands beside it.

    With `later` samples M is the sum over both; their coordinates are all directions of the earlier ones, and their own
    sums come last. Each special direction has `levels` nodes, or `special_levels`.
    """
    groups = [samples] if later is None else [samples, later]
    m, share = (np.concatenate(x) for x in zip(*[(g.weights, g.shares) for g in groups], strict=True))
    edges, (low, high) = _ends(groups, m, share, ratio)
    centre, half, most = (low + high) / 2, max((high - low) / 2, 1e-300), max(levels, special_levels)
    count = ELLIPSE_POINTS * most
    turned = np.exp(1j * (np.arange(count) + 0.5) * math.pi / count)
    # The first guess is that of a semicircle.
    g = -2 / (half * WIDE * turned)
    for size in (WIDE, math.exp(GROWTH / most)):
        circle = size * turned
        points = centre + half * (circle + 1 / circle) / 2
        g = stieltjes_at(points, g, m, share, ratio)
    shift = 0.0 if later is None else zeta_at(g, later.weights, later.shares, ratio)[0] + 1 / g
    matrix = _between(points - shift, g, samples, ratio)
    if later is not None:
        matrix = _between(points, g, later, ratio, matrix)
    # Of the contour's lower half the conjugates; its direction makes the sign.
    speed = half * (circle - 1 / circle) / 2 / count
    orders = np.arange(2 * most)[:, None]
    chebyshev = (circle**orders + circle**-orders) / 2 * speed
    nodes, vectors = _gauss(-(chebyshev @ g).real[:, None, None], levels)
    special_nodes, special = _gauss(-np.tensordot(chebyshev, matrix, 1).real, special_levels or levels)
    return Quadrature(
        centre + half * nodes, vectors[:, 0] ** 2, centre + half * special_nodes, special, edges
    )


def _gauss(moments: Array, levels: int) -> tuple[Array, Array]:
    """Nodes in [-1, 1] and vectors (·, q) from Chebyshev moments (2 levels, q, q), by Ritz vectors."""
    size = moments.shape[1]
    i, j = np.meshgrid(np.arange(levels), np.arange(levels), indexing="ij")

    def products(i: NDArray[np.intp], j: NDArray[np.intp]) -> Array:
        blocks = (moments[i + j] + moments[np.abs(i - j)]) / 2
        return np.asarray(blocks.transpose(0, 2, 1, 3).reshape(levels * size, levels * size))

    gram = products(i, j)
    times = (products(i, j + 1) + products(i, np.abs(j - 1))) / 2
    values, vectors = np.linalg.eigh(gram)
    kept = values > ROUNDING * values[-1]
    basis = vectors[:, kept] / np.sqrt(values[kept])
    nodes, ritz = np.linalg.eigh(basis.T @ (times + times.T) @ basis / 2)
    return nodes, np.asarray((gram[:size] @ basis @ ritz).T)


@dataclass(frozen=True)
class LabelPoints:
    """Labels (P,), the teacher's coordinates (P, k), the noise in the labels, and probabilities."""

    labels: Array
    coordinates: Array
    noise: Array
    shares: Array


def label_points(problem: Problem, sizes: Sizes, variance: float) -> LabelPoints:
    """Labels with noise of this variance as n0 samples contain them: no coordinate and no noise is larger."""
    teacher, count = problem.teacher, problem.teacher.directions
    reach = reach_of(sizes.n_step_samples)
    kinks = teacher.kinks if isinstance(teacher, Function) else ()
    nodes, mass = normal_points(reach, NODES[count], kinks)
    grids = np.meshgrid(*[nodes] * count, indexing="ij")
    points = np.stack([grid.ravel() for grid in grids], axis=1)
    shares = np.prod(np.meshgrid(*[mass] * count, indexing="ij"), axis=0).ravel()
    labels = np.asarray(teacher.at(points))
    if not variance > 0:
        return LabelPoints(labels, points, np.zeros_like(labels), shares)
    xi, share = normal_points(reach, NOISE_NODES[count])
    noise = np.tile(math.sqrt(variance) * xi, len(labels))
    return LabelPoints(
        np.repeat(labels, len(xi)) + noise,
        np.repeat(points, len(xi), axis=0),
        noise,
        np.outer(shares, share).ravel(),
    )


def label_samples(problem: Problem, sizes: Sizes) -> Samples:
    """Samples of the first step: weights are labels less the initial output, directions t_1 … t_k (, W0^T a), w."""
    count, spread = problem.teacher.directions, problem.noise_variance + problem.output_variance(sizes)
    found = label_points(problem, sizes, spread)
    points, labels, shares = found.coordinates, found.labels, found.shares
    if not problem.output_law.order_one:
        s = np.concatenate([points, labels[:, None]], axis=1)
        return Samples(labels, shares, s[:, :, None] * s[:, None, :], count)
    # Given the noise, the coordinate along W0^T a has this mean, and its variance is lessened.
    slope = float(problem.activation.hermite(2)[1])
    s = np.concatenate([points, -slope / spread * found.noise[:, None], labels[:, None]], axis=1)
    table = s[:, :, None] * s[:, None, :]
    table[:, count, count] += 1 - slope**2 / spread
    return Samples(labels, shares, table, count + 1)


@lru_cache(maxsize=64)
def several_law(problem: Problem, sizes: Sizes, levels: int) -> RestLaw:
    """Law of M in the directions t_1 … t_k (, W0^T a) and w, as `firststep.theory.rest.rest_law` has it for one t."""
    ratio, power = sizes.step_ratio, 1 if problem.activation.hermite(3)[2] != 0 else 2
    samples = label_samples(problem, sizes)
    labels, shares, table = samples.weights, samples.shares, samples.shown
    square = float(shares @ labels**2)
    if power == 2:
        samples = replace(samples, weights=labels**2 / square)
    found = quadrature(samples.gathered(sizes.n_step_samples), ratio, levels)
    nodes, mass, special_nodes, vectors = (
        found.nodes,
        found.weights,
        found.special_nodes,
        found.special_vectors,
    )
    moments = [float(mass @ nodes**k) for k in range(5)]
    law = RestLaw(
        nodes=nodes,
        weights=mass,
        special_nodes=special_nodes,
        special_vectors=vectors,
        mean=moments[1],
        second_moment=moments[2],
        share=nodes,
        special_share=special_nodes,
        noise_excess=np.zeros(table.shape[1:]),
    )
    if power == 2:
        return law
    quadratic = noise_shares(moments, [float(shares @ labels**k) for k in range(5)], ratio)
    share, special_share = (np.maximum(np.polyval(quadratic, x), 0.0) for x in (nodes, special_nodes))
    mean = float(mass @ share)
    share, special_share = share / mean, special_share / mean
    # The remainder's covariance, as `firststep.theory.rest.noise_covariance` has it.
    covariance = np.tensordot(shares * labels**2, table, 1) / square
    covariance[-1] *= math.sqrt(ratio / square)
    covariance[:, -1] *= math.sqrt(ratio / square)
    covariance[-1, -1] += 1
    excess = covariance - (vectors.T * special_share) @ vectors
    return replace(law, share=share, special_share=special_share, noise_excess=excess)
