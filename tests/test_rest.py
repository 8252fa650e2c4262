"""The law of the gradient's part that is linear in the weights, against moments, drawn matrices and its equations."""

import math

import numpy as np
import pytest

from firststep import Problem, Sizes, predict
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


HEAVY = "h1 + h4/10"


def drawn_rest(teacher, noise, dim, samples, rng):
    """One M: its eigenvalues and their moments, the remainder's share at each, and its excess in beta and w."""
    x = rng.standard_normal((samples, dim))
    y = function(teacher)(x[:, 0]) + math.sqrt(noise) * rng.standard_normal(samples)
    w = x.T @ y / samples
    w[0] = 0
    axes = np.stack([np.eye(dim)[0], w / np.linalg.norm(w)])
    values, vectors = np.linalg.eigh(x.T @ (y[:, None] * x) / samples)
    share = (y**2 @ (x @ vectors) ** 2) / (y**2).sum()
    return values, share, axes @ vectors


def test_labels_of_finitely_many_samples_keep_second_moments():
    s = function(HEAVY)
    infinite, finite = (rest_law(s, 0.3, 0.7, (0.5, 0.1), 9, 1, count) for count in (None, 400))
    assert finite.second_moment == pytest.approx(infinite.second_moment, rel=1e-4)
    assert finite.weights.sum() == pytest.approx(1, abs=1e-12)
    assert finite.nodes.max() < 0.3 * infinite.nodes.max()
    first = [(law.special_vectors.T * law.special_nodes) @ law.special_vectors for law in (infinite, finite)]
    assert abs(first[0][0, 0] - first[1][0, 0]) < 0.03
    # The direction that the initial output adds: <theta, M theta> = E[y t2^2] = E y.
    assert np.allclose(first[0][1, :2], first[1][1, :2], atol=0.02)


def test_many_samples_have_the_infinite_law():
    s = function("h1 + h2/sqrt(2)")
    infinite, many = (rest_law(s, 0.3, 0.7, None, 9, 1, count) for count in (None, 10**10))
    assert np.allclose(infinite.nodes, many.nodes, rtol=1e-12)
    light = rest_law(s, 0.3, 0.7, None, 9, 1, 1000)
    for degree in (2, 3):
        powers = [law.weights @ law.nodes**degree for law in (infinite, light)]
        assert powers[1] == pytest.approx(powers[0], rel=0.01)


@pytest.mark.parametrize(("teacher", "noise"), [(HEAVY, 0.0), ("h1+h3/sqrt(6)", 0.2)])
def test_ends_of_the_law_at_finite_size(teacher, noise):
    rng = np.random.default_rng(8)
    dim, samples = 240, 160
    tops = [drawn_rest(teacher, noise, dim, samples, rng)[0][[0, -1]] for _ in range(40)]
    law = rest_law(function(teacher), noise, dim / samples, None, 12, 1, samples)
    far = rest_law(function(teacher), noise, dim / samples, None, 12)
    # What is drawn has a spread; a law beyond its largest members is none of this size.
    low, high = np.quantile(tops, [0.05, 0.95], axis=0)
    assert 0.6 * high[0] > law.nodes.min() > 1.2 * low[0]
    assert 0.7 * low[1] < law.nodes.max() < 1.1 * high[1]
    assert far.nodes.max() > 1.5 * high[1]


@pytest.mark.parametrize("teacher", [HEAVY, "h1 + h2/sqrt(2)", "tanh(2*x)"])
def test_share_of_the_remainder_against_drawn_matrices(teacher):
    rng = np.random.default_rng(4)
    dim, samples, noise = 300, 400, 0.2
    law = rest_law(function(teacher), noise, dim / samples, None, 9, 1, samples)
    assert law.weights @ law.share == pytest.approx(1, rel=1e-9)
    quadratic = np.polyfit(law.nodes, law.share, 2, w=np.sqrt(law.weights))
    wrong, spread = [], []
    for _ in range(4):
        values, share, _ = drawn_rest(teacher, noise, dim, samples, rng)
        near = np.abs(values) < 2.5 * math.sqrt(law.second_moment)
        wrong.append(np.mean((np.polyval(quadratic, values) - share)[near] ** 2))
        spread.append(np.var(share[near]))
    assert np.mean(wrong) < 0.15 * np.mean(spread)


def test_share_and_excess_make_the_covariance():
    law = rest_law(function("relu"), 0.2, 0.5, (0.5, 0.1), 9, 1, 700)
    whole = (law.special_vectors.T * law.special_share) @ law.special_vectors + law.noise_excess
    assert np.allclose(whole, noise_covariance(function("relu"), 0.2, 0.5, (0.5, 0.1), 700), atol=1e-9)
    assert np.abs(law.noise_excess).max() < 0.5 * np.abs(whole - np.eye(3)).max()


def test_errors_with_heavy_labels():
    # Simulated, 200 replicas with controls each: 1.982(13), 1.962(11); 64 replicas at twice the size: 1.947(12).
    problem = Problem(
        "x*sigmoid(3*x)", HEAVY, rows="sphere", readout="rademacher", initial_output="vanishing"
    )
    for factor, simulated, stderr in ((0.5, 1.982, 0.013), (1, 1.962, 0.011), (2, 1.947, 0.012)):
        sizes = Sizes(*(round(factor * size) for size in (827, 707, 594, 478)))
        found = predict(problem, sizes, 14.7329 * math.sqrt(factor), ridges=0.00129).test_error[0, 0]
        assert abs(found - simulated) < 3 * stderr
        assert abs(found - 1.767) > 8 * stderr
