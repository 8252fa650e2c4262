"""The network on given arrays: features, gradient step, ridge path, exact test error. Nothing random here."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg
from scipy.linalg import blas, lapack

from firststep.gaussian import Array, Function, gauss_hermite, monomial_in_hermite

# Data, weights and features may be float32; whatever is solved or averaged from them is float64.
Matrix = NDArray[np.floating[Any]]

# Gram matrices smaller than this are factorised for every ridge. For others a Krylov space gives all ridges
# above this share of the mean eigenvalue, and one of the inverse all within this factor of each other. It is
# looked at every so many steps, may not grow beyond so many, and is large enough when the relative error of the
# coefficients is surely below the tolerance.
KRYLOV_SIZE = 256
KRYLOV_SHIFT = 0.3
KRYLOV_RANGE = 1000.0
KRYLOV_PERIOD = 8
KRYLOV_STEPS = 256
KRYLOV_TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
# Largest error allowed in an entry of the population covariance that comes from a truncated Hermite series.
SERIES_TOLERANCE = 1e-10
SERIES_TERMS = 200
# For fewer neurons a closed form is not worth avoiding; for more it takes the time of so many passes.
SERIES_SIZE = 128
CLOSED_PASSES = 60
# Degree to which the coefficients of the series are expanded between two powers of 2 of the scale.
OCTAVE_DEGREE = 24
# Elements of a block that is worked on elementwise: it should stay in the cache, with a few temporaries.
BLOCK_ELEMENTS = 65536
CHUNK_ELEMENTS = 16384


class NoPopulationError(ValueError):
    """The population test error has no closed form or convergent series here: measure it on a test sample."""


def features(inputs: Matrix, weights: Matrix, activation: Function) -> Matrix:
    r"""Feature matrix :math:`F = \sigma(X W^\top)`, shape (n, N).

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> print(features(np.eye(2), np.array([[1.0, -2.0]]), function("identity")).ravel().tolist())
    [1.0, -2.0]
    """
    result = cast(Matrix, inputs @ weights.T)
    for rows in _chunks(result):
        result[rows] = activation(result[rows])
    return result


def features_after(
    before: Matrix, change: Matrix, step_size: float, activation: Function, out: Matrix | None = None
) -> Matrix:
    r"""Features :math:`\sigma(X W_0^\top + \eta X G^\top)` from the two products (n, N), into `out` if given.

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> print(features_after(np.ones((1, 2)), np.eye(1, 2), 3.0, function("identity")).tolist())
    [[4.0, 1.0]]
    """
    result = np.empty_like(before) if out is None else out
    factor = before.dtype.type(step_size)
    for rows in _chunks(before):
        preactivations = change[rows] * factor
        preactivations += before[rows]
        result[rows] = activation(preactivations)
    return result


def _chunks(values: Matrix) -> Iterator[slice]:
    """Rows that stay in the cache while they are worked on."""
    size = max(1, CHUNK_ELEMENTS // max(1, values.shape[1]))
    for start in range(0, len(values), size):
        yield slice(start, start + size)


@dataclass(frozen=True, eq=False)
class Step:
    """What the first sample says about the weights.

    Attributes
    ----------
    gradient : ndarray (N, d)
        G, minus the gradient of half the mean squared error; the weights after the step are W0 + eta G.
    direction : ndarray (d,)
        b = X^T (y - f0)/n0, of which c_1 a b^T is the rank-one part of G.
    """

    gradient: Matrix
    direction: Matrix


def gradient_step(
    inputs: Matrix,
    labels: Matrix,
    weights: Matrix,
    readout: Matrix,
    activation: Function,
    output_scale: float,
) -> Step:
    r"""Closed-form gradient of the first layer and the direction of its rank-one part [Ba22]_, [Moniri24]_.

    .. math:: G = \tfrac{1}{n_0}\left[a (y - f_0)^\top \circ \sigma'(W_0 X^\top)\right] X, \quad
        f_0 = \tau \sigma(X W_0^\top) a, \quad b = X^\top (y - f_0)/n_0

    Parameters
    ----------
    inputs : ndarray (n0, d)
        X.
    labels : ndarray (n0,)
        y.
    weights : ndarray (N, d)
        :math:`W_0`.
    readout : ndarray (N,)
        a.
    activation : Function
        :math:`\sigma`.
    output_scale : float
        :math:`\tau`: 1/sqrt(N) for a vanishing initial output, 1 for one of order one.
    """
    products = cast(Matrix, inputs @ weights.T)
    residual = labels.copy()
    for rows in _chunks(products):
        preactivations = products[rows]
        residual[rows] -= output_scale * (activation(preactivations) @ readout)
        np.multiply(activation.derivative(preactivations), residual[rows, None], out=preactivations)
    gradient = products.T @ inputs
    gradient *= (readout / len(labels))[:, None]
    return Step(gradient, inputs.T @ residual / len(labels))


@dataclass(frozen=True, eq=False)
class RidgePath:
    """Ridge fits of one data set for R ridges.

    Attributes
    ----------
    coefficients : ndarray (R, N)
        The fitted readouts.
    train_error, train_mse : ndarray (R,)
        Mean squared residual with and without the penalty.
    norm_squared : ndarray (R,)
        Squared norm of the coefficients.
    degrees_of_freedom : ndarray (R,) or None
        Trace of the hat matrix over n, between 0 and 1, where it was asked for.
    """

    coefficients: Array
    train_error: Array
    train_mse: Array
    norm_squared: Array
    degrees_of_freedom: Array | None = None


def ridge_path(
    design: Matrix, labels: Matrix, ridges: ArrayLike, side: str = "smaller", *, degrees: bool = False
) -> RidgePath:
    r"""Ridge regression for many ridges from one Gram matrix.

    .. math:: \hat a = \arg\min_a \tfrac1n \|y - F a\|^2 + \lambda \|a\|^2
        = (F^\top F + \lambda n)^{-1} F^\top y = F^\top (F F^\top + \lambda n)^{-1} y

    Parameters
    ----------
    design : ndarray (n, N)
        F.
    labels : ndarray (n,)
        y.
    ridges : ndarray (R,)
        :math:`\lambda > 0`.
    side : {"smaller", "samples", "features"}
        Side whose Gram matrix is taken, n x n or N x N: the results are the same, the cost is not.
    degrees : bool
        Also the degrees of freedom, which take all eigenvalues and so longer than the rest.

    Examples
    --------
    >>> path = ridge_path(np.array([[1.0], [1.0]]), np.array([1.0, 3.0]), [1.0], degrees=True)
    >>> print(f"{path.coefficients[0, 0]:.6f} {path.train_error[0]:.6f} {path.degrees_of_freedom[0]:.6f}")
    1.000000 3.000000 0.250000
    """
    count, width = design.shape
    penalties = np.atleast_1d(np.asarray(ridges, dtype=np.float64))
    targets = labels.astype(np.float64)
    if side == "smaller":
        side = "samples" if count < width else "features"
    if side == "samples":
        # The same object on both sides lets NumPy use the symmetric product, at half the cost.
        gram = _normalised(design @ design.T, count)
        shares = _hat_traces(gram, penalties) / count if degrees else None
        dual = shifted_solve(gram, targets / count, penalties)
        coefficients = np.asarray((dual.astype(design.dtype) @ design), dtype=np.float64)
        residuals = dual * (penalties[:, None] * count)
    elif side == "features":
        gram = _normalised(design.T @ design, count)
        shares = _hat_traces(gram, penalties) / count if degrees else None
        moment = np.asarray(labels @ design, dtype=np.float64) / count
        coefficients = shifted_solve(gram, moment, penalties)
        residuals = targets - np.asarray(coefficients.astype(design.dtype) @ design.T, dtype=np.float64)
    else:
        raise ValueError(f"side must be smaller, samples or features; got {side!r}")
    mse = np.einsum("rn,rn->r", residuals, residuals) / count
    norm = np.einsum("rn,rn->r", coefficients, coefficients)
    return RidgePath(coefficients, mse + penalties * norm, mse, norm, shares)


@dataclass(eq=False)
class Moments:
    """What a ridge fit needs to know of a sample: sums over its rows, in float64, which can be added up.

    Attributes
    ----------
    gram : ndarray (N, N)
        F^T F.
    moment : ndarray (N,)
        F^T y.
    square : float
        Sum of the squared labels.
    count : int
        Number of rows.

    Examples
    --------
    >>> sums = Moments.none(1)
    >>> for label in (1.0, 3.0):
    ...     sums.add(np.ones((1, 1)), np.array([label]))
    >>> print(f"{sums.path([1.0]).train_error[0]:.6f}")
    3.000000
    """

    gram: Array
    moment: Array
    square: float
    count: int

    @classmethod
    def none(cls, width: int) -> "Moments":
        """The sums over no rows."""
        return cls(np.zeros((width, width)), np.zeros(width), 0.0, 0)

    def add(self, design: Matrix, labels: Matrix) -> None:
        """Add the rows of features (n, N) and labels (n,)."""
        self.gram += design.T @ design
        self.moment += labels @ design
        self.square += float(np.sum(np.square(labels, dtype=np.float64)))
        self.count += len(labels)

    def plus(self, other: "Moments") -> "Moments":
        """The sums over both; takes over the memory of this one."""
        self.gram += other.gram
        moment, square = self.moment + other.moment, self.square + other.square
        return Moments(self.gram, moment, square, self.count + other.count)

    def path(self, ridges: ArrayLike, *, degrees: bool = False) -> RidgePath:
        """Ridge fits of all rows; destroys the sums.

        The errors come from the normal equations, ``(1/n)|y - F a|^2 + lambda |a|^2 = (|y|^2 - y^T F a)/n``, so that
        they are right to rounding of the labels' mean square.
        """
        penalties = np.atleast_1d(np.asarray(ridges, dtype=np.float64))
        gram, moment = _normalised(self.gram, self.count), self.moment / self.count
        shares = _hat_traces(gram, penalties) / self.count if degrees else None
        coefficients = shifted_solve(gram, moment, penalties)
        norm = np.einsum("rn,rn->r", coefficients, coefficients)
        error = self.square / self.count - coefficients @ moment
        return RidgePath(coefficients, error, np.maximum(error - penalties * norm, 0.0), norm, shares)


def _normalised(gram: Matrix, count: int) -> Matrix:
    gram /= count
    return gram


def _hat_traces(gram: Matrix, shifts: Array) -> Array:
    """Traces of A (A + shift)^-1, for each shift."""
    spectrum = linalg.eigvalsh(gram.astype(np.float64), check_finite=False, overwrite_a=True)
    return cast(Array, (spectrum / (spectrum + shifts[:, None])).sum(axis=1))


def shifted_solve(matrix: Matrix, right: Array, shifts: Array) -> Array:
    r"""Rows :math:`(A + s)^{-1} v` for each shift s > 0; destroys the symmetric non-negative A.

    One Krylov space of A serves all large shifts, and one of :math:`(A + \sigma)^{-1}` all shifts within three
    decades around :math:`\sigma`, with one factorisation.

    Examples
    --------
    >>> shifted_solve(np.diag([1.0, 3.0]), np.ones(2), np.array([1.0, 2.0])).round(4).tolist()
    [[0.5, 0.25], [0.3333, 0.2]]
    """
    solutions = np.zeros((len(shifts), len(right)))
    if not right.any():
        return solutions
    small = len(right) < KRYLOV_SIZE
    if small:
        matrix = matrix.astype(np.float64, copy=False)
    diagonal = np.diagonal(matrix).copy()
    left = np.argsort(shifts)
    if not small:
        split = np.searchsorted(shifts[left], KRYLOV_SHIFT * diagonal.mean())
        large = left[split:]
        if large.size:
            found = _krylov_solve(
                lambda v: _symmetric_product(matrix, v),
                right.astype(matrix.dtype),
                shifts[large],
                1.0,
                shifts[large],
            )
            if found is not None:
                solutions[large] = found
                left = left[:split]
    while left.size:
        near = shifts[left[0]] * (1.0 if small else KRYLOV_RANGE)
        group = left[: np.searchsorted(shifts[left], near, side="right")]
        left = left[group.size :]
        solutions[group] = _factorised_solve(matrix, diagonal, right, shifts[group], keep=left.size > 0)
    return solutions


def _symmetric_product(matrix: Matrix, vector: Matrix) -> Matrix:
    # A symmetric C-ordered matrix is its own transpose, which BLAS and LAPACK take without a copy.
    multiply = blas.dsymv if matrix.dtype == np.float64 else blas.ssymv
    return cast(Matrix, multiply(1.0, matrix.T, vector, lower=1))


def _factorised_solve(matrix: Matrix, diagonal: Matrix, right: Array, shifts: Array, keep: bool) -> Array:
    """Solutions for shifts that lie close together, from one Cholesky factorisation; A is lost unless kept."""
    double = matrix.dtype == np.float64
    centre = math.sqrt(shifts[0] * shifts[-1])
    work = (matrix.copy() if keep else matrix).T
    np.fill_diagonal(work, diagonal + matrix.dtype.type(centre))
    factor, info = (lapack.dpotrf if double else lapack.spotrf)(work, lower=1, clean=0, overwrite_a=1)
    if info != 0:
        raise _below_rounding(centre)
    triangular = blas.dtrsv if double else blas.strsv

    def inverse(vector: Matrix) -> Matrix:
        return cast(Matrix, triangular(factor, triangular(factor, vector, lower=1), lower=1, trans=1))

    start = inverse(right.astype(matrix.dtype))
    if shifts[0] == shifts[-1]:
        return np.broadcast_to(start, (len(shifts), len(right)))
    # (A + s) x = v is (1 + (s - c) B) x = B v with B = (A + c)^-1, between 0 and 1/c.
    found = _krylov_solve(inverse, start, 1.0, shifts - centre, np.minimum(1.0, shifts / centre))
    if found is None:
        # The eigenvalues span at most a factor of 32: only rounding can keep the iteration from its end.
        raise _below_rounding(shifts[0])
    return found


def _krylov_solve(
    multiply: Callable[[Matrix], Matrix], start: Matrix, constant: ArrayLike, factor: ArrayLike, least: Array
) -> Array | None:
    """Rows (p + q A)^-1 u for pairs (p, q), from one Lanczos iteration, A = Q T Q^T with T tridiagonal.

    The residual of x = Q y, (p + q T) y = |u| e_1, is |q| beta_k |y_k|, and the error at most that over the
    least eigenvalue of p + q A. None if the Krylov space would have to grow too large.
    """
    size, dtype = len(start), start.dtype
    constants, factors, least = np.broadcast_arrays(constant, factor, least)
    tolerance, length = KRYLOV_TOLERANCE[dtype.name], float(np.linalg.norm(start))
    limit = min(size, KRYLOV_STEPS)
    basis = np.empty((limit + 1, size), dtype=dtype)
    diagonal, off = np.empty(limit), np.empty(limit)
    np.divide(start, dtype.type(length), out=basis[0])
    for k in range(limit):
        new = multiply(basis[k])
        diagonal[k] = basis[k] @ new
        # Against all before it: spikes are found within a few steps, and rounding would find them again.
        for _ in range(2):
            new -= (basis[: k + 1] @ new) @ basis[: k + 1]
        off[k] = np.sqrt(new @ new)
        exhausted = off[k] <= np.finfo(dtype).eps * np.abs(diagonal[: k + 1]).max()
        if not exhausted:
            np.divide(new, dtype.type(off[k]), out=basis[k + 1])
        if exhausted or (k + 1) % KRYLOV_PERIOD == 0 or k + 1 == limit:
            inner = np.zeros((len(least), k + 1))
            inner[:, 0] = length
            for p, q, row in zip(constants, factors, inner, strict=True):
                _, _, row[:], info = lapack.dptsv(p + q * diagonal[: k + 1], q * off[: max(1, k)], row)
                if info != 0:
                    return None
            residuals = np.abs(factors) * off[k] * np.abs(inner[:, -1])
            if exhausted or np.all(residuals <= tolerance * least * np.linalg.norm(inner, axis=1)):
                return np.asarray(inner.astype(dtype) @ basis[: k + 1], dtype=np.float64)
    return None


def _below_rounding(shift: float) -> ValueError:
    return ValueError(
        f"ridge {shift:g} is below the rounding error of the Gram matrix: "
        "raise the ridge or use dtype='float64'"
    )


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
        norms = np.linalg.norm(weights), np.linalg.norm(gradient)
        factor = weights.dtype.type(norms[0] / norms[1] if norms[1] > 0 else 1.0)
        both = weights + factor * gradient
        linear = both @ both.T
        linear -= constant
        linear -= factor**2 * quadratic
        linear /= factor
        return cls(constant, linear, quadratic, (weights @ beta, gradient @ beta))

    def at(self, step_size: float) -> tuple[Array, Array]:
        """Gram matrix W1 W1^T (N, N) and overlaps W1 beta (N,) for one step size eta."""
        factor = np.asarray(step_size, dtype=self.constant.dtype)
        gram = self.quadratic * factor
        gram += self.linear
        gram *= factor
        gram += self.constant
        overlap = self.overlaps[0] + step_size * self.overlaps[1]
        return gram.astype(np.float64, copy=False), overlap.astype(np.float64)

    def test_error(
        self,
        step_size: float,
        coefficients: Array,
        activation: Function,
        teacher: Function,
        noise_variance: float,
    ) -> Array:
        """Population test errors (R,) of readouts (R, N) on the features after one step of size eta."""
        gram, overlaps = self.at(step_size)
        return population_test_error(coefficients, gram, overlaps, activation, teacher, noise_variance)


def population_test_error(
    coefficients: Array,
    gram: Array,
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
        :math:`W W^\top`.
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
    scales = np.sqrt(np.diagonal(gram))
    cosines = _cosines(overlaps, scales)
    variance = activation.gaussian_moments(scales, 0.0)[2]
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
    readouts: Array, gram: Array, scales: Array, variance: Array, activation: Function
) -> Array:
    r"""Values :math:`a^\top \Sigma a` for each readout a.

    A few neurons that a step has turned towards each other would make the series long for all: the rows of
    these are taken by themselves.
    """
    closed = activation.has_covariance
    size = len(scales)
    if closed and (size < SERIES_SIZE or not scales.all()):
        return _summed(readouts, _closed_blocks(gram, activation))
    peaks = _peaks(gram, scales)
    order = np.argsort(-peaks)
    counts = np.array([0, *(size >> shift for shift in range(6, 1, -1))] if size >= SERIES_SIZE else [0])
    needed = _terms_needed(peaks[order[counts]], float(variance.max()))
    # In passes over an entry: two for a term, and as many for a closed form as it takes the time of.
    row = CLOSED_PASSES if closed else 2 * min(needed[0], SERIES_TERMS)
    costs = size / 2 * 2 * needed + counts * row
    best = int(np.argmin(costs))
    if closed and costs[best] >= size / 2 * CLOSED_PASSES:
        return _summed(readouts, _closed_blocks(gram, activation))
    hubs, largest = order[: counts[best]], peaks[order[counts[best]]]
    series = _scaled_series(scales, variance, float(largest if closed else peaks.max()), activation)
    others = readouts.copy()
    others[:, hubs] = 0.0
    result = _summed(
        others, _series_blocks(gram, scales, _enough(series, variance, float(largest)), variance)
    )
    for part in np.array_split(hubs, math.ceil(hubs.size * size / BLOCK_ELEMENTS)) if hubs.size else ():
        if closed:
            block = activation.covariance(scales[part, None] ** 2, gram[part], scales**2)
        else:
            block = _series_block(gram[part], scales[part], scales, series[:, part], series)
            block[np.arange(part.size), part] = variance[part]
        # Pairs of a hub with another neuron count twice, pairs of two hubs from either side.
        result += np.einsum("rb,rb->r", readouts[:, part], (readouts + others) @ block.T)
    return result


def _summed(readouts: Array, blocks: Iterator[tuple[int, int, Array]]) -> Array:
    quadratic = np.zeros(len(readouts))
    for start, stop, block in blocks:
        # The block holds the columns from its first row on: the part right of its square counts twice.
        rows = readouts[:, start:stop]
        square = rows @ block[:, : stop - start]
        rest = readouts[:, stop:] @ block[:, stop - start :].T
        quadratic += np.einsum("rb,rb->r", rows, square + 2 * rest)
    return quadratic


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


def _closed_blocks(gram: Array, activation: Function) -> Iterator[tuple[int, int, Array]]:
    variances = np.diagonal(gram)
    for start, stop in _row_blocks(len(gram)):
        yield (
            start,
            stop,
            activation.covariance(variances[start:stop, None], gram[start:stop, start:], variances[start:]),
        )


def _peaks(gram: Array, scales: Array) -> Array:
    """Largest absolute cosine of each neuron with another."""
    inverse = 1 / scales
    result = np.zeros(len(scales))
    for start, stop in _row_blocks(len(gram)):
        block = np.abs(gram[start:stop, start:])
        block *= inverse[start:]
        block *= inverse[start:stop, None]
        np.fill_diagonal(block, 0.0)
        np.maximum(result[start:], block.max(axis=0), out=result[start:])
        np.maximum(result[start:stop], block.max(axis=1), out=result[start:stop])
    return result


def _terms_needed(cosine: Array, variance: float) -> Array:
    """Terms of the series whose rest, at most cosine^K times the variance, is surely within the tolerance."""
    with np.errstate(divide="ignore"):
        needed = math.log(SERIES_TOLERANCE / max(variance, SERIES_TOLERANCE)) / np.log(
            np.minimum(cosine, 1.0)
        )
    return np.where(cosine < 1, np.ceil(2.0 + needed), np.inf)


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
    result = np.empty((len(scales), count))
    octaves = np.floor(np.log2(scales)).astype(int)
    for octave in np.unique(octaves):
        inside = octaves == octave
        expansion = _octave_series(activation, int(octave), 64 * math.ceil(count / 64))
        if expansion is None:
            return activation.hermite_of_scaled(scales, count)
        places = 2 * (np.log2(scales[inside]) - octave) - 1
        values = np.polynomial.chebyshev.chebvander(places, OCTAVE_DEGREE) @ expansion[:, :count]
        result[inside] = values
    return result


@lru_cache(maxsize=64)
def _octave_series(activation: Function, octave: int, count: int) -> Array | None:
    """Chebyshev expansion, in the logarithm of the scale, of the coefficients between two powers of 2.

    Kept, because every step size and replica asks for it again. None where it is not accurate.
    """
    chebyshev = np.polynomial.chebyshev
    points, probes = chebyshev.chebpts1(OCTAVE_DEGREE + 1), np.linspace(-0.97, 0.98, 5)
    scales = 2.0 ** (octave + (np.append(points, probes) + 1) / 2)
    values = activation.hermite_of_scaled(scales, count)
    expansion = np.linalg.solve(chebyshev.chebvander(points, OCTAVE_DEGREE), values[:-5])
    missed = np.abs(chebyshev.chebvander(probes, OCTAVE_DEGREE) @ expansion - values[-5:]).max()
    return cast(Array, expansion) if missed <= 1e-12 * np.abs(values).max() else None


def _series_blocks(
    gram: Array, scales: Array, series: Array, variance: Array
) -> Iterator[tuple[int, int, Array]]:
    for start, stop in _row_blocks(len(gram)):
        block = _series_block(
            gram[start:stop, start:],
            scales[start:stop],
            scales[start:],
            series[:, start:stop],
            series[:, start:],
        )
        np.fill_diagonal(block, variance[start:stop])
        yield start, stop, block


def _series_block(gram: Array, left: Array, right: Array, rows: Array, columns: Array) -> Array:
    """Sum over k of c_k(s_i) c_k(s_j) rho_ij^k, for the scales and coefficients of the block's rows and columns."""
    used = np.flatnonzero(np.abs(columns).max(axis=1) > 1e-14)
    used = used if used.size else np.array([0])
    # Odd and even activations have every other term only.
    stride = 2 if used.size > 1 and np.all(np.diff(used) % 2 == 0) else 1
    first, last = int(used[0]), int(used[-1])
    rho = gram / right
    rho /= left[:, None]
    power = rho * rho if stride > 1 else rho
    block = np.multiply.outer(rows[last], columns[last])
    for k in range(last - stride, first - 1, -stride):
        block *= power
        # Adds an outer product in place, which the transpose of a C-ordered array allows.
        blas.dger(1.0, columns[k], rows[k], a=block.T, overwrite_a=1)
    if first:
        block *= rho**first if first > 1 else rho
    return cast(Array, block)


def spike_coefficients(activation: Function, step_size: float, count: int) -> Array:
    r"""Coefficients :math:`c_1^k c_k \eta^k` of the network's own spikes, k = 1 … count.

    [Moniri24, spectrum of the features].

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> print(spike_coefficients(function("relu"), 2.0, 3).round(4).tolist())
    [0.5, 0.1995, 0.0]
    """
    c = activation.hermite(count + 1)
    powers = np.arange(1, count + 1)
    return cast(Array, (c[1] * step_size) ** powers * c[1:])


@dataclass(frozen=True, eq=False)
class SpikedModel:
    r"""Features before the step, or their Gaussian equivalent, to which spikes can be added.

    .. math:: F_\ell = F_0 + \sum_{k=1}^{\ell} \theta_k\, (\tilde X b)^{\circ k} (a^{\circ k})^\top

    [Moniri24, spectrum of the features]. On all inputs the fitted model is
    :math:`\hat a \cdot \varphi(x) + \sum_k \gamma_k z^k` with :math:`z = x \cdot b/|b|` and
    :math:`\gamma_k = \theta_k |b|^k\, a^{\circ k} \cdot \hat a`, so its
    test error is exact: it needs the averages of the monomials with the features and the labels.

    Attributes
    ----------
    base : ndarray (n, N)
        :math:`F_0`.
    projections : ndarray (n,)
        :math:`\tilde X b`.
    readout : ndarray (N,)
        a, before the step.
    norm : float
        :math:`|b|`.
    base_error : callable
        Test errors (R,) of readouts (R, N) on the base features alone.
    feature_moments : ndarray (l, N)
        :math:`E[\varphi_j(x) z^k]`.
    label_moments : ndarray (l,)
        :math:`E[y z^k]`.
    """

    base: Matrix
    projections: Array
    readout: Array
    norm: float
    base_error: Callable[[Array], Array]
    feature_moments: Array
    label_moments: Array

    def features(self, coefficients: ArrayLike) -> Matrix:
        r"""Feature matrix (n, N) with the spike coefficients :math:`\theta_1, \theta_2, \dots`.

        `spike_coefficients` gives the network's own; large ones give the staircase's limit.
        """
        result = self.base.copy()
        for k, coefficient in enumerate(np.asarray(coefficients, dtype=np.float64), start=1):
            if coefficient:
                left = (coefficient * self.projections**k).astype(result.dtype)
                result += np.multiply.outer(left, (self.readout**k).astype(result.dtype))
        return result

    def fit(self, labels: Matrix, ridges: ArrayLike, coefficients: ArrayLike = ()) -> tuple[RidgePath, Array]:
        """Ridge fits with the given spikes, and their test errors (R,)."""
        strengths = np.asarray(coefficients, dtype=np.float64)
        count = len(strengths)
        if count > len(self.label_moments):
            raise ValueError(
                f"this model was made for {len(self.label_moments)} spikes, got {count} coefficients"
            )
        path = ridge_path(self.features(strengths), labels, ridges)
        powers = np.arange(1, count + 1)
        monomials = (path.coefficients @ self.readout[:, None] ** powers) * strengths * self.norm**powers
        mixed = path.coefficients @ self.feature_moments[:count].T - self.label_moments[:count]
        square = np.einsum("rj,jk,rk->r", monomials, _monomial_moments(count), monomials)
        return path, self.base_error(path.coefficients) + square + 2 * np.einsum("rk,rk->r", monomials, mixed)


def spiked_network(
    inputs: Matrix,
    weights: Matrix,
    readout: Matrix,
    direction: Array,
    beta: Array,
    activation: Function,
    teacher: Function,
    noise_variance: float,
    spikes: int = 3,
) -> SpikedModel:
    """The network's own features before the step, ready for up to `spikes` spikes along `direction` b."""
    rows = weights.astype(np.float64, copy=False)
    norm = float(np.linalg.norm(direction))
    gram, overlaps = rows @ rows.T, rows @ beta
    scales = np.sqrt(np.diagonal(gram))
    cosines = _cosines(rows @ direction / norm, scales)
    degrees = np.arange(spikes + 1)
    series = _interpolated_series(activation, scales, spikes + 1) * cosines[:, None] ** degrees

    def base_error(coefficients: Array) -> Array:
        return population_test_error(coefficients, gram, overlaps, activation, teacher, noise_variance)

    return SpikedModel(
        features(inputs, weights, activation),
        inputs.astype(np.float64, copy=False) @ direction,
        readout.astype(np.float64),
        norm,
        base_error,
        _normalised_monomials(spikes) @ series.T,
        _label_moments(spikes, float(direction @ beta) / norm, teacher),
    )


def gaussian_equivalent(
    inputs: Matrix,
    noise: Matrix,
    weights: Matrix,
    readout: Matrix,
    direction: Array,
    beta: Array,
    activation: Function,
    teacher: Function,
    noise_variance: float,
    spikes: int = 3,
) -> SpikedModel:
    r"""Linear features plus independent noise in place of the network's [Moniri24]_.

    .. math:: \varphi(x) = c_1 W_0 x + c_{>1} g, \quad
        E(y - \hat a \cdot \varphi)^2 = E(y - c_1 \hat a^\top W_0 x)^2 + c_{>1}^2 |\hat a|^2

    `noise` (n, N) is g on the samples of the fit; the other arguments are those of `spiked_network`.
    """
    slope, rest = float(activation.hermite(2)[1]), activation.tail(2)
    rows = weights.astype(np.float64, copy=False)
    norm = float(np.linalg.norm(direction))
    base = inputs @ weights.T
    base *= slope
    base += math.sqrt(rest) * noise

    def base_error(coefficients: Array) -> Array:
        linear = linear_test_error(slope * (coefficients @ rows), beta, teacher, noise_variance)
        return cast(Array, linear + rest * np.einsum("rn,rn->r", coefficients, coefficients))

    return SpikedModel(
        base,
        inputs.astype(np.float64, copy=False) @ direction,
        readout.astype(np.float64),
        norm,
        base_error,
        # A linear feature meets a monomial in the latter's part along H_1 only.
        np.multiply.outer(_normalised_monomials(spikes)[:, 1], slope * (rows @ direction) / norm),
        _label_moments(spikes, float(direction @ beta) / norm, teacher),
    )


def _normalised_monomials(count: int) -> Array:
    """Coefficients (count, count + 1) of z, z^2, … in the normalised Hermite polynomials."""
    roots = [math.sqrt(math.factorial(k)) for k in range(count + 1)]
    return monomial_in_hermite(count + 1)[1:] * roots


def _label_moments(count: int, alignment: float, teacher: Function) -> Array:
    """E[y z^k], k = 1 … count, for z with the given correlation with the teacher's direction."""
    known = teacher.hermite(count + 1) * [math.sqrt(math.factorial(k)) for k in range(count + 1)]
    return _normalised_monomials(count) @ (known * alignment ** np.arange(count + 1))


def _monomial_moments(count: int) -> Array:
    """E z^(j+k), j, k = 1 … count."""
    nodes, weights = gauss_hermite(count + 1)
    powers = nodes ** np.arange(1, count + 1)[:, None]
    return (powers * weights) @ powers.T


def top_singular(weights: Matrix, gradient: Matrix, step_size: float) -> tuple[float, Array]:
    """Largest singular value of W0 + eta G, and its input-side singular vector (d,) of unit norm.

    Examples
    --------
    >>> value, vector = top_singular(np.diag([1.0, 3.0, 2.0]), np.zeros((3, 3)), 0.0)
    >>> round(value, 12), np.abs(vector).round(6).tolist()
    (3.0, [0.0, 1.0, 0.0])
    """
    # Imported here because it takes as long as the rest of this module and few runs need it.
    from scipy.sparse.linalg import LinearOperator, eigsh

    after = weights.astype(np.float64) + step_size * gradient.astype(np.float64)
    dim = after.shape[1]
    if min(after.shape) < 16:
        _, values, right = linalg.svd(after, full_matrices=False)
        return float(values[0]), cast(Array, right[0])
    product = LinearOperator((dim, dim), matvec=lambda v: after.T @ (after @ v.ravel()), dtype=np.float64)
    # A fixed start keeps the iteration, and with it every digit, the same from run to run.
    start = np.cos(np.arange(dim) + 1.0)
    values, vectors = eigsh(product, k=1, which="LA", v0=start, tol=1e-10)
    return math.sqrt(float(values[0])), cast(Array, vectors[:, 0])
