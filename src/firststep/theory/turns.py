r"""How two steps turn the rows: the law of both label-weighted second moments together [firststep, second step].

.. math:: \frac{1}{n_0}\sum_{i=1}^{2n_0} m_i\,x_i x_i^\top, \qquad m_i = \frac{2 c_2\eta_1}{\sqrt N} y_i
    \quad\text{or}\quad \frac{\eta_2}{\sqrt N}\, \tilde y_i\, E_U[U^2 \sigma''(\cdot)|z_i]

for the first and the second sample, in typical directions and between the special ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from firststep.gaussian import Array
from firststep.setting import Problem, Sizes
from firststep.theory.matrix_law import Quadrature, Samples, label_samples, quadrature
from firststep.theory.rest import noise_shares, normal_points, reach_of
from firststep.theory.second_step import Readouts, after_first, output_after, slopes_after
from firststep.theory.step_law import StepLaw, beyond_spike, directions_of

# Nodes on each side of zero of z and each direction beside it, of so many; of the noise.
LABEL_NODES, NOISE_NODES = {1: 16, 2: 7, 3: 4, 4: 2}, {1: 8, 2: 4, 3: 3, 4: 2}
# Axes of the second step's scatter that have the law of special directions.
SPECIAL_AXES = 2
# Reach and points of z where the slopes of the second step are tabulated.
REACH, TABLE = 7.0, 141
# Rows are hardly turned where the turn's share of their length is below this times that of the noise.
LITTLE = 0.05


@dataclass(frozen=True)
class TurnLaw:
    """The law of both turns.

    Attributes
    ----------
    nodes, weights : ndarray (L,)
        In typical directions.
    special_nodes, special_vectors : ndarray (L',), (L', p)
        Between the special directions: z, e_1 …, then the axes of the second step's scatter.
    share : ndarray (L,)
        Variance of what is different for every neuron along an eigenvector, in units of its mean.
    special_share : ndarray (L',)
        The same at the special nodes.
    """

    nodes: Array
    weights: Array
    special_nodes: Array
    special_vectors: Array
    share: Array
    special_share: Array

    def variances(self, u: Array, total: Array) -> Callable[[Array, Array], Array]:
        r"""c(U, m) of rows of squared length `total` (nu,), at nodes with the noise's share there, (nodes, nu).

        .. math:: c(U, m) = (1 + mU)^2 + \text{noise}

        What the turn does not explain of a row's length is noise; where it explains too much it is scaled down.
        """
        scale, noise = np.minimum(total / self._turned(u), 1.0), self.noise(u, total)

        def variance(nodes: Array, share: Array) -> Array:
            return np.asarray((1 + np.outer(nodes, u)) ** 2 * scale + np.outer(share, noise))

        return variance

    def noise(self, u: Array, total: Array) -> Array:
        """What the turn does not explain of rows of squared length `total`, (nu,)."""
        return np.maximum(total - self._turned(u), 0.0)

    def _turned(self, u: Array) -> Array:
        return np.asarray(self.weights @ (1 + np.outer(self.nodes, u)) ** 2)


def no_turn(directions: int) -> TurnLaw:
    """Rows that are not turned."""
    one, ones = np.ones(1), np.ones(directions)
    return TurnLaw(np.zeros(1), one, np.zeros(directions), np.eye(directions), one, ones)


@dataclass(frozen=True)
class TurnSamples:
    """Samples of both steps, before their sizes are known.

    Attributes
    ----------
    shares : ndarray (P,)
        Their probabilities.
    weights : tuple of ndarray (P,)
        m of each sample: 2 c_2 y, and y~ E[U^2 sigma''] given z.
    noise : tuple of ndarray (P,)
        n, what each adds to the rows' noise: y^2, y~^2, times what E[U^2 sigma'^2] given z has beyond spike and turn.
    turning, spreading : tuple of Samples
        The same samples, put together, with m and with n as their weights.
    axes : ndarray (k + 1, k + 1)
        The teacher's directions and the scatter of the first step, rows, in the axes z, e_1 ….
    directions : int
        p, all special directions.
    """

    shares: Array
    weights: tuple[Array, Array]
    noise: tuple[Array, Array]
    turning: tuple[Samples, Samples]
    spreading: tuple[Samples, Samples]
    axes: Array
    directions: int


def turn_law(
    samples: TurnSamples, sizes: Sizes, steps: tuple[float, float], levels: int, special_levels: int
) -> TurnLaw:
    r"""The law of both turns, with so many nodes in typical directions and for each special one.

    It is one second moment of the samples of both steps, which are free of each other [firststep, second step, eq. 6].
    Where rows are hardly turned it is the law of the noise's covariance, :math:`\frac{1}{n_0}\sum_i n_i x_i x_i^\top`.
    """
    scale = [step / math.sqrt(sizes.width) for step in steps]
    m = np.concatenate([factor * own for factor, own in zip(scale, samples.weights, strict=True)])
    n = np.concatenate([factor**2 * own for factor, own in zip(scale, samples.noise, strict=True)])
    shares = np.tile(samples.shares, 2)
    spread = float(shares @ n)
    turned = float(shares @ m**2) > LITTLE * spread
    if not turned and not spread > 0:
        return no_turn(samples.directions)
    grouped = samples.turning if turned else samples.spreading
    factors = scale if turned else [factor**2 / spread for factor in scale]
    earlier, later = (
        replace(own, weights=factor * own.weights) for factor, own in zip(factors, grouped, strict=True)
    )
    found = quadrature(earlier, sizes.step_ratio, levels, later, special_levels)
    nodes, weights = found.nodes, found.weights
    special_nodes, vectors = _between(samples, found)
    m_nodes, m_special = nodes, special_nodes
    if not turned:
        share, special_share = nodes, special_nodes
        m_nodes, m_special = np.zeros_like(nodes), np.zeros_like(special_nodes)
    else:
        quadratic = _shares(m, n * shares, sizes.step_ratio, [float(weights @ nodes**k) for k in range(5)])
        share, special_share = (np.maximum(np.polyval(quadratic, x), 0.0) for x in (nodes, special_nodes))
    mean = float(weights @ share)
    return TurnLaw(m_nodes, weights, m_special, vectors, share / mean, special_share / mean)


def _shares(m: Array, n: Array, ratio: float, moments: list[float]) -> Array:
    """The noise's variance along an eigenvector of the turns as a quadratic function of the eigenvalue.

    From m and n of all samples, n times their probabilities, and moments of the law.
    """
    if not n.sum() > 0:
        return np.ones(1)
    seen = [float((n * m**k).sum() / n.sum()) for k in range(3)]
    return noise_shares(moments, [0.0, 0.0, *seen], ratio)


def _between(samples: TurnSamples, found: Quadrature) -> tuple[Array, Array]:
    """Nodes and vectors (·, p) of the law between the special directions.

    Beyond the first few axes of the second step's scatter directions are typical ones.
    """
    known, count = len(samples.axes), samples.directions
    first = count - (found.special_vectors.shape[1] - known)
    vectors = np.zeros((len(found.special_nodes), count))
    vectors[:, :known] = found.special_vectors[:, :known] @ samples.axes
    vectors[:, first:] = found.special_vectors[:, known:]
    # Nodes inside the law stand for a continuum that ends where that of typical directions does.
    special = found.special_nodes
    inside = (special >= found.edges[0]) & (special <= found.edges[1])
    special = np.where(inside, np.clip(special, found.nodes[0], found.nodes[-1]), special)
    others = np.arange(known, first)
    typical = np.zeros((len(others), len(found.nodes), count))
    typical[np.arange(len(others)), :, others] = np.sqrt(found.weights)
    return (
        np.concatenate([special, np.tile(found.nodes, len(others))]),
        np.concatenate([vectors, typical.reshape(-1, count)]),
    )


@lru_cache(maxsize=64)
def turn_samples(
    problem: Problem, sizes: Sizes, step_size: float, rest: str, readouts: Readouts
) -> TurnSamples:
    """Samples that stand for those of both steps, after a first step of this size."""
    first, gradient = after_first(problem, sizes, step_size, rest, readouts)
    u, u_weights, n0 = readouts.u, readouts.weights, sizes.n_step_samples
    points = later_points(problem, sizes, step_size, rest, readouts)
    shares, residual = points.shares, points.residual
    label = points.signal + math.sqrt(problem.noise_variance + problem.output_variance(sizes)) * points.noise
    grid = np.linspace(-REACH, REACH, TABLE)
    slope, curved, squared = slopes_after(problem, first, grid)
    left = np.maximum(squared - slope**2 - curved**2 * (1 + first.excess[0])[:, None], 0.0)
    averages = (u_weights * u**2) @ np.stack([curved, left])
    curve, loud = (np.interp(points.coordinates[:, 0], grid, row) for row in averages)
    axes = _known_axes(problem, sizes, step_size, rest, first)
    s = np.concatenate([points.coordinates @ axes.T, points.scatter[:, -SPECIAL_AXES:]], axis=1)
    table = s[:, :, None] * s[:, None, :]
    if problem.output_law.order_one:
        # Along the last axis, which no label knows, a sample is anywhere.
        table[:, : len(axes), : len(axes)] += np.outer(axes[:, -1], axes[:, -1])
    later = Samples(residual * curve, shares, table, len(axes))
    earlier = label_samples(problem, sizes)
    turned, beyond = 2 * float(problem.activation.hermite(3)[2]), beyond_spike(problem, rest)
    turning = replace(earlier, weights=turned * earlier.weights), later
    spreading = (
        replace(earlier, weights=beyond * earlier.weights**2),
        replace(later, weights=loud * residual**2),
    )
    return TurnSamples(
        shares=shares,
        weights=(turned * label, residual * curve),
        noise=(beyond * label**2, loud * residual**2),
        turning=(turning[0].gathered(n0), turning[1].gathered(n0)),
        spreading=(spreading[0].gathered(n0), spreading[1].gathered(n0)),
        axes=axes,
        directions=gradient.turn.shape[1],
    )


def _known_axes(problem: Problem, sizes: Sizes, step_size: float, rest: str, first: StepLaw) -> Array:
    """The teacher's directions, (W0^T a,) and the scatter of the first step, rows, in the axes z, e_1 …."""
    if problem.output_law.order_one:
        axes = directions_of(problem, sizes, np.array([step_size]), rest)[1][0].T
        return np.asarray(axes * np.where(np.arange(len(axes)) == len(axes) - 1, np.sign(axes[-2, -1]), 1.0))
    teacher = np.concatenate([first.cosines[0], first.asides[0]], axis=1)
    left = np.linalg.svd(teacher)[2][-1]
    return np.concatenate([teacher, [left if left[0] >= 0 else -left]])


@dataclass(frozen=True)
class LaterPoints:
    r"""Samples that stand for those of a second step.

    Attributes
    ----------
    coordinates : ndarray (P, 1 + beside)
        Along z, e_1 …; that of an initial output of order one, the last, is zero.
    signal, noise, residual : ndarray (P,)
        The teacher's part of the label; the label's noise in units of its size; y~.
    scatter : ndarray (P, R)
        f_r, what each is of the second step's scatter along its axes: :math:`w_r = n_0^{-1}\sum_i f_{ir} x_i`.
    shares : ndarray (P,)
        Probabilities.
    """

    coordinates: Array
    signal: Array
    noise: Array
    residual: Array
    scatter: Array
    shares: Array

    def spread(self, sizes: Sizes, vectors: Array, own: int) -> Array:
        r"""Variances of the scalar products of vector `own` with all, (q,): columns (p, q) in z, e_1 …, scatter's axes.

        What samples show of a vector is :math:`x = \sum_a v_ax_{ia}`, and of its scatter :math:`f = \sum_rv_rf_{ir}`:

        .. math:: \frac{1}{n_0}\mathrm{Var}[xf' + x'f + \phi_0ff']
            + \frac{\phi_0^2}{d}\big(E[f^2]E[f'^2] + E[ff']^2\big)

        The second part is that of different samples' inputs beside the coordinates [firststep, second step, eq. 12].
        """
        known = self.coordinates.shape[1]
        x, f = self.coordinates @ vectors[:known], self.scatter @ vectors[known:]
        products = x[:, own, None] * f + x * f[:, own, None] + sizes.step_ratio * f[:, own, None] * f
        same = self.shares @ products**2 - (self.shares @ products) ** 2
        square = self.shares @ f**2
        others = square[own] * square + (self.shares @ (f[:, own, None] * f)) ** 2
        return np.asarray(same / sizes.n_step_samples + sizes.step_ratio**2 / sizes.dim * others)


@lru_cache(maxsize=64)
def later_points(
    problem: Problem, sizes: Sizes, step_size: float, rest: str, readouts: Readouts
) -> LaterPoints:
    """Samples of a second step after a first of this size, as n0 of them contain labels."""
    first, gradient = after_first(problem, sizes, step_size, rest, readouts)
    beside = first.asides.shape[2]
    known = beside - int(problem.output_law.order_one)
    reach, count = reach_of(sizes.n_step_samples), problem.teacher.directions
    noisy = problem.noise_variance > 0 or problem.output_law.order_one
    rules = [normal_points(reach, LABEL_NODES[count])] * (1 + known)
    rules += [normal_points(reach, NOISE_NODES[count]) if noisy else (np.zeros(1), np.ones(1))]
    grids = np.meshgrid(*[nodes for nodes, _ in rules], indexing="ij")
    shares = np.prod(np.meshgrid(*[mass for _, mass in rules], indexing="ij"), axis=0).ravel()
    coordinates = np.zeros((shares.size, 1 + beside))
    coordinates[:, : 1 + known] = np.stack([grid.ravel() for grid in grids[:-1]], axis=1)
    z, noise = coordinates[:, 0], grids[-1].ravel()
    t = z[:, None] * first.cosines[0, :, 0] + coordinates[:, 1:] @ first.asides[0].T
    signal = np.asarray(problem.teacher.at(t))
    grid = np.linspace(-REACH, REACH, TABLE)
    shown = gradient.scatter.T @ slopes_after(problem, first, grid)[0]
    shown = shown / (gradient.scatter**2).sum(axis=0)[:, None]
    outputs = output_after(problem, sizes, first, (readouts.u, readouts.weights), grid)
    output, scattered, *rows = (np.interp(z, grid, row) for row in (*outputs, *shown))
    residual = signal - output + np.sqrt(problem.noise_variance + scattered) * noise
    scatter = residual[:, None] * np.stack(rows, axis=1)
    return LaterPoints(coordinates, signal, noise, residual, scatter, shares)
