r"""Predicted spectra of the features and of the weights: bulk, edges, outliers and their overlaps [firststep, spectra].

The Stieltjes transform of :math:`F F^\top/n` is :math:`(n/N) E_z \rho(z)` at the ridge :math:`\lambda = -x`, so the
bulk comes from the equations of the unified theory at complex ridge. Outliers are the real x outside the bulk at which
the finite-rank system of spikes and random weights becomes singular; their residues are the overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from firststep.numerics import fixedpoint
from firststep.results import Outlier, Spectrum
from firststep.setting import Problem, Sizes, later_steps_of, step_sizes_of
from firststep.setting.doors import door
from firststep.theory.loud import is_loud
from firststep.theory.scope import check_scope
from firststep.theory.spectra.blurred import blurred, places
from firststep.theory.spectra.bulk import WRONG_MASS, Overworked, Work, area
from firststep.theory.spectra.covariant import CovariantWeights
from firststep.theory.spectra.feature_bulk import FeatureBulk
from firststep.theory.spectra.loose import has_islets
from firststep.theory.spectra.loud_features import LoudFeatures
from firststep.theory.spectra.two_step_features import TwoCoordinates, TwoStepFeatures
from firststep.theory.spectra.two_steps import TwoStepWeights, check_steps
from firststep.theory.spectra.weight_bulk import WeightBulk
from firststep.theory.step_law import is_plain

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from firststep.gaussian import Array

KINDS = ("features", "weights")
# Of a density; more would fill the memory and no eye would see them.
MOST_POINTS = 100_000
# A density whose points, joined by lines, have another integral than one by more than this is looked at again.
WRONG_LINE, MANY_POINTS = 0.003, 150
# Where the largest labels cannot be taken out.
ISLETS = (
    "the bulk at step size {step:.4g} ends in islets, each of a label: networks have them at other places"
)
# Relative accuracy of a critical step size.
CRITICAL_ACCURACY = 0.01


@overload
def predict_spectrum(
    problem: Problem,
    sizes: Sizes,
    step_size: float | None = ...,
    of: str = ...,
    *,
    step_exponent: float | None = ...,
    next_step_sizes: ArrayLike = ...,
    next_step_exponents: ArrayLike = ...,
    points: int = ...,
    rest: str = ...,
    check: bool = ...,
) -> Spectrum: ...


@overload
def predict_spectrum(
    problem: Problem,
    sizes: Sizes,
    step_size: Sequence[float] | Array,
    of: str = ...,
    *,
    step_exponent: None = ...,
    next_step_sizes: ArrayLike = ...,
    next_step_exponents: ArrayLike = ...,
    points: int = ...,
    rest: str = ...,
    check: bool = ...,
) -> tuple[Spectrum, ...]: ...


@overload
def predict_spectrum(
    problem: Problem,
    sizes: Sizes,
    step_size: None = ...,
    of: str = ...,
    *,
    step_exponent: Sequence[float] | Array,
    next_step_sizes: ArrayLike = ...,
    next_step_exponents: ArrayLike = ...,
    points: int = ...,
    rest: str = ...,
    check: bool = ...,
) -> tuple[Spectrum, ...]: ...


@door
def predict_spectrum(
    problem: Problem,
    sizes: Sizes,
    step_size: ArrayLike | None = None,
    of: str = "features",
    *,
    step_exponent: ArrayLike | None = None,
    next_step_sizes: ArrayLike = (),
    next_step_exponents: ArrayLike = (),
    points: int = 200,
    rest: str = "structured",
    check: bool = True,
) -> Spectrum | tuple[Spectrum, ...]:
    r"""Spectrum of :math:`F F^\top/n` or of :math:`W W^\top` that the unified theory predicts.

    Of features and weights, after one step under any covariance or after two on isotropic inputs, for teachers of up
    to four directions [firststep, covariance; second step].

    Parameters
    ----------
    problem, sizes
        What is studied.
    step_size : float or array (S,), optional
        :math:`\eta \ge 0`; give this or `step_exponent`. The plural names are understood too.
    step_exponent : float or array (S,), optional
        :math:`\alpha`, :math:`\eta = n_0^\alpha`.
    next_step_sizes, next_step_exponents : float or sequence of float
        A second step on a fresh sample, after every first one. Give one of the two or neither.
    of : {"features", "weights"}
        Whose eigenvalues.
    points : int
        Points of the density.
    rest : {"structured", "noise", "none"}
        What becomes of the gradient beyond its spike, as in `firststep.theory.unified.solve`.
    check : bool
        Refine until the density settles to 1e-3 of its maximum; ``details["accuracy"]`` says what was
        reached. Without, the usual resolution is taken as it is, in half the time: for a slider.

    Returns
    -------
    Spectrum, or a tuple of them for several step sizes
        Overlaps of features: ``"h0"`` … ``"h4"`` with Hermite polynomials of z, the coordinate along the vector that
        the neurons share, ``"z2"`` and ``"z3"`` with its monomials, ``"beta"`` with :math:`\beta\cdot x`, where
        several degrees are resolved ``"norm"`` with that of x (left singular vector),
        and ``"a1"`` … ``"a3"`` with the powers of the readout (right singular vector). After two steps those with
        functions of z alone are left out.
        Overlaps of weights:
        ``"beta"`` and ``"direction"``, that of the first step (input side). For a teacher of several directions both
        have ``"t1"``, ``"t2"``, …, and ``"beta"`` is the direction that one step sees. Under a covariance S weights
        are those that act on x, where ``"beta"`` stands for :math:`S^{1/2}\beta`.

    Examples
    --------
    >>> found = predict_spectrum(Problem("relu", "h1 + h2/sqrt(2)", 0.5), Sizes(2000, 1000, 1500), step_size=5.0)
    >>> print(f"{found.edges[1]:.2f}", [f"{outlier.eigenvalue:.1f}" for outlier in found.outliers])
    2.04 ['4.4']
    """
    if of not in KINDS:
        raise ValueError(f"of must be one of {', '.join(KINDS)}; got {of!r}")
    if not 10 <= points <= MOST_POINTS:
        raise ValueError(f"points must be at least 10 and at most {MOST_POINTS}, got {points}")
    check_scope(problem, "spectral")
    steps = step_sizes_of(sizes, step_size, step_exponent)
    later = later_steps_of(sizes, next_step_sizes, next_step_exponents)
    spectra = tuple(
        _predicted(problem, sizes, (float(step), *later.tolist()), of, points, rest, check) for step in steps
    )
    return (
        spectra[0] if np.ndim(cast(Any, step_exponent if step_size is None else step_size)) == 0 else spectra
    )


def _predicted(
    problem: Problem, sizes: Sizes, steps: tuple[float, ...], of: str, points: int, rest: str, check: bool
) -> Spectrum:
    taken = [step for step in steps if step > 0]
    found = _sharp_or_blurred(_solver_of(problem, sizes, taken, of, rest), points, check)
    sharp = not found.details["notes"]
    if sharp and len(taken) < 2 and is_plain(problem, sizes) and has_islets(found):
        found = _without_islets(found, rest, points)
    if len(steps) == 1:
        return found
    return replace(found, step_size=steps[0], details={**found.details, "next_step_sizes": list(steps[1:])})


def _solver_of(
    problem: Problem, sizes: Sizes, taken: Sequence[float], of: str, rest: str
) -> FeatureBulk | WeightBulk:
    """The equations of these steps, of which none is zero."""
    check_steps(problem, sizes, len(taken), of, rest)
    first, second = (*taken, 0.0, 0.0)[:2]
    if of == "features":
        if second:
            return TwoStepFeatures(problem, sizes, (first, second), rest)
        kind = LoudFeatures if is_loud(problem, sizes) else FeatureBulk
        return kind(problem, sizes, first, rest)
    if not problem.covariance(sizes.dim).isotropic:
        return CovariantWeights(problem, sizes, (first, 0.0), rest)
    if second or problem.teacher.directions > 1:
        return TwoStepWeights(problem, sizes, (first, second), rest)
    return WeightBulk(problem, sizes, first, rest)


def _without_islets(found: Spectrum, rest: str, points: int) -> Spectrum:
    """The same at the same resolution, with the largest labels taken out of the law of M and counted."""
    kind: type[FeatureBulk] | type[WeightBulk] = FeatureBulk if found.of == "features" else WeightBulk
    used = found.details["resolution"]
    bulk = kind(found.problem, found.sizes, found.step_size, rest, used, loose=True)
    bulk.work = Work()
    try:
        loose = _solved(bulk, points, check=False)
    except (fixedpoint.ConvergenceError, Overworked):
        loose = None
    if loose is None or not _is_whole(loose):
        return replace(found, details={**found.details, "notes": (ISLETS.format(step=found.step_size),)})
    return replace(loose, details={**loose.details, "accuracy": found.details["accuracy"]})


def _sharp_or_blurred(bulk: FeatureBulk | WeightBulk, points: int, check: bool) -> Spectrum:
    """The spectrum as the equations have it; blurred where it falls into too many bands, or takes too much work."""
    try:
        # With two coordinates there is one resolution, whose work is bounded, some three seconds.
        bulk.work = None if isinstance(bulk, TwoCoordinates) else Work()
        found = _refined(bulk, points, check)
        if _is_whole(found):
            return found
        failed: Exception = fixedpoint.ConvergenceError(
            "a line through the density does not integrate to 1: lower the step size", found.x, found.density
        )
    except (fixedpoint.ConvergenceError, Overworked) as error:
        failed = error
    try:
        return blurred(bulk.coarse(), points)
    except (fixedpoint.ConvergenceError, NotImplementedError):
        raise failed from None


def _is_whole(found: Spectrum) -> bool:
    """Whether a line through the density, and what is at zero, integrate to one, up to outliers."""
    total = found.sizes.n_samples if found.of == "features" else min(found.sizes.width, found.sizes.dim)
    mass = found.atom + area(found.density, found.x)
    # A line through few points is no measure.
    return len(found.x) < MANY_POINTS or abs(mass - 1) < WRONG_LINE + len(found.outliers) / total


def _refined(bulk: FeatureBulk | WeightBulk, points: int, check: bool) -> Spectrum:
    """The spectrum, refined until it settles if asked for."""
    if not check:
        return _solved(bulk, points, check)
    bulk = bulk.settled()
    found = _solved(bulk, points)
    for other in bulk.alternatives():
        if found.details["accuracy"] <= bulk.aim:
            break
        found = min(found, _solved(other, points), key=lambda spectrum: float(spectrum.details["accuracy"]))
    return found


def _solved(bulk: FeatureBulk | WeightBulk, points: int, check: bool = True) -> Spectrum:
    """The spectrum, looked at more closely where narrow bands were missed."""
    try:
        found = bulk.spectrum(points, check)
        if abs(found.details["mass"] - 1) < WRONG_MASS / 4:
            return found
    except fixedpoint.ConvergenceError:
        pass
    bulk.effort, bulk.neighbour, bulk.places = 2, None, places(bulk)
    return bulk.spectrum(points, check)


class Follower:
    """Spectra of problems that differ little from one to the next, as under a slider: each is started from the last.

    The equations have one solution, so that a spectrum is the same as without its predecessor, up to rounding, in about
    half the time. The resolution is the usual one (``check=False`` of `predict_spectrum`).

    Parameters
    ----------
    of : {"features", "weights"}
        Whose eigenvalues.
    rest : {"structured", "noise", "none"}
        As in `predict_spectrum`.

    Examples
    --------
    >>> problem, sizes = Problem("tanh", "identity", noise_std=0.5), Sizes(1000, 500, 750)
    >>> follow = Follower("features")
    >>> [round(follow.spectrum(problem, sizes, step).outliers[0].eigenvalue, 2) for step in (5.0, 6.0)]
    [6.58, 8.75]
    """

    def __init__(self, of: str = "features", rest: str = "structured") -> None:
        self.of, self.rest = of, rest
        self._last: FeatureBulk | WeightBulk | None = None

    def spectrum(self, problem: Problem, sizes: Sizes, step_size: float, points: int = 200) -> Spectrum:
        """Density, edges and outliers."""

        def solve(bulk: FeatureBulk | WeightBulk) -> Spectrum:
            bulk.work = None if isinstance(bulk, TwoCoordinates) else Work()
            return _solved(bulk, points, check=False)

        try:
            found: Spectrum = self._followed(problem, sizes, step_size, solve)
        except (fixedpoint.ConvergenceError, Overworked) as error:
            bulk = _solver_of(problem, sizes, [float(step_size)] if step_size else [], self.of, self.rest)
            try:
                return blurred(bulk.coarse(), points)
            except (fixedpoint.ConvergenceError, NotImplementedError):
                raise error from None
        plain = is_plain(problem, sizes)
        return _without_islets(found, self.rest, points) if plain and has_islets(found) else found

    def outliers(self, problem: Problem, sizes: Sizes, step_size: float) -> tuple[Outlier, ...]:
        """The eigenvalues outside the bulk alone."""
        found: tuple[Outlier, ...] = self._followed(problem, sizes, step_size, lambda bulk: bulk.above())
        return found

    def _followed(
        self,
        problem: Problem,
        sizes: Sizes,
        step_size: float,
        solve: Callable[[FeatureBulk | WeightBulk], Any],
    ) -> Any:
        bulk = _solver_of(problem, sizes, [float(step_size)] if step_size else [], self.of, self.rest)
        bulk.neighbour, self._last = self._last, None
        try:
            found = solve(bulk)
        except fixedpoint.ConvergenceError:
            if bulk.neighbour is None:
                raise
            bulk.neighbour = None
            found = solve(bulk)
        # The neighbour's own neighbours are not needed any more.
        bulk.neighbour = None
        self._last = bulk
        return found


def expected_outliers(problem: Problem, sizes: Sizes, step_size: float, *, rest: str = "structured") -> int:
    """Number of eigenvalues of the features outside the bulk.

    Examples
    --------
    >>> expected_outliers(Problem("tanh", "identity", rows="sphere"), Sizes(1000, 500, 750), step_size=0.0)
    0
    """
    taken = [float(step_size)] if step_size else []
    return len(_solver_of(problem, sizes, taken, "features", rest).above())


@door
def critical_steps(
    problem: Problem, sizes: Sizes, count: int = 2, *, largest: float | None = None, rest: str = "structured"
) -> list[float]:
    r"""Step sizes at which the first, second, … spike leaves the bulk of the features at this size.

    Spikes that are outside without a step (an activation with :math:`c_2 \ne 0` may have one where norms fluctuate)
    count from there on. A spike that stays inside up to `largest` (:math:`3\sqrt N` by default) gives infinity. To
    about two per cent, because an outlier is told from the edge only at a relative distance of 5e-4.

    Examples
    --------
    >>> first, = critical_steps(Problem("tanh", "identity", noise_std=0.5), Sizes(1000, 500, 750), count=1)
    >>> print(f"{first:.1f}")
    1.9
    """
    top = 3 * math.sqrt(sizes.width) if largest is None else largest
    base = expected_outliers(problem, sizes, 0.0, rest=rest)
    grid = np.geomspace(0.3, top, 10)
    follow = Follower(rest=rest)
    counts = [len(follow.outliers(problem, sizes, float(step))) - base for step in grid]
    found = []
    for k in range(1, count + 1):
        above = [i for i, c in enumerate(counts) if c >= k]
        if not above:
            found.append(math.inf)
            continue
        low, high = (0.0 if above[0] == 0 else float(grid[above[0] - 1])), float(grid[above[0]])
        while high > max((1 + CRITICAL_ACCURACY) * low, 1e-3):
            middle = math.sqrt(low * high) if low > 0 else high / 2
            inside = len(follow.outliers(problem, sizes, middle)) - base < k
            low, high = (middle, high) if inside else (low, middle)
        found.append(math.sqrt(low * high) if low > 0 else high / 2)
    return found
