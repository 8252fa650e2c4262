r"""Every Hermite degree is a sector of its own: how many directions it has, their law, and the special ones among them.

Given the coordinates zeta and the neuron's U, the part of degree p of a feature is a bilinear form between the
traceless parts of :math:`w^{\otimes p}` and :math:`x^{\otimes p}`, which have

.. math:: D_p = \binom{d+p-1}{p} - \binom{d+p-3}{p-2}

directions [firststep, degrees, eq. 1]. A direction :math:`(i_1 \dots i_p)` has the variance of a product.
"""

import math
import numbers
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations_with_replacement, permutations

import numpy as np

from firststep.gaussian import Array
from firststep.setting import Sizes

# A degree whose directions outnumber samples and neurons by more than this changes no error by a thousandth.
NEGLIGIBLE_SHARE = 1.5e-3
# Degrees beyond this count as noise, whatever the sizes.
HIGHEST = 6


def directions(dim: float, degree: int) -> float:
    """D_p, directions of degree p in d dimensions; one or more.

    Examples
    --------
    >>> directions(40, 1), directions(40, 2), directions(40, 3)
    (40.0, 819.0, 11440.0)
    """
    if degree == 1:
        return float(dim)
    return max(_binomial(dim + degree - 1, degree) - _binomial(dim + degree - 3, degree - 2), 1.0)


def _binomial(top: float, bottom: int) -> float:
    value = 1.0
    for i in range(bottom):
        value *= (top - i) / (i + 1)
    return value


def norm_share(degree: int, dim: int) -> float:
    """Share of h_p(g) that is the norm of x times degree p - 2: p (p - 1)/(2 d) [firststep, degrees, eq. 7]."""
    return min(degree * (degree - 1) / (2 * dim), 1.0)


def degree_shares(sizes: Sizes, count: int = HIGHEST + 1) -> Array:
    """max(n, N)/D_p for p = 1 … count: how much of each degree is within reach of the fit."""
    most = max(sizes.n_samples, sizes.width)
    return np.array([most / directions(sizes.dim, p) for p in range(1, count + 1)])


def highest_degree(sizes: Sizes) -> int:
    """P, the highest degree that samples or neurons resolve; all above it are noise [firststep, degrees, eq. 2].

    Examples
    --------
    >>> highest_degree(Sizes(1000, 500, 750)), highest_degree(Sizes(1500, 40, 1000))
    (2, 4)
    """
    shares = degree_shares(sizes, HIGHEST)
    return max(1, int((shares > NEGLIGIBLE_SHARE).sum()))


def chosen_degree(sizes: Sizes, degrees: int | None) -> int:
    """P as asked for, or as `highest_degree` has it."""
    if degrees is None:
        return highest_degree(sizes)
    if isinstance(degrees, bool) or not isinstance(degrees, numbers.Integral) or not 1 <= degrees <= HIGHEST:
        raise ValueError(f"degrees must be a whole number from 1 to {HIGHEST}, got {degrees!r}")
    return int(degrees)


@lru_cache(maxsize=64)
def product_levels(count: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """Unordered choices of `degree` among `count` levels."""
    return tuple(combinations_with_replacement(range(count), degree))


def product_weights(weights: Array, degree: int) -> Array:
    """Probability of each unordered choice when the factors are drawn independently; they sum to one."""
    found = []
    for chosen in product_levels(len(weights), degree):
        orders = math.factorial(degree)
        for level in set(chosen):
            orders //= math.factorial(chosen.count(level))
        found.append(orders * math.prod(float(weights[i]) for i in chosen))
    return np.array(found)


def thinned(nodes: Array, weights: Array, count: int) -> tuple[Array, Array]:
    """Gauss quadrature with at most `count` nodes of a law given by many: its first 2 count - 1 moments are kept."""
    if len(nodes) <= count:
        return nodes, weights
    basis = [np.sqrt(weights)]
    jacobi = np.zeros((count, count))
    for k in range(count):
        fresh = nodes * basis[k]
        jacobi[k, k] = fresh @ basis[k]
        for _ in range(2):
            for known in basis:
                fresh = fresh - (fresh @ known) * known
        size = float(np.linalg.norm(fresh))
        if k + 1 == count:
            break
        if size < 1e-12 * max(1.0, float(np.abs(nodes).max())):
            jacobi = jacobi[: k + 1, : k + 1]
            break
        jacobi[k, k + 1] = jacobi[k + 1, k] = size
        basis.append(fresh / size)
    values, vectors = np.linalg.eigh(jacobi)
    return values, vectors[0] ** 2


@lru_cache(maxsize=64)
def monomials(count: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """Multi-indices of total degree `degree` over `count` special directions."""
    chosen = combinations_with_replacement(range(count), degree)
    return tuple(tuple(each.count(i) for i in range(count)) for each in chosen)


@lru_cache(maxsize=64)
def _pairings(count: int, degree: int) -> list[tuple[int, int, Array, Array]]:
    """For pairs of monomials the products of entries whose sum is the symmetric power's entry, with their factors."""
    found = []
    chosen = list(combinations_with_replacement(range(count), degree))
    for i, left in enumerate(chosen):
        for j, right in enumerate(chosen[: i + 1]):
            norm = math.sqrt(
                math.prod(math.factorial(left.count(a)) for a in range(count))
                * math.prod(math.factorial(right.count(a)) for a in range(count))
            )
            ways = Counter(tuple(sorted(zip(left, order, strict=True))) for order in permutations(right))
            found.append((i, j, np.array(list(ways.values())) / norm, np.array(list(ways))))
    return found


def symmetric_power(matrix: Array, degree: int) -> Array:
    r"""Covariance of normalised products of degree p of Gaussians with covariance c, (…, M, M) [firststep, degrees].

    .. math:: E[h_a(w) h_b(w)] = \frac{1}{\sqrt{a!\,b!}} \sum_\pi \prod_i c_{a_i b_{\pi(i)}}, \qquad |a| = |b| = p

    Examples
    --------
    >>> symmetric_power(np.array([[2.0, 0.0], [0.0, 3.0]]), 2).diagonal().tolist()
    [4.0, 6.0, 9.0]
    """
    if degree == 1:
        return matrix
    count = matrix.shape[-1]
    size = len(monomials(count, degree))
    result = np.zeros((*matrix.shape[:-2], size, size), dtype=matrix.dtype)
    for i, j, factors, orders in _pairings(count, degree):
        entries = matrix[..., orders[..., 0], orders[..., 1]]
        result[..., i, j] = result[..., j, i] = entries.prod(axis=-1) @ factors
    return result


def block_indices(count: int, highest: int, extra: Sequence[tuple[int, ...]] = ()) -> list[tuple[int, ...]]:
    """Multi-indices b, up to a total degree, of the functions f(zeta) h_b(g) that labels are expanded in."""
    found = [index for degree in range(highest + 1) for index in monomials(count, degree)]
    return found + [index for index in extra if index not in found]
