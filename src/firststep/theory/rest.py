r"""The part of the gradient that is linear in the first layer: its spectral law, as seen from special directions.

Beyond its rank-one part the gradient is, neuron by neuron, :math:`2 c_2 a_j M w_j` with

.. math:: M = \frac{1}{n_0} X^\top \mathrm{diag}(y - f_0) X ,

plus a remainder that acts as independent noise [firststep, unified]. This module computes the law of M in the limit as
Gauss quadrature: the scalar law mu (a typical direction), and the matrix-valued law at beta, at the noise w in the step
direction :math:`b = c_{*1}\beta + w`, and, if the initial output is of order one, at :math:`W_0^\top a`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from operator import mul
from statistics import NormalDist

import numpy as np

from firststep.gaussian import Array, Function

# Hankel matrices of 2 x 24 moments have condition numbers up to about 1e60: digits beyond that are what is left.
DIGITS = 140
SHARED_LEVELS = (9, 16, 24)
# Teacher arguments beyond this have probability 2e-9 and would only pull quadrature nodes into an empty tail.
REACH = 6.0
# Fewer samples than this have no tail to speak of.
FEWEST_SAMPLES = 4


@dataclass(frozen=True)
class RestLaw:
    """Gauss quadrature for the law of M.

    Attributes
    ----------
    nodes, weights : ndarray (L,)
        The scalar law mu.
    special_nodes : ndarray (L',)
        Nodes of the matrix-valued law.
    special_vectors : ndarray (L', p)
        Its weights are the outer products of the rows; the directions are beta, W0^T a for an initial output of order
        one, and w, the rest of the step direction: orthonormal in the limit.
    mean, second_moment : float
        First two moments of mu.
    share, special_share : ndarray (L,), (L',)
        Variance of the gradient's remainder along an eigenvector of M, in units of its mean over all directions, at
        the nodes of both laws.
    noise_excess : ndarray (p, p)
        What the remainder's covariance between the special directions has beyond these shares.
    """

    nodes: Array
    weights: Array
    special_nodes: Array
    special_vectors: Array
    mean: float
    second_moment: float
    share: Array
    special_share: Array
    noise_excess: Array


def point_law(directions: int) -> RestLaw:
    """M = 0, for an activation without a quadratic part or for a rest that is treated as noise."""
    one, zero = np.ones(1), np.zeros((directions, directions))
    return RestLaw(
        np.zeros(1), one, np.zeros(directions), np.eye(directions), 0.0, 0.0, one, np.ones(directions), zero
    )


@lru_cache(maxsize=64)
def rest_law(
    teacher: Function,
    noise_variance: float,
    step_ratio: float,
    output: tuple[float, float] | None,
    levels: int,
    power: int = 1,
    n_step_samples: int | None = None,
) -> RestLaw:
    r"""Law of M from its own equations.

    With :math:`\phi_0 = d/n_0` and y the label minus the initial output, the Stieltjes transform of mu solves
    :math:`g = 1/(E[y/(1 + \phi_0 y g)] - \zeta)`. For sums :math:`v = n_0^{-1}\sum_i f_i x_i'` over the directions x'
    orthogonal to the special ones, :math:`v^\top (M' - \zeta)^{-1} w = \phi_0 E[f f' g/(1 + \phi_0 y g)]`, and a
    Schur complement in the special directions gives the rest [firststep, unified, eqs. 21-23]. Everything is expanded
    in :math:`1/\zeta`, that is, in moments, and turned into Gauss quadrature with many digits.

    Parameters
    ----------
    teacher : Function
        s.
    noise_variance : float
        Variance of the label noise.
    step_ratio : float
        d/n0.
    output : (c_1, variance beyond c_1) or None
        The activation's linear coefficient and remaining variance when the initial output is of order one.
    levels : int
        Quadrature nodes of mu, L; the matrix-valued law gets that many for each direction.
    power : {1, 2}
        1 for M; 2 for :math:`X^\top \mathrm{diag}(y^2) X/(n_0 E y^2)`, the covariance of the gradient's remainder
        between neurons, seen from the same directions.
    n_step_samples : int, optional
        n0: labels are those that so many samples contain (`reach_of`). By default as if there were infinitely many.

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> law = rest_law(function("identity"), 0.0, 0.5, None, 6)
    >>> print(f"{law.second_moment:.6f} {law.weights @ law.nodes**2:.6f}")
    0.500000 0.500000
    """
    with localcontext() as context:
        context.prec = DIGITS
        # Laws of one problem with few more or less nodes share their moments.
        most = next((count for count in SHARED_LEVELS if levels <= count), levels)
        labels = teacher, noise_variance, output, power * (2 * most + 3), reach_of(n_step_samples)
        scalar, special, unit = _moments(labels, step_ratio, 2 * most + 1, power)
        nodes, vectors = _gauss([[[m]] for m in scalar], levels)
        special_nodes, special_vectors = _gauss(special, levels)
        moments = [float(m) / unit**k for k, m in enumerate(scalar[:5])]
        means = [float(x) for x in _label_moments(*labels)[0, 0][:5]]
    nodes, special_nodes = nodes / unit, special_nodes / unit
    share, special_share, excess = nodes, special_nodes, np.zeros((len(special[0]),) * 2)
    if power == 1 and means[2] > 0:
        covariance = noise_covariance(teacher, noise_variance, step_ratio, output, n_step_samples)
        quadratic = noise_shares(moments, means, step_ratio)
        share, special_share = (np.maximum(np.polyval(quadratic, x), 0.0) for x in (nodes, special_nodes))
        mean = float(vectors[:, 0] ** 2 @ share)
        share, special_share = share / mean, special_share / mean
        excess = covariance - (special_vectors.T * special_share) @ special_vectors
    return RestLaw(
        nodes,
        vectors[:, 0] ** 2,
        special_nodes,
        special_vectors,
        moments[1],
        moments[2],
        share,
        special_share,
        excess,
    )


def reach_of(n_step_samples: int | None) -> float:
    """Size of a normal variable that one of n0 samples exceeds on each side; what lies beyond counts as that sample.

    Examples
    --------
    >>> print(f"{reach_of(1000):.3f} {reach_of(None):.3f}")
    3.090 6.000
    """
    if n_step_samples is None:
        return REACH
    return min(REACH, -NormalDist().inv_cdf(1 / max(n_step_samples, FEWEST_SAMPLES)))


def noise_shares(moments: Sequence[float], labels: Sequence[float], step_ratio: float) -> Array:
    r"""The remainder's variance along an eigenvector of M as a quadratic function of the eigenvalue, highest first.

    The remainder's covariance is :math:`\Sigma = X^\top \mathrm{diag}(y^2) X/(n_0 E y^2)`. A sample with a large
    label makes a large eigenvalue of both matrices, with nearly the same eigenvector. The projection on 1, M, M^2
    follows from

    .. math:: \tfrac1d\mathrm{tr}\,\Sigma M^k
        = \sum_j \phi_0^j \frac{E y^{2+j}}{E y^2}\, [s^{k-j}]\, \hat m(s)^{j+1},
        \qquad \hat m(s) = \sum_k s^k\, \tfrac1d\mathrm{tr} M^k

    and leaves 10 to 20 % of the variance's own spread (drawn matrices) [firststep, unified].
    """
    third, fourth = step_ratio * labels[3] / labels[2], step_ratio**2 * labels[4] / labels[2]
    seen = [1.0, moments[1] + third, moments[2] + 2 * third * moments[1] + fourth]
    gram = np.array([[moments[i + j] for j in range(3)] for i in range(3)])
    return np.asarray(np.linalg.lstsq(gram, np.array(seen), rcond=None)[0][::-1])


@lru_cache(maxsize=64)
def noise_covariance(
    teacher: Function,
    noise_variance: float,
    step_ratio: float,
    output: tuple[float, float] | None,
    n_step_samples: int | None = None,
) -> Array:
    r"""Covariance of the gradient's remainder between the special directions, in units of a typical direction's.

    .. math:: \Gamma_{\beta\beta} = \frac{E[y^2 t^2]}{E y^2}, \quad
        \Gamma_{\beta w} = \frac{\sqrt{\phi_0}\, E[y^3 t]}{(E y^2)^{3/2}}, \quad
        \Gamma_{ww} = 1 + \phi_0 \frac{E y^4}{(E y^2)^2}

    The remainder of a neuron is :math:`n_0^{-1}\sum_i y_i \chi_i x_i` with factors chi that are independent given the
    data, so that its covariance is that of :math:`X^\top \mathrm{diag}(y^2) X`: samples with large labels count more,
    above all along the step direction, to which each contributes itself [firststep, unified, eq. 15].

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> print(noise_covariance(function("identity"), 0.0, 0.5, None).round(4).tolist())
    [[3.0, 2.1213], [2.1213, 2.5]]
    """
    with localcontext() as context:
        context.prec = DIGITS
        # As many as the smallest law asks for, so that both share them.
        order = 2 * SHARED_LEVELS[0] + 3
        found = _label_moments(teacher, noise_variance, output, order, reach_of(n_step_samples))
        moments = {key: [float(x) for x in row[:5]] for key, row in found.items()}
    axes = [(1, 0)] if output is None else [(1, 0), (0, 1)]
    square = moments[0, 0][2]
    covariance = np.eye(len(axes) + 1)
    if square == 0:
        return covariance
    for i, a in enumerate(axes):
        for j, b in enumerate(axes):
            covariance[i, j] = moments[a[0] + b[0], a[1] + b[1]][2] / square
        covariance[i, -1] = covariance[-1, i] = np.sqrt(step_ratio) * moments[a][3] / square**1.5
    covariance[-1, -1] = 1 + step_ratio * moments[0, 0][4] / square**2
    return covariance


@lru_cache(maxsize=16)
def _teacher_moments(teacher: Function, order: int, reach: float) -> list[list[Decimal]]:
    """E[s(t)^k t^i] for k up to `order`, row i = 0, 1, 2; labels beyond the reach are one of their mean square."""
    nodes, weights = _normal_rule(reach, teacher.kinks)
    values, columns = teacher(nodes), [weights * nodes**i for i in range(3)]
    tail, mass = _normal_tail(reach)
    for side in (-1, 1) if reach < REACH else ():
        t, y = side * tail, teacher(side * tail)
        value = math.copysign(math.sqrt(mass @ y**2 / mass.sum()), mass @ (y * np.abs(y)))
        along, square = mass @ t, mass @ t**2
        if value:
            # Of t what keeps E[y t] and E[y t^2].
            along = mass @ (y * t) / value
            square = max(mass @ (y * t**2) / value, along**2 / mass.sum())
        values = np.append(values, value)
        columns = [np.append(x, last) for x, last in zip(columns, (mass.sum(), along, square), strict=True)]
    total = sum(map(Decimal, columns[0].tolist()), Decimal(0))
    powers = [Decimal(value) for value in values.tolist()]
    found: list[list[Decimal]] = []
    for column in columns:
        terms = [Decimal(w) / total for w in column.tolist()]
        row = [sum(terms, Decimal(0))]
        for _ in range(order):
            terms = list(map(mul, terms, powers))
            row.append(sum(terms, Decimal(0)))
        found.append(row)
    return found


def _normal_rule(reach: float, breaks: Sequence[float] = (), count: int = 36) -> tuple[Array, Array]:
    """Nodes up to the reach and their weights under the normal density, with breaks at 0 and at kinks."""
    ends = sorted({-reach, 0.0, reach, *(k for k in breaks if abs(k) < reach)})
    base, base_weights = np.polynomial.legendre.leggauss(count)
    nodes = np.concatenate([(low + high) / 2 + (high - low) / 2 * base for low, high in pairwise(ends)])
    lengths = np.concatenate([(high - low) / 2 * base_weights for low, high in pairwise(ends)])
    return nodes, lengths * np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)


def normal_points(reach: float, count: int, breaks: Sequence[float] = ()) -> tuple[Array, Array]:
    """Nodes and weights of a normal variable as n0 samples contain it, `count` of them between two breaks.

    What lies beyond the reach is one value on each side, with the tail's mass and mean square.

    Examples
    --------
    >>> nodes, weights = normal_points(3.0, 20)
    >>> print(f"{nodes.max():.3f} {weights.sum():.6f} {weights @ nodes**2:.6f}")
    3.294 1.000000 1.000000
    """
    nodes, weights = _normal_rule(reach, breaks, count)
    tail, mass = _normal_tail(reach)
    end = math.sqrt(mass @ tail**2 / mass.sum()) if reach < REACH else reach
    rest = mass.sum() if reach < REACH else 0.0
    weights = np.concatenate([[rest], weights, [rest]])
    return np.concatenate([[-end], nodes, [end]]), np.asarray(weights / weights.sum())


def _normal_tail(reach: float) -> tuple[Array, Array]:
    """Nodes beyond the reach, on the right, and their weights."""
    base, weights = np.polynomial.legendre.leggauss(36)
    nodes = (reach + REACH) / 2 + (REACH - reach) / 2 * base
    return nodes, (REACH - reach) / 2 * weights * np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)


@lru_cache(maxsize=16)
def _normal_moments(order: int, reach: float) -> list[Decimal]:
    """E xi^k for k up to `order`, xi standard normal but for what lies beyond the reach, which is one value."""
    if reach >= REACH:
        return [Decimal(0 if k % 2 else math.prod(range(k - 1, 0, -2))) for k in range(order + 1)]
    nodes, weights = _normal_rule(reach)
    tail, mass = _normal_tail(reach)
    value = math.sqrt(mass @ tail**2 / mass.sum())
    squares = [Decimal(x) ** 2 for x in (*nodes[nodes > 0].tolist(), value)]
    terms = [Decimal(w) for w in (*weights[nodes > 0].tolist(), float(mass.sum()))]
    total = sum(terms, Decimal(0))
    found: list[Decimal] = []
    for k in range(order + 1):
        found.append(Decimal(0) if k % 2 else sum(terms, Decimal(0)) / total)
        if k % 2 == 0:
            terms = list(map(mul, terms, squares))
    return found


@lru_cache(maxsize=256)
def _binomials(k: int) -> list[Decimal]:
    return [Decimal(math.comb(k, j)) for j in range(k + 1)]


Labels = tuple[Function, float, tuple[float, float] | None, int, float]


@lru_cache(maxsize=16)
def _label_moments(
    teacher: Function, noise_variance: float, output: tuple[float, float] | None, order: int, reach: float
) -> dict[tuple[int, int], list[Decimal]]:
    """E[y^k t^i t2^j] for k up to `order` + 1, y = s(t) + noise - c_1 t2 - (rest of the initial output)."""
    slope = Decimal(output[0]) if output else Decimal(0)
    spread = Decimal(noise_variance) + (slope**2 + Decimal(output[1]) if output else Decimal(0))
    zero = Decimal(0)
    deviations = list(accumulate(repeat(spread.sqrt(), order + 3), mul, initial=Decimal(1)))
    xi = list(map(mul, deviations, _normal_moments(order + 3, reach)))
    rows = _teacher_moments(teacher, order + 1, reach)

    def with_noise(row: Sequence[Decimal], power: int) -> list[Decimal]:
        """E[(s + xi)^k xi^power], xi Gaussian: every second term vanishes."""
        first = power % 2
        found = []
        for k in range(order + 2):
            terms = map(mul, _binomials(k)[first::2], xi[first + power : k + power + 1 : 2])
            found.append(sum(map(mul, terms, row[k - first :: -2] if k >= first else []), zero))
        return found

    found = {(i, 0): with_noise(row, 0) for i, row in enumerate(rows)}
    # Given xi, t2 has the mean -c_1 xi/spread and the variance 1 - c_1^2/spread.
    share = slope / spread if spread else zero
    for i in (0, 1):
        found[i, 1] = [-share * x for x in with_noise(rows[i], 1)]
    found[0, 2] = [
        (1 - share * slope) * a + share**2 * b
        for a, b in zip(found[0, 0], with_noise(rows[0], 2), strict=True)
    ]
    return found


Series = list[Decimal]


def _times(left: Series, right: Series) -> Series:
    """Product of two power series, to the shorter one's order."""
    size = min(len(left), len(right))
    return [sum(map(mul, left[: i + 1], right[i::-1]), Decimal(0)) for i in range(size)]


@lru_cache(maxsize=16)
def _moments(
    law: Labels, step_ratio: float, order: int, power: int
) -> tuple[Series, list[list[list[Decimal]]], float]:
    """Moments of mu, and of the matrix-valued law in the directions beta (, W0^T a), w; and the unit of M."""
    labels, output = _label_moments(*law), law[2]
    ratio = Decimal(step_ratio)
    zero = Decimal(0)
    # In u = -1/zeta, g = u gamma(u) and g = u (1 - u E[y/(1 + phi0 y g)])^-1 ... read order by order:
    # gamma = 1 + (-u) ... ; the moments of mu are the coefficients of gamma up to sign.
    free = [labels[0, 0][power * (k + 1)] * ratio**k for k in range(order + 1)]
    # With s = 1/zeta, -g = s mhat(s), mhat = sum_k moment_k s^k; so -phi0 g = phi0 s mhat.
    powers = _free_powers(free, order)
    moment = powers[1]
    # Column i: coefficients of s^(i+1) of (-g)^(k+1), k = 0 … i.
    columns = [[powers[k + 1][i - k] for k in range(i + 1)] for i in range(order)]
    ratios = [ratio ** (k + 1) for k in range(order)]

    def form(i: int, j: int, degree: int) -> Series:
        """-v^T (M' - zeta)^-1 w = phi0 sum_k phi0^k E[f f' D^k] (-g)^(k+1), f f' = y^degree t^i t2^j, D = y^power."""
        factors = [ratios[k] * labels[i, j][power * k + degree] for k in range(order)]
        return [zero, *(sum(map(mul, factors, column), zero) for column in columns)]

    axes = [(1, 0)] if output is None else [(1, 0), (0, 1)]
    size = len(axes)

    def pair(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]

    # (zeta - M)^-1 on the axes is s (1 - s E[y t t'] - s V)^-1 with V = v^T (zeta - M')^-1 v'.
    block = [[form(*pair(a, b), 2 * power) for b in axes] for a in axes]
    inner = [
        [[labels[pair(a, b)][power], *block[i][j][1:order]] for j, b in enumerate(axes)]
        for i, a in enumerate(axes)
    ]
    axis = _inverse_one_minus([[[zero, *inner[i][j]] for j in range(size)] for i in range(size)], order)
    cross = [form(*a, power + 1) for a in axes]
    own = form(0, 0, 2)
    unit = float(labels[0, 0][2]) if power == 2 else 1.0
    return moment[:order], _matrix_moments(axis, cross, own), unit


def _matrix_moments(axis: list[list[Series]], cross: list[Series], own: Series) -> list[list[list[Decimal]]]:
    """Moments <u, M^k v> between the axes and w, which is brought to norm one: coefficients of <u, (zeta - M)^-1 v>.

    Given between the axes, and before the Schur complement for w with each axis and with itself.
    """
    zero, one = Decimal(0), Decimal(1)
    size, order = len(axis), len(own) - 1
    raw: list[list[Series]] = [[[] for _ in range(size + 1)] for _ in range(size + 1)]
    mixed = []
    for i in range(size):
        total = [zero] * (order + 1)
        for j in range(size):
            total = [a + b for a, b in zip(total, _times(cross[j], axis[j][i]), strict=True)]
        mixed.append(total)
    for i in range(size):
        for j in range(size):
            raw[i][j] = axis[i][j][:order]
        raw[i][size] = raw[size][i] = mixed[i][:order]
    quad = own[:]
    for i in range(size):
        quad = [a + b for a, b in zip(quad, [zero, *_times(mixed[i], cross[i])[:order]], strict=True)]
    raw[size][size] = quad[1 : order + 1]
    norm = raw[size][size][0].sqrt()
    scale = [one] * size + [one / norm if norm else zero]
    return [
        [[scale[i] * scale[j] * raw[i][j][k] for j in range(size + 1)] for i in range(size + 1)]
        for k in range(order)
    ]


def _free_powers(cumulants: Series, order: int) -> list[Series]:
    """Powers of m(s) = 1 + sum_k kappa_k s^k m(s)^k, the moments of the law with these free cumulants.

    Entry k has the coefficients of m(s)^k up to s^(order - k), those of m(s) itself up to s^order.
    """
    one, zero = Decimal(1), Decimal(0)
    # Filled in as the lower moments become known; the power 0 serves the first one.
    powers = [[one] + [zero] * order, [one], *([one] for _ in range(order - 1))]
    for n in range(1, order + 1):
        powers[1].append(sum((cumulants[k - 1] * powers[k][n - k] for k in range(1, n + 1)), zero))
        backwards = powers[1][::-1]
        for k in range(2, order - n + 1):
            powers[k].append(sum(map(mul, powers[k - 1], backwards), zero))
    return powers


def _inverse_one_minus(matrix: list[list[Series]], order: int) -> list[list[Series]]:
    """(1 - A(s))^-1 for a small matrix of series A without constant term, symmetric."""
    size = len(matrix)
    one, zero = Decimal(1), Decimal(0)
    result = [[[one if i == j else zero] for j in range(size)] for i in range(size)]
    for n in range(1, order + 1):
        fresh = [
            [
                sum(
                    (matrix[i][k][m] * result[k][j][n - m] for k in range(size) for m in range(1, n + 1)),
                    zero,
                )
                for j in range(size)
            ]
            for i in range(size)
        ]
        for i in range(size):
            for j in range(size):
                result[i][j].append(fresh[i][j])
    return result


def _gauss(moments: Sequence[Sequence[Sequence[Decimal]]], levels: int) -> tuple[Array, Array]:
    """Nodes and weight vectors of block Gauss quadrature from matrix moments, orders 0 … 2 levels.

    The Krylov vectors M^k v_a have the block Hankel matrix H as Gram matrix; orthonormalised by its Cholesky factor L
    they turn M into the small block tridiagonal matrix J with J^T = L^-1 L', L' being L without its first block row.
    Where the law has fewer points than asked for, the factor stops and so do the levels.
    """
    directions = len(moments[0])
    index = [(k, a) for k in range(levels + 1) for a in range(directions)]
    factor: list[list[Decimal]] = []
    for row, (i, a) in enumerate(index):
        line: list[Decimal] = []
        # Of the last block row only what lies left of the diagonal block is needed.
        for column in range(min(row + 1, levels * directions)):
            j, b = index[column]
            above = factor[column] if column < row else line
            value = moments[i + j][a][b] - sum(map(mul, line, above), Decimal(0))
            if column < row:
                line.append(value / above[column])
            elif value <= abs(moments[2 * i][a][a]) * Decimal(10) ** (-DIGITS // 2):
                return _gauss(moments, i) if i else _degenerate(directions)
            else:
                line.append(value.sqrt())
        factor.append(line)
    size = levels * directions
    jacobi = np.zeros((size, size))
    for column in range(size):
        block = column // directions * directions
        # Row by row of L J^T = L', whose column starts one block above the diagonal.
        found: dict[int, Decimal] = {}
        for row in range(max(0, block - directions), min(block + directions, size)):
            lower = factor[row + directions]
            value = lower[column] if column < len(lower) else Decimal(0)
            value -= sum((factor[row][k] * x for k, x in found.items()), Decimal(0))
            found[row] = value / factor[row][row]
            jacobi[row, column] = jacobi[column, row] = float(found[row])
    nodes, vectors = np.linalg.eigh(jacobi)
    start = np.zeros((directions, size))
    for a in range(directions):
        start[a, : a + 1] = [float(x) for x in factor[a]]
    return nodes, (start @ vectors).T


def _degenerate(directions: int) -> tuple[Array, Array]:
    return np.zeros(directions), np.eye(directions)
