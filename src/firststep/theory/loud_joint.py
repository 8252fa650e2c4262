r"""What the joint law of a covariance and M changes beside a loud direction [firststep, joint law].

Along the loud direction l every neuron is known (`firststep.theory.loud`), and M as noise beside it is replaced by the
law of `firststep.theory.joint_law` in the d - 1 directions that are left. Both theories are solved with few nodes, and
the ratio of their errors is carried to the points that are asked for.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from firststep.gaussian import Array
from firststep.gaussian.averages import UnsettledError
from firststep.numerics import fixedpoint
from firststep.results import Outcome
from firststep.setting import Problem, Sizes
from firststep.theory import loud
from firststep.theory.coefficients import Geometry, Tables, tables_from
from firststep.theory.directions import grouped
from firststep.theory.equations import (
    State,
    answer_at,
    carried_along,
    effective_of,
    errors_at,
    first_guess,
    form_value,
    forms_at,
    reached_points,
    state_at,
    with_prior,
)
from firststep.theory.joint import (
    ERRORS,
    LARGEST_CHANGE,
    errors_with_tests,
    output_change,
    residual_with,
    settled,
)
from firststep.theory.joint_law import Generators, JointLaw, RowParts, joint_law
from firststep.theory.ladder import Way
from firststep.theory.loud import LoudRows, Pull, loud_geometry, loud_rows
from firststep.theory.matrix_law import Samples, label_samples
from firststep.theory.next_order import completed
from firststep.theory.rest import RestLaw
from firststep.theory.sectors import highest_degree

# Groups of like labels in each tail and in the body.
GROUPS = (8, 40)
RESIDUAL = 1e-7
# Share of a row's squared length that M and the remainder make, below which their law does not matter.
LEAST_GAINED = 2e-3


@dataclass(frozen=True)
class BesideLoud:
    """One step size and draw, for all ridges: the theory with M as noise beside l, and what replaces that.

    Attributes
    ----------
    geometry : Geometry
    tables : Tables
    rows : LoudRows
    parts : RowParts
    generators : Generators
    samples : Samples
    ridges : ndarray (R,)
    """

    geometry: Geometry
    tables: Tables
    rows: LoudRows
    parts: RowParts
    generators: Generators
    samples: Samples
    ridges: Array

    @classmethod
    def of(
        cls,
        problem: Problem,
        sizes: Sizes,
        step_size: float,
        ridges: Array,
        nodes: loud.Nodes,
        draw: float,
        weight: float,
    ) -> "BesideLoud":
        """With the step's noise along l and the teacher's weight there."""
        geometry, *own = loud_geometry(problem, sizes, "structured", nodes, highest_degree(sizes))
        values, shares, _ = grouped(problem.covariance(sizes.dim))
        beside = shares[1:] / shares[1:].sum()
        one, zero = np.ones(1), np.zeros((2, 2))
        law = RestLaw(values[1:], beside, np.zeros(1), zero[:1], 1.0, 1.0, np.ones_like(beside), one, zero)
        geometry = replace(geometry, law=law)
        rows = loud_rows(problem, sizes, step_size, draw, geometry, (own[0], own[1]), weight)
        profiles = rows.profiles
        # The last generator, M l, is no direction that samples know.
        left = replace(
            profiles,
            values=values[1:],
            masses=profiles.masses[:-1, 1:],
            known=profiles.known[:, :-1, 1:],
            scatter=profiles.scatter[:-1, 1:],
        )
        samples = label_samples(problem, sizes).gathered(sizes.n_step_samples, *GROUPS)
        return cls(
            geometry=geometry,
            tables=tables_from(geometry, rows.law).repeat(len(ridges)),
            rows=rows,
            parts=_parts(geometry, rows, len(ridges)),
            generators=Generators.of(left),
            samples=_seen_beside(samples, weight),
            ridges=ridges,
        )

    def plain(self) -> tuple[Array, Array]:
        """Solution of the theory with M as noise, and its errors, (2, R)."""
        start = first_guess(self.geometry, self.ridges)
        found = reached_points(
            self.geometry, self.tables, self.ridges, start, RESIDUAL, fixedpoint.PLAIN_ROUNDS
        ).value
        numbers = errors_at(answer_at(self.geometry, self.tables, found), self.ridges)
        return found, np.stack([numbers[name] for name in ERRORS])

    def errors(self, start: Array) -> Array:
        """Train and test error with the joint law, (2, R), from a solution nearby."""
        return errors_with_tests(self.geometry, self.ridges, self.solved, self.form, start)

    def solved(self, start: Array, tested: Array) -> Array:
        """rho and 1 + delta with test samples of this mass beside the fit's, (R, nz + nu)."""
        laws: list[JointLaw] = []
        return settled(
            self.geometry, self.tables, start, tested, lambda values: self.residual(values, tested, laws)
        )

    def residual(self, values: Array, tested: Array, laws: list[JointLaw]) -> tuple[State, Array]:
        """The other theory's state there, and relative residuals of this one's equations, (R, nz + nu)."""
        nz = len(self.geometry.weights)
        state = state_at(self.geometry, self.tables, values[:, :nz], 1 / values[:, nz:])
        law = self.law(self.tables.carried[:, 0], state, laws[0] if laws else None)
        laws[:] = [law]
        joint = law.mean(law.resolvents), law.carried(law.resolvents)
        return state, residual_with(self.geometry, self.tables, self.ridges, values, tested, state, joint)

    def law(self, alpha: Array, state: State, near: JointLaw | None = None) -> JointLaw:
        """The joint law at a state, for neurons with these linear coefficients, from one nearby."""
        mass, ratio = self.geometry.u_weights * state.y, self.geometry.sizes.step_ratio
        return joint_law(alpha, mass, state.p, self.parts, self.samples, ratio, near)

    def form(self, values: Array) -> Array:
        r"""q = y^T R y, (R,).

        B_eff is that of the joint law between the directions beside l that labels know, less what is known of each
        neuron there; along l and along M l it is as before.
        """
        geometry, tables, rows = self.geometry, self.tables, self.rows
        forms = forms_at(geometry, tables, values)
        law = self.law(tables.by_degree[:, 0], forms.state)
        count, basis = len(rows.profiles.known) + 1, tables.h.shape[1]
        vectors = np.broadcast_to(
            rows.vectors[:count, :-1, 1:],
            (len(values), count, *self.generators.masses.shape),
        )
        between = law.between(self.generators, vectors, vectors[:, :0])
        # Where the teacher has nothing beside l there is no such direction, and nothing random along it.
        missing = ~(np.abs(vectors[0]) * self.generators.masses).any(axis=(1, 2))
        between += np.kron(np.diag(missing.astype(float)), np.eye(law.size))
        effective = effective_of(geometry, tables, forms).copy()
        places = slice(basis, basis * (1 + count))
        known = rows.moved - rows.law.special_extra[0]
        known = np.broadcast_to(known, (len(values), *known.shape))
        known = carried_along(geometry, tables, forms, known)
        effective[:, places, places] = law.effective(between) - known[:, places, places]
        forms = with_prior(geometry, tables, forms, effective)
        if tables.output_spikes is not None:
            bulk = self.law(tables.carried[:, 0], forms.state)
            change = output_change(geometry, tables, self.samples, bulk, forms)
            forms = replace(forms, loosened=forms.loosened + change)
        return form_value(geometry, tables, forms)


def _parts(geometry: Geometry, rows: LoudRows, count: int) -> RowParts:
    """Variances beside l, those that typical directions gain together as large as with M as noise."""
    m, mu, u = geometry.law.nodes, geometry.law.weights, geometry.u
    step, whole = rows.step, 1 + rows.law.excess[0]
    begun, kept = np.outer(m, rows.shorter), step.kept(m, u)
    gained = step.turn**2 * step.sizes.step_ratio * step.moments.square * float(mu @ m) + step.noise
    share = step.spread / gained if gained > 0 else 1.0
    turn = step.turn * u * math.sqrt(share)
    each = np.ones((count, 1, 1))
    return RowParts(
        values=m,
        shares=mu,
        power=step.power,
        begun=each * (begun * kept**2 / whole),
        crossed=each * (turn * begun * kept / whole),
        turned=each * (turn**2 * begun / whole),
        noise=each[:, 0] * (share * step.noise * u**2 / whole),
    )


def _seen_beside(samples: Samples, weight: float) -> Samples:
    r"""What labels show of the teacher's direction beside l, :math:`t = \sqrt{\nu_l}\,l + \sqrt{1 - \nu_l}\,t'`."""
    shown = samples.shown.copy()
    shown[:, 0] *= math.sqrt(1 - weight)
    shown[:, :, 0] *= math.sqrt(1 - weight)
    shown[:, 0, 0] += weight
    return replace(samples, shown=shown)


def changes(problem: Problem, sizes: Sizes, step_size: float, ridges: Array) -> NDArray[np.float64]:
    """Relative changes of both errors by the joint law beside l, (2, R), NaN where they are not found.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/2", 0.3, rows="sphere", inputs="spiked(10, overlap=0.3)")
    >>> print(changes(problem, Sizes(1000, 500, 750), 31.6, np.array([0.1])).round(2).ravel())
    [0.04 0.  ]
    """
    pull, covariance = Pull.of(problem, sizes), problem.covariance(sizes.dim)
    nodes, weight = pull.nodes(step_size, draft=True), float(grouped(covariance)[2][0])
    before, after = np.zeros((2, len(ridges))), np.zeros((2, len(ridges)))
    if loud.gained_share(problem, sizes, step_size) < LEAST_GAINED:
        return np.zeros((2, len(ridges)))
    try:
        # Matrices are too small for more than one thread.
        with threadpool_limits(limits=1):
            for draw, along, mass in pull.of_all(weight, covariance.typical, nodes.draws):
                here = BesideLoud.of(problem, sizes, step_size, ridges, nodes, draw, along)
                start, numbers = here.plain()
                before += mass * numbers
                after += mass * here.errors(start)
    except (np.linalg.LinAlgError, fixedpoint.ConvergenceError, UnsettledError):
        return np.full((2, len(ridges)), np.nan)
    found = after / before - 1
    return np.where((np.abs(found) < LARGEST_CHANGE).all(axis=0), found, np.nan)


def _at_points(problem: Problem, sizes: Sizes, steps: Array, ridges: Array, way: Way) -> Array:
    """The same for a list of points, (2, B)."""
    found = np.full((2, len(steps)), np.nan)
    for step in np.unique(steps):
        own = steps == step
        found[:, own] = changes(problem, sizes, float(step), ridges[own])
    return found


def solve(
    problem: Problem, sizes: Sizes, step_sizes: Array, ridges: Array, *, draft: bool = False
) -> Outcome:
    """Errors after one step under a loud direction, with the joint law of the covariance and M beside it.

    A draft is without that. The next order in 1/n is that of the theory that does not know the direction as loud,
    for an output that vanishes.

    Examples
    --------
    >>> import numpy as np
    >>> problem = Problem("relu", "h1 + h2/2", 0.3, rows="sphere", inputs="spiked(10, overlap=0.6)")
    >>> found = solve(problem, Sizes(1000, 500, 750), np.array([31.6]), np.array([0.1]))
    >>> print(f"{found.train_error[0, 0]:.2f}, {found.details['joint_law'][0, 0, 0]:+.2f} of it by the joint law")
    0.28, +0.05 of it by the joint law
    """
    found = loud.solve(problem, sizes, step_sizes, ridges, draft=draft)
    way = Way("structured", found.details["degrees"], own=not draft)
    return completed(found, way, _at_points, problem.without_output())
