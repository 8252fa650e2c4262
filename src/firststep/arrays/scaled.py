"""Variances and Hermite coefficients of an activation of Gaussians of many scales, from those of a few."""

import math
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array, Function

# Degree to which the coefficients are expanded between two powers of 2 of the scale.
OCTAVE_DEGREE = 24


class ScaledActivation:
    r"""The functions :math:`\sigma(s_j g)` of a standard Gaussian g, one for each scale.

    What is asked for is analytic in s, so that for many scales an expansion between two powers of 2 gives it; the
    expansions are kept, because every step size and replica asks for them again.

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> scaled = ScaledActivation(function("identity"), np.array([1.0, 2.0]))
    >>> scaled.variance.round(12).tolist(), scaled.series(2).round(12).tolist()
    ([1.0, 4.0], [[0.0, 1.0], [0.0, 2.0]])
    """

    def __init__(self, activation: Function, scales: Array) -> None:
        self.activation, self.scales = activation, scales

    @cached_property
    def variance(self) -> Array:
        """E sigma(s_j g)^2 (N,); by expansion for activations whose averages take long."""
        if not self.activation.has_covariance:
            found = self._expanded(1, lambda octave: _octave_variance(self.activation, octave))
            if found is not None:
                return found[:, 0]
        return self.activation.gaussian_moments(self.scales, 0.0)[2]

    def series(self, count: int) -> Array:
        """Normalised Hermite coefficients (N, count)."""
        longer = 64 * math.ceil(count / 64)
        found = self._expanded(count, lambda octave: _octave_series(self.activation, octave, longer))
        return self.activation.hermite_of_scaled(self.scales, count) if found is None else found

    def _expanded(self, count: int, expansion: Callable[[int], Array | None]) -> Array | None:
        """Values (N, count) at the scales; None where expansions would not pay or are not accurate."""
        if len(self.scales) < OCTAVE_DEGREE or not self.scales.all():
            return None
        result = np.empty((len(self.scales), count))
        for octave, inside, polynomials in self._octaves:
            coefficients = expansion(octave)
            if coefficients is None:
                return None
            result[inside] = polynomials @ coefficients[:, :count]
        return result

    @cached_property
    def _octaves(self) -> list[tuple[int, NDArray[np.bool_], Array]]:
        """Powers of 2, the scales between each and the next, and the Chebyshev polynomials at their places."""
        logarithms = np.log2(self.scales)
        octaves = np.floor(logarithms).astype(int)
        # One recursion for all scales, each at its place in its own octave.
        polynomials = np.polynomial.chebyshev.chebvander(2 * (logarithms - octaves) - 1, OCTAVE_DEGREE).T
        found = []
        for octave in sorted({*octaves.tolist()}):
            inside = octaves == octave
            found.append((octave, inside, np.compress(inside, polynomials, axis=1).T))
        return found


@lru_cache(maxsize=64)
def _octave_series(activation: Function, octave: int, count: int) -> Array | None:
    return _octave_expansion(octave, lambda scales: activation.hermite_of_scaled(scales, count))


@lru_cache(maxsize=64)
def _octave_variance(activation: Function, octave: int) -> Array | None:
    return _octave_expansion(octave, lambda scales: activation.gaussian_moments(scales, 0.0)[2][:, None])


def _octave_expansion(octave: int, function: Callable[[Array], Array]) -> Array | None:
    """Chebyshev expansion, in the logarithm of the scale, between two powers of 2; None where not accurate."""
    chebyshev = np.polynomial.chebyshev
    points, probes = chebyshev.chebpts1(OCTAVE_DEGREE + 1), np.linspace(-0.97, 0.98, 5)
    values = function(2.0 ** (octave + (np.append(points, probes) + 1) / 2))
    expansion = np.linalg.solve(chebyshev.chebvander(points, OCTAVE_DEGREE), values[:-5])
    missed = np.abs(chebyshev.chebvander(probes, OCTAVE_DEGREE) @ expansion - values[-5:]).max()
    return cast(Array, expansion) if missed <= 1e-12 * np.abs(values).max() else None
