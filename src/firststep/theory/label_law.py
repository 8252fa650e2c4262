r"""The conditional law of labels: their averages given the coordinates, and moments with the teacher's own directions.

With :math:`t_a = \sum_l R_{al}\zeta_l + \sum_e A_{ae} g_e` the label is expanded in products of Hermite polynomials of
the g_e, with coefficients that are functions of zeta [firststep, degrees, eq. 6].
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from firststep.gaussian import Array, Function, MultiFunction, gauss_hermite, hermite_polynomials
from firststep.theory.directions import LabelMoments

# Nodes of each direction in averages over the g_e of a teacher of several directions.
NODES = {1: 96, 2: 40, 3: 18, 4: 12}


def label_parts(
    teacher: Function | MultiFunction,
    cosines: Array,
    asides: Array,
    coordinates: Array,
    blocks: Sequence[tuple[int, ...]],
) -> tuple[Array, Array]:
    """E[s h_b(g)|zeta] for each multi-index b, (S, B, nz), and E[s^2|zeta], (S, nz).

    Parameters
    ----------
    cosines, asides : ndarray (S, k, L), (S, k, ke)
        The teacher's directions on the coordinates and on the directions beside them.
    coordinates : ndarray (L, nz)
        Nodes of zeta.
    """
    shift = cosines @ coordinates
    if isinstance(teacher, Function):
        return _single(teacher, shift[:, 0], asides[:, 0], blocks)
    found = [_several(teacher, shift[i], asides[i], blocks) for i in range(len(shift))]
    return np.stack([parts for parts, _ in found]), np.stack([square for _, square in found])


def _single(
    teacher: Function, shift: Array, aside: Array, blocks: Sequence[tuple[int, ...]]
) -> tuple[Array, Array]:
    """One direction: t = shift + aside_1 g_1; blocks of other directions are empty."""
    scale = np.abs(aside[:, :1])
    mean, tilt, square = teacher.gaussian_moments(scale, shift)
    highest = max(b[0] for b in blocks)
    rows = [mean, tilt]
    if highest > 1:
        rows += list(teacher.gaussian_hermite(scale, shift, highest + 1)[2:])
    parts = [rows[b[0]] if sum(b[1:]) == 0 else np.zeros_like(mean) for b in blocks]
    return np.stack(parts, axis=1), square


def _several(
    teacher: Any, shift: Array, aside: Array, blocks: Sequence[tuple[int, ...]]
) -> tuple[Array, Array]:
    """Several directions, by a product rule over the g_e: t (k, nz) = shift + aside g."""
    count = aside.shape[1]
    used = [e for e in range(count) if np.abs(aside[:, e]).max() > 1e-12]
    nodes, weights = gauss_hermite(NODES[max(1, min(4, len(used)))])
    grid = np.zeros((count, len(nodes) ** len(used)))
    mass = np.ones(grid.shape[1])
    for e, axis in zip(used, np.meshgrid(*[np.arange(len(nodes))] * len(used), indexing="ij"), strict=True):
        grid[e] = nodes[axis.ravel()]
        mass = mass * weights[axis.ravel()]
    points = (shift[:, :, None] + (aside @ grid)[:, None, :]).reshape(len(shift), -1)
    values = teacher.at(points.T).reshape(shift.shape[1], -1)
    polynomials = [
        hermite_polynomials(grid[e], max(map(sum, blocks)) + 1, normalised=True) for e in range(count)
    ]
    rows = []
    for b in blocks:
        factor = mass.copy()
        for e, degree in enumerate(b):
            if degree and e not in used:
                factor = factor * 0.0
            elif degree:
                factor = factor * polynomials[e][degree]
        rows.append(values @ factor)
    return np.stack(rows), values**2 @ mass


# Nodes of each g_e in averages of products of Hermite polynomials: exact up to degree nine.
TERM_NODES = 5


def term_parts(
    terms: Sequence[tuple[int, ...]],
    cosines: Array,
    asides: Array,
    coordinates: Array,
    blocks: Sequence[tuple[int, ...]],
) -> Array:
    r"""E[H_a(t) h_b(g)|zeta] for products H_a of Hermite polynomials of the teacher's coordinates, (terms, B, nz).

    `cosines` (k, L), `asides` (k, ke) and `coordinates` (L, nz) are those of `label_parts` for one point.
    """
    nodes, weights = gauss_hermite(TERM_NODES)
    used = [e for e in range(asides.shape[1]) if np.abs(asides[:, e]).max() > 1e-12]
    grid = np.zeros((asides.shape[1], TERM_NODES ** len(used)))
    mass = np.ones(grid.shape[1])
    for e, axis in zip(used, np.meshgrid(*[np.arange(TERM_NODES)] * len(used), indexing="ij"), strict=True):
        grid[e], mass = nodes[axis.ravel()], mass * weights[axis.ravel()]
    t = (cosines @ coordinates)[:, :, None] + (asides @ grid)[:, None, :]
    highest = 1 + max(max(map(max, terms)), max(map(max, blocks)))
    powers = hermite_polynomials(t, highest)
    beside = hermite_polynomials(grid, highest, normalised=True)
    factors = np.stack([mass * math.prod(beside[degree, e] for e, degree in enumerate(b)) for b in blocks])
    found = [math.prod(powers[degree, a] for a, degree in enumerate(index)) @ factors.T for index in terms]
    return np.stack(found).swapaxes(1, 2)


# Nodes of the initial output's linear part: exact for the powers that moments of labels contain.
OUTPUT_NODES = 6


@lru_cache(maxsize=64)
def label_moments(
    teacher: Function | MultiFunction, noise_variance: float, output: tuple[float, float] | None = None
) -> LabelMoments:
    """E[y x x'], E[y^2 x x'] for x, x' among t_1 … t_k (, t_o) and y itself, and E y^2; noise counts in y.

    `output` is c_1 and the variance beyond it of an initial output of order one, that y is lessened by: c_1 t_o, with
    t_o the coordinate along W0^T a, and noise.
    """
    k = teacher.directions
    nodes, weights = gauss_hermite({1: 96, 2: 64, 3: 28, 4: 16}[k])
    rules = [(nodes, weights)] * k + ([gauss_hermite(OUTPUT_NODES)] if output is not None else [])
    grid = np.array(list(product(*[rule[0] for rule in rules])))
    mass = np.array([math.prod(row) for row in product(*[rule[1] for rule in rules])])
    s, v = teacher.at(grid[:, :k]), noise_variance
    if output is not None:
        s, v = s - output[0] * grid[:, k], v + output[1]
    # Moments of y = s + noise given the coordinates, up to the fourth.
    powers = [np.ones_like(s), s, s**2 + v, s**3 + 3 * v * s, s**4 + 6 * v * s**2 + 3 * v**2]
    last = grid.shape[1]

    def table(degree: int) -> Array:
        found = np.empty((last + 1, last + 1))
        for a, b in product(range(last + 1), repeat=2):
            factor = powers[degree + (a == last) + (b == last)]
            for axis in (a, b):
                factor = factor * (grid[:, axis] if axis < last else 1.0)
            found[a, b] = mass @ factor
        return found

    return LabelMoments(table(1), table(2), float(mass @ powers[2]))
