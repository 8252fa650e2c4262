"""Spectrum of the weights: rows of covariance that depends on their readout, and one spike."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array
from firststep.numerics import fixedpoint
from firststep.results import Outlier
from firststep.setting import Problem, Sizes
from firststep.theory.coefficients import Resolution, Values, interpolation, readout_rule
from firststep.theory.spectra.bulk import (
    APPROACH,
    ASIDE,
    EMPTY,
    NEAREST,
    SCAN_POINTS,
    SCAN_RANGE,
    TIGHT,
    UNLIKELY,
    Bulk,
    Solver,
    between,
)
from firststep.theory.spectra.loose import loose_labels
from firststep.theory.step_law import beyond_spike, bulk_law, directions_of

# Nodes of the law of M for the weights, whose equations are cheap, and distance of those of a Gaussian readout.
RESOLUTION = Resolution(1, 0.45, 12)
MOST_LEVELS, LEAST_SPACING = 24, 0.03
# The same for a blurred view.
BLURRED = Resolution(1, 0.06, 12)
# Nodes of the law without the largest labels, in units of those of the whole: its tail must not fall into bands.
FINER = 4
# Change of the density under refinement, in units of its maximum, that is aimed at, and how often it is refined.
ACCURACY, SETTLING_ROUNDS, CHECKS = 1e-3, 6, 40
# Neurons for each dimension below which readouts have bands of their own.
FEW_NEURONS = 0.1
# Relative differences below which an average over a cell is a series.
NEAR = 1e-3
# Where a band of its own is looked for, in units of its width.
AROUND = np.array([-1.5, -0.9, -0.4, 0.0, 0.4, 0.9, 1.5])


class WeightBulk(Solver):
    r"""Weights: rows of covariance :math:`((1 + kUM)^2 + \kappa^2 U^2)/d` and spike [firststep, spectra, eqs. 4-6]."""

    of = "weights"

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
        few = sizes.width < FEW_NEURONS * sizes.dim and problem.readout_law.atoms is None
        resolution = resolution or (
            replace(RESOLUTION, readout_spacing=0.2, cells=True) if few else RESOLUTION
        )
        self.resolution: Resolution = resolution
        c = problem.activation.hermite(3)
        order_one = problem.output_law.order_one
        law = bulk_law(problem, sizes, rest, resolution.rest_levels)
        if loose:
            self.loose = loose_labels(problem, sizes, step_size, law, FINER * resolution.rest_levels)
            law = law if self.loose is None else self.loose.law
        residual = problem.label_variance + problem.output_variance(sizes)
        turn = 2 * float(c[2]) * step_size / math.sqrt(sizes.width) if rest == "structured" else 0.0
        kappa2 = step_size**2 / sizes.width * sizes.step_ratio * residual * beyond_spike(problem, rest)
        u, u_weights, _ = readout_rule(problem.readout_law, resolution.readout_spacing, 0)
        keep, keep_m = u_weights * sizes.width > UNLIKELY, law.weights * sizes.dim > UNLIKELY
        self.u, self.u_weights = u[keep], u_weights[keep] / u_weights[keep].sum()
        law = replace(
            law,
            nodes=law.nodes[keep_m],
            weights=law.weights[keep_m] / law.weights[keep_m].sum(),
            share=law.share[keep_m],
        )
        self.law, self.turn = law, turn

        def variance(nodes: Array, share: Array) -> Array:
            return np.asarray((1 + turn * np.outer(nodes, self.u)) ** 2 + kappa2 * np.outer(share, self.u**2))

        self.variance_at = variance
        self.variance = variance(law.nodes, law.share)
        self.special_variance = variance(law.special_nodes, law.special_share)
        self.aspect = sizes.width / sizes.dim
        self.mean = float(law.weights @ self.variance @ self.u_weights)
        self.atom = max(0.0, 1 - sizes.dim / sizes.width)
        shared, axes = directions_of(problem, sizes, np.array([step_size]), rest="structured")
        self.strength = float(np.linalg.norm(shared[0]))
        self.vectors = law.special_vectors @ axes[0].T  # directions z, e1 (, e2)
        self.beta = law.special_vectors[:, 0]
        self.order_one = order_one

    def scan_points(self) -> Array:
        """Besides a wide range the bands of single directions (N far above d) and of single neurons (N far below d)."""
        by_direction = self.aspect * (self.variance @ self.u_weights)
        by_neuron = self.law.weights @ self.variance
        # Twice the root of the ratio is half the width of a Marchenko-Pastur law.
        width = 2 * math.sqrt(min(self.aspect, 1 / self.aspect))
        bands = np.outer(by_direction if self.aspect > 1 else by_neuron, 1 + width * AROUND).ravel()
        if self.resolution.cells:
            bands = by_neuron[:0]
        wide = self.mean * max(1.0, self.aspect) * np.geomspace(*SCAN_RANGE, SCAN_POINTS * self.effort)
        return np.unique(np.append(wide, bands[bands > wide[0]]))

    @property
    def aim(self) -> float:
        """The change of the density under refinement that is enough."""
        return ACCURACY

    def settled(self) -> "WeightBulk":
        """The same at a resolution at which the density moves by less than `ACCURACY`; `accuracy` says by how much."""
        now = self
        for _ in range(SETTLING_ROUNDS):
            scan = now.known = now.scanned(now.scan_points())
            inside = scan.take(now.height(scan) > EMPTY)
            inside = inside.take(slice(None, None, 1 + len(inside.x) // CHECKS))
            finer = now.finer()
            if finer is None or not len(inside.x):
                break
            again = finer.continued(inside.x, now.carried(inside.values, finer))
            moved = float(np.abs(again.density - inside.density).max() / inside.density.max())
            if moved < ACCURACY:
                now.accuracy = moved
                break
            # What the finer one moves by is not known yet; this much at most, if it is worth its nodes.
            finer.accuracy, finer.neighbour, now.neighbour = moved, now, None
            now = finer
        now.neighbour = None
        return now

    def alternatives(self) -> "Iterator[WeightBulk]":
        """None: what refinement can do is done in `settled`."""
        return iter(())

    def finer(self) -> "WeightBulk | None":
        """With more nodes, where these are not at their limit; None if all are."""
        used = self.resolution
        levels = (
            used.rest_levels if len(self.law.nodes) == 1 else min(MOST_LEVELS, round(1.5 * used.rest_levels))
        )
        atoms = self.problem.readout_law.atoms is not None
        spacing = used.readout_spacing if atoms else max(LEAST_SPACING, used.readout_spacing / 2)
        # With few neurons each readout has its own band, which no number of nodes blurs.
        cells = used.cells or (not atoms and self.aspect < 1 and used != RESOLUTION)
        resolution = replace(used, rest_levels=levels, readout_spacing=spacing, cells=cells)
        if resolution == used:
            return None
        return WeightBulk(
            self.problem, self.sizes, self.step_size, self.rest, resolution, self.loose is not None
        )

    def coarse(self) -> "WeightBulk":
        """The same with as few nodes as a blurred view needs."""
        return WeightBulk(self.problem, self.sizes, self.step_size, self.rest, BLURRED)

    def solve(self, ridge: Values, start: Values | None, tolerance: float) -> Values:
        """1 + e(U): g(m) = 1/(lambda + (N/d) E_u[c/(1 + e)]), e(U) = int c g dmu."""
        mu, c, w = self.law.weights, self.variance, self.u_weights

        def g_of(inverse: Values, index: NDArray[np.intp]) -> Values:
            return np.asarray(1 / (ridge[index][:, None] + self.aspect * (w * inverse) @ c.T))

        def plain(values: Values, index: NDArray[np.intp]) -> Values:
            return np.asarray(1 + (mu * g_of(self._inverse(values), index)) @ c)

        def newton(values: Values, index: NDArray[np.intp]) -> tuple[Values, Values]:
            g = g_of(self._inverse(values), index)
            error = 1 - (1 + (mu * g) @ c) / values
            # Relative residuals react through the L values g(m) alone: diagonal plus a product of thin matrices.
            own = 1 - error
            thin = self.aspect * (c.T * (mu * g**2)[:, None, :]) / values[:, :, None]
            wide = self._through_inverse(np.broadcast_to(c * w, (len(g), *c.shape)), values)
            inner = np.eye(len(mu)) + wide @ (thin / own[:, :, None])
            found = error / own
            found = (
                found - ((thin / own[:, :, None]) @ np.linalg.solve(inner, wide @ found[..., None]))[..., 0]
            )
            return -found, np.abs(error).max(axis=1)

        rounds = 0
        if start is None:
            start, rounds = np.full((len(ridge), len(w)), 1.0 + 0j), 2 * fixedpoint.PLAIN_ROUNDS
        equations = fixedpoint.Equations(newton, plain, what="the weights' equations")
        return fixedpoint.solve(equations, start, tolerance=tolerance, plain_rounds=rounds).value

    def checked(self, x: Array, density: Array, scan: Bulk) -> float:
        """The change that was seen when the resolution was chosen."""
        return self.accuracy

    def loose_score(self, x: Array, values: Values, places: Array, shares: Array, turned: Array) -> Array:
        """A direction with variance c(U, m) is beyond x where its resolvent has changed its sign."""
        weighted = self.u_weights * self._inverse(values).real
        variance = self.variance_at(places, shares) + self.turn**2 * np.outer(turned, self.u**2)
        return np.asarray(self.aspect * weighted @ variance.T - x[:, None])

    def carried(self, values: Values, to: "WeightBulk") -> Values:
        """1 + e(U) at another solver's readouts."""
        return values @ interpolation(self.u, to.u)

    def _resolvent(self, x: Values, values: Values, variance: Array) -> Values:
        weighted = self.u_weights * self._inverse(values)
        return np.asarray(1 / (-x[:, None] + self.aspect * weighted @ variance.T))

    def _inverse(self, values: Values) -> Values:
        """1/(1 + e) at the nodes, or its average over their cells, in which 1 + e is taken as linear."""
        if not self.resolution.cells:
            return np.asarray(1 / values)
        left, right = _half_cells(values)
        return np.asarray((_mean_inverse(left, values)[0] + _mean_inverse(right, values)[0]) / 2)

    def _through_inverse(self, kernel: Values, values: Values) -> Values:
        """kernel (B, j, i) times the derivative of node i's inverse with respect to log(1 + e) of node k."""
        if not self.resolution.cells:
            return -kernel / values[:, None, :]
        left, right = _half_cells(values)
        (_, by_left, own_left), (_, by_right, own_right) = (
            _mean_inverse(left, values),
            _mean_inverse(right, values),
        )
        own = (own_left + own_right + by_left / 2 + by_right / 2) / 2
        # The outermost cells end at their nodes.
        own[:, 0] += by_left[:, 0] / 4
        own[:, -1] += by_right[:, -1] / 4
        result = kernel * own[:, None, :]
        result[:, :, :-1] += kernel[:, :, 1:] * (by_left[:, None, 1:] / 4)
        result[:, :, 1:] += kernel[:, :, :-1] * (by_right[:, None, :-1] / 4)
        return np.asarray(result * values[:, None, :])

    def density(self, x: Array, values: Values) -> Array:
        """Density of W W^T: d/N times that of W^T W."""
        # The transform of W^T W has no atom at zero if N > d; that of W W^T is not needed.
        own = self.transform(self.ridge(x, APPROACH[-1]), values).imag / math.pi
        width = self.height_above(x)
        zero = max(0.0, 1 / self.aspect - 1) * width / (math.pi * (x**2 + width**2))
        return np.asarray(own - zero)

    def transform(self, ridge: Values, values: Values) -> Values:
        """d/N times that of W^T W, whose eigenvalues are the same up to those at zero."""
        return np.asarray(self._resolvent(-ridge, values, self.variance) @ self.law.weights / self.aspect)

    def _spike(self, x: Values, values: Values) -> Values:
        """Zero at an outlier: 1 + theta^2 E[U^2/(1+e)] G_v, or 1 + |v|^2 G_v where W0^T a is part of v."""
        g = self._resolvent(x, values, self.special_variance)
        along = g @ self.vectors[:, 0] ** 2
        factor = 1.0 if self.order_one else (self.u_weights * self.u**2 * self._inverse(values)).sum(axis=1)
        return np.asarray(1 + self.strength**2 * factor * along)

    def outliers(self, edge: float, scan: Bulk) -> tuple[Outlier, ...]:
        """The spike, if it left the bulk."""
        from scipy.optimize import brentq

        top = 4 * (edge + (1 + self.strength**2) * (1 + self.aspect))
        near = edge * (1 + NEAREST)
        beyond = scan.take(scan.x > near)
        beyond = self.approached(np.array([near])).merged(beyond)

        def solved(x: Array) -> Values:
            return self.solve(self.ridge(x, ASIDE), between(beyond.x, beyond.values, x), TIGHT)

        def spike(x: Array) -> Array:
            return self._spike(-self.ridge(x, ASIDE), solved(x)).real

        # In a rare band beyond the edge the sign says nothing: what counts is the last change from below.
        searched = beyond.x[beyond.x < top]
        inside = np.flatnonzero(spike(searched) < 0)
        if self.strength == 0 or not len(inside):
            return ()
        last = int(inside[-1])
        right = float(beyond.x[last + 1]) if last + 1 < len(beyond.x) else top
        x = float(
            brentq(
                lambda at: float(spike(np.array([at]))[0]), float(searched[last]), right, xtol=1e-10 * edge
            )
        )
        values, point = solved(np.array([x])), -self.ridge(np.array([x]), ASIDE)
        # Just above the axis the imaginary part is the derivative times the distance.
        slope = float(self._spike(point, values)[0].imag) / (ASIDE * self.mean)
        g = self._resolvent(point, values, self.special_variance)[0].real
        factor = (
            1.0
            if self.order_one
            else float((self.u_weights * self.u**2 * self._inverse(values)[0]).sum().real)
        )
        overlaps = {}
        for name, direction in (("beta", self.beta), ("direction", self.vectors[:, 0])):
            across = float((g * direction) @ self.vectors[:, 0])
            overlaps[name] = self.strength**2 * factor * across**2 / slope
        return (Outlier(x, math.sqrt(x), overlaps, x / edge),)


def _half_cells(values: Values) -> tuple[Values, Values]:
    """Values in the middle between a node and its neighbours on both sides; at the ends those of the node."""
    middle = (values[:, 1:] + values[:, :-1]) / 2
    return np.concatenate([values[:, :1], middle], axis=1), np.concatenate([middle, values[:, -1:]], axis=1)


def _mean_inverse(start: Values, end: Values) -> tuple[Values, Values, Values]:
    """Average of 1/v between two values, v linear, and its derivatives with respect to both."""
    ratio = start / end - 1
    near = np.abs(ratio) < NEAR
    safe = np.where(near, 1.0, ratio)
    log = np.log1p(safe)
    # log(1 + r)/r and its derivative, as series where r is small.
    value = np.where(near, 1 - ratio / 2 + ratio**2 / 3, log / safe)
    slope = np.where(near, -0.5 + 2 * ratio / 3 - 3 * ratio**2 / 4, (1 / (1 + safe) - log / safe) / safe)
    return value / end, slope / end**2, -(value + slope * (1 + ratio)) / end**2
