r"""Predicted spectra of the features and of the weights: bulk, edges, outliers and their overlaps [firststep, spectra].

The Stieltjes transform of :math:`F F^\top/n` is :math:`(n/N) E_z \rho(z)` at the ridge :math:`\lambda = -x`, so the bulk
comes from the equations of the unified theory at complex ridge. Outliers are the real x outside the bulk at which the
finite-rank system of spikes and random weights becomes singular; their residues are the overlaps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firststep import fixedpoint
from firststep.gaussian import Array, hermite_polynomials
from firststep.problem import Outlier, Problem, Sizes, Spectrum
from firststep.theory.coefficients import (
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
# Rounding-level residuals are not needed on the way.
LOOSE, TIGHT = 1e-5, 1e-8
# A density below this, in units of one over the mean eigenvalue, is outside the bulk.
EMPTY = 1e-3
# Largest Hermite degree whose overlap is reported.
DEGREES = 4


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
        Overlaps of features: ``"h0"``, ``"h1"`` … with the normalised Hermite polynomials of z, the coordinate along the vector that
        the neurons share, ``"beta"`` with :math:`\beta\cdot x` (left singular vector), and ``"a1"`` … with the powers of
        the readout (right singular vector). Overlaps of weights: ``"beta"`` and ``"direction"`` (input side).

    Examples
    --------
    >>> found = predict_spectrum(Problem("relu", "h1 + h2/sqrt(2)", 0.5), Sizes(2000, 1000, 1500), step_size=10.0)
    >>> print(f"{found.edges[1]:.2f}", [f"{outlier.eigenvalue:.1f}" for outlier in found.outliers])
    1.92 ['16.1']
    """
    if of not in KINDS:
        raise ValueError(f"of must be one of {', '.join(KINDS)}; got {of!r}")
    if not (math.isfinite(step_size) and step_size >= 0):
        raise ValueError(f"step_size must be finite and not negative, got {step_size}")
    if points < 10:
        raise ValueError(f"points must be at least 10, got {points}")
    solver: _FeatureBulk | _WeightBulk
    if of == "features":
        solver = _FeatureBulk(problem, sizes, float(step_size), rest)
    else:
        solver = _WeightBulk(problem, sizes, float(step_size), rest)
    return solver.spectrum(points)


def expected_outliers(problem: Problem, sizes: Sizes, step_size: float, **options: Any) -> int:
    """Number of eigenvalues of the features outside the bulk.

    Examples
    --------
    >>> expected_outliers(Problem("tanh", "identity", rows="sphere"), Sizes(1000, 500, 750), step_size=0.0)
    0
    """
    return len(predict_spectrum(problem, sizes, step_size, points=20, **options).outliers)


def critical_steps(
    problem: Problem, sizes: Sizes, count: int = 2, *, largest: float | None = None, rest: str = "structured"
) -> list[float]:
    r"""Step sizes at which the first, second, … spike leaves the bulk of the features at this size.

    Spikes that are outside without a step (an activation with :math:`c_2 \ne 0` has one where norms fluctuate) count from
    there on. A spike that stays inside up to `largest` (:math:`3\sqrt N` by default) gives infinity.

    Examples
    --------
    >>> first, = critical_steps(Problem("tanh", "identity", noise_std=0.5), Sizes(1000, 500, 750), count=1)
    >>> print(f"{first:.1f}")
    1.5
    """
    top = 3 * math.sqrt(sizes.width) if largest is None else largest
    base = expected_outliers(problem, sizes, 0.0, rest=rest)
    grid = np.geomspace(0.3, top, 13)
    counts = [expected_outliers(problem, sizes, float(step), rest=rest) - base for step in grid]
    found = []
    for k in range(1, count + 1):
        above = [i for i, c in enumerate(counts) if c >= k]
        if not above:
            found.append(math.inf)
            continue
        low, high = (0.0 if above[0] == 0 else float(grid[above[0] - 1])), float(grid[above[0]])
        for _ in range(9):
            middle = math.sqrt(low * high) if low > 0 else high / 2
            inside = expected_outliers(problem, sizes, middle, rest=rest) - base < k
            low, high = (middle, high) if inside else (low, middle)
        found.append(math.sqrt(low * high) if low > 0 else high / 2)
    return found


@dataclass(frozen=True)
class _Bulk:
    """A bulk on its way to the real axis: x, the solutions there, and the density."""

    x: Array
    values: Values
    density: Array


class _Solver:
    """What both spectra share: approach to the real axis, support, edges, grid."""

    mean: float  # mean eigenvalue
    atom: float

    def solve(self, ridge: Values, start: Values | None, tolerance: float) -> Values:
        """Solution at complex (or real) ridge = -x."""
        raise NotImplementedError

    def density(self, x: Array, values: Values) -> Array:
        """Density of the eigenvalues, without the atom."""
        raise NotImplementedError

    def outliers(self, edge: float) -> tuple[Outlier, ...]:
        """Eigenvalues above the bulk."""
        raise NotImplementedError

    def bulk(self, x: Array, start: Values | None = None) -> _Bulk:
        """Density at x: from far above the real axis down to it, or straight from a good start."""
        values = start
        if start is not None:
            try:
                values = self.solve(self.ridge(x, APPROACH[-1]), start, TIGHT)
            except fixedpoint.ConvergenceError:
                values = None
            if values is not None and (self.density(x, values) < -EMPTY / self.mean).any():
                # The mirror image below the axis solves the equations too.
                values = None
        if values is None:
            for distance in APPROACH:
                last = distance == APPROACH[-1]
                values = self.solve(self.ridge(x, distance), values, TIGHT if last else LOOSE)
        assert values is not None
        return _Bulk(x, values, self.density(x, values))

    def ridge(self, x: Array, distance: float) -> Values:
        """The complex ridge at x, this far from the real axis in units of the mean eigenvalue."""
        return np.asarray(-x - 1j * distance * self.mean)

    def without_atom(self, x: Array, density: Array) -> Array:
        """Take out what the eigenvalues at zero add at a small distance from the real axis."""
        width = APPROACH[-1] * self.mean
        return np.asarray(density - self.atom * width / (math.pi * (x**2 + width**2)))

    def support(self) -> tuple[list[tuple[float, float]], _Bulk]:
        """Intervals of the bulk, from left to right, and the scan that found them."""
        scan = self.bulk(self.mean * np.geomspace(1e-4, 1e2, 61))
        full = scan.density * np.maximum(scan.x, self.mean) > EMPTY
        if not full.any():
            raise fixedpoint.ConvergenceError(
                "no bulk was found: check the ratios", scan.density, scan.density
            )
        changes = np.flatnonzero(np.diff(full.astype(int)))
        ends = self._edges(scan, changes, full[changes])
        if full[0]:
            # The bulk reaches down to (nearly) zero: a hard edge.
            ends.insert(0, 0.0)
        return list(zip(ends[::2], ends[1::2], strict=True)), scan

    def _edges(self, scan: _Bulk, index: NDArray[np.intp], left_is_inside: NDArray[np.bool_]) -> list[float]:
        """Edges between neighbours of the scan: brackets, then the square of the density, which is linear there."""
        if not len(index):
            return []
        inside = np.where(left_is_inside, scan.x[index], scan.x[index + 1])
        outside = np.where(left_is_inside, scan.x[index + 1], scan.x[index])
        start = scan.values[np.where(left_is_inside, index, index + 1)]
        for _ in range(3):
            x = inside[:, None] + (outside - inside)[:, None] * np.arange(8) / 8
            here = self.bulk(x.ravel(), np.repeat(start, 8, axis=0))
            full = (here.density * np.maximum(here.x, self.mean) > EMPTY).reshape(x.shape)
            last = np.maximum(
                np.argmin(np.concatenate([full, np.zeros((len(x), 1), bool)], axis=1), axis=1) - 1, 0
            )
            row = np.arange(len(x))
            beyond = np.concatenate([x, outside[:, None]], axis=1)
            start = here.values.reshape(*x.shape, -1)[row, last]
            inside, outside = x[row, last], beyond[row, last + 1]
        x = inside[:, None] + (inside - outside)[:, None] * np.array([1.0, 4.0])
        here = self.bulk(x.ravel(), np.repeat(start, 2, axis=0))
        squares = ((here.density * here.x) ** 2).reshape(x.shape)
        guess = x[:, 0] - squares[:, 0] * (x[:, 1] - x[:, 0]) / (squares[:, 1] - squares[:, 0])
        return np.clip(guess, np.minimum(inside, outside), np.maximum(inside, outside)).tolist()

    def grid(self, intervals: Sequence[tuple[float, float]], points: int, scan: _Bulk) -> _Bulk:
        """Density on points that crowd at the edges, `points` in all."""
        share = max(8, points // len(intervals))
        x = []
        for low, high in intervals:
            angle = (np.arange(share) + 0.5) * math.pi / share
            if low > 0.02 * high:
                x.append((low + high) / 2 - (high - low) / 2 * np.cos(angle))
            else:
                # Near a hard edge at zero the square root of the eigenvalue is the natural variable.
                root_low, root_high = math.sqrt(low), math.sqrt(high)
                x.append(((root_low + root_high) / 2 - (root_high - root_low) / 2 * np.cos(angle)) ** 2)
        parts = []
        for at, (low, high) in zip(x, intervals, strict=True):
            inside = (scan.x > low) & (scan.x < high)
            parts.append(
                self.bulk(at, _between(scan.x[inside], scan.values[inside], at) if inside.sum() > 3 else None)
            )
        return _Bulk(
            np.concatenate(x),
            np.concatenate([part.values for part in parts]),
            np.maximum(np.concatenate([part.density for part in parts]), 0.0),
        )

    def assemble(self, problem: Problem, sizes: Sizes, step_size: float, of: str, points: int) -> Spectrum:
        """Bulk, edges and outliers."""
        intervals, scan = self.support()
        found = self.grid(intervals, points, scan)
        edge = intervals[-1][1]
        mass = _mass(found, intervals) + self.atom
        if not abs(mass - 1) < 0.02:
            raise fixedpoint.ConvergenceError(
                f"the predicted density integrates to {mass:.3f} instead of 1: ask for more points",
                found.density,
                found.x,
            )
        return Spectrum(
            problem,
            sizes,
            step_size,
            of,
            "unified",
            found.x,
            found.density,
            (intervals[0][0], edge),
            tuple(intervals),
            self.atom,
            self.outliers(edge),
            {"mass": mass},
        )


def _between(old: Array, values: Values, new: Array) -> Values:
    """Solutions at new points by linear interpolation in log x."""
    right = np.clip(np.searchsorted(old, new), 1, len(old) - 1)
    left = right - 1
    share = np.clip(np.log(new / old[left]) / np.log(old[right] / old[left]), 0.0, 1.0)[:, None]
    return np.asarray((1 - share) * values[left] + share * values[right])


def _mass(bulk: _Bulk, intervals: Sequence[tuple[float, float]]) -> float:
    """Integral of the density over its grid."""
    total = 0.0
    for low, high in intervals:
        inside = (bulk.x >= low) & (bulk.x <= high)
        x = np.concatenate([[low], bulk.x[inside], [high]])
        # At a hard edge the density diverges like x^(-1/2): integrate over the square root.
        y = np.concatenate([[0.0], 2 * np.sqrt(bulk.x[inside]) * bulk.density[inside], [0.0]])
        if low <= 0.02 * high:
            y[0] = y[1]
        total += (
            float(np.trapezoid(y, np.sqrt(x))) if hasattr(np, "trapezoid") else float(np.trapz(y, np.sqrt(x)))
        )
    return total


class _FeatureBulk(_Solver):
    """Features: the unified equations at ridge -x."""

    def __init__(self, problem: Problem, sizes: Sizes, step_size: float, rest: str) -> None:
        self.problem, self.sizes, self.step_size, self.rest = problem, sizes, step_size, rest
        if step_size == 0:
            # Without a step the initial output plays no part.
            problem = problem.replaced(initial_output="vanishing")
        steps = np.array([step_size])
        spike = spike_strength(problem, sizes, steps, rest)
        degrees = degrees_of(float(spike[0]), sizes) if is_polynomial(spike, sizes)[0] else 0
        self.geometry: Geometry = geometry_of(problem, sizes, RESOLUTION, rest, degrees)
        self.tables: Tables = tables_of(self.geometry, steps, rest)
        g, t = self.geometry, self.tables
        bulk = g.u_weights @ t.spread[0] @ g.weights + float((g.u_weights @ t.alpha[0] ** 2).sum())
        self.mean = float(bulk) / g.samples_per_neuron
        # F has rank N at most, and d at most if nothing but the linear part is left.
        rank = sizes.width if t.spread.max() > 1e-12 else min(sizes.width, sizes.dim)
        self.atom = max(0.0, 1 - rank / sizes.n_samples)

    def spectrum(self, points: int) -> Spectrum:
        """The whole spectrum."""
        return self.assemble(self.problem, self.sizes, self.step_size, "features", points)

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

    def beside(self, x: Array, start: Values | None = None) -> Values:
        """Solution just above the real axis, to the right of the bulk."""
        if start is None:
            for distance in APPROACH[:-1]:
                start = self.solve(self.ridge(x, distance), start, LOOSE)
        return self.solve(self.ridge(x, ASIDE), start, TIGHT)

    def outliers(self, edge: float) -> tuple[Outlier, ...]:
        """Roots of the joint matrix's eigenvalues, with residues."""
        strength = float((self.tables.spikes**2).sum())
        top = 4 * (edge + strength)
        x = edge * (1 + np.geomspace(2e-3, max(top / edge - 1, 0.1), 24))
        values = self.beside(x)
        levels = _eigenvalues(self.joint(values))
        negative = (levels < 0).sum(axis=1)
        found = []
        for k in range(int(negative[0])):
            i = int(np.flatnonzero(negative > k).max())
            if i == len(x) - 1:
                raise fixedpoint.ConvergenceError("an outlier lies beyond the range searched", x, levels)
            found.append(self._outlier(k, x[i : i + 2], levels[i : i + 2, k], values[i], edge))
        return tuple(found)

    def _outlier(self, k: int, bracket: Array, ends: Array, start: Values, edge: float) -> Outlier:
        """The k-th outlier, bracketed: root of the k-th eigenvalue by the Illinois method, then its residue."""
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
        return Outlier(x, math.sqrt(x), self._overlaps(vector, slope, x), x / edge)

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
        for k in range(1, 3):
            power = g.u**k
            power = power / math.sqrt(float(g.u_weights @ power**2))
            found[f"a{k}"] = float((t.psi[0] * g.u_weights) @ power @ vector[:spikes]) ** 2 / (slope * x)
        return found


def _eigenvalues(matrix: Values) -> Array:
    """Ascending eigenvalues of a batch of real symmetric matrices."""
    return np.asarray(np.linalg.eigvalsh((matrix + matrix.swapaxes(1, 2)).real / 2))


class _WeightBulk(_Solver):
    r"""Weights: rows with covariances :math:`((1 + kUM)^2 + \kappa^2 U^2)/d` and a spike [firststep, spectra, eqs. 4-6]."""

    def __init__(self, problem: Problem, sizes: Sizes, step_size: float, rest: str) -> None:
        self.problem, self.sizes, self.step_size = problem, sizes, step_size
        c = problem.activation.hermite(3)
        order_one = problem.initial_output == "order_one"
        law = point_law(3 if order_one else 2)
        if rest == "structured" and c[2] != 0:
            output = (float(c[1]), problem.output_variance(sizes) - float(c[1]) ** 2) if order_one else None
            law = rest_law(
                problem.teacher, problem.noise_variance, sizes.step_ratio, output, RESOLUTION.rest_levels + 2
            )
        residual = problem.label_variance + (problem.output_variance(sizes) if order_one else 0.0)
        beyond = problem.activation.derivative_second_moment - float(c[1]) ** 2 if rest != "none" else 0.0
        turn = 0.0
        if rest == "structured":
            beyond -= 4 * float(c[2]) ** 2
            turn = 2 * float(c[2]) * step_size / math.sqrt(sizes.width)
        kappa2 = step_size**2 / sizes.width * sizes.step_ratio * residual * max(beyond, 0.0)
        self.u, self.u_weights, _ = readout_rule(problem.readout, RESOLUTION.readout_spacing / 2, 0)
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

    def spectrum(self, points: int) -> Spectrum:
        """The whole spectrum."""
        return self.assemble(self.problem, self.sizes, self.step_size, "weights", points)

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
        width = APPROACH[-1] * self.mean
        zero = max(0.0, 1 - self.aspect) * width / (math.pi * (x**2 + width**2))
        return np.asarray((own - zero) / self.aspect)

    def _spike(self, x: Values, values: Values) -> Values:
        """Zero at an outlier: 1 + theta^2 E[U^2/(1+e)] G_v, or 1 + |v|^2 G_v where W0^T a is part of v."""
        g = self._resolvent(x, values, self.special_variance)
        along = g @ self.vectors[:, 0] ** 2
        factor = 1.0 if self.order_one else (self.u_weights * self.u**2 / values).sum(axis=1)
        return np.asarray(1 + self.strength**2 * factor * along)

    def outliers(self, edge: float) -> tuple[Outlier, ...]:
        """The spike, if it left the bulk."""
        from scipy.optimize import brentq

        top = 4 * (edge + (1 + self.strength**2) * (1 + self.aspect))
        near = edge * (1 + 1e-6)
        state: dict[str, Values] = {"values": self.bulk(np.array([near])).values.real}

        def spike(x: float) -> float:
            point = np.array([x])
            state["values"] = self.solve(-point, self.bulk(point).values.real, TIGHT)
            return float(self._spike(point, state["values"])[0])

        if self.strength == 0 or spike(near) >= 0:
            return ()
        x = float(brentq(spike, near, top, xtol=1e-10 * edge))
        spike(x)
        values, step = state["values"], 1e-20 * x
        tilted = self.solve(np.array([-x - 1j * step]), values.astype(complex), TIGHT)
        point = np.array([x + 1j * step])
        slope = float(self._spike(point, tilted)[0].imag) / step
        g = self._resolvent(np.array([x]), values, self.special_variance)[0]
        factor = 1.0 if self.order_one else float((self.u_weights * self.u**2 / values[0]).sum())
        overlaps = {}
        for name, direction in (("beta", self.beta), ("direction", self.vectors[:, 0])):
            across = float((g * direction) @ self.vectors[:, 0])
            overlaps[name] = self.strength**2 * factor * across**2 / slope
        return (Outlier(x, math.sqrt(x), overlaps, x / edge),)
