r"""Special directions of a step under any covariance and any number of teacher directions [firststep, covariance].

In whitened coordinates a special vector is a sum of functions of the covariance applied to a few generators:
the teacher's directions :math:`\theta_a`, the noise :math:`\hat w` of the step direction, the initial output's
:math:`W_0^\top a`, a loud eigenvector. It is stored as the values of these functions at the distinct eigenvalues, an
array (…, generators, levels).
"""

from dataclasses import dataclass

import numpy as np

from firststep.gaussian import Array
from firststep.setting import Covariance


@dataclass(frozen=True)
class Profiles:
    """Scalar products of special vectors given by their profiles.

    Attributes
    ----------
    values : ndarray (levels,)
        Eigenvalues m.
    masses : ndarray (G, levels)
        Spectral weights of the generators: nu for the teacher's directions, mu for typical ones.
    known : ndarray (K, G, levels)
        Orthonormal vectors whose coordinates decide a step sample's label: the teacher's directions, then that of an
        initial output of order one.
    scatter : ndarray (G, levels)
        w^, the direction of the step's noise.
    step_ratio : float
        phi_0 = d/n0.
    noise : float
        f, the squared norm of w~.
    """

    values: Array
    masses: Array
    known: Array
    scatter: Array
    step_ratio: float
    noise: float

    def product(self, left: Array, right: Array) -> Array:
        """Scalar products, (…)."""
        return np.asarray((left * right * self.masses).sum(axis=(-2, -1)))

    def gram(self, left: Array, right: Array) -> Array:
        """Scalar products of all pairs, (…, p, q)."""
        return np.asarray(np.einsum("...iam,...jam,am->...ij", left, right, self.masses))

    def seen(self, vector: Array) -> Array:
        r"""What a step sample shows of x·g: its coefficients on the known coordinates and the label, (…, K + 1).

        .. math:: E[x\\cdot g\\,|\\,t, y] = \\sum_a L_a t_a + \\phi_0 L_w y
        """
        rate = self.step_ratio / np.sqrt(self.noise) if self.noise > 0 else 0.0
        means = np.einsum("...am,kam,am->...k", vector, self.known, self.masses)
        label = rate * self.product(vector, self.scatter)
        return np.concatenate([means, label[..., None]], axis=-1)

    def orthonormal(self, *groups: Array) -> Array:
        """Unit vectors: those of the first group (…, L, G, levels), then what is left of the others beside them."""
        found: list[Array] = []
        for which in groups:
            for i in range(which.shape[-3]):
                vector = which[..., i, :, :]
                for _ in range(2):
                    for known in found:
                        vector = vector - self.product(known, vector)[..., None, None] * known
                size = np.sqrt(self.product(vector, vector))[..., None, None]
                found.append(np.where(size > 1e-9, vector / np.maximum(size, 1e-300), 0.0))
        return np.stack(np.broadcast_arrays(*found), axis=-3)


# Levels by which a covariance of many different eigenvalues is seen; they move errors by less than a thousandth.
MOST_LEVELS = 40


def grouped(covariance: Covariance) -> tuple[Array, Array, Array]:
    """Eigenvalues, their shares and the teacher's weights, neighbours of a long list put together at their mean."""
    values, shares, weights = covariance.values, covariance.shares, covariance.weights
    if len(values) <= MOST_LEVELS:
        return values, shares, weights
    edges = np.linspace(np.log(values[-1]), np.log(values[0]), MOST_LEVELS + 1)[1:-1]
    group = np.searchsorted(edges, np.log(values))
    index = np.unique(group, return_inverse=True)[1]
    mass = np.asarray(np.bincount(index, shares), dtype=np.float64)
    means = np.asarray(np.bincount(index, shares * values) / mass)
    order = np.argsort(-means)
    return means[order], mass[order], np.asarray(np.bincount(index, weights), dtype=np.float64)[order]


@dataclass(frozen=True)
class LabelMoments:
    """Averages of labels with the known coordinates: `moment(k)[a, b]` = E[y^k t_a t_b], the label itself last.

    The last index is y, less the initial output, so that E[y^3 t_a] is ``second[a, -1]``.
    """

    first: Array  # E[y x x'], (K + 1, K + 1)
    second: Array  # E[y^2 x x']
    square: float  # E y^2


def turned_covariance(
    profiles: Profiles, moments: LabelMoments, vectors: Array, power: float, rows: Array | None = None
) -> tuple[Array, Array, Array]:
    r"""Covariance of the rows in special directions, as coefficients of 1, kU and (kU)^2 [firststep, covariance].

    .. math:: S, \quad S^g M S + S M S^g, \quad S^g M S M S^g, \qquad M = \tfrac{1}{n_0}\sum_i y_i\, g_i g_i^\top

    between the unit vectors (…, p, G, levels); `power` is g: 1 for a gradient step, 0 for a whitened one; `rows` is
    what stands in the place of S inside, the variances of rows of a known length. With
    :math:`\mu_x = E[x\cdot g|t,y]` a form of M is :math:`E[y\mu_x\mu_{x'}]`, and one of M S M, with the known
    directions k_a, :math:`\sum_{ab} E[y\mu_x t_a]\,k_a\cdot S k_b\,E[y\mu_{x'}t_b] + \phi_0 E[y^2 (x\cdot
    g)(x'\cdot g)]`.
    """
    m, rows = profiles.values, profiles.values if rows is None else rows
    plain = profiles.gram(vectors * rows, vectors)
    left = profiles.seen(vectors * m**power)
    right = profiles.seen(vectors * rows)
    cross = left @ moments.first @ right.swapaxes(-1, -2)
    linear = cross + cross.swapaxes(-1, -2)
    # E[y mu_x t_a] for each known direction, and the scatter over samples.
    towards = left @ moments.first[:, :-1]
    own = towards @ profiles.gram(profiles.known * rows, profiles.known) @ towards.swapaxes(-1, -2)
    spread = loud_covariance(profiles, moments, vectors * m**power)
    return plain, linear, own + profiles.step_ratio * moments.square * spread


def loud_covariance(profiles: Profiles, moments: LabelMoments, vectors: Array) -> Array:
    """E[y^2 (x·g)(x'·g)]/E y^2 between special vectors [firststep, unified, eq. 15]."""
    seen = profiles.seen(vectors)
    known = seen[..., :-1]
    fresh = profiles.gram(vectors, vectors) - known @ known.swapaxes(-1, -2)
    if moments.square == 0:
        return fresh
    return np.asarray(seen @ moments.second @ seen.swapaxes(-1, -2) / moments.square + fresh)
