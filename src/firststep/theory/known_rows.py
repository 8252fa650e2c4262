r"""Rows whose component along the step's direction is known, under any covariance [firststep, joint law].

Along v, the vector that neurons share, a random row has :math:`\xi\sqrt{v^\top S v/d}`. With an uneven spectrum v lies
where eigenvalues are large, so that this is a few percent of the row in spite of many dimensions. A row that is known
along v has a mean along S v, and what is random of it the covariance

.. math:: S' = S - \frac{Sv\,v^\top S}{v^\top Sv} .
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array, gauss_hermite
from firststep.setting import Problem, Sizes
from firststep.theory.coefficients import Geometry, Resolution, geometry_of
from firststep.theory.covariant_step import Push, Rows, frame_of, push_of, step_on
from firststep.theory.joint_law import RowParts
from firststep.theory.lengths import lengths_beside
from firststep.theory.own_component import OWN_WEIGHT, knows_own
from firststep.theory.step_law import SHORTEST_ROW, StepLaw

# Nodes of xi.
OWN_NODES = 3


def taught_share(problem: Problem, sizes: Sizes, step_sizes: Array) -> Array:
    r"""How much of a row's part along v is the step's and not its own, (S,).

    .. math:: \frac{|v|^2/N}{|v|^2/N + v^\top Sv/(d\,|v|^2)}

    Examples
    --------
    >>> problem, sizes = Problem("relu", "h1", inputs="power(0.6)"), Sizes(1000, 500, 750)
    >>> print(taught_share(problem, sizes, np.array([0.0, 2.0, 20.0])).round(3))
    [0.    0.246 0.97 ]
    """
    push = push_of(problem, sizes, step_sizes, "none", np.ones(1), np.ones(1))
    length, vectors, _ = frame_of(push)
    share = push.profiles.product(vectors[:, 0] * push.profiles.values, vectors[:, 0]) / sizes.dim
    size = length**2 / float(sizes.width)
    return np.asarray(size / (size + share))


@dataclass(frozen=True)
class KnownRows:
    r"""One step on such rows, leading axis S.

    Attributes
    ----------
    law : StepLaw
        What is random beside the known component.
    parts : RowParts
        Variances along eigenvectors, as if nothing were known.
    vectors : ndarray (S, p, G, L)
        Special directions: v first, what S v has beside the others last.
    taken : ndarray (S, lengths, G, L)
        :math:`s = S v/\sqrt{v^\top S v}` for rows of each length, along which the known part lies.
    length : ndarray of int (nu,)
        Which of these lengths a neuron has.
    scales : ndarray (3, S, nu)
        Square of what a step leaves of that part, relative to s^2, its product with kU, by which M turns it, and the
        square of that.
    turned : ndarray (S, p + 1)
        :math:`S^gMs`, of the middle length, in the special directions, and what it has beside them.
    """

    law: StepLaw
    parts: RowParts
    vectors: Array
    taken: Array
    length: NDArray[np.intp]
    scales: Array
    turned: Array

    def take(self, index: NDArray[np.intp]) -> "KnownRows":
        """Of some step sizes, in another order; the law of the rows, which the tables contain, stays."""
        return replace(
            self,
            parts=self.parts.take(index),
            vectors=self.vectors[index],
            taken=self.taken[index],
            scales=self.scales[:, index],
            turned=self.turned[index],
        )


def known_geometry(
    problem: Problem, sizes: Sizes, resolution: Resolution, rest: str, highest: int
) -> tuple[Geometry, Array]:
    """Nodes of neurons that are known by their readout, their length where that matters, and xi; and xi, (nu,)."""
    lengths = knows_own(problem, sizes, highest, rest)
    geometry = geometry_of(problem, sizes, resolution, rest, 0, highest, lengths)
    geometry = _beside(geometry) if lengths else _likely(geometry)
    xi, weights = gauss_hermite(OWN_NODES)
    count = len(geometry.u)
    opened = replace(
        geometry,
        u=np.repeat(geometry.u, OWN_NODES),
        u_weights=np.outer(geometry.u_weights, weights).ravel(),
        psi=np.ones((1, count * OWN_NODES)),
        lengths=None if geometry.lengths is None else np.repeat(geometry.lengths, OWN_NODES),
    )
    return opened, np.tile(xi, count)


def _likely(geometry: Geometry) -> Geometry:
    """Without readouts that hardly a neuron has."""
    kept = geometry.u_weights > OWN_WEIGHT
    weights = geometry.u_weights[kept] / geometry.u_weights[kept].sum()
    return replace(
        geometry,
        u=geometry.u[kept],
        readout=geometry.u[kept],
        u_weights=weights,
        psi=np.ones((1, int(kept.sum()))),
    )


def _beside(geometry: Geometry) -> Geometry:
    """The same nodes with lengths beside the direction of the step, whatever its size."""
    problem, sizes = geometry.problem, geometry.sizes
    push = push_of(problem, sizes, np.zeros(1), "none", np.ones(1), np.ones(1))
    vector = push.direction / np.sqrt(push.profiles.product(push.direction, push.direction))
    rule = lengths_beside(problem, sizes.dim, (vector**2 * push.profiles.masses).sum(axis=0) / sizes.dim)
    readouts, count = len(geometry.readout), len(rule.weights)
    weights = geometry.u_weights.reshape(readouts, -1).sum(axis=1)
    return replace(
        geometry,
        u=np.repeat(geometry.readout, count),
        u_weights=np.outer(weights, rule.weights).ravel(),
        lengths=np.tile(rule.square, readouts),
        tilt=rule,
    )


def known_rows(geometry: Geometry, step_sizes: Array, rest: str, xi: Array) -> KnownRows:
    r"""One step on rows that have xi along v [firststep, joint law, eqs. 7-8].

    What is known of a row lies along :math:`s = Sv/\sqrt{v^\top Sv}`, and M, by its mean, turns it:

    .. math:: \frac{\xi}{\sqrt d}\,\big(1 + kU S^g\,E M\big)\,s
    """
    problem, sizes, u = geometry.problem, geometry.sizes, geometry.u
    rows = Rows.of(problem, sizes, step_sizes, rest, u, geometry.lengths, geometry.tilt)
    law = step_on(rows, problem, sizes, step_sizes, rest, geometry.law, neighbour=True)
    push = rows.push
    profiles, m = push.profiles, push.profiles.values
    vectors = frame_of(push, neighbour=True)[1]
    variances, turn, kept = rows.variances(m), push.turn * u, push.kept(m)
    square = np.ones_like(u) if geometry.lengths is None else geometry.lengths
    _, first, length = np.unique(square, return_index=True, return_inverse=True)
    along, each = vectors[:, :1], variances[:, first].T
    size = np.einsum("bqgl,gl,nl->bn", along**2, profiles.masses, each)
    taken = along * each[None, :, None] / np.sqrt(size)[..., None, None]
    left = np.einsum("bqgl,gl,blu->bu", along**2, profiles.masses, kept)
    middle = taken[:, [taken.shape[1] // 2]]
    turned = _turned(push, middle, vectors)
    mean = np.zeros((*turn.shape, vectors.shape[1] + 1))
    mean[..., :-1] = profiles.gram(taken, vectors)[:, length] * left[..., None]
    mean = mean + turned[:, None] * turn[..., None]
    known = mean * (xi / np.sqrt(sizes.dim))[:, None]
    whole = 1 + push.excess
    relative = whole[:, None]
    return KnownRows(
        law=_opened(law, known, size[:, length] / sizes.dim, xi, sizes.dim),
        parts=RowParts(
            values=m,
            shares=geometry.law.weights,
            power=push.power,
            begun=variances * kept**2 / relative,
            crossed=turn[:, None] * variances * kept / relative,
            turned=turn[:, None] ** 2 * variances / relative,
            noise=push.noise * u**2 / whole,
        ),
        vectors=vectors,
        taken=taken,
        length=np.asarray(length, dtype=np.intp),
        scales=np.stack([left**2, left * turn, turn**2]) / whole,
        turned=turned,
    )


def _turned(push: Push, known: Array, vectors: Array) -> Array:
    r""":math:`S^gMs` in the special directions and beside them, (S, p + 1), for s (S, 1, G, L).

    Its mean is :math:`e\cdot S^g\,E M\,s = E\big[y\,E[g\cdot S^ge\,|\,t, y]\,E[g\cdot s\,|\,t, y]\big]`, its scatter
    over the samples has the length :math:`(\phi_0\,Ey^2\,|s|^2\int m^{2g}\,\mathrm d\mu)^{1/2}`.
    """
    profiles, m = push.profiles, push.profiles.values
    lifted = profiles.seen(vectors * m**push.power) @ push.moments.first
    mean = profiles.seen(known) @ lifted.swapaxes(1, 2)
    square = profiles.product(known, known) * (profiles.masses[-1] @ m ** (2 * push.power))
    beside = np.sqrt(profiles.step_ratio * push.moments.square * square)
    return np.asarray(np.concatenate([mean[:, 0], beside], axis=1))


def _opened(law: StepLaw, known: Array, share: Array, xi: Array, dim: int) -> StepLaw:
    r"""The law of what is random, with the known part (S, nu, p + 1) among what neurons share.

    `share`, (S, nu), is what it takes of the squared length; what else knows xi is as on isotropic inputs
    [firststep, degrees, eq. 13]. Nothing random is left along the first direction, and along the last, what M makes of
    the known part, there never was.
    """
    whole, covariance, lean = 1 + law.excess, law.special_covariance, law.leaning[..., 0]
    along = covariance[..., 0, 0]
    square = whole - share + (xi**2 - 1) / dim * law.loosening + whole * lean * xi / np.sqrt(along * dim)
    leaning = law.leaning - covariance[..., :, 0] / along[..., None] * lean[..., None]
    leaning[..., 0] = 0.0
    shared, tilt = law.shared.copy(), known.copy()
    shared[..., 0] += known[..., 0] + np.sqrt(whole) * lean / 2 * xi**2 / dim
    tilt[..., 0] = 0.0
    vectors, extra = law.special_vectors.copy(), law.special_extra.copy()
    vectors[..., 0], extra[..., 0, :], extra[..., :, 0] = 0.0, 0.0, 0.0
    output = law.output_turn
    return replace(
        law,
        shared=shared,
        excess=np.maximum(square, SHORTEST_ROW**2) - 1,
        special_vectors=_longer(vectors, -1),
        special_extra=_longer(_longer(extra, -1), -2),
        asides=_longer(law.asides, -1),
        along=_longer(law.along, -1),
        output_turn=None if output is None else _longer(output, -2),
        leaning=_longer(leaning, -1),
        leaning_square=np.maximum(law.leaning_square - lean**2 / along, 0.0),
        tilt=tilt,
    )


def _longer(values: Array, axis: int) -> Array:
    """One more direction, with zeros."""
    width = [(0, 0)] * values.ndim
    width[axis] = (0, 1)
    return np.pad(values, width)
