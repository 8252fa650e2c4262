"""What one step is measured against: linear predictors, and the best function of one direction."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from firststep.gaussian import Array, expectation
from firststep.numerics.fixedpoint import ConvergenceError
from firststep.setting import NEGLIGIBLE, Covariance, Problem, Sizes, ridges_of
from firststep.theory.limits.random_features import teacher_parts

SAMPLES = ("fit", "both")
# Rounds of Newton's method, what is left when it ends, and logarithms of ridges among which the best is searched for.
MOST_ROUNDS, ROUNDING = 200, 1e-14
SEARCHED = (-30.0, 30.0)


def best_linear_error(problem: Problem) -> float:
    r"""Test error of the best linear predictor of the labels.

    .. math:: c_*^2 - c_{*1}^2 + \sigma_\varepsilon^2

    A lower bound for random features and for every rotation-invariant kernel [Ba22; MM22] while n and N are far below
    d^2/2; beyond that they learn the quadratic part, too [GMMM21].
    For a teacher with :math:`c_{*1} = 0` it is the error of predicting nothing, and one gradient step does
    not improve on it: every gain of the staircase vanishes.

    Examples
    --------
    >>> print(f"{best_linear_error(Problem('relu', 'h1 + h2/sqrt(2)', noise_std=0.5)):.4f}")
    1.2500
    """
    return teacher_parts(problem)[1]


@dataclass(frozen=True)
class LinearRidge:
    """Limit errors of ridge regression on the inputs.

    Attributes
    ----------
    ridge, train_error, test_error : ndarray (R,)
        The train error contains the penalty, the test error the noise.
    """

    ridge: Array
    train_error: Array
    test_error: Array


def linear_ridge(problem: Problem, sizes: Sizes, ridges: ArrayLike, samples: str = "fit") -> LinearRidge:
    r"""Ridge regression of the labels on the inputs themselves.

    .. math:: \min_w \tfrac1n \|y - X w\|^2 + \lambda \|w\|^2: \quad
        \lambda t + \tfrac{\phi\, t}{1 + t} = 1, \quad q = c_{*1}^2 \tfrac{t}{1 + t} + v t, \quad
        L_{tr} = \lambda q, \quad L_{te} = -q'/t^2, \quad v = c_*^2 - c_{*1}^2 + \sigma_\varepsilon^2

    [DW18; HMRT22]: what the teacher has beyond its linear part acts as noise, at any ratio of n to d. It is the
    random-feature limit with identity activation at infinite width. Under a covariance with eigenvalues m of law
    :math:`\mu` and a teacher with weights :math:`\nu` on them

    .. math:: \lambda t + \phi\int\frac{m t}{1 + m t}\,d\mu = 1, \qquad
        q = c_{*1}^2\int\frac{t}{1 + m t}\,d\nu + v t

    [DW18; HMRT22]; of a teacher of several directions :math:`c_{*1} = |E\nabla s|`.

    Parameters
    ----------
    problem : Problem
        Teacher and noise; the activation does not matter.
    sizes : Sizes
        d, n and n0.
    ridges : array_like (R,)
        :math:`\lambda`.
    samples : {"fit", "both"}
        Fit on the n samples of the ridge fit, or on all n0 + n that the network sees.

    Examples
    --------
    >>> found = linear_ridge(Problem("relu", "identity", noise_std=1), Sizes(1000, 500, 750), [0.5])
    >>> print(f"{found.train_error[0]:.4f} {found.test_error[0]:.4f}")
    1.0000 1.4142
    """
    lam = ridges_of(ridges)
    phi = _sample_ratio(sizes, samples)
    linear, rest = teacher_parts(problem)
    law = problem.covariance(sizes.dim)
    t = _closed_trace(lam, phi) if law.isotropic else _trace(lam, phi, law)
    left = 1 / (1 + law.values * t[:, None])
    slope = -t / (lam + phi * (left**2 @ (law.shares * law.values)))
    q = linear * t * (left @ law.weights) + rest * t
    return LinearRidge(lam, lam * q, -(linear * (left**2 @ law.weights) + rest) * slope / t**2)


def _closed_trace(lam: Array, phi: float) -> Array:
    """The root of lam t^2 + (lam + phi - 1) t - 1 = 0, in the form without cancellation."""
    middle = lam + (phi - 1)
    root = np.sqrt(middle**2 + 4 * lam)
    return np.asarray(np.where(middle > 0, 2 / (np.abs(middle) + root), (root - middle) / (2 * lam)))


def _trace(lam: Array, phi: float, law: Covariance) -> Array:
    """The root of lam t + phi E[m t/(1 + m t)] = 1, whose left side grows with t: Newton in log t between bounds."""
    # Eigenvalues have mean one, so that the second term lies between 0 and phi t.
    low, high = -np.log(lam + phi), -np.log(lam)
    x = low
    for _ in range(MOST_ROUNDS):
        t = np.exp(x)
        left = 1 / (1 + law.values * t[:, None])
        taken = left @ (law.shares * law.values)
        value = np.log(lam * t + phi * t * taken)
        if np.abs(value).max() < ROUNDING:
            return np.asarray(t)
        low, high = np.where(value < 0, x, low), np.where(value < 0, high, x)
        growth = (lam + phi * (left**2 @ (law.shares * law.values))) / (lam + phi * taken)
        x = x - value / growth
        x = np.where((x > low) & (x < high), x, (low + high) / 2)
    raise ConvergenceError(
        f"no solution for ridge regression on the inputs after {MOST_ROUNDS} rounds: raise ridge",
        t,
        np.abs(value),
    )


def best_linear_ridge(problem: Problem, sizes: Sizes, samples: str = "fit") -> LinearRidge:
    r"""Ridge regression on the inputs with the ridge that minimises the test error.

    .. math:: \lambda^* = \phi\, v / c_{*1}^2

    [DW18] for isotropic inputs; under a covariance it is searched for. Without a linear part of the teacher the best
    ridge is infinite and nothing is predicted: the train and the test error are the variance of the labels.

    Examples
    --------
    >>> found = best_linear_ridge(Problem("relu", "identity", noise_std=1), Sizes(1000, 500, 750))
    >>> print(f"{found.ridge[0]:.2f} {found.test_error[0]:.4f}")
    0.50 1.4142
    """
    phi = _sample_ratio(sizes, samples)
    linear, rest = teacher_parts(problem)
    if linear < NEGLIGIBLE**2:
        variance = np.array([linear + rest])
        return LinearRidge(np.array([np.inf]), variance, variance)
    if not problem.covariance(sizes.dim).isotropic:
        return _searched_ridge(problem, sizes, samples)
    if rest > 0:
        return linear_ridge(problem, sizes, [phi * rest / linear], samples)
    # Noiseless and linear: the error falls to its value at ridge 0, where d - n directions stay unseen.
    unseen = max(0.0, 1 - 1 / phi)
    return LinearRidge(np.array([0.0]), np.array([0.0]), np.array([linear * unseen]))


def _searched_ridge(problem: Problem, sizes: Sizes, samples: str) -> LinearRidge:
    """The best ridge under a covariance, from a grid of its logarithm, refined; the smallest where less is better."""
    from scipy.optimize import minimize_scalar

    logs = np.linspace(*SEARCHED, 121)
    errors = linear_ridge(problem, sizes, np.exp(logs), samples).test_error
    best = int(errors.argmin())
    if best in (0, len(logs) - 1):
        return linear_ridge(problem, sizes, [math.exp(logs[best])], samples)
    found = minimize_scalar(
        lambda log: linear_ridge(problem, sizes, [math.exp(log)], samples).test_error[0],
        bounds=(logs[best - 1], logs[best + 1]),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return linear_ridge(problem, sizes, [math.exp(found.x)], samples)


def _sample_ratio(sizes: Sizes, samples: str) -> float:
    if samples not in SAMPLES:
        raise ValueError(f"samples must be one of {', '.join(SAMPLES)}; got {samples!r}")
    count = sizes.n_samples + (sizes.n_step_samples if samples == "both" else 0)
    return sizes.dim / count


def linear_values(problem: Problem, sizes: Sizes, ridges: ArrayLike) -> dict[str, Array]:
    """Errors of `linear_ridge`, shape (1, R), under the names of an Outcome.

    Examples
    --------
    >>> sorted(linear_values(Problem("relu", "identity"), Sizes(1000, 500, 750), 0.1))[:2]
    ['linear_ridge_both_test_error', 'linear_ridge_both_train_error']
    """
    values = {}
    for name, samples in (("linear_ridge", "fit"), ("linear_ridge_both", "both")):
        found = linear_ridge(problem, sizes, ridges, samples)
        values[f"{name}_train_error"] = found.train_error[None]
        values[f"{name}_test_error"] = found.test_error[None]
    return values


@dataclass(frozen=True)
class BestNeuron:
    """What the smoothed activation can reach along the right direction.

    Attributes
    ----------
    error : float
        tau*, without the noise.
    scale : float
        kappa at which it is reached.
    at_limit : bool
        Whether kappa is the largest that was tried, so that the infimum may lie beyond.
    """

    error: float
    scale: float
    at_limit: bool


def best_neuron(problem: Problem, largest_scale: float = 20.0) -> BestNeuron:
    r"""Best approximation of the teacher by one smoothed neuron.

    .. math:: \tau^* = \inf_\kappa E_z \big[ (s(z) - E_g\, \sigma(\kappa z + g))^2 \big]

    [Ba22]: with :math:`\eta \sim \sqrt N` and enough samples the test error can fall to about
    :math:`\tau^*` plus the noise, below every linear predictor. A teacher with :math:`c_{*1} = 0` can
    have a small :math:`\tau^*` and still not be learned by one step, which does not find its direction.

    Parameters
    ----------
    problem : Problem
        Activation and teacher.
    largest_scale : float
        :math:`\kappa` is sought in [-largest_scale, largest_scale].

    Examples
    --------
    For erf and erf, kappa = sqrt 3:

    >>> found = best_neuron(Problem("erf", "erf"))
    >>> print(f"{found.error:.6f} {abs(found.scale):.4f}")
    0.000000 1.7321
    """
    from scipy.optimize import minimize_scalar

    if not (np.isfinite(largest_scale) and largest_scale > 0):
        raise ValueError(f"largest_scale must be positive and finite, got {largest_scale}")

    def distance(scale: float) -> float:
        def square(z: Array) -> Array:
            return np.asarray(
                (problem.teacher(z) - problem.activation.gaussian_moments(1.0, scale * z)[0]) ** 2
            )

        return float(expectation(square, kinks=problem.teacher.kinks))

    # Dense near 0, where tau changes fastest; the minimum need not be unique, so the best cell is refined.
    half = np.sinh(np.linspace(0, np.arcsinh(largest_scale), 25))
    grid = np.concatenate([-half[:0:-1], half])
    values = [distance(float(scale)) for scale in grid]
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
    found = minimize_scalar(
        distance, bounds=(float(low), float(high)), method="bounded", options={"xatol": 1e-10}
    )
    scale, error = (
        (float(found.x), float(found.fun)) if found.fun < values[best] else (float(grid[best]), values[best])
    )
    return BestNeuron(error, scale, bool(abs(scale) > 0.999 * largest_scale))
