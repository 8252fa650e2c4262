"""Features and the gradient step of the first layer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy import linalg

from firststep.arrays.library import Matrix, activated, activated_slope, host, is_numpy, like
from firststep.gaussian import Array, Function

# Bytes of a block that is worked on elementwise: it should stay in the cache.
CHUNK_BYTES = 2**17


def features(inputs: Matrix, weights: Matrix, activation: Function) -> Matrix:
    r"""Feature matrix :math:`F = \sigma(X W^\top)`, shape (n, N).

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> print(features(np.eye(2), np.array([[1.0, -2.0]]), function("identity")).ravel().tolist())
    [1.0, -2.0]
    """
    result = cast(Matrix, inputs @ weights.T)
    if not is_numpy(result):
        return cast(Matrix, activated(activation, result))
    apply = _in_place(activation)
    for rows in _chunks(result):
        apply(result[rows])
    return result


def features_after(
    before: Matrix, change: Matrix, step_size: float, activation: Function, out: Matrix | None = None
) -> Matrix:
    r"""Features :math:`\sigma(X W_0^\top + \eta X G^\top)` from the two products (n, N).

    With NumPy into `out` if given; other libraries' arrays are new ones.

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> print(features_after(np.ones((1, 2)), np.eye(1, 2), 3.0, function("identity")).tolist())
    [[4.0, 1.0]]
    """
    factor = float(step_size)
    if not is_numpy(before):
        return cast(Matrix, activated(activation, before + factor * change))
    result = np.empty_like(before) if out is None else out
    apply = _in_place(activation)
    for rows in _chunks(before):
        chunk = result[rows]
        np.multiply(change[rows], factor, out=chunk)
        chunk += before[rows]
        apply(chunk)
    return result


def _chunks(values: Matrix) -> Iterator[slice]:
    """Rows that stay in the cache while they are worked on."""
    size = max(1, CHUNK_BYTES // max(1, values.itemsize * values.shape[1]))
    for start in range(0, len(values), size):
        yield slice(start, start + size)


def _in_place(activation: Function) -> Callable[[Matrix], None]:
    """The activation as a function that overwrites its argument."""
    mean = activation.mean if activation.centred else 0.0

    def relu(points: Matrix) -> None:
        np.maximum(points, 0, out=points)
        if mean:
            points -= mean

    def any_other(points: Matrix) -> None:
        points[...] = activation(points)

    if activation.spec == "tanh" and not mean:
        return _tanh
    return relu if activation.spec == "relu" else any_other


def _tanh(points: Matrix) -> None:
    # 1 - 2/(1 + exp(2z)), right to rounding of 1: NumPy's exp takes at most half the time of its tanh.
    points += points
    with np.errstate(over="ignore"):
        np.exp(points, out=points)
    points += 1.0
    np.divide(-2.0, points, out=points)
    points += 1.0


@dataclass(frozen=True, eq=False)
class Step:
    """What the first sample says about the weights.

    Attributes
    ----------
    gradient : ndarray (N, d)
        G, minus the gradient of half the mean squared error; the weights after the step are W0 + eta G.
    direction : ndarray (d,)
        b = X^T (y - f0)/n0, of which c_1 a b^T is the rank-one part of G.
    """

    gradient: Matrix
    direction: Matrix


def gradient_step(
    inputs: Matrix,
    labels: Matrix,
    weights: Matrix,
    readout: Matrix,
    activation: Function,
    output_scale: float,
) -> Step:
    r"""Closed-form gradient of the first layer and the direction of its rank-one part [Ba22]_, [Moniri24]_.

    .. math:: G = \tfrac{1}{n_0}\left[a (y - f_0)^\top \circ \sigma'(W_0 X^\top)\right] X, \quad
        f_0 = \tau \sigma(X W_0^\top) a, \quad b = X^\top (y - f_0)/n_0

    Parameters
    ----------
    inputs : ndarray (n0, d)
        X.
    labels : ndarray (n0,)
        y.
    weights : ndarray (N, d)
        :math:`W_0`.
    readout : ndarray (N,)
        a.
    activation : Function
        :math:`\sigma`.
    output_scale : float
        :math:`\tau`: 1/sqrt(N) for a vanishing initial output, 1 for one of order one.
    """
    count = labels.shape[0]
    products = cast(Matrix, inputs @ weights.T)
    if is_numpy(products):
        residual = labels.copy()
        values_and_slopes = _slopes_in_place(activation)
        for rows in _chunks(products):
            chunk = products[rows]
            values, slopes = values_and_slopes(chunk)
            residual[rows] -= output_scale * (values @ readout)
            np.multiply(slopes, residual[rows, None], out=chunk)
    else:
        residual = labels - output_scale * (activated(activation, products) @ readout)
        products = activated_slope(activation, products) * residual[:, None]
    gradient = products.T @ inputs
    gradient *= (readout / count)[:, None]
    return Step(gradient, inputs.T @ residual / count)


def _slopes_in_place(activation: Function) -> Callable[[Matrix], tuple[Matrix, Matrix]]:
    """Values and slopes of the activation; the argument may be overwritten."""

    def tanh(points: Matrix) -> tuple[Matrix, Matrix]:
        _tanh(points)
        slopes = points * points
        return points, np.subtract(1.0, slopes, out=slopes)

    def any_other(points: Matrix) -> tuple[Matrix, Matrix]:
        return activation(points), activation.derivative(points)

    return tanh if _in_place(activation) is _tanh else any_other


def gradient_rule(step: Step, root: Array | None, readout: Matrix) -> Step:
    """The plain step for inputs S^(1/2) g, given what it is for g: every column times an eigenvalue of S."""
    if root is None:
        return step
    squares = like(root**2, step.gradient)
    return Step(step.gradient * squares, step.direction * like(root**2, step.direction))


def whitened_rule(step: Step, root: Array | None, readout: Matrix) -> Step:
    """The gradient times S^-1, which in whitened coordinates is the gradient for g itself."""
    return step


def sign_rule(step: Step, root: Array | None, readout: Matrix) -> Step:
    """Signs of the gradient, in the basis in which S is diagonal, with its norm."""
    return _reshaped(step, root, readout, np.sign)


def muon_rule(step: Step, root: Array | None, readout: Matrix) -> Step:
    """Polar factor of the gradient, whose singular values are all one, with its norm."""
    return _reshaped(step, root, readout, _polar)


def _reshaped(step: Step, root: Array | None, readout: Matrix, shape: Callable[[Array], Array]) -> Step:
    """A step along another matrix of the gradient's norm; its direction is what the neurons share by their readout."""
    scale = np.ones(step.gradient.shape[1]) if root is None else root
    gradient = host(step.gradient) * scale
    shaped = shape(gradient)
    size = np.linalg.norm(shaped)
    change = shaped * (np.linalg.norm(gradient) / (size if size else 1.0)) * scale
    a = host(readout)
    return Step(like(change, step.gradient), like(a @ change / (a @ a), step.direction))


def _polar(matrix: Array) -> Array:
    left, values, right = linalg.svd(matrix, full_matrices=False, check_finite=False)
    kept = values > values[0] * 1e-10 if values[0] > 0 else np.zeros(len(values), dtype=bool)
    return np.asarray(left[:, kept] @ right[kept])
