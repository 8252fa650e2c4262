r"""Spectrum of the weights after one step on inputs with a covariance [firststep, covariance].

Weights are those that act on x. Along an eigenvector of S with eigenvalue m a row has the variance
:math:`(1 + \tau U^2 m^{2g-1})/d`, and all share :math:`S^{g-1/2}\tilde b`, so that the bulk's resolvent A(x, m) is
another one in every direction. With V the special directions an outlier is where

.. math:: \Big(\int\frac{V V^\top}{A(x, m)}\Big)^{-1} + \frac Nd E_U\Big[\frac{C'(U)}{1 + e(U)}\Big]
    + N E_U\Big[\frac{q(U) q(U)^\top}{1 + e(U)}\Big]

is singular; C' is what the rows' covariance has there beyond its law.
"""

import math
from dataclasses import replace

import numpy as np

from firststep.theory.covariant_step import general_step, profiles_of, seen_slope
from firststep.theory.directions import grouped, loud_covariance, turned_covariance
from firststep.theory.rest import point_law
from firststep.theory.spectra.two_steps import Rows, TwoStepWeights
from firststep.theory.step_law import beyond_spike


class CovariantWeights(TwoStepWeights):
    """Weights after one step under any covariance [firststep, covariance, eq. 7]."""

    def _set_rows(self) -> None:
        """The rows' law in typical and in special directions: v, S^(1/2) theta_a, and the coordinates of both."""
        problem, sizes, u, step = self.problem, self.sizes, self.u, self.steps[0]
        values, shares, _ = grouped(problem.covariance(sizes.dim))
        self.law = replace(point_law(2), nodes=values, weights=shares, share=np.ones_like(values))
        profiles, moments = profiles_of(problem, sizes)
        m, c, root = profiles.values, problem.activation.hermite(3), math.sqrt(sizes.width)
        power = 1.0 if problem.rule.plain else 0.0
        signal = np.atleast_1d(problem.teacher.gradient_mean)
        seen_signal = (
            profiles.known * seen_slope(problem.activation, m, sizes.dim)
            if self.rest == "structured"
            else profiles.known
        )
        raw = np.tensordot(signal, seen_signal, 1) + math.sqrt(profiles.noise) * profiles.scatter
        direction = raw * m ** (power - 0.5)
        seen = profiles.known * np.sqrt(m)
        length = float(np.sqrt(profiles.product(direction, direction)))
        vectors = profiles.orthonormal(direction[None] / length, seen)
        turn = 2 * float(c[2]) * step / root if self.rest == "structured" else 0.0
        scale = step**2 / sizes.width * sizes.step_ratio * moments.square
        noise = scale * beyond_spike(problem, self.rest)
        spread = turn**2 * sizes.step_ratio * moments.square + noise
        louder = m ** (2 * power - 1)
        self.variance = 1 + spread * np.outer(louder, u**2)
        self.mean = float(shares @ self.variance @ self.u_weights)
        special = (vectors * np.sqrt(profiles.masses)).transpose(1, 2, 0)
        self.special = special.reshape(-1, len(vectors))
        self.special_variance = np.tile(self.variance, (len(profiles.masses), 1))
        _, linear, quadratic = turned_covariance(profiles, moments, vectors / np.sqrt(m), power)
        loud = loud_covariance(profiles, moments, vectors * m ** (power - 0.5))
        k_u = (turn * u)[:, None, None]
        whole = (
            np.eye(len(vectors)) + k_u * linear + k_u**2 * quadratic + noise * (u**2)[:, None, None] * loud
        )
        smooth = np.einsum("lu,la,lc->uac", self.special_variance, self.special, self.special)
        extra = whole - smooth if self.rest == "structured" else np.zeros_like(whole)
        curve = np.zeros((len(u), len(vectors)))
        curve[:, 0] = step * abs(float(c[1])) * length / root * u
        teacher = profiles.gram(seen, vectors) / np.sqrt(profiles.product(seen, seen))[:, None]
        first = general_step(problem, sizes, np.array([step]), self.rest, u, self.law)
        self.rows = Rows(curve, extra, self.law.weights @ self.variance, teacher, first)

    def finer(self) -> "CovariantWeights | None":
        """With more readouts, where these are not at their limit; the covariance's levels are what they are."""
        found = super().finer()
        if found is None or found.resolution.readout_spacing == self.resolution.readout_spacing:
            return None
        return CovariantWeights(self.problem, self.sizes, self.steps, self.rest, found.resolution)
