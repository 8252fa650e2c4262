"""Ridge regression for many ridges from one Gram matrix, and from sums over blocks of rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg
from scipy.linalg import blas, lapack

from firststep.arrays.library import (
    Library,
    Matrix,
    diagonal,
    double,
    dtype_name,
    host,
    is_numpy,
    like,
    namespace,
)
from firststep.gaussian import Array

# Gram matrices smaller than this are factorised for every ridge, or made tridiagonal for so many ridges or more. For
# others one Krylov space serves all ridges: it grows until it has those above this share of the mean eigenvalue, or by
# so many steps where there are none.
# What it leaves of the smaller ones is taken from a Krylov space of the inverse for all within this factor of each
# other, around a centre between the least and the greatest of them, this share of the way on a logarithmic scale.
KRYLOV_SIZE = 256
TRIDIAGONAL_RIDGES = 6
KRYLOV_SHIFT = 0.6
KRYLOV_FIRST = 8
KRYLOV_RANGE = 1000.0
KRYLOV_CENTRE = 0.4
# Columns that LAPACK works on together.
BLOCK_SIZE = 32
# Spaces are looked at every so many steps, may not grow beyond so many, and are large enough when the relative
# error of the coefficients is surely below the tolerance.
KRYLOV_PERIOD = 4
KRYLOV_STEPS = 256
KRYLOV_TOLERANCE = {"float64": 1e-9, "float32": 1e-5}


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
    targets = host(labels)
    if side == "smaller":
        side = "samples" if count < width else "features"
    if side == "samples":
        # The same object on both sides lets NumPy use the symmetric product, at half the cost.
        gram = design @ design.T
        shares = _hat_traces(gram, penalties * count) / count if degrees else None
        dual = shifted_solve(gram, targets, penalties * count, count)
        coefficients = host(like(dual, design) @ design)
        residuals = dual * (penalties[:, None] * count)
    elif side == "features":
        gram = design.T @ design
        shares = _hat_traces(gram, penalties * count) / count if degrees else None
        coefficients = shifted_solve(gram, host(labels @ design), penalties * count, count)
        residuals = targets - host(like(coefficients, design) @ design.T)
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
    def none(cls, width: int, library: Library | None = None) -> "Moments":
        """The sums over no rows, NumPy's or where another library computes."""
        gram = np.zeros((width, width))
        return cls(gram if library is None else library.place(gram), np.zeros(width), 0.0, 0)

    def add(self, design: Matrix, labels: Matrix) -> None:
        """Add the rows of features (n, N) and labels (n,)."""
        self.gram += design.T @ design
        self.moment += host(labels @ design)
        self.square += float(np.sum(np.square(host(labels))))
        self.count += labels.shape[0]

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
        shifts = penalties * self.count
        shares = _hat_traces(self.gram, shifts) / self.count if degrees else None
        coefficients = shifted_solve(self.gram, self.moment, shifts, self.count)
        norm = np.einsum("rn,rn->r", coefficients, coefficients)
        error = (self.square - coefficients @ self.moment) / self.count
        return RidgePath(coefficients, error, np.maximum(error - penalties * norm, 0.0), norm, shares)


def _hat_traces(gram: Matrix, shifts: Array) -> Array:
    """Traces of A (A + shift)^-1, for each shift."""
    if is_numpy(gram):
        spectrum = linalg.eigvalsh(gram.astype(np.float64), check_finite=False, overwrite_a=True)
    else:
        spectrum = host(namespace(gram).linalg.eigvalsh(double(gram)))
    return cast(Array, (spectrum / (spectrum + shifts[:, None])).sum(axis=1))


def shifted_solve(matrix: Matrix, right: Array, shifts: Array, count: int = 1) -> Array:
    r"""Rows :math:`(A + s)^{-1} v` for each shift s > 0; destroys the symmetric non-negative A.

    One Krylov space of A serves all large shifts. What it leaves of the others is a multiple of one vector, for
    which a space of :math:`(A + \sigma)^{-1}` serves all shifts within three decades, with one factorisation. An
    error message calls a shift over `count` the ridge.

    Examples
    --------
    >>> shifted_solve(np.diag([1.0, 3.0]), np.ones(2), np.array([1.0, 2.0])).round(4).tolist()
    [[0.5, 0.25], [0.3333, 0.2]]
    """
    solutions = np.zeros((len(shifts), len(right)))
    if not right.any():
        return solutions
    try:
        entries, order = diagonal(matrix), np.argsort(shifts)
        if len(right) < KRYLOV_SIZE:
            small = host(matrix)
            if len(shifts) >= TRIDIAGONAL_RIDGES and len(right) > 1:
                return _tridiagonal_solve(small, right, shifts)
            for index in order:
                solutions[index] = _inverse(small.copy(), entries, shifts[index])(right)
            return solutions
        start = right.astype(dtype_name(matrix))
        space = _Lanczos(_product(matrix), start)
        known, done = _large_shifts(space, shifts[order], KRYLOV_SHIFT * float(entries.mean()))
        solutions[order] = space.combined(known)
        left, strengths = order[~done], np.ones(len(shifts))
        if space.exhausted or not np.isfinite(known[~done]).all():
            solutions[left] = 0.0
        else:
            # (A + s) Q y = v + beta_k y_k q: the same vector q is left for every shift.
            start = space.basis[space.count]
            strengths[order] = -space.off[space.count - 1] * known[:, -1]
        while left.size:
            group = left[: np.searchsorted(shifts[left], KRYLOV_RANGE * shifts[left[0]], side="right")]
            left = left[group.size :]
            work = _copied(matrix) if left.size else matrix
            solutions[group] = _small_shifts(
                work, entries, start, shifts[group], strengths[group], solutions[group]
            )
        return solutions
    except _NotPositiveError as error:
        raise ValueError(
            f"ridge {error.args[0] / count:g} is below the rounding error of the Gram matrix: "
            "raise the ridge or use dtype='float64'"
        ) from None


def _tridiagonal_solve(matrix: Array, right: Array, shifts: Array) -> Array:
    """Rows (A + s)^-1 v = Q (T + s)^-1 Q^T v from A = Q T Q^T with a tridiagonal T; destroys A."""
    size = len(right)
    work = BLOCK_SIZE * max(size, len(shifts))
    reflectors, main, off, factors, _ = lapack.dsytrd(matrix.T, lower=1, lwork=work, overwrite_a=1)
    # The first coordinate stays as it is: Q is that of a QR factorisation for the others.
    vectors = np.asfortranarray(reflectors[1:, :-1])

    def rotated(trans: str, columns: Array) -> Array:
        rest = lapack.dormqr("L", trans, vectors, factors, columns[1:], lwork=work)[0]
        return np.concatenate([columns[:1], rest])

    inner, start = np.empty((len(shifts), size)), rotated("T", right[:, None])[:, 0]
    for index in np.argsort(shifts):
        _, _, inner[index], info = lapack.dptsv(main + shifts[index], off, start)
        if info != 0:
            raise _NotPositiveError(shifts[index])
    return rotated("N", inner.T).T


class _NotPositiveError(ArithmeticError):
    """A + s is not positive to rounding; the argument is s."""


class _Lanczos:
    """Orthonormal vectors Q in which A is tridiagonal, A Q = Q T + beta_k q e_k^T, from a start u = |u| q_1."""

    def __init__(self, multiply: Callable[[Matrix], Matrix], start: Matrix) -> None:
        self.multiply, self.dtype, self.length = multiply, start.dtype, float(np.linalg.norm(start))
        self.limit = min(len(start), KRYLOV_STEPS)
        self.tolerance = KRYLOV_TOLERANCE[start.dtype.name]
        self.basis = np.empty((self.limit + 1, len(start)), dtype=start.dtype)
        self.diagonal, self.off = np.empty(self.limit), np.empty(self.limit)
        self.count, self.exhausted = 0, False
        np.divide(start, start.dtype.type(self.length), out=self.basis[0])

    def grow(self) -> None:
        """Take as many steps as are taken before the space is looked at again."""
        for k in range(self.count, min(self.limit, self.count + KRYLOV_PERIOD)):
            new = self.multiply(self.basis[k])
            self.diagonal[k] = self.basis[k] @ new
            # Against all before it: spikes are found within a few steps, and rounding would find them again.
            for _ in range(2):
                new -= (self.basis[: k + 1] @ new) @ self.basis[: k + 1]
            self.off[k], self.count = np.sqrt(new @ new), k + 1
            if self.off[k] <= np.finfo(self.dtype).eps * np.abs(self.diagonal[: k + 1]).max():
                self.exhausted = True
                return
            np.divide(new, self.dtype.type(self.off[k]), out=self.basis[k + 1])

    @property
    def full(self) -> bool:
        """Whether it can grow no more."""
        return self.exhausted or self.count == self.limit

    def solve(self, constants: Array, factors: Array) -> Array:
        """Rows y of (p + q T) y = |u| e_1 for pairs (p, q); not finite where p + q T is not positive."""
        k = self.count
        inner = np.zeros((len(factors), k))
        inner[:, 0] = self.length
        for p, q, row in zip(constants, factors, inner, strict=True):
            _, _, row[:], info = lapack.dptsv(p + q * self.diagonal[:k], q * self.off[: max(1, k - 1)], row)
            if info != 0:
                row[:] = np.nan
        return inner

    def errors(self, factors: Array, least: Array, inner: Array) -> Array:
        """Bounds on the errors of Q y: their residuals |q| beta_k |y_k| over the least eigenvalue of p + q A."""
        return cast(Array, np.abs(factors) * self.off[self.count - 1] * np.abs(inner[:, -1]) / least)

    def combined(self, inner: Array) -> Array:
        """Rows Q y, in float64."""
        return np.asarray(inner.astype(self.dtype) @ self.basis[: self.count], dtype=np.float64)


def _large_shifts(space: _Lanczos, shifts: Array, threshold: float) -> tuple[Array, NDArray[np.bool_]]:
    """Grow the space until it has the shifts above the threshold; coordinates (R, k), and which are good enough."""
    ones, large = np.ones(len(shifts)), shifts >= threshold
    while True:
        space.grow()
        inner = space.solve(shifts, ones)
        done = space.errors(ones, shifts, inner) <= space.tolerance * np.linalg.norm(inner, axis=1)
        if space.full or (done[large].all() if large.any() else space.count >= KRYLOV_FIRST):
            return inner, done


def _small_shifts(
    matrix: Matrix, entries: Array, start: Matrix, shifts: Array, strengths: Array, known: Array
) -> Array:
    """Rows x + gamma (A + s)^-1 u, for rows x that are known; from one factorisation, which destroys A."""
    centre = shifts[0] ** (1 - KRYLOV_CENTRE) * shifts[-1] ** KRYLOV_CENTRE
    inverse = _inverse(matrix, entries, centre)
    base = inverse(start)
    if shifts[0] == shifts[-1]:
        return known + strengths[:, None] * base
    # (A + s) z = u is (1 + (s - c) B) z = B u with B = (A + c)^-1, between 0 and 1/c.
    space = _Lanczos(inverse, base)
    ones, factors, least = np.ones(len(shifts)), shifts - centre, np.minimum(1.0, shifts / centre)
    while True:
        space.grow()
        inner = strengths[:, None] * space.solve(ones, factors)
        if not np.isfinite(inner).all():
            raise _NotPositiveError(shifts[0])
        errors = space.errors(factors, least, inner) / space.tolerance
        # No sum is longer than its parts together: a cheap first look.
        if space.exhausted or np.all(errors <= np.linalg.norm(inner, axis=1) + np.linalg.norm(known, axis=1)):
            found = known + space.combined(inner)
            if space.exhausted or np.all(errors <= np.linalg.norm(found, axis=1)):
                return found
        if space.full:
            # The eigenvalues span at most three decades: only rounding can keep the iteration from its end.
            raise _NotPositiveError(shifts[0])


def _product(matrix: Matrix) -> Callable[[Matrix], Matrix]:
    """Products of the symmetric matrix with NumPy's vectors."""
    if not is_numpy(matrix):
        return lambda vector: host(matrix @ like(vector, matrix)).astype(vector.dtype)
    # A symmetric C-ordered matrix is its own transpose, which BLAS and LAPACK take without a copy.
    multiply = blas.dsymv if matrix.dtype == np.float64 else blas.ssymv
    return lambda vector: cast(Matrix, multiply(1.0, matrix.T, vector, lower=1))


def _copied(matrix: Matrix) -> Matrix:
    return matrix.copy() if is_numpy(matrix) else matrix


def _inverse(matrix: Matrix, entries: Array, shift: float) -> Callable[[Matrix], Matrix]:
    """Products of (A + s)^-1 with NumPy's vectors, from a Cholesky factorisation that destroys A."""
    if not is_numpy(matrix):
        return _inverse_elsewhere(matrix, shift)
    double_precision = matrix.dtype == np.float64
    work = matrix.T
    np.fill_diagonal(work, entries + shift)
    factorise = lapack.dpotrf if double_precision else lapack.spotrf
    factor, info = factorise(work, lower=1, clean=0, overwrite_a=1)
    if info != 0:
        raise _NotPositiveError(shift)
    triangular = blas.dtrsv if double_precision else blas.strsv

    def inverse(vector: Matrix) -> Matrix:
        return cast(Matrix, triangular(factor, triangular(factor, vector, lower=1), lower=1, trans=1))

    return inverse


def _inverse_elsewhere(matrix: Any, shift: float) -> Callable[[Matrix], Matrix]:
    """The same with another library's array, which stays as it is; the array API has no triangular solution."""
    xp = namespace(matrix)
    try:
        lower = xp.linalg.cholesky(matrix + like(shift * np.eye(matrix.shape[0]), matrix))
    except Exception as reason:
        # Every library has an error of its own, and not all of them raise one.
        if "LinAlgError" not in type(reason).__name__:
            raise
        raise _NotPositiveError(shift) from None
    if not np.isfinite(diagonal(lower)).all():
        raise _NotPositiveError(shift)
    left = xp.linalg.inv(lower)

    def inverse(vector: Matrix) -> Matrix:
        return host(left.T @ (left @ like(vector, matrix))).astype(vector.dtype)

    return inverse
