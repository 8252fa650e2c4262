"""The law of the gradient's part that is linear in the weights, against moments, drawn matrices and its equations."""

import math

import numpy as np
import pytest

from firststep.gaussian import expectation, function
from firststep.theory.rest import noise_covariance, point_law, rest_law

TEACHERS = ("h1", "h1 + h2/sqrt(2)", "relu", "sign", "tanh(2*x)")


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("output", [None, (0.5, 0.1)])
def test_weights_and_first_moments(teacher, output):
    s, noise, ratio = function(teacher), 0.3, 0.7
    law = rest_law(s, noise, ratio, output, 9)
    added = noise + (output[0] ** 2 + output[1] if output else 0.0)
    square = s.second_moment + added
    assert law.weights.sum() == pytest.approx(1, abs=1e-12)
    assert np.all(law.weights > 0)
    # The special directions are orthonormal.
    assert np.allclose(
        law.special_vectors.T @ law.special_vectors, np.eye(law.special_vectors.shape[1]), atol=1e-10
    )
    # Truncating the teacher's argument at 6 costs 1e-8.
    assert law.mean == pytest.approx(0, abs=1e-7)
    assert law.second_moment == pytest.approx(ratio * square, rel=1e-6)
    assert law.weights @ law.nodes**2 == pytest.approx(law.second_moment, rel=1e-10)
    # <beta, M beta> = E[y t^2], <beta, M^2 beta> = E[y t^2]^2 + phi0 E[y^2 t^2]
    first = (law.special_vectors.T * law.special_nodes) @ law.special_vectors
    second = (law.special_vectors.T * law.special_nodes**2) @ law.special_vectors
    along = 2 * float(s.hermite(3)[2])
    assert first[0, 0] == pytest.approx(along, abs=1e-5)
    tilted = expectation(lambda t: (s(t) * t) ** 2, kinks=s.kinks) + added
    assert second[0, 0] == pytest.approx(along**2 + ratio * tilted, rel=1e-5)


@pytest.mark.parametrize("teacher", ["h1 + h2/sqrt(2)", "tanh(2*x)"])
def test_the_stieltjes_transform_solves_its_equation(teacher):
    s, noise, ratio = function(teacher), 0.2, 0.5
    law = rest_law(s, noise, ratio, None, 24)
    zeta = 1.5 + 3.0j
    g = (law.weights / (law.nodes - zeta)).sum()
    t, weights = np.polynomial.hermite_e.hermegauss(120)
    eps, eps_weights = np.polynomial.hermite_e.hermegauss(60)
    y = s(t)[:, None] + math.sqrt(noise) * eps
    mean = (weights[:, None] * eps_weights * (y / (1 + ratio * y * g))).sum() / (
        weights.sum() * eps_weights.sum()
    )
    assert abs(g * (mean - zeta) - 1) < 5e-5
    assert abs(1.1 * g * (mean - zeta) - 1) > 0.05


def test_more_levels_refine_the_fewer():
    coarse, fine = (rest_law(function("relu"), 0.3, 0.5, (0.5, 0.1), levels) for levels in (6, 12))
    for degree in range(12):
        powers = [law.weights @ law.nodes**degree for law in (coarse, fine)]
        assert powers[0] == pytest.approx(powers[1], rel=1e-9, abs=1e-9)
        blocks = [
            (law.special_vectors.T * law.special_nodes**degree) @ law.special_vectors
            for law in (coarse, fine)
        ]
        assert np.allclose(*blocks, rtol=1e-8, atol=1e-8 * np.abs(blocks[1]).max())


def drawn(teacher, noise, dim, samples, rng, c1=None):
    """One matrix M with its directions beta (, W0^T a), w: resolvent forms at two points, and traces."""
    s = function(teacher)
    beta = np.zeros(dim)
    beta[0] = 1
    x = rng.standard_normal((samples, dim))
    y = s(x[:, 0]) + math.sqrt(noise) * rng.standard_normal(samples)
    axes = [beta]
    if c1 is not None:
        # An initial output of order one with c_1 and a rest that is noise.
        theta = np.zeros(dim)
        theta[1] = 1
        y = y - c1 * x[:, 1] - math.sqrt(0.1) * rng.standard_normal(samples)
        axes.append(theta)
    b = x.T @ y / samples
    for axis in axes:
        b = b - (b @ axis) * axis
    axes.append(b / np.linalg.norm(b))
    values, vectors = np.linalg.eigh(x.T @ (y[:, None] * x) / samples)
    overlaps = np.array(axes) @ vectors
    return measured(values, np.full(dim, 1 / dim), values, overlaps.T)


def measured(nodes, weights, special_nodes, special_vectors):
    """Real and imaginary parts of transforms of the scalar law and of the matrix-valued one."""
    numbers = []
    for zeta in (0.5 + 2.0j, -1.0 + 1.5j):
        numbers.append((weights / (nodes - zeta)).sum())
        block = (special_vectors.T / (special_nodes - zeta)) @ special_vectors
        numbers.extend(block[np.triu_indices(len(block))])
    return np.array([[x.real, x.imag] for x in numbers]).ravel()


def too_far(law, mean, stderr):
    """Whether a law is not the one that was drawn from."""
    found = measured(law.nodes, law.weights, law.special_nodes, law.special_vectors)
    return bool(np.any(np.abs(found - mean) > 4.5 * stderr + 4e-3))


@pytest.mark.parametrize(("teacher", "c1"), [("h1 + h2/sqrt(2)", None), ("relu", 0.5)])
def test_law_against_drawn_matrices(teacher, c1):
    rng = np.random.default_rng(3)
    dim, samples, noise = 300, 600, 0.2
    found = np.array([drawn(teacher, noise, dim, samples, rng, c1) for _ in range(24)])
    mean, stderr = found.mean(axis=0), found.std(axis=0, ddof=1) / math.sqrt(len(found))
    output = None if c1 is None else (c1, 0.1)
    assert not too_far(rest_law(function(teacher), noise, 0.5, output, 20), mean, stderr)
    # Other ratios, noises, teachers and independent directions are told apart.
    assert too_far(rest_law(function(teacher), noise, 0.6, output, 20), mean, stderr)
    assert too_far(rest_law(function(teacher), 2 * noise, 0.5, output, 20), mean, stderr)
    assert too_far(rest_law(function("tanh"), noise, 0.5, output, 20), mean, stderr)


def test_no_rest():
    law = point_law(3)
    assert law.mean == law.second_moment == 0
    assert np.array_equal(law.special_vectors, np.eye(3))


def test_a_law_of_few_points():
    # Labels that are always 0 leave M = 0 wherever one looks.
    law = rest_law(function("0*x"), 0.0, 0.5, None, 6)
    assert np.allclose(law.nodes, 0)
    assert law.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("output", [None, (0.5, 0.1)])
def test_covariance_of_the_remainder(output):
    law = rest_law(function("tanh(2*x)"), 0.2, 0.5, output, 9, power=2)
    first = (law.special_vectors.T * law.special_nodes) @ law.special_vectors
    assert law.mean == pytest.approx(1, rel=1e-9)
    assert np.allclose(first, noise_covariance(function("tanh(2*x)"), 0.2, 0.5, output), atol=1e-6)
    assert not np.allclose(first, noise_covariance(function("tanh(2*x)"), 0.2, 0.55, output), atol=1e-3)


def test_covariance_against_drawn_labels():
    rng = np.random.default_rng(5)
    dim, samples, found = 300, 600, []
    for _ in range(40):
        x = rng.standard_normal((samples, dim))
        y = np.tanh(2 * x[:, 0]) + 0.5 * rng.standard_normal(samples)
        w = x.T @ y / samples
        w[0] = 0
        axes = np.stack([np.eye(dim)[0], w / np.linalg.norm(w)])
        projected = x @ axes.T
        found.append((projected.T * y**2) @ projected / (y**2).sum())
    mean, stderr = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / math.sqrt(len(found))
    assert np.all(np.abs(mean - noise_covariance(function("tanh(2*x)"), 0.25, 0.5, None)) < 4 * stderr + 0.01)
    assert np.any(np.abs(mean - np.eye(2)) > 10 * stderr + 0.1)
