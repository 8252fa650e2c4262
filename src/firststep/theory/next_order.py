r"""What the next order in 1/n changes in the errors of the unified theory [firststep, next order].

The self-consistent equations are the leading order of :math:`E\log\det(FF^\top + \lambda n)`. Kept of the next order
are the fourth cumulant of what a feature has beyond what others foretell, the spikes and what they take of samples and
neurons, the fluctuations of the unknowns, and the output that a network with a vanishing one has all the same. They
are computed on a coarse rung at some points of a grid, and carried to the others.
"""

from dataclasses import dataclass, replace

import numpy as np

from firststep.gaussian import Array, gauss_hermite, hermite_polynomials
from firststep.numerics import fixedpoint
from firststep.results import Outcome
from firststep.setting import Problem, Sizes
from firststep.theory import unified
from firststep.theory.bars import BAR_ORDER, wide_bar_note
from firststep.theory.coefficients import (
    Geometry,
    Tables,
    Values,
    apply,
    degrees_of,
    geometry_of,
    interpolation,
    is_polynomial,
    law_of,
    row_stretch,
    spike_strength,
    tables_from,
)
from firststep.theory.equations import State, jacobian_at, response_at, state_at
from firststep.theory.joins import SMALLEST_STEP, TRAIN, start_share
from firststep.theory.ladder import (
    CHANGED,
    CHUNK,
    COARSE_SPIKE,
    LADDER,
    RUNGS,
    Way,
    errors_of,
    leading,
    solve_level,
)
from firststep.theory.step_law import StepLaw

ERRORS = ("train_error", "test_error")
# Details of the unified theory that are told for each step size.
PER_STEP = ("relative_error", "resolution", "learned", "learned_given_z")
# Nodes of the Gaussian g in the fourth moments.
MOMENT_NODES = 20
# Sizes beyond which the next order is below what the ladder of resolutions leaves.
LARGEST = 1e8
# Largest distances of points in log(1 + eta) and log(lambda) between which changes are interpolated, and by how many.
GAPS, NODES = (0.5, 2.0), 4
# Degrees with sectors of their own: at d = 40 the third moves no change by more than 1e-4 of the error.
DEGREES = 2
# Share of rho, and length of a step along the adjoint, over which derivatives are taken; no node moves further than the
# last in its logarithm, and nodes below this weight do not move.
TESTED, MOVED, FARTHEST, LEAST_WEIGHT = 1e-3, 1e-3, 0.05, 1e-12


@dataclass(frozen=True)
class _Setting:
    """A batch of points at their solution.

    Attributes
    ----------
    moments : ndarray (5, B, nu, nz)
        E[r^(4-k) g^k | z, U] of what a feature has beyond its linear part, higher degrees as far as they are not
        foretold.
    variance : ndarray (B, nu, nz)
        E[r^2].
    output : (ndarray (B,), ndarray (B, L, K, npsi)) or None
        Share of their component along W0^T a that rows lose, and their linear functions along it.
    """

    geometry: Geometry
    tables: Tables
    moments: Array
    variance: Array
    output: tuple[Array, Array] | None

    def tiled(self, times: int) -> "_Setting":
        """The same points so many times, one list after the other: one call is cheaper than several."""
        index = np.tile(np.arange(len(self.variance)), times)
        output = None if self.output is None else (self.output[0][index], self.output[1][index])
        tables = self.tables.take(index)
        return _Setting(self.geometry, tables, self.moments[:, index], self.variance[index], output)


def changes(problem: Problem, sizes: Sizes, steps: Array, ridges: Array, way: Way) -> Array:
    r"""Relative changes of the train and the test error, (2, S, R), on a grid of step sizes and ridges.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.3)
    >>> for n in (200, 800):
    ...     found = changes(problem, Sizes(n, n // 2, n), np.array([4.0]), np.array([0.1]), Way("structured", 1))
    ...     print(found.ravel().round(4))
    [-0.0039  0.0043]
    [-0.0013  0.0007]
    """
    found = np.zeros((2, len(steps), len(ridges)))
    if min(sizes.n_samples, sizes.width, sizes.n_step_samples) > LARGEST or problem.label_variance == 0:
        return found
    for mask, here in ((steps == 0, problem.without_step()), (steps > 0, problem)):
        if mask.any():
            found[:, mask] = _on_grid(here, sizes, steps[mask], ridges, way)
    return found


def solve(
    problem: Problem, sizes: Sizes, step_sizes: Array, ridges: Array, *, tolerance: float | None = None
) -> Outcome:
    r"""Errors of the unified theory with four terms of the next order in 1/n [firststep, next order].

    Parameters
    ----------
    problem, sizes, step_sizes, ridges, tolerance
        As of the unified theory (:func:`firststep.theory.unified.solve`), for isotropic inputs and one direction.

    Returns
    -------
    Outcome
        That of the unified theory. Both errors have what the next order changes, and a share of it is in their bars;
        `train_mse` and `readout_norm_squared` keep their shares of the train error, `residual_spread` takes what the
        test error gains, all its degrees alike.

    Examples
    --------
    >>> problem = Problem("x*silu(1.2*x - 0.27)", "elu(2.83*x - 0.93)", noise_std=1.125, readout="constant")
    >>> found = solve(problem, Sizes(189, 344, 199), np.zeros(1), np.array([0.0478]))
    >>> print(f"{found.test_error[0, 0]:.2f}, {found.details['next_order'][1, 0, 0]:+.3f} of it by the next order")
    10.84, +0.022 of it by the next order
    """
    share = start_share(problem, sizes, step_sizes)
    ahead = [0.0, SMALLEST_STEP] if share.any() else [0.0]
    found = unified.solve(
        problem, sizes, np.concatenate([ahead[:1], step_sizes]), ridges, tolerance=tolerance
    )
    steps = np.concatenate([ahead, step_sizes])
    order = changes(problem, sizes, steps, ridges, Way("structured", found.details["degrees"]))
    # Small steps with an output of order one join no step in this order, too.
    still, start, moved = np.split(order, [1, len(ahead)], axis=1)
    moved = moved + share[:, None] * (still - start) if share.any() else moved
    order = applied(problem, np.concatenate([still, moved], axis=1), found.train_error, found.test_error)
    values = _changed(dict(found.values), order)
    bars = np.array([found[f"{name}_bar"] / found[name] for name in ERRORS])
    notes = set(found.notes) - set(wide_bar_note(sizes, bars[1, 1:]))
    bars = np.hypot(bars, BAR_ORDER * order)
    for name, bar in zip(ERRORS, bars, strict=True):
        values[f"{name}_bar"] = bar * values[name]
    values = {name: value[1:] if value.ndim == 2 else value for name, value in values.items()}
    details = {name: value[1:] if name in PER_STEP else value for name, value in found.details.items()}
    return replace(
        found,
        step_sizes=np.asarray(step_sizes, dtype=float),
        source="next_order",
        values=values,
        notes=(*(note for note in found.notes if note in notes), *wide_bar_note(sizes, bars[1, 1:])),
        details=details | {"next_order": order[:, 1:]},
    )


def _changed(values: dict[str, Array], order: Array) -> dict[str, Array]:
    """Numbers of a grid whose first row is no step, (S + 1, R), with these relative changes of both errors."""
    before = values["test_error"]
    for name in TRAIN:
        values[name] = values[name] * (1 + order[0])
    values["test_error"] = before * (1 + order[1])
    spread = values["residual_spread"]
    gained = values["test_error"] - before
    grown = np.maximum(1 + np.divide(gained, spread, out=np.zeros_like(spread), where=spread > 0), 0.0)
    for name in values:
        if name.startswith("residual_spread_"):
            values[name] = values[name] * grown
    values["residual_spread"] = spread + gained
    for name in ERRORS:
        values[name.replace("error", "gain")] = values[name][:1] - values[name]
    return values


def applied(problem: Problem, order: Array, train: Array, test: Array) -> Array:
    r"""Relative changes of these errors, as they are applied: of the train error, and of the test error, (2, …).

    .. math:: \frac{\delta}{1 + |\delta|}

    of the train error and of what the test error has beyond the labels' own noise, which no fit can change: where the
    next order is no longer small, no error gets negative.

    Examples
    --------
    >>> problem, errors = Problem("tanh", "h1", noise_std=1.0), np.array([1.1, 1.1])
    >>> print(np.round(applied(problem, np.array([[0.01, -2.0], [0.01, -2.0]]), errors, errors), 4))
    [[ 0.0099 -0.6667]
     [ 0.009  -0.087 ]]
    """
    change = order[0] / (1 + np.abs(order[0]))
    train = np.minimum(change, np.maximum(problem.label_variance / train - 1, 0.0))
    beyond = np.maximum(test - problem.noise_variance, np.finfo(float).tiny)
    relative = order[1] * test / beyond
    return np.stack([train, relative / (1 + np.abs(relative)) * beyond / test])


def _on_grid(problem: Problem, sizes: Sizes, steps: Array, ridges: Array, way: Way) -> Array:
    """The same for steps that are all none or all some, interpolated between leading points."""
    kept, carried = [], []
    for axis, gap in ((np.log1p(steps), GAPS[0]), (np.log(ridges), GAPS[1])):
        known, first = np.unique(axis, return_index=True)
        lead = leading(known, gap)
        kept.append(first[lead])
        carried.append(interpolation(known[lead], axis, NODES))
    pairs = np.meshgrid(steps[kept[0]], ridges[kept[1]], indexing="ij")
    values = _at_points(problem, sizes, pairs[0].ravel(), pairs[1].ravel(), way)
    values = values.reshape(2, len(kept[0]), len(kept[1]))
    return np.asarray(carried[0].T @ values @ carried[1])


def _at_points(problem: Problem, sizes: Sizes, steps: Array, ridges: Array, way: Way) -> Array:
    """The same for a list of points, (2, B)."""
    found = np.zeros((2, len(steps)))
    spike, stretch = (size(problem, sizes, steps, way.rest) for size in (spike_strength, row_stretch))
    polynomial = is_polynomial(spike, sizes, stretch)
    rung = int(RUNGS[np.searchsorted(CHANGED, np.maximum(spike, stretch))].max())
    for branch in (polynomial, ~polynomial):
        group = np.flatnonzero(branch)
        if not len(group):
            continue
        degrees = degrees_of(float(spike[group].max()), sizes, COARSE_SPIKE) if branch is polynomial else 0
        geometry = geometry_of(problem, sizes, LADDER[rung], way.rest, degrees, min(way.highest, DEGREES))
        for low in range(0, len(group), CHUNK):
            part = group[low : low + CHUNK]
            try:
                found[:, part] = _changes(geometry, steps[part], ridges[part], way.rest)
            except np.linalg.LinAlgError:
                found[:, part] = np.nan
    missing = np.flatnonzero(~np.isfinite(found).all(axis=0))
    if len(missing):
        at = missing[0]
        raise fixedpoint.ConvergenceError(
            f"no next order in 1/n was found at step_size={steps[at]:.4g}, ridge={ridges[at]:.3g}: raise ridge, or "
            "choose theory='unified'",
            found,
            np.abs(found),
        )
    return found


def _changes(geometry: Geometry, steps: Array, ridges: Array, rest: str) -> Array:
    r"""Relative changes of both errors for points of one geometry, (2, B) [firststep, next order, eq. 5].

    .. math:: \delta L_{tr} = \lambda\,\delta q, \qquad \delta L_{te} = \lambda\,\frac{d}{d\epsilon}\,\delta q

    epsilon is the weight of a test sample without end in the fit. It adds to what is seen of rho, and to nothing else.
    """
    level = solve_level(geometry, rest, steps, ridges, None)
    law = law_of(geometry, steps, rest)
    tables = tables_from(geometry, law)
    values, nz = level.values, len(geometry.weights)
    rho = values[:, :nz]
    state = state_at(geometry, tables, rho, 1 / values[:, nz:])
    here = _Setting(
        geometry, tables, *_moments(geometry, tables, law, state), _output(geometry, tables, law, steps)
    )
    seen = TESTED / (geometry.weights / rho).sum(axis=1)
    pull = np.zeros_like(values)
    pull[:, :nz] = np.minimum(seen[:, None] / rho, FARTHEST)
    moved = np.linalg.solve(jacobian_at(geometry, tables, state), pull[..., None])[..., 0]
    signs = np.array([-1.0, 0.0, 1.0])[:, None]
    shifted = (values * np.exp(signs[..., None] * moved)).reshape(-1, values.shape[1])
    below, at, above = _form_change(here.tiled(3), shifted, (signs * seen).ravel()).reshape(3, -1)
    slope = (above - below) / (2 * seen) / geometry.samples_per_neuron
    change = np.stack([ridges * at, slope], axis=1) / errors_of(level.numbers)
    return np.asarray(change.T)


def _form_change(here: _Setting, values: Values, seen: Array) -> Array:
    r"""Change of q = y^T R y, (B,), with a test sample of this mass beside the fit's [firststep, next order, eq. 4].

    .. math:: \delta q = -\frac{\partial\Phi}{\partial v}\cdot t, \qquad
        t = \Big(\frac{1}{n w}, \frac{1}{N w}\Big)\,J^{-\top}\,\nabla q

    v are log rho and log(1 + delta), w the weights of their nodes: the labels shift the equations by t.
    """
    geometry, tables = here.geometry, here.tables
    nz, sizes = len(geometry.weights), geometry.sizes
    reaction = (1 - seen[:, None] / values[:, :nz]) ** 2
    response = response_at(geometry, tables, values, reaction)
    mass = np.concatenate([geometry.weights, geometry.u_weights])
    count = np.repeat([float(sizes.n_samples), float(sizes.width)], [nz, len(mass) - nz])
    along = response.adjoint() / (count * np.maximum(mass, LEAST_WEIGHT))
    along[:, :nz] *= reaction
    along[:, mass < LEAST_WEIGHT] = 0.0
    length = MOVED / np.sqrt((mass * along**2).sum(axis=1))
    step = np.clip(length[:, None] * along, -FARTHEST, FARTHEST)
    both = np.concatenate([values * np.exp(step), values * np.exp(-step)])
    up, down = _potential(here.tiled(2), both, np.tile(seen, 2)).reshape(2, -1)
    change = -(up - down) / (2 * length)
    if here.output is not None:
        share, functions = here.output
        levels = functions.shape[1]
        eta = apply(functions, response.fit.x[:, None])
        square = (apply(response.forms.state.x[:, :levels], eta) * eta).sum(axis=2)
        change = change - share * (tables.bend_weights * square).sum(axis=1) / geometry.neurons_per_dim
    return np.asarray(change)


def _potential(here: _Setting, values: Values, seen: Array) -> Array:
    r"""Phi, what is of order one in :math:`E\log\det(FF^\top + \lambda n)`, (B,) [firststep, next order, eq. 1].

    .. math:: \Phi = -\frac{n}{2N}\,E_{z,u}\Big[\frac{\kappa_4\,\rho^2}{(1+\delta)^2}\Big]
        + \log\det(Q + C^\top R_z C) - \log\det Q_0 + \tfrac{1}{2}\log\det J
    """
    geometry, tables = here.geometry, here.tables
    nz = len(geometry.weights)
    response = response_at(geometry, tables, values, (1 - seen[:, None] / values[:, :nz]) ** 2)
    fitted, y = values[:, :nz] - seen[:, None], 1 / values[:, nz:]
    cumulants = _cumulants(here, _foretold(tables, response.forms.state, 0))
    neurons = apply(cumulants.swapaxes(1, 2), geometry.u_weights * y**2)
    found = -0.5 * geometry.samples_per_neuron * (geometry.weights * fitted**2 * neurons).sum(axis=1)
    spikes = response.fit.added @ response.forms.moments
    found = found + np.linalg.slogdet(np.eye(spikes.shape[1]) + spikes)[1]
    return np.asarray(found + 0.5 * np.linalg.slogdet(response.jacobian)[1])


def _foretold(tables: Tables, state: State, degree: int) -> Values:
    r"""What is left of A_p once other neurons and samples have foretold it, (B, nu, nz) [firststep, next order, eq. 3].

    .. math:: \tilde A_p = \int c(U, m)\,h(z)^\top S_p(m)\,\alpha_p\,\mathrm dm

    `degree` is p - 1.
    """
    alpha, levels = tables.sectors[degree]
    factors = tables.level_weights[:, levels, None] * tables.stretch[:, levels]
    across = (state.s[:, levels] @ alpha.swapaxes(1, 2)[:, None]) * factors[:, :, None]
    return np.asarray(across.sum(axis=1).swapaxes(1, 2) @ tables.h)


def _cumulants(here: _Setting, slope: Values) -> Values:
    r"""Fourth cumulant of what is left of a feature, with this slope in g, (B, nu, nz) [firststep, next order, eq. 2].

    .. math:: \kappa_4 = E[(r + \tilde A_1 g)^4] - 3\,\big(E[r^2] + \tilde A_1^2\big)^2
    """
    m = here.moments
    fourth = m[0] + slope * (4 * m[1] + slope * (6 * m[2] + slope * (4 * m[3] + slope * m[4])))
    return np.asarray(fourth - 3 * (here.variance + slope**2) ** 2)


def _moments(geometry: Geometry, tables: Tables, law: StepLaw, state: State) -> tuple[Array, Array]:
    """`_Setting.moments` and `_Setting.variance`."""
    g, weights = gauss_hermite(MOMENT_NODES)
    polynomials = hermite_polynomials(g, geometry.highest + 1, normalised=True)
    shift = (law.shared @ geometry.coordinates)[..., None]
    feature = geometry.problem.activation(np.sqrt(1 + law.excess)[..., None, None] * g + shift)
    parts = feature @ (polynomials * weights).T
    # The linear part is put back as far as it is not foretold, at each point anew.
    for p in range(geometry.highest + 1):
        left = parts[..., p] if p < 2 else parts[..., p] - _foretold(tables, state, p - 1)
        feature = feature - left[..., None] * polynomials[p]
    moments = np.stack([(feature ** (4 - k) * g**k) @ weights for k in range(5)])
    return moments, np.asarray(feature**2 @ weights)


def _output(geometry: Geometry, tables: Tables, law: StepLaw, steps: Array) -> tuple[Array, Array] | None:
    r"""What a step takes of the output that is called vanishing, N^(-1/2) a·sigma [firststep, next order, eq. 6].

    .. math:: w_j \to \dots - \frac{\eta c_1^2}{\sqrt N}\, a_j\, W_0^\top a

    Rows lose so much of the component that they have along :math:`W_0^\top a`.
    """
    problem = geometry.problem
    if problem.output_law.order_one:
        return None
    c1 = float(problem.activation.hermite(2)[1])
    lost = steps * c1**2 * problem.output_law.scale(geometry.sizes.width)
    slope = tables.carried[:, 0] / np.sqrt(1 + law.excess)[..., None] * geometry.u[:, None]
    turned = 1 + law.turn[:, None, None] * law.law.nodes[:, None] * geometry.u
    by_node = slope.swapaxes(1, 2)[:, None] * turned[:, :, None]
    functions = by_node @ (tables.psi * geometry.u_weights).swapaxes(1, 2)[:, None]
    return lost * (2 - lost), functions
