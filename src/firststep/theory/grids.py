"""Points that are all pairs of some step sizes and some ridges: which of them lead, and what lies between them.

All numbers are smooth in log(1 + eta) and log(lambda), so that not all points of a dense grid have to be solved.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array
from firststep.theory.coefficients import interpolation, lagrange, nodes_around

# Points so far apart, in log(1 + eta) and log(lambda), lead, unless these would be most of the points.
LEADING_GAPS, MOST_LEADING = (0.5, 2.6), 0.6
# Points of a polynomial, in each direction, by which solutions are carried between step sizes and ridges: of a solution
# between ridges the slopes are known, too.
START_NODES, SLOPED_NODES, CHANGE_NODES = 6, 4, 4
# On a dense grid points so far apart are solved, and polynomials through so many of them tell what lies between.
THIN_GAPS, THIN_NODES = (0.12, 0.35), 8
# The relative error for which these gaps are made.
GAPS_FOR = 1e-6
# What polynomials may miss is taken to be so many times what the solved points around say of it, so many of them.
CAUTION, AROUND = 2.0, 4
# An axis of which more than this would have to be solved is solved as a whole.
MOST_SOLVED = 0.7


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

    def leaders(self, tolerance: float) -> NDArray[np.bool_]:
        """Which points lead, (S R,): all, if those would be most of them."""
        leads = np.zeros(self.places.size, dtype=bool)
        leads[self.places[np.ix_(*self._leading(tolerance))]] = True
        return leads if leads.mean() <= MOST_LEADING else np.ones_like(leads)

    @property
    def axes(self) -> tuple[Array, Array]:
        """What numbers are smooth functions of: log(1 + eta), log(lambda)."""
        return np.log1p(self.steps), np.log(self.ridges)

    def _leading(self, tolerance: float) -> list[NDArray[np.intp]]:
        """Places of the step sizes and of the ridges that lead."""
        # Others start from them, too: they are no further apart where much may be missed.
        wider = min(_wider(tolerance, CHANGE_NODES), 1.0)
        return [leading(axis, wider * gap) for axis, gap in zip(self.axes, LEADING_GAPS, strict=True)]

    def sparse(self, tolerance: float) -> list[NDArray[np.intp]]:
        """Places of step sizes and of ridges that lead, and of some between: polynomials may tell the rest."""
        wider, leads = _wider(tolerance, THIN_NODES), self._leading(tolerance)
        chosen = zip(self.axes, leads, THIN_GAPS, strict=True)
        return [sparse(axis, some, wider * gap) for axis, some, gap in chosen]

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


def _wider(tolerance: float, nodes: int) -> float:
    """How much wider gaps may be: what polynomials through m points miss grows with the gap's m-th power."""
    return float((tolerance / GAPS_FOR) ** (1 / nodes))


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


def sparse(values: Array, leads: NDArray[np.intp], gap: float) -> NDArray[np.intp]:
    """Of rising values those that lead, and some between, no further apart than `gap` where there are any."""
    wanted = [values[leads]]
    for low, high in itertools.pairwise(values[leads]):
        wanted.append(np.linspace(low, high, math.ceil((high - low) / gap) + 1)[1:-1])
    return np.unique(np.abs(values[:, None] - np.concatenate(wanted)).argmin(axis=0))


@dataclass(frozen=True)
class Axis:
    """Rising values some of which are solved, and what polynomials through these say of the others."""

    values: Array  # (M,)
    solved: NDArray[np.intp]  # places among them, (T,)

    @classmethod
    def of(cls, values: Array, some: NDArray[np.intp]) -> "Axis":
        """Some solved, and those in the middle of the first and of the last gap, or all if that saves little."""
        # At the ends polynomials have neighbours on one side alone.
        ends = [(some[0] + some[min(1, len(some) - 1)]) // 2, (some[-1] + some[max(-2, -len(some))] + 1) // 2]
        solved = np.union1d(some, ends)
        dense = len(solved) <= THIN_NODES or len(solved) > MOST_SOLVED * len(values)
        return cls(values, np.arange(len(values)) if dense else solved)

    @property
    def whole(self) -> bool:
        """Whether all are solved."""
        return len(self.solved) == len(self.values)

    @property
    def _count(self) -> int:
        """Nodes of a polynomial: one less than there are, so that each can be left out."""
        return min(THIN_NODES, len(self.solved) - 1)

    def weights(self) -> Array:
        """From solved values to all, (T, M)."""
        if self.whole:
            return np.eye(len(self.values))
        return interpolation(self.values[self.solved], self.values, self._count)

    def missed(self, known: Array) -> Array:
        r"""How far off all values may be, (M, …), of what is known where they are solved, (T, …).

        .. math:: f(x) - p(x) = f[x_1, \dots, x_m, x] \prod_i (x - x_i)

        Each solved value is left out and told by its neighbours. What they miss, over the product of its distances from
        them, is a divided difference; between solved values it is taken to be the largest of those around, with some
        caution.
        """
        if self.whole:
            return np.zeros_like(known)
        nodes, every, count = self.values[self.solved], np.arange(len(self.solved)), self._count
        first = np.clip(every - count // 2, 0, len(nodes) - 1 - count)
        window = first[:, None] + np.arange(count)
        window += window >= every[:, None]
        flat = known.reshape(len(nodes), -1)
        told = (lagrange(nodes[window], nodes)[:, None] @ flat[window])[:, 0]
        divided = np.abs(told - flat) / np.abs(np.prod(nodes[:, None] - nodes[window], axis=1))[:, None]
        own = nodes[nodes_around(nodes, self.values, count)]
        reach = np.abs(np.prod(self.values[:, None] - own, axis=1))[:, None]
        found = CAUTION * divided[nodes_around(nodes, self.values, AROUND)].max(axis=1) * reach
        return np.asarray(found.reshape(-1, *known.shape[1:]))

    def widest(self, known: Array) -> Array:
        """What is known where it is solved, and between the larger of the two around, (M, …)."""
        found = np.asarray(known[nodes_around(self.values[self.solved], self.values, 2)].max(axis=1))
        found[self.solved] = known
        return found


@dataclass(frozen=True)
class Thinned:
    """A dense grid some of whose points are solved: all pairs of some of its step sizes and some of its ridges.

    What lies between is told by polynomials in log(1 + eta) and log(lambda). Every solved point is told by its
    neighbours, too; what they miss says how far the others may be off, and what may be off too far is to be solved.
    """

    grid: Grid
    steps: Axis
    ridges: Axis

    @classmethod
    def of(cls, grid: Grid, steps: NDArray[np.intp], ridges: NDArray[np.intp]) -> "Thinned | None":
        """The grid with these of its step sizes and ridges solved; none if that saves little."""
        axes = [Axis.of(axis, some) for axis, some in zip(grid.axes, (steps, ridges), strict=True)]
        return None if all(axis.whole for axis in axes) else cls(grid, *axes)

    @property
    def solved(self) -> NDArray[np.bool_]:
        """Which points are solved, (S R,)."""
        found = np.zeros(self.grid.places.size, dtype=bool)
        found[self._corners] = True
        return found

    @property
    def _corners(self) -> NDArray[np.intp]:
        return self.grid.places[np.ix_(self.steps.solved, self.ridges.solved)]

    def told(self, values: Array) -> Array:
        """Values of all points, (S R, F), from those at the solved ones."""
        by_step = np.tensordot(self.steps.weights().T, values[self._corners], axes=1)
        return self._listed(np.matmul(self.ridges.weights().T, by_step))

    def missed(self, watched: Array) -> Array:
        """How far off any of some values may be at each point, (S R,)."""
        known = watched[self._corners]
        by_step = self.steps.missed(known).max(axis=2)
        by_ridge = self.ridges.missed(known.swapaxes(0, 1)).max(axis=2).T
        both = self.ridges.widest(by_step.T).T + self.steps.widest(by_ridge)
        return self._listed(both)

    def widest(self, known: Array) -> Array:
        """The largest of a number at the solved points around each point, (S R,)."""
        by_step = self.steps.widest(known[self._corners])
        return self._listed(self.ridges.widest(by_step.T).T)

    def _listed(self, table: Array) -> Array:
        """Values by step size and ridge, (S, R, …), in the order of the points."""
        found = np.empty((self.grid.places.size, *table.shape[2:]))
        found[self.grid.places] = table
        return found
