"""Do a mean of few replicas and a prediction agree? Student's t for a point, one exact test for a whole curve."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# A right prediction is called wrong in this share of the cases, curves or points.
LEVEL = 0.01
AGREES, FINITE_SIZE, DISAGREES = "agrees", "finite-size", "disagrees"
WORDS = (AGREES, FINITE_SIZE, DISAGREES)
# Directions in which a curve is tested: one for so many replicas, and never more than these.
REPLICAS_PER_DIRECTION, MOST_DIRECTIONS = 4, 3
# How the level is shared between the whole curve, its shape and its farthest point.
CURVE_SHARE, SHAPE_SHARE, POINTS_SHARE = 0.5, 0.25, 0.25
# Singular values below this share of the largest are rounding.
ROUNDING = 1e-10


@dataclass(frozen=True)
class Agreement:
    """How well the points of a curve agree with a prediction, as one number.

    Attributes
    ----------
    word : {"agrees", "finite-size", "disagrees"}
        Whether chance explains the difference, or chance and the theory's own error bar, or neither.
    p_value : float
        Chance, or slightly more, that a right prediction is at least as far off.
    distance : float
        The same as a number of standard deviations of a normal variable.
    statistic : float
        Hotelling's T^2 of the directions that are tested.
    degrees_of_freedom : tuple of int
        Directions, and replicas less directions.
    points : int
        Points of the curve that have a distance.
    """

    word: str
    p_value: float
    distance: float
    statistic: float
    degrees_of_freedom: tuple[int, int]
    points: int

    def __str__(self) -> str:
        return f"{self.word} ({probability_text(self.p_value)}, {_points(self.points)})"


def _points(count: int) -> str:
    return f"{count} point{'s' if count != 1 else ''}"


def probability_text(p_value: float) -> str:
    """A p-value in as many digits as it deserves.

    Examples
    --------
    >>> probability_text(0.4321), probability_text(0.0123), probability_text(3e-9)
    ('p = 0.43', 'p = 0.012', 'p < 0.001')
    """
    if math.isnan(p_value):
        return "p = –"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def counts_text(words: Mapping[str, int]) -> str:
    """How many curves have which word, in a sentence's part.

    Examples
    --------
    >>> counts_text({"agrees": 87, "finite-size": 3}), counts_text({"agrees": 2})
    ('87 of 90 curves agree, 3 are finite-size', 'both curves agree')
    >>> counts_text({"agrees": 0, "disagrees": 1}), counts_text({"agrees": 1}), counts_text({"agrees": 5})
    ('0 of 1 curve agrees, 1 disagrees', 'the curve agrees', 'all 5 curves agree')
    """
    total, agreeing = sum(words.values()), words.get(AGREES, 0)
    verb = "agrees" if total == 1 else "agree"
    if agreeing == total:
        return {0: "no curves", 1: "the curve agrees", 2: "both curves agree"}.get(
            total, f"all {total} curves agree"
        )
    parts = [f"{agreeing} of {total} curve{'s' if total > 1 else ''} {verb}"]
    finite, wrong = words.get(FINITE_SIZE, 0), words.get(DISAGREES, 0)
    parts += [f"{finite} {'is' if finite == 1 else 'are'} finite-size"] if finite else []
    parts += [f"{wrong} disagree{'s' if wrong == 1 else ''}"] if wrong else []
    return ", ".join(parts)


def student_p_values(distances: Array, degrees: float) -> Array:
    """Two-sided p-values of distances in estimated standard errors.

    Parameters
    ----------
    distances : ndarray
        Difference over standard error; NaN where there is none.
    degrees : float
        Degrees of freedom of the standard error: replicas less one.

    Examples
    --------
    Of four replicas a distance of 3.18 is an ordinary event:

    >>> print(student_p_values(np.array([3.18]), 3).round(3), student_p_values(np.array([3.18]), np.inf).round(4))
    [0.05] [0.0015]
    """
    from scipy.special import stdtr

    with np.errstate(invalid="ignore"):
        return cast(Array, np.minimum(1.0, 2 * stdtr(degrees, -np.abs(distances))))


def normal_distances(distances: Array, degrees: float) -> Array:
    """Distances in estimated standard errors as those of a normal variable with the same p-values.

    Examples
    --------
    >>> print(normal_distances(np.array([-3.18, 3.18]), 3).round(2), normal_distances(np.array([3.18]), np.inf))
    [-1.96  1.96] [3.18]
    """
    if math.isinf(degrees):
        return distances
    from scipy.special import ndtri

    sizes = np.abs(distances)
    with np.errstate(invalid="ignore"):
        found = np.minimum(sizes, -ndtri(student_p_values(distances, degrees) / 2))
    # The smallest p-values are 0 in floating point; no standard error at all is infinitely far.
    return cast(Array, np.sign(distances) * np.where(np.isinf(sizes), sizes, np.abs(found)))


def words_of(differences: Array, stderr: Array, bars: Array, degrees: float) -> list[str | None]:
    """A word for each point; None where there is nothing to judge by."""
    words: list[str | None] = []
    for difference, error, bar in zip(differences.ravel(), stderr.ravel(), bars.ravel(), strict=True):
        if math.isnan(difference) or (math.isnan(error) and difference):
            words.append(None)
            continue
        inside = max(0.0, abs(difference) - bar)
        plain, barred = (_p_value(size, error, degrees) for size in (abs(difference), inside))
        words.append(_word(plain, barred))
    return words


def _p_value(size: float, stderr: float, degrees: float) -> float:
    if size == 0:
        return 1.0
    return float(student_p_values(np.array(size / stderr), degrees)) if stderr > 0 else 0.0


def _word(p_value: float, p_value_in_bar: float) -> str:
    if p_value >= LEVEL:
        return AGREES
    return FINITE_SIZE if p_value_in_bar >= LEVEL else DISAGREES


def curve_agreement(samples: Array, predicted: Array, bars: Array | None = None) -> Agreement | None:
    r"""Agreement of a curve whose points share their draws.

    Let :math:`D = X - 1 p^\top` be replicas less prediction and :math:`U` the left singular vectors of D,
    each of its columns scaled to length one, that belong to its q largest singular values. Then

    .. math:: h = |U^\top 1|^2/R, \quad T^2 = (R-1)\frac{h}{1-h}, \quad
        \frac{R-q}{q (R-1)} T^2 \sim F(q, R-q)

    for a right prediction, exactly if the replicas are normal, however the points are correlated and however
    many they are, because U depends on D through its total sum of products only [LGK98]. This is Hotelling's
    test in the q directions in which the curve differs most; for one point it is Student's t.

    Half of the level is spent on it. A quarter goes to the same test of the curve's shape, D less each replica's
    mean relative to the prediction, because what all points of a draw share hides a wrong shape. A quarter goes to
    the farthest point (Bonferroni). So a right curve is called wrong at most, and nearly, as often as the level says.

    Parameters
    ----------
    samples : ndarray (R, P)
        Each replica's values at the points, R at least 2.
    predicted : ndarray (P,)
        The theory; NaN where it has none.
    bars : ndarray (P,), optional
        Half-widths of the theory's own error bar.

    Returns
    -------
    Agreement or None
        None if no point can be compared.

    Examples
    --------
    >>> noise = np.random.default_rng(0).standard_normal((4, 10)) + 5
    >>> curve_agreement(noise, np.full(10, 5.0)).word, curve_agreement(noise, np.full(10, 20.0)).word
    ('agrees', 'disagrees')
    >>> curve_agreement(noise, np.full(10, 20.0), np.full(10, 16.0)).word
    'finite-size'
    """
    if samples.ndim != 2 or len(samples) < 2:
        raise ValueError(f"samples must be replicas x points with at least 2 replicas, got {samples.shape}")
    known = np.isfinite(predicted) & np.isfinite(samples).all(axis=0)
    if not known.any():
        return None
    from scipy.special import ndtri

    samples, predicted = samples[:, known], predicted[known]
    share, directions, rest = _share_of_mean(samples - predicted)
    barred = p_value = _curve_p_value(samples - predicted, predicted)
    if bars is not None and p_value < LEVEL:
        half = np.broadcast_to(bars, known.shape)[known]
        mean = samples.mean(axis=0)
        nearest = np.clip(mean, predicted - half, predicted + half)
        barred = _curve_p_value(samples - nearest, predicted)
    statistic = (len(samples) - 1) * share / (1 - share) if share < 1 else math.inf
    distance = float(-ndtri(p_value / 2)) if p_value > 0 else math.inf
    freedom = (directions, rest)
    return Agreement(_word(p_value, barred), p_value, distance, statistic, freedom, int(known.sum()))


def _curve_p_value(differences: Array, predicted: Array) -> float:
    """P-value of the curve, its shape and its farthest point together."""
    along = _tail(*_share_of_mean(differences))
    count = differences.shape[1]
    if count == 1:
        return along
    scale = np.abs(predicted)
    relative = differences[:, scale > 0] / scale[scale > 0]
    shape = _tail(*_share_of_mean(relative - relative.mean(axis=1, keepdims=True))) if relative.size else 1.0
    mean = np.abs(differences.mean(axis=0))
    stderr = differences.std(axis=0, ddof=1) / math.sqrt(len(differences))
    distances = np.divide(mean, stderr, out=np.where(mean > 0, np.inf, 0.0), where=stderr > 0)
    farthest = float(student_p_values(distances, len(differences) - 1).min())
    shared = along / CURVE_SHARE, shape / SHAPE_SHARE, farthest * count / POINTS_SHARE
    return float(min(1.0, *shared))


def _share_of_mean(differences: Array) -> tuple[float, int, int]:
    """Share h of the constant vector in the leading directions, their number q, and R - q."""
    replicas = len(differences)
    # What is a rounding error beside the largest difference of its point has no spread.
    size = np.abs(differences).max(axis=0)
    moving = size > 0
    directions = max(1, min(MOST_DIRECTIONS, replicas // REPLICAS_PER_DIRECTION, int(moving.sum())))
    if not moving.any():
        return 0.0, directions, replicas - directions
    left = differences[:, moving] / size[moving]
    left = left / np.linalg.norm(left, axis=0)
    vectors, lengths, _ = np.linalg.svd(left, full_matrices=False)
    directions = min(directions, int((lengths > ROUNDING * lengths[0]).sum()))
    projections = vectors[:, :directions].sum(axis=0)
    return float(min(1.0, projections @ projections / replicas)), directions, replicas - directions


def _tail(share: float, directions: int, rest: int) -> float:
    """Chance that the share is larger: it is a Beta variable."""
    from scipy.special import betainc

    return float(betainc(rest / 2, directions / 2, 1 - share))
