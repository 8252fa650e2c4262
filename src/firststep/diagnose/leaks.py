"""Columns that follow the target too closely to be known before it."""

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from firststep.gaussian import Array

# A column that follows the target this closely is taken for the target in other words.
LEAK = 0.9999
# From here on, of values or of ranks, it is suspected.
SUSPECT = 0.99
# Share of the rows that may stand in the wrong category, and how likely the order of the others may be by chance.
STRAY, CHANCE = 0.01, 1e-6


def nearness(scaled: Array, level: Array) -> tuple[Array, Array]:
    """Largest correlation (d,) of each column with a target: of values, and of values or, where high, of ranks."""
    from scipy.stats import rankdata

    straight = np.asarray(np.abs(scaled.T @ level / len(level)).max(axis=1))
    found = straight.copy()
    for place in np.flatnonzero((straight > 0.5) & (straight <= LEAK)):
        if len(np.unique(scaled[:, place])) < len(scaled) / 2:
            # Ranks of few values agree with those of few classes too easily to mean anything.
            continue
        ranks = rankdata(scaled[:, place])
        for column in level.T:
            found[place] = max(found[place], abs(float(np.corrcoef(ranks, rankdata(column))[0, 1])))
    return straight, found


def divides(codes: NDArray[np.intp], values: Array) -> bool:
    """Whether categories 0, 1, … tell the target's interval or its class: the target in coarser words.

    Parameters
    ----------
    codes : ndarray (n,)
        The category of each row.
    values : ndarray (n, k)
        A target of numbers (k = 1), or signs of its classes.

    Examples
    --------
    >>> price = np.arange(60.0)[:, None]
    >>> divides(np.repeat([2, 0, 1], 20), price), divides(np.arange(60) % 3, price)
    (True, False)
    """
    counts = np.bincount(codes)
    if len(counts) < 2:
        return False
    if values.shape[1] > 1 or len(np.unique(values)) == 2:
        return _tells_the_class(codes, values)
    target = values[:, 0]
    order = np.argsort(np.bincount(codes, weights=target) / np.maximum(counts, 1))
    ranks = np.argsort(order)[codes]
    # Rows of one value may stand in any order.
    rising = _rising(ranks[np.lexsort((ranks, target))])
    used = counts[counts > 0]
    chance = gammaln(len(used) + 1) + gammaln(used + 1).sum() - gammaln(len(codes) + 1)
    return len(codes) - rising <= STRAY * len(codes) and bool(chance < np.log(CHANCE))


def _tells_the_class(codes: NDArray[np.intp], values: Array) -> bool:
    """Whether nearly all rows of a category are of one class, which rows at random would not be."""
    classes = values.argmax(axis=1) if values.shape[1] > 1 else (values[:, 0] > values.mean()).astype(np.intp)
    table = np.zeros((int(codes.max()) + 1, int(classes.max()) + 1))
    np.add.at(table, (codes, classes), 1)
    shares = table.sum(axis=0) / len(codes)
    sizes = table.sum(axis=1)
    chance = logsumexp(sizes[:, None] * np.log(np.maximum(shares, 1e-300)), axis=1).sum()
    strays = len(codes) - table.max(axis=1).sum()
    return bool(strays <= STRAY * len(codes) and chance < np.log(CHANCE))


def _rising(ranks: NDArray[np.intp]) -> int:
    """Length of the longest part of a sequence that never falls."""
    ends: list[int] = []
    for rank in ranks.tolist():
        place = bisect_right(ends, rank)
        if place == len(ends):
            ends.append(rank)
        else:
            ends[place] = rank
    return len(ends)
