r"""Covariance of the inputs, made of words: :math:`x = S^{1/2} g`, eigenvalues of mean one, and the teacher's place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from firststep.gaussian import Array
from firststep.setting.inputs import Alignment, Inputs


@dataclass(frozen=True)
class Covariance:
    r"""Eigenvalues m of S, of mean one, with their shares among the directions and of the teacher.

    Attributes
    ----------
    values : ndarray (L,)
        Distinct eigenvalues m, descending.
    counts : ndarray (L,)
        How many of the d directions have each.
    weights : ndarray (L,)
        Share of the teacher's whitened direction, :math:`\nu`; sums to one.
    typical : bool
        Whether the teacher's direction is drawn uniformly, without regard to the eigenvalues.
    """

    values: Array
    counts: Array
    weights: Array
    typical: bool

    @property
    def isotropic(self) -> bool:
        """Whether all eigenvalues are one."""
        return len(self.values) == 1

    @cached_property
    def shares(self) -> Array:
        """Share of each eigenvalue among the directions, mu."""
        return np.asarray(self.counts / self.counts.sum())

    def eigenvalues(self) -> Array:
        """All d eigenvalues, descending."""
        return np.repeat(self.values, self.counts.astype(int))

    def condensed(self) -> Self:
        """The same law with neighbours of a long list put together: those within half a percent, at their mean."""
        if len(self.values) <= FIRST_SINGLE:
            return self
        group = np.floor(np.log(self.values[0] / self.values) / GROUP_WIDTH)
        index = np.unique(group, return_inverse=True)[1]
        parts = self.counts, self.weights, self.counts * self.values
        counts, weights, sums = (np.asarray(np.bincount(index, part), dtype=np.float64) for part in parts)
        return replace(self, values=sums / counts, counts=counts, weights=weights)

    def moment(self, power: float) -> float:
        """Mean of m^power over the directions."""
        return float(self.shares @ self.values**power)

    def teacher_moment(self, power: float) -> float:
        """Mean of m^power over the teacher's weights."""
        return float(self.weights @ self.values**power)


Groups = tuple[Array, Array]  # eigenvalues and how many directions have each, in the order given


def _isotropic(numbers: Sequence[float], dim: int) -> Groups:
    return np.ones(1), np.array([dim])


# Up to this d each eigenvalue of a power law stands for itself. Beyond, only the first do: the others are grouped, each
# group wider than the one before by this share of the place where it begins.
MOST_SINGLE, FIRST_SINGLE, GROUP_WIDTH = 100_000, 10_000, 0.005


def _power(numbers: Sequence[float], dim: int) -> Groups:
    exponent = numbers[0]
    if dim <= MOST_SINGLE:
        return np.arange(1, dim + 1, dtype=float) ** -exponent, np.ones(dim, dtype=int)
    first = np.arange(1, FIRST_SINGLE + 1, dtype=float) ** -exponent
    groups = math.ceil(math.log(dim / FIRST_SINGLE) / GROUP_WIDTH)
    edges = np.floor(np.geomspace(FIRST_SINGLE, float(dim), groups + 1))
    # The sum over a group by the integral between its halves: off by a share of 1/(24 place^2).
    middle = np.log(edges + 0.5)
    power = 1 - exponent
    sums = np.diff(middle) if power == 0 else np.diff(np.exp(power * middle)) / power
    counts = np.diff(edges)
    return np.concatenate([first, sums / counts]), np.concatenate([np.ones(FIRST_SINGLE), counts])


def _levels(numbers: Sequence[float], dim: int) -> Groups:
    if len(numbers) > dim:
        raise ValueError(f"{len(numbers)} levels need d of at least as many, got d = {dim}")
    bounds = np.round(np.linspace(0, dim, len(numbers) + 1)).astype(int)
    return np.array(numbers), np.diff(bounds)


def _spiked(numbers: Sequence[float], dim: int) -> Groups:
    if len(numbers) >= dim:
        raise ValueError(f"{len(numbers)} spikes need d above {len(numbers)}, got d = {dim}")
    counts = np.array([1] * len(numbers) + [dim - len(numbers)])
    return np.array([*(1 + x for x in numbers), 1.0]), counts


def _values(numbers: Sequence[float], dim: int) -> Groups:
    values = np.sort(np.array(numbers))[::-1]
    if len(values) < dim:
        # A spectrum given with fewer values is stretched: equal shares, as for levels.
        return _levels(values.tolist(), dim)
    return (values if len(values) == dim else _thinned(values, dim)), np.ones(dim, dtype=int)


def _thinned(values: Array, dim: int) -> Array:
    """Means of d equal shares of a longer list."""
    parts = np.interp(
        np.linspace(0, len(values), dim + 1), np.arange(len(values) + 1), np.r_[0, np.cumsum(values)]
    )
    return np.diff(parts)


_SPECTRA = {"isotropic": _isotropic, "power": _power, "levels": _levels, "spiked": _spiked, "values": _values}


@lru_cache(maxsize=256)
def covariance_named(inputs: str, alignment: str, dim: int) -> Covariance:
    """The covariance that words ask for in d dimensions."""
    return covariance_of(Inputs.parse(inputs), Alignment.parse(alignment), dim)


@lru_cache(maxsize=256)
def covariance_of(inputs: Inputs, alignment: Alignment, dim: int) -> Covariance:
    """Eigenvalues, normalised to mean one, and the teacher's weights, for d = `dim`."""
    values, counts = _SPECTRA[inputs.kind](inputs.numbers, dim)
    values = values / (counts @ values / dim)
    weights, typical = counts / dim, alignment.kind == "typical"
    if inputs.overlap is not None:
        spikes = len(inputs.numbers)
        if not typical:
            raise ValueError("give either spiked(…, overlap=…) or alignment, not both")
        weights = np.array([inputs.overlap / spikes] * spikes + [1 - inputs.overlap])
        typical = False
    elif alignment.kind == "eigenvalues":
        weights = counts * values ** (alignment.numbers[0] if alignment.numbers else 1.0)
    elif alignment.kind == "weights":
        if len(alignment.numbers) != len(values):
            raise ValueError(
                f"alignment {alignment.spec} has {len(alignment.numbers)} weights for the {len(values)} levels of "
                f"inputs {inputs.spec}: give one for each"
            )
        weights = np.array(alignment.numbers)
    weights = weights / weights.sum()
    if np.ptp(values) < 1e-13:
        return Covariance(np.ones(1), np.array([dim]), np.ones(1), typical=True)
    order = np.argsort(-values, kind="stable")
    return Covariance(values[order], counts[order], weights[order], typical)


def from_data(inputs: ArrayLike, labels: ArrayLike | None = None) -> tuple[Inputs, Alignment]:
    """The spectrum of a table's covariance, and the weights of the best linear predictor in whitened coordinates.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((2000, 3)) * [3.0, 1.0, 1.0]
    >>> inputs, alignment = from_data(x, x[:, 0])
    >>> len(inputs.numbers), round(alignment.numbers[0], 2)
    (3, 1.0)
    """
    x = np.asarray(inputs, dtype=float)
    if x.ndim != 2 or len(x) < 2 or not np.isfinite(x).all():
        raise ValueError(f"from_data takes a table of at least two rows without gaps, got shape {x.shape}")
    x = x - x.mean(axis=0)
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    kept = values > 1e-10 * values.max()
    values, vectors = values[kept][::-1], vectors[:, kept][:, ::-1]
    found = Inputs("values", tuple(float(v) for v in values / values.mean()))
    if labels is None:
        return found, Alignment()
    y = np.asarray(labels, dtype=float)
    slope = (x @ vectors / np.sqrt(values)).T @ (y - y.mean()) / len(x)
    # The scatter of a slope that is zero would count as signal.
    signal = np.maximum(slope**2 - float(np.var(y)) / len(x), 0.0)
    weights = signal if signal.sum() > 0 else np.ones_like(signal)
    return found, Alignment("weights", tuple(float(w) for w in weights / weights.sum()))
