r"""One theory for every step size: conditional Gaussian equivalence at finite size [firststep, unified].

The derivation is in the docs (*One theory for every step size*); the neurons' coefficients are in
`firststep.theory.coefficients`, the self-consistent equations in `firststep.theory.equations`, the resolutions at which
they are solved in `firststep.theory.ladder`. Here errors, their bars, their derivatives and optima are read off.
"""

import math
from dataclasses import dataclass, replace
from importlib import import_module
from typing import cast

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array
from firststep.numerics import fixedpoint
from firststep.results import Outcome
from firststep.setting import NEGLIGIBLE, Problem, Sizes
from firststep.theory.bars import (
    BAR_DEGREES,
    BAR_LOOKS,
    BAR_READOUT,
    BAR_SPECIAL,
    BAR_SPIKE,
    BAR_TAILS,
    readout_scatter,
    relative_change,
    size_variance,
    small_error_variance,
    spectrum_variance,
    turned_variance,
    wide_bar_note,
)
from firststep.theory.coefficients import (
    LEARNED,
    degrees_of,
    geometry_of,
    is_polynomial,
    row_stretch,
    special_share,
    spike_strength,
    tables_of,
)
from firststep.theory.equations import answer_at, solve_points
from firststep.theory.joins import SMALLEST_STEP, joined, start_share
from firststep.theory.label_law import label_moments
from firststep.theory.ladder import (
    FITTED,
    LADDER,
    RESIDUAL,
    RESTS,
    TOLERANCE,
    Points,
    Way,
    aim,
    errors_of,
    solve_all,
    solve_level,
)
from firststep.theory.learned import share_bars
from firststep.theory.own_component import knows_own
from firststep.theory.sectors import chosen_degree, degree_shares, highest_degree

# Hermite degrees of the teacher whose residuals are told.
DEGREES = 14
# Hermite degrees of the learned function whose shares are told.
SHARES = 4


def _settled(
    problem: Problem, sizes: Sizes, steps: Array, ridges: Array, way: Way, tolerance: float | None
) -> Points:
    """All points; those of no step and those of steps, each without neurons' own components if they do not settle."""
    try:
        return solve_all(problem, sizes, steps, ridges, way, tolerance)
    except fixedpoint.ConvergenceError:
        if not knows_own(problem, sizes, way.highest, way.rest):
            raise
    plain = replace(way, own=False)
    if (steps == 0).all() or (steps > 0).all():
        return solve_all(problem, sizes, steps, ridges, plain, tolerance)
    places = [np.flatnonzero(steps == 0), np.flatnonzero(steps > 0)]
    parts = [_settled(problem, sizes, steps[part], ridges[part], way, tolerance) for part in places]
    return Points.joined(places, parts)


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
    r"""Errors at finite size for every step size from 0 to about :math:`\sqrt N` [firststep, unified].

    Parameters
    ----------
    problem, sizes
        What is studied; any n, up to 1e30.
    step_sizes : ndarray (S,)
        eta.
    ridges : ndarray (R,)
        lambda.
    rest : {"structured", "noise", "none"}
        What becomes of the gradient beyond its rank-one spike: its part linear in the weights is kept (default), all of
        it is taken as independent noise, or it is dropped, which is the model behind the staircase of [Moniri24]_.
    degrees : int, optional
        P, the highest Hermite degree of the features that is more than noise; by default as many as samples and neurons
        resolve. 1 is the theory of proportional sizes.
    tolerance : float, optional
        Relative change of the errors under refinement that is accepted. By default 1e-6 is aimed at, up to 5e-2 is let
        pass with a note and counted in the error bar, and more is an error. Infinity asks for one resolution alone,
        unchecked and without a neuron's own component: for a draft.

    Returns
    -------
    Outcome
        Besides the errors: `residual_degree_0` … `residual_degree_13`, what remains in the test error of each Hermite
        degree of the teacher, `residual_higher` for all degrees above, and `residual_spread`, the variance of the
        fitted function that is no function of beta·x. Their sum and the noise make the test error. Of the spread,
        `residual_spread_degree_1` … is what the typical directions of each degree's sector add, up to P, and
        `residual_spread_higher` all beyond; what the step's own directions add is not among them. `learned_t1`,
        `learned_h2t1` … are the shares of the teacher's coefficients that the fit has: 0 for nothing, 1 for all.
        Their bars are the test error's, relative to the larger of what is learned and what is missing. Where step sizes
        or ridges are dense some points are solved and tell the others: `details["interpolated"]` says which.

    Examples
    --------
    >>> import numpy as np
    >>> setting = Problem("relu", "h1 + h2/sqrt(2)", rows="sphere")
    >>> outcome = solve(setting, Sizes(1000, 500, 750), np.array([7.943]), np.array([0.1]), rest="noise", degrees=1)
    >>> print(f"{outcome.train_error[0, 0]:.4f} {outcome.test_error[0, 0]:.4f}")
    0.6898 1.5168
    """
    if rest not in RESTS:
        raise ValueError(f"rest must be one of {', '.join(RESTS)}; got {rest!r}")
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    shape = (len(step_sizes), len(ridges))
    # The theory of proportional sizes, asked for by its degree, leaves out terms of order 1/d as it stands.
    share = start_share(problem, sizes, step_sizes) if degrees is None else np.zeros(len(step_sizes))
    # The untrained network comes along: gains are differences to it. So does a step that moves nothing, if it is to
    # join the untrained network: on the same nodes as the others.
    ahead = [0.0] + [SMALLEST_STEP] * bool(share.any())
    steps = np.concatenate([ahead, step_sizes])
    flat_steps, flat_ridges = (m.ravel() for m in np.meshgrid(steps, ridges, indexing="ij"))
    way = Way(rest, chosen_degree(sizes, degrees))
    points = _settled(problem, sizes, flat_steps, flat_ridges, way, tolerance)
    still, start, moved = np.split(points.numbers.reshape(len(steps), len(ridges)), [1, len(ahead)])
    moved = _joined(problem, still[0], start[0], moved, share) if share.any() else moved
    shares = _learned_shares(problem, moved["learned"])
    values = _values(problem, still, moved) | shares | _scatter_parts(moved["scatter"], way.highest)
    bars = finite_size_bars(problem, sizes, flat_steps, flat_ridges, way, errors_of(points.numbers))
    unsettled = np.where(np.isfinite(points.error), points.error, 0.0)
    train, test = (np.hypot(bar, unsettled).reshape(len(steps), -1)[len(ahead) :] for bar in bars)
    values |= share_bars(shares, test)
    values |= {
        "train_error_bar": train * values["train_error"],
        "test_error_bar": test * values["test_error"],
    }
    values |= _direction(problem, sizes)
    error, level, told = (part.reshape(len(steps), -1)[len(ahead) :] for part in points.ways)
    aimed = tolerance or aim(knows_own(problem, sizes, way.highest, rest))
    return Outcome(
        problem,
        sizes,
        step_sizes,
        ridges,
        "unified",
        {name: np.broadcast_to(value, shape) if value.ndim == 2 else value for name, value in values.items()},
        notes=_remarks(sizes, step_sizes, error, aimed, test),
        details={
            "rest": rest,
            "degrees": way.highest,
            "tolerance": aimed,
            "relative_error": error,
            "interpolated": told,
            "resolution": [[LADDER[i] for i in row] for row in level],
            "iterations": points.iterations,
            "residual": points.residual,
            "learned": moved["learned"],
            "learned_given_z": moved["learned_given_z"],
        },
    )


def _values(problem: Problem, still: NDArray[np.void], moved: NDArray[np.void]) -> dict[str, Array]:
    """Errors, what else the fit has, gains over no step, and what is left of each degree of the teacher."""
    values = {name: moved[name] for name in FITTED}
    values |= {f"{k}_gain": still[f"{k}_error"] - moved[f"{k}_error"] for k in ("train", "test")}
    return values | _split(problem, values["test_error"], moved["learned"])


def _joined(
    problem: Problem,
    still: NDArray[np.void],
    start: NDArray[np.void],
    moved: NDArray[np.void],
    share: Array,
) -> NDArray[np.void]:
    """Numbers after a step, (S, R), that join those of no step, the fitted function's spread with the test error."""
    found = moved.copy()
    for name, values in joined(problem, still, start, moved, share).items():
        found[name] = values
    spread = _split(problem, moved["test_error"], moved["learned"])["residual_spread"]
    change = found["test_error"] - moved["test_error"]
    change = np.divide(change, spread, out=np.zeros_like(spread), where=spread > 0)
    found["scatter"] *= np.maximum(1 + change, 0.0)[..., None]
    return found


def _direction(problem: Problem, sizes: Sizes) -> dict[str, Array]:
    """Length of the step's direction, and its squared cosine with the teacher's."""
    norm_squared = problem.direction_norm_squared(sizes)
    alignment = float(problem.teacher.hermite(2)[1]) ** 2 / norm_squared
    return {"direction_norm": np.array(math.sqrt(norm_squared)), "alignment": np.array(alignment)}


def finite_size_bars(
    problem: Problem, sizes: Sizes, steps: Array, ridges: Array, way: Way, errors: Array
) -> tuple[Array, Array]:
    r"""Relative half-widths of both errors: what the next order would change [firststep, degrees, eq. 9].

    .. math:: \Big(\frac{a}{\min(n, N, n_0)}\Big)^2 + \Big(\frac{b}{d}\Big)^2
        + \Big(\frac{c_0 + c_1\omega}{d}\,\frac{L_P - L_1}{\max(L_P, L_1)}\Big)^2
        + \Big(e\,\frac{\min(n, N)}{D_{P+1}}\Big)^2
        + \Big(f\,\frac{E y^4}{n_0 (E y^2)^2}\Big)^2 + h^2\epsilon^2 + \omega^2\tau^2
        + \Big(\frac{k}{\min(n, N, n_0)}\Big(\frac{E y^2}{L} - 4\Big)_+\Big)^2
        + \Big(\frac{l}{d}\int m^2\,\mathrm d\mu\Big)^2 + (p\,\tau)^2

    L_P is the error with P degrees, omega the spike, epsilon what a row has along one special direction beyond 1/d, tau
    the scatter of the readout's moments (`readout_scatter`); the last two terms are of inputs with a covariance alone,
    p tau that of `turned_variance`. The numbers a … p are empirical.
    """
    moments = label_moments(problem.teacher, problem.noise_variance)
    kurtosis = float(moments.second[-1, -1]) / moments.square**2 if moments.square > 0 else 0.0
    tails = (BAR_TAILS * kurtosis / sizes.n_step_samples) ** 2
    common = size_variance(sizes, way.highest) + tails * (steps > 0)
    common = common + small_error_variance(problem, sizes, errors[:, 1]) + spectrum_variance(problem, sizes)
    change = np.zeros_like(errors)
    if way.highest > 1 and degree_shares(sizes, 2)[1] > BAR_LOOKS:
        try:
            first = errors_of(solve_all(problem, sizes, steps, ridges, Way(way.rest, 1), math.inf).numbers)
            change = relative_change(first, errors)
        except fixedpoint.ConvergenceError:
            change = np.ones_like(change)
    if way.rest == "structured":
        common = common + turned_variance(problem, sizes, steps)
    distinct, index = np.unique(steps, return_inverse=True)
    geometry = geometry_of(problem, sizes, LADDER[0], way.rest, 0, 1)
    special = special_share(geometry, distinct, way.rest)[index]
    common = common + (BAR_SPECIAL * np.maximum(special - 1 / float(sizes.dim), 0.0)) ** 2
    # Without a step the initial output plays no part.
    spike = np.minimum(spike_strength(problem, sizes, steps, way.rest), 1.0) * (steps > 0)
    common = common + (BAR_READOUT * spike * readout_scatter(problem, sizes)) ** 2
    reach = (BAR_DEGREES + BAR_SPIKE * spike) / float(sizes.dim)
    train, test = (np.sqrt(common + (reach * change[:, i]) ** 2) for i in range(2))
    return train, test


def _remarks(sizes: Sizes, step_sizes: Array, error: Array, aimed: float, bars: Array) -> tuple[str, ...]:
    """Sentences on a resolution that was not reached, and on a bar that is wide."""
    notes: list[str] = []
    if error.max() > aimed:
        worst = step_sizes[int(error.max(axis=1).argmax())]
        notes.append(
            f"errors are stable to {error.max():.0e}, at step_size={worst:.4g}, and not to {aimed:.0e}"
        )
    return (*notes, *wide_bar_note(sizes, bars))


def _split(problem: Problem, test_error: Array, along: Array) -> dict[str, Array]:
    """What is left of each Hermite degree of the teacher in the test error [firststep, unified, eq. 20]."""
    if problem.teacher.directions > 1:
        return {"residual_spread": test_error - problem.noise_variance}
    degree = np.arange(LEARNED)
    wanted = problem.teacher.hermite(LEARNED) * np.sqrt([math.factorial(k) for k in degree])
    left = (wanted - along) ** 2
    parts = {f"residual_degree_{k}": left[..., k] for k in range(DEGREES)}
    parts["residual_higher"] = left[..., DEGREES:].sum(axis=-1) + problem.teacher.tail(LEARNED)
    parts["residual_spread"] = test_error - problem.noise_variance - sum(parts.values())
    return parts


def _learned_shares(problem: Problem, along: Array) -> dict[str, Array]:
    """Of each of the teacher's first Hermite coefficients the share that the fitted function has."""
    if problem.teacher.directions > 1:
        return {}
    wanted = problem.teacher.hermite(SHARES + 1) * np.sqrt([math.factorial(k) for k in range(SHARES + 1)])
    names = {k: "t1" if k == 1 else f"h{k}t1" for k in range(1, SHARES + 1) if abs(wanted[k]) > NEGLIGIBLE}
    return {f"learned_{name}": along[..., k] / wanted[k] for k, name in names.items()}


def _scatter_parts(scatter: Array, highest: int) -> dict[str, Array]:
    """The spread of the fitted function by the degree of the sector it is in [firststep, degrees, eq. 10]."""
    parts = {f"residual_spread_degree_{p}": scatter[..., p - 1] for p in range(1, highest + 1)}
    return parts | {"residual_spread_higher": scatter[..., highest]}


def ridge_slopes(
    problem: Problem,
    sizes: Sizes,
    step_size: float,
    ridge: float,
    *,
    rest: str = "structured",
    tolerance: float | None = None,
) -> tuple[float, float]:
    r"""Exact derivatives of the train and test error with respect to the ridge.

    The train error's is :math:`q + \lambda q'`; the test error's is read off the imaginary part of the whole solution
    at :math:`\lambda(1 + i h)` with h so small that nothing is truncated. No differences are formed.

    Examples
    --------
    >>> setting, sizes = Problem("tanh", "identity", noise_std=0.5), Sizes(400, 200, 300)
    >>> train, test = ridge_slopes(setting, sizes, step_size=2.0, ridge=0.1)
    >>> print(f"{train:.3f} {test:.3f}")
    1.159 0.042
    """
    steps, ridges = np.array([float(step_size)]), np.array([float(ridge)])
    if step_size == 0:
        problem = problem.replaced(initial_output="vanishing")
    way = Way(rest, highest_degree(sizes))
    points = solve_all(problem, sizes, steps, ridges, way, tolerance)
    spike = spike_strength(problem, sizes, steps, rest)
    own = knows_own(problem, sizes, way.highest, rest)
    polynomial = bool(is_polynomial(spike, sizes, row_stretch(problem, sizes, steps, rest))[0]) and not own
    degrees = degrees_of(float(spike[0]), sizes) if polynomial else 0
    resolution = LADDER[int(points.level[0])]
    geometry = geometry_of(problem, sizes, resolution, rest, degrees, way.highest, own)
    level = solve_level(geometry, rest, steps, ridges, None)
    tables = tables_of(geometry, steps, rest)
    tilted = ridges * (1 + 1j * COMPLEX_STEP)
    start = level.values.astype(complex)
    found = solve_points(geometry, tables, tilted, start, RESIDUAL, 0)
    answer = answer_at(geometry, tables, found.value)
    slope = answer.q.real + ridges * answer.slope.real
    return float(slope[0]), float(answer.test_error.imag[0] / (ridge * COMPLEX_STEP))


# Squares of this vanish against 1 in double precision, so the imaginary part is the derivative itself.
COMPLEX_STEP = 1e-25
# Where the best ridge and step are looked for.
RIDGE_RANGE = (1e-8, 1e4)
LARGEST_STEP = 3.0
# Rounds of local search for the best step.
PATCHES = 5
# Rounds of search for the best ridge with the next order, and where at first, in log(lambda), around that without it.
RIDGE_ROUNDS, RIDGE_PATCH = 3, np.linspace(-0.8, 0.8, 5)
# The theory of a loud direction; tolerances above this are those of drafts; ridges at which its valley is looked at.
LOUD, DRAWN, LOUD_RIDGES = "firststep.theory.loud", 1e-4, 7
LOUD_JOINT = "firststep.theory.loud_joint"
# This theory with the next order in 1/n.
ORDERED = "firststep.theory.next_order"


@dataclass(frozen=True)
class Optimum:
    """Where the predicted test error is smallest.

    Attributes
    ----------
    step_size, ridge : float
        eta and lambda.
    test_error, train_error : float
        Predicted there, with the next order in 1/n as everywhere.
    note : str
        Empty, or a sentence when the optimum lies at the end of the range that was searched.
    """

    step_size: float
    ridge: float
    test_error: float
    train_error: float
    note: str = ""


def is_loud(problem: Problem, sizes: Sizes, rest: str) -> bool:
    """Whether the theory of a loud direction is the one to take."""
    return rest == "structured" and bool(import_module(LOUD).is_loud_to_errors(problem, sizes))


def outcome(
    problem: Problem, sizes: Sizes, steps: Array, ridges: Array, rest: str, tolerance: float | None
) -> Outcome:
    """Errors by this theory, or by that of a loud direction where there is one, which knows a draft alone."""
    if is_loud(problem, sizes, rest):
        draft = tolerance is not None and tolerance > DRAWN
        return cast(Outcome, import_module(LOUD).solve(problem, sizes, steps, ridges, draft=draft))
    return solve(problem, sizes, steps, ridges, rest=rest, tolerance=tolerance)


def _ordered(
    problem: Problem, sizes: Sizes, steps: Array, ridges: Array, rest: str, tolerance: float | None
) -> Outcome:
    """The same with the next order in 1/n, or with the joint law beside a loud direction."""
    if is_loud(problem, sizes, rest):
        draft = tolerance is not None and tolerance > DRAWN
        return cast(Outcome, import_module(LOUD_JOINT).solve(problem, sizes, steps, ridges, draft=draft))
    found = import_module(ORDERED).solve(problem, sizes, steps, ridges, rest=rest, tolerance=tolerance)
    return cast(Outcome, found)


def best_ridge(
    problem: Problem,
    sizes: Sizes,
    step_size: float,
    *,
    rest: str = "structured",
    tolerance: float | None = None,
) -> Optimum:
    """Ridge with the smallest predicted test error at this step size.

    A scan over twelve decades finds the lowest valley, the exact derivative its bottom in the leading order, parabolas
    where that moves with the next order in 1/n.

    Examples
    --------
    >>> best = best_ridge(Problem("tanh", "identity", noise_std=0.5), Sizes(400, 200, 300), step_size=2.0)
    >>> print(f"{best.ridge:.3f} {best.test_error:.4f}")
    0.093 0.5161
    """
    grid = np.geomspace(*RIDGE_RANGE, 25)
    scan = outcome(problem, sizes, np.array([float(step_size)]), grid, rest, 1e-3)
    lowest = int(np.argmin(scan.test_error[0]))
    note, ridge = "", float(grid[lowest])
    if 0 < lowest < len(grid) - 1:
        ends = float(grid[lowest - 1]), float(grid[lowest + 1])
        ridge = _bottom(problem, sizes, step_size, ends, rest, tolerance)
    else:
        side = "smaller" if lowest == 0 else "larger"
        note = (
            f"the test error still falls at the end of the range {RIDGE_RANGE[0]:g} … {RIDGE_RANGE[1]:g}: "
            f"a {side} ridge may be better"
        )
    return _optimum(problem, sizes, step_size, ridge, rest, tolerance, note)


def _bottom(
    problem: Problem,
    sizes: Sizes,
    step_size: float,
    ends: tuple[float, float],
    rest: str,
    tolerance: float | None,
) -> float:
    """Ridge between the ends where the test error is smallest, or the lower of the two ends."""
    from scipy.optimize import brentq

    if is_loud(problem, sizes, rest):
        # Without a derivative: a parabola through the lowest of a few points.
        grid = np.linspace(math.log(ends[0]), math.log(ends[1]), LOUD_RIDGES)
        errors = outcome(problem, sizes, np.array([step_size]), np.exp(grid), rest, tolerance).test_error[0]
        return math.exp(_lowest(grid, errors))

    def slope(log_ridge: float) -> float:
        here = math.exp(log_ridge)
        return here * ridge_slopes(problem, sizes, step_size, here, rest=rest, tolerance=tolerance)[1]

    low, high = math.log(ends[0]), math.log(ends[1])
    if slope(low) >= 0 or slope(high) <= 0:
        return math.exp(low if slope(low) >= 0 else high)
    centre, patch = float(brentq(slope, low, high, xtol=1e-6)), RIDGE_PATCH
    for _ in range(RIDGE_ROUNDS):
        grid = centre + patch
        errors = _ordered(problem, sizes, np.array([step_size]), np.exp(grid), rest, tolerance).test_error[0]
        centre = _lowest(grid, errors)
        patch = patch / 4 if 0 < errors.argmin() < len(grid) - 1 else patch
    return math.exp(centre)


def _lowest(grid: Array, errors: Array) -> float:
    """Bottom of the parabola through the smallest of some errors and its neighbours, no further than the next point."""
    at = min(max(int(errors.argmin()), 1), len(grid) - 2)
    a, b, _ = np.polyfit(grid[at - 1 : at + 2] - grid[at], errors[at - 1 : at + 2], 2)
    width = grid[1] - grid[0]
    return float(grid[at] + (np.clip(-b / (2 * a), -width, width) if a > 0 else 0.0))


def _optimum(
    problem: Problem,
    sizes: Sizes,
    step_size: float,
    ridge: float,
    rest: str,
    tolerance: float | None,
    note: str,
) -> Optimum:
    at = _ordered(problem, sizes, np.array([float(step_size)]), np.array([ridge]), rest, tolerance)
    return Optimum(float(step_size), ridge, float(at.test_error[0, 0]), float(at.train_error[0, 0]), note)


def best_step(
    problem: Problem, sizes: Sizes, *, rest: str = "structured", tolerance: float | None = None
) -> Optimum:
    r"""Step size and ridge that together have the smallest predicted test error, step sizes up to :math:`3\sqrt N`.

    Examples
    --------
    >>> best = best_step(Problem("tanh", "tanh(2*x)", noise_std=0.5), Sizes(400, 200, 300))
    >>> print(f"{best.step_size:.0f} {best.ridge:.2f} {best.test_error:.3f}")
    23 0.38 0.497
    """
    largest = LARGEST_STEP * math.sqrt(sizes.width)
    steps = np.concatenate([[0.0], np.geomspace(0.1, largest, 16)])
    grid = np.geomspace(1e-6, 1e2, 11)
    scan = outcome(problem, sizes, steps, grid, rest, 1e-3)
    row, column = np.unravel_index(int(np.argmin(scan.test_error)), scan.test_error.shape)
    still = best_ridge(problem, sizes, 0.0, rest=rest, tolerance=tolerance)
    unmoved = replace(
        still,
        note=still.note or "no step is best: the gradient step does not lower the predicted test error",
    )
    if row == 0:
        return unmoved
    # Parabolas through ever smaller patches: five by five points cost little more than one.
    centre = np.log([steps[row], grid[column]])
    width = np.log([steps[2] / steps[1], grid[1] / grid[0]])
    patch = np.linspace(-1, 1, 5)
    for _ in range(PATCHES):
        centre[0] = min(centre[0], math.log(largest) - width[0])
        here = [np.exp(centre[i] + width[i] * patch) for i in range(2)]
        errors = _ordered(problem, sizes, here[0], here[1], rest, 1e-5).test_error
        lowest = np.array(np.unravel_index(int(np.argmin(errors)), errors.shape))
        inside = bool(np.all((lowest > 0) & (lowest < len(patch) - 1)))
        centre = centre + width * (_vertex(patch, errors) if inside else patch[lowest])
        width = width / 4 if inside else width / 2
    step = math.exp(min(centre[0], math.log(largest)))
    around = math.exp(centre[1] - 0.3), math.exp(centre[1] + 0.3)
    note = f"the test error still falls at the largest step considered, {largest:.3g}"
    found = _optimum(
        problem,
        sizes,
        step,
        _bottom(problem, sizes, step, around, rest, tolerance),
        rest,
        tolerance,
        note if step >= 0.99 * largest else "",
    )
    # A gain that is smaller than the accuracy of the errors is none.
    return found if found.test_error < (1 - TOLERANCE) * still.test_error else unmoved


def _vertex(patch: Array, errors: Array) -> Array:
    """Lowest point of the paraboloid through errors on patch x patch, kept inside it."""
    x, y = (part.ravel() for part in np.meshgrid(patch, patch, indexing="ij"))
    design = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)
    _, gx, gy, xx, xy, yy = np.linalg.lstsq(design, errors.ravel(), rcond=None)[0]
    hessian = np.array([[2 * xx, xy], [xy, 2 * yy]])
    if np.linalg.eigvalsh(hessian)[0] <= 0:
        lowest = np.unravel_index(int(np.argmin(errors)), errors.shape)
        return patch[np.array(lowest)]
    return np.asarray(np.clip(-np.linalg.solve(hessian, [gx, gy]), -1, 1))
