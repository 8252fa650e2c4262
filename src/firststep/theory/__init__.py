"""The limit: `predict` and the theories behind it."""

import warnings
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

from numpy.typing import ArrayLike

from firststep.problem import Outcome, OutsideTheoryWarning, Problem, Sizes, ridges_of, step_sizes_of
from firststep.theory.bounds import linear_values
from firststep.theory.weights import step_values

THEORIES = ("unified", "staircase", "random_features")


def predict(
    problem: Problem,
    sizes: Sizes,
    step_sizes: ArrayLike | None = None,
    ridges: ArrayLike = 0.1,
    *,
    step_exponents: ArrayLike | None = None,
    theory: str = "unified",
    baselines: bool = False,
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
    theory : {"unified", "staircase", "random_features"}
        The finite-size theory of every step size [firststep], the limit of many samples at fixed
        :math:`\alpha` [Moniri24], or the network without a step, whatever the step sizes [MM22].
    baselines : bool
        Whether to add ridge regression on the inputs, with n and with n0 + n samples.
    **options
        What the theory takes besides: :func:`firststep.theory.staircase.solve` and
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
    concerns = problem.concerns(sizes)
    for concern in concerns:
        warnings.warn(concern, OutsideTheoryWarning, stacklevel=2)
    # Imported by name: the unified theory is the heaviest module and not every prediction needs it.
    solve = import_module(f"firststep.theory.{theory}").solve
    outcome = cast(Outcome, solve(problem, sizes, steps, lam, **options))
    taken = 0 * steps if theory == "random_features" else steps
    values = step_values(problem, sizes, taken) | (linear_values(problem, sizes, lam) if baselines else {})
    notes = tuple(dict.fromkeys((*concerns, *outcome.notes)))
    return replace(outcome, values={**outcome.values, **values}, notes=notes)
