"""Predictions after sequences of steps on fresh samples: none, one or two of them [firststep, second step]."""

import math
from typing import Any

import numpy as np

from firststep.gaussian import Array
from firststep.numerics.fixedpoint import ConvergenceError
from firststep.results import Outcome
from firststep.setting import Problem, Sizes
from firststep.theory import next_order, unified
from firststep.theory.both_steps import Plane, both_steps, plane_geometry
from firststep.theory.coefficients import Geometry, Resolution, tables_from
from firststep.theory.equations import answer_at, errors_at, first_guess, residual_of, solve_points
from firststep.theory.joins import SMALLEST_STEP
from firststep.theory.label_law import label_moments
from firststep.theory.ladder import FITTED, RESIDUAL, Way
from firststep.theory.learned import learned_after_one, learned_shares, share_bars
from firststep.theory.potential import changes_at
from firststep.theory.second_step import Readouts
from firststep.theory.sectors import degree_shares
from firststep.theory.spectra.two_steps import TwoStepWeights
from firststep.theory.step_law import StepLaw
from firststep.theory.unified import finite_size_bars

# Two resolutions: the finer one answers; their difference, at so many of the second steps that follow a first one, goes
# into the error bar.
COARSE, FINE = Plane(16, 6, 0.45), Plane(20, 7, 0.36)
COMPARED = 3
# Resolution of the weights' outliers: a finer one moves their overlaps by less than 1e-3.
OUTLIERS = Resolution(1, 0.45, 12)
# Bar of an overlap o, in units of sqrt(o (1 - o)/d); that of a vector inside the bulk is known to a factor of two.
BAR_OVERLAP = 0.5
# Share of the second degree from which on it has a sector of its own; at a twentieth it is worth 3 % of some errors.
SECOND_DEGREE = 0.003
# Relative error of the second step's law, beyond that of one step, for a step of sqrt(N) and labels with a Gaussian's
# kurtosis. It grows with the root of that: single large labels turn rows in ways that no law of them has.
BAR_SECOND, KURTOSIS = 0.02, 3.0


def solve(
    problem: Problem,
    sizes: Sizes,
    schedule: Array,
    ridges: Array,
    *,
    rest: str = "structured",
    ordered: bool = False,
    **options: Any,
) -> Outcome:
    """Errors after each sequence of steps, one row of `schedule` (S, T) each; `ordered` with the next order in 1/n.

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
    double = [i for i, row in enumerate(taken) if len(row) == 2]
    distinct = np.unique(np.concatenate([ones[single], [0.0]]))
    ordered = ordered and options.get("degrees") is None
    theory = next_order if ordered else unified
    known = theory.solve(problem, sizes, distinct, ridges, rest=rest, **options)
    grids = {
        name: np.broadcast_to(known.values[name], (len(distinct), len(ridges)))
        for name in (*FITTED, "train_error_bar", "test_error_bar")
    }
    if problem.teacher.directions > 1:
        shares = learned_after_one(problem, sizes, distinct, ridges, rest)
    else:
        shares = {name: known.values[name] for name in known.values if name.startswith("learned_")}
        shares = {name: share for name, share in shares.items() if not name.endswith("_bar")}
    grids |= shares
    values: dict[str, Array] = {}
    for name, grid in grids.items():
        values[name] = np.empty((len(schedule), len(ridges)))
        values[name][single] = grid[np.searchsorted(distinct, ones[single])]
    notes = known.notes
    if double:
        _check_double(problem, sizes)
        found = _two_steps(problem, sizes, np.stack([taken[i] for i in double]), ridges, rest, ordered)
        notes = (*notes, *next_order.missing_note(found.pop("missing", np.zeros(1))))
        for name, numbers in found.items():
            values[name][double] = numbers
    for name in ("train", "test"):
        values[f"{name}_gain"] = grids[f"{name}_error"][:1] - values[f"{name}_error"]
    values |= share_bars(
        {name: values[name] for name in shares}, values["test_error_bar"] / values["test_error"]
    )
    values |= _overlaps(problem, sizes, taken, rest)
    values["residual_spread"] = values["test_error"] - problem.noise_variance
    later = schedule[:, 1:]
    return Outcome(
        problem, sizes, schedule[:, 0], ridges, known.source, values, notes=notes, next_step_sizes=later
    )


def _check_double(problem: Problem, sizes: Sizes) -> None:
    """Refuse two steps that are not derived, in words."""
    if not problem.later_samples.fresh:
        raise ValueError(
            "a second step is predicted on a fresh sample: leave step_sample at 'fresh', or simulate"
        )
    if not problem.covariance(sizes.dim).isotropic:
        raise ValueError(
            "two steps are predicted for isotropic inputs: choose inputs='isotropic', or simulate"
        )


def _overlaps(problem: Problem, sizes: Sizes, taken: list[Array], rest: str) -> dict[str, Array]:
    """Squared overlaps of the weights' two largest singular vectors with the teacher's directions, and bars, (S, 1)."""
    directions = problem.teacher.directions
    found, bars = np.zeros((2, len(taken), 2, directions))
    plain = not problem.output_law.order_one and problem.covariance(sizes.dim).isotropic
    if not plain or rest == "none":
        return {}
    padded = [np.append(row, [0.0, 0.0]) for row in taken]
    pairs = [(float(row[0]), float(row[1])) for row in padded]
    before: TwoStepWeights | None = None
    for i in sorted(range(len(pairs)), key=pairs.__getitem__):
        bulk = TwoStepWeights(problem, sizes, pairs[i], rest, OUTLIERS)
        bulk.neighbour = before
        try:
            found[i], outside = bulk.leading(2)
        except ConvergenceError:
            # Errors are known without the overlaps.
            found[i] = bars[i] = np.nan
            continue
        spread = np.sqrt(np.clip(found[i] * (1 - found[i]), 0.0, None) / float(sizes.dim))
        # What a vector has along a direction that it has nothing of in the limit is of the order 1/d.
        bars[i] = 1 / sizes.dim + BAR_OVERLAP * spread + found[i] * (np.arange(2) >= outside)[:, None]
        bulk.neighbour, before = None, bulk
    names = {f"top{rank + 1}_t{a + 1}": (rank, a) for rank in range(2) for a in range(directions)}
    values = {name: found[:, rank, a, None] for name, (rank, a) in names.items()}
    return values | {f"{name}_bar": bars[:, rank, a, None] for name, (rank, a) in names.items()}


def _two_steps(
    problem: Problem, sizes: Sizes, steps: Array, ridges: Array, rest: str, ordered: bool
) -> dict[str, Array]:
    """Errors, bars and what was learned after each of the pairs of steps, (pairs, R)."""
    way = Way(rest, 2 if degree_shares(sizes, 2)[1] > SECOND_DEGREE else 1)
    fine = _on_plane(problem, sizes, steps, ridges, way, FINE)
    both = ("train_error", "test_error")
    change = {name: np.zeros_like(fine[name]) for name in both}
    order = np.zeros((2, *fine["test_error"].shape))
    for first in np.unique(steps[:, 0]):
        rows = np.flatnonzero(steps[:, 0] == first)
        rows = rows[np.argsort(steps[rows, 1])]
        some = rows[np.unique(np.linspace(0, len(rows) - 1, COMPARED).round().astype(int))]
        coarse = _on_plane(problem, sizes, steps[some], ridges, way, COARSE)
        for name in both:
            change[name][rows] = np.abs(coarse[name] / fine[name][some] - 1).max(axis=0)
        if ordered:
            order[:, rows] = _ordered(problem, sizes, float(first), steps[rows, 1], ridges, way)
    flat = np.repeat(steps[:, 0], len(ridges)), np.tile(ridges, len(steps))
    errors = np.stack([fine[name].ravel() for name in both], axis=1)
    bars = finite_size_bars(problem, sizes, *flat, Way(rest, 1), errors)
    moments = label_moments(problem.teacher, problem.noise_variance)
    tails = float(moments.second[-1, -1]) / max(moments.square, 1e-300) ** 2 / KURTOSIS
    second = BAR_SECOND * np.minimum(steps[:, 1:2] / math.sqrt(sizes.width), 1.0) * math.sqrt(max(tails, 1.0))
    for name, bar in zip(both, bars, strict=True):
        whole = bar.reshape(fine[name].shape) ** 2 + change[name] ** 2 + second**2
        fine[f"{name}_bar"] = fine[name] * np.sqrt(whole)
    if ordered:
        fine["missing"] = np.isnan(order).any(axis=0).astype(float)
        fine = next_order.changed(problem, fine, np.nan_to_num(order))[0]
    return fine


def _ordered(problem: Problem, sizes: Sizes, first: float, later: Array, ridges: Array, way: Way) -> Array:
    """What the next order changes after second steps, (2, S, R), from nodes that do not depend on what is asked for."""
    nodes, weights = next_order.step_nodes(later)
    pairs = np.column_stack([np.full(len(nodes), first), np.maximum(nodes, SMALLEST_STEP)])
    found = _on_plane(problem, sizes, pairs, ridges, way, COARSE, ordered=True)
    return next_order.between(weights, np.stack([found[f"{name}_order"] for name in next_order.ERRORS]))


def _on_plane(
    problem: Problem,
    sizes: Sizes,
    steps: Array,
    ridges: Array,
    way: Way,
    plane: Plane,
    ordered: bool = False,
) -> dict[str, Array]:
    """What the fit has after each pair of steps at one resolution, (pairs, R); what the next order changes in it."""
    geometry = plane_geometry(problem, sizes, plane, way.rest, way.highest)
    readouts = Readouts(geometry.u, geometry.u_weights)
    rows: dict[int, dict[str, Array]] = {}
    state: Array | None = None
    for i in np.lexsort((steps[:, 1], steps[:, 0])):
        law = both_steps(problem, sizes, (float(steps[i, 0]), float(steps[i, 1])), way.rest, readouts)
        rows[int(i)], state = _answers(problem, geometry, law, ridges, state)
        if ordered:
            rows[int(i)] |= _order(geometry, law, ridges, rows[int(i)], state)
    return {name: np.stack([rows[i][name] for i in range(len(steps))]) for name in rows[0]}


def _answers(
    problem: Problem, geometry: Geometry, law: StepLaw, ridges: Array, neighbour: Array | None
) -> tuple[dict[str, Array], Array]:
    """What the fit has after the steps, for each ridge, and the solution, from that of a neighbour or from nothing."""
    tables = tables_from(geometry, law).repeat(len(ridges))
    start, rounds = (first_guess(geometry, ridges), 8) if neighbour is None else (neighbour, 1)
    found = solve_points(geometry, tables, ridges, start, RESIDUAL, rounds)
    answer = answer_at(geometry, tables, found.value)
    left = residual_of(geometry, answer.state, ridges)
    numbers = errors_at(answer, ridges)
    errors = np.stack([numbers["train_error"], numbers["test_error"]], axis=1)
    if left.max() > 1e-6 or not all(np.isfinite(x).all() for x in numbers.values()) or errors.min() <= 0:
        raise ConvergenceError(
            "the theory of two steps gave an error that is not positive: raise ridge", errors, left
        )
    return numbers | learned_shares(problem, geometry, tables, answer), found.value


def _order(
    geometry: Geometry, law: StepLaw, ridges: Array, numbers: dict[str, Array], values: Array
) -> dict[str, Array]:
    """Relative changes of both errors by the next order in 1/n, for each ridge, interpolated between some."""
    some, by_ridge = next_order.carried(np.log(ridges), next_order.GAPS[1])
    tables = tables_from(geometry, law).repeat(len(some))
    names = ("train_error", "test_error")
    try:
        gained = changes_at(geometry, law, tables, values[some], ridges[some])
    except np.linalg.LinAlgError:
        gained = np.full((2, len(some)), np.nan)
    return {
        f"{name}_order": (row / numbers[name][some]) @ by_ridge
        for name, row in zip(names, gained, strict=True)
    }
