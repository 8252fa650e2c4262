"""Signs as readout."""

from collections.abc import Callable

import numpy as np

from firststep.gaussian import Array
from firststep.setting.readouts.law import ReadoutLaw


class Rademacher(ReadoutLaw):
    """Plus or minus 1/sqrt(N), with equal chances."""

    atoms = (-1.0, 1.0)
    shares = (0.5, 0.5)

    def draw(self, rng: Callable[[], "np.random.Generator"], count: int) -> Array:
        """Signs."""
        return np.asarray(rng().choice([-1.0, 1.0], count))


LAW = Rademacher()
