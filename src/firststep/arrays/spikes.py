"""Features with explicit spikes: the network's own approximations and their Gaussian equivalent."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from firststep.arrays.library import Matrix, double, host, like
from firststep.arrays.population import Neurons, Teacher, _cosines, linear_test_error
from firststep.arrays.ridge import RidgePath, ridge_path
from firststep.arrays.scaled import ScaledActivation
from firststep.arrays.step import features
from firststep.gaussian import Array, Function, MultiFunction, gauss_hermite, monomial_in_hermite


def spike_coefficients(activation: Function, step_size: float, count: int) -> Array:
    r"""Coefficients :math:`c_1^k c_k \eta^k` of the network's own spikes, k = 1 … count.

    [Moniri24, spectrum of the features].

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> print(spike_coefficients(function("relu"), 2.0, 3).round(4).tolist())
    [0.5, 0.1995, 0.0]
    """
    c = activation.hermite(count + 1)
    powers = np.arange(1, count + 1)
    return cast(Array, (c[1] * step_size) ** powers * c[1:])


@dataclass(frozen=True, eq=False)
class SpikedModel:
    r"""Features before the step, or their Gaussian equivalent, to which spikes can be added.

    .. math:: F_\ell = F_0 + \sum_{k=1}^{\ell} \theta_k\, (\tilde X b)^{\circ k} (a^{\circ k})^\top

    [Moniri24, spectrum of the features]. On all inputs the fitted model is
    :math:`\hat a \cdot \varphi(x) + \sum_k \gamma_k z^k` with :math:`z = x \cdot b/|b|` and
    :math:`\gamma_k = \theta_k |b|^k\, a^{\circ k} \cdot \hat a`, so its
    test error is exact: it needs the averages of the monomials with the features and the labels.

    Attributes
    ----------
    base : ndarray (n, N)
        :math:`F_0`.
    projections : ndarray (n,)
        :math:`\tilde X b`.
    readout : ndarray (N,)
        a, before the step.
    norm : float
        :math:`|b|`.
    base_error : callable
        Test errors (R,) of readouts (R, N) on the base features alone.
    feature_moments : ndarray (l, N)
        :math:`E[\varphi_j(x) z^k]`.
    label_moments : ndarray (l,)
        :math:`E[y z^k]`.
    """

    base: Matrix
    projections: Array
    readout: Array
    norm: float
    base_error: Callable[[Array], Array]
    feature_moments: Array
    label_moments: Array

    def features(self, coefficients: ArrayLike) -> Matrix:
        r"""Feature matrix (n, N) with the spike coefficients :math:`\theta_1, \theta_2, \dots`.

        `spike_coefficients` gives the network's own; large ones give the staircase's limit.
        """
        result = self.base + 0.0
        for k, coefficient in enumerate(np.asarray(coefficients, dtype=np.float64), start=1):
            if coefficient:
                left = like(coefficient * self.projections**k, result)
                result += left[:, None] * like(self.readout**k, result)[None, :]
        return result

    def fit(self, labels: Matrix, ridges: ArrayLike, coefficients: ArrayLike = ()) -> tuple[RidgePath, Array]:
        """Ridge fits with the given spikes, and their test errors (R,)."""
        strengths = np.asarray(coefficients, dtype=np.float64)
        count = len(strengths)
        if count > len(self.label_moments):
            raise ValueError(
                f"this model was made for {len(self.label_moments)} spikes, got {count} coefficients"
            )
        path = ridge_path(self.features(strengths), labels, ridges)
        powers = np.arange(1, count + 1)
        monomials = (path.coefficients @ self.readout[:, None] ** powers) * strengths * self.norm**powers
        mixed = path.coefficients @ self.feature_moments[:count].T - self.label_moments[:count]
        square = np.einsum("rj,jk,rk->r", monomials, _monomial_moments(count), monomials)
        return path, self.base_error(path.coefficients) + square + 2 * np.einsum("rk,rk->r", monomials, mixed)


@dataclass(frozen=True, eq=False)
class OneStep:
    """A network before its step, the direction of that, and the teacher.

    Attributes
    ----------
    weights : ndarray (N, d)
        :math:`W_0`.
    readout : ndarray (N,)
        a.
    direction : ndarray (d,)
        b.
    beta : ndarray (d,) or (d, k)
        The teacher's direction, or several.
    activation, teacher : Function
        The network's and the teacher's functions.
    noise_variance : float
        Variance of the label noise.
    """

    weights: Matrix
    readout: Matrix
    direction: Array
    beta: Array
    activation: Function
    teacher: Teacher
    noise_variance: float


def spiked_network(inputs: Matrix, before: OneStep, spikes: int = 3) -> SpikedModel:
    """The network's own features before the step, ready for up to `spikes` spikes along `direction` b."""
    weights, direction, beta = before.weights, before.direction, before.beta
    activation, teacher = before.activation, before.teacher
    rows = double(weights)
    norm = float(np.linalg.norm(direction))
    neurons = Neurons.of(rows @ rows.T, host(rows @ like(beta, rows)))
    cosines = _cosines(host(rows @ like(direction, rows)) / norm, neurons.scales)
    degrees = np.arange(spikes + 1)
    series = ScaledActivation(activation, neurons.scales).series(spikes + 1) * cosines[:, None] ** degrees

    def base_error(coefficients: Array) -> Array:
        return neurons.test_error(coefficients, activation, teacher, before.noise_variance)

    return SpikedModel(
        features(inputs, weights, activation),
        host(double(inputs) @ like(direction, rows)),
        host(before.readout),
        norm,
        base_error,
        _normalised_monomials(spikes) @ series.T,
        _label_moments(spikes, direction @ beta / norm, teacher),
    )


def gaussian_equivalent(inputs: Matrix, noise: Matrix, before: OneStep, spikes: int = 3) -> SpikedModel:
    r"""Linear features plus independent noise in place of the network's [Moniri24]_.

    .. math:: \varphi(x) = c_1 W_0 x + c_{>1} g, \quad
        E(y - \hat a \cdot \varphi)^2 = E(y - c_1 \hat a^\top W_0 x)^2 + c_{>1}^2 |\hat a|^2

    `noise` (n, N) is g on the samples of the fit; the other arguments are those of `spiked_network`.
    """
    weights, direction, beta = before.weights, before.direction, before.beta
    activation, teacher = before.activation, before.teacher
    slope, rest = float(activation.hermite(2)[1]), activation.tail(2)
    rows = double(weights)
    norm = float(np.linalg.norm(direction))
    base = inputs @ weights.T
    base *= slope
    base += math.sqrt(rest) * noise

    def base_error(coefficients: Array) -> Array:
        linear = linear_test_error(
            slope * host(like(coefficients, rows) @ rows), beta, teacher, before.noise_variance
        )
        return cast(Array, linear + rest * np.einsum("rn,rn->r", coefficients, coefficients))

    return SpikedModel(
        base,
        host(double(inputs) @ like(direction, rows)),
        host(before.readout),
        norm,
        base_error,
        # A linear feature meets a monomial in the latter's part along H_1 only.
        np.multiply.outer(
            _normalised_monomials(spikes)[:, 1], slope * host(rows @ like(direction, rows)) / norm
        ),
        _label_moments(spikes, direction @ beta / norm, teacher),
    )


def _normalised_monomials(count: int) -> Array:
    """Coefficients (count, count + 1) of z, z^2, … in the normalised Hermite polynomials."""
    roots = [math.sqrt(math.factorial(k)) for k in range(count + 1)]
    return monomial_in_hermite(count + 1)[1:] * roots


def _label_moments(count: int, alignment: Array, teacher: Teacher) -> Array:
    """E[y z^k], k = 1 … count, for z with the given correlation with each of the teacher's directions."""
    roots = [math.sqrt(math.factorial(k)) for k in range(count + 1)]
    if isinstance(teacher, MultiFunction):
        known = teacher.hermite_along(alignment, count + 1) * roots
    else:
        known = teacher.hermite(count + 1) * roots * float(alignment) ** np.arange(count + 1)
    return _normalised_monomials(count) @ known


def _monomial_moments(count: int) -> Array:
    """E z^(j+k), j, k = 1 … count."""
    nodes, weights = gauss_hermite(count + 1)
    powers = nodes ** np.arange(1, count + 1)[:, None]
    return (powers * weights) @ powers.T


def top_singular(weights: Matrix, gradient: Matrix, step_size: float) -> tuple[float, Array]:
    """Largest singular value of W0 + eta G, and its input-side singular vector (d,) of unit norm.

    Examples
    --------
    >>> value, vector = top_singular(np.diag([1.0, 3.0, 2.0]), np.zeros((3, 3)), 0.0)
    >>> round(value, 12), np.abs(vector).round(6).tolist()
    (3.0, [0.0, 1.0, 0.0])
    """
    # Imported here because it takes as long as the rest of this module and few runs need it.
    from scipy.sparse.linalg import LinearOperator, eigsh

    after = host(weights) + step_size * host(gradient)
    dim = after.shape[1]
    if min(after.shape) < 16:
        _, values, right = linalg.svd(after, full_matrices=False)
        return float(values[0]), cast(Array, right[0])
    product = LinearOperator((dim, dim), matvec=lambda v: after.T @ (after @ v.ravel()), dtype=np.float64)
    # A fixed start keeps the iteration, and with it every digit, the same from run to run.
    start = np.cos(np.arange(dim) + 1.0)
    values, vectors = eigsh(product, k=1, which="LA", v0=start, tol=1e-10)
    return math.sqrt(float(values[0])), cast(Array, vectors[:, 0])


def top_directions(weights: Array, count: int) -> tuple[Array, Array]:
    """Largest singular values (count,) and their input-side singular vectors (count, d); zeros where there are fewer.

    Examples
    --------
    >>> values, vectors = top_directions(np.diag([1.0, 3.0, 2.0]), 2)
    >>> values.round(12).tolist(), np.abs(vectors).round(6).tolist()
    ([3.0, 2.0], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    """
    from scipy.sparse.linalg import eigsh

    dim = weights.shape[1]
    values, vectors = np.zeros(count), np.zeros((count, dim))
    gram = weights.T @ weights
    if dim < 8 * count:
        squares, columns = linalg.eigh(gram)
    else:
        squares, columns = eigsh(
            gram, k=count, which="LA", v0=np.cos(np.arange(dim) + 1.0), ncv=max(40, 4 * count)
        )
    order = np.argsort(squares)[::-1][:count]
    values[: len(order)] = np.sqrt(np.maximum(squares[order], 0.0))
    vectors[: len(order)] = columns[:, order].T
    return values, vectors
