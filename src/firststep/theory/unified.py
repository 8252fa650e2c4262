r"""One theory for every step size: conditional Gaussian equivalence at finite size [firststep, unified].

Given z = x·b/|b| and its own readout, a neuron is a Gaussian feature with known coefficients. That turns the ridge fit
into a self-consistent pair: rho(z) for the samples, delta(u) for the neurons. The derivation is in the docs
(*One theory for every step size*); each function here names the equation it computes.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firststep import fixedpoint
from firststep.gaussian import Array, gauss_hermite, hermite_polynomials, monomial_in_hermite
from firststep.problem import Outcome, Problem, Sizes
from firststep.theory.rest import RestLaw, point_law, rest_law

RESTS = ("structured", "noise", "none")
# Up to this spike the conditional mean is summed as a series, free of the rounding that sqrt(N) would multiply.
SMALL_SPIKE = 0.1
SERIES_TERMS = 60
# Functions of z and spikes below these sizes change no error by more than about 1e-9.
NEGLIGIBLE_FUNCTION = 1e-7
NEGLIGIBLE_SPIKE = 1e-6
# Points solved together: keeps the largest temporary near 30 MB.
CHUNK = 24
# Hermite degrees of the teacher that are reported one by one.
DEGREES = 5

Values = NDArray[Any]


@dataclass(frozen=True)
class Resolution:
    """How finely the equations are discretised.

    Attributes
    ----------
    nodes : int
        Quadrature nodes of z.
    readout_spacing : float
        Distance of the quadrature nodes of a Gaussian readout.
    rest_levels : int
        Quadrature nodes of the law of M.
    """

    nodes: int
    readout_spacing: float
    rest_levels: int


LADDER = (
    Resolution(24, 0.6, 6),
    Resolution(30, 0.42, 9),
    Resolution(42, 0.3, 12),
    Resolution(60, 0.21, 16),
    Resolution(90, 0.15, 20),
    Resolution(135, 0.11, 24),
)
# Readout values beyond this have probability 1e-10.
READOUT_REACH = 6.5
# Fewest and most Hermite degrees, in z and in U, of the polynomial branch.
POLYNOMIAL_DEGREES = (8, 48)
# Beyond this spike, in units of the bulk, rounding hides the smaller spikes from a singular value decomposition.
LARGEST_RATIO = 1e6


@dataclass(frozen=True)
class _Geometry:
    """What does not depend on the step size: ratios, quadrature, the teacher given z, the law of M."""

    problem: Problem
    sizes: Sizes
    samples_per_neuron: float  # n/N
    samples_per_dim: float  # n/d
    neurons_per_dim: float  # N/d
    norm: float  # B
    cosine: float  # r
    z: Array
    weights: Array
    hermite: Array  # normalised Hermite polynomials of z, (K, nz)
    u: Array
    u_weights: Array
    psi: Array  # orthonormal functions of U, (npsi, nu)
    label_mean: Array  # g0(z)
    label_slope: Array  # g1(z)
    label_square: Array  # E[y^2 | z]
    c: Array
    law: RestLaw
    output_direction: Array  # W0^T a in the directions b, e1, e2; zero if the output vanishes

    @property
    def directions(self) -> int:
        return self.law.special_vectors.shape[1]


@dataclass(frozen=True)
class _Tables:
    """Conditional coefficients for a batch of step sizes, leading axis S, in bases of functions of z and of U."""

    h: Array  # orthonormal functions of z, (S, K, nz)
    shift: Array  # multiplication by z among them, (S, K, K)
    psi: Array  # orthonormal functions of U, the constant first, (S, npsi, nu)
    spread: Array  # A2^2, (S, nu, nz)
    alpha: Array  # (S, nu, K)
    outer: Array  # alpha alpha^T, (S, nu, K K)
    stretch: Array  # c(U, m) at the nodes of mu, (S, L, nu)
    special_stretch: Array  # the same at the special nodes
    spikes: Array  # C, (S, p K, npsi)
    output_spikes: Array | None  # E[h A1 U (1 + k U m)/s psi^T] at the nodes of mu, (S, L, K, npsi)

    def take(self, index: NDArray[np.intp]) -> "_Tables":
        """The same for some of the points."""
        return _Tables(*(None if part is None else part[index] for part in vars(self).values()))

    def repeat(self, count: int) -> "_Tables":
        """A single step size for `count` points, without copies."""
        return _Tables(
            *(None if part is None else np.broadcast_to(part, (count, *part.shape[1:])) for part in vars(self).values())
        )


def _readout_rule(kind: str, spacing: float, degrees: int) -> tuple[Array, Array, Array]:
    """Nodes and weights of U = sqrt(N) a, and orthonormal functions of it with psi_0 = 1 for polynomial spikes."""
    if kind == "rademacher":
        return np.array([-1.0, 1.0]), np.array([0.5, 0.5]), np.array([[1.0, 1.0], [-1.0, 1.0]])
    if kind == "constant":
        return np.ones(1), np.ones(1), np.ones((1, 1))
    if degrees:
        nodes, weights = gauss_hermite(2 * degrees + max(0, round(5 / spacing) - 8))
        return nodes, weights, hermite_polynomials(nodes, degrees, normalised=True)
    # The trapezoid rule: s(U) has branch points off the axis, which slow Gauss quadrature down but not this.
    half = math.ceil(READOUT_REACH / spacing)
    nodes = spacing * np.arange(-half, half + 1)
    weights = np.exp(-(nodes**2) / 2)
    return nodes, weights / weights.sum(), np.ones((1, len(nodes)))


@lru_cache(maxsize=64)
def _geometry(problem: Problem, sizes: Sizes, resolution: Resolution, rest: str, degrees: int) -> _Geometry:
    """Everything that the step sizes share; `degrees` > 0 asks for polynomials of z and U as bases."""
    c = problem.activation.hermite(SERIES_TERMS + 1)
    norm = math.sqrt(problem.direction_norm_squared(sizes))
    cosine = float(problem.teacher.hermite(2)[1]) / norm
    z, weights = gauss_hermite(max(resolution.nodes, degrees + resolution.nodes // 2))
    m0, m1, m2 = problem.teacher.gaussian_moments(math.sqrt(1 - cosine**2), cosine * z)
    order_one = problem.initial_output == "order_one"
    law = point_law(3 if order_one else 2)
    if rest == "structured" and c[2] != 0:
        output = (float(c[1]), problem.activation.tail(2)) if order_one else None
        law = rest_law(problem.teacher, problem.noise_variance, sizes.step_ratio, output, resolution.rest_levels)
    direction = np.zeros(3 if order_one else 2)
    if order_one:
        pull = float(c[1]) / norm
        left = pull * cosine / math.sqrt(1 - cosine**2)
        direction = np.array([-pull, left, math.sqrt(1 - pull**2 - left**2)])
    u, u_weights, psi = _readout_rule(problem.readout, resolution.readout_spacing, degrees)
    return _Geometry(
        problem=problem,
        sizes=sizes,
        samples_per_neuron=sizes.n_samples / sizes.width,
        samples_per_dim=sizes.n_samples / sizes.dim,
        neurons_per_dim=sizes.width / sizes.dim,
        norm=norm,
        cosine=cosine,
        z=z,
        weights=weights,
        hermite=hermite_polynomials(z, degrees, normalised=True),
        u=u,
        u_weights=u_weights,
        psi=psi,
        label_mean=m0,
        label_slope=m1,
        label_square=m2 + problem.noise_variance,
        c=c,
        law=law,
        output_direction=direction,
    )


def _tables(geometry: _Geometry, step_sizes: Array, rest: str) -> _Tables:
    r"""Conditional coefficients A0, A1, A2 of the neurons given z [firststep, unified, eqs. 2-4].

    .. math:: A_0 = E\sigma(s g + u z),\quad A_1 = E[g\,\sigma(s g + u z)],\quad A_2^2 = E\sigma^2 - A_0^2 - A_1^2

    Functions of z and of U are expanded in polynomials if the geometry has them, else in what they span themselves.
    """
    problem, sizes, u, z = geometry.problem, geometry.sizes, geometry.u, geometry.z
    activation, c, law = problem.activation, geometry.c, geometry.law
    order_one = problem.initial_output == "order_one"
    root = math.sqrt(sizes.width)
    omega = _spike_strength(problem, sizes, step_sizes)
    residual = problem.label_variance + (activation.second_moment if order_one else 0.0)
    beyond = activation.derivative_second_moment - float(c[1]) ** 2 if rest != "none" else 0.0
    turn = np.zeros_like(step_sizes)
    if rest == "structured":
        beyond -= 4 * float(c[2]) ** 2
        turn = 2 * float(c[2]) * step_sizes / root
    kappa2 = step_sizes**2 / sizes.width * sizes.step_ratio * residual * max(beyond, 0.0)
    # s^2 - 1, kept apart from 1 because sqrt(N) multiplies its effect on A0.
    excess = 2 * np.outer(turn, u) * law.mean + np.outer(turn**2 * law.second_moment + kappa2, u**2)
    scale = np.sqrt(1 + excess)
    a0, a1, square = activation.gaussian_moments(scale[..., None], omega[:, None, None] * np.outer(u, z))
    spread = np.maximum(square - a0**2 - a1**2, 0.0)
    # Given W0^T a, a neuron's row has the component a_j along it, which the step turns into (1 + k U M) a_j: for an
    # output of order one these are spikes too, without the factor sqrt(N).
    slope = (a1 / scale[..., None]) * u[:, None] if order_one else None
    if len(geometry.hermite):
        h = np.broadcast_to(geometry.hermite, (len(omega), *geometry.hermite.shape))
        psi = np.broadcast_to(geometry.psi, (len(omega), *geometry.psi.shape))
        weighted = h * geometry.weights
        main = root * weighted @ a0.swapaxes(1, 2)
    else:
        h = _span_of_z(geometry, a0, a1)
        weighted = h * geometry.weights
        main = root * weighted @ a0.swapaxes(1, 2)
    count, basis, directions = len(step_sizes), h.shape[1], geometry.directions
    by_node = np.zeros((count, directions, basis, len(u)))
    along = None
    if slope is not None:
        along = weighted @ slope.swapaxes(1, 2)
        turned = turn[:, None, None] * u
        theta = geometry.output_direction
        m_theta = (law.special_vectors.T * law.special_nodes) @ law.special_vectors @ theta
        by_node[:, 0] = m_theta[0] * turned * ((weighted * z) @ slope.swapaxes(1, 2))
        for a in range(1, directions):
            by_node[:, a] = along * (theta[a] + m_theta[a] * turned)
    if not len(geometry.hermite):
        by_node[:, 0] += main
        extra = [] if along is None else [along, along * u]
        psi = _span_of_u(geometry, np.concatenate([by_node.reshape(count, -1, len(u)), *extra], axis=1))
    psi_weighted = (psi * geometry.u_weights).swapaxes(1, 2)
    spikes = by_node @ psi_weighted[:, None]
    if len(geometry.hermite):
        polynomial = main @ psi_weighted
        series = np.abs(omega) <= SMALL_SPIKE
        polynomial[series] = root * _spike_series(geometry, omega[series], excess[series])
        spikes[:, 0] += polynomial
    output_spikes = None
    if along is not None:
        bend = 1 + turn[:, None, None] * law.nodes[:, None] * u
        output_spikes = (along[:, None] * bend[:, :, None, :]) @ psi_weighted[:, None]
    alpha = a1 @ weighted.swapaxes(1, 2)

    def stretch(nodes: Array) -> Array:
        bent = (1 + turn[:, None, None] * nodes[:, None] * u) ** 2 + (kappa2[:, None] * u**2)[:, None, :]
        return np.asarray(bent / (1 + excess)[:, None, :])

    return _Tables(
        h=h,
        shift=(weighted * z) @ h.swapaxes(1, 2),
        psi=psi,
        spread=spread,
        alpha=alpha,
        outer=(alpha[..., :, None] * alpha[..., None, :]).reshape(count, len(u), basis * basis),
        stretch=stretch(law.nodes),
        special_stretch=stretch(law.special_nodes),
        spikes=spikes.reshape(count, directions * basis, -1),
        output_spikes=output_spikes,
    )


def _spike_strength(problem: Problem, sizes: Sizes, step_sizes: Array) -> Array:
    r"""omega: the component of a neuron along b is omega U [firststep, unified, eq. 1].

    .. math:: \omega = (\eta c_1 B - c_1/B)/\sqrt N, \text{ the second term for an output of order one only}
    """
    c1 = float(problem.activation.hermite(2)[1])
    norm = math.sqrt(problem.direction_norm_squared(sizes))
    pull = c1 / norm if problem.initial_output == "order_one" else 0.0
    return np.asarray((step_sizes * c1 * norm - pull) / math.sqrt(sizes.width))


def _span_of_z(geometry: _Geometry, a0: Array, a1: Array) -> Array:
    """Orthonormal functions of z that span 1, A0, A1 and z A1: with them the equations have no truncation.

    A large spike bends A0 like the activation itself, which Hermite polynomials follow only slowly.
    """
    root_z, root_u = np.sqrt(geometry.weights), np.sqrt(geometry.u_weights)[:, None]
    count = len(a0)
    columns = [
        np.broadcast_to(np.stack([np.ones_like(root_z), geometry.z]), (count, 2, len(root_z))),
        math.sqrt(geometry.sizes.width) * a0 * root_u,
        a1 * root_u,
        geometry.z * a1 * root_u,
    ]
    matrix = np.concatenate(columns, axis=1) * root_z
    # Spikes many orders of magnitude apart would hide the small ones: every function counts at unit size at most.
    matrix /= np.maximum(1.0, np.sqrt((matrix**2).sum(axis=2, keepdims=True)))
    _, sizes, functions = np.linalg.svd(matrix, full_matrices=False)
    rank = int((sizes > NEGLIGIBLE_FUNCTION).sum(axis=1).max())
    return np.asarray(functions[:, :rank] / root_z)


def _span_of_u(geometry: _Geometry, by_node: Array) -> Array:
    """Orthonormal functions of U, the constant first, that span all spikes; sorted by the size of their spike."""
    root = np.sqrt(geometry.u_weights)
    constant = root / np.linalg.norm(root)
    matrix = by_node * root
    matrix = matrix - (matrix @ constant)[..., None] * constant
    _, sizes, functions = np.linalg.svd(matrix, full_matrices=False)
    rank = min(int((sizes > NEGLIGIBLE_SPIKE).sum(axis=1).max()), len(root) - 1)
    first = np.broadcast_to(constant, (len(by_node), 1, len(root)))
    return np.asarray(np.concatenate([first, functions[:, :rank]], axis=1) / root)


def _spike_series(geometry: _Geometry, omega: Array, excess: Array) -> Array:
    r"""E[h(z) A0(u, z) psi(u)^T] for small spikes, from the Hermite coefficients [firststep, unified, eq. 5].

    .. math:: A_0(u,z) = \sum_{p,j} c_{p+2j} \frac{(p+2j)!}{2^j j!\, p!} (s^2-1)^j (u z)^p

    Orthogonality between z^p and h_k is exact here, so that a large spike cannot leak into the next degree.
    """
    c, u, basis = geometry.c, geometry.u, len(geometry.hermite)
    psi_weighted = (geometry.psi * geometry.u_weights).T
    total = np.zeros((len(omega), basis, psi_weighted.shape[1]))
    expansion = monomial_in_hermite(SERIES_TERMS + 1)
    for p in range(SERIES_TERMS + 1):
        profile = np.zeros_like(excess)
        for j in range((SERIES_TERMS - p) // 2 + 1):
            degree = p + 2 * j
            if c[degree] != 0.0:
                factor = math.exp(math.lgamma(degree + 1) - j * math.log(2) - math.lgamma(j + 1) - math.lgamma(p + 1))
                profile += c[degree] * factor * excess**j
        if not profile.any():
            continue
        top = min(p + 1, basis)
        in_z = expansion[p, :top] * np.sqrt([math.exp(math.lgamma(i + 1)) for i in range(top)])
        in_u = (profile * u**p) @ psi_weighted
        total[:, :top] += np.power(omega, p)[:, None, None] * in_z[:, None] * in_u[:, None, :]
    return total


@dataclass(frozen=True)
class _State:
    """The matrices of the self-consistent equations at given rho and y = 1/(1 + delta)."""

    rho: Values  # (B, nz)
    y: Values  # (B, nu)
    p: Values  # P, (B, K, K)
    s: Values  # (1 + Bm P)^-1 at the nodes of mu, (B, L, K, K)
    t: Values  # T(m), (B, L, K, K)
    x: Values  # P (1 + Bm P)^-1
    bulk: Values  # V(z) + h^T T h, (B, nz)
    delta: Values  # right-hand side of the equation for delta, (B, nu)


def _linear_sector(tables: _Tables, stretch: Array, u_weights: Array, y: Values, p: Values) -> tuple[Values, Values]:
    """S(m) = (1 + Bm(m) P)^-1 and T(m) = S Bm, Bm(m) = E_u[c(U, m) alpha alpha^T y] [firststep, unified, eq. 8]."""
    basis = p.shape[-1]
    mass = (stretch * (u_weights * y)[:, None, :]) @ tables.outer
    bm = mass.reshape(*mass.shape[:2], basis, basis)
    s = np.linalg.inv(np.eye(basis) + bm @ p[:, None])
    return s, s @ bm


def _state(geometry: _Geometry, tables: _Tables, rho: Values, y: Values) -> _State:
    """One evaluation of both self-consistent equations [firststep, unified, eqs. 6-7]."""
    h, weights, uw, mu = tables.h, geometry.weights, geometry.u_weights, geometry.law.weights
    basis = h.shape[1]
    p = geometry.samples_per_dim * (h * (weights * rho)[:, None, :]) @ h.swapaxes(1, 2)
    s, t = _linear_sector(tables, tables.stretch, uw, y, p)
    x = p[:, None] @ s
    mean_t = np.einsum("l,blij->bij", mu, t)
    bulk = ((uw * y)[:, None, :] @ tables.spread)[:, 0] + ((mean_t @ h) * h).sum(axis=1)
    forms = x.reshape(*x.shape[:2], basis * basis) @ tables.outer.swapaxes(1, 2)
    delta = geometry.samples_per_neuron * (tables.spread @ (weights * rho)[..., None])[..., 0]
    delta = delta + (mu[:, None] * tables.stretch * forms).sum(axis=1) / geometry.neurons_per_dim
    return _State(rho, y, p, s, t, x, bulk, delta)


def _jacobian(geometry: _Geometry, tables: _Tables, state: _State) -> Values:
    """Derivative of the relative residuals with respect to (log rho, log(1 + delta)) [firststep, unified, eq. 9]."""
    h, weights, uw, mu = tables.h[:, None], geometry.weights, geometry.u_weights, geometry.law.weights
    nz, nu = len(weights), len(uw)
    transposed = h.swapaxes(2, 3)
    alpha = tables.alpha[:, None]
    between_samples = _weighted_square(mu, transposed @ state.t @ h)
    mixed = transposed @ (state.s @ alpha.swapaxes(2, 3))  # h_i^T S alpha_j
    stretched = mu[:, None] * tables.stretch
    samples_neurons = tables.spread.swapaxes(1, 2) + np.einsum("blu,blzu,blzu->bzu", stretched, mixed, mixed)
    own = alpha @ state.x @ alpha.swapaxes(2, 3)
    between_neurons = np.einsum("blu,blv,bluv,bluv->buv", stretched, tables.stretch, own, own)
    sample_mass, neuron_mass = weights * state.rho, uw * state.y
    jacobian = np.empty((len(state.rho), nz + nu, nz + nu), dtype=np.result_type(state.rho, state.y))
    jacobian[:, :nz, :nz] = -geometry.samples_per_dim * state.rho[:, :, None] * between_samples * sample_mass[:, None, :]
    jacobian[:, :nz, nz:] = -state.rho[:, :, None] * samples_neurons * neuron_mass[:, None, :]
    jacobian[:, nz:, :nz] = (
        -geometry.samples_per_neuron * state.y[:, :, None] * samples_neurons.swapaxes(1, 2) * sample_mass[:, None, :]
    )
    jacobian[:, nz:, nz:] = -state.y[:, :, None] * between_neurons * neuron_mass[:, None, :] / geometry.neurons_per_dim
    diagonal = np.arange(nz + nu)
    jacobian[:, diagonal, diagonal] += 1.0
    return jacobian


def _weighted_square(mu: Array, forms: Values) -> Values:
    """sum_l mu_l forms_l^2 over axis 1, without a temporary of its own for the product."""
    return np.asarray(np.einsum("l,blij,blij->bij", mu, forms, forms))


def _solve_points(
    geometry: _Geometry, tables: _Tables, ridge: Values, start: Values, tolerance: float, plain_rounds: int
) -> fixedpoint.FixedPoint:
    """rho(z) and 1 + delta(u) for a batch of points, as one vector each [firststep, unified, eqs. 6-7]."""
    nz = len(geometry.weights)
    floor = (ridge * geometry.samples_per_neuron)[:, None]
    # Nodes far out, where polynomials are huge and the weight is nil, must not decide about convergence.
    relevance = np.concatenate([np.sqrt(geometry.weights / geometry.weights.max()), np.ones(len(geometry.u))])

    def newton(values: Values, index: NDArray[np.intp]) -> tuple[Values, Values]:
        here = tables if len(index) == len(ridge) else tables.take(index)
        rho, y = values[:, :nz], 1 / values[:, nz:]
        state = _state(geometry, here, rho, y)
        error = np.concatenate(
            [rho * (floor[index] + state.bulk) - 1, 1 - (1 + state.delta) * y],
            axis=1,
        )
        jacobian = _jacobian(geometry, here, state)
        diagonal = np.arange(nz)
        jacobian[:, diagonal, diagonal] += error[:, :nz]
        diagonal = np.arange(nz, values.shape[1])
        jacobian[:, diagonal, diagonal] -= error[:, nz:]
        return -np.linalg.solve(jacobian, error[..., None])[..., 0], (relevance * np.abs(error)).max(axis=1)

    def plain(values: Values, index: NDArray[np.intp]) -> Values:
        state = _state(geometry, tables.take(index), values[:, :nz], 1 / values[:, nz:])
        return np.concatenate([1 / (floor[index] + state.bulk), 1 + state.delta], axis=1)

    return fixedpoint.solve(
        newton,
        plain,
        start,
        tolerance=tolerance,
        plain_rounds=plain_rounds,
        what="the unified equations",
        remedy="raise ridge, or check that the ratios are of order one",
    )


@dataclass(frozen=True)
class _Forms:
    """Resolvent forms on functions h_p(z), h_p(z) g1 (, h_p(z) g2), before and after the finite-rank terms."""

    state: _State
    special_s: Values
    special_t: Values
    z_matrix: Values  # (1 - Tau (1 x P))^-1
    effective: Values  # Beff
    shift: Values  # multiplication by the function's own variable
    constant: Values  # the constant function
    prior: Values  # G, covariance of what the random weights add
    forms: Values  # R2 = 1 x Rm
    qi: Values  # E_u[psi psi^T y]^-1
    own: Values  # the neurons' side of the spikes, Qi with what fluctuates


def _forms(geometry: _Geometry, tables: _Tables, values: Values) -> _Forms:
    r"""Prior of the random weights and forms of the bulk [firststep, unified, eqs. 10-12].

    .. math:: \mathcal T_{ab} = \int T(m)\,\mu_{ab}(dm), \quad B_{eff} = (\mathcal T^{-1} - 1\otimes P)^{-1},
        \quad G = \tfrac Nd\, \mathcal J B_{eff} \mathcal J^\top
    """
    h, psi, weights, uw, law = tables.h, tables.psi, geometry.weights, geometry.u_weights, geometry.law
    nz, basis, directions = len(weights), h.shape[1], geometry.directions
    ratio = geometry.neurons_per_dim
    quadratic = 2 * float(geometry.c[2]) ** 2
    rho, y = values[:, :nz], 1 / values[:, nz:]
    count = len(rho)
    state = _state(geometry, tables, rho, y)
    sample_mass, neuron_mass = weights * rho, uw * y
    special_s, special_t = _linear_sector(tables, tables.special_stretch, uw, y, state.p)
    vectors = law.special_vectors
    outer = vectors[:, :, None] * vectors[:, None, :]
    tau = np.einsum("lac,blij->baicj", outer, special_t)
    tau = tau.reshape(count, directions * basis, directions * basis)
    identity = np.eye(directions * basis)
    p_all = _repeat(state.p, directions)
    z_matrix = np.linalg.inv(identity - tau @ p_all)
    effective = z_matrix @ tau
    # A random weight along b multiplies z itself; one along e1 multiplies an independent Gaussian.
    shift = np.zeros((count, *identity.shape)) + identity
    shift[:, :basis, :basis] = tables.shift
    prior = ratio * (shift @ effective @ shift)
    constant = np.zeros((count, directions, basis))
    constant[:, 0] = h @ weights
    constant = constant.reshape(count, -1)
    if geometry.problem.rows == "gaussian":
        # Row norms fluctuate, and c_2 turns that into a random multiple of the constant function.
        strength = quadratic * ratio * neuron_mass.sum(axis=1)
        prior = prior + strength[:, None, None] * constant[:, :, None] * constant[:, None, :]
    qi = np.linalg.inv((psi * neuron_mass[:, None, :]) @ psi.swapaxes(1, 2))
    own = qi.copy()
    # The norm of x fluctuates too: noise on the neurons' constant direction.
    own[:, 0, 0] += quadratic * geometry.samples_per_dim * sample_mass.sum(axis=1)
    if tables.output_spikes is not None:
        # Given W0^T a, the neurons have no random component along a.
        along = tables.output_spikes.swapaxes(2, 3) @ state.x @ tables.output_spikes
        own -= np.einsum("l,blpq->bpq", law.weights, along) / ratio
    return _Forms(
        state, special_s, special_t, z_matrix, effective, shift, constant, prior, p_all / ratio, qi, own
    )


@dataclass(frozen=True)
class _Answer:
    """Quadratic forms and what follows from them, for a batch of points."""

    q: Values
    slope: Values  # dq/dlambda
    test_error: Values
    trace: Values  # (n/N) E rho
    learned: Values  # fitted function: its parts that multiply 1, g1 (, g2), at the nodes of z, (B, p, nz)


def _answer(geometry: _Geometry, tables: _Tables, values: Values) -> _Answer:
    r"""The quadratic form q = y^T R y and its derivative along a ridge that depends on z [firststep, unified, eqs. 13-14].

    .. math:: q = \frac nN E_z[E[y^2|z]\rho] - r^\top K r, \qquad
        L_{te} = -\frac{d}{d\epsilon} q\Big(\lambda + \epsilon \frac{N^2}{n^2\rho(z)^2}\Big)

    K combines the prior of the random weights with the spikes. The derivative is taken by one adjoint solve.
    """
    h, psi, weights, uw, law = tables.h, tables.psi, geometry.weights, geometry.u_weights, geometry.law
    basis, directions = h.shape[1], geometry.directions
    npn, ratio = geometry.samples_per_neuron, geometry.neurons_per_dim
    quadratic = 2 * float(geometry.c[2]) ** 2
    f = _forms(geometry, tables, values)
    rho, y, forms = f.state.rho, f.state.y, f.forms
    count = len(rho)
    sample_mass, neuron_mass = weights * rho, uw * y
    right = np.zeros((count, directions, basis), dtype=values.dtype)
    right[:, 0] = npn * _apply(h, sample_mass * geometry.label_mean)
    right[:, 1] = npn * _apply(h, sample_mass * geometry.label_slope)
    r = right.reshape(count, -1)
    identity = np.eye(directions * basis)
    d = np.linalg.solve(identity + f.prior @ forms, f.prior)
    kept = identity - forms @ d
    # Spikes: W = own + C^T Rz C, x = W^-1 C^T rz.
    c = tables.spikes
    x = _solve_scaled(f.own + c.swapaxes(1, 2) @ (kept @ forms) @ c, _apply(c.swapaxes(1, 2), _apply(kept, r)))
    amplitude = _apply(c, x)
    learned = _apply(d, r - _apply(forms, amplitude)) + amplitude
    left_over = r - _apply(forms, learned)
    functions = learned.reshape(count, directions, basis) @ h
    q = npn * (sample_mass * geometry.label_square).sum(axis=1) - (r * learned).sum(axis=1)
    # Derivatives of q with respect to log rho and log(1 + delta), everything else eliminated (envelope theorem).
    error = (
        geometry.label_square
        - 2 * (geometry.label_mean * functions[:, 0] + geometry.label_slope * functions[:, 1])
        + (functions * functions).sum(axis=1)
    )
    u = _apply(f.shift, left_over)
    nu_all = _apply(f.z_matrix.swapaxes(1, 2), u).reshape(count, directions, basis)
    beta_all = _apply(f.effective, u).reshape(count, directions, basis)
    nu_l = law.special_vectors @ nu_all
    alpha_t = tables.alpha.swapaxes(1, 2)
    t_nu = (f.special_t @ nu_l[..., None])[..., 0] @ h
    s_nu = (f.special_s.swapaxes(2, 3) @ nu_l[..., None])[..., 0] @ alpha_t
    by_sample = npn * error - ratio * geometry.samples_per_dim * (
        ((beta_all @ h) ** 2).sum(axis=1) - (t_nu**2).sum(axis=1)
    )
    by_sample = by_sample + quadratic * geometry.samples_per_dim * x[:, :1] ** 2
    by_neuron = ratio * (tables.special_stretch * s_nu**2).sum(axis=1) + _apply(psi.swapaxes(1, 2) @ f.qi, x) ** 2
    if geometry.problem.rows == "gaussian":
        by_neuron = by_neuron + quadratic * ratio * (left_over * f.constant).sum(axis=1, keepdims=True) ** 2
    if tables.output_spikes is not None:
        eta_l = (tables.output_spikes @ x[:, None, :, None])[..., 0]
        s_eta = (f.state.s @ eta_l[..., None])[..., 0] @ h
        x_eta = (f.state.x @ eta_l[..., None])[..., 0] @ alpha_t
        by_sample = by_sample - npn * np.einsum("l,blz->bz", law.weights, s_eta**2)
        by_neuron = by_neuron - np.einsum("l,blu,blu->bu", law.weights, tables.stretch, x_eta**2) / ratio
    gradient = np.concatenate([sample_mass * by_sample, neuron_mass * by_neuron], axis=1)
    jacobian = _jacobian(geometry, tables, f.state)
    adjoint = np.linalg.solve(jacobian.swapaxes(1, 2), gradient[..., None])[:, : len(weights), 0]
    return _Answer(
        q=q,
        slope=-(adjoint * rho).sum(axis=1) * npn,
        test_error=(adjoint / rho).sum(axis=1) / npn,
        trace=npn * sample_mass.sum(axis=1),
        learned=functions,
    )


def _apply(matrix: Values, vector: Values) -> Values:
    """Batched matrix times vector."""
    return np.asarray((matrix @ vector[..., None])[..., 0])


def _repeat(block: Values, times: int) -> Values:
    """1 x P: the same block for each direction."""
    size = block.shape[-1]
    full = np.zeros((len(block), times, size, times, size), dtype=block.dtype)
    for a in range(times):
        full[:, a, :, a, :] = block
    return full.reshape(len(block), times * size, times * size)


def _solve_scaled(matrix: Values, right: Values) -> Values:
    """Solve after equalising the diagonal: spikes of different degrees differ by powers of n."""
    scale = 1 / np.sqrt(np.einsum("bii->bi", matrix))
    equal = matrix * scale[:, :, None] * scale[:, None, :]
    return np.asarray(scale * np.linalg.solve(equal, (scale * right)[..., None])[..., 0])


# Hermite degrees of the learned function that are kept.
LEARNED = 16
COLUMNS = ("train_error", "test_error", "train_mse", "readout_norm_squared", "degrees_of_freedom")


def _columns(geometry: _Geometry, answer: _Answer, ridge: Values) -> Values:
    r"""`COLUMNS`, then the learned function's coefficients on h_k(beta·x), then those of its mean given z on h_k(z).

    The fitted function's projection on a function f of z and g is a leave-one-out average, in which 1/rho cancels:
    with :math:`\beta\cdot x = r z + \sqrt{1-r^2} g` it is :math:`r^k \langle\varphi_0, h_k\rangle +
    \sqrt{k(1-r^2)} r^{k-1} \langle\varphi_1, h_{k-1}\rangle` for h_k [firststep, unified, eq. 15].
    """
    coefficients = answer.learned @ (geometry.weights * hermite_polynomials(geometry.z, LEARNED, normalised=True)).T
    r, degree = geometry.cosine, np.arange(LEARNED)
    slope = np.zeros_like(coefficients[:, 1])
    slope[:, 1:] = coefficients[:, 1, :-1]
    along = r**degree * coefficients[:, 0]
    along = along + np.sqrt(degree * (1 - r**2)) * r ** np.maximum(degree - 1, 0) * slope
    mse = -(ridge**2) * answer.slope
    train = ridge * answer.q
    table = np.stack([train, answer.test_error, mse, (train - mse) / ridge, 1 - ridge * answer.trace], axis=1)
    return np.concatenate([table, along, coefficients[:, 0]], axis=1)


@dataclass(frozen=True)
class _Level:
    """Answers at one resolution for a list of points, and the solution from which the next one starts."""

    numbers: Array  # (B, columns)
    log_values: Array  # log rho and log(1 + delta), (B, nz + nu)
    z: Array
    u: Array
    iterations: int
    residual: float

    def start_for(self, geometry: _Geometry) -> Array:
        """The solution interpolated to another geometry's nodes."""
        nz = len(self.z)
        rho = self.log_values[:, :nz] @ _interpolation(self.z, geometry.z)
        return np.asarray(np.exp(np.concatenate([rho, self.log_values[:, nz:] @ _interpolation(self.u, geometry.u)], axis=1)))

    def take(self, index: NDArray[Any]) -> "_Level":
        """The same for some of the points."""
        return replace(self, numbers=self.numbers[index], log_values=self.log_values[index])


def _interpolation(old: Array, new: Array) -> Array:
    """Matrix (old, new) of linear interpolation."""
    return np.stack([np.interp(new, old, row) for row in np.eye(len(old))])


def _level(
    problem: Problem,
    sizes: Sizes,
    steps: Array,
    ridges: Array,
    resolution: Resolution,
    rest: str,
    degrees: int,
    before: _Level | None,
    residual: float,
) -> _Level:
    """Solve a list of points (step size, ridge), sorted by step size, at one resolution."""
    geometry = _geometry(problem, sizes, resolution, rest, degrees)
    guess = None if before is None else before.start_for(geometry)
    numbers, values, rounds, worst = [], [], 0, 0.0
    for low in range(0, len(steps), CHUNK):
        part = slice(low, low + CHUNK)
        distinct, index = np.unique(steps[part], return_inverse=True)
        tables = _tables(geometry, distinct, rest).take(index)
        ridge = ridges[part]
        if guess is not None:
            start, plain_rounds = guess[part], 1
        else:
            size = 1 / (ridge * geometry.samples_per_neuron + problem.activation.second_moment)
            start = np.concatenate(
                [np.repeat(size[:, None], len(geometry.z), 1), np.full((len(ridge), len(geometry.u)), 1.5)], axis=1
            )
            plain_rounds = fixedpoint.PLAIN_ROUNDS
        found = _solve_points(geometry, tables, ridge, start, residual, plain_rounds)
        numbers.append(_columns(geometry, _answer(geometry, tables, found.value), ridge))
        values.append(found.value)
        rounds, worst = max(rounds, found.iterations), max(worst, float(found.residual.max()))
    return _Level(
        np.concatenate(numbers), np.log(np.concatenate(values)), geometry.z, geometry.u, rounds, worst
    )


@dataclass(frozen=True)
class _Points:
    """Numbers for a list of points, with the accuracy that was reached."""

    numbers: Array  # (B, columns)
    error: Array  # estimated relative error, (B,)
    level: NDArray[np.intp]  # index into LADDER, (B,)
    iterations: int
    residual: float


def _solve_all(problem: Problem, sizes: Sizes, steps: Array, ridges: Array, rest: str, tolerance: float) -> _Points:
    """Refine every point until its errors no longer change by more than `tolerance`."""
    count = len(steps)
    numbers = np.empty((count, len(COLUMNS) + 2 * LEARNED))
    error = np.full(count, np.inf)
    reached = np.zeros(count, dtype=np.intp)
    rounds, worst = 0, 0.0
    spike = np.abs(_spike_strength(problem, sizes, steps))
    polynomial = _is_polynomial(spike, sizes)
    for branch in (True, False):
        pending = np.flatnonzero(polynomial == branch)
        degrees = _degrees(float(spike[pending].max(initial=0.0)), sizes) if branch else 0
        pending = pending[np.argsort(steps[pending], kind="stable")]
        before: _Level | None = None
        for step, resolution in enumerate(LADDER):
            if not len(pending):
                break
            now = _level(problem, sizes, steps[pending], ridges[pending], resolution, rest, degrees, before, RESIDUAL)
            rounds, worst = max(rounds, now.iterations), max(worst, now.residual)
            if before is not None:
                change = np.abs(now.numbers[:, :2] / before.numbers[:, :2] - 1).max(axis=1)
                error[pending] = change
                done = change <= tolerance
            else:
                done = np.zeros(len(pending), dtype=bool)
            numbers[pending] = now.numbers
            reached[pending] = step
            pending, before = pending[~done], now.take(~done)
        if len(pending):
            at = int(pending[np.argmax(error[pending])])
            raise fixedpoint.ConvergenceError(
                f"the unified theory is only stable to {error[at]:.1e} at step_size={steps[at]:.4g}, ridge={ridges[at]:.3g}, "
                f"where {tolerance:.1e} was asked for: pass tolerance={_rounded_up(error[at]):.0e}, or lower the step size",
                numbers,
                error,
            )
    if not (np.isfinite(numbers).all() and (numbers[:, :2] > 0).all()):
        raise fixedpoint.ConvergenceError(
            "the unified theory gave an error that is not positive: raise ridge", numbers, error
        )
    return _Points(numbers, error, reached, rounds, worst)


def _is_polynomial(spike: Array, sizes: Sizes) -> NDArray[np.bool_]:
    """Where spikes are small, or so many orders apart that only exact orthogonality of polynomials separates them."""
    return np.asarray((spike <= SMALL_SPIKE) | (spike * math.sqrt(sizes.width) > LARGEST_RATIO))


def _degrees(spike: float, sizes: Sizes) -> int:
    """Hermite degrees after which spikes no longer matter: spike k has size sqrt(N k!) omega^k k^(-5/4) or less."""
    low, high = POLYNOMIAL_DEGREES
    for k in range(low, high):
        if spike == 0 or 0.5 * (math.log(sizes.width) + math.lgamma(k + 1)) + k * math.log(spike) < math.log(1e-6):
            return k
    return high


def _rounded_up(value: float) -> float:
    """The next power of ten."""
    return 10.0 ** math.ceil(math.log10(value)) if math.isfinite(value) else 1.0


# Relative residual of the self-consistent equations; Newton's last step squares it.
RESIDUAL = 1e-9


def solve(
    problem: Problem,
    sizes: Sizes,
    step_sizes: Array,
    ridges: Array,
    *,
    rest: str = "structured",
    tolerance: float = 1e-6,
) -> Outcome:
    r"""Errors at finite size for every step size from 0 to about :math:`\sqrt N` [firststep, unified].

    Parameters
    ----------
    problem, sizes
        What is studied; any n, up to 1e30.
    step_sizes : ndarray (S,)
        eta.
    ridges : ndarray (R,)
        lambda.
    rest : {"structured", "noise", "none"}
        What becomes of the gradient beyond its rank-one spike: its part linear in the weights is kept (default), all of
        it is taken as independent noise, or it is dropped, which is the model behind the staircase of [Moniri24]_.
    tolerance : float
        Relative change of the errors under refinement that is accepted.

    Returns
    -------
    Outcome
        Besides the errors: `residual_degree_0` … `residual_degree_4`, what remains in the test error of each Hermite
        degree of the teacher, `residual_higher` for all degrees above, and `residual_spread`, the variance of the
        fitted function that is no function of beta·x. Their sum and the noise make the test error.

    Examples
    --------
    >>> import numpy as np
    >>> setting = Problem("relu", "h1 + h2/sqrt(2)", rows="sphere")
    >>> outcome = solve(setting, Sizes(1000, 500, 750), np.array([7.943]), np.array([0.1]), rest="noise")
    >>> print(f"{outcome.train_error[0, 0]:.4f} {outcome.test_error[0, 0]:.4f}")
    0.6898 1.5168
    """
    if rest not in RESTS:
        raise ValueError(f"rest must be one of {', '.join(RESTS)}; got {rest!r}")
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    shape = (len(step_sizes), len(ridges))
    # The untrained network comes along: gains are differences to it.
    steps = np.concatenate([[0.0], step_sizes])
    flat_steps, flat_ridges = (m.ravel() for m in np.meshgrid(steps, ridges, indexing="ij"))
    points = _solve_all(problem, sizes, flat_steps, flat_ridges, rest, tolerance)
    cube = points.numbers.reshape(len(steps), len(ridges), -1)
    values = {name: cube[1:, :, i] for i, name in enumerate(COLUMNS)}
    for name in ("train", "test"):
        values[f"{name}_gain"] = cube[:1, :, COLUMNS.index(f"{name}_error")] - values[f"{name}_error"]
    first = len(COLUMNS)
    along = cube[1:, :, first : first + LEARNED]
    values |= _split(problem, values["test_error"], along)
    norm_squared = problem.direction_norm_squared(sizes)
    values["direction_norm"] = np.array(math.sqrt(norm_squared))
    values["alignment"] = np.array(float(problem.teacher.hermite(2)[1]) ** 2 / norm_squared)
    error = points.error.reshape(len(steps), len(ridges))[1:]
    level = points.level.reshape(len(steps), len(ridges))[1:]
    return Outcome(
        problem,
        sizes,
        step_sizes,
        ridges,
        "unified",
        {name: np.broadcast_to(value, shape) if value.ndim == 2 else value for name, value in values.items()},
        details={
            "rest": rest,
            "tolerance": tolerance,
            "relative_error": error,
            "resolution": [[LADDER[i] for i in row] for row in level],
            "iterations": points.iterations,
            "residual": points.residual,
            "learned": along,
            "learned_given_z": cube[1:, :, first + LEARNED :],
        },
    )


def _split(problem: Problem, test_error: Array, along: Array) -> dict[str, Array]:
    """What is left of each Hermite degree of the teacher in the test error [firststep, unified, eq. 16]."""
    degree = np.arange(LEARNED)
    wanted = problem.teacher.hermite(LEARNED) * np.sqrt([math.factorial(k) for k in degree])
    left = (wanted - along) ** 2
    parts = {f"residual_degree_{k}": left[..., k] for k in range(DEGREES)}
    parts["residual_higher"] = left[..., DEGREES:].sum(axis=-1) + problem.teacher.tail(LEARNED)
    parts["residual_spread"] = test_error - problem.noise_variance - sum(parts.values())
    return parts


def ridge_slopes(
    problem: Problem, sizes: Sizes, step_size: float, ridge: float, *, rest: str = "structured", tolerance: float = 1e-6
) -> tuple[float, float]:
    r"""Exact derivatives of the train and test error with respect to the ridge.

    The train error's is :math:`q + \lambda q'`; the test error's is read off the imaginary part of the whole solution at
    :math:`\lambda(1 + i h)` with h so small that nothing is truncated. No differences are formed.

    Examples
    --------
    >>> setting, sizes = Problem("tanh", "identity", noise_std=0.5), Sizes(400, 200, 300)
    >>> train, test = ridge_slopes(setting, sizes, step_size=2.0, ridge=0.1)
    >>> print(f"{train:.3f} {test:.3f}")
    1.219 -0.323
    """
    steps, ridges = np.array([float(step_size)]), np.array([float(ridge)])
    points = _solve_all(problem, sizes, steps, ridges, rest, tolerance)
    spike = np.abs(_spike_strength(problem, sizes, steps))
    polynomial = bool(_is_polynomial(spike, sizes)[0])
    degrees = _degrees(float(spike[0]), sizes) if polynomial else 0
    resolution = LADDER[int(points.level[0])]
    level = _level(problem, sizes, steps, ridges, resolution, rest, degrees, None, RESIDUAL)
    geometry = _geometry(problem, sizes, resolution, rest, degrees)
    tables = _tables(geometry, steps, rest)
    tilted = ridges * (1 + 1j * COMPLEX_STEP)
    start = np.exp(level.log_values).astype(complex)
    found = _solve_points(geometry, tables, tilted, start, RESIDUAL, 0)
    answer = _answer(geometry, tables, found.value)
    slope = answer.q.real + ridges * answer.slope.real
    return float(slope[0]), float(answer.test_error.imag[0] / (ridge * COMPLEX_STEP))


# Squares of this vanish against 1 in double precision, so the imaginary part is the derivative itself.
COMPLEX_STEP = 1e-25
# Where the best ridge and step are looked for.
RIDGE_RANGE = (1e-8, 1e4)
LARGEST_STEP = 3.0


@dataclass(frozen=True)
class Optimum:
    """Where the predicted test error is smallest.

    Attributes
    ----------
    step_size, ridge : float
        eta and lambda.
    test_error, train_error : float
        Predicted there.
    note : str
        Empty, or a sentence when the optimum lies at the end of the range that was searched.
    """

    step_size: float
    ridge: float
    test_error: float
    train_error: float
    note: str = ""


def best_ridge(
    problem: Problem, sizes: Sizes, step_size: float, *, rest: str = "structured", tolerance: float = 1e-6
) -> Optimum:
    """Ridge with the smallest predicted test error at this step size.

    A scan over twelve decades finds the lowest valley, the exact derivative its bottom.

    Examples
    --------
    >>> best = best_ridge(Problem("tanh", "identity", noise_std=0.5), Sizes(400, 200, 300), step_size=2.0)
    >>> print(f"{best.ridge:.3f} {best.test_error:.4f}")
    0.258 0.4506
    """
    from scipy.optimize import brentq

    grid = np.geomspace(*RIDGE_RANGE, 37)
    scan = solve(problem, sizes, np.array([float(step_size)]), grid, rest=rest, tolerance=max(tolerance, 1e-5))
    lowest = int(np.argmin(scan.test_error[0]))
    note, ridge = "", float(grid[lowest])
    if 0 < lowest < len(grid) - 1:

        def slope(log_ridge: float) -> float:
            here = math.exp(log_ridge)
            return here * ridge_slopes(problem, sizes, step_size, here, rest=rest, tolerance=tolerance)[1]

        ends = math.log(grid[lowest - 1]), math.log(grid[lowest + 1])
        ridge = math.exp(brentq(slope, *ends, xtol=1e-7))
    else:
        side = "smaller" if lowest == 0 else "larger"
        note = f"the test error still falls at the end of the range {RIDGE_RANGE[0]:g} … {RIDGE_RANGE[1]:g}: a {side} ridge may be better"
    at = solve(problem, sizes, np.array([float(step_size)]), np.array([ridge]), rest=rest, tolerance=tolerance)
    return Optimum(float(step_size), ridge, float(at.test_error[0, 0]), float(at.train_error[0, 0]), note)


def best_step(
    problem: Problem, sizes: Sizes, *, rest: str = "structured", tolerance: float = 1e-6
) -> Optimum:
    r"""Step size and ridge that together have the smallest predicted test error, step sizes up to :math:`3\sqrt N`.

    Examples
    --------
    >>> best = best_step(Problem("tanh", "tanh(2*x)", noise_std=0.5), Sizes(400, 200, 300))
    >>> print(f"{best.step_size:.0f} {best.ridge:.2f} {best.test_error:.3f}")
    19 0.16 0.429
    """
    from scipy.optimize import minimize

    largest = LARGEST_STEP * math.sqrt(sizes.width)
    steps = np.concatenate([[0.0], np.geomspace(0.1, largest, 25)])
    grid = np.geomspace(1e-6, 1e2, 17)
    scan = solve(problem, sizes, steps, grid, rest=rest, tolerance=1e-3)
    row, column = np.unravel_index(int(np.argmin(scan.test_error)), scan.test_error.shape)
    if row == 0:
        best = best_ridge(problem, sizes, 0.0, rest=rest, tolerance=tolerance)
        return replace(best, note=best.note or "no step is best: the gradient step does not lower the predicted test error")

    def test_error(point: Array) -> float:
        step, ridge = math.exp(min(point[0], math.log(largest))), math.exp(point[1])
        return float(solve(problem, sizes, np.array([step]), np.array([ridge]), rest=rest, tolerance=1e-6).test_error[0, 0])

    start = np.log([steps[row], grid[column]])
    found = minimize(test_error, start, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-7, "initial_simplex": start + 0.25 * np.array([[0, 0], [1, 0], [0, 1]])})
    step = math.exp(min(found.x[0], math.log(largest)))
    best = best_ridge(problem, sizes, step, rest=rest, tolerance=tolerance)
    if step >= 0.99 * largest:
        return replace(best, note=f"the test error still falls at the largest step considered, {largest:.3g}")
    return best
