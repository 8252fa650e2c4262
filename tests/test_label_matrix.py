"""The label-weighted second moment: predicted outliers against drawn matrices and known limits."""

import math

import numpy as np
import pytest

from firststep import Problem, Sizes, label_outliers, measured_label_outliers
from firststep.theory.spectra.label_matrix import _capped

DIM = 150


def drawn(problem, samples, weight, rng):
    """Largest eigenvalue of one drawn matrix and the share of its vector in the teacher's directions."""
    count = problem.teacher.directions
    x = rng.standard_normal((samples, DIM))
    y = problem.teacher.at(x[:, :count]) + problem.noise_std * rng.standard_normal(samples)
    if weight:
        y = np.tanh(y)
    values, vectors = np.linalg.eigh(x.T @ (y[:, None] * x) / samples)
    return values[-1], float((vectors[:count, -1] ** 2).sum())


def too_far(found, mean, stderr):
    """Whether a prediction is not what was drawn: eigenvalue to 4 %, overlap to 0.04, and 4 standard errors."""
    wanted = np.array([found.eigenvalues[0], found.captured[0]])
    return bool(np.any(np.abs(wanted - mean) > 4 * stderr + np.array([0.04 * mean[0], 0.04])))


@pytest.mark.parametrize("ratio", [5, 20])
@pytest.mark.parametrize(
    ("teacher", "weight"),
    [
        ("h1 + h2/sqrt(2)", None),
        ("h2", None),
        ("relu", None),
        ("t1 + t1*t2", "tanh(x)"),
        ("t1*t2 + t1*t3", None),
    ],
)
def test_outliers_against_drawn_matrices(teacher, weight, ratio):
    problem, sizes = Problem("relu", teacher, noise_std=0.3), Sizes(1000, DIM, 100, ratio * DIM)
    rng = np.random.default_rng(6)
    sample = np.array([drawn(problem, ratio * DIM, weight, rng) for _ in range(16)])
    mean, stderr = sample.mean(axis=0), sample.std(axis=0, ddof=1) / math.sqrt(len(sample))
    assert not too_far(label_outliers(problem, sizes, weight=weight), mean, stderr)
    if ratio == 20:
        other = label_outliers(problem, Sizes(1000, DIM, 100, 10 * DIM), weight=weight)
        assert too_far(other, mean, stderr)


def test_no_outlier_with_few_samples():
    assert (
        len(label_outliers(Problem("relu", "relu", noise_std=0.3), Sizes(100, DIM, 100, DIM)).eigenvalues)
        == 0
    )


def test_many_samples_show_the_mean():
    # E M = E[y t^2] beta beta^T = 2 c_2, alone.
    found = label_outliers(Problem("relu", "h1 + h2/sqrt(2)"), Sizes(100, 10, 10, 10**9))
    assert found.eigenvalues == pytest.approx([math.sqrt(2)], rel=1e-4)
    assert found.captured == pytest.approx([1], abs=1e-4)
    two = label_outliers(Problem("relu", "t1*t2"), Sizes(100, 10, 10, 10**9))
    assert two.eigenvalues == pytest.approx([1, -1], rel=1e-3)
    assert two.overlaps == pytest.approx(np.full((2, 2), 0.5), abs=1e-3)


def test_labels_that_are_noise_have_a_semicircle():
    # With n0 far above d and labels of unit variance, the bulk ends at 2 sqrt(phi0).
    found = label_outliers(Problem("relu", "0*x", noise_std=1.0), Sizes(100, 10, 10, 10**6))
    edge = 2 * math.sqrt(1e-5)
    assert found.edges == pytest.approx((-edge, edge), rel=0.02)
    assert len(found.eigenvalues) == 0


def test_measured_on_data():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3000, DIM))
    y = x[:, 0] * x[:, 1]
    found = measured_label_outliers(x, y, np.eye(DIM)[:, :2], weight="tanh(x)")
    predicted = label_outliers(Problem("relu", "t1*t2"), Sizes(100, DIM, 10, 3000), weight="tanh(x)")
    assert found.eigenvalues == pytest.approx(predicted.eigenvalues, rel=0.08)
    assert found.captured == pytest.approx(predicted.captured, abs=0.08)
    assert found.edges == pytest.approx(predicted.edges, rel=0.06)
    assert np.allclose((found.vectors**2).sum(axis=1), 1)
    # Labels that have nothing to do with the inputs show nothing.
    assert len(measured_label_outliers(x, rng.permutation(y), weight="tanh(x)").eigenvalues) == 0


def test_bad_data_are_named():
    with pytest.raises(ValueError, match="shapes"):
        measured_label_outliers(np.ones((5, 3)), np.ones(4))
    with pytest.raises(ValueError, match="finite"):
        measured_label_outliers(np.full((5, 3), np.nan), np.ones(5))


def test_cap_keeps_the_mean_square_of_each_side():
    labels, weights = np.array([-9.0, -1.0, 0.5, 4.0, 10.0]), np.array([0.01, 0.49, 0.48, 0.01, 0.01])
    capped = _capped(labels, weights, 0.015)
    assert capped[4] == capped[3] == pytest.approx(math.sqrt((16 + 100) / 2))
    assert capped[2] == 0.5
    assert weights[:2] @ capped[:2] ** 2 == pytest.approx(weights[:2] @ labels[:2] ** 2)
