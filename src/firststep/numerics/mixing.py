"""Fixed-point iterations mixed from several rounds, for a batch of points."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from firststep.numerics.fixedpoint import ConvergenceError

Array = NDArray[np.float64]
# Rounds that are mixed, and directions of the past below this share of the largest, which are rounding.
DEPTH, ROUNDING = 6, 1e-10
# No logarithm moves further than this in a round.
FARTHEST = 1.0


def mixed_rounds(
    step: Callable[[Array, int], tuple[Array, Array]], start: Array, tolerance: float, rounds: int
) -> Array:
    r"""Solutions of f(x) = 0 by steps f that nearly solve it, mixed as Anderson does, (B, n).

    .. math:: x' = x + f - (\Delta X + \Delta F)\,c, \qquad c = \arg\min |f - \Delta F\,c|

    `step` takes x and the number of the round and returns f and the residual that is compared with the tolerance, (B,).
    Each point has a past of its own, so that it has the same number alone and among others.

    Examples
    --------
    >>> def step(x, number):
    ...     return np.cos(x) - x, np.abs(np.cos(x) - x).max(axis=1)
    >>> print(mixed_rounds(step, np.ones((1, 1)), 1e-12, 20).round(6))
    [[0.739085]]
    """
    x = start
    past: list[tuple[Array, Array]] = []
    for number in range(rounds):
        f, residual = step(x, number)
        if (residual <= tolerance).all():
            return x
        past = [*past, (x, f)][-DEPTH:]
        change = f.copy()
        for b in range(len(x)) if len(past) > 1 else ():
            steps, moves = (np.diff([pair[i][b] for pair in past], axis=0).T for i in range(2))
            share = np.linalg.lstsq(moves, f[b], rcond=ROUNDING)[0]
            change[b] -= (steps + moves) @ share
        # What has settled stays as it is, whatever the others do.
        change[residual <= tolerance] = 0.0
        x = x + np.clip(change, -FARTHEST, FARTHEST)
    raise ConvergenceError(f"no fixed point after {rounds} mixed rounds", x, residual)
