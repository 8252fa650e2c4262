"""Predictions after sequences of steps on fresh samples: none, one or two of them [firststep, second step]."""

from typing import Any

import numpy as np

from firststep.gaussian import Array
from firststep.numerics.fixedpoint import ConvergenceError
from firststep.results import Outcome
from firststep.setting import Problem, Sizes
from firststep.theory import unified
from firststep.theory.coefficients import Geometry, tables_from
from firststep.theory.equations import answer_at, errors_at, first_guess, residual_of, solve_points
from firststep.theory.second_step import Plane, overlaps_after, plane_geometry, second_step
from firststep.theory.sectors import degree_shares
from firststep.theory.step_law import StepLaw
from firststep.theory.unified import FITTED, RESIDUAL, Way, finite_size_bars

# Two resolutions: the finer one answers, their difference goes into the error bar.
COARSE, FINE = Plane(16, 7, 0.36), Plane(20, 8, 0.25)
# Share of the second degree from which on it has a sector of its own: two coordinates make it costly.
SECOND_DEGREE = 0.05
# Relative error of the second step's law, beyond that of one step: what its turn of the rows leaves out.
BAR_SECOND = 0.02


def solve(
    problem: Problem,
    sizes: Sizes,
    schedule: Array,
    ridges: Array,
    *,
    rest: str = "structured",
    **options: Any,
) -> Outcome:
    """Errors after each sequence of steps, one row of `schedule` (S, T) each.

    A sequence with at most one step that is not zero is the theory of one step itself. Two steps are predicted for
    isotropic inputs and an output that vanishes at the start; more are refused.
    """
    taken = [row[row > 0] for row in schedule]
    most = max(len(row) for row in taken)
    if most > 2:
        raise ValueError(
            f"the theory knows sequences of two steps, got {most}: simulate, or predict the first two"
        )
    ones = np.array([row[0] if len(row) else 0.0 for row in taken])
    single = [i for i, row in enumerate(taken) if len(row) < 2]
    distinct = np.unique(np.concatenate([ones[single], [0.0]]))
    known = unified.solve(problem, sizes, distinct, ridges, rest=rest, **options)
    grids = {
        name: np.broadcast_to(known.values[name], (len(distinct), len(ridges)))
        for name in (*FITTED, "train_error_bar", "test_error_bar")
    }
    values: dict[str, Array] = {}
    for name, grid in grids.items():
        values[name] = np.empty((len(schedule), len(ridges)))
        values[name][single] = grid[np.searchsorted(distinct, ones[single])]
    overlaps = np.full((2, len(schedule), problem.teacher.directions), np.nan)
    for i, row in enumerate(taken):
        if len(row) == 2:
            found, overlaps[:, i] = _two_steps(problem, sizes, row, ridges, rest)
            for name, numbers in found.items():
                values[name][i] = numbers
    for name in ("train", "test"):
        values[f"{name}_gain"] = grids[f"{name}_error"][:1] - values[f"{name}_error"]
    for rank in range(2):
        for a in range(overlaps.shape[2]):
            values[f"top{rank + 1}_t{a + 1}"] = overlaps[rank, :, a, None]
    values["residual_spread"] = values["test_error"] - problem.noise_variance
    later = schedule[:, 1:]
    return Outcome(
        problem, sizes, schedule[:, 0], ridges, "unified", values, notes=known.notes, next_step_sizes=later
    )


def _two_steps(
    problem: Problem, sizes: Sizes, steps: Array, ridges: Array, rest: str
) -> tuple[dict[str, Array], Array]:
    """Errors and bars after two steps for each ridge, and the overlaps of both coordinates with the teacher."""
    if not problem.later_samples.fresh:
        raise ValueError(
            "a second step is predicted on a fresh sample: leave step_sample at 'fresh', or simulate"
        )
    if problem.output_law.order_one or not problem.covariance(sizes.dim).isotropic:
        raise ValueError(
            "two steps are predicted for isotropic inputs and an initial output that vanishes: choose "
            "inputs='isotropic' and initial_output='vanishing', or simulate"
        )
    highest = 2 if degree_shares(sizes, 2)[1] > SECOND_DEGREE else 1
    answers = []
    for plane in (COARSE, FINE):
        geometry = plane_geometry(problem, sizes, plane, rest, highest)
        pair = (float(steps[0]), float(steps[1]))
        law = second_step(problem, sizes, pair, rest, geometry.u, geometry.u_weights)
        answers.append(_answers(geometry, law, ridges))
    coarse, fine = answers
    both = ("train_error", "test_error")
    errors = np.stack([fine[name] for name in both], axis=1)
    bars = finite_size_bars(problem, sizes, np.full(len(ridges), steps[0]), ridges, Way(rest, 1), errors)
    values = dict(fine)
    for name, bar in zip(both, bars, strict=True):
        change = np.abs(coarse[name] / fine[name] - 1)
        values[f"{name}_bar"] = fine[name] * np.sqrt(bar**2 + change**2 + BAR_SECOND**2)
    return values, overlaps_after(law).T


def _answers(geometry: Geometry, law: StepLaw, ridges: Array) -> dict[str, Array]:
    """What the fit has after the steps, for each ridge."""
    tables = tables_from(geometry, law).repeat(len(ridges))
    found = solve_points(geometry, tables, ridges, first_guess(geometry, ridges), RESIDUAL, 8)
    answer = answer_at(geometry, tables, found.value)
    left = residual_of(geometry, answer.state, ridges)
    numbers = errors_at(answer, ridges)
    errors = np.stack([numbers["train_error"], numbers["test_error"]], axis=1)
    if left.max() > 1e-6 or not all(np.isfinite(x).all() for x in numbers.values()) or errors.min() <= 0:
        raise ConvergenceError(
            "the theory of two steps gave an error that is not positive: raise ridge", errors, left
        )
    return numbers
