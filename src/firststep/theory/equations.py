r"""The self-consistent equations of the unified theory and the forms that follow from them [firststep, unified].

Two unknown functions, rho(z) for the samples and delta(u) for the neurons, solve a pair of equations; quadratic forms
of the resolvent, and with them errors and spectra, follow by small matrices. Ridges may be complex.

Symbols of the derivation (docs/unified.md), names here and shapes; B points, nz and nu nodes of z and U, K functions of
z, L levels::

    rho(z)                    State.rho                                (B, nz)
    1/(1 + delta(u))          State.y                                  (B, nu)
    P                         State.p                                  (B, K, K)
    S = (1 + B P)^-1          State.s                                  (B, L, K, K)
    T = S B, X = P S          State.t, State.x                         (B, L, K, K)
    U (and not u = omega U)   Geometry.u                               (nu,)
    alpha                     Tables.carried, of each degree           (B, P, nu, K)
    c(U, m)                   Tables.stretch                           (B, L, nu)
    A_2^2                     Tables.spread                            (B, nu, nz)
    C                         Tables.spikes                            (B, blocks K, npsi)
    G, R_2                    Forms.prior, Forms.forms                 (B, blocks K, blocks K)
    Q                         Forms.own                                (B, npsi, npsi)
    r of eq. 16               r of `_fit`; of eq. 2: Tables.cosine     (B, blocks K)
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from firststep.compute.memory import calm_memory
from firststep.gaussian import Array, hermite_polynomials
from firststep.numerics import fixedpoint
from firststep.theory.coefficients import Geometry, Tables, Values, apply, products_of
from firststep.theory.spread import Spread

# Nodes of z, in units of the products of two functions of z, from which on steps are computed from those.
LONG = 1.5
# How far below the tolerance the residual has to be after a last step with the derivative of the step before.
CHORD = 1e-5
# What helps where the equations of the errors have no solution within reach.
REMEDY = "raise ridge, lower the step size, or check that the ratios are of order one"
# Keeps logarithms finite where nothing but the ridge is left of 1/rho.
LEAST_BULK = 1e-200
# No solution varies faster than this with the ridge, all by their logarithms.
STEEPEST = 1.0
# Where the first guess is too far a ridge is raised by the first until it is near, at most so often, and the solution
# carried back down in steps of the second.
RAISED, MOST_RISES, LOWERED = 1e4, 10, 1e2


@dataclass(frozen=True)
class State:
    """The matrices of the self-consistent equations at given rho and y = 1/(1 + delta)."""

    rho: Values  # (B, nz)
    y: Values  # (B, nu)
    p: Values  # P, (B, K, K)
    s: Values  # (1 + Bm P)^-1 at the nodes of mu, (B, L, K, K)
    t: Values  # T(m), (B, L, K, K)
    x: Values  # P (1 + Bm P)^-1
    bulk: Values  # V(z) + h^T T h, (B, nz)
    delta: Values  # right-hand side of the equation for delta, (B, nu)


def _same(values: Values) -> bool:
    """Whether all points have the same values: one step size at many ridges, as in a spectrum."""
    return len(values) > 1 and values.strides[0] == 0


def _times(left: Values, right: Array) -> Values:
    """A product, (I, J) by (J, K), with a real right side."""
    if not np.iscomplexobj(left):
        return np.asarray(left @ right)
    found = np.empty((len(left), right.shape[1]), dtype=left.dtype)
    found.real, found.imag = left.real @ right, left.imag @ right
    return found


def _stacked(matrices: Values, right: Values) -> Values:
    """Matrices (B, L, I, J) times one of each point, (B, J, K): one large product instead of L small ones."""
    count, levels, rows, columns = matrices.shape
    if _same(right):
        found = _times(matrices.reshape(-1, columns), right[0])
    else:
        found = matrices.reshape(count, levels * rows, columns) @ right
    return np.asarray(found.reshape(count, levels, rows, right.shape[2]))


def _seen(alpha: Array, products: Array | None, factors: Values) -> Values:
    """B = E_u[c alpha alpha^T y] at each level, from alpha, (B, nu, K), and c y times the weights, (B, L, nu)."""
    if products is None:
        return _stacked(factors[:, :, None, :] * alpha.swapaxes(1, 2)[:, None], alpha)
    flat = factors.reshape(-1, factors.shape[2])
    found = _times(flat, products[0]) if _same(products) else factors @ products
    return np.asarray(found.reshape(*factors.shape[:2], alpha.shape[2], alpha.shape[2]))


def _forms(matrices: Values, alpha: Array, products: Array | None) -> Values:
    """alpha^T X alpha at each level and node, (B, L, nu)."""
    if products is None:
        across = alpha.swapaxes(1, 2)
        return np.asarray((_stacked(matrices, across) * across[:, None]).sum(axis=2))
    flat = matrices.reshape(*matrices.shape[:2], -1)
    if _same(products):
        return _times(flat.reshape(-1, flat.shape[2]), products[0].T).reshape(*flat.shape[:2], -1)
    return np.asarray(flat @ products.swapaxes(1, 2))


def _sampled(h: Array, mass: Values) -> Values:
    """E_z[h h^T rho], (B, K, K), from h, (B, K, nz), and rho times the weights, (B, nz)."""
    if _same(h):
        products = (h[0].T[:, :, None] * h[0].T[:, None, :]).reshape(mass.shape[1], -1)
        return _times(mass, products).reshape(len(mass), h.shape[1], h.shape[1])
    return np.asarray((h * mass[:, None, :]) @ h.swapaxes(1, 2))


def _resolvents(b: Values, p: Values) -> tuple[Values, Values]:
    """S = (1 + B P)^-1 and T = S B at each level [firststep, unified, eq. 8]."""
    s = np.linalg.inv(np.eye(p.shape[-1]) + _stacked(b, p))
    return s, s @ b


# Trace of B P above which S, whose smallest eigenvalue is about its inverse, has lost half of its digits.
ILL_CONDITIONED = 1e4


def _exact_resolvents(b: Values, p: Values) -> tuple[Values, Values]:
    r"""The same, with small eigenvalues of S to all their digits.

    .. math:: P = L L^\top, \quad L^\top B L = V \lambda V^\top, \quad
        S = L^{-\top} V \frac{1}{1+\lambda} V^\top L^\top, \quad
        T = L^{-\top} V \frac{\lambda}{1+\lambda} V^\top L^{-1}
    """
    if (
        np.iscomplexobj(p)
        or np.iscomplexobj(b)
        or not np.einsum("blij,bij->bl", b, p).max() > ILL_CONDITIONED
    ):
        return _resolvents(b, p)
    try:
        root = np.linalg.cholesky(p)[:, None]
        values, vectors = np.linalg.eigh(root.swapaxes(2, 3) @ b @ root)
    except np.linalg.LinAlgError:
        # A rung that is too coarse for a spike may have no answer.
        return _resolvents(b, p)
    inside = np.linalg.solve(root.swapaxes(2, 3), vectors)
    rest = 1 / (1 + np.maximum(values, 0.0))[..., None, :]
    s = (inside * rest) @ (root @ vectors).swapaxes(2, 3)
    return s, (inside * (1 - rest)) @ inside.swapaxes(2, 3)


def state_at(geometry: Geometry, tables: Tables, rho: Values, y: Values) -> State:
    """One evaluation of both self-consistent equations [firststep, unified, eqs. 9-10]."""
    h, weights, mu, stretch = tables.h, geometry.weights, tables.level_weights, tables.stretch
    mass = geometry.u_weights * y
    p = geometry.samples_per_dim * _sampled(h, weights * rho)
    sectors = [(*sector, products) for sector, products in zip(tables.sectors, tables.products, strict=True)]
    seen = [_seen(alpha, products, stretch[:, levels] * mass[:, None]) for alpha, levels, products in sectors]
    s, t = _resolvents(np.concatenate(seen, axis=1), p)
    x = p[:, None] @ s
    mean_t = np.einsum("bl,blij->bij", mu, t)
    bulk = (mass[:, None, :] @ tables.spread)[:, 0] + ((mean_t @ h) * h).sum(axis=1)
    delta = geometry.samples_per_neuron * (tables.spread @ (weights * rho)[..., None])[..., 0]
    for alpha, levels, products in sectors:
        forms = mu[:, levels, None] * stretch[:, levels] * _forms(x[:, levels], alpha, products)
        delta = delta + forms.sum(axis=1) / geometry.neurons_per_dim
    return State(rho, y, p, s, t, x, bulk, delta)


# Numbers of a temporary from which on points are taken one by one: it stays in the cache then.
MANY = 2**17


def _squares(left: Values, right: Values) -> Values:
    """sum_l (L_l R_l)^2 entry by entry, (B, I, J), of L, (B, L, I, K), and R, (B, K, J) or (B, L, K, J)."""
    count, levels, rows = left.shape[:3]
    columns = right.shape[-1]
    if count > 1 and levels * rows * columns > MANY:
        found = np.empty((count, rows, columns), dtype=np.result_type(left, right))
        for b in range(count):
            found[b] = _squares(left[b : b + 1], right[b : b + 1])[0]
        return found
    forms = _stacked(left, right) if right.ndim == 3 else left @ right
    if np.iscomplexobj(forms):
        forms *= forms
        return np.asarray(forms.sum(axis=1))
    return np.asarray(np.einsum("blij,blij->bij", forms, forms))


def _between_samples(tables: Tables, state: State) -> Values:
    """sum_l mu_l (h_i^T T_l h_j)^2, (B, nz, nz)."""
    root = np.sqrt(tables.level_weights)[..., None, None]
    return _squares((root * _stacked(state.t, tables.h)).swapaxes(2, 3), tables.h)


def _samples_neurons(tables: Tables, state: State) -> Values:
    """A_>^2 and sum_l mu_l c_l (h_i^T S_l alpha_j)^2, (B, nz, nu)."""
    found = tables.spread
    root = np.sqrt(tables.level_weights[..., None] * tables.stretch)[:, :, None]
    for alpha, levels in tables.sectors:
        mixed = root[:, levels] * _stacked(state.s[:, levels], alpha.swapaxes(1, 2))
        found = found + _squares(mixed.swapaxes(2, 3), tables.h)
    return np.asarray(found.swapaxes(1, 2))


def _between_neurons(tables: Tables, state: State) -> Values:
    """sum_l mu_l c_l(i) c_l(j) (alpha_i^T X_l alpha_j)^2, (B, nu, nu)."""
    found: Values = np.zeros(1)
    root = np.sqrt(tables.stretch)[:, :, None]
    weighted = np.sqrt(tables.level_weights)[..., None, None] * root
    for alpha, levels in tables.sectors:
        across = alpha.swapaxes(1, 2)
        carried = weighted[:, levels] * _stacked(state.x[:, levels], across)
        found = found + _squares(carried.swapaxes(2, 3), root[:, levels] * across[:, None])
    return found


def jacobian_at(geometry: Geometry, tables: Tables, state: State) -> Values:
    """Derivative of the relative residuals with respect to (log rho, log(1 + delta)) [firststep, unified, eq. 11]."""
    nz, nu = len(geometry.weights), len(geometry.u_weights)
    samples_neurons = _samples_neurons(tables, state)
    sample_mass, neuron_mass = geometry.weights * state.rho, geometry.u_weights * state.y
    jacobian = np.empty((len(state.rho), nz + nu, nz + nu), dtype=np.result_type(state.rho, state.y))
    jacobian[:, :nz, :nz] = _between_samples(tables, state)
    jacobian[:, :nz, :nz] *= -geometry.samples_per_dim * sample_mass[:, None, :]
    jacobian[:, :nz, nz:] = -samples_neurons * neuron_mass[:, None, :]
    jacobian[:, nz:, :nz] = (
        -geometry.samples_per_neuron * samples_neurons.swapaxes(1, 2) * sample_mass[:, None, :]
    )
    jacobian[:, nz:, nz:] = _between_neurons(tables, state)
    jacobian[:, nz:, nz:] *= -neuron_mass[:, None, :] / geometry.neurons_per_dim
    jacobian *= np.concatenate([state.rho, state.y], axis=1)[:, :, None]
    diagonal = np.arange(nz + nu)
    jacobian[:, diagonal, diagonal] += 1.0
    return jacobian


def _resolved(geometry: Geometry, below: Values) -> tuple[Values, Values]:
    r"""rho = 1/(lambda n/N + bulk) and its reaction -dlog rho/dbulk, from the denominators at the nodes of z.

    With `cells` both are averages over the cell around each node, in which the denominator is taken as linear: close to
    the real axis rho varies faster than any smooth function of z, and 1/rho does not.
    """
    if not geometry.cells:
        return 1 / below, 1 / below
    middle = (below[:, 1:] + below[:, :-1]) / 2
    left = np.concatenate([2 * below[:, :1] - middle[:, :1], middle], axis=1)
    right = np.concatenate([middle, 2 * below[:, -1:] - middle[:, -1:]], axis=1)
    slant = (right - left) / (right + left)
    small = np.abs(slant) < 1e-3
    ratio = np.where(small, 1 + slant**2 / 3, np.arctanh(slant) / np.where(small, 1.0, slant))
    rho = ratio * 2 / (right + left)
    return rho, 1 / (left * right * rho)


def _newton_matrix(geometry: Geometry, tables: Tables, state: State, error: Values) -> Values:
    """Derivative of the relative residuals at a state that has these."""
    matrix = jacobian_at(geometry, tables, state)
    diagonal = np.arange(error.shape[1])
    matrix[:, diagonal, diagonal] += np.where(diagonal < len(geometry.weights), error, -error)
    return matrix


def _solved(matrix: Values, right: Values) -> Values:
    """Solutions of linear equations, one of each matrix."""
    return np.asarray(np.linalg.solve(matrix, right[..., None])[..., 0])


def _may_be_chord(size: Array, before: Array, tolerance: float) -> bool:
    """Whether the last step may be taken with the derivative of the step before.

    It leaves of the residual what that step left of the one before it: r^2/r'.
    """
    return bool((size <= tolerance).all() and (size**2 <= CHORD * tolerance * before).all())


def _reduced_steps(
    geometry: Geometry, tables: Tables, state: State, error: Values, reacting: Values
) -> Values:
    """Relative steps of Newton where there are many more nodes of z than products of two functions of z.

    Samples act on each other through P alone, so that the unknowns are its change and those of the neurons.
    """
    mu, uw, nz = tables.level_weights, geometry.u_weights, len(geometry.weights)
    count, basis = tables.h.shape[:2]
    first, second = np.triu_indices(basis)
    doubled = np.where(first == second, 1.0, 2.0)
    products = tables.h[:, first] * tables.h[:, second]  # h_a h_b, a <= b, (B, R, nz)
    # h_i^T T h_j squared, as a form between the products at i and at j.
    pairs = state.t[:, :, first[:, None], first] * state.t[:, :, second[:, None], second]
    pairs = pairs + state.t[:, :, first[:, None], second] * state.t[:, :, second[:, None], first]
    kernel = np.einsum("bl,blpq->bpq", mu, pairs) * (doubled[:, None] * doubled / 2)
    across = _samples_neurons(tables, state) * (uw * state.y)[:, None, :]
    # The step of a sample is `free` plus what the change of P and the neurons' steps make of `reacting`.
    free = -error[:, :nz] / (1 + error[:, :nz])
    mass = geometry.weights * state.rho
    back = (
        geometry.samples_per_neuron * state.y[:, :, None] * across.swapaxes(1, 2) / (uw * state.y)[:, :, None]
    )
    rank, nu = len(first), len(uw)
    matrix = np.zeros((count, rank + nu, rank + nu), dtype=error.dtype)
    forms = geometry.samples_per_dim * kernel
    weighted = (mass * reacting)[:, :, None]
    matrix[:, :rank, :rank] = np.eye(rank) - products @ (weighted * products.swapaxes(1, 2)) @ forms
    matrix[:, :rank, rank:] = -products @ (weighted * across)
    matrix[:, rank:, :rank] = -back @ (weighted * products.swapaxes(1, 2)) @ forms
    matrix[:, rank:, rank:] = -back @ (weighted * across)
    matrix[:, rank:, rank:] -= (
        state.y[:, :, None]
        * _between_neurons(tables, state)
        * (uw * state.y)[:, None, :]
        / geometry.neurons_per_dim
    )
    diagonal = np.arange(rank, rank + nu)
    matrix[:, diagonal, diagonal] += 1 - error[:, nz:]
    right = np.concatenate([apply(products, mass * free), apply(back, mass * free) - error[:, nz:]], axis=1)
    found = np.linalg.solve(matrix, right[..., None])[..., 0]
    change = apply(products.swapaxes(1, 2), apply(forms, found[:, :rank])) + apply(across, found[:, rank:])
    return np.concatenate([free + reacting * change, found[:, rank:]], axis=1)


def solve_points(
    geometry: Geometry,
    tables: Tables,
    ridge: Values,
    start: Values,
    tolerance: float,
    plain_rounds: int,
    remedy: str = REMEDY,
) -> fixedpoint.FixedPoint:
    """rho(z) and 1 + delta(u) for a batch of points, as one vector each [firststep, unified, eqs. 9-10]."""
    calm_memory()
    nz = len(geometry.weights)
    floor = (ridge * geometry.samples_per_neuron)[:, None]
    last: list[tuple[NDArray[np.intp], Tables]] = [(np.arange(len(ridge)), tables)]
    # Of the step before: the points, the derivative and the residuals.
    known: list[tuple[NDArray[np.intp], Values, Array]] = []

    def taken(index: NDArray[np.intp]) -> Tables:
        # Often the same as in the round before.
        if not np.array_equal(index, last[0][0]):
            last[0] = index, tables.take(index)
        return last[0][1]

    def newton(values: Values, index: NDArray[np.intp]) -> tuple[Values, Values]:
        here = taken(index)
        rho, y = values[:, :nz], 1 / values[:, nz:]
        state = state_at(geometry, here, rho, y)
        error, reaction = _errors(geometry, state, floor[index])
        size = _largest(geometry, error)
        basis = here.h.shape[1]
        if geometry.cells or nz > LONG * basis * (basis + 1) / 2:
            return _reduced_steps(geometry, here, state, error, reaction), size
        # After a singular matrix only some of the points have one.
        if known:
            at = np.searchsorted(known[0][0], index) % len(known[0][0])
            if (known[0][0][at] == index).all() and _may_be_chord(size, known[0][2][at], tolerance):
                return _solved(known.pop()[1][at], -error), size
        matrix = _newton_matrix(geometry, here, state, error)
        known[:] = [(index, matrix, size)]
        return _solved(matrix, -error), size

    def plain(values: Values, index: NDArray[np.intp]) -> Values:
        state = state_at(geometry, taken(index), values[:, :nz], 1 / values[:, nz:])
        return np.concatenate([_resolved(geometry, floor[index] + state.bulk)[0], 1 + state.delta], axis=1)

    equations = fixedpoint.Equations(newton, plain, what="the unified equations", remedy=remedy)
    return fixedpoint.solve(equations, start, tolerance=tolerance, plain_rounds=plain_rounds)


def bulk_of(geometry: Geometry, values: Values, ridge: Values) -> Values:
    """1/rho less the ridge's own part, which varies least between ridges, (B, nz)."""
    rho = values[:, : len(geometry.weights)]
    return np.maximum(1 / rho - (ridge * geometry.samples_per_neuron)[:, None], LEAST_BULK)


def reached_points(
    geometry: Geometry, tables: Tables, ridge: Array, start: Array, tolerance: float, plain_rounds: int
) -> fixedpoint.FixedPoint:
    """The same, and where this start is too far by way of larger ridges, at which the first guess is near."""
    try:
        return solve_points(geometry, tables, ridge, start, tolerance, plain_rounds)
    except fixedpoint.ConvergenceError as error:
        near = np.array(error.value)
        for at in np.flatnonzero(~(error.residual <= tolerance)):
            point = np.array([at])
            near[at] = _descended(geometry, tables.take(point), ridge[point], tolerance)[0]
        return solve_points(geometry, tables, ridge, near, tolerance, 0)


def _descended(geometry: Geometry, tables: Tables, ridge: Array, tolerance: float) -> Array:
    """One point's solution, carried down from the nearest larger ridge that has one."""
    for rise in range(1, MOST_RISES + 1):
        here = ridge * RAISED**rise
        try:
            rounds = fixedpoint.PLAIN_ROUNDS
            value = solve_points(geometry, tables, here, first_guess(geometry, here), tolerance, rounds).value
            break
        except fixedpoint.ConvergenceError:
            if rise == MOST_RISES:
                raise
    while here > ridge:
        lower = np.maximum(here / LOWERED, ridge)
        bulk = bulk_of(geometry, value, here)
        floor = (lower * geometry.samples_per_neuron)[:, None]
        start = np.concatenate([1 / (floor + bulk), value[:, bulk.shape[1] :]], axis=1)
        here, value = lower, solve_points(geometry, tables, lower, start, tolerance, 0).value
    return np.asarray(value)


def _errors(geometry: Geometry, state: State, floor: Values) -> tuple[Values, Values]:
    """Relative residuals of both equations, samples first, (B, nz + nu), and rho's reaction; `floor` is lambda n/N."""
    rho, reaction = _resolved(geometry, floor + state.bulk)
    return np.concatenate([state.rho / rho - 1, 1 - (1 + state.delta) * state.y], axis=1), reaction


def _largest(geometry: Geometry, error: Values) -> Array:
    """Largest residual of each point; nodes far out, of no weight and with huge polynomials, must not decide."""
    weights = geometry.weights
    relevance = np.concatenate([np.sqrt(weights / weights.max()), np.ones(len(geometry.u))])
    return np.asarray((relevance * np.abs(error)).max(axis=1))


def residual_of(geometry: Geometry, state: State, ridge: Values) -> Array:
    """Largest relative residual of each point, shape (B,)."""
    return _largest(geometry, _errors(geometry, state, (ridge * geometry.samples_per_neuron)[:, None])[0])


@dataclass(frozen=True)
class Special:
    """What random weights carry along special directions, of the first degree or of a higher one."""

    s: Values  # (1 + Bm P)^-1 at the nodes of the law, (B, J, K, K)
    t: Values
    z_matrix: Values  # (1 - Tau (1 x P))^-1
    effective: Values  # Beff

    def gradient(self, law: Spread, alpha: Array, h: Array, pull: Values) -> tuple[Values, Values]:
        """Derivatives of pull^T Beff pull, by P between the functions at each zeta and by each neuron's mass.

        `alpha` (B, nu, K) are the neurons' coefficients of this degree, `pull` (B, M, K) belongs to its monomials.
        """
        flat = pull.reshape(len(pull), -1)
        nu = law.vectors @ apply(self.z_matrix.swapaxes(1, 2), flat).reshape(pull.shape)
        beta = apply(self.effective, flat).reshape(pull.shape) @ h
        t_nu = apply(self.t, nu) @ h
        s_nu = apply(self.s.swapaxes(2, 3), nu) @ alpha.swapaxes(1, 2)
        by_sample = (beta**2).sum(axis=1) - (t_nu**2).sum(axis=1)
        return by_sample, (law.stretch * s_nu**2).sum(axis=1)


@dataclass(frozen=True)
class Forms:
    """Resolvent forms on functions f(zeta) h_b(g), block by block, before and after the finite-rank terms."""

    state: State
    special: Special
    higher: tuple[Special | None, ...]  # the same of the terms of higher degree that are spread
    prior: Values  # G, covariance of what the random weights add
    form: Values  # Rm, the same in each block: R2 = 1 x Rm
    moments: Values  # E_u[psi psi^T y]
    loosened: Values  # what fluctuates on the neurons' side of the spikes

    @property
    def own(self) -> Values:
        """The neurons' side of the spikes, E_u[psi psi^T y]^-1 with what fluctuates."""
        return _inverse(self.moments) + self.loosened


def _lifted(tables: Tables, places: tuple[tuple[int, int], ...], inner: Values) -> Values:
    """Covariance of functions in their blocks, (B, blocks K, blocks K), from that of what each monomial carries.

    A neuron's function carried along a monomial is multiplied by the monomial's special coordinates, a shift, and
    stands in the monomial's block; `inner` is (B, M K, M K).
    """
    count, basis = tables.h.shape[:2]
    size, blocks = len(places), len(tables.blocks)
    shifts = tables.shifts[:, [shift for _, shift in places]]
    left = shifts @ inner.reshape(count, size, basis, size * basis)
    both = left.reshape(count, size, basis, size, basis).transpose(0, 3, 1, 2, 4).reshape(
        count, size, size * basis, basis
    ) @ shifts.swapaxes(2, 3)
    found = np.zeros((count, blocks, basis, blocks, basis), dtype=both.dtype)
    parts = both.reshape(count, size, size, basis, basis)
    for i, (row, _) in enumerate(places):
        for j, (column, _) in enumerate(places):
            found[:, row, :, column, :] += parts[:, j, i]
    return found.reshape(count, blocks * basis, blocks * basis)


def _lowered(tables: Tables, places: tuple[tuple[int, int], ...], vectors: Values) -> Values:
    """Functions of each block, (B, blocks K), as seen along each monomial, (B, M, K)."""
    by_block = vectors.reshape(len(vectors), len(tables.blocks), -1)
    blocks, shifts = ([place[i] for place in places] for i in range(2))
    return np.asarray((by_block[:, blocks, None, :] @ tables.shifts[:, shifts])[:, :, 0])


def _carried(tables: Tables, covariance: Array, degree: int, mass: Values) -> Values:
    """E_u[c_mm'(U) alpha alpha^T y] between all monomials m, m' of a degree, (B, M K, M K)."""
    count, basis, size = len(mass), tables.h.shape[1], covariance.shape[-1]
    alpha = tables.by_degree[:, degree - 1]
    outer = (alpha[..., :, None] * alpha[..., None, :]).reshape(count, -1, basis * basis)
    factors = (covariance * mass[..., None, None]).reshape(count, -1, size * size).swapaxes(1, 2)
    found = (factors @ outer).reshape(count, size, size, basis, basis).swapaxes(2, 3)
    return np.asarray(found.reshape(count, size * basis, size * basis))


def forms_at(geometry: Geometry, tables: Tables, values: Values) -> Forms:
    r"""Prior of the random weights and forms of the bulk [firststep, unified, eqs. 12-14; degrees, eq. 5].

    .. math:: \mathcal T_{ab} = \int T(m)\,\mu_{ab}(dm), \quad B_{eff} = (\mathcal T^{-1} - 1\otimes P)^{-1},
        \quad G = \tfrac{N}{d}\, \mathcal J B_{eff} \mathcal J^\top
        + \sum_{p\ge2} \tfrac{N}{D_p} \mathcal J_p B_p \mathcal J_p^\top
    """
    psi, weights, uw = tables.psi, geometry.weights, geometry.u_weights
    nz, basis, ratio = len(weights), tables.h.shape[1], geometry.neurons_per_dim
    rho, y = values[:, :nz], 1 / values[:, nz:]
    state = state_at(geometry, tables, rho, y)
    sample_mass, neuron_mass = weights * rho, uw * y
    first = Spread(tables.special_vectors, tables.special_stretch)
    special = _special(first, tables.by_degree[:, 0], neuron_mass, state.p)
    # A random weight along zeta multiplies zeta itself; one along e_a multiplies an independent Gaussian.
    louder = _carried(tables, tables.special_extra, 1, neuron_mass)
    prior = ratio * _lifted(tables, tables.first_places, special.effective + louder)
    higher: list[Special | None] = []
    for term in tables.priors:
        carried = _carried(tables, term.covariance, term.degree, neuron_mass)
        prior += term.factor * _lifted(tables, term.places, carried)
        spread = None
        if term.spread is not None:
            spread = _special(term.spread, tables.by_degree[:, term.degree - 1], neuron_mass, state.p)
            prior += ratio * _lifted(tables, term.places, spread.effective)
        higher.append(spread)
    # Row norms fluctuate: a random multiple of A3(u, z).
    for bend in (tables.row_bend, tables.length_bend):
        prior[:, :basis, :basis] += 2 * ratio * bend.swapaxes(1, 2) @ (neuron_mass[..., None] * bend)
    prior += ratio * _leaning(tables, neuron_mass)
    moments = (psi * neuron_mass[:, None, :]) @ psi.swapaxes(1, 2)
    loosened = _fluctuations(geometry, tables, state, sample_mass)
    return Forms(state, special, tuple(higher), prior, state.p / ratio, moments, loosened)


def _special(law: Spread, alpha: Array, mass: Values, p: Values) -> Special:
    """B_eff between functions that are spread over nodes of different variance [firststep, unified, eq. 12]."""
    s, t = _exact_resolvents(_seen(alpha, products_of(alpha), law.stretch * mass[:, None]), p)
    count, levels, basis = t.shape[:3]
    directions = law.vectors.shape[2]
    outer = law.vectors[..., :, None] * law.vectors[..., None, :]

    def by_direction(forms: Values) -> Values:
        """sum_l v_l v_l^T x F_l, (B, directions K, directions K)."""
        found = outer.reshape(count, levels, -1).swapaxes(1, 2) @ forms.reshape(count, levels, -1)
        found = found.reshape(count, directions, directions, basis, basis).swapaxes(2, 3)
        return np.asarray(found.reshape(count, directions * basis, directions * basis))

    # 1 - T P = S: so no small difference of large numbers is formed. No weights are random along what is missing.
    missing = np.eye(directions) - outer.sum(axis=1)
    alone = missing[:, :, None, :, None] * np.eye(basis)[:, None, :]
    z_matrix = np.linalg.inv(by_direction(s) + alone.reshape(count, directions * basis, -1))
    return Special(s, t, z_matrix, z_matrix @ by_direction(t))


def _inverse(matrix: Values) -> Values:
    """Inverses; where neurons so differ that a coarse rung's matrix is singular to rounding, of what is left of it."""
    try:
        return np.asarray(np.linalg.inv(matrix))
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.pinv(matrix))


def _leaning(tables: Tables, mass: Values) -> Values:
    """Prior of what a row's length does together with its special components [firststep, radial, eq. 2]."""
    count, basis = tables.h.shape[:2]
    alpha = tables.by_degree[:, 0]
    # E_u[(c tau)_a alpha lean^T y], from the functions carried along each direction to the block of zeta alone.
    weighted = (mass[..., None] * tables.leaning).swapaxes(1, 2)[..., None] * alpha[:, None]
    crossed = weighted.swapaxes(2, 3) @ tables.lean[:, None]
    by_block = np.zeros((count, len(tables.blocks), basis, basis), dtype=crossed.dtype)
    for at, (block, shift) in enumerate(tables.first_places):
        by_block[:, block] += tables.shifts[:, shift] @ crossed[:, at]
    across = by_block.reshape(count, -1, basis)
    found = np.zeros((count, across.shape[1], across.shape[1]), dtype=across.dtype)
    found[:, :, :basis] += across
    found[:, :basis, :] += across.swapaxes(1, 2)
    own = (mass * tables.leaning_square)[..., None] * tables.lean
    found[:, :basis, :basis] += own.swapaxes(1, 2) @ tables.lean
    return found


def _fluctuations(geometry: Geometry, tables: Tables, state: State, sample_mass: Values) -> Values:
    """What the norm of x adds to the neurons' side of the spikes, less what an output of order one has taken out."""
    bend, npn = tables.input_bend, geometry.samples_per_neuron
    noise = (bend * sample_mass[:, None, None, :]) @ bend.swapaxes(2, 3)
    found = 2 * geometry.samples_per_dim * np.einsum("bl,blpq->bpq", tables.bend_weights, noise)
    if tables.output_spikes is not None and tables.output_powers is not None:
        # Given W0^T a, the neurons have no random component along a: neither in the linear nor in the higher degrees.
        linear = tables.output_spikes.shape[2]
        along = tables.output_spikes.swapaxes(3, 4) @ state.x[:, None, :linear] @ tables.output_spikes
        found = found - np.einsum("bl,bjlpq->bpq", tables.bend_weights, along) / geometry.neurons_per_dim
        higher = tables.output_powers.swapaxes(1, 2) @ tables.output_powers
        found = found - (npn * sample_mass.sum(axis=1))[:, None, None] * higher
    return np.asarray(found)


@dataclass(frozen=True)
class Answer:
    """Quadratic forms and what follows from them, for a batch of points."""

    q: Values
    slope: Values  # dq/dlambda
    test_error: Values
    trace: Values  # (n/N) E rho
    learned: (
        Values  # fitted function: its parts that multiply each block, at the nodes of zeta, (B, blocks, nz)
    )
    scatter: (
        Values  # variance of the fitted function in the sector of each degree and beyond them, (B, P + 1)
    )
    response: "Response"
    state: State


@dataclass(frozen=True)
class _Fit:
    """The fitted function and what is left of the labels, in the basis of each block."""

    x: Values  # amplitudes of the spikes on the neurons' side, (B, npsi)
    pull: Values  # E_u[psi psi^T y]^-1 x
    learned: Values  # (B, blocks K)
    left_over: Values  # r - R2 learned
    functions: Values  # the fitted function at the nodes, (B, blocks, nz)
    added: (
        Values  # C^T R_z C and what fluctuates, beside the neurons' own side of the spikes, (B, npsi, npsi)
    )
    resolved: Values  # 1 + G R2, (B, blocks K, blocks K)


def _fit(geometry: Geometry, tables: Tables, f: Forms) -> tuple[_Fit, Values]:
    """The fitted function, and r, the labels seen through the bulk [firststep, unified, eq. 16]."""
    h = tables.h
    sample_mass = geometry.weights * f.state.rho
    count = len(sample_mass)
    r = geometry.samples_per_neuron * ((tables.labels * sample_mass[:, None]) @ h.swapaxes(1, 2)).reshape(
        count, -1
    )
    # With D = (1 + G R)^-1 G: learned = C x + D (r - R C x), and spikes (own + C^T (R - R D R) C) x = C^T (1 - R D) r.
    c = tables.spikes
    through = np.concatenate([_by_block(f.form, c), r[:, :, None]], axis=2)  # R C, r
    system = (f.prior.reshape(count, -1, h.shape[1]) @ f.form).reshape(f.prior.shape)
    resolved = np.eye(c.shape[1]) + system
    drawn = np.linalg.solve(resolved, f.prior @ through)
    kept = through - _by_block(f.form, drawn)
    from_spikes = c.swapaxes(1, 2) @ kept
    added = f.loosened + from_spikes[..., :-1]
    x, pull = _amplitudes(f.moments, added, from_spikes[..., -1])
    learned = drawn[..., -1] + apply(c - drawn[..., :-1], x)
    left_over = kept[..., -1] - apply(kept[..., :-1], x)
    functions = learned.reshape(count, len(tables.blocks), -1) @ h
    return _Fit(x, pull, learned, left_over, functions, added, resolved), r


def _by_block(form: Values, vectors: Values) -> Values:
    """1 x Rm times vectors, (B, blocks K, …)."""
    count, size = form.shape[:2]
    return np.asarray(
        (form[:, None] @ vectors.reshape(count, -1, size, vectors.shape[2])).reshape(vectors.shape)
    )


def _gradient(geometry: Geometry, tables: Tables, f: Forms, fit: _Fit) -> Values:
    """Derivatives of q with respect to log rho and log(1 + delta), everything else eliminated (envelope theorem)."""
    h, psi = tables.h, tables.psi
    basis = h.shape[1]
    npn, npd, ratio = geometry.samples_per_neuron, geometry.samples_per_dim, geometry.neurons_per_dim
    error = tables.label_square + ((fit.functions - 2 * tables.labels) * fit.functions).sum(axis=1)
    u = _lowered(tables, tables.first_places, fit.left_over)
    alpha = tables.by_degree.swapaxes(0, 1)
    first = Spread(tables.special_vectors, tables.special_stretch)
    of_samples, of_neurons = f.special.gradient(first, alpha[0], h, u)
    by_sample = npn * error - ratio * npd * of_samples
    bent = (fit.x[:, None, None, :] @ tables.input_bend)[:, :, 0]
    by_sample = by_sample + 2 * npd * np.einsum("bl,blz->bz", tables.bend_weights, bent**2)
    by_neuron = ratio * of_neurons + apply(psi.swapaxes(1, 2), fit.pull) ** 2
    for bend in (tables.row_bend, tables.length_bend):
        by_neuron = by_neuron + 2 * ratio * apply(bend, fit.left_over[:, :basis]) ** 2
    u_alpha = u @ alpha[0].swapaxes(1, 2)
    by_neuron = by_neuron + ratio * np.einsum("buac,bau,bcu->bu", tables.special_extra, u_alpha, u_alpha)
    lean = apply(tables.lean, fit.left_over[:, :basis])
    tilted = 2 * np.einsum("bua,bau->bu", tables.leaning, u_alpha) + tables.leaning_square * lean
    by_neuron = by_neuron + ratio * lean * tilted
    for term, spread in zip(tables.priors, f.higher, strict=False):
        v = _lowered(tables, term.places, fit.left_over)
        if spread is not None and term.spread is not None:
            of_samples, of_neurons = spread.gradient(term.spread, alpha[term.degree - 1], h, v)
            by_sample, by_neuron = by_sample - ratio * npd * of_samples, by_neuron + ratio * of_neurons
        v_alpha = v @ alpha[term.degree - 1].swapaxes(1, 2)
        by_neuron = by_neuron + term.factor * np.einsum("buac,bau,bcu->bu", term.covariance, v_alpha, v_alpha)
    if tables.output_spikes is not None and tables.output_powers is not None:
        linear, mu = tables.output_spikes.shape[2], tables.bend_weights
        by_sample = by_sample - npn * (apply(tables.output_powers, fit.x) ** 2).sum(axis=1, keepdims=True)
        eta_l = tables.output_spikes @ fit.x[:, None, None, :, None]
        s_eta = (f.state.s[:, None, :linear] @ eta_l)[..., 0] @ h[:, None]
        x_eta = (f.state.x[:, None, :linear] @ eta_l)[..., 0] @ tables.carried[:, None, 0].swapaxes(2, 3)
        x_eta = np.sqrt(tables.stretch[:, None, :linear]) * x_eta
        by_sample = by_sample - npn * np.einsum("bl,bjlz->bz", mu, s_eta**2)
        by_neuron = by_neuron - np.einsum("bl,bjlu->bu", mu, x_eta**2) / ratio
    masses = geometry.weights * f.state.rho, geometry.u_weights * f.state.y
    return np.concatenate([masses[0] * by_sample, masses[1] * by_neuron], axis=1)


def errors_at(answer: Answer, ridge: Values) -> dict[str, Values]:
    """Errors, norm and degrees of freedom of the fit by name, each (B,) [firststep, unified, eqs. 16-18]."""
    train, mse = ridge * answer.q, -(ridge**2) * answer.slope
    return {
        "train_error": train,
        "test_error": answer.test_error,
        "train_mse": mse,
        "readout_norm_squared": (train - mse) / ridge,
        "degrees_of_freedom": 1 - ridge * answer.trace,
    }


def first_guess(geometry: Geometry, ridge: Values) -> Values:
    """rho as if nothing were learned, and a moderate delta, (B, nz + nu)."""
    size = 1 / (ridge * geometry.samples_per_neuron + geometry.problem.activation.second_moment)
    neurons = np.full((len(ridge), len(geometry.u)), 1.5)
    return np.concatenate([np.repeat(size[:, None], len(geometry.weights), axis=1), neurons], axis=1)


@dataclass(frozen=True)
class Response:
    """What q is made of, and how it answers to a shift of the equations."""

    geometry: Geometry
    tables: Tables
    forms: Forms
    fit: _Fit
    seen: Values  # r, the labels seen through the bulk, (B, blocks K)
    jacobian: Values

    def adjoint(self) -> Values:
        """Derivatives of q by shifts of the equations for log rho and log(1 + delta), (B, nz + nu)."""
        gradient = _gradient(self.geometry, self.tables, self.forms, self.fit)
        return _solved(self.jacobian.swapaxes(1, 2), gradient)

    def slopes(self) -> Values:
        r"""Derivatives of the bulk's part of 1/rho and of 1 + delta by the ridge, all as logarithms, (B, nz + nu).

        .. math:: J\,\frac{d(\log\rho, \log(1+\delta))}{d\log\lambda} = -\Big(\lambda\frac nN\rho, 0\Big), \qquad
            \frac{d\log(1/\rho - \lambda n/N)}{d\log\lambda}
            = -\frac{d\log\rho/d\log\lambda + \lambda\frac nN\rho}{1 - \lambda\frac nN\rho}

        J is the equations' derivative [firststep, unified, eq. 11]. Where the ridge is all of 1/rho, nothing but
        rounding is left: no slope is larger than one.
        """
        state = self.forms.state
        nz = state.rho.shape[1]
        seen = state.rho * state.bulk
        pull = np.zeros_like(self.jacobian[..., 0])
        pull[:, :nz] = seen - 1
        found = _solved(self.jacobian, pull)
        found[:, :nz] = -(found[:, :nz] + 1 - seen) / np.maximum(seen, LEAST_BULK)
        return np.asarray(np.clip(found, -STEEPEST, STEEPEST))


def response_at(
    geometry: Geometry, tables: Tables, values: Values, reaction: Values | None = None
) -> Response:
    """The fit and the equations' derivative; `reaction` (B, nz) is how far each sample reacts to its bulk, else 1."""
    f = forms_at(geometry, tables, values)
    fit, r = _fit(geometry, tables, f)
    jacobian = jacobian_at(geometry, tables, f.state)
    if reaction is not None:
        nz = reaction.shape[1]
        unit = np.eye(jacobian.shape[1])[:nz]
        jacobian[:, :nz] = unit + reaction[:, :, None] * (jacobian[:, :nz] - unit)
    return Response(geometry, tables, f, fit, r, jacobian)


def answer_at(geometry: Geometry, tables: Tables, values: Values) -> Answer:
    r"""q = y^T R y and its derivative along a ridge that depends on z [firststep, unified, eqs. 16-18].

    .. math:: q = \frac{n}{N} E_z[E[y^2|z]\rho] - r^\top K r, \qquad
        L_{te} = -\frac{d}{d\epsilon} q\Big(\lambda + \epsilon \frac{N^2}{n^2\rho(z)^2}\Big)

    K combines the prior of the random weights with the spikes. The derivative is taken by one adjoint solve.
    """
    response = response_at(geometry, tables, values)
    f, fit, both = response.forms, response.fit, response.adjoint()
    npn, rho = geometry.samples_per_neuron, f.state.rho
    sample_mass = geometry.weights * rho
    q = npn * (sample_mass * tables.label_square).sum(axis=1) - (response.seen * fit.learned).sum(axis=1)
    adjoint = both[:, : rho.shape[1]]
    return Answer(
        q=q,
        slope=-(adjoint * rho).sum(axis=1) * npn,
        test_error=(adjoint / rho).sum(axis=1) / npn,
        trace=npn * sample_mass.sum(axis=1),
        learned=fit.functions,
        scatter=_scatter(geometry, tables, f.state, adjoint, both[:, rho.shape[1] :]),
        response=response,
        state=f.state,
    )


def _scatter(
    geometry: Geometry, tables: Tables, state: State, by_sample: Values, by_neuron: Values
) -> Values:
    r"""Variance of the fitted function in each degree's typical directions, (B, P + 1) [firststep, degrees, eq. 10].

    .. math:: E f_p^2 = \frac Nd \frac{dq}{d\epsilon}\Big|_{P_p \to P_p + \epsilon}, \qquad
        \frac{dT}{d\epsilon} = -T^2, \quad \frac{d}{d\epsilon} P(1 + BP)^{-1} = S^\top S

    A penalty on the degree's part of the function acts as samples that see this part alone, with label zero. The last
    entry is what lies beyond degree P.
    """
    samples, neurons = by_sample * state.rho, by_neuron * state.y
    forms = _stacked(state.t, tables.h)
    each = [_stacked(state.s[:, levels], alpha.swapaxes(1, 2)) for alpha, levels in tables.sectors]
    carried = np.concatenate(each, axis=1) * np.sqrt(tables.stretch)[:, :, None]
    degrees, highest = np.array(tables.level_degrees), geometry.highest
    parts = np.zeros((len(samples), highest + 1), dtype=np.result_type(samples, neurons))
    parts[:, -1] = (apply(tables.spread, geometry.weights) * neurons).sum(axis=1)

    def variance(forms: Values, carried: Values) -> Values:
        levels = geometry.neurons_per_dim * apply(forms, samples) + apply(carried, neurons)
        levels = tables.level_weights * levels
        return np.stack([levels[:, degrees == p].sum(axis=1) for p in range(1, highest + 1)], axis=1)

    whole = variance((forms**2).sum(axis=2), (carried**2).sum(axis=2))
    if geometry.own is None:
        parts[:, :-1] += whole
        return parts
    # Where neurons are known along z, h_a(z) in the sector of degree p is of degree p + a.
    along = (tables.h * geometry.weights) @ hermite_polynomials(geometry.z, highest, normalised=True).T
    for a in range(highest):
        one = along[:, None, None, :, a]
        found = variance((one @ forms)[:, :, 0] ** 2, (one @ carried)[:, :, 0] ** 2)
        parts[:, a:-1] += found[:, : highest - a]
        whole = whole - found * (np.arange(highest) < highest - a)
    parts[:, -1] += whole.sum(axis=1)
    return parts


def repeated(block: Values, times: int) -> Values:
    """1 x P: the same block for each direction."""
    size = block.shape[-1]
    full = np.zeros((len(block), times, size, times, size), dtype=block.dtype)
    for a in range(times):
        full[:, a, :, a, :] = block
    return full.reshape(len(block), times * size, times * size)


def _amplitudes(moments: Values, matrix: Values, right: Values) -> tuple[Values, Values]:
    r"""x = (Psi^-1 + M)^-1 b and Psi^-1 x, of moments that may be singular to rounding [firststep, unified, eq. 16].

    .. math:: \Psi^{-1}x = (1 + M\Psi)^{-1}b, \quad \Psi = E_u[\psi\psi^\top y]

    Each part is scaled by its own size, and each row: spikes of different degrees differ by powers of n.
    """
    scale = 1 / np.sqrt(np.einsum("bii->bi", moments))
    equal = moments * scale[:, :, None] * scale[:, None, :]
    system = np.eye(matrix.shape[-1]) + (matrix / scale[:, :, None] / scale[:, None, :]) @ equal
    size = np.abs(system).max(axis=2)
    pull = np.linalg.solve(system / size[:, :, None], (right / scale / size)[..., None])
    return np.asarray((equal @ pull)[..., 0] / scale), np.asarray(pull[..., 0] * scale)


def residual_size(geometry: Geometry, error: Values) -> Array:
    """Largest of each point's relative residuals (B, nz + nu) that decides, (B,)."""
    return _largest(geometry, error)


def linear_sector(tables: Tables, state: State) -> tuple[Values, Values]:
    """Of the first degree the mean T, (B, K, K), and what it adds to delta, in units of d/N, (B, nu)."""
    alpha, levels = tables.sectors[0]
    weights = tables.level_weights[:, levels]
    mean = np.einsum("bl,blij->bij", weights, state.t[:, levels])
    forms = weights[..., None] * tables.stretch[:, levels] * _forms(state.x[:, levels], alpha, None)
    return mean, forms.sum(axis=1)


def carried_along(geometry: Geometry, tables: Tables, forms: Forms, covariance: Array) -> Values:
    """E_u[alpha alpha^T c_ab/(1 + delta)] of a covariance (B, nu, p, p) of special components, (B, p K, p K)."""
    return _carried(tables, covariance, 1, geometry.u_weights * forms.state.y)


def effective_of(geometry: Geometry, tables: Tables, forms: Forms) -> Values:
    """B_eff between the special directions of the first degree, (B, p K, p K) [firststep, unified, eq. 12]."""
    return forms.special.effective + carried_along(geometry, tables, forms, tables.special_extra)


def with_prior(geometry: Geometry, tables: Tables, forms: Forms, effective: Values) -> Forms:
    """The same with another B_eff between the special directions of the first degree, (B, p K, p K)."""
    before = effective_of(geometry, tables, forms)
    change = geometry.neurons_per_dim * _lifted(tables, tables.first_places, effective - before)
    return replace(forms, prior=forms.prior + change)


def form_value(geometry: Geometry, tables: Tables, forms: Forms) -> Values:
    """q = y^T R y, (B,) [firststep, unified, eq. 16]."""
    fit, seen = _fit(geometry, tables, forms)
    sample_mass = geometry.weights * forms.state.rho
    known = (sample_mass * tables.label_square).sum(axis=1)
    return np.asarray(geometry.samples_per_neuron * known - (seen * fit.learned).sum(axis=1))
