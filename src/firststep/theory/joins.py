r"""Small steps with an output of order one join no step [firststep].

Given an initial output of order one, what neurons share begins as the coordinate along :math:`W_0^\top a`, which no
label knows. What the equations leave out there, of relative order 1/d, is known at no step, where the initial output
plays no part; it fades as the direction turns.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array
from firststep.setting import Problem, Sizes

# A step of this size moves nothing.
SMALLEST_STEP = 1e-12
# The train error and its parts, which keep their shares.
TRAIN = ("train_error", "train_mse", "readout_norm_squared")
# Numbers by their names: a mapping, or fields of one array.
Numbers = Mapping[str, Array] | NDArray[np.void]


def start_share(problem: Problem, sizes: Sizes, step_sizes: Array) -> Array:
    r"""Squared cosine between :math:`W_0^\top a` and what the neurons share after a step, (S,).

    0 once it has turned, and without a step or an initial output of order one, where it plays no part.

    Examples
    --------
    >>> import numpy as np
    >>> setting = Problem("relu", "h1", initial_output="order_one")
    >>> print(start_share(setting, Sizes(1000, 500, 750), np.array([0.0, 1e-6, 1.0, 4.0])).round(2))
    [0.   1.   0.57 0.  ]
    """
    if not problem.output_law.order_one:
        return np.zeros(len(step_sizes))
    c1 = float(problem.activation.hermite(2)[1])
    left = np.maximum(1 - step_sizes * c1**2, 0.0)
    added = (step_sizes * c1) ** 2 * max(problem.direction_norm_squared(sizes) - c1**2, 0.0)
    total = left**2 + added
    usable = (total > 0) & (step_sizes > 0)
    return np.asarray(np.divide(left**2, total, out=np.zeros_like(total), where=usable))


def joined(
    problem: Problem, still: Numbers, start: Numbers, moved: Numbers, share: Array
) -> dict[str, Array]:
    r"""Errors and what goes with them after steps, (S, R), of a theory that says `start` after a step of nothing.

    .. math:: L(\eta) \to L(\eta) \Big(\frac{L_0}{L(0^+)}\Big)^{\cos^2(W_0^\top a,\, z)}

    `still` is without a step; the test error is taken without its noise, and the parts of the train error keep their
    shares.
    """
    noise = problem.noise_variance

    def factor(name: str, floor: float = 0.0) -> Array:
        known, found = still[name] - floor, start[name] - floor
        usable = (known > 0) & (found > 0)
        ratio = np.divide(known, found, out=np.ones_like(known), where=usable)
        return np.asarray(ratio ** share[:, None])

    train = factor("train_error")
    parts = {name: moved[name] * train for name in TRAIN}
    return parts | {
        "train_error": np.minimum(parts["train_error"], problem.label_variance),
        "test_error": noise + (moved["test_error"] - noise) * factor("test_error", noise),
        "degrees_of_freedom": moved["degrees_of_freedom"] * factor("degrees_of_freedom"),
    }
