"""Points that are all pairs of some step sizes and some ridges: which of them lead, and what lies between them."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array
from firststep.theory.coefficients import interpolation, nodes_around

# Points so far apart, in log(1 + eta) and log(lambda), lead, unless these would be most of the points.
LEADING_GAPS, MOST_LEADING = (0.3, 2.6), 0.6
# Points of a polynomial, in each direction, by which solutions are carried between step sizes and ridges: of a solution
# between ridges the slopes are known, too.
START_NODES, SLOPED_NODES, CHANGE_NODES = 6, 4, 4


@dataclass(frozen=True)
class Grid:
    """All pairs of some step sizes and some ridges, in any order."""

    steps: Array  # distinct, in rising order, (S,)
    ridges: Array  # (R,)
    places: NDArray[np.intp]  # which point each pair is, (S, R)

    @classmethod
    def of(cls, steps: Array, ridges: Array) -> "Grid | None":
        """The grid that points make, if they make one."""
        rows, row = np.unique(steps, return_inverse=True)
        columns, column = np.unique(ridges, return_inverse=True)
        if len(steps) != len(rows) * len(columns):
            return None
        places = np.full((len(rows), len(columns)), -1)
        places[row, column] = np.arange(len(steps))
        return cls(rows, columns, places) if (places >= 0).all() else None

    def leaders(self) -> NDArray[np.bool_]:
        """Which points lead, (S R,): all, if those would be most of them."""
        axes = np.log1p(self.steps), np.log(self.ridges)
        chosen = [leading(axis, gap) for axis, gap in zip(axes, LEADING_GAPS, strict=True)]
        leads = np.zeros(self.places.size, dtype=bool)
        leads[self.places[np.ix_(*chosen)]] = True
        return leads if leads.mean() <= MOST_LEADING else np.ones_like(leads)

    def weights(self, steps: Array, ridges: Array, step_nodes: int, ridge_nodes: int) -> Array:
        """Interpolation by polynomials through so many points in each direction: (S R, others)."""
        by_step = interpolation(np.log1p(self.steps), np.log1p(steps), step_nodes)
        by_ridge = interpolation(np.log(self.ridges), np.log(ridges), ridge_nodes)
        return self._spread(by_step, by_ridge)

    def carried(self, values: Array, slopes: Array, steps: Array, ridges: Array) -> Array:
        """Values (S R, …) between the points, from them and from their slopes by the ridge's logarithm."""
        by_step = interpolation(np.log1p(self.steps), np.log1p(steps), START_NODES)
        by_ridge, by_slope = sloped_interpolation(np.log(self.ridges), np.log(ridges), SLOPED_NODES)
        found = self._spread(by_step, by_ridge).T @ values + self._spread(by_step, by_slope).T @ slopes
        return np.asarray(found)

    def _spread(self, by_step: Array, by_ridge: Array) -> Array:
        """Products of weights in both directions, (S R, others)."""
        found = np.empty((self.places.size, by_step.shape[1]))
        found[self.places.ravel()] = (by_step[:, None] * by_ridge).reshape(self.places.size, -1)
        return found


def leading(values: Array, gap: float) -> NDArray[np.intp]:
    """Of rising values the first, the last, and some between, no further apart than `gap` where there are any."""
    fewest = min(len(values), CHANGE_NODES)
    count = max(fewest, math.ceil(float(values[-1] - values[0]) / gap) + 1)
    wanted = np.linspace(values[0], values[-1], count)
    nearest = np.unique(np.abs(values[:, None] - wanted).argmin(axis=0))
    return nearest if len(nearest) >= fewest else np.linspace(0, len(values) - 1, fewest).round().astype(int)


def sloped_interpolation(old: Array, new: Array, most: int) -> tuple[Array, Array]:
    r"""Matrices (old, new) that carry values and slopes by Hermite's polynomials through the nodes around each point.

    .. math:: f(x) = \sum_i f(x_i)\,[1 - 2 l_i'(x_i)(x - x_i)]\,l_i(x)^2 + f'(x_i)\,(x - x_i)\,l_i(x)^2

    l are Lagrange's polynomials [firststep]; constant outside.
    """
    at = np.clip(new, old[0], old[-1])
    window, each = nodes_around(old, at, most), np.arange(len(new))[:, None]
    nodes = old[window]
    apart = nodes[:, :, None] - nodes[:, None, :]
    apart[:, np.eye(window.shape[1], dtype=bool)] = np.inf
    beyond, squares = at[:, None] - nodes, interpolation(old, new, most)[window, each] ** 2
    by_value, by_slope = np.zeros((2, len(old), len(new)))
    by_value[window, each] = (1 - 2 * (1 / apart).sum(axis=2) * beyond) * squares
    by_slope[window, each] = beyond * squares
    return by_value, by_slope
