"""Outliers of the label-weighted second moment of data."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from firststep.gaussian import function
from firststep.results import LabelOutliers
from firststep.simulate.spectra import find_outliers


def measured_label_outliers(
    inputs: ArrayLike, labels: ArrayLike, directions: ArrayLike | None = None, *, weight: Any = None
) -> LabelOutliers:
    r"""Outliers of :math:`X^\top \mathrm{diag}(T(y)) X/n_0` of a sample, found by the rule of `find_outliers`.

    A direction that the label depends on through an even function, or through a product, is invisible in X^T y and may
    stand out here. Single samples with large labels stand out as well: a bounded `weight` removes them.

    Parameters
    ----------
    inputs : array_like (n0, d)
        Whitened inputs: mean zero, covariance one.
    labels : array_like (n0,)
        y, of mean zero: what the mean adds, a multiple of X^T X, is no information.
    directions : array_like (d,) or (d, k), optional
        Unit vectors whose squared overlaps with the eigenvectors are wanted.
    weight : str, callable or Function, optional
        T, a function of the label; by default the label itself.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((4000, 100))
    >>> found = measured_label_outliers(x, x[:, 0] * x[:, 1], np.eye(100)[:, :2], weight="tanh(x)")
    >>> print(found.eigenvalues.round(1), (found.captured > 0.7).tolist())
    [ 0.5 -0.5] [True, True]
    """
    x, y = np.asarray(inputs, dtype=float), np.asarray(labels, dtype=float)
    if x.ndim != 2 or y.shape != (len(x),):
        raise ValueError(f"inputs (n0, d) and labels (n0,) are wanted, got shapes {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("inputs and labels must be finite: remove the rows that are not")
    if weight is not None:
        y = np.asarray(function(weight)(y))
    values, vectors = np.linalg.eigh(x.T @ (y[:, None] * x) / len(x))
    above, below = find_outliers(values), find_outliers(-values)
    index = [*range(len(values) - 1, len(values) - 1 - above.count, -1), *range(below.count - 1, -1, -1)]
    given = np.zeros((len(values), 0)) if directions is None else np.asarray(directions, dtype=float)
    given = given.reshape(len(values), -1)
    chosen = vectors[:, index].T
    overlaps = (chosen @ given) ** 2
    frame = np.linalg.qr(given)[0]
    return LabelOutliers(
        (-below.edge, above.edge), values[index], overlaps, ((chosen @ frame) ** 2).sum(axis=1), chosen
    )
