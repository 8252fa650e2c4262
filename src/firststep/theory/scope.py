"""What the theories cover: the rest is refused in words, never guessed."""

from firststep.setting import Problem, Sizes


def check_scope(problem: Problem, theory: str) -> None:
    """Refuse a problem that a theory does not cover, with all its reasons.

    Examples
    --------
    >>> try:
    ...     check_scope(Problem("relu", "h1", step_rule="sign"), "unified")
    ... except ValueError as error:
    ...     print(error)
    the unified theory does not know sign steps: simulate them
    """
    unknown = []
    if not problem.rule.predicted:
        unknown.append(f"{problem.rule.name} steps")
    if not problem.fitted_on.fresh:
        unknown.append("a fit on the step's own sample")
    if unknown:
        them = "simulate them" if len(unknown) > 1 or unknown[0].endswith("s") else "simulate it"
        raise ValueError(f"the {theory} theory does not know {' or '.join(unknown)}: {them}")


# Largest ratio of two sizes: beyond it double precision no longer tells them apart.
LARGEST_RATIO = 1e12


def check_ratios(sizes: Sizes) -> None:
    """Refuse sizes that are too far apart to compute with.

    Examples
    --------
    >>> try:
    ...     check_ratios(Sizes(10**25, 20, 30))
    ... except ValueError as error:
    ...     print(error)
    the unified theory reaches sizes that differ by a factor of 1e+12, these do by 5e+23: bring them nearer together
    """
    every = (sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples)
    ratio = max(every) / min(every)
    if ratio > LARGEST_RATIO:
        raise ValueError(
            f"the unified theory reaches sizes that differ by a factor of {LARGEST_RATIO:.0e}, these do by "
            f"{ratio:.0e}: bring them nearer together"
        )
