"""Gaussian readout."""

from collections.abc import Callable

import numpy as np

from firststep.gaussian import Array, gauss_hermite, hermite_polynomials
from firststep.setting.readouts.law import ReadoutLaw


class Gaussian(ReadoutLaw):
    """N(0, 1/N) for each neuron."""

    # Values beyond this have probability 1e-10.
    reach = 6.5

    def draw(self, rng: Callable[[], "np.random.Generator"], count: int) -> Array:
        """Standard normal values."""
        return rng().standard_normal(count)

    def density(self, u: Array) -> Array:
        """exp(-u^2/2)."""
        return np.asarray(np.exp(-(u**2) / 2))

    def polynomials(self, spacing: float, degrees: int) -> tuple[Array, Array, Array]:
        """Hermite polynomials, exactly orthogonal."""
        nodes, weights = gauss_hermite(2 * degrees + max(0, round(5 / spacing) - 8))
        return nodes, weights, hermite_polynomials(nodes, degrees, normalised=True)

    @property
    def mean(self) -> float:
        """Zero."""
        return 0.0


LAW = Gaussian()
