"""An experiment of a second, and all that a store holds: what the tests of files and of execution share."""

import json

from firststep.store import Store

TEXT = """
title = "An example"
[problem]
activation = "relu"
teacher = "h1 + h2/sqrt(2)"
noise_std = 0.3
[sizes]
n_samples = 60
phi = 0.5
psi = 0.625
[sweep]
step_exponent = [0.0, 0.25, 0.5]
ridge = [0.1, 1.0]
[simulation]
replicas = 3
[[theory]]
name = "staircase"
"""


def numbers(store: Store) -> list[str]:
    """Everything that a store holds, every bit of it, in an order of its own."""
    return sorted(json.dumps(row, sort_keys=True) for row in store.rows())
