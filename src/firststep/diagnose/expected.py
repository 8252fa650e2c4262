"""What the theory says of a table: without a step first, because that is quick and tells whether it applies."""

import math
import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from firststep.diagnose.measure import Profile, Shape
from firststep.diagnose.numbers import Number
from firststep.gaussian import Array
from firststep.setting import Problem, Sizes

# Steps, in units of sqrt(N), and ridges among which the theory's best is looked for; more of them take minutes.
STEPS = (0.25, 1.0, 3.0)
RIDGES = np.geomspace(1e-4, 10.0, 6)
# A linear part of the teacher below which one step sees nothing.
NOTHING = 1e-3


@dataclass(frozen=True, eq=False)
class Theory:
    """A teacher along the learned direction, and the sizes of a fit: samples, effective dimension, neurons."""

    profile: Profile
    shape: Shape
    n_samples: int
    width: int
    activation: str

    @property
    def sizes(self) -> Sizes:
        """What the theory is asked about."""
        return Sizes(max(2, self.n_samples), max(1, round(self.shape.effective_dimension)), self.width)

    @property
    def is_blind(self) -> bool:
        """Whether the target has no linear part that a step could follow."""
        return abs(self.profile.teacher[1]) < NOTHING

    def notes(self) -> list[str]:
        """What stands beside its answer."""
        if self.is_blind:
            return [
                "the inputs say nothing linear about the target: to leading order one step then gains nothing, "
                "but it can find the direction of an even target if there are many samples for each input"
            ]
        sizes = self.sizes
        if sizes.n_samples > sizes.dim**1.5:
            return [
                f"{sizes.n_samples} samples are many for {sizes.dim} inputs: random features then learn more than the "
                "linear part that the theory gives them"
            ]
        return []

    def still(self) -> dict[str, Number]:
        """Errors of linear ridge and random features, with the change that the noise's standard error makes."""
        from firststep.theory.limits.bounds import best_linear_ridge

        if self.is_blind:
            return {"linear_ridge": Number(1.0), "random_features": Number(1.0)}
        lines = [
            float(best_linear_ridge(self._problem(noise), self.sizes).test_error[0]) for noise in self._noises
        ]
        return {
            "linear_ridge": _number(lines),
            "random_features": _number([float(self._errors(noise, [0.0])[0]) for noise in self._noises]),
        }

    def moved(self) -> Number:
        """Error of one step of the best size."""
        if self.is_blind:
            return Number(1.0)
        sizes = [0.0, *(step * math.sqrt(self.width) for step in STEPS)]
        middle = self._errors(self._noises[1], sizes)
        best = sizes[int(middle.argmin())]
        ends = [float(self._errors(noise, [best])[0]) for noise in (self._noises[0], self._noises[2])]
        return _number([ends[0], float(middle.min()), ends[1]])

    @cached_property
    def _noises(self) -> tuple[float, float, float]:
        """Noise one standard error below, as it is, and one above."""
        found = self.profile.noise
        low, middle, high = (
            float(np.clip(found.value + sign * found.stderr, 1e-3, 0.999)) for sign in (-1, 0, 1)
        )
        return low, middle, high

    def _problem(self, noise: float) -> Problem:
        # The theory's neurons have no biases of their own; one for all gives an odd activation its even parts.
        biased = f"{self.activation}(x + 1)" if self.activation.isidentifier() else self.activation
        signal = math.sqrt(max(1 - noise, 0.0) / max(1 - self.profile.noise.value, 1e-12))
        return Problem(biased, [signal * c for c in self.profile.teacher], noise_std=math.sqrt(noise))

    def _errors(self, noise: float, step_sizes: list[float]) -> Array:
        """Errors at the best ridge, (S,)."""
        from firststep.theory.unified import solve

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = solve(self._problem(noise), self.sizes, np.array(step_sizes), RIDGES, tolerance=1e-2)
        return np.asarray(outcome.test_error.min(axis=1))


def _number(values: list[float]) -> Number:
    """The middle of three, with half the distance of the others; nothing is worse than the mean, a large ridge."""
    low, middle, high = (min(value, 1.0) for value in values)
    return Number(middle, abs(high - low) / 2)
