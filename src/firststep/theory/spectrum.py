r"""Predicted spectra of the features and of the weights: bulk, edges, outliers and their overlaps [firststep, spectra].

The Stieltjes transform of :math:`F F^\top/n` is :math:`(n/N) E_z \rho(z)` at the ridge :math:`\lambda = -x`, so the
bulk comes from the equations of the unified theory at complex ridge. Outliers are the real x outside the bulk at which
the finite-rank system of spikes and random weights becomes singular; their residues are the overlaps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firststep import fixedpoint
from firststep.gaussian import Array, hermite_polynomials
from firststep.problem import Outlier, Problem, Sizes, Spectrum
from firststep.theory.coefficients import (
    SMALL_SPIKE,
    Geometry,
    Resolution,
    Tables,
    Values,
    degrees_of,
    directions_of,
    geometry_of,
    is_polynomial,
    readout_rule,
    spike_strength,
    tables_of,
)
from firststep.theory.equations import forms_at, solve_points
from firststep.theory.rest import point_law, rest_law

KINDS = ("features", "weights")
# Distances from the real axis, in units of the mean eigenvalue, on the way from an easy problem to the density.
APPROACH = (3.0, 0.5, 0.1, 0.02, 2e-3, 1e-7)
# Outliers are looked for this far from the real axis: farther than the rare bands that a few extreme samples make.
ASIDE = 1e-5
# Enough for a density to 1e-3; refined once to check.
RESOLUTION = Resolution(12, 0.9, 4)
# Points with which each of these distances is passed.
APPROACH_POINTS = (8, 16, 31, 61, 61, 61)
# Where bulks are looked for, in units of the mean eigenvalue.
SCAN_RANGE, SCAN_POINTS = (1e-4, 1e2), 61
LOWEST, LOWEST_POINTS = 1e-6, 15
HIGHEST, HIGHEST_POINTS = 1e5, 31
EDGE_ROUNDS = 8
# Points at which a density is solved; more are interpolated.
GRID_POINTS = 72
# A lower edge below this share of the upper one counts as close to zero.
HARD_EDGE = 0.02
# Nodes of z that a spike of one adds; twice as many where all neurons have the same.
MORE_NODES = 24
# Nodes of the law of M for the weights, whose equations are cheap.
WEIGHT_LEVELS = 12
# Quadrature nodes that stand for less than this share of a sample or neuron are dropped.
UNLIKELY = 2e-3
# Rounding-level residuals are not needed on the way.
LOOSE, TIGHT = 1e-5, 1e-8
# A density below this, in units of one over the mean eigenvalue, is outside the bulk.
EMPTY = 1e-3
# Outliers closer to the edge than this, relatively, are not told from it.
NEAREST = 5e-4
# Share of an outlier's left vector that must lie in functions of the special directions.
FAINT = 0.02
# A density whose integral is wrong by more than this is refused, by more than a quarter of it solved again, finer.
WRONG_MASS = 0.02
EFFORTS = (1, 2)
# Relative accuracy of a critical step size.
CRITICAL_ACCURACY = 0.01
# Largest Hermite degree whose overlap is reported.
DEGREES = 4
# Largest monomial of z and power of the readout, likewise.
MONOMIALS, POWERS = 3, 3


def predict_spectrum(
    problem: Problem,
    sizes: Sizes,
    step_size: float,
    of: str = "features",
    *,
    points: int = 200,
    rest: str = "structured",
) -> Spectrum:
    r"""Spectrum of :math:`F F^\top/n` or of :math:`W_1 W_1^\top` that the unified theory predicts.

    Parameters
    ----------
    problem, sizes
        What is studied.
    step_size : float
        :math:`\eta \ge 0`.
    of : {"features", "weights"}
        Whose eigenvalues.
    points : int
        Points of the density.
    rest : {"structured", "noise", "none"}
        What becomes of the gradient beyond its spike, as in `firststep.theory.unified.solve`.

    Returns
    -------
    Spectrum
        Overlaps of features: ``"h0"`` … ``"h4"`` with Hermite polynomials of z, the coordinate along the vector that
        the neurons share, ``"z2"`` and ``"z3"`` with its monomials, ``"beta"`` with :math:`\beta\cdot x` (left singular
        vector), and ``"a1"`` … ``"a3"`` with the powers of the readout (right singular vector). Overlaps of weights:
        ``"beta"`` and ``"direction"`` (input side).

    Examples
    --------
    >>> found = predict_spectrum(Problem("relu", "h1 + h2/sqrt(2)", 0.5), Sizes(2000, 1000, 1500), step_size=5.0)
    >>> print(f"{found.edges[1]:.2f}", [f"{outlier.eigenvalue:.1f}" for outlier in found.outliers])
    2.04 ['4.4']
    """
    if of not in KINDS:
        raise ValueError(f"of must be one of {', '.join(KINDS)}; got {of!r}")
    if not (math.isfinite(step_size) and step_size >= 0):
        raise ValueError(f"step_size must be finite and not negative, got {step_size}")
    if points < 10:
        raise ValueError(f"points must be at least 10, got {points}")
    if of == "weights":
        return _WeightBulk(problem, sizes, float(step_size), rest).spectrum(points)
    for effort in EFFORTS[:-1]:
        try:
            found = _FeatureBulk(problem, sizes, float(step_size), rest, effort).spectrum(points)
        except fixedpoint.ConvergenceError:
            continue
        if abs(found.details["mass"] - 1) < WRONG_MASS / 4:
            return found
    return _FeatureBulk(problem, sizes, float(step_size), rest, EFFORTS[-1]).spectrum(points)


def expected_outliers(problem: Problem, sizes: Sizes, step_size: float, *, rest: str = "structured") -> int:
    """Number of eigenvalues of the features outside the bulk.

    Examples
    --------
    >>> expected_outliers(Problem("tanh", "identity", rows="sphere"), Sizes(1000, 500, 750), step_size=0.0)
    0
    """
    return len(_FeatureBulk(problem, sizes, float(step_size), rest).above())


def critical_steps(
    problem: Problem, sizes: Sizes, count: int = 2, *, largest: float | None = None, rest: str = "structured"
) -> list[float]:
    r"""Step sizes at which the first, second, … spike leaves the bulk of the features at this size.

    Spikes that are outside without a step (an activation with :math:`c_2 \ne 0` may have one where norms fluctuate)
    count from there on. A spike that stays inside up to `largest` (:math:`3\sqrt N` by default) gives infinity. To
    about two per cent, because an outlier is told from the edge only at a relative distance of 5e-4.

    Examples
    --------
    >>> first, = critical_steps(Problem("tanh", "identity", noise_std=0.5), Sizes(1000, 500, 750), count=1)
    >>> print(f"{first:.1f}")
    1.9
    """
    top = 3 * math.sqrt(sizes.width) if largest is None else largest
    base = expected_outliers(problem, sizes, 0.0, rest=rest)
    grid = np.geomspace(0.3, top, 10)
    counts = [expected_outliers(problem, sizes, float(step), rest=rest) - base for step in grid]
    found = []
    for k in range(1, count + 1):
        above = [i for i, c in enumerate(counts) if c >= k]
        if not above:
            found.append(math.inf)
            continue
        low, high = (0.0 if above[0] == 0 else float(grid[above[0] - 1])), float(grid[above[0]])
        while high > max((1 + CRITICAL_ACCURACY) * low, 1e-3):
            middle = math.sqrt(low * high) if low > 0 else high / 2
            inside = expected_outliers(problem, sizes, middle, rest=rest) - base < k
            low, high = (middle, high) if inside else (low, middle)
        found.append(math.sqrt(low * high) if low > 0 else high / 2)
    return found


@dataclass(frozen=True)
class _Bulk:
    """Points on the real axis, in ascending order, with the solutions just above them and the density."""

    x: Array
    values: Values
    density: Array

    def merged(self, other: "_Bulk") -> "_Bulk":
        """Both sets of points as one."""
        order = np.argsort(np.concatenate([self.x, other.x]), kind="stable")
        return _Bulk(
            np.concatenate([self.x, other.x])[order],
            np.concatenate([self.values, other.values])[order],
            np.concatenate([self.density, other.density])[order],
        )

    def take(self, index: NDArray[Any]) -> "_Bulk":
        """Some of the points."""
        return _Bulk(self.x[index], self.values[index], self.density[index])


class _Solver:
    """What both spectra share: approach to the real axis, support, edges, grid."""

    problem: Problem
    sizes: Sizes
    step_size: float
    of: str
    effort: int = 1  # refines nodes and scan where narrow bands were missed
    mean: float  # mean eigenvalue
    atom: float

    def solve(self, ridge: Values, start: Values | None, tolerance: float) -> Values:
        """Solution at complex (or real) ridge = -x."""
        raise NotImplementedError

    def density(self, x: Array, values: Values) -> Array:
        """Density of the eigenvalues, without the atom."""
        raise NotImplementedError

    def outliers(self, edge: float, scan: _Bulk) -> tuple[Outlier, ...]:
        """Eigenvalues above the bulk."""
        raise NotImplementedError

    def ridge(self, x: Array, distance: float = APPROACH[-1]) -> Values:
        """The complex ridge at x, this far from the real axis in units of the mean eigenvalue."""
        return np.asarray(-x - 1j * self.height_above(x, distance))

    def height_above(self, x: Array, distance: float = APPROACH[-1]) -> Array:
        """Distance from the real axis; at the end in units of x where that is smaller, for edges close to zero."""
        return np.asarray(
            distance * (np.minimum(x, self.mean) if distance == APPROACH[-1] else self.mean + 0 * x)
        )

    def approached(self, x: Array) -> _Bulk:
        """Solutions at ascending x, from far above the real axis down to it.

        Far above, the solution is smooth in x and a few points are enough to start the next level.
        """
        most = APPROACH_POINTS[0]
        at = x if len(x) <= most else x[np.linspace(0, len(x) - 1, most).round().astype(int)]
        values = self.solve(self.ridge(at, APPROACH[0]), None, LOOSE)
        for above, distance, most in zip(APPROACH, APPROACH[1:], APPROACH_POINTS[1:], strict=False):
            last = distance == APPROACH[-1]
            now = x if last or len(x) <= most else x[np.linspace(0, len(x) - 1, most).round().astype(int)]
            values = self._lowered(now, _between(at, values, now), above, distance)
            at = now
        return _Bulk(x, values, self.density(x, values))

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

    def continued(self, x: Array, start: Values) -> _Bulk:
        """Solutions at ascending x from a good start; points where that fails are approached from above."""
        try:
            values = self.solve(self.ridge(x), start, TIGHT)
            density = self.density(x, values)
            # The mirror image below the axis solves the equations too.
            lost = density < -EMPTY / self.mean
        except fixedpoint.ConvergenceError as error:
            values = np.array(error.value)
            density = self.density(x, values)
            lost = (np.asarray(error.residual) > TIGHT) | (density < -EMPTY / self.mean)
        if lost.any():
            again = self.approached(x[lost])
            values[lost], density[lost] = again.values, again.density
        return _Bulk(x, values, density)

    def without_atom(self, x: Array, density: Array) -> Array:
        """Take out what the eigenvalues at zero add at a small distance from the real axis."""
        width = self.height_above(x)
        return np.asarray(density - self.atom * width / (math.pi * (x**2 + width**2)))

    def height(self, bulk: _Bulk) -> Array:
        """The density in units that make it comparable between pieces of the bulk."""
        return np.asarray(bulk.density * np.maximum(bulk.x, self.mean))

    def support(self) -> tuple[list[tuple[float, float]], _Bulk]:
        """Intervals of the bulk, from left to right, and all points solved on the way."""
        scan = self.approached(self.mean * np.geomspace(*SCAN_RANGE, SCAN_POINTS * self.effort))
        full = self.height(scan) > EMPTY
        if full[0]:
            # N close to n: the edge may lie far below.
            lower = self.mean * np.geomspace(LOWEST, SCAN_RANGE[0], LOWEST_POINTS)[:-1]
            scan = self.approached(lower).merged(scan)
            full = self.height(scan) > EMPTY
        if full[-1]:
            # An activation that grows fast has a bulk with a long tail.
            scan = scan.merged(
                self.approached(self.mean * np.geomspace(SCAN_RANGE[1], HIGHEST, HIGHEST_POINTS)[1:])
            )
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
        return list(zip(ends[::2], ends[1::2], strict=True)), scan if near is None else scan.merged(near)

    def _edges(
        self, scan: _Bulk, index: NDArray[np.intp], left_is_inside: NDArray[np.bool_]
    ) -> tuple[list[float], _Bulk | None]:
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
        found: list[_Bulk] = []
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
                _Bulk(
                    np.where(full, last.x, old.x),
                    np.where(keep, last.values, old.values),
                    np.where(full, last.density, old.density),
                ),
                _Bulk(
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

    def grid(self, intervals: Sequence[tuple[float, float]], points: int, scan: _Bulk) -> tuple[Array, Array]:
        """Points that crowd at the edges, `points` in all, and the density there."""
        from scipy.interpolate import CubicSpline

        share = max(8, points // len(intervals))
        solved = min(share, max(24, GRID_POINTS // len(intervals)))
        all_x, all_density = [], []
        for low, high in intervals:
            hard = low <= HARD_EDGE * high
            angle, wanted = ((np.arange(m) + 0.5) * math.pi / m for m in (solved, share))
            at = _unfolded(low, high, angle, hard)
            near = scan.take((scan.x > low) & (scan.x < high))
            here = (
                self.continued(at, _between(near.x, near.values, at))
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
            all_x.append(x)
            all_density.append(np.maximum(density, 0.0))
        return np.concatenate(all_x), np.concatenate(all_density)

    def above(self) -> tuple[Outlier, ...]:
        """The outliers alone."""
        intervals, scan = self.support()
        return self.outliers(intervals[-1][1], scan)

    def spectrum(self, points: int) -> Spectrum:
        """Bulk, edges and outliers."""
        intervals, scan = self.support()
        x, density = self.grid(intervals, points, scan)
        edge = intervals[-1][1]
        mass = _mass(x, density, intervals) + self.atom
        if not abs(mass - 1) < WRONG_MASS:
            raise fixedpoint.ConvergenceError(
                f"the predicted density integrates to {mass:.3f} instead of 1, because the bulk falls into "
                "many bands: lower the step size",
                density,
                x,
            )
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
            self.outliers(edge, scan),
            {"mass": mass},
        )


def _secant(known: Sequence[_Bulk], outside: Array) -> Array:
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


def _between(old: Array, values: Values, new: Array) -> Values:
    """Solutions at new points by linear interpolation in log x."""
    if len(old) == 1:
        return np.repeat(values, len(new), axis=0)
    right = np.clip(np.searchsorted(old, new), 1, len(old) - 1)
    left = right - 1
    width = np.maximum(np.log(old[right] / old[left]), 1e-300)
    share = np.clip(np.log(new / old[left]) / width, 0.0, 1.0)[:, None]
    return np.asarray((1 - share) * values[left] + share * values[right])


def _mass(x: Array, density: Array, intervals: Sequence[tuple[float, float]]) -> float:
    """Integral of the density over its grid: the midpoint rule in the angle that unfolds the edges."""
    total = 0.0
    for low, high in intervals:
        inside = (x >= low) & (x <= high)
        count = int(inside.sum())
        angle = (np.arange(count) + 0.5) * math.pi / count
        if low <= HARD_EDGE * high:
            slope = np.sin(angle) * (math.sqrt(high) - math.sqrt(low)) * np.sqrt(x[inside])
        else:
            slope = np.sin(angle) * (high - low) / 2
        total += float(density[inside] @ slope) * math.pi / count
    return total


def _resolution(problem: Problem, sizes: Sizes, step_size: float, spike: float, effort: int) -> Resolution:
    """Enough nodes for a density to 1e-3 in the sense of the docs.

    A large spike makes the samples differ, a large turn by M the directions, and each node becomes a band of its own
    where nothing else blurs it; the neurons' different readouts do.
    """
    nodes, levels, blurred = RESOLUTION.nodes, float(RESOLUTION.rest_levels), problem.readout == "gaussian"
    if spike > SMALL_SPIKE:
        nodes += round((MORE_NODES if blurred else 2 * MORE_NODES) * min(spike, 1.5) * effort)
    variance = problem.label_variance + problem.output_variance(sizes)
    turn = 2 * abs(float(problem.activation.hermite(3)[2])) * step_size / math.sqrt(sizes.width)
    levels += min(
        (10 if blurred else 40) * turn * math.sqrt(sizes.step_ratio * variance), 4 if blurred else 12
    )
    return Resolution(nodes, RESOLUTION.readout_spacing, round(levels))


def _likely(geometry: Geometry) -> Geometry:
    """Without readouts that no neuron has, z that no sample has, and directions of M that are not there.

    Not if polynomials are in use, whose quadrature is exact as it stands.

    A node of the quadrature that stands for less than a five-hundredth of a neuron would only make a false band.
    """
    if len(geometry.hermite):
        return geometry
    keep = geometry.u_weights * geometry.sizes.width > UNLIKELY
    keep_z = geometry.weights * geometry.sizes.n_samples > UNLIKELY
    keep_m = geometry.law.weights * geometry.sizes.dim > UNLIKELY
    u_weights, weights = geometry.u_weights[keep], geometry.weights[keep_z]
    law_weights = geometry.law.weights[keep_m]
    return replace(
        geometry,
        u=geometry.u[keep],
        u_weights=u_weights / u_weights.sum(),
        psi=geometry.psi[:, keep],
        z=geometry.z[keep_z],
        weights=weights / weights.sum(),
        hermite=geometry.hermite[:, keep_z],
        law=replace(geometry.law, nodes=geometry.law.nodes[keep_m], weights=law_weights / law_weights.sum()),
    )


class _FeatureBulk(_Solver):
    """Features: the unified equations at ridge -x."""

    of = "features"

    def __init__(self, problem: Problem, sizes: Sizes, step_size: float, rest: str, effort: int = 1) -> None:
        self.problem, self.sizes, self.step_size, self.rest = problem, sizes, step_size, rest
        self.effort = effort
        if step_size == 0:
            # Without a step the initial output plays no part.
            problem = problem.replaced(initial_output="vanishing")
        steps = np.array([step_size])
        spike = spike_strength(problem, sizes, steps, rest)
        degrees = degrees_of(float(spike[0]), sizes) if is_polynomial(spike, sizes)[0] else 0
        resolution = _resolution(problem, sizes, step_size, float(spike[0]), effort)
        self.geometry: Geometry = _likely(geometry_of(problem, sizes, resolution, rest, degrees))
        self.tables: Tables = tables_of(self.geometry, steps, rest)
        g, t = self.geometry, self.tables
        bulk = g.u_weights @ t.spread[0] @ g.weights + float((g.u_weights @ t.alpha[0] ** 2).sum())
        self.mean = float(bulk) / g.samples_per_neuron
        # F has rank N at most, and d at most if nothing but the linear part is left.
        rank = sizes.width if t.spread.max() > 1e-12 else min(sizes.width, sizes.dim)
        self.atom = max(0.0, 1 - rank / sizes.n_samples)

    def solve(self, ridge: Values, start: Values | None, tolerance: float) -> Values:
        """rho(z) and 1 + delta(u) at each ridge."""
        g = self.geometry
        if start is None:
            size = 1 / (ridge * g.samples_per_neuron + self.mean * g.samples_per_neuron)
            start = np.concatenate(
                [np.repeat(size[:, None], len(g.z), 1), np.full((len(ridge), len(g.u)), 1.0 + 0j)], axis=1
            )
            rounds = 2 * fixedpoint.PLAIN_ROUNDS
        else:
            rounds = 0
        return solve_points(g, self.tables.repeat(len(ridge)), ridge, start, tolerance, rounds).value

    def density(self, x: Array, values: Values) -> Array:
        """Im s(x)/pi with s = (n/N) E rho."""
        g = self.geometry
        return self.without_atom(x, g.samples_per_neuron * (values[:, : len(g.z)].imag @ g.weights) / math.pi)

    def joint(self, values: Values) -> Values:
        r"""Symmetric matrix that is singular at an outlier [firststep, spectra, eq. 2].

        .. math:: \begin{pmatrix} Q_i & C^\top \\ C & -(R^{-1} + G) \end{pmatrix}

        It is positive definite far to the right; each outlier makes one more eigenvalue negative.
        """
        f = forms_at(self.geometry, self.tables.repeat(len(values)), values)
        lower = -(np.linalg.inv(f.forms) + f.prior)
        c = np.broadcast_to(self.tables.spikes, (len(values), *self.tables.spikes.shape[1:]))
        top = np.concatenate([f.own, c.swapaxes(1, 2)], axis=2)
        return np.concatenate([top, np.concatenate([c, lower], axis=2)], axis=1)

    def beside(self, x: Array, start: Values) -> Values:
        """Solution at a small distance above the real axis, to the right of the bulk."""
        return self.solve(self.ridge(x, ASIDE), start, TIGHT)

    def outliers(self, edge: float, scan: _Bulk) -> tuple[Outlier, ...]:
        """Roots of the joint matrix's eigenvalues, with residues."""
        strength = float((self.tables.spikes**2).sum())
        beyond = np.flatnonzero(scan.x > edge * (1 + 2 * NEAREST))
        x, values = scan.x[beyond], scan.values[beyond]
        # From the scan on towards the edge, halving the distance.
        while x[0] > edge * (1 + 1.5 * NEAREST):
            at = np.array([edge * (1 + max((x[0] / edge - 1) / 3, NEAREST))])
            x, values = np.append(at, x), np.append(self.continued(at, values[:1]).values, values, axis=0)
        top = 4 * (edge + strength)
        if top > x[-1]:
            far = np.geomspace(x[-1], top, 2 + math.ceil(math.log2(top / x[-1])))[1:]
            # Far out rho and delta fall like 1/x.
            fall = (x[-1] / far)[:, None]
            rho, delta = (
                values[-1, : len(self.geometry.z)] * fall,
                1 + (values[-1, len(self.geometry.z) :] - 1) * fall,
            )
            x, values = np.append(x, far), np.append(values, np.append(rho, delta, axis=1), axis=0)
        else:
            last = int(np.searchsorted(x, top)) + 1
            x, values = x[:last], values[:last]
        try:
            values = self.beside(x, values)
        except fixedpoint.ConvergenceError as error:
            # A point inside a rare band is not needed.
            fine = np.asarray(error.residual) <= TIGHT
            if not fine[-1] or fine.sum() < 3:
                raise
            x, values = x[fine], self.beside(x[fine], np.asarray(error.value)[fine])
        levels = _eigenvalues(self.joint(values))
        negative = (levels < 0).sum(axis=1)
        found = []
        for k in range(int(negative[0])):
            i = int(np.flatnonzero(negative > k).max())
            if i == len(x) - 1:
                raise fixedpoint.ConvergenceError("an outlier lies beyond the range searched", x, levels)
            outlier, known = self._outlier(k, x[i : i + 2], levels[i : i + 2, k], values[i], edge)
            # A rare direction of M, or a rare readout, that the quadrature stands for by a node far out makes a root
            # of its own, whose vector is no function of what the neurons share: it belongs to the tail of the bulk.
            if known > FAINT:
                found.append(outlier)
        return tuple(found)

    def _outlier(
        self, k: int, bracket: Array, ends: Array, start: Values, edge: float
    ) -> tuple[Outlier, float]:
        """The k-th outlier, bracketed, and the share of its left vector that is explained.

        Root of the k-th eigenvalue by the Illinois method, then its residue.
        """
        (low, high), (f_low, f_high) = bracket, ends
        values, side = start[None], 0
        for _ in range(40):
            x = float((low * f_high - high * f_low) / (f_high - f_low))
            values = self.beside(np.array([x]), values)
            joint = self.joint(values)[0]
            level = float(_eigenvalues(joint[None])[0, k])
            if level > 0:
                high, f_high, f_low, side = x, level, f_low / 2 if side > 0 else f_low, 1
            else:
                low, f_low, f_high, side = x, level, f_high / 2 if side < 0 else f_high, -1
            if abs(level) < 1e-9 or high - low < 1e-9 * high:
                break
        vector = np.linalg.eigh((joint + joint.T).real / 2)[1][:, k]
        # Just above the axis the imaginary part is the derivative times the distance.
        slope = float(vector @ joint.imag @ vector) / (ASIDE * self.mean)
        known = float((vector[self.tables.psi.shape[1] :] ** 2).sum()) / slope
        return Outlier(x, math.sqrt(x), self._overlaps(vector, slope, x), x / edge), known

    def _overlaps(self, vector: Array, slope: float, x: float) -> dict[str, float]:
        """Squared overlaps from the residues of the joint matrix's inverse [firststep, spectra, eq. 3]."""
        g, t = self.geometry, self.tables
        spikes = t.psi.shape[1]
        by_direction = vector[spikes:].reshape(g.directions, -1)
        h = hermite_polynomials(g.z, DEGREES + 1, normalised=True)
        coefficients = (t.h[0] * g.weights) @ h.T
        found = {}
        for k in range(DEGREES + 1):
            found[f"h{k}"] = float(by_direction[0] @ coefficients[:, k]) ** 2 / slope
        r = float(t.cosine[0])
        along = (
            r * by_direction[0] @ coefficients[:, 1]
            + math.sqrt(1 - r**2) * by_direction[1] @ coefficients[:, 0]
        )
        found["beta"] = float(along) ** 2 / slope
        for k in range(2, MONOMIALS + 1):
            power = g.z**k
            power = power / math.sqrt(float(g.weights @ power**2))
            found[f"z{k}"] = float(by_direction[0] @ ((t.h[0] * g.weights) @ power)) ** 2 / slope
        for k in range(1, POWERS + 1):
            power = g.u**k
            power = power / math.sqrt(float(g.u_weights @ power**2))
            found[f"a{k}"] = float((t.psi[0] * g.u_weights) @ power @ vector[:spikes]) ** 2 / (slope * x)
        return found


def _eigenvalues(matrix: Values) -> Array:
    """Ascending eigenvalues of a batch of real symmetric matrices."""
    return np.asarray(np.linalg.eigvalsh((matrix + matrix.swapaxes(1, 2)).real / 2))


class _WeightBulk(_Solver):
    r"""Weights: rows of covariance :math:`((1 + kUM)^2 + \kappa^2 U^2)/d` and spike [firststep, spectra, eqs. 4-6]."""

    of = "weights"

    def __init__(self, problem: Problem, sizes: Sizes, step_size: float, rest: str) -> None:
        self.problem, self.sizes, self.step_size = problem, sizes, step_size
        c = problem.activation.hermite(3)
        order_one = problem.initial_output == "order_one"
        law = point_law(3 if order_one else 2)
        if rest == "structured" and c[2] != 0:
            output = (float(c[1]), problem.output_variance(sizes) - float(c[1]) ** 2) if order_one else None
            law = rest_law(problem.teacher, problem.noise_variance, sizes.step_ratio, output, WEIGHT_LEVELS)
        residual = problem.label_variance + (problem.output_variance(sizes) if order_one else 0.0)
        beyond = problem.activation.derivative_second_moment - float(c[1]) ** 2 if rest != "none" else 0.0
        turn = 0.0
        if rest == "structured":
            beyond -= 4 * float(c[2]) ** 2
            turn = 2 * float(c[2]) * step_size / math.sqrt(sizes.width)
        kappa2 = step_size**2 / sizes.width * sizes.step_ratio * residual * max(beyond, 0.0)
        u, u_weights, _ = readout_rule(problem.readout, RESOLUTION.readout_spacing / 2, 0)
        keep, keep_m = u_weights * sizes.width > UNLIKELY, law.weights * sizes.dim > UNLIKELY
        self.u, self.u_weights = u[keep], u_weights[keep] / u_weights[keep].sum()
        law = replace(law, nodes=law.nodes[keep_m], weights=law.weights[keep_m] / law.weights[keep_m].sum())
        self.law = law

        def variance(nodes: Array) -> Array:
            return np.asarray((1 + turn * np.outer(nodes, self.u)) ** 2 + kappa2 * self.u**2)

        self.variance, self.special_variance = variance(law.nodes), variance(law.special_nodes)
        self.aspect = sizes.width / sizes.dim
        self.mean = float(law.weights @ self.variance @ self.u_weights)
        self.atom = max(0.0, 1 - sizes.dim / sizes.width)
        shared, axes = directions_of(problem, sizes, np.array([step_size]), rest="structured")
        self.strength = float(np.linalg.norm(shared[0]))
        self.vectors = law.special_vectors @ axes[0].T  # directions z, e1 (, e2)
        self.beta = law.special_vectors[:, 0]
        self.order_one = order_one

    def solve(self, ridge: Values, start: Values | None, tolerance: float) -> Values:
        """1 + e(U): g(m) = 1/(lambda + (N/d) E_u[c/(1 + e)]), e(U) = int c g dmu."""
        mu, c, w = self.law.weights, self.variance, self.u_weights

        def g_of(values: Values, index: NDArray[np.intp]) -> Values:
            return np.asarray(1 / (ridge[index][:, None] + self.aspect * (w / values) @ c.T))

        def plain(values: Values, index: NDArray[np.intp]) -> Values:
            return np.asarray(1 + (mu * g_of(values, index)) @ c)

        def newton(values: Values, index: NDArray[np.intp]) -> tuple[Values, Values]:
            g = g_of(values, index)
            error = 1 - (1 + (mu * g) @ c) / values
            kernel = np.einsum("bl,lu,lv->buv", mu * g**2, c, c, optimize=True)
            jacobian = -self.aspect * kernel * (w / values)[:, None, :] / values[:, :, None]
            diagonal = np.arange(len(w))
            jacobian[:, diagonal, diagonal] += 1 - error
            return -np.linalg.solve(jacobian, error[..., None])[..., 0], np.abs(error).max(axis=1)

        rounds = 0
        if start is None:
            start, rounds = np.full((len(ridge), len(w)), 1.0 + 0j), 2 * fixedpoint.PLAIN_ROUNDS
        return fixedpoint.solve(
            newton, plain, start, tolerance=tolerance, plain_rounds=rounds, what="the weights' equations"
        ).value

    def _resolvent(self, x: Values, values: Values, variance: Array) -> Values:
        return np.asarray(1 / (-x[:, None] + self.aspect * (self.u_weights / values) @ variance.T))

    def density(self, x: Array, values: Values) -> Array:
        """Density of W W^T: d/N times that of W^T W."""
        g = self._resolvent(-self.ridge(x, APPROACH[-1]), values, self.variance)
        # The transform of W^T W has no atom at zero if N > d; that of W W^T is not needed.
        own = (g @ self.law.weights).imag / math.pi
        width = self.height_above(x)
        zero = max(0.0, 1 - self.aspect) * width / (math.pi * (x**2 + width**2))
        return np.asarray((own - zero) / self.aspect)

    def _spike(self, x: Values, values: Values) -> Values:
        """Zero at an outlier: 1 + theta^2 E[U^2/(1+e)] G_v, or 1 + |v|^2 G_v where W0^T a is part of v."""
        g = self._resolvent(x, values, self.special_variance)
        along = g @ self.vectors[:, 0] ** 2
        factor = 1.0 if self.order_one else (self.u_weights * self.u**2 / values).sum(axis=1)
        return np.asarray(1 + self.strength**2 * factor * along)

    def outliers(self, edge: float, scan: _Bulk) -> tuple[Outlier, ...]:
        """The spike, if it left the bulk."""
        from scipy.optimize import brentq

        top = 4 * (edge + (1 + self.strength**2) * (1 + self.aspect))
        near = edge * (1 + NEAREST)
        beyond = scan.take(scan.x > near)
        beyond = self.approached(np.array([near])).merged(beyond)

        def solved(x: float) -> Values:
            point = np.array([x])
            return self.solve(self.ridge(point, ASIDE), _between(beyond.x, beyond.values, point), TIGHT)

        def spike(x: float) -> float:
            return float(self._spike(-self.ridge(np.array([x]), ASIDE), solved(x))[0].real)

        # In a rare band beyond the edge the sign says nothing: what counts is the last change from below.
        inside = [k for k, x in enumerate(beyond.x) if x < top and spike(float(x)) < 0]
        if self.strength == 0 or not inside:
            return ()
        ends = (
            float(beyond.x[inside[-1]]),
            float(beyond.x[inside[-1] + 1]) if inside[-1] + 1 < len(beyond.x) else top,
        )
        x = float(brentq(spike, *ends, xtol=1e-10 * edge))
        values, point = solved(x), -self.ridge(np.array([x]), ASIDE)
        # Just above the axis the imaginary part is the derivative times the distance.
        slope = float(self._spike(point, values)[0].imag) / (ASIDE * self.mean)
        values = values.real
        g = self._resolvent(np.array([x]), values, self.special_variance)[0]
        factor = 1.0 if self.order_one else float((self.u_weights * self.u**2 / values[0]).sum())
        overlaps = {}
        for name, direction in (("beta", self.beta), ("direction", self.vectors[:, 0])):
            across = float((g * direction) @ self.vectors[:, 0])
            overlaps[name] = self.strength**2 * factor * across**2 / slope
        return (Outlier(x, math.sqrt(x), overlaps, x / edge),)
