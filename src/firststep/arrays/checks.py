"""Data that cannot be computed with, named by its row; and single rows that decide everything."""

from typing import Any

import numpy as np

# The square of a larger number, or a sum of squares, leaves the range of floating-point numbers.
LARGEST_VALUE = 1e150
# Share of a column's sum of squares from which on one row is said to decide it.
DOMINANT = 0.99


def check_squarable(values: Any, name: str = "the data") -> None:
    """Refuse an array with entries that cannot be squared, with the row and column of the first.

    Parameters
    ----------
    values : array_like (n,) or (n, d)
        Finite numbers.
    name : str
        What the error calls them.

    Examples
    --------
    >>> check_squarable([[1.0, 2.0], [3.0, 1e200]], "X")
    Traceback (most recent call last):
    ValueError: X has 1e+200 in row 1, column 1, which cannot be squared: rescale the column, or leave the row out
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or not array.size:
        return
    large = np.abs(array) > LARGEST_VALUE
    if large.any():
        place = tuple(int(i) for i in np.argwhere(large)[0])
        where = f"row {place[0]}" + (f", column {place[1]}" if len(place) > 1 else "")
        raise ValueError(
            f"{name} has {float(array[place]):g} in {where}, which cannot be squared: rescale the column, or leave "
            "the row out"
        )


def dominant_row(values: Any) -> tuple[int, int, float] | None:
    """Row and column of an entry that makes up nearly all of its column's variance, and its share; or None.

    Examples
    --------
    >>> dominant_row([[0.0], [1e12], [1.0], [2.0], [1.5]])
    (1, 0, 1.0)
    """
    array = np.asarray(values, dtype=np.float64)
    array = array[:, None] if array.ndim == 1 else array
    if len(array) < 5:
        return None
    scale = np.abs(array).max(axis=0)
    scaled = array / np.where(scale > 0, scale, 1.0)
    # About the median, which the row itself does not move.
    squares = np.square(scaled - np.median(scaled, axis=0))
    total = squares.sum(axis=0)
    shares = squares.max(axis=0) / np.where(total > 0, total, 1.0)
    # A column that is 0 but for one row, as of a rare word, is no mistake of scale.
    shares = np.where((array != 0).mean(axis=0) > 0.5, shares, 0.0)
    column = int(np.argmax(shares))
    share = float(shares[column])
    if share < DOMINANT:
        return None
    return int(np.argmax(squares[:, column])), column, round(share, 6)
