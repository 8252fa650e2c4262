"""One solver for every self-consistent equation: batched, real or complex, safeguarded Newton in relative steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
# Longest relative step, so that positive unknowns stay positive and a poor start cannot throw the iteration off.
LONGEST_STEP = 1.5
# Rounds at most; those of the plain map before Newton starts, and whenever Newton loses its way.
MAX_ITER = 60
PLAIN_ROUNDS = 6


class ConvergenceError(RuntimeError):
    """A self-consistent equation was not solved; the last value and its residual are attached."""

    def __init__(self, message: str, value: Values, residual: Values) -> None:
        super().__init__(message)
        self.value = value
        self.residual = residual

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.value, self.residual)


@dataclass(frozen=True)
class FixedPoint:
    """Solution of a batch of self-consistent equations.

    Attributes
    ----------
    value : ndarray (B, m)
        The unknowns.
    residual : ndarray (B,)
        Largest relative residual of each problem.
    iterations : int
        Rounds taken by the slowest problem.
    """

    value: Values
    residual: Values
    iterations: int


@dataclass(frozen=True)
class Equations:
    """A batch of equations x = f(x) for vectors with positive (or complex) entries.

    Attributes
    ----------
    newton_step : callable
        ``(values, index) -> (steps, residual)`` for the problems in `index`: relative Newton steps d log x, shape
        (len(index), m), and the largest relative residual of each, shape (len(index),).
    plain_step : callable
        ``(values, index) -> values``: one round of the plain map, before Newton starts and where it made things worse.
    what, remedy : str
        Words for the error message.
    """

    newton_step: Callable[[Values, NDArray[np.intp]], tuple[Values, Values]]
    plain_step: Callable[[Values, NDArray[np.intp]], Values]
    what: str = "the self-consistent equations"
    remedy: str = "raise ridge"


def _newton_steps(equations: Equations, values: Values, index: NDArray[np.intp]) -> tuple[Values, Values]:
    """Newton steps and residuals; none, and an infinite residual, where there is no such step."""
    try:
        # A start far away may divide by zero or overflow.
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            return equations.newton_step(values, index)
    except np.linalg.LinAlgError:
        if len(index) == 1:
            return np.zeros_like(values), np.full(1, np.inf)
        parts = np.array_split(np.arange(len(index)), 2)
        found = [_newton_steps(equations, values[part], index[part]) for part in parts]
        return np.concatenate([steps for steps, _ in found]), np.concatenate([left for _, left in found])


def solve(
    equations: Equations,
    start: Values,
    *,
    tolerance: float = 1e-11,
    max_iter: int = MAX_ITER,
    plain_rounds: int = PLAIN_ROUNDS,
) -> FixedPoint:
    """Solve a batch of equations.

    Parameters
    ----------
    equations : Equations
        What is solved.
    start : ndarray (B, m)
        First guess.
    tolerance : float
        Largest relative residual accepted.
    max_iter : int
        Rounds allowed.
    plain_rounds : int
        Rounds of the plain map before Newton starts.

    Examples
    --------
    The positive root of x = 1/(1 + x) is the golden ratio's inverse:

    >>> import numpy as np
    >>> def newton(x, index):
    ...     error = x * (1 + x) - 1
    ...     return -error / (x * (1 + 2 * x)), np.abs(error).max(axis=1)
    >>> found = solve(Equations(newton, lambda x, index: 1 / (1 + x)), np.ones((1, 1)))
    >>> print(f"{found.value[0, 0]:.6f}")
    0.618034
    """
    value = np.array(start)
    count = len(value)
    residual = np.full(count, np.inf)
    try:
        for _ in range(plain_rounds):
            value = equations.plain_step(value, np.arange(count))
    except np.linalg.LinAlgError:
        message = f"no start for {equations.what}, whose parts differ by too many orders of magnitude"
        raise ConvergenceError(f"{message}: {equations.remedy}", value, residual) from None
    # The best of all rounds is closest: `best` forgets what was before a rescue.
    best, closest, distance = value.copy(), value.copy(), residual.copy()
    index = np.arange(count)
    poor = np.zeros(count, dtype=int)
    iterations = 0
    for iterations in range(1, max_iter + 1):
        steps, current = _newton_steps(equations, value[index], index)
        current = np.where(np.isfinite(current), current, np.inf)
        worse = current > 2 * residual[index]
        better = current < residual[index]
        best[index[better]] = value[index[better]]
        residual[index] = np.where(better, current, residual[index])
        closer = index[current < distance[index]]
        closest[closer], distance[closer] = best[closer], residual[closer]
        poor[index] += worse
        size = np.abs(steps).max(axis=1, initial=0.0)
        shrink = LONGEST_STEP / np.maximum(size, LONGEST_STEP)
        if not np.isfinite(size).all():
            steps, shrink = np.nan_to_num(steps), np.nan_to_num(shrink)
        moved = value[index] * np.exp(steps * shrink[:, None])
        # Two rises in a row: go back to the best point and let the monotone map work for a while.
        lost = (poor[index] >= 2) | ~np.isfinite(moved).all(axis=1) | ~np.isfinite(current)
        if lost.any():
            # Where no step was ever possible, the map goes on from where it is.
            known = np.isfinite(residual[index[lost]])
            rescued = np.where(known[:, None], best[index[lost]], value[index[lost]])
            for _ in range(PLAIN_ROUNDS):
                rescued = equations.plain_step(rescued, index[lost])
            moved[lost] = rescued
            poor[index[lost]] = 0
            residual[index[lost]] = np.inf
        # The step computed at a point within tolerance is still taken: Newton squares the error for free.
        value[index] = moved
        done = current <= tolerance
        index = index[~done]
        if not len(index):
            return FixedPoint(value, residual, iterations)
    worst = float(distance[index].max())
    raise ConvergenceError(
        f"no solution of {equations.what} after {max_iter} rounds (residual {worst:.1e}): {equations.remedy}",
        closest,
        distance,
    )
