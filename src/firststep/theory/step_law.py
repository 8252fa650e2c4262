r"""The law of a step: what it does to a row, for a batch of step sizes [firststep, unified, eqs. 1-6].

A neuron's argument is :math:`s(U) g + \sum_l q_l(U)\,\zeta_l`, with the coordinates zeta that all neurons share. Of the
rows' random part the law says the variance along a typical direction of each kind, c(U, m), and the covariance in the
special directions: the coordinates, then what is left of the teacher's directions beside them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from firststep.gaussian import Array, Function, expectation, gauss_hermite
from firststep.setting import Problem, Sizes
from firststep.theory.directions import (
    grouped,
)
from firststep.theory.label_law import label_moments
from firststep.theory.matrix_law import several_law
from firststep.theory.rest import RestLaw, point_law, rest_law

# No row gets shorter than this: with a few neurons a readout beyond its quadrature's reach would ask for it.
SHORTEST_ROW = 0.1


@dataclass(frozen=True)
class StepLaw:
    """What training does to a row, leading axis S.

    Attributes
    ----------
    shared : ndarray (S, nu, L)
        q, the argument's coefficients on the coordinates.
    excess : ndarray (S, nu)
        s^2 - 1, kept apart from 1 because sqrt(N) multiplies its effect on the mean.
    noise : ndarray (S, nu)
        kappa^2 U^2, the remainder's share of s^2.
    turn : ndarray (S,)
        k, the factor of U M in the rows.
    law : RestLaw
        Law of the typical directions.
    stretch : callable
        c(U, m) at nodes of that law, (S, nodes, nu), from the nodes and the remainder's share there.
    special_stretch, special_vectors : ndarray (S, nodes, nu), (S, nodes, p)
        Matrix-valued law in the special directions.
    special_extra : ndarray (S, nu, p, p)
        What the covariance has there besides.
    cosines, asides : ndarray (S, k, L), (S, k, p - L)
        The teacher's directions on the coordinates and beside them.
    output_turn : ndarray (S, p, nu) or None
        For an output of order one: what the step does to a row's component along W0^T a, in the special directions, in
        units of U/sqrt(N).
    output_parts : ndarray (S, J, nodes, nu)
        What a row has along W0^T a in typical directions, in J independent parts, in units of U/sqrt(N).
    output_lost : ndarray (S, nodes, nu)
        What the first of these parts is less because of an output that is called vanishing; 0 for one of order one.
    along : ndarray (S, p)
        The shared vector in the special directions, in units of a row's U/sqrt(N).
    lengthening : ndarray (S,)
        Factor of U w·M w in a row's squared norm.
    leaning : ndarray (S, nu, p)
        Covariance of the relative change of a row's squared norm with its special components, in units of s/d.
    leaning_square : ndarray (S, nu)
        Variance of that change, in units of 1/d.
    loosening : ndarray (S, nu)
        How much more, or less, than M turns it, M lengthens a row that lies along the first coordinate.
    curving : ndarray (S, nu)
        What the gradient's part of degree two in the row adds along the first coordinate, in units of d (w·beta)^2.
    pull : ndarray (S,) or None
        Relative growth of the shared vector with a row's own squared length; None where that is not known.
    tilt : ndarray (S, nu, p) or None
        Where a neuron's own component along the first coordinate is known: what it has beside it for that reason.
    """

    shared: Array
    excess: Array
    noise: Array
    turn: Array
    law: RestLaw
    stretch: Callable[[Array, Array], Array]
    special_stretch: Array
    special_vectors: Array
    special_extra: Array
    cosines: Array
    asides: Array
    output_turn: Array | None
    output_parts: Array
    output_lost: Array
    along: Array
    lengthening: Array
    leaning: Array
    leaning_square: Array
    loosening: Array
    curving: Array
    pull: Array | None = None
    tilt: Array | None = None

    @property
    def special_covariance(self) -> Array:
        """Covariance c_ab(U) of a row's random part in the special directions, in units of s^2/d, (S, nu, p, p)."""
        law = np.einsum("blu,bla,blc->buac", self.special_stretch, self.special_vectors, self.special_vectors)
        return np.asarray(law + self.special_extra)


def beyond_spike(problem: Problem, rest: str) -> float:
    """E(sigma' - c_1)^2, less the part that M carries if that is kept: what the remainder is made of."""
    c = problem.activation.hermite(3)
    if rest == "none":
        return 0.0
    left = problem.activation.derivative_second_moment - float(c[1]) ** 2
    return max(left - (4 * float(c[2]) ** 2 if rest == "structured" else 0.0), 0.0)


def radial_parts(problem: Problem, rest: str) -> tuple[float, float]:
    r"""How the gradient lengthens a row: the parts of degree two and one of :math:`g\sigma'(g)` [firststep, radial].

    .. math:: w_j\cdot\nabla_j = \frac{a_j}{n_0}\sum_i y_i\,(g\sigma')(w_j\cdot x_i), \qquad
        g\sigma'(g) = \dots + (c_1 + 6 c_3) H_1 + (2 c_2 + 12 c_4) H_2 + \dots

    The first is returned as the factor of w·M w, the second without the c_1 of the spike.
    """
    c = problem.activation.hermite(5)
    if rest != "structured":
        return 0.0, 0.0
    return float(2 * c[2] + 12 * c[4]), float(6 * c[3])


def is_plain(problem: Problem, sizes: Sizes) -> bool:
    """Whether inputs are isotropic and the teacher has one direction."""
    return problem.teacher.directions == 1 and keeps_matrix(problem, sizes)


def keeps_matrix(problem: Problem, sizes: Sizes) -> bool:
    """Whether inputs are isotropic, so that the law of M can be kept exactly."""
    return problem.covariance(sizes.dim).isotropic


def output_of(problem: Problem, sizes: Sizes) -> tuple[float, float] | None:
    """c_1 and the variance beyond it of an initial output of order one, else None."""
    if not problem.output_law.order_one:
        return None
    c1 = float(problem.activation.hermite(2)[1])
    return c1, problem.output_variance(sizes) - c1**2


def bulk_law(problem: Problem, sizes: Sizes, rest: str, levels: int) -> RestLaw:
    """Law of the typical directions: M's, or the covariance's."""
    if not keeps_matrix(problem, sizes):
        values, shares, _ = grouped(problem.covariance(sizes.dim))
        one, zero = np.ones(1), np.zeros((2, 2))
        return RestLaw(values, shares, np.zeros(1), zero[:1], 1.0, 1.0, np.ones_like(values), one, zero)
    teachers = problem.teacher.directions
    if rest != "structured" or problem.label_variance == 0:
        return point_law(teachers + (2 if problem.output_law.order_one else 1))
    if teachers > 1:
        return several_law(problem, sizes, levels)
    labels = problem.teacher, problem.noise_variance, sizes.step_ratio, output_of(problem, sizes)
    # Without a part that is linear in the weights, the remainder's own covariance can be kept exactly.
    power = 1 if problem.activation.hermite(3)[2] != 0 else 2
    return rest_law(*labels, levels, power, sizes.n_step_samples)


def plain_step(
    problem: Problem, sizes: Sizes, step_sizes: Array, rest: str, u: Array, law: RestLaw
) -> StepLaw:
    """One step on isotropic inputs [firststep, unified, eqs. 1-6]."""
    c = problem.activation.hermite(3)
    root = math.sqrt(sizes.width)
    along, axes = directions_of(problem, sizes, step_sizes, rest)
    omega, teachers = along[:, 0] / root, problem.teacher.directions
    variance = problem.label_variance + problem.output_variance(sizes)
    noise = step_sizes**2 / float(sizes.width) * sizes.step_ratio * variance * beyond_spike(problem, rest)
    turn = 2 * float(c[2]) * step_sizes / root if rest == "structured" else np.zeros_like(step_sizes)
    shorter = np.outer(step_sizes, unlearned_length(problem, sizes, rest, u))
    excess = 2 * (1 - shorter) * np.outer(turn, u) * law.mean + shorter * (shorter - 2)
    excess = excess + np.outer(turn**2 * law.second_moment + noise, u**2)
    order_one = problem.output_law.order_one
    if order_one and rest != "noise":
        # The component along W0^T a is taken out of the row, whose norm stays what it was.
        excess = np.maximum(excess - u**2 / float(sizes.width), SHORTEST_ROW**2 - 1)
    squared = noise[:, None] * u**2

    def stretch(nodes: Array, share: Array) -> Array:
        bent = (1 - shorter[:, None] + turn[:, None, None] * nodes[:, None] * u) ** 2
        bent = bent + share[:, None] * squared[:, None]
        return np.asarray(bent / (1 + excess)[:, None, :])

    directions = law.special_vectors.shape[1]
    squared_slope, slope = radial_parts(problem, rest)
    b = _step_direction(problem, sizes)
    # The row's first components decide how much longer it gets; M turns them, the remainder's noise does not know.
    change = (2 * slope * step_sizes[:, None] / root * (axes @ b))[:, None] * (u / (1 + excess))[..., None]
    vectors = law.special_vectors @ axes.swapaxes(1, 2)
    matrix = (vectors * law.special_nodes[:, None]).swapaxes(1, 2) @ vectors
    turned = np.eye(directions) + (turn[:, None] * u)[..., None, None] * matrix[:, None]
    louder = axes @ law.noise_excess @ axes.swapaxes(1, 2)
    extra = (squared / (1 + excess))[..., None, None] * louder[:, None]
    cosines = axes[:, :, :teachers].swapaxes(1, 2)
    push, lengthening = step_sizes / root, 2 * squared_slope * step_sizes / root
    return StepLaw(
        shared=omega[:, None, None] * u[:, None],
        excess=excess,
        noise=squared,
        turn=turn,
        law=law,
        stretch=stretch,
        special_stretch=stretch(law.special_nodes, law.special_share),
        special_vectors=vectors,
        special_extra=extra,
        cosines=cosines[..., :1],
        asides=cosines[..., 1:],
        output_turn=_output_moved(axes, law, turn, u, shorter) if order_one else None,
        output_parts=(1 - shorter[:, None] + turn[:, None, None] * law.nodes[:, None] * u)[:, None],
        output_lost=output_lost(problem, sizes, step_sizes, np.ones_like(law.nodes), u),
        along=along,
        lengthening=lengthening,
        leaning=(turned @ change[..., None])[..., 0] / np.sqrt(1 + excess)[..., None],
        leaning_square=(change**2).sum(axis=-1),
        loosening=np.outer((lengthening - 2 * turn) * matrix[:, 0, 0], u),
        curving=np.outer(push * _second_degree(problem, sizes, rest, axes[:, 0]), u),
        pull=length_pull(problem, rest) * _step_share(along[:, 0], axes, order_one and rest != "noise"),
    )


def unlearned_length(problem: Problem, sizes: Sizes, rest: str, u: Array) -> Array:
    r"""How much a unit step takes off a row's length because of the output that it corrects, (nu,) [firststep, radial].

    .. math:: -w_j\cdot\nabla_j = \dots + a_j\sum_k a_k E[\sigma(w_k\cdot x)\,(g\sigma')(w_j\cdot x)]
        = \dots + \frac{U^2}{N}\Big(\tfrac{1}{2} E[(g^2-1)\sigma^2] - c_1^2\Big)
        + \frac{U\,E U}{d}\,2c_2(2c_2 + 12c_4)

    for an output of order one: the neuron's own part in it, and that of all others, whose rows have
    :math:`E(w_j\cdot w_k)^2 = 1/d`. What is linear is left out: it lies along :math:`W_0^\top a`, in the
    vector that the neurons share.
    """
    if rest != "structured" or not problem.output_law.order_one:
        return np.zeros_like(u)
    c = problem.activation.hermite(5)
    itself = (_own_slope(problem.activation) - float(c[1]) ** 2) / sizes.width
    others = problem.readout_law.mean * 2 * float(c[2]) * radial_parts(problem, rest)[0] / sizes.dim
    return np.asarray(itself * u**2 + others * u)


def unlearned_along(problem: Problem, sizes: Sizes, rest: str, u: Array, nodes: Array) -> Array:
    r"""The same along eigenvectors of a covariance with these eigenvalues, (nodes, nu) [firststep, covariance, eq. 13].

    .. math:: m^g\Big[\frac{U^2}{N}\big(\tfrac{1}{2} E[(g^2-1)\sigma^2] - c_1^2\big)
        + U\,EU\,\Big(A(m/d) + 24c_2c_4\Big(\frac{\int m^2\,\mathrm d\mu}{d} - \frac{m^2}{d^2}\Big)\Big)\Big]

    with A of `answered_along`, :math:`4c_2^2m/d + \dots`: the output of all others, :math:`\sqrt N\,EU\,F(|x|^2/d)`
    where the readout has a mean, turns a row and lengthens it.
    """
    if rest != "structured" or not problem.output_law.order_one:
        return np.zeros((len(nodes), len(u)))
    c = problem.activation.hermite(5)
    itself = (_own_slope(problem.activation) - float(c[1]) ** 2) / sizes.width
    shares, others = nodes / sizes.dim, np.zeros(len(nodes))
    if problem.readout_law.mean != 0:
        beside = problem.covariance(sizes.dim).moment(2) / sizes.dim - shares**2
        others = answered_along(problem.activation, tuple(shares.tolist())) + 24 * c[2] * c[4] * beside
        others = problem.readout_law.mean * others
    power = 1.0 if problem.rule.plain else 0.0
    return np.asarray((nodes**power)[:, None] * (itself * u**2 + np.outer(others, u)))


# Nodes of l and of xi in averages over what an output answers along an eigenvector; smallest share beside it.
ANSWER_NODES, ANSWER_ROWS, LEAST_BESIDE = 40, 8, 1e-3


@lru_cache(maxsize=64)
def answered_along(activation: Function, shares: tuple[float, ...]) -> Array:
    r"""What a row is pulled back along eigenvectors with these p = m/d by an output of the input's length [firststep].

    .. math:: A(p) = \frac{1}{\sqrt p}\,E\big[F(1 + p(l^2 - 1))\,
        \sigma'(\sqrt{1-p}\,g + \sqrt p\,\xi l)\,\xi l\big], \qquad F(r^2) = E\,\sigma(rg)

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> gelu = function("gelu")
    >>> (answered_along(gelu, (0.001, 0.1)) / np.array([0.001, 0.1]) / (4 * gelu.hermite(3)[2] ** 2)).round(3)
    array([0.997, 0.774])
    """
    p = np.array(shares)[:, None]
    (line, masses), (xi, rows) = gauss_hermite(ANSWER_NODES), gauss_hermite(ANSWER_ROWS)
    length = np.sqrt(np.maximum(1 + p * (line**2 - 1), LEAST_BESIDE))
    output = activation.gaussian_averages(length, np.zeros_like(length))[0]
    shift = (np.sqrt(p)[..., None] * np.outer(xi, line)).reshape(len(p), -1)
    scale = np.broadcast_to(np.sqrt(np.maximum(1 - p, LEAST_BESIDE)), shift.shape)
    slope = (activation.gaussian_averages(scale, shift)[1] / scale).reshape(len(p), len(xi), -1)
    found = np.einsum("pxl,x,pl->p", slope, rows * xi, output * masses * line) / np.sqrt(p[:, 0])
    found.setflags(write=False)
    return np.asarray(found)


def output_lost(problem: Problem, sizes: Sizes, step_sizes: Array, nodes: Array, u: Array) -> Array:
    r"""What a step takes of the output that is called vanishing, along eigenvectors, (S, nodes, nu).

    .. math:: w_j \to \dots - \eta c_1^2\tau\,a_j\,S^g\,S^{1/2}W_0^\top a, \qquad \tau = N^{-1/2}

    in units of U/sqrt(N); one of order one is counted with what neurons share [firststep, next order, eq. 6].
    """
    if problem.output_law.order_one:
        return np.zeros((len(step_sizes), len(nodes), len(u)))
    power = 0.5 + (1.0 if problem.rule.plain else 0.0)
    c1 = float(problem.activation.hermite(2)[1])
    lost = step_sizes * c1**2 * problem.output_law.scale(sizes.width)
    return np.asarray((lost[:, None] * nodes**power)[..., None] * np.ones_like(u))


@lru_cache(maxsize=64)
def _own_slope(activation: Function) -> float:
    """E[g sigma sigma']."""
    return float(expectation(lambda g: (g**2 - 1) * activation(g) ** 2 / 2, kinks=activation.kinks))


def length_pull(problem: Problem, rest: str) -> float:
    r"""Relative growth of a row's spike with its squared length [firststep, radial, eq. 3].

    .. math:: E\,\sigma'(\ell g) = c_1 + 3c_3(\ell^2 - 1) + \dots
    """
    c = problem.activation.hermite(4)
    return 3 * float(c[3] / c[1]) if rest == "structured" and c[1] != 0 else 0.0


def _step_share(length: Array, axes: Array, shared_before: bool) -> Array:
    """What of the shared vector, along itself, is the step's and not W0^T a, (S,)."""
    if not shared_before:
        return np.ones_like(length)
    return 1 - axes[:, 0, -2] / length


def _second_degree(problem: Problem, sizes: Sizes, rest: str, coordinate: Array) -> Array:
    r"""What the gradient's part of degree two in the row has along the first coordinate, (S,) [firststep, radial].

    .. math:: \frac{3c_3}{n_0}\sum_i y_i H_2(w\cdot x_i)\,x_i\cdot\hat z
        = \Big(18 c_3 c_{*3}\,r + 3c_3\,\frac{d}{n_0}\,\frac{\hat z\cdot\hat w}{|\tilde w|}\,
        E[y^2 (t^2 - 1)]\Big)(w\cdot\beta)^2 + \dots

    `coordinate` (S, p) is the first coordinate in the basis of `directions_of`.
    """
    if rest != "structured" or problem.teacher.directions > 1:
        return np.zeros(len(coordinate))
    c3, teacher = float(problem.activation.hermite(4)[3]), float(problem.teacher.hermite(4)[3])
    moments = label_moments(problem.teacher, problem.noise_variance, output_of(problem, sizes))
    scatter = _step_direction(problem, sizes)[-1]
    louder = sizes.step_ratio * (float(moments.second[0, 0]) - moments.square)
    known = 18 * c3 * teacher * coordinate[:, 0]
    return known + (3 * c3 * louder / scatter * coordinate[:, -1] if scatter > 0 else 0.0)


def _matrix_of(law: RestLaw) -> Array:
    """M in the basis beta or t_1 … t_k, W0^T a, w."""
    return np.asarray((law.special_vectors.T * law.special_nodes) @ law.special_vectors)


def _output_moved(axes: Array, law: RestLaw, turn: Array, u: Array, shorter: Array) -> Array:
    """k U M W0^T a, less what the row loses of W0^T a itself, in the special directions, (S, p, nu)."""
    teachers = law.special_vectors.shape[1] - 2
    turned = axes @ _matrix_of(law)[:, teachers]
    return np.asarray(
        turned[..., None] * np.outer(turn, u)[:, None] - axes[:, :, teachers, None] * shorter[:, None]
    )


@lru_cache(maxsize=64)
def _step_direction(problem: Problem, sizes: Sizes) -> Array:
    """b in the basis beta or t_1 … t_k, (W0^T a,) w."""
    c1 = float(problem.activation.hermite(2)[1])
    signal = np.atleast_1d(problem.teacher.gradient_mean).tolist()
    if problem.output_law.order_one:
        signal.append(-c1)
    noise = math.sqrt(max(problem.direction_norm_squared(sizes) - sum(x * x for x in signal), 0.0))
    found = np.array([*signal, noise])
    found.setflags(write=False)
    return found


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
        Rows: z, e1 (the part of beta orthogonal to z), e2; columns: beta, (W0^T a,) w. For a teacher of several
        directions t_1 … t_k in the place of beta.
    """
    c1 = float(problem.activation.hermite(2)[1])
    order_one = problem.output_law.order_one
    b = _step_direction(problem, sizes)
    v = c1 * step_sizes[:, None] * b
    if order_one:
        v[:, -2] += 1.0
    along = v if order_one and rest != "noise" else np.broadcast_to(b, v.shape)
    axes = np.zeros((len(v), len(b), len(b)))
    axes[:, 0] = along / np.linalg.norm(along, axis=1, keepdims=True)
    for row in range(1, problem.teacher.directions + 1):
        axes[:, row] = _beside(axes[:, :row], row - 1)
    if order_one:
        # What is left, seen from W0^T a or from w: without a step it is w itself.
        left = np.stack([_beside(axes[:, :-1], place) for place in (-2, -1)])
        first = np.linalg.norm(left[0], axis=1) >= np.linalg.norm(left[1], axis=1)
        axes[:, -1] = np.where(first[:, None], left[0], left[1])
    axes /= np.linalg.norm(axes, axis=2, keepdims=True)
    return np.asarray((axes @ v[..., None])[..., 0]), axes


def _beside(axes: Array, place: int) -> Array:
    """What the basis vector of this place has beside orthogonal axes (S, r, p), (S, p)."""
    left = np.broadcast_to(np.eye(axes.shape[2])[place], (len(axes), axes.shape[2]))
    for axis in axes.swapaxes(0, 1):
        left = left - ((axis * left).sum(axis=1) / (axis * axis).sum(axis=1))[:, None] * axis
    return left
