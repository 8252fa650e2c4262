r"""The self-consistent equations of the unified theory and the forms that follow from them [firststep, unified].

Two unknown functions, rho(z) for the samples and delta(u) for the neurons, solve a pair of equations; quadratic forms
of the resolvent, and with them errors and spectra, follow by small matrices. Ridges may be complex.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firststep import fixedpoint
from firststep.gaussian import Array
from firststep.theory.coefficients import Geometry, Tables, Values, apply

# Nodes of z, in units of the products of two functions of z, from which on steps are computed from those.
LONG = 1.5


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


def _linear_sector(
    tables: Tables, stretch: Array, u_weights: Array, y: Values, p: Values
) -> tuple[Values, Values]:
    """S(m) = (1 + Bm(m) P)^-1 and T(m) = S Bm, Bm(m) = E_u[c(U, m) alpha alpha^T y] [firststep, unified, eq. 8]."""
    basis = p.shape[-1]
    mass = (stretch * (u_weights * y)[:, None, :]) @ tables.outer
    bm = mass.reshape(*mass.shape[:2], basis, basis)
    s = np.linalg.inv(np.eye(basis) + bm @ p[:, None])
    return s, s @ bm


def state_at(geometry: Geometry, tables: Tables, rho: Values, y: Values) -> State:
    """One evaluation of both self-consistent equations [firststep, unified, eqs. 9-10]."""
    h, weights, uw, mu = tables.h, geometry.weights, geometry.u_weights, geometry.law.weights
    basis = h.shape[1]
    p = geometry.samples_per_dim * (h * (weights * rho)[:, None, :]) @ h.swapaxes(1, 2)
    s, t = _linear_sector(tables, tables.stretch, uw, y, p)
    x = p[:, None] @ s
    mean_t = np.einsum("l,blij->bij", mu, t)
    bulk = ((uw * y)[:, None, :] @ tables.spread)[:, 0] + ((mean_t @ h) * h).sum(axis=1)
    forms = x.reshape(*x.shape[:2], basis * basis) @ tables.outer.swapaxes(1, 2)
    delta = geometry.samples_per_neuron * (tables.spread @ (weights * rho)[..., None])[..., 0]
    delta = delta + (mu[:, None] * tables.stretch * forms).sum(axis=1) / geometry.neurons_per_dim
    return State(rho, y, p, s, t, x, bulk, delta)


def jacobian_at(geometry: Geometry, tables: Tables, state: State) -> Values:
    """Derivative of the relative residuals with respect to (log rho, log(1 + delta)) [firststep, unified, eq. 11]."""
    h, weights, uw, mu = tables.h[:, None], geometry.weights, geometry.u_weights, geometry.law.weights
    nz, nu = len(weights), len(uw)
    transposed = h.swapaxes(2, 3)
    alpha = np.sqrt(tables.stretch)[..., None] * tables.alpha[:, None]
    between_samples = _weighted_square(mu, transposed @ (state.t @ h))
    mixed = transposed @ (state.s @ alpha.swapaxes(2, 3))  # h_i^T S alpha_j
    samples_neurons = tables.spread.swapaxes(1, 2) + _weighted_square(mu, mixed)
    between_neurons = _weighted_square(mu, alpha @ (state.x @ alpha.swapaxes(2, 3)))
    sample_mass, neuron_mass = weights * state.rho, uw * state.y
    jacobian = np.empty((len(state.rho), nz + nu, nz + nu), dtype=np.result_type(state.rho, state.y))
    jacobian[:, :nz, :nz] = (
        -geometry.samples_per_dim * state.rho[:, :, None] * between_samples * sample_mass[:, None, :]
    )
    jacobian[:, :nz, nz:] = -state.rho[:, :, None] * samples_neurons * neuron_mass[:, None, :]
    jacobian[:, nz:, :nz] = (
        -geometry.samples_per_neuron
        * state.y[:, :, None]
        * samples_neurons.swapaxes(1, 2)
        * sample_mass[:, None, :]
    )
    jacobian[:, nz:, nz:] = (
        -state.y[:, :, None] * between_neurons * neuron_mass[:, None, :] / geometry.neurons_per_dim
    )
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


def _newton_steps(
    geometry: Geometry, tables: Tables, state: State, error: Values, reaction: Values
) -> Values:
    """Relative steps that solve the equations linearised at a state with these relative residuals."""
    nz, basis = len(geometry.weights), tables.h.shape[1]
    if geometry.cells or nz > LONG * basis * (basis + 1) / 2:
        return _reduced_steps(geometry, tables, state, error, reaction)
    jacobian = jacobian_at(geometry, tables, state)
    diagonal = np.arange(error.shape[1])
    jacobian[:, diagonal, diagonal] += np.where(diagonal < nz, error, -error)
    return np.asarray(-np.linalg.solve(jacobian, error[..., None])[..., 0])


def _reduced_steps(
    geometry: Geometry, tables: Tables, state: State, error: Values, reacting: Values
) -> Values:
    """The same where there are many more nodes of z than products of two functions of z.

    Samples act on each other through P alone, so that the unknowns are its change and those of the neurons.
    """
    mu, uw, nz = geometry.law.weights, geometry.u_weights, len(geometry.weights)
    count, basis = tables.h.shape[:2]
    first, second = np.triu_indices(basis)
    doubled = np.where(first == second, 1.0, 2.0)
    products = tables.h[:, first] * tables.h[:, second]  # h_a h_b, a <= b, (B, R, nz)
    # h_i^T T h_j squared, as a form between the products at i and at j.
    pairs = state.t[:, :, first[:, None], first] * state.t[:, :, second[:, None], second]
    pairs = pairs + state.t[:, :, first[:, None], second] * state.t[:, :, second[:, None], first]
    kernel = np.einsum("l,blpq->bpq", mu, pairs) * (doubled[:, None] * doubled / 2)
    alpha = np.sqrt(tables.stretch)[..., None] * tables.alpha[:, None]
    mixed = tables.h[:, None].swapaxes(2, 3) @ (state.s @ alpha.swapaxes(2, 3))
    across = (tables.spread.swapaxes(1, 2) + _weighted_square(mu, mixed)) * (uw * state.y)[:, None, :]
    between_neurons = _weighted_square(mu, alpha @ (state.x @ alpha.swapaxes(2, 3)))
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
        state.y[:, :, None] * between_neurons * (uw * state.y)[:, None, :] / geometry.neurons_per_dim
    )
    diagonal = np.arange(rank, rank + nu)
    matrix[:, diagonal, diagonal] += 1 - error[:, nz:]
    right = np.concatenate([apply(products, mass * free), apply(back, mass * free) - error[:, nz:]], axis=1)
    found = np.linalg.solve(matrix, right[..., None])[..., 0]
    change = apply(products.swapaxes(1, 2), apply(forms, found[:, :rank])) + apply(across, found[:, rank:])
    return np.concatenate([free + reacting * change, found[:, rank:]], axis=1)


def _weighted_square(mu: Array, forms: Values) -> Values:
    """sum_l mu_l forms_l^2 over axis 1, without a temporary of its own for the product."""
    return np.asarray(np.einsum("l,blij,blij->bij", mu, forms, forms))


def solve_points(
    geometry: Geometry, tables: Tables, ridge: Values, start: Values, tolerance: float, plain_rounds: int
) -> fixedpoint.FixedPoint:
    """rho(z) and 1 + delta(u) for a batch of points, as one vector each [firststep, unified, eqs. 9-10]."""
    nz = len(geometry.weights)
    floor = (ridge * geometry.samples_per_neuron)[:, None]

    def newton(values: Values, index: NDArray[np.intp]) -> tuple[Values, Values]:
        here = tables if len(index) == len(ridge) else tables.take(index)
        rho, y = values[:, :nz], 1 / values[:, nz:]
        state = state_at(geometry, here, rho, y)
        error, reaction = _errors(geometry, state, floor[index])
        return _newton_steps(geometry, here, state, error, reaction), _largest(geometry, error)

    def plain(values: Values, index: NDArray[np.intp]) -> Values:
        state = state_at(geometry, tables.take(index), values[:, :nz], 1 / values[:, nz:])
        return np.concatenate([_resolved(geometry, floor[index] + state.bulk)[0], 1 + state.delta], axis=1)

    return fixedpoint.solve(
        newton,
        plain,
        start,
        tolerance=tolerance,
        plain_rounds=plain_rounds,
        what="the unified equations",
        remedy="raise ridge, or check that the ratios are of order one",
    )


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
class Forms:
    """Resolvent forms on functions h_p(z), h_p(z) g1 (, h_p(z) g2), before and after the finite-rank terms."""

    state: State
    special_s: Values
    special_t: Values
    z_matrix: Values  # (1 - Tau (1 x P))^-1
    effective: Values  # Beff
    shift: Values  # multiplication by the function's own variable
    prior: Values  # G, covariance of what the random weights add
    forms: Values  # R2 = 1 x Rm
    qi: Values  # E_u[psi psi^T y]^-1
    own: Values  # the neurons' side of the spikes, Qi with what fluctuates


def forms_at(geometry: Geometry, tables: Tables, values: Values) -> Forms:
    r"""Prior of the random weights and forms of the bulk [firststep, unified, eqs. 12-14].

    .. math:: \mathcal T_{ab} = \int T(m)\,\mu_{ab}(dm), \quad B_{eff} = (\mathcal T^{-1} - 1\otimes P)^{-1},
        \quad G = \tfrac Nd\, \mathcal J B_{eff} \mathcal J^\top
    """
    h, psi, weights, uw, law = tables.h, tables.psi, geometry.weights, geometry.u_weights, geometry.law
    nz, basis, directions = len(weights), h.shape[1], geometry.directions
    ratio = geometry.neurons_per_dim
    rho, y = values[:, :nz], 1 / values[:, nz:]
    count = len(rho)
    state = state_at(geometry, tables, rho, y)
    sample_mass, neuron_mass = weights * rho, uw * y
    special_s, special_t = _linear_sector(tables, tables.special_stretch, uw, y, state.p)
    vectors = tables.special_vectors
    outer = vectors[..., :, None] * vectors[..., None, :]
    tau = np.einsum("blac,blij->baicj", outer, special_t)
    tau = tau.reshape(count, directions * basis, directions * basis)
    identity = np.eye(directions * basis)
    p_all = _repeat(state.p, directions)
    z_matrix = np.linalg.inv(identity - tau @ p_all)
    effective = z_matrix @ tau
    # A random weight along b multiplies z itself; one along e1 multiplies an independent Gaussian.
    shift = np.zeros((count, *identity.shape)) + identity
    shift[:, :basis, :basis] = tables.shift
    # The remainder of the gradient is larger along the special directions than along others.
    louder = (tables.noise * neuron_mass)[:, None, :] @ tables.outer
    extra = tables.noise_excess[:, :, None, :, None] * louder.reshape(count, 1, basis, 1, basis)
    prior = ratio * (shift @ (effective + extra.reshape(effective.shape)) @ shift)
    # Row norms fluctuate: a random multiple of A3(u, z).
    row_bend = tables.row_bend
    prior[:, :basis, :basis] += 2 * ratio * row_bend.swapaxes(1, 2) @ (neuron_mass[..., None] * row_bend)
    qi = np.linalg.inv((psi * neuron_mass[:, None, :]) @ psi.swapaxes(1, 2))
    # The norm of x fluctuates too: noise on the neurons.
    bend = tables.input_bend
    noise = (bend * sample_mass[:, None, None, :]) @ bend.swapaxes(2, 3)
    own = qi + 2 * geometry.samples_per_dim * np.einsum("l,blpq->bpq", law.weights, noise)
    if tables.output_spikes is not None and tables.output_powers is not None:
        # Given W0^T a, the neurons have no random component along a: neither in the linear nor in the higher degrees.
        along = tables.output_spikes.swapaxes(2, 3) @ state.x @ tables.output_spikes
        own -= np.einsum("l,blpq->bpq", law.weights, along) / ratio
        higher = tables.output_powers.swapaxes(1, 2) @ tables.output_powers
        own -= (geometry.samples_per_neuron * sample_mass.sum(axis=1))[:, None, None] * higher
    return Forms(state, special_s, special_t, z_matrix, effective, shift, prior, p_all / ratio, qi, own)


@dataclass(frozen=True)
class Answer:
    """Quadratic forms and what follows from them, for a batch of points."""

    q: Values
    slope: Values  # dq/dlambda
    test_error: Values
    trace: Values  # (n/N) E rho
    learned: Values  # fitted function: its parts that multiply 1, g1 (, g2), at the nodes of z, (B, p, nz)
    state: State


def answer_at(geometry: Geometry, tables: Tables, values: Values) -> Answer:
    r"""q = y^T R y and its derivative along a ridge that depends on z [firststep, unified, eqs. 16-18].

    .. math:: q = \frac nN E_z[E[y^2|z]\rho] - r^\top K r, \qquad
        L_{te} = -\frac{d}{d\epsilon} q\Big(\lambda + \epsilon \frac{N^2}{n^2\rho(z)^2}\Big)

    K combines the prior of the random weights with the spikes. The derivative is taken by one adjoint solve.
    """
    h, psi, weights, uw, law = tables.h, tables.psi, geometry.weights, geometry.u_weights, geometry.law
    basis, directions = h.shape[1], geometry.directions
    npn, ratio = geometry.samples_per_neuron, geometry.neurons_per_dim
    f = forms_at(geometry, tables, values)
    rho, y, forms = f.state.rho, f.state.y, f.forms
    count = len(rho)
    sample_mass, neuron_mass = weights * rho, uw * y
    right = np.zeros((count, directions, basis), dtype=values.dtype)
    right[:, 0] = npn * apply(h, sample_mass * tables.label_mean)
    right[:, 1] = npn * apply(h, sample_mass * tables.label_slope)
    r = right.reshape(count, -1)
    identity = np.eye(directions * basis)
    d = np.linalg.solve(identity + f.prior @ forms, f.prior)
    kept = identity - forms @ d
    # Spikes: W = own + C^T Rz C, x = W^-1 C^T rz.
    c = tables.spikes
    x = _solve_scaled(f.own + c.swapaxes(1, 2) @ (kept @ forms) @ c, apply(c.swapaxes(1, 2), apply(kept, r)))
    amplitude = apply(c, x)
    learned = apply(d, r - apply(forms, amplitude)) + amplitude
    left_over = r - apply(forms, learned)
    functions = learned.reshape(count, directions, basis) @ h
    q = npn * (sample_mass * tables.label_square).sum(axis=1) - (r * learned).sum(axis=1)
    # Derivatives of q with respect to log rho and log(1 + delta), everything else eliminated (envelope theorem).
    error = (
        tables.label_square
        - 2 * (tables.label_mean * functions[:, 0] + tables.label_slope * functions[:, 1])
        + (functions * functions).sum(axis=1)
    )
    u = apply(f.shift, left_over)
    nu_all = apply(f.z_matrix.swapaxes(1, 2), u).reshape(count, directions, basis)
    beta_all = apply(f.effective, u).reshape(count, directions, basis)
    nu_l = tables.special_vectors @ nu_all
    alpha_t = tables.alpha.swapaxes(1, 2)
    t_nu = (f.special_t @ nu_l[..., None])[..., 0] @ h
    s_nu = (f.special_s.swapaxes(2, 3) @ nu_l[..., None])[..., 0] @ alpha_t
    by_sample = npn * error - ratio * geometry.samples_per_dim * (
        ((beta_all @ h) ** 2).sum(axis=1) - (t_nu**2).sum(axis=1)
    )
    bent = (x[:, None, None, :] @ tables.input_bend)[:, :, 0]
    by_sample = by_sample + 2 * geometry.samples_per_dim * np.einsum("l,blz->bz", law.weights, bent**2)
    by_neuron = (
        ratio * (tables.special_stretch * s_nu**2).sum(axis=1) + apply(psi.swapaxes(1, 2) @ f.qi, x) ** 2
    )
    by_neuron = by_neuron + 2 * ratio * apply(tables.row_bend, left_over[:, :basis]) ** 2
    u_alpha = u.reshape(count, directions, basis) @ alpha_t
    by_neuron = by_neuron + ratio * tables.noise * ((tables.noise_excess @ u_alpha) * u_alpha).sum(axis=1)
    if tables.output_spikes is not None and tables.output_powers is not None:
        by_sample = by_sample - npn * (apply(tables.output_powers, x) ** 2).sum(axis=1, keepdims=True)
        eta_l = (tables.output_spikes @ x[:, None, :, None])[..., 0]
        s_eta = (f.state.s @ eta_l[..., None])[..., 0] @ h
        x_eta = (f.state.x @ eta_l[..., None])[..., 0] @ alpha_t
        by_sample = by_sample - npn * np.einsum("l,blz->bz", law.weights, s_eta**2)
        by_neuron = by_neuron - np.einsum("l,blu,blu->bu", law.weights, tables.stretch, x_eta**2) / ratio
    gradient = np.concatenate([sample_mass * by_sample, neuron_mass * by_neuron], axis=1)
    jacobian = jacobian_at(geometry, tables, f.state)
    adjoint = np.linalg.solve(jacobian.swapaxes(1, 2), gradient[..., None])[:, : len(weights), 0]
    return Answer(
        q=q,
        slope=-(adjoint * rho).sum(axis=1) * npn,
        test_error=(adjoint / rho).sum(axis=1) / npn,
        trace=npn * sample_mass.sum(axis=1),
        learned=functions,
        state=f.state,
    )


def _repeat(block: Values, times: int) -> Values:
    """1 x P: the same block for each direction."""
    size = block.shape[-1]
    full = np.zeros((len(block), times, size, times, size), dtype=block.dtype)
    for a in range(times):
        full[:, a, :, a, :] = block
    return full.reshape(len(block), times * size, times * size)


def _solve_scaled(matrix: Values, right: Values) -> Values:
    """Solve after equalising the diagonal: spikes of different degrees differ by powers of n."""
    scale = 1 / np.sqrt(np.einsum("bii->bi", matrix))
    equal = matrix * scale[:, :, None] * scale[:, None, :]
    return np.asarray(scale * np.linalg.solve(equal, (scale * right)[..., None])[..., 0])
