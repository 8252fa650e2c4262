"""The limit: `predict` and the theories behind it."""

# Annotations stay text, so that help(predict) shows ArrayLike and not what it stands for.
from __future__ import annotations

import inspect
import math
import warnings
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from firststep.compute.parts import in_parts
from firststep.results import Outcome
from firststep.setting import (
    OutsideTheoryWarning,
    Problem,
    Sizes,
    check_whole,
    ridges_of,
    schedule_of,
    step_sizes_of,
)
from firststep.setting.doors import check_names, door
from firststep.theory.limits.bounds import linear_values
from firststep.theory.limits.weights import step_values
from firststep.theory.scope import check_ratios, check_scope
from firststep.theory.sectors import degree_shares

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

# Each theory with its module: imported by name, because not every prediction needs the heaviest.
MODULES = {
    "unified": "firststep.theory.next_order",
    "leading_order": "firststep.theory.unified",
    "staircase": "firststep.theory.limits.staircase",
    "random_features": "firststep.theory.limits.random_features",
}
THEORIES = tuple(MODULES)
# Theories of finite sizes, at any ratio of them.
FINITE = ("unified", "leading_order")
SEQUENCES, LEARNED, LOUD, LOUD_JOINT = (
    f"firststep.theory.{name}" for name in ("sequences", "learned", "loud", "loud_joint")
)
# Theories in which n, N and d grow together, whatever the sizes.
PROPORTIONAL = ("staircase",)
# Share of the second degree within reach of the fit from which on theories that take it as noise are off by percents.
FAR_BELOW = 0.05
QUADRATIC = (
    "n or N is not far below d^2/2, so that the fit learns the quadratic part of the features, which this theory takes "
    "as noise: use the unified theory"
)
BOUNDED = (
    "an eigenvalue of the inputs' covariance is not small against d, and this theory is the limit in which all are: "
    "use the unified theory, which knows a loud direction"
)
_NAMES = (
    "step_sizes",
    "step_exponents",
    "next_step_sizes",
    "next_step_exponents",
    "ridges",
    "theory",
    "baselines",
    "workers",
    "progress",
)


@lru_cache(maxsize=16)
def _options_of(theory: str) -> tuple[str, ...]:
    """Names of the options that only this theory takes."""
    return tuple(inspect.signature(import_module(MODULES[theory]).solve).parameters)[4:]


def _beyond(sizes: Sizes, step: float) -> tuple[str, ...]:
    """A sentence on a step that is larger than the weights it changes, where nothing was compared with simulation."""
    longest = math.sqrt(max(sizes.width, sizes.n_step_samples))
    if step <= 1.01 * longest:
        return ()
    return (
        f"the step size {step:.4g} is beyond sqrt(N) and sqrt(n0), {longest:.4g}: the theory was not compared with "
        "simulation there",
    )


def _beyond_proportional(problem: Problem, sizes: Sizes) -> tuple[str, ...]:
    """Sentences on what a limit of proportional sizes does not see of this problem."""
    found = []
    # Under a covariance a degree has fewer directions that count [firststep, covariance, eq. 5].
    if degree_shares(sizes, 2)[1] * problem.covariance(sizes.dim).moment(2) ** 2 > FAR_BELOW:
        found.append(QUADRATIC)
    if not problem.isotropic and import_module(LOUD).has_loud_direction(problem, sizes):
        found.append(BOUNDED)
    return tuple(found)


@door
def predict(
    problem: Problem,
    sizes: Sizes,
    step_sizes: ArrayLike | None = None,
    ridges: ArrayLike = 0.1,
    *,
    step_exponents: ArrayLike | None = None,
    next_step_sizes: ArrayLike | None = None,
    next_step_exponents: ArrayLike | None = None,
    theory: str = "unified",
    baselines: bool = False,
    workers: int | None = None,
    progress: bool | Callable[[int, int], object] | None = None,
    **options: Any,
) -> Outcome:
    r"""Errors that a theory predicts, for every step size and ridge.

    Parameters
    ----------
    problem : Problem
        Activation, teacher, noise, rows, readout and initial output.
    sizes : Sizes
        n, d, N and n0.
    step_sizes : array_like (S,), optional
        :math:`\eta \ge 0`; give these or `step_exponents`.
    ridges : array_like (R,)
        :math:`\lambda > 0`.
    step_exponents : array_like (S,), optional
        :math:`\alpha`, :math:`\eta = n_0^\alpha`.
    next_step_sizes, next_step_exponents : array_like, optional
        Step sizes of a second step on a fresh sample, in every combination with the first.
    theory : {"unified", "leading_order", "staircase", "random_features"}
        The finite-size theory of every step size [firststep], the same without what is of relative order 1/n, the limit
        of many samples at fixed :math:`\alpha` [Moniri24], or the network without a step, whatever the step sizes
        [MM22].
    baselines : bool
        Whether to add ridge regression on the inputs, with n and with n0 + n samples.
    workers : int, optional
        Processes for the unified theory of a map: by default all cores from some ten thousand points on, else one. The
        numbers do not depend on it.
    progress : bool or callable, optional
        A bar on standard error for a map that takes longer than a few seconds; by default on a terminal. A function is
        called with the points done and their total.
    **options
        What the theory takes besides: :func:`firststep.theory.limits.staircase.solve` and
        :func:`firststep.theory.unified.solve` say what.

    Returns
    -------
    Outcome
        Values of shape (S, R), of shape (S, 1) for the weights and () for the step direction.

    Warns
    -----
    OutsideTheoryWarning
        When the problem breaks an assumption of the theories; the sentences are also in the outcome's notes.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> outcome = predict(problem, Sizes(1000, 500, 800), step_exponents=0.3, ridges=0.05, theory="staircase")
    >>> print(f"{outcome.train_error[0, 0]:.6f} {outcome.test_error[0, 0]:.5f}")
    0.634085 2.01294
    """
    if theory not in THEORIES:
        raise ValueError(f"theory must be one of {', '.join(THEORIES)}; got {theory!r}")
    steps, lam = step_sizes_of(sizes, step_sizes, step_exponents), ridges_of(ridges)
    if workers is not None:
        check_whole("workers", workers, 1)
    later = next_step_sizes is not None or next_step_exponents is not None
    if later and theory not in FINITE:
        raise ValueError(f"sequences of steps are predicted by theory='unified'; got {theory!r}")
    check_scope(problem, theory)
    if theory in FINITE:
        check_ratios(sizes)
    concerns = problem.concerns(sizes if theory in PROPORTIONAL else None)
    for concern in concerns:
        warnings.warn(concern, OutsideTheoryWarning, stacklevel=3)
    solve = import_module(MODULES[theory]).solve
    check_names(f"predict with theory={theory!r}", options, [*_NAMES, *_options_of(theory)])
    values = linear_values(problem, sizes, lam) if baselines else {}
    with in_parts(workers, progress, "points", steps.size * lam.size if theory in FINITE else 0):
        if later:
            schedule = schedule_of(sizes, steps, None, next_step_sizes, next_step_exponents)
            ordered = theory == "unified"
            sequences = import_module(SEQUENCES)
            outcome = cast(
                Outcome, sequences.solve(problem, sizes, schedule, lam, ordered=ordered, **options)
            )
        else:
            if theory in FINITE and not set(options) - {"tolerance"}:
                loud = import_module(LOUD)
                if loud.is_loud_to_errors(problem, sizes):
                    chosen = import_module(LOUD_JOINT if theory == "unified" else LOUD)
                    solve, options = chosen.solve, {"draft": options.get("tolerance") == math.inf}
            outcome = cast(Outcome, solve(problem, sizes, steps, lam, **options))
            values = step_values(problem, sizes, 0 * steps if theory == "random_features" else steps) | values
            if theory in FINITE and problem.teacher.directions > 1:
                learned = import_module(LEARNED)
                shares = learned.learned_after_one(
                    problem, sizes, steps, lam, options.get("rest", "structured")
                )
                values |= shares | learned.share_bars(shares, outcome.test_error_bar / outcome.test_error)
    asked = (*concerns, *_beyond(sizes, float(steps.max()))) if theory in FINITE else concerns
    if theory in PROPORTIONAL:
        asked = (*asked, *_beyond_proportional(problem, sizes))
    notes = tuple(dict.fromkeys((*asked, *outcome.notes)))
    return replace(outcome, source=theory, values={**outcome.values, **values}, notes=notes)
