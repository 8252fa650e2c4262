r"""What the joint law of a covariance and M, and rows known along the step, change [firststep, joint law].

The theory beside it takes M as noise in typical directions and expands in what a row has along the step's direction.
Both are computed on one coarse rung, and their ratio is carried to the points that are asked for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from firststep.gaussian import Array
from firststep.numerics import fixedpoint
from firststep.numerics.mixing import mixed_rounds
from firststep.setting import Problem, Sizes
from firststep.theory.coefficients import Geometry, Resolution, Tables, geometry_of, tables_from, tables_of
from firststep.theory.covariant_step import profiles_of
from firststep.theory.equations import (
    Forms,
    State,
    answer_at,
    errors_at,
    first_guess,
    form_value,
    forms_at,
    jacobian_at,
    linear_sector,
    reached_points,
    residual_size,
    state_at,
    with_prior,
)
from firststep.theory.joint_law import Generators, JointLaw, joint_law
from firststep.theory.known_rows import KnownRows, known_geometry, known_rows, taught_share
from firststep.theory.matrix_law import Samples, label_samples
from firststep.theory.own_component import knows_own

ERRORS = ("train_error", "test_error")
# The coarse rung, and the most degrees with sectors of their own.
RUNG, DEGREES = Resolution(24, 0.35, 6, 1e-3, bent=True), 2
# Relative residual of the equations, the most rounds, and those in which their derivative is made anew.
RESIDUAL, ROUNDS, FRESH = 1e-8, 40, 3
# Share of rho that test samples add, over which the test error is a difference.
TESTED = 1e-3
# Of the smallest rho they add, or take, no more than this share.
LEFT = 0.5
# A step that moves nothing, of a size that leaves its direction.
STILL = 1e-6
# Least length of what M makes of a known part: labels without variance make none.
LEAST_TURNED = 1e-12
# Relative changes from which on they are left out.
LARGEST_CHANGE = 0.5
# Groups of like labels in each tail and in the body.
GROUPS = (12, 60)
# Points that are solved together.
TOGETHER = 1


def applies(problem: Problem, sizes: Sizes, rest: str) -> bool:
    """Whether there is anything to change: inputs with a covariance, and the gradient as it is.

    Where the readout has a mean an output of order one knows an input's length. M's samples then know their labels'
    noise, which the joint law takes as independent of them.
    """
    knows = problem.output_law.order_one and problem.readout_law.mean != 0
    anisotropic = not problem.covariance(sizes.dim).isotropic
    return rest == "structured" and anisotropic and problem.label_variance > 0 and not knows


def errors_with_tests(
    geometry: Geometry,
    ridges: Array,
    solved: Callable[[Array, Array], Array],
    form: Callable[[Array], Array],
    start: Array,
) -> Array:
    r"""Train and test error, (2, B), from solutions with test samples and forms q [firststep, joint law, eq. 9].

    .. math:: L_{tr} = \lambda q, \qquad L_{te} = \frac Nn\,\frac{dq}{d\epsilon}, \quad
        \rho = \epsilon + \frac{1}{\lambda n/N + \dots}

    with test samples that add epsilon to what is seen of rho.
    """
    nz = len(geometry.weights)
    values = solved(start, np.zeros(len(ridges)))
    mean = 1 / (geometry.weights / values[:, :nz]).sum(axis=1)
    seen = np.minimum(TESTED * mean, LEFT * values[:, :nz].min(axis=1))
    forms = []
    for tested in (seen, -seen):
        shifted = values.copy()
        shifted[:, :nz] += tested[:, None]
        forms.append(form(solved(shifted, tested)))
    slope = (forms[0] - forms[1]) / (2 * seen) / geometry.samples_per_neuron
    return np.stack([ridges * form(values), slope])


def settled(
    geometry: Geometry,
    tables: Tables,
    start: Array,
    tested: Array,
    residual: Callable[[Array], tuple[State, Array]],
) -> Array:
    """Where the residual vanishes, with the other theory's Jacobian, (B, nz + nu)."""
    nz = len(geometry.weights)
    known: list[Array] = []

    def step(logs: Array, number: int) -> tuple[Array, Array]:
        values = np.exp(logs)
        state, error = residual(values)
        if number < FRESH:
            matrix = jacobian_at(geometry, tables, state)
            unit = np.eye(matrix.shape[1])[:nz]
            reaction = (1 - tested[:, None] / values[:, :nz]) ** 2
            matrix[:, :nz] = unit + reaction[:, :, None] * (matrix[:, :nz] - unit)
            known[:] = [matrix]
        move = np.linalg.solve(known[0], -error[..., None])[..., 0]
        return np.asarray(move, dtype=np.float64), residual_size(geometry, error)

    return np.exp(mixed_rounds(step, np.log(start), RESIDUAL, ROUNDS))


def output_change(geometry: Geometry, tables: Tables, samples: Samples, law: JointLaw, forms: Forms) -> Array:
    """Change of what is taken out along an output of order one: M turns it with the rows, (B, npsi, npsi)."""
    spikes, size = tables.output_spikes, law.size
    assert spikes is not None
    linear, parts = spikes.shape[2], law.parts
    before = spikes.swapaxes(3, 4) @ forms.state.x[:, None, :linear] @ spikes
    before = np.einsum("bl,bjlpq->bpq", tables.bend_weights, before)
    scattered = np.sqrt(law.ratio * (samples.shares @ samples.weights**2))
    turned = (parts.values ** (0.5 - parts.power))[:, None, None] * spikes[:, 1] / scattered
    root = law.root.swapaxes(1, 2)[:, None]
    whole = np.concatenate([root @ part for part in (spikes[:, 0], turned)], axis=2)
    inside = law.resolvents[..., : 2 * size, : 2 * size]
    after = np.tensordot(parts.shares, whole.swapaxes(2, 3) @ inside @ whole, axes=(0, 1))
    return np.asarray((before - after) / geometry.neurons_per_dim)


def residual_with(
    geometry: Geometry,
    tables: Tables,
    ridges: Array,
    values: Array,
    tested: Array,
    state: State,
    joint: tuple[Array, Array],
) -> Array:
    """Relative residuals with another mean T of the first degree, and what neurons carry of it, (B, nz + nu)."""
    nz = len(geometry.weights)
    mean, linear = linear_sector(tables, state)
    bulk = state.bulk + (((joint[0] - mean) @ tables.h) * tables.h).sum(axis=1)
    delta = state.delta + (joint[1] - linear) / geometry.neurons_per_dim
    floor = (ridges * geometry.samples_per_neuron)[:, None]
    rho = tested[:, None] + 1 / (floor + bulk)
    return np.concatenate([values[:, :nz] / rho - 1, 1 - (1 + delta) / values[:, nz:]], axis=1)


@dataclass(frozen=True)
class Joint:
    """A batch of points with all that their steps share: `tables` and `rows` have one entry for each point."""

    geometry: Geometry
    tables: Tables
    rows: KnownRows
    generators: Generators
    samples: Samples
    ridges: Array

    @classmethod
    def of(
        cls, problem: Problem, sizes: Sizes, steps: Array, ridges: Array, rest: str, highest: int
    ) -> "Joint":
        """Points (step size, ridge)."""
        geometry, xi = known_geometry(problem, sizes, RUNG, rest, highest)
        distinct, index = np.unique(steps, return_inverse=True)
        rows = known_rows(geometry, distinct, rest, xi)
        tables = tables_from(geometry, rows.law).take(index)
        generators = Generators.of(profiles_of(problem, sizes)[0])
        samples = label_samples(problem, sizes).gathered(sizes.n_step_samples, *GROUPS)
        return cls(geometry, tables, rows.take(index), generators, samples, ridges)

    def errors(self) -> Array:
        """Train and test error, (2, B)."""
        start = first_guess(self.geometry, self.ridges)
        found = reached_points(
            self.geometry, self.tables, self.ridges, start, 1e-6, fixedpoint.PLAIN_ROUNDS
        ).value
        return errors_with_tests(self.geometry, self.ridges, self.solved, self.form, found)

    def solved(self, start: Array, tested: Array) -> Array:
        """rho and 1 + delta with test samples of this mass beside the fit's, (B, nz + nu)."""
        laws: list[JointLaw] = []
        return settled(
            self.geometry, self.tables, start, tested, lambda values: self.residual(values, tested, laws)
        )

    def residual(self, values: Array, tested: Array, laws: list[JointLaw]) -> tuple[State, Array]:
        """The other theory's state there, and relative residuals of this one's equations, (B, nz + nu).

        `laws` keeps the law of the round before, from which that of this one starts.
        """
        nz = len(self.geometry.weights)
        state = state_at(self.geometry, self.tables, values[:, :nz], 1 / values[:, nz:])
        law = self.law(state, self.tables.carried[:, 0], laws[0] if laws else None)
        laws[:] = [law]
        resolvents, left = self.opened(law)
        carried = law.carried(resolvents) - left / float(self.geometry.sizes.dim)
        joint = law.mean(resolvents), carried
        return state, residual_with(self.geometry, self.tables, self.ridges, values, tested, state, joint)

    def law(self, state: State, alpha: Array, near: JointLaw | None = None) -> JointLaw:
        """The joint law at a state, for neurons with these linear coefficients, from one nearby."""
        mass, ratio = self.geometry.u_weights * state.y, self.geometry.sizes.step_ratio
        return joint_law(alpha, mass, state.p, self.rows.parts, self.samples, ratio, near)

    def _blocks(self) -> Iterator[tuple[int, int, int, Array]]:
        """Lengths of rows, X or Y twice, and the square of what neurons have along the known direction, (B, nu)."""
        rows = self.rows
        for length in range(rows.taken.shape[1]):
            for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
                yield length, i, j, rows.scales[i + j] * (rows.length == length)

    def _taken(self, law: JointLaw) -> Array:
        """What is known of the rows, per unit of their directions s, of X and Y, (B, lengths 2K, lengths 2K)."""
        count, size = self.rows.taken.shape[1], law.size
        found = np.zeros((len(law.alpha), count, 2, size, count, 2, size))
        for n, i, j, scale in self._blocks():
            found[:, n, i, :, n, j] = (law.alpha * (law.mass * scale)[..., None]).swapaxes(1, 2) @ law.alpha
        return found.reshape(len(found), count * 2 * size, -1)

    def opened(self, law: JointLaw) -> tuple[Array, Array]:
        r"""1/H at the levels without what is known of the rows, and what the neurons' forms lose by it, (B, nu).

        Taking out :math:`B\,ss^\top` is a perturbation of low rank [firststep, joint law, eq. 8].
        """
        rows, double, dim = self.rows, 2 * law.size, float(self.geometry.sizes.dim)
        between = law.between(self.generators, rows.taken[:, :0], rows.taken)
        taken = self._taken(law)
        inner = -taken @ np.linalg.inv(np.eye(taken.shape[1]) - between @ taken)
        left = between - between @ inner @ between
        count, masses = rows.taken.shape[1], self.generators.masses
        overlap = np.einsum("bngl,bmgl,gl->blnm", rows.taken, rows.taken, masses)
        overlap = overlap / (law.parts.shares * dim)[:, None, None]
        blocks = inner.reshape(len(inner), count, double, count, double)
        weighted = np.einsum("blnm,bnimj->blij", overlap, blocks)
        resolvents = law.resolvents
        resolvents = resolvents - resolvents[..., :double] @ weighted @ resolvents[..., :double, :]
        forms = left.reshape(len(left), count, 2, law.size, count, 2, law.size)
        lost = np.zeros_like(law.mass)
        for n, i, j, scale in self._blocks():
            lost += ((law.alpha @ forms[:, n, i, :, n, j]) * law.alpha).sum(axis=2) * scale
        return resolvents, lost

    def form(self, values: Array) -> Array:
        """q = y^T R y, (B,)."""
        geometry, tables = self.geometry, self.tables
        forms = forms_at(geometry, tables, values)
        law = self.law(forms.state, tables.by_degree[:, 0])
        forms = with_prior(geometry, tables, forms, law.effective(self._special(law)))
        if tables.output_spikes is not None:
            bulk = self.law(forms.state, tables.carried[:, 0])
            change = output_change(geometry, tables, self.samples, bulk, forms)
            forms = replace(forms, loosened=forms.loosened + change)
        return form_value(geometry, tables, forms)

    def _special(self, law: JointLaw) -> Array:
        r"""1/H between the special directions and what M makes of the known part, (B, (p + 1) K, (p + 1) K).

        Since :math:`Y = MS^gX`, a form along :math:`S^gMs` is that of Y along s [firststep, joint law, eq. 8].
        """
        rows, size, taken = self.rows, law.size, self._taken(law)
        whole = law.between(self.generators, rows.vectors, rows.taken)
        count = rows.vectors.shape[1]
        start = count * size
        inner = -taken @ np.linalg.inv(np.eye(taken.shape[1]) - whole[:, start:, start:] @ taken)
        whole = whole - whole[:, :, start:] @ inner @ whole[:, start:]
        turned = start + (rows.taken.shape[1] // 2) * 2 * size + size
        kept = np.r_[0:start, turned : turned + size]
        # What it has beside the special directions, of length one.
        basis = np.tile(np.eye(count + 1), (len(whole), 1, 1))
        beside = np.maximum(rows.turned[:, -1:], LEAST_TURNED)
        basis[:, -1] = np.concatenate([-rows.turned[:, :-1], np.ones_like(beside)], axis=1) / beside
        unit = np.einsum("bij,kl->bikjl", basis, np.eye(size)).reshape(len(whole), len(kept), -1)
        return np.asarray(unit @ whole[:, kept[:, None], kept] @ unit.swapaxes(1, 2))


def changes(
    problem: Problem, sizes: Sizes, steps: Array, ridges: Array, rest: str, degrees: int
) -> NDArray[np.float64]:
    r"""Relative changes of both errors for points (step size, ridge), (2, B), NaN where they are not found.

    .. math:: \frac{1 + a(\eta)}{(1 + a(0))^{1 - w(\eta)}} - 1

    a is what the joint law changes, w the share of `taught_share`: none without a step, where the theory beside it is
    that of random features [firststep, joint law, eq. 10].
    """
    highest, steps = min(degrees, DEGREES), np.maximum(steps, STILL)
    still = problem.without_step()
    levels, level = np.unique(ridges, return_inverse=True)
    # Matrices are too small for more than one thread.
    with threadpool_limits(limits=1):
        begun = _found(still, sizes, np.full_like(levels, STILL), levels, rest, highest)
        found = _found(problem, sizes, steps, ridges, rest, highest)
    left = 1 - taught_share(problem, sizes, steps)
    found = found / begun[:, level] ** left - 1
    return np.where((np.abs(found) < LARGEST_CHANGE).all(axis=0), found, np.nan)


def _found(problem: Problem, sizes: Sizes, steps: Array, ridges: Array, rest: str, highest: int) -> Array:
    """`_ratio` of any number of points, NaN where there is none."""
    found = np.full((2, len(steps)), np.nan)
    for low in range(0, len(steps), TOGETHER):
        part = slice(low, low + TOGETHER)
        try:
            found[:, part] = _ratio(problem, sizes, steps[part], ridges[part], rest, highest)
        except (np.linalg.LinAlgError, fixedpoint.ConvergenceError):
            for at in range(low, min(low + TOGETHER, len(steps))) if len(steps[part]) > 1 else ():
                one = slice(at, at + 1)
                found[:, one] = _found(problem, sizes, steps[one], ridges[one], rest, highest)
    return found


def _ratio(
    problem: Problem, sizes: Sizes, steps: Array, ridges: Array, rest: str, highest: int
) -> NDArray[np.float64]:
    """Errors of this theory over those of the one beside it, (2, B)."""
    lengths = knows_own(problem, sizes, highest, rest)
    geometry = geometry_of(problem, sizes, RUNG, rest, 0, highest, lengths)
    distinct, index = np.unique(steps, return_inverse=True)
    tables = tables_of(geometry, distinct, rest).take(index)
    start = first_guess(geometry, ridges)
    values = reached_points(geometry, tables, ridges, start, RESIDUAL, fixedpoint.PLAIN_ROUNDS).value
    numbers = errors_at(answer_at(geometry, tables, values), ridges)
    joint = Joint.of(problem, sizes, steps, ridges, rest, highest)
    return np.asarray(joint.errors() / np.stack([numbers[name] for name in ERRORS]))
