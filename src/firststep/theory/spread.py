r"""Products of special coordinates under a covariance: spread over directions of different variance [firststep].

A direction :math:`(i_1 \dots i_p)` of degree p has the variance :math:`c(U, m_{i_1})\cdots c(U, m_{i_p})`. A product of
special coordinates has a part in many of them and is learned in each at its own rate, so that it is known by a
matrix-valued law, the symmetric power of that of the first degree.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np

from firststep.gaussian import Array
from firststep.theory.sectors import monomials

# Groups of like variances in a factor, in products of degree 2, 3, 4, 5 and 6, and in the products.
FACTOR_GROUPS = {2: 24, 3: 6, 4: 4, 5: 3, 6: 3}
PRODUCT_GROUPS = 30
# Variances closer than this are alike.
ALIKE = 1e-6

Product = Callable[[Array, Sequence[tuple[int, ...]]], Array]


@dataclass(frozen=True)
class Spread:
    """A matrix-valued law by its nodes, leading axis S.

    Attributes
    ----------
    vectors : ndarray (S, J, M)
        Outer products of these are the law's weights.
    stretch : ndarray (S, J, nu)
        Variance at each node.
    """

    vectors: Array
    stretch: Array

    @property
    def covariance(self) -> Array:
        """Covariance between the directions, (S, nu, M, M)."""
        return np.asarray(np.einsum("bju,bja,bjc->buac", self.stretch, self.vectors, self.vectors))

    def power(self, degree: int, groups: int, product: "Product | None" = None) -> "Spread":
        """The law between normalised monomials of a degree in these directions, with factors in so many groups.

        `product` makes variances of products from those of the factors; by default they are multiplied.

        Examples
        --------
        >>> first = Spread(np.sqrt([[[0.5], [0.5]]]), np.array([[[2.0], [1.0]]]))
        >>> np.round(first.power(2, 6).covariance, 6).ravel().tolist()
        [2.25]
        """
        outer = self.vectors[..., :, None] * self.vectors[..., None, :]
        masses, factors = _grouped(outer, self.stretch, groups)
        count, size = masses.shape[1:3]
        found: dict[tuple[int, ...], Array] = {(g,): masses[:, g] for g in range(count)}
        for p in range(2, degree + 1):
            into, before, found = split_off(size, p), found, {}
            for chosen in combinations_with_replacement(range(count), p):
                parts = [
                    np.einsum("sab,sij->saibj", masses[:, g], before[_without(chosen, g)])
                    for g in sorted(set(chosen))
                ]
                whole = np.sum(parts, axis=0).reshape(len(masses), into.shape[1], into.shape[1])
                found[chosen] = into @ whole @ into.T
        stretch = (product or multiplied)(factors, list(found))
        whole, stretch = _grouped(np.stack(list(found.values()), axis=1), stretch, PRODUCT_GROUPS)
        values, vectors = np.linalg.eigh(whole)
        vectors = (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]).swapaxes(2, 3)
        flat = vectors.reshape(len(vectors), -1, vectors.shape[-1])
        return Spread(flat, np.repeat(stretch, vectors.shape[2], axis=1))


def _grouped(masses: Array, stretch: Array, most: int) -> tuple[Array, Array]:
    """Matrices of weight (S, J, M, M) and variances (S, J, nu), neighbours put together into at most so many groups."""
    size = np.log(stretch.mean(axis=(0, 2)))
    edges = np.linspace(size.min(), size.max() + ALIKE, most + 1)[1:-1]
    group = np.searchsorted(edges, size)
    weight, together, means = np.einsum("bjaa->bj", masses) + 1e-300, [], []
    for g in np.unique(group):
        here = group == g
        together.append(masses[:, here].sum(axis=1))
        mean = (weight[:, None, here] @ stretch[:, here])[:, 0]
        means.append(mean / weight[:, here].sum(axis=1)[:, None])
    return np.stack(together, axis=1), np.stack(means, axis=1)


def multiplied(factors: Array, chosen: Sequence[tuple[int, ...]]) -> Array:
    """Products of chosen factors (S, G, nu), (S, J, nu)."""
    return np.stack([factors[:, list(c)].prod(axis=1) for c in chosen], axis=1)


def _without(chosen: tuple[int, ...], one: int) -> tuple[int, ...]:
    """A choice with one of its members taken out."""
    at = chosen.index(one)
    return chosen[:at] + chosen[at + 1 :]


@lru_cache(maxsize=64)
def split_off(count: int, degree: int) -> Array:
    r"""Normalised monomials of a degree as one factor times monomials of the degree below, (M_p, count M_{p-1}).

    .. math:: |p, \alpha\rangle = \sum_i \sqrt{\alpha_i/p}\;|i\rangle\,|p - 1, \alpha - 1_i\rangle
    """
    above, below = monomials(count, degree), monomials(count, degree - 1)
    into = np.zeros((len(above), count, len(below)))
    for row, index in enumerate(above):
        for i in range(count):
            if index[i]:
                rest = tuple(x - (j == i) for j, x in enumerate(index))
                into[row, i, below.index(rest)] = math.sqrt(index[i] / degree)
    return into.reshape(len(above), -1)
