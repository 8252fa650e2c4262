r"""A neuron's own component along the first coordinate, kept as a variable of the neuron [firststep, degrees, eq. 11].

A random row has :math:`w_z = \xi\,s\sqrt{c_{zz}/d}` along z, besides what the step gave it. With few dimensions that is
as large as the step itself, and powers of it are not independent of each other. So xi is known, like U, and so is the
length :math:`\ell` of a Gaussian row: the argument is :math:`s(U,\xi,\ell) g + (q(U) + w_z) z`, what is random lies in
the d - 1 directions beside z, and every function of z that random weights carry is a spike.
"""

from dataclasses import dataclass, replace

import numpy as np

from firststep.gaussian import Array, hermite_polynomials, length_rule, sphere_rule
from firststep.setting import Problem, Sizes
from firststep.theory.lengths import LARGEST_SHARE, knows_lengths
from firststep.theory.sectors import degree_shares
from firststep.theory.step_law import SHORTEST_ROW, StepLaw

# Share of the second degree from which on a neuron's own component is known; below, it changes errors by tenths of a
# percent.
OPEN_SHARE = 0.025
# The same where M mixes the several directions of a teacher: what a neuron's component along z says of those beside it
# is known without M's law between them, which costs 7 % of the error at d = 100 and a step of sqrt(n), and 1 % at 40.
MIXED_SHARE = 1.0
# Nodes of xi: with nine the errors of a problem with d = 30 move by 2e-4. Nodes of the squared length of Gaussian rows.
OWN_NODES, LENGTH_NODES = 5, 3
# Nodes of U are no closer than this then, and have at least this weight: functions of U are smooth.
OWN_SPACING, OWN_WEIGHT = 0.2, 1e-5
# Size below which functions of z and of neurons are left out; they change errors by less than 1e-3.
OWN_NEGLIGIBLE = 1e-4


@dataclass(frozen=True)
class Own:
    """What is known of a neuron besides its readout: nodes and probability weights, each (nodes,).

    Attributes
    ----------
    component : ndarray
        xi, its component along z in units of its spread; uniform rows have the law of a coordinate on the sphere.
    square : ndarray
        l^2, the squared length of the row it began with.
    """

    component: Array
    square: Array
    weights: Array


def own_rule(problem: Problem, dim: int, known: bool) -> Own:
    """What is known of a neuron, or the one node of neurons of which nothing is."""
    if not known:
        return Own(np.zeros(1), np.ones(1), np.ones(1))
    xi, weights = sphere_rule(OWN_NODES, dim)
    if problem.row_law.unit_norm:
        return Own(xi, np.ones_like(xi), weights)
    square, lengths = length_rule(LENGTH_NODES, dim)
    return Own(np.tile(xi, len(square)), np.repeat(square, len(xi)), np.outer(lengths, weights).ravel())


# Nodes of the squared length of what an input has beside z, and Hermite degrees beyond P that this length mixes in.
RADIAL_NODES, RADIAL_DEGREES = 3, 4


@dataclass(frozen=True)
class Radial:
    r"""Lengths of what inputs have beside z, known like the neurons' own components [firststep, degrees, eq. 14].

    .. math:: h_p(g) = \sum_{q \le p} H_{qp}(r)\,Y_q(t), \qquad g = r t, \quad H_{qp}(r) = E_t[h_p(r t)\,Y_q(t)]

    t is a coordinate on the sphere and :math:`Y_q` its orthonormal polynomials.

    Attributes
    ----------
    square, weights : ndarray (nr,)
        r^2 and its probability weights.
    mixing : ndarray (P', P', nr)
        H, for degrees q and p up to P + RADIAL_DEGREES.
    """

    square: Array
    weights: Array
    mixing: Array

    def mixed(self, by_degree: Array) -> Array:
        """Coefficients on Y_q at nodes (…, z, r) flattened, from those on h_p at nodes z; degrees come first."""
        count = min(len(by_degree), self.mixing.shape[1])
        found = np.einsum("qpr,p...z->q...zr", self.mixing[:, :count], by_degree[:count])
        return np.asarray(found.reshape(*found.shape[:-2], -1))

    def spread(self, functions: Array) -> Array:
        """Functions of z at the nodes (z, r)."""
        return np.repeat(functions, len(self.square), axis=-1)


def radial_rule(dim: float, highest: int) -> Radial:
    """Lengths of inputs in `dim` directions, and how they mix Hermite degrees up to P + RADIAL_DEGREES.

    Examples
    --------
    >>> rule = radial_rule(29, 2)
    >>> np.round(rule.weights @ rule.mixing[0, 2] ** 2 * 29, 6), np.round(rule.weights @ rule.square, 6)
    (np.float64(1.0), np.float64(1.0))
    """
    square, weights = length_rule(RADIAL_NODES, dim)
    count = highest + RADIAL_DEGREES + 1
    t, masses = sphere_rule(count + 2, dim)
    root = np.sqrt(masses)
    # Orthonormal polynomials with a positive leading coefficient.
    basis, triangle = np.linalg.qr((root * hermite_polynomials(t, count, normalised=True)).T)
    functions = (basis * np.sign(np.diag(triangle))).T * root
    values = hermite_polynomials(np.sqrt(square)[:, None] * t, count, normalised=True)
    return Radial(square, weights, np.einsum("qt,prt->qpr", functions, values))


def knows_own(problem: Problem, sizes: Sizes, highest: int, rest: str) -> bool:
    """Whether the sizes ask for it: not where the component along z is one of many small ones.

    Under a covariance a neuron that lies along z has more along its neighbours, too, which is not derived: lengths
    alone are known then, and those where the covariance asks for it, too.

    Examples
    --------
    >>> problem = Problem("relu", "h1")
    >>> [knows_own(problem, sizes, 2, "structured") for sizes in (Sizes(1500, 40, 1000), Sizes(1000, 500, 750))]
    [True, False]
    """
    mixed = problem.teacher.directions > 1 and problem.activation.hermite(3)[2] != 0
    least = MIXED_SHARE if mixed and problem.covariance(sizes.dim).isotropic else OPEN_SHARE
    matters = highest > 1 and sizes.dim > 2 and float(degree_shares(sizes, 2)[1]) > least
    if problem.covariance(sizes.dim).isotropic:
        return matters and rest != "noise"
    loud = float(problem.covariance(sizes.dim).values[0]) > LARGEST_SHARE * sizes.dim
    return rest == "structured" and (knows_lengths(problem, sizes.dim) or (matters and not loud))


def opened(law: StepLaw, own: Own, dim: int) -> StepLaw:
    r"""The law of rows whose component along the first coordinate is known [firststep, degrees, eqs. 11-13].

    .. math:: s^2 \to s^2\ell^2 + \kappa^2U^2(1 - \ell^2), \quad w_z = \xi s\sqrt{c_{zz}/d}, \quad
        s^2 \to s^2\Big(1 - \frac{\xi^2}d\Big) + \frac{\xi^2-1}{d}\,\text{loosening}
        + s^2\,\frac{\lambda_z\,\xi}{\sqrt{c_{zz}d}}

    A row of known length has less left the more it has along z, and M lengthens a row less than it turns it. The row's
    length leans on its components by :math:`\lambda`, which scales :math:`w_z` as well. `own` has a value for each node
    of the neurons.
    """
    xi, square = own.component, own.square
    covariance = law.special_covariance
    squared = np.maximum(square * (1 + law.excess) + (1 - square) * law.noise, SHORTEST_ROW**2)
    along = covariance[..., 0, 0]
    component = np.sqrt(along * squared / dim) * xi
    # Regression of the other special components on the one along z, and what is left of their covariance.
    ratio = covariance[..., :, 0] / along[..., None]
    left = covariance - ratio[..., :, None] * covariance[..., :1, :]
    if law.cosines.shape[1] > 1:
        law = _loosened(law)
    vectors = law.special_vectors.copy()
    vectors[..., 0] = 0.0
    smooth = replace(law, special_vectors=vectors, special_extra=np.zeros_like(law.special_extra))
    lean = law.leaning[..., 0]
    leaning = law.leaning - ratio * lean[..., None]
    leaning[..., 0] = 0.0
    length = squared * (1 - xi**2 / dim) + (xi**2 - 1) / dim * law.loosening * square
    length = length + squared * lean * xi / np.sqrt(along * dim)
    cosine = law.cosines[:, :1, 0] ** 2
    pull = np.zeros(len(law.turn)) if law.pull is None else law.pull
    scaled = np.sqrt(squared) * lean / 2 * xi**2 + law.curving * (cosine * xi**2 + 1 - cosine)
    return replace(
        law,
        shared=_moved(law.shared * (1 + pull[:, None] * (square - 1))[..., None], component + scaled / dim),
        excess=np.maximum(length, SHORTEST_ROW**2) - 1,
        special_vectors=vectors,
        special_extra=left - smooth.special_covariance,
        leaning=leaning,
        leaning_square=np.maximum(law.leaning_square - lean**2 / along, 0.0),
        tilt=ratio * component[..., None],
    )


def _loosened(law: StepLaw) -> StepLaw:
    """The same rows with special directions that M does not mix with others.

    M turns the several directions of a teacher into z. Where what a neuron has along z is known, its law between the
    others would count that a second time: eigenvectors of M that they share with z.
    """
    steps, _, size = law.special_vectors.shape
    vectors = np.broadcast_to(np.eye(size), (steps, size, size)).copy()
    extra = law.special_covariance - np.eye(size)
    return replace(
        law,
        special_stretch=np.ones((steps, size, law.special_stretch.shape[2])),
        special_vectors=vectors,
        special_extra=extra,
    )


def _moved(shared: Array, by: Array) -> Array:
    """The shared coordinates with the first moved, (S, nu, L)."""
    moved = shared.copy()
    moved[..., 0] += by
    return moved
