r"""Spectrum of the weights after two steps, or one with a teacher of several directions [firststep, second step].

A row is a point of the curve q(U) that all neurons share, plus a random part of variance c(U, m)/d along an eigenvector
of both turns with eigenvalue m. Outside the bulk

.. math:: S(x) = \bigg(\int\frac{\mathrm dm_{ab}}{-x + \frac Nd E_U\big[\frac{c(U, m)}{1 + e(U)}\big]}\bigg)^{-1}
    + N E_U\Big[\frac{q(U)\,q(U)^\top}{1 + e(U)}\Big]

between the special directions, with e(U) from the bulk's own equations; x is an outlier where S(x) is singular.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from firststep.gaussian import Array, gauss_hermite
from firststep.results import Outlier
from firststep.setting import Problem, Sizes, check_whole, step_sizes_of
from firststep.setting.doors import door
from firststep.theory.coefficients import Resolution, Values, readout_rule
from firststep.theory.label_law import label_parts
from firststep.theory.second_step import SAMPLE_NODES, Readouts, after_first, isotropic_law
from firststep.theory.spectra.bulk import ASIDE, NEAREST, TIGHT, Bulk, between
from firststep.theory.spectra.weight_bulk import WeightBulk
from firststep.theory.step_law import StepLaw
from firststep.theory.turns import later_points, no_turn, turn_law, turn_samples

# Nodes of the law of both turns, and distance of those of a Gaussian readout, at first and at most.
RESOLUTION, MOST_LEVELS, LEAST_SPACING = Resolution(1, 0.3, 16), 48, 0.1
# Nodes of the law of both turns for each special direction.
SPECIAL_LEVELS = 12
# Points of the bulk's upper end at which the shares of its vectors are looked at.
HIDDEN_POINTS = 24
# Outliers this far beyond the bulk, in units of its edge, are clear of it.
CLEAR = 1.1
# Accuracy of an outlier's place, in units of the edge; strengths of directions, in units of what makes an outlier, that
# do not push one.
PLACE, NO_PUSH = 1e-8, 1e-6
# Readouts that are less than this many neurons, with all beyond them, are one with the next.
HALF = 0.5
# Terms of the second step's slope in powers of z that are counted.
MOST_TERMS = 8


@dataclass(frozen=True)
class Rows:
    """The law of the rows after two steps in all their special directions; leading axis nu.

    Attributes
    ----------
    curve : ndarray (nu, p)
        q(U), in the directions z and e_1 … of the first step, then those of the second step's scatter.
    extra : ndarray (nu, p, p)
        What the covariance of the random part has there beyond its law, in units of 1/d.
    typical : ndarray (nu,)
        Its squared length: the mean variance along a typical direction.
    teacher : ndarray (k, p)
        The teacher's directions.
    first : StepLaw
        The law of the first step.
    """

    curve: Array
    extra: Array
    typical: Array
    teacher: Array
    first: StepLaw


def rows_after(
    problem: Problem, sizes: Sizes, steps: tuple[float, float], rest: str, u: Array, u_weights: Array
) -> Rows:
    r"""What two steps on fresh samples make of the rows [firststep, second step, eqs. 3-5].

    .. math:: q(U) = \omega_1 U\hat z + \frac{\eta_2 U}{\sqrt N} D(U)
    """
    first, gradient = after_first(problem, sizes, steps[0], rest, Readouts(u, u_weights))
    push = steps[1] * u / math.sqrt(sizes.width)
    curve = push[:, None] * np.concatenate([gradient.mean, gradient.scatter], axis=1)
    curve[:, 0] += first.shared[0, :, 0]
    known, count = gradient.mean.shape[1], curve.shape[1]
    stretched = 1 + push * gradient.typical if rest == "structured" else np.ones_like(u)
    typical = stretched**2 * (1 + first.excess[0]) + push**2 * gradient.noise
    teacher = np.zeros((first.cosines.shape[1], count))
    teacher[:, :1], teacher[:, 1:known] = first.cosines[0], first.asides[0]
    return Rows(curve, np.zeros((len(u), count, count)), typical, teacher, first)


def contained(u: Array, weights: Array, width: int) -> tuple[Array, Array]:
    """Nodes of U as so many neurons contain it: in each tail what is less than one neuron is one value.

    A node that stands for a small part of a neuron would make a band beyond the bulk in which no eigenvalue is.

    Examples
    --------
    >>> u, weights, _ = readout_rule(Problem("relu", "h1").readout_law, 0.3, 0)
    >>> nodes, shares = contained(u, weights, 1000)
    >>> print(f"{u.max():.2f} {nodes.max():.2f} {1000 * shares[-1]:.2f} {shares @ nodes**2:.6f}")
    6.60 3.46 0.78 1.000000
    """
    beyond = np.minimum(np.cumsum(weights), np.cumsum(weights[::-1])[::-1])
    kept = beyond * width >= HALF
    first, last = np.flatnonzero(kept)[[0, -1]]
    group = np.clip(np.arange(len(u)), first, last) - first
    shares = np.asarray(np.bincount(group, weights), dtype=float)
    return np.copysign(np.sqrt(np.bincount(group, weights * u**2) / shares), u[kept]), shares


def check_steps(problem: Problem, sizes: Sizes, steps: int, of: str, rest: str) -> None:
    """Refuse spectra after so many steps that are not derived, in words."""
    isotropic = problem.covariance(sizes.dim).isotropic
    one = problem.teacher.directions == 1 and isotropic
    if steps > 2:
        raise ValueError(
            f"spectra are predicted after at most two steps, got {steps}: simulate, or predict the first two"
        )
    if rest == "none" and (steps > 1 or not one):
        raise ValueError(
            "rest='none' is for one step on isotropic inputs and a teacher of one direction: choose 'structured' or "
            "'noise'"
        )
    if steps > 1 and not (isotropic and problem.rule.plain):
        raise ValueError(
            "spectra after two steps are predicted for gradient steps on isotropic inputs: choose inputs='isotropic' "
            "and step_rule='gradient', or simulate"
        )
    if problem.output_law.order_one and (steps > 1 or (of == "weights" and not one)):
        raise ValueError(
            "with an initial output of order one spectra of the weights are predicted for one step on isotropic "
            "inputs and a teacher of one direction: choose initial_output='vanishing', or simulate"
        )
    if steps > 1 and not problem.later_samples.fresh:
        raise ValueError(
            "a second step is predicted on a fresh sample: leave step_sample at 'fresh', or simulate"
        )


class TwoStepWeights(WeightBulk):
    """Weights after two steps on fresh samples, the second of which may be zero [firststep, second step, eqs. 6-7]."""

    def __init__(
        self,
        problem: Problem,
        sizes: Sizes,
        steps: tuple[float, float],
        rest: str,
        resolution: Resolution = RESOLUTION,
    ) -> None:
        self.problem, self.sizes, self.step_size, self.rest = problem, sizes, steps[0], rest
        self.steps, self.resolution = steps, resolution
        u, u_weights, _ = readout_rule(problem.readout_law, resolution.readout_spacing, 0)
        self.u, self.u_weights = contained(u, u_weights, sizes.width)
        self.aspect = sizes.width / sizes.dim
        self.atom = max(0.0, 1 - sizes.dim / sizes.width)
        self._set_rows()

    def _set_rows(self) -> None:
        """The rows' law in typical and in special directions."""
        setting = self.problem, self.sizes, self.steps, self.rest
        self.rows = rows = rows_after(*setting, self.u, self.u_weights)
        turns = no_turn(rows.curve.shape[1])
        if self.rest == "structured":
            readouts = Readouts(self.u, self.u_weights)
            samples = turn_samples(self.problem, self.sizes, self.steps[0], self.rest, readouts)
            turns = turn_law(samples, self.sizes, self.steps, self.resolution.rest_levels, SPECIAL_LEVELS)
        self.law = replace(isotropic_law(), nodes=turns.nodes, weights=turns.weights, share=turns.share)
        self.special = turns.special_vectors
        variance = turns.variances(self.u, rows.typical)
        self.variance = variance(turns.nodes, turns.share)
        self.special_variance = variance(turns.special_nodes, turns.special_share)
        self.mean = float(rows.typical @ self.u_weights)

    def finer(self) -> "TwoStepWeights | None":
        """With more nodes, where these are not at their limit."""
        used = self.resolution
        levels = used.rest_levels
        if len(self.law.nodes) > 1:
            levels = min(MOST_LEVELS, round(1.5 * levels))
        spacing = used.readout_spacing
        if self.problem.readout_law.atoms is None:
            spacing = max(LEAST_SPACING, spacing / 1.5)
        resolution = replace(used, rest_levels=levels, readout_spacing=spacing)
        if resolution == used:
            return None
        return TwoStepWeights(self.problem, self.sizes, self.steps, self.rest, resolution)

    def system(self, x: Values, values: Values) -> Values:
        """S(x), (B, p, p) [firststep, second step, eq. 7]."""
        mass = self.u_weights * self._inverse(values)
        random = np.einsum("bu,uac->bac", mass, self.rows.extra)
        shared = np.einsum("bu,ua,uc->bac", mass, self.rows.curve, self.rows.curve)
        return np.asarray(
            self.typical_part(x, values) + self.aspect * random + float(self.sizes.width) * shared
        )

    def typical_part(self, x: Values, values: Values) -> Values:
        """The inverse of the bulk's resolvent between the special directions, (B, p, p)."""
        resolvent = self._resolvent(x, values, self.special_variance)
        return np.linalg.inv(np.einsum("bl,la,lc->bac", resolvent, self.special, self.special))

    def outliers(self, edge: float, scan: Bulk) -> tuple[Outlier, ...]:
        """Where S(x) is singular beyond the bulk, from the largest down, with the teacher's share of each vector."""
        from scipy.optimize import brentq

        strength = float(self.sizes.width) * float(self.u_weights @ (self.rows.curve**2).sum(axis=1))
        top = 4 * (edge + strength + (1 + self.mean) * (1 + self.aspect))
        near = edge * (1 + NEAREST)
        beyond = self.approached(np.array([near])).merged(scan.take(scan.x > near))

        def solved(x: float) -> Values:
            at = np.array([x])
            return self.solve(self.ridge(at, ASIDE), between(beyond.x, beyond.values, at), TIGHT)

        def system(x: float, values: Values) -> Values:
            return np.asarray(self.system(-self.ridge(np.array([x]), ASIDE), values)[0])

        def level(x: float, rank: int) -> float:
            return float(np.linalg.eigvalsh(system(x, solved(x)).real)[-1 - rank])

        found = []
        for rank in range(int((np.linalg.eigvalsh(system(near, solved(near)).real) > 0).sum())):
            x = float(brentq(level, near, top, args=(rank,), xtol=PLACE * edge))
            values = solved(x)
            matrix = system(x, values)
            vector = np.linalg.eigh(matrix.real)[1][:, -1 - rank]
            # Just above the axis the imaginary part is the derivative times the distance.
            falling = -matrix.imag / (ASIDE * self.mean)
            slope = float(vector @ falling @ vector)
            # Where it grows, an eigenvalue of a single large label passes by.
            if slope <= 0:
                continue
            place = max(edge, x + self._pushed(np.array([x]), values, falling))
            found.append(Outlier(place, math.sqrt(place), self._shares(vector, slope), place / edge))
        return tuple(found)

    def _pushed(self, x: Array, values: Values, falling: Array) -> float:
        r"""How far others push the outlier at x because readouts and labels fluctuate; `falling` is -dS/dx there.

        With :math:`S = P - T`, :math:`P = N E_U[qq^\top/(1+e)]`, it is where :math:`T^{-1/2}PT^{-1/2}` has the
        eigenvalue :math:`\kappa_r = 1`. In second order the others, with vectors c_k, move that by

        .. math:: \sum_{k\ne r}\frac{\delta_k^2}{1 - \kappa_k}, \qquad b = T^{-1/2}c, \qquad \delta_k^2
            = N\,\mathrm{Var}_U\Big[\frac{(q\cdot b_r)(q\cdot b_k)}{1+e}\Big]
            + \kappa_k\,\mathrm{Var}\langle c_r, c_k\rangle

        and levels that come close do not cross [firststep, second step, eq. 12].
        """
        if not min(self.steps) > 0:
            return 0.0
        mass = self.u_weights * self._inverse(values)[0].real
        size, axes = np.linalg.eigh(-self.typical_part(-self.ridge(x, ASIDE), values)[0].real)
        # Beside a direction in which a single large label's eigenvalue is larger still.
        size, axes = size[size > 0], axes[:, size > 0]
        root = (axes / np.sqrt(size)) @ axes.T
        curve = self.rows.curve @ root
        kappa, vectors = np.linalg.eigh(float(self.sizes.width) * (mass * curve.T) @ curve)
        # Those without a part in the curve are the bulk, which does not push.
        own, kept = int(np.abs(kappa - 1).argmin()), kappa > NO_PUSH
        own, kappa, vectors = int(kept[:own].sum()), kappa[kept], vectors[:, kept]
        seen = curve @ vectors
        products = (mass / self.u_weights)[:, None] * seen[:, own, None] * seen
        by_neuron = self.u_weights @ products**2 - (self.u_weights @ products) ** 2
        readouts = Readouts(self.u, self.u_weights)
        points = later_points(self.problem, self.sizes, self.steps[0], self.rest, readouts)
        by_sample = points.spread(self.sizes, vectors, own)
        square = float(self.sizes.width) * by_neuron + kappa * by_sample
        apart = np.delete(1 - kappa, own)
        # The levels of two by two.
        moved = np.copysign(np.hypot(apart / 2, np.sqrt(np.delete(square, own))), apart) - apart / 2
        slope = float(vectors[:, own] @ root @ falling @ root @ vectors[:, own])
        return float(moved.sum()) / slope

    def leading(self, count: int) -> tuple[Array, int]:
        """What the vectors of the largest eigenvalues have of the teacher's directions, (count, k).

        Outliers first, then the bulk's own (`hidden`); with it the number of clear outliers. The own share of one that
        has just left the bulk vanishes in the limit. At finite size it and that of the bulk's last go over into each
        other: the root of the sum of their squares is within two standard errors of drawn networks there.
        """
        intervals, scan = self.support(whole=self.in_pieces)
        directions = len(self.rows.teacher)
        names = ["beta"] if directions == 1 else [f"t{a + 1}" for a in range(directions)]
        above = self.all_outliers(intervals, scan)[:count]
        found = np.zeros((count, directions))
        for rank, outlier in enumerate(above):
            found[rank] = [outlier.overlaps[name] for name in names]
        clear = sum(outlier.eigenvalue > CLEAR * intervals[-1][1] for outlier in above)
        found[clear:] = np.hypot(found[clear:], self.hidden(intervals, scan, count - clear))
        return found, clear

    def hidden(self, intervals: Sequence[tuple[float, float]], scan: Bulk, count: int) -> Array:
        r"""The same of the largest eigenvalues of the bulk, in these intervals [firststep, second step, eq. 10].

        .. math:: \frac{\rho_a(x_k)}{d\,\rho(x_k)}, \qquad d\int_{x_k}\rho\,\mathrm dx = k - \tfrac{1}{2},

        with :math:`\rho_a = \frac{1}{\pi}\mathrm{Im}\,(S^{-1})_{aa}` the spectral density of a teacher's direction.
        """
        places = np.arange(count) + 0.5
        masses: list[Array] = []
        shares: list[Array] = []
        for interval in reversed(intervals):
            if count == 0 or sum(map(np.sum, masses)) > count:
                break
            mass, share = self._upper_end(interval, scan)
            masses.append(mass)
            shares.append(share)
        if not masses:
            return np.zeros((0, len(self.rows.teacher)))
        # Eigenvalues above each point, which stands for the middle of its cell.
        mass = np.concatenate(masses)
        beyond = np.cumsum(mass) - mass / 2
        return np.stack([np.interp(places, beyond, row) for row in np.concatenate(shares).T], axis=1)

    def _upper_end(self, interval: tuple[float, float], scan: Bulk) -> tuple[Array, Array]:
        """Eigenvalues in cells of an interval, from above down, (P,), and the shares of their vectors, (P, k)."""
        low, high = interval
        # Crowded at the edge, where single eigenvalues are.
        step = math.pi / 2 / HIDDEN_POINTS
        angle = step * (np.arange(HIDDEN_POINTS) + 0.5)
        x = high - (high - low) * np.sin(angle) ** 4
        width = 4 * (high - low) * np.sin(angle) ** 3 * np.cos(angle) * step
        near = scan.take((scan.x > low) & (scan.x < high))
        start = between(near.x, near.values, x[::-1]) if len(near.x) > 3 else None
        solved = self.approached(x[::-1]) if start is None else self.continued(x[::-1], start)
        values, density = solved.values[::-1], self.aspect * solved.density[::-1]
        teacher = self.rows.teacher
        inverse = np.linalg.inv(self.system(-self.ridge(x), values))
        own = np.einsum("ka,bac,kc->bk", teacher, inverse, teacher).imag / math.pi
        density = self.sizes.dim * np.maximum(density, 1e-300)
        return density * width, np.abs(own) / density[:, None]

    def _shares(self, vector: Array, slope: float) -> dict[str, float]:
        teacher = self.rows.teacher
        signal = np.atleast_1d(self.problem.teacher.gradient_mean)
        size = float(np.linalg.norm(signal))
        # Where one step sees nothing, "beta" is t1.
        seen = signal / size if size > 0 else np.eye(len(signal))[0]
        named = {"beta": seen @ teacher, "direction": np.eye(len(vector))[0]}
        if len(teacher) > 1:
            named |= {f"t{a + 1}": row for a, row in enumerate(teacher)}
        return {name: float(row @ vector) ** 2 / slope for name, row in named.items()}


@door
def critical_next_step(
    problem: Problem,
    sizes: Sizes,
    step_size: float | None = None,
    *,
    step_exponent: float | None = None,
    rank: int = 2,
    largest: float | None = None,
) -> float:
    r"""Size of the second step at which the outlier of this rank leaves the bulk of the weights; infinity if none does.

    The first outlier is there after one step; the second shows what the second step alone can see. To one per cent
    [firststep, second step, eq. 7].

    Parameters
    ----------
    step_size, step_exponent : float
        The first step, given in one way.
    rank : int
        Which outlier, from the largest down.
    largest : float, optional
        Where the search ends, :math:`3\sqrt N` by default.

    Examples
    --------
    >>> problem = Problem("relu", "t1 + t1*t2", noise_std=0.3, rows="sphere")
    >>> found = critical_next_step(problem, Sizes(2000, 1000, 1500), step_exponent=0.34)
    >>> print(f"{found:.1f}")
    5.1
    """
    check_whole("rank", rank, 1)
    first = float(step_sizes_of(sizes, step_size, step_exponent)[0])
    check_steps(problem, sizes, 2, "weights", "structured")

    def outside(second: float) -> bool:
        bulk = TwoStepWeights(problem, sizes, (first, second), "structured")
        return len(bulk.above()) >= rank

    high = 3 * math.sqrt(sizes.width) if largest is None else largest
    grid = np.geomspace(high / 300, high, 12)
    beyond = [place for place, second in enumerate(grid) if outside(float(second))]
    if not beyond:
        return math.inf
    low, high = (0.0 if beyond[0] == 0 else float(grid[beyond[0] - 1])), float(grid[beyond[0]])
    while high > max(1.01 * low, 1e-3):
        middle = math.sqrt(low * high) if low > 0 else high / 2
        low, high = (low, middle) if outside(middle) else (middle, high)
    return high


def outlier_count(
    problem: Problem,
    n_step_samples: float,
    step_ratio: float,
    neurons_per_dim: float,
    exponents: tuple[float, float],
) -> int:
    r"""Outliers of the weights after two steps for as many samples as you like, as long as the first spike is small.

    With :math:`B_0(U, z) = \sum_k (k+1) c_{k+1} (\omega_1 U z)^k` the curve is

    .. math:: q(U) = U\omega_1\hat z + \frac{\eta_2}{\sqrt N}\sum_k (k+1) c_{k+1}\omega_1^k U^{k+1} v_k,
        \qquad v_k = \frac{1}{n_0}\sum_i y_i z_i^k x_i ,

    and an outlier is a singular value above :math:`(N/d)^{1/4}` [BGN12]. Term k has the strength
    :math:`n^{\alpha_2 - k(1/2 - \alpha_1)}`, so that in the limit there are
    :math:`\lfloor\alpha_2/(1/2 - \alpha_1)\rfloor` [MH26] beside that of k = 0, which both steps share
    [firststep, second step, eq. 8]. Signs of eigenvalues of scaled matrices count them, so that n may be 1e30.
    Large coefficients make the count larger at sizes within reach.

    Examples
    --------
    >>> problem = Problem([0, 1, 1, 1, 1], "h1 + h2/2", noise_std=0.3)
    >>> [outlier_count(problem, n, 0.5, 1.0, (0.3, 0.45)) for n in (1e3, 1e8, 1e30)]
    [4, 4, 3]
    """
    if problem.readout_law.atoms is not None:
        raise ValueError(
            f"powers of a readout of {len(problem.readout_law.atoms)} values are not independent: "
            "choose a continuous law of the readout, like gaussian"
        )
    width = n_step_samples * step_ratio * neurons_per_dim
    eta = [n_step_samples**exponent for exponent in exponents]
    c = problem.activation.hermite(MOST_TERMS + 1)
    slope = np.atleast_1d(problem.teacher.gradient_mean)
    square = float(slope @ slope)
    length = math.sqrt(square + step_ratio * problem.label_variance)
    omega = eta[0] * abs(float(c[1])) * length / math.sqrt(width)
    terms = [k for k in range(MOST_TERMS) if abs(c[k + 1]) > 1e-12]
    # Strength of each term in units of sqrt(N) q; the first step adds to the first term, along its own direction.
    strength = np.array([eta[1] * (k + 1) * abs(float(c[k + 1])) * omega**k for k in terms])
    gram = _term_gram(problem, step_ratio, terms, math.sqrt(square) / length)
    if 0 in terms:
        first = terms.index(0)
        share = eta[0] / eta[1]
        # v_0 of the second step plus v_0 of the first, whose scatter is another one.
        along = np.array([_term_means(problem, k, math.sqrt(square) / length)[0] for k in terms]) * length
        gram[first] += share * along
        gram[:, first] += share * along
        gram[first, first] += share**2 * length**2
    u, u_weights, _ = readout_rule(problem.readout_law, 0.1, 0)
    powers = u ** (np.array(terms)[:, None] + 1)
    inverse = np.linalg.inv((powers * u_weights) @ powers.T)
    reach = math.sqrt(math.sqrt(neurons_per_dim)) / strength
    scale = 1 / np.maximum(1.0, reach)
    whole = gram * np.outer(scale, scale) - inverse * np.outer(reach * scale, reach * scale)
    return int((np.linalg.eigvalsh(whole) > 0).sum())


def _term_means(problem: Problem, power: int, cosine: float) -> Array:
    """E[y z^k x] along z and along what is left of the step's direction in the teacher's beside it."""
    nodes, weights = gauss_hermite(SAMPLE_NODES)
    signal = np.atleast_1d(problem.teacher.gradient_mean)
    size = float(np.linalg.norm(signal))
    unit = signal / size if size > 0 else np.eye(len(signal))[0]
    sine = math.sqrt(max(1 - cosine**2, 0.0))
    count = len(signal)
    # Coordinates: z, e_1 beside it in the seen direction, then the teacher's other directions.
    others = np.linalg.svd(unit[None])[2][1:]
    cosines = (cosine * unit)[None, :, None]
    asides = np.concatenate([sine * unit[:, None], others.T], axis=1)[None]
    blocks = tuple(tuple(int(i == e) for i in range(count)) for e in range(-1, count))
    parts = label_parts(problem.teacher, cosines, asides, nodes[None], blocks)[0][0]
    first = weights @ (parts[0] * nodes ** (power + 1))
    return np.array([first, *(parts[1:] @ (weights * nodes**power))])


def _term_gram(problem: Problem, step_ratio: float, terms: list[int], cosine: float) -> Array:
    """Scalar products of the v_k: their means, and the scatter (d/n0) E[y^2 z^(k + l)]."""
    nodes, weights = gauss_hermite(SAMPLE_NODES)
    signal = np.atleast_1d(problem.teacher.gradient_mean)
    size = float(np.linalg.norm(signal))
    unit = signal / size if size > 0 else np.eye(len(signal))[0]
    others = np.linalg.svd(unit[None])[2][1:]
    sine = math.sqrt(max(1 - cosine**2, 0.0))
    asides = np.concatenate([sine * unit[:, None], others.T], axis=1)[None]
    none = (tuple([0] * len(signal)),)
    square = label_parts(problem.teacher, (cosine * unit)[None, :, None], asides, nodes[None], none)[1][0]
    square = square + problem.noise_variance
    means = np.stack([_term_means(problem, k, cosine) for k in terms])
    powers = nodes ** np.array(terms)[:, None]
    return np.asarray(means @ means.T + step_ratio * (powers * (weights * square)) @ powers.T)
