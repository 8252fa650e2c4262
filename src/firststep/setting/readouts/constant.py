"""The same readout for all neurons."""

from collections.abc import Callable

import numpy as np

from firststep.gaussian import Array
from firststep.setting.readouts.law import ReadoutLaw


class Constant(ReadoutLaw):
    """1/sqrt(N) for every neuron."""

    atoms = (1.0,)
    shares = (1.0,)

    def draw(self, rng: Callable[[], "np.random.Generator"], count: int) -> Array:
        """Ones; no stream is opened."""
        return np.ones(count)


LAW = Constant()
