r"""Maps over samples and dimensions: the theory where it bends, polynomials between [firststep].

Every point has sizes of its own, and with them a law of M and nodes of its own, so that a solution costs some thirty
milliseconds. The errors are smooth functions of log n and log d, but for a few ridges of the landscape. So a coarse
grid is solved first; grids of half the spacing follow, on which those points alone are solved where polynomials through
the grid before may be off.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firststep.compute.parts import in_parts, run_parts
from firststep.gaussian import Array
from firststep.results.size_map import SizeMap
from firststep.setting import OutsideTheoryWarning, Problem, Sizes, check_whole, ridges_of, step_sizes_of
from firststep.setting.doors import door
from firststep.theory import predict
from firststep.theory.bars import wide_bar_note
from firststep.theory.coefficients import interpolation
from firststep.theory.ladder import ERRORS
from firststep.theory.scope import check_ratios, check_scope

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# What a map has of each point: the errors, what else the fit has, gains, bars.
NAMES = (
    *ERRORS,
    "train_mse",
    "readout_norm_squared",
    "degrees_of_freedom",
    "train_gain",
    "test_gain",
    "train_error_bar",
    "test_error_bar",
)
# Intervals of the coarsest grid, at least, in each direction.
COARSEST = 12
# Nodes of a polynomial in each direction, and how much less it misses with half the spacing: a smooth function's
# sixteenth, less near a corner or a jump.
NODES, GAIN = 4, 4.0
# Relative error of the interpolation that is aimed at; each solution's own is this much smaller.
MAP_TOLERANCE, OWN_SHARE = 1e-3, 0.1
# Sizes that one task solves.
BUNDLE = 8

Pairs = list[tuple[int, int]]


@door
def predict_map(
    problem: Problem,
    *,
    n_samples: ArrayLike,
    dims: ArrayLike,
    width: ArrayLike,
    n_step_samples: ArrayLike | None = None,
    step_size: float | None = None,
    step_exponent: float | None = None,
    ridge: float = 0.1,
    tolerance: float = MAP_TOLERANCE,
    workers: int | None = None,
    progress: bool | Callable[[int, int], object] | None = None,
) -> SizeMap:
    r"""Errors by the unified theory for every number of samples and every dimension.

    A map over step sizes and ridges is one call of :func:`firststep.predict`.

    Parameters
    ----------
    problem : Problem
        What is studied.
    n_samples, dims : array_like (A,), (B,)
        n and d, rising whole numbers.
    width : array_like
        N: one for all, or for each point, (A, B) or what broadcasts to that.
    n_step_samples : array_like, optional
        n0, likewise; by default n.
    step_size, step_exponent : float
        :math:`\eta` or :math:`\alpha`, :math:`\eta = n_0^\alpha`; give one.
    ridge : float
        :math:`\lambda`.
    tolerance : float
        Relative error of both errors that is aimed at where points are interpolated. With 0 every point is solved, for
        some thirty milliseconds each, a tenth of a second and more in few dimensions.
    workers : int, optional
        Processes; by default all cores. The numbers do not depend on it.
    progress : bool or callable, optional
        A bar on standard error that counts solved points, whose total grows while the map is refined; by default on a
        terminal. A function is called with the points solved and their total.

    Returns
    -------
    SizeMap

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> found = predict_map(problem, n_samples=[500, 1000], dims=[200, 400], width=750, step_exponent=0.3)
    >>> found.test_error.round(3).tolist()
    [[1.783, 2.219], [1.36, 1.72]]
    """
    samples, dimensions = _whole("n_samples", n_samples), _whole("dims", dims)
    values, shape = (samples, dimensions), (len(samples), len(dimensions))
    table = _sizes(
        samples, dimensions, _spread("width", width, shape), _steps(n_step_samples, samples, shape)
    )
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance must be zero or positive, got {tolerance}")
    if np.size(ridge) != 1 or max(np.size(step_size or 0), np.size(step_exponent or 0)) != 1:
        raise ValueError("a map has one step size, or exponent, and one ridge: call predict_map for each")
    if workers is not None:
        check_whole("workers", workers, 1)
    check_scope(problem, "unified")
    lam = float(ridges_of(ridge)[0])
    steps = np.array([[step_sizes_of(one, step_size, step_exponent)[0] for one in row] for row in table])
    for concern in problem.concerns(None):
        warnings.warn(concern, OutsideTheoryWarning, stacklevel=3)

    def solve(pairs: Pairs) -> Array:
        """Names and the theory's own relative error at some points, (points, names + 1)."""
        bundles = [pairs[low : low + BUNDLE] for low in range(0, len(pairs), BUNDLE)]
        tasks = [
            (problem, [table[i][j] for i, j in some], [float(steps[i, j]) for i, j in some], lam, tolerance)
            for some in bundles
        ]
        found = np.concatenate(run_parts(_answers, tasks, len(pairs)))
        found[:, : len(ERRORS)] = np.log(found[:, : len(ERRORS)])
        return found

    with in_parts(workers, progress, "sizes", shape[0] * shape[1]):
        found = refined([np.log(axis) for axis in values], solve, tolerance)
    error = np.maximum(found.error, found.values[..., -1])
    named = {name: found.values[..., k] for k, name in enumerate(NAMES)}
    named |= {name: np.exp(named[name]) for name in ERRORS}
    widths, step_samples = (
        np.array([[getattr(one, name) for one in row] for row in table])
        for name in ("width", "n_step_samples")
    )
    bars = named["test_error_bar"] / named["test_error"]
    worst = np.unravel_index(int(bars.argmax()), shape)
    wide = wide_bar_note(table[worst[0]][worst[1]], bars)
    notes = (*problem.concerns(None), *_remarks(error, tolerance, values), *wide)
    return SizeMap(
        problem, samples, dimensions, widths, step_samples, steps, lam, named, found.solved, error, notes
    )


def _whole(name: str, given: ArrayLike) -> Array:
    """Rising whole numbers of an axis."""
    values = np.atleast_1d(np.asarray(given))
    if values.ndim != 1 or not values.size or values.dtype.kind not in "iuf" or (values % 1 != 0).any():
        raise ValueError(f"{name} must be a list of whole numbers, got {given!r}")
    if values[0] < 1 or (np.diff(values) <= 0).any():
        raise ValueError(f"{name} must be positive and rise, got {values.tolist()}")
    return np.asarray(values.astype(float))


def _spread(name: str, given: ArrayLike, shape: tuple[int, int]) -> Array:
    """One number for each point."""
    try:
        return np.broadcast_to(np.asarray(given), shape)
    except ValueError:
        raise ValueError(
            f"{name} must be one number or broadcast to n_samples x dims, {shape}; got shape {np.shape(given)}"
        ) from None


def _steps(given: ArrayLike | None, n_samples: Array, shape: tuple[int, int]) -> Array:
    """n0 of each point."""
    return _spread("n_step_samples", n_samples[:, None] if given is None else given, shape)


def _sizes(n_samples: Array, dims: Array, widths: Array, step_samples: Array) -> list[list[Sizes]]:
    """The sizes of each point, checked."""
    table = [
        [Sizes(int(n), int(d), widths[i, j], step_samples[i, j]) for j, d in enumerate(dims)]
        for i, n in enumerate(n_samples)
    ]
    for row in table:
        for one in row:
            check_ratios(one)
    return table


def _answers(
    problem: Problem, every: Sequence[Sizes], steps: Sequence[float], ridge: float, tolerance: float
) -> Array:
    """`NAMES` and the relative error of the theory at some sizes."""
    own = OWN_SHARE * tolerance or None
    rows = []
    for sizes, step in zip(every, steps, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutsideTheoryWarning)
            try:
                found = predict(problem, sizes, step, ridge, tolerance=own, workers=1, progress=False)
            except RuntimeError as error:
                error.args = (f"{sizes}: {error}", *error.args[1:])
                raise
        reached = found.details.get("relative_error", np.zeros(1))
        rows.append([*(float(np.ravel(found.values[name])[0]) for name in NAMES), float(np.max(reached))])
    return np.array(rows)


def _remarks(error: Array, tolerance: float, axes: Sequence[Array]) -> tuple[str, ...]:
    """A sentence on points that are less accurate than asked for."""
    if not error.max() > max(tolerance, OWN_SHARE * MAP_TOLERANCE):
        return ()
    i, j = np.unravel_index(int(error.argmax()), error.shape)
    place = f"n_samples={axes[0][i]:.0f}, dim={axes[1][j]:.0f}"
    return (f"errors are accurate to {error.max():.0e}, at {place}, and not to {tolerance:.0e}",)


@dataclass(frozen=True)
class Refined:
    """A table of which some points were solved: their values, and how far off the others may be."""

    values: Array  # (A, B, V)
    solved: NDArray[np.bool_]  # (A, B)
    error: Array  # (A, B), none where it was solved


def refined(axes: Sequence[Array], solve: Callable[[Pairs], Array], tolerance: float) -> Refined:
    """Values (A, B, V) on a grid, from as few points as it takes to know the first two of them to a tolerance.

    What polynomials missed at the points of one grid says what they may miss on the next, of half the spacing.

    Examples
    --------
    >>> axes, asked = [np.linspace(0, 1, 65)] * 2, []
    >>> def solve(pairs):
    ...     asked.extend(pairs)
    ...     return np.array([[np.exp(axes[0][i]), axes[1][j] ** 2] for i, j in pairs])
    >>> found = refined(axes, solve, 1e-3)
    >>> len(asked), bool(np.abs(found.values[..., 0] - np.exp(axes[0])[:, None]).max() < 1e-5)
    (289, True)
    """
    shape = len(axes[0]), len(axes[1])
    spacing = 1
    while min(shape) > 2 * spacing * COARSEST:
        spacing *= 2
    chosen = [_every(size, spacing) for size in shape]
    pairs = [(int(i), int(j)) for i in chosen[0] for j in chosen[1]]
    values = solve(pairs).reshape(len(chosen[0]), len(chosen[1]), -1)
    solved = np.ones(values.shape[:2], dtype=bool)
    error = np.zeros(values.shape[:2])
    missed = _first_misses(axes, chosen, values) if spacing > 1 else error
    while spacing > 1:
        spacing //= 2
        finer = [_every(size, spacing) for size in shape]
        known = [np.isin(new, old) for new, old in zip(finer, chosen, strict=True)]
        old = np.ix_(*known)
        guess = _carried(axes, chosen, finer, values)
        guess[old] = values
        was, before = np.zeros(guess.shape[:2], dtype=bool), np.zeros(guess.shape[:2])
        was[old], before[old] = solved, missed
        expected = _widest(before) / GAIN
        wanted = ~np.logical_and.outer(*known) & ~(expected <= tolerance)
        found = _solved(solve, finer, wanted, guess)
        here = np.where(wanted, _difference(found, guess), expected)
        off, left = np.where(was | wanted, 0.0, here), here.copy()
        off[old], left[old] = error, 0.0
        # The points of the grid before were not missed on this one: their new neighbours were.
        values, solved, chosen, error = found, was | wanted, finer, off
        missed = np.where(np.logical_and.outer(*known), _widest(left), here)
    return Refined(values, solved, error)


def _every(size: int, spacing: int) -> NDArray[np.intp]:
    """Every so many places, and the last one."""
    return np.unique(np.append(np.arange(0, size, spacing), size - 1))


def _solved(
    solve: Callable[[Pairs], Array],
    chosen: Sequence[NDArray[np.intp]],
    wanted: NDArray[np.bool_],
    guess: Array,
) -> Array:
    """A guess with the wanted points solved."""
    found = guess.copy()
    if wanted.any():
        found[wanted] = solve([(int(chosen[0][i]), int(chosen[1][j])) for i, j in np.argwhere(wanted)])
    return found


def _carried(
    axes: Sequence[Array], old: Sequence[NDArray[np.intp]], new: Sequence[NDArray[np.intp]], values: Array
) -> Array:
    """Values on a finer grid by polynomials in both directions."""
    first, second = (
        interpolation(axis[before], axis[after], NODES)
        for axis, before, after in zip(axes, old, new, strict=True)
    )
    return np.asarray(np.einsum("ia,ijv,jb->abv", first, values, second, optimize=True))


def _difference(found: Array, guess: Array) -> Array:
    """Largest difference of the first two values."""
    return np.asarray(np.abs(guess - found)[..., : len(ERRORS)].max(axis=-1))


def _first_misses(axes: Sequence[Array], chosen: Sequence[NDArray[np.intp]], values: Array) -> Array:
    """What polynomials through every other point of the coarsest grid miss at all others, and around all points."""
    kept = [_every(len(places), 2) for places in chosen]
    before = [places[some] for places, some in zip(chosen, kept, strict=True)]
    guess = _carried(axes, before, chosen, values[np.ix_(*kept)])
    return _widest(_difference(values, guess))


def _widest(missed: Array) -> Array:
    """The largest among each point's neighbours, itself and those of the coarser grid around it."""
    padded = np.pad(missed, 1)
    rows, columns = missed.shape
    around = [padded[i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    return np.asarray(np.max(around, axis=0))
