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
# A Gram matrix with so many rows for each ridge is made in float32 and the fits are refined, in at most so many
# rounds, of which each makes errors this much smaller, or this share of what is allowed.
REFINED_ROWS = 100
REFINED_ROUNDS = 5
REFINED_STEP = 1e-4
REFINED_AIM = 0.3
# Bytes of a block of rows that is read twice: it should stay in the cache.
CHUNK_BYTES = 2**19


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
    shares, fits = None, None
    if side == "samples":
        if not degrees:
            fits = _refined_solve(design.T, targets, penalties * count)
        if fits is None:
            # The same object on both sides lets NumPy use the symmetric product, at half the cost.
            gram = design @ design.T
            shares = _hat_traces(gram, penalties * count) / count if degrees else None
            dual = shifted_solve(gram, targets, penalties * count, count)
            fits = dual, host(like(dual, design) @ design)
        coefficients, residuals = fits[1], fits[0] * (penalties[:, None] * count)
    elif side == "features":
        moment = host(labels @ design)
        if not degrees:
            fits = _refined_solve(design, moment, penalties * count)
        if fits is None:
            gram = design.T @ design
            shares = _hat_traces(gram, penalties * count) / count if degrees else None
            found = shifted_solve(gram, moment, penalties * count, count)
            fits = found, host(like(found, design) @ design.T)
        coefficients, residuals = fits[0], targets - fits[1]
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
    if not right.any():
        return np.zeros((len(shifts), len(right)))
    try:
        if len(right) < KRYLOV_SIZE:
            return _small_solve(host(matrix), right, shifts)
        return _krylov_solve(matrix, right, shifts)[0]
    except _NotPositiveError as error:
        raise ValueError(
            f"ridge {error.args[0] / count:g} is below the rounding error of the Gram matrix: "
            "raise the ridge or use dtype='float64'"
        ) from None


def _small_solve(matrix: Array, right: Array, shifts: Array) -> Array:
    """The same for a small A of NumPy's, every shift by itself."""
    if len(shifts) >= TRIDIAGONAL_RIDGES and len(right) > 1:
        return _tridiagonal_solve(matrix, right, shifts)
    solutions, entries = np.empty((len(shifts), len(right))), diagonal(matrix)
    for index in np.argsort(shifts):
        solutions[index] = _inverse(matrix.copy(), entries, shifts[index])(right)
    return solutions


@dataclass(frozen=True, eq=False)
class _Group:
    """Shifts that were solved for with one operator M.

    Attributes
    ----------
    members : ndarray
        Indices of the shifts.
    operator : callable
        Products with M.
    centre : float or None
        c of :math:`M = (A + c)^{-1}`; None for M = A.
    """

    members: NDArray[np.intp]
    operator: Callable[[Matrix], Matrix]
    centre: float | None


def _krylov_solve(
    matrix: Matrix, right: Array, shifts: Array, keep: bool = False
) -> tuple[Array, list[_Group]]:
    """Rows (A + s)^-1 v, and what solved for them; destroys A unless its products are to be kept."""
    solutions = np.zeros((len(shifts), len(right)))
    entries, order = diagonal(matrix), np.argsort(shifts)
    start, product = right.astype(dtype_name(matrix)), _product(matrix)
    space = _Lanczos(product, start)
    known, done = _large_shifts(space, shifts[order], KRYLOV_SHIFT * float(entries.mean()))
    solutions[order] = space.combined(known)
    groups, left, strengths = [_Group(order[done], product, None)], order[~done], np.ones(len(shifts))
    if space.exhausted or not np.isfinite(known[~done]).all():
        solutions[left] = 0.0
    else:
        # (A + s) Q y = v + beta_k y_k q: the same vector q is left for every shift.
        start = space.basis[space.count]
        strengths[order] = -space.off[space.count - 1] * known[:, -1]
    while left.size:
        group = left[: np.searchsorted(shifts[left], KRYLOV_RANGE * shifts[left[0]], side="right")]
        left = left[group.size :]
        work = _copied(matrix) if left.size or keep else matrix
        centre = shifts[group[0]] ** (1 - KRYLOV_CENTRE) * shifts[group[-1]] ** KRYLOV_CENTRE
        inverse = _inverse(work, entries, centre)
        solutions[group] = _small_shifts(
            inverse, centre, start, shifts[group], strengths[group], solutions[group]
        )
        groups.append(_Group(group, inverse, centre))
    return solutions, groups


def _refined_solve(factor: Matrix, right: Array, shifts: Array) -> tuple[Array, Array] | None:
    r"""Rows :math:`x_s = (G^\top G + s)^{-1} v` and :math:`G x_s`, with a Gram matrix in float32 only.

    .. math:: x_s \leftarrow x_s + (A_{32} + s)^{-1} r_s, \qquad r_s = v - G^\top (G x_s) - s x_s

    The residual comes from G itself in float64, the correction from conjugate gradients with the operators that the
    float32 solutions came from. None where this does not pay, or where float32 is not enough to converge.
    """
    if not _pays_refined(factor, right, shifts):
        return None
    # The rounding errors of the Gram matrix in float32 are smaller than this share of its trace.
    entries = factor.ravel(order="K")
    if not shifts.min() > float(np.finfo(np.float32).eps) * float(entries @ entries):
        return None
    length = float(np.linalg.norm(right))
    right = right / length
    # What float32 cannot hold is not finite, and found by the comparisons.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        try:
            solutions, groups = _krylov_solve(_single_gram(factor), right, shifts, keep=True)
        except _NotPositiveError:
            return None
        serving = {index: group for group in groups for index in group.members.tolist()}
        products, todo = np.empty((len(shifts), factor.shape[0])), np.arange(len(shifts))
        for _ in range(REFINED_ROUNDS):
            applied, products[todo] = _applied(factor, solutions[todo])
            residuals = right - applied - shifts[todo, None] * solutions[todo]
            changes = [
                _correction(serving[index], residual, shifts[index], float(np.linalg.norm(solutions[index])))
                for index, residual in zip(todo, residuals, strict=True)
            ]
            todo = todo[[change is not None for change in changes]]
            if not todo.size:
                return length * solutions, length * products
            solutions[todo] += [change for change in changes if change is not None]
    return None


def _pays_refined(factor: Matrix, right: Array, shifts: Array) -> bool:
    """Whether a Gram matrix in float32 saves more than the refinement of so many fits takes."""
    if not is_numpy(factor) or factor.dtype != np.float64 or not right.any():
        return False
    return len(right) >= max(KRYLOV_SIZE, REFINED_ROWS * len(shifts))


def _single_gram(factor: Matrix) -> Matrix:
    """G^T G in float32, from as many rows at once as take no more memory than the Gram matrix in float64."""
    size = 2 * factor.shape[1]
    gram: Matrix | None = None
    for start in range(0, factor.shape[0], size):
        block = factor[start : start + size].astype(np.float32)
        part = block.T @ block
        gram = part if gram is None else np.add(gram, part, out=gram)
    assert gram is not None
    return gram


def _applied(factor: Matrix, rows: Array) -> tuple[Array, Array]:
    """Rows G^T G x and G x; every block of G is read while it is in the cache."""
    columns = np.ascontiguousarray(rows.T)
    applied, products = np.zeros_like(columns), np.empty((factor.shape[0], len(rows)))
    size = max(1, CHUNK_BYTES // (factor.itemsize * factor.shape[1]))
    for start in range(0, factor.shape[0], size):
        block = factor[start : start + size]
        part = np.matmul(block, columns, out=products[start : start + size])
        applied += block.T @ part
    return applied.T, products.T


def _correction(group: _Group, residual: Array, shift: float, length: float) -> Array | None:
    """(A + s)^-1 r to a few digits, or None where it is surely below the tolerance of a solution so long."""
    scale = float(np.linalg.norm(residual))
    if scale == 0.0:
        return None
    right = (residual / scale).astype(np.float32)
    if group.centre is None:
        constant, factor, least = shift, 1.0, shift
    else:
        # (A + s) z = r is (1 + (s - c) B) z = B r with B = (A + c)^-1.
        right = group.operator(right)
        constant, factor, least = 1.0, shift - group.centre, min(1.0, shift / group.centre)
    error = scale * float(np.linalg.norm(right)) / least
    wanted = KRYLOV_TOLERANCE["float64"] * length
    if error <= wanted:
        return None
    found = _conjugate(
        group.operator, right, constant, factor, max(REFINED_STEP, REFINED_AIM * wanted / error)
    )
    return scale * found.astype(np.float64)


def _conjugate(
    multiply: Callable[[Matrix], Matrix], right: Matrix, constant: float, factor: float, tolerance: float
) -> Matrix:
    """(p + q M)^-1 v by conjugate gradients to a relative residual, or NaN where they do not reach it."""
    kind = right.dtype.type
    solution, residual, search = np.zeros_like(right), right.copy(), right.copy()
    square = float(residual @ residual)
    goal = tolerance**2 * square
    for _ in range(KRYLOV_STEPS):
        image = multiply(search)
        image *= kind(factor)
        image += kind(constant) * search
        curvature = float(search @ image)
        if not curvature > 0:
            break
        length = kind(square / curvature)
        solution += length * search
        residual -= length * image
        square, last = float(residual @ residual), square
        if square <= goal:
            return solution
        search *= kind(square / last)
        search += residual
    return np.full_like(right, np.nan)


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
    inverse: Callable[[Matrix], Matrix],
    centre: float,
    start: Matrix,
    shifts: Array,
    strengths: Array,
    known: Array,
) -> Array:
    """Rows x + gamma (A + s)^-1 u, for rows x that are known; from products with (A + c)^-1 at the centre c."""
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
