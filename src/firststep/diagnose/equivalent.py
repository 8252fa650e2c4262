"""Ridge regression on fixed features, carried over to other numbers of samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from firststep.diagnose.numbers import Number
from firststep.gaussian import Array

# Ridges of the path, over the total variance of the features.
PATH = np.geomspace(1e-9, 30.0, 61)
# Beyond this share of the samples the degrees of freedom are too many for the equivalent to be read off safely.
MOST_FREEDOM = 0.6
# The error of a sample that is left out is not known better than this.
SMALLEST_REST = 1e-9


@dataclass(frozen=True, eq=False)
class Path:
    r"""All ridge fits on fixed features of n samples.

    Attributes
    ----------
    basis : ndarray (n, r)
        Orthonormal left singular vectors Z of the centred features, and a constant one last.
    spectrum : ndarray (r - 1,)
        Eigenvalues s of the features' covariance.
    targets : ndarray (n, k)
        Centred targets.
    ridges : ndarray (R,)
        :math:`\lambda`.
    outside : ndarray (R,), optional
        Mean squared errors on samples that had no part in the fits, if there were any.
    """

    basis: Array
    spectrum: Array
    targets: Array
    ridges: Array
    outside: Array | None = None

    @cached_property
    def _shrunk(self) -> Array:
        """Eigenvalues (r, R) of the hat matrices."""
        found = self.spectrum[:, None] / (self.spectrum[:, None] + self.ridges)
        return np.vstack([found, np.ones(len(self.ridges))])

    @cached_property
    def _rest(self) -> Array:
        """One less the leverages, (n, R)."""
        return np.maximum(1 - self.basis**2 @ self._shrunk, SMALLEST_REST)

    @cached_property
    def squares(self) -> Array:
        """Squared leave-one-out errors (n, R), averaged over the targets."""
        turned = self.basis.T @ self.targets
        total = np.zeros(self._rest.shape)
        for target, column in zip(self.targets.T, turned.T, strict=True):
            total += (target[:, None] - self.basis @ (self._shrunk * column[:, None])) ** 2
        return np.asarray(total / self._rest**2 / self.targets.shape[1])

    @cached_property
    def errors(self) -> Array:
        """Mean squared leave-one-out errors (R,)."""
        return np.asarray(self.squares.mean(axis=0))

    @property
    def best(self) -> int:
        """Place of the ridge with the lowest error."""
        return int(self.errors.argmin())

    @cached_property
    def freedom(self) -> tuple[Array, Array]:
        r"""Degrees of freedom :math:`df_1, df_2` (R,) of the features' own covariance, the intercept included."""
        first = self._shrunk.sum(axis=0)
        kappa = self.ridges / np.maximum(1 - first / len(self.basis), 1e-6)
        second = first + np.gradient(first, np.log(kappa))
        return first, np.clip(second, 1.0, first)

    def variance(self, place: int) -> float:
        r"""Share of the error at a ridge that is due to the samples being these, and not others.

        .. math:: q = \frac{V}{E + V}, \quad V = \frac1n \sum_{i \ne j} \Bigl(\frac{H_{ij}}{1 - H_{ii}}\Bigr)^2 r_j^2

        with the hat matrix H and the leave-one-out errors r: what leaving sample j out changes in the prediction of
        sample i. For Gaussian features whose noise knows nothing of them :math:`V/E = b/(1-b)` with
        :math:`b = df_2/n`, so that :math:`q = df_2/n`; here samples of large leverage and large error count as they
        are [firststep].
        """
        shrunk, rest, squares = self._shrunk[:, place], self._rest[:, place], self.squares[:, place]
        left = (self.basis / rest[:, None]).T @ (self.basis / rest[:, None])
        right = (self.basis * squares[:, None]).T @ self.basis
        whole = float(shrunk @ (left * right) @ shrunk)
        own = float((((1 - rest) / rest) ** 2 * squares).sum())
        spread = max(whole - own, 0.0) / len(squares)
        return spread / (float(self.errors[place]) + spread)

    def extend(self, n_samples: int) -> tuple[Number, bool]:
        r"""Error at the best ridge for another number of samples, and whether a smaller ridge would be better still.

        Ridge regression on fixed features has a deterministic equivalent in which the ridge enters only through
        :math:`\kappa`, with :math:`df_p = \sum_i s_i^p/(s_i + \kappa)^p` of the features' covariance:

        .. math:: \lambda = \kappa\,(1 - df_1(\kappa)/n), \quad E(n) = B(\kappa)/(1 - df_2(\kappa)/n)

        B, the error of infinitely many samples shrunk as strongly, does not depend on n. Leave-one-out errors give E
        at the n there is, the fit's own trace gives :math:`df_1`, its derivative
        :math:`df_2 = df_1 + \kappa\, df_1'`; so B is read off for each :math:`\kappa` and put in again at
        another n, which gives the best :math:`\kappa`. There :math:`df_2/n` is replaced by `variance`, because the
        errors of real tables are largest where samples are few [firststep].
        """
        n, (_, second) = len(self.basis), self.freedom
        safe = (second / n < MOST_FREEDOM) & (second < 0.95 * n_samples)
        if not safe.any():
            return Number(math.nan, math.nan), True
        factor = (1 - second / n) / np.where(safe, 1 - second / n_samples, 1.0)
        place = int(np.where(safe, self.errors * factor, np.inf).argmin())
        ratio = n / n_samples
        share = self.variance(place) if n_samples != n else second[place] / n
        if share * ratio > 0.95:
            share = second[place] / n
        change = (1 - share) / (1 - share * ratio)
        value = float(self.errors[place] * change)
        spread = float(self.squares[:, place].std(ddof=1) / math.sqrt(n) * change)
        # The ridge gets no smaller from here on: what lies beyond is unknown.
        return Number(value, spread), n_samples > n and place == int(np.flatnonzero(safe)[0])

    def along(self, n_samples: int, places: Sequence[int]) -> list[tuple[float, float]]:
        """Ridge and error for another number of samples, at some places of the path; NaN where it cannot be told."""
        n, (first, second) = len(self.basis), self.freedom
        found = []
        for place in places:
            kappa = self.ridges[place] / max(1 - first[place] / n, 1e-6)
            share = self.variance(place) if n_samples != n else 0.0
            possible = (
                second[place] < MOST_FREEDOM * n and first[place] < n_samples and share * n < 0.95 * n_samples
            )
            change = (1 - share) / (1 - share * n / n_samples) if possible else math.nan
            found.append(
                (float(kappa * (1 - first[place] / n_samples)), float(self.errors[place] * change))
                if possible
                else (float(self.ridges[place]), math.nan)
            )
        return found


def fixed_path(network: Any, sample: Any, others: Any = None) -> Path:
    """The path of a network's features on a sample in which each row counts once; tried on others, if there are any."""
    rows = np.asarray(network.features(sample.inputs), dtype=np.float64)
    mean = rows.mean(axis=0)
    rows = rows - mean
    n = len(rows)
    wide = rows.shape[1] > n
    values, vectors = np.linalg.eigh((rows @ rows.T if wide else rows.T @ rows) / n)
    kept = values > 1e-13 * max(float(values[-1]), 1e-300)
    values, vectors = values[kept], vectors[:, kept]
    left = vectors if wide else rows @ vectors / np.sqrt(n * values)
    basis = np.column_stack([left, np.full(n, 1 / math.sqrt(n))])
    level = sample.targets.mean(axis=0)
    ridges = PATH * float(rows.var(axis=0).sum() or 1.0)
    outside = None
    if others is not None:
        right = rows.T @ left / np.sqrt(n * values) if wide else vectors
        seen = (np.asarray(network.features(others.inputs), dtype=np.float64) - mean) @ right
        shrunk = np.sqrt(values / n)[:, None] / (values[:, None] + ridges)
        turned = left.T @ (sample.targets - level)
        wanted = (others.targets - level).T
        errors = [
            (target[:, None] - seen @ (shrunk * column[:, None])) ** 2
            for target, column in zip(wanted, turned.T, strict=True)
        ]
        outside = np.mean(errors, axis=(0, 1))
    return Path(basis, values, sample.targets - level, ridges, outside)
