r"""A neuron's conditional coefficients, given z and its own readout [firststep, unified].

Given :math:`z = x\cdot v/|v|`, v the vector that the step adds to all neurons, and the neuron's readout
:math:`a_j = U_j/\sqrt N`, a feature is a function of a Gaussian with known mean and slope. Functions of z and of U are
expanded in small orthonormal bases; everything the self-consistent equations need is tabulated here, for a batch of
step sizes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firststep.gaussian import Array, Function, gauss_hermite, hermite_polynomials, monomial_in_hermite
from firststep.problem import Problem, Sizes
from firststep.theory.rest import RestLaw, noise_covariance, point_law, rest_law

# Up to this spike the conditional mean is summed as a series, free of the rounding that sqrt(N) would multiply.
SMALL_SPIKE = 0.1
SERIES_TERMS = 60
# Functions of rows that are longer than this are no polynomials of U.
SMALL_STRETCH = 0.3
# Spikes below this size change no error by more than about 1e-9.
NEGLIGIBLE_SPIKE = 1e-6
# No row gets shorter than this: with a few neurons a readout beyond its quadrature's reach would ask for it.
SHORTEST_ROW = 0.1
# Degrees, less one, in which W0^T a is taken out of the neurons' random parts: the next is smaller by 1/N.
OUTPUT_DEGREES = 14

# Nodes of the polynomials by which a solution is carried to another resolution.
INTERPOLATION_NODES = 6

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
    negligible : float
        Size below which functions of z are left out; at the default they change no error by more than about 1e-9.
    cells : bool
        Average rho over cells around equidistant nodes of z, in which 1/rho is taken as linear. For spectra alone: less
        accurate than the nodes where these are enough.
    """

    nodes: int
    readout_spacing: float
    rest_levels: int
    negligible: float = 1e-7
    cells: bool = False


# Readout values beyond this have probability 1e-10.
READOUT_REACH = 6.5
# More nodes of z than this go into a trapezoid rule: Gauss quadrature would put most of them where the weight is below
# rounding and orthonormal functions are noise.
MOST_GAUSS_NODES = 50
INPUT_REACH = 8.2
# Fewest and most Hermite degrees, in z and in U, of the polynomial branch.
POLYNOMIAL_DEGREES = (8, 48)
# Beyond this spike, in units of the bulk, rounding hides the smaller spikes from a singular value decomposition.
LARGEST_RATIO = 1e6


@dataclass(frozen=True)
class Geometry:
    """What does not depend on the step size: ratios, quadrature, the teacher given z, the law of M."""

    problem: Problem
    sizes: Sizes
    samples_per_neuron: float  # n/N
    samples_per_dim: float  # n/d
    neurons_per_dim: float  # N/d
    z: Array
    weights: Array
    hermite: Array  # normalised Hermite polynomials of z, (K, nz)
    u: Array
    u_weights: Array
    psi: Array  # orthonormal functions of U, (npsi, nu)
    c: Array
    law: RestLaw
    negligible: float
    cells: bool  # whether 1/rho is taken as linear between the nodes of z, which are equidistant then

    @property
    def directions(self) -> int:
        """Special directions: z, e1, and for an initial output of order one e2."""
        return int(self.law.special_vectors.shape[1])


@dataclass(frozen=True)
class Tables:
    """Conditional coefficients for a batch of step sizes, leading axis S, in bases of functions of z and of U."""

    h: Array  # orthonormal functions of z, (S, K, nz)
    shift: Array  # multiplication by z among them, (S, K, K)
    psi: Array  # orthonormal functions of U, the constant first, (S, npsi, nu)
    spread: Array  # A2^2, (S, nu, nz)
    alpha: Array  # (S, nu, K)
    outer: Array  # alpha alpha^T, (S, nu, K K)
    stretch: Array  # c(U, m) at the nodes of mu, (S, L, nu)
    special_stretch: Array  # the same at the special nodes
    special_vectors: Array  # the matrix-valued law in the directions of z, e1 (, e2), (S, L', p)
    noise: Array  # kappa^2 U^2/s^2, the remainder's share of a row, (S, nu)
    noise_excess: Array  # its covariance between z, e1 (, e2) beyond that of a typical direction, (S, p, p)
    spikes: Array  # C, (S, p K, npsi)
    input_bend: Array  # E_u[A3 c(U, m) psi] at the nodes of mu: what the norm of x does, (S, L, npsi, nz)
    row_bend: Array  # E_z[A3 h] times the spread of the rows' norms, (S, nu, K)
    label_mean: Array  # g0(z), (S, nz)
    label_slope: Array  # g1(z)
    label_square: Array  # E[y^2 | z]
    cosine: Array  # r, (S,)
    output_spikes: Array | None  # E[h A1 U (1 + k U m)/s psi^T] at the nodes of mu, (S, L, K, npsi)
    output_powers: Array | None  # sqrt(p! N) c_p N^(-p/2) E[U^p psi], p = 2, 3, …, (S, P, npsi)

    def take(self, index: NDArray[np.intp]) -> "Tables":
        """The same for some of the points."""
        return self._mapped(lambda part: part[index])

    def repeat(self, count: int) -> "Tables":
        """A single step size for `count` points, without copies."""
        return self._mapped(lambda part: np.broadcast_to(part, (count, *part.shape[1:])))

    def _mapped(self, change: Callable[[Array], Array]) -> "Tables":
        parts: Any = {name: None if part is None else change(part) for name, part in vars(self).items()}
        return Tables(**parts)


def readout_rule(kind: str, spacing: float, degrees: int) -> tuple[Array, Array, Array]:
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
    nodes = spacing * np.arange(-half, half + 1, dtype=float)
    weights = np.exp(-(nodes**2) / 2)
    return nodes, np.asarray(weights / weights.sum()), np.ones((1, len(nodes)))


def _input_rule(count: int, degrees: int) -> tuple[Array, Array]:
    """Nodes and weights of z."""
    if degrees or count <= MOST_GAUSS_NODES:
        return gauss_hermite(max(count, degrees + count // 2))
    nodes = np.linspace(-INPUT_REACH, INPUT_REACH, count)
    weights = np.exp(-(nodes**2) / 2)
    return nodes, np.asarray(weights / weights.sum())


@lru_cache(maxsize=64)
def geometry_of(problem: Problem, sizes: Sizes, resolution: Resolution, rest: str, degrees: int) -> Geometry:
    """Everything that the step sizes share; `degrees` > 0 asks for polynomials of z and U as bases."""
    c = problem.activation.hermite(SERIES_TERMS + 1)
    z, weights = _input_rule(resolution.nodes, degrees)
    order_one = problem.initial_output == "order_one"
    law = point_law(3 if order_one else 2)
    if rest == "structured" and problem.label_variance > 0:
        output = (float(c[1]), problem.output_variance(sizes) - float(c[1]) ** 2) if order_one else None
        labels = problem.teacher, problem.noise_variance, sizes.step_ratio, output
        # Without a part that is linear in the weights, the remainder's own covariance can be kept exactly.
        law = rest_law(*labels, resolution.rest_levels, 1 if c[2] != 0 else 2)
    u, u_weights, psi = readout_rule(problem.readout, resolution.readout_spacing, degrees)
    return Geometry(
        problem=problem,
        sizes=sizes,
        samples_per_neuron=sizes.n_samples / sizes.width,
        samples_per_dim=sizes.n_samples / sizes.dim,
        neurons_per_dim=sizes.width / sizes.dim,
        z=z,
        weights=weights,
        hermite=hermite_polynomials(z, degrees, normalised=True),
        u=u,
        u_weights=u_weights,
        psi=psi,
        c=c,
        law=law,
        negligible=resolution.negligible,
        cells=resolution.cells,
    )


def tables_of(geometry: Geometry, step_sizes: Array, rest: str) -> Tables:
    r"""Conditional coefficients A0, A1, A2 of the neurons given z [firststep, unified, eqs. 4-6].

    .. math:: A_0 = E\sigma(s g + u z),\quad A_1 = E[g\,\sigma(s g + u z)],\quad A_2^2 = E\sigma^2 - A_0^2 - A_1^2,
        \quad A_3 = \tfrac12 E[(g^2 - 1)\,\sigma(s g + u z)]

    Functions of z and of U are expanded in polynomials if the geometry has them, else in what they span themselves.
    """
    problem, sizes, u, z = geometry.problem, geometry.sizes, geometry.u, geometry.z
    activation, c, law = problem.activation, geometry.c, geometry.law
    order_one = problem.initial_output == "order_one"
    root = math.sqrt(sizes.width)
    shared, axes = directions_of(problem, sizes, step_sizes, rest)
    omega, cosine = shared[:, 0] / root, axes[:, 0, 0]
    whole = order_one and rest != "noise"
    residual = problem.label_variance + (problem.output_variance(sizes) if order_one else 0.0)
    beyond = activation.derivative_second_moment - float(c[1]) ** 2 if rest != "none" else 0.0
    turn = np.zeros_like(step_sizes)
    if rest == "structured":
        beyond -= 4 * float(c[2]) ** 2
        turn = 2 * float(c[2]) * step_sizes / root
    kappa2 = step_sizes**2 / sizes.width * sizes.step_ratio * residual * max(beyond, 0.0)
    # s^2 - 1, kept apart from 1 because sqrt(N) multiplies its effect on A0.
    excess = 2 * np.outer(turn, u) * law.mean + np.outer(turn**2 * law.second_moment + kappa2, u**2)
    if whole:
        # The component along W0^T a is taken out of the row, whose norm stays what it was.
        excess = np.maximum(excess - u**2 / sizes.width, SHORTEST_ROW**2 - 1)
    scale = np.sqrt(1 + excess)
    a0, a1, square, bend = _moments(activation, scale, omega, u, z)
    if rest == "noise":
        bend = np.full_like(a0, c[2])
    spread = np.maximum(square - a0**2 - a1**2, 0.0)
    # For an output of order one M turns W0^T a, of which the row has the component a_j: a spike without sqrt(N).
    slope = (a1 / scale[..., None]) * u[:, None] if order_one else None
    if len(geometry.hermite):
        h = np.broadcast_to(geometry.hermite, (len(omega), *geometry.hermite.shape))
        psi = np.broadcast_to(geometry.psi, (len(omega), *geometry.psi.shape))
        weighted = h * geometry.weights
        main = root * weighted @ a0.swapaxes(1, 2)
    else:
        h = _span_of_z(geometry, a0, a1, bend)
        weighted = h * geometry.weights
        main = root * weighted @ a0.swapaxes(1, 2)
    count, basis, directions = len(step_sizes), h.shape[1], geometry.directions
    by_node = np.zeros((count, directions, basis, len(u)))
    along = None
    if slope is not None:
        along = weighted @ slope.swapaxes(1, 2)
        turned = turn[:, None, None] * u
        m_theta = axes @ ((law.special_vectors.T * law.special_nodes) @ law.special_vectors)[:, 1]
        by_node[:, 0] = m_theta[:, 0, None, None] * turned * ((weighted * z) @ slope.swapaxes(1, 2))
        for a in range(1, directions):
            by_node[:, a] = along * (shared[:, a, None, None] + m_theta[:, a, None, None] * turned)
    if not len(geometry.hermite):
        by_node[:, 0] += main
        extra = [math.sqrt(2 * geometry.neurons_per_dim) * (weighted @ bend.swapaxes(1, 2))]
        extra += [] if along is None else [along, along * u]
        psi = _span_of_u(geometry, np.concatenate([by_node.reshape(count, -1, len(u)), *extra], axis=1))
    psi_weighted = (psi * geometry.u_weights).swapaxes(1, 2)
    spikes = by_node @ psi_weighted[:, None]
    if len(geometry.hermite):
        polynomial = main @ psi_weighted
        series = np.abs(omega) <= SMALL_SPIKE
        polynomial[series] = root * _spike_series(geometry, omega[series], excess[series])
        spikes[:, 0] += polynomial
    output_spikes = output_powers = None
    if along is not None:
        turning = 1 + turn[:, None, None] * law.nodes[:, None] * u
        output_spikes = (along[:, None] * turning[:, :, None, :]) @ psi_weighted[:, None]
        output_powers = (
            _output_powers(geometry) @ psi_weighted if whole else np.zeros((count, 1, psi.shape[1]))
        )
    mean, tilt, square_label = problem.teacher.gaussian_moments(
        np.sqrt(1 - cosine**2)[:, None], cosine[:, None] * z
    )
    alpha = a1 @ weighted.swapaxes(1, 2)

    def stretch(nodes: Array) -> Array:
        share = nodes[:, None] if rest == "structured" and c[2] == 0 else np.ones((len(nodes), 1))
        bent = (1 + turn[:, None, None] * nodes[:, None] * u) ** 2 + share * (kappa2[:, None] * u**2)[:, None]
        return np.asarray(bent / (1 + excess)[:, None, :])

    covariance = np.eye(directions)
    if rest == "structured" and c[2] != 0:
        output = (float(c[1]), problem.output_variance(sizes) - float(c[1]) ** 2) if order_one else None
        covariance = noise_covariance(problem.teacher, problem.noise_variance, sizes.step_ratio, output)
    own_stretch = stretch(law.nodes)
    # What the norms of rows fluctuate by: nothing but what M and the noise add if the rows are of unit norm.
    fluctuation = law.weights @ own_stretch**2
    if problem.rows == "sphere":
        fluctuation = fluctuation - (law.weights @ own_stretch - kappa2[:, None] * u**2 / (1 + excess)) ** 2
    if rest == "noise":
        fluctuation = np.full_like(fluctuation, problem.rows == "gaussian")
        bent_inputs = np.broadcast_to(bend[:, None], (count, len(law.nodes), *bend.shape[1:]))
    else:
        bent_inputs = bend[:, None] * own_stretch[..., None]
    return Tables(
        h=h,
        shift=(weighted * z) @ h.swapaxes(1, 2),
        psi=psi,
        spread=spread,
        alpha=alpha,
        outer=(alpha[..., :, None] * alpha[..., None, :]).reshape(count, len(u), basis * basis),
        stretch=own_stretch,
        special_stretch=stretch(law.special_nodes),
        special_vectors=law.special_vectors @ axes.swapaxes(1, 2),
        noise=kappa2[:, None] * u**2 / (1 + excess),
        noise_excess=axes @ (covariance - np.eye(directions)) @ axes.swapaxes(1, 2),
        spikes=spikes.reshape(count, directions * basis, -1),
        input_bend=psi_weighted.swapaxes(1, 2)[:, None] @ bent_inputs,
        row_bend=np.sqrt(np.maximum(fluctuation, 0.0))[..., None] * (bend @ weighted.swapaxes(1, 2)),
        label_mean=mean,
        label_slope=tilt,
        label_square=square_label + problem.noise_variance,
        cosine=cosine,
        output_spikes=output_spikes,
        output_powers=output_powers,
    )


def _moments(
    activation: Function, scale: Array, omega: Array, u: Array, z: Array
) -> tuple[Array, Array, Array, Array]:
    """E f, E[g f], E f^2 and E[(g^2 - 1) f]/2 of the preactivation s g + omega u z, each (S, nu, nz)."""
    middle = len(u) // 2
    # Rows of the same length at U and -U: a change of sign of both U and z changes nothing.
    even = middle > 0 and np.array_equal(scale, scale[:, ::-1])
    first = middle if even else 0
    s, shift = scale[:, first:, None], omega[:, None, None] * np.outer(u[first:], z)
    parts = list(activation.gaussian_averages(s, shift))
    if even:
        parts = [np.concatenate([x[:, : -middle - 1 : -1, ::-1], x], axis=1) for x in parts]
    a0, a1, square, bend = parts
    return a0, a1, square, bend / 2


def directions_of(problem: Problem, sizes: Sizes, step_sizes: Array, rest: str) -> tuple[Array, Array]:
    r"""The vector v that all neurons share, and the directions z, e1 (, e2) [firststep, unified, eqs. 1-2].

    .. math:: v = \eta c_1 b, \quad b = c_{*1}\beta + w, \qquad
        \text{or } v = W_0^\top a + \eta c_1 b,\quad b = c_{*1}\beta - c_1 W_0^\top a + w

    for an initial output that vanishes or is of order one: in the second case the neurons already share
    :math:`W_0^\top a`, and what remains of them is independent of it. z is the coordinate along v; in the simpler
    theory, ``rest="noise"``, it is the coordinate along b, and what v has beside it is a spike that is linear in x.

    Returns
    -------
    shared : ndarray (S, p)
        v in the directions z, e1 (, e2): a neuron's component along them is U/sqrt(N) times that.
    axes : ndarray (S, p, p)
        Rows: z, e1 (the part of beta orthogonal to z), e2; columns: beta, (W0^T a,) w.
    """
    c1, teacher = float(problem.activation.hermite(2)[1]), float(problem.teacher.hermite(2)[1])
    order_one = problem.initial_output == "order_one"
    signal = [teacher, -c1] if order_one else [teacher]
    noise = math.sqrt(max(problem.direction_norm_squared(sizes) - sum(x * x for x in signal), 0.0))
    b = np.array([*signal, noise])
    v = c1 * step_sizes[:, None] * b
    if order_one:
        v[:, 1] += 1.0
    along = v if order_one and rest != "noise" else np.broadcast_to(b, v.shape)
    axes = np.zeros((len(v), len(b), len(b)))
    axes[:, 0] = along / np.linalg.norm(along, axis=1, keepdims=True)
    aside = np.eye(len(b))[0] - axes[:, 0, :1] * axes[:, 0]
    axes[:, 1] = aside / np.linalg.norm(aside, axis=1, keepdims=True)
    if order_one:
        axes[:, 2] = np.cross(axes[:, 0], axes[:, 1])
    return apply(axes, v), axes


def _output_powers(geometry: Geometry) -> Array:
    """sqrt(p! N) c_p (U/sqrt(N))^p for p = 2, 3, …: the neurons' shares in H_p of a typical direction, (P, nu)."""
    root = math.sqrt(geometry.sizes.width)
    degrees = np.arange(2, OUTPUT_DEGREES)
    factor = np.array([math.sqrt(math.factorial(p)) * root ** (1 - p) for p in degrees]) * geometry.c[degrees]
    return np.asarray(factor[:, None] * geometry.u ** degrees[:, None])


def spike_strength(problem: Problem, sizes: Sizes, step_sizes: Array, rest: str) -> Array:
    """Size of omega: the component of a neuron along z is omega U."""
    return np.asarray(
        np.abs(directions_of(problem, sizes, step_sizes, rest)[0][:, 0]) / math.sqrt(sizes.width)
    )


def _span_of_z(geometry: Geometry, a0: Array, a1: Array, bend: Array) -> Array:
    """Orthonormal functions of z that span 1, z, A0, A1, z A1 and A3: with them the equations have no truncation.

    A large spike bends A0 like the activation itself, which Hermite polynomials follow only slowly.
    """
    root_z, root_u = np.sqrt(geometry.weights), np.sqrt(geometry.u_weights)[:, None]
    count = len(a0)
    columns = [
        np.broadcast_to(np.stack([np.ones_like(root_z), geometry.z]), (count, 2, len(root_z))),
        math.sqrt(geometry.sizes.width) * a0 * root_u,
        a1 * root_u,
        geometry.z * a1 * root_u,
        bend * root_u,
    ]
    matrix = np.concatenate(columns, axis=1) * root_z
    # Spikes many orders of magnitude apart would hide the small ones: every function counts at unit size at most.
    matrix /= np.maximum(1.0, np.sqrt((matrix**2).sum(axis=2, keepdims=True)))
    _, sizes, functions = np.linalg.svd(matrix, full_matrices=False)
    rank = int((sizes > geometry.negligible).sum(axis=1).max())
    return np.asarray(functions[:, :rank] / root_z)


def _span_of_u(geometry: Geometry, by_node: Array) -> Array:
    """Orthonormal functions of U, the constant first, that span all spikes; sorted by the size of their spike."""
    root = np.sqrt(geometry.u_weights)
    constant = root / np.linalg.norm(root)
    matrix = by_node * root
    matrix = matrix - (matrix @ constant)[..., None] * constant
    _, sizes, functions = np.linalg.svd(matrix, full_matrices=False)
    rank = min(int((sizes > NEGLIGIBLE_SPIKE).sum(axis=1).max()), len(root) - 1)
    first = np.broadcast_to(constant, (len(by_node), 1, len(root)))
    return np.asarray(np.concatenate([first, functions[:, :rank]], axis=1) / root)


def _spike_series(geometry: Geometry, omega: Array, excess: Array) -> Array:
    r"""E[h(z) A0(u, z) psi(u)^T] for small spikes, from the Hermite coefficients [firststep, unified, eq. 7].

    .. math:: A_0(u,z) = \sum_{p,j} c_{p+2j} \frac{(p+2j)!}{2^j j!\, p!} (s^2-1)^j (u z)^p

    Orthogonality between z^p and h_k is exact here, so that a large spike cannot leak into the next degree.
    """
    u, basis = geometry.u, len(geometry.hermite)
    degrees = np.arange(SERIES_TERMS + 1)
    psi_weighted = (geometry.psi * geometry.u_weights).T
    norms = np.exp([math.lgamma(i + 1) / 2 for i in range(basis)])
    in_z = np.zeros((len(degrees), basis))
    top = min(basis, len(degrees))
    in_z[:, :top] = monomial_in_hermite(len(degrees))[:, :top] * norms[:top]
    powers = excess[..., None] ** np.arange(SERIES_TERMS // 2 + 1)
    profile = powers @ _series_factors(tuple(geometry.c)).T
    in_u = np.swapaxes(profile * u[:, None] ** degrees, 1, 2) @ psi_weighted
    return np.asarray((in_z * omega[:, None, None] ** degrees[:, None]).swapaxes(1, 2) @ in_u)


@lru_cache(maxsize=64)
def _series_factors(c: tuple[float, ...]) -> Array:
    """Row p, column j: c_{p+2j} (p+2j)!/(2^j j! p!)."""
    factors = np.zeros((SERIES_TERMS + 1, SERIES_TERMS // 2 + 1))
    for p in range(SERIES_TERMS + 1):
        for j in range((SERIES_TERMS - p) // 2 + 1):
            log = math.lgamma(p + 2 * j + 1) - j * math.log(2) - math.lgamma(j + 1) - math.lgamma(p + 1)
            factors[p, j] = c[p + 2 * j] * math.exp(log)
    return factors


def row_stretch(problem: Problem, sizes: Sizes, step_sizes: Array, rest: str) -> Array:
    r"""Length that the gradient beyond its rank-one part adds to a row with U = 1, in units of the row.

    .. math:: \frac{\eta^2}{N} \frac{d}{n_0} E(y - f_0)^2\, E(\sigma' - c_1)^2, \quad\text{under a root.}
    """
    if rest == "none":
        return np.zeros_like(step_sizes)
    beyond = problem.activation.derivative_second_moment - float(problem.activation.hermite(2)[1]) ** 2
    variance = problem.label_variance + problem.output_variance(sizes)
    return np.asarray(step_sizes * math.sqrt(sizes.step_ratio * variance * max(beyond, 0.0) / sizes.width))


def is_polynomial(spike: Array, sizes: Sizes, stretch: ArrayLike = 0.0) -> NDArray[np.bool_]:
    """Where spikes are small, or so many orders apart that only exact orthogonality of polynomials separates them."""
    small = (spike <= SMALL_SPIKE) & (np.asarray(stretch) <= SMALL_STRETCH)
    return np.asarray(small | (spike * math.sqrt(sizes.width) > LARGEST_RATIO))


def degrees_of(spike: float, sizes: Sizes) -> int:
    """Hermite degrees after which spikes no longer matter: spike k has size sqrt(N k!) omega^k k^(-5/4) or less."""
    low, high = POLYNOMIAL_DEGREES
    for k in range(low, high):
        if spike == 0 or 0.5 * (math.log(sizes.width) + math.lgamma(k + 1)) + k * math.log(spike) < math.log(
            1e-6
        ):
            return k
    return high


def apply(matrix: Values, vector: Values) -> Values:
    """Batched matrix times vector."""
    return np.asarray((matrix @ vector[..., None])[..., 0])


def interpolation(old: Array, new: Array) -> Array:
    """Matrix (old, new) of interpolation by polynomials through the nodes around each point, constant outside."""
    count = min(INTERPOLATION_NODES, len(old))
    at = np.clip(new, old[0], old[-1])
    first = np.clip(np.searchsorted(old, at) - count // 2, 0, len(old) - count)
    window = first[:, None] + np.arange(count)
    nodes = old[window]
    matrix = np.zeros((len(old), len(new)))
    for k in range(count):
        others = np.delete(nodes, k, axis=1)
        factors = (at[:, None] - others) / (nodes[:, k, None] - others)
        matrix[window[:, k], np.arange(len(new))] = factors.prod(axis=1)
    return matrix
