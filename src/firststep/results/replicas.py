"""What one drawn network gives, by part, and the mean over several of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array

# The part that every replica has; the others are extras, by their own names.
NETWORK = "network"
_SPREAD = "test_stderr"


@dataclass(frozen=True, eq=False)
class Measured(Mapping[str, Array]):
    """Numbers of one replica for every step size and ridge; a mapping from their names, whatever part they belong to.

    Attributes
    ----------
    parts : mapping of str to mapping of str to ndarray
        ``"network"``, then the extras that were asked for; each array broadcasts to (S, R).
    test_stderr : ndarray (S, R)
        Error of a sampled test error given the draw; 0 where it is exact.
    controls : ndarray (q,) or None
        Averages over the draw whose means are known, less these.
    correction : mapping of str to ndarray or None
        What a higher precision changes, where this draw was computed in it as well.

    Examples
    --------
    >>> parts = {"network": {"test_error": np.ones((1, 1))}, "weights": {"weights_top": np.full((1, 1), 2.0)}}
    >>> one = Measured(parts, np.zeros((1, 1)))
    >>> sorted(one), float(one["weights_top"][0, 0])
    (['test_error', 'weights_top'], 2.0)
    """

    parts: Mapping[str, Mapping[str, Array]]
    test_stderr: Array
    controls: Array | None = None
    correction: Mapping[str, Array] | None = None

    def __getitem__(self, name: str) -> Array:
        for part in self.parts.values():
            if name in part:
                return part[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for part in self.parts.values() for name in part)

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def tables(self) -> dict[str, dict[str, Array]]:
        """The parts as a store keeps them, the test error's own error beside the network's numbers."""
        tables = {part: dict(values) for part, values in self.parts.items()}
        tables.setdefault(NETWORK, {})[_SPREAD] = self.test_stderr
        return tables

    @classmethod
    def from_tables(cls, tables: Mapping[str, Mapping[str, Array]]) -> Self:
        """Inverse of `tables`."""
        parts = {part: dict(values) for part, values in tables.items()}
        spread = parts.get(NETWORK, {}).pop(_SPREAD, np.zeros((1, 1)))
        return cls(parts, spread)


@dataclass(frozen=True, eq=False)
class Averages:
    """Means over replicas.

    Attributes
    ----------
    values, stderr : mapping of str to ndarray
        Means, and their standard errors where there are at least two replicas.
    samples : mapping of str to ndarray (replicas, …)
        What the means are of, before control variates and corrections.
    test_stderr : ndarray (S, R)
        What test samples add to the error of the mean test error.
    sampled : ndarray (S,) of bool
        Step sizes whose test error was measured on a sample.
    """

    values: Mapping[str, Array]
    stderr: Mapping[str, Array]
    samples: Mapping[str, Array]
    test_stderr: Array
    sampled: NDArray[np.bool_]

    @classmethod
    def of(cls, replicas: Sequence[Measured]) -> Self:
        """Of the quantities that all replicas have, corrected by control variates where they have these.

        Where some replicas say what a higher precision changes, the mean of that is added [Giles08]: the sum has the
        mean of the higher precision, whatever the lower one leaves out.
        """
        count = len(replicas)
        names = [name for name in replicas[0] if all(name in replica for replica in replicas)]
        samples = {name: np.stack([replica[name] for replica in replicas]) for name in names}
        counted = samples
        controls = [replica.controls for replica in replicas if replica.controls is not None]
        if len(controls) == count:
            counted = {name: controlled(sample, np.stack(controls)) for name, sample in samples.items()}
        values = {name: sample.mean(axis=0) for name, sample in counted.items()}
        stderr = {name: _error(sample) for name, sample in counted.items()} if count > 1 else {}
        corrections = [replica.correction for replica in replicas if replica.correction is not None]
        if len(corrections) > 1:
            for name in names:
                change = np.stack([correction[name] for correction in corrections])
                values[name] = values[name] + change.mean(axis=0)
                stderr[name] = np.hypot(stderr[name], _error(change))
        spread = np.stack([replica.test_stderr for replica in replicas])
        return cls(
            values,
            stderr,
            samples,
            np.sqrt((spread**2).mean(axis=0) / count),
            np.asarray((spread > 0).any(axis=(0, 2))),
        )

    @property
    def details(self) -> dict[str, Any]:
        """What an outcome reports of its replicas."""
        return {"test_stderr": self.test_stderr, "samples": self.samples}


def _error(sample: Array) -> Array:
    """Standard error of the mean over the first axis."""
    return np.asarray(sample.std(axis=0, ddof=1) / math.sqrt(len(sample)))


def controlled(sample: Array, controls: Array) -> Array:
    """The sample (replicas, …) less what controls (replicas, q) of mean zero explain of it.

    The coefficients that are used for a replica are those of a regression on all the others, so that the mean
    stays unbiased at any number of replicas.
    """
    values = sample.reshape(len(sample), -1)
    columns = np.column_stack([np.ones(len(sample)), controls])
    # An average that does not vary, such as |W0 beta|^2 in one dimension, explains nothing.
    inverse = np.linalg.pinv(columns.T @ columns, hermitian=True)
    coefficients = inverse @ columns.T @ values
    # Leaving out row i changes the coefficients by -(A^T A)^-1 a_i r_i, with its residual r_i outside the fit.
    leverage = np.einsum("ij,jk,ik->i", columns, inverse, columns)
    outside = (values - columns @ coefficients) / (1 - leverage)[:, None]
    own = np.einsum("ij,jk,ik->i", controls, inverse[1:], columns)
    corrected = values - controls @ coefficients[1:] + own[:, None] * outside
    return np.asarray(corrected.reshape(sample.shape))
