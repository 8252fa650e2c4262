"""The limit of many samples at a fixed step exponent: each window of alpha frees one more monomial."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firststep.gaussian import Array, MultiFunction, monomial_in_hermite
from firststep.results import Outcome
from firststep.setting import NEGLIGIBLE, Problem, Sizes, ridges_of, step_sizes_of
from firststep.theory.limits.linear_forms import AnyTraces, Signal, Triple, any_traces, linear_parts
from firststep.theory.limits.random_features import errors, teacher_parts, traces_of

# At alpha = 1/2 every spike is there; this many degrees stand for all of them.
MAX_SPIKES = 20
# An exponent this close to a threshold is on it: 1/3 has no exact binary form.
_ROUNDING = 1e-9


def window_start(spikes: int) -> float:
    r"""Exponent at which the window of so many spikes begins.

    .. math:: \frac{\ell - 1}{2 \ell}

    [Moniri24]; window 0, without a spike, is everything below 0.

    Examples
    --------
    >>> [window_start(count) for count in range(4)]
    [-inf, 0.0, 0.25, 0.3333333333333333]
    """
    return -math.inf if spikes == 0 else (spikes - 1) / (2 * spikes)


def spike_count(step_exponent: ArrayLike, maximum: int = MAX_SPIKES) -> NDArray[np.int64]:
    r"""Number of spikes that grow without bound with n.

    .. math:: \ell \quad\text{with}\quad \frac{\ell - 1}{2 \ell} < \alpha < \frac{\ell}{2 \ell + 2}

    [Moniri24]. On a threshold :math:`\alpha = \ell/(2\ell + 2)` spike :math:`\ell + 1` is of the bulk's own
    size and not counted: the answer is :math:`\ell`. So :math:`\alpha = 0` has none, as every
    :math:`\alpha \le 0`.

    Parameters
    ----------
    step_exponent : array_like
        :math:`\alpha \le 1/2`; minus infinity for no step. Above 1/2 the step outgrows the staircase.
    maximum : int
        Cap of the count, reached shortly below :math:`\alpha = 1/2`, where it would be infinite.

    Examples
    --------
    >>> spike_count([-1, 0, 0.1, 0.25, 0.3, 0.35, 0.5]).tolist()
    [0, 0, 1, 1, 2, 3, 20]
    """
    alpha = np.asarray(step_exponent, dtype=float)
    if np.any(np.isnan(alpha)) or np.any(alpha > 0.5 + _ROUNDING):
        raise ValueError(
            f"step_exponent must be at most 1/2 for the staircase, got {float(np.max(alpha)):g}: "
            'use theory="unified", or give n_spikes'
        )
    with np.errstate(divide="ignore"):
        # The largest k with alpha > (k - 1)/(2 k), that is k < 1/(1 - 2 alpha).
        last = np.ceil(1 / np.maximum(1 - 2 * alpha, 0) - _ROUNDING) - 1
    count = np.clip(np.where(alpha <= 0, 0, last), 0, maximum)
    return cast(NDArray[np.int64], count.astype(np.int64))


def spike_degrees(problem: Problem, n_spikes: int) -> tuple[int, ...]:
    r"""Degrees k up to `n_spikes` of the monomials that the spikes provide.

    .. math:: F_\ell = F_0 + \sum_{k \le \ell} c_1^k c_k \eta^k (\tilde X b)^{\circ k} (a^{\circ k})^\top

    [Moniri24]: the k with :math:`c_k \ne 0`, and none if :math:`c_1 = 0`. That is for a Gaussian readout.
    With signs, :math:`a^{\circ k}` is one vector for all odd and one for all even k, and with a constant
    readout one vector for all k: terms that share it are one spike, in the limit of its lowest degree alone
    [firststep].

    Examples
    --------
    >>> spike_degrees(Problem("relu", "identity"), 4), spike_degrees(Problem("tanh", "identity"), 4)
    ((1, 2, 4), (1, 3))
    >>> spike_degrees(Problem("relu", "identity", readout="constant"), 4)
    (1,)
    """
    c = problem.activation.hermite(n_spikes + 1)
    if n_spikes < 1 or abs(c[1]) < NEGLIGIBLE:
        return ()
    present = [k for k in range(1, n_spikes + 1) if abs(c[k]) * math.sqrt(math.factorial(k)) > NEGLIGIBLE]
    return problem.readout_law.distinct_powers((1, *present))


@dataclass(frozen=True)
class Captured:
    r"""What the spikes let the fit learn, as variances of the labels that leave the residual.

    Attributes
    ----------
    degrees : tuple of int
        The spikes present.
    linear : float
        :math:`E[y z]^2 = c_{*1}^2 r^2`, what z knows of the linear part; all that is taken of it, for isotropic inputs.
        Under a covariance that depends on the ridge (`linear_parts`).
    rest : float
        Variance taken from the degrees two and more.
    held_back : float
        Variance that stays because the even monomials contain the constant, which has to be fitted along.
    share : float
        Weight of the constant in the combination of even degrees that stays.
    """

    degrees: tuple[int, ...]
    linear: float
    rest: float
    held_back: float
    share: float


def spread(problem: Problem, sizes: Sizes) -> float:
    r"""Variance that the rest of the gradient adds to a row, in units of what the spike adds.

    .. math:: \mu = \frac{d}{n_0} \frac{E (y - f_0)^2\, E (\sigma' - c_1)^2}{c_1^2 B^2} \int m^{2g} d\mu(m)

    Row j of the gradient is :math:`a_j (c_1 b + e_j)` with :math:`|e_j|^2 \to \mu c_1^2 B^2`; under a covariance of
    the inputs both are lengths in whitened coordinates, where a step pulls along :math:`S^g e_j`. The :math:`e_j`
    are nearly orthogonal, so that together they are small in norm, but each lengthens its row as much as the
    rank-one part does [firststep].

    Examples
    --------
    >>> print(f"{spread(Problem('relu', 'h1 + h2/sqrt(2)', noise_std=0.5), Sizes(1000, 500, 800)):.4f}")
    0.5294
    """
    linear = float(problem.activation.hermite(2)[1]) ** 2
    length = problem.direction_norm_squared(sizes)
    if linear == 0 or length == 0:
        return 0.0
    variance = problem.label_variance + problem.output_variance(sizes)
    beyond = max(problem.activation.derivative_second_moment - linear, 0.0)
    law, power = problem.covariance(sizes.dim), 1 if problem.rule.plain else 0
    return sizes.step_ratio * variance * beyond * law.moment(2 * power) / (linear * length)


def _spike_functions(count: int, added: float) -> Array:
    """Row k: E (z + sqrt(added) g)^k in the polynomials H_i(z); the monomials when nothing is added."""
    weights, powers = _shift(count)
    return np.asarray((weights * added**powers) @ monomial_in_hermite(count))


@lru_cache(maxsize=64)
def _shift(count: int) -> tuple[Array, Array]:
    """Coefficients and powers of the added variance: E (z + sqrt(added) g)^k in the powers of z, row for row."""
    weights, powers = np.zeros((count, count)), np.zeros((count, count))
    for k in range(count):
        for j in range(k // 2 + 1):
            weight = math.factorial(k) / (math.factorial(j) * 2**j * math.factorial(k - 2 * j))
            weights[k, k - 2 * j], powers[k, k - 2 * j] = weight, j
    return weights, powers


def captured(problem: Problem, sizes: Sizes, n_spikes: int, full_gradient: bool = False) -> Captured:
    r"""Projection of the teacher on the monomials of :math:`z = x \cdot b/|b|` that the spikes provide.

    With :math:`z^k = \sum_i \xi_{k,i} H_i(z)`, :math:`\tau_1 = t_2` and :math:`\tau_i = t_1` otherwise,

    .. math:: q_\ell = q_0 - v^\top M^{-1} v, \quad M_{jk} = \sum_i i!\, \xi_{j,i} \xi_{k,i} \tau_i, \quad
        v_k = \sum_p \xi_{k,p}\, p!\, c_{*p} r^p \tau_p

    [Moniri24]. This is a least-squares problem in the functions :math:`h_i(z) = H_i(z)/\sqrt{i!}` with
    weights :math:`\tau_i`. Since z itself is always among the monomials, its row can be removed, and with it
    the only unequal weight. What remains is the projection of :math:`\sqrt{p!}\, c_{*p} r^p`, :math:`p \ne
    1`, on the other monomials, taken from an orthonormal basis of their span and not from the ill-conditioned
    M. Under a covariance of the inputs the row of z has weights of its own (`linear_parts`), and all others keep
    theirs; with several directions :math:`c_{*p} r^p` is what `teacher_along` says.

    Parameters
    ----------
    problem : Problem
        Activation (which degrees) and teacher.
    sizes : Sizes
        For the correlation r of z with :math:`\beta \cdot x`.
    n_spikes : int
        :math:`\ell`, the highest degree.
    full_gradient : bool
        Whether the spikes carry :math:`E_g (z + \sqrt\mu\, g)^k`, with :math:`\mu` of `spread`, in place of
        :math:`z^k`; see `solve`.

    Examples
    --------
    Of the quadratic part, 2/3 r^4 is taken, and not all of r^4, because z^2 = H_2(z) + 1:

    >>> found = captured(Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5), Sizes(1000, 500, 750), 2)
    >>> print(f"{found.linear:.4f} {found.rest / found.linear**2:.4f}")
    0.4706 0.6667
    """
    degrees = spike_degrees(problem, n_spikes)
    if not degrees:
        return Captured((), 0.0, 0.0, 0.0, 1.0)
    count = degrees[-1] + 1
    seen = teacher_along(problem, sizes, count)
    norms = np.sqrt([math.factorial(i) for i in range(count)])
    others = np.delete(np.arange(count), 1)
    target = (norms * seen)[others]
    functions = _spike_functions(count, spread(problem, sizes) if full_gradient else 0.0)
    monomials = (functions * norms)[list(degrees[1:])][:, others].T
    basis = np.linalg.qr(monomials / np.linalg.norm(monomials, axis=0))[0] if degrees[1:] else monomials
    inside = basis.T @ target
    left = target - basis @ inside
    constant = -basis @ basis[0]
    constant[0] += 1
    share = float(constant[0])
    return Captured(degrees, float(seen[1] ** 2), float(inside @ inside), float(left[0] ** 2) / share, share)


def teacher_along(problem: Problem, sizes: Sizes, count: int) -> Array:
    r"""Hermite coefficients of the teacher along z, for any covariance and any number of directions.

    .. math:: E[y H_p(z)]/p! = c_{*p} r^p \quad\text{or}\quad \sum_{|a| = p} s_a \rho^a, \qquad
        \rho_a = \frac{\theta_a\cdot v}{|v|} = \frac{c_a}{|v|}\int m^g d\nu(m)

    with v of `Signal.of` [firststep, staircase, eq. 2]; :math:`|v| = B` and :math:`r = c_{*1}/B` for isotropic inputs.
    Checked by quadrature over all coordinates (`tests/test_covariant_stairs.py`).

    Examples
    --------
    >>> found = teacher_along(Problem("relu", "t1 + t1*t2", 0.5), Sizes(1000, 500, 750), 3)
    >>> print(found.round(4))
    [0.    0.686 0.   ]
    """
    cosines = Signal.of(problem, sizes).cosines
    if isinstance(problem.teacher, MultiFunction):
        return problem.teacher.hermite_along(cosines, count)
    return np.asarray(problem.teacher.hermite(count) * float(cosines[0]) ** np.arange(count))


def solve(
    problem: Problem,
    sizes: Sizes,
    step_sizes: ArrayLike,
    ridges: ArrayLike,
    *,
    n_spikes: int | Sequence[int] | None = None,
    row_norms: bool = False,
    full_gradient: bool = False,
) -> Outcome:
    r"""Limit of the network after the step, with as many infinitely strong spikes as the step exponent gives.

    .. math:: L_{tr} = \lambda q_\ell, \quad L_{te} = -q_\ell'(\lambda)/t_1^2

    with :math:`q_\ell` of `captured` and, for the linear part, of `linear_parts`. Train errors are the theorem of
    [Moniri24]; test errors beyond two spikes are [firststep], and so is everything under a covariance of the
    inputs and for teachers of several directions, checked by simulation with large coefficients in place of the
    step (`tests/test_staircase.py`, `tests/test_covariant_stairs.py`). For an initial output of order one only the
    step direction changes. Under a covariance a spike can do harm to the test error, though never to the train error.

    n, N and d grow together: where n or N is not far below d^2/2 the fit learns the quadratic part of the features,
    which is noise here, and `predict` says so in a note. The limit is approached so slowly that no reachable n attains
    it: spike k is of size :math:`n^{1/2 - (1/2 - \alpha) k}` in units of the bulk, 1.7 for k = 2,
    :math:`\alpha = 0.29`, n = 1000.

    Parameters
    ----------
    problem, sizes
        What is studied.
    step_sizes : array_like (S,)
        :math:`\eta`; only the exponent :math:`\alpha = \log \eta/\log n_0` matters.
    ridges : array_like (R,)
        :math:`\lambda`.
    n_spikes : int or sequence of int (S,), optional
        :math:`\ell`, the number of windows entered; from the exponent (`spike_count`) when not given.
    row_norms : bool
        Whether to count the fluctuating norms of Gaussian rows [firststep]. Through :math:`c_2` they give the
        features a constant with random coefficients, so that the constant in the even monomials costs less: a
        leading-order effect from the second spike on, which the published limit, for rows of unit norm, does
        not have. Under a covariance rows of unit norm have such a constant, too (`constant_variance`).
    full_gradient : bool
        Whether to keep the part of the gradient that is not of rank one [firststep]. It lengthens the rows
        (`spread`), and again through :math:`c_2` the second spike carries :math:`z^2 + \mu` instead of
        :math:`z^2`: the factor 4/3 of the second gain becomes :math:`4/(2 + (1 + \mu)^2)`. The published
        limit leaves this out. The unified theory tends to the limit with both corrections.

    Returns
    -------
    Outcome
        With the number and the degrees of the spikes in its details.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> outcome = solve(problem, Sizes(1000, 500, 800), [1.0, 3.0], [0.05], n_spikes=[0, 1])
    >>> print(f"{outcome.test_error[0, 0]:.5f} {outcome.test_error[1, 0]:.5f}")
    2.48788 2.24610

    Two spikes, as published and with both corrections:

    >>> published = solve(problem, Sizes(1000, 500, 800), [8.0], [0.05])
    >>> corrected = solve(problem, Sizes(1000, 500, 800), [8.0], [0.05], row_norms=True, full_gradient=True)
    >>> print(f"{published.test_error[0, 0]:.5f} {corrected.test_error[0, 0]:.5f}")
    2.01294 2.04328
    """
    steps, lam = step_sizes_of(sizes, step_sizes, None), ridges_of(ridges)
    counts = _counts(sizes, steps, n_spikes)
    traces, signal = any_traces(problem, sizes, lam), Signal.of(problem, sizes)
    rest, c = teacher_parts(problem)[1], problem.activation.hermite(3)
    found = {int(count): captured(problem, sizes, int(count), full_gradient) for count in np.unique(counts)}
    constant = constant_variance(problem, sizes) if row_norms else 0.0
    columns: dict[str, list[Array]] = {}
    for count in counts:
        part = found[int(count)]
        linear = linear_parts(signal, traces, float(c[1]), free=bool(part.degrees))
        values = _errors(traces, part, linear, rest, constant)
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
    notes = []
    even = any(degree % 2 == 0 for part in found.values() for degree in part.degrees)
    equal = problem.row_law.unit_norm and problem.covariance(sizes.dim).isotropic
    if even and not (full_gradient and (row_norms or equal)):
        notes.append(
            "even spikes: the published limit keeps only the rank-one part of the gradient and takes rows of "
            "unit norm; full_gradient=True and row_norms=True keep what is left out"
        )
    if n_spikes is None and np.any(counts == MAX_SPIKES):
        notes.append(f"step exponents near 1/2 have more than {MAX_SPIKES} spikes; {MAX_SPIKES} were counted")
    return Outcome(
        problem,
        sizes,
        steps,
        lam,
        source="staircase",
        values={name: np.array(rows) for name, rows in columns.items()},
        notes=tuple(notes),
        details={
            "n_spikes": counts.tolist(),
            "degrees": [list(found[int(count)].degrees) for count in counts],
            "residual": float(traces.residual.max()),
            "iterations": int(traces.iterations.max()),
        },
    )


def _counts(sizes: Sizes, steps: Array, n_spikes: int | Sequence[int] | None) -> NDArray[np.int64]:
    if n_spikes is None:
        return spike_count(sizes.step_exponent(steps))
    counts = np.asarray(n_spikes)
    if not np.issubdtype(counts.dtype, np.integer):
        raise TypeError(f"n_spikes must be a whole number or a list of them, got {n_spikes!r}")
    if counts.ndim > 1 or (counts.ndim == 1 and counts.size != steps.size):
        raise ValueError(
            f"n_spikes must be one number or one for each of {steps.size} step sizes, got {n_spikes!r}"
        )
    if np.any((counts < 0) | (counts > MAX_SPIKES)):
        raise ValueError(f"n_spikes must be between 0 and {MAX_SPIKES}, got {n_spikes!r}")
    return np.broadcast_to(counts, steps.shape).astype(np.int64)


def constant_variance(problem: Problem, sizes: Sizes) -> float:
    r"""Variance, in units of 1/d, of the random coefficients with which the features carry a constant.

    .. math:: v = 2 c_2^2 \Big(\int m^2 d\mu(m) - [\text{rows of unit norm}]\Big)

    The mean of :math:`\sigma(w\cdot x)` over x is :math:`c_2 (w^\top S w - 1)`, which fluctuates with the norms of
    Gaussian rows, and under a covariance with the directions of all rows [firststep]. Checked by simulation
    (`tests/test_staircase.py`, `tests/test_covariant_stairs.py`).

    Examples
    --------
    >>> words = {"rows": "sphere", "inputs": "levels(0.3, 1.7)"}
    >>> print(f"{constant_variance(Problem([0, 1, 0.5], 'h1', **words), Sizes(1000, 500, 750)):.3f}")
    0.245
    """
    second = problem.covariance(sizes.dim).moment(2)
    below = 1.0 if problem.row_law.unit_norm else 0.0
    return 2 * float(problem.activation.hermite(3)[2]) ** 2 * max(second - below, 0.0)


Part = tuple[ArrayLike, Array, Array, Array]


def _errors(
    traces: AnyTraces, part: Captured, linear: tuple[Triple, Triple], rest: float, constant: float
) -> dict[str, Array]:
    """Values of one number of spikes, shape (R,); gains from what was captured, not as differences."""
    one: Triple = (traces.t1, traces.dt1, traces.dp1)
    left: list[Part] = [(1.0, *linear[0]), (rest - part.rest, *one)]
    gained: list[Part] = [(1.0, *linear[1]), (part.rest, *one)]
    if constant > 0 and part.held_back > 0:
        # The constant weighs t0 < t1 here, and the combination that stays has the mean of the two.
        t0 = traces.along(constant)
        below = part.share * traces.t1 + (1 - part.share) * t0[0]
        shares = (1 - part.share) * (t0[0] / below) ** 2, part.share * (traces.t1 / below) ** 2
        # The mean is homogeneous of degree one, so the derivatives of t and of lambda t follow one rule.
        mean = tuple(shares[0] * x + shares[1] * y for x, y in zip(one, t0, strict=True))
        difference = tuple(x - y for x, y in zip(one, mean, strict=True))
        left.append((-part.held_back, *cast(Triple, difference)))
        gained.append((part.held_back, *cast(Triple, difference)))
    values = errors(traces, left)
    gains = errors(traces, gained)
    values["degrees_of_freedom"] = traces.degrees_of_freedom
    values["train_gain"], values["test_gain"] = gains["train_error"], gains["test_error"]
    return values


def delta_1(problem: Problem, sizes: Sizes, ridges: ArrayLike) -> Array:
    r"""Gain in train error from the first spike, as printed.

    .. math:: \Delta_1 = \frac{\psi \lambda c_{*1}^4 m_2}{\phi B^2}, \quad
        B^2 = c_{*1}^2 + \phi (c_*^2 + \sigma_\varepsilon^2)

    [Moniri24, eq. 1]; B as `Problem.direction_norm_squared` has it, for n0 other than n too.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> print(f"{delta_1(problem, Sizes(1000, 500, 800), 0.05)[0]:.6f}")
    0.096761
    """
    s = _symbols(problem, sizes, ridges)
    return s.psi * s.lam * s.c1**4 * s.m2 / (s.phi * s.length)


def delta_2(problem: Problem, sizes: Sizes, ridges: ArrayLike) -> Array:
    r"""Gain in train error from the first two spikes, as printed.

    .. math:: \Delta_2 = \Delta_1 + \frac{4 \psi \lambda c_{*1}^4 c_{*2}^2 m_1}{3 \phi B^4}

    [Moniri24, eq. 2]. The 4/3, which would be 2 with an intercept, is right.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> print(f"{delta_2(problem, Sizes(1000, 500, 800), 0.05)[0]:.6f}")
    0.167103
    """
    s = _symbols(problem, sizes, ridges)
    return delta_1(problem, sizes, ridges) + 4 * s.psi * s.lam * s.c1**4 * s.c2**2 * s.m1 / (
        3 * s.phi * s.length**2
    )


def delta_general(problem: Problem, sizes: Sizes, ridges: ArrayLike, n_spikes: int) -> Array:
    r"""Gain in train error from the first :math:`\ell` spikes, as printed.

    .. math:: \Delta_\ell = \lambda \sum_{p,q = 1}^{\ell} c_{*p} c_{*q} r_p r_q \sum_{i,j = 1}^{\ell}
        \Omega_{ij} B^{i+j} \xi_{i,p} \xi_{j,q}, \quad
        [\Omega^{-1}]_{ij} = B^{i+j} \tfrac{\psi}{\phi} \Big[ m_2 \xi_{i,1} \xi_{j,1}
        + m_1 \sum_{k \ne 1} k!\, \xi_{i,k} \xi_{j,k} \Big],

    :math:`r_p = p!\, (\psi/\phi)\, m_1 (c_{*1}/B)^p` and :math:`m_2` in place of :math:`m_1` for p = 1
    [Moniri24, general case]. It wants :math:`c_1, \dots, c_\ell \ne 0` and a Gaussian readout; `solve` takes
    any problem and is the better conditioned.

    Examples
    --------
    >>> problem = Problem("softplus", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> sizes = Sizes(1000, 500, 800)
    >>> same = delta_general(problem, sizes, 0.05, 2) / delta_2(problem, sizes, 0.05)
    >>> print(f"{same[0]:.9f}")
    1.000000000
    """
    if len(spike_degrees(problem, n_spikes)) < n_spikes or n_spikes < 1:
        raise ValueError(
            f"the printed formula wants c_1, ..., c_l all non-zero, a Gaussian readout and l at least 1; got "
            f"l = {n_spikes} with spikes of the degrees {spike_degrees(problem, n_spikes)}: use solve"
        )
    s = _symbols(problem, sizes, ridges)
    xi = monomial_in_hermite(n_spikes + 1)
    factorials = np.array([math.factorial(k) for k in range(n_spikes + 1)], dtype=float)
    c_star = problem.teacher.hermite(n_spikes + 1)
    b = math.sqrt(s.length)
    powers = b ** np.arange(1, n_spikes + 1)
    degrees = np.arange(n_spikes + 1)
    gains = []
    for lam, m1, m2 in zip(s.lam, s.m1, s.m2, strict=True):
        m = np.where(degrees == 1, m2, m1)
        omega_inverse = np.outer(powers, powers) * s.psi / s.phi * ((xi[1:] * factorials * m) @ xi[1:].T)
        r = factorials * s.psi / s.phi * m * (s.c1 / b) ** degrees
        vector = powers * (xi[1:, 1:] @ (c_star * r)[1:])
        gains.append(lam * vector @ np.linalg.solve(omega_inverse, vector))
    return np.array(gains)


def lambda_1(problem: Problem, sizes: Sizes, ridges: ArrayLike) -> Array:
    r"""Gain in test error from the first spike, corrected.

    .. math:: \Lambda_1 = \frac{c_{*1}^4}{B^2}\, \frac{\phi}{\psi m_1^2}
        \Big(-\frac{\partial m_2}{\partial\lambda}\Big)

    [Moniri24, eq. 3] lacks the factor :math:`\phi/(\psi m_1^2)`: see `lambda_1_as_printed`.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> print(f"{lambda_1(problem, Sizes(1000, 500, 800), 0.05)[0]:.3f}")
    0.242
    """
    s = _symbols(problem, sizes, ridges)
    return lambda_1_as_printed(problem, sizes, ridges) * s.phi / (s.psi * s.m1**2)


def lambda_2(problem: Problem, sizes: Sizes, ridges: ArrayLike) -> Array:
    r"""Gain in test error from the first two spikes, corrected.

    .. math:: \Lambda_2 = \Lambda_1 + \frac{4 c_{*1}^4 c_{*2}^2}{3 B^4}\, \frac{\phi}{\psi m_1^2}
        \Big(-\frac{\partial m_1}{\partial\lambda}\Big)

    [Moniri24, eq. 4] lacks the factor :math:`\phi/\psi` in the second term, besides what its first lacks.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> print(f"{lambda_2(problem, Sizes(1000, 500, 800), 0.05)[0]:.3f}")
    0.475
    """
    s = _symbols(problem, sizes, ridges)
    return lambda_1(problem, sizes, ridges) + _second_as_printed(s) * s.phi / s.psi


def lambda_1_as_printed(problem: Problem, sizes: Sizes, ridges: ArrayLike) -> Array:
    r"""Equation (3) of [Moniri24] as it stands on the slide, which is not a test error's gain.

    .. math:: \frac{c_{*1}^4}{B^2} \Big(-\frac{\partial m_2}{\partial\lambda}\Big)

    It changes under :math:`\sigma \to c\,\sigma`, :math:`\lambda \to c^2 \lambda`, which leaves every test
    error alone, and can exceed the error itself: here 17.6 of 2.49.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> print(f"{lambda_1_as_printed(problem, Sizes(1000, 500, 800), 0.05)[0]:.1f}")
    17.6
    """
    s = _symbols(problem, sizes, ridges)
    return -s.dm2 * s.c1**4 / s.length


def lambda_2_as_printed(problem: Problem, sizes: Sizes, ridges: ArrayLike) -> Array:
    r"""Equation (4) of [Moniri24] as it stands on the slide; `lambda_2` is what holds.

    .. math:: \frac{c_{*1}^4}{B^2} \Big(-\frac{\partial m_2}{\partial\lambda}\Big)
        + \frac{4 c_{*1}^4 c_{*2}^2}{3 B^4 m_1^2} \Big(-\frac{\partial m_1}{\partial\lambda}\Big)

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> print(f"{lambda_2_as_printed(problem, Sizes(1000, 500, 800), 0.05)[0]:.1f}")
    17.9
    """
    return lambda_1_as_printed(problem, sizes, ridges) + _second_as_printed(_symbols(problem, sizes, ridges))


@dataclass(frozen=True)
class _Symbols:
    """The letters of the slides: c1 and c2 are the teacher's, length is B^2."""

    lam: Array
    phi: float
    psi: float
    m1: Array
    m2: Array
    dm1: Array
    dm2: Array
    c1: float
    c2: float
    length: float


def _symbols(problem: Problem, sizes: Sizes, ridges: ArrayLike) -> _Symbols:
    if not problem.covariance(sizes.dim).isotropic:
        raise ValueError(
            "the printed formulas are for isotropic inputs: use solve, which knows any covariance"
        )
    traces = traces_of(problem, sizes, ridges)
    c_star = problem.teacher.hermite(3)
    return _Symbols(
        traces.ridge,
        sizes.sample_ratio,
        sizes.width_ratio,
        traces.m1,
        traces.m2,
        traces.dm1,
        traces.dm2,
        float(c_star[1]),
        float(c_star[2]),
        problem.direction_norm_squared(sizes),
    )


def _second_as_printed(s: _Symbols) -> Array:
    return -s.dm1 * 4 * s.c1**4 * s.c2**2 / (3 * s.length**2 * s.m1**2)
