r"""Spectra that cannot be had point by point: seen on a ray through zero instead of on the real axis.

On :math:`z = x e^{i\theta}` the Stieltjes transform s gives the law of :math:`\log\lambda`, blurred by a kernel of
width :math:`\theta` whose integral is one, whatever the law is [firststep, spectra]:

.. math:: p(\log x) = \frac{\operatorname{Im} z s(z)}{\pi - \theta}
    = \int \frac{\sin\theta}{2(\pi - \theta)(\cosh\log(x/\lambda) - \cos\theta)} \mu(d\lambda) .

Eigenvalues at zero drop out. Bands that are narrower than the width run together, as they do where a handful of
neurons, samples or directions make a band each.
"""

import math

import numpy as np

from firststep.gaussian import Array
from firststep.numerics import fixedpoint
from firststep.results import Outlier, Spectrum
from firststep.theory.coefficients import Values
from firststep.theory.spectra.bulk import ROUNDING, WRONG_MASS, Solver, area, between

# Angles on the way down, and the smallest, which is the width of the blur.
ANGLES = (1.5, 0.9, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015)
# Where the law is looked for, in units of the mean eigenvalue, and at how many points.
RANGE, FIRST_POINTS = (1e-9, 1e7), 110
# What lies farther out than where the law falls to this share of the blur's width is its own tail.
TAIL = 0.02
# Points for each width of the blur, and at most.
DENSE, MOST_POINTS = 1.0, 400
# Where eigenvalues are is seen on so many of the angles, and told by so many points.
PLACING, PLACES = 6, 60
# What may lie beyond each end of the bulk: this share of one eigenvalue, or of all.
LAST, LEAST = 0.25, 3e-3
# Where less than one in so many eigenvalues is above zero, the tails of the others are looked for further down.
FEW = 10
# Beyond the end of the bulk, in units of it, where the search for outliers starts.
BEYOND = np.array([1.1, 1.3, 1.7, 2.5, 4.0])


def blurred(bulk: Solver, points: int) -> Spectrum:
    """The spectrum with eigenvalues known to a few per cent, of a solver that found no sharp one."""
    logs, angle, values = _seen(bulk, ANGLES)
    # With many more samples than neurons nearly all eigenvalues are at zero: what counts is the share of the others.
    share = 1 - bulk.atom
    inside = np.flatnonzero(_law(bulk, logs, angle, values) > angle * TAIL * min(1.0, FEW * share))
    if not len(inside):
        raise fixedpoint.ConvergenceError("no end of the bulk was found: lower the step size", values, logs)
    ends = logs[max(inside[0] - 1, 0)], logs[min(inside[-1] + 1, len(logs) - 1)]
    count = min(MOST_POINTS, math.ceil(DENSE * (ends[1] - ends[0]) / angle))
    fine = np.linspace(*ends, count)
    values = _solved(bulk, fine, angle, between(np.exp(logs), values, np.exp(fine)))
    law = _law(bulk, fine, angle, values)
    mass = area(law, fine) + bulk.atom
    if not abs(mass - 1) < WRONG_MASS * share:
        raise fixedpoint.ConvergenceError(
            f"the predicted density integrates to {mass:.3f} instead of 1: lower the step size", law, fine
        )
    x, density = _between_ends(fine, law, max(LAST / (bulk.total * share), LEAST), points)
    density *= share / area(density, x)
    edges = float(x[0]), float(x[-1])
    outliers, notes = _outliers(bulk, edges)
    note = (
        f"the density at step size {bulk.step_size:.4g} is blurred by {100 * angle:.2g} % of the eigenvalue: the bulk "
        "falls into more bands than are worth telling apart; 0.3 % of the eigenvalues lie beyond each of its ends"
    )
    details = {
        "mass": mass,
        "accuracy": math.nan,
        "resolution": bulk.resolution,
        "notes": (note, *notes),
        "end_range": (edges[1], edges[1]),
    }
    return Spectrum(
        bulk.problem,
        bulk.sizes,
        bulk.step_size,
        bulk.of,
        "unified",
        x,
        density,
        edges,
        (edges,),
        bulk.atom,
        outliers,
        details,
    )


def places(bulk: Solver) -> Array:
    """Where the eigenvalues lie, each of so many points with the same share of them beside it."""
    logs, angle, values = _seen(bulk, ANGLES[:PLACING])
    law = np.maximum(_law(bulk, logs, angle, values), 0.0)
    below = np.append(0.0, np.cumsum((law[1:] + law[:-1]) / 2 * np.diff(logs)))
    return np.asarray(np.exp(np.interp(np.linspace(0, 1, PLACES + 2)[1:-1] * below[-1], below, logs)))


def _seen(bulk: Solver, angles: tuple[float, ...]) -> tuple[Array, float, Values]:
    """Logarithms of points, the smallest of falling angles that is reached, and the solutions there."""
    logs = np.asarray(math.log(bulk.mean) + np.linspace(math.log(RANGE[0]), math.log(RANGE[1]), FIRST_POINTS))
    values, angle = bulk.solve(_ridge(logs, angles[0]), None, 1e-5), angles[0]
    for wanted in angles[1:]:
        try:
            values, angle = _lowered(bulk, logs, values, angle, wanted), wanted
        except fixedpoint.ConvergenceError:
            break
    return logs, angle, values


def _lowered(
    bulk: Solver, logs: Array, start: Values, above: float, angle: float, halvings: int = 2
) -> Values:
    """Solutions at a smaller angle, in as many steps as it takes."""
    try:
        return _solved(bulk, logs, angle, start)
    except fixedpoint.ConvergenceError:
        if not halvings:
            raise
        middle = math.sqrt(above * angle)
        start = _lowered(bulk, logs, start, above, middle, halvings - 1)
        return _lowered(bulk, logs, start, middle, angle, halvings - 1)


def _solved(bulk: Solver, logs: Array, angle: float, start: Values) -> Values:
    """Solutions on the ray with imaginary parts that are all positive; others are none."""
    values = bulk.solve(_ridge(logs, angle), start, 1e-8)
    if (bulk.transform(_ridge(logs, angle), values).imag < -ROUNDING).any():
        raise fixedpoint.ConvergenceError("the equations led to another solution", values, logs)
    return values


def _ridge(logs: Array, angle: float) -> Values:
    return np.asarray(-np.exp(logs + 1j * angle))


def _law(bulk: Solver, logs: Array, angle: float, values: Values) -> Array:
    """Density of the logarithm of the eigenvalue, without those at zero."""
    ridge = _ridge(logs, angle)
    return np.asarray((-ridge * bulk.transform(ridge, values)).imag / (math.pi - angle))


def _between_ends(logs: Array, law: Array, beyond: float, points: int) -> tuple[Array, Array]:
    """Points between the ends of the bulk, beyond which a share of the law lies, and the density there."""
    pieces = (law[1:] + law[:-1]) / 2 * np.diff(logs)
    below = np.append(0.0, np.cumsum(pieces))
    low, high = np.interp(np.array([beyond, 1 - beyond]) * below[-1], below, logs)
    at = np.linspace(low, high, points)
    density = np.maximum(np.interp(at, logs, law), 0.0) / np.exp(at)
    density[[0, -1]] = 0.0
    return np.exp(at), density


def _outliers(bulk: Solver, edges: tuple[float, float]) -> tuple[tuple[Outlier, ...], tuple[str, ...]]:
    """Eigenvalues beyond the blurred bulk, or a remark that they are not known."""
    try:
        return bulk.outliers(edges[1], bulk.approached(edges[1] * BEYOND)), ()
    except fixedpoint.ConvergenceError:
        return (), (f"outliers at step size {bulk.step_size:.4g} could not be told from the bulk's end",)
