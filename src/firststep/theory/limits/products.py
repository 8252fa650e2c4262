r"""Laws of products of eigenvalues: the levels of each Hermite degree under a covariance [firststep, covariance].

A direction :math:`(i_1 \dots i_p)` of degree p has the variance :math:`m_{i_1}\cdots m_{i_p}`. Among all of them the
products follow the multiplicative convolution of the eigenvalues' law with itself; in the few that the labels depend
on they follow a matrix-valued law, the symmetric power of that of the first degree.
"""

import math
from dataclasses import dataclass

import numpy as np

from firststep.gaussian import Array
from firststep.setting import Covariance
from firststep.theory.spread import split_off

# Levels of a product's law; neighbours are put together at their mean. Degree one keeps all eigenvalues.
MOST_LEVELS = 96


@dataclass(frozen=True)
class MatrixLaw:
    """A matrix-valued law: at each value a positive matrix, which sum to the identity.

    Attributes
    ----------
    values : ndarray (levels,)
        Eigenvalues, or products of them.
    masses : ndarray (levels, M, M)
        What the special directions have of each.
    """

    values: Array
    masses: Array

    def grouped(self, most: int = MOST_LEVELS) -> "MatrixLaw":
        """At most so many values: equal ones together, then neighbours at their mean."""
        values, masses = self.values, self.masses
        trace = np.einsum("laa->l", masses)
        order = np.argsort(values)
        values, masses, trace = values[order], masses[order], trace[order]
        new = np.diff(np.log(values), prepend=-math.inf) > 1e-12
        if new.sum() > most:
            edges = np.linspace(math.log(values[0]), math.log(values[-1]), most + 1)[1:-1]
            new = np.diff(np.searchsorted(edges, np.log(values)), prepend=-1) > 0
        starts = np.flatnonzero(new)
        mass = np.add.reduceat(trace, starts)
        plain = np.add.reduceat(values, starts) / np.diff(starts, append=len(values))
        weighted = np.add.reduceat(trace * values, starts)
        means = np.where(mass > 0, weighted / np.where(mass > 0, mass, 1.0), plain)
        return MatrixLaw(means, np.add.reduceat(masses, starts, axis=0))


def scalar_laws(covariance: Covariance, highest: int) -> list[tuple[Array, Array]]:
    """Products of 1 … P eigenvalues and their shares among the directions, each of mean one.

    Examples
    --------
    >>> import numpy as np
    >>> levels = Covariance(np.array([1.5, 0.5]), np.array([5, 5]), np.array([0.5, 0.5]), True)
    >>> values, shares = scalar_laws(levels, 2)[1]
    >>> values.tolist(), shares.tolist()
    ([0.25, 0.75, 2.25], [0.25, 0.5, 0.25])
    """
    first = MatrixLaw(covariance.values, covariance.shares[:, None, None])
    return [(law.values, law.masses[:, 0, 0]) for law in symmetric_powers(first, highest)]


def symmetric_powers(first: MatrixLaw, highest: int) -> list[MatrixLaw]:
    """The laws of degrees 1 … P between normalised monomials of the special directions, from that of the first."""
    found, factor = [first], first.grouped()
    for p in range(2, highest + 1):
        before = factor if p == 2 else found[-1]
        into = split_off(first.masses.shape[1], p)
        values = np.multiply.outer(factor.values, before.values).ravel()
        masses = np.einsum("lab,kij->lkaibj", factor.masses, before.masses, optimize=True)
        size = into.shape[1]
        masses = into @ masses.reshape(len(values), size, size) @ into.T
        found.append(MatrixLaw(values, masses).grouped())
    return found
