r"""Spectrum of the features under a loud direction: the equations of two coordinates at complex ridge.

Neurons are known by what they have along the direction, as for the errors (`firststep.theory.loud`). What the step's
own noise adds there is one Gaussian number, another in every draw: the bulk is taken at its typical size, outliers are
means over draws [firststep, covariance].
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from firststep.gaussian import Array
from firststep.numerics import fixedpoint
from firststep.results import Outlier, Spectrum
from firststep.setting import Problem, Sizes
from firststep.theory.coefficients import Values, tables_from
from firststep.theory.covariant_step import levels_beside
from firststep.theory.loud import Pull, loud_geometry, loud_rows
from firststep.theory.sectors import thinned
from firststep.theory.spectra.bulk import Bulk
from firststep.theory.spectra.feature_bulk import spectral_degrees
from firststep.theory.spectra.pushed import place_pushed
from firststep.theory.spectra.two_step_features import TwoCoordinates

# Nodes of the step's noise along the direction over which outliers are averaged; where its sign does not matter they
# are equidistant on the half line, as levels change places, and one of them is the typical draw.
DRAWS, HALF_DRAWS, APART = 4, 5, 2 / 3
# Accuracy of a single draw's outliers.
DRAWN_ACCURACY = 1e-5
# Distance of nodes, in units of that for errors.
SPACING = 1.25
# Largest eigenvalues of the inputs that stay as they are, and nodes for all others.
SINGLE, OTHERS = 6, 8


@dataclass(frozen=True)
class LoudDraw:
    """What the step finds along the direction: its noise in standard deviations, and the teacher's weight there."""

    noise: float
    weight: float


def loud_draws(problem: Problem, sizes: Sizes) -> tuple[LoudDraw, list[LoudDraw], Array]:
    r"""A typical draw, and a quadrature over all of them with its weights.

    A teacher in a typical direction has :math:`\gamma/\sqrt d` along l, gamma another standard normal number in every
    draw. The step adds a signal :math:`s\gamma` and noise :math:`\nu\omega`, of which the sum alone matters:

    .. math:: s\gamma + \nu\omega = \sqrt{s^2 + \nu^2}\,g, \qquad
        \gamma = \frac{s\,g}{\sqrt{s^2 + \nu^2}}, \quad \omega = \frac{\nu\,g}{\sqrt{s^2 + \nu^2}}

    with what lies at right angles left at zero, and both signs of g alike [firststep, covariance, eq. 21].
    """
    pull, covariance = Pull.of(problem, sizes), problem.covariance(sizes.dim)
    weight = float(covariance.weights[0])
    if pull.signal > 0 and not covariance.typical:
        draws, weights = pull.draws(DRAWS)
        return LoudDraw(pull.typical, weight), [LoudDraw(float(at), weight) for at in draws], weights
    half = APART * (np.arange(HALF_DRAWS) + 0.5)
    weights = np.exp(-(half**2) / 2)
    # The last node stands for all beyond: with its weight the mean of g^2 is one.
    weights[-1] = (weights[:-1] @ (1 - half[:-1] ** 2)) / (half[-1] ** 2 - 1)
    size = max(math.hypot(pull.signal, pull.noise), 1e-300)

    def drawn(g: float) -> LoudDraw:
        return LoudDraw(g * pull.noise / size, min(weight * (g * pull.signal / size) ** 2, 1.0))

    return drawn(1.0), [drawn(float(g)) for g in half], weights / weights.sum()


class LoudFeatures(TwoCoordinates):
    """Features without a step or after one, by the law of `firststep.theory.loud`.

    Parameters
    ----------
    draw : LoudDraw, optional
        What the step finds along the direction; that of a typical draw by default.
    """

    def __init__(
        self, problem: Problem, sizes: Sizes, step_size: float, rest: str, draw: LoudDraw | None = None
    ) -> None:
        self.problem, self.sizes, self.step_size, self.rest = problem, sizes, step_size, rest
        self.averaged = False
        # Relative standard deviations of the outliers over draws of what the step finds along the direction.
        self.scatter: list[float] = []
        here = problem if step_size > 0 else problem.without_step()
        nodes = replace(Pull.of(here, sizes).nodes(step_size, draft=True), coarse=SPACING)
        geometry, *own = loud_geometry(here, sizes, rest, nodes, spectral_degrees(sizes))
        levels, weights = _fewer(*levels_beside(problem, sizes, step_size, loudest=True))
        law = replace(geometry.law, nodes=levels, weights=weights, share=np.ones_like(levels))
        self.geometry = replace(geometry, law=law)
        draw = draw or loud_draws(here, sizes)[0]
        noise = draw.noise * (step_size > 0)
        rows = loud_rows(here, sizes, step_size, noise, self.geometry, (own[0], own[1]), draw.weight)
        self.tables = tables_from(self.geometry, rows.law)
        self.set_moments()

    def spectrum(self, points: int, check: bool = True) -> Spectrum:
        """Bulk, edges and outliers, these as means over draws, and how much each differs from draw to draw."""
        self.averaged = self.step_size > 0
        found = super().spectrum(points, check)
        return replace(found, details={**found.details, "outlier_scatter": self.scatter})

    def all_outliers(self, intervals: Sequence[tuple[float, float]], scan: Bulk) -> tuple[Outlier, ...]:
        """As many as in a typical draw; in a spectrum as means over draws, from the largest down."""
        typical, edge = super().all_outliers(intervals, scan), intervals[-1][1]
        here, draws, weights = loud_draws(self.problem, self.sizes)
        if not (self.averaged and typical) or len(draws) == 1:
            return typical
        drawn = [typical if draw == here else self._of_draw(draw, edge, scan) for draw in draws]
        ranked = [[each[k] if k < len(each) else None for each in drawn] for k in range(len(typical))]
        self.scatter = [_scatter(each, weights, edge) for each in ranked]
        return tuple(_expected(typical[k], ranked[k], weights, edge) for k in range(len(typical)))

    def pushed(self, x: float, vector: Array, slope: float, joint: Values, values: Values) -> float:
        """By others because neurons and samples fluctuate."""
        return place_pushed(self.geometry, self.tables, vector, slope, joint, values)

    def named_blocks(self) -> list[int]:
        """Not those along M l: under a power law it is spread over single directions, which are bulk."""
        return [at for at in super().named_blocks() if self.tables.blocks[at][-1] == 0]

    def _of_draw(self, draw: LoudDraw, edge: float, scan: Bulk) -> tuple[Outlier, ...]:
        """Outliers of one draw; the bulk does not know it."""
        other = LoudFeatures(self.problem, self.sizes, self.step_size, self.rest, draw)
        other.root_accuracy = DRAWN_ACCURACY
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


def _values(drawn: Sequence[Outlier | None], edge: float) -> Array:
    return np.array([edge if one is None else one.eigenvalue for one in drawn])


def _scatter(drawn: Sequence[Outlier | None], weights: Array, edge: float) -> float:
    """Relative standard deviation of an outlier over draws."""
    values = _values(drawn, edge)
    mean = float(weights @ values)
    return math.sqrt(max(float(weights @ (values - mean) ** 2), 0.0)) / mean


def _expected(typical: Outlier, drawn: Sequence[Outlier | None], weights: Array, edge: float) -> Outlier:
    """The mean of one outlier over draws; where it is none it is at the edge and overlaps with nothing."""
    values = _values(drawn, edge)
    overlaps = {
        name: float(sum(w * one.overlaps[name] for w, one in zip(weights, drawn, strict=True) if one))
        for name in typical.overlaps
    }
    mean = float(weights @ values)
    return Outlier(mean, float(weights @ np.sqrt(values)), overlaps, mean / edge)
