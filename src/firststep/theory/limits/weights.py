"""The first layer after the step: a rank-one spike that leaves the bulk of its singular values."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from firststep.gaussian import Array
from firststep.setting import Covariance, Problem, Sizes, step_sizes_of


@dataclass(frozen=True)
class SpikedWeights:
    r"""Limits for the largest singular value of :math:`W_1` and its input-side singular vector.

    Attributes
    ----------
    step_sizes : ndarray (S,)
        :math:`\eta`.
    strength_squared : ndarray (S,)
        T, what the step adds to the squared norm of the row :math:`a^\top W_1/|a|`; negative where it
        shrinks.
    top : ndarray (S,)
        Largest singular value of :math:`W_1`.
    alignment : ndarray (S,)
        Squared overlap of its input-side singular vector with :math:`\beta`; 0 up to the critical step.
    edge : float
        Upper edge of the bulk, :math:`1 + \sqrt{N/d}`.
    critical_step : float
        Step size above which the spike leaves the bulk; infinite when it never does.
    direction_norm_squared : float
        B^2, of which T is made.
    """

    step_sizes: Array
    strength_squared: Array
    top: Array
    alignment: Array
    edge: float
    critical_step: float
    direction_norm_squared: float


def spiked_weights(problem: Problem, sizes: Sizes, step_sizes: ArrayLike) -> SpikedWeights:
    r"""Spike of the weights after one step, for both initial outputs and every step size.

    .. math::
        T = (\eta c_1 B)^2 \;[\, - 2 \eta c_1^2 \text{ if the initial output is of order one}\,], \qquad
        \hat s_1 = \sqrt{\tfrac{(1 + T)(N/d + T)}{T}}, \qquad
        (\hat v_1 \cdot \beta)^2 = \frac{(\eta c_1 c_{*1})^2}{1 + T} \Big(1 - \frac{N/d}{T^2}\Big)

    if :math:`T > \sqrt{N/d}`, else :math:`1 + \sqrt{N/d}` and 0; [Ba22; BGN12] for the vanishing output.

    For an output of order one the direction contains :math:`-c_1 W_0^\top a`, so the spike is not independent
    of the matrix it is added to [firststep]. With a of unit norm, the row :math:`v^\top = a^\top W_1` is
    :math:`v = (1 - \eta c_1^2) W_0^\top a + \eta c_1 b_\perp`, where :math:`b_\perp = b + c_1 W_0^\top a`;
    the rows orthogonal to a are untouched and independent of v. So :math:`W_1^\top W_1 = W_\perp^\top W_\perp
    + v v^\top`, an outlier x solves :math:`1 + |v|^2 g(x) = 0` with g the Stieltjes transform of the bulk,
    and :math:`|v|^2 = 1 + T = (1 - \eta c_1^2)^2 + \eta^2 c_1^2 (B^2 - c_1^2)`. The readouts and the kinds of
    rows differ only through B.

    What is left of the gradient, of norm :math:`O(\log^2 n/\sqrt n)`, is dropped. Checked by simulation (ReLU
    and tanh, noise 1, d, n0, N = 1000, 2000, 1500, Gaussian and constant readouts, both outputs, step sizes
    3, 5 and 8, 1.6 to 6 times the critical one): with T from the drawn vectors the top singular value is
    right to 0.009 and the overlap to 0.004, within two to three standard errors of six draws, and to 0.024
    and 0.003 at d = 500. On top comes the spread of T between draws, about 5 % at this size.

    Parameters
    ----------
    problem : Problem
        Of the functions only :math:`c_1`, :math:`c_{*1}` and what enters B matter.
    sizes : Sizes
        N/d is the aspect ratio of the weights; d/n0 enters B.
    step_sizes : array_like (S,)
        :math:`\eta \ge 0`.

    Examples
    --------
    >>> problem = Problem("tanh", "relu", noise_std=0.3)
    >>> found = spiked_weights(problem, Sizes(3000, 1500, 2250), [3.0, 5.0])
    >>> [round(float(x), 3) for x in (*found.top, *found.alignment)]
    [2.239, 2.668, 0.119, 0.399]
    """
    steps = step_sizes_of(sizes, step_sizes, None)
    aspect = sizes.width / sizes.dim
    linear = float(problem.activation.hermite(2)[1])
    teacher = float(problem.teacher.hermite(2)[1])
    length = problem.direction_norm_squared(sizes)
    pull = 2.0 if problem.output_law.order_one else 0.0
    strength = steps * linear**2 * (steps * length - pull)
    out = strength > np.sqrt(aspect)
    # Any value above the threshold will do where there is no spike: it is not used.
    t = np.where(out, strength, 1 + np.sqrt(aspect))
    edge = 1 + float(np.sqrt(aspect))
    top = np.where(out, np.sqrt((1 + t) * (aspect + t) / t), edge)
    alignment = np.where(out, (steps * linear * teacher) ** 2 / (1 + t) * (1 - aspect / t**2), 0.0)
    critical = _critical(problem, sizes, length)
    return SpikedWeights(steps, strength, top, alignment, edge, critical, length)


def critical_step(problem: Problem, sizes: Sizes) -> float:
    r"""Step size at which the spike leaves the bulk of the weights.

    .. math:: \eta_c = \frac{(N/d)^{1/4}}{|c_1| B} \quad \text{or, for an initial output of order one,} \quad
        \eta_c = \frac{1 + \sqrt{1 + \sqrt{N/d}\, B^2/c_1^2}}{B^2}

    [BBP05; BGN12]; the second is [firststep], derived in `spiked_weights`.

    Examples
    --------
    >>> problem = Problem("relu", "identity", noise_std=1)
    >>> print(f"{critical_step(problem, Sizes(1000, 500, 750)):.4f}")
    1.5651
    """
    return _critical(problem, sizes, problem.direction_norm_squared(sizes))


def _critical(problem: Problem, sizes: Sizes, length: float) -> float:
    """The same from B^2."""
    linear = float(problem.activation.hermite(2)[1])
    if linear == 0 or length == 0:
        return float("inf")
    root = float(np.sqrt(sizes.width / sizes.dim))
    if problem.output_law.order_one:
        return (1 + float(np.sqrt(1 + root * length / linear**2))) / length
    return float(np.sqrt(root / length)) / abs(linear)


def step_values(problem: Problem, sizes: Sizes, step_sizes: ArrayLike) -> dict[str, Array]:
    """What the step does to the first layer, under the names of an Outcome.

    Examples
    --------
    >>> values = step_values(Problem("relu", "identity"), Sizes(1000, 500, 750), [2.0])
    >>> print(f"{values['alignment']:.4f}")
    0.6667
    """
    if not problem.covariance(sizes.dim).isotropic:
        return {
            "direction_norm": np.array(np.sqrt(problem.direction_norm_squared(sizes))),
            "alignment": np.array(mean_cosine_squared(problem, sizes)),
        }
    weights = spiked_weights(problem, sizes, step_sizes)
    length = weights.direction_norm_squared
    teacher = float(problem.teacher.hermite(2)[1])
    return {
        "direction_norm": np.array(np.sqrt(length)),
        "alignment": np.array(teacher**2 / length if length > 0 else 0.0),
        "weights_top": weights.top[:, None],
        "weights_alignment": weights.alignment[:, None],
    }


def mean_cosine_squared(problem: Problem, sizes: Sizes) -> float:
    r"""Mean squared cosine between the step in whitened coordinates and the teacher's direction, at finite d.

    .. math:: v = S^g b, \quad b = c\,\theta + \tilde w, \quad \tilde w_i \sim N(0, f_i/d), \quad
        E\frac{(\theta\cdot v)^2}{|v|^2} = \int_0^\infty E\big[(\theta\cdot v)^2 e^{-t|v|^2}\big]\,dt

    [firststep, covariance, eq. 6] with :math:`f_i = \frac{d}{n_0}E(y-f_0)^2` (and :math:`c_1^2 m_i` more for an output
    of order one), :math:`c = |E\nabla s|`. Given the teacher's weights :math:`\nu_i` on the eigenvectors the average
    is

    .. math:: \prod_i\gamma_i^{1/2} e^{-t c^2\nu_i m_i^{2g}\gamma_i}\Big[\Big(c\sum_i m_i^g\nu_i\gamma_i\Big)^2
        + \tfrac1d\sum_i m_i^{2g}\nu_i f_i\gamma_i\Big], \qquad \gamma_i = \frac{1}{1 + 2t\,m_i^{2g} f_i/d};

    for a teacher in a typical direction, which is Gaussian, too, it is taken over both. With many eigenvalues of one
    size it is :math:`c^2 (\int m^g d\nu)^2/|v|^2`; where one of them is loud, the mean of the quotient is not the
    quotient of the means: with a spike of strength 50 at d = 500, orthogonal to the teacher, it is two thirds larger.

    Examples
    --------
    >>> loud = Problem("relu", "h1 + h2/2", 0.3, inputs="spiked(50, overlap=0)")
    >>> print(f"{mean_cosine_squared(loud, Sizes(1000, 500, 750)):.3f}")
    0.292
    """
    law = problem.covariance(sizes.dim).condensed()
    pull = law.values ** (1.0 if problem.rule.plain else 0.0)
    slope = float(np.linalg.norm(np.atleast_1d(problem.teacher.gradient_mean)))
    noise = sizes.step_ratio * (problem.label_variance + problem.output_variance(sizes)) + 0 * pull
    if problem.output_law.order_one:
        noise = noise + float(problem.activation.hermite(2)[1]) ** 2 * law.values
    if slope == 0:
        return 0.0
    average = _typical_average if law.typical else _given_average
    # Nodes of log t around the inverse of the squared length, in whose units all is of order one.
    size = float(law.weights @ pull**2) * slope**2 + float(law.shares @ (noise * pull**2))
    logs = np.linspace(-40.0, 40.0, 401)
    t = np.exp(logs) / size
    return float(np.sum(t * average(t[:, None], slope, pull, noise, law)) * (logs[1] - logs[0]))


def _given_average(t: Array, slope: float, pull: Array, noise: Array, law: Covariance) -> Array:
    """E[(theta·v)^2 exp(-t |v|^2)] for given weights of the teacher, at each t."""
    counts, weights = law.counts, law.weights
    dim = counts.sum()
    kept = 1 / (1 + 2 * t * pull**2 * noise / dim)
    exponent = np.log(kept) @ counts / 2 - (t * slope**2 * kept) @ (weights * pull**2)
    along = slope * (kept @ (pull * weights))
    return np.asarray(np.exp(exponent) * (along**2 + kept @ (pull**2 * weights * noise) / dim))


def _typical_average(t: Array, slope: float, pull: Array, noise: Array, law: Covariance) -> Array:
    r"""The same for a Gaussian teacher: :math:`\theta_i = c\,b_i/(c^2 + f_i)` and what b does not know."""
    counts = law.counts
    dim, whole = counts.sum(), slope**2 + noise
    kept = whole / dim / (1 + 2 * t * pull**2 * whole / dim)
    exponent = np.log(1 / (1 + 2 * t * pull**2 * whole / dim)) @ counts / 2
    share = counts * pull * slope / whole
    known = (kept @ share) ** 2 + 2 * kept**2 @ (share * pull * slope / whole)
    return np.asarray(np.exp(exponent) * (known + kept @ (counts * pull**2 * noise / whole) / dim))
