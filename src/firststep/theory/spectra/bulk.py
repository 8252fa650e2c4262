"""The bulk of a spectrum from its self-consistent equations: approach to the real axis, support, edges, grid.

What the spectra of features and weights share [firststep, spectra].
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array
from firststep.numerics import fixedpoint
from firststep.results import Outlier, Spectrum
from firststep.setting import Problem, Sizes
from firststep.theory.coefficients import Resolution, Values
from firststep.theory.spectra.loose import LooseLabels, with_tail

# Distances from the real axis, in units of the mean eigenvalue, on the way from an easy problem to the density.
APPROACH = (3.0, 0.5, 0.1, 0.02, 2e-3, 1e-7)
# Outliers are looked for this far from the real axis: farther than the rare bands that a few extreme samples make.
ASIDE = 1e-5
# Quadrature nodes that stand for less than this share of a sample, neuron or direction are dropped.
UNLIKELY = 2e-3
# Points with which each of these distances is passed.
APPROACH_POINTS = (8, 16, 31, 61, 61, 61)
# Where bulks are looked for, in units of the mean eigenvalue.
SCAN_RANGE, SCAN_POINTS = (1e-4, 1e2), 61
LOWEST, LOWEST_POINTS = 1e-6, 15
# Where only the upper end of the bulk is wanted, the scan begins here.
UPPER_PART = 0.5
HIGHEST, HIGHEST_POINTS = 1e5, 31
EDGE_ROUNDS = 8
# Points at which a density is solved; more are interpolated.
GRID_POINTS = 72
# A lower edge below this share of the upper one counts as close to zero.
HARD_EDGE = 0.02
# Rounding-level residuals are not needed on the way.
LOOSE, TIGHT = 1e-5, 1e-8
# Imaginary parts below this share of a number are rounding errors.
ROUNDING = 1e-12
# A density below this, in units of one over the mean eigenvalue, is outside the bulk.
EMPTY = 1e-3
# Outliers closer to the edge than this, relatively, are not told from it.
NEAREST = 5e-4
# A density whose integral is wrong by more than this is refused, by more than a quarter of it solved again, finer.
WRONG_MASS = 0.02
# With so many loose eigenvalues beyond a place in the mean, there is none with a chance of 5 and of 95 per cent.
SCATTER = -np.log([0.05, 0.95])
# Of more pieces than this narrow ones get this many points; a piece that begins below this share of its end is wide.
MANY_PIECES, LEAST_POINTS, NARROW = 3, 14, 1e-3
# How far beyond the edge loose eigenvalues are looked for, in units of it, and at how many points.
LOOSEST, LOOSE_POINTS = 30.0, 48
# With an integral that is right to this, a density need not be solved at every point of its grid; pieces share their
# points anew where a line through them misses more than this.
RIGHT_MASS, RIGHT_LINE = 3e-4, 2e-3
# Change of the mass, if every other point is left out, that says that more points would not change it.
SURE_MASS = 1e-5
# Largest temporary of a solution, in complex numbers for all points, and what one spectrum may cost: multiplications,
# of which a core does some 1e9 a second. More is looked at with blurred eyes.
MOST_NUMBERS, MOST_WORK = 4e6, 4e9
# What helps where a spectrum cannot be had; it has no ridge to raise.
REMEDY = "lower the step size, or take more dimensions, samples and neurons"


class Overworked(RuntimeError):
    """A spectrum would cost more than `MOST_WORK`."""


@dataclass
class Work:
    """What the solutions of one spectrum have cost, in multiplications."""

    spent: float = 0.0

    def add(self, cost: float) -> None:
        """Count, and refuse to go on beyond the limit."""
        self.spent += cost
        if self.spent > MOST_WORK:
            raise Overworked(f"this spectrum takes more than {MOST_WORK:.0e} multiplications: {REMEDY}")


@dataclass(frozen=True)
class Bulk:
    """Points on the real axis, in ascending order, with the solutions just above them and the density."""

    x: Array
    values: Values
    density: Array

    def merged(self, other: "Bulk") -> "Bulk":
        """Both sets of points as one."""
        order = np.argsort(np.concatenate([self.x, other.x]), kind="stable")
        return Bulk(
            np.concatenate([self.x, other.x])[order],
            np.concatenate([self.values, other.values])[order],
            np.concatenate([self.density, other.density])[order],
        )

    def take(self, index: NDArray[Any] | slice) -> "Bulk":
        """Some of the points."""
        return Bulk(self.x[index], self.values[index], self.density[index])


@dataclass(frozen=True)
class _Grid:
    """A density on its grid."""

    x: Array
    density: Array
    mass: float  # its integral
    doubt: float  # and how sure that is
    missed: Array  # of each interval: what a line through the points has too much


class Solver:
    """What both spectra share: approach to the real axis, support, edges, grid."""

    problem: Problem
    sizes: Sizes
    step_size: float
    of: str
    effort: int = 1  # refines the scan where narrow bands were missed
    places: Array = np.empty(0)  # where eigenvalues are known to lie, for the scan
    accuracy: float = (
        math.nan
    )  # change of the density under refinement, in units of its maximum, if it was looked at
    resolution: Resolution | None = None
    mean: float  # mean eigenvalue
    atom: float
    neighbour: "Solver | None" = None  # of the same kind, for a problem close to this one, solved before
    known: Bulk | None = None  # all points solved on the way to the support
    loose: LooseLabels | None = None  # the largest labels, if they are taken out of the law of M
    end_range: tuple[float, float] | None = (
        None  # where the bulk ends in nine of ten networks, if they differ
    )
    work: Work | None = None  # shared by all solvers of one spectrum, where it is limited

    def solve(self, ridge: Values, start: Values | None, tolerance: float) -> Values:
        """Solution at complex (or real) ridge = -x."""
        raise NotImplementedError

    def transform(self, ridge: Values, values: Values) -> Values:
        """Stieltjes transform of the law at -ridge, up to its atom at zero."""
        raise NotImplementedError

    def density(self, x: Array, values: Values) -> Array:
        """Density of the eigenvalues, without the atom."""
        raise NotImplementedError

    def outliers(self, edge: float, scan: Bulk) -> tuple[Outlier, ...]:
        """Eigenvalues above the bulk."""
        raise NotImplementedError

    def carried(self, values: Values, to: Any) -> Values:
        """Solutions at the nodes of another solver of the same kind."""
        raise NotImplementedError

    def coarse(self) -> "Solver":
        """The same with as few nodes as a blurred view needs, without a limit."""
        raise NotImplementedError

    def ridge(self, x: Array, distance: float = APPROACH[-1]) -> Values:
        """The complex ridge at x, this far from the real axis in units of the mean eigenvalue."""
        return np.asarray(-x - 1j * self.height_above(x, distance))

    def height_above(self, x: Array, distance: float = APPROACH[-1]) -> Array:
        """Distance from the real axis; at the end in units of x where that is smaller, for edges close to zero."""
        return np.asarray(
            distance * (np.minimum(x, self.mean) if distance == APPROACH[-1] else self.mean + 0 * x)
        )

    def scanned(self, x: Array) -> Bulk:
        """Solutions at ascending x, from those of the neighbour if there is one."""
        if self.neighbour is None or self.neighbour.known is None:
            return self.first_scanned(x)
        there, known = x * self.neighbour.mean / self.mean, self.neighbour.known
        return self.continued(x, self.neighbour.carried(between(known.x, known.values, there), self))

    def first_scanned(self, x: Array) -> Bulk:
        """Solutions at ascending x, of which nothing is known before."""
        return self.approached(x)

    def approached(self, x: Array) -> Bulk:
        """Solutions at ascending x, from far above the real axis down to it.

        Far above, the solution is smooth in x and a few points are enough to start the next level.
        """
        most = APPROACH_POINTS[0]
        at = x if len(x) <= most else x[np.linspace(0, len(x) - 1, most).round().astype(int)]
        values = self.solve(self.ridge(at, APPROACH[0]), None, LOOSE)
        for above, distance, most in zip(APPROACH, APPROACH[1:], APPROACH_POINTS[1:], strict=False):
            last = distance == APPROACH[-1]
            now = x if last or len(x) <= most else x[np.linspace(0, len(x) - 1, most).round().astype(int)]
            values = self._lowered(now, between(at, values, now), above, distance)
            at = now
        return Bulk(x, values, self.density(x, values))

    def _lowered(self, x: Array, start: Values, above: float, distance: float, halvings: int = 2) -> Values:
        """Solutions at a smaller distance from the axis, in as many steps as it takes."""
        try:
            return self.solve(self.ridge(x, distance), start, TIGHT if distance == APPROACH[-1] else LOOSE)
        except fixedpoint.ConvergenceError:
            if not halvings:
                raise
            middle = math.sqrt(above * distance)
            start = self._lowered(x, start, above, middle, halvings - 1)
            return self._lowered(x, start, middle, distance, halvings - 1)

    def continued(self, x: Array, start: Values) -> Bulk:
        """Solutions at ascending x from a good start; points where that fails are approached from above.

        A few among many are first tried from the solutions beside them.
        """
        values, lost = self._tried(x, start)
        if lost.any() and 4 * lost.sum() < len(x):
            nearest = np.abs(x[lost][:, None] - x[~lost]).argmin(axis=1)
            values[lost], still = self._tried(x[lost], values[~lost][nearest])
            lost[lost] = still
        density = self.density(x, values)
        if lost.any():
            again = self.approached(x[lost])
            values[lost], density[lost] = again.values, again.density
        return Bulk(x, values, density)

    def _tried(self, x: Array, start: Values) -> tuple[Values, NDArray[np.bool_]]:
        """Solutions from a start, and where there is none, or not the right one."""
        try:
            values = self.solve(self.ridge(x), start, TIGHT)
            lost = np.zeros(len(x), dtype=bool)
        except fixedpoint.ConvergenceError as error:
            values = np.array(error.value)
            lost = np.asarray(error.residual) > TIGHT
        # The equations have other solutions, but only one with imaginary parts that are all positive.
        return values, lost | (values.imag < -ROUNDING * np.abs(values)).any(axis=1)

    def without_atom(self, x: Array, density: Array) -> Array:
        """Take out what the eigenvalues at zero add at a small distance from the real axis."""
        width = self.height_above(x)
        return np.asarray(density - self.atom * width / (math.pi * (x**2 + width**2)))

    def height(self, bulk: Bulk) -> Array:
        """The density in units that make it comparable between pieces of the bulk."""
        return np.asarray(bulk.density * np.maximum(bulk.x, self.mean))

    def scan_points(self) -> Array:
        """Where bulks are looked for, in ascending order."""
        return np.asarray(self.mean * np.geomspace(*SCAN_RANGE, SCAN_POINTS * self.effort))

    def support(self, whole: bool = True) -> tuple[list[tuple[float, float]], Bulk]:
        """Intervals of the bulk, from left to right, and all points solved on the way.

        Where not the whole is wanted, what lies far below the mean eigenvalue is left out: the bulk ends above it.
        """
        points = np.union1d(self.scan_points(), self.places)
        scan = self.scanned(points if whole else points[points > UPPER_PART * self.mean])
        full = self.height(scan) > EMPTY
        if full[0] and whole:
            # N close to n: the edge may lie far below.
            lower = self.mean * np.geomspace(LOWEST, SCAN_RANGE[0], LOWEST_POINTS)[:-1]
            scan = self.scanned(lower).merged(scan)
            full = self.height(scan) > EMPTY
        if full[-1]:
            # An activation that grows fast has a bulk with a long tail.
            higher = np.geomspace(
                scan.x[-1], HIGHEST * max(self.mean, scan.x[-1] / SCAN_RANGE[1]), HIGHEST_POINTS
            )
            scan = scan.merged(self.scanned(higher[1:]))
            full = self.height(scan) > EMPTY
        if not full.any() or full[-1]:
            raise fixedpoint.ConvergenceError(
                "no end of the bulk was found: lower the step size, or check that the ratios are of order one",
                scan.density,
                scan.density,
            )
        changes = np.flatnonzero(np.diff(full.astype(int)))
        ends, near = self._edges(scan, changes, full[changes])
        if full[0]:
            # The bulk reaches down to zero: a hard edge.
            ends.insert(0, 0.0)
        ends = np.maximum.accumulate(ends).tolist()
        self.known = scan if near is None else scan.merged(near)
        return list(zip(ends[::2], ends[1::2], strict=True)), self.known

    def _edges(
        self, scan: Bulk, index: NDArray[np.intp], left_is_inside: NDArray[np.bool_]
    ) -> tuple[list[float], Bulk | None]:
        """Edges between neighbours of the scan, by secants of the squared density, which is linear there."""
        if not len(index):
            return [], None
        right = left_is_inside
        inner = np.where(right, index, index + 1)
        outside = scan.x[np.where(right, index + 1, index)]
        # A second point inside, if the piece of the bulk has one; it must not belong to another piece.
        second = np.clip(np.where(right, inner - 1, inner + 1), 0, len(scan.x) - 1)
        known = [scan.take(second), scan.take(inner)]
        # A piece with a small share of the eigenvalues is low everywhere.
        height, piece = self.height(scan), np.cumsum(np.append(0, np.diff(self.height(scan) > EMPTY) != 0))
        empty = np.array([min(EMPTY, 0.02 * float(height[piece == piece[i]].max())) for i in inner])
        fraction = np.full(len(index), 0.93)
        found: list[Bulk] = []
        for _ in range(EDGE_ROUNDS):
            guess = _secant(known, outside)
            old, last = known
            at = last.x + fraction * (guess - last.x)
            at = np.where(np.abs(at - last.x) < 1e-9 * last.x, (last.x + outside) / 2, at)
            # Near an edge the solution is linear in the square root of the distance to it.
            roots = [np.sqrt(np.abs(guess - p)) for p in (old.x, last.x, at)]
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.nan_to_num((roots[2] - roots[1]) / (roots[1] - roots[0]))[:, None]
            here = self.continued(at, last.values + np.clip(share, -1.0, 3.0) * (last.values - old.values))
            found.append(here)
            full = self.height(here) > empty
            fraction = np.where(full, 0.93, 0.5)
            keep = full[:, None]
            known = [
                Bulk(
                    np.where(full, last.x, old.x),
                    np.where(keep, last.values, old.values),
                    np.where(full, last.density, old.density),
                ),
                Bulk(
                    np.where(full, here.x, last.x),
                    np.where(keep, here.values, last.values),
                    np.where(full, here.density, last.density),
                ),
            ]
            outside = np.where(full, outside, here.x)
        # A sharp edge may lie a little beyond the first point that counts as empty.
        ends = _secant(known, 2 * outside - known[1].x)
        solved = found[0]
        for one in found[1:]:
            solved = solved.merged(one)
        return ends.tolist(), solved.take(self.height(solved) > EMPTY)

    def grid(
        self, intervals: Sequence[tuple[float, float]], shares: Sequence[int], scan: Bulk, most: int
    ) -> "_Grid":
        """Points that crowd at the edges, so many in each interval, and the density there.

        It is interpolated from at most `most` points, and zero at the ends of each interval.
        """
        from scipy.interpolate import CubicSpline

        all_x, all_density, missed, mass, doubt = [], [], [], 0.0, 0.0
        for (low, high), whole in zip(intervals, shares, strict=True):
            hard = low <= HARD_EDGE * high
            # At zero itself a hard edge has no finite density.
            ends = [low, high] if low > 0 else [high]
            share = whole - len(ends)
            solved = min(share, max(24, most // len(intervals)))
            angle, wanted = ((np.arange(m) + 0.5) * math.pi / m for m in (solved, share))
            at = _unfolded(low, high, angle, hard)
            near = scan.take((scan.x > low) & (scan.x < high))
            here = (
                self.continued(at, between(near.x, near.values, at))
                if len(near.x) > 3
                else self.approached(at)
            )
            density, x = here.density, _unfolded(low, high, wanted, hard)
            if solved < share:
                # In this angle the density is smooth up to the edges, where it vanishes; at a hard edge at zero the
                # density of the singular values is even in it.
                factor = np.sqrt(at) if hard else np.ones_like(at)
                knots, heights = np.append(angle, math.pi), np.append(density * factor, 0.0)
                if low == 0:
                    knots, heights = np.append(-angle[2::-1], knots), np.append(heights[2::-1], heights)
                else:
                    knots, heights = np.append(0.0, knots), np.append(0.0, heights)
                density = CubicSpline(knots, heights)(wanted) / (np.sqrt(x) if hard else 1.0)
                fewer = CubicSpline(knots[::2], heights[::2])(wanted) / (np.sqrt(x) if hard else 1.0)
                doubt += abs(_mass(fewer - density, x, low, high))
            density = np.maximum(density, 0.0)
            here_mass = _mass(density, x, low, high)
            mass += here_mass
            all_x.append(np.concatenate([ends[:-1], x, ends[-1:]]))
            all_density.append(np.pad(density, (len(ends) - 1, 1)))
            missed.append(area(all_density[-1], all_x[-1]) - here_mass)
        return _Grid(np.concatenate(all_x), np.concatenate(all_density), mass, doubt, np.array(missed))

    def above(self) -> tuple[Outlier, ...]:
        """The outliers alone."""
        intervals, scan = self.support(whole=self.in_pieces)
        return self.all_outliers(intervals, scan)

    @property
    def in_pieces(self) -> bool:
        """Whether the bulk is made of several, among which outliers may stand."""
        return False

    def all_outliers(self, intervals: Sequence[tuple[float, float]], scan: Bulk) -> tuple[Outlier, ...]:
        """Eigenvalues outside the bulk, from the largest down: above it, and between its pieces."""
        edge = intervals[-1][1]
        found = self.outliers(edge, scan)
        if self.in_pieces:
            for (_, low), (high, _) in zip(intervals[-2::-1], intervals[:0:-1], strict=True):
                if high > low * (1 + 10 * NEAREST):
                    found += self.outliers_within(low, high, edge, scan)
        return found

    def outliers_within(self, low: float, high: float, edge: float, scan: Bulk) -> tuple[Outlier, ...]:
        """Eigenvalues between two pieces of the bulk, from the largest down."""
        return ()

    def spectrum(self, points: int, check: bool = True) -> Spectrum:
        """Bulk, edges and outliers, and if asked for a check of the density."""
        intervals, scan = self.support()
        edge = intervals[-1][1]
        # A density with several humps takes more points.
        shares = _shared_out(intervals, points)
        for most in (GRID_POINTS, points):
            grid = self.grid(intervals, shares, scan, most)
            mass = grid.mass + self.atom
            # Mass that lies outside of the intervals is not found by more points inside.
            if abs(mass - 1) < RIGHT_MASS or (grid.doubt < SURE_MASS and abs(mass - 1) < 3 * RIGHT_MASS):
                break
        if len(intervals) > 1 and abs(grid.missed).sum() > RIGHT_LINE:
            # With all of them solved.
            shares = _shared_anew(shares, grid.missed)
            other = self.grid(intervals, shares, scan, len(shares) * points)
            grid = min(grid, other, key=lambda one: float(abs(one.missed).sum()))
        x, density = grid.x, grid.density
        if not abs(mass - 1) < WRONG_MASS:
            raise fixedpoint.ConvergenceError(
                f"the predicted density integrates to {mass:.3f} instead of 1, because the bulk falls into "
                "many bands: lower the step size",
                density,
                x,
            )
        accuracy = self.checked(x, density, scan) if check else math.nan
        outliers = self.all_outliers(intervals, scan)
        notes: tuple[str, ...] = ()
        if self.loose is not None:
            x, density, edge, notes = self._with_loose(x, density, edge, scan)
            intervals[-1] = (intervals[-1][0], edge)
        return Spectrum(
            self.problem,
            self.sizes,
            self.step_size,
            self.of,
            "unified",
            x,
            density,
            (intervals[0][0], edge),
            tuple(intervals),
            self.atom,
            outliers,
            {
                "mass": mass,
                "accuracy": accuracy,
                "resolution": self.resolution,
                "notes": notes,
                "end_range": self.end_range or (edge, edge),
            },
        )

    def _with_loose(
        self, x: Array, density: Array, edge: float, scan: Bulk
    ) -> tuple[Array, Array, float, tuple[str, ...]]:
        """The density with the eigenvalues of the largest labels, which lie beyond the edge, and how these scatter."""
        assert self.loose is not None
        far = edge * np.geomspace(1 + NEAREST, LOOSEST, LOOSE_POINTS)
        start = scan.take(scan.x > edge)
        start = self.approached(far[:1]).merged(start)
        values = self.solve(self.ridge(far, ASIDE), between(start.x, start.values, far), TIGHT)

        def score(places: Array, shares: Array, turned: Array) -> Array:
            return self.loose_score(far, values, places, shares, turned)

        beyond = self.loose.beyond(score, len(far))
        x, density, end = with_tail(x, density, far, beyond, self.total)
        if end <= edge:
            return x, density, end, ()
        low, high = (float(place) for place in np.interp(-SCATTER, -np.minimum.accumulate(beyond), far))
        note = (
            f"the bulk's end at step size {self.step_size:.4g} is an eigenvalue of the largest label and differs from "
            f"draw to draw: {end:.3g} in the middle, {low:.3g} to {high:.3g} in nine of ten networks"
        )
        self.end_range = low, high
        return x, density, end, (note,)

    def loose_score(self, x: Array, values: Values, places: Array, shares: Array, turned: Array) -> Array:
        """Positive where a direction of M with this eigenvalue makes an eigenvalue beyond x, (points, places)."""
        raise NotImplementedError

    @property
    def total(self) -> float:
        """Eigenvalues in all."""
        return float(self.sizes.n_samples if self.of == "features" else self.sizes.width)

    def checked(self, x: Array, density: Array, scan: Bulk) -> float:
        """Change of this density under refinement, in units of its maximum, if it can be looked at."""
        return math.nan


def _shared_out(intervals: Sequence[tuple[float, float]], points: int) -> list[int]:
    """Points for each piece: as many for all if there are a few, of many more for wide ones."""
    each = points // len(intervals)
    if len(intervals) <= MANY_PIECES:
        return [max(10, each)] * len(intervals)
    widths = np.log([high / max(low, NARROW * high) for low, high in intervals])
    left = max(points - LEAST_POINTS * len(intervals), 0)
    return [LEAST_POINTS + int(left * width / widths.sum()) for width in widths]


def _shared_anew(shares: Sequence[int], missed: Array) -> list[int]:
    """As many points in all, where a line misses least: it misses c/m^2 with m points."""
    wanted = np.cbrt(abs(missed) * np.square(shares))
    least = [min(share, LEAST_POINTS) for share in shares]
    left = sum(shares) - sum(least)
    return [few + int(left * one / wanted.sum()) for few, one in zip(least, wanted, strict=True)]


def _secant(known: Sequence[Bulk], outside: Array) -> Array:
    """Where the squared density vanishes: on the line through two points inside, but not beyond the one outside."""
    old, last = known
    squares = [(bulk.density * bulk.x) ** 2 for bulk in known]
    fall = squares[0] - squares[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        guess = last.x + (last.x - old.x) * squares[1] / fall
    sensible = (fall > 0) & np.isfinite(guess)
    low, high = np.minimum(last.x, outside), np.maximum(last.x, outside)
    return np.clip(np.where(sensible, guess, (last.x + outside) / 2), low, high)


def _unfolded(low: float, high: float, angle: Array, hard: bool) -> Array:
    """Points of an interval at these angles; near a hard edge at zero the root of the eigenvalue is the variable."""
    if hard:
        low, high = math.sqrt(low), math.sqrt(high)
    x = (low + high) / 2 - (high - low) / 2 * np.cos(angle)
    return np.asarray(x**2 if hard else x)


def between(old: Array, values: Values, new: Array) -> Values:
    """Solutions at new points by linear interpolation in log x."""
    if len(old) == 1:
        return np.repeat(values, len(new), axis=0)
    right = np.clip(np.searchsorted(old, new), 1, len(old) - 1)
    left = right - 1
    width = np.maximum(np.log(old[right] / old[left]), 1e-300)
    share = np.clip(np.log(new / old[left]) / width, 0.0, 1.0)[:, None]
    return np.asarray((1 - share) * values[left] + share * values[right])


def area(density: Array, x: Array) -> float:
    """Integral of a line through points."""
    from scipy.integrate import trapezoid

    return float(trapezoid(density, x))


def _mass(density: Array, x: Array, low: float, high: float) -> float:
    """Integral of the density over the grid of an interval: the midpoint rule in the angle that unfolds the edges."""
    angle = (np.arange(len(x)) + 0.5) * math.pi / len(x)
    if low <= HARD_EDGE * high:
        slope = np.sin(angle) * (math.sqrt(high) - math.sqrt(low)) * np.sqrt(x)
    else:
        slope = np.sin(angle) * (high - low) / 2
    return float(density @ slope) * math.pi / len(x)
