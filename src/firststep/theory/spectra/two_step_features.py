"""Spectrum of the features after two steps: the equations of two coordinates at complex ridge [firststep, second step].

The bulk comes at one resolution, so that its accuracy is not told; outliers do not depend on it.
"""

import math
from collections.abc import Iterator

from firststep.gaussian import Array
from firststep.setting import Problem, Sizes
from firststep.theory.both_steps import Plane, both_steps, plane_geometry
from firststep.theory.coefficients import tables_from
from firststep.theory.second_step import Readouts
from firststep.theory.spectra.bulk import Bulk
from firststep.theory.spectra.feature_bulk import FeatureBulk, reached, spectral_degrees

# Nodes of both coordinates, and distance of those of a Gaussian readout.
PLANE = Plane(26, 12, 0.3)
# Nodes of the law of both turns: more of them move outliers by less than 0.1 % here and cost ten times as much.
LEVELS = (1, 1)


class TwoCoordinates(FeatureBulk):
    """Features of neurons that share two coordinates, at one resolution."""

    one_coordinate = False

    def scanned(self, x: Array) -> Bulk:
        """From far above the real axis."""
        return self.approached(x)

    def settled(self, rounds: int = 0) -> "TwoCoordinates":
        """The same: there is one resolution."""
        return self

    def coarse(self) -> "TwoCoordinates":
        """The same."""
        return self

    def alternatives(self) -> "Iterator[FeatureBulk]":
        """None."""
        return iter(())

    def checked(self, x: Array, density: Array, scan: Bulk) -> float:
        """Not told."""
        return math.nan


class TwoStepFeatures(TwoCoordinates):
    """Features after two steps on fresh samples, by the law of `firststep.theory.both_steps`."""

    def __init__(self, problem: Problem, sizes: Sizes, steps: tuple[float, float], rest: str) -> None:
        self.problem, self.sizes, self.step_size, self.rest = problem, sizes, steps[0], rest
        geometry = reached(plane_geometry(problem, sizes, PLANE, rest, spectral_degrees(sizes)))
        self.geometry = geometry
        law = both_steps(problem, sizes, steps, rest, Readouts(geometry.u, geometry.u_weights), LEVELS)
        self.tables = tables_from(geometry, law)
        self.set_moments()
