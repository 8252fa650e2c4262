r"""Random features in every Hermite degree: the closed equations of the network without a step [firststep, degrees].

Without a step all neurons have one law, so that delta is a number and every sector's matrix has rank one. What is left
of the equations is one unknown for the neurons and one for each degree; the fit is Bayesian regression on products of
two coordinates, with the features' own prior. An independent way to the numbers of `firststep.theory.unified` at step
size zero.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array, Function, MultiFunction, gauss_hermite, hermite_polynomials
from firststep.numerics import fixedpoint
from firststep.setting import NEGLIGIBLE, Problem, Sizes
from firststep.theory.directions import Profiles
from firststep.theory.label_law import label_parts
from firststep.theory.limits.products import MatrixLaw, scalar_laws, symmetric_powers
from firststep.theory.sectors import (
    HIGHEST,
    NEGLIGIBLE_SHARE,
    block_indices,
    chosen_degree,
    degree_shares,
    directions,
    monomials,
    norm_share,
)

# Nodes of z, and Hermite degrees of the labels in it.
NODES, LABEL_DEGREES = 48, 20
# Cosine to a coordinate given which every teacher is smooth.
SMOOTHED = 0.6
# Shortest input, relative to the typical one, at which features are averaged.
SHORTEST = 0.5
RESIDUAL = 1e-12
# Added to what is seen of a degree, so that a degree that the activation does not have has a logarithm, too.
NOTHING = 1e-30


@dataclass(frozen=True)
class Features:
    r"""Random features of P degrees in a sample's coordinate z, with the labels; nz nodes.

    Attributes
    ----------
    weights : ndarray (nz,)
        Of the nodes of z.
    squares : ndarray (P, nz)
        :math:`A_p^2`.
    spread : ndarray (nz,)
        :math:`A_>^2`, what features have beyond degree P.
    levels : tuple of (ndarray, ndarray)
        For each degree the products of eigenvalues of the inputs' covariance, and their shares.
    sample_shares : ndarray (P,)
        n/D_p.
    samples_per_neuron : float
        n/N.
    carried : ndarray (M, blocks, nz)
        Functions that the random weights carry, each with the root of its prior variance: monomials of the special
        directions, degree by degree, and what the norms of rows and inputs add.
    priors : tuple of MatrixLaw
        For each degree the products of eigenvalues that its monomials have.
    pulls : ndarray (P,)
        :math:`\frac{n}{D_p} p!\,c_p^2`, by which rho counts among them.
    traced : ndarray (k, k)
        Covariance of a row in the special directions, in units of 1/d.
    mean_noise : float
        What the norm of x adds to the noise of the features' mean, in units of E rho.
    labels : ndarray (blocks, nz)
        The labels' parts that multiply each block.
    label_square : ndarray (nz,)
        E[y^2|z].
    """

    weights: Array
    squares: Array
    spread: Array
    levels: tuple[tuple[Array, Array], ...]
    sample_shares: Array
    samples_per_neuron: float
    carried: Array
    priors: tuple[MatrixLaw, ...]
    pulls: Array
    traced: Array
    mean_noise: float
    labels: Array
    label_square: Array


@dataclass(frozen=True)
class _Special:
    """The special directions: z, along the step that is not taken, and what the teacher's have beside it.

    Attributes
    ----------
    law : MatrixLaw
        Eigenvalues of the covariance that they have.
    cosines, asides : ndarray (k, 1), (k, k)
        The teacher's directions on z and beside it.
    """

    law: MatrixLaw
    cosines: Array
    asides: Array

    @property
    def covariance(self) -> Array:
        """Covariance of a row in these directions, in units of 1/d."""
        return np.asarray(np.einsum("l,lab->ab", self.law.values, self.law.masses))


def _special(problem: Problem, sizes: Sizes) -> _Special:
    r"""z along :math:`S^g(\sum_a c_a\theta_a + \tilde w)`, and the teacher's [firststep, covariance, eq. 1]."""
    covariance, teachers = problem.covariance(sizes.dim), problem.teacher.directions
    masses = np.stack([covariance.weights] * teachers + [covariance.shares])
    known = np.zeros((teachers, *masses.shape))
    known[np.arange(teachers), np.arange(teachers)] = 1.0
    scatter = np.zeros_like(masses)
    scatter[-1] = 1.0
    # The initial output plays no part without a step.
    noise = sizes.step_ratio * problem.label_variance
    profiles = Profiles(covariance.values, masses, known, scatter, sizes.step_ratio, noise)
    raw = np.tensordot(np.atleast_1d(problem.teacher.gradient_mean), known, 1) + math.sqrt(noise) * scatter
    along = raw * covariance.values ** (1.0 if problem.rule.plain else 0.0)
    length = math.sqrt(float(profiles.product(along, along)))
    first = along / length if length > 0 else scatter
    vectors = profiles.orthonormal(first[None], known)
    overlaps = profiles.gram(known, vectors)
    values, law = covariance.values, np.einsum("agl,bgl,gl->lab", vectors, vectors, masses)
    missing = np.eye(len(vectors)) - law.sum(axis=0)
    if np.abs(missing).max() > 1e-6:
        # Beside z a direction of the teacher that z contains is nothing: what stands in its place meets no label.
        values, law = np.append(values, 1.0), np.concatenate([law, np.diag(np.diag(missing))[None]])
    return _Special(MatrixLaw(values, law), overlaps[:, :1], overlaps[:, 1:])


@lru_cache(maxsize=32)
def features_of(problem: Problem, sizes: Sizes, highest: int) -> Features:
    r"""The features of P degrees and the labels, given the coordinate z along the step that is not taken.

    .. math:: A_p(z) = E[h_p(g)\,\sigma(s g)], \quad s^2 = 1 + c_{zz}\frac{z^2 - 1}{d}, \quad
        A_>^2 = E\sigma^2 - \sum_{p\le P} A_p^2

    Without a step any direction would do for z, up to terms of relative order 1/d that are left out. The step's is
    taken, so that the answer is the limit of small steps.

    Examples
    --------
    >>> found = features_of(Problem("relu", "h1"), Sizes(2000, 40, 1500), 4)
    >>> found.squares.shape, round(float(found.weights @ found.squares[0]), 3)
    ((4, 48), 0.25)
    """
    z, weights = gauss_hermite(NODES)
    special, covariance = _special(problem, sizes), problem.covariance(sizes.dim)
    bulge = float(special.covariance[0, 0]) * (z**2 - 1) / float(sizes.dim)
    # With one degree all is of proportional sizes, where no norm fluctuates.
    scale = np.sqrt(1 + np.maximum(bulge, SHORTEST - 1)) if highest > 1 else np.ones_like(z)
    moments = _moments(problem.activation, scale, highest)
    square = problem.activation.gaussian_averages(scale, np.zeros_like(z))[2]
    labels, label_square = _labels(problem, special, z, highest, sizes.dim)
    shares = np.array([sizes.n_samples / directions(sizes.dim, p) for p in range(1, highest + 1)])
    c = problem.activation.hermite(highest + 2)
    powers = np.array([math.factorial(p) * float(c[p]) ** 2 for p in range(1, highest + 1)])
    spread_of_norm = covariance.moment(2.0) - (1.0 if highest > 1 else 0.0)
    return Features(
        weights=weights,
        squares=moments[1:] ** 2,
        spread=np.maximum(square - (moments**2).sum(axis=0), 0.0),
        levels=tuple(scalar_laws(covariance, highest)),
        sample_shares=shares,
        samples_per_neuron=sizes.n_samples / float(sizes.width),
        carried=_carried(problem, sizes, z, highest, bulge),
        priors=tuple(symmetric_powers(special.law, highest)),
        pulls=shares * powers,
        traced=special.covariance,
        mean_noise=2 * shares[0] * max(spread_of_norm, 0.0) * float(c[2]) ** 2,
        labels=labels,
        label_square=label_square + problem.noise_variance,
    )


def degree_of(problem: Problem, sizes: Sizes, degrees: int | None) -> int:
    r"""P as asked for, or the highest degree that samples or neurons resolve [firststep, covariance, eq. 5].

    .. math:: \max(n, N)\,\frac{(\int m^2 d\mu)^p}{D_p} > 0.0015

    Under a covariance a degree has fewer directions that count; only degrees that the activation has are asked for.

    Examples
    --------
    >>> sizes = Sizes(1000, 500, 750)
    >>> [degree_of(Problem(f, "h1", inputs="power(1)"), sizes, None) for f in ("identity", "tanh", "relu")]
    [1, 5, 4]
    """
    covariance = problem.covariance(sizes.dim)
    if degrees is not None or covariance.isotropic:
        return chosen_degree(sizes, degrees)
    c, second = problem.activation.hermite(HIGHEST + 1), covariance.moment(2.0)
    shares = degree_shares(sizes, HIGHEST) * second ** np.arange(1, HIGHEST + 1)
    found = [p for p in range(2, HIGHEST + 1) if shares[p - 1] > NEGLIGIBLE_SHARE and abs(c[p]) > NEGLIGIBLE]
    return max(found, default=1)


def _moments(activation: Function, scale: Array, highest: int) -> Array:
    """E[h_p(g) sigma(s g)] for p = 0 … P, (P + 1, nz)."""
    return np.stack(list(activation.gaussian_hermite(scale, np.zeros_like(scale), highest + 1)))


def _labels(problem: Problem, special: _Special, z: Array, highest: int, dim: int) -> tuple[Array, Array]:
    """Parts of the labels in products h_b(g), in the norm of x and in each g times the norm; their square."""
    beside = special.asides.shape[1]
    indices = block_indices(beside, highest)
    if isinstance(problem.teacher, MultiFunction):
        parts, square = label_parts(
            problem.teacher, special.cosines[None], special.asides[None], z[None], indices
        )
        labels, square = parts[0], square[0]
    else:
        labels, square = _single_labels(problem.teacher, float(special.cosines[0, 0]), z, highest)
    if highest == 1:
        return labels, square
    extra = np.zeros((1 + beside, len(z)))
    # H_2(g) is its traceless part and the norm of x, H_3(g) its traceless part and g times the norm.
    for e in range(beside):
        for degree, block in ((2, 0), (3, 1 + e)):
            index = tuple(degree * (i == e) for i in range(beside))
            if degree <= highest:
                at, share = indices.index(index), norm_share(degree, dim)
                extra[block] += math.sqrt(share) * labels[at]
                labels[at] *= math.sqrt(1 - share)
    return np.concatenate([labels, extra]), square


def _single_labels(teacher: Function, cosine: float, z: Array, highest: int) -> tuple[Array, Array]:
    r"""E[s h_b(g)|z] for b = 0 … P and E[s^2|z] for a teacher of one direction.

    .. math:: E[s\,h_a(z) h_b(g)] = \sqrt{\tbinom{a+b}{a}}\, r^a (1-r^2)^{b/2}\, E[s\,h_{a+b}]

    Only averages with smooth functions of z are taken of them, so that their first degrees in z are enough, and a jump
    of the teacher does no harm.
    """
    count = LABEL_DEGREES + highest + 1
    whole = teacher.hermite(count) * np.array([math.sqrt(math.factorial(k)) for k in range(count)])
    polynomials = hermite_polynomials(z, LABEL_DEGREES + 1, normalised=True)
    aside = math.sqrt(max(1 - cosine**2, 0.0))
    labels = np.zeros((highest + 1, len(z)))
    for b in range(highest + 1):
        for a in range(LABEL_DEGREES + 1):
            ways = math.sqrt(math.comb(a + b, a))
            labels[b] += ways * cosine**a * aside**b * whole[a + b] * polynomials[a]
    # Coefficients of the square, from its average over a Gaussian that hides all jumps.
    nodes, weights = gauss_hermite(NODES)
    hidden = teacher.gaussian_moments(math.sqrt(1 - SMOOTHED**2), SMOOTHED * nodes)[2]
    seen = (weights * hidden) @ hermite_polynomials(nodes, LABEL_DEGREES + 1, normalised=True).T
    square = (cosine / SMOOTHED) ** np.arange(LABEL_DEGREES + 1) * seen
    return labels, square @ polynomials


def _carried(problem: Problem, sizes: Sizes, z: Array, highest: int, bulge: Array) -> Array:
    """Monomials of z and the g of each degree, what the norms of rows and inputs add, and the mean; (M, blocks, nz)."""
    c = problem.activation.hermite(highest + 3)
    width, dim, beside = float(sizes.width), float(sizes.dim), problem.teacher.directions
    polynomials = hermite_polynomials(z, highest + 1, normalised=True)
    indices = block_indices(beside, highest)
    norm, functions = len(indices), []
    blocks = norm + (1 + beside if highest > 1 else 0)

    def carry(variance: float, *parts: tuple[int, Array]) -> None:
        function = np.zeros((blocks, len(z)))
        for block, values in parts:
            function[block] = math.sqrt(variance) * values
        functions.append(function)

    for p in range(1, highest + 1):
        prior = width / directions(sizes.dim, p) * math.factorial(p) * float(c[p]) ** 2
        for index in monomials(1 + beside, p):
            carry(prior, (indices.index(index[1:]), polynomials[index[0]]))
    if highest > 2:
        # The trace of degree three: the norm of x times a linear function.
        prior = 18 * width / dim**2 * float(c[3]) ** 2
        carry(prior, (norm, polynomials[1]))
        for e in range(beside):
            carry(prior, (norm + 1 + e, polynomials[0]))
    # Rows of fixed length are still longer or shorter as the inputs see them, unless these are isotropic.
    second = problem.covariance(sizes.dim).moment(2.0)
    carry(
        2 * width / dim * float(c[2]) ** 2 * (second - (1.0 if problem.row_law.unit_norm else 0.0)),
        (0, polynomials[0]),
    )
    # All neurons share the mean: a constant, and the norm of x.
    parts = [(0, float(c[0]) + (float(c[2]) * bulge if highest > 1 else 0.0) * np.ones_like(z))]
    if highest > 1:
        parts.append((norm, np.full_like(z, math.sqrt(2 / dim) * float(c[2]))))
    carry(width, *parts)
    return np.stack(functions)


@dataclass(frozen=True)
class Bulk:
    """Solution of the self-consistent equations for R ridges, and its derivatives.

    Attributes
    ----------
    ridge : ndarray (R,)
        lambda.
    w : ndarray (R,)
        1 + delta.
    seen : ndarray (R, P)
        X_p = (n/D_p) E[A_p^2 rho], what samples see of each degree.
    rho : ndarray (R, nz)
        N times the diagonal of the resolvent at a sample with this z.
    residual, iterations : float, int
        Largest relative residual, and rounds taken.
    """

    ridge: Array
    w: Array
    seen: Array
    rho: Array
    residual: float
    iterations: int

    @property
    def above(self) -> Array:
        """V_p = w + X_p, (R, P)."""
        return np.asarray(self.w[:, None] + self.seen)


@dataclass(frozen=True)
class _Sectors:
    """J_p = E[m/(w + m X_p)] over the products m of each degree, and its derivatives; each (R, P)."""

    mean: Array
    by_neurons: Array  # dJ/dlog w
    by_seen: Array  # dJ/dlog X_p


def _sectors(features: Features, w: Array, seen: Array) -> _Sectors:
    found = []
    for (values, shares), x in zip(features.levels, seen.T, strict=True):
        inverse = 1 / (w[:, None] + values * x[:, None])
        squares = inverse**2
        by_neurons, by_seen = -w * (squares @ (shares * values)), -x * (squares @ (shares * values**2))
        found.append((inverse @ (shares * values), by_neurons, by_seen))
    return _Sectors(*(np.stack(part, axis=1) for part in zip(*found, strict=True)))


def _rho(features: Features, floor: Array, w: Array, seen: Array) -> Array:
    mean = _sectors(features, w, seen).mean
    return np.asarray(1 / (floor[:, None] + features.spread / w[:, None] + mean @ features.squares))


def _maps(features: Features, w: Array, seen: Array, rho: Array) -> Array:
    """Right-hand sides of the equations for w and X_p, (R, P + 1)."""
    mass = features.weights * rho
    taken = mass @ features.squares.T
    mean = _sectors(features, w, seen).mean
    neurons = mass @ features.spread + (taken * w[:, None] * mean).sum(axis=1)
    first = 1 + features.samples_per_neuron * neurons
    return np.concatenate([first[:, None], NOTHING + features.sample_shares * taken], axis=1)


def _reactions(features: Features, w: Array, sectors: _Sectors) -> Array:
    """-d(1/rho)/dlog of w and of each X_p, (R, P + 1, nz)."""
    own = features.spread / w[:, None] - sectors.by_neurons @ features.squares
    return np.concatenate([own[:, None], -sectors.by_seen[..., None] * features.squares], axis=1)


def _jacobian(features: Features, w: Array, seen: Array, rho: Array) -> Array:
    """Derivatives of (w, X) less their maps, relative, in (log w, log X), (R, P + 1, P + 1)."""
    count, degrees = seen.shape
    sectors = _sectors(features, w, seen)
    parts = np.concatenate([np.broadcast_to(features.spread, (1, len(features.weights))), features.squares])
    mass = features.weights * rho**2
    between = np.einsum("rz,iz,rjz->rij", mass, parts, _reactions(features, w, sectors))
    taken = (features.weights * rho) @ features.squares.T
    found = np.zeros((count, degrees + 1, degrees + 1))
    ratio = features.samples_per_neuron
    share = w[:, None] * sectors.mean
    found[:, 0] = -ratio * (between[:, 0] + np.einsum("rp,rpj->rj", share, between[:, 1:]))
    found[:, 0, 0] += w - ratio * (taken * (share + w[:, None] * sectors.by_neurons)).sum(axis=1)
    found[:, 0, 1:] -= ratio * w[:, None] * sectors.by_seen * taken
    found[:, 1:] = -features.sample_shares[:, None] * between[:, 1:]
    diagonal = np.arange(1, degrees + 1)
    found[:, diagonal, diagonal] += seen
    return np.asarray(found / np.concatenate([w[:, None], seen], axis=1)[..., None])


def solve_bulk(features: Features, ridges: Array, start: Array | None = None) -> Bulk:
    r"""Solve the self-consistent equations for all ridges at once [firststep, degrees, eqs. 3-4].

    .. math:: \frac1{\rho(z)} = \frac{\lambda n}{N} + \frac{A_>^2}{w} + \sum_{p\le P} J_p A_p^2, \quad
        w = 1 + \frac nN E\Big[\Big(A_>^2 + \sum_{p\le P} w J_p A_p^2\Big)\rho\Big], \quad
        J_p = \int\frac{m\,\mu_p(dm)}{w + m X_p}, \quad X_p = \frac{n}{D_p} E[A_p^2\rho]

    :math:`\mu_p` is the law of products of p eigenvalues of the inputs' covariance; isotropic inputs have
    :math:`J_p = 1/V_p`, :math:`V_p = w + X_p` [firststep, covariance, eq. 3]. A degree of many directions has
    :math:`V_p = w`: it is noise like all beyond P. `start` are values near w and the X_p, (R, P + 1).

    Examples
    --------
    >>> features = features_of(Problem("relu", "h1"), Sizes(2000, 40, 1500), 4)
    >>> found = solve_bulk(features, np.array([0.001]))
    >>> print(f"{found.w[0]:.3f}", " ".join(f"{v / found.w[0]:.3f}" for v in found.above[0]))
    9.186 339.216 6.258 1.000 1.003
    """
    floor = ridges * features.samples_per_neuron

    def newton(values: Array, index: NDArray[np.intp]) -> tuple[Array, Array]:
        w, seen = values[:, 0], values[:, 1:]
        rho = _rho(features, floor[index], w, seen)
        error = 1 - _maps(features, w, seen, rho) / values
        steps = -np.linalg.solve(_jacobian(features, w, seen, rho), error[..., None])[..., 0]
        return np.asarray(steps), np.abs(error).max(axis=1)

    def plain(values: Array, index: NDArray[np.intp]) -> Array:
        w, seen = values[:, 0], values[:, 1:]
        return _maps(features, w, seen, _rho(features, floor[index], w, seen))

    start = np.full((len(ridges), len(features.squares) + 1), 1.5) if start is None else start
    equations = fixedpoint.Equations(newton, plain, "the equations of random features in every degree")
    found = fixedpoint.solve(equations, start, tolerance=RESIDUAL)
    w, seen = found.value[:, 0], found.value[:, 1:]
    rho = _rho(features, floor, w, seen)
    return Bulk(ridges, w, seen, rho, float(found.residual.max()), found.iterations)


def errors(features: Features, bulk: Bulk) -> dict[str, Array]:
    r"""Errors of the fit by the features' own prior [firststep, degrees, eq. 5].

    .. math:: q = \frac nN E[E[y^2|z]\rho] - v^\top (w + H)^{-1} v, \quad
        H = \frac nN E[\phi\phi^\top\rho], \quad v = \frac nN E[\phi\,y\,\rho], \quad
        L_{te} = -\frac{d}{d\epsilon} q\Big(\lambda + \epsilon\frac{N^2}{n^2\rho(z)^2}\Big)

    phi are the functions of the special coordinates that the random weights carry.

    Returns
    -------
    dict of str to ndarray (R,)
        train_error, test_error, train_mse, readout_norm_squared, degrees_of_freedom.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.3, rows="sphere")
    >>> features = features_of(problem, Sizes(2000, 40, 1500), 5)
    >>> print(f"{errors(features, solve_bulk(features, np.array([0.001])))['test_error'][0]:.3f}")
    0.569
    """
    ratio, rho, w = features.samples_per_neuron, bulk.rho, bulk.w
    mass = features.weights * rho
    products = np.einsum("mbz,kbz->mkz", features.carried, features.carried)
    seen = np.einsum("mbz,bz->mz", features.carried, features.labels)
    count = len(seen)
    h = ratio * (mass @ products.reshape(count * count, -1).T).reshape(-1, count, count)
    v = ratio * mass @ seen.T
    stiffness, by_w, by_rho = _stiffness(features, w, mass.sum(axis=1))
    fit = np.linalg.solve(h + stiffness, v[..., None])[..., 0]
    q = ratio * mass @ features.label_square - (v * fit).sum(axis=1)
    functions = np.einsum("rm,mbz->rbz", fit, features.carried)
    left = features.label_square + ((functions - 2 * features.labels) * functions).sum(axis=1)
    of_samples, of_neurons = (np.einsum("rm,rmk,rk->r", fit, part, fit) for part in (by_rho, by_w))
    by_sample = features.weights * (ratio * left + of_samples[:, None])
    slopes = []
    for floor in (np.full_like(rho, ratio), 1 / (ratio * rho**2)):
        d_rho, d_w = response(features, bulk, floor)
        slopes.append((by_sample * d_rho).sum(axis=1) + of_neurons * d_w)
    mse, train = -(bulk.ridge**2) * slopes[0], bulk.ridge * q
    return {
        "train_error": train,
        "test_error": -slopes[1],
        "train_mse": mse,
        "readout_norm_squared": (train - mse) / bulk.ridge,
        "degrees_of_freedom": 1 - bulk.ridge * ratio * mass.sum(axis=1),
    }


def _stiffness(features: Features, w: Array, rho: Array) -> tuple[Array, Array, Array]:
    r"""Inverse prior Q of the carried functions and its derivatives by w and by E rho, (R, M, M).

    .. math:: Q_p = t_p^{-1} - k_p = w\,t_p^{-1}\int\frac{\nu_p(dm)}{w + m k_p}, \quad
        t_p = \int\frac{m\,\nu_p(dm)}{w + m k_p}, \quad k_p = \frac{n}{D_p}\,p!\,c_p^2\,E\rho

    [firststep, covariance, eq. 4]: a function that is spread over directions with different eigenvalues is learned in
    each of them at its own rate. For isotropic inputs Q = w.
    """
    count, size = len(w), len(features.carried)
    whole, by_w, by_rho = (np.zeros((count, size, size)) for _ in range(3))
    start = 0
    for law, pull in zip(features.priors, features.pulls, strict=True):
        inverse = 1 / (w[:, None] + law.values * (pull * rho)[:, None])
        here = slice(start, start := start + law.masses.shape[1])

        def mean(factor: Array, masses: Array = law.masses) -> Array:
            return np.asarray(np.einsum("rl,lab->rab", factor, masses))

        back = np.linalg.inv(mean(inverse * law.values))
        whole[:, here, here] = w[:, None, None] * back @ mean(inverse)
        by_w[:, here, here] = back @ mean(inverse**2 * law.values) @ back
        kept = back @ mean((inverse * law.values) ** 2) @ back - np.eye(law.masses.shape[1])
        by_rho[:, here, here] = pull * kept
    if len(features.priors) > 2:
        here = slice(start, start := start + len(features.traced))
        back = np.linalg.inv(features.traced)
        whole[:, here, here], by_w[:, here, here] = w[:, None, None] * back, back
    for at in range(start, size):
        whole[:, at, at], by_w[:, at, at] = w, 1.0
    whole[:, -1, -1] += features.mean_noise * rho
    by_rho[:, -1, -1] += features.mean_noise
    return whole, by_w, by_rho


def response(features: Features, bulk: Bulk, floor: Array) -> tuple[Array, Array]:
    """Changes of rho and w when the ridge's part of 1/rho changes by `floor`, (R, nz)."""
    w, seen, rho = bulk.w, bulk.seen, bulk.rho
    sectors = _sectors(features, w, seen)
    first = -(rho**2) * floor
    mass = features.weights * first
    taken = mass @ features.squares.T
    moved = features.samples_per_neuron * (
        mass @ features.spread + (taken * w[:, None] * sectors.mean).sum(axis=1)
    )
    right = np.concatenate([(moved / w)[:, None], features.sample_shares * taken / seen], axis=1)
    logs = np.linalg.solve(_jacobian(features, w, seen, rho), right[..., None])[..., 0]
    change = np.einsum("rj,rjz->rz", logs, _reactions(features, w, sectors))
    return np.asarray(first + rho**2 * change), np.asarray(logs[:, 0] * w)
