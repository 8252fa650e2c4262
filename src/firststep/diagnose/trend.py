"""An error for other numbers of samples: what the equivalent says, held against what the last doubling did."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from firststep.diagnose.equivalent import Path
from firststep.diagnose.numbers import NINE_OF_TEN, Expected

# Falls in the logarithm of the error at the last doubling: up to the first the equivalent is believed, from there on
# over so much what was seen goes on, up to so large a share.
EVEN, OVER, LARGEST_SHARE = 0.12, 0.2, 1.0
# Where the equivalent expects more than was seen, so much of the difference is taken back.
TAKEN_BACK = 0.75
# The curve's own error: a share of the difference of both, and of the square of the fall.
DISAGREEMENT, BEND = 0.5, 1.0
# The bar is wider by this where parts of the samples teach each other: features then change with their number.
TAUGHT = 1.3
# A fall in the logarithm of the error from which on the answer is called out of sight, and so few samples.
FARTHEST_FALL, FEWEST = 0.35, 60


@dataclass(frozen=True, eq=False)
class Trend:
    r"""Fits of a model on all samples, and the error of half of them.

    The equivalent takes features and what they cannot learn as fixed. Where a target has little noise more samples
    teach what fewer could not even tell from noise, and the error falls faster; it then falls about as fast as it did
    at the last doubling. With :math:`e` the change of the logarithm of the error that the equivalent expects, and
    :math:`s` that of the last doubling times the number of doublings,

    .. math:: \log E(n)/E = e + w\,(s - e),

    :math:`w` growing from 0 to 1 with the fall at the last doubling where :math:`s < e`, and 3/4 where :math:`s > e`
    [firststep].

    Attributes
    ----------
    paths : list of Path
        Of all samples: one, or one for each part of them that has taught another.
    half : float
        Error at half of the samples, measured; NaN if they are too few.
    used : int
        Number of samples.
    """

    paths: Sequence[Path]
    half: float
    used: int

    @cached_property
    def now(self) -> float:
        """Error at the samples used."""
        return level(self.paths, self.used)

    @cached_property
    def last(self) -> float:
        """Change of the logarithm of the error at the last doubling; NaN if it was not seen."""
        return _log(self.now / self.half)

    def at(self, n_samples: int) -> Expected:
        """Error for another number of samples."""
        parts = [path.extend(n_samples) for path in self.paths]
        even = _log(level(self.paths, n_samples) / self.now) if n_samples != self.used else 0.0
        if not math.isfinite(even):
            return Expected(math.nan, math.nan, in_sight=False)
        spread = math.hypot(*(number.stderr / number.value for number, _ in parts)) / len(parts)
        change, own = self._change(n_samples, even)
        value = self.now * math.exp(change)
        dim = change < -FARTHEST_FALL or any(ends for _, ends in parts) or self.used < FEWEST
        bar = NINE_OF_TEN * math.hypot(spread, own) * (TAUGHT if len(self.paths) > 1 else 1.0)
        return Expected(value, value * bar, in_sight=not (dim and n_samples > self.used))

    def _change(self, n_samples: int, even: float) -> tuple[float, float]:
        """Change of the logarithm of the error, and its own error."""
        seen = self.last * math.log2(n_samples / self.used)
        if not math.isfinite(seen):
            return even, BEND * even**2
        if n_samples <= self.used:
            # Down to a half it was measured.
            return (seen, 0.0) if 2 * n_samples >= self.used else ((seen + even) / 2, abs(seen - even) / 2)
        share = min(max((-self.last - EVEN) / OVER, 0.0), LARGEST_SHARE)
        change = even + share * (seen - even) if seen < even else even + TAKEN_BACK * (min(seen, 0.0) - even)
        return change, math.hypot(DISAGREEMENT * (seen - even), BEND * change**2)


def level(paths: Sequence[Path], n_samples: float) -> float:
    """Mean error of paths at the best ridge, measured if they have as many samples."""
    return float(
        np.mean(
            [
                path.errors.min()
                if abs(n_samples - len(path.basis)) < 1
                else path.extend(round(n_samples))[0].value
                for path in paths
            ]
        )
    )


def _log(ratio: float) -> float:
    return math.log(ratio) if not ratio <= 0 else -math.inf
