"""Where a function of which only its values are known has kinks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from firststep.gaussian.rules import Array

REACH = 14.0
# First windows, half overlapping, and how often they are halved before kinks are told from curvature.
WINDOW, HALVINGS = 0.125, 8
MOST_HALVINGS = 60
DIFFERENCE = np.array([1.0, -4.0, 6.0, -4.0, 1.0])
# A found point this close to a short decimal is that decimal.
SNAP = 1e-7


def find_kinks(value: Callable[[Any], Any], most: int) -> tuple[float, ...]:
    r"""At most `most` points with \|x\| < 14 at which the function or one of its first two derivatives jumps.

    Fourth differences of a smooth function shrink by 16 when their step is halved, those across a jump of the k-th
    derivative by :math:`2^k` only. Every window is halved to the part with the largest difference, and those whose
    differences do not shrink like a smooth function's are followed down to rounding.

    Examples
    --------
    >>> find_kinks(lambda x: np.maximum(x, 0.3), 8)
    (0.3,)
    >>> find_kinks(np.tanh, 8)
    ()
    """
    with np.errstate(all="ignore"):
        left = np.arange(-REACH, REACH, WINDOW / 2)
        length = WINDOW
        # The ends of the windows are odd, so that a kink at a round number is inside.
        left += 0.00137
        before = _largest(value, left, length)[1]
        for _ in range(HALVINGS):
            left, found = _halved(value, left, length)
            length /= 2
        size = np.maximum(1.0, np.abs(np.asarray(value(left), dtype=np.float64)))
        suspect = (found > 2.0 ** (-3.25 * HALVINGS) * before) & (found > 1e-12 * size)
        places = sorted({_followed(value, start, length) for start in left[suspect]})
    kinks: list[float] = []
    for place in places:
        if not kinks or place - kinks[-1] > 1e-5:
            kinks.append(place)
    return tuple(kinks[:most])


def _largest(value: Callable[[Any], Any], left: Array, length: float) -> tuple[Array, Array]:
    """Which of the left, middle and right half of each window has the largest fourth difference, and its size."""
    points = left[:, None] + length / 8 * np.arange(9)
    values = np.asarray(value(points), dtype=np.float64)
    sizes = np.abs(np.stack([values[:, start : start + 5] @ DIFFERENCE for start in (0, 2, 4)]))
    sizes = np.where(np.isfinite(sizes), sizes, 0.0)
    return np.argmax(sizes, axis=0), sizes.max(axis=0)


def _halved(value: Callable[[Any], Any], left: Array, length: float) -> tuple[Array, Array]:
    part, size = _largest(value, left, length)
    return left + part * length / 4, size


def _followed(value: Callable[[Any], Any], start: float, length: float) -> float:
    """The place of a kink, down to rounding; a round number where it is one."""
    left = np.array([start])
    for _ in range(MOST_HALVINGS):
        narrower, size = _halved(value, left, length)
        floor = 1e-14 * max(1.0, float(np.abs(np.asarray(value(left))).max()))
        if size[0] < floor or length < 4 * np.spacing(abs(left[0])):
            break
        left, length = narrower, length / 2
    place = float(left[0] + length / 2)
    short = round(place, 6)
    return short + 0.0 if abs(place - short) <= max(SNAP, length) else place
