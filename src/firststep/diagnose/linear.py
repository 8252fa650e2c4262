"""Linear ridge regression, with the ridge chosen by exact leave-one-out as the estimators choose theirs."""

from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np

from firststep.gaussian import Array


@dataclass(frozen=True, eq=False)
class _Inputs:
    """The inputs as features of a network without a first layer."""

    weights: Array

    def features(self, inputs: Array) -> Array:
        return inputs


class LinearRidge:
    """Ridge regression on standardised inputs, of one target or several.

    Examples
    --------
    >>> inputs = np.random.default_rng(0).standard_normal((200, 3))
    >>> told = LinearRidge().fit(inputs, inputs[:, :1]).predict(np.eye(3)).ravel()
    >>> bool(np.allclose(told, [1, 0, 0], atol=1e-3))
    True
    """

    def fit(self, inputs: Array, targets: Array) -> Self:
        """Fit inputs (n, d) to targets (n, k)."""
        from firststep.estimator.family import RIDGE_GRID
        from firststep.estimator.readout import Design, ridge
        from firststep.estimator.step import Sample

        spread = inputs.std(axis=0)
        self._mean, self._scale = inputs.mean(axis=0), np.where(spread > 0, spread, np.inf)
        sample = Sample(self._scaled(inputs), targets, np.ones(len(inputs)))
        design = Design(sample, cast(Any, _Inputs(np.empty((inputs.shape[1], 0)))))
        found = ridge(design, np.array(RIDGE_GRID) * max(1, np.count_nonzero(spread)), leave_out=True)
        place = int((cast(Array, found.left_out) ** 2).sum(axis=(0, 2)).argmin())
        self._slopes, self._level = found.coefficients[place], found.intercepts[place]
        return self

    def predict(self, inputs: Array) -> Array:
        """Targets (n, k)."""
        return np.asarray(self._scaled(inputs) @ self._slopes + self._level)

    def _scaled(self, inputs: Array) -> Array:
        return np.asarray((inputs - self._mean) / self._scale)
