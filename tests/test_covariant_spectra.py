"""Spectra after one step under a covariance and with several directions: drawn networks, and the isotropic case."""

import numpy as np
import pytest

from firststep import Problem, Sizes, predict_spectrum, simulate_spectrum
from firststep.theory.covariant_step import seen_slope
from firststep.theory.loud import Pull
from firststep.theory.spectra.covariant import CovariantWeights
from firststep.theory.spectra.loud_features import LoudFeatures
from firststep.theory.spectra.spectrum import Follower, critical_steps
from firststep.theory.spectra.two_steps import TwoStepWeights

SIZES = Sizes(1000, 500, 750)
LEVELS = {"inputs": "levels(0.3, 1.7)", "alignment": "weights(0.1, 0.9)"}


def setting(activation, **inputs):
    return Problem(activation, "h1 + h2/2", 0.3, rows="sphere", **inputs)


# 16 drawn networks each: exponent, eigenvalue with its standard error, overlaps with S^(1/2) beta and the direction.
WEIGHTS = [
    (setting("tanh", **LEVELS), 0.2, (16.204, 0.313), 0.613, 0.923),
    (setting("tanh", **LEVELS), 0.5, (871.6, 20.5), 0.658, 0.998),
    (setting("relu", inputs="power(0.5)"), 0.2, (9.695, 0.249), 0.468, 0.844),
    (setting("relu", inputs="power(1)"), 0.3, (30.89, 1.91), 0.537, 0.960),
    (setting("relu", inputs="spiked(10, overlap=1)"), 0.3, (191.0, 6.5), 0.928, 0.994),
    (setting("relu", inputs="spiked(10, overlap=0)"), 0.3, (30.40, 1.01), 0.526, 0.961),
    (
        setting("relu", inputs="spiked(10, overlap=0)", step_rule="whitened"),
        0.2,
        (9.852, 0.254),
        0.470,
        0.848,
    ),
]


@pytest.mark.parametrize("row", WEIGHTS)
def test_the_weights_outlier_against_drawn_ones(row):
    problem, exponent, (value, error), beta, direction = row
    found = predict_spectrum(problem, SIZES, step_exponent=exponent, of="weights")
    assert len(found.outliers) == 1
    outlier = found.outliers[0]
    assert outlier.eigenvalue == pytest.approx(value, abs=2 * error)
    assert outlier.eigenvalue == pytest.approx(value, rel=0.03)
    assert outlier.overlaps["beta"] == pytest.approx(beta, abs=0.02)
    assert outlier.overlaps["direction"] == pytest.approx(direction, abs=0.02)


# 96 drawn networks each (simulate_spectrum, seed 77), alpha 0.3: eigenvalue and its standard error.
LOUD = [
    ("tanh", "power(1)", 43.97, 1.17),
    ("tanh", "spiked(10, overlap=1)", 265.45, 3.65),
    ("relu", "spiked(50, overlap=1)", 782.82, 11.64),
    ("tanh", "spiked(50, overlap=1)", 1007.99, 13.34),
]


@pytest.mark.parametrize("row", LOUD)
def test_the_weights_outlier_along_a_loud_direction(row):
    activation, inputs, value, error = row
    found = predict_spectrum(setting(activation, inputs=inputs), SIZES, step_exponent=0.3, of="weights")
    assert found.outliers[0].eigenvalue == pytest.approx(value, abs=2 * error)
    assert found.outliers[0].eigenvalue == pytest.approx(value, rel=0.03)


def test_what_neurons_see_along_a_loud_direction():
    problem, shares = setting("h1 + 0.1*h3"), np.array([0.1, 0.01])
    # E[l^2 H_2(w.x)] = 2 m/d, whatever the rest of the row.
    assert np.allclose(
        seen_slope(problem.activation, 500 * shares, 500), (1 + 0.6 * shares) / (1 + 0.6 / 500), rtol=1e-12
    )


def test_an_isotropic_covariance_has_the_spectrum_of_isotropic_inputs():
    problem = setting("relu")
    found = CovariantWeights(problem, SIZES, (8.0, 0.0), "noise").spectrum(100, check=False)
    known = TwoStepWeights(problem, SIZES, (8.0, 0.0), "noise").spectrum(100, check=False)
    assert found.outliers[0].eigenvalue == pytest.approx(known.outliers[0].eigenvalue, rel=1e-9)
    assert found.outliers[0].overlaps["beta"] == pytest.approx(known.outliers[0].overlaps["beta"], abs=1e-9)
    assert np.allclose(found.density, known.density, atol=1e-6)


# Eight drawn networks: the outliers of the features with standard errors, and the overlap of the first with beta.
FEATURES = [
    (setting("tanh", **LEVELS), SIZES, 0.3, [(28.295, 0.561)], 0.616),
    (setting("relu", inputs="power(0.5)"), SIZES, 0.3, [(14.595, 0.568)], None),
    (
        Problem("relu", "t1 + t1*t2", 0.3, rows="sphere"),
        Sizes(1500, 300, 600),
        0.4,
        [(33.106, 1.38), (7.468, 0.49)],
        0.69,
    ),
]


@pytest.mark.parametrize("row", FEATURES)
def test_the_features_outliers_against_drawn_ones(row):
    problem, sizes, exponent, outliers, beta = row
    found = predict_spectrum(problem, sizes, step_exponent=exponent)
    assert len(found.outliers) == len(outliers)
    for outlier, (value, error) in zip(found.outliers, outliers, strict=True):
        assert outlier.eigenvalue == pytest.approx(value, abs=2 * error)
    if beta is not None:
        assert found.outliers[0].overlaps["beta"] == pytest.approx(beta, abs=0.02)
    assert found.details["mass"] == pytest.approx(1, abs=2e-3)


# 64 drawn networks each (simulate_spectrum, seed 177), alpha 0.3, of inputs with a loud direction: the outliers with
# standard errors, and the first eigenvalue below them.
LOUD_FEATURES = [
    ("relu", "spiked(10, overlap=0)", [(8.92, 0.22), (4.84, 0.08)], 2.02),
    ("tanh", "spiked(10, overlap=0)", [(15.63, 0.34), (6.18, 0.09)], 2.53),
    ("tanh", "spiked(10, overlap=1)", [(240.97, 1.93), (4.06, 0.05)], 1.75),
    ("tanh", "spiked(50, overlap=0)", [(46.64, 2.24), (8.19, 0.34)], 2.31),
    ("relu", "spiked(10, overlap=1)", [(494.91, 10.05), (269.72, 6.97)], 2.24),
    ("tanh", "spiked(50, overlap=1)", [(500.82, 1.61), (8.37, 0.04), (1.30, 0.01)], 0.97),
]


@pytest.mark.parametrize("row", LOUD_FEATURES)
def test_the_features_outliers_under_a_loud_direction(row):
    activation, inputs, outliers, end = row
    found = predict_spectrum(setting(activation, inputs=inputs), SIZES, step_exponent=0.3, check=False)
    assert len(found.outliers) == len(outliers)
    for outlier, (value, error) in zip(found.outliers, outliers, strict=True):
        assert outlier.eigenvalue == pytest.approx(value, abs=2 * error + 0.01 * value)
    assert found.edges[1] == pytest.approx(end, rel=0.05)


# The same without a step, 16 networks (seed 1).
@pytest.mark.parametrize(
    ("activation", "inputs", "value", "error", "end"),
    [
        ("relu", "spiked(50, overlap=0)", 17.93, 0.36, 1.82),
        ("tanh", "spiked(50, overlap=0)", 23.94, 0.43, 2.44),
        ("tanh", "spiked(10, overlap=1)", 6.543, 0.114, 2.60),
    ],
)
def test_without_a_step_a_loud_direction_is_an_outlier(activation, inputs, value, error, end):
    found = predict_spectrum(setting(activation, inputs=inputs), SIZES, 0.0, check=False)
    assert found.outliers[0].eigenvalue == pytest.approx(value, abs=2 * error)
    assert found.edges[1] == pytest.approx(end, rel=0.03)


def test_outliers_of_an_uncertain_draw_are_means():
    problem = setting("tanh", inputs="spiked(50, overlap=0)")
    step = SIZES.step_size(0.3)
    found = predict_spectrum(problem, SIZES, step, check=False).outliers[0]
    draws, weights = Pull.of(problem, SIZES).draws(4)
    each = [LoudFeatures(problem, SIZES, step, "structured", draw).above()[0] for draw in draws]
    assert found.eigenvalue == pytest.approx(weights @ [one.eigenvalue for one in each], rel=1e-6)
    assert found.overlaps["beta"] == pytest.approx(weights @ [one.overlaps["beta"] for one in each], rel=1e-4)
    assert each[0].eigenvalue < found.eigenvalue < each[1].eigenvalue


def test_critical_steps_and_followed_spectra_know_a_covariance():
    problem = setting("tanh", **LEVELS)
    (critical,) = critical_steps(problem, SIZES, count=1)
    for factor, count in ((0.9, 0), (1.1, 1)):
        assert len(predict_spectrum(problem, SIZES, factor * critical).outliers) == count
    for of in ("features", "weights"):
        follow = Follower(of)
        follow.spectrum(setting("tanh"), SIZES, 8.0)
        here = follow.spectrum(problem, SIZES, 8.0).outliers[0].eigenvalue
        assert here == pytest.approx(
            predict_spectrum(problem, SIZES, 8.0, of=of).outliers[0].eigenvalue, rel=1e-3
        )


def test_a_loud_direction_that_the_step_found_makes_no_islet() -> None:
    sizes = Sizes(500, 250, 375)
    for inputs in ("spiked(10, overlap=1)", "spiked(10, overlap=0)"):
        problem = Problem("relu", "h1 + h2/sqrt(2)", 0.5, inputs=inputs)
        found = predict_spectrum(problem, sizes, step_exponent=0.3, check=False)
        drawn = simulate_spectrum(
            problem, sizes, step_exponent=0.3, replicas=6, seed=1, bulk=False, overlaps=False, count=0
        ).details["eigenvalues"]
        middle = np.median([values[len(found.outliers)] for values in drawn])
        assert len(found.intervals) == 1
        assert found.edges[1] == pytest.approx(middle, rel=0.1)


def test_single_directions_of_a_covariance_are_found_beside_the_bulk() -> None:
    problem, sizes = Problem("relu", "h1 + h2/sqrt(2)", 0.5, inputs="power(1)"), Sizes(1000, 500, 750)
    found = predict_spectrum(problem, sizes, step_exponent=0.3, check=False)
    assert not found.details["notes"]
    # 16 drawn networks (seed 1): means and standard errors of the six largest eigenvalues.
    drawn = [(177.46, 23.75), (87.68, 12.94), (35.89, 1.80), (18.87, 0.69), (12.82, 0.50), (9.47, 0.23)]
    assert len(found.outliers) == 3
    for outlier, (value, error) in zip(found.outliers, drawn, strict=False):
        assert outlier.eigenvalue == pytest.approx(value, abs=2 * error)
    middles = [(low + high) / 2 for low, high in found.intervals[:0:-1]]
    for middle, (value, _) in zip(middles, drawn[3:], strict=True):
        assert middle == pytest.approx(value, rel=0.1)
