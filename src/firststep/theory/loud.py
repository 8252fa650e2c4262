r"""One step on inputs with one loud direction: an eigenvalue that is not small against d [firststep, covariance].

A random row has :math:`\sqrt{m_l/d}\,\xi` along the eigenvector l, which is no small number where m_l/d is not. So a
neuron is known by xi beside its readout, the input's coordinate along l is one of two that all neurons share, and what
is random lies in the other d - 1 directions. The step's own noise along l, one Gaussian number for each draw, is
averaged over.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from firststep.gaussian import Array, gauss_hermite, hermite_polynomials, sphere_rule
from firststep.results import Outcome
from firststep.setting import Problem, Sizes
from firststep.theory.bars import (
    size_variance,
    small_error_variance,
    spectrum_variance,
    turned_variance,
    wide_bar_note,
)
from firststep.theory.coefficients import Geometry, Resolution, Tables, geometry_of, tables_from
from firststep.theory.covariant_step import kept_positive, seen_at_least
from firststep.theory.directions import LabelMoments, Profiles, grouped, loud_covariance, turned_covariance
from firststep.theory.equations import Answer, answer_at, errors_at, first_guess, reached_points
from firststep.theory.joins import SMALLEST_STEP, joined, start_share
from firststep.theory.label_law import label_moments, label_parts
from firststep.theory.ladder import below_noise
from firststep.theory.learned import learned_shares
from firststep.theory.lengths import LARGEST_SHARE
from firststep.theory.rest import RestLaw
from firststep.theory.sectors import highest_degree, thinned
from firststep.theory.step_law import (
    SHORTEST_ROW,
    StepLaw,
    beyond_spike,
    output_lost,
    output_of,
    radial_parts,
    unlearned_along,
)

# Share of a row's squared norm from which on a direction is loud, where that of the next one is at most so large, and
# whatever that is.
LOUD, NEXT, LOUDER = 0.01, 0.01, 0.065
# Up to LOUDER it is no more than that for errors if the teacher's share, times that of the direction, is below this.
TAUGHT = 0.012
# Nodes of xi, and those from such a share of a row's squared norm on; of a neuron's own noise along l, and of the
# step's noise there, where it is not small against the signal by this factor: more from where a step adds so much of it
# on; in a draft.
OWN_NODES, LOUD_OWN, NOISE_NODES, DRAW_NODES, CERTAIN = 3, ((0.1, 5), (0.2, 7)), (2, 3, 4), (4, 8, 8), 0.1
STEEP, DRAFT_DRAWS = (0.25, 0.75), 2
# Nodes of l, and of g, in averages over the step's sample.
SAMPLE_NODES, SLOPE_NODES = 60, 60
# Degrees that have a sector of their own, and the size below which functions of both coordinates are left out.
HIGHEST, NEGLIGIBLE = 2, 1e-3
# Levels of the other eigenvalues.
LEVELS = 10
# Hermite degrees of the fitted function that are kept.
LEARNED = 16
# Largest l, the distance of nodes of l and of U, in units of the width near zero, and the smallest width.
LOUD_REACH, LOUD_SPACING, READOUT_SPACING, NARROWEST = 6.0, 0.2, 0.4, 0.03
# How much wider nodes are in a draft.
COARSE = 1.5
# Nodes of less weight than this, relative to the largest, are left out.
READOUT_WEIGHT = 1e-7
RESIDUAL = 1e-7
# Largest share of what a fit has along M l that is known of each neuron.
MOST_KNOWN = 0.9
# Relative error beyond that of the sizes: always, in units of the spike along l, and of the next direction's share.
BAR_LOUD, BAR_STEEP, BAR_OTHERS = 0.012, 0.006, 0.3


def is_loud(problem: Problem, sizes: Sizes) -> bool:
    """Whether one direction of the inputs is loud and the others are less so, in a setting that is derived.

    Examples
    --------
    >>> words = ("spiked(1)", "spiked(10)", "power(0.5)", "power(1)")
    >>> [is_loud(Problem("relu", "h1", inputs=inputs), Sizes(1000, 500, 750)) for inputs in words]
    [False, True, False, True]
    """
    return problem.teacher.directions == 1 and has_loud_direction(problem, sizes)


def has_loud_direction(problem: Problem, sizes: Sizes) -> bool:
    """The same for any teacher: whether an eigenvalue of the inputs' covariance is not small against d.

    Examples
    --------
    >>> sizes = Sizes(1000, 500, 750)
    >>> [has_loud_direction(Problem("relu", "t1*t2 + t1", inputs=f"spiked({s})"), sizes) for s in (1, 10)]
    [False, True]
    """
    covariance = problem.covariance(sizes.dim)
    shares = covariance.values / sizes.dim
    if covariance.isotropic or covariance.counts[0] != 1:
        return False
    alone = shares[0] > LOUD and shares[1] < NEXT
    # Where readouts have a mean, neurons add up what they see of an input's length, which is known without a loud
    # direction.
    louder = LOUDER if problem.readout_law.mean == 0 else LARGEST_SHARE
    return bool(alone or shares[0] > louder)


def is_loud_to_errors(problem: Problem, sizes: Sizes) -> bool:
    r"""Whether errors are those of a loud direction, of which the features' spectrum always knows.

    A direction with a small share :math:`m_l/d` of a row, and little of the teacher in it, is known well enough by the
    joint law of S and M with rows known along the step [firststep, joint law], which knows all others better.

    Examples
    --------
    >>> words = ("spiked(10, overlap=0.3)", "spiked(10, overlap=0.9)", "spiked(10, overlap=0)", "power(1)")
    >>> [is_loud_to_errors(Problem("relu", "h1", inputs=inputs), Sizes(1000, 500, 750)) for inputs in words]
    [False, True, True, True]
    """
    if not is_loud(problem, sizes):
        return False
    covariance, pull = problem.covariance(sizes.dim), Pull.of(problem, sizes)
    share = float(covariance.values[0]) / sizes.dim
    taught = share * float(covariance.weights[0])
    certain = pull.noise <= CERTAIN * pull.signal
    return not (share <= LOUDER and taught < TAUGHT and certain)


@dataclass(frozen=True)
class Pull:
    """What a step adds along l, signal and noise, and beside it, in units of the step size."""

    signal: float
    noise: float
    beside: float

    @classmethod
    def of(cls, problem: Problem, sizes: Sizes) -> "Pull":
        """From the mean gradient, its scatter and what an output of order one has along l."""
        values, shares, weights = grouped(problem.covariance(sizes.dim))
        power = 1.0 if problem.rule.plain else 0.0
        slope = abs(float(np.atleast_1d(problem.teacher.gradient_mean)[0]))
        c1 = float(problem.activation.hermite(2)[1])
        unit = abs(c1) / math.sqrt(sizes.width)
        scatter = sizes.step_ratio * (problem.label_variance + problem.output_variance(sizes))
        along = unit * values[0] ** power
        others = slope**2 * (weights[1:] @ values[1:] ** (2 * power))
        others += scatter * (shares[1:] @ values[1:] ** (2 * power))
        signal = slope * math.sqrt(weights[0])
        noise = math.sqrt((scatter + problem.output_law.order_one * c1**2 * values[0]) / sizes.dim)
        return cls(along * signal, along * noise, unit * math.sqrt(others))

    def draws(self, count: int) -> tuple[Array, Array]:
        """Quadrature of the step's noise along l, one number for each draw, with so many nodes where it matters."""
        if not self.noise > CERTAIN * self.signal:
            return gauss_hermite(1)
        draws, weights = gauss_hermite(count)
        if self.signal > 0:
            return draws, weights
        # Without the teacher both signs of l are alike.
        return draws[draws > 0], 2 * weights[draws > 0]

    def of_all(self, weight: float, typical: bool, count: int) -> list[tuple[float, float, float]]:
        r"""Quadrature over draws of what a step finds along l: its noise there, the teacher's weight, and the node's.

        A teacher in a typical direction has :math:`\gamma/\sqrt d` along l, one more Gaussian number, of which the sum
        with the noise alone matters [firststep, covariance, eq. 21].
        """
        if not (typical and self.signal > 0):
            draws, weights = self.draws(count)
            return [(float(at), weight, float(mass)) for at, mass in zip(draws, weights, strict=True)]
        size = math.hypot(self.signal, self.noise)
        draws, weights = gauss_hermite(count)
        return [
            (
                float(g) * self.noise / size,
                min(weight * float(g * self.signal / size) ** 2, 1.0),
                2 * float(mass),
            )
            for g, mass in zip(draws, weights, strict=True)
            if g > 0
        ]

    @property
    def typical(self) -> float:
        """The draw with which signal and noise have the squared length that they have on average."""
        if self.noise == 0:
            return 0.0
        return (math.hypot(self.signal, self.noise) - self.signal) / self.noise

    def nodes(self, step_size: float, draft: bool) -> "Nodes":
        """As many as functions of both coordinates and of the readout ask for."""
        first = step_size * math.hypot(self.signal, self.noise)
        second = 3 if self.signal > 8 * self.beside else min(10, round(4 + 8 * step_size * self.beside))
        width = min(1.0, max(NARROWEST, 1 / max(first, 1e-9)))
        if draft:
            return Nodes(width, min(second, 4), COARSE, NOISE_NODES[0], DRAFT_DRAWS)
        steep = sum(step_size * self.noise > limit for limit in STEEP)
        return Nodes(width, second, 1.0, NOISE_NODES[steep], DRAW_NODES[steep])


@dataclass(frozen=True)
class Nodes:
    """Width in l and in U of what the neurons share, one over the spike; nodes of the other coordinate; spacing.

    Then nodes of a neuron's own noise along l, and of the step's.
    """

    width: float
    second: int
    coarse: float
    noise: int
    draws: int


def _steep_rule(
    density: Callable[[Array], Array], reach: float, width: float, spacing: float
) -> tuple[Array, Array]:
    """Nodes width sinh(t), equidistant in t: dense around zero, where functions change within the width."""
    half = math.ceil(math.asinh(reach / width) / spacing)
    t = spacing * np.arange(-half, half + 1)
    nodes = width * np.sinh(t)
    weights = density(nodes) * np.cosh(t)
    kept = weights > READOUT_WEIGHT * weights.max()
    return nodes[kept], np.asarray(weights[kept] / weights[kept].sum())


def loud_geometry(
    problem: Problem, sizes: Sizes, rest: str, at: "Nodes", highest: int
) -> tuple[Geometry, Array, Array]:
    """Two coordinates, neurons known by U, xi and xi', d - 1 directions that are random; and xi, xi' at the nodes.

    Degrees up to `highest` have sectors of their own, as far as this theory has them.
    """
    any_nodes = Resolution(3, 1.0, 1, negligible=NEGLIGIBLE)
    plain = geometry_of(problem, sizes, any_nodes, rest, 0, min(HIGHEST, highest))
    line, masses = _steep_rule(lambda x: np.exp(-(x**2) / 2), LOUD_REACH, at.width, LOUD_SPACING * at.coarse)
    other, other_masses = gauss_hermite(at.second)
    readout, readout_weights = problem.readout_law.rule(1.0)
    if problem.readout_law.atoms is None:
        density, reach = problem.readout_law.density, problem.readout_law.reach
        readout, readout_weights = _steep_rule(density, reach, at.width, READOUT_SPACING * at.coarse)
    values, shares, _ = grouped(problem.covariance(sizes.dim))
    loudest = float(values[0]) / sizes.dim
    own_nodes = OWN_NODES if at.coarse > 1 else max([OWN_NODES, *(n for s, n in LOUD_OWN if loudest > s)])
    xi, xi_weights = sphere_rule(own_nodes, sizes.dim)
    # Neurons' own noise needs the fewest nodes where xi has the most.
    noise, noise_weights = gauss_hermite(min(at.noise, NOISE_NODES[1 if own_nodes > OWN_NODES else 2]))
    u = np.repeat(readout, len(xi) * len(noise))
    weights = np.outer(readout_weights, np.outer(xi_weights, noise_weights))
    one, zero = np.ones(1), np.zeros((2, 2))
    nodes, others = thinned(values[1:], shares[1:] / shares[1:].sum(), LEVELS)
    law = RestLaw(nodes, others, np.zeros(1), zero[:1], 1.0, 1.0, np.ones_like(others), one, zero)
    dim, readouts = sizes.dim - 1, len(readout)
    geometry = replace(
        plain,
        z=np.repeat(line, at.second),
        others=np.tile(other, len(line))[None],
        weights=np.outer(masses, other_masses).ravel(),
        hermite=np.empty((0, len(line) * at.second)),
        u=u,
        u_weights=weights.ravel(),
        readout=u,
        psi=np.ones((1, len(u))),
        law=law,
        dim=dim,
        samples_per_dim=sizes.n_samples / dim,
        neurons_per_dim=sizes.width / dim,
    )
    return geometry, np.tile(np.repeat(xi, len(noise)), readouts), np.tile(noise, readouts * len(xi))


@dataclass(frozen=True)
class LoudGradient:
    """The gradient of a neuron with the component xi along l, in units of S^g; each (nu,).

    Attributes
    ----------
    along : ndarray
        E[y B_0 l], B_0 = E[sigma' given l].
    beside : ndarray
        E[y B_0 g], g the teacher's coordinate beside l.
    common, common_loud : ndarray
        Share of the noise that all neurons have alike: in typical directions, and along l.
    turned : ndarray
        Share of the noise in typical directions that goes with l, in units of the common one's.
    own, own_turned : ndarray
        Variance of what is different for every neuron along l, in units of 1/n0; and of that what M makes of its part
        in other directions, as a length.
    scattered : float
        Cosine of M l's scatter with the noise of the step direction.
    slope : ndarray
        E B_0.
    square : ndarray
        E[B_0 l^2].
    """

    along: Array
    beside: Array
    common: Array
    common_loud: Array
    turned: Array
    own: Array
    own_turned: Array
    scattered: float
    slope: Array
    square: Array


def loud_gradient(
    problem: Problem, sizes: Sizes, weight: float, component: Array, scale: Array
) -> LoudGradient:
    """Averages over a step sample of sigma'(s g + w_l l) with what the label knows [firststep, covariance, eq. 8]."""
    nodes, mass = gauss_hermite(SAMPLE_NODES)
    shift, wide = np.outer(component, nodes), np.broadcast_to(scale[:, None], (len(scale), len(nodes)))
    slope = problem.activation.gaussian_averages(wide, shift)[1] / wide
    inner, inner_mass = gauss_hermite(SLOPE_NODES)
    derivative = problem.activation.derivative(wide[..., None] * inner + shift[..., None])
    squared, bent = derivative**2 @ inner_mass, derivative @ (inner_mass * inner)
    cosine, aside = np.full((1, 1, 1), math.sqrt(weight)), np.full((1, 1, 1), math.sqrt(1 - weight))
    (label, tilt), square = (
        part[0] for part in label_parts(problem.teacher, cosine, aside, nodes[None], ((0,), (1,)))
    )
    second = mass * (square + problem.noise_variance + problem.output_variance(sizes))
    loud = second * nodes**2
    # What M makes of a component along l goes with l, as far as that is not common to all neurons.
    rest = nodes - second @ nodes / second.sum()
    return LoudGradient(
        along=slope @ (mass * label * nodes),
        beside=slope @ (mass * tilt),
        common=slope @ second / second.sum(),
        common_loud=slope @ loud / math.sqrt(loud.sum()),
        turned=slope @ (second * rest) / math.sqrt((second @ rest**2) * second.sum()),
        own=squared @ loud - (slope @ loud) ** 2 / loud.sum(),
        own_turned=bent @ loud / math.sqrt(loud.sum()),
        scattered=float(second @ nodes) / math.sqrt(second.sum() * loud.sum()),
        slope=slope @ mass,
        square=slope @ (mass * nodes**2),
    )


@dataclass(frozen=True)
class _Step:
    """What a step of this size does beside l: g, k, kappa^2 and what typical directions gain."""

    problem: Problem
    sizes: Sizes
    step_size: float
    structured: bool
    shared: float = 0.0  # of what typical directions gain, the part that neurons share

    @property
    def power(self) -> float:
        return 1.0 if self.problem.rule.plain else 0.0

    @property
    def turn(self) -> float:
        c2 = float(self.problem.activation.hermite(3)[2])
        return 2 * c2 * self.step_size / math.sqrt(self.sizes.width) if self.structured else 0.0

    @property
    def lengthening(self) -> float:
        """Factor of U w·M w in what a row gains of its squared norm."""
        slope = radial_parts(self.problem, "structured" if self.structured else "noise")[0]
        return 2 * slope * self.step_size / math.sqrt(self.sizes.width)

    @property
    def moments(self) -> LabelMoments:
        output = output_of(self.problem, self.sizes)
        return label_moments(self.problem.teacher, self.problem.noise_variance, output)

    @property
    def noise(self) -> float:
        scale = self.step_size**2 / self.sizes.width * self.sizes.step_ratio * self.moments.square
        return scale * beyond_spike(self.problem, "structured" if self.structured else "noise")

    def kept(self, nodes: Array, u: Array) -> Array:
        """What an output of order one leaves of a row along directions with these eigenvalues, (nodes, nu)."""
        rest = "structured" if self.structured else "noise"
        return 1 - self.step_size * unlearned_along(self.problem, self.sizes, rest, u, nodes)

    @property
    def spread(self) -> float:
        """What typical directions gain, in units of U^2 m^(2g)/d."""
        gained = self.turn**2 * self.sizes.step_ratio * self.moments.square + self.noise
        return max(gained * (1 - 1 / self.sizes.dim) - self.shared, 0.0)

    def bent(self, nodes: Array, shorter: Array, u: Array) -> Array:
        """Variance along directions with these eigenvalues, in units of 1/d, (nodes, nu)."""
        gained = self.spread * np.outer(nodes ** (2 * self.power), u**2)
        return np.outer(nodes, shorter) * self.kept(nodes, u) ** 2 + gained

    def output_parts(self, nodes: Array, u: Array) -> Array:
        """W0^T a, and what M's scatter makes of it, in typical directions, (1, 2, nodes, nu)."""
        turned = self.turn * math.sqrt(self.sizes.step_ratio * self.moments.square) * u
        plain = np.sqrt(nodes)[:, None] * self.kept(nodes, u)
        return np.stack([plain, np.outer(nodes**self.power, turned)])[None]

    def moved(self, profiles: Profiles, vectors: Array, u: Array, loud: float) -> Array:
        """What M and the remainder do between l and these vectors that typical directions do not know.

        (nu, 1 + p, 1 + p); `loud` is m^g cos(l, theta).
        """
        moments, power, k_u = self.moments, self.power, (self.turn * u)[:, None, None]
        lifted = vectors * profiles.values**power
        plain, linear, quadratic = turned_covariance(profiles, moments, vectors, power)
        found = np.zeros((len(u), 1 + len(vectors), 1 + len(vectors)))
        found[:, 1:, 1:] = k_u * linear + k_u**2 * quadratic
        louder = self.noise * loud_covariance(profiles, moments, lifted)
        gained = (self.spread + self.shared) * profiles.gram(lifted, lifted)
        found[:, 1:, 1:] += (u**2)[:, None, None] * (louder - gained)
        # What a row has along the teacher's direction turns it towards l, too; M's scatter there is in the own noise.
        right = profiles.seen(vectors)
        towards = loud * moments.first[0, :-1] @ right[:, :-1].T
        turned = np.eye(len(vectors)) + k_u * (profiles.seen(lifted) @ moments.first @ right.T)
        found[:, 0, 1:] = found[:, 1:, 0] = k_u[:, 0] * ((towards @ plain) @ turned.swapaxes(1, 2))
        found[:, 0, 0] = (self.turn * u) ** 2 * float(towards @ plain @ towards)
        return found


def gained_share(problem: Problem, sizes: Sizes, step_size: float) -> float:
    """What M and the remainder add to a typical row's squared length beside the loud direction.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/2", 0.3, inputs="spiked(10, overlap=0.5)")
    >>> print(f"{gained_share(problem, Sizes(1000, 500, 750), 8.0):.4f}")
    0.0162
    """
    step = _Step(problem, sizes, step_size, structured=True)
    values, shares, _ = grouped(problem.covariance(sizes.dim))
    return step.spread * float(shares[1:] @ values[1:] ** (2 * step.power))


def _profiles_beside(problem: Problem, sizes: Sizes, square: float, weight: float) -> Profiles:
    """The teacher's direction, W0^T a of an output of order one, the step's noise and M l, as they are beside l.

    `weight` is what the teacher has along l.
    """
    values, shares, weights = grouped(problem.covariance(sizes.dim))
    weights = weights * ((1 - weight) / (1 - weights[0]) if weights[0] < 1 else 1.0)
    order_one = problem.output_law.order_one
    masses = np.stack([weights, *[shares] * (3 if order_one else 2)])
    masses[:, 0] = 0.0
    known, scatter = np.zeros((len(masses) - 2, *masses.shape)), np.zeros(masses.shape)
    known[0, 0], scatter[-2] = 1.0, 1.0
    if order_one:
        known[1, 1] = np.sqrt(values / (1 - values[0] / sizes.dim))
    return Profiles(values, masses, known, scatter, sizes.step_ratio, sizes.step_ratio * square)


def _turned_into(profiles: Profiles, power: float) -> Array:
    """S^g M l but for its size: a typical vector of its own, the last generator."""
    vector = np.zeros(profiles.masses.shape)
    vector[-1] = profiles.values**power
    return vector


def _turned(profiles: Profiles, gradient: LoudGradient, step: _Step, u_weights: Array) -> tuple[_Step, Array]:
    r"""What a neuron has along S^g M l in units of the step size and U/sqrt(N), (nu,), and the step without it.

    .. math:: \sqrt{\phi_0}\;\frac{E[y^2B_0(\xi, l)\,l']}{E[y^2l'^2]^{1/2}}\,|S^gMl|, \qquad
        l' = l - \frac{E[y^2l]}{E y^2}

    for Ml of length one [firststep, covariance, eq. 15].
    """
    own = math.sqrt(profiles.noise) * gradient.turned * float(step.structured)
    vector = _turned_into(profiles, step.power)
    shared = step.step_size**2 / step.sizes.width * float(own**2 @ u_weights)
    return replace(step, shared=shared), own * math.sqrt(float(profiles.product(vector, vector)))


def _less(known: Array, stretch: Array, special: Array) -> Array:
    """What is known of rows along special directions, (nu, p), as far as a fit of all levels has something left."""
    least = seen_at_least(stretch[None], special[None])[0]
    taken = np.einsum("ua,uac,uc->u", known, least, known)
    return np.asarray(known * np.sqrt(np.minimum(1.0, MOST_KNOWN / np.maximum(taken, 1e-300)))[:, None])


def _beside_noise(profiles: Profiles, gradient: LoudGradient, step: _Step, vectors: Array, u: Array) -> Array:
    r"""What a row has along these vectors v for each unit of its own noise along l, (nu, p) [firststep, covariance].

    .. math:: \frac{E[y^2B_1l^2]}{(E[y^2l^2]\,\text{own})^{1/2}}\;\frac{v\cdot S\,\hat\mu}{\sqrt d}, \qquad
        \hat\mu = \cos\vartheta\;\hat w + \sin\vartheta\;\hat\mu', \quad
        \cos\vartheta = \frac{E[y^2l]}{(E y^2\,E[y^2l^2])^{1/2}}

    M l's scatter lies along mu^: partly along that of the step direction, partly along a vector of its own.
    """
    share = gradient.own_turned / np.sqrt(np.maximum(gradient.own, 1e-300)) * float(step.structured)
    image = gradient.scattered * profiles.scatter
    image[-1] = math.sqrt(max(1 - gradient.scattered**2, 0.0))
    seen = (vectors * image * profiles.values * profiles.masses).sum(axis=1)
    return np.asarray(share[:, None] * (seen @ step.kept(profiles.values, u)).T / math.sqrt(step.sizes.dim))


def _shared_beside(
    profiles: Profiles, gradient: LoudGradient, step: _Step, weight: float, u_weights: Array
) -> tuple[Array, Array]:
    """The vectors, in which neurons share something beside l, and how much of each, in units of U/sqrt(N), (parts, nu).

    The teacher's part, of squared length 1 - nu_l, and the noise; and W0^T a of an output of order one.
    """
    lifted = profiles.values**step.power
    beside = 1 / math.sqrt(1 - weight) if weight < 1 else 0.0
    parts = [beside * profiles.known[0] * lifted, math.sqrt(profiles.noise) * profiles.scatter * lifted]
    amounts = [gradient.beside, gradient.common]
    if len(profiles.known) == 1:
        return np.stack(parts), np.stack(amounts)
    linear = float(gradient.slope @ u_weights)
    parts += [profiles.known[1] * lifted, profiles.known[1]]
    amounts += [-linear * gradient.slope, np.ones_like(gradient.slope)]
    return np.stack(parts), np.stack([step.step_size * amount for amount in amounts[:3]] + amounts[3:])


def _beside(
    profiles: Profiles, gradient: LoudGradient, step: _Step, weight: float, u_weights: Array
) -> tuple[Array, Array]:
    """The special directions beside l, of which the first is a coordinate, and what neurons share of it, (nu,)."""
    parts, by_neuron = _shared_beside(profiles, gradient, step, weight, u_weights)
    gram, mean = profiles.gram(parts, parts), by_neuron @ u_weights
    length = math.sqrt(max(float(mean @ gram @ mean), 1e-300))
    first = np.tensordot(mean, parts, 1)[None] / length
    vectors = profiles.orthonormal(first, profiles.known, _turned_into(profiles, step.power)[None])
    return vectors, np.asarray(mean @ gram @ by_neuron) / length


def _spread_out(profiles: Profiles, vectors: Array) -> Array:
    """The special directions, l with nothing beside it first, at the levels of each generator, (nodes, 1 + p)."""
    special = (vectors * np.sqrt(profiles.masses)).transpose(1, 2, 0).reshape(-1, len(vectors))
    return np.pad(special, ((0, 0), (1, 0)))


def _kept(stretch: Array, special: Array, extra: Array) -> Array:
    """`kept_positive` beside l, and with l as much in common as both then have, (nu, 1 + p, 1 + p)."""
    levels = stretch[None], special[None, :, 1:]
    beside = kept_positive(*levels, extra[None, :, 1:, 1:])[0]
    common, own = extra[:, 0, 1:], extra[:, 0, 0]
    whole = np.linalg.pinv(seen_at_least(*levels)[0], hermitian=True) + beside
    most = np.einsum("ua,uac,uc->u", common, np.linalg.pinv(whole, hermitian=True), common)
    common = common * np.sqrt(np.minimum(1.0, own / np.maximum(most, 1e-300)))[:, None]
    found = extra.copy()
    found[:, 1:, 1:], found[:, 0, 1:], found[:, 1:, 0] = beside, common, common
    return found


def _drawn(
    step: _Step, gradient: LoudGradient, loudest: float, u_weights: Array, draw: float, fresh: Array
) -> tuple[Array, float]:
    r"""The gradient along l with its noise, (nu,), and o_l of an output of order one [firststep, covariance, eq. 12].

    .. math:: o_l = \sqrt{m_l/d}\,\gamma, \qquad
        o_l\,(1 - \eta m_l^g E[B_0] E[B_0 l^2]) + \eta m_l^g E[B_0 y]\,\omega/\sqrt{n_0}

    is what both add to all neurons along l, for two standard normal numbers gamma and omega. They are found from one,
    `draw`: what lies at right angles to this sum is left at zero.
    """
    problem, sizes, root = step.problem, step.sizes, math.sqrt(step.sizes.n_step_samples)
    parts = (gradient.slope, gradient.square, gradient.common_loud)
    slope, square, common = (float(part @ u_weights) for part in parts)
    noise, begun = draw, 0.0
    if problem.output_law.order_one:
        push, size = step.step_size * loudest**step.power, math.sqrt(loudest / sizes.dim)
        sides = push * common / root, size * (1 - push * slope * square)
        noise, begun = (draw * side / math.hypot(*sides) for side in sides)
        begun *= size
    random = noise * gradient.common_loud + fresh * np.sqrt(np.maximum(gradient.own, 0.0))
    return gradient.along + random / root - begun * slope * gradient.square, begun


def _not_here(size: int, neurons: int) -> dict[str, Array]:
    """What a step's law has without a loud direction alone, for so many special directions and neurons."""
    by_neuron = ("leaning_square", "loosening", "curving")
    found = {"turn": np.zeros(1), "along": np.zeros((1, size))}
    return (
        found
        | {name: np.zeros((1, neurons)) for name in by_neuron}
        | {"leaning": np.zeros((1, neurons, size))}
    )


@dataclass(frozen=True)
class LoudRows:
    """One step on rows that are known along l, and what of its law the joint law of S and M replaces.

    Attributes
    ----------
    law : StepLaw
        With M as noise beside l.
    step : _Step
    profiles : Profiles
        Directions beside l, of the teacher and the step.
    vectors : ndarray (p, G, levels)
        The special directions beside l: the first coordinate there, those that labels know, and S^g M l.
    shorter : ndarray (nu,)
        Squared length beside l of the row that a neuron began with.
    moved : ndarray (nu, p + 1, p + 1)
        What M and the remainder do between the special directions, l first, before what is known of each neuron there
        is taken out.
    """

    law: StepLaw
    step: _Step
    profiles: Profiles
    vectors: Array
    shorter: Array
    moved: Array


def loud_rows(
    problem: Problem,
    sizes: Sizes,
    step_size: float,
    draw: float,
    geometry: Geometry,
    own: tuple[Array, Array],
    weight: float | None = None,
) -> LoudRows:
    """One step in the coordinates along l and along what v has beside it [firststep, covariance, eq. 8].

    `weight` is the teacher's along l, its mean by default.
    """
    (xi, fresh), u = own, geometry.u
    weight = float(grouped(problem.covariance(sizes.dim))[2][0]) if weight is None else weight
    step = _Step(problem, sizes, step_size, geometry.rest == "structured")
    profiles, power = _profiles_beside(problem, sizes, step.moments.square, weight), step.power
    m = profiles.values
    shorter = 1 - xi**2 / sizes.dim * problem.row_law.unit_norm
    mu, nodes = geometry.law.weights, geometry.law.nodes
    component = math.sqrt(m[0] / sizes.dim) * xi * step.kept(m[:1], u)[0]
    push = step_size * u / math.sqrt(sizes.width)
    gradient = loud_gradient(problem, sizes, weight, component, np.sqrt(mu @ np.outer(nodes, shorter)))
    step, turned = _turned(profiles, gradient, step, geometry.u_weights)
    squared = mu @ step.bent(nodes, shorter, u) + (push * turned) ** 2
    order_one = problem.output_law.order_one
    if order_one:
        # The component along W0^T a is taken out of the row, whose norm stays what it was.
        squared = np.maximum(squared - u**2 / sizes.width, SHORTEST_ROW**2)
    along, begun = _drawn(step, gradient, float(m[0]), geometry.u_weights, draw, fresh)
    component = component + begun * u / math.sqrt(sizes.width)
    vectors, common = _beside(profiles, gradient, step, weight, geometry.u_weights)
    common = common * (u / math.sqrt(sizes.width) if order_one else push)
    special = _spread_out(profiles, vectors)
    special_stretch = step.bent(np.tile(m, len(profiles.masses)), shorter, u) / squared
    between = step.moved(profiles, vectors, u, m[0] ** power * math.sqrt(weight)) / squared[:, None, None]
    overlaps = np.append([math.sqrt(weight)], profiles.gram(profiles.known, vectors)[0])
    size, moved = between.shape[1], between.copy()
    beside = _beside_noise(profiles, gradient, step, vectors, u)
    known = _less(beside * np.sqrt(shorter * sizes.dim / squared)[:, None], special_stretch, special[:, 1:])
    moved[:, 1:, 1:] -= known[:, :, None] * known[:, None]
    extra = _kept(special_stretch, special, moved)
    known *= (np.sqrt(squared / sizes.dim) * fresh)[:, None]
    known[:, -1] += push * turned
    law = StepLaw(
        shared=np.stack([component + push * m[0] ** power * along, common + known[:, 0]], axis=1)[None],
        excess=squared[None] - 1,
        noise=(step.noise * u**2)[None],
        law=geometry.law,
        stretch=lambda at, _: step.bent(at, shorter, u)[None] / squared,
        special_stretch=special_stretch[None],
        special_vectors=special[None],
        special_extra=extra[None] * float(step.structured),
        cosines=overlaps[None, None, :2],
        asides=overlaps[None, None, 2:],
        output_turn=np.zeros((1, size, len(u))) if order_one else None,
        output_parts=step.output_parts(nodes, u),
        output_lost=output_lost(problem, sizes, np.array([step_size]), nodes, u),
        lengthening=np.array([step.lengthening]),
        **_not_here(size, len(u)),
        tilt=np.pad(known[None, :, 1:], ((0, 0), (0, 0), (2, 0))),
    )
    return LoudRows(law, step, profiles, vectors, shorter, between)


def solve(
    problem: Problem,
    sizes: Sizes,
    step_sizes: Array,
    ridges: Array,
    *,
    rest: str = "structured",
    draft: bool = False,
) -> Outcome:
    """Errors after one step, averaged over the step's noise along l, for every step size and ridge.

    A draft is made with fewer nodes.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/2", 0.3, rows="sphere", inputs="spiked(50, overlap=0)")
    >>> found = solve(problem, Sizes(1000, 500, 750), np.array([10.0]), np.array([0.1]))
    >>> print(f"{found.test_error[0, 0]:.3f}")
    0.983
    """
    pull = Pull.of(problem, sizes)
    share = start_share(problem, sizes, step_sizes)
    ahead = [0.0] + [SMALLEST_STEP] * bool(share.any())
    steps, index = np.unique(np.append(ahead, step_sizes), return_inverse=True)
    numbers = _averaged(problem, sizes, steps, ridges, rest, draft)
    values = {name: row[index[len(ahead) :]] for name, row in numbers.items()}
    still, start = ({name: row[[at]] for name, row in numbers.items()} for at in (0, len(ahead) - 1))
    values |= joined(problem, still, start, values, share) if share.any() else {}
    # No fit is worse on its samples than none; the nodes along the loud direction are right to some 1e-6.
    values["train_error"] = np.minimum(values["train_error"], problem.label_variance)
    flat_steps, flat_ridges = (grid.ravel() for grid in np.meshgrid(step_sizes, ridges, indexing="ij"))
    below_noise(problem, flat_steps, flat_ridges, values["test_error"].ravel())
    values["test_error"] = np.maximum(values["test_error"], problem.noise_variance)
    for name in ("train", "test"):
        values[f"{name}_gain"] = still[f"{name}_error"] - values[f"{name}_error"]
    steep = np.asarray(step_sizes) * math.hypot(pull.signal, pull.noise)
    others = np.array([_next_share(problem, sizes, float(step)) for step in step_sizes])
    known = size_variance(sizes, HIGHEST) + BAR_LOUD**2 + (BAR_OTHERS * others) ** 2
    loudest = float(problem.covariance(sizes.dim).values[0]) / sizes.dim
    known = known + spectrum_variance(problem, sizes, loudest)
    known = known + turned_variance(problem, sizes, np.asarray(step_sizes, dtype=np.float64))
    small = small_error_variance(problem, sizes, values["test_error"])
    bars = np.sqrt((known + (BAR_STEEP * steep) ** 2)[:, None] + small)
    for name in ("train_error", "test_error"):
        values[f"{name}_bar"] = bars * values[name]
    learned = values.pop("along")
    details = {"rest": rest, "degrees": min(HIGHEST, highest_degree(sizes)), "learned": learned}
    notes = wide_bar_note(sizes, bars)
    return Outcome(problem, sizes, step_sizes, ridges, "unified", values, notes=notes, details=details)


def _next_share(problem: Problem, sizes: Sizes, step_size: float) -> float:
    """Share of a row's squared norm along the next of single directions, at the start or after the step."""
    covariance = problem.covariance(sizes.dim)
    single = covariance.values[covariance.counts == 1]
    if len(single) < 2:
        return 0.0
    u, weights = problem.readout_law.rule(1.0)[:2]
    kept = _Step(problem, sizes, step_size, structured=True).kept(single[1:2], u)[0] ** 2
    return float(single[1] * max(kept @ weights, 1.0)) / sizes.dim


def _averaged(
    problem: Problem, sizes: Sizes, steps: Array, ridges: Array, rest: str, draft: bool
) -> dict[str, Array]:
    """Errors and shares of the teacher's terms, (S, R)."""
    pull, covariance = Pull.of(problem, sizes), problem.covariance(sizes.dim)
    weight, typical = float(grouped(covariance)[2][0]), covariance.typical
    found: dict[str, Array] = {}
    for i, step in enumerate(steps):
        # Without a step the initial output plays no part, and no draw does.
        here = problem if step > 0 else problem.without_step()
        at = pull.nodes(float(step), draft)
        geometry, *own = loud_geometry(here, sizes, rest, at, highest_degree(sizes))
        # Without a step no draw matters but the teacher's weight along l.
        draws = pull.of_all(weight, typical, at.draws) if step > 0 else [(0.0, weight, 1.0)]
        # One draw begins where the one before ended.
        start, rounds = first_guess(geometry, ridges), 8
        for draw, along, mass in draws:
            law = loud_rows(here, sizes, float(step), draw, geometry, (own[0], own[1]), along).law
            tables = tables_from(geometry, law).repeat(len(ridges))
            start, rounds = reached_points(geometry, tables, ridges, start, RESIDUAL, rounds).value, 1
            answer = answer_at(geometry, tables, start)
            numbers = errors_at(answer, ridges) | learned_shares(problem, geometry, tables, answer)
            numbers["along"] = _along_teacher(geometry, tables, answer)
            for name, row in numbers.items():
                found.setdefault(name, np.zeros((len(steps), *row.shape)))[i] += mass * row
    return found


def _along_teacher(geometry: Geometry, tables: Tables, answer: Answer) -> Array:
    """The fitted function's coefficients on h_k(theta·g), (R, LEARNED) [firststep, unified, eq. 19]."""
    cosines, aside = tables.cosines[0, 0], float(tables.asides[0, 0, 0])
    size = max(float(np.linalg.norm(cosines)), 1e-12)
    seen = hermite_polynomials(cosines @ geometry.coordinates / size, LEARNED, normalised=True)
    found = np.zeros((len(answer.learned), LEARNED))
    for b in (index[0] for index in tables.blocks[: tables.norm_start] if sum(index) == index[0]):
        functions = answer.learned[:, tables.blocks.index((b, *tables.blocks[0][1:]))] * geometry.weights
        for k in range(b, LEARNED):
            factor = math.sqrt(math.comb(k, b)) * aside**b * size ** (k - b)
            found[:, k] += factor * (functions @ seen[k - b])
    return found
