"""Functions by name: values, slopes and, where they exist, closed forms of their Gaussian averages."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from firststep.gaussian.rules import (
    _BLOCK,
    _REACHES,
    _ROOT_2PI,
    Array,
    Averages,
    Elementwise,
    _density,
    gauss_hermite,
    hermite_polynomials,
)

LEAKY_SLOPE = 0.01
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
MAX_HERMITE_NAME = 20
# From this scale on a logistic function is averaged as a step and what lies beside it.
STEEP = 30.0
# phi vanishes in double precision from here on.
_FARTHEST = 39.0


@dataclass(frozen=True, slots=True)
class _Shape:
    """An uncentred function and what is known of it in closed form.

    ``moments(s, t)`` are those of Function.gaussian_averages, ``product(v1, cov, v2)`` is E f(x1) f(x2),
    ``coefficients(s, count)`` has rows E[f(s g) h_k(g)], ``polynomial`` holds c_k, ``no_slope`` says why the
    function cannot be an activation, ``corner`` is the change of slope at 0 of a function without other curvature.
    """

    value: Elementwise
    slope: Elementwise
    kinks: tuple[float, ...] = ()
    moments: Callable[[Array, Array], Averages] | None = None
    product: Callable[[Array, Array, Array], Array] | None = None
    coefficients: Callable[[Array, int], Array] | None = None
    polynomial: tuple[float, ...] | None = None
    no_slope: str = ""
    corner: float | None = None


def _ratio(scale: Array, shift: Array) -> Array:
    """t/s, with its limit for s = 0."""
    if not shift.any():
        return np.zeros(shift.shape)
    limit = np.where(shift == 0, 0.0, np.copysign(np.inf, shift))
    with np.errstate(over="ignore"):
        return np.divide(shift, scale, out=limit, where=scale > 0)


def _each(call: Callable[[float], float], x: Array) -> Array:
    """A function of Python's math module at every element.

    SciPy's ufuncs take a fifth of its time, but their import takes longer than a prediction, and predictions with
    ReLU ask for some ten thousand values.
    """
    return np.fromiter(map(call, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def _below(x: Array) -> Array:
    """Share of a standard Gaussian below x, with all digits far below 0 as well."""
    if not x.any():
        return np.full(x.shape, 0.5)
    return 0.5 * _each(math.erfc, x * -math.sqrt(0.5))


def _positive_powers(scale: Array, shift: Array, top: int) -> tuple[Array, list[Array]]:
    """s phi(t/s), and E max(x, 0)^k for x = s g + t and k = 0 … top, by integration by parts."""
    ratio = _ratio(scale, shift)
    with np.errstate(over="ignore"):
        bump = scale * np.exp(-0.5 * ratio * ratio) / _ROOT_2PI
    powers = [_below(ratio)]
    powers.append(shift * powers[0] + bump)
    for k in range(2, top + 1):
        powers.append(shift * powers[-1] + (k - 1) * scale * scale * powers[-2])
    return bump, powers


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

    def moments(s: Array, t: Array) -> Averages:
        bump, powers = _positive_powers(s, t, 2)
        return (
            slope * t + (1 - slope) * powers[1],
            s * (slope + (1 - slope) * powers[0]),
            slope**2 * (t * t + s * s) + (1 - slope**2) * powers[2],
            (1 - slope) * bump,
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

    return _Shape(value, derivative, (0.0,), moments, product, coefficients, corner=1 - slope)


def _corner_sums(scale: Array, shift: Array, count: int) -> Array:
    r"""E[h_k(g) max(s g + t, 0)] for k = 2 … count - 1, by k integrations by parts; along a new first axis.

    .. math:: E[h_k(g)\,(s g + t)_+] = \frac{(-1)^k}{\sqrt{k(k-1)}}\,s\,h_{k-2}(t/s)\,\varphi(t/s)
    """
    # Beyond this the density is zero, whatever the polynomials are.
    ratio = np.clip(_ratio(scale, shift), -_FARTHEST, _FARTHEST)
    degree = np.arange(2, count).reshape(-1, *[1] * ratio.ndim)
    signs = np.where(degree % 2, -1.0, 1.0) / np.sqrt(degree * (degree - 1))
    return np.asarray(
        hermite_polynomials(ratio, count - 2, normalised=True) * (scale * _density(ratio)) * signs
    )


def _relu2() -> _Shape:
    """max(x, 0)^2, by the arc-cosine kernel of degree two."""

    def moments(s: Array, t: Array) -> Averages:
        _, powers = _positive_powers(s, t, 4)
        return powers[2], 2 * s * powers[1], powers[4], 2 * s * s * powers[0]

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
    def moments(s: Array, t: Array) -> Averages:
        ratio = _ratio(s, t)
        with np.errstate(over="ignore"):
            bump = np.where(s > 0, np.exp(-0.5 * ratio * ratio) * (2 / _ROOT_2PI), 0.0)
        square = np.where((s > 0) | (t != 0), 1.0, 0.0)
        bend = -np.where(bump > 0, ratio, 0.0) * bump
        return _each(math.erf, ratio * math.sqrt(0.5)), bump, square, bend

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
    from scipy import special

    height = 2 / math.sqrt(math.pi)

    def moments(s: Array, t: Array) -> Averages:
        spread = np.sqrt(1 + 2 * s * s)
        ratio = t / spread
        slope = height * s * np.exp(-ratio * ratio) / spread
        return (
            np.asarray(special.erf(ratio)),
            slope,
            1 - 8 * np.asarray(special.owens_t(math.sqrt(2) * ratio, 1 / np.sqrt(1 + 4 * s * s))),
            -2 * s * ratio / spread * slope,
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
    from scipy import special

    def slope(x: Any) -> Any:
        return special.ndtr(x) + x * np.exp(-0.5 * x * x) / _ROOT_2PI

    def moments(s: Array, t: Array) -> Averages:
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
            square * density * (2 - (t * t / spread + square) / spread),
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

    def moments(s: Array, t: Array) -> Averages:
        damp = np.exp(-0.5 * s * s)
        value, slope = (np.cos(t), -np.sin(t)) if cosine else (np.sin(t), np.cos(t))
        square = 0.5 + 0.5 * sign * np.cos(2 * t) * damp**4
        return value * damp, s * slope * damp, square, -s * s * value * damp

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
    from scipy import special

    def value(x: Any) -> Any:
        return scale * np.maximum(x, 0) + (scale * alpha) * np.expm1(np.minimum(x, 0))

    def slope(x: Any) -> Any:
        return np.where(x > 0, x.dtype.type(scale), (scale * alpha) * np.exp(np.minimum(x, 0)))

    def moments(s: Array, t: Array) -> Averages:
        bump, powers = _positive_powers(s, t, 2)
        ratio = _ratio(s, t)
        below = _below(-ratio)
        first = np.exp(t + s * s / 2 + special.log_ndtr(-ratio - s))
        second = np.exp(2 * t + 2 * s * s + special.log_ndtr(-ratio - 2 * s))
        return (
            scale * (powers[1] + alpha * (first - below)),
            scale * s * (powers[0] + alpha * first),
            scale**2 * (powers[2] + alpha**2 * (second - 2 * first + below)),
            scale * ((1 - alpha) * bump + alpha * s * s * first),
        )

    return _Shape(value, slope, (0.0,), moments)


def _logistic_averages(scale: Array, shift: Array, soft: bool) -> tuple[Array, Array]:
    """E g^p y, p = 0 … 3, and E g^p y^2, p < 3, of y = 1/(1+exp(-x)), or if soft log(1+exp(x)), at x = s g + t."""
    first, second = np.empty((scale.size, 4)), np.empty((scale.size, 3))
    steep = scale > STEEP
    for members, average in ((~steep, _gentle_logistic), (steep, _steep_logistic)):
        if members.any():
            first[members], second[members] = average(scale[members], shift[members], soft)
    return first, second


def _steep_logistic(scale: Array, shift: Array, soft: bool) -> tuple[Array, Array]:
    """The same from a step, or a ramp, and what lies beside it, which has the width 1 in x and ends within 40."""
    from scipy import special

    # Beyond 40 the density is zero in floating-point numbers.
    edge = np.clip(-shift / scale, -40.0, 40.0)
    # Integrals of g^k over g above the edge.
    density, moments = _density(edge), [special.ndtr(-edge)]
    moments.append(density)
    for k in range(2, 5):
        moments.append(edge ** (k - 1) * density + (k - 1) * moments[k - 2])
    nodes, weights = np.polynomial.legendre.leggauss(60)
    x = np.concatenate([-20 * (1 + nodes), 20 * (1 + nodes)])
    weights = np.tile(20 * weights, 2)
    above = np.maximum(x, 0.0) if soft else (x > 0).astype(float)
    value = _softplus(x) if soft else special.expit(x)
    beside, square = (value - above) * weights, (value**2 - above**2) * weights
    first, second = np.empty((scale.size, 4)), np.empty((scale.size, 3))
    for start in range(0, scale.size, _BLOCK // x.size):
        rows = slice(start, start + _BLOCK // x.size)
        g = np.clip((x - shift[rows, None]) / scale[rows, None], -40.0, 40.0)
        mass = _density(g) / scale[rows, None]
        for p in range(4):
            first[rows, p] = mass @ beside
            if p < 3:
                second[rows, p] = mass @ square
            mass *= g
    if not soft:
        return first + np.stack(moments[:4], axis=1), second + np.stack(moments[:3], axis=1)
    for p in range(4):
        first[:, p] += scale * moments[p + 1] + shift * moments[p]
    for p in range(3):
        second[:, p] += scale * (scale * moments[p + 2] + 2 * shift * moments[p + 1]) + shift**2 * moments[p]
    return first, second


def _gentle_logistic(scale: Array, shift: Array, soft: bool) -> tuple[Array, Array]:
    """The same by the trapezoid rule.

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
    first, second = np.empty((scale.size, 4)), np.empty((scale.size, 3))
    direct = float(np.max(np.abs(shift) + reach * scale)) > 600
    sign = 1.0 if soft else -1.0
    for count in sorted({*half.tolist()}):
        nodes = np.linspace(-reach, reach, 2 * int(count) + 1)
        weights = _density(nodes) * (reach / count)
        columns = weights[:, None] * nodes[:, None] ** np.arange(4)
        members = np.flatnonzero(half[group] == count)
        place = np.cumsum(half == count) - 1
        factors = None if direct else np.exp(sign * np.multiply.outer(distinct[half == count], nodes))
        block = max(1, _BLOCK // nodes.size)
        for start in range(0, members.size, block):
            rows = members[start : start + block]
            if factors is None:
                from scipy import special

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
            second[rows] = values @ columns[:, :3]
    return first, second


def _softplus(x: Any) -> Any:
    # log(1 + …) is right to rounding of the sum and, unlike log1p, vectorised.
    return np.log(np.exp(-np.abs(x)) + 1) + np.maximum(x, 0)


def _logistic_moments(name: str) -> Callable[[Array, Array], Averages]:
    """Averages of tanh, sigmoid, softplus or silu from those of the logistic function."""

    def moments(s: Array, t: Array) -> Averages:
        stretch = 2.0 if name == "tanh" else 1.0
        first, second = _logistic_averages(stretch * s.ravel(), stretch * t.ravel(), name == "softplus")
        y, yy = first.T.reshape(4, *s.shape), second.T.reshape(3, *s.shape)
        bend = y[2] - y[0]
        if name == "tanh":
            return 2 * y[0] - 1, 2 * y[1], 4 * (yy[0] - y[0]) + 1, 2 * bend
        if name == "silu":
            square = s * (s * yy[2] + 2 * t * yy[1]) + t * t * yy[0]
            return s * y[1] + t * y[0], s * y[2] + t * y[1], square, s * (y[3] - y[1]) + t * bend
        return y[0], y[1], yy[0], bend

    return moments


def _tanh_slope(x: Any) -> Any:
    value = np.tanh(x)
    return 1 - value * value


def _logistic(name: str) -> _Shape:
    """sigmoid, softplus or silu."""
    from scipy import special

    def silu_slope(x: Any) -> Any:
        step = special.expit(x)
        return step * (1 + x * (1 - step))

    pairs: dict[str, tuple[Elementwise, Elementwise]] = {
        "sigmoid": (special.expit, lambda x: special.expit(x) * special.expit(-x)),
        "softplus": (_softplus, special.expit),
        "silu": (lambda x: x * special.expit(x), silu_slope),
    }
    return _Shape(*pairs[name], (), _logistic_moments(name))


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

    def moments(s: Array, t: Array) -> Averages:
        # E H_k(s g + t) = p_k with p_{k+1} = t p_k - k (1 - s^2) p_{k-1}, E g f = s E f', E (g^2 - 1) f = s^2 E f''.
        shrink = 1 - s * s
        m0, m1, bend = np.full(s.shape, c[0]), np.zeros(s.shape), np.zeros(s.shape)
        before, now = np.zeros(s.shape), np.ones(s.shape)
        for k in range(1, degree + 1):
            m1 += slopes[k - 1] * now
            bend += (k - 1) * slopes[k - 1] * before
            before, now = now, t * now - (k - 1) * shrink * before
            m0 += c[k] * now
        bend *= s * s
        if degree == 1:
            return m0, s * m1, m0 * m0 + np.square(s * m1), bend
        nodes, weights = gauss_hermite(degree + 1)
        values = _clenshaw(c, np.multiply.outer(s, nodes) + t[..., None])
        return m0, s * m1, np.square(values) @ weights, bend

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

    def moments(s: Array, t: Array) -> Averages:
        assert base.moments is not None
        m0, m1, m2, bend = base.moments(abs(inner) * s, inner * t + shift)
        return (
            outer * m0 + offset,
            math.copysign(outer, outer * inner) * m1,
            outer * (outer * m2 + 2 * offset * m0) + offset * offset,
            outer * bend,
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


class _Builtins(Mapping[str, _Shape]):
    """Shapes by name, each made when first asked for: some need `scipy.special`, which is slow to import."""

    def __init__(self, makers: Mapping[str, Callable[[], _Shape]]) -> None:
        self._makers, self._made = makers, dict[str, _Shape]()

    def __getitem__(self, name: str) -> _Shape:
        shape = self._made.get(name)
        return self._made.setdefault(name, self._makers[name]()) if shape is None else shape

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@lru_cache(maxsize=1)
def _builtins() -> Mapping[str, _Shape]:
    makers: dict[str, Callable[[], _Shape]] = {
        "identity": partial(_polynomial, (0.0, 1.0)),
        "relu": partial(_leaky, 0.0),
        "leaky_relu": partial(_leaky, LEAKY_SLOPE),
        "tanh": lambda: _Shape(np.tanh, _tanh_slope, (), _logistic_moments("tanh")),
        "erf": _erf,
        "sigmoid": partial(_logistic, "sigmoid"),
        "softplus": partial(_logistic, "softplus"),
        "gelu": _gelu,
        "silu": partial(_logistic, "silu"),
        "sin": partial(_wave, cosine=False),
        "cos": partial(_wave, cosine=True),
        "abs": partial(_leaky, -1.0),
        "sign": _sign,
        "elu": partial(_elu, 1.0, 1.0),
        "selu": partial(_elu, SELU_SCALE, SELU_ALPHA),
        "relu2": _relu2,
        "cubic": partial(_polynomial, (0.0, 3.0, 0.0, 1.0)),
    }
    for k in range(MAX_HERMITE_NAME + 1):
        makers[f"h{k}"] = partial(_polynomial, (0.0,) * k + (1.0,))
    return _Builtins(makers)


def names() -> tuple[str, ...]:
    """Names of the built-in activations and teachers, those of the Hermite polynomials H_0 … H_20 last.

    Examples
    --------
    >>> names()[:5]
    ('identity', 'relu', 'leaky_relu', 'tanh', 'erf')
    """
    return tuple(_builtins())
