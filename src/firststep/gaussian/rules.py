"""Hermite polynomials and quadrature rules for one Gaussian variable."""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Moments = tuple[Array, Array, Array]
Averages = tuple[Array, Array, Array, Array]
Elementwise = Callable[[Any], Any]
_ROOT_2PI = math.sqrt(2 * math.pi)
# phi(9) is 1e-18: averages of functions that grow slowly stop there, the others at a later entry.
_REACHES = (9.0, 13.0, 18.0, 25.0, 37.0)
# Coefficients need sqrt(phi) small instead (3e-19 at 13), because only h_k sqrt(phi) is bounded for every k.
_COEFFICIENT_REACHES = _REACHES[1:]
_PANEL_NODES = 24
_BLOCK = 1 << 15


def hermite_polynomials(x: ArrayLike, count: int, normalised: bool = False) -> Array:
    r"""Hermite polynomials :math:`H_0, \dots, H_{count-1}` at the given points.

    .. math:: H_{k+1}(x) = x H_k(x) - k H_{k-1}(x), \qquad h_k = H_k/\sqrt{k!}

    Parameters
    ----------
    x : array_like
        Points, of any shape.
    count : int
        How many polynomials, starting with degree 0.
    normalised : bool
        Give :math:`h_k`, which stay in range up to any degree, instead of :math:`H_k`.

    Returns
    -------
    ndarray of shape (count, \*x.shape)

    Examples
    --------
    >>> hermite_polynomials(2.0, 4).tolist()
    [1.0, 2.0, 3.0, 2.0]
    """
    points = np.asarray(x, dtype=np.float64)
    values = np.empty((count, *points.shape))
    values[:1] = 1.0
    values[1:2] = points
    for k in range(1, count - 1):
        if normalised:
            values[k + 1] = (points * values[k] - math.sqrt(k) * values[k - 1]) / math.sqrt(k + 1)
        else:
            values[k + 1] = points * values[k] - k * values[k - 1]
    return values


def monomial_in_hermite(count: int) -> Array:
    r"""Coefficients :math:`\xi_{k,i}` of the monomials in Hermite polynomials.

    .. math:: z^k = \sum_i \xi_{k,i} H_i(z)

    Parameters
    ----------
    count : int
        Number of monomials, starting with degree 0.

    Returns
    -------
    ndarray of shape (count, count)

    Examples
    --------
    >>> monomial_in_hermite(4)[3].tolist()
    [0.0, 3.0, 0.0, 1.0]
    """
    xi = np.zeros((count, count))
    xi[:1, :1] = 1.0
    for k in range(count - 1):
        xi[k + 1, 1:] += xi[k, :-1]
        xi[k + 1, :-1] += np.arange(1, count) * xi[k, 1:]
    return xi


@lru_cache(maxsize=64)
def gauss_hermite(count: int) -> tuple[Array, Array]:
    r"""Gauss–Hermite rule: nodes and probability weights, kept and read-only.

    .. math:: E f(Z) \approx \sum_i w_i f(z_i), \quad \text{exact for polynomials of degree below } 2\,count

    Parameters
    ----------
    count : int
        Number of nodes, at least 1; weights stay finite up to 1000 and beyond.

    Returns
    -------
    tuple of ndarray
        Nodes and weights, each of shape (count,).

    Examples
    --------
    >>> nodes, weights = gauss_hermite(3)
    >>> round(float(weights @ nodes**4), 12)
    3.0
    """
    if count < 1:
        raise ValueError(f"a Gauss–Hermite rule needs at least one node, got count={count}")
    if count <= 100:
        # Right to 1e-13 up to here, and without the import of SciPy.
        nodes, weights = hermegauss(count)
    else:
        from scipy.special import roots_hermitenorm

        nodes, weights = roots_hermitenorm(count)
    rule = np.asarray(nodes), np.asarray(weights / weights.sum())
    for array in rule:
        array.setflags(write=False)
    return rule


def _from_recurrence(diagonal: Array, beside: Array) -> tuple[Array, Array]:
    """Gauss rule of orthonormal polynomials from their three-term recurrence [GW69]."""
    nodes, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    return nodes, np.asarray(vectors[0] ** 2)


@lru_cache(maxsize=64)
def sphere_rule(count: int, dim: int) -> tuple[Array, Array]:
    r"""Gauss rule for one coordinate of a uniform vector of length :math:`\sqrt d`, with probability weights.

    Its density is :math:`(1 - \xi^2/d)^{(d-3)/2}`, that of Gegenbauer's polynomials; for large d it is Gaussian.

    Examples
    --------
    >>> nodes, weights = sphere_rule(4, 30)
    >>> print(f"{weights @ nodes**2:.6f} {weights @ nodes**4:.6f} {3 / (1 + 2 / 30):.6f}")
    1.000000 2.812500 2.812500
    """
    k, half = np.arange(2, count), dim / 2 - 1
    squares = k * (k + 2 * half - 1) / (4 * (k + half) * (k + half - 1))
    # The first entry in a form that is no 0/0 for a circle.
    beside = np.sqrt(dim * np.concatenate([[1 / dim], squares])[: count - 1])
    nodes, weights = _from_recurrence(np.zeros(count), beside)
    # Symmetric to the last bit, as is the law.
    return (nodes - nodes[::-1]) / 2, (weights + weights[::-1]) / 2


@lru_cache(maxsize=64)
def length_rule(count: int, dim: int) -> tuple[Array, Array]:
    r"""Gauss rule for :math:`|w|^2` of a vector of d Gaussians of variance 1/d, with probability weights.

    Examples
    --------
    >>> nodes, weights = length_rule(3, 30)
    >>> print(f"{weights @ nodes:.6f} {weights @ (nodes - 1)**2:.6f} {2 / 30:.6f}")
    1.000000 0.066667 0.066667
    """
    k, shape = np.arange(count), dim / 2 - 1
    nodes, weights = _from_recurrence(np.asarray(2.0 * k + shape + 1), np.sqrt(k[1:] * (k[1:] + shape)))
    return 2 * nodes / dim, weights


def expectation(
    f: Callable[[Array], ArrayLike], kinks: Iterable[float] = (), *, tolerance: float = 1e-12
) -> float:
    r"""Gaussian average :math:`E f(Z)` of any vectorised function, by panels split at its kinks.

    Panels of 24 Gauss–Legendre nodes are halved until two levels agree; the last levels crowd towards the
    kinks, for functions such as :math:`\sqrt{|x|}`.

    Parameters
    ----------
    f : callable
        Elementwise function of an array.
    kinks : iterable of float
        Points where f or one of its derivatives jumps.
    tolerance : float
        Wanted agreement, relative to the larger of 1 and the average.

    Returns
    -------
    float

    Examples
    --------
    >>> print(f"{expectation(np.abs, kinks=[0.0]):.12f}")
    0.797884560803
    """
    breaks = tuple(float(k) for k in kinks)

    def values(nodes: Array) -> Array:
        with np.errstate(all="ignore"):
            result = np.asarray(f(nodes), dtype=np.float64)
        if not np.isfinite(result).all():
            where = nodes[~np.isfinite(np.broadcast_to(result, nodes.shape))][0]
            raise ValueError(f"the function is not finite at x = {where:.3g}, so it has no Gaussian average")
        return result

    for reach in _COEFFICIENT_REACHES:
        previous, before_graded = math.nan, False
        for width, graded in _LEVELS:
            nodes, weights = _panels(breaks, reach, width, graded)
            integrand = values(nodes) * _density(nodes)
            value = float(integrand @ weights)
            if graded == before_graded and abs(value - previous) <= tolerance * max(1.0, abs(value)):
                break
            previous, before_graded = value, graded
        else:
            raise ValueError(
                f"the Gaussian average did not settle to {tolerance:g}: it does not exist, or the function"
                " has kinks that were not declared"
            )
        if max(abs(integrand[0]), abs(integrand[-1])) <= 0.01 * tolerance * max(1.0, abs(value)):
            return value
    raise ValueError("the function grows too fast: it has no Gaussian average")


# Panel widths tried in turn, first even ones and then ones that crowd towards the kinks.
_LEVELS = tuple((2.0**-i, False) for i in range(6)) + tuple((2.0**-i, True) for i in range(1, 5))


@lru_cache(maxsize=64)
def _unit_rule(panels: int, graded: bool) -> tuple[Array, Array]:
    """Composite Gauss–Legendre rule on [0, 1]; graded, after v -> I_v(5, 5), which is flat at the ends."""
    unit, unit_weights = np.polynomial.legendre.leggauss(_PANEL_NODES)
    nodes = ((np.arange(panels)[:, None] + (unit + 1) / 2) / panels).ravel()
    weights = np.tile(unit_weights / (2 * panels), panels)
    if graded:
        from scipy import special

        weights = weights * (nodes * (1 - nodes)) ** 4 / special.beta(5, 5)
        nodes = special.betainc(5, 5, nodes)
    return np.asarray(nodes), np.asarray(weights)


def _panels(breaks: Iterable[float], reach: float, width: float, graded: bool = False) -> tuple[Array, Array]:
    """Nodes and weights for dx on [-reach, reach], in pieces between the breaks."""
    edges = [-reach, *sorted({b for b in breaks if -reach < b < reach}), reach]
    nodes, weights = [], []
    for left, right in pairwise(edges):
        unit, unit_weights = _unit_rule(math.ceil((right - left) / width), graded)
        # A graded node may round to the kink itself, where log|x| is not finite.
        inside = math.nextafter(left, right), math.nextafter(right, left)
        nodes.append(np.clip(left + (right - left) * unit, *inside))
        weights.append((right - left) * unit_weights)
    return np.concatenate(nodes), np.concatenate(weights)


def _density(x: Array) -> Array:
    return np.asarray(np.exp(-0.5 * x * x) / _ROOT_2PI)
