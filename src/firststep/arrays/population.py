"""Test errors over all inputs, free of test-set noise: closed forms and Hermite series of Gaussian averages."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from firststep.arrays.library import (
    Matrix,
    diagonal,
    double,
    dtype_name,
    host,
    is_numpy,
    like,
    namespace,
    norm,
)
from firststep.arrays.scaled import ScaledActivation
from firststep.gaussian import Array, Function, MultiFunction
from firststep.gaussian.multivariate import PolynomialPart, RidgePart
from firststep.gaussian.products import factorial, indices

# Largest error allowed in an entry of the population covariance that comes from a truncated Hermite series.
SERIES_TOLERANCE = 1e-10
SERIES_TERMS = 200
# Mixed parts of a teacher of several directions: most degrees of their series, by the number of directions, and the
# largest error allowed in a moment with a neuron.
MIXED_DEGREES = {2: 30, 3: 16, 4: 10}
MIXED_TOLERANCE = 1e-8
# For fewer neurons a closed form is not worth avoiding; for more it takes the time of so many passes. Both it and the
# rows of single neurons are computed in float64. Taking some neurons apart costs as much as so many elements of a pass.
SERIES_SIZE = 128
CLOSED_PASSES = {"float64": 60.0, "float32": 120.0}
ROW_PASSES = {"float64": 1.0, "float32": 2.0}
APART_ELEMENTS = 4e5
# Elements of a block that is worked on elementwise: it should stay in the cache, with a few temporaries. Other
# libraries' devices want large ones.
BLOCK_ELEMENTS = 65536
DEVICE_ELEMENTS = 2**22


class NoPopulationError(ValueError):
    """The population test error has no closed form or convergent series here: measure it on a test sample."""


Teacher = Function | MultiFunction


def linear_test_error(coefficients: Array, beta: Array, teacher: Teacher, noise_variance: float) -> Array:
    r"""Population error of the linear predictors :math:`w \cdot x`, one for each row.

    .. math:: E(y - w \cdot x)^2 = E y^2 - 2 c_{*1} \beta \cdot w + |w|^2

    For a teacher of several directions, the columns of `beta`, :math:`\beta\, E\nabla s` takes the place of
    :math:`c_{*1} \beta`.

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> axis = np.array([1.0, 0.0])
    >>> linear_test_error(axis, axis, function("h1 + h2"), 0.5).round(12).tolist()
    [2.5]
    """
    w = np.atleast_2d(coefficients)
    total = teacher.second_moment + noise_variance
    if isinstance(teacher, MultiFunction):
        along = w @ (beta @ teacher.gradient_mean)
    else:
        along = float(teacher.hermite(2)[1]) * (w @ beta)
    return cast(Array, total - 2 * along + np.einsum("rd,rd->r", w, w))


@dataclass(frozen=True, eq=False)
class Neurons:
    r"""Lengths of a first layer's rows and angles between them: all that test errors know of the weights.

    Attributes
    ----------
    scales : ndarray (N,)
        :math:`|w_j|`.
    overlaps : ndarray (N,) or (N, k)
        :math:`w_j \cdot \beta`, for the teacher's direction :math:`\beta` of unit length, or its k directions.
    cosines : ndarray (N, N)
        Of the angles between different neurons, and 0 on the diagonal. NumPy's is set in blocks of rows from their
        first diagonal element on, because computing it is bound by memory.
    peaks : ndarray (N,)
        Largest absolute cosine of each neuron with another.

    Examples
    --------
    >>> neurons = Neurons.of(np.array([[4.0, 1.0], [1.0, 1.0]]), np.zeros(2))
    >>> neurons.scales.tolist(), neurons.peaks.tolist()
    ([2.0, 1.0], [0.5, 0.5])
    """

    scales: Array
    overlaps: Array
    cosines: Matrix
    peaks: Array

    @classmethod
    def of(cls, gram: Matrix, overlaps: Array) -> "Neurons":
        r"""From :math:`W W^\top` (N, N), of which NumPy's is read on and above the diagonal only, and the overlaps."""
        scales = np.sqrt(diagonal(gram))
        if is_numpy(gram):
            blocks = ((*ends, gram[slice(*ends), ends[0] :].copy()) for ends in _row_blocks(len(gram)))
            return cls._from_blocks(scales, overlaps, np.empty_like(gram), blocks)
        xp, inverse = namespace(gram), like(_inverses(scales), gram)
        cosines = gram * inverse[:, None] * inverse[None, :]
        cosines = cosines * like(1 - np.eye(len(scales)), gram)
        return cls(scales, overlaps, cosines, host(xp.max(xp.abs(cosines), axis=1)))

    @classmethod
    def _from_blocks(
        cls, scales: Array, overlaps: Array, out: Matrix, blocks: Iterable[tuple[int, int, Matrix]]
    ) -> "Neurons":
        """From blocks of rows of the Gram matrix, which are overwritten while they are in the cache."""
        inverse, peaks = _inverses(scales).astype(out.dtype), np.zeros(len(scales), dtype=out.dtype)
        for start, stop, block in blocks:
            block *= inverse[start:]
            block *= inverse[start:stop, None]
            np.fill_diagonal(block, 0.0)
            out[start:stop, start:] = block
            np.abs(block, out=block)
            np.maximum(peaks[start:], block.max(axis=0), out=peaks[start:])
            np.maximum(peaks[start:stop], block.max(axis=1), out=peaks[start:stop])
        return cls(scales, overlaps, out, peaks.astype(np.float64))

    def test_error(
        self, coefficients: Array, activation: Function, teacher: Teacher, noise_variance: float
    ) -> Array:
        """`population_test_error` of these neurons."""
        readouts = np.atleast_2d(coefficients)
        scaled = ScaledActivation(activation, self.scales)
        if isinstance(teacher, MultiFunction):
            cross = _several_moments(scaled, teacher, self.overlaps * _inverses(self.scales)[:, None])
        else:
            cross = _cross_moments(scaled, teacher, _cosines(self.overlaps, self.scales))
        total = teacher.second_moment + noise_variance
        return np.asarray(total - 2 * readouts @ cross + _quadratic_forms(readouts, self, scaled))


@dataclass(frozen=True, eq=False)
class WeightProducts:
    r"""The products from which every step size's neurons follow in O(N^2).

    .. math:: W_1 W_1^\top = W_0 W_0^\top + \eta (W_0 G^\top + G W_0^\top) + \eta^2 G G^\top

    NumPy's are right on and above the diagonal only.
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
        whole = [(slice(None), slice(None))]
        for part in _triangle(len(linear)) if is_numpy(linear) else whole:
            block = linear[part] - constant[part]
            block -= factor**2 * quadratic[part]
            block /= factor
            linear[part] = block
        return cls(constant, linear, quadratic, (weights @ beta, gradient @ beta))

    def at(self, step_size: float) -> Neurons:
        """The neurons after a step of size eta."""
        factor = float(step_size)
        overlaps = host(self.overlaps[0] + factor * self.overlaps[1])
        if not is_numpy(self.constant):
            gram = double((self.quadratic * factor + self.linear) * factor + self.constant)
            return Neurons.of(gram, overlaps)
        parts = [np.diagonal(matrix) for matrix in (self.quadratic, self.linear, self.constant)]
        scales = np.sqrt(host((parts[0] * factor + parts[1]) * factor + parts[2]))
        return Neurons._from_blocks(scales, overlaps, np.empty_like(self.constant), self._blocks(factor))

    def _blocks(self, factor: float) -> Iterator[tuple[int, int, Matrix]]:
        for rows, columns in _triangle(len(self.constant)):
            part = rows, columns
            block = self.quadratic[part] * factor
            block += self.linear[part]
            block *= factor
            block += self.constant[part]
            yield rows.start, rows.stop, block


def population_test_error(
    coefficients: Array,
    gram: Matrix,
    overlaps: Array,
    activation: Function,
    teacher: Teacher,
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
    overlaps : ndarray (N,) or (N, k)
        :math:`W \beta`, for a unit vector :math:`\beta` or k orthonormal ones.
    activation, teacher : Function
        :math:`\sigma` and s; the latter may be of k directions.
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
    neurons = Neurons.of(gram, overlaps)
    return neurons.test_error(coefficients, activation, teacher, noise_variance)


@lru_cache(maxsize=64)
def _degree(teacher: Function) -> int | None:
    """Degree of a teacher that is a polynomial, None where it is none of a small degree."""
    known = np.abs(teacher.hermite_of_scaled([1.0], 12)[0])
    used = np.flatnonzero(known > 1e-15 * known.max(initial=1.0))
    degree = int(used[-1]) if used.size else 0
    return degree if teacher.tail(degree + 1) <= 1e-28 else None


def _quadratic_forms(readouts: Array, neurons: Neurons, scaled: ScaledActivation) -> Array:
    r"""Values :math:`a^\top \Sigma a` for each readout a.

    A few neurons that a step has turned towards each other would make the series long for all: the rows of
    these are taken by themselves.
    """
    activation, scales, variance = scaled.activation, scaled.scales, scaled.variance
    closed, size, kind = activation.has_covariance, len(scales), dtype_name(neurons.cosines)
    if closed and (size < SERIES_SIZE or not scales.all()):
        return _summed(readouts, _closed_blocks(neurons, scaled))
    order = np.argsort(-neurons.peaks)
    counts = np.array([0, *(size >> shift for shift in range(6, 1, -1))] if size >= SERIES_SIZE else [0])
    # In passes over an entry: two for a term, and as many for a closed form as it takes the time of.
    passes = 2 * _terms_needed(neurons.peaks[order[counts]], float(variance.max())) / _stride(activation)
    row = CLOSED_PASSES[kind] if closed else ROW_PASSES[kind] * min(passes[0], 2 * SERIES_TERMS)
    costs = size / 2 * passes + counts * row + (counts > 0) * (APART_ELEMENTS / size)
    best = int(np.argmin(costs))
    if closed and costs[best] >= size / 2 * CLOSED_PASSES[kind]:
        return _summed(readouts, _closed_blocks(neurons, scaled))
    hubs, largest = order[: counts[best]], float(neurons.peaks[order[counts[best]]])
    series = _enough_series(scaled, largest if closed else float(neurons.peaks.max()))
    others = readouts.copy()
    others[:, hubs] = 0.0
    enough = series if closed else _enough(series, variance, largest)
    if is_numpy(neurons.cosines):
        result = _summed(others, _series_blocks(neurons.cosines, enough, variance))
    else:
        result = _summed_elsewhere(others, neurons.cosines, enough, variance)
    for part in np.array_split(hubs, math.ceil(hubs.size * size / BLOCK_ELEMENTS)) if hubs.size else ():
        rho = _rows(neurons.cosines, part)
        if closed:
            block = _closed_block(rho, scales[part], scales, activation)
        else:
            block = _series_block(rho, series[:, part], series, _used(series))
        block[np.arange(part.size), part] = variance[part]
        # Pairs of a hub with another neuron count twice, pairs of two hubs from either side.
        result += np.einsum("rb,rb->r", readouts[:, part], (readouts + others) @ block.T)
    return result


@lru_cache(maxsize=64)
def _stride(activation: Function) -> int:
    """Distance between the degrees of most of the activation's terms."""
    return _used(activation.hermite(9)[:, None]).chain.step


def _summed(readouts: Array, blocks: Iterator[tuple[int, int, Array]]) -> Array:
    quadratic = np.zeros(len(readouts))
    columns: Array | None = None
    for start, stop, block in blocks:
        if columns is None:
            columns = np.ascontiguousarray(readouts.T, dtype=block.dtype)
        # The block holds the columns from its first row on: the part right of its square counts twice.
        width = stop - start
        products = block[:, :width] @ columns[start:stop] + 2 * (block[:, width:] @ columns[stop:])
        quadratic += np.einsum("rb,br->r", readouts[:, start:stop], products)
    return quadratic


def _rows(cosines: Any, chosen: NDArray[np.intp]) -> Array:
    """The chosen rows as NumPy's, in float64."""
    if is_numpy(cosines):
        rows = cosines[chosen]
        for row, index in zip(rows, chosen, strict=True):
            row[:index] = cosines[:index, index]
        return host(rows)
    xp = namespace(cosines)
    return host(xp.stack([cosines[int(index), :] for index in chosen]))


def _summed_elsewhere(readouts: Array, cosines: Any, series: Array, variance: Array) -> Array:
    """Values of a^T Sigma a by the series, where another library's array lives."""
    used = _used(series)
    coefficients, weights = like(series, cosines), like(readouts, cosines)
    total = like(np.zeros(len(readouts)), cosines)
    size = max(1, DEVICE_ELEMENTS // len(variance))
    xp = namespace(cosines)
    for start in range(0, len(variance), size):
        part = slice(start, min(len(variance), start + size))
        rho = cosines[part, :]
        power = rho**used.chain.step
        block = xp.zeros_like(rho)
        for k in reversed(used.chain):
            block = block * power + coefficients[k, part][:, None] * coefficients[k, :][None, :]
        block = block * rho**used.chain.start
        for k in used.alone:
            block = block + rho**k * coefficients[k, part][:, None] * coefficients[k, :][None, :]
        total = total + xp.sum(weights[:, part] * (weights @ block.T), axis=1)
    # The cosine of a neuron with itself was taken as 0, where only the constant term is left.
    return cast(Array, host(total) + readouts**2 @ (variance - series[0] ** 2))


def _inverses(scales: Array) -> Array:
    """1/s, and 1 for neurons without weights, whose cosines are then 0."""
    return 1 / np.where(scales > 0, scales, 1.0)


def _cosines(overlaps: Array, scales: Array) -> Array:
    return cast(Array, np.clip(overlaps * _inverses(scales), -1.0, 1.0))


@lru_cache(maxsize=64)
def _teacher_series(teacher: Function, count: int) -> Array:
    """Normalised Hermite coefficients of a teacher of one direction."""
    return np.asarray(teacher.hermite_of_scaled([1.0], count)[0])


def _cross_moments(scaled: ScaledActivation, teacher: Function, cosines: Array) -> Array:
    """k_j = E[s(t) sigma(w_j x)] for a teacher of one direction."""
    degree = _degree(teacher)
    if degree is None and scaled.activation.has_covariance:
        return _teacher_moments(scaled.activation, teacher, scaled.scales, cosines)
    largest = float(np.max(np.abs(cosines)))
    series = _enough_series(scaled, largest) if degree is None else scaled.series(degree + 1).T
    known = _teacher_series(teacher, len(series))
    return known @ (series * cosines ** np.arange(len(series))[:, None])


def _several_moments(scaled: ScaledActivation, teacher: MultiFunction, cosines: Array) -> Array:
    r"""k_j = E[s(t) sigma(w_j x)] for a teacher of several directions, from the cosines rho (N, k).

    .. math:: E[H_a(t)\, \sigma(w_j \cdot x)] = \sqrt{m!}\, a_m(|w_j|)\, \rho_j^a, \quad m = |a|

    with the normalised coefficients a_m; functions of one combination of the directions as if they were alone.
    """
    result = np.zeros(len(scaled.scales))
    if teacher.centred:
        result -= teacher.mean * scaled.series(1)[:, 0]
    result += _terms_moments(scaled, teacher.polynomial, cosines)
    for part in teacher.parts:
        if isinstance(part, RidgePart):
            along = np.clip(cosines @ np.array(part.direction), -1.0, 1.0)
            result += _cross_moments(scaled, part.function, along)
        elif isinstance(part, PolynomialPart):
            result += _terms_moments(scaled, part.terms, cosines)
        else:
            degree = _mixed_degree(scaled, teacher, cosines)
            known = (index for m in range(degree + 1) for index in indices(teacher.directions, m))
            result += _terms_moments(scaled, {index: part.coefficient(index) for index in known}, cosines)
    return result


def captured(
    coefficients: Array,
    weights: Array,
    betas: Array,
    activation: Function,
    indices: Sequence[tuple[int, ...]],
) -> Array:
    r"""Hermite coefficients of the fitted function in the teacher's directions, one row for each multi-index.

    .. math:: E[\hat f(x) H_a(\beta^\top x)]/a! =
        \sum_j \hat a_j\, a_m(|w_j|)\, \rho_j^a\, \sqrt{m!}/a!, \quad m = |a|

    with the cosines rho of a neuron with the directions and the normalised coefficients a_m of
    :math:`\sigma(|w_j| g)` [firststep].

    Parameters
    ----------
    coefficients : ndarray (R, N)
        Readouts.
    weights : ndarray (N, d)
        First layer.
    betas : ndarray (d, k)
        Orthonormal directions.
    activation : Function
        The network's.
    indices : sequence of tuple of int
        Multi-indices a.

    Returns
    -------
    ndarray (len(indices), R)

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> captured(np.array([[2.0]]), np.eye(1, 2), np.eye(2), function("h1 + h2"), [(1, 0), (2, 0), (1, 1)]).tolist()
    [[2.0], [2.0], [0.0]]
    """
    scales = np.linalg.norm(weights, axis=1)
    cosines = (weights @ betas) * _inverses(scales)[:, None]
    scaled = ScaledActivation(activation, scales)
    rows = [_terms_moments(scaled, {tuple(a): 1.0}, cosines) / factorial(a) for a in indices]
    return np.array(rows) @ np.atleast_2d(coefficients).T


def _terms_moments(scaled: ScaledActivation, terms: Mapping[tuple[int, ...], float], cosines: Array) -> Array:
    """What a sum of products of Hermite polynomials adds to the moments."""
    result = np.zeros(len(scaled.scales))
    if not terms:
        return result
    series = scaled.series(max(map(sum, terms)) + 1)
    for index, value in terms.items():
        degree = sum(index)
        powers = np.prod(cosines ** np.array(index), axis=1)
        result += value * math.sqrt(math.factorial(degree)) * series[:, degree] * powers
    return result


def _mixed_degree(scaled: ScaledActivation, teacher: MultiFunction, cosines: Array) -> int:
    """Degree at which the series of a mixed part may end."""
    most = MIXED_DEGREES[teacher.directions]
    series = scaled.series(most + 1)
    left = np.maximum(scaled.variance - np.cumsum(series**2, axis=1).T, 0.0)
    sizes = np.minimum(np.linalg.norm(cosines, axis=1), 1.0)
    total = math.sqrt(teacher.second_moment + teacher.mean**2)
    for degree in range(most + 1):
        if total * float(np.max(sizes ** (degree + 1) * np.sqrt(left[degree]))) <= MIXED_TOLERANCE:
            return degree
    raise NoPopulationError(
        f"the series of {teacher.label} converges too slowly at cosine {float(sizes.max()):.4f}"
    )


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


def _triangle(size: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the blocks that cover a matrix on and above its diagonal."""
    for start, stop in _row_blocks(size):
        yield slice(start, stop), slice(start, None)


def _closed_blocks(neurons: Neurons, scaled: ScaledActivation) -> Iterator[tuple[int, int, Array]]:
    scales = neurons.scales
    cosines = neurons.cosines if is_numpy(neurons.cosines) else host(neurons.cosines)
    for rows, columns in _triangle(len(scales)):
        block = _closed_block(cosines[rows, columns], scales[rows], scales[columns], scaled.activation)
        np.fill_diagonal(block, scaled.variance[rows])
        yield rows.start, rows.stop, block


def _closed_block(rho: Matrix, left: Array, right: Array, activation: Function) -> Array:
    """Covariances in closed form from the cosines and the scales of the block's rows and columns, in float64."""
    covariances = rho * right
    covariances *= left[:, None]
    return activation.covariance(left[:, None] ** 2, covariances, right**2)


def _terms_needed(cosine: Array, variance: float) -> Array:
    """Terms of the series whose rest, at most cosine^K times the variance, is surely within the tolerance."""
    with np.errstate(divide="ignore"):
        needed = math.log(SERIES_TOLERANCE / max(variance, SERIES_TOLERANCE)) / np.log(
            np.minimum(cosine, 1.0)
        )
    return np.where(cosine < 1, np.ceil(2.0 + needed), np.inf)


def _enough_series(scaled: ScaledActivation, largest: float) -> Array:
    """Coefficients (K, N) of sigma(|w_j| g), enough of them for pairs of neurons up to the given cosine."""
    count = np.minimum(_terms_needed(np.array([largest]), float(scaled.variance.max())), SERIES_TERMS)
    series = np.ascontiguousarray(scaled.series(int(count[0])).T)
    enough = _enough(series, scaled.variance, largest)
    if largest >= 1 or not len(enough):
        raise NoPopulationError(
            f"{scaled.activation.label} has no closed form and its series no fast convergence "
            f"at cosine {largest:.4f}"
        )
    return enough


def _enough(series: Array, variance: Array, largest: float) -> Array:
    """The leading terms that matter for pairs up to the given cosine; none if these are too few."""
    # The terms from K on are at most largest^K times the variance that the first K coefficients leave.
    left = variance - np.cumsum(series**2, axis=0)
    bounds = largest ** np.arange(1, len(series) + 1) * np.maximum(left, 0.0).max(axis=1)
    enough = np.flatnonzero(bounds <= SERIES_TOLERANCE)
    return series[: enough[0] + 1 if enough.size else 0]


def _series_blocks(cosines: Matrix, series: Array, variance: Array) -> Iterator[tuple[int, int, Array]]:
    used = _used(series)
    series = series.astype(cosines.dtype, copy=False)
    for rows, columns in _triangle(len(variance)):
        block = _series_block(cosines[rows, columns], series[:, rows], series[:, columns], used)
        np.fill_diagonal(block, variance[rows])
        yield rows.start, rows.stop, block


def _series_block(rho: Matrix, rows: Array, columns: Array, used: "_Degrees") -> Array:
    """Sum over k of c_k(s_i) c_k(s_j) rho_ij^k, for the coefficients of the block's rows and columns."""
    chain = used.chain
    power = rho * rho if chain.step > 1 else rho
    block = np.multiply.outer(rows[chain[-1]], columns[chain[-1]])
    add_outer = blas.dger if block.dtype == np.float64 else blas.sger
    for k in reversed(chain[:-1]):
        block *= power
        # Adds an outer product in place, which the transpose of a C-ordered array allows.
        add_outer(1.0, columns[k], rows[k], a=block.T, overwrite_a=1)
    if chain.start:
        block *= rho**chain.start if chain.start > 1 else rho
    for k in used.alone:
        term = np.multiply.outer(rows[k], columns[k])
        if k:
            term *= rho**k if k > 1 else rho
        block += term
    return cast(Array, block)


@dataclass(frozen=True)
class _Degrees:
    """Degrees of the terms that matter: those at equal distances, by Horner's rule, and one apart from them."""

    chain: range
    alone: tuple[int, ...] = ()


def _used(series: Array) -> _Degrees:
    """Odd and even activations have every other degree only; relu and its like have also the first, sigmoid the 0th."""
    degrees = np.flatnonzero(np.abs(series).max(axis=1) > 1e-14)
    if not degrees.size:
        return _Degrees(range(1))
    odd, even = degrees[degrees % 2 == 1], degrees[degrees % 2 == 0]
    few, many = sorted((odd, even), key=len)
    if len(few) > 1:
        return _Degrees(range(int(degrees[0]), int(degrees[-1]) + 1))
    return _Degrees(range(int(many[0]), int(many[-1]) + 1, 2), tuple(few.tolist()))
