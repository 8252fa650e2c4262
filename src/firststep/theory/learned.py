r"""What was learned, by direction and product: shares of the teacher's terms in the fitted function.

The fitted function is :math:`\sum_b\varphi_b(\zeta)h_b(g)` and noise, so that of the term :math:`s_aH_a(t)` it has the
share

.. math:: \frac{1}{a!\,s_a}\sum_b E\big[\varphi_b(\zeta)\,E[H_a(t)h_b(g)|\zeta]\big]

[firststep, second step, eq. 9], after none, one or two steps.
"""

import math

import numpy as np

from firststep.gaussian import Array
from firststep.setting import Problem, Sizes
from firststep.setting.teacher import leading_terms, term_name
from firststep.theory.coefficients import Geometry, Resolution, Tables, geometry_of, tables_of
from firststep.theory.equations import Answer, answer_at, first_guess, reached_points
from firststep.theory.label_law import term_parts
from firststep.theory.sectors import highest_degree

# Shares are told to a few thousandths, which this resolution has.
RESOLUTION, RESIDUAL = Resolution(42, 0.3, 7), 1e-8


def learned_shares(problem: Problem, geometry: Geometry, tables: Tables, answer: Answer) -> dict[str, Array]:
    """Shares of the teacher's terms in the fitted function of each point, (B,)."""
    terms = leading_terms(problem.teacher)
    if not terms:
        return {}
    # Functions of the norm of x are small, of relative order 1/d, and orthogonal to every term.
    kept = tables.blocks[: tables.norm_start]
    functions = answer.learned[:, : len(kept)] * geometry.weights
    found = np.empty((len(terms), len(functions)))
    parts: dict[bytes, Array] = {}
    for i, function in enumerate(functions):
        key = tables.cosines[i].tobytes() + tables.asides[i].tobytes()
        if key not in parts:
            parts[key] = term_parts(
                list(terms), tables.cosines[i], tables.asides[i], geometry.coordinates, kept
            )
        found[:, i] = np.einsum("tbz,bz->t", parts[key], function)
    sizes = [value * math.prod(math.factorial(degree) for degree in index) for index, value in terms.items()]
    return {
        f"learned_{term_name(index)}": row / size
        for index, row, size in zip(terms, found, sizes, strict=True)
    }


def share_bars(shares: dict[str, Array], relative: Array) -> dict[str, Array]:
    """Bars of shares: the test error's relative bar times the larger of a share and what is missing of it.

    Examples
    --------
    >>> share_bars({"learned_t1": np.array([0.9, 0.2])}, np.array([0.01, 0.01]))
    {'learned_t1_bar': array([0.009, 0.008])}
    """
    return {f"{name}_bar": relative * np.maximum(share, 1 - share) for name, share in shares.items()}


def learned_after_one(
    problem: Problem, sizes: Sizes, step_sizes: Array, ridges: Array, rest: str = "structured"
) -> dict[str, Array]:
    """Shares after one step for a teacher of several directions, (S, R) each [firststep, second step, eq. 9].

    Examples
    --------
    >>> found = learned_after_one(
    ...     Problem("relu", "t1 + t1*t2", 0.3), Sizes(1500, 300, 600), np.array([0.0, 20.0]), np.array([0.05])
    ... )
    >>> {name: values[:, 0].round(2).tolist() for name, values in found.items()}
    {'learned_t1': [0.67, 0.9], 'learned_t1_t2': [0.0, 0.13]}
    """
    geometry = geometry_of(problem, sizes, RESOLUTION, rest, 0, highest_degree(sizes))
    shape = (len(step_sizes), len(ridges))
    index, ridge = np.repeat(np.arange(shape[0]), shape[1]), np.tile(ridges, shape[0])
    tables = tables_of(geometry, step_sizes, rest).take(index)
    found = reached_points(geometry, tables, ridge, first_guess(geometry, ridge), RESIDUAL, 8)
    answer = answer_at(geometry, tables, found.value)
    shares = learned_shares(problem, geometry, tables, answer)
    return {name: values.reshape(shape) for name, values in shares.items()}
