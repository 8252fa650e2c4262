"""The network before the step: limits of the resolvent traces and of the errors they give."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firststep.gaussian import Array
from firststep.numerics.fixedpoint import ConvergenceError
from firststep.results import Outcome
from firststep.setting import NEGLIGIBLE, Problem, Sizes, ridges_of, step_sizes_of
from firststep.theory.bars import (
    BAR_SPECIAL,
    relative_change,
    small_error_variance,
    still_bars,
    wide_bar_note,
)
from firststep.theory.limits.degrees import degree_of, features_of, solve_bulk
from firststep.theory.limits.degrees import errors as errors_of_degrees
from firststep.theory.own_component import knows_own

# Beyond these a square in the formulas could overflow; far outside any ridge that fits a network.
_SMALLEST, _LARGEST = 1e-60, 1e60
_CHUNK = 4096
# Arguments of the traces that may be zero or negative.
_SIGNED = ("linear", "nonlinear")
ERRORS = ("train_error", "test_error")
# Errors by name, the largest residual, and rounds.
Found = tuple[dict[str, Array], float, int]


@dataclass(frozen=True)
class Traces:
    r"""Limits of the resolvent traces of the random features, with their derivatives in the ridge.

    .. math:: t_1 = \lim \operatorname{tr} R_0, \quad t_2 = \lim \tfrac1d \operatorname{tr}
        \tilde X^\top R_0 \tilde X, \quad R_0 = (F_0 F_0^\top + \lambda n)^{-1},
        \quad m_i = \tfrac{\phi}{\psi} t_i

    Attributes
    ----------
    ridge, sample_ratio, width_ratio, linear, nonlinear : ndarray
        The arguments of `limiting_traces`, broadcast to the shape that every array here has.
    m1, m2, t1, t2 : ndarray
        The traces in the two normalisations.
    dm1, dm2, dt1, dt2 : ndarray
        Derivatives with respect to :math:`\lambda`, negative.
    dp1, dp2 : ndarray
        :math:`d(\lambda t_i)/d\lambda`, positive, computed as sums of positive terms: at a large ridge
        :math:`t_i + \lambda\, dt_i` would cancel.
    delta : ndarray
        :math:`\delta`: :math:`1/(1 + \delta)` is the limit of the diagonal of
        :math:`\lambda n (F_0^\top F_0 + \lambda n)^{-1}`.
    degrees_of_freedom : ndarray
        :math:`1 - \lambda t_1`, as a share of n.
    residual : ndarray
        Largest residual of the defining equations, each relative to the size of its terms.
    iterations : ndarray of int
        Newton steps taken.
    """

    ridge: Array
    sample_ratio: Array
    width_ratio: Array
    linear: Array
    nonlinear: Array
    m1: Array
    m2: Array
    dm1: Array
    dm2: Array
    t1: Array
    t2: Array
    dt1: Array
    dt2: Array
    dp1: Array
    dp2: Array
    delta: Array
    degrees_of_freedom: Array
    residual: Array
    iterations: NDArray[np.int64]

    def along(self, variance: ArrayLike) -> tuple[Array, Array, Array]:
        r"""Trace of a function of the inputs that the features carry with random coefficients.

        .. math:: t_v = \frac{t_1}{1 + v\, t_1 / (\psi (1 + \delta))}

        The linear function of a direction has :math:`v = c_1^2` and :math:`t_v = t_2`; the constant has
        :math:`v = 2 c_2^2` when the rows are Gaussian, because their norms fluctuate [firststep].

        Parameters
        ----------
        variance : array_like
            v, the variance of the coefficients times d, zero or more.

        Returns
        -------
        tuple of ndarray
            :math:`t_v`, :math:`dt_v/d\lambda` and :math:`d(\lambda t_v)/d\lambda`.

        Examples
        --------
        >>> traces = limiting_traces(0.1, 0.5, 0.625, linear=0.5, nonlinear=0.3)
        >>> bool(np.isclose(traces.along(0.25)[0], traces.t2, rtol=1e-14))
        True
        """
        share = np.asarray(variance, dtype=float) * self.t1 / self.width_ratio
        a, b = self.nonlinear**2 * self.t1, self.linear**2 * self.t1 / self.width_ratio
        return _along(self.t1, self.ridge, self.sample_ratio / self.width_ratio, a, b, self.delta, share)


def _along(
    t: Array, ridge: Array, ratio: Array, a: Array, b: Array, delta: Array, share: Array
) -> tuple[Array, Array, Array]:
    """`Traces.along` in the letters of `_auxiliary`: share = v t/psi."""
    w = 1 + delta
    base = w * w + (1 + a) * b
    unridged = ratio * _growth(a, b, w, delta) / (w * w)
    ridged = ridge * t
    trace = t * w / (w + share)
    # d log t_v/d log t = kept = 1 - lost, each as a quotient of sums of positive terms.
    lost = share * (w + b) / ((w + share) * base)
    kept = (w * base + share * (w * delta + a * b)) / ((w + share) * base)
    slope = -trace * kept * t / (ridged + unridged)
    penalised = trace * (unridged + ridged * lost) / (ridged + unridged)
    return trace, slope, penalised


def limiting_traces(
    ridge: ArrayLike,
    sample_ratio: ArrayLike,
    width_ratio: ArrayLike,
    linear: ArrayLike,
    nonlinear: ArrayLike,
) -> Traces:
    r"""Traces :math:`m_1, m_2` of the random features and their derivatives, for arrays of every argument.

    .. math::
        \phi (m_1 - m_2)(c_{>1}^2 m_1 + c_1^2 m_2) + \Psi &= 0, \\
        \tfrac{\phi}{\psi}(c_1^2 m_1 m_2 + \phi (m_2 - m_1)) + \Psi &= 0, \qquad
        \Psi = c_1^2 m_1 m_2 (\lambda \tfrac{\psi}{\phi} m_1 - 1)

    [Moniri24; AP20; PW17]. The pair has several real roots. The right one is found through an equivalent
    scalar equation with exactly one positive solution [firststep]: with :math:`t_i = (\psi/\phi) m_i`,

    .. math:: \lambda t_1 + \tfrac{\phi}{\psi} \tfrac{\delta}{1 + \delta} = 1, \quad
        \delta = c_{>1}^2 t_1 + c_1^2 t_2, \quad
        t_2 = \frac{t_1}{1 + c_1^2 t_1/(\psi (1 + \delta))},

    whose left side increases with :math:`t_1`. A bracketed Newton iteration in :math:`\log t_1` solves it in
    a form without cancellation: both traces and their derivatives are right to about 2e-15 relative, at any
    ridge and also where n, N or d coincide.

    Parameters
    ----------
    ridge : array_like
        :math:`\lambda > 0`.
    sample_ratio, width_ratio : array_like
        :math:`\phi = d/n` and :math:`\psi = d/N`, positive.
    linear : array_like
        :math:`c_1`, the linear coefficient of the activation; its sign does not matter.
    nonlinear : array_like
        :math:`c_{>1}`, the norm of the part of degree two and more; zero for a linear network.

    Returns
    -------
    Traces
        With residuals; a point whose residual is not at rounding level raises instead.

    Examples
    --------
    ReLU at phi = 0.5, psi = 0.625, ridge 0.05:

    >>> traces = limiting_traces(0.05, 0.5, 0.625, linear=0.5, nonlinear=(0.25 - 0.5 / np.pi) ** 0.5)
    >>> print(f"{traces.m1:.5f} {traces.m2:.5f}")
    7.62331 3.28988
    """
    given = {
        "ridge": ridge,
        "sample_ratio": sample_ratio,
        "width_ratio": width_ratio,
        "linear": linear,
        "nonlinear": nonlinear,
    }
    shape, (lam, phi, psi, c1, c_rest) = _flattened(given)
    linear_variance, rest_variance = c1**2, c_rest**2
    # Only ridge/(c_1^2 + c_{>1}^2) matters: sigma -> c sigma with lambda -> c^2 lambda scales both traces.
    total = linear_variance + rest_variance
    scale = np.where(total > 0, total, 1.0)
    relative = lam / scale
    if not np.all((relative > _SMALLEST) & (relative < _LARGEST)):
        raise ValueError(
            f"ridge/(c_1^2 + c_>1^2) must lie between {_SMALLEST:g} and {_LARGEST:g}, got "
            f"{relative[np.argmax(np.abs(np.log(relative)))]:g}: change the ridge or rescale the activation"
        )
    linear_share, rest_share = linear_variance / scale, rest_variance / scale

    solved = [
        _solve(*(v[start : start + _CHUNK] for v in (relative, phi, psi, linear_share, rest_share)))
        for start in range(0, max(lam.size, 1), _CHUNK)
    ]
    t, error = (np.concatenate([part[i] for part in solved]) for i in (0, 1))
    iterations = np.concatenate([part[2] for part in solved])
    ratio = phi / psi
    a, b, w = _auxiliary(t, psi, linear_share, rest_share)
    delta = a + linear_share * t * w / (w + b)
    fields = {"degrees_of_freedom": ratio * delta / w, "delta": delta}
    for name, share in (("1", np.zeros_like(t)), ("2", b)):
        trace, slope, penalised = _along(t, relative, ratio, a, b, delta, share)
        fields |= {f"t{name}": trace / scale, f"dt{name}": slope / scale**2, f"dp{name}": penalised / scale}
        fields |= {f"m{name}": ratio * fields[f"t{name}"], f"dm{name}": ratio * fields[f"dt{name}"]}
    fields |= dict(zip(given, (lam, phi, psi, c1, c_rest), strict=True))
    residual = equation_residuals(lam, phi, psi, c1, c_rest, fields["m1"], fields["m2"])
    largest = np.maximum(residual, error)
    if not np.all(largest < 1e-11):
        worst = int(np.argmax(np.where(np.isnan(largest), np.inf, largest)))
        raise ConvergenceError(
            f"no solution for the traces after {int(iterations[worst])} steps (residual {largest[worst]:.1e} "
            f"at ridge={lam[worst]:g}, sample_ratio={phi[worst]:g}, width_ratio={psi[worst]:g}, "
            f"linear={c1[worst]:g}, nonlinear={c_rest[worst]:g}, last m1={fields['m1'][worst]:g}): "
            "bring the ratios or the ridge nearer to one",
            fields["m1"],
            largest,
        )
    return Traces(
        **{name: values.reshape(shape) for name, values in fields.items()},
        residual=residual.reshape(shape),
        iterations=iterations.reshape(shape),
    )


def equation_residuals(
    ridge: ArrayLike,
    sample_ratio: ArrayLike,
    width_ratio: ArrayLike,
    linear: ArrayLike,
    nonlinear: ArrayLike,
    m1: ArrayLike,
    m2: ArrayLike,
) -> Array:
    r"""Largest residual of the equations of `limiting_traces` at given traces, relative to their terms.

    The third equation counted, :math:`\lambda t_1 + (\phi/\psi)\, \delta/(1+\delta) = 1`, follows from the
    two printed ones when :math:`c_1 \ne 0` and is needed when :math:`c_1 = 0`, where they say only
    :math:`m_1 = m_2`.

    Examples
    --------
    >>> bool(equation_residuals(0.05, 0.5, 0.625, 0.5, 0.3, m1=7.0, m2=3.0) > 0.01)
    True
    """
    lam, phi, psi, c1, c_rest, x1, x2 = (
        np.asarray(v, dtype=float) for v in (ridge, sample_ratio, width_ratio, linear, nonlinear, m1, m2)
    )
    linear_variance, rest_variance, ratio = c1**2, c_rest**2, phi / psi
    # Divided by m1 (c^2 m1) so that the terms neither overflow nor underflow.
    quotient = x2 / x1
    scale = np.where(linear_variance + rest_variance > 0, linear_variance + rest_variance, 1.0)
    kernel = (rest_variance + linear_variance * quotient) / scale
    product = linear_variance / scale * quotient
    ridged = lam * x1 / ratio
    largest = np.zeros(np.broadcast(lam, phi, psi, c1, c_rest, x1, x2).shape)
    delta = scale * kernel * x1 / ratio
    for terms in (
        (phi * kernel, -phi * quotient * kernel, product * ridged, -product),
        (
            ratio * product,
            ratio * phi * quotient / (scale * x1),
            -ratio * phi / (scale * x1),
            product * ridged,
            -product,
        ),
        (ridged, ratio * delta / (1 + delta), -1.0),
    ):
        size = sum(np.abs(term) for term in terms)
        largest = np.maximum(largest, np.abs(sum(terms)) / np.where(size > 0, size, 1.0))
    return cast(Array, largest)


def _solve(
    lam: Array, phi: Array, psi: Array, linear: Array, rest: Array
) -> tuple[Array, Array, NDArray[np.int64]]:
    """Newton iteration for t1, bracketed; variances scaled so that they sum to one (or are both zero)."""
    t, error = np.empty_like(lam), np.empty_like(lam)
    iterations = np.zeros(lam.shape, dtype=np.int64)
    low, high = 1 / (lam + phi / psi * (linear + rest)), 1 / lam
    active = np.arange(lam.size)
    columns = [lam, phi, psi, linear, rest, low, high, np.sqrt(low) * np.sqrt(high)]
    for _ in range(200):
        lam, phi, psi, linear, rest, low, high, now = columns
        excess, slope = _excess(now, lam, phi, psi, linear, rest)
        step = excess / slope
        low, high = np.where(excess < 0, now, low), np.where(excess > 0, now, high)
        new = now * np.exp(-np.minimum(np.maximum(step, -100.0), 100.0))
        # The slack lets the iteration end on the bracket's edge, where the root lies for a large ridge.
        inside = (new > low * (1 - 1e-12)) & (new < high * (1 + 1e-12))
        new = np.where(inside, new, np.sqrt(low) * np.sqrt(high))
        t[active] = new
        error[active] = np.abs(step)
        iterations[active] += 1
        # Quadratic convergence: two steps after 1e-8 only rounding is left, and the last step measures it.
        going = ~inside | (np.abs(step) > 1e-12)
        if not going.any():
            break
        columns = [lam, phi, psi, linear, rest, low, high, new]
        if not going.all():
            active, columns = active[going], [column[going] for column in columns]
    return t, error, iterations


def _flattened(given: Mapping[str, ArrayLike]) -> tuple[tuple[int, ...], list[Array]]:
    """Arguments of `limiting_traces`, checked, brought to one shape and flattened; the shape comes first."""
    arrays = [np.asarray(value, dtype=float) for value in given.values()]
    shape = np.broadcast(*arrays).shape
    whole = np.empty((len(arrays), *shape))
    for i, values in enumerate(arrays):
        whole[i, ...] = values
    flat = whole.reshape(len(arrays), -1)
    valid = np.isfinite(flat) & ((flat > 0) | np.array([[name in _SIGNED] for name in given]))
    if not valid.all():
        name, row, right = next(found for found in zip(given, flat, valid, strict=True) if not found[2].all())
        kind = "finite" if name in _SIGNED else "positive and finite"
        raise ValueError(f"{name} must be {kind}, got {row[~right][0]}")
    return shape, list(flat)


def _auxiliary(t: Array, psi: Array, linear: Array, rest: Array) -> tuple[Array, Array, Array]:
    """a = c_{>1}^2 t, b = c_1^2 t/psi and w = 1 + delta, each to full relative precision."""
    a, b = rest * t, linear * t / psi
    top = 1 + a
    # w is the positive root of w^2 + p w - (1 + a) b = 0; the quotient where the difference would cancel.
    p = b * (1 - psi) - top
    root = np.sqrt(p * p + 4 * top * b)
    return a, b, np.where(p > 0, 2 * top * b / (np.abs(p) + root), (root - p) / 2)


def _growth(a: Array, b: Array, w: Array, delta: Array) -> Array:
    """d delta/d log t; w - 1 - a = c_1^2 t_2 is taken from delta, where it is a sum of positive terms."""
    return w * (a * (w + b) + (delta - a) * w) / (w * w + (1 + a) * b)


def _excess(t: Array, lam: Array, phi: Array, psi: Array, linear: Array, rest: Array) -> tuple[Array, Array]:
    """Logarithm of left over right side of the scalar equation, and its derivative in log t.

    Two forms of the same equation, each a ratio of sums of positive terms: in one 1 - delta/(1 + delta) is
    reduced, which is exact where N is the bottleneck, in the other 1 - t2/t1, exact where d is. The steeper
    one is taken, since rounding moves the root by rounding over slope.
    """
    a, b, w = _auxiliary(t, psi, linear, rest)
    ridged = lam * t
    linear_part, lost_part = w / (w + b), b / (w + b)
    delta = a + linear * t * linear_part
    growth = _growth(a, b, w, delta)
    over, under = np.maximum(phi - psi, 0) / psi, np.maximum(psi - phi, 0) / psi
    left, right = ridged * w + delta * over, 1 + delta * under
    slope = (ridged * (w + growth) + growth * over) / left - growth * under / right
    # lag = 1 - (d w/d log t)/w, drop = -d(t2/t1)/d log t
    lag = (w + b) / (w * w + (1 + a) * b)
    drop = linear_part * lost_part * lag
    rest_part = phi / psi * a / w
    more, less = np.maximum(phi - 1, 0), np.maximum(1 - phi, 0)
    left_d, right_d = ridged + rest_part + more * lost_part, linear_part + less * lost_part
    slope_d = (ridged + rest_part * lag + more * drop) / left_d + (1 - less) * drop / right_d
    use_d = slope_d > slope
    return np.log(np.where(use_d, left_d / right_d, left / right)), np.where(use_d, slope_d, slope)


def teacher_parts(problem: Problem) -> tuple[float, float]:
    """Variance of the labels in the linear part of the teacher, and in the rest with the noise."""
    if problem.teacher.directions > 1:
        linear = float(np.sum(problem.teacher.gradient_mean**2))
        return linear, max(problem.teacher.second_moment - linear, 0.0) + problem.noise_variance
    c_star = problem.teacher.hermite(2)
    return float(c_star[1] ** 2), float(c_star[0] ** 2) + problem.teacher.tail(2) + problem.noise_variance


def traces_of(problem: Problem, sizes: Sizes, ridges: ArrayLike) -> Traces:
    """`limiting_traces` of a problem, shape (R,)."""
    linear = float(problem.activation.hermite(2)[1])
    return limiting_traces(
        ridges_of(ridges), sizes.sample_ratio, sizes.width_ratio, linear, problem.activation.tail(2) ** 0.5
    )


class Resolvent(Protocol):
    """What errors are made of besides their parts: the ridge and the trace of the resolvent, (R,)."""

    @property
    def ridge(self) -> Array:
        """Ridges."""
        ...

    @property
    def t1(self) -> Array:
        """Limit of tr R."""
        ...


def errors(traces: Resolvent, parts: list[tuple[Any, Array, Array, Array]]) -> dict[str, Array]:
    r"""Errors of a ridge fit whose labels split into parts with known traces.

    .. math:: q = \tilde y^\top R \tilde y = \sum_p E_p t_p, \quad L_{tr} = \lambda q, \quad
        \tfrac1n \|\tilde y - F \hat a\|^2 = -\lambda^2 q', \quad \|\hat a\|^2 = (\lambda q)', \quad
        L_{te} = -q'/t_1^2

    The last is generalised cross-validation, exact in the limit; the others hold at every finite size.

    Parameters
    ----------
    traces : Resolvent
        Of the features without spikes, shape (R,).
    parts : list of (variance, trace, derivative, derivative of ridge times trace)
        :math:`E_p`, :math:`t_p`, :math:`t_p'`, :math:`(\lambda t_p)'`.

    Returns
    -------
    dict of str to ndarray
        train_error, test_error, train_mse, readout_norm_squared.

    Examples
    --------
    Noise of variance one is all lost, and fitted in part:

    >>> traces = limiting_traces(0.1, 0.5, 0.625, linear=0.5, nonlinear=0.3)
    >>> found = errors(traces, [(1.0, traces.t1, traces.dt1, traces.dp1)])
    >>> bool(found["train_mse"] < found["train_error"] < 1 < found["test_error"])
    True
    """
    q: Any = 0.0
    minus_slope: Any = 0.0
    norm: Any = 0.0
    for variance, trace, slope, penalised in parts:
        q = q + variance * trace
        minus_slope = minus_slope - variance * slope
        norm = norm + variance * penalised
    return {
        "train_error": traces.ridge * q,
        "test_error": minus_slope / traces.t1**2,
        "train_mse": traces.ridge**2 * minus_slope,
        "readout_norm_squared": np.asarray(norm),
    }


def _of_degrees(problem: Problem, sizes: Sizes, ridges: Array, highest: int) -> Found:
    """Errors with sectors up to a degree, with residual and rounds."""
    if highest == 1 and problem.teacher.directions == 1 and problem.covariance(sizes.dim).isotropic:
        return _of_one_degree(problem, sizes, ridges)
    features = features_of(problem, sizes, highest)
    bulk = solve_bulk(features, ridges)
    return errors_of_degrees(features, bulk), bulk.residual, bulk.iterations


def _of_known_neurons(problem: Problem, sizes: Sizes, ridges: Array, highest: int) -> Found:
    """The same with few dimensions, where a neuron's component along the teacher is no longer one of many."""
    from firststep.theory import ladder, unified

    outcome = unified.solve(problem.without_step(), sizes, np.zeros(1), ridges, degrees=highest)
    found = {name: outcome.values[name][0] for name in ladder.FITTED}
    return found, outcome.details["residual"], outcome.details["iterations"]


def _of_one_degree(problem: Problem, sizes: Sizes, ridges: Array) -> Found:
    """Errors where all but the linear part of the features is noise, with residual and rounds."""
    traces = traces_of(problem, sizes, ridges)
    linear, rest = teacher_parts(problem)
    found = errors(
        traces, [(linear, traces.t2, traces.dt2, traces.dp2), (rest, traces.t1, traces.dt1, traces.dp1)]
    )
    found["degrees_of_freedom"] = traces.degrees_of_freedom
    return found, float(traces.residual.max()), int(traces.iterations.max())


def _loudest_share(problem: Problem, sizes: Sizes) -> float:
    """Share of a row's squared norm along the loudest direction, beyond 1/d; nothing for a linear network."""
    covariance = problem.covariance(sizes.dim)
    if covariance.isotropic or problem.activation.tail(2) < NEGLIGIBLE**2:
        return 0.0
    return (float(covariance.values.max()) - 1) / float(sizes.dim)


def solve(
    problem: Problem,
    sizes: Sizes,
    step_sizes: ArrayLike,
    ridges: ArrayLike,
    *,
    degrees: int | None = None,
) -> Outcome:
    r"""The network without a step, the same for every step size.

    .. math:: q_0 = c_{*1}^2 t_2 + (c_*^2 - c_{*1}^2 + \sigma_\varepsilon^2) t_1, \quad
        L_{tr} = \lambda q_0, \quad L_{te} = -q_0'/t_1^2

    in proportional sizes [Moniri24; MM22], with the traces from `limiting_traces`. Where samples or neurons resolve
    more than the linear part of the features, under a covariance of the inputs, and for teachers of several
    directions, the equations of every degree (:mod:`firststep.theory.limits.degrees`).

    Parameters
    ----------
    problem : Problem
        Activation, teacher and noise.
    sizes : Sizes
        With one degree, only the ratios d/n and d/N matter.
    step_sizes : array_like (S,)
        Ignored but for the shape of the answer.
    ridges : array_like (R,)
        :math:`\lambda`.
    degrees : int, optional
        P, the highest Hermite degree of the features that is more than noise; by default as many as samples and neurons
        resolve, given the covariance of the inputs. 1 is the limit of proportional sizes.

    Returns
    -------
    Outcome
        With values of shape (S, R).

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> outcome = solve(problem, Sizes(1000, 500, 800), [0.0], [0.05], degrees=1)
    >>> print(f"{outcome.train_error[0, 0]:.6f} {outcome.test_error[0, 0]:.5f}")
    0.801189 2.48788
    """
    steps, lam = step_sizes_of(sizes, step_sizes, None), ridges_of(ridges)
    highest = degree_of(problem, sizes, degrees)
    if knows_own(problem, sizes, highest, "structured"):
        found, residual, iterations = _of_known_neurons(problem, sizes, lam, highest)
    else:
        found, residual, iterations = _of_degrees(problem, sizes, lam, highest)
    change = np.zeros((2, len(lam)))
    if highest > 1:
        first = _of_degrees(problem, sizes, lam, 1)[0]
        change = np.stack([relative_change(first[name], found[name]) for name in ERRORS])
    bars = np.hypot(still_bars(sizes, highest, change), BAR_SPECIAL * _loudest_share(problem, sizes))
    bars = np.sqrt(bars**2 + small_error_variance(problem, sizes, found["test_error"]))
    found |= {f"{name}_bar": bar * found[name] for name, bar in zip(ERRORS, bars, strict=True)}
    found["train_gain"] = found["test_gain"] = np.zeros_like(lam)
    return Outcome(
        problem,
        sizes,
        steps,
        lam,
        source="random_features",
        values={name: np.repeat(value[None], steps.size, axis=0) for name, value in found.items()},
        notes=wide_bar_note(sizes, bars[1]),
        details={"residual": residual, "iterations": iterations, "degrees": highest},
    )
