r"""Resolutions that points climb until their errors have settled [firststep, unified].

A point is a pair of step size and ridge. Points are solved in batches, first on a coarse rung, and climb until the next
rung changes nothing. On a grid a few lead; others join them on a rung below and take over what refinement changes from
there. On a dense grid some of the points are solved, and polynomials through these tell the rest, as far as they are
known to be right.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firststep.compute.parts import run_parts
from firststep.gaussian import Array
from firststep.numerics import fixedpoint
from firststep.setting import Problem, Sizes
from firststep.theory.coefficients import (
    LEARNED,
    NEGLIGIBLE_SPIKE,
    Geometry,
    Resolution,
    Tables,
    degrees_of,
    geometry_of,
    interpolation,
    is_polynomial,
    row_stretch,
    spike_strength,
    tables_of,
)
from firststep.theory.equations import (
    Answer,
    answer_at,
    bulk_of,
    errors_at,
    first_guess,
    reached_points,
    residual_of,
    solve_points,
)
from firststep.theory.grids import CHANGE_NODES, Grid, Thinned
from firststep.theory.grids import leading as leading
from firststep.theory.joins import SMALLEST_STEP
from firststep.theory.own_component import knows_own
from firststep.theory.sectors import HIGHEST


@dataclass(frozen=True)
class Way:
    """How the equations are set up.

    Attributes
    ----------
    rest : str
        What becomes of the rest of the gradient.
    highest : int
        The highest degree with a sector of its own.
    own : bool
        Whether a neuron's own component may be known, where the sizes ask for it.
    """

    rest: str
    highest: int
    own: bool = True


RESTS = ("structured", "noise", "none")
# Nodes of z, spacing of asinh U, levels of M's law, size of functions left out: each about as far from its limit as the
# others.
LADDER = tuple(
    Resolution(nodes, spacing, levels, negligible, bent=True)
    for nodes, spacing, levels, negligible in (
        (12, 0.6, 3, 1e-4),
        (14, 0.5, 5, 1e-5),
        (18, 0.4, 6, 1e-5),
        (24, 0.32, 8, 1e-5),
        (32, 0.26, 10, 1e-6),
        (44, 0.2, 13, 1e-7),
        (64, 0.15, 17, 1e-7),
        (96, 0.11, 21, 1e-7),
        (200, 0.08, 28, 1e-7),
        (300, 0.06, 32, 1e-7),
    )
)
# From this rung on only those points are refined that would be refused otherwise.
LAST_USUAL = 7
# How much a point's rows have changed, and the rung on which it starts, then: below it would not settle.
CHANGED, RUNGS = (0.1, 1.0), np.array([0, 2, 3])
# A change is not taken to be less than this much of the one before, whatever it happened to be.
FASTEST_RATIO = 0.05
# Spikes that polynomials on the first rung leave out.
COARSE_SPIKE = 1e-4
# About so many points are solved together: keeps the largest temporary near 30 MB.
CHUNK = 32
# Points solved in one part, if there are many, and where neurons are known along z; the least of different step sizes,
# or ridges, that it has: so many that few of its points lead.
PART, OWN_PART, LEAST_VALUES = 5000, 1500, 8
# Relative change under refinement that is aimed at, and the largest that is let pass, with a note, unless a tolerance
# is asked for: heavy-tailed labels make the law of M hard to resolve.
TOLERANCE, ACCEPTED = 1e-6, 5e-2
# What polynomials between solved points of a dense grid may miss at most, whatever is aimed at.
MOST_TOLD = 1e-4
# With fewer points all are solved.
FEWEST_THINNED = 20
# The same aim where neurons are known along z: there are many more of them, and d is small.
OWN_TOLERANCE = 1e-3
# Relative residual of the self-consistent equations that is accepted.
RESIDUAL = 1e-9
# Errors so far below the labels' variance, as of a linear teacher without noise, are not resolved further.
ROUNDED_ERROR = 1e-12
# What is let pass where rounding allows no less: with a spike far above the bulk.
ROUNDED_RESIDUAL = 1e-6
# Residual at which Newton takes its last step, which squares it.
LOOSE = 1e-5

# Of each point the errors, what else the fit has, and the learned function's coefficients on h_k(beta·x), and those of
# its mean given z on h_k(z).
ERRORS = ("train_error", "test_error")
FITTED = (*ERRORS, "train_mse", "readout_norm_squared", "degrees_of_freedom")
# The first of these are positive; what must not change is both errors and, lest these do not by chance alone, the
# degrees of freedom.
POSITIVE, WATCHED = 4, (*ERRORS, "degrees_of_freedom")
NUMBERS = np.dtype(
    [(name, float) for name in FITTED]
    + [(name, float, (LEARNED,)) for name in ("learned", "learned_given_z")]
    + [("scatter", float, (HIGHEST + 1,))]
)


def errors_of(numbers: NDArray[np.void]) -> Array:
    """Train and test error of each point, (B, 2)."""
    return np.stack([numbers["train_error"], numbers["test_error"]], axis=1)


def _numbers(geometry: Geometry, tables: Tables, answer: Answer, ridge: Array) -> NDArray[np.void]:
    r"""`NUMBERS` for each point, (B,).

    The fitted function's projection on a function f of z and g is a leave-one-out average, in which 1/rho cancels:
    with :math:`\beta\cdot x = r z + \sqrt{1-r^2} g` it is :math:`r^k \langle\varphi_0, h_k\rangle +
    \sqrt{k(1-r^2)} r^{k-1} \langle\varphi_1, h_{k-1}\rangle` for h_k [firststep, unified, eq. 19].
    """
    r, degree = tables.cosine[:, None], np.arange(LEARNED)
    coefficients = tables.without_norm(geometry, answer.learned)
    along = np.zeros_like(coefficients[:, 0])
    for at, block in enumerate(tables.blocks[: tables.norm_start]):
        b = block[0]
        if sum(block) > b:
            continue
        ways = np.sqrt([math.comb(k, b) for k in degree[b:]])
        along[:, b:] += (
            ways * r ** (degree[b:] - b) * (1 - r**2) ** (b / 2) * coefficients[:, at, : LEARNED - b]
        )
    numbers = np.empty(len(ridge), dtype=NUMBERS)
    for name, values in errors_at(answer, ridge).items():
        numbers[name] = values
    # Errors at the size of rounding may come out below the noise.
    test, least = numbers["test_error"], ROUNDED_ERROR * geometry.problem.label_variance
    near = np.abs(test - geometry.problem.noise_variance) < 10 * least
    numbers["test_error"] = np.where(near, np.maximum(test, geometry.problem.noise_variance + least), test)
    # No fit is worse on its own samples than none.
    numbers["train_error"] = np.minimum(numbers["train_error"], geometry.problem.label_variance)
    numbers["learned"], numbers["learned_given_z"] = along, coefficients[:, 0]
    numbers["scatter"] = 0.0
    numbers["scatter"][:, : answer.scatter.shape[1]] = answer.scatter
    return numbers


@dataclass(frozen=True)
class _Level:
    """Answers at one resolution for a list of points, and the solution from which others start."""

    steps: Array  # (B,)
    ridges: Array
    numbers: NDArray[np.void]  # (B,) of NUMBERS
    values: Array  # rho and 1 + delta, (B, nz + nu)
    bulk: Array  # `bulk_of` them, (B, nz)
    slopes: Array  # of the logarithms of bulk and 1 + delta by that of the ridge, (B, nz + nu)
    z: Array
    u: Array
    iterations: int
    residual: float

    def start_for(self, geometry: Geometry, steps: Array, ridges: Array) -> Array:
        """For each point the solution interpolated from all, or at the nearest one, at another geometry's nodes."""
        npn, count = geometry.samples_per_neuron, self.bulk.shape[1]
        smooth = np.log(np.concatenate([self.bulk, self.values[:, count:]], axis=1))
        grid = Grid.of(self.steps, self.ridges)
        if grid is None:
            known = smooth[_nearest(self.steps, self.ridges, steps, ridges)]
        else:
            known = grid.carried(smooth, self.slopes, steps, ridges)
        samples = _carried_over(known[:, :count], self.z, geometry.inputs)
        neurons = _carried_over(known[:, count:], self.u, geometry.readout)
        return np.concatenate([1 / ((ridges * npn)[:, None] + np.exp(samples)), np.exp(neurons)], axis=1)


def solve_level(
    geometry: Geometry, rest: str, steps: Array, ridges: Array, before: _Level | None, sloped: bool = False
) -> _Level:
    """Solve a list of points (step size, ridge), sorted by step size, at one resolution; with slopes if asked for."""
    guess = None if before is None else before.start_for(geometry, steps, ridges)
    # What is interpolated at the same nodes is close already.
    before_rounds = 0 if before is not None and before.z is geometry.inputs else 1
    numbers: list[NDArray[np.void]] = []
    values = np.empty((len(steps), len(geometry.z) + len(geometry.u)))
    slopes = np.empty_like(values)
    rounds, worst = 0, 0.0
    count = max(1, round(len(steps) / CHUNK))
    edges = [len(steps) * k // count for k in range(count + 1)]
    for low, high in itertools.pairwise(edges):
        part = slice(low, high)
        distinct, index = np.unique(steps[part], return_inverse=True)
        tables = tables_of(geometry, distinct, rest)
        if len(distinct) < len(index):
            tables = tables.take(index)
        ridge = ridges[part]
        if guess is not None:
            start, plain_rounds = guess[part], before_rounds
        elif low:
            start, plain_rounds = values[_nearest(steps[:low], ridges[:low], steps[part], ridge)], 1
        else:
            start, plain_rounds = first_guess(geometry, ridge), fixedpoint.PLAIN_ROUNDS
        found = reached_points(geometry, tables, ridge, start, LOOSE, plain_rounds)
        rounds = max(rounds, found.iterations)
        answered, left, slopes[part] = _answered(geometry, tables, ridge, found.value, sloped)
        values[part] = found.value
        off = np.flatnonzero(left > RESIDUAL)
        if len(off):
            these, lam, place = tables.take(off), ridge[off], low + off
            values[place] = _refined(geometry, these, lam, found.value[off])
            answered[off], left[off], slopes[place] = _answered(geometry, these, lam, values[place], sloped)
        numbers.append(answered)
        worst = max(worst, float(left.max()))
    answers = np.concatenate(numbers)
    bulk, nodes = bulk_of(geometry, values, ridges), (geometry.inputs, geometry.readout)
    return _Level(steps, ridges, answers, values, bulk, slopes, *nodes, rounds, worst)


def _carried_over(values: Array, old: Array, new: Array) -> Array:
    """Functions at nodes (old, others) flattened, (B, …), at the nodes (new, others)."""
    if old is new:
        return values
    if values.shape[1] == len(old):
        return values @ interpolation(old, new)
    by_other = values.reshape(len(values), len(old), -1).swapaxes(1, 2)
    return (by_other @ interpolation(old, new)).swapaxes(1, 2).reshape(len(values), -1)


def _answered(
    geometry: Geometry, tables: Tables, ridge: Array, values: Array, sloped: bool
) -> tuple[NDArray[np.void], Array, Array]:
    """`NUMBERS` at a solution, its residuals and slopes; a rung too coarse for a spike may have no answer, NaN."""
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            answer = answer_at(geometry, tables, values)
    except np.linalg.LinAlgError:
        none = np.empty(len(ridge), dtype=NUMBERS)
        _flat(none)[:] = np.nan
        return none, np.zeros(len(ridge)), np.zeros_like(values)
    slopes = answer.response.slopes() if sloped else np.zeros_like(values)
    return _numbers(geometry, tables, answer, ridge), residual_of(geometry, answer.state, ridge), slopes


def _refined(geometry: Geometry, tables: Tables, ridge: Array, start: Array) -> Array:
    """The solution to the residual that is wanted, or as close as rounding lets it come."""
    try:
        return np.asarray(solve_points(geometry, tables, ridge, start, RESIDUAL, 0).value)
    except fixedpoint.ConvergenceError as error:
        if error.residual.max() > ROUNDED_RESIDUAL:
            raise
        return np.asarray(error.value)


def _nearest(steps: Array, ridges: Array, new_steps: Array, new_ridges: Array) -> NDArray[np.intp]:
    """Of the points already solved, the one to start each of the new ones from."""
    distance = np.abs(np.log(new_ridges[:, None] / ridges))
    distance += np.abs(np.log((1 + new_steps[:, None]) / (1 + steps)))
    return np.asarray(distance.argmin(axis=1))


@dataclass
class Points:
    """Numbers for a list of points, with the accuracy that was reached."""

    numbers: NDArray[np.void]  # (B,) of NUMBERS
    error: Array  # estimated relative error, (B,)
    level: NDArray[np.intp]  # index into LADDER, (B,)
    told: NDArray[np.bool_]  # by the points around, and not solved, (B,)
    iterations: int = 0
    residual: float = 0.0

    def __len__(self) -> int:
        return len(self.error)

    @classmethod
    def empty(cls, count: int) -> "Points":
        """Room for so many points."""
        places = np.zeros(count, dtype=np.intp), np.zeros(count, dtype=bool)
        return cls(np.zeros(count, dtype=NUMBERS), np.full(count, np.inf), *places)

    def add(self, index: NDArray[np.intp], level: _Level, rung: int) -> None:
        """Take the numbers of some points from what was solved on a rung."""
        self.numbers[index], self.level[index] = level.numbers, rung
        self.iterations = max(self.iterations, level.iterations)
        self.residual = max(self.residual, level.residual)

    def put(self, index: NDArray[np.intp], other: "Points") -> None:
        """Take some points from another list."""
        for mine, others in zip(self._each, other._each, strict=True):
            mine[index] = others
        self.iterations = max(self.iterations, other.iterations)
        self.residual = max(self.residual, other.residual)

    def taken(self, index: NDArray[np.intp]) -> "Points":
        """Some of the points, in another order."""
        numbers, error, level, told = (part[index] for part in self._each)
        return replace(self, numbers=numbers, error=error, level=level, told=told)

    @property
    def ways(self) -> tuple[NDArray[Any], ...]:
        """How each point was found: its relative error, the rung, and whether it was told."""
        return self.error, self.level, self.told

    @property
    def _each(self) -> tuple[NDArray[Any], ...]:
        """What there is of each point."""
        return self.numbers, *self.ways

    def tell(self, thinned: Thinned, solved: NDArray[np.bool_], tolerance: float) -> NDArray[np.bool_]:
        """Points of a dense grid that are not solved told by those that are; which of them are within a tolerance."""
        with np.errstate(divide="ignore", invalid="ignore"):
            known = _flat(self.numbers).copy()
            known[:, :POSITIVE] = np.log(known[:, :POSITIVE])
            watched = np.stack([known[:, FITTED.index(name)] for name in WATCHED], axis=1)
            missed, told = thinned.missed(watched), thinned.told(known)
        within = ~solved & (missed <= tolerance) & np.isfinite(told).all(axis=1)
        told[:, :POSITIVE] = np.exp(told[:, :POSITIVE])
        _flat(self.numbers)[within] = told[within]
        self.error[within] = np.maximum(thinned.widest(self.error), missed)[within]
        self.level[within] = thinned.widest(self.level.astype(float))[within]
        self.told |= within
        return within

    @classmethod
    def joined(cls, places: Sequence[NDArray[np.intp]], parts: Sequence["Points"]) -> "Points":
        """One list of points, whose parts have these places in it."""
        result = cls.empty(sum(map(len, places)))
        for index, part in zip(places, parts, strict=True):
            result.put(index, part)
        return result


def solve_all(
    problem: Problem, sizes: Sizes, steps: Array, ridges: Array, way: Way, tolerance: float | None
) -> Points:
    """Refine every point until its errors no longer change by more than `tolerance`, or as far as the ladder goes."""
    pairs, places = np.unique(np.stack([steps, ridges], axis=1), axis=0, return_inverse=True)
    if len(pairs) < len(steps):
        return solve_all(problem, sizes, pairs[:, 0], pairs[:, 1], way, tolerance).taken(places.ravel())
    # A draft is drawn without a neuron's own component, which makes it ten times faster.
    own = way.own and knows_own(problem, sizes, way.highest, way.rest) and tolerance != math.inf
    parts = _parts(steps, ridges, OWN_PART if own else PART)
    if len(parts) > 1:
        tasks = [(problem, sizes, steps[part], ridges[part], way, tolerance) for part in parts]
        return Points.joined(parts, run_parts(solve_all, tasks, len(steps)))
    wanted, accepted = (aim(own), ACCEPTED) if tolerance is None else (tolerance, tolerance)
    plain = problem.without_step()
    if (own or problem.output_law.order_one) and plain != problem and (steps == 0).any():
        still = solve_all(plain, sizes, steps[steps == 0], ridges[steps == 0], way, tolerance)
        moved = solve_all(problem, sizes, steps[steps > 0], ridges[steps > 0], way, tolerance)
        return Points.joined([np.flatnonzero(steps == 0), np.flatnonzero(steps > 0)], [still, moved])
    spike = spike_strength(problem, sizes, steps, way.rest)
    stretch = row_stretch(problem, sizes, steps, way.rest)
    polynomial = is_polynomial(spike, sizes, stretch) & (not own)
    first = RUNGS[np.searchsorted(CHANGED, np.maximum(spike, stretch))]
    if math.isinf(wanted) and len(first):
        # One resolution for all, which is no longer a coarse one: fewer, larger batches.
        first = np.full_like(first, first.max() + 1)
    groups = []
    for branch in (polynomial, ~polynomial):
        for rung in np.unique(first[branch]):
            group = np.flatnonzero(branch & (first == rung))
            group = group[np.argsort(steps[group], kind="stable")]
            largest = float(spike[group].max()) if branch is polynomial else None
            groups.append((group, _Ladder(problem, sizes, way, own, largest, int(rung), wanted, accepted)))
    points = _climbed(groups, steps, ridges, wanted)
    missing = below_noise(problem, steps, ridges, points.numbers["test_error"])
    points.numbers["test_error"] = np.maximum(points.numbers["test_error"], problem.noise_variance)
    points.error = np.maximum(points.error, missing)
    _check(points, steps, ridges, accepted)
    return points


def _climbed(
    groups: "Sequence[tuple[NDArray[np.intp], _Ladder]]", steps: Array, ridges: Array, wanted: float
) -> Points:
    """All points, those of each group on a ladder of its own; on a dense grid most are told by those around them."""
    tolerance = min(wanted, MOST_TOLD)
    thinned = _thinned(groups, steps, ridges, tolerance)
    points, climbs, neighbours = Points.empty(len(steps)), [], None
    solved = np.ones(len(steps), dtype=bool) if thinned is None else thinned.solved
    for group, ladder in groups:
        # A draft has one rung, on which none has to lead.
        leads = solved[group] if math.isinf(wanted) else _leaders(steps[group], ridges[group], tolerance)
        solved[group[leads]] = True
        leading, joining = group[leads], group[solved[group] & ~leads]
        climb = ladder.climb(steps[leading], ridges[leading], neighbours)
        points.put(leading, climb.found)
        points.put(joining, climb.joined(steps[joining], ridges[joining]))
        climbs.append((group, climb))
        neighbours = climb.low
    if thinned is None:
        return points
    settled = solved | points.tell(thinned, solved, tolerance)
    for group, climb in climbs:
        left = group[~settled[group]]
        points.put(left, climb.joined(steps[left], ridges[left]))
    return points


def _leaders(steps: Array, ridges: Array, tolerance: float) -> NDArray[np.bool_]:
    """Which points lead, all if they are no grid."""
    grid = Grid.of(steps, ridges)
    return np.ones(len(steps), dtype=bool) if grid is None else grid.leaders(tolerance)


def _thinned(
    groups: "Sequence[tuple[NDArray[np.intp], _Ladder]]", steps: Array, ridges: Array, tolerance: float
) -> Thinned | None:
    """Which points of a dense grid are solved at first, those that lead in each group among them."""
    whole = Grid.of(steps, ridges)
    if whole is None or len(steps) < FEWEST_THINNED:
        return None
    chosen = [np.empty(0, dtype=np.intp), np.empty(0, dtype=np.intp)]
    for group, _ in groups:
        grid = Grid.of(steps[group], ridges[group])
        if grid is None:
            return None
        own = grid.sparse(tolerance)
        chosen[0] = np.union1d(chosen[0], np.searchsorted(whole.steps, grid.steps[own[0]]))
        chosen[1] = np.union1d(chosen[1], own[1])
    return Thinned.of(whole, chosen[0], chosen[1])


def _parts(steps: Array, ridges: Array, most: int) -> list[NDArray[np.intp]]:
    """Places of parts of about so many points, each with neighbouring step sizes or, if these are more, ridges."""
    axes = [np.unique(values, return_inverse=True) for values in (steps, ridges)]
    values, place = max(axes, key=lambda axis: len(axis[0]))
    count = max(1, min(math.ceil(len(steps) / most), len(values) // LEAST_VALUES))
    part = place * count // len(values)
    return [np.flatnonzero(part == k) for k in range(count)]


@dataclass(frozen=True)
class _Ladder:
    """Resolutions that points climb from a first rung on until they have settled."""

    problem: Problem
    sizes: Sizes
    way: Way
    own: bool
    spike: float | None  # the largest, where functions are polynomials
    first: int
    wanted: float
    accepted: float

    def level(
        self, rung: int, steps: Array, ridges: Array, before: _Level | None, sloped: bool = False
    ) -> _Level:
        """Some points on one rung."""
        way, degrees = self.way, 0
        if self.spike is not None:
            degrees = degrees_of(self.spike, self.sizes, COARSE_SPIKE if rung == 0 else NEGLIGIBLE_SPIKE)
        geometry = geometry_of(
            self.problem, self.sizes, LADDER[rung], way.rest, degrees, way.highest, self.own
        )
        return solve_level(geometry, way.rest, steps, ridges, before, sloped)

    def climb(self, steps: Array, ridges: Array, neighbours: _Level | None) -> "_Climb":
        """The points that lead, sorted by step size, climb until they have settled."""
        return _Climb(self, *self.refined(steps, ridges, neighbours))

    @property
    def rounding(self) -> float:
        """Of errors below this nothing but rounding is left."""
        return ROUNDED_ERROR * self.problem.label_variance

    def refined(
        self, steps: Array, ridges: Array, neighbours: _Level | None
    ) -> tuple[Points, dict[int, _Level]]:
        """Points, sorted by step size, that climb until they have settled, and what was solved on each rung."""
        points, levels = Points.empty(len(steps)), {}
        pending, before, change = np.arange(len(steps)), neighbours, np.full(len(steps), np.nan)
        first, several = min(self.first, len(LADDER) - 2), len(np.unique(ridges)) > 1
        for rung in range(first, len(LADDER)):
            old, kept = _watched(points.numbers[pending]), points.numbers[pending]
            try:
                before = self.level(rung, steps[pending], ridges[pending], before, several)
                levels[rung] = before
            except fixedpoint.ConvergenceError:
                # With small ridges rounding may allow no rung as fine as this one: the last one counts.
                if not np.isfinite(change[pending]).all():
                    raise
                break
            points.add(pending, before, rung)
            if math.isinf(self.wanted):
                break
            if rung == first:
                continue
            # Relative to the errors, and to the one degree of freedom that a sample has.
            scale = np.maximum(np.abs(old), np.array([self.rounding, self.rounding, 1.0]))
            moved = (np.abs(_watched(before.numbers) - old) / scale).max(axis=1)
            points.error[pending] = np.nan_to_num(_left(moved, change[pending]), nan=np.inf)
            # So may rows of very different lengths.
            lost = np.isfinite(change[pending]) & ~np.isfinite(moved)
            points.numbers[pending[lost]], points.error[pending[lost]] = kept[lost], change[pending[lost]]
            change[pending] = np.where(lost, change[pending], moved)
            enough = self.wanted if rung < LAST_USUAL else self.accepted
            pending = pending[(points.error[pending] > enough) & ~lost]
            if not len(pending):
                break
        return points, levels


@dataclass(frozen=True)
class _Climb:
    """Points of a ladder that lead and have climbed it, and how others join them.

    Attributes
    ----------
    ladder : _Ladder
        What was climbed.
    found : Points
        Those that lead.
    levels : dict
        What was solved on each rung.
    """

    ladder: _Ladder
    found: Points
    levels: dict[int, _Level]

    @property
    def _rungs(self) -> range:
        """Where others may join: from the last rung but one of those that settled first on."""
        last = int(self.found.level.min())
        return range(max(last - 1, min(self.levels)), last + 1)

    @property
    def low(self) -> _Level:
        """What was solved on the lowest of these."""
        return self.levels[self._rungs[0]]

    def joined(self, steps: Array, ridges: Array) -> Points:
        """Others, sorted by step size, of the same grid.

        They are solved once, on the lowest rung from which further refinement changes them by what it changes between
        the leaders; where that is too uncertain, as the leaders tell beforehand, they climb, too.
        """
        points, joining = Points.empty(len(steps)), np.arange(len(steps))
        # A draft has one rung, from which nothing changes.
        for rung in self._rungs if math.isfinite(self.ladder.wanted) else ():
            if not len(joining):
                return points
            changes, error = self._between(self.levels[rung], steps[joining], ridges[joining])
            settled = error <= self.ladder.wanted
            some, joining = joining[settled], joining[~settled]
            if len(some):
                joined = replace(Points.empty(len(some)), error=error[settled])
                level = self.ladder.level(rung, steps[some], ridges[some], self.levels[rung])
                joined.add(np.arange(len(some)), level, int(self.found.level.max()))
                _flat(joined.numbers)[:] += changes[settled]
                points.put(some, joined)
        if len(joining):
            ladder, last = replace(self.ladder, first=self._rungs[-1]), self.levels[self._rungs[-1]]
            points.put(joining, ladder.refined(steps[joining], ridges[joining], last)[0])
        return points

    def _between(self, base: _Level, steps: Array, ridges: Array) -> tuple[Array, Array]:
        """What refinement from a rung on changes of all numbers between leaders, and the relative error of that."""
        grid = Grid.of(base.steps, base.ridges)
        assert grid is not None
        change = _flat(self.found.numbers) - _flat(base.numbers)
        few = CHANGE_NODES - 1
        fine = grid.weights(steps, ridges, CHANGE_NODES, CHANGE_NODES)
        # What one node less would have said, in either direction, is an estimate of what the polynomials miss.
        coarse = (grid.weights(steps, ridges, *nodes) for nodes in ((few, CHANGE_NODES), (CHANGE_NODES, few)))
        missed = sum(np.abs((fine - weights).T @ change[:, : len(ERRORS)]) for weights in coarse)
        size = np.exp(fine.T @ np.log(np.maximum(errors_of(self.found.numbers), self.ladder.rounding)))
        shares = np.abs(fine) / np.abs(fine).sum(axis=0)
        return fine.T @ change, np.maximum((missed / size).max(axis=1), self.found.error @ shares)


def _watched(numbers: NDArray[np.void]) -> Array:
    """What must not change, (B, 3)."""
    return np.stack([numbers[name] for name in WATCHED], axis=1)


def _left(change: Array, before: Array) -> Array:
    r"""Error left after a change c that came after a change c': 2 c r/(1 - r) with r = c/c', if that is less than c.

    It is twice that of a geometric series; convergence here is faster. Without an earlier change, c itself.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.clip(change / before, FASTEST_RATIO, 1 / 3)
    return np.where(np.isnan(ratio), change, 2 * change * ratio / (1 - ratio))


def _flat(numbers: NDArray[np.void]) -> Array:
    """The same numbers, (B, all), errors first."""
    return numbers.view(np.float64).reshape(len(numbers), -1)


def aim(own: bool) -> float:
    """The relative change under refinement that is aimed at."""
    return OWN_TOLERANCE if own else TOLERANCE


def below_noise(problem: Problem, steps: Array, ridges: Array, test_error: Array) -> Array:
    """How far test errors of points (B,) come out below the noise, relative to it; refused beyond what is accepted.

    So it is where a handful of neurons or samples is too few for what the equations leave out.
    """
    noise = problem.noise_variance
    missing = np.where(test_error > 0, np.maximum(noise - test_error, 0.0) / (noise or 1.0), np.inf)
    at = np.flatnonzero(np.isnan(test_error) | (missing > ACCEPTED))
    if len(at):
        smallest = at[steps[at].argmin()]
        cures = ["raise ridge"] + ["lower the step size"] * bool(steps[smallest] > 1e-3)
        raise fixedpoint.ConvergenceError(
            f"the unified theory gave a test error below the noise at {_place(smallest, steps, ridges)}: "
            f"{', or '.join(cures)}",
            test_error,
            missing,
        )
    return missing


def _check(points: Points, steps: Array, ridges: Array, accepted: float) -> None:
    """Refuse errors that are less accurate than accepted, or not positive."""
    errors, error = errors_of(points.numbers), points.error
    if error.max(initial=0.0) > accepted:
        # Named is the smallest step: a cure for it is one for the others.
        at = np.flatnonzero(error > accepted)
        smallest = at[steps[at].argmin()]
        asked = "is asked for" if accepted == ACCEPTED else "was asked for"
        cures = [] if accepted == ACCEPTED else [f"pass tolerance={_rounded_up(error.max()):.0e}"]
        cures += ["raise ridge"] + ["lower the step size"] * bool(steps[smallest] > 1e-3)
        raise fixedpoint.ConvergenceError(
            f"the unified theory is only stable to {error[smallest]:.1e} at {_place(smallest, steps, ridges)}, "
            f"where {accepted:.1e} {asked}: {', or '.join(cures)}",
            errors,
            error,
        )
    finite = all(np.isfinite(points.numbers[name]).all() for name in NUMBERS.names or ())
    if not (finite and (errors > 0).all()):
        raise fixedpoint.ConvergenceError(
            "the unified theory gave an error that is not positive: raise ridge", errors, error
        )


def _place(at: np.intp, steps: Array, ridges: Array) -> str:
    """A point in words."""
    return f"step_size={_asked_for(steps[at], steps):.4g}, ridge={ridges[at]:.3g}"


def _asked_for(step: float, steps: Array) -> float:
    """A step size as it was asked for: the one that moves nothing stands for the smallest of the others."""
    others = steps[steps > step]
    return float(others.min()) if step == SMALLEST_STEP and len(others) else float(step)


def _rounded_up(value: float) -> float:
    """The next power of ten."""
    return 10.0 ** math.ceil(math.log10(value)) if math.isfinite(value) else 1.0
