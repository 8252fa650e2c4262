r"""Quadratic forms of the resolvent without a step between linear functions, under any covariance of the inputs.

In whitened coordinates a linear function is a vector a, and on an eigenvector with eigenvalue m of the covariance it is
learned at m's own rate. The forms are what infinitely strong spikes are chosen by
(`firststep.theory.limits.staircase`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from firststep.gaussian import Array
from firststep.setting import Problem, Sizes, ridges_of
from firststep.theory.limits.degrees import features_of, response, solve_bulk
from firststep.theory.limits.random_features import Traces, traces_of

# A trace, its derivative in the ridge, and that of the ridge times the trace.
Triple = tuple[Array, Array, Array]
# Where the equations begin for what samples see of an activation without a linear part.
SMALLEST = 1e-30


@dataclass(frozen=True)
class CovariantTraces:
    r"""Traces of the resolvent under a covariance, as `Traces` has them for isotropic inputs; each (R,).

    Attributes
    ----------
    ridge : ndarray
        :math:`\lambda`.
    width_ratio : float
        :math:`\psi = d/N`.
    t1, dt1, dp1 : ndarray
        :math:`\lim\operatorname{tr} R_0`, its derivative in the ridge and that of :math:`\lambda t_1`.
    w, slope_w : ndarray
        :math:`1 + \delta` and :math:`\partial_\lambda\log w`.
    degrees_of_freedom : ndarray
        :math:`1 - \lambda t_1`, as a share of n.
    residual, iterations : ndarray
        Of the equations.
    """

    ridge: Array
    width_ratio: float
    t1: Array
    dt1: Array
    dp1: Array
    w: Array
    slope_w: Array
    degrees_of_freedom: Array
    residual: Array
    iterations: Array

    @classmethod
    def of(cls, problem: Problem, sizes: Sizes, ridges: ArrayLike) -> "CovariantTraces":
        r"""From the equations of the first degree, in which all others are noise [firststep, covariance, eq. 3].

        .. math:: t_1 = \tfrac nN\rho, \quad 1 - \lambda t_1 = \tfrac Nn\tfrac{w - 1}{w}, \quad
            \partial_\lambda(\lambda t_1) = -\tfrac Nn\,\partial_\lambda\log w\,/\,w

        Checked with the traces of isotropic inputs, and by differences in the ridge (`tests/test_covariant_stairs.py`).

        Examples
        --------
        >>> from firststep.setting import Problem, Sizes
        >>> found = CovariantTraces.of(Problem("relu", "h1", inputs="levels(1, 1)"), Sizes(1000, 500, 800), 0.05)
        >>> print(f"{0.8 * found.t1[0]:.5f} {0.8 * found.along(0.25)[0][0]:.5f}")
        7.62331 3.28988
        """
        lam = ridges_of(ridges)
        features, near = features_of(problem, sizes, 1), traces_of(problem, sizes, lam)
        # Isotropic inputs are near: from there the equations converge at any ridge.
        seen = near.linear**2 * near.t1 / near.width_ratio
        start = np.stack([1 + near.delta, np.maximum(seen, SMALLEST)], axis=1)
        bulk, ratio = solve_bulk(features, lam, start), features.samples_per_neuron
        d_rho, d_w = response(features, bulk, np.full_like(bulk.rho, ratio))
        # With one degree rho is the same for every z.
        t1, w = ratio * bulk.rho @ features.weights, bulk.w
        slope_w = d_w / w
        return cls(
            ridge=lam,
            width_ratio=sizes.width_ratio,
            t1=t1,
            dt1=ratio * d_rho @ features.weights,
            dp1=-slope_w / (ratio * w),
            w=w,
            slope_w=slope_w,
            degrees_of_freedom=(w - 1) / (ratio * w),
            residual=np.full_like(lam, bulk.residual),
            iterations=np.full(lam.shape, bulk.iterations),
        )

    def along(self, variance: ArrayLike) -> Triple:
        r"""Trace of a function of the inputs that the features carry with random coefficients; see `Traces.along`.

        .. math:: t_v = \frac{t_1}{1 + s}, \quad s = \frac{v\,t_1}{\psi w}, \quad
            \partial_\lambda\log t_v = \frac{\partial_\lambda\log t_1 + s\,\partial_\lambda\log w}{1 + s}, \quad
            \partial_\lambda(\lambda t_v) = \frac{\partial_\lambda(\lambda t_1)}{1 + s}
            + \frac{\lambda t_v\,s}{1 + s}\,\partial_\lambda\log\frac{w}{t_1}

        A linear function on an eigenvector m has :math:`v = c_1^2 m` [firststep, covariance, eq. 4, with one
        direction].

        Examples
        --------
        >>> from firststep.setting import Problem, Sizes
        >>> found = CovariantTraces.of(Problem("relu", "h1", inputs="levels(0.3, 1.7)"), Sizes(1000, 500, 800), 0.05)
        >>> small, large = found.along(0.25 * np.array([[0.3], [1.7]]))[0]
        >>> print(f"{small[0] / found.t1[0]:.3f} {large[0] / found.t1[0]:.3f}")
        0.701 0.293
        """
        share = np.asarray(variance, dtype=float) * self.t1 / (self.width_ratio * self.w)
        trace = self.t1 / (1 + share)
        slope_t = self.dt1 / self.t1
        slope = trace * (slope_t + share * self.slope_w) / (1 + share)
        kept = self.ridge * trace * share / (1 + share) * (self.slope_w - slope_t)
        return trace, slope, self.dp1 / (1 + share) + kept


AnyTraces = Traces | CovariantTraces


def any_traces(problem: Problem, sizes: Sizes, ridges: ArrayLike) -> AnyTraces:
    """Traces without a step, shape (R,): those of isotropic inputs, or under the problem's covariance."""
    if problem.covariance(sizes.dim).isotropic:
        return traces_of(problem, sizes, ridges)
    return CovariantTraces.of(problem, sizes, ridges)


@dataclass(frozen=True)
class Signal:
    r"""Spectral masses of what a large step adds to all neurons, and of the teacher's linear part; (levels,).

    Attributes
    ----------
    values : ndarray
        Eigenvalues m.
    teacher, both, step : ndarray
        Masses of :math:`\theta\cdot\theta`, :math:`\theta\cdot v` and :math:`v\cdot v` on them.
    direction : ndarray (directions,)
        :math:`\theta = E\nabla s`, in the teacher's directions.
    """

    values: Array
    teacher: Array
    both: Array
    step: Array
    direction: Array

    @classmethod
    def of(cls, problem: Problem, sizes: Sizes) -> "Signal":
        r"""The limit of large steps, in which the initial output's own part has faded [firststep, covariance, eq. 2].

        .. math:: v = S^g(\theta - c_1 o + \tilde w), \quad \theta = \sum_a c_a\theta_a, \quad
            |\tilde w|^2 = \tfrac d{n_0}E(y - f_0)^2, \qquad
            \theta\cdot v:\ m^g|c|^2\nu, \quad
            v\cdot v:\ m^{2g}\big(|c|^2\nu + (c_1^2m\,[\text{order one}] + |\tilde w|^2)\,\mu\big)

        :math:`o = S^{1/2}W_0^\top a`, of an output of order one, has the mass :math:`m\mu`; rows beside it do not know
        it. Checked with the norm and the cosine of drawn gradients (`tests/test_covariant_stairs.py`).

        Examples
        --------
        >>> problem = Problem("relu", "h1 + h2/2", 0.3, inputs="levels(0.3, 1.7)", initial_output="order_one")
        >>> sizes = Sizes(1000, 500, 750)
        >>> found = Signal.of(problem, sizes)
        >>> bool(np.isclose(found.step.sum(), problem.direction_norm_squared(sizes), rtol=1e-14))
        True
        """
        law = problem.covariance(sizes.dim)
        m, power = law.values, 1 if problem.rule.plain else 0
        direction = np.atleast_1d(problem.teacher.gradient_mean)
        teacher = float(direction @ direction) * law.weights
        noise = sizes.step_ratio * (problem.label_variance + problem.output_variance(sizes)) + 0 * m
        if problem.output_law.order_one:
            noise = noise + float(problem.activation.hermite(2)[1]) ** 2 * m
        return cls(
            m, teacher, m**power * teacher, m ** (2 * power) * (teacher + noise * law.shares), direction
        )

    @property
    def cosines(self) -> Array:
        r"""Correlations of :math:`z = v\cdot g/|v|` with the teacher's coordinates, (directions,)."""
        length, square = float(self.step.sum()), float(self.direction @ self.direction)
        if length == 0 or square == 0:
            return np.zeros_like(self.direction)
        return np.asarray(self.direction / square * float(self.both.sum()) / length**0.5)


def linear_parts(signal: Signal, traces: AnyTraces, linear: float, free: bool) -> tuple[Triple, Triple]:
    r"""The linear part of the labels with z given for free: what stays, and what is gained.

    .. math:: \min_\gamma f(\theta - \gamma v, \theta - \gamma v)
        = f(\theta, \theta) - \frac{f(\theta, v)^2}{f(v, v)}, \qquad
        f(a, b) = \int f_m\,d\nu_{ab}(m), \quad f_m = \frac{t_1}{1 + m\,c_1^2 t_1/(\psi w)}

    [firststep, staircase, eq. 1]; :math:`f_m` is `along` for :math:`c_1^2 m`. The minimum does not move with
    :math:`\gamma`, so that its derivatives are those of f at the best :math:`\gamma`. What is gained in the train error
    is never negative; in the test error it can be. Checked with drawn features that have a large spike
    (`tests/test_covariant_stairs.py`).

    Parameters
    ----------
    signal, traces
        Of the same problem, R ridges.
    linear : float
        :math:`c_1` of the activation.
    free : bool
        Whether there is a spike at all.

    Returns
    -------
    tuple
        Both as sums of a trace, its derivative and that of the ridge times the trace, each (R,).

    Examples
    --------
    On isotropic inputs the share r^2 of the linear part is gained:

    >>> from firststep.setting import Problem, Sizes
    >>> problem, sizes = Problem("relu", "h1 + h2/sqrt(2)", 0.5), Sizes(1000, 500, 750)
    >>> signal, traces = Signal.of(problem, sizes), any_traces(problem, sizes, 0.1)
    >>> left, gained = linear_parts(signal, traces, 0.5, free=True)
    >>> print(f"{left[0][0] / traces.t2[0]:.4f} {gained[0][0] / traces.t2[0]:.4f}")
    0.5294 0.4706
    """
    parts = traces.along(linear**2 * signal.values[:, None])
    whole = [signal.teacher @ part for part in parts]
    if not free:
        return _triple(whole), _triple([0 * part for part in whole])
    own, both = signal.step @ parts[0], signal.both @ parts[0]
    gamma = both / np.where(own > 0, own, 1.0)
    # Masses of theta - gamma v, and of what theta has beyond it; (R, levels).
    left = signal.teacher - 2 * np.outer(gamma, signal.both) + np.outer(gamma**2, signal.step)
    gained = 2 * np.outer(gamma, signal.both) - np.outer(gamma**2, signal.step)
    split = [_triple([np.einsum("rl,lr->r", mass, part) for part in parts]) for mass in (left, gained)]
    return split[0], split[1]


def _triple(parts: list[Array]) -> Triple:
    return np.asarray(parts[0]), np.asarray(parts[1]), np.asarray(parts[2])
