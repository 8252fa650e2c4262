r"""The law of two steps on fresh samples: what the second learns of what the first made visible.

After the first step a neuron's argument is :math:`s g + \omega_1 U z`. The second gradient adds, with
:math:`B_0(U, z) = E\sigma'(sg + uz)` and the residual :math:`\tilde y = y - f_1(z)`,

.. math:: \frac{\eta_2 U}{\sqrt N} D(U), \qquad D(U) = \frac{1}{n_0}\sum_i \tilde y_i B_0(U, z_i)\, x_i ,

so that neurons share a curve :math:`q(U)` whose Gram matrix is known. Its two main directions are the coordinates zeta
[firststep, second step].
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from firststep.gaussian import Array, gauss_hermite
from firststep.setting import Problem, Sizes
from firststep.theory.covariant_step import general_step
from firststep.theory.label_law import label_parts
from firststep.theory.rest import RestLaw, normal_points, reach_of
from firststep.theory.sectors import block_indices
from firststep.theory.step_law import StepLaw, bulk_law, plain_step

# Nodes of z in averages over the second step's sample.
SAMPLE_NODES = 60
# Nodes of g in averages of the activation's slope.
SLOPE_NODES = 80
# Directions of the second step's scatter below this share of the largest are left out.
NO_SCATTER = 1e-12
# Nodes of each of so many directions beside z, on each side of zero, in averages of labels.
TURN_NODES = {0: 1, 1: 20, 2: 10, 3: 6, 4: 4}
# Nodes of the law of the first step's M.
FIRST_LEVELS = 8


@dataclass(frozen=True)
class SecondGradient:
    """Averages of the second gradient after a first step, in the axes z, e_1 …; leading axis nu.

    Attributes
    ----------
    mean : ndarray (nu, 1 + ke)
        D(U) along z and the teacher's directions beside it.
    gram : ndarray (nu, nu)
        Scalar products of its scatter.
    typical : ndarray (nu,)
        E[y~ sigma''(…)]: how it stretches the rows along directions that the labels do not know.
    noise : ndarray (nu,)
        Squared length of what is different for every neuron.
    scatter : ndarray (nu, R)
        Its scatter in orthonormal axes of its own.
    turn : ndarray (nu, 1 + ke + R, 1 + ke + R)
        E[y~ sigma''(…) x x^T] between z, e_1 … and these axes: how it turns the rows.
    loud : ndarray (nu, 1 + ke + R, 1 + ke + R)
        Covariance there of what is different for every neuron; in typical directions it is `noise`.
    """

    mean: Array
    gram: Array
    typical: Array
    noise: Array
    scatter: Array
    turn: Array
    loud: Array


def second_gradient(
    problem: Problem, sizes: Sizes, first: StepLaw, u: Array, u_weights: Array
) -> SecondGradient:
    """Averages over a fresh sample of the gradient after a first step [firststep, second step, eqs. 1-4]."""
    z, weights = gauss_hermite(SAMPLE_NODES)
    slope, curve, squared = slopes_after(problem, first, z)
    beside = first.asides.shape[2]
    blocks = tuple(block_indices(beside, 1))
    parts, square = label_parts(problem.teacher, first.cosines[:1], first.asides[:1], z[None], blocks)
    output, scatter = output_after(problem, sizes, first, (u, u_weights), z)
    residual = parts[0, 0] - output
    second = square[0] + problem.noise_variance + scatter - 2 * output * parts[0, 0] + output**2
    units = [tuple(int(i == e) for i in range(beside)) for e in range(beside)]
    slopes = np.stack([parts[0, blocks.index(unit)] for unit in units])
    mean = np.concatenate([[residual * z], slopes]) * weights
    gram = sizes.step_ratio * (slope * (weights * second)) @ slope.T
    sizes_of, vectors = np.linalg.eigh(gram)
    kept = sizes_of > NO_SCATTER * max(float(sizes_of[-1]), 1e-300)
    values, vectors = sizes_of[kept], vectors[:, kept]
    typical = curve @ (weights * residual)
    noise = sizes.step_ratio * np.maximum(squared - slope**2, 0.0) @ (weights * second)
    turn, loud = _between(problem, sizes, first, (u, u_weights), vectors.T / np.sqrt(values)[:, None])
    beyond = np.arange(1 + beside, turn.shape[1])
    turn[:, beyond, beyond] += typical[:, None]
    loud[:, beyond, beyond] += noise[:, None]
    return SecondGradient(
        mean=slope @ mean.T,
        gram=gram,
        typical=typical,
        noise=noise,
        scatter=vectors * np.sqrt(values),
        turn=turn,
        loud=loud,
    )


def output_after(
    problem: Problem, sizes: Sizes, first: StepLaw, rule: tuple[Array, Array], z: Array
) -> tuple[Array, Array]:
    r"""The network's output after the first step: its mean and its variance given z, each (nz,).

    .. math:: f_1(z) = \sqrt N\tau\,E_U[U A_0(U, z)], \qquad E_U[U^2(E\sigma^2 - A_0^2)]
        - E_U[U^2 A_1/s]^2 + 2\tfrac{N}{d} E_U[U A_3]^2

    The second for an output of order one, :math:`\tau = 1`: what is linear in the rows' random parts has lost what
    they have along a, and all neurons see the norm of x alike. `rule` are nodes and weights of U
    [firststep, second step, eq. 11].
    """
    u, u_weights = rule
    scale, shift = np.sqrt(1 + first.excess[0])[:, None], first.shared[0] @ z[None]
    mean, slope, square, bent = problem.activation.gaussian_averages(
        np.broadcast_to(scale, shift.shape), shift
    )
    output = problem.output_law.scale(sizes.width) * math.sqrt(sizes.width) * ((u_weights * u) @ mean)
    if not problem.output_law.order_one:
        return output, np.zeros_like(output)
    known = (u_weights * u**2) @ (slope / scale)
    norm = 2 * sizes.width / sizes.dim * ((u_weights * u) @ bent) ** 2
    return output, np.maximum((u_weights * u**2) @ (square - mean**2) - known**2, 0.0) + norm


def slopes_after(problem: Problem, first: StepLaw, z: Array) -> tuple[Array, Array, Array]:
    """E sigma', E sigma'' and E sigma'^2 after the first step given U and z, (nu, nz)."""
    scale = np.sqrt(1 + first.excess[0])[:, None]
    shift = first.shared[0] @ z[None]
    _, slope, _, bent = problem.activation.gaussian_averages(np.broadcast_to(scale, shift.shape), shift)
    nodes, mass = gauss_hermite(SLOPE_NODES)
    squared = problem.activation.derivative(scale[..., None] * nodes + shift[..., None]) ** 2 @ mass
    return slope / scale, bent / scale**2, squared


def _label_grid(problem: Problem, reach: float, beside: int) -> tuple[Array, Array]:
    """Nodes of the directions beside z, (beside, G), and weights; two of the initial output's, which no label knows."""
    unknown = int(problem.output_law.order_one)
    known = normal_points(reach, TURN_NODES[beside - unknown])
    rules = [known] * (beside - unknown) + [gauss_hermite(2)] * unknown
    g = np.array(list(product(*[rule[0] for rule in rules]))).reshape(-1, beside).T
    return g, np.array([math.prod(row) for row in product(*[rule[1] for rule in rules])])


def _between(
    problem: Problem, sizes: Sizes, first: StepLaw, rule: tuple[Array, Array], axes: Array
) -> tuple[Array, Array]:
    r"""E[y~ sigma'' x x^T] and the noise's covariance between z, e_1 … and the scatter's axes, (nu, ·, ·).

    Along an axis f_r of the scatter, which it is a part of, sample i has the mean :math:`\tilde y_i b_r(z_i)`, so that
    moments up to :math:`\tilde y^4` are needed: those of labels as n0 samples contain them [firststep, second step].
    `axes` (R, nu) over their sizes.
    """
    reach = reach_of(sizes.n_step_samples)
    z, weights = normal_points(reach, SAMPLE_NODES // 2)
    slope, curve, squared = slopes_after(problem, first, z)
    shown = sizes.step_ratio * axes @ slope
    factors = curve, sizes.step_ratio * np.maximum(squared - slope**2, 0.0)
    output, scatter = output_after(problem, sizes, first, rule, z)
    beside, noise = first.asides.shape[2], (problem.noise_variance + scatter)[:, None]
    g, mass = _label_grid(problem, reach, beside)
    t = np.multiply.outer(z, first.cosines[0, :, 0])[:, None] + (first.asides[0] @ g).T
    labels = np.asarray(problem.teacher.at(t.reshape(-1, t.shape[-1]))).reshape(len(z), -1)
    left = labels - output[:, None]
    x = np.concatenate(
        [np.broadcast_to(z[:, None], left.shape)[None], np.broadcast_to(g[:, None], (beside, *left.shape))]
    )
    # Moments of y~ given the coordinates, noise included.
    powers = [left, left**2 + noise, left**3 + 3 * noise * left, left**4 + 6 * noise * left**2 + 3 * noise**2]
    known, size = 1 + beside, 1 + beside + len(shown)
    results = []
    for power, factor in enumerate(factors):
        weighted = factor * weights
        found = np.empty((len(factor), size, size))
        both = np.einsum("zg,azg,bzg->abz", powers[power] * mass, x, x, optimize=True)
        found[:, :known, :known] = np.einsum("uz,abz->uab", weighted, both)
        one = np.einsum("zg,azg->az", powers[power + 1] * mass, x)
        found[:, :known, known:] = np.einsum("uz,az,rz->uar", weighted, one, shown, optimize=True)
        found[:, known:, :known] = found[:, :known, known:].swapaxes(1, 2)
        none = weighted * (powers[power + 2] @ mass)
        found[:, known:, known:] = np.einsum("uz,rz,sz->urs", none, shown, shown, optimize=True)
        results.append(found)
    return results[0], results[1]


class Readouts:
    """Nodes and weights of U that can be a key."""

    def __init__(self, u: Array, weights: Array) -> None:
        self.u, self.weights = u, weights
        self._key = u.tobytes(), weights.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Readouts) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=64)
def after_first(
    problem: Problem, sizes: Sizes, step_size: float, rest: str, readouts: Readouts
) -> tuple[StepLaw, SecondGradient]:
    """The law of the first step and the gradient after it, which all second steps share."""
    steps = np.array([step_size])
    if rest == "structured":
        law = bulk_law(problem, sizes, rest, FIRST_LEVELS)
        first = plain_step(problem, sizes, steps, rest, readouts.u, law)
    else:
        first = general_step(problem, sizes, steps, rest, readouts.u, isotropic_law())
    return first, second_gradient(problem, sizes, first, readouts.u, readouts.weights)


def random_covariance(first: StepLaw, gradient: SecondGradient, push: Array, turned: bool) -> Array:
    """Covariance of a row's random part in the axes z, e_1 … and those of the second scatter, (nu, count, count).

    Turned by the second gradient, or stretched as in typical directions. A turn between z, e_1 … alone would be wrong:
    large labels turn the rows towards the scatter, too, and errors come out up to 9 % low.
    """
    known, count = gradient.mean.shape[1], gradient.turn.shape[1]
    length = 1 + first.excess[0]
    before = np.zeros((len(push), count, count))
    before[:, :known, :known] = first.special_covariance[0] * length[:, None, None]
    others = np.arange(known, count)
    before[:, others, others] = length[:, None]
    if not turned:
        return np.asarray((1 + push * gradient.typical)[:, None, None] ** 2 * before)
    turn = np.eye(count) + push[:, None, None] * gradient.turn
    return np.asarray(turn @ before @ turn.swapaxes(1, 2))


def isotropic_law() -> RestLaw:
    """The law of typical directions of which nothing is known."""
    one, zero = np.ones(1), np.zeros((2, 2))
    return RestLaw(one, one, np.zeros(1), zero[:1], 1.0, 1.0, one, one, zero)
