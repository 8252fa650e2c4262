"""How fast this machine multiplies matrices, for estimates of time."""

import time

import numpy as np


def multiplication_rate(size: int = 512, rounds: int = 4, threads: int | None = None) -> float:
    """Floating-point operations per second of a product of matrices, measured on the spot.

    Examples
    --------
    >>> multiplication_rate(64) > 0
    True
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    matrix = np.full((size, size), 0.5)
    with threadpool_limits(threads):
        matrix @ matrix
        started = time.perf_counter()
        for _ in range(rounds):
            matrix @ matrix
        spent = time.perf_counter() - started
    return rounds * 2 * size**3 / spent
