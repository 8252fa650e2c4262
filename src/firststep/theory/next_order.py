r"""The unified theory with what the next order in 1/n changes in its errors [firststep, next order].

The changes, of `firststep.theory.potential`, are computed on a coarse rung at some points of a grid, and carried to the
others.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array
from firststep.gaussian.averages import UnsettledError
from firststep.numerics import fixedpoint
from firststep.results import Outcome
from firststep.setting import Problem, Sizes
from firststep.theory import unified
from firststep.theory.bars import BAR_JOINT, BAR_LEFT, BAR_ORDER, turned_variance, wide_bar_note
from firststep.theory.coefficients import (
    LARGEST_RATIO,
    Geometry,
    degrees_of,
    geometry_of,
    interpolation,
    lagrange,
    law_of,
    spike_strength,
    tables_from,
)
from firststep.theory.equations import answer_at, errors_at, first_guess, reached_points
from firststep.theory.joins import SMALLEST_STEP, TRAIN, start_share
from firststep.theory.joint import applies
from firststep.theory.joint import changes as joint_changes
from firststep.theory.ladder import (
    CHUNK,
    COARSE_SPIKE,
    LADDER,
    Way,
    leading,
)
from firststep.theory.learned import share_bars
from firststep.theory.own_component import knows_own
from firststep.theory.potential import changes_at
from firststep.theory.sectors import degree_shares

ERRORS = ("train_error", "test_error")
# Sizes beyond which the next order is below what the ladder of resolutions leaves.
LARGEST = 1e8
# Distance of nodes in log(1 + eta), and the largest in log(lambda), between which changes are interpolated, and by how
# many.
GAPS, NODES = (0.5, 2.0), 4
# Relative changes from which on they are left out.
LARGEST_CHANGE = 1.0
# Nodes with less weight than this are left out.
LEAST_WEIGHT = 1e-9
# The rung of the ladder that is coarse and yet fine enough for large steps; relative residual of the equations.
RUNG, RESIDUAL = 2, 1e-7
# Degrees with sectors of their own, the second from this share of it on: at d = 40 the third moves no change by more
# than 1e-4 of the error, and below that share the second few by more than a twentieth of itself.
DEGREES, SECOND = 2, 0.01


def changes(problem: Problem, sizes: Sizes, steps: Array, ridges: Array, way: Way) -> Array:
    r"""Relative changes of the train and the test error, (2, S, R), on a grid of step sizes and ridges.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.3)
    >>> for n in (200, 800):
    ...     found = changes(problem, Sizes(n, n // 2, n), np.array([4.0]), np.array([0.1]), Way("structured", 1))
    ...     print(found.ravel().round(4))
    [-0.0091  0.0069]
    [-0.0025  0.0012]
    """
    found = np.zeros((2, len(steps), len(ridges)))
    if min(sizes.n_samples, sizes.width, sizes.n_step_samples) > LARGEST or problem.label_variance == 0:
        return found
    # Steps tend to none, but with an initial output of order one, which plays no part without a step.
    moved = (steps > 0) | (not problem.output_law.order_one)
    for mask, here in ((~moved, problem.without_step()), (moved, problem)):
        if mask.any():
            found[:, mask] = _on_grid(here, sizes, steps[mask], ridges, way, _at_points)
    return found


def solve(
    problem: Problem,
    sizes: Sizes,
    step_sizes: Array,
    ridges: Array,
    *,
    rest: str = "structured",
    degrees: int | None = None,
    tolerance: float | None = None,
) -> Outcome:
    r"""Errors of the unified theory with four terms of the next order in 1/n [firststep, next order].

    Parameters
    ----------
    problem, sizes, step_sizes, ridges, rest, degrees, tolerance
        As of the unified theory (:func:`firststep.theory.unified.solve`). With `degrees` it is the leading order alone:
        a theory that is asked for by its degree leaves out terms of order 1/n as it stands.

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
    10.85, +0.023 of it by the next order
    """
    if degrees is not None:
        return unified.solve(
            problem, sizes, step_sizes, ridges, rest=rest, degrees=degrees, tolerance=tolerance
        )
    found = unified.solve(problem, sizes, step_sizes, ridges, rest=rest, tolerance=tolerance)
    # A draft is drawn without a neuron's own component.
    way = Way(rest, found.details["degrees"], own=tolerance != math.inf)
    return completed(found, way, _law_points)


def completed(found: Outcome, way: Way, law_points: "Points", ordered: Problem | None = None) -> Outcome:
    """A leading order with the joint law of a covariance and M, from its changes at a list of points, and the next.

    That is the next order of another problem, if one is given.
    """
    problem, sizes, step_sizes, ridges = found.problem, found.sizes, found.step_sizes, found.ridges
    share = start_share(problem, sizes, step_sizes)
    ahead = [0.0, SMALLEST_STEP] if share.any() else [0.0]
    steps = np.concatenate([ahead, step_sizes])

    def joined(change: Array) -> tuple[Array, Array]:
        """Changes without a step and with steps; small ones with an output of order one join no step."""
        still, start, moved = np.split(np.nan_to_num(change), [1, len(ahead)], axis=1)
        return still, moved + left[:, None] * (still - start) if share.any() else moved

    # No step has its own.
    left = np.where(np.asarray(step_sizes) > 0, share, 0.0)
    law = law_changes(problem, sizes, steps, ridges, way, law_points)
    order = changes(ordered or problem, sizes, steps, ridges, way)
    missing = missing_note(np.isnan(order)) + missing_note(np.isnan(law), "the joint law of the covariance")
    still, moved = joined(order)
    law = joined(law)[1]
    known = turned(problem, found.values, law, turned_variance(problem, sizes, step_sizes))
    values, order = changed(problem, known, moved)
    gains = [name.replace("error", "gain") for name in ERRORS]
    before = [found[name][:1] + found[gain][:1] for name, gain in zip(ERRORS, gains, strict=True)]
    unmoved = applied(problem, still, before[0], before[1])
    for i, name in enumerate(ERRORS):
        values[gains[i]] = before[i] * (1 + unmoved[i]) - values[name]
    shares = {name: part for name, part in values.items() if f"{name}_bar" in values and name not in ERRORS}
    values |= share_bars(shares, _relative(values))
    old, new = (wide_bar_note(sizes, _relative(each)) for each in (found.values, values))
    return replace(
        found,
        values=values,
        notes=(*(note for note in found.notes if note not in old), *new, *missing),
        details={**found.details, "next_order": order, "joint_law": law},
    )


def _relative(values: Mapping[str, Array]) -> Array:
    """The test error's bar over itself."""
    return np.asarray(values["test_error_bar"] / values["test_error"])


def missing_note(missing: Array, what: str = "the next order in 1/n") -> tuple[str, ...]:
    """A sentence if changes were not found somewhere; none if all were.

    Examples
    --------
    >>> missing_note(np.zeros((1, 1)))
    ()
    """
    return (f"{what} was not found everywhere and is left out there: raise ridge",) * bool(np.any(missing))


def changed(problem: Problem, values: Mapping[str, Array], order: Array) -> tuple[dict[str, Array], Array]:
    """Numbers of a grid with these relative changes of both errors, (2, S, R), and what was applied of them."""
    order = applied(problem, order, values["train_error"], values["test_error"])
    found = dict(values)
    for name in TRAIN:
        found[name] = values[name] * (1 + order[0])
    found["test_error"] = values["test_error"] * (1 + order[1])
    for name, change in zip(ERRORS, order, strict=True):
        left = np.where(order.any(axis=0), BAR_LEFT, 1.0) * values[f"{name}_bar"] / values[name]
        bar = np.hypot(left, BAR_ORDER * change)
        found[f"{name}_bar"] = bar * found[name]
    return found | _spread(values, found["test_error"]), order


def _spread(values: Mapping[str, Array], test_error: Array) -> dict[str, Array]:
    """What the fitted function spreads: it takes what the test error gains, all its degrees alike."""
    if "residual_spread" not in values:
        return {}
    spread, gained = values["residual_spread"], test_error - values["test_error"]
    grown = np.maximum(1 + np.divide(gained, spread, out=np.zeros_like(spread), where=spread > 0), 0.0)
    parts = [name for name in values if name.startswith("residual_spread_")]
    return {name: values[name] * grown for name in parts} | {"residual_spread": spread + gained}


def turned(problem: Problem, values: Mapping[str, Array], law: Array, noise_bar: Array) -> dict[str, Array]:
    """Numbers of a grid with relative changes of both errors, (2, S, R), that are of leading order.

    What M as noise adds to the squares of the bars, (S,), makes way for a share of the change.
    """
    if not law.any():
        return dict(values)
    found, noise = dict(values), problem.noise_variance
    for name in TRAIN:
        found[name] = values[name] * (1 + law[0])
    found["train_error"] = np.minimum(found["train_error"], problem.label_variance)
    found["test_error"] = np.maximum(
        values["test_error"] * (1 + law[1]), np.minimum(noise, values["test_error"])
    )
    for name, change in zip(ERRORS, law, strict=True):
        square = (values[f"{name}_bar"] / values[name]) ** 2
        left = np.maximum(square - noise_bar[:, None], 0.0)
        found[f"{name}_bar"] = np.sqrt(left + (BAR_JOINT * change) ** 2) * found[name]
    return found | _spread(values, found["test_error"])


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


def law_changes(
    problem: Problem, sizes: Sizes, steps: Array, ridges: Array, way: Way, points: "Points | None" = None
) -> Array:
    """Relative changes of both errors by the joint law of a covariance and the step, (2, S, R); none without a step."""
    points = points or _law_points
    found = np.zeros((2, len(steps), len(ridges)))
    moved = steps > 0
    if (
        not way.own
        or not moved.any()
        or min(sizes.n_samples, sizes.width, sizes.n_step_samples) > LARGEST
        or not applies(problem, sizes, way.rest)
    ):
        return found
    found[:, moved] = _on_grid(problem, sizes, steps[moved], ridges, way, points)
    return found


def _law_points(problem: Problem, sizes: Sizes, steps: Array, ridges: Array, way: Way) -> Array:
    """The same for a list of points, (2, B), NaN where it is not found."""
    return joint_changes(problem, sizes, steps, ridges, way.rest, way.highest)


Points = Callable[[Problem, Sizes, Array, Array, Way], Array]


def _on_grid(problem: Problem, sizes: Sizes, steps: Array, ridges: Array, way: Way, points: Points) -> Array:
    """Changes for steps of one problem, interpolated between nodes, from those of a list of points."""
    nodes, by_row = step_nodes(steps)
    if problem.output_law.order_one:
        nodes = np.maximum(nodes, SMALLEST_STEP)
    columns, by_column = carried(np.log(ridges), GAPS[1])
    pairs = np.meshgrid(nodes, ridges[columns], indexing="ij")
    values = points(problem, sizes, pairs[0].ravel(), pairs[1].ravel(), way)
    values = values.reshape(2, len(nodes), len(columns))
    return between(by_row, values, by_column)


def between(by_row: Array, values: Array, by_column: Array | None = None) -> Array:
    """Values (2, nodes, R) interpolated by these weights; what is missing spoils what comes from it, and no others."""
    by_column = np.eye(values.shape[2]) if by_column is None else by_column
    found = by_row.T @ np.nan_to_num(values) @ by_column
    spoilt = np.abs(by_row).T @ np.isnan(values) @ np.abs(by_column)
    return np.where(spoilt > LEAST_WEIGHT, np.nan, found)


def step_nodes(steps: Array) -> tuple[Array, Array]:
    """Step sizes at equal distances in log(1 + eta), and interpolation from these to others, (nodes, S).

    They do not depend on what else is asked for, so that a point has the same number on every grid; one node lies
    above each step at the most, but for the smallest.

    Examples
    --------
    >>> nodes, weights = step_nodes(np.array([0.0, 10.0]))
    >>> print(nodes.round(2), (weights.T @ np.log1p(nodes)).round(4), (weights > 0).sum(axis=0))
    [ 0.    1.72  3.48  6.39 11.18] [0.     2.3979] [1 3]
    """
    axis = np.log1p(steps) / GAPS[0]
    first = np.maximum(np.ceil(axis).astype(int) - (NODES - 1), 0)
    own = first[:, None] + np.arange(NODES)
    weights = np.zeros((int(first.max()) + NODES, len(steps)))
    weights[own, np.arange(len(steps))[:, None]] = lagrange(own.astype(float), axis)
    kept = (np.abs(weights) > LEAST_WEIGHT).any(axis=1)
    return np.expm1(GAPS[0] * np.flatnonzero(kept)), weights[kept]


def carried(axis: Array, gap: float) -> tuple[NDArray[np.intp], Array]:
    """Places of leading values of an axis, no further apart than `gap`, and interpolation from these to all."""
    known, first = np.unique(axis, return_index=True)
    lead = leading(known, gap)
    return first[lead], interpolation(known[lead], axis, NODES)


def _at_points(problem: Problem, sizes: Sizes, steps: Array, ridges: Array, way: Way) -> Array:
    """The same for a list of points, (2, B), NaN where it is not found."""
    found = np.full((2, len(steps)), np.nan)
    spike = spike_strength(problem, sizes, steps, way.rest)
    isotropic = problem.covariance(sizes.dim).isotropic
    taken = int(way.own and isotropic and knows_own(problem, sizes, way.highest, way.rest))
    highest = min(way.highest, DEGREES if degree_shares(sizes, 2)[1] > SECOND else 1)
    # Spikes that rounding would hide are too small to matter here, and very large ones are few.
    huge = spike * math.sqrt(sizes.width) > LARGEST_RATIO
    for branch in (huge, ~huge):
        group = np.flatnonzero(branch)
        if not len(group):
            continue
        degrees = degrees_of(float(spike[group].max()), sizes, COARSE_SPIKE) if branch is huge else 0
        geometry = geometry_of(problem, sizes, LADDER[RUNG], way.rest, degrees, highest)
        for low in range(0, len(group), CHUNK):
            part = group[low : low + CHUNK]
            try:
                found[:, part] = _changes(geometry, steps[part], ridges[part], way.rest, taken)
            except (np.linalg.LinAlgError, fixedpoint.ConvergenceError, UnsettledError):
                continue
    return found


def _changes(geometry: Geometry, steps: Array, ridges: Array, rest: str, taken: int) -> Array:
    """Relative changes of both errors for points of one geometry, (2, B), where so many directions are missing."""
    law = law_of(geometry, steps, rest)
    tables, start = tables_from(geometry, law), first_guess(geometry, ridges)
    values = reached_points(geometry, tables, ridges, start, RESIDUAL, fixedpoint.PLAIN_ROUNDS).value
    numbers = errors_at(answer_at(geometry, tables, values), ridges)
    gained = changes_at(geometry, law, tables, values, ridges, taken)
    found = gained / np.stack([numbers[name] for name in ERRORS])
    # Changes as large as the errors are none: a handful of neurons is too few for an expansion.
    return np.where((np.abs(found) < LARGEST_CHANGE).all(axis=0), found, np.nan)
