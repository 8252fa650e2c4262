"""Numbers that stand for nothing: -999 where nobody is older than 90."""

import re

import numpy as np

from firststep.gaussian import Array

# Codes of questionnaires and instruments: sevens, eights or nines alone. One digit, or a positive number, is one more
# easily by chance.
NEGATIVE = re.compile(r"-(7{2,}|8{2,}|9{2,})(\.9+)?|-9")
POSITIVE = re.compile(r"9{2,}(\.9+)?")
# What programs fill gaps with: ends of the whole numbers, netCDF, float32.
FILLS = (-32768.0, 32767.0, -(2.0**31), 2.0**31 - 1, 1e20, 9.969209968386869e36, -3.4028234663852886e38)
# So many other values must be there to say that a number is not one of them.
FEWEST_OTHERS = 10
# From this size on a negative code among numbers that are not negative is one, also if it stands there once.
SURE = 999.0


def stand_ins(values: Array) -> list[float]:
    """Numbers of a column that stand for a gap.

    They are codes by their digits, and either farther from all other values than these are from each other, or
    negative where no other value is. A code of two digits, or a positive one, must stand there twice.

    Examples
    --------
    >>> ages = np.append(np.arange(20.0, 80.0), [-999, 999, 999])
    >>> stand_ins(ages), stand_ins(np.append(ages[:60], 99))
    ([-999.0, 999.0], [])
    """
    known = values[np.isfinite(values)]
    ends, counts = np.unique(known, return_counts=True)
    # They stand at the ends: the first places from below and from above that are no codes bound the others.
    low, high = (
        next((i for i, v in enumerate(side) if not _is_code(v)), len(ends)) for side in (ends, ends[::-1])
    )
    others, codes = ends[low : len(ends) - high], [*range(low), *range(len(ends) - high, len(ends))]
    if len(others) < 2 or counts[low : len(ends) - high].sum() < FEWEST_OTHERS:
        return []
    bounds = float(others[0]), float(others[-1])
    return [float(ends[i]) for i in codes if _apart(float(ends[i]), int(counts[i]), *bounds)]


def _is_code(value: float) -> bool:
    """Whether a number is a code by its digits."""
    digits = f"{value:.10g}"
    return value in FILLS or any(shape.fullmatch(digits) for shape in (NEGATIVE, POSITIVE))


def _apart(value: float, count: int, low: float, high: float) -> bool:
    """Whether a code is no value among others from low to high."""
    far = max(low - value, value - high) > high - low
    if value > 0:
        return far and (count > 1 or value in FILLS)
    return (far or low >= 0 > value) and (count > 1 or value <= -SURE)
