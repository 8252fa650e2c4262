r"""What is of order one in E log det(FF^T + lambda n), and what it changes in the errors [firststep, next order].

The self-consistent equations are the leading order. Kept of the next one are the fourth cumulant of what a feature has
beyond what others foretell, the spikes and what they take of samples and neurons, the fluctuations of the unknowns, and
the output that a network with a vanishing one has all the same. All of it is a function of the unknowns and tables of
`firststep.theory.equations`, whatever law the rows have: after one step or two, under any covariance.
"""

from dataclasses import dataclass

import numpy as np

from firststep.gaussian import Array, gauss_hermite, hermite_polynomials
from firststep.theory.coefficients import Geometry, Tables, Values, apply
from firststep.theory.equations import Response, State, jacobian_at, response_at, state_at
from firststep.theory.step_law import StepLaw

# Nodes of the Gaussian g in the fourth moments.
MOMENT_NODES = 20
# Share of rho, and length of a step along the adjoint, over which derivatives are taken; no node moves further than the
# last in its logarithm, and nodes below this weight do not move.
TESTED, MOVED, FARTHEST, LEAST_WEIGHT = 1e-3, 1e-3, 0.05, 1e-12


@dataclass(frozen=True)
class Setting:
    """A batch of points at their solution.

    Attributes
    ----------
    moments : ndarray (5, B, nu, nz)
        E[r^(4-k) g^k | z, U] of what a feature has beyond its linear part, higher degrees as far as they are not
        foretold.
    variance : ndarray (B, nu, nz)
        E[r^2].
    outputs : tuple of two ndarray (B, J, L, K, npsi), or none of them
        What rows have along W0^T a without a step's correction of the output and with it, as functions of z and U.
    taken : int
        Directions that the leading order has taken from the typical ones and counts nowhere.
    """

    geometry: Geometry
    tables: Tables
    moments: Array
    variance: Array
    outputs: tuple[Array, ...]
    taken: int = 0

    @classmethod
    def of(cls, geometry: Geometry, tables: Tables, law: StepLaw, state: State, taken: int) -> "Setting":
        """What stays the same where the unknowns are moved."""
        moments = _moments(geometry, tables, law, state)
        return cls(geometry, tables, *moments, _outputs(geometry, tables, law), taken)

    def tiled(self, times: int) -> "Setting":
        """The same points so many times, one list after the other: one call is cheaper than several."""
        index = np.tile(np.arange(len(self.variance)), times)
        outputs = tuple(part[index] for part in self.outputs)
        tables = self.tables.take(index)
        moments = self.moments[:, index], self.variance[index]
        return Setting(self.geometry, tables, *moments, outputs, self.taken)


def changes_at(
    geometry: Geometry, law: StepLaw, tables: Tables, values: Values, ridges: Array, taken: int = 0
) -> Array:
    r"""What train and test error gain, (2, B) [firststep, next order, eq. 5].

    .. math:: \delta L_{tr} = \lambda\,\delta q, \qquad \delta L_{te} = \lambda\,\frac{d}{d\epsilon}\,\delta q

    epsilon is the weight of a test sample without end in the fit. It adds to what is seen of rho, and to nothing else.
    `values` are the solution, rho and 1 + delta; `taken` as of `Setting`.
    """
    nz = len(geometry.weights)
    rho = values[:, :nz]
    state = state_at(geometry, tables, rho, 1 / values[:, nz:])
    here = Setting.of(geometry, tables, law, state, taken)
    seen = TESTED / (geometry.weights / rho).sum(axis=1)
    pull = np.zeros_like(values)
    pull[:, :nz] = np.minimum(seen[:, None] / rho, FARTHEST)
    moved = np.linalg.solve(jacobian_at(geometry, tables, state), pull[..., None])[..., 0]
    shifted = np.concatenate([values * np.exp(moved), values * np.exp(-moved)])
    above, below = _form_change(here.tiled(2), shifted, np.concatenate([seen, -seen])).reshape(2, -1)
    slope = (above - below) / (2 * seen) / geometry.samples_per_neuron
    return np.stack([ridges * (above + below) / 2, slope])


def _form_change(here: Setting, values: Values, seen: Array) -> Array:
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
    for sign, functions in zip((-1, 1), here.outputs, strict=False):
        levels = functions.shape[2]
        eta = apply(functions, response.fit.x[:, None, None])
        square = (apply(response.forms.state.x[:, None, :levels], eta) * eta).sum(axis=(1, 3))
        change = change + sign * (tables.bend_weights * square).sum(axis=1) / geometry.neurons_per_dim
    return np.asarray(change)


def _potential(here: Setting, values: Values, seen: Array) -> Array:
    r"""Phi, what is of order one in :math:`E\log\det(FF^\top + \lambda n)`, (B,) [firststep, next order, eq. 1].

    .. math:: \Phi = -\frac{n}{2N}\,E_{z,u}\Big[\frac{\kappa_4\,\rho^2}{(1+\delta)^2}\Big]
        + \log\det(Q + C^\top R_z C) - \log\det Q_0 + \Phi_\mathrm{dir} + \tfrac{1}{2}\log\det J
    """
    geometry, tables = here.geometry, here.tables
    nz = len(geometry.weights)
    response = response_at(geometry, tables, values, (1 - seen[:, None] / values[:, :nz]) ** 2)
    fitted, y = values[:, :nz] - seen[:, None], 1 / values[:, nz:]
    cumulants = _cumulants(here, _foretold(tables, response.forms.state, 0))
    neurons = apply(cumulants.swapaxes(1, 2), geometry.u_weights * y**2)
    found = -0.5 * geometry.samples_per_neuron * (geometry.weights * fitted**2 * neurons).sum(axis=1)
    spikes = response.fit.added @ response.forms.moments
    found = found + np.linalg.slogdet(np.eye(spikes.shape[1]) + spikes)[1] + _directions(here, response)
    return np.asarray(found + 0.5 * np.linalg.slogdet(response.jacobian)[1])


def _directions(here: Setting, response: Response) -> Values:
    r"""What single directions count beyond typical ones, (B,) [firststep, next order, eq. 8].

    .. math:: \Phi_\mathrm{dir} = \log\det(1 + G R_2) + \log\det(1 - \mathcal T\,(1\otimes P))
        + \sum_{p \ge 2}\dots + D\int\log\det(1 + BP)\,\mathrm dm

    The bulk counts all directions as typical; in the special ones random weights carry functions of z, or of more
    coordinates, in its place. D directions that neurons are known along are missing in the bulk.
    """
    tables, forms = here.tables, response.forms
    degrees, logs = np.array(tables.level_degrees), np.linalg.slogdet(forms.state.s)[1]

    def typical(degree: int) -> Values:
        own = degrees == degree
        return -np.average(logs[:, own], axis=1, weights=tables.level_weights[0, own])

    found = np.linalg.slogdet(response.fit.resolved)[1] - np.linalg.slogdet(forms.special.z_matrix)[1]
    for term, spread in zip(tables.priors, forms.higher, strict=True):
        counted = np.linalg.slogdet(spread.z_matrix)[1] if spread else len(term.places) * typical(term.degree)
        found = found - counted
    for degree in range(1, here.geometry.highest + 1) if here.taken else ():
        found = found + here.taken * typical(degree)
    return np.asarray(found)


def _foretold(tables: Tables, state: State, degree: int) -> Values:
    r"""What is left of A_p once other neurons and samples have foretold it, (B, nu, nz) [firststep, next order, eq. 3].

    .. math:: \tilde A_p = \int c(U, m)\,h(z)^\top S_p(m)\,\alpha_p\,\mathrm dm

    `degree` is p - 1.
    """
    alpha, levels = tables.sectors[degree]
    factors = tables.level_weights[:, levels, None] * tables.stretch[:, levels]
    across = (state.s[:, levels] @ alpha.swapaxes(1, 2)[:, None]) * factors[:, :, None]
    return np.asarray(across.sum(axis=1).swapaxes(1, 2) @ tables.h)


def _cumulants(here: Setting, slope: Values) -> Values:
    r"""Fourth cumulant of what is left of a feature, with this slope in g, (B, nu, nz) [firststep, next order, eq. 2].

    .. math:: \kappa_4 = E[(r + \tilde A_1 g)^4] - 3\,\big(E[r^2] + \tilde A_1^2\big)^2
    """
    m = here.moments
    fourth = m[0] + slope * (4 * m[1] + slope * (6 * m[2] + slope * (4 * m[3] + slope * m[4])))
    return np.asarray(fourth - 3 * (here.variance + slope**2) ** 2)


def _moments(geometry: Geometry, tables: Tables, law: StepLaw, state: State) -> tuple[Array, Array]:
    """`Setting.moments` and `Setting.variance`."""
    g, weights = gauss_hermite(MOMENT_NODES)
    polynomials = hermite_polynomials(g, geometry.highest + 1, normalised=True)
    shift = (law.shared @ geometry.coordinates)[..., None]
    feature = geometry.problem.activation(np.sqrt(1 + law.excess)[..., None, None] * g + shift)
    parts = feature @ (polynomials * weights).T
    # The linear part is put back as far as it is not foretold, at each point anew.
    for p in range(geometry.highest + 1):
        left = parts[..., p] if p < 2 else parts[..., p] - _foretold(tables, state, p - 1)
        feature = feature - left[..., None] * polynomials[p]
    square, by_g = feature * feature, feature * g
    parts_of = (
        square * square,
        square * by_g,
        by_g * by_g,
        by_g * g**2,
        np.broadcast_to(g**4, feature.shape),
    )
    return np.stack([part @ weights for part in parts_of]), np.asarray(square @ weights)


def _outputs(geometry: Geometry, tables: Tables, law: StepLaw) -> tuple[Array, ...]:
    r"""What rows have along W0^T a without what a step takes of the output that is called vanishing, and with it.

    .. math:: O(m) = E\big[h A_1\,\tfrac{U}{s}(1 + kUm)\,\psi^\top\big], \qquad
        O'(m) = E\big[h A_1\,\tfrac{U}{s}(1 + kUm - x m^g)\,\psi^\top\big]

    for isotropic inputs; none if nothing is taken [firststep, next order, eq. 6].
    """
    if not law.output_lost.any():
        return ()
    slope = tables.carried[:, 0] / np.sqrt(1 + law.excess)[..., None] * geometry.u[:, None]
    by_node, across = slope.swapaxes(1, 2), (tables.psi * geometry.u_weights).swapaxes(1, 2)
    left = law.output_parts.copy()
    left[:, 0] -= law.output_lost
    both = (by_node[:, None, None] * parts[..., None, :] for parts in (law.output_parts, left))
    return tuple(part @ across[:, None, None] for part in both)
