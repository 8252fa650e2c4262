"""Baselines: linear predictors and the best smoothed neuron."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from firststep import Problem, Sizes, predict
from firststep.gaussian import gauss_hermite
from firststep.theory.limits.bounds import (
    best_linear_error,
    best_linear_ridge,
    best_neuron,
    linear_ridge,
    linear_values,
)
from firststep.theory.limits.random_features import limiting_traces, solve

SETTING = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
SIZES = Sizes(1000, 500, 800, 600)


def test_best_linear_predictor():
    assert best_linear_error(SETTING) == pytest.approx(1.25)
    assert best_linear_error(Problem("relu", "identity")) == pytest.approx(0, abs=1e-15)
    relu = Problem("tanh", "relu", 0.1)
    assert best_linear_error(relu) == pytest.approx(0.25 - 0.5 / math.pi + 0.01)
    # Without a linear part it predicts nothing at all.
    assert best_linear_error(Problem("relu", "h2", 0.5)) == pytest.approx(2.25)


def test_random_features_do_not_beat_it():
    found = solve(SETTING, Sizes(10**6, 10**4, 10**5), 0.0, np.geomspace(1e-6, 1, 13))
    assert np.all(found.test_error > best_linear_error(SETTING))
    assert found.test_error.min() < 1.1 * best_linear_error(SETTING)


def test_ridge_on_the_inputs_is_the_infinitely_wide_linear_network():
    lam = np.geomspace(1e-4, 1e2, 7)
    found = linear_ridge(SETTING, SIZES, lam)
    # W0^T W0 -> (N/d) I, so the ridge is multiplied by N/d; q is divided by it.
    psi = 1e-10
    traces = limiting_traces(lam / psi, SIZES.sample_ratio, psi, linear=1.0, nonlinear=0.0)
    q = traces.t2 + 1.25 * traces.t1
    assert found.train_error == pytest.approx(traces.ridge * q, rel=1e-8)
    assert found.test_error == pytest.approx(-(traces.dt2 + 1.25 * traces.dt1) / traces.t1**2, rel=1e-8)


@pytest.mark.parametrize("samples", ["fit", "both"])
@pytest.mark.parametrize(
    "sizes", [Sizes(300, 200, 100, 500), Sizes(100, 200, 100, 60), Sizes(200, 200, 50, 100)]
)
def test_ridge_on_the_inputs_against_the_spectrum(sizes, samples):
    # Train error by integration over the Marchenko-Pastur density: an independent form of the same limit.
    lam = np.array([0.05, 0.7])
    phi = sizes.dim / (sizes.n_samples + (sizes.n_step_samples if samples == "both" else 0))
    low, high = (1 - math.sqrt(phi)) ** 2, (1 + math.sqrt(phi)) ** 2
    # x = middle + half cos(theta) removes the square roots at both edges.
    theta = (np.arange(20_000) + 0.5) * math.pi / 20_000
    x = (low + high) / 2 + (high - low) / 2 * np.cos(theta)
    weight = (high - low) ** 2 / 4 * np.sin(theta) ** 2 / (2 * math.pi * phi * x) * math.pi / 20_000
    assert weight.sum() + max(0, 1 - 1 / phi) == pytest.approx(1, abs=1e-6)
    trace = np.array([np.sum(weight / (x + value)) + max(0, 1 - 1 / phi) / value for value in lam])
    # (1/d) tr X^T R X = (1 - lam (1/d) tr (X^T X/n + lam)^-1)/phi'
    linear = 1 - lam * trace
    noise = 1 - phi * linear
    found = linear_ridge(SETTING, sizes, lam, samples)
    assert found.train_error == pytest.approx(lam * linear + 1.25 * noise, rel=1e-5)


def test_the_best_ridge_is_the_best():
    for samples in ("fit", "both"):
        best = best_linear_ridge(SETTING, SIZES, samples)
        other = minimize_scalar(
            lambda e, samples=samples: linear_ridge(SETTING, SIZES, math.exp(e), samples).test_error[0],
            bounds=(-10, 10),
            method="bounded",
            options={"xatol": 1e-9},
        )
        assert best.test_error[0] == pytest.approx(other.fun, rel=1e-12)
        assert best.ridge[0] == pytest.approx(math.exp(other.x), rel=1e-3)
    assert best_linear_ridge(SETTING, SIZES, "both").test_error < best_linear_ridge(SETTING, SIZES).test_error


def test_best_ridge_at_its_limits():
    blind = best_linear_ridge(Problem("relu", "h2", 0.5), SIZES)
    assert blind.ridge[0] == math.inf
    assert blind.test_error[0] == pytest.approx(2.25)
    exact = best_linear_ridge(Problem("relu", "identity"), Sizes(200, 500, 100))
    assert exact.ridge[0] == 0
    assert exact.test_error[0] == pytest.approx(0.6)
    near = linear_ridge(Problem("relu", "identity"), Sizes(200, 500, 100), 1e-9)
    assert near.test_error[0] == pytest.approx(0.6, rel=1e-6)
    assert best_linear_ridge(Problem("relu", "identity"), Sizes(600, 500, 100)).test_error[0] == 0


def test_samples_must_be_named():
    with pytest.raises(ValueError, match="samples must be one of fit, both; got 'all'"):
        linear_ridge(SETTING, SIZES, 0.1, "all")


def within(samples, value, bias):
    """Whether the mean of the samples is the value, up to four standard errors and a relative bias."""
    samples = np.asarray(samples)
    stderr = samples.std(ddof=1) / math.sqrt(len(samples))
    return abs(samples.mean() - value) < 4 * stderr + bias * abs(value)


def test_ridge_on_the_inputs_simulated():
    problem, sizes, ridge = Problem("relu", "tanh(2*x)", 0.5), Sizes(300, 150, 100), 0.2
    generator = np.random.default_rng(5)
    train, test = [], []
    for _ in range(40):
        inputs = generator.standard_normal((300, 150))
        labels = problem.teacher(inputs[:, 0]) + 0.5 * generator.standard_normal(300)
        fitted = np.linalg.solve(inputs.T @ inputs + ridge * 300 * np.eye(150), inputs.T @ labels)
        train.append(np.mean((labels - inputs @ fitted) ** 2) + ridge * fitted @ fitted)
        slope = problem.teacher.hermite(2)[1]
        test.append(best_linear_error(problem) + (fitted[0] - slope) ** 2 + np.sum(fitted[1:] ** 2))
    found = linear_ridge(problem, sizes, ridge)
    for samples, value in ((train, found.train_error[0]), (test, found.test_error[0])):
        assert within(samples, value, bias=0.01)
        assert not within(samples, 1.1 * value, bias=0.01)
        assert not within(samples, 0.9 * value, bias=0.01)


def test_baselines_in_a_prediction():
    problem, lam = Problem("relu", "tanh", 0.1), [0.1, 0.2]
    plain = predict(problem, SIZES, [0.0, 2.0], lam, theory="random_features")
    assert not any(name.startswith("linear_ridge") for name in plain.values)
    found = predict(problem, SIZES, [0.0, 2.0], lam, theory="random_features", baselines=True)
    assert found.linear_ridge_test_error.shape == (1, 2)
    assert found.linear_ridge_test_error[0] == pytest.approx(linear_ridge(problem, SIZES, lam).test_error)
    both = linear_ridge(problem, SIZES, lam, "both")
    assert found.linear_ridge_both_train_error[0] == pytest.approx(both.train_error)
    assert set(linear_values(problem, SIZES, lam)) <= set(found.rows()[0])


def test_best_neuron():
    found = best_neuron(Problem("erf", "erf"))
    assert found.error == pytest.approx(0, abs=1e-15)
    assert found.scale == pytest.approx(math.sqrt(3), rel=1e-6)
    assert not found.at_limit
    # Brute force on a fine grid with Gauss-Hermite nodes, smooth functions.
    problem = Problem("tanh", "softplus")
    z, weights = gauss_hermite(120)
    brute = min(
        float(weights @ (problem.teacher(z) - problem.activation.gaussian_moments(1.0, k * z)[0]) ** 2)
        for k in np.linspace(-5, 5, 4001)
    )
    assert best_neuron(problem).error == pytest.approx(brute, rel=1e-5)
    # An even activation can use either sign; a constant is the worst that can happen.
    assert best_neuron(Problem("relu", "sign")).error <= 1.0


def test_best_neuron_says_when_the_infimum_lies_further_out():
    found = best_neuron(Problem("tanh", "sign"), largest_scale=5.0)
    assert found.at_limit
    assert found.scale == pytest.approx(5, rel=1e-3)
    assert best_neuron(Problem("tanh", "sign"), largest_scale=10.0).error < found.error
    with pytest.raises(ValueError, match="largest_scale must be positive"):
        best_neuron(SETTING, largest_scale=0)
