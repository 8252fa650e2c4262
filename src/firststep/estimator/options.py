"""What a user can ask of the estimators, checked."""

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from firststep.estimator.family import SCALES
from firststep.estimator.step import Metric, Sample, metric
from firststep.gaussian import Array

DTYPES = ("float64", "float32")
# Steps that are tried if nothing is said: that of the target's own directions, and one more.
STEPS_TRIED = 2
# From this many samples for each input on, a sample's own part in the step no longer deceives leave-one-out.
LOO_SAMPLES_PER_INPUT = 100


def positive(name: str, value: Any, *, zero: bool = False) -> Array:
    """Candidates given by the user, as an array (S,)."""
    try:
        values = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError):
        values = np.array([np.nan])
    good = np.isfinite(values) & ((values >= 0) if zero else (values > 0))
    if values.ndim != 1 or not values.size or not good.all():
        kind = "not negative" if zero else "positive"
        raise ValueError(
            f"{name} must be 'auto', a number or a list of numbers, finite and {kind}; got {value!r}"
        )
    return values


def whole(name: str, value: Any) -> int:
    """A whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def is_auto(value: Any) -> bool:
    """Whether the estimator is to choose."""
    return isinstance(value, str) and value == "auto"


@dataclass(frozen=True, eq=False)
class Options:
    """Parameters of an estimator as they were given; `single` if one network has to be chosen."""

    step_size: Any
    ridge: Any
    scale: Any
    bias: Any
    split: Any
    whiten: Any
    n_steps: Any
    bend: Any
    dtype: Any
    single: bool
    verbose: bool

    def check(self) -> None:
        """Refuse what no data could make right."""
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {self.dtype!r}")
        if not (isinstance(self.whiten, bool | np.bool_) or self.whiten == "step"):
            raise ValueError(f"whiten must be 'step', True or False; got {self.whiten!r}")
        if not (isinstance(self.bend, bool | np.bool_) or is_auto(self.bend)):
            raise ValueError(f"bend must be 'auto', True or False; got {self.bend!r}")
        if (
            isinstance(self.bias, bool)
            or not isinstance(self.bias, numbers.Real)
            or not 0 <= float(self.bias) < np.inf
        ):
            raise ValueError(f"bias must be a finite number, not negative; got {self.bias!r}")

    @property
    def averages(self) -> bool:
        """Whether networks before and after steps are averaged; else it is a gradient step of a given size."""
        return is_auto(self.step_size) or not np.any(self.step_size)

    @property
    def bends(self) -> bool:
        """Whether skewed inputs may be bent; a gradient step of a given size takes them as they are if not asked."""
        return bool(self.bend) if not is_auto(self.bend) else self.averages

    @property
    def steps(self) -> int:
        """Most steps that are tried."""
        return STEPS_TRIED if self.n_steps == "auto" else whole("n_steps", self.n_steps)

    @property
    def gradient_steps(self) -> int:
        """Steps of a given size."""
        return 1 if self.n_steps == "auto" else self.steps

    @property
    def scales(self) -> list[float]:
        """What the first layer is multiplied by."""
        return list(SCALES) if is_auto(self.scale) else np.unique(positive("scale", self.scale)).tolist()

    @property
    def ridges(self) -> Array | None:
        """Ridges that were given."""
        return None if is_auto(self.ridge) else np.unique(positive("ridge", self.ridge))

    def metric(self, taker: Sample) -> Metric | None:
        """The inputs' own metric, if the step is taken in it."""
        return metric(taker) if self.whiten == "step" else None

    def is_halved(self, sample: Sample, live: float) -> bool:
        """Whether the samples would be used twice, there is something to choose, and few samples for each input."""
        if self.split is not None or sample.total >= LOO_SAMPLES_PER_INPUT * live:
            return False
        # Wrong values are named where the candidates are made.
        numbers_only = [v for v in (self.step_size, self.ridge) if not isinstance(v, str)]
        single = len(numbers_only) == 2 and all(np.size(v) == 1 for v in numbers_only)
        still = not isinstance(self.step_size, str) and not np.any(self.step_size)
        return not (single or still)
