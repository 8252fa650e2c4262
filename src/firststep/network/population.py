"""Test errors over all inputs, free of test-set noise: closed forms and Hermite series of Gaussian averages."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from firststep.gaussian import Array, Function
from firststep.network.arrays import Matrix, diagonal, double, host, is_numpy, like, namespace, norm

# Largest error allowed in an entry of the population covariance that comes from a truncated Hermite series.
SERIES_TOLERANCE = 1e-10
SERIES_TERMS = 200
# For fewer neurons a closed form is not worth avoiding; for more it takes the time of so many passes.
SERIES_SIZE = 128
CLOSED_PASSES = 60
# Degree to which the coefficients of the series are expanded between two powers of 2 of the scale.
OCTAVE_DEGREE = 24
# Elements of a block that is worked on elementwise: it should stay in the cache, with a few temporaries. Other
# libraries' devices want large ones.
BLOCK_ELEMENTS = 65536
DEVICE_ELEMENTS = 2**22


class NoPopulationError(ValueError):
    """The population test error has no closed form or convergent series here: measure it on a test sample."""


def linear_test_error(coefficients: Array, beta: Array, teacher: Function, noise_variance: float) -> Array:
    r"""Population error of the linear predictors :math:`w \cdot x`, one for each row.

    .. math:: E(y - w \cdot x)^2 = E y^2 - 2 c_{*1} \beta \cdot w + |w|^2

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> axis = np.array([1.0, 0.0])
    >>> linear_test_error(axis, axis, function("h1 + h2"), 0.5).round(12).tolist()
    [2.5]
    """
    w = np.atleast_2d(coefficients)
    slope = float(teacher.hermite(2)[1])
    total = teacher.second_moment + noise_variance
    return cast(Array, total - 2 * slope * (w @ beta) + np.einsum("rd,rd->r", w, w))


@dataclass(frozen=True, eq=False)
class WeightProducts:
    r"""The products from which every step size's neuron Gram matrix follows in O(N^2).

    .. math:: W_1 W_1^\top = W_0 W_0^\top + \eta (W_0 G^\top + G W_0^\top) + \eta^2 G G^\top
    """

    constant: Matrix
    linear: Matrix
    quadratic: Matrix
    overlaps: tuple[Matrix, Matrix]

    @classmethod
    def of(cls, weights: Matrix, gradient: Matrix, beta: Matrix) -> "WeightProducts":
        """Products of W0 (N, d), G (N, d) and the teacher's direction beta (d,)."""
        constant, quadratic = weights @ weights.T, gradient @ gradient.T
        # Both mixed terms from the symmetric product of a sum, half the cost of W0 G^T; the factor makes its parts
        # of one size, so that nothing is lost when they are subtracted again.
        norms = norm(weights), norm(gradient)
        factor = norms[0] / norms[1] if norms[1] > 0 else 1.0
        both = weights + factor * gradient
        linear = both @ both.T
        linear -= constant
        linear -= factor**2 * quadratic
        linear /= factor
        return cls(constant, linear, quadratic, (weights @ beta, gradient @ beta))

    def at(self, step_size: float) -> tuple[Matrix, Array]:
        """Gram matrix W1 W1^T (N, N) and overlaps W1 beta (N,) for one step size eta.

        NumPy's Gram matrix is right on and above the diagonal only: computing it is bound by memory.
        """
        factor = float(step_size)
        overlaps = host(self.overlaps[0] + factor * self.overlaps[1])
        if not is_numpy(self.constant):
            return double((self.quadratic * factor + self.linear) * factor + self.constant), overlaps
        gram = np.empty_like(self.constant)
        for start, stop in _row_blocks(len(gram)):
            part = slice(start, stop), slice(start, None)
            block = self.quadratic[part] * factor
            block += self.linear[part]
            block *= factor
            np.add(block, self.constant[part], out=gram[part])
        return gram, overlaps


def population_test_error(
    coefficients: Array,
    gram: Matrix,
    overlaps: Array,
    activation: Function,
    teacher: Function,
    noise_variance: float,
) -> Array:
    r"""Test error of the fitted readouts over all inputs, free of test-set noise.

    .. math:: E(y - \hat a \cdot \sigma(W x))^2 = E y^2 - 2 \hat a \cdot k + \hat a^\top \Sigma \hat a, \quad
        k = E[y\,\sigma(W x)], \quad \Sigma = E\,\sigma(W x)\sigma(W x)^\top

    The covariance is a closed form where the activation has one, otherwise its Hermite series with a bound on
    what is left out [firststep].

    Parameters
    ----------
    coefficients : ndarray (R, N)
        Readouts :math:`\hat a`.
    gram : ndarray (N, N)
        :math:`W W^\top`, of which NumPy's is read on and above the diagonal only.
    overlaps : ndarray (N,)
        :math:`W \beta`, for a unit vector :math:`\beta`.
    activation, teacher : Function
        :math:`\sigma` and s.
    noise_variance : float
        Variance of the label noise.

    Raises
    ------
    NoPopulationError
        If there is no closed form and the series converges too slowly (neurons nearly parallel).

    Examples
    --------
    The network that is the teacher leaves the noise:

    >>> from firststep.gaussian import function
    >>> relu = function("relu")
    >>> error = population_test_error(np.array([[1.0]]), np.eye(1), np.ones(1), relu, relu, 0.25)
    >>> print(f"{error[0]:.10f}")
    0.2500000000
    """
    readouts = np.atleast_2d(coefficients)
    scales = np.sqrt(diagonal(gram))
    cosines = _cosines(overlaps, scales)
    variance = _variance(activation, scales)
    degree = _degree(teacher)
    if degree is None and activation.has_covariance:
        cross = _teacher_moments(activation, teacher, scales, cosines)
    else:
        if degree is None:
            series = _scaled_series(scales, variance, float(np.max(np.abs(cosines))), activation)
        else:
            series = _interpolated_series(activation, scales, degree + 1).T
        known = teacher.hermite_of_scaled([1.0], len(series))[0]
        cross = known @ (series * cosines ** np.arange(len(series))[:, None])
    total = teacher.second_moment + noise_variance
    quadratic = _quadratic_forms(readouts, gram, scales, variance, activation)
    return np.asarray(total - 2 * readouts @ cross + quadratic)


def _degree(teacher: Function) -> int | None:
    """Degree of a teacher that is a polynomial, None where it is none of a small degree."""
    known = np.abs(teacher.hermite_of_scaled([1.0], 12)[0])
    used = np.flatnonzero(known > 1e-15 * known.max(initial=1.0))
    degree = int(used[-1]) if used.size else 0
    return degree if teacher.tail(degree + 1) <= 1e-28 else None


def _quadratic_forms(
    readouts: Array, gram: Matrix, scales: Array, variance: Array, activation: Function
) -> Array:
    r"""Values :math:`a^\top \Sigma a` for each readout a.

    A few neurons that a step has turned towards each other would make the series long for all: the rows of
    these are taken by themselves.
    """
    closed = activation.has_covariance
    size = len(scales)
    if closed and (size < SERIES_SIZE or not scales.all()):
        return _summed(readouts, _closed_blocks(gram if is_numpy(gram) else host(gram), activation))
    peaks = _peaks(gram, scales)
    order = np.argsort(-peaks)
    counts = np.array([0, *(size >> shift for shift in range(6, 1, -1))] if size >= SERIES_SIZE else [0])
    needed = _terms_needed(peaks[order[counts]], float(variance.max()))
    # In passes over an entry: two for a term, and as many for a closed form as it takes the time of.
    row = CLOSED_PASSES if closed else 2 * min(needed[0], SERIES_TERMS)
    costs = size / 2 * 2 * needed + counts * row
    best = int(np.argmin(costs))
    if closed and costs[best] >= size / 2 * CLOSED_PASSES:
        return _summed(readouts, _closed_blocks(gram if is_numpy(gram) else host(gram), activation))
    hubs, largest = order[: counts[best]], peaks[order[counts[best]]]
    series = _scaled_series(scales, variance, float(largest if closed else peaks.max()), activation)
    others = readouts.copy()
    others[:, hubs] = 0.0
    enough = _enough(series, variance, float(largest))
    if is_numpy(gram):
        result = _summed(others, _series_blocks(gram, scales, enough, variance))
    else:
        result = _summed_elsewhere(others, gram, scales, enough, variance)
    for part in np.array_split(hubs, math.ceil(hubs.size * size / BLOCK_ELEMENTS)) if hubs.size else ():
        known = _rows(gram, part)
        if closed:
            block = activation.covariance(scales[part, None] ** 2, known, scales**2)
        else:
            known = known.astype(np.float64, copy=False)
            block = _series_block(known, scales[part], scales, series[:, part], series, _used(series))
            block[np.arange(part.size), part] = variance[part]
        # Pairs of a hub with another neuron count twice, pairs of two hubs from either side.
        result += np.einsum("rb,rb->r", readouts[:, part], (readouts + others) @ block.T)
    return result


def _summed(readouts: Array, blocks: Iterator[tuple[int, int, Array]]) -> Array:
    quadratic = np.zeros(len(readouts))
    for start, stop, block in blocks:
        # The block holds the columns from its first row on: the part right of its square counts twice.
        rows = readouts[:, start:stop]
        square = like(rows, block) @ block[:, : stop - start]
        rest = like(readouts[:, stop:], block) @ block[:, stop - start :].T
        quadratic += np.einsum("rb,rb->r", rows, square + 2 * rest)
    return quadratic


def _rows(gram: Any, chosen: NDArray[np.intp]) -> Array:
    """The chosen rows, as NumPy's."""
    if is_numpy(gram):
        rows = gram[chosen]
        for row, index in zip(rows, chosen, strict=True):
            row[:index] = gram[:index, index]
        return cast(Array, rows)
    xp = namespace(gram)
    return host(xp.stack([gram[int(index), :] for index in chosen]))


def _summed_elsewhere(readouts: Array, gram: Any, scales: Array, series: Array, variance: Array) -> Array:
    """Values of a^T Sigma a by the series, where another library's array lives."""
    used = _used(series)
    coefficients, inverse, weights = like(series, gram), like(1 / scales, gram), like(readouts, gram)
    total = like(np.zeros(len(readouts)), gram)
    size = max(1, DEVICE_ELEMENTS // len(scales))
    xp = namespace(gram)
    for start in range(0, len(scales), size):
        part = slice(start, min(len(scales), start + size))
        rho = gram[part, :] * inverse[part][:, None] * inverse[None, :]
        power = rho**used.step
        block = xp.zeros_like(rho)
        for k in reversed(used):
            block = block * power + coefficients[k, part][:, None] * coefficients[k, :][None, :]
        block = block * rho**used.start
        total = total + xp.sum(weights[:, part] * (weights @ block.T), axis=1)
    # The series of a neuron with itself, where the cosine is 1, is not what the tolerance is about.
    itself = variance - np.sum(series[list(used)] ** 2, axis=0)
    return cast(Array, host(total) + readouts**2 @ itself)


def _cosines(overlaps: Array, scales: Array) -> Array:
    safe = np.where(scales > 0, scales, 1.0)
    return cast(Array, np.clip(overlaps / safe, -1.0, 1.0))


def _teacher_moments(activation: Function, teacher: Function, scales: Array, cosines: Array) -> Array:
    """k_j = E[s(t) sigma(w_j x)] = E_t[s(t) E_g sigma(|w_j| (rho_j t + sqrt(1 - rho_j^2) g))], t = beta x."""
    nodes, weights = _gaussian_rule(teacher.kinks)
    spread = scales * np.sqrt((1 - cosines) * (1 + cosines))
    shift = scales * cosines
    weighted = weights * teacher(nodes)
    result = np.empty_like(scales)
    block = BLOCK_ELEMENTS // len(nodes)
    for start in range(0, len(scales), block):
        part = slice(start, start + block)
        result[part] = (
            weighted @ activation.gaussian_moments(spread[part], np.multiply.outer(nodes, shift[part]))[0]
        )
    return result


@lru_cache(maxsize=64)
def _gaussian_rule(kinks: tuple[float, ...], reach: float = 9.0, nodes: int = 12) -> tuple[Array, Array]:
    """Nodes and weights for E f(Z), f smooth between the kinks and 0, where most activations bend."""
    edges = sorted({-reach, 0.0, reach, *(k for k in kinks if abs(k) < reach)})
    ends = np.concatenate(
        [np.linspace(a, b, math.ceil(b - a) + 1)[:-1] for a, b in pairwise(edges)] + [[reach]]
    )
    unit, weights = np.polynomial.legendre.leggauss(nodes)
    half = np.diff(ends)[:, None] / 2
    points = (ends[:-1, None] + half * (1 + unit)).ravel()
    density = np.exp(-0.5 * points**2) / math.sqrt(2 * math.pi)
    return points, (half * weights).ravel() * density


def _row_blocks(size: int) -> Iterator[tuple[int, int]]:
    start = 0
    while start < size:
        stop = min(size, start + max(1, BLOCK_ELEMENTS // (size - start)))
        yield start, stop
        start = stop


def _closed_blocks(gram: Matrix, activation: Function) -> Iterator[tuple[int, int, Array]]:
    variances = np.diagonal(gram)
    for start, stop in _row_blocks(len(gram)):
        yield (
            start,
            stop,
            activation.covariance(variances[start:stop, None], gram[start:stop, start:], variances[start:]),
        )


def _peaks(gram: Matrix, scales: Array) -> Array:
    """Largest absolute cosine of each neuron with another."""
    inverse = 1 / scales
    if not is_numpy(gram):
        return _peaks_elsewhere(gram, inverse)
    result = np.zeros(len(scales))
    for start, stop in _row_blocks(len(gram)):
        block = np.abs(gram[start:stop, start:])
        block *= inverse[start:]
        block *= inverse[start:stop, None]
        np.fill_diagonal(block, 0.0)
        np.maximum(result[start:], block.max(axis=0), out=result[start:])
        np.maximum(result[start:stop], block.max(axis=1), out=result[start:stop])
    return result


def _peaks_elsewhere(gram: Any, inverse: Array) -> Array:
    xp, factors = namespace(gram), like(inverse, gram)
    size = max(1, DEVICE_ELEMENTS // len(inverse))
    found = []
    for start in range(0, len(inverse), size):
        part = slice(start, min(len(inverse), start + size))
        cosines = xp.abs(gram[part, :]) * factors[part][:, None] * factors[None, :]
        others = 1 - np.eye(cosines.shape[0], len(inverse), start)
        found.append(host(xp.max(cosines * like(others, gram), axis=1)))
    return np.concatenate(found)


def _terms_needed(cosine: Array, variance: float) -> Array:
    """Terms of the series whose rest, at most cosine^K times the variance, is surely within the tolerance."""
    with np.errstate(divide="ignore"):
        needed = math.log(SERIES_TOLERANCE / max(variance, SERIES_TOLERANCE)) / np.log(
            np.minimum(cosine, 1.0)
        )
    return np.where(cosine < 1, np.ceil(2.0 + needed), np.inf)


def _variance(activation: Function, scales: Array) -> Array:
    """E sigma(s_j g)^2; analytic in s as the coefficients are, for activations whose averages take long."""
    if not activation.has_covariance and len(scales) >= OCTAVE_DEGREE and scales.all():
        interpolated = _over_octaves(scales, 1, lambda octave: _octave_variance(activation, octave))
        if interpolated is not None:
            return interpolated[:, 0]
    return activation.gaussian_moments(scales, 0.0)[2]


def _scaled_series(scales: Array, variance: Array, largest: float, activation: Function) -> Array:
    """Coefficients (K, N) of sigma(|w_j| g), enough of them for pairs of neurons up to the given cosine."""
    count = np.minimum(_terms_needed(np.array([largest]), float(variance.max())), SERIES_TERMS)
    series = np.ascontiguousarray(_interpolated_series(activation, scales, int(count[0])).T)
    enough = _enough(series, variance, largest)
    if largest >= 1 or not len(enough):
        raise NoPopulationError(
            f"{activation.spec} has no closed form and its series no fast convergence at cosine {largest:.4f}"
        )
    return enough


def _enough(series: Array, variance: Array, largest: float) -> Array:
    """The leading terms that matter for pairs up to the given cosine; none if these are too few."""
    # The terms from K on are at most largest^K times the variance that the first K coefficients leave.
    left = variance - np.cumsum(series**2, axis=0)
    bounds = largest ** np.arange(1, len(series) + 1) * np.maximum(left, 0.0).max(axis=1)
    enough = np.flatnonzero(bounds <= SERIES_TOLERANCE)
    return series[: enough[0] + 1 if enough.size else 0]


def _interpolated_series(activation: Function, scales: Array, count: int) -> Array:
    """Normalised Hermite coefficients (N, count) of sigma(s_j g): analytic in s, so a few scales give all."""
    if len(scales) < OCTAVE_DEGREE or not scales.all():
        return activation.hermite_of_scaled(scales, count)
    expanded = 64 * math.ceil(count / 64)
    found = _over_octaves(scales, count, lambda octave: _octave_series(activation, octave, expanded))
    return activation.hermite_of_scaled(scales, count) if found is None else found


def _over_octaves(scales: Array, count: int, expansion: Callable[[int], Array | None]) -> Array | None:
    """Values (N, count) at the scales from expansions between powers of 2; None where one is not accurate."""
    result = np.empty((len(scales), count))
    octaves = np.floor(np.log2(scales)).astype(int)
    for octave in np.unique(octaves):
        inside = octaves == octave
        coefficients = expansion(int(octave))
        if coefficients is None:
            return None
        places = 2 * (np.log2(scales[inside]) - octave) - 1
        result[inside] = np.polynomial.chebyshev.chebvander(places, OCTAVE_DEGREE) @ coefficients[:, :count]
    return result


@lru_cache(maxsize=64)
def _octave_series(activation: Function, octave: int, count: int) -> Array | None:
    """Expansion of the coefficients; kept, because every step size and replica asks for it again."""
    return _octave_expansion(octave, lambda scales: activation.hermite_of_scaled(scales, count))


@lru_cache(maxsize=64)
def _octave_variance(activation: Function, octave: int) -> Array | None:
    return _octave_expansion(octave, lambda scales: activation.gaussian_moments(scales, 0.0)[2][:, None])


def _octave_expansion(octave: int, function: Callable[[Array], Array]) -> Array | None:
    """Chebyshev expansion, in the logarithm of the scale, between two powers of 2; None where not accurate."""
    chebyshev = np.polynomial.chebyshev
    points, probes = chebyshev.chebpts1(OCTAVE_DEGREE + 1), np.linspace(-0.97, 0.98, 5)
    values = function(2.0 ** (octave + (np.append(points, probes) + 1) / 2))
    expansion = np.linalg.solve(chebyshev.chebvander(points, OCTAVE_DEGREE), values[:-5])
    missed = np.abs(chebyshev.chebvander(probes, OCTAVE_DEGREE) @ expansion - values[-5:]).max()
    return cast(Array, expansion) if missed <= 1e-12 * np.abs(values).max() else None


def _series_blocks(
    gram: Matrix, scales: Array, series: Array, variance: Array
) -> Iterator[tuple[int, int, Array]]:
    used = _used(series)
    scales, series = scales.astype(gram.dtype), series.astype(gram.dtype)
    for start, stop in _row_blocks(len(gram)):
        block = _series_block(
            gram[start:stop, start:],
            scales[start:stop],
            scales[start:],
            series[:, start:stop],
            series[:, start:],
            used,
        )
        np.fill_diagonal(block, variance[start:stop])
        yield start, stop, block


def _series_block(gram: Matrix, left: Array, right: Array, rows: Array, columns: Array, used: range) -> Array:
    """Sum over k of c_k(s_i) c_k(s_j) rho_ij^k, for the scales and coefficients of the block's rows and columns."""
    rho = gram / right
    rho /= left[:, None]
    power = rho * rho if used.step > 1 else rho
    block = np.multiply.outer(rows[used[-1]], columns[used[-1]])
    add_outer = blas.dger if block.dtype == np.float64 else blas.sger
    for k in reversed(used[:-1]):
        block *= power
        # Adds an outer product in place, which the transpose of a C-ordered array allows.
        add_outer(1.0, columns[k], rows[k], a=block.T, overwrite_a=1)
    if used.start:
        block *= rho**used.start if used.start > 1 else rho
    return cast(Array, block)


def _used(series: Array) -> range:
    """Degrees of the terms that matter; odd and even activations have every other one only."""
    degrees = np.flatnonzero(np.abs(series).max(axis=1) > 1e-14)
    if not degrees.size:
        return range(1)
    step = 2 if degrees.size > 1 and np.all(np.diff(degrees) % 2 == 0) else 1
    return range(int(degrees[0]), int(degrees[-1]) + 1, step)
