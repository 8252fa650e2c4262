"""Laplace readout: heavier tails than Gaussian ones, so that a few neurons move far."""

import math
from collections.abc import Callable

import numpy as np

from firststep.gaussian import Array
from firststep.setting.readouts.law import ReadoutLaw

# E U^2 = 2 scale^2 = 1.
SCALE = math.sqrt(0.5)


class Laplace(ReadoutLaw):
    """Laplace of variance 1/N for each neuron."""

    def draw(self, rng: Callable[[], "np.random.Generator"], count: int) -> Array:
        """Laplace values of variance 1."""
        return rng().laplace(scale=SCALE, size=count)

    def density(self, u: Array) -> Array:
        """exp(-|u|/scale)."""
        return np.asarray(np.exp(-np.abs(u) / SCALE))

    def rule(self, spacing: float, bent: bool = False) -> tuple[Array, Array]:
        """Each half on its own, by u = exp(t - exp(-t)) and a trapezoid rule in t: the density has a kink at 0."""
        t = np.arange(-3.4, 3.2, 0.8 * spacing)
        half = np.exp(t - np.exp(-t))
        share = self.density(half) * half * (1 + np.exp(-t))
        nodes, weights = np.r_[-half[::-1], half], np.r_[share[::-1], share]
        return nodes, weights / weights.sum()


LAW = Laplace()
