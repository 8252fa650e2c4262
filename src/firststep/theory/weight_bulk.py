"""Spectrum of the weights: rows of covariance that depends on their readout, and one spike."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from firststep import fixedpoint
from firststep.gaussian import Array
from firststep.problem import Outlier, Problem, Sizes
from firststep.theory.bulk import APPROACH, ASIDE, NEAREST, TIGHT, UNLIKELY, Bulk, Solver, between
from firststep.theory.coefficients import Values, directions_of, interpolation, readout_rule
from firststep.theory.rest import point_law, rest_law

# Nodes of the law of M for the weights, whose equations are cheap.
WEIGHT_LEVELS = 12
# Distance of the nodes of a Gaussian readout.
READOUT_SPACING = 0.45


class WeightBulk(Solver):
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
        u, u_weights, _ = readout_rule(problem.readout, READOUT_SPACING, 0)
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
            kernel = (c.T * (mu * g**2)[:, None, :]) @ c
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

    def carried(self, values: Values, to: "WeightBulk") -> Values:
        """1 + e(U) at another solver's readouts."""
        return values @ interpolation(self.u, to.u)

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
        values = values.real
        g = self._resolvent(np.array([x]), values, self.special_variance)[0]
        factor = 1.0 if self.order_one else float((self.u_weights * self.u**2 / values[0]).sum())
        overlaps = {}
        for name, direction in (("beta", self.beta), ("direction", self.vectors[:, 0])):
            across = float((g * direction) @ self.vectors[:, 0])
            overlaps[name] = self.strength**2 * factor * across**2 / slope
        return (Outlier(x, math.sqrt(x), overlaps, x / edge),)
