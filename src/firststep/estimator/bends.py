"""Skewed inputs made even by logarithms, where random features then predict better."""

from dataclasses import dataclass
from typing import cast

import numpy as np

from firststep.estimator.choice import MARGIN
from firststep.estimator.directions import still
from firststep.estimator.family import Learner
from firststep.estimator.readout import Design, ridge
from firststep.estimator.step import Index, Network, Sample
from firststep.gaussian import Array

# Strengths k of the logarithm among which the least skewed is taken; 0 leaves a column as it is.
STRENGTHS = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
# The scale of the random features that judge.
SCALE = 0.8
# Beyond this many samples about as many of them judge.
JUDGES = 10_000


@dataclass(frozen=True, eq=False)
class Bends:
    r"""A logarithm for each skewed column: :math:`g(x) = \pm\log(1 + k u)`, :math:`u = (\pm x - \ell)/m`.

    :math:`\ell` is the least value of :math:`\pm x`, m its mean above that, and the sign that of the skewness; below
    :math:`\ell` g goes on as a straight line. Columns with k = 0 are left alone. Attributes (d,): signs, lows, units,
    strengths k [firststep].
    """

    signs: Array
    lows: Array
    units: Array
    strengths: Array

    def __call__(self, inputs: Array) -> Array:
        """Inputs (n, d) with their skewed columns bent."""
        found = np.array(inputs, dtype=np.float64)
        bent = np.flatnonzero(self.strengths)
        units = (found[:, bent] * self.signs[bent] - self.lows[bent]) / self.units[bent]
        raised = units * self.strengths[bent]
        found[:, bent] = self.signs[bent] * np.where(raised > 0, np.log1p(np.maximum(raised, 0)), raised)
        return found


def _skewness(columns: Array, shares: Array) -> Array:
    """Third moment (d,) of columns of variance one; 0 for constant ones."""
    centred = columns - shares @ columns
    spread = np.sqrt(shares @ centred**2)
    return np.asarray((shares @ centred**3) / np.where(spread > 0, spread, np.inf) ** 3)


def bends_of(inputs: Array, counts: Array) -> Bends | None:
    """The strength for each column that leaves the least skewness; None if no column gains."""
    shares = counts / counts.sum()
    mean = shares @ inputs
    spread = np.sqrt(shares @ (inputs - mean) ** 2)
    # What varies by rounding only, or takes two values, cannot be made more even.
    varies = spread > 1e-13 * np.maximum(np.abs(mean), np.finfo(np.float64).tiny)
    signs = np.where(_skewness(inputs, shares) < 0, -1.0, 1.0)
    lows = (inputs * signs).min(axis=0)
    above = mean * signs - lows
    varies &= above > 0
    units = np.where(varies, above, 1.0)
    raised = np.maximum((inputs * signs - lows) / units, 0.0)
    two = ((raised == 0) | (raised == raised.max(axis=0))).all(axis=0)
    left = [np.abs(_skewness(raised, shares))]
    left += [np.abs(_skewness(np.log1p(strength * raised), shares)) for strength in STRENGTHS[1:]]
    strengths = np.array(STRENGTHS)[np.argmin(left, axis=0)]
    strengths[~varies | two] = 0.0
    return Bends(signs, lows, units, strengths) if strengths.any() else None


def helps(plain: Sample, bent: Sample, rank: Index, start: Network) -> bool:
    """Whether random features of the bent inputs have the lower leave-one-out error, by more than its noise."""
    if len(plain) > JUDGES:
        few = np.flatnonzero(rank % -(-len(plain) // JUDGES) == 0)
        plain, bent = plain.at(few), bent.at(few)
    squares = []
    for sample in (plain, bent):
        network = still(sample.inputs.shape[1]).move(start, 0.0, SCALE)
        grid = Learner(start, None, sample.probe()).grid(network)
        found = (cast(Array, ridge(Design(sample, network), grid, leave_out=True).left_out) ** 2).sum(axis=2)
        squares.append(found[:, int((sample.counts @ found).argmin())])
    change, total = squares[0] - squares[1], plain.total
    gain = float(plain.counts @ change / total)
    return gain > MARGIN * float(np.sqrt(plain.counts @ (change - gain) ** 2 / total / max(total - 1, 1)))
