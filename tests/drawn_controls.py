"""The control variates of a replica without its fits, of which their means need thousands."""

import numpy as np

from firststep import Problem, Sizes
from firststep.simulate import Draw
from firststep.simulate.replica import Replica, checked_library


def controls_of(problem: Problem, sizes: Sizes, replica: int) -> np.ndarray:
    """What `run_replica` gives under `controls`, bit for bit."""
    work = Replica(
        Draw(problem, sizes, replica=replica), "population", 2, None, checked_library("numpy", None)
    )
    return work._controls(*work._step_sample(1), *work._fit_sample())
