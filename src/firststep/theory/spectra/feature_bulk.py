"""Spectrum of the features: the unified equations at complex ridge, and the roots of their finite-rank system."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from firststep.gaussian import Array, hermite_polynomials
from firststep.numerics import fixedpoint
from firststep.results import Outlier
from firststep.setting import Problem, Sizes
from firststep.theory.coefficients import (
    SMALL_SPIKE,
    Geometry,
    Resolution,
    Tables,
    Values,
    degrees_of,
    geometry_of,
    interpolation,
    is_polynomial,
    law_of,
    row_stretch,
    spike_strength,
    tables_of,
)
from firststep.theory.covariant_step import FEW_DIRECTIONS, levels_beside
from firststep.theory.equations import LONG, forms_at, repeated, solve_points
from firststep.theory.sectors import HIGHEST, degree_shares
from firststep.theory.spectra.bulk import (
    ASIDE,
    EMPTY,
    MOST_NUMBERS,
    NEAREST,
    REMEDY,
    TIGHT,
    UNLIKELY,
    Bulk,
    Solver,
    between,
)
from firststep.theory.spectra.loose import loose_labels
from firststep.theory.step_law import keeps_matrix

# Coarse, for the way from the complex plane to the real axis; refined from there.
RESOLUTION = Resolution(12, 0.9, 4, negligible=1e-4)
# For a blurred view: nodes of z, distance of the readout's, and functions of z that are left out.
# The second where the first would cost more than so many multiplications for each point and round.
BLURRED = (Resolution(60, 0.4, 4, negligible=1e-3), Resolution(24, 0.9, 3, negligible=1e-2))
DEAR = 3e5
# Nodes of z that a spike of one adds; twice as many where all neurons have the same.
MORE_NODES, MOST_NODES = 36, 1200
# A degree has a bulk of its own, or another shape than noise, from so many samples or neurons for each direction on.
RESOLVED = 0.1
# Spike sqrt(N) omega up to which functions of z are left out at the resolution's own size.
USUAL_SPIKE = 50.0
# Nodes of the law of M that a rest as large as the weights adds.
MORE_LEVELS = 12
# Cells of z where nodes alone are not enough.
CELLS = 650
# How much closer a spike of one brings the readout's nodes, and how close they may come.
SPACING, LEAST_SPACING = 1.5, 0.1
# Change of the density under refinement, in units of its maximum, that is aimed at; with few samples, neurons or
# directions draws differ by more, and this over their number is enough.
ACCURACY, DIFFERENT = 1e-3, 0.03
# Points at which it is solved again to see that, where they lie in units of the mean eigenvalue, and how often.
CHECK_RANGE, CHECKS = (3e-4, 10.0), 32
SETTLING_ROUNDS = 6
# Of the points of a density, every so many are looked at again at the end.
CHECK_EVERY = 9
# What a resolution has of each kind.
WAYS = ("nodes", "readout_spacing", "rest_levels")
# Rounds of the search for an outlier, and where in a bracket points are placed around the root of the secant.
ROOT_ROUNDS, AROUND = 20, np.array([-3e-2, -1e-3, 0.0, 1e-3, 3e-2])
# Rounds of Newton that a solution takes, for counting its cost.
USUAL_ROUNDS = 5
# Distance of points, in the logarithm, where single directions are looked for.
CLOSE = 0.07
# How often the range in which outliers are looked for is widened eightfold.
FARTHER = 8
# Points between two pieces of the bulk at which outliers are counted.
GAP_POINTS = 40
# Polynomials as bases are slower, and needed only where sqrt(N) would multiply rounding too much.
MANY_NEURONS = 1e5
# Share of an outlier's left vector that must lie in functions of the special directions.
FAINT = 0.02
# Largest Hermite degree whose overlap is reported.
DEGREES = 4
# Largest monomial of z and power of the readout, likewise.
MONOMIALS, POWERS = 3, 3


def _resolution(problem: Problem, sizes: Sizes, step_size: float, spike: float) -> Resolution:
    """Nodes for a density to about 1e-3, to start the refinement from.

    A large spike makes samples and neurons differ, the gradient's rest the directions, and each node becomes a band of
    its own where nothing blurs it. Samples are blurred by the neurons' different readouts, and less if there are many
    neurons; neurons less if there are many samples.
    """
    blurred = problem.readout_law.atoms is None
    nodes, spacing = RESOLUTION.nodes, RESOLUTION.readout_spacing
    if spike > SMALL_SPIKE:
        share = sizes.n_samples / sizes.width
        more = MORE_NODES * min(spike, 1.5) * (1 if blurred else 2 * max(1.0, 1 / share) ** 2)
        nodes += min(round(more), MOST_NODES)
        spacing /= 1 + SPACING * min(spike, 1.5) * max(1.0, math.sqrt(share))
    c2 = abs(float(problem.activation.hermite(3)[2]))
    variance = problem.label_variance + problem.output_variance(sizes)
    turn = 2 * c2 * step_size * math.sqrt(sizes.step_ratio * variance / sizes.width)
    if c2 == 0:
        turn = float(row_stretch(problem, sizes, np.array([step_size]), "structured")[0])
    levels = RESOLUTION.rest_levels + round(min(MORE_LEVELS * turn, 10))
    # What is left out of a spike of size sqrt(N) omega must stay small itself.
    negligible = RESOLUTION.negligible / max(1.0, spike * math.sqrt(sizes.width) / USUAL_SPIKE)
    return Resolution(nodes, spacing, levels, negligible)


def spectral_degrees(sizes: Sizes) -> int:
    """P, the highest degree with a bulk of its own; what is above it is noise to the spectrum.

    Examples
    --------
    >>> spectral_degrees(Sizes(1000, 500, 750)), spectral_degrees(Sizes(1500, 40, 1000))
    (1, 3)
    """
    return max(1, int((degree_shares(sizes, HIGHEST) > RESOLVED).sum()))


def _finer(resolution: Resolution, *ways: str) -> Resolution:
    """A resolution that is finer in these of its `WAYS`."""
    return replace(
        resolution,
        nodes=round(1.5 * resolution.nodes) if "nodes" in ways else resolution.nodes,
        readout_spacing=resolution.readout_spacing / (1.4 if "readout_spacing" in ways else 1.0),
        rest_levels=round(1.3 * resolution.rest_levels) + 1
        if "rest_levels" in ways
        else resolution.rest_levels,
    )


def _affordable(resolution: Resolution) -> bool:
    return resolution.nodes <= MOST_NODES and resolution.readout_spacing >= LEAST_SPACING


def reached(geometry: Geometry) -> Geometry:
    """Without readouts that no neuron has, z that no sample has, and directions of M that are not there.

    Not if polynomials are in use, whose quadrature is exact as it stands. A node beyond what is there would only make
    a false band.
    """
    if len(geometry.hermite):
        return geometry
    keep = np.abs(geometry.u) < max(_reach(geometry.sizes.width), 1.5)
    keep_z = np.abs(geometry.z) < _reach(geometry.sizes.n_samples)
    keep_m = geometry.law.weights * geometry.sizes.dim > UNLIKELY
    u_weights, weights = geometry.u_weights[keep], geometry.weights[keep_z]
    law_weights = geometry.law.weights[keep_m]
    return replace(
        geometry,
        u=geometry.u[keep],
        u_weights=u_weights / u_weights.sum(),
        psi=geometry.psi[:, keep],
        z=geometry.z[keep_z],
        others=geometry.others[:, keep_z],
        weights=weights / weights.sum(),
        hermite=geometry.hermite[:, keep_z],
        law=replace(
            geometry.law,
            nodes=geometry.law.nodes[keep_m],
            weights=law_weights / law_weights.sum(),
            share=geometry.law.share[keep_m],
        ),
    )


def _reach(count: float) -> float:
    """Size that one of so many Gaussian numbers exceeds with a chance of one in a hundred."""
    from scipy.special import ndtri

    return float(-ndtri(0.005 / count))


class FeatureBulk(Solver):
    """Features: the unified equations at ridge -x."""

    of = "features"
    one_coordinate = True  # whether overlaps with functions of z are told
    root_accuracy = 1e-9  # of an outlier's place
    resolution: Resolution
    begun: "tuple[FeatureBulk, Bulk] | None" = (
        None  # the same at the coarse resolution, and its scan, if it was made
    )

    def __init__(
        self,
        problem: Problem,
        sizes: Sizes,
        step_size: float,
        rest: str,
        resolution: Resolution | None = None,
        loose: bool = False,
    ) -> None:
        self.problem, self.sizes, self.step_size, self.rest = problem, sizes, step_size, rest
        if step_size == 0:
            # Without a step the initial output plays no part.
            problem = problem.replaced(initial_output="vanishing")
        steps = np.array([step_size])
        spike = spike_strength(problem, sizes, steps, rest)
        exact = is_polynomial(2 * spike, sizes)[0] and sizes.width > MANY_NEURONS
        degrees = degrees_of(float(spike[0]), sizes) if exact else 0
        self.resolution = resolution or _resolution(problem, sizes, step_size, float(spike[0]))
        highest = spectral_degrees(sizes)
        geometry = geometry_of(problem, sizes, self.resolution, rest, degrees, highest)
        if not keeps_matrix(problem, sizes):
            nodes, weights = levels_beside(problem, sizes, step_size)
            law = replace(geometry.law, nodes=nodes, weights=weights, share=np.ones_like(nodes))
            geometry = replace(geometry, law=law)
        if loose:
            levels = self.resolution.rest_levels + MORE_LEVELS // 2
            self.loose = loose_labels(problem, sizes, step_size, geometry.law, levels)
        if self.loose is not None:
            geometry = replace(geometry, law=self.loose.law)
        self.geometry: Geometry = reached(geometry)
        self.tables: Tables = tables_of(self.geometry, steps, rest)
        self.set_moments()

    def set_moments(self) -> None:
        """Mean eigenvalue and share of those at zero, from geometry and tables."""
        g, t, sizes = self.geometry, self.tables, self.sizes
        squares = [(alpha[0] ** 2).sum(axis=1) * t.stretch[0, levels] for alpha, levels in t.sectors]
        by_level = np.concatenate(squares) @ g.u_weights
        bulk = g.u_weights @ t.spread[0] @ g.weights + t.level_weights[0] @ by_level
        self.mean = float(bulk) / g.samples_per_neuron
        # F has rank N at most, and the directions of its degrees at most if nothing is left beyond them.
        directions = round(sizes.dim * float(t.level_weights[0][by_level > 1e-12].sum()))
        rank = sizes.width if t.spread.max() > 1e-12 else min(sizes.width, directions)
        self.atom = max(0.0, 1 - rank / sizes.n_samples)

    def _at(self, resolution: Resolution) -> "FeatureBulk":
        """The same spectrum at another resolution."""
        other = FeatureBulk(
            self.problem, self.sizes, self.step_size, self.rest, resolution, self.loose is not None
        )
        other.work = self.work
        return other

    def coarse(self) -> "FeatureBulk":
        """The same with as few nodes as a blurred view needs, without a limit."""
        if len(self.geometry.hermite):
            return self
        used, found = self.resolution, self
        for blurred in BLURRED:
            resolution = Resolution(
                min(used.nodes, blurred.nodes),
                max(used.readout_spacing, blurred.readout_spacing),
                blurred.rest_levels,
                max(used.negligible, blurred.negligible),
            )
            found = FeatureBulk(self.problem, self.sizes, self.step_size, self.rest, resolution)
            if found.cost < DEAR:
                break
        return found

    def carried(self, values: Values, to: "FeatureBulk") -> Values:
        """Solutions at the nodes of another resolution; 1/rho and delta are smooth where rho is not."""
        nz = len(self.geometry.z)
        samples = (1 / values[:, :nz]) @ interpolation(self.geometry.z, to.geometry.z)
        neurons = values[:, nz:] @ interpolation(self.geometry.u, to.geometry.u)
        return np.concatenate([1 / samples, neurons], axis=1)

    def scan_points(self) -> Array:
        """Besides a wide range, close to each other where single directions of a covariance have places."""
        wide, law, dim = super().scan_points(), self.geometry.law, self.sizes.dim
        loud = law.nodes[law.weights * dim < FEW_DIRECTIONS]
        if keeps_matrix(self.problem, self.sizes) or not len(loud):
            return wide
        # A direction of variance m has an eigenvalue of some m times the mean, and more.
        low, high = (math.log(self.mean * x) for x in (0.5, 3 * max(1.0, float(loud.max()))))
        return np.union1d(wide, np.exp(np.arange(low, high, CLOSE)))

    def scanned(self, x: Array) -> Bulk:
        """Polynomials as bases have few nodes, between which nothing is carried."""
        bases = [each for each in (self, self.neighbour) if isinstance(each, FeatureBulk)]
        if any(len(each.geometry.hermite) for each in bases):
            return self.first_scanned(x)
        return super().scanned(x)

    def first_scanned(self, x: Array) -> Bulk:
        """The way to the real axis is gone at a coarse resolution."""
        if len(self.geometry.hermite) or self.resolution == RESOLUTION:
            return self.approached(x)
        if self.begun is not None and self.effort == 1:
            coarse, known = self.begun
            if known.x[0] < x[0] * (1 + CLOSE) and x[-1] < known.x[-1] * (1 + CLOSE):
                return self.continued(x, coarse.carried(between(known.x, known.values, x), self))
        coarse = self._at(RESOLUTION)
        return self.continued(x, coarse.carried(coarse.approached(x).values, self))

    def _ways(self) -> tuple[str, ...]:
        """In which of the `WAYS` the resolution matters here."""
        if len(self.geometry.hermite):
            return ("rest_levels",)
        # Readouts of few values have no spacing.
        return WAYS if self.problem.readout_law.atoms is None else ("nodes", "rest_levels")

    def alternatives(self) -> "Iterator[FeatureBulk]":
        """The same spectrum at other resolutions, for where this one is not enough."""
        if len(self.geometry.hermite):
            return
        tried = [_finer(self.resolution, *WAYS)]
        if self.problem.readout_law.atoms is not None:
            # Samples may have bands of their own, which no number of nodes blurs.
            tried.append(replace(self.resolution, nodes=max(CELLS, self.resolution.nodes), cells=True))
        yield from (self._at(resolution) for resolution in tried if _affordable(resolution))

    @property
    def aim(self) -> float:
        """The change of the density under refinement that is enough."""
        return max(ACCURACY, DIFFERENT / min(self.sizes.n_samples, self.sizes.width, self.sizes.dim))

    def settled(self, rounds: int = SETTLING_ROUNDS) -> "FeatureBulk":
        """The same spectrum at a resolution at which the density does not move by more than `aim`.

        It is refined in the ways in which it moves, as often as `rounds` allow; `accuracy` tells how much it moves.
        """
        coarse, at = self, self.mean * np.geomspace(*CHECK_RANGE, CHECKS)
        if len(self.geometry.hermite):
            scan = self.approached(at)
        else:
            # On the way to the real axis the points of the scan come along.
            coarse = self._at(RESOLUTION)
            begun = coarse.approached(np.union1d(self.scan_points(), at))
            scan = begun.take(np.searchsorted(begun.x, at))
        inside = scan.take(coarse.height(scan) > EMPTY)
        if not len(inside.x):
            return self
        now, here = self, inside
        if coarse is not self:
            here = self.continued(inside.x, coarse.carried(inside.values, self))
        for _ in range(rounds):
            moved = {}
            for way in now._ways():
                other = now._at(_finer(now.resolution, way))
                again = other.continued(here.x, now.carried(here.values, other))
                moved[way] = float(np.abs(again.density - here.density).max() / here.density.max())
            now.accuracy = max(moved.values())
            refined = _finer(now.resolution, *(way for way, change in moved.items() if change > self.aim / 2))
            if refined == now.resolution or not _affordable(refined):
                break
            other = now._at(refined)
            now, here = other, other.continued(here.x, now.carried(here.values, other))
        if coarse is not self:
            now.begun = coarse, begun
        return now

    def checked(self, x: Array, density: Array, scan: Bulk) -> float:
        """The largest change seen, when the resolution was chosen and now at some points of the result."""
        some = slice(CHECK_EVERY // 2, None, CHECK_EVERY)
        if len(self.geometry.hermite):
            return self.accuracy
        finer, start = self._at(_finer(self.resolution, *WAYS)), between(scan.x, scan.values, x[some])
        again = finer.continued(x[some], self.carried(start, finer))
        moved = float(np.abs(again.density - density[some]).max() / density.max())
        return moved if math.isnan(self.accuracy) else max(moved, self.accuracy)

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
        values, left, failed = [], [], None
        together = self._together()
        for low in range(0, len(ridge), together):
            part = slice(low, low + together)
            self._count(len(ridge[part]), USUAL_ROUNDS)
            tables = self.repeated(len(ridge[part]))
            try:
                solved: Any = solve_points(g, tables, ridge[part], start[part], tolerance, rounds, REMEDY)
            except fixedpoint.ConvergenceError as error:
                solved = failed = error
                self._count(int((error.residual > tolerance).sum()), fixedpoint.MAX_ITER - USUAL_ROUNDS)
            values.append(np.asarray(solved.value))
            left.append(np.asarray(solved.residual))
        if failed is not None:
            raise fixedpoint.ConvergenceError(str(failed), np.concatenate(values), np.concatenate(left))
        return np.concatenate(values)

    def _count(self, points: int, rounds: int) -> None:
        """Put so many rounds at so many points on the bill, if there is one."""
        if self.work is not None:
            self.work.add(rounds * points * self.cost)

    def _together(self) -> int:
        """Points that are solved at once, for the memory that their matrices take."""
        g, t = self.geometry, self.tables
        basis, levels = max(t.h.shape[1], len(g.u)), t.level_weights.shape[1]
        return max(1, int(MOST_NUMBERS / max((len(g.z) + len(g.u)) ** 2, levels * basis**2)))

    @property
    def cost(self) -> float:
        """Multiplications for each point and round of Newton, by the way that `solve_points` goes."""
        g, t = self.geometry, self.tables
        nz, nu, basis, levels = len(g.z), len(g.u), t.h.shape[1], t.level_weights.shape[1]
        rank = basis * (basis + 1) / 2
        if nz <= LONG * rank and not g.cells:
            return float(levels * (nz + nu) ** 2 * basis)
        return float((nz + rank + nu) * (rank + nu) ** 2 + levels * (rank**2 + nz * basis * (basis + nu)))

    def density(self, x: Array, values: Values) -> Array:
        """Im s(x)/pi with s = (n/N) E rho."""
        return self.without_atom(x, self.transform(self.ridge(x), values).imag / math.pi)

    def transform(self, ridge: Values, values: Values) -> Values:
        """s = (n/N) E rho."""
        g = self.geometry
        return np.asarray(g.samples_per_neuron * (values[:, : len(g.z)] @ g.weights))

    def loose_score(self, x: Array, values: Values, places: Array, shares: Array, turned: Array) -> Array:
        """A direction with variance c(U, m) is beyond x where E_u[alpha alpha^T c y] has an eigenvalue above -1/P."""
        g, t, nz = self.geometry, self.tables, len(self.geometry.z)
        law = law_of(g, np.array([self.step_size]), self.rest)
        bent = np.outer(law.turn**2 * turned, g.u**2 / (1 + law.excess[0]))
        stretch = law.stretch(places, shares)[0] + bent
        alpha, mass = t.by_degree[0, 0], g.u_weights / values[:, nz:].real
        root = np.linalg.cholesky(
            -g.samples_per_dim * (t.h * (g.weights * values[:, :nz].real)[:, None]) @ t.h.swapaxes(1, 2)
        )
        seen = alpha @ root  # (points, nu, K)
        forms = np.einsum("mu,bu,bui,buj->bmij", stretch, mass, seen, seen, optimize=True)
        return np.asarray(np.linalg.eigvalsh(forms)[..., -1] - 1)

    def repeated(self, count: int) -> Tables:
        """The tables for so many points, without copies."""
        return self.tables.repeat(count)

    def joint(self, values: Values) -> Values:
        r"""Symmetric matrix that is singular at an outlier [firststep, spectra, eq. 2].

        .. math:: \begin{pmatrix} Q_i & C^\top \\ C & -(R^{-1} + G) \end{pmatrix}

        It is positive definite far to the right; each outlier makes one more eigenvalue negative.
        """
        f = forms_at(self.geometry, self.repeated(len(values)), values)
        lower = -(repeated(np.linalg.inv(f.form), len(self.tables.blocks)) + f.prior)
        c = np.broadcast_to(self.tables.spikes, (len(values), *self.tables.spikes.shape[1:]))
        top = np.concatenate([f.own, c.swapaxes(1, 2)], axis=2)
        return np.concatenate([top, np.concatenate([c, lower], axis=2)], axis=1)

    def beside(self, x: Array, start: Values) -> Values:
        """Solution at a small distance above the real axis, to the right of the bulk."""
        return self.solve(self.ridge(x, ASIDE), start, TIGHT)

    def outliers(self, edge: float, scan: Bulk) -> tuple[Outlier, ...]:
        """Roots of the joint matrix's eigenvalues, with residues."""
        strength = float((self.tables.spikes**2).sum())
        if scan.x[-1] <= edge * (1 + 2 * NEAREST):
            scan = scan.merged(self.approached(edge * np.array([1.5, 3.0])))
        beyond = np.flatnonzero(scan.x > edge * (1 + 2 * NEAREST))
        x, values = scan.x[beyond], scan.values[beyond]
        # From the scan on towards the edge, all at once.
        if x[0] > edge * (1 + 1.5 * NEAREST):
            count = max(1, math.ceil(math.log((x[0] / edge - 1) / NEAREST, 3)))
            at = edge * (1 + np.maximum((x[0] / edge - 1) / 3.0 ** np.arange(count, 0, -1), NEAREST))
            there = self.continued(at, np.repeat(values[:1], count, axis=0)).values
            x, values = np.append(at, x), np.append(there, values, axis=0)
        top = 4 * (edge + strength)
        if top > x[-1]:
            far = np.geomspace(x[-1], top, 2 + math.ceil(math.log2(top / x[-1])))[1:]
            x, values = np.append(x, far), np.append(values, self._farther(x[-1], values[-1], far), axis=0)
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
        for _ in range(FARTHER):
            if levels[-1, 0] >= 0:
                break
            # Rows that are long along the spike add to it: its place is beyond what the coefficients say.
            far = x[-1] * np.array([2.0, 4.0, 8.0])
            there = self.beside(far, self._farther(x[-1], values[-1], far))
            x, values = np.append(x, far), np.append(values, there, axis=0)
            levels = np.append(levels, _eigenvalues(self.joint(there)), axis=0)
        # Close to a direction of its own a form may have a zero, where its inverse changes sign.
        count = int((levels < 0).sum(axis=1).max())
        # The k-th eigenvalue changes sign for the last time at the k-th outlier.
        left = [int(np.flatnonzero(levels[:, k] < 0).max()) for k in range(count)]
        if count and max(left) == len(x) - 1:
            raise fixedpoint.ConvergenceError("an outlier lies beyond the range searched", x, levels)
        found = [self._outlier(k, *root, edge) for k, root in enumerate(self._roots(left, x, levels, values))]
        # A rare direction of M, or a rare readout, that the quadrature stands for by a node far out makes a root of its
        # own, whose vector is no function of what the neurons share: it belongs to the tail of the bulk.
        return tuple(outlier for outlier, known in found if known > FAINT)

    def _farther(self, x: float, values: Values, far: Array) -> Values:
        """Solutions far out, from one of them: rho and delta fall like 1/x."""
        fall, nz = (x / far)[:, None], len(self.geometry.z)
        return np.append(values[:nz] * fall, 1 + (values[nz:] - 1) * fall, axis=1)

    @property
    def in_pieces(self) -> bool:
        """Every degree that is resolved may have a piece of its own."""
        return self.geometry.highest > 1

    def outliers_within(self, low: float, high: float, edge: float, scan: Bulk) -> tuple[Outlier, ...]:
        """Roots between two pieces of the bulk: each makes one eigenvalue of the joint matrix positive.

        Where a form has a zero, its inverse takes one from plus to minus infinity: the number of negative eigenvalues
        grows there and falls at a root.
        """
        share = (1 - np.cos((np.arange(GAP_POINTS) + 0.5) * math.pi / GAP_POINTS)) / 2
        ends = math.log(low * (1 + NEAREST)), math.log(high * (1 - NEAREST))
        x = np.exp(ends[0] + share * (ends[1] - ends[0]))
        values = self.beside(x, self.continued(x, between(scan.x, scan.values, x)).values)
        joint = self.joint(values)
        negative = (_eigenvalues(joint) < 0).sum(axis=1)
        found: list[tuple[Outlier, float]] = []
        for i in np.flatnonzero(negative[:-1] > negative[1:]):
            cell = slice(i, i + 2)
            found += self._bisected(x[cell], values[cell], negative[cell], edge)
        known = [outlier for outlier, explained in found if explained > FAINT]
        return tuple(sorted(known, key=lambda outlier: -outlier.eigenvalue))

    def _bisected(
        self, x: Array, values: Values, negative: Array, edge: float
    ) -> list[tuple[Outlier, float]]:
        """Outliers in a cell at whose ends so many eigenvalues of the joint matrix are negative."""
        if negative[0] <= negative[1]:
            return []
        middle = np.array([math.sqrt(x[0] * x[1])])
        between_both = self.beside(middle, values.mean(axis=0, keepdims=True))
        joint = self.joint(between_both)
        levels = _eigenvalues(joint)[0]
        if x[1] < x[0] * (1 + 1e-10):
            at = int(np.abs(levels).argmin())
            return [self._outlier(at, float(middle[0]), joint[0], between_both[0], edge)]
        count = int((levels < 0).sum())
        parts = ((0, [negative[0], count]), (1, [count, negative[1]]))
        found: list[tuple[Outlier, float]] = []
        for side, counts in parts:
            ends = np.sort(np.append(x[side], middle))
            both = [values[side : side + 1], between_both][:: 1 if side == 0 else -1]
            found += self._bisected(ends, np.concatenate(both), np.array(counts), edge)
        return found

    def _roots(
        self, left: list[int], x: Array, levels: Array, values: Values
    ) -> list[tuple[float, Array, Values]]:
        """Where the k-th eigenvalue vanishes, between point left[k] and the next; joint matrix and solution there.

        Some points around each secant's root are solved together, which costs little more than one.
        """
        count = len(left)
        if not count:
            return []
        of = np.arange(count)
        ends = np.stack([x[left], x[np.add(left, 1)]], axis=1)
        heights = np.stack([levels[left, of], levels[np.add(left, 1), of]], axis=1)
        start = np.stack([values[left], values[np.add(left, 1)]], axis=1)
        for _ in range(ROOT_ROUNDS):
            share = heights[:, 0] / (heights[:, 0] - heights[:, 1])
            # Points close to the root, and some that halve the interval whatever the curve is like.
            near = np.clip(share[:, None] + AROUND, 0.02 * share[:, None], 0.98 + 0.02 * share[:, None])
            parts = np.sort(np.concatenate([near, np.broadcast_to([0.3, 0.7], (count, 2))], axis=1), axis=1)
            at = ends[:, :1] + parts * (ends[:, 1:] - ends[:, :1])
            guess = (1 - parts)[..., None] * start[:, :1] + parts[..., None] * start[:, 1:]
            solved = self.beside(at.ravel(), guess.reshape(at.size, -1))
            joint = self.joint(solved)
            level = np.stack([_eigenvalues(joint[at.shape[1] * k : at.shape[1] * (k + 1)])[:, k] for k in of])
            joint = joint.reshape(*at.shape, *joint.shape[1:])
            solved = solved.reshape(*at.shape, -1)
            places = np.concatenate([ends[:, :1], at, ends[:, 1:]], axis=1)
            all_levels = np.concatenate([heights[:, :1], level, heights[:, 1:]], axis=1)
            all_values = np.concatenate([start[:, :1], solved, start[:, 1:]], axis=1)
            low = np.array([int(np.flatnonzero(all_levels[k, :-1] < 0).max()) for k in of])
            ends = np.stack([places[of, low], places[of, low + 1]], axis=1)
            heights = np.stack([all_levels[of, low], all_levels[of, low + 1]], axis=1)
            start = np.stack([all_values[of, low], all_values[of, low + 1]], axis=1)
            best = np.abs(level).argmin(axis=1)
            width = np.ptp(ends / ends[:, 1:], axis=1).max()
            if (np.abs(level[of, best]) < 1e-9).all() or width < self.root_accuracy:
                break
        return [(float(at[k, best[k]]), joint[k, best[k]], solved[k, best[k]]) for k in of]

    def named_blocks(self) -> list[int]:
        """Blocks of functions of the coordinates and the special directions."""
        return list(range(self.tables.norm_start))

    def _outlier(self, k: int, x: float, joint: Values, values: Values, edge: float) -> tuple[Outlier, float]:
        """The k-th outlier, from joint matrix and solution, and the share of its left vector that is explained."""
        vector = np.linalg.eigh((joint + joint.T).real / 2)[1][:, k]
        # Just above the axis the imaginary part is the derivative times the distance.
        slope = float(vector @ joint.imag @ vector) / (ASIDE * self.mean)
        by_block = vector[self.tables.psi.shape[1] :].reshape(len(self.tables.blocks), -1)
        known = float((by_block[self.named_blocks()] ** 2).sum()) / slope
        if self.tables.norm_start < len(by_block):
            # The norm of x alone; times a coordinate it is one of d such functions, which are bulk.
            known += (
                float(by_block[self.tables.norm_start] @ (self.tables.h[0] @ self.geometry.weights)) ** 2
                / slope
            )
        # Between bulks there are outliers, too.
        place = max(x + self.pushed(x, vector, slope, joint, values), min(x, edge))
        return Outlier(place, math.sqrt(place), self._overlaps(vector, slope, x), place / edge), known

    def pushed(self, x: float, vector: Array, slope: float, joint: Values, values: Values) -> float:
        """How far others push the outlier at x, where that is known."""
        return 0.0

    def _overlaps(self, vector: Array, slope: float, x: float) -> dict[str, float]:
        """Squared overlaps from the residues of the joint matrix's inverse [firststep, spectra, eq. 3]."""
        g, t = self.geometry, self.tables
        spikes = t.psi.shape[1]
        by_direction = vector[spikes:].reshape(len(self.tables.blocks), -1)
        h = hermite_polynomials(g.z, DEGREES + 1, normalised=True)
        coefficients = (t.h[0] * g.weights) @ h.T
        found = {}
        for k in range(DEGREES + 1):
            found[f"h{k}"] = float(by_direction[0] @ coefficients[:, k]) ** 2 / slope
        signal = np.atleast_1d(self.problem.teacher.gradient_mean)
        size = float(np.linalg.norm(signal))
        # Where one step sees nothing, "beta" is t1.
        along = self._along_teacher(by_direction)
        found["beta"] = float(signal @ along / size if size > 0 else along[0]) ** 2 / slope
        if len(along) > 1:
            found |= {f"t{a + 1}": float(each) ** 2 / slope for a, each in enumerate(along)}
        if t.norm_start < len(t.blocks):
            found["norm"] = float(by_direction[t.norm_start] @ coefficients[:, 0]) ** 2 / slope
        for k in range(2, MONOMIALS + 1):
            power = g.z**k
            power = power / math.sqrt(float(g.weights @ power**2))
            found[f"z{k}"] = float(by_direction[0] @ ((t.h[0] * g.weights) @ power)) ** 2 / slope
        for k in range(1, POWERS + 1):
            power = g.u**k
            power = power / math.sqrt(float(g.u_weights @ power**2))
            found[f"a{k}"] = float((t.psi[0] * g.u_weights) @ power @ vector[:spikes]) ** 2 / (slope * x)
        if self.one_coordinate:
            return found
        return {name: value for name, value in found.items() if name == "h0" or name[0] not in "hz"}

    def _along_teacher(self, by_block: Array) -> Array:
        """A function's coefficients on the teacher's directions, (k,)."""
        g, t = self.geometry, self.tables
        found = t.cosines[0] @ g.coordinates @ (by_block[0] @ t.h[0] * g.weights)
        for e in range(t.asides.shape[2]):
            unit = tuple(int(i == e) for i in range(t.asides.shape[2]))
            mean = float((by_block[t.blocks.index(unit)] @ t.h[0]) @ g.weights)
            found = found + t.asides[0][:, e] * mean
        return np.asarray(found)


def _eigenvalues(matrix: Values) -> Array:
    """Ascending eigenvalues of a batch of real symmetric matrices."""
    return np.asarray(np.linalg.eigvalsh((matrix + matrix.swapaxes(1, 2)).real / 2))
