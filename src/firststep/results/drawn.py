"""Spectra of drawn matrices: what one draw gives, and what several give together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from firststep.gaussian import Array
from firststep.results.spectrum import Outlier, Spectrum, overlaps_from, overlaps_to
from firststep.setting import Problem, Sizes

# Eigenvalues below this share of the largest are zero up to rounding.
ROUNDING = 1e-11


@dataclass(frozen=True)
class FoundOutliers:
    """Outliers of one draw and the edge that the eigenvalues below them point to.

    Attributes
    ----------
    count : int
        Eigenvalues above the bulk.
    edge : float
        Upper edge of the bulk, estimated.
    spacing : float
        Scale of the largest eigenvalues' fluctuation, of order n^(-2/3) for a square-root edge.
    """

    count: int
    edge: float
    spacing: float


@dataclass(frozen=True, eq=False)
class DrawnSpectrum:
    """One drawn matrix.

    Attributes
    ----------
    eigenvalues : ndarray
        In descending order: all that are not zero for want of rank, or the largest.
    found : FoundOutliers
        Which of them lie outside the bulk.
    overlaps : sequence of mapping of str to float
        Squared overlaps of the largest ones' singular vectors.
    total : int
        Eigenvalues including those that were not computed.
    whole : bool
        Whether the bulk was asked for.
    """

    eigenvalues: Array
    found: FoundOutliers
    overlaps: Sequence[Mapping[str, float]]
    total: int
    whole: bool = True

    def to_arrays(self) -> dict[str, Any]:
        """As named arrays, for a store."""
        found = self.found
        numbers = [found.count, found.edge, found.spacing, self.total, self.whole]
        return {"eigenvalues": self.eigenvalues, "found": np.array(numbers, float)} | overlaps_to(
            self.overlaps
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Inverse of `to_arrays`."""
        count, edge, spacing, total, whole = arrays["found"].tolist()
        found = FoundOutliers(int(count), edge, spacing)
        return cls(arrays["eigenvalues"], found, overlaps_from(arrays), int(total), bool(whole))


def spectrum_of(
    draws: Sequence[DrawnSpectrum],
    problem: Problem,
    sizes: Sizes,
    step_size: float,
    of: str,
    count: int | None = None,
    bins: int | None = None,
) -> Spectrum:
    """Histogram, edges and mean outliers of several draws; `count` outliers, or those of the median draw."""
    counts = [draw.found.count for draw in draws]
    shown = int(np.median(counts)) if count is None else count
    edge = float(np.mean([draw.found.edge for draw in draws]))
    samples = np.array([draw.eigenvalues[:shown] for draw in draws]).reshape(len(draws), shown)
    outliers, errors = [], []
    for k in range(shown):
        value = float(samples[:, k].mean())
        known = [draw.overlaps[k] for draw in draws if len(draw.overlaps) > k]
        squares = {name: float(np.mean([one[name] for one in known])) for name in known[0]} if known else {}
        outliers.append(Outlier(value, math.sqrt(value), squares, value / edge))
        errors.append(
            {
                "eigenvalue": mean_error(samples[:, k]),
                "overlaps": {name: mean_error(np.array([one[name] for one in known])) for name in squares},
            }
        )
    lower, atom, x, heights = _histogram(draws, bins)
    details: Mapping[str, Any] = {
        "replicas": len(draws),
        "draws": tuple(draws),
        "eigenvalues": [draw.eigenvalues for draw in draws],
        "zeros": draws[0].total - len(draws[0].eigenvalues),
        "counts": counts,
        "edges": [draw.found.edge for draw in draws],
        "spacings": [draw.found.spacing for draw in draws],
        "samples": samples,
        "overlaps": [draw.overlaps for draw in draws],
        "stderr": errors,
    }
    return Spectrum(
        problem, sizes, step_size, of, "simulation",
        x, heights, (lower, edge), ((lower, edge),), atom, tuple(outliers), details,
    )  # fmt: skip


def _histogram(draws: Sequence[DrawnSpectrum], bins: int | None) -> tuple[float, float, Array, Array]:
    """Lower edge, share of zeros, and the bulk's histogram; empty where the bulk was not asked for."""
    if not draws[0].whole:
        return math.nan, math.nan, np.empty(0), np.empty(0)
    # The smaller Gram matrix was solved: the other eigenvalues of F F^T or W W^T are zero.
    missing = draws[0].total - len(draws[0].eigenvalues)
    own = [draw.eigenvalues > ROUNDING * draw.eigenvalues[0] for draw in draws]
    kept = [draw.eigenvalues[keep] for draw, keep in zip(draws, own, strict=True)]
    inside = np.concatenate(
        [values[max(0, draw.found.count) :] for values, draw in zip(kept, draws, strict=True)]
    )
    total = draws[0].total * len(draws)
    zeros = sum(int((~keep).sum()) for keep in own) + missing * len(draws)
    number = bins or int(np.clip(2 * len(inside) ** (1 / 3) + 10, 10, 120))
    tally, ends = np.histogram(inside, bins=number)
    lower = float(np.mean([values[-1] for values in kept]))
    return lower, zeros / total, (ends[1:] + ends[:-1]) / 2, tally / (total * np.diff(ends))


def mean_error(sample: Array) -> float:
    """Standard error of the mean; NaN for a single draw."""
    return float(np.std(sample, ddof=1) / math.sqrt(len(sample))) if len(sample) > 1 else math.nan


@dataclass(frozen=True, eq=False)
class Distances:
    """Operator norms of differences, averaged over draws.

    Attributes
    ----------
    names : tuple of str
        What was compared.
    mean, stderr : ndarray (S, len(names))
        For every step size.
    samples : ndarray (replicas, S, len(names))
        Each draw.
    """

    names: tuple[str, ...]
    mean: Array
    stderr: Array
    samples: Array

    @classmethod
    def of(cls, names: tuple[str, ...], samples: Array) -> Self:
        """From what each draw gave."""
        count = len(samples)
        spread = np.full(samples.shape[1:], np.nan)
        if count > 1:
            spread = samples.std(axis=0, ddof=1) / math.sqrt(count)
        return cls(names, samples.mean(axis=0), spread, samples)
