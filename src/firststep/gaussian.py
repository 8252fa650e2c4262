"""Functions of one Gaussian variable: activations and teachers, their Hermite coefficients and averages.

Everything here is about ``f(Z)`` with ``Z ~ N(0, 1)`` and the probabilists' Hermite polynomials ``H_k``
(``H_0 = 1``, ``H_1 = z``, ``H_2 = z^2 - 1``), for which ``E H_j H_k = k! [j = k]``; ``h_k = H_k/sqrt(k!)``
are the normalised ones. Averages have closed forms where we know one; the others come from rules that are
refined until two levels agree, and a function for which they do not is refused.
"""

import ast
import difflib
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.polynomial import hermite_e
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]
Moments = tuple[Array, Array, Array]
Elementwise = Callable[[Any], Any]

__all__ = [
    "Array",
    "Function",
    "expectation",
    "function",
    "gauss_hermite",
    "hermite_polynomials",
    "monomial_in_hermite",
    "names",
]

LEAKY_SLOPE = 0.01
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
MAX_HERMITE_NAME = 20
MAX_STEEPNESS = 2000.0
MAX_KINKS = 64
MAX_RULE = 20_000
MAX_SERIES = 61
MAX_TEXT, MAX_DEPTH = 200, 50
MAX_EXPONENT, MAX_CONSTANT, MAX_COEFFICIENT, MAX_POLYNOMIAL = 20.0, 1e9, 1e60, 30

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
    nodes, weights = special.roots_hermitenorm(count)
    rule = np.asarray(nodes), np.asarray(weights / weights.sum())
    for array in rule:
        array.setflags(write=False)
    return rule


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


@dataclass(frozen=True, slots=True)
class _Shape:
    """An uncentred function and what is known of it in closed form.

    ``moments(s, t)`` are those of Function.gaussian_moments, ``product(v1, cov, v2)`` is E f(x1) f(x2),
    ``coefficients(s, count)`` has rows E[f(s g) h_k(g)], ``polynomial`` holds c_k, ``no_slope`` says why the
    function cannot be an activation.
    """

    value: Elementwise
    slope: Elementwise
    kinks: tuple[float, ...] = ()
    moments: Callable[[Array, Array], Moments] | None = None
    product: Callable[[Array, Array, Array], Array] | None = None
    coefficients: Callable[[Array, int], Array] | None = None
    polynomial: tuple[float, ...] | None = None
    no_slope: str = ""


def _ratio(scale: Array, shift: Array) -> Array:
    """t/s, with its limit for s = 0."""
    limit = np.where(shift == 0, 0.0, np.copysign(np.inf, shift))
    with np.errstate(over="ignore"):
        return np.divide(shift, scale, out=limit, where=scale > 0)


def _positive_powers(scale: Array, shift: Array, top: int) -> list[Array]:
    """E max(x, 0)^k for x = s g + t and k = 0 … top, by integration by parts."""
    ratio = _ratio(scale, shift)
    with np.errstate(over="ignore"):
        bump = scale * np.exp(-0.5 * ratio * ratio) / _ROOT_2PI
    powers = [np.asarray(special.ndtr(ratio))]
    powers.append(shift * powers[0] + bump)
    for k in range(2, top + 1):
        powers.append(shift * powers[-1] + (k - 1) * scale * scale * powers[-2])
    return powers


def _correlation(v1: Array, cov: Array, v2: Array) -> tuple[Array, Array]:
    """sqrt(v1 v2) and the correlation, clipped to [-1, 1], where rounding may have pushed it out."""
    size = np.sqrt(v1) * np.sqrt(v2)
    rho = cov / np.maximum(size, 1e-300)
    return size, np.clip(rho, -1.0, 1.0, out=rho) if rho.ndim else np.clip(rho, -1.0, 1.0)


def _abs_coefficients(count: int) -> Array:
    """E |g| h_k(g): sqrt(2/pi), then (-1)^(k/2-1) (k-3)!! sqrt(2/pi)/sqrt(k!) for even k, 0 for odd."""
    out = np.zeros(count)
    term = 2 / _ROOT_2PI
    out[:1] = term
    term /= math.sqrt(2)
    for k in range(2, count, 2):
        out[k] = term
        term *= -(k - 1) / math.sqrt((k + 1) * (k + 2))
    return out


def _leaky(slope: float) -> _Shape:
    """x above 0, a x below (relu: a = 0, abs: a = -1), which is (1+a)/2 x + (1-a)/2 |x|."""
    odd, even = (1 + slope) / 2, (1 - slope) / 2

    def value(x: Any) -> Any:
        if slope == -1:
            return np.abs(x)
        return np.maximum(x, slope * x) if slope else np.maximum(x, 0)

    def derivative(x: Any) -> Any:
        if slope == -1:
            return np.sign(x)
        step = (x > 0).astype(x.dtype)
        return step * (1 - slope) + slope if slope else step

    def moments(s: Array, t: Array) -> Moments:
        powers = _positive_powers(s, t, 2)
        return (
            slope * t + (1 - slope) * powers[1],
            s * (slope + (1 - slope) * powers[0]),
            slope**2 * (t * t + s * s) + (1 - slope**2) * powers[2],
        )

    def product(v1: Array, cov: Array, v2: Array) -> Array:
        size, rho = _correlation(v1, cov, v2)
        # The singularities of both terms at ±1 cancel, so that rounding of rho costs nothing there.
        kernel = rho * np.arcsin(rho) + np.sqrt((1 - rho) * (1 + rho))
        kernel *= size * (even * even * 2 / math.pi)
        return np.asarray(kernel + odd * odd * cov if odd else kernel)

    def coefficients(s: Array, count: int) -> Array:
        row = even * _abs_coefficients(count)
        row[1:2] = odd
        return np.asarray(np.multiply.outer(s, row))

    return _Shape(value, derivative, (0.0,), moments, product, coefficients)


def _relu2() -> _Shape:
    """max(x, 0)^2, by the arc-cosine kernel of degree two."""

    def moments(s: Array, t: Array) -> Moments:
        powers = _positive_powers(s, t, 4)
        return powers[2], 2 * s * powers[1], powers[4]

    def product(v1: Array, cov: Array, v2: Array) -> Array:
        _, rho = _correlation(v1, cov, v2)
        obtuse = math.pi - np.arccos(rho)
        kernel = 3 * rho * np.sqrt((1 - rho) * (1 + rho)) + obtuse * (1 + 2 * rho * rho)
        return np.asarray(kernel * (v1 * v2) / (2 * math.pi))

    def coefficients(s: Array, count: int) -> Array:
        row = np.zeros(count)
        row[:1] = 0.5
        relu = _abs_coefficients(count) / 2
        relu[1:2] = 0.5
        row[1:] = 2 * relu[:-1] / np.sqrt(np.arange(1, count))
        return np.asarray(np.multiply.outer(s * s, row))

    return _Shape(
        lambda x: np.square(np.maximum(x, 0)),
        lambda x: 2 * np.maximum(x, 0),
        (0.0,),
        moments,
        product,
        coefficients,
    )


def _sign() -> _Shape:
    def moments(s: Array, t: Array) -> Moments:
        ratio = _ratio(s, t)
        with np.errstate(over="ignore"):
            bump = np.where(s > 0, np.exp(-0.5 * ratio * ratio) * (2 / _ROOT_2PI), 0.0)
        return np.asarray(special.erf(ratio / math.sqrt(2))), bump, np.where((s > 0) | (t != 0), 1.0, 0.0)

    def product(v1: Array, cov: Array, v2: Array) -> Array:
        _, rho = _correlation(v1, cov, v2)
        # asin turns the last bit of a correlation of 1 into 1e-8, so that bit is taken off.
        return np.asarray((2 / math.pi) * np.arcsin(np.where(np.abs(rho) > 1 - 1e-15, np.sign(rho), rho)))

    def coefficients(s: Array, count: int) -> Array:
        row = np.sqrt(np.arange(1, count + 1)) * _abs_coefficients(count + 1)[1:]
        return np.asarray(np.multiply.outer(np.sign(s), row))

    reason = "sign can only be a teacher: its derivative is zero almost everywhere, so it passes no gradient"
    return _Shape(np.sign, np.zeros_like, (0.0,), moments, product, coefficients, None, reason)


def _erf() -> _Shape:
    """erf, by the arcsine kernel and Owen's T."""
    height = 2 / math.sqrt(math.pi)

    def moments(s: Array, t: Array) -> Moments:
        spread = np.sqrt(1 + 2 * s * s)
        ratio = t / spread
        return (
            np.asarray(special.erf(ratio)),
            height * s * np.exp(-ratio * ratio) / spread,
            1 - 8 * np.asarray(special.owens_t(math.sqrt(2) * ratio, 1 / np.sqrt(1 + 4 * s * s))),
        )

    def product(v1: Array, cov: Array, v2: Array) -> Array:
        return np.asarray((2 / math.pi) * np.arcsin(2 * cov / (np.sqrt(1 + 2 * v1) * np.sqrt(1 + 2 * v2))))

    def coefficients(s: Array, count: int) -> Array:
        out = np.zeros((s.size, count))
        spread = 1 + 2 * s * s
        term = height * s / np.sqrt(spread)
        for k in range(1, count, 2):
            out[:, k] = term
            term = term * (-2 * s * s / spread * k / math.sqrt((k + 1) * (k + 2)))
        return out

    return _Shape(special.erf, lambda x: height * np.exp(-x * x), (), moments, product, coefficients)


def _gelu() -> _Shape:
    """x Phi(x), all averages by integration by parts from those of Phi."""

    def slope(x: Any) -> Any:
        return special.ndtr(x) + x * np.exp(-0.5 * x * x) / _ROOT_2PI

    def moments(s: Array, t: Array) -> Moments:
        square = s * s
        spread = 1 + square
        ratio = t / np.sqrt(spread)
        below = np.asarray(special.ndtr(ratio))
        density = np.exp(-0.5 * ratio * ratio) / (_ROOT_2PI * np.sqrt(spread))
        inner = t / np.sqrt(spread * (1 + 2 * square))
        step = np.asarray(special.ndtr(inner))
        step_density = density * step
        step_slope = density * (
            t / spread * step
            + square / np.sqrt(spread * (1 + 2 * square)) * np.exp(-0.5 * inner * inner) / _ROOT_2PI
        )
        below2 = below - 2 * np.asarray(special.owens_t(ratio, 1 / np.sqrt(1 + 2 * square)))
        return (
            t * below + square * density,
            s * (below + density * t / spread),
            t * (t * below2 + 2 * square * step_density) + square * (below2 + 2 * step_slope),
        )

    def product(v1: Array, cov: Array, v2: Array) -> Array:
        p1, p2 = 1 + v1, 1 + v2
        angle = np.arcsin(cov / (np.sqrt(p1) * np.sqrt(p2)))
        square = cov * cov
        rest = (v1 * v2 - square + square / p1 + square / p2) / np.sqrt(p1 * p2 - square)
        return np.asarray(cov * (0.25 + angle / (2 * math.pi)) + rest / (2 * math.pi))

    def coefficients(s: Array, count: int) -> Array:
        out = np.zeros((s.size, count))
        square = s * s
        share = square / (1 + square)
        base = square / (_ROOT_2PI * np.sqrt(1 + square))
        out[:, :1] = base[:, None]
        out[:, 1:2] = (s / 2)[:, None]
        term = base / math.sqrt(2)
        for k in range(2, count, 2):
            out[:, k] = term * (k - (k - 1) * share)
            term = term * (-share * (k - 1) / math.sqrt((k + 1) * (k + 2)))
        return out

    return _Shape(lambda x: x * special.ndtr(x), slope, (), moments, product, coefficients)


def _wave(cosine: bool) -> _Shape:
    """sin or cos, by exponentials."""
    sign = 1.0 if cosine else -1.0

    def moments(s: Array, t: Array) -> Moments:
        damp = np.exp(-0.5 * s * s)
        value, slope = (np.cos(t), -np.sin(t)) if cosine else (np.sin(t), np.cos(t))
        return value * damp, s * slope * damp, 0.5 + 0.5 * sign * np.cos(2 * t) * damp**4

    def product(v1: Array, cov: Array, v2: Array) -> Array:
        half = 0.5 * (v1 + v2)
        return np.asarray(0.5 * (np.exp(cov - half) + sign * np.exp(-cov - half)))

    def coefficients(s: Array, count: int) -> Array:
        out = np.zeros((s.size, count))
        term = np.exp(-0.5 * s * s)
        for k in range(count):
            if k % 2 != cosine:
                out[:, k] = term if k % 4 < 2 else -term
            term = term * s / math.sqrt(k + 1)
        return out

    if cosine:
        return _Shape(np.cos, lambda x: -np.sin(x), (), moments, product, coefficients)
    return _Shape(np.sin, np.cos, (), moments, product, coefficients)


def _elu(scale: float, alpha: float) -> _Shape:
    """Scaled x above 0 and alpha (exp(x) - 1) below."""

    def value(x: Any) -> Any:
        return scale * np.maximum(x, 0) + (scale * alpha) * np.expm1(np.minimum(x, 0))

    def slope(x: Any) -> Any:
        return np.where(x > 0, x.dtype.type(scale), (scale * alpha) * np.exp(np.minimum(x, 0)))

    def moments(s: Array, t: Array) -> Moments:
        powers = _positive_powers(s, t, 2)
        ratio = _ratio(s, t)
        below = np.asarray(special.ndtr(-ratio))
        first = np.exp(t + s * s / 2 + special.log_ndtr(-ratio - s))
        second = np.exp(2 * t + 2 * s * s + special.log_ndtr(-ratio - 2 * s))
        return (
            scale * (powers[1] + alpha * (first - below)),
            scale * s * (powers[0] + alpha * first),
            scale**2 * (powers[2] + alpha**2 * (second - 2 * first + below)),
        )

    return _Shape(value, slope, (0.0,), moments)


def _logistic_averages(scale: Array, shift: Array, soft: bool) -> tuple[Array, Array]:
    """E g^p y and E g^p y^2, p = 0, 1, 2, of y = 1/(1+exp(-x)), or if soft log(1+exp(x)), at x = s g + t.

    The trapezoid rule in g with step h errs by exp(r^2/2 - 2 pi r/h) for every r below pi/s, the distance of
    the poles [TW14], so h follows from s. On its grid exp(x) is exp(t) times a vector that depends on s only,
    which keeps transcendental functions out of the inner loop.
    """
    reach = _REACHES[0]
    distinct, group = np.unique(scale, return_inverse=True)
    pole = np.minimum(0.95 * math.pi / np.maximum(distinct, 1e-300), 8.0)
    step = np.minimum(2 * math.pi * pole / (37 + 0.5 * pole * pole), 0.6)
    # Rounded up to one of few sizes, so that close scales share a grid.
    half = np.ceil(1.15 ** np.ceil(np.log(reach / step) / math.log(1.15))).astype(np.intp)
    first, second = np.empty((scale.size, 3)), np.empty((scale.size, 3))
    if scale.size == 0:
        return first, second
    if distinct[-1] > MAX_STEEPNESS:
        raise ValueError(
            f"the function is too steep to average: its scale is {distinct[-1]:.3g}, try sign instead"
        )
    direct = float(np.max(np.abs(shift) + reach * scale)) > 600
    sign = 1.0 if soft else -1.0
    for count in np.unique(half):
        nodes = np.linspace(-reach, reach, 2 * int(count) + 1)
        weights = _density(nodes) * (reach / count)
        columns = np.stack([weights, weights * nodes, weights * nodes * nodes], axis=1)
        members = np.flatnonzero(half[group] == count)
        place = np.cumsum(half == count) - 1
        factors = None if direct else np.exp(sign * np.multiply.outer(distinct[half == count], nodes))
        block = max(1, _BLOCK // nodes.size)
        for start in range(0, members.size, block):
            rows = members[start : start + block]
            if factors is None:
                x = np.multiply.outer(scale[rows], nodes) + shift[rows, None]
                values = _softplus(x) if soft else special.expit(x)
            else:
                values = factors[place[group[rows]]]
                values *= np.exp(sign * shift[rows])[:, None]
                values += 1.0
                if soft:
                    np.log(values, out=values)
                else:
                    np.reciprocal(values, out=values)
            first[rows] = values @ columns
            values *= values
            second[rows] = values @ columns
    return first, second


def _softplus(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _logistic_moments(name: str) -> Callable[[Array, Array], Moments]:
    """Moments of tanh, sigmoid, softplus or silu from those of the logistic function."""

    def moments(s: Array, t: Array) -> Moments:
        stretch = 2.0 if name == "tanh" else 1.0
        first, second = _logistic_averages(stretch * s.ravel(), stretch * t.ravel(), name == "softplus")
        y, yy = first.T.reshape(3, *s.shape), second.T.reshape(3, *s.shape)
        if name == "tanh":
            return 2 * y[0] - 1, 2 * y[1], 4 * (yy[0] - y[0]) + 1
        if name == "silu":
            return s * y[1] + t * y[0], s * y[2] + t * y[1], s * (s * yy[2] + 2 * t * yy[1]) + t * t * yy[0]
        return y[0], y[1], yy[0]

    return moments


def _tanh_slope(x: Any) -> Any:
    value = np.tanh(x)
    return 1 - value * value


def _silu_slope(x: Any) -> Any:
    step = special.expit(x)
    return step * (1 + x * (1 - step))


def _clenshaw(coefficients: Sequence[float], x: Any) -> Any:
    """sum_k c_k H_k(x) in the dtype of x."""
    if len(coefficients) == 1:
        return np.full_like(x, coefficients[0])
    upper, lower = coefficients[-1], 0.0
    for k in range(len(coefficients) - 2, 0, -1):
        upper, lower = coefficients[k] + x * upper - (k + 1) * lower, upper
    return (coefficients[0] - lower) + x * upper


def _polynomial(series: ArrayLike) -> _Shape:
    """sum_k c_k H_k(x)."""
    c = tuple(float(v) for v in np.trim_zeros(np.asarray(series, dtype=np.float64), "b")) or (0.0,)
    slopes = tuple(k * c[k] for k in range(1, len(c))) or (0.0,)
    degree = len(c) - 1
    # E f^(k)(s g)/sqrt(k!) = sum_i ladder[k][i] (s^2 - 1)^i, from E H_2i(s g) = (2i-1)!! (s^2 - 1)^i.
    ladder = [
        [
            c[k + 2 * i]
            * math.factorial(k + 2 * i)
            / (2**i * math.factorial(i) * math.sqrt(math.factorial(k)))
            for i in range((degree - k) // 2 + 1)
        ]
        for k in range(degree + 1)
    ]

    def rung(k: int, variance: Array) -> Array:
        return np.asarray(np.polynomial.polynomial.polyval(variance - 1, ladder[k]))

    def moments(s: Array, t: Array) -> Moments:
        # E H_k(s g + t) = p_k with p_{k+1} = t p_k - k (1 - s^2) p_{k-1}, and E g f = s E f'.
        shrink = 1 - s * s
        m0, m1 = np.full(s.shape, c[0]), np.zeros(s.shape)
        before, now = np.zeros(s.shape), np.ones(s.shape)
        for k in range(1, degree + 1):
            m1 += slopes[k - 1] * now
            before, now = now, t * now - (k - 1) * shrink * before
            m0 += c[k] * now
        if degree == 1:
            return m0, s * m1, m0 * m0 + np.square(s * m1)
        nodes, weights = gauss_hermite(degree + 1)
        values = _clenshaw(c, np.multiply.outer(s, nodes) + t[..., None])
        return m0, s * m1, np.square(values) @ weights

    def product(v1: Array, cov: Array, v2: Array) -> Array:
        total = np.zeros(np.broadcast_shapes(v1.shape, cov.shape, v2.shape))
        for k in range(degree, -1, -1):
            total *= cov
            if any(ladder[k]):
                total += rung(k, v1) * rung(k, v2)
        return total

    def coefficients(s: Array, count: int) -> Array:
        out = np.zeros((s.size, count))
        for k in range(min(count, degree + 1)):
            out[:, k] = s**k * rung(k, s * s)
        return out

    return _Shape(
        lambda x: _clenshaw(c, x), lambda x: _clenshaw(slopes, x), (), moments, product, coefficients, c
    )


def _affine(base: _Shape, outer: float, inner: float, shift: float, offset: float) -> _Shape:
    """outer * base(inner * x + shift) + offset, with every closed form of the base."""

    def value(x: Any) -> Any:
        return outer * base.value(inner * x + shift) + offset

    def slope(x: Any) -> Any:
        return (outer * inner) * base.slope(inner * x + shift)

    def moments(s: Array, t: Array) -> Moments:
        assert base.moments is not None
        m0, m1, m2 = base.moments(abs(inner) * s, inner * t + shift)
        return (
            outer * m0 + offset,
            math.copysign(outer, outer * inner) * m1,
            outer * (outer * m2 + 2 * offset * m0) + offset * offset,
        )

    def product(v1: Array, cov: Array, v2: Array) -> Array:
        assert base.product is not None
        result = outer * outer * base.product(inner * inner * v1, inner * inner * cov, inner * inner * v2)
        if offset:
            assert base.moments is not None
            zero = np.zeros(())
            means = [
                base.moments(abs(inner) * np.sqrt(v), np.broadcast_to(zero, v.shape))[0] for v in (v1, v2)
            ]
            result = result + offset * (outer * (means[0] + means[1]) + offset)
        return np.asarray(result)

    def coefficients(s: Array, count: int) -> Array:
        assert base.coefficients is not None
        out = outer * base.coefficients(abs(inner) * s, count)
        if inner < 0:
            out[:, 1::2] *= -1
        out[:, :1] += offset
        return np.asarray(out)

    through_zero = shift == 0.0
    return _Shape(
        value,
        slope,
        tuple(sorted((k - shift) / inner for k in base.kinks)),
        moments if base.moments else None,
        product if base.product and through_zero else None,
        coefficients if base.coefficients and through_zero else None,
        None,
        base.no_slope,
    )


@lru_cache(maxsize=1)
def _builtins() -> dict[str, _Shape]:
    shapes = {
        "identity": _polynomial((0.0, 1.0)),
        "relu": _leaky(0.0),
        "leaky_relu": _leaky(LEAKY_SLOPE),
        "tanh": _Shape(np.tanh, _tanh_slope, (), _logistic_moments("tanh")),
        "erf": _erf(),
        "sigmoid": _Shape(
            special.expit, lambda x: special.expit(x) * special.expit(-x), (), _logistic_moments("sigmoid")
        ),
        "softplus": _Shape(_softplus, special.expit, (), _logistic_moments("softplus")),
        "gelu": _gelu(),
        "silu": _Shape(lambda x: x * special.expit(x), _silu_slope, (), _logistic_moments("silu")),
        "sin": _wave(cosine=False),
        "cos": _wave(cosine=True),
        "abs": _leaky(-1.0),
        "sign": _sign(),
        "elu": _elu(1.0, 1.0),
        "selu": _elu(SELU_SCALE, SELU_ALPHA),
        "relu2": _relu2(),
        "cubic": _polynomial((0.0, 3.0, 0.0, 1.0)),
    }
    for k in range(MAX_HERMITE_NAME + 1):
        shapes[f"h{k}"] = _polynomial([0.0] * k + [1.0])
    return shapes


def names() -> tuple[str, ...]:
    """Names of the built-in activations and teachers, those of the Hermite polynomials H_0 … H_20 last.

    Examples
    --------
    >>> names()[:5]
    ('identity', 'relu', 'leaky_relu', 'tanh', 'erf')
    """
    return tuple(_builtins())


@dataclass(frozen=True, slots=True)
class _Mesh:
    """Panels on which a function's own averages were seen to settle."""

    reach: float
    width: float
    graded: bool

    def rule(self, kinks: Iterable[float], scale: float = 1.0) -> tuple[Array, Array]:
        """Nodes g and probability weights for averages of f(scale g)."""
        breaks = [k / scale for k in kinks] if scale else []
        nodes, weights = _panels(breaks, self.reach, self.width / max(1.0, scale), self.graded)
        return nodes, weights * _density(nodes)


def _settled_mesh(shape: _Shape, spec: str) -> _Mesh:
    """The panels for E f h_k and E f^2; refuses functions that are not finite or not square-integrable."""
    for reach in _COEFFICIENT_REACHES:
        previous = (math.nan, math.nan, False)
        for width, graded in _LEVELS:
            # Half a unit resolves h_k up to degree 1000 beside the function itself.
            mesh = _Mesh(reach, min(width, 0.5), graded)
            # An odd break keeps a kink that was not declared from hiding between two panels.
            nodes, weights = _panels((*shape.kinks, 0.2137), reach, width, graded)
            with np.errstate(all="ignore"):
                values = np.asarray(shape.value(nodes), dtype=np.float64)
                squares = values * values * _density(nodes)
            if not np.isfinite(squares).all():
                where = nodes[~np.isfinite(squares)][0]
                raise ValueError(
                    f"{spec} is not finite at x = {where:.3g}: a function must be finite everywhere"
                )
            power = float(squares @ weights)
            mean = float((values * _density(nodes)) @ weights)
            if power == 0.0 or (
                graded == previous[2]
                and abs(power - previous[1]) <= 1e-13 * power
                and abs(mean - previous[0]) <= 1e-13 * math.sqrt(power)
            ):
                break
            previous = (mean, power, graded)
        else:
            raise ValueError(
                f"the Gaussian averages of {spec} did not settle to 1e-13: it is not square-integrable,"
                " varies too fast, or has kinks that were not declared (a callable takes kinks=(…))"
            )
        if max(squares[:5].max(), squares[-5:].max()) <= 1e-26 * power:
            return mesh
    raise ValueError(
        f"{spec} grows too fast: it is not square-integrable under a Gaussian, so no theory covers it"
    )


def _parity(shape: _Shape) -> tuple[float | None, float | None]:
    """The constant that is all of f's even part and the slope that is all of its odd part, or None."""
    # Between nearly symmetric jumps no sample would see the difference.
    if not np.allclose(shape.kinks, [-k for k in reversed(shape.kinks)], rtol=0, atol=1e-14):
        return None, None
    x = np.linspace(0.0, 6.0, 97)[1:]
    with np.errstate(all="ignore"):
        right, left = np.asarray(shape.value(x)), np.asarray(shape.value(-x))
    even, odd = (right + left) / 2, (right - left) / (2 * x)
    rounding = 1e-15 * (np.abs(right) + np.abs(left) + np.abs(right - left))
    constant, slope = float(even[48]), float(odd[48])
    # Written as "is all close", so that NaN counts as no parity.
    return (
        constant if (np.abs(even - constant) <= rounding).all() else None,
        slope if (np.abs(odd - slope) * x <= rounding).all() else None,
    )


def _mesh_coefficients(shape: _Shape, mesh: _Mesh, scale: Array, count: int) -> Array:
    """Rows E[f(s g) h_k(g)] by quadrature, with the zeros that parity demands exact."""
    out, power = np.zeros((scale.size, count)), np.zeros((scale.size, 1))
    # Where every break is at 0 or there is none, scales within a factor of two share one rule.
    shared = all(k == 0 for k in shape.kinks)
    grain = np.exp2(np.ceil(np.log2(np.maximum(scale, 1.0)))) if shared else scale
    for one in np.unique(grain):
        rows = np.flatnonzero(grain == one)
        nodes, weights = mesh.rule(shape.kinks, float(one))
        for first in range(0, nodes.size, 4096):
            some = slice(first, first + 4096)
            basis = hermite_polynomials(nodes[some], count, normalised=True) * weights[some]
            for start in range(0, rows.size, 256):
                part = rows[start : start + 256]
                with np.errstate(all="ignore"):
                    values = np.asarray(shape.value(np.multiply.outer(scale[part], nodes[some])))
                out[part] += values @ basis.T
                power[part, 0] += np.square(values) @ weights[some]
    level = np.sqrt(power)
    with np.errstate(all="ignore"):
        edge = np.abs(shape.value(np.multiply.outer(scale, [-mesh.reach, mesh.reach])))
    if not (edge * math.exp(-0.25 * mesh.reach**2) <= 1e-13 * level + 1e-300).all():
        raise ValueError(
            f"the function grows too fast for Hermite coefficients at scale {float(scale.max()):.3g}"
        )
    constant, slope = _parity(shape)
    if constant is not None:
        out[:, ::2] = 0.0
        out[:, :1] = constant
    if slope is not None:
        out[:, 1::2] = 0.0
        out[:, 1:2] = slope * scale[:, None]
    # What remains below rounding is set to zero: downstream, a coefficient that is not zero is a spike.
    out[np.abs(out) < 4e-16 * level] = 0.0
    return out


def _checked_moments(shape: _Shape, mesh: _Mesh, scale: Array, shift: Array, spec: str) -> Moments:
    """Moments of a function of which only its values and kinks are known, refined until two levels agree."""
    out = np.empty((3, scale.size))
    todo = np.arange(scale.size)
    for reach in _REACHES:
        with np.errstate(all="ignore"):
            if shape.kinks:
                found = _panel_moments(shape, scale[todo], shift[todo], reach, mesh.graded)
            else:
                found = _trapezoid_moments(shape, scale[todo], shift[todo], reach)
            ends = [np.abs(shape.value(sign * reach * scale[todo] + shift[todo])) for sign in (-1, 1)]
            size = np.where(np.isfinite(found[2]), found[2], 0.0)
            small = np.square(np.maximum(*ends)) * math.exp(-0.5 * reach**2) <= 1e-14 * np.maximum(1.0, size)
        out[:, todo] = found
        lost = todo[small & ~np.isfinite(found).all(axis=0)]
        todo = todo[~small]
        if lost.size or not todo.size:
            break
    if not lost.size and not todo.size:
        return out[0], out[1], out[2]
    worst = lost[0] if lost.size else todo[0]
    s, t = scale[worst], shift[worst]
    raise ValueError(
        f"the Gaussian averages of {spec} did not settle to 1e-12 at scale {s:.3g} and shift {t:.3g}: the"
        " function grows or varies too fast there, or has kinks that were not declared"
    )


def _disagree(new: Array, old: Array) -> NDArray[np.bool_]:
    """Columns in which two levels differ (or are not numbers)."""
    return np.asarray(~(np.abs(new - old) <= 3e-13 * np.maximum(1.0, np.abs(new))).all(axis=0))


def _trapezoid_moments(shape: _Shape, scale: Array, shift: Array, reach: float) -> Array:
    """Trapezoid sums with steps halved; NaN where two levels never agree."""
    out = np.full((3, scale.size), np.nan)
    # First step: at most 0.5 in g and 0.3 in x. The offset is odd, so that no period is sampled in phase.
    start = np.exp2(np.ceil(np.log2(np.maximum(scale / 0.6, 1.0)))).astype(np.intp)
    for split in np.unique(start):
        rows = np.flatnonzero(start == split)
        step = 0.5 / int(split)
        nodes = np.arange(-reach + 0.37 * step, reach, step)
        old = _trapezoid_sums(shape, scale[rows], shift[rows], nodes, step)
        nodes = nodes + step / 2
        while rows.size and nodes.size <= MAX_RULE:
            new = (old + _trapezoid_sums(shape, scale[rows], shift[rows], nodes, step)) / 2
            bad = _disagree(new, old)
            out[:, rows[~bad]] = new[:, ~bad]
            rows, old = rows[bad], new[:, bad]
            nodes = np.concatenate([nodes - step / 4, nodes + step / 4])
            step /= 2
    return out


def _trapezoid_sums(shape: _Shape, scale: Array, shift: Array, nodes: Array, step: float) -> Array:
    weights = _density(nodes) * step
    out = np.empty((3, scale.size))
    block = max(1, 4 * _BLOCK // nodes.size)
    for start in range(0, scale.size, block):
        part = slice(start, start + block)
        values = shape.value(np.multiply.outer(scale[part], nodes) + shift[part, None])
        out[0, part], out[1, part] = values @ weights, values @ (weights * nodes)
        out[2, part] = np.square(values) @ weights
    return out


def _panel_moments(shape: _Shape, scale: Array, shift: Array, reach: float, graded: bool) -> Array:
    """Panels between the kinks, seen from g; NaN where two levels never agree."""
    out = np.full((3, scale.size), np.nan)
    kinks = np.array(shape.kinks)
    block = max(1, 4 * _BLOCK // (6 * _PANEL_NODES * (kinks.size + 1)))
    for first in range(0, scale.size, block):
        rows = np.arange(first, min(first + block, scale.size))
        old = np.full((3, rows.size), np.nan)
        panels = 3
        while rows.size and panels * _PANEL_NODES * (kinks.size + 1) <= MAX_RULE:
            unit, unit_weights = _unit_rule(panels, graded)
            s, t = scale[rows, None], shift[rows, None]
            inner = np.clip((kinks - t) / np.maximum(s, 1e-300), -reach, reach)
            edges = np.pad(inner, ((0, 0), (1, 1)), constant_values=((0, 0), (-reach, reach)))
            lengths = np.diff(edges)[..., None]
            nodes = (edges[:, :-1, None] + lengths * unit).reshape(rows.size, -1)
            weights = (lengths * unit_weights).reshape(rows.size, -1) * _density(nodes)
            values = shape.value(s * nodes + t)
            new = np.stack(
                [np.einsum("ij,ij->i", values, w) for w in (weights, weights * nodes, weights * values)]
            )
            bad = _disagree(new, old)
            out[:, rows[~bad]] = new[:, ~bad]
            rows, old, panels = rows[bad], new[:, bad], 2 * panels
    return out


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Function:
    r"""A function of one variable with its Gaussian averages; made by :func:`function`, never by hand.

    .. math:: f(z) = \sum_k c_k H_k(z), \qquad c_k = E[f(Z) H_k(Z)]/k!

    Two functions are equal when their keys are. Averages are computed when first asked for, and kept.

    Parameters
    ----------
    spec : str
        Canonical spelling, which :func:`function` reads back (for a Python callable, ``"callable:<name>"``).
    centred : bool
        Whether the mean is subtracted, so that :math:`c_0 = 0`.
    key : str
        Short hash, the same on every machine.
    kinks : tuple of float
        Points where the function or one of its derivatives jumps.

    Examples
    --------
    >>> relu = function("relu")
    >>> relu
    Function('relu', centred)
    >>> relu(np.array([-1.0, 1.0])).round(4).tolist()
    [-0.3989, 0.6011]
    """

    spec: str
    centred: bool
    key: str
    kinks: tuple[float, ...]
    _shape: _Shape
    _origin: tuple[Any, ...]
    _cache: dict[Any, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Function({self.spec!r}, {'centred' if self.centred else 'not centred'})"

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Function) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._origin

    def __call__(self, x: Any) -> Any:
        """Values f(x), in the shape and floating dtype of x, less the mean if the function is centred."""
        points = _floating(x)
        values = self._shape.value(points)
        if self._offset:
            values -= self._offset
        return values if values.dtype == points.dtype else values.astype(points.dtype)

    def derivative(self, x: Any) -> Any:
        """Values of f'(x), in the shape and floating dtype of x; at a kink, some value between its two sides.

        For a callable without a derivative of its own this is a sixth-order difference, right to about 1e-9
        for functions that vary on the unit scale.

        Examples
        --------
        >>> function("relu").derivative(np.array([-1.0, 2.0])).tolist()
        [0.0, 1.0]
        """
        if self._shape.no_slope:
            raise ValueError(self._shape.no_slope)
        points = _floating(x)
        return self._shape.slope(points).astype(points.dtype, copy=False)

    @property
    def mean(self) -> float:
        """E f(Z) of the function as it is before centring."""
        return float(self._normalised(1)[0])

    @property
    def _offset(self) -> float:
        return self.mean if self.centred else 0.0

    @property
    def _mesh(self) -> _Mesh:
        mesh = self._cache.get("mesh")
        if mesh is None:
            mesh = self._cache["mesh"] = _settled_mesh(self._shape, self.spec)
        assert isinstance(mesh, _Mesh)
        return mesh

    def _normalised(self, count: int) -> Array:
        """E[f h_k] before centring, k < count; computed 64 at a time, so that asking again is cheap."""
        known = self._cache.get("coefficients")
        if known is None or known.size < count:
            size, unit = 64 * math.ceil(count / 64), np.ones(1)
            if self._shape.coefficients is not None:
                known = self._shape.coefficients(unit, size)[0]
            else:
                known = _mesh_coefficients(self._shape, self._mesh, unit, size)[0]
            self._cache["coefficients"] = known
        return np.asarray(known[:count])

    def hermite(self, count: int) -> Array:
        r"""Hermite coefficients :math:`c_0, \dots, c_{count-1}` of the function, centred if it is.

        .. math:: c_k = E[f(Z) H_k(Z)]/k!

        Parameters
        ----------
        count : int
            How many, starting with degree 0.

        Returns
        -------
        ndarray of shape (count,)

        Examples
        --------
        >>> function("relu").hermite(5).round(4).tolist()
        [0.0, 0.5, 0.1995, 0.0, -0.0166]
        """
        if count < 0:
            raise ValueError(f"count must be zero or more, got {count}")
        if self._shape.polynomial is not None:
            out = np.zeros(count)
            out[: len(self._shape.polynomial)] = self._shape.polynomial[:count]
        else:
            out = self._normalised(count) / np.sqrt(special.factorial(np.arange(count)))
        if self.centred:
            out[:1] = 0.0
        return out

    @property
    def second_moment(self) -> float:
        """E f(Z)^2, the sum of k! c_k^2 over all k."""
        return self.tail(0)

    def tail(self, k: int) -> float:
        r"""What the degrees from k on contribute to the second moment.

        .. math:: \sum_{j \ge k} j!\, c_j^2 = E\Big(f(Z) - \sum_{j < k} c_j H_j(Z)\Big)^2

        Small tails are computed as the average on the right, so that they keep their digits.

        Parameters
        ----------
        k : int
            First degree that counts.

        Returns
        -------
        float

        Examples
        --------
        >>> print(f"{function('relu').tail(2):.12f}")
        0.090845056908
        """
        if k < 0:
            raise ValueError(f"the first degree must be zero or more, got {k}")
        if self.centred:
            k = max(k, 1)
        if ("tail", k) not in self._cache:
            if self._shape.polynomial is not None:
                series = enumerate(self._shape.polynomial)
                value = float(sum(math.factorial(j) * c * c for j, c in series if j >= k))
            else:
                value = self._rest(k)
            self._cache["tail", k] = value
        return float(self._cache["tail", k])

    def _rest(self, k: int) -> float:
        """E (f - sum_{j<k} c_j H_j)^2 of a function that is no polynomial."""
        nodes, weights = self._mesh.rule(self.kinks)
        with np.errstate(all="ignore"):
            square = float(np.square(self._shape.value(nodes)) @ weights)
        plain = square - float(np.sum(np.square(self._normalised(k))))
        # The average below goes to 2 sqrt(k), where h_k^2 phi ends: beyond the range of floats for large k.
        if plain > 1e-3 * square or k > 200:
            return max(plain, 0.0)
        mesh = replace(self._mesh, reach=max(self._mesh.reach, 2 * math.sqrt(k) + 11))
        nodes, weights = mesh.rule(self.kinks)
        with np.errstate(all="ignore"):
            known = self._normalised(k) @ hermite_polynomials(nodes, k, normalised=True)
            rest = self._shape.value(nodes) - known
            return float(np.sum(np.square(rest * np.sqrt(weights))))

    @property
    def derivative_second_moment(self) -> float:
        """E f'(Z)^2, the sum of k k! c_k^2; raises for functions that jump."""
        if "slope" not in self._cache:
            if self._shape.polynomial is not None:
                value = sum(k * math.factorial(k) * c * c for k, c in enumerate(self._shape.polynomial))
            else:
                value = expectation(lambda z: np.square(self.derivative(z)), self.kinks, tolerance=1e-11)
            self._cache["slope"] = float(value)
        return float(self._cache["slope"])

    def gaussian_moments(self, scale: ArrayLike, shift: ArrayLike) -> Moments:
        r"""Averages of the function of a scaled and shifted Gaussian.

        .. math:: E f(sg + t), \quad E[g f(sg + t)], \quad E f(sg + t)^2, \qquad g \sim N(0, 1)

        Right to 1e-12, relative to the larger of 1 and the value, for scales up to 10 and shifts up to 40.

        Parameters
        ----------
        scale : array_like
            s, zero or more.
        shift : array_like
            t; broadcast against the scale.

        Returns
        -------
        tuple of three ndarray
            Of the broadcast shape.

        Examples
        --------
        >>> [round(float(m), 6) for m in function("tanh").gaussian_moments(1.0, 0.5)]
        [0.295453, 0.561993, 0.438007]
        """
        s, t = np.broadcast_arrays(np.asarray(scale, dtype=np.float64), np.asarray(shift, dtype=np.float64))
        if not (np.isfinite(s) & (s >= 0)).all():
            raise ValueError(
                f"scale must be finite and zero or more, got {s[~(np.isfinite(s) & (s >= 0))][0]}"
            )
        if not np.isfinite(t).all():
            raise ValueError(f"shift must be finite, got {t[~np.isfinite(t)][0]}")
        if self._shape.moments is not None:
            m0, m1, m2 = self._shape.moments(s, t)
        else:
            flat = _checked_moments(self._shape, self._mesh, s.ravel(), t.ravel(), self.spec)
            m0, m1, m2 = (m.reshape(s.shape) for m in flat)
        if self._offset:
            m2 = m2 - self._offset * (2 * m0 - self._offset)
            m0 = m0 - self._offset
        return m0, m1, m2

    @property
    def has_covariance(self) -> bool:
        """Whether :meth:`covariance` has a closed form for this function."""
        return self._shape.product is not None

    def covariance(self, v1: ArrayLike, cov: ArrayLike, v2: ArrayLike) -> Array:
        r"""Average of the function at two correlated Gaussians, in closed form.

        .. math:: E f(x_1) f(x_2), \qquad
            (x_1, x_2) \sim N\left(0, \begin{pmatrix} v_1 & c \\ c & v_2 \end{pmatrix}\right)

        Arc-cosine kernels [ChoSaul09] for relu, leaky_relu, abs and relu2, arcsine kernels [Williams98] for
        erf, sign and gelu, exponentials for sin and cos, a sum over degrees for polynomials.

        Parameters
        ----------
        v1, cov, v2 : array_like
            Variances and covariance, broadcast against each other: of shape (N, 1), (N, N) and (1, N), say.

        Returns
        -------
        ndarray
            Of the broadcast shape.

        Examples
        --------
        >>> print(f"{function('erf').covariance(1.0, 0.5, 1.0):.6f}")
        0.216347
        """
        if self._shape.product is None:
            raise ValueError(
                f"{self.spec} has no closed-form covariance: sum over degrees of hermite_of_scaled instead"
            )
        left, middle, right = (np.asarray(v, dtype=np.float64) for v in (v1, cov, v2))
        if not ((left >= 0).all() and (right >= 0).all()):
            raise ValueError(f"variances must be zero or more, got {min(left.min(), right.min())}")
        shape = np.broadcast_shapes(left.shape, middle.shape, right.shape)
        means = [self.gaussian_moments(np.sqrt(v), 0.0)[0] for v in (left, right)] if self._offset else []
        out = np.empty(shape or 1)
        # Blocks of rows keep the temporaries of the formulas in the cache.
        block = max(1, _BLOCK * len(out) // max(1, out.size))
        for start in range(0, len(out), block):
            part = slice(start, start + block)
            a, c, b, *m = (
                v[part] if v.ndim == len(shape) > 0 and v.shape[0] > 1 else v
                for v in (left, middle, right, *means)
            )
            if not (np.abs(c) <= np.sqrt(a) * np.sqrt(b) * (1 + 1e-8) + 1e-300).all():
                raise ValueError("no two Gaussians have this covariance: |cov| must be at most sqrt(v1 v2)")
            out[part] = self._shape.product(a, c, b)
            if m:
                out[part] -= self._offset * (m[0] + m[1] + self._offset)
        return out.reshape(shape)

    def hermite_of_scaled(self, scale: ArrayLike, count: int) -> Array:
        r"""Normalised Hermite coefficients of the function of a scaled Gaussian, for each scale.

        .. math:: a_k(s) = E[f(sg) h_k(g)], \qquad E f(x_1) f(x_2) = \sum_k a_k(s_1)\, a_k(s_2)\, \rho^k

        for centred Gaussians with standard deviations s1, s2 and correlation rho, whatever the function.

        Parameters
        ----------
        scale : array_like
            Scales s, zero or more; taken as a flat list.
        count : int
            How many degrees, starting with 0; right to 1e-12 up to 200 and beyond.

        Returns
        -------
        ndarray of shape (len(scale), count)

        Examples
        --------
        >>> function("tanh").hermite_of_scaled([1.0, 2.0], 4).round(4).tolist()
        [[0.0, 0.6057, 0.0, -0.1484], [0.0, 0.7295, 0.0, -0.2507]]
        """
        scales = np.ravel(np.asarray(scale, dtype=np.float64))
        if not (np.isfinite(scales) & (scales >= 0)).all():
            raise ValueError("scales must be finite and zero or more")
        if self._shape.coefficients is not None:
            out = self._shape.coefficients(scales, count)
        else:
            out = _mesh_coefficients(self._shape, self._mesh, scales, count)
        out[:, :1] -= self._offset
        return out


def _floating(x: Any) -> Any:
    array = x if isinstance(x, np.ndarray) else np.asarray(x)
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _rebuild(
    spec: Any, centre: bool, derivative: Any, kinks: tuple[float, ...], name: str | None
) -> Function:
    return function(spec, centre=centre, derivative=derivative, kinks=kinks, name=name)


def _make(
    kind: str, spec: str, centred: bool, shape: _Shape, origin: Sequence[Any], marks: str = ""
) -> Function:
    key = hashlib.sha256(repr((kind, spec, centred, marks)).encode()).hexdigest()[:16]
    return Function(spec, centred, key, shape.kinks, shape, tuple(origin))


def function(
    spec: Any,
    *,
    centre: bool = True,
    derivative: Callable[[Any], Any] | None = None,
    kinks: Iterable[float] = (),
    name: str | None = None,
) -> Function:
    """Make a :class:`Function` from a name, an expression, Hermite coefficients or a Python callable.

    Expressions are parsed, never executed: they may use x, pi, e, numbers, + - * / **, sqrt, exp, log, min,
    max and the built-in names, h0 … h20 with or without an argument. Their derivatives are exact, and their
    kinks are found.

    Parameters
    ----------
    spec : str, sequence of float, callable or Function
        ``"relu"``; ``"h1 + h2/sqrt(2)"``; ``[0, 1, 0.5]`` for H_1 + H_2/2; any vectorised callable. A
        Function is returned as it is.
    centre : bool
        Subtract the mean E f(Z).
    derivative : callable, optional
        Derivative of a callable; without it, a difference that is right to about 1e-9.
    kinks : iterable of float
        For a callable, the points where it or one of its derivatives jumps.
    name : str, optional
        For a callable, the name it is shown by.

    Returns
    -------
    Function

    Examples
    --------
    >>> function("h1+h2 / sqrt( 2 )")
    Function('h1 + h2/sqrt(2)', centred)
    >>> function([0, 1, 0.5]).second_moment
    1.5
    """
    if isinstance(spec, Function):
        return spec
    points = tuple(sorted({float(k) for k in kinks}))
    if callable(spec):
        return _from_callable(spec, bool(centre), derivative, points, name)
    if derivative is not None or points or name is not None:
        raise ValueError(
            f"derivative, kinks and name describe a Python callable; {spec!r} has its own, so leave them out"
        )
    if isinstance(spec, str):
        return _from_text(spec, bool(centre))
    return _from_series(spec, bool(centre))


def _from_series(values: Any, centre: bool) -> Function:
    wanted = "wanted a name, an expression, Hermite coefficients c_0, c_1, … or a callable"
    try:
        series = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{wanted}; got {values!r}") from None
    if isinstance(values, (bytes, bytearray)) or series.ndim != 1 or not 1 <= series.size <= MAX_SERIES:
        raise ValueError(f"{wanted} (at most {MAX_SERIES}, in one row); got {values!r}")
    if not (np.abs(series) <= MAX_CONSTANT).all():
        raise ValueError(f"Hermite coefficients must be finite and at most {MAX_CONSTANT:g}; got {values!r}")
    series = np.trim_zeros(series, "b") if series.any() else series[:1]
    spec = f"hermite({', '.join(map(_number, series))})"
    return _make("hermite", spec, centre, _polynomial(series), (spec, centre, None, (), None))


def _number(value: float) -> str:
    """Shortest spelling that reads back as the same float, without a needless .0."""
    text = repr(float(value))
    return text.removesuffix(".0")


@lru_cache(maxsize=512)
def _from_text(text: str, centre: bool) -> Function:
    text = text.strip()
    if len(text) > (30 * MAX_SERIES if text.startswith("hermite") else MAX_TEXT):
        raise _refuse(f"the text has {len(text)} characters, more than the {MAX_TEXT} allowed")
    if text in _builtins():
        return _make("named", text, centre, _builtins()[text], (text, centre, None, (), None))
    series = re.fullmatch(r"hermite\s*\(([-+.,\seE\d]*)\)", text)
    if series:
        return _from_series(_series_numbers(series[1]), centre)
    if text.startswith("callable:"):
        raise ValueError(
            f"{text!r} names a Python callable, which text cannot bring back: pass the callable itself"
        )
    if re.fullmatch(r"[A-Za-z_]\w*", text, re.ASCII) and text not in ("x", "pi", "e"):
        raise ValueError(f"unknown function {text!r}{_suggest(text, _builtins())}; known are {_known()}")
    tree = _parse(text)
    spec = _spell(tree)
    if tree.op in _builtins() and tree.args == (_X,):
        return _from_text(tree.op, centre)
    shape = _shape_of(_fold(tree), spec)
    return _make("expression", spec, centre, shape, (spec, centre, None, (), None))


def _series_numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"hermite(…) takes numbers c_0, c_1, … separated by commas, got {text!r}") from None


def _suggest(word: str, choices: Iterable[str]) -> str:
    close = difflib.get_close_matches(word.lower()[:40], list(choices), 1, 0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _known() -> str:
    plain = [n for n in _builtins() if not re.fullmatch(r"h\d+", n)]
    return f"{', '.join(plain)}, h0 … h{MAX_HERMITE_NAME}"


@dataclass(frozen=True, slots=True)
class _Node:
    """An expression: ``op`` is "number", "x", an operator, "neg" or the name of a function."""

    op: str
    args: tuple["_Node", ...] = ()
    number: float = 0.0


_X = _Node("x")
_CONSTANTS = {"pi": math.pi, "e": math.e}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "neg": 3, "**": 4}
_TOKEN = re.compile(
    r"\s+|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])|(?P<name>[A-Za-z_]\w*)|\*\*|[-+*/(),]",
    re.ASCII,
)


def _refuse(problem: str) -> ValueError:
    return ValueError(
        f"{problem}; an expression may use x, pi, e, numbers, + - * / **, parentheses and the functions sqrt,"
        f" exp, log, min, max, {_known()}"
    )


def _parse(text: str) -> _Node:
    """Read an expression into a tree of known nodes; all else is refused, before or after ``ast`` sees it."""
    allowed = {"x", *_CONSTANTS, "sqrt", "exp", "log", "min", "max", *_builtins()}
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            hint = {"^": " (write powers as **)"}.get(text[place], "")
            if text[place].isdecimal():
                hint = " (write products as 2*x)"
            raise _refuse(
                f"the expression {text!r} has {text[place : place + 12]!r}, which is not allowed{hint}"
            )
        if token["name"] and token["name"] not in allowed:
            raise _refuse(f"unknown name {token['name']!r}{_suggest(token['name'], allowed)} in {text!r}")
        place = token.end()
    try:
        body = ast.parse(" ".join(text.split()), mode="eval").body
        return _convert(body, 0)
    except (SyntaxError, MemoryError, RecursionError):
        raise _refuse(f"the expression {text!r} could not be read") from None


def _convert(node: ast.AST, depth: int) -> _Node:
    if depth > MAX_DEPTH:
        raise _refuse(f"the expression is nested more than {MAX_DEPTH} deep")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _Node("number", (), float(value))
        case ast.Name(id="x"):
            return _X
        case ast.Name(id=name) if name in _CONSTANTS:
            return _Node(name)
        case ast.Name(id=name) if _degree(name) is not None:
            return _Node(name, (_X,))
        case ast.Name(id=name):
            raise _refuse(f"{name!r} needs an argument, as in {name}(x)")
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _convert(inner, depth + 1)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _Node("neg", (_convert(inner, depth + 1),))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _Node(_OPERATORS[type(op)], (_convert(left, depth + 1), _convert(right, depth + 1)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if (
            name != "x" and name not in _CONSTANTS
        ):
            wanted = range(2, 9) if name in ("min", "max") else range(1, 2)
            if len(args) not in wanted:
                count = "two to eight arguments" if name in ("min", "max") else "one argument"
                raise _refuse(f"{name} takes {count}, got {len(args)}")
            return _Node(name, tuple(_convert(a, depth + 1) for a in args))
        case _:
            raise _refuse(f"{ast.unparse(node)!r} is not allowed in an expression")


def _degree(name: str) -> int | None:
    """k for the name of a Hermite polynomial hk."""
    return int(name[1:]) if re.fullmatch(r"h\d+", name) else None


def _spell(node: _Node) -> str:
    """Canonical text: one spelling for all that differ in spaces and needless parentheses."""
    if node.op == "number":
        return _number(node.number)
    if not node.args:
        return node.op
    if node.op == "neg":
        return "-" + _bracket(node.args[0], 3)
    if node.op in _PRECEDENCE:
        rank = _PRECEDENCE[node.op]
        # ** binds to the right, and a minus may follow it: 2**-x needs no bracket.
        left = _bracket(node.args[0], 5 if node.op == "**" else rank)
        right = _bracket(node.args[1], 3 if node.op == "**" else rank + 1)
        return f"{left} {node.op} {right}" if rank == 1 else f"{left}{node.op}{right}"
    if _degree(node.op) is not None and node.args == (_X,):
        return node.op
    return f"{node.op}({', '.join(map(_spell, node.args))})"


def _bracket(node: _Node, rank: int) -> str:
    text = _spell(node)
    return f"({text})" if _PRECEDENCE.get(node.op, 5) < rank else text


def _fold(node: _Node) -> _Node:
    """The tree with every part without x replaced by its number; refuses large numbers and wild exponents."""
    args = tuple(map(_fold, node.args))
    folded = _Node(node.op, args, node.number)
    if node.op == "**" and not (args[1].op == "number" and abs(args[1].number) <= MAX_EXPONENT):
        raise ValueError(
            f"the exponent in {_spell(node)!r} must be a number of size at most {MAX_EXPONENT:g}"
        )
    if node.op == "/" and args[1] == _Node("number"):
        raise ValueError(f"{_spell(node)!r} divides by zero")
    if node.op == "x" or not all(child.op == "number" for child in args):
        return folded
    with np.errstate(all="ignore"):
        value = float(_evaluate(folded, np.float64(0.0)))
    if not abs(value) <= MAX_CONSTANT:
        raise ValueError(
            f"{_spell(node)!r} is {value:g}, but a number must be at most {MAX_CONSTANT:g} in size"
        )
    return _Node("number", (), value + 0.0)


def _power(base: Any, exponent: float) -> Any:
    """base**exponent, by multiplication where the exponent is a whole number."""
    if exponent != int(exponent):
        return np.power(base, exponent)
    result, square, left = None, base, abs(int(exponent))
    while left:
        if left & 1:
            result = square if result is None else result * square
        left >>= 1
        if left:
            square = square * square
    if result is None:
        return np.ones_like(base)
    return np.divide(1.0, result) if exponent < 0 else +result


def _primitive(name: str) -> tuple[Elementwise, Elementwise]:
    """Value and slope of a function of one argument."""
    if name == "exp":
        return np.exp, np.exp
    if name == "log":
        return np.log, np.reciprocal
    if name == "sqrt":
        return np.sqrt, lambda u: 0.5 / np.sqrt(u)
    shape = _builtins()[name]
    return shape.value, shape.slope


def _evaluate(node: _Node, x: Any) -> Any:
    """Value of the tree at x; numbers stay Python floats, which do not widen float32 arrays they meet."""
    if node.op == "x":
        return x
    if node.op == "number":
        return node.number
    if node.op in _CONSTANTS:
        return _CONSTANTS[node.op]
    values = [_evaluate(child, x) for child in node.args]
    match node.op:
        case "neg":
            return -values[0]
        case "+":
            return values[0] + values[1]
        case "-":
            return values[0] - values[1]
        case "*":
            return values[0] * values[1]
        case "/":
            return np.divide(values[0], values[1])
        case "**":
            return _power(values[0], values[1])
        case "min":
            return reduce(np.minimum, values)
        case "max":
            return reduce(np.maximum, values)
        case name:
            return _primitive(name)[0](values[0] if hasattr(values[0], "dtype") else np.float64(values[0]))


def _dual(node: _Node, x: Any) -> tuple[Any, Any]:
    """Value and derivative of a folded tree at x, by forward mode."""
    if node.op == "number":
        return node.number, 0.0
    if node.op == "x":
        return x, np.ones_like(x)
    pairs = [_dual(child, x) for child in node.args]
    (u, du) = pairs[0]
    match node.op:
        case "neg":
            return -u, -du
        case "+":
            return u + pairs[1][0], du + pairs[1][1]
        case "-":
            return u - pairs[1][0], du - pairs[1][1]
        case "*":
            v, dv = pairs[1]
            return u * v, du * v + u * dv
        case "/":
            v, dv = pairs[1]
            quotient = np.divide(u, v)
            return quotient, np.divide(du - quotient * dv, v)
        case "**":
            p = pairs[1][0]
            return _power(u, p), _chain(lambda base: p * _power(base, p - 1), u, du) if p else 0.0
        case "min" | "max":
            for v, dv in pairs[1:]:
                first = u <= v if node.op == "min" else u >= v
                u, du = np.where(first, u, v), np.where(first, du, dv)
            return u, du
        case name:
            value, slope = _primitive(name)
            return value(u), _chain(slope, u, du)


def _chain(slope: Elementwise, inner: Any, inner_slope: Any) -> Any:
    """slope(u) u', which is 0 where u rests, even if the slope is infinite there: sqrt(relu(x)) below 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(inner_slope == 0, 0.0, slope(inner) * inner_slope)


def _as_series(node: _Node) -> Array | None:
    """c_k of a folded tree where it is a polynomial of degree at most 30."""
    if node.op == "number":
        return np.array([node.number])
    if node.op == "x":
        return np.array([0.0, 1.0])
    if node.op == "**":
        base, exponent = _as_series(node.args[0]), node.args[1].number
        if base is None or exponent < 0 or exponent != int(exponent):
            return None
        if (base.size - 1) * exponent > MAX_POLYNOMIAL:
            return None
        return np.asarray(hermite_e.hermepow(base, int(exponent), maxpower=None), dtype=np.float64)
    series = [_as_series(child) for child in node.args]
    if any(s is None for s in series):
        return None
    parts = [s for s in series if s is not None]
    degree = _degree(node.op)
    if degree is not None:
        # H_k of a polynomial by the recurrence of H_k.
        if degree * (parts[0].size - 1) > MAX_POLYNOMIAL:
            return None
        before, now = np.zeros(1), np.ones(1)
        for k in range(degree):
            step = hermite_e.hermesub(hermite_e.hermemul(parts[0], now), k * before)
            before, now = now, np.asarray(step, dtype=np.float64)
        return now
    match node.op:
        case "neg":
            return np.asarray(-parts[0])
        case "+":
            return np.asarray(hermite_e.hermeadd(parts[0], parts[1]))
        case "-":
            return np.asarray(hermite_e.hermesub(parts[0], parts[1]))
        case "*" if parts[0].size + parts[1].size - 2 <= MAX_POLYNOMIAL:
            return np.asarray(hermite_e.hermemul(parts[0], parts[1]))
        case "/" if parts[1].size == 1:
            return np.asarray(parts[0] / parts[1][0])
        case "identity":
            return parts[0]
        case "cubic":
            return _as_series(_Node("**", (node.args[0], _Node("number", (), 3.0))))
    return None


def _as_affine(node: _Node) -> tuple[float, str, float, float, float] | None:
    """(A, name, a, b, C) where the tree is A name(a x + b) + C with a built-in name."""
    if node.op in _builtins():
        inner = _as_series(node.args[0])
        return (
            None
            if inner is None or inner.size != 2
            else (1.0, node.op, float(inner[1]), float(inner[0]), 0.0)
        )
    if node.op == "neg":
        found = _as_affine(node.args[0])
        return found and (-found[0], *found[1:4], -found[4])
    if node.op in ("+", "-", "*", "/"):
        left, right = node.args
        if right.op == "number":
            found, value = _as_affine(left), right.number
        elif left.op == "number" and node.op != "/":
            found, value = _as_affine(right), left.number
        else:
            return None
        if found is None:
            return None
        match node.op:
            case "*":
                return (found[0] * value, *found[1:4], found[4] * value)
            case "/":
                return (found[0] / value, *found[1:4], found[4] / value)
            case "+":
                return (*found[:4], found[4] + value)
        return (
            (*found[:4], found[4] - value)
            if right.op == "number"
            else (-found[0], *found[1:4], value - found[4])
        )
    return None


def _shape_of(tree: _Node, spec: str) -> _Shape:
    """The most that is known of a folded tree: a polynomial, a built-in of a x + b, or values and kinks."""
    with np.errstate(all="ignore"):
        series = _as_series(tree)
        affine = _as_affine(tree) if series is None else None
    if series is not None:
        if not (np.abs(series) <= MAX_COEFFICIENT).all():
            raise ValueError(f"the Hermite coefficients of {spec} must be at most {MAX_COEFFICIENT:g}")
        return _polynomial(series)
    if affine is not None and affine[0]:
        return _vetted(_affine(_builtins()[affine[1]], affine[0], *affine[2:]), spec)

    def slope(x: Any) -> Any:
        return _dual(tree, x)[1] + np.zeros_like(x)

    return _vetted(_Shape(lambda x: _evaluate(tree, x), slope, _find_kinks(tree)), spec)


def _find_kinks(tree: _Node) -> tuple[float, ...]:
    """Points where some part of the expression has a kink or a singularity."""
    found: set[float] = set()
    todo = [tree]
    while todo:
        node = todo.pop()
        todo.extend(node.args)
        if node.op in ("min", "max"):
            for i, one in enumerate(node.args):
                for other in node.args[i + 1 :]:
                    found.update(_roots(_Node("-", (one, other)), 0.0))
        elif node.op in ("sqrt", "log") or (node.op == "**" and node.args[1].number % 1):
            found.update(_roots(node.args[0], 0.0))
        elif node.op in _builtins():
            for point in _builtins()[node.op].kinks:
                found.update(_roots(node.args[0], point))
    merged: list[float] = []
    for point in sorted(found):
        if not merged or point - merged[-1] > 1e-9 * max(1.0, abs(point)):
            merged.append(point)
    if len(merged) > MAX_KINKS:
        raise ValueError(f"the expression has {len(merged)} kinks, more than the {MAX_KINKS} allowed")
    return tuple(merged)


def _roots(node: _Node, level: float) -> list[float]:
    """Where the tree crosses a level: all roots of polynomials, else sign changes on a grid of |x| <= 40."""
    series = _as_series(node)
    if series is not None:
        shifted = np.trim_zeros(hermite_e.hermesub(series, [level]), "b")
        if shifted.size == 2:
            return [float(-shifted[0] / shifted[1]) + 0.0]
        roots = hermite_e.hermeroots(shifted) if shifted.size > 2 else np.empty(0)
        return [float(r.real) + 0.0 for r in np.asarray(roots) if abs(r.imag) <= 1e-6 * max(1.0, abs(r))]
    with np.errstate(all="ignore"):
        grid = np.arange(-2560, 2561) / 64
        signs = np.sign(_evaluate(node, grid) - level)
        at = np.flatnonzero(signs[:-1] * signs[1:] < 0)
        low, high, side = grid[at], grid[at + 1], signs[at]
        for _ in range(60):
            middle = (low + high) / 2
            same = np.sign(_evaluate(node, middle) - level) == side
            low, high = np.where(same, middle, low), np.where(same, high, middle)
    # A zero on the grid counts when it stands alone; the ends of a stretch of zeros are kinks of inner parts.
    alone = np.flatnonzero((signs[1:-1] == 0) & (signs[:-2] != 0) & (signs[2:] != 0)) + 1
    return [*grid[alone].tolist(), *high.tolist()]


def _vetted(shape: _Shape, spec: str) -> _Shape:
    """The shape, refused if its averages do not exist, and kept from being an activation if it jumps."""
    _settled_mesh(shape, spec)
    with np.errstate(all="ignore"):
        for kink in shape.kinks:
            sides = np.asarray(
                shape.value(kink + 1e-7 * max(1.0, abs(kink)) * np.array([-2.0, -1.0, 1.0, 2.0]))
            )
            # A jump is more than the change seen on either side explains.
            if abs(sides[2] - sides[1]) > 1e-4 * max(1.0, abs(sides[1])) + 8 * max(
                np.abs(np.diff(sides)[::2])
            ):
                reason = (
                    f"{spec} can only be a teacher: it jumps at x = {kink:.6g}, which its derivative misses"
                )
                return replace(shape, no_slope=shape.no_slope or reason)
    return shape


def _from_callable(
    call: Callable[[Any], Any],
    centre: bool,
    derivative: Callable[[Any], Any] | None,
    kinks: tuple[float, ...],
    name: str | None,
) -> Function:
    label = name if name is not None else str(getattr(call, "__name__", type(call).__name__)).strip("<>")
    spec = f"callable:{label}"
    if not all(map(math.isfinite, kinks)):
        raise ValueError(f"kinks must be finite numbers, got {kinks}")
    value = _guarded(call, spec)
    slope = _guarded(derivative, f"the derivative of {spec}") if derivative else _difference(value, kinks)
    points = np.array([-4.3, -2.9, -2.1, -1.4, -0.9, -0.55, -0.2, 0.1, 0.35, 0.7, 1.2, 1.7, 2.4, 3.3, 5.1])
    _check_elementwise(value, spec, points)
    shape = _vetted(_Shape(value, slope, kinks), spec)
    marks = " ".join(f"{v + 0.0:.11e}" for v in value(points)) + f" kinks {kinks}"
    made = _make("callable", spec, centre, shape, (call, centre, derivative, kinks, name), marks)
    if not shape.no_slope:
        _check_slope(made, given=derivative is not None)
    return made


def _guarded(call: Callable[[Any], Any], spec: str) -> Elementwise:
    """The callable with its result checked: the shape of x, real, in a fresh array of x's dtype."""

    def value(x: Any) -> Any:
        try:
            result = np.asarray(call(x))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{spec} must take an array and return one, but an array of shape {x.shape} gave: {error}"
                " (write it with NumPy functions, or wrap it in numpy.vectorize)"
            ) from error
        if result.shape != x.shape or result.dtype.kind not in "fiub":
            raise ValueError(
                f"{spec} must return real numbers in the shape of its argument {x.shape},"
                f" got shape {result.shape} and dtype {result.dtype}"
            )
        return result.astype(x.dtype)

    return value


def _check_elementwise(value: Elementwise, spec: str, points: Array) -> None:
    whole = value(points)
    parts = np.concatenate([value(points[:4]), value(points[4:5]), value(points[5:])])
    if not np.allclose(whole, parts, rtol=1e-12, atol=1e-300, equal_nan=True):
        raise ValueError(
            f"{spec} must act on each element alone, but its values change with the rest of the array"
        )
    value(points.reshape(3, 5))


def _difference(value: Elementwise, kinks: tuple[float, ...], finer: int = 1) -> Elementwise:
    """Sixth-order difference, one-sided near a kink; the step is a power of two, so that x + h is exact."""
    places = np.array(kinks)
    gap = min([abs(b - a) for a, b in pairwise(kinks)], default=1.0)
    step = 2.0 ** min(-7, math.floor(math.log2(gap / 8))) / finer
    central = np.array([-1, 9, -45, 0, 45, -9, 1]) / (60 * step)
    forward = np.array([-147, 360, -450, 400, -225, 72, -10]) / (60 * step)

    def slope(x: Any) -> Any:
        points = np.asarray(x, dtype=np.float64)
        nearest = places[np.argmin(np.abs(points[..., None] - places), axis=-1)] if places.size else np.inf
        side = np.where(np.abs(points - nearest) > 3 * step, 0, np.where(points >= nearest, 1, -1))
        result = np.zeros(points.shape)
        for j in range(7):
            offset = np.where(side == 0, j - 3, side * j)
            weight = np.where(side == 0, central[j], side * forward[j])
            result += weight * value(points + offset * step)
        return result.astype(x.dtype)

    return slope


def _check_slope(made: Function, *, given: bool) -> None:
    """A given derivative must be near the difference quotient, and a quotient near one with half its step."""
    points = np.linspace(-6.03, 6.01, 500)
    points = points[np.abs(points[:, None] - np.array([*made.kinks, np.inf])).min(axis=1) > 1e-3]
    guess = _difference(made._shape.value, made.kinks, 2)(points)
    size = 1 + float(np.abs(guess).max())
    off = float(np.abs(made.derivative(points) - guess).max())
    if given and not off <= 1e-2 * size:
        raise ValueError(
            f"the derivative given for {made.spec} is not its derivative: it is off by {off:.2g}"
        )
    if not given and not off <= 1e-7 * size:
        raise ValueError(f"{made.spec} varies too fast for a numerical derivative: give derivative=…")
