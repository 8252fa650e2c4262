r"""Spectrum of the features under a loud direction: the equations of two coordinates at complex ridge.

Neurons are known by what they have along the direction, as for the errors (`firststep.theory.loud`). What the step's
own noise adds there is one Gaussian number, another in every draw: the bulk is taken at its typical size, outliers are
means over draws [firststep, covariance].
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from firststep.gaussian import Array
from firststep.numerics import fixedpoint
from firststep.results import Outlier, Spectrum
from firststep.setting import Problem, Sizes
from firststep.theory.coefficients import tables_from
from firststep.theory.covariant_step import levels_beside
from firststep.theory.loud import Pull, loud_geometry, loud_step
from firststep.theory.sectors import thinned
from firststep.theory.spectra.bulk import Bulk
from firststep.theory.spectra.feature_bulk import spectral_degrees
from firststep.theory.spectra.two_step_features import TwoCoordinates

# Nodes of the step's noise along the direction over which outliers are averaged.
DRAWS = 4
# Distance of nodes, in units of that for errors.
SPACING = 1.25
# Largest eigenvalues of the inputs that stay as they are, and nodes for all others.
SINGLE, OTHERS = 6, 8


class LoudFeatures(TwoCoordinates):
    """Features without a step or after one, by the law of `firststep.theory.loud`.

    Parameters
    ----------
    draw : float, optional
        The step's noise along the direction, in units of its standard deviation; its typical size by default.
    """

    def __init__(
        self, problem: Problem, sizes: Sizes, step_size: float, rest: str, draw: float | None = None
    ) -> None:
        self.problem, self.sizes, self.step_size, self.rest = problem, sizes, step_size, rest
        self.averaged = False
        here = problem if step_size > 0 else problem.without_step()
        self.pull = Pull.of(here, sizes)
        nodes = replace(self.pull.nodes(step_size, draft=True), coarse=SPACING)
        geometry, *own = loud_geometry(here, sizes, rest, nodes, spectral_degrees(sizes))
        levels, weights = _fewer(*levels_beside(problem, sizes, step_size, loudest=True))
        law = replace(geometry.law, nodes=levels, weights=weights, share=np.ones_like(levels))
        self.geometry = replace(geometry, law=law)
        draw = self.pull.typical if draw is None else draw
        step = loud_step(here, sizes, step_size, draw * (step_size > 0), self.geometry, (own[0], own[1]))
        self.tables = tables_from(self.geometry, step)
        self.set_moments()

    def spectrum(self, points: int, check: bool = True) -> Spectrum:
        """Bulk, edges and outliers, these as means over draws."""
        self.averaged = self.step_size > 0
        return super().spectrum(points, check)

    def all_outliers(self, intervals: Sequence[tuple[float, float]], scan: Bulk) -> tuple[Outlier, ...]:
        """As many as in a typical draw; in a spectrum as means over draws, from the largest down."""
        typical, edge = super().all_outliers(intervals, scan), intervals[-1][1]
        draws, weights = self.pull.draws(DRAWS)
        if not (self.averaged and typical) or len(draws) == 1:
            return typical
        drawn = [self._of_draw(float(draw), edge, scan) for draw in draws]
        return tuple(
            _expected(typical[k], [each[k] if k < len(each) else None for each in drawn], weights, edge)
            for k in range(len(typical))
        )

    def named_blocks(self) -> list[int]:
        """Not those along M l: under a power law it is spread over single directions, which are bulk."""
        return [at for at in super().named_blocks() if self.tables.blocks[at][-1] == 0]

    def _of_draw(self, draw: float, edge: float, scan: Bulk) -> tuple[Outlier, ...]:
        """Outliers of one draw; the bulk does not know it."""
        other = LoudFeatures(self.problem, self.sizes, self.step_size, self.rest, draw)
        try:
            return other.outliers(edge, scan)
        except fixedpoint.ConvergenceError:
            return other.above()


def _fewer(nodes: Array, weights: Array) -> tuple[Array, Array]:
    """A law whose largest levels are kept and all others thinned: points at complex ridge cost what levels do."""
    found, masses = (
        thinned(nodes[SINGLE:], weights[SINGLE:], OTHERS) if len(nodes) > SINGLE else (nodes[:0],) * 2
    )
    masses = masses * weights[SINGLE:].sum() / masses.sum() if len(found) else masses
    return np.concatenate([nodes[:SINGLE], found]), np.concatenate([weights[:SINGLE], masses])


def _expected(typical: Outlier, drawn: Sequence[Outlier | None], weights: Array, edge: float) -> Outlier:
    """The mean of one outlier over draws; where it is none it is at the edge and overlaps with nothing."""
    values = np.array([edge if one is None else one.eigenvalue for one in drawn])
    overlaps = {
        name: float(sum(w * one.overlaps[name] for w, one in zip(weights, drawn, strict=True) if one))
        for name in typical.overlaps
    }
    mean = float(weights @ values)
    return Outlier(mean, float(weights @ np.sqrt(values)), overlaps, mean / edge)
