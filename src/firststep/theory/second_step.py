r"""The law of two steps on fresh samples: what the second learns of what the first made visible.

After the first step a neuron's argument is :math:`s g + \omega_1 U z`. The second gradient adds, with
:math:`B_0(U, z) = E\sigma'(sg + uz)` and the residual :math:`\tilde y = y - f_1(z)`,

.. math:: \frac{\eta_2 U}{\sqrt N} D(U), \qquad D(U) = \frac{1}{n_0}\sum_i \tilde y_i B_0(U, z_i)\, x_i ,

so that neurons share a curve :math:`q(U)` whose Gram matrix is known. Its two main directions are the coordinates zeta
[firststep, second step].
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from firststep.gaussian import Array, gauss_hermite
from firststep.setting import Problem, Sizes
from firststep.theory.coefficients import Geometry, Resolution, geometry_of, readout_rule
from firststep.theory.label_law import label_parts
from firststep.theory.rest import RestLaw
from firststep.theory.sectors import block_indices
from firststep.theory.step_law import StepLaw, general_step

# Coordinates that the neurons share after two steps; what other directions carry counts as row length.
COORDINATES = 2
# Nodes of z in averages over the second step's sample.
SAMPLE_NODES = 60
# Size below which functions of the coordinates are left out.
NEGLIGIBLE = 1e-5
# Nodes of g in averages of the activation's slope.
SLOPE_NODES = 80
# Directions of the second step's scatter below this share of the largest are left out.
NO_SCATTER = 1e-12
# Nodes of each of so many directions beside z in averages of labels.
TURN_NODES = {0: 1, 1: 40, 2: 20, 3: 12, 4: 8}


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
    """

    mean: Array
    gram: Array
    typical: Array
    noise: Array
    scatter: Array
    turn: Array


def second_gradient(
    problem: Problem, sizes: Sizes, first: StepLaw, u: Array, u_weights: Array
) -> SecondGradient:
    """Averages over a fresh sample of the gradient after a first step [firststep, second step, eqs. 1-4]."""
    z, weights = gauss_hermite(SAMPLE_NODES)
    scale = np.sqrt(1 + first.excess[0])[:, None]
    shift = first.shared[0] @ z[None]
    a0, a1, _, bent = problem.activation.gaussian_averages(np.broadcast_to(scale, shift.shape), shift)
    slope, curve = a1 / scale, bent / scale**2
    nodes, mass = gauss_hermite(SLOPE_NODES)
    squared = problem.activation.derivative(scale[..., None] * nodes + shift[..., None]) ** 2 @ mass
    beside = first.asides.shape[2]
    blocks = tuple(block_indices(beside, 1))
    parts, square = label_parts(problem.teacher, first.cosines[:1], first.asides[:1], z[None], blocks)
    output = (u_weights * u) @ a0
    residual = parts[0, 0] - output
    second = square[0] + problem.noise_variance - 2 * output * parts[0, 0] + output**2
    units = [tuple(int(i == e) for i in range(beside)) for e in range(beside)]
    slopes = np.stack([parts[0, blocks.index(unit)] for unit in units])
    mean = np.concatenate([[residual * z], slopes]) * weights
    gram = sizes.step_ratio * (slope * (weights * second)) @ slope.T
    sizes_of, vectors = np.linalg.eigh(gram)
    kept = sizes_of > NO_SCATTER * max(float(sizes_of[-1]), 1e-300)
    values, vectors = sizes_of[kept], vectors[:, kept]
    # What a sample shows of itself along each axis of the scatter, in units of its residual.
    shown = sizes.step_ratio * (vectors.T @ slope) / np.sqrt(values)[:, None]
    typical = curve @ (weights * residual)
    turn = _turned(problem, first, output, curve, shown)
    beyond = np.arange(1 + beside, turn.shape[1])
    turn[:, beyond, beyond] += typical[:, None]
    return SecondGradient(
        mean=slope @ mean.T,
        gram=gram,
        typical=typical,
        noise=sizes.step_ratio * np.maximum(squared - slope**2, 0.0) @ (weights * second),
        scatter=vectors * np.sqrt(values),
        turn=turn,
    )


def _turned(problem: Problem, first: StepLaw, output: Array, curve: Array, shown: Array) -> Array:
    r"""E[y~ sigma'' x x^T] between z, e_1 … and what a sample shows along the scatter's axes [firststep, second step].

    Along an axis f_r of the scatter, which it is a part of, sample i has the mean :math:`\tilde y_i b_r(z_i)`, so that
    moments up to :math:`\tilde y^3` are needed.
    """
    z, weights = gauss_hermite(SAMPLE_NODES)
    beside = first.asides.shape[2]
    nodes, node_weights = gauss_hermite(TURN_NODES[beside])
    g = np.array(list(product(nodes, repeat=beside))).T
    mass = np.array([math.prod(row) for row in product(node_weights, repeat=beside)])
    t = np.multiply.outer(z, first.cosines[0, :, 0])[:, None] + (first.asides[0] @ g).T
    labels = np.asarray(problem.teacher.at(t.reshape(-1, t.shape[-1]))).reshape(len(z), -1)
    left, noise = labels - output[:, None], problem.noise_variance
    x = np.concatenate(
        [np.broadcast_to(z[:, None], left.shape)[None], np.broadcast_to(g[:, None], (beside, *left.shape))]
    )
    weighted = mass * x
    once = np.einsum("zg,azg,bzg->abz", left, weighted, x)
    twice = np.einsum("zg,azg->az", left**2 + noise, weighted)
    thrice = (left**3 + 3 * noise * left) @ mass
    known, size = 1 + beside, 1 + beside + len(shown)
    curved = curve * weights
    found = np.empty((len(curve), size, size))
    found[:, :known, :known] = np.einsum("uz,abz->uab", curved, once)
    found[:, :known, known:] = np.einsum("uz,az,rz->uar", curved, twice, shown, optimize=True)
    found[:, known:, :known] = found[:, :known, known:].swapaxes(1, 2)
    found[:, known:, known:] = np.einsum("uz,rz,sz->urs", curved * thrice, shown, shown, optimize=True)
    return found


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
    first = general_step(problem, sizes, np.array([step_size]), rest, readouts.u, isotropic_law())
    return first, second_gradient(problem, sizes, first, readouts.u, readouts.weights)


def second_step(
    problem: Problem, sizes: Sizes, steps: tuple[float, float], rest: str, u: Array, u_weights: Array
) -> StepLaw:
    """The law of the rows after two steps, in two coordinates [firststep, second step, eqs. 5-8]."""
    first_size, second_size = steps
    law = isotropic_law()
    first, gradient = after_first(problem, sizes, first_size, rest, Readouts(u, u_weights))
    known = gradient.mean.shape[1]
    push = second_size * u / math.sqrt(sizes.width)
    curve = push[:, None] * np.concatenate([gradient.mean, gradient.scatter], axis=1)
    curve[:, 0] += first.shared[0, :, 0]
    _, _, axes = np.linalg.svd(np.sqrt(u_weights)[:, None] * curve, full_matrices=False)
    # A readout of few values spans fewer directions than there are coordinates.
    main = np.zeros((COORDINATES, curve.shape[1]))
    main[: len(axes)] = axes[:COORDINATES]
    shared = curve @ main.T
    left = np.maximum((curve**2).sum(axis=1) - (shared**2).sum(axis=1), 0.0)
    teacher = np.zeros((first.cosines.shape[1], curve.shape[1]))
    teacher[:, :1], teacher[:, 1:known] = first.cosines[0], first.asides[0]
    cosines = teacher @ main.T
    beside, asides = _beside(teacher - cosines @ main)
    special = np.concatenate([main, beside])
    typical = (1 + push * gradient.typical) ** 2 * (1 + first.excess[0])
    noise = push**2 * gradient.noise + left
    whole = special @ random_covariance(first, gradient, push, rest == "structured") @ special.T
    excess = typical + noise - 1
    covariance = (whole + noise[:, None, None] * np.eye(len(special))) / (1 + excess)[:, None, None]
    size = len(special)
    return StepLaw(
        shared=shared[None],
        excess=excess[None],
        noise=(first.noise[0] + noise)[None],
        turn=np.zeros(1),
        law=law,
        stretch=lambda nodes, share: np.ones((1, len(nodes), len(u))),
        special_stretch=np.ones((1, size, len(u))),
        special_vectors=np.eye(size)[None],
        special_extra=(covariance - np.eye(size))[None],
        cosines=cosines[None],
        asides=asides[None],
        output_turn=None,
        output_parts=None,
        along=np.zeros((1, size)),
        lengthening=np.zeros(1),
        leaning=np.zeros((1, len(u), size)),
        leaning_square=np.zeros((1, len(u))),
        loosening=np.zeros((1, len(u))),
        curving=np.zeros((1, len(u))),
    )


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


def _beside(left: Array) -> tuple[Array, Array]:
    """Orthonormal directions of what is left of the teacher's beside the coordinates, and the teacher's in them."""
    found: list[Array] = []
    for row in left:
        vector = row.copy()
        for known in found:
            vector -= (known @ vector) * known
        size = float(np.linalg.norm(vector))
        found.append(vector / size if size > 1e-9 else np.zeros_like(vector))
    beside = np.stack(found)
    return beside, left @ beside.T


def isotropic_law() -> RestLaw:
    """The law of typical directions of which nothing is known."""
    one, zero = np.ones(1), np.zeros((2, 2))
    return RestLaw(one, one, np.zeros(1), zero[:1], 1.0, 1.0, one, one, zero)


@dataclass(frozen=True)
class Plane:
    """Resolution of two coordinates: nodes of the first, which carries most, and of the second, and readout spacing."""

    first: int
    second: int
    spacing: float


def plane_geometry(problem: Problem, sizes: Sizes, plane: Plane, rest: str, highest: int) -> Geometry:
    """Geometry of two coordinates by a product rule."""
    line = geometry_of(problem, sizes, Resolution(plane.first, plane.spacing, 1), rest, 0, highest)
    rules = [gauss_hermite(count) for count in (plane.first, plane.second)]
    first, second = (part.ravel() for part in np.meshgrid(rules[0][0], rules[1][0], indexing="ij"))
    u, u_weights, psi = readout_rule(problem.readout_law, plane.spacing, 0)
    return replace(
        line,
        z=first,
        others=second[None],
        weights=np.outer(rules[0][1], rules[1][1]).ravel(),
        hermite=np.empty((0, len(first))),
        u=u,
        u_weights=u_weights,
        readout=u,
        own=None,
        psi=psi,
        law=isotropic_law(),
        negligible=NEGLIGIBLE,
    )
